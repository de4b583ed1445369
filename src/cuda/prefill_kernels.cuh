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
 * T is the number of tokens of the chunk; the other letters are those of model_config. */
#ifndef CALLA_CUDA_PREFILL_KERNELS_CUH
#define CALLA_CUDA_PREFILL_KERNELS_CUH

#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

/* ---- the device ---- */

typedef enum kernel_path {
    KERNEL_PATH_GENERAL, /* mma.sync, cp.async: sm_80 and later */
    KERNEL_PATH_HOPPER,  /* wgmma, mbarriers: sm_90a only */
} kernel_path;

typedef struct kernel_device {
    kernel_path path;
    int32_t n_sms;
    int32_t shared_bytes; /* that a block may have */
} kernel_device;

/* Reads the current device's properties and raises the shared memory limits of the kernels. `path`
 * is the best one the device has, or the general one if `force_general`. Once per device, before
 * anything else. */
cudaError_t kernel_device_init(kernel_device *device, bool force_general);

/* ---- weights in the order the tensor cores read them ---- */

typedef enum packed_format {
    PACKED_Q4,  /* 4-bit codes, a scale and a bias per 64 columns */
    PACKED_F16, /* halves, from bf16 */
} packed_format;

/* One or more matrices W[rows][cols] of one shape (experts), in tiles of 256 rows by 64 columns:
 *
 *   data [n_matrices][ceil(rows / 256)][cols / 64][4 blocks of 64 rows]
 *   row_factor [n_matrices][ceil(rows / 256) * 256] f32
 *
 * A block of PACKED_Q4 is 2,304 bytes: codes [128 lanes][4 steps] u32, then [64 rows] half2 (scale,
 * bias). Lane l = 32 w + i stands for the rows R = 16 w + 2 (i / 4) and R + 1, and for the columns
 * 16 s + C, C = 2 (i % 4) + {0, 1, 8, 9}, of step s. The eight codes of its word for step s, lowest
 * bits first:
 *
 *   bits  0  (R, C0)    4 (R + 1, C0)    8 (R, C0 + 8)   12 (R + 1, C0 + 8)
 *   bits 16  (R, C0+1) 20 (R + 1, C0+1) 24 (R, C0 + 9)   28 (R + 1, C0 + 9)
 *
 * so that a mask gives two codes of one row in the halves of a word, which is an A fragment of
 * mma.m16n8k16 and of wgmma.m64nNk16 alike (fragment row g stands for matrix row 2 g, row g + 8
 * for 2 g + 1). A block of PACKED_F16 is 8,192 bytes: [4 steps][128 lanes][4 registers] half2.
 *
 * A weight is row_factor[row] * (scale * code + bias). row_factor is a power of two that brings the
 * row's largest weight near 2^7, so that what was bf16 stays exact in half. */
typedef struct packed_matrix {
    packed_format format;
    int32_t n_matrices, rows, cols; /* cols a multiple of 64 */
    unsigned char *data;
    float *row_factor;
} packed_matrix;

enum { PACKED_TILE_ROWS = 256, PACKED_TILE_COLS = 64, PACKED_BLOCK_ROWS = 64 };

static inline __host__ __device__ int32_t packed_block_bytes(packed_format format)
{
    return format == PACKED_Q4 ? 2304 : 8192;
}
static inline __host__ __device__ int32_t packed_row_tiles(const packed_matrix *m)
{
    return (m->rows + PACKED_TILE_ROWS - 1) / PACKED_TILE_ROWS;
}
/* Of one matrix: 4.5 or 16 bits a weight, rows rounded up to 256. */
static inline __host__ __device__ int64_t packed_data_bytes(const packed_matrix *m)
{
    return (int64_t)packed_row_tiles(m) * (m->cols / PACKED_TILE_COLS) * 4 *
           packed_block_bytes(m->format);
}

/* Matrices as the checkpoint has them (see src/model/weights.h), copied to the device: codes
 * [n][rows][cols / 2] bytes, 4-byte aligned, with scales and biases [n][rows][cols / 64] bf16; or,
 * with scales NULL, elements [n][rows][cols] bf16. */
typedef struct raw_matrices {
    int32_t n, rows, cols;
    const void *codes;
    const uint16_t *scales, *biases;
} raw_matrices;

