/* What the two matrix products share. Private to src/cuda. */
#ifndef CALLA_CUDA_PREFILL_GEMM_CUH
#define CALLA_CUDA_PREFILL_GEMM_CUH

#include "cuda/prefill_device.cuh"

typedef struct gemm_job {
    const unsigned char *blocks, *shared_blocks;
    const float *factors, *shared_factors;
    size_t expert_bytes;
    int64_t expert_strips;
    int32_t shared_expert;        /* its number, or -1 */
    int32_t rows, strips, groups; /* strips: w4_strips; groups of 64 columns */
    const __half *x;
    int64_t ldx;
    const int32_t *x_rows;     /* of each row, or NULL */
    const moe_tile *tiles;     /* or NULL: n_rows rows in tiles of tile_rows */
    const int32_t *class_ends; // [MOE_CLASSES + 1]
    int32_t *taken;            // [MOE_CLASSES]
    int32_t n_rows, tile_rows;
    void *y;
    int64_t ldy;
} gemm_job;

static __device__ __forceinline__ const unsigned char *job_blocks(const gemm_job &job,
                                                                  int32_t matrix)
{
    return matrix == job.shared_expert ? job.shared_blocks : job.blocks + matrix * job.expert_bytes;
}
static __device__ __forceinline__ const float *job_factors(const gemm_job &job, int32_t matrix)
{
    return matrix == job.shared_expert ? job.shared_factors
                                       : job.factors + matrix * job.expert_strips;
}

static __device__ __forceinline__ int32_t job_tiles(const gemm_job &job)
{
    return job.tiles ? job.class_ends[MOE_CLASSES] : ceil_div(job.n_rows, job.tile_rows);
}

static __device__ __forceinline__ moe_tile job_tile(const gemm_job &job, int32_t i)
{
    if (job.tiles) return job.tiles[i];
    int32_t first = i * job.tile_rows;
    return moe_tile{0, first, min(job.tile_rows, job.n_rows - first)};
}

/* Rows r and r + 8 of a strip of the product, r % 16 < 8, for input i; old: of y, if added to. */
template <prefill_gemm_output OUTPUT>
static __device__ __forceinline__ void store_pair(const gemm_job &job, int64_t i, int32_t r,
                                                  float v0, float v1, float2 old)
{
    if (OUTPUT == PREFILL_SWIGLU_SPLIT) {
        __half *to = (__half *)job.y + i * job.ldy + split_column(r / 16 * 8 + r % 16);
        split_half(silu_fast(v0) * v1, to[0], to[SPLIT_GROUP]);
    } else {
        float *y = (float *)job.y + i * job.ldy + r;
        if (r < job.rows) y[0] = OUTPUT == PREFILL_ADD_F32 ? old.x + v0 : v0;
        if (r + 8 < job.rows) y[8] = OUTPUT == PREFILL_ADD_F32 ? old.y + v1 : v1;
    }
}

/* The two values store_pair adds to. */
template <prefill_gemm_output OUTPUT>
static __device__ __forceinline__ float2 load_pair(const gemm_job &job, int64_t i, int32_t r)
{
    float2 old = {0, 0};
    if (OUTPUT != PREFILL_ADD_F32) return old;
    const float *y = (const float *)job.y + i * job.ldy + r;
    if (r < job.rows) old.x = y[0];
    if (r + 8 < job.rows) old.y = y[8];
    return old;
}

cudaError_t prefill_gemm_hopper_init();
cudaError_t prefill_gemm_hopper(const prefill_device *device, const gemm_job *job,
                                prefill_gemm_output output, int32_t max_tiles, cudaStream_t stream);

#endif
