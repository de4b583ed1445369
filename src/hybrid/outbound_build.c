/* From a client's request to the one that would leave: what is known is copied. */
#include "hybrid/outbound.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { PATH_BYTES = 160 };

/* Where in the request something is. */
typedef struct spot {
    char path[PATH_BYTES];
    calla_error *err;
} spot;

typedef calla_status copy_fn(const json_t *value, const spot *at, json_t **copy);

/* A field: how its value is copied; NULL: it does not leave. */
typedef struct rule {
    const char *name;
    copy_fn *copy;
} rule;

static calla_status refuse(const spot *at, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static calla_status refuse(const spot *at, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return error_set(at->err, CALLA_ERR_INPUT, "%s: %s", at->path, text);
}

static calla_status no_memory(const spot *at)
{
    return error_set(at->err, CALLA_ERR_MEMORY, "no memory for the request");
}

static spot below(const spot *at, const char *name)
{
    spot s = {.err = at->err};
    snprintf(s.path, sizeof s.path, "%.*s%s%.*s", PATH_BYTES - 66, at->path, *at->path ? "." : "",
             64, name);
    return s;
}

static spot element(const spot *at, size_t i)
{
    spot s = {.err = at->err};
    snprintf(s.path, sizeof s.path, "%.*s[%zu]", PATH_BYTES - 24, at->path, i);
    return s;
}

/* ---- values ---- */

static calla_status share(const json_t *value, const spot *at, json_t **copy)
{
    *copy = json_deep_copy(value);
    return *copy ? CALLA_OK : no_memory(at);
}

static calla_status copy_number(const json_t *value, const spot *at, json_t **copy)
{
    if (!json_is_number(value))
        return refuse(at, "must be a number, not %s", json_kind_name(value));
    return share(value, at, copy);
}

static calla_status copy_bool(const json_t *value, const spot *at, json_t **copy)
{
    if (!json_is_boolean(value))
        return refuse(at, "must be true or false, not %s", json_kind_name(value));
    return share(value, at, copy);
}

static calla_status copy_text(const json_t *value, const spot *at, json_t **copy)
{
    if (!json_is_string(value))
        return refuse(at, "must be a string, not %s", json_kind_name(value));
    return share(value, at, copy);
}

/* A word of the API: nothing else can hide in it. */
static calla_status copy_word(const json_t *value, const spot *at, json_t **copy)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz_-";
    CALLA_TRY(copy_text(value, at, copy));
    const char *text = json_string_value(value);
    size_t n = json_string_length(value);
    if (n == 0 || n > 32 || strspn(text, letters) != n) return refuse(at, "is no word of this API");
    return CALLA_OK;
}

static calla_status copy_mapping(const json_t *value, const spot *at, json_t **copy)
{
    if (!json_is_mapping(value))
        return refuse(at, "must be an object, not %s", json_kind_name(value));
    return share(value, at, copy);
}

static calla_status copy_object(const json_t *value, const spot *at, const rule *rules,
                                json_t **copy)
{
    json_t *mutable = (json_t *)value; /* jansson's iterators want it so */
    if (!json_is_mapping(value))
        return refuse(at, "must be an object, not %s", json_kind_name(value));
    *copy = json_object();
    if (!*copy) return no_memory(at);
    for (void *i = json_object_iter(mutable); i; i = json_object_iter_next(mutable, i)) {
        const char *key = json_object_iter_key(i);
        const json_t *field = json_object_iter_value(i);
        spot here = below(at, key);
        const rule *r = rules;
        json_t *own = NULL;
        while (r->name && strcmp(r->name, key) != 0) r++;
        if (!r->name)
            return refuse(&here, "this field is not known here, so it cannot be checked and is not "
                                 "sent to the cloud");
        if (!r->copy || json_is_null(field)) continue;
        calla_status status = r->copy(field, &here, &own);
        if (status == CALLA_OK && json_object_set_new(*copy, key, own) != 0) return no_memory(at);
        if (status != CALLA_OK) {
            json_decref(own);
            return status;
        }
    }
    return CALLA_OK;
}

