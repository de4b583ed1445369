/* What chat requests ask for and what they get. */
#include "server/client.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char path[] = "/v1/chat/completions";
static server *s;

static int start(void **state)
{
    server_options options = client_options();
    const char *const aliases[] = {"gpt-tiny"};
    options.aliases = aliases, options.n_aliases = 1;
    *state = s = client_start(&options);
    return 0;
}

static answer_t post(json_t *body)
{
    return client_post_json(s, 200, path, body);
}

/* ---- shape ---- */

static void an_answer_has_openais_shape(void **state)
{
    (void)state;
    answer_t a = post(json_with(chat(river), "{s:s}", "model", "gpt-tiny"));
    assert_int_equal(strncmp(text_at(a.json, "id"), "chatcmpl-", 9), 0);
    assert_string_equal(text_at(a.json, "object"), "chat.completion");
    assert_string_equal(text_at(a.json, "model"), "tiny");
    assert_true(int_at(a.json, "created") > 1700000000);
    assert_int_equal(json_array_size(json_at(a.json, "choices")), 1);
    assert_int_equal(int_at(a.json, "choices.0.index"), 0);
    assert_string_equal(text_at(a.json, "choices.0.message.role"), "assistant");
    assert_string_equal(content_of(&a), river_answer);
    assert_non_null(strstr(text_at(a.json, "choices.0.message.reasoning_content"), "river"));
    assert_string_equal(text_at(a.json, "choices.0.finish_reason"), "stop");
    assert_true(json_is_null(json_at(a.json, "choices.0.logprobs")));
    assert_int_equal(int_at(a.json, "usage.prompt_tokens"), 15);
    assert_int_equal(int_at(a.json, "usage.completion_tokens"), 54);
    assert_int_equal(int_at(a.json, "usage.total_tokens"), 69);
    assert_int_equal(int_at(a.json, "usage.completion_tokens_details.reasoning_tokens"), 32);
    assert_true(json_is_integer(json_at(a.json, "usage.prompt_tokens_details.cached_tokens")));
    assert_true(json_is_real(json_at(a.json, "timings.decode_tokens_per_s")));
    assert_non_null(strstr(a.headers, "Content-Type: application/json"));
    answer_clear(&a);
}

static void a_stream_says_the_same_in_chunks(void **state)
{
    (void)state;
    answer_t a = post(json_with(chat(river), "{s:b, s:{s:b}}", "stream", 1, "stream_options",
                                "include_usage", 1));
    assert_non_null(strstr(a.headers, "Content-Type: text/event-stream"));
    json_t *events = client_events(&a);
    size_t n = json_array_size(events);
    char *content = joined(events, 0, "content"), *thought = joined(events, 0, "reasoning_content");
    assert_string_equal(content, river_answer);
    assert_non_null(strstr(thought, "I will explain it"));
    assert_true(n >= 4); /* on a busy machine all tokens may come at once */
    assert_string_equal(text_at(events, "0.object"), "chat.completion.chunk");
    assert_string_equal(text_at(events, "0.choices.0.delta.role"), "assistant");
    for (size_t i = 0; i + 1 < n; i++)
        assert_string_equal(text_at(json_array_get(events, i), "id"), text_at(events, "0.id"));
    const json_t *finish = json_array_get(events, n - 3), *usage = json_array_get(events, n - 2);
    assert_string_equal(text_at(finish, "choices.0.finish_reason"), "stop");
    assert_true(json_is_null(json_at(finish, "usage")));
    assert_non_null(json_at(finish, "timings"));
    assert_int_equal(json_array_size(json_at(usage, "choices")), 0);
    assert_int_equal(int_at(usage, "usage.completion_tokens"), 54);
    assert_string_equal(json_string_value(json_array_get(events, n - 1)), "[DONE]");
    free(content);
    free(thought);
    json_decref(events);
    answer_clear(&a);
}

