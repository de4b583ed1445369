/* Decode: the mixture of experts in three steps: router, inner columns, outer columns. Each row
 * reads its experts for itself.
 *
 * Each does before await_input what it can: by then every step but the one before it is done. So
 * the inner columns' input is ready while the router runs, and the outer columns' weights are on
 * their way while the inner columns are computed. Choosing the experts again in every block costs
 * less than one more step that all would wait for. */
#ifndef CALLA_CUDA_MOE_CUH
#define CALLA_CUDA_MOE_CUH

#include "cuda/choose.cuh"
#include "cuda/order.cuh"
#include "cuda/w4.cuh"

enum { MOE_WARPS = BLOCK_WARPS, MOE_THREADS = MOE_WARPS * WARP, MOE_FRAGMENTS = 8 };

/* What of the shape is known when compiling: columns and experts a token, or 0. */
struct any_shape {
    enum { HIDDEN = 0, MIXED = 0, WIDTH = 0, CHOSEN = 0 };
};
struct large_shape { /* of the 35B */
    enum { HIDDEN = TOKEN_HIDDEN, MIXED = 4096, WIDTH = TOKEN_WIDTH, CHOSEN = TOKEN_CHOSEN };
};

/* ---- router: logits of n rows in f32, and the shared expert's gate ---- */

/* A block takes two rows of the matrix, four warps each; moves cols + cols/16 bytes a row. */
enum { ROUTER_ROWS = 2, ROUTER_SPLIT = MOE_WARPS / ROUTER_ROWS, INPUTS_HELD = 8 };

/* u = norm(x) in f32, in shared memory; returns the mean square. `held`: the first factors of this
 * thread. */
__device__ static __forceinline__ float stage_exact(const float *x, const float *factor,
                                                    const float (&held)[INPUTS_HELD], int cols,
                                                    float eps, float *small, float *u)
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
    const float mean = block_sum<MOE_WARPS>(sum, small) / (float)cols,
                r = inverse_root_finite(mean + eps);
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

template <typename SHAPE, typename ORDER>
__device__ static __forceinline__ void router_block(const router_args &a, int block,
                                                    unsigned char *shared, const ORDER &order)
{
    float *small = (float *)shared, *parts = small + 32, *u = parts + 32;
    const int lane = threadIdx.x % WARP, warp = block_warp();
    const int cols = known_or(SHAPE::HIDDEN, a.w.cols),
              row = block * ROUTER_ROWS + warp / ROUTER_SPLIT;
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
    order.await_input();
    for (int i = 0; i < a.n; i++) {
        if (i > 0) __syncthreads(); /* the last round's readers are done */
        const float mean =
            stage_exact(a.x + i * a.x_stride, a.factor, factors, cols, a.eps, small, u);
        if (block == 0 && threadIdx.x == 0 && !is_finite(mean)) atomicMin(a.bad_layer + i, a.layer);
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
            const int target = block * ROUTER_ROWS + threadIdx.x;
            float total = 0;
            for (int w = 0; w < ROUTER_SPLIT; w++) total += parts[threadIdx.x * ROUTER_SPLIT + w];
            if (target < a.w.rows) a.logits[i * a.w.rows + target] = total;
        }
    }
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

/* The same of F groups from `first` on, all loaded; those of the strip at `next`, if there is one,
 * take their places. */
template <int F>
__device__ static __forceinline__ strip_sums multiply_held(w4_fragment (&f)[F], int first,
                                                           const unsigned char *next,
                                                           unsigned char *x, int groups)
{
    strip_sums sums;
    sums.low = sums.high = 0;
#pragma unroll
    for (int j = 0; j < F; j++) {
        multiply_fragment<1>(f[j], x, groups, 0, first + j, sums);
        if (next) f[j] = load_fragment(next + (first + j) * W4_BLOCK_BYTES);
    }
    return sums;
}

/* ---- inner columns: h = silu(gate) * up of the chosen experts and the shared one ---- */

/* A block takes two strips of one expert of one row, four warps each, and then the next two: 32
 * inner columns. Moves 0.5625 bytes a weight, and the input row (4 cols bytes, from L2). */
enum {
    INNER_ROUNDS = 2,
    INNER_AT_ONCE = 2,
    INNER_STRIPS = INNER_ROUNDS * INNER_AT_ONCE,
    INNER_SPLIT = MOE_WARPS / INNER_AT_ONCE,
};

