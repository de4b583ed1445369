#include "support/fake_backend.h"

#include "base/block_pool.h"
#include "base/error.h"
#include "engine/sampler.h"
#include "support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct backend_snapshot {
    backend_sequence state;
};
/* A step between submit and wait. */
typedef struct fake_flight {
    step_request requests[BACKEND_MAX_SEQUENCES];
    float logits[BACKEND_MAX_SEQUENCES][FAKE_VOCAB];
    calla_sampled sampled[BACKEND_MAX_SEQUENCES];
    bool samples[BACKEND_MAX_SEQUENCES];
    int32_t n;
} fake_flight;
struct backend {
    backend_options options;
    block_pool pool;
    int32_t n_sequences, n_snapshots;
    fake_flight flights[2];                          /* the first is the one to be waited for */
    float logits[BACKEND_MAX_SEQUENCES][FAKE_VOCAB]; /* of the step waited for last */
    sampler sampler;
};

fake_control fake;

void fake_reset_counts(void)
{
    fake.n_prefilled = fake.n_steps = fake.n_behind = 0;
    fake.n_ends = fake.n_restored = 0;
}

uint64_t fake_mix(uint64_t hash, uint64_t x)
{
    hash = (hash ^ x) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 29;
}

void fake_logits(uint64_t hash, float *logits)
{
    for (uint64_t i = 0; i < FAKE_VOCAB; i++)
        logits[i] = (float)(fake_mix(hash, i) >> 40) / 0x1p22f;
    if (fake.nan_logits) logits[3] = NAN;
}

static calla_status fake_plan(const model_weights *w, const backend_options *o,
                              calla_memory_plan *plan, calla_error *err)
{
    if (o->isa && strcmp(o->isa, "none") == 0)
        return error_set(err, CALLA_ERR_UNSUPPORTED, "no such isa: none");
    *plan = (calla_memory_plan){.weights_bytes = w->config.n_vocab,
                                .kv_bytes = 100 * o->n_sequences,
                                .snapshot_bytes = o->n_snapshots * fake.slot_bytes};
    return CALLA_OK;
}

static calla_status fake_open(const model_weights *w, const backend_options *o, backend **out,
                              calla_error *err)
{
    (void)w;
    backend *b = calloc(1, sizeof *b);
    assert_non_null(b);
    b->options = *o;
    assert_ok(block_pool_init(&b->pool, fake.n_blocks, err), err);
    assert_ok(sampler_init(&b->sampler, FAKE_TOKENS, err), err);
    *out = b;
    return CALLA_OK;
}

static void fake_close(backend *b)
{
    assert_int_equal(b->n_sequences, 0);
    assert_int_equal(b->n_snapshots, 0);
    assert_int_equal(b->pool.n_free, b->pool.n_blocks);
    assert_int_equal(fake.n_in_flight, 0);
    sampler_deinit(&b->sampler);
    block_pool_deinit(&b->pool);
    free(b);
}

static void fake_capabilities(const backend *b, backend_capabilities *out)
{
    int32_t n = b->options.n_sequences;
    *out = (backend_capabilities){
        .max_step_sequences = n < BACKEND_MAX_SEQUENCES ? n : BACKEND_MAX_SEQUENCES,
        .prefill_chunk = FAKE_CHUNK,
        .snapshot_grid = fake.grid,
        .samples_on_device = fake.device,
        .steps_ahead = fake.device,
    };
}

static const char *fake_isa(const backend *b)
{
    return b->options.isa ? b->options.isa : "fake";
}

static calla_status fake_sequence_create(backend *b, backend_sequence **out, calla_error *err)
{
    if (b->n_sequences == b->options.n_sequences)
        return error_set(err, CALLA_ERR_MEMORY, "%d sequences exist", b->n_sequences);
    b->n_sequences++;
    *out = calloc(1, sizeof **out);
    return CALLA_OK;
}

static void fake_sequence_reset(backend *b, backend_sequence *s)
{
    for (int32_t i = 0; i < s->n_blocks; i++) block_pool_release(&b->pool, s->blocks[i]);
    *s = (backend_sequence){0};
}

static void fake_sequence_free(backend *b, backend_sequence *s)
{
    fake_sequence_reset(b, s);
    b->n_sequences--;
    free(s);
}

static int64_t fake_sequence_length(const backend *b, const backend_sequence *s)
{
    (void)b;
    return s->n_tokens;
}

