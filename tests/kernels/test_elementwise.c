/* Norms, gates, activations, routing and conversions against double arithmetic. */
#include "support/kernels.h"

#include "base/numbers.h"
#include "support/support.h"

#include <float.h>
#include <math.h>
#include <string.h>

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}
static double silu(double x)
{
    return x * sigmoid(x);
}

static const int32_t some_n[] = {8, 64, 128, 264, 2048};

static void test_rmsnorm(void **state)
{
    (void)state;
    FOR_EACH_VARIANT (v, rmsnorm)
        for (int i = 0; i < 5; i++)
            for (int kind = 0; kind < N_FILLS; kind++) {
                int32_t n = some_n[i];
                float *x = guarded_floats((size_t)n), *factor = guarded_floats((size_t)n);
                float *out = guarded_floats((size_t)n);
                fill(x, (size_t)n, (fill_kind)kind, 1);
                fill(factor, (size_t)n, FILL_NORMAL, 2);
                double squares = 0;
                for (int32_t j = 0; j < n; j++) squares += (double)x[j] * (double)x[j];
                float mean = variants[v].rmsnorm(x, factor, n, 1e-6f, out);
                assert_near((double)mean, squares / n, 1e-6 * squares / n + 1e-45, "mean square");
                for (int32_t j = 0; j < n; j++) {
                    double y = (double)x[j] / sqrt(squares / n + 1e-6) * (double)factor[j];
                    assert_near((double)out[j], y, 1e-6 * fabs(y) + 1e-37,
                                text("%s n %d fill %d", variants[v].isa, n, kind));
                }
                variants[v].rmsnorm(x, factor, n, 1e-6f, x); /* in place */
                assert_memory_equal(x, out, (size_t)n * sizeof(float));
                x[n - 3] = INFINITY;
                assert_false(isfinite(variants[v].rmsnorm(x, factor, n, 1e-6f, out)));
                x[n - 3] = NAN;
                assert_false(isfinite(variants[v].rmsnorm(x, factor, n, 1e-6f, out)));
                guarded_check();
            }
}

static void test_head_norms(void **state)
{
    (void)state;
    enum { N = GDN_HEAD_DIM };
    FOR_EACH_VARIANT (v, gated_norm)
        for (int kind = 0; kind < N_FILLS; kind++) {
            float *x = guarded_floats(N), *z = guarded_floats(N), *w = guarded_floats(N);
            float *out = guarded_floats(N);
            fill(x, N, (fill_kind)kind, 1);
            fill(z, N, FILL_SPIKES, 2);
            fill(w, N, FILL_NORMAL, 3);
            double squares = 0;
            for (int j = 0; j < N; j++) squares += (double)x[j] * (double)x[j];
            variants[v].gated_norm(x, z, w, 1e-6f, out);
            for (int j = 0; j < N; j++) {
                double y =
                    (double)w[j] * ((double)x[j] / sqrt(squares / N + 1e-6)) * silu((double)z[j]);
                assert_near((double)out[j], y, 2e-6 * fabs(y) + 1e-34,
                            text("%s gated_norm fill %d", variants[v].isa, kind));
            }
            memcpy(out, x, N * sizeof(float));
            variants[v].l2norm(out, 0.25f);
            for (int j = 0; j < N; j++) {
                double y = (double)x[j] / sqrt(squares + 1e-6) * 0.25;
                assert_near((double)out[j], y, 1e-6 * fabs(y) + 1e-37,
                            text("%s l2norm fill %d", variants[v].isa, kind));
            }
            guarded_check();
        }
}

