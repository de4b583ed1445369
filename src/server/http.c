#include "server/http.h"

#include "base/clock.h"
#include "server/cloud.h"
#include "server/tasks.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum {
    HEADER_BYTES = 32768, /* memory of a connection: bounds its headers */
    STACK_BYTES = 1 << 20,
    MAX_NESTING = 100,       /* of a body */
    VALUE_BYTES = 100,       /* of memory that a JSON value may take */
    BODIES_AT_ONCE = 16,     /* memory of requests, in largest bodies */
    N_MORE_CONNECTIONS = 16, /* to say that there are too many */
    N_ON_THEIR_WAY = 64,     /* more for libmicrohttpd: handed on, and not counted yet */
};

/* ---- responses ---- */

static void add_header(struct MHD_Response *response, const char *name, const char *value)
{
    MHD_add_response_header(response, name, value);
}

/* Pages of configured origins may read the answer. */
static void add_cors(const http_request *r, struct MHD_Response *response)
{
    const char *origin = http_header(r, "Origin");
    if (!origin || !access_origin_is_configured(&r->server->access, origin)) return;
    add_header(response, "Access-Control-Allow-Origin", origin);
    add_header(response, "Vary", "Origin");
}

static void send_response(http_request *r, int status, struct MHD_Response *response)
{
    if (!response) {
        r->result = MHD_NO;
    } else {
        add_cors(r, response);
        if (r->route) add_header(response, "X-Calla-Route", r->route);
        r->result = MHD_queue_response(r->connection, (unsigned)status, response);
        MHD_destroy_response(response);
    }
    r->responded = true;
    r->status = status;
}

static struct MHD_Response *text_response(const char *content_type, strbuf *text)
{
    char *data;
    size_t n;
    if (strbuf_take(text, &data, &n, NULL) != CALLA_OK) {
        strbuf_free(text);
        return NULL;
    }
    struct MHD_Response *response = MHD_create_response_from_buffer(n, data, MHD_RESPMEM_MUST_FREE);
    if (response)
        add_header(response, "Content-Type", content_type);
    else
        free(data);
    return response;
}

void http_respond_text(http_request *r, int status, const char *content_type, strbuf *text)
{
    send_response(r, status, text_response(content_type, text));
}

void http_respond_json(http_request *r, int status, strbuf *text)
{
    http_respond_text(r, status, "application/json", text);
}

static void respond_error(http_request *r, const api_error *e)
{
    strbuf text = {0};
    char seconds[16];
    api_error_write(&text, e);
    struct MHD_Response *response = text_response("application/json", &text);
    if (response && e->retry_after_s) {
        snprintf(seconds, sizeof seconds, "%d", e->retry_after_s);
        add_header(response, "Retry-After", seconds);
    }
    if (response && r->closes) add_header(response, "Connection", "close");
    if (response && e->status == 401) add_header(response, "WWW-Authenticate", "Bearer");
    if (response && *r->allow) add_header(response, "Allow", r->allow);
    send_response(r, e->status, response);
}

/* ---- answers of the engine ---- */

static int socket_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    return info ? info->connect_fd : -1;
}

int http_socket(const http_request *r)
{
    return socket_of(r->connection);
}

/* More of a stream. Blocks its connection's thread: nothing else is to be done there. */
static ssize_t read_stream(void *user, uint64_t position, char *buffer, size_t n_most)
{
    http_request *r = user;
    http_stream *s = &r->stream;
    int64_t silence_ns = (int64_t)r->server->options.keep_alive_ms * 1000000;
    (void)position;
    while (s->n_sent == s->out->n) {
        strbuf_clear(s->out);
        s->n_sent = 0;
        http_more what = s->more(r, s->last_write_ns + silence_ns);
        if (what == HTTP_BROKEN || s->out->failed) return MHD_CONTENT_READER_END_WITH_ERROR;
        if (what == HTTP_ENDED && s->out->n == 0) return MHD_CONTENT_READER_END_OF_STREAM;
        if (s->out->n == 0 && clock_ns() >= s->last_write_ns + silence_ns)
            strbuf_puts(s->out, ": keep-alive\n\n");
    }
    size_t n = s->out->n - s->n_sent;
    if (n > n_most) n = n_most;
    memcpy(buffer, s->out->data + s->n_sent, n);
    s->n_sent += n;
    s->last_write_ns = clock_ns();
    return (ssize_t)n;
}

