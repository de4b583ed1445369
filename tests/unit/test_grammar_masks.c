/* Masks equal what trying each token says, where they are not made byte by byte: strings, patterns
 * and texts of calls, near their lengths and far from them. */
#include "grammar/matcher.h"
#include "support/support.h"
#include "support/tokens.h"

#include <stdlib.h>
#include <string.h>

static calla_error err;

static void accept_again(matcher *m, const strbuf *text)
{
    matcher_reset(m);
    for (size_t i = 0; i < text->n; i++) assert_true(matcher_accept(m, text->data + i, 1));
}

static int check_mask(matcher *m, const strbuf *text, const uint32_t *mask, const char *name)
{
    int n = 0;
    for (int32_t id = 0; id < tokens->n_tokens; id++) {
        bool accepted = matcher_accept_token(m, id);
        if (accepted != mask_allows(mask, id)) {
            size_t n_bytes;
            const char *bytes = token_trie_bytes(tokens, id, &n_bytes);
            fail_msg("%s after %.*s: '%.*s' is %d, the mask says %d", name, (int)text->n,
                     text->data, (int)n_bytes, bytes, accepted, mask_allows(mask, id));
        }
        if (accepted) accept_again(m, text);
        n += accepted;
    }
    return n;
}

/* A text of random tokens, every mask on its way checked; n_texts of them. */
static void check_masks(const grammar *g, const char *name, int n_texts, random_source *r)
{
    uint32_t *mask = calloc((size_t)tokens->n_mask_words, sizeof *mask);
    matcher *m;
    strbuf text = {0};
    assert_ok(matcher_create(g, tokens, false, &m, &err), &err);
    for (int i = 0; i < n_texts; i++) {
        strbuf_clear(&text);
        matcher_reset(m);
        for (int n = 0; n < 12; n++) {
            size_t n_bytes;
            memset(mask, 0, (size_t)tokens->n_mask_words * sizeof *mask);
            matcher_allow(m, mask);
            int n_tokens = check_mask(m, &text, mask, name);
            if (n_tokens == 0) assert_true(matcher_may_end(m));
            if (n_tokens == 0) break;
            int32_t token = draw_token(r, tokens, mask, draw_below(r, 3) == 0);
            assert_true(matcher_accept_token(m, token));
            const char *bytes = token_trie_bytes(tokens, token, &n_bytes);
            strbuf_append(&text, bytes, n_bytes);
        }
    }
    strbuf_free(&text);
    matcher_free(m);
    free(mask);
}

/* clang-format off */
static const char *const schemas[] = {
    "{\"type\": \"string\"}",
    "{\"type\": \"string\", \"maxLength\": 3}",
    "{\"type\": \"string\", \"minLength\": 4, \"maxLength\": 24}",
    "{\"type\": \"string\", \"pattern\": \"^[a-z]{1,9}$\"}",
    "{\"type\": \"string\", \"pattern\": \"^.{2,12}$\"}",
    "{\"type\": \"string\", \"pattern\": \"^[^a-e]+$\"}",
    "{\"type\": \"string\", \"pattern\": \"^[\\u00e0-\\u00ff ]*[\\u4e00-\\u9fff]+$\"}",
    "{\"type\": \"string\", \"pattern\": \"the\"}",
    "{\"type\": \"string\", \"pattern\": \"^\\\\w+ \\\\w+$\", \"minLength\": 5, \"maxLength\": 14}",
    "{\"type\": \"string\", \"format\": \"email\"}",
    "{\"type\": \"string\", \"format\": \"uri\"}",
    "{\"type\": \"object\", \"properties\": {\"the\": {}, \"then\": {}, \"\\u00e9\": {}}, \"required\": [\"the\"]}",
    "{\"anyOf\": [{\"type\": \"string\", \"pattern\": \"^[a-m]+$\"}, {\"type\": \"string\", \"maxLength\": 5}, {\"type\": \"string\", \"pattern\": \"^[g-z ]*$\"}]}",
    "{\"type\": \"array\", \"items\": {\"type\": \"string\", \"pattern\": \"^[a-z ]*$\"}, \"minItems\": 2}",
};
static const char *const parameters[] = {
    "{\"type\": \"string\"}",
    "{\"type\": \"string\", \"maxLength\": 3}",
    "{\"type\": \"string\", \"minLength\": 4, \"maxLength\": 24}",
    "{\"type\": [\"string\", \"null\"]}",
    "{\"type\": \"string\", \"pattern\": \"^[^x]{2,12}$\"}",
    "{\"type\": \"array\", \"items\": {\"type\": \"string\", \"maxLength\": 9}, \"minItems\": 1}",
};
/* clang-format on */

