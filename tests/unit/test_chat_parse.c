/* The streaming parser of generated text: cases by name, all cuts of each, and round trips through
 * the renderer. */
#include "support/support.h"

#include "base/json.h"
#include "base/philox.h"
#include "model/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":"
    "\"object\",\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"},"
    "\"raw\":{\"type\":\"boolean\"},\"opts\":{\"type\":\"object\"},\"list\":{\"type\":\"array\"},"
    "\"x\":{\"type\":\"number\"},\"nil\":{\"type\":\"null\"},\"any\":{}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"f\"}},"
    "{\"name\":\"flat\",\"parameters\":{\"properties\":{\"n\":{\"type\":\"integer\"}}}}]";

#define THINK    "<|im_start|>assistant\n<think>\n"
#define NO_THINK "<|im_start|>assistant\n<think>\n\n</think>\n\n"

/* ---- running the parser ---- */

/* Events as text: "R(reasoning)C(content)B0(name)J0(arguments)E0()", adjacent pieces joined. */
typedef struct trace {
    strbuf text;
    int kind, index;
    bool whole_utf8;
} trace;

static bool is_whole_utf8(const char *text, size_t n)
{
    json_t *string = json_stringn(text, n); /* which checks */
    json_decref(string);
    return string != NULL;
}

static void on_event(void *user, const calla_chat_event *e)
{
    trace *t = user;
    bool is_tool = e->kind >= CALLA_CHAT_TOOL_BEGIN;
    bool joins = (int)e->kind == t->kind && e->tool_index == t->index &&
                 (e->kind <= CALLA_CHAT_CONTENT || e->kind == CALLA_CHAT_TOOL_ARGUMENTS);
    if (!is_whole_utf8(e->text, e->n_bytes)) t->whole_utf8 = false;
    if (!joins) {
        if (t->kind >= 0) strbuf_putc(&t->text, ')');
        strbuf_putc(&t->text, "RCBJE"[e->kind]);
        if (is_tool) strbuf_printf(&t->text, "%d", e->tool_index);
        strbuf_putc(&t->text, '(');
    }
    strbuf_append(&t->text, e->text, e->n_bytes);
    t->kind = (int)e->kind;
    t->index = e->tool_index;
}

/* The trace of text [n] given in pieces: of `step` bytes, or of drawn sizes for step 0. */
static char *run(const char *prompt, const char *tool_list, const char *text, size_t n, size_t step,
                 uint64_t seed)
{
    trace t = {.kind = -1, .whole_utf8 = true};
    calla_chat_parser *p;
    calla_error err;
    assert_ok(calla_chat_parser_create(prompt, strlen(prompt), tool_list,
                                       tool_list ? strlen(tool_list) : 0, on_event, &t, &p, &err),
              &err);
    uint64_t draw = 0;
    for (size_t at = 0, piece; at < n; at += piece) {
        piece = step ? step : (size_t)(philox_uniform(seed, draw++, 0) * 12);
        if (piece > n - at) piece = n - at;
        /* A copy of its own, so that a sanitizer sees reads beyond the piece. */
        char *copy = malloc(piece + 1);
        assert_non_null(copy);
        memcpy(copy, text + at, piece);
        assert_ok(calla_chat_parser_push(p, copy, piece, &err), &err);
        free(copy);
    }
    assert_ok(calla_chat_parser_finish(p, &err), &err);
    calla_chat_parser_free(p);
    assert_true(t.whole_utf8);
    if (t.kind >= 0) strbuf_putc(&t.text, ')');
    char *data;
    size_t length;
    assert_ok(strbuf_take(&t.text, &data, &length, &err), &err);
    return data;
}

static void check_with(const char *prompt, const char *tool_list, const char *text,
                       const char *expected)
{
    size_t n = strlen(text);
    for (size_t step = 0; step <= 6; step++) {
        char *got = run(prompt, tool_list, text, n, step == 6 ? n + 1 : step, step);
        if (strcmp(got, expected) != 0)
            fail_msg("in pieces of %zu: %s\ngives   %s\nnot     %s", step, text, got, expected);
        free(got);
    }
}

static void thinking(const char *text, const char *expected)
{
    check_with(THINK, tools, text, expected);
}
static void answer(const char *text, const char *expected)
{
    check_with(NO_THINK, tools, text, expected);
}

/* ---- reasoning and content ---- */

