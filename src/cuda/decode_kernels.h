/* The kernels of decode on an NVIDIA GPU: what each computes. A launch function puts a kernel into
 * a stream (launch_sample two) and returns whether that could be done. Pointers are device memory
 * unless said.
 *
 * They are launched overlapped: each waits for the one before it, so their order in the stream is
 * their order.
 *
 * Results depend on a row's values, its position and the matrix's shape alone: not on the other
 * rows of the call. */
#ifndef CALLA_CUDA_DECODE_KERNELS_H
#define CALLA_CUDA_DECODE_KERNELS_H

#include "cuda/layout.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* As in model/config.h, which is C. */
#ifndef CALLA_MODEL_CONFIG_H
enum { ATTENTION_HEAD_DIM = 256, ROTARY_DIMS = 64, GDN_HEAD_DIM = 128, CONV_TAPS = 4 };
#endif
enum {
    STEP_ROWS = 8,        /* sequences of one step */
    KV_TOKENS = 256,      /* tokens of a KV block */
    GDN_COLUMNS = 32,     /* value columns of a slice of a head's state */
    ATTENTION_PARTS = 64, /* pieces a context is cut into in decode */
    TOP_LOGPROBS = 20,
    QUANT_COLUMNS = 64, /* of a scale and a bias */
};

/* 8-bit rows, as in the checkpoint: routers. */
typedef struct w8_matrix {
    const unsigned char *codes; // [rows][cols] u8
    const uint32_t *pairs;      // [rows][cols/64] scale, bias << 16
    int32_t rows, cols;
} w8_matrix;

/* ---- what changes from step to step, in device memory ---- */

/* How to choose the next token (calla_sampling), and what to report. */
typedef struct step_sampling {
    float temperature, top_p, min_p;
    float presence_penalty, frequency_penalty, repetition_penalty;
    int32_t top_k, n_top_logprobs;
    uint64_t seed;
    int32_t n_bias, n_generated; /* entries of the row's lists */
    int32_t use_mask, wanted;    /* wanted = 0: logits only */
} step_sampling;

typedef struct step_row {
    int32_t token;    /* to run, or -1: the one in sampled[slot] */
    int32_t slot;     /* of the sequence: block table, sampled token */
    int32_t state;    /* which of the states */
    int32_t position; /* of the token */
    float cosines[32], sines[32];
    step_sampling sampling;
} step_row;

typedef struct step_input {
    step_row rows[STEP_ROWS];
} step_input;

/* What comes back of a row. */
typedef struct step_output {
    int32_t bad_layer; /* first layer whose input is not finite, INT32_MAX if none */
    int32_t bad_logit; /* first id whose logit is not finite, INT32_MAX if none */
    float bad_value;   /* that logit */
    int32_t token;     /* -1: no token is allowed */
    float logprob;
    int32_t n_top;
    int32_t top_tokens[TOP_LOGPROBS];
    float top_logprobs[TOP_LOGPROBS];
} step_output;

/* Where sequences' states and KV are. A state: per GDN layer [value heads][4 slices][128 key
 * dims][32 value dims] f32, then the convolution window [4][channels] f32, position p in row p % 4.
 * A KV block: per attention layer K, then V, [kv heads][256 tokens][256] halves. */
typedef struct store_view {
    float *states;
    size_t state_floats, layer_floats, window_offset;
    unsigned char *kv;
    size_t block_bytes, layer_bytes; /* of a KV block; of one layer in it, K and V */
    const int32_t *tables;           // [slots][max_blocks]
    int32_t max_blocks;
} store_view;

/* ---- decode ---- */

/* x[n][hidden] = rows of the embedding; clears bad_layer and output[].bad_logit. */
typedef struct embed_args {
    const unsigned char *codes; // [vocabulary][hidden/2]
    const uint32_t *pairs;      // [vocabulary][hidden/64]
    const step_input *input;
    const int32_t *sampled; // [slots]
    int32_t *bad_layer;     // [n]
    step_output *output;    // [n]
    float *x;
    int32_t hidden, n;
} embed_args;
cudaError_t launch_embed_step(const embed_args *a, cudaStream_t stream);

