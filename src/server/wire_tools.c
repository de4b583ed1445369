/* The tools of a conversation, and which of them may or must be called. Inside the server they have
 * the form of chat requests, {"type": "function", "function": {"name", ...}}; Responses requests
 * have it flat, {"type": "function", "name", ...}. */
#include "server/wire.h"

#include <stdio.h>
#include <string.h>

enum { MAX_TOOL_NAME = 128 };

bool wire_read_parallel_calls(const json_t *value, const char *name, void *into, api_error *e)
{
    bool on;
    if (!field_bool(value, name, &on, e)) return false;
    ((wire_reader *)into)->r->one_tool_call = !on;
    return true;
}

/* ---- functions ---- */

static const json_t *function_of(const json_t *tools, size_t i)
{
    return json_object_get(json_array_get(tools, i), "function");
}

static const char *name_of(const json_t *tools, size_t i)
{
    return json_string_value(json_object_get(function_of(tools, i), "name"));
}

static bool has_tool(const json_t *tools, const char *name)
{
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (strcmp(name_of(tools, i), name) == 0) return true;
    return false;
}

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

/* Of both forms. */
static const field function_fields[] = {
    {"name", check_tool_name},
    {"description", wire_check_string},
    {"parameters", field_ignore_object},
    {"strict", wire_ignore_bool},
    {0},
};

/* The function at `place` ("tools[0].") has a name that none of `others` has. */
static bool check_name(const json_t *function, const char *place, const json_t *others,
                       size_t n_others, api_error *e)
{
    const char *name = json_string_value(json_object_get(function, "name"));
    char at[72];
    snprintf(at, sizeof at, "%sname", place);
    if (!name) return api_invalid(e, at, "%s is missing", at);
    for (size_t i = 0; i < n_others; i++)
        if (strcmp(name_of(others, i), name) == 0)
            return api_invalid(e, at, "%s: there are two tools called '%s'", at, name);
    return true;
}

static bool check_list(const json_t *tools, api_error *e)
{
    if (!json_is_array(tools))
        return api_invalid(e, "tools", "tools must be an array, not %s", json_kind_name(tools));
    if (json_array_size(tools) > WIRE_MAX_TOOLS)
        return api_invalid(e, "tools", "there are more than %d tools", WIRE_MAX_TOOLS);
    return true;
}

/* ---- chat's form ---- */

static bool check_tool(const json_t *tools, size_t i, api_error *e)
{
    static const field tool_fields[] = {
        {"type", wire_check_function_type},
        {"function", wire_ignore},
        {"cache_control", wire_ignore}, /* everything is cached */
        {0},
    };
    static const field *const tool_lists[] = {tool_fields, NULL};
    static const field *const function_lists[] = {function_fields, NULL};
    char place[64];
    snprintf(place, sizeof place, "tools[%zu].", i);
    if (!fields_read(json_array_get(tools, i), place, tool_lists, NULL, e)) return false;
    snprintf(place, sizeof place, "tools[%zu].function.", i);
    return fields_read(function_of(tools, i), place, function_lists, NULL, e) &&
           check_name(function_of(tools, i), place, tools, i, e);
}

bool wire_check_tools(const json_t *tools, api_error *e)
{
    if (!check_list(tools, e)) return false;
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (!check_tool(tools, i, e)) return false;
    return true;
}

/* ---- flat form ---- */

static bool no_memory(api_error *e)
{
    return api_fail(e, 500, "tools", NULL, "no memory for the tools");
}

static bool refuse_true(const json_t *value, const char *name, void *into, api_error *e)
{
    if (!wire_ignore_bool(value, name, into, e)) return false;
    return json_is_true(value) ? field_refuse(value, name, into, e) : true;
}

/* Who may call it: there is nobody but the model. */
static bool check_callers(const json_t *value, const char *name, void *into, api_error *e)
{
    (void)into;
    if (json_array_size(value) == 1 && json_is_text(json_array_get(value, 0), "direct"))
        return true;
    return api_fail(e, 400, name, "unsupported_value", "%s: only [\"direct\"] is supported", name);
}

static const field flat_fields[] = {
    {"type", wire_check_function_type},
    {"allowed_callers", check_callers},
    {"async", refuse_true},
    {"defer_loading", refuse_true},
    {0},
};

/* The function's own fields; what says nothing (null, strict: false) is left out, so that the
 * prompt is the same with and without it. */
static json_t *nest(const json_t *flat)
{
    json_t *mutable = (json_t *)flat; /* jansson's iterators want it so */
    json_t *function = json_object();
    for (void *i = json_object_iter(mutable); i; i = json_object_iter_next(mutable, i)) {
        const char *key = json_object_iter_key(i);
        json_t *value = json_object_iter_value(i);
        const field *f = function_fields;
        while (f->name && strcmp(f->name, key) != 0) f++;
        if (f->name && !json_is_null(value) && !json_is_false(value))
            json_object_set(function, key, value);
    }
    return json_pack("{s:s, s:o}", "type", "function", "function", function);
}

/* Remembers that there are tools of this type. */
static bool note_ignored(const json_t *type, json_t **ignored, api_error *e)
{
    if (!*ignored) *ignored = json_array();
    for (size_t i = 0; i < json_array_size(*ignored); i++)
        if (json_equal(json_array_get(*ignored, i), type)) return true;
    return json_array_append(*ignored, (json_t *)type) == 0 ? true : no_memory(e);
}

