/* Grammars: what random legal tokens end in is valid under the schema, and the other way round,
 * nothing invalid passes; masks equal what trying each token says; limits; refusals. */
#include "grammar/matcher.h"
#include "support/json_validator.h"
#include "support/support.h"
#include "support/tokens.h"

#include <stdlib.h>
#include <string.h>

static calla_error err;

static grammar *make(const json_t *schema)
{
    grammar *g;
    assert_ok(grammar_create(&(grammar_spec){.schema = schema}, &g, &err), &err);
    return g;
}

static matcher *follow(const grammar *g)
{
    matcher *m;
    assert_ok(matcher_create(g, tokens, false, &m, &err), &err);
    return m;
}

static bool accepts_text(matcher *m, const char *text, size_t n)
{
    matcher_reset(m);
    for (size_t i = 0; i < n; i++)
        if (!matcher_accept(m, text + i, 1)) return false;
    return matcher_may_end(m);
}

/* ---- texts that are and are not under a schema ---- */

typedef struct sample {
    const char *schema;
    const char *good[8], *bad[12];
} sample;

/* clang-format off */
static const sample samples[] = {
    {"{\"type\": \"null\"}", {"null"}, {"nul", "true", "0", "", "null ", " null"}},
    {"{\"type\": \"boolean\"}", {"true", "false"}, {"null", "True", "\"true\""}},
    {"{\"type\": [\"boolean\", \"null\"]}", {"true", "null"}, {"1", "[]"}},
    {"{\"type\": \"integer\"}", {"0", "-1", "12", "9223372036854775807", "-9223372036854775808"},
     {"01", "-0", "1.0", "1e3", "-", "9223372036854775808", "-9223372036854775809", "+1", ""}},
    {"{\"type\": \"integer\", \"minimum\": 7}", {"7", "8", "70", "100"}, {"6", "-7", "0"}},
    {"{\"type\": \"integer\", \"maximum\": -7}", {"-7", "-8", "-70"}, {"-6", "7", "0", "-"}},
    {"{\"type\": \"integer\", \"exclusiveMinimum\": -1, \"exclusiveMaximum\": 12}",
     {"0", "1", "11", "9"}, {"-1", "12", "13", "20", "100"}},
    {"{\"type\": \"integer\", \"minimum\": -3, \"maximum\": 105}",
     {"-3", "-1", "0", "105", "99", "100"}, {"-4", "106", "110", "1000", "-30"}},
    {"{\"type\": \"integer\", \"minimum\": 0.5, \"maximum\": 2.5}", {"1", "2"}, {"0", "3"}},
    {"{\"allOf\": [{\"minimum\": 9007199254740992}, {\"minimum\": 9007199254740993, \"type\": \"integer\"}], \"maximum\": 9007199254740994, \"exclusiveMaximum\": 9007199254740995}",
     {"9007199254740993", "9007199254740994"}, {"9007199254740992", "9007199254740995"}},
    {"{\"enum\": [9007199254740993, 9007199254740992], \"maximum\": 9007199254740992}", {"9007199254740992"}, {"9007199254740993"}},
    {"{\"type\": \"integer\", \"multipleOf\": 7}", {"0", "7", "-14", "49"}, {"1", "8", "-13"}},
    {"{\"type\": \"integer\", \"multipleOf\": 2.5}", {"0", "5", "-10"}, {"2", "7"}},
    {"{\"type\": \"number\"}", {"0", "-1.5", "1e5", "1.25e-10"}, {"1.", ".5", "-", "1e", "00"}},
    {"{\"type\": \"number\", \"minimum\": 0.5, \"maximum\": 10.25}",
     {"0.5", "0.50", "1", "10.25", "10.2", "9.999", "10"}, {"0.4", "0.49", "10.26", "10.250001", "11", "-1", "0", "1e0"}},
    {"{\"type\": \"number\", \"exclusiveMinimum\": -1, \"exclusiveMaximum\": 0}",
     {"-0.5", "-0.001"}, {"-1", "-1.0", "0", "-0", "-0.0", "0.1"}},
    {"{\"type\": \"number\", \"multipleOf\": 0.05}", {"0.05", "1.1", "-2.25", "3"}, {"0.01", "1.12", "0.055"}},
    {"{\"type\": \"number\", \"multipleOf\": 5}", {"5", "-10", "0"}, {"5.5", "4"}},
    {"{\"type\": \"string\"}",
     {"\"\"", "\"a b\"", "\"\\n\\u00e9\\/\"", "\"\xc3\xa9\xf0\x9f\x98\x80\"", "\"\\ud83d\\ude00\"", "\"\\\\\""},
     {"\"", "a", "\"\n\"", "\"\\x\"", "\"\\ud83d\"", "\"\\ude00\"", "\"\\ud83d\\u0041\"", "\"\xc3\"", "\"\xed\xa0\x80\"", "\"\\u0000\"", "\"\xc0\x80\"", "\"\xf5\x80\x80\x80\""}},
    {"{\"type\": \"string\", \"minLength\": 2, \"maxLength\": 3}",
     {"\"ab\"", "\"abc\"", "\"\xc3\xa9\xc3\xa9\"", "\"\\ud83d\\ude00\\n\"", "\"\xf0\x9f\x98\x80\xf0\x9f\x98\x80\""},
     {"\"a\"", "\"abcd\"", "\"\"", "\"\xc3\xa9\"", "\"\\u0041\""}},
    {"{\"type\": \"string\", \"pattern\": \"^(((((a{0}){1000}){1000}){1000}){1000}){1000}b$\"}", {"\"b\""}, {"\"ab\"", "\"\""}},
    {"{\"type\": \"string\", \"maxLength\": 0}", {"\"\""}, {"\"a\""}},
    {"{\"type\": \"string\", \"pattern\": \"^a+b?$\"}", {"\"a\"", "\"aab\""}, {"\"b\"", "\"abb\"", "\"\""}},
    {"{\"type\": \"string\", \"pattern\": \"b\"}", {"\"b\"", "\"abc\"", "\"\\nb\""}, {"\"\"", "\"ac\""}},
    {"{\"type\": \"string\", \"pattern\": \"^.{2,300}$\"}", {"\"ab\"", "\"\xc3\xa9\\\"\""}, {"\"a\"", "\"a\\n\""}},
    {"{\"type\": \"string\", \"pattern\": \"^a|b$\"}", {"\"axx\"", "\"xxb\""}, {"\"xa\"", "\"bx\""}},
    {"{\"type\": \"string\", \"pattern\": \"^[^a-c]{2}$\"}", {"\"xy\"", "\"\xc3\xa9\\\"\"", "\"\\n\\\\\""}, {"\"xa\"", "\"x\"", "\"xyz\""}},
    {"{\"type\": \"string\", \"pattern\": \"^\\\\w+$\", \"minLength\": 2, \"maxLength\": 3}", {"\"ab\"", "\"a_1\""}, {"\"a\"", "\"abcd\"", "\"a-\""}},
    {"{\"type\": \"string\", \"format\": \"date\"}", {"\"2024-02-29\"", "\"1900-12-31\""}, {"\"2023-02-29\"", "\"1900-02-29\"", "\"2024-13-01\"", "\"2024-04-31\"", "\"0000-01-01\""}},
    {"{\"type\": \"string\", \"format\": \"time\"}", {"\"23:59:59Z\"", "\"00:00:00.5+01:30\""}, {"\"24:00:00Z\"", "\"12:00:00\""}},
    {"{\"type\": \"string\", \"format\": \"date-time\"}", {"\"2024-02-29T23:59:59Z\""}, {"\"2024-02-30T00:00:00Z\"", "\"2024-02-29\""}},
    {"{\"type\": \"string\", \"format\": \"duration\"}", {"\"P1D\"", "\"PT5M\"", "\"P1Y2M3DT4H5M6S\"", "\"P2W\""}, {"\"P\"", "\"PT\"", "\"P1H\"", "\"1D\""}},
    {"{\"type\": \"string\", \"format\": \"uuid\"}", {"\"123e4567-e89b-12d3-a456-426614174000\""}, {"\"123e4567e89b12d3a456426614174000\""}},
    {"{\"type\": \"string\", \"format\": \"ipv4\"}", {"\"127.0.0.1\"", "\"255.1.9.10\""}, {"\"256.0.0.1\"", "\"1.2.3\"", "\"01.2.3.4\""}},
    {"{\"type\": \"string\", \"format\": \"ipv6\"}", {"\"::\"", "\"::1\"", "\"fe80::1:2\"", "\"1:2:3:4:5:6:7:8\"", "\"1::\""}, {"\":\"", "\"1:2:3\"", "\"1::2::3\"", "\"1:2:3:4:5:6:7:8:9\"", "\"::1:2:3:4:5:6:7:8\""}},
    {"{\"type\": \"string\", \"format\": \"email\"}", {"\"a.b+c@example.org\""}, {"\"a@\"", "\"@b\"", "\"a..b@c\"", "\"a b@c\""}},
    {"{\"type\": \"string\", \"format\": \"hostname\"}", {"\"a-b.example\""}, {"\"-a\"", "\"a..b\"", "\"a-.b\""}},
    {"{\"type\": \"string\", \"format\": \"uri\"}", {"\"https://example.org:80/a/b?c=d#e\"", "\"urn:isbn:123\""}, {"\"example.org\"", "\"https://a b\""}},
    {"{\"enum\": [\"a\", \"ab\", 1, null]}", {"\"a\"", "\"ab\"", "1", "null"}, {"\"b\"", "11", "\"abc\"", "2"}},
    {"{\"enum\": [\"a\", 1, null], \"type\": \"string\"}", {"\"a\""}, {"1", "null"}},
    {"{\"const\": {\"x\": [1]}}", {"{\"x\": [1]}"}, {"{\"x\": [2]}", "{}"}},
    {"{\"type\": \"array\", \"items\": {\"type\": \"integer\"}}", {"[]", "[1]", "[1, 2,3]"}, {"[1 ,2]", "[1,  2]", "[,]", "[1,]", "[ 1]", "[\"a\"]", "["}},
    {"{\"type\": \"array\", \"items\": {\"type\": \"null\"}, \"minItems\": 2, \"maxItems\": 3}", {"[null, null]", "[null,null,null]"}, {"[]", "[null]", "[null,null,null,null]"}},
    {"{\"type\": \"array\", \"maxItems\": 1000000, \"minItems\": 1}", {"[1]", "[1,2]"}, {"[]"}},
    {"{\"type\": \"array\", \"maxItems\": 0}", {"[]"}, {"[1]"}},
    {"{\"type\": \"array\", \"items\": false}", {"[]"}, {"[1]"}},
    {"{\"type\": \"array\", \"prefixItems\": [{\"type\": \"integer\"}, {\"type\": \"null\"}], \"items\": {\"type\": \"boolean\"}, \"minItems\": 1, \"maxItems\": 4}",
     {"[1]", "[1, null]", "[1, null, true]", "[1, null, true, false]"}, {"[]", "[null]", "[1, 2]", "[1, null, 3]", "[1, null, true, true, true]"}},
    {"{\"type\": \"array\", \"prefixItems\": [{\"type\": \"integer\"}], \"items\": false}", {"[]", "[1]"}, {"[1, 2]"}},
    {"{\"type\": \"object\"}", {"{}", "{\"a\": 1}", "{\"a\":[{}],\"b\": {\"c\": null}}"}, {"{\"a\"}", "{a: 1}", "{\"a\": }", "{\"a\": 1,}", "[]", "{ }"}},
    {"{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}, \"ab\": {\"type\": \"null\"}}, \"required\": [\"ab\"], \"additionalProperties\": false}",
     {"{\"ab\": null}", "{\"a\": 1, \"ab\": null}"}, {"{}", "{\"a\": 1}", "{\"ab\": null, \"a\": 1}", "{\"ab\": 1}", "{\"ab\": null, \"ab\": null}", "{\"abc\": 1}", "{\"ab\": null, \"c\": 1}"}},
    {"{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}, \"b\": {}}, \"required\": [\"a\"], \"additionalProperties\": {\"type\": \"boolean\"}}",
     {"{\"a\": 1}", "{\"a\": 1, \"c\": true}", "{\"a\": 1, \"b\": [], \"aa\": true, \"\": false}", "{\"a\": 1, \"\\n\": true}"},
     {"{\"c\": true}", "{\"a\": 1, \"c\": 1}", "{\"a\": 1, \"a\": true}", "{\"a\": 1, \"\\u0061\": true}", "{\"a\": 1, \"c\": true, \"b\": 1}"}},
    {"{\"type\": \"object\", \"properties\": {\"a\": false, \"b\": {\"type\": \"integer\"}}}", {"{}", "{\"b\": 1}", "{\"c\": 1}"}, {"{\"a\": 1}"}},
    {"{\"type\": \"object\", \"required\": [\"x\"]}", {"{\"x\": 1}", "{\"x\": {}, \"y\": 1}"}, {"{}", "{\"y\": 1}"}},
    {"{\"anyOf\": [{\"type\": \"integer\"}, {\"type\": \"string\", \"maxLength\": 1}, {\"type\": \"integer\", \"minimum\": 5}]}", {"3", "7", "\"a\""}, {"\"ab\"", "null"}},
    {"{\"anyOf\": [{\"required\": [\"a\"]}, {\"required\": [\"b\"]}], \"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}, \"b\": {\"type\": \"integer\"}}, \"additionalProperties\": false}",
     {"{\"a\": 1}", "{\"b\": 1}", "{\"a\": 1, \"b\": 2}"}, {"{}", "{\"a\": null}"}},
    {"{\"oneOf\": [{\"type\": \"integer\", \"maximum\": 3}, {\"type\": \"integer\", \"minimum\": 4}, {\"const\": \"x\"}, {\"enum\": [\"y\"]}]}", {"3", "4", "\"x\"", "\"y\""}, {"\"z\""}},
    {"{\"allOf\": [{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\", \"minimum\": 3}}}, {\"properties\": {\"a\": {\"maximum\": 5}, \"b\": {\"type\": \"null\"}}, \"required\": [\"a\", \"b\"]}], \"additionalProperties\": true}",
     {"{\"a\": 4, \"b\": null}"}, {"{\"a\": 6, \"b\": null}", "{\"a\": 2, \"b\": null}", "{\"a\": 4}"}},
    {"{\"allOf\": [{\"enum\": [1, 2, 3]}, {\"enum\": [2, 3, 4]}, {\"minimum\": 3}]}", {"3"}, {"2", "4"}},
    {"{\"$ref\": \"#/$defs/n\", \"$defs\": {\"n\": {\"type\": \"object\", \"properties\": {\"next\": {\"anyOf\": [{\"$ref\": \"#/$defs/n\"}, {\"type\": \"null\"}]}}, \"required\": [\"next\"], \"additionalProperties\": false}}}",
     {"{\"next\": null}", "{\"next\": {\"next\": null}}"}, {"{}", "{\"next\": {}}", "{\"next\": 1}"}},
    {"{\"type\": \"array\", \"items\": {\"$ref\": \"#\"}, \"title\": \"t\", \"description\": \"d\", \"default\": 1, \"examples\": [1], \"$schema\": \"s\", \"$id\": \"i\", \"deprecated\": true}", {"[]", "[[], [[]]]"}, {"[1]"}},
    {"{\"$defs\": {\"a/b~c\": {\"type\": \"null\"}}, \"$ref\": \"#/$defs/a~1b~0c\", \"description\": \"x\"}", {"null"}, {"1"}},
    {"{\"$defs\": {\"s\": {\"type\": \"string\"}}, \"$ref\": \"#/$defs/s\", \"maxLength\": 1}", {"\"a\""}, {"\"ab\""}},
    {"true", {"1", "{\"a\": [null]}"}, {"", "nope"}},
};
/* clang-format on */

