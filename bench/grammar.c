/* What a mask costs: random texts of several grammars on the vocabulary of a tokenizer.
 *
 *     bench_grammar DIR      DIR has a tokenizer.json
 *
 * "first" is the mean over texts of matchers that are new, as in a request; a mask of 31 KB of bits
 * for 248,077 tokens is cleared and written for every token. */
#include "base/clock.h"
#include "base/philox.h"
#include "grammar/matcher.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_TEXTS = 40, MAX_TOKENS = 400 };

typedef struct figures {
    int64_t n_masks, ns, worst_ns, make_ns;
} figures;

static uint64_t n_drawn;

static uint32_t draw(uint32_t n)
{
    uint32_t words[4];
    philox4x32(7, n_drawn++, 0, words);
    return words[0] % n;
}

static bool allowed(const uint32_t *mask, int32_t token)
{
    return mask[token / 32] >> (token % 32) & 1;
}

/* A random token of the mask; one that ends something is preferred now and then. */
static int32_t choose(const token_trie *t, const uint32_t *mask, const int32_t *ends)
{
    for (int i = 0; i < 3; i++)
        if (draw(12) == 0 && allowed(mask, ends[i])) return ends[i];
    uint32_t start = draw((uint32_t)t->n_tokens);
    for (int32_t i = 0; i < t->n_tokens; i++) {
        int32_t id = (int32_t)((start + (uint32_t)i) % (uint32_t)t->n_tokens);
        if (allowed(mask, id)) return id;
    }
    return -1;
}

static void run_text(const grammar *g, const token_trie *t, uint32_t *mask, const int32_t *ends,
                     figures *f)
{
    matcher *m;
    if (matcher_create(g, t, false, &m, NULL) != CALLA_OK) return;
    for (int n = 0; n < MAX_TOKENS; n++) {
        int64_t start = clock_ns();
        memset(mask, 0, (size_t)t->n_mask_words * sizeof *mask);
        matcher_allow(m, mask);
        int64_t ns = clock_ns() - start;
        f->n_masks++;
        f->ns += ns;
        if (ns > f->worst_ns) f->worst_ns = ns;
        int32_t token = choose(t, mask, ends);
        if (token < 0 || (matcher_may_end(m) && draw(4) == 0)) break;
        matcher_accept_token(m, token);
    }
    matcher_free(m);
}

static json_t *twenty_fields(void)
{
    static const char *const kinds[] = {
        "{\"type\": \"string\"}", "{\"type\": \"integer\", \"minimum\": 0}",
        "{\"type\": [\"string\", \"null\"], \"maxLength\": 80}", "{\"type\": \"boolean\"}",
        "{\"type\": \"array\", \"items\": {\"type\": \"string\"}}"};
    json_t *properties = json_object(), *required = json_array();
    for (int i = 0; i < 20; i++) {
        char name[32];
        snprintf(name, sizeof name, "field_number_%d", i);
        json_object_set_new(properties, name, json_loads(kinds[i % 5], 0, NULL));
        if (i % 3 != 0) json_array_append_new(required, json_string(name));
    }
    return json_pack("{s:s, s:o, s:o, s:b}", "type", "object", "properties", properties, "required",
                     required, "additionalProperties", 0);
}

static json_t *two_hundred_values(void)
{
    json_t *values = json_array();
    for (int i = 0; i < 200; i++) {
        char value[32];
        snprintf(value, sizeof value, "value %d of %d", i * 37 % 1000, i);
        json_array_append_new(values, json_string(value));
    }
    return json_pack("{s:o}", "enum", values);
}

static void measure(const char *name, json_t *schema, const token_trie *t, const int32_t *ends)
{
    figures f = {0};
    grammar *g;
    calla_error err;
    int64_t start = clock_ns();
    if (grammar_create(&(grammar_spec){.schema = schema}, &g, &err) != CALLA_OK) {
        fprintf(stderr, "%s: %s\n", name, err.message);
        exit(1);
    }
    f.make_ns = clock_ns() - start;
    uint32_t *mask = malloc((size_t)t->n_mask_words * sizeof *mask);
    for (int i = 0; mask && i < N_TEXTS; i++) run_text(g, t, mask, ends, &f);
    printf("| %s | %.1f | %.0f | %lld | %.2f |\n", name, (double)f.ns / 1e3 / (double)f.n_masks,
           (double)f.worst_ns / 1e3, (long long)f.n_masks, (double)f.make_ns / 1e6);
    free(mask);
    grammar_free(g);
    json_decref(schema);
}

int main(int argc, char **argv)
{
    calla_tokenizer *tokenizer;
    token_trie *t;
    calla_error err;
    int32_t ends[3] = {0};
    if (argc != 2) {
        fprintf(stderr, "usage: bench_grammar DIR\n");
        return 2;
    }
    if (calla_tokenizer_open(argv[1], &tokenizer, &err) != CALLA_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    int64_t start = clock_ns();
    int32_t n_words = (calla_tokenizer_n_tokens(tokenizer) + 31) / 32;
    if (token_trie_create(tokenizer, n_words, &t, &err) != CALLA_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    printf("%d tokens, made into a tree of %zu nodes in %.0f ms\n\n", t->n_tokens, t->all.n_nodes,
           (double)(clock_ns() - start) / 1e6);
    for (int32_t id = 0; id < t->n_tokens; id++) {
        size_t n;
        const char *bytes = token_trie_bytes(t, id, &n);
        for (int i = 0; i < 3; i++)
            if (n == 1 && bytes[0] == "\"]}"[i]) ends[i] = id;
    }
    printf(
        "| grammar | us per mask, mean | worst | masks | ms to make it |\n|---|---|---|---|---|\n");
    measure("any JSON", json_true(), t, ends);
    measure("20 fields", twenty_fields(), t, ends);
    measure("enum of 200 values", two_hundred_values(), t, ends);
    measure("string with pattern",
            json_pack("{s:s, s:s}", "type", "string", "pattern",
                      "^[A-Z][a-z]+( [A-Z][a-z]+)*, \\d{1,4} (Street|Road)$"),
            t, ends);
    token_trie_free(t);
    calla_tokenizer_close(tokenizer);
    return 0;
}