bool wire_read_flat_tools(const json_t *value, json_t **tools, json_t **ignored, api_error *e)
{
    static const field *const lists[] = {function_fields, flat_fields, NULL};
    if (!check_list(value, e)) return false;
    *tools = json_array();
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *tool = json_array_get(value, i), *type = json_object_get(tool, "type");
        const char *text;
        char place[64];
        snprintf(place, sizeof place, "tools[%zu].type", i);
        if (!json_is_mapping(tool) || !type) return api_invalid(e, place, "%s is missing", place);
        if (!field_string(type, place, &text, e)) return false;
        if (strcmp(text, "function") != 0) {
            if (!note_ignored(type, ignored, e)) return false;
            continue;
        }
        snprintf(place, sizeof place, "tools[%zu].", i);
        if (!fields_read(tool, place, lists, NULL, e) ||
            !check_name(tool, place, *tools, json_array_size(*tools), e))
            return false;
        if (json_array_append_new(*tools, nest(tool)) != 0) return no_memory(e);
    }
    return true;
}

/* ---- tool_choice ---- */

bool wire_read_choice_word(const json_t *value, const char *name, void *into, api_error *e)
{
    job_request *r = ((wire_reader *)into)->r;
    if (json_is_text(value, "required"))
        r->tool_choice = TOOLS_REQUIRED;
    else if (json_is_text(value, "none"))
        r->tool_choice = TOOLS_NONE;
    else if (!json_is_text(value, "auto"))
        return api_invalid(
            e, name, "%s must be \"none\", \"auto\", \"required\" or a function to call", name);
    return true;
}

bool wire_read_function_name(const json_t *value, const char *name, void *into, api_error *e)
{
    return field_string(value, name, &((wire_reader *)into)->tool_choice_name, e);
}

static bool fail_absent(const char *name, api_error *e)
{
    return api_invalid(e, "tool_choice", "tool_choice names '%.64s', which is not among the tools",
                       name);
}

bool wire_check_tool_choice(const wire_reader *w, api_error *e)
{
    job_request *r = w->r;
    if (r->tool_choice == TOOLS_REQUIRED && !r->tools)
        return api_invalid(e, "tool_choice", "tool_choice asks for a call, but there are no tools");
    for (size_t i = 0; i < json_array_size(w->allowed_tools); i++) {
        const char *name =
            json_string_value(json_object_get(json_array_get(w->allowed_tools, i), "name"));
        if (!has_tool(r->tools, name)) return fail_absent(name, e);
    }
    if (!w->tool_choice_name) return true;
    if (!has_tool(r->tools, w->tool_choice_name)) return fail_absent(w->tool_choice_name, e);
    r->tool_name = w->tool_choice_name;
    r->one_tool_call = true;
    return true;
}

/* ---- calls ---- */

static bool is_allowed(const wire_reader *w, const char *name)
{
    for (size_t i = 0; i < json_array_size(w->allowed_tools); i++)
        if (json_is_text(json_object_get(json_array_get(w->allowed_tools, i), "name"), name))
            return true;
    return w->allowed_tools == NULL;
}

/* The tools that may be called (a new reference), or NULL without memory. */
static json_t *callable_tools(const wire_reader *w)
{
    json_t *tools = json_array();
    for (size_t i = 0; tools && i < json_array_size(w->r->tools); i++)
        if (is_allowed(w, name_of(w->r->tools, i)))
            json_array_append(tools, json_array_get(w->r->tools, i));
    return tools;
}

static bool any_is_strict(const json_t *tools)
{
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (json_is_true(json_object_get(function_of(tools, i), "strict"))) return true;
    return false;
}

/* A place in a tool of the list, "tools[0].function.parameters", as the request has it. */
static void fail_tool(const wire_reader *w, const json_t *tools, calla_error *err, api_error *e)
{
    static const char inner[] = ".function";
    const char *rest = strstr(err->message, inner);
    size_t i, at = 0;
    if (!w->flat_tools || !rest || sscanf(err->message, "tools[%zu]", &i) != 1 ||
        i >= json_array_size(tools)) {
        api_fail_status(e, err);
        return;
    }
    const char *name = name_of(tools, i);
    while (!json_is_text(json_object_get(json_array_get(w->flat_tools, at), "name"), name) ||
           !json_is_text(json_object_get(json_array_get(w->flat_tools, at), "type"), "function"))
        at++;
    calla_error named;
    error_set(&named, err->code, "tools[%zu]%s", at, rest + sizeof inner - 1);
    api_fail_status(e, &named);
}

/* Calls are constrained where one has to come, where a strict function can be called, and where
 * some tools must not be. */
bool wire_make_calls(const wire_reader *w, api_error *e)
{
    const vocabulary *v = w->d->vocabulary;
    job_request *r = w->r;
    calla_error err;
    bool wanted = r->tool_choice == TOOLS_REQUIRED ||
                  (r->tool_choice == TOOLS_AUTO && (w->allowed_tools || any_is_strict(r->tools)));
    if (!wanted) return true;
    if (v->tool_call < 0 || v->tool_call_end < 0)
        return api_fail(
            e, 400, "tools", "unsupported_value",
            "tools: the model has no tokens for calls that could be required or strict");
    json_t *tools = callable_tools(w);
    if (!tools) return no_memory(e);
    bool ok = grammar_create_calls(tools, r->tool_name, &r->calls, &err) == CALLA_OK;
    if (ok)
        grammar_use_tokens(r->calls, v->trie->sets);
    else
        fail_tool(w, tools, &err, e);
    json_decref(tools);
    return ok;
}
