/* Objects. Properties come in the order in which the schema lists them, those not listed behind
 * them. The frame's number is the least property that may still come: i + 1 after property i.
 * Property i may come if the number is at most i and above the last required property before i. */
#include "grammar/emit.h"

#include <stdlib.h>
#include <string.h>

/* ---- the choice among keys ---- */

/* A use of a node of the tree of keys: some key that goes through it. */
typedef struct use {
    uint32_t node;
    interval when;
    uint8_t need;
} use;

typedef struct key_tree {
    emitter *e;
    dfa tree;
    use *uses; /* [n_uses] by node */
    size_t n_uses;
    uint32_t *states; /* [tree.n_states] of the automaton; 0 = none */
    uint8_t *places;  /* [tree.n_states] text_place, or NOT_TEXT */
    use *found;       /* [keys + 1] of one node */
    interval *when;   /* [keys + 1] scratch */
    const other_keys *others;
    const text_step *steps; /* [n_steps] */
    size_t n_steps;
    uint32_t outside[N_TEXT_PLACES]; /* states that go on in a key that is none of the listed */
} key_tree;

enum { NOT_TEXT = 0xff };

static int compare_uses(const void *x, const void *y)
{
    const use *a = x, *b = y;
    return a->node < b->node ? -1 : a->node > b->node;
}

static int compare_needs(const void *x, const void *y)
{
    const use *a = x, *b = y;
    return a->need < b->need ? -1 : a->need > b->need;
}

static bool collect_uses(key_tree *t, const key *keys, size_t n)
{
    size_t total = 0;
    for (size_t i = 0; i < n; i++) total += keys[i].n;
    t->uses = calloc(total + 1, sizeof *t->uses);
    t->found = calloc(n + 1, sizeof *t->found);
    t->when = calloc(n + 1, sizeof *t->when);
    if (!t->uses || !t->found || !t->when) return false;
    for (size_t i = 0; i < n; i++) {
        uint32_t at = 0;
        for (size_t k = 0; k < keys[i].n; k++) {
            at = dfa_next(&t->tree, at, (uint8_t)keys[i].literal[k]);
            if (!keys[i].blocked) t->uses[t->n_uses++] = (use){at, keys[i].when, keys[i].need};
        }
    }
    qsort(t->uses, t->n_uses, sizeof *t->uses, compare_uses);
    return true;
}

/* The uses of a node, into t->found, with that by a key that leaves the tree below it: how many. */
static size_t find_uses(key_tree *t, uint32_t node, bool may_leave)
{
    use wanted = {.node = node};
    const use *at = bsearch(&wanted, t->uses, t->n_uses, sizeof wanted, compare_uses);
    const use *end = t->uses + t->n_uses;
    size_t n = 0;
    while (at && at > t->uses && at[-1].node == node) at--;
    for (; at && at < end && at->node == node; at++) t->found[n++] = *at;
    if (may_leave && t->others->allowed)
        t->found[n++] = (use){node, t->others->when, t->others->need};
    return n;
}

static void guard_edge(pda_edge *e, uint32_t guard, uint8_t need)
{
    if (!e) return;
    e->guard = guard;
    e->need = need;
}

/* Edges for uses [n], one for each need among them, with the numbers of those that have it: a key
 * that fits may be one that can no longer come. The array is sorted; when [n] is scratch. */
static void emit_uses(builder *b, uint32_t from, uint8_t byte, uint32_t target, use *uses, size_t n,
                      interval *when)
{
    qsort(uses, n, sizeof *uses, compare_needs);
    for (size_t i = 0; i < n && b->failed == CALLA_OK;) {
        size_t count = 0;
        uint8_t need = uses[i].need;
        for (; i < n && uses[i].need == need; i++) when[count++] = uses[i].when;
        uint32_t guard = builder_guard(b, when, count);
        guard_edge(builder_bytes(b, from, byte, byte, target), guard, need);
    }
}

/* A state that is inside a key like any other. */
static uint32_t outside_state(key_tree *t, uint8_t place)
{
    emitter *e = t->e;
    uint32_t *state = &t->outside[place];
    if (*state) return *state;
    emit_free_text(e, 0, NO_LIMIT);
    *state = builder_state(&e->b);
    builder_call(&e->b, *state, e->free_text[place], t->others->colon, 1);
    return *state;
}

/* An edge that leaves the tree from `node` over the bytes lo ... hi that no child has. */
static void leave(key_tree *t, uint32_t node, uint8_t lo, uint8_t hi, uint8_t place)
{
    builder *b = &t->e->b;
    uint32_t guard = builder_guard_one(b, t->others->when.lo, t->others->when.hi);
    for (int from = lo; from <= hi;) {
        int to = from;
        if (dfa_next(&t->tree, node, (uint8_t)from) != DFA_NONE) {
            from++;
            continue;
        }
        while (to < hi && dfa_next(&t->tree, node, (uint8_t)(to + 1)) == DFA_NONE) to++;
        pda_edge *out =
            builder_bytes(b, t->states[node], (uint8_t)from, (uint8_t)to, outside_state(t, place));
        if (out) {
            guard_edge(out, guard, t->others->need);
            out->act = ACT_SET;
            out->arg = t->others->after;
        }
        from = to + 1;
    }
}

