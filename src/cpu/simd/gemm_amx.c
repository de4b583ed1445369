/* Matrix times many rows on AMX tiles in bfloat16, f32 sums: the counterpart of gemm_bf16_c.
 *
 * y^T = W x^T: a tile A is 16 weight rows by 32 columns, dequantised as bf16; a tile B is 32
 * columns by 16 inputs, packed once per layer input; the sums are 16 rows by 16 inputs. A product
 * of two tiles takes 16 cycles: 512 multiply-adds a cycle. Two row tiles meet two tiles of inputs,
 * four products for four loads: in 64 cycles L2 gives 2 KB of inputs and L1 2 KB of weights.
 *
 * 32 rows by 256 columns are dequantised, 16 KB, and multiplied with all inputs before the next:
 * small enough to stay in L1 beside the inputs that stream through it, loaded as what will not be
 * needed again. What limits all of this is the way between L1 and L2, half a line a cycle, so
 * weights written to L2, or dequantised into a second buffer of that size, which L1 does not hold
 * as well, cost more than they save. Where there are 32 inputs or less, blocks of 128 columns do,
 * and the next one is dequantised between the products of this one, two rows after each. The codes
 * of the 32 rows after these are asked for while these are dequantised, a line at a time: left to
 * the hardware, which stops at every page, they come at half the rate.
 *
 * A sum runs over its columns in one order, whatever the number of inputs and wherever they stand.
 */
#include "base/numbers.h"
#include "cpu/simd/dequantize_amx.h"

#include <assert.h>

enum {
    PAIR_TILES = 2,                  /* tiles of inputs at a time */
    PAIR_INPUTS = PAIR_TILES * TILE, /* inputs at a time */
    FEW_INPUTS = PAIR_INPUTS,        /* so many or less in blocks of a pair of groups */
    BLOCK_INPUTS = 256, /* inputs per pass over the weights: 1 MB of 2,048 columns in L2 */
    BLOCK_PAIRS = BLOCK_INPUTS / PAIR_INPUTS,
};

/* ---- packing ---- */

/* 64 inputs of one row as four vectors of 16: columns 4 l + j in out[j]. */
ALWAYS_INLINE void split_group(const float *x, __m512 out[4])
{
    const __m512i low = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
    __m512 c = _mm512_loadu_ps(x + 32), d = _mm512_loadu_ps(x + 48);
    for (int j = 0; j < 4; j++) {
        __m512i index = _mm512_add_epi32(low, _mm512_set1_epi32(j));
        __m512 ab = _mm512_permutex2var_ps(a, index, b), cd = _mm512_permutex2var_ps(c, index, d);
        out[j] = _mm512_mask_blend_ps(0xff00, ab, cd);
    }
}

/* The steps of one row: n_groups 2 (four of them) or 1 (two); x NULL gives zeros. */
ALWAYS_INLINE void split_steps(const float *x, int32_t n_groups, __m512i step[4])
{
    __m512 first[4], second[4];
    for (int j = 0; j < 4; j++) step[j] = _mm512_setzero_si512();
    if (!x) return;
    split_group(x, first);
    if (n_groups == 2) {
        split_group(x + QUANT_GROUP, second);
        for (int j = 0; j < 4; j++) step[j] = (__m512i)_mm512_cvtne2ps_pbh(second[j], first[j]);
    } else {
        for (int j = 0; j < 2; j++)
            step[j] = (__m512i)_mm512_cvtne2ps_pbh(first[2 * j + 1], first[2 * j]);
    }
}

/* [tile][step][16 pairs of columns][16 inputs][2] bf16 */
void pack_input_bf16_amx(const float *x, int64_t x_stride, const int32_t *rows, int32_t n,
                         int32_t cols, void *packed)
{
    uint16_t *out = packed;
    for (int32_t i = 0; i < n; i += TILE) {
        for (int32_t c = 0; c < cols; c += PAIR) {
            int32_t n_groups = cols - c < PAIR ? 1 : 2;
            __m512i steps[4][TILE];
            for (int l = 0; l < TILE; l++) {
                __m512i step[4];
                const float *row = NULL;
                if (i + l < n) row = x + (rows ? rows[i + l] : i + l) * x_stride + c;
                split_steps(row, n_groups, step);
                for (int j = 0; j < 4; j++) steps[j][l] = step[j];
            }
            for (int j = 0; j < 2 * n_groups; j++, out += TILE_ELEMENTS) {
                transpose_words(steps[j]);
                for (int l = 0; l < TILE; l++) _mm512_store_si512(out + l * STEP, steps[j][l]);
            }
        }
    }
}

/* ---- products ---- */

typedef float sum_tile[TILE][TILE];                /* [row][input] */
typedef sum_tile pair_sums[ROW_TILES][PAIR_TILES]; /* of a pair of input tiles */

/* Tiles 0 to 3 += two row tiles x n_tiles (1 or 2, a constant) input tiles, which are
 * tile_elements apart. */
