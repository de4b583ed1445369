#include "grammar/token_trie.h"

#include "grammar/emit.h"
#include "grammar/grammar.h"

#include <stdlib.h>
#include <string.h>

/* ---- trees ---- */

typedef struct entry {
    const char *bytes;
    size_t n;
    int32_t id;
} entry;

static int compare_entries(const void *x, const void *y)
{
    const entry *a = x, *b = y;
    size_t n = a->n < b->n ? a->n : b->n;
    int order = n > 0 ? memcmp(a->bytes, b->bytes, n) : 0;
    if (order != 0) return order;
    if (a->n != b->n) return a->n < b->n ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

static size_t common_bytes(const entry *a, const entry *b)
{
    size_t n = 0, most = a->n < b->n ? a->n : b->n;
    while (n < most && a->bytes[n] == b->bytes[n]) n++;
    return n;
}

static size_t count_nodes(const entry *entries, size_t n)
{
    size_t total = 0;
    for (size_t i = 0; i < n; i++)
        total += entries[i].n - (i > 0 ? common_bytes(&entries[i - 1], &entries[i]) : 0);
    return total;
}

/* Sorts entries [n]; their ids stand in that order. */
static calla_status trie_build(entry *entries, size_t n, trie *t, calla_error *err)
{
    uint32_t path[TRIE_MAX_BYTES + 1];
    size_t depth = 0;
    qsort(entries, n, sizeof *entries, compare_entries);
    t->nodes = calloc(count_nodes(entries, n) + 1, sizeof *t->nodes);
    t->ids = calloc(n + 1, sizeof *t->ids);
    if (!t->nodes || !t->ids) return error_set(err, CALLA_ERR_MEMORY, "no memory for the tokens");
    for (size_t i = 0; i < n; i++) {
        const entry *e = &entries[i];
        size_t common = i > 0 ? common_bytes(e - 1, e) : 0;
        for (; depth > common; depth--) t->nodes[path[depth]].skip = (uint32_t)t->n_nodes;
        while (depth < e->n) {
            trie_node *node = &t->nodes[t->n_nodes];
            node->byte = (uint8_t)e->bytes[depth];
            node->depth = (uint8_t)(depth + 1);
            path[++depth] = (uint32_t)t->n_nodes++;
        }
        t->ids[i] = e->id;
        if (e->n == 0) {
            t->n_empty++;
            continue;
        }
        trie_node *end = &t->nodes[path[e->n]];
        if (end->n++ == 0) end->first = (uint32_t)i;
    }
    for (; depth > 0; depth--) t->nodes[path[depth]].skip = (uint32_t)t->n_nodes;
    return CALLA_OK;
}

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
    entry *suffixes;
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
                (entry){bytes + i + 1, n - i - 1, (int32_t)t->n_closing++};
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
    t->n_inside = tables->n_inside;
    t->inside = calloc(t->n_inside + 1, sizeof *t->inside);
    t->inside_counts = calloc(t->n_inside + 1, 1);
    t->inside_mask = calloc((size_t)t->n_mask_words, sizeof *t->inside_mask);
    if (!t->inside || !t->inside_counts || !t->inside_mask)
        return error_set(err, CALLA_ERR_MEMORY, "no memory for the tokens");
    for (size_t i = 0; i < t->n_inside; i++) {
        int32_t token = tables->inside[i].token;
        t->inside[i] = token;
        t->inside_counts[i] = (uint8_t)tables->inside[i].count;
        t->inside_mask[token / 32] |= 1u << (token % 32);
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
    entry *entries = calloc((size_t)t->n_tokens + 1, sizeof *entries);
    size_t n = 0;
    if (!entries) return error_set(err, CALLA_ERR_MEMORY, "no memory for the tokens");
    for (int32_t id = 0; id < t->n_tokens; id++) {
        entry *e = &entries[n];
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
    free(t->all.nodes);
    free(t->all.ids);
    free(t->suffixes.nodes);
    free(t->suffixes.ids);
    free(t->inside);
    free(t->inside_counts);
    free(t->inside_mask);
    free(t->closing);
    free(t->is_control);
    free(t);
}