static void texts_are_told_apart(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        const sample *s = &samples[i];
        json_t *schema = parse_value(s->schema);
        grammar *g = make(schema);
        matcher *m = follow(g);
        for (int k = 0; k < 8 && s->good[k]; k++) {
            if (!accepts_text(m, s->good[k], strlen(s->good[k])))
                fail_msg("%s does not take %s", s->schema, s->good[k]);
        }
        for (int k = 0; k < 12 && s->bad[k]; k++)
            if (accepts_text(m, s->bad[k], strlen(s->bad[k])))
                fail_msg("%s takes %s", s->schema, s->bad[k]);
        matcher_free(m);
        grammar_free(g);
        json_decref(schema);
    }
}

/* ---- refusals ---- */

/* clang-format off */
static const char *const refused[][2] = {
    {"{\"not\": {}}", "schema.not: this keyword is not supported"},
    {"{\"properties\": {\"a\": {\"if\": {}}}}", "schema.properties.a.if: this keyword"},
    {"{\"patternProperties\": {}}", "schema.patternProperties: this keyword"},
    {"{\"type\": \"array\", \"uniqueItems\": true}", "schema.uniqueItems: is not supported"},
    {"{\"type\": \"array\", \"contains\": {}}", "schema.contains: this keyword"},
    {"{\"type\": \"object\", \"minProperties\": 1}", "schema.minProperties: this keyword"},
    {"{\"type\": \"text\"}", "schema.type: must name"},
    {"{\"type\": 3}", "schema.type: must name"},
    {"3", "schema: a schema must be an object, true or false, not"},
    {"{\"anyOf\": [{}, 1]}", "schema.anyOf[1]: a schema must be"},
    {"{\"anyOf\": []}", "schema.anyOf: must be an array that is not empty"},
    {"{\"enum\": []}", "schema.enum: must be an array that is not empty"},
    {"{\"type\": \"string\", \"enum\": [1]}", "no value is valid"},
    {"{\"type\": \"integer\", \"minimum\": 3, \"maximum\": 2}", "no value is valid"},
    {"{\"type\": \"string\", \"minLength\": 3, \"maxLength\": 2}", "no value is valid"},
    {"{\"type\": \"string\", \"pattern\": \"^a$\", \"minLength\": 2}", "no value is valid"},
    {"{\"type\": \"array\", \"items\": {\"enum\": [1], \"type\": \"null\"}, \"minItems\": 1}", "no value is valid"},
    {"{\"type\": \"object\", \"properties\": {\"a\": false}, \"required\": [\"a\"]}", "no value is valid"},
    {"{\"type\": \"object\", \"properties\": {\"a\": {\"$ref\": \"#\"}}, \"required\": [\"a\"]}", "no value is valid"},
    {"{\"type\": \"object\", \"required\": [\"a\"], \"additionalProperties\": false}", "no value is valid"},
    {"false", "no value is valid"},
    {"{\"$ref\": \"#\"}", "leads to itself"},
    {"{\"anyOf\": [{\"$ref\": \"#\"}]}", "schema: a reference that leads to itself"},
    {"{\"allOf\": [{\"$ref\": \"#/$defs/a\"}, {\"type\": \"null\"}], \"$defs\": {\"a\": {\"anyOf\": [{\"$ref\": \"#/$defs/b\"}]}, \"b\": {\"anyOf\": [{\"$ref\": \"#/$defs/a\"}]}}}", "leads to itself"},
    {"{\"properties\": {\"a\": {\"type\": \"string\", \"pattern\": \"(?!a)\"}}}", "schema.properties.a: pattern: a group that is not plain (a lookahead"},
    {"{\"items\": {\"type\": \"string\", \"format\": \"email\", \"maxLength\": 4000000}}", "schema.items: format: a pattern or format with lengths"},
    {"{\"items\": {\"allOf\": [{\"minimum\": 1e300}, {\"type\": \"number\"}]}}", "schema.items.allOf[0]: minimum: a bound of more than"},
    {"{\"properties\": {\"a\": {\"type\": \"number\", \"multipleOf\": 0.12345}}}", "schema.properties.a: multipleOf: only up to"},
    {"{\"$ref\": \"other.json\"}", "schema.$ref: 'other.json' is nowhere in this schema"},
    {"{\"$ref\": \"#/$defs/x\"}", "is nowhere"},
    {"{\"$ref\": 1}", "schema.$ref: must be a string"},
    {"{\"allOf\": [{\"$ref\": \"#\"}, {\"type\": \"null\"}]}", "contains itself"},
    {"{\"type\": \"string\", \"format\": \"regex\"}", "schema.format: 'regex' is not supported"},
    {"{\"type\": \"string\", \"pattern\": \"(?=a)\"}", "a group that is not plain (a lookahead"},
    {"{\"type\": \"string\", \"pattern\": \"(a)\\\\1\"}", "an escape that is not supported"},
    {"{\"type\": \"string\", \"pattern\": \"(\"}", "a group without its end"},
    {"{\"type\": \"string\", \"pattern\": \"a)\"}", "a ')' too many"},
    {"{\"type\": \"string\", \"pattern\": \"[b-a]\"}", "a range that is not one"},
    {"{\"type\": \"string\", \"pattern\": \"^(a{1000}){1000}$\"}", "too large"},
    {"{\"type\": \"string\", \"pattern\": \"(a|b)*a(a|b){20}$\"}", "too large"},
    {"{\"type\": \"string\", \"pattern\": \"a\", \"format\": \"date\"}", "pattern and format in one"},
    {"{\"type\": \"string\", \"pattern\": \"^a*$\", \"maxLength\": 100000000}", "lengths"},
    {"{\"type\": \"string\", \"maxLength\": -1}", "schema.maxLength: must be a whole number"},
    {"{\"type\": \"integer\", \"minimum\": \"1\"}", "schema.minimum: must be a number"},
    {"{\"type\": \"number\", \"exclusiveMinimum\": true}", "schema.exclusiveMinimum: must be a number"},
    {"{\"type\": \"number\", \"minimum\": 0.1234567890123456}", "minimum: a bound of more than"},
    {"{\"type\": \"number\", \"minimum\": 1e300}", "minimum: a bound of more than"},
    {"{\"type\": \"integer\", \"multipleOf\": 12345}", "multipleOf: only up to"},
    {"{\"type\": \"integer\", \"multipleOf\": 0}", "schema.multipleOf: must be above 0"},
    {"{\"oneOf\": [{\"type\": \"integer\"}, {\"type\": \"number\"}]}", "schema.oneOf: alternatives 0 and 1 might both hold"},
    {"{\"oneOf\": [{\"minimum\": 3}, {\"type\": \"string\"}]}", "might both hold"},
    {"{\"oneOf\": [{\"const\": 1}, {\"const\": 1.0}]}", "might both hold"},
    {"{\"oneOf\": [{\"type\": \"object\"}, {\"type\": \"object\", \"required\": [\"a\"]}]}", "might both hold"},
    {"{\"enum\": [{\"a\": 1}], \"properties\": {\"a\": {\"type\": \"integer\"}}}", "enum or const beside"},
    {"{\"required\": \"a\"}", "schema.required: must be an array of names"},
    {"{\"properties\": []}", "schema.properties: must be an object"},
    {"{\"additionalProperties\": 1}", "schema.additionalProperties: a schema must be"},
};
/* clang-format on */

