/* Messages to a prompt: the official chat template, rule by rule (MODEL.md 6.1).
 *
 * Strict mode does what the template does, its errors included. The default differs in this:
 * - Messages of the roles system and developer, wherever they stand, are merged into one system
 *   block at the start: their trimmed, non-empty contents in order, joined by "\n\n".
 * - Arguments of a tool call may be a string that holds a JSON object, "" or null.
 * - Reasoning may also be called `reasoning` or `thinking`, as other software names it.
 * - What the template would silently ignore or cannot print is an error that names the field:
 *   images, tools that are no list of objects, reasoning that is no string.
 * For conversations without any of these the two modes give the same prompt. */
#include "model/chat.h"

#include "base/memory.h"
#include "model/chat_content.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum role { ROLE_OTHER, ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT, ROLE_TOOL } role;

typedef struct message {
    const json_t *object;
    size_t index; /* among all messages, for errors */
    role role;
} message;

typedef struct renderer {
    calla_chat_options options;
    const json_t *tools; /* a list that is not empty, or NULL */
    message *messages;   /* [n_messages]; those of `system` left out unless strict */
    message *system;     /* [n_system] */
    size_t n_messages, n_system;
    chat_text content; /* of the message at hand */
    chat_text out;
    calla_error *err;
} renderer;

#define fail(r, ...) error_set((r)->err, CALLA_ERR_INPUT, __VA_ARGS__)

/* ---- input ---- */

static role message_role(const renderer *r, const json_t *name)
{
    if (json_is_text(name, "user")) return ROLE_USER;
    if (json_is_text(name, "assistant")) return ROLE_ASSISTANT;
    if (json_is_text(name, "tool")) return ROLE_TOOL;
    if (json_is_text(name, "system")) return ROLE_SYSTEM;
    if (!r->options.strict && json_is_text(name, "developer")) return ROLE_SYSTEM;
    return ROLE_OTHER;
}

/* Sorts the messages into those of the system block and the others. */
static calla_status read_messages(renderer *r, const json_t *messages)
{
    if (!json_is_array(messages))
        return fail(r, "messages: %s instead of an array", json_kind_name(messages));
    size_t n = json_array_size(messages);
    if (n == 0) return fail(r, "messages: No messages provided.");
    r->messages = calloc(n, sizeof *r->messages);
    r->system = calloc(n, sizeof *r->system);
    if (!r->messages || !r->system)
        return error_set(r->err, CALLA_ERR_MEMORY, "no memory for %zu messages", n);
    for (size_t i = 0; i < n; i++) {
        const json_t *object = json_array_get(messages, i);
        if (!json_is_mapping(object))
            return fail(r, "messages[%zu]: %s instead of an object", i, json_kind_name(object));
        const json_t *name = json_object_get(object, "role");
        if (!r->options.strict && !json_is_string(name))
            return fail(r, "messages[%zu].role: %s instead of a string", i, json_kind_name(name));
        message m = {object, i, message_role(r, name)};
        bool in_block = m.role == ROLE_SYSTEM && (i == 0 || !r->options.strict);
        if (in_block) r->system[r->n_system++] = m;
        if (!in_block || r->options.strict) r->messages[r->n_messages++] = m;
    }
    return CALLA_OK;
}

/* The template ignores tools that are no list. */
static calla_status read_tools(renderer *r, const json_t *tools)
{
    if (!tools || json_is_null(tools)) return CALLA_OK;
    if (!json_is_array(tools)) {
        if (r->options.strict && json_string_length(tools) == 0) return CALLA_OK;
        return fail(r, "tools: %s instead of an array", json_kind_name(tools));
    }
    for (size_t i = 0; i < json_array_size(tools) && !r->options.strict; i++) {
        const json_t *tool = json_array_get(tools, i);
        if (!json_is_mapping(tool))
            return fail(r, "tools[%zu]: %s instead of an object", i, json_kind_name(tool));
    }
    if (json_array_size(tools) > 0) r->tools = tools;
    return CALLA_OK;
}

/* Renders a message's content into r->content and gives its trimmed part. */
static calla_status read_content(renderer *r, const message *m, bool is_system, calla_range *range)
{
    CALLA_TRY(chat_content_render(json_object_get(m->object, "content"), m->index, is_system,
                                  r->options.strict, &r->content, r->err));
    if (r->content.failed || r->content.text.failed)
        return error_set(r->err, CALLA_ERR_MEMORY, "messages[%zu]: no memory for its content",
                         m->index);
    *range = text_strip(r->content.text.data, (calla_range){0, r->content.text.n});
    return CALLA_OK;
}

