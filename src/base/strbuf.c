#include "base/strbuf.h"

#include "base/memory.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool reserve(strbuf *s, size_t more)
{
    size_t need;
    if (s->failed || !size_add(s->n, more, &need) || !size_add(need, 1, &need) ||
        mem_grow((void **)&s->data, &s->capacity, need, 1, "text", NULL) != CALLA_OK)
        s->failed = true;
    return !s->failed;
}

void strbuf_append(strbuf *s, const char *bytes, size_t n)
{
    if (!reserve(s, n)) return;
    if (n) memcpy(s->data + s->n, bytes, n);
    s->n += n;
    s->data[s->n] = '\0';
}

void strbuf_puts(strbuf *s, const char *text)
{
    strbuf_append(s, text, strlen(text));
}

void strbuf_putc(strbuf *s, char c)
{
    strbuf_append(s, &c, 1);
}

void strbuf_printf(strbuf *s, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0 || !reserve(s, (size_t)n)) {
        s->failed = true;
        return;
    }
    va_start(args, format);
    vsnprintf(s->data + s->n, (size_t)n + 1, format, args);
    va_end(args);
    s->n += (size_t)n;
}

void strbuf_clear(strbuf *s)
{
    s->n = 0;
    if (s->data) s->data[0] = '\0';
}

void strbuf_free(strbuf *s)
{
    free(s->data);
    *s = (strbuf){0};
}

calla_status strbuf_take(strbuf *s, char **data, size_t *n, calla_error *err)
{
    reserve(s, 0);
    if (s->failed) {
        strbuf_free(s);
        return error_set(err, CALLA_ERR_MEMORY, "no memory for a text");
    }
    s->data[s->n] = '\0';
    *data = s->data;
    *n = s->n;
    *s = (strbuf){0};
    return CALLA_OK;
}
