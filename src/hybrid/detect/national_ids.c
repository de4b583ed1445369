/* National ids, by the table in id_forms.c; passports and driving licences, by their names. */
#include "hybrid/detect/checks.h"
#include "hybrid/detect/id_forms.h"
#include "hybrid/detect/scan.h"

#include <string.h>

/* How far a name may be from its number: beside it, or some lines before (a table's head). */
enum { NEAR_BEFORE = 60, NEAR_AFTER = 16, FAR_BEFORE = 1200 };

static size_t leading_digits(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n && is_digit(s[i])) i++;
    return i;
}

/* The text at `at` in this shape: its digits and letters to id, capital, and its end; 0 if not. */
static size_t read_shape(const scan *s, size_t at, const char *shape, char *id)
{
    size_t n = 0;
    for (; *shape; shape++, at++) {
        char c = char_at(s, at);
        bool fits = *shape == '9'   ? is_digit(c)
                    : *shape == 'A' ? is_letter(c)
                    : *shape == '*' ? is_alnum(c)
                    : *shape == ' ' ? c == ' ' || c == '-' || c == '.'
                                    : c == *shape;
        if (!fits) return 0;
        if (is_alnum(c)) id[n++] = to_upper(c);
    }
    id[n] = '\0';
    return at;
}

/* A number that goes on before or after is a piece of something else. */
static bool is_whole(const scan *s, size_t start, size_t end)
{
    char before = char_before(s, start), after = char_at(s, end);
    if (is_alnum(before) || is_alnum(after)) return false;
    if ((after == '-' || after == '.' || after == '/') && is_alnum(char_at(s, end + 1)) &&
        (after != '.' || is_digit(char_at(s, end + 1))))
        return false;
    return !(strchr("-./", before) && start >= 2 && is_digit(s->text[start - 2]));
}

/* "0,12345678901" has a comma as numbers have it, unless more digits than thousands are before it.
 */
static bool is_behind_comma(const scan *s, size_t start, size_t end)
{
    size_t digits = 0;
    if (char_before(s, start) != ',') return false;
    while (digits < 4 && start >= digits + 2 && is_digit(s->text[start - digits - 2])) digits++;
    for (size_t i = start; i < end; i++)
        if (!is_digit(s->text[i])) return false;
    return digits > 0 && digits < 4;
}

/* "1234 5678 9012 3456" has "1234 5678 9012" in it: a group as long as the one beside it. */
static bool is_piece(const scan *s, size_t start, size_t end)
{
    size_t first = start, last = end;
    while (is_digit(char_at(s, first))) first++;
    while (last > start && is_digit(s->text[last - 1])) last--;
    if (first >= end || s->text[first] != ' ') return false;
    size_t before = start, after = end + 1;
    if (char_before(s, start) == ' ')
        for (before--; before > 0 && is_digit(s->text[before - 1]);) before--;
    while (is_digit(char_at(s, after))) after++;
    return (before < start && start - 1 - before == first - start) ||
           (char_at(s, end) == ' ' && after > end + 1 && after - end - 1 == end - last);
}

static bool is_near(const scan *s, cue_class class_, size_t start, size_t end)
{
    size_t index;
    if (scan_cue_before(s, class_, start, NEAR_BEFORE, &index)) {
        const char *from = s->text + s->cues[class_].items[index].end;
        /* What the sentence before spoke of is another number. */
        if (!memmem(from, (size_t)(s->text + start - from), ". ", 2) ||
            char_before(s, start) == '.' || s->cues[class_].items[index].end + 8 > start)
            return true;
    }
    return scan_cue_after(s, class_, end, NEAR_AFTER);
}

static void try_form(scan *s, const id_form *form, size_t start)
{
    char id[ID_MAX_CHARACTERS + 1];
    size_t end = read_shape(s, start, form->shape, id);
    if (!end || !is_whole(s, start, end) || !form->check(id) || is_piece(s, start, end)) return;
    bool near = is_near(s, form->cue, start, end);
    double confidence = near ? 0.99 : 0.9;
    if (!near && (form->need == ID_NEEDS_NEAR || is_behind_comma(s, start, end))) return;
    if (form->need == ID_NEEDS_CUE && !near) {
        if (is_near(s, CUE_ID_ANY, start, end))
            confidence = 0.92;
        else if (scan_cue_before(s, form->cue, start, FAR_BEFORE, NULL))
            confidence = 0.85;
        else
            return;
    }
    scan_add(s, DETECT_NATIONAL_ID, form->kind, start, end, confidence);
}

