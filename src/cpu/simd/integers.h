/* Vectors of VL integers of 32 bits (vi in simd.h), or of pairs of int16, on AVX2 and AVX-512. */
#ifndef CALLA_CPU_SIMD_INTEGERS_H
#define CALLA_CPU_SIMD_INTEGERS_H

#include "cpu/simd/simd.h"

#if defined(__AVX512F__)

/* sums[i] + the two products of lane i: of its lower and of its upper half words. */
ALWAYS_INLINE vi add_products(vi sums, vi a, vi b)
{
    return _mm512_dpwssd_epi32(sums, a, b);
}
ALWAYS_INLINE vi vi_load(const void *p)
{
    return _mm512_loadu_si512(p);
}
/* The first n_bytes, then zeros. */
ALWAYS_INLINE vi vi_load_part(const void *p, size_t n_bytes)
{
    return _mm512_maskz_loadu_epi8(n_bytes < 64 ? ((__mmask64)1 << n_bytes) - 1 : ~(__mmask64)0, p);
}
ALWAYS_INLINE void vi_store(void *p, vi x)
{
    _mm512_storeu_si512(p, x);
}
ALWAYS_INLINE vi vi_set1(int32_t x)
{
    return _mm512_set1_epi32(x);
}
ALWAYS_INLINE vi vi_and(vi a, vi b)
{
    return _mm512_and_si512(a, b);
}
ALWAYS_INLINE vi vi_shift_left_16(vi x)
{
    return _mm512_slli_epi32(x, 16);
}
/* Of the half words. */
#define vi_shift_right_half(x, n) _mm512_srli_epi16(x, n)
ALWAYS_INLINE vi vi_add(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}
ALWAYS_INLINE int32_t vi_sum(vi x)
{
    return _mm512_reduce_add_epi32(x);
}
ALWAYS_INLINE vi vi_from_floats(vf x)
{
    return _mm512_cvtps_epi32(x);
}
ALWAYS_INLINE vf vf_from_integers(vi x)
{
    return _mm512_cvtepi32_ps(x);
}
ALWAYS_INLINE vf vf_from_bits(vi x)
{
    return _mm512_castsi512_ps(x);
}
ALWAYS_INLINE vi vf_to_bits(vf x)
{
    return _mm512_castps_si512(x);
}
ALWAYS_INLINE vf vf_magnitude(vf x)
{
    return _mm512_abs_ps(x);
}
/* 2 VL values as int16, of every eight 0, 4, 1, 5, 2, 6, 3, 7. */
ALWAYS_INLINE vi pair_columns(vi a, vi b)
{
    const vi first = _mm512_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    const vi second = _mm512_add_epi32(first, _mm512_set1_epi32(4));
    vi low = _mm512_permutex2var_epi32(a, first, b), high = _mm512_permutex2var_epi32(a, second, b);
    return _mm512_mask_blend_epi16(0xaaaaaaaa, low, vi_shift_left_16(high));
}

#else

ALWAYS_INLINE vi add_products(vi sums, vi a, vi b)
{
    return _mm256_add_epi32(sums, _mm256_madd_epi16(a, b));
}
ALWAYS_INLINE vi vi_load(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}
ALWAYS_INLINE vi vi_load_part(const void *p, size_t n_bytes)
{
    if (n_bytes >= sizeof(vi)) return vi_load(p);
    if (n_bytes == sizeof(__m128i))
        return _mm256_zextsi128_si256(_mm_loadu_si128((const __m128i *)p));
    vi part = _mm256_setzero_si256();
    __builtin_memcpy(&part, p, n_bytes);
    return part;
}
ALWAYS_INLINE void vi_store(void *p, vi x)
{
    _mm256_storeu_si256((__m256i *)p, x);
}
ALWAYS_INLINE vi vi_set1(int32_t x)
{
    return _mm256_set1_epi32(x);
}
ALWAYS_INLINE vi vi_and(vi a, vi b)
{
    return _mm256_and_si256(a, b);
}
ALWAYS_INLINE vi vi_shift_left_16(vi x)
{
    return _mm256_slli_epi32(x, 16);
}
#define vi_shift_right_half(x, n) _mm256_srli_epi16(x, n)
ALWAYS_INLINE vi vi_add(vi a, vi b)
{
    return _mm256_add_epi32(a, b);
}
ALWAYS_INLINE int32_t vi_sum(vi x)
{
    __m128i y = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    y = _mm_add_epi32(y, _mm_shuffle_epi32(y, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(y, _mm_shuffle_epi32(y, 0xb1)));
}
ALWAYS_INLINE vi vi_from_floats(vf x)
{
    return _mm256_cvtps_epi32(x);
}
ALWAYS_INLINE vf vf_from_integers(vi x)
{
    return _mm256_cvtepi32_ps(x);
}
ALWAYS_INLINE vf vf_from_bits(vi x)
{
    return _mm256_castsi256_ps(x);
}
ALWAYS_INLINE vi vf_to_bits(vf x)
{
    return _mm256_castps_si256(x);
}
ALWAYS_INLINE vf vf_magnitude(vf x)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
}
ALWAYS_INLINE vi pair_columns(vi a, vi b)
{
    vi low = _mm256_permute2x128_si256(a, b, 0x20), high = _mm256_permute2x128_si256(a, b, 0x31);
    return _mm256_blend_epi16(low, vi_shift_left_16(high), 0xaa);
}

#endif

/* VL x VL words, rows to columns. */
ALWAYS_INLINE void transpose_words(vi r[VL])
{
    vf x[VL];
    for (int i = 0; i < VL; i++) x[i] = vf_from_bits(r[i]);
    vf_transpose(x);
    for (int i = 0; i < VL; i++) r[i] = vf_to_bits(x[i]);
}

#endif
