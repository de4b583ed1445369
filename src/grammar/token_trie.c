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

typedef struct inside_token {
    int32_t token;
    uint32_t count;
} inside_token;

typedef struct text_tables {
    inside_token *inside;
    trie_entry *suffixes;
    size_t n_inside, n_suffixes;
} text_tables;

/* Follows the token from inside a string. */
static void sort_token(const automaton *a, uint32_t text, token_trie *t, text_tables *tables,
                       int32_t token)
{
    size_t n;
    uint32_t at = text, count = 0;
    const char *bytes = token_trie_bytes(t, token, &n);
    if (n == 0 || n > TRIE_MAX_BYTES) return;
    for (size_t i = 0; i < n; i++) {
        uint8_t byte = (uint8_t)bytes[i];
        const pda_edge *e = a->edges + a->states[at].first, *end = e + a->states[at].n_bytes;
        while (e < end && !(e->lo <= byte && byte <= e->hi)) e++;
        if (e == end) return;
        if (e->target == ACCEPT) {
            t->closing[t->n_closing] = (closing_token){token, count};
            tables->suffixes[tables->n_suffixes++] =
                (trie_entry){bytes + i + 1, n - i - 1, (int32_t)t->n_closing++};
            return;
        }
        count += at == text;
        at = e->target;
    }
    tables->inside[tables->n_inside++] = (inside_token){token, count};
}

static int compare_inside(const void *x, const void *y)
{
    const inside_token *a = x, *b = y;
    return a->count < b->count ? -1 : a->count > b->count;
}

static calla_status keep_tables(token_trie *t, text_tables *tables, calla_error *err)
{
    qsort(tables->inside, tables->n_inside, sizeof *tables->inside, compare_inside);
    size_t n = tables->n_inside, words = (size_t)t->n_mask_words, first = 0;
    t->inside_long = calloc(n + 1, sizeof *t->inside_long);
    t->inside_counts = calloc(n + 1, 1);
    t->inside_masks = calloc((TRIE_SHORT + 1) * words, sizeof *t->inside_masks);
    if (!t->inside_long || !t->inside_counts || !t->inside_masks)
        return error_set(err, CALLA_ERR_MEMORY, "no memory for the tokens");
    for (uint32_t count = 0; count <= TRIE_SHORT; count++) {
        uint32_t *mask = t->inside_masks + count * words;
        if (count > 0) memcpy(mask, mask - words, words * sizeof *mask);
        for (; first < n && tables->inside[first].count <= count; first++) {
            int32_t token = tables->inside[first].token;
            mask[token / 32] |= 1u << (token % 32);
        }
    }
    for (; first < n; first++) {
        t->inside_long[t->n_inside_long] = tables->inside[first].token;
        t->inside_counts[t->n_inside_long++] = (uint8_t)tables->inside[first].count;
    }
    return trie_build(tables->suffixes, tables->n_suffixes, &t->suffixes, err);
}

static calla_status sort_all(token_trie *t, const grammar *strings, calla_error *err)
{
    text_tables tables = {calloc((size_t)t->n_tokens + 1, sizeof *tables.inside),
                          calloc((size_t)t->n_tokens + 1, sizeof *tables.suffixes), 0, 0};
    t->closing = calloc((size_t)t->n_tokens + 1, sizeof *t->closing);
    calla_status status = CALLA_OK;
    if (!tables.inside || !tables.suffixes || !t->closing) {
        status = error_set(err, CALLA_ERR_MEMORY, "no memory for the tokens");
        goto done;
    }
    uint32_t text = ACCEPT;
    for (uint32_t s = 0; s < strings->a.n_states; s++)
        if (strings->a.states[s].is_text) text = s;
    for (int32_t id = 0; id < t->n_tokens; id++) sort_token(&strings->a, text, t, &tables, id);
    status = keep_tables(t, &tables, err);
done:
    free(tables.inside);
    free(tables.suffixes);
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
    free(t->inside_long);
    free(t->inside_counts);
    free(t->inside_masks);
    free(t->closing);
    free(t->is_control);
    free(t);
}
