/* Matrix times many rows on AMX tiles in bfloat16, f32 sums: the counterpart of gemm_bf16_c.
 *
 * y^T = W x^T: a tile A is 16 weight rows by 32 columns, dequantised into L1 as bf16; a tile B is
 * 32 columns by 16 inputs, packed once per layer input; the sums are 16 rows by 16 inputs. A
 * product of two tiles takes 16 cycles: 512 multiply-adds a cycle. Four row tiles share each tile
 * of inputs, so that L2 has to give 1 KB of inputs in 64 cycles; the weights come from L1.
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
#include "cpu/kernels.h"

#include <assert.h>
#include <immintrin.h>
#include <string.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

enum {
    TILE = 16,           /* inputs, or weight rows, of a tile */
    STEP = 32,           /* columns of a product */
    TILE_ELEMENTS = 512, /* bf16, 1 KB */
    ROW_TILES = 4,
    ROWS = ROW_TILES * TILE, /* weight rows at a time */
    COLS = 256,              /* columns dequantised at a time: 32 KB with ROWS */
    STEPS = COLS / STEP,
    PAIR = 2 * QUANT_GROUP, /* columns of a pair of groups: four steps */
    BLOCK_INPUTS = 256,     /* inputs per pass over the weights */
    BLOCK_TILES = BLOCK_INPUTS / TILE,
};

/* gcc's tile intrinsics do not tell the compiler that they read or write memory: this does, between
 * what fills a buffer and the tiles that load it, and after the tiles have stored. */
ALWAYS_INLINE void settle_memory(void)
{
    __asm__ volatile("" ::: "memory");
}

static void configure_tiles(void)
{
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t column_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 8; i++) config.column_bytes[i] = 64, config.rows[i] = TILE;
    settle_memory();
    _tile_loadconfig(&config);
}

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

/* 16 x 16 dwords, rows to columns. */
static void transpose16(__m512i r[16])
{
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 8; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
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
                transpose16(steps[j]);
                for (int l = 0; l < TILE; l++) _mm512_store_si512(out + l * STEP, steps[j][l]);
            }
        }
    }
}

/* ---- dequantisation ---- */

/* Weights of ROWS rows by COLS columns: [step][row tile][16][32]. */
typedef uint16_t weight_block[STEPS][ROW_TILES][TILE][STEP];

/* The scales or biases of up to COLS / 64 groups as f32. */
ALWAYS_INLINE void widen(const mapped_bf16 *p, int32_t n, float out[COLS / QUANT_GROUP])
{
    uint64_t four = 0;
    memcpy(&four, p, (size_t)n * sizeof *p);
    __m128i wide = _mm_cvtepu16_epi32(_mm_cvtsi64_si128((long long)four));
    _mm_store_ps(out, _mm_castsi128_ps(_mm_slli_epi32(wide, 16)));
}

/* One row's columns to out[step][row tile][row], the steps n_groups * 2. */
ALWAYS_INLINE void load_row(const uint8_t *codes, const mapped_bf16 *scales,
                            const mapped_bf16 *biases, int32_t n_groups, weight_block out,
                            int32_t row)
{
    const __m512 iota = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i low = _mm512_set1_epi16(15);
    /* Words of the second group look into the upper half of the table. */
    const __m512i half = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(16), 1);
    _Alignas(16) float scale[COLS / QUANT_GROUP], bias[COLS / QUANT_GROUP];
    widen(scales, n_groups, scale);
    widen(biases, n_groups, bias);
    settle_memory(); /* so that they are broadcast by loads: the shuffle port is what limits this */
    int tile = row / TILE, line = row % TILE;
    int32_t g = 0;
    for (; g + 2 <= n_groups; g += 2, codes += QUANT_GROUP) {
        __m512 first = _mm512_fmadd_ps(iota, _mm512_set1_ps(scale[g]), _mm512_set1_ps(bias[g]));
        __m512 second =
            _mm512_fmadd_ps(iota, _mm512_set1_ps(scale[g + 1]), _mm512_set1_ps(bias[g + 1]));
        __m512i table = (__m512i)_mm512_cvtne2ps_pbh(second, first);
        __m512i v = _mm512_loadu_si512(codes);
        /* (v & 15) | half in one instruction */
        __m512i i0 = _mm512_ternarylogic_epi32(v, low, half, 0xea);
        __m512i i1 = _mm512_ternarylogic_epi32(_mm512_srli_epi16(v, 4), low, half, 0xea);
        __m512i i2 = _mm512_ternarylogic_epi32(_mm512_srli_epi16(v, 8), low, half, 0xea);
        __m512i i3 = _mm512_or_si512(_mm512_srli_epi16(v, 12), half);
        _mm512_store_si512(out[2 * g][tile][line], _mm512_permutexvar_epi16(i0, table));
        _mm512_store_si512(out[2 * g + 1][tile][line], _mm512_permutexvar_epi16(i1, table));
        _mm512_store_si512(out[2 * g + 2][tile][line], _mm512_permutexvar_epi16(i2, table));
        _mm512_store_si512(out[2 * g + 3][tile][line], _mm512_permutexvar_epi16(i3, table));
    }
    if (g < n_groups) {
        __m512 values = _mm512_fmadd_ps(iota, _mm512_set1_ps(scale[g]), _mm512_set1_ps(bias[g]));
        __m512i table = (__m512i)_mm512_cvtne2ps_pbh(values, values);
        __m512i v =
            _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(const void *)codes));
        const __m512i shift = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(4), 1);
        __m512i i0 = _mm512_and_si512(_mm512_srlv_epi16(v, shift), low);
        __m512i i1 = _mm512_and_si512(_mm512_srlv_epi16(_mm512_srli_epi16(v, 8), shift), low);
        _mm512_store_si512(out[2 * g][tile][line], _mm512_permutexvar_epi16(i0, table));
        _mm512_store_si512(out[2 * g + 1][tile][line], _mm512_permutexvar_epi16(i1, table));
    }
}