static void progress_is_told_on_request(void **state)
{
    (void)state;
    char text[3000] = "Tell me more.";
    while (strlen(text) < 2900) strcat(text, " And more.");
    answer_t a = post(json_with(chat(text), "{s:b, s:{s:b}, s:i}", "stream", 1, "stream_options",
                                "include_progress", 1, "max_tokens", 1));
    json_t *events = client_events(&a);
    int64_t done = 0, total = 0;
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *progress = json_at(json_array_get(events, i), "progress");
        if (!progress) continue;
        assert_true(int_at(progress, "done") >= done);
        done = int_at(progress, "done"), total = int_at(progress, "total");
    }
    assert_true(total > 500);
    assert_int_equal(done, total);
    json_decref(events);
    answer_clear(&a);
}

/* ---- thinking ---- */

static void expect_thinking(json_t *body, bool expected)
{
    answer_t a = post(body);
    const char *thought = text_at(a.json, "choices.0.message.reasoning_content");
    assert_int_equal(thought != NULL, expected);
    assert_string_equal(content_of(&a), river_answer);
    answer_clear(&a);
}

static void thinking_is_switched_in_every_dialect(void **state)
{
    (void)state;
    expect_thinking(
        json_with(chat(river), "{s:{s:b}}", "chat_template_kwargs", "enable_thinking", 0), false);
    expect_thinking(
        json_with(chat(river), "{s:{s:b}}", "chat_template_kwargs", "enable_thinking", 1), true);
    expect_thinking(json_with(chat(river), "{s:b}", "enable_thinking", 0), false);
    expect_thinking(json_with(chat(river), "{s:s}", "reasoning_effort", "none"), false);
    expect_thinking(json_with(chat(river), "{s:s}", "reasoning_effort", "high"), true);
    expect_thinking(json_with(chat(river), "{s:{s:s}}", "thinking", "type", "disabled"), false);
    expect_thinking(
        json_with(chat(river), "{s:s, s:b}", "reasoning_effort", "none", "enable_thinking", 1),
        true); /* what was said directly counts */
}

static void a_thinking_budget_ends_the_reasoning(void **state)
{
    (void)state;
    for (int budget = 0; budget < 12; budget += 3) {
        answer_t a = post(json_with(chat(river), "{s:i}", "thinking_budget", budget));
        const char *thought = text_at(a.json, "choices.0.message.reasoning_content");
        assert_non_null(strstr(thought, "That is enough thought; here is the answer."));
        assert_true(strlen(content_of(&a)) > 0); /* so small a model then loses the thread */
        assert_string_equal(text_at(a.json, "choices.0.finish_reason"), "stop");
        assert_true(int_at(a.json, "usage.completion_tokens_details.reasoning_tokens") <
                    budget + 24);
        answer_clear(&a);
    }
    answer_t a = post(json_with(chat(river), "{s:i}", "thinking_budget", 32)); /* was not needed */
    assert_null(strstr(text_at(a.json, "choices.0.message.reasoning_content"), "enough"));
    answer_clear(&a);
    /* The budget leaves room for the answer. */
    a = post(json_with(chat(river), "{s:i, s:i}", "thinking_budget", 1000, "max_tokens", 60));
    assert_true(strlen(content_of(&a)) > 0);
    answer_clear(&a);
}

/* ---- ends ---- */

static void expect_content(json_t *body, const char *content, const char *finish)
{
    body = json_with(body, "{s:b}", "enable_thinking", 0);
    json_t *streamed = json_with(json_deep_copy(body), "{s:b}", "stream", 1);
    answer_t a = post(body);
    assert_string_equal(content_of(&a), content);
    assert_string_equal(text_at(a.json, "choices.0.finish_reason"), finish);
    answer_clear(&a);
    a = post(streamed);
    json_t *events = client_events(&a);
    char *all = joined(events, 0, "content");
    assert_string_equal(all, content);
    free(all);
    json_decref(events);
    answer_clear(&a);
}

