/* A rule for the tokens of an answer: which may come next, told to the sampler as a mask, and which
 * one came. guide.h says when a rule is in force. */
#ifndef CALLA_SERVER_TOKEN_RULE_H
#define CALLA_SERVER_TOKEN_RULE_H

#include "grammar/grammar.h"
#include "server/vocabulary.h"

typedef struct token_rule token_rule;
typedef struct token_rule_ops {
    /* Sets in mask [vocabulary.n_mask_words], which is zero, the bits of the tokens that may come
     * next, at least one. False: the rule is fulfilled, and what follows is not its concern. */
    bool (*allow)(token_rule *rule, uint32_t *mask);
    /* One of those came. */
    void (*accept)(token_rule *rule, int32_t token);
    void (*free)(token_rule *rule);
} token_rule_ops;
struct token_rule {
    const token_rule_ops *ops;
};

static inline void token_mask_set(uint32_t *mask, int32_t token)
{
    mask[token / 32] |= 1u << (token % 32);
}

static inline void token_mask_clear(uint32_t *mask, int32_t token)
{
    mask[token / 32] &= ~(1u << (token % 32));
}

/* Exactly one of n texts, in the tokens the tokenizer gives for it (control tokens included). The
 * texts are distinct and none begins with another. */
calla_status token_rule_texts(const vocabulary *v, const char *const *texts, int32_t n,
                              token_rule **rule, calla_error *err);
/* A text of the grammar, which stays the caller's, and then the end. or_call: it may begin with a
 * tool call instead, which fulfils the rule. */
calla_status token_rule_grammar(const vocabulary *v, const grammar *g, bool after_reasoning,
                                bool or_call, token_rule **rule, calla_error *err);
/* Anything, but what follows `<tool_call>` is of a grammar of calls (grammar_create_calls), which
 * stays the caller's; then come further calls or the end. begun: `<tool_call>` came already. The
 * vocabulary has both tags. The rule is never fulfilled. */
calla_status token_rule_calls(const vocabulary *v, const grammar *g, bool begun, token_rule **rule,
                              calla_error *err);

#endif
