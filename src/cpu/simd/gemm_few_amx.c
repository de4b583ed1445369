/* Matrix times few rows on AMX tiles: the part of gemm_amx.c for one pair of input tiles.
 *
 * There dequantising takes as long as the products: it is done beside them, a block of 128 columns
 * ahead, two rows after each product. The sums stay in their tiles. */
#include "cpu/simd/gemm_amx.h"

typedef struct pipeline {
    weight_block blocks[2];
    group_values values; /* of the block ahead */
    int turn;            /* the block that multiplies */
} pipeline;

/* Rows [row, end) of a matrix; none if w is NULL. */
typedef struct row_range {
    const matrix *w;
    int32_t row, end;
} row_range;

/* The block ahead: the first ROWS of `rows` from column `col` on. True if the cursor is to
 * dequantise it, which needs all rows and columns; otherwise it is done. */
static bool begin_block(pipeline *p, const row_range *rows, int32_t col, row_cursor *c)
{
    const matrix *w = rows->w;
    int32_t left = rows->end - rows->row, n_rows = left < ROWS ? left : ROWS;
    int32_t n_next = left - n_rows < ROWS ? left - n_rows : ROWS;
    int32_t n_cols = w->cols - col < PAIR ? w->cols - col : PAIR;
    uint16_t *to = p->blocks[p->turn ^ 1][0][0][0];
    if (col == 0) prefetch_values(w, rows->row + ROWS, n_next);
    if (col % (VALUE_GROUPS * QUANT_GROUP) == 0)
        widen_groups(w, rows->row, n_rows, col, &p->values);
    if (n_rows < ROWS || n_cols < PAIR) {
        dequantize_block(w, rows->row, n_rows, n_next, col, n_cols, &p->values,
                         p->blocks[p->turn ^ 1]);
        return false;
    }
    const size_t row_bytes = (size_t)w->cols / 2;
    const int32_t in_values = col / QUANT_GROUP % VALUE_GROUPS;
    *c = (row_cursor){(const uint8_t *)w->codes + (size_t)rows->row * row_bytes + (size_t)col / 2,
                      p->values.scales[0] + in_values,
                      p->values.biases[0] + in_values,
                      to,
                      row_bytes,
                      n_next == ROWS ? ROWS * row_bytes : 0};
    return true;
}

/* sums of the first ROWS of `rows`, whose first block is dequantised, times n <= FEW_INPUTS inputs;
 * then the first block of `next` is. */
static void multiply_few(pipeline *p, const row_range *rows, const row_range *next,
                         const uint16_t *packed, int32_t n, pair_sums *sums)
{
    const int32_t cols = rows->w->cols;
    const size_t tile_elements = (size_t)cols * TILE;
    zero_sums();
    for (int32_t col = 0; col < cols; col += PAIR, p->turn ^= 1) {
        int32_t n_steps = (cols - col < PAIR ? cols - col : PAIR) / STEP;
        const uint16_t *inputs = packed + (size_t)col * TILE;
        row_cursor c;
        bool beside = false;
        if (col + PAIR < cols)
            beside = begin_block(p, rows, col + PAIR, &c);
        else if (next->w)
            beside = begin_block(p, next, 0, &c);
        if (beside && n_steps < PAIR_STEPS) {
            load_rows(&c, ROWS);
            beside = false;
        }
        weight_step *weights = p->blocks[p->turn];
        if (beside && n > TILE)
            multiply_beside(weights, inputs, 2, tile_elements, &c, 2);
        else if (beside)
            multiply_beside(weights, inputs, 1, tile_elements, &c, 2);
        else if (n > TILE)
            multiply(weights, n_steps, inputs, 2, tile_elements);
        else
            multiply(weights, n_steps, inputs, 1, tile_elements);
        settle_memory();
    }
    store_sums(*sums);
}

/* The first block of all. */
static void begin_few(pipeline *p, const row_range *first)
{
    row_cursor c;
    p->turn = 1;
    if (begin_block(p, first, 0, &c)) load_rows(&c, ROWS);
    p->turn = 0;
}

void gemm_few_amx(const matrix *w, int32_t begin, int32_t end, const uint16_t *packed, int32_t n,
                  float *y, int64_t y_stride)
{
    _Alignas(64) pipeline p;
    _Alignas(64) pair_sums sums;
    const row_range all = {w, begin, end};
    begin_few(&p, &all);
    for (int32_t row = begin; row < end; row += ROWS) {
        row_range rows = {w, row, end}, next = {row + ROWS < end ? w : NULL, row + ROWS, end};
        multiply_few(&p, &rows, &next, packed, n, &sums);
        write_sums(&sums, end - row < ROWS ? end - row : ROWS, n, y + row, y_stride);
    }
}

void gemm_gated_few_amx(const matrix *gate, const matrix *up, const uint16_t *packed, int32_t n,
                        uint16_t *out)
{
    _Alignas(64) pipeline p;
    _Alignas(64) pair_sums gates, ups;
    const int32_t width = gate->rows;
    const row_range all = {gate, 0, width};
    begin_few(&p, &all);
    for (int32_t row = 0; row < width; row += ROWS) {
        row_range of_gate = {gate, row, width}, of_up = {up, row, width};
        row_range next = {row + ROWS < width ? gate : NULL, row + ROWS, width};
        multiply_few(&p, &of_gate, &of_up, packed, n, &gates);
        multiply_few(&p, &of_up, &next, packed, n, &ups);
        pack_gated_rows(&gates, &ups, row, width, n, out);
    }
}
