#include "hybrid/detect/wrapped.h"

#include "base/memory.h"
#include "hybrid/detect/base64.h"

#include <stdlib.h>
#include <string.h>

enum {
    MIN_RUN = 12,  /* characters: nine bytes of text */
    MIN_LINE = 60, /* of a line that the next one continues (RFC 2045 has 76, RFC 7468 has 64) */
};

/* The end of the run at `at`, lines included. */
static size_t run_end(const char *text, size_t n, size_t at)
{
    size_t line = at, i = at;
    for (;;) {
        while (i < n && base64_value(text[i]) >= 0) i++;
        if (i - line < MIN_LINE || i == n) return i;
        size_t next = i + (text[i] == '\r');
        if (next >= n || text[next] != '\n' || next + 1 >= n || base64_value(text[next + 1]) < 0)
            return i;
        i = line = next + 1;
    }
}

/* Bytes of text [n] up to the first that no text has; broken UTF-8 is none either. */
static size_t text_bytes(const char *text, size_t n)
{
    size_t i = 0;
    while (i < n) {
        unsigned char c = (unsigned char)text[i];
        size_t more = c < 0x80 ? 0 : c < 0xC2 ? 9 : c < 0xE0 ? 1 : c < 0xF0 ? 2 : c < 0xF5 ? 3 : 9;
        if (more == 9 || c == 0x7F || (c < 0x20 && !(c >= '\t' && c <= '\r'))) break;
        for (size_t k = 1; k <= more; k++)
            if (i + k >= n || ((unsigned char)text[i + k] & 0xC0) != 0x80) return i;
        i += 1 + more;
    }
    return i;
}

/* Decodes the run [start, end) to the end of w, or takes it back if it is no text. */
static void decode_run(wrapped *w, const char *text, size_t start, size_t end)
{
    size_t before = w->n, group = start, n_characters = 0;
    uint32_t bits = 0;
    for (size_t i = start; i < end; i++) {
        int value = base64_value(text[i]);
        if (value < 0) continue; /* a line's end */
        if (n_characters % 4 == 0) group = i;
        bits = bits << 6 | (uint32_t)value;
        if (n_characters++ % 4 == 0) continue;
        /* The second character of a group completes its first byte, and so on. */
        unsigned spare = (unsigned)(6 - 2 * ((n_characters - 1) % 4));
        w->at[w->n] = (uint32_t)group;
        w->text[w->n++] = (char)(bits >> spare & 0xFF);
        /* Most runs are no text, and show it soon. */
        if (w->n - before == 8 && text_bytes(w->text + before, 5) < 5) break;
    }
    size_t n = w->n - before;
    if (n < 8 || text_bytes(w->text + before, n) < n) {
        w->n = before;
        return;
    }
    w->at[w->n] = (uint32_t)group;
    w->text[w->n++] = '\n';
}

calla_status wrapped_init(wrapped *w, const char *text, size_t n_text, calla_error *err)
{
    *w = (wrapped){0};
    for (size_t i = 0, end; i < n_text; i = end + 1) {
        while (i < n_text && base64_value(text[i]) < 0) i++;
        end = run_end(text, n_text, i);
        if (end - i < MIN_RUN) continue;
        size_t need = w->n + 3 * ((end - i) / 4 + 1) + 1;
        calla_status status =
            mem_grow((void **)&w->text, &w->capacity, need, 1, "encoded text", err);
        if (status == CALLA_OK)
            status = mem_grow((void **)&w->at, &w->at_capacity, need, sizeof *w->at, "encoded text",
                              err);
        if (status != CALLA_OK) {
            wrapped_deinit(w);
            return status;
        }
        decode_run(w, text, i, end);
    }
    return CALLA_OK;
}

void wrapped_deinit(wrapped *w)
{
    if (w->text) explicit_bzero(w->text, w->n);
    free(w->text);
    free(w->at);
    *w = (wrapped){0};
}

void wrapped_range(const wrapped *w, const char *text, size_t n_text, size_t start, size_t end,
                   size_t *text_start, size_t *text_end)
{
    *text_start = w->at[start];
    size_t i = w->at[end - 1];
    for (int k = 0; k < 4 && i < n_text; i++) {
        if (base64_value(text[i]) >= 0)
            k++;
        else if (text[i] != '\r' && text[i] != '\n')
            break;
    }
    while (i < n_text && text[i] == '=') i++;
    *text_end = i;
}
