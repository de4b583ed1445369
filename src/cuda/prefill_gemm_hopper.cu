/* Linear layers of prefill on Hopper: Y^T = W X^T with wgmma. Warpgroups hold 64 rows of the matrix
 * each: 4-bit codes become halves in registers, in the order of wgmma's A fragment; the inputs are
 * its B operand, in shared memory: the high halves, then the low ones, with the same converted
 * codes. One more group of threads copies both into a ring of stages of 64 to 256 columns, inputs
 * gathered row by row. With 256 rows and 128 inputs a stage is 32 KB of inputs and 9 KB of codes
 * and takes the tensor cores 2,048 cycles: L2 has to give 20 bytes a cycle. Converting the codes
 * takes some 350 issue slots of the four schedulers' 2,048 beside them; tiles of few inputs are
 * bound by it. */
#include "cuda/prefill_gemm.cuh"
#include "cuda/prefill_wgmma.cuh"

#include <initializer_list>

/* N inputs by GROUPS warpgroups of 64 rows, SPAN groups of 64 columns a stage. BLOCKS of it fit a
 * multiprocessor. */
template <int N, int GROUPS, int BLOCKS, int SPAN_> struct tile_shape {
    enum {
        INPUTS = N,
        STRIPS = GROUPS * 4,
        RESIDENT = BLOCKS,
        SPAN = SPAN_,
        CONSUMERS = GROUPS * 128,
        THREADS = CONSUMERS + 128,
        PLANE_BYTES = N * SPLIT_GROUP * 2, /* high or low halves of a group */
        GROUP_BYTES = 2 * PLANE_BYTES,
        X_BYTES = SPAN * GROUP_BYTES,
        STRIP_BYTES = SPAN * W4_BLOCK_BYTES,
        STAGE_BYTES = (X_BYTES + STRIPS * STRIP_BYTES + 1023) / 1024 * 1024,
        STAGES = (232448 / BLOCKS - (BLOCKS > 1 ? 2048 : 1024) - 1024) / STAGE_BYTES,
        SHARED_BYTES = 1024 + STAGES * STAGE_BYTES,
        /* Registers of the two kinds of thread, of which equally many start. */
        PRODUCER_REGISTERS = BLOCKS > 1 ? 56 : 32,
        CONSUMER_REGISTERS = BLOCKS > 1 ? 88 : 112,
    };
};
enum { PRODUCERS = 128, MAX_STAGES = 9 };

#if HAS_WGMMA

typedef struct ring {
    uint32_t stages;      /* shared address of the first */
    uint32_t full, empty; /* of MAX_STAGES barriers each */
    int32_t *work;        // [MAX_STAGES] whose tile begins with the stage; shared memory
    int stage;
    uint32_t parity;
} ring;

/* v of lane 0, which is that of all. */
static __device__ __forceinline__ uint32_t uniform(uint32_t v)
{
    return __shfl_sync(0xffffffffu, v, 0);
}

template <typename SHAPE> static __device__ __forceinline__ void ring_advance(ring &r)
{
    if (++r.stage == SHAPE::STAGES) r.stage = 0, r.parity ^= 1;
}

/* What a producer copies of a tile's stages: 16-byte pieces, of the next stage those SPAN groups
 * on. */
