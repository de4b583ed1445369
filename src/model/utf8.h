/* UTF-8 that may be broken: what Python's errors="replace" makes of it, whole and as a stream.
 *
 * A broken sequence is replaced by one U+FFFD per maximal subpart (The Unicode Standard 3.9,
 * "U+FFFD Substitution of Maximal Subparts"), as CPython, Rust's from_utf8_lossy and web browsers
 * do. */
#ifndef CALLA_MODEL_UTF8_H
#define CALLA_MODEL_UTF8_H

#include "base/strbuf.h"

#include <calla/model.h>

typedef enum utf8_kind {
    UTF8_WHOLE,  /* a sequence */
    UTF8_BROKEN, /* a maximal subpart that no more bytes can make whole */
    UTF8_CUT,    /* the text ends inside a sequence that is valid so far */
} utf8_kind;

/* Looks at the start of text [n_bytes], n_bytes >= 1; *length (1 ... 4) is that of what was found.
 */
utf8_kind utf8_next(const char *text, size_t n_bytes, size_t *length);

/* Bytes of `text` up to the first sequence that is not whole. */
size_t utf8_valid_bytes(const char *text, size_t n_bytes);

/* Appends `text` with broken and cut sequences replaced by U+FFFD. */
void utf8_append_replaced(strbuf *out, const char *text, size_t n_bytes);

/* `text` for a message: valid UTF-8 in buffer [UTF8_SHOWN_BYTES], "..." at its end where it was
 * cut. Returns buffer. */
enum { UTF8_SHOWN_BYTES = 80 };
const char *utf8_show(const char *text, size_t n_bytes, char *buffer);

/* The code point of the whole sequence at `text`, and its length. */
int32_t utf8_decode(const char *text, size_t *length);

/* Writes the sequence of `code_point` (a scalar value) to bytes [4] and returns its length. */
size_t utf8_encode(int32_t code_point, char *bytes);

/* The length of the sequence that starts with this lead byte of valid UTF-8. */
static inline size_t utf8_length(char lead)
{
    unsigned char c = (unsigned char)lead;
    return c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

#endif
