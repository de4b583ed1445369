/* Generated text to events: the inverse of chat_render.c.
 *
 * - The prompt's end tells the start: after "<think>" reasoning, else content. A "<think>" that the
 *   model writes first itself opens the reasoning, too.
 * - Reasoning ends at the first "</think>"; whitespace around it goes, and the newlines before the
 *   content that follows.
 * - "<tool_call>", whitespace, "<function=NAME>" begins a call. In reasoning NAME must be one of
 * the tools (if any are known): then the call ends the reasoning, whose "</think>" is dropped
 * should it still come. Without "<tool_call>", at the start of a line of content, NAME must be one
 * of them in any case. chat_call.c has the inside of calls.
 * - Content is what is left without the calls; whitespace beside a call goes unless content stands
 *   on both sides. All else is text as it is, tags included. */
#include "model/chat_parser.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static const char *const tag_texts[N_TAGS] = {
    [TAG_THINK] = "<think>",         [TAG_THINK_END] = "</think>",
    [TAG_CALL] = "<tool_call>",      [TAG_CALL_END] = "</tool_call>",
    [TAG_FUNCTION] = "<function=",   [TAG_FUNCTION_END] = "</function>",
    [TAG_PARAMETER] = "<parameter=", [TAG_PARAMETER_END] = "</parameter>",
};

size_t tag_length(tag t)
{
    return strlen(tag_texts[t]);
}

match parser_match(const calla_chat_parser *p, size_t offset, unsigned allowed, tag *found)
{
    size_t n = p->input.n - offset;
    if (n == 0) return MATCH_PART;
    const char *text = p->input.data + offset;
    match result = MATCH_NO;
    for (int t = 0; t < N_TAGS; t++) {
        size_t length = tag_length((tag)t);
        if (!(allowed & TAG_BIT(t)) || memcmp(text, tag_texts[t], n < length ? n : length) != 0)
            continue;
        if (n >= length) {
            *found = (tag)t;
            return MATCH_YES;
        }
        result = MATCH_PART;
    }
    return result;
}

bool parser_is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

size_t parser_skip_space(const calla_chat_parser *p, size_t offset)
{
    while (offset < p->input.n && parser_is_space(p->input.data[offset])) offset++;
    return offset;
}

/* ---- events ---- */

void parser_emit(calla_chat_parser *p, calla_chat_event_kind kind, const char *text, size_t n_bytes)
{
    calla_chat_event e = {.kind = kind, .text = text ? text : "", .n_bytes = n_bytes};
    if (kind >= CALLA_CHAT_TOOL_BEGIN) e.tool_index = p->n_calls - 1;
    p->event(p->user, &e);
}

void parser_emit_json(calla_chat_parser *p)
{
    if (p->json.n == 0 || p->json.failed) return;
    parser_emit(p, CALLA_CHAT_TOOL_ARGUMENTS, p->json.data, p->json.n);
    strbuf_clear(&p->json);
}

static bool is_trimmed(const calla_chat_parser *p, char c)
{
    return p->reasoning ? parser_is_space(c) : p->trim_start && (c == '\n' || c == '\r');
}

void parser_emit_text(calla_chat_parser *p, size_t end)
{
    size_t begin = p->start;
    p->start = end;
    while (p->at_start && begin < end && is_trimmed(p, p->input.data[begin])) begin++;
    if (begin == end) return;
    if (p->call_space.n > 0) {
        parser_emit(p, CALLA_CHAT_CONTENT, p->call_space.data, p->call_space.n);
        strbuf_clear(&p->call_space);
    }
    p->at_start = p->after_call = false;
    parser_emit(p, p->reasoning ? CALLA_CHAT_REASONING : CALLA_CHAT_CONTENT, p->input.data + begin,
                end - begin);
}

/* ---- text ---- */

void parser_enter_text(calla_chat_parser *p, size_t offset)
{
    p->state = STATE_TEXT;
    p->start = p->space = p->at = offset;
}

