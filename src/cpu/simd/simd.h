/* Vectors of f32 for the kernels in this folder, which are compiled once per instruction set with
 * that set's flags: AVX2+FMA+F16C (8 lanes), AVX-512 (16 lanes) or NEON (4 lanes).
 *
 * vf is a vector of VL floats. Results that do not depend on the order of operations are the same
 * in all of them; sums are in lanes, so they differ in rounding. min and max take a NaN in their
 * second argument along, as kernels must not hide one. vf_store_sums4 stores the sums of four
 * vectors side by side: a vector's sum does not depend on which of the four it is. */
#ifndef CALLA_CPU_SIMD_H
#define CALLA_CPU_SIMD_H

#include "cpu/kernels.h"

/* One function per instruction set: KERNEL(gemm) is gemm_avx2, gemm_avx512, ... */
#define SIMD_PASTE2(a, b) a##_##b
#define SIMD_PASTE(a, b)  SIMD_PASTE2(a, b)
#define KERNEL(name)      SIMD_PASTE(name, SIMD_ISA)

/* A hint only where the compiler needs it: clang unrolls loops of constant length by itself, and
 * told to, takes minutes over them in a sanitizer build. */
#if defined(__clang__)
#define UNROLL
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif
#define ALWAYS_INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)
#include <immintrin.h>

typedef __m512 vf;
typedef __m512i vi;
enum { VL = 16, VECTOR_REGISTERS = 32 };

ALWAYS_INLINE vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
ALWAYS_INLINE void vf_store(float *p, vf x)
{
    _mm512_storeu_ps(p, x);
}
ALWAYS_INLINE vf vf_set1(float x)
{
    return _mm512_set1_ps(x);
}
ALWAYS_INLINE vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
ALWAYS_INLINE vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}
ALWAYS_INLINE vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
ALWAYS_INLINE vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}
ALWAYS_INLINE vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}
ALWAYS_INLINE vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}
ALWAYS_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
/* x 2^n for integral n held as floats. */
ALWAYS_INLINE vf vf_scale_exp2(vf x, vf n)
{
    return _mm512_scalef_ps(x, n);
}
/* 1 / x for x >= 1: two steps of Newton from 14 bits, which round as the division does, but for
 * the largest of each binade, the last bit of which may differ. They take a third of its time. */
ALWAYS_INLINE vf vf_reciprocal(vf x)
{
    vf one = _mm512_set1_ps(1), r = _mm512_rcp14_ps(x);
    r = _mm512_fmadd_ps(r, _mm512_fnmadd_ps(x, r, one), r);
    return _mm512_fmadd_ps(r, _mm512_fnmadd_ps(x, r, one), r);
}
ALWAYS_INLINE vf vf_round(vf x)
{
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
ALWAYS_INLINE vf vf_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
ALWAYS_INLINE void vf_store_f16(uint16_t *p, vf x)
{
    _mm256_storeu_si256((__m256i *)(void *)p,
                        _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
ALWAYS_INLINE vf vf_load_bf16(const mapped_bf16 *p)
{
    __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}
ALWAYS_INLINE vf vf_load_u8(const uint8_t *p)
{
    __m128i x = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(x));
}
ALWAYS_INLINE float vf_sum(vf x)
{
    __m256 y = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 z = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    z = _mm_add_ps(z, _mm_movehl_ps(z, z));
    return _mm_cvtss_f32(_mm_add_ss(z, _mm_movehdup_ps(z)));
}
ALWAYS_INLINE void vf_store_sums4(float *p, vf a, vf b, vf c, vf d)
{
    /* Within 128 bits first, so that a lane of four holds one sum of each. */
    vf ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    vf cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    vf x = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
    __m256 y = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    _mm_storeu_ps(p, _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1)));
}
ALWAYS_INLINE float vf_largest(vf x)
{
    return _mm512_reduce_max_ps(x);
}

