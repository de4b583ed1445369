#include "grammar/trie.h"

#include <stdlib.h>
#include <string.h>

/* ---- characters ---- */

char_place char_place_next(char_place place, uint8_t byte)
{
    static const struct {
        uint8_t place, lo, hi, next;
    } steps[] = {
        {CHAR_NONE, 0xc2, 0xdf, CHAR_1},  {CHAR_NONE, 0xe0, 0xe0, CHAR_E0},
        {CHAR_NONE, 0xed, 0xed, CHAR_ED}, {CHAR_NONE, 0xe1, 0xef, CHAR_2},
        {CHAR_NONE, 0xf0, 0xf0, CHAR_F0}, {CHAR_NONE, 0xf1, 0xf3, CHAR_3},
        {CHAR_NONE, 0xf4, 0xf4, CHAR_F4}, {CHAR_1, 0x80, 0xbf, CHAR_NONE},
        {CHAR_2, 0x80, 0xbf, CHAR_1},     {CHAR_3, 0x80, 0xbf, CHAR_2},
        {CHAR_E0, 0xa0, 0xbf, CHAR_1},    {CHAR_ED, 0x80, 0x9f, CHAR_1},
        {CHAR_F0, 0x90, 0xbf, CHAR_2},    {CHAR_F4, 0x80, 0x8f, CHAR_2},
    };
    if (place == CHAR_NONE && byte < 0x80) return CHAR_NONE;
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        if (steps[i].place == place && steps[i].lo <= byte && byte <= steps[i].hi)
            return (char_place)steps[i].next;
    return CHAR_WRONG;
}

/* ---- building ---- */

enum { MIN_BELOW = 4 }; /* nodes, from which on it pays to know what is there */

typedef struct build {
    trie *t;
    lead_set *below; /* [n_nodes] */
    uint32_t path[TRIE_MAX_BYTES + 1];
    size_t depth;
} build;

static int compare_entries(const void *x, const void *y)
{
    const trie_entry *a = x, *b = y;
    size_t n = a->n < b->n ? a->n : b->n;
    int order = n > 0 ? memcmp(a->bytes, b->bytes, n) : 0;
    if (order != 0) return order;
    if (a->n != b->n) return a->n < b->n ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

static size_t common_bytes(const trie_entry *a, const trie_entry *b)
{
    size_t n = 0, most = a->n < b->n ? a->n : b->n;
    while (n < most && a->bytes[n] == b->bytes[n]) n++;
    return n;
}

static size_t count_nodes(const trie_entry *entries, size_t n)
{
    size_t total = 0;
    for (size_t i = 0; i < n; i++)
        total += entries[i].n - (i > 0 ? common_bytes(&entries[i - 1], &entries[i]) : 0);
    return total;
}

/* Tells the nodes on the path of e what comes below them. Bytes that go on with a character may
 * come first: where that began is somebody else's knowledge. */
static void tell_path(build *b, const trie_entry *e)
{
    char_place places[TRIE_MAX_BYTES + 1] = {CHAR_NONE};
    lead_set after = {0};
    size_t i = 0, n_after = 0;
    for (; i < e->n && ((uint8_t)e->bytes[i] & 0xc0) == 0x80; i++) places[i + 1] = CHAR_NONE;
    for (; i < e->n; i++) {
        char_place next = char_place_next(places[i], (uint8_t)e->bytes[i]);
        places[i + 1] = next;
        if (next == CHAR_WRONG) places[i + 1] = CHAR_NONE;
    }
    for (i = e->n; i > 0; i--) {
        trie_node *node = &b->t->nodes[b->path[i]];
        lead_set *below = &b->below[b->path[i]];
        uint8_t byte = (uint8_t)e->bytes[i - 1];
        if (n_after > node->height) node->height = (uint8_t)n_after;
        for (int k = 0; k < 3; k++) below->bits[k] |= after.bits[k];
        if (places[i] != CHAR_NONE) below->bits[2] |= 1ull << BELOW_WITHIN;
        if (char_place_next(places[i - 1], byte) == CHAR_WRONG)
            after.bits[2] |= 1ull << BELOW_BROKEN;
        else if (places[i - 1] == CHAR_NONE)
            lead_set_add(&after, byte), n_after++;
    }
}

static void end_nodes(build *b, size_t depth)
{
    for (; b->depth > depth; b->depth--)
        b->t->nodes[b->path[b->depth]].skip = (uint32_t)b->t->n_nodes;
}

static void add_entries(build *b, const trie_entry *entries, size_t n)
{
    trie *t = b->t;
    for (size_t i = 0; i < n; i++) {
        const trie_entry *e = &entries[i];
        end_nodes(b, i > 0 ? common_bytes(e - 1, e) : 0);
        while (b->depth < e->n) {
            t->nodes[t->n_nodes] = (trie_node){.byte = (uint8_t)e->bytes[b->depth],
                                               .depth = (uint8_t)(b->depth + 1),
                                               .first = (uint32_t)i};
            b->path[++b->depth] = (uint32_t)t->n_nodes++;
        }
        t->ids[i] = e->id;
        t->n_empty += e->n == 0;
        tell_path(b, e);
    }
    end_nodes(b, 0);
    t->nodes[t->n_nodes].first = (uint32_t)n;
}

/* Keeps what is below the nodes that have enough there. */
static calla_status keep_below(build *b, calla_error *err)
{
    trie *t = b->t;
    t->n_below = 1;
    for (uint32_t i = 0; i < t->n_nodes; i++)
        if (t->nodes[i].skip - i > MIN_BELOW) t->nodes[i].below = (uint32_t)t->n_below++;
    t->below = calloc(t->n_below, sizeof *t->below);
    if (!t->below) return error_set(err, CALLA_ERR_MEMORY, "no memory for the tokens");
    for (uint32_t i = 0; i < t->n_nodes; i++)
        if (t->nodes[i].below > 0) t->below[t->nodes[i].below] = b->below[i];
    return CALLA_OK;
}

calla_status trie_build(trie_entry *entries, size_t n, trie *t, calla_error *err)
{
    build b = {.t = t};
    qsort(entries, n, sizeof *entries, compare_entries);
    size_t n_nodes = count_nodes(entries, n);
    t->nodes = calloc(n_nodes + 1, sizeof *t->nodes);
    t->ids = calloc(n + 1, sizeof *t->ids);
    b.below = calloc(n_nodes + 1, sizeof *b.below);
    calla_status status = CALLA_ERR_MEMORY;
    if (t->nodes && t->ids && b.below) {
        add_entries(&b, entries, n);
        status = keep_below(&b, err);
    } else {
        error_set(err, status, "no memory for the tokens");
    }
    free(b.below);
    return status;
}

void trie_free(trie *t)
{
    free(t->nodes);
    free(t->ids);
    free(t->below);
    *t = (trie){0};
}
