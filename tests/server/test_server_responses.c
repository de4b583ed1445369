/* POST /v1/responses: what requests ask for and what they get, and that the prompt cache serves it
 * as it serves chats. */
#include "server/client.h"
#include "server/response_events.h"

#include <stdlib.h>
#include <string.h>

static const char path[] = "/v1/responses";
static const char question[] = "What is the weather in Paris?";
static server *s;

static int start(void **state)
{
    server_options options = client_options();
    *state = s = client_start(&options);
    return 0;
}

/* ---- requests ---- */

static json_t *ask(const char *input)
{
    return json_pack("{s:s, s:i}", "input", input, "temperature", 0);
}

/* With the two functions that models/tiny knows, flat or in chat's form. */
static json_t *with_tools(json_t *body, bool flat)
{
    static const char *const names[] = {"get_weather", "get_time"};
    json_t *tools = json_array();
    for (int i = 0; i < 2; i++) {
        json_t *function =
            json_pack("{s:s, s:s, s:{s:s, s:{s:{s:s}}, s:[s]}}", "name", names[i], "description",
                      "Get something of a city.", "parameters", "type", "object", "properties",
                      "city", "type", "string", "required", "city");
        json_t *tool = json_pack("{s:s}", "type", "function");
        if (flat) {
            json_object_update(tool, function);
            json_object_set_new(tool, "strict", json_false());
            json_decref(function);
        } else {
            json_object_set_new(tool, "function", function);
        }
        json_array_append_new(tools, tool);
    }
    return json_with(body, "{s:o}", "tools", tools);
}

static answer_t post(json_t *body)
{
    return client_post_json(s, 200, path, body);
}

/* The events of a streamed request. */
static json_t *stream(json_t *body)
{
    answer_t a = post(json_with(body, "{s:b}", "stream", 1));
    assert_non_null(strstr(a.headers, "Content-Type: text/event-stream"));
    json_t *events = response_events(a.body);
    answer_clear(&a);
    return events;
}

static void expect_text(const json_t *response, const char *expected)
{
    char *text = response_text(response);
    assert_string_equal(text, expected);
    free(text);
}

/* ---- shape ---- */

static void a_response_has_its_shape(void **state)
{
    (void)state;
    answer_t a = post(json_with(ask(river), "{s:s, s:s, s:{s:s}, s:s}", "instructions", "Be short.",
                                "user", "me", "metadata", "a", "b", "prompt_cache_key", "k"));
    const json_t *r = a.json;
    assert_int_equal(strncmp(text_at(r, "id"), "resp_", 5), 0);
    assert_string_equal(text_at(r, "object"), "response");
    assert_string_equal(text_at(r, "status"), "completed");
    assert_string_equal(text_at(r, "model"), "tiny");
    assert_true(int_at(r, "created_at") > 1700000000);
    static const char *const nulls[] = {"error",
                                        "incomplete_details",
                                        "previous_response_id",
                                        "max_output_tokens",
                                        "reasoning.effort",
                                        "safety_identifier"};
    for (size_t i = 0; i < sizeof nulls / sizeof *nulls; i++)
        if (!json_is_null(json_at(r, nulls[i]))) fail_msg("%s is not null", nulls[i]);
    assert_true(json_is_false(json_at(r, "store")));
    assert_string_equal(text_at(r, "instructions"), "Be short.");
    assert_string_equal(text_at(r, "metadata.a"), "b");
    assert_string_equal(text_at(r, "user"), "me");
    assert_string_equal(text_at(r, "prompt_cache_key"), "k");
    assert_string_equal(text_at(r, "text.format.type"), "text");
    assert_string_equal(text_at(r, "tool_choice"), "auto");
    assert_int_equal(int_at(r, "temperature"), 0);
    assert_null(json_at(r, "calla"));
    answer_clear(&a);
    a = post(ask(river));
    r = a.json;
    assert_int_equal(json_array_size(json_at(r, "output")), 2);
    assert_int_equal(strncmp(text_at(r, "output.0.id"), "rs_", 3), 0);
    assert_string_equal(text_at(r, "output.0.type"), "reasoning");
    assert_int_equal(json_array_size(json_at(r, "output.0.summary")), 0);
    assert_non_null(strstr(text_at(r, "output.0.content.0.text"), "I will explain it"));
    assert_int_equal(strncmp(text_at(r, "output.1.id"), "msg_", 4), 0);
    assert_string_equal(text_at(r, "output.1.role"), "assistant");
    assert_string_equal(text_at(r, "output.1.content.0.text"), river_answer);
    assert_int_equal(int_at(r, "usage.input_tokens"), 15);
    assert_int_equal(int_at(r, "usage.output_tokens"), 54);
    assert_int_equal(int_at(r, "usage.total_tokens"), 69);
    assert_int_equal(int_at(r, "usage.output_tokens_details.reasoning_tokens"), 32);
    assert_true(json_is_integer(json_at(r, "usage.input_tokens_details.cached_tokens")));
    assert_true(json_is_real(json_at(r, "timings.decode_tokens_per_s")));
    answer_clear(&a);
}

