/* What the server knows about the tokenizer's tokens. Read by all threads, never changed. */
#ifndef CALLA_SERVER_VOCABULARY_H
#define CALLA_SERVER_VOCABULARY_H

#include "base/error.h"
#include "grammar/token_trie.h"

#include <calla/model.h>

enum { MAX_STOP_TOKENS = 16 };

typedef struct vocabulary {
    const calla_tokenizer *tokenizer;
    int32_t n_tokens;
    int32_t n_mask_words;             /* of a token mask: 32 tokens each */
    int32_t tool_call, tool_call_end; /* `<tool_call>`, `</tool_call>`, or -1 */
    int32_t stops[MAX_STOP_TOKENS];   /* [n_stops] tokens that end an answer */
    int32_t n_stops;
    token_trie *trie; /* for grammars */
} vocabulary;

/* n_vocab: rows of the model's logits. */
calla_status vocabulary_init(vocabulary *v, const calla_tokenizer *tokenizer, int32_t n_vocab,
                             calla_error *err);
void vocabulary_close(vocabulary *v);

#endif
