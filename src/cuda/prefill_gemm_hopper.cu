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
enum { PRODUCERS = 128 };

#if HAS_WGMMA

typedef struct ring {
    uint32_t stages;      /* shared address of the first */
    uint32_t full, empty; /* of STAGES barriers each */
    int32_t *work;        // [STAGES] whose tile begins with the stage; shared memory
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
                                                    int32_t row_tile, int32_t work, ring &r)
{
    enum {
        PIECES = W4_BLOCK_BYTES / 16,
        X_COPIES = (SHAPE::INPUTS * 8 + PRODUCERS - 1) / PRODUCERS,
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
    barrier_wait(r.empty + r.stage * 8, r.parity ^ 1);
    if (t == 0) r.work[r.stage] = work;
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

/* Element (row, column) = (lane / 4, lane % 4 * 2) and its right neighbour of an 8 x 8 matrix of
 * halves become those of its transpose. */
static __device__ __forceinline__ uint32_t transpose_halves(uint32_t v)
{
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(v));
    return v;
}

/* d times the factor, gate rows and up rows, to split halves of y: transposed, so that four lanes
 * store the strip's 8 numbers of one input. */
template <typename SHAPE>
static __device__ __forceinline__ void store_swiglu(const gemm_job &job, const moe_tile &tile,
                                                    int32_t strip, float factor,
                                                    const float (&d)[SHAPE::INPUTS / 2])
{
    int lane = threadIdx.x % 32;
    __half *to = (__half *)job.y + (tile.first_row + lane / 4) * job.ldy + split_column(strip * 8) +
                 lane % 4 * 2;
#pragma unroll
    for (int c = 0; c < SHAPE::INPUTS / 8; c++) {
        if (c * 8 >= tile.n_rows) break;
        const float *v = &d[4 * c];
        __half high[2], low[2];
        for (int i = 0; i < 2; i++)
            split_half(silu_fast(v[i] * factor) * (v[i + 2] * factor), high[i], low[i]);
        uint32_t h = transpose_halves(half2_bits(__halves2half2(high[0], high[1])));
        uint32_t l = transpose_halves(half2_bits(__halves2half2(low[0], low[1])));
        if (c * 8 + lane / 4 < tile.n_rows) {
            *(uint32_t *)to = h;
            *(uint32_t *)(to + SPLIT_GROUP) = l;
        }
        to += 8 * job.ldy;
    }
}

/* d times the factor, to y: 16 inputs at a time, whose old values are loaded together. */
template <typename SHAPE, prefill_gemm_output OUTPUT>
static __device__ __forceinline__ void store_tile(const gemm_job &job, const moe_tile &tile,
                                                  int32_t strip, float factor,
                                                  const float (&d)[SHAPE::INPUTS / 2])
{
    int lane = threadIdx.x % 32;
    int32_t row = strip * W4_STRIP_ROWS + lane / 4, left = tile.n_rows - lane % 4 * 2;
    bool here[2] = {row < job.rows, row + 8 < job.rows};
    float *to = (float *)job.y + (tile.first_row + lane % 4 * 2) * job.ldy + row;
#pragma unroll
    for (int i = 0; i < (SHAPE::INPUTS + 15) / 16; i++) {
        if (i * 16 >= tile.n_rows) break;
        float old[8];
#pragma unroll
        for (int j = 0; j < 8 && i * 8 + j < SHAPE::INPUTS / 2; j++) {
            int n = j / 4 * 8 + j % 2;
            bool adds = OUTPUT == PREFILL_ADD_F32 && i * 16 + n < left && here[j / 2 % 2];
            old[j] = adds ? to[n * job.ldy + j / 2 % 2 * 8] : 0;
        }
#pragma unroll
        for (int j = 0; j < 8 && i * 8 + j < SHAPE::INPUTS / 2; j++) {
            int n = j / 4 * 8 + j % 2;
            float v = d[i * 8 + j] * factor;
            if (i * 16 + n < left && here[j / 2 % 2])
                to[n * job.ldy + j / 2 % 2 * 8] = OUTPUT == PREFILL_ADD_F32 ? old[j] + v : v;
        }
        to += 16 * job.ldy;
    }
}

#endif

#if HAS_WGMMA
/* The block's next piece of work, or -1: a tile of inputs by a tile of matrix rows, whose numbers
 * are work / row_tiles and the rest. Those are the tiles of a class, or without a plan all. With a
 * plan a block gets whichever is next for all blocks, so that those that begin late or have large
 * tiles do fewer; each asks once more than there is, and the very last sets the count back. Without
 * a plan all tiles are alike. */
static __device__ __forceinline__ int32_t take_work(const gemm_job &job, int moe_class,
                                                    int32_t row_tiles, int32_t before)
{
    if (!job.tiles) {
        int32_t work = before < 0 ? (int32_t)blockIdx.x : before + (int32_t)gridDim.x;
        return work < job_tiles(job) * row_tiles ? work : -1;
    }
    int32_t first = job.class_ends[moe_class] * row_tiles;
    int32_t n = job.class_ends[moe_class + 1] * row_tiles - first;
    int32_t i = atomicAdd(job.taken + moe_class, 1);
    if (i == n + (int32_t)gridDim.x - 1) job.taken[moe_class] = 0;
    return i < n ? first + i : -1;
}

/* The first producer takes work for all of them. */
template <typename SHAPE>
static __device__ __forceinline__ void produce_tiles(const gemm_job &job, int moe_class, ring &r)
{
    __shared__ int32_t mail[2];
    int32_t work = -1, row_tiles = ceil_div(job.strips, SHAPE::STRIPS);
    for (int turn = 0;; turn ^= 1) {
        if (threadIdx.x % PRODUCERS == 0) mail[turn] = take_work(job, moe_class, row_tiles, work);
        asm volatile("bar.sync 1, %0;" ::"n"((int)PRODUCERS) : "memory");
        work = mail[turn];
        if (work < 0) break;
        produce_tile<SHAPE>(job, job_tile(job, work / row_tiles), work % row_tiles, work, r);
    }
    barrier_wait(r.empty + r.stage * 8, r.parity ^ 1);
    if (threadIdx.x % PRODUCERS == 0) r.work[r.stage] = -1;
    barrier_arrive(r.full + r.stage * 8);
}

template <typename SHAPE, prefill_gemm_output OUTPUT>
static __device__ __forceinline__ void consume_tiles(const gemm_job &job, ring &r)
{
    int32_t row_tiles = ceil_div(job.strips, SHAPE::STRIPS);
    for (;;) {
        barrier_wait(r.full + r.stage * 8, r.parity);
        int32_t work = r.work[r.stage];
        if (work < 0) break;
        moe_tile tile = job_tile(job, work / row_tiles);
        int32_t strip = work % row_tiles * SHAPE::STRIPS + (int32_t)threadIdx.x / 32;
        float factor = job_factors(job, tile.matrix)[min(strip, job.strips - 1)];
        float d[SHAPE::INPUTS / 2];
        multiply_tile<SHAPE>(job, 1 / factor, r, d);
        if (strip >= job.strips) continue;
        if (OUTPUT == PREFILL_SWIGLU_SPLIT)
            store_swiglu<SHAPE>(job, tile, strip, factor, d);
        else
            store_tile<SHAPE, OUTPUT>(job, tile, strip, factor, d);
    }
}
#endif

template <typename SHAPE, prefill_gemm_output OUTPUT>
static __global__ void __launch_bounds__(SHAPE::THREADS, SHAPE::RESIDENT)
    gemm_hopper_kernel(gemm_job job, int moe_class)
{
#if HAS_WGMMA
    extern __shared__ char shared[];
    __shared__ uint64_t barriers[2 * SHAPE::STAGES];
    __shared__ int32_t work[SHAPE::STAGES];
    /* Of the class before it needs nothing. */
    if (moe_class == 0 || !job.tiles)
        wait_for_stream();
    else
        asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    ring r;
    r.stages = (shared_address(shared) + 1023) / 1024 * 1024;
    r.full = shared_address(barriers);
    r.empty = r.full + SHAPE::STAGES * 8;
    r.work = work;
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
    if (threadIdx.x >= SHAPE::CONSUMERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)SHAPE::PRODUCER_REGISTERS));
        produce_tiles<SHAPE>(job, moe_class, r);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)SHAPE::CONSUMER_REGISTERS));
        consume_tiles<SHAPE, OUTPUT>(job, r);
    }
    /* The class before may still run: who waits for this kernel waits for it too. For that one
     * block is enough, and the others make room. */
    if (blockIdx.x == 0) asm volatile("griddepcontrol.wait;" ::: "memory");
