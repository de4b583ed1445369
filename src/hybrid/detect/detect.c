#include "hybrid/detect/detect.h"

#include "base/memory.h"
#include "hybrid/detect/fold.h"
#include "hybrid/detect/scan.h"
#include "hybrid/detect/wrapped.h"

#include <stdlib.h>
#include <string.h>

struct detector {
    cue_matcher *cues;
};

calla_status detector_create(detector **d, calla_error *err)
{
    detector *made = calloc(1, sizeof *made);
    if (!made) return error_set(err, CALLA_ERR_MEMORY, "no memory for the detectors");
    calla_status status = cue_matcher_create(&made->cues, err);
    if (status == CALLA_OK)
        *d = made;
    else
        detector_free(made);
    return status;
}

void detector_free(detector *d)
{
    if (!d) return;
    cue_matcher_free(d->cues);
    free(d);
}

void finding_list_deinit(finding_list *list)
{
    free(list->items);
    *list = (finding_list){0};
}

static void (*const families[])(scan *) = {
    find_cards,   find_bank,      find_national_ids, find_documents, find_emails,
    find_phones,  find_network,   find_addresses,    find_births,    find_keys,
    find_secrets, find_arguments, find_medical,      find_financial};

/* Candidates of a folded text, unordered. */
static calla_status find_all(const detector *d, scan *s, calla_error *err)
{
    CALLA_TRY(cue_matcher_scan(d->cues, s->text, s->n, s->cues, err));
    scan_find_words(s);
    if (!s->failed) scan_name_columns(s);
    for (size_t i = 0; i < sizeof families / sizeof *families && !s->failed; i++) families[i](s);
    if (s->failed)
        return error_set(err, CALLA_ERR_MEMORY, "no memory to check %zu bytes of text", s->n);
    return CALLA_OK;
}

static void scan_deinit(scan *s)
{
    free(s->words);
    free(s->found);
    for (int i = 0; i < N_CUES; i++) free(s->cues[i].items);
}

static int by_start(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->start != y->start) return x->start < y->start ? -1 : 1;
    if (x->end != y->end) return x->end > y->end ? -1 : 1;
    return x->category < y->category ? -1 : x->category > y->category;
}

/* Whether a says better than b what both cover. */
static bool is_better(const candidate *a, const candidate *b)
{
    if (a->confidence != b->confidence) return a->confidence > b->confidence;
    return a->end - a->start > b->end - b->start;
}

/* Orders candidates and leaves none that overlap. What two cover is one finding, of the better
 * one's category; a doubtful one beside a sure one adds nothing. */
static void resolve(scan *s)
{
    static const float sure = 0.9f, doubtful = 0.8f;
    if (s->n_found == 0) return;
    qsort(s->found, s->n_found, sizeof *s->found, by_start);
    size_t n = 0;
    for (size_t i = 1; i < s->n_found; i++) {
        candidate *last = &s->found[n], next = s->found[i];
        if (next.start >= last->end) {
            s->found[++n] = next;
            continue;
        }
        bool better = is_better(&next, last);
        candidate winner = better ? next : *last, loser = better ? *last : next;
        if (winner.confidence < sure || loser.confidence >= doubtful) {
            if (loser.start < winner.start) winner.start = loser.start;
            if (loser.end > winner.end) winner.end = loser.end;
        }
        *last = winner;
    }
    s->n_found = n + 1;
}

/* Adds what base64 hides in the scan's text. */
static calla_status find_wrapped(const detector *d, scan *s, calla_error *err)
{
    wrapped w;
    CALLA_TRY(wrapped_init(&w, s->text, s->n, err));
    fold f = {0};
    scan inner = {0};
    calla_status status = CALLA_OK;
    if (w.n == 0) goto done;
    CALLA_TRY_GOTO(fold_init(&f, w.text, w.n, err), done);
    inner = (scan){.text = f.text, .n = f.n};
    CALLA_TRY_GOTO(find_all(d, &inner, err), done);
    resolve(&inner);
    for (size_t i = 0; i < inner.n_found; i++) {
        const candidate *c = &inner.found[i];
        size_t start, end;
        fold_range(&f, c->start, c->end, &start, &end);
        wrapped_range(&w, s->text, s->n, start, end, &start, &end);
        /* What can be seen goes before what is hidden in it. */
        scan_add(s, c->category, c->kind, start, end, c->confidence > 0.9 ? 0.9 : c->confidence);
        if (!s->failed) s->found[s->n_found - 1].encoded = true;
    }
    if (s->failed) status = error_set(err, CALLA_ERR_MEMORY, "no memory for findings");
done:
    scan_deinit(&inner);
    fold_deinit(&f);
    wrapped_deinit(&w);
    return status;
}

calla_status detect_scan(const detector *d, const char *text, size_t n_bytes, finding_list *out,
                         calla_error *err)
{
    if (n_bytes > DETECT_MAX_BYTES)
        return error_set(err, CALLA_ERR_INPUT, "a text of %zu bytes is too long to be checked",
                         n_bytes);
    fold f;
    CALLA_TRY(fold_init(&f, text, n_bytes, err));
    scan s = {.text = f.text, .n = f.n};
    calla_status status = find_all(d, &s, err);
    if (status == CALLA_OK) status = find_wrapped(d, &s, err);
    if (status == CALLA_OK) {
        resolve(&s);
        status = mem_grow((void **)&out->items, &out->capacity, out->n + s.n_found,
                          sizeof *out->items, "findings", err);
    }
    for (size_t i = 0; status == CALLA_OK && i < s.n_found; i++) {
        const candidate *c = &s.found[i];
        finding made = {.category = c->category,
                        .kind = c->kind,
                        .confidence = c->confidence,
                        .encoded = c->encoded};
        fold_range(&f, c->start, c->end, &made.start, &made.end);
        out->items[out->n++] = made;
    }
    scan_deinit(&s);
    fold_deinit(&f);
    return status;
}
