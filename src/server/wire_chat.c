/* POST /v1/chat/completions: the request.
 *
 * Some agents put a line about billing first into the system prompt, with a value that differs in
 * every request: nothing after it could be reused from the cache. The line is not for the model, so
 * it is taken out (keep_billing_line leaves it). */
#include "server/wire.h"

#include <string.h>

enum { LOW_EFFORT_TOKENS = 1024, MEDIUM_EFFORT_TOKENS = 8192 };

static bool read_messages(const json_t *value, const char *name, void *into, api_error *e)
{
    wire_reader *w = into;
    (void)name;
    w->r->messages = (json_t *)value;
    return wire_check_messages(w->r->messages, w->d->keep_billing_line, e);
}

static bool read_tools(const json_t *value, const char *name, void *into, api_error *e)
{
    (void)name;
    if (!wire_check_tools(value, e)) return false;
    if (json_array_size(value) > 0) ((wire_reader *)into)->r->tools = (json_t *)value;
    return true;
}

static bool read_parallel_calls(const json_t *value, const char *name, void *into, api_error *e)
{
    bool on;
    if (!field_bool(value, name, &on, e)) return false;
    ((wire_reader *)into)->r->one_tool_call = !on;
    return true;
}

/* ---- tool_choice ---- */

static bool read_choice_type(const json_t *value, const char *name, void *into, api_error *e)
{
    (void)into;
    if (json_is_text(value, "function")) return true;
    return api_invalid(e, name, "%s must be \"function\"", name);
}

static bool read_function_name(const json_t *value, const char *name, void *into, api_error *e)
{
    return field_string(value, name, &((wire_reader *)into)->tool_choice_name, e);
}

static bool read_choice_function(const json_t *value, const char *name, void *into, api_error *e)
{
    static const field fields[] = {{"name", read_function_name}, {0}};
    static const field *const lists[] = {fields, NULL};
    (void)name;
    return fields_read(value, "tool_choice.function.", lists, into, e);
}

static bool read_tool_choice(const json_t *value, const char *name, void *into, api_error *e)
{
    static const field fields[] = {
        {"type", read_choice_type}, {"function", read_choice_function}, {0}};
    static const field *const lists[] = {fields, NULL};
    wire_reader *w = into;
    if (json_is_mapping(value)) {
        if (!fields_read(value, "tool_choice.", lists, into, e)) return false;
        if (!w->tool_choice_name)
            return api_invalid(e, name, "tool_choice.function.name is missing");
        w->r->tool_choice = TOOLS_REQUIRED;
    } else if (json_is_text(value, "required")) {
        w->r->tool_choice = TOOLS_REQUIRED;
    } else if (json_is_text(value, "none")) {
        w->r->tool_choice = TOOLS_NONE;
    } else if (!json_is_text(value, "auto")) {
        return api_invalid(
            e, name, "%s must be \"none\", \"auto\", \"required\" or a function to call", name);
    }
    return true;
}

static bool check_tool_choice(const wire_reader *w, api_error *e)
{
    job_request *r = w->r;
    if (r->tool_choice != TOOLS_REQUIRED) return true;
    if (!r->tools)
        return api_invalid(e, "tool_choice", "tool_choice asks for a call, but there are no tools");
    if (!w->tool_choice_name) return true;
    for (size_t i = 0; i < json_array_size(r->tools); i++) {
        const json_t *function = json_object_get(json_array_get(r->tools, i), "function");
        if (!json_is_text(json_object_get(function, "name"), w->tool_choice_name)) continue;
        r->tool_name = w->tool_choice_name;
        r->one_tool_call = true;
        return true;
    }
    return api_invalid(e, "tool_choice", "tool_choice names '%.64s', which is not among the tools",
                       w->tool_choice_name);
}

/* ---- thinking ---- */

static bool read_effort(const json_t *value, const char *name, void *into, api_error *e)
{
    static const struct {
        const char *name;
        bool thinking;
        int64_t budget;
    } efforts[] = {{"none", false, -1},
                   {"minimal", false, -1},
                   {"low", true, LOW_EFFORT_TOKENS},
                   {"medium", true, MEDIUM_EFFORT_TOKENS},
                   {"high", true, -1},
                   {"xhigh", true, -1},
                   {"max", true, -1}};
    wire_reader *w = into;
    for (size_t i = 0; i < sizeof efforts / sizeof *efforts; i++) {
        if (!json_is_text(value, efforts[i].name)) continue;
        w->effort_thinking = efforts[i].thinking;
        w->effort_budget = efforts[i].budget;
        return true;
    }
    return api_invalid(e, name, "%s must be none, minimal, low, medium, high, xhigh or max", name);
}

