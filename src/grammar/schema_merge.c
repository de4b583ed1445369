/* What is valid under two schemas at once, and whether anything is. */
#include "grammar/schema.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_MERGE_DEPTH = 256, MAX_DISJOINT_DEPTH = 8 };

/* ---- values ---- */

static unsigned type_of(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_NULL:
        return TYPE_NULL;
    case JSON_TRUE:
    case JSON_FALSE:
        return TYPE_BOOLEAN;
    case JSON_STRING:
        return TYPE_STRING;
    case JSON_INTEGER:
        return TYPE_INTEGER;
    case JSON_REAL:
        return json_real_value(value) == floor(json_real_value(value)) ? TYPE_INTEGER : TYPE_NUMBER;
    case JSON_ARRAY:
        return TYPE_ARRAY;
    default:
        return json_is_big_integer(value) ? TYPE_INTEGER : TYPE_OBJECT;
    }
}

static uint32_t n_characters(const json_t *text)
{
    uint32_t n = 0;
    const char *bytes = json_string_value(text);
    for (size_t i = 0; i < json_string_length(text); i++) n += (bytes[i] & 0xc0) != 0x80;
    return n;
}

int schema_compare_numbers(const json_t *a, const json_t *b)
{
    double x = json_number_value(a), y = json_number_value(b);
    if (x != y || !json_is_integer(a) || !json_is_integer(b)) return (x > y) - (x < y);
    return (json_integer_value(a) > json_integer_value(b)) -
           (json_integer_value(a) < json_integer_value(b));
}

/* Whether a value has a type that s allows, and meets its bounds and lengths. */
static bool value_fits(const schema_node *s, const json_t *value)
{
    unsigned type = type_of(value);
    if (!(type & s->types)) return false;
    if (type == TYPE_STRING) {
        uint32_t n = n_characters(value);
        return s->min_length <= n && n <= s->max_length;
    }
    if (!(type & (TYPE_INTEGER | TYPE_NUMBER))) return true;
    int low = schema_compare_numbers(value, s->minimum);
    int high = schema_compare_numbers(value, s->maximum);
    if (s->minimum && !(s->exclusive_minimum ? low > 0 : low >= 0)) return false;
    return !s->maximum || (s->exclusive_maximum ? high < 0 : high <= 0);
}

/* What value_fits does not look at. */
static unsigned unchecked_types(const schema_node *s)
{
    unsigned types = 0;
    if (s->pattern) types |= TYPE_STRING;
    if (s->multiple) types |= TYPE_NUMBER | TYPE_INTEGER;
    if (s->n_prefix || s->min_items || s->max_items != NO_LIMIT || s->items != SCHEMA_ANY)
        types |= TYPE_ARRAY;
    if (s->n_properties || s->additional != SCHEMA_ANY) types |= TYPE_OBJECT;
    return types;
}

calla_status schema_filter_values(schema_reader *r, const schema_place *at, schema_node *s)
{
    if (!s->values) return CALLA_OK;
    for (size_t i = json_array_size(s->values); i-- > 0;) {
        const json_t *value = json_array_get(s->values, i);
        bool fits = value_fits(s, value);
        if (fits && (type_of(value) & unchecked_types(s)))
            return schema_refuse(r, at,
                                 "enum or const beside pattern, format, multipleOf or what "
                                 "objects and arrays contain is not supported");
        if (!fits) json_array_remove(s->values, i);
    }
    return CALLA_OK;
}

/* ---- merging plain ones ---- */

static calla_status merge_numbers(schema_reader *r, const schema_place *at, schema_node *out,
                                  const schema_node *b)
{
    int low = schema_compare_numbers(b->minimum, out->minimum);
    int high = schema_compare_numbers(b->maximum, out->maximum);
    if (b->minimum && (!out->minimum || low > 0 || (low == 0 && b->exclusive_minimum)))
        out->minimum = b->minimum, out->exclusive_minimum = b->exclusive_minimum;
    if (b->maximum && (!out->maximum || high < 0 || (high == 0 && b->exclusive_maximum)))
        out->maximum = b->maximum, out->exclusive_maximum = b->exclusive_maximum;
    if (b->multiple && out->multiple && !json_equal(b->multiple, out->multiple))
        return schema_refuse(r, at, "two different multipleOf cannot be merged");
    if (b->multiple) out->multiple = b->multiple;
    return CALLA_OK;
}

static calla_status merge_strings(schema_reader *r, const schema_place *at, schema_node *out,
                                  const schema_node *b)
{
    if (b->min_length > out->min_length) out->min_length = b->min_length;
    if (b->max_length < out->max_length) out->max_length = b->max_length;
    if (!b->pattern) return CALLA_OK;
    if (out->pattern &&
        (out->n_pattern != b->n_pattern || memcmp(out->pattern, b->pattern, b->n_pattern) != 0))
        return schema_refuse(r, at, "two different patterns or formats cannot be merged");
    out->pattern = b->pattern, out->n_pattern = b->n_pattern, out->is_format = b->is_format;
    return CALLA_OK;
}