static void masks_of_schemas(void **state)
{
    (void)state;
    random_source r = {.seed = 11};
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++) {
        grammar *g;
        json_t *schema = parse_value(schemas[i]);
        assert_ok(grammar_create(&(grammar_spec){.schema = schema}, &g, &err), &err);
        check_masks(g, schemas[i], 2, &r);
        grammar_use_tokens(g, tokens->sets);
        check_masks(g, schemas[i], 3, &r);
        grammar_free(g);
        json_decref(schema);
    }
}

static void masks_of_calls(void **state)
{
    (void)state;
    random_source r = {.seed = 12};
    for (size_t i = 0; i < sizeof parameters / sizeof *parameters; i++) {
        grammar *g;
        json_t *tools =
            json_pack("[{s:s, s:{s:s, s:b, s:{s:s, s:{s:o}, s:[s]}}}]", "type", "function",
                      "function", "name", "f", "strict", 1, "parameters", "type", "object",
                      "properties", "v", parse_value(parameters[i]), "required", "v");
        assert_ok(grammar_create_calls(tools, NULL, &g, &err), &err);
        check_masks(g, parameters[i], 2, &r);
        grammar_use_tokens(g, tokens->sets);
        check_masks(g, parameters[i], 4, &r);
        grammar_free(g);
        json_decref(tools);
    }
}

/* The letters from `first` on. */
static lead_set letters_from(char first)
{
    lead_set set = {0};
    for (char c = first; c <= 'z'; c++) lead_set_add(&set, (uint8_t)c);
    return set;
}

static bool is_of_letters(int32_t token, char first, size_t most)
{
    size_t n;
    const char *bytes = token_trie_bytes(tokens, token, &n);
    for (size_t i = 0; i < n; i++)
        if (bytes[i] < first || bytes[i] > 'z') return false;
    return n > 0 && n <= most;
}

static void sets_have_the_tokens_and_are_bounded(void **state)
{
    (void)state;
    const token_set *sets[TOKEN_SETS_KEPT];
    uint32_t *mask = calloc((size_t)tokens->n_mask_words, sizeof *mask);
    for (int i = 0; i < TOKEN_SETS_KEPT; i++) {
        lead_set letters = letters_from((char)('a' + i));
        sets[i] = token_sets_get(tokens->sets, &letters);
        assert_non_null(sets[i]);
        assert_ptr_equal(token_sets_get(tokens->sets, &letters), sets[i]);
        token_sets_put(tokens->sets, sets[i]);
        memset(mask, 0, (size_t)tokens->n_mask_words * sizeof *mask);
        token_set_allow(sets[i], 3, mask);
        for (int32_t id = 0; id < tokens->n_tokens; id++)
            assert_int_equal(mask_allows(mask, id), is_of_letters(id, (char)('a' + i), 3));
    }
    lead_set more = letters_from('y');
    assert_null(token_sets_get(tokens->sets, &more));
    token_sets_put(tokens->sets, sets[3]);
    const token_set *instead = token_sets_get(tokens->sets, &more);
    assert_ptr_equal(instead, sets[3]);
    for (int i = 0; i < TOKEN_SETS_KEPT; i++) token_sets_put(tokens->sets, sets[i]);
    free(mask);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masks_of_schemas),
        cmocka_unit_test(masks_of_calls),
        cmocka_unit_test(sets_have_the_tokens_and_are_bounded),
    };
    return cmocka_run_group_tests(tests, open_tokens, close_tokens);
}
