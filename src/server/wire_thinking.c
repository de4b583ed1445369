/* Reasoning, in every dialect in which it is switched. */
#include "server/wire.h"

enum { LOW_EFFORT_TOKENS = 1024, MEDIUM_EFFORT_TOKENS = 8192 };

bool wire_read_effort(const json_t *value, const char *name, void *into, api_error *e)
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

bool wire_read_preserve(const json_t *value, const char *name, void *into, api_error *e)
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
                                   {"preserve_thinking", wire_read_preserve},
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

const field wire_thinking_fields[] = {
    {"enable_thinking", read_enable_thinking},
    {"chat_template_kwargs", read_template_args},
    {"thinking", read_thinking},
    {"thinking_budget", read_budget},
    {0},
};
