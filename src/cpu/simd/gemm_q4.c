/* MATRIX_Q4 times many rows in integers, on AVX2 and AVX-512: the numbers of gemv_q4, for prefill.
 *
 * Inputs are rounded to 15 bits per group of 64 and kept as int16, codes are unpacked to int16; one
 * instruction (vpdpwssd; AVX2: vpmaddwd and an addition) multiplies pairs of them and adds to VL
 * sums of 32 bits. The VL lanes are VL rows of the matrix, so a sum ends in its lane, and a group's
 * scales and biases are vectors: what a group of one input costs for VL rows is 32 products, then a
 * conversion, a multiplication (scale of the row by scale of the input) and two multiply-adds,
 * which other units than the products' do. f32 products would be 64.
 *
 * Codes are unpacked 32 rows by 256 columns at a time (16 KB, stays in L1) for some hundred inputs:
 * VL rows by VL words of 8 codes are transposed, then the four nibbles of every half word are
 * masked out. So a step holds the columns 8 j + i and 8 j + i + 4, i < 4, and inputs are packed in
 * that order.
 *
 * Sums of groups are exact, and added in f32 in the order of the columns, so a result depends on
 * neither the other inputs nor the other rows. */
#include "base/numbers.h"
#include "cpu/simd/integers.h"

#include <assert.h>
#include <string.h>

enum {
    ROWS = 32,
    ROW_VECTORS = ROWS / VL,
    PAIR_ROWS = 2, /* vectors of rows of one register block */
    /* Inputs of one register block, 12 or 8 sums: more would not stay in registers. */
    MOST_INPUTS = 6,
    TILE_INPUTS = VECTOR_REGISTERS == 32 ? MOST_INPUTS : 4,
    COLS = 256,              /* unpacked at a time */
    STEPS = QUANT_GROUP / 2, /* pairs of columns of a group */
    BLOCK_GROUPS = COLS / QUANT_GROUP,
    SCALE_GROUPS = 2 * VL,           /* whose scales are converted at a time */
    BLOCK_INPUTS = 20 * TILE_INPUTS, /* at most, per pass over the weights */
    BLOCK_BYTES = 512 << 10,         /* of inputs per pass: they stay in L2 */
};

/* ---- inputs ---- */

/* One group: values, scale and scale * sum of the values, as quantize_input does. */
ALWAYS_INLINE void quantize_group(const float *x, int16_t *values, float *scale, float *sum)
{
    enum { N = QUANT_GROUP / VL };
    vf in[N], most = vf_zero(), any = vf_zero();
    UNROLL for (int i = 0; i < N; i++)
    {
        in[i] = vf_load(x + i * VL);
        vf a = vf_magnitude(in[i]);
        most = vf_max(most, a);
        any = vf_add(any, vf_sub(a, a)); /* 0, or NaN */
    }
    float bad = vf_sum(any), largest = vf_largest(most), inverse = 0;
    *scale = bad;
    /* Below 2^-100 everything rounds to zero: its inverse would overflow. */
    if (bad == 0 && largest > 0x1p-100f) *scale = largest / 16256.0f, inverse = 16256.0f / largest;
    vi total = vi_set1(0);
    UNROLL for (int i = 0; i < N; i += 2)
    {
        vi v[2] = {vi_set1(0), vi_set1(0)};
        for (int j = 0; bad == 0 && j < 2; j++)
            v[j] = vi_from_floats(vf_mul(in[i + j], vf_set1(inverse)));
        total = vi_add(total, vi_add(v[0], v[1]));
        vi_store(values + i * VL, pair_columns(v[0], v[1]));
    }
    *sum = *scale * (float)vi_sum(total);
}

