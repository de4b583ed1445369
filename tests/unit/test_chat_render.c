/* The chat template against what Jinja made of the official one (tests/data/chat_goldens.jsonl, by
 * tools/make_chat_goldens.py), the examples of MODEL.md 6.2, and what the default mode adds. */
#include "support/support.h"

#include "base/file.h"
#include "base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static calla_status render(const char *messages, const char *tools,
                           const calla_chat_options *options, calla_prompt *prompt,
                           calla_error *err)
{
    memset(prompt, 0, sizeof *prompt);
    return calla_chat_render(messages, strlen(messages), tools, tools ? strlen(tools) : 0, options,
                             prompt, err);
}

/* Ranges ascend, are not empty and do not touch. */
static void check_ranges(const calla_prompt *p)
{
    size_t at = 0;
    for (size_t i = 0; i < p->n_literal; i++) {
        assert_true(i == 0 || p->literal[i].begin > at);
        assert_true(p->literal[i].begin < p->literal[i].end);
        at = p->literal[i].end;
    }
    assert_true(at <= p->text.n_bytes);
    assert_int_equal(p->text.data[p->text.n_bytes], '\0');
}

/* ---- goldens ---- */

/* `text` with U+E000 replaced by the instructions. */
static void expand(strbuf *out, const json_t *text, const json_t *instructions)
{
    static const char mark[] = "\xee\x80\x80";
    const char *p = json_string_value(text);
    size_t n = json_string_length(text);
    const char *q = memmem(p, n, mark, 3);
    if (!q) {
        strbuf_append(out, p, n);
        return;
    }
    strbuf_append(out, p, (size_t)(q - p));
    strbuf_puts(out, json_string_value(instructions));
    strbuf_append(out, q + 3, n - (size_t)(q - p) - 3);
}

static void check_golden(int line, const json_t *golden, const json_t *instructions, bool strict)
{
    const json_t *text = json_object_get(golden, "text"),
                 *messages = json_object_get(golden, "messages"),
                 *tools = json_object_get(golden, "tools");
    const calla_chat_options options = {
        .no_thinking = json_object_get(golden, "no_thinking") != NULL,
        .preserve_thinking = json_object_get(golden, "preserve_thinking") != NULL,
        .no_generation_prompt = json_object_get(golden, "no_generation_prompt") != NULL,
        .strict = strict};
    calla_prompt prompt = {0};
    calla_error err;
    calla_status status = calla_chat_render(json_string_value(messages),
                                            json_string_length(messages), json_string_value(tools),
                                            json_string_length(tools), &options, &prompt, &err);
    if (text) {
        strbuf expected = {0};
        expand(&expected, text, instructions);
        if (status != CALLA_OK) fail_msg("line %d: %s", line, err.message);
        if (prompt.text.n_bytes != expected.n ||
            memcmp(prompt.text.data, expected.data, expected.n) != 0)
            fail_msg("line %d:\n%s\ninstead of\n%s", line, prompt.text.data, expected.data);
        check_ranges(&prompt);
        strbuf_free(&expected);
    } else {
        const char *part = json_string_value(json_object_get(golden, "error"));
        if (status != CALLA_ERR_INPUT) fail_msg("line %d: status %d", line, status);
        if (strict && !strstr(err.message, part)) fail_msg("line %d: %s", line, err.message);
    }
    calla_prompt_free(&prompt);
}

static void check_goldens(bool strict)
{
    char *data;
    size_t n;
    calla_error err;
    assert_ok(file_read(source_path("tests/data/chat_goldens.jsonl"), 1 << 24, &data, &n, &err),
              &err);
    json_t *first = NULL;
    int line = 0, n_texts = 0, n_errors = 0;
    for (char *p = data, *end; (end = strchr(p, '\n')); p = end + 1) {
        json_t *golden;
        line++;
        assert_ok(json_parse_text(p, (size_t)(end - p), "golden", &golden, &err), &err);
        if (!first) {
            first = golden;
            continue;
        }
        if (strict || json_object_get(golden, "plain")) {
            check_golden(line, golden, json_object_get(first, "instructions"), strict);
            *(json_object_get(golden, "text") ? &n_texts : &n_errors) += 1;
        }
        json_decref(golden);
    }
    assert_true(n_texts >= 200 && n_errors >= 20);
    json_decref(first);
    free(data);
}

