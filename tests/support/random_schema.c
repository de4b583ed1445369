#include "support/random_schema.h"

#include "base/philox.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

uint32_t draw_below(random_source *r, uint32_t n)
{
    uint32_t words[4];
    philox4x32(r->seed, r->at++, 0, words);
    return words[0] % n;
}

static bool chance(random_source *r, uint32_t percent)
{
    return draw_below(r, 100) < percent;
}

static json_t *schema_at(random_source *r, int depth);

static void set(json_t *schema, const char *key, json_t *value)
{
    if (!value || json_object_set_new(schema, key, value) != 0) abort();
}

static void add_integer_limits(random_source *r, json_t *s)
{
    static const json_int_t spans[] = {0, 3, 10, 99, 12345, 5000000000};
    json_int_t low = (json_int_t)draw_below(r, 3000) - 1500;
    json_int_t high = low + spans[draw_below(r, 6)];
    if (chance(r, 30)) low = -spans[draw_below(r, 6)];
    if (chance(r, 60)) set(s, chance(r, 70) ? "minimum" : "exclusiveMinimum", json_integer(low));
    if (chance(r, 60)) set(s, "maximum", json_integer(high));
    if (chance(r, 25)) set(s, "multipleOf", json_integer(1 + draw_below(r, 12)));
    if (json_object_get(s, "multipleOf") || json_object_get(s, "exclusiveMinimum"))
        json_object_del(s, "maximum"); /* there may be none in between */
}

static void add_number_limits(random_source *r, json_t *s)
{
    double low = ((double)draw_below(r, 20000) - 10000) / 64;
    if (chance(r, 50)) set(s, chance(r, 50) ? "minimum" : "exclusiveMinimum", json_real(low));
    if (chance(r, 50))
        set(s, chance(r, 50) ? "maximum" : "exclusiveMaximum",
            json_real(low + 0.25 + draw_below(r, 1000)));
    if (chance(r, 20)) set(s, "multipleOf", json_real(chance(r, 50) ? 0.25 : 0.1));
}

static void add_string_limits(random_source *r, json_t *s)
{
    static const char *const formats[] = {"date", "date-time", "time", "uuid", "ipv4", "email"};
    static const char *const patterns[] = {"^[a-z]{2,5}$",
                                           "^\\d{3}-\\d{4}$",
                                           "[0-9cx]",
                                           "^(red|green|blue)+$",
                                           "^[^x]*$",
                                           "^\\w+( \\w+)*$",
                                           "^[\xc3\xa9\xe2\x82\xac]?$",
                                           "x$",
                                           "^\\+?[1-9]\\d{1,14}$",
                                           "[\"\\\\]"};
    uint32_t kind = draw_below(r, 10);
    if (kind < 2) {
        set(s, "format", json_string(formats[draw_below(r, 6)]));
    } else if (kind < 4) {
        set(s, "pattern", json_string(patterns[draw_below(r, 10)]));
    } else if (kind < 7) {
        uint32_t low = draw_below(r, 6);
        if (chance(r, 70)) set(s, "minLength", json_integer(low));
        if (chance(r, 70)) set(s, "maxLength", json_integer(low + draw_below(r, 40)));
    }
}

static void add_items(random_source *r, json_t *s, int depth)
{
    uint32_t low = draw_below(r, 3);
    if (chance(r, 85)) set(s, "items", schema_at(r, depth + 1));
    if (chance(r, 20)) {
        json_t *prefix = json_array();
        for (uint32_t i = 0; i <= draw_below(r, 3); i++)
            json_array_append_new(prefix, schema_at(r, depth + 1));
        set(s, "prefixItems", prefix);
        if (chance(r, 50)) set(s, "items", json_false());
        return;
    }
    if (chance(r, 50)) set(s, "minItems", json_integer(low));
    if (chance(r, 50)) set(s, "maxItems", json_integer(low + draw_below(r, 4)));
}