static calla_status copy_array(const json_t *value, const spot *at, copy_fn *copy_one,
                               json_t **copy)
{
    if (!json_is_array(value)) return refuse(at, "must be an array, not %s", json_kind_name(value));
    *copy = json_array();
    if (!*copy) return no_memory(at);
    for (size_t i = 0; i < json_array_size(value); i++) {
        spot here = element(at, i);
        json_t *own = NULL;
        calla_status status = copy_one(json_array_get(value, i), &here, &own);
        if (status == CALLA_OK && json_array_append_new(*copy, own) != 0) return no_memory(at);
        if (status != CALLA_OK) {
            json_decref(own);
            return status;
        }
    }
    return CALLA_OK;
}

#define OBJECT_COPIER(function, rules)                                                             \
    static calla_status function(const json_t *value, const spot *at, json_t **copy)               \
    {                                                                                              \
        return copy_object(value, at, rules, copy);                                                \
    }
#define ARRAY_COPIER(function, copy_one)                                                           \
    static calla_status function(const json_t *value, const spot *at, json_t **copy)               \
    {                                                                                              \
        return copy_array(value, at, copy_one, copy);                                              \
    }

/* ---- messages ---- */

/* JSON of an object becomes a tree: what leaves is written from it, so that it is what was looked
 * at (of two members with the same key, a text has both). */
static calla_status copy_arguments(const json_t *value, const spot *at, json_t **copy)
{
    json_t *tree = NULL;
    if (json_is_mapping(value)) return share(value, at, copy);
    CALLA_TRY(copy_text(value, at, copy));
    if (json_parse_text(json_string_value(value), json_string_length(value), "", &tree, NULL) !=
            CALLA_OK ||
        !json_is_mapping(tree)) {
        json_decref(tree);
        return CALLA_OK;
    }
    json_decref(*copy);
    *copy = tree;
    return CALLA_OK;
}

static const rule function_call_rules[] = {{"name", copy_text}, {"arguments", copy_arguments}, {0}};
OBJECT_COPIER(copy_called_function, function_call_rules)
static const rule call_rules[] = {{"id", copy_text},
                                  {"type", copy_word},
                                  {"function", copy_called_function},
                                  {"index", NULL},
                                  {0}};
OBJECT_COPIER(copy_call, call_rules)
ARRAY_COPIER(copy_calls, copy_call)

static const rule part_rules[] = {
    {"type", copy_word}, {"text", copy_text}, {"cache_control", NULL}, {0}};

static calla_status copy_part(const json_t *value, const spot *at, json_t **copy)
{
    if (!json_is_text(json_object_get(value, "type"), "text"))
        return refuse(at, "only parts of type \"text\" can be checked; others are not sent to the "
                          "cloud");
    return copy_object(value, at, part_rules, copy);
}

static calla_status copy_content(const json_t *value, const spot *at, json_t **copy)
{
    if (json_is_string(value)) return share(value, at, copy);
    return copy_array(value, at, copy_part, copy);
}

static const rule message_rules[] = {
    {"role", copy_word},         {"content", copy_content},   {"name", copy_text},
    {"tool_calls", copy_calls},  {"tool_call_id", copy_text}, {"refusal", copy_text},
    {"reasoning_content", NULL}, {"reasoning", NULL},         {"thinking", NULL},
    {"annotations", NULL},       {"cache_control", NULL},     {0},
};
OBJECT_COPIER(copy_message_fields, message_rules)

/* A message without content has it as null: the API wants it there. */
static calla_status copy_message(const json_t *value, const spot *at, json_t **copy)
{
    CALLA_TRY(copy_message_fields(value, at, copy));
    if (!json_object_get(*copy, "role")) return refuse(at, "role is missing");
    if (json_object_get(*copy, "content")) return CALLA_OK;
    return json_object_set_new(*copy, "content", json_null()) == 0 ? CALLA_OK : no_memory(at);
}
ARRAY_COPIER(copy_messages, copy_message)

/* ---- tools and formats ---- */

static const rule function_rules[] = {{"name", copy_text},
                                      {"description", copy_text},
                                      {"parameters", copy_mapping},
                                      {"strict", copy_bool},
                                      {0}};
OBJECT_COPIER(copy_function, function_rules)
static const rule tool_rules[] = {
    {"type", copy_word}, {"function", copy_function}, {"cache_control", NULL}, {0}};
OBJECT_COPIER(copy_tool, tool_rules)
ARRAY_COPIER(copy_tools, copy_tool)