/* Whatever was asked for, a stream has the same items. */
static void a_stream_says_the_same(void **state)
{
    (void)state;
    json_t *bodies[] = {
        ask(river),
        json_with(ask(river), "{s:i}", "max_output_tokens", 20),
        json_with(ask(river), "{s:i}", "max_output_tokens", 40),
        with_tools(ask(question), true),
        json_with(with_tools(ask(question), true), "{s:i, s:b}", "max_output_tokens", 20,
                  "enable_thinking", 0),
        json_with(ask(river), "{s:[s], s:i}", "include", "message.output_text.logprobs",
                  "top_logprobs", 2),
        json_with(ask(river), "{s:{s:s}, s:s}", "reasoning", "effort", "none", "stop", " of water"),
    };
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        answer_t a = post(json_deep_copy(bodies[i]));
        json_t *events = stream(bodies[i]);
        json_t *response = response_of(events, text_at(a.json, "status"));
        response_make_plain(response);
        response_make_plain(a.json);
        if (!json_equal(response, a.json))
            fail_msg("%s instead of %s", json_dumps(response, 0), json_dumps(a.json, 0));
        json_decref(events);
        answer_clear(&a);
    }
}

static void lengths_make_it_incomplete(void **state)
{
    (void)state;
    answer_t a = post(json_with(ask(river), "{s:i, s:{s:s}}", "max_output_tokens", 5, "reasoning",
                                "effort", "none"));
    assert_string_equal(text_at(a.json, "status"), "incomplete");
    assert_string_equal(text_at(a.json, "incomplete_details.reason"), "max_output_tokens");
    assert_int_equal(int_at(a.json, "max_output_tokens"), 5);
    assert_string_equal(text_at(a.json, "output.0.status"), "incomplete");
    expect_text(a.json, "A river is a large");
    answer_clear(&a);
}

static void log_probabilities_come_on_request(void **state)
{
    (void)state;
    answer_t a =
        post(json_with(ask(river), "{s:[s,s], s:i}", "include", "reasoning.encrypted_content",
                       "message.output_text.logprobs", "top_logprobs", 3));
    const json_t *list = json_at(a.json, "output.1.content.0.logprobs");
    char text[256] = "";
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *t = json_array_get(list, i);
        strcat(text, text_at(t, "token"));
        assert_int_equal(json_array_size(json_at(t, "top_logprobs")), 3);
        assert_true(json_number_value(json_at(t, "logprob")) <= 0);
    }
    assert_string_equal(text, river_answer);
    answer_clear(&a);
}

static void progress_is_told_on_request(void **state)
{
    (void)state;
    char text[3000] = "Tell me more.";
    while (strlen(text) < 2900) strcat(text, " And more.");
    json_t *events =
        stream(json_with(ask(text), "{s:{s:b, s:b}, s:i}", "stream_options", "include_progress", 1,
                         "include_obfuscation", 0, "max_output_tokens", 1));
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
}

static void answers_are_of_a_schema(void **state)
{
    (void)state;
    answer_t a = post(json_with(
        ask(river), "{s:{s:{s:s, s:s, s:{s:s, s:{s:{s:[s,s]}}, s:[s], s:b}}}}", "text", "format",
        "type", "json_schema", "name", "it", "schema", "type", "object", "properties", "kind",
        "enum", "lake", "stream", "required", "kind", "additionalProperties", 0));
    char *text = response_text(a.json);
    json_t *value = json_loads(text, 0, NULL);
    const char *kind = text_at(value, "kind");
    assert_true(strcmp(kind, "lake") == 0 || strcmp(kind, "stream") == 0);
    assert_string_equal(text_at(a.json, "text.format.name"), "it");
    json_decref(value);
    free(text);
    answer_clear(&a);
    a = post(json_with(ask(river), "{s:{s:{s:s}}, s:i}", "text", "format", "type", "json_object",
                       "max_output_tokens", 60));
    text = response_text(a.json);
    assert_true(*text == '{' || *text == '\0');
    free(text);
    answer_clear(&a);
}

