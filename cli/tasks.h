/* calla tasks: its options, and how it talks to a server. */
#ifndef CALLA_CLI_TASKS_H
#define CALLA_CLI_TASKS_H

#include "consent.h"

#include <jansson.h>

enum {
    TASKS_MAX_CATEGORIES = 64,
    TASKS_NO_PRIORITY = INT32_MIN, /* none was given */
};

typedef struct tasks_args {
    const char *url, *key_env;
    const char *instructions, *instructions_file, *currency, *state, *idempotency_key;
    const char *keep[TASKS_MAX_CATEGORIES]; /* [n_keep] categories and classes that stay here */
    int32_t n_keep, priority, limit;
    int64_t tokens; /* 0 = no budget */
    double cost;    /* < 0 = no budget */
    bool local, unattended, paused, wait, json;
    char **operands; /* [n_operands] without the command */
    int n_operands;
} tasks_args;

/* ---- printing (tasks_print.c) ---- */

/* "" where there is none. */
const char *tasks_text_of(const json_t *object, const char *key);
long long tasks_number_of(const json_t *object, const char *key);
void tasks_print_json(const json_t *value);
/* A line; all of it; its result (or why there is none: the exit code). */
void tasks_print_head(const json_t *task);
void tasks_print_task(const json_t *task);
int tasks_print_result(const json_t *task);

/* ---- requests (tasks_http.c) ---- */

/* One request; `body` (taken) NULL: none is sent. *answer is the answer's JSON, also of errors. -1
 * = it worked, else the exit code, all being said. */
int tasks_call(const tasks_args *a, const char *method, const char *path, json_t *body,
               json_t **answer);

/* Takes each event of a stream until `take` is false; *last is the number of the last one before,
 * and after. -1 = the stream has ended, broke off, or was left. */
typedef bool tasks_event_fn(void *user, const json_t *event);
int tasks_listen(const tasks_args *a, const char *id, int64_t *last, tasks_event_fn *take,
                 void *user);

#endif