static uint32_t item_schema(const schema_node *s, size_t i)
{
    return i < s->n_prefix ? s->prefix[i] : s->items;
}

static calla_status merge_arrays(schema_reader *r, const schema_place *at, schema_node *out,
                                 const schema_node *a, const schema_node *b)
{
    size_t n = a->n_prefix > b->n_prefix ? a->n_prefix : b->n_prefix;
    out->min_items = a->min_items > b->min_items ? a->min_items : b->min_items;
    out->max_items = a->max_items < b->max_items ? a->max_items : b->max_items;
    CALLA_TRY(schema_count_links(r, n));
    if (n > 0) out->prefix = calloc(n, sizeof *out->prefix);
    if (n > 0 && !out->prefix) return error_set(r->err, CALLA_ERR_MEMORY, "no memory for a schema");
    for (; out->n_prefix < n; out->n_prefix++)
        CALLA_TRY(schema_merge(r, at, item_schema(a, out->n_prefix), item_schema(b, out->n_prefix),
                               &out->prefix[out->n_prefix]));
    return schema_merge(r, at, a->items, b->items, &out->items);
}

/* A property that only one of them lists falls under `additional` of the other. */
static calla_status merge_objects(schema_reader *r, const schema_place *at, schema_node *out,
                                  const schema_node *a, const schema_node *b)
{
    uint32_t node;
    for (size_t i = 0; i < a->n_properties; i++) {
        const schema_property *p = &a->properties[i], *q = schema_find_property(b, p->name);
        CALLA_TRY(schema_merge(r, at, p->schema, q ? q->schema : b->additional, &node));
        CALLA_TRY(schema_add_property(r, out, p->name, node, p->required || (q && q->required)));
    }
    for (size_t i = 0; i < b->n_properties; i++) {
        const schema_property *p = &b->properties[i];
        if (schema_find_property(a, p->name)) continue;
        CALLA_TRY(schema_merge(r, at, a->additional, p->schema, &node));
        CALLA_TRY(schema_add_property(r, out, p->name, node, p->required));
    }
    return schema_merge(r, at, a->additional, b->additional, &out->additional);
}

static calla_status merge_values(schema_reader *r, const schema_place *at, schema_node *out,
                                 const schema_node *a, const schema_node *b)
{
    const schema_node *first = a->values ? a : b;
    if (!first->values) return CALLA_OK;
    out->values = json_array();
    if (!out->values) return error_set(r->err, CALLA_ERR_MEMORY, "no memory for a schema");
    for (size_t i = 0; i < json_array_size(first->values); i++) {
        json_t *value = json_array_get(first->values, i);
        bool kept = !b->values || first == b;
        for (size_t k = 0; k < json_array_size(b->values) && !kept; k++)
            kept = json_equal(json_array_get(b->values, k), value);
        if (kept) json_array_append(out->values, value);
    }
    r->set->n_values += json_array_size(out->values);
    if (r->set->n_values > SCHEMA_MAX_VALUES)
        return schema_refuse(r, at, "more than %d values in all", SCHEMA_MAX_VALUES);
    return schema_filter_values(r, at, out);
}

static calla_status merge_plain(schema_reader *r, const schema_place *at, const schema_node *a,
                                const schema_node *b, schema_node *out)
{
    const char *place = a->place ? a->place : b->place;
    if (place && !(out->place = strdup(place)))
        return error_set(r->err, CALLA_ERR_MEMORY, "no memory for a schema");
    out->types = a->types & b->types;
    if (!out->types && a->implied) out->types = b->types;
    if (!out->types && b->implied) out->types = a->types;
    out->implied = a->implied && b->implied;
    out->minimum = a->minimum, out->exclusive_minimum = a->exclusive_minimum;
    out->maximum = a->maximum, out->exclusive_maximum = a->exclusive_maximum;
    out->multiple = a->multiple;
    out->min_length = a->min_length, out->max_length = a->max_length;
    out->pattern = a->pattern, out->n_pattern = a->n_pattern, out->is_format = a->is_format;
    CALLA_TRY(merge_numbers(r, at, out, b));
    CALLA_TRY(merge_strings(r, at, out, b));
    CALLA_TRY(merge_arrays(r, at, out, a, b));
    CALLA_TRY(merge_objects(r, at, out, a, b));
    return merge_values(r, at, out, a, b);
}

/* ---- merging any ---- */

uint32_t schema_unwrap(const schema_set *set, uint32_t number)
{
    while (set->nodes[number]->is_choice && !set->nodes[number]->open &&
           set->nodes[number]->n_alternatives == 1)
        number = set->nodes[number]->alternatives[0];
    return number;
}

static calla_status merge_new(schema_reader *r, const schema_place *at, uint32_t a, uint32_t b,
                              schema_node *out)
{
    const schema_node *x = r->set->nodes[a], *y = r->set->nodes[b];
    if (x->open || y->open)
        return schema_refuse(r, at,
                             "a schema that contains itself cannot be combined with other "
                             "conditions");
    if (!x->is_choice && !y->is_choice) return merge_plain(r, at, x, y, out);
    out->is_choice = true;
    const schema_node *choice = x->is_choice ? x : y;
    uint32_t other = x->is_choice ? b : a, node;
    for (size_t i = 0; i < choice->n_alternatives; i++) {
        uint32_t one = choice->alternatives[i];
        CALLA_TRY(
            schema_merge(r, at, x->is_choice ? one : other, x->is_choice ? other : one, &node));
        CALLA_TRY(schema_add_alternative(r, out, node));
    }
    return CALLA_OK;
}

