/* Decode: the mixture of experts in three kernels: router, inner columns, outer columns. Each row
 * of the step reads its experts for itself.
 *
 * Each kernel does before wait_for_previous_kernel what it can: by then every kernel but the one
 * before it is done. So the inner columns' input is ready while the router runs, and the outer
 * columns' weights are on their way while the inner columns are computed. Choosing the experts
 * again in every warp costs less than one more kernel that all would wait for. */
#include "cuda/choose.cuh"
#include "cuda/w4.cuh"

enum { MOE_THREADS = 256, MOE_WARPS = 8, INNER_FRAGMENTS = 4, OUTER_FRAGMENTS = 8 };

/* ---- router: logits of n rows in f32, and the shared expert's gate ---- */

/* A block takes two rows of the matrix, four warps each; moves cols + cols/16 bytes a row. */
enum { ROUTER_ROWS = 2, ROUTER_SPLIT = MOE_WARPS / ROUTER_ROWS, INPUTS_HELD = 8 };

/* u = norm(x) in f32, in shared memory; returns the mean square. `held`: the first factors of this
 * thread. */
__device__ static float stage_exact(const float *x, const float *factor,
                                    const float (&held)[INPUTS_HELD], int cols, float eps,
                                    float *small, float *u)
{
    const bool once = cols <= INPUTS_HELD * MOE_THREADS;
    float v[INPUTS_HELD], sum = 0;
#pragma unroll 1
    for (int base = 0; base < cols; base += INPUTS_HELD * MOE_THREADS)
#pragma unroll
        for (int k = 0; k < INPUTS_HELD; k++) {
            const int c = base + k * MOE_THREADS + threadIdx.x;
            v[k] = c < cols ? __ldcg(x + c) : 0;
            sum += v[k] * v[k];
        }
    const float mean = block_sum(sum, small) / (float)cols, r = inverse_root_finite(mean + eps);
#pragma unroll 1
    for (int base = 0; base < cols; base += INPUTS_HELD * MOE_THREADS)
#pragma unroll
        for (int k = 0; k < INPUTS_HELD; k++) {
            const int c = base + k * MOE_THREADS + threadIdx.x;
            if (c < cols)
                u[c] = (once ? v[k] : __ldcg(x + c)) * r * (base == 0 ? held[k] : factor[c]);
        }
    return mean;
}

__global__ void __launch_bounds__(MOE_THREADS) router_kernel(router_args a)
{
    extern __shared__ __align__(16) unsigned char shared[];
    float *small = (float *)shared, *parts = small + 32, *u = parts + 32;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int cols = a.w.cols, row = blockIdx.x * ROUTER_ROWS + warp / ROUTER_SPLIT;
    const int chunks = cols / 16, first = warp % ROUTER_SPLIT * WARP + lane; /* of 16 codes */
    const uint4 *codes = (const uint4 *)(a.w.codes + (size_t)row * cols);
    const uint32_t *pairs = a.w.pairs + (size_t)row * (cols / W4_GROUP);
    uint4 held = make_uint4(0, 0, 0, 0);
    uint32_t held_pair = 0;
    if (row < a.w.rows && first < chunks)
        held = load_weights(codes + first), held_pair = load_weight_word(pairs + first / 4);
    float factors[INPUTS_HELD];
#pragma unroll
    for (int k = 0; k < INPUTS_HELD; k++) {
        const int c = k * MOE_THREADS + threadIdx.x;
        factors[k] = c < cols ? a.factor[c] : 0;
    }
    wait_for_previous_kernel();
    release_next_kernel();
    for (int i = 0; i < a.n; i++) {
        if (i > 0) __syncthreads(); /* the last round's readers are done */
        const float mean =
            stage_exact(a.x + i * a.x_stride, a.factor, factors, cols, a.eps, small, u);
        if (blockIdx.x == 0 && threadIdx.x == 0 && !is_finite(mean))
            atomicMin(a.bad_layer + i, a.layer);
        __syncthreads();
        float sum = 0;
#pragma unroll 1
        for (int c = first; c < chunks && row < a.w.rows; c += ROUTER_SPLIT * WARP) {
            const uint4 q = c == first ? held : codes[c];
            const uint32_t pair = c == first ? held_pair : pairs[c / 4];
            const float scale = bf16_low(pair), bias = bf16_high(pair);
            const uint32_t words[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const float4 v = ((const float4 *)u)[c * 4 + k];
                sum += (scale * (float)(words[k] & 255) + bias) * v.x;
                sum += (scale * (float)(words[k] >> 8 & 255) + bias) * v.y;
                sum += (scale * (float)(words[k] >> 16 & 255) + bias) * v.z;
                sum += (scale * (float)(words[k] >> 24) + bias) * v.w;
            }
        }
        sum = warp_sum(sum);
        if (lane == 0) parts[warp] = sum;
        __syncthreads();
        if (threadIdx.x < ROUTER_ROWS) {
            const int target = blockIdx.x * ROUTER_ROWS + threadIdx.x;
            float total = 0;
            for (int w = 0; w < ROUTER_SPLIT; w++) total += parts[threadIdx.x * ROUTER_SPLIT + w];
            if (target < a.w.rows) a.logits[i * a.w.rows + target] = total;
        }
    }
}

