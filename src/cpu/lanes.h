/* Sums of f32 in eight lanes: element i goes to lane i mod 8, the lanes are added in one fixed
 * tree. What the compiler vectorises in the C variants, and what others may match. */
#ifndef CALLA_CPU_LANES_H
#define CALLA_CPU_LANES_H

#include <stdint.h>
#include <string.h>

enum { LANES = 8 };

/* Four lanes as the compiler's vector type, for inner loops it would vectorise the wrong way round.
 * Every operation is elementwise; gcc and clang have it on all targets. */
typedef float f32x4 __attribute__((vector_size(16)));

static inline f32x4 load4(const float *p)
{
    f32x4 v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void store4(float *p, f32x4 v)
{
    memcpy(p, &v, sizeof v);
}

/* The eight lanes of one sum. */
typedef struct lanes {
    f32x4 low, high;
} lanes;

static inline float lanes_sum(lanes a)
{
    f32x4 s = a.low + a.high;
    return (s[0] + s[2]) + (s[1] + s[3]);
}

/* sum += a[i] * b[i]; n a multiple of 8. */
static inline lanes lanes_multiply_add(lanes sum, const float *a, const float *b, int32_t n)
{
    for (int32_t i = 0; i < n; i += LANES) {
        sum.low += load4(a + i) * load4(b + i);
        sum.high += load4(a + i + 4) * load4(b + i + 4);
    }
    return sum;
}

static inline float lanes_dot(const float *a, const float *b, int32_t n)
{
    return lanes_sum(lanes_multiply_add((lanes){0}, a, b, n));
}

#endif
