/* The inside of a server: what its connections share. */
#ifndef CALLA_SERVER_CONTEXT_H
#define CALLA_SERVER_CONTEXT_H

#include "hybrid/hybrid.h"
#include "hybrid/tasks/task_runner.h"
#include "server/acceptor.h"
#include "server/access.h"
#include "server/connections.h"
#include "server/judge_model.h"
#include "server/prepare.h"
#include "server/scheduler.h"
#include "server/server.h"

#include <microhttpd.h>

struct server {
    server_options options; /* defaults filled in */
    char name[128];         /* of the model: its directory's */
    const char **models;    /* [1 + n_aliases] */
    access_rules access;
    server_log log;
    metrics metrics;
    replay *replay;
    scheduler *scheduler;
    hybrid *hybrid;    /* the cloud beside the model, or NULL */
    task_store *tasks; /* or NULL */
    judge_asker task_judge;
    task_runner *task_runner; /* under the lock until the model is open */
    connections *connections;
    struct MHD_Daemon *daemon;
    acceptor *acceptor; /* hands connections to the daemon */
    int listen_fd;      /* before there is one, else -1 */
    int32_t port;
    int64_t start_time; /* seconds since 1970 */

    pthread_t engine_thread;
    bool engine_thread_runs;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* the state or n_requests; on CLOCK_MONOTONIC */
    int32_t n_requests;     /* under the lock: begun, and not yet answered to the last byte */
    _Atomic server_state state;
    calla_error error; /* once the state is SERVER_FAILED */
    /* Set by the engine thread before the state is SERVER_OK, then constant. */
    calla_tokenizer *tokenizer;
    vocabulary vocabulary;
    wire_defaults defaults;
    calla_engine_info info;
};

#endif
