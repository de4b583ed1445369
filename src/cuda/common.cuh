/* What the kernels share: launching, reductions in a fixed order, small functions. */
#ifndef CALLA_CUDA_COMMON_CUH
#define CALLA_CUDA_COMMON_CUH

#include "cuda/decode_kernels.h"
#include "cuda/ptx.cuh"

#include <cuda_fp16.h>
#include <math.h>

/* Whether the device can begin a kernel while the one before it in the stream ends (sm_90 and
 * later). Set by prefill_device_init. */
extern bool device_overlaps_launches;

/* Starts a kernel. With `overlapped` it may, where the device can, start before the one before it
 * in the stream has ended: it must call wait_for_previous_kernel before it touches anything
 * computed. */
template <typename... Parameters, typename... Arguments>
static cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, int threads, size_t shared,
                          cudaStream_t stream, bool overlapped, Arguments... arguments)
{
    cudaLaunchAttribute attribute;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3((unsigned)threads);
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = overlapped && device_overlaps_launches ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, arguments...);
}

#define RETURN_IF_FAILED(call)                                                                     \
    do {                                                                                           \
        cudaError_t failed_ = (call);                                                              \
        if (failed_ != cudaSuccess) return failed_;                                                \
    } while (0)

/* Dynamic shared memory beyond 48 KB has to be asked for. */
template <typename Kernel> static cudaError_t allow_shared(Kernel kernel, size_t bytes)
{
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

enum { WARP = 32, FULL_WARP = -1 };

/* Sum over a warp, the same in all lanes: a butterfly, so in a fixed order. */
__device__ static inline float warp_sum(float x)
{
#pragma unroll
    for (int i = WARP / 2; i > 0; i /= 2) x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}
__device__ static inline float warp_max(float x)
{
#pragma unroll
    for (int i = WARP / 2; i > 0; i /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, i));
    return x;
}
__device__ static inline int warp_sum_int(int x)
{
#pragma unroll
    for (int i = WARP / 2; i > 0; i /= 2) x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}

/* Sum over a block of WARPS warps, the same in all threads. `shared` holds as many floats, and is
 * free again after the next __syncthreads. */
template <int WARPS> __device__ static inline float block_sum(float x, float *shared)
{
    x = warp_sum(x);
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = x;
    __syncthreads();
    float sum = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum += shared[w];
    return sum;
}

/* The fast quotient and root (2 units in the last place): the exact ones are a hundred instructions
 * each, and a kernel that runs once a layer waits for its instructions, too.
 *
 * What would turn an infinity into an ordinary number gives NaN instead (x - x is 0 for finite x).
 */
__device__ static inline float sigmoid_finite(float x)
{
    return __fdividef(1.0f, 1.0f + expf(-x)) + (x - x);
}
__device__ static inline float inverse_root_finite(float x)
{
    return rsqrtf(x) + (x - x);
}
__device__ static inline float silu(float x)
{
    return __fdividef(x, 1.0f + expf(-x)) + (x - x);
}
__device__ static inline float softplus(float x)
{
    return x > 20.0f ? x : log1pf(expf(x));
}
__device__ static inline float bf16_low(uint32_t pair)
{
    return __uint_as_float(pair << 16);
}
__device__ static inline float bf16_high(uint32_t pair)
{
    return __uint_as_float(pair & 0xffff0000u);
}
__device__ static inline bool is_finite(float x)
{
    return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u;
}
/* KV cache element: beyond the range of a half it is the largest; NaN and infinity are NaN. */
__device__ static inline __half to_half(float x)
{
    return __float2half_rn(fminf(fmaxf(x, -65504.0f), 65504.0f) + (x - x));
}

static inline unsigned divide_up(int64_t a, int64_t b)
{
    return (unsigned)((a + b - 1) / b);
}

#endif
