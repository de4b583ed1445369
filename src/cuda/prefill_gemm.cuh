/* What the two matrix products share. Private to src/cuda. */
#ifndef CALLA_CUDA_PREFILL_GEMM_CUH
#define CALLA_CUDA_PREFILL_GEMM_CUH

#include "cuda/prefill_device.cuh"

typedef struct gemm_job {
    const unsigned char *data;
    const float *row_factor;
    int64_t matrix_bytes;
    int32_t rows, row_tiles, groups; /* groups of 64 columns */
    const __half *x;
    int64_t ldx;
    const int32_t *x_rows; /* of each row, or NULL */
    const moe_tile *tiles; /* or NULL: n_rows rows in tiles of tile_rows */
    const int32_t *n_tiles;
    int32_t n_rows, tile_rows;
    void *y;
    int64_t ldy;
} gemm_job;

static __device__ __forceinline__ int32_t job_tiles(const gemm_job &job)
{
    return job.tiles ? *job.n_tiles : ceil_div(job.n_rows, job.tile_rows);
}

static __device__ __forceinline__ moe_tile job_tile(const gemm_job &job, int32_t i)
{
    if (job.tiles) return job.tiles[i];
    int32_t first = i * job.tile_rows;
    return moe_tile{0, first, min(job.tile_rows, job.n_rows - first)};
}

/* Rows r and r + 1 of the product, r even, for one input row. */
template <gemm_output OUTPUT>
static __device__ __forceinline__ void store_pair(const gemm_job &job, int64_t i, int32_t r,
                                                  float v0, float v1)
{
    if (OUTPUT == GEMM_SWIGLU_F16) {
        ((__half *)job.y)[i * job.ldy + r / 2] = to_half(silu(v0) * v1);
    } else {
        float2 *y = (float2 *)((float *)job.y + i * job.ldy + r);
        if (r + 1 < job.rows) {
            float2 old = OUTPUT == GEMM_ADD_F32 ? *y : float2{0, 0};
            *y = OUTPUT == GEMM_ADD_F32 ? make_float2(old.x + v0, old.y + v1) : make_float2(v0, v1);
        } else {
            y->x = OUTPUT == GEMM_ADD_F32 ? y->x + v0 : v0;
        }
    }
}

cudaError_t gemm_hopper_init();
cudaError_t launch_gemm_hopper(const kernel_device *device, const gemm_job *job, gemm_output output,
                               cudaStream_t stream);

#endif
