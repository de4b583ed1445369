/* From logits to a token (calla_sampling in calla.h). Nothing is allocated per token, and the
 * result is a function of the arguments alone, with the same bits on every machine. */
#ifndef CALLA_ENGINE_SAMPLER_H
#define CALLA_ENGINE_SAMPLER_H

#include "base/error.h"
#include "base/threads.h"

/* How often each token was generated since the last sync. */
typedef struct token_counts {
    int32_t *counts;   /* [n_vocab], 0 for all others */
    int32_t *distinct; /* [n_distinct] tokens with a count; room for n_vocab */
    int32_t n_vocab, n_distinct;
} token_counts;

calla_status token_counts_init(token_counts *c, int32_t n_vocab, calla_error *err);
void token_counts_deinit(token_counts *c);
void token_counts_add(token_counts *c, int32_t token);
void token_counts_clear(token_counts *c);

typedef struct sampler_candidate {
    float value;
    int32_t token;
} sampler_candidate;

/* What a piece of the vocabulary adds to the whole. */
typedef struct sampler_piece {
    double sum;    /* of exponentials */
    float max;     /* its largest value, */
    int32_t first; /* the lowest id that has it */
    bool bad;      /* a logit is not finite */
} sampler_piece;

typedef struct sampler {
    int32_t n_tokens;              /* ids below this can be sampled */
    float *values;                 /* [n_tokens] adjusted logits, -INFINITY = not allowed */
    sampler_candidate *candidates; /* [n_tokens] */
    sampler_piece *pieces;         /* of SAMPLER_PIECE ids each */
    /* Whose threads share the work, or NULL: the caller does it alone, with the same results. */
    thread_pool *pool;
} sampler;

enum { SAMPLER_PIECE = 4096 };

calla_status sampler_init(sampler *s, int32_t n_tokens, calla_error *err);
void sampler_deinit(sampler *s);
/* Bytes sampler_init and token_counts_init take. */
int64_t sampler_bytes(int32_t n_tokens);
int64_t token_counts_bytes(int32_t n_vocab);

/* CALLA_ERR_INPUT naming the parameter and its value if one is out of its range. Ids of the logit
 * bias must be below n_tokens. */
calla_status sampling_check(const calla_sampling *sampling, int32_t n_tokens, calla_error *err);

/* CALLA_ERR_NUMERIC naming the position and the id if one of logits[n] is NaN or infinite. */
calla_status logits_check(const float *logits, int64_t n, int64_t position, calla_error *err);

/* The error of sampler_choose when bias and mask leave no token: CALLA_ERR_INPUT. */
calla_status sampler_none_left(int32_t n_tokens, int64_t position, calla_error *err);

/* Chooses the token at timeline position `position` from logits [>= n_tokens] f32. The parameters
 * have passed sampling_check. Errors: CALLA_ERR_NUMERIC as logits_check, CALLA_ERR_INPUT when bias
 * and mask leave no token. */
calla_status sampler_choose(sampler *s, const float *logits, const calla_sampling *sampling,
                            const token_counts *generated, int64_t position, calla_sampled *out,
                            calla_error *err);

#endif
