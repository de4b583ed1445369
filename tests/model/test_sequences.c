/* Sequences, snapshots and steps of a backend: what shares memory must not show. */
#include "support/oracle.h"
#include "support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { V = ORACLE_V };

static bool steps_ahead(const backend *b)
{
    backend_capabilities capabilities;
    test_ops()->capabilities(b, &capabilities);
    return capabilities.steps_ahead;
}

/* ---- steps of several sequences ---- */

static void step_all(backend *b, backend_sequence *const *s, const int32_t *tokens, int32_t n,
                     step_result *results)
{
    step_request requests[BACKEND_MAX_SEQUENCES];
    calla_error err;
    for (int32_t i = 0; i < n; i++)
        requests[i] = (step_request){.sequence = s[i], .token = tokens[i]};
    assert_ok(oracle_try_step(b, requests, n, results, NULL, &err), &err);
}

/* Sequence i has the prompt ids[11 i .. 11 i + 5 + 9 i). */
static void start(backend *b, backend_sequence *s, int32_t i)
{
    test_ops()->sequence_reset(b, s);
    oracle_prefill(b, s, oracle_ids + 11 * i, 5 + 9 * i, LOGITS_NONE, NULL);
}

static void test_batch(void **state)
{
    (void)state;
    enum { STEPS = 3, MOST = BACKEND_MAX_SEQUENCES };
    for (const char *const *isa = test_isas(); *isa; isa++) {
        backend_options options = oracle_options(*isa);
        options.n_sequences = MOST;
        backend *b = oracle_open_with(&oracle_mlx4, &options);
        backend_sequence *s[MOST];
        static float alone[MOST][STEPS][V];
        for (int32_t i = 0; i < MOST; i++) {
            s[i] = oracle_create(b);
            start(b, s[i], i);
            for (int t = 0; t < STEPS; t++)
                memcpy(alone[i][t], oracle_step(b, s[i], oracle_ids[7 * t + i]),
                       sizeof alone[i][t]);
        }
        for (int32_t n = 2; n <= MOST; n++) {
            for (int32_t i = 0; i < n; i++) start(b, s[i], i);
            for (int t = 0; t < STEPS; t++) {
                int32_t tokens[MOST];
                step_result results[MOST];
                for (int32_t i = 0; i < n; i++) tokens[i] = oracle_ids[7 * t + i];
                step_all(b, s, tokens, n, results);
                for (int32_t i = 0; i < n; i++)
                    assert_same(results[i].logits, alone[i][t], V, "a sequence among others");
            }
        }
        test_ops()->close(b);
    }
}

/* n greedy tokens of both sequences, each after the token before it; `ahead`: submitted before the
 * host has that one. */
static void choose_tokens(backend *b, backend_sequence *const *s, int32_t n, bool ahead,
                          int32_t (*tokens)[2])
{
    static const calla_sampling greedy;
    step_request requests[2];
    step_result results[2];
    calla_error err;
    for (int i = 0; i < 2; i++)
        requests[i] = (step_request){.sequence = s[i], .token = 7 + i, .sampling = &greedy};
    for (int32_t t = 0, submitted = 0; t < n; t++) {
        for (; submitted < n && submitted <= t + ahead; submitted++) {
            assert_ok(test_ops()->step_submit(b, requests, 2, &err), &err);
            for (int i = 0; i < 2; i++) requests[i].token = TOKEN_LAST_SAMPLED;
        }
        assert_ok(test_ops()->step_wait(b, results, 2, NULL, &err), &err);
        for (int i = 0; i < 2; i++) tokens[t][i] = results[i].sampled.token;
    }
}

/* A step whose input the host does not know yet, and what is done to others and taken of its own
 * sequence while it is under way. */
