/* Matrix times many rows on AMX tiles in bfloat16, f32 sums: the counterpart of gemm_bf16_c.
 *
 * y^T = W x^T: a tile A is 16 weight rows by 32 columns, dequantised as bf16; a tile B is 32
 * columns by 16 inputs, packed once per layer input; the sums are 16 rows by 16 inputs. A product
 * of two tiles takes 16 cycles: 512 multiply-adds a cycle. Two row tiles meet two tiles of inputs,
 * four products for four loads: in 64 cycles L2 gives 2 KB of inputs and L1 2 KB of weights.
 *
 * 32 rows by 256 columns are dequantised, 16 KB, and multiplied with all inputs before the next:
 * small enough to stay in L1 beside the inputs that stream through it. What limits all of this is
 * the way between L1 and L2, half a line a cycle, so weights written to L2, or dequantised between
 * the products into a second buffer, which L1 does not hold as well, cost more than they save. The
 * codes of the 32 rows after these are asked for while these are dequantised, a line at a time:
 * left to the hardware, which stops at every page, they come at half the rate.
 *
 * Dequantising: a 16-bit word of codes holds four columns. The 32 words of two groups, shifted by
 * 0, 4, 8 or 12 bits, are indices into a table of 2 x 16 bf16 values, the upper half for the second
 * group: one look-up (vpermw) gives 32 weights. So the columns of a step are 4 l + j of one group
 * and 4 l + j of the next, l < 16, and the inputs are packed in that order. About 20 instructions
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
    PAIR_TILES = 2,                  /* tiles of inputs at a time */
    PAIR_INPUTS = PAIR_TILES * TILE, /* inputs at a time */
    ROWS = ROW_TILES * TILE,         /* weight rows at a time */
    COLS = 256,                      /* columns dequantised at a time */
    STEPS = COLS / STEP,
    PAIR = 2 * QUANT_GROUP, /* columns of a pair of groups: four steps */
    BLOCK_INPUTS = 256,     /* inputs per pass over the weights: 1 MB of 2,048 columns in L2 */
    BLOCK_PAIRS = BLOCK_INPUTS / PAIR_INPUTS,
    VALUE_GROUPS = 16, /* groups of a row whose scales are widened at a time */
    LINE = 64,
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

/* f32 scales and biases of ROWS rows' next groups: one conversion for 16 where each pair of groups
 * would need four instructions of the two ports that dequantising is limited by. */
typedef struct group_values {
    float scales[ROWS][VALUE_GROUPS], biases[ROWS][VALUE_GROUPS];
} group_values;

ALWAYS_INLINE __m512 widen_bf16(const mapped_bf16 *p, __mmask16 mask)
{
    __m256i x = _mm256_maskz_loadu_epi16(mask, p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

/* Of n_rows rows from `row` on, the groups from column `col` on. */
static void widen_groups(const matrix *w, int32_t row, int32_t n_rows, int32_t col,
                         group_values *out)
{
    int32_t groups = (w->cols - col) / QUANT_GROUP;
    __mmask16 mask = groups < VALUE_GROUPS ? (__mmask16)((1u << groups) - 1) : 0xffff;
    size_t first = ((size_t)row * (size_t)w->cols + (size_t)col) / QUANT_GROUP;
    for (int32_t i = 0; i < n_rows; i++, first += (size_t)w->cols / QUANT_GROUP) {
        _mm512_store_ps(out->scales[i], widen_bf16(w->scales + first, mask));
        _mm512_store_ps(out->biases[i], widen_bf16(w->biases + first, mask));
    }
}

/* A group's values in f32, by code. */
ALWAYS_INLINE __m512 code_values(float scale, float bias)
{
    const __m512 iota = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_fmadd_ps(iota, _mm512_set1_ps(scale), _mm512_set1_ps(bias));
}

/* 128 columns of a row, two groups, four steps; scales and biases of the two. */
ALWAYS_INLINE void load_pair(const uint8_t *codes, const float *scales, const float *biases,
                             uint16_t *out)
{
    const __m512i low = _mm512_set1_epi16(15);
    /* Words of the second group look into the upper half of the table. */
    const __m512i half = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(16), 1);
    __m512i table = (__m512i)_mm512_cvtne2ps_pbh(code_values(scales[1], biases[1]),
                                                 code_values(scales[0], biases[0]));
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
    const __m512i low = _mm512_set1_epi16(15);
    const __m512i shift = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(4), 1);
    __m512 values = code_values(scale, bias);
    __m512i table = (__m512i)_mm512_cvtne2ps_pbh(values, values);
    __m512i v = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(const void *)codes));
    __m512i i0 = _mm512_and_si512(_mm512_srlv_epi16(v, shift), low);
    __m512i i1 = _mm512_and_si512(_mm512_srlv_epi16(_mm512_srli_epi16(v, 8), shift), low);
    _mm512_store_si512(out, _mm512_permutexvar_epi16(i0, table));
    _mm512_store_si512(out + STEP_STRIDE, _mm512_permutexvar_epi16(i1, table));
}

