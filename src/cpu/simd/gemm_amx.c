/* Matrix times many rows on AMX tiles in bfloat16, f32 sums: the counterpart of gemm_bf16_c.
 *
 * y^T = W x^T: a tile A is 16 weight rows by 32 columns, dequantised as bf16; a tile B is 32
 * columns by 16 inputs, packed once per layer input; the sums are 16 rows by 16 inputs. A product
 * of two tiles takes 16 cycles: 512 multiply-adds a cycle. Two row tiles meet two tiles of inputs,
 * four products for four loads: in 64 cycles L2 gives 2 KB of inputs and L1 2 KB of weights.
 *
 * 32 rows by 256 columns are dequantised, 16 KB, and multiplied with all inputs before the next:
 * small enough to stay in L1 beside the inputs that stream through it, loaded as what will not be
 * needed again. With MIDDLING_INPUTS or less dequantising takes too large a part to be done before
 * the products and is done beside them, in smaller blocks (gemm_middling_amx.c, gemm_few_amx.c).
 * The codes of the 32 rows after these are asked for while these are dequantised, a line at a time:
 * left to the hardware, which stops at every page, they come at half the rate.
 *
 * A sum runs over its columns in one order, whatever the number of inputs and wherever they stand.
 */
#include "cpu/simd/gemm_amx.h"
#include "base/numbers.h"

#include <assert.h>

enum {
    BLOCK_INPUTS = 256, /* inputs per pass over the weights: 1 MB of 2,048 columns in L2 */
    BLOCK_PAIRS = BLOCK_INPUTS / PAIR_INPUTS,
};

/* ---- products ---- */

/* sums of rows [row, row + ROWS), those before `end`, times n <= BLOCK_INPUTS inputs. */
static void multiply_rows(const matrix *w, int32_t row, int32_t end, const uint16_t *packed,
                          int32_t n, pair_sums *sums)
{
    _Alignas(64) weight_block weights;
    _Alignas(64) group_values values;
    const int32_t n_pairs = (n + PAIR_INPUTS - 1) / PAIR_INPUTS;
    const int32_t n_rows = end - row < ROWS ? end - row : ROWS, left = end - row - n_rows,
                  n_next = left < ROWS ? left : ROWS;
    const size_t tile_elements = (size_t)w->cols * TILE;
    prefetch_values(w, row + ROWS, n_next);
    for (int32_t col = 0; col < w->cols; col += COLS) {
        int32_t n_cols = w->cols - col < COLS ? w->cols - col : COLS;
        if (col % (VALUE_GROUPS * QUANT_GROUP) == 0) widen_groups(w, row, n_rows, col, &values);
        dequantize_block(w, row, n_rows, n_next, col, n_cols, &values, weights);
        const uint16_t *inputs = packed + (size_t)col * TILE;
        for (int32_t i = 0; i < n_pairs; i++, inputs += PAIR_TILES * tile_elements) {
            if (col == 0)
                zero_sums();
            else
                load_sums(sums[i]);
            if (n - i * PAIR_INPUTS > TILE)
                multiply(weights, n_cols / STEP, inputs, 2, tile_elements);
            else
                multiply(weights, n_cols / STEP, inputs, 1, tile_elements);
            store_sums(sums[i]);
        }
    }
}

void gemm_bf16_amx(const matrix *w, int32_t begin, int32_t end, const void *packed, int32_t n,
                   float *y, int64_t y_stride)
{
    assert(w->format == MATRIX_Q4);
    _Alignas(64) pair_sums sums[BLOCK_PAIRS];
    configure_tiles();
    for (int32_t i = 0; i < n; i += BLOCK_INPUTS) {
        const uint16_t *x = (const uint16_t *)packed + (size_t)i * (size_t)w->cols;
        int32_t n_inputs = n - i < BLOCK_INPUTS ? n - i : BLOCK_INPUTS;
        if (n_inputs <= FEW_INPUTS) {
            gemm_few_amx(w, begin, end, x, n_inputs, y + i * y_stride, y_stride);
            continue;
        }
        if (n_inputs <= MIDDLING_INPUTS) {
            gemm_middling_amx(w, begin, end, x, n_inputs, y + i * y_stride, y_stride);
            continue;
        }
        for (int32_t row = begin; row < end; row += ROWS) {
            multiply_rows(w, row, end, x, n_inputs, sums);
            write_sums(sums, end - row < ROWS ? end - row : ROWS, n_inputs, y + i * y_stride + row,
                       y_stride);
        }
    }
    _tile_release();
    _mm_sfence(); /* before the region's end, from which on other threads read y */
}

void gemm_gated_bf16_amx(const matrix *gate, const matrix *up, const void *packed, int32_t n,
                         void *out)
{
    assert(gate->format == MATRIX_Q4 && up->format == MATRIX_Q4 && gate->rows % QUANT_GROUP == 0);
    _Alignas(64) pair_sums gates[BLOCK_PAIRS], ups[BLOCK_PAIRS];
    const int32_t width = gate->rows;
    configure_tiles();
    for (int32_t i = 0; i < n; i += BLOCK_INPUTS) {
        const uint16_t *x = (const uint16_t *)packed + (size_t)i * (size_t)gate->cols;
        uint16_t *h = (uint16_t *)out + (size_t)i * (size_t)width;
        int32_t n_inputs = n - i < BLOCK_INPUTS ? n - i : BLOCK_INPUTS;
        if (n_inputs <= FEW_INPUTS) {
            gemm_gated_few_amx(gate, up, x, n_inputs, h);
            continue;
        }
        if (n_inputs <= MIDDLING_INPUTS) {
            gemm_gated_middling_amx(gate, up, x, n_inputs, h);
            continue;
        }
        for (int32_t row = 0; row < width; row += ROWS) {
            multiply_rows(gate, row, width, x, n_inputs, gates);
            multiply_rows(up, row, width, x, n_inputs, ups);
            pack_gated_rows(gates, ups, row, width, n_inputs, h);
        }
    }
    _tile_release();
}

/* ---- measuring ---- */

/* The products of `multiply` without its loads. */
int64_t measure_multiply_amx(int64_t n_rounds, float *sink)
{
    _Alignas(64) uint16_t tile[TILE_ELEMENTS];
    _Alignas(64) pair_sums sums;
    for (int i = 0; i < TILE_ELEMENTS; i++) tile[i] = f32_to_bf16(*sink / (float)(1 + i % 7));
    configure_tiles();
    _tile_loadd(4, tile, 64);
    _tile_loadd(5, tile, 64);
    _tile_loadd(6, tile, 64);
    _tile_loadd(7, tile, 64);
    zero_sums();
    for (int64_t r = 0; r < n_rounds; r++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 5, 6);
        _tile_dpbf16ps(2, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
    }
    store_sums(sums);
    _tile_release();
    *sink = sums[0][0][0][0] + sums[1][1][1][1];
    return n_rounds * 4 * TILE * TILE * STEP * 2;
}
