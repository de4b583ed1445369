/* Philox 4x32-10: a counter-based generator (Salmon, Moraes, Dror, Shaw: "Parallel random numbers:
 * as easy as 1, 2, 3", SC 2011). The output is a function of (seed, counter, stream) alone, so a
 * draw needs no state and can be repeated. */
#ifndef CALLA_BASE_PHILOX_H
#define CALLA_BASE_PHILOX_H

#include <stdint.h>

/* out[4]: 128 random bits for key `seed` and the 128-bit counter (counter, stream). */
static inline void philox4x32(uint64_t seed, uint64_t counter, uint64_t stream, uint32_t out[4])
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32);
    uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* A double in [0, 1) from 53 of the bits. */
static inline double philox_uniform(uint64_t seed, uint64_t counter, uint64_t stream)
{
    uint32_t r[4];
    philox4x32(seed, counter, stream, r);
    return (double)((((uint64_t)r[0] << 32) | r[1]) >> 11) * 0x1p-53;
}

#endif
