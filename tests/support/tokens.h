/* The tokens of models/tiny for tests of grammars: as a tree, and drawn from a mask. */
#ifndef CALLA_TESTS_TOKENS_H
#define CALLA_TESTS_TOKENS_H

#include "grammar/token_trie.h"
#include "support/random_schema.h"

/* Setup and teardown of a group of tests, between which `tokens` is there. */
extern token_trie *tokens;
int open_tokens(void **state);
int close_tokens(void **state);

bool mask_allows(const uint32_t *mask, int32_t token);
/* A token of the mask [t->n_mask_words], each with the same chance; short_ones: of those of
 * one byte. -1 = none. */
int32_t draw_token(random_source *r, const token_trie *t, const uint32_t *mask, bool short_ones);

/* Any JSON value; the test fails if the text is none. */
json_t *parse_value(const char *text);

#endif
