/* What several rows of a step share in their kernel (token_rows.cu): inputs of all rows, products
 * of weights with all of them. */
#ifndef CALLA_CUDA_TOKEN_ROWS_CUH
#define CALLA_CUDA_TOKEN_ROWS_CUH

#include "cuda/token_fill.cuh"

/* Four rows, two planes each, are the eight columns of a product of the tensor cores. */
enum { QUADS = TOKEN_ROWS / 4 };

/* What t says of a row becomes row r's. */
__device__ static inline void select_row(token_state &t, const token_rows_args &a, int r)
{
    const row_place &p = t.s->places[r];
    t.own = &t.s->rows[r], t.a = &a.rows[r];
    t.position = p.position, t.states = p.states, t.table = p.table;
}

/* ---- products ---- */

/* Two groups of all rows as the lanes of a warp hold them: words are of row 4q + lane / 8, its high
 * bytes in lanes with lane / 4 even, its low ones in the others; scale and sum are those of row
 * 4q + lane % 4. */
struct held_rows {
    uint32_t words[QUADS][2][4];
    float scale[QUADS][2], sum[QUADS][2];
};

/* What a lane holds of two neighbouring blocks of a strip. */
struct strip_pair {
    uint4 codes[2];
    uint32_t low[2], high[2];
};
__device__ static inline strip_pair take_pair(const unsigned char *blocks)
{
    const int lane = threadIdx.x % WARP;
    strip_pair p;
#pragma unroll
    for (int g = 0; g < 2; g++) {
        const unsigned char *block = blocks + g * W4_BLOCK_BYTES;
        const uint32_t *pairs = (const uint32_t *)(block + W4_CODE_BYTES) + lane / 4;
        p.codes[g] = ((const uint4 *)block)[lane];
        p.low[g] = pairs[0], p.high[g] = pairs[8];
    }
    return p;
}

/* Rows l / 4 (x) and l / 4 + 8 (y) of the strip times the group g of row 4q + l % 4: the numbers of
 * multiply_blocks. */
__device__ static inline float2 multiply_group(const strip_pair &p, const held_rows &x, int q,
                                               int g)
{
    const uint32_t mask = 0xf0f0f0f0u;
    const uint4 c = p.codes[g];
    const uint32_t(&w)[4] = x.words[q][g];
    int d[4] = {0, 0, 0, 0};
    multiply_bytes(d, c.x, c.x & mask, c.y, c.y & mask, w[0], w[1]);
    multiply_bytes(d, c.z, c.z & mask, c.w, c.w & mask, w[2], w[3]);
    return weigh_products(p.low[g], p.high[g], x.scale[q][g], x.sum[q][g], 128 * d[0] + d[1],
                          128 * d[2] + d[3]);
}
/* Both groups, added up as add_pair does. */
__device__ static inline void multiply_pair(float2 (&v)[QUADS], const strip_pair &p,
                                            const held_rows &x, int n_rows)
{
#pragma unroll
    for (int q = 0; q < QUADS; q++) {
        if (4 * q >= n_rows) break;
        const float2 a = multiply_group(p, x, q, 0), b = multiply_group(p, x, q, 1);
        v[q] = make_float2(a.x + b.x, a.y + b.y);
    }
}

/* Into parts[strip][place] of each row. */
__device__ static inline void store_parts(const token_state &t, const float2 (&v)[QUADS], int strip,
                                          int place, int n_rows)
{
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int q = 0; q < QUADS; q++) {
        if (4 * q >= n_rows) break;
        float *to = t.s->rows[4 * q + lane % 4].parts[strip][place] + lane / 4;
        to[0] = v[q].x, to[8] = v[q].y;
    }
}

/* As multiply_strips, for all rows. Loops, here and below: the kernel's code has to fit a cache of
 * instructions, and whatever is written out for each row is fetched anew in every layer. */
__device__ static inline void multiply_strips_rows(token_state &t, const held_rows &x, int strip,
                                                   int n, int n_rows)
{
    const int warp = threadIdx.x / WARP;
    const unsigned char *blocks = take_stage(t) + 2 * warp * W4_BLOCK_BYTES;
#pragma unroll 1
    for (int i = 0; i < n; i++) {
        float2 v[QUADS];
        multiply_pair(v, take_pair(blocks + i * STRIP_BYTES), x, n_rows);
        store_parts(t, v, strip + i, warp, n_rows);
    }
    give_stage(t);
}

