#include "base/json.h"

#include <string.h>

/* Large integers take a detour. If the text has one, it is rewritten before jansson sees it: the
 * digits become a string that starts with NUL, and strings that start with NUL themselves get a
 * second one, so that afterwards the two cannot be confused. (A string can start with NUL only in
 * the form \u0000, a raw control character is an error.) In the tree the former are replaced by
 * marker objects and the latter lose the added NUL. The marker's key is not UTF-8, so no text has
 * it. */
#define NUL_ESCAPE "\\u0000"
#define MARKER_KEY "\xff integer"

enum { INT64_DIGITS = 19 };

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Whether the integer at text [n_bytes], which starts with a digit, is written as JSON wants and
 * exceeds 64 bits; *n_digits counts its digits either way. */
static bool integer_is_big(const char *text, size_t n_bytes, bool negative, size_t *n_digits)
{
    size_t n = 0;
    while (n < n_bytes && is_digit(text[n])) n++;
    *n_digits = n;
    if (n < INT64_DIGITS || text[0] == '0') return false;
    if (n < n_bytes && (text[n] == '.' || text[n] == 'e' || text[n] == 'E')) return false;
    if (n > INT64_DIGITS) return true;
    return memcmp(text, negative ? "9223372036854775808" : "9223372036854775807", n) > 0;
}

/* A walk over the tokens of a JSON text that matter here. */
typedef struct scanner {
    const char *text;
    size_t n_bytes, at;
} scanner;

typedef enum token_kind { TOKEN_END, TOKEN_BIG_INTEGER, TOKEN_NUL_STRING } token_kind;

static void skip_string(scanner *s)
{
    for (s->at++; s->at < s->n_bytes && s->text[s->at] != '"'; s->at++) {
        if (s->text[s->at] == '\\') s->at++;
    }
    s->at++;
    if (s->at > s->n_bytes) s->at = s->n_bytes;
}

/* The next large integer, or string that starts with NUL; it is text[*begin .. s->at). */
static token_kind next_token(scanner *s, size_t *begin)
{
    while (s->at < s->n_bytes) {
        char c = s->text[s->at];
        *begin = s->at;
        if (c == '"') {
            bool nul = s->n_bytes - s->at > strlen(NUL_ESCAPE) &&
                       memcmp(s->text + s->at + 1, NUL_ESCAPE, strlen(NUL_ESCAPE)) == 0;
            skip_string(s);
            if (nul) return TOKEN_NUL_STRING;
        } else if (is_digit(c)) {
            size_t n_digits;
            bool negative = s->at > 0 && s->text[s->at - 1] == '-';
            bool big = integer_is_big(s->text + s->at, s->n_bytes - s->at, negative, &n_digits);
            s->at += n_digits;
            /* A fraction's or exponent's digits are no integer. */
            while (!big && s->at < s->n_bytes && memchr("0123456789.eE+-", s->text[s->at], 15))
                s->at++;
            *begin -= negative;
            if (big) return TOKEN_BIG_INTEGER;
        } else {
            s->at++;
        }
    }
    return TOKEN_END;
}

/* Rewrites text into *out. Stops when *out has grown beyond `limit` bytes and returns the offset in
 * `text` that corresponds to it. */
static size_t rewrite(const char *text, size_t n_bytes, size_t limit, strbuf *out)
{
    scanner s = {text, n_bytes, 0};
    size_t done = 0, begin = 0;
    for (;;) {
        token_kind kind = next_token(&s, &begin);
        size_t end = kind == TOKEN_END ? n_bytes : begin;
        if (out->n + (end - done) > limit) return done + (limit - out->n);
        strbuf_append(out, text + done, end - done);
        if (kind == TOKEN_END) return n_bytes;
        strbuf_puts(out, "\"" NUL_ESCAPE);
        if (kind == TOKEN_BIG_INTEGER) {
            strbuf_append(out, text + begin, s.at - begin);
            strbuf_putc(out, '"');
        } else {
            strbuf_append(out, text + begin + 1, s.at - begin - 1);
        }
        done = s.at;
        if (out->n > limit) return begin;
    }
}

