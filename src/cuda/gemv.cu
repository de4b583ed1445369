/* Decode: a 4-bit matrix times one to eight input rows, with what comes before it (a norm, the
 * gate of the delta rule) and after it (the residual sum).
 *
 * Moves 0.5625 bytes a weight once whatever n, and every block reads the input rows (4 cols bytes
 * each, from L2). 2 n operations a weight, as bytes in two planes.
 *
 * A block has 8 warps. `split` of them share a strip of 16 rows, each with a range of its groups,
 * so that all of a strip is in flight at once; their sums are added in a fixed order. */
#include "cuda/w4.cuh"

enum { GEMV_THREADS = 256, GEMV_WARPS = 8, FRAGMENTS = 8 };

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

/* Heads of 128: factor (o r) silu(z), rounded. A warp takes two heads at a time. */
__device__ static void stage_gated(const gemv_args &a, int i, const rounded_row &row,
                                   const float2 (&f)[AT_ONCE])
{
    const int warp = threadIdx.x / WARP, groups = a.w.cols / W4_GROUP;
    const float *x = a.x + i * a.x_stride, *z = a.gate + i * a.gate_stride;
#pragma unroll 1
    for (int g = AT_ONCE * warp; g < groups; g += AT_ONCE * GEMV_WARPS) {
        float2 v[AT_ONCE], gate[AT_ONCE];
        load_groups(v, x, groups, g, 1);
        load_groups(gate, z, groups, g, 1);
        float r[AT_ONCE / 2];
#pragma unroll
        for (int h = 0; h < AT_ONCE / 2; h++) {
            const float2 p = v[2 * h], q = v[2 * h + 1];
            const float sum = warp_sum(p.x * p.x + p.y * p.y + (q.x * q.x + q.y * q.y));
            r[h] = inverse_root_finite(sum / GDN_HEAD_DIM + a.eps);
        }
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            v[u].x = f[u % 2].x * (v[u].x * r[u / 2]) * silu(gate[u].x);
            v[u].y = f[u % 2].y * (v[u].y * r[u / 2]) * silu(gate[u].y);
        }
        round_groups(row, groups, g, 1, v);
    }
}

/* Rounds row i of the input into shared memory. Ends without a barrier. */
template <int INPUT>
__device__ static void stage_input(const gemv_args &a, int i, const rounded_row &row,
                                   const float2 (&factors)[AT_ONCE], float *small)
{
    const int groups = a.w.cols / W4_GROUP;
    const float *x = a.x + i * a.x_stride;
    if (INPUT == GEMV_INPUT_NORM) {
        if (i > 0) __syncthreads(); /* `small` is free */
        const float mean = stage_norm(row, x, a.factor, factors, groups, a.eps, small);
        if (blockIdx.x == 0 && threadIdx.x == 0 && !is_finite(mean))
            atomicMin(a.bad_layer + i, a.layer);
    } else if (INPUT == GEMV_INPUT_GATED_NORM) {
        stage_gated(a, i, row, factors);
    } else {
        stage_plain(row, x, groups);
    }
}

