#include "grammar/emit.h"

#include "grammar/number_dfa.h"

#include <stdlib.h>
#include <string.h>

/* ---- which schemas have values ---- */

bool emit_is_alive(const emitter *e, uint32_t schema)
{
    return e->info[schema].alive != 0;
}

uint8_t emit_need(const emitter *e, uint32_t schema)
{
    uint8_t need = e->info[schema].need;
    return need >= NEED_MAX - 1 ? NEED_MAX : (uint8_t)(need + 1);
}

static calla_status add_place(const emitter *e, const schema_node *s, calla_status status)
{
    if (status != CALLA_OK && e->err) {
        error_prefix(e->err, "%s", s->place ? s->place : e->where);
        if (status == CALLA_ERR_UNSUPPORTED) e->err->code = status = CALLA_ERR_INPUT;
    }
    return status;
}

calla_status emit_add_pattern_place(const emitter *e, const schema_node *s, calla_status status)
{
    if (status != CALLA_OK && e->err) error_prefix(e->err, s->is_format ? "format" : "pattern");
    return add_place(e, s, status);
}

/* Numbers and strings: whether there are any is a question to their automata. */
static calla_status prepare_scalars(emitter *e, const schema_node *s, node_info *info)
{
    number_limits limits = {.integers_only = !(s->types & TYPE_NUMBER),
                            .minimum = s->minimum,
                            .maximum = s->maximum,
                            .multiple = s->multiple,
                            .exclusive_minimum = s->exclusive_minimum,
                            .exclusive_maximum = s->exclusive_maximum};
    if (s->types & TYPE_INTEGER) {
        CALLA_TRY(add_place(e, s, number_dfa(&limits, &info->number, e->err)));
        if (info->number.n_states > 0) info->alive |= TYPE_INTEGER;
    }
    if (!(s->types & TYPE_STRING)) return CALLA_OK;
    info->has_text = s->pattern != NULL;
    if (info->has_text) {
        calla_status status = text_dfa(s, SPELLED_JSON, &e->work_left, &info->text, e->err);
        if (status == CALLA_OK && e->in_call) status = dfa_avoid(&info->text, &e->marks, e->err);
        CALLA_TRY(emit_add_pattern_place(e, s, status));
        if (info->text.n_states > 0) info->alive |= TYPE_STRING;
    } else if (s->min_length <= s->max_length) {
        info->alive |= TYPE_STRING;
    }
    return CALLA_OK;
}

static calla_status prepare_values(emitter *e, const schema_node *s, node_info *info)
{
    strbuf text = {0};
    info->has_text = true; /* all kinds of values are in info->text */
    for (size_t i = 0; i < json_array_size(s->values); i++) {
        emit_spell(e, json_array_get(s->values, i), &text);
        dfa_add_text(&info->text, text.data ? text.data : "", text.n);
        strbuf_clear(&text);
        info->alive = s->types;
    }
    bool failed = text.failed || info->text.no_memory;
    strbuf_free(&text);
    if (failed) return error_set(e->err, CALLA_ERR_MEMORY, "no memory for a grammar");
    if (info->text.too_large)
        return error_set(e->err, CALLA_ERR_INPUT, "%s: its values are too long",
                         s->place ? s->place : e->where);
    return CALLA_OK;
}

static uint32_t item_schema(const schema_node *s, size_t i)
{
    return i < s->n_prefix ? s->prefix[i] : s->items;
}

/* How many items an array can have at most. */
static uint32_t most_items(const emitter *e, const schema_node *s)
{
    for (size_t i = 0; i < s->n_prefix; i++)
        if (!emit_is_alive(e, s->prefix[i])) return i < s->max_items ? (uint32_t)i : s->max_items;
    if (!emit_is_alive(e, s->items))
        return s->n_prefix < s->max_items ? (uint32_t)s->n_prefix : s->max_items;
    return s->max_items;
}

static bool object_is_alive(const emitter *e, const schema_node *s)
{
    for (size_t i = 0; i < s->n_properties; i++)
        if (s->properties[i].required && !emit_is_alive(e, s->properties[i].schema)) return false;
    return true;
}

