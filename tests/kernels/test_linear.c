/* The linear layers' kernels against double arithmetic. */
#include "support/kernels.h"

#include "base/numbers.h"
#include "support/support.h"

#include <math.h>
#include <string.h>

static const int32_t some_cols[] = {64, 128, 192, 320, 512, 576, 2048};
enum { N_COLS = sizeof some_cols / sizeof some_cols[0] };
static const matrix_format formats[] = {MATRIX_Q4, MATRIX_Q8, MATRIX_BF16};

/* Sum and sum of magnitudes of W[row] . x in double. */
static void exact_dot(const matrix *m, int32_t row, const float *x, double *sum, double *size)
{
    *sum = *size = 0;
    for (int32_t c = 0; c < m->cols; c++) {
        double product = matrix_element(m, row, c) * (double)x[c];
        *sum += product;
        *size += fabs(product);
    }
}

static void test_dequantize(void **state)
{
    (void)state;
    for (int f = 0; f < 3; f++) {
        matrix m = random_matrix(formats[f], 5, 320, 11);
        FOR_EACH_VARIANT (v, dequantize) {
            for (int32_t first = 0; first < 320; first += 64) {
                float *out = guarded_floats((size_t)(320 - first));
                variants[v].dequantize(&m, 3, first, 320 - first, out);
                for (int32_t c = first; c < 320; c++)
                    if (out[c - first] != (float)matrix_element(&m, 3, c))
                        fail_msg("%s format %d col %d: %.9g", variants[v].isa, f, c,
                                 (double)out[c - first]);
            }
        }
        guarded_check();
    }
}

static void check_gemv_f32(const cpu_kernels *k, const matrix *m, fill_kind kind, int32_t n)
{
    const float *x[GEMV_MAX_INPUTS];
    float *y[GEMV_MAX_INPUTS], *alone = guarded_floats((size_t)m->rows);
    for (int32_t i = 0; i < n; i++) {
        float *p = guarded_floats((size_t)m->cols);
        fill(p, (size_t)m->cols, kind, (uint64_t)i + 5);
        x[i] = p;
        y[i] = guarded_floats((size_t)m->rows);
        for (int32_t r = 0; r < m->rows; r++) y[i][r] = 7;
    }
    k->gemv_f32(m, 1, m->rows - 1, x, n, y);
    for (int32_t i = 0; i < n; i++) {
        assert_true(y[i][0] == 7 && y[i][m->rows - 1] == 7); /* outside the range */
        k->gemv_f32(m, 1, m->rows - 1, &x[i], 1, &alone);
        for (int32_t r = 1; r < m->rows - 1; r++) {
            double sum, size;
            exact_dot(m, r, x[i], &sum, &size);
            assert_near((double)y[i][r], sum, 1e-6 * size,
                        text("%s format %d cols %d n %d", k->isa, m->format, m->cols, n));
            assert_memory_equal(&alone[r], &y[i][r], sizeof(float));
        }
    }
}

static void test_gemv_f32(void **state)
{
    (void)state;
    for (int f = 0; f < 3; f++)
        for (int c = 0; c < N_COLS; c++)
            FOR_EACH_VARIANT (v, gemv_f32) {
                matrix m = random_matrix(formats[f], 7, some_cols[c], 23);
                check_gemv_f32(&variants[v], &m, FILL_NORMAL, 1 + (c + v) % GEMV_MAX_INPUTS);
                check_gemv_f32(&variants[v], &m, (fill_kind)(c % N_FILLS), GEMV_MAX_INPUTS);
                guarded_check();
            }
}

/* ---- integer planes ---- */

/* Inputs that rounding keeps: integers up to 16256, the largest of each group 16256, times a power
 * of two per group. Then gemv_q4 has only its own rounding. */
static void fill_exact(float *x, int32_t cols, uint64_t seed)
{
    for (int32_t c = 0; c < cols; c++) {
        int32_t v = (int32_t)random_below(32513, seed, (uint64_t)c) - 16256;
        if (c % 64 == 17) v = c % 128 == 17 ? 16256 : -16256;
        x[c] = ldexpf((float)v, (int)random_below(9, seed + 1, (uint64_t)(c / 64)) - 20);
    }
}

