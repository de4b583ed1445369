#include "server/answer.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

static calla_status no_memory(calla_error *err)
{
    return error_set(err, CALLA_ERR_MEMORY, "no memory for the answer");
}

static void put(answer *a, event_kind kind, int64_t index, const char *text, size_t n_bytes)
{
    outbox_put(a->out, kind, a->choice, index, 0, text, n_bytes);
}

/* ---- content ---- */

/* Lets go of the tokens whose text begins before byte `end` of the content. */
static void release_tokens(answer *a, size_t end)
{
    size_t n = 0;
    while (n < a->n_held && a->held[n].start < end)
        outbox_put_token(a->out, a->choice, &a->held[n++].sampled);
    if (n == 0) return;
    a->n_held -= n;
    memmove(a->held, a->held + n, a->n_held * sizeof *a->held);
}

static void put_ready(answer *a, const char *text, size_t n_bytes)
{
    if (n_bytes == 0) return;
    if (a->parser) strbuf_append(&a->content, text, n_bytes);
    put(a, EVENT_CONTENT, 0, text, n_bytes);
    a->n_content_out += n_bytes;
    release_tokens(a, a->n_content_out);
}

static void put_content(answer *a, const char *text, size_t n_bytes)
{
    const char *ready;
    size_t n_ready;
    a->n_content_in += n_bytes;
    if (calla_stop_matcher_push(a->stops, text, n_bytes, &ready, &n_ready, &a->stopped, NULL) !=
        CALLA_OK)
        a->no_memory = true;
    else
        put_ready(a, ready, n_ready);
}

/* What follows is not content: a stop text cannot go on in it. */
static void end_content(answer *a)
{
    const char *ready;
    size_t n_ready;
    calla_stop_matcher_flush(a->stops, &ready, &n_ready);
    put_ready(a, ready, n_ready);
}

/* ---- tool calls ---- */

static void begin_tool(answer *a, const calla_chat_event *e)
{
    end_content(a);
    free(a->name);
    a->name = strndup(e->text, e->n_bytes);
    if (!a->name) a->no_memory = true;
    strbuf_clear(&a->arguments);
    a->n_tool_calls++;
    put(a, EVENT_TOOL_BEGIN, e->tool_index, e->text, e->n_bytes);
}

static void end_tool(answer *a)
{
    const char *arguments = a->arguments.data ? a->arguments.data : "";
    json_t *call = json_pack("{s:{s:s, s:s%}}", "function", "name", a->name ? a->name : "",
                             "arguments", arguments, a->arguments.n);
    if (!call || json_array_append_new(a->calls, call) != 0) a->no_memory = true;
    if (a->one_tool_call) a->stopped = true;
}

static void on_event(void *user, const calla_chat_event *e)
{
    answer *a = user;
    if (a->stopped) return;
    switch (e->kind) {
    case CALLA_CHAT_REASONING:
        strbuf_append(&a->reasoning, e->text, e->n_bytes);
        put(a, EVENT_REASONING, 0, e->text, e->n_bytes);
        break;
    case CALLA_CHAT_CONTENT:
        put_content(a, e->text, e->n_bytes);
        break;
    case CALLA_CHAT_TOOL_BEGIN:
        begin_tool(a, e);
        break;
    case CALLA_CHAT_TOOL_ARGUMENTS:
        strbuf_append(&a->arguments, e->text, e->n_bytes);
        put(a, EVENT_TOOL_ARGUMENTS, e->tool_index, e->text, e->n_bytes);
        break;
    case CALLA_CHAT_TOOL_END:
        end_tool(a);
        break;
    }
}

/* ---- tokens ---- */