template <typename SHAPE> struct copies {
    enum {
        PIECES = W4_BLOCK_BYTES / 16,
        SPAN_PIECES = SHAPE::SPAN * PIECES,
        ROWS = PRODUCERS / 8, /* inputs that are copied side by side */
        X_COPIES = (SHAPE::INPUTS + ROWS - 1) / ROWS,
        STRIP_THREADS = PRODUCERS / SHAPE::STRIPS,
        WEIGHT_COPIES = (SPAN_PIECES + STRIP_THREADS - 1) / STRIP_THREADS,
    };
    const uint4 *weights, *x;
    uint32_t x_offsets[X_COPIES]; /* in 16 bytes */
    uint32_t weights_to, x_to;    /* within a stage */
    int row, n_rows, piece, n_pieces;

    __device__ __forceinline__ copies(const gemm_job &job, const moe_tile &tile, int32_t row_tile)
    {
        unsigned t = threadIdx.x % PRODUCERS;
        unsigned q = t % 8, strip = t / STRIP_THREADS;
        uint32_t pitch = (uint32_t)job.ldx / 8;
        row = (int)(t / 8), n_rows = tile.n_rows, piece = (int)(t % STRIP_THREADS);
#pragma unroll
        for (int i = 0; i < X_COPIES; i++) {
            int32_t from = tile.first_row + min(row + i * ROWS, tile.n_rows - 1);
            if (job.x_rows) from = job.x_rows[from];
            x_offsets[i] = (uint32_t)from * pitch + q;
        }
        int32_t matrix_strip = row_tile * SHAPE::STRIPS + (int32_t)strip;
        n_pieces = matrix_strip < job.strips ? SPAN_PIECES - piece : 0;
        x = (const uint4 *)job.x;
        weights = (const uint4 *)job_blocks(job, tile.matrix) + piece +
                  (int64_t)matrix_strip * job.groups * PIECES;
        weights_to = SHAPE::X_BYTES + strip * SHAPE::STRIP_BYTES + (uint32_t)piece * 16;
        x_to = (uint32_t)row * 128 + ((q ^ (row & 7)) << 4);
    }
    /* `left` groups are left, all SPAN of a WHOLE stage; behind them zeros. */
    template <bool WHOLE> __device__ __forceinline__ void stage(uint32_t to, int left) const
    {
#pragma unroll
        for (int i = 0; i < WEIGHT_COPIES; i++)
            if ((SPAN_PIECES % STRIP_THREADS == 0 ? 0 : i * STRIP_THREADS) < n_pieces)
                piece_to<WHOLE>(to + weights_to + i * STRIP_THREADS * 16,
                                weights + i * STRIP_THREADS,
                                piece + i * STRIP_THREADS < left * PIECES);
#pragma unroll
        for (int i = 0; i < X_COPIES; i++)
            if (row + i * ROWS < n_rows)
#pragma unroll
                for (int s = 0; s < SHAPE::SPAN; s++) {
                    uint32_t row_to = to + x_to + i * ROWS * 128 + s * SHAPE::GROUP_BYTES;
                    const uint4 *from = x + x_offsets[i] + s * (2 * SPLIT_GROUP / 8);
                    piece_to<WHOLE>(row_to, from, s < left);
                    piece_to<WHOLE>(row_to + SHAPE::PLANE_BYTES, from + SPLIT_GROUP / 8, s < left);
                }
    }
    template <bool WHOLE>
    static __device__ __forceinline__ void piece_to(uint32_t to, const uint4 *from, bool copy)
    {
        if (WHOLE)
            copy16_async(to, from);
        else
            copy16_or_zero_async(to, from, copy);
    }
    __device__ __forceinline__ void advance()
    {
        weights += SPAN_PIECES;
        x += SHAPE::SPAN * 2 * SPLIT_GROUP / 8;
    }
};

/* The producers: copy all stages of a tile. */
template <typename SHAPE>
static __device__ __forceinline__ void produce_tile(const gemm_job &job, const moe_tile &tile,
                                                    int32_t row_tile, int32_t work, ring &r)
{
    copies<SHAPE> c(job, tile, row_tile);
    barrier_wait(r.empty + r.stage * 8, r.parity ^ 1);
    if (threadIdx.x == SHAPE::CONSUMERS) r.work[r.stage] = work;
#pragma unroll 1
    for (int32_t left = job.groups; left > 0; left -= SHAPE::SPAN) {
        barrier_wait(r.empty + r.stage * 8, r.parity ^ 1);
        uint32_t to = r.stages + r.stage * SHAPE::STAGE_BYTES;
        if (SHAPE::SPAN == 1 || left >= SHAPE::SPAN)
            c.template stage<true>(to, SHAPE::SPAN);
        else
            c.template stage<false>(to, left);
        barrier_arrive_copies(uniform(r.full + r.stage * 8));
        c.advance();
        ring_advance<SHAPE>(r);
    }
}

