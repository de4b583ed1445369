/* The mixture of experts in one phase: every cluster computes the router for itself, a block 32
 * of its rows; the work is cut into pieces of 64 inner columns of a chosen expert or the shared
 * one, and a cluster has every n-th of them, from gate and up to the columns of down. */
#ifndef CALLA_CUDA_TOKEN_MOE_CUH
#define CALLA_CUDA_TOKEN_MOE_CUH

#include "cuda/token.cuh"

/* Number i of the cluster's pieces: the shared expert's are the first. Dealt from the last cluster
 * on, since the first has one head more. */
struct moe_unit {
    bool shared;
    int slot, group; /* which of the chosen; 64 inner columns */
};
__device__ static inline int count_units(const token_state &t)
{
    return (UNITS + t.cluster) / t.n_clusters;
}
__device__ static inline moe_unit unit_of(const token_state &t, int i)
{
    const int number = t.n_clusters - 1 - t.cluster + i * t.n_clusters;
    moe_unit u;
    u.shared = number < SHARED_UNITS;
    u.slot = number / SHARED_UNITS - 1, u.group = number % SHARED_UNITS;
    return u;
}

/* ---- router ---- */

/* The warp's two groups in four planes of 7 bits, 28 in all: what an f32 has, so that the products
 * with 8-bit codes are exact. x ~ scale * (2^21 a + 2^14 b + 2^7 c + d). */
__device__ static inline void store_planes(const token_state &t, const float2 (&v)[2],
                                           float (&scale)[2], float (&sum)[2])
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll
    for (int u = 0; u < 2; u++) {
        const uint32_t largest =
            __reduce_max_sync(0xffffffffu, max(__float_as_uint(v[u].x) & 0x7fffffffu,
                                               __float_as_uint(v[u].y) & 0x7fffffffu));
        const float most = __uint_as_float(largest);
        const bool bad = largest >= 0x7f800000u, some = !bad && most > 0x1p-90f;
        const float inverse = some ? __fdividef(0x1.f8p26f, most) : 0; /* below 2^27 */
        scale[u] = bad ? __uint_as_float(0x7fc00000u) : some ? 1.0f / inverse : 0;
        sum[u] = warp_sum(v[u].x + v[u].y);
        int a = some ? __float2int_rn(v[u].x * inverse) : 0;
        int b = some ? __float2int_rn(v[u].y * inverse) : 0;
        unsigned char *planes = &t.s->moe.planes[2 * warp + u][0][2 * lane];
#pragma unroll
        for (int plane = 3; plane >= 0; plane--) {
            const int high_a = plane ? (a + 64) >> 7 : 0, high_b = plane ? (b + 64) >> 7 : 0;
            const uint32_t pair =
                (uint32_t)((a - 128 * high_a) & 255) | (uint32_t)((b - 128 * high_b) & 255) << 8;
            *(uint16_t *)(planes + plane * W4_GROUP) = (uint16_t)pair;
            a = high_a, b = high_b;
        }
    }
    __syncwarp();
}

/* The warp's columns of 16 rows of the router, 8 from each of two stages, into parts[tile]. */
__device__ static inline void route_tile(const token_state &t, const unsigned char *first,
                                         const unsigned char *second, int tile,
                                         const float (&scale)[2], const float (&sum)[2])
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, q = lane % 4;
    float low = 0, high = 0;
#pragma unroll
    for (int u = 0; u < 2; u++) {
        const int group = 2 * warp + u, at = g * ROUTER_STRIDE + group * W4_GROUP + q * 16;
        const uint4 a = *(const uint4 *)(first + at), b = *(const uint4 *)(second + at);
        const uint4 x = *(const uint4 *)&t.s->moe.planes[group][g % 4][q * 16];
        const int pair = ROUTER_PAIRS + g * ROUTER_PAIR_STRIDE + group * 4;
        const uint32_t pair_low = *(const uint32_t *)(first + pair);
        const uint32_t pair_high = *(const uint32_t *)(second + pair);
        int d[4] = {0, 0, 0, 0};
        multiply_bytes(d, a.x, b.x, a.y, b.y, x.x, x.y);
        multiply_bytes(d, a.z, b.z, a.w, b.w, x.z, x.w);
        /* Lanes 0 of a quad have the two upper planes, lanes 1 the lower ones. */
        const float upper = (float)(128 * d[0] + d[1]), lower = (float)(128 * d[2] + d[3]);
        const float dot_low = 16384.0f * upper + __shfl_down_sync(0xffffffffu, upper, 1);
        const float dot_high = 16384.0f * lower + __shfl_down_sync(0xffffffffu, lower, 1);
        low += bf16_low(pair_low) * (scale[u] * dot_low) + bf16_high(pair_low) * sum[u];
        high += bf16_low(pair_high) * (scale[u] * dot_high) + bf16_high(pair_high) * sum[u];
    }
    if (q == 0) {
        t.s->parts[tile][warp][g] = low;
        t.s->parts[tile][warp][g + 8] = high;
    }
}

