/* response, and the events that build one.
 *
 * An answer is a list of items: reasoning, messages and calls, in the order in which they were
 * generated. Each is open until something else comes; what it says is in its events once in pieces
 * and once as a whole, and the last event has all items again, so a stream is held like a whole
 * answer. */
#include "server/ids.h"
#include "server/reply.h"

#include <stdlib.h>
#include <string.h>

typedef enum item_kind { ITEM_NONE, ITEM_REASONING, ITEM_MESSAGE, ITEM_CALL } item_kind;

typedef struct state {
    strbuf request;  /* the fields of a response that say what was asked for */
    strbuf output;   /* JSON of the items that are done, without the brackets */
    int32_t n_items; /* of them: the index of the open one */
    int64_t n_events;
    bool has_answer; /* an item other than reasoning */
    const char *finish;
    /* The open item. */
    item_kind open;
    char id[48], call_id[48];
    strbuf name, text; /* of a call: the function, and the arguments */
    strbuf logprobs;   /* JSON of the text's tokens, without the brackets */
    size_t n_text_sent, n_logprobs_sent;
} state;

/* ---- what was asked for ---- */

/* "name": the value in the request, or `otherwise`. */
static void put_asked(strbuf *out, const json_t *body, const char *name, const char *otherwise)
{
    const json_t *value = json_object_get(body, name);
    strbuf_printf(out, ", \"%s\": ", name);
    if (value && !json_is_null(value))
        json_write_value(out, value);
    else
        strbuf_puts(out, otherwise);
}

/* The functions, without the tools that were ignored. */
static void put_tools(strbuf *out, const json_t *body)
{
    const json_t *tools = json_object_get(body, "tools");
    const char *comma = "";
    strbuf_puts(out, ", \"tools\": [");
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i);
        if (!json_is_text(json_object_get(tool, "type"), "function")) continue;
        strbuf_puts(out, comma);
        json_write_value(out, tool);
        comma = ", ";
    }
    strbuf_putc(out, ']');
}

static void put_text_format(strbuf *out, const json_t *body)
{
    const json_t *format = json_object_get(json_object_get(body, "text"), "format");
    strbuf_puts(out, ", \"text\": {\"format\": ");
    if (format && !json_is_null(format))
        json_write_value(out, format);
    else
        strbuf_puts(out, "{\"type\": \"text\"}");
    strbuf_puts(out, ", \"verbosity\": \"medium\"}");
}

/* All of it, written once: three events have it. */
static void put_request(const reply *r, strbuf *out)
{
    const job_request *request = &r->job->request;
    const json_t *body = request->body;
    char number[32];
    put_asked(out, body, "instructions", "null");
    put_asked(out, body, "max_output_tokens", "null");
    put_asked(out, body, "max_tool_calls", "null");
    put_asked(out, body, "metadata", "{}");
    strbuf_printf(out, ", \"parallel_tool_calls\": %s", request->one_tool_call ? "false" : "true");
    put_asked(out, body, "prompt_cache_key", "null");
    const json_t *reasoning = json_object_get(body, "reasoning");
    strbuf_puts(out, ", \"reasoning\": {\"generate_summary\": null");
    put_asked(out, reasoning, "effort", "null");
    put_asked(out, reasoning, "summary", "null");
    strbuf_putc(out, '}');
    put_asked(out, body, "safety_identifier", "null");
    snprintf(number, sizeof number, "%.6g", (double)request->sampling.temperature);
    put_asked(out, body, "temperature", number);
    put_text_format(out, body);
    put_asked(out, body, "tool_choice", "\"auto\"");
    put_tools(out, body);
    put_asked(out, body, "top_logprobs", "0");
    snprintf(number, sizeof number, "%.6g", (double)request->sampling.top_p);
    put_asked(out, body, "top_p", number);
    put_asked(out, body, "user", "null");
}

/* ---- the response ---- */

static void put_usage(strbuf *out, const job *j)
{
    const job_stats *s = &j->stats;
    strbuf_printf(out,
                  "{\"input_tokens\": %lld, \"input_tokens_details\": {\"cached_tokens\": %lld, "
                  "\"cache_write_tokens\": %lld}, \"output_tokens\": %lld, "
                  "\"output_tokens_details\": {\"reasoning_tokens\": %lld}, \"total_tokens\": "
                  "%lld}",
                  (long long)s->n_prompt, (long long)s->n_cached,
                  (long long)(s->n_prompt - s->n_cached), (long long)s->n_generated,
                  (long long)s->n_reasoning, (long long)(s->n_prompt + s->n_generated));
}

