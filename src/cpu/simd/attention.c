/* Attention over one block of the KV cache, in vectors.
 *
 * The rows of K and V are converted to f32 once for all query rows (8 heads share them in decode).
 * Scores: rows of K against 4 query rows at a time, two sums each. Values: for 4 query rows and 4
 * vectors of dims the sums stay in registers over a tile of tokens. 4 * 256 operations a row and
 * token; a block's K and V are 128 KB each in half precision and are read once from memory. */
#include "cpu/simd/simd.h"

#include <math.h>
#include <string.h>

enum {
    DIM = ATTENTION_HEAD_DIM,
    BLOCK = 256, /* tokens of a block: KV_BLOCK_TOKENS */
    TILE = 16,   /* tokens converted to f32 at a time: 16 KB */
    GROUP = 4,   /* query rows side by side */
};

typedef float row_tile[TILE][DIM];

ALWAYS_INLINE const float (*load_rows(const void *block, int32_t t, int32_t n, bool f16,
                                      row_tile tile))[DIM]
{
    if (!f16) return (const float(*)[DIM])block + t;
    const uint16_t *p = (const uint16_t *)block + (size_t)t * DIM;
    float *out = tile[0];
    for (int32_t i = 0; i < n * DIM; i += VL) vf_store(out + i, vf_load_f16(p + i));
    return (const float(*)[DIM])tile;
}

/* scores[r * BLOCK + t] = q_r . k_t, t < n_tokens, for n_rows <= GROUP (a constant) rows. */
ALWAYS_INLINE void score_rows(const float *q, int n_rows, const float (*k)[DIM], int32_t n_tokens,
                              float *scores)
{
    for (int32_t t = 0; t < n_tokens; t++) {
        vf a[GROUP], b[GROUP];
        UNROLL for (int r = 0; r < n_rows; r++) a[r] = b[r] = vf_zero();
        for (int d = 0; d < DIM; d += 2 * VL) {
            vf u = vf_load(k[t] + d), v = vf_load(k[t] + d + VL);
            UNROLL for (int r = 0; r < n_rows; r++)
            {
                a[r] = vf_fma(vf_load(q + r * DIM + d), u, a[r]);
                b[r] = vf_fma(vf_load(q + r * DIM + d + VL), v, b[r]);
            }
        }
        UNROLL for (int r = 0; r < n_rows; r++) scores[r * BLOCK + t] = vf_sum(vf_add(a[r], b[r]));
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

/* out[r][256] += p[r * BLOCK + t] times rows[t][256], t < n, for n_rows <= GROUP (a constant) rows.
 */
ALWAYS_INLINE void add_rows(const float *p, int n_rows, const float (*rows)[DIM], int32_t n,
                            float *out)
{
    enum {
        STRIP = VECTOR_REGISTERS == 32 ? 4 : 2
    }; /* vectors of dims whose sums stay in registers */
    for (int d = 0; d < DIM; d += STRIP * VL) {
        vf sum[GROUP][STRIP];
        UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (int j = 0; j < STRIP; j++) sum[r][j] =
            vf_load(out + r * DIM + d + j * VL);
        for (int32_t t = 0; t < n; t++) {
            vf v[STRIP];
            UNROLL for (int j = 0; j < STRIP; j++) v[j] = vf_load(rows[t] + d + j * VL);
            UNROLL for (int r = 0; r < n_rows; r++)
            {
                vf weight = vf_set1(p[r * BLOCK + t]);
                UNROLL for (int j = 0; j < STRIP; j++) sum[r][j] = vf_fma(weight, v[j], sum[r][j]);
            }
        }
        UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (int j = 0; j < STRIP; j++)
            vf_store(out + r * DIM + d + j * VL, sum[r][j]);
    }
}

ALWAYS_INLINE int32_t smaller(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* Calls for groups of rows: four together when they see the same tokens of the tile, else one by
 * one. A row's sums run in the same order either way. */
ALWAYS_INLINE void attention_block(const attention_block_args *a, bool f16)
{
    _Alignas(64) float scores[ATTENTION_MAX_ROWS][BLOCK];
    _Alignas(64) row_tile tile;
    int32_t n_tokens = 0;
    for (int32_t r = 0; r < a->n_rows; r++)
        if (a->visible[r] > n_tokens) n_tokens = a->visible[r];
    for (int phase = 0; phase < 2; phase++) {
        const void *block = phase == 0 ? a->k : a->v;
        for (int32_t t = 0; t < n_tokens; t += TILE) {
            const float(*rows)[DIM] = load_rows(block, t, smaller(TILE, n_tokens - t), f16, tile);
            for (int32_t r = 0; r < a->n_rows;) {
                const float *q = a->q + r * DIM;
                float *out = a->out + r * DIM;
                int32_t n = smaller(TILE, a->visible[r] - t);
                bool four = r + GROUP <= a->n_rows;
                for (int i = 1; four && i < GROUP; i++)
                    four = smaller(TILE, a->visible[r + i] - t) == n;
                float *s = scores[r] + t;
                if (n > 0 && phase == 0 && four)
                    score_rows(q, GROUP, rows, n, s);
                else if (n > 0 && phase == 0)
                    score_rows(q, 1, rows, n, s);
                else if (n > 0 && four)
                    add_rows(s, GROUP, rows, n, out);
                else if (n > 0)
                    add_rows(s, 1, rows, n, out);
                r += four ? GROUP : 1;
            }
        }
        if (phase == 0) {
            for (int32_t r = 0; r < a->n_rows; r++)
                softmax_row(scores[r], a->visible[r], &a->max[r], &a->sum[r]);
            memset(a->out, 0, (size_t)a->n_rows * DIM * sizeof(float));
        }
    }
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
