#include "grammar/number_dfa.h"

#include <stdlib.h>
#include <string.h>

/* A magnitude as digits: whole [n_whole] without zeros in front, fraction [n_fraction] without any
 * at the end. */
typedef struct decimal {
    bool negative;
    int n_whole, n_fraction;
    uint8_t whole[20], fraction[20];
} decimal;

typedef struct bound {
    decimal value;
    bool set, exclusive;
} bound;

enum { LESS, EQUAL, GREATER, N_ORDERS };
enum { ZERO = 20, N_WHOLE = 21, N_FRACTION = 17 }; /* ZERO: the whole part is "0" */

/* What is known of a number whose beginning has been read. */
typedef struct place {
    int whole;     /* digits, or ZERO */
    int fraction;  /* -1 = before the point */
    int low, high; /* how its digits compare with those of the bounds */
    uint32_t rest; /* modulo the multiple */
} place;

typedef struct numbers {
    dfa *out;
    bound low, high;   /* of the magnitude */
    uint32_t multiple; /* in units of 10^-multiple_digits; 1 = any */
    int multiple_digits;
    bool has_multiple;
    int max_whole, max_fraction, max_digits;
    uint32_t *known; /* state + 1 of each place */
    place *places;   /* [n_places] of the states from `first` on */
    size_t n_places, capacity;
    uint32_t first;
    bool no_memory;
} numbers;

/* ---- numbers of the schema ---- */

/* False: more digits than there is room for. */
static bool decimal_read(const json_t *value, decimal *d)
{
    char digits[64] = "";
    int n = 0, point = -1, exponent = 0;
    strbuf text = {0};
    json_write_value(&text, value);
    *d = (decimal){0};
    for (const char *c = text.data ? text.data : ""; *c; c++) {
        if (*c == '-') d->negative = true;
        if (*c == '.') point = n;
        if (*c >= '0' && *c <= '9' && n < (int)sizeof digits) digits[n++] = (char)(*c - '0');
        if (*c == 'e') {
            exponent = atoi(c + 1);
            break;
        }
    }
    strbuf_free(&text);
    if (point < 0) point = n;
    point += exponent;
    for (int i = 0; i < n; i++) {
        int at = i - point; /* before the point: negative */
        if (digits[i] == 0 && d->n_whole == 0 && at < 0) continue;
        if (at < 0 ? point > 20 : at >= 20) {
            if (digits[i] != 0) return false;
            continue;
        }
        if (at < 0)
            d->whole[d->n_whole++] = (uint8_t)digits[i];
        else
            d->fraction[at] = (uint8_t)digits[i];
    }
    for (int i = n; i < point && d->n_whole > 0; i++) {
        if (d->n_whole == 20) return false;
        d->whole[d->n_whole++] = 0;
    }
    for (int i = 0; i < 20; i++)
        if (d->fraction[i] != 0) d->n_fraction = i + 1;
    return true;
}

static bool is_zero(const decimal *d)
{
    return d->n_whole == 0 && d->n_fraction == 0;
}

static calla_status read_bound(const json_t *value, bool exclusive, const char *keyword, bound *b,
                               calla_error *err)
{
    *b = (bound){.set = value != NULL, .exclusive = exclusive};
    if (!value) return CALLA_OK;
    bool integer = json_is_integer(value);
    if (!decimal_read(value, &b->value) || b->value.n_whole > INTEGER_MAX_DIGITS ||
        (!integer && b->value.n_whole + b->value.n_fraction > NUMBER_MAX_DIGITS))
        return error_set(err, CALLA_ERR_UNSUPPORTED,
                         "%s: a bound of more than %d digits is not "
                         "supported",
                         keyword, NUMBER_MAX_DIGITS);
    return CALLA_OK;
}

static calla_status read_multiple(numbers *n, const json_t *value, calla_error *err)
{
    decimal d;
    uint64_t units = 0;
    n->multiple = 1;
    n->has_multiple = value != NULL;
    if (!value) return CALLA_OK;
    bool ok = decimal_read(value, &d) && d.n_whole + d.n_fraction <= NUMBER_MAX_DIGITS;
    for (int i = 0; ok && i < d.n_whole; i++) units = units * 10 + d.whole[i];
    for (int i = 0; ok && i < d.n_fraction; i++) units = units * 10 + d.fraction[i];
    if (!ok || units > MAX_MULTIPLE)
        return error_set(err, CALLA_ERR_UNSUPPORTED,
                         "multipleOf: only up to %d units of its last "
                         "digit are supported",
                         MAX_MULTIPLE);
    n->multiple = (uint32_t)units;
    n->multiple_digits = d.n_fraction;
    return CALLA_OK;
}

/* ---- digits ---- */

