/* What is refused, with which status, and that the error names the field. */
#include "server/client.h"

#include <stdlib.h>
#include <string.h>

static const char chat_path[] = "/v1/chat/completions";
static server *s;

static int start(void **state)
{
    server_options options = client_options();
    options.engine.n_ctx = 200;
    options.max_body_bytes = 100000;
    *state = s = client_start(&options);
    return 0;
}

/* Sends a text and expects an error of OpenAI's shape; param NULL = null. */
static void expect(const char *path, const char *body, long status, const char *param,
                   const char *code)
{
    answer_t a = client_send(s, &(request_t){.path = path, .body = body});
    const json_t *error = json_at(a.json, "error");
    if (a.status != status || !error)
        fail_msg("%s: status %ld instead of %ld: %s", body, a.status, status, a.body);
    assert_true(strlen(text_at(error, "message")) > 0);
    assert_non_null(text_at(error, "type"));
    const char *got = text_at(error, "param");
    if ((got == NULL) != (param == NULL) || (got && strcmp(got, param) != 0))
        fail_msg("%s: param %s instead of %s", body, got ? got : "null", param ? param : "null");
    if (code && (!text_at(error, "code") || strcmp(text_at(error, "code"), code) != 0))
        fail_msg("%s: code %s instead of %s", body, text_at(error, "code"), code);
    answer_clear(&a);
}

/* A chat with one more field is refused by that name. */
static void expect_field(const char *field, const char *param, const char *code)
{
    char body[1024];
    snprintf(body, sizeof body, "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], %s}",
             field);
    expect(chat_path, body, 400, param, code);
}

