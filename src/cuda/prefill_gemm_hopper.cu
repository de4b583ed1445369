/* Linear layers of prefill on Hopper: Y^T = W X^T with wgmma. Four warpgroups hold 64 rows of the
 * matrix each: 4-bit codes become halves in registers, in the order of wgmma's A fragment; up to
 * 128 inputs are its B operand, in shared memory. A fifth group copies both into a ring
 * of stages of 64 columns: 16 KB of inputs, gathered row by row, and 9 KB of codes. At 128 inputs a
 * stage takes the tensor cores 1,024 cycles, so L2 has to give 25 bytes a cycle; the conversion
 * takes 400 issue slots beside them. Of the 96 registers a thread starts with, a producer gives 32
 * back and a consumer gets 8 more. */
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

/* The producers: copy all stages of a tile, 16 bytes a copy. What a thread copies of a stage, it
 * copies of the next one 64 columns on. */
static __device__ __forceinline__ void produce_tile(const gemm_job &job, const moe_tile &tile,
                                                    int32_t row_tile, ring &r)
{
    enum {
        PIECES = W4_BLOCK_BYTES / 16,
        X_COPIES = MOE_TILE_ROWS * 8 / PRODUCERS,
        WEIGHT_COPIES = (HOPPER_STRIPS * PIECES + PRODUCERS - 1) / PRODUCERS,
    };
    int t = threadIdx.x % PRODUCERS, q = t % 8;
    uint32_t x_offsets[X_COPIES], weight_offsets[WEIGHT_COPIES]; /* in 16 bytes */
#pragma unroll
    for (int i = 0; i < X_COPIES; i++) {
        int32_t row = tile.first_row + min(t / 8 + i * (PRODUCERS / 8), tile.n_rows - 1);
        if (job.x_rows) row = job.x_rows[row];
        x_offsets[i] = (uint32_t)(row * job.ldx / 8) + q;
    }
#pragma unroll
    for (int i = 0; i < WEIGHT_COPIES; i++) {
        int piece = t + i * PRODUCERS, strip = row_tile * HOPPER_STRIPS + piece / PIECES;
        weight_offsets[i] = (uint32_t)(strip * job.groups * PIECES + piece % PIECES);
    }
    int32_t n_pieces = min((int)HOPPER_STRIPS, job.strips - row_tile * HOPPER_STRIPS) * PIECES;
    const uint4 *weights = (const uint4 *)job_blocks(job, tile.matrix), *x = (const uint4 *)job.x;
    uint32_t swizzled = (uint32_t)((t / 8) * 128 + ((q ^ (t / 8 & 7)) << 4));
    for (int32_t k = 0; k < job.groups; k++) {
        barrier_wait(r.empty + r.stage * 8, r.parity ^ 1);
        uint32_t to = r.stages + r.stage * STAGE_BYTES;
#pragma unroll
        for (int i = 0; i < WEIGHT_COPIES; i++)
            if (t + i * PRODUCERS < n_pieces)
                copy16_async(to + X_BYTES + (t + i * PRODUCERS) * 16, weights + weight_offsets[i]);
#pragma unroll
        for (int i = 0; i < X_COPIES; i++)
            if (t / 8 + i * (PRODUCERS / 8) < tile.n_rows)
                copy16_async(to + swizzled + i * (PRODUCERS / 8) * 128, x + x_offsets[i]);
        barrier_arrive_copies(r.full + r.stage * 8);
        weights += PIECES;
        x += 8;
        ring_advance(r);
    }
}

/* d += a step of 16 columns, for the tile's first N inputs. */
template <int N>
static __device__ __forceinline__ void multiply_step(float (&d)[MOE_TILE_ROWS / 2],
                                                     const uint32_t (&a)[4], uint64_t b)
{
    wgmma_fence();
    wgmma_registers<0>(*(float(*)[N / 2]) & d, a, b);
}

/* A warpgroup: d = its 64 rows times the tile's inputs. The choice of the product's width stands
 * inside the loop: loops of their own would keep registers of their own, and the compiler would
 * wait after each product for want of registers. */
