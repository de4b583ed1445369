/* oracle-a and the backend under test on it, for the model tests. */
#ifndef CALLA_TESTS_ORACLE_H
#define CALLA_TESTS_ORACLE_H

#include "support/backend.h"

enum { ORACLE_N = 150, ORACLE_V = 320, ORACLE_D = 128, ORACLE_L = 4 }; /* tokens, and sizes */

extern int32_t oracle_ids[ORACLE_N];
extern model_weights oracle_mlx4, oracle_bf16;

/* Group setup and teardown for cmocka: fills the above. */
int oracle_setup(void **state);
int oracle_teardown(void **state);
/* A tensor of gold.safetensors. */
const float *oracle_gold(const char *name);

/* 2 threads, 1024 tokens, 4 sequences, chunks of 64, 2 snapshots. */
backend_options oracle_options(const char *isa);
/* These fail the test where the backend fails. */
backend *oracle_open_with(const model_weights *weights, const backend_options *options);
backend *oracle_open(const char *isa); /* mlx4, oracle_options */
backend_sequence *oracle_create(backend *b);
void oracle_prefill(backend *b, backend_sequence *s, const int32_t *tokens, int32_t n,
                    logits_mode mode, float *logits);
/* The tokens in chunks. */
calla_status oracle_try_prefill(backend *b, backend_sequence *s, const int32_t *tokens, int32_t n,
                                logits_mode mode, float *logits, const calla_control *control,
                                calla_error *err);
/* Submits a step and waits for it. */
calla_status oracle_try_step(backend *b, const step_request *requests, int32_t n,
                             step_result *results, const calla_control *control, calla_error *err);
/* One decode step; logits [ORACLE_V] until the next. */
const float *oracle_step(backend *b, backend_sequence *s, int32_t token);

/* Zeroed, to be freed. */
float *oracle_floats(size_t n);
/* Logits [ORACLE_N][ORACLE_V] of oracle_ids, to be freed: by prefill, or by prefill of the first
 * ones and decode steps after them. */
float *oracle_prefill_all(backend *b, backend_sequence *s);
float *oracle_decode_from(backend *b, backend_sequence *s, int32_t first);

/* |x - expected| <= bound * |expected|, as vectors. */
void assert_close(const float *x, const float *expected, size_t n, double bound, const char *what);
/* The same bits. */
void assert_same(const float *a, const float *b, size_t n, const char *what);

#endif