/* Escapes that are not in the tree: of those that spell one character in one way only. */
static uint32_t escape_state(key_tree *t, uint32_t node)
{
    builder *b = &t->e->b;
    uint32_t state = builder_state(b);
    uint32_t guard = builder_guard_one(b, t->others->when.lo, t->others->when.hi);
    pda_edge *slash = builder_bytes(b, t->states[node], '\\', '\\', state);
    guard_edge(slash, guard, t->others->need);
    return state;
}

static void leave_node(key_tree *t, uint32_t node)
{
    builder *b = &t->e->b;
    uint8_t place = t->places[node];
    if (!t->others->allowed || place == NOT_TEXT) return;
    for (size_t i = 0; i < t->n_steps; i++) {
        const text_step *s = &t->steps[i];
        if (s->from == place && s->to != IN_ESCAPE) leave(t, node, s->lo, s->hi, s->to);
    }
    if (!text_is_between(place)) return;
    uint32_t guard = builder_guard_one(b, t->others->when.lo, t->others->when.hi);
    if (dfa_next(&t->tree, node, '\\') == DFA_NONE) {
        uint32_t escape = escape_state(t, node);
        for (size_t i = 0; i < t->n_steps; i++) {
            if (t->steps[i].from != IN_ESCAPE) continue;
            pda_edge *out =
                builder_bytes(b, escape, t->steps[i].lo, t->steps[i].hi, outside_state(t, IN_TEXT));
            if (out) out->act = ACT_SET, out->arg = t->others->after;
        }
    }
    if (dfa_next(&t->tree, node, '"') != DFA_NONE) return;
    pda_edge *quote = builder_bytes(b, t->states[node], '"', '"', t->others->colon);
    if (!quote) return;
    guard_edge(quote, guard, t->others->need);
    quote->act = ACT_SET;
    quote->arg = t->others->after;
}

static uint8_t next_place(const key_tree *t, uint8_t place, uint8_t byte)
{
    for (size_t i = 0; i < t->n_steps; i++) {
        const text_step *s = &t->steps[i];
        if (s->from == place && s->lo <= byte && byte <= s->hi) return s->to;
    }
    return NOT_TEXT;
}

/* Edges to the children that are nodes inside keys; ends of keys are added by end_keys. */
static void emit_node(key_tree *t, uint32_t node)
{
    const dfa *d = &t->tree;
    for (uint32_t i = d->states[node].first; i != DFA_NONE; i = d->edges[i].next) {
        uint32_t child = d->edges[i].to;
        uint8_t byte = d->edges[i].lo;
        t->places[child] = node == 0 ? IN_TEXT : next_place(t, t->places[node], byte);
        bool in_key = t->places[child] != NOT_TEXT;
        size_t n = find_uses(t, child, in_key);
        if (n == 0 || d->states[child].accept) continue;
        t->states[child] = builder_state(&t->e->b);
        emit_uses(&t->e->b, t->states[node], byte, t->states[child], t->found, n, t->when);
    }
    if (node != 0) leave_node(t, node);
}

static void end_keys(key_tree *t, const key *keys, size_t n)
{
    builder *b = &t->e->b;
    for (size_t i = 0; i < n; i++) {
        uint32_t at = 0;
        uint8_t last = (uint8_t)keys[i].literal[keys[i].n - 1];
        if (keys[i].blocked) continue;
        for (size_t k = 0; k + 1 < keys[i].n; k++)
            at = dfa_next(&t->tree, at, (uint8_t)keys[i].literal[k]);
        uint32_t guard = builder_guard_one(b, keys[i].when.lo, keys[i].when.hi);
        pda_edge *end = builder_bytes(b, t->states[at], last, last, keys[i].target);
        if (!end) return;
        guard_edge(end, guard, keys[i].need);
        end->act = ACT_SET;
        end->arg = keys[i].after;
    }
}

void emit_keys(emitter *e, uint32_t from, const key *keys, size_t n, const other_keys *others)
{
    key_tree t = {.e = e, .others = others};
    t.steps = emit_text_steps(e, &t.n_steps);
    static const char quote[] = "\"";
    for (size_t i = 0; i < n; i++) dfa_add_text(&t.tree, keys[i].literal, keys[i].n);
    /* Without any listed key, the quote of the others is the tree. */
    if (others->allowed) dfa_add_text(&t.tree, quote, 1);
    if (others->allowed && !dfa_failed(&t.tree))
        t.tree.states[dfa_next(&t.tree, 0, '"')].accept = false;
    if (t.tree.n_states == 0) return;
    t.states = calloc(t.tree.n_states, sizeof *t.states);
    t.places = malloc(t.tree.n_states);
    if (dfa_failed(&t.tree) || !t.states || !t.places || !collect_uses(&t, keys, n)) {
        e->b.failed = t.tree.too_large ? CALLA_ERR_UNSUPPORTED : CALLA_ERR_MEMORY;
        goto done;
    }
    memset(t.places, NOT_TEXT, t.tree.n_states);
    t.states[0] = from;
    for (uint32_t node = 0; node < t.tree.n_states && e->b.failed == CALLA_OK; node++)
        if (t.states[node] != 0) emit_node(&t, node);
    if (e->b.failed == CALLA_OK) end_keys(&t, keys, n);
done:
    dfa_free(&t.tree);
    free(t.uses);
    free(t.found);
    free(t.when);
    free(t.states);
    free(t.places);
}

