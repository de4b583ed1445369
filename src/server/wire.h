/* OpenAI's requests, read and checked. Every field is honoured or refused by name; docs/server.md
 * lists them. */
#ifndef CALLA_SERVER_WIRE_H
#define CALLA_SERVER_WIRE_H

#include "server/fields.h"
#include "server/job.h"
#include "server/vocabulary.h"

enum { WIRE_MAX_TOOLS = 1024 };

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

/* One reader an endpoint: a body into *r, which is zero. On failure *r may be half filled; it is
 * freed with its job either way. r->body is the caller's to set before: a reference to the same
 * body. */
bool wire_read_chat(json_t *body, const wire_defaults *d, job_request *r, api_error *e);
bool wire_read_responses(json_t *body, const wire_defaults *d, job_request *r, api_error *e);
bool wire_read_completion(json_t *body, const wire_defaults *d, job_request *r, api_error *e);

/* ---- for the readers: what they have in common ---- */

typedef struct wire_reader {
    job_request *r;
    const wire_defaults *d;
    int64_t max_tokens, max_completion_tokens, n_top_logprobs; /* -1 = absent */
    bool has_stream_options, has_seed;
    int64_t thinking_budget, effort_budget; /* -1 = no limit, -2 = not said */
    int thinking, effort_thinking;          /* 1, 0, -1 = not said */
    const char *tool_choice_name;           /* named by tool_choice */
    const json_t *allowed_tools;            /* array of {"name"}: the only ones to be called */
    const json_t *flat_tools;               /* the list r->tools was made of, if it has that form */
    const char *format;                     /* of the answer: a type, or NULL */
    const json_t *format_schema;
    const char *schema_place;           /* what the schema is called in errors */
    const json_t *input, *instructions; /* of responses; NULL = absent */
    const json_t *prompt;               /* of completions */
} wire_reader;
void wire_reader_init(wire_reader *w, job_request *r, const wire_defaults *d);

/* Fields that all have; those of the endpoints that answer with choices; and where reasoning is
 * switched. `into` is the reader for these and for all wire_read_*. */
extern const field wire_shared_fields[], wire_choices_fields[], wire_thinking_fields[];
field_read_fn wire_read_effort, wire_read_preserve, wire_read_include_progress,
    wire_read_parallel_calls, wire_read_choice_word, wire_read_function_name,
    wire_read_top_logprobs, wire_read_max_completion, wire_read_format_type, wire_read_schema,
    wire_read_verbosity;
/* What changes nothing: a boolean, a string (NUL allowed), the type "function", anything. */
field_read_fn wire_ignore_bool, wire_check_string, wire_check_function_type, wire_ignore;

/* After all fields: what depends on several of them. The second for conversations. */
bool wire_finish_common(wire_reader *w, api_error *e);
bool wire_finish_chat(wire_reader *w, api_error *e);

/* Checks the messages of a chat request; and takes lines about billing out of system messages, see
 * wire_chat.c. */
bool wire_check_messages(json_t *messages, api_error *e);
void wire_drop_billing_lines(json_t *messages);
/* Makes messages (a new reference) of the items of a Responses request: a text, or an array; and
 * instructions, a text or NULL. */
bool wire_read_input(const json_t *input, const json_t *instructions, json_t **messages,
                     api_error *e);

/* Checks the tools of a chat request. */
bool wire_check_tools(const json_t *tools, api_error *e);
/* Makes the same form (a new reference, an array) of functions in the flat form; the types of the
 * other tools there are come into *ignored (array of strings, each once). */
bool wire_read_flat_tools(const json_t *value, json_t **tools, json_t **ignored, api_error *e);
/* tool_choice against the tools there are; and the grammar of calls, where they are held to one. */
bool wire_check_tool_choice(const wire_reader *w, api_error *e);
bool wire_make_calls(const wire_reader *w, api_error *e);

#endif
