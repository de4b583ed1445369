/* The C variants of what a machine can do at best (see simd/measure.c). */
#include "cpu/kernels.h"
#include "cpu/lanes.h"

static inline uint64_t read_words(const unsigned char *p, size_t n_bytes, size_t ahead)
{
    uint64_t any = 0;
    for (size_t i = 0; i + 64 <= n_bytes; i += 64) {
        uint64_t words[8];
        if (ahead) __builtin_prefetch(p + i + ahead, 0, 3);
        memcpy(words, p + i, sizeof words);
        for (int j = 0; j < 8; j++) any ^= words[j];
    }
    return any;
}

uint64_t measure_read_c(const void *data, size_t n_bytes, bool prefetch)
{
    return prefetch ? read_words(data, n_bytes, MEASURE_AHEAD) : read_words(data, n_bytes, 0);
}

int64_t measure_multiply_c(int64_t n_rounds, float *sink)
{
    enum { SUMS = 8 };
    f32x4 sum[SUMS], x = {*sink, *sink, *sink, *sink};
    for (int i = 0; i < SUMS; i++) sum[i] = x;
    for (int64_t r = 0; r < n_rounds; r++)
        for (int i = 0; i < SUMS; i++) sum[i] = sum[i] * 0.5f + x;
    for (int i = 1; i < SUMS; i++) sum[0] += sum[i];
    *sink = (sum[0][0] + sum[0][1]) + (sum[0][2] + sum[0][3]);
    return n_rounds * SUMS * 4 * 2;
}
