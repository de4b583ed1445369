/* Strings: those of any kind, and those of a pattern. */
#include "grammar/emit.h"

#include <stdlib.h>

/* UTF-8 without surrogates and without what has to be escaped. The rest of \uXXXX is
 * emit_escapes's.
 */
/* clang-format off */
#define FROM_BETWEEN(place)                                                                        \
    {place, 0x20, 0x21, IN_TEXT}, {place, 0x5d, 0x7f, IN_TEXT}, {place, 0x5c, 0x5c, IN_ESCAPE},    \
    {place, 0xc2, 0xdf, IN_1}, {place, 0xe0, 0xe0, IN_E0}, {place, 0xe1, 0xec, IN_2},              \
    {place, 0xed, 0xed, IN_ED}, {place, 0xee, 0xef, IN_2}, {place, 0xf0, 0xf0, IN_F0},             \
    {place, 0xf1, 0xf3, IN_3}, {place, 0xf4, 0xf4, IN_F4}
#define FROM_WITHIN                                                                                \
    {IN_1, 0x80, 0xbf, IN_TEXT}, {IN_2, 0x80, 0xbf, IN_1}, {IN_3, 0x80, 0xbf, IN_2},               \
    {IN_E0, 0xa0, 0xbf, IN_1}, {IN_ED, 0x80, 0x9f, IN_1}, {IN_F0, 0x90, 0xbf, IN_2},               \
    {IN_F4, 0x80, 0x8f, IN_2}, {IN_ESCAPE, '"', '"', IN_TEXT}, {IN_ESCAPE, '\\', '\\', IN_TEXT},   \
    {IN_ESCAPE, 'b', 'b', IN_TEXT}, {IN_ESCAPE, 'f', 'f', IN_TEXT}, {IN_ESCAPE, 'n', 'n', IN_TEXT},\
    {IN_ESCAPE, 'r', 'r', IN_TEXT}, {IN_ESCAPE, 't', 't', IN_TEXT}
static const text_step any_steps[] = {
    FROM_BETWEEN(IN_TEXT), {IN_TEXT, 0x23, 0x5b, IN_TEXT}, FROM_WITHIN};
static const text_step call_steps[] = {
    FROM_BETWEEN(IN_TEXT), {IN_TEXT, 0x23, 0x3b, IN_TEXT}, {IN_TEXT, '<', '<', IN_LESS},
    {IN_TEXT, 0x3d, 0x5b, IN_TEXT},
    FROM_BETWEEN(IN_LESS), {IN_LESS, 0x23, 0x2e, IN_TEXT}, {IN_LESS, 0x30, 0x3b, IN_TEXT},
    {IN_LESS, '<', '<', IN_LESS}, {IN_LESS, 0x3d, 0x5b, IN_TEXT}, FROM_WITHIN};
/* clang-format on */

const text_step *emit_text_steps(const emitter *e, size_t *n)
{
    *n = e->in_call ? sizeof call_steps / sizeof *call_steps : sizeof any_steps / sizeof *any_steps;
    return e->in_call ? call_steps : any_steps;
}

void emit_spell(const emitter *e, const json_t *value, strbuf *out)
{
    strbuf text = {0};
    json_write_value(&text, value);
    for (size_t i = 0; i < text.n; i++) { /* '<' before '/' is inside of strings only */
        if (e->in_call && i > 0 && text.data[i] == '/' && text.data[i - 1] == '<')
            strbuf_putc(out, '\\');
        strbuf_putc(out, text.data[i]);
    }
    out->failed = out->failed || text.failed;
    strbuf_free(&text);
}

/* ---- any string ---- */

static void hex_digits(builder *b, uint32_t from, int lo, int hi, uint32_t to)
{
    for (int part = 0; part < 3; part++) { /* 0-9, a-f, A-F */
        static const int first[] = {0, 10, 10};
        static const char letter[] = "0aA";
        int low = lo > first[part] ? lo : first[part], last = part ? 15 : 9;
        int high = hi < last ? hi : last;
        if (low > high) continue;
        builder_bytes(b, from, (uint8_t)(letter[part] + low - first[part]),
                      (uint8_t)(letter[part] + high - first[part]), to);
    }
}