/* ---- tools ---- */

static void a_tool_is_called(void **state)
{
    (void)state;
    answer_t a = post(with_tools(ask(question), true));
    const json_t *call = response_call(a.json, 0);
    assert_string_equal(text_at(a.json, "status"), "completed");
    assert_string_equal(text_at(call, "name"), "get_weather");
    assert_string_equal(text_at(call, "arguments"), "{\"city\": \"Paris\"}");
    assert_string_equal(text_at(call, "status"), "completed");
    assert_int_equal(strncmp(text_at(call, "id"), "fc_", 3), 0);
    assert_int_equal(strncmp(text_at(call, "call_id"), "call_", 5), 0);
    assert_int_equal(json_array_size(json_at(a.json, "tools")), 2);
    answer_clear(&a);
}

static void tool_choice_is_kept_to(void **state)
{
    (void)state;
    for (int thinking = 0; thinking < 2; thinking++) {
        answer_t a = post(json_with(with_tools(ask(river), true), "{s:s, s:b}", "tool_choice",
                                    "required", "enable_thinking", thinking));
        assert_non_null(response_call(a.json, 0));
        answer_clear(&a);
        a = post(json_with(with_tools(ask(question), true), "{s:{s:s, s:s}, s:b}", "tool_choice",
                           "type", "function", "name", "get_time", "enable_thinking", thinking));
        assert_string_equal(text_at(response_call(a.json, 0), "name"), "get_time");
        assert_null(response_call(a.json, 1));
        answer_clear(&a);
        a = post(json_with(with_tools(ask(question), true), "{s:s, s:b}", "tool_choice", "none",
                           "enable_thinking", thinking));
        assert_null(response_call(a.json, 0));
        answer_clear(&a);
        static const char *const modes[] = {"auto", "required"};
        for (int i = 0; i < 2; i++) { /* it would call the other one */
            a = post(json_with(with_tools(ask(question), true),
                               "{s:{s:s, s:s, s:[{s:s, s:s}]}, s:b}", "tool_choice", "type",
                               "allowed_tools", "mode", modes[i], "tools", "type", "function",
                               "name", "get_time", "enable_thinking", thinking));
            assert_string_equal(text_at(response_call(a.json, 0), "name"), "get_time");
            answer_clear(&a);
        }
    }
    answer_t a = post(json_with(with_tools(ask(question), true), "{s:b, s:s}",
                                "parallel_tool_calls", 0, "tool_choice", "required"));
    assert_null(response_call(a.json, 1));
    assert_true(json_is_false(json_at(a.json, "parallel_tool_calls")));
    answer_clear(&a);
}

static void a_strict_function_gets_what_it_asks_for(void **state)
{
    (void)state;
    for (int seed = 0; seed < 3; seed++) {
        answer_t a = post(
            json_with(ask(river),
                      "{s:[{s:s, s:s, s:b, s:{s:s, s:{s:{s:[s,s]}}, s:[s], s:b}}], s:s, s:f, s:i}",
                      "tools", "type", "function", "name", "pick", "strict", 1, "parameters",
                      "type", "object", "properties", "size", "enum", "small", "large", "required",
                      "size", "additionalProperties", 0, "tool_choice", "required", "temperature",
                      1.5, "seed", seed));
        json_t *arguments = json_loads(text_at(response_call(a.json, 0), "arguments"), 0, NULL);
        const char *size = text_at(arguments, "size");
        assert_true(strcmp(size, "small") == 0 || strcmp(size, "large") == 0);
        json_decref(arguments);
        answer_clear(&a);
    }
}

