/* The inside of a tool call, in the model's own form:
 *
 *     <parameter=KEY>\nVALUE\n</parameter>\n ... </function>\n
 *
 * Parameters come in the order of the schema. A value is raw text where the schema says string,
 * else JSON. Who reads the call decides by the types alone which of the two a text is
 * (chat_value.h), so what may come is what is read back as it was meant: of mixed types, texts that
 * would be taken for another type do not. No value has a tag in it that could end it. */
#include "grammar/emit.h"

#include "model/chat_value.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_KEY_BYTES = 1024,    /* what is longer is no key to the parser of calls */
    MAX_KEY_CHARACTERS = 64, /* of a tool that is not strict */
};

static const char before_key[] = "<parameter=", after_key[] = ">\n";
static const char after_value[] = "\n</parameter>\n", after_call[] = "</function>\n";

static void put_text(builder *b, uint32_t from, const char *text, uint32_t to)
{
    builder_text(b, from, text, strlen(text), to);
}

calla_status emit_begin_call(emitter *e)
{
    static const char *const marks[] = {"</parameter>", "</function>", "</tool_call>",
                                        "<parameter="};
    e->in_call = true;
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        dfa_add_text(&e->marks, marks[i], strlen(marks[i]));
    return dfa_failed(&e->marks) ? CALLA_ERR_MEMORY : CALLA_OK;
}

/* ---- raw text ---- */

typedef struct raw_text {
    emitter *e;
    uint32_t *states;               /* [marks.n_states] by what the text so far ends in */
    uint32_t within[N_TEXT_PLACES]; /* inside a character */
    uint32_t min, max, cap, more;
} raw_text;

static void raw_edge(raw_text *t, uint32_t from, uint8_t lo, uint8_t hi, uint32_t to)
{
    pda_edge *edge = builder_bytes(&t->e->b, from, lo, hi, to);
    if (!edge || t->cap == 0) return;
    edge->guard = t->more;
    edge->act = ACT_COUNT;
    edge->arg = t->cap;
}

/* What may come where no character is under way. */
static void raw_state(raw_text *t, uint32_t from, uint32_t mark, const char *not_first)
{
    const dfa *marks = &t->e->marks;
    size_t n;
    const text_step *steps = emit_text_steps(t->e, &n);
    for (int lo = 1, hi; lo < 0x80; lo = hi + 1) {
        uint32_t next = dfa_mark_next(marks, mark, (uint8_t)lo);
        bool barred = strchr(not_first, lo) != NULL;
        for (hi = lo; hi < 0x7f; hi++)
            if (dfa_mark_next(marks, mark, (uint8_t)(hi + 1)) != next ||
                (strchr(not_first, hi + 1) != NULL) != barred)
                break;
        if (barred || marks->states[next].accept) continue;
        raw_edge(t, from, (uint8_t)lo, (uint8_t)hi, t->states[next]);
    }
    for (size_t i = 0; i < n; i++)
        if (steps[i].from == IN_TEXT && steps[i].lo >= 0x80)
            raw_edge(t, from, steps[i].lo, steps[i].hi, t->within[steps[i].to]);
}

static void raw_within(raw_text *t)
{
    size_t n;
    const text_step *steps = emit_text_steps(t->e, &n);
    for (size_t i = 0; i < n; i++) {
        const text_step *s = &steps[i];
        if (s->from < IN_1 || s->from > IN_F4) continue;
        builder_bytes(&t->e->b, t->within[s->from], s->lo, s->hi,
                      s->to == IN_TEXT ? t->states[0] : t->within[s->to]);
    }
}

static void raw_end(raw_text *t, uint32_t from)
{
    pda_edge *end = builder_edge(&t->e->b, from, EDGE_JUMP, ACCEPT);
    if (!end) return;
    end->guard = builder_guard_one(&t->e->b, t->min, UINT32_MAX);
    emit_count(&t->e->b, from, t->min, t->max);
}

