#include "grammar/schema.h"

#include "base/memory.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 256, MAX_COMPARISONS = 10000000, UNDER_WAY = UINT32_MAX };

/* ---- errors ---- */

static void put_place(strbuf *out, const schema_reader *r, const schema_place *at)
{
    if (!at) {
        strbuf_puts(out, r->where);
        return;
    }
    put_place(out, r, at->outer);
    if (at->name)
        strbuf_printf(out, ".%.64s", at->name);
    else
        strbuf_printf(out, "[%lld]", (long long)at->index);
}

/* The end of a long place says more than its beginning. */
static void put_short_place(strbuf *out, const schema_reader *r, const schema_place *at)
{
    strbuf whole = {0};
    put_place(&whole, r, at);
    const char *text = whole.data ? whole.data : "";
    size_t skipped = whole.n > 120 ? whole.n - 80 : 0;
    while (((unsigned char)text[skipped] & 0xc0) == 0x80) skipped++;
    strbuf_printf(out, "%s%s%s", skipped ? r->where : "", skipped ? "..." : "", text + skipped);
    strbuf_free(&whole);
}

calla_status schema_refuse(const schema_reader *r, const schema_place *at, const char *format, ...)
{
    char message[256];
    strbuf place = {0};
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    put_short_place(&place, r, at);
    error_set(r->err, CALLA_ERR_INPUT, "%s: %s", place.data ? place.data : "", message);
    strbuf_free(&place);
    return CALLA_ERR_INPUT;
}

calla_status schema_keep_place(schema_reader *r, const schema_place *at, schema_node *s)
{
    strbuf place = {0};
    put_short_place(&place, r, at);
    s->place = place.data;
    return place.data ? CALLA_OK : error_set(r->err, CALLA_ERR_MEMORY, "no memory for a schema");
}

/* ---- the set ---- */

calla_status schema_add(schema_reader *r, schema_node **node, uint32_t *number)
{
    schema_set *set = r->set;
    void *nodes = set->nodes;
    if (set->n_nodes >= SCHEMA_MAX_NODES)
        return schema_refuse(r, NULL, "more than %d subschemas (combinations multiply them)",
                             SCHEMA_MAX_NODES);
    CALLA_TRY(
        mem_grow(&nodes, &set->capacity, set->n_nodes + 1, sizeof *set->nodes, "a schema", r->err));
    set->nodes = nodes;
    schema_node *s = calloc(1, sizeof *s);
    if (!s) return error_set(r->err, CALLA_ERR_MEMORY, "no memory for a schema");
    s->types = TYPE_ALL;
    s->max_length = s->max_items = NO_LIMIT;
    s->items = s->additional = SCHEMA_ANY;
    *number = (uint32_t)set->n_nodes;
    set->nodes[set->n_nodes++] = *node = s;
    return CALLA_OK;
}

static void free_node(schema_node *s)
{
    free(s->alternatives);
    free(s->prefix);
    free(s->properties);
    json_decref(s->values);
    free(s->place);
    free(s);
}

void schema_set_free(schema_set *set)
{
    for (size_t i = 0; i < set->n_nodes; i++) free_node(set->nodes[i]);
    free(set->nodes);
    free(set->memo);
    json_decref(set->owned);
    *set = (schema_set){0};
}

static bool is_power_of_two(size_t n)
{
    return (n & (n - 1)) == 0;
}

/* Room for one more in an array that grows to the next power of two when it is full. */
static void *room_for_one(void *array, size_t n, size_t bytes)
{
    if (n > 0 && !is_power_of_two(n)) return array;
    return realloc(array, (n > 0 ? 2 * n : 1) * bytes);
}

calla_status schema_count_links(schema_reader *r, size_t n)
{
    r->set->n_links += n;
    if (r->set->n_links <= SCHEMA_MAX_LINKS) return CALLA_OK;
    return schema_refuse(r, NULL, "more than %d alternatives in all (combinations multiply them)",
                         SCHEMA_MAX_LINKS);
}

calla_status schema_add_alternative(schema_reader *r, schema_node *s, uint32_t alternative)
{
    CALLA_TRY(schema_count_links(r, 1));
    uint32_t *grown = room_for_one(s->alternatives, s->n_alternatives, sizeof *grown);
    if (!grown) return error_set(r->err, CALLA_ERR_MEMORY, "no memory for a schema");
    s->alternatives = grown;
    s->alternatives[s->n_alternatives++] = alternative;
    return CALLA_OK;
}