static void test_reasoning(void **state)
{
    (void)state;
    thinking("plan\n</think>\n\nHello", "R(plan)C(Hello)");
    thinking("\n</think>\n\nHello", "C(Hello)");
    thinking("</think>Hello", "C(Hello)");
    thinking("  a\n b \n\n </think>\n\n\n  code\n", "R(a\n b)C(  code\n)");
    thinking("a </thin k> < <b </think", "R(a </thin k> < <b </think)");
    thinking("never closed \n", "R(never closed \n)");
    thinking("<think>\nagain</think>x", "R(again)C(x)");
    thinking("a <think> b</think>x", "R(a <think> b)C(x)");
    thinking("a</think>x</think>y<think>z", "R(a)C(x</think>y<think>z)");
    thinking("a</think>\n\n<think>b", "R(a)C(<think>b)");
    thinking("", "");
    thinking(" \n ", "");
    thinking("a</think>\n\n", "R(a)");
}

static void test_content(void **state)
{
    (void)state;
    answer("Hello  world\n\n", "C(Hello  world\n\n)");
    answer("\n\n  x", "C(  x)");
    answer("a </think> b </tool_call> <b> < ", "C(a </think> b </tool_call> <b> < )");
    answer("<think>\nhm\n</think>\n\nx", "R(hm)C(x)");
    answer("x <think> y", "C(x <think> y)");
    answer("\n", "");
}

static void test_prompt_ends(void **state)
{
    (void)state;
    check_with("", NULL, "\n x", "C(\n x)");
    check_with("", NULL, "<think>a</think>\nb", "R(a)C(b)");
    check_with("text", NULL, "\n\n", "C(\n\n)");
    check_with("<think>", NULL, "a</think>b", "R(a)C(b)");
    check_with("a</think> \n", NULL, "\nb", "C(b)");
    check_with("<|im_start|>assistant\n", NULL, "<think>\na\n</think>\n\nb", "R(a)C(b)");
    check_with("<|im_start|>assistant\n", NULL, "\nb", "C(b)");
}

static void test_utf8(void **state)
{
    (void)state;
    thinking("caf\xc3\xa9 \xf0\x9f\x98\x80</think>\n\n\xe4\xb8\xad\xe6\x96\x87",
             "R(caf\xc3\xa9 \xf0\x9f\x98\x80)C(\xe4\xb8\xad\xe6\x96\x87)");
    answer("a\xff<\xe4\xb8", "C(a\xef\xbf\xbd<\xef\xbf\xbd)");
    answer("<tool_call><function=f><parameter=k\xc3\xa9y>\xf0\x9f\x98\x80</parameter></function></"
           "tool_call>",
           "B0(f)J0({\"k\xc3\xa9y\": \"\xf0\x9f\x98\x80\"})E0()");
}

/* ---- tool calls ---- */

#define CALL(name, parameters)                                                                     \
    "<tool_call>\n<function=" name ">\n" parameters "</function>\n</tool_call>"
#define PARAMETER(key, value) "<parameter=" key ">\n" value "\n</parameter>\n"
#define ROMA                  CALL("get_weather", PARAMETER("city", "Roma"))
#define ROMA_EVENTS(i)        "B" i "(get_weather)J" i "({\"city\": \"Roma\"})E" i "()"

static void test_calls(void **state)
{
    (void)state;
    answer(ROMA, ROMA_EVENTS("0"));
    answer("Sure.\n\n" ROMA "\n" ROMA, "C(Sure.)" ROMA_EVENTS("0") ROMA_EVENTS("1"));
    thinking("hm\n</think>\n\n" ROMA, "R(hm)" ROMA_EVENTS("0"));
    answer(CALL("now", ""), "B0(now)J0({})E0()");
    answer(
        CALL("get_weather", PARAMETER("city", "a") PARAMETER("days", "3") PARAMETER("raw", "true")),
        "B0(get_weather)J0({\"city\": \"a\", \"days\": 3, \"raw\": true})E0()");
    check_with(NO_THINK, NULL, ROMA, ROMA_EVENTS("0"));
    check_with(THINK, "[]", ROMA, ROMA_EVENTS("0"));
}

static void test_text_around_calls(void **state)
{
    (void)state;
    answer(ROMA "\nDone.", ROMA_EVENTS("0") "C(Done.)");
    answer("A\n\n" ROMA "\nB", "C(A)" ROMA_EVENTS("0") "C(\n\n\nB)");
    answer("A " ROMA "\n\n" ROMA " B\n", "C(A)" ROMA_EVENTS("0") ROMA_EVENTS("1") "C( \n\n B\n)");
    answer("A" ROMA "\n\n", "C(A)" ROMA_EVENTS("0"));
    answer("\n" ROMA "\n\n", ROMA_EVENTS("0"));
}

