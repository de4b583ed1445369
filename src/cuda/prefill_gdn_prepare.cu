/* What of a chunk of the recurrence does not depend on the state (prefill_gdn_chunk.cu): K and Q as
 * sums of two bf16; of every value head T = (I + A)^-1, with A_ij = beta_i e^(G_i - G_j) K_i K_j
 * for i > j, P_ij = e^(G_i - G_j) Q_i K_j for i >= j, and the gates. */
#include "cuda/prefill_gdn_chunk.cuh"

enum {
    PREPARE_THREADS = 256,
    PART = CHUNK / 2, /* rows of the blocks T is computed in */
    PART_PITCH = PART + 4,
};

/* Of one value head: T's blocks on the diagonal, and A's block below them times the first. */
typedef struct inverse_parts {
    float diagonal[2][PART][PART_PITCH];
    float below[PART][PART_PITCH];
} inverse_parts;

typedef struct prepare_shared {
    union {
        key_parts keys;
        inverse_parts inverse[2]; /* once the products are done */
    };
    float a[2][CHUNK][CHUNK + 4];
    float sum[2][CHUNK]; /* G */
    float beta[2][CHUNK];
} prepare_shared;

/* Four warps read rows of f, all of a warp's before it goes on, and write both parts to shared
 * memory and to the workspace. */
static __device__ void split_rows(const float *f, int64_t stride, int32_t n,
                                  unsigned char (*shared)[KEY_PLANE],
                                  unsigned char (*out)[KEY_PLANE])
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    float4 rows[CHUNK / 4];
#pragma unroll
    for (int i = 0; i < CHUNK / 4; i++) {
        int row = warp + i * 4;
        rows[i] = row < n ? *(const float4 *)(f + row * stride + lane * 4) : float4{0, 0, 0, 0};
    }
#pragma unroll
    for (int i = 0; i < CHUNK / 4; i++) {
        uint2 high, low;
        split_pair(rows[i].x, rows[i].y, high.x, low.x);
        split_pair(rows[i].z, rows[i].w, high.y, low.y);
        uint32_t at = key_piece(warp + i * 4, lane / 2) + lane % 2 * 8;
        *(uint2 *)(shared[0] + at) = high, *(uint2 *)(out[0] + at) = high;
        *(uint2 *)(shared[1] + at) = low, *(uint2 *)(out[1] + at) = low;
    }
}

/* Rows 16 (warp % 4) ... of K K^T, or by the last four warps of Q K^T. */
static __device__ __forceinline__ void multiply_keys(const key_parts &keys, float (&product)[8][4])
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t k = shared_address(keys.k), left = warp < 4 ? k : shared_address(keys.q);
#pragma unroll 2
    for (int d = 0; d < HEAD / 16; d++) {
        uint32_t at = key_piece(warp % 4 * 16 + lane % 16, 2 * d + lane / 16), a[2][4];
        for (int i = 0; i < 2; i++) load_matrix4(a[i], left + i * KEY_PLANE + at);
        split_operands<4> b;
#pragma unroll
        for (int p = 0; p < 4; p++) {
            uint32_t from = key_piece(p * 16 + lane / 16 * 8 + lane % 8, 2 * d + lane / 8 % 2);
            load_matrix4(b.high[p], k + from);
            load_matrix4(b.low[p], k + KEY_PLANE + from);
        }
        multiply_split<4>(product, a, b);
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

/* 16 rows of a warp: of K K^T, A goes to shared memory; of Q K^T, P to the workspace. */
static __device__ void prepare_squares(prepare_shared *s, square_parts *out, int which,
                                       const float (&product)[8][4])
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int i = warp % 4 * 16 + lane / 4 + h * 8;
        float sum = s->sum[which][i], beta = s->beta[which][i];
#pragma unroll
        for (int c = 0; c < 8; c++) {
            int j = c * 8 + lane % 4 * 2;
            float2 other = *(const float2 *)&s->sum[which][j];
            /* Above the diagonal the exponent may be large: it is not computed. */
            float e0 = j <= i ? expf(sum - other.x) : 0, e1 = j + 1 <= i ? expf(sum - other.y) : 0;
            float v0 = product[c][2 * h], v1 = product[c][2 * h + 1];
            if (warp < 4) {
                *(float2 *)&s->a[which][i][j] =
                    make_float2(j < i ? beta * v0 * e0 : 0, j + 1 < i ? beta * v1 * e1 : 0);
            } else {
                uint32_t high, low, at = square_piece(i, c) + lane % 4 * 4;
                split_pair(v0 * e0, v1 * e1, high, low);
                *(uint32_t *)(out->p[0] + at) = high;
                *(uint32_t *)(out->p[1] + at) = low;
            }
        }
    }
}