static void stop_texts_end_the_content(void **state)
{
    (void)state;
    expect_content(json_with(chat(river), "{s:s}", "stop", " of water"),
                   "A river is a large stream", "stop");
    expect_content(json_with(chat(river), "{s:[s,s]}", "stop", "sea", "ge str"), "A river is a lar",
                   "stop");
    expect_content(json_with(chat(river), "{s:s}", "stop", "lake.!"), river_answer, "stop");
    /* Not in the reasoning. */
    answer_t a = post(json_with(chat(river), "{s:s}", "stop", "explain"));
    assert_string_equal(content_of(&a), river_answer);
    answer_clear(&a);
}

static void lengths_end_it_too(void **state)
{
    (void)state;
    expect_content(json_with(chat(river), "{s:i}", "max_tokens", 5), "A river is a large",
                   "length");
    expect_content(json_with(chat(river), "{s:i}", "max_completion_tokens", 1), "A", "length");
    expect_content(json_with(chat(river), "{s:i}", "max_tokens", 1000000), river_answer, "stop");
}

static void logit_bias_bans_tokens(void **state)
{
    (void)state;
    answer_t t = client_post(s, 200, "/v1/tokenize", "{s:s}", "text", " large");
    char id[24];
    snprintf(id, sizeof id, "%d", (int)int_at(t.json, "tokens.0"));
    answer_t a = post(
        json_with(chat(river), "{s:{s:i}, s:b}", "logit_bias", id, -100, "enable_thinking", 0));
    assert_null(strstr(content_of(&a), " large"));
    answer_clear(&a);
    answer_clear(&t);
}

/* ---- choices, seeds, log-probabilities ---- */

static void choices_differ_by_seed_and_repeat(void **state)
{
    (void)state;
    char *texts[2][3];
    for (int round = 0; round < 2; round++) {
        json_t *body = json_with(chat("Use the word river in a sentence."),
                                 "{s:f, s:i, s:i, s:b, s:i}", "temperature", 1.5, "seed", 11, "n",
                                 3, "enable_thinking", 0, "max_tokens", 40);
        answer_t a = post(body);
        assert_int_equal(json_array_size(json_at(a.json, "choices")), 3);
        for (int i = 0; i < 3; i++) {
            char at[48];
            snprintf(at, sizeof at, "choices.%d.message.content", i);
            texts[round][i] = strdup(text_at(a.json, at));
            snprintf(at, sizeof at, "choices.%d.index", i);
            assert_int_equal(int_at(a.json, at), i);
        }
        answer_clear(&a);
    }
    for (int i = 0; i < 3; i++) assert_string_equal(texts[0][i], texts[1][i]);
    assert_true(strcmp(texts[0][0], texts[0][1]) != 0 || strcmp(texts[0][1], texts[0][2]) != 0);
    for (int i = 0; i < 6; i++) free(texts[i / 3][i % 3]);
}

static void streamed_choices_are_complete(void **state)
{
    (void)state;
    answer_t a =
        post(json_with(chat(river), "{s:i, s:b, s:b}", "n", 6, "stream", 1, "enable_thinking", 0));
    json_t *events = client_events(&a);
    for (int i = 0; i < 6; i++) { /* more than run at once */
        char *content = joined(events, i, "content");
        assert_string_equal(content, river_answer);
        free(content);
    }
    json_decref(events);
    answer_clear(&a);
}

