/* Decode: the recurrence as a kernel of its own (cuda/gdn.cuh). */
#include "cuda/gdn.cuh"

__global__ void __launch_bounds__(GDN_THREADS) gdn_step_kernel(gdn_step_args a)
{
    gdn_block(a, blockIdx.x, blockIdx.y, stream_order());
}

extern "C" cudaError_t launch_gdn_step(const gdn_step_args *a, cudaStream_t stream)
{
    return launch(gdn_step_kernel, dim3((unsigned)(a->value_heads * SLICES), (unsigned)a->n),
                  GDN_THREADS, 0, stream, true, *a);
}