static void test_steps_ahead(void **state)
{
    (void)state;
    enum { STEPS = 12 };
    backend *b = oracle_open(test_plain_isa());
    if (!steps_ahead(b)) {
        test_ops()->close(b);
        skip();
    }
    backend_sequence *s[2] = {oracle_create(b), oracle_create(b)}, *third = oracle_create(b);
    int32_t alone[STEPS][2], ahead[STEPS][2];
    float expected[V], logits[V], rows[2][V];
    oracle_prefill(b, third, oracle_ids + 20, 90, LOGITS_LAST, expected);
    for (int i = 0; i < 2; i++) start(b, s[i], i);
    choose_tokens(b, s, STEPS, false, alone);
    calla_error err;
    for (int i = 0; i < 2; i++) assert_ok(test_ops()->step_logits(b, i, rows[i], &err), &err);
    for (int i = 0; i < 2; i++) start(b, s[i], i);
    choose_tokens(b, s, STEPS, true, ahead);
    assert_memory_equal(ahead, alone, sizeof alone);
    for (int i = 0; i < 2; i++) {
        assert_ok(test_ops()->step_logits(b, i, logits, &err), &err);
        assert_same(logits, rows[i], V, "the last of several steps");
    }
    /* A prompt of another sequence and a snapshot between submit and wait. */
    static const calla_sampling greedy;
    step_request request = {.sequence = s[0], .token = alone[STEPS - 1][0], .sampling = &greedy};
    step_result result;
    backend_snapshot *snapshot;
    test_ops()->sequence_reset(b, third);
    assert_ok(test_ops()->step_submit(b, &request, 1, &err), &err);
    oracle_prefill(b, third, oracle_ids + 20, 90, LOGITS_LAST, logits);
    assert_same(logits, expected, V, "a prompt beside a step");
    assert_ok(test_ops()->snapshot_create(b, s[0], &snapshot, &err), &err);
    assert_ok(test_ops()->step_wait(b, &result, 1, NULL, &err), &err);
    memcpy(expected, oracle_step(b, s[0], 3), sizeof expected);
    test_ops()->snapshot_restore(b, snapshot, s[1]);
    assert_same(oracle_step(b, s[1], 3), expected, V, "from a snapshot taken beside a step");
    test_ops()->snapshot_free(b, snapshot);
    test_ops()->close(b);
}

/* ---- snapshots ---- */

static backend_snapshot *snapshot_of(backend *b, const backend_sequence *s)
{
    backend_snapshot *snapshot;
    calla_error err;
    assert_ok(test_ops()->snapshot_create(b, s, &snapshot, &err), &err);
    return snapshot;
}

/* Prefill to `at`, snapshot, go elsewhere, restore (into another sequence too), continue: as if
 * nothing had happened in between. */
static void check_snapshot(const char *isa, int32_t at)
{
    enum { MORE = 12 };
    static float expected[V], expected_decode[MORE][V], logits[V];
    backend *b = oracle_open(isa);
    backend_sequence *s = oracle_create(b), *other = oracle_create(b);
    oracle_prefill(b, s, oracle_ids, at + MORE, LOGITS_LAST, expected);
    test_ops()->sequence_reset(b, s);
    if (at > 0) oracle_prefill(b, s, oracle_ids, at, LOGITS_NONE, NULL);
    backend_snapshot *snapshot = snapshot_of(b, s);
    for (int32_t i = 0; i < MORE; i++)
        memcpy(expected_decode[i], oracle_step(b, s, oracle_ids[at + i]), sizeof expected);
    oracle_prefill(b, s, oracle_ids + 50, 20, LOGITS_NONE, NULL); /* elsewhere */
    for (int round = 0; round < 2; round++) {
        backend_sequence *into = round ? s : other;
        test_ops()->snapshot_restore(b, snapshot, into);
        assert_int_equal(test_ops()->sequence_length(b, into), at);
        oracle_prefill(b, into, oracle_ids + at, MORE, LOGITS_LAST, logits);
        assert_same(logits, expected, V, "prefill after restore");
        test_ops()->snapshot_restore(b, snapshot, into);
        for (int32_t i = 0; i < MORE; i++)
            assert_same(oracle_step(b, into, oracle_ids[at + i]), expected_decode[i], V,
                        "decode after restore");
    }
    test_ops()->snapshot_free(b, snapshot);
    test_ops()->close(b);
}

static void test_snapshots(void **state)
{
    (void)state;
    static const int32_t places[] = {0, 1, 2, 3, 63, 64, 100};
    for (int i = 0; i < 7; i++)
        check_snapshot(i % 2 || !test_has_reference() ? test_plain_isa() : "f32", places[i]);
}

