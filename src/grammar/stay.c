/* Where an automaton stays: see pda_stay. Of the characters that a state takes, the largest group
 * that leads to one and the same state is looked at; the run follows from state to state. */
#include "grammar/automaton.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_GROUPS = 16,
    MIN_CHARACTERS = 4, /* what a group is worth keeping from */
    N_LEADS = LAST_LEAD - FIRST_LEAD + 1,
    NOWHERE = ACCEPT, /* nothing stays there */
};

/* Characters of a state that go the same way. */
typedef struct group {
    pda_stay stay;
    uint32_t target;
    int n;
} group;

typedef struct finder {
    const automaton *a;
    uint32_t *ends;    /* [n_states][3]: where the last 1, 2, 3 bytes of a character lead; + 1 */
    uint32_t *targets; /* [n_stays] */
    pda_stay *stays;   /* [n_stays] */
    size_t n_stays;
} finder;

void automaton_add_reads(const automaton *a, uint32_t state, lead_set *out)
{
    const pda_state *s = &a->states[state];
    for (uint32_t i = 0; i < s->n_bytes; i++) {
        const pda_edge *e = &a->edges[s->first + i];
        for (int byte = e->lo; byte <= e->hi && byte <= LAST_LEAD; byte++)
            if (byte < 0x80 || byte >= FIRST_LEAD) lead_set_add(out, (uint8_t)byte);
    }
}

static uint32_t most_characters(const pda_state *s)
{
    return s->is_counted ? s->max : UINT32_MAX;
}

/* Whether the edge may be taken as often as its state has room for characters. */
static bool only_counts(const automaton *a, const pda_state *s, const pda_edge *e)
{
    const pda_guard *g = &a->guards[e->guard];
    if (most_characters(s) == UINT32_MAX) return e->guard == NO_GUARD;
    if (e->act == ACT_SET || e->guard == NO_GUARD || g->n != 1) return false;
    return a->intervals[g->first].lo == 0 && a->intervals[g->first].hi == s->max - 1;
}

static bool is_plain(const pda_edge *e)
{
    return e->guard == NO_GUARD && e->need == 0 && e->act == ACT_NONE;
}

/* Where lo ... hi and then any `missing` - 1 bytes lead from a state, if that is one place. */
static uint32_t end_of_bytes(finder *f, uint32_t state, uint8_t lo, uint8_t hi, int missing)
{
    const pda_state *s = &f->a->states[state];
    uint32_t end = NOWHERE;
    int n = 0;
    for (uint32_t i = 0; i < s->n_bytes; i++) {
        const pda_edge *e = &f->a->edges[s->first + i];
        int from = e->lo > lo ? e->lo : lo, to = e->hi < hi ? e->hi : hi;
        if (from > to) continue;
        uint32_t one =
            missing > 1 ? f->ends[3 * (size_t)e->target + (size_t)missing - 2] : e->target;
        if (!is_plain(e) || one == NOWHERE || (end != NOWHERE && one != end)) return NOWHERE;
        end = one;
        n += to - from + 1;
    }
    return n == hi - lo + 1 && s->n_others == 0 ? end : NOWHERE;
}

static uint32_t end_of_lead(finder *f, uint8_t lead, uint32_t target)
{
    if (lead < 0xe0) return f->ends[3 * (size_t)target];
    if (lead == 0xe0) return end_of_bytes(f, target, 0xa0, 0xbf, 2);
    if (lead == 0xed) return end_of_bytes(f, target, 0x80, 0x9f, 2);
    if (lead < 0xf0) return f->ends[3 * (size_t)target + 1];
    if (lead == 0xf0) return end_of_bytes(f, target, 0x90, 0xbf, 3);
    if (lead == 0xf4) return end_of_bytes(f, target, 0x80, 0x8f, 3);
    return f->ends[3 * (size_t)target + 2];
}

static void find_ends(finder *f)
{
    for (int missing = 1; missing <= 3; missing++)
        for (uint32_t i = 0; i < f->a->n_states; i++)
            f->ends[3 * (size_t)i + (size_t)missing - 1] = end_of_bytes(f, i, 0x80, 0xbf, missing);
}

