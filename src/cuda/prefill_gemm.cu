/* Linear layers of prefill: which kernel runs, and the general one (mma.sync).
 *
 * A block multiplies 128 rows of a matrix with up to 128 inputs: 16 KB of inputs and 4.5 KB of
 * codes a step, for 2 * 128 * 128 * 64 operations. A step is the high or the low halves of 64
 * columns; the codes are fetched and converted for each, which keeps the stages small. */
#include "cuda/prefill_gemm.cuh"

enum {
    TILE_M = 128,
    TILE_STRIPS = TILE_M / W4_STRIP_ROWS,
    TILE_N = MOE_TILE_ROWS,
    THREADS = 256,
    STAGES = 3,
    X_BYTES = TILE_N * 128,
    WEIGHT_BYTES = TILE_STRIPS * W4_BLOCK_BYTES,
    STAGE_BYTES = X_BYTES + WEIGHT_BYTES,
};

/* strips: the tile's first block of the first group; n_strips of them exist. */
static __device__ __forceinline__ void load_stage(const gemm_job &job, uint32_t stage,
                                                  const unsigned char *strips, int32_t n_strips,
                                                  const __half *const (&rows)[4], int32_t n_rows,
                                                  int32_t step)
{
    enum { PIECES = W4_BLOCK_BYTES / 16 };
    int tid = threadIdx.x;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int row = tid / 8 + 32 * i, q = tid % 8;
        if (row < n_rows)
            copy16_async(stage + row * 128 + ((q ^ (row & 7)) << 4), rows[i] + step * SPLIT_GROUP);
    }
    for (int c = tid; c < n_strips * PIECES; c += THREADS)
        copy16_async(stage + X_BYTES + c * 16,
                     strips + ((int64_t)(c / PIECES) * job.groups + step / 2) * W4_BLOCK_BYTES +
                         c % PIECES * 16);
}

template <prefill_gemm_output OUTPUT>
static __global__ void __launch_bounds__(THREADS, 2) gemm_general_kernel(gemm_job job)
{
    extern __shared__ __align__(128) char shared[];
    int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, wm = warp % 4, wn = warp / 4;
    int32_t row_tiles = ceil_div(job.strips, TILE_STRIPS), n_work = job_tiles(job) * row_tiles;
    int32_t n_steps = 2 * job.groups;
    for (int32_t work = blockIdx.x; work < n_work; work += gridDim.x) {
        moe_tile tile = job_tile(job, work / row_tiles);
        int32_t first_strip = work % row_tiles * TILE_STRIPS;
        int32_t n_strips = min((int)TILE_STRIPS, job.strips - first_strip);
        const unsigned char *strips =
            job_blocks(job, tile.matrix) + (int64_t)first_strip * job.groups * W4_BLOCK_BYTES;
        const __half *rows[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int32_t row = tile.first_row + min(tid / 8 + 32 * i, tile.n_rows - 1);
            if (job.x_rows) row = job.x_rows[row];
            rows[i] = job.x + row * job.ldx + tid % 8 * 8;
        }
        float factor[2];
        for (int i = 0; i < 2; i++)
            factor[i] = job_factors(job, tile.matrix)[first_strip + min(wm * 2 + i, n_strips - 1)];
        float d[2][4][2][4] = {};
        __syncthreads();
        for (int k = 0; k < STAGES - 1; k++) {
            if (k < n_steps)
                load_stage(job, shared_address(shared) + k * STAGE_BYTES, strips, n_strips, rows,
                           tile.n_rows, k);
            copy_commit();
        }
        for (int k = 0; k < n_steps; k++) {
            copy_wait<STAGES - 2>();
            __syncthreads();
            int next = k + STAGES - 1;
            if (next < n_steps)
                load_stage(job, shared_address(shared) + next % STAGES * STAGE_BYTES, strips,
                           n_strips, rows, tile.n_rows, next);
            copy_commit();
            const char *stage = shared + k % STAGES * STAGE_BYTES;
            uint32_t words[2][4];
            row_pair pairs[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const char *block = stage + X_BYTES + (wm * 2 + i) * W4_BLOCK_BYTES;
                *(uint4 *)words[i] = *((const uint4 *)block + lane);
                pairs[i] = load_row_pair((const uint32_t *)(block + W4_CODE_BYTES), 1 / factor[i]);
            }
#pragma unroll
            for (int s = 0; s < 4; s++) {
                uint32_t a[2][4];
                dequantize_word(a[0], words[0][s], pairs[0]);
                dequantize_word(a[1], words[1][s], pairs[1]);
#pragma unroll
                for (int g = 0; g < 4; g++) {
                    int first = (wn + 2 * g) * 16;
                    if (first >= tile.n_rows) continue;
                    int row = first + lane / 16 * 8 + lane % 8, q = 2 * s + lane / 8 % 2;
                    uint32_t b[4];
                    load_matrix4(b, shared_address(stage) + row * 128 + ((q ^ (row & 7)) << 4));
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        multiply_f16(d[i][g][0], a[i], b[0], b[1]);
                        multiply_f16(d[i][g][1], a[i], b[2], b[3]);
                    }
                }
            }
        }
        copy_wait<0>();
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (wm * 2 + i >= n_strips) continue;
            int32_t r = (first_strip + wm * 2 + i) * W4_STRIP_ROWS + lane / 4;
#pragma unroll
            for (int g = 0; g < 4; g++) {
                int32_t n = (wn + 2 * g) * 16 + lane % 4 * 2;
                float2 old[4];
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    int32_t input = n + j / 2 * 8 + j % 2;
                    old[j] = float2{0, 0};
                    if (input < tile.n_rows)
                        old[j] = load_pair<OUTPUT>(job, tile.first_row + input, r);
                }
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    int32_t input = n + j / 2 * 8 + j % 2;
                    const float *v = &d[i][g][j / 2][j % 2];
                    if (input < tile.n_rows)
                        store_pair<OUTPUT>(job, tile.first_row + input, r, v[0] * factor[i],
                                           v[2] * factor[i], old[j]);
                }
            }
        }
    }
}

