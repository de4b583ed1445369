/* An attention layer's mixer in three phases: projections; K and V of the context, cut into pieces
 * over all blocks, with the tensor cores; the pieces' sum and out_proj. */
#ifndef CALLA_CUDA_TOKEN_ATTENTION_CUH
#define CALLA_CUDA_TOKEN_ATTENTION_CUH

#include "cuda/token.cuh"

enum {
    DIM = ATTENTION_HEAD_DIM,
    LANE_DIMS = DIM / WARP,
    QUERY_ROWS = 2 * TOKEN_HEADS * DIM,
    PROJECTED_ROWS = QUERY_ROWS + 2 * KV_HEADS_TOKEN * DIM,
    TILE = 16, /* tokens of a tensor core's operand */
    STAGE_TILES = STAGE_TOKENS / TILE,
    PART_STEP = 40, /* between the blocks with the first pieces of two rows of a step */
};

/* ---- where things are ---- */

/* The piece of a context that a block has. Borders depend on the length alone; short contexts have
 * fewer pieces than there are blocks, so the rows of a step begin at different blocks. */
struct context_piece {
    int kv_head, part, n_parts, begin, end;
};
__device__ static inline context_piece piece_of(const token_state &t)
{
    context_piece c;
    const int length = t.position + 1;
    const int parts = TOKEN_KV_PARTS, block = block_index(t);
    const int per = ((length + parts - 1) / parts + TILE - 1) / TILE * TILE;
    c.kv_head = block / parts, c.part = (block + t.a->row * PART_STEP) % parts;
    c.n_parts = (length + per - 1) / per;
    c.begin = min(c.part * per, length), c.end = min(c.begin + per, length);
    return c;
}

/* K (which = 0) or V of a token. */
__device__ static inline unsigned char *kv_at(const token_state &t, int layer, int which, int head,
                                              int token)
{
    const token_args &a = *t.a;
    return a.store.kv + (size_t)t.table[token / KV_TOKENS] * a.store.block_bytes +
           (size_t)layer * a.store.layer_bytes +
           (((size_t)which * KV_HEADS_TOKEN + head) * KV_TOKENS + token % KV_TOKENS) * DIM * 2;
}

/* ---- queries, the newest token ---- */

__device__ static inline void fetch_row(float (&x)[LANE_DIMS], const float *row)
{
    const float4 *p = (const float4 *)row + threadIdx.x % WARP * 2;
    const float4 a = __ldcg(p), b = __ldcg(p + 1);
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
    x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}

/* What a row is rotated by, and its norm's factors: the lane's, loaded before the row is there. */
struct rotation {
    float factor[LANE_DIMS], cosine[LANE_DIMS], sine[LANE_DIMS];
};
__device__ static inline rotation load_rotation(const token_state &t, const token_layer &l)
{
    const step_row &in = t.a->input->rows[t.a->row];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const float *factor = l.constants[warp < GROUP_HEADS ? 0 : 1]; /* of queries, of the key */
    rotation r;
#pragma unroll
    for (int i = 0; i < LANE_DIMS; i++) {
        const int j = lane % 4 * LANE_DIMS + i;
        r.factor[i] = factor[lane * LANE_DIMS + i];
        r.cosine[i] = in.cosines[j], r.sine[i] = in.sines[j];
    }
    return r;
}

/* x becomes norm(x), rotated. */
__device__ static inline void rotate_row(float (&x)[LANE_DIMS], const rotation &by, float eps)
{
    const int lane = threadIdx.x % WARP;
    float square = 0;
#pragma unroll
    for (int i = 0; i < LANE_DIMS; i++) square += x[i] * x[i];
    const float r = inverse_root_finite(warp_sum(square) / DIM + eps);
#pragma unroll
    for (int i = 0; i < LANE_DIMS; i++) {
        x[i] = x[i] * r * by.factor[i];
        /* Dims 0 ... 31 are in lanes 0 ... 3, their partners 32 ... 63 in lanes 4 ... 7. */
        const float other = __shfl_xor_sync(0xffffffffu, x[i], 4);
        if (lane < 4) x[i] = x[i] * by.cosine[i] - other * by.sine[i];
        if (lane >= 4 && lane < 8) x[i] = x[i] * by.cosine[i] + other * by.sine[i];
    }
}

