/* Linear layers of prefill: which kernel runs, and the general one (mma.sync).
 *
 * The general one multiplies bytes: codes with inputs rounded to two planes of int8 (cuda/w4.cuh),
 * a group's sums exact in int32, then scale * sum + bias * (sum of x) in f32, group by group.
 * Tensor cores do twice as many operations on bytes as on halves, and GeForce cards four times as
 * many as with f32 sums of halves; codes become bytes by a mask. A block multiplies 128 rows of a
 * matrix with up to 128 inputs: 18 KB of inputs and 4.5 KB of codes a group of 64 columns, for 4 *
 * 128 * 128 * 64 operations on bytes. Two or three stages of them: two blocks a multiprocessor of
 * 100 KB. */
#include "cuda/prefill_gemm.cuh"
#include "cuda/prefill_round.cuh"
#include "cuda/ptx.cuh"

enum {
    TILE_M = 128,
    TILE_STRIPS = TILE_M / W4_STRIP_ROWS,
    TILE_N = MOE_TILE_ROWS,
    THREADS = 256,
    WEIGHT_BYTES = TILE_STRIPS * W4_BLOCK_BYTES,
    STAGE_BYTES = TILE_N * RECORD_BYTES + WEIGHT_BYTES,
    MOST_STAGES = 3,
};

/* Of up to 64 inputs each warp takes one of the eight strips; of more two warps share two. */
template <int STRIPS> struct tile_shape {
    static constexpr int INPUTS = STRIPS * 64, X_BYTES = INPUTS * RECORD_BYTES,
                         BYTES = X_BYTES + WEIGHT_BYTES; /* of a stage */
    int strip, input, step; /* this warp's first ones; from 16 inputs to its next */

    __device__ tile_shape()
    {
        int warp = threadIdx.x / 32;
        strip = STRIPS == 2 ? warp % 4 * 2 : warp;
        input = STRIPS == 2 ? warp / 4 * 16 : 0;
        step = STRIPS == 2 ? 32 : 16;
    }
};

/* strips, records: the tile's first block and the inputs' records, of the group. rows: 16-byte
 * pieces before the record of each of the tile's rows, in shared memory, since registers are
 * short. */
template <int STRIPS>
static __device__ __forceinline__ void
load_stage(const gemm_job &job, uint32_t stage, const unsigned char *strips, int32_t n_strips,
           const unsigned char *records, const int32_t *rows, int32_t n_rows)
{
    int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
#pragma unroll
    for (int i = 0; i < tile_shape<STRIPS>::INPUTS / 32; i++) {
        int row = tid / 8 + 32 * i;
        if (row < n_rows)
            copy16_async(stage + row * RECORD_BYTES + tid % 8 * 16,
                         (const uint4 *)records + (rows[row] + tid % 8));
    }
    if (tid < n_rows)
        copy16_async(stage + tid * RECORD_BYTES + RECORD_SCALE,
                     (const uint4 *)(records + RECORD_SCALE) + rows[tid]);
    if (warp >= n_strips) return;
    const unsigned char *from = strips + (int64_t)warp * job.groups * W4_BLOCK_BYTES + lane * 16;
    stage += tile_shape<STRIPS>::X_BYTES + warp * W4_BLOCK_BYTES + lane * 16;
    copy16_async(stage, from);
    if (lane < W4_BLOCK_BYTES / 16 - 32) copy16_async(stage + 512, from + 512);
}

/* What a lane holds of one block of weights: its codes as bytes, and of rows r and r + 8 scale and
 * bias. */
struct byte_block {
    uint32_t a[2][4];
    float scale[2], bias[2];
};

static __device__ __forceinline__ byte_block load_block(const char *block)
{
    const uint32_t mask = 0x0f0f0f0fu;
    int lane = threadIdx.x % 32;
    const uint4 q = *((const uint4 *)block + lane);
    const uint32_t *pairs = (const uint32_t *)(block + W4_CODE_BYTES) + lane / 4;
    byte_block b;
    b.a[0][0] = q.x & mask, b.a[0][1] = q.x >> 4 & mask;
    b.a[0][2] = q.y & mask, b.a[0][3] = q.y >> 4 & mask;
    b.a[1][0] = q.z & mask, b.a[1][1] = q.z >> 4 & mask;
    b.a[1][2] = q.w & mask, b.a[1][3] = q.w >> 4 & mask;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        b.scale[i] = __uint_as_float(pairs[8 * i] << 16);
        b.bias[i] = __uint_as_float(pairs[8 * i] & 0xffff0000u);
    }
    return b;
}

