/* Matrix times one to eight rows, in f32: the reference's and the routers' form.
 *
 * One row after the other, as memory is read best; weights of 8 bits are dequantised in registers,
 * others into L1 first. A result is the same whatever goes beside it: in a block of columns the
 * even and the odd vectors have a sum each, added to the sum of the blocks before. */
#include "cpu/simd/dequantize.h"

enum {
    COLS = 512,            /* of a block */
    PREFETCH_BYTES = 4096, /* a page ahead, which the hardware does not cross by itself */
    MOST_INPUTS = 4,       /* at a time */
};

void KERNEL(dequantize)(const matrix *m, int32_t row, int32_t first_col, int32_t n_cols, float *out)
{
    dequantize_columns(m, row, first_col, n_cols, out);
}

/* sum[input] += columns [first, first + n_cols) of row r times n (a constant) inputs. */
ALWAYS_INLINE void add_block(const matrix *w, int32_t r, int32_t first, int32_t n_cols, bool q8,
                             const float *const *x, int n, vf *sum)
{
    _Alignas(64) float weights[COLS];
    size_t at = (size_t)r * (size_t)w->cols + (size_t)first;
    const uint8_t *codes = (const uint8_t *)w->codes + at; /* of 8 bits */
    vf scale = vf_zero(), bias = vf_zero(), odd[MOST_INPUTS];
    UNROLL for (int i = 0; i < n; i++) odd[i] = vf_zero();
    if (!q8) dequantize_columns(w, r, first, n_cols, weights);
    for (int32_t c = 0; c < n_cols; c += QUANT_GROUP) {
        if (q8) {
            scale = vf_set1(bf16_to_f32(w->scales[(at + (size_t)c) / QUANT_GROUP]));
            bias = vf_set1(bf16_to_f32(w->biases[(at + (size_t)c) / QUANT_GROUP]));
            __builtin_prefetch(codes + c + PREFETCH_BYTES);
        }
        UNROLL for (int k = 0; k < QUANT_GROUP; k += VL)
        {
            vf v = q8 ? vf_fma(scale, vf_load_u8(codes + c + k), bias) : vf_load(weights + c + k);
            vf *to = k / VL % 2 ? odd : sum;
            UNROLL for (int i = 0; i < n; i++) to[i] =
                vf_fma(v, vf_load(x[i] + first + c + k), to[i]);
        }
    }
    UNROLL for (int i = 0; i < n; i++) sum[i] = vf_add(sum[i], odd[i]);
}

/* n: a constant. */
ALWAYS_INLINE void multiply_inputs(const matrix *w, int32_t begin, int32_t end, bool q8,
                                   const float *const *x, int n, float *const *y)
{
    for (int32_t r = begin; r < end; r++) {
        vf sum[MOST_INPUTS];
        UNROLL for (int i = 0; i < n; i++) sum[i] = vf_zero();
        for (int32_t c = 0; c < w->cols; c += COLS)
            add_block(w, r, c, w->cols - c < COLS ? w->cols - c : COLS, q8, x, n, sum);
        UNROLL for (int i = 0; i < n; i++) y[i][r] = vf_sum(sum[i]);
    }
}

ALWAYS_INLINE void multiply(const matrix *w, int32_t begin, int32_t end, bool q8,
                            const float *const *x, int32_t n, float *const *y)
{
    int32_t i = 0;
    for (; i + 4 <= n; i += 4) multiply_inputs(w, begin, end, q8, x + i, 4, y + i);
    for (; i + 2 <= n; i += 2) multiply_inputs(w, begin, end, q8, x + i, 2, y + i);
    for (; i < n; i++) multiply_inputs(w, begin, end, q8, x + i, 1, y + i);
}

void KERNEL(gemv_f32)(const matrix *w, int32_t begin, int32_t end, const float *const *x, int32_t n,
                      float *const *y)
{
    if (w->format == MATRIX_Q8)
        multiply(w, begin, end, true, x, n, y);
    else
        multiply(w, begin, end, false, x, n, y);
}
