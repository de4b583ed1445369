/* The walk over the chunks of prefill_gdn_chunk.cu on Hopper: wgmma, and copies that several
 * multiprocessors share.
 *
 * A block walks with 32 value columns of one head; neighbouring blocks of a head are a cluster, in
 * which each copies its part of a chunk's operands (96 KB) to the shared memory of all. One
 * warpgroup owns the state S [128 key dims][32 columns] and computes, chunk after chunk, X = K S, R
 * = beta (V - e^G X), N = T R, S' = e^(G_C) S + K^T (e^(G_C - G) N): three products, each of which
 * waits for the one before. The other one computes O = e^G Q S + P N beside it. One thread copies.
 *
 * A factor of two bf16 parts lies as rows of 32 high parts and the 32 low ones behind them, 128
 * bytes: so the left factor's high part times both is one product 64 wide, its low part times the
 * high ones one of 32. Per chunk the tensor cores are busy for 8 (K S, Q S, K^T N) and 4 (T R, P N)
 * steps of 16: 32 steps of 56 cycles, 1,792. The outputs' products begin when the state's warpgroup
 * has its own behind it and converts. */
#include "cuda/prefill_gdn_chunk.cuh"
#include "cuda/prefill_wgmma.cuh"

enum {
    COLUMNS = 32,
    BUFFERS = 2,
    PAIR_ROW = 4 * COLUMNS, /* bytes of a row of both parts */
    GROUP_ROWS = 8 * PAIR_ROW,
    CHUNK_BYTES = (int)(sizeof(key_parts) + sizeof(square_parts)),
    STATE_BYTES = HEAD * PAIR_ROW,
    ROWS_BYTES = CHUNK * PAIR_ROW,
    SHARED_BYTES =
        1024 + BUFFERS * (CHUNK_BYTES + (int)sizeof(chunk_gates)) + STATE_BYTES + 2 * ROWS_BYTES,
    WALK_THREADS = 256 + 32,
};

/* The blocks that can run at once in clusters of 1, 2 and 4. Set by prefill_gdn_hopper_init. */
static int blocks_at_once[3];

#if HAS_WGMMA

/* ---- products ---- */

/* d (64 x N, f32) = or += a (64 x 16) b (16 x N) of bf16; b by rows, a by columns if TRANSPOSED_A.
 */
#define WGMMA_BF16(NAME, N, PLACES, BEHIND, SCALE, ...)                                            \
    template <int TRANSPOSED_A>                                                                    \
    static __device__ __forceinline__ void NAME(float(&d)[N / 2], uint64_t a, uint64_t b)          \
    {                                                                                              \
        asm volatile("{\n.reg .pred p;\nsetp.eq.b32 p, " SCALE ", 1;\n"                            \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" PLACES           \
                     "}, " BEHIND ", 1;\n}"                                                        \
                     : __VA_ARGS__                                                                 \
                     : "l"(a), "l"(b), "n"(TRANSPOSED_A));                                         \
    }
WGMMA_BF16(set_wide, 64, WGMMA_PLACES32, "%32, %33, p, 1, 1, %34", "0", WGMMA_D16("=f", 0),
           WGMMA_D16("=f", 16))
WGMMA_BF16(add_wide, 64, WGMMA_PLACES32, "%32, %33, p, 1, 1, %34", "1", WGMMA_D16("+f", 0),
           WGMMA_D16("+f", 16))
WGMMA_BF16(set_narrow, 32, WGMMA_PLACES16, "%16, %17, p, 1, 1, %18", "0", WGMMA_D16("=f", 0))
WGMMA_BF16(add_narrow, 32, WGMMA_PLACES16, "%16, %17, p, 1, 1, %18", "1", WGMMA_D16("+f", 0))

/* A product of 64 rows by 32 columns: the left high part times both right ones, and the low part
 * times the high one. */
typedef struct split_sums {
    float wide[32], narrow[16];
} split_sums;

static __device__ __forceinline__ float split_sum(const split_sums &s, int i)
{
    return s.wide[i] + (s.wide[16 + i] + s.narrow[i]);
}

/* Starts STEPS steps of 16; `a(step)` is the descriptor of the left high part, the low one's is
 * `low` 16-byte pieces behind. `right` is the address of rows of both parts. */