uint32_t emit_raw_text(emitter *e, uint32_t min, uint32_t max, const char *not_first)
{
    builder *b = &e->b;
    bool any = min == 0 && max == NO_LIMIT && !*not_first;
    if (any && e->raw_text) return e->raw_text;
    raw_text t = {.e = e, .min = min, .max = max, .cap = max == NO_LIMIT ? min : max};
    t.states = calloc(e->marks.n_states, sizeof *t.states);
    if (!t.states) b->failed = CALLA_ERR_MEMORY;
    if (b->failed != CALLA_OK) return ACCEPT;
    t.more = max == NO_LIMIT || max == 0 ? NO_GUARD : builder_guard_one(b, 0, max - 1);
    for (uint32_t i = 0; i < e->marks.n_states; i++)
        if (!e->marks.states[i].accept) t.states[i] = builder_state(b);
    for (int i = IN_1; i <= IN_F4; i++) t.within[i] = builder_state(b);
    for (uint32_t i = 0; i < e->marks.n_states && b->failed == CALLA_OK; i++) {
        if (e->marks.states[i].accept) continue;
        if (max > 0) raw_state(&t, t.states[i], i, "");
        raw_end(&t, t.states[i]);
    }
    raw_within(&t);
    uint32_t first = t.states[0];
    if (*not_first) {
        first = builder_state(b);
        if (max > 0) raw_state(&t, first, 0, not_first);
        raw_end(&t, first);
    }
    if (any) e->raw_text = first;
    free(t.states);
    return first;
}

/* ---- one parameter ---- */

typedef struct parameter {
    emitter *e;
    value_types types;  /* that its text is read with */
    unsigned allowed;   /* TYPE_ bits of what may be JSON */
    bool raw;           /* it may be text */
    char not_first[48]; /* what no text may begin with */
    uint32_t *plain;    /* [n_plain] the schemas it is a choice of, which are none themselves */
    size_t n_plain;
    bool *seen; /* [set->n_nodes] */
    bool any;   /* it has a value */
} parameter;

static void find_plain(parameter *p, uint32_t schema)
{
    const schema_node *s = p->e->set->nodes[schema];
    if (p->seen[schema]) return;
    p->seen[schema] = true;
    if (!s->is_choice) p->plain[p->n_plain++] = schema;
    for (size_t i = 0; s->is_choice && i < s->n_alternatives; i++)
        find_plain(p, s->alternatives[i]);
}

static bool may_be_null(const parameter *p)
{
    for (size_t i = 0; i < p->n_plain; i++)
        if (!p->e->set->nodes[p->plain[i]]->values && (p->e->info[p->plain[i]].alive & TYPE_NULL))
            return true;
    return false;
}

/* A text is read as the first type it fits, and string fits every text; but null comes before all.
 */
static void set_types(parameter *p, uint32_t schema)
{
    static const struct {
        unsigned types;
        const char *first; /* of its texts */
    } kinds[VALUE_KINDS] = {[VALUE_INTEGER] = {TYPE_INTEGER, "-0123456789"},
                            [VALUE_NUMBER] = {TYPE_INTEGER | TYPE_NUMBER, "-0123456789"},
                            [VALUE_BOOLEAN] = {TYPE_BOOLEAN, "tfTF"},
                            [VALUE_OBJECT] = {TYPE_OBJECT, "{"},
                            [VALUE_ARRAY] = {TYPE_ARRAY, "["},
                            [VALUE_NULL] = {TYPE_NULL, "nN"}};
    bool before = true;
    for (int i = 0; i < p->types.n; i++) {
        value_kind kind = p->types.kinds[i];
        if (kind == VALUE_STRING) {
            p->raw = true;
            before = false;
        } else if (before || kind == VALUE_NULL) {
            p->allowed |= kinds[kind].types;
            if (kind != VALUE_NULL || !may_be_null(p)) strcat(p->not_first, kinds[kind].first);
        }
    }
    if (*p->not_first) strcat(p->not_first, " \t\n\v\f\r");
    if (p->types.n > 0) return;
    p->allowed = TYPE_ALL & ~(unsigned)TYPE_STRING;
    p->raw = schema == SCHEMA_ANY;
}

/* Whether the text is read as the value. */
static bool is_read_as(const parameter *p, const strbuf *text, const json_t *value)
{
    strbuf out = {0};
    json_t *back = NULL;
    value_write(&out, &p->types, text->data ? text->data : "", text->n);
    bool same = !out.failed && json_parse_text(out.data, out.n, "value", &back, NULL) == CALLA_OK &&
                json_equal(back, value);
    json_decref(back);
    strbuf_free(&out);
    return same;
}

