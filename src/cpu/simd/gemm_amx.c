/* Matrix times many rows on AMX tiles in bfloat16, f32 sums: the counterpart of gemm_bf16_c.
 *
 * y^T = W x^T: a tile A is 16 weight rows by 32 columns, dequantised into L1 as bf16; a tile B is
 * 32 columns by 16 inputs, packed once per layer input; the sums are 16 rows by 16 inputs. The
 * order of columns is the nibbles' own, the 32 even columns of a group and then the 32 odd ones, in
 * both.
 *
 * A product of two tiles takes 16 cycles: 512 multiply-adds a cycle, 16 x 16 x 64 in 32. Turning a
 * group of 64 codes into bf16 is two table look-ups (vpermw) with a table of the group's 16 values,
 * about 5 cycles, so for 16 x 64 weights about 80, shared by all inputs. Sums go to L1 between
 * blocks of columns only if there are more than 32 inputs. A sum runs over its columns in one
 * order, whatever the number of inputs and wherever they stand. */
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
    ROWS = 32,           /* weight rows at a time: two tiles */
    COLS = 256,          /* columns dequantised at a time: 16 KB with ROWS */
    STEPS = COLS / STEP,
    BLOCK_INPUTS = 256, /* their sums for ROWS rows: 32 KB */
    BLOCK_TILES = BLOCK_INPUTS / TILE,
};

/* ---- packing ---- */

/* 64 inputs of one row to bf16, the even ones and the odd ones: 16 pairs each. */
ALWAYS_INLINE void split_group(const float *x, __m512i out[2])
{
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
    __m512 c = _mm512_loadu_ps(x + 32), d = _mm512_loadu_ps(x + 48);
    out[0] = (__m512i)_mm512_cvtne2ps_pbh(_mm512_permutex2var_ps(c, even, d),
                                          _mm512_permutex2var_ps(a, even, b));
    out[1] = (__m512i)_mm512_cvtne2ps_pbh(_mm512_permutex2var_ps(c, odd, d),
                                          _mm512_permutex2var_ps(a, odd, b));
}

/* 16 x 16 dwords, rows to columns. */
ALWAYS_INLINE void transpose16(__m512i r[16])
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

/* [tile][group][even, odd][16 pairs][16 inputs][2] bf16 */
void pack_input_bf16_amx(const float *x, int64_t x_stride, const int32_t *rows, int32_t n,
                         int32_t cols, void *packed)
{
    uint16_t *out = packed;
    for (int32_t i = 0; i < n; i += TILE) {
        for (int32_t c = 0; c < cols; c += QUANT_GROUP, out += 2 * TILE_ELEMENTS) {
            __m512i pairs[2][TILE];
            for (int l = 0; l < TILE; l++) {
                __m512i half[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
                if (i + l < n) split_group(x + (rows ? rows[i + l] : i + l) * x_stride + c, half);
                pairs[0][l] = half[0];
                pairs[1][l] = half[1];
            }
            for (int p = 0; p < 2; p++) {
                transpose16(pairs[p]);
                for (int l = 0; l < TILE; l++)
                    _mm512_store_si512(out + (p * TILE + l) * 32, pairs[p][l]);
            }
        }
    }
}

/* ---- dequantisation ---- */

/* Weights of ROWS rows by COLS columns: [step][row tile][16][32], even columns of a group in one
 * step, odd ones in the next. */
typedef uint16_t weight_block[STEPS][2][TILE][STEP];

/* Rows [r, r + n_rows), columns [c, c + n_cols); asks the cache for what comes next. */
static void load_weights(const matrix *w, int32_t r, int32_t n_rows, int32_t c, int32_t n_cols,
                         weight_block out)
{
    const __m512 iota = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    size_t row_bytes = (size_t)w->cols / 2, row_groups = (size_t)w->cols / QUANT_GROUP;
    int32_t n_groups = n_cols / QUANT_GROUP;
    bool last = c + n_cols >= w->cols;
    for (int32_t i = 0; i < n_rows; i++) {
        const uint8_t *codes = (const uint8_t *)w->codes + (size_t)(r + i) * row_bytes + c / 2;
        size_t group = (size_t)(r + i) * row_groups + (size_t)c / QUANT_GROUP;
        /* The next columns of this row, or the first of the row of the next block. */
        const char *next = (const char *)codes +
                           (last ? (size_t)ROWS * row_bytes - (size_t)c / 2 : (size_t)n_cols / 2);
        _mm_prefetch(next, _MM_HINT_T0);
        _mm_prefetch(next + 64, _MM_HINT_T0);
        if (c == 0) {
            _mm_prefetch((const char *)(w->scales + group + ROWS * row_groups), _MM_HINT_T0);
            _mm_prefetch((const char *)(w->biases + group + ROWS * row_groups), _MM_HINT_T0);
        }
        for (int32_t g = 0; g < n_groups; g++) {
            __m512 scale = _mm512_set1_ps(bf16_to_f32(w->scales[group + (size_t)g]));
            __m512 bias = _mm512_set1_ps(bf16_to_f32(w->biases[group + (size_t)g]));
            __m512 values = _mm512_fmadd_ps(iota, scale, bias);
            /* Twice the 16 values: the look-up takes five bits of an index, the fifth is any. */
            __m512i table = (__m512i)_mm512_cvtne2ps_pbh(values, values);
            __m512i v = _mm512_cvtepu8_epi16(
                _mm256_loadu_si256((const __m256i *)(const void *)(codes + 32 * g)));
            _mm512_store_si512(out[2 * g][i / TILE][i % TILE], _mm512_permutexvar_epi16(v, table));
            _mm512_store_si512(out[2 * g + 1][i / TILE][i % TILE],
                               _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 4), table));
        }
    }
    for (int32_t i = n_rows; i < ROWS; i++)
        for (int s = 0; s < 2 * n_groups; s++) memset(out[s][i / TILE][i % TILE], 0, 64);
}

