/* Matrix times many rows on AMX tiles in bfloat16, f32 sums: the counterpart of gemm_bf16_c.
 *
 * y^T = W x^T: a tile A is 16 weight rows by 32 columns, dequantised as bf16; a tile B is 32
 * columns by 16 inputs, packed once per layer input; the sums are 16 rows by 16 inputs. A product
 * of two tiles takes 16 cycles: 512 multiply-adds a cycle. Two row tiles meet two tiles of inputs,
 * four products for four loads: in 64 cycles L2 gives 2 KB of inputs and 2 KB of weights. Between
 * the products the next block of weights is dequantised into a second buffer: vector units and tile
 * unit work at the same time, so the longer of the two is what counts.
 *
 * Dequantising: a 16-bit word of codes holds four columns. The 32 words of two groups, shifted by
 * 0, 4, 8 or 12 bits, are indices into a table of 2 x 16 bf16 values, the upper half for the second
 * group: one look-up (vpermw) gives 32 weights. So the columns of a step are 4 l + j of one group
 * and 4 l + j of the next, l < 16, and the inputs are packed in that order. About 24 instructions
 * for 128 weights, shared by all inputs. An odd last group takes two steps of its own.
 *
 * A sum runs over its columns in one order, whatever the number of inputs and wherever they stand.
 */
#include "base/numbers.h"
#include "cpu/simd/amx.h"

#include <assert.h>
#include <string.h>

enum {
    ROW_TILES = 2,
    PAIR_TILES = 2,          /* tiles of inputs at a time */
    ROWS = ROW_TILES * TILE, /* weight rows at a time */
    COLS = 1024,             /* columns dequantised at a time: 64 KB with ROWS, in L2 */
    STEPS = COLS / STEP,
    PAIR = 2 * QUANT_GROUP, /* columns of a pair of groups: four steps */
    BLOCK_INPUTS = 128,     /* inputs per pass over the weights: 0.5 MB per block in L2 */
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

/* ---- dequantisation ---- */

/* Weights of ROWS rows by COLS columns: [step][row tile][16][32]. */
typedef uint16_t weight_block[STEPS][ROW_TILES][TILE][STEP];
enum { STEP_STRIDE = ROW_TILES * TILE_ELEMENTS }; /* elements from one step to the next */

/* A block of a matrix: rows [row, row + n_rows), up to ROWS; columns [col, col + n_cols), up to
 * COLS. */
typedef struct block_source {
    const matrix *w;
    int32_t row, n_rows, col, n_cols;
    weight_block *out;
} block_source;

/* How much of a block is in `out`: along the row, then the next row, which is the order in which
 * they lie in memory if the block is as wide as the matrix. Kept in registers: what stores tell the
 * compiler about memory would have it reload a structure after each. */
typedef struct block_cursor {
    int32_t next_row, groups_left; /* of the row at hand */
    const uint8_t *codes;
    const mapped_bf16 *scales, *biases;
    uint16_t *to;
} block_cursor;

/* Two groups' scales or biases, as every lane's upper and lower half. */
ALWAYS_INLINE __m512i broadcast_two(const mapped_bf16 *p)
{
    int32_t two;
    memcpy(&two, p, sizeof two);
    return _mm512_set1_epi32(two);
}
ALWAYS_INLINE __m512 lower_bf16(__m512i two)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(two, 16));
}
ALWAYS_INLINE __m512 upper_bf16(__m512i two)
{
    return _mm512_castsi512_ps(_mm512_and_si512(two, _mm512_set1_epi32((int)0xffff0000)));
}

/* 128 columns of a row, two groups, four steps. */
ALWAYS_INLINE void load_pair(const uint8_t *codes, const mapped_bf16 *scales,
                             const mapped_bf16 *biases, uint16_t *out)
{
    const __m512 iota = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i low = _mm512_set1_epi16(15);
    /* Words of the second group look into the upper half of the table. */
    const __m512i half = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(16), 1);
    __m512i scale = broadcast_two(scales), bias = broadcast_two(biases);
    __m512 first = _mm512_fmadd_ps(iota, lower_bf16(scale), lower_bf16(bias));
    __m512 second = _mm512_fmadd_ps(iota, upper_bf16(scale), upper_bf16(bias));
    __m512i table = (__m512i)_mm512_cvtne2ps_pbh(second, first);
    __m512i v = _mm512_loadu_si512(codes);
    /* (v & 15) | half in one instruction */
    __m512i i0 = _mm512_ternarylogic_epi32(v, low, half, 0xea);
    __m512i i1 = _mm512_ternarylogic_epi32(_mm512_srli_epi16(v, 4), low, half, 0xea);
    __m512i i2 = _mm512_ternarylogic_epi32(_mm512_srli_epi16(v, 8), low, half, 0xea);
    __m512i i3 = _mm512_or_si512(_mm512_srli_epi16(v, 12), half);
    _mm512_store_si512(out, _mm512_permutexvar_epi16(i0, table));
    _mm512_store_si512(out + STEP_STRIDE, _mm512_permutexvar_epi16(i1, table));
    _mm512_store_si512(out + 2 * STEP_STRIDE, _mm512_permutexvar_epi16(i2, table));
    _mm512_store_si512(out + 3 * STEP_STRIDE, _mm512_permutexvar_epi16(i3, table));
}

