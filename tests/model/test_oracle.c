/* A backend's numbers on oracle-a: logits and hidden states of an independent implementation,
 * and the promises of docs/architecture.md, "Same bits" and "Numbers". */
#include "support/kernels.h"
#include "support/oracle.h"
#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = ORACLE_N, V = ORACLE_V, D = ORACLE_D, L = ORACLE_L };

static float *hidden; /* [L + 1][N][D] */

static void collect(void *user, int32_t layer, int64_t first_position, int32_t n_rows,
                    const float *rows)
{
    (void)user;
    memcpy(hidden + ((size_t)layer * N + (size_t)first_position) * D, rows,
           (size_t)n_rows * D * sizeof(float));
}

static void check_hidden(const char *name, double bound)
{
    char what[96];
    for (size_t i = 0; i <= L; i++) {
        snprintf(what, sizeof what, "%s layer %zu", name, i);
        assert_close(hidden + i * N * D, oracle_gold(name) + i * N * D, (size_t)N * D, bound, what);
    }
}

static void check_reference(const model_weights *weights, const char *layout)
{
    char name[64];
    backend_options options = oracle_options("f32");
    backend *b = oracle_open_with(weights, &options);
    backend_sequence *s = oracle_create(b);
    hidden = oracle_floats((size_t)(L + 1) * N * D);
    test_ops()->set_tap(b, collect, NULL);
    float *logits = oracle_prefill_all(b, s);
    snprintf(name, sizeof name, "logits_%s", layout);
    assert_close(logits, oracle_gold(name), (size_t)N * V, 1e-5, name);
    snprintf(name, sizeof name, "hidden_%s", layout);
    check_hidden(name, 1e-5);
    test_ops()->sequence_reset(b, s);
    memset(hidden, 0, (size_t)(L + 1) * N * D * sizeof *hidden);
    float *decoded = oracle_decode_from(b, s, 0);
    assert_close(decoded, logits, (size_t)N * V, 1e-4, "decode against prefill");
    check_hidden(name, 1e-4);
    free(decoded);
    free(logits);
    free(hidden);
    test_ops()->sequence_free(b, s);
    test_ops()->close(b);
}

static void test_reference_mlx4(void **state)
{
    (void)state;
    if (!test_has_reference()) skip();
    check_reference(&oracle_mlx4, "mlx4");
}

static void test_reference_bf16(void **state)
{
    (void)state;
    if (!test_has_reference()) skip();
    check_reference(&oracle_bf16, "bf16");
}

/* Whether this machine runs the isa. */
static bool runs(const char *isa)
{
    backend_options options = oracle_options(isa);
    calla_memory_plan plan;
    return test_ops()->plan(&oracle_mlx4, &options, &plan, NULL) == CALLA_OK;
}

/* The fast profiles within docs/architecture.md's bounds, by prefill and by decode. */
static void test_fast(void **state)
{
    (void)state;
    for (const char *const *isa = test_isas(); *isa; isa++) {
        if (!runs(*isa) || strcmp(*isa, "f32") == 0) continue;
        backend *b = oracle_open(*isa);
        backend_sequence *s = oracle_create(b);
        bool bf16 = test_has_reference() && isa_rounds_to_bf16(*isa);
        float *logits = oracle_prefill_all(b, s);
        assert_close(logits, oracle_gold("logits_mlx4"), (size_t)N * V, bf16 ? 6e-2 : 1e-2, *isa);
        test_ops()->sequence_reset(b, s);
        float *decoded = oracle_decode_from(b, s, 0);
        assert_close(decoded, oracle_gold("logits_mlx4"), (size_t)N * V, 1e-2, "decode");
        free(decoded);
        free(logits);
        test_ops()->sequence_free(b, s);
        test_ops()->close(b);
    }
}

/* The KV element is a choice of its own: with f32, a fast profile loses only what decode rounds. */
static void test_kv_types(void **state)
{
    (void)state;
    if (!test_has_reference()) skip();
    backend_options options = oracle_options("c");
    options.kv_f32 = true;
    backend *b = oracle_open_with(&oracle_mlx4, &options);
    backend_sequence *s = oracle_create(b);
    float *logits = oracle_prefill_all(b, s);
    assert_close(logits, oracle_gold("logits_mlx4"), (size_t)N * V, 1e-5, "c with f32 KV");
    free(logits);
    test_ops()->close(b);
    options = oracle_options("f32");
    options.kv_fp16 = true;
    b = oracle_open_with(&oracle_mlx4, &options);
    s = oracle_create(b);
    logits = oracle_prefill_all(b, s);
    assert_close(logits, oracle_gold("logits_mlx4"), (size_t)N * V, 1e-3, "f32 with fp16 KV");
    free(logits);
    test_ops()->close(b);
}

/* ---- same bits ---- */

