#include "base/clock.h"
#include "hybrid/upstream_private.h"
#include "hybrid/upstream_url.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
    KEPT_CONNECTIONS = 16,
    SHORTEST_SECRET =
        12, /* characters of a key; servers that want none get a word such as "none" */
};

/* ---- what callers do ---- */

int upstream_call_fd(const upstream_call *call)
{
    return call->wake_fd;
}

static void free_call(upstream_call *c)
{
    if (c->wake_fd >= 0) close(c->wake_fd);
    strbuf_free(&c->held);
    free(c->url);
    free(c->body);
    free(c);
}

static upstream_call *create_call(upstream *u, const char *path, const char *body, size_t n_bytes)
{
    upstream_call *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->owner = u;
    c->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    c->body = malloc(n_bytes + 1);
    if (asprintf(&c->url, "%s%s", u->url, path) < 0) c->url = NULL;
    if (c->wake_fd < 0 || !c->body || !c->url) {
        free_call(c);
        return NULL;
    }
    memcpy(c->body, body, n_bytes);
    c->n_body = n_bytes;
    c->start_ns = clock_ns();
    return c;
}

calla_status upstream_begin(upstream *u, const char *path, const char *body, size_t n_bytes,
                            const upstream_limits *limits, upstream_call **call, calla_error *err)
{
    calla_status status = CALLA_OK;
    upstream_call *c = create_call(u, path, body, n_bytes);
    if (!c) return error_set(err, CALLA_ERR_MEMORY, "no memory for a request to the cloud");
    c->limits = *limits;
    pthread_mutex_lock(&u->lock);
    if (u->stopping) {
        status = error_set(err, CALLA_ERR_CANCELLED, "the server is shutting down");
    } else if (u->n_calls >= u->n_most) {
        status = error_set(err, CALLA_ERR_UNSUPPORTED,
                           "%d requests to the cloud are running already", u->n_calls);
    } else {
        c->next = u->calls;
        u->calls = c;
        u->n_calls++;
    }
    pthread_mutex_unlock(&u->lock);
    if (status != CALLA_OK) {
        free_call(c);
        return status;
    }
    curl_multi_wakeup(u->multi);
    *call = c;
    return CALLA_OK;
}

void upstream_take(upstream_call *call, strbuf *out, upstream_status *status)
{
    upstream *u = call->owner;
    bool resume = false;
    uint64_t count;
    pthread_mutex_lock(&u->lock);
    ssize_t n = read(call->wake_fd, &count, sizeof count);
    (void)n;
    if (call->held.n > 0 && call->status.phase != UPSTREAM_WAITING) {
        strbuf_append(out, call->held.data, call->held.n);
        call->status.any_passed = true;
        strbuf_clear(&call->held);
    }
    if (call->held.failed) out->failed = true;
    if (call->paused && !call->resume) resume = call->resume = true;
    *status = call->status;
    pthread_mutex_unlock(&u->lock);
    if (resume) curl_multi_wakeup(u->multi);
}

void upstream_end(upstream_call *call, upstream_status *status)
{
    if (!call) return;
    upstream *u = call->owner;
    pthread_mutex_lock(&u->lock);
    call->cancelled = true;
    if (!call->over) curl_multi_wakeup(u->multi);
    while (!call->over) pthread_cond_wait(&u->ended, &u->lock);
    if (status) *status = call->status;
    pthread_mutex_unlock(&u->lock);
    free_call(call);
}

/* ---- the whole ---- */

static calla_status check_key(const char *key, calla_error *err)
{
    for (const char *p = key; key && *p; p++)
        if (*p <= ' ' || *p > '~')
            return error_set(err, CALLA_ERR_INPUT,
                             "the cloud's key holds a character that no key has (a space or the "
                             "end of a line?)");
    if (key && !*key) return error_set(err, CALLA_ERR_INPUT, "the cloud's key is empty");
    return CALLA_OK;
}

static bool add_header(struct curl_slist **list, const char *text)
{
    struct curl_slist *longer = curl_slist_append(*list, text);
    if (longer) *list = longer;
    return longer;
}

static bool make_headers(upstream *u)
{
    bool ok = add_header(&u->headers, "Content-Type: application/json") &&
              add_header(&u->headers, "Accept: application/json, text/event-stream") &&
              add_header(&u->headers, "Expect:");
    if (!ok || !u->key) return ok;
    char *authorization;
    if (asprintf(&authorization, "Authorization: Bearer %s", u->key) < 0) return false;
    ok = add_header(&u->headers, authorization);
    explicit_bzero(authorization, strlen(authorization));
    free(authorization);
    return ok;
}

static bool copy_text(const char *text, char **copy)
{
    *copy = text ? strdup(text) : NULL;
    return !text || *copy;
}

static void init_curl(void)
{
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

calla_status upstream_open(const upstream_config *config, upstream **out, calla_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    calla_status status = CALLA_OK;
    pthread_once(&once, init_curl);
    upstream *u = calloc(1, sizeof *u);
    if (!u) return error_set(err, CALLA_ERR_MEMORY, "no memory for the cloud's connections");
    u->n_most = config->n_calls;
    pthread_mutex_init(&u->lock, NULL);
    pthread_cond_init(&u->ended, NULL);
    CALLA_TRY_GOTO(check_key(config->key, err), fail);
    CALLA_TRY_GOTO(upstream_url_check(config->url, &u->url, &u->origin, err), fail);
    u->multi = curl_multi_init();
    if (!u->multi || !copy_text(config->key, &u->key) || !copy_text(config->ca_file, &u->ca_file) ||
        !make_headers(u)) {
        status = error_set(err, CALLA_ERR_MEMORY, "no memory for the cloud's connections");
        goto fail;
    }
    curl_multi_setopt(u->multi, CURLMOPT_MAXCONNECTS, (long)KEPT_CONNECTIONS);
    int failure = pthread_create(&u->thread, NULL, upstream_transfers, u);
    if (failure != 0) {
        status = error_set_errno(err, CALLA_ERR_MEMORY, failure, "no thread for the cloud");
        goto fail;
    }
    u->runs = true;
    *out = u;
    return CALLA_OK;
fail:
    upstream_close(u);
    return status;
}

void upstream_stop(upstream *u, int64_t deadline_ns)
{
    pthread_mutex_lock(&u->lock);
    u->stopping = true;
    u->deadline_ns = deadline_ns;
    curl_multi_wakeup(u->multi);
    while (u->n_calls > 0) pthread_cond_wait(&u->ended, &u->lock);
    pthread_mutex_unlock(&u->lock);
}

void upstream_close(upstream *u)
{
    if (!u) return;
    if (u->runs) {
        pthread_mutex_lock(&u->lock);
        u->closing = u->stopping = true;
        pthread_mutex_unlock(&u->lock);
        curl_multi_wakeup(u->multi);
        pthread_join(u->thread, NULL);
    }
    if (u->multi) curl_multi_cleanup(u->multi);
    curl_slist_free_all(u->headers);
    pthread_cond_destroy(&u->ended);
    pthread_mutex_destroy(&u->lock);
    if (u->key) explicit_bzero(u->key, strlen(u->key));
    free(u->key);
    free(u->url);
    free(u->origin);
    free(u->ca_file);
    free(u);
}

const char *upstream_origin(const upstream *u)
{
    return u->origin;
}

bool upstream_holds_key(const upstream *u, const char *text, size_t n_bytes)
{
    size_t n_key = u->key ? strlen(u->key) : 0;
    return n_key >= SHORTEST_SECRET && memmem(text, n_bytes, u->key, n_key) != NULL;
}