static void what_cannot_be_held_is_refused_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        json_t *schema = parse_value(refused[i][0]);
        grammar *g = NULL;
        calla_status status = grammar_create(&(grammar_spec){.schema = schema}, &g, &err);
        if (status == CALLA_OK) fail_msg("%s is accepted", refused[i][0]);
        assert_error(status, CALLA_ERR_INPUT, &err, refused[i][1]);
        json_decref(schema);
    }
}

/* ---- random texts ---- */

static int32_t token_of(char c)
{
    calla_tokens ids;
    assert_ok(calla_tokenizer_encode(tokens->tokenizer, &c, 1, NULL, 0, &ids, &err), &err);
    int32_t id = ids.ids[0];
    calla_tokens_free(&ids);
    return id;
}

/* A token of the mask: often one that ends something, and so always in the end; -1 = none. */
static int32_t choose(random_source *r, const uint32_t *mask, int n_chosen)
{
    static const char ends[] = "]}\"x";
    bool end_soon = n_chosen > 150;
    for (int i = 0; i < 6 && draw_below(r, end_soon ? 2 : 8) == 0; i++) {
        int32_t end = token_of(ends[draw_below(r, 4)]);
        if (mask_allows(mask, end)) return end;
    }
    return draw_token(r, tokens, mask, end_soon);
}

