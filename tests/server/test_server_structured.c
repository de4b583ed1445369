/* response_format: answers are values of their schema, with all that requests can ask for beside
 * it. */
#include "server/client.h"
#include "support/json_validator.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char path[] = "/v1/chat/completions";
static const char person[] =
    "{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\", \"maxLength\": 20}, "
    "\"age\": {\"type\": \"integer\", \"minimum\": 0, \"maximum\": 150}, "
    "\"kind\": {\"enum\": [\"a\", \"b\"]}, \"tags\": {\"type\": \"array\", \"items\": "
    "{\"type\": \"string\", \"pattern\": \"^[a-z]{1,8}$\"}, \"maxItems\": 3}}, "
    "\"required\": [\"name\", \"age\", \"kind\"], \"additionalProperties\": false}";
static server *s;

static int start(void **state)
{
    (void)state;
    server_options options = client_options();
    s = client_start(&options);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    client_stop(s);
    return 0;
}

static json_t *schema_of(const char *text)
{
    json_t *schema = json_loads(text, 0, NULL);
    assert_non_null(schema);
    return schema;
}

/* A chat whose answer is to be of a schema. */
static json_t *ask(const char *schema)
{
    json_t *body = chat("What is a river?");
    json_object_set_new(body, "response_format",
                        json_pack("{s:s, s:{s:s, s:o, s:b}}", "type", "json_schema", "json_schema",
                                  "name", "it", "schema", schema_of(schema), "strict", 1));
    return body;
}

static json_t *with(json_t *body, const char *key, json_t *value)
{
    json_object_set_new(body, key, value);
    return body;
}

