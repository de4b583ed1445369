/* Messages of a chat request. What a message's content may be is the renderer's to say
 * (src/model/chat_content.c). */
#include "server/wire.h"

#include <stdio.h>
#include <string.h>

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
    {"content", wire_ignore},
    {"name", wire_check_string}, /* the template has no place for it */
    {"tool_calls", wire_ignore},
    {"tool_call_id", wire_check_string},
    {"reasoning_content", wire_ignore},
    {"reasoning", wire_ignore},
    {"thinking", wire_ignore},
    {"cache_control", wire_ignore}, /* everything is cached */
    {"annotations", wire_ignore},
    {"refusal", field_refuse},
    {"audio", field_refuse},
    {"function_call", field_refuse},
    {0},
};

static const field call_fields[] = {
    {"id", wire_check_string},
    {"type", wire_check_function_type},
    {"index", wire_ignore},
    {"function", wire_ignore},
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

void wire_drop_billing_lines(json_t *messages)
{
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *message = json_array_get(messages, i);
        const json_t *role = json_object_get(message, "role");
        if (!json_is_text(role, "system") && !json_is_text(role, "developer")) continue;
        drop_billing_line(message, "content");
        const json_t *parts = json_object_get(message, "content");
        for (size_t k = 0; k < json_array_size(parts); k++)
            drop_billing_line(json_array_get(parts, k), "text");
    }
}

bool wire_check_messages(json_t *messages, api_error *e)
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
    }
    return true;
}