calla_status schema_add_property(schema_reader *r, schema_node *s, const json_t *name,
                                 uint32_t node, bool required)
{
    if (++r->set->n_properties > SCHEMA_MAX_PROPERTIES)
        return schema_refuse(r, NULL, "more than %d properties in all (combinations multiply them)",
                             SCHEMA_MAX_PROPERTIES);
    r->set->n_name_bytes += json_string_length(name);
    if (r->set->n_name_bytes > SCHEMA_MAX_NAMES)
        return schema_refuse(r, NULL, "the names of properties have more than %d bytes in all",
                             SCHEMA_MAX_NAMES);
    schema_property *grown = room_for_one(s->properties, s->n_properties, sizeof *grown);
    if (!grown) return error_set(r->err, CALLA_ERR_MEMORY, "no memory for a schema");
    s->properties = grown;
    s->properties[s->n_properties++] = (schema_property){name, node, required};
    return CALLA_OK;
}

schema_property *schema_find_property(const schema_node *s, const json_t *name)
{
    for (size_t i = 0; i < s->n_properties; i++)
        if (json_equal(s->properties[i].name, name)) return &s->properties[i];
    return NULL;
}

static schema_memo *find_memo(const schema_set *set, const json_t *json)
{
    for (size_t i = 0; i < set->n_memo; i++)
        if (set->memo[i].json == json) return &set->memo[i];
    return NULL;
}

calla_status schema_add_memo(schema_reader *r, schema_memo memo, size_t *index)
{
    schema_set *set = r->set;
    void *grown = set->memo;
    calla_status status =
        mem_grow(&grown, &set->memo_capacity, set->n_memo + 1, sizeof memo, "a schema", r->err);
    set->memo = grown;
    if (index) *index = set->n_memo;
    if (status == CALLA_OK) set->memo[set->n_memo++] = memo;
    return status;
}

/* ---- references ---- */

static const json_t *pointer_step(const json_t *from, const char *text, size_t n)
{
    strbuf key = {0};
    const json_t *found = NULL;
    for (size_t i = 0; i < n; i++) {
        unsigned byte;
        if (text[i] == '~' && i + 1 < n && (text[i + 1] == '0' || text[i + 1] == '1')) {
            strbuf_putc(&key, text[++i] == '1' ? '/' : '~');
        } else if (text[i] == '%' && i + 2 < n && sscanf(text + i + 1, "%2x", &byte) == 1) {
            strbuf_putc(&key, (char)byte);
            i += 2;
        } else {
            strbuf_putc(&key, text[i]);
        }
    }
    if (json_is_array(from)) {
        char *end;
        size_t index = strtoul(key.data ? key.data : "x", &end, 10);
        found = *end ? NULL : json_array_get(from, index);
    } else if (!key.failed) {
        found = json_object_getn(from, key.data ? key.data : "", key.n);
    }
    strbuf_free(&key);
    return found;
}

static const json_t *resolve(const json_t *root, const char *ref)
{
    const json_t *at = root;
    if (*ref++ != '#') return NULL;
    while (at && *ref == '/') {
        size_t n = strcspn(++ref, "/");
        at = pointer_step(at, ref, n);
        ref += n;
    }
    return *ref ? NULL : at;
}

static calla_status read_reference(schema_reader *r, const json_t *ref, const schema_place *outer,
                                   uint32_t *number)
{
    schema_place at = {outer, "$ref", 0};
    const char *text = json_string_value(ref);
    if (!text) return schema_refuse(r, &at, "must be a string, not %s", json_kind_name(ref));
    const json_t *target = resolve(r->set->root, text);
    if (!target)
        return schema_refuse(r, &at,
                             "'%.100s' is nowhere in this schema (only references that "
                             "begin with # are followed)",
                             text);
    return schema_read_node(r, target, &at, number);
}

/* ---- combinations ---- */

static calla_status check_list(schema_reader *r, const json_t *list, const schema_place *at)
{
    if (json_is_array(list) && json_array_size(list) > 0) return CALLA_OK;
    return schema_refuse(r, at, "must be an array that is not empty");
}