static calla_status list_values(const parameter *p, const schema_node *s, dfa *list)
{
    emitter *e = p->e;
    for (size_t i = 0; i < json_array_size(s->values); i++) {
        const json_t *value = json_array_get(s->values, i);
        strbuf text = {0};
        if (json_is_string(value))
            strbuf_append(&text, json_string_value(value), json_string_length(value));
        else
            emit_spell(e, value, &text);
        if (is_read_as(p, &text, value)) dfa_add_text(list, text.data ? text.data : "", text.n);
        bool failed = text.failed || list->no_memory;
        strbuf_free(&text);
        if (failed) return error_set(e->err, CALLA_ERR_MEMORY, "no memory for a grammar");
    }
    if (list->too_large)
        return error_set(e->err, CALLA_ERR_INPUT, "%s: its values are too long", e->where);
    return dfa_avoid(list, &e->marks, e->err);
}

static void call_part(parameter *p, uint32_t from, uint32_t part, uint32_t back, unsigned need)
{
    if (need + 2 > MAX_FRAMES) return;
    builder_call(&p->e->b, from, part, back, (uint8_t)(need + 1));
    p->any = true;
}

static void call_dfa(parameter *p, const dfa *d, uint32_t from, uint32_t back)
{
    if (d->n_states == 0) return;
    uint32_t part = builder_state(&p->e->b);
    emit_dfa(p->e, d, part, false, ACCEPT);
    call_part(p, from, part, back, 0);
}

static calla_status emit_string_value(parameter *p, const schema_node *s, uint32_t from,
                                      uint32_t back)
{
    emitter *e = p->e;
    if (!s->pattern) {
        if (s->min_length <= s->max_length)
            call_part(p, from, emit_raw_text(e, s->min_length, s->max_length, p->not_first), back,
                      0);
        return CALLA_OK;
    }
    if (*p->not_first)
        return error_set(e->err, CALLA_ERR_INPUT,
                         "%s: a pattern or format beside other types than null is not supported "
                         "in a parameter of a strict function",
                         s->place ? s->place : e->where);
    dfa d = {0};
    calla_status status = text_dfa(s, SPELLED_RAW, &e->work_left, &d, e->err);
    if (status == CALLA_OK) status = dfa_avoid(&d, &e->marks, e->err);
    if (status == CALLA_OK) call_dfa(p, &d, from, back);
    dfa_free(&d);
    return emit_add_pattern_place(e, s, status);
}

static calla_status emit_alternative(parameter *p, uint32_t schema, uint32_t from, uint32_t back)
{
    emitter *e = p->e;
    const schema_node *s = e->set->nodes[schema];
    if (s->values) {
        dfa list = {0};
        calla_status status = list_values(p, s, &list);
        if (status == CALLA_OK) call_dfa(p, &list, from, back);
        dfa_free(&list);
        return status;
    }
    if (p->raw && (s->types & TYPE_STRING)) CALLA_TRY(emit_string_value(p, s, from, back));
    unsigned types = p->allowed & e->info[schema].alive;
    if ((s->types & TYPE_NUMBER) && !(p->allowed & TYPE_NUMBER)) types &= ~(unsigned)TYPE_INTEGER;
    if (!types) return CALLA_OK;
    uint32_t part = builder_state(&e->b);
    emit_types(e, schema, types, part);
    call_part(p, from, part, back, emit_types_need(e, schema, types));
    return CALLA_OK;
}

/* The values of a property between two states. *any: whether it has one. */
static calla_status emit_values(emitter *e, const json_t *tool, const schema_property *property,
                                uint32_t from, uint32_t back, bool *any)
{
    parameter p = {.e = e};
    bool known;
    calla_status status = CALLA_OK;
    p.plain = calloc(e->set->n_nodes, sizeof *p.plain);
    p.seen = calloc(e->set->n_nodes, sizeof *p.seen);
    if (!p.plain || !p.seen) {
        status = error_set(e->err, CALLA_ERR_MEMORY, "no memory for a grammar");
        goto done;
    }
    find_plain(&p, property->schema);
    tool_parameter_types(tool, json_string_value(property->name),
                         json_string_length(property->name), &p.types, &known);
    set_types(&p, property->schema);
    for (size_t i = p.n_plain; i-- > 0 && status == CALLA_OK;)
        status = emit_alternative(&p, p.plain[i], from, back);
    *any = p.any;
done:
    free(p.plain);
    free(p.seen);
    return status;
}

