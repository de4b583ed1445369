/* Matrix times many rows in f32 on AMX tiles, for routers: the counterpart of gemm_c.
 *
 * Tiles multiply bfloat16 and add in f32. An input is the sum of three bfloat16, 24 bits, which is
 * all of an f32; a code of 8 or 4 bits, less the middle of its range, is one exactly, and so is a
 * weight of a bf16 matrix. So products are exact, a group's sums are f32 sums, and scales and
 * biases are applied to those in f32. Six products of tiles for 16 rows, 16 inputs and 64 columns,
 * 96 cycles, where vectors take 512; sums leave their tiles once a group and are scaled with two
 * instructions for 16 of them.
 *
 * A sum runs over its groups in one order, whatever the number of inputs and wherever they stand.
 */
#include "base/numbers.h"
#include "cpu/simd/amx.h"

#include <string.h>

enum {
    PARTS = 3,
    STEPS = QUANT_GROUP / STEP, /* of a group */
    ROW_TILES = 2,
    ROWS = ROW_TILES * TILE,
    INPUT_TILES = 2, /* at a time */
    INPUTS = INPUT_TILES * TILE,
    BLOCK_INPUTS = 64, /* inputs per pass over the weights: their sums stay in L1 */
    BLOCK_TILES = BLOCK_INPUTS / INPUTS,
    LINE = 64,
};

/* A group of 16 inputs, AMX_F32_GROUP_BYTES for each. */
typedef struct input_group {
    uint16_t values[PARTS][STEPS][TILE][STEP]; // tiles B
    float sums[TILE];                          /* of the columns */
} input_group;
_Static_assert(sizeof(input_group) == TILE * AMX_F32_GROUP_BYTES, "as the table says");

/* ---- inputs ---- */

/* 64 columns of 16 rows; rows NULL are zeros. */
static void pack_group(const float *const rows[TILE], int32_t col, input_group *out)
{
    vf sums[TILE];
    for (int l = 0; l < TILE; l++) sums[l] = vf_zero();
    for (int s = 0; s < STEPS; s++) {
        __m512i parts[PARTS][TILE];
        for (int l = 0; l < TILE; l++) {
            vf a = vf_zero(), b = vf_zero();
            if (rows[l]) a = vf_load(rows[l] + col + s * STEP);
            if (rows[l]) b = vf_load(rows[l] + col + s * STEP + VL);
            sums[l] = vf_add(sums[l], vf_add(a, b));
            for (int p = 0; p < PARTS; p++) {
                vf high_a = high_part(a), high_b = high_part(b);
                parts[p][l] = narrow(high_a, high_b);
                a = vf_sub(a, high_a);
                b = vf_sub(b, high_b);
            }
        }
        for (int p = 0; p < PARTS; p++) {
            transpose_words(parts[p]);
            for (int l = 0; l < TILE; l++) _mm512_store_si512(out->values[p][s][l], parts[p][l]);
        }
    }
    vf_transpose(sums);
    for (int l = 1; l < TILE; l++) sums[0] = vf_add(sums[0], sums[l]);
    vf_store(out->sums, sums[0]);
}

/* [tile][group] */
void pack_input_amx(const float *x, int64_t x_stride, const int32_t *rows, int32_t n, int32_t cols,
                    void *packed)
{
    input_group *out = packed;
    for (int32_t i = 0; i < n; i += TILE) {
        const float *at[TILE];
        for (int l = 0; l < TILE; l++)
            at[l] = i + l < n ? x + (rows ? rows[i + l] : i + l) * x_stride : NULL;
        for (int32_t c = 0; c < cols; c += QUANT_GROUP) pack_group(at, c, out++);
    }
}

/* ---- weights ---- */

/* A group of ROWS rows: w = scale * value + bias. */
typedef struct weight_group {
    uint16_t values[STEPS][ROW_TILES][TILE][STEP]; // tiles A, bf16
    float scales[ROWS], biases[ROWS];
} weight_group;

