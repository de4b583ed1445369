#include "model/chat_value.h"

#include <math.h>
#include <string.h>

/* ---- schemas ---- */

enum {
    MAX_SCHEMA_DEPTH = 16,  /* of anyOf in anyOf, $ref to $ref ... */
    MAX_SCHEMA_VISITS = 256 /* in all, for one parameter: references may be circular */
};

typedef struct schema_walk {
    const json_t *root; /* what "#" refers to */
    value_types *types;
    int n_visits;
} schema_walk;

static bool types_have(const value_types *t, value_kind kind)
{
    for (int i = 0; i < t->n; i++) {
        if (t->kinds[i] == kind) return true;
    }
    return false;
}

static void types_add(value_types *t, value_kind kind)
{
    if (!types_have(t, kind)) t->kinds[t->n++] = kind;
}

static void types_add_name(value_types *t, const json_t *name)
{
    static const char *const names[VALUE_KINDS] = {
        [VALUE_STRING] = "string",   [VALUE_INTEGER] = "integer", [VALUE_NUMBER] = "number",
        [VALUE_BOOLEAN] = "boolean", [VALUE_OBJECT] = "object",   [VALUE_ARRAY] = "array",
        [VALUE_NULL] = "null"};
    for (int kind = 0; kind < VALUE_KINDS; kind++) {
        if (json_is_text(name, names[kind])) types_add(t, (value_kind)kind);
    }
}

static value_kind kind_of(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_STRING:
        return VALUE_STRING;
    case JSON_INTEGER:
        return VALUE_INTEGER;
    case JSON_REAL:
        return VALUE_NUMBER;
    case JSON_TRUE:
    case JSON_FALSE:
        return VALUE_BOOLEAN;
    case JSON_ARRAY:
        return VALUE_ARRAY;
    case JSON_NULL:
        return VALUE_NULL;
    default:
        return json_is_big_integer(value) ? VALUE_INTEGER : VALUE_OBJECT;
    }
}

/* One step of a JSON pointer (RFC 6901): the member named by text [n_bytes], with ~1 for / and ~0
 * for ~. */
static const json_t *pointer_step(const json_t *object, const char *text, size_t n_bytes)
{
    char key[256];
    size_t n = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        if (n == sizeof key) return NULL;
        key[n++] = text[i];
        if (text[i] != '~' || i + 1 == n_bytes) continue;
        if (text[i + 1] == '1') key[n - 1] = '/';
        i++;
    }
    return json_object_getn(object, key, n);
}

/* The schema that a reference "#/$defs/Name" points to, or NULL. */
static const json_t *resolve(const json_t *root, const char *ref)
{
    if (*ref != '#') return NULL;
    const json_t *at = root;
    for (ref++; at && *ref == '/';) {
        size_t n = strcspn(++ref, "/");
        at = pointer_step(at, ref, n);
        ref += n;
    }
    return *ref ? NULL : at;
}

static void walk_schema(schema_walk *w, const json_t *schema, int depth)
{
    if (!json_is_mapping(schema) || depth > MAX_SCHEMA_DEPTH || ++w->n_visits > MAX_SCHEMA_VISITS)
        return;
    const json_t *type = json_object_get(schema, "type");
    types_add_name(w->types, type);
    for (size_t i = 0; i < json_array_size(type); i++)
        types_add_name(w->types, json_array_get(type, i));
    if (!type) {
        const json_t *values = json_object_get(schema, "enum"),
                     *value = json_object_get(schema, "const");
        for (size_t i = 0; i < json_array_size(values); i++)
            types_add(w->types, kind_of(json_array_get(values, i)));
        if (value) types_add(w->types, kind_of(value));
    }
    static const char *const combiners[] = {"anyOf", "oneOf", "allOf"};
    for (int c = 0; c < 3; c++) {
        const json_t *list = json_object_get(schema, combiners[c]);
        for (size_t i = 0; i < json_array_size(list); i++)
            walk_schema(w, json_array_get(list, i), depth + 1);
    }
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    if (ref) walk_schema(w, resolve(w->root, ref), depth + 1);
    if (json_is_true(json_object_get(schema, "nullable"))) types_add(w->types, VALUE_NULL);
}

const json_t *tool_find(const json_t *tools, const char *name, size_t n_name)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i);
        const json_t *function = json_object_get(tool, "function");
        if (json_is_mapping(function)) tool = function;
        const json_t *text = json_object_get(tool, "name");
        if (json_is_string(text) && json_string_length(text) == n_name &&
            memcmp(json_string_value(text), name, n_name) == 0)
            return tool;
    }
    return NULL;
}

bool tool_has_parameters(const json_t *tool)
{
    return json_is_mapping(json_object_get(json_object_get(tool, "parameters"), "properties"));
}

void tool_parameter_types(const json_t *tool, const char *name, size_t n_name, value_types *types,
                          bool *known)
{
    *types = (value_types){.n = 0};
    const json_t *schema = json_object_get(tool, "parameters");
    const json_t *property = json_object_getn(json_object_get(schema, "properties"), name, n_name);
    *known = property != NULL;
    if (!property) property = json_object_get(schema, "additionalProperties");
    schema_walk w = {schema, types, 0};
    walk_schema(&w, property, 0);
}