/* Drives the matcher to an end, with the text in *out. */
static void drive(matcher *m, random_source *r, strbuf *out)
{
    uint32_t *mask = calloc((size_t)tokens->n_mask_words, sizeof *mask);
    matcher_reset(m);
    strbuf_clear(out);
    for (int n = 0;; n++) {
        size_t n_bytes;
        memset(mask, 0, (size_t)tokens->n_mask_words * sizeof *mask);
        matcher_allow(m, mask);
        if (matcher_may_end(m) && (n > 150 || draw_below(r, 4) == 0)) break;
        int32_t token = choose(r, mask, n);
        if (token < 0) {
            assert_true(matcher_may_end(m)); /* never a dead end */
            break;
        }
        if (n > 4000) fail_msg("no end: %.300s", out->data);
        assert_true(matcher_accept_token(m, token));
        const char *bytes = token_trie_bytes(tokens, token, &n_bytes);
        strbuf_append(out, bytes, n_bytes);
    }
    free(mask);
}

/* A schema that something is valid under. */
static grammar *random_grammar(random_source *r, json_t **schema)
{
    for (;;) {
        grammar *g;
        *schema = random_schema(r);
        if (grammar_create(&(grammar_spec){.schema = *schema}, &g, &err) == CALLA_OK) return g;
        if (!strstr(err.message, "no value is valid") && !strstr(err.message, "leads to itself") &&
            !strstr(err.message, "contains itself"))
            fail_msg("%s: %s", json_dumps(*schema, JSON_ENCODE_ANY), err.message);
        json_decref(*schema);
    }
}