static void test_goldens(void **state)
{
    (void)state;
    check_goldens(true);
}

/* What needs no strict mode is the same in both. */
static void test_goldens_default(void **state)
{
    (void)state;
    check_goldens(false);
}

/* ---- MODEL.md 6.2 ---- */

#define U(x)            "{\"role\":\"user\",\"content\":\"" x "\"}"
#define A(x)            "{\"role\":\"assistant\",\"content\":\"" x "\"}"
#define S(x)            "{\"role\":\"system\",\"content\":\"" x "\"}"
#define T(x)            "{\"role\":\"tool\",\"content\":\"" x "\"}"
#define D(x)            "{\"role\":\"developer\",\"content\":\"" x "\"}"
#define CALLS(x, calls) "{\"role\":\"assistant\",\"content\":\"" x "\",\"tool_calls\":[" calls "]}"
#define CALL(name, arguments)                                                                      \
    "{\"type\":\"function\",\"function\":{\"name\":\"" name "\",\"arguments\":" arguments "}}"
#define BEGIN(role) "<|im_start|>" role "\n"
#define END         "<|im_end|>\n"
#define THINK       BEGIN("assistant") "<think>\n"
#define NO_THINK    BEGIN("assistant") "<think>\n\n</think>\n\n"

static void check(const char *messages, const char *tools, calla_chat_options options,
                  const char *expected)
{
    calla_prompt prompt;
    calla_error err;
    assert_ok(render(messages, tools, &options, &prompt, &err), &err);
    assert_string_equal(prompt.text.data, expected);
    check_ranges(&prompt);
    calla_prompt_free(&prompt);
    if (options.strict) return;
    options.strict = true;
    assert_ok(render(messages, tools, &options, &prompt, &err), &err);
    assert_string_equal(prompt.text.data, expected);
    calla_prompt_free(&prompt);
}

static const calla_chat_options plain,
    no_thinking = {.no_thinking = true}, preserve = {.preserve_thinking = true},
    no_prompt = {.no_generation_prompt = true}, strict_mode = {.strict = true};

static void test_turns(void **state)
{
    (void)state;
    check("[" U("Hi") "]", NULL, plain, BEGIN("user") "Hi" END THINK);
    check("[" U("Hi") "]", NULL, no_thinking, BEGIN("user") "Hi" END NO_THINK);
    check("[" S("  Be brief.\\n") "," U("\\n Hi \\n") "]", NULL, no_thinking,
          BEGIN("system") "Be brief." END BEGIN("user") "Hi" END NO_THINK);
    check("[" S("") "," U("Hi") "]", "[]", plain, BEGIN("system") END BEGIN("user") "Hi" END THINK);
    check("[" U("A") "," A("<think>\\nplan\\n</think>\\n\\nB") "," U("C") "]", "null", plain,
          BEGIN("user") "A" END BEGIN("assistant") "B" END BEGIN("user") "C" END THINK);
    check("[" U("A") "," A("<think>\\nplan\\n</think>\\n\\nB") "," U("C") "]", NULL, preserve,
          BEGIN("user") "A" END THINK "plan\n</think>\n\nB" END BEGIN("user") "C" END THINK);
    check("[" U("A") "," A("B") "," U("C") "]", NULL, preserve,
          BEGIN("user") "A" END NO_THINK "B" END BEGIN("user") "C" END THINK);
    check("[" U("A") "," A("B") "]", NULL, no_prompt, BEGIN("user") "A" END NO_THINK "B" END);
    check("[" U("A") "," A("<think>x</think>mid</think>\\nend") "," U("C") "]", NULL, preserve,
          BEGIN("user") "A" END THINK "x\n</think>\n\nend" END BEGIN("user") "C" END THINK);
    check("[" U("A") "," A("<think>\\nhalf") "," U("C") "]", NULL, plain,
          BEGIN("user") "A" END BEGIN("assistant") "<think>\nhalf" END BEGIN("user") "C" END THINK);
}

