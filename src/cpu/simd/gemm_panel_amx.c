/* Matrix times many rows on AMX tiles: the part of gemm_amx.c for more inputs than L2 holds.
 *
 * A panel of weights is dequantised once for all inputs, 1 MB, and stays in L2. Of a pair of input
 * tiles 512 columns at a time stay in L1, 32 KB, and the panel streams past them, loaded as what
 * will not be needed again, while the next pair comes from L3. So a product of 16 cycles takes a
 * tile from L1, in 10, or from L2, in 17, and at 256 rows a line from L3, in 6. Sums change places
 * with others after 64 products, which costs as much as six. */
#include "cpu/simd/gemm_amx.h"

#include <assert.h>

enum {
    PANEL_ELEMENTS = 1 << 19, /* of dequantised weights in L2 at a time, bf16: 1 MB */
    PANEL_ROWS = 256,         /* at most */
    STRIPS = PANEL_ROWS / ROWS,
    HELD_COLS = 512, /* columns of a pair of input tiles in L1 */
};

typedef struct panel {
    _Alignas(64) uint16_t weights[PANEL_ELEMENTS]; /* [strip][step][row tile][16][32] */
    _Alignas(64) pair_sums sums[STRIPS];
} panel;
_Static_assert(sizeof(panel) <= GEMM_SCRATCH_BYTES, "as announced");

/* n_rows rows from `row` on; behind the last strip's there are zeros. */
static void dequantize_panel(const matrix *w, int32_t row, int32_t n_rows, int32_t n_next, panel *p)
{
    _Alignas(64) group_values values;
    uint16_t *out = p->weights;
    for (int32_t end = row + n_rows; row < end; row += ROWS) {
        const int32_t n = end - row < ROWS ? end - row : ROWS, left = end + n_next - row - n,
                      next = left < ROWS ? left : ROWS;
        prefetch_values(w, row + ROWS, next);
        for (int32_t col = 0; col < w->cols; col += COLS) {
            const int32_t n_cols = w->cols - col < COLS ? w->cols - col : COLS;
            if (col % (VALUE_GROUPS * QUANT_GROUP) == 0) widen_groups(w, row, n, col, &values);
            dequantize_block(w, row, n, next, col, n_cols, &values,
                             (uint16_t(*)[ROW_TILES][TILE][STEP])(void *)out);
            out += n_cols / STEP * STEP_STRIDE;
        }
    }
}

/* Asks for n lines of the next pair of input tiles. */
ALWAYS_INLINE void ask_for(const char **lines, int n)
{
    UNROLL for (int i = 0; i < n; i++) _mm_prefetch(*lines + i * LINE, _MM_HINT_T1);
    *lines += n * LINE;
}

/* Sums go to `from` and others come from `to`, tile by tile: so the next products need not wait for
 * all of them. */
ALWAYS_INLINE void change_sums(pair_sums from, pair_sums to)
{
    _tile_stored(0, from[0][0], 64);
    _tile_loadd(0, to[0][0], 64);
    _tile_stored(2, from[1][0], 64);
    _tile_loadd(2, to[1][0], 64);
    _tile_stored(1, from[0][1], 64);
    _tile_loadd(1, to[0][1], 64);
    _tile_stored(3, from[1][1], 64);
    _tile_loadd(3, to[1][1], 64);
    settle_memory();
}

/* Sums go to `from`, new ones begin. */
ALWAYS_INLINE void begin_sums(pair_sums from)
{
    _tile_stored(0, from[0][0], 64);
    _tile_zero(0);
    _tile_stored(2, from[1][0], 64);
    _tile_zero(2);
    _tile_stored(1, from[0][1], 64);
    _tile_zero(1);
    _tile_stored(3, from[1][1], 64);
    _tile_zero(3);
    settle_memory();
}

/* As `multiply`, but it is the weights that are not kept; n_ahead lines, 1 or 2, are asked for with
 * each product. */
ALWAYS_INLINE void multiply_steps(const uint16_t *weights, int32_t n_steps, const uint16_t *inputs,
                                  int n_tiles, size_t tile_elements, const char **ahead,
                                  int n_ahead)
{
    const char *lines = *ahead;
    for (int32_t s = 0; s < n_steps; s++, weights += STEP_STRIDE, inputs += TILE_ELEMENTS) {
        _tile_stream_loadd(4, weights, 64);
        _tile_stream_loadd(5, weights + TILE_ELEMENTS, 64);
        _tile_loadd(6, inputs, 64);
        if (n_tiles == 2) _tile_loadd(7, inputs + tile_elements, 64);
        _tile_dpbf16ps(0, 4, 6);
        ask_for(&lines, n_ahead);
        _tile_dpbf16ps(2, 5, 6);
        ask_for(&lines, n_ahead);
        if (n_tiles == 2) _tile_dpbf16ps(1, 4, 7);
        ask_for(&lines, n_ahead);
        if (n_tiles == 2) _tile_dpbf16ps(3, 5, 7);
        ask_for(&lines, n_ahead);
    }
    *ahead = lines;
}

/* The sums of n_strips strips times a pair of input tiles, of which n_tiles (1 or 2, a constant)
 * have inputs; `ahead` is the next pair. */
