/* Blocks of 4-bit weights as bfloat16 tiles A, for gemm_amx.h.
 *
 * Dequantising: a 16-bit word of codes holds four columns. Code j of the 32 words of two groups is
 * moved into both bytes of its word (vpmultishiftqb), and these are indices into a table of 2 x 16
 * bf16 values, 64 bytes (vpermb): 32 weights for three instructions. So the columns of a step are
 * 4 l + j of one group and 4 l + j of the next, l < 16, and the inputs are packed in that order.
 * About 17 instructions of two ports for 128 weights, shared by all inputs. An odd last group takes
 * two steps of its own.
 */
#ifndef CALLA_CPU_DEQUANTIZE_AMX_H
#define CALLA_CPU_DEQUANTIZE_AMX_H

#include "cpu/simd/amx.h"

#include <string.h>

enum {
    ROW_TILES = 2,
    ROWS = ROW_TILES * TILE, /* weight rows at a time */
    COLS = 256,              /* columns of a block, at most */
    STEPS = COLS / STEP,
    VALUE_GROUPS = 16, /* groups of a row whose scales are widened at a time */
    LINE = 64,
};

/* Weights of ROWS rows by 32 columns, and by COLS columns. */
typedef uint16_t weight_step[ROW_TILES][TILE][STEP];
typedef weight_step weight_block[STEPS];
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
ALWAYS_INLINE void widen_groups(const matrix *w, int32_t row, int32_t n_rows, int32_t col,
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

/* Of each quadword of codes, eight bits for both bytes of word w, from the one before code j of the
 * word on: bit 16 w + 4 j - 1, which may be the last one. */
#define BIT_OFFSET(bit) ((int64_t)((bit)&63) * 0x0101)
#define CODE_OFFSETS(j)                                                                            \
    _mm512_set1_epi64(BIT_OFFSET(4 * (j)-1) | BIT_OFFSET(4 * (j) + 15) << 16 |                     \
                      BIT_OFFSET(4 * (j) + 31) << 32 | BIT_OFFSET(4 * (j) + 47) << 48)

/* 32 weights from 32 words of codes v and the table of two groups, bf16. Bits 1 to 4 of an index
 * are the code, bit 0 tells the upper byte of a value from the lower, bit 5 the second group. */
ALWAYS_INLINE __m512i look_up_codes(__m512i offsets, __m512i v, __m512i table)
{
    const __m512i code = _mm512_set1_epi8(0x1e);
    const __m512i place =
        _mm512_inserti64x4(_mm512_set1_epi16(0x0100), _mm256_set1_epi16(0x2120), 1);
    __m512i bits = _mm512_multishift_epi64_epi8(offsets, v);
    /* (bits & code) | place in one instruction */
    return _mm512_permutexvar_epi8(_mm512_ternarylogic_epi32(bits, code, place, 0xea), table);
}

/* 128 columns of a row, two groups, four steps; scales and biases of the two. */
ALWAYS_INLINE void load_pair(const uint8_t *codes, const float *scales, const float *biases,
                             uint16_t *out)
{
    __m512i table = (__m512i)_mm512_cvtne2ps_pbh(code_values(scales[1], biases[1]),
                                                 code_values(scales[0], biases[0]));
    __m512i v = _mm512_loadu_si512(codes);
    _mm512_store_si512(out, look_up_codes(CODE_OFFSETS(0), v, table));
    _mm512_store_si512(out + STEP_STRIDE, look_up_codes(CODE_OFFSETS(1), v, table));
    _mm512_store_si512(out + 2 * STEP_STRIDE, look_up_codes(CODE_OFFSETS(2), v, table));
    _mm512_store_si512(out + 3 * STEP_STRIDE, look_up_codes(CODE_OFFSETS(3), v, table));
}

/* 64 columns, an odd last group: two steps. */
ALWAYS_INLINE void load_last_group(const uint8_t *codes, float scale, float bias, uint16_t *out)
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
                             weight_step *out)
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

/* The next row of a block of 128 columns that is dequantised beside products. */
typedef struct row_cursor {
    const uint8_t *codes;
    const float *scales, *biases;
    uint16_t *to;
    size_t row_bytes, ahead; /* `ahead` bytes behind the row is what is asked for with it */
} row_cursor;

ALWAYS_INLINE void load_rows(row_cursor *c, int n)
{
    UNROLL for (int i = 0; i < n; i++)
    {
        _mm_prefetch((const char *)((uintptr_t)c->codes + c->ahead), _MM_HINT_T1);
        load_pair(c->codes, c->scales, c->biases, c->to);
        c->codes += c->row_bytes;
        c->scales += VALUE_GROUPS;
        c->biases += VALUE_GROUPS;
        c->to += STEP;
        settle_memory();
    }
}

/* Asks for the scales and biases of n_rows rows from `row` on. */
ALWAYS_INLINE void prefetch_values(const matrix *w, int32_t row, int32_t n_rows)
{
    size_t groups = (size_t)w->cols / QUANT_GROUP, first = (size_t)row * groups;
    for (size_t i = 0; n_rows > 0 && i < (size_t)n_rows * groups; i += LINE / sizeof(mapped_bf16)) {
        _mm_prefetch((const char *)(w->scales + first + i), _MM_HINT_T1);
        _mm_prefetch((const char *)(w->biases + first + i), _MM_HINT_T1);
    }
}

#endif
