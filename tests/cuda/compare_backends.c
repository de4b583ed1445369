/* Two backends on the same model, teacher-forced: after prompts of some lengths, and along the
 * tokens that the reference prefers behind them, the log-probabilities of the reference's five best
 * tokens, and the best one: from prefill, and every eighth token from a decode step, too.
 *
 *   compare_backends [--model DIR | --shape 35b] [--backend cuda] [--isa auto]
 *                    [--against-backend cpu] [--against-isa avx512] [--threads N]
 *                    [--lengths 1,63,512,4097] [--steps 64] [--bound 0.05] [--free]
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

enum { BEST = 5, MAX_LENGTHS = 16, PIECE = 8 };

typedef struct comparison {
    const char *dir, *shape;
    calla_engine_options options[2]; /* what is tested, the reference */
    int32_t lengths[MAX_LENGTHS], n_lengths, n_steps;
    double bound;
    bool free; /* to choose its experts */
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

static calla_engine *open_engine(const comparison *c, int which)
{
    calla_engine *engine;
    calla_error err;
    const calla_engine_options *o = &c->options[which];
    check(c->dir ? calla_engine_open(c->dir, o, &engine, &err)
                 : calla_engine_open_synthetic(c->shape, 1, o, &engine, &err),
          &err);
    return engine;
}

/* ---- experts ---- */

/* What the router chose in each layer for each token of a text. */
typedef struct routing {
    int32_t k, n_layers;
    bool hold;          /* give these instead of keeping them */
    int32_t *experts;   // [n_tokens][n_layers][k]
    atomic_int n_other; /* choices that were not these, or in another order */
} routing;

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
        weights[i] = (float)(exp((double)logits[kept[i]] - largest) / sum);
}

/* ---- a text ---- */

/* A prompt, the tokens behind it, and what the reference says. */
typedef struct text {
    int32_t n_prompt;
    int32_t *tokens;      // [n_prompt + n_steps]
    best_tokens *prefill; // [n_steps + 1] after the prompt and each token behind it
    best_tokens *decode;  // [ceil(n_steps / PIECE)] after the first token of each piece of them
    routing routing;
} text;

/* How far what is tested is from it. */
typedef struct difference {
    double largest, sum;
    int32_t n_beyond, n_clear, n_clear_same, n_same, n;
} difference;

typedef struct run_state {
    const comparison *c;
    calla_engine *engine;
    text *t;
    bool is_reference;
    difference prefill, decode; /* of what is tested */
    float *logits;              // [PIECE][n_vocab]
    double seconds;
} run_state;

static void compare_position(const run_state *r, const float *logits, const best_tokens *b,
                             difference *d)
{
    int32_t n = r->engine->info.n_vocab_tokens;
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
        *best = find_best(logits, r->engine->info.n_vocab_tokens);
    else
        compare_position(r, logits, best, d);
}

static void prefill(run_state *r, backend_sequence *s, int32_t first, int32_t n, logits_mode mode)
{
    calla_error err;
    calla_control control = {0};
    const calla_engine *e = r->engine;
    check(prefill_tokens(e->ops, e->backend, s, r->t->tokens + first, n, mode, r->logits,
                         e->info.n_vocab, &control, &err),
          &err);
}

/* Makes `to` what `from` is. */
static void branch_off(const run_state *r, const backend_sequence *from, backend_sequence *to)
{
    calla_error err;
    backend_snapshot *snapshot;
    const calla_engine *e = r->engine;
    check(e->ops->snapshot_create(e->backend, from, &snapshot, &err), &err);
    e->ops->snapshot_restore(e->backend, snapshot, to);
    e->ops->snapshot_free(e->backend, snapshot);
}

