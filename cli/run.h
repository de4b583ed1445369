/* calla run from inside: the prompt, and what happens to the answer. */
#ifndef CALLA_CLI_RUN_H
#define CALLA_CLI_RUN_H

#include "cli.h"

#include <jansson.h>

enum { RUN_MAX_STOPS = 16 };

typedef struct run_args {
    cli_engine_args engine;
    cli_sampling_args sampling;
    const char *text, *file, *messages, *tools, *system; /* -p, -f, --messages, --tools, --system */
    bool raw, no_think, allow_control;
    int show_thinking;  /* 1 yes, 0 no, -1 if stdout is a terminal */
    int64_t max_tokens; /* -1 = until the context is full */
    int32_t n_logprobs; /* -1 = none */
    bool json, stats;
    const char *stops[RUN_MAX_STOPS]; /* [n_stops] */
    int32_t n_stops;
    hybrid_options cloud; /* url NULL: none */
} run_args;

/* ---- prompt ---- */

typedef struct run_prompt {
    calla_prompt prompt; /* text and its literal parts */
    char *tools;         /* JSON, or NULL */
    char *messages;      /* JSON, NULL with --raw */
    size_t n_tools_bytes;
} run_prompt;

/* Reads the inputs that args name and renders them. False after printing why; run_prompt_free is
 * due in any case. */
bool run_prompt_make(const run_args *args, run_prompt *prompt);
void run_prompt_free(run_prompt *prompt);

/* ---- cloud ---- */

typedef enum run_cloud_result {
    RUN_CLOUD_ANSWERED, /* the answer is printed */
    RUN_CLOUD_FAILED,   /* why not is */
    RUN_LOCAL,          /* the local model is to answer; why is printed */
} run_cloud_result;

/* Asks the cloud of args->cloud, if what would leave may. */
run_cloud_result run_cloud(const run_args *args, const run_prompt *prompt);

/* ---- answer ---- */

/* Where generated text goes: to stdout as it comes, or into memory for --json. Stop texts are
 * looked for in the answer itself, not in reasoning or tool calls (with --raw: in everything). */
typedef struct run_answer {
    const run_args *args;
    calla_chat_parser *parser; /* NULL with --raw */
    calla_utf8_stream utf8;
    /* Memory streams; all but arguments with --json only. Calls are {"name": NAME, "arguments":
     * OBJECT} as JSON text, joined by ", ": a tree would round numbers and lose large ones. */
    FILE *text, *reasoning, *calls, *arguments;
    char *text_data, *reasoning_data, *calls_data, *arguments_data;
    size_t n_text, n_reasoning, n_calls_bytes, n_arguments;
    int32_t n_calls;
    char *tool_name; /* of the call at hand, as a JSON string */
    calla_stop_matcher *stops;
    bool show_reasoning, styled; /* styled: the terminal is dimmed now */
    bool in_reasoning;
    bool stopped; /* a stop text was seen */
    bool reader_gone, no_memory;
    char last; /* last byte written to stdout, 0 = none yet */
} run_answer;

calla_status run_answer_init(run_answer *a, const run_args *args, const run_prompt *prompt,
                             calla_error *err);
void run_answer_deinit(run_answer *a);
/* The bytes of one generated token. */
calla_status run_answer_push(run_answer *a, const char *bytes, size_t n_bytes, calla_error *err);
/* The end: what was held back, the terminal's colours, a final newline. */
calla_status run_answer_finish(run_answer *a, calla_error *err);

#endif