calla_status answer_init(answer *a, const vocabulary *v, job *j, const job_prompt *prompt,
                         int32_t choice, calla_error *err)
{
    const job_request *r = &j->request;
    *a = (answer){.vocabulary = v,
                  .out = &j->out,
                  .choice = choice,
                  .logprobs = r->logprobs,
                  .one_tool_call = r->one_tool_call};
    CALLA_TRY(calla_stop_matcher_create(r->stops, r->n_stops, &a->stops, err));
    if (!r->chat) return CALLA_OK;
    a->calls = json_array();
    if (!a->calls) return no_memory(err);
    const calla_text *text = &prompt->rendered.text;
    bool no_calls = r->tool_choice == TOOLS_NONE || r->grammar || r->calls;
    a->calls_have_form = r->calls;
    a->calls_by_token = r->calls || (r->grammar && r->tools && r->tool_choice == TOOLS_AUTO);
    return chat_parser_create(text->data, text->n_bytes, r->tools, no_calls, on_event, a,
                              &a->parser, err);
}

void answer_deinit(answer *a)
{
    calla_chat_parser_free(a->parser);
    calla_stop_matcher_free(a->stops);
    strbuf_free(&a->raw);
    strbuf_free(&a->reasoning);
    strbuf_free(&a->content);
    strbuf_free(&a->arguments);
    json_decref(a->calls);
    free(a->name);
    free(a->held);
    *a = (answer){0};
}

bool answer_is_reasoning(const answer *a)
{
    return a->parser && chat_parser_place(a->parser) == PLACE_REASONING;
}

static calla_status hold_token(answer *a, const calla_sampled *sampled, calla_error *err)
{
    void *held = a->held;
    calla_status status = mem_grow(&held, &a->held_capacity, a->n_held + 1, sizeof *a->held,
                                   "log-probabilities", err);
    a->held = held;
    if (status == CALLA_OK) a->held[a->n_held++] = (held_token){*sampled, a->n_content_in};
    return status;
}

static calla_status check(const answer *a, calla_error *err)
{
    bool failed = a->no_memory || a->raw.failed || a->reasoning.failed || a->content.failed ||
                  a->arguments.failed;
    return failed ? no_memory(err) : CALLA_OK;
}

/* Without a parser: whole characters are content. */
static calla_status push_plain(answer *a, const char *bytes, size_t n_bytes, calla_error *err)
{
    calla_text text;
    CALLA_TRY(calla_utf8_stream_push(&a->utf8, bytes, n_bytes, &text, err));
    put_content(a, text.data, text.n_bytes);
    calla_text_free(&text);
    return CALLA_OK;
}

calla_status answer_push(answer *a, const calla_sampled *sampled, calla_error *err)
{
    size_t n_bytes;
    const char *bytes = calla_tokenizer_bytes(a->vocabulary->tokenizer, sampled->token, &n_bytes);
    if (calla_tokenizer_is_special(a->vocabulary->tokenizer, sampled->token)) n_bytes = 0;
    if (answer_is_reasoning(a)) a->n_reasoning++;
    /* Held before its text is looked at, which may come out at once. */
    if (a->logprobs) CALLA_TRY(hold_token(a, sampled, err));
    if (!a->parser) {
        CALLA_TRY(push_plain(a, bytes, n_bytes, err));
        return check(a, err);
    }
    strbuf_append(&a->raw, bytes, n_bytes);
    if (a->calls_by_token && sampled->token == a->vocabulary->tool_call)
        chat_parser_allow_calls(a->parser, true);
    CALLA_TRY(calla_chat_parser_push(a->parser, bytes, n_bytes, err));
    /* What does not end in content is not of the content. */
    if (a->n_held > 0 && chat_parser_place(a->parser) != PLACE_CONTENT) a->n_held--;
    return check(a, err);
}

calla_status answer_finish(answer *a, calla_error *err)
{
    if (a->parser) {
        if (a->calls_have_form) chat_parser_drop_opening(a->parser);
        CALLA_TRY(calla_chat_parser_finish(a->parser, err));
    } else {
        calla_text text;
        CALLA_TRY(calla_utf8_stream_finish(&a->utf8, &text, err));
        put_content(a, text.data, text.n_bytes);
        calla_text_free(&text);
    }
    if (a->stopped) return check(a, err); /* the tokens still held are of the stop text */
    end_content(a);
    release_tokens(a, SIZE_MAX);
    return check(a, err);
}
