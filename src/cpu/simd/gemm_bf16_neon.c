/* Matrix times many rows on NEON's bfloat16 matrix instruction, f32 sums: the counterpart of
 * gemm_bf16_c, as gemm_amx.c is elsewhere.
 *
 * BFMMLA multiplies two weight rows with two inputs over four columns. Weights are dequantised into
 * L1 as bf16 [4 columns][8 rows][4], 256 columns at a time; inputs are packed once as [tile][4
 * columns][8 inputs][4]. So a step of 8 loads feeds 16 products of 16 multiply-adds, four times
 * what the f32 form gets out of as many instructions.
 *
 * A sum takes its columns four by four in ascending order, whatever the number of inputs and
 * wherever they stand. The instruction rounds to odd and flushes subnormals: as exact as f32 sums.
 */
#include "cpu/simd/dequantize.h"

#include <string.h>

enum {
    TILE = 8, /* inputs, or weight rows, of a register block */
    PAIRS = TILE / 2,
    STEP = 4,           /* columns of a product */
    COLS = 256,         /* columns dequantised at a time: 4 KB */
    BLOCK_INPUTS = 256, /* inputs per pass over the weights */
    BLOCK_TILES = BLOCK_INPUTS / TILE,
    STEP_ELEMENTS = TILE * STEP,
};

typedef struct tile_sums {
    vf pair[PAIRS][PAIRS]; /* [rows][inputs]: (row, input) 0 0, 0 1, 1 0, 1 1 */
} tile_sums;

/* Row or input `lane` of a tile: its n_cols columns to their places. */
ALWAYS_INLINE void store_columns(const float *x, int32_t n_cols, int32_t lane, bfloat16_t *tile)
{
    tile += lane * STEP;
    for (int32_t c = 0; c < n_cols; c += STEP, tile += STEP_ELEMENTS)
        vst1_bf16(tile, vcvt_bf16_f32(vld1q_f32(x + c)));
}

void KERNEL(pack_input)(const float *x, int64_t x_stride, const int32_t *rows, int32_t n,
                        int32_t cols, void *packed)
{
    bfloat16_t *tile = packed;
    for (int32_t i = 0; i < n; i += TILE, tile += (size_t)TILE * (size_t)cols) {
        if (n - i < TILE) memset(tile, 0, (size_t)TILE * (size_t)cols * sizeof *tile);
        for (int32_t l = 0; l < TILE && i + l < n; l++)
            store_columns(x + (rows ? rows[i + l] : i + l) * x_stride, cols, l, tile);
    }
}

ALWAYS_INLINE void multiply_tile(const bfloat16_t *weights, const bfloat16_t *inputs,
                                 int32_t n_cols, tile_sums *sums)
{
    tile_sums s = *sums;
    for (int32_t c = 0; c < n_cols; c += STEP) {
        bfloat16x8_t w[PAIRS], x[PAIRS];
        UNROLL for (int i = 0; i < PAIRS; i++)
        {
            w[i] = vld1q_bf16(weights + i * 2 * STEP);
            x[i] = vld1q_bf16(inputs + i * 2 * STEP);
        }
        UNROLL for (int i = 0; i < PAIRS; i++) UNROLL for (int j = 0; j < PAIRS; j++) s.pair[i][j] =
            vbfmmlaq_f32(s.pair[i][j], w[i], x[j]);
        weights += STEP_ELEMENTS;
        inputs += STEP_ELEMENTS;
    }
    *sums = s;
}

static void write_sums(const tile_sums *sums, int32_t n_rows, int32_t n_inputs, float *y,
                       int64_t y_stride)
{
    for (int32_t l = 0; l < n_inputs; l++)
        for (int32_t r = 0; r < n_rows; r++)
            y[l * y_stride + r] = sums->pair[r / 2][l / 2][r % 2 * 2 + l % 2];
}

/* Up to TILE rows for up to BLOCK_INPUTS inputs. */
static void multiply_rows(const matrix *w, int32_t r, int32_t n_rows, const bfloat16_t *packed,
                          int32_t n, float *y, int64_t y_stride)
{
    _Alignas(64) bfloat16_t weights[TILE * COLS];
    _Alignas(64) float row[COLS];
    tile_sums sums[BLOCK_TILES];
    int32_t n_tiles = (n + TILE - 1) / TILE;
    memset(sums, 0, (size_t)n_tiles * sizeof sums[0]);
    if (n_rows < TILE) memset(weights, 0, sizeof weights);
    for (int32_t c = 0; c < w->cols; c += COLS) {
        int32_t n_cols = w->cols - c < COLS ? w->cols - c : COLS;
        for (int32_t i = 0; i < n_rows; i++) {
            dequantize_columns(w, r + i, c, n_cols, row);
            store_columns(row, n_cols, i, weights);
        }
        for (int32_t t = 0; t < n_tiles; t++)
            multiply_tile(weights, packed + ((size_t)t * (size_t)w->cols + (size_t)c) * TILE,
                          n_cols, &sums[t]);
    }
    for (int32_t t = 0; t < n_tiles; t++)
        write_sums(&sums[t], n_rows, n - t * TILE < TILE ? n - t * TILE : TILE,
                   y + (int64_t)t * TILE * y_stride + r, y_stride);
}

void KERNEL(gemm)(const matrix *w, int32_t begin, int32_t end, const void *packed, int32_t n,
                  float *y, int64_t y_stride)
{
    for (int32_t i = 0; i < n; i += BLOCK_INPUTS) {
        const bfloat16_t *x = (const bfloat16_t *)packed + (size_t)i * (size_t)w->cols;
        int32_t n_inputs = n - i < BLOCK_INPUTS ? n - i : BLOCK_INPUTS;
        for (int32_t r = begin; r < end; r += TILE)
            multiply_rows(w, r, end - r < TILE ? end - r : TILE, x, n_inputs, y + i * y_stride,
                          y_stride);
    }
}

/* The products of multiply_tile without its loads. */
int64_t KERNEL(measure_multiply)(int64_t n_rounds, float *sink)
{
    bfloat16x8_t half = vcvtq_low_bf16_f32(vf_set1(0.125f));
    half = vcvtq_high_bf16_f32(half, vf_set1(0.125f));
    tile_sums s = {{{{0}}}};
    for (int i = 0; i < PAIRS; i++)
        for (int j = 0; j < PAIRS; j++) s.pair[i][j] = vf_set1(*sink + (float)(i + j));
    for (int64_t r = 0; r < n_rounds; r++)
        UNROLL for (int i = 0; i < PAIRS; i++) UNROLL for (int j = 0; j < PAIRS; j++) s.pair[i][j] =
            vbfmmlaq_f32(s.pair[i][j], half, half);
    vf sum = vf_zero();
    for (int i = 0; i < PAIRS; i++)
        for (int j = 0; j < PAIRS; j++) sum = vf_add(sum, s.pair[i][j]);
    *sink = vf_sum(sum);
    return n_rounds * PAIRS * PAIRS * 2 * 2 * STEP * 2;
}
