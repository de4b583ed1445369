/* The keywords of a schema, but for references and combinations (schema.c). */
#include "grammar/schema.h"

#include "grammar/regex.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct fields {
    schema_reader *r;
    const schema_place *at; /* of the schema */
    const json_t *json;
    schema_node *s;
    unsigned implied; /* the types that keywords are about */
} fields;

typedef calla_status read_fn(fields *f, const json_t *value, const schema_place *at);

static calla_status read_nothing(fields *f, const json_t *value, const schema_place *at)
{
    (void)f;
    (void)value;
    (void)at;
    return CALLA_OK;
}

/* ---- types and values ---- */

static calla_status add_type(fields *f, const json_t *name, const schema_place *at)
{
    static const struct {
        const char *name;
        unsigned types;
    } types[] = {{"null", TYPE_NULL},
                 {"boolean", TYPE_BOOLEAN},
                 {"object", TYPE_OBJECT},
                 {"array", TYPE_ARRAY},
                 {"string", TYPE_STRING},
                 {"integer", TYPE_INTEGER},
                 {"number", TYPE_NUMBER | TYPE_INTEGER}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (!json_is_text(name, types[i].name)) continue;
        f->s->types |= types[i].types;
        return CALLA_OK;
    }
    return schema_refuse(f->r, at,
                         "must name null, boolean, object, array, string, integer or "
                         "number, or be an array of these");
}

static calla_status read_type(fields *f, const json_t *value, const schema_place *at)
{
    f->s->types = 0;
    if (!json_is_array(value)) return add_type(f, value, at);
    for (size_t i = 0; i < json_array_size(value); i++)
        CALLA_TRY(add_type(f, json_array_get(value, i), at));
    return CALLA_OK;
}

/* `enum` and `const`: what both allow. */
static calla_status restrict_values(fields *f, json_t *values, const schema_place *at)
{
    schema_node *s = f->s;
    schema_set *set = f->r->set;
    if (json_array_size(values) > SCHEMA_MAX_VALUES)
        return schema_refuse(f->r, at, "more than %d values", SCHEMA_MAX_VALUES);
    json_t *both = json_array();
    for (size_t i = 0; both && i < json_array_size(values); i++) {
        json_t *value = json_array_get(values, i);
        bool kept = !s->values;
        for (size_t k = 0; k < json_array_size(s->values) && !kept; k++)
            kept = json_equal(json_array_get(s->values, k), value);
        if (kept) json_array_append(both, value);
    }
    if (!both) return error_set(f->r->err, CALLA_ERR_MEMORY, "no memory for a schema");
    json_decref(s->values);
    s->values = both;
    set->n_values += json_array_size(both);
    if (set->n_values > SCHEMA_MAX_VALUES)
        return schema_refuse(f->r, at, "more than %d values in all", SCHEMA_MAX_VALUES);
    return CALLA_OK;
}

static calla_status read_enum(fields *f, const json_t *value, const schema_place *at)
{
    if (!json_is_array(value) || json_array_size(value) == 0)
        return schema_refuse(f->r, at, "must be an array that is not empty");
    return restrict_values(f, (json_t *)value, at);
}

static calla_status read_const(fields *f, const json_t *value, const schema_place *at)
{
    json_t *list = json_array();
    if (!list || json_array_append(list, (json_t *)value) != 0) {
        json_decref(list);
        return error_set(f->r->err, CALLA_ERR_MEMORY, "no memory for a schema");
    }
    calla_status status = restrict_values(f, list, at);
    json_decref(list);
    return status;
}

/* ---- numbers ---- */

static calla_status check_number(fields *f, const json_t *value, const schema_place *at)
{
    f->implied |= TYPE_NUMBER | TYPE_INTEGER;
    if (json_is_big_integer(value))
        return schema_refuse(f->r, at, "a number of more than 64 bits is not supported here");
    if (json_is_number(value)) return CALLA_OK;
    return schema_refuse(f->r, at, "must be a number, not %s", json_kind_name(value));
}

