/* What the answer of a conversation has to be: its format, its log-probabilities, and what is known
 * once all fields have been read. */
#include "server/wire.h"

#include <string.h>

bool wire_read_top_logprobs(const json_t *value, const char *name, void *into, api_error *e)
{
    return field_int(value, name, 0, CALLA_MAX_TOP_LOGPROBS, &((wire_reader *)into)->n_top_logprobs,
                     e);
}

bool wire_read_verbosity(const json_t *value, const char *name, void *into, api_error *e)
{
    (void)into;
    if (json_is_text(value, "medium")) return true;
    return api_fail(e, 400, name, "unsupported_value", "%s: only \"medium\" is supported", name);
}

/* ---- format ---- */

bool wire_read_format_type(const json_t *value, const char *name, void *into, api_error *e)
{
    wire_reader *w = into;
    w->format = json_string_value(value);
    if (json_is_text(value, "text") || json_is_text(value, "json_object") ||
        json_is_text(value, "json_schema"))
        return true;
    return api_invalid(e, name, "%s must be \"text\", \"json_object\" or \"json_schema\"", name);
}

bool wire_read_schema(const json_t *value, const char *name, void *into, api_error *e)
{
    if (!field_ignore_object(value, name, into, e)) return false;
    ((wire_reader *)into)->format_schema = value;
    return true;
}

/* A required call leaves no content to be constrained. */
static bool make_grammar(const wire_reader *w, api_error *e)
{
    const char *place = w->schema_place;
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
    if (ok) grammar_use_tokens(r->grammar, w->d->vocabulary->trie->sets);
    return ok ? true : api_fail_status(e, &err);
}

/* ---- all of it ---- */

/* What was said directly counts more than what an effort implies, that more than the default. */
static void set_thinking(wire_reader *w)
{
    job_request *r = w->r;
    int thinking = w->thinking >= 0 ? w->thinking : w->effort_thinking;
    int64_t budget = w->thinking_budget != -2 ? w->thinking_budget : w->effort_budget;
    r->no_thinking = thinking >= 0 ? thinking == 0 : w->d->no_thinking;
    r->thinking_budget = budget != -2 ? budget : w->d->thinking_budget;
}

bool wire_finish_chat(wire_reader *w, api_error *e)
{
    set_thinking(w);
    return wire_check_tool_choice(w, e) && wire_finish_common(w, e) && make_grammar(w, e) &&
           wire_make_calls(w, e);
}