static unsigned alive_types(const emitter *e, uint32_t number)
{
    const schema_node *s = e->set->nodes[number];
    unsigned alive = e->info[number].alive;
    if (s->is_choice) {
        for (size_t i = 0; i < s->n_alternatives; i++)
            if (emit_is_alive(e, s->alternatives[i])) return 1;
        return 0;
    }
    if (s->values) return alive;
    alive |= s->types & (TYPE_NULL | TYPE_BOOLEAN);
    if ((s->types & TYPE_ARRAY) && s->min_items <= most_items(e, s)) alive |= TYPE_ARRAY;
    if ((s->types & TYPE_OBJECT) && object_is_alive(e, s)) alive |= TYPE_OBJECT;
    return alive;
}

static unsigned at_most(unsigned x)
{
    return x < NEED_MAX ? x : NEED_MAX;
}

static unsigned array_need(const emitter *e, const schema_node *s)
{
    unsigned need = 0;
    for (size_t i = 0; i < s->min_items && i <= s->n_prefix; i++) {
        unsigned one = emit_need(e, item_schema(s, i));
        if (one > need) need = one;
    }
    return need;
}

static unsigned object_need(const emitter *e, const schema_node *s)
{
    unsigned need = 0;
    for (size_t i = 0; i < s->n_properties; i++) {
        unsigned one = s->properties[i].required ? emit_need(e, s->properties[i].schema) : 0;
        if (one > need) need = one;
    }
    return need;
}

unsigned emit_types_need(const emitter *e, uint32_t schema, unsigned types)
{
    const schema_node *s = e->set->nodes[schema];
    unsigned need = NEED_MAX, alive = e->info[schema].alive & types;
    if (alive & ~(unsigned)(TYPE_ARRAY | TYPE_OBJECT)) return 0;
    if (alive & TYPE_ARRAY) need = at_most(array_need(e, s));
    if ((alive & TYPE_OBJECT) && object_need(e, s) < need) need = object_need(e, s);
    return need;
}

static unsigned node_need(const emitter *e, uint32_t number)
{
    const schema_node *s = e->set->nodes[number];
    unsigned need = NEED_MAX;
    if (s->is_choice) {
        for (size_t i = 0; i < s->n_alternatives; i++) {
            unsigned one = e->info[s->alternatives[i]].need;
            if (one < need) need = one;
        }
        return need;
    }
    if (s->values) return e->info[number].alive ? 0 : NEED_MAX;
    return emit_types_need(e, number, TYPE_ALL);
}

/* Both grow, respectively shrink, until nothing changes: what a schema contains mostly has a larger
 * number, so going down settles most of it at once. */
static void settle(emitter *e)
{
    bool changed = true;
    while (changed) {
        changed = false;
        for (uint32_t i = (uint32_t)e->set->n_nodes; i-- > 0;) {
            unsigned alive = alive_types(e, i);
            changed = changed || alive != e->info[i].alive;
            e->info[i].alive = alive;
        }
    }
    for (uint32_t i = 0; i < e->set->n_nodes; i++) e->info[i].need = NEED_MAX;
    changed = true;
    while (changed) {
        changed = false;
        for (uint32_t i = (uint32_t)e->set->n_nodes; i-- > 0;) {
            unsigned need = node_need(e, i);
            changed = changed || need != e->info[i].need;
            e->info[i].need = (uint8_t)need;
        }
    }
}

calla_status emitter_init(emitter *e, const schema_set *set, const char *where, calla_error *err)
{
    e->set = set;
    e->where = where;
    e->err = err;
    e->info = calloc(set->n_nodes + 1, sizeof *e->info);
    e->queue = calloc(set->n_nodes + 1, sizeof *e->queue);
    e->among = calloc(set->n_nodes + 1, sizeof *e->among);
    if (!e->info || !e->queue || !e->among)
        return error_set(err, CALLA_ERR_MEMORY, "no memory for a grammar");
    size_t n_states = 0;
    for (size_t i = 0; i < set->n_nodes; i++) {
        const schema_node *s = set->nodes[i];
        if (s->is_choice) continue;
        CALLA_TRY(s->values ? prepare_values(e, s, &e->info[i])
                            : prepare_scalars(e, s, &e->info[i]));
        n_states += e->info[i].number.n_states + e->info[i].text.n_states;
        if (n_states > MAX_EDGES)
            return error_set(err, CALLA_ERR_INPUT,
                             "%s: its numbers, patterns and values need more "
                             "than %d states",
                             where, MAX_EDGES);
    }
    settle(e);
    return CALLA_OK;
}