/* ---- values ---- */

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Python's spellings; they have the length of the word they stand for. */
static json_t *python_constant(const char *text, size_t n_bytes)
{
    while (n_bytes > 0 && is_space(text[0])) text++, n_bytes--;
    while (n_bytes > 0 && is_space(text[n_bytes - 1])) n_bytes--;
    if (n_bytes == 4 && memcmp(text, "True", 4) == 0) return json_true();
    if (n_bytes == 5 && memcmp(text, "False", 5) == 0) return json_false();
    if (n_bytes == 4 && memcmp(text, "None", 4) == 0) return json_null();
    return NULL;
}

/* Doubles up to 2^53 are exact integers. */
static bool is_integral_real(const json_t *value)
{
    double x = json_real_value(value);
    return json_is_real(value) && x == nearbyint(x) && fabs(x) <= 0x1p53;
}

static bool fits(const json_t *value, value_kind kind)
{
    value_kind is = kind_of(value);
    if (kind == VALUE_NUMBER && is == VALUE_INTEGER) return true;
    if (kind == VALUE_INTEGER && is_integral_real(value)) return true;
    return is == kind;
}

static void write_as(strbuf *out, const json_t *value, value_kind kind)
{
    if (kind == VALUE_INTEGER && json_is_real(value))
        strbuf_printf(out, "%lld", (long long)json_real_value(value));
    else
        json_write_value(out, value);
}

/* Writes `value` if the types allow it. */
static bool write_typed(strbuf *out, const value_types *types, const json_t *value)
{
    if (json_is_null(value) && types_have(types, VALUE_NULL)) {
        json_write_value(out, value);
        return true;
    }
    for (int i = 0; i < types->n; i++) {
        if (types->kinds[i] == VALUE_STRING) return false;
        if (!fits(value, types->kinds[i])) continue;
        write_as(out, value, types->kinds[i]);
        return true;
    }
    return false;
}

void value_write(strbuf *out, const value_types *types, const char *text, size_t n_bytes)
{
    json_t *value = NULL;
    bool bare = n_bytes > 0 && !is_space(text[0]) && !is_space(text[n_bytes - 1]);
    bool written = false;
    if (types->n > 0) {
        value = python_constant(text, n_bytes);
        if (!value) json_parse_text(text, n_bytes, "value", &value, NULL);
        written = value && write_typed(out, types, value);
    } else if (bare) {
        json_parse_text(text, n_bytes, "value", &value, NULL);
        written = value && !json_is_string(value);
        if (written) json_write_value(out, value);
    }
    if (!written) json_write_string(out, text, n_bytes);
    json_decref(value);
}

/* ---- guessing ---- */

void value_guesser_init(value_guesser *g, const value_types *types)
{
    *g = (value_guesser){.types = *types};
    if (types->n == 1 && types->kinds[0] == VALUE_STRING) g->guess = GUESS_STRING;
}

/* Whether a value of this kind would be preferred to a string. */
static bool may_be(const value_types *t, value_kind kind)
{
    if (t->n == 0) return kind != VALUE_STRING;
    if (kind == VALUE_NULL) return types_have(t, kind);
    for (int i = 0; i < t->n && t->kinds[i] != VALUE_STRING; i++) {
        if (t->kinds[i] == kind) return true;
    }
    return false;
}

static void guess_first(value_guesser *g, char c)
{
    static const struct {
        const char *keyword;
        value_kind kind;
        bool python;
    } keywords[] = {{"true", VALUE_BOOLEAN, false}, {"false", VALUE_BOOLEAN, false},
                    {"null", VALUE_NULL, false},    {"True", VALUE_BOOLEAN, true},
                    {"False", VALUE_BOOLEAN, true}, {"None", VALUE_NULL, true}};
    const value_types *t = &g->types;
    g->guess = GUESS_STRING;
    if (c == '{' && may_be(t, VALUE_OBJECT)) g->guess = GUESS_WAIT;
    if (c == '[' && may_be(t, VALUE_ARRAY)) g->guess = GUESS_WAIT;
    if (c == '-' || (c >= '0' && c <= '9')) {
        if (may_be(t, VALUE_INTEGER) || may_be(t, VALUE_NUMBER)) g->guess = GUESS_WAIT;
    }
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++) {
        if (c != keywords[i].keyword[0] || !may_be(t, keywords[i].kind)) continue;
        if (keywords[i].python && t->n == 0) continue;
        g->guess = GUESS_NONE;
        g->keyword = keywords[i].keyword;
        g->n_matched = 1;
    }
}

void value_guesser_feed(value_guesser *g, const char *text, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes && g->guess == GUESS_NONE; i++) {
        char c = text[i];
        if (is_space(c) && g->types.n == 0) {
            g->guess = GUESS_STRING;
        } else if (!g->keyword) {
            if (!is_space(c)) guess_first(g, c);
        } else if (g->keyword[g->n_matched] == '\0') {
            if (!is_space(c)) g->guess = GUESS_STRING;
        } else if (g->keyword[g->n_matched++] != c) {
            g->guess = GUESS_STRING;
        }
    }
}
