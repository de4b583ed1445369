#include "server/token_rule.h"

#include "grammar/matcher.h"

#include <stdlib.h>
#include <string.h>

typedef struct calls_rule {
    token_rule rule;
    const vocabulary *vocabulary;
    matcher *matcher;
    enum { NO_CALL, IN_CALL, AFTER_CALL, AFTER_NEWLINE } place;
    int32_t newline; /* the token that stands between calls, or -1 */
} calls_rule;

static void free_rule(token_rule *rule)
{
    calls_rule *r = (calls_rule *)(void *)rule;
    matcher_free(r->matcher);
    free(r);
}

static bool allow(token_rule *rule, uint32_t *mask)
{
    calls_rule *r = (calls_rule *)(void *)rule;
    const vocabulary *v = r->vocabulary;
    if (r->place == NO_CALL) {
        memset(mask, 0xff, (size_t)v->n_mask_words * sizeof *mask);
    } else if (r->place == IN_CALL) {
        matcher_allow(r->matcher, mask);
        if (matcher_may_end(r->matcher)) token_mask_set(mask, v->tool_call_end);
    } else {
        for (int32_t i = 0; i < v->n_stops; i++) token_mask_set(mask, v->stops[i]);
        token_mask_set(mask, v->tool_call);
        if (r->place == AFTER_CALL && r->newline >= 0) token_mask_set(mask, r->newline);
    }
    return true;
}

static void accept(token_rule *rule, int32_t token)
{
    calls_rule *r = (calls_rule *)(void *)rule;
    if (r->place == IN_CALL) {
        if (token == r->vocabulary->tool_call_end)
            r->place = AFTER_CALL;
        else
            matcher_accept_token(r->matcher, token);
    } else if (token == r->vocabulary->tool_call) {
        matcher_reset(r->matcher);
        r->place = IN_CALL;
    } else if (r->place == AFTER_CALL) {
        r->place = AFTER_NEWLINE;
    }
}

static calla_status find_newline(calls_rule *r, calla_error *err)
{
    calla_tokens tokens;
    CALLA_TRY(calla_tokenizer_encode(r->vocabulary->tokenizer, "\n", 1, NULL, 0, &tokens, err));
    r->newline = tokens.n == 1 ? tokens.ids[0] : -1;
    calla_tokens_free(&tokens);
    return CALLA_OK;
}

calla_status token_rule_calls(const vocabulary *v, const grammar *g, bool begun, token_rule **rule,
                              calla_error *err)
{
    static const token_rule_ops ops = {allow, accept, free_rule};
    calls_rule *r = calloc(1, sizeof *r);
    if (!r) return error_set(err, CALLA_ERR_MEMORY, "no memory for a rule");
    *r = (calls_rule){.rule.ops = &ops, .vocabulary = v, .place = begun ? IN_CALL : NO_CALL};
    calla_status status = matcher_create(g, v->trie, false, &r->matcher, err);
    if (status == CALLA_OK) status = find_newline(r, err);
    if (status != CALLA_OK) {
        free_rule(&r->rule);
        return status;
    }
    *rule = &r->rule;
    return CALLA_OK;
}
