/* A JSON schema, a zero byte, and a text: the schema is refused with a message or becomes a
 * grammar; what the grammar takes for a whole text is JSON; and from where the text left it there
 * is a way on. */
#include "grammar/matcher.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static token_trie *tokens;
static uint32_t *mask;

static void open_tokens(void)
{
    calla_tokenizer *tokenizer; /* stays open */
    calla_error err;
    if (calla_tokenizer_open(CALLA_SOURCE_DIR "/models/tiny", &tokenizer, &err) != CALLA_OK)
        abort();
    int32_t n_words = (calla_tokenizer_n_tokens(tokenizer) + 31) / 32;
    if (token_trie_create(tokenizer, n_words, &tokens, &err) != CALLA_OK) abort();
    mask = calloc((size_t)n_words, sizeof *mask);
    if (!mask) abort();
}

static void check_whole(const char *text, size_t n)
{
    json_t *value = json_loadb(text, n, JSON_DECODE_ANY, NULL);
    if (!value) abort();
    json_decref(value);
}

static void follow(const grammar *g, const char *text, size_t n)
{
    calla_error err;
    matcher *m;
    size_t n_taken = 0;
    if (matcher_create(g, tokens, false, &m, &err) != CALLA_OK) abort();
    while (n_taken < n && matcher_accept(m, text + n_taken, 1)) n_taken++;
    if (matcher_may_end(m)) check_whole(text, n_taken);
    memset(mask, 0, (size_t)tokens->n_mask_words * sizeof *mask);
    matcher_allow(m, mask);
    bool any = matcher_may_end(m);
    for (int32_t i = 0; i < tokens->n_mask_words; i++) any = any || mask[i] != 0;
    if (!any) abort();
    matcher_free(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    calla_error err = {0};
    json_t *schema;
    grammar *g = NULL;
    const uint8_t *end = n ? memchr(data, 0, n) : NULL;
    size_t n_schema = end ? (size_t)(end - data) : n;
    if (!tokens) open_tokens();
    if (json_parse_text((const char *)data, n_schema, "fuzz", &schema, &err) != CALLA_OK) return 0;
    calla_status status = grammar_create(&(grammar_spec){.schema = schema}, &g, &err);
    if (status != CALLA_OK && (err.code != status || strncmp(err.message, "schema", 6) != 0))
        abort();
    if (g && n % 2 == 0) grammar_use_tokens(g, tokens->sets);
    if (g && end) follow(g, (const char *)end + 1, n - n_schema - 1);
    if (g && !end) follow(g, "", 0);
    grammar_free(g);
    json_decref(schema);
    return 0;
}
