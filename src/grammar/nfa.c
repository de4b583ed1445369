#include "grammar/nfa.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

void nfa_free(nfa *n)
{
    free(n->states);
    *n = (nfa){0};
}

bool nfa_failed(const nfa *n)
{
    return n->no_memory || n->too_large;
}

static uint32_t add(nfa *n, nfa_state s)
{
    void *states = n->states;
    if (n->n >= NFA_MAX_STATES) n->too_large = true;
    if (nfa_failed(n)) return 0;
    if (mem_grow(&states, &n->capacity, n->n + 1, sizeof *n->states, "a pattern", NULL) !=
        CALLA_OK) {
        n->no_memory = true;
        return 0;
    }
    n->states = states;
    n->states[n->n] = s;
    return (uint32_t)n->n++;
}

uint32_t nfa_add_bytes(nfa *n, uint8_t lo, uint8_t hi, uint32_t next, bool begins)
{
    return add(n, (nfa_state){.a = next, .kind = NFA_BYTES, .lo = lo, .hi = hi, .begins = begins});
}

uint32_t nfa_add_split(nfa *n, uint32_t a, uint32_t b)
{
    return add(n, (nfa_state){.a = a, .b = b, .kind = NFA_SPLIT});
}

void nfa_set_split(nfa *n, uint32_t split, uint32_t a)
{
    if (!nfa_failed(n)) n->states[split].a = a;
}

uint32_t nfa_add_match(nfa *n)
{
    return add(n, (nfa_state){.kind = NFA_MATCH});
}

uint32_t nfa_add_dead(nfa *n)
{
    return add(n, (nfa_state){.kind = NFA_DEAD});
}

/* ---- to sets of states ---- */

/* Sets are lists of states that read or match, ascending, in one pool. */
typedef struct subsets {
    const nfa *n;
    dfa *out;
    uint32_t *pool; /* [n_pool] */
    size_t n_pool, pool_capacity;
    size_t *begin; /* [out->n_states + 1] set of each state in pool */
    size_t begin_capacity;
    uint32_t *table;       /* [TABLE] state + 1 by hash, open addressing */
    uint32_t *mark, *todo; /* [n->n] */
    uint32_t *set;         /* [n->n] the set under way */
    size_t n_set;
    uint32_t epoch;
    int64_t work;
    bool no_memory;
} subsets;

enum { TABLE = 4 * NFA_MAX_SUBSETS }; /* open addressing wants room */

static void begin_set(subsets *s)
{
    s->n_set = 0;
    s->epoch++;
}

/* Adds a state and what follows it without reading. */
static void add_to_set(subsets *s, uint32_t state)
{
    size_t n_todo = 0;
    s->todo[n_todo++] = state;
    while (n_todo > 0) {
        uint32_t at = s->todo[--n_todo];
        if (at == NFA_NONE || s->mark[at] == s->epoch) continue;
        s->mark[at] = s->epoch;
        s->work++;
        const nfa_state *x = &s->n->states[at];
        if (x->kind == NFA_SPLIT) {
            s->todo[n_todo++] = x->a;
            s->todo[n_todo++] = x->b;
        } else if (x->kind != NFA_DEAD) {
            s->set[s->n_set++] = at;
        }
    }
}

static int compare_states(const void *x, const void *y)
{
    uint32_t a = *(const uint32_t *)x, b = *(const uint32_t *)y;
    return a < b ? -1 : a > b;
}

static uint32_t hash_set(const uint32_t *set, size_t n)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++) h = (h ^ set[i]) * 16777619u;
    return h;
}

/* Appends the set to the pool as the set of a new state. */
static uint32_t keep_set(subsets *s)
{
    void *pool = s->pool, *begin = s->begin;
    uint32_t id = dfa_add_state(s->out, false);
    if (dfa_failed(s->out)) return DFA_NONE;
    if (mem_grow(&pool, &s->pool_capacity, s->n_pool + s->n_set, sizeof *s->pool, "a pattern",
                 NULL) != CALLA_OK)
        s->no_memory = true;
    s->pool = pool;
    if (mem_grow(&begin, &s->begin_capacity, (size_t)id + 2, sizeof *s->begin, "a pattern", NULL) !=
        CALLA_OK)
        s->no_memory = true;
    s->begin = begin;
    if (s->no_memory) return DFA_NONE;
    s->begin[id] = s->n_pool;
    memcpy(s->pool + s->n_pool, s->set, s->n_set * sizeof *s->set);
    s->n_pool += s->n_set;
    s->begin[id + 1] = s->n_pool;
    dfa_state *state = &s->out->states[id];
    state->between = false;
    for (size_t i = 0; i < s->n_set; i++) {
        const nfa_state *x = &s->n->states[s->set[i]];
        if (x->kind == NFA_MATCH) state->accept = true;
        if (x->kind == NFA_MATCH || x->begins) state->between = true;
    }
    return id;
}