/* Finds whether there is a large integer at all, and refuses one that is too large. */
static calla_status check_integers(const char *text, size_t n_bytes, const char *what, bool *any,
                                   calla_error *err)
{
    scanner s = {text, n_bytes, 0};
    size_t begin = 0;
    *any = false;
    for (token_kind kind; (kind = next_token(&s, &begin)) != TOKEN_END;) {
        if (kind != TOKEN_BIG_INTEGER) continue;
        *any = true;
        size_t n_digits = s.at - begin - (text[begin] == '-');
        if (n_digits > JSON_MAX_DIGITS)
            return error_set(err, CALLA_ERR_INPUT,
                             "%s: integer of %zu digits at byte %zu, at most %d are allowed", what,
                             n_digits, begin, (int)JSON_MAX_DIGITS);
    }
    return CALLA_OK;
}

static json_t *marker_create(const char *digits, size_t n_digits)
{
    json_t *marker = json_object();
    if (marker &&
        json_object_set_new_nocheck(marker, MARKER_KEY, json_stringn(digits, n_digits)) != 0) {
        json_decref(marker);
        return NULL;
    }
    return marker;
}

/* Undoes the rewriting in a tree. Takes *slot's reference and stores the one that replaces it;
 * false when out of memory. Recursion is bounded by the parser's depth limit. */
static bool restore_tree(json_t **slot)
{
    json_t *value = *slot;
    if (json_is_string(value)) {
        const char *text = json_string_value(value);
        size_t n = json_string_length(value);
        if (n == 0 || text[0] != '\0') return true;
        bool was_string = n > 1 && text[1] == '\0';
        json_t *other = was_string ? json_stringn(text + 1, n - 1) : marker_create(text + 1, n - 1);
        if (!other) return false;
        json_decref(value);
        *slot = other;
        return true;
    }
    if (json_is_array(value)) {
        for (size_t i = 0; i < json_array_size(value); i++) {
            json_t *item = json_incref(json_array_get(value, i));
            if (!restore_tree(&item)) {
                json_decref(item);
                return false;
            }
            if (json_array_set_new(value, i, item) != 0) return false;
        }
    } else if (json_is_object(value)) {
        for (void *i = json_object_iter(value); i; i = json_object_iter_next(value, i)) {
            json_t *item = json_incref(json_object_iter_value(i));
            if (!restore_tree(&item)) {
                json_decref(item);
                return false;
            }
            if (json_object_iter_set_new(value, i, item) != 0) return false;
        }
    }
    return true;
}

static calla_status report(const json_error_t *e, const char *what, size_t offset, calla_error *err)
{
    if (json_error_code(e) == json_error_out_of_memory)
        return error_set(err, CALLA_ERR_MEMORY, "%s: no memory for its JSON", what);
    return error_set(err, CALLA_ERR_INPUT, "%s: not valid JSON: %s (line %d, byte %zu)", what,
                     e->text, e->line, offset);
}

static calla_status parse(const char *text, size_t n_bytes, const char *what, size_t flags,
                          json_t **value, calla_error *err)
{
    bool any;
    CALLA_TRY(check_integers(text, n_bytes, what, &any, err));
    calla_status status = CALLA_OK;
    strbuf rewritten = {0};
    json_error_t e;
    json_t *tree = NULL;
    if (any) {
        rewrite(text, n_bytes, SIZE_MAX, &rewritten);
        if (rewritten.failed) {
            status = error_set(err, CALLA_ERR_MEMORY, "%s: no memory for its JSON", what);
            goto done;
        }
    }
    tree = any ? json_loadb(rewritten.data, rewritten.n, flags, &e)
               : json_loadb(text, n_bytes, flags, &e);
    if (!tree) {
        size_t offset = e.position > 0 ? (size_t)e.position : 0;
        if (any) {
            strbuf_clear(&rewritten);
            offset = rewrite(text, n_bytes, offset, &rewritten);
        }
        status = report(&e, what, offset, err);
        goto done;
    }
    if (any && !restore_tree(&tree)) {
        status = error_set(err, CALLA_ERR_MEMORY, "%s: no memory for its JSON", what);
        goto done;
    }
    *value = tree;
    tree = NULL;
done:
    json_decref(tree);
    strbuf_free(&rewritten);
    return status;
}

