/* Addresses of e-mail (RFC 5321, as people write them). */
#include "hybrid/detect/scan.h"

#include <string.h>

enum { MAX_LOCAL = 64, MAX_DOMAIN = 253, MAX_LABEL = 63 };

static bool is_local(char c)
{
    return is_alnum(c) || (unsigned char)c >= 0x80 || (c && strchr("._%+-'&=!#$*/?^`{|}~", c));
}

static bool is_label(char c)
{
    return is_alnum(c) || c == '-' || (unsigned char)c >= 0x80;
}

/* The end of the domain that begins at `start`; `start` if there is none: two labels or more, the
 * last of letters. */
static size_t domain_end(const scan *s, size_t start)
{
    size_t end = start, i = start;
    while (i - start < MAX_DOMAIN) {
        size_t label = i;
        bool letters = true;
        for (; i < s->n && i - label < MAX_LABEL && is_label(s->text[i]); i++)
            letters = letters && (is_letter(s->text[i]) || (unsigned char)s->text[i] >= 0x80);
        if (i == label || s->text[label] == '-' || s->text[i - 1] == '-') break;
        if (label > start && i - label >= 2 &&
            (letters || (i - label > 4 && memcmp(s->text + label, "xn--", 4) == 0)))
            end = i;
        if (char_at(s, i) != '.') break;
        i++;
    }
    return end;
}

/* Where the local part that ends at `at` begins; `at` if there is none. */
static size_t local_start(const scan *s, size_t at)
{
    size_t start = at;
    while (start > 0 && at - start <= MAX_LOCAL && is_local(s->text[start - 1])) start--;
    if (at - start > MAX_LOCAL) start = at - MAX_LOCAL;
    /* What quotes, assigns or separates is not part of it. */
    for (size_t i = at; i > start; i--)
        if (s->text[i - 1] && strchr("'=/?{|}!#$*^`&~", s->text[i - 1]) &&
            !(s->text[i - 1] == '\'' && i - 1 > start && is_letter(s->text[i - 2]) && i < at)) {
            start = i;
            break;
        }
    while (start < at && !is_alnum(s->text[start]) && (unsigned char)s->text[start] < 0x80 &&
           s->text[start] != '_')
        start++;
    return start;
}

/* "scheme://user:" before it: then the local part is of a password (secrets.c). */
static bool is_in_url(const scan *s, size_t start)
{
    size_t i = start, least = start > MAX_LOCAL ? start - MAX_LOCAL : 0;
    bool colon = false;
    while (i > least && !is_space(s->text[i - 1]) && s->text[i - 1] != '/' &&
           s->text[i - 1] != '?') {
        i--;
        colon = colon || s->text[i] == ':';
    }
    return colon && i >= 3 && memcmp(s->text + i - 3, "://", 3) == 0;
}

void find_emails(scan *s)
{
    for (size_t i = 0; i < s->n; i++) {
        const char *at = memchr(s->text + i, '@', s->n - i);
        if (!at) break;
        i = (size_t)(at - s->text);
        size_t start = local_start(s, i), end = domain_end(s, i + 1);
        if (start == i || end == i + 1 || s->text[i - 1] == '.') continue;
        /* git@host:path is where a repository is. */
        if (i - start == 3 && memcmp(s->text + start, "git@", 4) == 0 &&
            (char_at(s, end) == ':' || char_at(s, end) == '/'))
            continue;
        /* //user:password@host is another matter (secrets.c), as is //user@host. */
        if (start >= 3 && memcmp(s->text + start - 3, "://", 3) == 0) continue;
        if (is_in_url(s, start)) continue;
        scan_add(s, DETECT_EMAIL, "email", start, end, 0.95);
    }
}
