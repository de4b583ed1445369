/* Grammars of tool calls: what random legal tokens end in is read by the parser of calls as
 * arguments that are valid under the schema of the parameters; calls told apart; refusals. */
#include "grammar/matcher.h"
#include "model/chat.h"
#include "support/json_validator.h"
#include "support/support.h"
#include "support/tokens.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static calla_error err;

/* ---- calls read back ---- */

typedef struct heard {
    int n_calls;
    strbuf name, arguments, other;
} heard;

static void on_event(void *user, const calla_chat_event *e)
{
    heard *h = user;
    if (e->kind == CALLA_CHAT_TOOL_BEGIN) {
        h->n_calls++;
        strbuf_append(&h->name, e->text, e->n_bytes);
    } else if (e->kind == CALLA_CHAT_TOOL_ARGUMENTS) {
        strbuf_append(&h->arguments, e->text, e->n_bytes);
    } else if (e->kind != CALLA_CHAT_TOOL_END) {
        strbuf_append(&h->other, e->text, e->n_bytes);
    }
}

static void heard_free(heard *h)
{
    strbuf_free(&h->name);
    strbuf_free(&h->arguments);
    strbuf_free(&h->other);
}

/* What the parser makes of the inside of one <tool_call>. */
static void hear(const json_t *tools, const strbuf *text, heard *h)
{
    calla_chat_parser *p;
    *h = (heard){0};
    assert_ok(chat_parser_create("", 0, tools, false, on_event, h, &p, &err), &err);
    assert_ok(calla_chat_parser_push(p, "<tool_call>", 11, &err), &err);
    assert_ok(calla_chat_parser_push(p, text->data, (int64_t)text->n, &err), &err);
    assert_ok(calla_chat_parser_push(p, "</tool_call>", 12, &err), &err);
    assert_ok(calla_chat_parser_finish(p, &err), &err);
    calla_chat_parser_free(p);
}

/* One call, with nothing beside it, whose arguments are a JSON object without double keys. */
static json_t *arguments_of(const json_t *tools, const strbuf *text, const char *name)
{
    heard h;
    json_error_t e;
    hear(tools, text, &h);
    json_t *arguments = json_loadb(h.arguments.data ? h.arguments.data : "", h.arguments.n,
                                   JSON_ALLOW_NUL | (name ? JSON_REJECT_DUPLICATES : 0), &e);
    if (h.n_calls != 1 || h.other.n > 0 || !arguments || (name && strcmp(h.name.data, name) != 0))
        fail_msg("%d calls, '%s', arguments %s of %s", h.n_calls, h.other.data ? h.other.data : "",
                 h.arguments.data, text->data);
    heard_free(&h);
    return arguments;
}

/* ---- random calls ---- */

/* Something that ends what is under way, if it may come. */
static bool try_end(matcher *m, random_source *r, strbuf *out)
{
    static const char *const ends[] = {"\n</parameter>\n", "</function>\n", "]", "}", "\"", "x"};
    const char *end = ends[draw_below(r, 6)];
    if (!matcher_accept(m, end, strlen(end))) return false;
    strbuf_puts(out, end);
    return true;
}

static void drive(matcher *m, random_source *r, strbuf *out)
{
    uint32_t *mask = calloc((size_t)tokens->n_mask_words, sizeof *mask);
    matcher_reset(m);
    strbuf_clear(out);
    for (int n = 0; !matcher_may_end(m); n++) {
        size_t n_bytes;
        if (n > 4000) fail_msg("no end: %.300s", out->data);
        if (draw_below(r, n > 150 ? 1 : 3) == 0 && try_end(m, r, out)) continue;
        memset(mask, 0, (size_t)tokens->n_mask_words * sizeof *mask);
        matcher_allow(m, mask);
        int32_t token = draw_token(r, tokens, mask, n > 150);
        if (token < 0) fail_msg("a dead end: %s", out->data);
        assert_true(matcher_accept_token(m, token));
        const char *bytes = token_trie_bytes(tokens, token, &n_bytes);
        strbuf_append(out, bytes, n_bytes);
    }
    free(mask);
}