/* A warpgroup: d = its 64 rows times the tile's inputs. */
template <typename SHAPE>
static __device__ __forceinline__ void multiply_tile(const gemm_job &job, float inverse_factor,
                                                     ring &r, float (&d)[SHAPE::INPUTS / 2])
{
    enum { BATCH = 2, BATCHES = 4 / BATCH }; /* words of codes, 16 columns each */
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t a[2][BATCH][4], previous = 0;
    uint32_t codes_at = SHAPE::X_BYTES + warp * SHAPE::STRIP_BYTES + lane * 16;
    uint32_t pairs_at = SHAPE::X_BYTES + warp * SHAPE::STRIP_BYTES + W4_CODE_BYTES + lane / 4 * 4;
    asm volatile("" : "+r"(codes_at), "+r"(pairs_at)); /* not again for each stage */
#pragma unroll
    for (int i = 0; i < SHAPE::INPUTS / 2; i++) d[i] = 0;
#pragma unroll 1
    for (int32_t k = 0; k < job.groups; k += SHAPE::SPAN) {
        /* Of all lanes: descriptors are then made in uniform registers. */
        uint32_t stage = uniform(r.stages + r.stage * SHAPE::STAGE_BYTES);
        barrier_wait(r.full + r.stage * 8, r.parity);
        fence_async_proxy();
        const char *codes_from = (const char *)__cvta_shared_to_generic(stage + codes_at);
        const char *pairs_from = (const char *)__cvta_shared_to_generic(stage + pairs_at);
        uint4 codes[SHAPE::SPAN];
        row_pair pairs[SHAPE::SPAN];
#pragma unroll
        for (int s = 0; s < SHAPE::SPAN; s++) {
            codes[s] = *(const uint4 *)(codes_from + s * W4_BLOCK_BYTES);
            const uint32_t *pair = (const uint32_t *)(pairs_from + s * W4_BLOCK_BYTES);
            pairs[s] = make_row_pair(pair[0], pair[8], inverse_factor);
        }
#pragma unroll
        for (int b = 0; b < SHAPE::SPAN * BATCHES; b++) {
            int s = b / BATCHES, first = b % BATCHES * BATCH;
            const uint32_t words[4] = {codes[s].x, codes[s].y, codes[s].z, codes[s].w};
            uint64_t high = wgmma_descriptor(stage + s * SHAPE::GROUP_BYTES, 1024);
            uint64_t low = high + SHAPE::PLANE_BYTES / 16;
            /* Done is what read these registers, and at the second batch the stage before. */
            wgmma_wait<1>();
            if (b == 1 && k > 0) barrier_arrive(r.empty + previous * 8);
#pragma unroll
            for (int i = 0; i < BATCH; i++)
                dequantize_word(a[b % 2][i], words[first + i], pairs[s]);
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                wgmma_registers<0>(d, a[b % 2][i], low + 2 * (first + i));
                wgmma_registers<0>(d, a[b % 2][i], high + 2 * (first + i));
            }
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
        if (threadIdx.x == SHAPE::CONSUMERS)
            mail[turn] = take_work(job, moe_class, row_tiles, work);
        asm volatile("bar.sync 1, %0;" ::"n"((int)PRODUCERS) : "memory");
        work = mail[turn];
        if (work < 0) break;
        produce_tile<SHAPE>(job, job_tile(job, work / row_tiles), work % row_tiles, work, r);
    }
    barrier_wait(r.empty + r.stage * 8, r.parity ^ 1);
    if (threadIdx.x == SHAPE::CONSUMERS) r.work[r.stage] = -1;
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

/* All threads of the block: the ring as the shape needs it, after another's, if any, is done with
 * it. */
template <typename SHAPE> static __device__ __forceinline__ void ring_begin(ring &r, bool again)
{
    static_assert((int)SHAPE::STAGES <= MAX_STAGES);
    uint32_t i = threadIdx.x;
    __syncthreads();
    if (i < 2 * MAX_STAGES) {
        if (again) barrier_end(r.full + i * 8);
        /* Each lane of the consumers has read codes. */
        barrier_init(r.full + i * 8, i < MAX_STAGES ? (int)PRODUCERS : (int)SHAPE::CONSUMERS);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    r.stage = 0;
    r.parity = 0;
}

/* A kind of thread's part in the tiles of a class, or without a plan in all. */
template <typename SHAPE, prefill_gemm_output OUTPUT, bool PRODUCES>
static __device__ __forceinline__ void do_class(const gemm_job &job, int moe_class, ring &r,
                                                bool &again)
{
    if (job.tiles && job.class_ends[moe_class] == job.class_ends[moe_class + 1]) return;
    ring_begin<SHAPE>(r, again);
    again = true;
    if (PRODUCES)
        produce_tiles<SHAPE>(job, moe_class, r);
    else
        consume_tiles<SHAPE, OUTPUT>(job, r);
}
#endif

/* One shape for all tiles, or with a plan one for each class. In one kernel, so that no class waits
 * for the slowest block of the one before. */
template <prefill_gemm_output OUTPUT, typename SHAPE, typename... SHAPES>
static __global__ void __launch_bounds__(SHAPE::THREADS, SHAPE::RESIDENT)
    gemm_hopper_kernel(gemm_job job)
{
#if HAS_WGMMA
    extern __shared__ char shared[];
    __shared__ uint64_t barriers[2 * MAX_STAGES];
    __shared__ int32_t work[MAX_STAGES];
    wait_for_stream();
    ring r;
    r.stages = (shared_address(shared) + 1023) / 1024 * 1024;
    asm volatile("" : "+r"(r.stages)); /* not again for each stage */
    r.full = shared_address(barriers);
    r.empty = r.full + MAX_STAGES * 8;
    r.work = work;
    bool again = false;
    int c = 0;
    if (threadIdx.x >= SHAPE::CONSUMERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)SHAPE::PRODUCER_REGISTERS));
        do_class<SHAPE, OUTPUT, true>(job, c++, r, again);
        (do_class<SHAPES, OUTPUT, true>(job, c++, r, again), ...);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)SHAPE::CONSUMER_REGISTERS));
        do_class<SHAPE, OUTPUT, false>(job, c++, r, again);
        (do_class<SHAPES, OUTPUT, false>(job, c++, r, again), ...);
    }
