#include "grammar/token_trie.h"

#include "grammar/emit.h"
#include "grammar/grammar.h"

#include <stdlib.h>
#include <string.h>

/* ---- control tokens ---- */

static void find_controls(token_trie *t)
{
    for (int32_t id = 0; id < t->n_tokens; id++) {
        char text[TRIE_MAX_BYTES + 1];
        size_t n;
        const char *bytes = calla_tokenizer_bytes(t->tokenizer, id, &n);
        if (calla_tokenizer_is_special(t->tokenizer, id) ||
            calla_tokenizer_is_stop(t->tokenizer, id))
            t->is_control[id] = 1;
        if (n == 0 || n > TRIE_MAX_BYTES || bytes[0] != '<') continue;
        memcpy(text, bytes, n);
        text[n] = '\0';
        if (calla_tokenizer_find(t->tokenizer, text) != id) continue;
        t->is_control[id] = 1;
    }
}

const char *token_trie_bytes(const token_trie *t, int32_t token, size_t *n_bytes)
{
    *n_bytes = 0;
    if (token < 0 || token >= t->n_tokens || t->is_control[token]) return "";
    return calla_tokenizer_bytes(t->tokenizer, token, n_bytes);
}

/* ---- strings ---- */

/* Follows the token from inside a string; suffixes has one for every closing token. */
static calla_status sort_token(const automaton *a, uint32_t text, token_trie *t,
                               trie_entry *suffixes, int32_t token, calla_error *err)
{
    size_t n;
    uint32_t at = text, count = 0;
    const char *bytes = token_trie_bytes(t, token, &n);
    if (n == 0 || n > TRIE_MAX_BYTES) return CALLA_OK;
    for (size_t i = 0; i < n; i++) {
        uint8_t byte = (uint8_t)bytes[i];
        const pda_edge *e = a->edges + a->states[at].first, *end = e + a->states[at].n_bytes;
        while (e < end && !(e->lo <= byte && byte <= e->hi)) e++;
        if (e == end) return CALLA_OK;
        if (e->target == ACCEPT) {
            t->closing[t->n_closing] = (closing_token){token, count};
            suffixes[t->n_closing] = (trie_entry){bytes + i + 1, n - i - 1, (int32_t)t->n_closing};
            t->n_closing++;
            return CALLA_OK;
        }
        count += at == text;
        at = e->target;
    }
    return token_set_add(&t->inside, token, count, err);
}

static calla_status sort_all(token_trie *t, const grammar *strings, calla_error *err)
{
    trie_entry *suffixes = calloc((size_t)t->n_tokens + 1, sizeof *suffixes);
    t->closing = calloc((size_t)t->n_tokens + 1, sizeof *t->closing);
    calla_status status = CALLA_OK;
    if (!suffixes || !t->closing)
        status = error_set(err, CALLA_ERR_MEMORY, "no memory for the tokens");
    else
        status = token_set_begin(&t->inside, (size_t)t->n_mask_words, err);
    uint32_t text = ACCEPT;
    for (uint32_t s = 0; s < strings->a.n_states; s++)
        if (strings->a.states[s].is_text) text = s;
    for (int32_t id = 0; id < t->n_tokens && status == CALLA_OK; id++)
        status = sort_token(&strings->a, text, t, suffixes, id, err);
    if (status == CALLA_OK) {
        token_set_end(&t->inside);
        status = trie_build(suffixes, t->n_closing, &t->suffixes, err);
    }
    free(suffixes);
    return status;
}

static calla_status add_strings(token_trie *t, calla_error *err)
{
    grammar *strings = NULL;
    json_t *schema = json_pack("{s:s}", "type", "string");
    if (!schema) return error_set(err, CALLA_ERR_MEMORY, "no memory for the tokens");
    calla_status status = grammar_create(&(grammar_spec){.schema = schema}, &strings, err);
    if (status == CALLA_OK) status = sort_all(t, strings, err);
    grammar_free(strings);
    json_decref(schema);
    return status;
}

/* ---- all ---- */

static calla_status add_all(token_trie *t, calla_error *err)
{
    trie_entry *entries = calloc((size_t)t->n_tokens + 1, sizeof *entries);
    size_t n = 0;
    if (!entries) return error_set(err, CALLA_ERR_MEMORY, "no memory for the tokens");
    for (int32_t id = 0; id < t->n_tokens; id++) {
        trie_entry *e = &entries[n];
        e->bytes = token_trie_bytes(t, id, &e->n);
        e->id = id;
        n += e->n > 0 && e->n <= TRIE_MAX_BYTES;
    }
    calla_status status = trie_build(entries, n, &t->all, err);
    free(entries);
    return status;
}

calla_status token_trie_create(const calla_tokenizer *tokenizer, int32_t n_mask_words,
                               token_trie **out, calla_error *err)
{
    calla_status status = CALLA_ERR_MEMORY;
    token_trie *t = calloc(1, sizeof *t);
    if (!t) goto fail;
    t->tokenizer = tokenizer;
    t->n_mask_words = n_mask_words;
    t->n_tokens = calla_tokenizer_n_tokens(tokenizer);
    if (t->n_tokens > 32 * n_mask_words) t->n_tokens = 32 * n_mask_words;
    t->is_control = calloc((size_t)t->n_tokens + 1, 1);
    if (!t->is_control) goto fail;
    find_controls(t);
    status = add_all(t, err);
    if (status == CALLA_OK) status = add_strings(t, err);
    if (status == CALLA_OK)
        status = token_sets_create(&t->all, (size_t)t->n_mask_words, &t->sets, err);
    if (status != CALLA_OK) {
        token_trie_free(t);
        return status;
    }
    *out = t;
    return CALLA_OK;
fail:
    token_trie_free(t);
    return error_set(err, status, "no memory for the tokens");
}

void token_trie_free(token_trie *t)
{
    if (!t) return;
    trie_free(&t->all);
    trie_free(&t->suffixes);
    token_set_free(&t->inside);
    token_sets_free(t->sets);
    free(t->closing);
    free(t->is_control);
    free(t);
}
