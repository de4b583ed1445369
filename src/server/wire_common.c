/* The fields that endpoints share. */
#include "server/wire.h"

#include "engine/sampler.h"
#include "server/ids.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool read_model(const json_t *value, const char *name, void *into, api_error *e)
{
    const wire_defaults *d = ((wire_reader *)into)->d;
    const char *model;
    if (!field_string(value, name, &model, e)) return false;
    for (int32_t i = 0; i < d->n_models; i++)
        if (strcmp(model, d->models[i]) == 0) return true;
    return api_fail(e, 404, name, "model_not_found",
                    "The model '%s' does not exist; this server has '%s' (see --alias)", model,
                    d->models[0]);
}

/* ---- sampling ---- */

/* A parameter of calla_sampling with its range. */
#define READ_NUMBER(function, member, low, high)                                                   \
    static bool function(const json_t *value, const char *name, void *into, api_error *e)          \
    {                                                                                              \
        return field_number(value, name, low, high, &((wire_reader *)into)->r->sampling.member,    \
                            e);                                                                    \
    }
READ_NUMBER(read_temperature, temperature, 0, 2)
READ_NUMBER(read_min_p, min_p, 0, 1)
READ_NUMBER(read_presence, presence_penalty, -2, 2)
READ_NUMBER(read_frequency, frequency_penalty, -2, 2)
READ_NUMBER(read_repetition, repetition_penalty, 0.01, 100)

static bool read_top_p(const json_t *value, const char *name, void *into, api_error *e)
{
    float *top_p = &((wire_reader *)into)->r->sampling.top_p;
    if (!field_number(value, name, 0, 1, top_p, e)) return false;
    if (*top_p == 0) *top_p = 1e-9f; /* the first token alone; the engine's 0 is "off" */
    return true;
}

static bool read_top_k(const json_t *value, const char *name, void *into, api_error *e)
{
    int64_t k;
    if (!field_int(value, name, -1, INT32_MAX, &k, e)) return false;
    ((wire_reader *)into)->r->sampling.top_k = k < 0 ? 0 : (int32_t)k; /* -1: off, as elsewhere */
    return true;
}

static bool read_seed(const json_t *value, const char *name, void *into, api_error *e)
{
    wire_reader *w = into;
    int64_t seed;
    if (!field_int(value, name, INT64_MIN, INT64_MAX, &seed, e)) return false;
    w->r->sampling.seed = (uint64_t)seed;
    w->has_seed = true;
    return true;
}

static bool read_bias_entry(const char *key, const json_t *value, const wire_reader *w,
                            calla_logit_bias *bias, api_error *e)
{
    int32_t n_tokens = w->d->vocabulary->n_tokens;
    size_t n_digits = strspn(key, "0123456789");
    bool whole = n_digits > 0 && n_digits < 10 && key[n_digits] == '\0';
    long id = whole && (key[0] != '0' || n_digits == 1) ? strtol(key, NULL, 10) : -1;
    if (id < 0 || id >= n_tokens) /* in one form only, so that no token is there twice */
        return api_invalid(e, "logit_bias", "logit_bias: '%.40s' is not a token id below %d", key,
                           n_tokens);
    bias->token = (int32_t)id;
    if (!field_number(value, "logit_bias", -100, 100, &bias->bias, e)) return false;
    if (bias->bias <= -100) bias->bias = -INFINITY; /* documented by OpenAI as a ban */
    return true;
}

/* Appends a bias to the request's. */
static bool add_bias(job_request *r, const calla_logit_bias *bias, api_error *e)
{
    size_t n = (size_t)r->sampling.n_logit_bias + 1;
    calla_logit_bias *grown = realloc(r->logit_bias, n * sizeof *grown);
    if (!grown) return api_fail(e, 500, "logit_bias", NULL, "no memory for the logit bias");
    grown[n - 1] = *bias;
    r->logit_bias = grown;
    r->sampling.logit_bias = grown;
    r->sampling.n_logit_bias = (int32_t)n;
    return true;
}

static bool read_logit_bias(const json_t *value, const char *name, void *into, api_error *e)
{
    wire_reader *w = into;
    if (!json_is_mapping(value))
        return api_invalid(e, name, "%s must be an object, not %s", name, json_kind_name(value));
    if (json_object_size(value) > 1024)
        return api_invalid(e, name, "%s has more than 1024 entries", name);
    json_t *object = (json_t *)value;
    for (void *i = json_object_iter(object); i; i = json_object_iter_next(object, i)) {
        calla_logit_bias bias;
        if (!read_bias_entry(json_object_iter_key(i), json_object_iter_value(i), w, &bias, e) ||
            !add_bias(w->r, &bias, e))
            return false;
    }
    return true;
}

/* ---- lengths and ends ---- */

static bool read_max_tokens(const json_t *value, const char *name, void *into, api_error *e)
{
    wire_reader *w = into;
    return field_int(value, name, w->r->chat ? 1 : 0, INT32_MAX, &w->max_tokens, e);
}

bool wire_read_max_completion(const json_t *value, const char *name, void *into, api_error *e)
{
    return field_int(value, name, 1, INT32_MAX, &((wire_reader *)into)->max_completion_tokens, e);
}

static bool read_n(const json_t *value, const char *name, void *into, api_error *e)
{
    int64_t n;
    if (!field_int(value, name, 1, JOB_MAX_CHOICES, &n, e)) return false;
    ((wire_reader *)into)->r->n = (int32_t)n;
    return true;
}

static bool add_stop(const json_t *value, const char *name, job_request *r, api_error *e)
{
    const char *text;
    if (!field_string(value, name, &text, e)) return false;
    if (!*text) return api_invalid(e, name, "%s must not be empty", name);
    if (r->n_stops == JOB_MAX_STOPS)
        return api_invalid(e, name, "%s: more than %d texts", name, JOB_MAX_STOPS);
    r->stops[r->n_stops++] = text;
    return true;
}

