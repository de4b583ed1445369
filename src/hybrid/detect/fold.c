#include "hybrid/detect/fold.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

/* Letters of Latin-1 and Latin Extended-A without their accents, from U+00C0 to U+017F; '\1' stands
 * for two letters (fold_pair), ' ' for what is left alone. */
static const char latin[] =
    "AAAAAA\1CEEEEIIII\1NOOOOO OUUUUY\1\1aaaaaa\1ceeeeiiii\1nooooo ouuuuy\1y"
    "AaAaAaCcCcCcCcDdDdEeEeEeEeEeGgGgGgGgHhHhIiIiIiIiIi\1\1JjKkkLlLlLlLlLl"
    "NnNnNnnNnOoOoOo\1\1RrRrRrSsSsSsSsTtTtTtUuUuUuUuUuUuWwYyYZzZzZzs";

static const struct {
    uint32_t code_point;
    char pair[3];
} pairs[] = {{0xC6, "AE"}, {0xD0, "D"},   {0xDE, "Th"},  {0xDF, "ss"},  {0xE6, "ae"}, {0xF0, "d"},
             {0xFE, "th"}, {0x132, "IJ"}, {0x133, "ij"}, {0x152, "OE"}, {0x153, "oe"}};

/* Letters that look like Latin ones: from U+0370 (Greek) and U+0400 (Cyrillic), 132 and 96 of them;
 * ' ' where there is no such letter. */
static const char greek[] = "                                 AB  EZH IK MN O P  TY X         a"
                            "       i   v o p   u x                                          cj";
static const char cyrillic[] = "     SIIJ       A B  E    K MHO PCTY X          "
                               "a    e        o pc y x               siij       ";

/* The first of ten digits each, ascending (Unicode 15, category Nd). */
static const uint32_t zeros[] = {
    0x660,   0x6F0,   0x7C0,   0x966,   0x9E6,   0xA66,   0xAE6,   0xB66,   0xBE6,   0xC66,
    0xCE6,   0xD66,   0xDE6,   0xE50,   0xED0,   0xF20,   0x1040,  0x1090,  0x17E0,  0x1810,
    0x1946,  0x19D0,  0x1A80,  0x1A90,  0x1B50,  0x1BB0,  0x1C40,  0x1C50,  0xA620,  0xA8D0,
    0xA900,  0xA9D0,  0xA9F0,  0xAA50,  0xABF0,  0xFF10,  0x104A0, 0x10D30, 0x11066, 0x110F0,
    0x11136, 0x111D0, 0x112F0, 0x11450, 0x114D0, 0x11650, 0x116C0, 0x11730, 0x118E0, 0x11950,
    0x11C50, 0x11D50, 0x11DA0, 0x16A60, 0x16AC0, 0x16B50, 0x1D7CE, 0x1D7D8, 0x1D7E2, 0x1D7EC,
    0x1D7F6, 0x1E140, 0x1E2F0, 0x1E950, 0x1FBF0};

static bool is_digit_of_a_script(uint32_t c, char *digit)
{
    size_t low = 0, high = sizeof zeros / sizeof *zeros;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (zeros[middle] <= c)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0 || c - zeros[low - 1] > 9) return false;
    *digit = (char)('0' + (c - zeros[low - 1]));
    return true;
}

static bool has_no_width(uint32_t c)
{
    return c == 0xAD || c == 0x34F || c == 0x61C || c == 0x180E || (c >= 0x200B && c <= 0x200F) ||
           (c >= 0x202A && c <= 0x202E) || (c >= 0x2060 && c <= 0x206F) || c == 0xFEFF ||
           (c >= 0xFE00 && c <= 0xFE0F) || (c >= 0xE0000 && c <= 0xE01EF) ||
           (c >= 0x300 && c <= 0x36F); /* combining accents: "e" and U+0301 is "e" */
}