template <typename SHAPE, typename ORDER>
__device__ static __forceinline__ void expert_inner_block(const expert_args &a, int unit, int row,
                                                          unsigned char *shared, const ORDER &order)
{
    const int groups = known_or(SHAPE::HIDDEN, a.inner.cols) / W4_GROUP;
    const int width = known_or(SHAPE::WIDTH, a.inner.rows / 2), k = known_or(SHAPE::CHOSEN, a.k);
    const int lane = threadIdx.x % WARP, warp = block_warp();
    float *small = (float *)shared, *parts = small + 32;                   // [32], [rounds][8][16]
    int *expert_of_block = (int *)(parts + INNER_ROUNDS * MOE_WARPS * 16); // [4]
    unsigned char *x = (unsigned char *)(expert_of_block + 4);
    const int units = width / 8 / INNER_STRIPS;
    const bool routed = unit < k * units;
    const int slot = routed ? unit / units : k;
    const int first_strip = (unit - slot * units) * INNER_STRIPS;
    const int strip = first_strip + warp / INNER_SPLIT;
    const int per = (groups + INNER_SPLIT - 1) / INNER_SPLIT, first = warp % INNER_SPLIT * per;
    const int end = min(first + per, groups);
    w4_fragment f[MOE_FRAGMENTS];
    const unsigned char *blocks = strip_at(a.shared_inner.blocks, strip, groups);
    if (!routed) load_fragments(f, blocks, first, end);
    float2 factors[AT_ONCE];
    load_factors(factors, a.factor, groups);
    order.await_older();
    stage_norm(rounded_row_at(x, groups, 0), a.x + row * a.x_stride, a.factor, factors, groups,
               a.eps, small);
    order.await_input();
    if (routed && warp == 0) {
        const float *logits = a.logits + row * (a.n_experts + 1);
        const int expert = chosen(choose_experts(logits, a.n_experts, slot + 1), slot);
        if (lane == 0) *expert_of_block = expert;
    }
    __syncthreads();
    if (routed) {
        blocks = strip_at(a.inner.blocks + (size_t)*expert_of_block * a.inner_bytes, strip, groups);
        load_fragments(f, blocks, first, end);
    }
#pragma unroll
    for (int r = 0; r < INNER_ROUNDS; r++) {
        const unsigned char *next = blocks + (size_t)INNER_AT_ONCE * groups * W4_BLOCK_BYTES;
        strip_sums sums;
        if constexpr (SHAPE::HIDDEN > 0) {
            sums = multiply_held(f, first, r + 1 < INNER_ROUNDS ? next : NULL, x, groups);
        } else {
            sums = multiply_strip(f, blocks, first, end, x, groups, 0);
            if (r + 1 < INNER_ROUNDS) load_fragments(f, next, first, end);
        }
        blocks = next;
        if (lane % 4 == 0) {
            parts[(r * MOE_WARPS + warp) * 16 + lane / 4] = sums.low;
            parts[(r * MOE_WARPS + warp) * 16 + lane / 4 + 8] = sums.high;
        }
    }
    __syncthreads();
    if (threadIdx.x < 8 * INNER_STRIPS) {
        const int column = threadIdx.x % 8, from = threadIdx.x / 8 * INNER_SPLIT;
        float gate = 0, up = 0;
#pragma unroll
        for (int w = from; w < from + INNER_SPLIT; w++) {
            gate += parts[w * 16 + column];
            up += parts[w * 16 + column + 8];
        }
        a.h[row * a.h_stride + slot * width + first_strip * 8 + threadIdx.x] = silu(gate) * up;
    }
}

/* ---- outer columns: x += sum over the slots in order of weight * down h, + the shared one ---- */

/* A block takes a strip of 16 rows of one row of the step; a warp takes slots in turn, and of the
 * shared expert its part of the groups. Moves 0.5625 bytes a weight; every block reads all of h
 * (4 (k F + Fs) bytes, from L2). */