/* Branches that share a partly filled block and write into it in turn. */
static void test_branches(void **state)
{
    (void)state;
    enum { AT = 230, LONG = 290 };
    static int32_t tokens[3][LONG];
    static float expected[3][V];
    backend *b = oracle_open(test_plain_isa());
    backend_sequence *s[3];
    for (int i = 0; i < 3; i++) {
        for (int t = 0; t < LONG; t++)
            tokens[i][t] = oracle_ids[t < AT ? t % ORACLE_N : (t * (i + 3) + 17 * i) % ORACLE_N];
        s[i] = oracle_create(b);
        oracle_prefill(b, s[i], tokens[i], LONG, LOGITS_LAST, expected[i]);
        test_ops()->sequence_reset(b, s[i]);
    }
    oracle_prefill(b, s[0], tokens[0], AT, LOGITS_NONE, NULL);
    backend_snapshot *snapshot = snapshot_of(b, s[0]);
    for (int i = 1; i < 3; i++) test_ops()->snapshot_restore(b, snapshot, s[i]);
    float logits[V];
    for (int32_t t = AT; t < LONG; t += 30) /* interleaved */
        for (int i = 0; i < 3; i++) {
            oracle_prefill(b, s[i], tokens[i] + t, 30, LOGITS_LAST, logits);
            if (t + 30 == LONG) assert_same(logits, expected[i], V, "a branch");
        }
    test_ops()->snapshot_restore(b, snapshot, s[1]);
    oracle_prefill(b, s[1], tokens[2] + AT, LONG - AT, LOGITS_LAST, logits);
    assert_same(logits, expected[2], V, "a branch from the snapshot, after the others wrote");
    test_ops()->snapshot_free(b, snapshot);
    for (int i = 0; i < 20; i++) { /* more copies of shared blocks than there are blocks */
        test_ops()->sequence_reset(b, s[1]);
        oracle_prefill(b, s[1], oracle_ids, 2, LOGITS_NONE, NULL);
        snapshot = snapshot_of(b, s[1]);
        oracle_step(b, s[1], oracle_ids[i]);
        test_ops()->snapshot_free(b, snapshot);
    }
    test_ops()->close(b);
}

/* ---- running out ---- */

static void test_exhaustion(void **state)
{
    (void)state;
    enum { TOKENS = 100, LONG = 257 };
    backend_options options = oracle_options(test_plain_isa());
    options.n_ctx = 512;
    options.n_sequences = 2;
    options.n_snapshots = 3;
    backend *b = oracle_open_with(&oracle_mlx4, &options); /* 2 * 2 + 3 blocks */
    backend_sequence *s = oracle_create(b), *other = oracle_create(b), *third;
    backend_snapshot *snapshots[4];
    calla_error err;
    assert_error(test_ops()->sequence_create(b, &third, &err), CALLA_ERR_MEMORY, &err,
                 "2 sequences");
    float expected[V], logits[V];
    oracle_prefill(b, s, oracle_ids, TOKENS, LOGITS_LAST, expected);
    static int32_t tokens[LONG];
    for (int i = 0; i < 3; i++) { /* each keeps two blocks that no sequence has */
        test_ops()->sequence_reset(b, s);
        oracle_prefill(b, s, tokens, LONG, LOGITS_NONE, NULL);
        snapshots[i] = snapshot_of(b, s);
    }
    test_ops()->sequence_reset(b, s);
    assert_error(test_ops()->snapshot_create(b, s, &snapshots[3], &err), CALLA_ERR_MEMORY, &err,
                 "3 snapshots");
    /* One block is left. A step that needs two takes none. */
    step_request requests[] = {{.sequence = s, .token = 1}, {.sequence = other, .token = 1}};
    step_result results[2];
    assert_error(oracle_try_step(b, requests, 2, results, NULL, &err), CALLA_ERR_MEMORY, &err,
                 "0 of 7 blocks");
    assert_int_equal(test_ops()->sequence_length(b, s), 0);
    assert_int_equal(test_ops()->sequence_length(b, other), 0);
    oracle_step(b, s, 1);
    assert_error(oracle_try_prefill(b, other, oracle_ids, TOKENS, LOGITS_LAST, logits, NULL, &err),
                 CALLA_ERR_MEMORY, &err, "0 of 7 blocks");
    assert_int_equal(test_ops()->sequence_length(b, other), 0);
    test_ops()->snapshot_free(b, snapshots[0]);
    oracle_prefill(b, other, oracle_ids, TOKENS, LOGITS_LAST, logits);
    assert_same(logits, expected, V, "after room was made");
    test_ops()->close(b);
}

/* ---- cancelling ---- */

typedef struct canceller {
    atomic_bool flag;
    int32_t layer, calls_left; /* set the flag at this layer, after so many chunks */
    int64_t done, total;       /* progress seen */
} canceller;

static void cancel_tap(void *user, int32_t layer, int64_t first, int32_t n_rows, const float *rows)
{
    canceller *c = user;
    (void)first, (void)n_rows, (void)rows;
    if (layer == c->layer && c->calls_left-- == 0) atomic_store(&c->flag, true);
}

