/* MATRIX_Q4 times one to eight rows on NEON, compiled three times: for any 64-bit Arm (products of
 * bytes in 16 bits), with the dot-product instructions (four products a lane) and with the matrix
 * ones (I8MM).
 *
 * Values are two int8 planes, v = 128 high + low. The nibbles of 32 code bytes are 32 even and then
 * 32 odd columns as they are, and the planes have their values in that order: [high, low][64], or
 * for the matrix instructions [8 columns x 8][high, low], since those multiply two rows of 8 bytes
 * (weight rows here) with two (the planes).
 *
 * Four weight rows go together, so that each load of inputs serves four and the exact sums of a
 * group end up as one vector, a lane a row. For a group of four rows (144 bytes) and one input that
 * is 8 loads and 64, 32 or 16 multiplications; about 40 instructions more are shared by all inputs.
 */
#include "base/numbers.h"
#include "cpu/simd/simd.h"

enum {
    ROWS = VL,
    PARTS = QUANT_GROUP / 16, /* vectors of codes in a row's group, or of values in a plane's */
    PREFETCH_BYTES = 1024,
};

/* The eighth number `eight` of a group's values, in the planes' order. */
ALWAYS_INLINE void store_eight(int8_t *group, int eight, int16x8_t values)
{
    int16x8_t high = vrshrq_n_s16(values, 7);
    int8x8_t low = vmovn_s16(vsubq_s16(values, vshlq_n_s16(high, 7)));
#if defined(__ARM_FEATURE_MATMUL_INT8)
    vst1q_s8(group + 16 * eight, vcombine_s8(vmovn_s16(high), low));
#else
    vst1_s8(group + 8 * eight, vmovn_s16(high));
    vst1_s8(group + QUANT_GROUP + 8 * eight, low);
#endif
}

ALWAYS_INLINE int16x8_t round_eight(float32x4_t a, float32x4_t b, float inverse)
{
    /* A NaN converts to 0. */
    return vcombine_s16(vmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(a, inverse))),
                        vmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(b, inverse))));
}

void KERNEL(quantize_input)(const float *x, int32_t cols, int32_t begin, int32_t end, void *out)
{
    float *scales = quantized_scales(out, cols), *sums = quantized_sums(out, cols);
    for (int32_t g = begin; g < end; g++) {
        const float *p = x + (size_t)g * QUANT_GROUP;
        vf most = vf_zero(), bad = vf_zero();
        for (int i = 0; i < QUANT_GROUP; i += VL) {
            vf a = vabsq_f32(vf_load(p + i));
            most = vf_max(most, a);
            bad = vf_add(bad, vf_sub(a, a)); /* 0, or NaN */
        }
        float largest = vf_largest(most), nan = vf_sum(bad);
        /* Below 2^-100 everything rounds to zero: its inverse would overflow. */
        float scale = 0, inverse = 0;
        if (largest > 0x1p-100f && nan == 0)
            scale = largest / 16256.0f, inverse = 16256.0f / largest;
        int8_t *group = (int8_t *)out + (size_t)g * 2 * QUANT_GROUP;
        int32_t sum = 0;
        for (int i = 0; i < QUANT_GROUP / 16; i++) {
            float32x4x2_t a = vld2q_f32(p + 16 * i), b = vld2q_f32(p + 16 * i + 8);
            int16x8_t even = round_eight(a.val[0], b.val[0], inverse);
            int16x8_t odd = round_eight(a.val[1], b.val[1], inverse);
            store_eight(group, i, even);
            store_eight(group, QUANT_GROUP / 16 + i, odd);
            sum += vaddlvq_s16(even) + vaddlvq_s16(odd);
        }
        if (nan != 0) scale = nan;
        scales[g] = scale;
        sums[g] = scale * (float)sum;
    }
}

/* The codes of a group of ROWS rows, as bytes. */
typedef struct code_block {
    int8x16_t part[ROWS][PARTS];
} code_block;

ALWAYS_INLINE code_block load_codes(const uint8_t *const rows[ROWS], size_t offset)
{
    code_block c;
    UNROLL for (int r = 0; r < ROWS; r++)
    {
        __builtin_prefetch(rows[r] + offset + PREFETCH_BYTES);
        uint8x16_t a = vld1q_u8(rows[r] + offset), b = vld1q_u8(rows[r] + offset + 16);
        c.part[r][0] = vreinterpretq_s8_u8(vandq_u8(a, vdupq_n_u8(15)));
        c.part[r][1] = vreinterpretq_s8_u8(vandq_u8(b, vdupq_n_u8(15)));
        c.part[r][2] = vreinterpretq_s8_u8(vshrq_n_u8(a, 4));
        c.part[r][3] = vreinterpretq_s8_u8(vshrq_n_u8(b, 4));
    }
#if defined(__ARM_FEATURE_MATMUL_INT8)
    /* Eight columns of two rows in a vector. */
    UNROLL for (int r = 0; r < ROWS; r += 2) UNROLL for (int j = 0; j < PARTS; j++)
    {
        int64x2_t a = vreinterpretq_s64_s8(c.part[r][j]);
        int64x2_t b = vreinterpretq_s64_s8(c.part[r + 1][j]);
        c.part[r][j] = vreinterpretq_s8_s64(vzip1q_s64(a, b));
        c.part[r + 1][j] = vreinterpretq_s8_s64(vzip2q_s64(a, b));
    }
#endif
    return c;
}

