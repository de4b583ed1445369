/* What models are told about a task, and the local model's plan: JSON that a schema holds to its
 * form, which is checked all the same. */
#ifndef CALLA_HYBRID_TASK_PLAN_H
#define CALLA_HYBRID_TASK_PLAN_H

#include "hybrid/tasks/task_store.h"

enum { TASK_MAX_STEPS = 8 };

/* Steps, whose texts belong to `json`. */
typedef struct task_plan {
    task_planned steps[TASK_MAX_STEPS]; /* [n_steps] */
    size_t n_steps;
    json_t *json;
} task_plan;
void task_plan_free(task_plan *p);

/* The chat request for the plan of w (TASK_STEP_PLAN), with its schema. Of a text the beginning is
 * shown unless hidden[i]: then the plan, which may go elsewhere, cannot repeat it.
 * hidden: [w->n_inputs]. NULL = no memory. */
json_t *task_plan_ask(const task_work *w, const bool *hidden);
/* Checks an answer [n_bytes]. CALLA_ERR_INPUT: it is no plan for this task. *p is to be freed in
 * any case. */
calla_status task_plan_read(const task_work *w, const char *answer, size_t n_bytes, task_plan *p,
                            calla_error *err);
/* The plan in place of one that is of no use: what was asked for, of the sensitive texts here and
 * of the others there (not of a follow-up, nor unless it may_leave), or in one step. */
calla_status task_plan_by_texts(const task_work *w, bool may_leave, const char *why, task_plan *p,
                                calla_error *err);

/* The chat request for a step of the other kinds. NULL = no memory. */
json_t *task_step_ask(const task_work *w);
/* No more tokens than this are in the texts of a request: a token has a byte or more, and the
 * template a few. */
int64_t task_count_tokens(const json_t *request);

#endif