static void enter_content(calla_chat_parser *p, size_t offset)
{
    p->reasoning = p->may_think = false;
    p->at_start = p->trim_start = true;
    parser_enter_text(p, offset);
}

/* Whether the byte at p->at begins a line of the text. */
static bool at_line_start(const calla_chat_parser *p)
{
    if (p->at > p->start) return p->input.data[p->at - 1] == '\n';
    return p->at_start || p->after_call;
}

/* The tags that mean something at p->at. */
static unsigned text_tags(const calla_chat_parser *p)
{
    unsigned tags = p->no_calls ? 0 : TAG_BIT(TAG_CALL);
    if (p->reasoning || p->implicit_close) tags |= TAG_BIT(TAG_THINK_END);
    if (p->may_think && p->at_start && p->space == p->start) tags |= TAG_BIT(TAG_THINK);
    if (!p->no_calls && !p->reasoning && p->tools && at_line_start(p))
        tags |= TAG_BIT(TAG_FUNCTION);
    return tags;
}

static void take_text_tag(calla_chat_parser *p, tag t)
{
    size_t after = p->at + tag_length(t);
    switch (t) {
    case TAG_THINK: /* only whitespace came before */
        p->reasoning = true;
        parser_enter_text(p, after);
        break;
    case TAG_THINK_END:
        parser_emit_text(p, p->space);
        p->implicit_close = false;
        if (p->reasoning)
            enter_content(p, after);
        else
            parser_enter_text(p, after);
        break;
    default: /* TAG_CALL, TAG_FUNCTION: a candidate, still held */
        p->first_tag = t;
        p->tag_at = p->at;
        p->at = p->name_at = after;
        p->any_name = t == TAG_CALL && (!p->reasoning || !p->tools);
        p->state = t == TAG_CALL ? STATE_CALL_OPEN : STATE_CALL_NAME;
    }
}

/* Passes text on until a tag or the end of the input; false at the end. */
static bool step_text(calla_chat_parser *p, bool final)
{
    for (; p->at < p->input.n; p->at++) {
        char c = p->input.data[p->at];
        if (parser_is_space(c)) continue;
        if (c == '<') {
            tag t;
            match m = parser_match(p, p->at, text_tags(p), &t);
            if (m == MATCH_YES) {
                take_text_tag(p, t);
                return true;
            }
            if (m == MATCH_PART && !final) break;
        }
        p->space = p->at + 1;
    }
    parser_emit_text(p, p->space);
    return false;
}

/* ---- running ---- */

/* Drops what events have taken, when that is worth a move. */
static void compact(calla_chat_parser *p)
{
    size_t n = p->start, left = p->input.n - n;
    if (n == 0 || left > n) return;
    memmove(p->input.data, p->input.data + n, left);
    p->input.n = left;
    size_t *const offsets[] = {&p->start,   &p->at,       &p->space,     &p->tag_at,
                               &p->name_at, &p->value_at, &p->value_end, &p->look};
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++)
        *offsets[i] = *offsets[i] == SIZE_MAX || *offsets[i] < n ? SIZE_MAX : *offsets[i] - n;
}

static calla_status run(calla_chat_parser *p, bool final, calla_error *err)
{
    while (p->state == STATE_TEXT ? step_text(p, final) : parser_step_call(p, final)) continue;
    parser_emit_json(p);
    compact(p);
    if (p->input.failed || p->json.failed || p->value.failed || p->call_space.failed)
        return error_set(err, CALLA_ERR_MEMORY, "no memory to parse the generated text");
    return CALLA_OK;
}

static calla_status add_input(calla_chat_parser *p, calla_text *text, calla_error *err)
{
    strbuf_append(&p->input, text->data, text->n_bytes); /* there is a buffer even if empty */
    calla_text_free(text);
    if (p->input.failed)
        return error_set(err, CALLA_ERR_MEMORY, "no memory to parse the generated text");
    return CALLA_OK;
}

calla_status calla_chat_parser_push(calla_chat_parser *parser, const char *text, size_t n_bytes,
                                    calla_error *err)
{
    assert(!parser->finished);
    calla_text whole;
    CALLA_TRY(calla_utf8_stream_push(&parser->utf8, text, n_bytes, &whole, err));
    CALLA_TRY(add_input(parser, &whole, err));
    return run(parser, false, err);
}

