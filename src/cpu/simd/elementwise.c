/* Norms, gates and activations, in vectors. All of these work on data that is in L1 or L2; what
 * they cost is the exponentials. */
#include "cpu/simd/simd.h"

#include <math.h>

/* Sum of squares of x[n], two vectors at a time. n a multiple of 8 (a tail of half a vector where
 * VL is 16). */
ALWAYS_INLINE float sum_of_squares(const float *x, int32_t n)
{
    vf a = vf_zero(), b = vf_zero();
    int32_t i = 0;
    for (; i + 2 * VL <= n; i += 2 * VL) {
        vf u = vf_load(x + i), v = vf_load(x + i + VL);
        a = vf_fma(u, u, a);
        b = vf_fma(v, v, b);
    }
    for (; i + VL <= n; i += VL) {
        vf u = vf_load(x + i);
        a = vf_fma(u, u, a);
    }
    float sum = vf_sum(vf_add(a, b));
    for (; i < n; i++) sum += x[i] * x[i];
    return sum;
}

float KERNEL(rmsnorm)(const float *x, const float *factor, int32_t n, float eps, float *out)
{
    float mean = sum_of_squares(x, n) / (float)n;
    float r = inverse_root_finite(mean + eps);
    vf scale = vf_set1(r);
    int32_t i = 0;
    for (; i + VL <= n; i += VL)
        vf_store(out + i, vf_mul(vf_mul(vf_load(x + i), scale), vf_load(factor + i)));
    for (; i < n; i++) out[i] = x[i] * r * factor[i];
    return mean;
}

void KERNEL(l2norm)(float *x, float scale)
{
    float sum = sum_of_squares(x, GDN_HEAD_DIM);
    vf factor = vf_set1(scale / sqrtf(sum + 1e-6f) + (sum - sum));
    for (int i = 0; i < GDN_HEAD_DIM; i += VL) vf_store(x + i, vf_mul(vf_load(x + i), factor));
}

void KERNEL(gated_norm)(const float *o, const float *z, const float *factor, float eps, float *out)
{
    float sum = sum_of_squares(o, GDN_HEAD_DIM);
    vf r = vf_set1(inverse_root_finite(sum / GDN_HEAD_DIM + eps));
    for (int i = 0; i < GDN_HEAD_DIM; i += VL) {
        vf gate = vf_load(z + i);
        gate = vf_mul(gate, vf_sigmoid(gate));
        vf y = vf_mul(vf_load(factor + i), vf_mul(vf_load(o + i), r));
        vf_store(out + i, vf_mul(y, gate));
    }
}

void KERNEL(conv_silu)(const float *const rows[CONV_TAPS], const float *taps, int32_t n_channels,
                       int32_t begin, int32_t end, float *out)
{
    for (int32_t c = begin; c < end; c += VL) {
        vf sum = vf_mul(vf_load(taps + c), vf_load(rows[0] + c));
        for (int i = 1; i < CONV_TAPS; i++)
            sum = vf_fma(vf_load(taps + (size_t)i * (size_t)n_channels + c), vf_load(rows[i] + c),
                         sum);
        vf_store(out + c, vf_mul(sum, vf_sigmoid(sum)));
    }
}

void KERNEL(rope)(float *x, const float *cosines, const float *sines)
{
    enum { HALF = ROTARY_DIMS / 2 };
    for (int j = 0; j < HALF; j += VL) {
        vf a = vf_load(x + j), b = vf_load(x + HALF + j);
        vf c = vf_load(cosines + j), s = vf_load(sines + j);
        vf_store(x + j, vf_sub(vf_mul(a, c), vf_mul(b, s)));
        vf_store(x + HALF + j, vf_add(vf_mul(b, c), vf_mul(a, s)));
    }
}

void KERNEL(swiglu)(const float *gate, const float *up, int32_t n, float *out)
{
    int32_t i = 0;
    for (; i + VL <= n; i += VL) {
        vf g = vf_load(gate + i);
        vf_store(out + i, vf_mul(vf_mul(g, vf_sigmoid(g)), vf_load(up + i)));
    }
    for (; i < n; i++) out[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
}

void KERNEL(sigmoid_gate)(float *x, const float *gate, int32_t n)
{
    int32_t i = 0;
    for (; i + VL <= n; i += VL) {
        vf g = vf_load(gate + i), open = vf_add(vf_sigmoid(g), vf_sub(g, g));
        vf_store(x + i, vf_mul(vf_load(x + i), open)); /* as sigmoid_finite */
    }
    for (; i < n; i++) x[i] *= sigmoid_finite(gate[i]);
}

void KERNEL(add_scaled)(float *y, const float *x, float scale, int32_t n)
{
    vf s = vf_set1(scale);
    int32_t i = 0;
    for (; i + VL <= n; i += VL) vf_store(y + i, vf_fma(s, vf_load(x + i), vf_load(y + i)));
    for (; i < n; i++) y[i] = fmaf(scale, x[i], y[i]);
}

void KERNEL(add_rows)(float *y, const float *const *rows, const float *scales, int32_t n_rows,
                      int32_t n)
{
    enum { WIDE = 4 }; /* vectors: sums that do not wait for each other */
    int32_t i = 0;
    for (; i + WIDE * VL <= n; i += WIDE * VL) {
        vf sum[WIDE];
        UNROLL for (int j = 0; j < WIDE; j++) sum[j] = vf_load(y + i + j * VL);
        for (int32_t r = 0; r < n_rows; r++) {
            vf scale = vf_set1(scales[r]);
            UNROLL for (int j = 0; j < WIDE; j++) sum[j] =
                vf_fma(scale, vf_load(rows[r] + i + j * VL), sum[j]);
        }
        UNROLL for (int j = 0; j < WIDE; j++) vf_store(y + i + j * VL, sum[j]);
    }
    for (int32_t r = 0; i < n && r < n_rows; r++)
        KERNEL(add_scaled)(y + i, rows[r] + i, scales[r], n - i);
}

/* Clamped to half's range; times 1, or NaN where x is not finite. */
ALWAYS_INLINE vf clamp_to_f16(vf x)
{
    vf y = vf_min(vf_set1(65504.0f), vf_max(vf_set1(-65504.0f), x));
    return vf_mul(y, vf_add(vf_set1(1.0f), vf_sub(x, x)));
}

void KERNEL(f32_to_f16)(const float *x, int32_t n, uint16_t *out)
{
    int32_t i = 0;
    for (; i + VL <= n; i += VL) vf_store_f16(out + i, clamp_to_f16(vf_load(x + i)));
    if (i < n) { /* half a vector where VL is 16 */
        _Alignas(64) float tail[VL] = {0};
        _Alignas(64) uint16_t halves[VL];
        for (int32_t j = i; j < n; j++) tail[j - i] = x[j];
        vf_store_f16(halves, clamp_to_f16(vf_load(tail)));
        for (int32_t j = i; j < n; j++) out[j] = halves[j - i];
    }
}
