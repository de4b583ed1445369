/* Linear layers of prefill on Hopper: Y^T = W X^T with wgmma. Warpgroups hold 64 rows of the matrix
 * each: 4-bit codes become halves in registers, in the order of wgmma's A fragment; the inputs are
 * its B operand, in shared memory: the high halves, then the low ones, with the same converted
 * codes. One more group of threads copies both into a ring of stages of 64 columns, inputs gathered
 * row by row. With 256 rows and 128 inputs a stage is 32 KB of inputs and 9 KB of codes and takes
 * the tensor cores 2,048 cycles: L2 has to give 20 bytes a cycle. Converting the codes takes some
 * 600 issue slots of the four schedulers' 2,048 beside them; tiles of few inputs are bound by it.
 */
#include "cuda/prefill_gemm.cuh"
#include "cuda/prefill_wgmma.cuh"

/* N inputs by GROUPS warpgroups of 64 rows; blocks of it that fit a multiprocessor. */
template <int N, int GROUPS, int BLOCKS> struct tile_shape {
    enum {
        INPUTS = N,
        STRIPS = GROUPS * 4,
        RESIDENT = BLOCKS,
        CONSUMERS = GROUPS * 128,
        THREADS = CONSUMERS + 128,
        PLANE_BYTES = N * SPLIT_GROUP * 2, /* high or low halves */
        X_BYTES = 2 * PLANE_BYTES,
        STAGE_BYTES = (X_BYTES + STRIPS * W4_BLOCK_BYTES + 1023) / 1024 * 1024,
        STAGES = (232448 / BLOCKS - (BLOCKS > 1 ? 2048 : 1024) - 1024) / STAGE_BYTES,
        SHARED_BYTES = 1024 + STAGES * STAGE_BYTES,
        /* Registers of the two kinds of thread, of which equally many start. */
        PRODUCER_REGISTERS = BLOCKS > 1 ? 56 : 32,
        CONSUMER_REGISTERS = BLOCKS > 1 ? 88 : 112,
    };
};
/* By the classes of moe_plan. */
typedef tile_shape<128, 4, 1> large_tile;
typedef tile_shape<64, 4, 1> medium_tile;
typedef tile_shape<32, 2, 2> small_tile;
enum { PRODUCERS = 128 };

#if HAS_WGMMA

typedef struct ring {
    uint32_t stages;      /* shared address of the first */
    uint32_t full, empty; /* of STAGES barriers each */
    int stage;
    uint32_t parity;
} ring;

template <typename SHAPE> static __device__ __forceinline__ void ring_advance(ring &r)
{
    if (++r.stage == SHAPE::STAGES) r.stage = 0, r.parity ^= 1;
}

/* The producers: copy all stages of a tile, 16 bytes a copy. What a thread copies of a stage, it
 * copies of the next one 64 columns on. */
template <typename SHAPE>
static __device__ __forceinline__ void produce_tile(const gemm_job &job, const moe_tile &tile,
                                                    int32_t row_tile, ring &r)
{
    enum {
        PIECES = W4_BLOCK_BYTES / 16,
        X_COPIES = SHAPE::INPUTS * 8 / PRODUCERS,
        STRIP_THREADS = PRODUCERS / SHAPE::STRIPS,
        WEIGHT_COPIES = (PIECES + STRIP_THREADS - 1) / STRIP_THREADS,
    };
    int t = threadIdx.x % PRODUCERS, q = t % 8;
    uint32_t x_offsets[X_COPIES]; /* in 16 bytes */
#pragma unroll
    for (int i = 0; i < X_COPIES; i++) {
        int32_t row = tile.first_row + min(t / 8 + i * (PRODUCERS / 8), tile.n_rows - 1);
        if (job.x_rows) row = job.x_rows[row];
        x_offsets[i] = (uint32_t)(row * job.ldx / 8) + q;
    }
    int strip = t / STRIP_THREADS, piece = t % STRIP_THREADS;
    int n_pieces = row_tile * SHAPE::STRIPS + strip < job.strips ? PIECES - piece : 0;
    const uint4 *x = (const uint4 *)job.x;
    const uint4 *weights = (const uint4 *)job_blocks(job, tile.matrix) + piece +
                           (int64_t)(row_tile * SHAPE::STRIPS + strip) * job.groups * PIECES;
    uint32_t weight_to = SHAPE::X_BYTES + strip * W4_BLOCK_BYTES + piece * 16;
    uint32_t swizzled = (uint32_t)((t / 8) * 128 + ((q ^ (t / 8 & 7)) << 4));
    for (int32_t k = 0; k < job.groups; k++) {
        barrier_wait(r.empty + r.stage * 8, r.parity ^ 1);
        uint32_t to = r.stages + r.stage * SHAPE::STAGE_BYTES;
#pragma unroll
        for (int i = 0; i < WEIGHT_COPIES; i++)
            if (i * STRIP_THREADS < n_pieces)
                copy16_async(to + weight_to + i * STRIP_THREADS * 16, weights + i * STRIP_THREADS);
#pragma unroll
        for (int i = 0; i < X_COPIES; i++)
            if (t / 8 + i * (PRODUCERS / 8) < tile.n_rows) {
                uint32_t row_to = to + swizzled + i * (PRODUCERS / 8) * 128;
                copy16_async(row_to, x + x_offsets[i]);
                copy16_async(row_to + SHAPE::PLANE_BYTES, x + x_offsets[i] + SPLIT_GROUP / 8);
            }
        barrier_arrive_copies(r.full + r.stage * 8);
        weights += PIECES;
        x += 2 * SPLIT_GROUP / 8;
        ring_advance<SHAPE>(r);
    }
}

