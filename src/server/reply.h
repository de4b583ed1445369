/* What a job's events become on the wire: one path for streamed answers and whole ones. The thread
 * that owns the socket drives it. */
#ifndef CALLA_SERVER_REPLY_H
#define CALLA_SERVER_REPLY_H

#include "server/api_error.h"
#include "server/job.h"
#include "server/vocabulary.h"

typedef struct reply reply;

/* A wire format: how events become bytes in r->out. What it knows of an answer is r->state. */
typedef struct reply_format {
    const char *id_prefix;
    /* Makes r->state before all events, and what a stream begins with. False: no memory. */
    bool (*start)(reply *r);
    void (*free_state)(reply *r);
    /* Takes one event of a choice in: text, a call, a token. */
    void (*add)(reply *r, int32_t choice, const event *e, const char *text);
    /* The choice has ended; the reason, "stop", "length" or "tool_calls", is in static storage. */
    void (*finish)(reply *r, int32_t choice, const char *reason);
    /* Streamed: writes what was taken in of the choice, if anything. */
    void (*flush)(reply *r, int32_t choice);
    /* Streamed: so many tokens of the prompt have been read. */
    void (*progress)(reply *r, int64_t done, int64_t total);
    /* Writes the end of the stream (r->error_status tells how it ends), or the whole answer. */
    void (*end_stream)(reply *r);
    void (*write_whole)(reply *r);
    /* Bytes that the state holds, SIZE_MAX if memory ran out; of a stream: that grow with it. */
    size_t (*n_held)(const reply *r);
} reply_format;
extern const reply_format reply_chat, reply_completion, reply_responses;

struct reply {
    const reply_format *format;
    const vocabulary *vocabulary;
    job *job; /* owned */
    const char *model;
    size_t max_bytes;
    int64_t created;    /* seconds since 1970 */
    void *state;        /* the format's */
    int32_t n_finished; /* choices */
    event_batch batch;
    strbuf out;       /* streamed: bytes to send; else the body, once closed */
    int error_status; /* not 0: the job failed so */
    char error[512];
    bool closed; /* the engine is done with the job, and out has everything */
};

typedef enum reply_wait { REPLY_READY, REPLY_TIMEOUT, REPLY_GONE } reply_wait;
/* Waits until `fd` is readable, until `until_ns` (clock_ns()), or until the peer of `socket` (-1 =
 * none) has gone. */
reply_wait reply_wait_for(int fd, int socket, int64_t until_ns);

/* Takes over the job, which has been submitted. max_bytes: that may be held of an answer, beyond
 * which it becomes an error. NULL: no memory. */
reply *reply_create(const reply_format *format, const vocabulary *v, const char *model,
                    size_t max_bytes, job *j);
/* Cancels the job if it is not closed, waits for that, and frees both. */
void reply_free(reply *r);

/* Waits for events until `until_ns` (clock_ns()) and takes them in; or notices that the peer of
 * `socket` has gone. */
reply_wait reply_run(reply *r, int socket, int64_t until_ns);
/* What the client is told when error_status is set. */
void reply_get_error(const reply *r, api_error *e);

/* For the formats: pieces of JSON. */
void reply_put_string(strbuf *out, const strbuf *text);
void reply_put_timings(strbuf *out, const job *j);
/* Appends the token's log-probabilities to a list, in chat's form: {"token", "logprob", "bytes",
 * "top_logprobs"}. */
void reply_add_logprobs(const reply *r, strbuf *list, const calla_sampled *s);

#endif
