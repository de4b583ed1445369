/* Sessions on a real (small, random) model, with every kernel set of this machine: what is reused,
 * how a prompt is cut, how many threads work on it and what was cancelled must not show in a single
 * bit; and a decode step allocates nothing. */
#include "base/philox.h"
#include "engine/engine.h"
#include "support/backend.h"
#include "support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- counting allocations ---- */

#if defined(__has_feature)
#define HAS_FEATURE(x) __has_feature(x)
#else
#define HAS_FEATURE(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) ||                               \
    HAS_FEATURE(address_sanitizer) || HAS_FEATURE(thread_sanitizer) ||                             \
    HAS_FEATURE(memory_sanitizer)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif
#if SANITIZED || !defined(__GLIBC__)
#define COUNTS_ALLOCATIONS 0 /* a sanitizer has its own malloc */
#else
#define COUNTS_ALLOCATIONS 1
#endif

static atomic_long n_allocations;

#if COUNTS_ALLOCATIONS
/* The program's own definitions take precedence over the C library's, which stay reachable. */
extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t alignment, size_t n);
void *malloc(size_t n)
{
    atomic_fetch_add(&n_allocations, 1);
    return __libc_malloc(n);
}
void *calloc(size_t n, size_t size)
{
    atomic_fetch_add(&n_allocations, 1);
    return __libc_calloc(n, size);
}
void *realloc(void *p, size_t n)
{
    atomic_fetch_add(&n_allocations, 1);
    return __libc_realloc(p, n);
}
void *aligned_alloc(size_t alignment, size_t n)
{
    atomic_fetch_add(&n_allocations, 1);
    return __libc_memalign(alignment, n);
}
#endif

/* ---- fixture ---- */

enum { VOCAB = 320, N_LONG = 450 };

static calla_error err;
static int32_t text[N_LONG], other[N_LONG];

static void fill(int32_t *tokens, int n, uint64_t seed)
{
    for (int i = 0; i < n; i++) tokens[i] = (int32_t)(philox_uniform(seed, (uint64_t)i, 0) * VOCAB);
}

static int setup(void **state)
{
    (void)state;
    fill(text, N_LONG, 1);
    fill(other, N_LONG, 2);
    return 0;
}

static calla_engine *open_engine(calla_engine_options options)
{
    calla_engine *engine;
    options.backend = test_backend();
    if (options.n_ctx == 0) options.n_ctx = 600;
    if (options.snapshot_bytes == 0) options.snapshot_bytes = 8 << 20;
    assert_ok(calla_engine_open(source_path("tests/data/oracle-a/mlx4"), &options, &engine, &err),
              &err);
    return engine;
}

static calla_session *create(calla_engine *engine)
{
    calla_session *session;
    assert_ok(calla_session_create(engine, &session, &err), &err);
    return session;
}

static calla_sync_stats sync_to(calla_session *session, const int32_t *tokens, int64_t n)
{
    calla_sync_stats stats;
    assert_ok(calla_session_sync(session, tokens, n, NULL, &stats, &err), &err);
    return stats;
}

/* What a session gives from here on: logits and some tokens with their log-probabilities. */
typedef struct trace {
    float logits[VOCAB];
    int32_t tokens[6];
    float logprobs[6];
} trace;

static trace record(calla_session *session)
{
    trace t = {0};
    assert_true(session->has_logits);
    memcpy(t.logits, session->logits, sizeof t.logits);
    for (int i = 0; i < 6; i++) {
        calla_sampled s;
        calla_sampling p = {.temperature = i % 2 ? 1.0f : 0.0f, .seed = 17};
        assert_ok(calla_session_next(session, &p, NULL, &s, &err), &err);
        t.tokens[i] = s.token;
        t.logprobs[i] = s.logprob;
    }
    return t;
}

static trace cold_trace(const calla_engine_options *options, const int32_t *tokens, int64_t n)
{
    calla_engine *engine = open_engine(*options);
    calla_session *session = create(engine);
    assert_int_equal(sync_to(session, tokens, n).n_reused, 0);
    trace t = record(session);
    calla_session_free(session);
    calla_engine_close(engine);
    return t;
}

