/* Tasks in an SQLite file (WAL): what was asked, what was planned, every attempt at a step, and
 * what came of it. One process at a time has the file; everything acknowledged is on the disk.
 *
 * A task has rounds: the first is what was asked, each further one a follow-up on the result. A
 * round has steps: number 0 writes the plan, the plan's own follow, and where there are several a
 * last one merges their results. An attempt is written before its step starts and completed, in one
 * transaction with the step's result, after. So a process that is killed loses nothing: its
 * attempt is found without an end, is marked as interrupted, and the step is tried again as a
 * further attempt.
 *
 * Errors are CALLA_ERR_IO where the file fails. Any thread. */
#ifndef CALLA_HYBRID_TASK_STORE_H
#define CALLA_HYBRID_TASK_STORE_H

#include "hybrid/sha256.h"
#include "hybrid/tasks/task_request.h"

enum { TASK_ID_BYTES = 48, TASK_MAX_TASKS = 10000 };

typedef struct task_store task_store;

/* Makes the file (mode 0600) if there is none. Attempts that have no end are marked. */
calla_status task_store_open(const char *path, task_store **s, calla_error *err);
/* NULL is allowed. */
void task_store_close(task_store *s);
/* Called after every change, from the thread that made it. */
void task_store_on_change(task_store *s, void (*changed)(void *user), void *user);

/* ---- for who asks ---- */

/* Whose tasks: the SHA-256 of an API key, "" for who sent none; NULL = all. */
typedef struct task_owner {
    const char *hex;
} task_owner;

/* Files a task under this id. `key` (NULL = none) is the sender's own name for it: one sent before
 * by the same owner gives that task's id instead, and nothing new. CALLA_ERR_UNSUPPORTED: there are
 * too many tasks. */
calla_status task_store_create(task_store *s, const task_request *r, const char *owner,
                               const char *key, char id[TASK_ID_BYTES], calla_error *err);

typedef enum task_result {
    TASK_OK,
    TASK_UNKNOWN,
    TASK_WRONG_STATE, /* what is asked is not possible in the task's state */
    TASK_WRONG_TOKEN, /* a consent to something else */
} task_result;

typedef enum task_command { TASK_PAUSE, TASK_RESUME, TASK_CANCEL, TASK_DELETE } task_command;
calla_status task_store_command(task_store *s, task_owner owner, const char *id,
                                task_command command, task_result *result, calla_error *err);
calla_status task_store_set_priority(task_store *s, task_owner owner, const char *id,
                                     int64_t priority, task_result *result, calla_error *err);
/* A follow-up on a finished task. */
calla_status task_store_follow_up(task_store *s, task_owner owner, const char *id,
                                  const char *instructions, task_result *result, calla_error *err);

/* The answer to what a task waits for somebody to agree to: its token, or NULL for no. The step
 * goes on with it; a token that is too old by then is asked for anew. */
calla_status task_store_answer(task_store *s, task_owner owner, const char *id, const char *token,
                               task_result *result, calla_error *err);

/* {"id", "object": "task", "state" ...} with all rounds; NULL = there is no such task. */
calla_status task_store_read(task_store *s, task_owner owner, const char *id, json_t **task,
                             calla_error *err);
/* An array of tasks without rounds, in the order in which they run, then those that ended, newest
 * first; `state` NULL = all. */
calla_status task_store_list(task_store *s, task_owner owner, const char *state, int64_t n_most,
                             json_t **tasks, calla_error *err);
/* The task's events with numbers above `after`, in order, a hundred at most. *ended: there are no
 * more now, and the task is done, has failed or was cancelled. *found: it exists. */
calla_status task_store_events(task_store *s, task_owner owner, const char *id, int64_t after,
                               json_t **events, bool *ended, bool *found, calla_error *err);

/* {"tasks": {STATE: n}, "tokens": {"local", "check", "cloud"}, "cost": {CURRENCY: x}} of all tasks
 * in the file. */
calla_status task_store_totals(task_store *s, json_t **totals, calla_error *err);

/* ---- for who runs them ---- */