static void test_calls_in_reasoning(void **state)
{
    (void)state;
    thinking("I call it.\n" ROMA, "R(I call it.)" ROMA_EVENTS("0"));
    thinking(ROMA "\n" ROMA, ROMA_EVENTS("0") ROMA_EVENTS("1"));
    thinking("a\n" ROMA "\n</think>\n\nThere.", "R(a)" ROMA_EVENTS("0") "C(There.)");
    thinking("a\n" ROMA "\nb\n</think>\n\nc</think>", "R(a)" ROMA_EVENTS("0") "C(b\n\nc</think>)");
    thinking("Use <tool_call> then <function=f>.</think>x",
             "R(Use <tool_call> then <function=f>.)C(x)");
    /* What is quoted names no tool. */
    thinking("<tool_call>\n<function=example>\n</think>\nx",
             "R(<tool_call>\n<function=example>)C(x)");
    thinking("<tool_call>\n<function=f", "R(<tool_call>\n<function=f)");
    check_with(THINK, NULL, "a <tool_call><function=g></function>", "R(a)B0(g)J0({})E0()");
}

static void test_no_call(void **state)
{
    (void)state;
    answer("<tool_call>", "C(<tool_call>)");
    answer("<tool_call>\n\n", "C(<tool_call>\n\n)");
    answer("<tool_call>\n{\"name\":\"f\"}\n</tool_call>",
           "C(<tool_call>\n{\"name\":\"f\"}\n</tool_call>)");
    answer("a <tool_call>\n<function>\n", "C(a <tool_call>\n<function>\n)");
    answer("<tool_call>\n<function=>", "C(<tool_call>\n<function=>)");
    answer("<tool_call>\n<function=a\nb>", "C(<tool_call>\n<function=a\nb>)");
    answer("<tool_call><tool_call> <tool_call>\n" ROMA,
           "C(<tool_call><tool_call> <tool_call>)" ROMA_EVENTS("0"));
    answer("<tool_call>\n<function=f" ROMA, "C(<tool_call>\n<function=f)" ROMA_EVENTS("0"));
    answer("<tool_call>\n<function=a\x01>", "C(<tool_call>\n<function=a\x01>)");
    answer("x <function=f> y", "C(x <function=f> y)");
}

static void test_missing_open(void **state)
{
    (void)state;
    answer("<function=f>\n</function>\n</tool_call>", "B0(f)J0({})E0()");
    answer("Sure.\n<function=f>\n</function>", "C(Sure.)B0(f)J0({})E0()");
    answer("\n<function=g>\n</function>", "C(<function=g>\n</function>)");
    check_with(NO_THINK, NULL, "<function=f>", "C(<function=f>)");
    thinking("<function=f>\n</function>\n</think>", "R(<function=f>\n</function>)");
}

static void test_several_functions_in_one_call(void **state)
{
    (void)state;
    answer("<tool_call>\n<function=f>\n</function>\n<function=g>\n</function>\n</tool_call>\nx",
           "B0(f)J0({})E0()B1(g)J1({})E1()C(x)");
    answer("<tool_call>\n<function=f>\n<function=g>\n</function>\n</tool_call>",
           "B0(f)J0({})E0()B1(g)J1({})E1()");
    answer("<tool_call><function=f></function> <function=\nx", "B0(f)J0({})E0()C(<function=\nx)");
}

static void test_missing_newlines(void **state)
{
    (void)state;
    answer("<tool_call><function=get_weather><parameter=city>Roma</parameter><parameter=days>3"
           "</parameter></function></tool_call>",
           "B0(get_weather)J0({\"city\": \"Roma\", \"days\": 3})E0()");
    answer("<tool_call>\n\n  <function=f>  <parameter=a>\n\n\nx\n\n</parameter>  "
           "</function></tool_call>",
           "B0(f)J0({\"a\": \"\\n\\nx\\n\"})E0()");
    answer("<tool_call><function=f><parameter=a></parameter><parameter=b>\n</"
           "parameter><parameter=c>\n\n</parameter></function></tool_call>",
           "B0(f)J0({\"a\": \"\", \"b\": \"\", \"c\": \"\"})E0()");
}