static void expect_valid(const char *content, const char *schema_text)
{
    json_t *schema = schema_of(schema_text);
    json_t *value = json_loads(content, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
    if (!value || !json_is_valid(value, schema, schema)) fail_msg("%s", content);
    json_decref(value);
    json_decref(schema);
}

static void an_answer_is_valid_behind_its_reasoning(void **state)
{
    (void)state;
    answer_t a = client_post_json(s, 200, path, ask(person));
    assert_non_null(strstr(text_at(a.json, "choices.0.message.reasoning_content"), "river"));
    expect_valid(content_of(&a), person);
    assert_string_equal(text_at(a.json, "choices.0.finish_reason"), "stop");
    answer_clear(&a);
    a = client_post_json(s, 200, path, with(ask(person), "enable_thinking", json_false()));
    expect_valid(content_of(&a), person);
    answer_clear(&a);
    a = client_post_json(s, 200, path, with(ask(person), "thinking_budget", json_integer(3)));
    expect_valid(content_of(&a), person);
    answer_clear(&a);
}

static void hot_answers_are_valid_and_come_with_all_the_rest(void **state)
{
    (void)state;
    for (int seed = 0; seed < 10; seed++) {
        json_t *body = ask(person);
        with(body, "temperature", json_real(2));
        with(body, "seed", json_integer(seed));
        with(body, "n", json_integer(4));
        with(body, "logprobs", json_true());
        with(body, "enable_thinking", json_boolean(seed % 2));
        with(body, "thinking_budget", json_integer(20));
        with(body, "max_tokens", json_integer(600));
        with(body, "logit_bias", json_pack("{s:i}", "120", 3));
        json_t *again = json_deep_copy(body);
        answer_t a = client_post_json(s, 200, path, body);
        answer_t b = client_post_json(s, 200, path, again);
        for (int i = 0; i < 4; i++) {
            char place[64];
            snprintf(place, sizeof place, "choices.%d.message.content", i);
            const char *content = text_at(a.json, place);
            assert_string_equal(content, text_at(b.json, place)); /* the same seed */
            snprintf(place, sizeof place, "choices.%d.finish_reason", i);
            assert_string_equal(text_at(a.json, place), "stop");
            expect_valid(content, person);
            snprintf(place, sizeof place, "choices.%d.logprobs.content", i);
            strbuf text = {0};
            const json_t *tokens = json_at(a.json, place);
            for (size_t k = 0; k < json_array_size(tokens); k++) {
                const json_t *token = json_array_get(tokens, k);
                assert_true(json_number_value(json_at(token, "logprob")) <= 0);
                strbuf_puts(&text, text_at(token, "token"));
            }
            assert_true(text.n > 0);
            strbuf_free(&text);
        }
        answer_clear(&a);
        answer_clear(&b);
    }
}

static void a_stream_says_the_same(void **state)
{
    (void)state;
    answer_t whole = client_post_json(s, 200, path, ask(person));
    answer_t a = client_post_json(s, 200, path, with(ask(person), "stream", json_true()));
    json_t *events = client_events(&a);
    char *content = joined(events, 0, "content");
    assert_string_equal(content, content_of(&whole));
    free(content);
    json_decref(events);
    answer_clear(&a);
    answer_clear(&whole);
}

static void too_few_tokens_end_with_length(void **state)
{
    (void)state;
    json_t *body = with(ask(person), "enable_thinking", json_false());
    answer_t a = client_post_json(s, 200, path, with(body, "max_tokens", json_integer(4)));
    assert_string_equal(text_at(a.json, "choices.0.finish_reason"), "length");
    assert_int_equal(content_of(&a)[0], '{');
    answer_clear(&a);
}

static void json_object_is_an_object(void **state)
{
    (void)state;
    json_t *body = chat("What is a river?");
    with(body, "response_format", json_pack("{s:s}", "type", "json_object"));
    answer_t a = client_post_json(s, 200, path, with(body, "max_tokens", json_integer(800)));
    if (strcmp(text_at(a.json, "choices.0.finish_reason"), "stop") == 0)
        expect_valid(content_of(&a), "{\"type\": \"object\"}");
    assert_int_equal(content_of(&a)[0], '{');
    answer_clear(&a);
}

static json_t *weather_tool(void)
{
    return json_pack("[{s:s, s:{s:s, s:s, s:{s:s, s:{s:{s:s}}, s:[s]}}}]", "type", "function",
                     "function", "name", "get_weather", "description", "Get the weather of a city.",
                     "parameters", "type", "object", "properties", "city", "type", "string",
                     "required", "city");
}

/* With tools the model may call one instead of answering. */
static void a_call_may_come_instead(void **state)
{
    (void)state;
    json_t *body = ask(person);
    json_object_update_new(body, chat("What is the weather in Paris?"));
    json_t *silent = json_deep_copy(body);
    answer_t a = client_post_json(s, 200, path, with(body, "tools", weather_tool()));
    assert_string_equal(text_at(a.json, "choices.0.finish_reason"), "tool_calls");
    assert_string_equal(text_at(a.json, "choices.0.message.tool_calls.0.function.name"),
                        "get_weather");
    answer_clear(&a);
    with(silent, "tool_choice", json_string("none"));
    a = client_post_json(s, 200, path, with(silent, "tools", weather_tool()));
    expect_valid(content_of(&a), person);
    answer_clear(&a);
}

/* What looks like a call inside a string is text. */
static void text_that_looks_like_a_call_stays_content(void **state)
{
    (void)state;
    static const char schema[] =
        "{\"const\": \"<tool_call>\\n<function=get_weather>\\n</function>\\n</tool_call>\"}";
    char call[16]; /* the token that begins one */
    answer_t t = client_post(s, 200, "/v1/tokenize", "{s:s}", "text", "<tool_call>");
    snprintf(call, sizeof call, "%d", (int)int_at(t.json, "tokens.0"));
    answer_clear(&t);
    json_t *body = with(ask(schema), "tools", weather_tool());
    with(body, "logit_bias", json_pack("{s:i}", call, -100));
    with(body, "enable_thinking", json_false());
    answer_t a = client_post_json(s, 200, path, body);
    expect_valid(content_of(&a), schema);
    assert_null(json_at(a.json, "choices.0.message.tool_calls"));
    answer_clear(&a);
}

/* ---- strict functions ---- */

static const char trip[] =
    "{\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\", \"maxLength\": 12}, "
    "\"days\": {\"type\": \"integer\", \"minimum\": 1, \"maximum\": 9}, "
    "\"by\": {\"enum\": [\"car\", \"train\"]}, "
    "\"note\": {\"anyOf\": [{\"type\": \"string\", \"maxLength\": 8}, {\"type\": \"null\"}]}, "
    "\"stops\": {\"type\": \"array\", \"items\": {\"type\": \"string\", \"pattern\": "
    "\"^[a-z]{1,8}$\"}, \"maxItems\": 3}}, "
    "\"required\": [\"city\", \"days\", \"by\", \"note\", \"stops\"], "
    "\"additionalProperties\": false}";

static json_t *strict_tool(const char *name)
{
    return json_pack("{s:s, s:{s:s, s:b, s:o}}", "type", "function", "function", "name", name,
                     "strict", 1, "parameters", schema_of(trip));
}

/* Calls of a hot answer, all of them of strict functions: gives their number. */
static size_t expect_valid_calls(json_t *message)
{
    const json_t *calls = json_object_get(message, "tool_calls");
    for (size_t i = 0; i < json_array_size(calls); i++)
        expect_valid(text_at(json_array_get(calls, i), "function.arguments"), trip);
    return json_array_size(calls);
}

static void strict_calls_have_valid_arguments(void **state)
{
    (void)state;
    for (int seed = 0; seed < 6; seed++) {
        json_t *body = chat("What is a river?");
        with(body, "tools", json_pack("[o, o]", strict_tool("plan"), strict_tool("plan_again")));
        with(body, "tool_choice", json_string("required"));
        with(body, "parallel_tool_calls", json_false());
        with(body, "temperature", json_real(2));
        with(body, "seed", json_integer(seed));
        with(body, "n", json_integer(2));
        with(body, "enable_thinking", json_boolean(seed % 2));
        with(body, "thinking_budget", json_integer(20));
        answer_t a = client_post_json(s, 200, path, body);
        for (int i = 0; i < 2; i++) {
            char place[64];
            snprintf(place, sizeof place, "choices.%d.message", i);
            assert_int_equal(expect_valid_calls((json_t *)json_at(a.json, place)), 1);
            snprintf(place, sizeof place, "choices.%d.finish_reason", i);
            assert_string_equal(text_at(a.json, place), "tool_calls");
        }
        answer_clear(&a);
    }
}

/* Where the model may call, a call that it begins is held to the form, with its own arguments. */
/* However few tokens there are, the beginning of a call that has to come is no content. */
static void a_required_call_that_breaks_off_is_no_content(void **state)
{
    (void)state;
    int n_begun = 0, n_not = 0;
    for (int n = 1; n < 24; n++) {
        json_t *body = chat("What is a river?");
        with(body, "tools", json_pack("[o]", strict_tool("plan")));
        with(body, "tool_choice", json_string("required"));
        with(body, "enable_thinking", json_false());
        with(body, "max_tokens", json_integer(n));
        answer_t a = client_post_json(s, 200, path, body);
        const json_t *message = json_at(a.json, "choices.0.message");
        const char *content = json_string_value(json_object_get(message, "content"));
        if (content) assert_string_equal(content, "");
        assert_string_equal(text_at(a.json, "choices.0.finish_reason"), "length");
        json_object_get(message, "tool_calls") ? n_begun++ : n_not++;
        answer_clear(&a);
    }
    assert_true(n_begun > 0 && n_not > 0);
}

static void strict_calls_of_the_models_choice_are_valid(void **state)
{
    (void)state;
    json_t *weather = weather_tool();
    json_object_set_new(json_object_get(json_array_get(weather, 0), "function"), "strict",
                        json_true());
    json_t *body = with(chat("What is the weather in Paris?"), "tools", weather);
    json_t *streamed = with(json_deep_copy(body), "stream", json_true());
    answer_t a = client_post_json(s, 200, path, body);
    assert_string_equal(text_at(a.json, "choices.0.message.tool_calls.0.function.arguments"),
                        "{\"city\": \"Paris\"}");
    assert_string_equal(text_at(a.json, "choices.0.finish_reason"), "tool_calls");
    answer_clear(&a);
    a = client_post_json(s, 200, path, streamed);
    json_t *events = client_events(&a);
    strbuf arguments = {0};
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *part =
            json_at(json_array_get(events, i), "choices.0.delta.tool_calls.0.function.arguments");
        if (part) strbuf_puts(&arguments, json_string_value(part));
    }
    assert_string_equal(arguments.data, "{\"city\": \"Paris\"}");
    strbuf_free(&arguments);
    json_decref(events);
    answer_clear(&a);
    char call[16];
    answer_t t = client_post(s, 200, "/v1/tokenize", "{s:s}", "text", "<tool_call>");
    snprintf(call, sizeof call, "%d", (int)int_at(t.json, "tokens.0"));
    answer_clear(&t);
    for (int seed = 0; seed < 4; seed++) { /* a model that calls what it does not know */
        body = with(chat("What is a river?"), "tools", json_pack("[o]", strict_tool("plan")));
        with(body, "logit_bias", json_pack("{s:i}", call, 30));
        with(body, "parallel_tool_calls", json_false());
        with(body, "enable_thinking", json_false());
        with(body, "temperature", json_real(1.5));
        with(body, "seed", json_integer(seed));
        a = client_post_json(s, 200, path, body);
        assert_int_equal(expect_valid_calls((json_t *)json_at(a.json, "choices.0.message")), 1);
        answer_clear(&a);
    }
    /* Beside a format of the content. */
    body = with(ask(person), "tools", json_pack("[o]", strict_tool("plan")));
    with(body, "logit_bias", json_pack("{s:i}", call, 30));
    with(body, "enable_thinking", json_false());
    with(body, "parallel_tool_calls", json_false());
    a = client_post_json(s, 200, path, body);
    assert_int_equal(expect_valid_calls((json_t *)json_at(a.json, "choices.0.message")), 1);
    answer_clear(&a);
}

