/* Matrix times one to eight rows, in f32: the reference's and the routers' form. Each row is
 * dequantised into L1 and multiplied from there. */
#include "cpu/simd/dequantize.h"

void KERNEL(dequantize)(const matrix *m, int32_t row, int32_t first_col, int32_t n_cols, float *out)
{
    dequantize_columns(m, row, first_col, n_cols, out);
}

void KERNEL(gemv_f32)(const matrix *w, int32_t begin, int32_t end, const float *const *x, int32_t n,
                      float *const *y)
{
    enum { COLS = 512 };
    _Alignas(64) float weights[COLS];
    for (int32_t r = begin; r < end; r++) {
        vf sum[GEMV_MAX_INPUTS];
        for (int32_t i = 0; i < n; i++) sum[i] = vf_zero();
        for (int32_t c = 0; c < w->cols; c += COLS) {
            int32_t n_cols = w->cols - c < COLS ? w->cols - c : COLS;
            dequantize_columns(w, r, c, n_cols, weights);
            for (int32_t i = 0; i < n; i++) {
                /* Two sums hide the latency of the addition; a group is a multiple of both. */
                vf a = sum[i], b = vf_zero();
                for (int32_t k = 0; k < n_cols; k += 2 * VL) {
                    a = vf_fma(vf_load(weights + k), vf_load(x[i] + c + k), a);
                    b = vf_fma(vf_load(weights + k + VL), vf_load(x[i] + c + k + VL), b);
                }
                sum[i] = vf_add(a, b);
            }
        }
        for (int32_t i = 0; i < n; i++) y[i][r] = vf_sum(sum[i]);
    }
}
