/* Products of 4-bit strips (cuda/layout.h) with inputs rounded to two planes of int8.
 *
 * A group of 64 inputs becomes x ~ scale * v, v = 128 high + low an integer of at most 16256 in
 * magnitude: high and low are bytes. The tensor cores multiply 16 rows of codes by eight columns of
 * bytes, which are the planes of up to four input rows; a group's sums are exact in int32. Then
 * scale * sum + bias * (sum of x) in f32, group by group in a fixed order: it depends on the number
 * of columns alone. */
#ifndef CALLA_CUDA_W4_CUH
#define CALLA_CUDA_W4_CUH

#include "cuda/common.cuh"

/* One input row in shared memory, `groups` groups: per group and lane of a quad 8 words, high[4]
 * then low[4], word j the inputs of word j of the codes; then per group the scale, and the sum of
 * x. */
struct rounded_row {
    uint32_t *planes; // [groups][4][8]
    float *scales;    // [groups]
    float *sums;      // [groups]
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
    r.sums = r.scales + groups;
    return r;
}

/* Groups of a row that a warp takes at a time, so that their latencies overlap. */
enum { AT_ONCE = 4 };

/* What a lane holds of U rounded groups: one word of each one's planes, which is number
 * plane_word() of its 32, the scale and the sum. */
template <int U> struct rounded_values {
    uint32_t word[U];
    float scale[U], sum[U];
};
__device__ static inline int plane_word()
{
    const int lane = threadIdx.x % WARP;
    return (lane & 3) * 8 + (lane >> 3) + (lane & 4);
}

/* A warp rounds U groups, of which lane l has the inputs 2l and 2l + 1. A NaN or infinity
 * makes the scale NaN. */
template <int U> __device__ static inline rounded_values<U> round_together(const float2 (&v)[U])
{
    const int lane = threadIdx.x % WARP;
    rounded_values<U> r;
    uint32_t largest[U], high[U], low[U];
    int sum[U];
    /* Magnitudes are ordered like their bits, and NaN and infinity come last. */
#pragma unroll
    for (int u = 0; u < U; u++)
        largest[u] =
            max(__float_as_uint(v[u].x) & 0x7fffffffu, __float_as_uint(v[u].y) & 0x7fffffffu);
#pragma unroll
    for (int u = 0; u < U; u++) largest[u] = __reduce_max_sync(0xffffffffu, largest[u]);
    /* Inputs 2l and 2l + 1 are bytes 0 and 2 of a word, or 1 and 3 for the upper half of 16. */
    const int shift = lane & 4 ? 8 : 0;
#pragma unroll
    for (int u = 0; u < U; u++) {
        const bool bad = largest[u] >= 0x7f800000u;
        const float most = __uint_as_float(largest[u]);
        /* Below 2^-100 everything rounds to zero: its inverse would overflow. */
        const bool some = !bad && most > 0x1p-100f;
        const float inverse = some ? __fdividef(16256.0f, most) : 0;
        r.scale[u] = bad ? __uint_as_float(0x7fc00000u) : some ? most * (1.0f / 16256.0f) : 0;
        const int a = some ? __float2int_rn(v[u].x * inverse) : 0;
        const int b = some ? __float2int_rn(v[u].y * inverse) : 0;
        sum[u] = a + b;
        const int high_a = (a + 64) >> 7, high_b = (b + 64) >> 7;
        const int low_a = a - 128 * high_a, low_b = b - 128 * high_b;
        high[u] = ((uint32_t)(high_a & 255) | (uint32_t)(high_b & 255) << 16) << shift;
        low[u] = ((uint32_t)(low_a & 255) | (uint32_t)(low_b & 255) << 16) << shift;
    }
#pragma unroll
    for (int u = 0; u < U; u++) {
        r.sum[u] = r.scale[u] * (float)__reduce_add_sync(0xffffffffu, sum[u]);
        high[u] |= __shfl_xor_sync(0xffffffffu, high[u], 4);
        low[u] |= __shfl_xor_sync(0xffffffffu, low[u], 4);
        r.word[u] = lane & 4 ? low[u] : high[u];
    }
    return r;
}

/* Rounds group first + u * step, u < U, if below `groups`. */
template <int U>
__device__ static inline void round_groups(const rounded_row &r, int groups, int first, int step,
                                           const float2 (&v)[U])
{
    const rounded_values<U> g = round_together(v);
#pragma unroll
    for (int u = 0; u < U; u++) {
        const int group = first + u * step;
        if (group >= groups) break;
        r.planes[(size_t)group * 32 + plane_word()] = g.word[u];
        if (threadIdx.x % WARP == 0) {
            r.scales[group] = g.scale[u];
            r.sums[group] = g.sum[u];
        }
    }
}

/* A lane's inputs of those groups, zero beyond the last. From the second-level cache: other
 * multiprocessors wrote them. */