static void log_probabilities_cover_the_content(void **state)
{
    (void)state;
    for (int thinking = 0; thinking < 2; thinking++) {
        answer_t a =
            post(json_with(chat(river), "{s:b, s:i, s:b, s:s}", "logprobs", 1, "top_logprobs", 3,
                           "enable_thinking", thinking, "stop", " to a sea"));
        const json_t *list = json_at(a.json, "choices.0.logprobs.content");
        char text[256] = "";
        for (size_t i = 0; i < json_array_size(list); i++) {
            const json_t *t = json_array_get(list, i);
            strcat(text, text_at(t, "token"));
            double logprob = json_number_value(json_at(t, "logprob"));
            assert_true(logprob <= 0 && logprob > -20);
            assert_int_equal(json_array_size(json_at(t, "top_logprobs")), 3);
            assert_string_equal(text_at(t, "top_logprobs.0.token"),
                                text_at(t, "token")); /* greedy */
            double second = json_number_value(json_at(t, "top_logprobs.1.logprob"));
            assert_true(second <= logprob);
            assert_true(json_array_size(json_at(t, "bytes")) == strlen(text_at(t, "token")));
        }
        assert_string_equal(text, content_of(&a));
        answer_clear(&a);
    }
}

/* ---- tools ---- */

static json_t *weather(const char *question)
{
    return json_pack(
        "{s:[{s:s, s:s}], s:i, s:[{s:s, s:{s:s, s:s, s:{s:s, s:{s:{s:s}}, s:[s]}}}, {s:s, s:{s:s, "
        "s:{s:s, s:{}}}}]}",
        "messages", "role", "user", "content", question, "temperature", 0, "tools", "type",
        "function", "function", "name", "get_weather", "description", "Get the weather of a city.",
        "parameters", "type", "object", "properties", "city", "type", "string", "required", "city",
        "type", "function", "function", "name", "get_time", "parameters", "type", "object",
        "properties");
}

static void a_tool_is_called(void **state)
{
    (void)state;
    answer_t a = post(weather("What is the weather in Paris?"));
    assert_string_equal(text_at(a.json, "choices.0.finish_reason"), "tool_calls");
    assert_true(json_is_null(json_at(a.json, "choices.0.message.content")));
    assert_string_equal(text_at(a.json, "choices.0.message.tool_calls.0.type"), "function");
    assert_int_equal(strncmp(text_at(a.json, "choices.0.message.tool_calls.0.id"), "call_", 5), 0);
    assert_string_equal(text_at(a.json, "choices.0.message.tool_calls.0.function.name"),
                        "get_weather");
    assert_string_equal(text_at(a.json, "choices.0.message.tool_calls.0.function.arguments"),
                        "{\"city\": \"Paris\"}");
    answer_clear(&a);
}

static void streamed_calls_concatenate(void **state)
{
    (void)state;
    answer_t a = post(json_with(weather("What is the weather in Paris?"), "{s:b}", "stream", 1));
    json_t *events = client_events(&a);
    char arguments[256] = "", name[64] = "";
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *call = json_at(json_array_get(events, i), "choices.0.delta.tool_calls.0");
        if (!call) continue;
        assert_int_equal(int_at(call, "index"), 0);
        if (text_at(call, "function.name")) strcat(name, text_at(call, "function.name"));
        strcat(arguments, text_at(call, "function.arguments"));
    }
    assert_string_equal(name, "get_weather");
    assert_string_equal(arguments, "{\"city\": \"Paris\"}");
    json_decref(events);
    answer_clear(&a);
}

/* Wherever it is cut off: the pieces of the arguments are JSON together, and the same in a stream.
 */