static json_t *random_parameters(random_source *r)
{
    static const char *const names[] = {"city", "a", "ab", "\xc3\xa9t\xc3\xa9", "n\"q", "x y", ""};
    json_t *properties = json_object(), *required = json_array(), *defs = NULL;
    for (uint32_t i = 0, n = draw_below(r, 5); i <= n; i++) {
        const char *name = names[draw_below(r, 7)];
        json_t *schema = random_schema(r);
        json_decref(defs);
        defs = json_incref(json_object_get(schema, "$defs"));
        json_object_del(schema, "$defs");
        if (draw_below(r, 3) == 0) /* as clients write what may be left out */
            schema = json_pack("{s:[o,{s:s}]}", "anyOf", schema, "type", "null");
        if (!json_object_get(properties, name) && draw_below(r, 3) > 0)
            json_array_append_new(required, json_string(name));
        json_object_set_new(properties, name, schema);
    }
    return json_pack("{s:s,s:o,s:o,s:b,s:o}", "type", "object", "properties", properties,
                     "required", required, "additionalProperties", 0, "$defs", defs);
}

static json_t *one_tool(json_t *parameters)
{
    return json_pack("[{s:s,s:{s:s,s:b,s:o}}]", "type", "function", "function", "name", "f",
                     "strict", 1, "parameters", parameters);
}

static grammar *grammar_of(const json_t *tools)
{
    grammar *g;
    assert_ok(grammar_create_calls(tools, NULL, &g, &err), &err);
    return g;
}

static matcher *follow(const grammar *g)
{
    matcher *m;
    assert_ok(matcher_create(g, tokens, false, &m, &err), &err);
    return m;
}

static void random_calls_have_valid_arguments(void **state)
{
    (void)state;
    random_source r = {.seed = 11};
    strbuf text = {0};
    int n_done = 0, n_refused = 0;
    while (n_done < 250) {
        json_t *parameters = random_parameters(&r), *tools = one_tool(parameters);
        grammar *g;
        if (grammar_create_calls(tools, "f", &g, &err) != CALLA_OK) {
            n_refused++;
            assert_int_equal(strncmp(err.message, "tools[0].function.parameters", 28), 0);
            json_decref(tools);
            continue;
        }
        matcher *m = follow(g);
        for (int k = 0; k < 4; k++) {
            drive(m, &r, &text);
            json_t *arguments = arguments_of(tools, &text, "f");
            if (!json_is_valid(arguments, parameters, parameters))
                fail_msg("%s: %s gave %s", json_dumps(parameters, 0), text.data,
                         json_dumps(arguments, 0));
            json_decref(arguments);
        }
        n_done++;
        matcher_free(m);
        grammar_free(g);
        json_decref(tools);
    }
    strbuf_free(&text);
    assert_true(n_refused < n_done);
}

/* The arguments of a tool that is not strict are anything, but in the form of a call. */
static void calls_of_others_are_whole(void **state)
{
    (void)state;
    random_source r = {.seed = 12};
    strbuf text = {0};
    json_t *tools =
        parse_value("[{\"function\": {\"name\": \"g\", \"parameters\": {\"type\": \"object\", "
                    "\"properties\": {\"n\": {\"type\": \"integer\"}}}}},"
                    "{\"function\": {\"name\": \"get\", \"strict\": true}}]");
    grammar *g = grammar_of(tools);
    matcher *m = follow(g);
    for (int k = 0; k < 200; k++) {
        drive(m, &r, &text);
        json_t *arguments = arguments_of(tools, &text, NULL);
        if (strncmp(text.data, "\n<function=get>", 15) == 0)
            assert_int_equal(json_object_size(arguments), 0);
        json_decref(arguments);
    }
    strbuf_free(&text);
    matcher_free(m);
    grammar_free(g);
    json_decref(tools);
}

/* ---- texts that are and are not calls ---- */

#define P(key, value) "<parameter=" key ">\n" value "\n</parameter>\n"
typedef struct sample {
    const char *parameters;
    const char *good[8], *bad[12];
} sample;