static http_more run_reply(http_request *r, int64_t until_ns)
{
    reply *a = r->reply;
    if (a->closed) return HTTP_ENDED;
    return reply_run(a, http_socket(r), until_ns) == REPLY_GONE ? HTTP_BROKEN : HTTP_MORE;
}

void http_respond_nothing(http_request *r)
{
    r->result = MHD_NO;
    r->responded = true;
}

void http_respond_stream(http_request *r, strbuf *out,
                         http_more (*more)(http_request *r, int64_t until_ns))
{
    r->stream = (http_stream){.out = out, .more = more, .last_write_ns = clock_ns()};
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, HEADER_BYTES / 4, read_stream, r, NULL);
    if (response) {
        add_header(response, "Content-Type", "text/event-stream");
        add_header(response, "Cache-Control", "no-cache");
        add_header(response, "X-Accel-Buffering", "no"); /* proxies: pass on at once */
    }
    send_response(r, 200, response);
}

void http_respond_reply(http_request *r)
{
    reply *a = r->reply;
    if (a->job->request.stream) {
        http_respond_stream(r, &a->out, run_reply);
        return;
    }
    while (!a->closed) {
        if (reply_run(a, http_socket(r), INT64_MAX) != REPLY_GONE) continue;
        http_respond_nothing(r);
        return;
    }
    if (!a->error_status) {
        http_respond_json(r, 200, &a->out);
        return;
    }
    api_error e;
    reply_get_error(a, &e);
    respond_error(r, &e);
}

/* ---- connections ---- */

static connection_entry *entry_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

static void on_connection(void *user, struct MHD_Connection *connection, void **context,
                          enum MHD_ConnectionNotificationCode what)
{
    server *s = user;
    if (what == MHD_CONNECTION_NOTIFY_STARTED)
        *context = connections_open(s->connections, socket_of(connection));
    else
        connections_close(s->connections, *context);
}

static bool take_connection(void *user, int socket, const struct sockaddr *address, socklen_t n)
{
    server *s = user;
    if (connections_count(s->connections) >= s->options.n_connections + N_MORE_CONNECTIONS)
        return false;
    MHD_add_connection(s->daemon, socket, address, n); /* closes it if that fails */
    return true;
}

/* A URL keeps what would cut it short or hide in a log line as it was sent. */
static size_t on_unescape(void *user, struct MHD_Connection *connection, char *text)
{
    (void)user, (void)connection;
    for (const char *at = text; (at = strchr(at, '%')); at++)
        if ((at[1] == '0' || at[1] == '1' || at[1] == '7') && at[2] &&
            (at[1] != '7' || at[2] == 'f' || at[2] == 'F'))
            return strlen(text);
    return MHD_http_unescape(text);
}

/* ---- requests ---- */

static void count_request(server *s, int32_t n)
{
    pthread_mutex_lock(&s->lock);
    s->n_requests += n;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void respond_preflight(http_request *r)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(0, "", MHD_RESPMEM_PERSISTENT);
    /* Clients in pages send headers of their own, too: the origin is trusted with any. */
    const char *wanted = http_header(r, "Access-Control-Request-Headers");
    if (response) {
        add_header(response, "Access-Control-Allow-Methods", "GET, POST, DELETE");
        add_header(response, "Access-Control-Allow-Headers",
                   wanted ? wanted : "Authorization, Content-Type, x-api-key");
        add_header(response, "Access-Control-Max-Age", "600");
    }
    send_response(r, 204, response);
}

int64_t http_budget(const server_options *o)
{
    return o->max_body_bytes * BODIES_AT_ONCE;
}

/* Counts memory that the request takes until it is answered; all requests share a budget. */
static bool reserve(http_request *r, int64_t n_bytes, api_error *e)
{
    atomic_llong *used = &r->server->metrics.gauges.request_bytes;
    int64_t most = http_budget(&r->server->options);
    if (n_bytes > most)
        return api_fail(e, 413, NULL, "request_too_large", "the request has too many values");
    r->n_reserved += n_bytes;
    if (atomic_fetch_add(used, n_bytes) + n_bytes <= most) return true;
    api_fail(e, 503, NULL, "overloaded", "too many large requests at once; try again later");
    e->retry_after_s = 1;
    return false;
}

