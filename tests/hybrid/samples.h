/* Texts that were written and labelled without a look at the detectors: chat, mail, configuration,
 * logs, tables, code, in ten languages, and much that only looks like something. tests/hybrid/
 * samples.txt has them, each below a line "## LANGUAGE", with what should be found marked as
 *
 *     ⟦category|value⟧    ⟦?category|value⟧: found or not, both are right
 *
 * Two characters stand for something else: ¦ for nothing (it keeps forms of keys apart which
 * scanners of repositories look for), ␍ for a carriage return. */
#ifndef CALLA_TESTS_HYBRID_SAMPLES_H
#define CALLA_TESTS_HYBRID_SAMPLES_H

#include "base/strbuf.h"
#include "hybrid/detect/detect.h"

enum { SAMPLE_MAX_LABELS = 24 };

typedef struct sample_label {
    detect_category category;
    size_t start, end;
    bool optional;
} sample_label;

typedef struct sample {
    int line; /* of samples.txt */
    char language[8];
    strbuf text; /* without the marks */
    sample_label labels[SAMPLE_MAX_LABELS];
    size_t n_labels;
} sample;

/* Calls `visit` with each. Fails the test where the file is not of this form. */
void samples_visit(void (*visit)(const sample *s, void *user), void *user);

#endif
