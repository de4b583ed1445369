/* POST /v1/responses: the request. What it says is read into the same form as a chat request's;
 * docs/server.md lists its fields. Nothing is stored, so whatever refers to what was is refused. */
#include "server/wire.h"

#include <stdio.h>

static bool read_tools(const json_t *value, const char *name, void *into, api_error *e)
{
    wire_reader *w = into;
    json_t *tools = NULL;
    (void)name;
    w->flat_tools = value;
    bool ok = wire_read_flat_tools(value, &tools, &w->r->ignored_tools, e);
    if (ok && json_array_size(tools) > 0) w->r->tools = json_incref(tools);
    json_decref(tools);
    return ok;
}

/* ---- tool_choice ---- */

static bool read_choice_type(const json_t *value, const char *name, void *into, api_error *e)
{
    (void)into;
    if (json_is_text(value, "function") || json_is_text(value, "allowed_tools")) return true;
    return api_fail(e, 400, name, "unsupported_value",
                    "%s: only \"function\" and \"allowed_tools\" are supported", name);
}

static bool read_choice_mode(const json_t *value, const char *name, void *into, api_error *e)
{
    job_request *r = ((wire_reader *)into)->r;
    r->tool_choice = json_is_text(value, "required") ? TOOLS_REQUIRED : TOOLS_AUTO;
    if (r->tool_choice == TOOLS_REQUIRED || json_is_text(value, "auto")) return true;
    return api_invalid(e, name, "%s must be \"auto\" or \"required\"", name);
}

static bool read_allowed(const json_t *value, const char *name, void *into, api_error *e)
{
    static const field fields[] = {
        {"type", wire_check_function_type}, {"name", field_ignore_string}, {0}};
    static const field *const lists[] = {fields, NULL};
    if (json_array_size(value) == 0 || json_array_size(value) > WIRE_MAX_TOOLS)
        return api_invalid(e, name, "%s must be an array of 1 to %d functions", name,
                           WIRE_MAX_TOOLS);
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *tool = json_array_get(value, i);
        char place[64];
        snprintf(place, sizeof place, "tool_choice.tools[%zu].", i);
        if (!fields_read(tool, place, lists, NULL, e)) return false;
        snprintf(place, sizeof place, "tool_choice.tools[%zu].name", i);
        if (!json_is_string(json_object_get(tool, "name")))
            return api_invalid(e, place, "%s is missing", place);
    }
    ((wire_reader *)into)->allowed_tools = value;
    return true;
}

/* {"type": "function", "name"}, or {"type": "allowed_tools", "mode", "tools"}. */
static bool read_choice_object(wire_reader *w, const json_t *value, api_error *e)
{
    static const field type_only[] = {{"type", read_choice_type}, {0}};
    static const field function[] = {{"name", wire_read_function_name}, {0}};
    static const field allowed[] = {{"mode", read_choice_mode}, {"tools", read_allowed}, {0}};
    bool is_allowed = json_is_text(json_object_get(value, "type"), "allowed_tools");
    const field *const lists[] = {type_only, is_allowed ? allowed : function, NULL};
    const char *missing = "tool_choice.name";
    if (json_is_null(json_object_get(value, "type")) || !json_object_get(value, "type"))
        return api_invalid(e, "tool_choice.type", "tool_choice.type is missing");
    /* Of another type, that is what has to be said of it. */
    if (!read_choice_type(json_object_get(value, "type"), "tool_choice.type", w, e) ||
        !fields_read(value, "tool_choice.", lists, w, e))
        return false;
    if (is_allowed ? w->allowed_tools != NULL : w->tool_choice_name != NULL) {
        if (!is_allowed) w->r->tool_choice = TOOLS_REQUIRED;
        return true;
    }
    if (is_allowed) missing = "tool_choice.tools";
    return api_invalid(e, missing, "%s is missing", missing);
}

static bool read_tool_choice(const json_t *value, const char *name, void *into, api_error *e)
{
    wire_reader *w = into;
    if (json_is_mapping(value)) return read_choice_object(w, value, e);
    return wire_read_choice_word(value, name, into, e);
}

/* ---- reasoning ---- */

/* No summaries are made: the reasoning itself is in the answer. */
static bool read_summary(const json_t *value, const char *name, void *into, api_error *e)
{
    (void)into;
    if (json_is_text(value, "auto") || json_is_text(value, "concise") ||
        json_is_text(value, "detailed"))
        return true;
    return api_invalid(e, name, "%s must be auto, concise or detailed", name);
}

/* Whose reasoning stays in the prompt. */
static bool read_reasoning_context(const json_t *value, const char *name, void *into, api_error *e)
{
    bool all = json_is_text(value, "all_turns");
    ((wire_reader *)into)->r->preserve_thinking = all;
    if (all || json_is_text(value, "current_turn") || json_is_text(value, "auto")) return true;
    return api_invalid(e, name, "%s must be auto, current_turn or all_turns", name);
}

static bool read_reasoning(const json_t *value, const char *name, void *into, api_error *e)
{
    static const field fields[] = {{"effort", wire_read_effort},
                                   {"summary", read_summary},
                                   {"generate_summary", read_summary},
                                   {"context", read_reasoning_context},
                                   {0}};
    static const field *const lists[] = {fields, NULL};
    (void)name;
    return fields_read(value, "reasoning.", lists, into, e);
}

/* ---- the answer's form ---- */

