#include "engine/sampler.h"
#include "engine/backend.h"

#include "base/memory.h"
#include "base/numbers.h"
#include "base/philox.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>

enum { LANES = 8 };

/* ---- counts ---- */

calla_status token_counts_init(token_counts *c, int32_t n_vocab, calla_error *err)
{
    void *memory;
    *c = (token_counts){.n_vocab = n_vocab};
    CALLA_TRY(mem_alloc((size_t)n_vocab * 2, sizeof(int32_t), "token counts", &memory, err));
    c->counts = memory;
    c->distinct = c->counts + n_vocab;
    return CALLA_OK;
}

void token_counts_deinit(token_counts *c)
{
    mem_free(c->counts);
    *c = (token_counts){0};
}

int64_t token_counts_bytes(int32_t n_vocab)
{
    return (int64_t)n_vocab * 8;
}

void token_counts_add(token_counts *c, int32_t token)
{
    assert(token >= 0 && token < c->n_vocab);
    if (c->counts[token]++ == 0) c->distinct[c->n_distinct++] = token;
}

void token_counts_clear(token_counts *c)
{
    for (int32_t i = 0; i < c->n_distinct; i++) c->counts[c->distinct[i]] = 0;
    c->n_distinct = 0;
}

/* ---- sampler ---- */

static int32_t n_pieces(int32_t n_tokens)
{
    return divide_up(n_tokens, SAMPLER_PIECE);
}

calla_status sampler_init(sampler *s, int32_t n_tokens, calla_error *err)
{
    assert(n_tokens > 0);
    void *memory;
    *s = (sampler){.n_tokens = n_tokens};
    CALLA_TRY(mem_alloc((size_t)n_tokens, sizeof(float) + sizeof(sampler_candidate), "sampler",
                        &memory, err));
    s->candidates = memory;
    s->values = (float *)(void *)(s->candidates + n_tokens);
    calla_status status =
        mem_alloc((size_t)n_pieces(n_tokens), sizeof *s->pieces, "sampler", &memory, err);
    if (status != CALLA_OK)
        sampler_deinit(s);
    else
        s->pieces = memory;
    return status;
}

void sampler_deinit(sampler *s)
{
    mem_free(s->candidates);
    mem_free(s->pieces);
    *s = (sampler){0};
}

int64_t sampler_bytes(int32_t n_tokens)
{
    return (int64_t)n_tokens * (int64_t)(sizeof(float) + sizeof(sampler_candidate)) +
           n_pieces(n_tokens) * (int64_t)sizeof(sampler_piece);
}

/* ---- checks ---- */

static calla_status check_range(const char *name, float value, float low, float high,
                                calla_error *err)
{
    if (value >= low && value <= high) return CALLA_OK; /* false for NaN */
    return error_set(err, CALLA_ERR_INPUT, "%s is %g, which is not a number from %g to %g", name,
                     (double)value, (double)low, (double)high);
}

calla_status sampling_check(const calla_sampling *p, int32_t n_tokens, calla_error *err)
{
    CALLA_TRY(check_range("temperature", p->temperature, 0, 100, err));
    if (p->top_k < 0)
        return error_set(err, CALLA_ERR_INPUT, "top_k is %d, which is negative", p->top_k);
    CALLA_TRY(check_range("top_p", p->top_p, 0, INFINITY, err));
    CALLA_TRY(check_range("min_p", p->min_p, 0, 1, err));
    CALLA_TRY(check_range("presence_penalty", p->presence_penalty, -100, 100, err));
    CALLA_TRY(check_range("frequency_penalty", p->frequency_penalty, -100, 100, err));
    if (p->repetition_penalty != 0)
        CALLA_TRY(check_range("repetition_penalty", p->repetition_penalty, 0.01f, 100, err));
    if (p->n_top_logprobs < 0 || p->n_top_logprobs > CALLA_MAX_TOP_LOGPROBS)
        return error_set(err, CALLA_ERR_INPUT,
                         "%d top log-probabilities asked for, at most %d can be reported",
                         p->n_top_logprobs, CALLA_MAX_TOP_LOGPROBS);
    if (p->n_logit_bias < 0)
        return error_set(err, CALLA_ERR_INPUT, "n_logit_bias is %d, which is negative",
                         p->n_logit_bias);
    for (int32_t i = 0; i < p->n_logit_bias; i++) {
        const calla_logit_bias *b = &p->logit_bias[i];
        if (b->token < 0 || b->token >= n_tokens)
            return error_set(err, CALLA_ERR_INPUT, "logit bias for token %d, the ids are 0 to %d",
                             b->token, n_tokens - 1);
        if (b->bias != -INFINITY && !(fabsf(b->bias) <= 1e6f))
            return error_set(err, CALLA_ERR_INPUT,
                             "logit bias of token %d is %g, which is neither -infinity nor a "
                             "number from -1e6 to 1e6",
                             b->token, (double)b->bias);
    }
    return CALLA_OK;
}