static size_t place_index(const numbers *n, const place *p)
{
    size_t at = (size_t)(p->fraction + 1);
    at = at * N_WHOLE + (size_t)p->whole;
    at = at * N_ORDERS + (size_t)p->low;
    at = at * N_ORDERS + (size_t)p->high;
    return at * n->multiple + p->rest;
}

static int compare_digit(int order, int digit, int other)
{
    if (order != EQUAL || digit == other) return order;
    return digit < other ? LESS : GREATER;
}

static int whole_digits(const place *p)
{
    return p->whole == ZERO ? 0 : p->whole;
}

/* The order once the whole part is known to have ended. */
static int end_whole(const place *p, int order, const bound *b)
{
    int n = whole_digits(p);
    return n < b->value.n_whole ? LESS : n > b->value.n_whole ? GREATER : order;
}

/* The order if the number ends here. */
static int end_order(const place *p, int order, const bound *b)
{
    if (p->fraction < 0) order = end_whole(p, order, b);
    int n = p->fraction < 0 ? 0 : p->fraction;
    return order == EQUAL && b->value.n_fraction > n ? LESS : order;
}

static bool may_end(const numbers *n, const place *p)
{
    int digits = p->fraction < 0 ? 0 : p->fraction;
    uint64_t rest = p->rest;
    if (p->whole == 0 || p->fraction == 0) return false;
    if (n->has_multiple) {
        if (digits > n->multiple_digits) return false;
        for (int i = digits; i < n->multiple_digits; i++) rest = rest * 10 % n->multiple;
        if (rest != 0) return false;
    }
    int low = n->low.set ? end_order(p, p->low, &n->low) : GREATER;
    int high = n->high.set ? end_order(p, p->high, &n->high) : LESS;
    return (low == GREATER || (low == EQUAL && !n->low.exclusive)) &&
           (high == LESS || (high == EQUAL && !n->high.exclusive));
}

static uint32_t find_state(numbers *n, const place *p)
{
    uint32_t *known = &n->known[place_index(n, p)];
    if (*known) return *known - 1;
    if (n->n_places == n->capacity) {
        size_t capacity = n->capacity ? 2 * n->capacity : 64;
        place *grown = realloc(n->places, capacity * sizeof *grown);
        if (!grown) {
            n->no_memory = true;
            return 0;
        }
        n->places = grown;
        n->capacity = capacity;
    }
    uint32_t state = dfa_add_state(n->out, may_end(n, p));
    if (n->n_places == 0) n->first = state;
    if (dfa_failed(n->out)) return 0;
    n->places[n->n_places++] = *p;
    *known = state + 1;
    return state;
}

static int step_whole(const place *p, int order, const bound *b, int digit)
{
    if (p->whole >= b->value.n_whole) return GREATER;
    return compare_digit(order, digit, b->value.whole[p->whole]);
}

static int step_fraction(const place *p, int order, const bound *b, int digit)
{
    int other = p->fraction < b->value.n_fraction ? b->value.fraction[p->fraction] : 0;
    return compare_digit(order, digit, other);
}

/* Whether another digit may follow, and what is known then. */
static bool step_digit(const numbers *n, const place *p, int digit, place *q)
{
    *q = *p;
    q->rest = (uint32_t)(((uint64_t)p->rest * 10 + (uint64_t)digit) % n->multiple);
    int used = whole_digits(p) + (p->fraction < 0 ? 0 : p->fraction);
    if (used >= n->max_digits) return false;
    if (p->fraction >= 0) {
        if (p->fraction >= n->max_fraction) return false;
        q->low = step_fraction(p, p->low, &n->low, digit);
        q->high = step_fraction(p, p->high, &n->high, digit);
        q->fraction++;
        return true;
    }
    if (p->whole == ZERO || p->whole >= n->max_whole) return false;
    if (p->whole == 0 && digit == 0) {
        q->whole = ZERO;
        return true;
    }
    q->low = step_whole(p, p->low, &n->low, digit);
    q->high = step_whole(p, p->high, &n->high, digit);
    q->whole++;
    return true;
}

static void add_edges(numbers *n, uint32_t state, const place *p)
{
    place q;
    for (int digit = 0; digit < 10; digit++)
        if (step_digit(n, p, digit, &q)) {
            uint32_t to = find_state(n, &q);
            dfa_add_edge(n->out, state, (uint8_t)('0' + digit), (uint8_t)('0' + digit), to);
        }
    if (p->fraction >= 0 || p->whole == 0 || n->max_fraction == 0) return;
    q = *p;
    q.low = end_whole(p, p->low, &n->low);
    q.high = end_whole(p, p->high, &n->high);
    q.fraction = 0;
    uint32_t to = find_state(n, &q);
    dfa_add_edge(n->out, state, '.', '.', to);
}