static void test_tools(void **state)
{
    (void)state;
    check("[" S("Be brief.") "," U("Weather?") "]",
          "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"description\":\"M\xc3"
          "\xa9t\xc3\xa9o\",\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":"
          "\"string\"}},\"required\":[\"city\"]}}}]",
          plain,
          "<|im_start|>system\n# Tools\n\nYou have access to the following "
          "functions:\n\n<tools>\n{\"type\": \"function\", \"function\": {\"name\": "
          "\"get_weather\", \"description\": \"M\xc3\xa9t\xc3\xa9o\", \"parameters\": {\"type\": "
          "\"object\", \"properties\": {\"city\": {\"type\": \"string\"}}, \"required\": "
          "[\"city\"]}}}\n</tools>\n\nIf you choose to call a function ONLY reply in the following "
          "format with NO suffix:\n\n<tool_call>\n<function=example_function_name>\n"
          "<parameter=example_parameter_1>\nvalue_1\n</parameter>\n"
          "<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can "
          "span\nmultiple lines\n</parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:"
          "\n- Function calls MUST follow the specified format: an inner "
          "<function=...></function> block must be nested within <tool_call></tool_call> XML tags\n"
          "- Required parameters MUST be specified\n- You may provide optional reasoning for your "
          "function call in natural language BEFORE the function call, but NOT after\n- If there "
          "is no function call available, answer the question like normal with your current "
          "knowledge and do not tell the user about function calls\n</IMPORTANT>\n\nBe "
          "brief.<|im_end|>\n<|im_start|>user\nWeather?<|im_end|>\n" THINK);
}

static void test_tool_calls(void **state)
{
    (void)state;
    check(
        "[" U("W?") ",{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":\"call it\","
                    "\"tool_calls\":[" CALL(
                        "get_weather", "{\"city\":\"Roma\",\"days\":3,\"opts\":{\"a\":[1,"
                                       "true,null]},\"raw\":true}") "]}," T("{\\\"c\\\":28}") "]",
        NULL, plain,
        BEGIN(
            "user") "W?" END THINK "call "
                    "it\n</think>\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nRoma\n"
                    "</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=opts>\n{\"a\": "
                    "[1, true, "
                    "null]}\n</parameter>\n<parameter=raw>\ntrue\n</parameter>\n</function>\n</"
                    "tool_call>" END BEGIN(
                        "user") "<tool_response>\n{\"c\":28}\n</tool_response>" END THINK);
    check("[" U("W?") "," CALLS(
              "Sure.", CALL("get_weather", "{\"city\":\"Rome\"}") "," CALL(
                           "get_weather", "{\"city\":\"Oslo\"}")) "," T("28") "," T("5") "]",
          NULL, plain,
          BEGIN("user") "W?" END NO_THINK "Sure.\n\n<tool_call>\n<function=get_weather>\n<"
                        "parameter=city>\nRome\n</parameter>\n"
                        "</function>\n</"
                        "tool_call>\n<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n"
                        "</parameter>\n</function>\n</tool_call>" END BEGIN(
                            "user") "<tool_response>\n28\n</tool_response>\n<tool_response>\n5\n</"
                                    "tool_response>" END THINK);
    check("[" U("W?") ",{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":\"call\","
                      "\"tool_calls\":[" CALL("f", "{\"city\":\"Rome\"}") "]}," T(
                          "28") ","
                                "{\"role\":\"assistant\",\"content\":\"It is "
                                "28.\",\"reasoning_content\":\"done\"}," U("Thx") "]",
          NULL, plain,
          BEGIN("user") "W?" END BEGIN(
              "assistant") "<tool_call>\n<function=f>\n<parameter=city>\n"
                           "Rome\n</parameter>\n</function>\n</tool_call>" END
                               BEGIN("user") "<tool_response>\n28\n</tool_response>" END BEGIN(
                                   "assistant") "It is 28." END BEGIN("user") "Thx" END THINK);
    check("[" U("x") "," CALLS("", CALL("now", "{}") ",{\"name\":\"now\"}") "]", NULL, plain,
          BEGIN("user") "x" END NO_THINK "<tool_call>\n<function=now>\n</function>\n</tool_call>\n"
                        "<tool_call>\n<function=now>\n</function>\n</tool_call>" END THINK);
    check("[" T("a") "," U("x") "," T("b") "]", NULL, plain,
          "\n<tool_response>\na\n</tool_response>" END BEGIN("user") "x" END BEGIN(
              "user") "<tool_response>\nb\n</tool_response>" END THINK);
}