template <int TRANSPOSED_A, int STEPS, typename LEFT>
static __device__ __forceinline__ void start_product(split_sums &s, const LEFT &a, uint32_t low,
                                                     uint32_t right)
{
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        uint64_t left = a(i);
        uint64_t b = wgmma_descriptor_blocks(right + i * 2 * GROUP_ROWS, 1024, GROUP_ROWS);
        if (i == 0) {
            set_wide<TRANSPOSED_A>(s.wide, left, b);
            set_narrow<TRANSPOSED_A>(s.narrow, left + low, b);
        } else {
            add_wide<TRANSPOSED_A>(s.wide, left, b);
            add_narrow<TRANSPOSED_A>(s.narrow, left + low, b);
        }
    }
}

static __device__ __forceinline__ void settle(split_sums &s)
{
    wgmma_results(s.wide);
    wgmma_results(s.narrow);
}

/* s = K or Q [64 tokens][128 dims], whose planes are given, times the state. */
static __device__ __forceinline__ void multiply_state(split_sums &s, uint32_t keys, uint32_t state)
{
    wgmma_fence();
    start_product<0, HEAD / 16>(
        s,
        [keys](int i) {
            return wgmma_descriptor(keys + i / 4 * KEY_BLOCK, GROUP_ROWS) + (uint64_t)(i % 4 * 2);
        },
        KEY_PLANE / 16, state);
    wgmma_commit();
    wgmma_wait<0>();
    settle(s);
}

/* s = T or P [64][64 tokens] times rows of tokens. */
static __device__ __forceinline__ void multiply_square(split_sums &s, uint32_t square,
                                                       uint32_t rows)
{
    wgmma_fence();
    start_product<0, CHUNK / 16>(
        s, [square](int i) { return wgmma_descriptor(square, GROUP_ROWS) + (uint64_t)(i * 2); },
        SQUARE_PLANE / 16, rows);
    wgmma_commit();
    wgmma_wait<0>();
    settle(s);
}

/* s = the 128 key dims, 64 and 64, of K^T [128][64 tokens] times rows of tokens. */
static __device__ __forceinline__ void multiply_transposed(split_sums (&s)[2], uint32_t keys,
                                                           uint32_t rows)
{
    wgmma_fence();
#pragma unroll
    for (int half = 0; half < 2; half++)
        start_product<1, CHUNK / 16>(
            s[half],
            [keys, half](int i) {
                return wgmma_descriptor_blocks(keys + half * KEY_BLOCK + i * 2 * GROUP_ROWS, 1024,
                                               GROUP_ROWS);
            },
            KEY_PLANE / 16, rows);
    wgmma_commit();
    wgmma_wait<0>();
    settle(s[0]);
    settle(s[1]);
}

/* A lane's 16 numbers of 64 rows by 32 columns: [4 c + 2 h + j] is row 16 warp + lane / 4 + 8 h,
 * column 8 c + 2 (lane % 4) + j. Both parts of them go to 64 rows in shared memory, pieces swapped
 * by row % 8. */
static __device__ __forceinline__ void put_rows(const float (&v)[16], uint32_t rows)
{
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane % 8;
    uint32_t at = rows + (uint32_t)(row * PAIR_ROW + ((lane / 8 ^ lane % 8) << 4));
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t part[2][4];
#pragma unroll
        for (int c = 0; c < 4; c++)
            split_pair(v[4 * c + 2 * h], v[4 * c + 2 * h + 1], part[0][c], part[1][c]);
#pragma unroll
        for (int i = 0; i < 2; i++)
            asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                             (at + h * GROUP_ROWS) ^ (i * 64)),
                         "r"(part[i][0]), "r"(part[i][1]), "r"(part[i][2]), "r"(part[i][3])
                         : "memory");
    }
}

/* ---- who waits for whom ---- */

/* Barriers of the block: the state's warpgroup by itself; and between the two, what one of them
 * arrives at and the other waits for. READY also means that the product that reads the same before
 * is done. */
enum { STATE_ALONE = 1, STATE_READY, STATE_FREE, ROWS_READY, ROWS_FREE };

