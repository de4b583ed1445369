#include "server/client.h"

#include "base/clock.h"
#include "base/strbuf.h"

#include <curl/curl.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- server ---- */

server_options client_options(void)
{
    return (server_options){.model = CALLA_SOURCE_DIR "/models/tiny",
                            .engine = {.n_threads = 1,
                                       .n_ctx = 2048,
                                       .snapshot_bytes = (int64_t)64 << 20,
                                       .snapshot_stride = 256},
                            .port = -1};
}

server *client_start(const server_options *options)
{
    static bool initialised;
    calla_error err;
    server *s;
    if (!initialised) curl_global_init(CURL_GLOBAL_DEFAULT);
    initialised = true;
    assert_ok(server_start(options, &s, &err), &err);
    assert_ok(server_wait_ready(s, &err), &err);
    return s;
}

void client_stop(server *s)
{
    calla_error err;
    assert_ok(server_stop(s, 0, &err), &err);
    server_free(s);
}

int client_teardown(void **state)
{
    client_stop(*state);
    return 0;
}

/* ---- client ---- */

typedef struct transfer {
    strbuf body, headers;
    const request_t *request;
} transfer;

static size_t on_body(char *data, size_t size, size_t n, void *user)
{
    transfer *t = user;
    strbuf_append(&t->body, data, size * n);
    const request_t *r = t->request;
    bool leaves = r->abort_after > 0 && t->body.n >= r->abort_after;
    if (r->watch_for && strstr(t->body.data, r->watch_for)) {
        if (r->seen)
            atomic_store(r->seen, true);
        else
            leaves = true;
    }
    return leaves ? 0 : size * n;
}

static size_t on_header(char *data, size_t size, size_t n, void *user)
{
    strbuf_append(&((transfer *)user)->headers, data, size * n);
    return size * n;
}

static struct curl_slist *header_list(const request_t *request)
{
    struct curl_slist *list = curl_slist_append(NULL, "Expect:");
    if (request->no_content_type)
        list = curl_slist_append(list, "Content-Type:");
    else if (request->body)
        list = curl_slist_append(list, "Content-Type: application/json");
    for (int i = 0; request->headers[i]; i++) list = curl_slist_append(list, request->headers[i]);
    return list;
}

static char *take(strbuf *s, size_t *n)
{
    char *data;
    size_t n_bytes;
    assert_int_equal(strbuf_take(s, &data, &n_bytes, NULL), CALLA_OK);
    if (n) *n = n_bytes;
    return data;
}

answer_t client_send(const server *s, const request_t *request)
{
    char url[512];
    answer_t a = {0};
    transfer t = {.request = request};
    CURL *curl = curl_easy_init();
    struct curl_slist *headers = header_list(request);
    snprintf(url, sizeof url, "http://127.0.0.1:%d%s", server_port(s), request->path);
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &t);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, &t);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT, (long)PATIENCE_S);
    if (request->body) {
        curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE, (long)strlen(request->body));
        curl_easy_setopt(curl, CURLOPT_POSTFIELDS, request->body);
    }
    if (request->method) curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, request->method);
    CURLcode code = curl_easy_perform(curl);
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &a.status);
    curl_slist_free_all(headers);
    curl_easy_cleanup(curl);
    a.broken = code != CURLE_OK;
    a.body = take(&t.body, &a.n_body);
    a.headers = take(&t.headers, NULL);
    a.json = json_loadb(a.body, a.n_body, JSON_ALLOW_NUL, NULL);
    return a;
}

void answer_clear(answer_t *a)
{
    free(a->body);
    free(a->headers);
    json_decref(a->json);
    *a = (answer_t){0};
}

static void expect_status(const answer_t *a, long status, const char *path)
{
    if (a->status != status || a->broken)
        fail_msg("%s: status %ld%s instead of %ld: %s", path, a->status,
                 a->broken ? ", broken" : "", status, a->body);
}

answer_t client_post_json(const server *s, long status, const char *path, json_t *body)
{
    assert_non_null(body);
    char *text = json_dumps(body, JSON_ENCODE_ANY);
    answer_t a = client_send(s, &(request_t){.path = path, .body = text});
    free(text);
    json_decref(body);
    expect_status(&a, status, path);
    return a;
}

answer_t client_post(const server *s, long status, const char *path, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    json_error_t e;
    json_t *body = json_vpack_ex(&e, 0, format, args);
    va_end(args);
    if (!body) fail_msg("%s: %s", format, e.text);
    return client_post_json(s, status, path, body);
}

answer_t client_get(const server *s, long status, const char *path)
{
    answer_t a = client_send(s, &(request_t){.path = path});
    expect_status(&a, status, path);
    return a;
}

/* ---- looking at answers ---- */

