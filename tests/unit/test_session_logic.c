/* What a session reuses, rewinds and computes, on the backend of support/fake_backend.h. */
#include "base/threads.h"
#include "engine/engine.h"
#include "support/fake_backend.h"
#include "support/support.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- fixture ---- */

static calla_engine *engine;
static calla_session *session;
static calla_error err;

static calla_status try_open_from(const backend_ops *const *list,
                                  const calla_engine_options *options)
{
    model_weights weights = {
        .config = {.n_vocab = FAKE_VOCAB, .max_positions = 500, .n_layers = 4}};
    engine_vocabulary vocabulary = {FAKE_TOKENS, FAKE_TURN};
    return engine_create(list, &weights, vocabulary, options, &engine, &err);
}

static calla_status try_open(const calla_engine_options *options)
{
    const backend_ops *const list[] = {&fake_ops, NULL};
    return try_open_from(list, options);
}

/* n_slots snapshots and the rest by default; stride 8 unless set. */
static void open_with(int32_t n_slots, calla_engine_options options)
{
    fake_reset_counts();
    if (options.n_ctx == 0) options.n_ctx = 200;
    if (options.snapshot_stride == 0) options.snapshot_stride = 8;
    options.snapshot_bytes =
        n_slots ? n_slots * (fake.slot_bytes + snapshot_slot_bytes(options.n_ctx, FAKE_VOCAB)) : -1;
    assert_ok(try_open(&options), &err);
    assert_int_equal(engine->options.n_snapshots, n_slots);
    assert_ok(calla_session_create(engine, &session, &err), &err);
}

static int fresh(void **state)
{
    (void)state;
    memset(&fake, 0, sizeof fake);
    fake.n_blocks = 200, fake.slot_bytes = 1000, fake.grid = 1, fake.fail_after = -1;
    return 0;
}

static int done(void **state)
{
    (void)state;
    calla_session_free(session);
    calla_engine_close(engine);
    session = NULL, engine = NULL;
    return 0;
}

/* Tokens 0 ... n-1 of text number `text`; texts share no prefix. */
static void fill(int32_t *tokens, int64_t n, int32_t text)
{
    for (int64_t i = 0; i < n; i++) tokens[i] = (int32_t)((i * 7 + text * 5 + i / 11) % 30);
    tokens[0] = text;
}

static uint64_t cold_hash(const int32_t *tokens, int64_t n)
{
    uint64_t hash = 0;
    for (int64_t i = 0; i < n; i++) hash = fake_mix(hash, (uint64_t)tokens[i]);
    return hash;
}

/* Syncs, and checks what was reused, the timeline and the statistics. */
static void sync_to(const int32_t *tokens, int64_t n, int64_t n_reused)
{
    calla_sync_stats stats;
    int64_t before = fake.n_prefilled, n_timeline;
    assert_ok(calla_session_sync(session, tokens, n, NULL, &stats, &err), &err);
    if (stats.n_reused != n_reused)
        fail_msg("%d of %d tokens reused instead of %d", stats.n_reused, (int)n, (int)n_reused);
    assert_int_equal(stats.n_tokens, n);
    assert_int_equal(stats.n_prefill, n - n_reused);
    assert_int_equal(fake.n_prefilled - before, n - n_reused);
    const int32_t *timeline = calla_session_tokens(session, &n_timeline);
    assert_int_equal(n_timeline, n);
    assert_memory_equal(timeline, tokens, (size_t)n * sizeof *tokens);
}

/* Checks that the session stands where a cold run of tokens[n] would, logits included. */
static void assert_cold(const int32_t *tokens, int64_t n)
{
    float expected[FAKE_VOCAB];
    fake_logits(cold_hash(tokens, n), expected);
    assert_true(session->has_logits);
    assert_memory_equal(session->logits, expected, sizeof expected);
    assert_true(session->sequence->hash == cold_hash(tokens, n));
}

static int32_t next(void)
{
    calla_sampled out;
    assert_ok(calla_session_next(session, &(calla_sampling){0}, NULL, &out, &err), &err);
    return out.token;
}

/* ---- reuse ---- */

static void a_prompt_that_grows_is_extended(void **state)
{
    (void)state;
    open_with(0, (calla_engine_options){0});
    int32_t tokens[60];
    fill(tokens, 60, 1);
    sync_to(tokens, 10, 0);
    sync_to(tokens, 33, 10);
    assert_cold(tokens, 33);
    sync_to(tokens, 33, 33); /* nothing to do, logits still there */
    assert_cold(tokens, 33);
    sync_to(tokens, 60, 33);
    assert_cold(tokens, 60);
    sync_to(tokens, 59, 0); /* no rewinding without snapshots */
    assert_cold(tokens, 59);
}

static void generation_runs_the_last_token_only_when_asked_for_more(void **state)
{
    (void)state;
    open_with(0, (calla_engine_options){0});
    int32_t tokens[30];
    fill(tokens, 10, 2);
    sync_to(tokens, 10, 0);
    for (int i = 0; i < 6; i++) tokens[10 + i] = next();
    assert_int_equal(fake.n_steps, 5);
    assert_int_equal(session->n_tokens, 16);
    tokens[16] = 3, tokens[17] = 4;
    sync_to(tokens, 18, 15); /* the state holds all but the last sampled token */
    for (int i = 0; i < 4; i++) tokens[18 + i] = next();
    tokens[20] = (tokens[20] + 1) % 30; /* diverges inside the generated part */
    sync_to(tokens, 21, 0);
    assert_cold(tokens, 21);
}

