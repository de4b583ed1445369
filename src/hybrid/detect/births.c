/* Dates of birth: any way of writing a day, beside words that say what happened then. */
#include "hybrid/detect/checks.h"
#include "hybrid/detect/scan.h"

#include <string.h>

/* Beginnings of the months' names, which tell them apart, in the languages' own spelling without
 * accents; by month. */
static const char *const months[12][8] = {
    {"jan", "gen", "ene", "styc"},
    {"feb", "fev", "lut"},
    {"mar", "maer", "mrt", "maa"},
    {"apr", "avr", "abr", "kwi"},
    {"may", "mai", "mag", "mei", "maj", "mayo", "maio"},
    {"jun", "juin", "giu", "czer"},
    {"jul", "juil", "lug", "lip"},
    {"aug", "aou", "ago", "sie"},
    {"sep", "set", "wrz"},
    {"oct", "okt", "ott", "out", "paz"},
    {"nov", "lis"},
    {"dec", "dez", "dic", "gru"},
};

/* The month that the word [start, end) names: 1 ... 12, or 0. */
static unsigned month_of(const scan *s, size_t start, size_t end)
{
    for (unsigned m = 0; m < 12; m++)
        for (int i = 0; i < 8 && months[m][i]; i++) {
            size_t n = strlen(months[m][i]);
            if (end - start >= n && strncasecmp(s->text + start, months[m][i], n) == 0)
                return m + 1;
        }
    return 0;
}

static bool is_year(uint32_t year)
{
    return year >= 1900 && year <= 2100;
}

static uint32_t number_at(const scan *s, const word *w)
{
    return check_number(s->text + w->start, w->n < 9 ? w->n : 9);
}

/* "3.", "3rd", "1er", "3º": the day's number, and what may stand after it. */
static bool is_day(const scan *s, const word *w, uint32_t *day)
{
    size_t digits = 0;
    while (digits < w->n && is_digit(s->text[w->start + digits])) digits++;
    if (digits < 1 || digits > 2 || w->n - digits > 2) return false;
    *day = check_number(s->text + w->start, digits);
    return true;
}

/* Three numbers with one of "./- " between. */
static size_t read_numeric(const scan *s, size_t i)
{
    if (i + 3 > s->n_words) return 0;
    const word *w = &s->words[i];
    for (int k = 0; k < 3; k++)
        if (!word_is_number(&w[k]) || (k > 0 && !(w[k].gap && strchr("./- ", w[k].gap)))) {
            /* "3. 4. 1980" has two bytes between. */
            bool spaced = k > 0 && word_is_number(&w[k]) &&
                          w[k].start == w[k - 1].start + w[k - 1].n + 2 &&
                          s->text[w[k].start - 2] == '.' && s->text[w[k].start - 1] == ' ';
            if (!spaced) return 0;
        }
    uint32_t a = number_at(s, &w[0]), b = number_at(s, &w[1]), c = number_at(s, &w[2]);
    size_t end = w[2].start + w[2].n;
    if (w[0].n == 4 && w[1].n <= 2 && w[2].n <= 2)
        return is_year(a) && check_date(a, b, c) ? end : 0;
    if (w[0].n > 2 || w[1].n > 2 || (w[2].n != 4 && w[2].n != 2)) return 0;
    if (w[2].n == 4 && !is_year(c)) return 0;
    return check_date(w[2].n == 4 ? c : 0, b, a) || check_date(w[2].n == 4 ? c : 0, a, b) ? end : 0;
}

/* "12 March 1980", "12. Maerz 1980", "12 de marzo de 1980": words of letters between two numbers,
 * one of them a month. */
static size_t read_day_month_year(const scan *s, size_t i)
{
    uint32_t day;
    if (i + 2 > s->n_words || !is_day(s, &s->words[i], &day)) return 0;
    const word *first = &s->words[i], *year = &s->words[i + 1];
    size_t at = first->start + first->n;
    if (year->n != 4 || !word_is_number(year) || year->start - at > 32) return 0;
    unsigned month = 0;
    while (at < year->start) {
        size_t start = at;
        while (at < year->start && is_letter(s->text[at])) at++;
        if (!month && at - start >= 3) month = month_of(s, start, at);
        if (at == start) at++;
    }
    uint32_t y = number_at(s, year);
    return month && is_year(y) && check_date(y, month, day) ? year->start + year->n : 0;
}

