/* The items of a Responses request become the messages of a chat request, the one form that
 * everything behind the readers knows.
 *
 * What the model said in one turn comes as several items, reasoning, then texts and calls in any
 * order. They are one message again, as they would be in a chat: a turn ends at an item that is not
 * the model's, at reasoning that follows something else, and between two texts in a row. */
#include "server/wire.h"

#include <stdio.h>
#include <string.h>

typedef struct input_reader {
    json_t *messages;
    json_t *turn;              /* the model's message that goes on, of messages; or NULL */
    strbuf content, reasoning; /* of it so far */
    bool ends_in_text;         /* its last item was a text */
    const json_t *item;        /* read now, */
    size_t index;              /* its place */
} input_reader;

static bool no_memory(api_error *e)
{
    return api_fail(e, 500, "input", NULL, "no memory for the input");
}

/* input[i], or one of its fields. */
static void name_place(const input_reader *in, const char *name, char *place, size_t n)
{
    snprintf(place, n, "input[%zu]%s%s", in->index, name ? "." : "", name ? name : "");
}

/* ---- texts ---- */

static bool check_text_type(const json_t *value, const char *name, void *into, api_error *e)
{
    const char *text;
    (void)into;
    if (json_is_text(value, "input_text") || json_is_text(value, "output_text") ||
        json_is_text(value, "text"))
        return true;
    if (!field_string(value, name, &text, e)) return false;
    return api_fail(e, 400, name, "unsupported_value",
                    "%s: parts of type \"%s\" are not supported, only text", name, text);
}

static bool check_thought_type(const json_t *value, const char *name, void *into, api_error *e)
{
    (void)into;
    if (json_is_text(value, "reasoning_text") || json_is_text(value, "summary_text") ||
        json_is_text(value, "text"))
        return true;
    return api_invalid(e, name, "%s must be \"reasoning_text\" or \"summary_text\"", name);
}

static const field text_part_fields[] = {
    {"type", check_text_type},
    {"text", wire_check_string},
    {"annotations", wire_ignore},             /* of answers sent back */
    {"logprobs", wire_ignore},                /* the same */
    {"prompt_cache_breakpoint", wire_ignore}, /* everything is cached */
    {0},
};
static const field thought_part_fields[] = {
    {"type", check_thought_type},
    {"text", wire_check_string},
    {0},
};

/* Appends the text of a part of a list: that of all its parts. */
static bool add_part(const json_t *part, const char *place, const field *fields, strbuf *text,
                     api_error *e)
{
    const field *const lists[] = {fields, NULL};
    char at[160];
    snprintf(at, sizeof at, "%s.", place);
    if (!fields_read(part, at, lists, NULL, e)) return false;
    static const char *const needed[] = {"type", "text"};
    for (int i = 0; i < 2; i++) {
        snprintf(at, sizeof at, "%s.%s", place, needed[i]);
        if (!json_is_string(json_object_get(part, needed[i])))
            return api_invalid(e, at, "%s is missing", at);
    }
    const json_t *value = json_object_get(part, "text");
    strbuf_append(text, json_string_value(value), json_string_length(value));
    return true;
}

/* Appends the text of the item's field: a string, or a list of parts. null is "". */
static bool add_text(const input_reader *in, const char *name, const field *parts, strbuf *text,
                     api_error *e)
{
    const json_t *value = json_object_get(in->item, name);
    char place[96];
    name_place(in, name, place, sizeof place);
    if (!value || json_is_null(value)) return true;
    if (json_is_string(value) && parts == text_part_fields) {
        strbuf_append(text, json_string_value(value), json_string_length(value));
        return true;
    }
    if (!json_is_array(value))
        return api_invalid(e, place, "%s must be a text or an array of parts, not %s", place,
                           json_kind_name(value));
    for (size_t i = 0; i < json_array_size(value); i++) {
        char part[128];
        snprintf(part, sizeof part, "%s[%zu]", place, i);
        if (!add_part(json_array_get(value, i), part, parts, text, e)) return false;
    }
    return true;
}

/* Sets a text of a message. */
static bool set_text(json_t *message, const char *key, const strbuf *text, api_error *e)
{
    json_t *value = text->failed ? NULL : json_stringn(text->data ? text->data : "", text->n);
    return json_object_set_new(message, key, value) == 0 ? true : no_memory(e);
}

/* ---- messages ---- */

/* Appends a message without a text. NULL with *e set: no memory. */
static json_t *add_message(input_reader *in, const char *role, api_error *e)
{
    json_t *message = json_pack("{s:s}", "role", role);
    if (json_array_append_new(in->messages, message) == 0) return message;
    no_memory(e);
    return NULL;
}

/* The model's message, begun if need be. NULL with *e set: no memory. */
static json_t *open_turn(input_reader *in, api_error *e)
{
    if (!in->turn) in->turn = add_message(in, "assistant", e);
    return in->turn;
}

