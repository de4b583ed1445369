#include "grammar/matcher.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_VISITS = 256, /* places looked at for one byte, between reading and reading */
    MAX_LIVE = MATCHER_MAX_PLACES * MAX_FRAMES,
    MAX_STACK_NODES = MAX_LIVE + TRIE_MAX_BYTES * MAX_VISITS,
    COSTLY_STEPS = 512,
};
#define ENOUGH UINT32_MAX /* a number of characters that no token brings to its limits */

/* A stack is its last frame, which knows the one below; 0 = empty. */
typedef struct frame {
    uint32_t below, state, number, depth;
} frame;

typedef struct place {
    uint32_t state, number, stack;
} place;

typedef struct place_set {
    place *places; /* [n] */
    int32_t n;
    bool whole; /* the text may end here */
} place_set;

typedef struct cached_mask {
    uint64_t hash; /* 0 = none */
    uint32_t n;
    uint32_t key[2 + 2 * MAX_FRAMES]; /* [n] */
    uint32_t *mask;                   /* [n_mask_words] */
} cached_mask;

struct matcher {
    const grammar *g;
    const automaton *a; /* of g */
    const token_trie *t;
    uint32_t start;
    place_set now;
    frame *frames; /* [MAX_STACK_NODES]; those of `now` first */
    uint32_t n_frames;
    /* A walk: sets[d] after d bytes, with the number of frames then. */
    place_set sets[TRIE_MAX_BYTES + 1];
    uint32_t marks[TRIE_MAX_BYTES + 1];
    place *pool; /* [TRIE_MAX_BYTES + 3][MATCHER_MAX_PLACES] */
    /* The next `now`. */
    place_set next;
    frame *next_frames; /* [MAX_LIVE + 1] */
    uint32_t n_next_frames;
    uint32_t *moved; /* [MAX_STACK_NODES] where frames are among next_frames, 0 = not there; all 0
                        but while accepting */
    place visits[MAX_VISITS];
    int32_t n_visits;
    cached_mask cache[MATCHER_CACHED_MASKS];
    uint32_t *scratch; /* [n_mask_words] */
    uint32_t *masks;   /* of the cache and scratch */
};

/* ---- stepping ---- */

static uint32_t push(matcher *m, uint32_t first_new, frame f)
{
    for (uint32_t i = first_new; i < m->n_frames; i++)
        if (m->frames[i].below == f.below && m->frames[i].state == f.state &&
            m->frames[i].number == f.number)
            return i;
    m->frames[m->n_frames] = f;
    return m->n_frames++;
}

static void visit(matcher *m, uint32_t state, uint32_t number, uint32_t stack)
{
    for (int32_t i = 0; i < m->n_visits; i++) {
        const place *p = &m->visits[i];
        if (p->state == state && p->number == number && p->stack == stack) return;
    }
    if (m->n_visits < MAX_VISITS) m->visits[m->n_visits++] = (place){state, number, stack};
}

static bool fits(const matcher *m, const pda_edge *e, uint32_t number, uint32_t stack)
{
    if (e->need > 0 && m->frames[stack].depth + e->need > MAX_FRAMES) return false;
    return e->guard == NO_GUARD || automaton_guard_holds(m->a, e->guard, number);
}

/* Follows all that reads nothing from the places to visit; those that read become the set. */
static void settle(matcher *m, place_set *out)
{
    uint32_t first_new = m->n_frames;
    for (int32_t i = 0; i < m->n_visits; i++) {
        place p = m->visits[i];
        const frame f = m->frames[p.stack];
        if (p.state == ACCEPT) {
            if (p.stack == 0)
                out->whole = true;
            else
                visit(m, f.state, f.number, f.below);
            continue;
        }
        const pda_state *s = &m->a->states[p.state];
        if (s->n_bytes > 0 && out->n < MATCHER_MAX_PLACES) out->places[out->n++] = p;
        const pda_edge *e = m->a->edges + s->first + s->n_bytes, *end = e + s->n_others;
        for (; e < end; e++) {
            if (!fits(m, e, p.number, p.stack)) continue;
            if (e->kind == EDGE_JUMP) {
                visit(m, e->target, p.number, p.stack);
            } else if (m->n_visits < MAX_VISITS) {
                frame pushed = {p.stack, e->arg, p.number, f.depth + 1};
                visit(m, e->target, 0, push(m, first_new, pushed));
            }
        }
    }
}

