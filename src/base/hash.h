#ifndef CALLA_BASE_HASH_H
#define CALLA_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

/* FNV-1a of 64 bits (draft-eastlake-fnv), to tell things apart, not against an adversary: begins
 * with HASH_START. */
#define HASH_START UINT64_C(0xcbf29ce484222325)
static inline uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t n_bytes)
{
    const unsigned char *p = bytes;
    for (size_t i = 0; i < n_bytes; i++) hash = (hash ^ p[i]) * UINT64_C(0x100000001b3);
    return hash;
}

#endif
