/* Engines on synthetic weights in memory: the same bytes and tokens as through files; what a
 * machine can do is measured, and where a token's time goes. */
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

    assert_ok(calla_engine_open(dir, &(calla_engine_options){.n_ctx = 600}, &b, &err), &err);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_in_memory_are_those_of_the_file),
        cmocka_unit_test(what_cannot_be_made_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