static void refuse(json_t *format, const char *param)
{
    json_t *body = with(chat("What is a river?"), "response_format", format);
    answer_t a = client_post_json(s, 400, path, body);
    assert_string_equal(text_at(a.json, "error.param"), param);
    assert_string_equal(text_at(a.json, "error.type"), "invalid_request_error");
    answer_clear(&a);
}

static void refuse_schema(const char *schema, const char *param)
{
    refuse(json_pack("{s:s, s:{s:s, s:o}}", "type", "json_schema", "json_schema", "name", "it",
                     "schema", schema_of(schema)),
           param);
}

static void what_is_wrong_is_named(void **state)
{
    (void)state;
#define SCHEMA "response_format.json_schema.schema"
    refuse(json_pack("{s:s}", "type", "yaml"), "response_format.type");
    refuse(json_object(), "response_format");
    refuse(json_pack("{s:s}", "type", "json_schema"), SCHEMA);
    refuse(json_pack("{s:s, s:{s:s, s:i}}", "type", "json_schema", "json_schema", "name", "it",
                     "schema", 1),
           SCHEMA);
    refuse(json_pack("{s:s, s:{s:i}}", "type", "json_schema", "json_schema", "more", 1),
           "response_format.json_schema.more");
    refuse_schema("{\"not\": {}}", SCHEMA ".not");
    refuse_schema("{\"properties\": {\"a\": {\"items\": {\"contains\": 1}}}}",
                  SCHEMA ".properties.a.items.contains");
    refuse_schema("{\"anyOf\": [{}, {\"type\": \"x\"}]}", SCHEMA ".anyOf[1].type");
    refuse_schema("{\"enum\": [1], \"type\": \"string\"}", SCHEMA);
#undef SCHEMA
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_is_valid_behind_its_reasoning),
        cmocka_unit_test(hot_answers_are_valid_and_come_with_all_the_rest),
        cmocka_unit_test(a_stream_says_the_same),
        cmocka_unit_test(too_few_tokens_end_with_length),
        cmocka_unit_test(json_object_is_an_object),
        cmocka_unit_test(a_call_may_come_instead),
        cmocka_unit_test(text_that_looks_like_a_call_stays_content),
        cmocka_unit_test(strict_calls_have_valid_arguments),
        cmocka_unit_test(a_required_call_that_breaks_off_is_no_content),
        cmocka_unit_test(strict_calls_of_the_models_choice_are_valid),
        cmocka_unit_test(what_is_wrong_is_named),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
