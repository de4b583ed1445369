#include "model/synth_random.h"

#include "base/hash.h"
#include "base/memory.h"
#include "base/numbers.h"
#include "base/philox.h"
#include "model/quantize_row.h"

#include <assert.h>
#include <string.h>

uint64_t random_stream(const char *name)
{
    return hash_bytes(HASH_START, name, strlen(name));
}

float random_uniform(uint64_t seed, uint64_t stream, uint64_t i)
{
    uint32_t r[4];
    philox4x32(seed, i, stream, r);
    return (float)(r[0] >> 8) * 0x1p-24f;
}

/* The sum of twelve uniform 16-bit numbers has the right variance, and every step is exact. */
float random_bell(uint64_t seed, uint64_t stream, uint64_t i)
{
    uint32_t r[8];
    int32_t sum = 0;
    philox4x32(seed, 2 * i, stream, r);
    philox4x32(seed, 2 * i + 1, stream, r + 4);
    for (int k = 0; k < 6; k++) sum += (int32_t)(r[k] & 0xffff) + (int32_t)(r[k] >> 16);
    return (float)(2 * sum - 12 * 65535) * 0x1p-17f;
}

/* ---- the pool ---- */

static void take_arrays(random_pool *pool, arena *a)
{
    pool->values = arena_take(a, POOL_GROUPS, sizeof *pool->values);
    for (int k = 0; k < 2; k++) {
        pool->codes[k] = arena_take(a, POOL_GROUPS, sizeof *pool->codes[k]);
        pool->scales[k] = arena_take(a, POOL_GROUPS, sizeof(float));
        pool->biases[k] = arena_take(a, POOL_GROUPS, sizeof(float));
    }
}

calla_status random_pool_create(uint64_t seed, random_pool *pool, calla_error *err)
{
    arena a = {0};
    *pool = (random_pool){.seed = seed};
    take_arrays(pool, &a);
    CALLA_TRY(arena_allocate(&a, "pool of random weights", err));
    take_arrays(pool, &a);
    pool->memory = a.memory;
    uint64_t stream = random_stream("pool");
    for (uint64_t g = 0; g < POOL_GROUPS; g++) {
        uint16_t w[64];
        for (uint64_t i = 0; i < 64; i++) {
            w[i] = f32_to_bf16(random_bell(seed, stream, g * 64 + i));
            pool->values[g][i] = bf16_to_f32(w[i]);
        }
        for (int k = 0; k < 2; k++) {
            uint16_t scale, bias;
            bool finite = quantize_row(w, 64, k ? 8 : 4, pool->codes[k][g], &scale, &bias);
            assert(finite);
            (void)finite;
            pool->scales[k][g] = bf16_to_f32(scale);
            pool->biases[k][g] = bf16_to_f32(bias);
        }
    }
    return CALLA_OK;
}

void random_pool_free(random_pool *pool)
{
    mem_free(pool->memory);
    *pool = (random_pool){0};
}

/* ---- drawing groups ---- */

/* What one group of a stream is: which of the pool, and its factor. */
typedef struct draw {
    uint32_t group;
    float factor;
} draw;

/* Calls for consecutive groups are cheap: a block of random bits serves four. */
static inline draw draw_group(uint64_t seed, uint64_t stream, uint64_t g, float sigma,
                              uint32_t block[4], bool fresh)
{
    if (fresh || g % 4 == 0) philox4x32(seed, g / 4, stream, block);
    uint32_t r = block[g % 4];
    float gain = 0.85f + 0.02f * (float)(r >> 15 & 15); /* 0.85 ... 1.15 */
    return (draw){r % POOL_GROUPS, (r >> 14 & 1 ? -sigma : sigma) * gain};
}

void random_quantized(const random_pool *pool, uint64_t stream, uint64_t first, int64_t n, int bits,
                      float sigma, unsigned char *codes, uint16_t *scales, uint16_t *biases)
{
    int k = bits == 8;
    size_t code_bytes = (size_t)bits * 8;
    uint32_t block[4];
    for (int64_t i = 0; i < n; i++, codes += code_bytes) {
        draw d = draw_group(pool->seed, stream, first + (uint64_t)i, sigma, block, i == 0);
        memcpy(codes, pool->codes[k][d.group], code_bytes);
        scales[i] = f32_to_bf16(pool->scales[k][d.group] * d.factor);
        biases[i] = f32_to_bf16(pool->biases[k][d.group] * d.factor);
    }
}

void random_bf16(const random_pool *pool, uint64_t stream, uint64_t first, int64_t n, float sigma,
                 uint16_t *out)
{
    uint32_t block[4];
    for (int64_t i = 0; i < n; i++, out += 64) {
        draw d = draw_group(pool->seed, stream, first + (uint64_t)i, sigma, block, i == 0);
        const float *values = pool->values[d.group];
        for (int j = 0; j < 64; j++) out[j] = f32_to_bf16(values[j] * d.factor);
    }
}