extern "C" cudaError_t launch_router(const router_args *a, cudaStream_t stream)
{
    size_t shared = (64 + (size_t)a->w.cols) * sizeof(float);
    if (shared > 48 << 10) RETURN_IF_FAILED(allow_shared(router_kernel, shared));
    return launch(router_kernel, dim3(divide_up(a->w.rows, ROUTER_ROWS)), MOE_THREADS, shared,
                  stream, true, *a);
}

/* ---- both kinds of columns ---- */

__device__ static inline const unsigned char *strip_at(const unsigned char *matrix, int strip,
                                                       int groups)
{
    return matrix + (size_t)strip * groups * W4_BLOCK_BYTES;
}

/* Groups [first, end) of a strip, F at most. */
template <int F>
__device__ static inline void load_fragments(w4_fragment (&f)[F], const unsigned char *blocks,
                                             int first, int end)
{
#pragma unroll
    for (int j = 0; j < F; j++)
        if (first + j < end) f[j] = load_fragment(blocks + (first + j) * W4_BLOCK_BYTES);
}

/* Groups [first, end) of a strip times the groups of the row at `x` from `at` on, of all its
 * `groups`; the first F are loaded already. */
template <int F>
__device__ static inline strip_sums multiply_strip(w4_fragment (&f)[F], const unsigned char *blocks,
                                                   int first, int end, unsigned char *x, int groups,
                                                   int at)
{
    strip_sums sums;
    sums.low = sums.high = 0;
#pragma unroll 1
    for (int g = first; g < end; g += F) {
        if (g > first) load_fragments(f, blocks, g, end);
#pragma unroll
        for (int j = 0; j < F; j++)
            if (g + j < end) multiply_fragment<1>(f[j], x, groups, 0, at + g + j, sums);
    }
    return sums;
}

/* ---- inner columns: h = silu(gate) * up of the chosen experts and the shared one ---- */

/* A block takes a strip (8 inner columns) of one expert of one row, all groups split over its
 * warps. Moves 0.5625 bytes a weight, and the input row (4 cols bytes, from L2). */
__global__ void __launch_bounds__(MOE_THREADS, 4) expert_inner_kernel(expert_args a)
{
    extern __shared__ __align__(16) unsigned char shared[];
    const int width = a.inner.rows / 2, groups = a.inner.cols / W4_GROUP;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    float *small = (float *)shared, *parts = small + 32; // [32], [8 warps][16]
    unsigned char *x = (unsigned char *)(parts + MOE_WARPS * 16);
    const int strips = width / 8, row = blockIdx.y, unit = blockIdx.x;
    const bool routed = unit < a.k * strips;
    const int slot = routed ? unit / strips : a.k;
    const int strip = routed ? unit % strips : unit - a.k * strips;
    const int per = (groups + MOE_WARPS - 1) / MOE_WARPS, first = warp * per;
    const int end = min(first + per, groups);
    w4_fragment f[INNER_FRAGMENTS];
    const unsigned char *blocks = strip_at(a.shared_inner.blocks, strip, groups);
    if (!routed) load_fragments(f, blocks, first, end);
    float2 factors[AT_ONCE];
    load_factors(factors, a.factor, groups);
    stage_norm(rounded_row_at(x, groups, 0), a.x + row * a.x_stride, a.factor, factors, groups,
               a.eps, small);
    wait_for_previous_kernel();
    release_next_kernel();
    if (routed) {
        const float *logits = a.logits + row * (a.n_experts + 1);
        const int expert = chosen(choose_experts(logits, a.n_experts, slot + 1), slot);
        blocks = strip_at(a.inner.blocks + (size_t)expert * a.inner_bytes, strip, groups);
        load_fragments(f, blocks, first, end);
    }
    __syncthreads();
    const strip_sums sums = multiply_strip(f, blocks, first, end, x, groups, 0);
    if (lane % 4 == 0) {
        parts[warp * 16 + lane / 4] = sums.low;
        parts[warp * 16 + lane / 4 + 8] = sums.high;
    }
    __syncthreads();
    if (threadIdx.x < 8) {
        float gate = 0, up = 0;
        for (int w = 0; w < MOE_WARPS; w++) {
            gate += parts[w * 16 + threadIdx.x];
            up += parts[w * 16 + threadIdx.x + 8];
        }
        a.h[row * a.h_stride + slot * width + strip * 8 + threadIdx.x] = silu(gate) * up;
    }
}

