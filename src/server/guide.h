/* What the next token of one answer may be: the thinking budget, and rules for what follows the
 * reasoning (tool_choice; constrained formats are rules too).
 *
 * While the model reasons, everything may come until the budget is spent; then a short closing text
 * is forced, which ends the reasoning. After the reasoning (from the first token on if there is
 * none) the rules hold one after the other. */
#ifndef CALLA_SERVER_GUIDE_H
#define CALLA_SERVER_GUIDE_H

#include "server/token_rule.h"

enum { GUIDE_MAX_RULES = 2 };

typedef struct guide {
    const vocabulary *vocabulary;
    bool thinking;                      /* the answer is still reasoning */
    int64_t budget_left;                /* tokens of reasoning, -1 = no limit */
    token_rule *closing;                /* in force when the budget is spent; NULL without one */
    token_rule *rules[GUIDE_MAX_RULES]; /* [n_rules] for the answer; rules[at] is in force */
    int32_t n_rules, at;
    uint32_t *mask; /* [n_mask_words], NULL when nothing ever limits the tokens */
} guide;

/* budget: tokens of reasoning, -1 = no limit. */
calla_status guide_init(guide *g, const vocabulary *v, bool thinking, int64_t budget,
                        calla_error *err);
void guide_deinit(guide *g);
/* Adds a rule behind those there are, and owns it. */
calla_status guide_add_rule(guide *g, token_rule *rule, calla_error *err);
/* Calls are of the grammar `calls`, which stays the caller's; required: the answer is calls alone.
 * Behind another rule, that one has to end with `<tool_call>`. */
calla_status guide_add_calls(guide *g, const grammar *calls, bool required, calla_error *err);

/* The mask for the next token, valid until the next call; NULL = all may come. */
const uint32_t *guide_mask(guide *g);
/* `token` came; thinking: whether the answer is reasoning after it. */
void guide_accept(guide *g, int32_t token, bool thinking);

#endif