/* d += a group of 16 rows of weights times 8 inputs, whose records begin at x. */
static __device__ __forceinline__ void multiply_block(float (&d)[4], const byte_block &w,
                                                      const uint4 &high, const uint4 &low,
                                                      const float2 (&x)[2])
{
    int h[4] = {0, 0, 0, 0}, l[4] = {0, 0, 0, 0};
    multiply_bytes(h, w.a[0][0], w.a[0][1], w.a[0][2], w.a[0][3], high.x, high.y);
    multiply_bytes(l, w.a[0][0], w.a[0][1], w.a[0][2], w.a[0][3], low.x, low.y);
    multiply_bytes(h, w.a[1][0], w.a[1][1], w.a[1][2], w.a[1][3], high.z, high.w);
    multiply_bytes(l, w.a[1][0], w.a[1][1], w.a[1][2], w.a[1][3], low.z, low.w);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        d[j] = fmaf(w.scale[j / 2] * x[j % 2].x, (float)(128 * h[j] + l[j]), d[j]);
        d[j] = fmaf(w.bias[j / 2], x[j % 2].y, d[j]);
    }
}

/* d[strip][16 inputs][half of them] += a stage. */
template <int STRIPS>
static __device__ __forceinline__ void
multiply_stage(float (&d)[STRIPS][4][2][4], const char *stage, const tile_shape<STRIPS> &warp,
               int32_t n_rows)
{
    int lane = threadIdx.x % 32, t = lane % 4;
    byte_block w[STRIPS];
#pragma unroll
    for (int i = 0; i < STRIPS; i++)
        w[i] = load_block(stage + warp.X_BYTES + (warp.strip + i) * W4_BLOCK_BYTES);
#pragma unroll
    for (int g = 0; g < 4; g++) {
        int first = warp.input + warp.step * g;
        if (first >= n_rows) continue;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const char *x = stage + (first + 8 * j) * RECORD_BYTES;
            const uint4 *planes = (const uint4 *)(x + lane / 4 * RECORD_BYTES) + 2 * t;
            const float2 *scale = (const float2 *)(x + 2 * t * RECORD_BYTES + RECORD_SCALE);
            const float2 scales[2] = {scale[0], scale[RECORD_BYTES / 8]};
            const uint4 high = planes[0], low = planes[1];
#pragma unroll
            for (int i = 0; i < STRIPS; i++) multiply_block(d[i][g][j], w[i], high, low, scales);
        }
    }
}

template <prefill_gemm_output OUTPUT, int STRIPS>
static __device__ __forceinline__ void
store_tile(const gemm_job &job, const moe_tile &tile, const float (&d)[STRIPS][4][2][4],
           const tile_shape<STRIPS> &warp, int32_t first_strip, int32_t n_strips)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < STRIPS; i++) {
        if (warp.strip + i >= n_strips) continue;
        int32_t r = (first_strip + warp.strip + i) * W4_STRIP_ROWS + lane / 4;
#pragma unroll
        for (int g = 0; g < 4; g++) {
            int32_t n = warp.input + warp.step * g + lane % 4 * 2;
            float2 old[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int32_t input = n + j / 2 * 8 + j % 2;
                old[j] = float2{0, 0};
                if (input < tile.n_rows) old[j] = load_pair<OUTPUT>(job, tile.first_row + input, r);
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int32_t input = n + j / 2 * 8 + j % 2;
                const float *v = &d[i][g][j / 2][j % 2];
                if (input < tile.n_rows)
                    store_pair<OUTPUT>(job, tile.first_row + input, r, v[0], v[2], old[j]);
            }
        }
    }
}

/* Strips first_strip ... of the tile's matrix times its inputs. rows: of load_stage. shared_bytes
 * are there for stages: two or three, of few inputs three or five. */
template <prefill_gemm_output OUTPUT, int STRIPS>
static __device__ __forceinline__ void
multiply_tile(const gemm_job &job, const moe_tile &tile, int32_t first_strip,
              const unsigned char *inputs, const int32_t *rows, const char *shared,
              int32_t shared_bytes)
{
    enum { BYTES = tile_shape<STRIPS>::BYTES, PENDING = STRIPS == 2 ? 1 : 3 };
    const tile_shape<STRIPS> warp;
    const int32_t n_strips = min((int)TILE_STRIPS, job.strips - first_strip);
    const int32_t n_stages = shared_bytes / BYTES, end = n_stages * BYTES;
    const unsigned char *strips =
        job_blocks(job, tile.matrix) + (int64_t)first_strip * job.groups * W4_BLOCK_BYTES;
    float d[STRIPS][4][2][4] = {};
    int32_t next = 0, used = 0; /* offsets of stages */
    const auto load_next = [&](int k) {
        if (k < job.groups)
            load_stage<STRIPS>(job, shared_address(shared) + next, strips, n_strips, inputs, rows,
                               tile.n_rows);
        copy_commit();
        next = next + BYTES == end ? 0 : next + BYTES;
        strips += W4_BLOCK_BYTES;
        inputs += RECORD_BYTES;
    };
    for (int k = 0; k < n_stages - 1; k++) load_next(k);
    for (int k = 0; k < job.groups; k++) {
        if (n_stages == PENDING + 2)
            copy_wait<PENDING>();
        else
            copy_wait<PENDING / 2>();
        __syncthreads();
        load_next(k + n_stages - 1);
        multiply_stage<STRIPS>(d, shared + used, warp, tile.n_rows);
        used = used + BYTES == end ? 0 : used + BYTES;
    }
    copy_wait<0>();
    store_tile<OUTPUT, STRIPS>(job, tile, d, warp, first_strip, n_strips);
}

