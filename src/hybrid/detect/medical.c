/* Markers of medical records: diagnoses and their codes (ICD-10), numbers of records and
 * insurances, prescriptions, readings. */
#include "hybrid/detect/checks.h"
#include "hybrid/detect/scan.h"

#include <string.h>

/* "E11.9", "F32.1", "M54.16": a letter, two digits, and up to four characters after a stop. */
static size_t icd_end(const scan *s, const word *w)
{
    const char *t = s->text + w->start;
    size_t end = w->start + 3;
    if (w->n < 3 || w->n > 7 || !is_upper(t[0]) || !is_digit(t[1]) ||
        !(is_digit(t[2]) || t[2] == 'A' || t[2] == 'B'))
        return 0;
    if (w->n > 3) return w->n <= 7 && !(w->has & WORD_LOWER) ? w->start + w->n : 0;
    if (char_at(s, end) != '.' || !is_alnum(char_at(s, end + 1))) return end;
    size_t after = end + 1;
    while (is_alnum(char_at(s, after)) && !is_lower(s->text[after]) && after - end <= 4) after++;
    return is_alnum(char_at(s, after)) ? end : after;
}

static void find_codes(scan *s)
{
    for (size_t i = 0; i < s->n_words; i++) {
        const word *w = &s->words[i];
        if (w->n > 7 || !is_upper(s->text[w->start]) || !(w->has & WORD_DIGIT)) continue;
        size_t end = icd_end(s, w);
        if (!end) continue;
        bool icd =
            scan_cue_before(s, CUE_ICD, w->start, 80, NULL) || scan_cue_after(s, CUE_ICD, end, 24);
        bool diagnosis = scan_cue_before(s, CUE_DIAGNOSIS, w->start, 80, NULL) ||
                         scan_cue_after(s, CUE_DIAGNOSIS, end, 40);
        bool bracketed = char_before(s, w->start) == '(' && char_at(s, end) == ')';
        if (icd || (diagnosis && (end - w->start > 3 || bracketed)))
            scan_add(s, DETECT_MEDICAL, "icd10", w->start, end, 0.92);
    }
}

/* "diagnosed with ...", "Diagnose: ...": the words up to the clause's end. */
static void find_diagnoses(scan *s)
{
    enum { MOST = 70 };
    size_t done = 0;
    for (size_t i = 0; i < s->cues[CUE_DIAGNOSIS].n; i++) {
        const cue *c = &s->cues[CUE_DIAGNOSIS].items[i];
        size_t at = c->end;
        bool colon = cue_is_of_table(c);
        if (c->end < done) continue;
        while (at < s->n && at - c->end < 4 && (s->text[at] == ' ' || s->text[at] == ':')) {
            colon = colon || s->text[at] == ':';
            at++;
        }
        size_t end = at, last = at;
        for (; end < s->n && end - at < MOST; end++) {
            char ch = s->text[end];
            if (ch == '\n' || ch == ';' || ch == ',' || ch == '"' || ch == '|') break;
            if (ch == '(' && end > at) break;
            if (ch == '.' && !is_alnum(char_at(s, end + 1))) break;
            if (ch == ' ') last = end;
        }
        if (end - at == MOST) end = last;
        while (end > at && is_space(s->text[end - 1])) end--;
        if (end - at < 3) continue;
        /* One may suffer from much: a word for an illness must be there, or the form's colon, or
         * "diagnosed with". */
        bool illness = scan_cue_between(s, CUE_ILLNESS, at, end + 1);
        if (c->weak && !colon && !illness) continue;
        scan_add(s, DETECT_MEDICAL, "diagnosis", at, end, 0.85);
        done = end;
    }
}

/* The word with digits that a cue names, at most `reach` bytes after it on the same line. */
static const word *named_word(const scan *s, const cue *c, size_t reach, size_t *hint)
{
    while (*hint < s->n_words && s->words[*hint].start < c->end) ++*hint;
    if (*hint == s->n_words) return NULL;
    const word *w = &s->words[*hint];
    if (w->start - c->end > reach || memchr(s->text + c->end, '\n', w->start - c->end)) return NULL;
    return w;
}

/* Numbers of records and of insured people: words joined by single signs. */
static void find_numbers(scan *s, cue_class class_, detect_category category, const char *kind)
{
    size_t hint = 0;
    for (size_t i = 0; i < s->cues[class_].n; i++) {
        const word *w = named_word(s, &s->cues[class_].items[i], 28, &hint);
        bool date =
            w && w->n == 4 && w + 1 < s->words + s->n_words && w[1].gap == '-' && w[1].n == 2;
        if (!w || (w->has & WORD_LOWER) || date ||
            scan_cue_between(s, CUE_NUMBER, s->cues[class_].items[i].end, w->start))
            continue;
        size_t start = w->start, end = w->start + w->n, n = w->n;
        /* "MRN-00123456", "ABC 123 456 789". */
        if (start >= 2 && s->text[start - 1] == '-' && is_upper(s->text[start - 2]))
            for (start--; start > 0 && is_upper(s->text[start - 1]); start--) {}
        for (const word *next = w + 1;
             next < s->words + s->n_words && next->gap && !(next->has & WORD_LOWER) &&
             strchr("- /", next->gap) && n + next->n <= 20 && next->n <= 8;
             next++) {
            n += next->n;
            end = next->start + next->n;
        }
        if (n >= 5 && n <= 20) scan_add(s, category, kind, start, end, 0.9);
    }
}

