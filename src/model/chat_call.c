/* The inside of tool calls:
 *
 *     <tool_call> <function=NAME> <parameter=KEY>\nVALUE\n</parameter> ... </function> </tool_call>
 *
 * with any whitespace, or none, between the tags. A value loses one newline at each end. It is raw
 * text that may hold anything, tags too, so a closing tag ends it only where the structure goes on
 * behind it (whitespace aside):
 *
 *     </parameter>   before <parameter=, </function>, </tool_call>, <tool_call>
 *     </function>    before </tool_call>, <tool_call>, <function=
 *     </tool_call>   before <tool_call>
 *     <parameter=K>  at the start of a line, if the tool declares K or no parameters at all
 *
 * and each of them before the end of the text. The last three are for closings the model forgot.
 * Between parameters anything else is dropped; a further function may follow in the same
 * <tool_call>. A call that breaks off is closed as it stands. */
#include "model/chat_parser.h"

#include <string.h>

enum {
    MAX_FUNCTION_NAME = 256, /* bytes; what is longer is no call but text */
    MAX_KEY = 1024,
};

/* ---- the beginning ---- */

/* It was no call: its first tag is text, what follows is looked at anew. */
static void reject_call(calla_chat_parser *p)
{
    p->at = p->tag_at + tag_length(p->first_tag);
    p->space = p->at;
    p->state = STATE_TEXT;
}

static bool step_call_open(calla_chat_parser *p, bool final)
{
    tag t;
    p->at = parser_skip_space(p, p->at);
    match m = parser_match(p, p->at, TAG_BIT(TAG_FUNCTION), &t);
    if (m == MATCH_PART && !final) {
        parser_emit_text(p, p->space);
        return false;
    }
    if (m == MATCH_YES) {
        p->name_at = p->at = p->at + tag_length(t);
        p->state = STATE_CALL_NAME;
    } else {
        reject_call(p);
    }
    return true;
}

/* Looks for the '>' after a name that starts at `begin` and stops *at there or where the input
 * ends. MATCH_NO: there is something else that no name has. */
static match find_name_end(const calla_chat_parser *p, size_t begin, size_t max_bytes, size_t *at)
{
    for (; *at < p->input.n; ++*at) {
        char c = p->input.data[*at];
        if (c == '>') return MATCH_YES;
        if (c == '<' || (unsigned char)c < 0x20 || *at - begin >= max_bytes) return MATCH_NO;
    }
    return MATCH_PART;
}

static void begin_call(calla_chat_parser *p, const char *name, size_t n_name)
{
    parser_emit_text(p, p->space);
    if (p->reasoning) {
        p->reasoning = false;
        p->at_start = p->implicit_close = true;
    } else if (!p->at_start) {
        strbuf_append(&p->call_space, p->input.data + p->space, p->tag_at - p->space);
    }
    p->may_think = false;
    p->trim_start = true;
    p->has_parameters = false;
    p->n_calls++;
    parser_emit(p, CALLA_CHAT_TOOL_BEGIN, name, n_name);
    strbuf_putc(&p->json, '{');
    p->start = ++p->at;
    p->state = STATE_FUNCTION;
}

static bool step_call_name(calla_chat_parser *p, bool final)
{
    match m = find_name_end(p, p->name_at, MAX_FUNCTION_NAME, &p->at);
    if (m == MATCH_PART && !final) {
        parser_emit_text(p, p->space);
        return false;
    }
    const char *name = p->input.data + p->name_at;
    size_t n = p->at - p->name_at;
    p->tool = m == MATCH_YES ? tool_find(p->tools, name, n) : NULL;
    if (m == MATCH_YES && n > 0 && (p->tool || p->any_name))
        begin_call(p, name, n);
    else
        reject_call(p);
    return true;
}

/* ---- between parameters ---- */