static void check_gemv_q4(const cpu_kernels *k, int32_t cols, int32_t n)
{
    enum { ROWS = 9 };
    matrix m = random_matrix(MATRIX_Q4, ROWS, cols, (uint64_t)cols);
    float *x[GEMV_MAX_INPUTS], *y[GEMV_MAX_INPUTS], *alone = guarded_floats(ROWS);
    const void *q[GEMV_MAX_INPUTS];
    for (int32_t i = 0; i < n; i++) {
        x[i] = guarded_floats((size_t)cols);
        fill_exact(x[i], cols, (uint64_t)i * 77 + 1);
        void *p = guarded(quantized_bytes(cols));
        /* In two calls, as threads do. */
        k->quantize_input(x[i], cols, cols / 128, cols / 64, p);
        k->quantize_input(x[i], cols, 0, cols / 128, p);
        q[i] = p;
        y[i] = guarded_floats(ROWS);
    }
    k->gemv_q4(&m, 0, 1, q, n, y);
    k->gemv_q4(&m, 1, ROWS, q, n, y);
    for (int32_t i = 0; i < n; i++) {
        k->gemv_q4(&m, 0, ROWS, &q[i], 1, &alone);
        for (int32_t r = 0; r < ROWS; r++) {
            double sum, size;
            exact_dot(&m, r, x[i], &sum, &size);
            /* codes and biases cancel: their parts are larger than the sum of |w x| */
            assert_near((double)y[i][r], sum, 4e-6 * size,
                        text("%s cols %d n %d", k->isa, cols, n));
            assert_memory_equal(&alone[r], &y[i][r], sizeof(float));
        }
    }
    guarded_check();
}

static void test_gemv_q4(void **state)
{
    (void)state;
    FOR_EACH_VARIANT (v, gemv_q4)
        for (int c = 0; c < N_COLS; c++)
            for (int32_t n = 1; n <= GEMV_MAX_INPUTS; n++)
                check_gemv_q4(&variants[v], some_cols[c], n);
}

/* Scales, sums, and the product with a matrix of ones: what rounding may cost. */
static void check_quantize(const cpu_kernels *k, fill_kind kind)
{
    enum { COLS = 320, GROUPS = COLS / 64 };
    float *x = guarded_floats(COLS);
    fill(x, COLS, kind, 3);
    void *q = guarded(quantized_bytes(COLS));
    k->quantize_input(x, COLS, 0, GROUPS, q);
    matrix m = random_matrix(MATRIX_Q4, 4, COLS, 8);
    float *y = guarded_floats(4);
    const void *inputs[1] = {q};
    k->gemv_q4(&m, 0, 4, inputs, 1, &y);
    double rounding[GROUPS];
    for (int g = 0; g < GROUPS; g++) {
        double largest = 0, sum = 0;
        for (int i = 0; i < 64; i++) {
            largest = fmax(largest, fabs((double)x[g * 64 + i]));
            sum += (double)x[g * 64 + i];
        }
        rounding[g] = largest / 16256 / 2 * 1.001;
        assert_near((double)quantized_scales(q, COLS)[g], largest / 16256, largest * 1e-11, k->isa);
        assert_near((double)quantized_sums(q, COLS)[g], sum, 64 * rounding[g], k->isa);
    }
    for (int32_t r = 0; r < 4; r++) {
        double sum, size, bound = 0;
        exact_dot(&m, r, x, &sum, &size);
        for (int32_t c = 0; c < COLS; c++)
            bound += fabs(matrix_element(&m, r, c)) * rounding[c / 64];
        assert_near((double)y[r], sum, bound + 4e-6 * size, text("%s fill %d", k->isa, kind));
    }
    guarded_check();
}

static void test_quantize(void **state)
{
    (void)state;
    FOR_EACH_VARIANT (v, gemv_q4)
        for (int kind = 0; kind < N_FILLS; kind++) check_quantize(&variants[v], (fill_kind)kind);
}

/* What is not finite must stay visible, in its own group only. */
static void test_quantize_not_finite(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    enum { COLS = 256 };
    FOR_EACH_VARIANT (v, gemv_q4)
        for (int i = 0; i < 3; i++) {
            float *x = guarded_floats(COLS), *y = guarded_floats(1);
            fill(x, COLS, FILL_NORMAL, 3);
            x[64 + 13 * i] = bad[i];
            void *q = guarded(quantized_bytes(COLS));
            variants[v].quantize_input(x, COLS, 0, COLS / 64, q);
            for (int g = 0; g < COLS / 64; g++)
                assert_int_equal(isnan(quantized_scales(q, COLS)[g]) != 0, g == 1);
            matrix m = random_matrix(MATRIX_Q4, 1, COLS, 8);
            const void *inputs[1] = {q};
            variants[v].gemv_q4(&m, 0, 1, inputs, 1, &y);
            assert_true(isnan(y[0]));
            guarded_check();
        }
}