/* A warpgroup: d = its 64 rows times the tile's inputs. */
template <typename SHAPE>
static __device__ __forceinline__ void multiply_tile(const gemm_job &job, float inverse_factor,
                                                     ring &r, float (&d)[SHAPE::INPUTS / 2])
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t a[4][4], previous = 0;
#pragma unroll
    for (int i = 0; i < SHAPE::INPUTS / 2; i++) d[i] = 0;
#pragma unroll 1
    for (int32_t k = 0; k < job.groups; k++) {
        uint32_t stage = r.stages + r.stage * SHAPE::STAGE_BYTES;
        barrier_wait(r.full + r.stage * 8, r.parity);
        fence_async_proxy();
        const char *block =
            (const char *)__cvta_shared_to_generic(stage) + SHAPE::X_BYTES + warp * W4_BLOCK_BYTES;
        uint4 codes = *((const uint4 *)block + lane);
        row_pair p = load_row_pair((const uint32_t *)(block + W4_CODE_BYTES), inverse_factor);
        const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
        uint64_t high = wgmma_descriptor(stage, 1024);
        uint64_t low = wgmma_descriptor(stage + SHAPE::PLANE_BYTES, 1024);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            /* Done is what read these registers, and with the second half the stage before. */
            wgmma_wait<1>();
            if (half == 1 && k > 0) barrier_arrive(r.empty + previous * 8);
            dequantize_word(a[2 * half], words[2 * half], p);
            dequantize_word(a[2 * half + 1], words[2 * half + 1], p);
            wgmma_fence();
            wgmma_registers<0>(d, a[2 * half], low + 4 * half);
            wgmma_registers<0>(d, a[2 * half], high + 4 * half);
            wgmma_registers<0>(d, a[2 * half + 1], low + 4 * half + 2);
            wgmma_registers<0>(d, a[2 * half + 1], high + 4 * half + 2);
            wgmma_commit();
        }
        previous = r.stage;
        ring_advance<SHAPE>(r);
    }
    wgmma_wait<0>();
    wgmma_results(d);
    barrier_arrive(r.empty + previous * 8);
}

/* d times the factor, to y: 16 inputs at a time, whose old values are loaded together. */
template <typename SHAPE, prefill_gemm_output OUTPUT>
static __device__ __forceinline__ void store_tile(const gemm_job &job, const moe_tile &tile,
                                                  int32_t strip, float factor,
                                                  const float (&d)[SHAPE::INPUTS / 2])
{
    int lane = threadIdx.x % 32;
    int32_t row = strip * W4_STRIP_ROWS + lane / 4;
#pragma unroll
    for (int i = 0; i < SHAPE::INPUTS / 16; i++) {
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

#endif

/* The tiles of one class, or without a plan all rows. */
template <typename SHAPE, prefill_gemm_output OUTPUT>
static __global__ void __launch_bounds__(SHAPE::THREADS, SHAPE::RESIDENT)
    gemm_hopper_kernel(gemm_job job, int moe_class)
{
#if HAS_WGMMA
    extern __shared__ char shared[];
    __shared__ uint64_t barriers[2 * SHAPE::STAGES];
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    ring r;
    r.stages = (shared_address(shared) + 1023) / 1024 * 1024;
    r.full = shared_address(barriers);
    r.empty = r.full + SHAPE::STAGES * 8;
    r.stage = 0;
    r.parity = 0;
    if (threadIdx.x == 0) {
        for (int i = 0; i < SHAPE::STAGES; i++) {
            barrier_init(r.full + i * 8, PRODUCERS);
            barrier_init(r.empty + i * 8, SHAPE::CONSUMERS); /* each lane has read codes */
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    int32_t row_tiles = ceil_div(job.strips, SHAPE::STRIPS);
    int32_t first = job.tiles ? job.class_ends[moe_class] : 0;
    int32_t end = job.tiles ? job.class_ends[moe_class + 1] : job_tiles(job);
    int32_t n_work = (end - first) * row_tiles;
    if (threadIdx.x >= SHAPE::CONSUMERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)SHAPE::PRODUCER_REGISTERS));
        for (int32_t work = blockIdx.x; work < n_work; work += gridDim.x)
            produce_tile<SHAPE>(job, job_tile(job, first + work / row_tiles), work % row_tiles, r);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)SHAPE::CONSUMER_REGISTERS));
        for (int32_t work = blockIdx.x; work < n_work; work += gridDim.x) {
            moe_tile tile = job_tile(job, first + work / row_tiles);
            int32_t strip = work % row_tiles * SHAPE::STRIPS + (int32_t)threadIdx.x / 32;
            float factor = job_factors(job, tile.matrix)[min(strip, job.strips - 1)];
            float d[SHAPE::INPUTS / 2];
            multiply_tile<SHAPE>(job, 1 / factor, r, d);
            if (strip < job.strips) store_tile<SHAPE, OUTPUT>(job, tile, strip, factor, d);
        }
    }
    /* The class before may still run: who waits for this kernel waits for it too. */
    asm volatile("griddepcontrol.wait;" ::: "memory");
