/* Addresses of the internet (RFC 791, 4291) and of network cards (IEEE 802). */
#include "hybrid/detect/scan.h"

#include <arpa/inet.h>
#include <string.h>

static int hex_value(char c)
{
    if (is_digit(c)) return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool is_hex(char c)
{
    return hex_value(c) >= 0;
}

/* ---- IPv4 ---- */

/* "public", "private" or "documentation"; NULL for addresses of no machine in particular. */
static const char *ipv4_kind(const unsigned char a[4])
{
    if (a[0] == 0 || a[0] == 127 || a[0] >= 224) return NULL;
    if (a[0] == 10 || (a[0] == 192 && a[1] == 168) || (a[0] == 172 && a[1] / 16 == 1) ||
        (a[0] == 169 && a[1] == 254) || (a[0] == 100 && a[1] / 64 == 1))
        return "private";
    if ((a[0] == 192 && a[1] == 0 && a[2] == 2) || (a[0] == 198 && a[1] == 51 && a[2] == 100) ||
        (a[0] == 203 && a[1] == 0 && a[2] == 113))
        return "documentation";
    return "public";
}

/* The four numbers from word `at` on. */
static bool read_ipv4(const scan *s, size_t at, unsigned char a[4])
{
    if (at + 4 > s->n_words) return false;
    for (int k = 0; k < 4; k++) {
        const word *w = &s->words[at + (size_t)k];
        if (!word_is_number(w) || w->n > 3 || (k > 0 && w->gap != '.')) return false;
        if (w->n > 1 && s->text[w->start] == '0') return false;
        unsigned value = 0;
        for (size_t i = 0; i < w->n; i++)
            value = 10 * value + (unsigned)(s->text[w->start + i] - '0');
        if (value > 255) return false;
        a[k] = (unsigned char)value;
    }
    return true;
}

/* "Chrome/120.0.6099.109", "v1.2.3.4", "section 3.1.2.4": versions and headings have the form, too.
 */
static bool is_version(const scan *s, size_t start, const unsigned char a[4])
{
    char before = char_before(s, start);
    if (before == 'v' || before == '-' || before == '_') return true;
    if (before == '/' && !(start >= 2 && s->text[start - 2] == '/')) return true;
    /* Of the words before it the nearest says what it is. */
    size_t version, ip;
    bool named = scan_cue_before(s, CUE_IP, start, 40, &ip);
    if (scan_cue_before(s, CUE_VERSION, start, 24, &version) &&
        !(named && s->cues[CUE_IP].items[ip].end > s->cues[CUE_VERSION].items[version].end))
        return true;
    /* Headings, object identifiers (1.3.6.1) and most versions are of small numbers. */
    bool small = (a[0] < 10 && a[1] < 32 && a[2] < 32) || (a[0] == 1 && a[1] == 3) ||
                 (a[0] == 2 && (a[1] == 5 || a[1] == 16));
    bool resolver = (a[0] == 8 && a[1] == 8) || (a[0] == 1 && a[2] == a[1] && a[3] == 1) ||
                    (a[0] == 9 && a[1] == 9 && a[2] == 9);
    if (small && !resolver && !scan_cue_before(s, CUE_IP, start, 8, NULL)) return true;
    return false;
}

static void find_ipv4(scan *s)
{
    for (size_t i = 0; i + 4 <= s->n_words; i++) {
        unsigned char a[4];
        if (!read_ipv4(s, i, a)) continue;
        const word *last = &s->words[i + 3];
        size_t start = s->words[i].start, end = last->start + last->n;
        bool longer = (s->words[i].gap == '.' && i > 0) ||
                      (i + 4 < s->n_words && s->words[i + 4].gap == '.' &&
                       is_digit(s->text[s->words[i + 4].start]));
        const char *kind = ipv4_kind(a);
        if (!longer && kind && !is_version(s, start, a))
            scan_add(s, DETECT_IP_ADDRESS, kind, start, end, 0.93);
        i += 3;
    }
}

/* ---- IPv6 and MAC ---- */

enum { MAX_IPV6 = 45, MAC_BYTES = 17 };

static void try_ipv6(scan *s, size_t start, size_t end)
{
    char text[MAX_IPV6 + 1];
    unsigned char a[16];
    if (end - start > MAX_IPV6 || end - start < 6) return;
    memcpy(text, s->text + start, end - start);
    text[end - start] = '\0';
    if (inet_pton(AF_INET6, text, a) != 1) return;
    size_t n_digits = 0, n_colons = 0;
    for (size_t i = 0; i < end - start; i++) {
        n_digits += is_digit(text[i]);
        n_colons += text[i] == ':';
    }
    /* "a::b" is a name in some languages. */
    if (n_digits == 0 || (n_colons < 3 && (a[0] & 0xE0) != 0x20 && a[0] < 0xFC)) return;
    if (a[0] == 0xFF || (a[0] == 0 && a[1] == 0 && a[2] == 0 && a[3] == 0)) return;
    bool documentation = a[0] == 0x20 && a[1] == 0x01 && a[2] == 0x0D && a[3] == 0xB8;
    const char *kind = a[0] >= 0xFC ? "private" : documentation ? "documentation" : "public";
    scan_add(s, DETECT_IP_ADDRESS, kind, start, end, 0.95);
}

/* Six pairs of hexadecimal digits at `start`, the same byte between them. */
static bool is_mac(const scan *s, size_t start)
{
    if (start + MAC_BYTES > s->n) return false;
    const char *t = s->text + start;
    bool zeros = true, ones = true;
    for (size_t i = 0; i < MAC_BYTES; i++) {
        if (i % 3 == 2 ? t[i] != t[2] : !is_hex(t[i])) return false;
        zeros = zeros && (i % 3 == 2 || t[i] == '0');
        ones = ones && (i % 3 == 2 || (t[i] | 0x20) == 'f');
    }
    return !zeros && !ones;
}

/* Runs of hexadecimal digits and colons. */
static void find_colons(scan *s)
{
    for (size_t i = 0; i < s->n; i++) {
        const char *colon = memchr(s->text + i, ':', s->n - i);
        if (!colon) return;
        size_t start = (size_t)(colon - s->text), end = start;
        while (start > i && start > (size_t)(colon - s->text) - 4 && is_hex(s->text[start - 1]))
            start--;
        while (end < s->n && (is_hex(s->text[end]) || s->text[end] == ':' || s->text[end] == '.'))
            end++;
        i = end;
        /* What ends a sentence or begins a list is no part. */
        while (end > start &&
               (s->text[end - 1] == '.' ||
                (s->text[end - 1] == ':' && !(end - start > 2 && s->text[end - 2] == ':'))))
            end--;
        if (is_alnum(char_before(s, start)) || is_alnum(char_at(s, end)) || end <= start + 2)
            continue;
        if (end - start == MAC_BYTES && is_mac(s, start))
            scan_add(s, DETECT_MAC_ADDRESS, "mac", start, end, 0.95);
        else
            try_ipv6(s, start, end);
    }
}

static void find_dashed_macs(scan *s)
{
    for (size_t i = 0; i < s->n; i++) {
        const char *dash = memchr(s->text + i, '-', s->n - i);
        if (!dash) return;
        i = (size_t)(dash - s->text);
        if (i < 2 || !is_mac(s, i - 2)) continue;
        size_t end = i - 2 + MAC_BYTES;
        char before = char_before(s, i - 2), after = char_at(s, end);
        if (is_alnum(before) || before == '-' || is_alnum(after) || after == '-') continue;
        scan_add(s, DETECT_MAC_ADDRESS, "mac", i - 2, end, 0.95);
        i = end;
    }
}

/* "0011.2233.4455", where somebody speaks of such addresses. */
static void find_dotted_macs(scan *s)
{
    for (size_t i = 0; i < s->cues[CUE_MAC].n; i++) {
        size_t at = s->cues[CUE_MAC].items[i].end;
        for (size_t k = 0; k < 24 && at + 14 <= s->n; k++, at++) {
            const char *t = s->text + at;
            bool fits = !is_alnum(char_before(s, at)) && !is_alnum(char_at(s, at + 14));
            for (size_t j = 0; j < 14 && fits; j++) fits = j % 5 == 4 ? t[j] == '.' : is_hex(t[j]);
            if (!fits) continue;
            scan_add(s, DETECT_MAC_ADDRESS, "mac", at, at + 14, 0.93);
            break;
        }
    }
}

void find_network(scan *s)
{
    find_ipv4(s);
    find_colons(s);
    find_dashed_macs(s);
    find_dotted_macs(s);
}