/* ---- errors ---- */

static void refuse(const char *messages, const char *tools, calla_chat_options options,
                   const char *part)
{
    calla_prompt prompt;
    calla_error err;
    assert_error(render(messages, tools, &options, &prompt, &err), CALLA_ERR_INPUT, &err, part);
    assert_null(prompt.text.data);
    assert_int_equal(render(messages, tools, &options, &prompt, NULL), CALLA_ERR_INPUT);
}

static void test_official_errors(void **state)
{
    (void)state;
    refuse("[]", NULL, plain, "No messages provided.");
    refuse("[" S("only") "]", NULL, plain, "No user query found in messages.");
    refuse("[" S("s") "," U("<tool_response>x</tool_response>") "]", NULL, plain,
           "No user query found in messages.");
    refuse("[" U("x") "," S("late") "]", NULL, strict_mode,
           "messages[1]: System message must be at the beginning.");
    refuse("[" D("d") "," U("x") "]", NULL, strict_mode, "messages[0]: Unexpected message role.");
    refuse("[" U("x") "," CALLS("", CALL("f", "\"{}\"")) "]", NULL, strict_mode,
           "messages[1].tool_calls[0].arguments: Can only get item pairs from a mapping.");
    refuse("[" U("x") ",{\"role\":\"function\"}]", NULL, plain,
           "messages[1]: Unexpected message role. (\"function\")");
    refuse("[{\"role\":\"user\",\"content\":3}]", NULL, plain, "Unexpected content type.");
}

static void test_errors_name_places(void **state)
{
    (void)state;
    refuse("[" U("x"), NULL, plain, "messages: not valid JSON");
    refuse("[" U("x") "]", "[{]", plain, "tools: not valid JSON");
    refuse("{}", NULL, plain, "messages: an object instead of an array");
    refuse("[" U("x") ",7]", NULL, plain, "messages[1]: an integer instead of an object");
    refuse("[{\"content\":\"x\"}]", NULL, plain, "messages[0].role: nothing instead of a string");
    refuse("[{\"role\":[]}]", NULL, plain, "messages[0].role: an array instead of a string");
    refuse("[" U("x") "]", "{}", plain, "tools: an object instead of an array");
    refuse("[" U("x") "]", "[{},1]", plain, "tools[1]: an integer instead of an object");
    refuse("[" U("x") ",{\"role\":\"assistant\",\"reasoning_content\":[]}]", NULL, plain,
           "messages[1].reasoning_content: an array instead of a string");
    refuse("[" U("x") ",{\"role\":\"assistant\",\"tool_calls\":{}}]", NULL, plain,
           "messages[1].tool_calls: an object instead of an array");
    refuse("[" U("x") "," CALLS("", "{},3") "]", NULL, plain,
           "messages[1].tool_calls[0].name: nothing instead of a string");
    refuse("[" U("x") "," CALLS("", "3") "]", NULL, plain,
           "messages[1].tool_calls[0]: an integer instead of an object");
    refuse("[" U("x") "," CALLS("", CALL("f", "[]")) "]", NULL, plain,
           "messages[1].tool_calls[0].arguments");
    refuse("[" U("x") "," CALLS("", CALL("f", "18446744073709551616")) "]", NULL, plain,
           "(an integer)");
    refuse("[" U("x") "," CALLS("", CALL("f", "\"{\\\"a\\\":\"")) "]", NULL, plain,
           "messages[1].tool_calls[0].arguments: not valid JSON");
    refuse("[" U("x") "," CALLS("", CALL("f", "\"[1]\"")) "]", NULL, plain, "(an array)");
}