static void test_conv_silu(void **state)
{
    (void)state;
    enum { N = 320 };
    FOR_EACH_VARIANT (v, conv_silu)
        for (int kind = 0; kind < N_FILLS; kind++) {
            const float *rows[CONV_TAPS];
            float *taps = guarded_floats(CONV_TAPS * N), *out = guarded_floats(N);
            fill(taps, CONV_TAPS * N, FILL_NORMAL, 1);
            for (int i = 0; i < CONV_TAPS; i++) {
                float *row = guarded_floats(N);
                fill(row, N, (fill_kind)kind, (uint64_t)i + 2);
                rows[i] = row;
            }
            variants[v].conv_silu(rows, taps, N, 64, N - 64, out);
            for (int c = 0; c < N; c++) {
                double sum = 0, size = 0;
                for (int i = 0; i < CONV_TAPS; i++) {
                    sum += (double)taps[i * N + c] * (double)rows[i][c];
                    size += fabs((double)taps[i * N + c] * (double)rows[i][c]);
                }
                bool inside = c >= 64 && c < N - 64;
                assert_near((double)out[c], inside ? silu(sum) : 0,
                            1e-6 * size + 1e-6 * fabs(silu(sum)) + 1e-37,
                            text("%s fill %d channel %d", variants[v].isa, kind, c));
            }
            guarded_check();
        }
}

static void test_gdn_gates(void **state)
{
    (void)state;
    enum { N = 33 };
    static const float extremes[] = {-FLT_MAX, -200, -90, -20, 0, 19.9f, 20.1f, 90, 1e30f};
    FOR_EACH_VARIANT (v, gdn_gates) {
        float a[N], b[N], neg_exp_a[N], dt_bias[N], *out = guarded_floats(2 * N);
        fill(a, N, FILL_NORMAL, 1);
        fill(b, N, FILL_NORMAL, 2);
        fill(dt_bias, N, FILL_NORMAL, 3);
        fill(neg_exp_a, N, FILL_NORMAL, 4);
        for (int h = 0; h < N; h++) {
            if (h < 9) a[h] = extremes[h], b[h] = extremes[8 - h], dt_bias[h] = 0;
            neg_exp_a[h] = h % 4 == 3 ? -FLT_MAX : -fabsf(neg_exp_a[h]);
        }
        variants[v].gdn_gates(a, b, neg_exp_a, dt_bias, N, out, out + N);
        for (int h = 0; h < N; h++) {
            double x = (double)a[h] + (double)dt_bias[h];
            double softplus = x > 20 ? x : log1p(exp(x));
            double exponent = (double)neg_exp_a[h] * softplus;
            /* The exponent's own rounding, times what exp makes of it. */
            double bound = exp(exponent) * (1e-6 + fabs(exponent) * 1e-6) + 1e-37;
            assert_near((double)out[h], exp(exponent), bound,
                        text("%s decay %d", variants[v].isa, h));
            assert_near((double)out[N + h], sigmoid((double)b[h]), 1e-6, "beta");
        }
        guarded_check();
    }
}

/* Gates and norms show what is not finite, and squares that leave f32's range. */
static void test_not_finite(void **state)
{
    (void)state;
    enum { N = GDN_HEAD_DIM };
    static const float bad[] = {NAN, INFINITY, -INFINITY, 1e30f};
    FOR_EACH_VARIANT (v, rmsnorm)
        for (int i = 0; i < 4; i++) {
            const float one = 1, minus = -1, *b = &bad[i];
            float decay, beta;
            if (i < 3) {
                variants[v].gdn_gates(b, &one, &minus, &one, 1, &decay, &beta);
                assert_true(!isfinite(decay) && isfinite(beta));
                variants[v].gdn_gates(&one, b, &minus, &one, 1, &decay, &beta);
                assert_true(isfinite(decay) && !isfinite(beta));
            }
            float *x = guarded_floats(N), *z = guarded_floats(N), *w = guarded_floats(N);
            float *out = guarded_floats(N);
            for (int kind = 0; kind < 3; kind++) {
                fill(x, N, FILL_NORMAL, 1);
                fill(z, N, FILL_NORMAL, 2);
                fill(w, N, FILL_NORMAL, 3);
                x[77] = *b;
                if (kind == 0)
                    variants[v].rmsnorm(x, w, N, 1e-6f, out);
                else if (kind == 1)
                    variants[v].gated_norm(x, z, w, 1e-6f, out);
                else
                    variants[v].l2norm(memcpy(out, x, N * sizeof *x), 1);
                for (int j = 0; j < N; j++) assert_false(isfinite(out[j]));
            }
            fill(x, N, FILL_NORMAL, 1);
            z[3] = *b;
            variants[v].gated_norm(x, z, w, 1e-6f, out);
            assert_int_equal(isfinite(out[3]), isfinite(*b));
            guarded_check();
        }
}