static void add_properties(random_source *r, json_t *s, int depth)
{
    static const char *const names[] = {
        "a",           "ab",    "abc", "name",  "n\"q", "\xc3\xa9t\xc3\xa9",
        "back\\slash", "tab\t", "",    "items", "\x01", "na"};
    json_t *properties = json_object(), *required = json_array();
    uint32_t n = draw_below(r, 6);
    for (uint32_t i = 0; i < n; i++) {
        const char *name = names[draw_below(r, 12)];
        if (json_object_get(properties, name)) continue;
        json_object_set_new(properties, name, schema_at(r, depth + 1));
        if (chance(r, 50)) json_array_append_new(required, json_string(name));
    }
    set(s, "properties", properties);
    set(s, "required", required);
    uint32_t kind = draw_below(r, 10);
    if (kind < 5) set(s, "additionalProperties", json_false());
    if (kind == 5) set(s, "additionalProperties", schema_at(r, depth + 1));
}

static json_t *random_enum(random_source *r)
{
    static const char *const values[] = {"\"red\"",    "\"green\"",  "\"re\"",        "1",
                                         "12",         "-3.5",       "null",          "true",
                                         "[1, \"x\"]", "{\"k\": 2}", "\"\\u00fc\\n\""};
    json_t *list = json_array();
    for (uint32_t i = 0, n = 1 + draw_below(r, 5); i < n; i++)
        json_array_append_new(list, json_loads(values[draw_below(r, 11)], JSON_DECODE_ANY, NULL));
    return json_pack("{s:o}", "enum", list);
}

static json_t *random_choice(random_source *r, int depth)
{
    if (chance(r, 30)) /* told apart by a constant */
        return json_pack("{s:[{s:s,s:{s:{s:s},s:o},s:[s]},{s:s,s:{s:{s:s},s:o},s:[s,s]}]}", "oneOf",
                         "type", "object", "properties", "kind", "const", "p", "x",
                         schema_at(r, depth + 1), "required", "kind", "type", "object",
                         "properties", "kind", "const", "q", "y", schema_at(r, depth + 1),
                         "required", "kind", "y");
    json_t *list = json_array();
    for (uint32_t i = 0, n = 1 + draw_below(r, 3); i < n; i++)
        json_array_append_new(list, schema_at(r, depth + 1));
    return json_pack("{s:o}", "anyOf", list);
}

static json_t *schema_at(random_source *r, int depth)
{
    static const char *const types[] = {"string", "integer", "number", "boolean",
                                        "null",   "array",   "object"};
    uint32_t kind = draw_below(r, depth < 3 ? 16 : 10);
    if (kind == 9)
        return json_pack("{s:s}", "$ref", chance(r, 50) ? "#/$defs/leaf" : "#/$defs/tree");
    if (kind == 8) return random_enum(r);
    if (kind >= 14) return random_choice(r, depth);
    uint32_t type = kind < 5 ? kind : kind < 8 ? draw_below(r, 3) : kind < 11 ? 5 : 6;
    json_t *s = json_pack("{s:s}", "type", types[type]);
    if (type < 3 && chance(r, 15)) set(s, "type", json_pack("[s,s]", types[type], "null"));
    if (type == 0) add_string_limits(r, s);
    if (type == 1) add_integer_limits(r, s);
    if (type == 2) add_number_limits(r, s);
    if (type == 5) add_items(r, s, depth);
    if (type == 6) add_properties(r, s, depth);
    return s;
}

json_t *random_schema(random_source *r)
{
    json_t *s = schema_at(r, 0);
    json_t *tree =
        json_pack("{s:s,s:{s:{s:s},s:{s:s,s:i,s:{s:s}}},s:[s],s:b}", "type", "object", "properties",
                  "v", "type", "integer", "kids", "type", "array", "maxItems", 2, "items", "$ref",
                  "#/$defs/tree", "required", "v", "additionalProperties", 0);
    set(s, "$defs", json_pack("{s:o,s:o}", "leaf", schema_at(r, 9), "tree", tree));
    return s;
}