/* ---- many rows ---- */

/* What one result may differ: `size` is the sum of its products' magnitudes. */
static double gemm_tolerance(const cpu_kernels *k, const matrix *m, int32_t row, const float *x,
                             double size)
{
    if (k->gemm_inputs == GEMM_F32) return 1e-6 * size;
    if (k->gemm_inputs == GEMM_BF16) return 0x1p-7 * size;
    double bound = 4e-6 * size;
    for (int32_t g = 0; g < m->cols; g += 64) {
        double largest = 0, weights = 0;
        for (int32_t c = g; c < g + 64; c++) {
            largest = fmax(largest, fabs((double)x[c]));
            weights += fabs(matrix_element(m, row, c));
        }
        bound += weights * largest / 16256 / 2 * 1.001;
    }
    return bound;
}

static void check_gemm(const cpu_kernels *k, matrix_format format, int32_t cols, int32_t n,
                       fill_kind kind)
{
    enum { ROWS = 37, STRIDE = 41 };
    int32_t x_stride = cols + 64;
    matrix m = random_matrix(format, ROWS, cols, (uint64_t)n);
    float *x = guarded_floats((size_t)n * (size_t)x_stride);
    fill(x, (size_t)n * (size_t)x_stride, kind, 9);
    int32_t *rows = guarded((size_t)n * sizeof *rows); /* a permutation, reversed */
    for (int32_t i = 0; i < n; i++) rows[i] = n - 1 - i;
    void *packed = guarded(packed_bytes(k, n, cols)), *one = guarded(packed_bytes(k, 1, cols));
    float *y = guarded_floats((size_t)n * STRIDE), *alone = guarded_floats(ROWS);
    k->pack_input(x, x_stride, rows, n, cols, packed);
    k->gemm(&m, 2, 5, packed, n, y, STRIDE);
    k->gemm(&m, 5, ROWS, packed, n, y, STRIDE);
    for (int32_t i = 0; i < n; i++) {
        const float *row = x + (int64_t)rows[i] * x_stride;
        bool check_alone = i % 5 == 0;
        if (check_alone) {
            k->pack_input(row, 1, NULL, 1, cols, one);
            k->gemm(&m, 0, ROWS, one, 1, alone, ROWS);
        }
        for (int32_t r = 0; r < STRIDE; r++) {
            if (r < 2 || r >= ROWS) {
                assert_true(y[i * STRIDE + r] == 0); /* outside the range */
                continue;
            }
            double sum, size;
            exact_dot(&m, r, row, &sum, &size);
            assert_near((double)y[i * STRIDE + r], sum, gemm_tolerance(k, &m, r, row, size),
                        text("%s format %d cols %d n %d row %d", k->isa, format, cols, n, r));
            if (check_alone) assert_memory_equal(&y[i * STRIDE + r], &alone[r], sizeof(float));
        }
    }
    guarded_check();
}

static void check_gemms(const cpu_kernels *k)
{
    static const int32_t some_n[] = {1, 2, 7, 8, 9, 16, 17, 31, 64, 3, 4, 5};
    for (int i = 0; i < 12; i++)
        for (int f = 0; f < (k->gemm_inputs == GEMM_F32 ? 3 : 1); f++)
            check_gemm(k, formats[f], some_cols[i % 6], some_n[i], FILL_NORMAL);
    check_gemm(k, MATRIX_Q4, 128, 300, FILL_NORMAL);
    check_gemm(k, MATRIX_Q4, 2048, 5, FILL_NORMAL);
    check_gemm(k, MATRIX_Q4, 2112, 2, FILL_NORMAL);
    for (int kind = 0; kind < N_FILLS; kind++) check_gemm(k, MATRIX_Q4, 192, 3, (fill_kind)kind);
}

static void test_gemm(void **state)
{
    (void)state;
    FOR_EACH_VARIANT (v, gemm) check_gemms(&variants[v]);
}

