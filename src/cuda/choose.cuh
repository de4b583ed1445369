/* Choosing the experts of a token (MODEL.md 3.8 step 2), by one warp, in registers. */
#ifndef CALLA_CUDA_CHOOSE_CUH
#define CALLA_CUDA_CHOOSE_CUH

#include "cuda/common.cuh"

/* Larger floats have larger keys; NaN comes last, below minus infinity. */
__device__ static inline uint32_t order_key(float x)
{
    const uint32_t bits = __float_as_uint(x + 0.0f); /* -0 is 0 */
    const uint32_t key = bits ^ ((uint32_t)((int32_t)bits >> 31) | 0x80000000u);
    return (bits & 0x7fffffffu) > 0x7f800000u ? 0 : key;
}

/* What a warp knows of a row's choice: lane s has the expert of slots s and s + 32. */
struct choice {
    int first, second;
};

__device__ static inline int chosen(const choice &c, int slot)
{
    return __shfl_sync(0xffffffffu, slot < WARP ? c.first : c.second, slot % WARP);
}

/* The `count` largest of logits[n <= 32 KEYS], largest first, ties to the lower index. Indices are
 * valid and distinct even if there are NaNs. A round costs two reductions over the warp. */
template <int KEYS>
__device__ static inline choice choose_among(const float *logits, int n, int count)
{
    const int lane = threadIdx.x % WARP;
    uint32_t keys[KEYS], left = 0; /* `left`: bits of this lane's experts that are not taken */
#pragma unroll
    for (int i = 0; i < KEYS; i++) {
        const int e = i * WARP + lane;
        keys[i] = e < n ? order_key(__ldcg(logits + e)) : 0;
        left |= e < n ? 1u << i : 0u;
    }
    choice c;
    c.first = c.second = 0;
#pragma unroll 1
    for (int s = 0; s < count; s++) {
        uint32_t mine = 0;
        int where = -1;
#pragma unroll
        for (int i = 0; i < KEYS; i++)
            if ((left >> i & 1) && (where < 0 || keys[i] > mine)) mine = keys[i], where = i;
        const uint32_t largest = __reduce_max_sync(0xffffffffu, mine);
        const bool candidate = where >= 0 && mine == largest;
        const unsigned best = __reduce_min_sync(
            0xffffffffu, candidate ? (unsigned)(where * WARP + lane) : 0x7fffffffu);
        if (candidate && best == (unsigned)(where * WARP + lane)) left &= ~(1u << where);
        if (lane == s % WARP) {
            if (s < WARP)
                c.first = (int)best;
            else
                c.second = (int)best;
        }
    }
    return c;
}

/* Many experts: out of line, so that its registers do not count where there are few. */
__device__ static __noinline__ choice choose_among_many(const float *logits, int n, int count)
{
    return choose_among<32>(logits, n, count);
}

/* count <= 64 of n <= 1024. */
__device__ static inline choice choose_experts(const float *logits, int n, int count)
{
    return n <= 8 * WARP ? choose_among<8>(logits, n, count) : choose_among_many(logits, n, count);
}

/* weights[k] in shared memory: the softmax of the chosen logits among themselves, added up in the
 * order of the slots. By one warp. */
__device__ static inline void weigh_experts(const choice &c, const float *logits, int n, int k,
                                            float *weights)
{
    const int lane = threadIdx.x % WARP;
    const float most = __ldcg(logits + chosen(c, 0));
    float w[2], sum = 0;
    for (int e = lane; e < n; e += WARP) sum += __ldcg(logits + e) - __ldcg(logits + e);
    sum = warp_sum(sum); /* 0, or NaN: a router that has overflowed must not look like a choice */
    w[0] = lane < k ? expf(__ldcg(logits + c.first) - most) : 0;
    w[1] = lane + WARP < k ? expf(__ldcg(logits + c.second) - most) : 0;
#pragma unroll 1
    for (int s = 0; s < k; s++) sum += __shfl_sync(0xffffffffu, w[s / WARP], s % WARP);
    if (lane < k) weights[lane] = w[0] / sum;
    if (lane + WARP < k) weights[lane + WARP] = w[1] / sum;
}

#endif
