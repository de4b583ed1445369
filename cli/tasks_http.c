/* calla tasks: requests to a server, by libcurl. */
#include "tasks.h"

#include <curl/curl.h>
#include <stdlib.h>
#include <string.h>

enum { CONNECT_SECONDS = 10 };
#define MAX_ANSWER_BYTES ((size_t)1 << 30)

typedef struct listener {
    strbuf line; /* what has come of it */
    int64_t *last;
    tasks_event_fn *take;
    void *user;
    bool left; /* no more of it is wanted */
} listener;

/* One transfer. */
typedef struct transfer {
    CURL *curl;
    struct curl_slist *headers;
    char *url;
    strbuf answer;
    listener *listener; /* of events, or NULL */
    char message[CURL_ERROR_SIZE];
} transfer;

static int give_up(void *user, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    (void)user, (void)a, (void)b, (void)c, (void)d;
    return atomic_load(cli_cancel_flag());
}

static bool add_header(transfer *t, const char *line)
{
    struct curl_slist *more = curl_slist_append(t->headers, line);
    if (more) t->headers = more;
    return more != NULL;
}

/* The key stands in the environment, not in the arguments that others can see. */
static bool add_key(transfer *t, const tasks_args *a)
{
    const char *key = getenv(a->key_env);
    strbuf line = {0};
    if (!key || !*key) return true;
    strbuf_printf(&line, "Authorization: Bearer %s", key);
    bool ok = !line.failed && !strpbrk(key, "\r\n") && add_header(t, line.data);
    if (!ok) cli_failf("the key in %s cannot be sent", a->key_env);
    strbuf_free(&line);
    return ok;
}

static bool add_idempotency(transfer *t, const tasks_args *a)
{
    strbuf line = {0};
    if (!a->idempotency_key) return true;
    strbuf_printf(&line, "Idempotency-Key: %s", a->idempotency_key);
    bool ok = !line.failed && add_header(t, line.data);
    strbuf_free(&line);
    return ok;
}

/* URL + path, without a '/' too many. */
static bool set_url(transfer *t, const char *url, const char *path)
{
    size_t n = strlen(url);
    while (n > 0 && url[n - 1] == '/') n--;
    if (n >= 3 && strncmp(url + n - 3, "/v1", 3) == 0) n -= 3; /* as other clients are told it */
    if (asprintf(&t->url, "%.*s%s", (int)n, url, path) < 0) t->url = NULL;
    return t->url != NULL;
}

static size_t take_answer(char *data, size_t one, size_t n, void *user)
{
    transfer *t = user;
    (void)one;
    if (t->answer.n + n > MAX_ANSWER_BYTES) return 0;
    strbuf_append(&t->answer, data, n);
    return t->answer.failed ? 0 : n;
}

