/* Matrix times many rows in f32: 12 weight rows are dequantised into L1, 256 columns at a time, and
 * multiplied with tiles of VL inputs each, two tiles at a time.
 *
 * Packed inputs are f32 [tile][col][VL inputs]: VL dot products with one weight row run side by
 * side, each adding its columns in ascending order within a block of 256, and the blocks in order,
 * so a result does not depend on its neighbours. An inner step is 2 loads, MR broadcasts from L1
 * and 2 MR fused multiply-adds, which is what limits it: 2 VL multiply-adds a cycle on most cores.
 */
#include "cpu/simd/dequantize.h"

#include <string.h>

enum {
    TILE_ROWS = 12,
    TILE_COLS = 256, /* TILE_ROWS x TILE_COLS f32 = 12 KB */
    /* Rows of one register block: with two tiles of inputs 2 MR sums, 2 inputs and a weight. */
    MR = VECTOR_REGISTERS == 32 ? 12 : 6,
    BLOCK_INPUTS = 256, /* inputs per pass over the weights; their sums stay in L1 or L2 */
    BLOCK_TILES = BLOCK_INPUTS / VL,
};

void KERNEL(pack_input)(const float *x, int64_t x_stride, const int32_t *rows, int32_t n,
                        int32_t cols, void *packed)
{
    float *out = packed;
    for (int32_t i = 0; i < n; i += VL, out += (size_t)VL * (size_t)cols)
        for (int32_t c = 0; c < cols; c += VL) {
            vf v[VL];
            for (int l = 0; l < VL; l++)
                v[l] = i + l < n ? vf_load(x + (rows ? rows[i + l] : i + l) * x_stride + c)
                                 : vf_zero();
            vf_transpose(v);
            for (int l = 0; l < VL; l++) vf_store(out + (size_t)(c + l) * VL, v[l]);
        }
}

/* sums[row][..] += MR weight rows times n_tiles (1 or 2, a constant) tiles over n_cols columns. */
ALWAYS_INLINE void multiply_tiles(float (*w)[TILE_COLS], int32_t n_cols, const float *x0,
                                  const float *x1, int n_tiles, float (*s0)[VL], float (*s1)[VL])
{
    vf a[MR], b[MR];
    UNROLL for (int r = 0; r < MR; r++) a[r] = b[r] = vf_zero();
    for (int32_t c = 0; c < n_cols; c++) {
        vf u = vf_load(x0 + c * VL), v = n_tiles == 2 ? vf_load(x1 + c * VL) : u;
        UNROLL for (int r = 0; r < MR; r++)
        {
            vf weight = vf_set1(w[r][c]);
            a[r] = vf_fma(weight, u, a[r]);
            if (n_tiles == 2) b[r] = vf_fma(weight, v, b[r]);
        }
    }
    UNROLL for (int r = 0; r < MR; r++)
    {
        vf_store(s0[r], vf_add(vf_load(s0[r]), a[r]));
        if (n_tiles == 2) vf_store(s1[r], vf_add(vf_load(s1[r]), b[r]));
    }
}

/* Up to TILE_ROWS rows for up to BLOCK_INPUTS inputs. */
static void multiply_rows(const matrix *w, int32_t r, int32_t n_rows, const float *packed,
                          int32_t n, float *y, int64_t y_stride)
{
    _Alignas(64) float weights[TILE_ROWS][TILE_COLS];
    _Alignas(64) float sums[BLOCK_TILES][TILE_ROWS][VL];
    int32_t n_tiles = (n + VL - 1) / VL, padded_rows = (n_rows + MR - 1) / MR * MR;
    memset(sums, 0, (size_t)n_tiles * sizeof sums[0]);
    for (int32_t i = n_rows; i < padded_rows; i++) memset(weights[i], 0, sizeof weights[i]);
    for (int32_t c = 0; c < w->cols; c += TILE_COLS) {
        int32_t n_cols = w->cols - c < TILE_COLS ? w->cols - c : TILE_COLS;
        for (int32_t i = 0; i < n_rows; i++) dequantize_columns(w, r + i, c, n_cols, weights[i]);
        for (int32_t t = 0; t < n_tiles; t += 2) {
            const float *x0 = packed + ((size_t)t * (size_t)w->cols + (size_t)c) * VL;
            const float *x1 = x0 + (size_t)w->cols * VL;
            for (int32_t i = 0; i < padded_rows; i += MR) {
                if (t + 1 < n_tiles)
                    multiply_tiles(weights + i, n_cols, x0, x1, 2, sums[t] + i, sums[t + 1] + i);
                else
                    multiply_tiles(weights + i, n_cols, x0, x0, 1, sums[t] + i, sums[t] + i);
            }
        }
    }
    for (int32_t i = 0; i < n; i++)
        for (int32_t j = 0; j < n_rows; j++) y[i * y_stride + r + j] = sums[i / VL][j][i % VL];
}

void KERNEL(gemm)(const matrix *w, int32_t begin, int32_t end, const void *packed, int32_t n,
                  float *y, int64_t y_stride)
{
    for (int32_t i = 0; i < n; i += BLOCK_INPUTS) {
        const float *x = (const float *)packed + (size_t)i * (size_t)w->cols;
        int32_t n_inputs = n - i < BLOCK_INPUTS ? n - i : BLOCK_INPUTS;
        for (int32_t r = begin; r < end; r += TILE_ROWS) {
            int32_t n_rows = end - r < TILE_ROWS ? end - r : TILE_ROWS;
            multiply_rows(w, r, n_rows, x, n_inputs, y + i * y_stride, y_stride);
        }
    }
}
