#include "base/memory.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static bool round_up(size_t n, size_t *rounded)
{
    if (!size_add(n, CALLA_ALIGNMENT - 1, rounded)) return false;
    *rounded &= ~(size_t)(CALLA_ALIGNMENT - 1);
    return true;
}

calla_status mem_alloc(size_t n, size_t element_bytes, const char *what, void **memory,
                       calla_error *err)
{
    size_t bytes;
    if (!size_mul(n, element_bytes, &bytes) || !round_up(bytes ? bytes : 1, &bytes))
        return error_set(err, CALLA_ERR_MEMORY, "%s: size %zu x %zu bytes overflows", what, n,
                         element_bytes);
    void *p = aligned_alloc(CALLA_ALIGNMENT, bytes);
    if (!p) return error_set(err, CALLA_ERR_MEMORY, "%s: no memory for %zu bytes", what, bytes);
    memset(p, 0, bytes);
    *memory = p;
    return CALLA_OK;
}

void mem_free(void *memory) { free(memory); }

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