static __device__ __forceinline__ void named_sync(int barrier, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
static __device__ __forceinline__ void named_arrive(int barrier, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/* A barrier of block `rank` of the cluster. */
static __device__ __forceinline__ void barrier_arrive_at(uint32_t barrier, unsigned rank)
{
    asm volatile("{\n.reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier),
                 "r"(rank)
                 : "memory");
}
static __device__ __forceinline__ void barrier_wait_cluster(uint32_t barrier, uint32_t parity)
{
    asm volatile("{\n.reg .pred p;\n"
                 "wait:\n"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n"
                 "@!p bra wait;\n}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}
static __device__ __forceinline__ void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

/* To the same place of all blocks of the cluster, whose barriers there count the bytes. */
static __device__ __forceinline__ void copy_to_all(uint32_t to, const void *from, uint32_t n_bytes,
                                                   uint32_t barrier, unsigned n_blocks)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(n_bytes), "r"(barrier), "h"((uint16_t)((1u << n_blocks) - 1))
                 : "memory");
}

typedef struct walk {
    int32_t head, column; /* first value column of the head */
    int32_t first_chunk, n_chunks;
    uint32_t buffers, state, rows, scaled; /* N, and R or N e^(G_C - G) */
    const chunk_gates *gates;
    uint32_t full, empty, all_empty; /* barriers, BUFFERS each */
} walk;

/* ---- the three parts ---- */

static __device__ void produce_chunks(const prefill_gdn_args &a, const chunk_workspace &w,
                                      const walk &k)
{
    unsigned rank, n_blocks;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(n_blocks));
    int32_t key_head = k.head / (a.n_value_heads / a.n_key_heads);
    uint32_t keys_bytes = (uint32_t)sizeof(key_parts) / n_blocks;
    uint32_t squares_bytes = (uint32_t)sizeof(square_parts) / n_blocks;
    for (int32_t c = 0; c < k.n_chunks; c++) {
        uint32_t stage = (uint32_t)c % BUFFERS, parity = (uint32_t)c / BUFFERS & 1;
        uint32_t full = k.full + stage * 8, to = k.buffers + stage * CHUNK_BYTES;
        int64_t slot = (int64_t)c * a.n_value_heads + k.head;
        barrier_wait(k.empty + stage * 8, parity ^ 1);
        barrier_expect(full, CHUNK_BYTES + (uint32_t)sizeof(chunk_gates));
        copy_bulk(shared_address(&k.gates[stage]), &w.gates[slot], sizeof(chunk_gates), full);
#pragma unroll 1
        for (unsigned i = 0; i < n_blocks; i++) barrier_arrive_at(k.all_empty + stage * 8, i);
        barrier_wait_cluster(k.all_empty + stage * 8, parity);
        copy_to_all(to + rank * keys_bytes,
                    (const unsigned char *)&w.keys[c * a.n_key_heads + key_head] +
                        rank * keys_bytes,
                    keys_bytes, full, n_blocks);
        copy_to_all(to + (uint32_t)sizeof(key_parts) + rank * squares_bytes,
                    (const unsigned char *)&w.squares[slot] + rank * squares_bytes, squares_bytes,
                    full, n_blocks);
    }
}

/* A lane's values of chunk c; zeros behind its tokens. */
static __device__ __forceinline__ void load_values(const prefill_gdn_args &a, const walk &k,
                                                   int32_t c, float (&v)[16])
{
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane / 4;
    int64_t channels = (int64_t)(2 * a.n_key_heads + a.n_value_heads) * HEAD;
    int32_t n = 0, begin = c < k.n_chunks ? chunk_begin(a, k.first_chunk + c, &n) : 0;
    const float *from = a.f + (begin + row) * channels + (2 * a.n_key_heads + k.head) * HEAD +
                        k.column + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float2 pair = row + i % 2 * 8 < n
                          ? *(const float2 *)(from + i % 2 * 8 * channels + i / 2 * 8)
                          : float2{0, 0};
        v[2 * i] = pair.x, v[2 * i + 1] = pair.y;
    }
}