static void cut_calls_are_json(void **state)
{
    (void)state;
    int n_cut = 0;
    for (int n = 1; n < 30; n++) {
        json_t *body = json_with(weather("What is the weather in Paris?"), "{s:i, s:b, s:[s,s]}",
                                 "max_tokens", n, "enable_thinking", 0, "stop", "Par", "city");
        answer_t a = post(json_deep_copy(body)), b = post(json_with(body, "{s:b}", "stream", 1));
        const char *whole = text_at(a.json, "choices.0.message.tool_calls.0.function.arguments");
        json_t *events = client_events(&b);
        char arguments[256] = "";
        for (size_t i = 0; i < json_array_size(events); i++) {
            const char *piece = text_at(json_array_get(events, i),
                                        "choices.0.delta.tool_calls.0.function.arguments");
            if (piece) strcat(arguments, piece);
        }
        assert_string_equal(arguments, whole ? whole : "");
        if (whole) {
            json_t *value = json_loads(whole, 0, NULL);
            if (!value) fail_msg("after %d tokens: %s", n, whole);
            json_decref(value);
            n_cut += strcmp(text_at(a.json, "choices.0.finish_reason"), "length") == 0;
        }
        json_decref(events);
        answer_clear(&a);
        answer_clear(&b);
    }
    assert_true(n_cut > 5);
}

static void tool_choice_is_kept_to(void **state)
{
    (void)state;
    /* Where the model would not call. */
    for (int thinking = 0; thinking < 2; thinking++) {
        answer_t a = post(json_with(weather(river), "{s:s, s:b}", "tool_choice", "required",
                                    "enable_thinking", thinking));
        assert_string_equal(text_at(a.json, "choices.0.finish_reason"), "tool_calls");
        answer_clear(&a);
        a = post(json_with(weather(river), "{s:{s:s, s:{s:s}}, s:b}", "tool_choice", "type",
                           "function", "function", "name", "get_time", "enable_thinking",
                           thinking));
        const json_t *calls = json_at(a.json, "choices.0.message.tool_calls");
        assert_int_equal(json_array_size(calls), 1);
        assert_string_equal(text_at(calls, "0.function.name"), "get_time");
        answer_clear(&a);
        /* Where it would. */
        a = post(json_with(weather("What is the weather in Paris?"), "{s:s, s:b}", "tool_choice",
                           "none", "enable_thinking", thinking));
        assert_null(json_at(a.json, "choices.0.message.tool_calls"));
        assert_null(strstr(content_of(&a), "<tool_call>"));
        answer_clear(&a);
    }
}

static void one_call_is_the_last_if_asked_for(void **state)
{
    (void)state;
    answer_t a = post(json_with(weather("What is the weather in Paris?"), "{s:b, s:s}",
                                "parallel_tool_calls", 0, "tool_choice", "required"));
    assert_int_equal(json_array_size(json_at(a.json, "choices.0.message.tool_calls")), 1);
    assert_string_equal(text_at(a.json, "choices.0.finish_reason"), "tool_calls");
    answer_clear(&a);
}

/* ---- other endpoints ---- */

static void text_completions_have_their_own_shape(void **state)
{
    (void)state;
    answer_t a = client_post(s, 200, "/v1/completions", "{s:s, s:i, s:i, s:i}", "prompt",
                             "A river is", "max_tokens", 4, "temperature", 0, "logprobs", 2);
    assert_string_equal(text_at(a.json, "object"), "text_completion");
    assert_string_equal(text_at(a.json, "choices.0.text"), " a large natural stream");
    assert_string_equal(text_at(a.json, "choices.0.finish_reason"), "length");
    assert_string_equal(text_at(a.json, "choices.0.logprobs.tokens.1"), " large");
    assert_int_equal(int_at(a.json, "choices.0.logprobs.text_offset.2"), 8);
    assert_int_equal(json_object_size(json_at(a.json, "choices.0.logprobs.top_logprobs.0")), 2);
    assert_int_equal(json_array_size(json_at(a.json, "choices.0.logprobs.token_logprobs")), 4);
    answer_clear(&a);
    a = client_post(s, 200, "/v1/completions", "{s:[s,s], s:i, s:i, s:b, s:b}", "prompt",
                    "A river is", "The sun", "max_tokens", 3, "temperature", 0, "echo", 1, "stream",
                    1);
    json_t *events = client_events(&a);
    char *text = joined(events, 0, "text"), *other = joined(events, 1, "text");
    assert_string_equal(text, "A river is a large natural");
    assert_int_equal(strncmp(other, "The sun ", 8), 0);
    free(text);
    free(other);
    json_decref(events);
    answer_clear(&a);
    a = client_post(s, 200, "/v1/tokenize", "{s:s}", "text", "A river is");
    json_t *ids = json_incref(json_at(a.json, "tokens"));
    answer_clear(&a);
    a = client_post(s, 200, "/v1/completions", "{s:o, s:i, s:i}", "prompt", ids, "max_tokens", 4,
                    "temperature", 0);
    assert_string_equal(text_at(a.json, "choices.0.text"), " a large natural stream");
    answer_clear(&a);
}

