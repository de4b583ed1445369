#include "server/tasks.h"

#include "server/ids.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LIST_DEFAULT = 100, LIST_MOST = 1000, KEY_BYTES = 200 };

/* Whom a request is about: /v1/tasks/ID/verb, and who asks. */
typedef struct target {
    task_store *store;
    char id[TASK_ID_BYTES];  /* "" = none */
    char verb[16];           /* "" = none */
    char sender[SHA256_HEX]; /* of the key; "" = none was sent */
    task_owner owner;        /* whose tasks it may see */
} target;

/* ---- requests ---- */

/* With keys, a task belongs to the one it was sent with; without, all may see all. */
static void set_owner(const http_request *r, target *t)
{
    unsigned char digest[SHA256_BYTES];
    const access_rules *rules = &r->server->access;
    const char *key =
        access_accepted_key(rules, http_header(r, "Authorization"), http_header(r, "x-api-key"));
    if (key) {
        sha256_of(key, strlen(key), digest);
        hex_write(digest, sizeof digest, t->sender);
    }
    if (rules->keys) t->owner.hex = t->sender;
}

static bool read_target(const http_request *r, target *t, api_error *e)
{
    const char *rest = r->path + strlen("/v1/tasks");
    *t = (target){.store = r->server->tasks};
    if (!t->store)
        return api_fail(e, 404, NULL, "tasks_off",
                        "this server takes no tasks; it does with --tasks FILE");
    set_owner(r, t);
    if (!*rest) return true;
    rest++;
    size_t n = strcspn(rest, "/");
    const char *verb = rest[n] ? rest + n + 1 : "";
    if (n >= sizeof t->id || strlen(verb) >= sizeof t->verb || strchr(verb, '/') ||
        (rest[n] && !*verb))
        return api_fail(e, 404, NULL, "unknown_url", "Invalid URL (%s %s)", r->method, r->path);
    memcpy(t->id, rest, n);
    memcpy(t->verb, verb, strlen(verb));
    return true;
}

static const char *argument(const http_request *r, const char *name)
{
    return MHD_lookup_connection_value(r->connection, MHD_GET_ARGUMENT_KIND, name);
}

static bool unknown_url(const http_request *r, api_error *e)
{
    return api_fail(e, 404, NULL, "unknown_url", "Invalid URL (%s %s)", r->method, r->path);
}

static bool not_found(const target *t, api_error *e)
{
    return api_fail(e, 404, NULL, "task_not_found", "There is no task '%s'", t->id);
}

/* What the store or a reader of requests reports. */
static bool fail(const calla_error *err, api_error *e)
{
    char param[sizeof e->param] = "";
    size_t n = strcspn(err->message, ":");
    switch (err->code) {
    case CALLA_ERR_INPUT:
        if (err->message[n] == ':' && n < sizeof param) memcpy(param, err->message, n);
        return api_fail(e, 400, param, "invalid_value", "%s", err->message);
    case CALLA_ERR_UNSUPPORTED:
        return api_fail(e, 429, NULL, "too_many_tasks", "%s", err->message);
    default:
        return api_fail(e, 500, NULL, "tasks_failed", "%s", err->message);
    }
}

/* ---- answers ---- */

static void respond_value(http_request *r, json_t *value /* taken */)
{
    strbuf out = {0};
    if (value)
        json_write_value(&out, value);
    else
        out.failed = true;
    json_decref(value);
    http_respond_json(r, 200, &out);
}

static bool respond_task(http_request *r, const target *t, api_error *e)
{
    calla_error err;
    json_t *task;
    if (task_store_read(t->store, t->owner, t->id, &task, &err) != CALLA_OK) return fail(&err, e);
    if (!task) return not_found(t, e);
    respond_value(r, task);
    return true;
}

static bool is_state(const char *text)
{
    static const char *const states[] = {
        "queued", "running", "waiting_for_consent", "done", "failed", "cancelled", NULL};
    for (int i = 0; states[i]; i++)
        if (strcmp(states[i], text) == 0) return true;
    return false;
}

