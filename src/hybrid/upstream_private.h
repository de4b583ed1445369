/* What the two halves of the requests to the cloud share: callers (upstream.c) and the thread that
 * owns all transfers (upstream_transfer.c). */
#ifndef CALLA_HYBRID_UPSTREAM_PRIVATE_H
#define CALLA_HYBRID_UPSTREAM_PRIVATE_H

#include "hybrid/upstream.h"

#include <curl/curl.h>
#include <pthread.h>

struct upstream {
    char *url, *origin, *key, *ca_file;
    int32_t n_most;
    struct curl_slist *headers; /* of every request */
    CURLM *multi;
    pthread_t thread;
    bool runs;
    pthread_mutex_t lock;
    pthread_cond_t ended; /* a call is over */
    /* Under the lock; calls are put in front by any thread and taken out by the transfer thread
     * alone, which may so walk the list without it. */
    upstream_call *calls;
    int32_t n_calls; /* in the list */
    bool stopping, closing;
    int64_t deadline_ns; /* with stopping */
};

struct upstream_call {
    upstream *owner;
    upstream_call *next;
    int wake_fd;
    char *url, *body;
    size_t n_body;
    upstream_limits limits;
    /* The transfer thread's. */
    CURL *easy;                         /* while a try runs */
    int64_t start_ns, try_ns;           /* of the call, of the try */
    int64_t due_ns;                     /* no try runs: when the next one begins */
    int64_t last_ns;                    /* something came */
    size_t n_head, n_answer;            /* bytes of this try's answer */
    bool too_large, has_begun;          /* this try's answer has */
    int64_t ended_sent, ended_received; /* by tries that have ended */
    /* Under the lock. */
    strbuf held; /* to be taken */
    upstream_status status;
    bool cancelled, paused, resume, over;
};

/* The transfer thread of an upstream: until it is closing and no call is left. */
void *upstream_transfers(void *upstream);

#endif
