/* Dot products of 4-bit strips (cuda/layout.h) with inputs rounded to two planes of int8.
 *
 * A group of 64 inputs becomes x ~ scale * v, v = 128 high + low an integer of at most 16256 in
 * magnitude: high and low are bytes. The products of codes and values are summed exactly in int32
 * within a lane's 16 columns, then in f32, group by group and lane by lane in a fixed order: the
 * order depends on the number of columns alone. */
#ifndef CALLA_CUDA_W4_CUH
#define CALLA_CUDA_W4_CUH

#include "cuda/common.cuh"

/* One input row in shared memory, `groups` groups: per group and quarter of a lane's quad 8 words,
 * high[4] then low[4], word j the inputs of word j of the codes; then per group a scale and a
 * quarter of the sum, scale * sum(v) / 4: each lane of a quad adds it. */
struct rounded_row {
    uint32_t *planes; // [groups][4][8]
    float *scales;    // [groups]
    float *quarters;  // [groups]
};

static inline __host__ __device__ size_t rounded_row_bytes(int groups)
{
    return ((size_t)groups * (128 + 8) + 15) / 16 * 16;
}
__device__ static inline rounded_row rounded_row_at(unsigned char *memory, int groups, int row)
{
    rounded_row r;
    unsigned char *p = memory + (size_t)row * rounded_row_bytes(groups);
    r.planes = (uint32_t *)p;
    r.scales = (float *)(p + (size_t)groups * 128);
    r.quarters = r.scales + groups;
    return r;
}

/* Groups of a row that a warp takes at a time, so that their latencies overlap. */
enum { AT_ONCE = 4 };

/* A warp rounds up to AT_ONCE groups: group first + u * step, u < AT_ONCE, if below `groups`; lane
 * l has inputs 2l and 2l + 1 of each. A NaN or infinity makes the scale NaN. */
__device__ static inline void round_groups(const rounded_row &r, int groups, int first, int step,
                                           const float2 (&v)[AT_ONCE])
{
    const int lane = threadIdx.x % WARP;
    uint32_t largest[AT_ONCE], high[AT_ONCE], low[AT_ONCE];
    float scale[AT_ONCE];
    int sum[AT_ONCE];
    /* Magnitudes are ordered like their bits, and NaN and infinity come last. */
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++)
        largest[u] =
            max(__float_as_uint(v[u].x) & 0x7fffffffu, __float_as_uint(v[u].y) & 0x7fffffffu);
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++) largest[u] = __reduce_max_sync(0xffffffffu, largest[u]);
    /* Inputs 2l and 2l + 1 are bytes 0 and 2 of a word, or 1 and 3 for the upper half of 16. */
    const int shift = lane & 4 ? 8 : 0;
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++) {
        const bool bad = largest[u] >= 0x7f800000u;
        const float most = __uint_as_float(largest[u]);
        /* Below 2^-100 everything rounds to zero: its inverse would overflow. */
        const bool some = !bad && most > 0x1p-100f;
        const float inverse = some ? 16256.0f / most : 0;
        scale[u] = bad ? __uint_as_float(0x7fc00000u) : some ? most / 16256.0f : 0;
        const int a = some ? __float2int_rn(v[u].x * inverse) : 0;
        const int b = some ? __float2int_rn(v[u].y * inverse) : 0;
        sum[u] = a + b;
        const int high_a = (a + 64) >> 7, high_b = (b + 64) >> 7;
        const int low_a = a - 128 * high_a, low_b = b - 128 * high_b;
        high[u] = ((uint32_t)(high_a & 255) | (uint32_t)(high_b & 255) << 16) << shift;
        low[u] = ((uint32_t)(low_a & 255) | (uint32_t)(low_b & 255) << 16) << shift;
    }
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++) {
        sum[u] = __reduce_add_sync(0xffffffffu, sum[u]);
        high[u] |= __shfl_xor_sync(0xffffffffu, high[u], 4);
        low[u] |= __shfl_xor_sync(0xffffffffu, low[u], 4);
    }
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++) {
        const int group = first + u * step;
        if (group >= groups) break;
        r.planes[((size_t)group * 4 + (lane & 3)) * 8 + (lane >> 3) + (lane & 4)] =
            lane & 4 ? low[u] : high[u];
        if (lane == 0) {
            r.scales[group] = scale[u];
            r.quarters[group] = scale[u] * (float)sum[u] * 0.25f;
        }
    }
}

