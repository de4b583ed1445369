/* calla eval from inside: one side's rows of logits, and what two sides' rows say. */
#ifndef CALLA_CLI_EVAL_H
#define CALLA_CLI_EVAL_H

#include <calla/calla.h>

/* The text in windows: window w holds tokens [w * n_window, min((w + 1) * n_window, n_tokens)).
 * Each is run from an empty timeline; a window of a single token predicts nothing and is left out.
 */
typedef struct eval_text {
    const int32_t *tokens; /* [n_tokens] */
    int64_t n_tokens, n_window;
} eval_text;

static inline int64_t eval_n_windows(const eval_text *t)
{
    int64_t n = (t->n_tokens + t->n_window - 1) / t->n_window;
    return n > 0 && t->n_tokens - (n - 1) * t->n_window < 2 ? n - 1 : n;
}

static inline int64_t eval_window_length(const eval_text *t, int64_t window)
{
    int64_t n = t->n_tokens - window * t->n_window;
    return n < t->n_window ? n : t->n_window;
}

/* ---- the reference side, in a thread of its own ---- */

/* calla_session_score pushes rows; two models' rows are wanted side by side and the logits of a
 * window may be gigabytes. So the reference scores in a thread that stops after each piece until
 * all its rows have been taken. */
typedef struct eval_reference eval_reference;

/* Starts scoring all windows of `text` (borrowed, as the session and the cancel flag). NULL when
 * the thread cannot be had. */
eval_reference *eval_reference_start(calla_session *session, const eval_text *text, int64_t n_vocab,
                                     const atomic_bool *cancel);
/* The logits after `position` of `window`, [n_vocab], valid until the next call; calls go forward.
 * NULL when scoring failed: eval_reference_stop says why. */
const float *eval_reference_row(eval_reference *r, int64_t window, int64_t position);
calla_status eval_reference_stop(eval_reference *r, calla_error *err);

/* ---- figures ---- */

typedef struct eval_totals {
    int64_t n_scored;              /* predictions */
    double nll, nll_reference;     /* sums, nats */
    int64_t n_same;                /* predictions with the same most likely token */
    int64_t n_clear, n_clear_same; /* of those where the reference's margin exceeds `margin` */
    double kl, kl_max;             /* KL(reference || this), sum and largest, nats */
} eval_totals;

/* Adds the prediction of `target` from logits[n_vocab] and, if not NULL, reference[n_vocab]. The
 * margin is the distance of the reference's two largest logits. */
void eval_add(eval_totals *totals, const float *logits, const float *reference, int64_t n_vocab,
              int32_t target, double margin);

#endif
