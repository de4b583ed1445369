#include "hybrid/consent.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* One token that was offered; until_ns 0 = the place is free. The secret itself is not kept. */
typedef struct offer {
    unsigned char id[CONSENT_ID_BYTES], secret_digest[SHA256_BYTES];
    consent_subject subject;
    int64_t until_ns;
    uint64_t turn; /* the higher, the later */
} offer;

struct consent_table {
    pthread_mutex_t lock;
    offer *offers; /* [n] */
    int32_t n;
    uint64_t turn;
};

calla_status consent_create(int32_t n_most, consent_table **out, calla_error *err)
{
    consent_table *t = calloc(1, sizeof *t);
    offer *offers = calloc((size_t)n_most, sizeof *offers);
    if (!t || !offers) {
        free(t);
        free(offers);
        return error_set(err, CALLA_ERR_MEMORY, "no memory for consents");
    }
    *t = (consent_table){.offers = offers, .n = n_most};
    pthread_mutex_init(&t->lock, NULL);
    *out = t;
    return CALLA_OK;
}

void consent_free(consent_table *t)
{
    if (!t) return;
    pthread_mutex_destroy(&t->lock);
    free(t->offers);
    free(t);
}

consent_subject consent_subject_of(const char *client, const char *destination, const char *request,
                                   size_t n_request)
{
    consent_subject subject;
    sha256 s;
    sha256_init(&s);
    sha256_add_text(&s, client, strlen(client));
    sha256_add_text(&s, destination, strlen(destination));
    sha256_add_text(&s, request, n_request);
    sha256_digest(&s, SHA256_BYTES, subject.digest);
    return subject;
}

/* A free place, or else the oldest. */
static offer *find_place(consent_table *t)
{
    offer *oldest = &t->offers[0];
    for (int32_t i = 0; i < t->n; i++) {
        if (t->offers[i].until_ns == 0) return &t->offers[i];
        if (t->offers[i].turn < oldest->turn) oldest = &t->offers[i];
    }
    return oldest;
}

calla_status consent_offer(consent_table *t, const consent_subject *subject, int64_t until_ns,
                           char token[CONSENT_TOKEN_BYTES], calla_error *err)
{
    unsigned char random[CONSENT_ID_BYTES + CONSENT_SECRET_BYTES];
    if (getrandom(random, sizeof random, 0) != sizeof random)
        return error_set(err, CALLA_ERR_IO, "no random numbers for a consent");
    hex_write(random, CONSENT_ID_BYTES, token);
    token[2 * CONSENT_ID_BYTES] = '.';
    hex_write(random + CONSENT_ID_BYTES, CONSENT_SECRET_BYTES, token + 2 * CONSENT_ID_BYTES + 1);
    pthread_mutex_lock(&t->lock);
    offer *o = find_place(t);
    memcpy(o->id, random, sizeof o->id);
    sha256_of(random + CONSENT_ID_BYTES, CONSENT_SECRET_BYTES, o->secret_digest);
    o->subject = *subject;
    o->until_ns = until_ns;
    o->turn = ++t->turn;
    pthread_mutex_unlock(&t->lock);
    explicit_bzero(random, sizeof random);
    return CALLA_OK;
}

static bool read_token(const char *token, unsigned char id[CONSENT_ID_BYTES],
                       unsigned char secret_digest[SHA256_BYTES])
{
    char id_text[CONSENT_ID_HEX];
    unsigned char secret[CONSENT_SECRET_BYTES];
    if (strlen(token) != CONSENT_TOKEN_BYTES - 1 || token[2 * CONSENT_ID_BYTES] != '.')
        return false;
    snprintf(id_text, sizeof id_text, "%.*s", (int)sizeof id_text - 1, token);
    if (!hex_read(id_text, id, CONSENT_ID_BYTES) ||
        !hex_read(token + 2 * CONSENT_ID_BYTES + 1, secret, CONSENT_SECRET_BYTES))
        return false;
    sha256_of(secret, sizeof secret, secret_digest);
    return true;
}

consent_result consent_use(consent_table *t, const consent_subject *subject, const char *token,
                           int64_t now_ns, char id_text[CONSENT_ID_HEX])
{
    unsigned char id[CONSENT_ID_BYTES], secret_digest[SHA256_BYTES];
    consent_result result = CONSENT_UNKNOWN;
    if (!read_token(token, id, secret_digest)) return result;
    pthread_mutex_lock(&t->lock);
    for (int32_t i = 0; i < t->n; i++) {
        offer *o = &t->offers[i];
        if (o->until_ns == 0) continue;
        if (now_ns >= o->until_ns) {
            *o = (offer){0};
            continue;
        }
        if (memcmp(o->id, id, sizeof id) != 0) continue;
        if (!digest_equal(o->secret_digest, secret_digest, SHA256_BYTES) ||
            !digest_equal(o->subject.digest, subject->digest, SHA256_BYTES))
            continue;
        *o = (offer){0};
        hex_write(id, sizeof id, id_text);
        result = CONSENT_GIVEN;
        break;
    }
    pthread_mutex_unlock(&t->lock);
    return result;
}