/* clang-format off */
static const sample samples[] = {
    {"{\"type\": \"object\"}", {""}, {P("a", "1"), "\n"}},
    {"{\"type\": \"object\", \"properties\": {\"s\": {\"type\": \"string\"}, \"n\": {\"type\": \"integer\"}}, \"required\": [\"s\", \"n\"]}",
     {P("s", "") P("n", "1"), P("s", "two\nlines\n\n") P("n", "-3"), P("s", "\"a\" <b> </p> \t\x01\xc3\xa9") P("n", "0")},
     {"", P("s", "a"), P("n", "1"), P("n", "1") P("s", "a"), P("s", "a") P("n", "x"), P("s", "a") P("n", "1") P("n", "1"),
      P("s", "a</parameter>") P("n", "1"), P("s", "</function>") P("n", "1"), P("s", "\n<parameter=n>") P("n", "1"), P("s", "</tool_call>") P("n", "1"), P("s", "\xc3") P("n", "1"), P("s", "a") P("n", "1") P("m", "1")}},
    {"{\"type\": \"object\", \"properties\": {\"s\": {\"type\": \"string\", \"minLength\": 1, \"maxLength\": 2}, \"n\": {\"type\": [\"integer\", \"null\"]}}}",
     {"", P("s", "\xc3\xa9<"), P("n", "null"), P("s", "a") P("n", "1")}, {P("s", ""), P("s", "abc"), P("n", ""), P("n", "None")}},
    {"{\"type\": \"object\", \"properties\": {\"s\": {\"enum\": [\"a b\", \"</function>\", \"\\\"\", 3]}}, \"required\": [\"s\"]}",
     {P("s", "a b"), P("s", "\"")}, {P("s", "\"a b\""), P("s", "</function>"), P("s", "a"), P("s", "3")}},
    {"{\"type\": \"object\", \"properties\": {\"s\": {\"type\": \"string\", \"pattern\": \"^[\\\"\\n<a]+$\", \"maxLength\": 4}}, \"required\": [\"s\"]}",
     {P("s", "\"\n<a"), P("s", "\n")}, {P("s", "\\n"), P("s", "b"), P("s", "aaaaa"), P("s", "")}},
    {"{\"type\": \"object\", \"properties\": {\"s\": {\"type\": \"string\", \"format\": \"date\"}}, \"required\": [\"s\"]}",
     {P("s", "2024-02-29")}, {P("s", "2023-02-29"), P("s", "\"2024-02-29\"")}},
    {"{\"type\": \"object\", \"properties\": {\"s\": {\"type\": [\"string\", \"null\"]}}, \"required\": [\"s\"]}",
     {P("s", "null"), P("s", "no"), P("s", "")}, {""}},
    {"{\"type\": \"object\", \"properties\": {\"s\": {\"anyOf\": [{\"type\": \"integer\", \"minimum\": 5}, {\"type\": \"string\"}]}}, \"required\": [\"s\"]}",
     {P("s", "5"), P("s", "five"), P("s", "")}, {P("s", "4"), P("s", " 4"), P("s", "-1")}},
    {"{\"type\": \"object\", \"properties\": {\"o\": {\"type\": \"object\", \"properties\": {\"a</b\": {\"type\": \"string\"}}, \"required\": [\"a</b\"]}}, \"required\": [\"o\"]}",
     {P("o", "{\"a<\\/b\": \"<b><\\/parameter>\"}"), P("o", "{\"a<\\/b\": \"\", \"<<c\": 1}")},
     {P("o", "{\"a</b\": \"\"}"), P("o", "{\"a<\\/b\": \"</parameter>\"}"), P("o", "{\"a<\\/b\": \"\", \"</c\": 1}"), P("o", "{}")}},
    {"{\"type\": \"object\", \"properties\": {\"x\": {}}, \"required\": [\"x\"]}",
     {P("x", "1"), P("x", "{\"a\": [1]}"), P("x", "some text")}, {P("x", "</parameter>")}},
};
/* clang-format on */

static bool takes(matcher *m, const char *inside)
{
    strbuf text = {0};
    strbuf_printf(&text, "\n<function=f>\n%s</function>\n", inside);
    bool ok = true;
    matcher_reset(m);
    for (size_t i = 0; i < text.n && ok; i++) ok = matcher_accept(m, text.data + i, 1);
    strbuf_free(&text);
    return ok && matcher_may_end(m);
}

static void calls_are_told_apart(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        const sample *s = &samples[i];
        json_t *tools = one_tool(parse_value(s->parameters));
        grammar *g = grammar_of(tools);
        matcher *m = follow(g);
        for (int k = 0; k < 8 && s->good[k]; k++)
            if (!takes(m, s->good[k])) fail_msg("%s does not take %s", s->parameters, s->good[k]);
        for (int k = 0; k < 12 && s->bad[k]; k++)
            if (takes(m, s->bad[k])) fail_msg("%s takes %s", s->parameters, s->bad[k]);
        matcher_free(m);
        grammar_free(g);
        json_decref(tools);
    }
}

