/* OpenAI's requests, read and checked. Every field is honoured or refused by name; docs/server.md
 * lists them. */
#ifndef CALLA_SERVER_WIRE_H
#define CALLA_SERVER_WIRE_H

#include "server/fields.h"
#include "server/job.h"
#include "server/vocabulary.h"

typedef struct wire_defaults {
    calla_sampling sampling; /* the seed is ignored */
    bool no_thinking;
    int64_t thinking_budget; /* -1 = none */
    const vocabulary *vocabulary;
    int32_t n_ctx;
    const char *const *models; /* [n_models] names the model answers to, its own first */
    int32_t n_models;
    bool keep_billing_line; /* see wire_chat.c */
} wire_defaults;

/* Read a body into *r, which is zero. On failure *r may be half filled; it is freed with its job
 * either way. r->body is the caller's to set before: a reference to the same body. */
bool wire_read_chat(json_t *body, const wire_defaults *d, job_request *r, api_error *e);
bool wire_read_completion(json_t *body, const wire_defaults *d, job_request *r, api_error *e);

/* What both have in common, for the two of them. */
typedef struct wire_reader {
    job_request *r;
    const wire_defaults *d;
    int64_t max_tokens, max_completion_tokens, n_top_logprobs; /* -1 = absent */
    bool has_logprobs, has_stream_options, has_seed;
    int64_t thinking_budget, effort_budget; /* -1 = no limit, -2 = not said */
    int thinking, effort_thinking;          /* 1, 0, -1 = not said */
    const char *tool_choice_name;           /* named by tool_choice */
    const char *format;                     /* response_format.type, or NULL */
    const json_t *format_schema;
    json_t *prompt; /* of completions */
} wire_reader;
extern const field wire_common_fields[];
void wire_reader_init(wire_reader *w, job_request *r, const wire_defaults *d);
/* After all fields: what depends on several of them. */
bool wire_finish_common(wire_reader *w, api_error *e);

/* Checks the messages and tools of a chat request. */
bool wire_check_messages(json_t *messages, bool keep_billing_line, api_error *e);
bool wire_check_tools(const json_t *tools, api_error *e);

#endif
