/* Attention of a chunk on Hopper: wgmma on tiles of 128 query rows by 64 tokens. A group of threads
 * copies K and V into two stages each; two groups of 64 rows compute. While the tensor cores add
 * P V of one tile, the softmax of the next runs beside them. The operations on a row, and their
 * order, are those of the general kernel up to the order within a product. */
#include "cuda/prefill_attention.cuh"
#include "cuda/prefill_wgmma.cuh"

enum {
    ROWS = 128,
    TILE = 64, /* tokens */
    STAGES = 2,
    CONSUMERS = 256,
    THREADS = CONSUMERS + 128,
    /* Tiles lie in four blocks of 64 dims: rows of 128 bytes, swizzled. */
    Q_BLOCK = ROWS * 128,
    KV_BLOCK = TILE * 128,
    Q_BYTES = 4 * Q_BLOCK,
    KV_BYTES = 4 * KV_BLOCK,
    SHARED_BYTES = 1024 + Q_BYTES + 2 * STAGES * KV_BYTES,
};

#if HAS_WGMMA

typedef struct kv_ring {
    uint32_t k, v;        /* shared addresses of the stages */
    uint32_t full, empty; /* barriers: STAGES of K, then of V */
} kv_ring;

/* Where the 16 bytes `piece` of a row go in a tile whose blocks have block_bytes. */
static __device__ __forceinline__ uint32_t tile_piece(int row, int piece, int block_bytes)
{
    return (uint32_t)(piece / 8 * block_bytes + row * 128 + ((piece % 8 ^ (row & 7)) << 4));
}

/* 128 threads: n_rows rows of a tile, and zeros. */
static __device__ __forceinline__ void produce_kv(uint32_t to, const __half *from, int32_t n_rows)
{
    int t = threadIdx.x % 128;
#pragma unroll 4
    for (int i = 0; i < TILE / 4; i++) {
        int row = t / 32 + i * 4;
        copy16_or_zero_async(to + tile_piece(row, t % 32, KV_BLOCK),
                             from + row * ATTENTION_DIM + t % 32 * 8, row < n_rows);
    }
}

static __device__ void produce_tiles(const prefill_attention_args &a, const attention_rows &r,
                                     const kv_ring &ring, int32_t last)
{
    for (int32_t tile = 0; tile * TILE <= last; tile++) {
        int stage = tile % STAGES;
        uint32_t parity = (uint32_t)(tile / STAGES) & 1;
        const __half *from = kv_row(a, r, tile * TILE);
        int32_t n_rows = last + 1 - tile * TILE;
        barrier_wait(ring.empty + stage * 8, parity ^ 1);
        produce_kv(ring.k + stage * KV_BYTES, from, n_rows);
        barrier_arrive_copies(ring.full + stage * 8);
        barrier_wait(ring.empty + (STAGES + stage) * 8, parity ^ 1);
        produce_kv(ring.v + stage * KV_BYTES, from + a.kv.v_offset, n_rows);
        barrier_arrive_copies(ring.full + (STAGES + stage) * 8);
    }
}

/* Starts s [64 rows][64 tokens] = q k^T. */
static __device__ __forceinline__ void start_scores(float (&s)[8][4], uint32_t q, uint32_t k)
{
    float(&d)[32] = *(float(*)[32]) & s;
#pragma unroll
    for (int i = 0; i < 32; i++) d[i] = 0;
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 16; i++)
        wgmma_shared<0>(d, wgmma_descriptor(q + i / 4 * Q_BLOCK, 1024) + i % 4 * 2,
                        wgmma_descriptor(k + i / 4 * KV_BLOCK, 1024) + i % 4 * 2);
    wgmma_commit();
}

/* Starts o [64 rows][256] += p v. V's rows are the product's inner dimension: its blocks of 64 dims
 * are KV_BLOCK apart, groups of eight tokens 1,024 bytes. */
static __device__ __forceinline__ void start_outputs(float (&o)[32][4], const uint32_t (&p)[4][4],
                                                     uint32_t v)
{
    float(&d)[128] = *(float(*)[128]) & o;
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; i++)
        wgmma_registers<1>(d, p[i], wgmma_descriptor_blocks(v + i * 16 * 128, KV_BLOCK, 1024));
    wgmma_commit();
}

/* Into registers that are settled before the next product starts. */
static __device__ __forceinline__ void pack(const float (&s)[8][4], uint32_t (&p)[4][4])
{
    pack_probabilities(s, p);
#pragma unroll
    for (int i = 0; i < 16; i++) asm volatile("" : "+r"(p[i / 4][i % 4])::"memory");
}

