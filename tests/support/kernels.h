/* For the kernel tests: the variants this machine can run, memory with guard bytes, inputs random
 * and extreme, timing. */
#ifndef CALLA_TESTS_KERNELS_H
#define CALLA_TESTS_KERNELS_H

#include "cpu/kernels.h"

enum { MAX_VARIANTS = 16 };

/* The tables of all isa names but "auto" that this machine runs; "f32" is first. */
extern cpu_kernels variants[MAX_VARIANTS];
extern int n_variants;
void variants_init(void);

/* Loops over the tables whose function `kernel` no table before them has. */
#define FOR_EACH_VARIANT(v, kernel)                                                                \
    for (int v = 0; v < n_variants; v++)                                                           \
        if (variant_is_new(v, offsetof(cpu_kernels, kernel)))
bool variant_is_new(int v, size_t offset);

/* Whether prefill in this isa rounds to bf16, which tests of whole models allow for. */
bool isa_rounds_to_bf16(const char *isa);

/* 64-byte aligned, zeroed, between guard bytes; freed by guarded_check. */
void *guarded(size_t n_bytes);
float *guarded_floats(size_t n);
/* Fails if any guard byte changed; frees all guarded memory. */
void guarded_check(void);

/* Kinds of inputs, ordinary first. */
typedef enum fill_kind {
    FILL_NORMAL, /* about 1 */
    FILL_SPIKES, /* about 1, some 1000 times that */
    FILL_LARGE,  /* about 1e12 */
    FILL_TINY,   /* about 1e-30 */
    FILL_ZERO,
    N_FILLS
} fill_kind;
void fill(float *x, size_t n, fill_kind kind, uint64_t seed);
/* Uniform in [0, n). */
uint32_t random_below(uint32_t n, uint64_t seed, uint64_t counter);

/* A random matrix in guarded memory: scales of both signs, some zero. */
matrix random_matrix(matrix_format format, int32_t rows, int32_t cols, uint64_t seed);
/* Its element in double. */
double matrix_element(const matrix *m, int32_t row, int32_t col);

/* Fails unless |value - expected| <= bound. `context` names the case. */
void assert_near(double value, double expected, double bound, const char *context);
/* printf to static storage, for such names. */
const char *text(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Calls fn until some time has passed; prints kernel, isa, GB/s and GFLOP/s of one call's work. */
void bench(const char *kernel, const char *isa, double bytes, double operations,
           void (*fn)(void *context), void *context);

/* main of a kernel test: with --bench runs `benches`, else the cmocka tests. */
#define KERNEL_TEST_MAIN(tests, benches)                                                           \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        variants_init();                                                                           \
        if (argc > 1 && strcmp(argv[1], "--bench") == 0) {                                         \
            benches();                                                                             \
            return 0;                                                                              \
        }                                                                                          \
        return cmocka_run_group_tests(tests, NULL, NULL);                                          \
    }

#endif
