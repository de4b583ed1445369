/* What a chunk's mixers share with what runs them: prefill.c has the chunk, prefill_gdn.c and
 * prefill_attention.c the mixers, prefill_moe.c the MoE. Rows are the chunk's tokens. */
#ifndef CALLA_CPU_PREFILL_H
#define CALLA_CPU_PREFILL_H

#include "cpu/cpu.h"

typedef struct matrix_job {
    const matrix *m;
    float *y; /* [n][stride] */
    int64_t stride;
} matrix_job;

typedef struct chunk {
    backend *b;
    prefill_scratch *p;
    backend_sequence *s;
    const int32_t *tokens;
    int32_t n;
    int64_t first; /* position of the first token */
    int32_t index; /* of the layer */
    int32_t norm;  /* 2 * index, or 2 * index + 1 behind the mixer */
    const layer_weights *layer;
    const prepared_layer *prepared;
    const float *factor;  /* of the norm at hand */
    bool add;             /* norm_part adds `out` to x first */
    pack_input_fn *pack;  /* and packs its output with this or, NULL, does not */
    const float *to_pack; /* pack_part: [n][pack_cols] */
    int32_t pack_cols;
    matrix_job jobs[4];
    int32_t n_jobs;
    const unsigned char *inputs; /* of products, packed */
    int32_t n_inputs;            /* rows of those */
} chunk;

/* One call of `op`: n items in pieces of at least `least`, a multiple of the grain the kernel
 * wants. */
void chunk_run(backend *b, operation op, int64_t n, int64_t least, thread_pool_fn fn,
               void *context);

/* The same in pieces of `most` items, and smaller ones towards the end. */
void chunk_run_ending(backend *b, operation op, int64_t n, int64_t most, thread_pool_fn fn,
                      void *context);

/* Notes a product for the next chunk_project: y [n][stride] = packed rows times m's transpose. */
void chunk_add_product(chunk *t, const matrix *m, float *y, int64_t stride);
/* The products noted, of n_inputs packed rows. */
void chunk_project(chunk *t, operation op, int32_t n_inputs);
/* Packs n rows of x [n][cols]. */
void chunk_pack(chunk *t, operation op, const float *x, int32_t cols, int32_t n);
/* x += m times `inputs`; u = norm(x). */
void chunk_project_output(chunk *t, const matrix *m, operation op);

/* Each takes its memory in the arena for chunks of `rows`, and turns the packed u into x and u
 * behind the mixer. */
void chunk_gdn_take(backend *b, size_t rows);
void chunk_gdn(chunk *t);
void chunk_attention_take(backend *b, size_t rows);
void chunk_attention(chunk *t);
void chunk_moe_take(backend *b, size_t rows);

#endif