/* What is no function is for somebody else; it is named, and does not change the prompt. */
static void other_tools_are_ignored(void **state)
{
    (void)state;
    json_t *body = with_tools(ask(question), true), *tools = json_at(body, "tools");
    static const char *const types[] = {"web_search", "local_shell", "custom", "web_search"};
    answer_t plain = post(json_deep_copy(body));
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        json_array_insert_new(tools, 2 * i, json_pack("{s:s, s:s}", "type", types[i], "name", "x"));
    answer_t a = post(body);
    assert_int_equal(json_array_size(json_at(a.json, "calla.ignored_tools")), 3);
    assert_string_equal(text_at(a.json, "calla.ignored_tools.0"), "web_search");
    assert_string_equal(text_at(a.json, "calla.ignored_tools.2"), "custom");
    assert_int_equal(json_array_size(json_at(a.json, "tools")), 2);
    assert_int_equal(int_at(a.json, "usage.input_tokens"),
                     int_at(plain.json, "usage.input_tokens"));
    assert_string_equal(text_at(response_call(a.json, 0), "arguments"), "{\"city\": \"Paris\"}");
    answer_clear(&a);
    answer_clear(&plain);
}

/* ---- the prompt ---- */

/* The tokens of a prompt, as text. */
static char *tokens_of(json_t *body)
{
    answer_t a = client_post_json(s, 200, "/v1/tokenize", body);
    char *text = json_dumps(json_at(a.json, "tokens"), 0);
    answer_clear(&a);
    return text;
}

static json_t *parse(const char *text)
{
    json_error_t e;
    json_t *value = json_loads(text, 0, &e);
    if (!value) fail_msg("%s: %s", text, e.text);
    return value;
}

/* The same conversation, as items and as messages. */
static const char *const conversations[][2] = {
    {"{\"input\": \"What is a river?\"}",
     "{\"messages\": [{\"role\": \"user\", \"content\": \"What is a river?\"}]}"},
    {"{\"instructions\": \"Be short.\", \"input\": [{\"role\": \"developer\", \"content\": \"And "
     "kind.\"}, {\"role\": \"user\", \"content\": [{\"type\": \"input_text\", \"text\": \"What is "
     "\"}, "
     "{\"type\": \"input_text\", \"text\": \"a river?\"}]}]}",
     "{\"messages\": [{\"role\": \"system\", \"content\": \"Be short.\"}, {\"role\": "
     "\"developer\", "
     "\"content\": \"And kind.\"}, {\"role\": \"user\", \"content\": \"What is a river?\"}]}"},
    /* A turn in items, with its reasoning. */
    {"{\"input\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"type\": \"reasoning\", \"id\": "
     "\"rs_1\", \"summary\": [], \"content\": [{\"type\": \"reasoning_text\", \"text\": \"A "
     "greeting.\"}]}, {\"type\": \"message\", \"id\": \"msg_1\", \"role\": \"assistant\", "
     "\"status\": \"completed\", \"content\": [{\"type\": \"output_text\", \"text\": \"Let me "
     "see.\", \"annotations\": [], \"logprobs\": []}]}, {\"type\": \"function_call\", \"id\": "
     "\"fc_1\", \"call_id\": \"call_1\", \"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\", "
     "\"status\": \"completed\"}, {\"type\": \"function_call\", \"call_id\": \"call_2\", \"name\": "
     "\"g\", \"arguments\": \"\"}, {\"type\": \"function_call_output\", \"call_id\": \"call_1\", "
     "\"output\": \"one\"}, {\"type\": \"function_call_output\", \"call_id\": \"call_2\", "
     "\"output\": [{\"type\": \"input_text\", \"text\": \"two\"}]}, {\"type\": \"reasoning\", "
     "\"summary\": [{\"type\": \"summary_text\", \"text\": \"Go on.\"}], \"encrypted_content\": "
     "\"xyz\"}, {\"type\": \"function_call\", \"call_id\": \"call_3\", \"name\": \"f\", "
     "\"arguments\": \"{}\"}, {\"type\": \"function_call_output\", \"call_id\": \"call_3\", "
     "\"output\": \"\"}]}",
     "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", "
     "\"reasoning_content\": \"A greeting.\", \"content\": \"Let me see.\", \"tool_calls\": "
     "[{\"id\": \"call_1\", \"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": "
     "\"{\\\"a\\\": 1}\"}}, {\"id\": \"call_2\", \"type\": \"function\", \"function\": {\"name\": "
     "\"g\", \"arguments\": \"\"}}]}, {\"role\": \"tool\", \"tool_call_id\": \"call_1\", "
     "\"content\": \"one\"}, {\"role\": \"tool\", \"tool_call_id\": \"call_2\", \"content\": "
     "\"two\"}, {\"role\": \"assistant\", \"reasoning_content\": \"Go on.\", \"content\": null, "
     "\"tool_calls\": [{\"id\": \"call_3\", \"type\": \"function\", \"function\": {\"name\": "
     "\"f\", "
     "\"arguments\": \"{}\"}}]}, {\"role\": \"tool\", \"tool_call_id\": \"call_3\", \"content\": "
     "\"\"}]}"},
    /* Text on both sides of a call is one message, two texts in a row are two; reasoning begins a
     * turn. */
    {"{\"input\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", "
     "\"content\": \"a\"}, {\"type\": \"function_call\", \"call_id\": \"c\", \"name\": \"f\", "
     "\"arguments\": \"{}\"}, {\"role\": \"assistant\", \"content\": \"b\"}, {\"role\": "
     "\"assistant\", \"content\": \"c\"}, {\"type\": \"reasoning\", \"summary\": []}, {\"type\": "
     "\"function_call\", \"call_id\": \"c\", \"name\": \"g\", \"arguments\": \"{}\"}]}",
     "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", "
     "\"content\": \"ab\", \"tool_calls\": [{\"id\": \"c\", \"type\": \"function\", \"function\": "
     "{\"name\": \"f\", \"arguments\": \"{}\"}}]}, {\"role\": \"assistant\", \"content\": \"c\"}, "
     "{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"id\": \"c\", \"type\": "
     "\"function\", \"function\": {\"name\": \"g\", \"arguments\": \"{}\"}}]}]}"},
    {"{\"instructions\": \"x-anthropic-billing-header: 1\\nBe kind.\", \"reasoning\": {\"effort\": "
     "\"none\"}, \"input\": \"Hi\"}",
     "{\"messages\": [{\"role\": \"system\", \"content\": \"Be kind.\"}, {\"role\": \"user\", "
     "\"content\": \"Hi\"}], \"reasoning_effort\": \"none\"}"},
    {"{\"reasoning\": {\"context\": \"all_turns\"}, \"input\": [{\"role\": \"user\", \"content\": "
     "\"Hi\"}, {\"type\": \"reasoning\", \"content\": [{\"type\": \"reasoning_text\", \"text\": "
     "\"Hm.\"}]}, {\"role\": \"assistant\", \"content\": \"Hi.\"}, {\"role\": \"user\", "
     "\"content\": \"And?\"}]}",
     "{\"chat_template_kwargs\": {\"preserve_thinking\": true}, \"messages\": [{\"role\": "
     "\"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": \"Hi.\", "
     "\"reasoning_content\": \"Hm.\"}, {\"role\": \"user\", \"content\": \"And?\"}]}"},
};

