/* The CUDA kernels of decode against the C variants of the CPU's (and the sampler against the
 * engine's): random and extreme inputs, tails, both sides of each border. */
#include "base/philox.h"
#include "engine/sampler.h"
#include "support/kernels.h"
#include "support/support.h"

#include "device.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void release(void)
{
    gpu_free_all();
    guarded_check();
}

/* Rows of m as rows first ... of `to`. */
static void repack(const w4_matrix *to, int64_t first, const matrix *m, repack_rows order)
{
    size_t groups = (size_t)m->rows * (size_t)m->cols / 64;
    repack_args a = {.blocks = (unsigned char *)(uintptr_t)to->blocks,
                     .codes = gpu_bytes(m->codes, (size_t)m->rows * (size_t)m->cols / 2),
                     .scales = gpu_bytes(m->scales, groups * 2),
                     .biases = gpu_bytes(m->biases, groups * 2),
                     .cols = m->cols,
                     .first = first,
                     .n = m->rows,
                     .order = order};
    assert_cuda(launch_repack(&a, 0), "launch_repack");
}

static w4_matrix device_w4(const matrix *m)
{
    w4_matrix w = gpu_empty_w4(m->rows, m->cols);
    repack(&w, 0, m, REPACK_PLAIN);
    return w;
}

/* Close in the largest norm: |value - expected| <= bound * max |expected|, NaN where NaN. */
static void assert_rows(const float *value, const float *expected, size_t n, double bound,
                        const char *context)
{
    double largest = 0;
    for (size_t i = 0; i < n; i++)
        if (isfinite(expected[i])) largest = fmax(largest, fabs((double)expected[i]));
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(expected[i])) {
            if (isfinite(value[i])) fail_msg("%s: %zu is finite", context, i);
            continue;
        }
        assert_near((double)value[i], (double)expected[i], bound * largest, context);
    }
}

/* y += W x as the CPU decodes: rounded inputs, exact sums. */
static void multiply_c(const matrix *m, const float *x, float *y)
{
    unsigned char *q = guarded(quantized_bytes(m->cols));
    quantize_input_c(x, m->cols, 0, m->cols / 64, q);
    const void *in[1] = {q};
    float *out[1] = {y};
    gemv_q4_c(m, 0, m->rows, in, 1, out);
}

/* ---- gemv ---- */

enum { MOST = 8 };

static void stage_c(gemv_input input, const float *x, const float *gate, const float *factor,
                    int32_t cols, float *u)
{
    memcpy(u, x, (size_t)cols * sizeof *u);
    if (input == GEMV_INPUT_NORM) rmsnorm_c(x, factor, cols, 1e-6f, u);
    for (int32_t h = 0; input == GEMV_INPUT_GATED_NORM && h < cols; h += 128)
        gated_norm_c(x + h, gate + h, factor, 1e-6f, u + h);
}