/* More inputs than a cache holds have the bits of each alone: whole panels of rows and what is left
 * of them, an odd last group, a last tile of one input. */
static void check_many(const cpu_kernels *k, int32_t rows, int32_t cols, int32_t n)
{
    enum { BEGIN = 3, STRIDE = 320 };
    matrix m = random_matrix(MATRIX_Q4, rows, cols, (uint64_t)cols);
    float *x = guarded_floats((size_t)n * (size_t)cols);
    fill(x, (size_t)n * (size_t)cols, FILL_NORMAL, 12);
    void *packed = guarded(packed_bytes(k, n, cols)), *one = guarded(packed_bytes(k, 1, cols));
    float *y = guarded_floats((size_t)n * STRIDE), *alone = guarded_floats((size_t)rows);
    k->pack_input(x, cols, NULL, n, cols, packed);
    k->gemm(&m, BEGIN, rows, packed, n, y, STRIDE);
    if (k->gemm_many) {
        float *many = guarded_floats((size_t)n * STRIDE);
        void *scratch = guarded(GEMM_SCRATCH_BYTES);
        memset(scratch, 0xff, GEMM_SCRATCH_BYTES); /* whatever was there */
        k->gemm_many(&m, BEGIN, rows, packed, n, many, STRIDE, scratch);
        assert_memory_equal(many, y, (size_t)n * STRIDE * sizeof(float));
    }
    for (int32_t i = 0; i < n; i++) {
        const float *row = y + (size_t)i * STRIDE;
        for (int32_t r = 0; r < STRIDE; r++)
            if (r < BEGIN || r >= rows) assert_true(row[r] == 0);
        if (i % 7 && i < n - 2) continue;
        k->pack_input(x + (size_t)i * (size_t)cols, cols, NULL, 1, cols, one);
        k->gemm(&m, BEGIN, rows, one, 1, alone, rows);
        assert_memory_equal(row + BEGIN, alone + BEGIN, (size_t)(rows - BEGIN) * sizeof(float));
    }
    guarded_check();
}

static void test_gemm_many(void **state)
{
    (void)state;
    FOR_EACH_VARIANT (v, gemm) {
        check_many(&variants[v], 300, 2048, 289);
        check_many(&variants[v], 150, 4160, 130);
        check_many(&variants[v], 67, 576, 1023);
        check_many(&variants[v], 40, 16448, 33);
    }
}

/* Pieces copied to where gemm would write them. */
typedef struct piece_copy {
    float *y, *whole; // [GEMM_PIECE][stride], [n][stride]
    int64_t stride;
    int32_t n_done;
} piece_copy;

static void copy_piece(void *context, int32_t first, int32_t n)
{
    piece_copy *c = context;
    assert_int_equal(first, c->n_done);
    assert_int_equal(first % 32, 0);
    assert_true(n >= 1 && n <= GEMM_PIECE);
    memcpy(c->whole + first * c->stride, c->y, (size_t)(n * c->stride) * sizeof(float));
    memset(c->y, 0xff, (size_t)(n * c->stride) * sizeof(float)); /* what it may do */
    c->n_done += n;
}

static void check_pieces(const cpu_kernels *k, int32_t rows, int32_t cols, int32_t n)
{
    matrix m = random_matrix(MATRIX_Q4, rows, cols, (uint64_t)cols);
    const int64_t stride = rows;
    size_t floats = (size_t)n * (size_t)stride;
    float *x = guarded_floats((size_t)n * (size_t)cols), *y = guarded_floats(floats);
    piece_copy c = {guarded_floats((size_t)(GEMM_PIECE * stride)), guarded_floats(floats), stride,
                    0};
    void *packed = guarded(packed_bytes(k, n, cols));
    fill(x, (size_t)n * (size_t)cols, FILL_NORMAL, 13);
    k->pack_input(x, cols, NULL, n, cols, packed);
    k->gemm(&m, 0, rows, packed, n, y, stride);
    k->gemm_pieces(&m, packed, n, c.y, stride, guarded(GEMM_SCRATCH_BYTES), copy_piece, &c);
    assert_int_equal(c.n_done, n);
    assert_memory_equal(c.whole, y, floats * sizeof(float));
    guarded_check();
}