calla_status schema_merge(schema_reader *r, const schema_place *at, uint32_t a, uint32_t b,
                          uint32_t *number)
{
    schema_set *set = r->set;
    schema_node *out;
    a = schema_unwrap(set, a);
    b = schema_unwrap(set, b);
    *number = a == SCHEMA_ANY || b == SCHEMA_NONE ? b : a;
    if (a == b || a <= SCHEMA_NONE || b <= SCHEMA_NONE) return CALLA_OK;
    for (size_t i = 0; i < set->n_memo; i++) {
        const schema_memo *m = &set->memo[i];
        if (m->json || m->a != a || m->b != b) continue;
        *number = m->number;
        return CALLA_OK;
    }
    if (r->depth >= MAX_MERGE_DEPTH)
        return schema_refuse(r, at, "combined deeper than %d", MAX_MERGE_DEPTH);
    CALLA_TRY(schema_add(r, &out, number));
    CALLA_TRY(schema_add_memo(r, (schema_memo){.a = a, .b = b, .number = *number}, NULL));
    r->depth++;
    calla_status status = merge_new(r, at, a, b, out);
    r->depth--;
    return status;
}

/* ---- exclusion ---- */

static bool disjoint(schema_set *set, uint32_t a, uint32_t b, int depth);

/* Whether none of a's values is valid under b. */
static bool values_excluded(schema_set *set, const schema_node *a, const schema_node *b)
{
    if (b->implied) return false;
    for (size_t i = 0; i < json_array_size(a->values); i++) {
        set->work_left -= (int64_t)json_array_size(b->values) + 1;
        if (set->work_left <= 0) return false;
        const json_t *value = json_array_get(a->values, i);
        if (!b->values) {
            if (value_fits(b, value)) return false;
            continue;
        }
        for (size_t k = 0; k < json_array_size(b->values); k++) {
            const json_t *other = json_array_get(b->values, k);
            bool numbers = json_is_number(value) && json_is_number(other);
            if (numbers ? json_number_value(value) == json_number_value(other)
                        : json_equal(value, other) || type_of(value) & (TYPE_ARRAY | TYPE_OBJECT))
                return false;
        }
    }
    return true;
}

/* Something that a requires keeps b from holding, and what b allows keeps a from it. */
static bool objects_exclude(schema_set *set, const schema_node *a, const schema_node *b, int depth)
{
    for (size_t i = 0; i < a->n_properties; i++) {
        const schema_property *p = &a->properties[i], *q = schema_find_property(b, p->name);
        set->work_left -= (int64_t)b->n_properties + 1;
        if (set->work_left <= 0) return false;
        if (!p->required) continue;
        if ((q ? q->schema : b->additional) == SCHEMA_NONE) return true;
        if (q && disjoint(set, p->schema, q->schema, depth)) return true;
    }
    return false;
}

static bool ranges_exclude(const schema_node *a, const schema_node *b)
{
    if (!a->maximum || !b->minimum) return false;
    int order = schema_compare_numbers(a->maximum, b->minimum);
    return order < 0 || (order == 0 && (a->exclusive_maximum || b->exclusive_minimum));
}

static bool plain_disjoint(schema_set *set, const schema_node *a, const schema_node *b, int depth)
{
    unsigned common = a->types & b->types;
    if (a->types == 0 || b->types == 0) return true;
    if (a->values && values_excluded(set, a, b)) return true;
    if (b->values && values_excluded(set, b, a)) return true;
    if (a->implied || b->implied) return false;
    if (common == 0) return true;
    if (common == TYPE_OBJECT)
        return objects_exclude(set, a, b, depth) || objects_exclude(set, b, a, depth);
    if ((common & ~(unsigned)(TYPE_INTEGER | TYPE_NUMBER)) == 0)
        return ranges_exclude(a, b) || ranges_exclude(b, a);
    return false;
}

static bool disjoint(schema_set *set, uint32_t a, uint32_t b, int depth)
{
    a = schema_unwrap(set, a);
    b = schema_unwrap(set, b);
    const schema_node *x = set->nodes[a], *y = set->nodes[b];
    if (x->open || y->open || depth > MAX_DISJOINT_DEPTH || set->work_left-- <= 0) return false;
    if (!x->is_choice && !y->is_choice) return plain_disjoint(set, x, y, depth + 1);
    const schema_node *choice = x->is_choice ? x : y;
    for (size_t i = 0; i < choice->n_alternatives; i++)
        if (!disjoint(set, choice->alternatives[i], x->is_choice ? b : a, depth + 1)) return false;
    return true;
}

bool schema_disjoint(schema_set *set, uint32_t a, uint32_t b)
{
    return disjoint(set, a, b, 0);
}
