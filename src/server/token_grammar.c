#include "server/token_rule.h"

#include "grammar/matcher.h"

#include <stdlib.h>
#include <string.h>

typedef struct grammar_rule {
    token_rule rule;
    const vocabulary *vocabulary;
    matcher *matcher;
    bool or_call; /* a tool call may come instead */
    bool called;
    size_t n_bytes, n_before; /* of the text so far; before the value can begin */
} grammar_rule;

static void free_rule(token_rule *rule)
{
    grammar_rule *r = (grammar_rule *)(void *)rule;
    matcher_free(r->matcher);
    free(r);
}

static bool may_call(const grammar_rule *r)
{
    return r->or_call && r->n_bytes == r->n_before && r->vocabulary->tool_call >= 0;
}

static bool allow(token_rule *rule, uint32_t *mask)
{
    grammar_rule *r = (grammar_rule *)(void *)rule;
    const vocabulary *v = r->vocabulary;
    if (r->called) return false;
    matcher_allow(r->matcher, mask);
    if (matcher_may_end(r->matcher))
        for (int32_t i = 0; i < v->n_stops; i++) token_mask_set(mask, v->stops[i]);
    if (may_call(r)) token_mask_set(mask, v->tool_call);
    return true;
}

static void accept(token_rule *rule, int32_t token)
{
    grammar_rule *r = (grammar_rule *)(void *)rule;
    size_t n_bytes;
    if (may_call(r) && token == r->vocabulary->tool_call) {
        r->called = true;
        return;
    }
    token_trie_bytes(r->vocabulary->trie, token, &n_bytes);
    r->n_bytes += n_bytes;
    matcher_accept_token(r->matcher, token);
}

calla_status token_rule_grammar(const vocabulary *v, const grammar *g, bool after_reasoning,
                                bool or_call, token_rule **rule, calla_error *err)
{
    static const token_rule_ops ops = {allow, accept, free_rule};
    grammar_rule *r = calloc(1, sizeof *r);
    if (!r) return error_set(err, CALLA_ERR_MEMORY, "no memory for a rule");
    *r = (grammar_rule){.rule.ops = &ops, .vocabulary = v, .or_call = or_call};
    r->n_before = after_reasoning ? strlen(GRAMMAR_GAP) : 0;
    calla_status status = matcher_create(g, v->trie, after_reasoning, &r->matcher, err);
    if (status != CALLA_OK) {
        free(r);
        return status;
    }
    *rule = &r->rule;
    return CALLA_OK;
}
