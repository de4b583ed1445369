/* chat.completion and chat.completion.chunk. */
#include "server/ids.h"
#include "server/reply_choices.h"

#include <string.h>

/* ---- taking events in ---- */

/* The last call in `calls` is open: its arguments' string goes on. A chunk has one entry for a
 * call, with all that came of it. */
static void close_call(reply_choice *c)
{
    if (c->call_open) strbuf_puts(&c->calls, "\"}}");
    c->call_open = false;
}

/* Opens an entry; name NULL: more of a call that an earlier chunk began. */
static void open_call(reply *r, reply_choice *c, const event *e, const char *name)
{
    char id[48];
    close_call(c);
    strbuf_puts(&c->calls, c->calls.n > 0 ? ", {" : "{");
    if (r->job->request.stream) strbuf_printf(&c->calls, "\"index\": %lld, ", (long long)e->a);
    if (name) {
        id_make("call_", id, sizeof id);
        strbuf_printf(&c->calls,
                      "\"id\": \"%s\", \"type\": \"function\", \"function\": {\"name\": ", id);
        json_write_string(&c->calls, name, e->n_bytes);
        strbuf_puts(&c->calls, ", \"arguments\": \"");
        c->n_calls++;
    } else {
        strbuf_puts(&c->calls, "\"function\": {\"arguments\": \"");
    }
    c->call_open = true;
}

static void add_arguments(reply *r, reply_choice *c, const event *e, const char *text)
{
    if (!c->call_open) open_call(r, c, e, NULL);
    json_write_escaped(&c->calls, text, e->n_bytes);
}

static void add(reply *r, reply_choice *c, const event *e, const char *text)
{
    switch (e->kind) {
    case EVENT_REASONING:
        strbuf_append(&c->reasoning, text, e->n_bytes);
        break;
    case EVENT_CONTENT:
        strbuf_append(&c->content, text, e->n_bytes);
        break;
    case EVENT_TOOL_BEGIN:
        open_call(r, c, e, text);
        break;
    case EVENT_TOOL_ARGUMENTS:
        add_arguments(r, c, e, text);
        break;
    case EVENT_TOKEN:
        reply_add_logprobs(r, &c->logprobs, &r->batch.tokens[e->a]);
        break;
    default:
        break;
    }
}

/* ---- streamed ---- */

static void put_delta(strbuf *out, reply_choice *c)
{
    const char *comma = "";
    close_call(c);
    strbuf_puts(out, "\"delta\": {");
    if (c->reasoning.n > 0) {
        strbuf_puts(out, "\"reasoning_content\": ");
        reply_put_string(out, &c->reasoning);
        comma = ", ";
    }
    if (c->content.n > 0) {
        strbuf_printf(out, "%s\"content\": ", comma);
        reply_put_string(out, &c->content);
        comma = ", ";
    }
    if (c->calls.n > 0) strbuf_printf(out, "%s\"tool_calls\": [%s]", comma, c->calls.data);
    strbuf_puts(out, "}, \"logprobs\": ");
    if (c->logprobs.n > 0)
        strbuf_printf(out, "{\"content\": [%s], \"refusal\": null}", c->logprobs.data);
    else
        strbuf_puts(out, "null");
}

static void put_chunk(reply *r, int32_t i, const char *finish)
{
    reply_choice *c = choices_get(r, i);
    choices_begin_chunk(r);
    strbuf_printf(&r->out, "{\"index\": %d, ", i);
    put_delta(&r->out, c);
    strbuf_puts(&r->out, ", ");
    choices_put_finish(&r->out, finish);
    strbuf_putc(&r->out, '}');
    choices_end_chunk(r, finish && r->n_finished == job_n_choices(r->job));
    strbuf_clear(&c->reasoning);
    strbuf_clear(&c->content);
    strbuf_clear(&c->calls);
    strbuf_clear(&c->logprobs);
}

static void flush(reply *r, int32_t i)
{
    reply_choice *c = choices_get(r, i);
    if (c->reasoning.n + c->content.n + c->calls.n + c->logprobs.n > 0) put_chunk(r, i, NULL);
    if (c->finish) put_chunk(r, i, c->finish);
    c->finish = NULL;
}

/* ---- whole ---- */

static void write_choice(reply *r, int32_t i)
{
    reply_choice *c = choices_get(r, i);
    strbuf *out = &r->out;
    close_call(c);
    strbuf_printf(out, "{\"index\": %d, \"message\": {\"role\": \"assistant\", \"content\": ", i);
    if (c->content.n > 0 || c->n_calls == 0)
        reply_put_string(out, &c->content);
    else
        strbuf_puts(out, "null");
    strbuf_puts(out, ", \"refusal\": null, \"annotations\": []");
    if (c->reasoning.n > 0) {
        strbuf_puts(out, ", \"reasoning_content\": ");
        reply_put_string(out, &c->reasoning);
    }
    if (c->n_calls > 0) strbuf_printf(out, ", \"tool_calls\": [%s]", c->calls.data);
    strbuf_puts(out, "}, \"logprobs\": ");
    if (r->job->request.logprobs)
        strbuf_printf(out, "{\"content\": [%s], \"refusal\": null}",
                      c->logprobs.data ? c->logprobs.data : "");
    else
        strbuf_puts(out, "null");
    strbuf_puts(out, ", ");
    choices_put_finish(out, c->finish);
    strbuf_putc(out, '}');
}

static const choices_format format = {
    .object = "chat.completion",
    .chunk_object = "chat.completion.chunk",
    .head = "\"service_tier\": \"default\", ",
    .add = add,
    .flush = flush,
    .write_choice = write_choice,
};

/* An own chunk for who the message is from: it can go out before anything has been computed. */
static bool start(reply *r)
{
    if (!choices_start(r, &format)) return false;
    for (int32_t i = 0; r->job->request.stream && i < job_n_choices(r->job); i++) {
        choices_begin_chunk(r);
        strbuf_printf(&r->out,
                      "{\"index\": %d, \"delta\": {\"role\": \"assistant\", \"content\": \"\", "
                      "\"refusal\": null}, "
                      "\"logprobs\": null, \"finish_reason\": null}",
                      i);
        choices_end_chunk(r, false);
    }
    return true;
}

const reply_format reply_chat = {
    .id_prefix = "chatcmpl-",
    .start = start,
    .free_state = choices_free,
    .add = choices_add,
    .finish = choices_finish,
    .flush = choices_flush,
    .progress = choices_progress,
    .end_stream = choices_end_stream,
    .write_whole = choices_write_whole,
    .n_held = choices_n_held,
};