static void check_gemv(gemv_input input, int32_t rows, int32_t cols, int32_t n, fill_kind kind)
{
    matrix m = random_matrix(MATRIX_Q4, rows, cols, (uint64_t)rows * 131 + (uint64_t)cols);
    size_t r = (size_t)rows, c = (size_t)cols, count = (size_t)n;
    float *x = guarded_floats(count * c), *gate = guarded_floats(count * c);
    float *factor = guarded_floats(c), *u = guarded_floats(c), *y = guarded_floats(count * r);
    float *expected = guarded_floats(count * r);
    fill(x, count * c, kind, 1);
    fill(gate, count * c, FILL_NORMAL, 2);
    fill(factor, c, FILL_NORMAL, 3);
    fill(y, count * r, FILL_NORMAL, 4);
    int32_t bad[MOST];
    for (int i = 0; i < MOST; i++) bad[i] = 1000;
    gemv_args a = {.w = device_w4(&m),
                   .input = input,
                   .n = n,
                   .x = gpu_floats(x, count * c),
                   .x_stride = cols,
                   .factor = gpu_floats(factor, c),
                   .eps = 1e-6f,
                   .gate = gpu_floats(gate, count * c),
                   .gate_stride = cols,
                   .y = gpu_floats(y, count * r),
                   .y_stride = rows,
                   .bad_layer = gpu_bytes(bad, sizeof bad),
                   .layer = 7};
    assert_cuda(launch_gemv(&a, 4, 0), "launch_gemv");
    for (int32_t i = 0; i < n; i++) {
        float *row = expected + (size_t)i * r;
        stage_c(input, x + (size_t)i * c, gate + (size_t)i * c, factor, cols, u);
        multiply_c(&m, u, row);
        for (size_t k = 0; input != GEMV_INPUT_NORM && k < r; k++) row[k] += y[(size_t)i * r + k];
    }
    gpu_fetch(y, a.y, count * r * sizeof *y);
    for (int32_t i = 0; i < n; i++) {
        const char *what =
            text("gemv %d, %d x %d, row %d of %d, %d", (int)input, rows, cols, i, n, kind);
        stage_c(input, x + (size_t)i * c, gate + (size_t)i * c, factor, cols, u);
        for (int32_t k = 0; k < rows; k += rows / 3 + 1) {
            double terms = 0;
            for (int32_t j = 0; j < cols; j++)
                terms += fabs(matrix_element(&m, k, j) * (double)u[j]);
            assert_near((double)y[(size_t)i * r + (size_t)k],
                        (double)expected[(size_t)i * r + (size_t)k], 1e-4 * terms + 1e-6, what);
        }
        if (rows > 16) assert_rows(y + (size_t)i * r, expected + (size_t)i * r, r, 1e-3, what);
    }
    gpu_fetch(bad, a.bad_layer, sizeof bad);
    for (int i = 0; i < n; i++) assert_int_equal(bad[i], 1000);
    release();
}

static void test_gemv(void **state)
{
    (void)state;
    static const int32_t shapes[][2] = {{1, 64},     {16, 128},   {17, 512},  {100, 576},
                                        {200, 1024}, {130, 2048}, {64, 2112}, {48, 4096}};
    for (int s = 0; s < 8; s++)
        for (int n = 1; n <= MOST; n += s % 2 ? 3 : 2)
            for (int kind = 0; kind < N_FILLS; kind++) {
                check_gemv(GEMV_INPUT_NORM, shapes[s][0], shapes[s][1], n, (fill_kind)kind);
                check_gemv(GEMV_INPUT_PLAIN, shapes[s][0], shapes[s][1], n, (fill_kind)kind);
                if (shapes[s][1] % 128 == 0)
                    check_gemv(GEMV_INPUT_GATED_NORM, shapes[s][0], shapes[s][1], n,
                               (fill_kind)kind);
            }
}

/* A row gives the same bits alone and among others, and a NaN in one stays there. */
static void test_gemv_rows(void **state)
{
    (void)state;
    enum { ROWS = 70, COLS = 1024 };
    matrix m = random_matrix(MATRIX_Q4, ROWS, COLS, 5);
    float *x = guarded_floats(MOST * COLS), *factor = guarded_floats(COLS);
    static float y[MOST][ROWS], alone[ROWS];
    int32_t bad[MOST] = {9, 9, 9, 9, 9, 9, 9, 9};
    fill(x, MOST * COLS, FILL_SPIKES, 6);
    fill(factor, COLS, FILL_NORMAL, 7);
    x[2 * COLS + 77] = NAN;
    gemv_args a = {.w = device_w4(&m),
                   .n = MOST,
                   .x = gpu_floats(x, MOST * COLS),
                   .x_stride = COLS,
                   .factor = gpu_floats(factor, COLS),
                   .eps = 1e-6f,
                   .y = gpu_floats(NULL, MOST * ROWS),
                   .y_stride = ROWS,
                   .bad_layer = gpu_bytes(bad, sizeof bad),
                   .layer = 7};
    assert_cuda(launch_gemv(&a, 4, 0), "launch_gemv");
    gpu_fetch(y, a.y, sizeof y);
    gpu_fetch(bad, a.bad_layer, sizeof bad);
    for (int i = 0; i < MOST; i++) assert_int_equal(bad[i], i == 2 ? 7 : 9);
    for (int n = 1; n < 4; n++)
        for (int i = 0; i + n <= MOST; i++) {
            gemv_args one = a;
            one.n = n;
            one.x = a.x + i * COLS;
            assert_cuda(launch_gemv(&one, 4, 0), "launch_gemv");
            gpu_fetch(alone, one.y, sizeof alone);
            if (i != 2)
                assert_memory_equal(alone, y[i], sizeof alone);
            else
                assert_true(isnan(alone[0]));
        }
    release();
}

