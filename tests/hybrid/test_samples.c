/* The detectors on texts that were written without a look at them (samples.h). What is found is
 * counted strictly: every byte of a value by findings of its class, except where it has no edges of
 * its own, as a diagnosis or what is in base64, of which a part will do. SAMPLES_SHOW in the
 * environment shows what is missed and what is found wrongly. */
#include "support/support.h"

#include "hybrid/detector.h"
#include "hybrid/samples.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct counts {
    size_t labels, found;
    size_t findings, right;
} counts;

typedef struct results {
    const detector *d;
    counts categories[DETECT_N_CATEGORIES], all;
    size_t n_samples;
} results;

static bool same_class(detect_category a, detect_category b)
{
    return detect_category_class(a) == detect_category_class(b);
}

static bool is_found(const sample_label *label, const finding_list *list)
{
    bool a_part_will_do = label->category == DETECT_MEDICAL || label->category == DETECT_FINANCIAL;
    size_t at = label->start;
    for (size_t i = 0; i < list->n; i++) {
        const finding *f = &list->items[i];
        if (!same_class(f->category, label->category)) continue;
        if ((a_part_will_do || f->encoded) && f->start < label->end && f->end > label->start)
            return true;
        if (f->start <= at && f->end > at) at = f->end;
    }
    return at >= label->end;
}

/* At what is labelled: -1 where it is of no account, 0 wrong, 1 right. */
static int judge_finding(const finding *f, const sample *s)
{
    int verdict = 0;
    for (size_t i = 0; i < s->n_labels; i++) {
        const sample_label *label = &s->labels[i];
        if (!same_class(label->category, f->category) || label->start >= f->end ||
            f->start >= label->end)
            continue;
        if (!label->optional) return 1;
        verdict = -1;
    }
    return verdict;
}

static void show(const char *what, const sample *s, size_t start, size_t end, const char *kind)
{
    if (!getenv("SAMPLES_SHOW")) return;
    size_t from = start > 40 ? start - 40 : 0, to = end + 20 < s->text.n ? end + 20 : s->text.n;
    fprintf(stderr, "samples.txt:%d: %s %s: ", s->line, what, kind);
    for (size_t i = from; i < to; i++) {
        char c = s->text.data[i];
        fprintf(stderr, "%s%s%c", i == start ? "[[" : "", i == end ? "]]" : "",
                c == '\n' || c == '\r' ? ' ' : c);
    }
    fprintf(stderr, "%s\n", to == end ? "]]" : "");
}

static void count_sample(const sample *s, void *user)
{
    results *r = user;
    finding_list list = {0};
    calla_error err;
    assert_int_equal(detect_scan(r->d, s->text.data, s->text.n, &list, &err), CALLA_OK);
    r->n_samples++;
    for (size_t i = 0; i < s->n_labels; i++) {
        const sample_label *label = &s->labels[i];
        if (label->optional) continue;
        bool found = is_found(label, &list);
        r->categories[label->category].labels++, r->all.labels++;
        r->categories[label->category].found += found, r->all.found += found;
        if (!found)
            show("missed", s, label->start, label->end, detect_category_name(label->category));
    }
    for (size_t i = 0; i < list.n; i++) {
        const finding *f = &list.items[i];
        int verdict = judge_finding(f, s);
        if (verdict < 0) continue;
        r->categories[f->category].findings++, r->all.findings++;
        r->categories[f->category].right += verdict > 0, r->all.right += verdict > 0;
        if (!verdict) show("wrong", s, f->start, f->end, detect_category_name(f->category));
    }
    finding_list_deinit(&list);
}

static double share(size_t part, size_t whole)
{
    return whole ? 100.0 * (double)part / (double)whole : 100.0;
}

static void print_row(const char *name, const counts *c)
{
    printf("%-20s %6zu %8.1f %% %9zu %8.1f %%\n", name, c->labels, share(c->found, c->labels),
           c->findings, share(c->right, c->findings));
}

static void test_samples(void **state)
{
    results r = {.d = *state};
    samples_visit(count_sample, &r);
    printf("%zu texts of samples.txt\n%-20s %6s %10s %9s %10s\n", r.n_samples, "", "values",
           "recall", "findings", "precision");
    for (int i = 0; i < DETECT_N_CATEGORIES; i++)
        if (r.categories[i].labels || r.categories[i].findings)
            print_row(detect_category_name((detect_category)i), &r.categories[i]);
    print_row("all", &r.all);
    assert_true(r.n_samples > 500 && r.all.labels > 500);
    assert_true(share(r.all.found, r.all.labels) >= 97);
    assert_true(share(r.all.right, r.all.findings) >= 99);
    for (int i = 0; i < DETECT_N_CATEGORIES; i++)
        assert_true(share(r.categories[i].found, r.categories[i].labels) >= 85);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_samples)};
    return cmocka_run_group_tests(tests, create_detector, free_detector);
}
