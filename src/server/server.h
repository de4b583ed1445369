/* calla serve: an OpenAI-compatible HTTP server over one engine. docs/server.md is its manual.
 *
 * Threads: libmicrohttpd gives every connection one, which reads and prepares the request, hands
 * the job to the engine thread and waits at its outbox and its socket at once; the engine thread
 * owns the engine, its sessions and the prompt cache (scheduler.h). Queues between them are
 * bounded. */
#ifndef CALLA_SERVER_SERVER_H
#define CALLA_SERVER_SERVER_H

#include "hybrid/hybrid.h"

#include <stdio.h>

typedef struct server server;

/* Zero-initialise; a zero or NULL field means the default in brackets. Borrowed by server_start
 * until server_free. */
typedef struct server_options {
    const char *model; /* the checkpoint directory */
    calla_engine_options
        engine;               /* n_sessions, tokenizer and keep_decoded are the server's to set */
    const char *host;         /* address to listen on ["127.0.0.1"] */
    int32_t port;             /* [8080]; -1 = any that is free */
    const char *api_key;      /* or several, one a line [none: all on this machine may use it] */
    bool insecure;            /* listen beyond this machine without a key */
    const char *const *hosts; /* [n_hosts] further names the server answers to */
    int32_t n_hosts;
    const char *const *origins; /* [n_origins] web origins whose pages may use it */
    int32_t n_origins;
    const char *const *aliases; /* [n_aliases] further names of the model */
    int32_t n_aliases;
    int32_t n_parallel;       /* answers computed at once, 1 ... 8 [4] */
    int32_t n_queue;          /* requests that may wait [64] */
    int32_t n_connections;    /* beyond them requests get a 503 [256] */
    int64_t max_body_bytes;   /* [32 MiB] */
    int64_t max_answer_bytes; /* of an answer that is not streamed [64 MiB] */
    int64_t max_unread_bytes; /* that wait for a reader before a stream pauses [256 KiB] */
    int32_t timeout_s;        /* of a request, < 0 = none [3600] */
    int32_t idle_s;           /* in which a request must arrive, and an answer be read on [120] */
    int32_t keep_alive_ms;    /* silence of a stream before a comment is sent [3000] */
    calla_sampling sampling;  /* what requests do not say; the model's own by server_defaults */
    bool no_thinking;         /* requests that do not say: answer without reasoning */
    int32_t thinking_budget;  /* of such requests, in tokens [no limit] */
    bool strict_cache;        /* answers are prefilled again before they are continued */
    bool keep_billing_line;   /* see wire_chat.c */
    const hybrid_options *hybrid; /* a cloud beside the model, docs/hybrid.md [none] */
    const char *tasks;            /* a file for tasks, docs/hybrid.md [none are taken] */
    FILE *log;                    /* [nowhere] */
    bool log_json, log_verbose;
} server_options;

typedef enum server_state {
    SERVER_LOADING,
    SERVER_OK,
    SERVER_FAILED, /* server_error says why */
    SERVER_STOPPED /* or about to */
} server_state;

/* Checks the options, listens, and begins to open the model; requests get a 503 until that is done.
 */
calla_status server_start(const server_options *options, server **s, calla_error *err);
/* Reads the policy of options.hybrid anew; on an error the old one stays. */
calla_status server_reload(server *s, calla_error *err);
/* The port it listens on. */
int32_t server_port(const server *s);
server_state server_get_state(const server *s);
/* Waits until the model is open, or could not be opened: then gives the error. */
calla_status server_wait_ready(server *s, calla_error *err);
/* Most memory that requests and what is remembered of them take, besides the engine's. */
int64_t server_request_bytes(const server *s);
/* What the engine holds, once it is ready. */
void server_get_engine_info(const server *s, calla_engine_info *info);
/* No further connections and requests; those running may go on for grace_ms, then they are cut off.
 * Returns when the engine is idle; a device that failed is an error. */
calla_status server_stop(server *s, int64_t grace_ms, calla_error *err);
/* After server_stop. NULL is allowed. */
void server_free(server *s);

#endif