static void snapshots_stand_on_the_grid_at_the_turn_and_at_the_end(void **state)
{
    (void)state;
    open_with(8, (calla_engine_options){0});
    int32_t tokens[40];
    fill(tokens, 31, 3);
    tokens[5] = tokens[27] = FAKE_TURN;
    sync_to(tokens, 31, 0);
    const int64_t expected[] = {5, 8, 16, 24, 27, 31};
    assert_int_equal(fake.n_ends, 6);
    assert_memory_equal(fake.ends, expected, sizeof expected);

    fill(tokens + 29, 11, 9); /* the next turn parts after the turn token */
    sync_to(tokens, 40, 27);
    assert_cold(tokens, 40);
    tokens[20]++;
    sync_to(tokens, 40, 16);
    assert_cold(tokens, 40);
    assert_int_equal(fake.n_restored, 2);
}

static void a_resend_costs_nothing_and_equals_a_cold_run(void **state)
{
    (void)state;
    open_with(4, (calla_engine_options){0});
    int32_t tokens[21], other[9];
    fill(tokens, 21, 4);
    fill(other, 9, 5);
    sync_to(tokens, 21, 0);
    int32_t first[5], again[5];
    for (int i = 0; i < 5; i++) first[i] = next();
    sync_to(tokens, 21, 21); /* after generating: back to the snapshot at the prompt's end */
    assert_cold(tokens, 21);
    for (int i = 0; i < 5; i++) again[i] = next();
    assert_memory_equal(first, again, sizeof first);
    sync_to(other, 9, 0); /* after another prompt */
    sync_to(tokens, 21, 21);
    assert_cold(tokens, 21);
    for (int i = 0; i < 5; i++) again[i] = next();
    assert_memory_equal(first, again, sizeof first);
}

static void snapshots_hold_prefilled_state_only(void **state)
{
    (void)state;
    open_with(8, (calla_engine_options){.snapshot_stride = -1});
    int32_t tokens[40], other[5];
    fill(tokens, 40, 6);
    fill(other, 5, 7);
    sync_to(tokens, 10, 0);
    for (int i = 0; i < 6; i++) tokens[10 + i] = next();
    sync_to(tokens, 30, 15); /* continues from decode steps: must not be kept */
    assert_int_equal(fake.n_ends, 1);
    sync_to(other, 5, 0);
    sync_to(tokens, 30, 10); /* from the first prompt's end */
    assert_cold(tokens, 30);
    sync_to(other, 5, 5);
    sync_to(tokens, 30, 30); /* now a prefilled state was kept */
    assert_cold(tokens, 30);
}

static void a_snapshot_as_deep_as_decoded_state_is_preferred(void **state)
{
    (void)state;
    open_with(8, (calla_engine_options){.snapshot_stride = -1, .n_sessions = 2});
    int32_t tokens[20];
    fill(tokens, 10, 8);
    sync_to(tokens, 10, 0);
    for (int i = 0; i < 4; i++) tokens[10 + i] = next();
    calla_session *decoded = session, *second;
    assert_ok(calla_session_create(engine, &second, &err), &err);
    session = second;
    sync_to(tokens, 13, 10); /* shared: another session's snapshot */
    assert_cold(tokens, 13);
    session = decoded;
    sync_to(tokens, 14, 13);
    assert_cold(tokens, 14);
    calla_session_free(second);
}

static void a_long_prompt_takes_few_slots(void **state)
{
    (void)state;
    open_with(8, (calla_engine_options){0});
    int32_t system[12], tokens[150];
    fill(system, 12, 9);
    sync_to(system, 12, 0);
    fake_reset_counts();
    fill(tokens, 150, 10);
    sync_to(tokens, 150, 0); /* 18 points of the grid for 4 slots: each fifth, then the end */
    const int64_t expected[] = {40, 80, 120, 150};
    assert_int_equal(fake.n_ends, 4);
    assert_memory_equal(fake.ends, expected, sizeof expected);
    sync_to(system, 12, 12); /* still there */
}

static void the_least_recently_used_goes_first(void **state)
{
    (void)state;
    open_with(3, (calla_engine_options){.snapshot_stride = -1});
    int32_t texts[5][6];
    for (int i = 0; i < 5; i++) fill(texts[i], 6, i);
    for (int i = 0; i < 3; i++) sync_to(texts[i], 6, 0);
    sync_to(texts[0], 6, 6); /* used again: 1 is now the oldest */
    sync_to(texts[3], 6, 0);
    sync_to(texts[0], 6, 6);
    sync_to(texts[2], 6, 6);
    sync_to(texts[3], 6, 6);
    sync_to(texts[1], 6, 0);
}

static void message_starts_are_kept_as_the_budget_allows(void **state)
{
    (void)state;
    open_with(16, (calla_engine_options){.snapshot_stride = -1});
    int32_t tokens[60];
    fill(tokens, 60, 11);
    for (int i = 0; i < 60; i += 7) tokens[i] = FAKE_TURN; /* 0, 7 ... 56 */
    sync_to(tokens, 60, 0); /* four: the last, the first after the system's, two from the end */
    const int64_t expected[] = {7, 42, 49, 56, 60};
    assert_int_equal(fake.n_ends, 5);
    assert_memory_equal(fake.ends, expected, sizeof expected);
    tokens[8]++;
    sync_to(tokens, 60, 7); /* another conversation with the same system message */
    assert_cold(tokens, 60);
}

