/* What the products of 4-bit weights on AMX tiles share, with some hundred inputs (gemm_amx.c),
 * with few (gemm_few_amx.c) and with more than L2 holds (gemm_panel_amx.c). */
#ifndef CALLA_CPU_GEMM_AMX_H
#define CALLA_CPU_GEMM_AMX_H

#include "cpu/simd/dequantize_amx.h"

enum {
    PAIR_TILES = 2,                  /* tiles of inputs at a time */
    PAIR_INPUTS = PAIR_TILES * TILE, /* inputs at a time */
    FEW_INPUTS = PAIR_INPUTS,        /* so many or less in blocks of a pair of groups */
    MIDDLING_INPUTS =
        4 * PAIR_INPUTS,      /* more, but not more than so many, are gemm_middling_amx.c's */
    BLOCK_ELEMENTS = 1 << 19, /* of inputs in L2 at a time, bf16: 1 MB */
};

/* As gemm_bf16_amx and gemm_gated_bf16_amx, for n <= FEW_INPUTS; tiles are configured. */
void gemm_few_amx(const matrix *w, int32_t begin, int32_t end, const uint16_t *packed, int32_t n,
                  float *y, int64_t y_stride);
void gemm_gated_few_amx(const matrix *gate, const matrix *up, const uint16_t *packed, int32_t n,
                        uint16_t *out);

/* The same for FEW_INPUTS < n <= MIDDLING_INPUTS. */
void gemm_middling_amx(const matrix *w, int32_t begin, int32_t end, const uint16_t *packed,
                       int32_t n, float *y, int64_t y_stride);
void gemm_gated_middling_amx(const matrix *gate, const matrix *up, const uint16_t *packed,
                             int32_t n, uint16_t *out);

/* ---- products ---- */

typedef float sum_tile[TILE][TILE];                /* [row][input] */
typedef sum_tile pair_sums[ROW_TILES][PAIR_TILES]; /* of a pair of input tiles */

/* Tiles 0 to 3 += two row tiles x n_tiles (1 or 2, a constant) input tiles, which are
 * tile_elements apart. */