/* Rows of quantized_bytes(cols): int16 values, scales, sums. */
/* Columns from `col` on of a row of `cols`. */
static void pack_groups(const float *x, int32_t col, int32_t n_cols, int32_t cols, char *out)
{
    float *scales = quantized_scales(out, cols), *sums = quantized_sums(out, cols);
    for (int32_t g = 0; g < n_cols / QUANT_GROUP; g++) {
        int32_t to = col / QUANT_GROUP + g;
        quantize_group(x + g * QUANT_GROUP, (int16_t *)(void *)out + to * QUANT_GROUP, &scales[to],
                       &sums[to]);
    }
}

void KERNEL(pack_input_q4)(const float *x, int64_t x_stride, const int32_t *rows, int32_t n,
                           int32_t cols, void *packed)
{
    char *out = packed;
    for (int32_t i = 0; i < n; i++, out += quantized_bytes(cols))
        pack_groups(x + (rows ? rows[i] : i) * x_stride, 0, cols, cols, out);
}

void KERNEL(pack_columns_q4)(const float *x, int32_t n, int32_t col, int32_t n_cols, int32_t cols,
                             void *packed)
{
    char *out = packed;
    for (int32_t i = 0; i < n; i++, x += n_cols, out += quantized_bytes(cols))
        pack_groups(x, col, n_cols, cols, out);
}

/* ---- weights ---- */

/* ROWS rows, of which those that do not exist repeat the last one. */
typedef struct weight_block {
    int32_t codes[ROW_VECTORS][BLOCK_GROUPS][STEPS][VL]; /* two int16 each */
    float scales[SCALE_GROUPS][ROWS], biases[SCALE_GROUPS][ROWS];
} weight_block;

/* Columns [col, col + n_cols) of the VL rows from `codes` on, last_row the last that exists. */
static void unpack_codes(const uint8_t *codes, size_t row_bytes, int32_t last_row, int32_t n_cols,
                         int32_t (*out)[STEPS][VL])
{
    enum { GROUP_WORDS = QUANT_GROUP / 8, GROUPS = VL / GROUP_WORDS /* 2 or 1 at a time */ };
    const vi low = vi_set1(0x000f000f);
    for (int32_t g = 0; g < n_cols / QUANT_GROUP; g += GROUPS) {
        vi v[VL];
        size_t at = (size_t)g * (QUANT_GROUP / 2), left = (size_t)n_cols / 2 - at;
        for (int r = 0; r < VL; r++)
            v[r] =
                vi_load_part(codes + (size_t)(r < last_row ? r : last_row) * row_bytes + at, left);
        transpose_words(v);
        UNROLL for (int j = 0; j < VL; j++)
        {
            int32_t(*to)[VL] = out[g + j / GROUP_WORDS] + j % GROUP_WORDS * 4;
            if (j >= GROUP_WORDS && (size_t)j * 4 >= left) break;
            vi_store(to[0], vi_and(v[j], low));
            vi_store(to[1], vi_and(vi_shift_right_half(v[j], 4), low));
            vi_store(to[2], vi_and(vi_shift_right_half(v[j], 8), low));
            vi_store(to[3], vi_shift_right_half(v[j], 12));
        }
    }
}

/* Scales (or biases) of n groups of VL rows, n <= SCALE_GROUPS, to out[group] + lane. */
static void unpack_scales(const mapped_bf16 *scales, size_t row_groups, int32_t last_row, int32_t n,
                          float (*out)[ROWS], int32_t lane)
{
    vi v[VL];
    for (int r = 0; r < VL; r++)
        v[r] = vi_load_part(scales + (size_t)(r < last_row ? r : last_row) * row_groups,
                            (size_t)n * sizeof *scales);
    transpose_words(v);
    UNROLL for (int j = 0; j < VL; j++)
    {
        if (2 * j >= n) break;
        vf_store(out[2 * j] + lane, vf_from_bits(vi_shift_left_16(v[j])));
        vf_store(out[2 * j + 1] + lane, vf_from_bits(vi_and(v[j], vi_set1((int32_t)0xffff0000))));
    }
}