typedef enum gemv_input {
    GEMV_INPUT_NORM,       /* u = x r factor */
    GEMV_INPUT_GATED_NORM, /* heads of 128: factor (x r) silu(gate) (MODEL.md 3.7) */
    GEMV_INPUT_PLAIN,
} gemv_input;
typedef enum gemv_output { GEMV_OUTPUT_STORE, GEMV_OUTPUT_ADD } gemv_output;

/* y = W u, or y += W u, for n <= 8 rows. NORM stores, the others add. */
typedef struct gemv_args {
    w4_matrix w;
    gemv_input input;
    int32_t n;
    const float *x; // [n][x_stride]
    int64_t x_stride;
    const float *factor; // [cols], GATED_NORM [128]
    float eps;
    const float *gate; // [n][gate_stride] f32, GATED_NORM
    int64_t gate_stride;
    float *y; // [n][y_stride]
    int64_t y_stride;
    int32_t *bad_layer; // [n], NORM: becomes min(itself, layer) if x is not finite
    int32_t layer;
} gemv_args;
cudaError_t launch_gemv(const gemv_args *a, int n_multiprocessors, cudaStream_t stream);

/* logits[n][rows] = W norm(x), exact weights and f32. */
typedef struct router_args {
    w8_matrix w; /* the last row is the shared expert's gate */
    int32_t n;
    const float *x; // [n][x_stride]
    int64_t x_stride;
    const float *factor;
    float eps;
    float *logits;
    int32_t *bad_layer;
    int32_t layer;
} router_args;
cudaError_t launch_router(const router_args *a, cudaStream_t stream);

/* inner: chooses experts from the logits, h = silu(gate u) * up u; outer: x += weights * down h. */
typedef struct expert_args {
    w4_matrix inner, outer; /* of expert 0: gate and up interleaved, down */
    w4_matrix shared_inner, shared_outer;
    size_t inner_bytes, outer_bytes; /* between two experts */
    int32_t n_experts, k, n;
    const float *x; // [n][x_stride]
    int64_t x_stride;
    const float *factor;
    float eps;
    const float *logits; // [n][n_experts + 1]
    float *h;            // [n][h_stride]: k slots of width, the shared one
    int64_t h_stride;
    float *x_out; /* = x */
} expert_args;
cudaError_t launch_expert_inner(const expert_args *a, cudaStream_t stream);
cudaError_t launch_expert_outer(const expert_args *a, cudaStream_t stream);

/* Convolution, normalisation, recurrence of one GDN layer (MODEL.md 3.4, 3.5). */
typedef struct gdn_step_args {
    store_view store;
    const step_input *input;
    int32_t n, gdn_index, key_heads, value_heads;
    const float *projected; // [n][stride]: qkv, z, a, b
    int64_t stride;
    const float *taps;                // [4][channels]
    const float *neg_exp_a, *dt_bias; // [value_heads]
    float *out;                       // [n][value_heads * 128], before the gated norm
} gdn_step_args;
cudaError_t launch_gdn_step(const gdn_step_args *a, cudaStream_t stream);

/* Norm, rotation, cache and attention of one layer (MODEL.md 3.3). */
typedef struct attention_step_args {
    store_view store;
    const step_input *input;
    int32_t n, attention_index, query_heads, kv_heads;
    const float *projected; // [n][stride]: q and gate per head, k, v
    int64_t stride;
    const float *q_norm, *k_norm; // [256]
    float eps;
    float *part_out;            // [n][query_heads][ATTENTION_PARTS][256]
    float *part_max, *part_sum; // [n][query_heads][ATTENTION_PARTS]
    unsigned *arrived;          // [n][kv_heads], zero; left zero
    float *out;                 // [n][query_heads * 256], gated
} attention_step_args;
cudaError_t launch_attention_step(const attention_step_args *a, cudaStream_t stream);

/* ---- steps of one token in one kernel (chain.cu), each as its launch function above ---- */