/* 64 codes as bytes, in order. */
ALWAYS_INLINE __m512i load_codes(const matrix *w, size_t group)
{
    const uint8_t *codes = (const uint8_t *)w->codes;
    if (w->format == MATRIX_Q8) return _mm512_loadu_si512(codes + group * QUANT_GROUP);
    const void *p = codes + group * (QUANT_GROUP / 2);
    __m512i bytes = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_and_si512(_mm512_or_si512(bytes, _mm512_slli_epi16(bytes, 4)),
                            _mm512_set1_epi16(0x0f0f));
}

/* Row i of the block: a group of codes. */
static void load_coded(const matrix *w, size_t group, int32_t i, weight_group *out)
{
    const int32_t middle = w->format == MATRIX_Q8 ? 128 : 8;
    _Alignas(64) uint8_t codes[QUANT_GROUP];
    _mm512_store_si512(codes, load_codes(w, group));
    for (int s = 0; s < STEPS; s++) {
        vf half[2];
        for (int h = 0; h < 2; h++) {
            const __m128i *p = (const __m128i *)(const void *)(codes + s * STEP + h * VL);
            __m512i c = _mm512_sub_epi32(_mm512_cvtepu8_epi32(_mm_load_si128(p)),
                                         _mm512_set1_epi32(middle));
            half[h] = _mm512_cvtepi32_ps(c);
        }
        _mm512_store_si512(out->values[s][i / TILE][i % TILE], narrow(half[0], half[1]));
    }
    out->scales[i] = bf16_to_f32(w->scales[group]);
    out->biases[i] = bf16_to_f32(w->biases[group]) + (float)middle * out->scales[i];
}

/* Group g of rows [row, row + n_rows), up to ROWS; further ones are zeros. */
static void load_weights(const matrix *w, int32_t row, int32_t n_rows, int32_t g, weight_group *out)
{
    for (int32_t i = 0; i < ROWS; i++) {
        size_t group = (size_t)(row + i) * (size_t)(w->cols / QUANT_GROUP) + (size_t)g;
        if (i < n_rows && w->format != MATRIX_BF16) {
            load_coded(w, group, i, out);
            continue;
        }
        for (int s = 0; s < STEPS; s++) {
            __m512i v = _mm512_setzero_si512();
            const uint16_t *values = w->codes;
            if (i < n_rows) v = _mm512_loadu_si512(values + group * QUANT_GROUP + s * STEP);
            _mm512_store_si512(out->values[s][i / TILE][i % TILE], v);
        }
        out->scales[i] = 1;
        out->biases[i] = 0;
    }
    settle_memory();
}

/* ---- products ---- */

typedef float sum_tile[TILE][TILE]; /* [row][input] */
typedef sum_tile pair_sums[ROW_TILES][INPUT_TILES];

/* What is to be scaled: the dots of a group, and the sums they go to. */
typedef struct scaling {
    const weight_group *w; /* NULL: nothing */
    const input_group *x[INPUT_TILES];
    float (*dots)[INPUT_TILES][TILE][TILE], (*sums)[INPUT_TILES][TILE][TILE]; // [ROW_TILES]
} scaling;

/* sums += scale * dots + bias * the inputs' sums, of rows [from, to), to no more than ROWS. */
ALWAYS_INLINE void scale_dots(const scaling *a, int from, int to)
{
    vf input_sums[INPUT_TILES];
    for (int t = 0; t < INPUT_TILES; t++) input_sums[t] = vf_load(a->x[t]->sums);
    UNROLL for (int r = from; r < to; r++)
    {
        vf scale = vf_set1(a->w->scales[r]), bias = vf_set1(a->w->biases[r]);
        UNROLL for (int t = 0; t < INPUT_TILES; t++)
        {
            float *sum = a->sums[r / TILE][t][r % TILE];
            vf y = vf_fma(bias, input_sums[t], vf_load(sum));
            vf_store(sum, vf_fma(scale, vf_load(a->dots[r / TILE][t][r % TILE]), y));
        }
    }
}

