#include "server/guide.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static const char closing_text[] = "\n\nThat is enough thought; here is the answer.\n</think>";

static calla_status need_mask(guide *g, calla_error *err)
{
    if (!g->mask) g->mask = calloc((size_t)g->vocabulary->n_mask_words, sizeof *g->mask);
    return g->mask ? CALLA_OK : error_set(err, CALLA_ERR_MEMORY, "no memory for a token mask");
}

calla_status guide_init(guide *g, const vocabulary *v, bool thinking, int64_t budget,
                        calla_error *err)
{
    *g = (guide){.vocabulary = v, .thinking = thinking, .budget_left = budget};
    if (!thinking || budget < 0) return CALLA_OK;
    const char *const texts[] = {closing_text};
    CALLA_TRY(token_rule_texts(v, texts, 1, &g->closing, err));
    return need_mask(g, err);
}

void guide_deinit(guide *g)
{
    if (g->closing) g->closing->ops->free(g->closing);
    for (int32_t i = 0; i < g->n_rules; i++) g->rules[i]->ops->free(g->rules[i]);
    free(g->mask);
    *g = (guide){0};
}

calla_status guide_add_rule(guide *g, token_rule *rule, calla_error *err)
{
    assert(g->n_rules < GUIDE_MAX_RULES);
    g->rules[g->n_rules++] = rule;
    return need_mask(g, err);
}

calla_status guide_add_calls(guide *g, const grammar *calls, bool required, calla_error *err)
{
    const char *const texts[] = {g->thinking ? GRAMMAR_GAP "<tool_call>" : "<tool_call>"};
    token_rule *rule;
    if (required) {
        CALLA_TRY(token_rule_texts(g->vocabulary, texts, 1, &rule, err));
        CALLA_TRY(guide_add_rule(g, rule, err));
    }
    CALLA_TRY(token_rule_calls(g->vocabulary, calls, g->n_rules > 0, &rule, err));
    return guide_add_rule(g, rule, err);
}

/* While reasoning, with rules to come: all tokens but those that would end the answer or begin it
 * without them. */
static void allow_reasoning(guide *g)
{
    const vocabulary *v = g->vocabulary;
    memset(g->mask, 0xff, (size_t)v->n_mask_words * sizeof *g->mask);
    for (int32_t i = 0; i < v->n_stops; i++) token_mask_clear(g->mask, v->stops[i]);
    if (v->tool_call >= 0) token_mask_clear(g->mask, v->tool_call);
}

const uint32_t *guide_mask(guide *g)
{
    if (!g->mask) return NULL;
    memset(g->mask, 0, (size_t)g->vocabulary->n_mask_words * sizeof *g->mask);
    if (g->thinking) {
        if (g->budget_left == 0 && g->closing->ops->allow(g->closing, g->mask)) return g->mask;
        if (g->n_rules == 0) return NULL;
        allow_reasoning(g);
        return g->mask;
    }
    for (; g->at < g->n_rules; g->at++)
        if (g->rules[g->at]->ops->allow(g->rules[g->at], g->mask)) return g->mask;
    return NULL;
}

void guide_accept(guide *g, int32_t token, bool thinking)
{
    if (g->thinking) {
        if (g->budget_left > 0)
            g->budget_left--;
        else if (g->budget_left == 0)
            g->closing->ops->accept(g->closing, token);
    } else if (g->at < g->n_rules) {
        g->rules[g->at]->ops->accept(g->rules[g->at], token);
    }
    g->thinking = thinking;
}
