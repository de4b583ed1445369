#include "grammar/charset.h"

#include <stdlib.h>

void charset_add(charset *c, uint32_t lo, uint32_t hi)
{
    if (lo > hi) return;
    if (c->n == CHARSET_MAX_RANGES) charset_normalize(c);
    if (c->n == CHARSET_MAX_RANGES)
        c->overflow = true;
    else
        c->ranges[c->n++] = (char_range){lo, hi};
}

void charset_add_set(charset *c, const charset *other)
{
    for (int32_t i = 0; i < other->n; i++) charset_add(c, other->ranges[i].lo, other->ranges[i].hi);
}

static int compare_ranges(const void *x, const void *y)
{
    const char_range *a = x, *b = y;
    return a->lo < b->lo ? -1 : a->lo > b->lo;
}

void charset_normalize(charset *c)
{
    int32_t n = 0;
    qsort(c->ranges, (size_t)c->n, sizeof *c->ranges, compare_ranges);
    for (int32_t i = 0; i < c->n; i++) {
        if (n > 0 && c->ranges[i].lo <= c->ranges[n - 1].hi + 1) {
            if (c->ranges[i].hi > c->ranges[n - 1].hi) c->ranges[n - 1].hi = c->ranges[i].hi;
        } else {
            c->ranges[n++] = c->ranges[i];
        }
    }
    c->n = n;
}

void charset_negate(charset *c)
{
    charset out = {.overflow = c->overflow};
    uint32_t next = 0;
    charset_normalize(c);
    for (int32_t i = 0; i < c->n; i++) {
        if (c->ranges[i].lo > next) charset_add(&out, next, c->ranges[i].lo - 1);
        next = c->ranges[i].hi + 1;
    }
    if (next <= LAST_CODE_POINT) charset_add(&out, next, LAST_CODE_POINT);
    *c = out;
}

/* ---- UTF-8 ---- */

static int encode(uint32_t c, uint8_t *out)
{
    if (c < 0x80) {
        out[0] = (uint8_t)c;
        return 1;
    }
    int n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--, c >>= 6) out[i] = (uint8_t)(0x80 | (c & 0x3f));
    static const uint8_t heads[] = {0, 0, 0xc0, 0xe0, 0xf0};
    out[0] = (uint8_t)(heads[n] | c);
    return n;
}

/* Cuts where the length changes, at the surrogates, and so that all bytes after the first that
 * differ are whole ranges of continuation bytes. */
void utf8_split(uint32_t lo, uint32_t hi, utf8_sequence_fn *each, void *user)
{
    static const uint32_t cuts[] = {0x7f, 0x7ff, 0xd7ff, 0xffff};
    if (lo >= 0xd800 && lo <= 0xdfff) lo = 0xe000;
    if (hi >= 0xd800 && hi <= 0xdfff) hi = 0xd7ff;
    if (lo > hi) return;
    for (int i = 0; i < 4; i++) {
        if (lo > cuts[i] || hi <= cuts[i]) continue;
        utf8_split(lo, cuts[i], each, user);
        utf8_split(cuts[i] + 1, hi, each, user);
        return;
    }
    for (int k = 1; k < 4; k++) {
        uint32_t low = (1u << (6 * k)) - 1;
        if (hi < 0x80 || (lo & ~low) == (hi & ~low)) continue;
        if ((lo & low) != 0) {
            utf8_split(lo, lo | low, each, user);
            utf8_split((lo | low) + 1, hi, each, user);
            return;
        }
        if ((hi & low) != low) {
            utf8_split(lo, (hi & ~low) - 1, each, user);
            utf8_split(hi & ~low, hi, each, user);
            return;
        }
    }
    utf8_sequence s;
    s.n = encode(lo, s.lo);
    encode(hi, s.hi);
    each(user, &s);
}
