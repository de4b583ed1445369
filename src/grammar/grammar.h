/* Grammars: what an answer may be, as a pushdown automaton (automaton.h) made of a JSON schema.
 *
 *     schema.h      reads schemas and merges their combinations
 *     regex.h       patterns and formats, number_dfa.h numbers: automata without a stack
 *     emit.h        puts all into one automaton
 *     call.c        calls of tools
 *     token_trie.h  the vocabulary, made once
 *     token_sets.h  tokens by their characters
 *     matcher.h     follows one answer, and says which tokens may come next
 *
 * A grammar never changes once it is made and may be shared. Making one takes bounded time and
 * memory, whatever the schema: everything is counted against the limits of these headers. */
#ifndef CALLA_GRAMMAR_GRAMMAR_H
#define CALLA_GRAMMAR_GRAMMAR_H

#include "base/json.h"
#include "grammar/automaton.h"
#include "grammar/token_sets.h"

/* What stands between the reasoning and the answer. */
#define GRAMMAR_GAP "\n\n"

enum { GRAMMAR_MAX_SETS = 8 };

typedef struct grammar {
    automaton a;
    uint32_t start;
    uint32_t start_after_reasoning; /* GRAMMAR_GAP, then the start */
    /* What grammar_use_tokens found. */
    token_sets *owner;
    const token_set *sets[GRAMMAR_MAX_SETS]; /* [n_sets] */
    int n_sets;
} grammar;

typedef struct grammar_spec {
    const json_t *schema; /* the answer is a value of it */
    const char *place;    /* what the schema is called in errors ["schema"] */
} grammar_spec;

/* Borrows the schema during the call. CALLA_ERR_INPUT names the place in the schema and what is
 * wrong or not supported there. */
calla_status grammar_create(const grammar_spec *spec, grammar **out, calla_error *err);

/* Calls of tools, from behind `<tool_call>` up to the newline before `</tool_call>`: of the tool
 * called `only`, or of any (NULL). `tools` is the list of a chat request, checked; it must have the
 * tool. Arguments of tools with strict: true are held to their parameters' schema, those of others
 * only to the form. CALLA_ERR_INPUT names the place: "tools[0].function.parameters...". */
calla_status grammar_create_calls(const json_t *tools, const char *only, grammar **out,
                                  calla_error *err);
/* Finds the sets of tokens that make masks fast; they live longer than the grammar. For a large
 * vocabulary a set that nobody has asked for takes milliseconds: not for the thread that decodes.
 */
void grammar_use_tokens(grammar *g, token_sets *sets);
void grammar_free(grammar *g);

#endif
