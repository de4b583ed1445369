/* What a job's events become on the wire: one path for streamed answers and whole ones. The thread
 * that owns the socket drives it. */
#ifndef CALLA_SERVER_REPLY_H
#define CALLA_SERVER_REPLY_H

#include "server/api_error.h"
#include "server/job.h"
#include "server/vocabulary.h"

/* One choice of the answer: all of it so far (not streamed), or what the current chunk will carry.
 */
typedef struct reply_choice {
    strbuf reasoning, content;
    strbuf calls;    /* JSON of the tool calls, without the brackets */
    strbuf logprobs; /* JSON of the tokens, without the brackets */
    strbuf extra[3]; /* text completions: further lists of the log-probabilities */
    int32_t n_calls;
    size_t n_characters;    /* text completions: of text before the next token */
    calla_utf8_stream utf8; /* its beginning, if it is in the middle of one */
    bool call_open;         /* whole answers: the last call's arguments are still coming */
    const char *finish;     /* static storage, or NULL */
} reply_choice;

typedef struct reply reply;

/* A wire format. */
typedef struct reply_format {
    const char *id_prefix, *object, *chunk_object;
    const char *head; /* JSON before the choices, with a comma behind, or "" */
    /* Before all events. */
    void (*start)(reply *r);
    /* Takes one event of the choice in. */
    void (*add)(reply *r, reply_choice *c, const event *e, const char *text);
    /* Streamed: writes what was taken in of choice number i, if anything, as chunks. */
    void (*flush)(reply *r, int32_t i);
    /* Not streamed: writes the "choices" element number i. */
    void (*write_choice)(reply *r, int32_t i);
} reply_format;
extern const reply_format reply_chat, reply_completion;

struct reply {
    const reply_format *format;
    const vocabulary *vocabulary;
    job *job; /* owned */
    const char *model;
    size_t max_bytes;
    int64_t created;       /* seconds since 1970 */
    reply_choice *choices; /* [job_n_choices] */
    int32_t n_finished;
    event_batch batch;
    strbuf out;       /* streamed: bytes to send; else the body, once closed */
    size_t n_sent;    /* of out */
    int error_status; /* not 0: the job failed so */
    char error[512];
    bool closed; /* the engine is done with the job, and out has everything */
    bool noted;  /* job->request.note has been said */
    int64_t last_write_ns;
};

typedef enum reply_wait { REPLY_READY, REPLY_TIMEOUT, REPLY_GONE } reply_wait;
/* Waits until `fd` is readable, until `until_ns` (clock_ns()), or until the peer of `socket` (-1 =
 * none) has gone. */
reply_wait reply_wait_for(int fd, int socket, int64_t until_ns);

/* Takes over the job, which has been submitted. max_bytes: of an answer that is not streamed,
 * beyond which it becomes an error. NULL: no memory. */
reply *reply_create(const reply_format *format, const vocabulary *v, const char *model,
                    size_t max_bytes, job *j);
/* Cancels the job if it is not closed, waits for that, and frees both. */
void reply_free(reply *r);

/* Waits for events until `until_ns` (clock_ns()) and takes them in; or notices that the peer of
 * `socket` has gone. */
reply_wait reply_run(reply *r, int socket, int64_t until_ns);
/* What the client is told when error_status is set. */
void reply_get_error(const reply *r, api_error *e);
/* Streamed: a comment that keeps the connection alive. */
void reply_keep_alive(reply *r);

/* For the formats: "data: " and what all chunks begin with, up to the choices' bracket; and the end
 * of a chunk, with usage and timings where they belong. */
void reply_begin_chunk(reply *r);
void reply_end_chunk(reply *r, bool last);
/* "finish_reason": ... */
void reply_put_finish(strbuf *out, const char *finish);
void reply_put_string(strbuf *out, const strbuf *text);
/* A token as JSON string: its text, broken characters replaced. */
void reply_put_token(const reply *r, strbuf *out, int32_t token);
/* An array of its bytes. */
void reply_put_token_bytes(const reply *r, strbuf *out, int32_t token);

#endif