static bool read_format(const json_t *value, const char *name, void *into, api_error *e)
{
    static const field fields[] = {{"type", wire_read_format_type},
                                   {"name", field_ignore_string},
                                   {"description", field_ignore_string},
                                   {"schema", wire_read_schema},
                                   {"strict", wire_ignore_bool}, /* is always done */
                                   {0}};
    static const field *const lists[] = {fields, NULL};
    (void)name;
    if (!fields_read(value, "text.format.", lists, into, e)) return false;
    if (((wire_reader *)into)->format) return true;
    return api_invalid(e, "text.format.type", "text.format.type is missing");
}

static bool read_text(const json_t *value, const char *name, void *into, api_error *e)
{
    static const field fields[] = {
        {"format", read_format}, {"verbosity", wire_read_verbosity}, {0}};
    static const field *const lists[] = {fields, NULL};
    (void)name;
    return fields_read(value, "text.", lists, into, e);
}

static bool read_include(const json_t *value, const char *name, void *into, api_error *e)
{
    job_request *r = ((wire_reader *)into)->r;
    if (!json_is_array(value))
        return api_invalid(e, name, "%s must be an array, not %s", name, json_kind_name(value));
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *what = json_array_get(value, i);
        char place[32];
        snprintf(place, sizeof place, "include[%zu]", i);
        if (json_is_text(what, "message.output_text.logprobs"))
            r->logprobs = true;
        else if (!json_is_text(what, "reasoning.encrypted_content")) /* it comes unencrypted */
            return api_fail(e, 400, place, "unsupported_value",
                            "%s: only reasoning.encrypted_content and "
                            "message.output_text.logprobs are supported",
                            place);
    }
    return true;
}

static bool read_stream_options(const json_t *value, const char *name, void *into, api_error *e)
{
    static const field fields[] = {
        {"include_obfuscation", wire_ignore_bool},
        {"include_progress", wire_read_include_progress},
        {"reasoning_summary_delivery", field_ignore_string}, /* there are no summaries */
        {0}};
    static const field *const lists[] = {fields, NULL};
    (void)name;
    ((wire_reader *)into)->has_stream_options = true;
    return fields_read(value, "stream_options.", lists, into, e);
}

/* ---- what is not there ---- */

static bool refuse_stored(const json_t *value, const char *name, void *into, api_error *e)
{
    (void)value, (void)into;
    return api_fail(e, 400, name, "unsupported_parameter",
                    "%s is not supported: this server stores no responses, conversations or "
                    "prompts; send the whole conversation in input",
                    name);
}

static bool read_background(const json_t *value, const char *name, void *into, api_error *e)
{
    if (!wire_ignore_bool(value, name, into, e)) return false;
    return json_is_true(value) ? refuse_stored(value, name, into, e) : true;
}

static bool read_truncation(const json_t *value, const char *name, void *into, api_error *e)
{
    (void)into;
    if (json_is_text(value, "disabled")) return true;
    return api_fail(e, 400, name, "unsupported_value",
                    "%s: only \"disabled\" is supported, nothing is ever cut from a prompt", name);
}

/* A bound on calls of tools that the server has: it has none. */
static bool read_max_tool_calls(const json_t *value, const char *name, void *into, api_error *e)
{
    int64_t n;
    (void)into;
    return field_int(value, name, 1, INT32_MAX, &n, e);
}

static bool keep_instructions(const json_t *value, const char *name, void *into, api_error *e)
{
    ((wire_reader *)into)->instructions = value;
    return wire_check_string(value, name, into, e);
}

static bool keep_input(const json_t *value, const char *name, void *into, api_error *e)
{
    (void)name, (void)e;
    ((wire_reader *)into)->input = value;
    return true;
}

static const field responses_fields[] = {
    {"input", keep_input},
    {"instructions", keep_instructions},
    {"tools", read_tools},
    {"tool_choice", read_tool_choice},
    {"parallel_tool_calls", wire_read_parallel_calls},
    {"max_tool_calls", read_max_tool_calls},
    {"max_output_tokens", wire_read_max_completion},
    {"reasoning", read_reasoning},
    {"text", read_text},
    {"include", read_include},
    {"top_logprobs", wire_read_top_logprobs},
    {"stream_options", read_stream_options},
    {"truncation", read_truncation},
    {"background", read_background},
    {"store", wire_ignore_bool},
    {"client_metadata", field_ignore_object},
    {"previous_response_id", refuse_stored},
    {"conversation", refuse_stored},
    {"prompt", refuse_stored},
    {0},
};

bool wire_read_responses(json_t *body, const wire_defaults *d, job_request *r, api_error *e)
{
    static const field *const lists[] = {wire_shared_fields, wire_thinking_fields, responses_fields,
                                         NULL};
    wire_reader w;
    wire_reader_init(&w, r, d);
    r->chat = true;
    r->input_name = "input";
    w.schema_place = "text.format.schema";
    if (!fields_read(body, "", lists, &w, e)) return false;
    if (!w.input) return api_invalid(e, "input", "input is missing");
    if (!wire_read_input(w.input, w.instructions, &r->messages, e)) return false;
    if (!d->keep_billing_line) wire_drop_billing_lines(r->messages);
    if (w.n_top_logprobs > 0 && !r->logprobs)
        return api_invalid(e, "top_logprobs",
                           "top_logprobs needs include: [\"message.output_text.logprobs\"]");
    return wire_finish_chat(&w, e);
}