static void prompts_are_those_of_chats(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof conversations / sizeof *conversations; i++) {
        for (int tools = 0; tools < 2; tools++) {
            json_t *items = parse(conversations[i][0]), *messages = parse(conversations[i][1]);
            char *a = tokens_of(tools ? with_tools(items, true) : items);
            char *b = tokens_of(tools ? with_tools(messages, false) : messages);
            if (strcmp(a, b) != 0) fail_msg("conversation %zu: %s\n%s", i, a, b);
            free(a);
            free(b);
        }
    }
    answer_t a = client_post_json(s, 200, "/v1/responses/input_tokens", ask(river));
    assert_string_equal(text_at(a.json, "object"), "response.input_tokens");
    assert_int_equal(int_at(a.json, "input_tokens"), 15);
    answer_clear(&a);
}

/* However many items a turn has, it is one message. */
static void many_items_are_one_turn(void **state)
{
    (void)state;
    enum { N = 4000 };
    static char text[2 * N + 1];
    json_t *input = json_pack("[{s:s, s:s}]", "role", "user", "content", "Hi");
    for (int i = 0; i < N; i++) {
        strcat(text + 2 * i, "a ");
        json_array_append_new(input, json_pack("{s:s, s:[{s:s, s:s}]}", "type", "reasoning",
                                               "content", "type", "reasoning_text", "text", "a "));
    }
    json_array_append_new(input, json_pack("{s:s, s:s}", "role", "assistant", "content", "Hm."));
    json_t *messages = json_pack("[{s:s, s:s}, {s:s, s:s, s:s}]", "role", "user", "content", "Hi",
                                 "role", "assistant", "content", "Hm.", "reasoning_content", text);
    char *a = tokens_of(json_pack("{s:o}", "input", input));
    char *b = tokens_of(json_pack("{s:o}", "messages", messages));
    assert_string_equal(a, b);
    free(a);
    free(b);
}