/* 64 columns, an odd last group: two steps. */
static void load_last_group(const uint8_t *codes, float scale, float bias, uint16_t *out)
{
    const __m512 iota = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i low = _mm512_set1_epi16(15);
    const __m512i shift = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(4), 1);
    __m512 values = _mm512_fmadd_ps(iota, _mm512_set1_ps(scale), _mm512_set1_ps(bias));
    __m512i table = (__m512i)_mm512_cvtne2ps_pbh(values, values);
    __m512i v = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(const void *)codes));
    __m512i i0 = _mm512_and_si512(_mm512_srlv_epi16(v, shift), low);
    __m512i i1 = _mm512_and_si512(_mm512_srlv_epi16(_mm512_srli_epi16(v, 8), shift), low);
    _mm512_store_si512(out, _mm512_permutexvar_epi16(i0, table));
    _mm512_store_si512(out + STEP_STRIDE, _mm512_permutexvar_epi16(i1, table));
}

ALWAYS_INLINE block_cursor start_row(const block_source *b, int32_t next_row)
{
    size_t row = (size_t)(b->row + next_row);
    size_t group = (row * (size_t)b->w->cols + (size_t)b->col) / QUANT_GROUP;
    return (block_cursor){.next_row = next_row,
                          .groups_left = b->n_cols / QUANT_GROUP,
                          .codes = (const uint8_t *)b->w->codes + group * (QUANT_GROUP / 2),
                          .scales = b->w->scales + group,
                          .biases = b->w->biases + group,
                          .to = (*b->out)[0][next_row / TILE][next_row % TILE]};
}

/* At most n pairs of groups. */
ALWAYS_INLINE block_cursor load_pairs(const block_source *b, block_cursor c, int32_t n)
{
    for (int32_t i = 0; i < n && c.next_row < b->n_rows; i++) {
        if (c.groups_left > 1)
            load_pair(c.codes, c.scales, c.biases, c.to);
        else
            load_last_group(c.codes, bf16_to_f32(c.scales[0]), bf16_to_f32(c.biases[0]), c.to);
        c.codes += QUANT_GROUP; /* the bytes of two groups */
        c.scales += 2;
        c.biases += 2;
        c.to += 4 * STEP_STRIDE;
        c.groups_left -= 2;
        if (c.groups_left <= 0) c = start_row(b, c.next_row + 1);
    }
    return c;
}

/* All that is left; rows of the tiles that do not exist become zeros. */
static void load_rest(const block_source *b, block_cursor c)
{
    load_pairs(b, c, ROWS * (COLS / PAIR + 1));
    for (int32_t i = b->n_rows; i < ROWS; i++)
        for (int32_t s = 0; s < b->n_cols / STEP; s++)
            memset((*b->out)[s][i / TILE][i % TILE], 0, STEP * sizeof(uint16_t));
    settle_memory();
}

/* The block at (row, col) of the rows that end at `end`. */
static block_source block_at(const matrix *w, int32_t row, int32_t col, int32_t end,
                             weight_block *out)
{
    return (block_source){.w = w,
                          .row = row,
                          .n_rows = end - row < ROWS ? end - row : ROWS,
                          .col = col,
                          .n_cols = w->cols - col < COLS ? w->cols - col : COLS,
                          .out = out};
}

/* The one after `b`: along the columns, then down. */
static block_source next_block(const block_source *b, int32_t end, weight_block *out)
{
    int32_t col = b->col + b->n_cols;
    if (col < b->w->cols) return block_at(b->w, b->row, col, end, out);
    return block_at(b->w, b->row + ROWS, 0, end, out);
}

/* ---- products ---- */

typedef float sum_tile[TILE][TILE];                /* [row][input] */
typedef sum_tile pair_sums[ROW_TILES][PAIR_TILES]; /* of a pair of input tiles */

/* What one block of weights multiplies, and the block that is made ready meanwhile. */
typedef struct block_product {
    const weight_block *weights;
    int32_t n_steps;
    const uint16_t *inputs; /* the first tile's columns */
    size_t tile_elements;   /* from one input tile to the next */
    const block_source *next;
    int32_t pairs_per_step; /* of it, between two products */
} block_product;

/* Tiles 0 to 3 += two row tiles x n_tiles (1 or 2, a constant) input tiles. While the tile unit
 * works, the next block's rows are dequantised: the two use different units. */
