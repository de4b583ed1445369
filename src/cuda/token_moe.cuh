/* The mixture of experts in one phase. Every block computes two rows of the router; the experts'
 * work is cut into pieces of 64 inner columns, of which a team has four neighbours of one chosen
 * expert, half of it, and half of the teams one of the shared expert: from gate and up to the
 * columns of down. */
#ifndef CALLA_CUDA_TOKEN_MOE_CUH
#define CALLA_CUDA_TOKEN_MOE_CUH

#include "cuda/token.cuh"

enum {
    INNER_STRIPS = TOKEN_WIDTH / 8, /* of an expert */
    OUTER_STRIPS = TOKEN_HIDDEN / W4_STRIP_ROWS,
    OUTER_GROUPS = TOKEN_WIDTH / W4_GROUP,
    INNER_BYTES = CHOSEN_UNITS * STRIP_BYTES,    /* of a block: two stages */
    OUTER_BYTES = CHOSEN_UNITS * W4_BLOCK_BYTES, /* of one of a block's 16 strips: a stage */
    SHARED_OUTER_BYTES = CONSUMERS * W4_BLOCK_BYTES,
};
static_assert(INNER_BYTES == 2 * STAGE_BYTES, "two stages");

/* The team's pieces i < CHOSEN_UNITS are of this one of the chosen, and of this half of its inner
 * columns: neighbours, so that its weights are. */
__device__ static inline int slot_of(const token_state &t)
{
    return t.team / 2;
}
__device__ static inline int half_of(const token_state &t)
{
    return t.team % 2;
}
/* And this group of the shared expert's. */
__device__ static inline int shared_group_of(const token_state &t)
{
    return t.team % (TOKEN_TEAMS / 2);
}
__device__ static inline bool has_shared(const token_state &t)
{
    return t.team < TOKEN_TEAMS / 2;
}

/* ---- router ---- */

__device__ static inline bool has_gate(const token_state &t)
{
    return block_index(t) == TOKEN_BLOCKS - 1;
}

/* The warp's 128 columns of a row, the lane's part, in f32. */
__device__ static inline float route_row(const unsigned char *stage, int row, const float2 (&v)[2])
{
    const int lane = threadIdx.x % WARP, group = threadIdx.x / WARP * 2;
    const unsigned char *codes = stage + row * TOKEN_HIDDEN + group * W4_GROUP + 2 * lane;
    const uint32_t *pairs = (const uint32_t *)(stage + ROUTER_PAIRS) + row * GROUPS + group;
    float sum = 0;
#pragma unroll
    for (int u = 0; u < 2; u++) {
        const uint32_t c = *(const uint16_t *)(codes + u * W4_GROUP), pair = pairs[u];
        sum += (bf16_low(pair) * (float)(c & 255) + bf16_high(pair)) * v[u].x;
        sum += (bf16_low(pair) * (float)(c >> 8) + bf16_high(pair)) * v[u].y;
    }
    return sum;
}

/* The warp's parts of the block's rows, their weights in `stage`. */
__device__ static inline void route_rows(const token_state &t, const unsigned char *stage,
                                         const float2 (&v)[2])
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    row_shared &s = *t.own;
    const float a = route_row(stage, 0, v), b = route_row(stage, 1, v);
    if (has_gate(t)) {
        const float gate = warp_sum(route_row(stage, 2, v));
        if (lane == 0) s.routed[2][warp] = gate;
    }
    /* Half a warp sums up either row. */
    float sum = (lane & 16 ? b : a) + __shfl_xor_sync(0xffffffffu, lane & 16 ? a : b, 16);
#pragma unroll
    for (int i = 8; i > 0; i /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, i);
    if (lane % 16 == 0) s.routed[lane / 16][warp] = sum;
}

/* Logits of the block's rows to all blocks, by a warp, behind a barrier; or with `gate` that of the
 * shared expert's gate. r: the norm's factor. */
__device__ static inline void store_logits(const token_state &t, bool gate, float r)
{
    const int lane = threadIdx.x % WARP, row = gate ? ROUTER_ROWS : lane / 16;
    token_mail &m = *t.a->mail;
    float sum = t.own->routed[row][lane % 16];
#pragma unroll
    for (int i = 8; i > 0; i /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, i);
    const int expert = ROUTER_ROWS * block_index(t) + row;
    if (!gate && lane % 16 < TOKEN_RANKS && expert < t.a->n_experts)
        store_tagged(m.logits[lane % 16] + expert, r * sum, t.tag);
    if (gate && lane == 0 && has_gate(t)) store_tagged(m.shared_gate, r * sum, t.tag);
}