static bool respond_list(http_request *r, const target *t, api_error *e)
{
    calla_error err;
    json_t *tasks;
    const char *state = argument(r, "state"), *limit = argument(r, "limit");
    char *end;
    long n = limit ? strtol(limit, &end, 10) : LIST_DEFAULT;
    if (limit && (!*limit || *end || n < 1 || n > LIST_MOST))
        return api_invalid(e, "limit", "limit must be a whole number from 1 to %d", LIST_MOST);
    if (state && !is_state(state))
        return api_invalid(e, "state",
                           "state must be queued, running, waiting_for_consent, done, failed or "
                           "cancelled");
    if (task_store_list(t->store, t->owner, state, n, &tasks, &err) != CALLA_OK)
        return fail(&err, e);
    respond_value(r, json_pack("{s:s, s:o}", "object", "list", "data", tasks));
    return true;
}

/* ---- events ---- */

struct task_stream {
    target target;
    int fd; /* readable when tasks have changed */
    int64_t after;
    bool ended;
    strbuf out;
};

void task_stream_free(http_request *r)
{
    if (!r->events) return;
    task_runner_unwatch(r->server->task_runner, r->events->fd);
    strbuf_free(&r->events->out);
    free(r->events);
    r->events = NULL;
}

static void put_event(task_stream *s, const json_t *what)
{
    s->after = json_integer_value(json_object_get(what, "event"));
    strbuf_printf(&s->out, "id: %lld\nevent: %s\ndata: ", (long long)s->after,
                  json_string_value(json_object_get(what, "type")));
    json_write_value(&s->out, what);
    strbuf_puts(&s->out, "\n\n");
}

/* Events that have come. False: the store failed. */
static bool take_events(task_stream *s)
{
    json_t *events;
    bool found;
    uint64_t n;
    if (read(s->fd, &n, sizeof n) < 0) n = 0; /* before the look: what comes after it wakes again */
    if (task_store_events(s->target.store, s->target.owner, s->target.id, s->after, &events,
                          &s->ended, &found, NULL) != CALLA_OK)
        return false;
    for (size_t i = 0; i < json_array_size(events); i++) put_event(s, json_array_get(events, i));
    json_decref(events);
    s->ended = s->ended || !found; /* deleted */
    return true;
}

static http_more run_events(http_request *r, int64_t until_ns)
{
    task_stream *s = r->events;
    if (s->ended) return HTTP_ENDED;
    if (!take_events(s)) return HTTP_BROKEN;
    if (s->out.n > 0 || s->ended) return HTTP_MORE;
    if (server_get_state(r->server) != SERVER_OK) return HTTP_BROKEN;
    return reply_wait_for(s->fd, http_socket(r), until_ns) == REPLY_GONE ? HTTP_BROKEN : HTTP_MORE;
}

static bool respond_events(http_request *r, const target *t, api_error *e)
{
    const char *last = http_header(r, "Last-Event-ID"), *after = argument(r, "after");
    if (!after) after = last ? last : "0";
    char *end;
    long long n = strtoll(after, &end, 10);
    if (!*after || *end || n < 0)
        return api_invalid(e, "after", "after (or Last-Event-ID) must be the number of an event");
    task_stream *s = calloc(1, sizeof *s);
    int fd = s ? task_runner_watch(r->server->task_runner) : -1;
    if (fd < 0) {
        free(s);
        return api_fail(e, 503, NULL, "overloaded", "no descriptor or memory for the events");
    }
    *s = (task_stream){.target = *t, .fd = fd, .after = n};
    s->target.owner.hex = t->owner.hex ? s->target.sender : NULL;
    r->events = s;
    bool ended, found;
    json_t *events;
    calla_error err;
    if (task_store_events(t->store, t->owner, t->id, n, &events, &ended, &found, &err) != CALLA_OK)
        return fail(&err, e);
    json_decref(events);
    if (!found) return not_found(t, e);
    http_respond_stream(r, &s->out, run_events);
    return true;
}