static void test_gemm_pieces(void **state)
{
    (void)state;
    FOR_EACH_VARIANT (v, gemm_pieces) {
        if (!variants[v].gemm_pieces) continue;
        check_pieces(&variants[v], 256, 2048, 333);
        check_pieces(&variants[v], 100, 192, 161);
        check_pieces(&variants[v], 300, 576, 290); /* more rows than a panel has */
        check_pieces(&variants[v], 128, 256, 17);
        check_pieces(&variants[v], 128, 256, 256);
    }
}

/* All numbers of inputs that are multiplied while weights are dequantised have the bits of one. */
static void test_gemm_few(void **state)
{
    (void)state;
    static const int32_t some_n[] = {16, 20, 32, 33, 48, 64, 77, 96, 113, 128};
    static const int32_t cols[] = {512, 128, 192, 576, 2048, 64, 320};
    FOR_EACH_VARIANT (v, gemm)
        for (int i = 0; i < 10; i++) check_many(&variants[v], 131 - i, cols[i % 7], some_n[i]);
}

/* The pair for router logits, as a table in which it is prefill's. */
static cpu_kernels with_f32_products(const cpu_kernels *k)
{
    cpu_kernels f32 = *k;
    f32.gemm_inputs = GEMM_F32;
    f32.pack_tile = k->pack_tile_f32;
    f32.pack_group_bytes = k->pack_group_bytes_f32;
    f32.pack_input = k->pack_input_f32;
    f32.gemm = k->gemm_f32;
    return f32;
}

static void test_gemm_f32(void **state)
{
    (void)state;
    FOR_EACH_VARIANT (v, gemm_f32) {
        cpu_kernels k = with_f32_products(&variants[v]);
        check_gemms(&k);
    }
}

/* The bf16 profile is exactly that: inputs and weights rounded to bf16, products in f32 or better.
 */
static void test_gemm_bf16(void **state)
{
    (void)state;
    enum { COLS = 576, N = 19, ROWS = 33 };
    FOR_EACH_VARIANT (v, gemm) {
        const cpu_kernels *k = &variants[v];
        if (k->gemm_inputs != GEMM_BF16) continue;
        matrix m = random_matrix(MATRIX_Q4, ROWS, COLS, 4);
        float *x = guarded_floats(N * COLS), *y = guarded_floats(N * ROWS);
        fill(x, N * COLS, FILL_NORMAL, 2);
        void *packed = guarded(packed_bytes(k, N, COLS));
        k->pack_input(x, COLS, NULL, N, COLS, packed);
        k->gemm(&m, 0, ROWS, packed, N, y, ROWS);
        for (int32_t i = 0; i < N; i++)
            for (int32_t r = 0; r < ROWS; r++) {
                double sum = 0, size = 0;
                for (int32_t c = 0; c < COLS; c++) {
                    float w = (float)matrix_element(&m, r, c);
                    double product = (double)bf16_to_f32(f32_to_bf16(w)) *
                                     (double)bf16_to_f32(f32_to_bf16(x[i * COLS + c]));
                    sum += product;
                    size += fabs(product);
                }
                assert_near((double)y[i * ROWS + r], sum, 1e-6 * size, k->isa);
            }
        guarded_check();
    }
}

/* A NaN or an infinity in one input reaches that input's results and no others. */
static void test_gemm_not_finite(void **state)
{
    (void)state;
    enum { COLS = 128, N = 9, ROWS = 4 };
    FOR_EACH_VARIANT (v, gemm) {
        const cpu_kernels *k = &variants[v];
        matrix m = random_matrix(MATRIX_Q4, ROWS, COLS, 4);
        float *x = guarded_floats(N * COLS), *y = guarded_floats(N * ROWS);
        fill(x, N * COLS, FILL_NORMAL, 2);
        x[3 * COLS + 100] = NAN;
        x[8 * COLS + 7] = INFINITY;
        void *packed = guarded(packed_bytes(k, N, COLS));
        k->pack_input(x, COLS, NULL, N, COLS, packed);
        k->gemm(&m, 0, ROWS, packed, N, y, ROWS);
        for (int32_t i = 0; i < N; i++)
            for (int32_t r = 0; r < ROWS; r++)
                assert_int_equal(isfinite(y[i * ROWS + r]) != 0, i != 3 && i != 8);
        guarded_check();
    }
}

/* Rows packed one by one and then gathered, in any order and more than once, and columns packed in
 * pieces are what pack_input gives. */