static void assert_same(const trace *a, const trace *b, const char *isa, const char *what)
{
    if (memcmp(a, b, sizeof *a) == 0) return;
    int i = 0;
    while (i < VOCAB && a->logits[i] == b->logits[i]) i++;
    if (i < VOCAB)
        fail_msg("%s, %s: logit %d is %.9g, cold %.9g", isa, what, i, (double)a->logits[i],
                 (double)b->logits[i]);
    fail_msg("%s, %s: the generated tokens differ", isa, what);
}

/* Runs `body` with each kernel set that works here; under a sanitizer, where the slow ones take
 * minutes, with the best alone. */
static void for_each_isa(void (*body)(const char *isa))
{
    if (SANITIZED) {
        body("auto");
        return;
    }
    for (const char *const *isa = test_isas(); *isa; isa++) {
        calla_engine *engine;
        calla_status status = calla_engine_open(
            source_path("tests/data/oracle-a/mlx4"),
            &(calla_engine_options){.backend = test_backend(), .isa = *isa}, &engine, &err);
        if (status == CALLA_ERR_UNSUPPORTED) continue; /* not this machine's */
        assert_ok(status, &err);
        calla_engine_close(engine);
        body(*isa);
    }
}

/* ---- same bits ---- */

static void check_reuse(const char *isa)
{
    calla_engine_options options = {.isa = isa, .prefill_chunk = 128, .snapshot_stride = 256};
    trace cold = cold_trace(&options, text, N_LONG);
    calla_engine *engine = open_engine(options);
    calla_session *session = create(engine);

    sync_to(session, text, 333); /* inside a KV block, a chunk and a sub-chunk */
    assert_int_equal(sync_to(session, text, N_LONG).n_reused, 333);
    trace extended = record(session);
    assert_same(&extended, &cold, isa, "extended");

    assert_int_equal(sync_to(session, text, N_LONG).n_reused, N_LONG);
    trace resent = record(session);
    assert_same(&resent, &cold, isa, "resent");

    sync_to(session, other, 90);
    record(session); /* decode steps elsewhere in between */
    assert_int_equal(sync_to(session, text, N_LONG).n_reused, N_LONG);
    trace restored = record(session);
    assert_same(&restored, &cold, isa, "restored at its end");

    /* Back to the middle: the first prompt's end, then on along the same text. */
    calla_session_free(session);
    calla_engine_close(engine);
    engine = open_engine(options);
    session = create(engine);
    sync_to(session, text, 333);
    record(session);
    sync_to(session, other, 300);
    assert_int_equal(sync_to(session, text, N_LONG).n_reused, 333);
    trace middle = record(session);
    assert_same(&middle, &cold, isa, "restored in the middle");
    calla_session_free(session);
    calla_engine_close(engine);
}

static void reuse_equals_a_cold_run_bit_for_bit(void **state)
{
    (void)state;
    for_each_isa(check_reuse);
}

static void check_cuts(const char *isa)
{
    calla_engine_options base = {.isa = isa, .n_threads = 1};
    trace reference = cold_trace(&base, text, 260);
    const calla_engine_options cuts[] = {
        {.isa = isa, .n_threads = 3, .prefill_chunk = 64},
        {.isa = isa, .n_threads = 2, .prefill_chunk = 100, .snapshot_stride = 37},
        {.isa = isa, .n_threads = 2, .prefill_chunk = 7},
        {.isa = isa, .n_threads = 1, .prefill_chunk = 1000},
    };
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        char what[64];
        snprintf(what, sizeof what, "chunk %d, %d threads", cuts[i].prefill_chunk,
                 cuts[i].n_threads);
        trace t = cold_trace(&cuts[i], text, 260);
        assert_same(&t, &reference, isa, what);
    }
}

static void chunks_and_threads_do_not_show(void **state)
{
    (void)state;
    for_each_isa(check_cuts);
}