/* Why it is as it is: "error" and "incomplete_details". */
static void put_details(reply *r, const char *status)
{
    strbuf *out = &r->out;
    strbuf_puts(out, ", \"error\": ");
    if (strcmp(status, "failed") == 0) {
        strbuf_puts(out, "{\"code\": \"server_error\", \"message\": ");
        json_write_string(out, r->error, strlen(r->error));
        strbuf_putc(out, '}');
    } else {
        strbuf_puts(out, "null");
    }
    strbuf_printf(out, ", \"incomplete_details\": %s",
                  strcmp(status, "incomplete") == 0 ? "{\"reason\": \"max_output_tokens\"}"
                                                    : "null");
}

static void put_response(reply *r, const char *status)
{
    state *s = r->state;
    strbuf *out = &r->out;
    const json_t *ignored = r->job->request.ignored_tools;
    bool is_over = strcmp(status, "in_progress") != 0;
    strbuf_printf(out,
                  "{\"id\": \"%s\", \"object\": \"response\", \"created_at\": %lld, \"status\": "
                  "\"%s\", \"background\": false",
                  r->job->id, (long long)r->created, status);
    put_details(r, status);
    strbuf_puts(out, ", \"model\": ");
    json_write_string(out, r->model, strlen(r->model));
    strbuf_puts(out, ", \"output\": [");
    strbuf_append(out, s->output.data ? s->output.data : "", s->output.n);
    strbuf_puts(out, "], \"previous_response_id\": null, \"service_tier\": \"default\", \"store\": "
                     "false, \"truncation\": \"disabled\"");
    strbuf_append(out, s->request.data, s->request.n);
    strbuf_puts(out, ", \"usage\": ");
    if (is_over)
        put_usage(out, r->job);
    else
        strbuf_puts(out, "null");
    if (is_over) {
        strbuf_puts(out, ", \"timings\": ");
        reply_put_timings(out, r->job);
    }
    if (ignored) {
        strbuf_puts(out, ", \"calla\": {\"ignored_tools\": ");
        json_write_value(out, ignored);
        strbuf_putc(out, '}');
    }
    strbuf_putc(out, '}');
}

/* ---- events ---- */

/* What all events begin with; they end with end_event. */
static void begin_event(reply *r, const char *type)
{
    state *s = r->state;
    strbuf_printf(&r->out, "event: %s\ndata: {\"type\": \"%s\", \"sequence_number\": %lld", type,
                  type, (long long)s->n_events++);
}

static void end_event(reply *r)
{
    strbuf_puts(&r->out, "}\n\n");
}

static void put_response_event(reply *r, const char *type, const char *status)
{
    begin_event(r, type);
    strbuf_puts(&r->out, ", \"response\": ");
    put_response(r, status);
    end_event(r);
}

/* An event about the open item; with a content index if it is about its one part. */
static void begin_item_event(reply *r, const char *type, bool of_part)
{
    const state *s = r->state;
    begin_event(r, type);
    strbuf_printf(&r->out, ", \"item_id\": \"%s\", \"output_index\": %d%s", s->id, s->n_items,
                  of_part ? ", \"content_index\": 0" : "");
}

/* ---- items ---- */

/* What differs between the kinds of items. */
static const struct {
    const char *id_prefix, *delta, *done;
    bool has_part;
} kinds[] = {
    [ITEM_REASONING] = {"rs_", "response.reasoning_text.delta", "response.reasoning_text.done",
                        true},
    [ITEM_MESSAGE] = {"msg_", "response.output_text.delta", "response.output_text.done", true},
    [ITEM_CALL] = {"fc_", "response.function_call_arguments.delta",
                   "response.function_call_arguments.done", false},
};

/* The part of reasoning or of a message, with all its text or none of it. */
static void put_part(const state *s, strbuf *out, bool whole)
{
    static const strbuf none;
    const strbuf *text = whole ? &s->text : &none;
    if (s->open == ITEM_REASONING) {
        strbuf_puts(out, "{\"type\": \"reasoning_text\", \"text\": ");
        reply_put_string(out, text);
        strbuf_putc(out, '}');
        return;
    }
    strbuf_puts(out, "{\"type\": \"output_text\", \"text\": ");
    reply_put_string(out, text);
    strbuf_printf(out, ", \"annotations\": [], \"logprobs\": [%s]}",
                  whole && s->logprobs.data ? s->logprobs.data : "");
}