/* ---- the system block ---- */

/* The trimmed, non-empty contents of the system messages joined by "\n\n", after `lead`. */
static calla_status put_system_contents(renderer *r, const char *lead)
{
    for (size_t i = 0; i < r->n_system; i++) {
        calla_range range;
        CALLA_TRY(read_content(r, &r->system[i], true, &range));
        if (range.begin == range.end) continue;
        chat_text_put(&r->out, lead);
        chat_text_put_part(&r->out, &r->content, range);
        lead = "\n\n";
    }
    return CALLA_OK;
}

static const char tools_before[] =
    "# Tools\n\nYou have access to the following functions:\n\n<tools>";
static const char tools_after[] =
    "\n</tools>\n\n"
    "If you choose to call a function ONLY reply in the following format with NO suffix:\n\n"
    "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n"
    "</parameter>\n<parameter=example_parameter_2>\nThis is the value for the second parameter\n"
    "that can span\nmultiple lines\n</parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\n"
    "Reminder:\n- Function calls MUST follow the specified format: an inner "
    "<function=...></function> block must be nested within <tool_call></tool_call> XML tags\n"
    "- Required parameters MUST be specified\n- You may provide optional reasoning for your "
    "function call in natural language BEFORE the function call, but NOT after\n- If there is no "
    "function call available, answer the question like normal with your current knowledge and do "
    "not tell the user about function calls\n</IMPORTANT>";

static calla_status put_system_block(renderer *r)
{
    if (!r->tools && r->n_system == 0) return CALLA_OK;
    chat_text_put(&r->out, "<|im_start|>system\n");
    if (r->tools) {
        chat_text_put(&r->out, tools_before);
        for (size_t i = 0; i < json_array_size(r->tools); i++) {
            chat_text_put(&r->out, "\n");
            chat_text_put_json(&r->out, json_array_get(r->tools, i));
        }
        chat_text_put(&r->out, tools_after);
    }
    CALLA_TRY(put_system_contents(r, r->tools ? "\n\n" : ""));
    chat_text_put(&r->out, "<|im_end|>\n");
    return CALLA_OK;
}

/* ---- turns ---- */

/* The last user message that is more than a wrapped tool response. Assistant turns after it keep
 * their reasoning. */
static calla_status find_last_query(renderer *r, size_t *last_query)
{
    static const char open[] = "<tool_response>", close[] = "</tool_response>";
    const size_t n_open = sizeof open - 1, n_close = sizeof close - 1;
    for (size_t i = r->n_messages; i-- > 0;) {
        if (r->messages[i].role != ROLE_USER) continue;
        calla_range range;
        CALLA_TRY(read_content(r, &r->messages[i], false, &range));
        const char *text = r->content.text.data;
        size_t n = range.end - range.begin;
        if (n < n_open || memcmp(text + range.begin, open, n_open) != 0 || n < n_close ||
            memcmp(text + range.end - n_close, close, n_close) != 0) {
            *last_query = i;
            return CALLA_OK;
        }
    }
    return fail(r, "messages: No user query found in messages.");
}

static void put_user(renderer *r, calla_range content)
{
    chat_text_put(&r->out, "<|im_start|>user\n");
    chat_text_put_part(&r->out, &r->content, content);
    chat_text_put(&r->out, "<|im_end|>\n");
}

/* Consecutive tool messages share one user turn. A tool message that comes first of all lacks the
 * turn's opening, as in the template. */
static void put_tool(renderer *r, size_t i, calla_range content)
{
    if (i > 0 && r->messages[i - 1].role != ROLE_TOOL) chat_text_put(&r->out, "<|im_start|>user");
    chat_text_put(&r->out, "\n<tool_response>\n");
    chat_text_put_part(&r->out, &r->content, content);
    chat_text_put(&r->out, "\n</tool_response>");
    if (i + 1 == r->n_messages || r->messages[i + 1].role != ROLE_TOOL)
        chat_text_put(&r->out, "<|im_end|>\n");
}

/* The arguments of a call as an object, or NULL for none; *owned is to be decref'ed. */
static calla_status read_arguments(renderer *r, const char *place, const json_t *call,
                                   const json_t **arguments, json_t **owned)
{
    const json_t *given = json_object_get(call, "arguments");
    *arguments = NULL;
    if (!given) return CALLA_OK;
    if (!r->options.strict) {
        if (json_is_null(given)) return CALLA_OK;
        if (json_is_string(given)) {
            const char *text = json_string_value(given);
            calla_range range = text_strip(text, (calla_range){0, json_string_length(given)});
            if (range.begin == range.end) return CALLA_OK;
            char what[128];
            snprintf(what, sizeof what, "%s.arguments", place);
            CALLA_TRY(json_parse_text(text, json_string_length(given), what, owned, r->err));
            given = *owned;
        }
    }
    if (!json_is_mapping(given))
        return fail(r, "%s.arguments: Can only get item pairs from a mapping. (%s)", place,
                    json_kind_name(given));
    *arguments = given;
    return CALLA_OK;
}