static calla_status set_minimum(fields *f, const json_t *value, const schema_place *at, bool strict)
{
    schema_node *s = f->s;
    CALLA_TRY(check_number(f, value, at));
    int order = schema_compare_numbers(value, s->minimum);
    if (s->minimum && (order < 0 || (order == 0 && !strict))) return CALLA_OK;
    s->minimum = value, s->exclusive_minimum = strict;
    return CALLA_OK;
}

static calla_status set_maximum(fields *f, const json_t *value, const schema_place *at, bool strict)
{
    schema_node *s = f->s;
    CALLA_TRY(check_number(f, value, at));
    int order = schema_compare_numbers(value, s->maximum);
    if (s->maximum && (order > 0 || (order == 0 && !strict))) return CALLA_OK;
    s->maximum = value, s->exclusive_maximum = strict;
    return CALLA_OK;
}

static calla_status read_minimum(fields *f, const json_t *value, const schema_place *at)
{
    return set_minimum(f, value, at, false);
}

static calla_status read_above(fields *f, const json_t *value, const schema_place *at)
{
    return set_minimum(f, value, at, true);
}

static calla_status read_maximum(fields *f, const json_t *value, const schema_place *at)
{
    return set_maximum(f, value, at, false);
}

static calla_status read_below(fields *f, const json_t *value, const schema_place *at)
{
    return set_maximum(f, value, at, true);
}

static calla_status read_multiple(fields *f, const json_t *value, const schema_place *at)
{
    CALLA_TRY(check_number(f, value, at));
    if (!(json_number_value(value) > 0)) return schema_refuse(f->r, at, "must be above 0");
    f->s->multiple = value;
    return CALLA_OK;
}

/* ---- counts ---- */

static calla_status read_count(fields *f, const json_t *value, const schema_place *at,
                               unsigned types, uint32_t *out)
{
    double x = json_number_value(value);
    f->implied |= types;
    if (!json_is_number(value) || x < 0 || x != floor(x) || x >= (double)NO_LIMIT)
        return schema_refuse(f->r, at, "must be a whole number from 0 to %u", NO_LIMIT - 1);
    *out = (uint32_t)x;
    return CALLA_OK;
}

static calla_status read_min_length(fields *f, const json_t *value, const schema_place *at)
{
    return read_count(f, value, at, TYPE_STRING, &f->s->min_length);
}

static calla_status read_max_length(fields *f, const json_t *value, const schema_place *at)
{
    return read_count(f, value, at, TYPE_STRING, &f->s->max_length);
}

static calla_status read_min_items(fields *f, const json_t *value, const schema_place *at)
{
    return read_count(f, value, at, TYPE_ARRAY, &f->s->min_items);
}

static calla_status read_max_items(fields *f, const json_t *value, const schema_place *at)
{
    return read_count(f, value, at, TYPE_ARRAY, &f->s->max_items);
}

/* ---- strings ---- */

static calla_status set_pattern(fields *f, const char *text, size_t n, const schema_place *at)
{
    f->implied |= TYPE_STRING;
    if (f->s->pattern)
        return schema_refuse(f->r, at, "pattern and format in one are not supported");
    f->s->pattern = text, f->s->n_pattern = n;
    return CALLA_OK;
}

static calla_status read_pattern(fields *f, const json_t *value, const schema_place *at)
{
    if (!json_is_string(value)) return schema_refuse(f->r, at, "must be a string");
    return set_pattern(f, json_string_value(value), json_string_length(value), at);
}

static calla_status read_format(fields *f, const json_t *value, const schema_place *at)
{
    const char *name = json_string_value(value);
    const char *pattern = name ? format_pattern(name) : NULL;
    if (!pattern)
        return schema_refuse(f->r, at,
                             "'%.40s' is not supported; date, time, date-time, duration, "
                             "uuid, email, hostname, ipv4, ipv6 and uri are",
                             name ? name : "");
    f->s->is_format = true;
    return set_pattern(f, pattern, strlen(pattern), at);
}

