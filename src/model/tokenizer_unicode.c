/* What the tokenizer's own library makes of characters that are newer than some table.
 *
 * Ids are those of Hugging Face's `tokenizers`, in training and since. Its pattern knows Unicode
 * 16, and its NFC Unicode 9. The tables here make up for the difference to the libraries used,
 * whatever their version; tools/tokenizer_unicode.py prints both. */
#include "model/tokenizer.h"
#include "model/utf8.h"

typedef struct class_range {
    int32_t first, last;
    char class; /* 'L', 'M' or 'N', as in \p{L}; all N take four bytes */
} class_range;

/* Letters, marks and numbers of Unicode 15.0 to 16.0, ascending. */
static const class_range newer[] = {
    {0x00897, 0x00897, 'M'}, {0x00cf3, 0x00cf3, 'M'}, {0x00ece, 0x00ece, 'M'},
    {0x01c89, 0x01c8a, 'L'}, {0x0a7cb, 0x0a7cd, 'L'}, {0x0a7da, 0x0a7dc, 'L'},
    {0x105c0, 0x105f3, 'L'}, {0x10d40, 0x10d49, 'N'}, {0x10d4a, 0x10d65, 'L'},
    {0x10d69, 0x10d6d, 'M'}, {0x10d6f, 0x10d85, 'L'}, {0x10ec2, 0x10ec4, 'L'},
    {0x10efc, 0x10eff, 'M'}, {0x1123f, 0x11240, 'L'}, {0x11241, 0x11241, 'M'},
    {0x11380, 0x11389, 'L'}, {0x1138b, 0x1138b, 'L'}, {0x1138e, 0x1138e, 'L'},
    {0x11390, 0x113b5, 'L'}, {0x113b7, 0x113b7, 'L'}, {0x113b8, 0x113c0, 'M'},
    {0x113c2, 0x113c2, 'M'}, {0x113c5, 0x113c5, 'M'}, {0x113c7, 0x113ca, 'M'},
    {0x113cc, 0x113d0, 'M'}, {0x113d1, 0x113d1, 'L'}, {0x113d2, 0x113d2, 'M'},
    {0x113d3, 0x113d3, 'L'}, {0x113e1, 0x113e2, 'M'}, {0x116d0, 0x116e3, 'N'},
    {0x11bc0, 0x11be0, 'L'}, {0x11bf0, 0x11bf9, 'N'}, {0x11f00, 0x11f01, 'M'},
    {0x11f02, 0x11f02, 'L'}, {0x11f03, 0x11f03, 'M'}, {0x11f04, 0x11f10, 'L'},
    {0x11f12, 0x11f33, 'L'}, {0x11f34, 0x11f3a, 'M'}, {0x11f3e, 0x11f42, 'M'},
    {0x11f50, 0x11f59, 'N'}, {0x11f5a, 0x11f5a, 'M'}, {0x1342f, 0x1342f, 'L'},
    {0x13440, 0x13440, 'M'}, {0x13441, 0x13446, 'L'}, {0x13447, 0x13455, 'M'},
    {0x13460, 0x143fa, 'L'}, {0x16100, 0x1611d, 'L'}, {0x1611e, 0x1612f, 'M'},
    {0x16130, 0x16139, 'N'}, {0x16d40, 0x16d6c, 'L'}, {0x16d70, 0x16d79, 'N'},
    {0x18cff, 0x18cff, 'L'}, {0x1b132, 0x1b132, 'L'}, {0x1b155, 0x1b155, 'L'},
    {0x1ccf0, 0x1ccf9, 'N'}, {0x1d2c0, 0x1d2d3, 'N'}, {0x1df25, 0x1df2a, 'L'},
    {0x1e030, 0x1e06d, 'L'}, {0x1e08f, 0x1e08f, 'M'}, {0x1e4d0, 0x1e4eb, 'L'},
    {0x1e4ec, 0x1e4ef, 'M'}, {0x1e4f0, 0x1e4f9, 'N'}, {0x1e5d0, 0x1e5ed, 'L'},
    {0x1e5ee, 0x1e5ef, 'M'}, {0x1e5f0, 0x1e5f0, 'L'}, {0x1e5f1, 0x1e5fa, 'N'},
    {0x2b739, 0x2b739, 'L'}, {0x2ebf0, 0x2ee5d, 'L'}, {0x31350, 0x323af, 'L'},
};
enum { N_NEWER = sizeof newer / sizeof newer[0] };

