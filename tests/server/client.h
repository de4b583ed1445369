/* A server in this process on models/tiny, and an HTTP client for it. */
#ifndef CALLA_TESTS_SERVER_CLIENT_H
#define CALLA_TESTS_SERVER_CLIENT_H

#include "server/server.h"
#include "support/support.h"

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>

/* Options for quick, repeatable tests: any port, greedy, one thread, 64 MiB of cache. */
server_options client_options(void);
/* Starts it and waits until it is ready. */
server *client_start(const server_options *options);
/* Stops it at once; it must have been in order. */
void client_stop(server *s);
/* The same for a group of tests, whose setup has put the server into *state. */
int client_teardown(void **state);

typedef struct answer_t {
    long status;
    char *body, *headers; /* NUL-terminated */
    size_t n_body;
    json_t *json; /* of the body, or NULL */
    bool broken;  /* the connection ended before the answer did */
} answer_t;
void answer_clear(answer_t *a);

typedef struct request_t {
    const char *method; /* [POST with a body, else GET] */
    const char *path;
    const char *body;       /* or NULL */
    const char *headers[8]; /* besides Content-Type: application/json with a body */
    bool no_content_type;
    size_t abort_after;    /* closes the connection after so many bytes of the answer, 0 = never */
    const char *watch_for; /* a text of the answer's body: */
    atomic_bool *seen;     /* becomes true with it; NULL = then the connection is closed */
} request_t;

answer_t client_send(const server *s, const request_t *request);
/* POST of a JSON text made by jansson's pack format; must give `status`. */
answer_t client_post(const server *s, long status, const char *path, const char *format, ...);
answer_t client_post_json(const server *s, long status, const char *path, json_t *body /* taken */);
answer_t client_get(const server *s, long status, const char *path);

/* The data events of a stream as a JSON array, "[DONE]" as its string. */
json_t *client_events(const answer_t *a);

/* By path: object keys and array indices divided by '.'; NULL if there is no such thing. */
json_t *json_at(const json_t *value, const char *path);
const char *text_at(const json_t *value, const char *path);
int64_t int_at(const json_t *value, const char *path);

/* body with further fields, which json_pack's format makes; returns body. */
json_t *json_with(json_t *body, const char *format, ...);

/* A question, and what models/tiny answers to it when greedy. */
extern const char river[], river_answer[];

/* A chat with one user message. */
json_t *chat(const char *question);
/* The chat of an array of messages ("role", "content", ...), NULL ends it. */
json_t *chat_of(const char *role, ...);
/* What an answer's first choice says: choices.0.message.content. */
const char *content_of(const answer_t *a);
/* All pieces of one field of the deltas of choice i of a stream, joined (malloc'ed): "content",
 * "reasoning_content". */
char *joined(const json_t *events, int64_t choice, const char *field);

/* A chat that goes on until it is cut off: the tokens that would end it are banned. */
json_t *endless_chat(const server *s, int max_tokens, bool stream);

/* A value of /metrics. */
double client_metric(const server *s, const char *name);
/* Waits until it is that; until it is at least that. */
void client_wait_for(const server *s, const char *metric, double value);
void client_wait_for_least(const server *s, const char *metric, double least);
void pause_ms(int ms);

#endif
