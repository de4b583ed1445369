/* Bank accounts: IBAN (ISO 13616), routing numbers, account numbers and BIC (ISO 9362). */
#include "hybrid/detect/checks.h"
#include "hybrid/detect/scan.h"

#include <string.h>

/* Lengths by country, from the registry of ISO 13616. */
static const struct {
    char country[3];
    unsigned char n;
} iban_lengths[] = {
    {"AD", 24}, {"AE", 23}, {"AL", 28}, {"AT", 20}, {"AZ", 28}, {"BA", 20}, {"BE", 16}, {"BG", 22},
    {"BH", 22}, {"BI", 27}, {"BR", 29}, {"BY", 28}, {"CH", 21}, {"CR", 22}, {"CY", 28}, {"CZ", 24},
    {"DE", 22}, {"DJ", 27}, {"DK", 18}, {"DO", 28}, {"EE", 20}, {"EG", 29}, {"ES", 24}, {"FI", 18},
    {"FK", 18}, {"FO", 18}, {"FR", 27}, {"GB", 22}, {"GE", 22}, {"GI", 23}, {"GL", 18}, {"GR", 27},
    {"GT", 28}, {"HR", 21}, {"HU", 28}, {"IE", 22}, {"IL", 23}, {"IQ", 23}, {"IS", 26}, {"IT", 27},
    {"JO", 30}, {"KW", 30}, {"KZ", 20}, {"LB", 28}, {"LC", 32}, {"LI", 21}, {"LT", 20}, {"LU", 20},
    {"LV", 21}, {"LY", 25}, {"MC", 27}, {"MD", 24}, {"ME", 22}, {"MK", 19}, {"MN", 20}, {"MR", 27},
    {"MT", 31}, {"MU", 30}, {"NI", 28}, {"NL", 18}, {"NO", 15}, {"OM", 23}, {"PK", 24}, {"PL", 28},
    {"PS", 29}, {"PT", 25}, {"QA", 29}, {"RO", 24}, {"RS", 22}, {"RU", 33}, {"SA", 24}, {"SC", 31},
    {"SD", 18}, {"SE", 24}, {"SI", 19}, {"SK", 24}, {"SM", 27}, {"SO", 23}, {"ST", 25}, {"SV", 28},
    {"TL", 23}, {"TN", 24}, {"TR", 26}, {"UA", 29}, {"VA", 22}, {"VG", 24}, {"XK", 20}, {"YE", 30},
};
enum { MAX_IBAN = 34 };

static size_t iban_length(char a, char b)
{
    for (size_t i = 0; i < sizeof iban_lengths / sizeof *iban_lengths; i++)
        if (iban_lengths[i].country[0] == a && iban_lengths[i].country[1] == b)
            return iban_lengths[i].n;
    return 0;
}

/* An IBAN that begins at `start` with two letters and two digits: its end, 0 if there is none. */
static size_t read_iban(const scan *s, size_t start)
{
    char iban[MAX_IBAN + 1];
    size_t want = iban_length(to_upper(s->text[start]), to_upper(s->text[start + 1]));
    size_t n = 0, i = start;
    for (; n < want && i < s->n; i++) {
        char c = s->text[i];
        if (is_alnum(c))
            iban[n++] = to_upper(c);
        else if (!(c == ' ' || c == '-' || c == '.') || !is_alnum(char_at(s, i + 1)))
            return 0;
    }
    if (want == 0 || n < want || is_alnum(char_at(s, i))) return 0;
    char turned[MAX_IBAN + 1];
    memcpy(turned, iban + 4, n - 4);
    memcpy(turned + n - 4, iban, 4);
    return check_modulo(turned, n, 97) == 1 ? i : 0;
}

static void find_ibans(scan *s)
{
    for (size_t i = 0; i < s->n_words; i++) {
        const word *w = &s->words[i];
        /* "DE89370400...", or "DE" in front of "89 3704 ...". */
        size_t start = w->start;
        if (w->n >= 4 && is_letter(s->text[start]) && is_letter(s->text[start + 1]) &&
            is_digit(s->text[start + 2]) && is_digit(s->text[start + 3])) {
        } else if (w->n >= 2 && is_digit(s->text[start]) && is_digit(s->text[start + 1]) &&
                   start >= 3 && s->text[start - 1] == ' ' && is_upper(s->text[start - 2]) &&
                   is_upper(s->text[start - 3]) && !(start > 3 && is_alnum(s->text[start - 4]))) {
            start -= 3;
        } else {
            continue;
        }
        size_t end = read_iban(s, start);
        if (end) scan_add(s, DETECT_IBAN, "iban", start, end, 0.99);
    }
}