static void a_prompt_in_pieces_equals_one_in_one(void **state)
{
    (void)state;
    open_with(8, (calla_engine_options){0});
    int32_t tokens[40];
    fill(tokens, 40, 12);
    tokens[33] = FAKE_TURN;
    calla_sync_stats stats;
    calla_sampled out;
    int64_t n_left;
    assert_int_equal(calla_session_advance(session, 4, NULL, &n_left, &err), CALLA_ERR_INPUT);
    assert_ok(calla_session_begin(session, tokens, 40, &stats, &err), &err);
    assert_int_equal(stats.n_reused, 0);
    for (int64_t expected = 33; expected > 0; expected -= 7) {
        assert_ok(calla_session_advance(session, 7, NULL, &n_left, &err), &err);
        assert_int_equal(n_left, expected);
        assert_int_equal(calla_session_next(session, &(calla_sampling){0}, NULL, &out, &err),
                         CALLA_ERR_INPUT);
    }
    assert_ok(calla_session_advance(session, 7, NULL, &n_left, &err), &err);
    assert_int_equal(n_left, 0);
    assert_cold(tokens, 40);
    const int64_t ends[] = {8, 16, 24, 32, 33, 40}; /* of snapshots, not of pieces */
    assert_int_equal(fake.n_ends, 6);
    assert_memory_equal(fake.ends, ends, sizeof ends);
    next();
    assert_ok(calla_session_begin(session, tokens, 40, &stats, &err), &err);
    assert_int_equal(stats.n_reused, 40);
    assert_ok(calla_session_advance(session, 1, NULL, &n_left, &err), &err);
    assert_int_equal(n_left, 0);
    assert_cold(tokens, 40);
    /* Begun, left in the middle, kept, and finished by another prompt that shares it. */
    tokens[18]++;
    assert_ok(calla_session_begin(session, tokens, 40, &stats, &err), &err);
    assert_int_equal(stats.n_reused, 16);
    assert_ok(calla_session_advance(session, 5, NULL, &n_left, &err), &err);
    session_keep(session);
    session_reset(session);
    tokens[30]++;
    sync_to(tokens, 40, 21);
    assert_cold(tokens, 40);
}

static void decoded_state_is_kept_on_request(void **state)
{
    (void)state;
    open_with(8, (calla_engine_options){.snapshot_stride = -1, .keep_decoded = true});
    int32_t tokens[40], other[5];
    fill(tokens, 40, 13);
    fill(other, 5, 14);
    sync_to(tokens, 10, 0);
    for (int i = 0; i < 6; i++) tokens[10 + i] = next();
    session_keep(session);
    sync_to(other, 5, 0);
    sync_to(tokens, 30, 15); /* all but the token sampled last, which was never run */
    assert_true(session->reuse.decoded);
    sync_to(other, 5, 5);
    sync_to(tokens, 30, 30); /* prompts that go on from it are kept as well */
    assert_true(session->reuse.decoded);
    assert_true(session->has_logits);
}

static void a_sync_tells_what_it_shares_and_where_it_parts(void **state)
{
    (void)state;
    open_with(8, (calla_engine_options){.snapshot_stride = -1});
    int32_t tokens[40], other[5];
    fill(tokens, 40, 15);
    fill(other, 5, 16);
    sync_to(tokens, 40, 0);
    assert_int_equal(session->reuse.n_common, 0);
    assert_int_equal(session->reuse.other_token, -1);
    sync_to(other, 5, 0);
    int32_t was = tokens[25];
    tokens[25]++;
    sync_to(tokens, 40, 0);
    assert_int_equal(session->reuse.n_common, 25);
    assert_int_equal(session->reuse.other_token, was);
    tokens[26]++;
    sync_to(tokens, 30, 0); /* the session's own timeline */
    assert_int_equal(session->reuse.n_common, 26);
}

static void one_slot_keeps_the_end_of_the_prompt(void **state)
{
    (void)state;
    open_with(1, (calla_engine_options){0});
    int32_t tokens[30];
    fill(tokens, 30, 1);
    tokens[20] = FAKE_TURN;
    sync_to(tokens, 30, 0);
    assert_int_equal(fake.n_ends, 1);
    next();
    sync_to(tokens, 30, 30);
}

static void a_coarse_grid_is_respected(void **state)
{
    (void)state;
    fake.grid = 6;
    open_with(8, (calla_engine_options){0}); /* stride 8 becomes 12 */
    int32_t tokens[36];
    fill(tokens, 36, 2);
    tokens[32] = FAKE_TURN;
    sync_to(tokens, 35, 0);
    const int64_t expected[] = {12, 24, 30};
    assert_int_equal(fake.n_ends, 3);
    assert_memory_equal(fake.ends, expected, sizeof expected);
    next();
    sync_to(tokens, 35, 30);
    assert_cold(tokens, 35);
}

/* ---- failures ---- */