/* Columns [col, col + n_cols) of rows [row, row + n_rows). */
static void load_block(const matrix *w, int32_t row, int32_t n_rows, int32_t col, int32_t n_cols,
                       weight_block *out)
{
    size_t row_groups = (size_t)w->cols / QUANT_GROUP, group = (size_t)col / QUANT_GROUP;
    size_t row_bytes = row_groups * (QUANT_GROUP / 2);
    for (int32_t i = 0; i < ROW_VECTORS; i++) {
        int32_t first = i * VL < n_rows ? row + i * VL : row + n_rows - 1;
        int32_t last = row + n_rows - 1 - first;
        size_t at = (size_t)first * row_groups + group;
        unpack_codes((const uint8_t *)w->codes + at * (QUANT_GROUP / 2), row_bytes, last, n_cols,
                     out->codes[i]);
        if (group % SCALE_GROUPS == 0) {
            size_t left = row_groups - group;
            int32_t n = left < SCALE_GROUPS ? (int32_t)left : SCALE_GROUPS;
            unpack_scales(w->scales + at, row_groups, last, n, out->scales, i * VL);
            unpack_scales(w->biases + at, row_groups, last, n, out->biases, i * VL);
        }
    }
}

/* The rows that load_block reads next, asked for a few at a time between products: the hardware
 * does not foresee pieces of rows, and many requests at once would hold up what products load. */
typedef struct read_ahead {
    const char *codes, *scales, *biases;
    size_t code_bytes, scale_bytes; /* from a row to the next */
    int32_t n_rows, at_once;
    bool with_scales;
} read_ahead;

/* What follows the block at (row, col), n_rows by COLS, of rows that end at `end`. */
static read_ahead read_ahead_of(const matrix *w, int32_t row, int32_t col, int32_t end)
{
    read_ahead a = {.with_scales = col + COLS >= w->cols};
    if (a.with_scales)
        row += ROWS, col = 0;
    else
        col += COLS;
    if (row >= end) return a;
    size_t row_groups = (size_t)w->cols / QUANT_GROUP, first = (size_t)row * row_groups;
    a.n_rows = end - row < ROWS ? end - row : ROWS;
    a.code_bytes = row_groups * (QUANT_GROUP / 2);
    a.scale_bytes = row_groups * sizeof *w->scales;
    a.codes = (const char *)w->codes + first * (QUANT_GROUP / 2) + (size_t)col / 2;
    a.scales = (const char *)(w->scales + first);
    a.biases = (const char *)(w->biases + first);
    return a;
}

ALWAYS_INLINE void prefetch_rows(read_ahead *a)
{
    for (int32_t i = 0; i < a->at_once && a->n_rows > 0; i++, a->n_rows--) {
        for (int j = 0; j < COLS / 2; j += 64) _mm_prefetch(a->codes + j, _MM_HINT_T1);
        a->codes += a->code_bytes;
        for (size_t j = 0; a->with_scales && j < a->scale_bytes; j += 64) {
            _mm_prefetch(a->scales + j, _MM_HINT_T1);
            _mm_prefetch(a->biases + j, _MM_HINT_T1);
        }
        a->scales += a->scale_bytes;
        a->biases += a->scale_bytes;
    }
}

/* ---- products ---- */

/* Rows of inputs, the first group's values, scales and sums at hand. */
typedef struct input_rows {
    const char *values;
    const float *scales, *sums;
    size_t row_bytes;
} input_rows;

/* Sums of [inputs][rows], floats from one input to the next. */
typedef struct sum_rows {
    float *at;
    int64_t stride;
} sum_rows;

/* The rows of a block from `lane` on, PAIR_ROWS vectors of them, times n inputs (a constant):
 * to = from + n_groups groups. */
