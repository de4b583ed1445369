/* Chat requests for `cloud` and `hybrid` (docs/hybrid.md): planned, sent on, and their answers
 * passed back, by the thread of the client's connection. The transfer has a thread of its own
 * (hybrid/upstream.h); the engine's has nothing to do with it. */
#ifndef CALLA_SERVER_CLOUD_H
#define CALLA_SERVER_CLOUD_H

#include "server/http.h"

/* The names of the two in /v1/models, NULL at the end. */
extern const char *const cloud_models[];

typedef enum cloud_result {
    CLOUD_ANSWERED, /* one http_respond_* was called */
    CLOUD_LOCAL,    /* the local model is to answer r->json; r->note and r->route say why */
    CLOUD_ERROR,    /* *e is the answer */
} cloud_result;

/* Whether the request is for one of the two. */
bool cloud_is_meant(const http_request *r);
cloud_result cloud_answer_chat(http_request *r, api_error *e);
/* Breaks off what still runs. NULL is allowed. */
void cloud_answer_free(cloud_answer *a);

/* Appends the numbers of s->hybrid in Prometheus' text format. */
void cloud_write_metrics(const server *s, strbuf *out);

#endif
