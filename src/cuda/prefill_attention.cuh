/* What the attention kernels share. Private to src/cuda. */
#ifndef CALLA_CUDA_PREFILL_ATTENTION_CUH
#define CALLA_CUDA_PREFILL_ATTENTION_CUH

#include "cuda/prefill_device.cuh"

enum { ATTENTION_DIM = 256, KV_TOKENS = 256 };

/* Rows [first, end) of one KV head: row = token * group + query head within the group. */
typedef struct attention_rows {
    int32_t kv_head, group, first, end;
} attention_rows;

/* The rows of a block: the last ones, which see most, start first. gridDim (KV heads, tiles). */
static __device__ __forceinline__ attention_rows
attention_block_rows(const prefill_attention_args &a, int32_t tile_rows)
{
    attention_rows r;
    r.kv_head = blockIdx.x;
    r.group = a.n_query_heads / a.n_kv_heads;
    r.first = (int32_t)(gridDim.y - 1 - blockIdx.y) * tile_rows;
    r.end = a.n_tokens * r.group;
    return r;
}

/* Token and query head of a row of the block; rows past the end stand for the last. */
static __device__ __forceinline__ int32_t row_token(const prefill_attention_args &a,
                                                    const attention_rows &r, int row)
{
    return min(r.first + row, r.end - 1) / r.group;
}
static __device__ __forceinline__ int32_t row_head(const prefill_attention_args &a,
                                                   const attention_rows &r, int row)
{
    return r.kv_head * r.group + min(r.first + row, r.end - 1) % r.group;
}
static __device__ __forceinline__ const __half *query_row(const prefill_attention_args &a,
                                                          const attention_rows &r, int row)
{
    return a.q +
           ((int64_t)row_token(a, r, row) * a.n_query_heads + row_head(a, r, row)) * ATTENTION_DIM;
}
static __device__ __forceinline__ const __half *kv_row(const prefill_attention_args &a,
                                                       const attention_rows &r, int32_t position)
{
    return a.kv.kv + a.kv.blocks[position / KV_TOKENS] * a.kv.block_stride +
           r.kv_head * a.kv.head_stride + position % KV_TOKENS * ATTENTION_DIM;
}

/* Over the four lanes that share a row of an accumulator. */
static __device__ __forceinline__ float quad_sum(float v)
{
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    return v + __shfl_xor_sync(0xffffffffu, v, 2);
}
static __device__ __forceinline__ float quad_max(float v)
{
    v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 1));
    return fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 2));
}

static __device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* A lane's scores of rows g and g + 8 against 64 tokens from `position` on, of which row h sees
 * those up to seen[h]: to probabilities relative to the new maximum; most and
 * sum (the lane's part) go on; `scale` is what older results shrink by. */
static __device__ __forceinline__ void softmax_tile(float (&s)[8][4], const int32_t (&seen)[2],
                                                    int32_t position, float (&most)[2],
                                                    float (&sum)[2], float (&scale)[2])
{
    const float per_score = 0.0625f * 1.4426950408889634f; /* 1 / sqrt(256) / ln 2 */
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (seen[h] - position < 63) {
            int32_t limit = max(seen[h] - position, -64) - lane % 4 * 2;
#pragma unroll
            for (int i = 0; i < 8; i++)
#pragma unroll
                for (int j = 0; j < 2; j++)
                    if (i * 8 + j > limit) s[i][2 * h + j] = -INFINITY;
        }
        float largest = s[0][2 * h];
#pragma unroll
        for (int i = 0; i < 8; i++) largest = fmaxf(largest, fmaxf(s[i][2 * h], s[i][2 * h + 1]));
        largest = fmaxf(most[h], quad_max(largest));
        scale[h] = exp2_fast((most[h] - largest) * per_score);
        most[h] = largest;
        float offset = largest * per_score, part = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float p0 = exp2_fast(fmaf(s[i][2 * h], per_score, -offset));
            float p1 = exp2_fast(fmaf(s[i][2 * h + 1], per_score, -offset));
            part += p0 + p1;
            s[i][2 * h] = p0, s[i][2 * h + 1] = p1;
        }
        sum[h] = sum[h] * scale[h] + part;
    }
}

/* Probabilities of softmax_tile as A fragments of 16 tokens each. */
static __device__ __forceinline__ void pack_probabilities(const float (&s)[8][4],
                                                          uint32_t (&p)[4][4])
{
#pragma unroll
    for (int i = 0; i < 16; i++)
        p[i / 4][i % 4] =
            half2_bits(__floats2half2_rn(s[i / 2][i % 2 * 2], s[i / 2][i % 2 * 2 + 1]));
}

/* o [32 blocks of 8 dims][rows row0, row0 + 8 by 2 dims] of a lane, over the sums, gated. */
static __device__ __forceinline__ void store_outputs(const prefill_attention_args &a,
                                                     const attention_rows &r, int row0,
                                                     const float (&o)[32][4], const float (&sum)[2])
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = row0 + 8 * h;
        float inverse = 1.0f / quad_sum(sum[h]);
        if (r.first + row >= r.end) continue;
        int64_t t = row_token(a, r, row), head = row_head(a, r, row);
        const float *gate =
            a.projected + t * a.projected_stride + (head * 2 + 1) * ATTENTION_DIM + lane % 4 * 2;
        __half *out = a.mixed + (t * a.n_query_heads + head) * split_halves(ATTENTION_DIM);
#pragma unroll
        for (int i = 0; i < 32; i++) {
            float2 g = *(const float2 *)(gate + i * 8);
            store_split2(out, i * 8 + lane % 4 * 2, o[i][2 * h] * inverse * sigmoid(g.x),
                         o[i][2 * h + 1] * inverse * sigmoid(g.y));
        }
    }
}

cudaError_t prefill_attention_hopper_init();
cudaError_t prefill_attention_hopper(const prefill_attention_args *args, cudaStream_t stream);

#endif
