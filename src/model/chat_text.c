#include "model/chat_text.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

void chat_text_free(chat_text *t)
{
    strbuf_free(&t->text);
    free(t->literal);
    *t = (chat_text){0};
}

void chat_text_clear(chat_text *t)
{
    strbuf_clear(&t->text);
    t->n_literal = 0;
}

/* Marks the end of the text, from `begin` on, as literal. */
static void mark(chat_text *t, size_t begin)
{
    size_t end = t->text.n;
    if (begin == end) return;
    if (t->n_literal > 0 && t->literal[t->n_literal - 1].end == begin) {
        t->literal[t->n_literal - 1].end = end;
        return;
    }
    if (mem_grow((void **)&t->literal, &t->capacity, t->n_literal + 1, sizeof *t->literal, "chat",
                 NULL) != CALLA_OK) {
        t->failed = true;
        return;
    }
    t->literal[t->n_literal++] = (calla_range){begin, end};
}

void chat_text_put(chat_text *t, const char *text)
{
    strbuf_puts(&t->text, text);
}

void chat_text_put_literal(chat_text *t, const char *bytes, size_t n_bytes)
{
    size_t begin = t->text.n;
    strbuf_append(&t->text, bytes, n_bytes);
    mark(t, begin);
}

void chat_text_put_string(chat_text *t, const json_t *string)
{
    chat_text_put_literal(t, json_string_value(string), json_string_length(string));
}

void chat_text_put_json(chat_text *t, const json_t *value)
{
    size_t begin = t->text.n;
    json_write_value(&t->text, value);
    mark(t, begin);
}

void chat_text_put_part(chat_text *t, const chat_text *from, calla_range range)
{
    const char *text = from->text.data;
    size_t at = range.begin;
    for (size_t i = 0; i < from->n_literal && from->literal[i].begin < range.end; i++) {
        calla_range r = from->literal[i];
        if (r.begin < at) r.begin = at;
        if (r.end > range.end) r.end = range.end;
        if (r.begin >= r.end) continue;
        strbuf_append(&t->text, text + at, r.begin - at);
        chat_text_put_literal(t, text + r.begin, r.end - r.begin);
        at = r.end;
    }
    if (at < range.end) strbuf_append(&t->text, text + at, range.end - at);
}

/* ---- Python's string methods ---- */

/* Characters for which Python's str.isspace() is true, in UTF-8. */
static const char *const spaces[] = {
    "\t",           "\n",           "\v",           "\f",           "\r",
    "\x1c",         "\x1d",         "\x1e",         "\x1f",         " ",
    "\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80", "\xe2\x80\x80", "\xe2\x80\x81",
    "\xe2\x80\x82", "\xe2\x80\x83", "\xe2\x80\x84", "\xe2\x80\x85", "\xe2\x80\x86",
    "\xe2\x80\x87", "\xe2\x80\x88", "\xe2\x80\x89", "\xe2\x80\x8a", "\xe2\x80\xa8",
    "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f", "\xe3\x80\x80",
};
enum { N_SPACES = sizeof spaces / sizeof *spaces };

/* The length of the space that the range starts (or, at_end, ends) with, 0 if none. */
static size_t space_length(const char *text, calla_range range, bool at_end)
{
    for (int i = 0; i < N_SPACES; i++) {
        size_t n = strlen(spaces[i]);
        if (n > range.end - range.begin) continue;
        if (memcmp(text + (at_end ? range.end - n : range.begin), spaces[i], n) == 0) return n;
    }
    return 0;
}

calla_range text_strip(const char *text, calla_range range)
{
    for (size_t n; (n = space_length(text, range, false)) > 0;) range.begin += n;
    for (size_t n; (n = space_length(text, range, true)) > 0;) range.end -= n;
    return range;
}

calla_range text_strip_newlines_left(const char *text, calla_range range)
{
    while (range.begin < range.end && text[range.begin] == '\n') range.begin++;
    return range;
}

calla_range text_strip_newlines_right(const char *text, calla_range range)
{
    while (range.begin < range.end && text[range.end - 1] == '\n') range.end--;
    return range;
}

size_t text_find_first(const char *text, calla_range range, const char *part)
{
    if (range.begin == range.end) return SIZE_MAX;
    const char *p = memmem(text + range.begin, range.end - range.begin, part, strlen(part));
    return p ? (size_t)(p - text) : SIZE_MAX;
}

size_t text_find_last(const char *text, calla_range range, const char *part)
{
    size_t n = strlen(part);
    for (size_t at = range.end; at >= range.begin + n; at--) {
        if (memcmp(text + at - n, part, n) == 0) return at - n;
    }
    return SIZE_MAX;
}
