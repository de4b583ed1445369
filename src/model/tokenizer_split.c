/* The pre-tokenizer: cutting text into pieces by the pattern of tokenizer.json (MODEL.md 5.3, rule
 * 3), run by PCRE2.
 *
 * The pattern is written for Oniguruma. PCRE2 reads most of it alike; what it reads differently is
 * either rewritten (\s and \S: Unicode's White_Space, without the U+180E that PCRE2 adds) or
 * refused. The two patterns in use are linear in the text: each character is looked at by a bounded
 * number of alternatives, and the only ones that step back (a run of white space) consume what they
 * stepped over. Another pattern may be slower; PCRE2's match limit then ends it. */
#include "base/memory.h"
#include "model/tokenizer.h"
#include "model/utf8.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- rewriting ---- */

#define SPACE                                                                                      \
    "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}"       \
    "\\x{3000}"
#define NOT_SPACE                                                                                  \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}!-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}"      \
    "\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}"                 \
    "\\x{3001}-\\x{10ffff}"

typedef struct rewriter {
    const char *pattern;
    size_t n_bytes, at;
    strbuf *out;
    calla_error *err;
} rewriter;

static calla_status refuse(const rewriter *r, size_t begin, size_t n)
{
    char seen[UTF8_SHOWN_BYTES], all[UTF8_SHOWN_BYTES];
    while (begin + n < r->n_bytes && ((unsigned char)r->pattern[begin + n] & 0xc0) == 0x80) n++;
    if (n > r->n_bytes - begin) n = r->n_bytes - begin;
    return error_set(
        r->err, CALLA_ERR_INPUT, "'%s' at byte %zu of the pattern '%s' is not supported",
        utf8_show(r->pattern + begin, n, seen), begin, utf8_show(r->pattern, r->n_bytes, all));
}

static bool starts(const rewriter *r, const char *text)
{
    size_t n = strlen(text);
    return r->n_bytes - r->at >= n && memcmp(r->pattern + r->at, text, n) == 0;
}

