/* What of a chunk of the recurrence does not depend on the state (prefill_gdn_chunk.cu): K and Q,
 * convolved and normed, as sums of two bf16; of every value head T = (I + A)^-1, with A_ij = beta_i
 * e^(G_i - G_j) K_i K_j for i > j, P_ij = e^(G_i - G_j) Q_i K_j for i >= j, and the gates. */
#include "cuda/prefill_gdn_chunk.cuh"

enum {
    PREPARE_THREADS = 256,
    PREPARE_HEADS = 2, /* value heads at a time */
    TILE = 16,         /* T is computed in blocks of 16, then of 32 */
    PART = CHUNK / 2,
    SQUARE_PITCH = CHUNK + 4,
    PART_PITCH = PART + 4,
};

/* What takes the place of the keys once their products are done. */
typedef struct prepare_squares_shared {
    unsigned char p[PREPARE_HEADS][2][SQUARE_PLANE];
    float product[PREPARE_HEADS][PART][PART_PITCH]; /* A's block below the diagonal times T's */
} prepare_squares_shared;

typedef struct prepare_shared {
    union {
        key_parts keys;
        prepare_squares_shared squares;
    };
    float a[PREPARE_HEADS][CHUNK][SQUARE_PITCH]; /* A, and then T in its place */
    float sum[PREPARE_HEADS][CHUNK];             /* G */
    float beta[PREPARE_HEADS][CHUNK];
} prepare_shared;

/* Eight numbers as 16-byte pieces of both parts. */
static __device__ __forceinline__ void split_piece(const float4 &x, const float4 &y, uint4 &high,
                                                   uint4 &low)
{
    split_pair(x.x, x.y, high.x, low.x);
    split_pair(x.z, x.w, high.y, low.y);
    split_pair(y.x, y.y, high.z, low.z);
    split_pair(y.z, y.w, high.w, low.w);
}

/* Four warps convolve and norm q or k of a key head, 16 rows each, all of whose loads are under way
 * before the first is used, and write both parts to shared memory and to the workspace. The chunk's
 * n rows begin with the call's row `begin`; those behind are zero. */
static __device__ __forceinline__ void convolve_rows(const prefill_gdn_args &a, int32_t begin,
                                                     int32_t n, int32_t unit,
                                                     unsigned char (*shared)[KEY_PLANE],
                                                     unsigned char (*out)[KEY_PLANE])
{
    enum { ROWS = CHUNK / 4 };
    int lane = threadIdx.x % 32, first = threadIdx.x / 32 % 4 * ROWS;
    int64_t channels = (int64_t)(2 * a.n_key_heads + a.n_value_heads) * HEAD;
    int32_t channel = unit * HEAD + lane * 4;
    gdn_taps taps = gdn_load_taps(a, channels, channel);
    float4 rows[TAPS - 1 + ROWS];
#pragma unroll
    for (int i = 0; i < TAPS - 1 + ROWS; i++) {
        int32_t t = begin + min(first + i - (TAPS - 1), n - 1);
        rows[i] = i < TAPS - 1 ? gdn_channel_row(a, channels, t, channel)
                               : *(const float4 *)(a.projected + t * a.projected_stride + channel);
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        float4 f = gdn_convolve(taps, &rows[i]);
        f = float4{silu_fast(f.x), silu_fast(f.y), silu_fast(f.z), silu_fast(f.w)};
        f = gdn_normed(f, unit < a.n_key_heads);
        if (first + i >= n) f = float4{0, 0, 0, 0};
        uint2 high, low;
        split_pair(f.x, f.y, high.x, low.x);
        split_pair(f.z, f.w, high.y, low.y);
        uint32_t at = key_piece(first + i, lane / 2) + lane % 2 * 8;
        *(uint2 *)(shared[0] + at) = high, *(uint2 *)(out[0] + at) = high;
        *(uint2 *)(shared[1] + at) = low, *(uint2 *)(out[1] + at) = low;
    }
}

/* The strip of 16 rows of a warp: of K K^T, or by the last four warps, from the last strip on, of
 * Q K^T. So every scheduler has as much to do. */
static __device__ __forceinline__ int warp_strip()
{
    int warp = threadIdx.x / 32;
    return warp < 4 ? warp : 7 - warp;
}