/* ---- the prompt cache ---- */

static int64_t cached(const answer_t *a)
{
    return int_at(a->json, "usage.input_tokens_details.cached_tokens");
}

/* A function is called and answered: the second request reads what is new, whether the client gives
 * the reasoning back, its item without the text, or only the call. */
static void a_tool_loop_reads_only_what_is_new(void **state)
{
    (void)state;
    enum { ALL, WITHOUT_TEXT, ONLY_CALLS, N_WAYS };
    static const char *const cities[] = {"Rome", "Berlin", "Vienna"};
    for (int way = 0; way < N_WAYS; way++) {
        char text[64];
        snprintf(text, sizeof text, "What is the weather in %s?", cities[way]);
        json_t *input = json_pack("[{s:s, s:s}]", "role", "user", "content", text);
        answer_t a = post(json_with(with_tools(ask(""), true), "{s:O}", "input", input));
        const json_t *output = json_at(a.json, "output"), *call = response_call(a.json, 0);
        for (size_t i = 0; i < json_array_size(output); i++) {
            json_t *item = json_deep_copy(json_array_get(output, i));
            bool thought = strcmp(text_at(item, "type"), "reasoning") == 0;
            if (thought && way == WITHOUT_TEXT) json_object_del(item, "content");
            if (!thought || way != ONLY_CALLS) json_array_append(input, item);
            json_decref(item);
        }
        json_array_append_new(input, json_pack("{s:s, s:s, s:s}", "type", "function_call_output",
                                               "call_id", text_at(call, "call_id"), "output",
                                               "sunny, 21 degrees"));
        answer_t b = post(json_with(with_tools(ask(""), true), "{s:O}", "input", input));
        int64_t known =
            int_at(a.json, "usage.input_tokens") + int_at(a.json, "usage.output_tokens");
        assert_true(cached(&b) >= known - 2 && cached(&b) <= known);
        assert_null(response_call(b.json, 0));
        /* Once more, as a chat: all of it is known. */
        json_t *chat_body = json_pack(
            "{s:i, s:[{s:s, s:s}, {s:s, s:n, s:[{s:O, s:s, s:{s:O, s:O}}]}, {s:s, s:O, s:s}]}",
            "temperature", 0, "messages", "role", "user", "content", text, "role", "assistant",
            "content", "tool_calls", "id", json_at(call, "call_id"), "type", "function", "function",
            "name", json_at(call, "name"), "arguments", json_at(call, "arguments"), "role", "tool",
            "tool_call_id", json_at(call, "call_id"), "content", "sunny, 21 degrees");
        answer_t c = client_post_json(s, 200, "/v1/chat/completions", with_tools(chat_body, false));
        assert_int_equal(int_at(c.json, "usage.prompt_tokens_details.cached_tokens"),
                         int_at(b.json, "usage.input_tokens"));
        expect_text(b.json, content_of(&c));
        json_decref(input);
        answer_clear(&a);
        answer_clear(&b);
        answer_clear(&c);
    }
}

static void the_next_turn_is_known_too(void **state)
{
    (void)state;
    answer_t a = post(ask("What is a bridge?"));
    json_t *input = json_pack("[{s:s, s:s}]", "role", "user", "content", "What is a bridge?");
    json_array_extend(input, json_at(a.json, "output"));
    json_array_append_new(input, json_pack("{s:s, s:s}", "role", "user", "content", "Why?"));
    answer_t b = post(json_with(ask(""), "{s:O}", "input", input));
    assert_true(cached(&b) >= int_at(a.json, "usage.input_tokens") - 8);
    answer_t again = post(json_with(ask(""), "{s:o}", "input", input));
    assert_int_equal(cached(&again), int_at(again.json, "usage.input_tokens"));
    answer_clear(&a);
    answer_clear(&b);
    answer_clear(&again);
}