static void a_cancelled_prefill_keeps_its_part(void **state)
{
    (void)state;
    open_with(4, (calla_engine_options){.snapshot_stride = -1});
    int32_t tokens[50];
    fill(tokens, 50, 3);
    atomic_bool cancel = false;
    calla_control control = {.cancel = &cancel};
    fake.set_cancel = &cancel, fake.set_cancel_at = 18;
    assert_error(calla_session_sync(session, tokens, 50, &control, NULL, &err), CALLA_ERR_CANCELLED,
                 &err, "cancelled");
    int64_t n;
    assert_memory_equal(calla_session_tokens(session, &n), tokens, 20 * sizeof *tokens);
    assert_int_equal(n, 20); /* the end of the chunk */
    calla_sampled out;
    assert_error(calla_session_next(session, &(calla_sampling){0}, NULL, &out, &err),
                 CALLA_ERR_INPUT, &err, "nothing to sample from");
    fake.set_cancel = NULL;
    sync_to(tokens, 50, 20);
    assert_cold(tokens, 50);

    cancel = true;
    assert_error(calla_session_next(session, &(calla_sampling){0}, &control, &out, &err),
                 CALLA_ERR_CANCELLED, &err, "cancelled");
    assert_int_equal(session->n_tokens, 50);
    int32_t first = next();
    assert_error(calla_session_next(session, &(calla_sampling){0}, &control, &out, &err),
                 CALLA_ERR_CANCELLED, &err, "cancelled");
    assert_int_equal(session->n_tokens, 51);
    assert_int_equal(session->tokens[50], first);
    next();
    assert_int_equal(fake.n_steps, 1);
}

static void refusals_leave_the_timeline_alone(void **state)
{
    (void)state;
    open_with(2, (calla_engine_options){.n_ctx = 12});
    int32_t tokens[20];
    fill(tokens, 20, 4);
    sync_to(tokens, 10, 0);
    assert_error(calla_session_sync(session, tokens, 13, NULL, NULL, &err), CALLA_ERR_CONTEXT, &err,
                 "the prompt has 13 tokens, the context holds 12");
    assert_error(calla_session_sync(session, tokens, 0, NULL, NULL, &err), CALLA_ERR_INPUT, &err,
                 "no tokens");
    tokens[11] = FAKE_VOCAB;
    assert_error(calla_session_sync(session, tokens, 12, NULL, NULL, &err), CALLA_ERR_INPUT, &err,
                 "token 11 of the prompt is 40, outside 0 ... 39");
    tokens[11] = -1;
    assert_error(calla_session_sync(session, tokens, 12, NULL, NULL, &err), CALLA_ERR_INPUT, &err,
                 "is -1");
    float logits[FAKE_VOCAB];
    assert_error(calla_session_append(session, FAKE_VOCAB, NULL, logits, &err), CALLA_ERR_INPUT,
                 &err, "token 40 is outside 0 ... 39");
    assert_cold(tokens, 10);
    next(), next(); /* the context is full now */
    calla_sampled out;
    assert_error(calla_session_next(session, &(calla_sampling){0}, NULL, &out, &err),
                 CALLA_ERR_CONTEXT, &err, "has 12 tokens, the context holds 12");
    assert_error(calla_session_append(session, 1, NULL, logits, &err), CALLA_ERR_CONTEXT, &err,
                 "has 12 tokens, the context holds 12");
}

static void snapshots_make_way_for_kv_blocks(void **state)
{
    (void)state;
    fake.n_blocks = 16; /* of 4 tokens; a context of 60 needs 15 */
    open_with(6, (calla_engine_options){.n_ctx = 60, .snapshot_stride = -1});
    int32_t tokens[60];
    for (int32_t text = 0; text < 4; text++) {
        fill(tokens, 30, text);
        sync_to(tokens, 30, 0);
    }
    fill(tokens, 60, 5);
    sync_to(tokens, 58, 0);
    assert_cold(tokens, 58);
    next(), next();
}

static void no_block_and_no_snapshot_left_is_an_error(void **state)
{
    (void)state;
    fake.n_blocks = 5;
    open_with(2, (calla_engine_options){.n_ctx = 60, .snapshot_stride = -1});
    int32_t tokens[40];
    fill(tokens, 40, 5);
    assert_error(calla_session_sync(session, tokens, 40, NULL, NULL, &err), CALLA_ERR_MEMORY, &err,
                 "no KV block is free");
    int64_t n;
    calla_session_tokens(session, &n);
    assert_int_equal(n, 20);
    sync_to(tokens, 20, 0); /* has no logits at 20 */
    assert_cold(tokens, 20);
    next();
    calla_sampled out;
    assert_error(calla_session_next(session, &(calla_sampling){0}, NULL, &out, &err),
                 CALLA_ERR_MEMORY, &err, "no KV block is free");
    assert_int_equal(session->n_tokens, 21);
}