/* Blocks for one token more; a shared block that is not full is replaced by one's own. */
static calla_status grow(backend *b, backend_sequence *s, calla_error *err)
{
    int32_t at = (int32_t)(s->n_tokens / FAKE_BLOCK);
    assert_true(at < FAKE_MAX_BLOCKS);
    if (at < s->n_blocks && b->pool.references[s->blocks[at]] == 1) return CALLA_OK;
    int32_t block = block_pool_take(&b->pool);
    if (block < 0) return error_set(err, CALLA_ERR_MEMORY, "no KV block is free");
    if (at < s->n_blocks)
        block_pool_release(&b->pool, s->blocks[at]);
    else
        s->n_blocks++;
    s->blocks[at] = block;
    return CALLA_OK;
}

static calla_status fake_prefill(backend *b, backend_sequence *s, const int32_t *tokens, int32_t n,
                                 logits_mode mode, float *logits, const calla_control *control,
                                 calla_error *err)
{
    backend_sequence before = *s;
    assert_true(n > 0 && s->n_tokens + n <= b->options.n_ctx);
    assert_true(s->n_tokens % FAKE_CHUNK + n <= FAKE_CHUNK);
    if (control->cancel && atomic_load(control->cancel))
        return error_set(err, CALLA_ERR_CANCELLED, "cancelled");
    if (fake.fail_after >= 0 && s->n_tokens + n > fake.fail_after)
        return error_set(err, fake.fail_with, "made to fail");
    for (int32_t i = 0; i < n; i++) {
        calla_status status = grow(b, s, err);
        if (status != CALLA_OK) {
            /* back to the chunk's start; the blocks stay for the next try */
            s->n_tokens = before.n_tokens, s->hash = before.hash;
            return status;
        }
        s->hash = fake_mix(s->hash, (uint64_t)tokens[i]);
        s->n_tokens++;
        fake.n_prefilled++;
        if (mode == LOGITS_ALL) fake_logits(s->hash, logits + (int64_t)i * FAKE_VOCAB);
        if (fake.set_cancel && s->n_tokens == fake.set_cancel_at)
            atomic_store(fake.set_cancel, true);
    }
    if (mode == LOGITS_LAST) fake_logits(s->hash, logits);
    return CALLA_OK;
}

/* Runs row i of a step; as a device, chooses the next token, too. */
static void run_row(backend *b, fake_flight *f, int32_t i)
{
    const step_request *r = &f->requests[i];
    backend_sequence *s = r->sequence;
    int32_t token = r->token == TOKEN_LAST_SAMPLED ? s->last_sampled : r->token;
    s->hash = fake_mix(s->hash, (uint64_t)token | FAKE_DECODED);
    s->n_tokens++;
    fake_logits(s->hash, f->logits[i]);
    if (fake.nan_row == i + 1) f->logits[i][3] = NAN;
    f->samples[i] = r->sampling != NULL;
    if (!r->sampling) return;
    token_counts generated = {.counts = (int32_t *)(uintptr_t)r->generated_counts,
                              .distinct = (int32_t *)(uintptr_t)r->generated,
                              .n_vocab = FAKE_VOCAB,
                              .n_distinct = r->n_generated};
    f->sampled[i].token = -1;
    (void)sampler_choose(&b->sampler, f->logits[i], r->sampling, &generated, s->n_tokens,
                         &f->sampled[i], NULL);
    s->last_sampled = f->sampled[i].token;
}

static calla_status run_step(backend *b, fake_flight *f, calla_error *err)
{
    for (int32_t i = 0; i < f->n; i++)
        assert_true(f->requests[i].sequence->n_tokens < b->options.n_ctx);
    for (int32_t i = 0; i < f->n; i++) CALLA_TRY(grow(b, f->requests[i].sequence, err));
    for (int32_t i = 0; i < f->n; i++) run_row(b, f, i);
    fake.n_steps++;
    return CALLA_OK;
}