calla_status json_parse_text(const char *text, size_t n_bytes, const char *what, json_t **value,
                             calla_error *err)
{
    return parse(text, n_bytes, what, JSON_ALLOW_NUL | JSON_DECODE_ANY, value, err);
}

calla_status json_parse_unique(const char *text, size_t n_bytes, const char *what, json_t **value,
                               calla_error *err)
{
    const size_t flags = JSON_ALLOW_NUL | JSON_DECODE_ANY | JSON_REJECT_DUPLICATES;
    return parse(text, n_bytes, what, flags, value, err);
}

bool json_is_big_integer(const json_t *value)
{
    return json_is_object(value) && json_object_get(value, MARKER_KEY);
}

bool json_is_mapping(const json_t *value)
{
    return json_is_object(value) && !json_is_big_integer(value);
}

bool json_is_text(const json_t *value, const char *text)
{
    return json_is_string(value) && json_string_length(value) == strlen(text) &&
           strcmp(json_string_value(value), text) == 0;
}

const char *json_kind_name(const json_t *value)
{
    if (!value) return "nothing";
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return json_is_big_integer(value) ? "an integer" : "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a number";
    case JSON_NULL:
        return "null";
    default:
        return json_is_true(value) ? "true" : "false";
    }
}

/* ---- writing ---- */

void json_write_escaped(strbuf *out, const char *text, size_t n_bytes)
{
    size_t done = 0;
    if (n_bytes == 0) return; /* text may be NULL then */
    for (size_t i = 0; i < n_bytes; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        strbuf_append(out, text + done, i - done);
        done = i + 1;
        static const char plain[] = "\"\\\n\r\t\f\b", letter[] = "\"\\nrtfb";
        const char *p = c ? strchr(plain, c) : NULL;
        if (p) {
            const char pair[2] = {'\\', letter[p - plain]};
            strbuf_append(out, pair, 2);
        } else {
            strbuf_printf(out, "\\u%04x", c);
        }
    }
    strbuf_append(out, text + done, n_bytes - done);
}

void json_write_string(strbuf *out, const char *text, size_t n_bytes)
{
    strbuf_putc(out, '"');
    json_write_escaped(out, text, n_bytes);
    strbuf_putc(out, '"');
}

static void write_array(strbuf *out, const json_t *array)
{
    strbuf_putc(out, '[');
    for (size_t i = 0; i < json_array_size(array); i++) {
        if (i > 0) strbuf_puts(out, ", ");
        json_write_value(out, json_array_get(array, i));
    }
    strbuf_putc(out, ']');
}

static void write_object(strbuf *out, const json_t *object)
{
    const json_t *digits = json_object_get(object, MARKER_KEY);
    if (digits) {
        strbuf_append(out, json_string_value(digits), json_string_length(digits));
        return;
    }
    strbuf_putc(out, '{');
    json_t *o = (json_t *)object; /* jansson's iterators want it mutable */
    void *first = json_object_iter(o);
    for (void *i = first; i; i = json_object_iter_next(o, i)) {
        if (i != first) strbuf_puts(out, ", ");
        json_write_string(out, json_object_iter_key(i), json_object_iter_key_len(i));
        strbuf_puts(out, ": ");
        json_write_value(out, json_object_iter_value(i));
    }
    strbuf_putc(out, '}');
}

/* Recursion is bounded by JSON_MAX_DEPTH, the deepest tree there is. */
void json_write_value(strbuf *out, const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        write_object(out, value);
        break;
    case JSON_ARRAY:
        write_array(out, value);
        break;
    case JSON_STRING:
        json_write_string(out, json_string_value(value), json_string_length(value));
        break;
    case JSON_INTEGER:
        strbuf_printf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        break;
    case JSON_REAL:
        json_write_real(out, json_real_value(value));
        break;
    case JSON_TRUE:
        strbuf_puts(out, "true");
        break;
    case JSON_FALSE:
        strbuf_puts(out, "false");
        break;
    case JSON_NULL:
        strbuf_puts(out, "null");
        break;
    }
}
