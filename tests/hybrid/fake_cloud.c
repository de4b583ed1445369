#include "hybrid/fake_cloud.h"

#include "base/strbuf.h"

#include <microhttpd.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ANSWERS = 16 };

struct fake_cloud {
    struct MHD_Daemon *daemon;
    char url[64];
    pthread_mutex_t lock;
    pthread_cond_t release;
    bool released;
    fake_answer answers[MAX_ANSWERS];
    int n_answers, next;
    fake_cloud_fn *fn;
    void *user;
    strbuf received, last_body;
    int n_requests, n_connections;
};

typedef struct exchange {
    fake_cloud *cloud;
    strbuf body;
    fake_answer answer;
    char *made; /* by fn */
    size_t n_once, n_all;
} exchange;

static const char completion[] =
    "{\"id\": \"chatcmpl-1\", \"object\": \"chat.completion\", \"created\": 1, \"model\": \"big\", "
    "\"choices\": [{\"index\": 0, \"message\": {\"role\": \"assistant\", \"content\": \"From the "
    "cloud.\"}, \"finish_reason\": \"stop\"}], \"usage\": {\"prompt_tokens\": 7, "
    "\"completion_tokens\": 4, \"total_tokens\": 11}}";

static enum MHD_Result add_header_line(void *user, enum MHD_ValueKind kind, const char *key,
                                       const char *value)
{
    (void)kind;
    strbuf_printf(user, "%s: %s\n", key, value ? value : "");
    return MHD_YES;
}

static void record(fake_cloud *f, struct MHD_Connection *connection, const char *url,
                   const char *method, const strbuf *body)
{
    strbuf_printf(&f->received, "%s %s\n", method, url);
    MHD_get_connection_values(connection, MHD_HEADER_KIND, add_header_line, &f->received);
    MHD_get_connection_values(connection, MHD_GET_ARGUMENT_KIND, add_header_line, &f->received);
    strbuf_append(&f->received, body->data, body->n);
    strbuf_putc(&f->received, '\n');
    strbuf_clear(&f->last_body);
    strbuf_append(&f->last_body, body->data, body->n);
    f->n_requests++;
}

static void await_release(fake_cloud *f)
{
    pthread_mutex_lock(&f->lock);
    while (!f->released) pthread_cond_wait(&f->release, &f->lock);
    pthread_mutex_unlock(&f->lock);
}

static ssize_t read_body(void *user, uint64_t position, char *buffer, size_t n_most)
{
    exchange *x = user;
    const fake_answer *a = &x->answer;
    size_t at = (size_t)position, n = x->n_all - at;
    if (a->cut_after && at >= a->cut_after) return MHD_CONTENT_READER_END_WITH_ERROR;
    if (n == 0) return MHD_CONTENT_READER_END_OF_STREAM;
    if (a->hold_after && at >= a->hold_after) await_release(x->cloud);
    if (at < a->hold_after && n > a->hold_after - at) n = a->hold_after - at;
    if (a->cut_after && n > a->cut_after - at) n = a->cut_after - at;
    size_t in_body = at % x->n_once;
    if (n > x->n_once - in_body) n = x->n_once - in_body;
    if (n > n_most) n = n_most;
    memcpy(buffer, a->body + in_body, n);
    return (ssize_t)n;
}

static void choose_answer(fake_cloud *f, exchange *x)
{
    if (f->fn) {
        const char *type = NULL;
        x->made = f->fn(f->user, x->body.data ? x->body.data : "", &type);
        x->answer = (fake_answer){.body = x->made, .type = type};
    } else if (f->n_answers > 0) {
        x->answer = f->answers[f->next];
        if (f->next + 1 < f->n_answers) f->next++;
    }
    fake_answer *a = &x->answer;
    if (!a->body) a->body = completion;
    if (!a->type) a->type = "application/json";
    if (!a->status) a->status = 200;
    x->n_once = strlen(a->body);
    x->n_all = x->n_once * (a->n_repeats ? a->n_repeats : 1);
}

static enum MHD_Result answer(fake_cloud *f, exchange *x, struct MHD_Connection *connection)
{
    const fake_answer *a = &x->answer;
    if (a->held) await_release(f);
    struct MHD_Response *r =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 65536, read_body, x, NULL);
    MHD_add_response_header(r, "Content-Type", a->type);
    if (a->header) MHD_add_response_header(r, a->header, a->header_value);
    enum MHD_Result result = MHD_queue_response(connection, (unsigned)a->status, r);
    MHD_destroy_response(r);
    return result;
}

static enum MHD_Result on_request(void *user, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *n_data, void **state)
{
    fake_cloud *f = user;
    exchange *x = *state;
    (void)version;
    if (!x) {
        *state = x = calloc(1, sizeof *x);
        if (x) x->cloud = f;
        return x ? MHD_YES : MHD_NO;
    }
    if (*n_data > 0) {
        strbuf_append(&x->body, data, *n_data);
        *n_data = 0;
        return MHD_YES;
    }
    pthread_mutex_lock(&f->lock);
    record(f, connection, url, method, &x->body);
    choose_answer(f, x);
    pthread_mutex_unlock(&f->lock);
    return answer(f, x, connection);
}