/* The first 16 PAIRS columns of a strip, left is the planes of K or Q. */
template <int PAIRS>
static __device__ __forceinline__ void multiply_strip(uint32_t left, uint32_t k,
                                                      float (&product)[8][4])
{
    int lane = threadIdx.x % 32;
#pragma unroll 2
    for (int d = 0; d < HEAD / 16; d++) {
        uint32_t at = key_piece((PAIRS - 1) * 16 + lane % 16, 2 * d + lane / 16), a[2][4];
        for (int i = 0; i < 2; i++) load_matrix4(a[i], left + i * KEY_PLANE + at);
        split_operands<PAIRS> b;
#pragma unroll
        for (int p = 0; p < PAIRS; p++) {
            uint32_t from = key_piece(p * 16 + lane / 16 * 8 + lane % 8, 2 * d + lane / 8 % 2);
            load_matrix4(b.high[p], k + from);
            load_matrix4(b.low[p], k + KEY_PLANE + from);
        }
        multiply_split<PAIRS>(product, a, b);
    }
}

/* A warp's strip, but for what is above the diagonal's tile. */
static __device__ __forceinline__ void multiply_keys(const key_parts &keys, float (&product)[8][4])
{
    uint32_t k = shared_address(keys.k), left = threadIdx.x < 128 ? k : shared_address(keys.q);
    switch (warp_strip()) {
    case 0:
        multiply_strip<1>(left, k, product);
        break;
    case 1:
        multiply_strip<2>(left, k, product);
        break;
    case 2:
        multiply_strip<3>(left, k, product);
        break;
    default:
        multiply_strip<4>(left, k, product);
        break;
    }
}

/* A warp's gates of a value head: tokens 2 lane and 2 lane + 1. */
typedef struct gate_pair {
    float g[2], beta[2];
} gate_pair;

static __device__ __forceinline__ gate_pair load_gates(const prefill_gdn_args &a, int32_t begin,
                                                       int32_t n, int32_t head)
{
    int lane = threadIdx.x % 32;
    gate_pair p;
    for (int i = 0; i < 2; i++) {
        int64_t at = (int64_t)(begin + lane * 2 + i) * a.n_value_heads + head;
        p.g[i] = lane * 2 + i < n ? a.decay[at] : 0;
        p.beta[i] = lane * 2 + i < n ? a.beta[at] : 0;
    }
    return p;
}

/* The sums of the decays, and the gates. */
static __device__ void prepare_gates(const gate_pair &p, prepare_shared *s, chunk_gates *out,
                                     int which)
{
    int lane = threadIdx.x % 32;
    float sum = p.g[0] + p.g[1];
    for (int i = 1; i < 32; i <<= 1) {
        float other = __shfl_up_sync(0xffffffffu, sum, i);
        if (lane >= i) sum += other;
    }
    /* The first of a pair must not know the second, which may not be there yet. */
    float before = __shfl_up_sync(0xffffffffu, sum, 1);
    float total = __shfl_sync(0xffffffffu, sum, 31), sums[2] = {(lane ? before : 0) + p.g[0], sum};
    for (int i = 0; i < 2; i++) {
        int t = lane * 2 + i;
        s->sum[which][t] = sums[i];
        s->beta[which][t] = p.beta[i];
        out->growth[t] = expf(sums[i]);
        out->rest[t] = expf(total - sums[i]);
        out->beta[t] = p.beta[i];
    }
}

/* e^x; 0 below 2^-126. Relative error of |x| / 2^23. */
static __device__ __forceinline__ float exp_fast(float x)
{
    float e;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x * 1.4426950408889634f));
    return e;
}

/* A strip of a warp, of A or of P, to shared memory. */
template <bool IS_A>
static __device__ __forceinline__ void prepare_strip(prepare_shared *s, int which,
                                                     const float (&product)[8][4])
{
    int lane = threadIdx.x % 32, strip = warp_strip();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int i = strip * 16 + lane / 4 + h * 8, last = IS_A ? i - 1 : i;
        float sum = s->sum[which][i], factor = IS_A ? s->beta[which][i] : 1.0f, v[16] = {};
#pragma unroll
        for (int c = 0; c < 8; c++) {
            if (c / 2 > strip) break;
            int j = c * 8 + lane % 4 * 2;
            float2 other = *(const float2 *)&s->sum[which][j];
            /* Above the diagonal the exponent may be large. */
            float e0 = exp_fast(j <= last ? sum - other.x : -INFINITY);
            float e1 = exp_fast(j + 1 <= last ? sum - other.y : -INFINITY);
            v[2 * c] = factor * product[c][2 * h] * e0;
            v[2 * c + 1] = factor * product[c][2 * h + 1] * e1;
        }
#pragma unroll
        for (int c = 0; c < 8; c++) {
            if (IS_A) {
                *(float2 *)&s->a[which][i][c * 8 + lane % 4 * 2] =
                    make_float2(v[2 * c], v[2 * c + 1]);
            } else {
                uint32_t high, low, at = square_piece(i, c) + lane % 4 * 4;
                split_pair(v[2 * c], v[2 * c + 1], high, low);
                *(uint32_t *)(s->squares.p[which][0] + at) = high;
                *(uint32_t *)(s->squares.p[which][1] + at) = low;
            }
        }
    }
}

