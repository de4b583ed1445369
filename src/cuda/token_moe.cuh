/* The mixture of experts in one phase. Every block computes two rows of the router; the experts'
 * work is cut into pieces of 64 inner columns, of which a team has one of every second chosen
 * expert, four in all, and half of the teams one of the shared expert: from gate and up to the
 * columns of down. */
#ifndef CALLA_CUDA_TOKEN_MOE_CUH
#define CALLA_CUDA_TOKEN_MOE_CUH

#include "cuda/token.cuh"

/* The team's piece i < CHOSEN_UNITS is of this one of the chosen; all are this group of columns. */
__device__ static inline int slot_of(const token_state &t, int i)
{
    return t.team / 8 + 2 * i;
}
__device__ static inline int group_of(const token_state &t)
{
    return t.team % 8;
}
__device__ static inline bool has_shared(const token_state &t)
{
    return t.team >= TOKEN_TEAMS / 2;
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
    uint64_t *logits = t.a->mail->logits;
    float sum = t.own->routed[row][lane % 16];
#pragma unroll
    for (int i = 8; i > 0; i /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, i);
    const int expert = ROUTER_ROWS * block_index(t) + row;
    if (!gate && lane % 16 == 0 && expert < t.a->n_experts)
        store_tagged(logits + expert, r * sum, t.tag);
    if (gate && lane == 0 && has_gate(t)) store_tagged(logits + TOKEN_MOST_EXPERTS, r * sum, t.tag);
}

/* ---- the choice, by the warp that fills the ring, of several rows by a warp each ---- */

/* Keys of one lane, the largest first; equal ones stay in their order. A loop, here and in the
 * choice: one warp runs this once a layer, and waits for its instructions more than for anything
 * else. */
template <int N> __device__ static inline void sort_keys(uint32_t (&keys)[N], uint32_t (&which)[N])
{
#pragma unroll 1
    for (int round = 0; round < N; round += 2)
#pragma unroll
        for (int odd = 0; odd < 2; odd++)
#pragma unroll
            for (int i = odd; i + 1 < N; i += 2) {
                const bool swap = keys[i] < keys[i + 1];
                const uint32_t a = keys[i], b = keys[i + 1], c = which[i], d = which[i + 1];
                keys[i] = swap ? b : a, keys[i + 1] = swap ? a : b;
                which[i] = swap ? d : c, which[i + 1] = swap ? c : d;
            }
}

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

/* The experts chosen, as choose_experts (choose.cuh) does, and their weights: those of slot l in
 * lane l < 8. Lanes sort their keys first, so that a round looks at one of each; each(slot, expert)
 * is called by all lanes as soon as one is known. */
struct weighed_choice {
    int expert;
    float weight;
};
template <typename Each>
__device__ static inline weighed_choice choose_and_weigh(const token_state &t, Each each)
{
    enum { KEYS = TOKEN_MOST_EXPERTS / WARP };
    const int lane = threadIdx.x % WARP, n = t.a->n_experts;
    const uint64_t *logits = t.a->mail->logits;
    static_assert(KEYS == 8 && TOKEN_MOST_EXPERTS <= 256, "a byte each in two words");
    uint32_t keys[KEYS], which[KEYS], mine = 0;
    float v[KEYS], rest = 0;
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
    } while (!there);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < KEYS; i++) {
        which[i] = (uint32_t)expert_of(i);
        keys[i] = expert_of(i) < n ? order_key(v[i]) : 0;
        if (expert_of(i) < n) rest += v[i] - v[i];
    }
    sort_keys(keys, which);
    weighed_choice c = {0, 0};
    uint32_t first = which[0] | which[1] << 8 | which[2] << 16 | which[3] << 24;
    uint32_t second = which[4] | which[5] << 8 | which[6] << 16 | which[7] << 24;
#pragma unroll 1
    for (int s = 0; s < TOKEN_CHOSEN; s++) {
        const uint32_t largest = __reduce_max_sync(0xffffffffu, keys[0]), own = first & 255;
        const uint32_t same = __ballot_sync(0xffffffffu, keys[0] == largest);
        uint32_t best = __shfl_sync(0xffffffffu, own, __ffs((int)same) - 1);
        if (same & (same - 1)) /* of equal ones the lowest */
            best = __reduce_min_sync(0xffffffffu, keys[0] == largest ? own : 0xffffffffu);
        if (lane == s) c.expert = (int)best, mine = largest;
        each(s, (int)best);
        if (own != best) continue;
        first = first >> 8 | second << 24, second >>= 8;
#pragma unroll
        for (int i = 0; i + 1 < KEYS; i++) keys[i] = keys[i + 1];
    }
    __syncwarp();
    const float most = value_of_key(__shfl_sync(0xffffffffu, mine, 0));
    const float w = lane < TOKEN_CHOSEN ? expf(value_of_key(mine) - most) : 0;
    /* `rest` is 0, or NaN: a router that has overflowed must not look like a choice. */
    c.weight = w / (warp_sum(w) + warp_sum(rest));
    return c;
}