/* A device's work is done here: what it is given is not looked at later. */
static calla_status fake_step_submit(backend *b, const step_request *requests, int32_t n,
                                     calla_error *err)
{
    assert_true(fake.n_in_flight < (fake.device ? 2 : 1));
    fake_flight *f = &b->flights[fake.n_in_flight];
    memset(f, 0, sizeof *f);
    memcpy(f->requests, requests, (size_t)n * sizeof *requests);
    f->n = n;
    if (fake.device) {
        for (int32_t i = 0; i < n; i++)
            assert_true(fake.n_in_flight == 0 ||
                        (requests[i].sampling && step_may_follow(requests[i].sampling)));
        for (int32_t i = 0; fake.fail_submit && i < n; i++) requests[i].sequence->n_tokens++;
        if (fake.fail_submit)
            return error_set(err, CALLA_ERR_DEVICE, "the step could not be submitted");
        CALLA_TRY(run_step(b, f, err));
        memset(f->requests, 0, sizeof f->requests);
    }
    fake.n_behind += fake.n_in_flight;
    fake.n_in_flight++;
    return CALLA_OK;
}

static calla_status fake_step_wait(backend *b, step_result *results, int32_t n,
                                   const calla_control *control, calla_error *err)
{
    (void)control;
    assert_true(fake.n_in_flight > 0 && b->flights[0].n == n);
    fake_flight f = b->flights[0];
    b->flights[0] = b->flights[1];
    fake.n_in_flight--;
    for (int32_t i = 0; fake.fail_step && !fake.device && i < n; i++)
        f.requests[i].sequence->n_tokens += fake.dirty_step;
    if (fake.fail_step) return error_set(err, CALLA_ERR_DEVICE, "the step was made to fail");
    if (!fake.device) CALLA_TRY(run_step(b, &f, err));
    memcpy(b->logits, f.logits, sizeof f.logits);
    for (int32_t i = 0; i < n; i++) {
        results[i] = (step_result){.logits = b->logits[i]};
        if (!f.samples[i]) continue;
        results[i] = (step_result){.sampled = f.sampled[i]};
        logits_check(f.logits[i], FAKE_VOCAB, -1, &results[i].error);
    }
    return CALLA_OK;
}

static calla_status fake_step_logits(backend *b, int32_t i, float *logits, calla_error *err)
{
    assert_int_equal(fake.n_in_flight, 0); /* the next step's are there otherwise */
    if (fake.fail_step) return error_set(err, CALLA_ERR_DEVICE, "the logits are lost");
    memcpy(logits, b->logits[i], sizeof b->logits[i]);
    return CALLA_OK;
}

static calla_status fake_snapshot_create(backend *b, const backend_sequence *s,
                                         backend_snapshot **out, calla_error *err)
{
    if (b->n_snapshots == b->options.n_snapshots)
        return error_set(err, CALLA_ERR_MEMORY, "%d snapshots exist", b->n_snapshots);
    b->n_snapshots++;
    *out = calloc(1, sizeof **out);
    (*out)->state = *s;
    for (int32_t i = 0; i < s->n_blocks; i++) block_pool_retain(&b->pool, s->blocks[i]);
    fake.ends[fake.n_ends++ % 256] = s->n_tokens;
    return CALLA_OK;
}

static void fake_snapshot_free(backend *b, backend_snapshot *snapshot)
{
    fake_sequence_reset(b, &snapshot->state);
    b->n_snapshots--;
    free(snapshot);
}

static void fake_snapshot_restore(backend *b, const backend_snapshot *snapshot, backend_sequence *s)
{
    for (int32_t i = 0; i < snapshot->state.n_blocks; i++)
        block_pool_retain(&b->pool, snapshot->state.blocks[i]);
    fake_sequence_reset(b, s);
    *s = snapshot->state;
    fake.n_restored++;
}

static int64_t fake_snapshot_bytes(const backend *b)
{
    (void)b;
    return fake.slot_bytes;
}

const backend_ops fake_ops = {
    .name = "fake",
    .plan = fake_plan,
    .open = fake_open,
    .close = fake_close,
    .capabilities = fake_capabilities,
    .isa = fake_isa,
    .sequence_create = fake_sequence_create,
    .sequence_free = fake_sequence_free,
    .sequence_reset = fake_sequence_reset,
    .sequence_length = fake_sequence_length,
    .prefill = fake_prefill,
    .step_submit = fake_step_submit,
    .step_wait = fake_step_wait,
    .step_logits = fake_step_logits,
    .snapshot_create = fake_snapshot_create,
    .snapshot_free = fake_snapshot_free,
    .snapshot_restore = fake_snapshot_restore,
    .snapshot_bytes = fake_snapshot_bytes,
};
