#include "support/kernels.h"

#include "base/numbers.h"
#include "base/philox.h"
#include "support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

cpu_kernels variants[MAX_VARIANTS];
int n_variants;

void variants_init(void)
{
    for (const char *const *isa = cpu_isa_names(); *isa; isa++) {
        calla_error err;
        if (strcmp(*isa, "auto") == 0 || n_variants == MAX_VARIANTS) continue;
        if (cpu_kernels_select(*isa, CALLA_LAYOUT_MLX4, &variants[n_variants], &err) == CALLA_OK)
            n_variants++;
        else
            printf("not on this machine: %s\n", err.message);
    }
}

bool variant_is_new(int v, size_t offset)
{
    typedef void function(void);
    for (int i = 0; i < v; i++)
        if (memcmp((const char *)&variants[i] + offset, (const char *)&variants[v] + offset,
                   sizeof(function *)) == 0)
            return false;
    return true;
}

bool isa_rounds_to_bf16(const char *isa)
{
    calla_error err;
    cpu_kernels k;
    assert_ok(cpu_kernels_select(isa, CALLA_LAYOUT_MLX4, &k, &err), &err);
    return k.gemm_inputs == GEMM_BF16;
}

/* ---- guarded memory ---- */

enum { GUARD = 64, MAX_GUARDED = 256 };

static struct {
    unsigned char *memory;
    size_t n_bytes;
} blocks[MAX_GUARDED];
static int n_blocks;

static unsigned char guard_byte(size_t i)
{
    return (unsigned char)(0xa5 + i * 7);
}

void *guarded(size_t n_bytes)
{
    assert_true(n_blocks < MAX_GUARDED);
    unsigned char *p = aligned_alloc(64, (n_bytes + 63) / 64 * 64 + 2 * GUARD);
    assert_non_null(p);
    memset(p + GUARD, 0, n_bytes);
    for (size_t i = 0; i < GUARD; i++) {
        p[i] = guard_byte(i);
        p[GUARD + n_bytes + i] = guard_byte(i);
    }
    blocks[n_blocks].memory = p;
    blocks[n_blocks++].n_bytes = n_bytes;
    return p + GUARD;
}

float *guarded_floats(size_t n)
{
    return guarded(n * sizeof(float));
}

void guarded_check(void)
{
    for (int b = 0; b < n_blocks; b++) {
        const unsigned char *p = blocks[b].memory;
        for (size_t i = 0; i < GUARD; i++) {
            if (p[i] != guard_byte(i))
                fail_msg("a byte %zu before an array was written", GUARD - i);
            if (p[GUARD + blocks[b].n_bytes + i] != guard_byte(i))
                fail_msg("a byte %zu behind an array of %zu was written", i, blocks[b].n_bytes);
        }
        free(blocks[b].memory);
    }
    n_blocks = 0;
}

/* ---- inputs ---- */

uint32_t random_below(uint32_t n, uint64_t seed, uint64_t counter)
{
    return (uint32_t)(philox_uniform(seed, counter, 1) * n);
}

void fill(float *x, size_t n, fill_kind kind, uint64_t seed)
{
    static const double scale[N_FILLS] = {1, 1, 1e12, 1e-30, 0};
    for (size_t i = 0; i < n; i++) {
        double u = philox_uniform(seed, 2 * i, 0), v = philox_uniform(seed, 2 * i + 1, 0);
        double normal = sqrt(-2 * log(1 - u)) * cos(6.283185307179586 * v);
        if (kind == FILL_SPIKES && random_below(50, seed, i) == 0) normal *= 1000;
        x[i] = (float)(normal * scale[kind]);
    }
}

matrix random_matrix(matrix_format format, int32_t rows, int32_t cols, uint64_t seed)
{
    matrix m = {.format = format, .rows = rows, .cols = cols};
    size_t n = (size_t)rows * matrix_row_bytes(&m), groups = (size_t)rows * (size_t)(cols / 64);
    unsigned char *codes = guarded(n);
    if (format == MATRIX_BF16) {
        for (size_t i = 0; i < n / 2; i++) {
            float x;
            fill(&x, 1, FILL_NORMAL, seed * 1000003 + i);
            ((uint16_t *)(void *)codes)[i] = f32_to_bf16(x);
        }
        m.codes = codes;
        return m;
    }
    for (size_t i = 0; i < n; i++) codes[i] = (unsigned char)random_below(256, seed, i);
    uint16_t *scales = guarded(groups * 2), *biases = guarded(groups * 2);
    for (size_t i = 0; i < groups; i++) {
        float s[2];
        fill(s, 2, FILL_NORMAL, seed * 1000033 + i);
        scales[i] = f32_to_bf16(random_below(20, seed, i) == 0 ? 0 : s[0] * 0.1f);
        biases[i] = f32_to_bf16(s[1]);
    }
    m.codes = codes;
    m.scales = scales;
    m.biases = biases;
    return m;
}

double matrix_element(const matrix *m, int32_t row, int32_t col)
{
    size_t at = (size_t)row * (size_t)m->cols + (size_t)col, group = at / QUANT_GROUP;
    const unsigned char *codes = m->codes;
    if (m->format == MATRIX_BF16) return (double)bf16_to_f32(((const uint16_t *)m->codes)[at]);
    int code = m->format == MATRIX_Q8 ? codes[at] : codes[at / 2] >> (4 * (at % 2)) & 15;
    return (double)bf16_to_f32(m->scales[group]) * code + (double)bf16_to_f32(m->biases[group]);
}

/* ---- checks ---- */

void assert_near(double value, double expected, double bound, const char *context)
{
    if (!(fabs(value - expected) <= bound))
        fail_msg("%s: %.9g instead of %.9g, %.3g allowed", context, value, expected, bound);
}

const char *text(const char *format, ...)
{
    static char buffers[4][256];
    static int next;
    char *p = buffers[next++ % 4];
    va_list args;
    va_start(args, format);
    vsnprintf(p, sizeof buffers[0], format, args);
    va_end(args);
    return p;
}

/* Of this thread, so that other processes do not count. */
static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void bench(const char *kernel, const char *isa, double bytes, double operations,
           void (*fn)(void *context), void *context)
{
    double best = INFINITY, start = cpu_seconds(), now = start;
    fn(context);
    while (now - start < 0.1) {
        double t = cpu_seconds();
        fn(context);
        now = cpu_seconds();
        if (now - t < best) best = now - t;
    }
    printf("%-28s %-10s %8.2f GB/s %8.2f GFLOP/s\n", kernel, isa, bytes / best * 1e-9,
           operations / best * 1e-9);
}
