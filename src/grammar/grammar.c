#include "grammar/grammar.h"

#include "grammar/emit.h"

#include <stdlib.h>
#include <string.h>

static calla_status emit(const schema_set *set, uint32_t top, const char *place, grammar *g,
                         calla_error *err)
{
    emitter e = {.work_left = PATTERN_MAX_WORK};
    builder_init(&e.b);
    calla_status status = emitter_init(&e, set, place, err);
    if (status != CALLA_OK) goto done;
    if (!emit_is_alive(&e, top) || e.info[top].need >= MAX_FRAMES) {
        status = error_set(err, CALLA_ERR_INPUT,
                           emit_is_alive(&e, top) ? "%s: its values nest deeper than %d"
                                                  : "%s: no value is valid under this schema",
                           place, MAX_FRAMES);
        goto done;
    }
    g->start = emit_part(&e, top);
    g->start_after_reasoning = builder_state(&e.b);
    builder_text(&e.b, g->start_after_reasoning, GRAMMAR_GAP, sizeof GRAMMAR_GAP - 1, g->start);
    emit_all(&e);
    status = builder_finish(&e.b, &g->a, err);
    if (status == CALLA_ERR_UNSUPPORTED) {
        error_prefix(err, "%s", place);
        if (err) err->code = CALLA_ERR_INPUT;
        status = CALLA_ERR_INPUT;
    }
done:
    emitter_free(&e);
    return status;
}

calla_status grammar_create(const grammar_spec *spec, grammar **out, calla_error *err)
{
    schema_set set;
    uint32_t top;
    const char *place = spec->place ? spec->place : "schema";
    grammar *g = calloc(1, sizeof *g);
    if (!g) return error_set(err, CALLA_ERR_MEMORY, "no memory for a grammar");
    calla_status status = schema_read(spec->schema, place, &set, &top, err);
    if (status == CALLA_OK) {
        status = emit(&set, top, place, g, err);
        schema_set_free(&set);
    }
    if (status != CALLA_OK) {
        grammar_free(g);
        return status;
    }
    *out = g;
    return CALLA_OK;
}

/* The index + 1 of the set of the characters among the grammar's; 0 = there is none. */
static uint8_t use_set(grammar *g, const lead_set *chars)
{
    for (int i = 0; i < g->n_sets; i++)
        if (memcmp(&g->sets[i]->chars, chars, sizeof *chars) == 0) return (uint8_t)(i + 1);
    if (g->n_sets == GRAMMAR_MAX_SETS) return 0;
    const token_set *set = token_sets_get(g->owner, chars);
    if (!set) return 0;
    g->sets[g->n_sets++] = set;
    return (uint8_t)g->n_sets;
}

void grammar_use_tokens(grammar *g, token_sets *sets)
{
    g->owner = sets;
    for (size_t i = 0; i < g->a.n_states; i++) {
        const pda_state *s = &g->a.states[i];
        pda_stay *stay = &g->a.stays[s->stay];
        if (stay->keeps && !s->is_text) stay->set = use_set(g, &stay->chars);
    }
}

void grammar_free(grammar *g)
{
    if (!g) return;
    for (int i = 0; i < g->n_sets; i++) token_sets_put(g->owner, g->sets[i]);
    automaton_free(&g->a);
    free(g);
}