/* Names that begin alike are all there, however many. */
static void many_tools_can_be_called(void **state)
{
    (void)state;
    json_t *tools = json_array();
    for (int i = 0; i < 500; i++) {
        char name[16];
        snprintf(name, sizeof name, "f%d", i);
        json_array_append_new(
            tools, json_pack("{s:{s:s,s:b}}", "function", "name", name, "strict", i % 2));
    }
    json_object_set_new(json_object_get(json_array_get(tools, 0), "function"), "name",
                        json_string("f"));
    grammar *g = grammar_of(tools);
    matcher *m = follow(g);
    assert_true(takes(m, ""));
    assert_true(takes(m, P("x", "1")));
    matcher_reset(m);
    assert_true(matcher_accept(m, "\n<function=f499>\n</function>\n", 29));
    matcher_reset(m);
    assert_false(matcher_accept(m, "\n<function=f500>\n", 17));
    matcher_free(m);
    grammar_free(g);
    assert_ok(grammar_create_calls(tools, "f7", &g, &err), &err);
    m = follow(g);
    assert_true(matcher_accept(m, "\n<function=f7>\n", 15));
    matcher_reset(m);
    assert_false(matcher_accept(m, "\n<function=f70>\n", 16));
    matcher_free(m);
    grammar_free(g);
    json_decref(tools);
}

/* ---- refusals ---- */

#define HERE "tools[0].function.parameters"
static const char *const refused[][2] = {
    {"{\"not\": {}}", HERE ".not: this keyword is not supported"},
    {"{\"properties\": {\"a\": {\"type\": \"string\", \"pattern\": \"(?=a)\"}}}",
     HERE ".properties.a: pattern: a group that is not plain"},
    {"{\"properties\": {\"a>b\": {\"type\": \"string\"}}}", HERE ".properties: a name of"},
    {"{\"type\": \"array\"}", HERE ": the parameters of a strict function must be one object"},
    {"{\"anyOf\": [{\"type\": \"object\"}, {\"type\": \"object\", \"required\": [\"a\"]}]}",
     HERE ": the parameters of a strict function must be one object"},
    {"{\"properties\": {\"a\": {\"type\": \"integer\", \"minimum\": 2, \"maximum\": 1}}, "
     "\"required\": [\"a\"]}",
     HERE ".properties.a: no value"},
    {"{\"properties\": {\"a\": {\"const\": \"x</function>\"}}, \"required\": [\"a\"]}",
     HERE ".properties.a: no value"},
    {"{\"properties\": {\"a\": {\"anyOf\": [{\"type\": \"integer\"}, {\"type\": \"string\", "
     "\"format\": \"date\"}]}}}",
     HERE ".properties.a.anyOf[1]: a pattern or format beside other types"},
};

static void what_cannot_be_held_is_refused_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        json_t *tools = one_tool(parse_value(refused[i][0]));
        grammar *g = NULL;
        calla_status status = grammar_create_calls(tools, NULL, &g, &err);
        if (status == CALLA_OK) fail_msg("%s is accepted", refused[i][0]);
        assert_error(status, CALLA_ERR_INPUT, &err, refused[i][1]);
        json_decref(tools);
    }
}

/* Limits are those of one schema, for all functions together. */
static void hostile_tools_end_soon(void **state)
{
    (void)state;
    json_t *tools = json_array();
    for (int i = 0; i < 1000; i++) {
        char name[16], pattern[64];
        snprintf(name, sizeof name, "f%d", i);
        snprintf(pattern, sizeof pattern, "^(a|b)*a(a|b){8}c{%d}$", i % 400);
        json_array_append_new(tools,
                              json_pack("{s:{s:s,s:b,s:{s:{s:{s:s,s:s}}}}}", "function", "name",
                                        name, "strict", 1, "parameters", "properties", "p", "type",
                                        "string", "pattern", pattern));
    }
    grammar *g = NULL;
    assert_error(grammar_create_calls(tools, NULL, &g, &err), CALLA_ERR_INPUT, &err, "more than");
    json_decref(tools);
    tools = json_array();
    for (int i = 0; i < 20; i++) {
        char name[16];
        json_t *properties = json_object();
        snprintf(name, sizeof name, "f%d", i);
        for (int k = 0; k < 400; k++) {
            char property[16];
            snprintf(property, sizeof property, "p%d", k);
            json_object_set_new(properties, property, json_pack("{s:i}", "const", 400 * i + k));
        }
        json_array_append_new(tools,
                              json_pack("{s:{s:s,s:b,s:{s:o}}}", "function", "name", name, "strict",
                                        1, "parameters", "properties", properties));
    }
    assert_error(grammar_create_calls(tools, NULL, &g, &err), CALLA_ERR_INPUT, &err,
                 "tools: strict functions have more than");
    json_decref(tools);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_calls_have_valid_arguments),
        cmocka_unit_test(calls_of_others_are_whole),
        cmocka_unit_test(calls_are_told_apart),
        cmocka_unit_test(many_tools_can_be_called),
        cmocka_unit_test(what_cannot_be_held_is_refused_by_name),
        cmocka_unit_test(hostile_tools_end_soon),
    };
    return cmocka_run_group_tests(tests, open_tokens, close_tokens);
}
