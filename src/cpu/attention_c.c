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
    for (int32_t i = 0; i < n * DIM; i++) tile[0][i] = f16_to_f32(p[i]);
    return (const float(*)[DIM])tile;
}

/* Scores become exp(score - max); the sum runs in lanes by token. */
static void softmax_row(float *scores, int32_t n, float *max, float *sum)
{
    float largest = -INFINITY, lane[LANES] = {0};
    for (int32_t t = 0; t < n; t++) largest = scores[t] > largest ? scores[t] : largest;
    for (int32_t t = 0; t < n; t++) {
        scores[t] = expf(scores[t] - largest);
        lane[t % LANES] += scores[t];
    }
    *max = largest;
    *sum = lanes_sum(lane);
}

/* out[256] += p[n] times rows [n][256], in the order of the rows. */
static void add_rows(const float *restrict p, const float (*restrict rows)[DIM], int32_t n,
                     float *restrict out)
{
    enum { STRIP = 32 }; /* dims whose sums stay in registers */
    for (int d = 0; d < DIM; d += STRIP) {
        float sum[STRIP];
        for (int j = 0; j < STRIP; j++) sum[j] = out[d + j];
        for (int32_t t = 0; t < n; t++)
            for (int j = 0; j < STRIP; j++) sum[j] += p[t] * rows[t][d + j];
        for (int j = 0; j < STRIP; j++) out[d + j] = sum[j];
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
            for (int32_t i = 0; i < smaller(TILE, a->visible[r] - t); i++)
                scores[r][t + i] = lanes_dot(a->q + r * DIM, k[i], DIM);
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