/* ---- mixture of experts ---- */

typedef struct moe_shape {
    int32_t hidden, width, shared_width, n_experts, k, n;
} moe_shape;

static matrix rows_of(const matrix *m, int32_t expert, int32_t rows)
{
    return matrix_rows(m, (int64_t)expert * rows, rows);
}

static void moe_row_c(const moe_shape *s, const matrix *router, const matrix *gate,
                      const matrix *up, const matrix *down, const matrix *shared, const float *x,
                      const float *factor, float *logits, float *out)
{
    float *u = guarded_floats((size_t)s->hidden), *d = guarded_floats((size_t)s->hidden);
    int32_t widest = s->width > s->shared_width ? s->width : s->shared_width, experts[64];
    float *g = guarded_floats((size_t)widest), *h = guarded_floats((size_t)widest), weights[64];
    const float *in[1] = {u};
    float *y[1] = {logits};
    rmsnorm_c(x, factor, s->hidden, 1e-6f, u);
    gemv_f32_c(router, 0, s->n_experts + 1, in, 1, y);
    router_top_k_c(logits, s->n_experts, s->k, experts, weights);
    memcpy(out, x, (size_t)s->hidden * sizeof *out);
    for (int32_t i = 0; i <= s->k; i++) {
        bool routed = i < s->k;
        matrix mg = routed ? rows_of(gate, experts[i], s->width) : shared[0];
        matrix mu = routed ? rows_of(up, experts[i], s->width) : shared[1];
        matrix md = routed ? rows_of(down, experts[i], s->hidden) : shared[2];
        multiply_c(&mg, u, g);
        multiply_c(&mu, u, h);
        swiglu_c(g, h, mg.rows, h);
        multiply_c(&md, h, d);
        float weight = routed ? weights[i] : 1.0f / (1.0f + expf(-logits[s->n_experts]));
        add_scaled_c(out, d, weight, s->hidden);
    }
}

