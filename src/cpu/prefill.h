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

/* What a norm's rows are made of first: x as it is, x += out, x += what the experts gave. */
typedef enum norm_source { NORM_X, NORM_ADD_OUT, NORM_ADD_EXPERTS } norm_source;

/* Norms of all rows, with what needs a row while it is in a cache. */
typedef struct norm_pass {
    norm_source source;
    const float *factor;
    pack_input_fn *pack; /* of what the norm gives, or NULL */
    bool route;          /* and it goes through the router */
    bool keep;           /* it stays in u */
} norm_pass;

typedef struct chunk {
    backend *b;
    prefill_scratch *p;
    backend_sequence *s;
    const int32_t *tokens;
    int32_t n;
    int64_t first; /* position of the first token */
    int32_t index; /* of the layer */
    int32_t norm;  /* 2 * index, or 2 * index + 1 behind the mixer */
    norm_pass pass;
    const layer_weights *layer;
    const prepared_layer *prepared;
    const float *to_pack; /* pack_part: [n][pack_cols] */
    int32_t pack_cols;
    matrix_job jobs[4];
    int32_t n_jobs;
    const unsigned char *inputs; /* of products, packed */
    int32_t n_inputs;            /* rows of those */
    int64_t experts_start;       /* profile_start of the layer's experts */
} chunk;

/* The thread's scratch of gemm_many and gemm_pieces. */
static inline void *gemm_scratch(const prefill_scratch *p, int thread)
{
    return p->gemm_scratch ? p->gemm_scratch + (size_t)thread * GEMM_SCRATCH_BYTES : NULL;
}

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
/* out = m times `inputs`. */
void chunk_project_output(chunk *t, const matrix *m, operation op);

/* Each takes its memory in the arena for chunks of `rows`, and turns the packed inputs into `out`.
 */
void chunk_gdn_take(backend *b, size_t rows);
void chunk_gdn(chunk *t);
void chunk_attention_take(backend *b, size_t rows);
void chunk_attention(chunk *t);

/* The MoE in parts: the router of tokens [first, first + n), n <= ROUTE_TILE, whose normed rows are
 * in u [n][D]; when all have been routed, their experts; and x += what those gave token i. */
void chunk_moe_take(backend *b, size_t rows);
void chunk_route(chunk *t, int64_t first, int32_t n, const float *u, int thread);
void chunk_experts(chunk *t);
void chunk_add_experts(const chunk *t, int64_t i);

#endif