static calla_status check_exclusive(schema_reader *r, const schema_node *choice,
                                    const schema_place *at)
{
    for (size_t i = 0; i < choice->n_alternatives; i++)
        for (size_t k = 0; k < i; k++) {
            bool apart = schema_disjoint(r->set, choice->alternatives[k], choice->alternatives[i]);
            if (r->set->work_left <= 0)
                return schema_refuse(r, at,
                                     "its alternatives take too many comparisons "
                                     "(use anyOf)");
            if (!apart)
                return schema_refuse(r, at,
                                     "alternatives %zu and %zu might both hold; they must "
                                     "exclude each other by a required constant or by their type "
                                     "(or use anyOf)",
                                     k, i);
        }
    return CALLA_OK;
}

static calla_status read_choice(schema_reader *r, const json_t *list, const char *keyword,
                                const schema_place *outer, uint32_t base, uint32_t *number)
{
    schema_place at = {outer, keyword, 0};
    schema_node *choice;
    uint32_t index;
    CALLA_TRY(check_list(r, list, &at));
    CALLA_TRY(schema_add(r, &choice, number));
    choice->is_choice = true;
    for (size_t i = 0; i < json_array_size(list); i++) {
        schema_place item = {&at, NULL, (int64_t)i};
        CALLA_TRY(schema_read_node(r, json_array_get(list, i), &item, &index));
        CALLA_TRY(schema_add_alternative(r, choice, index));
    }
    if (strcmp(keyword, "oneOf") == 0) CALLA_TRY(check_exclusive(r, choice, &at));
    return schema_merge(r, &at, base, *number, number);
}

static calla_status read_all(schema_reader *r, const json_t *list, const schema_place *outer,
                             uint32_t *number)
{
    schema_place at = {outer, "allOf", 0};
    CALLA_TRY(check_list(r, list, &at));
    for (size_t i = 0; i < json_array_size(list); i++) {
        schema_place item = {&at, NULL, (int64_t)i};
        uint32_t other;
        CALLA_TRY(schema_read_node(r, json_array_get(list, i), &item, &other));
        CALLA_TRY(schema_merge(r, &item, *number, other, number));
    }
    return CALLA_OK;
}

static calla_status read_combinations(schema_reader *r, const json_t *json, const schema_place *at,
                                      uint32_t *number)
{
    static const char *const keywords[] = {"anyOf", "oneOf"};
    const json_t *ref = json_object_get(json, "$ref"), *all = json_object_get(json, "allOf");
    if (ref) {
        uint32_t target;
        CALLA_TRY(read_reference(r, ref, at, &target));
        CALLA_TRY(schema_merge(r, at, *number, target, number));
    }
    if (all) CALLA_TRY(read_all(r, all, at, number));
    for (int i = 0; i < 2; i++) {
        const json_t *list = json_object_get(json, keywords[i]);
        if (list) CALLA_TRY(read_choice(r, list, keywords[i], at, *number, number));
    }
    return CALLA_OK;
}

/* ---- schemas that are alike ---- */

static bool same_json(const json_t *a, const json_t *b)
{
    return a == b || (a && b && json_equal(a, b));
}

/* Of schemas that contain no others. */
static bool is_same(const schema_node *a, const schema_node *b)
{
    return a->types == b->types && a->implied == b->implied && same_json(a->values, b->values) &&
           same_json(a->minimum, b->minimum) && same_json(a->maximum, b->maximum) &&
           same_json(a->multiple, b->multiple) && a->exclusive_minimum == b->exclusive_minimum &&
           a->exclusive_maximum == b->exclusive_maximum && a->min_length == b->min_length &&
           a->max_length == b->max_length && a->min_items == b->min_items &&
           a->max_items == b->max_items && a->n_pattern == b->n_pattern &&
           !a->pattern == !b->pattern &&
           (!a->pattern || memcmp(a->pattern, b->pattern, a->n_pattern) == 0);
}

static bool contains_none(const schema_node *s)
{
    return !s->is_choice && !s->n_prefix && !s->n_properties && s->items == SCHEMA_ANY &&
           s->additional == SCHEMA_ANY;
}

/* What was read last, if it contains no others, is given up for the same one read lately: most
 * schemas say "type": "string" and the like many times. */
