/* A growing byte string, and how a text ends. Appends never fail one by one: running out of memory
 * sets `failed`, later appends do nothing, and strbuf_take reports it. */
#ifndef CALLA_BASE_STRBUF_H
#define CALLA_BASE_STRBUF_H

#include "base/error.h"

#include <string.h>

static inline bool text_ends_with(const char *text, const char *ending)
{
    size_t n = strlen(text), k = strlen(ending);
    return n >= k && strcmp(text + n - k, ending) == 0;
}

typedef struct strbuf {
    char *data; /* [n] bytes and a NUL, or NULL while empty */
    size_t n, capacity;
    bool failed;
} strbuf;

void strbuf_append(strbuf *s, const char *bytes, size_t n);
void strbuf_puts(strbuf *s, const char *text);
void strbuf_putc(strbuf *s, char c);
void strbuf_printf(strbuf *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Empties the string, keeping its memory. */
void strbuf_clear(strbuf *s);
void strbuf_free(strbuf *s);
/* Moves the bytes to *data (malloc'ed, NUL-terminated, never NULL) and *n, and empties s. */
calla_status strbuf_take(strbuf *s, char **data, size_t *n, calla_error *err);

#endif
