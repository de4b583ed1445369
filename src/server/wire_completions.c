/* POST /v1/completions: the request. */
#include "server/wire.h"

static bool read_prompt(const json_t *value, const char *name, void *into, api_error *e)
{
    (void)name;
    (void)e;
    ((wire_reader *)into)->prompt = value;
    return true;
}

static bool read_echo(const json_t *value, const char *name, void *into, api_error *e)
{
    return field_bool(value, name, &((wire_reader *)into)->r->echo, e);
}

static bool read_logprobs(const json_t *value, const char *name, void *into, api_error *e)
{
    wire_reader *w = into;
    if (!field_int(value, name, 0, CALLA_MAX_TOP_LOGPROBS, &w->n_top_logprobs, e)) return false;
    w->r->logprobs = true;
    return true;
}

static bool read_best_of(const json_t *value, const char *name, void *into, api_error *e)
{
    int64_t n;
    if (!field_int(value, name, 1, 1, &n, e)) return false;
    (void)into;
    return true;
}

static const field completion_fields[] = {
    {"prompt", read_prompt},   {"echo", read_echo},      {"logprobs", read_logprobs},
    {"best_of", read_best_of}, {"suffix", field_refuse}, {0},
};

bool wire_read_completion(json_t *body, const wire_defaults *d, job_request *r, api_error *e)
{
    static const field *const lists[] = {wire_shared_fields, wire_choices_fields, completion_fields,
                                         NULL};
    wire_reader w;
    wire_reader_init(&w, r, d);
    r->thinking_budget = -1;
    r->input_name = "prompt";
    if (!fields_read(body, "", lists, &w, e)) return false;
    if (!w.prompt) return api_invalid(e, "prompt", "prompt is missing");
    if (r->echo && r->logprobs)
        return api_fail(e, 400, "echo", "unsupported_value",
                        "echo together with logprobs is not supported");
    r->prompt = w.prompt;
    return wire_finish_common(&w, e);
}
