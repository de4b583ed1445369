#include "support/oracle.h"

#include "base/file.h"
#include "support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int32_t oracle_ids[ORACLE_N];
model_weights oracle_mlx4, oracle_bf16;
static mapped_file gold_file;
static tensor *gold;
static int32_t n_gold;

const float *oracle_gold(const char *name)
{
    for (int32_t i = 0; i < n_gold; i++)
        if (strcmp(gold[i].name, name) == 0) return (const float *)(const void *)gold[i].data;
    fail_msg("no tensor %s in the golden file", name);
    return NULL;
}

int oracle_setup(void **state)
{
    (void)state;
    test_ops(); /* or skip */
    calla_error err;
    char *text;
    size_t n, capacity = 0;
    assert_ok(file_read(source_path("tests/data/oracle-a/ids.txt"), 1 << 16, &text, &n, &err),
              &err);
    char *p = text;
    for (int i = 0; i < ORACLE_N; i++) oracle_ids[i] = (int32_t)strtol(p, &p, 10);
    free(text);
    const char *path = source_path("tests/data/oracle-a/gold.safetensors");
    assert_ok(mapped_file_open(path, &gold_file, &err), &err);
    assert_ok(safetensors_parse(gold_file.data, gold_file.n_bytes, path, 0, &gold, &n_gold,
                                &capacity, &err),
              &err);
    assert_ok(model_weights_open(source_path("tests/data/oracle-a/mlx4"), &oracle_mlx4, &err),
              &err);
    assert_ok(model_weights_open(source_path("tests/data/oracle-a/bf16"), &oracle_bf16, &err),
              &err);
    return 0;
}

int oracle_teardown(void **state)
{
    (void)state;
    model_weights_close(&oracle_mlx4);
    model_weights_close(&oracle_bf16);
    for (int32_t i = 0; i < n_gold; i++) free((void *)(uintptr_t)gold[i].name);
    free(gold);
    mapped_file_close(&gold_file);
    return 0;
}

backend_options oracle_options(const char *isa)
{
    return (backend_options){.isa = isa,
                             .n_threads = 2,
                             .n_ctx = 1024,
                             .n_sequences = 4,
                             .prefill_chunk = 64,
                             .n_snapshots = 2};
}

backend *oracle_open_with(const model_weights *weights, const backend_options *options)
{
    backend *b;
    calla_error err;
    assert_ok(test_ops()->open(weights, options, &b, &err), &err);
    return b;
}

backend *oracle_open(const char *isa)
{
    backend_options options = oracle_options(isa);
    return oracle_open_with(&oracle_mlx4, &options);
}

backend_sequence *oracle_create(backend *b)
{
    backend_sequence *s;
    calla_error err;
    assert_ok(test_ops()->sequence_create(b, &s, &err), &err);
    return s;
}

calla_status oracle_try_prefill(backend *b, backend_sequence *s, const int32_t *tokens, int32_t n,
                                logits_mode mode, float *logits, const calla_control *control,
                                calla_error *err)
{
    return prefill_tokens(test_ops(), b, s, tokens, n, mode, logits, ORACLE_V, control, err);
}

void oracle_prefill(backend *b, backend_sequence *s, const int32_t *tokens, int32_t n,
                    logits_mode mode, float *logits)
{
    calla_error err;
    assert_ok(oracle_try_prefill(b, s, tokens, n, mode, logits, NULL, &err), &err);
}

calla_status oracle_try_step(backend *b, const step_request *requests, int32_t n,
                             step_result *results, const calla_control *control, calla_error *err)
{
    calla_status status = test_ops()->step_submit(b, requests, n, err);
    if (status == CALLA_OK) status = test_ops()->step_wait(b, results, n, control, err);
    for (int32_t i = 0; status == CALLA_OK && i < n; i++)
        if (results[i].error.code != CALLA_OK)
            status = results[i].error.code, *err = results[i].error;
    return status;
}

const float *oracle_step(backend *b, backend_sequence *s, int32_t token)
{
    step_request request = {.sequence = s, .token = token};
    step_result result;
    calla_error err;
    assert_ok(oracle_try_step(b, &request, 1, &result, NULL, &err), &err);
    return result.logits;
}

float *oracle_floats(size_t n)
{
    float *p = calloc(n, sizeof *p);
    assert_non_null(p);
    return p;
}

float *oracle_prefill_all(backend *b, backend_sequence *s)
{
    float *logits = oracle_floats((size_t)ORACLE_N * ORACLE_V);
    oracle_prefill(b, s, oracle_ids, ORACLE_N, LOGITS_ALL, logits);
    return logits;
}

float *oracle_decode_from(backend *b, backend_sequence *s, int32_t first)
{
    float *logits = oracle_floats((size_t)ORACLE_N * ORACLE_V);
    if (first > 0) oracle_prefill(b, s, oracle_ids, first, LOGITS_ALL, logits);
    for (int32_t i = first; i < ORACLE_N; i++)
        memcpy(logits + (size_t)i * ORACLE_V, oracle_step(b, s, oracle_ids[i]),
               ORACLE_V * sizeof(float));
    return logits;
}

void assert_close(const float *x, const float *expected, size_t n, double bound, const char *what)
{
    double error = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)x[i] - (double)expected[i];
        error += d * d;
        norm += (double)expected[i] * (double)expected[i];
    }
    error = sqrt(error / norm);
    printf("%s: relative error %.3g, %.3g allowed\n", what, error, bound);
    if (!(error <= bound)) fail_msg("%s: relative error %g, allowed %g", what, error, bound);
}

void assert_same(const float *a, const float *b, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof a[i]) != 0)
            fail_msg("%s: element %zu differs: %.9g and %.9g", what, i, (double)a[i], (double)b[i]);
}