static void put_arguments(renderer *r, const json_t *arguments)
{
    json_t *object = (json_t *)arguments; /* jansson's iterators want it mutable */
    for (void *i = json_object_iter(object); i; i = json_object_iter_next(object, i)) {
        const json_t *value = json_object_iter_value(i);
        chat_text_put(&r->out, "<parameter=");
        chat_text_put_literal(&r->out, json_object_iter_key(i), json_object_iter_key_len(i));
        chat_text_put(&r->out, ">\n");
        if (json_is_string(value))
            chat_text_put_string(&r->out, value);
        else
            chat_text_put_json(&r->out, value);
        chat_text_put(&r->out, "\n</parameter>\n");
    }
}

static calla_status put_tool_call(renderer *r, const char *place, const json_t *call,
                                  const char *lead)
{
    const json_t *function = json_object_get(call, "function"), *name, *arguments;
    json_t *owned = NULL;
    calla_status status = CALLA_OK;
    if (json_is_mapping(call) && function) call = function;
    if (!json_is_mapping(call))
        return fail(r, "%s: %s instead of an object", place, json_kind_name(call));
    name = json_object_get(call, "name");
    if (!json_is_string(name))
        return fail(r, "%s.name: %s instead of a string", place, json_kind_name(name));
    CALLA_TRY_GOTO(read_arguments(r, place, call, &arguments, &owned), done);
    chat_text_put(&r->out, lead);
    chat_text_put(&r->out, "<tool_call>\n<function=");
    chat_text_put_string(&r->out, name);
    chat_text_put(&r->out, ">\n");
    if (arguments) put_arguments(r, arguments);
    chat_text_put(&r->out, "</function>\n</tool_call>");
done:
    json_decref(owned);
    return status;
}

static calla_status put_tool_calls(renderer *r, const message *m, bool content_is_blank)
{
    const json_t *calls = json_object_get(m->object, "tool_calls");
    if (!calls || json_is_null(calls)) return CALLA_OK;
    if (!json_is_array(calls)) {
        if (r->options.strict && json_string_length(calls) == 0) return CALLA_OK;
        return fail(r, "messages[%zu].tool_calls: %s instead of an array", m->index,
                    json_kind_name(calls));
    }
    for (size_t i = 0; i < json_array_size(calls); i++) {
        char place[80];
        snprintf(place, sizeof place, "messages[%zu].tool_calls[%zu]", m->index, i);
        const char *lead = i > 0 ? "\n" : content_is_blank ? "" : "\n\n";
        CALLA_TRY(put_tool_call(r, place, json_array_get(calls, i), lead));
    }
    return CALLA_OK;
}

/* The message's reasoning if it has some of its own, else NULL. */
static calla_status read_reasoning(renderer *r, const message *m, const json_t **reasoning)
{
    static const char *const names[] = {"reasoning_content", "reasoning", "thinking"};
    *reasoning = NULL;
    for (int i = 0; i < (r->options.strict ? 1 : 3); i++) {
        const json_t *value = json_object_get(m->object, names[i]);
        if (!value || json_is_null(value)) continue;
        if (json_is_string(value))
            *reasoning = value;
        else if (!r->options.strict)
            return fail(r, "messages[%zu].%s: %s instead of a string", m->index, names[i],
                        json_kind_name(value));
        return CALLA_OK;
    }
    return CALLA_OK;
}

/* Takes the reasoning out of a content that holds "</think>". */
static void split_reasoning(const char *text, calla_range *content, calla_range *reasoning)
{
    static const char open[] = "<think>", close[] = "</think>";
    size_t end = text_find_first(text, *content, close);
    if (end == SIZE_MAX) return;
    *reasoning = text_strip_newlines_right(text, (calla_range){content->begin, end});
    size_t begin = text_find_last(text, *reasoning, open);
    if (begin != SIZE_MAX) reasoning->begin = begin + sizeof open - 1;
    *reasoning = text_strip_newlines_left(text, *reasoning);
    content->begin = text_find_last(text, *content, close) + sizeof close - 1;
    *content = text_strip_newlines_left(text, *content);
}