/* A state that only calls or jumps is where that leads. */
static uint32_t pass_through(const automaton *a, uint32_t state, group *g)
{
    const pda_state *s = &a->states[state];
    const pda_edge *e = &a->edges[s->first];
    if (s->n_bytes > 0 || s->n_others != 1 || e->guard != NO_GUARD || e->target == ACCEPT)
        return state;
    if (g->stay.need + e->need > MAX_FRAMES) return NOWHERE;
    g->stay.need = (uint8_t)(g->stay.need + e->need);
    g->stay.alone = true;
    return most_characters(&a->states[e->target]) == UINT32_MAX ? e->target : NOWHERE;
}

static void add_to_group(group *groups, const group *one, uint8_t byte)
{
    for (int i = 0; i < MAX_GROUPS; i++) {
        group *g = &groups[i];
        if (g->n == 0) *g = *one;
        if (g->target != one->target || g->stay.guard != one->stay.guard ||
            g->stay.need != one->stay.need || g->stay.alone != one->stay.alone)
            continue;
        lead_set_add(&g->stay.chars, byte);
        g->n++;
        return;
    }
}

static void add_edge(finder *f, const pda_state *s, const pda_edge *e, group *groups)
{
    bool counts = only_counts(f->a, s, e);
    if (!counts && most_characters(s) != UINT32_MAX) return;
    for (int byte = e->lo; byte <= e->hi && byte <= LAST_LEAD; byte++) {
        group one = {.stay = {.guard = counts ? NO_GUARD : e->guard, .need = e->need}};
        uint32_t target = pass_through(f->a, e->target, &one);
        if (byte >= 0x80 && byte < FIRST_LEAD) byte = FIRST_LEAD;
        if (byte > e->hi) return;
        one.target = byte < 0x80 ? target : end_of_lead(f, (uint8_t)byte, target);
        if (one.target != NOWHERE) add_to_group(groups, &one, (uint8_t)byte);
    }
}

static bool is_one_way(const automaton *a, const pda_state *s)
{
    uint64_t seen[4] = {0};
    for (uint32_t i = 0; i < s->n_bytes; i++)
        for (int byte = a->edges[s->first + i].lo; byte <= a->edges[s->first + i].hi; byte++) {
            if (seen[byte / 64] >> (byte % 64) & 1) return false;
            seen[byte / 64] |= 1ull << (byte % 64);
        }
    return true;
}

static void find_group(finder *f, pda_state *s)
{
    group groups[MAX_GROUPS] = {0};
    int best = 0;
    s->one_way = is_one_way(f->a, s);
    if (s->n_bytes == 0 || !s->one_way) return;
    for (uint32_t i = 0; i < s->n_bytes; i++) add_edge(f, s, &f->a->edges[s->first + i], groups);
    for (int i = 1; i < MAX_GROUPS; i++)
        if (groups[i].n > groups[best].n) best = i;
    if (groups[best].n < MIN_CHARACTERS) return;
    s->stay = (uint32_t)f->n_stays;
    f->stays[f->n_stays] = groups[best].stay;
    f->targets[f->n_stays++] = groups[best].target;
}

/* Whether what stays in s goes on staying where it leads. */
static bool goes_on(const finder *f, const pda_state *s, const pda_state *next)
{
    const pda_stay *x = &f->stays[s->stay], *y = &f->stays[next->stay];
    uint32_t most = most_characters(next);
    return next->stay > 0 && y->guard == NO_GUARD && y->need == 0 && !y->alone &&
           (most == UINT32_MAX || most == most_characters(s)) &&
           lead_set_has_all(&y->chars, &x->chars);
}

static const lead_set everything = {{UINT64_MAX, UINT64_MAX, UINT64_MAX}};

static void add_set(lead_set *to, const lead_set *from, const lead_set *without)
{
    for (int i = 0; i < 3; i++) to->bits[i] |= from->bits[i] & ~without->bits[i];
}

