/* What the server answers to. A new endpoint is a function here and a line in the table. */
#include "server/http.h"

#include "server/cloud.h"
#include "server/submit.h"
#include "server/tasks.h"

#include <assert.h>
#include <string.h>

/* ---- generation ---- */

/* Answers with what becomes of the request. */
static bool generate(http_request *r, const reply_format *format, submit_read_fn *read,
                     api_error *e)
{
    r->reply = submit_request(r->server, r->json, r->note, format, read, e);
    if (!r->reply) return false;
    http_respond_reply(r);
    return true;
}

static bool chat_completions(http_request *r, api_error *e)
{
    cloud_result result = cloud_is_meant(r) ? cloud_answer_chat(r, e) : CLOUD_LOCAL;
    if (result != CLOUD_LOCAL) return result == CLOUD_ANSWERED;
    return generate(r, &reply_chat, wire_read_chat, e);
}

static bool responses(http_request *r, api_error *e)
{
    const json_t *model = json_object_get(r->json, "model");
    if (cloud_is_meant(r))
        return api_fail(e, 400, "model", "unsupported_value",
                        "model: '%s' is for /v1/chat/completions only: what would leave this "
                        "machine is not checked in requests to /v1/responses",
                        json_string_value(model));
    return generate(r, &reply_responses, wire_read_responses, e);
}

static bool completions(http_request *r, api_error *e)
{
    return generate(r, &reply_completion, wire_read_completion, e);
}

/* What clients of the Responses API may look for later. */
static bool stored_responses(http_request *r, api_error *e)
{
    static const char path[] = "/v1/responses";
    if (strcmp(r->path, path) == 0) {
        snprintf(r->allow, sizeof r->allow, "POST");
        return api_fail(e, 405, NULL, "method_not_allowed", "%s is for POST requests", path);
    }
    return api_fail(e, 404, NULL, "response_not_found",
                    "There is no response '%.80s': this server stores none (store is always false)",
                    r->path + sizeof path);
}

/* ---- models ---- */

static void put_model(const server *s, strbuf *out, const char *name)
{
    strbuf_puts(out, "{\"id\": ");
    json_write_string(out, name, strlen(name));
    strbuf_printf(out,
                  ", \"object\": \"model\", \"created\": %lld, \"owned_by\": \"calla\", "
                  "\"context_length\": %d}",
                  (long long)s->start_time, s->info.n_ctx);
}

/* How long a prompt the cloud takes is not known here. */
static void put_cloud_model(const server *s, strbuf *out, const char *name)
{
    strbuf_printf(out,
                  "{\"id\": \"%s\", \"object\": \"model\", \"created\": %lld, \"owned_by\": "
                  "\"calla\"}",
                  name, (long long)s->start_time);
}

static bool models(http_request *r, api_error *e)
{
    const server *s = r->server;
    static const char path[] = "/v1/models";
    const char *name = r->path + sizeof path - 1;
    strbuf out = {0};
    if (*name == '/') {
        name++;
        for (int32_t i = 0; i < s->defaults.n_models && out.n == 0; i++)
            if (strcmp(s->models[i], name) == 0) put_model(s, &out, name);
        for (int i = 0; s->hybrid && cloud_models[i] && out.n == 0; i++)
            if (strcmp(cloud_models[i], name) == 0) put_cloud_model(s, &out, name);
        if (out.n == 0)
            return api_fail(e, 404, "model", "model_not_found", "The model '%s' does not exist",
                            name);
    } else {
        strbuf_puts(&out, "{\"object\": \"list\", \"data\": [");
        for (int32_t i = 0; i < s->defaults.n_models; i++) {
            if (i > 0) strbuf_puts(&out, ", ");
            put_model(s, &out, s->models[i]);
        }
        for (int i = 0; s->hybrid && cloud_models[i]; i++) {
            strbuf_puts(&out, ", ");
            put_cloud_model(s, &out, cloud_models[i]);
        }
        strbuf_puts(&out, "]}");
    }
    http_respond_json(r, 200, &out);
    return true;
}

/* ---- tokens ---- */

