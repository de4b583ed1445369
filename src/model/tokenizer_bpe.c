/* Byte-pair merging of one piece (MODEL.md 5.3, rule 5): always the pair of lowest rank, the
 * leftmost of equals.
 *
 * Words are short, and a scan for the lowest rank after each merge is fastest. A longer piece (a
 * line of one letter, a megabyte of blanks) would take quadratic time that way. There, pairs wait
 * in one bucket per rank, and one sweep over the ranks takes bucket after bucket, each from left to
 * right. A merge nearly always makes pairs of higher rank than its own, since a token is learned
 * before the merges it is part of; the pairs for which that fails go to a heap, which comes first.
 *
 * Buckets need no sorting. The merges within the bytes of a token are those of these bytes alone,
 * whatever is around them, so a token is always made by the same merge, and a pair always comes up
 * in the same sweep, when the later one of its two tokens is made. Sweeps go from left to right,
 * and what the heap makes in between is where the sweep is. */
#include "base/memory.h"
#include "model/tokenizer.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { SHORT_PIECE = 64 };

#define NO_SYMBOL UINT32_MAX
#define NO_NODE   UINT32_MAX

static calla_status reserve_ids(id_list *out, size_t n, calla_error *err)
{
    return mem_grow((void **)&out->ids, &out->capacity, out->n + n, sizeof out->ids[0], "token ids",
                    err);
}

/* ---- short pieces ---- */

static calla_status encode_short(const vocabulary *v, const char *piece, size_t n, id_list *out,
                                 calla_error *err)
{
    uint32_t ids[SHORT_PIECE], ranks[SHORT_PIECE]; /* ranks[i]: of the pair i, i + 1 */
    assert(n <= SHORT_PIECE);
    for (size_t i = 0; i < n; i++) ids[i] = v->byte_ids[(unsigned char)piece[i]];
    for (size_t i = 0; i + 1 < n; i++) ranks[i] = vocabulary_rank(v, ids[i], ids[i + 1]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (ranks[i] < ranks[best]) best = i;
        if (ranks[best] == NO_RANK) break;
        ids[best] = v->merged[ranks[best]];
        n--;
        memmove(ids + best + 1, ids + best + 2, (n - best - 1) * sizeof ids[0]);
        memmove(ranks + best, ranks + best + 1, (n - best - 1) * sizeof ranks[0]);
        if (best + 1 < n) ranks[best] = vocabulary_rank(v, ids[best], ids[best + 1]);
        if (best > 0) ranks[best - 1] = vocabulary_rank(v, ids[best - 1], ids[best]);
    }
    CALLA_TRY(reserve_ids(out, n, err));
    for (size_t i = 0; i < n; i++) out->ids[out->n++] = (int32_t)ids[i];
    return CALLA_OK;
}

/* ---- long pieces: the heap ---- */