/* The shared groups first, first + 1 of all rows. */
__device__ static inline void hold_shared_rows(const token_state &t, held_rows &x, int first)
{
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int q = 0; q < QUADS; q++) {
        const rounded_groups &of = t.s->rows[4 * q + lane / 8].rounded;
        const rounded_groups &own = t.s->rows[4 * q + lane % 4].rounded;
#pragma unroll
        for (int g = 0; g < 2; g++) {
            const uint4 w = *(const uint4 *)of.words[first + g][lane % 8];
            x.words[q][g][0] = w.x, x.words[q][g][1] = w.y;
            x.words[q][g][2] = w.z, x.words[q][g][3] = w.w;
            x.scale[q][g] = own.scale[first + g], x.sum[q][g] = own.sum[first + g];
        }
    }
}

/* As multiply_out, for all rows. */
__device__ static inline void multiply_out_rows(token_state &t, const token_rows_args &a)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const unsigned char *blocks = take_stage(t) + warp * HEAD_GROUPS * W4_BLOCK_BYTES;
    strip_pair p[2];
#pragma unroll
    for (int i = 0; i < 2; i++) p[i] = take_pair(blocks + 2 * i * W4_BLOCK_BYTES);
    give_stage(t);
    float2 v[2][QUADS];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        held_rows x;
        hold_shared_rows(t, x, 2 * i);
        multiply_pair(v[i], p[i], x, a.n);
    }
#pragma unroll
    for (int q = 0; q < QUADS; q++) {
        if (4 * q + lane % 4 >= a.n) break;
        uint64_t *to = partial_of(t, a.mail[4 * q + lane % 4]) + lane / 4;
        store_tagged(to, v[0][q].x + v[1][q].x, t.tag + 1);
        store_tagged(to + 8, v[0][q].y + v[1][q].y, t.tag + 1);
    }
}

/* ---- inputs ---- */

/* The two groups of one row, as hold_groups holds them. */
__device__ static inline void hold_row(held_groups &h, const held_rows &x, int r)
{
    const int lane = threadIdx.x % WARP;
    const int from = r % 4 * 8 + lane % 8; /* the row's planes */
    const bool second = lane & 8, odd = lane & 1;
    uint32_t words[2][4], plane[4];
    float scale[2], sum[2];
#pragma unroll
    for (int g = 0; g < 2; g++) {
#pragma unroll
        for (int k = 0; k < 4; k++)
            words[g][k] = __shfl_sync(
                0xffffffffu, QUADS > 1 && r >= 4 ? x.words[QUADS - 1][g][k] : x.words[0][g][k],
                from);
        scale[g] = __shfl_sync(0xffffffffu,
                               QUADS > 1 && r >= 4 ? x.scale[QUADS - 1][g] : x.scale[0][g], r % 4);
        sum[g] = __shfl_sync(0xffffffffu, QUADS > 1 && r >= 4 ? x.sum[QUADS - 1][g] : x.sum[0][g],
                             r % 4);
    }
#pragma unroll
    for (int k = 0; k < 4; k++) plane[k] = second ? words[1][k] : words[0][k];
    place_planes(h, make_uint4(plane[0], plane[1], plane[2], plane[3]));
    h.scale = odd ? scale[1] : scale[0], h.sum = odd ? sum[1] : sum[0];
}

/* Where a warp leaves what it has rounded of a row for its own lanes: in the places of its products
 * that come after. Plane `plane` of group g, word k of lane l % 4. */
__device__ static inline float *rounded_at(const token_state &t, int r, int g, int plane)
{
    return t.s->rows[r].parts[2 * g + plane][threadIdx.x / WARP];
}
__device__ static inline void leave_group(const token_state &t, int r, int g, float2 v)
{
    const int lane = threadIdx.x % WARP;
    float scale, sum;
    const uint32_t word = round_group(v, scale, sum);
    ((uint32_t *)rounded_at(t, r, g, lane / 4 % 2))[lane % 4 * 4 + lane / 8] = word;
    if (lane == 0) rounded_at(t, r, 2, 0)[2 * g] = scale, rounded_at(t, r, 2, 0)[2 * g + 1] = sum;
}
__device__ static inline void hold_left(const token_state &t, held_rows &x)
{
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int q = 0; q < QUADS; q++)
#pragma unroll
        for (int g = 0; g < 2; g++) {
            const uint4 w =
                *(const uint4 *)(rounded_at(t, 4 * q + lane / 8, g, lane / 4 % 2) + lane % 4 * 4);
            const float *own = rounded_at(t, 4 * q + lane % 4, 2, 0) + 2 * g;
            x.words[q][g][0] = w.x, x.words[q][g][1] = w.y;
            x.words[q][g][2] = w.z, x.words[q][g][3] = w.w;
            x.scale[q][g] = own[0], x.sum[q][g] = own[1];
        }
}

/* Rows whose inputs a warp takes at a time. */
enum { BATCH = 2 };