static void fields_are_honoured_or_refused_by_name(void **state)
{
    (void)state;
    static const char *const cases[][3] = {
        {"\"foo\": 1", "foo", "unknown_parameter"},
        {"\"temperature\": 3", "temperature", "invalid_value"},
        {"\"temperature\": \"hot\"", "temperature", "invalid_value"},
        {"\"top_p\": -0.1", "top_p", "invalid_value"},
        {"\"top_k\": 1.5", "top_k", "invalid_value"},
        {"\"min_p\": 2", "min_p", "invalid_value"},
        {"\"presence_penalty\": 5", "presence_penalty", "invalid_value"},
        {"\"frequency_penalty\": -5", "frequency_penalty", "invalid_value"},
        {"\"repetition_penalty\": 0", "repetition_penalty", "invalid_value"},
        {"\"seed\": 1.5", "seed", "invalid_value"},
        {"\"n\": 0", "n", "invalid_value"},
        {"\"n\": 1000", "n", "invalid_value"},
        {"\"max_tokens\": 0", "max_tokens", "invalid_value"},
        {"\"max_tokens\": 5, \"max_completion_tokens\": 6", "max_tokens", "invalid_value"},
        {"\"stop\": \"\"", "stop", "invalid_value"},
        {"\"stop\": [1]", "stop", "invalid_value"},
        {"\"stop\": \"a\\u0000b\"", "stop", "invalid_value"},
        {"\"stream\": 1", "stream", "invalid_value"},
        {"\"stream_options\": {\"include_usage\": true}", "stream_options", "invalid_value"},
        {"\"stream\": true, \"stream_options\": {\"x\": 1}", "stream_options.x",
         "unknown_parameter"},
        {"\"logit_bias\": {\"x\": 1}", "logit_bias", "invalid_value"},
        {"\"logit_bias\": {\"999999\": 1}", "logit_bias", "invalid_value"},
        {"\"logit_bias\": {\"1\": 101}", "logit_bias", "invalid_value"},
        {"\"logit_bias\": {\" 1\": 1}", "logit_bias", "invalid_value"},
        {"\"logit_bias\": {\"+1\": 1}", "logit_bias", "invalid_value"},
        {"\"logit_bias\": {\"01\": 1}", "logit_bias", "invalid_value"},
        {"\"logit_bias\": {\"-0\": 1}", "logit_bias", "invalid_value"},
        {"\"logit_bias\": {\"99999999999999999999\": 1}", "logit_bias", "invalid_value"},
        {"\"n\": 1, \"n\": 1", NULL, "invalid_json"},
        {"\"top_logprobs\": 3", "top_logprobs", "invalid_value"},
        {"\"logprobs\": true, \"top_logprobs\": 21", "top_logprobs", "invalid_value"},
        {"\"logprobs\": 3", "logprobs", "invalid_value"},
        {"\"reasoning_effort\": \"huge\"", "reasoning_effort", "invalid_value"},
        {"\"chat_template_kwargs\": {\"x\": 1}", "chat_template_kwargs.x", "unknown_parameter"},
        {"\"chat_template_kwargs\": {\"enable_thinking\": 1}",
         "chat_template_kwargs.enable_thinking", "invalid_value"},
        {"\"thinking\": {\"type\": \"maybe\"}", "thinking.type", "invalid_value"},
        {"\"thinking_budget\": -1", "thinking_budget", "invalid_value"},
        {"\"response_format\": {\"type\": \"grammar\"}", "response_format.type", "invalid_value"},
        {"\"response_format\": {\"type\": \"json_schema\"}", "response_format.json_schema.schema",
         "invalid_value"},
        {"\"modalities\": [\"audio\"]", "modalities", "invalid_value"},
        {"\"audio\": {}", "audio", "unsupported_parameter"},
        {"\"prediction\": {}", "prediction", "unsupported_parameter"},
        {"\"functions\": []", "functions", "unsupported_parameter"},
        {"\"store\": true", "store", "unsupported_parameter"},
        {"\"service_tier\": \"flex\"", "service_tier", "invalid_value"},
        {"\"metadata\": 3", "metadata", "invalid_value"},
        {"\"user\": 3", "user", "invalid_value"},
        {"\"tools\": {}", "tools", "invalid_value"},
        {"\"tools\": [{\"type\": \"web_search\"}]", "tools[0].type", "unsupported_value"},
        {"\"tools\": [{\"type\": \"function\"}]", "tools[0].function", "invalid_value"},
        {"\"tools\": [{\"type\": \"function\", \"function\": {}}]", "tools[0].function.name",
         "invalid_value"},
        {"\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"a>b\"}}]",
         "tools[0].function.name", "invalid_value"},
        {"\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"a\", \"strict\": "
         "1}}]",
         "tools[0].function.strict", "invalid_value"},
        {"\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"a\", \"strict\": "
         "true, \"parameters\": {\"properties\": {\"b\": {\"not\": {}}}}}}]",
         "tools[0].function.parameters.properties.b.not", "invalid_value"},
        {"\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"a\"}}, {\"type\": "
         "\"function\", \"function\": {\"name\": \"a\"}}]",
         "tools[1].function.name", "invalid_value"},
        {"\"tool_choice\": \"required\"", "tool_choice", "invalid_value"},
        {"\"tool_choice\": \"some\"", "tool_choice", "invalid_value"},
        {"\"tool_choice\": {\"type\": \"function\"}", "tool_choice", "invalid_value"},
        {"\"parallel_tool_calls\": \"no\"", "parallel_tool_calls", "invalid_value"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_field(cases[i][0], cases[i][1], cases[i][2]);
    expect(chat_path,
           "{\"model\": \"gpt-4\", \"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}", 404,
           "model", "model_not_found");
}

static void null_is_absent(void **state)
{
    (void)state;
    answer_t a = client_post(
        s, 200, chat_path,
        "{s:[{s:s, s:s, s:n, s:n}], s:i, s:n, s:n, s:n, s:n, s:n, s:n, s:n, s:b, s:s, s:{s:s}}",
        "messages", "role", "user", "content", "Hi", "name", "tool_calls", "max_tokens", 1, "stop",
        "tools", "temperature", "response_format", "stream_options", "logit_bias", "functions",
        "store", 0, "prompt_cache_key", "k", "metadata", "a", "b");
    answer_clear(&a);
}

static void messages_are_checked(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"{}", "messages"},
        {"{\"messages\": 3}", "messages"},
        {"{\"messages\": []}", "messages"},
        {"{\"messages\": [3]}", "messages[0]"},
        {"{\"messages\": [{\"role\": \"robot\", \"content\": \"x\"}]}", "messages[0].role"},
        {"{\"messages\": [{\"role\": null, \"content\": \"x\"}]}", "messages[0].role"},
        {"{\"messages\": [{\"content\": \"x\"}]}", "messages[0].role"},
        {"{\"messages\": [{\"role\": 3, \"content\": \"x\"}]}", "messages[0].role"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"x\", \"foo\": 1}]}",
         "messages[0].foo"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\", "
         "\"image_url\": {\"url\": \"x\"}}]}]}",
         "messages[0].content[0]"},
        {"{\"messages\": [{\"role\": \"system\", \"content\": \"x\"}]}", "messages"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}, {\"role\": \"assistant\", "
         "\"tool_calls\": [{\"type\": \"custom\"}]}]}",
         "messages[1].tool_calls[0].type"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect(chat_path, cases[i][0], 400, cases[i][1], NULL);
}

static void bodies_are_checked(void **state)
{
    (void)state;
    expect(chat_path, "", 400, NULL, "invalid_json");
    expect(chat_path, "{", 400, NULL, "invalid_json");
    expect(chat_path, "[]", 400, NULL, NULL);
    expect(chat_path, "{\"a\": \"\xff\"}", 400, NULL, "invalid_json");
    static const char *const broken[] = {
        "NaN",          "1e999",   "\"\\ud800\"", "\"\\udc00x\"", "\"\xed\xa0\x80\"",
        "\"\xc0\xaf\"", "1 /* */", "01",          "1}{"};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        char body[64];
        snprintf(body, sizeof body, "{\"n\": %s}", broken[i]);
        expect(chat_path, body, 400, NULL, "invalid_json");
    }
    char deep[1200] = "{\"metadata\": ";
    for (int i = 0; i < 500; i++) strcat(deep, "[");
    expect(chat_path, deep, 400, NULL, "invalid_json");
    char *large = malloc(200001);
    memset(large, ' ', 200000);
    large[200000] = '\0';
    expect(chat_path, large, 413, NULL, "request_too_large");
    /* Without saying beforehand how long it is. */
    answer_t a = client_send(
        s,
        &(request_t){.path = chat_path, .body = large, .headers = {"Transfer-Encoding: chunked"}});
    assert_int_equal(a.status, 413);
    answer_clear(&a);
    free(large);
    a = client_send(s, &(request_t){.path = chat_path, .body = "{}", .no_content_type = true});
    assert_int_equal(a.status, 415);
    answer_clear(&a);
    a = client_send(s, &(request_t){.path = chat_path,
                                    .body = "{}",
                                    .no_content_type = true,
                                    .headers = {"Content-Type: text/plain"}});
    assert_int_equal(a.status, 415);
    answer_clear(&a);
}

static void paths_and_methods_are_checked(void **state)
{
    (void)state;
    expect("/", NULL, 404, NULL, "unknown_url");
    expect("/v1/chat/completions/x", "{}", 404, NULL, "unknown_url");
    expect("/v1/chat/completions", NULL, 405, NULL, "method_not_allowed");
    answer_t a = client_send(s, &(request_t){.path = "/v1/models", .method = "DELETE"});
    assert_int_equal(a.status, 405);
    assert_non_null(strstr(a.headers, "Allow: GET"));
    answer_clear(&a);
    char url[1000] = "/";
    memset(url + 1, 'a', 900);
    expect(url, NULL, 404, NULL, "unknown_url");
}

static void a_full_context_is_said_in_openais_words(void **state)
{
    (void)state;
    char text[2000] = "";
    for (int i = 0; i < 300; i++) strcat(text, "word ");
    answer_t a = client_post(s, 400, chat_path, "{s:[{s:s, s:s}], s:i}", "messages", "role", "user",
                             "content", text, "max_tokens", 10);
    assert_string_equal(text_at(a.json, "error.code"), "context_length_exceeded");
    const char *message = text_at(a.json, "error.message");
    int ctx, requested, prompt, completion;
    assert_int_equal(sscanf(message,
                            "This model's maximum context length is %d tokens. However, you "
                            "requested %d tokens (%d in the messages, %d in the completion).",
                            &ctx, &requested, &prompt, &completion),
                     4);
    assert_int_equal(ctx, 200);
    assert_int_equal(completion, 10);
    assert_int_equal(requested, prompt + completion);
    assert_true(prompt > 300);
    answer_clear(&a);
    a = client_post(s, 400, "/v1/completions", "{s:s, s:i}", "prompt", text, "max_tokens", 10);
    assert_string_equal(text_at(a.json, "error.code"), "context_length_exceeded");
    assert_non_null(
        strstr(text_at(a.json, "error.message"), " in the prompt, 10 in the completion"));
    answer_clear(&a);
    /* What fits is not refused; the answer ends at the edge. */
    text[5 * 150] = '\0';
    a = client_post(s, 200, chat_path, "{s:[{s:s, s:s}], s:i, s:i}", "messages", "role", "user",
                    "content", text, "max_tokens", 1000, "temperature", 0);
    int64_t n = int_at(a.json, "usage.total_tokens");
    if (n == 200) assert_string_equal(text_at(a.json, "choices.0.finish_reason"), "length");
    assert_true(n <= 200);
    answer_clear(&a);
}

static void completions_and_tokens_are_checked(void **state)
{
    (void)state;
    expect("/v1/completions", "{}", 400, "prompt", NULL);
    expect("/v1/completions", "{\"prompt\": \"\"}", 400, "prompt", NULL);
    expect("/v1/completions", "{\"prompt\": []}", 400, "prompt", NULL);
    expect("/v1/completions", "{\"prompt\": [1, \"a\"]}", 400, "prompt", NULL);
    expect("/v1/completions", "{\"prompt\": [99999]}", 400, "prompt", NULL);
    expect("/v1/completions", "{\"prompt\": {}}", 400, "prompt", NULL);
    expect("/v1/completions", "{\"prompt\": \"a\", \"suffix\": \"b\"}", 400, "suffix", NULL);
    expect("/v1/completions", "{\"prompt\": \"a\", \"best_of\": 3}", 400, "best_of", NULL);
    expect("/v1/completions", "{\"prompt\": \"a\", \"messages\": []}", 400, "messages", NULL);
    expect("/v1/tokenize", "{}", 400, "text", NULL);
    expect("/v1/tokenize", "{\"text\": 3}", 400, "text", NULL);
    expect("/v1/detokenize", "{\"tokens\": [-1]}", 400, "tokens", NULL);
    expect("/v1/detokenize", "{\"tokens\": 3}", 400, "tokens", NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fields_are_honoured_or_refused_by_name),
        cmocka_unit_test(null_is_absent),
        cmocka_unit_test(messages_are_checked),
        cmocka_unit_test(bodies_are_checked),
        cmocka_unit_test(paths_and_methods_are_checked),
        cmocka_unit_test(a_full_context_is_said_in_openais_words),
        cmocka_unit_test(completions_and_tokens_are_checked),
    };
    return cmocka_run_group_tests(tests, start, client_teardown);
}
