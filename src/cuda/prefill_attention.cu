/* Full attention of a chunk (MODEL.md 3.3): norms, rotation, cache, and softmax attention with
 * mma.sync. */
#include "cuda/prefill_attention.cuh"

/* ---- q, k, v ---- */

static __global__ void rope_angles_kernel(int64_t first, int32_t n, const double *frequencies,
                                          float *cosines, float *sines)
{
    int32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n * 32) return;
    double s, c;
    sincos((double)(first + i / 32) * frequencies[i % 32], &s, &c);
    cosines[i] = (float)c;
    sines[i] = (float)s;
}

cudaError_t prefill_rope_angles(int64_t first, int32_t n_tokens, const double *inverse_frequencies,
                                float *cosines, float *sines, cudaStream_t stream)
{
    rope_angles_kernel<<<(unsigned)ceil_div((int64_t)n_tokens * 32, 256), 256, 0, stream>>>(
        first, n_tokens, inverse_frequencies, cosines, sines);
    return cudaGetLastError();
}

/* Norms a row of 256, eight of them in each lane, and rotates its first 64 dims. */
static __device__ void norm_and_rotate(float (&v)[8], const float *factor, float eps,
                                       const float *cosines, const float *sines)
{
    int lane = threadIdx.x % 32;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) sum += v[i] * v[i];
    float mean = warp_sum(sum) / ATTENTION_DIM;
    float r = 1.0f / sqrtf(mean + eps) + (mean - mean);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = v[i] * r * factor[lane * 8 + i];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float other = __shfl_xor_sync(0xffffffffu, v[i], 4); /* 32 dims away */
        if (lane < 8) {
            float c = cosines[lane % 4 * 8 + i], s = sines[lane % 4 * 8 + i];
            v[i] = lane < 4 ? v[i] * c - other * s : v[i] * c + other * s;
        }
    }
}

static __device__ __forceinline__ uint4 to_halves(const float (&v)[8])
{
    uint32_t p[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        p[i] = half2_bits(__halves2half2(to_half(v[2 * i]), to_half(v[2 * i + 1])));
    return make_uint4(p[0], p[1], p[2], p[3]);
}

/* A warp a head: the query heads of a token, then k, then v. */
static __global__ void prepare_kernel(prefill_attention_args a)
{
    wait_for_stream();
    int32_t per_token = a.n_query_heads + 2 * a.n_kv_heads, lane = threadIdx.x % 32;
    int64_t i = (int64_t)blockIdx.x * 8 + threadIdx.x / 32;
    int32_t t = (int32_t)(i / per_token), h = (int32_t)(i % per_token);
    if (t >= a.n_tokens) return;
    bool is_q = h < a.n_query_heads, is_v = h >= a.n_query_heads + a.n_kv_heads;
    int32_t m = (h - a.n_query_heads) % a.n_kv_heads;
    const float *row = a.projected + t * a.projected_stride;
    row += is_q ? h * 2 * ATTENTION_DIM : (a.n_query_heads + h) * ATTENTION_DIM;
    float v[8];
    *(float4 *)&v[0] = *(const float4 *)(row + lane * 8);
    *(float4 *)&v[4] = *(const float4 *)(row + lane * 8 + 4);
    if (!is_v)
        norm_and_rotate(v, is_q ? a.q_norm : a.k_norm, a.eps, a.cosines + t * 32, a.sines + t * 32);
    __half *to = a.q + ((int64_t)t * a.n_query_heads + h) * ATTENTION_DIM;
    if (!is_q) {
        int64_t p = a.first + t;
        to = a.kv.kv + a.kv.blocks[p / KV_TOKENS] * a.kv.block_stride + m * a.kv.head_stride +
             p % KV_TOKENS * ATTENTION_DIM + (is_v ? a.kv.v_offset : 0);
    }
    *(uint4 *)(to + lane * 8) = to_halves(v);
}

cudaError_t prefill_attention_prepare(const prefill_attention_args *args, cudaStream_t stream)
{
    int64_t heads = (int64_t)args->n_tokens * (args->n_query_heads + 2 * args->n_kv_heads);
    return launch(prepare_kernel, (unsigned)ceil_div(heads, 8), 256, 0, stream, *args);
}

/* ---- attention ---- */

enum { TILE_TOKENS = 64, ROW_BYTES = ATTENTION_DIM * 2, KV_TILE_BYTES = TILE_TOKENS * ROW_BYTES };

static int general_shared_bytes(int warps)
{
    return warps * 16 * ROW_BYTES + 2 * KV_TILE_BYTES;
}

/* Address of the 16 bytes `piece` of a row in shared memory. */
static __device__ __forceinline__ uint32_t piece_address(uint32_t base, int row, int piece)
{
    return base + row * ROW_BYTES + ((piece ^ (row & 7)) << 4);
}

/* The tile's first n_rows rows, and zeros: what lies behind a sequence's end may be NaN, which a
 * probability of 0 does not stop. */
template <int WARPS>
static __device__ __forceinline__ void load_kv_tile(uint32_t to, const __half *from, int32_t n_rows)
{
#pragma unroll
    for (int i = 0; i < KV_TILE_BYTES / 16 / (WARPS * 32); i++) {
        int c = threadIdx.x + i * WARPS * 32;
        copy16_or_zero_async(piece_address(to, c / 32, c % 32), (const uint4 *)from + c,
                             c / 32 < n_rows);
    }
}

/* s [16 rows][64 tokens] = q k^T of a warp. */
static __device__ __forceinline__ void score_tile(float (&s)[8][4], uint32_t q, uint32_t k,
                                                  int first_row)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) s[i][j] = 0;