/* ---- products ---- */

typedef float sum_tile[TILE][TILE]; /* [row][input] */

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

/* Tiles 0 to 3 += (two row tiles) x (two input tiles, b1 NULL: one) over n_steps steps. */
ALWAYS_INLINE void multiply(const weight_block w, int32_t n_steps, const uint16_t *b0,
                            const uint16_t *b1)
{
    for (int32_t s = 0; s < n_steps; s++) {
        _tile_loadd(4, w[s][0], 64);
        _tile_loadd(5, w[s][1], 64);
        _tile_loadd(6, b0 + s * TILE_ELEMENTS, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 5, 6);
        if (!b1) continue;
        _tile_loadd(7, b1 + s * TILE_ELEMENTS, 64);
        _tile_dpbf16ps(2, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
    }
}

ALWAYS_INLINE void load_sums(sum_tile (*sums)[2])
{
    _tile_loadd(0, sums[0][0], 64);
    _tile_loadd(1, sums[0][1], 64);
    _tile_loadd(2, sums[1][0], 64);
    _tile_loadd(3, sums[1][1], 64);
}

ALWAYS_INLINE void store_sums(sum_tile (*sums)[2])
{
    _tile_stored(0, sums[0][0], 64);
    _tile_stored(1, sums[0][1], 64);
    _tile_stored(2, sums[1][0], 64);
    _tile_stored(3, sums[1][1], 64);
    settle_memory();
}

/* y[first + l][r + ...] from the sums of a tile of inputs. */
static void write_sums(sum_tile sums[2], int32_t n_rows, int32_t n_inputs, float *y,
                       int64_t y_stride)
{
    for (int h = 0; h < 2 && h * TILE < n_rows; h++) {
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
    /* One pair more than needed, so that a single last tile has its partner's place. */
    _Alignas(64) sum_tile sums[BLOCK_TILES + 1][2];
    int32_t n_tiles = (n + TILE - 1) / TILE;
    bool one_pair = n_tiles <= 2; /* its sums stay in the tiles */
    size_t tile_elements = (size_t)w->cols * TILE;
    for (int32_t c = 0; c < w->cols; c += COLS) {
        int32_t n_cols = w->cols - c < COLS ? w->cols - c : COLS;
        load_weights(w, r, n_rows, c, n_cols, weights);
        settle_memory();
        for (int32_t t = 0; t < n_tiles; t += 2) {
            const uint16_t *b0 = packed + (size_t)t * tile_elements + (size_t)c * TILE;
            if (c == 0) {
                _tile_zero(0);
                _tile_zero(1);
                _tile_zero(2);
                _tile_zero(3);
            } else if (!one_pair) {
                load_sums(sums + t);
            }
            multiply(weights, n_cols / STEP, b0, t + 1 < n_tiles ? b0 + tile_elements : NULL);
            if (!one_pair) store_sums(sums + t);
        }
    }
    if (one_pair) store_sums(sums);
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
        for (int32_t r = begin; r < end; r += ROWS) {
            int32_t n_rows = end - r < ROWS ? end - r : ROWS;
            multiply_rows(w, r, n_rows, x, n_inputs, y + i * y_stride, y_stride);
        }
    }
    _tile_release();
}

/* ---- measuring ---- */

/* The products of `multiply` without its loads. */
int64_t measure_multiply_amx(int64_t n_rounds, float *sink)
{
    _Alignas(64) uint16_t tile[TILE_ELEMENTS];
    _Alignas(64) sum_tile sums[2][2];
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
    *sink = sums[0][0][0][0] + sums[1][1][1][1];
    return n_rounds * 4 * TILE * TILE * STEP * 2;
}
