#include "grammar/dfa.h"

#include "base/memory.h"

#include <stdlib.h>

enum { MOST_STATES = 1 << 20 };

void dfa_free(dfa *d)
{
    free(d->states);
    free(d->edges);
    *d = (dfa){0};
}

bool dfa_failed(const dfa *d)
{
    return d->no_memory || d->too_large;
}

uint32_t dfa_add_state(dfa *d, bool accept)
{
    void *states = d->states;
    size_t most = d->max_states ? d->max_states : MOST_STATES;
    if (d->n_states >= most) d->too_large = true;
    if (dfa_failed(d)) return 0;
    if (mem_grow(&states, &d->state_capacity, d->n_states + 1, sizeof *d->states, "an automaton",
                 NULL) != CALLA_OK) {
        d->no_memory = true;
        return 0;
    }
    d->states = states;
    d->states[d->n_states] = (dfa_state){DFA_NONE, accept, true};
    return (uint32_t)d->n_states++;
}

void dfa_add_edge(dfa *d, uint32_t from, uint8_t lo, uint8_t hi, uint32_t to)
{
    void *edges = d->edges;
    if (dfa_failed(d)) return;
    if (mem_grow(&edges, &d->edge_capacity, d->n_edges + 1, sizeof *d->edges, "an automaton",
                 NULL) != CALLA_OK) {
        d->no_memory = true;
        return;
    }
    d->edges = edges;
    d->edges[d->n_edges] = (dfa_edge){to, d->states[from].first, lo, hi};
    d->states[from].first = (uint32_t)d->n_edges++;
}

uint32_t dfa_next(const dfa *d, uint32_t from, uint8_t byte)
{
    for (uint32_t e = d->states[from].first; e != DFA_NONE; e = d->edges[e].next)
        if (d->edges[e].lo <= byte && byte <= d->edges[e].hi) return d->edges[e].to;
    return DFA_NONE;
}

void dfa_add_text(dfa *d, const char *text, size_t n)
{
    if (d->n_states == 0) dfa_add_state(d, false);
    uint32_t at = 0;
    for (size_t i = 0; i < n && !dfa_failed(d); i++) {
        uint8_t byte = (uint8_t)text[i];
        uint32_t next = dfa_next(d, at, byte);
        if (next == DFA_NONE) {
            next = dfa_add_state(d, false);
            dfa_add_edge(d, at, byte, byte, next);
        }
        at = next;
    }
    if (!dfa_failed(d)) d->states[at].accept = true;
}

/* Marks what reaches an end: backwards along the edges, which are sorted by target for it. */
static bool mark_useful(const dfa *d, bool *useful)
{
    size_t n = d->n_states;
    uint32_t *starts = calloc(n + 2, sizeof *starts), *todo = calloc(n + 1, sizeof *todo);
    uint32_t *sources = calloc(d->n_edges + 1, sizeof *sources);
    bool ok = starts && todo && sources;
    size_t n_todo = 0;
    if (!ok) goto done;
    for (size_t e = 0; e < d->n_edges; e++) starts[d->edges[e].to + 2]++;
    for (size_t s = 2; s < n + 2; s++) starts[s] += starts[s - 1];
    for (uint32_t s = 0; s < n; s++)
        for (uint32_t e = d->states[s].first; e != DFA_NONE; e = d->edges[e].next)
            sources[starts[d->edges[e].to + 1]++] = s;
    for (uint32_t s = 0; s < n; s++)
        if (d->states[s].accept) useful[s] = true, todo[n_todo++] = s;
    while (n_todo > 0) {
        uint32_t s = todo[--n_todo];
        for (uint32_t i = starts[s]; i < starts[s + 1]; i++) {
            uint32_t from = sources[i];
            if (!useful[from]) useful[from] = true, todo[n_todo++] = from;
        }
    }
done:
    free(starts);
    free(todo);
    free(sources);
    return ok;
}

