/* Attention over one block of the KV cache, and the merging of blocks. */
#include "base/numbers.h"
#include "cpu/kernels.h"
#include "cpu/lanes.h"

#include <math.h>
#include <string.h>

enum {
    DIM = ATTENTION_HEAD_DIM,
    BLOCK = 256, /* tokens of a block: KV_BLOCK_TOKENS */
    TILE = 16    /* tokens converted to f32 at a time: 16 KB */
};

typedef float row_tile[TILE][DIM];

/* Rows [t, t + n) of a block as f32: in place, or converted into `tile`. */
static const float (*load_rows(const void *block, int32_t t, int32_t n, bool f16,
                               row_tile tile))[DIM]
{
    if (!f16) return (const float(*)[DIM])block + t;
    const uint16_t *p = (const uint16_t *)block + (size_t)t * DIM;
    float *out = tile[0]; /* all rows of the tile in one go */
    for (int32_t i = 0; i < n * DIM; i++) out[i] = f16_to_f32(p[i]);
    return (const float(*)[DIM])tile;
}

/* scores[n] = q . rows[i], four rows side by side. */
static void score_rows(const float *q, const float (*rows)[DIM], int32_t n, float *scores)
{
    int32_t t = 0;
    for (; t + 4 <= n; t += 4) {
        lanes sum[4] = {{{0}, {0}}};
        for (int d = 0; d < DIM; d += LANES)
            for (int i = 0; i < 4; i++)
                sum[i] = lanes_multiply_add(sum[i], q + d, rows[t + i] + d, LANES);
        for (int i = 0; i < 4; i++) scores[t + i] = lanes_sum(sum[i]);
    }
    for (; t < n; t++) scores[t] = lanes_dot(q, rows[t], DIM);
}

/* Scores become exp(score - max); the sum runs in lanes by token. */
static void softmax_row(float *scores, int32_t n, float *max, float *sum)
{
    float largest = -INFINITY, lane[4] = {0};
    for (int32_t t = 0; t < n; t++) largest = scores[t] > largest ? scores[t] : largest;
    for (int32_t t = 0; t < n; t++) {
        scores[t] = expf(scores[t] - largest);
        lane[t % 4] += scores[t];
    }
    *max = largest;
    *sum = (lane[0] + lane[2]) + (lane[1] + lane[3]);
}

/* out[256] += p[n] times rows [n][256], in the order of the rows. */
static void add_rows(const float *p, const float (*rows)[DIM], int32_t n, float *out)
{
    enum { VECTORS = 8 }; /* 32 dims at a time: their sums stay in registers */
    for (int d = 0; d < DIM; d += 4 * VECTORS) {
        f32x4 sum[VECTORS];
        for (int j = 0; j < VECTORS; j++) sum[j] = load4(out + d + 4 * j);
        for (int32_t t = 0; t < n; t++)
            for (int j = 0; j < VECTORS; j++) sum[j] += p[t] * load4(rows[t] + d + 4 * j);
        for (int j = 0; j < VECTORS; j++) store4(out + d + 4 * j, sum[j]);
    }
}

static inline int32_t smaller(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static void attention_block(const attention_block_args *a, bool f16)
{
    _Alignas(64) float scores[ATTENTION_MAX_ROWS][BLOCK];
    _Alignas(64) row_tile tile;
    int32_t n_tokens = 0;
    for (int32_t r = 0; r < a->n_rows; r++)
        if (a->visible[r] > n_tokens) n_tokens = a->visible[r];
    for (int32_t t = 0; t < n_tokens; t += TILE) {
        const float(*k)[DIM] = load_rows(a->k, t, smaller(TILE, n_tokens - t), f16, tile);
        for (int32_t r = 0; r < a->n_rows; r++)
            score_rows(a->q + r * DIM, k, smaller(TILE, a->visible[r] - t), scores[r] + t);
    }
    memset(a->out, 0, (size_t)a->n_rows * DIM * sizeof(float));
    for (int32_t r = 0; r < a->n_rows; r++)
        softmax_row(scores[r], a->visible[r], &a->max[r], &a->sum[r]);
    for (int32_t t = 0; t < n_tokens; t += TILE) {
        const float(*v)[DIM] = load_rows(a->v, t, smaller(TILE, n_tokens - t), f16, tile);
        for (int32_t r = 0; r < a->n_rows; r++)
            add_rows(scores[r] + t, v, smaller(TILE, a->visible[r] - t), a->out + r * DIM);
    }
}

void attention_block_f32_c(const attention_block_args *a)
{
    attention_block(a, false);
}

void attention_block_f16_c(const attention_block_args *a)
{
    attention_block(a, true);
}

void attention_merge_c(float *max, float *sum, float *out, float other_max, float other_sum,
                       const float *other_out)
{
    if (other_sum == 0) return;
    float m = other_max > *max ? other_max : *max;
    float a = expf(*max - m), b = expf(other_max - m);
    *sum = *sum * a + other_sum * b;
    *max = m;
    for (int d = 0; d < DIM; d++) out[d] = out[d] * a + other_out[d] * b;
}
