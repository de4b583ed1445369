/* One text under a grammar: what may come next.
 *
 * Where alternatives share a beginning, several places of the grammar (with their stacks) are
 * followed at once, at most MATCHER_MAX_PLACES: what goes beyond is given up, which only narrows
 * what may come, for every place leads to a whole text. Nothing is allocated after the beginning.
 */
#ifndef CALLA_GRAMMAR_MATCHER_H
#define CALLA_GRAMMAR_MATCHER_H

#include "grammar/grammar.h"
#include "grammar/token_trie.h"

enum {
    MATCHER_MAX_PLACES = 64,
    MATCHER_CACHED_MASKS = 32, /* of places that were costly */
};

typedef struct matcher matcher;

/* g and t stay the caller's and live longer. */
calla_status matcher_create(const grammar *g, const token_trie *t, bool after_reasoning,
                            matcher **out, calla_error *err);
void matcher_free(matcher *m);
/* Back to the start. */
void matcher_reset(matcher *m);
/* Whether the text is whole. */
bool matcher_may_end(const matcher *m);
/* Sets the bits of the tokens that may come next in mask [t->n_mask_words], leaving the others. */
void matcher_allow(matcher *m, uint32_t *mask);
/* More of the text. False: it may not come, and the matcher is as it was. */
bool matcher_accept(matcher *m, const char *bytes, size_t n_bytes);
bool matcher_accept_token(matcher *m, int32_t token);

#endif
