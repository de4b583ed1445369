#include "server/judge_model.h"

#include "base/clock.h"
#include "hybrid/chat_answer.h"
#include "server/submit.h"

#include <string.h>

enum { MOST_TOKENS = 1024 };

static json_t *make_body(const char *text, size_t n_bytes)
{
    return json_pack("{s:[{s:s, s:s}, {s:s, s:s%}], s:i, s:f, s:b, s:{s:s, s:{s:s, s:o}}}",
                     "messages", "role", "system", "content", judge_instructions, "role", "user",
                     "content", text, n_bytes, "max_tokens", MOST_TOKENS, "temperature", 0.0,
                     "enable_thinking", 0, "response_format", "type", "json_schema", "json_schema",
                     "name", "judgement", "schema", judge_schema());
}

/* The content of a whole answer. */
static char *take_content(const reply *a)
{
    json_t *value = NULL;
    char *copy = NULL;
    if (a->error_status ||
        json_parse_text(a->out.data, a->out.n, "the judgement", &value, NULL) != CALLA_OK)
        return NULL;
    const char *content = json_string_value(chat_answer_read(value).content);
    if (content) copy = strdup(content);
    json_decref(value);
    return copy;
}

char *judge_model_ask(void *user, const char *text, size_t n_bytes, int64_t deadline_ns)
{
    judge_asker *asker = user;
    api_error e;
    char *content = NULL;
    if (clock_ns() >= deadline_ns) return NULL;
    json_t *body = make_body(text, n_bytes);
    if (!body) return NULL;
    reply *a = submit_request(asker->server, body, NULL, &reply_chat, wire_read_chat, &e);
    while (a && !a->closed && clock_ns() < deadline_ns)
        if (reply_run(a, asker->socket, deadline_ns) == REPLY_GONE) break;
    if (a && a->closed) {
        content = take_content(a);
        asker->n_tokens += a->job->stats.n_prompt + a->job->stats.n_generated;
    } else if (a) {
        asker->n_tokens += (int64_t)n_bytes + MOST_TOKENS; /* late: no more than that */
    }
    reply_free(a); /* which ends a job that is late */
    json_decref(body);
    return content;
}