/* Folds one code point beyond ASCII to `out` [2]; returns how many bytes, -1 if it stays. */
static int fold_code_point(uint32_t c, char *out)
{
    if (has_no_width(c)) return 0;
    if (c >= 0xC0 && c < 0x180) {
        out[0] = latin[c - 0xC0];
        for (size_t i = 0; out[0] == '\1' && i < sizeof pairs / sizeof *pairs; i++)
            if (pairs[i].code_point == c) {
                memcpy(out, pairs[i].pair, 2);
                return out[1] ? 2 : 1;
            }
        return out[0] == ' ' || out[0] == '\1' ? -1 : 1;
    }
    if (c >= 0x370 && c < 0x370 + sizeof greek - 1 && greek[c - 0x370] != ' ')
        return out[0] = greek[c - 0x370], 1;
    if (c >= 0x400 && c < 0x400 + sizeof cyrillic - 1 && cyrillic[c - 0x400] != ' ')
        return out[0] = cyrillic[c - 0x400], 1;
    if (is_digit_of_a_script(c, out)) return 1;
    if (c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
        c == 0x202F || c == 0x205F || c == 0x3000)
        return out[0] = ' ', 1;
    if ((c >= 0x2010 && c <= 0x2015) || c == 0x2212 || c == 0xFE58 || c == 0xFE63 || c == 0x2043 ||
        c == 0x30FC)
        return out[0] = '-', 1;
    if (c >= 0xFF01 && c <= 0xFF5E) return out[0] = (char)(c - 0xFF01 + '!'), 1;
    if (c == 0xB9 || c == 0xB2 || c == 0xB3)
        return out[0] = c == 0xB9 ? '1' : (char)(c - 0xB0 + '0'), 1;
    if (c == 0x2070 || (c >= 0x2074 && c <= 0x2079)) return out[0] = (char)(c - 0x2070 + '0'), 1;
    if (c >= 0x2080 && c <= 0x2089) return out[0] = (char)(c - 0x2080 + '0'), 1;
    if (c >= 0x2460 && c <= 0x2468) return out[0] = (char)(c - 0x2460 + '1'), 1;
    if (c == 0x24EA) return out[0] = '0', 1;
    if (c >= 0x1D400 && c <= 0x1D6A3) {
        uint32_t letter = (c - 0x1D400) % 52;
        return out[0] = (char)(letter < 26 ? 'A' + letter : 'a' + letter - 26), 1;
    }
    if (c == 0x2018 || c == 0x2019 || c == 0x2032) return out[0] = '\'', 1;
    if (c == 0x201C || c == 0x201D || c == 0x201E) return out[0] = '"', 1;
    if (c == 0x3002 || c == 0x2024 || c == 0xB7 || c == 0x30FB) return out[0] = '.', 1;
    return -1;
}

/* The code point at s [n], n >= 1, of *length bytes; false if they are no well-formed sequence. */
static bool decode(const unsigned char *s, size_t n, uint32_t *c, size_t *length)
{
    size_t need = s[0] < 0xC2 ? 0 : s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : s[0] < 0xF5 ? 4 : 0;
    *length = 1;
    if (need == 0 || need > n) return false;
    uint32_t value = s[0] & (0x7Fu >> need);
    for (size_t i = 1; i < need; i++) {
        if ((s[i] & 0xC0) != 0x80) return false;
        value = value << 6 | (s[i] & 0x3Fu);
    }
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (value < least[need] || value > 0x10FFFF || (value & 0xFFFFF800u) == 0xD800) return false;
    *c = value;
    *length = need;
    return true;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* n hexadecimal digits as a number; -1 if they are none. */
static int32_t hex_number(const char *s, size_t n)
{
    int32_t value = 0;
    for (size_t i = 0; i < n; i++) {
        int digit = hex_digit(s[i]);
        if (digit < 0) return -1;
        value = value << 4 | digit;
    }
    return value;
}

/* A character of HTML's by its number, at s [n] which starts with '&'. */
static int fold_reference(const char *s, size_t n, size_t *length, char *out)
{
    uint32_t value = 0;
    size_t i = 2;
    if (n < 4 || s[1] != '#') return -1;
    bool hex = (s[2] | 0x20) == 'x';
    for (i += hex; i < n && i < 12 && s[i] != ';'; i++) {
        int digit = hex_digit(s[i]);
        if (digit < 0 || (!hex && digit > 9)) return -1;
        value = (hex ? 16 : 10) * value + (uint32_t)digit;
        if (value > 0x10FFFF) return -1;
    }
    if (i == n || s[i] != ';' || value < 0x20) return -1;
    *length = i + 1;
    if (value < 0x7F) return out[0] = (char)value, 1;
    return fold_code_point(value, out);
}

/* A character of HTML's by its name. */
static int fold_named(const char *s, size_t n, size_t *length, char *out)
{
    static const struct {
        const char *name;
        char c; /* '\0': it has no width */
    } known[] = {{"&nbsp;", ' '},   {"&ensp;", ' '},   {"&emsp;", ' '},  {"&thinsp;", ' '},
                 {"&commat;", '@'}, {"&period;", '.'}, {"&ndash;", '-'}, {"&mdash;", '-'},
                 {"&hyphen;", '-'}, {"&dash;", '-'},   {"&num;", '#'},   {"&colon;", ':'},
                 {"&shy;", '\0'},   {"&zwj;", '\0'},   {"&zwnj;", '\0'}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t n_name = strlen(known[i].name);
        if (n < n_name || memcmp(s, known[i].name, n_name) != 0) continue;
        *length = n_name;
        return out[0] = known[i].c, out[0] ? 1 : 0;
    }
    return -1;
}

/* "[at]", "(dot)", with a space on either side or none: how people hide addresses of e-mail. */
static int fold_spelled(const char *s, size_t n, size_t *length, char *out)
{
    static const struct {
        const char *word;
        char c;
    } known[] = {{"at", '@'}, {"dot", '.'}, {"punkt", '.'}, {"punto", '.'}, {"arroba", '@'}};
    size_t open = s[0] == ' ';
    if (n < open + 4 || (s[open] != '[' && s[open] != '(')) return -1;
    char close = s[open] == '[' ? ']' : ')';
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t n_word = strlen(known[i].word), end = open + 1 + n_word;
        if (n <= end || strncasecmp(s + open + 1, known[i].word, n_word) != 0 || s[end] != close)
            continue;
        *length = end + 1 + (end + 1 < n && s[end + 1] == ' ');
        return out[0] = known[i].c, 1;
    }
    return -1;
}

