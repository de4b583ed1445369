/* A labelled corpus, made anew from its index: documents in eight languages, half of them clean,
 * with what must be found marked and with what must not be (numbers of orders, hashes, versions
 * ...).
 *
 * It knows nothing of the detectors. Values are drawn from the definitions of their formats, check
 * digits computed here (corpus_values.c); sentences are what people write (corpus_sentences.c). The
 * sentences of held-out documents were written after the detectors and not used to adjust them. */
#ifndef CORPUS_H
#define CORPUS_H

#include "hybrid/detect/detect.h"

enum { CORPUS_DOCUMENTS = 5000, CORPUS_LANGUAGES = 8, CORPUS_MAX_LABELS = 64 };
extern const char *const corpus_languages[CORPUS_LANGUAGES];

typedef struct corpus_draws {
    uint64_t seed, n;
} corpus_draws;

/* A kind of value that must be found. */
typedef struct corpus_slot {
    const char *name;
    detect_category category;
    bool checksummed; /* it has check digits, and they are right */
    /* Appends one in the way of the language. */
    void (*put)(corpus_draws *d, int language, strbuf *out);
} corpus_slot;

typedef struct corpus_label {
    size_t start, end;
    const corpus_slot *slot;
} corpus_label;

typedef struct corpus_document {
    strbuf text;
    corpus_label labels[CORPUS_MAX_LABELS]; /* [n_labels], in order */
    size_t n_labels;
    int language;
    bool clean, held_out;
} corpus_document;

/* Document i < CORPUS_DOCUMENTS; free its text with strbuf_free. */
void corpus_make(size_t i, corpus_document *d);

/* ---- within the corpus ---- */

/* Uniform in 0 ... below - 1. */
uint32_t corpus_draw(corpus_draws *d, uint32_t below);
#define CORPUS_PICK(d, array) ((array)[corpus_draw(d, sizeof(array) / sizeof *(array))])

const corpus_slot *corpus_find_slot(const char *name);
/* Appends a value of this name that must not be found; false if there is none. */
bool corpus_put_negative(corpus_draws *d, int language, const char *name, strbuf *out);

void corpus_put_email(corpus_draws *d, int language, strbuf *out);
void corpus_put_phone(corpus_draws *d, int language, strbuf *out);
void corpus_put_address(corpus_draws *d, int language, strbuf *out);
void corpus_put_date(corpus_draws *d, int language, strbuf *out);

/* Sentences with slots in angle brackets; sets end with NULL. */
extern const char *const *const corpus_sentences[CORPUS_LANGUAGES][2]; /* [][held out] */
extern const char *const *const corpus_fillers[CORPUS_LANGUAGES];
extern const char *const *const corpus_technical[2]; /* [held out] */

#endif
