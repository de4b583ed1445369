/* How a block of decode's kernels waits for what it is given. Private to src/cuda. */
#ifndef CALLA_CUDA_ORDER_CUH
#define CALLA_CUDA_ORDER_CUH

#include "cuda/common.cuh"

/* In a kernel of its own: await_input returns when the kernel before this one is done; those before
 * that one are done already (await_older). By all threads, as all of these. */
struct stream_order {
    __device__ void await_older() const {}
    __device__ void await_input() const
    {
        wait_for_previous_kernel();
        release_next_kernel();
    }
};

/* In a kernel of several steps, whose blocks start in their order (cuda/chain.cu): a step's input
 * is there when the blocks of the step before it have counted themselves, and `older` is that of
 * the step before that one. Without a counter it comes from the kernel before. */
struct chain_order {
    const unsigned *input, *older;
    unsigned n_input, n_older; /* blocks */

    __device__ void await_older() const { await(older, n_older); }
    __device__ void await_input() const { await(input, n_input); }

  private:
    __device__ static void await(const unsigned *counter, unsigned n)
    {
        if (!counter) return wait_for_previous_kernel();
        if (threadIdx.x == 0)
            while (load_acquire(counter) < n) continue;
        __syncthreads();
    }
};

#endif
