#include "model/utf8.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define REPLACEMENT "\xef\xbf\xbd"

/* Table 3-7 of the standard: the second byte's range depends on the lead byte. */
utf8_kind utf8_next(const char *text, size_t n_bytes, size_t *length)
{
    const unsigned char *p = (const unsigned char *)text;
    unsigned char lead = p[0], low = 0x80, high = 0xbf;
    assert(n_bytes > 0);
    *length = 1;
    if (lead < 0x80) return UTF8_WHOLE;
    if (lead < 0xc2 || lead > 0xf4) return UTF8_BROKEN;
    size_t need = utf8_length((char)lead);
    if (lead == 0xe0)
        low = 0xa0;
    else if (lead == 0xed)
        high = 0x9f; /* no surrogates */
    else if (lead == 0xf0)
        low = 0x90;
    else if (lead == 0xf4)
        high = 0x8f; /* nothing above U+10FFFF */
    for (size_t i = 1; i < need; i++) {
        *length = i;
        if (i == n_bytes) return UTF8_CUT;
        if (p[i] < low || p[i] > high) return UTF8_BROKEN;
        low = 0x80, high = 0xbf;
    }
    *length = need;
    return UTF8_WHOLE;
}

size_t utf8_valid_bytes(const char *text, size_t n_bytes)
{
    size_t i = 0;
    while (i < n_bytes) {
        uint64_t eight;
        if (n_bytes - i >= sizeof eight) {
            memcpy(&eight, text + i, sizeof eight);
            if ((eight & 0x8080808080808080u) == 0) {
                i += sizeof eight;
                continue;
            }
        }
        size_t length;
        if (utf8_next(text + i, n_bytes - i, &length) != UTF8_WHOLE) break;
        i += length;
    }
    return i;
}

void utf8_append_replaced(strbuf *out, const char *text, size_t n_bytes)
{
    while (n_bytes > 0) {
        size_t valid = utf8_valid_bytes(text, n_bytes), length;
        strbuf_append(out, text, valid);
        text += valid, n_bytes -= valid;
        if (n_bytes == 0) return;
        utf8_next(text, n_bytes, &length);
        strbuf_puts(out, REPLACEMENT);
        text += length, n_bytes -= length;
    }
}

const char *utf8_show(const char *text, size_t n_bytes, char *buffer)
{
    size_t used = 0;
    for (size_t i = 0, length; i < n_bytes; i += length) {
        bool whole = utf8_next(text + i, n_bytes - i, &length) == UTF8_WHOLE;
        if (used + 4 + sizeof "..." > UTF8_SHOWN_BYTES) {
            memcpy(buffer + used, "...", 3);
            used += 3;
            break;
        }
        memcpy(buffer + used, whole ? text + i : REPLACEMENT, whole ? length : 3);
        used += whole ? length : 3;
    }
    buffer[used] = '\0';
    return buffer;
}

int32_t utf8_decode(const char *text, size_t *length)
{
    const unsigned char *p = (const unsigned char *)text;
    switch (*length = utf8_length(text[0])) {
    case 1:
        return p[0];
    case 2:
        return (p[0] & 0x1f) << 6 | (p[1] & 0x3f);
    case 3:
        return (p[0] & 0x0f) << 12 | (p[1] & 0x3f) << 6 | (p[2] & 0x3f);
    default:
        return (p[0] & 0x07) << 18 | (p[1] & 0x3f) << 12 | (p[2] & 0x3f) << 6 | (p[3] & 0x3f);
    }
}

size_t utf8_encode(int32_t code_point, char *bytes)
{
    unsigned char *p = (unsigned char *)bytes;
    uint32_t c = (uint32_t)code_point;
    if (c < 0x80) {
        p[0] = (unsigned char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char marker[5] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = n - 1; i > 0; i--, c >>= 6) p[i] = (unsigned char)(0x80 | (c & 0x3f));
    p[0] = (unsigned char)(marker[n] | c);
    return n;
}

/* ---- texts and streams ---- */

void calla_text_free(calla_text *text)
{
    free(text->data);
    *text = (calla_text){0};
}

/* Feeds one byte to what is held. The byte either continues it, completes it, or shows that it is
 * broken, and then starts anew. */
static void stream_feed(calla_utf8_stream *s, char byte, strbuf *out)
{
    char *held = (char *)s->held;
    size_t length;
    held[s->n_held++] = byte;
    utf8_kind kind = utf8_next(held, (size_t)s->n_held, &length);
    if (kind == UTF8_BROKEN && s->n_held > 1) { /* what was held was valid so far: all but `byte` */
        strbuf_puts(out, REPLACEMENT);
        held[0] = byte;
        s->n_held = 1;
        kind = utf8_next(held, 1, &length);
    }
    if (kind == UTF8_CUT) return;
    if (kind == UTF8_WHOLE)
        strbuf_append(out, held, length);
    else
        strbuf_puts(out, REPLACEMENT);
    s->n_held = 0;
}

static calla_status stream_take(calla_utf8_stream *stream, const calla_utf8_stream *after,
                                strbuf *out, calla_text *text, calla_error *err)
{
    char *data;
    size_t n;
    CALLA_TRY(strbuf_take(out, &data, &n, err));
    *text = (calla_text){data, n};
    *stream = *after;
    return CALLA_OK;
}

calla_status calla_utf8_stream_push(calla_utf8_stream *stream, const char *bytes, size_t n_bytes,
                                    calla_text *text, calla_error *err)
{
    strbuf out = {0};
    calla_utf8_stream s = *stream;
    for (size_t i = 0; i < n_bytes; i++) stream_feed(&s, bytes[i], &out);
    return stream_take(stream, &s, &out, text, err);
}

calla_status calla_utf8_stream_finish(calla_utf8_stream *stream, calla_text *text, calla_error *err)
{
    strbuf out = {0};
    calla_utf8_stream s = {0};
    if (stream->n_held > 0) strbuf_puts(&out, REPLACEMENT);
    return stream_take(stream, &s, &out, text, err);
}