#else
    (void)job, (void)moe_class;
#endif
}

/* ---- launches ---- */

typedef void hopper_kernel(gemm_job, int);

typedef struct hopper_launch {
    hopper_kernel *kernels[3]; /* by output */
    int32_t inputs, groups, resident, threads, shared_bytes;
} hopper_launch;

template <int N, int GROUPS, int BLOCKS> static hopper_launch launch_of()
{
    typedef tile_shape<N, GROUPS, BLOCKS> shape;
    return hopper_launch{{gemm_hopper_kernel<shape, PREFILL_STORE_F32>,
                          gemm_hopper_kernel<shape, PREFILL_ADD_F32>,
                          gemm_hopper_kernel<shape, PREFILL_SWIGLU_SPLIT>},
                         N,
                         GROUPS,
                         BLOCKS,
                         shape::THREADS,
                         shape::SHARED_BYTES};
}

/* Those of moe_plan's classes, and one for dense products that leave multiprocessors idle. */
enum { HOPPER_SHAPES = MOE_CLASSES + 1 };
static hopper_launch launch_of_shape(int shape)
{
    switch (shape) {
    case 0:
        return launch_of<128, 4, 1>();
    case 1:
        return launch_of<96, 4, 1>();
    case 2:
        return launch_of<72, 4, 1>();
    case 3:
        return launch_of<64, 4, 1>();
    case 4:
        return launch_of<32, 2, 2>();
    case 5:
        return launch_of<16, 2, 2>();
    default:
        return launch_of<64, 2, 2>();
    }
}

