/* Integers; bfloat16 and IEEE half, by bits. */
#ifndef CALLA_BASE_NUMBERS_H
#define CALLA_BASE_NUMBERS_H

#include <stdint.h>
#include <string.h>

static inline int32_t larger_of(int32_t a, int32_t b)
{
    return a > b ? a : b;
}
static inline int32_t smaller_of(int32_t a, int32_t b)
{
    return a < b ? a : b;
}
static inline int32_t divide_up(int64_t a, int32_t b)
{
    return (int32_t)((a + b - 1) / b);
}

/* A bf16 in a mapped checkpoint. MLX writes safetensors headers of any length, so in real files it
 * may stand at an odd address: the type tells the compiler. Vector loads must be unaligned ones. */
typedef uint16_t mapped_bf16 __attribute__((aligned(1)));

static inline float bf16_to_f32(uint16_t x)
{
    uint32_t u = (uint32_t)x << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Round to nearest even; NaN stays NaN. */
static inline uint16_t f32_to_bf16(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

static inline float f16_to_f32(uint16_t x)
{
    /* Shift the 15 magnitude bits to f32's place and rescale the exponent by a multiplication,
     * which also normalises subnormals; infinities and NaN need their exponent set by hand. */
    uint32_t magnitude = (uint32_t)(x & 0x7fffu) << 13, sign = (uint32_t)(x & 0x8000u) << 16, u;
    float f;
    memcpy(&f, &magnitude, sizeof f);
    f *= 0x1p112f;
    memcpy(&u, &f, sizeof u);
    u |= (int32_t)magnitude >= 0x0f800000 ? 0x7f800000u : 0; /* no branch: loops vectorise */
    u |= sign;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Round to nearest even; finite values beyond 65504 clamp to it (a KV element must stay finite).
 * NaN stays NaN and an infinity becomes one: it must not pass for a number. */
static inline uint16_t f32_to_f16(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    uint16_t sign = (uint16_t)((u >> 16) & 0x8000u);
    u &= 0x7fffffffu;
    if (u >= 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (u >= 0x477ff000u) return (uint16_t)(sign | 0x7bffu);
    if (u < 0x38800000u) { /* subnormal half: let an f32 addition do the rounding */
        float f;
        memcpy(&f, &u, sizeof f);
        f += 0.5f;
        memcpy(&u, &f, sizeof u);
        return (uint16_t)(sign | (u - 0x3f000000u));
    }
    u += 0xc8000fffu + ((u >> 13) & 1u);
    return (uint16_t)(sign | (u >> 13));
}

#endif
