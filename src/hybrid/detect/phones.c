/* Telephone numbers: international (E.164), the national forms that no other number has, and
 * whatever digits stand beside a word for telephone. */
#include "hybrid/detect/checks.h"
#include "hybrid/detect/scan.h"

#include <string.h>

enum { MAX_DIGITS = 15 };

/* Country codes with the digits a number has in all; others: 8 to 15. */
static const struct {
    char code[4];
    unsigned char least, most;
} countries[] = {
    {"1", 11, 11},   {"7", 11, 11},   {"20", 10, 12},  {"27", 11, 11},  {"30", 12, 12},
    {"31", 11, 11},  {"32", 10, 11},  {"33", 11, 11},  {"34", 11, 11},  {"36", 10, 11},
    {"39", 8, 13},   {"40", 11, 11},  {"41", 11, 11},  {"43", 8, 14},   {"44", 11, 12},
    {"45", 10, 10},  {"46", 9, 12},   {"47", 10, 10},  {"48", 11, 11},  {"49", 8, 14},
    {"51", 10, 11},  {"52", 12, 13},  {"53", 8, 10},   {"54", 12, 13},  {"55", 12, 13},
    {"56", 11, 11},  {"57", 12, 12},  {"58", 12, 12},  {"60", 10, 12},  {"61", 11, 11},
    {"62", 10, 14},  {"63", 11, 12},  {"64", 10, 12},  {"65", 10, 10},  {"66", 10, 11},
    {"81", 11, 12},  {"82", 10, 12},  {"84", 11, 12},  {"86", 12, 13},  {"90", 12, 12},
    {"91", 12, 12},  {"92", 12, 12},  {"93", 11, 11},  {"94", 11, 11},  {"95", 9, 12},
    {"98", 12, 12},  {"351", 12, 12}, {"352", 8, 12},  {"353", 11, 12}, {"358", 9, 13},
    {"420", 12, 12}, {"421", 12, 12}, {"380", 12, 12}, {"972", 11, 12}, {"971", 11, 12},
};

/* First digits of three-digit codes not in the table that are given out. */
static const char *const regions[] = {"21", "22", "23", "24", "25", "26", "29", "35",
                                      "37", "38", "42", "50", "59", "67", "68", "69",
                                      "80", "85", "87", "88", "96", "97", "99"};

static bool country_bounds(const char *digits, size_t n, size_t *least, size_t *most)
{
    for (size_t i = 0; i < sizeof countries / sizeof *countries; i++) {
        size_t length = strlen(countries[i].code);
        if (n < length || memcmp(digits, countries[i].code, length) != 0) continue;
        *least = countries[i].least;
        *most = countries[i].most;
        return true;
    }
    *least = 8;
    *most = MAX_DIGITS;
    for (size_t i = 0; i < sizeof regions / sizeof *regions; i++)
        if (n >= 2 && memcmp(digits, regions[i], 2) == 0) return true;
    return false;
}

static bool is_separator(char c)
{
    switch (c) {
    case ' ':
    case '-':
    case '.':
    case '/':
    case '(':
    case ')':
        return true;
    default:
        return false;
    }
}

/* Bytes between two groups of digits at `at`: at most three of " -./()" and no more than one line.
 */
static size_t separator_bytes(const scan *s, size_t at)
{
    size_t n = 0;
    while (n < 3 && is_separator(char_at(s, at + n))) n++;
    return n > 0 && is_digit(char_at(s, at + n)) ? n : 0;
}

/* Groups of digits from `start` on, as long as they stay within `most`: digits, their number, and
 * where they end. "(0)" between is not dialled from abroad. */
static size_t read_groups(const scan *s, size_t start, size_t most, char *digits, size_t *n_digits)
{
    size_t end = start, at = start;
    *n_digits = 0;
    for (;;) {
        size_t n = 0;
        while (is_digit(char_at(s, at + n)) && n <= most) n++;
        bool trunk = n == 1 && s->text[at] == '0' && char_before(s, at) == '(' &&
                     char_at(s, at + 1) == ')' && end > start;
        if (!trunk) {
            if (n == 0 || *n_digits + n > most) break;
            memcpy(digits + *n_digits, s->text + at, n);
            *n_digits += n;
        }
        end = at + n;
        size_t between = separator_bytes(s, end);
        if (between == 0) break;
        at = end + between;
    }
    return end;
}