static void put_item(const state *s, strbuf *out, const char *status)
{
    bool whole = strcmp(status, "in_progress") != 0;
    strbuf_printf(out, "{\"id\": \"%s\", \"status\": \"%s\", ", s->id, status);
    if (s->open == ITEM_CALL) {
        static const strbuf none;
        strbuf_printf(out,
                      "\"type\": \"function_call\", \"call_id\": \"%s\", \"name\": ", s->call_id);
        reply_put_string(out, &s->name);
        strbuf_puts(out, ", \"arguments\": ");
        reply_put_string(out, whole ? &s->text : &none);
        strbuf_putc(out, '}');
        return;
    }
    strbuf_puts(out, s->open == ITEM_REASONING
                         ? "\"type\": \"reasoning\", \"summary\": [], \"encrypted_content\": null"
                         : "\"type\": \"message\", \"role\": \"assistant\"");
    strbuf_puts(out, ", \"content\": [");
    if (whole) put_part(s, out, true);
    strbuf_puts(out, "]}");
}

static void put_item_event(reply *r, const char *type, const char *status)
{
    const state *s = r->state;
    begin_event(r, type);
    strbuf_printf(&r->out, ", \"output_index\": %d, \"item\": ", s->n_items);
    put_item(s, &r->out, status);
    end_event(r);
}

static void put_part_event(reply *r, const char *type, bool whole)
{
    begin_item_event(r, type, true);
    strbuf_puts(&r->out, ", \"part\": ");
    put_part(r->state, &r->out, whole);
    end_event(r);
}

/* The log-probabilities from byte `from` of their list on. */
static void put_logprobs(const state *s, strbuf *out, size_t from)
{
    static const char comma[] = ", "; /* before those that others went before */
    if (from > 0 && from < s->logprobs.n) from += sizeof comma - 1;
    strbuf_printf(out, ", \"logprobs\": [%s]", s->logprobs.data ? s->logprobs.data + from : "");
}

static void open_item(reply *r, item_kind kind, const char *name, size_t n_name)
{
    state *s = r->state;
    s->open = kind;
    id_make(kinds[kind].id_prefix, s->id, sizeof s->id);
    id_make("call_", s->call_id, sizeof s->call_id);
    strbuf_clear(&s->name);
    strbuf_clear(&s->text);
    strbuf_clear(&s->logprobs);
    s->n_text_sent = s->n_logprobs_sent = 0;
    strbuf_append(&s->name, name, n_name);
    if (kind != ITEM_REASONING) s->has_answer = true;
    if (!r->job->request.stream) return;
    put_item_event(r, "response.output_item.added", "in_progress");
    if (kinds[kind].has_part) put_part_event(r, "response.content_part.added", false);
}

/* Streamed: what came since the last piece. */
static void flush(reply *r, int32_t choice)
{
    state *s = r->state;
    strbuf *out = &r->out;
    (void)choice;
    if (s->open == ITEM_NONE ||
        (s->text.n == s->n_text_sent && s->logprobs.n == s->n_logprobs_sent))
        return;
    begin_item_event(r, kinds[s->open].delta, kinds[s->open].has_part);
    strbuf_puts(out, ", \"delta\": ");
    json_write_string(out, s->text.data + s->n_text_sent, s->text.n - s->n_text_sent);
    if (s->open == ITEM_MESSAGE) put_logprobs(s, out, s->n_logprobs_sent);
    end_event(r);
    s->n_text_sent = s->text.n;
    s->n_logprobs_sent = s->logprobs.n;
}

/* Streamed: the whole of the open item. */
static void put_done(reply *r, const char *status)
{
    const state *s = r->state;
    flush(r, 0);
    begin_item_event(r, kinds[s->open].done, kinds[s->open].has_part);
    if (s->open == ITEM_CALL) {
        strbuf_puts(&r->out, ", \"name\": ");
        reply_put_string(&r->out, &s->name);
    }
    strbuf_puts(&r->out, s->open == ITEM_CALL ? ", \"arguments\": " : ", \"text\": ");
    reply_put_string(&r->out, &s->text);
    if (s->open == ITEM_MESSAGE) put_logprobs(s, &r->out, 0);
    end_event(r);
    if (kinds[s->open].has_part) put_part_event(r, "response.content_part.done", true);
    put_item_event(r, "response.output_item.done", status);
}