extern "C" cudaError_t launch_expert_inner(const expert_args *a, cudaStream_t stream)
{
    size_t shared =
        (32 + MOE_WARPS * 16) * sizeof(float) + rounded_row_bytes(a->inner.cols / W4_GROUP);
    unsigned units = (unsigned)(a->k * (a->inner.rows / 16) + a->shared_inner.rows / 16);
    if (shared > 48 << 10) RETURN_IF_FAILED(allow_shared(expert_inner_kernel, shared));
    return launch(expert_inner_kernel, dim3(units, (unsigned)a->n), MOE_THREADS, shared, stream,
                  true, *a);
}

/* ---- outer columns: x += sum over the slots in order of weight * down h, + the shared one ---- */

/* A block takes a strip of 16 rows of one row of the step; a warp takes slots in turn. Moves 0.5625
 * bytes a weight; every block reads all of h (4 (k F + Fs) bytes, from L2). */
enum { OUTER_WARPS = 9, OUTER_THREADS = OUTER_WARPS * WARP };

__global__ void __launch_bounds__(OUTER_THREADS, 2) expert_outer_kernel(expert_args a)
{
    extern __shared__ __align__(16) unsigned char shared[];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int groups = a.outer.cols / W4_GROUP, shared_groups = a.shared_outer.cols / W4_GROUP;
    const int all = a.k * groups + shared_groups, row = blockIdx.y, strip = blockIdx.x;
    float *parts = (float *)shared, *weights = parts + (a.k + 1) * 16; // [k + 1][16], [64]
    unsigned char *h = (unsigned char *)(weights + 64);
    const float *logits = a.logits + row * (a.n_experts + 1);
    w4_fragment f[OUTER_FRAGMENTS];
    const choice c = choose_experts(logits, a.n_experts, a.k);
    const unsigned char *blocks = strip_at(a.shared_outer.blocks, strip, shared_groups);
    if (warp < a.k)
        blocks = strip_at(a.outer.blocks + (size_t)chosen(c, warp) * a.outer_bytes, strip, groups);
    if (warp <= a.k) load_fragments(f, blocks, 0, warp < a.k ? groups : shared_groups);
    if (warp == 0) weigh_experts(c, logits, a.n_experts, a.k, weights);
    wait_for_previous_kernel();
    release_next_kernel();
    stage_plain(rounded_row_at(h, all, 0), a.h + row * a.h_stride, all);
    __syncthreads();
#pragma unroll 1
    for (int slot = warp; slot <= a.k; slot += OUTER_WARPS) {
        const bool routed = slot < a.k;
        const int n = routed ? groups : shared_groups;
        if (slot > warp) {
            blocks = strip_at(a.shared_outer.blocks, strip, shared_groups);
            if (routed)
                blocks = strip_at(a.outer.blocks + (size_t)chosen(c, slot) * a.outer_bytes, strip,
                                  groups);
            load_fragments(f, blocks, 0, n);
        }
        const strip_sums sums = multiply_strip(f, blocks, 0, n, h, all, slot * groups);
        if (lane % 4 == 0) {
            parts[slot * 16 + lane / 4] = sums.low;
            parts[slot * 16 + lane / 4 + 8] = sums.high;
        }
    }
    __syncthreads();
    if (threadIdx.x < 16) {
        float *x = a.x_out + row * a.x_stride + strip * W4_STRIP_ROWS + threadIdx.x;
        float sum = __ldcg(x);
#pragma unroll 1
        for (int slot = 0; slot < a.k; slot++)
            sum += weights[slot] * parts[slot * 16 + threadIdx.x];
        *x = sum + sigmoid_finite(__ldcg(logits + a.n_experts)) * parts[a.k * 16 + threadIdx.x];
    }
}

extern "C" cudaError_t launch_expert_outer(const expert_args *a, cudaStream_t stream)
{
    int all = (a->k * a->outer.cols + a->shared_outer.cols) / W4_GROUP;
    size_t shared = (size_t)(a->k + 1) * 64 + 64 * sizeof(float) + rounded_row_bytes(all);
    if (shared > 48 << 10) RETURN_IF_FAILED(allow_shared(expert_outer_kernel, shared));
    return launch(expert_outer_kernel,
                  dim3((unsigned)a->outer.rows / W4_STRIP_ROWS, (unsigned)a->n), OUTER_THREADS,
                  shared, stream, true, *a);
}
