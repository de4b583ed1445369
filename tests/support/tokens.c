#include "support/tokens.h"

#include "support/support.h"
#include "support/tokenizer.h"

token_trie *tokens;
static calla_tokenizer *tokenizer;

int open_tokens(void **state)
{
    (void)state;
    calla_error err;
    tokenizer = open_tokenizer(CALLA_SOURCE_DIR "/models/tiny");
    int32_t n_words = (calla_tokenizer_n_tokens(tokenizer) + 31) / 32;
    assert_ok(token_trie_create(tokenizer, n_words, &tokens, &err), &err);
    return 0;
}

int close_tokens(void **state)
{
    (void)state;
    token_trie_free(tokens);
    calla_tokenizer_close(tokenizer);
    return 0;
}

bool mask_allows(const uint32_t *mask, int32_t token)
{
    return mask[token / 32] >> (token % 32) & 1;
}

int32_t draw_token(random_source *r, const token_trie *t, const uint32_t *mask, bool short_ones)
{
    int32_t n = 0, chosen = -1;
    for (int32_t id = 0; id < t->n_tokens; id++) {
        size_t n_bytes;
        token_trie_bytes(t, id, &n_bytes);
        if (!mask_allows(mask, id) || (short_ones && n_bytes > 1)) continue;
        if (draw_below(r, (uint32_t)++n) == 0) chosen = id;
    }
    return chosen;
}

json_t *parse_value(const char *text)
{
    json_error_t e;
    json_t *value = json_loads(text, JSON_DECODE_ANY, &e);
    if (!value) fail_msg("%s: %s", text, e.text);
    return value;
}
