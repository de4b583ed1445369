/* Decode: a 4-bit matrix times one to eight input rows, with what comes before it (a norm, the
 * gate of the delta rule) and after it (the residual sum).
 *
 * Moves 0.5625 bytes a weight once whatever n, and every block reads the input rows (4 cols bytes
 * each, from L2). 2 n operations a weight, as bytes in two planes.
 *
 * A block has 8 warps. `split` of them share a strip of 16 rows, each with a range of its groups,
 * so that all of a strip is in flight at once; their sums are added in a fixed order. */
#ifndef CALLA_CUDA_GEMV_CUH
#define CALLA_CUDA_GEMV_CUH

#include "cuda/order.cuh"
#include "cuda/w4.cuh"

enum { GEMV_WARPS = BLOCK_WARPS, GEMV_THREADS = GEMV_WARPS * WARP, FRAGMENTS = 8 };

struct gemv_shared {
    float *small; // [32]
    float *parts; // [2][8 warps][N][16]
    unsigned char *rows;
};

static size_t gemv_shared_bytes(int variant, int cols)
{
    return (32 + 2 * GEMV_WARPS * (size_t)variant * 16) * sizeof(float) +
           (size_t)variant * rounded_row_bytes(cols / W4_GROUP);
}

/* Heads of 128: factor (o r) silu(z), rounded. A warp takes U / 2 heads at a time. */
template <int U>
__device__ static __forceinline__ void stage_gated(const gemv_args &a, int i, int groups,
                                                   const rounded_row &row,
                                                   const float2 (&f)[AT_ONCE])
{
    const int warp = block_warp();
    const float *x = a.x + i * a.x_stride, *z = a.gate + i * a.gate_stride;
#pragma unroll 1
    for (int g = U * warp; g < groups; g += U * GEMV_WARPS) {
        float2 v[U], gate[U];
        load_groups(v, x, groups, g, 1);
        load_groups(gate, z, groups, g, 1);
        float r[U / 2];
#pragma unroll
        for (int h = 0; h < U / 2; h++) {
            const float2 p = v[2 * h], q = v[2 * h + 1];
            const float sum = warp_sum(p.x * p.x + p.y * p.y + (q.x * q.x + q.y * q.y));
            r[h] = inverse_root_finite(sum / GDN_HEAD_DIM + a.eps);
        }
#pragma unroll
        for (int u = 0; u < U; u++) {
            v[u].x = f[u % 2].x * (v[u].x * r[u / 2]) * silu(gate[u].x);
            v[u].y = f[u % 2].y * (v[u].y * r[u / 2]) * silu(gate[u].y);
        }
        round_groups(row, groups, g, 1, v);
    }
}

/* Rounds row i of the input into shared memory. Ends without a barrier. */
template <int INPUT, int COLS>
__device__ static __forceinline__ void stage_input(const gemv_args &a, int block, int i, int groups,
                                                   const rounded_row &row,
                                                   const float2 (&factors)[AT_ONCE], float *small)
{
    enum { OF_WARP = COLS / W4_GROUP / GEMV_WARPS }; /* groups, known when compiling */
    const float *x = a.x + i * a.x_stride;
    if (INPUT == GEMV_INPUT_NORM) {
        if (i > 0) __syncthreads(); /* `small` is free */
        const float mean = stage_norm(row, x, a.factor, factors, groups, a.eps, small);
        if (block == 0 && threadIdx.x == 0 && !is_finite(mean)) atomicMin(a.bad_layer + i, a.layer);
    } else if (INPUT == GEMV_INPUT_GATED_NORM) {
        stage_gated<OF_WARP ? OF_WARP : AT_ONCE>(a, i, groups, row, factors);
    } else {
        stage_plain<COLS / W4_GROUP>(row, x, groups);
    }
}

/* Warps that share a strip: a function of the columns alone, since it orders the sum. */
__host__ __device__ static constexpr int log_split_of(int groups)
{
    int log_split = 0;
    while (1 << log_split < GEMV_WARPS && groups >> log_split > FRAGMENTS) log_split++;
    return log_split;
}

/* Blocks that do all rows. */
static inline int gemv_blocks(const w4_matrix *w)
{
    const int log_split = log_split_of(w->cols / W4_GROUP);
    return (int)divide_up(divide_up(w->rows, W4_STRIP_ROWS), GEMV_WARPS >> log_split);
}

/* What block number `block` of `n_blocks` does. COLS: the matrix's columns, or 0 if they are not
 * known when compiling; if they are, a warp's part of a strip is in its registers, and the next
 * strip's takes its place as it is used. */