/* The warp's columns of the shared expert's gate. */
__device__ static inline void route_gate(const token_state &t, const unsigned char *stage,
                                         const float2 (&v)[2])
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    float sum = 0;
#pragma unroll
    for (int u = 0; u < 2; u++) {
        const int group = (2 * warp + u) % 8;
        const uint32_t codes =
            *(const uint16_t *)(stage + ROUTER_GATE + group * W4_GROUP + 2 * lane);
        const uint32_t pair = ((const uint32_t *)(stage + ROUTER_GATE_PAIRS))[group];
        sum += (bf16_low(pair) * (float)(codes & 255) + bf16_high(pair)) * v[u].x;
        sum += (bf16_low(pair) * (float)(codes >> 8) + bf16_high(pair)) * v[u].y;
    }
    sum = warp_sum(sum);
    if (lane == 0) t.s->moe.gate[warp] = sum;
}

/* Logits of the block's rows to all blocks. Returns the norm's factor. */
__device__ static inline float route(token_state &t, const float2 (&v)[2], int layer)
{
    const int warp = threadIdx.x / WARP, output = threadIdx.x / 4;
    float scale[2], sum[2];
    store_planes(t, v, scale, sum);
#pragma unroll 1
    for (int tile = 0; tile < 2; tile++) {
        const unsigned char *first = take_stage(t, 0), *second = take_stage(t, 1);
        route_tile(t, first, second, tile, scale, sum);
        if (warp / 4 == 2 * tile) route_gate(t, first, v);
        if (warp / 4 == 2 * tile + 1) route_gate(t, second, v);
        give_stage(t);
        give_stage(t);
    }
    sync_threads<CONSUMER_THREADS>();
    const float r = norm_factor(t, layer);
    if (output < ROUTER_ROWS_BLOCK) {
        const float logit = r * sum_parts(t, output / 16, output % 16);
        send_rows(logit, t.s->moe.logits + t.rank * ROUTER_ROWS_BLOCK + output / 4 * 4,
                  &t.s->logits_here);
    }
    return r;
}

/* Keys of one lane, the largest first; equal ones stay in their order. */
template <int N> __device__ static inline void sort_keys(uint32_t (&keys)[N], int (&which)[N])
{
#pragma unroll
    for (int round = 0; round < N; round++)
#pragma unroll
        for (int i = round % 2; i + 1 < N; i += 2) {
            const bool swap = keys[i] < keys[i + 1];
            const uint32_t a = keys[i], b = keys[i + 1];
            const int c = which[i], d = which[i + 1];
            keys[i] = swap ? b : a, keys[i + 1] = swap ? a : b;
            which[i] = swap ? d : c, which[i + 1] = swap ? c : d;
        }
}

/* The expert of slot l in lane l < 8, as choose_keys (choose.cuh) chooses; lanes sort their keys
 * first, so that a round looks at one of each. */
__device__ static inline int choose_sorted(const float *logits, int n)
{
    enum { KEYS = TOKEN_MOST_EXPERTS / WARP };
    const int lane = threadIdx.x % WARP;
    uint32_t keys[KEYS];
    int which[KEYS], mine = 0;
#pragma unroll
    for (int i = 0; i < KEYS; i++) {
        which[i] = i * WARP + lane;
        keys[i] = which[i] < n ? order_key(logits[which[i]]) : 0;
    }
    sort_keys(keys, which);
#pragma unroll
    for (int s = 0; s < TOKEN_CHOSEN; s++) {
        const uint32_t largest = __reduce_max_sync(0xffffffffu, keys[0]);
        const uint32_t best =
            __reduce_min_sync(0xffffffffu, keys[0] == largest ? (uint32_t)which[0] : 0xffffffffu);
        if (lane == s) mine = (int)best;
        const bool taken = (uint32_t)which[0] == best;
#pragma unroll
        for (int i = 0; i + 1 < KEYS; i++)
            if (taken) keys[i] = keys[i + 1], which[i] = which[i + 1];
        if (taken) keys[KEYS - 1] = 0, which[KEYS - 1] = 0x7fffffff;
    }
    return mine;
}

/* By the warp that fills the ring: the chosen experts, lane s slot s, and the weights of the
 * cluster's pieces in shared memory. */
