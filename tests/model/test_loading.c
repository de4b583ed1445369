/* Where the weights are must not show in results: mapped, read ahead, copied. What is decided for
 * which machine. */
#include "support/files.h"
#include "support/support.h"

#include "base/memory.h"
#include "engine/engine.h"
#include "engine/load.h"
#include "model/residence.h"

#include <calla/model.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define GB ((int64_t)1000000000)

/* ---- decisions ---- */

/* The 35B's sizes on a machine with so much. */
static load_facts facts_35b(int64_t ram, int64_t available, int64_t lockable)
{
    return (load_facts){.weights = 195 * GB / 10,
                        .every_token = 14 * GB / 10,
                        .other = 13 * GB / 10,
                        .ram = ram,
                        .available = available,
                        .lockable = lockable};
}

static load_decision decide(load_facts f, calla_load load, calla_warm_up warm_up)
{
    load_decision d;
    calla_error err;
    assert_ok(load_decide(&f, load, warm_up, &d, &err), &err);
    return d;
}

static void test_decisions(void **state)
{
    (void)state;
    /* 24 GB: mapped, all read ahead, a copy possible, not beside the cache. */
    load_facts f = facts_35b(25 * GB, 24 * GB, INT64_MAX);
    load_decision d = decide(f, CALLA_LOAD_AUTO, CALLA_WARM_UP_AUTO);
    assert_true(d.fits && !d.copy && d.warm_all && d.lock);
    d = decide(f, CALLA_LOAD_COPY, CALLA_WARM_UP_AUTO);
    assert_true(d.copy && !d.keep_cached && !d.warm_all && !d.warm_every_token);
    d = decide(f, CALLA_LOAD_AUTO, CALLA_WARM_UP_NEVER);
    assert_true(!d.copy && !d.warm_all && !d.warm_every_token);
    /* 64 GB: a copy, unless a map is asked for. */
    f = facts_35b(64 * GB, 60 * GB, 8 << 20);
    d = decide(f, CALLA_LOAD_AUTO, CALLA_WARM_UP_AUTO);
    assert_true(d.fits && d.copy && d.keep_cached && !d.lock);
    d = decide(f, CALLA_LOAD_MAP, CALLA_WARM_UP_AUTO);
    assert_true(!d.copy && d.warm_all);
    /* 12 GB: what every token needs; all only on request. */
    f = facts_35b(12 * GB, 11 * GB, INT64_MAX);
    d = decide(f, CALLA_LOAD_AUTO, CALLA_WARM_UP_AUTO);
    assert_true(!d.fits && !d.copy && !d.warm_all && d.warm_every_token && d.lock);
    d = decide(f, CALLA_LOAD_MAP, CALLA_WARM_UP_ALWAYS);
    assert_true(d.warm_all && !d.warm_every_token);
    /* 3 GB: locking would leave too little. */
    d = decide(facts_35b(3 * GB, 3 * GB, INT64_MAX), CALLA_LOAD_AUTO, CALLA_WARM_UP_AUTO);
    assert_true(!d.fits && d.warm_every_token && !d.lock);
    /* A small model gains nothing by a copy; nothing known of the machine. */
    f = (load_facts){.weights = 10 << 20, .other = 1 << 20, .available = 60 * GB};
    assert_false(decide(f, CALLA_LOAD_AUTO, CALLA_WARM_UP_AUTO).copy);
    d = decide((load_facts){.weights = 20 * GB}, CALLA_LOAD_AUTO, CALLA_WARM_UP_AUTO);
    assert_true(d.fits && !d.copy && d.warm_all);
}

static void test_refusals(void **state)
{
    (void)state;
    load_decision d;
    calla_error err;
    load_facts f = facts_35b(24 * GB, 20 * GB, 0);
    assert_error(load_decide(&f, CALLA_LOAD_COPY, CALLA_WARM_UP_AUTO, &d, &err), CALLA_ERR_MEMORY,
                 &err,
                 "a copy needs 20.80 GB of memory (weights 19.50 GB), 20.00 GB are available");
    f = facts_35b(GB, GB, 0);
    assert_error(load_decide(&f, CALLA_LOAD_MAP, CALLA_WARM_UP_AUTO, &d, &err), CALLA_ERR_MEMORY,
                 &err, "needs 1.30 GB of memory besides its weights, the machine has 1.00 GB");
    f.limited = true;
    assert_error(load_decide(&f, CALLA_LOAD_MAP, CALLA_WARM_UP_AUTO, &d, &err), CALLA_ERR_MEMORY,
                 &err,
                 "needs 1.30 GB of memory besides its weights, this control group has 1.00 GB");
}

/* ---- engines ---- */

enum { N_TOKENS = 40 };

typedef struct collected {
    float *logits; /* [N_TOKENS][n_vocab] */
    int64_t n_vocab;
} collected;