json_t *client_events(const answer_t *a)
{
    json_t *events = json_array();
    const char *at = a->body;
    while ((at = strstr(at, "data: "))) {
        assert_true(at == a->body || at[-1] == '\n');
        at += 6;
        const char *end = strstr(at, "\n\n");
        if (!end) break; /* cut off */
        size_t n = (size_t)(end - at);
        json_t *event = json_loadb(at, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        if (!event) {
            if (n != 6 || memcmp(at, "[DONE]", 6) != 0) fail_msg("no JSON: %.*s", (int)n, at);
            event = json_string("[DONE]");
        }
        json_array_append_new(events, event);
        at = end;
    }
    return events;
}

json_t *json_at(const json_t *value, const char *path)
{
    while (value && *path) {
        char key[64];
        size_t n = strcspn(path, ".");
        snprintf(key, sizeof key, "%.*s", (int)n, path);
        value = json_is_array(value) ? json_array_get(value, (size_t)atoi(key))
                                     : json_object_get(value, key);
        path += n + (path[n] == '.');
    }
    return (json_t *)value;
}

const char *text_at(const json_t *value, const char *path)
{
    return json_string_value(json_at(value, path));
}

int64_t int_at(const json_t *value, const char *path)
{
    const json_t *n = json_at(value, path);
    if (!json_is_integer(n)) fail_msg("%s is no integer", path);
    return json_integer_value(n);
}

json_t *chat_of(const char *role, ...)
{
    va_list args;
    json_t *messages = json_array();
    va_start(args, role);
    for (; role; role = va_arg(args, const char *))
        json_array_append_new(
            messages, json_pack("{s:s, s:s}", "role", role, "content", va_arg(args, const char *)));
    va_end(args);
    return json_pack("{s:o, s:i}", "messages", messages, "temperature", 0);
}

json_t *json_with(json_t *body, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    json_t *more = json_vpack_ex(NULL, 0, format, args);
    va_end(args);
    assert_non_null(more);
    json_object_update(body, more);
    json_decref(more);
    return body;
}

const char river[] = "What is a river?";
const char river_answer[] =
    "A river is a large stream of water that flows across the land to a sea or a lake.";

json_t *chat(const char *question)
{
    return chat_of("user", question, NULL);
}

json_t *endless_chat(const server *s, int max_tokens, bool stream)
{
    answer_t a = client_post(s, 200, "/v1/tokenize", "{s:s}", "text", "<|im_end|><|endoftext|>");
    char first[16], second[16];
    snprintf(first, sizeof first, "%d", (int)int_at(a.json, "tokens.0"));
    snprintf(second, sizeof second, "%d", (int)int_at(a.json, "tokens.1"));
    answer_clear(&a);
    json_t *body = chat("Name all animals.");
    json_t *more = json_pack("{s:{s:i, s:i}, s:b, s:i}", "logit_bias", first, -100, second, -100,
                             "stream", stream, "max_tokens", max_tokens);
    json_object_update(body, more);
    json_decref(more);
    return body;
}

const char *content_of(const answer_t *a)
{
    const char *text = text_at(a->json, "choices.0.message.content");
    if (!text) fail_msg("no content: %s", a->body);
    return text;
}

char *joined(const json_t *events, int64_t choice, const char *field)
{
    strbuf text = {0};
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *c = json_at(json_array_get(events, i), "choices.0");
        if (!c || int_at(c, "index") != choice) continue;
        const json_t *piece = json_object_get(json_object_get(c, "delta"), field);
        if (!piece) piece = json_object_get(c, field);
        if (piece) strbuf_append(&text, json_string_value(piece), json_string_length(piece));
    }
    return take(&text, NULL);
}

double client_metric(const server *s, const char *name)
{
    answer_t a = client_get(s, 200, "/metrics");
    char line[128];
    snprintf(line, sizeof line, "\n%s ", name);
    const char *at = strstr(a.body, line);
    if (!at) fail_msg("no metric %s", name);
    double value = atof(at + strlen(line));
    answer_clear(&a);
    return value;
}

void pause_ms(int ms)
{
    const struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

static void wait_for(const server *s, const char *metric, double least, double most)
{
    int64_t end_ns = clock_ns() + (int64_t)PATIENCE_S * 1000000000;
    double now;
    while ((now = client_metric(s, metric)) < least || now > most) {
        if (clock_ns() > end_ns) fail_msg("%s stays %g, instead of %g", metric, now, least);
        pause_ms(2);
    }
}

void client_wait_for(const server *s, const char *metric, double value)
{
    wait_for(s, metric, value, value);
}

void client_wait_for_least(const server *s, const char *metric, double least)
{
    wait_for(s, metric, least, HUGE_VAL);
}