static void broken_numbers_and_devices_empty_the_session(void **state)
{
    (void)state;
    open_with(4, (calla_engine_options){.snapshot_stride = -1});
    int32_t tokens[20];
    int64_t n;
    fill(tokens, 20, 6);
    fake.nan_logits = true;
    assert_error(calla_session_sync(session, tokens, 20, NULL, NULL, &err), CALLA_ERR_NUMERIC, &err,
                 "logit nan for token 3 after position 19");
    calla_session_tokens(session, &n);
    assert_int_equal(n, 0);
    assert_int_equal(fake.n_ends, 0); /* not kept */
    fake.nan_logits = false;
    fake.fail_after = 10, fake.fail_with = CALLA_ERR_DEVICE;
    assert_error(calla_session_sync(session, tokens, 20, NULL, NULL, &err), CALLA_ERR_DEVICE, &err,
                 "made to fail");
    fake.fail_after = -1;
    sync_to(tokens, 20, 0);

    calla_sampled out;
    int32_t sampled = next();
    fake.fail_step = true; /* without effect on the state: try again */
    assert_error(calla_session_next(session, &(calla_sampling){0}, NULL, &out, &err),
                 CALLA_ERR_DEVICE, &err, "the step was made to fail");
    assert_int_equal(session->n_tokens, 21);
    assert_int_equal(session->tokens[20], sampled);
    fake.fail_step = false;
    next();
    fake.fail_step = fake.dirty_step = true;
    assert_error(calla_session_next(session, &(calla_sampling){0}, NULL, &out, &err),
                 CALLA_ERR_DEVICE, &err, "the step was made to fail");
    assert_int_equal(session->n_tokens, 0);
    fake.fail_step = false;
    sync_to(tokens, 20, 20); /* the prompt's snapshot is still good */
    next();
    fake.nan_logits = true;
    assert_error(calla_session_next(session, &(calla_sampling){0}, NULL, &out, &err),
                 CALLA_ERR_NUMERIC, &err, "after position 20");
    assert_int_equal(session->n_tokens, 0);
}

static void a_refused_sampling_can_be_repeated_with_other_parameters(void **state)
{
    (void)state;
    open_with(0, (calla_engine_options){0});
    int32_t tokens[5];
    fill(tokens, 5, 1);
    sync_to(tokens, 5, 0);
    next();
    const uint32_t none[2] = {0};
    calla_sampled out;
    assert_error(
        calla_session_next(session, &(calla_sampling){.token_mask = none}, NULL, &out, &err),
        CALLA_ERR_INPUT, &err, "no token is left");
    assert_int_equal(session->n_tokens, 6);
    assert_error(calla_session_next(session, &(calla_sampling){.top_k = -1}, NULL, &out, &err),
                 CALLA_ERR_INPUT, &err, "top_k is -1");
    next();
    assert_int_equal(fake.n_steps, 1); /* its logits were kept */
}

/* ---- batches ---- */

enum { BATCH = 3 };
static calla_session *batch[BATCH];
static const calla_sampling greedy_sampling;
static const calla_sampling *const all_greedy[BATCH] = {&greedy_sampling, &greedy_sampling,
                                                        &greedy_sampling};

/* Three sessions, the first one being `session`, with prompts of 5, 6 and 7 tokens. */
static void open_batch(void)
{
    open_with(0, (calla_engine_options){.n_sessions = BATCH});
    batch[0] = session;
    for (int i = 1; i < BATCH; i++) assert_ok(calla_session_create(engine, &batch[i], &err), &err);
    for (int i = 0; i < BATCH; i++) {
        int32_t tokens[8];
        fill(tokens, 8, i);
        assert_ok(calla_session_sync(batch[i], tokens, 5 + i, NULL, NULL, &err), &err);
    }
    fake_reset_counts();
}

static void close_batch(void)
{
    for (int i = 1; i < BATCH; i++) calla_session_free(batch[i]);
}

static void next_batch(calla_sampled *out)
{
    assert_ok(calla_session_next_batch(batch, BATCH, all_greedy, NULL, out, &err), &err);
}

static void a_batch_is_one_step_and_gives_what_each_would_alone(void **state)
{
    (void)state;
    calla_sampled alone[BATCH][4], together[BATCH];
    open_batch();
    for (int i = 0; i < BATCH; i++)
        for (int k = 0; k < 4; k++)
            assert_ok(calla_session_next(batch[i], &greedy_sampling, NULL, &alone[i][k], &err),
                      &err);
    close_batch();
    done(NULL);
    open_batch();
    for (int k = 0; k < 4; k++) {
        next_batch(together);
        assert_int_equal(fake.n_steps, k); /* the first from the prompts' own logits */
        for (int i = 0; i < BATCH; i++) {
            assert_int_equal(together[i].token, alone[i][k].token);
            assert_true(together[i].logprob == alone[i][k].logprob);
        }
    }
    /* One that has its logits already beside one that has to run its token. */
    int32_t tokens[8];
    fill(tokens, 8, 1);
    assert_ok(calla_session_sync(batch[1], tokens, 6, NULL, NULL, &err), &err);
    next_batch(together);
    assert_int_equal(fake.n_steps, 4);
    assert_int_equal(together[1].token, alone[1][0].token);
    close_batch();
}

