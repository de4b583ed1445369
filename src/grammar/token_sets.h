/* Tokens that are made of characters of a set (the last one may be cut off), by their number of
 * characters: what may come where
 * an automaton stays (pda_stay), without looking at each. Sets are made where a grammar is, not
 * where it is followed, and shared by grammars; all threads may ask for them. */
#ifndef CALLA_GRAMMAR_TOKEN_SETS_H
#define CALLA_GRAMMAR_TOKEN_SETS_H

#include "grammar/trie.h"

#include <stdatomic.h>

enum {
    TOKEN_SET_SHORT = 20, /* characters: few tokens have more */
    TOKEN_SETS_KEPT = 16, /* of all grammars; each has TOKEN_SET_SHORT + 1 masks */
};

typedef struct counted_token {
    int32_t token;
    uint32_t count; /* characters */
} counted_token;

typedef struct token_set {
    lead_set chars;
    size_t n_words;        /* of a mask */
    uint32_t *masks;       /* [TOKEN_SET_SHORT + 1][n_words] tokens of at most so many characters */
    counted_token *longer; /* [n_longer] those of more, by their count */
    size_t n_longer, capacity;
    atomic_int n_users;
    uint64_t last_used;
} token_set;

/* Fills an empty set: begin, add tokens, end. */
calla_status token_set_begin(token_set *s, size_t n_words, calla_error *err);
calla_status token_set_add(token_set *s, int32_t token, uint32_t count, calla_error *err);
void token_set_end(token_set *s);
void token_set_free(token_set *s);
/* Sets the bits of the tokens of at most n characters in mask [n_words]. */
void token_set_allow(const token_set *s, uint32_t n, uint32_t *mask);

typedef struct token_sets token_sets;
calla_status token_sets_create(const trie *tokens, size_t n_words, token_sets **out,
                               calla_error *err);
void token_sets_free(token_sets *s);
/* The set of these characters, to be put back. NULL: there is no room for more, or no memory. */
const token_set *token_sets_get(token_sets *s, const lead_set *chars);
/* Waits for nobody. */
void token_sets_put(token_sets *s, const token_set *set);

#endif