static json_t *read_back(const strbuf *text)
{
    json_error_t e;
    return json_loadb(text->data ? text->data : "", text->n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
}

static void random_tokens_end_in_valid_values(void **state)
{
    (void)state;
    random_source r = {.seed = 1};
    strbuf text = {0};
    for (int i = 0; i < 500; i++) {
        json_t *schema;
        grammar *g = random_grammar(&r, &schema);
        matcher *m = follow(g);
        for (int k = 0; k < 4; k++) {
            drive(m, &r, &text);
            json_t *value = read_back(&text);
            if (!value || !json_is_valid(value, schema, schema))
                fail_msg("%s gave %s", json_dumps(schema, 0), text.data);
            json_decref(value);
        }
        matcher_free(m);
        grammar_free(g);
        json_decref(schema);
    }
    strbuf_free(&text);
}

/* Texts of one schema under another, and damaged ones: what passes is valid. */
static void nothing_invalid_passes(void **state)
{
    (void)state;
    random_source r = {.seed = 2};
    strbuf text = {0};
    int n_passed = 0, n_refused = 0;
    json_t *schema, *other_schema;
    grammar *other = random_grammar(&r, &other_schema);
    for (int i = 0; i < 400; i++) {
        grammar *g = random_grammar(&r, &schema);
        matcher *m = follow(g), *writer = follow(draw_below(&r, 2) ? g : other);
        for (int k = 0; k < 40; k++) {
            if (k % 8 == 0) drive(writer, &r, &text);
            strbuf damaged = {0};
            strbuf_append(&damaged, text.data, text.n);
            if (k % 8 != 0 && text.n > 0)
                damaged.data[draw_below(&r, (uint32_t)text.n)] =
                    "0123456789-.eE\"\\{}[]:, abnu\xc3\xa9"[draw_below(&r, 27)];
            bool passed = accepts_text(m, damaged.data ? damaged.data : "", damaged.n);
            json_t *value = passed ? read_back(&damaged) : NULL;
            if (passed && (!value || !json_is_valid(value, schema, schema)))
                fail_msg("%s takes %s", json_dumps(schema, 0), damaged.data);
            n_passed += passed, n_refused += !passed;
            json_decref(value);
            strbuf_free(&damaged);
        }
        matcher_free(m);
        matcher_free(writer);
        grammar_free(other);
        json_decref(other_schema);
        other = g;
        other_schema = schema;
    }
    grammar_free(other);
    json_decref(other_schema);
    strbuf_free(&text);
    assert_true(n_passed > 1000 && n_refused > 1000);
}

/* ---- masks ---- */

static void accept_again(matcher *m, const strbuf *text)
{
    matcher_reset(m);
    for (size_t i = 0; i < text->n; i++)
        if (!matcher_accept(m, text->data + i, 1))
            fail_msg("byte %zu of %.*s", i, (int)text->n, text->data);
}

/* The mask against the tokens one by one, at a random place of a text. */
static void check_mask(matcher *m, const strbuf *text)
{
    uint32_t *mask = calloc((size_t)tokens->n_mask_words, sizeof *mask);
    accept_again(m, text);
    matcher_allow(m, mask);
    for (int32_t id = 0; id < tokens->n_tokens; id++) {
        bool accepted = matcher_accept_token(m, id);
        if (accepted != mask_allows(mask, id)) {
            size_t n;
            const char *bytes = token_trie_bytes(tokens, id, &n);
            fail_msg("after %.*s: '%.*s' is %d, the mask says %d", (int)text->n, text->data, (int)n,
                     bytes, accepted, mask_allows(mask, id));
        }
        if (accepted) accept_again(m, text);
    }
    free(mask);
}

static void masks_are_what_trying_each_token_says(void **state)
{
    (void)state;
    random_source r = {.seed = 3};
    strbuf text = {0};
    for (int i = 0; i < 60; i++) {
        json_t *schema;
        grammar *g = random_grammar(&r, &schema);
        matcher *m = follow(g);
        drive(m, &r, &text);
        for (int k = 0; k < 4; k++) {
            strbuf part = text;
            part.n = draw_below(&r, (uint32_t)text.n + 1);
            check_mask(m, &part);
        }
        matcher_free(m);
        grammar_free(g);
        json_decref(schema);
    }
    strbuf_free(&text);
}

/* ---- limits ---- */

static grammar *grammar_of_text(const char *text)
{
    json_t *schema = parse_value(text);
    grammar *g = make(schema);
    json_decref(schema);
    return g;
}

/* At the deepest there is still a way to the end. */
static void nesting_is_bounded_and_can_be_closed(void **state)
{
    (void)state;
    grammar *g = grammar_of_text("{\"type\": \"array\"}");
    matcher *m = follow(g);
    uint32_t *mask = calloc((size_t)tokens->n_mask_words, sizeof *mask);
    int depth = 0;
    while (matcher_accept(m, "[", 1)) depth++;
    assert_int_equal(depth, MAX_FRAMES + 1);
    matcher_allow(m, mask);
    assert_true(mask_allows(mask, token_of(']')));
    assert_false(mask_allows(mask, token_of('[')));
    assert_false(matcher_may_end(m));
    while (depth-- > 0) assert_true(matcher_accept(m, "]", 1));
    assert_true(matcher_may_end(m));
    assert_false(matcher_accept(m, "]", 1));
    free(mask);
    matcher_free(m);
    grammar_free(g);
}

static void hostile_schemas_end_soon(void **state)
{
    (void)state;
    /* Fifty choices of two, all at once: 2^50 combinations. */
    json_t *list = json_array();
    for (int i = 0; i < 50; i++) {
        char a[16], b[16];
        snprintf(a, sizeof a, "a%d", i);
        snprintf(b, sizeof b, "b%d", i);
        json_array_append_new(list,
                              json_pack("{s:[{s:s,s:[s]},{s:s,s:[s]}]}", "anyOf", "type", "object",
                                        "required", a, "type", "object", "required", b));
    }
    json_t *schema = json_pack("{s:o}", "allOf", list);
    grammar *g = NULL;
    assert_error(grammar_create(&(grammar_spec){.schema = schema}, &g, &err), CALLA_ERR_INPUT, &err,
                 "combinations multiply them");
    json_decref(schema);
    /* References that double: 2^40 values of size, but 40 parts. */
    json_t *defs = json_object();
    for (int i = 0; i < 40; i++) {
        char name[16], next[32];
        snprintf(name, sizeof name, "d%d", i);
        snprintf(next, sizeof next, "#/$defs/d%d", i + 1);
        json_object_set_new(defs, name,
                            json_pack("{s:s,s:{s:{s:s},s:{s:s}}}", "type", "object", "properties",
                                      "a", "$ref", next, "b", "$ref", next));
    }
    json_object_set_new(defs, "d40", json_pack("{s:s}", "type", "null"));
    schema = json_pack("{s:s,s:o}", "$ref", "#/$defs/d0", "$defs", defs);
    g = make(schema);
    assert_true(g->a.n_states < 4000);
    grammar_free(g);
    json_decref(schema);
    /* Comparisons for oneOf that would double with every level. */
    defs = json_object();
    for (int i = 0; i < 12; i++) {
        char name[16], next[32];
        json_t *properties = json_object(), *required = json_array();
        snprintf(name, sizeof name, "d%d", i);
        snprintf(next, sizeof next, "#/$defs/d%d", i + 1);
        for (int k = 0; k < 50; k++) {
            char key[16];
            snprintf(key, sizeof key, "p%d", k);
            json_object_set_new(
                properties, key,
                json_pack("{s:[{s:s},{s:s}]}", "anyOf", "$ref", next, "type", "null"));
            json_array_append_new(required, json_string(key));
        }
        json_object_set_new(defs, name,
                            json_pack("{s:s,s:o,s:o}", "type", "object", "properties", properties,
                                      "required", required));
    }
    json_object_set_new(defs, "d12", json_pack("{s:s}", "type", "string"));
    schema = json_pack("{s:[{s:s,s:[s]},{s:s,s:[s]}],s:o}", "oneOf", "$ref", "#/$defs/d0",
                       "required", "x", "$ref", "#/$defs/d0", "required", "y", "$defs", defs);
    assert_error(grammar_create(&(grammar_spec){.schema = schema}, &g, &err), CALLA_ERR_INPUT, &err,
                 "schema.oneOf: its alternatives take too many comparisons");
    json_decref(schema);
    /* Patterns that are heavy one by one, and many of them. */
    list = json_array();
    for (int i = 0; i < 400; i++) {
        char pattern[64];
        snprintf(pattern, sizeof pattern, "^(a|b)*a(a|b){8}c{%d}$", i);
        json_array_append_new(list, json_pack("{s:s,s:s}", "type", "string", "pattern", pattern));
    }
    schema = json_pack("{s:o}", "anyOf", list);
    assert_error(grammar_create(&(grammar_spec){.schema = schema}, &g, &err), CALLA_ERR_INPUT, &err,
                 "more than");
    json_decref(schema);
    /* Names that are required, without end. */
    list = json_array();
    for (int i = 0; i < 200000; i++) {
        char name[16];
        snprintf(name, sizeof name, "n%d", i);
        json_array_append_new(list, json_string(name));
    }
    schema = json_pack("{s:o}", "required", list);
    assert_error(grammar_create(&(grammar_spec){.schema = schema}, &g, &err), CALLA_ERR_INPUT, &err,
                 "schema.required: more than 5000 names");
    json_decref(schema);
    /* Values that must nest deeper than there are frames. */
    schema = parse_value("{\"type\": \"null\"}");
    for (int i = 0; i < 150; i++)
        schema = json_pack("{s:s,s:o,s:i}", "type", "array", "items", schema, "minItems", 1);
    assert_error(grammar_create(&(grammar_spec){.schema = schema}, &g, &err), CALLA_ERR_INPUT, &err,
                 "nest deeper than 128");
    json_decref(schema);
}

static void expect_refusal(json_t *schema, const char *message)
{
    grammar *g = NULL;
    assert_error(grammar_create(&(grammar_spec){.schema = schema}, &g, &err), CALLA_ERR_INPUT, &err,
                 message);
    json_decref(schema);
}

/* What costs no schema of its own is counted, too: references, and lists that are shared. */
static void links_of_schemas_are_bounded(void **state)
{
    (void)state;
    json_t *refs = json_array(), *no = json_array(), *both = json_array();
    for (int i = 0; i < 200000; i++)
        json_array_append_new(refs, json_pack("{s:s}", "$ref", "#/$defs/a"));
    expect_refusal(json_pack("{s:o,s:{s:{s:s}}}", "anyOf", refs, "$defs", "a", "type", "null"),
                   "schema: more than 10000 subschemas");
    for (int i = 0; i < 5000; i++) json_array_append_new(no, json_false());
    for (int i = 0; i < 1000; i++)
        json_array_append_new(both, json_pack("{s:s,s:{s:s},s:i}", "$ref", "#/$defs/a", "items",
                                              "type", "null", "maxItems", i));
    expect_refusal(json_pack("{s:o,s:{s:{s:o}}}", "anyOf", both, "$defs", "a", "anyOf", no),
                   "schema: more than 20000 alternatives in all");
}

/* Comparisons for oneOf count what they look at, the names of properties and values. */
static void comparisons_of_names_and_values_are_bounded(void **state)
{
    (void)state;
    json_t *a = json_object(), *b = json_object(), *c = json_object(), *d = json_object();
    for (int i = 0; i < 1200; i++) {
        char name[16];
        snprintf(name, sizeof name, "a%d", i);
        json_object_set_new(a, name, json_pack("{s:s}", "$ref", "#/$defs/c"));
        json_object_set_new(b, name, json_pack("{s:s}", "$ref", "#/$defs/d"));
        snprintf(name, sizeof name, "c%d", i);
        json_object_set_new(c, name, json_true());
        name[0] = 'd';
        json_object_set_new(d, name, json_true());
    }
    json_t *defs = json_object(), *both[] = {a, b, c, d};
    for (int i = 0; i < 4; i++) {
        char name[] = {(char)('a' + i), '\0'};
        json_t *required = json_array();
        for (void *k = json_object_iter(both[i]); k; k = json_object_iter_next(both[i], k))
            json_array_append_new(required, json_string(json_object_iter_key(k)));
        json_object_set_new(defs, name,
                            json_pack("{s:s,s:o,s:o}", "type", "object", "properties", both[i],
                                      "required", required));
    }
    expect_refusal(json_pack("{s:[{s:s},{s:s}],s:o}", "oneOf", "$ref", "#/$defs/a", "$ref",
                             "#/$defs/b", "$defs", defs),
                   "schema.oneOf: its alternatives take too many comparisons");
}

/* Lengths that no text of a pattern has cost their work, too. */
static void patterns_and_names_are_bounded_in_sum(void **state)
{
    (void)state;
    json_t *list = json_array(), *properties = json_object();
    for (int i = 0; i < 1000; i++)
        json_array_append_new(list, json_pack("{s:s,s:s,s:i}", "type", "string", "pattern",
                                              "^[a-z]{1000}$", "minLength", 3000 + i));
    expect_refusal(json_pack("{s:o}", "prefixItems", list), "take too much work");
    char *name = malloc(100001);
    memset(name, 'x', 100000);
    for (int i = 0; i < 12; i++) {
        snprintf(name + 99900, 101, "%d", i);
        json_object_set_new(properties, name, json_true());
    }
    free(name);
    expect_refusal(json_pack("{s:o}", "properties", properties),
                   "the names of properties have more than 1048576 bytes");
}

/* Choices of choices are as wide as they are; what is given up never leaves nothing. */
static void choices_of_choices_can_be_begun(void **state)
{
    (void)state;
    json_t *list = json_array();
    for (int i = 0; i < 400; i++)
        json_array_append_new(list, json_pack("{s:[{s:i},{s:{s:i},s:s}]}", "anyOf", "const", i,
                                              "items", "const", i, "type", "array"));
    json_t *schema = json_pack("{s:o}", "anyOf", list);
    grammar *g = make(schema);
    matcher *m = follow(g);
    random_source r = {.seed = 5};
    strbuf text = {0};
    for (int i = 0; i < 20; i++) {
        drive(m, &r, &text);
        json_t *value = read_back(&text);
        assert_true(value && json_is_valid(value, schema, schema));
        json_decref(value);
    }
    strbuf_free(&text);
    matcher_free(m);
    grammar_free(g);
    json_decref(schema);
}

/* Near the deepest, a property that still fits may be one that can no longer come: neither the
 * comma nor the beginning of a key may be taken for it. */
static void optional_properties_that_do_not_fit_are_not_begun(void **state)
{
    (void)state;
    static const char deep[] = "[[[[[[[[[[";
    char schema[1024] = "{\"type\": \"null\"}", whole[1024];
    for (size_t i = 0; i + 1 < sizeof deep; i++) {
        snprintf(whole, sizeof whole, "{\"type\": \"array\", \"minItems\": 1, \"items\": %.900s}",
                 schema);
        strcpy(schema, whole);
    }
    snprintf(whole, sizeof whole,
             "{\"additionalProperties\": false, \"properties\": {\"next\": {\"$ref\": \"#\"}, "
             "\"da\": {\"type\": \"null\"}, \"x\": {\"type\": \"null\"}, \"de\": %.800s}}",
             schema);
    grammar *g = grammar_of_text(whole);
    matcher *m = follow(g);
    int n_begun = 0, n_not = 0;
    for (int depth = 0; depth < MAX_FRAMES; depth++) {
        matcher_reset(m);
        for (int i = 0; i < depth; i++) assert_true(matcher_accept(m, "{\"next\":", 8));
        assert_true(matcher_accept(m, "{\"da\":null", 10));
        assert_true(matcher_accept(m, ",\"", 2));
        bool begun = matcher_accept(m, "de\":", 4);
        if (begun)
            assert_true(matcher_accept(m, deep, sizeof deep - 1));
        else
            assert_false(matcher_accept(m, "d", 1));
        begun ? n_begun++ : n_not++;
        matcher_reset(m);
        for (int i = 0; i < depth; i++) assert_true(matcher_accept(m, "{\"next\":", 8));
        assert_true(matcher_accept(m, "{\"x\":null", 9));
        assert_int_equal(matcher_accept(m, ",", 1), begun);
    }
    assert_true(n_begun > 100 && n_not > 5);
    matcher_free(m);
    grammar_free(g);
}

/* Schemas that say the same are one: many properties of one kind need no states of their own. */
static void many_properties_share_their_schemas(void **state)
{
    (void)state;
    json_t *properties = json_object(), *required = json_array();
    for (int i = 0; i < 1000; i++) {
        char name[32];
        snprintf(name, sizeof name, "property_%d", i);
        json_object_set_new(properties, name, json_pack("{s:s}", "type", "integer"));
        json_array_append_new(required, json_string(name));
    }
    json_t *schema = json_pack("{s:s, s:o, s:o}", "type", "object", "properties", properties,
                               "required", required);
    grammar *g = make(schema);
    matcher *m = follow(g);
    strbuf text = {0};
    for (int i = 0; i < 1000; i++)
        strbuf_printf(&text, "%s\"property_%d\": %d", i > 0 ? ", " : "{", i, i);
    strbuf_puts(&text, "}");
    assert_true(accepts_text(m, text.data, text.n));
    text.data[text.n - 2] = '.';
    assert_false(accepts_text(m, text.data, text.n));
    strbuf_free(&text);
    matcher_free(m);
    grammar_free(g);
    json_decref(schema);
}

/* Alternatives beyond the number that is followed at once are given up, and what is left is right.
 */
static void many_alternatives_stay_right(void **state)
{
    (void)state;
    json_t *list = json_array();
    for (int i = 0; i < 300; i++)
        json_array_append_new(list,
                              json_pack("{s:s,s:{s:{s:s},s:{s:i}},s:[s,s],s:b}", "type", "object",
                                        "properties", "x", "type", "string", "y", "const", i,
                                        "required", "x", "y", "additionalProperties", 0));
    json_t *schema = json_pack("{s:o}", "anyOf", list);
    grammar *g = make(schema);
    matcher *m = follow(g);
    random_source r = {.seed = 4};
    strbuf text = {0};
    drive(m, &r, &text);
    json_t *value = read_back(&text);
    assert_true(value && json_is_valid(value, schema, schema));
    check_mask(m, &(strbuf){.data = text.data, .n = 3});
    json_decref(value);
    strbuf_free(&text);
    matcher_free(m);
    grammar_free(g);
    json_decref(schema);
}

static void after_reasoning_a_gap_comes_first(void **state)
{
    (void)state;
    grammar *g = grammar_of_text("{\"type\": \"null\"}");
    matcher *m;
    assert_ok(matcher_create(g, tokens, true, &m, &err), &err);
    assert_false(matcher_accept(m, "null", 4));
    assert_true(matcher_accept(m, "\n", 1));
    assert_true(matcher_accept(m, "\nnull", 5));
    assert_true(matcher_may_end(m));
    matcher_free(m);
    grammar_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_told_apart),
        cmocka_unit_test(what_cannot_be_held_is_refused_by_name),
        cmocka_unit_test(random_tokens_end_in_valid_values),
        cmocka_unit_test(nothing_invalid_passes),
        cmocka_unit_test(masks_are_what_trying_each_token_says),
        cmocka_unit_test(nesting_is_bounded_and_can_be_closed),
        cmocka_unit_test(hostile_schemas_end_soon),
        cmocka_unit_test(links_of_schemas_are_bounded),
        cmocka_unit_test(comparisons_of_names_and_values_are_bounded),
        cmocka_unit_test(patterns_and_names_are_bounded_in_sum),
        cmocka_unit_test(choices_of_choices_can_be_begun),
        cmocka_unit_test(optional_properties_that_do_not_fit_are_not_begun),
        cmocka_unit_test(many_properties_share_their_schemas),
        cmocka_unit_test(many_alternatives_stay_right),
        cmocka_unit_test(after_reasoning_a_gap_comes_first),
    };
    return cmocka_run_group_tests(tests, open_tokens, close_tokens);
}
