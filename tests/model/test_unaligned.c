/* Weights at odd addresses: MLX pads no safetensors header, so half of the files it writes have all
 * data there. Results must not change (and sanitizers must stay quiet). */
#include "support/files.h"
#include "support/support.h"

#include <string.h>

enum { N_TOKENS = 70, N_VOCAB = 320 };

typedef float logits_table[N_TOKENS][N_VOCAB];

static int take_rows(void *user, int64_t first, int64_t n_rows, const float *logits)
{
    memcpy((*(logits_table *)user)[first], logits, (size_t)n_rows * N_VOCAB * sizeof *logits);
    return 0;
}

/* All by prefill but the last, which is a decode step. */
static void run(const char *dir, const char *isa, logits_table logits)
{
    calla_error err;
    calla_engine *engine;
    calla_session *session;
    calla_engine_options options = {.backend = "cpu", .isa = isa, .n_ctx = 128, .n_threads = 1};
    int32_t ids[N_TOKENS];
    for (int i = 0; i < N_TOKENS; i++) ids[i] = i * 37 % 300;
    assert_ok(calla_engine_open(dir, &options, &engine, &err), &err);
    assert_ok(calla_session_create(engine, &session, &err), &err);
    assert_ok(calla_session_score(session, ids, N_TOKENS - 1, take_rows, logits, NULL, &err), &err);
    assert_ok(calla_session_append(session, ids[N_TOKENS - 1], NULL, logits[N_TOKENS - 1], &err),
              &err);
    calla_session_free(session);
    calla_engine_close(engine);
}

static void test_odd_addresses(void **state)
{
    (void)state;
    static const char *const layouts[] = {"tests/data/oracle-a/mlx4", "tests/data/oracle-a/bf16"};
    static const char *const isas[] = {"f32", "c", "auto"};
    static logits_table even, odd;
    for (int i = 0; i < 2; i++) {
        const char *dir =
            edit_checkpoint(source_path(layouts[i]), NULL, 0, &(text_edit){"{", "{ "}, 1);
        for (int k = 0; k < (i == 0 ? 3 : 1); k++) {
            run(source_path(layouts[i]), isas[k], even);
            run(dir, isas[k], odd);
            assert_memory_equal(even, odd, sizeof even);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_odd_addresses)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
