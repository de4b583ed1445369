/* The inside of a task runner, for its files. */
#ifndef CALLA_HYBRID_TASK_RUNNER_PRIVATE_H
#define CALLA_HYBRID_TASK_RUNNER_PRIVATE_H

#include "hybrid/tasks/task_plan.h"
#include "hybrid/tasks/task_runner.h"

#include <pthread.h>

struct task_runner {
    task_runner_options options;
    pthread_t thread;
    pthread_mutex_t lock;   /* over what follows */
    pthread_cond_t changed; /* on CLOCK_MONOTONIC */
    bool any_change, ended;
    char running[TASK_ID_BYTES]; /* the task whose step runs, "" = none */
    int *watchers;               /* [n_watchers] descriptors */
    size_t n_watchers, watchers_capacity;

    atomic_bool stopping;
    atomic_bool cancelled; /* the step that runs is to end */
};

/* Runs one step and writes down what came of it. The error is the store's, or memory. */
calla_status task_step_run(task_runner *r, task_work *w, calla_error *err);

#endif
