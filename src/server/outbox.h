/* What the engine thread has to say about a job, on its way to the thread that owns the socket.
 *
 * The engine thread puts events and never waits. The other side waits on `wake_fd` (an eventfd, so
 * that it can poll its socket beside it) and takes all events there are at once. */
#ifndef CALLA_SERVER_OUTBOX_H
#define CALLA_SERVER_OUTBOX_H

#include "base/strbuf.h"

#include <pthread.h>

typedef enum event_kind {
    EVENT_PROGRESS,       /* a, b: prompt tokens done, of so many */
    EVENT_REASONING,      /* text */
    EVENT_CONTENT,        /* text */
    EVENT_TOOL_BEGIN,     /* a: index of the call; text: its name */
    EVENT_TOOL_ARGUMENTS, /* a: index; text: a piece of JSON */
    EVENT_TOKEN,          /* a: index into batch.tokens: log-probabilities of a content token */
    EVENT_FINISH,         /* text: the reason, as on the wire */
    EVENT_ERROR,          /* a: HTTP status; text: the message. Ends the job */
} event_kind;

typedef struct event {
    event_kind kind;
    int32_t choice;
    int64_t a, b;
    size_t offset, n_bytes; /* text: bytes of batch.text */
} event;

typedef struct event_batch {
    event *events; /* [n_events] */
    size_t n_events, events_capacity;
    calla_sampled *tokens; /* [n_tokens] */
    size_t n_tokens, tokens_capacity;
    strbuf text;
} event_batch;

typedef struct outbox {
    pthread_mutex_t lock;
    int wake_fd;
    event_batch waiting;
    bool failed; /* memory ran out: an event is missing */
    bool closed;
} outbox;

calla_status outbox_init(outbox *o, calla_error *err);
void outbox_deinit(outbox *o);

/* Consecutive pieces of the same kind of text (of a call) become one. */
void outbox_put(outbox *o, event_kind kind, int32_t choice, int64_t a, int64_t b, const char *text,
                size_t n_bytes);
void outbox_put_token(outbox *o, int32_t choice, const calla_sampled *sampled);
/* Nothing follows: the engine no longer knows the job, and its memory may be freed by whoever takes
 * this in. */
void outbox_close(outbox *o);
/* Bytes waiting to be taken. */
size_t outbox_waiting_bytes(outbox *o);

/* Moves what is waiting into *batch, which held an earlier batch or is zero; *closed tells whether
 * it was the last. False if memory had run out and events are missing. Does not block. */
bool outbox_take(outbox *o, event_batch *batch, bool *closed);
void event_batch_free(event_batch *batch);

#endif