#else
    (void)job;
#endif
}

/* ---- launches ---- */

typedef void hopper_kernel(gemm_job);

typedef struct hopper_launch {
    hopper_kernel *kernels[3]; /* by output */
    int32_t inputs, strips, resident, threads, shared_bytes;
} hopper_launch;

static constexpr int largest(std::initializer_list<int> list)
{
    int most = 0;
    for (int v : list) most = v > most ? v : most;
    return most;
}

template <typename SHAPE, typename... SHAPES> static hopper_launch launch_of()
{
    return hopper_launch{{gemm_hopper_kernel<PREFILL_STORE_F32, SHAPE, SHAPES...>,
                          gemm_hopper_kernel<PREFILL_ADD_F32, SHAPE, SHAPES...>,
                          gemm_hopper_kernel<PREFILL_SWIGLU_SPLIT, SHAPE, SHAPES...>},
                         SHAPE::INPUTS,
                         SHAPE::STRIPS,
                         SHAPE::RESIDENT,
                         SHAPE::THREADS,
                         largest({SHAPE::SHARED_BYTES, SHAPES::SHARED_BYTES...})};
}

/* By the largest number of inputs; those of moe_plan's classes. */
typedef tile_shape<128, 4, 1, 1> shape128;
typedef tile_shape<96, 4, 1, 1> shape96;
typedef tile_shape<72, 4, 1, 2> shape72;
typedef tile_shape<64, 4, 1, 2> shape64;
typedef tile_shape<40, 4, 1, 2> shape40;
typedef tile_shape<24, 4, 1, 4> shape24;
/* For dense products that leave multiprocessors idle. */
typedef tile_shape<64, 2, 2, 1> half64;

static hopper_launch launch_with_plan()
{
    return launch_of<shape128, shape96, shape72, shape64, shape40, shape24>();
}

enum { DENSE_SHAPES = 7 };
static hopper_launch launch_dense(int shape)
{
    switch (shape) {
    case 0:
        return launch_of<shape128>();
    case 1:
        return launch_of<shape96>();
    case 2:
        return launch_of<shape72>();
    case 3:
        return launch_of<shape64>();
    case 4:
        return launch_of<shape40>();
    case 5:
        return launch_of<shape24>();
    default:
        return launch_of<half64>();
    }
}

cudaError_t prefill_gemm_hopper_init()
{
    cudaError_t e = cudaSuccess;
    for (int s = 0; s <= DENSE_SHAPES; s++) {
        hopper_launch l = s < DENSE_SHAPES ? launch_dense(s) : launch_with_plan();
        for (int i = 0; i < 3 && !e; i++)
            e = cudaFuncSetAttribute((const void *)l.kernels[i],
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, l.shared_bytes);
    }
    return e;
}

/* How long a dense product takes in tiles of a shape: what a multiprocessor does of it one after
 * another, by what the shape was measured to take for a multiply-add. */
static int64_t dense_cost(const prefill_device *device, const gemm_job *job, int shape)
{
    static const int32_t percent[DENSE_SHAPES] = {100, 101, 108, 111, 126, 166, 120};
    hopper_launch l = launch_dense(shape);
    int64_t tiles = (int64_t)ceil_div(job->n_rows, l.inputs) * ceil_div(job->strips, l.strips);
    return ceil_div(tiles, device->n_sms) * (int64_t)(l.strips * l.inputs) * percent[shape];
}

/* Without a plan: the tiles that are done first. */
static int dense_shape(const prefill_device *device, const gemm_job *job)
{
    int best = 0;
    for (int s = 1; s < DENSE_SHAPES; s++)
        if (dense_cost(device, job, s) < dense_cost(device, job, best)) best = s;
    return best;
}

cudaError_t prefill_gemm_hopper(const prefill_device *device, const gemm_job *job,
                                prefill_gemm_output output, int32_t max_tiles, cudaStream_t stream)
{
    gemm_job this_job = *job;
    hopper_launch l = job->tiles ? launch_with_plan() : launch_dense(dense_shape(device, job));
    if (!job->tiles) {
        this_job.tile_rows = l.inputs;
        max_tiles = ceil_div(job->n_rows, l.inputs);
    }
    int64_t n_work = (int64_t)max_tiles * ceil_div(job->strips, l.strips);
    int64_t resident = (int64_t)l.resident * device->n_sms;
    return launch(l.kernels[output], (unsigned)(n_work < resident ? n_work : resident),
                  (unsigned)l.threads, (size_t)l.shared_bytes, stream, this_job);
}