void emitter_free(emitter *e)
{
    for (size_t i = 0; e->info && i < e->set->n_nodes; i++) {
        dfa_free(&e->info[i].number);
        dfa_free(&e->info[i].text);
    }
    free(e->info);
    free(e->queue);
    free(e->among);
    dfa_free(&e->marks);
    builder_free(&e->b);
}

/* ---- parts ---- */

uint32_t emit_part(emitter *e, uint32_t schema)
{
    node_info *info = &e->info[schema];
    if (info->part == 0) {
        info->part = builder_state(&e->b);
        if (info->part != 0) e->queue[e->n_queued++] = schema;
    }
    return info->part;
}

/* Adds the alternatives that were not there yet to e->among [n]; gives the new n. */
static size_t add_alternatives(emitter *e, const schema_node *s, uint32_t from, size_t n)
{
    for (size_t i = 0; i < s->n_alternatives; i++) {
        uint32_t one = s->alternatives[i];
        if (e->info[one].seen == from || !emit_is_alive(e, one)) continue;
        e->info[one].seen = from;
        e->among[n++] = one;
    }
    return n;
}

/* Alternatives that are choices are replaced by theirs: whoever follows only a part of the jumps
 * then always comes to where something is read. */
static void emit_choice(emitter *e, const schema_node *s, uint32_t from)
{
    size_t n = add_alternatives(e, s, from, 0);
    for (size_t i = 0; i < n; i++) {
        const schema_node *one = e->set->nodes[e->among[i]];
        if (one->is_choice) n = add_alternatives(e, one, from, n);
    }
    while (n-- > 0 && e->b.failed == CALLA_OK) { /* edges come out last first */
        uint32_t one = e->among[n];
        if (e->set->nodes[one]->is_choice) continue;
        pda_edge *jump = builder_edge(&e->b, from, EDGE_JUMP, emit_part(e, one));
        if (jump) jump->need = e->info[one].need;
    }
}

static void call_item(emitter *e, const schema_node *s, size_t i, uint32_t from, uint32_t back)
{
    uint32_t item = item_schema(s, i);
    builder_call(&e->b, from, emit_part(e, item), back, emit_need(e, item));
}

/* ", " or "," from one state to another. */
static void emit_comma(emitter *e, uint32_t from, uint32_t to, uint32_t guard, edge_act act,
                       uint32_t arg, uint8_t need)
{
    uint32_t space = builder_state(&e->b);
    pda_edge *comma = builder_bytes(&e->b, from, ',', ',', space);
    if (comma) {
        comma->guard = guard;
        comma->act = (uint8_t)act;
        comma->arg = arg;
        comma->need = need;
    }
    builder_bytes(&e->b, space, ' ', ' ', to);
    builder_jump(&e->b, space, to);
}

static void emit_close(emitter *e, uint32_t from, char c, uint32_t guard)
{
    pda_edge *close = builder_bytes(&e->b, from, (uint8_t)c, (uint8_t)c, ACCEPT);
    if (close) close->guard = guard;
}

/* The items behind those with a schema of their own; `before` stands before the first of them,
 * which is the n-th. The frame's number counts the commas between them. */
static void emit_items(emitter *e, const schema_node *s, uint32_t before, uint32_t n, uint32_t most)
{
    uint32_t min = s->min_items > n ? s->min_items - n : 0;
    uint32_t after = builder_state(&e->b), max = most == NO_LIMIT ? NO_LIMIT : most - n;
    call_item(e, s, n, before, after);
    emit_close(e, after, ']', builder_guard_one(&e->b, min > 0 ? min - 1 : 0, UINT32_MAX));
    if (max == 1) return;
    uint32_t cap = max == NO_LIMIT ? min : max - 1;
    uint32_t guard = max == NO_LIMIT ? NO_GUARD : builder_guard_one(&e->b, 0, max - 2);
    uint32_t next = builder_state(&e->b);
    emit_comma(e, after, next, guard, ACT_COUNT, cap, emit_need(e, s->items));
    call_item(e, s, n, next, after);
}

