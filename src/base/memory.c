#include "base/memory.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static bool round_up(size_t n, size_t *rounded)
{
    if (!size_add(n, CALLA_ALIGNMENT - 1, rounded)) return false;
    *rounded &= ~(size_t)(CALLA_ALIGNMENT - 1);
    return true;
}

/* In front of every allocation, filling up to the alignment. */
typedef struct header {
    size_t mapped_bytes; /* of the whole mapping; 0: from aligned_alloc */
} header;

enum { MAP_FROM_BYTES = 16 << 20 };

/* Large pieces are mapped: the kernel gives zero pages, and only when they are touched, so that a
 * KV cache costs what was used of it. Huge pages spare the misses of walking through it. */
static void *map_memory(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
    madvise(p, bytes, MADV_HUGEPAGE); /* a wish */
    return p;
}

calla_status mem_alloc(size_t n, size_t element_bytes, const char *what, void **memory,
                       calla_error *err)
{
    size_t bytes;
    if (!size_mul(n, element_bytes, &bytes) || !round_up(bytes ? bytes : 1, &bytes) ||
        !size_add(bytes, CALLA_ALIGNMENT, &bytes))
        return error_set(err, CALLA_ERR_MEMORY, "%s: size %zu x %zu bytes overflows", what, n,
                         element_bytes);
    bool mapped = bytes >= MAP_FROM_BYTES;
    unsigned char *p = mapped ? map_memory(bytes) : aligned_alloc(CALLA_ALIGNMENT, bytes);
    if (!p) return error_set(err, CALLA_ERR_MEMORY, "%s: no memory for %zu bytes", what, bytes);
    if (!mapped) memset(p, 0, bytes);
    ((header *)(void *)p)->mapped_bytes = mapped ? bytes : 0;
    *memory = p + CALLA_ALIGNMENT;
    return CALLA_OK;
}

void mem_free(void *memory)
{
    if (!memory) return;
    void *p = (unsigned char *)memory - CALLA_ALIGNMENT;
    size_t mapped_bytes = ((const header *)p)->mapped_bytes;
    if (mapped_bytes)
        munmap(p, mapped_bytes);
    else
        free(p);
}

calla_status mem_grow(void **array, size_t *capacity, size_t need, size_t element_bytes,
                      const char *what, calla_error *err)
{
    if (need <= *capacity) return CALLA_OK;
    size_t grown = *capacity < 8 ? 16 : *capacity, bytes;
    while (grown < need) {
        if (!size_mul(grown, 2, &grown)) grown = need;
    }
    if (!size_mul(grown, element_bytes, &bytes))
        return error_set(err, CALLA_ERR_MEMORY, "%s: size %zu x %zu bytes overflows", what, grown,
                         element_bytes);
    void *p = realloc(*array, bytes);
    if (!p) return error_set(err, CALLA_ERR_MEMORY, "%s: no memory for %zu bytes", what, bytes);
    *array = p;
    *capacity = grown;
    return CALLA_OK;
}

void *arena_take(arena *a, size_t n, size_t element_bytes)
{
    size_t bytes, end;
    if (!size_mul(n, element_bytes, &bytes) || !round_up(bytes, &bytes) ||
        !size_add(a->used, bytes, &end)) {
        a->overflow = true;
        return NULL;
    }
    void *p = NULL;
    if (a->memory) {
        assert(end <= a->capacity); /* the two passes must take the same */
        p = a->memory + a->used;
    }
    a->used = end;
    return p;
}

calla_status arena_allocate(arena *a, const char *what, calla_error *err)
{
    assert(!a->memory);
    if (a->overflow) return error_set(err, CALLA_ERR_MEMORY, "%s: size overflows", what);
    void *p;
    CALLA_TRY(mem_alloc(a->used, 1, what, &p, err));
    a->memory = p;
    a->capacity = a->used;
    a->used = 0;
    return CALLA_OK;
}

void arena_free(arena *a)
{
    mem_free(a->memory);
    *a = (arena){0};
}