static bool may_escape(char c)
{
    return c == '\\' || c == '%' || c == '&' || c == ' ' || c == '[' || c == '(';
}

/* An escape at s [n], whose first byte may_escape: what it stands for in out [2], 0 to 2
 * bytes, and its *length; -1 if it is none, or stands for what stays. */
static int fold_escape(const char *s, size_t n, size_t *length, char *out)
{
    if (s[0] == '%') {
        int32_t value = n >= 3 ? hex_number(s + 1, 2) : -1;
        if (value < 0x20 || value > 0x7E) return -1;
        *length = 3;
        return out[0] = (char)value, 1;
    }
    if (s[0] == '&')
        return n > 1 && s[1] == '#' ? fold_reference(s, n, length, out)
                                    : fold_named(s, n, length, out);
    if (s[0] != '\\') return fold_spelled(s, n, length, out);
    if (n < 2) return -1;
    *length = 2;
    switch (s[1]) {
    case 'n':
        return out[0] = '\n', 1;
    case 'r':
    case 't':
        return out[0] = ' ', 1;
    case '"':
    case '/':
        return out[0] = s[1], 1;
    case 'u':
    case 'x':
        break;
    default:
        return -1;
    }
    size_t digits = s[1] == 'u' ? 4 : 2;
    int32_t value = n >= 2 + digits ? hex_number(s + 2, digits) : -1;
    if (value < 0x20) return -1;
    *length = 2 + digits;
    if (value < 0x7F) return out[0] = (char)value, 1;
    return fold_code_point((uint32_t)value, out);
}

/* "at" in brackets: without it other words in brackets matter little. */
static bool has_spelled_at(const char *source, size_t n)
{
    for (const char *at = source; n - (size_t)(at - source) >= 3;) {
        at = memchr(at + 2, 't', n - (size_t)(at - source) - 2);
        if (!at) return false;
        size_t i = (size_t)(at - source);
        if ((at[-2] == '[' || at[-2] == '(') && at[-1] == 'a' && i + 1 < n &&
            (at[1] == ']' || at[1] == ')'))
            return true;
        at--;
    }
    return false;
}

/* Whether nothing in the source changes. */
static bool is_plain(const char *source, size_t n)
{
    unsigned char high = 0;
    for (size_t i = 0; i < n; i++) high |= (unsigned char)source[i];
    return high < 0x80 && !memchr(source, '\\', n) && !memchr(source, '%', n) &&
           !memchr(source, '&', n) && !has_spelled_at(source, n);
}

static void fold_all(fold *f, char *out)
{
    size_t n = 0;
    for (size_t i = 0, length; i < f->n_source; i += length) {
        const char *s = f->source + i;
        size_t left = f->n_source - i;
        char folded[2];
        int count = -1;
        length = 1;
        if ((unsigned char)*s >= 0x80) {
            uint32_t c;
            if (decode((const unsigned char *)s, left, &c, &length))
                count = fold_code_point(c, folded);
        } else if (may_escape(*s)) {
            count = fold_escape(s, left, &length, folded);
            if (count < 0) length = 1;
        }
        if (count < 0) {
            for (size_t k = 0; k < length; k++) {
                f->at[n] = (uint32_t)i;
                out[n++] = s[k];
            }
        } else {
            for (int k = 0; k < count; k++) {
                f->at[n] = (uint32_t)i;
                out[n++] = folded[k];
            }
        }
    }
    f->n = n;
}

calla_status fold_init(fold *f, const char *source, size_t n_bytes, calla_error *err)
{
    *f = (fold){.text = source, .n = n_bytes, .source = source, .n_source = n_bytes};
    if (is_plain(source, n_bytes)) return CALLA_OK;
    f->memory = malloc(n_bytes);
    f->at = malloc(n_bytes * sizeof *f->at);
    if (!f->memory || !f->at) {
        fold_deinit(f);
        return error_set(err, CALLA_ERR_MEMORY, "no memory to check %zu bytes of text", n_bytes);
    }
    fold_all(f, f->memory);
    f->text = f->memory;
    return CALLA_OK;
}

void fold_deinit(fold *f)
{
    /* A copy of what may be secret. */
    if (f->memory) explicit_bzero(f->memory, f->n);
    free(f->memory);
    free(f->at);
    *f = (fold){0};
}

void fold_range(const fold *f, size_t start, size_t end, size_t *source_start, size_t *source_end)
{
    *source_start = f->at ? f->at[start] : start;
    *source_end = end;
    if (!f->at) return;
    /* The last byte's character ends where it says; what has no width after it is not part of it.
     */
    size_t i = f->at[end - 1], length = 1;
    const char *s = f->source + i;
    uint32_t c;
    char folded[2];
    if ((unsigned char)*s >= 0x80)
        decode((const unsigned char *)s, f->n_source - i, &c, &length);
    else if (may_escape(*s) && fold_escape(s, f->n_source - i, &length, folded) < 0)
        length = 1;
    *source_end = i + length;
}