bool dfa_trim(dfa *d)
{
    if (dfa_failed(d) || d->n_states == 0) return false;
    bool *useful = calloc(d->n_states, sizeof *useful);
    if (!useful || !mark_useful(d, useful)) {
        d->no_memory = true;
        free(useful);
        return false;
    }
    for (size_t s = 0; s < d->n_states; s++) {
        uint32_t *link = &d->states[s].first;
        while (*link != DFA_NONE) {
            dfa_edge *e = &d->edges[*link];
            if (useful[e->to])
                link = &e->next;
            else
                *link = e->next;
        }
    }
    bool any = useful[0];
    free(useful);
    return any;
}

/* ---- texts without marks ---- */

uint32_t dfa_mark_next(const dfa *marks, uint32_t at, uint8_t byte)
{
    uint32_t next = dfa_next(marks, at, byte);
    if (next == DFA_NONE) next = dfa_next(marks, 0, byte); /* it may begin one */
    return next == DFA_NONE ? 0 : next;
}

typedef struct avoiding {
    const dfa *d, *marks;
    dfa out;
    uint32_t *known; /* [d->n_states][marks->n_states] state of out + 1 */
    uint32_t
        *places; /* [d->n_states * marks->n_states] of each state of out: where it is in known */
} avoiding;

static uint32_t avoiding_state(avoiding *v, uint32_t state, uint32_t mark)
{
    uint32_t place = state * (uint32_t)v->marks->n_states + mark;
    if (v->known[place]) return v->known[place] - 1;
    uint32_t id = dfa_add_state(&v->out, v->d->states[state].accept);
    if (dfa_failed(&v->out)) return 0;
    v->out.states[id].between = v->d->states[state].between;
    v->places[id] = place;
    v->known[place] = id + 1;
    return id;
}

/* The bytes lo ... hi, which lead to state `to` of d, in pieces that mean the same to the marks. */
static void avoiding_edge(avoiding *v, uint32_t id, uint32_t mark, const dfa_edge *e)
{
    for (int lo = e->lo, hi; lo <= e->hi; lo = hi + 1) {
        uint32_t next = dfa_mark_next(v->marks, mark, (uint8_t)lo);
        for (hi = lo; hi < e->hi; hi++)
            if (dfa_mark_next(v->marks, mark, (uint8_t)(hi + 1)) != next) break;
        if (v->marks->states[next].accept) continue;
        uint32_t to = avoiding_state(v, e->to, next);
        dfa_add_edge(&v->out, id, (uint8_t)lo, (uint8_t)hi, to);
    }
}

calla_status dfa_avoid(dfa *d, const dfa *marks, calla_error *err)
{
    if (d->n_states == 0) return CALLA_OK;
    size_t n = d->n_states * marks->n_states;
    avoiding v = {.d = d, .marks = marks};
    v.known = calloc(n, sizeof *v.known);
    v.places = calloc(n, sizeof *v.places);
    v.out.no_memory = !v.known || !v.places;
    if (!v.out.no_memory) avoiding_state(&v, 0, 0);
    for (uint32_t id = 0; id < v.out.n_states && !dfa_failed(&v.out); id++) {
        uint32_t state = v.places[id] / (uint32_t)marks->n_states;
        uint32_t mark = v.places[id] % (uint32_t)marks->n_states;
        for (uint32_t i = d->states[state].first; i != DFA_NONE; i = d->edges[i].next)
            avoiding_edge(&v, id, mark, &d->edges[i]);
    }
    bool any = dfa_trim(&v.out);
    free(v.known);
    free(v.places);
    dfa_free(d);
    bool no_memory = v.out.no_memory, too_large = v.out.too_large;
    if (any)
        *d = v.out;
    else
        dfa_free(&v.out);
    if (too_large) return error_set(err, CALLA_ERR_UNSUPPORTED, "the pattern is too large");
    return no_memory ? error_set(err, CALLA_ERR_MEMORY, "no memory for a pattern") : CALLA_OK;
}
