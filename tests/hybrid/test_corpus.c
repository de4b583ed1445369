/* The detectors on the labelled corpus: what of each kind is found, and what of the findings is
 * right. CORPUS_SHOW=N in the environment shows the first N that are not. */
#include "support/support.h"

#include "corpus.h"
#include "hybrid/detector.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct counts {
    size_t labels, found; /* of the corpus's values */
    size_t findings, right;
} counts;

typedef struct results {
    counts slots[64]; /* by slot */
    const char *slot_names[64];
    size_t n_slots;
    counts categories[DETECT_N_CATEGORIES], languages[CORPUS_LANGUAGES];
    counts checksummed, others, held_checksummed, held_others, all, held;
    size_t clean_documents, clean_with_findings;
} results;

static counts *slot_counts(results *r, const char *name)
{
    for (size_t i = 0; i < r->n_slots; i++)
        if (strcmp(r->slot_names[i], name) == 0) return &r->slots[i];
    assert_true(r->n_slots < 64);
    r->slot_names[r->n_slots] = name;
    return &r->slots[r->n_slots++];
}

/* A value is found if findings of its category cover every byte of it. */
static bool is_found(const corpus_label *label, const finding_list *list)
{
    size_t at = label->start;
    for (size_t i = 0; i < list->n; i++) {
        const finding *f = &list->items[i];
        if (f->category == label->slot->category && f->start <= at && f->end > at) at = f->end;
    }
    return at >= label->end;
}

/* A finding is right if it is at a value of its category. */
static bool is_right(const finding *f, const corpus_document *doc)
{
    for (size_t i = 0; i < doc->n_labels; i++) {
        const corpus_label *label = &doc->labels[i];
        if (label->slot->category == f->category && label->start < f->end && f->start < label->end)
            return true;
    }
    return false;
}

static void show(const char *what, const corpus_document *doc, size_t start, size_t end,
                 const char *kind)
{
    size_t from = start > 30 ? start - 30 : 0, to = end + 10 < doc->text.n ? end + 10 : doc->text.n;
    fprintf(stderr, "%s %s: ...%.*s[[%.*s]]%.*s\n", what, kind, (int)(start - from),
            doc->text.data + from, (int)(end - start), doc->text.data + start, (int)(to - end),
            doc->text.data + end);
}

static void count_document(const detector *d, size_t index, results *r, size_t *n_shown)
{
    corpus_document doc;
    finding_list list = {0};
    calla_error err;
    corpus_make(index, &doc);
    assert_int_equal(detect_scan(d, doc.text.data, doc.text.n, &list, &err), CALLA_OK);
    size_t most = getenv("CORPUS_SHOW") ? (size_t)atoi(getenv("CORPUS_SHOW")) : 0;
    for (size_t i = 0; i < doc.n_labels; i++) {
        const corpus_label *label = &doc.labels[i];
        bool found = is_found(label, &list);
        bool sums = label->slot->checksummed;
        counts *all[] = {slot_counts(r, label->slot->name),
                         &r->categories[label->slot->category],
                         &r->languages[doc.language],
                         sums ? &r->checksummed : &r->others,
                         &r->all,
                         doc.held_out ? &r->held : NULL,
                         doc.held_out ? sums ? &r->held_checksummed : &r->held_others : NULL};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++)
            if (all[k]) all[k]->labels++, all[k]->found += found;
        if (!found && (*n_shown)++ < most)
            show("missed", &doc, label->start, label->end, label->slot->name);
    }
    for (size_t i = 0; i < list.n; i++) {
        const finding *f = &list.items[i];
        bool right = is_right(f, &doc);
        counts *all[] = {&r->categories[f->category], &r->languages[doc.language], &r->all,
                         doc.held_out ? &r->held : NULL};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++)
            if (all[k]) all[k]->findings++, all[k]->right += right;
        if (!right && (*n_shown)++ < most)
            show(detect_category_name(f->category), &doc, f->start, f->end, f->kind);
    }
    r->clean_documents += doc.clean;
    r->clean_with_findings += doc.clean && list.n > 0;
    finding_list_deinit(&list);
    strbuf_free(&doc.text);
}

static double share(size_t part, size_t whole)
{
    return whole ? 100.0 * (double)part / (double)whole : 100.0;
}

static void print_row(const char *name, const counts *c)
{
    printf("%-34s %7zu %8.2f %%", name, c->labels, share(c->found, c->labels));
    if (c->findings) printf(" %9zu %8.2f %%", c->findings, share(c->right, c->findings));
    printf("\n");
}

static void print_results(const results *r)
{
    printf("%-34s %7s %10s %9s %10s\n", "", "values", "recall", "findings", "precision");
    for (size_t i = 0; i < r->n_slots; i++) {
        char name[64];
        const corpus_slot *slot = corpus_find_slot(r->slot_names[i]);
        snprintf(name, sizeof name, "  %s (%s)%s", slot->name, detect_category_name(slot->category),
                 slot->checksummed ? " *" : "");
        print_row(name, &r->slots[i]);
    }
    for (int i = 0; i < DETECT_N_CATEGORIES; i++)
        if (r->categories[i].labels || r->categories[i].findings)
            print_row(detect_category_name((detect_category)i), &r->categories[i]);
    for (int i = 0; i < CORPUS_LANGUAGES; i++) print_row(corpus_languages[i], &r->languages[i]);
    print_row("with check digits (*)", &r->checksummed);
    print_row("the others", &r->others);
    print_row("held out, with check digits", &r->held_checksummed);
    print_row("held out, the others", &r->held_others);
    print_row("held out", &r->held);
    print_row("all", &r->all);
    printf("clean documents with findings: %zu of %zu\n", r->clean_with_findings,
           r->clean_documents);
}

static void test_corpus(void **state)
{
    static results r;
    size_t n_shown = 0;
    for (size_t i = 0; i < CORPUS_DOCUMENTS; i++) count_document(*state, i, &r, &n_shown);
    print_results(&r);
    assert_true(r.checksummed.labels > 1000 && r.others.labels > 5000);
    assert_true(r.held_checksummed.labels > 200 && r.held_others.labels > 1000);
    assert_int_equal(r.clean_documents, CORPUS_DOCUMENTS / 2);
    assert_true(share(r.checksummed.found, r.checksummed.labels) >= 99);
    assert_true(share(r.others.found, r.others.labels) >= 95);
    assert_true(share(r.all.right, r.all.findings) >= 97);
}

/* Every slot of every sentence is one that the corpus knows. */
static void test_slots_are_known(void **state)
{
    (void)state;
    for (size_t i = 0; i < 400; i++) {
        corpus_document doc;
        corpus_make(i, &doc);
        for (size_t k = 0; k < doc.text.n; k++) {
            if (doc.text.data[k] != '<') continue;
            size_t end = k + 1;
            while (end < doc.text.n && doc.text.data[end] >= 'a' && doc.text.data[end] <= 'z')
                end++;
            assert_true(end == k + 1 || doc.text.data[end] != '>');
        }
        assert_true(doc.clean == (doc.n_labels == 0));
        strbuf_free(&doc.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slots_are_known),
        cmocka_unit_test(test_corpus),
    };
    return cmocka_run_group_tests(tests, create_detector, free_detector);
}
