/* What the kernel of a token's layers needs of sm_90 beyond CUDA C++: a ring in shared memory that
 * bulk copies fill, values in global memory that carry a tag, a barrier of the whole grid. */
#ifndef CALLA_CUDA_TOKEN_PTX_CUH
#define CALLA_CUDA_TOKEN_PTX_CUH

#include "cuda/common.cuh"

__device__ static inline uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- barriers in shared memory ---- */

__device__ static inline void barrier_start(uint64_t *barrier, uint32_t n_arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(n_arrivals)
                 : "memory");
}
__device__ static inline void barrier_arrive(uint64_t *barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
                 : "memory");
}
/* Arrives, and n_bytes have to arrive too. */
__device__ static inline void barrier_expect(uint64_t *barrier, uint32_t n_bytes)
{
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
        "r"(n_bytes)
        : "memory");
}
/* What this block's threads and bulk copies wrote is visible. */
__device__ static inline void barrier_wait(uint64_t *barrier, uint32_t parity)
{
    uint32_t done;
    do
        asm volatile("{\n\t.reg .pred p;\n\t"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
                     "selp.u32 %0, 1, 0, p;\n\t}"
                     : "=r"(done)
                     : "r"(shared_address(barrier)), "r"(parity)
                     : "memory");
    while (!done);
}
__device__ static inline void barriers_started()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* ---- copies ---- */

/* n_bytes (a multiple of 16, both addresses too) of global memory; they arrive at the barrier. A
 * token needs them once, so they leave the second-level cache first: what blocks tell each other
 * stays in it. */
__device__ static inline void copy_bulk(void *to, const void *from, uint32_t n_bytes,
                                        uint64_t *barrier)
{
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)),
                 "l"(from), "r"(n_bytes), "r"(shared_address(barrier)), "l"(policy)
                 : "memory");
}
/* Into the second-level cache: n_bytes, a multiple of 16, that this or another multiprocessor will
 * copy. */
__device__ static inline void prefetch_bulk(const void *from, uint32_t n_bytes)
{
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(n_bytes) : "memory");
}

/* ---- grid ---- */

/* One thread for its block, behind a barrier of the block. */
__device__ static inline void grid_signal(unsigned *counter)
{
    add_release(counter, 1);
}
/* Until `counter` has reached `target`, round the clock. */
__device__ static inline void grid_await(const unsigned *counter, unsigned target)
{
    while ((int)(load_acquire(counter) - target) < 0) {}
}

/* A value and a tag that says whose it is, in one piece: a reader that finds its tag has its value,
 * without any barrier. */
__device__ static inline void store_tagged(uint64_t *to, float value, uint32_t tag)
{
    const uint64_t word = (uint64_t)tag << 32 | __float_as_uint(value);
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}
/* Two neighbours, each in one piece, 16-byte aligned. */
struct tagged_pair {
    uint64_t first, second;
};
__device__ static inline uint64_t load_tagged(const uint64_t *from)
{
    uint64_t word;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
    return word;
}
__device__ static inline tagged_pair load_tagged_pair(const uint64_t *from)
{
    tagged_pair p;
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(p.first), "=l"(p.second)
                 : "l"(from)
                 : "memory");
    return p;
}
__device__ static inline bool has_tag(uint64_t word, uint32_t tag)
{
    return (uint32_t)(word >> 32) == tag;
}
__device__ static inline float value_of(uint64_t word)
{
    return __uint_as_float((uint32_t)word);
}
/* Waits for N pairs; they are asked for together, and all again while one is missing: asking for
 * the missing ones alone, or a pause, is slower. By whole warps, which leave the loop together:
 * lanes that have parted run what follows one after another. */
template <int N>
__device__ static inline void await_pairs(float2 (&v)[N], const uint64_t *const (&from)[N],
                                          uint32_t tag)
{
    tagged_pair p[N];
    bool there;
    do {
        there = true;
#pragma unroll
        for (int i = 0; i < N; i++) p[i] = load_tagged_pair(from[i]);
#pragma unroll
        for (int i = 0; i < N; i++) there &= has_tag(p[i].first, tag) && has_tag(p[i].second, tag);
    } while (!__all_sync(0xffffffffu, there));
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = make_float2(value_of(p[i].first), value_of(p[i].second));
}
/* One a lane, by whole warps, too. */
__device__ static inline float await_value(const uint64_t *from, uint32_t tag)
{
    uint64_t word;
    do word = load_tagged(from);
    while (!__all_sync(0xffffffffu, has_tag(word, tag)));
    return value_of(word);
}

/* The first n threads, n a constant. */
template <int N> __device__ static inline void sync_threads()
{
    asm volatile("bar.sync 1, %0;" ::"n"(N) : "memory");
}

/* d += a (16 x 16 halves) b (16 x 8), the fragments of mma.m16n8k16. */
__device__ static inline void multiply_halves(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                              uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

#endif