/* Nothing more is added to the model's message. */
static bool close_turn(input_reader *in, api_error *e)
{
    json_t *turn = in->turn;
    if (!turn) return true;
    bool ok = set_text(turn, "content", &in->content, e) &&
              (in->reasoning.n == 0 || set_text(turn, "reasoning_content", &in->reasoning, e));
    strbuf_clear(&in->content);
    strbuf_clear(&in->reasoning);
    in->turn = NULL;
    in->ends_in_text = false;
    return ok;
}

/* Appends a message that is not the model's; its text is the item's field. */
static json_t *read_other(input_reader *in, const char *role, const char *name, api_error *e)
{
    strbuf text = {0};
    json_t *message = close_turn(in, e) ? add_message(in, role, e) : NULL;
    bool ok = message && add_text(in, name, text_part_fields, &text, e) &&
              set_text(message, "content", &text, e);
    strbuf_free(&text);
    return ok ? message : NULL;
}

static bool check_role(const json_t *value, const char *name, void *into, api_error *e)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant"};
    (void)into;
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (json_is_text(value, roles[i])) return true;
    return api_invalid(e, name, "%s must be system, developer, user or assistant", name);
}

static const field message_fields[] = {
    {"type", wire_ignore},
    {"role", check_role},
    {"content", wire_ignore},
    {"id", field_ignore_string},
    {"status", field_ignore_string},
    {"phase", field_ignore_string}, /* how a client shows it */
    {0},
};

static bool read_message(input_reader *in, api_error *e)
{
    const char *role = json_string_value(json_object_get(in->item, "role"));
    char place[64];
    name_place(in, "role", place, sizeof place);
    if (!role) return api_invalid(e, place, "%s is missing", place);
    if (strcmp(role, "assistant") != 0) return read_other(in, role, "content", e) != NULL;
    if ((in->ends_in_text && !close_turn(in, e)) || !open_turn(in, e)) return false;
    in->ends_in_text = true;
    return add_text(in, "content", text_part_fields, &in->content, e);
}

/* ---- reasoning ---- */

static const field reasoning_fields[] = {
    {"type", wire_ignore},
    {"id", field_ignore_string},
    {"status", field_ignore_string},
    {"summary", wire_ignore},
    {"content", wire_ignore},
    {"encrypted_content", field_ignore_string}, /* there is none: `content` has the text */
    {0},
};

/* The text of the reasoning, or what somebody made of it. Without either the item says that a turn
 * begins, and replay.h knows the reasoning. */
static bool read_reasoning(input_reader *in, api_error *e)
{
    strbuf text = {0}, summary = {0};
    bool has_more = in->turn && (in->ends_in_text || json_object_get(in->turn, "tool_calls"));
    bool ok = add_text(in, "summary", thought_part_fields, &summary, e) &&
              add_text(in, "content", thought_part_fields, &text, e) &&
              (!has_more || close_turn(in, e));
    const strbuf *said = text.n > 0 ? &text : &summary;
    if (ok && said->n > 0) {
        ok = open_turn(in, e) != NULL;
        strbuf_append(&in->reasoning, said->data, said->n);
    }
    if (text.failed || summary.failed) in->reasoning.failed = true;
    strbuf_free(&text);
    strbuf_free(&summary);
    return ok;
}

/* ---- calls ---- */

static bool check_no_namespace(const json_t *value, const char *name, void *into, api_error *e)
{
    (void)value, (void)into;
    return api_fail(e, 400, name, "unsupported_value",
                    "%s: there are no namespaces of functions here", name);
}

static const field call_fields[] = {
    {"type", wire_ignore},
    {"id", field_ignore_string},
    {"status", field_ignore_string},
    {"call_id", field_ignore_string},
    {"name", field_ignore_string},
    {"arguments", wire_check_string},
    {"namespace", check_no_namespace},
    {0},
};

/* *text: the item's field, which has to be there. */
static bool need_text(const input_reader *in, const char *name, const json_t **text, api_error *e)
{
    char place[64];
    name_place(in, name, place, sizeof place);
    *text = json_object_get(in->item, name);
    return json_is_string(*text) ? true : api_invalid(e, place, "%s is missing", place);
}

/* Arguments are an object, or nothing at all (""). */
static bool read_arguments(const input_reader *in, json_t **arguments, api_error *e)
{
    const json_t *text;
    char place[64];
    calla_error err;
    name_place(in, "arguments", place, sizeof place);
    if (!need_text(in, "arguments", &text, e)) return false;
    const char *bytes = json_string_value(text);
    size_t n = json_string_length(text);
    if (strspn(bytes, " \t\r\n") == n) {
        *arguments = json_string("");
        return *arguments ? true : no_memory(e);
    }
    if (json_parse_text(bytes, n, place, arguments, &err) != CALLA_OK)
        return api_invalid(e, place, "%s", err.message);
    if (json_is_mapping(*arguments)) return true;
    api_invalid(e, place, "%s must be an object in JSON, not %s", place,
                json_kind_name(*arguments));
    json_decref(*arguments);
    return false;
}

