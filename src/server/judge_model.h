/* The local model's judgement of a text that may leave (hybrid/judge.h): a job like any other,
 * whose answer a schema holds to its form. */
#ifndef CALLA_SERVER_JUDGE_MODEL_H
#define CALLA_SERVER_JUDGE_MODEL_H

#include "hybrid/judge.h"
#include "server/server.h"

/* On whose behalf: if the peer of `socket` (-1 = none) goes, so does the job. */
typedef struct judge_asker {
    server *server;
    int socket;
    int64_t n_tokens; /* that its jobs have used, in and out */
} judge_asker;

/* A judge_ask_fn; `user` is a judge_asker. */
char *judge_model_ask(void *user, const char *text, size_t n_bytes, int64_t deadline_ns);

#endif
