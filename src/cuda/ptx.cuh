/* The few instructions CUDA C++ has no name for. */
#ifndef CALLA_CUDA_PTX_CUH
#define CALLA_CUDA_PTX_CUH

#include <cuda_runtime.h>
#include <stdint.h>

/* Programmatic dependent launch: a kernel may start while the one before it still runs. Until this
 * returns it may touch only what no kernel in flight writes; afterwards all of the one before (and,
 * since every kernel waits, of those before that) is visible. */
__device__ static inline void wait_for_previous_kernel()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Lets the next kernel's blocks start as soon as this one's leave room. */
__device__ static inline void release_next_kernel()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Weights: read once, by one warp, kept out of the first-level cache. Volatile, so that the loads
 * stay where they are written: before wait_for_previous_kernel. */
__device__ static inline uint4 load_weights(const void *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
__device__ static inline uint32_t load_weight_word(const void *p)
{
    uint32_t v;
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}

#endif