template <prefill_gemm_output OUTPUT>
static __global__ void __launch_bounds__(THREADS, 2)
    gemm_general_kernel(gemm_job job, const unsigned char *records, int32_t shared_bytes)
{
    extern __shared__ __align__(128) char shared[];
    __shared__ int32_t rows[TILE_N];
    int32_t row_tiles = ceil_div(job.strips, TILE_STRIPS), n_work = job_tiles(job) * row_tiles;
    for (int32_t work = blockIdx.x; work < n_work; work += gridDim.x) {
        moe_tile tile = job_tile(job, work / row_tiles);
        int32_t first_strip = work % row_tiles * TILE_STRIPS;
        __syncthreads();
        if ((int)threadIdx.x < tile.n_rows) {
            int32_t row = tile.first_row + threadIdx.x;
            if (job.x_rows) row = job.x_rows[row];
            rows[threadIdx.x] = row * job.groups * (RECORD_BYTES / 16);
        }
        __syncthreads();
        if (tile.n_rows <= tile_shape<1>::INPUTS)
            multiply_tile<OUTPUT, 1>(job, tile, first_strip, records, rows, shared, shared_bytes);
        else
            multiply_tile<OUTPUT, 2>(job, tile, first_strip, records, rows, shared, shared_bytes);
    }
}

typedef void gemm_kernel(gemm_job, const unsigned char *, int32_t);

static gemm_kernel *const general_kernels[3] = {gemm_general_kernel<PREFILL_STORE_F32>,
                                                gemm_general_kernel<PREFILL_ADD_F32>,
                                                gemm_general_kernel<PREFILL_SWIGLU_SPLIT>};

int32_t prefill_gemm_stages(int32_t multiprocessor_bytes)
{
    /* Of each block the system takes 1 KB, the tile's rows half as much. */
    return 2 * (MOST_STAGES * STAGE_BYTES + 1536) <= multiprocessor_bytes ? MOST_STAGES : 2;
}

static cudaError_t gemm_general_init(prefill_device *device, int32_t multiprocessor_bytes)
{
    device->gemm_stages = prefill_gemm_stages(multiprocessor_bytes);
    cudaError_t e = cudaSuccess;
    for (int i = 0; i < 3 && !e; i++)
        e = cudaFuncSetAttribute((const void *)general_kernels[i],
                                 cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 device->gemm_stages * STAGE_BYTES);
    return e;
}

static cudaError_t prefill_gemm_general(const prefill_device *device, const gemm_job *job,
                                        const prefill_gemm_args *args, cudaStream_t stream)
{
    cudaError_t e =
        prefill_round(args->x, args->ldx, args->n_inputs, args->w.cols, args->rounded, stream);
    if (e) return e;
    int64_t tiles = args->plan ? args->plan->max_tiles : ceil_div(args->n_rows, job->tile_rows);
    int64_t n_work = ceil_div(job->strips, TILE_STRIPS) * tiles, resident = 2 * device->n_sms;
    general_kernels[args->output]<<<(unsigned)(n_work < resident ? n_work : resident), THREADS,
                                    (unsigned)device->gemm_stages * STAGE_BYTES, stream>>>(
        *job, args->rounded, device->gemm_stages * STAGE_BYTES);
    return cudaGetLastError();
}

/* ---- factors ---- */

/* A warp a strip. */
static __global__ void factors_kernel(w4_matrix w, int32_t n_strips, float *factors)
{
    int32_t strip = blockIdx.x * 8 + threadIdx.x / 32, groups = w.cols / W4_GROUP;
    if (strip >= n_strips) return;
    float largest = 0;
    for (int32_t i = threadIdx.x % 32; i < groups * W4_STRIP_ROWS; i += 32) {
        const unsigned char *block =
            w.blocks + ((int64_t)strip * groups + i / W4_STRIP_ROWS) * W4_BLOCK_BYTES;
        uint32_t pair = ((const uint32_t *)(block + W4_CODE_BYTES))[i % W4_STRIP_ROWS];
        float scale = __uint_as_float(pair << 16), bias = __uint_as_float(pair & 0xffff0000u);
        largest = fmaxf(largest, fmaxf(fabsf(bias), fabsf(bias + 15 * scale)));
    }
    for (int i = 16; i > 0; i >>= 1)
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, i));
    /* Weights below 2^-6, so that scales (at most 2 / 15 of that) times 2^24 are halves. Within
     * what has an inverse. */
    int e = largest > 0 && !isinf(largest) ? ilogbf(largest) + 7 : 0;
    if (threadIdx.x % 32 == 0) factors[strip] = ldexpf(1.0f, min(max(e, -120), 126));
}