/* ---- numbers that only their names tell ---- */

/* ABA: nine digits weighted 3, 7, 1; the first two say which part of the country. */
static bool is_aba(const char *digits)
{
    static const unsigned char weights[] = {3, 7, 1, 3, 7, 1, 3, 7, 1};
    unsigned area = check_number(digits, 2);
    bool given =
        area <= 12 || (area >= 21 && area <= 32) || (area >= 61 && area <= 72) || area == 80;
    return given && check_number(digits, 9) > 0 && check_weighted(digits, weights, 9) % 10 == 0;
}

/* The first word with digits from `at` on the same line, `reach` bytes at most. */
static const word *word_after(const scan *s, size_t at, size_t reach, size_t *hint)
{
    while (*hint < s->n_words && s->words[*hint].start < at) ++*hint;
    if (*hint == s->n_words) return NULL;
    const word *w = &s->words[*hint];
    if (w->start - at > reach || memchr(s->text + at, '\n', w->start - at)) return NULL;
    return w;
}

static void find_routing(scan *s)
{
    size_t hint = 0;
    for (size_t i = 0; i < s->cues[CUE_ABA].n; i++) {
        const word *w = word_after(s, s->cues[CUE_ABA].items[i].end, 32, &hint);
        if (w && w->n == 9 && word_is_number(w) && is_aba(s->text + w->start))
            scan_add(s, DETECT_BANK_ACCOUNT, "us_routing", w->start, w->start + w->n, 0.97);
    }
}

/* A number of an account: groups of digits with one of " -./" between. */
static void find_accounts(scan *s)
{
    size_t hint = 0;
    for (size_t i = 0; i < s->cues[CUE_ACCOUNT].n; i++) {
        const word *w = word_after(s, s->cues[CUE_ACCOUNT].items[i].end, 28, &hint);
        if (!w) continue;
        size_t start = w->start, end = start, n = 0;
        for (; w < s->words + s->n_words && n < 30; w++) {
            if (!word_is_number(w) || (end > start && !(w->gap && strchr(" -./", w->gap)))) break;
            n += w->n;
            end = w->start + w->n;
        }
        if (n >= 6 && n <= 30) scan_add(s, DETECT_BANK_ACCOUNT, "account", start, end, 0.9);
    }
}

/* 12-34-56 */
static void find_sort_codes(scan *s)
{
    size_t hint = 0;
    for (size_t i = 0; i < s->cues[CUE_SORT_CODE].n; i++) {
        const word *w = word_after(s, s->cues[CUE_SORT_CODE].items[i].end, 20, &hint);
        if (!w || !word_is_number(w)) continue;
        size_t end = w->start + w->n;
        if (w->n == 2 && s->n - end >= 6 && s->text[end] == s->text[end + 3] &&
            strchr("- ", s->text[end]) && is_digit(s->text[end + 1]) &&
            is_digit(s->text[end + 2]) && is_digit(s->text[end + 4]) &&
            is_digit(s->text[end + 5]) && !is_alnum(char_at(s, end + 6)))
            scan_add(s, DETECT_BANK_ACCOUNT, "uk_sort_code", w->start, end + 6, 0.93);
        else if (w->n == 6)
            scan_add(s, DETECT_BANK_ACCOUNT, "uk_sort_code", w->start, end, 0.9);
    }
}

/* Four letters, a country, a place, maybe a branch: the first capital word after its name. */
static void find_bics(scan *s)
{
    for (size_t i = 0; i < s->cues[CUE_BIC].n; i++) {
        size_t at = s->cues[CUE_BIC].items[i].end, reach = at + 24, n;
        for (; at < reach && at < s->n; at += n + 1) {
            for (n = 0; is_alnum(char_at(s, at + n)) && n < 16;) n++;
            if (n != 8 && n != 11) continue;
            bool fits = true;
            for (size_t k = 0; k < n && fits; k++) {
                char c = s->text[at + k];
                fits = is_upper(c) || (k >= 6 && is_digit(c));
            }
            if (!fits) continue;
            scan_add(s, DETECT_BANK_ACCOUNT, "bic", at, at + n, 0.93);
            break;
        }
    }
}

/* The three or four digits on a card's back. */
static void find_cvvs(scan *s)
{
    size_t hint = 0;
    for (size_t i = 0; i < s->cues[CUE_CVV].n; i++) {
        const word *w = word_after(s, s->cues[CUE_CVV].items[i].end, 12, &hint);
        if (w && word_is_number(w) && (w->n == 3 || w->n == 4))
            scan_add(s, DETECT_PAYMENT_CARD, "cvv", w->start, w->start + w->n, 0.93);
    }
}