static void check_moe(const moe_shape *s, fill_kind kind)
{
    size_t hidden = (size_t)s->hidden, n = (size_t)s->n, outputs = (size_t)s->n_experts + 1;
    matrix router = random_matrix(MATRIX_Q8, s->n_experts + 1, s->hidden, 1);
    matrix gate = random_matrix(MATRIX_Q4, s->n_experts * s->width, s->hidden, 2);
    matrix up = random_matrix(MATRIX_Q4, s->n_experts * s->width, s->hidden, 3);
    matrix down = random_matrix(MATRIX_Q4, s->n_experts * s->hidden, s->width, 4);
    matrix shared[3] = {random_matrix(MATRIX_Q4, s->shared_width, s->hidden, 5),
                        random_matrix(MATRIX_Q4, s->shared_width, s->hidden, 6),
                        random_matrix(MATRIX_Q4, s->hidden, s->shared_width, 7)};
    float *x = guarded_floats(n * hidden), *factor = guarded_floats(hidden);
    float *logits = guarded_floats(n * outputs), *expected_logits = guarded_floats(n * outputs);
    float *out = guarded_floats(n * hidden), *expected = guarded_floats(n * hidden);
    fill(x, n * hidden, kind, 8);
    fill(factor, hidden, FILL_NORMAL, 9);
    int32_t bad[MOST] = {9, 9, 9, 9, 9, 9, 9, 9};
    size_t groups = outputs * hidden / 64;
    w8_matrix w = {gpu_bytes(router.codes, outputs * hidden), gpu_bytes(NULL, groups * 4),
                   s->n_experts + 1, s->hidden};
    assert_cuda(launch_pair(gpu_bytes(router.scales, groups * 2),
                            gpu_bytes(router.biases, groups * 2), (int64_t)groups,
                            (uint32_t *)(uintptr_t)w.pairs, 0),
                "launch_pair");
    w4_matrix inner = gpu_empty_w4(s->n_experts * 2 * s->width, s->hidden);
    w4_matrix shared_inner = gpu_empty_w4(2 * s->shared_width, s->hidden);
    repack(&inner, 0, &gate, REPACK_GATE);
    repack(&inner, 0, &up, REPACK_UP);
    repack(&shared_inner, 0, &shared[0], REPACK_GATE);
    repack(&shared_inner, 0, &shared[1], REPACK_UP);
    size_t block_row = W4_BLOCK_BYTES / W4_STRIP_ROWS;
    router_args r = {.w = w,
                     .n = s->n,
                     .x = gpu_floats(x, n * hidden),
                     .x_stride = s->hidden,
                     .factor = gpu_floats(factor, hidden),
                     .eps = 1e-6f,
                     .logits = gpu_floats(NULL, n * outputs),
                     .bad_layer = gpu_bytes(bad, sizeof bad)};
    expert_args e = {
        .inner = inner,
        .outer = device_w4(&down),
        .shared_inner = shared_inner,
        .shared_outer = device_w4(&shared[2]),
        .inner_bytes = (size_t)(2 * s->width) * (hidden / 64) * block_row,
        .outer_bytes = hidden * (size_t)(s->width / 64) * block_row,
        .n_experts = s->n_experts,
        .k = s->k,
        .n = s->n,
        .x = r.x,
        .x_stride = s->hidden,
        .factor = r.factor,
        .eps = 1e-6f,
        .logits = r.logits,
        .h_stride = (int64_t)s->k * s->width + s->shared_width,
        .x_out = (float *)(uintptr_t)r.x,
    };
    e.inner.rows = 2 * s->width;
    e.outer.rows = s->hidden;
    e.h = gpu_floats(NULL, n * (size_t)e.h_stride);
    assert_cuda(launch_router(&r, 0), "launch_router");
    assert_cuda(launch_expert_inner(&e, 0), "launch_expert_inner");
    assert_cuda(launch_expert_outer(&e, 0), "launch_expert_outer");
    gpu_fetch(logits, r.logits, n * outputs * sizeof *logits);
    gpu_fetch(out, e.x_out, n * hidden * sizeof *out);
    const char *what = text("moe of %d, %d of %d, %d", s->hidden, s->k, s->n_experts, (int)kind);
    for (size_t i = 0; i < n; i++) {
        moe_row_c(s, &router, &gate, &up, &down, shared, x + i * hidden, factor,
                  expected_logits + i * outputs, expected + i * hidden);
        assert_rows(logits + i * outputs, expected_logits + i * outputs, outputs, 1e-5, what);
        assert_rows(out + i * hidden, expected + i * hidden, hidden, 5e-4, what);
    }
    release();
}

static void test_moe(void **state)
{
    (void)state;
    static const moe_shape shapes[] = {{64, 64, 64, 4, 4, 1},    {128, 64, 128, 16, 4, 3},
                                       {256, 128, 64, 33, 8, 2}, {1024, 64, 64, 256, 8, 1},
                                       {2112, 576, 64, 5, 3, 1}, {128, 64, 64, 40, 20, 2}};
    for (int i = 0; i < 6; i++)
        for (int kind = 0; kind <= FILL_SPIKES; kind++) check_moe(&shapes[i], (fill_kind)kind);
}

/* ---- Gated DeltaNet ---- */

/* MODEL.md 3.5 for 32 value columns: state [128][32], q, k [128], v, out [32]. */
static void step_slice(float *state, const float *q, const float *k, const float *v, float decay,
                       float beta, float *out)
{
    for (int j = 0; j < 32; j++) {
        double p = 0, o = 0;
        for (int i = 0; i < 128; i++) p += (double)state[i * 32 + j] * (double)k[i];
        double d = (double)beta * ((double)v[j] - (double)decay * p);
        for (int i = 0; i < 128; i++) {
            float *s = state + i * 32 + j;
            *s = (float)((double)decay * (double)*s + (double)k[i] * d);
            o += (double)*s * (double)q[i];
        }
        out[j] = (float)o;
    }
}