static bool parse_body(http_request *r, api_error *e)
{
    calla_error err;
    int64_t n_values;
    if (strcmp(r->endpoint->method, "POST") != 0) return true;
    if (r->body.failed) return api_fail(e, 500, NULL, NULL, "no memory for the request");
    if (json_text_depth(r->body.data, r->body.n, MAX_NESTING, &n_values) > MAX_NESTING)
        return api_fail(e, 400, NULL, "invalid_json", "the request nests deeper than %d levels",
                        MAX_NESTING);
    if (!reserve(r, n_values * VALUE_BYTES, e)) return false;
    if (json_parse_unique(r->body.data ? r->body.data : "", r->body.n, "request", &r->json, &err) !=
        CALLA_OK)
        return api_fail(e, 400, NULL, "invalid_json", "%s", err.message);
    strbuf_free(&r->body);
    return true;
}

static void handle(http_request *r)
{
    api_error e = r->error;
    if (!e.status && !r->endpoint) {
        respond_preflight(r);
        return;
    }
    bool ok = !e.status && parse_body(r, &e) && r->endpoint->handle(r, &e);
    if (!ok && !r->responded) respond_error(r, &e);
}

static void add_body(http_request *r, const char *data, size_t n)
{
    if (r->error.status) return; /* is read to its end, so that the answer arrives */
    if (r->body.n + n > (size_t)r->server->options.max_body_bytes)
        api_fail(&r->error, 413, NULL, "request_too_large", "the request is larger than %lld bytes",
                 (long long)r->server->options.max_body_bytes);
    else if (reserve(r, (int64_t)n, &r->error))
        strbuf_append(&r->body, data, n);
}

static http_request *begin(server *s, struct MHD_Connection *connection, const char *url,
                           const char *method)
{
    http_request *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    count_request(s, 1);
    r->server = s;
    r->connection = connection;
    r->start_ns = clock_ns();
    r->result = MHD_YES;
    snprintf(r->method, sizeof r->method, "%s", method);
    if (!http_check_head(r, url, &r->error) ||
        connections_count(s->connections) <= s->options.n_connections)
        return r;
    if (r->endpoint && r->endpoint->is_open) return r; /* who watches must see it */
    api_fail(&r->error, 503, NULL, "too_many_connections", "more than %d connections",
             s->options.n_connections);
    r->error.retry_after_s = 1;
    r->unread = r->closes = true;
    return r;
}

/* Called for a request's head, for each piece of its body, and at its end. */
static enum MHD_Result on_request(void *user, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *n_data, void **state)
{
    http_request *r = *state;
    server *s = user;
    (void)version;
    if (!r) {
        *state = r = begin(s, connection, url, method);
        if (!r) return MHD_NO;
        connections_await(s->connections, entry_of(connection)); /* its body */
        if (!r->error.status || !r->unread) return MHD_YES;
        respond_error(r, &r->error);
        return r->result;
    }
    if (r->responded) return MHD_NO; /* what could not be read is no further request */
    if (*n_data > 0) {
        add_body(r, data, *n_data);
        *n_data = 0;
        return MHD_YES;
    }
    connections_arrived(s->connections, entry_of(connection));
    handle(r);
    return r->result;
}

/* ---- ends ---- */

static json_t *reply_fields(const reply *a)
{
    const job_stats *s = &a->job->stats;
    double prefill_s = (double)s->prefill_ns / 1e9, decode_s = (double)s->decode_ns / 1e9;
    double first_ms = s->first_token_ns ? (double)(s->first_token_ns - s->submitted_ns) / 1e6 : 0;
    return json_pack(
        "{s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:s}", "id", a->job->id, "prompt_tokens",
        (json_int_t)s->n_prompt, "cached_tokens", (json_int_t)s->n_cached, "generated_tokens",
        (json_int_t)s->n_generated, "queue_ms",
        s->started_ns ? (double)(s->started_ns - s->submitted_ns) / 1e6 : 0.0, "first_token_ms",
        first_ms, "prefill_tokens_per_s", prefill_s > 0 ? (double)s->n_prefilled / prefill_s : 0.0,
        "decode_tokens_per_s", decode_s > 0 ? (double)s->n_decoded / decode_s : 0.0, "finish",
        s->finish);
}