static __device__ __forceinline__ void multiply_tile(const gemm_job &job, const moe_tile &tile,
                                                     float inverse_factor, ring &r,
                                                     float (&d)[MOE_TILE_ROWS / 2])
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t a[2][2][4], previous = 0;
#pragma unroll
    for (int i = 0; i < MOE_TILE_ROWS / 2; i++) d[i] = 0;
    for (int32_t k = 0; k < job.groups; k++) {
        uint32_t stage = r.stages + r.stage * STAGE_BYTES;
        barrier_wait(r.full + r.stage * 8, r.parity);
        fence_async_proxy();
        const char *block =
            (const char *)__cvta_shared_to_generic(stage) + X_BYTES + warp * W4_BLOCK_BYTES;
        uint4 codes = *((const uint4 *)block + lane);
        row_pair p = load_row_pair((const uint32_t *)(block + W4_CODE_BYTES), inverse_factor);
        const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
        uint64_t b = wgmma_descriptor(stage, 1024);
#pragma unroll
        for (int s = 0; s < 4; s++) {
            if (s % 2 == 0) wgmma_wait<1>();
            /* Done is what read these registers, and then the stage before. */
            if (s == 2 && k > 0 && lane == 0) barrier_arrive(r.empty + previous * 8);
            if (s % 2 == 0) {
                dequantize_word(a[s / 2][0], words[s], p);
                dequantize_word(a[s / 2][1], words[s + 1], p);
            }
            if (tile.n_rows > 96)
                multiply_step<128>(d, a[s / 2][s % 2], b + 2 * s);
            else if (tile.n_rows > 64)
                multiply_step<96>(d, a[s / 2][s % 2], b + 2 * s);
            else if (tile.n_rows > 32)
                multiply_step<64>(d, a[s / 2][s % 2], b + 2 * s);
            else if (tile.n_rows > 16)
                multiply_step<32>(d, a[s / 2][s % 2], b + 2 * s);
            else
                multiply_step<16>(d, a[s / 2][s % 2], b + 2 * s);
            if (s % 2 == 1) wgmma_commit();
        }
        previous = r.stage;
        ring_advance(r);
    }
    wgmma_wait<0>();
    wgmma_results(d);
    if (lane == 0) barrier_arrive(r.empty + previous * 8);
}

/* d times the factor, to y: 16 inputs at a time, whose old values are loaded together. */
template <prefill_gemm_output OUTPUT>
static __device__ __forceinline__ void store_tile(const gemm_job &job, const moe_tile &tile,
                                                  int32_t strip, float factor,
                                                  const float (&d)[MOE_TILE_ROWS / 2])
{
    int lane = threadIdx.x % 32;
    int32_t row = strip * W4_STRIP_ROWS + lane / 4;
#pragma unroll
    for (int i = 0; i < MOE_TILE_ROWS / 16; i++) {
        float2 old[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int32_t n = i * 16 + j / 2 * 8 + lane % 4 * 2 + j % 2;
            old[j] = float2{0, 0};
            if (n < tile.n_rows) old[j] = load_pair<OUTPUT>(job, tile.first_row + n, row);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int32_t n = i * 16 + j / 2 * 8 + lane % 4 * 2 + j % 2;
            const float *v = &d[(i * 2 + j / 2) * 4 + j % 2];
            if (n < tile.n_rows)
                store_pair<OUTPUT>(job, tile.first_row + n, row, v[0] * factor, v[2] * factor,
                                   old[j]);
        }
    }
}

template <prefill_gemm_output OUTPUT>
static __device__ __forceinline__ void consume_tile(const gemm_job &job, const moe_tile &tile,
                                                    int32_t row_tile, ring &r)
{
    float d[MOE_TILE_ROWS / 2];
    int32_t strip = row_tile * HOPPER_STRIPS + (int32_t)threadIdx.x / 32;
    float factor = job_factors(job, tile.matrix)[min(strip, job.strips - 1)];
    multiply_tile(job, tile, 1 / factor, r, d);
    if (strip < job.strips) store_tile<OUTPUT>(job, tile, strip, factor, d);
}
#endif

template <prefill_gemm_output OUTPUT>
static __global__ void __launch_bounds__(THREADS, 1) gemm_hopper_kernel(gemm_job job)
{
#if HAS_WGMMA
    extern __shared__ char shared[];
    __shared__ uint64_t barriers[2 * STAGES];
    ring r;
    r.stages = (shared_address(shared) + 1023) / 1024 * 1024;
    r.full = shared_address(barriers);
    r.empty = r.full + STAGES * 8;
    r.stage = 0;
    r.parity = 0;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(r.full + i * 8, PRODUCERS);
            barrier_init(r.empty + i * 8, CONSUMER_WARPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    int32_t row_tiles = ceil_div(job.strips, HOPPER_STRIPS), n_work = job_tiles(job) * row_tiles;
    if (threadIdx.x / 32 >= CONSUMER_WARPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 64;");
        for (int32_t work = blockIdx.x; work < n_work; work += gridDim.x)
            produce_tile(job, job_tile(job, work / row_tiles), work % row_tiles, r);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 104;");
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