static void a_batch_that_fails_leaves_every_session_usable(void **state)
{
    (void)state;
    calla_sampled out[BATCH], again[BATCH];
    open_batch();
    next_batch(out);
    int64_t n[BATCH] = {6, 7, 8};

    const uint32_t none[2] = {0};
    const calla_sampling masked = {.token_mask = none}, bad = {.top_k = -1};
    const calla_sampling *sampling[BATCH] = {all_greedy[0], all_greedy[1], &masked};
    memset(out, 0x5a, sizeof out);
    assert_error(calla_session_next_batch(batch, BATCH, sampling, NULL, out, &err), CALLA_ERR_INPUT,
                 &err, "no token is left");
    assert_int_equal(out[0].token, 0x5a5a5a5a);
    for (int i = 0; i < BATCH; i++) assert_int_equal(batch[i]->n_tokens, n[i]);
    sampling[2] = &bad;
    assert_error(calla_session_next_batch(batch, BATCH, sampling, NULL, out, &err), CALLA_ERR_INPUT,
                 &err, "top_k is -1");
    next_batch(out);
    assert_int_equal(fake.n_steps, 1); /* all logits were kept */

    fake.fail_step = true; /* without effect on the states */
    assert_error(calla_session_next_batch(batch, BATCH, all_greedy, NULL, out, &err),
                 CALLA_ERR_DEVICE, &err, "the step was made to fail");
    fake.fail_step = false;
    for (int i = 0; i < BATCH; i++) assert_int_equal(batch[i]->n_tokens, n[i] + 1);

    fake.nan_row = 2; /* one row broken: that session is empty, the others keep their step */
    assert_error(calla_session_next_batch(batch, BATCH, all_greedy, NULL, out, &err),
                 CALLA_ERR_NUMERIC, &err, "after position 7");
    fake.nan_row = 0;
    assert_int_equal(batch[0]->n_tokens, n[0] + 1);
    assert_int_equal(batch[1]->n_tokens, 0);
    assert_int_equal(batch[2]->n_tokens, n[2] + 1);
    assert_error(calla_session_next_batch(batch, BATCH, all_greedy, NULL, out, &err),
                 CALLA_ERR_INPUT, &err, "nothing to sample from");
    calla_session *sound[2] = {batch[0], batch[2]};
    assert_ok(calla_session_next_batch(sound, 2, all_greedy, NULL, again, &err), &err);
    assert_int_equal(fake.n_steps, 2);
    assert_int_equal(sound[0]->n_tokens, n[0] + 2);

    fake.fail_step = fake.dirty_step = true;
    assert_error(calla_session_next_batch(sound, 2, all_greedy, NULL, again, &err),
                 CALLA_ERR_DEVICE, &err, "the step was made to fail");
    for (int i = 0; i < 2; i++) assert_int_equal(sound[i]->n_tokens, 0);
    fake.fail_step = fake.dirty_step = false;
    close_batch();
}

static void a_batch_has_as_many_sessions_as_the_backend_runs(void **state)
{
    (void)state;
    open_with(0, (calla_engine_options){0});
    calla_session *two[2] = {session, session};
    calla_sampled out[2];
    assert_error(calla_session_next_batch(two, 2, all_greedy, NULL, out, &err), CALLA_ERR_INPUT,
                 &err, "2 sessions in one step, at most 1 are possible");
}

/* ---- sampling ---- */

static void padding_is_not_sampled_and_penalties_start_at_sync(void **state)
{
    (void)state;
    open_with(2, (calla_engine_options){0});
    int32_t tokens[5];
    fill(tokens, 5, 1);
    sync_to(tokens, 5, 0);
    calla_sampling never_again = {.presence_penalty = 100};
    bool seen[FAKE_VOCAB] = {0};
    calla_sampled out;
    /* A token of the reply before the sync is no longer held against it. */
    int32_t greedy = next();
    sync_to(tokens, 5, 5);
    for (int i = 0; i < FAKE_TOKENS; i++) { /* each real token once */
        assert_ok(calla_session_next(session, &never_again, NULL, &out, &err), &err);
        assert_true(out.token < FAKE_TOKENS && !seen[out.token]);
        if (i == 0) assert_int_equal(out.token, greedy);
        seen[out.token] = true;
    }
}

/* ---- append and score ---- */

static void append_runs_a_decode_step(void **state)
{
    (void)state;
    open_with(0, (calla_engine_options){0});
    float logits[FAKE_VOCAB], expected[FAKE_VOCAB];
    uint64_t hash = 0;
    for (int32_t i = 0; i < 6; i++) { /* from an empty timeline */
        assert_ok(calla_session_append(session, i, NULL, logits, &err), &err);
        hash = fake_mix(hash, (uint64_t)i | FAKE_DECODED);
        fake_logits(hash, expected);
        assert_memory_equal(logits, expected, sizeof expected);
    }
    int32_t sampled = next(); /* from the appended token's logits */
    assert_int_equal(fake.n_steps, 6);
    assert_ok(calla_session_append(session, 9, NULL, logits, &err), &err);
    assert_int_equal(fake.n_steps, 8); /* the sampled token was run first */
    hash = fake_mix(fake_mix(hash, (uint64_t)sampled | FAKE_DECODED), 9 | FAKE_DECODED);
    fake_logits(hash, expected);
    assert_memory_equal(logits, expected, sizeof expected);
    assert_int_equal(session->n_tokens, 8);
}

typedef struct seen_rows {
    const int32_t *tokens;
    int64_t n, stop_at;
} seen_rows;

static int check_rows(void *user, int64_t first, int64_t n_rows, const float *logits)
{
    seen_rows *seen = user;
    assert_int_equal(first, seen->n);
    for (int64_t i = 0; i < n_rows; i++) {
        float expected[FAKE_VOCAB];
        fake_logits(cold_hash(seen->tokens, first + i + 1), expected);
        assert_memory_equal(logits + i * FAKE_VOCAB, expected, sizeof expected);
    }
    seen->n += n_rows;
    return seen->stop_at >= 0 && seen->n > seen->stop_at;
}