/* A column of the inverse of one of the four blocks of 16 on the diagonal, by forward substitution;
 * 64 threads have one each. A is zero from the diagonal on. */
static __device__ __forceinline__ void invert_tile(const float (*a)[SQUARE_PITCH], float (&t)[TILE])
{
    int column = threadIdx.x % TILE, at = threadIdx.x % 64 / TILE * TILE;
#pragma unroll
    for (int i = 0; i < TILE; i++) {
        float sum[4] = {i == column ? 1.0f : 0.0f, 0, 0, 0};
#pragma unroll
        for (int l = 0; l < i; l += 4) {
            float4 v = *(const float4 *)&a[at + i][at + l];
            sum[0] = fmaf(-v.x, t[l], sum[0]);
            if (l + 1 < i) sum[1] = fmaf(-v.y, t[l + 1], sum[1]);
            if (l + 2 < i) sum[2] = fmaf(-v.z, t[l + 2], sum[2]);
            if (l + 3 < i) sum[3] = fmaf(-v.w, t[l + 3], sum[3]);
        }
        t[i] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
}
static __device__ __forceinline__ void put_tile(float (*a)[SQUARE_PITCH], const float (&t)[TILE])
{
    int column = threadIdx.x % TILE, at = threadIdx.x % 64 / TILE * TILE;
#pragma unroll
    for (int i = 0; i < TILE; i++) a[at + i][at + column] = t[i];
}

/* sums = row x times COLUMNS columns of the N rows y. */
template <int N, int COLUMNS, int PITCH>
static __device__ __forceinline__ void multiply_row(const float *x, const float (*y)[PITCH],
                                                    int column, float (&sums)[COLUMNS])
{
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) sums[c] = 0;
#pragma unroll
    for (int l = 0; l < N; l += 4) {
        float4 four = *(const float4 *)(x + l);
        const float v[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int c = 0; c < COLUMNS; c += 4) {
                float4 w = *(const float4 *)&y[l + j][column + c];
                sums[c] = fmaf(v[j], w.x, sums[c]);
                sums[c + 1] = fmaf(v[j], w.y, sums[c + 1]);
                sums[c + 2] = fmaf(v[j], w.z, sums[c + 2]);
                sums[c + 3] = fmaf(v[j], w.w, sums[c + 3]);
            }
    }
}

/* Where T1 and T2 lie on the diagonal from `at` on, both of N rows, the block A21 below becomes
 * T21 = -T2 (A21 T1). 128 threads; a thread has COLUMNS columns of one row. */
template <int N, int COLUMNS>
static __device__ __forceinline__ void merge_tiles(float (*a)[SQUARE_PITCH],
                                                   float (*product)[PART_PITCH], int at, int row,
                                                   int column, bool here)
{
    float v[COLUMNS];
    float(*to)[PART_PITCH] = product + at / 2;
    if (here) {
        multiply_row<N, COLUMNS>(&a[at + N + row][at], (const float(*)[SQUARE_PITCH]) & a[at][at],
                                 column, v);
#pragma unroll
        for (int c = 0; c < COLUMNS; c += 4)
            *(float4 *)&to[row][column + c] = make_float4(v[c], v[c + 1], v[c + 2], v[c + 3]);
    }
    __syncthreads();
    if (here) {
        multiply_row<N, COLUMNS>(&a[at + N + row][at + N], to, column, v);
#pragma unroll
        for (int c = 0; c < COLUMNS; c += 4)
            *(float4 *)&a[at + N + row][at + column + c] =
                make_float4(-v[c], -v[c + 1], -v[c + 2], -v[c + 3]);
    }
    __syncthreads();
}