typedef struct score_log {
    float *rows; /* [n][VOCAB] */
    int64_t n;
} score_log;

static int keep_rows(void *user, int64_t first, int64_t n_rows, const float *logits)
{
    score_log *log = user;
    assert_int_equal(first, log->n);
    memcpy(log->rows + first * VOCAB, logits, (size_t)(n_rows * VOCAB) * sizeof *logits);
    log->n += n_rows;
    return 0;
}

static void check_score(const char *isa)
{
    enum { N = 200 };
    calla_engine *engine = open_engine((calla_engine_options){.isa = isa, .prefill_chunk = 64});
    calla_session *session = create(engine);
    score_log log = {malloc(N * VOCAB * sizeof(float)), 0};
    assert_ok(calla_session_score(session, text, N, keep_rows, &log, NULL, &err), &err);
    assert_int_equal(log.n, N);
    const int lengths[] = {1, 2, 63, 64, 65, 128, 150, N};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        sync_to(session, text, lengths[i]);
        const float *row = log.rows + (lengths[i] - 1) * VOCAB;
        for (int j = 0; j < VOCAB; j++)
            if (session->logits[j] != row[j])
                fail_msg("%s, prompt of %d: logit %d is %.9g, scored %.9g", isa, lengths[i], j,
                         (double)session->logits[j], (double)row[j]);
    }

    /* Decode steps use other arithmetic: close, not equal. */
    calla_session_free(session);
    session = create(engine);
    float logits[VOCAB];
    double difference = 0, size = 0;
    for (int i = 0; i < 100; i++) {
        assert_ok(calla_session_append(session, text[i], NULL, logits, &err), &err);
        for (int j = 0; j < VOCAB; j++) {
            double a = (double)logits[j], b = (double)log.rows[i * VOCAB + j];
            difference += (a - b) * (a - b);
            size += b * b;
        }
    }
    double error = sqrt(difference / size);
    if (error > 0.1) fail_msg("%s: decode differs by %g from prefill", isa, error);
    printf("%s: decode differs by %.2e from prefill\n", isa, error);
    free(log.rows);
    calla_session_free(session);
    calla_engine_close(engine);
}

static void scored_rows_are_the_logits_of_each_prefix(void **state)
{
    (void)state;
    for_each_isa(check_score);
}

/* ---- cancellation ---- */

typedef struct canceller {
    atomic_bool flag;
    int64_t at;
} canceller;

static void cancel_at(void *user, int64_t done, int64_t total)
{
    canceller *c = user;
    (void)total;
    if (done >= c->at) atomic_store(&c->flag, true);
}

static void check_cancel(const char *isa)
{
    calla_engine_options options = {.isa = isa, .prefill_chunk = 64};
    trace cold = cold_trace(&options, text, 200);
    calla_engine *engine = open_engine(options);
    calla_session *session = create(engine);
    int64_t n;
    for (int64_t done = 64; done < 200; done += 64) { /* one chunk further each time */
        canceller c = {false, 1};
        calla_control control = {&c.flag, cancel_at, &c};
        assert_error(calla_session_sync(session, text, 200, &control, NULL, &err),
                     CALLA_ERR_CANCELLED, &err, "cancelled");
        const int32_t *timeline = calla_session_tokens(session, &n);
        assert_int_equal(n, done);
        assert_memory_equal(timeline, text, (size_t)n * sizeof *text);
    }
    assert_int_equal(sync_to(session, text, 200).n_reused, n);
    trace resumed = record(session);
    assert_same(&resumed, &cold, isa, "resumed after cancellation");
    calla_session_free(session);
    calla_engine_close(engine);
}

static void a_cancelled_prompt_resumes_without_a_trace(void **state)
{
    (void)state;
    for_each_isa(check_cancel);
}