typedef enum chain_kind {
    CHAIN_GEMV_NORM,
    CHAIN_GEMV_GATED_NORM,
    CHAIN_GEMV_PLAIN,
    CHAIN_GDN,
    CHAIN_ROUTER,
    CHAIN_INNER,
    CHAIN_OUTER,
} chain_kind;

typedef struct chain_step {
    chain_kind kind;
    int32_t first_block, n_blocks;
    int32_t before; /* first block of the step before */
    union {
        gemv_args gemv;
        gdn_step_args gdn;
        router_args router;
        expert_args experts;
    } of;
} chain_step;

enum { CHAIN_STEPS = 32 };
typedef struct chain_args {
    chain_step steps[CHAIN_STEPS];
    int32_t n_steps, n_blocks;
    size_t shared_bytes;
    bool any_shape;     /* not the 35B's, for which there is a kernel that knows it */
    unsigned *counters; // [n_steps] zero; left with the steps' blocks
} chain_args;
/* Of one row. An attention step has a kernel of its own; a router is followed by its experts. */
void chain_add_gemv(chain_args *a, const gemv_args *gemv, int n_multiprocessors);
void chain_add_gdn(chain_args *a, const gdn_step_args *gdn);
void chain_add_router(chain_args *a, const router_args *router);
void chain_add_experts(chain_args *a, const expert_args *experts); /* two steps */
cudaError_t launch_chain(const chain_args *a, cudaStream_t stream);

/* ---- all layers of a token in one kernel (token.cu), for the 35B's shape ---- */

enum {
    TOKEN_HIDDEN = 2048,
    TOKEN_HEADS = 16,  /* key heads, half as many as value heads; query heads, 8 to a KV head */
    TOKEN_WIDTH = 512, /* of an expert and of the shared one */
    TOKEN_CHOSEN = 8,
    TOKEN_MOST_EXPERTS = 256,
    TOKEN_MOST_LAYERS = 48,
    TOKEN_TEAMS = 16, /* of blocks: one a key head or query head */
    TOKEN_RANKS = 8,  /* blocks of a team */
    TOKEN_BLOCKS = TOKEN_TEAMS * TOKEN_RANKS,
    TOKEN_KV_PARTS = TOKEN_BLOCKS / 2, /* pieces of a context, a block each */
    TOKEN_HEAD_ROWS = 768,             /* of a GDN key head: q, k 128, v, z 256 */
    TOKEN_UNITS = 5, /* of a team: 64 inner columns, four of a chosen expert, one of the shared */
};

/* What blocks tell each other: values with a tag each (token_ptx.cuh), zero before the first
 * launch. A team's projections, outputs and inner columns are for its own blocks. */
typedef struct token_mail {
    uint64_t partial[2][TOKEN_BLOCKS][16][16]; /* [buffer][16 rows][team][row]: sums of products */
    uint64_t x[2][TOKEN_HIDDEN];               /* the residual stream, two buffers */
    uint64_t projected[TOKEN_HEADS][TOKEN_HEAD_ROWS];
    uint64_t gates[TOKEN_HEADS][2 * TOKEN_RANKS]; /* quarters of two rows of a, then of b */
    uint64_t out[TOKEN_HEADS][256];
    uint64_t logits[TOKEN_RANKS][TOKEN_MOST_EXPERTS]; /* the same for blocks of each rank */
    uint64_t shared_gate[2];                          /* its logit */
    uint64_t h[TOKEN_TEAMS][TOKEN_UNITS][64];
} token_mail;

typedef struct token_layer {
    const unsigned char *in, *out; /* blocks */
    const unsigned char *inner, *outer, *shared_inner, *shared_outer;
    const unsigned char *router;  // [n_experts + 1][2048]
    const uint32_t *router_pairs; // [n_experts + 1][32]
    const float *input_norm, *post_norm;
    /* Taps, -exp(A), dt bias, norm; or norms of q and k. */
    const float *constants[4];
    int32_t is_attention, mixer_index;
} token_layer;