/* T = (I + A)^-1 of two value heads, in A's place, 128 threads each. */
static __device__ __forceinline__ void invert(prepare_shared *s, int n_heads)
{
    int which = threadIdx.x / 128, t = threadIdx.x % 128;
    bool here = which < n_heads;
    float tile[TILE];
    if (here && t < 64) invert_tile(s->a[which], tile);
    __syncthreads();
    if (here && t < 64) put_tile(s->a[which], tile);
    __syncthreads();
    float(*a)[SQUARE_PITCH] = s->a[which], (*product)[PART_PITCH] = s->squares.product[which];
    merge_tiles<TILE, 4>(a, product, t / 64 * PART, t % 16, t % 64 / 16 * 4, here);
    merge_tiles<PART, 8>(a, product, 0, t % 32, t / 32 * 8, here);
}

/* T and P of the heads to the workspace. */
static __device__ __forceinline__ void store_squares(const prepare_shared *s, square_parts *out,
                                                     int n_heads)
{
    enum { PIECES = SQUARE_PLANE / 16 };
    for (int i = threadIdx.x; i < n_heads * PIECES; i += PREPARE_THREADS) {
        int which = i / PIECES, row = i % PIECES / 8, piece = i % 8;
        const float *t = &s->a[which][row][piece * 8];
        uint32_t at = square_piece(row, piece);
        uint4 high, low;
        split_piece(*(const float4 *)t, *(const float4 *)(t + 4), high, low);
        *(uint4 *)(out[which].t[0] + at) = high;
        *(uint4 *)(out[which].t[1] + at) = low;
        for (int part = 0; part < 2; part++)
            *(uint4 *)(out[which].p[part] + at) = *(const uint4 *)(s->squares.p[which][part] + at);
    }
}

/* A block: one key head of one chunk, and its value heads, two at a time. 6 * 64 * 64 * 128
 * operations a product of which half is needed; writes 64 KB, and 32 KB a value head. */
static __global__ void __launch_bounds__(PREPARE_THREADS, 2)
    chunk_prepare_kernel(prefill_gdn_args a, chunk_workspace w, int32_t first_chunk)
{
    wait_for_stream();
    extern __shared__ __align__(128) char memory[];
    prepare_shared *s = (prepare_shared *)memory;
    int32_t slot = blockIdx.x, key_head = blockIdx.y, n, warp = threadIdx.x / 32;
    int32_t begin = chunk_begin(a, first_chunk + slot, &n);
    int32_t group = a.n_value_heads / a.n_key_heads;
    key_parts *keys = &w.keys[slot * a.n_key_heads + key_head];
    gate_pair gates = load_gates(a, begin, n, key_head * group + min(warp, group - 1));
    bool is_q = warp < 4;
    convolve_rows(a, begin, n, is_q ? key_head : a.n_key_heads + key_head,
                  is_q ? s->keys.q : s->keys.k, is_q ? keys->q : keys->k);
    __syncthreads();
    float product[8][4] = {};
    multiply_keys(s->keys, product);
    for (int32_t first = 0; first < group; first += PREPARE_HEADS) {
        int32_t head = key_head * group + first, n_heads = min((int)PREPARE_HEADS, group - first);
        int64_t at = (int64_t)slot * a.n_value_heads + head;
        if (first > 0) gates = load_gates(a, begin, n, head + min(warp, n_heads - 1));
        __syncthreads();
        if (warp < n_heads) prepare_gates(gates, s, &w.gates[at + warp], warp);
        __syncthreads();
        for (int i = 0; i < n_heads; i++)
            warp < 4 ? prepare_strip<true>(s, i, product) : prepare_strip<false>(s, i, product);
        __syncthreads();
        invert(s, n_heads);
        store_squares(s, &w.squares[at], n_heads);
    }
}

cudaError_t prefill_gdn_prepare_init()
{
    return cudaFuncSetAttribute((const void *)chunk_prepare_kernel,
                                cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)sizeof(prepare_shared));
}

cudaError_t prefill_gdn_prepare(const prefill_gdn_args *args, const chunk_workspace *workspace,
                                int32_t first_chunk, int32_t n_chunks, cudaStream_t stream)
{
    dim3 grid((unsigned)n_chunks, (unsigned)args->n_key_heads);
    return launch(chunk_prepare_kernel, grid, PREPARE_THREADS, sizeof(prepare_shared), stream,
                  *args, *workspace, first_chunk);
}