static void check_packing(const cpu_kernels *k, int32_t cols, int32_t n)
{
    enum { TOKENS = 20 };
    float *x = guarded_floats((size_t)TOKENS * (size_t)cols);
    fill(x, (size_t)TOKENS * (size_t)cols, FILL_NORMAL, 6);
    x[5 * cols + 1] = NAN;
    int32_t *rows = guarded((size_t)n * sizeof *rows);
    for (int32_t i = 0; i < n; i++) rows[i] = i * 7 % TOKENS;
    const size_t bytes = packed_bytes(k, n, cols);
    void *expected = guarded(bytes), *packed = guarded(bytes);
    k->pack_input(x, cols, rows, n, cols, expected);
    if (k->gather_rows) {
        void *one_by_one = guarded(packed_bytes(k, TOKENS, cols));
        k->pack_rows(x, cols, NULL, 3, cols, one_by_one);
        k->pack_rows(x + 3 * cols, cols, NULL, TOKENS - 3, cols,
                     (char *)one_by_one +
                         3 * (packed_bytes(k, k->pack_tile, cols) / (size_t)k->pack_tile));
        k->gather_rows(one_by_one, rows, n, cols, packed);
        assert_memory_equal(packed, expected, bytes);
        memset(packed, 0, bytes);
    }
    for (int32_t c = 0, n_cols; c < cols; c += n_cols) {
        n_cols = c == 0 || cols - c < 256 ? 128 : 256;
        if (cols - c < n_cols) n_cols = cols - c;
        float *part = guarded_floats((size_t)n * (size_t)n_cols);
        for (int32_t i = 0; i < n; i++)
            memcpy(part + i * n_cols, x + rows[i] * cols + c, (size_t)n_cols * sizeof *part);
        pack_input_columns(k, part, n, c, n_cols, cols, packed);
    }
    assert_memory_equal(packed, expected, bytes);
    guarded_check();
}

static void test_packing(void **state)
{
    (void)state;
    FOR_EACH_VARIANT (v, pack_input)
        for (int i = 0; i < 4; i++) {
            check_packing(&variants[v], 64 + 192 * i, 1 + 15 * i);
            check_packing(&variants[v], 2048, 16 + i);
        }
}

/* gemm_gated gives the bits of the kernels it stands for. */
static void check_gated(const cpu_kernels *k, int32_t rows, int32_t cols, int32_t n)
{
    matrix gate = random_matrix(MATRIX_Q4, rows, cols, 3),
           up = random_matrix(MATRIX_Q4, rows, cols, 4);
    float *x = guarded_floats((size_t)n * (size_t)cols);
    fill(x, (size_t)n * (size_t)cols, FILL_NORMAL, 5);
    if (n > 20) x[20 * cols + 7] = NAN; /* stays with its input */
    float *g = guarded_floats((size_t)n * (size_t)rows),
          *u = guarded_floats((size_t)n * (size_t)rows);
    void *packed = guarded(packed_bytes(k, n, cols)), *out = guarded(packed_bytes(k, n, rows));
    void *expected = guarded(packed_bytes(k, n, rows));
    k->pack_input(x, cols, NULL, n, cols, packed);
    k->gemm(&gate, 0, rows, packed, n, g, rows);
    k->gemm(&up, 0, rows, packed, n, u, rows);
    k->swiglu(g, u, n * rows, g);
    k->pack_input(g, rows, NULL, n, rows, expected);
    k->gemm_gated(&gate, &up, packed, n, out);
    assert_memory_equal(out, expected, packed_bytes(k, n, rows));
    guarded_check();
}

static void test_gemm_gated(void **state)
{
    (void)state;
    static const int32_t some_rows[] = {64, 128, 192, 512};
    static const int32_t some_n[] = {1, 16, 17, 33, 77, 128, 270};
    FOR_EACH_VARIANT (v, gemm_gated)
        for (int r = 0; variants[v].gemm_gated && r < 4; r++)
            for (int i = 0; i < 7; i++)
                check_gated(&variants[v], some_rows[r], some_cols[(r + i) % N_COLS], some_n[i]);
}

/* ---- bench ---- */