typedef void gemm_kernel(gemm_job);

static gemm_kernel *const general_kernels[3] = {gemm_general_kernel<PREFILL_STORE_F32>,
                                                gemm_general_kernel<PREFILL_ADD_F32>,
                                                gemm_general_kernel<PREFILL_SWIGLU_SPLIT>};

static cudaError_t gemm_general_init()
{
    cudaError_t e = cudaSuccess;
    for (int i = 0; i < 3 && !e; i++)
        e = cudaFuncSetAttribute((const void *)general_kernels[i],
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, STAGES * STAGE_BYTES);
    return e;
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
    /* Within what has an inverse. */
    int e = largest > 0 && !isinf(largest) ? ilogbf(largest) - 7 : 0;
    if (threadIdx.x % 32 == 0) factors[strip] = ldexpf(1.0f, e < -120 ? -120 : e);
}

cudaError_t prefill_w4_factors(const w4_matrix *w, float *factors, cudaStream_t stream)
{
    int32_t n_strips = w4_strips(w->rows);
    factors_kernel<<<(unsigned)ceil_div(n_strips, 8), 256, 0, stream>>>(*w, n_strips, factors);
    return cudaGetLastError();
}

/* ---- which kernel ---- */

bool prefill_overlaps_launches;

cudaError_t prefill_router_init();
cudaError_t prefill_attention_init(const prefill_device *device);
cudaError_t prefill_gdn_init(const prefill_device *device);

cudaError_t prefill_device_init(prefill_device *device, bool force_general)
{
    int id, major, minor, n_sms, bytes;
    cudaError_t e = cudaGetDevice(&id);
    if (!e) e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, id);
    if (!e) e = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, id);
    if (!e) e = cudaDeviceGetAttribute(&n_sms, cudaDevAttrMultiProcessorCount, id);
    if (!e) e = cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, id);
    if (e) return e;
    bool hopper = major == 9 && minor == 0 && !force_general;
    device->path = hopper ? PREFILL_PATH_HOPPER : PREFILL_PATH_GENERAL;
    device->n_sms = n_sms;
    device->shared_bytes = bytes;
    prefill_overlaps_launches = major >= 9;
    e = gemm_general_init();
    if (!e && hopper) e = prefill_gemm_hopper_init();
    if (!e) e = prefill_router_init();
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
    int64_t n_work =
        (int64_t)row_tiles * (plan ? plan->max_tiles : ceil_div(args->n_rows, job.tile_rows));
    int64_t resident = 2 * device->n_sms;
    general_kernels[args->output]<<<(unsigned)(n_work < resident ? n_work : resident), THREADS,
                                    STAGES * STAGE_BYTES, stream>>>(job);
    return cudaGetLastError();
}