/* Germany's Krankenversichertennummer: a letter as two digits, eight digits, a check digit with
 * weights 1, 2 in turn and cross sums. */
static bool is_kvnr(const char *t)
{
    char digits[12];
    unsigned letter = (unsigned)(t[0] - 'A' + 1), sum = 0;
    digits[0] = (char)('0' + letter / 10);
    digits[1] = (char)('0' + letter % 10);
    memcpy(digits + 2, t + 1, 8);
    for (int i = 0; i < 10; i++) {
        unsigned product = (unsigned)(digits[i] - '0') * (unsigned)(1 + i % 2);
        sum += product / 10 + product % 10;
    }
    return sum % 10 == (unsigned)(t[9] - '0');
}

/* Medicare's beneficiary identifier in the United States: C A AN N A AN N A A N N. */
static bool is_mbi(const char *t)
{
    static const char shape[] = "CLXNLXNLLNN";
    for (int i = 0; i < 11; i++) {
        bool letter = is_upper(t[i]) && !strchr("SLOIBZ", t[i]), digit = is_digit(t[i]);
        bool fits = shape[i] == 'C'   ? digit && t[i] != '0'
                    : shape[i] == 'L' ? letter
                    : shape[i] == 'N' ? digit
                                      : letter || digit;
        if (!fits) return false;
    }
    return true;
}

static void find_insured(scan *s)
{
    for (size_t i = 0; i < s->n_words; i++) {
        const word *w = &s->words[i];
        const char *t = s->text + w->start;
        bool digits = w->n == 10 && is_upper(t[0]);
        for (size_t k = 1; digits && k < 10; k++) digits = is_digit(t[k]);
        if (digits && is_kvnr(t))
            scan_add(s, DETECT_HEALTH_INSURANCE, "de_kvnr", w->start, w->start + 10,
                     scan_cue_before(s, CUE_INSURANCE, w->start, 60, NULL) ? 0.97 : 0.85);
        char id[11];
        if (w->n == 11 && is_mbi(t)) {
            scan_add(s, DETECT_HEALTH_INSURANCE, "us_mbi", w->start, w->start + 11, 0.9);
        } else if (w->n == 4 && s->n - w->start >= 13 && t[4] == '-' && t[8] == '-' &&
                   !is_alnum(char_at(s, w->start + 13))) {
            memcpy(id, t, 4);
            memcpy(id + 4, t + 5, 3);
            memcpy(id + 7, t + 9, 4);
            if (is_mbi(id))
                scan_add(s, DETECT_HEALTH_INSURANCE, "us_mbi", w->start, w->start + 13, 0.95);
        }
    }
}

/* "Metformin 500 mg": a medicine's name and its dose. */
static void find_doses(scan *s)
{
    size_t hint = 0;
    for (size_t i = 0; i < s->cues[CUE_DOSE].n; i++) {
        const cue *c = &s->cues[CUE_DOSE].items[i];
        const word *w = named_word(s, c, 24, &hint);
        if (!w || !is_digit(s->text[w->start])) continue;
        size_t end = w->start + w->n;
        static const char *const units[] = {"mg", "mcg", "ug",   "ml", "units",
                                            "IE", "UI",  "I.E.", "g"};
        size_t at = char_at(s, end) == ' ' ? end + 1 : end;
        bool unit = (w->has & WORD_LOWER) != 0; /* "500mg" is one word */
        for (size_t k = 0; !unit && k < sizeof units / sizeof *units; k++) {
            size_t n = strlen(units[k]);
            if (s->n >= n && at <= s->n - n && memcmp(s->text + at, units[k], n) == 0 &&
                !is_alnum(char_at(s, at + n)))
                unit = true, end = at + n;
        }
        if (unit) scan_add(s, DETECT_MEDICAL, "prescription", c->start, end, 0.9);
    }
}

/* "HbA1c 7.9 %", "blood pressure 150/95": what was measured and the reading. */
static void find_readings(scan *s)
{
    size_t hint = 0;
    for (size_t i = 0; i < s->cues[CUE_LAB].n; i++) {
        const cue *c = &s->cues[CUE_LAB].items[i];
        const word *w = named_word(s, c, 24, &hint);
        if (!w || !word_is_number(w) || w->n > 4 ||
            memchr(s->text + c->end, '<', w->start - c->end))
            continue;
        size_t end = w->start + w->n;
        const word *next = w + 1;
        if (next < s->words + s->n_words && next->gap && strchr("./,", next->gap) && next->n <= 3)
            end = next->start + next->n;
        scan_add(s, DETECT_MEDICAL, "reading", c->start, end, 0.88);
    }
}

void find_medical(scan *s)
{
    find_codes(s);
    find_diagnoses(s);
    find_numbers(s, CUE_MRN, DETECT_MEDICAL, "record_number");
    find_numbers(s, CUE_INSURANCE, DETECT_HEALTH_INSURANCE, "number");
    find_insured(s);
    find_doses(s);
    find_readings(s);
}
