#include "grammar/automaton.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

#define NO_EDGE UINT32_MAX

void automaton_free(automaton *a)
{
    free(a->states);
    free(a->edges);
    free(a->intervals);
    free(a->guards);
    free(a->stays);
    *a = (automaton){0};
}

bool automaton_guard_holds(const automaton *a, uint32_t index, uint32_t number)
{
    const pda_guard *g = &a->guards[index];
    if (index == NO_GUARD) return true;
    for (const interval *i = a->intervals + g->first, *end = i + g->n; i < end; i++)
        if (i->lo <= number && number <= i->hi) return true;
    return false;
}

/* ---- building ---- */

/* Room for one more of an array; false sets `failed`. */
static bool grow(builder *b, void **array, size_t *capacity, size_t n, size_t bytes)
{
    if (b->failed == CALLA_OK && n >= MAX_EDGES) b->failed = CALLA_ERR_UNSUPPORTED;
    if (b->failed == CALLA_OK)
        b->failed = mem_grow(array, capacity, n + 1, bytes, "a grammar", NULL);
    return b->failed == CALLA_OK;
}
#define GROW(b, array, capacity, n)                                                                \
    ({                                                                                             \
        void *grown_ = (array);                                                                    \
        bool ok_ = grow(b, &grown_, &(capacity), n, sizeof *(array));                              \
        (array) = grown_;                                                                          \
        ok_;                                                                                       \
    })

void builder_init(builder *b)
{
    *b = (builder){0};
    builder_state(b); /* ACCEPT */
    if (GROW(b, b->a.guards, b->guard_capacity, b->a.n_guards))
        b->a.guards[b->a.n_guards++] = (pda_guard){0};
}

void builder_free(builder *b)
{
    automaton_free(&b->a);
    free(b->next_edge);
    free(b->first_edge);
    *b = (builder){0};
}

uint32_t builder_state(builder *b)
{
    automaton *a = &b->a;
    if (!GROW(b, a->states, b->state_capacity, a->n_states) ||
        !GROW(b, b->first_edge, b->first_capacity, a->n_states))
        return 0;
    b->first_edge[a->n_states] = NO_EDGE;
    a->states[a->n_states] = (pda_state){0};
    return (uint32_t)a->n_states++;
}

pda_edge *builder_edge(builder *b, uint32_t from, edge_kind kind, uint32_t target)
{
    automaton *a = &b->a;
    if (!GROW(b, a->edges, b->edge_capacity, a->n_edges) ||
        !GROW(b, b->next_edge, b->next_capacity, a->n_edges))
        return NULL;
    pda_edge *e = &a->edges[a->n_edges];
    *e = (pda_edge){.target = target, .kind = (uint8_t)kind};
    b->next_edge[a->n_edges] = b->first_edge[from];
    b->first_edge[from] = (uint32_t)a->n_edges++;
    return e;
}

pda_edge *builder_bytes(builder *b, uint32_t from, uint8_t lo, uint8_t hi, uint32_t target)
{
    pda_edge *e = builder_edge(b, from, EDGE_BYTES, target);
    if (e) e->lo = lo, e->hi = hi;
    return e;
}

void builder_jump(builder *b, uint32_t from, uint32_t target)
{
    builder_edge(b, from, EDGE_JUMP, target);
}

void builder_call(builder *b, uint32_t from, uint32_t part, uint32_t back, uint8_t need)
{
    pda_edge *e = builder_edge(b, from, EDGE_CALL, part);
    if (e) e->arg = back, e->need = need;
}

void builder_text(builder *b, uint32_t from, const char *text, size_t n, uint32_t target)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t next = i + 1 == n ? target : builder_state(b);
        builder_bytes(b, from, (uint8_t)text[i], (uint8_t)text[i], next);
        from = next;
    }
}

static int compare_intervals(const void *x, const void *y)
{
    const interval *a = x, *b = y;
    return a->lo < b->lo ? -1 : a->lo > b->lo;
}

uint32_t builder_guard(builder *b, interval *intervals, size_t n)
{
    automaton *a = &b->a;
    pda_guard g = {(uint32_t)a->n_intervals, 0};
    qsort(intervals, n, sizeof *intervals, compare_intervals);
    for (size_t i = 0; i < n; i++) {
        interval *last = g.n > 0 ? &a->intervals[a->n_intervals - 1] : NULL;
        if (last && (last->hi == UINT32_MAX || intervals[i].lo <= last->hi + 1)) {
            if (intervals[i].hi > last->hi) last->hi = intervals[i].hi;
            continue;
        }
        if (!GROW(b, a->intervals, b->interval_capacity, a->n_intervals)) return NO_GUARD;
        a->intervals[a->n_intervals++] = intervals[i];
        g.n++;
    }
    if (!GROW(b, a->guards, b->guard_capacity, a->n_guards)) return NO_GUARD;
    a->guards[a->n_guards] = g;
    return (uint32_t)a->n_guards++;
}

uint32_t builder_guard_one(builder *b, uint32_t lo, uint32_t hi)
{
    interval one = {lo, hi};
    if (lo == 0 && hi == UINT32_MAX) return NO_GUARD;
    return builder_guard(b, &one, 1);
}

/* Lists become neighbours, those that read bytes first. */
static void lay_out(const builder *b, pda_edge *edges)
{
    const automaton *a = &b->a;
    uint32_t n = 0;
    for (size_t s = 0; s < a->n_states; s++) {
        pda_state *st = &a->states[s];
        st->first = n;
        for (int bytes = 1; bytes >= 0; bytes--) {
            for (uint32_t e = b->first_edge[s]; e != NO_EDGE; e = b->next_edge[e])
                if ((a->edges[e].kind == EDGE_BYTES) == bytes) edges[n++] = a->edges[e];
            if (bytes) st->n_bytes = n - st->first;
        }
        st->n_others = n - st->first - st->n_bytes;
    }
}

calla_status builder_finish(builder *b, automaton *out, calla_error *err)
{
    if (b->failed == CALLA_ERR_UNSUPPORTED)
        return error_set(err, CALLA_ERR_UNSUPPORTED,
                         "the grammar needs more than %d states, edges or guards", MAX_EDGES);
    pda_edge *edges = b->failed == CALLA_OK ? malloc((b->a.n_edges + 1) * sizeof *edges) : NULL;
    if (!edges) return error_set(err, CALLA_ERR_MEMORY, "no memory for a grammar");
    lay_out(b, edges);
    free(b->a.edges);
    b->a.edges = edges;
    if (automaton_find_stays(&b->a) != CALLA_OK)
        return error_set(err, CALLA_ERR_MEMORY, "no memory for a grammar");
    *out = b->a;
    b->a = (automaton){0};
    return CALLA_OK;
}