static bool read_stop(const json_t *value, const char *name, void *into, api_error *e)
{
    job_request *r = ((wire_reader *)into)->r;
    if (!json_is_array(value)) return add_stop(value, name, r, e);
    for (size_t i = 0; i < json_array_size(value); i++)
        if (!add_stop(json_array_get(value, i), name, r, e)) return false;
    return true;
}

/* ---- streaming ---- */

static bool read_stream(const json_t *value, const char *name, void *into, api_error *e)
{
    return field_bool(value, name, &((wire_reader *)into)->r->stream, e);
}

static bool read_include_usage(const json_t *value, const char *name, void *into, api_error *e)
{
    return field_bool(value, name, &((wire_reader *)into)->r->include_usage, e);
}

bool wire_read_include_progress(const json_t *value, const char *name, void *into, api_error *e)
{
    return field_bool(value, name, &((wire_reader *)into)->r->include_progress, e);
}

static bool read_stream_options(const json_t *value, const char *name, void *into, api_error *e)
{
    static const field fields[] = {{"include_usage", read_include_usage},
                                   {"include_progress", wire_read_include_progress},
                                   /* Padding against guessing lengths, which there is none of
                                      without TLS. */
                                   {"include_obfuscation", wire_ignore_bool},
                                   {0}};
    static const field *const lists[] = {fields, NULL};
    (void)name;
    ((wire_reader *)into)->has_stream_options = true;
    return fields_read(value, "stream_options.", lists, into, e);
}

/* ---- fields without effect ---- */

bool wire_ignore_bool(const json_t *value, const char *name, void *into, api_error *e)
{
    bool on;
    (void)into;
    return field_bool(value, name, &on, e);
}

bool wire_check_string(const json_t *value, const char *name, void *into, api_error *e)
{
    (void)into;
    if (json_is_string(value)) return true;
    return api_invalid(e, name, "%s must be a string, not %s", name, json_kind_name(value));
}

bool wire_check_function_type(const json_t *value, const char *name, void *into, api_error *e)
{
    (void)into;
    if (json_is_text(value, "function")) return true;
    return api_fail(e, 400, name, "unsupported_value", "%s: only \"function\" is supported", name);
}

bool wire_ignore(const json_t *value, const char *name, void *into, api_error *e)
{
    (void)value, (void)name, (void)into, (void)e;
    return true;
}

static bool read_user(const json_t *value, const char *name, void *into, api_error *e)
{
    return field_string(value, name, &((wire_reader *)into)->r->user, e);
}

static bool read_store(const json_t *value, const char *name, void *into, api_error *e)
{
    bool on;
    if (!field_bool(value, name, &on, e)) return false;
    return on ? field_refuse(value, name, into, e) : true;
}

static bool read_service_tier(const json_t *value, const char *name, void *into, api_error *e)
{
    (void)into;
    if (json_is_text(value, "auto") || json_is_text(value, "default")) return true;
    return api_invalid(e, name, "%s must be \"auto\" or \"default\"", name);
}

const field wire_shared_fields[] = {
    {"model", read_model},
    {"temperature", read_temperature},
    {"top_p", read_top_p},
    {"top_k", read_top_k},
    {"min_p", read_min_p},
    {"presence_penalty", read_presence},
    {"frequency_penalty", read_frequency},
    {"repetition_penalty", read_repetition},
    {"seed", read_seed},
    {"logit_bias", read_logit_bias},
    {"stop", read_stop},
    {"stream", read_stream},
    {"user", read_user},
    {"safety_identifier", field_ignore_string},
    {"prompt_cache_key", field_ignore_string},
    {"prompt_cache_retention", field_ignore_string},
    {"metadata", field_ignore_object},
    {"service_tier", read_service_tier},
    {0},
};

const field wire_choices_fields[] = {
    {"max_tokens", read_max_tokens},
    {"max_completion_tokens", wire_read_max_completion},
    {"n", read_n},
    {"stream_options", read_stream_options},
    {"store", read_store},
    {0},
};

void wire_reader_init(wire_reader *w, job_request *r, const wire_defaults *d)
{
    *w = (wire_reader){.r = r,
                       .d = d,
                       .max_tokens = -1,
                       .max_completion_tokens = -1,
                       .n_top_logprobs = -1,
                       .thinking_budget = -2,
                       .effort_budget = -2,
                       .thinking = -1,
                       .effort_thinking = -1};
    r->sampling = d->sampling;
    r->n = 1;
}

bool wire_finish_common(wire_reader *w, api_error *e)
{
    job_request *r = w->r;
    calla_error err;
    if (w->has_stream_options && !r->stream)
        return api_invalid(e, "stream_options", "stream_options is for requests with stream: true");
    if (w->max_tokens >= 0 && w->max_completion_tokens >= 0 &&
        w->max_tokens != w->max_completion_tokens)
        return api_invalid(e, "max_tokens", "max_tokens and max_completion_tokens differ");
    r->max_tokens = w->max_completion_tokens >= 0 ? w->max_completion_tokens : w->max_tokens;
    if (!w->has_seed) r->sampling.seed = random_seed();
    if (w->n_top_logprobs > 0) r->sampling.n_top_logprobs = (int32_t)w->n_top_logprobs;
    if (r->tool_choice == TOOLS_NONE && w->d->vocabulary->tool_call >= 0 &&
        !add_bias(r, &(calla_logit_bias){w->d->vocabulary->tool_call, -INFINITY}, e))
        return false;
    if (sampling_check(&r->sampling, w->d->vocabulary->n_tokens, &err) != CALLA_OK)
        return api_fail_status(e, &err);
    return true;
}
