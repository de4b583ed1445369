/* models/tiny against transformers (tests/data/tiny_goldens.safetensors, made by
 * tools/make_tiny_goldens.py), and the fast profiles against the reference. */
#include "engine/engine.h"
#include "support/backend.h"
#include "support/kernels.h"
#include "support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 1024, WINDOWS = 4, N = WINDOW * WINDOWS };
/* Of them looked at. */
enum {
    WINDOWS_HERE = CALLA_SANITIZED ? 1 : WINDOWS,
    N_HERE = WINDOW * WINDOWS_HERE,
    DECODE = CALLA_SANITIZED ? 128 : 512
};

/* What a run says of every position: the most likely next token, its lead over the second, and
 * -log p of the token that follows in the text (0 at the end of a window). */
typedef struct predictions {
    int32_t top[N];
    double margin[N], nll[N];
} predictions;

static struct {
    int32_t ids[N];
    predictions transformers, reference;
} * gold;

static const void *find(const tensor *tensors, int32_t n, const char *name)
{
    for (int32_t i = 0; i < n; i++)
        if (strcmp(tensors[i].name, name) == 0 && tensors[i].n_bytes == N * 4u)
            return tensors[i].data;
    fail_msg("no tensor %s [%d]", name, N);
    return NULL;
}

static int load_goldens(void **state)
{
    (void)state;
    calla_error err;
    mapped_file file;
    const char *path = source_path("tests/data/tiny_goldens.safetensors");
    assert_ok(mapped_file_open(path, &file, &err), &err);
    tensor *tensors = NULL;
    int32_t n = 0;
    size_t capacity = 0;
    assert_ok(safetensors_parse(file.data, file.n_bytes, path, 0, &tensors, &n, &capacity, &err),
              &err);
    gold = calloc(1, sizeof *gold);
    assert_non_null(gold);
    memcpy(gold->ids, find(tensors, n, "ids"), sizeof gold->ids);
    memcpy(gold->transformers.top, find(tensors, n, "top"), sizeof gold->transformers.top);
    const unsigned char *margin = find(tensors, n, "margin"), *nll = find(tensors, n, "nll");
    for (int i = 0; i < N; i++) {
        float m, l;
        memcpy(&m, margin + 4 * i, 4);
        memcpy(&l, nll + 4 * i, 4);
        gold->transformers.margin[i] = m;
        gold->transformers.nll[i] = l;
    }
    tensors_free(tensors, n);
    mapped_file_close(&file);
    return 0;
}

static int free_goldens(void **state)
{
    (void)state;
    free(gold);
    return 0;
}

static calla_engine *open_tiny(const char *isa)
{
    calla_error err;
    calla_engine *engine;
    /* The reference is the CPU's. */
    calla_engine_options options = {.backend = strcmp(isa, "f32") == 0 ? "cpu" : test_backend(),
                                    .isa = isa,
                                    .n_ctx = WINDOW,
                                    .n_threads = 2};
    assert_ok(calla_engine_open(source_path("models/tiny"), &options, &engine, &err), &err);
    return engine;
}

static void take_row(predictions *p, int position, const float *logits, int32_t n_vocab)
{
    int32_t best = 0, second = 1;
    for (int32_t v = 1; v < n_vocab; v++) {
        if (logits[v] > logits[best])
            second = best, best = v;
        else if (v != best && logits[v] > logits[second])
            second = v;
    }
    double sum = 0;
    for (int32_t v = 0; v < n_vocab; v++) sum += exp((double)logits[v] - logits[best]);
    p->top[position] = best;
    p->margin[position] = (double)logits[best] - logits[second];
    p->nll[position] = 0;
    if ((position + 1) % WINDOW != 0)
        p->nll[position] = log(sum) + (double)logits[best] - logits[gold->ids[position + 1]];
}

typedef struct window_rows {
    predictions *p;
    int first;
    int32_t n_vocab;
} window_rows;

static int take_rows(void *user, int64_t first, int64_t n, const float *logits)
{
    window_rows *w = user;
    for (int64_t i = 0; i < n; i++)
        take_row(w->p, w->first + (int)(first + i), logits + i * w->n_vocab, w->n_vocab);
    return 0;
}

/* The experts the reference chose. Near-ties between experts are left out of the comparison by
 * using the reference's choice in all profiles: in these windows the 4th and 5th expert of a token
 * are as close as 5e-5, so that any difference in the last bits can choose the other one, and the
 * token's numbers then change as if by another model. How often that happens, and what it does to
 * a whole text, is measured in docs/performance. */
enum { LAYERS = 8, SLOTS = 4 };
static int32_t reference_experts[N][LAYERS][SLOTS];
static int window_first;

static void keep_route(void *user, int32_t layer, int64_t position, const float *logits,
                       int32_t *experts, float *weights)
{
    (void)user, (void)logits, (void)weights;
    memcpy(reference_experts[window_first + position][layer], experts, SLOTS * sizeof *experts);
}

