/* The CPU backend against oracle-a: logits and hidden states of an independent implementation, and
 * the promises of DESIGN "Same bits" and "Numbers". */
#include "base/memory.h"
#include "engine/backend.h"
#include "support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 150, V = 320, D = 128, L = 4 };

static int32_t ids[N];
static mapped_file gold_file;
static tensor *gold;
static int32_t n_gold;
static model_weights weights_mlx4, weights_bf16;

static const float *gold_tensor(const char *name)
{
    for (int32_t i = 0; i < n_gold; i++)
        if (strcmp(gold[i].name, name) == 0) return (const float *)(const void *)gold[i].data;
    fail_msg("no tensor %s in the golden file", name);
    return NULL;
}

static int setup(void **state)
{
    (void)state;
    calla_error err;
    char *text;
    size_t n, capacity = 0;
    assert_ok(file_read(source_path("tests/data/oracle-a/ids.txt"), 1 << 16, &text, &n, &err),
              &err);
    char *p = text;
    for (int i = 0; i < N; i++) ids[i] = (int32_t)strtol(p, &p, 10);
    free(text);
    const char *path = source_path("tests/data/oracle-a/gold.safetensors");
    assert_ok(mapped_file_open(path, &gold_file, &err), &err);
    assert_ok(safetensors_parse(gold_file.data, gold_file.n_bytes, path, 0, &gold, &n_gold,
                                &capacity, &err),
              &err);
    assert_ok(model_weights_open(source_path("tests/data/oracle-a/mlx4"), &weights_mlx4, &err),
              &err);
    assert_ok(model_weights_open(source_path("tests/data/oracle-a/bf16"), &weights_bf16, &err),
              &err);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    model_weights_close(&weights_mlx4);
    model_weights_close(&weights_bf16);
    for (int32_t i = 0; i < n_gold; i++) free((void *)(uintptr_t)gold[i].name);
    free(gold);
    mapped_file_close(&gold_file);
    return 0;
}

/* ---- helpers ---- */

static const backend_ops *ops(void)
{
    return backends[0];
}

static backend_options options_of(const char *isa)
{
    return (backend_options){.isa = isa,
                             .n_threads = 2,
                             .n_ctx = 1024,
                             .n_sequences = 4,
                             .prefill_chunk = 64,
                             .n_snapshots = 2};
}

static backend *open_backend(const model_weights *weights, const backend_options *options)
{
    backend *b;
    calla_error err;
    assert_ok(ops()->open(weights, options, &b, &err), &err);
    return b;
}

static backend *open_isa(const char *isa)
{
    backend_options options = options_of(isa);
    return open_backend(&weights_mlx4, &options);
}

static backend_sequence *create(backend *b)
{
    backend_sequence *s;
    calla_error err;
    assert_ok(ops()->sequence_create(b, &s, &err), &err);
    return s;
}

static void prefill(backend *b, backend_sequence *s, const int32_t *tokens, int32_t n,
                    logits_mode mode, float *logits)
{
    calla_error err;
    assert_ok(ops()->prefill(b, s, tokens, n, mode, logits, NULL, &err), &err);
}

static const float *step(backend *b, backend_sequence *s, int32_t token)
{
    step_request request = {.sequence = s, .token = token};
    step_result result;
    calla_error err;
    assert_ok(ops()->step_submit(b, &request, 1, &err), &err);
    assert_ok(ops()->step_wait(b, &result, 1, NULL, &err), &err);
    return result.logits;
}

static float *floats(size_t n)
{
    float *p = calloc(n, sizeof *p);
    assert_non_null(p);
    return p;
}

static double relative_error(const float *x, const float *expected, size_t n)
{
    double error = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)x[i] - (double)expected[i];
        error += d * d;
        norm += (double)expected[i] * (double)expected[i];
    }
    return sqrt(error / norm);
}

static void assert_close(const float *x, const float *expected, size_t n, double bound,
                         const char *what)
{
    double error = relative_error(x, expected, n);
    if (getenv("CALLA_TEST_VERBOSE")) printf("%s: %.3g\n", what, error);
    if (!(error <= bound)) fail_msg("%s: relative error %g, allowed %g", what, error, bound);
}

static void assert_same(const float *a, const float *b, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof a[i]) != 0)
            fail_msg("%s: element %zu differs: %.9g and %.9g", what, i, (double)a[i], (double)b[i]);
}

static float *hidden; /* [L + 1][N][D] */

static void collect(void *user, int32_t layer, int64_t first_position, int32_t n_rows,
                    const float *rows)
{
    (void)user;
    memcpy(hidden + ((size_t)layer * N + (size_t)first_position) * D, rows,
           (size_t)n_rows * D * sizeof(float));
}

/* Logits of all positions of ids by prefill: malloc'ed [N][V]. */
static float *all_logits(backend *b, backend_sequence *s)
{
    float *logits = floats((size_t)N * V);
    prefill(b, s, ids, N, LOGITS_ALL, logits);
    return logits;
}

/* The same by prefill of `first` tokens and decode steps after them. */
static float *decode_logits(backend *b, backend_sequence *s, int32_t first)
{
    float *logits = floats((size_t)N * V);
    if (first > 0) prefill(b, s, ids, first, LOGITS_ALL, logits);
    for (int32_t i = first; i < N; i++)
        memcpy(logits + (size_t)i * V, step(b, s, ids[i]), V * sizeof(float));
    return logits;
}