__device__ static inline uint4 pack_halves(const float (&x)[LANE_DIMS])
{
    union {
        __half h[LANE_DIMS];
        uint4 v;
    } u;
#pragma unroll
    for (int i = 0; i < LANE_DIMS; i++) u.h[i] = to_half(x[i]);
    return u.v;
}

/* What to_half loses. */
__device__ static inline float half_rest(float x)
{
    return x - __half2float(to_half(x));
}

/* Query h of the piece's KV head by warp h; K and V of the newest token, where it is in the piece,
 * by the next two warps. */
__device__ static inline void prepare_queries(const token_state &t, const token_layer &l,
                                              const context_piece &c, const rotation &by)
{
    attention_shared &s = t.s->attention;
    const token_args &a = *t.a;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    float x[LANE_DIMS];
    if (warp < GROUP_HEADS) {
        fetch_row(x, a.projected + (size_t)2 * (c.kv_head * GROUP_HEADS + warp) * DIM);
        rotate_row(x, by, a.eps);
#pragma unroll
        for (int i = 0; i < LANE_DIMS; i++) x[i] *= 0.0625f; /* 1/sqrt(256) */
        ((uint4 *)s.q[0][warp])[lane] = pack_halves(x);
#pragma unroll
        for (int i = 0; i < LANE_DIMS; i++) x[i] = half_rest(x[i]);
        ((uint4 *)s.q[1][warp])[lane] = pack_halves(x);
    } else if (warp < GROUP_HEADS + 2 && c.end == t.position + 1 && c.begin < c.end) {
        const int which = warp - GROUP_HEADS;
        fetch_row(x, a.projected + QUERY_ROWS + (which * KV_HEADS_TOKEN + c.kv_head) * DIM);
        if (which == 0) rotate_row(x, by, a.eps);
        const uint4 v = pack_halves(x);
        ((uint4 *)s.newest[which])[lane] = v;
        ((uint4 *)kv_at(t, l.mixer_index, which, c.kv_head, t.position))[lane] = v;
    }
}

/* ---- a chunk of up to 256 tokens ---- */

/* What a warp carries from chunk to chunk: for the heads 2 (lane % 4) and the next the softmax's
 * maximum and sum; of 32 dims (warp % 8), over the tiles with parity warp / 8, the output. */
struct attending {
    float max[2], sum[2], out[2][4];
};

/* Scores of the warp's tile: [0], [1] token lane / 4 with two heads, [2], [3] that 8 further. */
__device__ static inline void score_tile(const token_state &t, const unsigned char *stage,
                                         int first, int end, int newest, float (&d)[4])
{
    const attention_shared &s = t.s->attention;
    const int lane = threadIdx.x % WARP, g = lane / 4, q = lane % 4;
    const unsigned char *low = stage + g * KV_STRIDE, *high = low + 8 * KV_STRIDE;
    if (first + g == newest) low = (const unsigned char *)s.newest[0];
    if (first + g + 8 == newest) high = (const unsigned char *)s.newest[0];
    d[0] = d[1] = d[2] = d[3] = 0;
#pragma unroll
    for (int i = 0; i < DIM / 32; i++) {
        const uint4 a = ((const uint4 *)low)[4 * i + q], b = ((const uint4 *)high)[4 * i + q];
#pragma unroll
        for (int plane = 0; plane < 2; plane++) {
            const uint4 x = ((const uint4 *)s.q[plane][g])[4 * i + q];
            multiply_halves(d, a.x, b.x, a.y, b.y, x.x, x.y);
            multiply_halves(d, a.z, b.z, a.w, b.w, x.z, x.w);
        }
    }
    if (first + g >= end) d[0] = d[1] = -INFINITY;
    if (first + g + 8 >= end) d[2] = d[3] = -INFINITY;
}