static void log_request(const http_request *r)
{
    int64_t ns = clock_ns() - r->start_ns;
    json_t *fields = json_pack(
        "{s:o, s:o, s:i, s:f}", "method", server_log_text(r->method, strlen(r->method)), "path",
        server_log_text(r->path, strlen(r->path)), "status", r->status, "ms", (double)ns / 1e6);
    if (fields && r->reply) {
        json_t *more = reply_fields(r->reply);
        json_object_update(fields, more);
        json_decref(more);
        json_t *ignored = r->reply->job->request.ignored_tools;
        if (ignored) json_object_set(fields, "ignored_tools", ignored);
    }
    if (fields && r->route) json_object_set_new(fields, "route", json_string(r->route));
    bool quiet = r->status == 200 && r->endpoint && r->endpoint->is_open;
    if (quiet && !r->server->log.verbose)
        json_decref(fields);
    else
        server_log_put(&r->server->log, "request", fields);
}

static void on_completed(void *user, struct MHD_Connection *connection, void **state,
                         enum MHD_RequestTerminationCode how)
{
    http_request *r = *state;
    (void)user, (void)how;
    if (!r) return;
    connections_await(r->server->connections, entry_of(connection)); /* the next request */
    metrics *m = &r->server->metrics;
    if (r->reply) { /* whoever is left of it: the log wants the end */
        atomic_store(&r->reply->job->cancelled, true);
        while (!r->reply->closed) reply_run(r->reply, -1, INT64_MAX);
        histogram_add(&m->duration, clock_ns() - r->start_ns);
    }
    if (r->cloud) { /* the audit is complete before the log line is */
        cloud_answer_free(r->cloud);
        if (!r->reply) histogram_add(&m->duration, clock_ns() - r->start_ns);
    }
    task_stream_free(r);
    if (r->status >= 200 && r->status < 600) {
        metrics_add(&m->requests[r->status / 100], 1);
        if (r->endpoint) metrics_add(&m->endpoints[r->endpoint - endpoints][r->status / 100], 1);
    }
    log_request(r);
    count_request(r->server, -1);
    reply_free(r->reply);
    free(r->note);
    json_decref(r->json);
    atomic_fetch_sub(&m->gauges.request_bytes, r->n_reserved);
    strbuf_free(&r->body);
    free(r);
    *state = NULL;
}

static void on_library_message(void *user, const char *format, va_list args)
{
    const server *s = user;
    char text[512];
    if (!s->log.verbose) return; /* clients that break off, mostly */
    vsnprintf(text, sizeof text, format, args);
    text[strcspn(text, "\n")] = '\0';
    server_log_put(&s->log, "http",
                   json_pack("{s:o}", "message", server_log_text(text, strlen(text))));
}

calla_status http_start(server *s, calla_error *err)
{
    const server_options *o = &s->options;
    s->daemon = MHD_start_daemon(
        MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL |
            MHD_USE_NO_LISTEN_SOCKET | MHD_USE_ERROR_LOG | MHD_USE_ITC,
        0, NULL, NULL, on_request, s, MHD_OPTION_EXTERNAL_LOGGER, on_library_message, s,
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, s, MHD_OPTION_NOTIFY_CONNECTION, on_connection,
        s, MHD_OPTION_UNESCAPE_CALLBACK, on_unescape, s, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)o->n_connections + N_MORE_CONNECTIONS + N_ON_THEIR_WAY,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)o->idle_s, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)HEADER_BYTES, MHD_OPTION_THREAD_STACK_SIZE, (size_t)STACK_BYTES,
        MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_END);
    if (!s->daemon) return error_set(err, CALLA_ERR_IO, "the HTTP server could not be started");
    CALLA_TRY(acceptor_start(s->listen_fd, (int64_t)o->idle_s * 1000000000, take_connection, s,
                             &s->acceptor, err));
    s->listen_fd = -1; /* the acceptor's */
    return CALLA_OK;
}
