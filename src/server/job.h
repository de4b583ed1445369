/* A job: what one request asks of the engine. The thread that owns the request's socket makes it,
 * hands it to the scheduler and waits at its outbox until that is closed; in between the engine
 * thread alone touches it, except for what is atomic and the outbox. */
#ifndef CALLA_SERVER_JOB_H
#define CALLA_SERVER_JOB_H

#include "base/json.h"
#include "grammar/grammar.h"
#include "server/outbox.h"

#include <calla/model.h>

enum { JOB_MAX_STOPS = 16, JOB_MAX_CHOICES = 64 };

/* What the answer has to begin with. */
typedef enum tool_choice { TOOLS_AUTO, TOOLS_NONE, TOOLS_REQUIRED } tool_choice;

/* One prompt, ready for the engine. */
typedef struct job_prompt {
    calla_prompt rendered; /* chat: the text that was encoded */
    calla_tokens tokens;
    int64_t n_cached; /* taken over from the cache; set by the engine thread */
    bool ready;       /* it has been run: other choices find it in the cache */
} job_prompt;

/* What was asked for, as the wire formats read it. Strings belong to `body`. */
typedef struct job_request {
    json_t *body; /* the request */
    bool chat;
    bool stream, include_usage, include_progress;
    /* Chat. */
    json_t *messages, *tools; /* [tools NULL = none]; owned */
    const char *input_name;   /* what the messages or the prompt are called on the wire; static */
    json_t *ignored_tools;    /* types of tools that are not functions, owned; or NULL */
    tool_choice tool_choice;
    const char *tool_name; /* the one that must be called, or NULL */
    bool one_tool_call;    /* parallel_tool_calls: false */
    bool no_thinking, preserve_thinking;
    int64_t thinking_budget; /* tokens of reasoning, -1 = no limit */
    grammar *grammar;        /* of the content, owned; or NULL */
    grammar *calls;          /* of tool calls, owned; NULL = as the model writes them */
    /* Both. */
    calla_sampling sampling;
    calla_logit_bias *logit_bias; /* [sampling.n_logit_bias] owned */
    bool logprobs;
    int64_t max_tokens; /* -1 = until the context is full */
    int32_t n;
    const char *stops[JOB_MAX_STOPS]; /* [n_stops] */
    int32_t n_stops;
    const char *user; /* for fairness, or NULL */
    const char *note; /* JSON that the answer has under "calla", or NULL; borrowed */
    /* Text completions. */
    const json_t *prompt; /* as it was sent; borrowed from body */
    bool echo;            /* the prompt comes first in the answer */
} job_request;

/* Filled by the engine thread, read when the outbox is closed. */
typedef struct job_stats {
    int64_t submitted_ns, started_ns, first_token_ns, finished_ns; /* clock_ns(); 0 = never */
    int64_t n_prompt, n_cached, n_prefilled;                       /* over all prompts */
    int64_t prefill_ns, decode_ns;    /* of the pieces and steps the job took part in */
    int64_t n_generated, n_reasoning; /* over all choices */
    int64_t n_decoded;                /* of them, by a decode step */
    char finish[24];                  /* of the first choice, or what ended the job */
} job_stats;

typedef struct job {
    char id[48]; /* as on the wire */
    job_request request;
    job_prompt *prompts; /* [n_prompts]; choice i belongs to prompt i / request.n */
    int32_t n_prompts;
    char *context; /* chat: key of what comes before the answer (replay.h) */
    outbox out;
    atomic_bool cancelled; /* nobody waits for the answer any more */
    int64_t deadline_ns;   /* clock_ns() after which it is given up; 0 = never */
    job_stats stats;
    /* The scheduler's. */
    struct job *next;
    int32_t n_started, n_finished; /* choices */
} job;

static inline int32_t job_n_choices(const job *j)
{
    return j->n_prompts * j->request.n;
}

/* Frees what the request owns besides its body. */
void job_request_deinit(job_request *r);
job *job_create(calla_error *err);
void job_free(job *j);

#endif
