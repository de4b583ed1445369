#include "grammar/regex.h"

#include "base/memory.h"
#include "grammar/charset.h"
#include "grammar/nfa.h"
#include "grammar/regex_parse.h"

#include <stdio.h>
#include <string.h>

/* From the parsed pattern to an automaton that may be in several states at once, piece by piece:
 * every piece is built in front of what follows it, so pieces need one end only. */

typedef struct translator {
    nfa *n;
    text_spelling spelling;
    uint32_t target;  /* of the character under way */
    uint32_t choices; /* the alternatives collected for it */
} translator;

/* ---- characters ---- */

static void add_choice(translator *t, uint32_t state)
{
    t->choices = t->choices == NFA_NONE ? state : nfa_add_split(t->n, t->choices, state);
}

static void add_sequence(void *user, const utf8_sequence *s)
{
    translator *t = user;
    uint32_t next = t->target;
    for (int i = s->n - 1; i >= 0; i--)
        next = nfa_add_bytes(t->n, s->lo[i], s->hi[i], next, i == 0);
    add_choice(t, next);
}

static void add_text(translator *t, const char *text)
{
    uint32_t next = t->target;
    for (size_t i = strlen(text); i-- > 0;)
        next = nfa_add_bytes(t->n, (uint8_t)text[i], (uint8_t)text[i], next, i == 0);
    add_choice(t, next);
}

/* The character `c`, which a string of JSON spells with an escape. */
static void add_escape(translator *t, uint32_t c)
{
    static const char shorts[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    char text[16];
    if (c == 0) return;
    for (const char *s = shorts; *s; s += 2) {
        if ((uint32_t)*s != c) continue;
        snprintf(text, sizeof text, "\\%c", s[1]);
        add_text(t, text);
        return;
    }
    snprintf(text, sizeof text, "\\u%04x", c);
    add_text(t, text);
}

static bool is_special(uint32_t c)
{
    return c < 0x20 || c == '"' || c == '\\';
}

static void add_range(translator *t, uint32_t lo, uint32_t hi)
{
    uint32_t begin = lo;
    for (uint32_t c = lo; c <= hi && c < 0x80; c++) {
        if (!is_special(c) || (t->spelling == SPELLED_RAW && c != 0)) continue;
        if (begin < c) utf8_split(begin, c - 1, add_sequence, t);
        add_escape(t, c);
        begin = c + 1;
    }
    if (begin <= hi) utf8_split(begin, hi, add_sequence, t);
}

static uint32_t add_set(translator *t, const charset *set, uint32_t next)
{
    t->target = next;
    t->choices = NFA_NONE;
    for (int32_t i = 0; i < set->n; i++) add_range(t, set->ranges[i].lo, set->ranges[i].hi);
    return t->choices == NFA_NONE ? nfa_add_dead(t->n) : t->choices;
}

/* ---- structure ---- */

static uint32_t add_node(translator *t, const regex_tree *tree, uint32_t node, uint32_t next);

static uint32_t add_repeat(translator *t, const regex_tree *tree, const regex_node *r,
                           uint32_t next)
{
    if (r->max == REGEX_NO_MAX) {
        uint32_t loop = nfa_add_split(t->n, NFA_NONE, next);
        nfa_set_split(t->n, loop, add_node(t, tree, r->a, loop));
        next = loop;
    } else {
        uint32_t end = next;
        for (uint32_t i = r->min; i < r->max && !nfa_failed(t->n); i++)
            next = nfa_add_split(t->n, add_node(t, tree, r->a, next), end);
    }
    for (uint32_t i = 0; i < r->min && !nfa_failed(t->n); i++) {
        size_t n_states = t->n->n;
        next = add_node(t, tree, r->a, next);
        if (t->n->n == n_states) break; /* of nothing: once is as often as any */
    }
    return next;
}

static uint32_t add_node(translator *t, const regex_tree *tree, uint32_t node, uint32_t next)
{
    const regex_node *r = &tree->nodes[node];
    if (nfa_failed(t->n)) return next;
    switch (r->kind) {
    case REGEX_EMPTY:
        return next;
    case REGEX_SET:
        return add_set(t, &tree->sets[r->a], next);
    case REGEX_CAT:
        return add_node(t, tree, r->a, add_node(t, tree, r->b, next));
    case REGEX_ALT:
        return nfa_add_split(t->n, add_node(t, tree, r->a, next), add_node(t, tree, r->b, next));
    default:
        return add_repeat(t, tree, r, next);
    }
}

calla_status regex_compile(const char *pattern, size_t n_bytes, text_spelling spelling,
                           int64_t *work_left, dfa *out, calla_error *err)
{
    calla_status status = CALLA_OK;
    regex_tree tree = {0};
    nfa n = {0};
    *out = (dfa){0};
    CALLA_TRY_GOTO(regex_parse(pattern, n_bytes, &tree, err), done);
    translator t = {.n = &n, .spelling = spelling};
    uint32_t start = add_node(&t, &tree, tree.root, nfa_add_match(&n));
    status = nfa_determinize(&n, start, work_left, out, err);
done:
    regex_tree_free(&tree);
    nfa_free(&n);
    if (status != CALLA_OK) dfa_free(out);
    return status;
}
