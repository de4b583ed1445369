#include "hybrid/detect/scan.h"

#include "base/memory.h"

#include <string.h>

static uint8_t kind_of(char c)
{
    return is_digit(c) ? WORD_DIGIT : is_upper(c) ? WORD_UPPER : is_lower(c) ? WORD_LOWER : 0;
}

/* The end of the tag at `at`, such as "</b>"; `at` if there is none. */
static size_t tag_end(const char *text, size_t at, size_t end)
{
    size_t i = at + 1;
    if (text[at] != '<') return at;
    while (i < end && text[i] != '<' && text[i] != '>') i++;
    return i < end && text[i] == '>' ? i + 1 : at;
}

/* What more than one byte between two words amounts to, see word.gap. */
static char wide_gap(const char *text, size_t at, size_t end)
{
    enum { MOST = 48, MOST_SPACES = 3 };
    size_t spaces = 0;
    char gap = ' ';
    if (end - at > MOST) return '\0';
    if (end - at == 3 && memcmp(text + at, " - ", 3) == 0) return '-';
    while (at < end) {
        size_t tag = tag_end(text, at, end);
        if (tag > at) {
            at = tag;
            continue;
        }
        char c = text[at++];
        if (c == '\n')
            gap = '\n';
        else if (c == ' ' || c == '\t')
            spaces++;
        else if (c != '\r' && c != '*' && c != '`' && !(c == '>' && gap == '\n'))
            return '\0';
    }
    return spaces <= MOST_SPACES ? gap : '\0';
}

void scan_find_words(scan *s)
{
    size_t end_before = 0; /* of the word with digits before */
    for (size_t i = 0; i < s->n;) {
        uint8_t has = kind_of(s->text[i]);
        if (!has) {
            i++;
            continue;
        }
        size_t start = i;
        for (uint8_t kind; i < s->n && (kind = kind_of(s->text[i])); i++) has |= kind;
        if (!(has & WORD_DIGIT)) continue;
        if (mem_grow((void **)&s->words, &s->words_capacity, s->n_words + 1, sizeof *s->words,
                     "words", NULL) != CALLA_OK) {
            s->failed = true;
            return;
        }
        char gap = s->n_words == 0           ? '\0'
                   : start - end_before == 1 ? s->text[end_before]
                                             : wide_gap(s->text, end_before, start);
        s->words[s->n_words++] = (word){(uint32_t)start, (uint32_t)(i - start), has, gap};
        end_before = i;
    }
}

void scan_add(scan *s, detect_category category, const char *kind, size_t start, size_t end,
              double confidence)
{
    if (mem_grow((void **)&s->found, &s->found_capacity, s->n_found + 1, sizeof *s->found,
                 "findings", NULL) != CALLA_OK) {
        s->failed = true;
        return;
    }
    s->found[s->n_found++] = (candidate){.start = (uint32_t)start,
                                         .end = (uint32_t)end,
                                         .category = category,
                                         .kind = kind,
                                         .confidence = (float)confidence};
}

/* How many cues of the list end at or before `at`. */
static size_t cues_until(const cue_list *list, size_t at)
{
    size_t low = 0, high = list->n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (list->items[middle].end <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool scan_cue_before(const scan *s, cue_class class_, size_t at, size_t window, size_t *index)
{
    const cue_list *list = &s->cues[class_];
    size_t n = cues_until(list, at);
    if (n == 0 || at - list->items[n - 1].end > window) return false;
    if (index) *index = n - 1;
    return true;
}

bool scan_cue_after(const scan *s, cue_class class_, size_t at, size_t window)
{
    const cue_list *list = &s->cues[class_];
    /* The first that ends after `at` may begin before it; the next may not. */
    for (size_t i = cues_until(list, at), k = 0; k < 4 && i + k < list->n; k++) {
        size_t start = list->items[i + k].start;
        if (start < at || cue_is_of_table(&list->items[i + k])) continue;
        if (start - at > window) return false;
        for (size_t c = at; c < start; c++)
            if (s->text[c] == '\n' || s->text[c] == ';' ||
                (s->text[c] == '.' && is_space(s->text[c + 1])))
                return false;
        return true;
    }
    return false;
}

bool scan_cue_between(const scan *s, cue_class class_, size_t from, size_t to)
{
    return to > from && scan_cue_before(s, class_, to, to - from - 1, NULL);
}