static int collect(void *user, int64_t first, int64_t n_rows, const float *logits)
{
    collected *c = user;
    memcpy(c->logits + first * c->n_vocab, logits, (size_t)(n_rows * c->n_vocab) * sizeof *logits);
    return 0;
}

/* The logits of some tokens; free with mem_free. */
static collected score(calla_engine *e)
{
    int32_t tokens[N_TOKENS];
    calla_session *s;
    calla_engine_info info;
    calla_error err;
    void *memory;
    calla_engine_get_info(e, &info);
    for (int i = 0; i < N_TOKENS; i++) tokens[i] = (i * 37 + 5) % info.n_vocab_tokens;
    assert_ok(mem_alloc(N_TOKENS, (size_t)info.n_vocab * sizeof(float), "logits", &memory, &err),
              &err);
    collected c = {memory, info.n_vocab};
    assert_ok(calla_session_create(e, &s, &err), &err);
    assert_ok(calla_session_score(s, tokens, N_TOKENS, collect, &c, NULL, &err), &err);
    calla_session_free(s);
    return c;
}

static void results_are_the_same(void **state)
{
    (void)state;
    const calla_engine_options ways[] = {
        {.load = CALLA_LOAD_MAP, .warm_up = CALLA_WARM_UP_NEVER, .n_threads = 1},
        {.load = CALLA_LOAD_MAP, .warm_up = CALLA_WARM_UP_ALWAYS, .no_pin = true},
        {.load = CALLA_LOAD_COPY},
        {.load = CALLA_LOAD_AUTO},
    };
    static const char *const models[] = {"models/tiny", "tests/data/oracle-a/mlx4"};
    for (size_t m = 0; m < 2; m++) {
        collected first = {0};
        for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++) {
            calla_engine *e;
            calla_engine_info info;
            calla_error err;
            assert_ok(calla_engine_open(source_path(models[m]), &ways[w], &e, &err), &err);
            calla_engine_get_info(e, &info);
            assert_int_equal(info.copied, ways[w].load == CALLA_LOAD_COPY);
            assert_true(info.n_threads >= 1);
            assert_false(info.short_of_memory);
            collected c = score(e);
            if (w == 0)
                first = c;
            else {
                assert_memory_equal(c.logits, first.logits,
                                    (size_t)(N_TOKENS * c.n_vocab) * sizeof(float));
                mem_free(c.logits);
            }
            calla_engine_close(e);
        }
        mem_free(first.logits);
    }
}

/* A file that is cut short under a mapped model is a signal; under a copied one it is nothing. */
static void a_copy_outlives_its_file(void **state)
{
    (void)state;
    const char *dir = edit_checkpoint(source_path("tests/data/oracle-a/mlx4"), NULL, 0, NULL, 0);
    char path[4200];
    calla_engine *e;
    calla_error err;
    calla_engine_options options = {.load = CALLA_LOAD_COPY};
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_ok(calla_engine_open(dir, &options, &e, &err), &err);
    assert_int_equal(truncate(path, 0), 0);
    collected c = score(e);
    calla_engine_close(e);
    options.load = CALLA_LOAD_MAP;
    assert_ok(calla_engine_open(source_path("tests/data/oracle-a/mlx4"), &options, &e, &err), &err);
    collected expected = score(e);
    assert_memory_equal(c.logits, expected.logits, (size_t)(N_TOKENS * c.n_vocab) * sizeof(float));
    calla_engine_close(e);
    mem_free(c.logits);
    mem_free(expected.logits);
}

static void opening_is_cancelled(void **state)
{
    (void)state;
    calla_engine *e;
    calla_error err;
    atomic_bool cancel = true;
    for (int load = CALLA_LOAD_MAP; load <= CALLA_LOAD_COPY; load++) {
        calla_engine_options options = {
            .load = (calla_load)load, .warm_up = CALLA_WARM_UP_ALWAYS, .cancel = &cancel};
        assert_error(calla_engine_open(source_path("models/tiny"), &options, &e, &err),
                     CALLA_ERR_CANCELLED, &err, "");
    }
}

static void parts_of_the_weights(void **state)
{
    (void)state;
    model_weights w;
    calla_error err;
    assert_ok(model_weights_open(source_path("models/tiny"), &w, &err), &err);
    int64_t embedding = (int64_t)matrix_bytes(&w.embedding);
    assert_int_equal(weights_part_bytes(&w, WEIGHTS_ALL), w.text_bytes);
    assert_int_equal(weights_part_bytes(&w, WEIGHTS_EVERY_TOKEN),
                     w.text_bytes - w.expert_bytes - embedding);
    model_weights_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decisions),       cmocka_unit_test(test_refusals),
        cmocka_unit_test(results_are_the_same), cmocka_unit_test(a_copy_outlives_its_file),
        cmocka_unit_test(opening_is_cancelled), cmocka_unit_test(parts_of_the_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