/* "March 12, 1980": the month is before the first number. */
static size_t read_month_day_year(const scan *s, size_t i, size_t *start)
{
    uint32_t day;
    if (i + 2 > s->n_words || !is_day(s, &s->words[i], &day)) return 0;
    const word *first = &s->words[i], *year = &s->words[i + 1];
    if (year->n != 4 || !word_is_number(year) || year->start - first->start - first->n > 2)
        return 0;
    size_t end = first->start, from;
    while (end > 0 && (s->text[end - 1] == ' ' || s->text[end - 1] == '.')) end--;
    for (from = end; from > 0 && end - from < 12 && is_letter(s->text[from - 1]); from--) {}
    if (first->start - end > 2 || end - from < 3) return 0;
    unsigned month = month_of(s, from, end);
    uint32_t y = number_at(s, year);
    if (!month || !is_year(y) || !check_date(y, month, day)) return 0;
    *start = from;
    return year->start + year->n;
}

/* "12 March", "12 de marzo": a birthday without its year; *start is moved for "March 12". */
static size_t read_day_month(const scan *s, size_t i, size_t *start)
{
    enum { BETWEEN = 8 };
    uint32_t day;
    if (i >= s->n_words || !is_day(s, &s->words[i], &day) || day < 1 || day > 31) return 0;
    const word *w = &s->words[i];
    size_t at = w->start + w->n, most = at + BETWEEN;
    while (at < most && at < s->n && s->text[at] != '\n') {
        size_t end = at;
        while (is_letter(char_at(s, end)) && end < s->n) end++;
        if (end - at >= 3 && month_of(s, at, end)) return end;
        at = end > at ? end : at + 1;
    }
    size_t end = w->start, from;
    if (char_before(s, end) == ' ') end--;
    for (from = end; from > 0 && end - from < 12 && is_letter(s->text[from - 1]);) from--;
    if (end == w->start || end - from < 3 || !month_of(s, from, end)) return 0;
    *start = from;
    return w->start + w->n;
}

/* 1980年3月12日 */
static size_t read_cjk(const scan *s, size_t i)
{
    static const char *const after[] = {"\xe5\xb9\xb4", "\xe6\x9c\x88", "\xe6\x97\xa5"};
    if (i + 3 > s->n_words) return 0;
    size_t end = 0;
    for (size_t k = 0; k < 3; k++) {
        const word *w = &s->words[i + k];
        end = w->start + w->n;
        if (!word_is_number(w) || w->n > 4 || s->n - end < 3 ||
            memcmp(s->text + end, after[k], 3) != 0)
            return 0;
        end += 3;
    }
    return is_year(number_at(s, &s->words[i])) ? end : 0;
}

/* The date that has word i as its first number. */
static size_t read_date(const scan *s, size_t i, size_t *start)
{
    *start = s->words[i].start;
    size_t end = read_numeric(s, i);
    if (!end) end = read_day_month_year(s, i);
    if (!end) end = read_cjk(s, i);
    if (!end) end = read_month_day_year(s, i, start);
    const word *w = &s->words[i];
    /* 12031980, 19800312 */
    if (!end && w->n == 8 && word_is_number(w)) {
        const char *t = s->text + w->start;
        if ((is_year(check_number(t, 4)) &&
             check_date(check_number(t, 4), check_number(t + 4, 2), check_number(t + 6, 2))) ||
            (is_year(check_number(t + 4, 4)) &&
             check_date(check_number(t + 4, 4), check_number(t + 2, 2), check_number(t, 2))))
            end = w->start + w->n;
    }
    return end;
}

enum { REACH = 48, BESIDE = 8 }; /* bytes between words and date */

void find_births(scan *s)
{
    size_t i = 0;
    for (size_t k = 0; k < s->cues[CUE_BIRTH].n; k++) {
        const cue *c = &s->cues[CUE_BIRTH].items[k];
        while (i < s->n_words && s->words[i].start < c->end) i++;
        size_t start, end = 0;
        /* Right after the words; or right before ("12.03.1980 geboren"); or after them and a place
         * ("born in Paris on"), where a few other numbers may stand between. */
        if (i < s->n_words && s->words[i].start - c->end <= BESIDE) end = read_date(s, i, &start);
        for (size_t back = 1; !end && back <= 3 && back <= i && !cue_is_of_table(c); back++) {
            if (c->start < s->words[i - back].start || c->start - s->words[i - back].start > REACH)
                break;
            end = read_date(s, i - back, &start);
            if (end > c->start || c->start - end > 2) end = 0;
        }
        for (size_t j = i;
             !end && j < s->n_words && j < i + 3 && s->words[j].start - c->end <= REACH; j++)
            end = read_date(s, j, &start);
        for (size_t j = i;
             !end && j < s->n_words && j < i + 2 && s->words[j].start - c->end <= REACH; j++) {
            start = s->words[j].start;
            end = read_day_month(s, j, &start);
            if (end && start < c->end) end = 0;
        }
        if (end) scan_add(s, DETECT_DATE_OF_BIRTH, "date_of_birth", start, end, 0.95);
    }
}
