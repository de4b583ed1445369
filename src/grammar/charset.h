/* Sets of characters, as ranges of code points. */
#ifndef CALLA_GRAMMAR_CHARSET_H
#define CALLA_GRAMMAR_CHARSET_H

#include "base/error.h"

enum { CHARSET_MAX_RANGES = 128, LAST_CODE_POINT = 0x10ffff };

typedef struct char_range {
    uint32_t lo, hi;
} char_range;

typedef struct charset {
    char_range ranges[CHARSET_MAX_RANGES]; /* [n] */
    int32_t n;
    bool overflow;
} charset;

void charset_add(charset *c, uint32_t lo, uint32_t hi);
void charset_add_set(charset *c, const charset *other);
/* Sorts, joins what overlaps. */
void charset_normalize(charset *c);
void charset_negate(charset *c);

/* The sequences of byte ranges that spell lo ... hi in UTF-8 (no surrogates). */
typedef struct utf8_sequence {
    int n; /* bytes */
    uint8_t lo[4], hi[4];
} utf8_sequence;
/* Gives them one by one. */
typedef void utf8_sequence_fn(void *user, const utf8_sequence *s);
void utf8_split(uint32_t lo, uint32_t hi, utf8_sequence_fn *each, void *user);

#endif
