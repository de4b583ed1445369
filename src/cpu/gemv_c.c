/* Matrix times one to eight rows, and the rounding of rows for it. */
#include "base/numbers.h"
#include "cpu/kernels.h"
#include "cpu/lanes.h"

#include <math.h>

void dequantize_c(const matrix *m, int32_t row, int32_t first_col, int32_t n_cols, float *out)
{
    const uint8_t *codes = (const uint8_t *)m->codes + (size_t)row * matrix_row_bytes(m);
    if (m->format == MATRIX_BF16) {
        const mapped_bf16 *values = (const mapped_bf16 *)(const void *)codes + first_col;
        for (int32_t c = 0; c < n_cols; c++) out[c] = bf16_to_f32(values[c]);
        return;
    }
    size_t first_group =
        (size_t)row * (size_t)(m->cols / QUANT_GROUP) + (size_t)(first_col / QUANT_GROUP);
    for (int32_t g = 0; g < n_cols / QUANT_GROUP; g++, out += QUANT_GROUP) {
        float scale = bf16_to_f32(m->scales[first_group + (size_t)g]);
        float bias = bf16_to_f32(m->biases[first_group + (size_t)g]);
        if (m->format == MATRIX_Q4) {
            const uint8_t *p = codes + first_col / 2 + g * (QUANT_GROUP / 2);
            uint8_t q[QUANT_GROUP]; /* unpacked first: both loops then vectorise */
            for (int i = 0; i < QUANT_GROUP / 2; i++)
                q[2 * i] = p[i] & 15, q[2 * i + 1] = p[i] >> 4;
            for (int i = 0; i < QUANT_GROUP; i++) out[i] = scale * (float)q[i] + bias;
        } else {
            const uint8_t *p = codes + first_col + g * QUANT_GROUP;
            for (int i = 0; i < QUANT_GROUP; i++) out[i] = scale * (float)p[i] + bias;
        }
    }
}

void gemv_f32_c(const matrix *w, int32_t begin, int32_t end, const float *const *x, int32_t n,
                float *const *y)
{
    enum { COLS = 512 };
    _Alignas(64) float weights[COLS];
    for (int32_t r = begin; r < end; r++) {
        lanes sums[GEMV_MAX_INPUTS] = {{{0}, {0}}};
        for (int32_t c = 0; c < w->cols; c += COLS) {
            int32_t n_cols = w->cols - c < COLS ? w->cols - c : COLS;
            dequantize_c(w, r, c, n_cols, weights);
            for (int32_t i = 0; i < n; i++)
                sums[i] = lanes_multiply_add(sums[i], weights, x[i] + c, n_cols);
        }
        for (int32_t i = 0; i < n; i++) y[i][r] = lanes_sum(sums[i]);
    }
}

/* To the nearest integer, ties to even, for |x| < 2^22: the addition does the rounding, and unlike
 * lrintf it vectorises. */
static inline int32_t round_to_int(float x)
{
    return (int32_t)((x + 0x1.8p23f) - 0x1.8p23f);
}

/* Values int16 [group][even, odd inputs][32]: 16-bit products with the unpacked nibbles. */
void quantize_input_c(const float *x, int32_t cols, int32_t begin, int32_t end, void *out)
{
    float *scales = quantized_scales(out, cols), *sums = quantized_sums(out, cols);
    for (int32_t g = begin; g < end; g++) {
        const float *p = x + (size_t)g * QUANT_GROUP;
        int16_t *v = (int16_t *)out + (size_t)g * QUANT_GROUP;
        float largest = 0, bad = 0;
        for (int i = 0; i < QUANT_GROUP; i++) {
            float a = fabsf(p[i]);
            largest = a > largest ? a : largest;
            bad += a - a; /* 0, or NaN */
        }
        /* Below 2^-100 everything rounds to zero: its inverse would overflow. */
        float scale = 0, inverse = 0;
        if (largest > 0x1p-100f && bad == 0)
            scale = largest / 16256.0f, inverse = 16256.0f / largest;
        int32_t sum = 0;
        for (int i = 0; i < QUANT_GROUP / 2; i++) {
            int32_t even = bad == 0 ? round_to_int(p[2 * i] * inverse) : 0;
            int32_t odd = bad == 0 ? round_to_int(p[2 * i + 1] * inverse) : 0;
            v[i] = (int16_t)even;
            v[QUANT_GROUP / 2 + i] = (int16_t)odd;
            sum += even + odd;
        }
        if (bad != 0) scale = bad;
        scales[g] = scale;
        sums[g] = scale * (float)sum;
    }
}

/* One group: at most 64 * 15 * 16256 < 2^24 in magnitude, so exact as a float too. */
static inline int32_t group_dot(const int16_t *codes, const int16_t *values)
{
    int32_t sum = 0;
    for (int i = 0; i < QUANT_GROUP; i++) sum += codes[i] * values[i];
    return sum;
}

/* n is a constant where this is inlined, so that the sums of one input stay in registers. */
static inline __attribute__((always_inline)) void multiply_q4(const matrix *w, int32_t begin,
                                                              int32_t end, const void *const *x,
                                                              int32_t n, float *const *y)
{
    int32_t n_groups = w->cols / QUANT_GROUP;
    const float *scales_x[GEMV_MAX_INPUTS], *sums_x[GEMV_MAX_INPUTS];
    for (int32_t i = 0; i < n; i++) {
        scales_x[i] = quantized_scales(x[i], w->cols);
        sums_x[i] = quantized_sums(x[i], w->cols);
    }
    for (int32_t r = begin; r < end; r++) {
        const uint8_t *codes = (const uint8_t *)w->codes + (size_t)r * (size_t)(w->cols / 2);
        const mapped_bf16 *scales = w->scales + (size_t)r * (size_t)n_groups;
        const mapped_bf16 *biases = w->biases + (size_t)r * (size_t)n_groups;
        float products[GEMV_MAX_INPUTS] = {0}, offsets[GEMV_MAX_INPUTS] = {0};
        for (int32_t g = 0; g < n_groups; g++, codes += QUANT_GROUP / 2) {
            _Alignas(16) int16_t q[QUANT_GROUP];
            for (int i = 0; i < QUANT_GROUP / 2; i++) {
                q[i] = codes[i] & 15;
                q[QUANT_GROUP / 2 + i] = codes[i] >> 4;
            }
            float scale = bf16_to_f32(scales[g]), bias = bf16_to_f32(biases[g]);
            for (int32_t i = 0; i < n; i++) {
                const int16_t *v = (const int16_t *)x[i] + (size_t)g * QUANT_GROUP;
                products[i] += scale * scales_x[i][g] * (float)group_dot(q, v);
                offsets[i] += bias * sums_x[i][g];
            }
        }
        for (int32_t i = 0; i < n; i++) y[i][r] = products[i] + offsets[i];
    }
}

void gemv_q4_c(const matrix *w, int32_t begin, int32_t end, const void *const *x, int32_t n,
               float *const *y)
{
    if (n == 1)
        multiply_q4(w, begin, end, x, 1, y);
    else
        multiply_q4(w, begin, end, x, n, y);
}