/* Rows [row, row + n_rows), up to ROWS, of columns [col, col + n_cols), up to COLS; the block's
 * further rows are zeros. The same columns of n_next rows behind the block are asked for. */
static void dequantize_block(const matrix *w, int32_t row, int32_t n_rows, int32_t n_next,
                             int32_t col, int32_t n_cols, const group_values *values,
                             weight_block out)
{
    const size_t ahead = (size_t)ROWS * (size_t)w->cols / 2;
    const int32_t in_values = col / QUANT_GROUP % VALUE_GROUPS;
    for (int32_t i = 0; i < n_rows; i++) {
        size_t group = ((size_t)(row + i) * (size_t)w->cols + (size_t)col) / QUANT_GROUP;
        const uint8_t *codes = (const uint8_t *)w->codes + group * (QUANT_GROUP / 2);
        const float *scales = values->scales[i] + in_values,
                    *biases = values->biases[i] + in_values;
        uint16_t *to = out[0][i / TILE][i % TILE];
        int32_t left = n_cols / QUANT_GROUP;
        for (; left > 1; left -= 2) {
            if (i < n_next) _mm_prefetch((const char *)codes + ahead, _MM_HINT_T1);
            load_pair(codes, scales, biases, to);
            codes += QUANT_GROUP; /* the bytes of two groups */
            scales += 2;
            biases += 2;
            to += 4 * STEP_STRIDE;
        }
        if (left) load_last_group(codes, *scales, *biases, to);
    }
    for (int32_t i = n_rows; i < ROWS; i++)
        for (int32_t s = 0; s < n_cols / STEP; s++)
            memset(out[s][i / TILE][i % TILE], 0, STEP * sizeof(uint16_t));
    settle_memory();
}

/* Asks for the scales and biases of n_rows rows from `row` on. */
static void prefetch_values(const matrix *w, int32_t row, int32_t n_rows)
{
    size_t groups = (size_t)w->cols / QUANT_GROUP, first = (size_t)row * groups;
    for (size_t i = 0; n_rows > 0 && i < (size_t)n_rows * groups; i += LINE / sizeof(mapped_bf16)) {
        _mm_prefetch((const char *)(w->scales + first + i), _MM_HINT_T1);
        _mm_prefetch((const char *)(w->biases + first + i), _MM_HINT_T1);
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
        _tile_loadd(6, inputs + s * TILE_ELEMENTS, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, weights[s][1], 64);
        _tile_dpbf16ps(2, 5, 6);
        if (n_tiles == 2) {
            _tile_loadd(7, inputs + tile_elements + s * TILE_ELEMENTS, 64);
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

void gemm_bf16_amx(const matrix *w, int32_t begin, int32_t end, const void *packed, int32_t n,
                   float *y, int64_t y_stride)
{
    assert(w->format == MATRIX_Q4);
    _Alignas(64) pair_sums sums[BLOCK_PAIRS];
    configure_tiles();
    for (int32_t i = 0; i < n; i += BLOCK_INPUTS) {
        const uint16_t *x = (const uint16_t *)packed + (size_t)i * (size_t)w->cols;
        int32_t n_inputs = n - i < BLOCK_INPUTS ? n - i : BLOCK_INPUTS;
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
        for (int32_t row = 0; row < width; row += ROWS) {
            multiply_rows(gate, row, width, x, n_inputs, gates);
            multiply_rows(up, row, width, x, n_inputs, ups);
            for (int32_t t = 0; t * TILE < n_inputs; t++)
                for (int r = 0; r < ROW_TILES; r++)
                    pack_gated(gates[t / PAIR_TILES][r][t % PAIR_TILES],
                               ups[t / PAIR_TILES][r][t % PAIR_TILES], row + r * TILE, width,
                               h + (size_t)t * TILE * (size_t)width);
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