static void use_route(void *user, int32_t layer, int64_t position, const float *logits,
                      int32_t *experts, float *weights)
{
    _Atomic int *changed = user;
    const int32_t *wanted = reference_experts[window_first + position][layer];
    if (memcmp(experts, wanted, SLOTS * sizeof *wanted) != 0) atomic_fetch_add(changed, 1);
    memcpy(experts, wanted, SLOTS * sizeof *wanted);
    double sum = 0, largest = logits[wanted[0]];
    for (int i = 0; i < SLOTS; i++) sum += exp(logits[wanted[i]] - largest);
    for (int i = 0; i < SLOTS; i++) weights[i] = (float)(exp(logits[wanted[i]] - largest) / sum);
}

/* All windows by prefill, with the reference's experts unless this is the reference. */
static void predict(const char *isa, predictions *p)
{
    calla_error err;
    calla_engine *engine = open_tiny(isa);
    _Atomic int changed = 0;
    engine->ops->set_route(engine->backend, p == &gold->reference ? keep_route : use_route,
                           &changed);
    calla_session *session;
    calla_engine_info info;
    calla_engine_get_info(engine, &info);
    assert_ok(calla_session_create(engine, &session, &err), &err);
    for (int w = 0; w < WINDOWS_HERE; w++) {
        window_rows rows = {p, w * WINDOW, info.n_vocab};
        window_first = w * WINDOW;
        assert_ok(calla_session_score(session, gold->ids + w * WINDOW, WINDOW, take_rows, &rows,
                                      NULL, &err),
                  &err);
    }
    print_message("%s: other experts, or another order of them, in %d of %d choices\n", isa,
                  changed, N_HERE * LAYERS);
    calla_session_free(session);
    calla_engine_close(engine);
}

static double mean_nll(const predictions *p, int n)
{
    double sum = 0;
    int count = 0;
    for (int i = 0; i < n; i++)
        if ((i + 1) % WINDOW != 0) sum += p->nll[i], count++;
    return sum / count;
}

/* What `p` may differ in from `reference`: the same best token in at least `share` of the positions
 * and wherever the reference's lead exceeds `margin`; perplexity within `change`, relative. */
typedef struct limits {
    double share, margin, change;
} limits;

static void check(const char *what, const predictions *p, const predictions *reference, int n,
                  limits l)
{
    int same = 0;
    for (int i = 0; i < n; i++) {
        same += p->top[i] == reference->top[i];
        if (p->top[i] != reference->top[i] && reference->margin[i] > l.margin)
            fail_msg("%s: position %d is %d, the reference's %d leads by %g", what, i, p->top[i],
                     reference->top[i], reference->margin[i]);
    }
    double ppl = exp(mean_nll(p, n) - mean_nll(reference, n)) - 1;
    print_message("%s: perplexity %+.5f %%, same top token at %.2f %%\n", what, 100 * ppl,
                  100.0 * same / n);
    if (same < l.share * n) fail_msg("%s: %d of %d best tokens agree", what, same, n);
    if (fabs(ppl) > l.change) fail_msg("%s: perplexity differs by %g", what, ppl);
}

/* A quarter of the text scatters twice as much. */
#define CHANGE(whole) ((whole) * (CALLA_SANITIZED ? 2 : 1))
static const limits LIMITS_EXACT = {0.995, 0.1, CHANGE(2e-4)},
                    LIMITS_BF16 = {0.99, 0.2, CHANGE(4e-4)};

static void test_reference_against_transformers(void **state)
{
    (void)state;
    predict("f32", &gold->reference);
    check("f32 against transformers", &gold->reference, &gold->transformers, N_HERE,
          (limits){0.99, 1e-3, 1e-4});
}

static void test_fast_prefill(void **state)
{
    (void)state;
    predictions *p = calloc(1, sizeof *p);
    assert_non_null(p);
    for (const char *const *isa = test_isas(); *isa; isa++) {
        if (strcmp(*isa, "f32") == 0) continue;
        predict(*isa, p);
        check(*isa, p, &gold->reference, N_HERE,
              (test_has_reference() && isa_rounds_to_bf16(*isa)) ? LIMITS_BF16 : LIMITS_EXACT);
    }
    free(p);
}

static void test_fast_decode(void **state)
{
    (void)state;
    calla_error err;
    predictions *p = calloc(1, sizeof *p);
    assert_non_null(p);
    for (const char *const *isa = test_isas(); *isa; isa++) {
        if (strcmp(*isa, "f32") == 0) continue;
        calla_engine *engine = open_tiny(*isa);
        calla_session *session;
        calla_engine_info info;
        calla_engine_get_info(engine, &info);
        float *logits = malloc((size_t)info.n_vocab * sizeof *logits);
        assert_non_null(logits);
        assert_ok(calla_session_create(engine, &session, &err), &err);
        for (int i = 0; i < DECODE; i++) {
            assert_ok(calla_session_append(session, gold->ids[i], NULL, logits, &err), &err);
            take_row(p, i, logits, info.n_vocab);
        }
        char what[64];
        snprintf(what, sizeof what, "%s, decode", *isa);
        check(what, p, &gold->reference, DECODE, LIMITS_EXACT);
        free(logits);
        calla_session_free(session);
        calla_engine_close(engine);
    }
    free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference_against_transformers),
        cmocka_unit_test(test_fast_prefill),
        cmocka_unit_test(test_fast_decode),
    };
    return cmocka_run_group_tests(tests, load_goldens, free_goldens);
}