__device__ static inline int choose_units(const token_state &t, int n_units)
{
    const float *logits = t.s->moe.logits;
    const int lane = threadIdx.x % WARP, n = t.a->n_experts;
    const int expert = choose_sorted(logits, n);
    float total = 0;
#pragma unroll
    for (int i = 0; i < TOKEN_MOST_EXPERTS / WARP; i++) {
        const int e = i * WARP + lane;
        if (e < n) total += logits[e] - logits[e];
    }
    /* 0, or NaN: a router that has overflowed must not look like a choice. */
    total = warp_sum(total);
    const float most = logits[__shfl_sync(0xffffffffu, expert, 0)];
    const float w = lane < TOKEN_CHOSEN ? expf(logits[expert] - most) : 0;
#pragma unroll
    for (int s = 0; s < TOKEN_CHOSEN; s++) total += __shfl_sync(0xffffffffu, w, s);
    for (int i = 0; i < n_units; i++) {
        const moe_unit u = unit_of(t, i);
        if (!u.shared && lane == u.slot) t.s->moe.weights[i] = w / total;
    }
    return expert;
}

/* ---- experts ---- */

/* h of the cluster's pieces, 8 columns of each by a block, to all blocks. */
__device__ static inline void multiply_inner(token_state &t, const held_groups &x, float r,
                                             int n_units)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll 1
    for (int i = 0; i < n_units; i += 2) multiply_strips(t, x, i, min(n_units - i, 2));
    sync_threads<CONSUMER_THREADS>();
    const int unit = warp / 2;
    if (unit >= n_units) return;
    /* Quads: columns 4 (warp % 2) ..., gate and up in turn. */
    const int column = warp % 2 * 4 + lane / 8;
    const float sum = r * sum_parts(t, unit, column + (lane & 4 ? 8 : 0));
    const float other = __shfl_xor_sync(0xffffffffu, sum, 4);
    const float h = lane & 4 ? silu(other) * sum : silu(sum) * other;
    float4 v;
    v.x = __shfl_sync(0xffffffffu, h, 0), v.y = __shfl_sync(0xffffffffu, h, 8);
    v.z = __shfl_sync(0xffffffffu, h, 16), v.w = __shfl_sync(0xffffffffu, h, 24);
    if (lane < RANKS)
        send(v, t.s->moe.h[unit] + t.rank * 8 + warp % 2 * 4, &t.s->h_here, (uint32_t)lane);
}

/* The columns of down that meet them, 16 strips a block: partial sums of its 256 rows. */
__device__ static inline void multiply_outer(token_state &t, float r, int n_units)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    moe_shared &s = t.s->moe;
    if (warp < n_units) {
        float weight = s.weights[warp];
        if (unit_of(t, warp).shared)
            weight = sigmoid_finite(r * warp_sum(lane < CONSUMERS ? s.gate[lane] : 0));
        share_group(t, warp, ((const float2 *)s.h[warp])[lane], weight);
    }
    sync_threads<CONSUMER_THREADS>();
    float2 sum = make_float2(0, 0);
#pragma unroll 1
    for (int i = 0; i < n_units; i += 4) { /* two pieces a stage */
        const bool more = i + 2 < n_units;
        const unsigned char *first = take_stage(t, 0) + warp * W4_BLOCK_BYTES, *second = first;
        if (more) second = take_stage(t, 1) + warp * W4_BLOCK_BYTES;
        held_groups x;
        hold_shared(t, x, i);
        const four_blocks f = take_blocks<W4_STRIP_ROWS * W4_BLOCK_BYTES>(first, second);
        give_stage(t);
        if (more) give_stage(t);
        const float2 v = multiply_blocks(f, x);
        if (i + lane % 4 < n_units) sum.x += v.x, sum.y += v.y; /* else there is no such piece */
    }
    store_partial(t, t.cluster, sum);
}

__device__ static inline void run_moe(token_state &t, const token_layer &l, int layer)
{
    const int n_units = count_units(t);
    float2 factor[2], v[2];
    held_groups x;
    load_norm(factor, l.post_norm);
    if (threadIdx.x == 0) barrier_expect(&t.s->h_here, (uint32_t)n_units * W4_GROUP * 4);
    add_sums(t, TOKEN_HEADS);
    load_input(t, v, factor);
    const float r = route(t, v, layer);
    hold_groups(x, v);
    multiply_inner(t, x, r, n_units);
    barrier_wait_cluster(&t.s->h_here, t.h_parity);
    t.h_parity ^= 1;
    multiply_outer(t, r, n_units);
    t.tag++;
}

#endif