static bool read_enable_thinking(const json_t *value, const char *name, void *into, api_error *e)
{
    bool on;
    if (!field_bool(value, name, &on, e)) return false;
    ((wire_reader *)into)->thinking = on;
    return true;
}

static bool read_preserve(const json_t *value, const char *name, void *into, api_error *e)
{
    return field_bool(value, name, &((wire_reader *)into)->r->preserve_thinking, e);
}

static bool read_budget(const json_t *value, const char *name, void *into, api_error *e)
{
    return field_int(value, name, 0, INT32_MAX, &((wire_reader *)into)->thinking_budget, e);
}

static bool read_template_args(const json_t *value, const char *name, void *into, api_error *e)
{
    static const field fields[] = {{"enable_thinking", read_enable_thinking},
                                   {"preserve_thinking", read_preserve},
                                   {"thinking_budget", read_budget},
                                   {0}};
    static const field *const lists[] = {fields, NULL};
    (void)name;
    return fields_read(value, "chat_template_kwargs.", lists, into, e);
}

static bool read_thinking_type(const json_t *value, const char *name, void *into, api_error *e)
{
    wire_reader *w = into;
    if (json_is_text(value, "enabled"))
        w->thinking = 1;
    else if (json_is_text(value, "disabled"))
        w->thinking = 0;
    else
        return api_invalid(e, name, "%s must be \"enabled\" or \"disabled\"", name);
    return true;
}

/* Anthropic's form. */
static bool read_thinking(const json_t *value, const char *name, void *into, api_error *e)
{
    static const field fields[] = {
        {"type", read_thinking_type}, {"budget_tokens", read_budget}, {0}};
    static const field *const lists[] = {fields, NULL};
    (void)name;
    return fields_read(value, "thinking.", lists, into, e);
}

/* What was said directly counts more than what an effort implies, that more than the default. */
static void set_thinking(wire_reader *w)
{
    job_request *r = w->r;
    int thinking = w->thinking >= 0 ? w->thinking : w->effort_thinking;
    int64_t budget = w->thinking_budget != -2 ? w->thinking_budget : w->effort_budget;
    r->no_thinking = thinking >= 0 ? thinking == 0 : w->d->no_thinking;
    r->thinking_budget = budget != -2 ? budget : w->d->thinking_budget;
}

/* ---- output ---- */

static bool read_logprobs(const json_t *value, const char *name, void *into, api_error *e)
{
    return field_bool(value, name, &((wire_reader *)into)->r->logprobs, e);
}

static bool read_top_logprobs(const json_t *value, const char *name, void *into, api_error *e)
{
    return field_int(value, name, 0, CALLA_MAX_TOP_LOGPROBS, &((wire_reader *)into)->n_top_logprobs,
                     e);
}

/* ---- response_format ---- */

static bool read_format_type(const json_t *value, const char *name, void *into, api_error *e)
{
    wire_reader *w = into;
    w->format = json_string_value(value);
    if (json_is_text(value, "text") || json_is_text(value, "json_object") ||
        json_is_text(value, "json_schema"))
        return true;
    return api_invalid(e, name, "%s must be \"text\", \"json_object\" or \"json_schema\"", name);
}

static bool read_schema(const json_t *value, const char *name, void *into, api_error *e)
{
    if (!field_ignore_object(value, name, into, e)) return false;
    ((wire_reader *)into)->format_schema = value;
    return true;
}

/* What strict asks for is always done. */
static bool read_strict(const json_t *value, const char *name, void *into, api_error *e)
{
    bool strict;
    (void)into;
    return field_bool(value, name, &strict, e);
}

static bool read_json_schema(const json_t *value, const char *name, void *into, api_error *e)
{
    static const field fields[] = {{"name", field_ignore_string},
                                   {"description", field_ignore_string},
                                   {"schema", read_schema},
                                   {"strict", read_strict},
                                   {0}};
    static const field *const lists[] = {fields, NULL};
    (void)name;
    return fields_read(value, "response_format.json_schema.", lists, into, e);
}

