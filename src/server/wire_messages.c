/* Messages and tools of a chat request. What a message's content may be is the renderer's to say
 * (src/model/chat_content.c). */
#include "server/wire.h"

#include <stdio.h>
#include <string.h>

enum { MAX_TOOL_NAME = 128 };

static bool accept_any(const json_t *value, const char *name, void *into, api_error *e)
{
    (void)value;
    (void)name;
    (void)into;
    (void)e;
    return true;
}

static bool check_string(const json_t *value, const char *name, void *into, api_error *e)
{
    (void)into;
    if (json_is_string(value)) return true;
    return api_invalid(e, name, "%s must be a string, not %s", name, json_kind_name(value));
}

static bool check_function_type(const json_t *value, const char *name, void *into, api_error *e)
{
    (void)into;
    if (json_is_text(value, "function")) return true;
    return api_fail(e, 400, name, "unsupported_value", "%s: only \"function\" is supported", name);
}

/* ---- messages ---- */

static bool check_role(const json_t *value, const char *name, void *into, api_error *e)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
    (void)into;
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (json_is_text(value, roles[i])) return true;
    return api_invalid(e, name, "%s must be system, developer, user, assistant or tool", name);
}

static const field message_fields[] = {
    {"role", check_role},
    {"content", accept_any},
    {"name", check_string}, /* the template has no place for it */
    {"tool_calls", accept_any},
    {"tool_call_id", check_string},
    {"reasoning_content", accept_any},
    {"reasoning", accept_any},
    {"thinking", accept_any},
    {"cache_control", accept_any}, /* everything is cached */
    {"annotations", accept_any},
    {"refusal", field_refuse},
    {"audio", field_refuse},
    {"function_call", field_refuse},
    {0},
};

static const field call_fields[] = {
    {"id", check_string},
    {"type", check_function_type},
    {"index", accept_any},
    {"function", accept_any},
    {0},
};

static bool check_calls(const json_t *calls, size_t index, api_error *e)
{
    static const field *const lists[] = {call_fields, NULL};
    for (size_t i = 0; i < json_array_size(calls); i++) {
        char place[96];
        snprintf(place, sizeof place, "messages[%zu].tool_calls[%zu].", index, i);
        if (!fields_read(json_array_get(calls, i), place, lists, NULL, e)) return false;
    }
    return true;
}

/* Takes a first line about billing out of object[key], if that is a text. */
static void drop_billing_line(json_t *object, const char *key)
{
    static const char start[] = "x-anthropic-billing-header:";
    const json_t *value = json_object_get(object, key);
    const char *text = json_string_value(value);
    if (!text || strncmp(text, start, sizeof start - 1) != 0) return;
    size_t n = json_string_length(value);
    const char *end = memchr(text, '\n', n);
    const char *rest = end ? end + 1 : text + n;
    json_t *left = json_stringn(rest, n - (size_t)(rest - text));
    if (left) json_object_set_new(object, key, left);
}

static void drop_billing_lines(json_t *message)
{
    const json_t *role = json_object_get(message, "role");
    if (!json_is_text(role, "system") && !json_is_text(role, "developer")) return;
    drop_billing_line(message, "content");
    const json_t *parts = json_object_get(message, "content");
    for (size_t i = 0; i < json_array_size(parts); i++)
        drop_billing_line(json_array_get(parts, i), "text");
}

bool wire_check_messages(json_t *messages, bool keep_billing_line, api_error *e)
{
    static const field *const lists[] = {message_fields, NULL};
    if (!json_is_array(messages))
        return api_invalid(e, "messages", "messages must be an array, not %s",
                           json_kind_name(messages));
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *message = json_array_get(messages, i);
        char place[64];
        snprintf(place, sizeof place, "messages[%zu].", i);
        if (!fields_read(message, place, lists, NULL, e)) return false;
        const json_t *role = json_object_get(message, "role");
        snprintf(place, sizeof place, "messages[%zu].role", i);
        if (!role) return api_invalid(e, place, "%s is missing", place);
        if (!check_role(role, place, NULL, e) || /* null is no role */
            !check_calls(json_object_get(message, "tool_calls"), i, e))
            return false;
        if (!keep_billing_line) drop_billing_lines(message);
    }
    return true;
}

/* ---- tools ---- */

static bool check_tool_name(const json_t *value, const char *name, void *into, api_error *e)
{
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:/";
    const char *text;
    (void)into;
    if (!field_string(value, name, &text, e)) return false;
    size_t n = strlen(text);
    if (n == 0 || n > MAX_TOOL_NAME || strspn(text, letters) != n)
        return api_invalid(e, name, "%s must be 1 to %d letters, digits, or _ - . : /", name,
                           MAX_TOOL_NAME);
    return true;
}

static bool check_strict(const json_t *value, const char *name, void *into, api_error *e)
{
    bool on;
    (void)into;
    return field_bool(value, name, &on, e);
}

static const field function_fields[] = {
    {"name", check_tool_name},
    {"description", check_string},
    {"parameters", field_ignore_object},
    {"strict", check_strict},
    {0},
};
static const field tool_fields[] = {
    {"type", check_function_type},
    {"function", accept_any},
    {"cache_control", accept_any},
    {0},
};

static bool check_tool(const json_t *tools, size_t i, api_error *e)
{
    static const field *const tool_lists[] = {tool_fields, NULL};
    static const field *const function_lists[] = {function_fields, NULL};
    const json_t *tool = json_array_get(tools, i);
    char place[64];
    snprintf(place, sizeof place, "tools[%zu].", i);
    if (!fields_read(tool, place, tool_lists, NULL, e)) return false;
    const json_t *function = json_object_get(tool, "function");
    snprintf(place, sizeof place, "tools[%zu].function.", i);
    if (!fields_read(function, place, function_lists, NULL, e)) return false;
    const char *name = json_string_value(json_object_get(function, "name"));
    snprintf(place, sizeof place, "tools[%zu].function.name", i);
    if (!name) return api_invalid(e, place, "%s is missing", place);
    for (size_t k = 0; k < i; k++) {
        const json_t *other = json_object_get(json_array_get(tools, k), "function");
        if (json_is_text(json_object_get(other, "name"), name))
            return api_invalid(e, place, "%s: there are two tools called '%s'", place, name);
    }
    return true;
}

bool wire_check_tools(const json_t *tools, api_error *e)
{
    if (!json_is_array(tools))
        return api_invalid(e, "tools", "tools must be an array, not %s", json_kind_name(tools));
    if (json_array_size(tools) > 1024)
        return api_invalid(e, "tools", "there are more than 1024 tools");
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (!check_tool(tools, i, e)) return false;
    return true;
}