static void on_completed(void *user, struct MHD_Connection *connection, void **state,
                         enum MHD_RequestTerminationCode how)
{
    exchange *x = *state;
    (void)user, (void)connection, (void)how;
    if (!x) return;
    strbuf_free(&x->body);
    free(x->made);
    free(x);
    *state = NULL;
}

static void on_connection(void *user, struct MHD_Connection *connection, void **context,
                          enum MHD_ConnectionNotificationCode what)
{
    fake_cloud *f = user;
    (void)connection, (void)context;
    pthread_mutex_lock(&f->lock);
    if (what == MHD_CONNECTION_NOTIFY_STARTED) f->n_connections++;
    pthread_mutex_unlock(&f->lock);
}

static void quiet(void *user, const char *format, va_list args)
{
    (void)user, (void)format, (void)args; /* clients that break off */
}

static fake_cloud *start(unsigned flags, const char *certificate, const char *key)
{
    fake_cloud *f = calloc(1, sizeof *f);
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->release, NULL);
    struct MHD_OptionItem tls[] = {{MHD_OPTION_HTTPS_MEM_CERT, 0, (void *)certificate},
                                   {MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)key},
                                   {MHD_OPTION_END, 0, NULL}};
    struct MHD_OptionItem none[] = {{MHD_OPTION_END, 0, NULL}};
    f->daemon = MHD_start_daemon(
        flags | MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_ERROR_LOG,
        0, NULL, NULL, on_request, f, MHD_OPTION_EXTERNAL_LOGGER, quiet, NULL,
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, f, MHD_OPTION_NOTIFY_CONNECTION, on_connection,
        f, MHD_OPTION_ARRAY, certificate ? tls : none, MHD_OPTION_END);
    if (!f->daemon) {
        free(f);
        return NULL;
    }
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(f->daemon, MHD_DAEMON_INFO_BIND_PORT);
    snprintf(f->url, sizeof f->url, "%s://127.0.0.1:%d/v1", certificate ? "https" : "http",
             info->port);
    return f;
}

fake_cloud *fake_cloud_start(void)
{
    return start(0, NULL, NULL);
}

fake_cloud *fake_cloud_start_tls(const char *certificate, const char *key)
{
    return start(MHD_USE_TLS, certificate, key);
}

void fake_cloud_release(fake_cloud *f)
{
    pthread_mutex_lock(&f->lock);
    f->released = true;
    pthread_cond_broadcast(&f->release);
    pthread_mutex_unlock(&f->lock);
}

void fake_cloud_stop(fake_cloud *f)
{
    fake_cloud_release(f);
    MHD_stop_daemon(f->daemon);
    strbuf_free(&f->received);
    strbuf_free(&f->last_body);
    pthread_cond_destroy(&f->release);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

const char *fake_cloud_url(const fake_cloud *f)
{
    return f->url;
}

void fake_cloud_script(fake_cloud *f, const fake_answer *answers, int n)
{
    pthread_mutex_lock(&f->lock);
    for (int i = 0; i < n && i < MAX_ANSWERS; i++) f->answers[i] = answers[i];
    f->n_answers = n;
    f->next = 0;
    f->fn = NULL;
    f->released = false;
    pthread_mutex_unlock(&f->lock);
}

void fake_cloud_reply(fake_cloud *f, fake_cloud_fn *fn, void *user)
{
    pthread_mutex_lock(&f->lock);
    f->fn = fn;
    f->user = user;
    pthread_mutex_unlock(&f->lock);
}

static int get(fake_cloud *f, const int *value)
{
    pthread_mutex_lock(&f->lock);
    int n = *value;
    pthread_mutex_unlock(&f->lock);
    return n;
}

int fake_cloud_n_requests(fake_cloud *f)
{
    return get(f, &f->n_requests);
}

int fake_cloud_n_connections(fake_cloud *f)
{
    return get(f, &f->n_connections);
}

static char *copy(fake_cloud *f, const strbuf *text)
{
    pthread_mutex_lock(&f->lock);
    char *data = strdup(text->data ? text->data : "");
    pthread_mutex_unlock(&f->lock);
    return data;
}

char *fake_cloud_received(fake_cloud *f)
{
    return copy(f, &f->received);
}

char *fake_cloud_last_body(fake_cloud *f)
{
    return copy(f, &f->last_body);
}

void fake_cloud_forget(fake_cloud *f)
{
    pthread_mutex_lock(&f->lock);
    strbuf_clear(&f->received);
    strbuf_clear(&f->last_body);
    f->n_requests = 0;
    pthread_mutex_unlock(&f->lock);
}
