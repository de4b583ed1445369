#include "server/vocabulary.h"

calla_status vocabulary_init(vocabulary *v, const calla_tokenizer *tokenizer, int32_t n_vocab,
                             calla_error *err)
{
    *v = (vocabulary){.tokenizer = tokenizer,
                      .n_tokens = calla_tokenizer_n_tokens(tokenizer),
                      .n_mask_words = (n_vocab + 31) / 32,
                      .tool_call = calla_tokenizer_find(tokenizer, "<tool_call>"),
                      .tool_call_end = calla_tokenizer_find(tokenizer, "</tool_call>")};
    for (int32_t id = 0; id < v->n_tokens; id++) {
        if (!calla_tokenizer_is_stop(tokenizer, id)) continue;
        if (v->n_stops == MAX_STOP_TOKENS)
            return error_set(err, CALLA_ERR_INPUT, "the model has more than %d tokens that end it",
                             MAX_STOP_TOKENS);
        v->stops[v->n_stops++] = id;
    }
    return token_trie_create(tokenizer, v->n_mask_words, &v->trie, err);
}

void vocabulary_close(vocabulary *v)
{
    token_trie_free(v->trie);
    *v = (vocabulary){0};
}