static void emit_array(emitter *e, const schema_node *s, uint32_t from, uint8_t need)
{
    uint32_t most = most_items(e, s), before = builder_state(&e->b);
    pda_edge *open = builder_bytes(&e->b, from, '[', '[', before);
    if (open) open->need = need;
    if (s->min_items == 0) emit_close(e, before, ']', NO_GUARD);
    for (uint32_t i = 0; i < s->n_prefix && i < most; i++) {
        uint32_t after = builder_state(&e->b);
        call_item(e, s, i, before, after);
        if (i + 1 >= s->min_items) emit_close(e, after, ']', NO_GUARD);
        if (i + 1 == most) return;
        before = builder_state(&e->b);
        emit_comma(e, after, before, NO_GUARD, ACT_NONE, 0, emit_need(e, item_schema(s, i + 1)));
    }
    if (most > s->n_prefix) emit_items(e, s, before, (uint32_t)s->n_prefix, most);
}

static void emit_string(emitter *e, const schema_node *s, const node_info *info, uint32_t from)
{
    builder *b = &e->b;
    if (!info->has_text) {
        builder_bytes(b, from, '"', '"', emit_free_text(e, s->min_length, s->max_length));
        return;
    }
    uint32_t inside = builder_state(b);
    builder_bytes(b, from, '"', '"', inside);
    emit_dfa(e, &info->text, inside, true, ACCEPT);
}

void emit_types(emitter *e, uint32_t schema, unsigned types, uint32_t from)
{
    builder *b = &e->b;
    const schema_node *s = e->set->nodes[schema];
    const node_info *info = &e->info[schema];
    unsigned alive = info->alive & types;
    if (alive & TYPE_NULL) builder_text(b, from, "null", 4, ACCEPT);
    if (alive & TYPE_BOOLEAN) {
        builder_text(b, from, "true", 4, ACCEPT);
        builder_text(b, from, "false", 5, ACCEPT);
    }
    if (alive & TYPE_INTEGER) emit_dfa(e, &info->number, from, false, ACCEPT);
    if (alive & TYPE_STRING) emit_string(e, s, info, from);
    if (alive & TYPE_ARRAY) emit_array(e, s, from, (uint8_t)at_most(array_need(e, s)));
    if (alive & TYPE_OBJECT) emit_object(e, s, from, (uint8_t)at_most(object_need(e, s)));
}

void emit_all(emitter *e)
{
    while (e->n_filled < e->n_queued && e->b.failed == CALLA_OK) {
        uint32_t number = e->queue[e->n_filled++];
        const schema_node *s = e->set->nodes[number];
        const node_info *info = &e->info[number];
        if (s->is_choice)
            emit_choice(e, s, info->part);
        else if (s->values)
            emit_dfa(e, &info->text, info->part, false, ACCEPT);
        else
            emit_types(e, number, TYPE_ALL, info->part);
    }
}

/* ---- automata ---- */

void emit_dfa(emitter *e, const dfa *d, uint32_t from, bool quoted, uint32_t target)
{
    builder *b = &e->b;
    uint32_t *states = calloc(d->n_states, sizeof *states);
    if (!states) {
        b->failed = CALLA_ERR_MEMORY;
        return;
    }
    states[0] = from;
    for (uint32_t s = 0; s < d->n_states && b->failed == CALLA_OK; s++) {
        for (uint32_t i = d->states[s].first; i != DFA_NONE; i = d->edges[i].next) {
            uint32_t to = d->edges[i].to;
            if (states[to] == 0) states[to] = builder_state(b);
            if (states[s] == 0) states[s] = builder_state(b);
            builder_bytes(b, states[s], d->edges[i].lo, d->edges[i].hi, states[to]);
        }
        if (!d->states[s].accept) continue;
        if (states[s] == 0) states[s] = builder_state(b);
        if (quoted)
            builder_bytes(b, states[s], '"', '"', target);
        else
            builder_jump(b, states[s], target);
    }
    free(states);
}