/* The state of the set under way. DFA_NONE: the set is empty, or a failure. */
static uint32_t find_set(subsets *s)
{
    if (s->n_set == 0) return DFA_NONE;
    qsort(s->set, s->n_set, sizeof *s->set, compare_states);
    for (uint32_t at = hash_set(s->set, s->n_set);; at++) {
        uint32_t *slot = &s->table[at % TABLE];
        if (*slot == 0) {
            uint32_t id = keep_set(s);
            if (id != DFA_NONE) *slot = id + 1;
            return id;
        }
        size_t first = s->begin[*slot - 1];
        if (s->begin[*slot] - first == s->n_set &&
            memcmp(s->pool + first, s->set, s->n_set * sizeof *s->set) == 0)
            return *slot - 1;
    }
}

/* The edges of state `id`: between two neighbouring bounds of its members' ranges nothing changes.
 */
static void follow(subsets *s, uint32_t id)
{
    bool cut[257] = {false};
    size_t first = s->begin[id], end = s->begin[id + 1];
    for (size_t i = first; i < end; i++) {
        const nfa_state *x = &s->n->states[s->pool[i]];
        if (x->kind == NFA_BYTES) cut[x->lo] = cut[x->hi + 1] = true;
    }
    for (int lo = 0; lo < 256;) {
        int hi = lo;
        while (hi < 255 && !cut[hi + 1]) hi++;
        begin_set(s);
        for (size_t i = first; i < end; i++, s->work++) {
            const nfa_state *x = &s->n->states[s->pool[i]];
            if (x->kind == NFA_BYTES && x->lo <= lo && hi <= x->hi) add_to_set(s, x->a);
        }
        uint32_t to = find_set(s);
        if (to != DFA_NONE) dfa_add_edge(s->out, id, (uint8_t)lo, (uint8_t)hi, to);
        lo = hi + 1;
    }
}

static bool subsets_alloc(subsets *s)
{
    s->table = calloc(TABLE, sizeof *s->table);
    s->mark = calloc(s->n->n, sizeof *s->mark);
    s->todo = calloc(2 * s->n->n + 2, sizeof *s->todo);
    s->set = calloc(s->n->n, sizeof *s->set);
    return s->table && s->mark && s->todo && s->set;
}

static void subsets_free(subsets *s)
{
    free(s->pool);
    free(s->begin);
    free(s->table);
    free(s->mark);
    free(s->todo);
    free(s->set);
}

calla_status nfa_determinize(const nfa *n, uint32_t start, int64_t *work_left, dfa *out,
                             calla_error *err)
{
    subsets s = {.n = n, .out = out};
    if (out->max_states == 0 || out->max_states > NFA_MAX_SUBSETS)
        out->max_states = NFA_MAX_SUBSETS;
    bool large = n->too_large;
    bool ok = !nfa_failed(n) && subsets_alloc(&s);
    if (ok) {
        begin_set(&s);
        add_to_set(&s, start);
        find_set(&s);
    }
    for (uint32_t id = 0; ok && !large && id < out->n_states; id++) {
        follow(&s, id);
        large = out->too_large || s.work > *work_left;
        ok = !s.no_memory && !out->no_memory;
    }
    subsets_free(&s);
    *work_left -= s.work;
    if (large)
        return error_set(err, CALLA_ERR_UNSUPPORTED,
                         "the pattern is too large: more than %zu states", out->max_states);
    if (ok && !dfa_trim(out)) {
        ok = !out->no_memory;
        dfa_free(out);
    }
    return ok ? CALLA_OK : error_set(err, CALLA_ERR_MEMORY, "no memory for a pattern");
}
