/* MATRIX_Q4 times one to eight rows on NEON with the dot-product instructions (Armv8.2).
 *
 * Values are two int8 planes, v = 128 high + low, int8 [group][high, low][even, odd columns][32]:
 * the nibbles of 32 code bytes are 32 even and 32 odd columns as they are. Per group 2 loads, 4
 * masks or shifts and 16 dot products of 4 lanes a plane pair for 36 bytes. */
#include "cpu/simd/simd.h"

#include "base/numbers.h"

#include <math.h>

enum { GROUP_BYTES = 2 * QUANT_GROUP };

void KERNEL(quantize_input)(const float *x, int32_t cols, int32_t begin, int32_t end, void *out)
{
    float *scales = quantized_scales(out, cols), *sums = quantized_sums(out, cols);
    for (int32_t g = begin; g < end; g++) {
        const float *p = x + (size_t)g * QUANT_GROUP;
        int8_t *high = (int8_t *)out + (size_t)g * GROUP_BYTES, *low = high + QUANT_GROUP;
        vf most = vf_zero(), bad = vf_zero();
        for (int i = 0; i < QUANT_GROUP; i += VL) {
            vf a = vabsq_f32(vf_load(p + i));
            most = vmaxq_f32(most, a);
            bad = vf_add(bad, vf_sub(a, a)); /* 0, or NaN */
        }
        float largest = vf_largest(most), nan = vf_sum(bad);
        /* Below 2^-100 everything rounds to zero: its inverse would overflow. */
        float scale = 0, inverse = 0;
        if (largest > 0x1p-100f && nan == 0)
            scale = largest / 16256.0f, inverse = 16256.0f / largest;
        int32_t sum = 0;
        for (int i = 0; i < QUANT_GROUP; i++) {
            int32_t v = nan == 0 ? (int32_t)lrintf(p[i] * inverse) : 0, h = (v + 64) >> 7;
            int at = i % 2 * (QUANT_GROUP / 2) + i / 2;
            high[at] = (int8_t)h;
            low[at] = (int8_t)(v - 128 * h);
            sum += v;
        }
        if (nan != 0) scale = nan;
        scales[g] = scale;
        sums[g] = scale * (float)sum;
    }
}

ALWAYS_INLINE void gemv_rows(const matrix *w, int32_t begin, int32_t end, const void *const *x,
                             int32_t n, float *const *y)
{
    const int8x16_t low_bits = vdupq_n_s8(15);
    int32_t n_groups = w->cols / QUANT_GROUP;
    for (int32_t r = begin; r < end; r++) {
        const uint8_t *codes = (const uint8_t *)w->codes + (size_t)r * (size_t)(w->cols / 2);
        const mapped_bf16 *w_scales = w->scales + (size_t)r * (size_t)n_groups;
        const mapped_bf16 *w_biases = w->biases + (size_t)r * (size_t)n_groups;
        vf sum[GEMV_MAX_INPUTS];
        float offset[GEMV_MAX_INPUTS];
        UNROLL for (int32_t i = 0; i < n; i++) sum[i] = vf_zero(), offset[i] = 0;
        for (int32_t g = 0; g < n_groups; g++, codes += QUANT_GROUP / 2) {
            __builtin_prefetch(codes + 1024);
            uint8x16_t a = vld1q_u8(codes), b = vld1q_u8(codes + 16);
            int8x16_t q[4] = {vandq_s8(vreinterpretq_s8_u8(a), low_bits),
                              vandq_s8(vreinterpretq_s8_u8(b), low_bits),
                              vreinterpretq_s8_u8(vshrq_n_u8(a, 4)),
                              vreinterpretq_s8_u8(vshrq_n_u8(b, 4))};
            float scale = bf16_to_f32(w_scales[g]), bias = bf16_to_f32(w_biases[g]);
            UNROLL for (int32_t i = 0; i < n; i++)
            {
                const int8_t *v = (const int8_t *)x[i] + (size_t)g * GROUP_BYTES;
                int32x4_t d = vdupq_n_s32(0);
                UNROLL for (int j = 0; j < 4; j++) d = vdotq_s32(d, q[j], vld1q_s8(v + 16 * j));
                d = vshlq_n_s32(d, 7);
                UNROLL for (int j = 0; j < 4; j++) d =
                    vdotq_s32(d, q[j], vld1q_s8(v + QUANT_GROUP + 16 * j));
                float s = scale * quantized_scales(x[i], w->cols)[g];
                sum[i] = vfmaq_n_f32(sum[i], vcvtq_f32_s32(d), s);
                offset[i] = fmaf(bias, quantized_sums(x[i], w->cols)[g], offset[i]);
            }
        }
        UNROLL for (int32_t i = 0; i < n; i++) y[i][r] = vf_sum(sum[i]) + offset[i];
    }
}

#include "cpu/simd/gemv_q4.h"