ALWAYS_INLINE void multiply(weight_block weights, int32_t n_steps, const uint16_t *inputs,
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

ALWAYS_INLINE void load_sums(pair_sums sums)
{
    _tile_loadd(0, sums[0][0], 64);
    _tile_loadd(1, sums[0][1], 64);
    _tile_loadd(2, sums[1][0], 64);
    _tile_loadd(3, sums[1][1], 64);
}

ALWAYS_INLINE void zero_sums(void)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

ALWAYS_INLINE void store_sums(pair_sums sums)
{
    _tile_stored(0, sums[0][0], 64);
    _tile_stored(1, sums[0][1], 64);
    _tile_stored(2, sums[1][0], 64);
    _tile_stored(3, sums[1][1], 64);
    settle_memory();
}

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
        bool first = col == 0, last = col + n_cols == w->cols;
        if (col % (VALUE_GROUPS * QUANT_GROUP) == 0) widen_groups(w, row, n_rows, col, &values);
        dequantize_block(w, row, n_rows, n_next, col, n_cols, &values, weights);
        const uint16_t *inputs = packed + (size_t)col * TILE;
        for (int32_t i = 0; i < n_pairs; i++, inputs += PAIR_TILES * tile_elements) {
            if (first)
                zero_sums();
            else if (n_pairs > 1)
                load_sums(sums[i]); /* a single pair's sums stay in place */
            if (n - i * PAIR_INPUTS > TILE)
                multiply(weights, n_cols / STEP, inputs, 2, tile_elements);
            else
                multiply(weights, n_cols / STEP, inputs, 1, tile_elements);
            if (n_pairs > 1 || last) store_sums(sums[i]);
        }
    }
}

/* ---- few inputs ---- */

/* Where one pair of input tiles is all, dequantising takes as long as the products: it is done
 * beside them, a block of 128 columns ahead. The sums stay in their tiles. */
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

/* The next row of a block ahead that is dequantised beside products. */
typedef struct row_cursor {
    const uint8_t *codes;
    const float *scales, *biases;
    uint16_t *to;
    size_t row_bytes, ahead;
} row_cursor;

ALWAYS_INLINE void load_rows(row_cursor *c, int n)
{
    UNROLL for (int i = 0; i < n; i++)
    {
        _mm_prefetch((const char *)c->codes + c->ahead, _MM_HINT_T1);
        load_pair(c->codes, c->scales, c->biases, c->to);
        c->codes += c->row_bytes;
        c->scales += VALUE_GROUPS;
        c->biases += VALUE_GROUPS;
        c->to += STEP;
        settle_memory();
    }
}

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

/* Tiles 0 to 3 += two row tiles x n_tiles (1 or 2, a constant) input tiles over a block of 128
 * columns, while the cursor's block is dequantised. */
ALWAYS_INLINE void multiply_and_load(weight_block weights, const uint16_t *inputs, int n_tiles,
                                     size_t tile_elements, row_cursor from)
{
    enum { PAIR_STEPS = PAIR / STEP, AT_ONCE = ROWS / PAIR_STEPS / 4 };
    row_cursor c = from;
    for (int32_t s = 0; s < PAIR_STEPS; s++) {
        _tile_loadd(4, weights[s][0], 64);
        _tile_stream_loadd(6, inputs + s * TILE_ELEMENTS, 64);
        if (n_tiles == 2) _tile_stream_loadd(7, inputs + tile_elements + s * TILE_ELEMENTS, 64);
        _tile_loadd(5, weights[s][1], 64);
        _tile_dpbf16ps(0, 4, 6);
        load_rows(&c, AT_ONCE);
        _tile_dpbf16ps(2, 5, 6);
        load_rows(&c, AT_ONCE);
        if (n_tiles == 2) _tile_dpbf16ps(1, 4, 7);
        load_rows(&c, AT_ONCE);
        if (n_tiles == 2) _tile_dpbf16ps(3, 5, 7);
        load_rows(&c, AT_ONCE);
    }
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
        if (beside && n_steps < PAIR / STEP) {
            load_rows(&c, ROWS);
            beside = false;
        }
        uint16_t(*weights)[ROW_TILES][TILE][STEP] = p->blocks[p->turn];
        if (beside && n > TILE)
            multiply_and_load(weights, inputs, 2, tile_elements, c);
        else if (beside)
            multiply_and_load(weights, inputs, 1, tile_elements, c);
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

/* ---- what becomes of the sums ---- */

/* 16 values of a row of y, past the caches if they fill a line: y is far larger, and its lines
 * would be read first only to be overwritten. */
ALWAYS_INLINE void write_line(float *y, __m512i v, int32_t n)
{
    if (n >= TILE && (uintptr_t)y % LINE == 0)
        _mm512_stream_si512((__m512i *)(void *)y, v);
    else
        _mm512_mask_storeu_epi32(y, (__mmask16)((1u << (n < TILE ? n : TILE)) - 1), v);
}

/* y[l][0 ... n_rows) from the sums of n inputs. */
static void write_sums(pair_sums *sums, int32_t n_rows, int32_t n, float *y, int64_t y_stride)
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
                write_line(y + (t * TILE + l) * y_stride + h * TILE, v[h][l], n_rows - h * TILE);
    }
}

static void gemm_few(const matrix *w, int32_t begin, int32_t end, const uint16_t *packed, int32_t n,
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
            gemm_few(w, begin, end, x, n_inputs, y + i * y_stride, y_stride);
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
static void pack_gated(sum_tile gate, sum_tile up, int32_t row, int32_t n_rows, uint16_t *packed)
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
static void pack_gated_rows(pair_sums *gates, pair_sums *ups, int32_t row, int32_t n_rows,
                            int32_t n, uint16_t *packed)
{
    for (int32_t t = 0; t * TILE < n; t++)
        for (int r = 0; r < ROW_TILES; r++)
            pack_gated(gates[t / PAIR_TILES][r][t % PAIR_TILES],
                       ups[t / PAIR_TILES][r][t % PAIR_TILES], row + r * TILE, n_rows,
                       packed + (size_t)t * TILE * (size_t)n_rows);
}

static void gemm_gated_few(const matrix *gate, const matrix *up, const uint16_t *packed, int32_t n,
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
            gemm_gated_few(gate, up, x, n_inputs, h);
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
