#include "model/quantize_row.h"

#include "base/numbers.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { GROUP = 64 };

/* Smallest and largest of a group, by integers that order as the floats do: integer reductions
 * vectorise without relaxed floating point. False for infinities and NaN. */
static bool group_range(const uint16_t *w, float *low, float *high)
{
    int16_t lo = INT16_MAX, hi = INT16_MIN;
    for (int i = 0; i < GROUP; i++) {
        int16_t x = (int16_t)w[i];
        int16_t key = (int16_t)(x ^ ((x >> 15) & 0x7fff));
        lo = key < lo ? key : lo;
        hi = key > hi ? key : hi;
    }
    *low = bf16_to_f32((uint16_t)(lo ^ ((lo >> 15) & 0x7fff)));
    *high = bf16_to_f32((uint16_t)(hi ^ ((hi >> 15) & 0x7fff)));
    return hi < 0x7f80 && lo > -0x7f81;
}

/* Scale and bias before rounding: one end of the range gets a code exactly, and zero too. */
static void group_scale(float low, float high, float n, float *scale, float *bias)
{
    float s = (high - low) / n;
    if (!(s > 1e-7f)) s = 1e-7f;
    bool low_edge = fabsf(low) > fabsf(high);
    if (!low_edge) s = -s;
    float edge = low_edge ? low : high;
    float q0 = roundf(edge / s);
    bool at_zero = q0 == 0.0f;
    *scale = at_zero ? s : edge / q0;
    *bias = at_zero ? 0.0f : edge;
}

/* round((w - bias) / scale) clamped to [0, n], halves away from zero. Clamping first leaves a value
 * that truncation and an exact remainder round without a library call. */
static void group_codes(const uint16_t *w, float scale, float bias, float n, uint8_t *codes)
{
    int32_t code[GROUP];
    for (int i = 0; i < GROUP; i++) {
        uint32_t u = (uint32_t)w[i] << 16;
        float x;
        memcpy(&x, &u, sizeof x);
        float t = (x - bias) / scale;
        t = t > 0.0f ? t : 0.0f;
        t = t < n ? t : n;
        int32_t q = (int32_t)t;
        code[i] = q + (t - (float)q >= 0.5f);
    }
    for (int i = 0; i < GROUP; i++) codes[i] = (uint8_t)code[i];
}

static void pack_nibbles(const uint8_t *codes, unsigned char *packed)
{
    for (int i = 0; i < GROUP / 2; i++)
        packed[i] = (unsigned char)(codes[2 * i] | codes[2 * i + 1] << 4);
}

bool quantize_row(const void *w, int64_t cols, int bits, unsigned char *codes, uint16_t *scales,
                  uint16_t *biases)
{
    assert(cols % GROUP == 0 && (bits == 4 || bits == 8));
    float n = bits == 4 ? 15.0f : 255.0f;
    for (int64_t g = 0; g < cols / GROUP; g++) {
        uint16_t group[GROUP];
        float low, high, scale, bias;
        memcpy(group, (const unsigned char *)w + g * (int64_t)sizeof group, sizeof group);
        if (!group_range(group, &low, &high)) return false;
        group_scale(low, high, n, &scale, &bias);
        scales[g] = f32_to_bf16(scale);
        biases[g] = f32_to_bf16(bias);
        if (!isfinite(bf16_to_f32(scales[g]))) return false;
        if (bits == 8) {
            group_codes(group, scale, bias, n, codes + g * GROUP);
        } else {
            uint8_t q[GROUP];
            group_codes(group, scale, bias, n, q);
            pack_nibbles(q, codes + g * GROUP / 2);
        }
    }
    return true;
}