static void a_cancelled_step_can_be_repeated(void **state)
{
    (void)state;
    calla_engine_options options = {0};
    trace cold = cold_trace(&options, text, 100);
    calla_engine *engine = open_engine(options);
    calla_session *session = create(engine);
    sync_to(session, text, 100);
    atomic_bool cancel = true;
    calla_control control = {.cancel = &cancel};
    trace t = {0};
    memcpy(t.logits, session->logits, sizeof t.logits);
    for (int i = 0; i < 6; i++) {
        calla_sampled s;
        calla_sampling p = {.temperature = i % 2 ? 1.0f : 0.0f, .seed = 17};
        assert_error(calla_session_next(session, &p, &control, &s, &err), CALLA_ERR_CANCELLED, &err,
                     "cancelled");
        assert_ok(calla_session_next(session, &p, NULL, &s, &err), &err);
        t.tokens[i] = s.token, t.logprobs[i] = s.logprob;
    }
    assert_same(&t, &cold, "auto", "steps repeated");
    calla_session_free(session);
    calla_engine_close(engine);
}

/* ---- several sessions ---- */

static void sessions_do_not_disturb_each_other(void **state)
{
    (void)state;
    calla_engine_options options = {.n_sessions = 2};
    trace cold_text = cold_trace(&options, text, 300), cold_other = cold_trace(&options, other, 77);
    calla_engine *engine = open_engine(options);
    calla_session *a = create(engine), *b = create(engine);
    trace ta = {0}, tb = {0};
    sync_to(a, text, 300);
    sync_to(b, other, 77);
    memcpy(ta.logits, a->logits, sizeof ta.logits);
    memcpy(tb.logits, b->logits, sizeof tb.logits);
    for (int i = 0; i < 6; i++) { /* interleaved */
        calla_sampled s;
        calla_sampling p = {.temperature = i % 2 ? 1.0f : 0.0f, .seed = 17};
        assert_ok(calla_session_next(a, &p, NULL, &s, &err), &err);
        ta.tokens[i] = s.token, ta.logprobs[i] = s.logprob;
        assert_ok(calla_session_next(b, &p, NULL, &s, &err), &err);
        tb.tokens[i] = s.token, tb.logprobs[i] = s.logprob;
    }
    assert_same(&ta, &cold_text, "auto", "first of two sessions");
    assert_same(&tb, &cold_other, "auto", "second of two sessions");
    /* And over one's prompt by way of the other's snapshot. */
    assert_int_equal(sync_to(b, text, 300).n_reused, 300);
    tb = record(b);
    assert_same(&tb, &cold_text, "auto", "another session's snapshot");
    calla_session_free(a);
    calla_session_free(b);
    calla_engine_close(engine);
}

static void check_batch(const char *isa)
{
    enum { N = 4, STEPS = 6 };
    static const int64_t lengths[N] = {1, 77, 255, 300};
    calla_engine_options options = {.isa = isa, .n_sessions = N};
    calla_engine *engine = open_engine(options);
    calla_session *sessions[N];
    calla_sampling sampling[N];
    const calla_sampling *pointers[N];
    calla_sampled alone[N][STEPS], together[N];
    for (int i = 0; i < N; i++) {
        sampling[i] = (calla_sampling){.temperature = (float)(i % 2), .seed = (uint64_t)i};
        pointers[i] = &sampling[i];
        sessions[i] = create(engine);
        sync_to(sessions[i], text, lengths[i]);
        for (int k = 0; k < STEPS; k++)
            assert_ok(calla_session_next(sessions[i], pointers[i], NULL, &alone[i][k], &err), &err);
        sync_to(sessions[i], text, lengths[i]);
    }
    for (int k = 0; k < STEPS; k++) {
        assert_ok(calla_session_next_batch(sessions, N, pointers, NULL, together, &err), &err);
        for (int i = 0; i < N; i++)
            if (together[i].token != alone[i][k].token ||
                together[i].logprob != alone[i][k].logprob)
                fail_msg("%s, session %d, step %d: token %d, %.9g; alone %d, %.9g", isa, i, k,
                         together[i].token, (double)together[i].logprob, alone[i][k].token,
                         (double)alone[i][k].logprob);
    }
    for (int i = 0; i < N; i++) calla_session_free(sessions[i]);
    calla_engine_close(engine);
}