typedef struct tokenize_request {
    const json_t *text;
    bool text_only;
} tokenize_request;

static bool read_text(const json_t *value, const char *name, void *into, api_error *e)
{
    if (!json_is_string(value))
        return api_invalid(e, name, "%s must be a string, not %s", name, json_kind_name(value));
    ((tokenize_request *)into)->text = value;
    return true;
}

static bool read_text_only(const json_t *value, const char *name, void *into, api_error *e)
{
    return field_bool(value, name, &((tokenize_request *)into)->text_only, e);
}

static void respond_tokens(http_request *r, const calla_tokens *tokens)
{
    strbuf out = {0};
    strbuf_printf(&out, "{\"count\": %lld, \"tokens\": [", (long long)tokens->n);
    for (int64_t i = 0; i < tokens->n; i++) strbuf_printf(&out, i ? ", %d" : "%d", tokens->ids[i]);
    strbuf_puts(&out, "]}");
    http_respond_json(r, 200, &out);
}

static void respond_count(http_request *r, const calla_tokens *tokens)
{
    strbuf out = {0};
    strbuf_printf(&out, "{\"object\": \"response.input_tokens\", \"input_tokens\": %lld}",
                  (long long)tokens->n);
    http_respond_json(r, 200, &out);
}

/* The tokens of a conversation: exactly the prompt that its endpoint would run. */
static bool tokenize_chat(http_request *r, submit_read_fn *read,
                          void (*respond)(http_request *r, const calla_tokens *tokens),
                          api_error *e)
{
    server *s = r->server;
    job_request request = {0};
    job_prompt prompt = {0};
    bool ok = read(r->json, &s->defaults, &request, e);
    if (ok) replay_restore_reasoning(s->replay, request.messages);
    ok = ok && prepare_chat_prompt(&request, &s->defaults, s->replay, &prompt, e);
    if (ok) respond(r, &prompt.tokens);
    calla_prompt_free(&prompt.rendered);
    calla_tokens_free(&prompt.tokens);
    job_request_deinit(&request);
    return ok;
}

static bool count_tokens(http_request *r, api_error *e)
{
    return tokenize_chat(r, wire_read_responses, respond_count, e);
}

static bool tokenize(http_request *r, api_error *e)
{
    static const field fields[] = {
        {"text", read_text}, {"text_only", read_text_only}, {"model", field_ignore_string}, {0}};
    static const field *const lists[] = {fields, NULL};
    tokenize_request t = {0};
    calla_tokens tokens;
    calla_error err;
    if (json_object_get(r->json, "messages"))
        return tokenize_chat(r, wire_read_chat, respond_tokens, e);
    if (json_object_get(r->json, "input"))
        return tokenize_chat(r, wire_read_responses, respond_tokens, e);
    if (!fields_read(r->json, "", lists, &t, e)) return false;
    if (!t.text) return api_invalid(e, "text", "text (or messages, or input) is missing");
    calla_range all = {0, json_string_length(t.text)};
    if (calla_tokenizer_encode(r->server->tokenizer, json_string_value(t.text), all.end, &all,
                               t.text_only && all.end > 0, &tokens, &err) != CALLA_OK)
        return api_fail_status(e, &err);
    respond_tokens(r, &tokens);
    calla_tokens_free(&tokens);
    return true;
}

static bool read_list(const json_t *value, const char *name, void *into, api_error *e)
{
    if (!json_is_array(value))
        return api_invalid(e, name, "%s must be an array, not %s", name, json_kind_name(value));
    *(const json_t **)into = value;
    return true;
}

static bool respond_text(http_request *r, const json_t *list, int32_t *ids, api_error *e)
{
    size_t n = json_array_size(list);
    calla_text text;
    calla_error err;
    strbuf out = {0};
    for (size_t i = 0; i < n; i++) {
        int64_t id;
        if (!field_int(json_array_get(list, i), "tokens", 0, r->server->vocabulary.n_tokens - 1,
                       &id, e))
            return false;
        ids[i] = (int32_t)id;
    }
    if (calla_tokenizer_decode(r->server->tokenizer, ids, (int64_t)n, false, &text, &err) !=
        CALLA_OK)
        return api_fail_status(e, &err);
    strbuf_puts(&out, "{\"text\": ");
    json_write_string(&out, text.data, text.n_bytes);
    strbuf_putc(&out, '}');
    calla_text_free(&text);
    http_respond_json(r, 200, &out);
    return true;
}

