#include "support/requests.h"

#include "base/philox.h"
#include "support/backend.h"
#include "support/support.h"

#include <math.h>
#include <stdio.h>

enum { N_REQUESTS = 1000, N_BEFORE = 200, N_SESSIONS = 4, CONTEXT = 320, VOCAB = 320 };

typedef struct client {
    calla_engine *engine;
    calla_session *sessions[N_SESSIONS]; /* NULL = none */
    int64_t n_cancelled, n_refused, n_tokens;
} client;

static calla_error err;

static uint32_t draw(uint64_t request, uint32_t what, uint32_t below)
{
    return (uint32_t)(philox_uniform(5, request, what) * below);
}

/* Prompts of three families, whose members begin alike. */
static int32_t make_prompt(uint64_t request, int32_t *tokens)
{
    int32_t n = 1 + (int32_t)draw(request, 0, request % 10 == 0 ? CONTEXT - 20 : 70);
    uint64_t family = draw(request, 1, 3);
    int32_t n_common = (int32_t)draw(request, 2, 60);
    for (int32_t i = 0; i < n; i++)
        tokens[i] =
            (int32_t)(philox_uniform(i < n_common ? family : request, (uint64_t)i, 9) * VOCAB);
    return n;
}

static void run_request(client *c, uint64_t request)
{
    static const calla_logit_bias bias[] = {{1, -INFINITY}, {2, 1.5f}};
    static const uint32_t mask[VOCAB / 32] = {0xffff0000, 0, 0x0f0f0f0f};
    static const calla_sampling kinds[] = {
        {0},
        {.temperature = 1, .seed = 3, .n_top_logprobs = 4},
        {.temperature = 0.7f, .top_k = 20, .top_p = 0.9f, .presence_penalty = 1},
        {.logit_bias = bias, .n_logit_bias = 2},
        {.token_mask = mask},
        {.top_k = -1}, /* refused */
    };
    int32_t tokens[CONTEXT], n = make_prompt(request, tokens),
                             which = (int32_t)(request % N_SESSIONS);
    if (!c->sessions[which])
        assert_ok(calla_session_create(c->engine, &c->sessions[which], &err), &err);
    calla_flag stop = request % 17 == 0;
    calla_control control = {.cancel = &stop};
    calla_status status = calla_session_sync(c->sessions[which], tokens, n, &control, NULL, &err);
    c->n_cancelled += status == CALLA_ERR_CANCELLED;
    if (status == CALLA_ERR_CANCELLED) return;
    assert_ok(status, &err);
    const calla_sampling *sampling[N_SESSIONS];
    calla_session *batch[N_SESSIONS] = {c->sessions[which]};
    calla_sampled sampled[N_SESSIONS];
    sampling[0] = &kinds[draw(request, 3, 6)];
    for (uint32_t k = 0; k < 1 + draw(request, 4, 6); k++) {
        status = calla_session_next_batch(batch, 1, sampling, NULL, sampled, &err);
        if (status == CALLA_ERR_INPUT) c->n_refused++;
        if (status == CALLA_ERR_INPUT) break;
        assert_ok(status, &err);
        c->n_tokens++;
    }
    /* Now and then all that have something to say, together. */
    int32_t n_batch = 0;
    for (int i = 0; request % 8 == 7 && i < N_SESSIONS; i++) {
        sampling[n_batch] = &kinds[i % 3];
        batch[n_batch] = c->sessions[i];
        if (c->sessions[i] &&
            calla_session_next(c->sessions[i], sampling[n_batch], NULL, sampled, &err) == CALLA_OK)
            n_batch++;
    }
    for (int k = 0; n_batch > 0 && k < 3; k++)
        assert_ok(calla_session_next_batch(batch, n_batch, sampling, NULL, sampled, &err), &err);
    c->n_tokens += 3 * n_batch;
    if (request % 5 == 4) { /* perhaps with a step under way */
        calla_session_free(c->sessions[which]);
        c->sessions[which] = NULL;
    }
}

/* With as many sessions at one time as at another. */
static size_t in_use_with_all(client *c, size_t (*in_use)(void))
{
    for (int i = 0; i < N_SESSIONS; i++)
        if (!c->sessions[i])
            assert_ok(calla_session_create(c->engine, &c->sessions[i], &err), &err);
    return in_use();
}

void check_requests(size_t (*in_use)(void), size_t slack)
{
    calla_engine_options options = {.backend = test_backend(),
                                    .n_ctx = CONTEXT,
                                    .n_sessions = N_SESSIONS,
                                    .n_threads = 2,
                                    .prefill_chunk = 64,
                                    .snapshot_stride = 64,
                                    .snapshot_bytes = 4 << 20};
    client c = {0};
    size_t before = 0;
    assert_ok(calla_engine_open(source_path("tests/data/oracle-a/mlx4"), &options, &c.engine, &err),
              &err);
    for (uint64_t i = 0; i < N_REQUESTS; i++) {
        if (i == N_BEFORE) before = in_use_with_all(&c, in_use);
        run_request(&c, i);
    }
    size_t after = in_use_with_all(&c, in_use);
    printf(
        "%d requests: %lld tokens, %lld cancelled, %lld refused; %zu bytes in use, %zu at request "
        "%d\n",
        N_REQUESTS, (long long)c.n_tokens, (long long)c.n_cancelled, (long long)c.n_refused, after,
        before, N_BEFORE);
    assert_true(c.n_tokens > 3 * N_REQUESTS && c.n_cancelled > 10 && c.n_refused > 10);
    assert_true(after <= before + slack && before <= after + slack);
    for (int i = 0; i < N_SESSIONS; i++) calla_session_free(c.sessions[i]);
    calla_engine_close(c.engine);
}
