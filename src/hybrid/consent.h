/* Who agreed to what. When a request has to be asked about, its answer carries a token; the same
 * request sent again with it may go. A token is good once, for that request (every byte of its
 * canonical form), that client and that destination, and for a limited time. Tokens live in memory
 * only: after a restart the answer has to be given again. */
#ifndef CALLA_HYBRID_CONSENT_H
#define CALLA_HYBRID_CONSENT_H

#include "base/error.h"
#include "hybrid/sha256.h"

enum {
    CONSENT_ID_BYTES = 8,
    CONSENT_SECRET_BYTES = 16,
    CONSENT_ID_HEX = 2 * CONSENT_ID_BYTES + 1,
    /* "ID.SECRET" in hexadecimal, with the NUL. */
    CONSENT_TOKEN_BYTES = 2 * (CONSENT_ID_BYTES + CONSENT_SECRET_BYTES) + 2,
};

typedef struct consent_table consent_table;

/* n_most: tokens that wait at once; a further one takes the place of the oldest. */
calla_status consent_create(int32_t n_most, consent_table **t, calla_error *err);
void consent_free(consent_table *t);

/* What a token is bound to: a digest of client, destination and request. */
typedef struct consent_subject {
    unsigned char digest[SHA256_BYTES];
} consent_subject;
consent_subject consent_subject_of(const char *client, const char *destination, const char *request,
                                   size_t n_request);

/* Makes a token that is good until `until_ns` (clock_ns()). Fails without random numbers. */
calla_status consent_offer(consent_table *t, const consent_subject *subject, int64_t until_ns,
                           char token[CONSENT_TOKEN_BYTES], calla_error *err);

typedef enum consent_result {
    CONSENT_GIVEN,   /* and the token is used up */
    CONSENT_UNKNOWN, /* never made, used, too old, or made for something else */
} consent_result;
/* `id` is the part of the token that may be written down: it stands in the audit. */
consent_result consent_use(consent_table *t, const consent_subject *subject, const char *token,
                           int64_t now_ns, char id[CONSENT_ID_HEX]);

#endif
