/* What the files of AMX kernels share: tiles of 16 rows of 64 bytes, 16 x 32 bfloat16 or 16 x 16
 * f32. c[m][n] += sum over k < 32 of a[m][k] b[k / 2][n][k % 2]. */
#ifndef CALLA_CPU_AMX_H
#define CALLA_CPU_AMX_H

#include "cpu/simd/simd.h"

enum {
    TILE = 16,           /* rows of a tile */
    STEP = 32,           /* terms of the sums that one product of tiles adds */
    TILE_ELEMENTS = 512, /* bf16, 1 KB */
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

/* 16 x 16 dwords, rows to columns. */
ALWAYS_INLINE void transpose16(__m512i r[16])
{
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 8; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    }
}

#endif
