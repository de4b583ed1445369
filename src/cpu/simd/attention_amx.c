/* Attention of many query rows over one block of a half-precision KV cache, on AMX tiles: the
 * counterpart of attention_block_f16_avx512 for prefill.
 *
 * Tiles multiply bfloat16, whose 8 bits are too few here, so every factor is split into two, high +
 * low: exactly for K and V (11 bits), to 16 bits for queries and probabilities; of the four
 * products the smallest, low times low, is left out. An error of 2^-16 of a term is that of f32
 * sums of some hundred terms, so results agree with f32 arithmetic.
 *
 *   scores^T [token][query] = K (rows as they lie in memory: tile A) q^T (tile B, packed once)
 *   out [query][dim]        = p (tile A) V (pairs of rows interleaved: tile B)
 *
 * 3 * 2 * 1024 operations a row and token on tiles; splitting K and V costs some 14 vector
 * operations for 32 elements of a block, shared by all rows. */
#include "cpu/simd/amx.h"

#include <math.h>
#include <string.h>

enum {
    DIM = ATTENTION_HEAD_DIM,
    BLOCK = 256, /* tokens of a block: KV_BLOCK_TOKENS */
    GROUP = 32,  /* tokens, dims or query rows at a time: two tiles */
    STEPS = 8,   /* steps of 32 dims, or of 32 tokens */
    PLANES = 2,  /* high, low */
    QUERY_GROUPS = ATTENTION_MAX_ROWS / GROUP,
    HALVES = GROUP / TILE,
};

typedef uint16_t bf16_tile[TILE][STEP];
/* Tiles of two times 16 rows (A) or columns (B) over the 256 terms of a sum. */
typedef bf16_tile operand[PLANES][STEPS][HALVES];

typedef struct workspace {
    _Alignas(64) operand queries[QUERY_GROUPS], probabilities[QUERY_GROUPS];
    operand kv; /* of 32 tokens of K, or 32 dims of V */
    float scores[QUERY_GROUPS][BLOCK][GROUP];
    float out[GROUP][GROUP];
} workspace;

/* ---- operands ---- */

/* q rows [0, n_rows), up to 32, as tiles B; the rest zeros. */
static void pack_queries(const float *q, int32_t n_rows, operand out)
{
    for (int s = 0; s < STEPS; s++) {
        for (int h = 0; h < HALVES; h++) {
            __m512i high[TILE], low[TILE];
            for (int r = 0; r < TILE; r++) {
                high[r] = low[r] = _mm512_setzero_si512();
                if (h * TILE + r >= n_rows) continue;
                const float *row = q + (h * TILE + r) * DIM + s * STEP;
                split(vf_load(row), vf_load(row + VL), &high[r], &low[r]);
            }
            transpose_words(high);
            transpose_words(low);
            for (int r = 0; r < TILE; r++) {
                _mm512_store_si512(out[0][s][h][r], high[r]);
                _mm512_store_si512(out[1][s][h][r], low[r]);
            }
        }
    }
}

/* 32 rows of K as tiles A. */
static void pack_keys(const uint16_t *k, operand out)
{
    for (int t = 0; t < GROUP; t++) {
        for (int s = 0; s < STEPS; s++) {
            const uint16_t *p = k + t * DIM + s * STEP;
            __m512i high, low;
            split(vf_load_f16(p), vf_load_f16(p + VL), &high, &low);
            _mm512_store_si512(out[0][s][t / TILE][t % TILE], high);
            _mm512_store_si512(out[1][s][t / TILE][t % TILE], low);
        }
    }
    settle_memory();
}

/* Dims [dim, dim + 32) of V as tiles B of n_steps steps; rows of the tokens beyond n_tokens, where
 * there may be anything, count as zeros. */
static void pack_values(const uint16_t *v, int dim, int32_t n_tokens, int n_steps, operand out)
{
    for (int i = 0; i < n_steps * TILE; i++) {
        const uint16_t *p = v + 2 * i * DIM + dim;
        for (int h = 0; h < HALVES; h++) {
            vf a = vf_zero(), b = vf_zero();
            if (2 * i < n_tokens) a = vf_load_f16(p + h * VL);
            if (2 * i + 1 < n_tokens) b = vf_load_f16(p + DIM + h * VL);
            __m512i high, low;
            split_pairs(a, b, &high, &low);
            _mm512_store_si512(out[0][i / TILE][h][i % TILE], high);
            _mm512_store_si512(out[1][i / TILE][h][i % TILE], low);
        }
    }
    settle_memory();
}

/* ---- products ---- */

/* Tiles 0 to 3 += a (tiles A of one step, one plane) times b. */
#define MULTIPLY_LOADED()                                                                          \
    do {                                                                                           \
        _tile_dpbf16ps(0, 4, 6);                                                                   \
        _tile_dpbf16ps(1, 4, 7);                                                                   \
        _tile_dpbf16ps(2, 5, 6);                                                                   \
        _tile_dpbf16ps(3, 5, 7);                                                                   \
    } while (0)

