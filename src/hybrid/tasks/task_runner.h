/* Runs the tasks of a store, one step at a time, on a thread of its own. Between two steps the task
 * with the highest priority goes on, of those the one filed first.
 *
 * A step runs in the cloud if the plan wants it there and nothing keeps it: the policy keeps no
 * text it reads, nor what it is told to do, here; none comes from a step that read what is
 * sensitive (kept here or asked about); the task's own rules and its budget allow it; and the
 * request then passes the way of every other request for the cloud (hybrid.h), which is the only
 * one by which anything leaves. Where that asks, the task waits for an answer, and others go on.
 * Everything else runs here, through `ask`. Plans and the merging of results always do. */
#ifndef CALLA_HYBRID_TASK_RUNNER_H
#define CALLA_HYBRID_TASK_RUNNER_H

#include "hybrid/hybrid.h"
#include "hybrid/tasks/task_store.h"

typedef struct task_answer {
    char *text; /* [n_bytes] malloc'ed */
    size_t n_bytes;
    int64_t input_tokens, output_tokens; /* -1 = not known */
    bool cut;                            /* it has all the tokens it might have */
} task_answer;

/* The local model's answer to a chat request, which is not kept. CALLA_ERR_CANCELLED: *cancelled
 * became true; CALLA_ERR_INPUT and others: there is none, the message says why. */
typedef calla_status task_ask_fn(void *user, json_t *request, const atomic_bool *cancelled,
                                 task_answer *answer, calla_error *err);

typedef struct task_runner_options {
    task_store *store; /* borrowed; its on_change is the runner's */
    hybrid *hybrid;    /* NULL = there is no cloud */
    task_ask_fn *ask;
    void *ask_user;
    judge_ask_fn *judge; /* see hybrid_request; NULL = none */
    void *judge_user;
    int64_t *judge_tokens; /* what `judge` has used since it was last set to 0; NULL: not known */
    /* A step that was interrupted so often, as when it is what brings the process down, fails. */
    int32_t n_interruptions;
    /* Of the store's failures; NULL = nobody. */
    void (*report)(void *user, const char *message);
    void *report_user;
} task_runner_options;

typedef struct task_runner task_runner;

calla_status task_runner_start(const task_runner_options *options, task_runner **r,
                               calla_error *err);
/* No further steps; the one that runs may go on until `deadline_ns` (clock_ns()), then it is
 * interrupted. */
void task_runner_stop(task_runner *r, int64_t deadline_ns);
/* After task_runner_stop. NULL is allowed. */
void task_runner_free(task_runner *r);

/* A descriptor that is readable once tasks have changed, until it is read; -1 = there are none
 * left. Any thread. */
int task_runner_watch(task_runner *r);
void task_runner_unwatch(task_runner *r, int fd);

#endif