static bool read_call(input_reader *in, api_error *e)
{
    const json_t *id, *name;
    json_t *arguments;
    if (!need_text(in, "call_id", &id, e) || !need_text(in, "name", &name, e) ||
        !read_arguments(in, &arguments, e))
        return false;
    json_t *call = json_pack("{s:O, s:s, s:{s:O, s:o}}", "id", id, "type", "function", "function",
                             "name", name, "arguments", arguments);
    json_t *turn = open_turn(in, e);
    if (turn && !json_object_get(turn, "tool_calls"))
        json_object_set_new(turn, "tool_calls", json_array());
    in->ends_in_text = false;
    if (json_array_append_new(json_object_get(turn, "tool_calls"), call) == 0) return true;
    return no_memory(e);
}

static const field output_fields[] = {
    {"type", wire_ignore},           {"id", field_ignore_string},
    {"status", field_ignore_string}, {"call_id", field_ignore_string},
    {"name", field_ignore_string}, /* the call has it */
    {"output", wire_ignore},         {0},
};

static bool read_output(input_reader *in, api_error *e)
{
    const json_t *id, *output = json_object_get(in->item, "output");
    char place[64];
    name_place(in, "output", place, sizeof place);
    if (!need_text(in, "call_id", &id, e)) return false;
    if (!output || json_is_null(output)) return api_invalid(e, place, "%s is missing", place);
    json_t *message = read_other(in, "tool", "output", e);
    if (!message) return false;
    return json_object_set(message, "tool_call_id", (json_t *)id) == 0 ? true : no_memory(e);
}

/* ---- items ---- */

static bool read_item(input_reader *in, api_error *e)
{
    static const struct {
        const char *type;
        const field *fields;
        bool (*read)(input_reader *in, api_error *e);
    } kinds[] = {{"message", message_fields, read_message},
                 {"reasoning", reasoning_fields, read_reasoning},
                 {"function_call", call_fields, read_call},
                 {"function_call_output", output_fields, read_output}};
    const json_t *type = json_object_get(in->item, "type");
    bool is_short = (!type || json_is_null(type)) && json_object_get(in->item, "role");
    const char *name = is_short ? "message" : json_string_value(type);
    char place[64];
    name_place(in, NULL, place, sizeof place);
    if (!json_is_mapping(in->item))
        return api_invalid(e, place, "%s must be an object, not %s", place,
                           json_kind_name(in->item));
    name_place(in, "type", place, sizeof place);
    if (!name) return api_invalid(e, place, "%s is missing", place);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const field *const lists[] = {kinds[i].fields, NULL};
        char at[64];
        if (strcmp(name, kinds[i].type) != 0) continue;
        snprintf(at, sizeof at, "input[%zu].", in->index);
        return fields_read(in->item, at, lists, NULL, e) && kinds[i].read(in, e);
    }
    if (strcmp(name, "item_reference") == 0)
        return api_fail(e, 400, place, "unsupported_value",
                        "%s: this server stores no items that could be referred to; send the item "
                        "itself (store: false makes most clients do so)",
                        place);
    return api_fail(e, 400, place, "unsupported_value",
                    "%s: items of type \"%s\" are not supported; message, reasoning, "
                    "function_call and function_call_output are",
                    place, name);
}

static bool read_items(input_reader *in, const json_t *input, api_error *e)
{
    if (!json_is_array(input))
        return api_invalid(e, "input", "input must be a text or an array of items, not %s",
                           json_kind_name(input));
    if (json_array_size(input) == 0) return api_invalid(e, "input", "input has no items");
    for (in->index = 0; in->index < json_array_size(input); in->index++) {
        in->item = json_array_get(input, in->index);
        if (!read_item(in, e)) return false;
    }
    return close_turn(in, e);
}

/* A whole text as a message. */
static bool put_text(input_reader *in, const char *role, const json_t *text, api_error *e)
{
    json_t *message = add_message(in, role, e);
    if (!message) return false;
    return json_object_set(message, "content", (json_t *)text) == 0 ? true : no_memory(e);
}

bool wire_read_input(const json_t *input, const json_t *instructions, json_t **messages,
                     api_error *e)
{
    input_reader in = {.messages = json_array()};
    *messages = in.messages;
    if (json_string_length(instructions) > 0 && !put_text(&in, "system", instructions, e))
        return false;
    if (json_is_string(input)) return put_text(&in, "user", input, e);
    bool ok = read_items(&in, input, e);
    strbuf_free(&in.content);
    strbuf_free(&in.reasoning);
    return ok;
}
