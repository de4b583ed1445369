/* Recorded generations: the prompt through template and tokenizer, then every step with the
 * recorded token fed back. models/tiny's is from transformers (tools/make_chat_golden.py) and
 * always runs; those of the real model are mlx-lm's, in bf16, and run when CALLA_MODEL_35B names
 * its directory (docs/real-weights.md). */
#include "support/backend.h"
#include "support/support.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How exact a recording is: its own rounding and the profile's. */
typedef struct tolerance {
    double margin;  /* the best token must agree where the recorded lead is larger, in nats */
    double logprob; /* of the recorded token */
} tolerance;

static calla_error err;

static json_t *load_golden(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "tests/data/%s", name);
    json_error_t error;
    json_t *golden = json_load_file(source_path(path), 0, &error);
    if (!golden) fail_msg("%s: %s", path, error.text);
    return golden;
}

/* The prompt's ids as `calla run` makes them. */
static calla_tokens encode_prompt(const char *dir, const json_t *golden)
{
    calla_tokenizer *tokenizer;
    calla_tokens tokens;
    const char *prompt = json_string_value(json_object_get(golden, "prompt"));
    assert_ok(calla_tokenizer_open(dir, &tokenizer, &err), &err);
    if (json_is_true(json_object_get(golden, "chat_template"))) {
        json_t *messages = json_pack("[{ss, ss}]", "role", "user", "content", prompt);
        char *text = json_dumps(messages, 0);
        calla_prompt rendered;
        assert_ok(calla_chat_render(text, strlen(text), NULL, 0, &(calla_chat_options){0},
                                    &rendered, &err),
                  &err);
        assert_ok(calla_tokenizer_encode(tokenizer, rendered.text.data, rendered.text.n_bytes,
                                         rendered.literal, rendered.n_literal, &tokens, &err),
                  &err);
        calla_prompt_free(&rendered);
        free(text);
        json_decref(messages);
    } else {
        assert_ok(calla_tokenizer_encode(tokenizer, prompt, strlen(prompt), NULL, 0, &tokens, &err),
                  &err);
    }
    calla_tokenizer_close(tokenizer);
    return tokens;
}

static void check_prompt(const calla_tokens *tokens, const json_t *golden)
{
    const json_t *ids = json_object_get(golden, "prompt_token_ids");
    assert_int_equal(tokens->n, json_array_size(ids));
    for (int64_t i = 0; i < tokens->n; i++)
        assert_int_equal(tokens->ids[i], json_integer_value(json_array_get(ids, (size_t)i)));
}

/* One step's recording against the sampler's log-probabilities. */
static void check_step(const json_t *step, const calla_sampled *got, size_t index, tolerance t)
{
    const json_t *top = json_object_get(step, "topk");
    int chosen = (int)json_integer_value(json_object_get(step, "chosen"));
    double best = json_number_value(json_array_get(json_array_get(top, 0), 1));
    double second = json_number_value(json_array_get(json_array_get(top, 1), 1));
    if (got->token != chosen && best - second > t.margin)
        fail_msg("step %zu: token %d, recorded %d with a lead of %g", index, got->token, chosen,
                 best - second);
    for (int i = 0; i < got->n_top; i++) {
        if (got->top_tokens[i] != chosen) continue;
        if (fabs((double)got->top_logprobs[i] - best) > t.logprob)
            fail_msg("step %zu: log-probability %g, recorded %g", index, got->top_logprobs[i],
                     best);
        return;
    }
    fail_msg("step %zu: recorded token %d is not among the %d most likely", index, chosen,
             got->n_top);
}

static void check_golden(const char *dir, const char *isa, const char *name, tolerance t)
{
    json_t *golden = load_golden(name);
    calla_tokens tokens = encode_prompt(dir, golden);
    check_prompt(&tokens, golden);
    const json_t *steps = json_object_get(golden, "steps");
    calla_engine *engine;
    calla_session *session;
    calla_engine_options options = {.backend = test_backend(), .isa = isa, .n_ctx = 4096};
    assert_ok(calla_engine_open(dir, &options, &engine, &err), &err);
    assert_ok(calla_session_create(engine, &session, &err), &err);
    assert_ok(calla_session_sync(session, tokens.ids, tokens.n, NULL, NULL, &err), &err);
    /* Where the model's own choice differs, the recorded token goes on. */
    for (size_t i = 0; i < json_array_size(steps); i++) {
        const json_t *step = json_array_get(steps, i);
        calla_sampling greedy = {.n_top_logprobs = CALLA_MAX_TOP_LOGPROBS};
        calla_sampled got;
        assert_ok(calla_session_next(session, &greedy, NULL, &got, &err), &err);
        check_step(step, &got, i, t);
        int32_t chosen = (int32_t)json_integer_value(json_object_get(step, "chosen"));
        if (got.token == chosen) continue;
        int64_t n;
        const int32_t *timeline = calla_session_tokens(session, &n);
        int32_t *wanted = malloc((size_t)n * sizeof *wanted);
        assert_non_null(wanted);
        memcpy(wanted, timeline, (size_t)n * sizeof *wanted);
        wanted[n - 1] = chosen;
        assert_ok(calla_session_sync(session, wanted, n, NULL, NULL, &err), &err);
        free(wanted);
    }
    calla_session_free(session);
    calla_engine_close(engine);
    calla_tokens_free(&tokens);
    json_decref(golden);
}

static void test_tiny(void **state)
{
    (void)state;
    const char *dir = source_path("models/tiny");
    check_golden(dir, "f32", "golden_tiny_chat.json", (tolerance){1e-3, 1e-4});
    check_golden(dir, "auto", "golden_tiny_chat.json", (tolerance){0.1, 0.02});
}

/* mlx-lm's logits are on bf16's grid: steps of 1/16 to 1/8, both in the token's own and in the sum.
 */
static const tolerance BF16_RECORDING = {0.5, 0.3};

static void test_35b(void **state)
{
    const char *dir = getenv("CALLA_MODEL_35B");
    if (!dir) {
        print_message("SKIP: CALLA_MODEL_35B does not name the real checkpoint\n");
        skip();
    }
    (void)state;
    check_golden(dir, "auto", "golden_35b_chat.json", BF16_RECORDING);
    check_golden(dir, "auto", "golden_35b_raw.json", BF16_RECORDING);
    check_golden(dir, "auto", "golden_35b_long.json", BF16_RECORDING);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiny),
        cmocka_unit_test(test_35b),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
