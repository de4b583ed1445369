/* The kernels that measure the machine do what they count: each byte is read once, and the sums
 * converge to what their steps lead to. */
#include "cpu/kernels.h"
#include "support/support.h"

#include <math.h>
#include <stdlib.h>

static calla_error err;

static void for_each_table(void (*body)(const cpu_kernels *k))
{
    for (const char *const *isa = cpu_isa_names(); *isa; isa++) {
        cpu_kernels k;
        assert_ok(cpu_kernels_select(*isa, CALLA_LAYOUT_MLX4, &k, &err), &err);
        body(&k);
    }
}

static void check_read(const cpu_kernels *k)
{
    enum { LINES = 200 };
    static _Alignas(64) uint64_t data[LINES][8];
    uint64_t expected = 0;
    for (uint64_t i = 0; i < LINES * 8; i++) {
        data[i / 8][i % 8] = (i + 1) * 0x9e3779b97f4a7c15u;
        expected ^= data[i / 8][i % 8];
    }
    for (int prefetch = 0; prefetch < 2; prefetch++)
        if (k->measure_read(data, sizeof data, prefetch) != expected)
            fail_msg("%s: not every byte was read once", k->isa);
}

static void reading_takes_in_every_byte(void **state)
{
    (void)state;
    for_each_table(check_read);
}

static void check_multiply(const cpu_kernels *k)
{
    float a = 0.25f, b = 0.25f;
    int64_t one = k->measure_multiply(1, &a), many = k->measure_multiply(300, &b);
    if (one <= 0 || many != 300 * one || !isfinite(b) || a == 0.25f || a == b)
        fail_msg("%s: %lld operations in one round, %lld in 300: %g and %g", k->isa, (long long)one,
                 (long long)many, (double)a, (double)b);
}

static void rounds_of_multiplications_are_counted(void **state)
{
    (void)state;
    for_each_table(check_multiply);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reading_takes_in_every_byte),
        cmocka_unit_test(rounds_of_multiplications_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