/* c [32][c_stride] = a b over n_steps steps: high high + low high + high low. */
static void multiply(operand a, operand b, int n_steps, float *c, int c_stride)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int s = 0; s < n_steps; s++) {
        _tile_loadd(4, a[0][s][0], 64);
        _tile_loadd(5, a[0][s][1], 64);
        _tile_loadd(6, b[1][s][0], 64);
        _tile_loadd(7, b[1][s][1], 64);
        MULTIPLY_LOADED();
        _tile_loadd(6, b[0][s][0], 64);
        _tile_loadd(7, b[0][s][1], 64);
        MULTIPLY_LOADED();
        _tile_loadd(4, a[1][s][0], 64);
        _tile_loadd(5, a[1][s][1], 64);
        MULTIPLY_LOADED();
    }
    size_t stride = (size_t)c_stride * sizeof(float);
    _tile_stored(0, c, stride);
    _tile_stored(1, c + TILE, stride);
    _tile_stored(2, c + TILE * c_stride, stride);
    _tile_stored(3, c + TILE * c_stride + TILE, stride);
    settle_memory();
}

/* ---- softmax ---- */

/* 16 query rows: their probabilities over the tokens as tiles A, zero beyond visible[i]. */
static void softmax(float (*scores)[GROUP], const int32_t *visible, int n_rows, int n_steps,
                    operand out, int half, float *max, float *sum)
{
    __mmask16 rows = (__mmask16)((1u << n_rows) - 1);
    __m512i limit = _mm512_maskz_loadu_epi32(rows, visible);
    vf largest = vf_set1(-INFINITY), total = vf_zero();
    for (int t = 0; t < n_steps * STEP; t++) {
        __mmask16 seen = _mm512_cmpgt_epi32_mask(limit, _mm512_set1_epi32(t));
        largest = _mm512_mask_max_ps(largest, seen, vf_load(scores[t] + half * TILE), largest);
    }
    for (int s = 0; s < n_steps; s++) {
        __m512i high[TILE], low[TILE];
        for (int i = 0; i < TILE; i++) {
            vf p[2];
            for (int j = 0; j < 2; j++) {
                int t = s * STEP + 2 * i + j;
                __mmask16 seen = _mm512_cmpgt_epi32_mask(limit, _mm512_set1_epi32(t));
                vf e = vf_exp(vf_sub(vf_load(scores[t] + half * TILE), largest));
                p[j] = _mm512_maskz_mov_ps(seen, e);
                total = vf_add(total, p[j]);
            }
            split_pairs(p[0], p[1], &high[i], &low[i]);
        }
        transpose_words(high);
        transpose_words(low);
        for (int r = 0; r < TILE; r++) {
            _mm512_store_si512(out[0][s][half][r], high[r]);
            _mm512_store_si512(out[1][s][half][r], low[r]);
        }
    }
    _mm512_mask_storeu_ps(max, rows, largest);
    _mm512_mask_storeu_ps(sum, rows, total);
    settle_memory();
}

/* ---- the block ---- */

static int32_t smaller(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static void score_block(const attention_block_args *a, int n_steps, workspace *w)
{
    for (int32_t r = 0; r < a->n_rows; r += GROUP)
        pack_queries(a->q + r * DIM, smaller(GROUP, a->n_rows - r), w->queries[r / GROUP]);
    settle_memory();
    for (int t = 0; t < n_steps * STEP; t += GROUP) {
        pack_keys((const uint16_t *)a->k + t * DIM, w->kv);
        for (int32_t r = 0; r < a->n_rows; r += GROUP)
            multiply(w->kv, w->queries[r / GROUP], STEPS, w->scores[r / GROUP][t], GROUP);
    }
}

static void add_values(const attention_block_args *a, int32_t n_tokens, int n_steps, workspace *w)
{
    for (int d = 0; d < DIM; d += GROUP) {
        pack_values(a->v, d, n_tokens, n_steps, w->kv);
        for (int32_t r = 0; r < a->n_rows; r += GROUP) {
            float *out = a->out + r * DIM + d;
            if (r + GROUP <= a->n_rows) {
                multiply(w->probabilities[r / GROUP], w->kv, n_steps, out, DIM);
                continue;
            }
            multiply(w->probabilities[r / GROUP], w->kv, n_steps, w->out[0], GROUP);
            for (int32_t i = 0; i < a->n_rows - r; i++)
                memcpy(out + i * DIM, w->out[i], sizeof w->out[i]);
        }
    }
}

void attention_tile_f16_amx(const attention_block_args *a)
{
    workspace w;
    int32_t n_tokens = 0;
    for (int32_t r = 0; r < a->n_rows; r++)
        if (a->visible[r] > n_tokens) n_tokens = a->visible[r];
    int n_steps = (n_tokens + STEP - 1) / STEP;
    configure_tiles();
    score_block(a, n_steps, &w);
    for (int32_t r = 0; r < a->n_rows; r += TILE)
        softmax(w.scores[r / GROUP], a->visible + r, smaller(TILE, a->n_rows - r), n_steps,
                w.probabilities[r / GROUP], r % GROUP / TILE, a->max + r, a->sum + r);
    /* The second half of a group that has only one is multiplied along, unused: any finite bits. */
    if (a->n_rows % GROUP != 0 && a->n_rows % GROUP <= TILE)
        for (int s = 0; s < n_steps; s++)
            for (int p = 0; p < PLANES; p++)
                memset(w.probabilities[a->n_rows / GROUP][p][s][1], 0, sizeof(bf16_tile));
    add_values(a, n_tokens, n_steps, &w);
    _tile_release();
}
