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

/* d += a b of unsigned bytes a (16 rows by 32) and signed ones b (32 by 8 columns), exact. Lane l
 * has of a the rows l / 4 and l / 4 + 8, of b the column l / 4, of d both rows and the columns 2 (l
 * % 4) and the next. */
__device__ static inline void multiply_bytes(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                             uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* What blocks of one kernel tell each other: whoever reads what another has added sees all that was
 * written before. */
__device__ static inline unsigned load_acquire(const unsigned *p)
{
    unsigned v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ static inline void add_release(unsigned *p, unsigned v)
{
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

#endif