static void test_rope(void **state)
{
    (void)state;
    FOR_EACH_VARIANT (v, rope) {
        float *x = guarded_floats(256), *before = guarded_floats(256);
        float *cosines = guarded_floats(32), *sines = guarded_floats(32);
        fill(x, 256, FILL_NORMAL, 1);
        memcpy(before, x, 256 * sizeof(float));
        for (int j = 0; j < 32; j++) cosines[j] = cosf((float)j), sines[j] = sinf((float)j);
        variants[v].rope(x, cosines, sines);
        for (int j = 0; j < 256; j++) {
            int pair = j % 32;
            double a = (double)before[pair], b = (double)before[pair + 32];
            double c = (double)cosines[pair], s = (double)sines[pair];
            double y = j < 32 ? a * c - b * s : j < 64 ? b * c + a * s : (double)before[j];
            assert_near((double)x[j], y, j < 64 ? 1e-6 : 0, variants[v].isa);
        }
        guarded_check();
    }
}

/* Values over the whole range of the functions. */
static void fill_range(float *x, int32_t n)
{
    static const float extremes[] = {-FLT_MAX, -1e10f, -104,   -88.5f, -87,
                                     -0.0f,    0,      1e-30f, 88,     1e10f};
    for (int32_t i = 0; i < n; i++) x[i] = -120 + 240 * (float)i / (float)n;
    memcpy(x, extremes, sizeof extremes);
}

static void test_activations(void **state)
{
    (void)state;
    enum { N = 1032 };
    FOR_EACH_VARIANT (v, swiglu) {
        float *gate = guarded_floats(N), *up = guarded_floats(N), *out = guarded_floats(N);
        fill_range(gate, N);
        fill(up, N, FILL_NORMAL, 1);
        variants[v].swiglu(gate, up, N, out);
        for (int i = 0; i < N; i++) {
            double y = silu((double)gate[i]) * (double)up[i];
            if (fabs(y) > FLT_MAX) continue;
            /* an exp that stops near 2^-126 is good enough */
            assert_near((double)out[i], y, 1e-6 * fabs(y) + 4e-38 * fabs((double)gate[i]) + 1e-35,
                        text("%s swiglu of %g", variants[v].isa, (double)gate[i]));
        }
        memcpy(out, up, N * sizeof(float));
        variants[v].sigmoid_gate(out, gate, N);
        for (int i = 0; i < N; i++) {
            double y = sigmoid((double)gate[i]) * (double)up[i];
            assert_near((double)out[i], y, 1e-6 * fabs(y) + 1e-37,
                        text("%s sigmoid of %g", variants[v].isa, (double)gate[i]));
        }
        /* What is not finite shows, in the body and in the tail, and nowhere else. */
        static const int places[] = {16, 18, 20, 22, N - 7, N - 5, N - 3, N - 1};
        static const float bad[] = {NAN, INFINITY, -INFINITY, NAN};
        fill(gate, N, FILL_NORMAL, 2);
        for (int i = 0; i < 8; i++) {
            gate[places[i]] = bad[i % 4];
            up[places[i] - 1] = bad[i % 4];
        }
        for (int kind = 0; kind < 2; kind++) {
            memcpy(out, up, N * sizeof(float));
            if (kind == 0)
                variants[v].sigmoid_gate(out, gate, N);
            else
                variants[v].swiglu(gate, up, N, out);
            for (int i = 0; i < N; i++)
                assert_int_equal(!isfinite(out[i]), !isfinite(gate[i]) || !isfinite(up[i]));
        }
        guarded_check();
    }
}