/* "+49 (0)30 1234567" or "0049 ...": `start` is at the country's code. */
static void try_international(scan *s, size_t from, size_t start, bool plus)
{
    char digits[MAX_DIGITS + 1];
    size_t n, least, most;
    read_groups(s, start, MAX_DIGITS, digits, &n);
    if (!country_bounds(digits, n, &least, &most)) return;
    size_t end = read_groups(s, start, most, digits, &n);
    if (n < least || is_alnum(char_at(s, end)) || check_all_same(digits, n)) return;
    /* "+35236450.6" is a number with a fraction. */
    if (end - start == n + 1 && memchr(s->text + start, '.', end - start)) return;
    bool named = scan_cue_before(s, CUE_PHONE, from, 40, NULL);
    bool grouped = end - start > n;
    if (!plus && !named && !grouped) return; /* 0049301234567 may be any number */
    scan_add(s, DETECT_PHONE, "international", from, end, plus || named ? 0.95 : 0.85);
}

/* National forms that are taken without a word beside them: '#' a digit, 'N' 2 ... 9, 'P' 1 ... 9,
 * ' ' one of space, '-', '.', the same all through; others themselves. */
static const struct {
    const char *kind, *shape;
} forms[] = {
    {"us", "(N##) N##-####"},  {"us", "(N##)N##-####"},  {"us", "(N##) N## ####"},
    {"us", "N##-N##-####"},    {"us", "N##.N##.####"},   {"us", "1-N##-N##-####"},
    {"uk", "07### ######"},    {"uk", "07### ### ###"},  {"uk", "020 #### ####"},
    {"uk", "01## ### ####"},   {"uk", "01### ######"},   {"uk", "(0##) #### ####"},
    {"uk", "(01###) ######"},  {"fr", "0P ## ## ## ##"}, {"es", "N## ## ## ##"},
    {"br", "(##) 9####-####"}, {"br", "(##) N###-####"}, {"br", "## 9####-####"},
    {"nl", "06-########"},     {"nl", "0##-#######"},    {"nl", "0###-######"},
    {"de", "0P##/#######"},    {"de", "0P#/########"},   {"de", "0P##/########"},
    {"de", "0P##/######"},     {"de", "0P###/######"},   {"de", "0P#/#######"},
    {"de", "01## ########"},   {"de", "01## #######"},   {"jp", "0#-####-####"},
    {"jp", "0##-####-####"},   {"it", "3## ### ####"},   {"it", "3## #######"},
    {"pl", "(##) ### ## ##"},  {"cn", "1## #### ####"},
};

static size_t read_form(const scan *s, size_t at, const char *shape)
{
    char separator = '\0';
    for (; *shape; shape++, at++) {
        char c = char_at(s, at);
        bool fits;
        switch (*shape) {
        case '#':
            fits = is_digit(c);
            break;
        case 'N':
            fits = c >= '2' && c <= '9';
            break;
        case 'P':
            fits = c >= '1' && c <= '9';
            break;
        case ' ':
            fits = (c == ' ' || c == '-' || c == '.') && (!separator || c == separator);
            separator = c;
            break;
        default:
            fits = c == *shape;
        }
        if (!fits) return 0;
    }
    return at;
}

static bool is_whole(const scan *s, size_t start, size_t end)
{
    char before = char_before(s, start), after = char_at(s, end);
    if (is_alnum(before) || is_alnum(after) || before == '+' || before == '#') return false;
    if ((after == '-' || after == '.' || after == '/') && is_digit(char_at(s, end + 1)))
        return false;
    return !(strchr("-./", before) && start >= 2 && is_alnum(s->text[start - 2]));
}

enum { N_FORMS = sizeof forms / sizeof *forms, MAX_FIRST = 8 };

/* Forms by the digits of their first group. */
typedef struct form_index {
    unsigned char n[MAX_FIRST + 1];
    unsigned char form[MAX_FIRST + 1][N_FORMS];
} form_index;

static void index_forms(form_index *index)
{
    memset(index->n, 0, sizeof index->n);
    for (size_t i = 0; i < N_FORMS; i++) {
        const char *shape = forms[i].shape + (forms[i].shape[0] == '(');
        size_t first = strcspn(shape, " -/.()");
        if (first <= MAX_FIRST) index->form[first][index->n[first]++] = (unsigned char)i;
    }
}