static void test_missing_closings(void **state)
{
    (void)state;
    /* </parameter> */
    answer("<tool_call>\n<function=get_weather>\n<parameter=city>\nRoma\n<parameter=days>\n3\n</"
           "function>\n</tool_call>",
           "B0(get_weather)J0({\"city\": \"Roma\", \"days\": 3})E0()");
    answer("<tool_call>\n<function=f>\n<parameter=a>\n<parameter=b>\nx</function></tool_call>",
           "B0(f)J0({\"a\": \"\", \"b\": \"x\"})E0()");
    answer("<tool_call>\n<function=f>\n<parameter=a>\nx\n</function>",
           "B0(f)J0({\"a\": \"x\"})E0()");
    /* </function> */
    answer("<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n</tool_call>\ny",
           "B0(f)J0({\"a\": \"x\"})E0()C(y)");
    answer("<tool_call>\n<function=f>\n</tool_call>\n" ROMA, "B0(f)J0({})E0()" ROMA_EVENTS("1"));
    /* both */
    answer("<tool_call>\n<function=f>\n<parameter=a>\nx\n</tool_call>",
           "B0(f)J0({\"a\": \"x\"})E0()");
    answer("<tool_call>\n<function=f>\n<parameter=a>\nx\n</tool_call>\n" ROMA,
           "B0(f)J0({\"a\": \"x\"})E0()" ROMA_EVENTS("1"));
    /* </tool_call> */
    answer("<tool_call>\n<function=f>\n</function>\n" ROMA, "B0(f)J0({})E0()" ROMA_EVENTS("1"));
    answer("<tool_call>\n<function=f>\n</function>\n\nText", "B0(f)J0({})E0()C(Text)");
    answer("<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n" ROMA,
           "B0(f)J0({\"a\": \"x\"})E0()" ROMA_EVENTS("1"));
    /* stray text inside */
    answer("<tool_call>\n<function=f>\nhm < "
           "<parameter\n<parameter=a>\nx\n</parameter>\n</function>\n</tool_call>",
           "B0(f)J0({\"a\": \"x\"})E0()");
}

static void test_calls_that_break_off(void **state)
{
    (void)state;
    answer("<tool_call>\n<function=f>", "B0(f)J0({})E0()");
    answer("<tool_call>\n<function=f>\n<parameter=a", "B0(f)J0({})E0()");
    answer("<tool_call>\n<function=f>\n<parameter=a>", "B0(f)J0({\"a\": \"\"})E0()");
    answer("<tool_call>\n<function=f>\n<parameter=a>\nsome te",
           "B0(f)J0({\"a\": \"some te\"})E0()");
    answer("<tool_call>\n<function=f>\n<parameter=a>\nx\n</para", "B0(f)J0({\"a\": \"x\"})E0()");
    answer("<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n</fun",
           "B0(f)J0({\"a\": \"x\"})E0()");
    answer("<tool_call>\n<function=f>\n<parameter=a>\n{\"b\": [1,",
           "B0(f)J0({\"a\": \"{\\\"b\\\": [1,\"})E0()");
    answer("<tool_call>\n<function=f>\n</function>\n</tool_c", "B0(f)J0({})E0()C(</tool_c)");
}

static void test_values_hold_anything(void **state)
{
    (void)state;
    answer(CALL("get_weather", PARAMETER("city", "a < b </ c > <b>\n\n<x>\n")),
           "B0(get_weather)J0({\"city\": \"a < b </ c > <b>\\n\\n<x>\\n\"})E0()");
    answer(CALL("get_weather", PARAMETER("city", "</parameter> x </function> y </tool_call> z")),
           "B0(get_weather)J0({\"city\": \"</parameter> x </function> y </tool_call> z\"})E0()");
    answer(CALL("get_weather", PARAMETER("city", "x\n</parameter>\n\n</parameter>\n</function>")),
           "B0(get_weather)J0({\"city\": "
           "\"x\\n</parameter>\\n\"})E0()C(</parameter>\n</function>\n</tool_call>)");
    answer(CALL("get_weather",
                PARAMETER("city",
                          "\n<parameter=other>\n</think> <think> <tool_call>\n<function=f>\n")),
           "B0(get_weather)J0({\"city\": \"\\n<parameter=other>\\n</think> <think> "
           "<tool_call>\\n<function=f>\\n\"})E0()");
    answer(CALL("get_weather", PARAMETER("city", "\"q\" \\ \t \x01 \x7f \r")),
           "B0(get_weather)J0({\"city\": \"\\\"q\\\" \\\\ \\t \\u0001 \x7f \\r\"})E0()");
    answer(CALL("f", PARAMETER("", "x") PARAMETER("a \"b\"", "y")),
           "B0(f)J0({\"\": \"x\", \"a \\\"b\\\"\": \"y\"})E0()");
}

/* ---- types ---- */

static void value(const char *key, const char *text, const char *expected)
{
    char call[512], events[512];
    snprintf(call, sizeof call, CALL("get_weather", PARAMETER("%s", "%s")), key, text);
    snprintf(events, sizeof events, "B0(get_weather)J0({\"%s\": %s})E0()", key, expected);
    answer(call, events);
}

