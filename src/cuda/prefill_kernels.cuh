/* The kernels of prefill on an NVIDIA GPU (MODEL.md 3): what each computes, its shapes and layouts.
 *
 * Every function puts work on `stream` and returns the launch's error; nothing waits, nothing is
 * allocated, and all pointers are device memory unless a comment says host. Pointers to rows of
 * floats or halves are 16-byte aligned, and so are their strides. The functions may be captured
 * into a graph.
 *
 * A token's results do not depend on the rows beside it: dot products add up over one row in one
 * order whatever the tile, attention takes tiles of the KV cache anchored at absolute positions in
 * ascending order, the recurrence goes by absolute positions, and sums over experts go in the order
 * of the token's slots. There are no floating-point atomics. Results may differ between `path`s.
 *
 * Inputs of matrix products are two halves a number, high and low, whose sum has 22 bits: with one
 * half, of 11 bits, a model of random weights answers some 0.1 nats off. A row of C numbers is
 * 2 C halves: 64 high ones, the 64 low ones of the same numbers, and so on ("split" below). The
 * general path's product rounds them further, to 15 bits of a group of 64, as decode does.
 *
 * T is the number of tokens of the chunk; the other letters are those of model_config. */
#ifndef CALLA_CUDA_PREFILL_KERNELS_CUH
#define CALLA_CUDA_PREFILL_KERNELS_CUH

