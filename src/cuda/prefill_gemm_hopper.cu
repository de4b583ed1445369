/* Linear layers of prefill on Hopper: Y^T = W X^T with wgmma. Four warpgroups hold 64 rows of the
 * matrix each: 4-bit codes become halves in registers, in the order of wgmma's A fragment; up to
 * 128 inputs are its B operand, in shared memory. A fifth group copies both into a ring
 * of stages of 64 columns: 16 KB of inputs, gathered row by row, and 9 KB of codes. At 128 inputs a
 * stage takes the tensor cores 1,024 cycles, so L2 has to give 25 bytes a cycle; the conversion
 * takes 400 issue slots beside them. Of the 96 registers a thread starts with, a producer gives 64
 * back and a consumer gets 16 more. */
#include "cuda/prefill_gemm.cuh"
#include "cuda/prefill_wgmma.cuh"

enum {
    STAGES = 8,
    CONSUMER_WARPS = 16,
    PRODUCERS = 128,
    THREADS = CONSUMER_WARPS * 32 + PRODUCERS,
    X_BYTES = MOE_TILE_ROWS * 128,
    WEIGHT_BYTES = HOPPER_STRIPS * W4_BLOCK_BYTES,
    STAGE_BYTES = X_BYTES + WEIGHT_BYTES,
    SHARED_BYTES = 1024 + STAGES * STAGE_BYTES,
};

#if HAS_WGMMA

typedef struct ring {
    uint32_t stages;      /* shared address of the first */
    uint32_t full, empty; /* of STAGES barriers each */
    int stage;
    uint32_t parity;
} ring;

static __device__ __forceinline__ void ring_advance(ring &r)
{
    if (++r.stage == STAGES) r.stage = 0, r.parity ^= 1;
}

/* The producers: copy all stages of a tile. */
static __device__ __forceinline__ void produce_tile(const gemm_job &job, const moe_tile &tile,
                                                    int32_t row_tile, ring &r,
                                                    uint32_t *row_offsets)
{
    int t = threadIdx.x % PRODUCERS, q = t % 8;
    asm volatile("bar.sync 1, 128;" ::: "memory"); /* the last tile's offsets are no longer read */
    if (t < tile.n_rows) {
        int32_t row = tile.first_row + t;
        if (job.x_rows) row = job.x_rows[row];
        row_offsets[t] = (uint32_t)(row * job.ldx / 8); /* in 16 bytes */
    }
    asm volatile("bar.sync 1, 128;" ::: "memory");
    int32_t n_strips = min((int)HOPPER_STRIPS, job.strips - row_tile * HOPPER_STRIPS);
    const unsigned char *strip =
        job_blocks(job, tile.matrix) +
        (int64_t)(row_tile * HOPPER_STRIPS + t) * job.groups * W4_BLOCK_BYTES;
    const uint4 *x = (const uint4 *)job.x + q;
    uint32_t swizzled = (uint32_t)((t / 8) * 128 + ((q ^ (t / 8 & 7)) << 4));
    for (int32_t k = 0; k < job.groups; k++) {
        barrier_wait(r.empty + r.stage * 8, r.parity ^ 1);
        uint32_t to = r.stages + r.stage * STAGE_BYTES, full = r.full + r.stage * 8;
        if (t == 0) barrier_expect(full, n_strips * W4_BLOCK_BYTES);
        if (t < n_strips) copy_bulk(to + X_BYTES + t * W4_BLOCK_BYTES, strip, W4_BLOCK_BYTES, full);
        to += swizzled;
        for (int row = t / 8; row < tile.n_rows; row += 16, to += 16 * 128)
            copy16_async(to, x + row_offsets[row]);
        barrier_arrive_copies(full);
        strip += W4_BLOCK_BYTES;
        x += 8;
        ring_advance(r);
    }
}

template <int N>
static __device__ __forceinline__ void multiply_first(float (&d)[MOE_TILE_ROWS / 2],
                                                      const uint32_t (&a)[4], uint64_t b)
{
    wgmma_fence();
    wgmma_registers<0>(*(float(*)[N / 2]) & d, a, b);
}

/* A warpgroup: its 64 rows times the tile's inputs. The choice of the product's width stands inside
 * the loop: loops of their own would keep registers of their own, and wgmma would wait for each. */
template <prefill_gemm_output OUTPUT>
static __device__ __forceinline__ void consume_tile(const gemm_job &job, const moe_tile &tile,
                                                    int32_t row_tile, ring &r)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, group = threadIdx.x / 128;
    float d[MOE_TILE_ROWS / 2];
