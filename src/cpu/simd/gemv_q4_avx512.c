/* MATRIX_Q4 times one to eight rows on AVX-512 with VNNI.
 *
 * 64 bytes of codes are two groups: the low nibbles are their even columns, the high ones the odd.
 * An input's 15-bit values are two planes of int8, 128 * high + low, in the same order, int8 [pair
 * of groups][high, low][even, odd][group g, group g + 1][32]; so four byte dot products give the
 * exact sums of two groups, eight lanes each. About 13 instructions for the 72 bytes of a pair. Two
 * rows share the loads of the inputs as long as registers last; but a long stretch of rows times
 * one input, where memory is the limit, is read one row after the other. */
#include "cpu/simd/simd.h"

enum {
    BLOCK_GROUPS = 16,        /* groups whose scales are in one vector */
    PAIR_BYTES = 256,         /* of an input */
    AHEAD_BYTES = 4096,       /* a page, which the hardware does not cross by itself */
    SCALES_AHEAD_BYTES = 512, /* of a long stretch */
    LONG_BYTES = 512 << 10,   /* of codes: more than a thread's part of an expert */
    MOST_SHARED = 4,          /* inputs for two rows at a time */
};

/* The largest magnitude of a group, and 0 or, if one is not finite, NaN. */
ALWAYS_INLINE float largest_of(const vf x[4], float *bad)
{
    vf most = vf_zero(), sum = vf_zero();
    for (int i = 0; i < 4; i++) {
        vf a = _mm512_abs_ps(x[i]);
        most = vf_max(most, a);
        sum = vf_add(sum, vf_sub(a, a)); /* 0, or NaN */
    }
    *bad = vf_sum(sum);
    return vf_largest(most);
}

void KERNEL(quantize_input)(const float *x, int32_t cols, int32_t begin, int32_t end, void *out)
{
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    float *scales = quantized_scales(out, cols), *sums = quantized_sums(out, cols);
    int32_t n_groups = cols / QUANT_GROUP;
    for (int32_t g = begin; g < end; g++) {
        vf in[4];
        for (int i = 0; i < 4; i++) in[i] = vf_load(x + (size_t)g * QUANT_GROUP + i * VL);
        float bad, largest = largest_of(in, &bad);
        /* Below 2^-100 everything rounds to zero: its inverse would overflow. */
        float scale = 0, inverse = 0;
        if (largest > 0x1p-100f && bad == 0)
            scale = largest / 16256.0f, inverse = 16256.0f / largest;
        __m512i v[4], total = _mm512_setzero_si512();
        for (int i = 0; i < 4; i++) {
            v[i] = _mm512_setzero_si512();
            if (bad == 0) v[i] = _mm512_cvtps_epi32(vf_mul(in[i], vf_set1(inverse)));
            total = _mm512_add_epi32(total, v[i]);
        }
        int8_t *to = (int8_t *)out + (size_t)(g / 2) * PAIR_BYTES + g % 2 * 32;
        for (int parity = 0; parity < 2; parity++) {
            for (int i = 0; i < 2; i++) {
                __m512i u = _mm512_permutex2var_epi32(v[2 * i], parity ? odd : even, v[2 * i + 1]);
                __m512i high = _mm512_srai_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(64)), 7);
                __m512i low = _mm512_sub_epi32(u, _mm512_slli_epi32(high, 7));
                int8_t *p = to + parity * 64 + i * 16;
                _mm_store_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8(high));
                _mm_store_si128((__m128i *)(void *)(p + 128), _mm512_cvtepi32_epi8(low));
            }
        }
        scales[g] = bad == 0 ? scale : bad;
        sums[g] = scales[g] * (float)_mm512_reduce_add_epi32(total);
    }
    /* An odd last group has no partner: its half of the vectors counts as zeros. */
    if (end == n_groups && n_groups % 2) {
        int8_t *to = (int8_t *)out + (size_t)(n_groups / 2) * PAIR_BYTES + 32;
        for (int i = 0; i < 4; i++)
            _mm256_store_si256((__m256i *)(void *)(to + i * 64), _mm256_setzero_si256());
    }
}

typedef struct q4_row {
    const uint8_t *codes;
    const mapped_bf16 *scales, *biases;
} q4_row;

ALWAYS_INLINE q4_row row_at(const matrix *w, int32_t r)
{
    size_t groups = (size_t)r * (size_t)(w->cols / QUANT_GROUP);
    return (q4_row){(const uint8_t *)w->codes + groups * (QUANT_GROUP / 2), w->scales + groups,
                    w->biases + groups};
}

/* As vf_load_bf16 and vf_load of the lanes in `some`, the rest zeros. */
ALWAYS_INLINE vf load_some_bf16(__mmask16 some, const mapped_bf16 *p)
{
    __m512i x = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
}

/* sum[row][input] += up to 16 groups, from `first` on, of n_rows rows times n inputs (constants).
 */