static const float *step(const run_state *r, backend_sequence *s, int32_t token)
{
    calla_error err;
    step_result result;
    step_request request = {.sequence = s, .token = token};
    const calla_engine *e = r->engine;
    check(e->ops->step_submit(e->backend, &request, 1, &err), &err);
    check(e->ops->step_wait(e->backend, &result, 1, NULL, &err), &err);
    check(result.error.code, &result.error);
    return result.logits;
}

/* The tokens behind the prompt, whose last logits are r->logits: by decode, in `branch`. */
static void choose_tokens(run_state *r, const backend_sequence *s, backend_sequence *branch)
{
    int32_t n = r->engine->info.n_vocab_tokens, *tokens = r->t->tokens + r->t->n_prompt;
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
    const calla_engine *e = r->engine;
    text *t = r->t;
    int64_t start_ns = clock_ns();
    t->routing.hold = !r->is_reference;
    e->ops->set_route(e->backend, r->is_reference || !r->c->free ? see_route : NULL, &t->routing);
    check(e->ops->sequence_create(e->backend, &s, &err), &err);
    check(e->ops->sequence_create(e->backend, &branch, &err), &err);
    prefill(r, s, 0, t->n_prompt, LOGITS_LAST);
    see(r, r->logits, &t->prefill[0], &r->prefill);
    if (r->is_reference) choose_tokens(r, s, branch);
    for (int32_t i = 0; i < r->c->n_steps; i += PIECE) {
        int32_t n = r->c->n_steps - i < PIECE ? r->c->n_steps - i : PIECE;
        branch_off(r, s, branch);
        see(r, step(r, branch, t->tokens[t->n_prompt + i]), &t->decode[i / PIECE], &r->decode);
        prefill(r, s, t->n_prompt + i, n, LOGITS_ALL);
        for (int32_t k = 0; k < n; k++)
            see(r, r->logits + (size_t)k * (size_t)e->info.n_vocab, &t->prefill[i + k + 1],
                &r->prefill);
    }
    e->ops->sequence_free(e->backend, s);
    e->ops->sequence_free(e->backend, branch);
    r->seconds = (double)(clock_ns() - start_ns) * 1e-9;
}

/* ---- the whole ---- */

static int32_t context(const comparison *c)
{
    int32_t longest = 0;
    for (int32_t i = 0; i < c->n_lengths; i++)
        if (c->lengths[i] > longest) longest = c->lengths[i];
    return longest + c->n_steps + 1;
}

static void *zeros(size_t n, size_t size)
{
    void *p = calloc(n, size);
    if (!p) exit(1);
    return p;
}

static void make_text(const comparison *c, const calla_engine *e, int32_t i, text *t)
{
    const model_config *m = &e->weights.config;
    size_t n = (size_t)(c->lengths[i] + c->n_steps), k = (size_t)m->n_experts_per_token;
    t->n_prompt = c->lengths[i];
    t->tokens = zeros(n, sizeof *t->tokens);
    t->prefill = zeros((size_t)c->n_steps + 1, sizeof *t->prefill);
    t->decode = zeros((size_t)c->n_steps, sizeof *t->decode);
    t->routing.k = m->n_experts_per_token;
    t->routing.n_layers = m->n_layers;
    t->routing.experts = zeros(n * (size_t)m->n_layers * k, sizeof *t->routing.experts);
    for (int32_t j = 0; j < t->n_prompt; j++)
        t->tokens[j] =
            (int32_t)((uint32_t)(j + 7919 * i) * 2654435761u % (uint32_t)e->info.n_vocab_tokens);
}

static void free_text(text *t)
{
    free(t->tokens);
    free(t->prefill);
    free(t->decode);
    free(t->routing.experts);
}

static void print_difference(const char *what, const text *t, const difference *d)
{
    printf("%8s %7d %10.5f %10.5f %6d/%-3d %10d/%-3d %6d/%-3d\n", what, t->n_prompt, d->largest,
           d->sum / d->n, d->n_beyond, d->n, d->n_clear_same, d->n_clear, d->n_same, d->n);
}

