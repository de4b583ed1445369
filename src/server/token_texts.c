#include "server/token_rule.h"

#include <stdlib.h>
#include <string.h>

typedef struct text_rule {
    token_rule rule;
    int32_t n;
    int64_t n_accepted;
    bool fulfilled;
    calla_tokens *texts; /* [n]; those that came apart are emptied */
} text_rule;

static void free_rule(token_rule *rule)
{
    text_rule *r = (text_rule *)(void *)rule;
    for (int32_t i = 0; i < r->n; i++) calla_tokens_free(&r->texts[i]);
    free(r->texts);
    free(r);
}

static bool allow(token_rule *rule, uint32_t *mask)
{
    text_rule *r = (text_rule *)(void *)rule;
    if (r->fulfilled) return false;
    for (int32_t i = 0; i < r->n; i++)
        if (r->texts[i].n > r->n_accepted) token_mask_set(mask, r->texts[i].ids[r->n_accepted]);
    return true;
}

static void accept(token_rule *rule, int32_t token)
{
    text_rule *r = (text_rule *)(void *)rule;
    for (int32_t i = 0; i < r->n; i++) {
        calla_tokens *t = &r->texts[i];
        if (t->n <= r->n_accepted) continue;
        if (t->ids[r->n_accepted] != token)
            calla_tokens_free(t);
        else if (t->n == r->n_accepted + 1)
            r->fulfilled = true;
    }
    r->n_accepted++;
}

calla_status token_rule_texts(const vocabulary *v, const char *const *texts, int32_t n,
                              token_rule **rule, calla_error *err)
{
    static const token_rule_ops ops = {allow, accept, free_rule};
    text_rule *r = calloc(1, sizeof *r);
    calla_tokens *tokens = calloc((size_t)n, sizeof *tokens);
    if (!r || !tokens) {
        free(r);
        free(tokens);
        return error_set(err, CALLA_ERR_MEMORY, "no memory for %d texts", n);
    }
    *r = (text_rule){.rule.ops = &ops, .n = n, .texts = tokens};
    for (int32_t i = 0; i < n; i++) {
        calla_status status = calla_tokenizer_encode(v->tokenizer, texts[i], strlen(texts[i]), NULL,
                                                     0, &tokens[i], err);
        if (status == CALLA_OK && tokens[i].n == 0)
            status = error_set(err, CALLA_ERR_INPUT, "a text of no tokens");
        if (status != CALLA_OK) {
            free_rule(&r->rule);
            return status;
        }
    }
    *rule = &r->rule;
    return CALLA_OK;
}
