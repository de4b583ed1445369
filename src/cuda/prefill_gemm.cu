/* Linear layers of prefill: which kernel runs, and the general one (mma.sync).
 *
 * A block multiplies 128 rows of a matrix with up to 128 inputs: 16 KB of inputs and 4.5 KB of
 * codes a step of 64 columns, for 2 * 128 * 128 * 64 operations. */
#include "cuda/prefill_gemm.cuh"

enum {
    TILE_M = 128,
    TILE_N = MOE_TILE_ROWS,
    THREADS = 256,
    STAGES = 3,
    X_BYTES = TILE_N * 128,
};

static constexpr __host__ __device__ int weight_bytes(packed_format format)
{
    return 2 * (format == PACKED_Q4 ? 2304 : 8192);
}
static constexpr __host__ __device__ int general_shared_bytes(packed_format format)
{
    return STAGES * (X_BYTES + weight_bytes(format));
}

/* The two A fragments of a warp for one step of 16 columns. */
template <packed_format FORMAT> struct weight_fragments;

template <> struct weight_fragments<PACKED_Q4> {
    uint4 codes[2];
    row_pair rows[2];

    __device__ __forceinline__ void load(const char *weights, int first, int lane)
    {
        const char *block = weights + first / 4 * 2304;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int w = first % 4 + i;
            codes[i] = *((const uint4 *)block + w * 32 + lane);
            rows[i] = load_row_pair((const uint2 *)(block + 2048) + w * 8 + lane / 4);
        }
    }
    __device__ __forceinline__ void get(uint32_t (&a)[4], int i, int step) const
    {
        const uint32_t words[4] = {codes[i].x, codes[i].y, codes[i].z, codes[i].w};
        dequantize_word(a, words[step], rows[i].scale0, rows[i].bias0, rows[i].scale1,
                        rows[i].bias1);
    }
};

template <> struct weight_fragments<PACKED_F16> {
    const uint4 *at;

    __device__ __forceinline__ void load(const char *weights, int first, int lane)
    {
        at = (const uint4 *)(weights + first / 4 * 8192) + first % 4 * 32 + lane;
    }
    __device__ __forceinline__ void get(uint32_t (&a)[4], int i, int step) const
    {
        uint4 v = at[step * 128 + i * 32];
        a[0] = v.x, a[1] = v.y, a[2] = v.z, a[3] = v.w;
    }
};

template <packed_format FORMAT>
static __device__ __forceinline__ void
load_stage(const gemm_job &job, uint32_t stage, const unsigned char *weights,
           const __half *const (&rows)[4], int32_t n_rows, int32_t group)
{
    int tid = threadIdx.x;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int row = tid / 8 + 32 * i, q = tid % 8;
        if (row < n_rows)
            copy16_async(stage + row * 128 + ((q ^ (row & 7)) << 4), rows[i] + group * 64);
    }
    const unsigned char *from = weights + (int64_t)group * 2 * weight_bytes(FORMAT);
    for (int c = tid; c < weight_bytes(FORMAT) / 16; c += THREADS)
        copy16_async(stage + X_BYTES + c * 16, from + c * 16);
}

