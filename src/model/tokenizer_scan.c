#include "model/tokenizer_scan.h"

#include "model/utf8.h"

#include <string.h>

/* ---- finding the tables ---- */

/* The end of the string whose opening quote is at `at`: one past its closing quote, or n_bytes. */
static size_t skip_string(const char *text, size_t n_bytes, size_t at)
{
    for (at++; at < n_bytes && text[at] != '"'; at++)
        if (text[at] == '\\') at++;
    return at < n_bytes ? at + 1 : n_bytes;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static size_t skip_space(const char *text, size_t n_bytes, size_t at)
{
    while (at < n_bytes && is_space(text[at])) at++;
    return at;
}

/* The end of the object or array at `at`. */
static size_t skip_container(const char *text, size_t n_bytes, size_t at)
{
    for (size_t depth = 0; at < n_bytes;) {
        char c = text[at];
        if (c == '"') {
            at = skip_string(text, n_bytes, at);
            continue;
        }
        at++;
        if (c == '{' || c == '[')
            depth++;
        else if ((c == '}' || c == ']') && --depth == 0)
            break;
    }
    return at;
}

static bool is_string(const char *text, size_t begin, size_t end, const char *value)
{
    size_t n = strlen(value);
    return end - begin == n + 2 && memcmp(text + begin + 1, value, n) == 0;
}

void scan_find_tables(const char *text, size_t n_bytes, text_range *vocab, text_range *merges)
{
    size_t depth = 0;
    bool in_model = false;
    for (size_t at = 0; at < n_bytes;) {
        char c = text[at];
        if (c != '"') {
            at++;
            if (c == '{' || c == '[')
                depth++;
            else if ((c == '}' || c == ']') && depth > 0)
                depth--;
            continue;
        }
        size_t end = skip_string(text, n_bytes, at), value = skip_space(text, n_bytes, end);
        if (value < n_bytes && text[value] == ':' && depth <= 2) {
            value = skip_space(text, n_bytes, value + 1);
            if (depth == 1) in_model = is_string(text, at, end, "model");
            text_range *found = NULL;
            if (depth == 2 && in_model && value < n_bytes) {
                if (text[value] == '{' && is_string(text, at, end, "vocab")) found = vocab;
                if (text[value] == '[' && is_string(text, at, end, "merges")) found = merges;
            }
            if (found && found->end == 0) {
                *found = (text_range){value, skip_container(text, n_bytes, value)};
                end = found->end;
            }
        }
        at = end;
    }
}

/* ---- reading them ---- */

calla_status scan_error(scan_cursor *c, const char *expected)
{
    if (c->at >= c->end)
        return error_set(c->err, CALLA_ERR_INPUT, "%s: model.%s ends at byte %zu, expected %s",
                         c->path, c->table, c->at, expected);
    char shown[UTF8_SHOWN_BYTES];
    return error_set(
        c->err, CALLA_ERR_INPUT, "%s: model.%s: '%s' at byte %zu, expected %s", c->path, c->table,
        utf8_show(c->text + c->at, utf8_length(c->text[c->at]), shown), c->at, expected);
}

/* The next byte that is not blank, not consumed; NUL at the end. */
static char peek(scan_cursor *c)
{
    c->at = skip_space(c->text, c->end, c->at);
    return c->at < c->end ? c->text[c->at] : '\0';
}

bool scan_accept(scan_cursor *c, char byte)
{
    if (peek(c) != byte) return false;
    c->at++;
    return true;
}

static bool hex4(const char *p, const char *end, int32_t *value)
{
    *value = 0;
    if (end - p < 4) return false;
    for (int i = 0; i < 4; i++) {
        int d = p[i] >= '0' && p[i] <= '9'   ? p[i] - '0'
                : p[i] >= 'a' && p[i] <= 'f' ? p[i] - 'a' + 10
                : p[i] >= 'A' && p[i] <= 'F' ? p[i] - 'A' + 10
                                             : -1;
        if (d < 0) return false;
        *value = *value << 4 | d;
    }
    return true;
}

/* Appends the character of the escape whose backslash is at c->at to the scratch string. */
static calla_status unescape(scan_cursor *c)
{
    static const char letters[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    const char *p = c->text + c->at + 1, *end = c->text + c->end;
    const char *letter = p < end && *p ? strchr(letters, *p) : NULL;
    if (letter) {
        strbuf_putc(&c->scratch, values[letter - letters]);
        c->at += 2;
        return CALLA_OK;
    }
    int32_t point, low;
    if (p >= end || *p != 'u' || !hex4(p + 1, end, &point)) return scan_error(c, "an escape");
    c->at += 6;
    if (point >= 0xd800 && point < 0xdc00 && end - p > 11 && p[5] == '\\' && p[6] == 'u' &&
        hex4(p + 7, end, &low) && low >= 0xdc00 && low < 0xe000) {
        point = 0x10000 + ((point - 0xd800) << 10) + (low - 0xdc00);
        c->at += 6;
    } else if (point >= 0xd800 && point < 0xe000) {
        c->at -= 6;
        return scan_error(c, "a pair of surrogates");
    }
    char bytes[4];
    strbuf_append(&c->scratch, bytes, utf8_encode(point, bytes));
    return CALLA_OK;
}

calla_status scan_string(scan_cursor *c, const char **string, size_t *n)
{
    if (!scan_accept(c, '"')) return scan_error(c, "a string");
    size_t begin = c->at;
    bool escaped = false;
    while (c->at < c->end && c->text[c->at] != '"') {
        if ((unsigned char)c->text[c->at] < 0x20) return scan_error(c, "no control character");
        if (c->text[c->at] != '\\') {
            if (escaped) strbuf_putc(&c->scratch, c->text[c->at]);
            c->at++;
            continue;
        }
        if (!escaped) {
            strbuf_clear(&c->scratch);
            strbuf_append(&c->scratch, c->text + begin, c->at - begin);
            escaped = true;
        }
        CALLA_TRY(unescape(c));
    }
    if (c->at >= c->end) return scan_error(c, "a closing quote");
    if (escaped && c->scratch.failed)
        return error_set(c->err, CALLA_ERR_MEMORY, "%s: no memory for a string", c->path);
    *string = escaped ? c->scratch.data : c->text + begin;
    *n = escaped ? c->scratch.n : c->at - begin;
    c->at++;
    return CALLA_OK;
}

calla_status scan_number(scan_cursor *c, int32_t max, int32_t *number)
{
    char first = peek(c);
    int64_t value = 0;
    size_t begin = c->at;
    for (; c->at < c->end && c->text[c->at] >= '0' && c->text[c->at] <= '9'; c->at++)
        if (value <= max) value = value * 10 + (c->text[c->at] - '0');
    size_t n = c->at - begin;
    if (n == 0 || (first == '0' && n > 1)) return scan_error(c, "a whole number");
    if (value > max) {
        char shown[UTF8_SHOWN_BYTES];
        return error_set(c->err, CALLA_ERR_INPUT, "%s: model.%s: %s at byte %zu, expected 0 to %d",
                         c->path, c->table, utf8_show(c->text + begin, n, shown), begin, max);
    }
    *number = (int32_t)value;
    return CALLA_OK;
}