typedef enum task_kind { TASK_STEP_PLAN, TASK_STEP_WORK, TASK_STEP_MERGE } task_kind;

/* A text a step reads. */
typedef struct task_input {
    char *label; /* "input_1", "step_2", "result" */
    char *name;  /* the file's, or "" */
    char *text;
    size_t n_bytes;
    bool sensitive; /* a result of a step that read what is sensitive */
    bool kept;      /* for who runs it: nobody can agree to its leaving */
} task_input;

/* The step that is next. */
typedef struct task_work {
    char id[TASK_ID_BYTES], owner[SHA256_HEX];
    int64_t round, step; /* from 0 */
    task_kind kind;
    char *asked;        /* the round's instructions */
    char *instructions; /* TASK_STEP_WORK: the step's */
    bool wants_cloud;   /* TASK_STEP_WORK: the plan sends it there */
    char *answer;       /* of who was asked: a token, "" = no; NULL = nobody was */
    task_input *inputs; /* [n_inputs] what it reads; of a plan: all there is */
    size_t n_inputs;
    json_t *policy, *budget; /* or NULL */
    /* Of all attempts so far; those that were interrupted count as what they might have used. */
    int64_t tokens_used;
    double cost_used;
    int64_t n_interrupted; /* attempts at this step */
} task_work;

/* The first step of the first task that waits; *found = false: none does. */
calla_status task_store_next(task_store *s, task_work *w, bool *found, calla_error *err);
void task_work_free(task_work *w);

/* What an attempt used, or before it, what it may use at most. */
typedef struct task_usage {
    int64_t input_tokens, output_tokens;
    double cost;
    const char *currency; /* borrowed; NULL = none */
} task_usage;

/* Before a step starts. *attempt = 0: the task was changed meanwhile, and the step is not to be
 * run. `reasons`: an array of texts. */
calla_status task_store_begin(task_store *s, const task_work *w, bool in_cloud,
                              const json_t *reasons, const task_usage *at_most, int64_t *attempt,
                              calla_error *err);

/* A step of a plan. */
typedef struct task_planned {
    const char *title, *instructions, *why;
    const json_t *inputs; /* labels */
    bool in_cloud;
} task_planned;

/* The attempt's end: what it used, and its step's result. With a plan's, the steps. */
typedef struct task_outcome {
    const char *result; /* [n_result] */
    size_t n_result;
    bool sensitive;            /* it comes from what is sensitive */
    const task_usage *usage;   /* NULL: not known, what was reserved counts */
    const char *message;       /* for people, or NULL */
    const task_planned *steps; /* [n_steps] of TASK_STEP_PLAN */
    size_t n_steps;
} task_outcome;
/* The last step's result is the round's, and the task is done. */
calla_status task_store_finish(task_store *s, const task_work *w, int64_t attempt,
                               const task_outcome *o, calla_error *err);
/* The attempt ended without a result, and the step waits again: `outcome` is "failed",
 * "interrupted" or "cancelled", `message` (NULL = none) for people. usage NULL: not known, what
 * was reserved counts. */
calla_status task_store_give_up(task_store *s, const task_work *w, int64_t attempt,
                                const char *outcome, const task_usage *usage, const char *message,
                                calla_error *err);
/* Somebody has to agree before the step may leave: the task waits, and others go on. */
typedef struct task_question {
    const char *token, *destination;
    int64_t until;          /* seconds since 1970 */
    const json_t *findings; /* with masked excerpts */
} task_question;
calla_status task_store_ask(task_store *s, const task_work *w, const task_question *q,
                            calla_error *err);
/* The local model's look at what would leave has used so many tokens. */
calla_status task_store_add_check(task_store *s, const task_work *w, int64_t n_tokens,
                                  calla_error *err);
/* The task ends without a result. `code` as in errors of the API. */
calla_status task_store_fail(task_store *s, const task_work *w, const char *code,
                             const char *message, calla_error *err);
/* Whether the task is one that runs: it was not cancelled, deleted or failed. */
calla_status task_store_is_wanted(task_store *s, const char *id, bool *wanted, calla_error *err);

#endif