static uint32_t number_behind(const pda_edge *e, uint32_t number)
{
    if (e->act == ACT_SET) return e->arg;
    return e->act == ACT_COUNT && number < e->arg ? number + 1 : number;
}

/* From one place where no byte has two edges, over e or none: what most steps are. False: it takes
 * more to say where that leads. */
static bool step_one_way(const matcher *m, const place *p, const pda_edge *e, place_set *to)
{
    if (!e || !fits(m, e, p->number, p->stack)) return true;
    const pda_state *next = &m->a->states[e->target];
    if (next->n_bytes == 0 || next->n_others > 0) return false;
    to->places[to->n++] = (place){e->target, number_behind(e, p->number), p->stack};
    return true;
}

/* From a set over one byte; false: nowhere. */
static bool step(matcher *m, const place_set *from, uint8_t byte, place_set *to)
{
    to->n = 0;
    to->whole = false;
    m->n_visits = 0;
    for (int32_t i = 0; i < from->n; i++) {
        const place *p = &from->places[i];
        const pda_state *s = &m->a->states[p->state];
        const pda_edge *e = m->a->edges + s->first, *end = e + s->n_bytes;
        if (from->n == 1 && s->one_way) {
            while (e < end && (byte < e->lo || byte > e->hi)) e++;
            if (step_one_way(m, p, e < end ? e : NULL, to)) return to->n > 0;
            end = e + 1;
        }
        for (; e < end; e++)
            if (byte >= e->lo && byte <= e->hi && fits(m, e, p->number, p->stack))
                visit(m, e->target, number_behind(e, p->number), p->stack);
    }
    if (m->n_visits == 0) return false;
    settle(m, to);
    return to->n > 0 || to->whole;
}

/* ---- beginning ---- */

static bool alloc(matcher *m)
{
    size_t words = (size_t)m->t->n_mask_words;
    m->frames = calloc(MAX_STACK_NODES, sizeof *m->frames);
    m->next_frames = calloc(MAX_LIVE + 1, sizeof *m->next_frames);
    m->moved = calloc(MAX_STACK_NODES, sizeof *m->moved);
    m->pool = calloc((TRIE_MAX_BYTES + 3) * MATCHER_MAX_PLACES, sizeof *m->pool);
    m->masks = calloc((MATCHER_CACHED_MASKS + 1) * words, sizeof *m->masks);
    if (!m->frames || !m->next_frames || !m->moved || !m->pool || !m->masks) return false;
    for (int i = 0; i <= TRIE_MAX_BYTES; i++) m->sets[i].places = m->pool + i * MATCHER_MAX_PLACES;
    m->now.places = m->pool + (TRIE_MAX_BYTES + 1) * MATCHER_MAX_PLACES;
    m->next.places = m->pool + (TRIE_MAX_BYTES + 2) * MATCHER_MAX_PLACES;
    for (int i = 0; i < MATCHER_CACHED_MASKS; i++) m->cache[i].mask = m->masks + i * words;
    m->scratch = m->masks + MATCHER_CACHED_MASKS * words;
    return true;
}

calla_status matcher_create(const grammar *g, const token_trie *t, bool after_reasoning,
                            matcher **out, calla_error *err)
{
    matcher *m = calloc(1, sizeof *m);
    if (m) {
        m->g = g;
        m->a = &g->a;
        m->t = t;
        m->start = after_reasoning ? g->start_after_reasoning : g->start;
    }
    if (!m || !alloc(m)) {
        matcher_free(m);
        return error_set(err, CALLA_ERR_MEMORY, "no memory to follow a grammar");
    }
    matcher_reset(m);
    *out = m;
    return CALLA_OK;
}