static void test_typed_values(void **state)
{
    (void)state;
    value("city", "3", "\"3\"");
    value("city", "null", "\"null\"");
    value("city", "{\"a\":1}", "\"{\\\"a\\\":1}\"");
    value("days", "3", "3");
    value("days", " -7 ", "-7");
    value("days", "18446744073709551616", "18446744073709551616");
    value("days", "3.0", "3");
    value("days", "3.5", "\"3.5\"");
    value("days", "three", "\"three\"");
    value("days", "\"3\"", "\"\\\"3\\\"\"");
    value("days", "", "\"\"");
    value("x", "3", "3");
    value("x", "1e5", "100000.0");
    value("x", "-.5", "\"-.5\"");
    value("raw", "true", "true");
    value("raw", "False", "false");
    value("raw", " True ", "true");
    value("raw", "truest", "\"truest\"");
    value("raw", "tr", "\"tr\"");
    value("raw", "1", "\"1\"");
    value("nil", "null", "null");
    value("nil", "None", "null");
    value("opts", "{\"b\":1,\"a\":[1.50,\"x\"]}", "{\"b\": 1, \"a\": [1.5, \"x\"]}");
    value("opts", "{\n  \"b\": {}\n}\n", "{\"b\": {}}");
    value("opts", "[1]", "\"[1]\"");
    value("opts", "{'a': 1}", "\"{'a': 1}\"");
    value("list", "[1, [true]]", "[1, [true]]");
    value("list", "[1", "\"[1\"");
}

static void test_untyped_values(void **state)
{
    (void)state;
    static const char *const keys[] = {"any", "unknown"};
    for (int i = 0; i < 2; i++) {
        value(keys[i], "3", "3");
        value(keys[i], "-1.50", "-1.5");
        value(keys[i], "true", "true");
        value(keys[i], "null", "null");
        value(keys[i], "[1,{}]", "[1, {}]");
        value(keys[i], "True", "\"True\"");
        value(keys[i], "text", "\"text\"");
        value(keys[i], "\"3\"", "\"\\\"3\\\"\"");
        value(keys[i], " 3", "\" 3\"");
        value(keys[i], "3 ", "\"3 \"");
        value(keys[i], "true ", "\"true \"");
        value(keys[i], "nul", "\"nul\"");
        value(keys[i], "3 days", "\"3 days\"");
        value(keys[i], "2024-01-01", "\"2024-01-01\"");
        value(keys[i], "1e999", "\"1e999\"");
    }
}

static void check_schema(const char *schema, const char *text, const char *expected)
{
    char list[1024], call[256], events[256];
    snprintf(
        list, sizeof list,
        "[{\"function\":{\"name\":\"g\",\"parameters\":{\"$defs\":{\"Color\":{\"enum\":[\"red\","
        "\"3\"]},\"a/b~c\":{\"type\":\"integer\"},\"Loop\":{\"anyOf\":[{\"$ref\":"
        "\"#/$defs/Loop\"},{\"$ref\":\"#/$defs/Loop\"}]}},\"properties\":{\"p\":%s}}}}]",
        schema);
    snprintf(call, sizeof call, CALL("g", PARAMETER("p", "%s")), text);
    snprintf(events, sizeof events, "B0(g)J0({\"p\": %s})E0()", expected);
    check_with(NO_THINK, list, call, events);
}

static void test_schemas(void **state)
{
    (void)state;
    check_schema("{\"type\":[\"integer\",\"string\"]}", "3", "3");
    check_schema("{\"type\":[\"string\",\"integer\"]}", "3", "\"3\"");
    check_schema("{\"type\":[\"string\",\"null\"]}", "null", "null");
    check_schema("{\"type\":[\"string\",\"null\"]}", "nullable", "\"nullable\"");
    check_schema("{\"type\":[\"string\",\"null\"]}", "None", "null");
    check_schema("{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"null\"}],\"default\":null}",
                 "null", "null");
    check_schema("{\"anyOf\":[{\"type\":\"array\"},{\"type\":\"string\"}]}", "[1]", "[1]");
    check_schema("{\"anyOf\":[{\"type\":\"array\"},{\"type\":\"string\"}]}", "[1", "\"[1\"");
    check_schema("{\"oneOf\":[{\"type\":\"boolean\"},{\"type\":\"number\"}]}", "True", "true");
    check_schema("{\"type\":\"string\",\"nullable\":true}", "null", "null");
    check_schema("{\"enum\":[\"a\",\"1\"]}", "1", "\"1\"");
    check_schema("{\"enum\":[1,2]}", "1", "1");
    check_schema("{\"const\":18446744073709551616}", "18446744073709551616",
                 "18446744073709551616");
    check_schema("{\"$ref\":\"#/$defs/Color\"}", "3", "\"3\"");
    check_schema("{\"allOf\":[{\"$ref\":\"#/$defs/Color\"}]}", "3", "\"3\"");
    check_schema("{\"$ref\":\"#/$defs/a~1b~0c\"}", "x3", "\"x3\"");
    check_schema("{\"$ref\":\"#/$defs/a~1b~0c\"}", "3", "3");
    check_schema("{\"$ref\":\"#/$defs/Loop\"}", "3", "3");
    check_schema("{\"$ref\":\"#/nowhere\"}", "3", "3");
    check_schema("true", "3", "3");
    check_schema("{\"type\":\"wrong\"}", "x", "\"x\"");
    check_with(NO_THINK,
               "[{\"name\":\"g\",\"parameters\":{\"additionalProperties\":{\"type\":\"string\"}}}]",
               CALL("g", PARAMETER("p", "3")), "B0(g)J0({\"p\": \"3\"})E0()");
}