static calla_status heap_push(bpe *b, uint64_t key, calla_error *err)
{
    CALLA_TRY(mem_grow((void **)&b->heap, &b->heap_capacity, b->n_heap + 1, sizeof b->heap[0],
                       "pairs to merge", err));
    size_t i = b->n_heap++;
    for (; i > 0 && b->heap[(i - 1) / 2] > key; i = (i - 1) / 2) b->heap[i] = b->heap[(i - 1) / 2];
    b->heap[i] = key;
    return CALLA_OK;
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

/* ---- long pieces: the buckets ---- */

/* Memory for a piece of n bytes. A merge takes one pair out, removes one symbol and puts at most
 * two pairs in, so no more than 2 n pairs wait at a time. */
static calla_status reserve_long(bpe *b, size_t n, calla_error *err)
{
    size_t n_ranks = b->vocabulary->n_merges, n_words = (n_ranks + 63) / 64;
    if (!b->buckets) {
        CALLA_TRY(
            mem_alloc(n_ranks, sizeof b->buckets[0], "merge buckets", (void **)&b->buckets, err));
        memset(b->buckets, 0xff, n_ranks * sizeof b->buckets[0]);
        CALLA_TRY(mem_alloc(n_words, sizeof b->used[0], "merge buckets", (void **)&b->used, err));
    }
    CALLA_TRY(mem_grow((void **)&b->symbols, &b->symbols_capacity, n, sizeof b->symbols[0],
                       "text to merge", err));
    CALLA_TRY(mem_grow((void **)&b->sweep, &b->sweep_capacity, 2 * n, sizeof b->sweep[0],
                       "pairs to merge", err));
    return mem_grow((void **)&b->nodes, &b->nodes_capacity, 2 * n, sizeof b->nodes[0],
                    "pairs to merge", err);
}

static void bucket_push(bpe *b, uint32_t rank, uint32_t symbol)
{
    uint32_t node = b->free_node;
    if (node == NO_NODE)
        node = b->n_nodes++;
    else
        b->free_node = b->nodes[node].next;
    assert(node < b->nodes_capacity);
    b->nodes[node] = (bpe_node){symbol, b->buckets[rank]};
    b->buckets[rank] = node;
    b->used[rank / 64] |= (uint64_t)1 << rank % 64;
}

/* Empties a bucket into b->sweep, from left to right; returns the count. */
static size_t bucket_take(bpe *b, uint32_t rank)
{
    size_t n = 0;
    for (uint32_t node = b->buckets[rank], next; node != NO_NODE; node = next) {
        next = b->nodes[node].next;
        b->sweep[n++] = b->nodes[node].symbol;
        b->nodes[node].next = b->free_node;
        b->free_node = node;
    }
    b->buckets[rank] = NO_NODE;
    b->used[rank / 64] &= ~((uint64_t)1 << rank % 64);
    for (size_t i = 0; i < n / 2; i++) { /* the last one pushed came out first */
        uint32_t other = b->sweep[n - 1 - i];
        b->sweep[n - 1 - i] = b->sweep[i];
        b->sweep[i] = other;
    }
    return n;
}

/* The first bucket from `rank` on that is not empty, or NO_RANK. */
static uint32_t bucket_next(const bpe *b, uint32_t rank)
{
    uint32_t n = b->vocabulary->n_merges;
    for (uint32_t word = rank / 64; word * 64 < n; word++) {
        uint64_t bits = b->used[word];
        if (word == rank / 64) bits &= ~(uint64_t)0 << rank % 64;
        if (bits) return word * 64 + (uint32_t)__builtin_ctzll(bits);
    }
    return NO_RANK;
}

/* ---- long pieces: merging ---- */

/* Looks up the pair that starts at symbol `i` and lets it wait; buckets up to `done` are over. */
static calla_status queue_pair(bpe *b, uint32_t i, uint32_t done, calla_error *err)
{
    bpe_symbol *s = &b->symbols[i];
    s->rank = s->next == NO_SYMBOL ? NO_RANK
                                   : vocabulary_rank(b->vocabulary, s->id, b->symbols[s->next].id);
    if (s->rank == NO_RANK) return CALLA_OK;
    if (s->rank <= done) return heap_push(b, (uint64_t)s->rank << 32 | i, err);
    bucket_push(b, s->rank, i);
    return CALLA_OK;
}

/* Merges the pair of `rank` that starts at symbol `i`, if it is still there: a rank stands for a
 * pair and a pair for a text, so an equal rank means that nothing has changed. */
static calla_status merge_pair(bpe *b, uint32_t i, uint32_t rank, uint32_t done, calla_error *err)
{
    bpe_symbol *left = &b->symbols[i];
    if (left->rank != rank) return CALLA_OK;
    bpe_symbol *right = &b->symbols[left->next];
    left->id = b->vocabulary->merged[rank];
    left->next = right->next;
    right->rank = NO_RANK;
    if (left->next != NO_SYMBOL) b->symbols[left->next].prev = i;
    if (left->prev != NO_SYMBOL) CALLA_TRY(queue_pair(b, left->prev, done, err));
    return queue_pair(b, i, done, err);
}

static calla_status merge_all(bpe *b, calla_error *err)
{
    for (uint32_t rank = 0; (rank = bucket_next(b, rank)) != NO_RANK; rank++) {
        size_t n = bucket_take(b, rank);
        for (size_t i = 0; i < n; i++) {
            CALLA_TRY(merge_pair(b, b->sweep[i], rank, rank, err));
            while (b->n_heap > 0) {
                uint64_t top = heap_pop(b);
                CALLA_TRY(merge_pair(b, (uint32_t)top, (uint32_t)(top >> 32), rank, err));
            }
        }
    }
    return CALLA_OK;
}

static calla_status encode_long(bpe *b, const char *piece, uint32_t n, id_list *out,
                                calla_error *err)
{
    CALLA_TRY(reserve_long(b, n, err));
    b->n_heap = 0;
    b->n_nodes = 0;
    b->free_node = NO_NODE;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = b->vocabulary->byte_ids[(unsigned char)piece[i]];
        b->symbols[i] = (bpe_symbol){id, NO_RANK, i - 1, i + 1};
    }
    b->symbols[0].prev = NO_SYMBOL;
    b->symbols[n - 1].next = NO_SYMBOL;
    for (uint32_t i = 0; i + 1 < n; i++) {
        uint32_t rank = vocabulary_rank(b->vocabulary, b->symbols[i].id, b->symbols[i + 1].id);
        b->symbols[i].rank = rank;
        if (rank != NO_RANK) bucket_push(b, rank, i);
    }
    CALLA_TRY(merge_all(b, err));

    size_t n_out = 0;
    for (uint32_t i = 0; i != NO_SYMBOL; i = b->symbols[i].next) n_out++;
    CALLA_TRY(reserve_ids(out, n_out, err));
    for (uint32_t i = 0; i != NO_SYMBOL; i = b->symbols[i].next)
        out->ids[out->n++] = (int32_t)b->symbols[i].id;
    return CALLA_OK;
}

calla_status bpe_encode(bpe *b, const char *piece, size_t n_bytes, id_list *out, calla_error *err)
{
    assert(n_bytes > 0 && n_bytes < NO_SYMBOL);
    if (n_bytes <= SHORT_PIECE) return encode_short(b->vocabulary, piece, n_bytes, out, err);
    return encode_long(b, piece, (uint32_t)n_bytes, out, err);
}

void bpe_deinit(bpe *b)
{
    free(b->symbols);
    free(b->nodes);
    mem_free(b->buckets);
    mem_free(b->used);
    free(b->sweep);
    free(b->heap);
    *b = (bpe){0};
}
