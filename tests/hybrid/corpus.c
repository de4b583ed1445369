#include "corpus.h"

#include "base/philox.h"

#include <string.h>

const char *const corpus_languages[CORPUS_LANGUAGES] = {"en", "de", "fr", "es",
                                                        "it", "pt", "nl", "pl"};

uint32_t corpus_draw(corpus_draws *d, uint32_t below)
{
    uint32_t r[4];
    philox4x32(d->seed, d->n++, 6, r);
    return (uint32_t)(((uint64_t)r[0] * below) >> 32);
}

static const char *pick(corpus_draws *d, const char *const *set)
{
    uint32_t n = 0;
    while (set[n]) n++;
    return set[corpus_draw(d, n)];
}

/* A sentence with its slots filled; labels are those of the document. */
static void put_sentence(corpus_draws *d, corpus_document *doc, const char *sentence)
{
    while (*sentence) {
        const char *open = strchr(sentence, '<'), *close = open ? strchr(open, '>') : NULL;
        if (!close) break;
        strbuf_append(&doc->text, sentence, (size_t)(open - sentence));
        char slot[32] = "";
        size_t n = (size_t)(close - open - 1);
        if (n < sizeof slot) memcpy(slot, open + 1, n);
        const corpus_slot *found = corpus_find_slot(slot);
        if (found && doc->n_labels < CORPUS_MAX_LABELS) {
            size_t start = doc->text.n;
            found->put(d, doc->language, &doc->text);
            doc->labels[doc->n_labels++] = (corpus_label){start, doc->text.n, found};
        } else if (!corpus_put_negative(d, doc->language, slot, &doc->text)) {
            strbuf_append(&doc->text, open, n + 2);
        }
        sentence = close + 1;
    }
    strbuf_puts(&doc->text, sentence);
}

void corpus_make(size_t i, corpus_document *doc)
{
    corpus_draws d = {.seed = 0xCA11A + i};
    *doc = (corpus_document){.language = (int)(i / 2 % CORPUS_LANGUAGES),
                             .clean = i % 2 == 0,
                             .held_out = i / 2 / CORPUS_LANGUAGES % 4 == 0};
    uint32_t n_sensitive = doc->clean ? 0 : 1 + corpus_draw(&d, 4);
    uint32_t n_others = 2 + corpus_draw(&d, 5);
    while (n_sensitive + n_others > 0) {
        const char *sentence;
        if (corpus_draw(&d, n_sensitive + n_others) < n_sensitive) {
            n_sensitive--;
            /* A fifth of them is configuration, logs and code, which have no language. */
            sentence = corpus_draw(&d, 5) == 0
                           ? pick(&d, corpus_technical[doc->held_out])
                           : pick(&d, corpus_sentences[doc->language][doc->held_out]);
        } else {
            n_others--;
            sentence = pick(&d, corpus_fillers[doc->language]);
        }
        put_sentence(&d, doc, sentence);
        size_t n = strlen(sentence);
        strbuf_puts(&doc->text, sentence[n - 1] == '\n'   ? ""
                                : corpus_draw(&d, 4) == 0 ? "\n\n"
                                                          : " ");
    }
}
