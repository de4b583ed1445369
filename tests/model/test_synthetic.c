/* Engines on synthetic weights in memory: the same bytes and tokens as through files; what a
 * machine can do is measured, and where a token's time goes. */
#include "base/clock.h"
#include "base/philox.h"
#include "engine/engine.h"
#include "support/files.h"
#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static calla_error err;

static calla_engine *open_tiny(uint64_t seed, calla_engine_options options)
{
    calla_engine *engine;
    options.backend = "cpu";
    if (options.n_ctx == 0) options.n_ctx = 600;
    assert_ok(calla_engine_open_synthetic("tiny", seed, &options, &engine, &err), &err);
    return engine;
}

static void fill(int32_t *tokens, int n)
{
    for (int i = 0; i < n; i++) tokens[i] = (int32_t)(philox_uniform(5, (uint64_t)i, 0) * 4000);
}

static void trace(calla_engine *engine, int32_t sampled[8], float logprobs[8])
{
    int32_t tokens[100];
    calla_session *session;
    fill(tokens, 100);
    assert_ok(calla_session_create(engine, &session, &err), &err);
    assert_ok(calla_session_sync(session, tokens, 100, NULL, NULL, &err), &err);
    for (int i = 0; i < 8; i++) {
        calla_sampled s;
        assert_ok(calla_session_next(session, &(calla_sampling){0}, NULL, &s, &err), &err);
        sampled[i] = s.token, logprobs[i] = s.logprob;
    }
    calla_session_free(session);
}

static void weights_in_memory_are_those_of_the_file(void **state)
{
    (void)state;
    const char *dir = temporary_dir();
    char path[512];
    size_t n;
    const calla_write_options one_shard = {.overwrite = true, .max_shard_bytes = INT64_MAX};
    const calla_synth_options synth = {.shape = "tiny", .seed = 3};
    assert_ok(calla_synth(dir, &synth, &one_shard, &err), &err);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    char *file = read_test_file(path, &n);

    calla_engine *a = open_tiny(3, (calla_engine_options){0}), *b;
    const mapped_file *map = &a->weights.tensors.files[0].map;
    assert_int_equal(map->n_bytes, n);
    assert_memory_equal(map->data, file, n);
    free(file);

    assert_ok(
        calla_engine_open(dir, &(calla_engine_options){.backend = "cpu", .n_ctx = 600}, &b, &err),
        &err);
    calla_engine_info info_a, info_b;
    calla_engine_get_info(a, &info_a);
    calla_engine_get_info(b, &info_b);
    assert_int_equal(info_a.n_vocab_tokens, info_b.n_vocab_tokens);
    assert_memory_equal(&info_a.memory, &info_b.memory, sizeof info_a.memory);
    int32_t tokens_a[8], tokens_b[8];
    float logprobs_a[8], logprobs_b[8];
    trace(a, tokens_a, logprobs_a);
    trace(b, tokens_b, logprobs_b);
    assert_memory_equal(tokens_a, tokens_b, sizeof tokens_a);
    assert_memory_equal(logprobs_a, logprobs_b, sizeof logprobs_a);
    calla_engine_close(a);
    calla_engine_close(b);

    a = open_tiny(4, (calla_engine_options){0});
    map = &a->weights.tensors.files[0].map;
    file = read_test_file(path, &n);
    assert_int_equal(map->n_bytes, n);
    assert_true(memcmp(map->data, file, n) != 0); /* another seed */
    free(file);
    calla_engine_close(a);
}

static void what_cannot_be_made_is_refused(void **state)
{
    (void)state;
    calla_engine *engine = NULL;
    assert_error(calla_engine_open_synthetic("7b", 0, NULL, &engine, &err), CALLA_ERR_INPUT, &err,
                 "unknown shape 7b");
    assert_error(calla_engine_open_synthetic("tiny", 0, &(calla_engine_options){.n_ctx = 40000},
                                             &engine, &err),
                 CALLA_ERR_INPUT, &err, "a context of 40000 tokens asked for");
    /* Terabytes of KV cache: noticed before a weight is made. */
    calla_engine_options large = {.n_ctx = 32768, .n_sessions = 1000};
    calla_machine_info machine;
    calla_machine_get_info(&machine);
    if (machine.ram_available_bytes > 0 && machine.ram_available_bytes < (int64_t)200 << 30)
        assert_error(calla_engine_open_synthetic("tiny", 0, &large, &engine, &err),
                     CALLA_ERR_MEMORY, &err, "GB are available");
    atomic_bool cancel = true;
    assert_error(calla_engine_open_synthetic("tiny", 0, &(calla_engine_options){.cancel = &cancel},
                                             &engine, &err),
                 CALLA_ERR_CANCELLED, &err, "cancelled");
    assert_null(engine);
}

/* ---- measurement ---- */