void matcher_free(matcher *m)
{
    if (!m) return;
    free(m->frames);
    free(m->next_frames);
    free(m->moved);
    free(m->pool);
    free(m->masks);
    free(m);
}

void matcher_reset(matcher *m)
{
    m->n_frames = 1; /* frame 0: the empty stack */
    m->now.n = m->n_visits = 0;
    m->now.whole = false;
    visit(m, m->start, 0, 0);
    settle(m, &m->now);
}

bool matcher_may_end(const matcher *m)
{
    return m->now.whole;
}

/* ---- accepting ---- */

/* The stack among next_frames. */
static uint32_t move_stack(matcher *m, uint32_t stack)
{
    uint32_t chain[MAX_FRAMES], n = 0;
    for (uint32_t at = stack; at != 0; at = m->frames[at].below) chain[n++] = at;
    uint32_t below = 0;
    while (n > 0) {
        frame f = m->frames[chain[--n]];
        uint32_t i = 1;
        f.below = below;
        if (m->moved[chain[n]] != 0) {
            below = m->moved[chain[n]];
            continue;
        }
        while (i < m->n_next_frames && memcmp(&m->next_frames[i], &f, sizeof f) != 0) i++;
        if (i == m->n_next_frames) m->next_frames[m->n_next_frames++] = f;
        below = m->moved[chain[n]] = i;
    }
    return below;
}

static void move_places(matcher *m, const place_set *from)
{
    place_set *to = &m->next;
    to->whole = to->whole || from->whole;
    for (int32_t i = 0; i < from->n && to->n < MATCHER_MAX_PLACES; i++) {
        place p = from->places[i];
        int32_t k = 0;
        p.stack = move_stack(m, p.stack);
        while (k < to->n && memcmp(&to->places[k], &p, sizeof p) != 0) k++;
        if (k == to->n) to->places[to->n++] = p;
    }
}

/* Every place goes its way alone, as matcher_allow looks at it, so that both say the same where
 * places are given up. */
bool matcher_accept(matcher *m, const char *bytes, size_t n_bytes)
{
    uint32_t n_frames = m->n_frames;
    if (n_bytes == 0 || n_bytes > TRIE_MAX_BYTES) return false;
    m->next.n = 0;
    m->next.whole = false;
    m->n_next_frames = 1;
    for (int32_t i = 0; i < m->now.n; i++) {
        size_t d = 0;
        place_set one = {&m->now.places[i], 1, false};
        const place_set *at = &one;
        while (d < n_bytes && step(m, at, (uint8_t)bytes[d], &m->sets[d + 1])) at = &m->sets[++d];
        if (d == n_bytes) move_places(m, at);
        memset(m->moved + n_frames, 0, (m->n_frames - n_frames) * sizeof *m->moved);
        m->n_frames = n_frames;
    }
    memset(m->moved, 0, n_frames * sizeof *m->moved);
    if (m->next.n == 0 && !m->next.whole) return false;
    place_set now = m->now;
    m->now = m->next;
    m->next = now;
    m->n_frames = m->n_next_frames;
    memcpy(m->frames + 1, m->next_frames + 1, (m->n_next_frames - 1) * sizeof *m->frames);
    return true;
}

bool matcher_accept_token(matcher *m, int32_t token)
{
    size_t n;
    const char *bytes = token_trie_bytes(m->t, token, &n);
    return matcher_accept(m, bytes, n);
}

/* ---- masks ---- */

static void set_bit(uint32_t *mask, int32_t token)
{
    mask[token / 32] |= 1u << (token % 32);
}

/* Called for a node of a tree that can be reached. */
typedef void reach_fn(void *user, const int32_t *ids, uint32_t n);

/* Whether the first character of a stay may come from the place. */
static bool may_stay(const matcher *m, const place *p, const pda_stay *stay)
{
    return m->frames[p->stack].depth + stay->need <= MAX_FRAMES &&
           automaton_guard_holds(m->a, stay->guard, p->number);
}

/* How many characters of a stay may come. */
static uint32_t room_of(const pda_state *s, const pda_stay *stay, uint32_t number)
{
    uint32_t room = s->is_counted && s->max != UINT32_MAX ? s->max - number : UINT32_MAX;
    return room < stay->run ? room : stay->run;
}