calla_status calla_chat_parser_finish(calla_chat_parser *parser, calla_error *err)
{
    assert(!parser->finished);
    calla_text rest;
    parser->finished = true;
    CALLA_TRY(calla_utf8_stream_finish(&parser->utf8, &rest, err));
    CALLA_TRY(add_input(parser, &rest, err));
    CALLA_TRY(run(parser, true, err));
    bool blank = parser->at_start && parser->trim_start;
    if (!parser->after_call && !blank) parser_emit_text(parser, parser->input.n);
    return CALLA_OK;
}

void chat_parser_allow_calls(calla_chat_parser *parser, bool allowed)
{
    parser->no_calls = !allowed;
}

void chat_parser_drop_opening(calla_chat_parser *p)
{
    if (p->state != STATE_CALL_OPEN && p->state != STATE_CALL_NAME) return;
    parser_emit_text(p, p->space);
    p->input.n = p->space;
    parser_enter_text(p, p->space);
}

chat_place chat_parser_place(const calla_chat_parser *p)
{
    if (p->state != STATE_TEXT) return PLACE_CALL;
    if (p->reasoning) return PLACE_REASONING;
    bool in_gap = p->at_start && p->trim_start;
    for (size_t i = p->start; in_gap && i < p->at; i++) in_gap = is_trimmed(p, p->input.data[i]);
    return in_gap ? PLACE_GAP : PLACE_CONTENT;
}

/* ---- creation ---- */

/* Whether the prompt, but for whitespace at its end, ends with `tail`. */
static bool prompt_ends(const char *prompt, size_t n_bytes, const char *tail)
{
    while (n_bytes > 0 && parser_is_space(prompt[n_bytes - 1])) n_bytes--;
    size_t n = strlen(tail);
    return n_bytes >= n && memcmp(prompt + n_bytes - n, tail, n) == 0;
}

calla_status chat_parser_create(const char *prompt, size_t n_prompt_bytes, const json_t *tools,
                                bool no_calls, calla_chat_event_fn event, void *user,
                                calla_chat_parser **parser, calla_error *err)
{
    if (tools && !json_is_null(tools) && !json_is_array(tools))
        return error_set(err, CALLA_ERR_INPUT, "tools: %s instead of an array",
                         json_kind_name(tools));
    calla_chat_parser *p = calloc(1, sizeof *p);
    if (!p) return error_set(err, CALLA_ERR_MEMORY, "no memory for a chat parser");
    p->event = event;
    p->user = user;
    p->no_calls = no_calls;
    if (json_array_size(tools) > 0) p->tools = json_incref((json_t *)tools);
    p->at_start = p->may_think = true;
    p->reasoning = prompt_ends(prompt, n_prompt_bytes, "<think>");
    p->trim_start = p->reasoning || prompt_ends(prompt, n_prompt_bytes, "</think>") ||
                    prompt_ends(prompt, n_prompt_bytes, "<|im_start|>assistant");
    *parser = p;
    return CALLA_OK;
}

calla_status calla_chat_parser_create(const char *prompt, size_t n_prompt_bytes, const char *tools,
                                      size_t n_tools_bytes, calla_chat_event_fn event, void *user,
                                      calla_chat_parser **parser, calla_error *err)
{
    json_t *list = NULL;
    if (n_tools_bytes > 0) CALLA_TRY(json_parse_text(tools, n_tools_bytes, "tools", &list, err));
    calla_status status =
        chat_parser_create(prompt, n_prompt_bytes, list, false, event, user, parser, err);
    json_decref(list);
    return status;
}

void calla_chat_parser_free(calla_chat_parser *parser)
{
    if (!parser) return;
    json_decref(parser->tools);
    strbuf_free(&parser->input);
    strbuf_free(&parser->call_space);
    strbuf_free(&parser->json);
    strbuf_free(&parser->value);
    free(parser);
}