typedef struct linear_bench {
    const cpu_kernels *k;
    matrix m;
    int32_t n;
    float *x, *y;
    void *packed;
    const float *inputs[GEMV_MAX_INPUTS];
    const void *quantized[GEMV_MAX_INPUTS];
    float *outputs[GEMV_MAX_INPUTS];
} linear_bench;

static void run_gemv_q4(void *context)
{
    linear_bench *b = context;
    b->k->gemv_q4(&b->m, 0, b->m.rows, b->quantized, b->n, b->outputs);
}
static void run_gemv_f32(void *context)
{
    linear_bench *b = context;
    b->k->gemv_f32(&b->m, 0, b->m.rows, b->inputs, b->n, b->outputs);
}
static void run_quantize(void *context)
{
    linear_bench *b = context;
    b->k->quantize_input(b->x, b->m.cols, 0, b->m.cols / 64, b->packed);
}
static void run_pack(void *context)
{
    linear_bench *b = context;
    b->k->pack_input(b->x, b->m.cols, NULL, b->n, b->m.cols, b->packed);
}
static void run_gemm(void *context)
{
    linear_bench *b = context;
    b->k->gemm(&b->m, 0, b->m.rows, b->packed, b->n, b->y, b->m.rows);
}

static void bench_variant(const cpu_kernels *k)
{
    enum { ROWS = 512, COLS = 2048, MOST = 256 };
    linear_bench b = {.k = k};
    b.x = guarded_floats((size_t)MOST * COLS);
    fill(b.x, (size_t)MOST * COLS, FILL_NORMAL, 1);
    b.y = guarded_floats((size_t)MOST * ROWS);
    b.packed = guarded(packed_bytes(k, MOST, COLS));
    for (int i = 0; i < GEMV_MAX_INPUTS; i++) {
        void *q = guarded(quantized_bytes(COLS));
        k->quantize_input(b.x + i * COLS, COLS, 0, COLS / 64, q);
        b.quantized[i] = q;
        b.inputs[i] = b.x + i * COLS;
        b.outputs[i] = b.y + i * ROWS;
    }
    b.m = random_matrix(MATRIX_Q4, ROWS, COLS, 1);
    double bytes = (double)matrix_bytes(&b.m), products = 2.0 * ROWS * COLS;
    bench("quantize_input 2048", k->isa, COLS * 6.0, COLS * 4.0, run_quantize, &b);
    for (b.n = 1; b.n <= 8; b.n *= 8)
        bench(text("gemv_q4 512x2048 n %d", b.n), k->isa, bytes, products * b.n, run_gemv_q4, &b);
    for (b.n = 16; b.n <= MOST; b.n *= 4) {
        bench(text("pack_input n %d", b.n), k->isa, COLS * 8.0 * b.n, 0, run_pack, &b);
        bench(text("gemm 512x2048 n %d", b.n), k->isa, bytes, products * b.n, run_gemm, &b);
    }
    b.m = random_matrix(MATRIX_Q8, ROWS, COLS, 1);
    bytes = (double)matrix_bytes(&b.m);
    cpu_kernels f32 = with_f32_products(k);
    b.k = &f32;
    b.n = 64;
    b.packed = guarded(packed_bytes(&f32, b.n, COLS));
    run_pack(&b);
    bench("gemm_f32 q8 512x2048 n 64", k->isa, bytes, products * b.n, run_gemm, &b);
    for (b.n = 1; b.n <= 8; b.n *= 8)
        bench(text("gemv_f32 q8 512x2048 n %d", b.n), k->isa, bytes, products * b.n, run_gemv_f32,
              &b);
    guarded_check();
}

static void benches(void)
{
    for (int v = 0; v < n_variants; v++) bench_variant(&variants[v]);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_dequantize),
    cmocka_unit_test(test_gemv_f32),
    cmocka_unit_test(test_gemv_q4),
    cmocka_unit_test(test_quantize),
    cmocka_unit_test(test_quantize_not_finite),
    cmocka_unit_test(test_gemm),
    cmocka_unit_test(test_gemm_many),
    cmocka_unit_test(test_gemm_pieces),
    cmocka_unit_test(test_gemm_few),
    cmocka_unit_test(test_gemm_f32),
    cmocka_unit_test(test_gemm_bf16),
    cmocka_unit_test(test_gemm_not_finite),
    cmocka_unit_test(test_packing),
    cmocka_unit_test(test_gemm_gated),
};
KERNEL_TEST_MAIN(tests, benches)