/* Forms by how many digits they begin with. */
typedef struct form_index {
    unsigned char n[ID_MAX_CHARACTERS + 1];
    unsigned char form[ID_MAX_CHARACTERS + 1][24];
} form_index;

static void index_forms(form_index *index)
{
    memset(index->n, 0, sizeof index->n);
    for (size_t i = 0; i < n_id_forms; i++) {
        size_t first = id_forms[i].first;
        index->form[first][index->n[first]++] = (unsigned char)i;
    }
}

/* Forms whose letters are words before the first with digits: "AB 12 34 56 C", "RSS MRA 85T10". */
static void try_letters_before(scan *s, const form_index *index, const word *w, size_t digits)
{
    if (digits < 2 || w->start < 3 || w->gap || !is_letter(s->text[w->start - 2])) return;
    for (size_t k = 0; k < index->n[0]; k++) {
        const id_form *form = &id_forms[index->form[0][k]];
        if (form->shape[2] == ' ')
            try_form(s, form, w->start - 3);
        else if (form->shape[3] == ' ' && form->shape[4] == '9' && w->start >= 4)
            try_form(s, form, w->start - 4);
        else if (form->shape[3] == ' ' && w->start >= 8)
            try_form(s, form, w->start - 8);
    }
}

/* Whether the byte after the first digits fits what the shape has there: most forms end here. */
static bool may_go_on(char shape, char c)
{
    switch (shape) {
    case '\0':
        return !is_alnum(c);
    case ' ':
        return c == ' ' || c == '-' || c == '.';
    case 'A':
    case '*':
        return is_alnum(c);
    default:
        return c == shape;
    }
}

void find_national_ids(scan *s)
{
    form_index index;
    index_forms(&index);
    for (size_t i = 0; i < s->n_words; i++) {
        const word *w = &s->words[i];
        size_t digits = word_is_number(w) ? w->n : leading_digits(s->text + w->start, w->n);
        if (digits <= ID_MAX_CHARACTERS && (digits > 0 || (w->n > 4 && w->n <= ID_MAX_CHARACTERS)))
            for (size_t k = 0; k < index.n[digits]; k++) {
                const id_form *form = &id_forms[index.form[digits][k]];
                if (digits == 0 || may_go_on(form->shape[digits], char_at(s, w->start + digits)))
                    try_form(s, form, w->start);
            }
        try_letters_before(s, &index, w, digits);
    }
}

/* ---- passports and driving licences ---- */

/* The first word with digits after a cue, `reach` bytes at most: what a form names and then fills.
 */
static const word *word_after(const scan *s, size_t at, size_t reach, size_t *hint)
{
    while (*hint < s->n_words && s->words[*hint].start < at) ++*hint;
    if (*hint == s->n_words || s->words[*hint].start - at > reach) return NULL;
    return &s->words[*hint];
}

static void find_named(scan *s, cue_class class_, detect_category category, const char *kind,
                       size_t least, size_t most)
{
    size_t hint = 0;
    for (size_t i = 0; i < s->cues[class_].n; i++) {
        const word *w = word_after(s, s->cues[class_].items[i].end, 40, &hint);
        /* "passport, invoice 12345678" */
        if (!w || scan_cue_between(s, CUE_NUMBER, s->cues[class_].items[i].end, w->start)) continue;
        size_t n_digits = 0, end = w->start + w->n;
        for (size_t k = w->start; k < end; k++) n_digits += is_digit(s->text[k]);
        if (w->n < least || w->n > most || n_digits < 4 || (w->has & WORD_LOWER)) continue;
        scan_add(s, category, kind, w->start, end, 0.9);
    }
}

void find_documents(scan *s)
{
    find_named(s, CUE_PASSPORT, DETECT_PASSPORT, "passport", 6, 12);
    find_named(s, CUE_LICENCE, DETECT_DRIVING_LICENCE, "driving_licence", 6, 18);
}