/* Rows [r, r + n_rows), columns [c, c + n_cols); asks the cache for what comes next. */
static void load_weights(const matrix *w, int32_t r, int32_t n_rows, int32_t c, int32_t n_cols,
                         weight_block out)
{
    size_t row_bytes = (size_t)w->cols / 2, row_groups = (size_t)w->cols / QUANT_GROUP;
    bool last = c + n_cols >= w->cols;
    const uint8_t *codes = (const uint8_t *)w->codes + (size_t)r * row_bytes + c / 2;
    size_t group = (size_t)r * row_groups + (size_t)c / QUANT_GROUP;
    /* The next columns of a row, or the first of the same row of the next block. */
    size_t next = last ? (size_t)ROWS * row_bytes - (size_t)c / 2 : (size_t)n_cols / 2;
    for (int32_t i = 0; i < n_rows; i++, codes += row_bytes, group += row_groups) {
        _mm_prefetch((const char *)codes + next, _MM_HINT_T0);
        _mm_prefetch((const char *)codes + next + 64, _MM_HINT_T0);
        if (c == 0) {
            _mm_prefetch((const char *)(w->scales + group + ROWS * row_groups), _MM_HINT_T0);
            _mm_prefetch((const char *)(w->biases + group + ROWS * row_groups), _MM_HINT_T0);
        }
        load_row(codes, w->scales + group, w->biases + group, n_cols / QUANT_GROUP, out, i);
    }
    int32_t padded = (n_rows + TILE - 1) / TILE * TILE;
    for (int32_t i = n_rows; i < padded; i++)
        for (int s = 0; s < n_cols / STEP; s++) memset(out[s][i / TILE][i % TILE], 0, 64);
}

/* ---- products ---- */

typedef float sum_tile[TILE][TILE]; /* [row][input] */

/* Tiles 0 to 3 += (n_row_tiles row tiles, a constant) x (one input tile) over n_steps steps. */
ALWAYS_INLINE void multiply(const weight_block w, int n_row_tiles, int32_t n_steps,
                            const uint16_t *inputs)
{
    for (int32_t s = 0; s < n_steps; s++) {
        _tile_loadd(4, inputs + s * TILE_ELEMENTS, 64);
        _tile_loadd(5, w[s][0], 64);
        _tile_dpbf16ps(0, 5, 4);
        if (n_row_tiles == 1) continue;
        _tile_loadd(6, w[s][1], 64);
        _tile_dpbf16ps(1, 6, 4);
        if (n_row_tiles == 2) continue;
        _tile_loadd(7, w[s][2], 64);
        _tile_dpbf16ps(2, 7, 4);
        if (n_row_tiles == 3) continue;
        _tile_loadd(5, w[s][3], 64);
        _tile_dpbf16ps(3, 5, 4);
    }
}

/* Sums of one input tile; those of row tiles that do not exist are carried along, unused. */
typedef sum_tile input_sums[ROW_TILES];

ALWAYS_INLINE void load_sums(input_sums sums)
{
    _tile_loadd(0, sums[0], 64);
    _tile_loadd(1, sums[1], 64);
    _tile_loadd(2, sums[2], 64);
    _tile_loadd(3, sums[3], 64);
}

ALWAYS_INLINE void zero_sums(void)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