static void check_gdn(int32_t key_heads, int32_t value_heads)
{
    enum { STEPS = 6 };
    const int32_t key = key_heads * 128, value = value_heads * 128, channels = 2 * key + value;
    const size_t c = (size_t)channels, v = (size_t)value, heads = (size_t)value_heads;
    const size_t stride = c + v + 2 * heads, scan = v * 128, floats = scan + 4 * c;
    float *projected = guarded_floats(STEPS * stride), *taps = guarded_floats(4 * c);
    float *neg = guarded_floats(heads), *bias = guarded_floats(heads);
    float *state = guarded_floats(scan), *got = guarded_floats(floats), *f = guarded_floats(c);
    float *expected = guarded_floats(v), *out = guarded_floats(v), *zeros = guarded_floats(c);
    fill(projected, STEPS * stride, FILL_NORMAL, 11);
    fill(taps, 4 * c, FILL_NORMAL, 12);
    fill(neg, heads, FILL_NORMAL, 13);
    fill(bias, heads, FILL_NORMAL, 14);
    for (size_t h = 0; h < heads; h++) neg[h] = -fabsf(neg[h]);
    step_input input;
    memset(&input, 0, sizeof input);
    step_input *device_input = gpu_bytes(NULL, sizeof input);
    gdn_step_args a = {.store = {.states = gpu_floats(NULL, 2 * floats),
                                 .state_floats = floats,
                                 .layer_floats = floats,
                                 .window_offset = scan},
                       .input = device_input,
                       .n = 1,
                       .key_heads = key_heads,
                       .value_heads = value_heads,
                       .stride = (int64_t)stride,
                       .taps = gpu_floats(taps, 4 * c),
                       .neg_exp_a = gpu_floats(neg, heads),
                       .dt_bias = gpu_floats(bias, heads),
                       .out = gpu_floats(NULL, v)};
    const float *device_rows = gpu_floats(projected, STEPS * stride);
    for (int t = 0; t < STEPS; t++) {
        const float *row = projected + (size_t)t * stride, *window[4];
        for (int i = 0; i < 4; i++)
            window[i] = t - 3 + i < 0 ? zeros : projected + (size_t)(t - 3 + i) * stride;
        conv_silu_c(window, taps, channels, 0, channels, f);
        for (int32_t h = 0; h < key_heads; h++) {
            l2norm_c(f + h * 128, 1.0f / sqrtf(128));
            l2norm_c(f + key + h * 128, 1);
        }
        for (int32_t h = 0; h < value_heads; h++) {
            float decay, beta;
            gdn_gates_c(row + c + v + h, row + c + v + heads + (size_t)h, neg + h, bias + h, 1,
                        &decay, &beta);
            int32_t k = h / (value_heads / key_heads) * 128;
            for (int32_t s = 0; s < 4; s++)
                step_slice(state + (size_t)(h * 4 + s) * 128 * 32, f + k, f + key + k,
                           f + 2 * key + h * 128 + s * 32, decay, beta,
                           expected + h * 128 + s * 32);
        }
        input.rows[0].position = t;
        input.rows[0].state = 1;
        assert_cuda(cudaMemcpy(device_input, &input, sizeof input, cudaMemcpyHostToDevice),
                    "input");
        a.projected = device_rows + (size_t)t * stride;
        assert_cuda(launch_gdn_step(&a, 0), "launch_gdn_step");
        gpu_fetch(out, a.out, v * sizeof *out);
        gpu_fetch(got, a.store.states + floats, floats * sizeof *got);
        assert_rows(out, expected, v, 1e-5, text("gdn step %d, %d heads", t, value_heads));
        assert_rows(got, state, scan, 1e-5, text("gdn state %d, %d heads", t, value_heads));
        assert_memory_equal(got + scan + (size_t)(t % 4) * c, row, c * sizeof *row);
    }
    release();
}

static void test_gdn(void **state)
{
    (void)state;
    check_gdn(1, 1);
    check_gdn(2, 4);
    check_gdn(2, 6);
}

/* ---- attention ---- */