/* ---- streaming ---- */

/* Strings and text are passed on as they come, but for what may be part of a tag. */
static void test_nothing_held_needlessly(void **state)
{
    (void)state;
    static const struct {
        const char *push, *seen;
    } steps[] = {
        {"Think", "R(Think"},
        {"ing \n", "R(Thinking"},
        {"on<", "R(Thinking \non"},
        {"b> ", "R(Thinking \non<b>"},
        {"</think>\n\nSo", "R(Thinking \non<b>)C(So"},
        {":\n<tool_call>\n<function=get_weather>", "B0(get_weather)J0({"},
        {"<parameter=city>\nNew", "J0({\"city\": \"New"},
        {" York\n", "\"New York"},
        {"</par", "\"New York"},
        {"t", "\"New York\\n</part"},
        {"\n</parameter>\n</function>", "t\"})E0("},
    };
    trace t = {.kind = -1, .whole_utf8 = true};
    calla_chat_parser *p;
    calla_error err;
    assert_ok(calla_chat_parser_create(THINK, strlen(THINK), tools, strlen(tools), on_event, &t, &p,
                                       &err),
              &err);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        assert_ok(calla_chat_parser_push(p, steps[i].push, strlen(steps[i].push), &err), &err);
        size_t n = strlen(steps[i].seen);
        if (t.text.n < n || strcmp(t.text.data + t.text.n - n, steps[i].seen) != 0)
            fail_msg("after \"%s\": %s", steps[i].push, t.text.data);
    }
    assert_ok(calla_chat_parser_finish(p, &err), &err);
    calla_chat_parser_free(p);
    strbuf_free(&t.text);
}

static void test_no_calls(void **state)
{
    (void)state;
    trace t = {.kind = -1, .whole_utf8 = true};
    calla_chat_parser *p;
    calla_error err;
    json_t *list;
    assert_ok(json_parse_text(tools, strlen(tools), "tools", &list, &err), &err);
    assert_ok(chat_parser_create(THINK, strlen(THINK), list, true, on_event, &t, &p, &err), &err);
    json_decref(list);
    static const char text[] = "a " ROMA "</think>" ROMA "\n<function=f>";
    assert_ok(calla_chat_parser_push(p, text, strlen(text), &err), &err);
    assert_ok(calla_chat_parser_finish(p, &err), &err);
    strbuf_putc(&t.text, ')');
    assert_string_equal(t.text.data, "R(a " ROMA ")C(" ROMA "\n<function=f>)");
    calla_chat_parser_free(p);
    strbuf_free(&t.text);
}

static void test_errors(void **state)
{
    (void)state;
    calla_chat_parser *p = NULL;
    calla_error err;
    assert_error(calla_chat_parser_create("", 0, "{}", 2, on_event, NULL, &p, &err),
                 CALLA_ERR_INPUT, &err, "tools: an object instead of an array");
    assert_error(calla_chat_parser_create("", 0, "[", 1, on_event, NULL, &p, &err), CALLA_ERR_INPUT,
                 &err, "tools: not valid JSON");
    assert_null(p);
    calla_chat_parser_free(NULL);
}

/* Megabytes that are held back or looked at again and again: with work that grew with the square of
 * the length this would take hours. */
static void test_hostile_lengths(void **state)
{
    (void)state;
    static const char *const units[] = {"<",
                                        "</",
                                        "<tool_call>",
                                        "<tool_call>\n",
                                        "<tool_call><function=",
                                        "<function=f",
                                        "\n<function=",
                                        " ",
                                        "\n",
                                        "</parameter>",
                                        "\n</parameter>\n",
                                        "</function>",
                                        "</tool_call>",
                                        "\n<parameter=",
                                        "\n<parameter=x",
                                        "<function=f>",
                                        CALL("f", ""),
                                        "<tool_call><function=f>\n\n",
                                        "a",
                                        "\"",
                                        "[",
                                        "</think>",
                                        "\xf0\x9f\x98\x80"};
    static const char *const starts[] = {"",
                                         "<tool_call>",
                                         "<tool_call><function=",
                                         "<tool_call><function=f>",
                                         "<tool_call><function=f><parameter=",
                                         "<tool_call><function=f><parameter=a>",
                                         "<tool_call><function=f><parameter=a>[",
                                         "<tool_call><function=f></function>"};
    enum { BIG = 1 << 17, SMALL = 1 << 13 };
    char *text = malloc(BIG + 128);
    assert_non_null(text);
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        for (size_t s = 0; s < sizeof starts / sizeof *starts; s++) {
            size_t n = strlen(starts[s]), unit = strlen(units[u]);
            memcpy(text, starts[s], n);
            for (; n < BIG; n += unit) memcpy(text + n, units[u], unit);
            free(run(u % 2 ? THINK : NO_THINK, tools, text, n, n, 0));
            free(run(NO_THINK, tools, text, SMALL, 1, 0));
        }
    }
    memset(text, ' ', BIG); /* a long time of nothing to decide */
    memcpy(text, "<tool_call>", 11);
    free(run(NO_THINK, tools, text, BIG, 1, 0));
    free(text);
}

