/* How national ids are written. */
#ifndef CALLA_HYBRID_ID_FORMS_H
#define CALLA_HYBRID_ID_FORMS_H

#include "hybrid/detect/cues.h"
#include "hybrid/detect/id_checks.h"

#include <stddef.h>

/* What else must be there for a number of this form to be taken for the id. */
typedef enum id_need {
    ID_NEEDS_NOTHING, /* few other numbers have the form and pass the check */
    ID_NEEDS_CUE,     /* its name, near or some lines before */
    ID_NEEDS_NEAR,    /* its name beside it */
} id_need;

typedef struct id_form {
    const char *kind;
    unsigned char first; /* digits that the shape begins with */
    /* '9' a digit, 'A' a letter, '*' either, ' ' one of space, '-', '.'; anything else itself. */
    const char *shape;
    cue_class cue;
    id_need need;
    id_check *check;
} id_form;

extern const id_form id_forms[];
extern const size_t n_id_forms;
enum { ID_MAX_CHARACTERS = 20 };

#endif