static void see_progress(void *user, int64_t done, int64_t total)
{
    canceller *c = user;
    c->done = done;
    c->total = total;
}

/* Cancelled in any layer of any chunk, the sequence stands at the chunk's start, as it was. */
static void test_cancel(void **state)
{
    (void)state;
    enum { CHUNK = 16, TOKENS = 40 };
    backend_options options = oracle_options(test_plain_isa());
    options.prefill_chunk = CHUNK;
    options.n_ctx = 256; /* one block in all: an abandoned chunk must give it back */
    options.n_sequences = 1;
    options.n_snapshots = 0;
    backend *b = oracle_open_with(&oracle_mlx4, &options);
    backend_sequence *s = oracle_create(b);
    float expected[V], logits[V];
    oracle_prefill(b, s, oracle_ids, TOKENS, LOGITS_LAST, expected);
    for (int32_t chunk = 0; chunk < 3; chunk++)
        for (int32_t layer = 0; layer < ORACLE_L; layer++) {
            canceller c = {.layer = layer, .calls_left = chunk};
            calla_control control = {.cancel = &c.flag, .progress = see_progress, .user = &c};
            calla_error err;
            test_ops()->sequence_reset(b, s);
            test_ops()->set_tap(b, cancel_tap, &c);
            calla_status status =
                oracle_try_prefill(b, s, oracle_ids, TOKENS, LOGITS_LAST, logits, &control, &err);
            test_ops()->set_tap(b, NULL, NULL);
            int64_t length = test_ops()->sequence_length(b, s);
            if (chunk == 2 && layer == ORACLE_L - 1) { /* after the last poll: done */
                assert_ok(status, &err);
                assert_int_equal(length, TOKENS);
                continue;
            }
            /* The last layer's tap comes after its poll: that chunk ends. */
            assert_int_equal(length, CHUNK * (chunk + (layer == ORACLE_L - 1)));
            assert_error(status, CALLA_ERR_CANCELLED, &err, "cancelled");
            assert_int_equal(c.done, length);
            if (length > 0) assert_int_equal(c.total, TOKENS);
            oracle_prefill(b, s, oracle_ids + length, TOKENS - (int32_t)length, LOGITS_LAST,
                           logits);
            assert_same(logits, expected, V, "after a cancelled chunk");
        }
    test_ops()->close(b);
}

/* Cancelled, a step has not begun; or it ends, where the device has it already. */
static void test_cancel_step(void **state)
{
    (void)state;
    backend *b = oracle_open(test_plain_isa());
    backend_sequence *s = oracle_create(b);
    float expected[V];
    oracle_prefill(b, s, oracle_ids, 70, LOGITS_NONE, NULL);
    memcpy(expected, oracle_step(b, s, oracle_ids[70]), sizeof expected);
    test_ops()->sequence_reset(b, s);
    oracle_prefill(b, s, oracle_ids, 70, LOGITS_NONE, NULL);
    atomic_bool flag = true;
    calla_control control = {.cancel = &flag};
    step_request request = {.sequence = s, .token = oracle_ids[70]};
    step_result result;
    calla_error err;
    calla_status status = oracle_try_step(b, &request, 1, &result, &control, &err);
    if (steps_ahead(b)) {
        assert_ok(status, &err);
        assert_int_equal(test_ops()->sequence_length(b, s), 71);
        assert_same(result.logits, expected, V, "a step that was not to be stopped");
    } else {
        assert_error(status, CALLA_ERR_CANCELLED, &err, "cancelled");
        assert_int_equal(test_ops()->sequence_length(b, s), 70);
        assert_same(oracle_step(b, s, oracle_ids[70]), expected, V, "after a cancelled step");
    }
    test_ops()->close(b);
}

/* ---- extremes ---- */

/* exp(A_log) beyond f32 beside a softplus that is 0: no decay, not a NaN (MODEL.md 7, 11). */
static void test_extreme_decay(void **state)
{
    (void)state;
    static const float a_log[] = {100, 100, 100, 100}, dt_bias[] = {-1e3f, -1e3f, -1e3f, -1e3f};
    model_weights extreme = oracle_mlx4;
    layer_weights layers[ORACLE_L];
    memcpy(layers, oracle_mlx4.layers, sizeof layers);
    layers[1].gdn.a_log = (vector_view){.data = a_log, .n = 4, .is_f32 = true};
    layers[1].gdn.dt_bias = (vector_view){.data = dt_bias, .n = 4, .is_f32 = true};
    extreme.layers = layers;
    backend_options options = oracle_options(test_has_reference() ? "f32" : NULL);
    backend *b = oracle_open_with(&extreme, &options);
    backend_sequence *s = oracle_create(b);
    oracle_prefill(b, s, oracle_ids, 10, LOGITS_NONE, NULL);
    oracle_step(b, s, 1);
    test_ops()->close(b);
}

