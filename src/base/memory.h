/* Sizes that cannot overflow, and allocations that report. */
#ifndef CALLA_BASE_MEMORY_H
#define CALLA_BASE_MEMORY_H

#include "base/error.h"

/* Alignment of every array a kernel may touch: one cache line, one AVX-512 register. */
#define CALLA_ALIGNMENT 64

/* *product = a * b (or *sum = a + b); false on overflow, *product is then unspecified. */
static inline bool size_mul(size_t a, size_t b, size_t *product)
{
    return !__builtin_mul_overflow(a, b, product);
}
static inline bool size_add(size_t a, size_t b, size_t *sum)
{
    return !__builtin_add_overflow(a, b, sum);
}

/* Zeroed, CALLA_ALIGNMENT-aligned memory of n * element_bytes (rounded up to the alignment) for
 * `what` (named in the error). Free with mem_free. n = 0 gives a valid pointer. */
calla_status mem_alloc(size_t n, size_t element_bytes, const char *what, void **memory,
                       calla_error *err);
void mem_free(void *memory);

/* malloc-compatible growth for arrays of unknown length: makes room for at least `need` elements,
 * doubling. *array is realloc'ed (free with free). */
calla_status mem_grow(void **array, size_t *capacity, size_t need, size_t element_bytes,
                      const char *what, calla_error *err);

/* An arena: memory of one lifetime, sized before it starts. Two passes over the same code: with
 * memory == NULL arena_take only counts; then arena_allocate; then the pass that hands out. */
typedef struct arena {
    unsigned char *memory;
    size_t capacity;
    size_t used;
    bool overflow; /* a size product overflowed while counting */
} arena;

/* n * element_bytes bytes, zeroed, aligned; NULL while counting. */
void *arena_take(arena *a, size_t n, size_t element_bytes);
calla_status arena_allocate(arena *a, const char *what, calla_error *err);
void arena_free(arena *a);

#endif