/* Over the eight lanes with the same lane % 4. */
__device__ static inline float column_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 4));
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 8));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 16));
}
__device__ static inline float column_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 4);
    x += __shfl_xor_sync(0xffffffffu, x, 8);
    return x + __shfl_xor_sync(0xffffffffu, x, 16);
}

/* The weight of a token (of the chunk) for a head, as a half and its rest. */
__device__ static inline void store_weight(attention_shared &s, int head, int token, float p)
{
    const int at = token / TILE * TILE + token % 4 * 4 + token % TILE / 4;
    s.p[0][head][at] = __float2half_rn(p);
    s.p[1][head][at] = __float2half_rn(p - __half2float(__float2half_rn(p)));
}

/* From scores to weights: rescales what was before. Between two barriers. */
__device__ static inline void weigh_tile(const token_state &t, attending &w, const float (&d)[4],
                                         int n_tiles)
{
    attention_shared &s = t.s->attention;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, head = lane % 4 * 2;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float largest = w.max[h];
        for (int i = 0; i < n_tiles; i++) largest = fmaxf(largest, s.max[i][head + h]);
        const float old = expf(w.max[h] - largest);
        w.max[h] = largest;
        w.sum[h] *= old;
#pragma unroll
        for (int x = 0; x < 2; x++) w.out[x][h] *= old, w.out[x][h + 2] *= old;
        if (warp >= n_tiles) continue;
        const float p = expf(d[h] - largest), q = expf(d[h + 2] - largest);
        store_weight(s, head + h, warp * TILE + lane / 4, p);
        store_weight(s, head + h, warp * TILE + lane / 4 + 8, q);
        const float sum = column_sum(p + q);
        if (lane < 4) s.sum[warp][head + h] = sum;
    }
}

/* out += weights * V of one tile, 32 dims. */
__device__ static inline void add_values(const token_state &t, const unsigned char *rows, int tile,
                                         int first, int end, int newest, attending &w)
{
    const attention_shared &s = t.s->attention;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, q = lane % 4;
    const int dims = warp % 8 * 64 + g * 8; /* bytes */
    uint2 v[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int token = first + q + 4 * i;
        const unsigned char *row = rows + (q + 4 * i) * KV_STRIDE;
        if (token == newest) row = (const unsigned char *)s.newest[1];
        v[i] = *(const uint2 *)(row + dims);
        if (token >= end) v[i] = make_uint2(0, 0); /* not a NaN times zero */
    }
#pragma unroll
    for (int plane = 0; plane < 2; plane++) {
        const uint2 b = *(const uint2 *)&s.p[plane][g][tile * TILE + q * 4];
        multiply_halves(w.out[0], __byte_perm(v[0].x, v[1].x, 0x5410),
                        __byte_perm(v[0].x, v[1].x, 0x7632), __byte_perm(v[2].x, v[3].x, 0x5410),
                        __byte_perm(v[2].x, v[3].x, 0x7632), b.x, b.y);
        multiply_halves(w.out[1], __byte_perm(v[0].y, v[1].y, 0x5410),
                        __byte_perm(v[0].y, v[1].y, 0x7632), __byte_perm(v[2].y, v[3].y, 0x5410),
                        __byte_perm(v[2].y, v[3].y, 0x7632), b.x, b.y);
    }
}

/* Tokens [begin, end): their K are in the next stages, their V in those after. */
__device__ static inline void attend_chunk(token_state &t, attending &w, int begin, int end,
                                           int newest)
{
    attention_shared &s = t.s->attention;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int n_tiles = (end - begin + TILE - 1) / TILE;
    float d[4];
#pragma unroll 1
    for (int first = 0; first < n_tiles; first += STAGE_TILES) {
        const unsigned char *stage = take_stage(t);
        if (warp / STAGE_TILES == first / STAGE_TILES && warp < n_tiles) {
            score_tile(t, stage + (warp - first) * TILE * KV_STRIDE, begin + warp * TILE, end,
                       newest, d);
            const float a = column_max(fmaxf(d[0], d[2])), b = column_max(fmaxf(d[1], d[3]));
            if (lane < 4) s.max[warp][2 * lane] = a, s.max[warp][2 * lane + 1] = b;
        }
        give_stage(t);
    }
    sync_threads<CONSUMER_THREADS>();
    weigh_tile(t, w, d, n_tiles);
    sync_threads<CONSUMER_THREADS>();
    for (int i = 0; i < n_tiles; i++) {
        w.sum[0] += s.sum[i][lane % 4 * 2];
        w.sum[1] += s.sum[i][lane % 4 * 2 + 1];
    }
#pragma unroll 1
    for (int first = 0; first < n_tiles; first += STAGE_TILES) {
        const unsigned char *stage = take_stage(t);
        for (int i = warp / 8; i < min(n_tiles - first, (int)STAGE_TILES); i += 2)
            add_values(t, stage + i * TILE * KV_STRIDE, first + i, begin + (first + i) * TILE, end,
                       newest, w);
        give_stage(t);
    }
}