/* Row r of raw matrix i becomes row first_row + r * row_stride of matrix first_matrix + i. So gate
 * and up become one matrix with rows 2 i (gate) and 2 i + 1 (up), which GEMM_SWIGLU_F16 expects,
 * and matrices that share an input stand below each other. `to` was zeroed beforehand. Reads and
 * writes the weights once. */
cudaError_t launch_repack(const packed_matrix *to, int32_t first_matrix, int32_t first_row,
                          int32_t row_stride, const raw_matrices *from, cudaStream_t stream);

/* out [n][rows][cols] f32, exactly scale * code + bias: 4-bit, 8-bit (bits = 8: codes [n][rows]
 * [cols] bytes) or bf16 (scales NULL). For the router, which is f32 arithmetic. */
cudaError_t launch_dequantize(const raw_matrices *from, int32_t bits, float *out,
                              cudaStream_t stream);

/* ---- MoE routing (MODEL.md 3.8) ---- */

/* logits [T][n_outputs] = u [T][D] f32 times w [n_outputs][D] f32, in f32: the router's E rows and
 * below them the shared expert's gate. 2 T n_outputs D operations. */
cudaError_t launch_router_logits(const float *u, const float *w, int32_t n_tokens,
                                 int32_t n_outputs, int32_t hidden, float *logits,
                                 cudaStream_t stream);

/* experts, weights [T][k]: the k largest of logits [t][0 ... E - 1] (rows logits_stride apart),
 * largest first, ties to the lower index, NaN last, and their softmax among themselves.
 * shared_scale [T] = sigmoid(logits[t][E]). */
cudaError_t launch_router_top_k(const float *logits, int64_t logits_stride, int32_t n_tokens,
                                int32_t n_experts, int32_t k, int32_t *experts, float *weights,
                                float *shared_scale, cudaStream_t stream);

typedef struct moe_tile {
    int32_t matrix, first_row, n_rows; /* rows of the sorted order, at most MOE_TILE_ROWS */
} moe_tile;
enum { MOE_TILE_ROWS = 128, MOE_PLAN_SLOTS = 256 };

/* The slots (t, s), s < k, sorted by expert, within one by t; behind these T k rows T more, in
 * order, for the shared expert, which is matrix number E (if it is as wide as the others). Memory
 * for `max_tokens` is cut from one piece by moe_plan_init (host). */
typedef struct moe_plan {
    int32_t max_tokens, n_experts, k;
    bool has_shared;
    int32_t max_tiles;
    int32_t *row_of_slot;  // [T][k] row of the sorted order
    int32_t *token_of_row; // [T k + T]
    int32_t *offsets;      // [E + 1] first row of each expert
    int32_t *counts;       // [ceil(T k / MOE_PLAN_SLOTS)][E] slots of each expert, then their sums
    moe_tile *tiles;       // [max_tiles]
    int32_t *n_tiles;      // [1]
} moe_plan;

int64_t moe_plan_bytes(int32_t max_tokens, int32_t n_experts, int32_t k);
void moe_plan_init(moe_plan *plan, void *memory, int32_t max_tokens, int32_t n_experts, int32_t k,
                   bool has_shared);

/* Fills the plan from experts [n_tokens][k], which hold values 0 ... E - 1. */
cudaError_t launch_moe_plan(const moe_plan *plan, const int32_t *experts, int32_t n_tokens,
                            cudaStream_t stream);

/* x [T][D] += sum over s in order of weights[t][s] * y[row_of_slot[t][s]], + shared_scale[t] *
 * y[T k + t] if the plan has the shared expert, else + shared_scale[t] * shared[t] ([T][D]).
 * If factor is not NULL also the norm that follows, as launch_rmsnorm. */
cudaError_t launch_moe_combine(const moe_plan *plan, int32_t n_tokens, int32_t hidden,
                               const float *weights, const float *shared_scale, const float *y,
                               const float *shared, float *x, const float *factor, float eps,
                               __half *u16, float *u32, int32_t *bad, int32_t layer,
                               cudaStream_t stream);

/* ---- linear layers ---- */

typedef enum gemm_output {
    GEMM_STORE_F32,  /* y[i][r] = v, f32 */
    GEMM_ADD_F32,    /* y[i][r] += v, f32: the residual stream */
    GEMM_SWIGLU_F16, /* y[i][r / 2] = silu(v[r]) * v[r + 1], r even, half clamped to +-65504 */
} gemm_output;