ALWAYS_INLINE void add_block(const q4_row *row, int n_rows, const void *const *x, int n,
                             int32_t cols, int32_t first, vf (*sum)[GEMV_MAX_INPUTS])
{
    const __m512i low = _mm512_set1_epi8(15), two = _mm512_set1_epi32(2);
    __m512i lanes = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const bool is_long = n_rows == 1 && n == 1; /* see gemv_rows */
    int32_t left = cols / QUANT_GROUP - first, m = left < BLOCK_GROUPS ? left : BLOCK_GROUPS;
    __mmask16 some = (__mmask16)((1u << m) - 1);
    vf scale[2][GEMV_MAX_INPUTS]; /* weight scale * input scale of each group */
    UNROLL for (int r = 0; r < n_rows; r++)
    {
        if (is_long) {
            _mm_prefetch((const char *)(row[r].scales + first) + SCALES_AHEAD_BYTES, _MM_HINT_T1);
            _mm_prefetch((const char *)(row[r].biases + first) + SCALES_AHEAD_BYTES, _MM_HINT_T1);
        }
        vf s = load_some_bf16(some, row[r].scales + first);
        vf b = load_some_bf16(some, row[r].biases + first);
        UNROLL for (int i = 0; i < n; i++)
        {
            const float *scales = quantized_scales(x[i], cols), *sums = quantized_sums(x[i], cols);
            scale[r][i] = vf_mul(s, _mm512_maskz_loadu_ps(some, scales + first));
            sum[r][i] = vf_fma(b, _mm512_maskz_loadu_ps(some, sums + first), sum[r][i]);
        }
    }
    for (int32_t g = 0; g < m; g += 2) {
        size_t at = (size_t)(first + g) * (QUANT_GROUP / 2);
        __mmask8 whole = g + 1 < m ? 0xff : 0x0f;
        /* In the order of memory, not of the rows: else the cache's own prefetch is misled, and
         * memory gives half. */
        const uint8_t *next = row[0].codes + (size_t)n_rows * at + AHEAD_BYTES;
        __m512i a[2], o[2];
        UNROLL for (int r = 0; r < n_rows; r++)
        {
            if (is_long)
                _mm_prefetch((const char *)next + r * 64, _MM_HINT_T1);
            else
                _mm_prefetch((const char *)next + r * 64, _MM_HINT_T0);
            __m512i c = _mm512_maskz_loadu_epi64(whole, row[r].codes + at);
            a[r] = _mm512_and_si512(c, low);
            o[r] = _mm512_and_si512(_mm512_srli_epi16(c, 4), low);
        }
        UNROLL for (int i = 0; i < n; i++)
        {
            const uint8_t *v = (const uint8_t *)x[i] + (size_t)(first + g) / 2 * PAIR_BYTES;
            __m512i high_a = _mm512_loadu_si512(v), high_o = _mm512_loadu_si512(v + 64);
            __m512i low_a = _mm512_loadu_si512(v + 128), low_o = _mm512_loadu_si512(v + 192);
            UNROLL for (int r = 0; r < n_rows; r++)
            {
                __m512i d = _mm512_dpbusd_epi32(_mm512_setzero_si512(), a[r], high_a);
                d = _mm512_slli_epi32(_mm512_dpbusd_epi32(d, o[r], high_o), 7);
                d = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(d, a[r], low_a), o[r], low_o);
                sum[r][i] = vf_fma(_mm512_cvtepi32_ps(d), _mm512_permutexvar_ps(lanes, scale[r][i]),
                                   sum[r][i]);
            }
        }
        lanes = _mm512_add_epi32(lanes, two);
    }
}

/* Rows r ... r + n_rows - 1 times n inputs, both constants. */
ALWAYS_INLINE void multiply_rows(const matrix *w, int32_t r, int n_rows, const void *const *x,
                                 int n, float *const *y)
{
    q4_row row[2];
    vf sum[2][GEMV_MAX_INPUTS];
    UNROLL for (int j = 0; j < n_rows; j++)
    {
        row[j] = row_at(w, r + j);
        UNROLL for (int i = 0; i < n; i++) sum[j][i] = vf_zero();
    }
    for (int32_t first = 0; first < w->cols / QUANT_GROUP; first += BLOCK_GROUPS)
        add_block(row, n_rows, x, n, w->cols, first, sum);
    UNROLL for (int j = 0; j < n_rows; j++) UNROLL for (int i = 0; i < n; i++) y[i][r + j] =
        vf_sum(sum[j][i]);
}

ALWAYS_INLINE void gemv_rows(const matrix *w, int32_t begin, int32_t end, const void *const *x,
                             int32_t n, float *const *y)
{
    int32_t r = begin;
    bool is_long = n == 1 && (size_t)(end - begin) * matrix_row_bytes(w) >= LONG_BYTES;
    if (n <= MOST_SHARED && !is_long)
        for (; r + 2 <= end; r += 2) multiply_rows(w, r, 2, x, n, y);
    for (; r < end; r++) multiply_rows(w, r, 1, x, n, y);
}

#include "cpu/simd/gemv_q4.h"
