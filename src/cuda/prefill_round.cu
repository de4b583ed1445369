/* Rounds the inputs of prefill's products where they are multiplied as bytes (prefill_gemm.cu). */
#include "cuda/prefill_round.cuh"
#include "cuda/w4.cuh"

enum { ROUND_THREADS = 256, ROUND_WARPS = ROUND_THREADS / WARP };

/* A warp takes AT_ONCE groups of a row. */
__global__ static void __launch_bounds__(ROUND_THREADS)
    round_kernel(const __half *x, int64_t ldx, int32_t n_rows, int32_t groups, int32_t parts,
                 unsigned char *records)
{
    wait_for_previous_kernel();
    release_next_kernel();
    const int32_t lane = threadIdx.x % WARP;
    const int64_t unit = (int64_t)blockIdx.x * ROUND_WARPS + threadIdx.x / WARP;
    const int64_t row = unit / parts;
    const int32_t first = (int32_t)(unit % parts) * AT_ONCE;
    if (row >= n_rows) return;
    float2 v[AT_ONCE];
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++) {
        v[u] = make_float2(0, 0);
        if (first + u >= groups) continue;
        const __half2 *from = (const __half2 *)(x + row * ldx + (first + u) * 2 * W4_GROUP) + lane;
        const float2 high = __half22float2(from[0]), low = __half22float2(from[W4_GROUP / 2]);
        v[u] = make_float2(high.x + low.x, high.y + low.y);
    }
    const rounded_values<AT_ONCE> r = round_together(v);
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++) {
        if (first + u >= groups) continue;
        uint32_t *to = (uint32_t *)(records + (row * groups + first + u) * RECORD_BYTES);
        to[plane_word()] = r.word[u];
        if (lane == 0) *(float4 *)(to + RECORD_SCALE / 4) = make_float4(r.scale[u], r.sum[u], 0, 0);
    }
}

cudaError_t prefill_round(const __half *x, int64_t ldx, int32_t n_rows, int32_t cols,
                          unsigned char *records, cudaStream_t stream)
{
    const int32_t groups = cols / W4_GROUP, parts = (int32_t)divide_up(groups, AT_ONCE);
    return launch(round_kernel, dim3(divide_up((int64_t)n_rows * parts, ROUND_WARPS)),
                  ROUND_THREADS, 0, stream, true, x, ldx, n_rows, groups, parts, records);
}