static __device__ void walk_state(const prefill_gdn_args &a, const walk &k, const float *state_in)
{
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane / 4;
    int64_t at = (int64_t)blockIdx.x * HEAD * COLUMNS + row * COLUMNS + lane % 4 * 2;
    float state[2][16], v[16], d[16];
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float2 pair = state_in
                              ? *(const float2 *)(state_in + at +
                                                  (half * 64 + i % 2 * 8) * COLUMNS + i / 2 * 8)
                              : float2{0, 0};
            state[half][2 * i] = pair.x, state[half][2 * i + 1] = pair.y;
        }
        put_rows(state[half], k.state + half * 64 * PAIR_ROW);
    }
    load_values(a, k, 0, v);
    for (int32_t c = 0; c < k.n_chunks; c++) {
        uint32_t stage = (uint32_t)c % BUFFERS, buffer = k.buffers + stage * CHUNK_BYTES;
        const chunk_gates *gates = &k.gates[stage];
        fence_async_proxy();
        named_sync(STATE_ALONE, 128);
        barrier_wait(k.full + stage * 8, (uint32_t)c / BUFFERS & 1);
        split_sums s[2];
        multiply_state(s[0], buffer, k.state);
        named_arrive(STATE_READY, 256);
#pragma unroll
        for (int i = 0; i < 16; i++) {
            int t = row + i / 2 % 2 * 8;
            d[i] = gates->beta[t] * (v[i] - gates->growth[t] * split_sum(s[0], i));
        }
        put_rows(d, k.scaled);
        fence_async_proxy();
        named_sync(STATE_ALONE, 128);
        load_values(a, k, c + 1, v);
        multiply_square(s[0], buffer + (uint32_t)sizeof(key_parts), k.scaled);
#pragma unroll
        for (int i = 0; i < 16; i++) d[i] = split_sum(s[0], i);
        named_sync(ROWS_FREE, 256);
        put_rows(d, k.rows);
#pragma unroll
        for (int i = 0; i < 16; i++) d[i] *= gates->rest[row + i / 2 % 2 * 8];
        put_rows(d, k.scaled);
        fence_async_proxy();
        named_sync(STATE_ALONE, 128);
        multiply_transposed(s, buffer, k.scaled);
        named_arrive(ROWS_READY, 256);
        float total = gates->growth[CHUNK - 1];
        barrier_arrive(k.empty + stage * 8);
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int i = 0; i < 16; i++)
                state[half][i] = fmaf(total, state[half][i], split_sum(s[half], i));
        named_sync(STATE_FREE, 256);
#pragma unroll
        for (int half = 0; half < 2; half++) put_rows(state[half], k.state + half * 64 * PAIR_ROW);
    }
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int i = 0; i < 8; i++)
            *(float2 *)(a.state_out + at + (half * 64 + i % 2 * 8) * COLUMNS + i / 2 * 8) =
                make_float2(state[half][2 * i], state[half][2 * i + 1]);
}

static __device__ void walk_outputs(const prefill_gdn_args &a, const walk &k)
{
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane / 4;
    int64_t values = (int64_t)a.n_value_heads * HEAD;
    named_arrive(ROWS_FREE, 256);
    for (int32_t c = 0; c < k.n_chunks; c++) {
        uint32_t stage = (uint32_t)c % BUFFERS, buffer = k.buffers + stage * CHUNK_BYTES;
        const chunk_gates *gates = &k.gates[stage];
        int32_t n, begin = chunk_begin(a, k.first_chunk + c, &n);
        float *out = a.o + (begin + row) * values + k.head * HEAD + k.column + lane % 4 * 2;
        split_sums s;
        float d[16];
        barrier_wait(k.full + stage * 8, (uint32_t)c / BUFFERS & 1);
        named_sync(STATE_READY, 256);
        multiply_state(s, buffer + 2 * KEY_PLANE, k.state);
        named_arrive(STATE_FREE, 256);
#pragma unroll
        for (int i = 0; i < 16; i++) d[i] = gates->growth[row + i / 2 % 2 * 8] * split_sum(s, i);
        named_sync(ROWS_READY, 256);
        multiply_square(s, buffer + (uint32_t)sizeof(key_parts) + 2 * SQUARE_PLANE, k.rows);
        if (c + 1 < k.n_chunks) named_arrive(ROWS_FREE, 256);
        barrier_arrive(k.empty + stage * 8);
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (row + i % 2 * 8 < n)
                *(float2 *)(out + i % 2 * 8 * values + i / 2 * 8) = make_float2(
                    d[2 * i] + split_sum(s, 2 * i), d[2 * i + 1] + split_sum(s, 2 * i + 1));
    }
}
#endif