static bool read_response_format(const json_t *value, const char *name, void *into, api_error *e)
{
    static const field fields[] = {
        {"type", read_format_type}, {"json_schema", read_json_schema}, {0}};
    static const field *const lists[] = {fields, NULL};
    if (!fields_read(value, "response_format.", lists, into, e)) return false;
    if (((wire_reader *)into)->format) return true;
    return api_invalid(e, name, "response_format.type is missing");
}

/* A required call leaves no content to be constrained. */
static bool make_grammar(const wire_reader *w, api_error *e)
{
    static const char place[] = "response_format.json_schema.schema";
    job_request *r = w->r;
    calla_error err;
    if (!w->format || strcmp(w->format, "text") == 0 || r->tool_choice == TOOLS_REQUIRED)
        return true;
    bool object = strcmp(w->format, "json_object") == 0;
    if (!object && !w->format_schema) return api_invalid(e, place, "%s is missing", place);
    json_t *any_object = json_pack("{s:s}", "type", "object");
    grammar_spec spec = {.schema = object ? any_object : w->format_schema, .place = place};
    bool ok = grammar_create(&spec, &r->grammar, &err) == CALLA_OK;
    json_decref(any_object);
    return ok ? true : api_fail_status(e, &err);
}

static bool any_is_strict(const json_t *tools)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *function = json_object_get(json_array_get(tools, i), "function");
        if (json_is_true(json_object_get(function, "strict"))) return true;
    }
    return false;
}

/* Calls are constrained where one has to come, and where a strict function can be called. */
static bool make_calls(const wire_reader *w, api_error *e)
{
    const vocabulary *v = w->d->vocabulary;
    job_request *r = w->r;
    calla_error err;
    bool wanted = r->tool_choice == TOOLS_REQUIRED ||
                  (r->tool_choice == TOOLS_AUTO && any_is_strict(r->tools));
    if (!wanted) return true;
    if (v->tool_call < 0 || v->tool_call_end < 0)
        return api_fail(
            e, 400, "tools", "unsupported_value",
            "tools: the model has no tokens for calls that could be required or strict");
    if (grammar_create_calls(r->tools, r->tool_name, &r->calls, &err) == CALLA_OK) return true;
    return api_fail_status(e, &err);
}

static bool read_modalities(const json_t *value, const char *name, void *into, api_error *e)
{
    (void)into;
    if (json_array_size(value) == 1 && json_is_text(json_array_get(value, 0), "text")) return true;
    return api_invalid(e, name, "%s must be [\"text\"]", name);
}

static bool read_verbosity(const json_t *value, const char *name, void *into, api_error *e)
{
    (void)into;
    if (json_is_text(value, "medium")) return true;
    return api_fail(e, 400, name, "unsupported_value", "%s: only \"medium\" is supported", name);
}

static const field chat_fields[] = {
    {"messages", read_messages},
    {"tools", read_tools},
    {"tool_choice", read_tool_choice},
    {"parallel_tool_calls", read_parallel_calls},
    {"reasoning_effort", read_effort},
    {"enable_thinking", read_enable_thinking},
    {"chat_template_kwargs", read_template_args},
    {"thinking", read_thinking},
    {"thinking_budget", read_budget},
    {"logprobs", read_logprobs},
    {"top_logprobs", read_top_logprobs},
    {"response_format", read_response_format},
    {"modalities", read_modalities},
    {"verbosity", read_verbosity},
    {"audio", field_refuse},
    {"prediction", field_refuse},
    {"web_search_options", field_refuse},
    {"functions", field_refuse},
    {"function_call", field_refuse},
    {0},
};

bool wire_read_chat(json_t *body, const wire_defaults *d, job_request *r, api_error *e)
{
    static const field *const lists[] = {wire_common_fields, chat_fields, NULL};
    wire_reader w;
    wire_reader_init(&w, r, d);
    r->chat = true;
    if (!fields_read(body, "", lists, &w, e)) return false;
    if (!r->messages) return api_invalid(e, "messages", "messages is missing");
    if (w.n_top_logprobs >= 0 && !r->logprobs)
        return api_invalid(e, "top_logprobs", "top_logprobs needs logprobs: true");
    set_thinking(&w);
    return check_tool_choice(&w, e) && wire_finish_common(&w, e) && make_grammar(&w, e) &&
           make_calls(&w, e);
}