/* ---- against the oracle ---- */

static void check_reference(const model_weights *weights, const char *layout)
{
    char name[64], what[96];
    backend_options options = options_of("f32");
    backend *b = open_backend(weights, &options);
    backend_sequence *s = create(b);
    hidden = floats((size_t)(L + 1) * N * D);
    ops()->set_tap(b, collect, NULL);
    float *logits = all_logits(b, s);
    snprintf(name, sizeof name, "logits_%s", layout);
    assert_close(logits, gold_tensor(name), (size_t)N * V, 1e-5, name);
    snprintf(name, sizeof name, "hidden_%s", layout);
    for (size_t i = 0; i <= L; i++) {
        snprintf(what, sizeof what, "%s layer %zu", name, i);
        assert_close(hidden + i * N * D, gold_tensor(name) + i * N * D, (size_t)N * D, 1e-5, what);
    }
    ops()->sequence_reset(b, s);
    memset(hidden, 0, (size_t)(L + 1) * N * D * sizeof *hidden);
    float *decoded = decode_logits(b, s, 0);
    assert_close(decoded, logits, (size_t)N * V, 1e-4, "decode against prefill");
    assert_close(hidden + (size_t)L * N * D, gold_tensor(name) + (size_t)L * N * D, (size_t)N * D,
                 1e-4, "hidden state of decode");
    free(decoded);
    free(logits);
    free(hidden);
    ops()->sequence_free(b, s);
    ops()->close(b);
}

static void test_reference_mlx4(void **state)
{
    (void)state;
    check_reference(&weights_mlx4, "mlx4");
}

static void test_reference_bf16(void **state)
{
    (void)state;
    check_reference(&weights_bf16, "bf16");
}

/* The fast profiles within DESIGN's bounds, by prefill and by decode. */
static void test_fast(void **state)
{
    (void)state;
    for (const char *const *isa = ops()->isa_names(); *isa; isa++) {
        if (strcmp(*isa, "f32") == 0) continue;
        backend *b = open_isa(*isa);
        backend_sequence *s = create(b);
        bool bf16 = strcmp(*isa, "c-bf16") == 0 || strcmp(*isa, "amx") == 0;
        double bound = bf16 ? 6e-2 : 1e-2;
        float *logits = all_logits(b, s);
        assert_close(logits, gold_tensor("logits_mlx4"), (size_t)N * V, bound, *isa);
        ops()->sequence_reset(b, s);
        float *decoded = decode_logits(b, s, 0);
        assert_close(decoded, gold_tensor("logits_mlx4"), (size_t)N * V, 1e-2, "decode");
        free(decoded);
        free(logits);
        ops()->sequence_free(b, s);
        ops()->close(b);
    }
}

/* ---- same bits ---- */

static void test_chunks_and_threads(void **state)
{
    (void)state;
    static const int32_t chunks[] = {150, 1, 7, 64};
    for (const char *const *isa = ops()->isa_names(); *isa; isa++) {
        float *expected = NULL, *expected_decode = NULL;
        for (size_t i = 0; i < 4; i++) {
            for (int32_t threads = 1; threads <= 3; threads++) {
                if (i > 0 && threads == 3) continue; /* time */
                backend_options options = options_of(*isa);
                options.prefill_chunk = chunks[i];
                options.n_threads = threads;
                backend *b = open_backend(&weights_mlx4, &options);
                backend_sequence *s = create(b);
                float *logits = all_logits(b, s);
                ops()->sequence_reset(b, s);
                float *decoded = decode_logits(b, s, 140);
                if (!expected) {
                    expected = logits;
                    expected_decode = decoded;
                } else {
                    char what[64];
                    snprintf(what, sizeof what, "%s, chunk %d, %d threads", *isa, chunks[i],
                             threads);
                    assert_same(logits, expected, (size_t)N * V, what);
                    assert_same(decoded, expected_decode, (size_t)N * V, what);
                    free(logits);
                    free(decoded);
                }
                ops()->sequence_free(b, s);
                ops()->close(b);
            }
        }
        free(expected);
        free(expected_decode);
    }
}

/* However the prompt is handed over, and whichever logits are asked for. */
static void test_calls(void **state)
{
    (void)state;
    backend *b = open_isa("c");
    backend_sequence *s = create(b);
    float *expected = all_logits(b, s), logits[V];
    ops()->sequence_reset(b, s);
    prefill(b, s, ids, 5, LOGITS_NONE, NULL);
    prefill(b, s, ids + 5, 64, LOGITS_LAST, logits);
    assert_same(logits, expected + 68 * V, V, "logits of the last token");
    prefill(b, s, ids + 69, 81, LOGITS_LAST, logits);
    assert_same(logits, expected + 149 * V, V, "logits of the last token");
    assert_int_equal(ops()->sequence_length(b, s), N);
    free(expected);
    ops()->sequence_free(b, s);
    ops()->close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference_mlx4), cmocka_unit_test(test_reference_bf16),
        cmocka_unit_test(test_fast),           cmocka_unit_test(test_chunks_and_threads),
        cmocka_unit_test(test_calls),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