static void test_add_scaled(void **state)
{
    (void)state;
    FOR_EACH_VARIANT (v, add_scaled)
        for (int32_t n = 0; n < 70; n++) {
            float *y = guarded_floats(80), *x = guarded_floats(80), before[80];
            fill(x, 80, FILL_NORMAL, 1);
            fill(y, 80, FILL_NORMAL, 2);
            memcpy(before, y, sizeof before);
            variants[v].add_scaled(y + 3, x + 1, 0.7f, n);
            for (int i = 0; i < 80; i++) {
                bool inside = i >= 3 && i < 3 + n;
                double sum = (double)before[i] + (inside ? (double)0.7f * (double)x[i - 2] : 0);
                assert_near((double)y[i], sum, inside ? 1e-6 : 0, variants[v].isa);
            }
            guarded_check();
        }
}

static void test_add_rows(void **state)
{
    (void)state;
    enum { ROWS = 9, MOST = 200 };
    static const float scales[ROWS] = {0.3f, 0.2f, -1.5f, 0, 7, 0.01f, 1, 1e-9f, 0.7f};
    FOR_EACH_VARIANT (v, add_rows)
        for (int32_t n = 0; n <= MOST; n += 8) {
            float *y = guarded_floats(MOST), *expected = guarded_floats(MOST);
            const float *rows[ROWS];
            fill(y, MOST, FILL_NORMAL, 2);
            memcpy(expected, y, MOST * sizeof *y);
            for (int r = 0; r < ROWS; r++) {
                float *row = guarded_floats(MOST);
                fill(row, MOST, FILL_NORMAL, (uint64_t)(3 + r));
                if (r == 4 && n > 70) row[70] = NAN;
                rows[r] = row;
                variants[v].add_scaled(expected, row, scales[r], n);
            }
            variants[v].add_rows(y, rows, scales, ROWS, n);
            assert_memory_equal(y, expected, MOST * sizeof *y);
            guarded_check();
        }
}

static void test_router_top_k(void **state)
{
    (void)state;
    enum { MOST = 256 };
    FOR_EACH_VARIANT (v, router_top_k)
        for (int round = 0; round < 60; round++) {
            int32_t n = round % 3 == 0 ? 16 : MOST, k = 1 + round % 9;
            float *logits = guarded_floats((size_t)n), *weights = guarded_floats((size_t)k);
            int32_t *experts = guarded((size_t)k * sizeof *experts);
            for (int32_t i = 0; i < n; i++) /* few values: ties */
                logits[i] =
                    round % 2 ? (float)random_below(6, (uint64_t)round, (uint64_t)i)
                              : (float)random_below(1 << 20, (uint64_t)round, (uint64_t)i) * 1e-5f;
            variants[v].router_top_k(logits, n, k, experts, weights);
            bool taken[MOST] = {false};
            double sum = 0;
            for (int32_t s = 0; s < k; s++) {
                int32_t best = -1;
                for (int32_t i = 0; i < n; i++)
                    if (!taken[i] && (best < 0 || logits[i] > logits[best])) best = i;
                assert_int_equal(experts[s], best);
                taken[best] = true;
                sum += exp((double)logits[best] - (double)logits[experts[0]]);
            }
            for (int32_t s = 0; s < k; s++) {
                double w = exp((double)logits[experts[s]] - (double)logits[experts[0]]) / sum;
                assert_near((double)weights[s], w, 1e-6, variants[v].isa);
            }
            guarded_check();
        }
}

/* What is not finite: no crash, valid and distinct experts, and weights that show it. */
static void test_router_not_finite(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    FOR_EACH_VARIANT (v, router_top_k)
        for (int round = 0; round < 3 * 16; round++) {
            float logits[16], weights[8];
            int32_t experts[8];
            fill(logits, 16, FILL_NORMAL, 1);
            for (int i = 0; i <= round / 3; i++) logits[15 - i] = bad[round % 3];
            variants[v].router_top_k(logits, 16, 8, experts, weights);
            bool taken[16] = {false};
            for (int s = 0; s < 8; s++) {
                assert_true(experts[s] >= 0 && experts[s] < 16 && !taken[experts[s]]);
                taken[experts[s]] = true;
            }
            for (int s = 0; s < 8; s++) assert_true(isnan(weights[s]));
        }
}