/* n digits of any kind into `to`: where they begin. */
static uint32_t any_digits(builder *b, int n, uint32_t to)
{
    for (; n > 0; n--) {
        uint32_t from = builder_state(b);
        hex_digits(b, from, 0, 15, to);
        to = from;
    }
    return to;
}

/* \/ and \uXXXX: no NUL, and surrogates in pairs only, which are one character. */
static void emit_escapes(builder *b, uint32_t escape, uint32_t text)
{
    uint32_t first = builder_state(b), one = any_digits(b, 1, text), two = any_digits(b, 2, text);
    uint32_t three = any_digits(b, 3, text), zero = builder_state(b), zeros = builder_state(b);
    uint32_t nul = builder_state(b), d = builder_state(b), high = builder_state(b);
    uint32_t low = builder_state(b), low_d = builder_state(b);
    builder_bytes(b, escape, '/', '/', text);
    builder_bytes(b, escape, 'u', 'u', first);
    hex_digits(b, first, 1, 12, three);
    hex_digits(b, first, 14, 15, three);
    hex_digits(b, first, 0, 0, zero);
    hex_digits(b, zero, 1, 15, two);
    hex_digits(b, zero, 0, 0, zeros);
    hex_digits(b, zeros, 1, 15, one);
    hex_digits(b, zeros, 0, 0, nul);
    hex_digits(b, nul, 1, 15, text);
    hex_digits(b, first, 13, 13, d);
    hex_digits(b, d, 0, 7, two);
    hex_digits(b, d, 8, 11, any_digits(b, 2, high));
    builder_text(b, high, "\\u", 2, low);
    hex_digits(b, low, 13, 13, low_d);
    hex_digits(b, low_d, 12, 15, two);
}

void emit_count(builder *b, uint32_t state, uint32_t min, uint32_t max)
{
    pda_state *s = &b->a.states[state];
    s->is_counted = max > 0;
    s->min = min;
    s->max = max;
}

static void emit_text_states(emitter *e, uint32_t *states, uint32_t min, uint32_t max)
{
    builder *b = &e->b;
    uint32_t more = max == NO_LIMIT ? NO_GUARD : builder_guard_one(b, 0, max - 1);
    uint32_t cap = max == NO_LIMIT ? min : max;
    size_t n_steps;
    const text_step *steps = emit_text_steps(e, &n_steps);
    for (int i = IN_TEXT; i < N_TEXT_PLACES; i++) states[i] = builder_state(b);
    for (size_t i = 0; i < n_steps; i++) {
        const text_step *t = &steps[i];
        if (max == 0) break;
        pda_edge *step = builder_bytes(b, states[t->from], t->lo, t->hi, states[t->to]);
        if (!step || !text_is_between(t->from) || cap == 0) continue;
        step->guard = more;
        step->act = ACT_COUNT;
        step->arg = cap;
    }
    uint32_t enough = builder_guard_one(b, min, UINT32_MAX);
    if (max > 0) emit_escapes(b, states[IN_ESCAPE], states[IN_TEXT]);
    for (int i = 0; i < (e->in_call ? 2 : 1); i++) {
        uint32_t between = states[i ? IN_LESS : IN_TEXT];
        pda_edge *quote = builder_bytes(b, between, '"', '"', ACCEPT);
        if (!quote) return;
        quote->guard = enough;
        emit_count(b, between, min, max);
        b->a.states[between].is_text = max > 0 && !e->in_call;
    }
}

uint32_t emit_free_text(emitter *e, uint32_t min, uint32_t max)
{
    uint32_t states[N_TEXT_PLACES];
    if (min > 0 || max != NO_LIMIT) {
        emit_text_states(e, states, min, max);
        return states[IN_TEXT];
    }
    if (e->free_text[IN_TEXT] == 0) emit_text_states(e, e->free_text, 0, NO_LIMIT);
    return e->free_text[IN_TEXT];
}

/* ---- patterns with lengths ---- */

typedef struct product {
    const dfa *d;
    dfa *out;
    uint32_t max, cap;         /* counts stop at cap */
    uint32_t *known;           /* [d->n_states][cap + 1] state + 1 */
    uint32_t *states, *counts; /* of each state of out */
    size_t capacity;
    bool no_memory;
} product;

