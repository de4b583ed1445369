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
#include <time.h>

enum { N_TEXTS = 40, MAX_TOKENS = 400 };

/* Of the thread's own time: others use the machine, too. */
typedef struct figures {
    int64_t ns[N_TEXTS * MAX_TOKENS]; /* [n_masks] */
    int64_t n_masks, make_ns;
} figures;

static int64_t own_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

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
        int64_t start = own_ns();
        memset(mask, 0, (size_t)t->n_mask_words * sizeof *mask);
        matcher_allow(m, mask);
        f->ns[f->n_masks++] = own_ns() - start;
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

static json_t *many_values(int n)
{
    json_t *values = json_array();
    for (int i = 0; i < n; i++) {
        char value[32];
        snprintf(value, sizeof value, "value %d of %d", i * 37 % 1000, i);
        json_array_append_new(values, json_string(value));
    }
    return json_pack("{s:o}", "enum", values);
}

static json_t *many_properties(int n)
{
    json_t *properties = json_object(), *required = json_array();
    for (int i = 0; i < n; i++) {
        char name[32];
        snprintf(name, sizeof name, "property_%d", i);
        json_object_set_new(properties, name, json_pack("{s:s}", "type", "integer"));
        json_array_append_new(required, json_string(name));
    }
    return json_pack("{s:s, s:o, s:o}", "type", "object", "properties", properties, "required",
                     required);
}

static json_t *alike_alternatives(int n)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(list, json_pack("{s:s, s:{s:{s:s}, s:{s:i}}, s:[s, s]}", "type",
                                              "object", "properties", "text", "type", "string",
                                              "kind", "const", i, "required", "text", "kind"));
    return json_pack("{s:o}", "anyOf", list);
}

static json_t *pattern(const char *text)
{
    return json_pack("{s:s, s:s}", "type", "string", "pattern", text);
}

static json_t *format(const char *name)
{
    return json_pack("{s:s, s:s}", "type", "string", "format", name);
}

static json_t *lengths(int min, int max)
{
    return json_pack("{s:s, s:i, s:i}", "type", "string", "minLength", min, "maxLength", max);
}

/* Strict functions with these parameters. */
static json_t *tools(json_t *parameters)
{
    return json_pack("[{s:s, s:{s:s, s:b, s:o}}]", "type", "function", "function", "name", "tool",
                     "strict", 1, "parameters", parameters);
}

static json_t *one_parameter(json_t *schema)
{
    return json_pack("{s:s, s:{s:o}, s:[s]}", "type", "object", "properties", "value", schema,
                     "required", "value");
}

static int compare_times(const void *x, const void *y)
{
    const int64_t *a = x, *b = y;
    return (*a > *b) - (*a < *b);
}

static void print(const char *name, figures *f)
{
    int64_t n = f->n_masks, sum = 0, n_slow = 0;
    for (int64_t i = 0; i < n; i++) sum += f->ns[i], n_slow += f->ns[i] > 100000;
    qsort(f->ns, (size_t)n, sizeof *f->ns, compare_times);
    printf("| %s | %.1f | %.1f | %.0f | %.0f | %.2f %% | %lld | %.2f |\n", name,
           (double)sum / 1e3 / (double)n, (double)f->ns[n / 2] / 1e3,
           (double)f->ns[n * 99 / 100] / 1e3, (double)f->ns[n - 1] / 1e3,
           100 * (double)n_slow / (double)n, (long long)n, (double)f->make_ns / 1e6);
    fflush(stdout);
}

/* json: a schema or, in_calls, the list of tools. */
static void measure(const char *name, json_t *json, bool in_calls, const token_trie *t,
                    const int32_t *ends)
{
    static figures f;
    grammar *g;
    calla_error err;
    f.n_masks = 0;
    int64_t start = own_ns();
    calla_status status = in_calls ? grammar_create_calls(json, NULL, &g, &err)
                                   : grammar_create(&(grammar_spec){.schema = json}, &g, &err);
    if (status != CALLA_OK) {
        fprintf(stderr, "%s: %s\n", name, err.message);
        exit(1);
    }
    grammar_use_tokens(g, t->sets);
    f.make_ns = own_ns() - start;
    uint32_t *mask = malloc((size_t)t->n_mask_words * sizeof *mask);
    for (int i = 0; mask && i < N_TEXTS; i++) run_text(g, t, mask, ends, &f);
    print(name, &f);
    free(mask);
    grammar_free(g);
    json_decref(json);
}

static void measure_schemas(const token_trie *t, const int32_t *ends)
{
    const struct {
        const char *name;
        json_t *schema;
    } all[] = {
        {"any JSON", json_true()},
        {"an object of 20 fields", twenty_fields()},
        {"an enum of 200 values", many_values(200)},
        {"an enum of 5,000 values", many_values(5000)},
        {"1,000 required properties and others", many_properties(1000)},
        {"60 objects that begin alike", alike_alternatives(60)},
        {"a string of 40 to 120 characters", lengths(40, 120)},
        {"an address (pattern)", pattern("^[A-Z][a-z]+( [A-Z][a-z]+)*, \\d{1,4} (Street|Road)$")},
        {"^[a-z]{1,120}$", pattern("^[a-z]{1,120}$")},
        {"^.{1,300}$", pattern("^.{1,300}$")},
        {"^[^\\s@]+@[^\\s@]+$", pattern("^[^\\s@]+@[^\\s@]+$")},
        {"word (anywhere)", pattern("word")},
        {"date-time", format("date-time")},
        {"email", format("email")},
        {"uri", format("uri")},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        measure(all[i].name, all[i].schema, false, t, ends);
}

static void measure_calls(const token_trie *t, const int32_t *ends)
{
    const struct {
        const char *name;
        json_t *parameters;
    } all[] = {
        {"call: 20 fields", twenty_fields()},
        {"call: a text", one_parameter(json_pack("{s:s}", "type", "string"))},
        {"call: a text of 40 to 120 characters", one_parameter(lengths(40, 120))},
        {"call: ^[a-z]{1,120}$", one_parameter(pattern("^[a-z]{1,120}$"))},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        measure(all[i].name, tools(all[i].parameters), true, t, ends);
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
    printf("| grammar | us per mask, mean | median | 99 %% | worst | above 100 us | masks | ms to "
           "make it |\n|---|---|---|---|---|---|---|---|\n");
    measure_schemas(t, ends);
    measure_calls(t, ends);
    token_trie_free(t);
    calla_tokenizer_close(tokenizer);
    return 0;
}