/* ---- filing and changing ---- */

static bool create_task(http_request *r, target *t, api_error *e)
{
    calla_error err;
    const char *key = http_header(r, "Idempotency-Key");
    task_request request;
    if (key && (!*key || strlen(key) > KEY_BYTES))
        return api_invalid(e, "Idempotency-Key", "Idempotency-Key: 1 to %d bytes are possible",
                           KEY_BYTES);
    id_make("task_", t->id, sizeof t->id);
    calla_status status = task_request_read(r->json, &request, &err);
    if (status == CALLA_OK)
        status = task_store_create(t->store, &request, t->sender, key, t->id, &err);
    return status == CALLA_OK ? respond_task(r, t, e) : fail(&err, e);
}

/* What a command came to. */
static bool respond_result(http_request *r, const target *t, calla_status status,
                           task_result result, const calla_error *err, api_error *e)
{
    if (status != CALLA_OK) return fail(err, e);
    if (result == TASK_UNKNOWN) return not_found(t, e);
    if (result == TASK_WRONG_TOKEN)
        return api_fail(e, 409, "token", "wrong_token",
                        "the token is not the one of what the task asks now");
    if (result == TASK_WRONG_STATE)
        return api_fail(e, 409, NULL, "wrong_state", "%s",
                        strcmp(t->verb, "messages") == 0  ? "a follow-up is for a task that is done"
                        : strcmp(t->verb, "consent") == 0 ? "the task asks nothing"
                                                          : "the task has ended");
    return respond_task(r, t, e);
}

static bool run_command(http_request *r, const target *t, task_command command, api_error *e)
{
    calla_error err;
    task_result result = TASK_OK;
    if (!json_is_mapping(r->json) || json_object_size(r->json) > 0)
        return api_invalid(e, NULL, "the request must be an empty object");
    calla_status status = task_store_command(t->store, t->owner, t->id, command, &result, &err);
    return respond_result(r, t, status, result, &err, e);
}

static bool read_content(const json_t *value, const char *name, void *into, api_error *e)
{
    calla_error err;
    return task_read_instructions(value, name, into, &err) == CALLA_OK || fail(&err, e);
}

static bool follow_up(http_request *r, const target *t, api_error *e)
{
    static const field fields[] = {{"content", read_content}, {0}};
    static const field *const lists[] = {fields, NULL};
    const char *content = NULL;
    calla_error err;
    task_result result = TASK_OK;
    if (!fields_read(r->json, "", lists, &content, e)) return false;
    if (!content) return api_invalid(e, "content", "content is missing");
    calla_status status = task_store_follow_up(t->store, t->owner, t->id, content, &result, &err);
    return respond_result(r, t, status, result, &err, e);
}

typedef struct consent_answer {
    const char *token;
    bool decline;
} consent_answer;

static bool read_token(const json_t *value, const char *name, void *into, api_error *e)
{
    consent_answer *a = into;
    a->token = json_string_value(value);
    return a->token || api_invalid(e, name, "%s must be a string", name);
}

static bool read_decline(const json_t *value, const char *name, void *into, api_error *e)
{
    consent_answer *a = into;
    a->decline = json_is_true(value);
    return a->decline || api_invalid(e, name, "%s can only be true", name);
}

static bool answer_consent(http_request *r, const target *t, api_error *e)
{
    static const field fields[] = {{"token", read_token}, {"decline", read_decline}, {0}};
    static const field *const lists[] = {fields, NULL};
    consent_answer a = {0};
    calla_error err;
    task_result result = TASK_OK;
    if (!fields_read(r->json, "", lists, &a, e)) return false;
    if (!a.token == !a.decline)
        return api_invalid(e, "token", "either token or decline has to be there");
    calla_status status = task_store_answer(t->store, t->owner, t->id, a.token, &result, &err);
    return respond_result(r, t, status, result, &err, e);
}

