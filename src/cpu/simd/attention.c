/* Attention over one block of the KV cache, in vectors.
 *
 * Query rows go in groups whose sums stay in registers (in decode 8 heads share a KV head): scores
 * two tokens at a time, values two vectors of dims at a time over a tile of tokens. So a number of
 * K or V is read and converted to f32 once for a group, in registers, and a group of 8 rows needs
 * 10 loads for 16 multiplications. 4 * 256 operations a row and token; a block's K and V are 128 KB
 * each in half precision and are read once from memory, asked for one tile ahead. */
#include "cpu/simd/simd.h"

#include <math.h>
#include <string.h>

enum {
    DIM = ATTENTION_HEAD_DIM,
    BLOCK = 256,                            /* tokens of a block: KV_BLOCK_TOKENS */
    TILE = 32,                              /* tokens whose V stays in L1: 16 KB in half */
    GROUP = VECTOR_REGISTERS == 32 ? 8 : 4, /* query rows side by side */
    PAIR = 2,                               /* tokens, or vectors of dims, side by side */
};

/* VL numbers of a block from the i-th on. */
ALWAYS_INLINE vf load_numbers(const void *block, size_t i, bool f16)
{
    return f16 ? vf_load_f16((const uint16_t *)block + i) : vf_load((const float *)block + i);
}

/* Asks for the line of the i-th number in half precision, of 32 in a line: into L2, as two tiles
 * fill an L1 of 32 KB. */
ALWAYS_INLINE void ask(const void *numbers, size_t i)
{
    __builtin_prefetch((const uint16_t *)numbers + i, 0, 2);
}

/* scores[r * BLOCK + t] = q_r . k_t, begin <= t < end, for n_rows <= GROUP (a constant) rows; begin
 * is even, and with an odd end the next score is overwritten. Meanwhile asks for a tile at `ahead`.
 */
ALWAYS_INLINE void score_rows(const float *q, int n_rows, const void *k, int32_t begin, int32_t end,
                              bool f16, const void *ahead, float *scores)
{
    for (int32_t t = begin; t < end; t += PAIR) {
        size_t first = (size_t)t * DIM, second = t + 1 < end ? first + DIM : first;
        vf sum[GROUP + 1][PAIR];
        UNROLL for (int r = 0; r <= n_rows; r++) sum[r][0] = sum[r][1] = vf_zero();
        for (int d = 0; d < DIM; d += VL) {
            vf u = load_numbers(k, first + (size_t)d, f16);
            vf v = load_numbers(k, second + (size_t)d, f16);
            if (f16 && d % (32 / PAIR) == 0)
                ask(ahead, (size_t)(t - begin) * DIM + PAIR * (size_t)d);
            UNROLL for (int r = 0; r < n_rows; r++)
            {
                vf x = vf_load(q + r * DIM + d);
                sum[r][0] = vf_fma(x, u, sum[r][0]);
                sum[r][1] = vf_fma(x, v, sum[r][1]);
            }
        }
        UNROLL for (int r = 0; r < n_rows; r += PAIR)
        {
            float pairs[2 * PAIR];
            vf_store_sums4(pairs, sum[r][0], sum[r][1], sum[r + 1][0], sum[r + 1][1]);
            memcpy(scores + r * BLOCK + t, pairs, PAIR * sizeof *pairs);
            if (r + 1 < n_rows)
                memcpy(scores + (r + 1) * BLOCK + t, pairs + PAIR, PAIR * sizeof *pairs);
        }
    }
}

/* Scores become exp(score - max). Whole vectors: what lies beyond n counts as exp(-inf) = 0. */
static void softmax_row(float *scores, int32_t n, float *max, float *sum)
{
    int32_t padded = (n + VL - 1) / VL * VL;
    for (int32_t t = n; t < padded; t++) scores[t] = -INFINITY;
    vf largest = vf_set1(-INFINITY), total = vf_zero();
    for (int32_t t = 0; t < padded; t += VL) largest = vf_max(vf_load(scores + t), largest);
    float m = vf_largest(largest);
    for (int32_t t = 0; t < padded; t += VL) {
        vf e = vf_exp(vf_sub(vf_load(scores + t), vf_set1(m)));
        vf_store(scores + t, e);
    }
    for (int32_t t = n; t < padded; t++) scores[t] = 0;
    for (int32_t t = 0; t < padded; t += VL) total = vf_add(total, vf_load(scores + t));
    *max = m;
    *sum = n > 0 ? vf_sum(total) : 0;
}

/* out[r][256] += p[r * BLOCK + t] times v_t[256], begin <= t < end, for n_rows <= GROUP (a
 * constant) rows. Meanwhile asks for a tile at `ahead`. */