ALWAYS_INLINE void store_sums(input_sums sums)
{
    _tile_stored(0, sums[0], 64);
    _tile_stored(1, sums[1], 64);
    _tile_stored(2, sums[2], 64);
    _tile_stored(3, sums[3], 64);
    settle_memory();
}

/* y[l][0 ... n_rows) from the sums of a tile of inputs. */
static void write_sums(input_sums sums, int32_t n_rows, int32_t n_inputs, float *y,
                       int64_t y_stride)
{
    for (int h = 0; h * TILE < n_rows; h++) {
        __m512i v[TILE];
        for (int i = 0; i < TILE; i++) v[i] = _mm512_load_si512(sums[h][i]);
        transpose16(v);
        int32_t m = n_rows - h * TILE < TILE ? n_rows - h * TILE : TILE;
        __mmask16 mask = (__mmask16)((1u << m) - 1);
        for (int32_t l = 0; l < n_inputs; l++)
            _mm512_mask_storeu_epi32(y + l * y_stride + h * TILE, mask, v[l]);
    }
}

/* Up to ROWS rows for up to BLOCK_INPUTS inputs. */
static void multiply_rows(const matrix *w, int32_t r, int32_t n_rows, const uint16_t *packed,
                          int32_t n, float *y, int64_t y_stride)
{
    _Alignas(64) weight_block weights;
    _Alignas(64) input_sums sums[BLOCK_TILES];
    int32_t n_tiles = (n + TILE - 1) / TILE, n_row_tiles = (n_rows + TILE - 1) / TILE;
    size_t tile_elements = (size_t)w->cols * TILE;
    for (int32_t c = 0; c < w->cols; c += COLS) {
        int32_t n_cols = w->cols - c < COLS ? w->cols - c : COLS;
        load_weights(w, r, n_rows, c, n_cols, weights);
        settle_memory();
        for (int32_t t = 0; t < n_tiles; t++) {
            if (c == 0)
                zero_sums();
            else if (n_tiles > 1)
                load_sums(sums[t]); /* a single tile's sums stay in place */
            const uint16_t *inputs = packed + (size_t)t * tile_elements + (size_t)c * TILE;
            switch (n_row_tiles) {
            case 1:
                multiply(weights, 1, n_cols / STEP, inputs);
                break;
            case 2:
                multiply(weights, 2, n_cols / STEP, inputs);
                break;
            case 3:
                multiply(weights, 3, n_cols / STEP, inputs);
                break;
            default:
                multiply(weights, 4, n_cols / STEP, inputs);
                break;
            }
            if (n_tiles > 1) store_sums(sums[t]);
        }
    }
    if (n_tiles == 1) store_sums(sums[0]);
    for (int32_t t = 0; t < n_tiles; t++)
        write_sums(sums[t], n_rows, n - t * TILE < TILE ? n - t * TILE : TILE,
                   y + (int64_t)t * TILE * y_stride + r, y_stride);
}

void gemm_bf16_amx(const matrix *w, int32_t begin, int32_t end, const void *packed, int32_t n,
                   float *y, int64_t y_stride)
{
    assert(w->format == MATRIX_Q4);
    configure_tiles();
    for (int32_t i = 0; i < n; i += BLOCK_INPUTS) {
        const uint16_t *x = (const uint16_t *)packed + (size_t)i * (size_t)w->cols;
        int32_t n_inputs = n - i < BLOCK_INPUTS ? n - i : BLOCK_INPUTS;
        float *out = y + i * y_stride;
        for (int32_t r = begin; r < end; r += ROWS)
            multiply_rows(w, r, end - r < ROWS ? end - r : ROWS, x, n_inputs, out, y_stride);
    }
    _tile_release();
}

/* ---- measuring ---- */

/* The products of `multiply` without its loads. */
int64_t measure_multiply_amx(int64_t n_rounds, float *sink)
{
    _Alignas(64) uint16_t tile[TILE_ELEMENTS];
    _Alignas(64) input_sums sums;
    for (int i = 0; i < TILE_ELEMENTS; i++) tile[i] = f32_to_bf16(*sink / (float)(1 + i % 7));
    configure_tiles();
    _tile_loadd(4, tile, 64);
    _tile_loadd(5, tile, 64);
    _tile_loadd(6, tile, 64);
    _tile_loadd(7, tile, 64);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t r = 0; r < n_rounds; r++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 5, 6);
        _tile_dpbf16ps(2, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
    }
    store_sums(sums);
    _tile_release();
    *sink = sums[0][0][0] + sums[3][1][1];
    return n_rounds * 4 * TILE * TILE * STEP * 2;
}
