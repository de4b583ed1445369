/* Matrix times many rows: a tile of weights is dequantised into L1 once for some hundred inputs.
 *
 * Packed inputs are f32 [tile][col][8 inputs]: eight dot products with one weight row run side by
 * side, each adding its columns in ascending order, so a result does not depend on its neighbours.
 * Columns are summed in blocks of TILE_COLS, the blocks in order: less rounding, and the block of
 * weights stays in L1. */
#include "base/numbers.h"
#include "cpu/kernels.h"
#include "cpu/lanes.h"

#include <string.h>

enum {
    TILE_INPUTS = 8,
    TILE_ROWS = 16,
    TILE_COLS = 256,   /* TILE_ROWS x TILE_COLS f32 = 16 KB */
    BLOCK_INPUTS = 256 /* the sums of a block of inputs, TILE_ROWS rows: 16 KB */
};

static void pack(const float *x, int64_t x_stride, const int32_t *rows, int32_t n, int32_t cols,
                 bool bf16, float *out)
{
    for (int32_t i = 0; i < n; i += TILE_INPUTS, out += (size_t)TILE_INPUTS * (size_t)cols) {
        for (int l = 0; l < TILE_INPUTS; l++) {
            if (i + l >= n) {
                for (int32_t c = 0; c < cols; c++) out[c * TILE_INPUTS + l] = 0;
                continue;
            }
            const float *row = x + (rows ? rows[i + l] : i + l) * x_stride;
            if (bf16)
                for (int32_t c = 0; c < cols; c++)
                    out[c * TILE_INPUTS + l] = bf16_to_f32(f32_to_bf16(row[c]));
            else
                for (int32_t c = 0; c < cols; c++) out[c * TILE_INPUTS + l] = row[c];
        }
    }
}

void pack_input_c(const float *x, int64_t x_stride, const int32_t *rows, int32_t n, int32_t cols,
                  void *packed)
{
    pack(x, x_stride, rows, n, cols, false, packed);
}

void pack_input_bf16_c(const float *x, int64_t x_stride, const int32_t *rows, int32_t n,
                       int32_t cols, void *packed)
{
    pack(x, x_stride, rows, n, cols, true, packed);
}

/* Rows of quantize_input, which come one by one. */
void gather_rows_q4_c(const void *packed_rows, const int32_t *rows, int32_t n, int32_t cols,
                      void *packed)
{
    size_t bytes = quantized_bytes(cols);
    for (int32_t i = 0; i < n; i++)
        memcpy((char *)packed + (size_t)i * bytes,
               (const char *)packed_rows + (size_t)rows[i] * bytes, bytes);
}

/* Rows [r, r + n_rows) by columns [c, c + n_cols); rows up to the next multiple of 4 are zeroed. */
static void load_weights(const matrix *w, int32_t r, int32_t n_rows, int32_t c, int32_t n_cols,
                         bool bf16, float weights[TILE_ROWS][TILE_COLS])
{
    for (int32_t i = 0; i < n_rows; i++) {
        dequantize_c(w, r + i, c, n_cols, weights[i]);
        if (bf16)
            for (int32_t j = 0; j < n_cols; j++)
                weights[i][j] = bf16_to_f32(f32_to_bf16(weights[i][j]));
    }
    for (int32_t i = n_rows; i % 4; i++) memset(weights[i], 0, sizeof weights[i]);
}

/* sums[4][8] += 4 weight rows times 8 inputs over n_cols columns. */
static void multiply_tile(const float (*w)[TILE_COLS], int32_t n_cols, const float *x,
                          float (*sums)[TILE_INPUTS])
{
    f32x4 a[4] = {{0}}, b[4] = {{0}};
    for (int32_t c = 0; c < n_cols; c++, x += TILE_INPUTS) {
        f32x4 low = load4(x), high = load4(x + 4);
        for (int i = 0; i < 4; i++) {
            a[i] += low * w[i][c];
            b[i] += high * w[i][c];
        }
    }
    for (int i = 0; i < 4; i++) {
        store4(sums[i], load4(sums[i]) + a[i]);
        store4(sums[i] + 4, load4(sums[i] + 4) + b[i]);
    }
}

/* Up to TILE_ROWS rows for up to BLOCK_INPUTS inputs. */
static void multiply_rows(const matrix *w, int32_t r, int32_t n_rows, const float *packed,
                          int32_t n, bool bf16, float *y, int64_t y_stride)
{
    _Alignas(64) float weights[TILE_ROWS][TILE_COLS];
    _Alignas(64) float sums[BLOCK_INPUTS / TILE_INPUTS][TILE_ROWS][TILE_INPUTS];
    int32_t n_tiles = (n + TILE_INPUTS - 1) / TILE_INPUTS;
    memset(sums, 0, (size_t)n_tiles * sizeof sums[0]);
    for (int32_t c = 0; c < w->cols; c += TILE_COLS) {
        int32_t n_cols = w->cols - c < TILE_COLS ? w->cols - c : TILE_COLS;
        load_weights(w, r, n_rows, c, n_cols, bf16, weights);
        for (int32_t t = 0; t < n_tiles; t++) {
            const float *x = packed + ((size_t)t * (size_t)w->cols + (size_t)c) * TILE_INPUTS;
            for (int32_t i = 0; i < n_rows; i += 4)
                multiply_tile((const float(*)[TILE_COLS])weights + i, n_cols, x, sums[t] + i);
        }
    }
    for (int32_t i = 0; i < n; i++)
        for (int32_t j = 0; j < n_rows; j++)
            y[i * y_stride + r + j] = sums[i / TILE_INPUTS][j][i % TILE_INPUTS];
}

static void multiply(const matrix *w, int32_t begin, int32_t end, const float *packed, int32_t n,
                     bool bf16, float *y, int64_t y_stride)
{
    for (int32_t i = 0; i < n; i += BLOCK_INPUTS) {
        int32_t n_inputs = n - i < BLOCK_INPUTS ? n - i : BLOCK_INPUTS;
        for (int32_t r = begin; r < end; r += TILE_ROWS) {
            int32_t n_rows = end - r < TILE_ROWS ? end - r : TILE_ROWS;
            multiply_rows(w, r, n_rows, packed + (size_t)i * (size_t)w->cols, n_inputs, bf16,
                          y + i * y_stride, y_stride);
        }
    }
}

void gemm_c(const matrix *w, int32_t begin, int32_t end, const void *packed, int32_t n, float *y,
            int64_t y_stride)
{
    multiply(w, begin, end, packed, n, false, y, y_stride);
}

void gemm_bf16_c(const matrix *w, int32_t begin, int32_t end, const void *packed, int32_t n,
                 float *y, int64_t y_stride)
{
    multiply(w, begin, end, packed, n, true, y, y_stride);
}