/* ---- the choice, by the warp that fills the ring, of several rows by a warp each ---- */

/* The inverse of order_key, but for NaN. */
__device__ static inline float value_of_key(uint32_t key)
{
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

/* A lane has experts 2 lane, 2 lane + 1 of every 64. */
__device__ static inline int expert_of(int i)
{
    return i / 2 * 64 + threadIdx.x % WARP * 2 + i % 2;
}

/* Keys of one lane, the largest first: Batcher's network, every index a constant. */
template <int N> __device__ static inline void sort_keys(uint32_t (&keys)[N])
{
#pragma unroll
    for (int p = 1; p < N; p *= 2)
#pragma unroll
        for (int k = p; k > 0; k /= 2)
#pragma unroll
            for (int i = k % p; i + k < N; i++) {
                if ((i - k % p) % (2 * k) >= k || i / (2 * p) != (i + k) / (2 * p)) continue;
                const uint32_t a = keys[i], b = keys[i + k];
                keys[i] = max(a, b), keys[i + k] = min(a, b);
            }
}

/* The expert of one slot, and what the weights of all need: the key of slot l in lane l < 8. */
struct router_choice {
    int expert;
    uint32_t key;
    float rest; /* the lane's part of 0, or of NaN if a logit is not finite */
};

/* As choose_experts (choose.cuh). One warp runs this while all blocks wait, and each instruction
 * waits for the one before: so lanes sort keys alone, a round takes the largest from all lanes that
 * have it, and only then the slot's expert is looked for, of equal ones the next in their order.
 * wait() is called each time that logits are asked for. */
template <typename Wait>
__device__ static inline router_choice choose_slot(const token_state &t, int slot, Wait wait)
{
    enum { KEYS = TOKEN_MOST_EXPERTS / WARP };
    const int lane = threadIdx.x % WARP, n = t.a->n_experts;
    const uint64_t *logits = t.a->mail->logits[t.rank];
    router_choice c = {0, 0, 0};
    uint32_t keys[KEYS], left[KEYS], key = 0;
    float v[KEYS];
    bool there;
    do {
        tagged_pair p[KEYS / 2];
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++) p[i] = load_tagged_pair(logits + expert_of(2 * i));
        there = true;
#pragma unroll
        for (int i = 0; i < KEYS; i++) {
            const uint64_t word = i % 2 ? p[i / 2].second : p[i / 2].first;
            there &= expert_of(i) >= n || has_tag(word, t.tag);
            v[i] = value_of(word);
        }
        wait();
    } while (!__all_sync(0xffffffffu, there));
    __syncwarp();
#pragma unroll
    for (int i = 0; i < KEYS; i++) { /* 0: there is no such expert */
        keys[i] = left[i] = expert_of(i) < n ? max(order_key(v[i]), 1u) : 0;
        if (expert_of(i) < n) c.rest += v[i] - v[i];
    }
    sort_keys(left);
    int first = 0; /* slot with `key` */
#pragma unroll 1
    for (int s = 0; s < TOKEN_CHOSEN;) {
        const uint32_t largest = __reduce_max_sync(0xffffffffu, left[0]);
        const bool taken = left[0] == largest;
        if (lane >= s) c.key = largest;
        if (s <= slot && key != largest) key = largest, first = s;
        s += __popc(__ballot_sync(0xffffffffu, taken));
#pragma unroll
        for (int i = 0; i < KEYS; i++) left[i] = !taken ? left[i] : i + 1 < KEYS ? left[i + 1] : 0;
    }
    c.expert = -1;
#pragma unroll 1
    for (int s = first; s <= slot; s++) {
        int next = TOKEN_MOST_EXPERTS;
#pragma unroll
        for (int i = KEYS - 1; i >= 0; i--)
            if (keys[i] == key && expert_of(i) > c.expert) next = expert_of(i);
        c.expert = __reduce_min_sync(0xffffffffu, next);
    }
    return c;
}
/* The weight of a slot's expert. A router that has overflowed must not look like a choice. */
__device__ static inline float weigh_slot(const router_choice &c, int slot)
{
    const float most = value_of_key(__shfl_sync(0xffffffffu, c.key, 0));
    const float w = threadIdx.x % WARP < TOKEN_CHOSEN ? expf(value_of_key(c.key) - most) : 0;
    return __shfl_sync(0xffffffffu, w / (warp_sum(w) + warp_sum(c.rest)), slot);
}

