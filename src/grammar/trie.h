/* Texts as a tree of their bytes, which is walked beside an automaton: what it takes under a node
 * is often all that is there, which is then known from the characters below the node alone. */
#ifndef CALLA_GRAMMAR_TRIE_H
#define CALLA_GRAMMAR_TRIE_H

#include "base/error.h"

enum { TRIE_MAX_BYTES = 128 }; /* of a text */

/* A set of characters, told by their first byte: bit b % 64 of bits[b / 64] is ASCII character b,
 * bit b - FIRST_LEAD of bits[2] stands for all characters whose first byte is b. */
typedef struct lead_set {
    uint64_t bits[3];
} lead_set;
enum {
    FIRST_LEAD = 0xc2,
    LAST_LEAD = 0xf4,
    /* What is below a node may have these, in bits[2], where no lead byte is: */
    BELOW_BROKEN = 62, /* what is no character (the last one may be cut off) */
    BELOW_WITHIN = 63, /* the rest of one that began above */
};

static inline void lead_set_add(lead_set *s, uint8_t byte)
{
    int i = byte < 0x80 ? byte : byte - FIRST_LEAD + 128;
    s->bits[i / 64] |= 1ull << (i % 64);
}

static inline bool lead_set_has(const lead_set *s, uint8_t byte)
{
    int i = byte < 0x80 ? byte : byte - FIRST_LEAD + 128;
    return (byte < 0x80 || (byte >= FIRST_LEAD && byte <= LAST_LEAD)) &&
           s->bits[i / 64] >> (i % 64) & 1;
}

static inline bool lead_set_has_all(const lead_set *s, const lead_set *others)
{
    return !((others->bits[0] & ~s->bits[0]) | (others->bits[1] & ~s->bits[1]) |
             (others->bits[2] & ~s->bits[2]));
}

/* How UTF-8 goes on. */
typedef enum char_place {
    CHAR_NONE, /* no character is under way */
    CHAR_1,    /* so many bytes are missing, the next one any that may come there */
    CHAR_2,
    CHAR_3,
    CHAR_E0, /* behind this byte */
    CHAR_ED,
    CHAR_F0,
    CHAR_F4,
    CHAR_WRONG,
} char_place;
char_place char_place_next(char_place place, uint8_t byte);

/* In depth-first order: the nodes below one follow it, up to `skip`. The ids of a node and of those
 * below it are ids[first ...] up to the `first` of the node at `skip`. */
typedef struct trie_node {
    uint32_t skip;
    uint32_t first; /* its own ids: up to the `first` of the next node */
    uint32_t below; /* what comes below it: an index into `below`, or 0 = look for yourself */
    uint8_t byte, depth;
    uint8_t height; /* characters of the longest text below it */
} trie_node;
typedef struct trie {
    trie_node *nodes; /* [n_nodes + 1], the last one is none */
    int32_t *ids;
    lead_set *below; /* [n_below] */
    size_t n_nodes, n_below;
    uint32_t n_empty; /* ids[0 ... n_empty) are of no bytes */
} trie;

typedef struct trie_entry {
    const char *bytes; /* [n] n <= TRIE_MAX_BYTES */
    size_t n;
    int32_t id;
} trie_entry;

/* Sorts entries [n]; their ids stand in that order. */
calla_status trie_build(trie_entry *entries, size_t n, trie *t, calla_error *err);
void trie_free(trie *t);

#endif