template <typename SHAPE, typename ORDER>
__device__ static __forceinline__ void expert_outer_block(const expert_args &a, int strip, int row,
                                                          unsigned char *shared, const ORDER &order)
{
    const int lane = threadIdx.x % WARP, warp = block_warp();
    const int groups = known_or(SHAPE::WIDTH, a.outer.cols) / W4_GROUP;
    const int shared_groups = known_or(SHAPE::WIDTH, a.shared_outer.cols) / W4_GROUP;
    const int k = known_or(SHAPE::CHOSEN, a.k), all = k * groups + shared_groups;
    float *parts = (float *)shared, *weights = parts + (k + MOE_WARPS) * 16; // [k + 8][16], [64]
    int *experts = (int *)(weights + 64);                                    // [64]
    unsigned char *h = (unsigned char *)(experts + 64);
    const float *logits = a.logits + row * (a.n_experts + 1);
    const int per = (shared_groups + MOE_WARPS - 1) / MOE_WARPS;
    const int begin = min(warp * per, shared_groups), end = min(begin + per, shared_groups);
    w4_fragment f[MOE_FRAGMENTS], of_shared[1];
    const unsigned char *shared_blocks = strip_at(a.shared_outer.blocks, strip, shared_groups);
    load_fragments(of_shared, shared_blocks, begin, end);
    order.await_older();
    if (warp == 0) {
        const choice c = choose_experts(logits, a.n_experts, k);
        if (lane < k) experts[lane] = c.first;
        if (lane + WARP < k) experts[lane + WARP] = c.second;
        weigh_experts(c, logits, a.n_experts, k, weights);
    }
    __syncthreads();
    const unsigned char *blocks = a.outer.blocks;
    if (warp < k) {
        blocks = strip_at(a.outer.blocks + (size_t)experts[warp] * a.outer_bytes, strip, groups);
        load_fragments(f, blocks, 0, groups);
    }
    order.await_input();
    stage_plain<(SHAPE::CHOSEN + 1) * SHAPE::WIDTH / W4_GROUP>(rounded_row_at(h, all, 0),
                                                               a.h + row * a.h_stride, all);
    __syncthreads();
    const auto put = [&](int slot, const strip_sums &sums) {
        if (lane % 4 != 0) return;
        parts[slot * 16 + lane / 4] = sums.low;
        parts[slot * 16 + lane / 4 + 8] = sums.high;
    };
#pragma unroll 1
    for (int slot = warp; slot < k; slot += MOE_WARPS) {
        if (slot > warp) {
            blocks =
                strip_at(a.outer.blocks + (size_t)experts[slot] * a.outer_bytes, strip, groups);
            load_fragments(f, blocks, 0, groups);
        }
        put(slot, multiply_strip(f, blocks, 0, groups, h, all, slot * groups));
    }
    put(k + warp, multiply_strip(of_shared, shared_blocks, begin, end, h, all, k * groups));
    __syncthreads();
    if (threadIdx.x < 16) {
        float *x = a.x_out + row * a.x_stride + strip * W4_STRIP_ROWS + threadIdx.x;
        float sum = __ldcg(x), of_all = 0;
#pragma unroll 4
        for (int slot = 0; slot < k; slot++) sum += weights[slot] * parts[slot * 16 + threadIdx.x];
#pragma unroll
        for (int w = 0; w < MOE_WARPS; w++) of_all += parts[(k + w) * 16 + threadIdx.x];
        *x = sum + sigmoid_finite(__ldcg(logits + a.n_experts)) * of_all;
    }
}

static inline size_t router_shared_bytes(const router_args *a)
{
    return (64 + (size_t)a->w.cols) * sizeof(float);
}
static inline size_t inner_shared_bytes(const expert_args *a)
{
    return (32 + INNER_ROUNDS * MOE_WARPS * 16 + 4) * sizeof(float) +
           rounded_row_bytes(a->inner.cols / W4_GROUP);
}
static inline size_t outer_shared_bytes(const expert_args *a)
{
    const int all = (a->k * a->outer.cols + a->shared_outer.cols) / W4_GROUP;
    return ((size_t)(a->k + MOE_WARPS) * 16 + 128) * sizeof(float) + rounded_row_bytes(all);
}
static inline int router_blocks(const router_args *a)
{
    return (int)divide_up(a->w.rows, ROUTER_ROWS);
}
static inline int inner_blocks(const expert_args *a)
{
    return (a->k * (a->inner.rows / 16) + a->shared_inner.rows / 16) / INNER_STRIPS;
}
static inline int outer_blocks(const expert_args *a)
{
    return a->outer.rows / W4_STRIP_ROWS;
}

#endif
