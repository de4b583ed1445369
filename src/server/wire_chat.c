/* POST /v1/chat/completions: the request.
 *
 * Some agents put a line about billing first into the system prompt, with a value that differs in
 * every request: nothing after it could be reused from the cache. The line is not for the model, so
 * it is taken out (keep_billing_line leaves it). */
#include "server/wire.h"

static bool read_messages(const json_t *value, const char *name, void *into, api_error *e)
{
    job_request *r = ((wire_reader *)into)->r;
    (void)name;
    r->messages = json_incref((json_t *)value);
    return wire_check_messages(r->messages, e);
}

static bool read_tools(const json_t *value, const char *name, void *into, api_error *e)
{
    (void)name;
    if (!wire_check_tools(value, e)) return false;
    if (json_array_size(value) > 0) ((wire_reader *)into)->r->tools = json_incref((json_t *)value);
    return true;
}

/* ---- tool_choice ---- */

static bool read_choice_type(const json_t *value, const char *name, void *into, api_error *e)
{
    (void)into;
    if (json_is_text(value, "function")) return true;
    return api_invalid(e, name, "%s must be \"function\"", name);
}

static bool read_choice_function(const json_t *value, const char *name, void *into, api_error *e)
{
    static const field fields[] = {{"name", wire_read_function_name}, {0}};
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
    if (!json_is_mapping(value)) return wire_read_choice_word(value, name, into, e);
    if (!fields_read(value, "tool_choice.", lists, into, e)) return false;
    if (!w->tool_choice_name) return api_invalid(e, name, "tool_choice.function.name is missing");
    w->r->tool_choice = TOOLS_REQUIRED;
    return true;
}

/* ---- output ---- */

static bool read_logprobs(const json_t *value, const char *name, void *into, api_error *e)
{
    return field_bool(value, name, &((wire_reader *)into)->r->logprobs, e);
}

/* ---- response_format ---- */

static bool read_json_schema(const json_t *value, const char *name, void *into, api_error *e)
{
    static const field fields[] = {{"name", field_ignore_string},
                                   {"description", field_ignore_string},
                                   {"schema", wire_read_schema},
                                   {"strict", wire_ignore_bool}, /* is always done */
                                   {0}};
    static const field *const lists[] = {fields, NULL};
    (void)name;
    return fields_read(value, "response_format.json_schema.", lists, into, e);
}

static bool read_response_format(const json_t *value, const char *name, void *into, api_error *e)
{
    static const field fields[] = {
        {"type", wire_read_format_type}, {"json_schema", read_json_schema}, {0}};
    static const field *const lists[] = {fields, NULL};
    if (!fields_read(value, "response_format.", lists, into, e)) return false;
    if (((wire_reader *)into)->format) return true;
    return api_invalid(e, name, "response_format.type is missing");
}

static bool read_modalities(const json_t *value, const char *name, void *into, api_error *e)
{
    (void)into;
    if (json_array_size(value) == 1 && json_is_text(json_array_get(value, 0), "text")) return true;
    return api_invalid(e, name, "%s must be [\"text\"]", name);
}

static const field chat_fields[] = {
    {"messages", read_messages},
    {"tools", read_tools},
    {"tool_choice", read_tool_choice},
    {"parallel_tool_calls", wire_read_parallel_calls},
    {"reasoning_effort", wire_read_effort},
    {"logprobs", read_logprobs},
    {"top_logprobs", wire_read_top_logprobs},
    {"response_format", read_response_format},
    {"modalities", read_modalities},
    {"verbosity", wire_read_verbosity},
    {"audio", field_refuse},
    {"prediction", field_refuse},
    {"web_search_options", field_refuse},
    {"functions", field_refuse},
    {"function_call", field_refuse},
    {0},
};

bool wire_read_chat(json_t *body, const wire_defaults *d, job_request *r, api_error *e)
{
    static const field *const lists[] = {wire_shared_fields, wire_choices_fields,
                                         wire_thinking_fields, chat_fields, NULL};
    wire_reader w;
    wire_reader_init(&w, r, d);
    r->chat = true;
    r->input_name = "messages";
    w.schema_place = "response_format.json_schema.schema";
    if (!fields_read(body, "", lists, &w, e)) return false;
    if (!r->messages) return api_invalid(e, "messages", "messages is missing");
    if (!d->keep_billing_line) wire_drop_billing_lines(r->messages);
    if (w.n_top_logprobs >= 0 && !r->logprobs)
        return api_invalid(e, "top_logprobs", "top_logprobs needs logprobs: true");
    return wire_finish_chat(&w, e);
}