#else
    (void)job, (void)moe_class;
#endif
}

/* ---- launches ---- */

typedef void hopper_kernel(gemm_job, int);

typedef struct hopper_launch {
    hopper_kernel *kernels[3]; /* by output */
    int32_t inputs, strips, resident, threads, shared_bytes;
} hopper_launch;

template <typename SHAPE> static hopper_launch launch_of()
{
    return hopper_launch{{gemm_hopper_kernel<SHAPE, PREFILL_STORE_F32>,
                          gemm_hopper_kernel<SHAPE, PREFILL_ADD_F32>,
                          gemm_hopper_kernel<SHAPE, PREFILL_SWIGLU_SPLIT>},
                         SHAPE::INPUTS,
                         SHAPE::STRIPS,
                         SHAPE::RESIDENT,
                         SHAPE::THREADS,
                         SHAPE::SHARED_BYTES};
}

static hopper_launch launch_of_class(int moe_class)
{
    return moe_class == 0   ? launch_of<large_tile>()
           : moe_class == 1 ? launch_of<medium_tile>()
                            : launch_of<small_tile>();
}

cudaError_t prefill_gemm_hopper_init()
{
    cudaError_t e = cudaSuccess;
    for (int c = 0; c < MOE_CLASSES; c++) {
        hopper_launch l = launch_of_class(c);
        for (int i = 0; i < 3 && !e; i++)
            e = cudaFuncSetAttribute((const void *)l.kernels[i],
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, l.shared_bytes);
    }
    return e;
}

/* overlaps: may start while the kernel before it ends, of whose results it needs none. */
static cudaError_t launch_class(const prefill_device *device, const gemm_job *job,
                                prefill_gemm_output output, int moe_class, int64_t max_tiles,
                                bool overlaps, cudaStream_t stream)
{
    hopper_launch l = launch_of_class(moe_class);
    int64_t n_work = max_tiles * ceil_div(job->strips, l.strips);
    int64_t resident = (int64_t)l.resident * device->n_sms;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)(n_work < resident ? n_work : resident));
    config.blockDim = dim3((unsigned)l.threads);
    config.dynamicSmemBytes = (size_t)l.shared_bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = overlaps ? 1 : 0;
    return cudaLaunchKernelEx(&config, l.kernels[output], *job, moe_class);
}

/* Without a plan: tiles as large as leaves work for all multiprocessors. */
static int dense_class(const prefill_device *device, const gemm_job *job)
{
    int c = 0;
    for (; c < MOE_CLASSES - 1; c++) {
        hopper_launch l = launch_of_class(c);
        if (ceil_div(job->n_rows, l.inputs) * ceil_div(job->strips, l.strips) >= device->n_sms)
            break;
    }
    return c;
}

cudaError_t prefill_gemm_hopper(const prefill_device *device, const gemm_job *job,
                                prefill_gemm_output output, int32_t max_tiles, cudaStream_t stream)
{
    if (!job->tiles) {
        gemm_job dense = *job;
        int c = dense_class(device, job);
        dense.tile_rows = launch_of_class(c).inputs;
        return launch_class(device, &dense, output, c, ceil_div(job->n_rows, dense.tile_rows),
                            false, stream);
    }
    cudaError_t e = cudaSuccess;
    for (int c = 0; c < MOE_CLASSES && !e; c++)
        e = launch_class(device, job, output, c, max_tiles, c > 0, stream);
    return e;
}