static const rule named_rules[] = {{"name", copy_text}, {0}};
OBJECT_COPIER(copy_named, named_rules)
static const rule choice_rules[] = {{"type", copy_word}, {"function", copy_named}, {0}};

static calla_status copy_tool_choice(const json_t *value, const spot *at, json_t **copy)
{
    if (json_is_string(value)) return copy_word(value, at, copy);
    return copy_object(value, at, choice_rules, copy);
}

static const rule schema_rules[] = {{"name", copy_text},
                                    {"description", copy_text},
                                    {"schema", copy_mapping},
                                    {"strict", copy_bool},
                                    {0}};
OBJECT_COPIER(copy_schema, schema_rules)
static const rule format_rules[] = {{"type", copy_word}, {"json_schema", copy_schema}, {0}};
OBJECT_COPIER(copy_format, format_rules)

static calla_status copy_stop(const json_t *value, const spot *at, json_t **copy)
{
    if (json_is_string(value)) return share(value, at, copy);
    return copy_array(value, at, copy_text, copy);
}

static const rule stream_rules[] = {{"include_usage", copy_bool}, {"include_progress", NULL}, {0}};
OBJECT_COPIER(copy_stream_options, stream_rules)

static calla_status copy_bias(const json_t *value, const spot *at, json_t **copy)
{
    json_t *mutable = (json_t *)value;
    CALLA_TRY(copy_mapping(value, at, copy));
    for (void *i = json_object_iter(mutable); i; i = json_object_iter_next(mutable, i)) {
        const char *key = json_object_iter_key(i);
        if (strspn(key, "0123456789") != strlen(key) || strlen(key) > 7 ||
            !json_is_number(json_object_iter_value(i)))
            return refuse(at, "must give numbers to ids of tokens");
    }
    return CALLA_OK;
}

ARRAY_COPIER(copy_words, copy_word)

static const rule thinking_rules[] = {{"type", copy_word}, {"budget_tokens", copy_number}, {0}};
OBJECT_COPIER(copy_thinking, thinking_rules)
static const rule template_rules[] = {{"enable_thinking", copy_bool},
                                      {"preserve_thinking", copy_bool},
                                      {"thinking_budget", copy_number},
                                      {0}};
OBJECT_COPIER(copy_template, template_rules)

static const rule request_rules[] = {
    {"model", NULL}, /* the cloud's own is put in */
    {"messages", copy_messages},
    {"tools", copy_tools},
    {"tool_choice", copy_tool_choice},
    {"parallel_tool_calls", copy_bool},
    {"response_format", copy_format},
    {"stop", copy_stop},
    {"max_tokens", copy_number},
    {"max_completion_tokens", copy_number},
    {"temperature", copy_number},
    {"top_p", copy_number},
    {"top_k", copy_number},
    {"min_p", copy_number},
    {"presence_penalty", copy_number},
    {"frequency_penalty", copy_number},
    {"repetition_penalty", copy_number},
    {"seed", copy_number},
    {"n", copy_number},
    {"logit_bias", copy_bias},
    {"logprobs", copy_bool},
    {"top_logprobs", copy_number},
    {"stream", copy_bool},
    {"stream_options", copy_stream_options},
    {"reasoning_effort", copy_word},
    {"verbosity", copy_word},
    {"modalities", copy_words},
    {"enable_thinking", copy_bool},
    {"thinking", copy_thinking},
    {"thinking_budget", copy_number},
    {"chat_template_kwargs", copy_template},
    {"user", NULL},
    {"metadata", NULL},
    {"prompt_cache_key", NULL},
    {"safety_identifier", NULL},
    {0},
};

calla_status outbound_build(const json_t *body, const char *model, outbound *o, calla_error *err)
{
    const spot top = {.err = err};
    CALLA_TRY(copy_object(body, &top, request_rules, &o->request));
    if (json_array_size(json_object_get(o->request, "messages")) == 0)
        return error_set(err, CALLA_ERR_INPUT, "messages: there are none");
    o->has_tools = json_array_size(json_object_get(o->request, "tools")) > 0;
    o->is_stream = json_is_true(json_object_get(o->request, "stream"));
    const json_t *format = json_object_get(o->request, "response_format");
    o->wants_json = format && !json_is_text(json_object_get(format, "type"), "text");
    if (json_object_set_new(o->request, "model", json_string(model)) != 0) return no_memory(&top);
    return CALLA_OK;
}