ALWAYS_INLINE void multiply_tile(const weight_block *w, int32_t lane, int32_t scale_group,
                                 int32_t n_groups, const input_rows *x, int n, const sum_rows *from,
                                 const sum_rows *to, read_ahead *next)
{
    vf sum[PAIR_ROWS][MOST_INPUTS];
    UNROLL for (int r = 0; r < PAIR_ROWS; r++) UNROLL for (int t = 0; t < n; t++) sum[r][t] =
        from ? vf_load(from->at + t * from->stride + r * VL) : vf_zero();
    for (int32_t g = 0; g < n_groups; g++) {
        const int32_t(*a)[VL] = w->codes[lane / VL][g], (*b)[VL] = w->codes[lane / VL + 1][g];
        const char *values = x->values + g * QUANT_GROUP * (int32_t)sizeof(int16_t);
        prefetch_rows(next);
        vi dot[PAIR_ROWS][MOST_INPUTS];
        UNROLL for (int t = 0; t < n; t++) dot[0][t] = dot[1][t] = vi_set1(0);
        for (int k = 0; k < STEPS; k++) {
            vi u = vi_load(a[k]), v = vi_load(b[k]);
            UNROLL for (int t = 0; t < n; t++)
            {
                int32_t pair;
                memcpy(&pair, values + (size_t)t * x->row_bytes + (size_t)k * sizeof pair,
                       sizeof pair);
                vi p = vi_set1(pair);
                dot[0][t] = add_products(dot[0][t], u, p);
                dot[1][t] = add_products(dot[1][t], v, p);
            }
        }
        UNROLL for (int r = 0; r < PAIR_ROWS; r++)
        {
            vf scale = vf_load(w->scales[scale_group + g] + lane + r * VL);
            vf bias = vf_load(w->biases[scale_group + g] + lane + r * VL);
            UNROLL for (int t = 0; t < n; t++)
            {
                const float *s = (const float *)((const char *)x->scales + t * x->row_bytes);
                const float *m = (const float *)((const char *)x->sums + t * x->row_bytes);
                sum[r][t] =
                    vf_fma(vf_from_integers(dot[r][t]), vf_mul(scale, vf_set1(s[g])), sum[r][t]);
                sum[r][t] = vf_fma(bias, vf_set1(m[g]), sum[r][t]);
            }
        }
    }
    UNROLL for (int r = 0; r < PAIR_ROWS; r++) UNROLL for (int t = 0; t < n; t++)
        vf_store(to->at + t * to->stride + r * VL, sum[r][t]);
}

static void multiply_tiles(const weight_block *w, int32_t lane, int32_t scale_group,
                           int32_t n_groups, const input_rows *x, int32_t n, const sum_rows *from,
                           const sum_rows *to, read_ahead *next)
{
    switch (n) {
    case 1:
        multiply_tile(w, lane, scale_group, n_groups, x, 1, from, to, next);
        break;
    case 2:
        multiply_tile(w, lane, scale_group, n_groups, x, 2, from, to, next);
        break;
    case 3:
        multiply_tile(w, lane, scale_group, n_groups, x, 3, from, to, next);
        break;
    case 4:
        multiply_tile(w, lane, scale_group, n_groups, x, 4, from, to, next);
        break;
    case 5:
        if (TILE_INPUTS >= 5) multiply_tile(w, lane, scale_group, n_groups, x, 5, from, to, next);
        break;
    case 6:
        if (TILE_INPUTS >= 6) multiply_tile(w, lane, scale_group, n_groups, x, 6, from, to, next);
        break;
    default:
        break;
    }
}

/* Rows [row, row + n_rows), n_rows <= ROWS, of those that end at `end`, for n <= BLOCK_INPUTS
 * inputs. */