#pragma unroll
    for (int d = 0; d < ATTENTION_DIM / 16; d++) {
        uint32_t a[4];
        load_matrix4(a, piece_address(q, first_row + lane % 16, 2 * d + lane / 16));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t b[4];
            load_matrix4(b,
                         piece_address(k, i * 16 + lane / 16 * 8 + lane % 8, 2 * d + lane / 8 % 2));
            multiply_f16(s[2 * i], a, b[0], b[1]);
            multiply_f16(s[2 * i + 1], a, b[2], b[3]);
        }
    }
}

/* o [16 rows][256] += p v. */
static __device__ __forceinline__ void add_tile(float (&o)[32][4], const uint32_t (&p)[4][4],
                                                uint32_t v)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int t = 0; t < TILE_TOKENS / 16; t++) {
#pragma unroll
        for (int i = 0; i < 16; i++) {
            uint32_t b[4];
            load_matrix4_transposed(b, piece_address(v, t * 16 + lane % 16, 2 * i + lane / 16));
            multiply_f16(o[2 * i], p[t], b[0], b[1]);
            multiply_f16(o[2 * i + 1], p[t], b[2], b[3]);
        }
    }
}

/* A block: 16 rows a warp, a row being a query head of a token, the query heads of one KV head side
 * by side. Tiles of 64 tokens at multiples of 64 come in order; one that a row does not see changes
 * nothing in it. */
template <int WARPS>
static __global__ void __launch_bounds__(WARPS * 32, 1) attention_kernel(prefill_attention_args a)
{
    extern __shared__ __align__(1024) char shared[];
    const uint32_t q = shared_address(shared), k = q + WARPS * 16 * ROW_BYTES,
                   v = k + KV_TILE_BYTES;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    attention_rows r = attention_block_rows(a, WARPS * 16);
    for (int i = threadIdx.x; i < WARPS * 16 * 32; i += WARPS * 32)
        copy16_async(piece_address(q, i / 32, i % 32), query_row(a, r, i / 32) + i % 32 * 8);
    int32_t last = (int32_t)a.first + row_token(a, r, WARPS * 16 - 1);
    int32_t n_tiles = last / TILE_TOKENS + 1;
    load_kv_tile<WARPS>(k, kv_row(a, r, 0), last + 1);
    copy_commit();

    float o[32][4] = {}, max[2] = {-INFINITY, -INFINITY}, sum[2] = {};
    int32_t seen[2];
#pragma unroll
    for (int h = 0; h < 2; h++)
        seen[h] = (int32_t)a.first + row_token(a, r, warp * 16 + lane / 4 + 8 * h);
    for (int32_t tile = 0; tile < n_tiles; tile++) {
        int32_t first = tile * TILE_TOKENS;
        float s[8][4];
        copy_wait<0>();
        __syncthreads();
        load_kv_tile<WARPS>(v, kv_row(a, r, first) + a.kv.v_offset, last + 1 - first);
        copy_commit();
        score_tile(s, q, k, warp * 16);
        __syncthreads();
        if (tile + 1 < n_tiles)
            load_kv_tile<WARPS>(k, kv_row(a, r, first + TILE_TOKENS),
                                last + 1 - first - TILE_TOKENS);
        copy_commit();
        float scale[2];
        uint32_t p[4][4];
        softmax_tile(s, seen, first, max, sum, scale);
        pack_probabilities(s, p);
#pragma unroll
        for (int i = 0; i < 32; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) o[i][j] *= scale[j / 2];
        copy_wait<1>();
        __syncthreads();
        add_tile(o, p, v);
    }
    store_outputs(a, r, warp * 16 + lane / 4, o, sum);
}

cudaError_t prefill_attention_init(const prefill_device *device)
{
    cudaError_t e =
        cudaFuncSetAttribute((const void *)attention_kernel<4>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, general_shared_bytes(4));
    if (!e && device->shared_bytes >= general_shared_bytes(8))
        e = cudaFuncSetAttribute((const void *)attention_kernel<8>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 general_shared_bytes(8));
    if (!e && device->path == PREFILL_PATH_HOPPER) e = prefill_attention_hopper_init();
    return e;
}

cudaError_t prefill_attention(const prefill_device *device, const prefill_attention_args *args,
                              cudaStream_t stream)
{
    if (device->path == PREFILL_PATH_HOPPER) return prefill_attention_hopper(args, stream);
    int warps = device->shared_bytes >= general_shared_bytes(8) ? 8 : 4;
    int64_t rows = (int64_t)args->n_tokens * (args->n_query_heads / args->n_kv_heads);
    dim3 grid((unsigned)args->n_kv_heads, (unsigned)ceil_div(rows, warps * 16));
    if (warps == 8)
        attention_kernel<8><<<grid, 256, general_shared_bytes(8), stream>>>(*args);
    else
        attention_kernel<4><<<grid, 128, general_shared_bytes(4), stream>>>(*args);
    return cudaGetLastError();
}
