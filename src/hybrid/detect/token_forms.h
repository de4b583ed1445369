/* The published forms of services' keys and tokens: a fixed beginning, then so many characters of
 * so an alphabet. */
#ifndef CALLA_HYBRID_TOKEN_FORMS_H
#define CALLA_HYBRID_TOKEN_FORMS_H

#include <stddef.h>

typedef enum token_alphabet {
    TOKEN_ALNUM,  /* A-Z a-z 0-9 */
    TOKEN_UPPER,  /* A-Z 0-9 */
    TOKEN_HEX,    /* 0-9 a-f A-F */
    TOKEN_URL,    /* alnum, '-', '_' */
    TOKEN_DOTTED, /* alnum, '-', '_', '.' */
    TOKEN_BASE64, /* alnum, '+', '/', '=' */
    TOKEN_PATH,   /* alnum, '/', '-', '_' */
    TOKEN_N_ALPHABETS,
} token_alphabet;

typedef struct token_form {
    const char *prefix; /* exactly so */
    const char *kind;   /* the service */
    token_alphabet alphabet;
    unsigned short least, most; /* characters after the prefix */
} token_form;

extern const token_form token_forms[];
extern const size_t n_token_forms;

#endif