static bool begin(transfer *t, const tasks_args *a, const char *path)
{
    t->curl = curl_easy_init();
    if (!t->curl || !set_url(t, a->url, path) || !add_header(t, "Content-Type: application/json")) {
        cli_failf("no memory for a request");
        return false;
    }
    if (!add_key(t, a) || !add_idempotency(t, a)) return false;
    curl_easy_setopt(t->curl, CURLOPT_URL, t->url);
    curl_easy_setopt(t->curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(t->curl, CURLOPT_HTTPHEADER, t->headers);
    curl_easy_setopt(t->curl, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_SECONDS);
    curl_easy_setopt(t->curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(t->curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(t->curl, CURLOPT_XFERINFOFUNCTION, give_up);
    curl_easy_setopt(t->curl, CURLOPT_ERRORBUFFER, t->message);
    curl_easy_setopt(t->curl, CURLOPT_WRITEFUNCTION, take_answer);
    curl_easy_setopt(t->curl, CURLOPT_WRITEDATA, t);
    return true;
}

static void end(transfer *t)
{
    curl_easy_cleanup(t->curl);
    curl_slist_free_all(t->headers);
    strbuf_free(&t->answer);
    free(t->url);
}

/* -1 = an answer has come. */
static int perform(transfer *t, long *status)
{
    CURLcode code = curl_easy_perform(t->curl);
    if (atomic_load(cli_cancel_flag())) return cli_cancel_exit();
    if (code != CURLE_OK)
        return cli_failf("%s: %s", t->url, *t->message ? t->message : curl_easy_strerror(code));
    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, status);
    return -1;
}

/* What the server says went wrong. */
static int fail_with(const transfer *t, long status, const json_t *answer)
{
    const json_t *error = json_object_get(answer, "error");
    const char *message = json_string_value(json_object_get(error, "message"));
    if (message) return cli_failf("%s", message);
    return cli_failf("%s: status %ld, and no message", t->url, status);
}

int tasks_call(const tasks_args *a, const char *method, const char *path, json_t *body,
               json_t **answer)
{
    transfer t = {0};
    long status = 0;
    char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    int code = EXIT_FAILED;
    bool sends = body != NULL;
    json_decref(body);
    *answer = NULL;
    if (sends && !text) return cli_failf("no memory for a request");
    if (begin(&t, a, path)) {
        curl_easy_setopt(t.curl, CURLOPT_CUSTOMREQUEST, method);
        if (text) {
            curl_easy_setopt(t.curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(text));
            curl_easy_setopt(t.curl, CURLOPT_POSTFIELDS, text);
        }
        code = perform(&t, &status);
    }
    if (code < 0) {
        *answer = t.answer.data ? json_loadb(t.answer.data, t.answer.n, 0, NULL) : NULL;
        if (status != 200)
            code = fail_with(&t, status, *answer);
        else if (!*answer)
            code = cli_failf("%s: the answer is no JSON", t.url);
    }
    free(text);
    end(&t);
    return code;
}

/* ---- events ---- */

static void take_line(listener *l)
{
    static const char prefix[] = "data: ";
    const size_t n = sizeof prefix - 1;
    if (l->line.n > n && strncmp(l->line.data, prefix, n) == 0) {
        json_t *event = json_loadb(l->line.data + n, l->line.n - n, 0, NULL);
        const json_t *number = json_object_get(event, "event");
        if (json_is_integer(number)) *l->last = json_integer_value(number);
        if (event && !l->take(l->user, event)) l->left = true;
        json_decref(event);
    }
    strbuf_clear(&l->line);
}

/* Pieces of a stream of events; of an answer that is an error they are kept. */
static size_t take_events(char *data, size_t one, size_t n, void *user)
{
    transfer *t = user;
    long status = 0;
    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200) return take_answer(data, one, n, user);
    for (size_t i = 0; i < n; i++) {
        if (data[i] == '\n')
            take_line(t->listener);
        else
            strbuf_putc(&t->listener->line, data[i]);
        if (t->listener->left || t->listener->line.failed || t->listener->line.n > MAX_ANSWER_BYTES)
            return 0;
    }
    return n;
}

int tasks_listen(const tasks_args *a, const char *id, int64_t *last, tasks_event_fn *take,
                 void *user)
{
    listener l = {.last = last, .take = take, .user = user};
    transfer t = {.listener = &l};
    char path[160];
    long status = 0;
    int code = EXIT_FAILED;
    snprintf(path, sizeof path, "/v1/tasks/%.64s/events?after=%lld", id, (long long)*last);
    if (begin(&t, a, path)) {
        curl_easy_setopt(t.curl, CURLOPT_WRITEFUNCTION, take_events);
        CURLcode result = curl_easy_perform(t.curl);
        curl_easy_getinfo(t.curl, CURLINFO_RESPONSE_CODE, &status);
        /* A stream that broke off is asked for again by the caller. */
        if (atomic_load(cli_cancel_flag()))
            code = cli_cancel_exit();
        else if (status == 200)
            code = -1;
        else if (result != CURLE_OK)
            code = cli_failf("%s: %s", t.url, *t.message ? t.message : curl_easy_strerror(result));
        else {
            json_t *answer = t.answer.data ? json_loadb(t.answer.data, t.answer.n, 0, NULL) : NULL;
            code = fail_with(&t, status, answer);
            json_decref(answer);
        }
    }
    strbuf_free(&l.line);
    end(&t);
    return code;
}