static bool detokenize(http_request *r, api_error *e)
{
    static const field fields[] = {{"tokens", read_list}, {"model", field_ignore_string}, {0}};
    static const field *const lists[] = {fields, NULL};
    const json_t *list = NULL;
    if (!fields_read(r->json, "", lists, &list, e)) return false;
    if (!list) return api_invalid(e, "tokens", "tokens is missing");
    int32_t *ids = calloc(json_array_size(list) + 1, sizeof *ids);
    if (!ids) return api_fail(e, 500, NULL, NULL, "no memory for the tokens");
    bool ok = respond_text(r, list, ids, e);
    free(ids);
    return ok;
}

/* ---- operation ---- */

static bool health(http_request *r, api_error *e)
{
    static const char *const names[] = {"loading", "ok", "failed", "stopping"};
    server_state state = server_get_state(r->server);
    strbuf out = {0};
    (void)e;
    strbuf_printf(&out, "{\"status\": \"%s\"", names[state]);
    if (state == SERVER_FAILED) {
        const char *message = r->server->error.message;
        strbuf_puts(&out, ", \"error\": ");
        json_write_string(&out, message, strlen(message));
    }
    strbuf_puts(&out, "}");
    http_respond_json(r, state == SERVER_OK ? 200 : 503, &out);
    return true;
}

static void put_endpoint_counts(metrics *m, strbuf *out)
{
    strbuf_puts(out, "# HELP calla_endpoint_requests_total Requests answered, by endpoint and "
                     "class of status.\n# TYPE calla_endpoint_requests_total counter\n");
    for (int i = 0; endpoints[i].method; i++)
        for (int k = 2; k <= 5; k++) {
            if (k == 3) continue; /* nothing redirects */
            strbuf_printf(
                out,
                "calla_endpoint_requests_total{method=\"%s\",path=\"%s\",status=\"%dxx\"} %lld\n",
                endpoints[i].method, endpoints[i].path, k,
                (long long)atomic_load_explicit(&m->endpoints[i][k], memory_order_relaxed));
        }
}

static bool metrics_text(http_request *r, api_error *e)
{
    strbuf out = {0};
    (void)e;
    bool ready = server_get_state(r->server) == SERVER_OK;
    metrics_write(&r->server->metrics, ready ? r->server->info.memory.total_bytes : 0, &out);
    put_endpoint_counts(&r->server->metrics, &out);
    if (r->server->hybrid) cloud_write_metrics(r->server, &out);
    if (r->server->tasks) tasks_write_metrics(r->server, &out);
    http_respond_text(r, 200, "text/plain; version=0.0.4; charset=utf-8", &out);
    return true;
}

const endpoint endpoints[] = {
    {"POST", "/v1/chat/completions", false, false, true, chat_completions},
    {"POST", "/v1/responses", false, false, true, responses},
    {"POST", "/v1/responses/input_tokens", false, false, true, count_tokens},
    {"GET", "/v1/responses", true, false, false, stored_responses},
    {"DELETE", "/v1/responses", true, false, false, stored_responses},
    {"POST", "/v1/completions", false, false, true, completions},
    {"GET", "/v1/models", true, false, true, models},
    {"POST", "/v1/tokenize", false, false, true, tokenize},
    {"POST", "/v1/detokenize", false, false, true, detokenize},
    {"POST", "/v1/tasks", true, false, true, tasks_post},
    {"GET", "/v1/tasks", true, false, true, tasks_get},
    {"DELETE", "/v1/tasks", true, false, true, tasks_delete},
    {"GET", "/health", false, true, false, health},
    {"GET", "/metrics", false, false, false, metrics_text},
    {0},
};
static_assert(sizeof endpoints / sizeof *endpoints <= METRICS_MAX_ENDPOINTS, "room for all");