/* ---- objects ---- */

/* One space or none, then the value, then `back`. */
static uint32_t emit_value(emitter *e, uint32_t schema, uint32_t back)
{
    builder *b = &e->b;
    uint32_t before = builder_state(b), space = builder_state(b);
    uint32_t part = emit_part(e, schema);
    builder_bytes(b, before, ' ', ' ', space);
    builder_call(b, before, part, back, emit_need(e, schema));
    builder_call(b, space, part, back, emit_need(e, schema));
    return before;
}

/* Fills keys [s->n_properties] with literals; they are the caller's to free. Gives the number that
 * stands for all required properties having come. */
static uint32_t list_keys(emitter *e, const schema_node *s, key *keys, uint32_t back)
{
    uint32_t needed = 0;
    for (uint32_t i = 0; i < s->n_properties; i++) {
        const schema_property *p = &s->properties[i];
        strbuf text = {0};
        key *k = &keys[i];
        emit_spell(e, p->name, &text);
        strbuf_putc(&text, ':');
        k->literal = text.data;
        k->n = text.n;
        if (text.failed) e->b.failed = CALLA_ERR_MEMORY;
        k->when = (interval){needed, i};
        k->after = i + 1;
        k->blocked = !emit_is_alive(e, p->schema);
        if (!k->blocked) {
            k->need = emit_need(e, p->schema);
            k->target = emit_value(e, p->schema, back);
        }
        if (p->required) needed = i + 1;
        if (e->b.failed != CALLA_OK) return needed;
    }
    return needed;
}

static other_keys list_others(emitter *e, const schema_node *s, uint32_t needed, uint32_t back)
{
    other_keys others = {.allowed = emit_is_alive(e, s->additional),
                         .when = {needed, UINT32_MAX},
                         .after = (uint32_t)s->n_properties};
    if (!others.allowed) return others;
    others.need = emit_need(e, s->additional);
    others.colon = builder_state(&e->b);
    builder_bytes(&e->b, others.colon, ':', ':', emit_value(e, s->additional, back));
    return others;
}

/* The comma behind a property, where another may follow. */
static void emit_more(emitter *e, uint32_t from, uint32_t to, const key *keys, size_t n,
                      const other_keys *others)
{
    use *uses = calloc(n + 1, sizeof *uses);
    interval *when = calloc(n + 1, sizeof *when);
    size_t count = 0;
    if (!uses || !when) e->b.failed = CALLA_ERR_MEMORY;
    for (size_t i = 0; e->b.failed == CALLA_OK && i < n; i++)
        if (!keys[i].blocked) uses[count++] = (use){0, keys[i].when, keys[i].need};
    if (e->b.failed == CALLA_OK && others->allowed)
        uses[count++] = (use){0, others->when, others->need};
    if (e->b.failed == CALLA_OK) emit_uses(&e->b, from, ',', to, uses, count, when);
    free(uses);
    free(when);
}

void emit_object(emitter *e, const schema_node *s, uint32_t from, uint8_t need)
{
    builder *b = &e->b;
    uint32_t first = builder_state(b), next = builder_state(b), after = builder_state(b);
    uint32_t space = builder_state(b);
    key *keys = calloc(s->n_properties + 1, sizeof *keys);
    if (!keys) {
        b->failed = CALLA_ERR_MEMORY;
        return;
    }
    pda_edge *open = builder_bytes(b, from, '{', '{', first);
    if (open) open->need = need;
    uint32_t needed = list_keys(e, s, keys, after);
    other_keys others = list_others(e, s, needed, after);
    if (b->failed == CALLA_OK) {
        uint32_t enough = builder_guard_one(b, needed, UINT32_MAX);
        pda_edge *close;
        if (needed == 0) builder_bytes(b, first, '}', '}', ACCEPT);
        if ((close = builder_bytes(b, after, '}', '}', ACCEPT))) close->guard = enough;
        emit_more(e, after, space, keys, s->n_properties, &others);
        builder_bytes(b, space, ' ', ' ', next);
        builder_jump(b, space, next);
        builder_jump(b, first, next);
        emit_keys(e, next, keys, s->n_properties, &others);
    }
    for (size_t i = 0; i < s->n_properties; i++) free(keys[i].literal);
    free(keys);
}