static bool all_finite(const float *logits, int64_t n)
{
    /* x - x is 0 for finite x and NaN else; eight sums so that the loop vectorises. */
    float sum[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) sum[j] += logits[i + j] - logits[i + j];
    for (; i < n; i++) sum[0] += logits[i] - logits[i];
    bool bad = false;
    for (int j = 0; j < LANES; j++) bad |= sum[j] != 0;
    return !bad;
}

calla_status logits_check(const float *logits, int64_t n, int64_t position, calla_error *err)
{
    if (all_finite(logits, n)) return CALLA_OK;
    int64_t i = 0;
    while (isfinite(logits[i])) i++;
    return error_set(err, CALLA_ERR_NUMERIC,
                     "the model gave logit %g for token %lld after position %lld",
                     (double)logits[i], (long long)i, (long long)position);
}

/* ---- adjusted logits ---- */

/* To ids [begin, end). */
static void apply_mask(float *values, int32_t begin, int32_t end, const uint32_t *mask)
{
    for (int32_t i = begin; i < end; i++)
        if (!(mask[i >> 5] >> (i & 31) & 1)) values[i] = -INFINITY;
}

static void apply_penalties(float *values, int32_t n, const calla_sampling *p,
                            const token_counts *generated)
{
    float repetition = p->repetition_penalty == 0 ? 1 : p->repetition_penalty;
    if (!sampling_penalizes(p)) return;
    for (int32_t i = 0; i < generated->n_distinct; i++) {
        int32_t token = generated->distinct[i];
        if (token >= n) continue;
        float x = values[token];
        x = x > 0 ? x / repetition : x * repetition;
        x -= p->frequency_penalty * (float)generated->counts[token];
        x -= p->presence_penalty;
        values[token] = x < FLT_MAX ? x : FLT_MAX; /* no infinity out of an absurd logit */
    }
}

/* ---- sums of exponentials ---- */

typedef float floats __attribute__((vector_size(16)));
typedef int32_t ints __attribute__((vector_size(16)));
typedef uint32_t words __attribute__((vector_size(16)));
typedef double doubles __attribute__((vector_size(32)));
enum { VECTOR = 4 };

/* e^x for four x <= 0, within 2e-7 of it, and 0 below -87: plain arithmetic rather than expf, so
 * that a seed gives the same token on every machine. e^x = 2^n e^r, |r| <= ln(2)/2, e^r by its
 * Taylor polynomial (remainder below 2e-8). */
static inline floats exp_nonpositive(floats x)
{
    ints keep = x >= -87.0f; /* all bits where true */
    x = (floats)((ints)x & keep);
    floats shifted = x * 1.44269504f + 12582912.0f; /* 1.5 * 2^23: rounds to a whole number */
    floats n = shifted - 12582912.0f;
    floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    floats p = r * (1.0f / 5040) + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    floats power = (floats)(((words)shifted + 127) << 23); /* the low bits of shifted are n */
    return (floats)((ints)(p * power) & keep);
}

/* The largest of values[n], and in *first the lowest index that has it. */
static float find_largest(const float *values, int32_t n, int32_t *first)
{
    enum { SIDE_BY_SIDE = 4 }; /* their comparisons hide each other's latency */
    floats most[SIDE_BY_SIDE];
    for (int j = 0; j < SIDE_BY_SIDE; j++) most[j] = (floats){0} - INFINITY;
    int32_t i = 0;
    for (; i + SIDE_BY_SIDE * VECTOR <= n; i += SIDE_BY_SIDE * VECTOR) {
        floats x[SIDE_BY_SIDE];
        memcpy(x, values + i, sizeof x);
        for (int j = 0; j < SIDE_BY_SIDE; j++) {
            ints larger = x[j] > most[j];
            most[j] = (floats)(((ints)x[j] & larger) | ((ints)most[j] & ~larger));
        }
    }
    float max = -INFINITY;
    for (int j = 0; j < SIDE_BY_SIDE; j++)
        for (int k = 0; k < VECTOR; k++) max = fmaxf(max, most[j][k]);
    for (; i < n; i++) max = fmaxf(max, values[i]);
    for (i = 0; values[i] != max; i++) {}
    *first = i;
    return max;
}

