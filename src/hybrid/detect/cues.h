/* The words and fixed beginnings that say what is near them: all of them are found in one pass over
 * the text by a pattern matcher, whose time does not depend on the text. */
#ifndef CALLA_HYBRID_CUES_H
#define CALLA_HYBRID_CUES_H

#include "base/error.h"

#include <stdint.h>

typedef enum cue_class {
    CUE_IBAN,
    CUE_BIC,
    CUE_ABA,
    CUE_ACCOUNT,
    CUE_SORT_CODE,
    CUE_CARD,
    CUE_CVV,
    CUE_PIN,
    CUE_SALARY,
    CUE_SSN,
    CUE_STEUER_ID,
    CUE_NIR,
    CUE_DNI,
    CUE_CODICE,
    CUE_NHS,
    CUE_NINO,
    CUE_CPF,
    CUE_AADHAAR,
    CUE_PAN,
    CUE_BSN,
    CUE_PESEL,
    CUE_NIF_PT,
    CUE_BE_NN,
    CUE_NORDIC,
    CUE_AT_SVNR,
    CUE_PPS,
    CUE_EAST_EU,
    CUE_TR_ID,
    CUE_SIN,
    CUE_TFN,
    CUE_CN_ID,
    CUE_JP_ID,
    CUE_ID_ANY,
    CUE_PASSPORT,
    CUE_LICENCE,
    CUE_MRN,
    CUE_INSURANCE,
    CUE_ICD,
    CUE_DIAGNOSIS,
    CUE_ILLNESS,
    CUE_DOSE,
    CUE_LAB,
    CUE_PHONE,
    CUE_STREET_FIRST,
    CUE_STREET_LAST,
    CUE_STREET_PART,
    CUE_POSTCODE,
    CUE_BIRTH,
    CUE_IP,
    CUE_VERSION,
    CUE_MAC,
    CUE_NUMBER,
    CUE_TOKEN,
    CUE_PEM,
    CUE_PASSWORD,
    CUE_SECRET,
    CUE_URL,
    CUE_AUTHORIZATION,
    CUE_COMMAND,
    CUE_CJK_PLACE,
    N_CUES,
} cue_class;

/* One cue in a text: bytes [start, end). */
typedef struct cue {
    uint32_t start, end;
    uint32_t row; /* CUE_TOKEN: of token_forms */
    bool weak;    /* see cue_group */
} cue;

/* In a table the cue is in the head of the column; here it is empty, at the cell's beginning. */
static inline bool cue_is_of_table(const cue *c)
{
    return c->start == c->end;
}

typedef struct cue_list {
    cue *items; /* [n], ordered by end */
    size_t n, capacity;
} cue_list;

/* Texts of cues, as people write them in English, German, French, Spanish, Italian, Portuguese,
 * Dutch and Polish, some in other languages; '|' is between two. They are folded as the texts are
 * in which they are looked for, so accents make no difference, nor does the case of ASCII letters.
 * A text must stand alone, between bytes that are no ASCII letters or digits; '*' at its beginning
 * or end lifts that on that side. Beginnings of tokens (token_forms.h) are cues as well. */
typedef struct cue_group {
    cue_class class_;
    bool weak; /* they say little by themselves: other words have them, too */
    const char *texts;
} cue_group;
/* Each ends with one that has no texts. */
extern const cue_group cue_groups_money[], cue_groups_ids[], cue_groups_health[],
    cue_groups_contact[], cue_groups_technical[];

typedef struct cue_matcher cue_matcher;
calla_status cue_matcher_create(cue_matcher **m, calla_error *err);
void cue_matcher_free(cue_matcher *m);
/* Appends to lists[N_CUES] all cues in text [n]. */
calla_status cue_matcher_scan(const cue_matcher *m, const char *text, size_t n, cue_list *lists,
                              calla_error *err);

#endif
