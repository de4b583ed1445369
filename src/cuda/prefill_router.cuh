/* What the router's kernels share. Private to src/cuda. */
#ifndef CALLA_CUDA_PREFILL_ROUTER_CUH
#define CALLA_CUDA_PREFILL_ROUTER_CUH

#include "cuda/prefill_device.cuh"

typedef struct prefill_router_args {
    const __half *split;
    const float *sums;
    const unsigned char *codes;
    const uint32_t *pairs;
    int32_t n_tokens, n_outputs, hidden;
    float *logits;
} prefill_router_args;

/* The first two of codes, less 128, as halves: 0x6400 | q is 1024 + q, and so the difference is
 * exact. */
static __device__ __forceinline__ uint32_t code_pair(uint32_t codes)
{
    __half2 v = bits_half2(__byte_perm(codes, 0x64006400u, 0x5150));
    return half2_bits(__hsub2(v, bits_half2(0x64806480u)));
}

/* Scale, and bias of codes less 128. */
static __device__ __forceinline__ float2 code_scale(uint32_t pair)
{
    float scale = __uint_as_float(pair << 16);
    return make_float2(scale, fmaf(scale, 128.0f, __uint_as_float(pair & 0xffff0000u)));
}

/* On Hopper, after prefill_router_hopper_init. */
cudaError_t prefill_router_hopper_init();
cudaError_t prefill_router_hopper(const prefill_device *device, const prefill_router_args *args,
                                  cudaStream_t stream);

#endif