ALWAYS_INLINE void add_rows(const float *p, int n_rows, const void *v, int32_t begin, int32_t end,
                            bool f16, const void *ahead, float *out)
{
    for (int d = 0; d < DIM; d += PAIR * VL) {
        vf sum[GROUP][PAIR];
        UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (int j = 0; j < PAIR; j++) sum[r][j] =
            vf_load(out + r * DIM + d + j * VL);
        for (int32_t t = begin; t < end; t++) {
            size_t at = (size_t)t * DIM + (size_t)d;
            vf x[PAIR];
            UNROLL for (int j = 0; j < PAIR; j++) x[j] = load_numbers(v, at + (size_t)j * VL, f16);
            /* Line by line, not as they are used. */
            if (f16 && d % 32 == 0) ask(ahead, ((size_t)d / 32 * TILE + (size_t)(t - begin)) * 32);
            UNROLL for (int r = 0; r < n_rows; r++)
            {
                vf weight = vf_set1(p[r * BLOCK + t]);
                UNROLL for (int j = 0; j < PAIR; j++) sum[r][j] = vf_fma(weight, x[j], sum[r][j]);
            }
        }
        UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (int j = 0; j < PAIR; j++)
            vf_store(out + r * DIM + d + j * VL, sum[r][j]);
    }
}

ALWAYS_INLINE int32_t smaller(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* One tile of tokens for all rows: a group together when its rows see the same tokens of the tile,
 * else one by one. A row's sums run in the same order either way. */
ALWAYS_INLINE void tile_of_rows(const attention_block_args *a, int32_t t, int32_t n_tokens,
                                bool values, bool f16, float (*scores)[BLOCK])
{
    const void *ahead = values && a->next ? a->next : a->v;
    if (t + TILE < n_tokens)
        ahead = (const uint16_t *)(values ? a->v : a->k) + (size_t)(t + TILE) * DIM;
    for (int32_t r = 0, n_together; r < a->n_rows; r += n_together) {
        const float *q = a->q + r * DIM;
        float *out = a->out + r * DIM;
        int32_t end = smaller(t + TILE, a->visible[r]);
        bool group = r + GROUP <= a->n_rows;
        for (int i = 1; group && i < GROUP; i++)
            group = smaller(t + TILE, a->visible[r + i]) == end;
        n_together = group ? GROUP : 1;
        if (end <= t) continue;
        if (!values && group)
            score_rows(q, GROUP, a->k, t, end, f16, ahead, scores[r]);
        else if (!values)
            score_rows(q, 1, a->k, t, end, f16, ahead, scores[r]);
        else if (group)
            add_rows(scores[r], GROUP, a->v, t, end, f16, ahead, out);
        else
            add_rows(scores[r], 1, a->v, t, end, f16, ahead, out);
    }
}

ALWAYS_INLINE void attention_block(const attention_block_args *a, bool f16)
{
    _Alignas(64) float scores[ATTENTION_MAX_ROWS][BLOCK];
    int32_t n_tokens = 0;
    for (int32_t r = 0; r < a->n_rows; r++)
        if (a->visible[r] > n_tokens) n_tokens = a->visible[r];
    for (int32_t t = 0; t < n_tokens; t += TILE) tile_of_rows(a, t, n_tokens, false, f16, scores);
    for (int32_t r = 0; r < a->n_rows; r++)
        softmax_row(scores[r], a->visible[r], &a->max[r], &a->sum[r]);
    memset(a->out, 0, (size_t)a->n_rows * DIM * sizeof(float));
    for (int32_t t = 0; t < n_tokens; t += TILE) tile_of_rows(a, t, n_tokens, true, f16, scores);
}

void KERNEL(attention_block_f32)(const attention_block_args *a)
{
    attention_block(a, false);
}

void KERNEL(attention_block_f16)(const attention_block_args *a)
{
    attention_block(a, true);
}

void KERNEL(attention_merge)(float *max, float *sum, float *out, float other_max, float other_sum,
                             const float *other_out)
{
    if (other_sum == 0) return;
    /* exp(-inf) of an empty first part must be 0, which vf_exp rounds up: expf is exact there. */
    float m = *max > other_max ? *max : other_max;
    float own = expf(*max - m), other = expf(other_max - m);
    vf a = vf_set1(own), b = vf_set1(other);
    for (int d = 0; d < DIM; d += VL)
        vf_store(out + d, vf_fma(a, vf_load(out + d), vf_mul(b, vf_load(other_out + d))));
    *sum = *sum * own + other_sum * other;
    *max = m;
}
