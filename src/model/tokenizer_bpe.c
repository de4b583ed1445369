/* Byte-pair merging of one piece (MODEL.md 5.3, rule 5): a list of symbols and a heap of the pairs
 * that have a rank, so a piece of n bytes takes O(n log n) whatever it is. */
#include "base/memory.h"
#include "model/tokenizer.h"

#include <assert.h>
#include <stdlib.h>

#define NO_SYMBOL UINT32_MAX

static void heap_push(bpe *b, uint64_t key)
{
    size_t i = b->n_heap++;
    for (; i > 0 && b->heap[(i - 1) / 2] > key; i = (i - 1) / 2) b->heap[i] = b->heap[(i - 1) / 2];
    b->heap[i] = key;
}

static uint64_t heap_pop(bpe *b)
{
    uint64_t top = b->heap[0], key = b->heap[--b->n_heap];
    size_t n = b->n_heap, i = 0;
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && b->heap[child + 1] < b->heap[child]) child++;
        if (b->heap[child] >= key) break;
        b->heap[i] = b->heap[child];
    }
    b->heap[i] = key;
    return top;
}

/* Looks up the pair that starts at symbol `i` and queues it if it can be merged. */
static void queue_pair(bpe *b, const vocabulary *v, uint32_t i)
{
    bpe_symbol *s = &b->symbols[i];
    s->rank = NO_RANK;
    if (s->next == NO_SYMBOL) return;
    s->rank = vocabulary_merge(v, s->id, b->symbols[s->next].id)->rank;
    if (s->rank != NO_RANK) heap_push(b, (uint64_t)s->rank << 32 | i);
}

/* Merges the pair that starts at symbol `i` into it. */
static void merge_pair(bpe *b, const vocabulary *v, uint32_t i)
{
    bpe_symbol *left = &b->symbols[i], *right = &b->symbols[left->next];
    left->id = vocabulary_merge(v, left->id, right->id)->merged;
    left->next = right->next;
    right->rank = NO_RANK; /* what the heap holds of it is void */
    if (left->next != NO_SYMBOL) b->symbols[left->next].prev = i;
    queue_pair(b, v, i);
    if (left->prev != NO_SYMBOL) queue_pair(b, v, left->prev);
}

/* Room for a piece: a merge takes one pair off the heap, removes one symbol and queues at most two
 * pairs, so there are never more than 2 n pairs. */
static calla_status reserve(bpe *b, size_t n, calla_error *err)
{
    CALLA_TRY(mem_grow((void **)&b->symbols, &b->symbols_capacity, n, sizeof b->symbols[0],
                       "text to merge", err));
    return mem_grow((void **)&b->heap, &b->heap_capacity, 2 * n, sizeof b->heap[0],
                    "pairs to merge", err);
}

calla_status bpe_encode(bpe *b, const vocabulary *v, const char *piece, size_t n_bytes,
                        id_list *out, calla_error *err)
{
    assert(n_bytes > 0 && n_bytes < NO_SYMBOL);
    CALLA_TRY(reserve(b, n_bytes, err));
    uint32_t n = (uint32_t)n_bytes;
    b->n_heap = 0;
    for (uint32_t i = 0; i < n; i++)
        b->symbols[i] = (bpe_symbol){v->byte_ids[(unsigned char)piece[i]], NO_RANK, i - 1, i + 1};
    b->symbols[0].prev = NO_SYMBOL;
    b->symbols[n - 1].next = NO_SYMBOL;
    for (uint32_t i = 0; i < n; i++) queue_pair(b, v, i);

    while (b->n_heap > 0) {
        uint64_t key = heap_pop(b);
        uint32_t i = (uint32_t)key;
        /* A rank is a pair and a pair a text, so an equal rank means that nothing has changed. */
        if (b->symbols[i].rank == key >> 32) merge_pair(b, v, i);
    }

    size_t n_out = 0;
    for (uint32_t i = 0; i != NO_SYMBOL; i = b->symbols[i].next) n_out++;
    CALLA_TRY(mem_grow((void **)&out->ids, &out->capacity, out->n + n_out, sizeof out->ids[0],
                       "token ids", err));
    for (uint32_t i = 0; i != NO_SYMBOL; i = b->symbols[i].next)
        out->ids[out->n++] = (int32_t)b->symbols[i].id;
    return CALLA_OK;
}

void bpe_deinit(bpe *b)
{
    free(b->symbols);
    free(b->heap);
    *b = (bpe){0};
}
