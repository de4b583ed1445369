/* The tokens of a tokenizer as a tree of their bytes, and what can be said beforehand about tokens
 * inside a string of JSON, where most of them may come. Made once, read by all threads. */
#ifndef CALLA_GRAMMAR_TOKEN_TRIE_H
#define CALLA_GRAMMAR_TOKEN_TRIE_H

#include "base/error.h"

#include <calla/model.h>

enum { TRIE_MAX_BYTES = 128 }; /* of a token; longer ones never come under a grammar */

/* In depth-first order: the nodes below one follow it, up to `skip`. */
typedef struct trie_node {
    uint32_t skip;
    uint32_t first, n; /* the ids that end here: ids[first ... first + n) */
    uint8_t byte, depth;
} trie_node;
typedef struct trie {
    trie_node *nodes; /* [n_nodes] */
    int32_t *ids;
    size_t n_nodes;
    uint32_t n_empty; /* ids[0 ... n_empty) are of no bytes */
} trie;

/* A token that ends a string: `count` characters, the quote, and what is in `suffixes`. */
typedef struct closing_token {
    int32_t token;
    uint32_t count;
} closing_token;

typedef struct token_trie {
    const calla_tokenizer *tokenizer;
    int32_t n_tokens, n_mask_words;
    trie all; /* of token ids */
    /* Inside a string (IN_TEXT): tokens that stay in it, by their number of characters. */
    int32_t *inside;        /* [n_inside] */
    uint8_t *inside_counts; /* [n_inside] ascending */
    uint32_t *inside_mask;  /* [n_mask_words] all of them */
    size_t n_inside;
    closing_token *closing; /* [n_closing] */
    trie suffixes;          /* of indices into closing */
    size_t n_closing;
    uint8_t *is_control; /* [n_tokens] */
} token_trie;

calla_status token_trie_create(const calla_tokenizer *tokenizer, int32_t n_mask_words,
                               token_trie **out, calla_error *err);
void token_trie_free(token_trie *t);
/* The bytes of a token as grammars see them: its own, or none if it is a control token. */
const char *token_trie_bytes(const token_trie *t, int32_t token, size_t *n_bytes);

#endif
