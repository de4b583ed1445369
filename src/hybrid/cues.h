/* The words and fixed beginnings that say what is near them: all of them are found in one pass over
 * the text by a pattern matcher, whose time does not depend on the text. */
#ifndef CALLA_HYBRID_CUES_H
#define CALLA_HYBRID_CUES_H

#include "base/error.h"

#include <stdint.h>

typedef enum cue_class {
#define CUES(X)                                                                                    \
    X(IBAN)                                                                                        \
    X(BIC)                                                                                         \
    X(ABA) X(ACCOUNT) X(SORT_CODE) X(CARD) X(CVV) X(PIN) X(SALARY) X(AMOUNT) X(SSN) X(STEUER_ID)   \
        X(NIR) X(DNI) X(CODICE) X(NHS) X(NINO) X(CPF) X(AADHAAR) X(PAN) X(BSN) X(PESEL) X(NIF_PT)  \
            X(BE_NN) X(NORDIC) X(AT_SVNR) X(PPS) X(EAST_EU) X(TR_ID) X(SIN) X(TFN) X(CN_ID)        \
                X(JP_ID) X(ID_ANY) X(PASSPORT) X(LICENCE) X(MRN) X(INSURANCE) X(ICD) X(DIAGNOSIS)  \
                    X(MEDICATION) X(LAB) X(DOSE) X(PHONE) X(AT) X(STREET_BEFORE) X(STREET_AFTER)   \
                        X(STREET_SUFFIX) X(STREET_WORD) X(ADDRESS) X(BIRTH) X(IP) X(VERSION)       \
                            X(MAC) X(NUMBER) X(TOKEN) X(PEM) X(PASSWORD) X(SECRET) X(URL)          \
                                X(AUTHORIZATION)
#define X(name) CUE_##name,
    CUES(X)
#undef X
        N_CUES,
} cue_class;

/* One cue in a text: bytes [start, end), and which of its class's texts it is. */
typedef struct cue {
    uint32_t start, end;
    uint32_t row; /* of cue_rows */
} cue;

typedef struct cue_list {
    cue *items; /* [n], ordered by end */
    size_t n, capacity;
} cue_list;

/* A cue's text: small ASCII letters without accents, as folded text has them (or other scripts'
 * bytes). It must stand alone, between bytes that are no ASCII letters or digits; '*' at its
 * beginning or end lifts that on that side. */
typedef struct cue_row {
    cue_class class_;
    const char *text;
} cue_row;
extern const cue_row cue_rows[];
extern const size_t n_cue_rows;

typedef struct cue_matcher cue_matcher;
calla_status cue_matcher_create(cue_matcher **m, calla_error *err);
void cue_matcher_free(cue_matcher *m);
/* Appends to lists[N_CUES] all cues in text [n]. */
calla_status cue_matcher_scan(const cue_matcher *m, const char *text, size_t n, cue_list *lists,
                              calla_error *err);

#endif