/* One of T's blocks on the diagonal by forward substitution, a lane a column. */
static __device__ void invert_diagonal(const float (*a)[CHUNK + 4], int part,
                                       float (*out)[PART_PITCH])
{
    int column = threadIdx.x % 32;
    float t[PART];
#pragma unroll
    for (int i = 0; i < PART; i++) {
        float sum[4] = {};
#pragma unroll
        for (int l = 0; l < i; l += 4) {
            float4 v = *(const float4 *)&a[part * PART + i][part * PART + l];
            sum[0] = fmaf(v.x, t[l], sum[0]);
            if (l + 1 < i) sum[1] = fmaf(v.y, t[l + 1], sum[1]);
            if (l + 2 < i) sum[2] = fmaf(v.z, t[l + 2], sum[2]);
            if (l + 3 < i) sum[3] = fmaf(v.w, t[l + 3], sum[3]);
        }
        t[i] = (i == column ? 1.0f : 0.0f) - ((sum[0] + sum[1]) + (sum[2] + sum[3]));
        out[i][column] = t[i];
    }
}

/* sums = 8 neighbouring numbers of row i of x times y, both of PART columns. */
static __device__ __forceinline__ void multiply_parts(const float *x, const float (*y)[PART_PITCH],
                                                      int column, float (&sums)[8])
{
#pragma unroll
    for (int c = 0; c < 8; c++) sums[c] = 0;
#pragma unroll 8
    for (int l = 0; l < PART; l++) {
        float4 y0 = *(const float4 *)&y[l][column], y1 = *(const float4 *)&y[l][column + 4];
        sums[0] = fmaf(x[l], y0.x, sums[0]), sums[1] = fmaf(x[l], y0.y, sums[1]);
        sums[2] = fmaf(x[l], y0.z, sums[2]), sums[3] = fmaf(x[l], y0.w, sums[3]);
        sums[4] = fmaf(x[l], y1.x, sums[4]), sums[5] = fmaf(x[l], y1.y, sums[5]);
        sums[6] = fmaf(x[l], y1.z, sums[6]), sums[7] = fmaf(x[l], y1.w, sums[7]);
    }
}

/* A 16-byte piece of T, both parts. */
static __device__ __forceinline__ void put_piece(square_parts *out, int row, int piece,
                                                 const float (&v)[8])
{
    uint4 high, low;
    split_pair(v[0], v[1], high.x, low.x);
    split_pair(v[2], v[3], high.y, low.y);
    split_pair(v[4], v[5], high.z, low.z);
    split_pair(v[6], v[7], high.w, low.w);
    *(uint4 *)(out->t[0] + square_piece(row, piece)) = high;
    *(uint4 *)(out->t[1] + square_piece(row, piece)) = low;
}

/* T = (I + A)^-1 of two value heads, 128 threads each: with A in blocks A1, A2 on the diagonal and
 * A21 below, T1 and T2 are their inverses and T21 = -T2 (A21 T1). */
static __device__ void invert(prepare_shared *s, square_parts *out, int n_heads)
{
    int which = threadIdx.x / 128, t = threadIdx.x % 128, row = t / 4, column = t % 4 * 8;
    bool here = which < n_heads;
    inverse_parts *x = &s->inverse[which];
    float v[8];
    if (here && t < 64) invert_diagonal(s->a[which], t / 32, x->diagonal[t / 32]);
    __syncthreads();
    if (here) {
        multiply_parts(&s->a[which][PART + row][0], x->diagonal[0], column, v);
#pragma unroll
        for (int c = 0; c < 8; c++) x->below[row][column + c] = v[c];
    }
    __syncthreads();
    if (!here) return;
    multiply_parts(x->diagonal[1][row], x->below, column, v);
#pragma unroll
    for (int c = 0; c < 8; c++) v[c] = -v[c];
    put_piece(&out[which], PART + row, column / 8, v);
#pragma unroll
    for (int part = 0; part < 2; part++) {
#pragma unroll
        for (int c = 0; c < 8; c++) v[c] = x->diagonal[part][row][column + c];
        put_piece(&out[which], part * PART + row, (part * PART + column) / 8, v);
    }
#pragma unroll
    for (int c = 0; c < 8; c++) v[c] = 0;
    put_piece(&out[which], row, (PART + column) / 8, v);
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
    int64_t channels = (int64_t)(2 * a.n_key_heads + a.n_value_heads) * HEAD;
    const float *f = a.f + begin * channels + key_head * HEAD;
    key_parts *keys = &w.keys[slot * a.n_key_heads + key_head];
    gate_pair gates = load_gates(a, begin, n, key_head * group + min(warp, group - 1));
    if (warp < 4)
        split_rows(f, channels, n, s->keys.q, keys->q);
    else
        split_rows(f + a.n_key_heads * HEAD, channels, n, s->keys.k, keys->k);
    __syncthreads();
    float product[8][4] = {};
    multiply_keys(s->keys, product);
    for (int32_t first = 0; first < group; first += 2) {
        int32_t head = key_head * group + first, n_heads = min(2, group - first);
        int64_t at = (int64_t)slot * a.n_value_heads + head;
        if (first > 0) gates = load_gates(a, begin, n, head + min(warp, n_heads - 1));
        __syncthreads();
        if (warp < n_heads) prepare_gates(gates, s, &w.gates[at + warp], warp);
        __syncthreads();
        for (int i = 0; i < n_heads; i++) prepare_squares(s, &w.squares[at + i], i, product);
        __syncthreads();
        invert(s, &w.squares[at], n_heads);
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