static void a_batch_gives_the_tokens_of_its_sessions_alone(void **state)
{
    (void)state;
    for_each_isa(check_batch);
}

/* ---- with a tokenizer ---- */

static calla_tokens render(const calla_tokenizer *tokenizer, const char *messages)
{
    calla_prompt prompt;
    calla_tokens tokens;
    assert_ok(calla_chat_render(messages, strlen(messages), NULL, 0, &(calla_chat_options){0},
                                &prompt, &err),
              &err);
    assert_ok(calla_tokenizer_encode(tokenizer, prompt.text.data, prompt.text.n_bytes,
                                     prompt.literal, prompt.n_literal, &tokens, &err),
              &err);
    calla_prompt_free(&prompt);
    return tokens;
}

/* The history of a conversation is rendered without its reasoning, so the second prompt parts from
 * the first where the first asked for the answer. */
static void a_conversation_is_not_read_again(void **state)
{
    (void)state;
    const char *dir = source_path("models/tiny");
    calla_tokenizer *tokenizer;
    calla_engine *engine;
    calla_engine_info info;
    assert_ok(calla_tokenizer_open(dir, &tokenizer, &err), &err);
    assert_ok(calla_engine_open(dir, &(calla_engine_options){.n_ctx = 512}, &engine, &err), &err);
    calla_engine_get_info(engine, &info);
    assert_int_equal(info.n_vocab_tokens, calla_tokenizer_n_tokens(tokenizer));
    assert_true(info.n_vocab_tokens < info.n_vocab);
    calla_session *session = create(engine);
    calla_tokens first =
        render(tokenizer, "[{\"role\": \"user\", \"content\": \"What is a dog?\"}]");
    assert_int_equal(sync_to(session, first.ids, first.n).n_reused, 0);
    calla_sampled s;
    for (int i = 0; i < 20; i++)
        assert_ok(calla_session_next(session, &(calla_sampling){0}, NULL, &s, &err), &err);
    calla_tokens second =
        render(tokenizer, "[{\"role\": \"user\", \"content\": \"What is a dog?\"}, {\"role\": "
                          "\"assistant\", \"content\": \"A pet.\"}, {\"role\": \"user\", "
                          "\"content\": \"And a cat?\"}]");
    int64_t turn = first.n - 1;
    while (first.ids[turn] != calla_tokenizer_find(tokenizer, "<|im_start|>")) turn--;
    assert_int_equal(sync_to(session, second.ids, second.n).n_reused, turn);
    calla_tokens_free(&first);
    calla_tokens_free(&second);
    calla_session_free(session);
    calla_engine_close(engine);

    /* A tokenizer that is open already is used; one of another model is refused. */
    calla_engine_options options = {.n_ctx = 512, .tokenizer = tokenizer};
    assert_ok(calla_engine_open(dir, &options, &engine, &err), &err);
    calla_engine_get_info(engine, &info);
    assert_int_equal(info.n_vocab_tokens, calla_tokenizer_n_tokens(tokenizer));
    calla_engine_close(engine);
    assert_error(
        calla_engine_open(source_path("tests/data/oracle-a/mlx4"), &options, &engine, &err),
        CALLA_ERR_INPUT, &err, "the tokenizer has 4077 tokens, the model 320");
    calla_tokenizer_close(tokenizer);
}

/* ---- limits ---- */

static void the_context_is_never_exceeded(void **state)
{
    (void)state;
    calla_engine *engine = open_engine((calla_engine_options){.n_ctx = 40});
    calla_session *session = create(engine);
    assert_error(calla_session_sync(session, text, 41, NULL, NULL, &err), CALLA_ERR_CONTEXT, &err,
                 "the prompt has 41 tokens, the context holds 40");
    sync_to(session, text, 38);
    calla_sampled s;
    for (int i = 0; i < 2; i++)
        assert_ok(calla_session_next(session, &(calla_sampling){0}, NULL, &s, &err), &err);
    assert_error(calla_session_next(session, &(calla_sampling){0}, NULL, &s, &err),
                 CALLA_ERR_CONTEXT, &err, "has 40 tokens, the context holds 40");
    calla_session_free(session);
    calla_engine_close(engine);
    assert_error(calla_engine_open(source_path("tests/data/oracle-a/mlx4"),
                                   &(calla_engine_options){.n_ctx = 4097}, &engine, &err),
                 CALLA_ERR_INPUT, &err,
                 "a context of 4097 tokens asked for, the model allows 1 to 4096");
}

