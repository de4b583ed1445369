/* Tasks under test: a store with a runner, a local model that answers as it is told, and, where
 * there are rules for it, a fake cloud. */
#ifndef CALLA_TESTS_HYBRID_TASK_BENCH_H
#define CALLA_TESTS_HYBRID_TASK_BENCH_H

#include "base/clock.h"
#include "hybrid/fake_cloud.h"
#include "hybrid/tasks/task_plan.h"
#include "hybrid/tasks/task_runner.h"
#include "support/files.h"
#include "support/json_text.h"
#include "support/support.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CARD "4111 1111 1111 1111"

extern const task_owner task_all;

void pause_us(int64_t us);
/* By path: keys and indices divided by '.'; borrowed. */
json_t *path_in(const json_t *value, const char *path);
/* "" if there is no text. */
const char *text_in(const json_t *value, const char *path);

typedef struct bench {
    task_store *store;
    task_runner *runner;
    hybrid *hybrid;
    fake_cloud *cloud;
    char path[600], policy[600], audit[600];
    /* The local model: its plan, and how it answers. */
    const char *plan;
    bool plan_is_cut;
    calla_status status; /* of its answers to steps, CALLA_OK */
    atomic_bool hold;    /* steps (not plans) wait until it is false or they are cancelled */
    atomic_int n_asked, n_planned;
    pthread_mutex_t lock;
    strbuf heard; /* all requests */
} bench;

/* "from afar" is what the cloud says. The runner is not started. */
bench *bench_open(const char *rules); /* NULL = without a cloud */
void bench_close(bench *b);
void bench_start(bench *b);
void bench_stop(bench *b);
/* A task_ask_fn; `user` is the bench. A step's answer is "did: " and the beginning of what it was
 * told. */
calla_status bench_ask(void *user, json_t *request, const atomic_bool *cancelled, task_answer *a,
                       calla_error *err);
calla_status answer_with(const char *text, task_answer *a);

void bench_file(bench *b, const char *id, const char *body);
json_t *bench_read(bench *b, const char *id);
/* The task once it is in this state; it fails in another that does not end by itself. */
json_t *bench_await(bench *b, const char *id, const char *wanted);
void bench_expect(bench *b, const char *id, const char *result);
void bench_command(bench *b, const char *id, task_command c, task_result expected);

#define STEP(what, inputs, where)                                                                  \
    "{\"title\": \"t\", \"instructions\": \"" what "\", \"inputs\": [" inputs                      \
    "], \"where\": \"" where "\", \"why\": \"w\"}"
#define PLAN(steps) "{\"steps\": [" steps "]}"

/* A policy that prices the cloud. */
#define ALLOWING                                                                                   \
    "{\"cloud\": {\"retries\": 0}, \"prices\": {\"far\": {\"input\": 1000, \"output\": 2000, "     \
    "\"currency\": \"EUR\"}}}"

#define SPLIT                                                                                      \
    PLAN(STEP("first", "\"input_1\"", "cloud") ", " STEP(                                          \
        "second", "\"input_2\"", "cloud") ", " STEP("third", "\"step_2\"", "cloud"))

#endif
