/* The tokens of a tokenizer as a tree of their bytes (those of at most TRIE_MAX_BYTES;
 * longer ones never come under a grammar), and what can be said beforehand about tokens
 * inside a string of JSON, where most of them may come. Made once, read by all threads. */
#ifndef CALLA_GRAMMAR_TOKEN_TRIE_H
#define CALLA_GRAMMAR_TOKEN_TRIE_H

#include "grammar/token_sets.h"

#include <calla/model.h>

/* A token that ends a string: `count` characters, the quote, and what is in `suffixes`. */
typedef struct closing_token {
    int32_t token;
    uint32_t count;
} closing_token;

typedef struct token_trie {
    const calla_tokenizer *tokenizer;
    int32_t n_tokens, n_mask_words;
    trie all;         /* of token ids */
    token_set inside; /* tokens that stay inside a string (IN_TEXT), which may end in a character */
    closing_token *closing; /* [n_closing] */
    trie suffixes;          /* of indices into closing */
    size_t n_closing;
    token_sets *sets;    /* for places that are no plain strings */
    uint8_t *is_control; /* [n_tokens] */
} token_trie;

calla_status token_trie_create(const calla_tokenizer *tokenizer, int32_t n_mask_words,
                               token_trie **out, calla_error *err);
void token_trie_free(token_trie *t);
/* The bytes of a token as grammars see them: its own, or none if it is a control token. */
const char *token_trie_bytes(const token_trie *t, int32_t token, size_t *n_bytes);

#endif