/* ---- experts ---- */

/* h of a row's piece `unit`, 4 (half 0) or the other 4 of the block's columns, by a warp behind a
 * barrier; to all blocks of the team. r: the norm's factor. */
__device__ static inline void store_inner(const token_state &t, int unit, int half, float r)
{
    const int lane = threadIdx.x % WARP;
    /* Quads: columns 4 half ..., gate and up in turn. */
    const int column = half * 4 + lane / 8;
    const float sum = r * sum_parts(t, unit, column + (lane & 4 ? 8 : 0));
    const float other = __shfl_xor_sync(0xffffffffu, sum, 4);
    const float h = lane & 4 ? silu(other) * sum : silu(sum) * other;
    if (lane % 8 == 0) store_tagged(t.a->mail->h[t.team][unit] + t.rank * 8 + column, h, t.tag);
}
/* And that of the whole team to all warps of the block, by a warp. */
__device__ static inline void share_inner(const token_state &t, int unit)
{
    const uint64_t *const from[1] = {t.a->mail->h[t.team][unit] + 2 * (threadIdx.x % WARP)};
    float2 v[1];
    await_pairs(v, from, t.tag);
    __syncwarp();
    share_group(t, unit, v[0], t.own->weights[unit]);
}

/* Down's columns of the team's pieces into the stage behind the next, those of the shared expert's
 * into the one behind that: a block of the warp's strip for each. By all warps, since asking for a
 * copy takes a warp some fifty cycles. The warp with the ring has said how many bytes will come,
 * and of which experts. */
__device__ static inline void fetch_outer(token_state t, const token_layer &l, int layer)
{
    enum { COLUMNS = TOKEN_WIDTH / W4_GROUP, STRIPS = TOKEN_HIDDEN / W4_STRIP_ROWS };
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    barrier_wait(&t.s->all_chosen, (uint32_t)(layer - t.a->first) & 1);
    __syncwarp();
    if (lane >= CHOSEN_UNITS + has_shared(t)) return;
    const bool shared = lane == CHOSEN_UNITS;
    next_stage(t);
    if (shared) next_stage(t);
    const size_t block = (size_t)(t.rank * CONSUMERS + warp) * COLUMNS + (size_t)group_of(t);
    const unsigned char *from = l.shared_outer;
    if (!shared) from = l.outer + (size_t)t.s->chosen[0][lane] * STRIPS * COLUMNS * W4_BLOCK_BYTES;
    copy_bulk(t.s->ring[t.stage] + ((shared ? 0 : lane * CONSUMERS) + warp) * W4_BLOCK_BYTES,
              from + block * W4_BLOCK_BYTES, W4_BLOCK_BYTES, &t.s->full[t.stage]);
}

__device__ static inline void multiply_inner(token_state &t, const held_groups &x, float r,
                                             const token_layer &l, int layer)
{
    const int warp = threadIdx.x / WARP;
    const int n_units = CHOSEN_UNITS + has_shared(t);
#pragma unroll 1
    for (int i = has_shared(t) ? -2 : 0; i < CHOSEN_UNITS; i += 2) /* the shared one's is first */
    {
        multiply_strips(t, x, i < 0 ? CHOSEN_UNITS : i, i < 0 ? 1 : 2);
        if (i == 0) fetch_outer(t, l, layer); /* while the second pair comes */
    }
    sync_threads<CONSUMER_THREADS>();
    if (warp / 2 < n_units) store_inner(t, warp / 2, warp % 2, r);
}

/* The columns of down that meet them, 16 strips a block: partial sums of its 256 rows. */
__device__ static inline void multiply_outer(token_state &t)
{
    enum { PIECE = W4_STRIP_ROWS * W4_BLOCK_BYTES };
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int n_units = CHOSEN_UNITS + has_shared(t);
    if (warp < n_units) share_inner(t, warp);
    sync_threads<CONSUMER_THREADS>();
    float2 sum = make_float2(0, 0);
#pragma unroll 1
    for (int i = 0; i < n_units; i += CHOSEN_UNITS) { /* the second stage has one piece */
        const unsigned char *first = take_stage(t) + warp * W4_BLOCK_BYTES;
        held_groups x;
        hold_shared(t, x, i);
        const four_blocks f = take_blocks<PIECE>(first, first + 2 * PIECE);
        give_stage(t);
        const float2 v = multiply_blocks(f, x);
        if (i + lane % 4 < n_units) sum.x += v.x, sum.y += v.y; /* else there is no such piece */
    }
    store_partial(t, sum);
}

__device__ static inline void run_moe(token_state &t, const token_layer &l, int layer,
                                      const held_groups &x, const float2 (&v)[2])
{
    const int warp = threadIdx.x / WARP;
    route_rows(t, take_stage(t), v);
    give_stage(t);
    sync_threads<CONSUMER_THREADS>();
    const float r = norm_factor(t, layer);
    if (warp < 2) store_logits(t, warp == 1, r);
    multiply_inner(t, x, r, l, layer);
    multiply_outer(t);
}

#endif