/* A state that may end its part, and does nothing else but read. */
static bool may_end(const automaton *a, const pda_state *s)
{
    const pda_edge *e = &a->edges[s->first + s->n_bytes];
    return s->n_others == 1 && e->kind == EDGE_JUMP && e->target == ACCEPT;
}

/* What may come from a state, but for `chars`. */
static void add_exits(const finder *f, uint32_t state, const lead_set *chars, pda_stay *stay)
{
    const pda_state *s = &f->a->states[state];
    lead_set reads = {0};
    automaton_add_reads(f->a, state, &reads);
    add_set(&stay->exits, &reads, chars);
    if (may_end(f->a, s))
        stay->ends = true;
    else if (s->n_others > 0)
        stay->exits = everything;
}

/* What leaves the chain at a state, or behind it. */
static void find_exits(finder *f, uint32_t state)
{
    static const lead_set nothing;
    const pda_state *s = &f->a->states[state];
    pda_stay *stay = &f->stays[s->stay];
    uint32_t target = f->targets[s->stay];
    const pda_state *next = &f->a->states[target];
    add_exits(f, state, &stay->chars, stay);
    bool ends = stay->ends;
    if (goes_on(f, s, next)) {
        const pda_stay *other = &f->stays[next->stay];
        add_set(&stay->exits, &other->exits, &nothing);
        add_set(&stay->exits, &other->chars, &stay->chars);
        stay->ends = stay->ends || other->ends;
        stay->keeps = memcmp(&stay->chars, &other->chars, sizeof stay->chars) == 0;
    } else {
        add_exits(f, target, &nothing, stay);
    }
    if (stay->alone && stay->ends && !ends) stay->exits = everything; /* another part ends */
}

/* Every state has one that its characters lead to, so runs follow a chain, which ends or comes back
 * to itself: then there is no end. */
static void find_runs(finder *f, const automaton *a)
{
    uint32_t *chain = f->ends; /* no longer needed */
    for (uint32_t i = 0; i < a->n_states; i++) {
        size_t n = 0;
        const pda_state *s = &a->states[i];
        while (s->stay > 0 && f->stays[s->stay].run == 0) {
            const pda_state *next = &a->states[f->targets[s->stay]];
            f->stays[s->stay].run = STAY_FOR_EVER; /* unless the chain ends */
            chain[n++] = (uint32_t)(s - a->states);
            if (!goes_on(f, s, next)) {
                f->stays[s->stay].run = 1;
                break;
            }
            s = next;
        }
        /* The last one ends the chain, or leads to what is known: itself, too. */
        uint32_t run = f->stays[s->stay].run;
        if (n > 0 && &a->states[chain[n - 1]] == s && run == 1) run = 0;
        for (size_t k = n; k-- > 0;) {
            run = run >= STAY_FOR_EVER - 1 ? STAY_FOR_EVER : run + 1;
            f->stays[a->states[chain[k]].stay].run = run;
        }
        for (size_t k = 2 * n; k-- > 0;) /* twice: it may be a ring */
            find_exits(f, chain[k % n]);
    }
}

calla_status automaton_find_stays(automaton *a)
{
    finder f = {.a = a};
    f.ends = calloc(3 * a->n_states, sizeof *f.ends);
    f.targets = calloc(a->n_states + 1, sizeof *f.targets);
    f.stays = calloc(a->n_states + 1, sizeof *f.stays);
    bool ok = f.ends && f.targets && f.stays;
    f.n_stays = 1;
    if (ok) {
        find_ends(&f);
        for (uint32_t i = 0; i < a->n_states; i++) find_group(&f, &a->states[i]);
        find_runs(&f, a);
    }
    free(f.ends);
    free(f.targets);
    pda_stay *fitting = ok ? realloc(f.stays, f.n_stays * sizeof *f.stays) : NULL;
    a->stays = fitting ? fitting : f.stays;
    return ok ? CALLA_OK : CALLA_ERR_MEMORY;
}