/* ---- round trips ---- */

static uint64_t draws;
static uint32_t draw(uint32_t below)
{
    uint32_t r[4];
    philox4x32(11, draws++, 0, r);
    return r[0] % below;
}

/* Text with all kinds of pieces in it; none of them, in any order, continues a call's structure. */
static void put_pieces(strbuf *out, int n_max, bool tags)
{
    static const char *const words[] = {
        "a",  "the", " ",  " ",  "\n", "\n\n", "caf\xc3\xa9", "\xe4\xb8\xad", "\xf0\x9f\x98\x80",
        "\"", "\\",  "{",  "}",  "3",  "true", "<",           "</",           "<b>",
        ">",  "\t",  "<t", "</p"};
    static const char *const tag_words[] = {
        "<tool_call>x",       "</tool_call>x",          "<function=zz>",    "</function>y",
        "</parameter>z",      "\n</parameter>\nz",      "\n</function>\nq", "<parameter=zz>",
        "\n<parameter=zz>\n", "<tool_call>\n<functio=", "<|im_end|>",       "</thin"};
    for (uint32_t n = draw((uint32_t)n_max + 1); n > 0; n--) {
        if (tags && draw(4) == 0)
            strbuf_puts(out, tag_words[draw(sizeof tag_words / sizeof *tag_words)]);
        else
            strbuf_puts(out, words[draw(sizeof words / sizeof *words)]);
    }
}

static json_t *pick_text(int n_max, bool tags)
{
    strbuf s = {0};
    strbuf_puts(&s, "");
    put_pieces(&s, n_max, tags);
    json_t *string = json_stringn(s.data, s.n);
    strbuf_free(&s);
    return string;
}

static json_t *pick_number(void)
{
    static const double reals[] = {0.5, -1.25, 1e20, 1e-7, 3.0, 0.1};
    return draw(2) ? json_integer((json_int_t)draw(1000) - 500) : json_real(reals[draw(6)]);
}

static json_t *pick_value(int depth)
{
    json_t *v;
    switch (draw(depth > 0 ? 6 : 4)) {
    case 0:
        return pick_number();
    case 1:
        return json_boolean(draw(2));
    case 2:
        return json_null();
    case 3:
        return pick_text(4, true);
    case 4:
        v = json_array();
        for (uint32_t n = draw(4); n > 0; n--) json_array_append_new(v, pick_value(depth - 1));
        return v;
    default:
        v = json_object();
        for (uint32_t n = draw(4); n > 0; n--) {
            char key[8];
            snprintf(key, sizeof key, "k%u", draw(9));
            json_object_set_new(v, key, pick_value(depth - 1));
        }
        return v;
    }
}

static json_t *pick_arguments(void)
{
    json_t *a = json_object();
    if (draw(2)) json_object_set_new(a, "city", pick_text(8, true));
    if (draw(3) == 0) json_object_set_new(a, "days", json_integer(draw(99)));
    if (draw(3) == 0) json_object_set_new(a, "x", pick_number());
    if (draw(3) == 0) json_object_set_new(a, "raw", json_boolean(draw(2)));
    if (draw(3) == 0) json_object_set_new(a, "nil", json_null());
    json_t *v = pick_value(3);
    const char *key = json_is_object(v) ? "opts" : json_is_array(v) ? "list" : "any";
    json_object_set_new(a, key, json_is_string(v) ? json_string("plain words") : v);
    if (json_is_string(v)) json_decref(v);
    return a;
}

/* A string without whitespace at its ends. */
static json_t *strip(json_t *string)
{
    const char *text = json_string_value(string);
    size_t begin = 0, end = json_string_length(string);
    while (begin < end && strchr(" \n\t", text[begin])) begin++;
    while (begin < end && strchr(" \n\t", text[end - 1])) end--;
    json_t *stripped = json_stringn(text + begin, end - begin);
    json_decref(string);
    return stripped;
}