typedef struct token_args {
    const token_layer *layers; // [end]
    int32_t first, end;        /* layers to run */
    int32_t row;               /* of the step */
    int32_t n_experts;
    float eps;
    store_view store;
    const step_input *input;
    float *x;                  // [2048], in and out
    const unsigned char *head; /* blocks, of n_vocab rows */
    const float *final_norm;   // [2048]
    float *logits;             // [n_vocab], or NULL: layers only
    int32_t n_vocab;
    token_mail *mail;
    float *projected;           // [9216]: q and gate per head, k, v
    float *part_out;            // [16][TOKEN_KV_PARTS][256], as large as attention's
    float *part_max, *part_sum; // [16][TOKEN_KV_PARTS]
    unsigned *barrier;  // [3] zero before the first launch: arrivals; arrivals, tag before it
    int32_t *bad_layer; /* as gemv's, of this row */
} token_args;
/* The same for several rows at once (token_rows.cu), with the same bits. */
typedef struct token_rows_args {
    int32_t n;                  /* 1 to STEP_ROWS */
    token_mail *mail;           // [n], rows[i].mail = mail + i
    token_args rows[STEP_ROWS]; /* alike but for `row`, mail and what is computed */
} token_rows_args;
/* Whether the kernel can run on this device: all of its blocks at once. */
bool token_fits_device(int n_multiprocessors);
bool token_rows_fit_device(int n_multiprocessors);
cudaError_t launch_token(const token_args *a, cudaStream_t stream);
cudaError_t launch_token_rows(const token_rows_args *a, cudaStream_t stream);

/* Of SAMPLE_RANGE ids: what the first of the sampler's kernels leaves for the second. */
enum { SAMPLE_RANGE = 4096 };
typedef struct sample_part {
    double sum;        /* of exp(value - the largest) */
    uint64_t largest;  /* as a rank_key of sample.cu, 0 = none allowed */
    uint64_t best[64]; /* the best few, in no order, then zeros */
} sample_part;
static inline int32_t sample_n_parts(int32_t n_tokens)
{
    return (n_tokens + SAMPLE_RANGE - 1) / SAMPLE_RANGE;
}

/* The next tokens (src/engine/sampler.c has the same order of operations and the same draws). */
typedef struct sample_args {
    const step_input *input;
    int32_t n, n_vocab, n_tokens; /* ids below n_tokens can be sampled */
    const float *logits;          // [n][n_vocab]
    const uint32_t *masks;        // [n][mask_words]
    int32_t mask_words;
    const int32_t *bias_tokens; // [n][list]
    const float *bias_values;
    const int32_t *generated_tokens, *generated_counts; // [n][list]
    int32_t list;
    float *values;      // [n][n_vocab] adjusted logits
    sample_part *parts; // [n][sample_n_parts(n_tokens)]
    const int32_t *bad_layer;
    int32_t *sampled;    // [slots]
    step_output *output; // [n]
} sample_args;
cudaError_t launch_sample(const sample_args *a, cudaStream_t stream);

/* ---- shared with prefill and loading ---- */

/* x[n][hidden] = rows of the embedding. */
cudaError_t launch_embed_rows(const unsigned char *codes, const uint32_t *pairs,
                              const int32_t *tokens, int32_t n, int32_t hidden, float *x,
                              cudaStream_t stream);
/* pairs[i] = scales[i] | biases[i] << 16, bf16 each. */
cudaError_t launch_pair(const uint16_t *scales, const uint16_t *biases, int64_t n, uint32_t *pairs,
                        cudaStream_t stream);

/* ---- loading ---- */

typedef enum repack_rows { REPACK_PLAIN, REPACK_GATE, REPACK_UP } repack_rows;
/* Rows of a checkpoint's matrix into blocks that were zero: row i becomes row first + i, or with
 * GATE and UP the i-th gate or up row of the interleaved order. codes [n][cols/2], scales, biases
 * [n][cols/64] bf16, anywhere. */
typedef struct repack_args {
    unsigned char *blocks;
    const unsigned char *codes;
    const uint16_t *scales, *biases;
    int32_t cols;
    int64_t first, n;
    repack_rows order;
} repack_args;
cudaError_t launch_repack(const repack_args *a, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