static uint32_t product_state(product *p, uint32_t state, uint32_t count, uint32_t min)
{
    uint32_t *known = &p->known[(size_t)state * (p->cap + 1) + count];
    if (*known) return *known - 1;
    size_t n = p->out->n_states;
    if (n == p->capacity) {
        size_t capacity = n ? 2 * n : 64;
        uint32_t *states = realloc(p->states, capacity * sizeof *states);
        if (states) p->states = states;
        uint32_t *counts = realloc(p->counts, capacity * sizeof *counts);
        if (counts) p->counts = counts;
        p->no_memory = p->no_memory || !states || !counts;
        if (p->no_memory) return 0;
        p->capacity = capacity;
    }
    uint32_t id = dfa_add_state(p->out, p->d->states[state].accept && count >= min);
    if (dfa_failed(p->out)) return 0;
    p->states[id] = state;
    p->counts[id] = count;
    *known = id + 1;
    return id;
}

static void run_product(product *p, uint32_t min)
{
    product_state(p, 0, 0, min);
    for (uint32_t id = 0; id < p->out->n_states && !p->no_memory && !dfa_failed(p->out); id++) {
        uint32_t state = p->states[id], count = p->counts[id];
        bool between = p->d->states[state].between;
        if (between && count == p->max) continue;
        uint32_t next = between && count < p->cap ? count + 1 : count;
        for (uint32_t i = p->d->states[state].first; i != DFA_NONE; i = p->d->edges[i].next) {
            uint32_t to = product_state(p, p->d->edges[i].to, next, min);
            dfa_add_edge(p->out, id, p->d->edges[i].lo, p->d->edges[i].hi, to);
        }
    }
}

/* Places that have to be cleared are work, too, but less than those that are visited. */
enum { CLEARED_PER_VISIT = 16 };

static calla_status with_lengths(const schema_node *s, const dfa *d, int64_t *work_left, dfa *out,
                                 calla_error *err)
{
    product p = {.d = d, .out = out, .max = s->max_length};
    p.cap = s->max_length == NO_LIMIT ? s->min_length : s->max_length;
    *out = (dfa){.max_states = 1 << 16};
    if (p.cap >= (1u << 22) / (d->n_states + 1))
        return error_set(err, CALLA_ERR_UNSUPPORTED,
                         "a pattern or format with lengths as large as %u is not supported", p.cap);
    size_t n_known = d->n_states * ((size_t)p.cap + 1);
    *work_left -= (int64_t)(n_known / CLEARED_PER_VISIT);
    if (*work_left < 0)
        return error_set(err, CALLA_ERR_UNSUPPORTED,
                         "the patterns and formats with lengths of this schema take too much work");
    p.known = calloc(n_known, sizeof *p.known);
    p.no_memory = !p.known;
    if (p.known) run_product(&p, s->min_length);
    bool any = !p.no_memory && dfa_trim(out);
    *work_left -= (int64_t)(out->n_states + out->n_edges);
    free(p.known);
    free(p.states);
    free(p.counts);
    if (out->too_large)
        return error_set(err, CALLA_ERR_UNSUPPORTED,
                         "a pattern or format with lengths needs more "
                         "than %zu states",
                         out->max_states);
    if (p.no_memory || out->no_memory)
        return error_set(err, CALLA_ERR_MEMORY, "no memory for a grammar");
    if (!any) dfa_free(out);
    return CALLA_OK;
}

calla_status text_dfa(const schema_node *s, text_spelling spelling, int64_t *work_left, dfa *out,
                      calla_error *err)
{
    dfa d;
    const char *pattern = s->pattern ? s->pattern : "";
    CALLA_TRY(regex_compile(pattern, s->pattern ? s->n_pattern : 0, spelling, work_left, &d, err));
    if (d.n_states == 0 || (s->min_length == 0 && s->max_length == NO_LIMIT)) {
        *out = d;
        return CALLA_OK;
    }
    calla_status status = with_lengths(s, &d, work_left, out, err);
    if (status != CALLA_OK) dfa_free(out);
    dfa_free(&d);
    return status;
}