static void try_national(scan *s, const form_index *index, size_t n, size_t start)
{
    for (size_t k = 0; n <= MAX_FIRST && k < index->n[n]; k++) {
        size_t i = index->form[n][k];
        char wanted = forms[i].shape[n], after = char_at(s, start + n);
        if (forms[i].shape[0] != '(' && wanted != after && wanted != ' ') continue;
        size_t end = read_form(s, start, forms[i].shape);
        if (!end || !is_whole(s, start, end)) continue;
        bool other = scan_cue_before(s, CUE_NUMBER, start, 20, NULL);
        if (!other) scan_add(s, DETECT_PHONE, forms[i].kind, start, end, 0.85);
        return;
    }
}

/* ---- beside a word for telephone ---- */

/* "2024-01-15" and "15.01.2024" are groups of digits, too. */
static bool is_date(const scan *s, size_t start, size_t end)
{
    unsigned groups[3] = {0};
    size_t lengths[3] = {0}, k = 0;
    for (size_t i = start; i < end; i++) {
        if (is_digit(s->text[i])) {
            groups[k] = 10 * groups[k] + (unsigned)(s->text[i] - '0');
            lengths[k]++;
        } else if (++k == 3 || s->text[i] == ' ') {
            return false;
        }
    }
    if (k != 2 || lengths[1] > 2) return false;
    if (lengths[0] == 4 && lengths[2] <= 2) return check_date(groups[0], groups[1], groups[2]);
    return lengths[0] <= 2 && lengths[2] == 4 &&
           (check_date(groups[2], groups[1], groups[0]) ||
            check_date(groups[2], groups[0], groups[1]));
}

/* Whether words between say that the number is of another kind. */
static bool is_other(const scan *s, size_t from, size_t start)
{
    return scan_cue_between(s, CUE_NUMBER, from, start) ||
           scan_cue_between(s, CUE_VERSION, from, start);
}

/* "0151 2345678, call me": the number before the word. */
static void try_before(scan *s, size_t at_word, const cue *c)
{
    char digits[MAX_DIGITS + 1];
    size_t first = at_word;
    while (first > 0 && at_word - first < 5) {
        const word *w = &s->words[first - 1];
        bool joined = first == at_word
                          ? c->start >= w->start + w->n && c->start - w->start - w->n <= 3
                          : s->words[first].gap && strchr(" -./", s->words[first].gap);
        if (!word_is_number(w) || !joined) break;
        first--;
    }
    if (first == at_word) return;
    size_t start = s->words[first].start, n;
    size_t end = read_groups(s, start, MAX_DIGITS, digits, &n);
    if (n < 8 || end > c->start || c->start - end > 3 || char_before(s, start) == '+' ||
        is_date(s, start, end) || scan_cue_before(s, CUE_NUMBER, start, 20, NULL))
        return;
    scan_add(s, DETECT_PHONE, "named", start, end, 0.88);
}

static void find_named(scan *s)
{
    char digits[MAX_DIGITS + 1];
    size_t at_word = 0;
    for (size_t i = 0; i < s->cues[CUE_PHONE].n; i++) {
        size_t from = s->cues[CUE_PHONE].items[i].end;
        while (at_word < s->n_words && s->words[at_word].start < from) at_word++;
        if (!cue_is_of_table(&s->cues[CUE_PHONE].items[i]))
            try_before(s, at_word, &s->cues[CUE_PHONE].items[i]);
        if (at_word == s->n_words || s->words[at_word].start - from > 30) continue;
        const word *w = &s->words[at_word];
        size_t start = w->start, n;
        if (!word_is_number(w) || memchr(s->text + from, '\n', start - from) ||
            char_before(s, start) == '+' || is_other(s, from, start))
            continue;
        size_t end = read_groups(s, start, MAX_DIGITS, digits, &n);
        if (n < 7 || is_alnum(char_at(s, end)) || is_date(s, start, end)) continue;
        if (char_before(s, start) == '(') start--;
        scan_add(s, DETECT_PHONE, "named", start, end, 0.92);
    }
}

void find_phones(scan *s)
{
    form_index index;
    index_forms(&index);
    for (size_t i = 0; i < s->n_words; i++) {
        const word *w = &s->words[i];
        if (!word_is_number(w) || w->n > MAX_DIGITS) continue;
        char before = char_before(s, w->start);
        size_t start = w->start;
        if (before == '+') {
            if (!is_alnum(char_before(s, start - 1))) try_international(s, start - 1, start, true);
            continue;
        }
        bool goes_on = i > 0 && w->gap && word_is_number(w - 1);
        if (w->n >= 3 && memcmp(s->text + start, "00", 2) == 0 && !is_alnum(before) && !goes_on)
            try_international(s, start, start + 2, false);
        else
            try_national(s, &index, w->n, before == '(' ? start - 1 : start);
    }
    find_named(s);
}