/* ---- experts ---- */

/* h of the block's strip `unit`, 4 (half 0) or the other 4 of its columns, by a warp behind a
 * barrier; to all blocks of the team. r: the norm's factor. */
__device__ static inline void store_inner(const token_state &t, int unit, int half, float r)
{
    const int lane = threadIdx.x % WARP;
    /* Quads: columns 4 half ..., gate and up in turn. */
    const int column = half * 4 + lane / 8;
    const float sum = r * sum_parts(t, unit, column + (lane & 4 ? 8 : 0));
    const float other = __shfl_xor_sync(0xffffffffu, sum, 4);
    const float h = lane & 4 ? silu(other) * sum : silu(sum) * other;
    /* A block has 32 columns of the four chosen pieces, and 8 of the shared one behind them. */
    const int first = unit < CHOSEN_UNITS ? t.rank * 32 + unit * 8 : unit * W4_GROUP + t.rank * 8;
    if (lane % 8 == 0) store_tagged(t.a->mail->h[t.team][0] + first + column, h, t.tag);
}
/* And that of the whole team to all warps of the block, by a warp. */
__device__ static inline void share_inner(const token_state &t, int unit, float weight)
{
    const uint64_t *const from[1] = {t.a->mail->h[t.team][unit] + 2 * (threadIdx.x % WARP)};
    float2 v[1];
    await_pairs(v, from, t.tag);
    __syncwarp();
    share_group(t, unit, v[0], weight);
}
/* What it is weighted by. */
__device__ static inline float weight_of(const token_state &t, int unit)
{
    return unit < CHOSEN_UNITS ? t.own->weight : t.own->shared_weight;
}

/* By a warp each of the block's strips, the shared expert's first: it does not wait for the choice.
 * Then h to the team. */
__device__ static inline void multiply_inner(token_state &t, const held_groups &x, float r)
{
    const int warp = threadIdx.x / WARP;
    if (has_shared(t)) multiply_strips(t, x, CHOSEN_UNITS, 1);
#pragma unroll 1
    for (int i = 0; i < CHOSEN_UNITS; i += 2) {
        multiply_strips(t, x, i, 2);
    }
    sync_threads<CONSUMER_THREADS>();
    if (warp / 2 < CHOSEN_UNITS + has_shared(t)) store_inner(t, warp / 2, warp % 2, r);
}

/* The columns of down that meet the team's pieces, 16 strips a block: partial sums of its 256 rows.
 * The weights are known when the stage is there. */
__device__ static inline void multiply_outer(token_state &t)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int n_units = CHOSEN_UNITS + has_shared(t);
    if (warp < n_units) share_inner(t, warp, 1);
    sync_threads<CONSUMER_THREADS>();
    float2 sum = make_float2(0, 0);
#pragma unroll 1
    for (int i = 0; i < n_units; i += CHOSEN_UNITS) { /* the second stage has one piece */
        const unsigned char *first = take_stage(t) + warp * (i ? (int)W4_BLOCK_BYTES : OUTER_BYTES);
        held_groups x;
        hold_shared(t, x, i);
        const float weight = weight_of(t, i);
        x.scale *= weight, x.sum *= weight;
        const four_blocks f = take_blocks<W4_BLOCK_BYTES>(first, first + 2 * W4_BLOCK_BYTES);
        give_stage(t);
        const float2 v = multiply_blocks(f, x);
        if (i + lane % 4 < n_units) sum.x += v.x, sum.y += v.y; /* else there is no such piece */
    }
    store_partial(t, sum);
}

/* The router, before all else: its logits are waited for while inputs are rounded. */
__device__ static inline void run_router(token_state &t, int layer, const float2 (&v)[2])
{
    const int warp = threadIdx.x / WARP;
    route_rows(t, take_stage(t), v);
    give_stage(t);
    sync_threads<CONSUMER_THREADS>();
    if (warp < 2) store_logits(t, warp == 1, norm_factor(t, layer));
}
__device__ static inline void run_moe(token_state &t, int layer, const held_groups &x)
{
    multiply_inner(t, x, norm_factor(t, layer, false));
    multiply_outer(t);
}

#endif