static void multiply_rows(const matrix *w, int32_t row, int32_t n_rows, int32_t end,
                          const char *packed, int32_t n, float *y, int64_t y_stride)
{
    _Alignas(64) weight_block block;
    _Alignas(64) float sums[BLOCK_INPUTS][ROWS];
    const size_t row_bytes = quantized_bytes(w->cols);
    const float *scales = quantized_scales(packed, w->cols);
    const float *input_sums = quantized_sums(packed, w->cols);
    for (int32_t col = 0; col < w->cols; col += COLS) {
        int32_t n_cols = w->cols - col < COLS ? w->cols - col : COLS, group = col / QUANT_GROUP;
        load_block(w, row, n_rows, col, n_cols, &block);
        read_ahead next = read_ahead_of(w, row, col, end);
        int32_t pauses = (n + TILE_INPUTS - 1) / TILE_INPUTS * (n_cols / QUANT_GROUP) *
                         ((n_rows + PAIR_ROWS * VL - 1) / (PAIR_ROWS * VL));
        next.at_once = (next.n_rows + pauses - 1) / pauses;
        bool last = col + n_cols == w->cols;
        for (int32_t i = 0; i < n; i += TILE_INPUTS) {
            size_t at = (size_t)i * row_bytes;
            input_rows x = {packed + at + (size_t)col * sizeof(int16_t),
                            (const float *)((const char *)(scales + group) + at),
                            (const float *)((const char *)(input_sums + group) + at), row_bytes};
            for (int32_t lane = 0; lane < n_rows; lane += PAIR_ROWS * VL) {
                sum_rows here = {sums[i] + lane, ROWS},
                         result = {y + i * y_stride + lane, y_stride};
                bool whole = lane + PAIR_ROWS * VL <= n_rows;
                multiply_tiles(&block, lane, group % SCALE_GROUPS, n_cols / QUANT_GROUP, &x,
                               n - i < TILE_INPUTS ? n - i : TILE_INPUTS, col ? &here : NULL,
                               last && whole ? &result : &here, &next);
            }
        }
    }
    for (int32_t i = 0; i < n; i++)
        for (int32_t r = n_rows / (PAIR_ROWS * VL) * (PAIR_ROWS * VL); r < n_rows; r++)
            y[i * y_stride + r] = sums[i][r];
}

void KERNEL(gemm_q4)(const matrix *w, int32_t begin, int32_t end, const void *packed, int32_t n,
                     float *y, int64_t y_stride)
{
    assert(w->format == MATRIX_Q4);
    const size_t row_bytes = quantized_bytes(w->cols);
    int32_t block = (int32_t)(BLOCK_BYTES / row_bytes) / TILE_INPUTS * TILE_INPUTS;
    block = block < TILE_INPUTS ? TILE_INPUTS : block > BLOCK_INPUTS ? BLOCK_INPUTS : block;
    for (int32_t i = 0; i < n; i += block) {
        const char *x = (const char *)packed + (size_t)i * row_bytes;
        for (int32_t r = begin; r < end; r += ROWS)
            multiply_rows(w, r, end - r < ROWS ? end - r : ROWS, end, x,
                          n - i < block ? n - i : block, y + i * y_stride + r, y_stride);
    }
}

/* ---- measuring ---- */

/* The products of multiply_tile without its loads. */
int64_t KERNEL(measure_multiply_q4)(int64_t n_rounds, float *sink)
{
    enum { SUMS = PAIR_ROWS * TILE_INPUTS };
    vi sum[SUMS], x = vi_from_floats(vf_set1(*sink * 64));
    UNROLL for (int i = 0; i < SUMS; i++) sum[i] = vi_set1(i);
    /* Each sum times x, as constant products would be computed once. */
    for (int64_t r = 0; r < n_rounds; r++)
        UNROLL for (int i = 0; i < SUMS; i++) sum[i] = add_products(sum[i], sum[i], x);
    for (int i = 1; i < SUMS; i++) sum[0] = vi_add(sum[0], sum[i]);
    /* They have wrapped around: of their lower bits a sum that fits. */
    *sink = (float)vi_sum(vi_and(sum[0], vi_set1(0xfffff)));
    return n_rounds * SUMS * VL * 4;
}