/* Whether all texts below a node may come from the set, as far as that is known. Of places that are
 * followed together the first is never given up. */
static bool takes_all_below(const matcher *m, const place_set *from, const trie *t,
                            const trie_node *node)
{
    const place *p = &from->places[0];
    if (node->below == 0 || from->n == 0) return false;
    const pda_state *s = &m->a->states[p->state];
    const pda_stay *stay = &m->a->stays[s->stay];
    if (s->stay == 0 || (stay->alone && from->n > 1)) return false;
    return room_of(s, stay, p->number) >= node->height &&
           lead_set_has_all(&stay->chars, &t->below[node->below]) && may_stay(m, p, stay);
}

/* Tokens of these characters are known to come or not; what else may come has one of `exits`. */
typedef struct known_tokens {
    const lead_set *chars;
    lead_set exits;
} known_tokens;

/* Whether all texts below a node are known, if the characters up to it are. */
static bool knows_all_below(const known_tokens *known, const trie *t, const trie_node *node)
{
    const lead_set *below = &t->below[node->below], *exits = &known->exits;
    return node->below > 0 &&
           !((below->bits[0] & exits->bits[0]) | (below->bits[1] & exits->bits[1]) |
             (below->bits[2] & exits->bits[2]));
}

/* Whether the path up to a node is of known characters if that above it is. */
static bool is_known_byte(const known_tokens *known, const trie_node *node)
{
    bool goes_on = (node->byte & 0xc0) == 0x80;
    return goes_on ? node->depth > 1 : lead_set_has(known->chars, node->byte);
}

/* Walks a tree from sets[0], but for what is known (NULL: nothing); gives the number of steps. */
static size_t walk(matcher *m, const trie *t, const known_tokens *known, reach_fn *reach,
                   void *user)
{
    bool of_known[TRIE_MAX_BYTES + 1] = {known != NULL};
    size_t n_steps = 0;
    m->marks[0] = m->n_frames;
    for (uint32_t i = 0; i < t->n_nodes; n_steps++) {
        const trie_node *node = &t->nodes[i];
        uint32_t d = node->depth, reached = i + 1;
        bool below_too = false;
        m->n_frames = m->marks[d - 1];
        if (step(m, &m->sets[d - 1], node->byte, &m->sets[d])) {
            m->marks[d] = m->n_frames;
            of_known[d] = of_known[d - 1] && is_known_byte(known, node);
            below_too = !(of_known[d] && knows_all_below(known, t, node));
            if (below_too && takes_all_below(m, &m->sets[d], t, node)) {
                reached = node->skip;
                below_too = false;
            }
            reach(user, t->ids + node->first, t->nodes[reached].first - node->first);
        }
        i = below_too ? i + 1 : node->skip;
    }
    m->n_frames = m->marks[0];
    return n_steps;
}

static void reach_tokens(void *user, const int32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) set_bit(user, ids[i]);
}

typedef struct closings {
    const closing_token *tokens;
    uint32_t *mask;
    uint32_t least, most; /* characters they must bring */
} closings;

static void reach_closings(void *user, const int32_t *ids, uint32_t n)
{
    closings *c = user;
    for (uint32_t i = 0; i < n; i++) {
        const closing_token *t = &c->tokens[ids[i]];
        if (t->count >= c->least && t->count <= c->most) set_bit(c->mask, t->token);
    }
}

static void or_mask(uint32_t *mask, const uint32_t *other, size_t n_words)
{
    for (size_t i = 0; i < n_words; i++) mask[i] |= other[i];
}

/* Inside a string: the tokens that stay there are known, and of those that end it only what comes
 * behind their quote depends on the grammar. */