static void close_item(reply *r, const char *status)
{
    state *s = r->state;
    if (s->open == ITEM_NONE) return;
    if (r->job->request.stream) put_done(r, status);
    if (s->n_items > 0) strbuf_puts(&s->output, ", ");
    put_item(s, &s->output, status);
    s->n_items++;
    s->open = ITEM_NONE;
}

/* ---- the format ---- */

static void add_text(reply *r, item_kind kind, const event *e, const char *text)
{
    state *s = r->state;
    if (s->open != kind) {
        close_item(r, "completed");
        open_item(r, kind, "", 0);
    }
    strbuf_append(&s->text, text, e->n_bytes);
}

static void add(reply *r, int32_t choice, const event *e, const char *text)
{
    state *s = r->state;
    (void)choice;
    switch (e->kind) {
    case EVENT_REASONING:
        add_text(r, ITEM_REASONING, e, text);
        break;
    case EVENT_CONTENT:
        add_text(r, ITEM_MESSAGE, e, text);
        break;
    case EVENT_TOOL_BEGIN:
        close_item(r, "completed");
        open_item(r, ITEM_CALL, text, e->n_bytes);
        break;
    case EVENT_TOOL_ARGUMENTS:
        strbuf_append(&s->text, text, e->n_bytes);
        break;
    case EVENT_TOKEN: /* one without text may come when the message is over */
        if (s->open == ITEM_MESSAGE) reply_add_logprobs(r, &s->logprobs, &r->batch.tokens[e->a]);
        break;
    default:
        break;
    }
}

/* Without a reason nobody waits for the answer any more. */
static bool was_cut_off(const state *s)
{
    return s->finish && strcmp(s->finish, "length") == 0;
}

/* Whoever was not cut off has said something, if only nothing. */
static void finish(reply *r, int32_t choice, const char *reason)
{
    state *s = r->state;
    (void)choice;
    s->finish = reason;
    if (!s->has_answer && !was_cut_off(s)) {
        close_item(r, "completed");
        open_item(r, ITEM_MESSAGE, "", 0);
    }
    close_item(r, was_cut_off(s) ? "incomplete" : "completed");
}

static void progress(reply *r, int64_t done, int64_t total)
{
    begin_event(r, "calla.progress");
    strbuf_printf(&r->out, ", \"progress\": {\"done\": %lld, \"total\": %lld}", (long long)done,
                  (long long)total);
    end_event(r);
}

static void end_stream(reply *r)
{
    const state *s = r->state;
    if (r->error_status)
        put_response_event(r, "response.failed", "failed");
    else if (was_cut_off(s))
        put_response_event(r, "response.incomplete", "incomplete");
    else
        put_response_event(r, "response.completed", "completed");
}

static void write_whole(reply *r)
{
    put_response(r, was_cut_off(r->state) ? "incomplete" : "completed");
}

static size_t n_held(const reply *r)
{
    const state *s = r->state;
    const strbuf *const parts[] = {&s->request, &s->output, &s->name, &s->text, &s->logprobs};
    size_t n = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (parts[i]->failed) return SIZE_MAX;
        n += parts[i]->n;
    }
    return n;
}

static void free_state(reply *r)
{
    state *s = r->state;
    strbuf_free(&s->request);
    strbuf_free(&s->output);
    strbuf_free(&s->name);
    strbuf_free(&s->text);
    strbuf_free(&s->logprobs);
    free(s);
}

static bool start(reply *r)
{
    state *s = r->state = calloc(1, sizeof *s);
    if (!s) return false;
    put_request(r, &s->request);
    if (s->request.failed) {
        free_state(r);
        return false;
    }
    if (!r->job->request.stream) return true;
    put_response_event(r, "response.created", "in_progress");
    put_response_event(r, "response.in_progress", "in_progress");
    return true;
}

const reply_format reply_responses = {
    .id_prefix = "resp_",
    .start = start,
    .free_state = free_state,
    .add = add,
    .finish = finish,
    .flush = flush,
    .progress = progress,
    .end_stream = end_stream,
    .write_whole = write_whole,
    .n_held = n_held,
};
