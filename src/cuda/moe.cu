/* Decode: the mixture of experts as kernels of their own (cuda/moe.cuh). */
#include "cuda/moe.cuh"

__global__ void __launch_bounds__(MOE_THREADS) router_kernel(router_args a)
{
    extern __shared__ __align__(16) unsigned char shared[];
    router_block<any_shape>(a, blockIdx.x, shared, stream_order());
}

extern "C" cudaError_t launch_router(const router_args *a, cudaStream_t stream)
{
    size_t shared = router_shared_bytes(a);
    if (shared > 48 << 10) RETURN_IF_FAILED(allow_shared(router_kernel, shared));
    return launch(router_kernel, dim3((unsigned)router_blocks(a)), MOE_THREADS, shared, stream,
                  true, *a);
}

__global__ void __launch_bounds__(MOE_THREADS, 4) expert_inner_kernel(expert_args a)
{
    extern __shared__ __align__(16) unsigned char shared[];
    expert_inner_block<any_shape>(a, blockIdx.x, blockIdx.y, shared, stream_order());
}

extern "C" cudaError_t launch_expert_inner(const expert_args *a, cudaStream_t stream)
{
    size_t shared = inner_shared_bytes(a);
    if (shared > 48 << 10) RETURN_IF_FAILED(allow_shared(expert_inner_kernel, shared));
    return launch(expert_inner_kernel, dim3((unsigned)inner_blocks(a), (unsigned)a->n), MOE_THREADS,
                  shared, stream, true, *a);
}

__global__ void __launch_bounds__(MOE_THREADS, 3) expert_outer_kernel(expert_args a)
{
    extern __shared__ __align__(16) unsigned char shared[];
    expert_outer_block<any_shape>(a, blockIdx.x, blockIdx.y, shared, stream_order());
}

extern "C" cudaError_t launch_expert_outer(const expert_args *a, cudaStream_t stream)
{
    size_t shared = outer_shared_bytes(a);
    if (shared > 48 << 10) RETURN_IF_FAILED(allow_shared(expert_outer_kernel, shared));
    return launch(expert_outer_kernel, dim3((unsigned)outer_blocks(a), (unsigned)a->n), MOE_THREADS,
                  shared, stream, true, *a);
}