static calla_status put_assistant(renderer *r, const message *m, bool keep_thinking,
                                  calla_range content)
{
    const char *text = r->content.text.data;
    const json_t *own;
    calla_range reasoning = {0, 0};
    CALLA_TRY(read_reasoning(r, m, &own));
    if (!own) split_reasoning(text, &content, &reasoning);
    chat_text_put(&r->out, "<|im_start|>assistant\n");
    if (keep_thinking) {
        chat_text_put(&r->out, "<think>\n");
        if (own) {
            const char *bytes = json_string_value(own);
            calla_range part = text_strip(bytes, (calla_range){0, json_string_length(own)});
            chat_text_put_literal(&r->out, bytes + part.begin, part.end - part.begin);
        } else {
            chat_text_put_part(&r->out, &r->content, text_strip(text, reasoning));
        }
        chat_text_put(&r->out, "\n</think>\n\n");
    }
    chat_text_put_part(&r->out, &r->content, content);
    calla_range inner = text_strip(text, content);
    CALLA_TRY(put_tool_calls(r, m, inner.begin == inner.end));
    chat_text_put(&r->out, "<|im_end|>\n");
    return CALLA_OK;
}

static calla_status put_message(renderer *r, size_t i, size_t last_query)
{
    const message *m = &r->messages[i];
    calla_range content;
    CALLA_TRY(read_content(r, m, false, &content));
    switch (m->role) {
    case ROLE_SYSTEM: /* in strict mode only */
        if (i > 0)
            return fail(r, "messages[%zu]: System message must be at the beginning.", m->index);
        return CALLA_OK;
    case ROLE_USER:
        put_user(r, content);
        return CALLA_OK;
    case ROLE_ASSISTANT:
        return put_assistant(r, m, r->options.preserve_thinking || i > last_query, content);
    case ROLE_TOOL:
        put_tool(r, i, content);
        return CALLA_OK;
    default: {
        const char *name = json_string_value(json_object_get(m->object, "role"));
        return fail(r, "messages[%zu]: Unexpected message role. (\"%s\")", m->index,
                    name ? name : "");
    }
    }
}

static calla_status render_all(renderer *r)
{
    size_t last_query = 0;
    CALLA_TRY(put_system_block(r));
    CALLA_TRY(find_last_query(r, &last_query));
    for (size_t i = 0; i < r->n_messages; i++) CALLA_TRY(put_message(r, i, last_query));
    if (!r->options.no_generation_prompt) {
        chat_text_put(&r->out, "<|im_start|>assistant\n");
        chat_text_put(&r->out, r->options.no_thinking ? "<think>\n\n</think>\n\n" : "<think>\n");
    }
    return CALLA_OK;
}

calla_status chat_render(const json_t *messages, const json_t *tools,
                         const calla_chat_options *options, calla_prompt *prompt, calla_error *err)
{
    renderer r = {.err = err};
    calla_text text;
    calla_status status = CALLA_OK;
    if (options) r.options = *options;
    CALLA_TRY_GOTO(read_messages(&r, messages), done);
    CALLA_TRY_GOTO(read_tools(&r, tools), done);
    CALLA_TRY_GOTO(render_all(&r), done);
    if (r.out.failed) {
        status = error_set(err, CALLA_ERR_MEMORY, "no memory for a prompt");
        goto done;
    }
    CALLA_TRY_GOTO(strbuf_take(&r.out.text, &text.data, &text.n_bytes, err), done);
    *prompt = (calla_prompt){text, r.out.literal, r.out.n_literal};
    r.out = (chat_text){0};
done:
    free(r.messages);
    free(r.system);
    chat_text_free(&r.content);
    chat_text_free(&r.out);
    return status;
}

calla_status calla_chat_render(const char *messages, size_t n_messages_bytes, const char *tools,
                               size_t n_tools_bytes, const calla_chat_options *options,
                               calla_prompt *prompt, calla_error *err)
{
    json_t *message_list = NULL, *tool_list = NULL;
    calla_status status = CALLA_OK;
    CALLA_TRY_GOTO(json_parse_text(messages, n_messages_bytes, "messages", &message_list, err),
                   done);
    if (n_tools_bytes > 0)
        CALLA_TRY_GOTO(json_parse_text(tools, n_tools_bytes, "tools", &tool_list, err), done);
    status = chat_render(message_list, tool_list, options, prompt, err);
done:
    json_decref(message_list);
    json_decref(tool_list);
    return status;
}

void calla_prompt_free(calla_prompt *prompt)
{
    calla_text_free(&prompt->text);
    free(prompt->literal);
    *prompt = (calla_prompt){0};
}