/* VL x VL floats, rows to columns. */
ALWAYS_INLINE void vf_transpose(vf r[VL])
{
    vf t[VL];
    for (int i = 0; i < VL; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < VL; i += 4) {
        r[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 8; i++) {
        r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
    }
}

#elif defined(__AVX2__)
#include <immintrin.h>

typedef __m256 vf;
typedef __m256i vi;
enum { VL = 8, VECTOR_REGISTERS = 16 };

ALWAYS_INLINE vf vf_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
ALWAYS_INLINE void vf_store(float *p, vf x)
{
    _mm256_storeu_ps(p, x);
}
ALWAYS_INLINE vf vf_set1(float x)
{
    return _mm256_set1_ps(x);
}
ALWAYS_INLINE vf vf_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}
ALWAYS_INLINE vf vf_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}
ALWAYS_INLINE vf vf_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}
ALWAYS_INLINE vf vf_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}
ALWAYS_INLINE vf vf_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}
ALWAYS_INLINE vf vf_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}
ALWAYS_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}
ALWAYS_INLINE vf vf_exp2_integer(vf n)
{
    vi e = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(e, 23));
}
ALWAYS_INLINE vf vf_round(vf x)
{
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
ALWAYS_INLINE vf vf_load_f16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
ALWAYS_INLINE void vf_store_f16(uint16_t *p, vf x)
{
    _mm_storeu_si128((__m128i *)(void *)p,
                     _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
ALWAYS_INLINE vf vf_load_bf16(const mapped_bf16 *p)
{
    __m128i x = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}
ALWAYS_INLINE vf vf_load_u8(const uint8_t *p)
{
    __m128i x = _mm_loadl_epi64((const __m128i *)(const void *)p);
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(x));
}
ALWAYS_INLINE float vf_sum(vf x)
{
    __m128 z = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    z = _mm_add_ps(z, _mm_movehl_ps(z, z));
    return _mm_cvtss_f32(_mm_add_ss(z, _mm_movehdup_ps(z)));
}
ALWAYS_INLINE void vf_store_sums4(float *p, vf a, vf b, vf c, vf d)
{
    vf ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    vf cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    vf x = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
    _mm_storeu_ps(p, _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)));
}
ALWAYS_INLINE float vf_largest(vf x)
{
    __m128 z = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    z = _mm_max_ps(z, _mm_movehl_ps(z, z));
    return _mm_cvtss_f32(_mm_max_ss(z, _mm_movehdup_ps(z)));
}

ALWAYS_INLINE void vf_transpose(vf r[VL])
{
    vf t[VL];
    for (int i = 0; i < VL; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < VL; i += 4) {
        r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
        t[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
    }
    for (int i = 0; i < VL; i++) r[i] = t[i];
}

#elif defined(__ARM_NEON)
#include <arm_neon.h>

typedef float32x4_t vf;
enum { VL = 4, VECTOR_REGISTERS = 32 };

ALWAYS_INLINE vf vf_load(const float *p)
{
    return vld1q_f32(p);
}
ALWAYS_INLINE void vf_store(float *p, vf x)
{
    vst1q_f32(p, x);
}
ALWAYS_INLINE vf vf_set1(float x)
{
    return vdupq_n_f32(x);
}
ALWAYS_INLINE vf vf_add(vf a, vf b)
{
    return vaddq_f32(a, b);
}
ALWAYS_INLINE vf vf_sub(vf a, vf b)
{
    return vsubq_f32(a, b);
}
ALWAYS_INLINE vf vf_mul(vf a, vf b)
{
    return vmulq_f32(a, b);
}
ALWAYS_INLINE vf vf_div(vf a, vf b)
{
    return vdivq_f32(a, b);
}
ALWAYS_INLINE vf vf_min(vf a, vf b)
{
    return vminq_f32(a, b);
}
ALWAYS_INLINE vf vf_max(vf a, vf b)
{
    return vmaxq_f32(a, b);
}
ALWAYS_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return vfmaq_f32(c, a, b);
}
ALWAYS_INLINE vf vf_exp2_integer(vf n)
{
    int32x4_t e = vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127));
    return vreinterpretq_f32_s32(vshlq_n_s32(e, 23));
}
ALWAYS_INLINE vf vf_round(vf x)
{
    return vrndnq_f32(x);
}
ALWAYS_INLINE vf vf_load_f16(const uint16_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
ALWAYS_INLINE void vf_store_f16(uint16_t *p, vf x)
{
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x)));
}
ALWAYS_INLINE vf vf_load_bf16(const mapped_bf16 *p)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}
ALWAYS_INLINE vf vf_load_u8(const uint8_t *p)
{
    uint32_t four;
    __builtin_memcpy(&four, p, sizeof four);
    uint16x8_t x = vmovl_u8(vcreate_u8(four));
    return vcvtq_f32_u32(vmovl_u16(vget_low_u16(x)));
}
ALWAYS_INLINE float vf_sum(vf x)
{
    float32x2_t y = vadd_f32(vget_low_f32(x), vget_high_f32(x));
    return vget_lane_f32(y, 0) + vget_lane_f32(y, 1);
}
ALWAYS_INLINE void vf_store_sums4(float *p, vf a, vf b, vf c, vf d)
{
    vst1q_f32(p, vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)));
}
ALWAYS_INLINE float vf_largest(vf x)
{
    return vmaxvq_f32(x);
}