cudaError_t prefill_gemm_hopper_init()
{
    cudaError_t e = cudaSuccess;
    for (int c = 0; c < HOPPER_SHAPES; c++) {
        hopper_launch l = launch_of_shape(c);
        for (int i = 0; i < 3 && !e; i++)
            e = cudaFuncSetAttribute((const void *)l.kernels[i],
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, l.shared_bytes);
    }
    return e;
}

static int64_t row_tiles(const hopper_launch &l, const gemm_job *job)
{
    return ceil_div(job->strips, l.groups * 4);
}

static cudaError_t launch_shape(const prefill_device *device, const gemm_job *job,
                                prefill_gemm_output output, int shape, int64_t max_tiles,
                                cudaStream_t stream)
{
    hopper_launch l = launch_of_shape(shape);
    int64_t n_work = max_tiles * row_tiles(l, job);
    int64_t resident = (int64_t)l.resident * device->n_sms;
    return launch(l.kernels[output], (unsigned)(n_work < resident ? n_work : resident),
                  (unsigned)l.threads, (size_t)l.shared_bytes, stream, *job, shape);
}

/* How long a dense product takes in tiles of a shape: what a multiprocessor does of it one after
 * another, by what the shape was measured to take for a multiply-add. */
static int64_t dense_cost(const prefill_device *device, const gemm_job *job, int shape)
{
    static const int32_t percent[HOPPER_SHAPES] = {100, 102, 115, 117, 187, 327, 129};
    hopper_launch l = launch_of_shape(shape);
    int64_t tiles = ceil_div(job->n_rows, l.inputs) * row_tiles(l, job);
    return ceil_div(tiles, device->n_sms) * (int64_t)(l.groups * l.inputs) * percent[shape];
}

/* Without a plan: the tiles that are done first. */
static int dense_shape(const prefill_device *device, const gemm_job *job)
{
    int best = 0;
    for (int s = 1; s < HOPPER_SHAPES; s++)
        if (dense_cost(device, job, s) < dense_cost(device, job, best)) best = s;
    return best;
}

cudaError_t prefill_gemm_hopper(const prefill_device *device, const gemm_job *job,
                                prefill_gemm_output output, int32_t max_tiles, cudaStream_t stream)
{
    if (!job->tiles) {
        gemm_job dense = *job;
        int s = dense_shape(device, job);
        dense.tile_rows = launch_of_shape(s).inputs;
        return launch_shape(device, &dense, output, s, ceil_div(job->n_rows, dense.tile_rows),
                            stream);
    }
    cudaError_t e = cudaSuccess;
    for (int c = 0; c < MOE_CLASSES && !e; c++)
        e = launch_shape(device, job, output, c, max_tiles, stream);
    return e;
}