static void score_gives_every_row_in_order(void **state)
{
    (void)state;
    open_with(4, (calla_engine_options){.prefill_chunk = 8});
    int32_t tokens[45];
    fill(tokens, 45, 3);
    sync_to(tokens, 20, 0);
    seen_rows seen = {tokens, 0, -1};
    int64_t before = fake.n_prefilled;
    assert_ok(calla_session_score(session, tokens, 45, check_rows, &seen, NULL, &err), &err);
    assert_int_equal(seen.n, 45);
    assert_int_equal(fake.n_prefilled - before, 45);
    assert_cold(tokens, 45);
    sync_to(tokens, 45, 45);
    seen = (seen_rows){tokens, 0, 10};
    assert_error(calla_session_score(session, tokens, 45, check_rows, &seen, NULL, &err),
                 CALLA_ERR_CANCELLED, &err, "cancelled");
    assert_int_equal(seen.n, 16);
}

static void score_survives_a_pool_full_of_snapshots(void **state)
{
    (void)state;
    fake.n_blocks = 16;
    open_with(6, (calla_engine_options){.n_ctx = 60, .snapshot_stride = -1});
    int32_t tokens[60];
    fill(tokens, 30, 1);
    sync_to(tokens, 30, 0);
    fill(tokens, 58, 5);
    seen_rows seen = {tokens, 0, -1};
    assert_ok(calla_session_score(session, tokens, 58, check_rows, &seen, NULL, &err), &err);
    assert_int_equal(seen.n, 58);
}

/* ---- progress ---- */

typedef struct progress_log {
    int64_t done, total, n_calls;
} progress_log;

static void log_progress(void *user, int64_t done_tokens, int64_t total)
{
    progress_log *log = user;
    assert_true(done_tokens > log->done && done_tokens <= total);
    log->done = done_tokens, log->total = total, log->n_calls++;
}

static void progress_counts_the_whole_prefill(void **state)
{
    (void)state;
    open_with(8, (calla_engine_options){0});
    int32_t tokens[40];
    fill(tokens, 40, 1);
    sync_to(tokens, 9, 0);
    progress_log log = {0};
    calla_control control = {.progress = log_progress, .user = &log};
    assert_ok(calla_session_sync(session, tokens, 40, &control, NULL, &err), &err);
    assert_int_equal(log.done, 31);
    assert_int_equal(log.total, 31);
    assert_true(log.n_calls >= 7);
    log = (progress_log){0};
    seen_rows seen = {tokens, 0, -1};
    assert_ok(calla_session_score(session, tokens, 40, check_rows, &seen, &control, &err), &err);
    assert_int_equal(log.done, 40);
}

/* ---- engine options ---- */