/* The sum of exp((values[i] - max) * scale) over all i. */
static double sum_exponentials(const float *values, int32_t n, float max, float scale)
{
    doubles total = {0};
    int32_t i = 0;
    for (; i + VECTOR <= n; i += VECTOR) {
        floats x;
        memcpy(&x, values + i, sizeof x);
        total += __builtin_convertvector(exp_nonpositive((x - max) * scale), doubles);
    }
    for (; i < n; i++) {
        floats x = {(values[i] - max) * scale};
        total[0] += (double)exp_nonpositive(x)[0];
    }
    return (total[0] + total[1]) + (total[2] + total[3]);
}

/* ---- the k best ---- */

/* Candidates are ordered by value, largest first, and by id where values are equal. */
static inline bool comes_before(sampler_candidate a, sampler_candidate b)
{
    return a.value > b.value || (a.value == b.value && a.token < b.token);
}

/* Restores a heap whose root is the last in order, after its element at `i` was replaced. */
static void sift_down(sampler_candidate *heap, int32_t n, int32_t i)
{
    sampler_candidate moved = heap[i];
    for (;;) {
        int32_t child = 2 * i + 1;
        if (child >= n) break;
        if (child + 1 < n && comes_before(heap[child], heap[child + 1])) child++;
        if (!comes_before(moved, heap[child])) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = moved;
}

static void make_heap(sampler_candidate *heap, int32_t n)
{
    for (int32_t i = n / 2 - 1; i >= 0; i--) sift_down(heap, n, i);
}

/* Heap sort: the heap's elements in order. */
static void sort_heap(sampler_candidate *heap, int32_t n)
{
    for (int32_t end = n - 1; end > 0; end--) {
        sampler_candidate last = heap[0];
        heap[0] = heap[end];
        heap[end] = last;
        sift_down(heap, end, 0);
    }
}

/* The first min(k, number of allowed) candidates in order, into best[k]; returns their number. */
static int32_t select_best(const float *values, int32_t n, int32_t k, sampler_candidate *best)
{
    int32_t n_best = 0, i = 0;
    for (; i < n && n_best < k; i++)
        if (values[i] != -INFINITY) best[n_best++] = (sampler_candidate){values[i], i};
    make_heap(best, n_best);
    for (; i < n; i++) {
        /* Later ids come after equal values, so only a larger value displaces the root. */
        if (values[i] > best[0].value) {
            best[0] = (sampler_candidate){values[i], i};
            sift_down(best, n_best, 0);
        }
    }
    sort_heap(best, n_best);
    return n_best;
}

/* ---- which tokens may be drawn ---- */

typedef struct draw_context {
    const float *values; /* [n] */
    int32_t n;
    float max, scale; /* weight of a value: exp((value - max) * scale) */
} draw_context;

static double weight_of(const draw_context *d, float value)
{
    floats x = {(value - d->max) * d->scale};
    return (double)exp_nonpositive(x)[0];
}

/* The first of the sorted best[n_best] at which the sum of weights, from `sum` on, reaches `mass`;
 * or the last, where rounding keeps it below. */
static sampler_candidate find_mass(const draw_context *d, const sampler_candidate *best,
                                   int32_t n_best, double sum, double mass)
{
    int32_t i = 0;
    for (; i < n_best - 1; i++) {
        sum += weight_of(d, best[i].value);
        if (sum >= mass) break;
    }
    return best[i];
}

/* Top-p over all tokens: a histogram of the mass by distance from the largest logit tells in which
 * of its bins the last kept candidate is; only that bin is sorted. */
static sampler_candidate find_top_p(sampler *s, const draw_context *d, double top_p)
{
    enum { BINS_PER_NAT = 8, N_BINS = 88 * BINS_PER_NAT }; /* weights end at 87 nats */
    double bins[N_BINS] = {0}, total = 0, before = 0;
    int32_t bin = 0, last = 0, n_candidates = 0;
#define BIN_OF(value) ((int32_t)((d->max - (value)) * d->scale * BINS_PER_NAT))
    for (int32_t i = 0; i < d->n; i++) {
        double weight = weight_of(d, d->values[i]);
        if (weight > 0) bins[BIN_OF(d->values[i])] += weight;
    }
    for (int32_t i = 0; i < N_BINS; i++) {
        total += bins[i];
        if (bins[i] > 0) last = i;
    }
    while (bin < last && before + bins[bin] < total * top_p) before += bins[bin++];
    for (int32_t i = 0; i < d->n; i++)
        if (weight_of(d, d->values[i]) > 0 && BIN_OF(d->values[i]) == bin)
            s->candidates[n_candidates++] = (sampler_candidate){d->values[i], i};
#undef BIN_OF
    make_heap(s->candidates, n_candidates);
    sort_heap(s->candidates, n_candidates);
    return find_mass(d, s->candidates, n_candidates, before, total * top_p);
}

/* Top-k and top-p: the last candidate in order that is kept. *n_best: how many of the first in
 * order s->candidates has, or 0. */
static sampler_candidate last_kept(sampler *s, const draw_context *d, const calla_sampling *p,
                                   int32_t *n_best)
{
    bool use_top_p = p->top_p > 0 && p->top_p < 1;
    *n_best = 0;
    if (p->top_k > 0 && p->top_k < d->n) {
        sampler_candidate *best = s->candidates;
        *n_best = select_best(d->values, d->n, p->top_k, best);
        if (!use_top_p) return best[*n_best - 1];
        double total = 0;
        for (int32_t i = 0; i < *n_best; i++) total += weight_of(d, best[i].value);
        return find_mass(d, best, *n_best, 0, total * (double)p->top_p);
    }
    if (use_top_p) return find_top_p(s, d, (double)p->top_p);
    return (sampler_candidate){-INFINITY, d->n}; /* all */
}

/* Tokens up to `cut` whose weight is at least `least`, by id, with their weights in the place of
 * their values: into s->candidates; returns their number. */
static int32_t keep_tokens(sampler *s, const draw_context *d, sampler_candidate cut, double least)
{
    int32_t n_kept = 0;
    for (int32_t i = 0; i < d->n; i++) {
        float value = d->values[i];
        if (value < cut.value || (value == cut.value && i > cut.token)) continue;
        double weight = weight_of(d, value);
        if (weight <= 0 || weight < least) continue;
        s->candidates[n_kept++] = (sampler_candidate){(float)weight, i};
    }
    return n_kept;
}

/* The same from the n_best first in order, a few, which s->candidates has. */
static int32_t keep_best(sampler *s, const draw_context *d, int32_t n_best, sampler_candidate cut,
                         double least)
{
    int32_t n_kept = 0;
    sampler_candidate *kept = s->candidates; /* never more than have been looked at */
    for (int32_t i = 0; i < n_best; i++) {
        sampler_candidate c = s->candidates[i];
        double weight = weight_of(d, c.value);
        if (weight > 0 && weight >= least) {
            int32_t at = n_kept++;
            for (; at > 0 && kept[at - 1].token > c.token; at--) kept[at] = kept[at - 1];
            kept[at] = (sampler_candidate){(float)weight, c.token};
        }
        if (c.token == cut.token) break;
    }
    return n_kept;
}

/* Draws by inverting the cumulative distribution of the kept tokens in ascending order of id. */
static int32_t draw(sampler *s, const draw_context *d, const calla_sampling *p, int64_t position)
{
    enum { FEW = 128 };
    int32_t n_best;
    sampler_candidate cut = last_kept(s, d, p, &n_best);
    double least = p->min_p > 0 ? (double)p->min_p : 0, total = 0; /* the largest weight is 1 */
    int32_t n_kept = n_best > 0 && n_best <= FEW ? keep_best(s, d, n_best, cut, least)
                                                 : keep_tokens(s, d, cut, least);
    for (int32_t i = 0; i < n_kept; i++) total += (double)s->candidates[i].value;
    assert(n_kept > 0); /* the largest has weight 1 */
    double target = philox_uniform(p->seed, (uint64_t)position, 0) * total, sum = 0;
    for (int32_t i = 0; i < n_kept - 1; i++) {
        sum += (double)s->candidates[i].value;
        if (target < sum) return s->candidates[i].token;
    }
    return s->candidates[n_kept - 1].token;
}

/* ---- over the whole vocabulary, piece by piece ---- */

typedef struct pieces_context {
    sampler *s;
    const float *logits;
    const uint32_t *mask; /* or NULL */
    float max;
} pieces_context;

static int32_t piece_end(const sampler *s, int64_t piece)
{
    int64_t end = (piece + 1) * SAMPLER_PIECE;
    return end < s->n_tokens ? (int32_t)end : s->n_tokens;
}

static void copy_pieces(void *context, int64_t begin, int64_t end, int thread)
{
    pieces_context *c = context;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        int32_t from = (int32_t)i * SAMPLER_PIECE, to = piece_end(c->s, i);
        c->s->pieces[i].bad = !all_finite(c->logits + from, to - from);
        memcpy(c->s->values + from, c->logits + from, (size_t)(to - from) * sizeof(float));
        if (c->mask) apply_mask(c->s->values, from, to, c->mask);
    }
}