static void end_call(calla_chat_parser *p)
{
    strbuf_putc(&p->json, '}');
    parser_emit_json(p);
    parser_emit(p, CALLA_CHAT_TOOL_END, NULL, 0);
    p->after_call = true;
}

static bool step_function(calla_chat_parser *p, bool final)
{
    static const unsigned tags = TAG_BIT(TAG_PARAMETER) | TAG_BIT(TAG_FUNCTION_END) |
                                 TAG_BIT(TAG_CALL_END) | TAG_BIT(TAG_CALL) | TAG_BIT(TAG_FUNCTION);
    tag t = TAG_THINK;
    match m = MATCH_NO;
    for (; p->at < p->input.n; p->at++) {
        if (p->input.data[p->at] != '<') continue;
        m = parser_match(p, p->at, tags, &t);
        if (m == MATCH_YES || (m == MATCH_PART && !final)) break;
    }
    p->start = p->at;
    if (m != MATCH_YES || p->at == p->input.n) {
        if (!final) return false;
        end_call(p);
        parser_enter_text(p, p->input.n);
        return true;
    }
    size_t after = p->at + tag_length(t);
    if (t == TAG_PARAMETER) {
        p->name_at = p->at = after;
        p->state = STATE_KEY;
        return true;
    }
    end_call(p);
    if (t == TAG_CALL_END) {
        parser_enter_text(p, after);
    } else {
        p->start = p->at = t == TAG_FUNCTION_END ? after : p->at;
        p->state = STATE_AFTER_FUNCTION;
    }
    return true;
}

static bool step_after_function(calla_chat_parser *p, bool final)
{
    tag t;
    p->at = parser_skip_space(p, p->at);
    match m = parser_match(p, p->at, TAG_BIT(TAG_CALL_END) | TAG_BIT(TAG_FUNCTION), &t);
    if (m == MATCH_PART && !final) return false;
    if (m != MATCH_YES) {
        parser_enter_text(p, p->start);
    } else if (t == TAG_CALL_END) {
        parser_enter_text(p, p->at + tag_length(t));
    } else {
        p->start = p->space = p->tag_at = p->at;
        p->first_tag = t;
        p->any_name = true;
        p->name_at = p->at = p->at + tag_length(t);
        p->state = STATE_CALL_NAME;
    }
    return true;
}

/* ---- parameters ---- */

static bool step_key(calla_chat_parser *p, bool final)
{
    match m = find_name_end(p, p->name_at, MAX_KEY, &p->at);
    if (m == MATCH_PART && !final) return false;
    p->start = p->at;
    p->state = STATE_FUNCTION;
    if (m != MATCH_YES) return true;

    const char *key = p->input.data + p->name_at;
    size_t n = p->at - p->name_at;
    value_types types;
    bool known;
    tool_parameter_types(p->tool, key, n, &types, &known);
    value_guesser_init(&p->guesser, &types);
    if (p->has_parameters) strbuf_puts(&p->json, ", ");
    p->has_parameters = true;
    json_write_string(&p->json, key, n);
    strbuf_puts(&p->json, ": ");
    p->streaming = false;
    p->start = ++p->at;
    p->state = STATE_VALUE_START;
    return true;
}

static bool step_value_start(calla_chat_parser *p, bool final)
{
    if (p->at == p->input.n && !final) return false;
    if (p->at < p->input.n && p->input.data[p->at] == '\n') p->at++;
    p->start = p->value_at = p->at;
    p->state = STATE_VALUE;
    return true;
}

/* Takes the bytes up to `end` as part of the value. */
static void add_value(calla_chat_parser *p, size_t end)
{
    const char *text = p->input.data + p->start;
    size_t n = end - p->start;
    if (n == 0) return;
    p->start = end;
    value_guesser_feed(&p->guesser, text, n);
    if (p->guesser.guess != GUESS_STRING) {
        strbuf_append(&p->value, text, n);
        return;
    }
    if (!p->streaming) {
        strbuf_putc(&p->json, '"');
        json_write_escaped(&p->json, p->value.data, p->value.n);
        strbuf_clear(&p->value);
        p->streaming = true;
    }
    json_write_escaped(&p->json, text, n);
}