/* A lane's inputs of those groups, zero beyond the last. From the second-level cache: other
 * multiprocessors wrote them. */
__device__ static inline void load_groups(float2 (&v)[AT_ONCE], const float *x, int groups,
                                          int first, int step)
{
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++) {
        const int group = first + u * step;
        v[u] = make_float2(0, 0);
        if (group < groups) v[u] = __ldcg((const float2 *)x + group * WARP + threadIdx.x % WARP);
    }
}

/* What a lane holds of one block. */
struct w4_fragment {
    uint4 codes;
    uint32_t first, second; /* scale and bias of rows r and r + 8 */
};

__device__ static inline w4_fragment load_fragment(const unsigned char *block)
{
    const int lane = threadIdx.x % WARP;
    w4_fragment f;
    f.codes = load_weights(block + lane * 16);
    f.first = load_weight_word(block + W4_CODE_BYTES + (lane >> 2) * 4);
    f.second = load_weight_word(block + W4_CODE_BYTES + (lane >> 2) * 4 + 32);
    return f;
}

/* sums[0], sums[1] += this lane's part of rows r and r + 8 of one group. 32 integer products. */
__device__ static inline void multiply_fragment(const w4_fragment &f, const rounded_row &x,
                                                int group, float sums[2])
{
    const uint4 *p = (const uint4 *)(x.planes + ((size_t)group * 4 + threadIdx.x % 4) * 8);
    const uint4 high = p[0], low = p[1];
    const uint32_t mask = 0x0f0f0f0fu;
    int h0 = 0, h1 = 0, l0 = 0, l1 = 0;
#define WORD(w)                                                                                    \
    h0 = __dp4a((int)(f.codes.w & mask), (int)high.w, h0);                                         \
    l0 = __dp4a((int)(f.codes.w & mask), (int)low.w, l0);                                          \
    h1 = __dp4a((int)(f.codes.w >> 4 & mask), (int)high.w, h1);                                    \
    l1 = __dp4a((int)(f.codes.w >> 4 & mask), (int)low.w, l1);
    WORD(x)
    WORD(y)
    WORD(z)
    WORD(w)
#undef WORD
    const float scale = x.scales[group], quarter = x.quarters[group];
    sums[0] += bf16_low(f.first) * scale * (float)(128 * h0 + l0) + bf16_high(f.first) * quarter;
    sums[1] += bf16_low(f.second) * scale * (float)(128 * h1 + l1) + bf16_high(f.second) * quarter;
}

/* The sums of a quad, in all its lanes. */
__device__ static inline float quad_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    x += __shfl_xor_sync(0xffffffffu, x, 2);
    return x;
}

/* ---- staging an input row, by a whole block ---- */

/* u = x r factor, rounded. r = 1 / sqrt(mean square + eps); returns the mean square. `small` [32]
 * is free again after the next barrier. Begins with a barrier behind the sum, ends without one. */
__device__ static inline float stage_norm(const rounded_row &row, const float *x,
                                          const float *factor, int groups, float eps, float *small)
{
    const int warp = threadIdx.x / WARP, warps = blockDim.x / WARP, lane = threadIdx.x % WARP;
    const bool once = groups <= AT_ONCE * warps; /* the inputs stay in registers */
    float2 v[AT_ONCE];
    float sum = 0;
    for (int g = warp; g < groups; g += AT_ONCE * warps) {
        load_groups(v, x, groups, g, warps);
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) sum += v[u].x * v[u].x + v[u].y * v[u].y;
    }
    const float mean = block_sum(sum, small) / (float)(groups * W4_GROUP);
    const float r = 1.0f / sqrtf(mean + eps);
    for (int g = warp; g < groups; g += AT_ONCE * warps) {
        if (!once) load_groups(v, x, groups, g, warps);
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            if (g + u * warps >= groups) break;
            const float2 f = ((const float2 *)factor)[(g + u * warps) * WARP + lane];
            v[u].x *= r * f.x, v[u].y *= r * f.y;
        }
        round_groups(row, groups, g, warps, v);
    }
    return mean;
}

/* x as it is, rounded. */
__device__ static inline void stage_plain(const rounded_row &row, const float *x, int groups)
{
    const int warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    float2 v[AT_ONCE];
    for (int g = warp; g < groups; g += AT_ONCE * warps) {
        load_groups(v, x, groups, g, warps);
        round_groups(row, groups, g, warps, v);
    }
}

#endif