static void largest_of_pieces(void *context, int64_t begin, int64_t end, int thread)
{
    pieces_context *c = context;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        int32_t from = (int32_t)i * SAMPLER_PIECE;
        sampler_piece *piece = &c->s->pieces[i];
        piece->max = find_largest(c->s->values + from, piece_end(c->s, i) - from, &piece->first);
        piece->first += from;
    }
}

static void sum_pieces(void *context, int64_t begin, int64_t end, int thread)
{
    pieces_context *c = context;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        int32_t from = (int32_t)i * SAMPLER_PIECE;
        c->s->pieces[i].sum =
            sum_exponentials(c->s->values + from, piece_end(c->s, i) - from, c->max, 1);
    }
}

static void run_pieces(pieces_context *c, thread_pool_fn fn)
{
    int32_t n = n_pieces(c->s->n_tokens);
    if (c->s->pool)
        thread_pool_run(c->s->pool, n, 1, fn, c);
    else
        fn(c, 0, n, 0);
}

/* ---- all of it ---- */

calla_status sampler_none_left(int32_t n_tokens, int64_t position, calla_error *err)
{
    return error_set(err, CALLA_ERR_INPUT,
                     "no token is left to sample at position %lld: logit bias and token mask "
                     "exclude all %d",
                     (long long)position, n_tokens);
}

