/* Requests to the cloud: any OpenAI-compatible endpoint, over libcurl.
 *
 * One thread owns all transfers (curl multi); connections are kept and used again. A caller begins
 * a call, waits at its descriptor, takes what has come, and ends it: ending one that still runs
 * breaks it off. No more than UPSTREAM_HELD_BYTES wait to be taken; then the transfer pauses.
 *
 * The key goes to the configured address and nowhere else: redirects are not followed, and are an
 * error. TLS is verified. Without TLS only this machine itself is talked to. The key is in no
 * message of this file. */
#ifndef CALLA_HYBRID_UPSTREAM_H
#define CALLA_HYBRID_UPSTREAM_H

#include "base/strbuf.h"

enum {
    UPSTREAM_HELD_BYTES = 256 << 10,
    UPSTREAM_ERROR_BYTES = 64 << 10, /* of the body of an answer that is an error */
};

typedef struct upstream upstream;
typedef struct upstream_call upstream_call;

typedef struct upstream_config {
    const char *url;     /* up to and with "/v1"; copied */
    const char *key;     /* NULL = none; copied */
    const char *ca_file; /* certificates to trust in place of the system's, NULL = those; copied */
    int32_t n_calls;     /* at once, at most */
} upstream_config;

typedef struct upstream_limits {
    int64_t connect_ms;
    int64_t first_byte_ms; /* until the answer begins, each try */
    int64_t idle_ms;       /* between two pieces of it */
    int64_t total_ms;      /* all tries together */
    int32_t n_retries;     /* further tries after the first */
    int64_t response_bytes;
} upstream_limits;

typedef enum upstream_phase {
    UPSTREAM_WAITING,   /* nothing has come, or only failures that are tried again */
    UPSTREAM_ANSWERING, /* a status of 2xx; its body comes */
    UPSTREAM_DONE,      /* the body is whole */
    UPSTREAM_FAILED,    /* see failure */
} upstream_phase;

typedef enum upstream_failure {
    UPSTREAM_NO_FAILURE,
    UPSTREAM_REFUSED,    /* an answer with a status of 4xx or 5xx, whose body can be taken */
    UPSTREAM_REDIRECTED, /* ... of 3xx */
    UPSTREAM_UNREACHED,  /* no connection, or it broke */
    UPSTREAM_SLOW,       /* a time ran out */
    UPSTREAM_TOO_LARGE,
    UPSTREAM_STOPPED, /* the server ends */
} upstream_failure;

typedef struct upstream_status {
    upstream_phase phase;
    upstream_failure failure;
    int http_status;       /* of the last try that had one, else 0 */
    bool is_stream;        /* its type is text/event-stream */
    bool any_passed;       /* some of the body has been taken */
    int32_t n_tries;       /* begun */
    int32_t retry_after_s; /* as the last answer said, 0 = not */
    int64_t bytes_sent;    /* heads and bodies of all tries, as far as they went */
    int64_t bytes_received;
    char message[256]; /* of a failure: one line */
} upstream_status;

/* Checks the URL and the key (neither is repeated in the error) and starts the thread. */
calla_status upstream_open(const upstream_config *config, upstream **u, calla_error *err);
/* No further calls; those running go on until `deadline_ns` (clock_ns()), then they fail. Returns
 * when none runs. Any thread. */
void upstream_stop(upstream *u, int64_t deadline_ns);
/* After every call has been ended. NULL is allowed. */
void upstream_close(upstream *u);
/* "https://host:port", without what else the URL has: for people and for the audit. */
const char *upstream_origin(const upstream *u);
/* Whether a text has the key in it. Never of a key so short that it may be a word. */
bool upstream_holds_key(const upstream *u, const char *text, size_t n_bytes);

/* POST of a JSON body [n_bytes], copied, to URL + path. An error: too many calls at once
 * (CALLA_ERR_UNSUPPORTED), no memory, or the upstream was stopped. */
calla_status upstream_begin(upstream *u, const char *path, const char *body, size_t n_bytes,
                            const upstream_limits *limits, upstream_call **call, calla_error *err);
/* Readable when there is something to take. */
int upstream_call_fd(const upstream_call *call);
/* Appends what has come to *out and tells where things are. Does not block. */
void upstream_take(upstream_call *call, strbuf *out, upstream_status *status);
/* Breaks the call off if it runs, waits until it no longer does, and frees it; *status (may be
 * NULL) is how it ended. */
void upstream_end(upstream_call *call, upstream_status *status);

#endif