ALWAYS_INLINE void multiply(weight_step *weights, int32_t n_steps, const uint16_t *inputs,
                            int n_tiles, size_t tile_elements)
{
    for (int32_t s = 0; s < n_steps; s++) {
        _tile_loadd(4, weights[s][0], 64);
        _tile_stream_loadd(6, inputs + s * TILE_ELEMENTS, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, weights[s][1], 64);
        _tile_dpbf16ps(2, 5, 6);
        if (n_tiles == 2) {
            _tile_stream_loadd(7, inputs + tile_elements + s * TILE_ELEMENTS, 64);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
}

enum { PAIR_STEPS = PAIR / STEP };

/* The same over a block of 128 columns, while four times at_once (a constant) of the cursor's rows
 * are dequantised a step. */
ALWAYS_INLINE void multiply_beside(weight_step *weights, const uint16_t *inputs, int n_tiles,
                                   size_t tile_elements, row_cursor *cursor, int at_once)
{
    row_cursor c = *cursor;
    for (int32_t s = 0; s < PAIR_STEPS; s++) {
        _tile_loadd(4, weights[s][0], 64);
        _tile_stream_loadd(6, inputs + s * TILE_ELEMENTS, 64);
        if (n_tiles == 2) _tile_stream_loadd(7, inputs + tile_elements + s * TILE_ELEMENTS, 64);
        _tile_loadd(5, weights[s][1], 64);
        _tile_dpbf16ps(0, 4, 6);
        load_rows(&c, at_once);
        _tile_dpbf16ps(2, 5, 6);
        load_rows(&c, at_once);
        if (n_tiles == 2) _tile_dpbf16ps(1, 4, 7);
        load_rows(&c, at_once);
        if (n_tiles == 2) _tile_dpbf16ps(3, 5, 7);
        load_rows(&c, at_once);
    }
    *cursor = c;
    settle_memory();
}

ALWAYS_INLINE void zero_sums(void)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

ALWAYS_INLINE void load_sums(pair_sums sums)
{
    _tile_loadd(0, sums[0][0], 64);
    _tile_loadd(1, sums[0][1], 64);
    _tile_loadd(2, sums[1][0], 64);
    _tile_loadd(3, sums[1][1], 64);
}

ALWAYS_INLINE void store_sums(pair_sums sums)
{
    _tile_stored(0, sums[0][0], 64);
    _tile_stored(1, sums[0][1], 64);
    _tile_stored(2, sums[1][0], 64);
    _tile_stored(3, sums[1][1], 64);
    settle_memory();
}

/* ---- what becomes of the sums ---- */

/* Rows of y of so many floats or less are some of a buffer that its caller keeps in L2. */
enum { KEPT_STRIDE = 256 };

/* 16 values of a row of y, past the caches if they fill a line and y is not kept: it is far larger,
 * and its lines would be read first only to be overwritten. */
ALWAYS_INLINE void write_line(float *y, __m512i v, int32_t n, bool kept)
{
    if (!kept && n >= TILE && (uintptr_t)y % LINE == 0)
        _mm512_stream_si512((__m512i *)(void *)y, v);
    else
        _mm512_mask_storeu_epi32(y, (__mmask16)((1u << (n < TILE ? n : TILE)) - 1), v);
}

/* y[l][0 ... n_rows) from the sums of n inputs. */
static inline void write_sums(pair_sums *sums, int32_t n_rows, int32_t n, float *y,
                              int64_t y_stride)
{
    for (int32_t t = 0; t * TILE < n; t++) {
        __m512i v[ROW_TILES][TILE];
        for (int h = 0; h < ROW_TILES; h++) {
            for (int i = 0; i < TILE; i++)
                v[h][i] = _mm512_load_si512(sums[t / PAIR_TILES][h][t % PAIR_TILES][i]);
            transpose_words(v[h]);
        }
        for (int32_t l = 0; l < TILE && t * TILE + l < n; l++)
            for (int h = 0; h * TILE < n_rows; h++)
                write_line(y + (t * TILE + l) * y_stride + h * TILE, v[h][l], n_rows - h * TILE,
                           y_stride <= KEPT_STRIDE);
    }
}

/* Where 16 rows r, a quarter of a group, stand among the columns of a packed input: rows q and
 * q + 4, and q + 8 and q + 12, are neighbours, in the step and pair of columns this gives. */
typedef struct quarter_place {
    int32_t step, pair;
} quarter_place;

ALWAYS_INLINE quarter_place place_quarter(int32_t row, int32_t q, int32_t n_rows)
{
    int32_t group = row / QUANT_GROUP % 2, quarter = row % QUANT_GROUP / TILE;
    int32_t first_step = row / PAIR * (PAIR / STEP);
    if (group == 0 && row / QUANT_GROUP * QUANT_GROUP + QUANT_GROUP == n_rows) /* an odd last one */
        return (quarter_place){first_step + q / 2, q % 2 * 8 + quarter * 2};
    return (quarter_place){first_step + q, group * 8 + quarter * 2};
}

/* A pair of columns of 16 inputs as bf16. */
ALWAYS_INLINE __m512i pack_columns(__m512 a, __m512 b)
{
    const __m512i order =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(b, a));
}

/* silu(gate) * up of rows [row, row + 16) for 16 inputs, into the tile `packed` of n_rows columns.
 */
static inline void pack_gated(sum_tile gate, sum_tile up, int32_t row, int32_t n_rows,
                              uint16_t *packed)
{
    vf h[TILE];
    for (int i = 0; i < TILE; i++) {
        vf g = vf_load(gate[i]);
        h[i] = vf_mul(vf_mul(g, vf_sigmoid(g)), vf_load(up[i]));
    }
    for (int32_t q = 0; q < 4; q++) {
        quarter_place at = place_quarter(row, q, n_rows);
        uint16_t *out = packed + at.step * TILE_ELEMENTS + at.pair * 2 * TILE;
        _mm512_store_si512(out, pack_columns(h[q], h[q + 4]));
        _mm512_store_si512(out + 2 * TILE, pack_columns(h[q + 8], h[q + 12]));
    }
}

/* Of rows [row, row + ROWS), for n inputs. */
static inline void pack_gated_rows(pair_sums *gates, pair_sums *ups, int32_t row, int32_t n_rows,
                                   int32_t n, uint16_t *packed)
{
    for (int32_t t = 0; t * TILE < n; t++)
        for (int r = 0; r < ROW_TILES; r++)
            pack_gated(gates[t / PAIR_TILES][r][t % PAIR_TILES],
                       ups[t / PAIR_TILES][r][t % PAIR_TILES], row + r * TILE, n_rows,
                       packed + (size_t)t * TILE * (size_t)n_rows);
}

#endif