static __global__ void __launch_bounds__(WALK_THREADS, 1)
    walk_hopper_kernel(prefill_gdn_args a, chunk_workspace w, int32_t first_chunk, int32_t n_chunks,
                       const float *state_in)
{
    wait_for_stream();
#if HAS_WGMMA
    extern __shared__ char shared[];
    __shared__ uint64_t barriers[3 * BUFFERS];
    walk k;
    k.head = (int32_t)blockIdx.x / (HEAD / COLUMNS);
    k.column = (int32_t)blockIdx.x % (HEAD / COLUMNS) * COLUMNS;
    k.first_chunk = first_chunk, k.n_chunks = n_chunks;
    k.buffers = (shared_address(shared) + 1023) / 1024 * 1024;
    k.state = k.buffers + BUFFERS * CHUNK_BYTES;
    k.rows = k.state + STATE_BYTES;
    k.scaled = k.rows + ROWS_BYTES;
    k.gates = (const chunk_gates *)(shared + (k.scaled + ROWS_BYTES - shared_address(shared)));
    k.full = shared_address(barriers);
    k.empty = k.full + BUFFERS * 8;
    k.all_empty = k.empty + BUFFERS * 8;
    if (threadIdx.x == 0) {
        unsigned n_blocks;
        asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(n_blocks));
        for (int i = 0; i < BUFFERS; i++) {
            barrier_init(k.full + i * 8, 1);
            barrier_init(k.empty + i * 8, 256);
            barrier_init(k.all_empty + i * 8, n_blocks);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_sync();
    if (threadIdx.x < 128) {
        walk_state(a, k, state_in);
    } else if (threadIdx.x < 256) {
        walk_outputs(a, k);
    } else {
        if (threadIdx.x == 256) produce_chunks(a, w, k);
        __syncwarp();
    }
    cluster_sync(); /* no block ends while others copy to it */
#else
    (void)a, (void)w, (void)first_chunk, (void)n_chunks, (void)state_in;
#endif
}

/* ---- launches ---- */

static cudaLaunchConfig_t walk_config(cudaLaunchAttribute (&attributes)[2], unsigned blocks,
                                      unsigned cluster, cudaStream_t stream)
{
    attributes[0] = attributes[1] = cudaLaunchAttribute{};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = cluster;
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(WALK_THREADS);
    config.dynamicSmemBytes = SHARED_BYTES;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = device_overlaps_launches ? 2 : 1;
    return config;
}

bool prefill_gdn_has_hopper(const prefill_device *device)
{
    return device->path == PREFILL_PATH_HOPPER && device->shared_bytes >= SHARED_BYTES + 64;
}

cudaError_t prefill_gdn_hopper_init()
{
    cudaError_t e = cudaFuncSetAttribute((const void *)walk_hopper_kernel,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
    for (int i = 0; !e && i < 3; i++) {
        cudaLaunchAttribute attributes[2];
        cudaLaunchConfig_t config = walk_config(attributes, HEAD / COLUMNS, 1u << i, 0);
        int clusters = 0;
        e = cudaOccupancyMaxActiveClusters(&clusters, walk_hopper_kernel, &config);
        blocks_at_once[i] = clusters << i;
    }
    return e;
}

/* In the largest clusters of which none has to wait for another to end: not all multiprocessors
 * have neighbours enough. */
cudaError_t prefill_gdn_hopper_walk(const prefill_gdn_args *args, const chunk_workspace *workspace,
                                    int32_t first_chunk, int32_t n_chunks, const float *state_in,
                                    cudaStream_t stream)
{
    int n_blocks = args->n_value_heads * (HEAD / COLUMNS), size = 2;
    while (size > 0 && blocks_at_once[size] < n_blocks) size--;
    cudaLaunchAttribute attributes[2];
    cudaLaunchConfig_t config = walk_config(attributes, (unsigned)n_blocks, 1u << size, stream);
    return cudaLaunchKernelEx(&config, walk_hopper_kernel, *args, *workspace, first_chunk, n_chunks,
                              state_in);
}