#define PARTS(x) "[{\"role\":\"user\",\"content\":[" x "]}]"

static void test_parts(void **state)
{
    (void)state;
    check(PARTS("{\"type\":\"text\",\"text\":\" a\"},{\"type\":\"text\",\"text\":\"b \"}"), NULL,
          plain, BEGIN("user") "ab" END THINK);
    check(
        PARTS("{\"type\":\"input_text\",\"text\":\"a\"},{\"type\":\"output_text\",\"text\":\"b\"}"),
        NULL, plain, BEGIN("user") "ab" END THINK);
    refuse(PARTS("{\"text\":\"a\"},{\"type\":\"image_url\",\"image_url\":{}}"), NULL, plain,
           "messages[0].content[1]: parts of type \"image_url\" are not supported, only text");
    refuse(PARTS("{\"type\":\"input_audio\",\"input_audio\":{}}"), NULL, plain, "\"input_audio\"");
    refuse(PARTS("{\"image\":\"x\"}"), NULL, plain, "not supported");
    refuse(PARTS("{\"type\":\"text\"}"), NULL, plain, "text is nothing instead of a string");
    refuse(PARTS("3"), NULL, plain, "messages[0].content[0]: an integer instead of an object");
    check(PARTS("{\"type\":\"image_url\",\"image_url\":{}},{\"text\":\" a\"}"), NULL, strict_mode,
          BEGIN("user") "<|vision_start|><|image_pad|><|vision_end|> a" END THINK);
    refuse("[{\"role\":\"system\",\"content\":[{\"type\":\"image\"}]}," U("x") "]", NULL,
           strict_mode, "System message cannot contain images.");
}

/* ---- what the default mode adds ---- */

static void check_default(const char *messages, const char *tools, const char *expected)
{
    calla_prompt prompt;
    calla_error err;
    assert_ok(render(messages, tools, NULL, &prompt, &err), &err);
    assert_string_equal(prompt.text.data, expected);
    check_ranges(&prompt);
    calla_prompt_free(&prompt);
}

static void test_system_messages_merge(void **state)
{
    (void)state;
    check_default("[" D(" dev ") "," U("x") "]", NULL,
                  BEGIN("system") "dev" END BEGIN("user") "x" END THINK);
    check_default(
        "[" S("one\\n") "," U("x") "," D(" ") "," A("y") "," S("two") "," U("z") "," D("three") "]",
        NULL,
        BEGIN("system") "one\n\ntwo\n\nthree" END BEGIN("user") "x" END BEGIN(
            "assistant") "y" END BEGIN("user") "z" END THINK);
    /* Tool responses on both sides of a merged message stay in one turn. */
    check_default(
        "[" U("x") "," T("a") "," S("s") "," T("b") "]", NULL,
        BEGIN("system") "s" END BEGIN("user") "x" END BEGIN(
            "user") "<tool_response>\na\n</tool_response>\n<tool_response>\nb\n</tool_response>" END
            THINK);
    refuse("[" D("d") "," S("s") "]", NULL, plain, "No user query found in messages.");
}

static void test_arguments_as_text(void **state)
{
    (void)state;
    check_default("[" U("x") "," CALLS(
                      "", CALL("f", "\"{\\\"b\\\": 1E2, \\\"a\\\":\\\"x\\\"}\"") "," CALL(
                              "f", "\"\"") "," CALL("f", "null") "," CALL("f", "\" \\n\"")) "]",
                  NULL,
                  BEGIN("user") "x" END NO_THINK "<tool_call>\n<function=f>\n<parameter=b>\n100."
                                "0\n</parameter>\n<parameter=a>\nx\n"
                                "</parameter>\n</function>\n</"
                                "tool_call>\n<tool_call>\n<function=f>\n</function>\n"
                                "</tool_call>\n<tool_call>\n<function=f>\n</function>\n</"
                                "tool_call>\n<tool_call>\n"
                                "<function=f>\n</function>\n</tool_call>" END THINK);
}

