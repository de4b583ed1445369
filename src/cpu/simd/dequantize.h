/* One group of 64 weights as f32, exactly: scale * code is exact (8 bits by 8), so the fused
 * addition of the bias rounds as the separate one does. */
#ifndef CALLA_CPU_SIMD_DEQUANTIZE_H
#define CALLA_CPU_SIMD_DEQUANTIZE_H

#include "base/numbers.h"
#include "cpu/simd/simd.h"

/* 32 bytes of nibbles, even columns low, as 64 bytes in column order. */
ALWAYS_INLINE void unpack_nibbles(const uint8_t *codes, uint8_t *out)
{
#if defined(__AVX2__)
    const __m256i low = _mm256_set1_epi8(15);
    __m256i c = _mm256_loadu_si256((const __m256i *)(const void *)codes);
    __m256i even = _mm256_and_si256(c, low);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi16(c, 4), low);
    __m256i a = _mm256_unpacklo_epi8(even, odd), b = _mm256_unpackhi_epi8(even, odd);
    __m256i *o = (__m256i *)(void *)out;
    _mm256_storeu_si256(o, _mm256_permute2x128_si256(a, b, 0x20));
    _mm256_storeu_si256(o + 1, _mm256_permute2x128_si256(a, b, 0x31));
#else
    for (int i = 0; i < 2; i++) {
        uint8x16_t c = vld1q_u8(codes + 16 * i);
        uint8x16x2_t pair = {{vandq_u8(c, vdupq_n_u8(15)), vshrq_n_u8(c, 4)}};
        vst2q_u8(out + 32 * i, pair);
    }
#endif
}

/* Columns [first_col, first_col + n_cols) of a row, multiples of 64. */
ALWAYS_INLINE void dequantize_columns(const matrix *m, int32_t row, int32_t first_col,
                                      int32_t n_cols, float *out)
{
    const uint8_t *codes = (const uint8_t *)m->codes + (size_t)row * matrix_row_bytes(m);
    if (m->format == MATRIX_BF16) {
        const mapped_bf16 *p = (const mapped_bf16 *)(const void *)codes + first_col;
        for (int32_t c = 0; c < n_cols; c += VL) vf_store(out + c, vf_load_bf16(p + c));
        return;
    }
    size_t group =
        (size_t)row * (size_t)(m->cols / QUANT_GROUP) + (size_t)(first_col / QUANT_GROUP);
    codes += m->format == MATRIX_Q4 ? first_col / 2 : first_col;
    for (int32_t c = 0; c < n_cols; c += QUANT_GROUP, group++) {
        vf scale = vf_set1(bf16_to_f32(m->scales[group]));
        vf bias = vf_set1(bf16_to_f32(m->biases[group]));
        _Alignas(64) uint8_t bytes[QUANT_GROUP];
        const uint8_t *p = codes + c;
        if (m->format == MATRIX_Q4) {
            unpack_nibbles(codes + c / 2, bytes);
            p = bytes;
        }
        for (int i = 0; i < QUANT_GROUP; i += VL)
            vf_store(out + c + i, vf_fma(scale, vf_load_u8(p + i), bias));
    }
}

#endif
