#include "hybrid/placeholder.h"

#include <string.h>

enum { NAME_BYTES = 20, MAX_NUMBER_DIGITS = 7 };

static const char *type_name(int type)
{
    return type == PLACEHOLDER_TEXT ? "TEXT" : detect_category_placeholder((detect_category)type);
}

void placeholder_write(strbuf *out, int type, uint32_t number)
{
    strbuf_printf(out, "[%s_%u]", type_name(type), (unsigned)number);
}

/* Whether name [n], '_' at its end or not, begins some type's name and '_'. */
static bool is_beginning(const char *name, size_t n)
{
    for (int type = 0; type < PLACEHOLDER_N_TYPES; type++) {
        const char *whole = type_name(type);
        size_t length = strlen(whole);
        if (n <= length
                ? memcmp(name, whole, n) == 0
                : n == length + 1 && memcmp(name, whole, length) == 0 && name[length] == '_')
            return true;
    }
    return false;
}

/* The type with name [n]; -1 if there is none. */
static int type_of_name(const char *name, size_t n)
{
    for (int type = 0; type < PLACEHOLDER_N_TYPES; type++)
        if (strlen(type_name(type)) == n && memcmp(name, type_name(type), n) == 0) return type;
    return -1;
}

/* Backslashes at `at`, of at most two: Markdown's escape, or that in a JSON string. */
static size_t escape_bytes(const char *text, size_t n_bytes, size_t at)
{
    size_t n = 0;
    while (n < 2 && at + n < n_bytes && text[at + n] == '\\') n++;
    return n;
}

/* Reads a name up to the digit after its last '_'; *at moves to that digit. */
static placeholder_match read_name(const char *text, size_t n_bytes, size_t *at, int *type)
{
    char name[NAME_BYTES];
    size_t n = 0;
    for (size_t i = *at;; i++) {
        size_t escape = escape_bytes(text, n_bytes, i);
        i += escape;
        if (i == n_bytes) {
            if (escape) name[n++] = '_'; /* the only thing that is escaped here */
            return is_beginning(name, n) ? PLACEHOLDER_CUT : PLACEHOLDER_NONE;
        }
        char c = text[i];
        if (escape && c != '_') return PLACEHOLDER_NONE;
        if (c >= '0' && c <= '9') {
            *at = i;
            *type = n > 1 && name[n - 1] == '_' ? type_of_name(name, n - 1) : -1;
            return *type < 0 ? PLACEHOLDER_NONE : PLACEHOLDER_FOUND;
        }
        if (c >= 'a' && c <= 'z') c = (char)(c - 'a' + 'A');
        name[n++] = c;
        /* So n stays below the longest name's length and two. */
        if (!is_beginning(name, n)) return PLACEHOLDER_NONE;
    }
}

placeholder_match placeholder_read(const char *text, size_t n_bytes, placeholder *p)
{
    size_t lead = escape_bytes(text, n_bytes, 0), at = lead;
    if (at == n_bytes) return PLACEHOLDER_CUT;
    if (text[at++] != '[') return PLACEHOLDER_NONE;
    placeholder_match match = read_name(text, n_bytes, &at, &p->type);
    if (match != PLACEHOLDER_FOUND) return match;
    p->number = 0;
    if (text[at] == '0') return PLACEHOLDER_NONE;
    for (size_t first = at; at < n_bytes && text[at] >= '0' && text[at] <= '9'; at++) {
        if (at - first == MAX_NUMBER_DIGITS) return PLACEHOLDER_NONE;
        p->number = 10 * p->number + (uint32_t)(text[at] - '0');
    }
    /* Brackets are both escaped, or none is: then a backslash before it is the text's own. */
    size_t close = escape_bytes(text, n_bytes, at);
    if (close > lead) return PLACEHOLDER_NONE;
    at += close;
    if (at == n_bytes) return PLACEHOLDER_CUT;
    if (close != lead || text[at] != ']') return PLACEHOLDER_NONE;
    p->n_bytes = at + 1;
    return PLACEHOLDER_FOUND;
}
