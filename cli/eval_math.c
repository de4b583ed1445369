#include "eval.h"

#include <math.h>

typedef struct row_summary {
    int64_t best;
    double max, second, log_total; /* log_total: log sum exp(x - max) */
} row_summary;

static row_summary summarize(const float *x, int64_t n)
{
    row_summary s = {.max = -INFINITY, .second = -INFINITY};
    for (int64_t i = 0; i < n; i++) {
        double v = (double)x[i];
        if (v > s.max) {
            s.second = s.max;
            s.max = v;
            s.best = i;
        } else if (v > s.second) {
            s.second = v;
        }
    }
    double total = 0;
    for (int64_t i = 0; i < n; i++) total += (double)expf((float)((double)x[i] - s.max));
    s.log_total = log(total);
    return s;
}

static double log_probability(const row_summary *s, float x)
{
    return ((double)x - s->max) - s->log_total;
}

static double divergence(const float *p, const row_summary *ps, const float *q,
                         const row_summary *qs, int64_t n)
{
    double kl = 0;
    for (int64_t i = 0; i < n; i++) {
        double log_p = log_probability(ps, p[i]);
        if (log_p > -80) kl += (double)expf((float)log_p) * (log_p - log_probability(qs, q[i]));
    }
    return kl > 0 ? kl : 0; /* rounding may give -1e-9 */
}

void eval_add(eval_totals *t, const float *logits, const float *reference, int64_t n_vocab,
              int32_t target, double margin)
{
    row_summary own = summarize(logits, n_vocab);
    t->n_scored++;
    t->nll -= log_probability(&own, logits[target]);
    if (!reference) return;
    row_summary other = summarize(reference, n_vocab);
    t->nll_reference -= log_probability(&other, reference[target]);
    bool same = own.best == other.best, clear = other.max - other.second > margin;
    t->n_same += same;
    t->n_clear += clear;
    t->n_clear_same += clear && same;
    double kl = divergence(reference, &other, logits, &own, n_vocab);
    t->kl += kl;
    if (kl > t->kl_max) t->kl_max = kl;
}