template <int U>
__device__ static inline void load_groups(float2 (&v)[U], const float *x, int groups, int first,
                                          int step)
{
#pragma unroll
    for (int u = 0; u < U; u++) {
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

/* Sums of a strip for up to four input rows: lane l has those of rows l / 4 and l / 4 + 8 for input
 * l % 4. */
struct strip_sums {
    float low, high;
};

/* sums += one group, for the N <= 4 inputs from number `first` on at `rows`. 16 * 64 * 8 products
 * of bytes. */
template <int N>
__device__ static inline void multiply_fragment(const w4_fragment &f, unsigned char *rows,
                                                int groups, int first, int group, strip_sums &sums)
{
    const int column = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    uint4 x = make_uint4(0, 0, 0, 0); /* the plane of an input that this lane's column is */
    if (column < 2 * N) {
        const rounded_row r = rounded_row_at(rows, groups, first + column / 2);
        x = *(const uint4 *)(r.planes + ((size_t)group * 4 + t) * 8 + column % 2 * 4);
    }
    const uint32_t mask = 0x0f0f0f0fu;
    const uint4 q = f.codes;
    int d[4] = {0, 0, 0, 0};
    multiply_bytes(d, q.x & mask, q.x >> 4 & mask, q.y & mask, q.y >> 4 & mask, x.x, x.y);
    multiply_bytes(d, q.z & mask, q.z >> 4 & mask, q.w & mask, q.w >> 4 & mask, x.z, x.w);
    const rounded_row mine = rounded_row_at(rows, groups, first + (N == 1 ? 0 : t % N));
    const float scale = mine.scales[group], sum = mine.sums[group];
    sums.low += bf16_low(f.first) * scale * (float)(128 * d[0] + d[1]) + bf16_high(f.first) * sum;
    sums.high +=
        bf16_low(f.second) * scale * (float)(128 * d[2] + d[3]) + bf16_high(f.second) * sum;
}

/* ---- staging an input row, by a whole block ---- */

enum { BLOCK_WARPS = 8 };

/* This thread's warp, so that the compiler knows how large it can be. */
__device__ static inline int block_warp()
{
    return threadIdx.x / WARP % BLOCK_WARPS;
}

/* A number that is known when compiling, or 0, and the same when it is not. */
__device__ static constexpr int known_or(int known, int value)
{
    return known ? known : value;
}

/* The factors of a norm that this lane needs first: loaded before the input is there. */
__device__ static __forceinline__ void load_factors(float2 (&f)[AT_ONCE], const float *factor,
                                                    int groups)
{
    const int warp = block_warp(), lane = threadIdx.x % WARP;
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++)
        if (warp + u * BLOCK_WARPS < groups)
            f[u] = ((const float2 *)factor)[(warp + u * BLOCK_WARPS) * WARP + lane];
}

/* u = x r factor, rounded. r = 1 / sqrt(mean square + eps); returns the mean square. `held` is from
 * load_factors. `small` [32] is free again after the next barrier. */
__device__ static __forceinline__ float stage_norm(const rounded_row &row, const float *x,
                                                   const float *factor,
                                                   const float2 (&held)[AT_ONCE], int groups,
                                                   float eps, float *small)
{
    const int warp = block_warp(), lane = threadIdx.x % WARP;
    const bool once = groups <= AT_ONCE * BLOCK_WARPS; /* the inputs stay in registers */
    float2 v[AT_ONCE];
    float sum = 0;
#pragma unroll 1
    for (int g = warp; g < groups; g += AT_ONCE * BLOCK_WARPS) {
        load_groups(v, x, groups, g, BLOCK_WARPS);
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) sum += v[u].x * v[u].x + v[u].y * v[u].y;
    }
    const float mean = block_sum<BLOCK_WARPS>(sum, small) / (float)(groups * W4_GROUP);
    const float r = inverse_root_finite(mean + eps);
#pragma unroll 1
    for (int g = warp; g < groups; g += AT_ONCE * BLOCK_WARPS) {
        if (!once) load_groups(v, x, groups, g, BLOCK_WARPS);
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            if (g + u * BLOCK_WARPS >= groups) break;
            const float2 f =
                g == warp ? held[u] : ((const float2 *)factor)[(g + u * BLOCK_WARPS) * WARP + lane];
            v[u].x *= r * f.x, v[u].y *= r * f.y;
        }
        round_groups(row, groups, g, BLOCK_WARPS, v);
    }
    return mean;
}

/* x as it is, rounded. GROUPS: as many as `groups`, or 0 if they are not known when compiling; if
 * they are, all are asked for before the first is waited for. */
template <int GROUPS>
__device__ static __forceinline__ void stage_plain(const rounded_row &row, const float *x,
                                                   int groups)
{
    if constexpr (GROUPS > 0) {
        enum { OF_WARP = (GROUPS + BLOCK_WARPS - 1) / BLOCK_WARPS, U = OF_WARP % 3 ? 4 : 3 };
        enum { PASSES = (OF_WARP + U - 1) / U };
        float2 v[PASSES][U];
#pragma unroll
        for (int p = 0; p < PASSES; p++)
            load_groups(v[p], x, GROUPS, block_warp() + p * U * BLOCK_WARPS, BLOCK_WARPS);
#pragma unroll
        for (int p = 0; p < PASSES; p++)
            round_groups(row, GROUPS, block_warp() + p * U * BLOCK_WARPS, BLOCK_WARPS, v[p]);
    } else {
        float2 v[AT_ONCE];
#pragma unroll 1
        for (int g = block_warp(); g < groups; g += AT_ONCE * BLOCK_WARPS) {
            load_groups(v, x, groups, g, BLOCK_WARPS);
            round_groups(row, groups, g, BLOCK_WARPS, v);
        }
    }
}

#endif
