/* What /v1/responses refuses, with the field's name as the request has it. */
#include "server/client.h"

#include <string.h>

static const char path[] = "/v1/responses";
static server *s;

static int start(void **state)
{
    server_options options = client_options();
    *state = s = client_start(&options);
    return 0;
}

static void expect(const char *fields, const char *param, const char *code)
{
    char body[2000];
    bool has_input = strstr(fields, "\"input\"") != NULL;
    snprintf(body, sizeof body, "{%s%s}", has_input ? "" : "\"input\": \"Hi\", ", fields);
    answer_t a = client_send(s, &(request_t){.path = path, .body = body});
    const char *got = text_at(a.json, "error.param"), *what = text_at(a.json, "error.code");
    if (a.status != 400 || !got || strcmp(got, param) != 0 || !what || strcmp(what, code) != 0)
        fail_msg("%s: status %ld, param %s, code %s: %s", fields, a.status, got, what, a.body);
    assert_string_equal(text_at(a.json, "error.type"), "invalid_request_error");
    answer_clear(&a);
}

static void fields_are_honoured_or_refused_by_name(void **state)
{
    (void)state;
    static const char *const cases[][3] = {
        {"\"foo\": 1", "foo", "unknown_parameter"},
        {"\"messages\": []", "messages", "unknown_parameter"},
        {"\"n\": 2", "n", "unknown_parameter"},
        {"\"max_tokens\": 2", "max_tokens", "unknown_parameter"},
        {"\"max_output_tokens\": 0", "max_output_tokens", "invalid_value"},
        {"\"temperature\": 3", "temperature", "invalid_value"},
        {"\"previous_response_id\": \"resp_1\"", "previous_response_id", "unsupported_parameter"},
        {"\"conversation\": \"c\"", "conversation", "unsupported_parameter"},
        {"\"prompt\": {\"id\": \"p\"}", "prompt", "unsupported_parameter"},
        {"\"background\": true", "background", "unsupported_parameter"},
        {"\"background\": 1", "background", "invalid_value"},
        {"\"truncation\": \"auto\"", "truncation", "unsupported_value"},
        {"\"service_tier\": \"flex\"", "service_tier", "invalid_value"},
        {"\"store\": \"no\"", "store", "invalid_value"},
        {"\"metadata\": 3", "metadata", "invalid_value"},
        {"\"instructions\": 3", "instructions", "invalid_value"},
        {"\"include\": \"all\"", "include", "invalid_value"},
        {"\"include\": [\"reasoning.encrypted_content\", \"x\"]", "include[1]",
         "unsupported_value"},
        {"\"top_logprobs\": 3", "top_logprobs", "invalid_value"},
        {"\"max_tool_calls\": 0", "max_tool_calls", "invalid_value"},
        {"\"reasoning\": {\"effort\": \"huge\"}", "reasoning.effort", "invalid_value"},
        {"\"reasoning\": {\"summary\": \"long\"}", "reasoning.summary", "invalid_value"},
        {"\"reasoning\": {\"context\": \"none\"}", "reasoning.context", "invalid_value"},
        {"\"reasoning\": {\"x\": 1}", "reasoning.x", "unknown_parameter"},
        {"\"text\": {\"verbosity\": \"low\"}", "text.verbosity", "unsupported_value"},
        {"\"text\": {\"format\": {}}", "text.format.type", "invalid_value"},
        {"\"text\": {\"format\": {\"type\": \"grammar\"}}", "text.format.type", "invalid_value"},
        {"\"text\": {\"format\": {\"type\": \"json_schema\"}}", "text.format.schema",
         "invalid_value"},
        {"\"text\": {\"format\": {\"type\": \"json_schema\", \"schema\": {\"not\": {}}}}",
         "text.format.schema.not", "invalid_value"},
        {"\"stream_options\": {\"include_obfuscation\": true}", "stream_options", "invalid_value"},
        {"\"stream\": true, \"stream_options\": {\"include_usage\": true}",
         "stream_options.include_usage", "unknown_parameter"},
        {"\"tools\": {}", "tools", "invalid_value"},
        {"\"tools\": [3]", "tools[0].type", "invalid_value"},
        {"\"tools\": [{\"name\": \"f\"}]", "tools[0].type", "invalid_value"},
        {"\"tools\": [{\"type\": 3}]", "tools[0].type", "invalid_value"},
        {"\"tools\": [{\"type\": \"function\"}]", "tools[0].name", "invalid_value"},
        {"\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]",
         "tools[0].function", "unknown_parameter"},
        {"\"tools\": [{\"type\": \"function\", \"name\": \"a>b\"}]", "tools[0].name",
         "invalid_value"},
        {"\"tools\": [{\"type\": \"function\", \"name\": \"f\", \"async\": true}]",
         "tools[0].async", "unsupported_parameter"},
        {"\"tools\": [{\"type\": \"function\", \"name\": \"f\", \"allowed_callers\": [\"x\"]}]",
         "tools[0].allowed_callers", "unsupported_value"},
        {"\"tools\": [{\"type\": \"x\"}, {\"type\": \"function\", \"name\": \"f\"}, {\"type\": "
         "\"function\", \"name\": \"f\"}]",
         "tools[2].name", "invalid_value"},
        {"\"tools\": [{\"type\": \"x\", \"name\": \"g\"}, {\"type\": \"function\", \"name\": "
         "\"g\", "
         "\"strict\": true, \"parameters\": {\"properties\": {\"b\": {\"not\": {}}}}}]",
         "tools[1].parameters.properties.b.not", "invalid_value"},
        {"\"tool_choice\": \"required\"", "tool_choice", "invalid_value"},
        {"\"tool_choice\": \"some\"", "tool_choice", "invalid_value"},
        {"\"tool_choice\": {}", "tool_choice.type", "invalid_value"},
        {"\"tool_choice\": {\"type\": \"web_search\"}", "tool_choice.type", "unsupported_value"},
        {"\"tool_choice\": {\"type\": \"function\"}", "tool_choice.name", "invalid_value"},
        {"\"tool_choice\": {\"type\": \"function\", \"name\": \"f\"}, \"tools\": [{\"type\": "
         "\"custom\", \"name\": \"f\"}]",
         "tool_choice", "invalid_value"},
        {"\"tool_choice\": {\"type\": \"allowed_tools\", \"mode\": \"auto\"}", "tool_choice.tools",
         "invalid_value"},
        {"\"tool_choice\": {\"type\": \"allowed_tools\", \"mode\": \"some\", \"tools\": []}",
         "tool_choice.mode", "invalid_value"},
        {"\"tool_choice\": {\"type\": \"allowed_tools\", \"tools\": []}", "tool_choice.tools",
         "invalid_value"},
        {"\"tool_choice\": {\"type\": \"allowed_tools\", \"tools\": [{\"type\": \"mcp\"}]}",
         "tool_choice.tools[0].type", "unsupported_value"},
        {"\"tools\": [{\"type\": \"function\", \"name\": \"f\"}], \"tool_choice\": {\"type\": "
         "\"allowed_tools\", \"mode\": \"auto\", \"tools\": [{\"type\": \"function\", \"name\": "
         "\"g\"}]}",
         "tool_choice", "invalid_value"},
        {"\"parallel_tool_calls\": \"no\"", "parallel_tool_calls", "invalid_value"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect(cases[i][0], cases[i][1], cases[i][2]);
}

static void items_are_checked(void **state)
{
    (void)state;
    static const char *const cases[][3] = {
        {"\"input\": null", "input", "invalid_value"},
        {"\"input\": 3", "input", "invalid_value"},
        {"\"input\": []", "input", "invalid_value"},
        {"\"input\": [3]", "input[0]", "invalid_value"},
        {"\"input\": [{}]", "input[0].type", "invalid_value"},
        {"\"input\": [{\"role\": \"tool\", \"content\": \"x\"}]", "input[0].role", "invalid_value"},
        {"\"input\": [{\"type\": \"message\", \"content\": \"x\"}]", "input[0].role",
         "invalid_value"},
        {"\"input\": [{\"role\": \"user\", \"content\": 3}]", "input[0].content", "invalid_value"},
        {"\"input\": [{\"role\": \"user\", \"content\": \"x\", \"y\": 1}]", "input[0].y",
         "unknown_parameter"},
        {"\"input\": [{\"role\": \"user\", \"content\": [{\"type\": \"input_image\", "
         "\"image_url\": \"x\"}]}]",
         "input[0].content[0].type", "unsupported_value"},
        {"\"input\": [{\"role\": \"user\", \"content\": [{\"type\": \"input_text\"}]}]",
         "input[0].content[0].text", "invalid_value"},
        {"\"input\": [{\"role\": \"user\", \"content\": [{\"text\": \"x\"}]}]",
         "input[0].content[0].type", "invalid_value"},
        {"\"input\": [{\"role\": \"system\", \"content\": \"x\"}]", "input", "invalid_value"},
        {"\"input\": [{\"type\": \"item_reference\", \"id\": \"x\"}]", "input[0].type",
         "unsupported_value"},
        {"\"input\": [{\"type\": \"web_search_call\", \"id\": \"x\"}]", "input[0].type",
         "unsupported_value"},
        {"\"input\": [{\"type\": \"function_call\", \"name\": \"f\", \"arguments\": \"{}\"}]",
         "input[0].call_id", "invalid_value"},
        {"\"input\": [{\"type\": \"function_call\", \"call_id\": \"c\", \"arguments\": \"{}\"}]",
         "input[0].name", "invalid_value"},
        {"\"input\": [{\"type\": \"function_call\", \"call_id\": \"c\", \"name\": \"f\"}]",
         "input[0].arguments", "invalid_value"},
        {"\"input\": [{\"type\": \"function_call\", \"call_id\": \"c\", \"name\": \"f\", "
         "\"arguments\": \"{\"}]",
         "input[0].arguments", "invalid_value"},
        {"\"input\": [{\"type\": \"function_call\", \"call_id\": \"c\", \"name\": \"f\", "
         "\"arguments\": \"[1]\"}]",
         "input[0].arguments", "invalid_value"},
        {"\"input\": [{\"type\": \"function_call\", \"call_id\": \"c\", \"name\": \"f\", "
         "\"arguments\": \"{}\", \"namespace\": \"n\"}]",
         "input[0].namespace", "unsupported_value"},
        {"\"input\": [{\"type\": \"function_call_output\", \"call_id\": \"c\"}]", "input[0].output",
         "invalid_value"},
        {"\"input\": [{\"type\": \"function_call_output\", \"output\": \"x\"}]", "input[0].call_id",
         "invalid_value"},
        {"\"input\": [{\"type\": \"function_call_output\", \"call_id\": \"c\", \"output\": "
         "[{\"type\": \"input_file\", \"file_id\": \"x\"}]}]",
         "input[0].output[0].type", "unsupported_value"},
        {"\"input\": [{\"type\": \"reasoning\", \"summary\": \"x\"}]", "input[0].summary",
         "invalid_value"},
        {"\"input\": [{\"type\": \"reasoning\", \"content\": [{\"type\": \"output_text\", "
         "\"text\": \"x\"}]}]",
         "input[0].content[0].type", "invalid_value"},
        {"\"input\": [{\"type\": \"reasoning\", \"encrypted_content\": 3}]",
         "input[0].encrypted_content", "invalid_value"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect(cases[i][0], cases[i][1], cases[i][2]);
}

static void nothing_is_stored(void **state)
{
    (void)state;
    static const char *const methods[] = {"GET", "DELETE"};
    for (int i = 0; i < 2; i++) {
        answer_t a =
            client_send(s, &(request_t){.path = "/v1/responses/resp_1", .method = methods[i]});
        assert_int_equal(a.status, 404);
        assert_non_null(strstr(text_at(a.json, "error.message"), "'resp_1'"));
        assert_non_null(strstr(text_at(a.json, "error.message"), "stores none"));
        answer_clear(&a);
    }
    answer_t a = client_get(s, 405, path);
    assert_non_null(strstr(a.headers, "Allow: POST\r\n"));
    answer_clear(&a);
    a = client_send(s, &(request_t){.path = "/v1/responses/resp_1/cancel", .body = "{}"});
    assert_int_equal(a.status, 405);
    assert_non_null(strstr(a.headers, "Allow: GET, DELETE\r\n"));
    answer_clear(&a);
}

static void a_prompt_that_is_too_long_is_refused(void **state)
{
    (void)state;
    static char text[20000];
    strcpy(text, "word");
    while (strlen(text) < 19000) strcat(text, " word word word word");
    for (int streamed = 0; streamed < 2; streamed++) {
        answer_t a = client_post(s, 400, path, "{s:s, s:b}", "input", text, "stream", streamed);
        assert_string_equal(text_at(a.json, "error.code"), "context_length_exceeded");
        assert_string_equal(text_at(a.json, "error.param"), "input");
        assert_non_null(strstr(text_at(a.json, "error.message"),
                               "maximum context length is 2048 tokens. However, your input"));
        answer_clear(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fields_are_honoured_or_refused_by_name),
        cmocka_unit_test(items_are_checked),
        cmocka_unit_test(nothing_is_stored),
        cmocka_unit_test(a_prompt_that_is_too_long_is_refused),
    };
    return cmocka_run_group_tests(tests, start, client_teardown);
}
