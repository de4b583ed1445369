/* What placeholders look like, for those who write them and those who look for them. */
#ifndef CALLA_HYBRID_PLACEHOLDER_H
#define CALLA_HYBRID_PLACEHOLDER_H

#include "hybrid/detect/detect.h"

/* The type of placeholders for texts that look like one, after those of the categories. */
enum { PLACEHOLDER_TEXT = DETECT_N_CATEGORIES, PLACEHOLDER_N_TYPES };

typedef enum placeholder_match {
    PLACEHOLDER_NONE,  /* none starts here, whatever follows */
    PLACEHOLDER_FOUND, /* one does */
    PLACEHOLDER_CUT,   /* the text ends in what may be the beginning of one */
} placeholder_match;

typedef struct placeholder {
    int type;
    uint32_t number;
    size_t n_bytes;
} placeholder;

/* Looks at the start of text [n_bytes], n_bytes >= 1. */
placeholder_match placeholder_read(const char *text, size_t n_bytes, placeholder *p);
void placeholder_write(strbuf *out, int type, uint32_t number);
/* Whether a placeholder can start with this byte. */
static inline bool placeholder_may_start(char c)
{
    return c == '[' || c == '\\';
}

#endif