cudaError_t prefill_w4_factors(const w4_matrix *w, float *factors, cudaStream_t stream)
{
    int32_t n_strips = w4_strips(w->rows);
    factors_kernel<<<(unsigned)ceil_div(n_strips, 8), 256, 0, stream>>>(*w, n_strips, factors);
    return cudaGetLastError();
}

/* ---- which kernel ---- */

bool device_overlaps_launches;

cudaError_t prefill_router_init(const prefill_device *device);
cudaError_t prefill_attention_init(const prefill_device *device);
cudaError_t prefill_gdn_init(const prefill_device *device);

cudaError_t prefill_device_init(prefill_device *device, bool force_general)
{
    int id, major, minor, n_sms, bytes, multiprocessor_bytes;
    cudaError_t e = cudaGetDevice(&id);
    if (!e) e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, id);
    if (!e) e = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, id);
    if (!e) e = cudaDeviceGetAttribute(&n_sms, cudaDevAttrMultiProcessorCount, id);
    if (!e) e = cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, id);
    if (!e)
        e = cudaDeviceGetAttribute(&multiprocessor_bytes,
                                   cudaDevAttrMaxSharedMemoryPerMultiprocessor, id);
    if (e) return e;
    bool hopper = major == 9 && minor == 0 && !force_general;
    device->path = hopper ? PREFILL_PATH_HOPPER : PREFILL_PATH_GENERAL;
    device->n_sms = n_sms;
    device->shared_bytes = bytes;
    device_overlaps_launches = major >= 9;
    e = gemm_general_init(device, multiprocessor_bytes);
    if (!e && hopper) e = prefill_gemm_hopper_init();
    if (!e) e = prefill_router_init(device);
    if (!e) e = prefill_attention_init(device);
    if (!e) e = prefill_gdn_init(device);
    return e;
}

/* Rows of a tile when there is no plan: few enough that all multiprocessors have work. */
static int32_t dense_tile_rows(const prefill_device *device, int32_t n_rows, int32_t row_blocks)
{
    int32_t tile = MOE_TILE_ROWS;
    while (tile > 32 && ceil_div(n_rows, tile) * row_blocks < device->n_sms) tile /= 2;
    return tile;
}

size_t prefill_rounded_bytes(const prefill_device *device, int64_t n_rows, int32_t cols)
{
    if (device->path == PREFILL_PATH_HOPPER) return 0;
    return (size_t)n_rows * (size_t)(cols / W4_GROUP) * RECORD_BYTES;
}

cudaError_t prefill_gemm(const prefill_device *device, const prefill_gemm_args *args,
                         cudaStream_t stream)
{
    const moe_plan *plan = args->plan;
    int32_t groups = args->w.cols / W4_GROUP, strips = w4_strips(args->w.rows);
    int32_t row_tiles = ceil_div(strips, TILE_STRIPS);
    gemm_job job = {
        .blocks = args->w.blocks,
        .shared_blocks = args->shared_blocks,
        .factors = args->factors,
        .shared_factors = args->shared_factors,
        .expert_bytes = plan ? args->expert_bytes : 0,
        .expert_strips = plan ? (int64_t)(args->expert_bytes / W4_BLOCK_BYTES) / groups : 0,
        .shared_expert = plan && plan->has_shared ? plan->n_experts : -1,
        .rows = args->w.rows,
        .strips = strips,
        .groups = groups,
        .x = args->x,
        .ldx = args->ldx,
        .x_rows = plan && args->gather ? plan->token_of_row : NULL,
        .tiles = plan ? plan->tiles : NULL,
        .class_ends = plan ? plan->class_ends : NULL,
        .taken = plan ? plan->taken : NULL,
        .n_rows = args->n_rows,
        .tile_rows = dense_tile_rows(device, args->n_rows, row_tiles),
        .y = args->y,
        .ldy = args->ldy,
    };
    if (device->path == PREFILL_PATH_HOPPER)
        return prefill_gemm_hopper(device, &job, args->output, plan ? plan->max_tiles : 0, stream);
    return prefill_gemm_general(device, &job, args, stream);
}
