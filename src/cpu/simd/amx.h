/* What the files of AMX kernels share: tiles of 16 rows of 64 bytes, 16 x 32 bfloat16 or 16 x 16
 * f32. c[m][n] += sum over k < 32 of a[m][k] b[k / 2][n][k % 2]. */
#ifndef CALLA_CPU_AMX_H
#define CALLA_CPU_AMX_H

#include "cpu/simd/integers.h"

enum {
    TILE = 16,              /* rows of a tile */
    STEP = 32,              /* terms of the sums that one product of tiles adds */
    TILE_ELEMENTS = 512,    /* bf16, 1 KB */
    PAIR = 2 * QUANT_GROUP, /* columns of a pair of groups of 4-bit weights: four steps */
};

/* gcc's tile intrinsics do not tell the compiler that they read or write memory: this does, between
 * what fills a buffer and the tiles that load it, and after the tiles have stored. */
ALWAYS_INLINE void settle_memory(void)
{
    __asm__ volatile("" ::: "memory");
}

ALWAYS_INLINE void configure_tiles(void)
{
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t column_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 8; i++) config.column_bytes[i] = 64, config.rows[i] = TILE;
    settle_memory();
    _tile_loadconfig(&config);
}

/* Bits whose upper half is x rounded to bfloat16, halves away from zero. */
ALWAYS_INLINE __m512i rounded_bits(vf x)
{
    return _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000));
}

/* x rounded to bfloat16; what is left has 16 bits less. A NaN stays one in what is left. */
ALWAYS_INLINE vf high_part(vf x)
{
    return _mm512_castsi512_ps(
        _mm512_and_si512(rounded_bits(x), _mm512_set1_epi32((int)0xffff0000)));
}

/* 32 values, in order, as bfloat16. */
ALWAYS_INLINE __m512i narrow(vf a, vf b)
{
    return (__m512i)_mm512_cvtne2ps_pbh(b, a);
}

/* 32 values, in order, as two bfloat16 each. */
ALWAYS_INLINE void split(vf a, vf b, __m512i *high, __m512i *low)
{
    vf ha = high_part(a), hb = high_part(b);
    *high = narrow(ha, hb);
    *low = narrow(vf_sub(a, ha), vf_sub(b, hb));
}

/* 16 pairs (a[i], b[i]) of upper halves. */
ALWAYS_INLINE __m512i interleave_bits(__m512i a, __m512i b)
{
    return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(a, 16), b);
}

/* Of values that are bfloat16 already. */
ALWAYS_INLINE __m512i interleave(vf a, vf b)
{
    return interleave_bits(_mm512_castps_si512(a), _mm512_castps_si512(b));
}

/* 16 pairs of values, as two bfloat16 each. */
ALWAYS_INLINE void split_pairs(vf a, vf b, __m512i *high, __m512i *low)
{
    *high = interleave_bits(rounded_bits(a), rounded_bits(b));
    *low = interleave_bits(rounded_bits(vf_sub(a, high_part(a))),
                           rounded_bits(vf_sub(b, high_part(b))));
}

#endif
