/* What a new task is asked for: the JSON body of POST /v1/tasks, read strictly. docs/hybrid.md
 * describes it for users. */
#ifndef CALLA_HYBRID_TASK_REQUEST_H
#define CALLA_HYBRID_TASK_REQUEST_H

#include "base/json.h"
#include "hybrid/policy.h"

enum {
    TASK_MAX_INSTRUCTION_BYTES = 64 << 10,
    TASK_MAX_INPUTS = 64,
    TASK_MAX_NAME_BYTES = 200,
    TASK_MAX_PRIORITY = 100, /* and down to minus that */
};

/* What a task lays down beyond the server's policy: it can only be stricter. */
typedef struct task_rules {
    bool may_use_cloud;
    bool waits; /* for somebody to agree where the policy asks; else such steps stay here */
    policy_action at_least[DETECT_N_CATEGORIES];
} task_rules;

/* What a task may use in all; what is not said is not bounded. */
typedef struct task_budget {
    int64_t tokens;       /* read and written, here and there; -1 = not said */
    double cost;          /* of the cloud; -1 = not said */
    const char *currency; /* borrowed; NULL = the price's */
} task_budget;

/* Borrowed from the body. */
typedef struct task_request {
    const char *instructions;
    struct {
        const char *name; /* "" = none */
        const char *text;
        size_t n_bytes;
    } inputs[TASK_MAX_INPUTS]; /* [n_inputs] */
    size_t n_inputs;
    const json_t *policy, *budget; /* as they were sent, or NULL; both have been checked */
    int64_t priority;
    bool paused;
} task_request;

/* CALLA_ERR_INPUT: the message begins with the field. *r is then of no use. */
calla_status task_request_read(const json_t *body, task_request *r, calla_error *err);

/* Texts as task_request_read takes them for instructions. `field` is for the error. */
calla_status task_read_instructions(const json_t *value, const char *field, const char **text,
                                    calla_error *err);
/* The objects "policy" and "budget" of a body; NULL or null = what holds without. */
calla_status task_rules_read(const json_t *object, task_rules *rules, calla_error *err);
calla_status task_budget_read(const json_t *object, task_budget *b, calla_error *err);

#endif