#include "cuda/layout.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
#include <cuda_fp16.h>
#include <cuda_runtime.h>
extern "C" {
#else
typedef struct __half __half; /* C only passes pointers on */
#endif

/* ---- the device ---- */

typedef enum prefill_path {
    PREFILL_PATH_GENERAL, /* mma.sync, cp.async: sm_80 and later */
    PREFILL_PATH_HOPPER,  /* wgmma, mbarriers: sm_90a only */
} prefill_path;

typedef struct prefill_device {
    prefill_path path;
    int32_t n_sms;
    int32_t shared_bytes; /* that a block may have */
    int32_t gemm_stages;  /* of the general product */
} prefill_device;

/* Reads the current device's properties and raises the shared memory limits of the kernels. `path`
 * is the best one the device has, or the general one if `force_general`. Once per device, before
 * anything else. */
cudaError_t prefill_device_init(prefill_device *device, bool force_general);

/* Stages of the general product where a multiprocessor has that much shared memory. */
int32_t prefill_gemm_stages(int32_t multiprocessor_bytes);

/* ---- split halves ---- */

enum { SPLIT_GROUP = 64 };

/* Halves of a row of n numbers. */
#ifdef __cplusplus
__host__ __device__
#endif
    static inline int64_t
    split_halves(int64_t n)
{
    return 2 * n;
}

/* Floats from one row of sums over groups of 64 of n numbers to the next: rows are aligned. */
#ifdef __cplusplus
__host__ __device__
#endif
    static inline int64_t
    group_sums_pitch(int64_t n)
{
    return (n / SPLIT_GROUP + 3) / 4 * 4;
}

/* ---- weights: cuda/layout.h ---- */

/* factors [w4_strips(w->rows)]: per strip the power of two that its weights are divided by before
 * they become halves, so that the largest lies near 2^7 and what was bf16 stays exact. Computed
 * once, after packing. For experts: w as tall as all of them together. */
cudaError_t prefill_w4_factors(const w4_matrix *w, float *factors, cudaStream_t stream);

/* ---- MoE routing (MODEL.md 3.8) ---- */

/* logits [T][n_outputs] = u [T][D], split, times W [n_outputs][D] in f32: the router's E rows and
 * below them the shared expert's gate. W has 8-bit codes [n_outputs][D] and pairs [n_outputs][D /
 * 64] (bf16 scale in the low half, bias in the high one). group_sums: prefill_rmsnorm's. 2 T
 * n_outputs D operations. */
cudaError_t prefill_router_logits(const prefill_device *device, const __half *split,
                                  const float *group_sums, const unsigned char *codes,
                                  const uint32_t *pairs, int32_t n_tokens, int32_t n_outputs,
                                  int32_t hidden, float *logits, cudaStream_t stream);

/* experts, weights [T][k]: the k largest of logits [t][0 ... E - 1] (rows logits_stride apart),
 * largest first, ties to the lower index, NaN last, and their softmax among themselves.
 * shared_scale [T] = sigmoid(logits[t][E]). */
cudaError_t prefill_router_top_k(const float *logits, int64_t logits_stride, int32_t n_tokens,
                                 int32_t n_experts, int32_t k, int32_t *experts, float *weights,
                                 float *shared_scale, cudaStream_t stream);

typedef struct moe_tile {
    int32_t matrix, first_row, n_rows; /* rows of the sorted order, at most MOE_TILE_ROWS */
} moe_tile;
enum { MOE_TILE_ROWS = 128, MOE_EVEN_ROWS = 72, MOE_PLAN_SLOTS = 1024, MOE_CLASSES = 6 };

/* The slots (t, s), s < k, sorted by expert, within one by t; behind these T k rows T more, in
 * order, for the shared expert, which is matrix number E (if it is as wide as the others). Memory
 * for `max_tokens` is cut from one piece by prefill_moe_plan_init (host). */
typedef struct moe_plan {
    int32_t max_tokens, n_experts, k;
    bool has_shared;
    int32_t max_tiles;
    int32_t *row_of_slot;  // [T][k] row of the sorted order
    int32_t *token_of_row; // [T k + T]
    int32_t *offsets;      // [E + 1] first row of each expert
    int32_t *counts;       // [ceil(T k / MOE_PLAN_SLOTS)][E] slots of each expert
    /* Those of 97 rows and more, then of 73, 65, 41, 25 and more, then the others; of each class
     * the experts in order. Class c is [class_ends[c], class_ends[c + 1]), class_ends[0] = 0. An
     * expert's rows are cut into tiles of MOE_TILE_ROWS; where that would leave 1 to 16, the last
     * two have MOE_EVEN_ROWS and the rest. */
    moe_tile *tiles;     // [max_tiles]
    int32_t *class_ends; // [MOE_CLASSES + 1]
    int32_t *taken;      // [MOE_CLASSES] 0, but while a product's blocks take tiles
} moe_plan;

int64_t prefill_moe_plan_bytes(int32_t max_tokens, int32_t n_experts, int32_t k);
void prefill_moe_plan_init(moe_plan *plan, void *memory, int32_t max_tokens, int32_t n_experts,
                           int32_t k, bool has_shared);

/* Fills the plan from experts [n_tokens][k], which hold values 0 ... E - 1. */
cudaError_t prefill_moe_plan(const moe_plan *plan, const int32_t *experts, int32_t n_tokens,
                             cudaStream_t stream);

/* x [T][D] += sum over s in order of weights[t][s] * y[row_of_slot[t][s]], + shared_scale[t] *
 * y[T k + t] if the plan has the shared expert, else + shared_scale[t] * shared[t] ([T][D]).
 * If factor is not NULL also the norm that follows, as prefill_rmsnorm, split or as f32 in u32
 * (each may be NULL). */
cudaError_t prefill_moe_combine(const moe_plan *plan, int32_t n_tokens, int32_t hidden,
                                const float *weights, const float *shared_scale, const float *y,
                                const float *shared, float *x, const float *factor, float eps,
                                __half *split, float *u32, int32_t *bad_layer, int32_t layer,
                                cudaStream_t stream);

/* ---- linear layers ---- */

typedef enum prefill_gemm_output {
    PREFILL_STORE_F32,    /* y[i][r] = v, f32 */
    PREFILL_ADD_F32,      /* y[i][r] += v, f32: the residual stream */
    PREFILL_SWIGLU_SPLIT, /* y[i][8 s + j] = silu(v[16 s + j]) * v[16 s + j + 8], j < 8: the gate
                             and up rows of strip s; split, clamped to +-65504 */
} prefill_gemm_output;

/* Bytes of `rounded` below for n_rows inputs of W's columns; 0 where it is not used. */
size_t prefill_rounded_bytes(const prefill_device *device, int64_t n_rows, int32_t cols);

/* v[i][r] = W[r] . x[i], W in half, x split, with f32 sums; in the general path W exact, x rounded.
 * Without a plan: all n_rows rows of x with matrix number 0. With one: the rows of its sorted
 * order, each with its tile's matrix; x is then read at token_of_row[row] if `gather`, else at the
 * row itself. Input row i gives output row i. 2 rows cols operations an input row, which the tensor
 * cores do twice, for high and low; weights are read once per 128 input rows. */
typedef struct prefill_gemm_args {
    w4_matrix w;          /* of expert 0 */
    const float *factors; // [w4_strips(w.rows)], of expert 0
    /* With a plan: the bytes between two experts' matrices (their factors are as many strips apart)
     * and the shared expert, if the plan has it, of the same shape. */
    size_t expert_bytes;
    const unsigned char *shared_blocks;
    const float *shared_factors;
    const __half *x;        // [*][ldx] split, clamped to +-65504
    int64_t ldx;            /* in halves, as ldy of a split y */
    int32_t n_rows;         /* without a plan */
    int32_t n_inputs;       /* rows of x */
    unsigned char *rounded; /* scratch of prefill_rounded_bytes(n_inputs) */
    const moe_plan *plan;   /* host pointer */
    bool gather;
    prefill_gemm_output output;
    void *y; // [*][ldy]
    int64_t ldy;
} prefill_gemm_args;
cudaError_t prefill_gemm(const prefill_device *device, const prefill_gemm_args *args,
                         cudaStream_t stream);

/* ---- elementwise ---- */

/* u = x r factor, r = 1 / sqrt(mean square of x + eps), split (clamped), and the f32 sums of its
 * groups of 64 numbers in group_sums [T][group_sums_pitch(D)] (may be NULL). Where a row's mean
 * square is not finite bad_layer[t] (may be NULL) becomes the smaller of itself and `layer`. x, u
 * [T][D], D a multiple of 64 up to 8,192. */
cudaError_t prefill_rmsnorm(const float *x, const float *factor, int32_t n_tokens, int32_t hidden,
                            float eps, __half *split, float *group_sums, int32_t *bad_layer,
                            int32_t layer, cudaStream_t stream);

/* cosines, sines [T][32] of position * inverse_frequencies[j] (f64 [32]), computed in double. */
cudaError_t prefill_rope_angles(int64_t first, int32_t n_tokens, const double *inverse_frequencies,
                                float *cosines, float *sines, cudaStream_t stream);

/* ---- attention (MODEL.md 3.3) ---- */

/* One layer's part of the paged cache: K of token p, head m starts at
 *   kv + blocks[p / 256] * block_stride + m * head_stride + (p % 256) * 256
 * and V v_offset behind it; strides in halves, multiples of 8. */
typedef struct kv_layer {
    __half *kv;
    const int32_t *blocks; // [ceil((first + T) / 256)]
    int64_t block_stride, head_stride, v_offset;
} kv_layer;

typedef struct prefill_attention_args {
    int32_t n_tokens, n_query_heads, n_kv_heads;
    int64_t first;          /* position of the first token */
    const float *projected; // [T][stride]: q and gate of each head ([Hq][2][256]), then k, then v
    int64_t projected_stride;
    const float *q_norm, *k_norm; // [256] factors
    float eps;
    const float *cosines, *sines; // [T][32]
    kv_layer kv;
    __half *q;     // [T][Hq][256] scratch: normed, rotated
    __half *mixed; // [T][Hq * 256] out, split: attention times sigmoid(gate), clamped
} prefill_attention_args;

/* Norms and rotates q and k; k and v go to the cache. */
cudaError_t prefill_attention_prepare(const prefill_attention_args *args, cudaStream_t stream);
/* mixed from q and the cache. 4 * 256 operations per query head and token seen. */
cudaError_t prefill_attention(const prefill_device *device, const prefill_attention_args *args,
                              cudaStream_t stream);

/* ---- Gated DeltaNet (MODEL.md 3.4 to 3.7) ---- */

typedef struct prefill_gdn_args {
    int32_t n_tokens, n_key_heads, n_value_heads;
    int64_t first;          /* position of the first token */
    const float *projected; // [T][stride]: c (conv_channels), z (Hv * 128), a (Hv), b (Hv)
    int64_t projected_stride;
    const float *taps;                // [4][conv_channels], oldest first
    const float *neg_exp_a, *dt_bias; // [Hv]
    const float *norm_factor;         // [128]
    float eps;
    /* The projected rows of the last three positions, position p in row p % 4. Unread if first
     * is 0. */
    const float *window_in; // [4][conv_channels]
    float *window_out;      // [4][conv_channels], not window_in
    const float *state_in;  // [Hv][4 slices][128 key dims][32 value dims]; unread if first is 0
    float *state_out;       /* the same shape; may be state_in */
    float *f;               // [T][conv_channels] scratch: v; before it q and k, if not in chunks
    float *decay, *beta;    // [T][Hv] scratch: decay is the exponent g <= 0
    float *o;               // [T][Hv * 128] scratch
    __half *mixed;          // [T][Hv * 128] out, split, clamped
    void *workspace;        /* prefill_gdn_workspace_bytes */
} prefill_gdn_args;

int64_t prefill_gdn_workspace_bytes(int32_t n_key_heads, int32_t n_value_heads);
/* 64: prefill_gdn_scan takes chunks of 64 tokens at multiples of 64 at once, and results are the
 * same bits only if what a call begins with stands at such a multiple (at any other token it is as
 * good, but not the same). 1: it goes token by token. */
int32_t prefill_gdn_grid(const prefill_device *device);
/* The convolution, the gates, the norms of q and k, the new window; but not q and k where the scan
 * takes chunks: it does that itself. */
cudaError_t prefill_gdn_convolve(const prefill_device *device, const prefill_gdn_args *args,
                                 cudaStream_t stream);
/* The recurrence over all tokens: o, state_out. */
cudaError_t prefill_gdn_scan(const prefill_device *device, const prefill_gdn_args *args,
                             cudaStream_t stream);
/* mixed = gated norm of o with z. */
cudaError_t prefill_gdn_gated_norm(const prefill_gdn_args *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