/* One row at `position` of a context filled with random halves. */
static void check_attention(int32_t query_heads, int32_t kv_heads, int32_t position)
{
    const int32_t n_blocks = position / 256 + 1;
    const size_t q_heads = (size_t)query_heads, m_heads = (size_t)kv_heads, head = 256 * 256;
    const size_t stride = (2 * q_heads + 2 * m_heads) * 256, layer = 2 * m_heads * head;
    float *projected = guarded_floats(stride), *factors = guarded_floats(512);
    float *expected = guarded_floats(q_heads * 256), *out = guarded_floats(q_heads * 256);
    float *wide = guarded_floats(head), *q = guarded_floats(256), *part = guarded_floats(256);
    uint16_t *kv = guarded((size_t)n_blocks * 2 * layer * 2);
    int32_t *table = guarded((size_t)n_blocks * 4);
    unsigned *arrived = guarded(q_heads * 4);
    fill(projected, stride, FILL_NORMAL, 21);
    fill(factors, 512, FILL_NORMAL, 22);
    step_input input;
    memset(&input, 0, sizeof input);
    input.rows[0].position = position;
    for (int j = 0; j < 32; j++) {
        input.rows[0].cosines[j] = (float)cos(position / (j + 1.0));
        input.rows[0].sines[j] = (float)sin(position / (j + 1.0));
    }
    for (int32_t i = 0; i < n_blocks; i++) {
        table[i] = n_blocks - 1 - i; /* not in order */
        for (size_t k = 0; k < 2 * layer / head; k++) {
            fill(wide, head, FILL_NORMAL, 100 + (uint64_t)i * 64 + k);
            f32_to_f16_c(wide, (int32_t)head, kv + (size_t)i * 2 * layer + k * head);
        }
    }
    unsigned char *device_kv = gpu_bytes(kv, (size_t)n_blocks * 2 * layer * 2);
    attention_step_args a = {.store = {.kv = device_kv,
                                       .block_bytes = 2 * layer * 2,
                                       .layer_bytes = layer * 2,
                                       .tables = gpu_bytes(table, (size_t)n_blocks * 4),
                                       .max_blocks = n_blocks},
                             .input = gpu_bytes(&input, sizeof input),
                             .n = 1,
                             .attention_index = 1,
                             .query_heads = query_heads,
                             .kv_heads = kv_heads,
                             .projected = gpu_floats(projected, stride),
                             .stride = (int64_t)stride,
                             .q_norm = gpu_floats(factors, 256),
                             .k_norm = gpu_floats(factors + 256, 256),
                             .eps = 1e-6f,
                             .part_out = gpu_floats(NULL, q_heads * ATTENTION_PARTS * 256),
                             .part_max = gpu_floats(NULL, q_heads * ATTENTION_PARTS),
                             .part_sum = gpu_floats(NULL, q_heads * ATTENTION_PARTS),
                             .arrived = gpu_bytes(arrived, q_heads * 4),
                             .out = gpu_floats(NULL, q_heads * 256)};
    for (int round = 0; round < 2; round++) { /* `arrived` is zero again */
        assert_cuda(launch_attention_step(&a, 0), "launch_attention_step");
        gpu_fetch(out, a.out, q_heads * 256 * sizeof *out);
    }
    const step_row *in = &input.rows[0];
    for (int32_t m = 0; m < kv_heads; m++) { /* the newest K and V */
        size_t at = ((size_t)table[n_blocks - 1] * 2 + 1) * layer + (size_t)m * head +
                    (size_t)(position % 256) * 256;
        const float *k = projected + (2 * q_heads + (size_t)m) * 256;
        rmsnorm_c(k, factors + 256, 256, 1e-6f, q);
        rope_c(q, in->cosines, in->sines);
        f32_to_f16_c(q, 256, kv + at);
        f32_to_f16_c(k + m_heads * 256, 256, kv + at + m_heads * head);
    }
    for (int32_t h = 0; h < query_heads; h++) {
        float max = -INFINITY, sum = 0, *o = expected + h * 256;
        rmsnorm_c(projected + 2 * h * 256, factors, 256, 1e-6f, q);
        rope_c(q, in->cosines, in->sines);
        for (int d = 0; d < 256; d++) q[d] *= 0.0625f;
        for (int32_t i = 0; i < n_blocks; i++) {
            const uint16_t *k = kv + ((size_t)table[i] * 2 + 1) * layer +
                                (size_t)(h / (query_heads / kv_heads)) * head;
            int32_t visible = position + 1 - i * 256 < 256 ? position + 1 - i * 256 : 256;
            float part_max, part_sum;
            attention_block_f16_c(&(attention_block_args){.q = q,
                                                          .n_rows = 1,
                                                          .visible = &visible,
                                                          .k = k,
                                                          .v = k + m_heads * head,
                                                          .max = &part_max,
                                                          .sum = &part_sum,
                                                          .out = part});
            attention_merge_c(&max, &sum, o, part_max, part_sum, part);
        }
        for (int d = 0; d < 256; d++) o[d] /= sum;
        sigmoid_gate_c(o, projected + (2 * h + 1) * 256, 256);
    }
    assert_rows(out, expected, q_heads * 256, 1e-3,
                text("attention of %d heads at %d", query_heads, position));
    release();
}