/* Characters of Unicode 10 to 14 that take part in normalisation, ascending. */
static const class_range unnormalised[] = {
    {0x007fd, 0x007fd, 0}, {0x00898, 0x0089f, 0}, {0x008ca, 0x008d3, 0}, {0x009fe, 0x009fe, 0},
    {0x00c3c, 0x00c3c, 0}, {0x00d3b, 0x00d3c, 0}, {0x00eba, 0x00eba, 0}, {0x01715, 0x01715, 0},
    {0x01abf, 0x01ace, 0}, {0x01df6, 0x01dfa, 0}, {0x0a82c, 0x0a82c, 0}, {0x10d24, 0x10d27, 0},
    {0x10eab, 0x10eac, 0}, {0x10f46, 0x10f50, 0}, {0x10f82, 0x10f85, 0}, {0x11070, 0x11070, 0},
    {0x1133b, 0x1133b, 0}, {0x1145e, 0x1145e, 0}, {0x11839, 0x1183a, 0}, {0x11930, 0x11930, 0},
    {0x11935, 0x11935, 0}, {0x11938, 0x11938, 0}, {0x1193d, 0x1193e, 0}, {0x11943, 0x11943, 0},
    {0x119e0, 0x119e0, 0}, {0x11a34, 0x11a34, 0}, {0x11a47, 0x11a47, 0}, {0x11a99, 0x11a99, 0},
    {0x11d42, 0x11d42, 0}, {0x11d44, 0x11d45, 0}, {0x11d97, 0x11d97, 0}, {0x16ff0, 0x16ff1, 0},
    {0x1e130, 0x1e136, 0}, {0x1e2ae, 0x1e2ae, 0}, {0x1e2ec, 0x1e2ef, 0},
};
enum { N_UNNORMALISED = sizeof unnormalised / sizeof unnormalised[0] };

/* The range of `table` [n] that holds the code point, or NULL. */
static const class_range *find_range(const class_range *table, int n, int32_t point)
{
    int low = 0, high = n;
    while (low < high) {
        int middle = (low + high) / 2;
        if (point > table[middle].last)
            low = middle + 1;
        else if (point < table[middle].first)
            high = middle;
        else
            return &table[middle];
    }
    return NULL;
}

bool unicode_is_inert(int32_t point)
{
    return point >= unnormalised[0].first &&
           (find_range(unnormalised, N_UNNORMALISED, point) || find_range(newer, N_NEWER, point));
}

/* The class of a newer character, or 0. */
static char newer_class(int32_t point)
{
    const class_range *range = find_range(newer, N_NEWER, point);
    return range ? range->class : 0;
}

/* All of them start with one of these bytes, which common text lacks. */
static bool may_be_newer(char lead)
{
    unsigned char c = (unsigned char)lead;
    return c == 0xe0 || c == 0xe1 || c == 0xea || c == 0xf0;
}

bool unicode_has_newer(const char *text, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i += utf8_length(text[i])) {
        size_t length;
        if (may_be_newer(text[i]) && newer_class(utf8_decode(text + i, &length))) return true;
    }
    return false;
}

void unicode_append_older(strbuf *out, const char *text, size_t n_bytes)
{
    for (size_t i = 0, length; i < n_bytes; i += length) {
        char class = newer_class(utf8_decode(text + i, &length));
        bool is_long = length == 4;
        switch (class) {
        case 'L':
            strbuf_puts(out, is_long ? "\U00010400" : "\u0905");
            break;
        case 'M':
            strbuf_puts(out, is_long ? "\U00011000" : "\u0903");
            break;
        case 'N':
            strbuf_puts(out, "\U00010107");
            break;
        default:
            strbuf_append(out, text + i, length);
        }
    }
}