/* Asks for the warp's two groups of the residual stream of rows [r, r + BATCH); zero behind the
 * last one. */
__device__ static inline void ask_batch(const token_state &t, const token_rows_args &a, int r,
                                        tagged_pair (&p)[BATCH][2])
{
    const int column = threadIdx.x / WARP * 2 * W4_GROUP + threadIdx.x % WARP * 2;
    const uint64_t tag = (uint64_t)t.tag << 32;
#pragma unroll
    for (int i = 0; i < BATCH; i++)
#pragma unroll
        for (int g = 0; g < 2; g++) {
            p[i][g] = {tag, tag};
            if (r + i < a.n)
                p[i][g] = load_tagged_pair(a.mail[r + i].x[t.tag & 1] + column + g * W4_GROUP);
        }
}
__device__ static inline bool is_there(const token_state &t, const tagged_pair (&p)[BATCH][2])
{
    bool there = true;
#pragma unroll
    for (int i = 0; i < BATCH; i++)
#pragma unroll
        for (int g = 0; g < 2; g++)
            there &= has_tag(p[i][g].first, t.tag) && has_tag(p[i][g].second, t.tag);
    return there;
}

/* Two values of which a lane goes on with one, that with the bit `m` the second: what warp_sum adds
 * in its round m. */
__device__ static inline float add_half(float x, float y, int m)
{
    const bool upper = threadIdx.x & m;
    const float keep = upper ? y : x, gone = upper ? x : y;
    return keep + __shfl_xor_sync(0xffffffffu, gone, m);
}
/* warp_sum of a value of both rows of a batch: that of row lane / 16. */
__device__ static inline float sum_batch(const float (&v)[BATCH])
{
    float sum = add_half(v[0], v[1], 16);
#pragma unroll
    for (int i = 8; i > 0; i /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, i);
    return sum;
}

/* route_rows for a batch. */
__device__ static inline void route_batch(const token_state &t, const unsigned char *stage, int r,
                                          const float2 (&v)[BATCH][2])
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    float half[BATCH];
#pragma unroll
    for (int i = 0; i < BATCH; i++)
        half[i] = add_half(route_row(stage, 0, v[i]), route_row(stage, 1, v[i]), 16);
    float sum = add_half(half[0], half[1], 8);
#pragma unroll
    for (int i = 4; i > 0; i /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, i);
    if (lane % 8 == 0) t.s->rows[r + lane / 8 % 2].routed[lane / 16][warp] = sum;
    if (!has_gate(t)) return;
#pragma unroll
    for (int i = 0; i < BATCH; i++) half[i] = route_row(stage, 2, v[i]);
    sum = sum_batch(half);
    if (lane % 16 == 0) t.s->rows[r + lane / 16].routed[2][warp] = sum;
}

/* The warp's two groups of the residual stream of all rows, times the norm's factors, rounded; with
 * a `router` stage its part of the router, too. Row r's 16 columns of the block are warp r's
 * `own`. */
__device__ static inline void load_rows(token_state &t, const token_rows_args &a, held_rows &x,
                                        float2 &own, const float2 (&factor)[2], bool first,
                                        const unsigned char *router)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    if (warp < a.n) {
        select_row(t, a, warp);
        if (first) {
            own = __ldcg((const float2 *)(t.a->x + block_index(t) * 16) + lane % 8);
            tell_stream(t, own);
        } else {
            own = add_partial(t, own);
        }
    }
    tagged_pair p[BATCH][2];
    ask_batch(t, a, 0, p);
#pragma unroll 1
    for (int r = 0; r < a.n; r += BATCH) {
        float2 v[BATCH][2];
        float squares[BATCH];
        while (!is_there(t, p)) ask_batch(t, a, r, p);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
#pragma unroll
            for (int g = 0; g < 2; g++)
                v[i][g] = make_float2(value_of(p[i][g].first), value_of(p[i][g].second));
            squares[i] = square_of(v[i]);
        }
        if (r + BATCH < a.n) ask_batch(t, a, r + BATCH, p);
        const float square = sum_batch(squares);
        if (lane % 16 == 0) t.s->rows[r + lane / 16].squares[warp] = square;
#pragma unroll
        for (int i = 0; i < BATCH; i++)
#pragma unroll
            for (int g = 0; g < 2; g++) v[i][g].x *= factor[g].x, v[i][g].y *= factor[g].y;
        if (router) route_batch(t, router, r, v);
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            if (r + i >= a.n) break;
            leave_group(t, r + i, 0, v[i][0]);
            leave_group(t, r + i, 1, v[i][1]);
        }
    }
    __syncwarp();
    hold_left(t, x);
    __syncwarp();
}

#endif
