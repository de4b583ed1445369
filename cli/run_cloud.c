/* calla run with a cloud: what leaves is looked at first, and what has to be asked about is asked
 * on the terminal. */
#include "consent.h"
#include "run.h"

#include "hybrid/chat_answer.h"
#include "hybrid/hybrid.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

enum { POLL_MS = 100 };

/* ---- the request ---- */

static void set_number(json_t *body, const char *key, double value)
{
    if (value == value) json_object_set_new(body, key, json_real(value)); /* NAN: not given */
}

/* The chat request of the options; NULL after printing why. */
static json_t *make_body(const run_args *args, const run_prompt *prompt)
{
    calla_error err;
    json_t *messages = NULL, *tools = NULL;
    calla_status status =
        json_parse_text(prompt->messages, strlen(prompt->messages), "messages", &messages, &err);
    if (status == CALLA_OK && prompt->tools)
        status = json_parse_text(prompt->tools, prompt->n_tools_bytes, "tools", &tools, &err);
    if (status != CALLA_OK) {
        json_decref(messages);
        cli_fail(&err);
        return NULL;
    }
    json_t *body = json_pack("{s:o}", "messages", messages);
    if (tools) json_object_set_new(body, "tools", tools);
    if (args->max_tokens >= 0)
        json_object_set_new(body, "max_tokens", json_integer(args->max_tokens));
    if (args->n_stops > 0) {
        json_t *stops = json_array();
        for (int32_t i = 0; i < args->n_stops; i++)
            json_array_append_new(stops, json_string(args->stops[i]));
        json_object_set_new(body, "stop", stops);
    }
    set_number(body, "temperature", args->sampling.greedy ? 0 : args->sampling.temperature);
    set_number(body, "top_p", args->sampling.top_p);
    if (args->sampling.seed >= 0)
        json_object_set_new(body, "seed", json_integer(args->sampling.seed));
    return body;
}

/* ---- asking ---- */

/* No terminal is a no. */
static bool ask(const hybrid *h, const hybrid_plan *plan)
{
    json_t *findings = hybrid_plan_findings(plan);
    cli_consent said = cli_ask_consent(hybrid_origin(h), findings);
    json_decref(findings);
    if (said == CLI_CONSENT_UNASKED) {
        cli_progress_end();
        fprintf(stderr, "calla run: there is no terminal to ask on\n");
    }
    return said == CLI_CONSENT_GIVEN;
}

/* ---- the answer ---- */

static void print_reasons(const hybrid_plan *plan, const char *where)
{
    for (size_t i = 0; i < json_array_size(plan->reasons); i++)
        fprintf(stderr, "calla run: %s: %s\n", where,
                json_string_value(json_array_get(plan->reasons, i)));
}

/* Content, then each call as a line of JSON, as of the local model. */
static void print_answer(const json_t *answer)
{
    chat_answer said = chat_answer_read(answer);
    const json_t *content = said.content;
    const json_t *calls = json_object_get(said.message, "tool_calls");
    strbuf out = {0};
    if (json_string_length(content) > 0) {
        strbuf_append(&out, json_string_value(content), json_string_length(content));
        if (out.n > 0 && out.data[out.n - 1] != '\n') strbuf_putc(&out, '\n');
    }
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *function = json_object_get(json_array_get(calls, i), "function");
        const char *arguments = json_string_value(json_object_get(function, "arguments"));
        strbuf_puts(&out, "{\"name\": ");
        json_write_value(&out, json_object_get(function, "name"));
        strbuf_printf(&out, ", \"arguments\": %s}\n", arguments ? arguments : "{}");
    }
    cli_write(out.data ? out.data : "", out.n);
    strbuf_free(&out);
}

static run_cloud_result take_answer(const hybrid_progress *p, const strbuf *out, hybrid_plan *plan)
{
    calla_error err;
    json_t *answer = NULL;
    if (p->state == HYBRID_FAILED) {
        if (p->may_fall_back) {
            hybrid_add_reason(plan->reasons, "%s", p->message);
            print_reasons(plan, "answered here");
            return RUN_LOCAL;
        }
        cli_failf("%s", p->message);
        return RUN_CLOUD_FAILED;
    }
    if (json_parse_text(out->data, out->n, "the cloud's answer", &answer, &err) != CALLA_OK) {
        cli_fail(&err);
        return RUN_CLOUD_FAILED;
    }
    print_answer(answer);
    json_decref(answer);
    return RUN_CLOUD_ANSWERED;
}

static run_cloud_result exchange(hybrid *h, hybrid_plan *plan)
{
    hybrid_exchange *x;
    hybrid_progress p = {0};
    calla_error err;
    strbuf out = {0};
    run_cloud_result result = RUN_CLOUD_FAILED;
    if (hybrid_exchange_begin(h, plan, &x, &err) != CALLA_OK) {
        cli_fail(&err);
        return result;
    }
    while (p.state != HYBRID_ANSWERED && p.state != HYBRID_FAILED &&
           !atomic_load(cli_cancel_flag())) {
        struct pollfd fd = {.fd = hybrid_exchange_fd(x), .events = POLLIN};
        if (poll(&fd, 1, POLL_MS) > 0) hybrid_exchange_take(x, &out, &p);
    }
    if (p.state == HYBRID_ANSWERED || p.state == HYBRID_FAILED)
        result = take_answer(&p, &out, plan);
    hybrid_exchange_end(x);
    strbuf_free(&out);
    return result;
}

static run_cloud_result run_plan(hybrid *h, const hybrid_request *request)
{
    hybrid_plan plan;
    calla_error err;
    run_cloud_result result = RUN_LOCAL;
    if (hybrid_plan_make(h, request, &plan, &err) != CALLA_OK) {
        cli_fail(&err);
        result = RUN_CLOUD_FAILED;
    } else if (plan.route == HYBRID_CLOUD) {
        result = exchange(h, &plan);
    } else if (plan.route == HYBRID_ASK && !request->consent && ask(h, &plan)) {
        hybrid_request again = *request;
        again.consent = plan.token;
        result = run_plan(h, &again);
    } else {
        print_reasons(&plan, "answered here");
    }
    hybrid_plan_free(&plan);
    return result;
}

run_cloud_result run_cloud(const run_args *args, const run_prompt *prompt)
{
    hybrid *h;
    calla_error err;
    json_t *body = make_body(args, prompt);
    if (!body) return RUN_CLOUD_FAILED;
    if (hybrid_open(&args->cloud, &h, &err) != CALLA_OK) {
        cli_fail(&err);
        json_decref(body);
        return RUN_CLOUD_FAILED;
    }
    const hybrid_request request = {.body = body};
    run_cloud_result result = run_plan(h, &request);
    hybrid_close(h);
    json_decref(body);
    return result;
}