/* ---- arrays and objects ---- */

static calla_status read_items(fields *f, const json_t *value, const schema_place *at)
{
    f->implied |= TYPE_ARRAY;
    return schema_read_node(f->r, value, at, &f->s->items);
}

static calla_status read_prefix(fields *f, const json_t *value, const schema_place *at)
{
    size_t n = json_array_size(value);
    f->implied |= TYPE_ARRAY;
    if (n == 0) return schema_refuse(f->r, at, "must be an array that is not empty");
    f->s->prefix = calloc(n, sizeof *f->s->prefix);
    if (!f->s->prefix) return error_set(f->r->err, CALLA_ERR_MEMORY, "no memory for a schema");
    for (size_t i = 0; i < n; i++) {
        schema_place item = {at, NULL, (int64_t)i};
        CALLA_TRY(schema_read_node(f->r, json_array_get(value, i), &item, &f->s->prefix[i]));
        f->s->n_prefix++;
    }
    return CALLA_OK;
}

static calla_status read_unique(fields *f, const json_t *value, const schema_place *at)
{
    if (json_is_false(value)) return CALLA_OK;
    return schema_refuse(f->r, at, "is not supported");
}

static calla_status read_properties(fields *f, const json_t *value, const schema_place *at)
{
    json_t *object = (json_t *)value;
    f->implied |= TYPE_OBJECT;
    if (!json_is_mapping(value))
        return schema_refuse(f->r, at, "must be an object, not %s", json_kind_name(value));
    for (void *i = json_object_iter(object); i; i = json_object_iter_next(object, i)) {
        const char *key = json_object_iter_key(i);
        schema_place place = {at, key, 0};
        uint32_t node;
        CALLA_TRY(schema_read_node(f->r, json_object_iter_value(i), &place, &node));
        json_t *name = json_stringn(key, json_object_iter_key_len(i));
        if (!name || json_array_append_new(f->r->set->owned, name) != 0)
            return error_set(f->r->err, CALLA_ERR_MEMORY, "no memory for a schema");
        CALLA_TRY(schema_add_property(f->r, f->s, name, node, false));
    }
    return CALLA_OK;
}

static calla_status add_to_index(fields *f, json_t *index, const json_t *name, size_t i)
{
    if (json_object_setn_new(index, json_string_value(name), json_string_length(name),
                             json_integer((json_int_t)i)) == 0)
        return CALLA_OK;
    return error_set(f->r->err, CALLA_ERR_MEMORY, "no memory for a schema");
}

static calla_status require(fields *f, json_t *index, const json_t *name, const schema_place *at)
{
    if (!json_is_string(name)) return schema_refuse(f->r, at, "must be an array of names");
    const json_t *known =
        json_object_getn(index, json_string_value(name), json_string_length(name));
    if (known) {
        f->s->properties[json_integer_value(known)].required = true;
        return CALLA_OK;
    }
    CALLA_TRY(add_to_index(f, index, name, f->s->n_properties));
    return schema_add_property(f->r, f->s, name, f->s->additional, true);
}

/* Last of all: `required` may name what `properties` does not have. */
static calla_status read_required(fields *f, const json_t *value, const schema_place *at)
{
    f->implied |= TYPE_OBJECT;
    if (!json_is_array(value)) return schema_refuse(f->r, at, "must be an array of names");
    if (json_array_size(value) > SCHEMA_MAX_PROPERTIES)
        return schema_refuse(f->r, at, "more than %d names", SCHEMA_MAX_PROPERTIES);
    json_t *index = json_object(); /* of properties, by their names */
    calla_status status =
        index ? CALLA_OK : error_set(f->r->err, CALLA_ERR_MEMORY, "no memory for a schema");
    for (size_t i = 0; i < f->s->n_properties && status == CALLA_OK; i++)
        status = add_to_index(f, index, f->s->properties[i].name, i);
    for (size_t i = 0; i < json_array_size(value) && status == CALLA_OK; i++)
        status = require(f, index, json_array_get(value, i), at);
    json_decref(index);
    return status;
}