/* v[i][r] = W[r] . x[i] in half with f32 sums. Without a plan: all n_rows rows of x with matrix
 * number 0. With one: the rows of its sorted order, each with its tile's matrix; x is then read at
 * token_of_row[row] if `gather`, else at the row itself. Input row i gives output row i.
 * 2 rows cols operations an input row; weights are read once per 128 input rows. */
typedef struct gemm_args {
    packed_matrix w;
    const __half *x; // [*][ldx], clamped to +-65504
    int64_t ldx;
    int32_t n_rows;
    const moe_plan *plan; /* host pointer */
    bool gather;
    gemm_output output;
    void *y; // [*][ldy]
    int64_t ldy;
} gemm_args;
cudaError_t launch_gemm(const kernel_device *device, const gemm_args *args, cudaStream_t stream);

/* ---- elementwise ---- */

/* u = x r factor, r = 1 / sqrt(mean square of x + eps), as half (clamped) in u16 and as f32 in u32
 * (each may be NULL). Where a row's mean square is not finite and bad[t] is negative, bad[t]
 * (may be NULL) becomes `layer`. x, u [T][D], D a multiple of 64 up to 8,192. */
cudaError_t launch_rmsnorm(const float *x, const float *factor, int32_t n_tokens, int32_t hidden,
                           float eps, __half *u16, float *u32, int32_t *bad, int32_t layer,
                           cudaStream_t stream);

/* cosines, sines [T][32] of position * inverse_frequencies[j] (f64 [32]), computed in double. */
cudaError_t launch_rope_angles(int64_t first, int32_t n_tokens, const double *inverse_frequencies,
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

typedef struct attention_args {
    int32_t n_tokens, n_query_heads, n_kv_heads;
    int64_t first;          /* position of the first token */
    const float *projected; // [T][stride]: q and gate of each head ([Hq][2][256]), then k, then v
    int64_t projected_stride;
    const float *q_norm, *k_norm; // [256] factors
    float eps;
    const float *cosines, *sines; // [T][32]
    kv_layer kv;
    __half *q;     // [T][Hq][256] scratch: normed, rotated
    __half *mixed; // [T][Hq * 256] out: attention times sigmoid(gate), clamped
} attention_args;

/* Norms and rotates q and k; k and v go to the cache. */
cudaError_t launch_attention_prepare(const attention_args *args, cudaStream_t stream);
/* mixed from q and the cache. 4 * 256 operations per query head and token seen. */
cudaError_t launch_attention(const kernel_device *device, const attention_args *args,
                             cudaStream_t stream);

/* ---- Gated DeltaNet (MODEL.md 3.4 to 3.7) ---- */

typedef struct gdn_args {
    int32_t n_tokens, n_key_heads, n_value_heads;
    int64_t first;          /* position of the first token */
    const float *projected; // [T][stride]: c (conv_channels), z (Hv * 128), a (Hv), b (Hv)
    int64_t projected_stride;
    const float *taps;                // [4][conv_channels], oldest first
    const float *neg_exp_a, *dt_bias; // [Hv]
    const float *norm_factor;         // [128]
    float eps;
    const float *window_in; // [3][conv_channels] the rows before the chunk, oldest first; unread if
                            // first is 0
    float *window_out;      // [3][conv_channels], not window_in
    const float *state_in;  // [Hv][128 key dims][128 value dims]; unread if first is 0
    float *state_out;       /* the same shape; may be state_in */
    float *f;               // [T][conv_channels] scratch: q scaled and k normalised, v
    float *decay, *beta;    // [T][Hv] scratch: decay is the exponent g <= 0
    float *o;               // [T][Hv * 128] scratch
    __half *mixed;          // [T][Hv * 128] out, clamped
    void *workspace;        /* gdn_workspace_bytes */
} gdn_args;

int64_t gdn_workspace_bytes(int32_t max_tokens, int32_t n_key_heads, int32_t n_value_heads);
/* The convolution, the gates, the norms of q and k, the new window. */
cudaError_t launch_gdn_convolve(const gdn_args *args, cudaStream_t stream);
/* The recurrence over all tokens: o, state_out. */
cudaError_t launch_gdn_scan(const kernel_device *device, const gdn_args *args, cudaStream_t stream);
/* mixed = gated norm of o with z. */
cudaError_t launch_gdn_gated_norm(const gdn_args *args, cudaStream_t stream);

#endif