static bool read_priority(const json_t *value, const char *name, void *into, api_error *e)
{
    return field_int(value, name, -TASK_MAX_PRIORITY, TASK_MAX_PRIORITY, into, e);
}

static bool set_priority(http_request *r, const target *t, api_error *e)
{
    static const field fields[] = {{"priority", read_priority}, {0}};
    static const field *const lists[] = {fields, NULL};
    int64_t priority = INT64_MIN;
    calla_error err;
    task_result result = TASK_OK;
    if (!fields_read(r->json, "", lists, &priority, e)) return false;
    if (priority == INT64_MIN) return api_invalid(e, "priority", "priority is missing");
    calla_status status =
        task_store_set_priority(t->store, t->owner, t->id, priority, &result, &err);
    return respond_result(r, t, status, result, &err, e);
}

/* ---- endpoints ---- */

bool tasks_post(http_request *r, api_error *e)
{
    target t;
    if (!read_target(r, &t, e)) return false;
    if (!*t.id) return create_task(r, &t, e);
    if (!*t.verb) return set_priority(r, &t, e);
    if (strcmp(t.verb, "messages") == 0) return follow_up(r, &t, e);
    if (strcmp(t.verb, "consent") == 0) return answer_consent(r, &t, e);
    if (strcmp(t.verb, "pause") == 0) return run_command(r, &t, TASK_PAUSE, e);
    if (strcmp(t.verb, "resume") == 0) return run_command(r, &t, TASK_RESUME, e);
    if (strcmp(t.verb, "cancel") == 0) return run_command(r, &t, TASK_CANCEL, e);
    return unknown_url(r, e);
}

bool tasks_get(http_request *r, api_error *e)
{
    target t;
    if (!read_target(r, &t, e)) return false;
    if (!*t.id) return respond_list(r, &t, e);
    if (!*t.verb) return respond_task(r, &t, e);
    if (strcmp(t.verb, "events") == 0) return respond_events(r, &t, e);
    return unknown_url(r, e);
}

bool tasks_delete(http_request *r, api_error *e)
{
    target t;
    calla_error err;
    task_result result = TASK_OK;
    if (!read_target(r, &t, e)) return false;
    if (!*t.id || *t.verb) return unknown_url(r, e);
    if (task_store_command(t.store, t.owner, t.id, TASK_DELETE, &result, &err) != CALLA_OK)
        return fail(&err, e);
    if (result == TASK_UNKNOWN) return not_found(&t, e);
    respond_value(r, json_pack("{s:s, s:s, s:b}", "id", t.id, "object", "task", "deleted", 1));
    return true;
}

/* ---- metrics ---- */

/* One gauge of an object's numbers, each with its name as the label. */
static void put_gauges(strbuf *out, const char *name, const char *label, const char *help,
                       json_t *values)
{
    strbuf_printf(out, "# HELP calla_%s %s\n# TYPE calla_%s gauge\n", name, help, name);
    for (void *i = json_object_iter(values); i; i = json_object_iter_next(values, i)) {
        strbuf_printf(out, "calla_%s{%s=", name, label);
        json_write_string(out, json_object_iter_key(i), strlen(json_object_iter_key(i)));
        strbuf_printf(out, "} %.15g\n", json_number_value(json_object_iter_value(i)));
    }
}

void tasks_write_metrics(const server *s, strbuf *out)
{
    json_t *totals;
    if (task_store_totals(s->tasks, &totals, NULL) != CALLA_OK) return; /* as a scrape that fails */
    put_gauges(out, "tasks", "state", "Tasks in the file, by their state.",
               json_object_get(totals, "tasks"));
    put_gauges(out, "tasks_tokens", "where",
               "Tokens that these tasks have used, here, in the cloud, and to check what leaves.",
               json_object_get(totals, "tokens"));
    put_gauges(out, "tasks_cost", "currency", "What these tasks have cost in the cloud.",
               json_object_get(totals, "cost"));
    json_decref(totals);
}