template <packed_format FORMAT, gemm_output OUTPUT>
static __global__ void __launch_bounds__(THREADS, FORMAT == PACKED_Q4 ? 2 : 1)
    gemm_general_kernel(gemm_job job)
{
    extern __shared__ __align__(128) char shared[];
    const int stage_bytes = X_BYTES + weight_bytes(FORMAT);
    int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, wm = warp % 4, wn = warp / 4;
    int32_t halves = ceil_div(job.rows, TILE_M), n_work = job_tiles(job) * halves;
    for (int32_t work = blockIdx.x; work < n_work; work += gridDim.x) {
        moe_tile tile = job_tile(job, work / halves);
        int32_t half = work % halves;
        const unsigned char *weights =
            job.data + tile.matrix * job.matrix_bytes +
            ((int64_t)(half / 2) * job.groups * 2 + half % 2) * weight_bytes(FORMAT);
        const __half *rows[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int32_t row = tile.first_row + min(tid / 8 + 32 * i, tile.n_rows - 1);
            if (job.x_rows) row = job.x_rows[row];
            rows[i] = job.x + row * job.ldx + tid % 8 * 8;
        }
        float d[2][4][2][4] = {};
        __syncthreads();
        for (int k = 0; k < STAGES - 1; k++) {
            if (k < job.groups)
                load_stage<FORMAT>(job, shared_address(shared) + k * stage_bytes, weights, rows,
                                   tile.n_rows, k);
            copy_commit();
        }
        for (int k = 0; k < job.groups; k++) {
            copy_wait<STAGES - 2>();
            __syncthreads();
            if (k + STAGES - 1 < job.groups)
                load_stage<FORMAT>(job,
                                   shared_address(shared) + (k + STAGES - 1) % STAGES * stage_bytes,
                                   weights, rows, tile.n_rows, k + STAGES - 1);
            copy_commit();
            const char *stage = shared + k % STAGES * stage_bytes;
            weight_fragments<FORMAT> w;
            w.load(stage + X_BYTES, wm * 2, lane);
#pragma unroll
            for (int s = 0; s < 4; s++) {
                uint32_t a[2][4];
                w.get(a[0], 0, s);
                w.get(a[1], 1, s);
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
            int32_t r = half * TILE_M + (wm * 2 + i) * 16 + lane / 4 * 2;
            if (r >= job.rows) continue;
            float2 f =
                *(const float2 *)(job.row_factor +
                                  (int64_t)tile.matrix * job.row_tiles * PACKED_TILE_ROWS + r);
#pragma unroll
            for (int g = 0; g < 8; g++) {
                const float(&v)[4] = d[i][g / 2][g % 2];
                int32_t n = (wn + 2 * (g / 2)) * 16 + g % 2 * 8 + lane % 4 * 2;
                if (n < tile.n_rows)
                    store_pair<OUTPUT>(job, tile.first_row + n, r, v[0] * f.x, v[2] * f.y);
                if (n + 1 < tile.n_rows)
                    store_pair<OUTPUT>(job, tile.first_row + n + 1, r, v[1] * f.x, v[3] * f.y);
            }
        }
    }
}

/* ---- which kernel ---- */

typedef void general_kernel(gemm_job);

static general_kernel *general_kernel_of(packed_format format, gemm_output output)
{
    static general_kernel *const kernels[2][3] = {
        {gemm_general_kernel<PACKED_Q4, GEMM_STORE_F32>,
         gemm_general_kernel<PACKED_Q4, GEMM_ADD_F32>,
         gemm_general_kernel<PACKED_Q4, GEMM_SWIGLU_F16>},
        {gemm_general_kernel<PACKED_F16, GEMM_STORE_F32>,
         gemm_general_kernel<PACKED_F16, GEMM_ADD_F32>,
         gemm_general_kernel<PACKED_F16, GEMM_SWIGLU_F16>}};
    return kernels[format == PACKED_F16][output];
}

static cudaError_t gemm_general_init()
{
    for (int f = 0; f < 2; f++) {
        packed_format format = f ? PACKED_F16 : PACKED_Q4;
        for (int o = 0; o < 3; o++) {
            cudaError_t e = cudaFuncSetAttribute(
                (const void *)general_kernel_of(format, (gemm_output)o),
                cudaFuncAttributeMaxDynamicSharedMemorySize, general_shared_bytes(format));
            if (e) return e;
        }
    }
    return cudaSuccess;
}

cudaError_t attention_init(const kernel_device *device);
cudaError_t gdn_init(const kernel_device *device);

cudaError_t kernel_device_init(kernel_device *device, bool force_general)
{
    int id, major, minor, n_sms, bytes;
    cudaError_t e = cudaGetDevice(&id);
    if (!e) e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, id);
    if (!e) e = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, id);
    if (!e) e = cudaDeviceGetAttribute(&n_sms, cudaDevAttrMultiProcessorCount, id);
    if (!e) e = cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, id);
    if (e) return e;
    bool hopper = major == 9 && minor == 0 && !force_general;
    device->path = hopper ? KERNEL_PATH_HOPPER : KERNEL_PATH_GENERAL;
    device->n_sms = n_sms;
    device->shared_bytes = bytes;
    e = gemm_general_init();
    if (!e && hopper) e = gemm_hopper_init();
    if (!e) e = attention_init(device);
    if (!e) e = gdn_init(device);
    return e;
}

/* Rows of a tile when there is no plan: few enough that all multiprocessors have work. */
static int32_t dense_tile_rows(const kernel_device *device, int32_t n_rows, int32_t row_blocks)
{
    int32_t tile = MOE_TILE_ROWS;
    while (tile > 32 && ceil_div(n_rows, tile) * row_blocks < device->n_sms) tile /= 2;
    return tile;
}

cudaError_t launch_gemm(const kernel_device *device, const gemm_args *args, cudaStream_t stream)
{
    const packed_matrix *w = &args->w;
    const moe_plan *plan = args->plan;
    bool hopper = device->path == KERNEL_PATH_HOPPER && w->format == PACKED_Q4;
    int32_t row_blocks = ceil_div(w->rows, hopper ? (int)PACKED_TILE_ROWS : (int)TILE_M);
    gemm_job job = {
        .data = w->data,
        .row_factor = w->row_factor,
        .matrix_bytes = packed_data_bytes(w),
        .rows = w->rows,
        .row_tiles = packed_row_tiles(w),
        .groups = w->cols / PACKED_TILE_COLS,
        .x = args->x,
        .ldx = args->ldx,
        .x_rows = plan && args->gather ? plan->token_of_row : NULL,
        .tiles = plan ? plan->tiles : NULL,
        .n_tiles = plan ? plan->n_tiles : NULL,
        .n_rows = args->n_rows,
        .tile_rows = dense_tile_rows(device, args->n_rows, row_blocks),
        .y = args->y,
        .ldy = args->ldy,
    };
    if (hopper) return launch_gemm_hopper(device, &job, args->output, stream);
    int64_t n_work =
        (int64_t)row_blocks * (plan ? plan->max_tiles : ceil_div(args->n_rows, job.tile_rows));
    int32_t resident = device->n_sms * (w->format == PACKED_Q4 ? 2 : 1);
    general_kernel_of(w->format,
                      args->output)<<<(unsigned)(n_work < resident ? n_work : resident), THREADS,
                                      general_shared_bytes(w->format), stream>>>(job);
    return cudaGetLastError();
}
