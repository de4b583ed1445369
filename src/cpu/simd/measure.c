/* What a machine can do at best: reading memory, and multiplying and adding as gemm does. */
#include "cpu/simd/simd.h"

#include <string.h>

typedef uint64_t bits __attribute__((vector_size(VL * sizeof(float))));

enum {
    LINE = 64,
    SUMS = VECTOR_REGISTERS == 32 ? 24 : 12, /* as many as a register block of gemm has */
};

ALWAYS_INLINE uint64_t read_lines(const unsigned char *p, size_t n_bytes, size_t ahead)
{
    enum { PER_LINE = LINE / sizeof(bits) };
    bits any[PER_LINE] = {0};
    for (size_t i = 0; i + LINE <= n_bytes; i += LINE) {
        if (ahead) __builtin_prefetch(p + i + ahead, 0, 3);
        UNROLL for (size_t j = 0; j < PER_LINE; j++)
        {
            bits x;
            memcpy(&x, p + i + j * sizeof x, sizeof x);
            any[j] ^= x;
        }
    }
    uint64_t result = 0;
    for (size_t j = 0; j < PER_LINE; j++)
        for (size_t k = 0; k < sizeof(bits) / 8; k++) result ^= any[j][k];
    return result;
}

uint64_t KERNEL(measure_read)(const void *data, size_t n_bytes, bool prefetch)
{
    return prefetch ? read_lines(data, n_bytes, MEASURE_AHEAD) : read_lines(data, n_bytes, 0);
}

int64_t KERNEL(measure_multiply)(int64_t n_rounds, float *sink)
{
    vf sum[SUMS], half = vf_set1(0.5f), x = vf_set1(*sink);
    UNROLL for (int i = 0; i < SUMS; i++) sum[i] = vf_set1((float)i);
    for (int64_t r = 0; r < n_rounds; r++)
        UNROLL for (int i = 0; i < SUMS; i++) sum[i] = vf_fma(sum[i], half, x);
    for (int i = 1; i < SUMS; i++) sum[0] = vf_add(sum[0], sum[i]);
    *sink = vf_sum(sum[0]);
    return n_rounds * SUMS * VL * 2;
}
