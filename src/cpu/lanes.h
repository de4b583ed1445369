/* Sums of f32 in eight lanes: element i goes to lane i mod 8, the lanes are added in one fixed
 * tree. What the compiler vectorises in the C variants, and what others may match. */
#ifndef CALLA_CPU_LANES_H
#define CALLA_CPU_LANES_H

#include <stdint.h>

enum { LANES = 8 };

static inline float lanes_sum(const float lane[LANES])
{
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

/* lane[i mod 8] += a[i] * b[i]; n a multiple of 8. */
static inline void lanes_multiply_add(float lane[LANES], const float *a, const float *b, int32_t n)
{
    for (int32_t i = 0; i < n; i += LANES)
        for (int l = 0; l < LANES; l++) lane[l] += a[i + l] * b[i + l];
}

static inline float lanes_dot(const float *a, const float *b, int32_t n)
{
    float lane[LANES] = {0};
    lanes_multiply_add(lane, a, b, n);
    return lanes_sum(lane);
}

#endif
