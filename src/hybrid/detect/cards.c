/* Payment card numbers: issuer, length and Luhn's check digit (ISO/IEC 7812-1). */
#include "hybrid/detect/checks.h"
#include "hybrid/detect/scan.h"

#include <string.h>

/* Issuers by ranges of the first six digits, with the lengths they use as bits. */
#define LENGTH(n) (1u << (n))
static const struct {
    uint32_t first, last;
    uint32_t lengths;
    const char *kind;
} issuers[] = {
    {400000, 499999, LENGTH(13) | LENGTH(16) | LENGTH(19), "visa"},
    {510000, 559999, LENGTH(16), "mastercard"},
    {222100, 272099, LENGTH(16), "mastercard"},
    {340000, 349999, LENGTH(15), "amex"},
    {370000, 379999, LENGTH(15), "amex"},
    {601100, 601199, LENGTH(16) | LENGTH(19), "discover"},
    {644000, 659999, LENGTH(16) | LENGTH(19), "discover"},
    {622126, 622925, LENGTH(16) | LENGTH(19), "unionpay"},
    {620000, 629999, LENGTH(16) | LENGTH(17) | LENGTH(18) | LENGTH(19), "unionpay"},
    {352800, 358999, LENGTH(16) | LENGTH(17) | LENGTH(18) | LENGTH(19), "jcb"},
    {300000, 305999, LENGTH(14) | LENGTH(16), "diners"},
    {309500, 309599, LENGTH(14) | LENGTH(16), "diners"},
    {360000, 369999, LENGTH(14) | LENGTH(16), "diners"},
    {380000, 399999, LENGTH(14) | LENGTH(16), "diners"},
    {500000, 509999, 0xFF000u, "maestro"}, /* 12 to 19 */
    {560000, 589999, 0xFF000u, "maestro"},
    {639000, 639099, 0xFF000u, "maestro"},
    {670000, 679999, 0xFF000u, "maestro"},
    {220000, 220499, LENGTH(16) | LENGTH(17) | LENGTH(18) | LENGTH(19), "mir"},
    {817000, 820199, LENGTH(16), "rupay"},
    {508500, 508999, LENGTH(16), "rupay"},
    {606985, 607984, LENGTH(16), "rupay"},
};

enum { MAX_CARD_DIGITS = 19 };

/* The issuer of digits [n] if they can be a card's number; NULL if not. */
static const char *card_kind(const char *digits, size_t n)
{
    if (n < 12 || n > MAX_CARD_DIGITS) return NULL;
    uint32_t prefix = 0;
    for (int i = 0; i < 6; i++) prefix = 10 * prefix + (uint32_t)(digits[i] - '0');
    for (size_t i = 0; i < sizeof issuers / sizeof *issuers; i++)
        if (prefix >= issuers[i].first && prefix <= issuers[i].last &&
            (issuers[i].lengths & LENGTH(n)))
            return check_luhn(digits, n) ? issuers[i].kind : NULL;
    return NULL;
}

/* How cards write their numbers: digits of each group. */
static const unsigned char groupings[][6] = {
    {4, 4, 4, 4}, {4, 4, 4, 4, 3}, {4, 6, 5}, {4, 6, 4},       {4, 4, 4, 1},
    {4, 4, 4, 2}, {4, 4, 4, 3},    {6, 13},   {4, 4, 4, 4, 1}, {4, 4, 4, 4, 2},
    {8, 8},       {6, 4, 6},       {6, 6, 4},
};

static bool joins(char gap)
{
    return gap == ' ' || gap == '-' || gap == '.' || gap == '\n';
}

/* Between the cells of a table or the numbers of a list, which somebody must call a card. */
static bool joins_if_named(char gap)
{
    return gap == '\t' || gap == ',' || gap == '|' || gap == '\'';
}

/* Between groups, besides: in addresses and forms of the web, and where a line ends. */
static bool joins_groups(char gap, char first)
{
    if (gap == '\n') return true;
    return (joins(gap) || joins_if_named(gap) || gap == '+' || gap == '_' || gap == '/') &&
           (gap == first || first == '\n');
}