static calla_status read_additional(fields *f, const json_t *value, const schema_place *at)
{
    f->implied |= TYPE_OBJECT;
    return schema_read_node(f->r, value, at, &f->s->additional);
}

/* ---- all ---- */

static const struct keyword {
    const char *name;
    read_fn *read;
    bool says_something;
} keywords[] = {
    {"type", read_type, true},
    {"enum", read_enum, true},
    {"const", read_const, true},
    {"minimum", read_minimum, true},
    {"exclusiveMinimum", read_above, true},
    {"maximum", read_maximum, true},
    {"exclusiveMaximum", read_below, true},
    {"multipleOf", read_multiple, true},
    {"minLength", read_min_length, true},
    {"maxLength", read_max_length, true},
    {"pattern", read_pattern, true},
    {"format", read_format, true},
    {"items", read_items, true},
    {"prefixItems", read_prefix, true},
    {"minItems", read_min_items, true},
    {"maxItems", read_max_items, true},
    {"uniqueItems", read_unique, false},
    {"properties", read_properties, true},
    {"additionalProperties", read_additional, true},
    {"required", read_required, true}, /* after what it needs */
    {"$ref", read_nothing, false},
    {"allOf", read_nothing, false},
    {"anyOf", read_nothing, false},
    {"oneOf", read_nothing, false},
    {"$defs", read_nothing, false},
    {"definitions", read_nothing, false},
    {"title", read_nothing, false},
    {"description", read_nothing, false},
    {"default", read_nothing, false},
    {"examples", read_nothing, false},
    {"deprecated", read_nothing, false},
    {"readOnly", read_nothing, false},
    {"writeOnly", read_nothing, false},
    {"discriminator", read_nothing, false},
    {"$schema", read_nothing, false},
    {"$id", read_nothing, false},
    {"$comment", read_nothing, false},
};
enum { N_KEYWORDS = sizeof keywords / sizeof *keywords };

static calla_status check_keywords(const fields *f)
{
    json_t *json = (json_t *)f->json;
    for (void *i = json_object_iter(json); i; i = json_object_iter_next(json, i)) {
        const char *key = json_object_iter_key(i);
        size_t k = 0;
        while (k < N_KEYWORDS && strcmp(keywords[k].name, key) != 0) k++;
        schema_place at = {f->at, key, 0};
        if (k == N_KEYWORDS) return schema_refuse(f->r, &at, "this keyword is not supported");
    }
    return CALLA_OK;
}

/* Without `type`, the types that the keywords are about: others would be valid whatever the
 * keywords say, but nobody means them. */
static void narrow_types(fields *f)
{
    schema_node *s = f->s;
    if (json_object_get(f->json, "type") || s->values || f->implied == 0) return;
    s->types = f->implied;
    s->implied = true;
}

calla_status schema_read_fields(schema_reader *r, const json_t *json, const schema_place *at,
                                schema_node *s, bool *any)
{
    fields f = {r, at, json, s, 0};
    *any = true;
    CALLA_TRY(check_keywords(&f));
    for (size_t k = 0; k < N_KEYWORDS; k++) {
        const json_t *value = json_object_get(json, keywords[k].name);
        schema_place place = {at, keywords[k].name, 0};
        if (!value) continue;
        if (keywords[k].says_something) *any = false;
        CALLA_TRY(keywords[k].read(&f, value, &place));
    }
    narrow_types(&f);
    if (s->pattern || s->values || s->minimum || s->maximum || s->multiple)
        CALLA_TRY(schema_keep_place(r, at, s));
    return schema_filter_values(r, at, s);
}