static void the_ceilings_are_measured(void **state)
{
    (void)state;
    static const char *const isa[] = {"auto", "c"};
    for (int i = 0; i < 2; i++) {
        calla_engine *engine = open_tiny(0, (calla_engine_options){.isa = isa[i]});
        calla_machine_rates rates = {0};
        assert_ok(calla_engine_measure(engine, &rates, &err), &err);
        assert_true(rates.read_bytes_per_second > 0 && rates.read_bytes_per_second < 1e14);
        assert_true(rates.matrix_operations_per_second > 0 &&
                    rates.matrix_operations_per_second < 1e16);
        calla_engine_close(engine);
    }
}

static const calla_profile_entry *entry(calla_engine *engine, const char *name)
{
    const calla_profile_entry *entries;
    int32_t n;
    calla_engine_get_profile(engine, &entries, &n);
    for (int32_t i = 0; i < n; i++)
        if (strcmp(entries[i].name, name) == 0) return &entries[i];
    fail_msg("no entry %s", name);
    return NULL;
}

static calla_profile_entry sum_of(calla_engine *engine)
{
    const calla_profile_entry *entries;
    int32_t n;
    calla_profile_entry sum = {0};
    calla_engine_get_profile(engine, &entries, &n);
    for (int32_t i = 0; i < n; i++) {
        assert_true(entries[i].ns >= 0);
        sum.ns += entries[i].ns, sum.n_calls += entries[i].n_calls;
        sum.bytes += entries[i].bytes, sum.operations += entries[i].operations;
    }
    return sum;
}

/* Within a hundredth: the profile leaves out norms and other small vectors. */
static void assert_near(int64_t value, int64_t expected, const char *what)
{
    if (llabs(value - expected) * 100 > expected)
        fail_msg("%s: %lld, expected about %lld", what, (long long)value, (long long)expected);
}

static void the_profile_adds_up_to_what_a_token_costs(void **state)
{
    (void)state;
    enum { N = 300, N_TINY_LAYERS = 8 };
    calla_engine *engine = open_tiny(0, (calla_engine_options){.n_sessions = 2});
    calla_engine_info info;
    calla_session *s[2];
    const calla_sampling greedy = {0}, *sampling[2] = {&greedy, &greedy};
    calla_sampled sampled[2];
    int32_t tokens[N];
    fill(tokens, N);
    calla_engine_get_info(engine, &info);
    for (int i = 0; i < 2; i++) assert_ok(calla_session_create(engine, &s[i], &err), &err);

    calla_engine_set_profile(engine, true);
    int64_t start = clock_ns();
    assert_ok(calla_session_sync(s[0], tokens, N, NULL, NULL, &err), &err);
    int64_t wall = clock_ns() - start;
    calla_profile_entry sum = sum_of(engine);
    assert_true(sum.ns > 0 && sum.ns <= wall);
    assert_near(sum.operations,
                N * info.token_operations + (int64_t)N * (N + 1) / 2 * info.attention_operations +
                    entry(engine, "head")->operations,
                "operations of a prompt");
    assert_int_equal(entry(engine, "router")->n_calls, N_TINY_LAYERS);
    assert_int_equal(entry(engine, "head")->operations, 2 * info.n_vocab * info.hidden_size);

    assert_ok(calla_session_sync(s[1], tokens, N, NULL, NULL, &err), &err);
    assert_ok(calla_session_next_batch(s, 2, sampling, NULL, sampled, &err), &err);
    calla_engine_set_profile(engine, true); /* from zero */
    assert_int_equal(sum_of(engine).n_calls, 0);
    assert_ok(calla_session_next(s[0], &greedy, NULL, sampled, &err), &err);
    sum = sum_of(engine);
    assert_near(sum.bytes,
                info.token_weight_bytes + info.state_bytes + (N + 1) * info.kv_bytes_per_token,
                "bytes of a decoded token");
    assert_int_equal(entry(engine, "sampling")->n_calls, 1);
    assert_int_equal(entry(engine, "gdn scan")->bytes, info.state_bytes);
    assert_int_equal(entry(engine, "attention")->bytes, (N + 1) * info.kv_bytes_per_token);

    /* Two sequences at the same point choose the same experts: all weights once. */
    int64_t experts = entry(engine, "routed experts")->bytes;
    assert_ok(calla_session_next(s[1], &greedy, NULL, sampled, &err), &err);
    calla_engine_set_profile(engine, true);
    assert_ok(calla_session_next_batch(s, 2, sampling, NULL, sampled, &err), &err);
    assert_int_equal(entry(engine, "routed experts")->bytes, experts);
    assert_int_equal(entry(engine, "gdn scan")->bytes, 2 * info.state_bytes);

    calla_engine_set_profile(engine, false);
    assert_ok(calla_session_next(s[0], &greedy, NULL, sampled, &err), &err);
    sum = sum_of(engine);
    assert_true(sum.ns == 0 && sum.n_calls == 0 && sum.bytes == 0 && sum.operations == 0);
    for (int i = 0; i < 2; i++) calla_session_free(s[i]);
    calla_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_in_memory_are_those_of_the_file),
        cmocka_unit_test(what_cannot_be_made_is_refused),
        cmocka_unit_test(the_ceilings_are_measured),
        cmocka_unit_test(the_profile_adds_up_to_what_a_token_costs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