ALWAYS_INLINE void multiply_pair(panel *p, int32_t n_strips, int32_t cols, const uint16_t *inputs,
                                 int n_tiles, const char *ahead, int n_ahead)
{
    const size_t tile_elements = (size_t)cols * TILE, strip_elements = (size_t)cols * ROWS;
    zero_sums();
    for (int32_t col = 0; col < cols; col += HELD_COLS, inputs += HELD_COLS * TILE) {
        const int32_t n_steps = (cols - col < HELD_COLS ? cols - col : HELD_COLS) / STEP;
        const uint16_t *weights = p->weights + (size_t)col * ROWS;
        for (int32_t s = 0; s < n_strips; s++, weights += strip_elements) {
            multiply_steps(weights, n_steps, inputs, n_tiles, tile_elements, &ahead, n_ahead);
            const bool last = s == n_strips - 1;
            if (last ? col + HELD_COLS < cols : col > 0)
                change_sums(p->sums[s], p->sums[last ? 0 : s + 1]);
            else
                begin_sums(p->sums[s]);
        }
    }
}

/* y of a pair of input tiles: 16 inputs of 32 rows at a time, two lines of each together. */
static void write_pair(panel *p, int32_t n_rows, int32_t n, float *y, int64_t y_stride)
{
    for (int32_t row = 0; row < n_rows; row += ROWS)
        write_sums(&p->sums[row / ROWS], n_rows - row < ROWS ? n_rows - row : ROWS,
                   n < PAIR_INPUTS ? n : PAIR_INPUTS, y + row, y_stride);
}

/* Rows of a panel; 0 if there is none of so many columns. */
ALWAYS_INLINE int32_t panel_rows(int32_t cols)
{
    const int32_t fit = PANEL_ELEMENTS / cols / ROWS * ROWS;
    return fit < PANEL_ROWS ? fit : PANEL_ROWS;
}

/* y of n_rows rows of the panel times the pair of input tiles from input i on of n; y is of that
 * input. */
static void multiply_inputs(panel *p, int32_t n_rows, int32_t cols, const uint16_t *packed,
                            int32_t i, int32_t n, float *y, int64_t y_stride)
{
    const int32_t n_strips = (n_rows + ROWS - 1) / ROWS;
    const uint16_t *inputs = packed + (size_t)i * (size_t)cols;
    const bool last = i + PAIR_INPUTS >= n;
    const char *ahead = (const char *)(last ? packed : inputs + (size_t)PAIR_INPUTS * (size_t)cols);
    if (n - i <= TILE)
        multiply_pair(p, n_strips, cols, inputs, 1, ahead, 2);
    else if (n_rows < PANEL_ROWS)
        multiply_pair(p, n_strips, cols, inputs, 2, ahead, 2);
    else
        multiply_pair(p, n_strips, cols, inputs, 2, ahead, 1);
    write_pair(p, n_rows, n - i, y, y_stride);
}

void gemm_many_bf16_amx(const matrix *w, int32_t begin, int32_t end, const void *packed, int32_t n,
                        float *y, int64_t y_stride, void *scratch)
{
    assert(w->format == MATRIX_Q4);
    panel *p = scratch;
    const int32_t most = panel_rows(w->cols);
    if ((size_t)n * (size_t)w->cols <= BLOCK_ELEMENTS || most == 0) {
        gemm_bf16_amx(w, begin, end, packed, n, y, y_stride);
        return;
    }
    configure_tiles();
    for (int32_t row = begin; row < end; row += most) {
        const int32_t n_rows = end - row < most ? end - row : most;
        dequantize_panel(w, row, n_rows, end - row - n_rows, p);
        for (int32_t i = 0; i < n; i += PAIR_INPUTS)
            multiply_inputs(p, n_rows, w->cols, packed, i, n, y + i * y_stride + row, y_stride);
    }
    _tile_release();
    _mm_sfence(); /* as gemm_bf16_amx */
}

/* A pair of input tiles a piece, so that y stays in L1 beside them. */
static void gemm_pairs(const matrix *w, const uint16_t *packed, int32_t n, float *y,
                       int64_t y_stride, panel *p, gemm_done_fn *done, void *context)
{
    dequantize_panel(w, 0, w->rows, 0, p);
    for (int32_t i = 0; i < n; i += PAIR_INPUTS) {
        configure_tiles(); /* `done` may use them */
        multiply_inputs(p, w->rows, w->cols, packed, i, n, y, y_stride);
        _tile_release();
        _mm_sfence();
        done(context, i, n - i < PAIR_INPUTS ? n - i : PAIR_INPUTS);
    }
}

void gemm_pieces_bf16_amx(const matrix *w, const void *packed, int32_t n, float *y,
                          int64_t y_stride, void *scratch, gemm_done_fn *done, void *context)
{
    assert(w->format == MATRIX_Q4);
    if (n > GEMM_PIECE / 2 && w->rows <= panel_rows(w->cols)) {
        gemm_pairs(w, packed, n, y, y_stride, scratch, done, context);
        return;
    }
    for (int32_t i = 0; i < n; i += GEMM_PIECE) {
        const int32_t n_piece = n - i < GEMM_PIECE ? n - i : GEMM_PIECE;
        const uint16_t *inputs = (const uint16_t *)packed + (size_t)i * (size_t)w->cols;
        gemm_bf16_amx(w, 0, w->rows, inputs, n_piece, y, y_stride);
        done(context, i, n_piece);
    }
}