static void options_have_defaults_and_ranges(void **state)
{
    (void)state;
    calla_engine_info info;
    assert_ok(try_open(&(calla_engine_options){0}), &err);
    calla_engine_get_info(engine, &info);
    assert_int_equal(info.n_ctx, 500); /* the model's maximum is below 8192 */
    assert_int_equal(info.n_vocab, FAKE_VOCAB);
    assert_int_equal(info.n_vocab_tokens, FAKE_TOKENS);
    assert_true(info.n_threads >= 1);
    assert_string_equal(info.backend, "fake");
    assert_int_equal(engine->options.n_snapshots, MAX_SNAPSHOTS);
    assert_int_equal(engine->options.prefill_chunk, 500); /* 2048, at most the context */
    assert_int_equal(engine->snapshot_stride, 2048);
    const calla_memory_plan *m = &info.memory;
    assert_string_equal(m->backend, "fake");
    assert_true(m->on_device); /* it does not read weights where they are */
    assert_int_equal(m->snapshot_bytes,
                     MAX_SNAPSHOTS * (1000 + snapshot_slot_bytes(500, FAKE_VOCAB)));
    assert_int_equal(m->total_bytes, m->weights_bytes + m->prepared_bytes + m->kv_bytes +
                                         m->state_bytes + m->snapshot_bytes + m->scratch_bytes);
    calla_engine_close(engine);
    /* No crowd of threads. */
    assert_ok(try_open(&(calla_engine_options){.n_threads = 1024}), &err);
    assert_true(engine->options.n_threads <= 2 * usable_processors());
    calla_engine_close(engine);
    /* A budget below one snapshot still gives one. */
    assert_ok(try_open(&(calla_engine_options){.snapshot_bytes = 1, .backend = "fake"}), &err);
    assert_int_equal(engine->options.n_snapshots, 1);
    calla_engine_close(engine);
    engine = NULL;

    const struct {
        calla_engine_options options;
        calla_status status;
        const char *part;
    } bad[] = {
        {{.n_ctx = 501},
         CALLA_ERR_INPUT,
         "a context of 501 tokens asked for, the model allows 1 to 500"},
        {{.n_ctx = -1}, CALLA_ERR_INPUT, "-1"},
        {{.n_threads = -2}, CALLA_ERR_INPUT, "n_threads is -2"},
        {{.n_sessions = -1}, CALLA_ERR_INPUT, "n_sessions is -1"},
        {{.prefill_chunk = 1 << 20}, CALLA_ERR_INPUT, "prefill_chunk is 1048576"},
        {{.backend = "tpu"},
         CALLA_ERR_UNSUPPORTED,
         "backend 'tpu' is not one of this build's: auto, fake"},
        {{.isa = "none"}, CALLA_ERR_UNSUPPORTED, "no such isa: none"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_error(try_open(&bad[i].options), bad[i].status, &err, bad[i].part);
}

static calla_status lacks;

static calla_status lacking_open(const model_weights *w, const backend_options *o, backend **out,
                                 calla_error *e)
{
    (void)w, (void)o, (void)out;
    return error_set(e, lacks, "it is not to be had");
}

/* Opens the first of two backends that can be, the first of which lacks something; into said
 * [n_bytes] what goes to standard error meanwhile. */
static calla_status open_second(const char *name, char *said, size_t n_bytes)
{
    backend_ops lacking = fake_ops;
    lacking.name = "device", lacking.open = lacking_open;
    const backend_ops *const list[] = {&lacking, &fake_ops, NULL};
    FILE *file = tmpfile();
    int screen = dup(STDERR_FILENO);
    assert_non_null(file);
    dup2(fileno(file), STDERR_FILENO);
    calla_status status = try_open_from(list, &(calla_engine_options){.backend = name});
    dup2(screen, STDERR_FILENO);
    close(screen);
    rewind(file);
    said[fread(said, 1, n_bytes - 1, file)] = '\0';
    fclose(file);
    return status;
}

/* A device that is not there is passed over in silence, one that is there is not; and somebody who
 * interrupts the opening does not want the next one. */
static void another_backend_takes_over(void **state)
{
    (void)state;
    char said[256];
    lacks = CALLA_ERR_UNSUPPORTED;
    assert_ok(open_second(NULL, said, sizeof said), &err);
    assert_string_equal(said, "");
    calla_engine_close(engine);
    const calla_status there[] = {CALLA_ERR_MEMORY, CALLA_ERR_DEVICE};
    for (int i = 0; i < 2; i++) {
        lacks = there[i];
        assert_ok(open_second("auto", said, sizeof said), &err);
        assert_string_equal(engine->info.backend, "fake");
        assert_string_equal(said,
                            "calla: warning: device: it is not to be had; going on with fake\n");
        calla_engine_close(engine);
        engine = NULL;
        assert_error(open_second("device", said, sizeof said), lacks, &err, "not to be had");
        assert_string_equal(said, "");
    }
    lacks = CALLA_ERR_CANCELLED;
    assert_error(open_second(NULL, said, sizeof said), lacks, &err, "not to be had");
    assert_string_equal(said, "");
}

static void sessions_are_limited_and_independent(void **state)
{
    (void)state;
    open_with(4, (calla_engine_options){.n_sessions = 2, .snapshot_stride = -1});
    calla_session *first = session, *second, *third;
    assert_ok(calla_session_create(engine, &second, &err), &err);
    assert_error(calla_session_create(engine, &third, &err), CALLA_ERR_MEMORY, &err,
                 "2 sequences exist");
    int32_t a[10], b[12];
    fill(a, 10, 1);
    fill(b, 12, 2);
    sync_to(a, 10, 0);
    session = second;
    sync_to(b, 12, 0);
    assert_cold(b, 12);
    session = first;
    assert_cold(a, 10);
    next();
    session = second;
    assert_cold(b, 12);
    calla_session_free(second);
    session = first;
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, fresh, done)
    const struct CMUnitTest tests[] = {
        TEST(a_prompt_that_grows_is_extended),
        TEST(generation_runs_the_last_token_only_when_asked_for_more),
        TEST(snapshots_stand_on_the_grid_at_the_turn_and_at_the_end),
        TEST(a_resend_costs_nothing_and_equals_a_cold_run),
        TEST(message_starts_are_kept_as_the_budget_allows),
        TEST(a_prompt_in_pieces_equals_one_in_one),
        TEST(decoded_state_is_kept_on_request),
        TEST(a_sync_tells_what_it_shares_and_where_it_parts),
        TEST(snapshots_hold_prefilled_state_only),
        TEST(a_snapshot_as_deep_as_decoded_state_is_preferred),
        TEST(a_long_prompt_takes_few_slots),
        TEST(the_least_recently_used_goes_first),
        TEST(one_slot_keeps_the_end_of_the_prompt),
        TEST(a_coarse_grid_is_respected),
        TEST(a_cancelled_prefill_keeps_its_part),
        TEST(refusals_leave_the_timeline_alone),
        TEST(snapshots_make_way_for_kv_blocks),
        TEST(no_block_and_no_snapshot_left_is_an_error),
        TEST(broken_numbers_and_devices_empty_the_session),
        TEST(a_refused_sampling_can_be_repeated_with_other_parameters),
        TEST(padding_is_not_sampled_and_penalties_start_at_sync),
        TEST(a_batch_is_one_step_and_gives_what_each_would_alone),
        TEST(a_batch_that_fails_leaves_every_session_usable),
        TEST(a_batch_has_as_many_sessions_as_the_backend_runs),
        TEST(append_runs_a_decode_step),
        TEST(score_gives_every_row_in_order),
        TEST(score_survives_a_pool_full_of_snapshots),
        TEST(progress_counts_the_whole_prefill),
        TEST(options_have_defaults_and_ranges),
        TEST(another_backend_takes_over),
        TEST(sessions_are_limited_and_independent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
