/* What base64 hides in a text: its runs that decode to text, one after the other, and where in the
 * text each came from. */
#ifndef CALLA_HYBRID_WRAPPED_H
#define CALLA_HYBRID_WRAPPED_H

#include "base/error.h"

#include <stdint.h>

typedef struct wrapped {
    char *text;   /* [n] what was decoded, a line's end after each run */
    uint32_t *at; /* [n] where the group of four begins that a byte is from */
    size_t n, capacity, at_capacity;
} wrapped;

/* Of text [n_text]; w->n is 0 if nothing is hidden. */
calla_status wrapped_init(wrapped *w, const char *text, size_t n_text, calla_error *err);
void wrapped_deinit(wrapped *w);
/* The text's range of groups that hold the decoded bytes [start, end), start < end. */
void wrapped_range(const wrapped *w, const char *text, size_t n_text, size_t start, size_t end,
                   size_t *text_start, size_t *text_end);

#endif