calla_status sampler_choose(sampler *s, const float *logits, const calla_sampling *p,
                            const token_counts *generated, int64_t position, calla_sampled *out,
                            calla_error *err)
{
    int32_t n = s->n_tokens, best = 0;
    pieces_context c = {.s = s, .logits = logits, .mask = p->token_mask};
    run_pieces(&c, copy_pieces);
    for (int32_t i = 0; i < n_pieces(n); i++)
        if (s->pieces[i].bad) return logits_check(logits, n, position - 1, err);
    for (int32_t i = 0; i < p->n_logit_bias; i++)
        s->values[p->logit_bias[i].token] += p->logit_bias[i].bias;
    apply_penalties(s->values, n, p, generated);

    run_pieces(&c, largest_of_pieces);
    float max = -INFINITY;
    for (int32_t i = 0; i < n_pieces(n); i++)
        if (s->pieces[i].max > max) max = s->pieces[i].max, best = s->pieces[i].first;
    if (max == -INFINITY) return sampler_none_left(n, position, err);
    c.max = max;
    run_pieces(&c, sum_pieces);
    double total = 0;
    for (int32_t i = 0; i < n_pieces(n); i++) total += s->pieces[i].sum;
    double log_total = log(total);

    /* A temperature so low that its inverse overflows is greedy. */
    float scale = p->temperature > 0 ? 1 / p->temperature : INFINITY;
    int32_t token = best;
    if (isfinite(scale)) {
        draw_context d = {s->values, n, max, scale};
        token = draw(s, &d, p, position);
    }
    out->token = token;
    out->logprob = (float)((double)(s->values[token] - max) - log_total);
    out->n_top =
        p->n_top_logprobs > 0 ? select_best(s->values, n, p->n_top_logprobs, s->candidates) : 0;
    for (int32_t i = 0; i < out->n_top; i++) {
        out->top_tokens[i] = s->candidates[i].token;
        out->top_logprobs[i] = (float)((double)(s->candidates[i].value - max) - log_total);
    }
    return CALLA_OK;
}