static void test_attention(void **state)
{
    (void)state;
    static const int32_t positions[] = {0, 1, 7, 31, 32, 33, 255, 256, 511, 2047, 2048, 2100, 5000};
    for (int i = 0; i < 13; i++) check_attention(4, 2, positions[i]);
    for (int i = 0; i < 13; i += 3) {
        check_attention(16, 2, positions[i]);
        check_attention(12, 1, positions[i]); /* two groups of heads */
        check_attention(1, 1, positions[i]);
    }
}

/* ---- sampling ---- */

typedef struct sampling_case {
    calla_sampling p;
    fill_kind kind;
    double scale;
} sampling_case;

static void check_sample(int32_t n_vocab, int32_t n_tokens, const sampling_case *c, uint64_t seed)
{
    size_t n = (size_t)n_vocab, words = (n + 31) / 32;
    float *logits = guarded_floats(n);
    uint32_t *mask = guarded(words * 4);
    calla_logit_bias bias[3] = {{1 % n_tokens, 5}, {0, -INFINITY}, {1 % n_tokens, -2.5f}};
    token_counts generated;
    sampler s;
    calla_error err;
    calla_sampling p = c->p;
    assert_ok(sampler_init(&s, n_tokens, &err), &err);
    assert_ok(token_counts_init(&generated, n_vocab, &err), &err);
    fill(logits, n, c->kind, seed);
    for (size_t i = 0; i < n; i++) logits[i] = (float)((double)logits[i] * c->scale);
    if (seed % 3 == 0) /* ties */
        for (size_t i = 0; i < n; i++) logits[i] = rintf(logits[i] * 2) / 2;
    for (size_t i = 0; i < words; i++) mask[i] = (uint32_t)(philox_uniform(seed, i, 9) * 0x1p32);
    mask[0] |= 7;
    for (int i = 0; i < 40; i++)
        token_counts_add(&generated, (int32_t)random_below((uint32_t)n_tokens, seed, (uint64_t)i));
    p.seed = seed;
    if (seed % 4 == 1) p.token_mask = mask;
    if (seed % 4 == 2 && n_tokens > 2) p.logit_bias = bias, p.n_logit_bias = 3;
    calla_sampled expected;
    const int64_t position = (int64_t)seed * 7;
    assert_ok(sampler_choose(&s, logits, &p, &generated, position, &expected, &err), &err);

    step_input input;
    memset(&input, 0, sizeof input);
    int32_t tokens[3], bad = INT32_MAX, *counts = guarded((size_t)generated.n_distinct * 4);
    float values[3];
    for (int i = 0; i < 3; i++) tokens[i] = bias[i].token, values[i] = bias[i].bias;
    for (int32_t i = 0; i < generated.n_distinct; i++)
        counts[i] = generated.counts[generated.distinct[i]];
    input.rows[0].position = (int32_t)position - 1;
    input.rows[0].slot = 1;
    input.rows[0].sampling = (step_sampling){.temperature = p.temperature,
                                             .top_p = p.top_p,
                                             .min_p = p.min_p,
                                             .presence_penalty = p.presence_penalty,
                                             .frequency_penalty = p.frequency_penalty,
                                             .repetition_penalty = p.repetition_penalty,
                                             .top_k = p.top_k,
                                             .n_top_logprobs = p.n_top_logprobs,
                                             .seed = p.seed,
                                             .n_bias = p.n_logit_bias,
                                             .n_generated = generated.n_distinct,
                                             .use_mask = p.token_mask != NULL,
                                             .wanted = 1};
    step_output output = {.bad_logit = INT32_MAX};
    sample_args a = {
        .input = gpu_bytes(&input, sizeof input),
        .n = 1,
        .n_vocab = n_vocab,
        .n_tokens = n_tokens,
        .logits = gpu_floats(logits, n),
        .masks = gpu_bytes(mask, words * 4),
        .mask_words = (int32_t)words,
        .bias_tokens = gpu_bytes(tokens, sizeof tokens),
        .bias_values = gpu_floats(values, 3),
        .generated_tokens = gpu_bytes(generated.distinct, (size_t)generated.n_distinct * 4),
        .generated_counts = gpu_bytes(counts, (size_t)generated.n_distinct * 4),
        .list = n_vocab,
        .values = gpu_floats(NULL, n),
        .parts = gpu_bytes(NULL, (size_t)sample_n_parts(n_tokens) * sizeof(sample_part)),
        .bad_layer = gpu_bytes(&bad, 4),
        .sampled = gpu_bytes(NULL, 8),
        .output = gpu_bytes(&output, sizeof output)};
    assert_cuda(launch_sample(&a, 0), "launch_sample");
    int32_t sampled[2];
    gpu_fetch(&output, a.output, sizeof output);
    gpu_fetch(sampled, a.sampled, sizeof sampled);
    const char *what = text("t %g k %d p %g min %g, %d tokens, seed %d", (double)p.temperature,
                            p.top_k, (double)p.top_p, (double)p.min_p, n_tokens, (int)seed);
    if (output.token != expected.token)
        fail_msg("%s: token %d instead of %d", what, output.token, expected.token);
    assert_int_equal(sampled[1], expected.token);
    assert_int_equal(output.bad_logit, INT32_MAX);
    assert_near((double)output.logprob, (double)expected.logprob, 1e-5, what);
    assert_int_equal(output.n_top, expected.n_top);
    for (int32_t i = 0; i < output.n_top; i++) {
        assert_int_equal(output.top_tokens[i], expected.top_tokens[i]);
        assert_near((double)output.top_logprobs[i], (double)expected.top_logprobs[i], 1e-5, what);
    }
    sampler_deinit(&s);
    token_counts_deinit(&generated);
    release();
}

