/* Bank accounts: IBAN (ISO 13616), routing numbers, account numbers and BIC (ISO 9362). */
#include "hybrid/checks.h"
#include "hybrid/scan.h"

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
                   start >= 3 && s->text[start - 1] == ' ' && is_letter(s->text[start - 2]) &&
                   is_letter(s->text[start - 3]) && !(start > 3 && is_alnum(s->text[start - 4]))) {
            start -= 3;
        } else {
            continue;
        }
        size_t end = read_iban(s, start);
        if (end) scan_add(s, DETECT_IBAN, "iban", start, end, 0.99);
    }
}

void find_bank(scan *s)
{
    find_ibans(s);
}