static void test_reasoning_names(void **state)
{
    (void)state;
    static const char *const names[] = {"reasoning_content", "reasoning", "thinking"};
    for (int i = 0; i < 3; i++) {
        char messages[256];
        snprintf(messages, sizeof messages,
                 "[" U("x") ",{\"role\":\"assistant\",\"content\":\"y\",\"%s\":\" r \"}]",
                 names[i]);
        check_default(messages, NULL, BEGIN("user") "x" END THINK "r\n</think>\n\ny" END THINK);
    }
}

/* ---- literal ranges ---- */

/* Every tag inside a literal range was given by the user, every one outside by the template. */
static void test_literal(void **state)
{
    (void)state;
    static const char tag[] = "<|im_start|>";
    const calla_chat_options options = {.preserve_thinking = true};
    calla_prompt p;
    calla_error err;
    assert_ok(
        render(
            "[" S("<|im_start|>") "," U(
                "a <|im_start|> b") ","
                                    "{\"role\":\"assistant\",\"reasoning_content\":\"<|im_start|>"
                                    "\",\"content\":"
                                    "\"<|im_start|>\",\"tool_calls\":[" CALL(
                                        "<|im_start|>",
                                        "{\"<|im_start|>\":"
                                        "\"<|im_start|>\",\"n\":[\"<|im_start|>\"]"
                                        "}") "]}," T("<|im_start|>") "," A("<think>"
                                                                           "<|im_"
                                                                           "start|>"
                                                                           "</"
                                                                           "think><"
                                                                           "|im_"
                                                                           "start|"
                                                                           ">") "," S("<|im_start|"
                                                                                      ">") "]",
            "[{\"<|im_start|>\":\"<|im_start|>\"}]", &options, &p, &err),
        &err);
    check_ranges(&p);
    int n_inside = 0, n_outside = 0;
    size_t n = strlen(tag);
    for (size_t at = 0; at + n <= p.text.n_bytes; at++) {
        if (memcmp(p.text.data + at, tag, n) != 0) continue;
        bool inside = false;
        for (size_t i = 0; i < p.n_literal; i++)
            inside |= p.literal[i].begin <= at && at + n <= p.literal[i].end;
        *(inside ? &n_inside : &n_outside) += 1;
    }
    assert_int_equal(n_inside, 14);
    assert_int_equal(n_outside, 6); /* system, user, assistant, tools' user, assistant, prompt */
    calla_prompt_free(&p);

    /* A placeholder is the template's even amid a user's text. */
    assert_ok(render(PARTS("{\"text\":\"ab\"},{\"image\":1},{\"text\":\"cd\"}"), NULL, &strict_mode,
                     &p, &err),
              &err);
    assert_int_equal(p.n_literal, 2);
    size_t begin = strlen("<|im_start|>user\n"),
           placeholder = strlen("<|vision_start|><|image_pad|><|vision_end|>");
    assert_int_equal(p.literal[0].begin, begin);
    assert_int_equal(p.literal[0].end, begin + 2);
    assert_int_equal(p.literal[1].begin, begin + 2 + placeholder);
    assert_int_equal(p.literal[1].end, begin + 4 + placeholder);
    calla_prompt_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),
        cmocka_unit_test(test_goldens_default),
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_tools),
        cmocka_unit_test(test_tool_calls),
        cmocka_unit_test(test_official_errors),
        cmocka_unit_test(test_errors_name_places),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_system_messages_merge),
        cmocka_unit_test(test_arguments_as_text),
        cmocka_unit_test(test_reasoning_names),
        cmocka_unit_test(test_literal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
