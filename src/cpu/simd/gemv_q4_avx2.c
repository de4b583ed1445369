/* MATRIX_Q4 times one to eight rows on AVX2.
 *
 * A 16-bit lane of the codes holds four columns 4 l ... 4 l + 3, so three shifts and masks give
 * four vectors of 16-bit codes, each met by the inputs' values in the same order, int16 [4][16] for
 * a group; products of neighbouring lanes are added in 32 bits by the same instruction. About 17
 * instructions for the 36 bytes of a group, so two cores of 3 GHz keep up with 30 GB/s. */
#include "cpu/simd/simd.h"

#include "base/numbers.h"

#include <math.h>
#include <string.h>

enum {
    LANES16 = 16,          /* 16-bit lanes of a vector */
    MAX_GROUPS = 64,       /* groups whose scales are prepared at a time */
    PREFETCH_BYTES = 4096, /* a page ahead, which the hardware does not cross by itself */
};

void KERNEL(quantize_input)(const float *x, int32_t cols, int32_t begin, int32_t end, void *out)
{
    float *scales = quantized_scales(out, cols), *sums = quantized_sums(out, cols);
    int16_t *values = out;
    for (int32_t g = begin; g < end; g++) {
        const float *p = x + (size_t)g * QUANT_GROUP;
        const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
        __m256 most = _mm256_setzero_ps(), bad = _mm256_setzero_ps();
        for (int i = 0; i < QUANT_GROUP; i += 8) {
            __m256 a = _mm256_and_ps(_mm256_loadu_ps(p + i), magnitude);
            most = _mm256_max_ps(most, a);
            bad = _mm256_add_ps(bad, _mm256_sub_ps(a, a)); /* 0, or NaN */
        }
        _Alignas(32) float lane[2][8];
        _mm256_store_ps(lane[0], most);
        _mm256_store_ps(lane[1], bad);
        float largest = 0, nan = 0;
        for (int i = 0; i < 8; i++) {
            largest = lane[0][i] > largest ? lane[0][i] : largest;
            nan += lane[1][i];
        }
        /* Below 2^-100 everything rounds to zero: its inverse would overflow. */
        float scale = 0, inverse = 0;
        if (largest > 0x1p-100f && nan == 0)
            scale = largest / 16256.0f, inverse = 16256.0f / largest;
        _Alignas(32) int32_t rounded[QUANT_GROUP] = {0};
        __m256i total = _mm256_setzero_si256();
        for (int i = 0; i < QUANT_GROUP && nan == 0; i += 8) {
            __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(p + i), _mm256_set1_ps(inverse));
            __m256i v = _mm256_cvtps_epi32(scaled);
            _mm256_store_si256((__m256i *)(void *)(rounded + i), v);
            total = _mm256_add_epi32(total, v);
        }
        _Alignas(32) int32_t part[8];
        _mm256_store_si256((__m256i *)(void *)part, total);
        int32_t sum = 0;
        for (int i = 0; i < 8; i++) sum += part[i];
        int16_t *v = values + (size_t)g * QUANT_GROUP;
        for (int j = 0; j < 4; j++)
            for (int l = 0; l < 16; l++) v[j * LANES16 + l] = (int16_t)rounded[4 * l + j];
        if (nan != 0) scale = nan;
        scales[g] = scale;
        sums[g] = scale * (float)sum;
    }
}

/* The dot products of a group with n inputs, added to sum[n] with their scales. */
ALWAYS_INLINE void add_group(const uint8_t *codes, const int16_t *const *values, size_t offset,
                             int32_t n, float (*scales)[MAX_GROUPS], int32_t g, vf *sum)
{
    const __m256i low = _mm256_set1_epi16(15);
    __m256i c = _mm256_loadu_si256((const __m256i *)(const void *)codes);
    __m256i c0 = _mm256_and_si256(c, low), c1 = _mm256_and_si256(_mm256_srli_epi16(c, 4), low);
    __m256i c2 = _mm256_and_si256(_mm256_srli_epi16(c, 8), low), c3 = _mm256_srli_epi16(c, 12);
    UNROLL for (int32_t i = 0; i < n; i++)
    {
        const __m256i *v = (const __m256i *)(const void *)(values[i] + offset);
        __m256i d = _mm256_add_epi32(_mm256_madd_epi16(c0, _mm256_loadu_si256(v)),
                                     _mm256_madd_epi16(c1, _mm256_loadu_si256(v + 1)));
        __m256i e = _mm256_add_epi32(_mm256_madd_epi16(c2, _mm256_loadu_si256(v + 2)),
                                     _mm256_madd_epi16(c3, _mm256_loadu_si256(v + 3)));
        __m256 s = _mm256_broadcast_ss(scales[i] + g);
        sum[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_add_epi32(d, e)), s, sum[i]);
    }
}