static __device__ __forceinline__ void wait_tile(const kv_ring &ring, int which, int32_t tile)
{
    barrier_wait(ring.full + (which * STAGES + tile % STAGES) * 8, (uint32_t)(tile / STAGES) & 1);
    fence_async_proxy();
}

/* 64 rows of a block, from `first_row` on, by 128 threads. */
static __device__ __forceinline__ void consume_tiles(const prefill_attention_args &a,
                                                     const attention_rows &r, const kv_ring &ring,
                                                     uint32_t q, int32_t n_tiles)
{
    int group = threadIdx.x / 128, lane = threadIdx.x % 32;
    int row0 = group * 64 + threadIdx.x / 32 % 4 * 16 + lane / 4;
    for (int i = 0; i < 16; i++) {
        int row = group * 64 + (int)threadIdx.x % 128 / 32 + i * 4;
        copy16_async(q + tile_piece(row, lane, Q_BLOCK), query_row(a, r, row) + lane * 8);
    }
    copy_commit();
    copy_wait<0>();
    fence_async_proxy();
    asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
    q += group * 64 * 128;

    float o[32][4], s[8][4], most[2] = {-INFINITY, -INFINITY}, sum[2] = {}, scale[2];
    uint32_t p[4][4];
    int32_t seen[2] = {(int32_t)a.first + row_token(a, r, row0),
                       (int32_t)a.first + row_token(a, r, row0 + 8)};
#pragma unroll
    for (int i = 0; i < 32; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) o[i][j] = 0;
    wait_tile(ring, 0, 0);
    start_scores(s, q, ring.k);
    wgmma_wait<0>();
    wgmma_results(*(float(*)[32]) & s);
    barrier_arrive_warp(ring.empty);
    softmax_tile(s, seen, 0, most, sum, scale);
    pack(s, p);
    for (int32_t tile = 0; tile + 1 < n_tiles; tile++) {
        int stage = tile % STAGES, next = (tile + 1) % STAGES;
        wait_tile(ring, 0, tile + 1);
        start_scores(s, q, ring.k + next * KV_BYTES);
        wait_tile(ring, 1, tile);
        start_outputs(o, p, ring.v + stage * KV_BYTES);
        wgmma_wait<1>();
        wgmma_results(*(float(*)[32]) & s);
        barrier_arrive_warp(ring.empty + next * 8);
        softmax_tile(s, seen, (tile + 1) * TILE, most, sum, scale);
        wgmma_wait<0>();
        wgmma_results(*(float(*)[128]) & o);
        barrier_arrive_warp(ring.empty + (STAGES + stage) * 8);
#pragma unroll
        for (int i = 0; i < 32; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) o[i][j] *= scale[j / 2];
        pack(s, p);
    }
    wait_tile(ring, 1, n_tiles - 1);
    start_outputs(o, p, ring.v + (n_tiles - 1) % STAGES * KV_BYTES);
    wgmma_wait<0>();
    wgmma_results(*(float(*)[128]) & o);
    store_outputs(a, r, row0, o, sum);
}
#endif

static __global__ void __launch_bounds__(THREADS, 1)
    attention_hopper_kernel(prefill_attention_args a)
{
    wait_for_stream();
#if HAS_WGMMA
    extern __shared__ char shared[];
    __shared__ uint64_t barriers[4 * STAGES];
    uint32_t q = (shared_address(shared) + 1023) / 1024 * 1024;
    kv_ring ring;
    ring.k = q + Q_BYTES;
    ring.v = ring.k + STAGES * KV_BYTES;
    ring.full = shared_address(barriers);
    ring.empty = ring.full + 2 * STAGES * 8;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2 * STAGES; i++) {
            barrier_init(ring.full + i * 8, 128);
            barrier_init(ring.empty + i * 8, CONSUMERS / 32);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    attention_rows r = attention_block_rows(a, ROWS);
    int32_t last = (int32_t)a.first + row_token(a, r, ROWS - 1);
    if (threadIdx.x >= CONSUMERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        produce_tiles(a, r, ring, last);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        consume_tiles(a, r, ring, q, last / TILE + 1);
    }
#else
    (void)a;
#endif
}

cudaError_t prefill_attention_hopper_init()
{
    return cudaFuncSetAttribute((const void *)attention_hopper_kernel,
                                cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
}

cudaError_t prefill_attention_hopper(const prefill_attention_args *args, cudaStream_t stream)
{
    int64_t rows = (int64_t)args->n_tokens * (args->n_query_heads / args->n_kv_heads);
    dim3 grid((unsigned)args->n_kv_heads, (unsigned)ceil_div(rows, ROWS));
    return launch(attention_hopper_kernel, grid, THREADS, SHARED_BYTES, stream, *args);
}