#pragma unroll
    for (int i = 0; i < MOE_TILE_ROWS / 2; i++) d[i] = 0;
    uint32_t a[4][4], previous = 0;
    int32_t strip = min(row_tile * HOPPER_STRIPS + group * 4 + warp, job.strips - 1);
    float factor = job_factors(job, tile.matrix)[strip], inverse = 1 / factor;
    for (int32_t k = 0; k < job.groups; k++) {
        uint32_t stage = r.stages + r.stage * STAGE_BYTES;
        barrier_wait(r.full + r.stage * 8, r.parity);
        fence_async_proxy();
        const char *block = (const char *)__cvta_shared_to_generic(stage) + X_BYTES +
                            (group * 4 + warp) * W4_BLOCK_BYTES;
        uint4 codes = *((const uint4 *)block + lane);
        row_pair p = load_row_pair((const uint32_t *)(block + W4_CODE_BYTES), inverse);
        const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
        uint64_t b = wgmma_descriptor(stage, 1024);
#pragma unroll
        for (int s = 0; s < 4; s++) {
            /* The product that read these four registers, four products ago, is done. */
            wgmma_wait<3>();
            dequantize_word(a[s], words[s], p);
            if (tile.n_rows > 96)
                multiply_first<128>(d, a[s], b + 2 * s);
            else if (tile.n_rows > 64)
                multiply_first<96>(d, a[s], b + 2 * s);
            else if (tile.n_rows > 32)
                multiply_first<64>(d, a[s], b + 2 * s);
            else if (tile.n_rows > 16)
                multiply_first<32>(d, a[s], b + 2 * s);
            else
                multiply_first<16>(d, a[s], b + 2 * s);
            wgmma_commit();
        }
        /* Of the stage before, all products are done. */
        if (k > 0 && lane == 0) barrier_arrive(r.empty + previous * 8);
        previous = r.stage;
        ring_advance(r);
    }
    wgmma_wait<0>();
    wgmma_results(d);
    if (lane == 0) barrier_arrive(r.empty + previous * 8);

    if (row_tile * HOPPER_STRIPS + group * 4 + warp >= job.strips) return;
    int32_t row = strip * W4_STRIP_ROWS + lane / 4;
#pragma unroll
    for (int i = 0; i < MOE_TILE_ROWS / 8; i++) {
        int32_t n = i * 8 + lane % 4 * 2;
        if (n < tile.n_rows)
            store_pair<OUTPUT>(job, tile.first_row + n, row, d[4 * i] * factor,
                               d[4 * i + 2] * factor);
        if (n + 1 < tile.n_rows)
            store_pair<OUTPUT>(job, tile.first_row + n + 1, row, d[4 * i + 1] * factor,
                               d[4 * i + 3] * factor);
    }
}
#endif

template <prefill_gemm_output OUTPUT>
static __global__ void __launch_bounds__(THREADS, 1) gemm_hopper_kernel(gemm_job job)
{
#if HAS_WGMMA
    extern __shared__ char shared[];
    __shared__ uint64_t barriers[2 * STAGES];
    __shared__ uint32_t row_offsets[MOE_TILE_ROWS];
    ring r;
    r.stages = (shared_address(shared) + 1023) / 1024 * 1024;
    r.full = shared_address(barriers);
    r.empty = r.full + STAGES * 8;
    r.stage = 0;
    r.parity = 0;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(r.full + i * 8, PRODUCERS + 1); /* their copies, and the bulk copy */
            barrier_init(r.empty + i * 8, CONSUMER_WARPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    int32_t row_tiles = ceil_div(job.strips, HOPPER_STRIPS), n_work = job_tiles(job) * row_tiles;
    if (threadIdx.x / 32 >= CONSUMER_WARPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
        for (int32_t work = blockIdx.x; work < n_work; work += gridDim.x)
            produce_tile(job, job_tile(job, work / row_tiles), work % row_tiles, r, row_offsets);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 112;");
        for (int32_t work = blockIdx.x; work < n_work; work += gridDim.x)
            consume_tile<OUTPUT>(job, job_tile(job, work / row_tiles), work % row_tiles, r);
    }
#else
    (void)job;
#endif
}

typedef void hopper_kernel(gemm_job);

static hopper_kernel *const hopper_kernels[3] = {gemm_hopper_kernel<PREFILL_STORE_F32>,
                                                 gemm_hopper_kernel<PREFILL_ADD_F32>,
                                                 gemm_hopper_kernel<PREFILL_SWIGLU_F16>};

cudaError_t prefill_gemm_hopper_init()
{
    cudaError_t e = cudaSuccess;
    for (int i = 0; i < 3 && !e; i++)
        e = cudaFuncSetAttribute((const void *)hopper_kernels[i],
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
    return e;
}

cudaError_t prefill_gemm_hopper(const prefill_device *device, const gemm_job *job,
                                prefill_gemm_output output, cudaStream_t stream)
{
    hopper_kernels[output]<<<(unsigned)device->n_sms, THREADS, SHARED_BYTES, stream>>>(*job);
    return cudaGetLastError();
}