ALWAYS_INLINE void vf_transpose(vf r[VL])
{
    float32x4x2_t a = vtrnq_f32(r[0], r[1]), b = vtrnq_f32(r[2], r[3]);
    r[0] = vcombine_f32(vget_low_f32(a.val[0]), vget_low_f32(b.val[0]));
    r[1] = vcombine_f32(vget_low_f32(a.val[1]), vget_low_f32(b.val[1]));
    r[2] = vcombine_f32(vget_high_f32(a.val[0]), vget_high_f32(b.val[0]));
    r[3] = vcombine_f32(vget_high_f32(a.val[1]), vget_high_f32(b.val[1]));
}

#else
#error "compile src/cpu/simd with the flags of AVX2, AVX-512 or NEON"
#endif

ALWAYS_INLINE vf vf_zero(void)
{
    return vf_set1(0);
}

#if !defined(__AVX512F__)
/* x 2^n for integral n held as floats. 2^128 would not fit: in two steps. */
ALWAYS_INLINE vf vf_scale_exp2(vf x, vf n)
{
    vf half = vf_round(vf_mul(n, vf_set1(0.5f)));
    return vf_mul(vf_mul(x, vf_exp2_integer(half)), vf_exp2_integer(vf_sub(n, half)));
}
ALWAYS_INLINE vf vf_reciprocal(vf x)
{
    return vf_div(vf_set1(1.0f), x);
}
#endif

/* e^x: relative error below 2e-7 for |x| <= 87; 0 is replaced by the smallest normal number below
 * -87.3, and the result saturates near the largest float above 88.7. The argument is reduced to
 * r = x - n ln 2, |r| <= ln(2)/2, and e^r taken from its Taylor polynomial of degree 7 (error
 * r^8/8! < 6e-9). */
ALWAYS_INLINE vf vf_exp(vf x)
{
    x = vf_min(vf_set1(88.7f), vf_max(vf_set1(-87.3f), x));
    vf n = vf_round(vf_mul(x, vf_set1(1.44269504f)));
    vf r = vf_fma(n, vf_set1(-0.693359375f), x);
    r = vf_fma(n, vf_set1(2.12194440e-4f), r);
    vf p = vf_set1(1.0f / 5040);
    p = vf_fma(p, r, vf_set1(1.0f / 720));
    p = vf_fma(p, r, vf_set1(1.0f / 120));
    p = vf_fma(p, r, vf_set1(1.0f / 24));
    p = vf_fma(p, r, vf_set1(1.0f / 6));
    p = vf_fma(p, r, vf_set1(0.5f));
    p = vf_fma(p, r, vf_set1(1.0f));
    p = vf_fma(p, r, vf_set1(1.0f));
    return vf_scale_exp2(p, n);
}

/* 1 / (1 + e^-x) */
ALWAYS_INLINE vf vf_sigmoid(vf x)
{
    return vf_reciprocal(vf_add(vf_set1(1.0f), vf_exp(vf_sub(vf_zero(), x))));
}

#endif