static bool is_alphanumeric(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static void copy(rewriter *r, size_t n)
{
    strbuf_append(r->out, r->pattern + r->at, n);
    r->at += n;
}

/* \p{L}, \P{Lu}: general categories only. */
static calla_status rewrite_property(rewriter *r)
{
    const char *p = r->pattern + r->at;
    size_t left = r->n_bytes - r->at, n = left > 4 && p[4] == '}' ? 5 : 6;
    bool fits = left >= n && p[2] == '{' && p[n - 1] == '}' && strchr("LMNPSZC", p[3]) && p[3];
    if (fits && n == 6) fits = p[4] >= 'a' && p[4] <= 'z';
    if (!fits) return refuse(r, r->at, 6);
    copy(r, n);
    return CALLA_OK;
}

static calla_status rewrite_escape(rewriter *r, bool in_class)
{
    if (r->n_bytes - r->at < 2) return refuse(r, r->at, 1);
    char c = r->pattern[r->at + 1];
    switch (c) {
    case 's':
    case 'S': {
        const char *set = c == 's' ? SPACE : NOT_SPACE;
        strbuf_printf(r->out, in_class ? "%s" : "[%s]", set);
        r->at += 2;
        return CALLA_OK;
    }
    case 'p':
    case 'P':
        return rewrite_property(r);
    case 'r':
    case 'n':
    case 't':
        copy(r, 2);
        return CALLA_OK;
    default:
        if (is_alphanumeric(c) || (unsigned char)c >= 0x80) return refuse(r, r->at, 2);
        copy(r, 2);
        return CALLA_OK;
    }
}

/* Unions of characters, ranges and classes; not Oniguruma's nested classes and intersections. */
static calla_status rewrite_class(rewriter *r)
{
    size_t begin = r->at;
    copy(r, starts(r, "[^") ? 2 : 1);
    if (starts(r, "]")) return refuse(r, begin, r->at - begin + 1);
    while (r->at < r->n_bytes) {
        char c = r->pattern[r->at];
        if (c == ']') {
            copy(r, 1);
            return CALLA_OK;
        }
        if (c == '[' || starts(r, "&&")) return refuse(r, r->at, 2);
        if (c == '\\')
            CALLA_TRY(rewrite_escape(r, true));
        else
            copy(r, 1);
    }
    return refuse(r, begin, r->n_bytes);
}

static calla_status rewrite_group(rewriter *r)
{
    static const char *const openings[] = {"(?:", "(?i:", "(?=", "(?!"};
    for (size_t i = 0; i < sizeof openings / sizeof openings[0]; i++) {
        if (starts(r, openings[i])) {
            copy(r, strlen(openings[i]));
            return CALLA_OK;
        }
    }
    return refuse(r, r->at, 4);
}

/* {2}, {1,3}, {1,}; "{1,3}+" repeats in one dialect and is possessive in the other. */
static calla_status rewrite_counts(rewriter *r)
{
    size_t i = r->at + 1, commas = 0;
    while (i < r->n_bytes && ((r->pattern[i] >= '0' && r->pattern[i] <= '9') ||
                              (r->pattern[i] == ',' && commas++ == 0 && i > r->at + 1)))
        i++;
    bool closed = i < r->n_bytes && r->pattern[i] == '}' && i > r->at + 1;
    if (!closed || (i + 1 < r->n_bytes && r->pattern[i + 1] == '+')) return refuse(r, r->at, 8);
    copy(r, i + 1 - r->at);
    return CALLA_OK;
}

calla_status pattern_rewrite(const char *pattern, size_t n_bytes, strbuf *out, calla_error *err)
{
    if (n_bytes == 0 || n_bytes > TOKENIZER_MAX_PATTERN_BYTES)
        return error_set(err, CALLA_ERR_INPUT, "the pattern has %zu bytes, expected 1 to %d",
                         n_bytes, TOKENIZER_MAX_PATTERN_BYTES);
    rewriter r = {pattern, n_bytes, 0, out, err};
    while (r.at < n_bytes) {
        switch (pattern[r.at]) {
        case '\\':
            CALLA_TRY(rewrite_escape(&r, false));
            break;
        case '[':
            CALLA_TRY(rewrite_class(&r));
            break;
        case '(':
            CALLA_TRY(rewrite_group(&r));
            break;
        case '{':
            CALLA_TRY(rewrite_counts(&r));
            break;
        case '^':
        case '$':
        case '.':
        case '\0':
            return refuse(&r, r.at, 1);
        default:
            copy(&r, 1);
        }
    }
    return CALLA_OK;
}

/* ---- compiling ---- */

calla_status splitter_init(splitter *s, const char *pattern, size_t n_bytes, calla_error *err)
{
    strbuf rewritten = {0};
    char *text = NULL, message[128], shown[UTF8_SHOWN_BYTES];
    size_t n = 0, at;
    int code;
    uint32_t matches_empty = 0;
    calla_status status = pattern_rewrite(pattern, n_bytes, &rewritten, err);
    if (status != CALLA_OK) {
        strbuf_free(&rewritten);
        return status;
    }
    CALLA_TRY(strbuf_take(&rewritten, &text, &n, err));
    s->code = pcre2_compile((PCRE2_SPTR)text, n, PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C,
                            &code, &at, NULL);
    free(text);
    if (!s->code) {
        pcre2_get_error_message(code, (PCRE2_UCHAR *)message, sizeof message);
        return error_set(err, CALLA_ERR_INPUT,
                         "the pattern '%s' does not compile: %s at byte %zu of its rewritten form",
                         utf8_show(pattern, n_bytes, shown), message, at);
    }
    pcre2_pattern_info(s->code, PCRE2_INFO_MATCHEMPTY, &matches_empty);
    if (matches_empty) {
        splitter_deinit(s);
        return error_set(err, CALLA_ERR_INPUT, "the pattern '%s' matches the empty text",
                         utf8_show(pattern, n_bytes, shown));
    }
    /* Where the system forbids making code the matches are interpreted, with equal results. */
    pcre2_jit_compile(s->code, PCRE2_JIT_COMPLETE);
    return CALLA_OK;
}

void splitter_deinit(splitter *s)
{
    pcre2_code_free(s->code);
    s->code = NULL;
}

/* ---- cutting ---- */

enum { MIN_MATCH_LIMIT = 10000, MATCH_LIMIT_PER_BYTE = 8 };

calla_status split_init(split_pass *s, const splitter *by, calla_error *err)
{
    *s = (split_pass){.code = by->code};
    s->match = pcre2_match_data_create(1, NULL);
    s->context = pcre2_match_context_create(NULL);
    if (s->match && s->context) return CALLA_OK;
    split_deinit(s);
    return error_set(err, CALLA_ERR_MEMORY, "no memory for cutting a text");
}

void split_deinit(split_pass *s)
{
    pcre2_match_data_free(s->match);
    pcre2_match_context_free(s->context);
    strbuf_free(&s->shadow);
    *s = (split_pass){0};
}

/* Finds the next match from s->at on. */
static calla_status find_match(split_pass *s, calla_error *err)
{
    int result;
    /* Checking the text's UTF-8 again at each match would take quadratic time. */
    uint32_t options = PCRE2_NO_UTF_CHECK;
    for (;;) {
        result = pcre2_match(s->code, (PCRE2_SPTR)s->subject, s->n_bytes, s->at, options, s->match,
                             s->context);
        if (result != PCRE2_ERROR_JIT_STACKLIMIT) break;
        options |= PCRE2_NO_JIT; /* the interpreter keeps its stack on the heap */
    }
    if (result == PCRE2_ERROR_NOMATCH) {
        s->match_begin = s->match_end = s->n_bytes;
        return CALLA_OK;
    }
    if (result < 0) {
        char message[128];
        pcre2_get_error_message(result, (PCRE2_UCHAR *)message, sizeof message);
        return error_set(err, CALLA_ERR_INPUT,
                         "cutting %zu bytes of text by the tokenizer's pattern: %s at byte %zu",
                         s->n_bytes, message, s->at);
    }
    const PCRE2_SIZE *found = pcre2_get_ovector_pointer(s->match);
    s->match_begin = found[0];
    s->match_end = found[1];
    assert(s->match_begin >= s->at && s->match_end > s->match_begin);
    return CALLA_OK;
}

calla_status split_begin(split_pass *s, const char *text, size_t n_bytes, calla_error *err)
{
    s->subject = text;
    s->n_bytes = n_bytes;
    s->at = s->match_begin = s->match_end = 0;
    size_t limit = n_bytes < (UINT32_MAX - MIN_MATCH_LIMIT) / MATCH_LIMIT_PER_BYTE
                       ? MIN_MATCH_LIMIT + n_bytes * MATCH_LIMIT_PER_BYTE
                       : UINT32_MAX;
    pcre2_set_match_limit(s->context, (uint32_t)limit);
    if (!unicode_has_newer(text, n_bytes)) return CALLA_OK;
    strbuf_clear(&s->shadow);
    unicode_append_older(&s->shadow, text, n_bytes);
    if (s->shadow.failed) return error_set(err, CALLA_ERR_MEMORY, "no memory for cutting a text");
    assert(s->shadow.n == n_bytes);
    s->subject = s->shadow.data;
    return CALLA_OK;
}

calla_status split_next(split_pass *s, size_t *begin, size_t *end, calla_error *err)
{
    *begin = s->at;
    if (s->at < s->n_bytes) {
        if (s->at == s->match_end) CALLA_TRY(find_match(s, err));
        /* What lies between two matches is a piece too. */
        s->at = s->at < s->match_begin ? s->match_begin : s->match_end;
    }
    *end = s->at;
    return CALLA_OK;
}
