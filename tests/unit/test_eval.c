/* The figures of calla eval. */
#include "base/philox.h"
#include "support/support.h"

#include "../../cli/eval_math.c"

enum { N = 50 };

static void fill(float *x, uint64_t seed, double spread)
{
    for (int i = 0; i < N; i++)
        x[i] = (float)((philox_uniform(seed, (uint64_t)i, 0) - 0.5) * spread);
}

static double log_softmax(const float *x, int at)
{
    double total = 0;
    for (int i = 0; i < N; i++) total += exp((double)x[i]);
    return (double)x[at] - log(total);
}

static void sums_agree_with_the_definitions(void **state)
{
    (void)state;
    float p[N], q[N];
    eval_totals t = {0};
    double nll = 0, nll_reference = 0, kl = 0, kl_max = 0;
    int same = 0, clear = 0, clear_same = 0;
    for (uint64_t row = 0; row < 40; row++) {
        fill(q, row, 8);
        fill(p, row / 2, 8); /* every other row the same */
        int target = (int)(row % N);
        eval_add(&t, q, p, N, target, 0.3);
        nll -= log_softmax(q, target);
        nll_reference -= log_softmax(p, target);
        double row_kl = 0;
        int bp = 0, bq = 0;
        for (int i = 0; i < N; i++) {
            row_kl += exp(log_softmax(p, i)) * (log_softmax(p, i) - log_softmax(q, i));
            if (p[i] > p[bp]) bp = i;
            if (q[i] > q[bq]) bq = i;
        }
        kl += row_kl;
        if (row_kl > kl_max) kl_max = row_kl;
        double second = -1e9;
        for (int i = 0; i < N; i++)
            if (i != bp && (double)p[i] > second) second = (double)p[i];
        bool is_clear = (double)p[bp] - second > 0.3;
        same += bp == bq, clear += is_clear, clear_same += is_clear && bp == bq;
    }
    assert_int_equal(t.n_scored, 40);
    assert_float_equal(t.nll, nll, 1e-4);
    assert_float_equal(t.nll_reference, nll_reference, 1e-4);
    assert_float_equal(t.kl, kl, 1e-4);
    assert_float_equal(t.kl_max, kl_max, 1e-5);
    assert_int_equal(t.n_same, same);
    assert_int_equal(t.n_clear, clear);
    assert_int_equal(t.n_clear_same, clear_same);
    assert_true(same > 0 && same < 40 && clear > clear_same && clear < 40);
}

static void large_logits_and_ties(void **state)
{
    (void)state;
    float p[N], q[N];
    for (int i = 0; i < N; i++) p[i] = q[i] = -1e4f;
    p[3] = p[9] = q[3] = q[9] = 1e4f;
    eval_totals t = {0};
    eval_add(&t, q, p, N, 9, 0);
    assert_float_equal(t.nll, log(2), 1e-6);
    assert_float_equal(t.kl, 0, 1e-12);
    assert_int_equal(t.n_same, 1);
    assert_int_equal(t.n_clear, 0); /* a tie has no margin */
    eval_add(&t, q, NULL, N, 3, 0);
    assert_int_equal(t.n_scored, 2);
    assert_float_equal(t.nll_reference, log(2), 1e-6);
}

static void windows_cover_the_text(void **state)
{
    (void)state;
    const int64_t cases[][4] = {
        /* tokens, window, windows, length of the last */
        {10, 5, 2, 5}, {11, 5, 2, 5}, {12, 5, 3, 2}, {4, 5, 1, 4},
        {2, 2, 1, 2},  {1, 5, 0, 0},  {0, 5, 0, 0},  {3, 2, 1, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        eval_text text = {NULL, cases[i][0], cases[i][1]};
        int64_t n = eval_n_windows(&text);
        assert_int_equal(n, cases[i][2]);
        if (n > 0) assert_int_equal(eval_window_length(&text, n - 1), cases[i][3]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_agree_with_the_definitions),
        cmocka_unit_test(large_logits_and_ties),
        cmocka_unit_test(windows_cover_the_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