/* The magnitudes between the bounds; gives their first state. */
static uint32_t add_magnitudes(numbers *n)
{
    size_t n_places = (size_t)(N_FRACTION + 1) * N_WHOLE * N_ORDERS * N_ORDERS * n->multiple;
    place start = {.fraction = -1, .low = EQUAL, .high = EQUAL};
    free(n->known);
    n->n_places = 0;
    n->known = calloc(n_places, sizeof *n->known);
    if (!n->known) {
        n->no_memory = true;
        return 0;
    }
    uint32_t first = find_state(n, &start);
    for (size_t i = 0; i < n->n_places && !n->no_memory && !dfa_failed(n->out); i++) {
        place p = n->places[i]; /* the array may move */
        add_edges(n, first + (uint32_t)i, &p);
    }
    return first;
}

/* ---- all ---- */

/* e, a sign or none, one or two digits: behind every number that may end. */
static void add_exponents(dfa *d)
{
    size_t n = d->n_states;
    uint32_t e = dfa_add_state(d, false), sign = dfa_add_state(d, false);
    uint32_t one = dfa_add_state(d, true), two = dfa_add_state(d, true);
    dfa_add_edge(d, e, '+', '+', sign);
    dfa_add_edge(d, e, '-', '-', sign);
    dfa_add_edge(d, e, '0', '9', one);
    dfa_add_edge(d, sign, '0', '9', one);
    dfa_add_edge(d, one, '0', '9', two);
    for (uint32_t s = 0; s < n && !dfa_failed(d); s++)
        if (d->states[s].accept) dfa_add_edge(d, s, 'e', 'e', e);
}

static decimal largest_integer(int last_digit)
{
    static const uint8_t digits[] = {9, 2, 2, 3, 3, 7, 2, 0, 3, 6, 8, 5, 4, 7, 7, 5, 8, 0};
    decimal d = {.n_whole = INTEGER_MAX_DIGITS};
    memcpy(d.whole, digits, sizeof digits);
    d.whole[18] = (uint8_t)last_digit;
    return d;
}

/* The bounds of the magnitudes of negative numbers. */
static void turn_around(numbers *n, const bound *low, const bound *high)
{
    n->high = low->set ? *low : (bound){0};
    n->low = high->set && high->value.negative ? *high : (bound){.set = true, .exclusive = true};
    if (n->high.set || n->max_fraction > 0) return;
    n->high = (bound){.value = largest_integer(8), .set = true};
}

static void add_numbers(numbers *n, const bound *low, const bound *high)
{
    bool positive = !high->set || !high->value.negative;
    bool negative = !low->set || (low->value.negative && !is_zero(&low->value));
    bound none = {0};
    n->low = low->set && !low->value.negative ? *low : none;
    n->high = high->set ? *high : none;
    if (!high->set && n->max_fraction == 0 && n->max_whole == INTEGER_MAX_DIGITS)
        n->high = (bound){.value = largest_integer(7), .set = true};
    if (!positive) n->high = (bound){.set = true, .exclusive = true}; /* nothing is below 0 */
    uint32_t first = add_magnitudes(n);
    if (!negative || n->no_memory) return;
    turn_around(n, low, high);
    uint32_t other = add_magnitudes(n);
    dfa_add_edge(n->out, first, '-', '-', other);
}

calla_status number_dfa(const number_limits *limits, dfa *out, calla_error *err)
{
    numbers n = {.out = out};
    bound low, high;
    *out = (dfa){.max_states = 1 << 16};
    CALLA_TRY(read_bound(limits->minimum, limits->exclusive_minimum,
                         limits->exclusive_minimum ? "exclusiveMinimum" : "minimum", &low, err));
    CALLA_TRY(read_bound(limits->maximum, limits->exclusive_maximum,
                         limits->exclusive_maximum ? "exclusiveMaximum" : "maximum", &high, err));
    CALLA_TRY(read_multiple(&n, limits->multiple, err));
    n.max_fraction = limits->integers_only ? 0 : NUMBER_MAX_DIGITS;
    if (n.has_multiple && n.max_fraction > n.multiple_digits) n.max_fraction = n.multiple_digits;
    n.max_digits = n.max_whole = limits->integers_only ? INTEGER_MAX_DIGITS : NUMBER_MAX_DIGITS;
    add_numbers(&n, &low, &high);
    bool plain = !low.set && !high.set && !n.has_multiple && !limits->integers_only;
    if (plain) add_exponents(out);
    free(n.known);
    free(n.places);
    bool any = dfa_trim(out);
    if (out->too_large)
        return dfa_free(out), error_set(err, CALLA_ERR_UNSUPPORTED,
                                        "multipleOf: with these bounds it is not supported");
    if (n.no_memory || out->no_memory)
        return dfa_free(out), error_set(err, CALLA_ERR_MEMORY, "no memory for a grammar");
    if (!any) dfa_free(out);
    return CALLA_OK;
}
