#include "server/task_model.h"

#include "base/clock.h"
#include "hybrid/chat_answer.h"
#include "server/submit.h"

#include <string.h>
#include <time.h>

enum { POLL_MS = 20, RETRY_MS = 100 };

static calla_status cancelled_error(calla_error *err)
{
    return error_set(err, CALLA_ERR_CANCELLED, "the step was cancelled");
}

static void pause_ms(int ms)
{
    const struct timespec t = {.tv_nsec = ms * 1000000};
    nanosleep(&t, NULL);
}

/* Whether it may go better later: too many requests wait, or the server is about to end; then the
 * step is one that is interrupted, not one that fails. */
static bool may_pass(const server *s, int http_status)
{
    return http_status == 429 || http_status == 503 || server_get_state(s) != SERVER_OK;
}

/* The answer's text and what it used. */
static calla_status take(const reply *a, task_answer *into, calla_error *err)
{
    json_t *value = NULL;
    CALLA_TRY(json_parse_text(a->out.data, a->out.n, "the model's answer", &value, err));
    chat_answer said = chat_answer_read(value);
    const char *content = json_string_value(said.content);
    const job_stats *s = &a->job->stats;
    *into = (task_answer){
        .text = strdup(content ? content : ""),
        .input_tokens = s->n_prompt,
        .output_tokens = s->n_generated,
        .cut = said.cut,
    };
    json_decref(value);
    if (!into->text) return error_set(err, CALLA_ERR_MEMORY, "no memory for the model's answer");
    into->n_bytes = strlen(into->text);
    return CALLA_OK;
}

/* Runs the job; *again: it is to be tried once more. */
static calla_status ask_once(server *s, json_t *request, const atomic_bool *cancelled,
                             task_answer *into, bool *again, calla_error *err)
{
    api_error e = {0};
    calla_status status;
    reply *a = submit_request(s, request, NULL, &reply_chat, wire_read_chat, &e);
    while (a && !a->closed && !atomic_load(cancelled))
        reply_run(a, -1, clock_ns() + (int64_t)POLL_MS * 1000000);
    if (a && !a->closed) {
        status = cancelled_error(err);
    } else if (a && !a->error_status) {
        status = take(a, into, err);
    } else {
        if (a) reply_get_error(a, &e);
        *again = may_pass(s, e.status);
        status = error_set(err, CALLA_ERR_INPUT, "%s", e.message);
    }
    reply_free(a); /* which ends a job that runs */
    return status;
}

calla_status task_model_ask(void *user, json_t *request, const atomic_bool *cancelled,
                            task_answer *into, calla_error *err)
{
    server *s = user;
    while (!atomic_load(cancelled)) {
        bool again = false;
        calla_status status = ask_once(s, request, cancelled, into, &again, err);
        if (!again) return status;
        pause_ms(RETRY_MS);
    }
    return cancelled_error(err);
}