static void test_f32_to_f16(void **state)
{
    (void)state;
    enum { N = 4096 };
    FOR_EACH_VARIANT (v, f32_to_f16) {
        float *x = guarded_floats(N);
        uint16_t *out = guarded(N * sizeof *out);
        static const float special[] = {0,          -0.0f,    65504,  65519,    65520,
                                        -65536,     1e30f,    -1e30f, 0x1p-24f, 0x1p-25f,
                                        0x1.8p-25f, 0x1p-14f, 1e-30f, 2049};
        for (int i = 0; i < N; i++) {
            uint32_t bits = random_below(UINT32_MAX, 7, (uint64_t)i);
            memcpy(&x[i], &bits, sizeof x[i]);
            if (!isfinite(x[i]) || i % 2) x[i] = ldexpf((float)(bits >> 8), (int)(bits % 50) - 45);
        }
        memcpy(x, special, sizeof special);
        variants[v].f32_to_f16(x, N, out);
        for (int i = 0; i < N; i++)
            if (out[i] != f32_to_f16(x[i]))
                fail_msg("%s: %a became %04x, not %04x", variants[v].isa, (double)x[i], out[i],
                         f32_to_f16(x[i]));
        static const float bad[] = {NAN, INFINITY, -INFINITY};
        for (int i = 0; i < 3 * 24; i++) { /* in every lane, and in a tail of half a vector */
            fill(x, 24, FILL_NORMAL, 1);
            x[i / 3] = bad[i % 3];
            variants[v].f32_to_f16(x, 24, out);
            for (int j = 0; j < 24; j++) assert_int_equal(isnan(f16_to_f32(out[j])), j == i / 3);
        }
        guarded_check();
    }
}

/* ---- bench ---- */

typedef struct rows_bench {
    const cpu_kernels *k;
    float *x, *y, *z;
    int32_t n;
} rows_bench;

static void run_rmsnorm(void *context)
{
    rows_bench *b = context;
    b->k->rmsnorm(b->x, b->y, b->n, 1e-6f, b->z);
}
static void run_swiglu(void *context)
{
    rows_bench *b = context;
    b->k->swiglu(b->x, b->y, b->n, b->z);
}
static void run_conv(void *context)
{
    rows_bench *b = context;
    const float *rows[CONV_TAPS] = {b->x, b->x, b->y, b->y};
    b->k->conv_silu(rows, b->y, b->n / CONV_TAPS, 0, b->n / CONV_TAPS, b->z);
}
static void run_add(void *context)
{
    rows_bench *b = context;
    b->k->add_scaled(b->z, b->x, 0.5f, b->n);
}

static void benches(void)
{
    enum { N = 2048 };
    rows_bench b = {.x = guarded_floats(N), .y = guarded_floats(N), .z = guarded_floats(N), .n = N};
    fill(b.x, N, FILL_NORMAL, 1);
    fill(b.y, N, FILL_NORMAL, 2);
    for (int v = 0; v < n_variants; v++) {
        b.k = &variants[v];
        bench("rmsnorm 2048", b.k->isa, N * 12.0, N * 4.0, run_rmsnorm, &b);
        bench("swiglu 2048", b.k->isa, N * 12.0, N * 4.0, run_swiglu, &b);
        bench("conv_silu 512", b.k->isa, N / 4 * 36.0, N / 4 * 12.0, run_conv, &b);
        bench("add_scaled 2048", b.k->isa, N * 12.0, N * 2.0, run_add, &b);
    }
    guarded_check();
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_rmsnorm),
    cmocka_unit_test(test_head_norms),
    cmocka_unit_test(test_conv_silu),
    cmocka_unit_test(test_gdn_gates),
    cmocka_unit_test(test_rope),
    cmocka_unit_test(test_not_finite),
    cmocka_unit_test(test_activations),
    cmocka_unit_test(test_add_scaled),
    cmocka_unit_test(test_add_rows),
    cmocka_unit_test(test_router_top_k),
    cmocka_unit_test(test_router_not_finite),
    cmocka_unit_test(test_f32_to_f16),
};
KERNEL_TEST_MAIN(tests, benches)