static void end_value(calla_chat_parser *p, size_t end, size_t after)
{
    add_value(p, end);
    if (p->streaming)
        strbuf_putc(&p->json, '"');
    else
        value_write(&p->json, &p->guesser.types, p->value.data ? p->value.data : "", p->value.n);
    strbuf_clear(&p->value);
    p->start = p->at = after;
    p->state = STATE_FUNCTION;
}

static bool step_value(calla_chat_parser *p, bool final)
{
    static const unsigned closings =
        TAG_BIT(TAG_PARAMETER_END) | TAG_BIT(TAG_FUNCTION_END) | TAG_BIT(TAG_CALL_END);
    for (; p->at < p->input.n; p->at++) {
        char c = p->input.data[p->at];
        if (c != '\n' && c != '<') continue;
        size_t at = p->at + (c == '\n');
        if (at == p->input.n) break;
        if (p->input.data[at] != '<') continue;
        bool line_start = c == '\n' || p->at == p->value_at;
        tag t;
        match m = parser_match(p, at, closings | (line_start ? TAG_BIT(TAG_PARAMETER) : 0), &t);
        if (m == MATCH_NO) continue;
        if (m == MATCH_PART) break;
        p->value_end = p->at;
        p->tag_at = at;
        p->closing = t;
        p->name_at = p->look = at + tag_length(t);
        p->state = STATE_VALUE_END;
        return true;
    }
    if (final) {
        end_value(p, p->at, p->input.n);
        return true;
    }
    add_value(p, p->at);
    return false;
}

/* Whether the structure goes on behind the closing. */
static match check_closing(calla_chat_parser *p)
{
    if (p->closing == TAG_PARAMETER) {
        match m = find_name_end(p, p->name_at, MAX_KEY, &p->look);
        if (m != MATCH_YES || !tool_has_parameters(p->tool)) return m;
        value_types types;
        bool known;
        tool_parameter_types(p->tool, p->input.data + p->name_at, p->look - p->name_at, &types,
                             &known);
        return known ? MATCH_YES : MATCH_NO;
    }
    unsigned next = TAG_BIT(TAG_CALL);
    if (p->closing != TAG_CALL_END) next |= TAG_BIT(TAG_CALL_END);
    if (p->closing == TAG_FUNCTION_END) next |= TAG_BIT(TAG_FUNCTION);
    if (p->closing == TAG_PARAMETER_END) next |= TAG_BIT(TAG_FUNCTION_END) | TAG_BIT(TAG_PARAMETER);
    tag t;
    p->look = parser_skip_space(p, p->look);
    return parser_match(p, p->look, next, &t);
}

static bool step_value_end(calla_chat_parser *p, bool final)
{
    match m = check_closing(p);
    if (m == MATCH_PART && !final) {
        add_value(p, p->value_end);
        return false;
    }
    size_t after_tag = p->tag_at + tag_length(p->closing);
    if (m == MATCH_NO) {
        p->at = after_tag;
        p->state = STATE_VALUE;
    } else {
        end_value(p, p->value_end, p->closing == TAG_PARAMETER_END ? after_tag : p->tag_at);
    }
    return true;
}

bool parser_step_call(calla_chat_parser *p, bool final)
{
    switch (p->state) {
    case STATE_CALL_OPEN:
        return step_call_open(p, final);
    case STATE_CALL_NAME:
        return step_call_name(p, final);
    case STATE_FUNCTION:
        return step_function(p, final);
    case STATE_KEY:
        return step_key(p, final);
    case STATE_VALUE_START:
        return step_value_start(p, final);
    case STATE_VALUE:
        return step_value(p, final);
    case STATE_VALUE_END:
        return step_value_end(p, final);
    default:
        return step_after_function(p, final);
    }
}