/* dots = a group, two row tiles x n_tiles (1 or 2, a constant) input tiles; what the group before
 * left to be scaled is, a few rows after each product. */
ALWAYS_INLINE void multiply(weight_group *w, const input_group *const x[INPUT_TILES], int n_tiles,
                            pair_sums dots, const scaling *before)
{
    enum { AT_ONCE = (ROWS + STEPS * PARTS - 1) / (STEPS * PARTS) };
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    UNROLL for (int i = 0; i < STEPS * PARTS; i++)
    {
        const int s = i / PARTS, p = PARTS - 1 - i % PARTS; /* small ones first */
        if (i % PARTS == 0) _tile_loadd(4, w->values[s][0], LINE);
        _tile_loadd(6, x[0]->values[p][s], LINE);
        _tile_dpbf16ps(0, 4, 6);
        if (i % PARTS == 0) _tile_loadd(5, w->values[s][1], LINE);
        _tile_dpbf16ps(2, 5, 6);
        if (n_tiles == 2) {
            _tile_loadd(7, x[1]->values[p][s], LINE);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(3, 5, 7);
        }
        if (before->w)
            scale_dots(before, i * AT_ONCE, i < STEPS * PARTS - 1 ? (i + 1) * AT_ONCE : ROWS);
    }
    _tile_stored(0, dots[0][0], LINE);
    _tile_stored(1, dots[0][1], LINE);
    _tile_stored(2, dots[1][0], LINE);
    _tile_stored(3, dots[1][1], LINE);
    settle_memory();
}

/* Rows [row, row + n_rows), up to ROWS, times n <= BLOCK_INPUTS inputs. Of a pair with one tile the
 * other one's sums are zeros. */
static void multiply_rows(const matrix *w, int32_t row, int32_t n_rows, const input_group *packed,
                          int32_t n, pair_sums *sums)
{
    _Alignas(64) weight_group weights[2];
    _Alignas(64) pair_sums dots[2];
    const int32_t groups = w->cols / QUANT_GROUP;
    scaling before = {0};
    int turn = 0;
    memset(sums, 0, BLOCK_TILES * sizeof *sums);
    for (int32_t g = 0; g < groups; g++) {
        weight_group *weight = &weights[g % 2];
        load_weights(w, row, n_rows, g, weight);
        for (int32_t i = 0; i * INPUTS < n; i++, turn ^= 1) {
            const input_group *first = packed + (size_t)i * INPUT_TILES * (size_t)groups + g;
            bool both = n - i * INPUTS > TILE;
            const input_group *x[INPUT_TILES] = {first, both ? first + groups : first};
            if (both)
                multiply(weight, x, 2, dots[turn], &before);
            else
                multiply(weight, x, 1, dots[turn], &before);
            before = (scaling){weight, {x[0], x[1]}, dots[turn], sums[i]};
        }
    }
    if (before.w) scale_dots(&before, 0, ROWS);
}

void gemm_amx(const matrix *w, int32_t begin, int32_t end, const void *packed, int32_t n, float *y,
              int64_t y_stride)
{
    _Alignas(64) pair_sums sums[BLOCK_TILES];
    configure_tiles();
    for (int32_t i = 0; i < n; i += BLOCK_INPUTS) {
        const input_group *x =
            (const input_group *)packed + (size_t)i / TILE * (size_t)(w->cols / QUANT_GROUP);
        int32_t n_inputs = n - i < BLOCK_INPUTS ? n - i : BLOCK_INPUTS;
        for (int32_t row = begin; row < end; row += ROWS) {
            int32_t n_rows = end - row < ROWS ? end - row : ROWS;
            multiply_rows(w, row, n_rows, x, n_inputs, sums);
            for (int32_t j = 0; j < n_inputs; j++)
                for (int32_t r = 0; r < n_rows; r++)
                    y[(i + j) * y_stride + row + r] =
                        sums[j / INPUTS][r / TILE][j % INPUTS / TILE][r % TILE][j % TILE];
        }
    }
    _tile_release();
}