/* ---- what somebody earns, owns and owes ---- */

/* A currency's sign or code that ends at `at`, with a space or without: where it begins. */
static size_t currency_before(const scan *s, size_t at)
{
    static const char *const currencies[] = {
        "R$",  "\xe2\x82\xac", "$",   "\xc2\xa3", "\xc2\xa5", "EUR",         "USD",
        "GBP", "CHF",          "PLN", "BRL",      "INR",      "\xe2\x82\xb9"};
    size_t end = at > 0 && s->text[at - 1] == ' ' ? at - 1 : at;
    for (size_t i = 0; i < sizeof currencies / sizeof *currencies; i++) {
        size_t n = strlen(currencies[i]);
        if (end >= n && memcmp(s->text + end - n, currencies[i], n) == 0) return end - n;
    }
    return at;
}

static size_t currency_after(const scan *s, size_t at)
{
    static const char *const currencies[] = {"\xe2\x82\xac", "euros", "euro", "EUR",      "USD",
                                             "dollars",      "$",     "GBP",  "CHF",      "PLN",
                                             "zl",           "reais", "BRL",  "\xc2\xa3", "INR"};
    size_t from = char_at(s, at) == ' ' ? at + 1 : at;
    for (size_t i = 0; i < sizeof currencies / sizeof *currencies; i++) {
        size_t n = strlen(currencies[i]);
        if (s->n >= n && from <= s->n - n && strncasecmp(s->text + from, currencies[i], n) == 0)
            return from + n;
    }
    return at;
}

/* "62k" */
static bool is_in_thousands(const scan *s, const word *w)
{
    return w->n >= 3 && w->n <= 4 && (s->text[w->start + w->n - 1] | 0x20) == 'k' &&
           is_digit(s->text[w->start + w->n - 2]);
}

/* "145.000 EUR of debts": the amount that ends right before the cue, some small words between. */
static void find_amount_before(scan *s, const cue *c, size_t i)
{
    enum { REACH = 16, MOST_GROUPS = 6 };
    size_t first = i;
    if (i == 0 || s->words[i - 1].start + s->words[i - 1].n > c->start) return;
    while (first > 0 && i - first < MOST_GROUPS && word_is_number(&s->words[first - 1]) &&
           (first == i ||
            (s->words[first].gap && strchr("., '", s->words[first].gap) && s->words[first].n <= 3)))
        first--;
    if (first == i) return;
    size_t start = currency_before(s, s->words[first].start);
    size_t last = s->words[i - 1].start + s->words[i - 1].n, end = currency_after(s, last);
    if ((start == s->words[first].start && end == last) || end > c->start || c->start - end > REACH)
        return;
    for (size_t k = end; k < c->start; k++)
        if (strchr(".,;:\n", char_at(s, k))) return;
    scan_add(s, DETECT_FINANCIAL, "amount", start, end, 0.88);
}

/* "salary: $85,000", "Gehalt von 4.500,00 EUR". */
static void find_amounts(scan *s)
{
    size_t hint = 0;
    for (size_t i = 0; i < s->cues[CUE_SALARY].n; i++) {
        const cue *c = &s->cues[CUE_SALARY].items[i];
        const word *w = word_after(s, c->end, 48, &hint);
        if (!cue_is_of_table(c)) find_amount_before(s, c, hint);
        if (!w || !is_digit(s->text[w->start]) || scan_cue_between(s, CUE_NUMBER, c->end, w->start))
            continue;
        size_t start = currency_before(s, w->start), end = w->start + w->n;
        for (const word *next = w + 1;
             next < s->words + s->n_words && next->gap && strchr("., '", next->gap) &&
             next->n <= 3 && word_is_number(next);
             next++)
            end = next->start + next->n;
        size_t after = currency_after(s, end);
        bool bare = start == w->start && after == end;
        if (bare && !is_in_thousands(s, w) && (c->weak || end - w->start < 4)) continue;
        scan_add(s, DETECT_FINANCIAL, "amount", start, after,
                 start < w->start || after > end ? 0.9 : 0.8);
    }
}

void find_bank(scan *s)
{
    find_ibans(s);
    find_routing(s);
    find_accounts(s);
    find_sort_codes(s);
    find_bics(s);
    find_cvvs(s);
}

void find_financial(scan *s)
{
    find_amounts(s);
}