/* ---- calls ---- */

static calla_status check_key(const emitter *e, const char *name, size_t n)
{
    bool fits = n <= MAX_KEY_BYTES;
    for (size_t i = 0; i < n; i++)
        if (name[i] == '<' || name[i] == '>' || (unsigned char)name[i] < 0x20) fits = false;
    if (fits) return CALLA_OK;
    return error_set(e->err, CALLA_ERR_INPUT,
                     "%s.properties: a name of a strict function's parameter has at most %d bytes "
                     "and no <, > or control character",
                     e->where, MAX_KEY_BYTES);
}

static calla_status emit_parameter(emitter *e, const json_t *tool, const schema_property *p,
                                   uint32_t from, uint32_t to)
{
    builder *b = &e->b;
    const char *name = json_string_value(p->name);
    size_t n = json_string_length(p->name);
    uint32_t value = builder_state(b), after = builder_state(b);
    bool any = false;
    CALLA_TRY(check_key(e, name, n));
    CALLA_TRY(emit_values(e, tool, p, value, after, &any));
    if (!p->required) builder_jump(b, from, to);
    if (!any && p->required)
        return error_set(e->err, CALLA_ERR_INPUT,
                         "%s.properties.%.64s: no value of it can be told from others in a call",
                         e->where, name);
    if (!any) return CALLA_OK;
    strbuf text = {0};
    strbuf_puts(&text, before_key);
    strbuf_append(&text, name, n);
    strbuf_puts(&text, after_key);
    if (text.failed)
        b->failed = CALLA_ERR_MEMORY;
    else
        builder_text(b, from, text.data, text.n, value);
    strbuf_free(&text);
    put_text(b, after, after_value, to);
    return CALLA_OK;
}

calla_status emit_call(emitter *e, const json_t *tool, uint32_t top, uint32_t from)
{
    const schema_node *s = e->set->nodes[top];
    while (s->is_choice && s->n_alternatives == 1) s = e->set->nodes[s->alternatives[0]];
    if (s->is_choice || s->values || !(s->types & TYPE_OBJECT))
        return error_set(e->err, CALLA_ERR_INPUT,
                         "%s: the parameters of a strict function must be one object, not a choice",
                         e->where);
    for (size_t i = 0; i < s->n_properties; i++) {
        uint32_t next = builder_state(&e->b);
        CALLA_TRY(emit_parameter(e, tool, &s->properties[i], from, next));
        from = next;
    }
    put_text(&e->b, from, after_call, ACCEPT);
    emit_all(e);
    return CALLA_OK;
}

/* Keys are characters that none has to be careful about. */
void emit_free_call(emitter *e, uint32_t from)
{
    builder *b = &e->b;
    uint32_t first = builder_state(b), value = builder_state(b), after = builder_state(b);
    uint32_t guard = builder_guard_one(b, 0, MAX_KEY_CHARACTERS - 1);
    static const uint8_t ranges[][2] = {{0x21, 0x3b}, {0x3d, 0x3d}, {0x3f, 0x7e}};
    uint32_t more = builder_state(b);
    put_text(b, from, before_key, first);
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        for (int k = 0; k < 2; k++) {
            pda_edge *edge = builder_bytes(b, k ? more : first, ranges[i][0], ranges[i][1], more);
            if (!edge) return;
            edge->guard = k ? guard : NO_GUARD;
            edge->act = k ? ACT_COUNT : ACT_SET;
            edge->arg = k ? MAX_KEY_CHARACTERS : 1;
        }
    put_text(b, more, after_key, value);
    builder_call(b, value, emit_raw_text(e, 0, NO_LIMIT, ""), after, 1);
    put_text(b, after, after_value, from);
    put_text(b, from, after_call, ACCEPT);
}