/* ---- opening ---- */

static void test_isa_choice(void **state)
{
    (void)state;
    if (!test_has_reference()) skip(); /* the names are the CPU's */
    backend *b;
    calla_error err;
    backend_options options = oracle_options("sse9");
    assert_error(test_ops()->open(&oracle_mlx4, &options, &b, &err), CALLA_ERR_INPUT, &err,
                 "\"sse9\" is not one of auto, f32, c");
    options.isa = "c";
    assert_error(test_ops()->open(&oracle_bf16, &options, &b, &err), CALLA_ERR_UNSUPPORTED, &err,
                 "bf16");
    options.isa = NULL;
    b = oracle_open_with(&oracle_bf16, &options);
    assert_string_equal(test_ops()->isa(b), "f32");
    test_ops()->close(b);
    b = oracle_open_with(&oracle_mlx4, &options);
    assert_string_not_equal(test_ops()->isa(b), "f32");
    backend_capabilities capabilities;
    test_ops()->capabilities(b, &capabilities);
    assert_false(capabilities.samples_on_device);
    assert_int_equal(capabilities.max_step_sequences, 4);
    assert_int_equal(capabilities.snapshot_grid, 1);
    test_ops()->close(b);
}

static void test_plan(void **state)
{
    (void)state;
    if (!test_has_reference()) skip(); /* the sizes are the CPU's */
    calla_memory_plan plan, f32;
    calla_error err;
    backend_options options = oracle_options(test_plain_isa());
    assert_ok(test_ops()->plan(&oracle_mlx4, &options, &plan, &err), &err);
    /* 1 attention layer, K and V, 2 heads, 256 x 256 halves; 4 sequences of 4 blocks + 2 */
    assert_int_equal(plan.kv_bytes, 1 * 2 * 2 * 256 * 256 * 2 * (4 * 4 + 2));
    assert_int_equal(plan.weights_bytes, oracle_mlx4.text_bytes);
    assert_int_equal(plan.total_bytes, plan.weights_bytes + plan.prepared_bytes + plan.kv_bytes +
                                           plan.state_bytes + plan.snapshot_bytes +
                                           plan.scratch_bytes);
    /* 3 GDN layers: 4 heads of 128 x 128 and 4 rows of 1024 channels, f32; and of 7 tokens d of 512
     * columns, k of 256, 4 decays, filled up to lines of 16 */
    int64_t state_bytes = 3 * (4 * 128 * 128 + 4 * 1024 + (7 * 772 + 4)) * 4;
    assert_true(plan.state_bytes >= 5 * state_bytes && plan.state_bytes < 5 * state_bytes + 4096);
    assert_true(plan.snapshot_bytes >= 2 * state_bytes &&
                plan.snapshot_bytes < 2 * state_bytes + 4096);
    backend *b = oracle_open_with(&oracle_mlx4, &options);
    assert_int_equal(test_ops()->snapshot_bytes(b), state_bytes);
    test_ops()->close(b);
    options.kv_f32 = true;
    assert_ok(test_ops()->plan(&oracle_mlx4, &options, &f32, &err), &err);
    assert_int_equal(f32.kv_bytes, 2 * plan.kv_bytes);
    options.n_ctx = INT32_MAX;
    options.n_sequences = INT32_MAX;
    assert_error(test_ops()->plan(&oracle_mlx4, &options, &f32, &err), CALLA_ERR_MEMORY, &err,
                 "overflows");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batch),       cmocka_unit_test(test_snapshots),
        cmocka_unit_test(test_branches),    cmocka_unit_test(test_exhaustion),
        cmocka_unit_test(test_cancel),      cmocka_unit_test(test_cancel_step),
        cmocka_unit_test(test_steps_ahead), cmocka_unit_test(test_extreme_decay),
        cmocka_unit_test(test_isa_choice),  cmocka_unit_test(test_plan),
    };
    return cmocka_run_group_tests(tests, oracle_setup, oracle_teardown);
}