/* The piece's sums: one half of the warps hands over to the other. */
__device__ static inline void store_piece(const token_state &t, const attending &w,
                                          const context_piece &c)
{
    attention_shared &s = t.s->attention;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, head = lane % 4 * 2;
    const int dim = warp % 8 * 32 + lane / 4 * 4;
#pragma unroll
    for (int x = 0; x < 2; x++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (warp >= 8)
                *(float2 *)&s.out[head + h][dim + 2 * x] =
                    make_float2(w.out[x][h], w.out[x][h + 2]);
    sync_threads<CONSUMER_THREADS>();
    if (warp >= 8) return;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const size_t at =
            (size_t)(c.kv_head * GROUP_HEADS + head + h) * TOKEN_KV_PARTS + (size_t)c.part;
#pragma unroll
        for (int x = 0; x < 2; x++) {
            const float2 other = *(const float2 *)&s.out[head + h][dim + 2 * x];
            *(float2 *)(t.a->part_out + at * DIM + dim + 2 * x) =
                make_float2(w.out[x][h] + other.x, w.out[x][h + 2] + other.y);
        }
        if (warp == 0 && lane < 4) t.a->part_max[at] = w.max[h], t.a->part_sum[at] = w.sum[h];
    }
}

/* ---- the phases ---- */

/* Strips of the projections that the block has. */
__device__ static inline int attention_strips(const token_state &t)
{
    return (PROJECTED_ROWS / W4_STRIP_ROWS - block_index(t) + TOKEN_BLOCKS - 1) / TOKEN_BLOCKS;
}
/* What came of them for a row, behind a barrier. */
__device__ static inline void store_attention_rows(const token_state &t, int layer, int n)
{
    const float r = norm_factor(t, layer);
    const int output = threadIdx.x / 4, strip = output / W4_STRIP_ROWS;
    if (strip >= n) return;
    const float sum = r * sum_parts(t, strip, output % W4_STRIP_ROWS);
    if (threadIdx.x % 4 == 0)
        t.a->projected[(block_index(t) + strip * TOKEN_BLOCKS) * W4_STRIP_ROWS +
                       output % W4_STRIP_ROWS] = sum;
}
__device__ static inline void project_attention(token_state &t, const held_groups &x, int layer)
{
    const int n = attention_strips(t);
#pragma unroll 1
    for (int i = 0; i < n; i += 2) multiply_strips(t, x, i, min(n - i, 2));
    sync_threads<CONSUMER_THREADS>();
    store_attention_rows(t, layer, n);
    end_phase(t);
}

/* The block's piece of a row's context, if it has one. */
__device__ static inline void attend(token_state &t, const token_layer &l, const rotation &by)
{
    const context_piece c = piece_of(t);
    if (c.begin >= c.end) return;
    attending w = {{-INFINITY, -INFINITY}, {0, 0}, {{0, 0, 0, 0}, {0, 0, 0, 0}}};
    prepare_queries(t, l, c, by);
    sync_threads<CONSUMER_THREADS>();
#pragma unroll 1
    for (int begin = c.begin; begin < c.end; begin += KV_CHUNK)
        attend_chunk(t, w, begin, min(begin + KV_CHUNK, c.end), t.position);
    store_piece(t, w, c);
}