static void test_sample(void **state)
{
    (void)state;
    static const sampling_case cases[] = {
        {{.temperature = 0}, FILL_NORMAL, 3},
        {{.temperature = 0, .n_top_logprobs = 20}, FILL_NORMAL, 3},
        {{.temperature = 1, .top_k = 20, .top_p = 0.95f}, FILL_NORMAL, 3},
        {{.temperature = 0.7f, .top_k = 64, .min_p = 0.05f, .n_top_logprobs = 5}, FILL_NORMAL, 2},
        {{.temperature = 1.5f, .top_k = 65}, FILL_NORMAL, 1},
        {{.temperature = 1, .top_p = 0.9f}, FILL_NORMAL, 1},
        {{.temperature = 2, .min_p = 0.1f}, FILL_NORMAL, 1},
        {{.temperature = 1, .top_k = 500, .top_p = 0.5f, .min_p = 0.001f}, FILL_NORMAL, 1},
        {{.temperature = 1}, FILL_NORMAL, 1},
        {{.temperature = 1}, FILL_ZERO, 1},
        {{.temperature = 1, .top_k = 3}, FILL_ZERO, 1},
        {{.temperature = 100, .top_k = 100}, FILL_SPIKES, 1},
        {{.temperature = 1e-38f, .top_k = 7}, FILL_NORMAL, 1},
        {{.temperature = 1,
          .top_k = 20,
          .repetition_penalty = 1.3f,
          .frequency_penalty = 0.5f,
          .presence_penalty = -1},
         FILL_NORMAL,
         3},
    };
    static const int32_t sizes[][2] = {
        {1, 1}, {320, 319}, {4096, 4096}, {5000, 4097}, {20000, 19000}};
    for (int i = 0; i < 14; i++)
        for (int k = 0; k < 5; k++)
            for (uint64_t seed = 1; seed <= 6; seed++)
                check_sample(sizes[k][0], sizes[k][1], &cases[i], seed);
}

int main(void)
{
    if (!gpu_begin()) {
        printf("SKIP: no CUDA device\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gemv),      cmocka_unit_test(test_gemv_rows),
        cmocka_unit_test(test_moe),       cmocka_unit_test(test_gdn),
        cmocka_unit_test(test_attention), cmocka_unit_test(test_sample),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