static void tokens_are_counted_and_turned_back(void **state)
{
    (void)state;
    answer_t a = client_post(s, 200, "/v1/tokenize", "{s:s}", "text", "Na\xc3\xafve <|im_end|>");
    answer_t b = client_post(s, 200, "/v1/tokenize", "{s:s, s:b}", "text",
                             "Na\xc3\xafve <|im_end|>", "text_only", 1);
    assert_true(int_at(a.json, "count") < int_at(b.json, "count"));
    answer_t back =
        client_post(s, 200, "/v1/detokenize", "{s:O}", "tokens", json_at(b.json, "tokens"));
    assert_string_equal(text_at(back.json, "text"), "Na\xc3\xafve <|im_end|>");
    answer_clear(&a);
    answer_clear(&b);
    answer_clear(&back);
    a = client_post_json(s, 200, "/v1/tokenize", chat(river));
    assert_int_equal(int_at(a.json, "count"), 15); /* usage.prompt_tokens of that chat */
    answer_clear(&a);
}

static void models_are_listed(void **state)
{
    (void)state;
    answer_t a = client_get(s, 200, "/v1/models");
    assert_string_equal(text_at(a.json, "object"), "list");
    assert_string_equal(text_at(a.json, "data.0.id"), "tiny");
    assert_string_equal(text_at(a.json, "data.1.id"), "gpt-tiny");
    assert_int_equal(int_at(a.json, "data.0.context_length"), 2048);
    answer_clear(&a);
    a = client_get(s, 200, "/v1/models/gpt-tiny");
    assert_string_equal(text_at(a.json, "id"), "gpt-tiny");
    answer_clear(&a);
    a = client_get(s, 404, "/v1/models/other");
    answer_clear(&a);
    a = client_get(s, 200, "/health");
    assert_string_equal(text_at(a.json, "status"), "ok");
    answer_clear(&a);
    assert_true(client_metric(s, "calla_generated_tokens_total") > 100);
    assert_true(client_metric(s, "calla_first_token_seconds_count") > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_has_openais_shape),
        cmocka_unit_test(a_stream_says_the_same_in_chunks),
        cmocka_unit_test(progress_is_told_on_request),
        cmocka_unit_test(thinking_is_switched_in_every_dialect),
        cmocka_unit_test(a_thinking_budget_ends_the_reasoning),
        cmocka_unit_test(stop_texts_end_the_content),
        cmocka_unit_test(lengths_end_it_too),
        cmocka_unit_test(logit_bias_bans_tokens),
        cmocka_unit_test(choices_differ_by_seed_and_repeat),
        cmocka_unit_test(streamed_choices_are_complete),
        cmocka_unit_test(log_probabilities_cover_the_content),
        cmocka_unit_test(a_tool_is_called),
        cmocka_unit_test(streamed_calls_concatenate),
        cmocka_unit_test(cut_calls_are_json),
        cmocka_unit_test(tool_choice_is_kept_to),
        cmocka_unit_test(one_call_is_the_last_if_asked_for),
        cmocka_unit_test(text_completions_have_their_own_shape),
        cmocka_unit_test(tokens_are_counted_and_turned_back),
        cmocka_unit_test(models_are_listed),
    };
    return cmocka_run_group_tests(tests, start, client_teardown);
}