ALWAYS_INLINE block_cursor multiply(const block_product *p, int n_tiles, const uint16_t *inputs,
                                    block_cursor cursor)
{
    for (int32_t s = 0; s < p->n_steps; s++) {
        _tile_loadd(4, (*p->weights)[s][0], 64);
        _tile_loadd(6, inputs + s * TILE_ELEMENTS, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, (*p->weights)[s][1], 64);
        _tile_dpbf16ps(2, 5, 6);
        if (n_tiles == 2) {
            _tile_loadd(7, inputs + p->tile_elements + s * TILE_ELEMENTS, 64);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(3, 5, 7);
        }
        cursor = load_pairs(p->next, cursor, p->pairs_per_step);
    }
    return cursor;
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

/* y[l][0 ... n_rows) from the sums of up to two tiles of inputs. */
static void write_sums(pair_sums sums, int32_t n_rows, int32_t n_inputs, float *y, int64_t y_stride)
{
    for (int32_t t = 0; t * TILE < n_inputs; t++) {
        int32_t n = n_inputs - t * TILE < TILE ? n_inputs - t * TILE : TILE;
        for (int h = 0; h * TILE < n_rows; h++) {
            __m512i v[TILE];
            for (int i = 0; i < TILE; i++) v[i] = _mm512_load_si512(sums[h][t][i]);
            transpose_words(v);
            int32_t m = n_rows - h * TILE < TILE ? n_rows - h * TILE : TILE;
            __mmask16 mask = (__mmask16)((1u << m) - 1);
            for (int32_t l = 0; l < n; l++)
                _mm512_mask_storeu_epi32(y + (t * TILE + l) * y_stride + h * TILE, mask, v[l]);
        }
    }
}

/* One block of weights times n inputs; after a row's last columns, its sums go to y. Says how much
 * of the next block is loaded. */
static block_cursor multiply_block(const block_source *b, block_product *p, int32_t n,
                                   pair_sums *sums, float *y, int64_t y_stride)
{
    const int32_t n_pairs = (n + PAIR_TILES * TILE - 1) / (PAIR_TILES * TILE);
    const bool first = b->col == 0, last = b->col + b->n_cols >= b->w->cols;
    const int32_t n_loads = ROWS * (p->next->n_cols + PAIR - 1) / PAIR,
                  steps = n_pairs * p->n_steps;
    p->pairs_per_step = (n_loads + steps - 1) / steps;
    block_cursor cursor = start_row(p->next, 0);
    for (int32_t i = 0; i < n_pairs; i++, p->inputs += PAIR_TILES * p->tile_elements) {
        int32_t n_inputs = n - i * PAIR_TILES * TILE;
        if (n_inputs > PAIR_TILES * TILE) n_inputs = PAIR_TILES * TILE;
        if (first)
            zero_sums();
        else if (n_pairs > 1)
            load_sums(sums[i]); /* a single pair's sums stay in place */
        if (n_inputs > TILE)
            cursor = multiply(p, 2, p->inputs, cursor);
        else
            cursor = multiply(p, 1, p->inputs, cursor);
        if (n_pairs > 1 || last) store_sums(sums[i]);
        if (last)
            write_sums(sums[i], b->n_rows, n_inputs, y + (int64_t)i * PAIR_TILES * TILE * y_stride,
                       y_stride);
    }
    return cursor;
}

/* Rows [begin, end) for up to BLOCK_INPUTS inputs. */
static void multiply_rows(const matrix *w, int32_t begin, int32_t end, const uint16_t *packed,
                          int32_t n, float *y, int64_t y_stride)
{
    _Alignas(64) weight_block weights[2];
    _Alignas(64) pair_sums sums[BLOCK_INPUTS / (PAIR_TILES * TILE)];
    block_source b = block_at(w, begin, 0, end, &weights[0]);
    load_rest(&b, start_row(&b, 0));
    for (int i = 1; b.row < end; i ^= 1) {
        block_source next = next_block(&b, end, &weights[i]);
        block_product p = {.weights = b.out,
                           .n_steps = b.n_cols / STEP,
                           .inputs = packed + (size_t)b.col * TILE,
                           .tile_elements = (size_t)w->cols * TILE,
                           .next = &next};
        block_cursor cursor = multiply_block(&b, &p, n, sums, y + b.row, y_stride);
        if (next.row < end) load_rest(&next, cursor);
        b = next;
    }
}

void gemm_bf16_amx(const matrix *w, int32_t begin, int32_t end, const void *packed, int32_t n,
                   float *y, int64_t y_stride)
{
    assert(w->format == MATRIX_Q4);
    configure_tiles();
    for (int32_t i = 0; i < n && begin < end; i += BLOCK_INPUTS) {
        const uint16_t *x = (const uint16_t *)packed + (size_t)i * (size_t)w->cols;
        int32_t n_inputs = n - i < BLOCK_INPUTS ? n - i : BLOCK_INPUTS;
        multiply_rows(w, begin, end, x, n_inputs, y + i * y_stride, y_stride);
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