typedef struct cut {
    int32_t chunk, threads;
} cut;

enum { CUT_TOKENS = 100, CUT_DECODED = 5 };

/* Logits of CUT_TOKENS by prefill, then of the last ones again by decode: to be freed. */
static float *cut_logits(const char *isa, const cut *c)
{
    backend_options options = oracle_options(isa);
    options.prefill_chunk = c->chunk;
    options.n_threads = c->threads;
    backend *b = oracle_open_with(&oracle_mlx4, &options);
    backend_sequence *s = oracle_create(b);
    int32_t first = CUT_TOKENS - CUT_DECODED;
    float *logits = oracle_floats((size_t)(CUT_TOKENS + CUT_DECODED) * V);
    oracle_prefill(b, s, oracle_ids, CUT_TOKENS, LOGITS_ALL, logits);
    test_ops()->sequence_reset(b, s);
    oracle_prefill(b, s, oracle_ids, first, LOGITS_NONE, NULL);
    for (int32_t i = 0; i < CUT_DECODED; i++)
        memcpy(logits + (CUT_TOKENS + i) * V, oracle_step(b, s, oracle_ids[first + i]),
               V * sizeof(float));
    test_ops()->sequence_free(b, s);
    test_ops()->close(b);
    return logits;
}

static void test_chunks_and_threads(void **state)
{
    (void)state;
    static const cut cuts[] = {{150, 1}, {150, 3}, {1, 2}, {7, 1}, {64, 2}};
    for (const char *const *isa = test_isas(); *isa; isa++) {
        if (!runs(*isa)) continue;
        float *expected = cut_logits(*isa, &cuts[0]);
        for (size_t i = 1; i < sizeof cuts / sizeof cuts[0]; i++) {
            float *logits = cut_logits(*isa, &cuts[i]);
            char what[64];
            snprintf(what, sizeof what, "%s, chunk %d, %d threads", *isa, cuts[i].chunk,
                     cuts[i].threads);
            assert_same(logits, expected, (size_t)(CUT_TOKENS + CUT_DECODED) * V, what);
            free(logits);
        }
        free(expected);
    }
}

/* However the prompt is handed over, and whichever logits are asked for. */
static void test_calls(void **state)
{
    (void)state;
    backend *b = oracle_open(test_plain_isa());
    backend_sequence *s = oracle_create(b);
    float *expected = oracle_prefill_all(b, s), logits[V];
    test_ops()->sequence_reset(b, s);
    oracle_prefill(b, s, oracle_ids, 5, LOGITS_NONE, NULL);
    oracle_prefill(b, s, oracle_ids + 5, 64, LOGITS_LAST, logits);
    assert_same(logits, expected + 68 * V, V, "logits of the last token");
    oracle_prefill(b, s, oracle_ids + 69, 81, LOGITS_LAST, logits);
    assert_same(logits, expected + 149 * V, V, "logits of the last token");
    assert_int_equal(test_ops()->sequence_length(b, s), N);
    free(expected);
    test_ops()->sequence_free(b, s);
    test_ops()->close(b);
}

/* A context of several KV blocks, where decode adds up blocks that prefill wrote: the text of the
 * oracle over and over. */
static void test_several_blocks(void **state)
{
    (void)state;
    enum { LONG = 530 };
    static int32_t tokens[LONG];
    for (int i = 0; i < LONG; i++) tokens[i] = oracle_ids[i % N];
    float *expected = oracle_floats(V), *logits = oracle_floats(V);
    for (int threads = 1; threads <= 3; threads += 2) {
        backend_options options = oracle_options(test_has_reference() ? "f32" : NULL);
        options.n_threads = threads;
        options.prefill_chunk = threads == 1 ? 512 : 100;
        backend *b = oracle_open_with(&oracle_mlx4, &options);
        backend_sequence *s = oracle_create(b);
        oracle_prefill(b, s, tokens, LONG - 1, LOGITS_NONE, NULL);
        const float *decoded = oracle_step(b, s, tokens[LONG - 1]);
        if (threads == 1) memcpy(expected, decoded, V * sizeof(float));
        assert_same(decoded, expected, V, "decode after several blocks");
        test_ops()->sequence_reset(b, s);
        oracle_prefill(b, s, tokens, LONG, LOGITS_LAST, logits);
        assert_close(expected, logits, V, test_has_reference() ? 1e-4 : 2e-2,
                     "decode against prefill over three blocks");
        test_ops()->close(b);
    }
    free(expected);
    free(logits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference_mlx4),
        cmocka_unit_test(test_reference_bf16),
        cmocka_unit_test(test_fast),
        cmocka_unit_test(test_kv_types),
        cmocka_unit_test(test_chunks_and_threads),
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_several_blocks),
    };
    return cmocka_run_group_tests(tests, oracle_setup, oracle_teardown);
}
