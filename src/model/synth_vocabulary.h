/* A made-up byte-level BPE vocabulary (MODEL.md 5.1): every token but the last few comes from a
 * merge of two earlier ones, common English words are single tokens, and what the lists do not
 * fill is filled with compounds. */
#ifndef CALLA_MODEL_SYNTH_VOCABULARY_H
#define CALLA_MODEL_SYNTH_VOCABULARY_H

#include "base/error.h"

typedef struct vocabulary_token {
    uint32_t offset, n_bytes; /* in vocabulary.bytes */
    int32_t left, right;      /* the merge that makes it; -1 for bytes and unreachable tokens */
} vocabulary_token;

/* Tokens 0 ... 255 are the single bytes in the order of MODEL.md 5.4, token 256 + r the result of
 * the merge of rank r, then come n_unreachable tokens that no merge gives. */
typedef struct vocabulary {
    vocabulary_token *tokens; /* [n_tokens] */
    int32_t n_tokens, n_merges;
    char *bytes;
    size_t n_bytes, bytes_capacity;
    int32_t limit;       /* n_merges stops here */
    int32_t *text_table; /* [table_size] token + 1 by hash of its text; 0 = free */
    int32_t *pair_table; /* [table_size] token + 1 by hash of its merge */
    uint32_t table_size; /* a power of two */
    bool failed;         /* out of memory */
} vocabulary;

calla_status vocabulary_create(int32_t n_tokens, int32_t n_unreachable, vocabulary *v,
                               calla_error *err);
void vocabulary_free(vocabulary *v);

/* The byte of token id < 256. */
int32_t vocabulary_byte_token(unsigned char byte);

#endif
