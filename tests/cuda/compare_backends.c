/* Backends on one model, teacher-forced: after prompts of some lengths, and along the tokens that
 * the reference prefers behind them, the log-probabilities of the reference's five best tokens, and
 * the best one: from prefill, and every eighth token from a decode step, too.
 *
 *   compare_backends [--model DIR | --shape 35b] [--reference cpu:avx512] [--tested cuda]
 *                    [--threads N] [--lengths 1,63,512,4097] [--steps 64] [--bound 0.05]
 *                    [--free] [--layers]
 *
 * A backend is NAME[:ISA[:KV]][~BITS], --tested a list of them with commas between. ~BITS
 * multiplies the weight of every chosen expert by 1 + or - 2^-BITS: how far a disturbance of known
 * size goes in this model, whatever the arithmetic (not with --free). --layers: how far the
 * residual stream is from the reference's, entering each layer, over its own length, at the
 * positions compared.
 *
 * In prefill what is tested is given the reference's experts (--free: it is not). Where two experts
 * are as good as equal, rounding decides, and what comes after is computed by other weights: a
 * random model of full size then answers with something else altogether, whatever its arithmetic.
 * Decode chooses for itself, so its figures only show what that does to one token.
 *
 * Exit code 1 if in prefill a log-probability differs by more than the bound, or the best token
 * does where the reference prefers its own by more. The reference's kernels should not round to
 * bf16 (isa amx), whose error is larger than the bound. */
#include "base/clock.h"
#include "engine/engine.h"

#include <calla/model.h>

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BEST = 5, MAX_LENGTHS = 16, MAX_TESTED = 8, PIECE = 8 };

/* One that takes part, as it was asked for and as it is. */
typedef struct party {
    char text[64];          /* NAME[:ISA[:KV]][~BITS] */
    char name[16], isa[16]; /* of the text */
    bool kv_f32;
    int disturbed_bits; /* 0 = not */
    const backend_ops *ops;
    backend *backend;
} party;

typedef struct comparison {
    const char *dir, *shape;
    party reference, tested[MAX_TESTED];
    int32_t n_tested, n_threads;
    int32_t lengths[MAX_LENGTHS], n_lengths, n_steps;
    double bound;
    bool free; /* to choose its experts */
    bool layers;
    /* The reference's engine has the weights. */
    calla_engine *engine;
    int32_t n_vocab, n_vocab_tokens, n_layers, hidden;
} comparison;

/* The five best of a position, as the reference has them. */
typedef struct best_tokens {
    int32_t tokens[BEST];
    double logprobs[BEST];
} best_tokens;

static void stop(const calla_error *err)
{
    fprintf(stderr, "compare_backends: %s\n", err->message);
    exit(1);
}

static void check(calla_status status, const calla_error *err)
{
    if (status != CALLA_OK) stop(err);
}

static double log_total(const float *logits, int32_t n)
{
    double most = (double)logits[0], sum = 0;
    for (int32_t i = 1; i < n; i++) most = fmax(most, (double)logits[i]);
    for (int32_t i = 0; i < n; i++) sum += exp((double)logits[i] - most);
    return most + log(sum);
}