static void share(schema_set *set, uint32_t *number)
{
    schema_node *s = set->nodes[*number];
    if (*number + 1 != set->n_nodes || !contains_none(s)) return;
    for (int i = 0; i < SCHEMA_RECENT; i++) {
        uint32_t other = set->recent[i];
        if (other == 0 || !is_same(s, set->nodes[other])) continue;
        free_node(s);
        set->n_nodes--;
        *number = other;
        return;
    }
    set->recent[set->n_recent++ % SCHEMA_RECENT] = *number;
}

/* ---- schemas ---- */

/* Whether $ref is all that counts in it: then it is the schema it refers to, which may contain it.
 */
static bool is_alias(const json_t *json)
{
    static const char *const annotations[] = {"title",      "description", "default",  "examples",
                                              "deprecated", "$comment",    "readOnly", "writeOnly"};
    size_t n = json_object_size(json);
    if (!json_object_get(json, "$ref")) return false;
    for (size_t i = 0; i < sizeof annotations / sizeof *annotations; i++)
        n -= json_object_get(json, annotations[i]) != NULL;
    return n == 1;
}

/* Reads one that has not been read; its number is known to others before, so that it may contain
 * itself: they get a choice of one, which is filled in at the end. */
static calla_status read_new(schema_reader *r, const json_t *json, const schema_place *at,
                             uint32_t *number)
{
    schema_node *choice, *fields;
    uint32_t first, base;
    size_t memo;
    bool any;
    CALLA_TRY(schema_add(r, &choice, &first));
    choice->is_choice = choice->open = true;
    CALLA_TRY(schema_add_memo(r, (schema_memo){.json = json, .number = first}, &memo));
    CALLA_TRY(schema_add(r, &fields, &base));
    CALLA_TRY(schema_read_fields(r, json, at, fields, &any));
    if (any) base = SCHEMA_ANY;
    share(r->set, &base);
    CALLA_TRY(read_combinations(r, json, at, &base));
    if (schema_unwrap(r->set, base) == first)
        return schema_refuse(r, at, "a reference that leads to itself");
    r->set->memo[memo].number = base;
    *number = base;
    choice->open = false;
    return schema_add_alternative(r, choice, base);
}

static calla_status read_alias(schema_reader *r, const json_t *json, const schema_place *at,
                               uint32_t *number)
{
    size_t memo;
    CALLA_TRY(schema_add_memo(r, (schema_memo){.json = json, .number = UNDER_WAY}, &memo));
    CALLA_TRY(read_reference(r, json_object_get(json, "$ref"), at, number));
    r->set->memo[memo].number = *number;
    return CALLA_OK;
}

calla_status schema_read_node(schema_reader *r, const json_t *json, const schema_place *at,
                              uint32_t *number)
{
    calla_status status;
    if (++r->set->n_read > SCHEMA_MAX_NODES)
        return schema_refuse(r, NULL, "more than %d subschemas", SCHEMA_MAX_NODES);
    const schema_memo *memo = find_memo(r->set, json);
    if (json_is_true(json) || json_is_false(json)) {
        *number = json_is_true(json) ? SCHEMA_ANY : SCHEMA_NONE;
        return CALLA_OK;
    }
    if (!json_is_mapping(json))
        return schema_refuse(r, at, "a schema must be an object, true or false, not %s",
                             json_kind_name(json));
    if (memo) {
        if (memo->number == UNDER_WAY)
            return schema_refuse(r, at, "a reference that leads to itself");
        *number = memo->number;
        return CALLA_OK;
    }
    if (r->depth >= MAX_DEPTH) return schema_refuse(r, at, "nested deeper than %d", MAX_DEPTH);
    r->depth++;
    status = is_alias(json) ? read_alias(r, json, at, number) : read_new(r, json, at, number);
    r->depth--;
    return status;
}

calla_status schema_read(const json_t *root, const char *place, schema_set *set, uint32_t *top,
                         calla_error *err)
{
    schema_reader r = {.set = set, .where = place, .err = err};
    schema_node *any, *none;
    uint32_t number;
    *set = (schema_set){.root = root, .owned = json_array(), .work_left = MAX_COMPARISONS};
    if (!set->owned) return error_set(err, CALLA_ERR_MEMORY, "no memory for a schema");
    calla_status status = schema_add(&r, &any, &number);
    if (status == CALLA_OK) status = schema_add(&r, &none, &number);
    if (status == CALLA_OK) {
        none->types = 0;
        status = schema_read_node(&r, root, NULL, top);
    }
    if (status != CALLA_OK) schema_set_free(set);
    return status;
}