/* Words from `at` grouped as row says, the same byte or a line's end between all: their digits to
 * `digits`; how many words, 0 if they are not. */
static size_t read_grouping(const scan *s, size_t at, const unsigned char *row, char *digits,
                            size_t *n_digits)
{
    size_t k = 0;
    *n_digits = 0;
    for (; k < 6 && row[k]; k++) {
        const word *w = &s->words[at + k];
        if (at + k >= s->n_words || !word_is_number(w) || w->n != row[k]) return 0;
        if (k > 0 && !joins_groups(w->gap, s->words[at + 1].gap)) return 0;
        memcpy(digits + *n_digits, s->text + w->start, w->n);
        *n_digits += w->n;
    }
    return k;
}

/* Digits one by one, the same byte between them: "4 1 1 1 ...". Returns the words used. */
static size_t read_spaced(const scan *s, size_t at, char *digits, size_t *n_digits)
{
    size_t k = 0;
    *n_digits = 0;
    for (; at + k < s->n_words && s->words[at + k].n == 1; k++) {
        const word *w = &s->words[at + k];
        if (k > 0 && (!joins(w->gap) || w->gap != s->words[at + 1].gap)) break;
        if (k < MAX_CARD_DIGITS) digits[(*n_digits)++] = s->text[w->start];
    }
    return k;
}

static void report(scan *s, const word *first, const word *last, const char *kind, bool grouped)
{
    size_t end = last->start + last->n;
    bool named = scan_cue_before(s, CUE_CARD, first->start, 60, NULL);
    bool other = scan_cue_before(s, CUE_NUMBER, first->start, 24, NULL);
    /* Maestro's have twelve to nineteen digits of many beginnings, and thirteen digits are an old
     * Visa's or any article's number (EAN): only where somebody speaks of cards. */
    if (!named && (strcmp(kind, "maestro") == 0 || last->start + last->n - first->start == 13 ||
                   (last > first && joins_if_named(first[1].gap))))
        return;
    scan_add(s, DETECT_PAYMENT_CARD, kind, first->start, end,
             named     ? 0.99
             : other   ? 0.9
             : grouped ? 0.97
                       : 0.95);
}

/* A grouping is not a piece of a longer chain of the same separator. */
static bool stands_alone(const scan *s, size_t first, size_t n)
{
    const word *w = &s->words[first], *after = &s->words[first + n];
    char gap = n > 1 ? s->words[first + 1].gap : '-';
    if (gap == ' ' || gap == '\n') return true; /* as words of a sentence do */
    if (first > 0 && w->gap == gap && word_is_number(w - 1)) return false;
    return first + n >= s->n_words || after->gap != gap || !word_is_number(after);
}

void find_cards(scan *s)
{
    char digits[MAX_CARD_DIGITS + 1];
    for (size_t i = 0, step; i < s->n_words; i += step) {
        const word *w = &s->words[i];
        step = 1;
        if (!word_is_number(w)) continue;
        size_t n_digits;
        const char *kind;
        if (w->n == 1) {
            step = read_spaced(s, i, digits, &n_digits);
            if (step >= 12 && step <= MAX_CARD_DIGITS && (kind = card_kind(digits, n_digits)))
                report(s, w, &s->words[i + step - 1], kind, true);
            if (step == 0) step = 1;
            continue;
        }
        if (w->n >= 12 && w->n <= MAX_CARD_DIGITS) {
            if ((kind = card_kind(s->text + w->start, w->n))) report(s, w, w, kind, false);
            continue;
        }
        if (w->n != 4 && w->n != 6 && w->n != 8) continue;
        /* The longest grouping that is a card. */
        size_t best = 0;
        const char *best_kind = NULL;
        for (size_t r = 0; r < sizeof groupings / sizeof *groupings; r++) {
            if (groupings[r][0] != w->n) continue;
            size_t n = read_grouping(s, i, groupings[r], digits, &n_digits);
            if (n > best && (kind = card_kind(digits, n_digits)) && stands_alone(s, i, n))
                best = n, best_kind = kind;
        }
        if (best) {
            report(s, w, &s->words[i + best - 1], best_kind, true);
            step = best;
        }
    }
}