/* Lane r is the exact sum of row r's codes times the group's values. */
ALWAYS_INLINE int32x4_t multiply_group(const code_block *c, const int8_t *values)
{
    int32x4_t sum[ROWS];
#if defined(__ARM_FEATURE_MATMUL_INT8)
    const int32x4_t shift = {7, 0, 7, 0};
    UNROLL for (int r = 0; r < ROWS; r += 2) sum[r] = vdupq_n_s32(0);
    UNROLL for (int j = 0; j < 2 * PARTS; j++)
    {
        int8x16_t v = vld1q_s8(values + 16 * j);
        UNROLL for (int r = 0; r < ROWS; r += 2) sum[r] =
            vmmlaq_s32(sum[r], c->part[r + j % 2][j / 2], v);
    }
    return vpaddq_s32(vshlq_s32(sum[0], shift), vshlq_s32(sum[2], shift));
#elif defined(__ARM_FEATURE_DOTPROD)
    UNROLL for (int r = 0; r < ROWS; r++) sum[r] = vdupq_n_s32(0);
    UNROLL for (int j = 0; j < 2 * PARTS; j++)
    {
        int8x16_t v = vld1q_s8(values + 16 * j);
        UNROLL for (int r = 0; r < ROWS; r++)
        {
            if (j == PARTS) sum[r] = vshlq_n_s32(sum[r], 7);
            sum[r] = vdotq_s32(sum[r], c->part[r][j % PARTS], v);
        }
    }
#else
    /* 8 products of at most 15 * 127 fit 16 bits. */
    UNROLL for (int plane = 0; plane < 2; plane++)
    {
        int16x8_t products[ROWS];
        UNROLL for (int r = 0; r < ROWS; r++) products[r] = vdupq_n_s16(0);
        UNROLL for (int j = 0; j < PARTS; j++)
        {
            int8x16_t v = vld1q_s8(values + QUANT_GROUP * plane + 16 * j);
            UNROLL for (int r = 0; r < ROWS; r++)
            {
                products[r] = vmlal_s8(products[r], vget_low_s8(c->part[r][j]), vget_low_s8(v));
                products[r] = vmlal_high_s8(products[r], c->part[r][j], v);
            }
        }
        UNROLL for (int r = 0; r < ROWS; r++) sum[r] =
            plane == 0 ? vshlq_n_s32(vpaddlq_s16(products[r]), 7)
                       : vpadalq_s16(sum[r], products[r]);
    }
#endif
#if !defined(__ARM_FEATURE_MATMUL_INT8)
    return vpaddq_s32(vpaddq_s32(sum[0], sum[1]), vpaddq_s32(sum[2], sum[3]));
#endif
}

/* Element g of ROWS rows. */
ALWAYS_INLINE vf load_column(const mapped_bf16 *const rows[ROWS], int32_t g)
{
    uint16x4_t x = {rows[0][g], rows[1][g], rows[2][g], rows[3][g]};
    return vreinterpretq_f32_u32(vshll_n_u16(x, 16));
}

ALWAYS_INLINE void gemv_rows(const matrix *w, int32_t begin, int32_t end, const void *const *x,
                             int32_t n, float *const *y)
{
    int32_t n_groups = w->cols / QUANT_GROUP;
    const float *x_scales[GEMV_MAX_INPUTS], *x_sums[GEMV_MAX_INPUTS];
    for (int32_t i = 0; i < n; i++) {
        x_scales[i] = quantized_scales(x[i], w->cols);
        x_sums[i] = quantized_sums(x[i], w->cols);
    }
    for (int32_t r = begin; r < end; r += ROWS) {
        const uint8_t *codes[ROWS];
        const mapped_bf16 *w_scales[ROWS], *w_biases[ROWS];
        int32_t n_rows = end - r < ROWS ? end - r : ROWS;
        for (int32_t j = 0; j < ROWS; j++) { /* the last one fills up, its results are dropped */
            size_t row = (size_t)(r + (j < n_rows ? j : n_rows - 1));
            codes[j] = (const uint8_t *)w->codes + row * (size_t)(w->cols / 2);
            w_scales[j] = w->scales + row * (size_t)n_groups;
            w_biases[j] = w->biases + row * (size_t)n_groups;
        }
        vf sum[GEMV_MAX_INPUTS], offset[GEMV_MAX_INPUTS];
        UNROLL for (int32_t i = 0; i < n; i++) sum[i] = offset[i] = vf_zero();
        for (int32_t g = 0; g < n_groups; g++) {
            code_block c = load_codes(codes, (size_t)g * (QUANT_GROUP / 2));
            vf scale = load_column(w_scales, g), bias = load_column(w_biases, g);
            UNROLL for (int32_t i = 0; i < n; i++)
            {
                const int8_t *values = (const int8_t *)x[i] + (size_t)g * 2 * QUANT_GROUP;
                vf product = vcvtq_f32_s32(multiply_group(&c, values));
                sum[i] = vf_fma(product, vmulq_n_f32(scale, x_scales[i][g]), sum[i]);
                offset[i] = vfmaq_n_f32(offset[i], bias, x_sums[i][g]);
            }
        }
        UNROLL for (int32_t i = 0; i < n; i++)
        {
            float result[ROWS];
            vf_store(result, vf_add(sum[i], offset[i]));
            for (int32_t j = 0; j < n_rows; j++) y[i][r + j] = result[j];
        }
    }
}

#include "cpu/simd/gemv_q4.h"
