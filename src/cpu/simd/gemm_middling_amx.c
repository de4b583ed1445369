/* Matrix times two to four pairs of input tiles on AMX: the part of gemm_amx.c where dequantising
 * takes half as long as the products or more, but a pair is not all there is.
 *
 * It is done beside them as in gemm_few_amx.c, one row after each product. A pair of input tiles
 * goes through two blocks of 32 rows by 128 columns before its sums change places with those of the
 * next pair, which takes as long as six products; a third block is ahead. The three, 24 KB, stay in
 * L1. */
#include "cpu/simd/gemm_amx.h"

enum {
    BLOCKS = 3,                             /* in L1 */
    PASSES = MIDDLING_INPUTS / PAIR_INPUTS, /* pairs of input tiles, at most */
    SHARE = ROWS / 2,                       /* rows dequantised beside a block */
};

typedef weight_step pair_block[PAIR_STEPS];

/* ---- blocks of weights ---- */

/* Blocks are numbered in the order in which they are multiplied: of 32 rows the columns of the one
 * or two matrices, then of the next 32 rows. */
typedef struct pipeline {
    _Alignas(64) pair_block blocks[BLOCKS]; /* number b in b % BLOCKS */
    group_values values;                    /* of the block begun last */
    const matrix *matrices[2];
    int32_t n_matrices, end; /* rows */
    /* Of the block to begin next. */
    int32_t number, matrix, row, col;
    /* Of the block begun last: its rows that are still to be dequantised. */
    row_cursor cursor;
    int32_t left;
} pipeline;

/* The place of the block after this one. */
static void advance(pipeline *p)
{
    p->number++;
    p->col += PAIR;
    if (p->col < p->matrices[0]->cols) return;
    p->col = 0;
    if (++p->matrix < p->n_matrices) return;
    p->matrix = 0;
    p->row += ROWS;
}

/* The rows that are read after p->row of p->matrix: how many, and from where on. */
typedef struct rows_ahead {
    const matrix *w;
    int32_t row, n;
} rows_ahead;

static rows_ahead look_ahead(const pipeline *p)
{
    const bool same = p->matrix < p->n_matrices - 1;
    const int32_t row = same ? p->row : p->row + ROWS, left = p->end - row;
    return (rows_ahead){p->matrices[same ? p->matrix + 1 : 0], row, left < ROWS ? left : ROWS};
}

/* Begins the next block, if there is one; one that has not all rows and columns is dequantised at
 * once. The same columns of the rows that are read next are asked for with each row. */
static void begin_block(pipeline *p)
{
    if (p->row >= p->end) return;
    const matrix *w = p->matrices[p->matrix];
    const int32_t row = p->row, col = p->col, left = p->end - row;
    const int32_t n_rows = left < ROWS ? left : ROWS;
    const int32_t n_cols = w->cols - col < PAIR ? w->cols - col : PAIR;
    const rows_ahead next = look_ahead(p);
    weight_step *to = p->blocks[p->number % BLOCKS];
    if (col == 0) prefetch_values(next.w, next.row, next.n);
    if (col % (VALUE_GROUPS * QUANT_GROUP) == 0) widen_groups(w, row, n_rows, col, &p->values);
    advance(p);
    if (n_rows < ROWS || n_cols < PAIR) {
        dequantize_block(w, row, n_rows, 0, col, n_cols, &p->values, to);
        return;
    }
    const size_t row_bytes = (size_t)w->cols / 2;
    const uint8_t *codes = (const uint8_t *)w->codes + (size_t)row * row_bytes + (size_t)col / 2;
    size_t ahead = 0;
    if (next.n == ROWS)
        ahead =
            (size_t)next.w->codes + (size_t)next.row * row_bytes + (size_t)col / 2 - (size_t)codes;
    const int32_t in_values = col / QUANT_GROUP % VALUE_GROUPS;
    p->left = ROWS;
    p->cursor = (row_cursor){codes,
                             p->values.scales[0] + in_values,
                             p->values.biases[0] + in_values,
                             to[0][0][0],
                             row_bytes,
                             ahead};
}

/* Asks for the first rows of all, in the order in which blocks read them: one after the other, as
 * they are missed, they would take several times as long. */
static void ask_for_first(const pipeline *p)
{
    const matrix *w = p->matrices[0];
    const int32_t left = p->end - p->row, n_rows = left < ROWS ? left : ROWS;
    const size_t row_bytes = (size_t)w->cols / 2;
    const char *codes = (const char *)w->codes + (size_t)p->row * row_bytes;
    prefetch_values(w, p->row, n_rows);
    for (size_t at = 0; at < row_bytes; at += LINE)
        for (int32_t i = 0; i < n_rows; i++)
            _mm_prefetch(codes + (size_t)i * row_bytes + at, _MM_HINT_T1);
}

/* Dequantises what block `number` and those before it lack. */
static void complete_block(pipeline *p, int32_t number)
{
    while (p->left > 0 || p->number <= number)
        if (p->left == 0)
            begin_block(p);
        else if (p->number <= number + 1)
            for (; p->left > 0; p->left--) load_rows(&p->cursor, 1);
        else
            return; /* it is a later one that is not complete */
}