static bool judge(const run_state *r, double reference_seconds)
{
    const text *t = r->t;
    const difference *p = &r->prefill, *d = &r->decode;
    print_difference("prefill", t, p);
    print_difference("decode", t, d);
    printf("%16s %.1f s and %.1f s", "", reference_seconds, r->seconds);
    if (!r->c->free)
        printf("; other experts, or another order of them, %d times",
               atomic_load(&t->routing.n_other));
    printf("\n");
    fflush(stdout);
    return p->n_beyond == 0 && p->n_clear_same == p->n_clear;
}

static bool compare(const comparison *c)
{
    bool good = true;
    calla_engine *engines[2]; /* what is tested, the reference */
    for (int i = 1; i >= 0; i--) {
        engines[i] = open_engine(c, i);
        printf("%s: %s %s, %d threads\n", i ? "reference" : "tested", engines[i]->info.backend,
               engines[i]->info.isa, engines[i]->info.n_threads);
    }
    printf("%8s %7s %10s %10s %10s %14s %10s\n", "", "prompt", "largest", "mean", "beyond",
           "same, if clear", "same");
    float *logits = zeros((size_t)engines[1]->info.n_vocab * PIECE, sizeof *logits);
    for (int32_t i = 0; i < c->n_lengths; i++) {
        text t = {0};
        make_text(c, engines[1], i, &t);
        run_state reference = {c, engines[1], &t, .is_reference = true, .logits = logits};
        run_state tested = {c, engines[0], &t, .logits = logits};
        run_text(&reference);
        run_text(&tested);
        good = judge(&tested, reference.seconds) && good;
        free_text(&t);
    }
    free(logits);
    for (int i = 0; i < 2; i++) calla_engine_close(engines[i]);
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

int main(int argc, char **argv)
{
    static const struct option names[] = {
        {"model", 1, NULL, 'm'},
        {"shape", 1, NULL, 's'},
        {"backend", 1, NULL, 'b'},
        {"isa", 1, NULL, 'i'},
        {"against-backend", 1, NULL, 'B'},
        {"against-isa", 1, NULL, 'I'},
        {"threads", 1, NULL, 't'},
        {"lengths", 1, NULL, 'l'},
        {"steps", 1, NULL, 'n'},
        {"bound", 1, NULL, 'd'},
        {"free", 0, NULL, 'f'},
        {NULL, 0, NULL, 0},
    };
    comparison c = {.shape = "35b",
                    .lengths = {1, 63, 512, 4097},
                    .n_lengths = 4,
                    .n_steps = 64,
                    .bound = 0.05,
                    .options = {{.backend = "cuda"}, {.backend = "cpu", .isa = "avx512"}}};
    for (int o; (o = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        const char *list = optarg;
        switch (o) {
        case 'm':
            c.dir = optarg;
            break;
        case 's':
            c.shape = optarg;
            break;
        case 'b':
            c.options[0].backend = optarg;
            break;
        case 'i':
            c.options[0].isa = optarg;
            break;
        case 'B':
            c.options[1].backend = optarg;
            break;
        case 'I':
            c.options[1].isa = optarg;
            break;
        case 't':
            c.options[0].n_threads = c.options[1].n_threads = number(&list);
            break;
        case 'n':
            c.n_steps = number(&list);
            break;
        case 'f':
            c.free = true;
            break;
        case 'd':
            c.bound = atof(optarg);
            break;
        case 'l':
            for (c.n_lengths = 0; *list && c.n_lengths < MAX_LENGTHS;)
                c.lengths[c.n_lengths++] = number(&list);
            break;
        default:
            usage();
        }
    }
    for (int i = 0; i < 2; i++) {
        c.options[i].n_ctx = context(&c);
        c.options[i].n_sessions = 2;
        c.options[i].snapshot_bytes = 1; /* one */
    }
    return compare(&c) ? 0 : 1;
}