static void allow_in_text(matcher *m, const place *p, uint32_t *mask)
{
    const token_trie *t = m->t;
    const pda_state *s = &m->a->states[p->state];
    uint32_t room = s->max == UINT32_MAX ? UINT32_MAX : s->max - p->number;
    token_set_allow(&t->inside, room, mask);
    closings c = {t->closing, mask, s->min > p->number ? s->min - p->number : 0, room};
    uint32_t n_frames = m->n_frames;
    m->n_visits = m->sets[0].n = 0;
    m->sets[0].whole = false;
    visit(m, ACCEPT, 0, p->stack);
    settle(m, &m->sets[0]);
    if (m->sets[0].n > 0 || m->sets[0].whole)
        reach_closings(&c, t->suffixes.ids, t->suffixes.n_empty);
    walk(m, &t->suffixes, NULL, reach_closings, &c);
    m->n_frames = n_frames;
}

/* What the mask of a place depends on. */
static uint64_t place_key(const matcher *m, const place *p, uint32_t *key, uint32_t *n_key)
{
    const pda_state *s = &m->a->states[p->state];
    uint32_t n = 0, number = p->number;
    uint64_t hash = 1469598103934665603u;
    if (s->is_counted && s->max != UINT32_MAX && number >= s->min &&
        s->max - number > TRIE_MAX_BYTES)
        number = ENOUGH;
    key[n++] = p->state;
    key[n++] = number;
    for (uint32_t at = p->stack; at != 0; at = m->frames[at].below) {
        key[n++] = m->frames[at].state;
        key[n++] = m->frames[at].number;
    }
    for (uint32_t i = 0; i < n; i++) hash = (hash ^ key[i]) * 1099511628211u;
    *n_key = n;
    return hash | 1;
}

/* Where a place stays its tokens are known: they are set, with what else may come in *known. */
static bool allow_known(matcher *m, const place *p, uint32_t *mask, known_tokens *known)
{
    const pda_state *s = &m->a->states[p->state];
    const pda_stay *stay = &m->a->stays[s->stay];
    if (s->stay == 0 || stay->set == 0 || m->g->owner != m->t->sets || !may_stay(m, p, stay))
        return false;
    *known = (known_tokens){&stay->chars, stay->exits};
    token_set_allow(m->g->sets[stay->set - 1], room_of(s, stay, p->number), mask);
    if (stay->ends) { /* as soon as there are enough characters */
        uint32_t n_frames = m->n_frames;
        place_set *outer = &m->sets[0];
        m->n_visits = outer->n = 0;
        visit(m, ACCEPT, 0, p->stack);
        settle(m, outer);
        for (int32_t i = 0; i < outer->n; i++)
            automaton_add_reads(m->a, outer->places[i].state, &known->exits);
        m->n_frames = n_frames;
    }
    known->exits.bits[2] |= 1ull << BELOW_WITHIN;
    return true;
}

static void allow_place(matcher *m, const place *p, uint32_t *mask)
{
    uint32_t key[2 + 2 * MAX_FRAMES], n_key;
    size_t words = (size_t)m->t->n_mask_words, n_steps = COSTLY_STEPS + 1;
    uint64_t hash = place_key(m, p, key, &n_key);
    cached_mask *c = &m->cache[(hash >> 32) % MATCHER_CACHED_MASKS];
    if (c->hash == hash && c->n == n_key && memcmp(c->key, key, n_key * sizeof *key) == 0) {
        or_mask(mask, c->mask, words);
        return;
    }
    memset(m->scratch, 0, words * sizeof *m->scratch);
    if (m->a->states[p->state].is_text) {
        allow_in_text(m, p, m->scratch);
    } else {
        known_tokens known;
        bool knows = allow_known(m, p, m->scratch, &known);
        m->sets[0].places[0] = *p;
        m->sets[0].n = 1;
        n_steps = walk(m, &m->t->all, knows ? &known : NULL, reach_tokens, m->scratch);
    }
    or_mask(mask, m->scratch, words);
    if (n_steps <= COSTLY_STEPS) return;
    c->hash = hash;
    c->n = n_key;
    memcpy(c->key, key, n_key * sizeof *key);
    memcpy(c->mask, m->scratch, words * sizeof *c->mask);
}

void matcher_allow(matcher *m, uint32_t *mask)
{
    for (int32_t i = 0; i < m->now.n; i++) allow_place(m, &m->now.places[i], mask);
}
