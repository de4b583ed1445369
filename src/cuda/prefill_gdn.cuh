/* What the files of Gated DeltaNet share. Private to src/cuda. */
#ifndef CALLA_CUDA_PREFILL_GDN_CUH
#define CALLA_CUDA_PREFILL_GDN_CUH

#include "cuda/prefill_device.cuh"

enum { HEAD = 128, TAPS = 4 };

/* ---- the convolution of four channels ---- */

/* Row t of the projected channels; rows -3 ... -1 are the window's. */
static __device__ __forceinline__ float4 gdn_channel_row(const prefill_gdn_args &a,
                                                         int64_t channels, int32_t t,
                                                         int32_t channel)
{
    const float *row = t >= 0 ? a.projected + t * a.projected_stride
                              : a.window_in + (a.first + t) % TAPS * channels;
    return a.first + t >= 0 ? *(const float4 *)(row + channel) : float4{0, 0, 0, 0};
}

typedef struct gdn_taps {
    float4 of[TAPS];
} gdn_taps;

static __device__ __forceinline__ gdn_taps gdn_load_taps(const prefill_gdn_args &a,
                                                         int64_t channels, int32_t channel)
{
    gdn_taps taps;
    for (int i = 0; i < TAPS; i++) taps.of[i] = *(const float4 *)(a.taps + i * channels + channel);
    return taps;
}

/* From the rows of four tokens, the oldest first; SiLU comes behind it. */
static __device__ __forceinline__ float4 gdn_convolve(const gdn_taps &taps, const float4 *rows)
{
    float4 f = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < TAPS; i++) {
        f.x = fmaf(taps.of[i].x, rows[i].x, f.x), f.y = fmaf(taps.of[i].y, rows[i].y, f.y);
        f.z = fmaf(taps.of[i].z, rows[i].z, f.z), f.w = fmaf(taps.of[i].w, rows[i].w, f.w);
    }
    return f;
}

/* A warp's head of k normalised, of q scaled besides. */
static __device__ __forceinline__ float4 gdn_normed(float4 f, bool is_q)
{
    float sum = warp_sum(f.x * f.x + f.y * f.y + (f.z * f.z + f.w * f.w));
    float r = (is_q ? 0.08838834764831845f : 1.0f) * rsqrtf(sum + 1e-6f) + (sum - sum);
    return float4{f.x * r, f.y * r, f.z * r, f.w * r};
}

cudaError_t prefill_gdn_init(const prefill_device *device);
/* The recurrence in chunks; for devices of a grid of 64. */
cudaError_t prefill_gdn_chunks(const prefill_device *device, const prefill_gdn_args *args,
                               cudaStream_t stream);

#endif
