/* Tables in text (CSV, lines of tabs or semicolons, Markdown): what the head says of a column is
 * said of each of its cells. */
#include "hybrid/detect/scan.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_HEAD = 2000, MAX_COLUMNS = 64 };

/* One thing that the head says. */
typedef struct column_cue {
    uint32_t column;
    cue_class class_;
    bool weak;
} column_cue;

typedef struct table {
    char separator;
    size_t n_columns;
    column_cue *cues; /* [n] ordered by column */
    size_t n, capacity;
} table;

static size_t line_end(const scan *s, size_t at)
{
    const char *end = at < s->n ? memchr(s->text + at, '\n', s->n - at) : NULL;
    return end ? (size_t)(end - s->text) : s->n;
}

/* Where the cell that begins at `at` ends; separators in quotes are part of it. */
static size_t cell_end(const scan *s, size_t at, size_t end, char separator)
{
    bool quoted = false;
    for (; at < end; at++) {
        if (s->text[at] == '"') quoted = !quoted;
        if (s->text[at] == separator && !quoted) break;
    }
    return at;
}

/* How many cells the line [at, end) has, one more than MAX_COLUMNS at most. */
static size_t count_cells(const scan *s, size_t at, size_t end, char separator)
{
    size_t n = 1;
    while ((at = cell_end(s, at, end, separator)) < end && n <= MAX_COLUMNS) at++, n++;
    return n;
}

/* A head has names alone: no digits, no sentence. */
static bool may_be_head(const scan *s, size_t at, size_t end)
{
    if (end - at < 5 || end - at > MAX_HEAD) return false;
    for (size_t i = at; i < end; i++)
        if (is_digit(s->text[i]) || (s->text[i] == '.' && is_space(char_at(s, i + 1))))
            return false;
    return true;
}

static void add_cue(scan *s, table *t, size_t column, cue_class class_, bool weak)
{
    if (mem_grow((void **)&t->cues, &t->capacity, t->n + 1, sizeof *t->cues, "cues", NULL) !=
        CALLA_OK)
        s->failed = true;
    else
        t->cues[t->n++] = (column_cue){(uint32_t)column, class_, weak};
}

/* Those that name a value; others would say of a cell's neighbours what is not so. */
static bool names_values(cue_class class_)
{
    switch (class_) {
    case CUE_NUMBER:
    case CUE_VERSION:
    case CUE_URL:
    case CUE_PEM:
    case CUE_TOKEN:
    case CUE_AUTHORIZATION:
    case CUE_ILLNESS:
    case CUE_DOSE:
    case CUE_STREET_FIRST:
    case CUE_STREET_LAST:
    case CUE_STREET_PART:
        return false;
    default:
        return true;
    }
}

/* Classes that have cues in the text, and of each the first cue that was not passed yet. */
typedef struct passing {
    cue_class classes[N_CUES]; /* [n] */
    size_t next[N_CUES];       /* [n] */
    size_t n;
} passing;

/* What the head [at, end) says of its columns. */
static void read_head(scan *s, table *t, size_t at, size_t end, passing *p)
{
    t->n = 0;
    for (size_t column = 0; at <= end && !s->failed; column++) {
        size_t stop = cell_end(s, at, end, t->separator);
        for (size_t k = 0; k < p->n; k++) {
            const cue_list *list = &s->cues[p->classes[k]];
            size_t *i = &p->next[k];
            while (*i < list->n && list->items[*i].end <= at) ++*i;
            if (*i < list->n && list->items[*i].start >= at && list->items[*i].end <= stop)
                add_cue(s, t, column, p->classes[k], list->items[*i].weak);
        }
        at = stop + 1;
    }
}

static bool has_digit(const scan *s, size_t at, size_t end)
{
    while (at < end && !is_digit(s->text[at])) at++;
    return at < end;
}

/* Values of the others have digits: a cell without one would name its neighbour's. */
static bool is_of_words(cue_class class_)
{
    return class_ == CUE_PASSWORD || class_ == CUE_SECRET || class_ == CUE_DIAGNOSIS ||
           class_ == CUE_BIC;
}

/* Cues at the beginnings of the row's cells, to `added` by class. */
static void name_cells(scan *s, const table *t, size_t at, size_t end, cue_list *added)
{
    size_t k = 0;
    for (size_t column = 0; at <= end && k < t->n; column++) {
        size_t stop = cell_end(s, at, end, t->separator);
        while (at < stop && is_space(s->text[at])) at++;
        bool number = has_digit(s, at, stop);
        for (; k < t->n && t->cues[k].column == column; k++) {
            cue_list *list = &added[t->cues[k].class_];
            if (at == stop || (!number && !is_of_words(t->cues[k].class_))) continue;
            if (mem_grow((void **)&list->items, &list->capacity, list->n + 1, sizeof *list->items,
                         "cues", NULL) != CALLA_OK) {
                s->failed = true;
                return;
            }
            list->items[list->n++] =
                (cue){.start = (uint32_t)at, .end = (uint32_t)at, .weak = t->cues[k].weak};
        }
        at = stop + 1;
    }
}

/* Two lists ordered by end become one. */
static void merge(scan *s, cue_list *to, const cue_list *added)
{
    if (added->n == 0) return;
    if (mem_grow((void **)&to->items, &to->capacity, to->n + added->n, sizeof *to->items, "cues",
                 NULL) != CALLA_OK) {
        s->failed = true;
        return;
    }
    size_t own = to->n, other = added->n;
    to->n += added->n;
    for (size_t i = to->n; other > 0;) {
        bool take_own = own > 0 && to->items[own - 1].end > added->items[other - 1].end;
        to->items[--i] = take_own ? to->items[--own] : added->items[--other];
    }
}

/* Whether lines [at, end) and the one behind it are head and first row of a table. */
static bool begins(const scan *s, table *t, size_t at, size_t end)
{
    static const char separators[] = {',', ';', '\t', '|'};
    if (end >= s->n || !may_be_head(s, at, end)) return false;
    size_t below = line_end(s, end + 1);
    for (size_t i = 0; i < sizeof separators; i++) {
        if (!memchr(s->text + at, separators[i], end - at)) continue;
        size_t n = count_cells(s, at, end, separators[i]);
        if (n < 2 || n > MAX_COLUMNS || count_cells(s, end + 1, below, separators[i]) != n)
            continue;
        t->separator = separators[i];
        t->n_columns = n;
        return true;
    }
    return false;
}

void scan_name_columns(scan *s)
{
    table t = {0};
    cue_list added[N_CUES] = {0};
    passing p = {.n = 0};
    for (int class_ = 0; class_ < N_CUES; class_++)
        if (names_values((cue_class)class_) && s->cues[class_].n > 0)
            p.classes[p.n++] = (cue_class)class_;
    for (size_t at = 0, end; p.n > 0 && at < s->n && !s->failed; at = end + 1) {
        end = line_end(s, at);
        if (t.n_columns && count_cells(s, at, end, t.separator) == t.n_columns) {
            if (t.n) name_cells(s, &t, at, end, added);
            continue;
        }
        t.n_columns = 0;
        if (begins(s, &t, at, end)) read_head(s, &t, at, end, &p);
    }
    for (int class_ = 0; class_ < N_CUES; class_++) {
        if (!s->failed) merge(s, &s->cues[class_], &added[class_]);
        free(added[class_].items);
    }
    free(t.cues);
}
