/* Inputs packed for products on AMX tiles in bfloat16 (gemm_amx.c): tiles B of 32 columns by 16
 * inputs, columns in the order that dequantising gives weights (dequantize_amx.h). */
#include "cpu/simd/amx.h"

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

/* Transposes the same step of 16 rows into a tile. */
ALWAYS_INLINE void store_tile(__m512i rows[TILE], uint16_t *out)
{
    transpose_words(rows);
    for (int l = 0; l < TILE; l++) _mm512_store_si512(out + l * STEP, rows[l]);
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
            for (int j = 0; j < 2 * n_groups; j++, out += TILE_ELEMENTS) store_tile(steps[j], out);
        }
    }
}

/* [row][step][32] bf16: what a tile has of each row */
void pack_rows_bf16_amx(const float *x, int64_t x_stride, const int32_t *rows, int32_t n,
                        int32_t cols, void *packed)
{
    uint16_t *out = packed;
    for (int32_t i = 0; i < n; i++) {
        const float *row = x + (rows ? rows[i] : i) * x_stride;
        for (int32_t c = 0; c < cols; c += PAIR) {
            int32_t n_groups = cols - c < PAIR ? 1 : 2;
            __m512i step[4];
            split_steps(row + c, n_groups, step);
            for (int j = 0; j < 2 * n_groups; j++, out += STEP) _mm512_store_si512(out, step[j]);
        }
    }
}

void gather_rows_bf16_amx(const void *packed_rows, const int32_t *rows, int32_t n, int32_t cols,
                          void *packed)
{
    uint16_t *out = packed;
    for (int32_t i = 0; i < n; i += TILE) {
        const uint16_t *from[TILE];
        int32_t n_rows = n - i < TILE ? n - i : TILE;
        for (int32_t l = 0; l < n_rows; l++)
            from[l] = (const uint16_t *)packed_rows + (size_t)rows[i + l] * (size_t)cols;
        for (int32_t c = 0; c < cols; c += STEP, out += TILE_ELEMENTS) {
            __m512i step[TILE];
            for (int32_t l = 0; l < TILE; l++)
                step[l] = l < n_rows ? _mm512_load_si512(from[l] + c) : _mm512_setzero_si512();
            store_tile(step, out);
        }
    }
}