template <int N, int INPUT, int OUTPUT, int COLS, typename ORDER>
__device__ static __forceinline__ void gemv_block(const gemv_args &a, int block, int n_blocks,
                                                  unsigned char *shared, const ORDER &order)
{
    enum { PASSES = N > 4 ? 2 : 1 }; /* four inputs each */
    static_assert(COLS / W4_GROUP <= FRAGMENTS * GEMV_WARPS, "a strip is in registers");
    gemv_shared s;
    s.small = (float *)shared;
    s.parts = s.small + 32;
    s.rows = (unsigned char *)(s.parts + 2 * GEMV_WARPS * N * 16);
    const int lane = threadIdx.x % WARP, warp = block_warp();
    const int groups = known_or(COLS, a.w.cols) / W4_GROUP;
    const int log_split = log_split_of(groups), split = 1 << log_split;
    const int per = (groups + split - 1) >> log_split;
    const int strips = (a.w.rows + W4_STRIP_ROWS - 1) / W4_STRIP_ROWS;
    const int strips_per_block = GEMV_WARPS >> log_split;
    const int first = (warp & (split - 1)) * per, end = min(first + per, groups);
    int strip = block * strips_per_block + (warp >> log_split);
    w4_fragment f[FRAGMENTS];
    const unsigned char *blocks = a.w.blocks + (size_t)strip * groups * W4_BLOCK_BYTES;
    /* The first weights are on their way before the input exists. */
    if (strip < strips) {
#pragma unroll
        for (int k = 0; k < FRAGMENTS; k++)
            if (first + k < end) f[k] = load_fragment(blocks + (first + k) * W4_BLOCK_BYTES);
    }
    float2 factors[AT_ONCE]; /* of the first groups; of a head, twice */
    if (INPUT == GEMV_INPUT_NORM) load_factors(factors, a.factor, groups);
    if (INPUT == GEMV_INPUT_GATED_NORM)
        for (int k = 0; k < 2; k++) factors[k] = ((const float2 *)a.factor)[k * WARP + lane];
    order.await_input();
#pragma unroll 1
    for (int i = 0; i < (N == 1 ? 1 : a.n); i++)
        stage_input<INPUT, COLS>(a, block, i, groups, rounded_row_at(s.rows, groups, i), factors,
                                 s.small);
    __syncthreads();
    for (int base = block * strips_per_block, round = 0; base < strips;
         base += n_blocks * strips_per_block, round++) {
        strip = base + (warp >> log_split);
        strip_sums sums[PASSES];
#pragma unroll
        for (int p = 0; p < PASSES; p++) sums[p].low = sums[p].high = 0;
        blocks = a.w.blocks + (size_t)strip * groups * W4_BLOCK_BYTES;
        const int next = strip + n_blocks * strips_per_block;
        const unsigned char *ahead = a.w.blocks + (size_t)next * groups * W4_BLOCK_BYTES;
#pragma unroll 1
        for (int g = first; g < end && (COLS || strip < strips); g += FRAGMENTS) {
            if (!COLS && (round > 0 || g > first)) {
#pragma unroll
                for (int k = 0; k < FRAGMENTS; k++)
                    if (g + k < end) f[k] = load_fragment(blocks + (g + k) * W4_BLOCK_BYTES);
            }
#pragma unroll
            for (int k = 0; k < FRAGMENTS; k++) {
                if (g + k >= end) continue;
#pragma unroll
                for (int p = 0; p < PASSES; p++)
                    multiply_fragment<N / PASSES>(f[k], s.rows, groups, 4 * p, g + k, sums[p]);
                if (COLS && next < strips)
                    f[k] = load_fragment(ahead + (first + k) * W4_BLOCK_BYTES);
            }
            if (COLS) break;
        }
        float *parts = s.parts + (round & 1) * GEMV_WARPS * N * 16;
#pragma unroll
        for (int p = 0; p < PASSES; p++) {
            const int i = 4 * p + lane % 4;
            if (i >= N) continue;
            parts[(warp * N + i) * 16 + lane / 4] = sums[p].low;
            parts[(warp * N + i) * 16 + lane / 4 + 8] = sums[p].high;
        }
        __syncthreads();
        const int n = N == 1 ? 1 : a.n;
        for (int j = threadIdx.x; j < strips_per_block * n * 16; j += GEMV_THREADS) {
            const int local = j / (n * 16), i = j / 16 % n;
            const int row = (base + local) * W4_STRIP_ROWS + j % 16;
            float sum = 0;
#pragma unroll 4
            for (int w = 0; w < split; w++)
                sum += parts[((local * split + w) * N + i) * 16 + j % 16];
            if (row >= a.w.rows) continue;
            float *y = a.y + i * a.y_stride + row;
            *y = OUTPUT == GEMV_OUTPUT_ADD ? __ldcg(y) + sum : sum;
        }
    }
}

#endif