template <int N, int INPUT, int OUTPUT>
__global__ void __launch_bounds__(GEMV_THREADS, N <= 2 ? 3 : 2)
    gemv_kernel(gemv_args a, int log_split)
{
    enum { PASSES = N > 4 ? 2 : 1 }; /* four inputs each */
    extern __shared__ __align__(16) unsigned char shared[];
    gemv_shared s;
    s.small = (float *)shared;
    s.parts = s.small + 32;
    s.rows = (unsigned char *)(s.parts + 2 * GEMV_WARPS * N * 16);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int groups = a.w.cols / W4_GROUP, split = 1 << log_split;
    const int per = (groups + split - 1) >> log_split;
    const int strips = (a.w.rows + W4_STRIP_ROWS - 1) / W4_STRIP_ROWS;
    const int strips_per_block = GEMV_WARPS >> log_split;
    const int first = (warp & (split - 1)) * per, end = min(first + per, groups);
    int strip = blockIdx.x * strips_per_block + (warp >> log_split);
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
    wait_for_previous_kernel();
    release_next_kernel();
#pragma unroll 1
    for (int i = 0; i < a.n; i++)
        stage_input<INPUT>(a, i, rounded_row_at(s.rows, groups, i), factors, s.small);
    __syncthreads();
    for (int base = blockIdx.x * strips_per_block, round = 0; base < strips;
         base += gridDim.x * strips_per_block, round++) {
        strip = base + (warp >> log_split);
        strip_sums sums[PASSES];
#pragma unroll
        for (int p = 0; p < PASSES; p++) sums[p].low = sums[p].high = 0;
        blocks = a.w.blocks + (size_t)strip * groups * W4_BLOCK_BYTES;
#pragma unroll 1
        for (int g = first; g < end && strip < strips; g += FRAGMENTS) {
            if (round > 0 || g > first) {
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
            }
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
        for (int j = threadIdx.x; j < strips_per_block * a.n * 16; j += GEMV_THREADS) {
            int local = j / (a.n * 16), i = j / 16 % a.n;
            int row = (base + local) * W4_STRIP_ROWS + j % 16;
            float sum = 0;
#pragma unroll 1
            for (int w = 0; w < split; w++)
                sum += parts[((local * split + w) * N + i) * 16 + j % 16];
            if (row >= a.w.rows) continue;
            float *y = a.y + i * a.y_stride + row;
            *y = OUTPUT == GEMV_OUTPUT_ADD ? *y + sum : sum;
        }
    }
}

/* Warps that share a strip: a function of the columns alone, since it orders the sum. */
static int log_split_of(int groups)
{
    int log_split = 0;
    while (1 << log_split < GEMV_WARPS && groups >> log_split > FRAGMENTS) log_split++;
    return log_split;
}

template <int N, int INPUT, int OUTPUT>
static cudaError_t start(const gemv_args *a, int n_blocks_at_once, cudaStream_t stream)
{
    int log_split = log_split_of(a->w.cols / W4_GROUP);
    unsigned blocks = divide_up(divide_up(a->w.rows, W4_STRIP_ROWS), GEMV_WARPS >> log_split);
    if (blocks > (unsigned)n_blocks_at_once) blocks = (unsigned)n_blocks_at_once;
    size_t shared = gemv_shared_bytes(N, a->w.cols);
    if (shared > 48 << 10) RETURN_IF_FAILED(allow_shared(gemv_kernel<N, INPUT, OUTPUT>, shared));
    return launch(gemv_kernel<N, INPUT, OUTPUT>, dim3(blocks), GEMV_THREADS, shared, stream, true,
                  *a, log_split);
}

template <int INPUT, int OUTPUT>
static cudaError_t start_n(const gemv_args *a, int at_once, cudaStream_t stream)
{
    if (a->n == 1) return start<1, INPUT, OUTPUT>(a, at_once, stream);
    if (a->n == 2) return start<2, INPUT, OUTPUT>(a, at_once, stream);
    if (a->n <= 4) return start<4, INPUT, OUTPUT>(a, at_once, stream);
    return start<8, INPUT, OUTPUT>(a, at_once, stream);
}

extern "C" cudaError_t launch_gemv(const gemv_args *a, int n_multiprocessors, cudaStream_t stream)
{
    /* Enough for every kernel of a layer to run in one wave; the head goes round. */
    int at_once = 3 * n_multiprocessors;
    if (a->input == GEMV_INPUT_NORM)
        return start_n<GEMV_INPUT_NORM, GEMV_OUTPUT_STORE>(a, at_once, stream);
    if (a->input == GEMV_INPUT_GATED_NORM)
        return start_n<GEMV_INPUT_GATED_NORM, GEMV_OUTPUT_ADD>(a, at_once, stream);
    return start_n<GEMV_INPUT_PLAIN, GEMV_OUTPUT_ADD>(a, at_once, stream);
}
