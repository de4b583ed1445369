/* The text as detectors see it: what looks or counts the same is made the same, and every byte
 * knows where in the text it came from.
 *
 *   digits of any script, full-width, mathematical, circled      0-9
 *   letters with accents; full-width and mathematical letters;
 *   Cyrillic and Greek letters that look like Latin ones         A-Z a-z ("ß" is "ss")
 *   spaces of any width; dashes of any length; full-width signs  ' ' '-' and ASCII
 *   characters of no width                                       nothing
 *   JSON's \n \" \/ \u0040 and URLs' %40                         what they stand for
 *
 * All else stays. A fold is never longer than its text. */
#ifndef CALLA_HYBRID_FOLD_H
#define CALLA_HYBRID_FOLD_H

#include "base/error.h"

#include <stdint.h>

typedef struct fold {
    const char *text; /* [n] folded */
    size_t n;
    const char *source; /* [n_source] */
    size_t n_source;
    uint32_t *at; /* [n]: where in the source a byte's character starts; NULL: text is source */
    char *memory; /* of text, if it is not the source */
} fold;

/* The source must outlive the fold. */
calla_status fold_init(fold *f, const char *source, size_t n_bytes, calla_error *err);
void fold_deinit(fold *f);
/* The source's range of the folded bytes [start, end), start < end. */
void fold_range(const fold *f, size_t start, size_t end, size_t *source_start, size_t *source_end);

#endif