/* What a client that leaves has had computed is there when it comes back. */
static void work_outlives_its_client(void **state)
{
    (void)state;
    static char text[3600];
    strcpy(text, "What is a house?");
    while (strlen(text) < 3500) strcat(text, " I want to know it.");
    json_t *body = json_with(ask(text), "{s:b, s:{s:b}}", "stream", 1, "stream_options",
                             "include_progress", 1);
    char *dump = json_dumps(body, 0);
    json_decref(body);
    /* More than the two events before any work; progress comes with the first piece. */
    answer_t a = client_send(s, &(request_t){.path = path, .body = dump, .abort_after = 2500});
    assert_true(a.broken);
    answer_clear(&a);
    free(dump);
    client_wait_for(s, "calla_choices_running", 0);
    a = post(json_with(ask(text), "{s:i}", "max_output_tokens", 1));
    assert_true(cached(&a) >= 32); /* the shortest piece */
    answer_clear(&a);
}

/* ---- fields and numbers ---- */

static void null_and_defaults_are_accepted(void **state)
{
    (void)state;
    answer_t a = post(parse(
        "{\"input\": [{\"type\": \"message\", \"role\": \"user\", \"content\": \"Hi\", \"id\": "
        "null, \"status\": null, \"phase\": null}], \"model\": \"tiny\", \"instructions\": null, "
        "\"tools\": null, \"tool_choice\": \"auto\", \"parallel_tool_calls\": true, "
        "\"reasoning\": {\"effort\": \"low\", \"summary\": \"auto\"}, \"text\": {\"format\": "
        "{\"type\": \"text\"}, \"verbosity\": \"medium\"}, \"store\": true, \"background\": false, "
        "\"previous_response_id\": null, \"conversation\": null, \"prompt\": null, \"truncation\": "
        "\"disabled\", \"include\": [], \"service_tier\": \"auto\", \"max_tool_calls\": 3, "
        "\"max_output_tokens\": 1, \"top_logprobs\": 0, \"client_metadata\": {\"a\": \"b\"}, "
        "\"safety_identifier\": \"me\", \"stream\": false, \"stream_options\": null}"));
    assert_string_equal(text_at(a.json, "status"), "incomplete");
    assert_true(json_is_false(json_at(a.json, "store")));
    assert_string_equal(text_at(a.json, "reasoning.effort"), "low");
    answer_clear(&a);
}

static void endpoints_are_counted(void **state)
{
    (void)state;
    static const char name[] =
        "calla_endpoint_requests_total{method=\"POST\",path=\"/v1/responses\",status=\"2xx\"}";
    double before = client_metric(s, name);
    answer_t a = post(json_with(ask("Hi"), "{s:i}", "max_output_tokens", 1));
    /* Counted when the connection's thread is done: earlier ones may come late, too. */
    client_wait_for_least(s, name, before + 1);
    answer_clear(&a);
}

static void the_log_names_what_was_ignored(void **state)
{
    (void)state;
    char *text;
    size_t n_text;
    FILE *file = open_memstream(&text, &n_text);
    server_options options = client_options();
    options.log = file, options.log_json = true;
    server *logged = client_start(&options);
    answer_t a = client_post_json(logged, 200, path,
                                  json_with(ask("Hi"), "{s:i, s:[{s:s}]}", "max_output_tokens", 1,
                                            "tools", "type", "web_search"));
    client_stop(logged);
    fclose(file);
    const char *line = strstr(text, "\"/v1/responses\"");
    assert_non_null(line);
    assert_non_null(strstr(line, text_at(a.json, "id")));
    assert_non_null(strstr(line, "\"ignored_tools\": [\"web_search\"]"));
    free(text);
    answer_clear(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_response_has_its_shape),
        cmocka_unit_test(a_stream_says_the_same),
        cmocka_unit_test(lengths_make_it_incomplete),
        cmocka_unit_test(log_probabilities_come_on_request),
        cmocka_unit_test(progress_is_told_on_request),
        cmocka_unit_test(answers_are_of_a_schema),
        cmocka_unit_test(a_tool_is_called),
        cmocka_unit_test(tool_choice_is_kept_to),
        cmocka_unit_test(a_strict_function_gets_what_it_asks_for),
        cmocka_unit_test(other_tools_are_ignored),
        cmocka_unit_test(prompts_are_those_of_chats),
        cmocka_unit_test(many_items_are_one_turn),
        cmocka_unit_test(a_tool_loop_reads_only_what_is_new),
        cmocka_unit_test(the_next_turn_is_known_too),
        cmocka_unit_test(work_outlives_its_client),
        cmocka_unit_test(null_and_defaults_are_accepted),
        cmocka_unit_test(endpoints_are_counted),
        cmocka_unit_test(the_log_names_what_was_ignored),
    };
    return cmocka_run_group_tests(tests, start, client_teardown);
}