static json_t *pick_assistant(strbuf *expected)
{
    json_t *message = json_object(), *calls = json_array();
    json_t *reasoning = strip(pick_text(10, true)), *content = strip(pick_text(10, true));
    if (json_string_length(reasoning) > 0)
        strbuf_printf(expected, "R(%s)", json_string_value(reasoning));
    if (json_string_length(content) > 0)
        strbuf_printf(expected, "C(%s)", json_string_value(content));
    uint32_t n_calls = draw(3);
    for (uint32_t i = 0; i < n_calls; i++) {
        json_t *arguments = pick_arguments();
        strbuf_printf(expected, "B%u(get_weather)J%u(", i, i);
        json_write_value(expected, arguments);
        strbuf_printf(expected, ")E%u()", i);
        json_array_append_new(
            calls, json_pack("{s:s,s:o}", "name", "get_weather", "arguments", arguments));
    }
    json_object_set_new(message, "role", json_string("assistant"));
    json_object_set_new(message, "reasoning_content", reasoning);
    json_object_set_new(message, "content", content);
    json_object_set_new(message, "tool_calls", calls);
    return message;
}

static void test_round_trips(void **state)
{
    (void)state;
    static const char end[] = "<|im_end|>\n";
    json_t *list;
    calla_error err;
    assert_ok(json_parse_text(tools, strlen(tools), "tools", &list, &err), &err);
    for (int i = 0; i < 1500; i++) {
        strbuf expected = {0};
        strbuf_puts(&expected, "");
        json_t *messages = json_pack("[{s:s,s:s}]", "role", "user", "content", "q");
        calla_prompt prompt, whole;
        assert_ok(chat_render(messages, list, NULL, &prompt, &err), &err);
        json_array_append_new(messages, pick_assistant(&expected));
        const calla_chat_options options = {.no_generation_prompt = true};
        assert_ok(chat_render(messages, list, &options, &whole, &err), &err);
        size_t from = prompt.text.n_bytes, n = whole.text.n_bytes - from - strlen(end);
        assert_memory_equal(whole.text.data, prompt.text.data, from);
        for (size_t step = 0; step <= 2; step++) {
            char *got = run(prompt.text.data, tools, whole.text.data + from, n,
                            step == 2 ? n : step, (uint64_t)i);
            if (strcmp(got, expected.data) != 0)
                fail_msg("conversation %d: %s\ngives %s\nnot   %s", i, whole.text.data + from, got,
                         expected.data);
            free(got);
        }
        strbuf_free(&expected);
        json_decref(messages);
        calla_prompt_free(&prompt);
        calla_prompt_free(&whole);
    }
    json_decref(list);
}

/* Wherever the text breaks off, the arguments are a JSON object. */
static void test_broken_calls_are_valid(void **state)
{
    (void)state;
    static const char text[] = "a\n\n" CALL(
        "get_weather", PARAMETER("city", "x\n\"</param\n") PARAMETER("days", "12")
                           PARAMETER("raw", "true") PARAMETER("opts", "{\"a\": [1, \"b\"]}")
                               PARAMETER("any", "null") PARAMETER("other", "-1.5"));
    for (size_t n = 0; n < sizeof text; n++) {
        char *got = run(NO_THINK, tools, text, n, 3, 0);
        char *arguments = strstr(got, "J0(");
        if (arguments) {
            char *stop = strstr(arguments, ")E0()");
            assert_non_null(stop);
            json_t *v;
            calla_error err;
            assert_ok(json_parse_text(arguments + 3, (size_t)(stop - arguments - 3), "arguments",
                                      &v, &err),
                      &err);
            assert_true(json_is_object(v));
            json_decref(v);
        }
        free(got);
    }
}

int main(void)
{
    const struct CMUnitTest all[] = {
        cmocka_unit_test(test_reasoning),
        cmocka_unit_test(test_content),
        cmocka_unit_test(test_prompt_ends),
        cmocka_unit_test(test_utf8),
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_text_around_calls),
        cmocka_unit_test(test_calls_in_reasoning),
        cmocka_unit_test(test_no_call),
        cmocka_unit_test(test_missing_open),
        cmocka_unit_test(test_several_functions_in_one_call),
        cmocka_unit_test(test_missing_newlines),
        cmocka_unit_test(test_missing_closings),
        cmocka_unit_test(test_calls_that_break_off),
        cmocka_unit_test(test_values_hold_anything),
        cmocka_unit_test(test_typed_values),
        cmocka_unit_test(test_untyped_values),
        cmocka_unit_test(test_schemas),
        cmocka_unit_test(test_nothing_held_needlessly),
        cmocka_unit_test(test_no_calls),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_hostile_lengths),
        cmocka_unit_test(test_round_trips),
        cmocka_unit_test(test_broken_calls_are_valid),
    };
    return cmocka_run_group_tests(all, NULL, NULL);
}