/* ---- products ---- */

/* Functions of their own: inlined side by side they are short of registers. */
#define MULTIPLY_BESIDE(n_tiles)                                                                   \
    static __attribute__((noinline)) void multiply_beside_##n_tiles(                               \
        weight_step *weights, const uint16_t *inputs, size_t tile_elements, row_cursor *c)         \
    {                                                                                              \
        multiply_beside(weights, inputs, n_tiles, tile_elements, c, 1);                            \
    }
MULTIPLY_BESIDE(2)
MULTIPLY_BESIDE(1)

/* n_steps steps of a block; beside all four SHARE rows are dequantised, if `share` says so. */
static void multiply_block(pipeline *p, weight_step *weights, int32_t n_steps,
                           const uint16_t *inputs, int n_tiles, bool share)
{
    const size_t tile_elements = (size_t)p->matrices[0]->cols * TILE;
    const bool beside = share && n_steps == PAIR_STEPS && p->left >= SHARE;
    if (beside && n_tiles == 2)
        multiply_beside_2(weights, inputs, tile_elements, &p->cursor);
    else if (beside)
        multiply_beside_1(weights, inputs, tile_elements, &p->cursor);
    else if (n_tiles == 2)
        multiply(weights, n_steps, inputs, 2, tile_elements);
    else
        multiply(weights, n_steps, inputs, 1, tile_elements);
    if (beside) p->left -= SHARE;
    settle_memory();
}

/* The sums of ROWS rows, whose first block has number `first`, and of n inputs. */
static void multiply_middling(pipeline *p, int32_t first, const uint16_t *packed, int32_t n,
                              pair_sums *sums)
{
    const int32_t cols = p->matrices[0]->cols, n_tiles = (n + TILE - 1) / TILE,
                  n_passes = (n_tiles + PAIR_TILES - 1) / PAIR_TILES;
    for (int32_t col = 0; col < cols; col += 2 * PAIR) {
        const int32_t end = cols - col < 2 * PAIR ? cols : col + 2 * PAIR;
        for (int32_t i = 0; i < n_passes; i++) {
            const int32_t tiles = n_tiles - i * PAIR_TILES < PAIR_TILES ? 1 : PAIR_TILES;
            const bool last_pass = i == n_passes - 1;
            if (col == 0)
                zero_sums();
            else
                load_sums(sums[i]);
            for (int32_t at = col; at < end; at += PAIR) {
                const int32_t number = first + at / PAIR, in_use = last_pass ? at : col;
                const int32_t n_steps = (end - at < PAIR ? end - at : PAIR) / STEP;
                /* Two blocks are to come while two are multiplied: the first one in the second
                 * half of the first pass and the first half of the second, the other one, into
                 * the place of a block of these two, around the change to the next two. */
                const bool share = at == col ? i < 2 : i == 0 || last_pass;
                complete_block(p, number);
                if (p->left == 0 && p->number < first + in_use / PAIR + BLOCKS) begin_block(p);
                multiply_block(p, p->blocks[number % BLOCKS], n_steps,
                               packed + ((size_t)at + (size_t)i * PAIR_TILES * (size_t)cols) * TILE,
                               tiles, share);
            }
            store_sums(sums[i]);
        }
    }
}

/* For rows [begin, end) of one matrix, or of two with `second`. */
static void start(pipeline *p, const matrix *first, const matrix *second, int32_t begin,
                  int32_t end)
{
    p->matrices[0] = first;
    p->matrices[1] = second;
    p->n_matrices = second ? 2 : 1;
    p->row = begin;
    p->end = end;
    p->number = p->matrix = p->col = p->left = 0;
    ask_for_first(p);
}

void gemm_middling_amx(const matrix *w, int32_t begin, int32_t end, const uint16_t *packed,
                       int32_t n, float *y, int64_t y_stride)
{
    _Alignas(64) pair_sums sums[PASSES];
    pipeline p;
    start(&p, w, NULL, begin, end);
    for (int32_t row = begin, number = 0; row < end; row += ROWS) {
        multiply_middling(&p, number, packed, n, sums);
        write_sums(sums, end - row < ROWS ? end - row : ROWS, n, y + row, y_stride);
        number += (w->cols + PAIR - 1) / PAIR;
    }
}

void gemm_gated_middling_amx(const matrix *gate, const matrix *up, const uint16_t *packed,
                             int32_t n, uint16_t *out)
{
    _Alignas(64) pair_sums gates[PASSES], ups[PASSES];
    const int32_t width = gate->rows, n_blocks = (gate->cols + PAIR - 1) / PAIR;
    pipeline p;
    start(&p, gate, up, 0, width);
    for (int32_t row = 0, number = 0; row < width; row += ROWS, number += 2 * n_blocks) {
        multiply_middling(&p, number, packed, n, gates);
        multiply_middling(&p, number + n_blocks, packed, n, ups);
        pack_gated_rows(gates, ups, row, width, n, out);
    }
}