/* What all warps of a block know of a sum of pieces: the softmax's sum, the lane's gate. */
struct combined_pieces {
    float total, gate;
};
/* The warps' parts are where those of products were. */
__device__ static inline float (*combined_of(const token_state &t))[WARP]
{
    static_assert(sizeof t.own->parts >= sizeof(float[CONSUMERS][WARP]), "room for them");
    return (float(*)[WARP])t.own->parts;
}

/* The block's 32 dims of the team's head: the sum of the warp's pieces. */
__device__ static inline combined_pieces combine_pieces(const token_state &t, int n_parts)
{
    const int head = t.team;
    const token_args &a = *t.a;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int dim = t.rank * (DIM / TOKEN_RANKS) + lane;
    const float *out = a.part_out + (size_t)head * TOKEN_KV_PARTS * DIM + dim;
    const float *max = a.part_max + head * TOKEN_KV_PARTS,
                *sum = a.part_sum + head * TOKEN_KV_PARTS;
    float x[TOKEN_KV_PARTS / CONSUMERS], m[2], sums[2], total = 0, mine = 0;
#pragma unroll
    for (int k = 0; k < TOKEN_KV_PARTS / CONSUMERS; k++) {
        const int p = warp + k * CONSUMERS;
        x[k] = p < n_parts ? __ldcg(out + (size_t)p * DIM) : 0;
    }
    const float gate = __ldcg(a.projected + (2 * head + 1) * DIM + dim);
#pragma unroll
    for (int k = 0; k < 2; k++) {
        m[k] = lane + k * WARP < n_parts ? __ldcg(max + lane + k * WARP) : -INFINITY;
        sums[k] = lane + k * WARP < n_parts ? __ldcg(sum + lane + k * WARP) : 0;
    }
    const float largest = warp_max(fmaxf(m[0], m[1]));
#pragma unroll
    for (int k = 0; k < 2; k++) {
        m[k] = expf(m[k] - largest);
        if (lane + k * WARP < n_parts) total += m[k] * sums[k];
    }
    total = warp_sum(total);
#pragma unroll
    for (int k = 0; k < TOKEN_KV_PARTS / CONSUMERS; k++) {
        const int p = warp + k * CONSUMERS;
        mine += __shfl_sync(0xffffffffu, m[k / 2], p % WARP) * x[k];
    }
    combined_of(t)[warp][lane] = mine;
    return {total, gate};
}
/* The warps' sums added up in a fixed order, gated, to the team, by a warp behind a barrier. */
__device__ static inline void store_combined(const token_state &t, const combined_pieces &c)
{
    const int lane = threadIdx.x % WARP;
    float o = 0;
    for (int w = 0; w < CONSUMERS; w++) o += combined_of(t)[w][lane];
    store_tagged(t.a->mail->out[t.team] + t.rank * (DIM / TOKEN_RANKS) + lane,
                 o / c.total * sigmoid_finite(c.gate), t.tag);
}
/* A group of 64 of out_proj's inputs to all warps of the block, by a warp. */
__device__ static inline void share_attended(const token_state &t, int group)
{
    const uint64_t *const from[1] = {t.a->mail->out[t.team] + group * W4_GROUP +
                                     2 * (threadIdx.x % WARP)};
    float2 v[1];
    await_pairs(v, from, t.tag);
    __syncwarp();
    share_group(t, group, v[0], 1);
}

__device__ static inline void output_attention(token_state &t)
{
    const int warp = threadIdx.x / WARP;
    begin_phase(t);
    const combined_pieces c = combine_pieces(t, piece_of(t).n_parts);
    sync_threads<CONSUMER_THREADS>();
    if (warp == 0) store_combined(t, c);
    if (warp < HEAD_GROUPS) share_attended(t, warp);
    sync_threads<CONSUMER_THREADS>();
    multiply_out(t);
}

__device__ static inline void mix_attention(token_state &t, const token_layer &l, int layer,
                                            const held_groups &x)
{
    project_attention(t, x, layer);
    const rotation by = load_rotation(t, l);
    begin_phase(t);
    attend(t, l, by);
    end_phase(t);
    output_attention(t);
}

#endif
