#include "grammar/emit.h"
#include "grammar/grammar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The grammar of calls: "\n<function=", a name, and the inside of the call. */
typedef struct calls {
    const json_t *tools;
    const char *only;
    builder b;
    dfa names;                    /* a tree of NAME ">\n" */
    uint32_t *states;             /* [names.n_states] of the automaton */
    uint32_t raw_text, free_call; /* shared by the tools; 0 = not yet */
    int64_t work_left;            /* for patterns of all tools */
    size_t n_nodes;               /* of the schemas of all tools */
    calla_error *err;
} calls;

static const json_t *function_at(const calls *c, size_t i)
{
    return json_object_get(json_array_get(c->tools, i), "function");
}

static const char *name_of(const json_t *function)
{
    return json_string_value(json_object_get(function, "name"));
}

static bool is_offered(const calls *c, size_t i)
{
    return !c->only || strcmp(c->only, name_of(function_at(c, i))) == 0;
}

static void add_name(calls *c, const char *name)
{
    strbuf text = {0};
    strbuf_puts(&text, name);
    strbuf_puts(&text, ">\n");
    if (text.failed) c->b.failed = CALLA_ERR_MEMORY;
    if (!text.failed) dfa_add_text(&c->names, text.data, text.n);
    strbuf_free(&text);
}

static calla_status emit_names(calls *c, uint32_t from)
{
    for (size_t i = 0; i < json_array_size(c->tools); i++)
        if (is_offered(c, i)) add_name(c, name_of(function_at(c, i)));
    c->states = calloc(c->names.n_states + 1, sizeof *c->states);
    if (!c->states || dfa_failed(&c->names) || c->b.failed != CALLA_OK)
        return error_set(c->err, CALLA_ERR_MEMORY, "no memory for a grammar");
    for (uint32_t i = 0; i < c->names.n_states; i++)
        c->states[i] = i == 0 ? from : builder_state(&c->b);
    for (uint32_t i = 0; i < c->names.n_states; i++)
        for (uint32_t k = c->names.states[i].first; k != DFA_NONE; k = c->names.edges[k].next) {
            const dfa_edge *edge = &c->names.edges[k];
            builder_bytes(&c->b, c->states[i], edge->lo, edge->hi, c->states[edge->to]);
        }
    return CALLA_OK;
}

/* The state behind a name and its ">\n". */
static uint32_t state_of(const calls *c, const char *name)
{
    uint32_t at = 0;
    for (; *name; name++) at = dfa_next(&c->names, at, (uint8_t)*name);
    return c->states[dfa_next(&c->names, dfa_next(&c->names, at, '>'), '\n')];
}

/* Puts the inside of one tool's calls into the automaton. */
static calla_status emit_tool(calls *c, const json_t *function, const char *place)
{
    emitter e = {.b = c->b, .raw_text = c->raw_text, .work_left = c->work_left};
    schema_set set = {0};
    uint32_t top, from = state_of(c, name_of(function));
    const json_t *parameters = json_object_get(function, "parameters");
    bool strict = json_is_true(json_object_get(function, "strict"));
    calla_status status = emit_begin_call(&e);
    json_t *none = json_pack("{s:s}", "type", "object");
    if (status != CALLA_OK || !none) {
        status = error_set(c->err, CALLA_ERR_MEMORY, "no memory for a grammar");
        goto done;
    }
    if (!strict) {
        bool first = c->free_call == 0;
        if (first) c->free_call = builder_state(&e.b);
        if (first) emit_free_call(&e, c->free_call);
        builder_jump(&e.b, from, c->free_call);
        goto done;
    }
    if (!json_is_mapping(parameters)) parameters = none;
    CALLA_TRY_GOTO(schema_read(parameters, place, &set, &top, c->err), done);
    c->n_nodes += set.n_nodes;
    if (c->n_nodes > SCHEMA_MAX_NODES) {
        status = error_set(c->err, CALLA_ERR_INPUT,
                           "tools: strict functions have more than %d subschemas in all",
                           SCHEMA_MAX_NODES);
        goto done;
    }
    CALLA_TRY_GOTO(emitter_init(&e, &set, place, c->err), done);
    status = emit_call(&e, function, top, from);
done:
    c->b = e.b;
    c->raw_text = e.raw_text;
    c->work_left = e.work_left;
    e.b = (builder){0};
    emitter_free(&e);
    schema_set_free(&set);
    json_decref(none);
    return status;
}

static calla_status emit_tools(calls *c, uint32_t *start)
{
    uint32_t name = builder_state(&c->b);
    *start = builder_state(&c->b);
    builder_text(&c->b, *start, "\n<function=", 11, name);
    CALLA_TRY(emit_names(c, name));
    for (size_t i = 0; i < json_array_size(c->tools) && c->b.failed == CALLA_OK; i++) {
        char place[64];
        snprintf(place, sizeof place, "tools[%zu].function.parameters", i);
        if (is_offered(c, i)) CALLA_TRY(emit_tool(c, function_at(c, i), place));
    }
    return CALLA_OK;
}

calla_status grammar_create_calls(const json_t *tools, const char *only, grammar **out,
                                  calla_error *err)
{
    calls c = {.tools = tools, .only = only, .work_left = PATTERN_MAX_WORK, .err = err};
    grammar *g = calloc(1, sizeof *g);
    if (!g) return error_set(err, CALLA_ERR_MEMORY, "no memory for a grammar");
    builder_init(&c.b);
    calla_status status = emit_tools(&c, &g->start);
    g->start_after_reasoning = g->start; /* `<tool_call>` stands in between */
    if (status == CALLA_OK) status = builder_finish(&c.b, &g->a, err);
    if (status == CALLA_ERR_UNSUPPORTED) {
        error_prefix(err, "tools");
        if (err) err->code = CALLA_ERR_INPUT;
        status = CALLA_ERR_INPUT;
    }
    builder_free(&c.b);
    dfa_free(&c.names);
    free(c.states);
    if (status != CALLA_OK) {
        grammar_free(g);
        return status;
    }
    *out = g;
    return CALLA_OK;
}