static int32_t best_of(const float *logits, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

static best_tokens find_best(const float *logits, int32_t n)
{
    best_tokens b;
    double total = log_total(logits, n);
    for (int k = 0; k < BEST; k++) {
        b.tokens[k] = -1;
        for (int32_t i = 0; i < n; i++) {
            bool taken = false;
            for (int j = 0; j < k; j++) taken |= b.tokens[j] == i;
            if (!taken && (b.tokens[k] < 0 || logits[i] > logits[b.tokens[k]])) b.tokens[k] = i;
        }
        b.logprobs[k] = (double)logits[b.tokens[k]] - total;
    }
    return b;
}

static int32_t context(const comparison *c)
{
    int32_t longest = 0;
    for (int32_t i = 0; i < c->n_lengths; i++)
        if (c->lengths[i] > longest) longest = c->lengths[i];
    return longest + c->n_steps + 1;
}

static void open_reference(comparison *c)
{
    calla_error err;
    party *p = &c->reference;
    calla_engine_options o = {.backend = p->name,
                              .isa = p->isa,
                              .kv = p->kv_f32 ? CALLA_KV_F32 : CALLA_KV_AUTO,
                              .n_threads = c->n_threads,
                              .n_ctx = context(c),
                              .n_sessions = 2,
                              .snapshot_bytes = 1}; /* one */
    check(c->dir ? calla_engine_open(c->dir, &o, &c->engine, &err)
                 : calla_engine_open_synthetic(c->shape, 1, &o, &c->engine, &err),
          &err);
    p->ops = c->engine->ops;
    p->backend = c->engine->backend;
    c->n_vocab = c->engine->info.n_vocab;
    c->n_vocab_tokens = c->engine->info.n_vocab_tokens;
    c->n_layers = c->engine->info.n_layers;
    c->hidden = c->engine->info.hidden_size;
}

/* On the reference's weights. */
static void open_tested(const comparison *c, party *p)
{
    calla_error err;
    backend_options o = c->engine->options;
    for (int i = 0; backends[i]; i++)
        if (strcmp(backends[i]->name, p->name) == 0) p->ops = backends[i];
    if (!p->ops) {
        fprintf(stderr, "compare_backends: this build has no backend %s\n", p->name);
        exit(1);
    }
    o.isa = p->isa;
    o.kv_f32 = p->kv_f32;
    check(p->ops->open(&c->engine->weights, &o, &p->backend, &err), &err);
}

/* ---- experts ---- */

/* What the router chose in each layer for each token of a text. */
typedef struct routing {
    int32_t k, n_layers;
    bool hold;          /* give these instead of keeping them */
    double disturbance; /* of their weights, by a sign of their own, 0 = none */
    int32_t *experts;   // [n_tokens][n_layers][k]
    atomic_int n_other; /* choices that were not these, or in another order */
} routing;

/* + or - the disturbance, for this token, layer and expert. */
static double disturbance(const routing *r, int64_t position, int32_t layer, int i)
{
    uint64_t h = (uint64_t)((position * r->n_layers + layer) * r->k + i + 1) * 0x9e3779b97f4a7c15u;
    h = (h ^ h >> 29) * 0xbf58476d1ce4e5b9u;
    return h >> 63 ? r->disturbance : -r->disturbance;
}

static void see_route(void *user, int32_t layer, int64_t position, const float *logits,
                      int32_t *experts, float *weights)
{
    routing *r = user;
    size_t bytes = (size_t)r->k * sizeof *experts;
    int32_t *kept = r->experts + (position * r->n_layers + layer) * r->k;
    if (!r->hold) {
        memcpy(kept, experts, bytes);
        return;
    }
    if (memcmp(kept, experts, bytes) != 0) atomic_fetch_add(&r->n_other, 1);
    memcpy(experts, kept, bytes);
    double sum = 0, largest = (double)logits[kept[0]];
    for (int i = 0; i < r->k; i++) sum += exp((double)logits[kept[i]] - largest);
    for (int i = 0; i < r->k; i++)
        weights[i] = (float)(exp((double)logits[kept[i]] - largest) / sum *
                             (1 + disturbance(r, position, layer, i)));
}

/* ---- a text ---- */

/* A prompt, the tokens behind it, and what the reference says. */
typedef struct text {
    int32_t n_prompt;
    int32_t *tokens;      // [n_prompt + n_steps]
    best_tokens *prefill; // [n_steps + 1] after the prompt and each token behind it
    best_tokens *decode;  // [ceil(n_steps / PIECE)] after the first token of each piece of them
    float *stream;        // [n_layers + 1][n_steps + 1][hidden] entering each layer, or NULL
    routing routing;
} text;

/* How far what is tested is from it. */
typedef struct difference {
    double largest, sum;
    int32_t n_beyond, n_clear, n_clear_same, n_same, n;
} difference;

typedef struct run_state {
    const comparison *c;
    const party *p;
    text *t;
    bool is_reference;
    difference prefill, decode;                         /* of what is tested */
    double off[MAX_LAYERS + 1], length[MAX_LAYERS + 1]; /* of the residual stream, squared */
    float *logits;                                      // [PIECE][n_vocab]
    double seconds;
} run_state;

static void compare_position(const run_state *r, const float *logits, const best_tokens *b,
                             difference *d)
{
    int32_t n = r->c->n_vocab_tokens;
    double total = log_total(logits, n), most = 0;
    for (int k = 0; k < BEST; k++)
        most = fmax(most, fabs((double)logits[b->tokens[k]] - total - b->logprobs[k]));
    bool same = best_of(logits, n) == b->tokens[0];
    bool clear = b->logprobs[0] - b->logprobs[1] > r->c->bound;
    d->largest = fmax(d->largest, most);
    d->sum += most;
    d->n_beyond += !(most <= r->c->bound);
    d->n_same += same;
    d->n_clear += clear;
    d->n_clear_same += clear && same;
    d->n++;
}

static void see(run_state *r, const float *logits, best_tokens *best, difference *d)
{
    if (r->is_reference)
        *best = find_best(logits, r->c->n_vocab_tokens);
    else
        compare_position(r, logits, best, d);
}

/* The residual stream at the positions that are compared; layer n_layers is the last norm. */
static void see_stream(void *user, int32_t layer, int64_t first_position, int32_t n_rows,
                       const float *rows)
{
    run_state *r = user;
    const text *t = r->t;
    int32_t hidden = r->c->hidden, n = r->c->n_steps + 1;
    for (int32_t i = 0; i < n_rows; i++) {
        int64_t at = first_position + i - (t->n_prompt - 1);
        if (at < 0 || at >= n) continue;
        float *kept = t->stream + ((int64_t)layer * n + at) * hidden;
        const float *row = rows + (size_t)i * (size_t)hidden;
        if (r->is_reference) memcpy(kept, row, (size_t)hidden * sizeof *row);
        for (int32_t k = 0; k < hidden; k++) {
            double off = (double)row[k] - (double)kept[k];
            r->off[layer] += off * off;
            r->length[layer] += (double)kept[k] * (double)kept[k];
        }
    }
}

static void prefill(run_state *r, backend_sequence *s, int32_t first, int32_t n, logits_mode mode)
{
    calla_error err;
    calla_control control = {0};
    const party *p = r->p;
    if (r->t->stream) p->ops->set_tap(p->backend, see_stream, r);
    check(prefill_tokens(p->ops, p->backend, s, r->t->tokens + first, n, mode, r->logits,
                         r->c->n_vocab, &control, &err),
          &err);
    p->ops->set_tap(p->backend, NULL, NULL);
}

/* Makes `to` what `from` is. */
static void branch_off(const run_state *r, const backend_sequence *from, backend_sequence *to)
{
    calla_error err;
    backend_snapshot *snapshot;
    const party *p = r->p;
    check(p->ops->snapshot_create(p->backend, from, &snapshot, &err), &err);
    p->ops->snapshot_restore(p->backend, snapshot, to);
    p->ops->snapshot_free(p->backend, snapshot);
}

static const float *step(const run_state *r, backend_sequence *s, int32_t token)
{
    calla_error err;
    step_result result;
    step_request request = {.sequence = s, .token = token};
    const party *p = r->p;
    check(p->ops->step_submit(p->backend, &request, 1, &err), &err);
    check(p->ops->step_wait(p->backend, &result, 1, NULL, &err), &err);
    check(result.error.code, &result.error);
    return result.logits;
}

/* The tokens behind the prompt, whose last logits are r->logits: by decode, in `branch`. */
static void choose_tokens(run_state *r, const backend_sequence *s, backend_sequence *branch)
{
    int32_t n = r->c->n_vocab_tokens, *tokens = r->t->tokens + r->t->n_prompt;
    branch_off(r, s, branch);
    tokens[0] = best_of(r->logits, n);
    for (int32_t i = 1; i < r->c->n_steps; i++)
        tokens[i] = best_of(step(r, branch, tokens[i - 1]), n);
}

/* The text on one backend. */
static void run_text(run_state *r)
{
    calla_error err;
    backend_sequence *s, *branch;
    const party *p = r->p;
    text *t = r->t;
    int64_t start_ns = clock_ns();
    t->routing.hold = !r->is_reference;
    t->routing.disturbance = p->disturbed_bits ? ldexp(1, -p->disturbed_bits) : 0;
    atomic_store(&t->routing.n_other, 0);
    p->ops->set_route(p->backend, r->is_reference || !r->c->free ? see_route : NULL, &t->routing);
    check(p->ops->sequence_create(p->backend, &s, &err), &err);
    check(p->ops->sequence_create(p->backend, &branch, &err), &err);
    prefill(r, s, 0, t->n_prompt, LOGITS_LAST);
    see(r, r->logits, &t->prefill[0], &r->prefill);
    if (r->is_reference) choose_tokens(r, s, branch);
    for (int32_t i = 0; i < r->c->n_steps; i += PIECE) {
        int32_t n = r->c->n_steps - i < PIECE ? r->c->n_steps - i : PIECE;
        branch_off(r, s, branch);
        see(r, step(r, branch, t->tokens[t->n_prompt + i]), &t->decode[i / PIECE], &r->decode);
        prefill(r, s, t->n_prompt + i, n, LOGITS_ALL);
        for (int32_t k = 0; k < n; k++)
            see(r, r->logits + (size_t)k * (size_t)r->c->n_vocab, &t->prefill[i + k + 1],
                &r->prefill);
    }
    p->ops->sequence_free(p->backend, s);
    p->ops->sequence_free(p->backend, branch);
    r->seconds = (double)(clock_ns() - start_ns) * 1e-9;
}

/* ---- the whole ---- */

static void *zeros(size_t n, size_t size)
{
    void *p = calloc(n, size);
    if (!p) exit(1);
    return p;
}

static void make_text(const comparison *c, int32_t i, text *t)
{
    const model_config *m = &c->engine->weights.config;
    size_t n = (size_t)(c->lengths[i] + c->n_steps), k = (size_t)m->n_experts_per_token;
    t->n_prompt = c->lengths[i];
    t->tokens = zeros(n, sizeof *t->tokens);
    t->prefill = zeros((size_t)c->n_steps + 1, sizeof *t->prefill);
    t->decode = zeros((size_t)c->n_steps, sizeof *t->decode);
    if (c->layers)
        t->stream = zeros((size_t)(c->n_layers + 1) * ((size_t)c->n_steps + 1) * (size_t)c->hidden,
                          sizeof *t->stream);
    t->routing.k = m->n_experts_per_token;
    t->routing.n_layers = m->n_layers;
    t->routing.experts = zeros(n * (size_t)m->n_layers * k, sizeof *t->routing.experts);
    for (int32_t j = 0; j < t->n_prompt; j++)
        t->tokens[j] =
            (int32_t)((uint32_t)(j + 7919 * i) * 2654435761u % (uint32_t)c->n_vocab_tokens);
}

static void free_text(text *t)
{
    free(t->tokens);
    free(t->prefill);
    free(t->decode);
    free(t->stream);
    free(t->routing.experts);
}

static void print_difference(const char *what, const text *t, const difference *d)
{
    printf("%8s %7d %10.5f %10.5f %6d/%-3d %10d/%-3d %6d/%-3d\n", what, t->n_prompt, d->largest,
           d->sum / d->n, d->n_beyond, d->n, d->n_clear_same, d->n_clear, d->n_same, d->n);
}

static void print_layers(const run_state *r)
{
    printf("%16s by layer:", "");
    for (int32_t i = 0; i <= r->c->n_layers; i++)
        printf(" %.2g", sqrt(r->off[i] / fmax(r->length[i], 1e-300)));
    printf("\n");
}

static bool judge(const run_state *r)
{
    const text *t = r->t;
    const difference *p = &r->prefill, *d = &r->decode;
    printf("%s, %.1f s%s", r->p->text, r->seconds, r->c->free ? "" : ", ");
    if (!r->c->free)
        printf("other experts, or another order of them, %d times",
               atomic_load(&t->routing.n_other));
    printf("\n");
    print_difference("prefill", t, p);
    print_difference("decode", t, d);
    if (r->c->layers) print_layers(r);
    fflush(stdout);
    return p->n_beyond == 0 && p->n_clear_same == p->n_clear;
}

/* Text number i on all of them. */
static bool compare_text(const comparison *c, int32_t i, float *logits)
{
    bool good = true;
    text t = {0};
    make_text(c, i, &t);
    run_state reference = {c, &c->reference, &t, .is_reference = true, .logits = logits};
    run_text(&reference);
    printf("%d tokens: reference %.1f s\n", t.n_prompt, reference.seconds);
    for (int32_t k = 0; k < c->n_tested; k++) {
        run_state tested = {c, &c->tested[k], &t, .logits = logits};
        run_text(&tested);
        good = judge(&tested) && good;
    }
    free_text(&t);
    return good;
}

static bool compare(comparison *c)
{
    bool good = true;
    open_reference(c);
    printf("reference %s: %s %s, %d threads\n", c->reference.text, c->engine->info.backend,
           c->engine->info.isa, c->engine->info.n_threads);
    for (int32_t i = 0; i < c->n_tested; i++) {
        party *p = &c->tested[i];
        open_tested(c, p);
        printf("tested %s: %s %s\n", p->text, p->ops->name, p->ops->isa(p->backend));
    }
    printf("%8s %7s %10s %10s %10s %14s %10s\n", "", "prompt", "largest", "mean", "beyond",
           "same, if clear", "same");
    float *logits = zeros((size_t)c->n_vocab * PIECE, sizeof *logits);
    for (int32_t i = 0; i < c->n_lengths; i++) good = compare_text(c, i, logits) && good;
    free(logits);
    for (int32_t i = 0; i < c->n_tested; i++) c->tested[i].ops->close(c->tested[i].backend);
    calla_engine_close(c->engine);
    printf("%s: bound %g\n", good ? "agree" : "DIFFER", c->bound);
    return good;
}

static void usage(void)
{
    fprintf(stderr, "compare_backends: see the head of its source\n");
    exit(2);
}

static int32_t number(const char **list)
{
    char *end;
    long n = strtol(*list, &end, 10);
    if (end == *list || n < 1 || n > 1 << 20) usage();
    *list = *end == ',' ? end + 1 : end;
    return (int32_t)n;
}

/* One party of a list; where the next one begins, or NULL. */
static const char *read_party(const char *list, party *p)
{
    size_t n = strcspn(list, ",");
    char kv[8] = "", *own = p->text, *bits;
    *p = (party){.isa = "auto"};
    if (n >= sizeof p->text) usage();
    memcpy(own, list, n);
    if ((bits = strchr(own, '~'))) p->disturbed_bits = atoi(bits + 1);
    if (sscanf(own, "%15[^:~]:%15[^:~]:%7[^:~]", p->name, p->isa, kv) < 1) usage();
    if (bits && p->disturbed_bits < 1) usage();
    if (kv[0] && strcmp(kv, "f32") != 0) usage();
    p->kv_f32 = kv[0] != 0;
    return list[n] ? list + n + 1 : NULL;
}

static void read_tested(comparison *c, const char *list)
{
    for (c->n_tested = 0; list; c->n_tested++) {
        if (c->n_tested == MAX_TESTED) usage();
        list = read_party(list, &c->tested[c->n_tested]);
    }
}

static void read_lengths(comparison *c, const char *list)
{
    for (c->n_lengths = 0; *list && c->n_lengths < MAX_LENGTHS;)
        c->lengths[c->n_lengths++] = number(&list);
}

int main(int argc, char **argv)
{
    static const struct option names[] = {
        {"model", 1, NULL, 'm'},  {"shape", 1, NULL, 's'},   {"reference", 1, NULL, 'r'},
        {"tested", 1, NULL, 't'}, {"threads", 1, NULL, 'p'}, {"lengths", 1, NULL, 'l'},
        {"steps", 1, NULL, 'n'},  {"bound", 1, NULL, 'd'},   {"free", 0, NULL, 'f'},
        {"layers", 0, NULL, 'y'}, {NULL, 0, NULL, 0},
    };
    comparison c = {.shape = "35b",
                    .lengths = {1, 63, 512, 4097},
                    .n_lengths = 4,
                    .n_steps = 64,
                    .bound = 0.05};
    read_party("cpu:avx512", &c.reference);
    read_tested(&c, "cuda");
    for (int o; (o = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        const char *list = optarg;
        switch (o) {
        case 'm':
            c.dir = optarg;
            break;
        case 's':
            c.shape = optarg;
            break;
        case 'r':
            read_party(optarg, &c.reference);
            break;
        case 't':
            read_tested(&c, optarg);
            break;
        case 'p':
            c.n_threads = number(&list);
            break;
        case 'n':
            c.n_steps = number(&list);
            break;
        case 'f':
            c.free = true;
            break;
        case 'y':
            c.layers = true;
            break;
        case 'd':
            c.bound = atof(optarg);
            break;
        case 'l':
            read_lengths(&c, optarg);
            break;
        default:
            usage();
        }
    }
    return compare(&c) ? 0 : 1;
}