/* scales[i][g] = weight scale * input scale of groups [first, first + n_groups); offset[i] +=
 * weight bias * input sum. What remains of the last vector is done one by one. */
ALWAYS_INLINE void prepare_scales(const mapped_bf16 *w_scales, const mapped_bf16 *w_biases,
                                  const float *const *x_scales, const float *const *x_sums,
                                  int32_t n, int32_t first, int32_t n_groups,
                                  float (*scales)[MAX_GROUPS], vf *offset, float *offset_tail)
{
    int32_t g = 0;
    for (; g + VL <= n_groups; g += VL) {
        vf s = vf_load_bf16(w_scales + first + g), b = vf_load_bf16(w_biases + first + g);
        UNROLL for (int32_t i = 0; i < n; i++)
        {
            vf_store(scales[i] + g, vf_mul(s, vf_load(x_scales[i] + first + g)));
            offset[i] = vf_fma(b, vf_load(x_sums[i] + first + g), offset[i]);
        }
    }
    for (; g < n_groups; g++) {
        float s = bf16_to_f32(w_scales[first + g]), b = bf16_to_f32(w_biases[first + g]);
        for (int32_t i = 0; i < n; i++) {
            scales[i][g] = s * x_scales[i][first + g];
            offset_tail[i] = fmaf(b, x_sums[i][first + g], offset_tail[i]);
        }
    }
}

ALWAYS_INLINE void gemv_rows(const matrix *w, int32_t begin, int32_t end, const void *const *x,
                             int32_t n, float *const *y)
{
    int32_t n_groups = w->cols / QUANT_GROUP;
    size_t row_bytes = (size_t)(w->cols / 2);
    const int16_t *values[GEMV_MAX_INPUTS];
    const float *x_scales[GEMV_MAX_INPUTS], *x_sums[GEMV_MAX_INPUTS];
    for (int32_t i = 0; i < n; i++) {
        values[i] = x[i];
        x_scales[i] = quantized_scales(x[i], w->cols);
        x_sums[i] = quantized_sums(x[i], w->cols);
    }
    for (int32_t r = begin; r < end; r++) {
        const uint8_t *codes = (const uint8_t *)w->codes + (size_t)r * row_bytes;
        const mapped_bf16 *w_scales = w->scales + (size_t)r * (size_t)n_groups;
        const mapped_bf16 *w_biases = w->biases + (size_t)r * (size_t)n_groups;
        _Alignas(64) float scales[GEMV_MAX_INPUTS][MAX_GROUPS];
        vf sum[GEMV_MAX_INPUTS], offset[GEMV_MAX_INPUTS];
        float offset_tail[GEMV_MAX_INPUTS];
        UNROLL for (int32_t i = 0; i < n; i++)
        {
            sum[i] = offset[i] = vf_zero();
            offset_tail[i] = 0;
        }
        for (int32_t first = 0; first < n_groups; first += MAX_GROUPS) {
            int32_t m = n_groups - first < MAX_GROUPS ? n_groups - first : MAX_GROUPS;
            prepare_scales(w_scales, w_biases, x_scales, x_sums, n, first, m, scales, offset,
                           offset_tail);
            const uint8_t *p = codes + (size_t)first * (QUANT_GROUP / 2);
            for (int32_t g = 0; g < m; g++, p += QUANT_GROUP / 2) {
                if (g % 2 == 0) _mm_prefetch((const char *)p + PREFETCH_BYTES, _MM_HINT_T0);
                add_group(p, values, (size_t)(first + g) * QUANT_GROUP, n, scales, g, sum);
            }
        }
        UNROLL for (int32_t i = 0; i < n; i++) y[i][r] =
            vf_sum(vf_add(sum[i], offset[i])) + offset_tail[i];
    }
}

#include "cpu/simd/gemv_q4.h"
