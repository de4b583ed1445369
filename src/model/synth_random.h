/* The random numbers of a synthetic checkpoint. Everything is integer or correctly rounded
 * arithmetic, so the same seed gives the same bytes on every machine. */
#ifndef CALLA_MODEL_SYNTH_RANDOM_H
#define CALLA_MODEL_SYNTH_RANDOM_H

#include "base/error.h"

/* A stream of random numbers of its own for each name. */
uint64_t random_stream(const char *name);
/* Number i of a stream: uniform in [0, 1), or of mean 0 and deviation 1, bell-shaped, within 6. */
float random_uniform(uint64_t seed, uint64_t stream, uint64_t i);
float random_bell(uint64_t seed, uint64_t stream, uint64_t i);

enum { POOL_GROUPS = 1 << 14 };

/* Quantization groups to draw matrices from. A 4-bit code takes half a byte and a good one many
 * random bits, so instead of drawing codes a matrix draws ready groups of 64: bell-shaped values
 * of deviation 1, rounded to bf16 and quantized as MLX would. With a random sign and one of 16
 * gains that is half a million different groups, at the cost of copying. */
typedef struct random_pool {
    float (*values)[64];           /* [POOL_GROUPS], before quantization */
    unsigned char (*codes[2])[64]; /* [POOL_GROUPS] for 4 bits (first 32 bytes) and 8 bits */
    float *scales[2], *biases[2];  /* [POOL_GROUPS] */
    uint64_t seed;
    void *memory;
} random_pool;

calla_status random_pool_create(uint64_t seed, random_pool *pool, calla_error *err);
void random_pool_free(random_pool *pool);

/* Groups [first, first + n) of a stream, with deviation sigma: quantized to `bits` into codes
 * [n * 8 * bits] bytes, scales and biases [n] bf16 */
void random_quantized(const random_pool *pool, uint64_t stream, uint64_t first, int64_t n, int bits,
                      float sigma, unsigned char *codes, uint16_t *scales, uint16_t *biases);
/* or, the same numbers before quantization, into bf16 [n * 64]. */
void random_bf16(const random_pool *pool, uint64_t stream, uint64_t first, int64_t n, float sigma,
                 uint16_t *out);

#endif