static void the_plan_is_what_the_engine_holds(void **state)
{
    (void)state;
    calla_engine_options options = {.n_ctx = 512, .n_sessions = 2, .snapshot_bytes = 4 << 20};
    calla_memory_plan plan;
    calla_engine_info info;
    const char *dir = source_path("tests/data/oracle-a/mlx4");
    assert_ok(calla_engine_plan(dir, &options, &plan, &err), &err);
    calla_engine *engine = open_engine(options);
    calla_engine_get_info(engine, &info);
    assert_memory_equal(&plan, &info.memory, sizeof plan);
    assert_true(plan.snapshot_bytes > 0 && plan.snapshot_bytes <= 4 << 20);
    assert_true(info.load_ns > 0);
    assert_int_equal(info.n_vocab_tokens, VOCAB); /* no tokenizer.json there */
    calla_engine_close(engine);
    assert_error(calla_engine_plan(dir, &(calla_engine_options){.backend = "abacus"}, &plan, &err),
                 CALLA_ERR_UNSUPPORTED, &err, "backend 'abacus' is not one of this build's");
}

/* ---- allocations ---- */

static void a_decode_step_allocates_nothing(void **state)
{
    (void)state;
    if (!COUNTS_ALLOCATIONS) skip();
    calla_engine *engine = open_engine((calla_engine_options){0});
    calla_session *session = create(engine);
    sync_to(session, text, 250); /* the steps cross into a new KV block */
    calla_logit_bias bias = {3, 1.0f};
    const calla_sampling sampling[] = {
        {0},
        {.temperature = 1, .top_k = 20, .top_p = 0.95f, .seed = 1, .n_top_logprobs = 20},
        {.temperature = 1, .top_p = 0.9f, .min_p = 0.01f, .presence_penalty = 1},
        {.temperature = 1,
         .frequency_penalty = 1,
         .repetition_penalty = 1.1f,
         .logit_bias = &bias,
         .n_logit_bias = 1},
    };
    long before = atomic_load(&n_allocations);
    assert_true(before > 0); /* the counter works */
    calla_sampled s;
    calla_status status = CALLA_OK;
    for (int i = 0; i < 20 && status == CALLA_OK; i++)
        status = calla_session_next(session, &sampling[i % 4], NULL, &s, &err);
    long after = atomic_load(&n_allocations);
    assert_ok(status, &err);
    assert_int_equal(after - before, 0);

    /* A second prompt needs nothing new either. */
    before = atomic_load(&n_allocations);
    status = calla_session_sync(session, other, 100, NULL, NULL, &err);
    after = atomic_load(&n_allocations);
    assert_ok(status, &err);
    assert_int_equal(after - before, 0);
    calla_session_free(session);
    calla_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reuse_equals_a_cold_run_bit_for_bit),
        cmocka_unit_test(chunks_and_threads_do_not_show),
        cmocka_unit_test(scored_rows_are_the_logits_of_each_prefix),
        cmocka_unit_test(a_cancelled_prompt_resumes_without_a_trace),
        cmocka_unit_test(a_cancelled_step_can_be_repeated),
        cmocka_unit_test(sessions_do_not_disturb_each_other),
        cmocka_unit_test(a_batch_gives_the_tokens_of_its_sessions_alone),
        cmocka_unit_test(a_conversation_is_not_read_again),
        cmocka_unit_test(the_context_is_never_exceeded),
        cmocka_unit_test(the_plan_is_what_the_engine_holds),
        cmocka_unit_test(a_decode_step_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
