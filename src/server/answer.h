/* The tokens of one choice become events for its reader: text without broken characters, split into
 * reasoning, content and tool calls, ended by stop texts. Runs on the engine thread. */
#ifndef CALLA_SERVER_ANSWER_H
#define CALLA_SERVER_ANSWER_H

#include "model/chat.h"
#include "server/job.h"
#include "server/vocabulary.h"

/* A token whose log-probabilities wait until its text is certain to be part of the content. */
typedef struct held_token {
    calla_sampled sampled;
    size_t start; /* bytes of content before it */
} held_token;

typedef struct answer {
    const vocabulary *vocabulary;
    outbox *out;
    int32_t choice;
    bool logprobs, one_tool_call;
    bool calls_have_form;      /* what begins a call goes on as one */
    bool calls_by_token;       /* until then a call is text: what the content is made of may be */
    calla_chat_parser *parser; /* NULL: the text is the content */
    calla_utf8_stream utf8;    /* without a parser, which has its own */
    calla_stop_matcher *stops;
    bool stopped;   /* by a stop text, or by the end of the only tool call allowed */
    bool no_memory; /* within an event of the parser */
    int32_t n_tool_calls;
    int64_t n_reasoning; /* tokens */
    size_t n_content_in, n_content_out;
    held_token *held; /* [n_held] */
    size_t n_held, held_capacity;
    /* What was generated, for replay.h; with a parser only. */
    strbuf raw, reasoning, content;
    json_t *calls; /* array of {"function": {"name", "arguments"}} */
    strbuf arguments;
    char *name;
} answer;

/* prompt: what the answer continues (job_request.chat), else NULL. */
calla_status answer_init(answer *a, const vocabulary *v, job *j, const job_prompt *prompt,
                         int32_t choice, calla_error *err);
void answer_deinit(answer *a);

/* Whether the answer is (still) reasoning. */
bool answer_is_reasoning(const answer *a);
/* The next token, which does not end the answer. */
calla_status answer_push(answer *a, const calla_sampled *sampled, calla_error *err);
/* No more: what was held back comes out. */
calla_status answer_finish(answer *a, calla_error *err);

#endif
