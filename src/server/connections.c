#include "server/connections.h"

#include "base/clock.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

struct connection_entry {
    connection_entry *next, **back; /* *back points here */
    int socket;
    int64_t deadline_ns; /* for the request; INT64_MAX = none is waited for */
};

struct connections {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* on CLOCK_MONOTONIC */
    pthread_t watcher;
    int32_t n_open;
    int64_t patience_ns;
    int64_t wake_ns; /* when the watcher looks next */
    connection_entry *list;
    bool ending;
};

/* ---- the watcher ---- */

/* Ends what is late, and finds when the next will be. */
static void end_late(connections *c)
{
    static const char answer[] =
        "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    int64_t now = clock_ns();
    c->wake_ns = INT64_MAX;
    for (connection_entry *e = c->list; e; e = e->next) {
        if (e->deadline_ns <= now) {
            e->deadline_ns = INT64_MAX;
            ssize_t n = send(e->socket, answer, sizeof answer - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
            (void)n; /* who does not read it is disconnected all the same */
            shutdown(e->socket, SHUT_RDWR);
        } else if (e->deadline_ns < c->wake_ns) {
            c->wake_ns = e->deadline_ns;
        }
    }
}

static void *watch(void *user)
{
    connections *c = user;
    pthread_mutex_lock(&c->lock);
    while (!c->ending) {
        end_late(c);
        struct timespec until = {.tv_sec = (time_t)(c->wake_ns / 1000000000),
                                 .tv_nsec = (long)(c->wake_ns % 1000000000)};
        if (c->wake_ns == INT64_MAX)
            pthread_cond_wait(&c->changed, &c->lock);
        else
            pthread_cond_timedwait(&c->changed, &c->lock, &until);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* ---- from other threads ---- */

calla_status connections_create(int64_t patience_ns, connections **out, calla_error *err)
{
    connections *c = calloc(1, sizeof *c);
    pthread_condattr_t monotonic;
    if (!c) return error_set(err, CALLA_ERR_MEMORY, "no memory for connections");
    c->patience_ns = patience_ns;
    c->wake_ns = INT64_MAX;
    pthread_mutex_init(&c->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&c->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int failure = pthread_create(&c->watcher, NULL, watch, c);
    if (failure != 0) {
        pthread_cond_destroy(&c->changed);
        pthread_mutex_destroy(&c->lock);
        free(c);
        return error_set_errno(err, CALLA_ERR_MEMORY, failure, "no thread for connections");
    }
    *out = c;
    return CALLA_OK;
}

void connections_free(connections *c)
{
    if (!c) return;
    pthread_mutex_lock(&c->lock);
    c->ending = true;
    pthread_cond_signal(&c->changed);
    pthread_mutex_unlock(&c->lock);
    pthread_join(c->watcher, NULL);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* Under the lock. */
static void await(connections *c, connection_entry *e)
{
    e->deadline_ns = clock_ns() + c->patience_ns;
    if (e->deadline_ns < c->wake_ns) pthread_cond_signal(&c->changed);
}

connection_entry *connections_open(connections *c, int socket)
{
    connection_entry *e = calloc(1, sizeof *e);
    pthread_mutex_lock(&c->lock);
    c->n_open++;
    if (e) {
        *e = (connection_entry){.next = c->list, .back = &c->list, .socket = socket};
        e->deadline_ns = INT64_MAX;
        if (c->list) c->list->back = &e->next;
        c->list = e;
        await(c, e);
    }
    pthread_mutex_unlock(&c->lock);
    return e;
}

void connections_close(connections *c, connection_entry *e)
{
    pthread_mutex_lock(&c->lock);
    c->n_open--;
    if (e) {
        *e->back = e->next;
        if (e->next) e->next->back = e->back;
    }
    pthread_mutex_unlock(&c->lock);
    free(e);
}

void connections_await(connections *c, connection_entry *e)
{
    if (!e) return;
    pthread_mutex_lock(&c->lock);
    await(c, e);
    pthread_mutex_unlock(&c->lock);
}

void connections_arrived(connections *c, connection_entry *e)
{
    if (!e) return;
    pthread_mutex_lock(&c->lock);
    e->deadline_ns = INT64_MAX;
    pthread_mutex_unlock(&c->lock);
}

int32_t connections_count(connections *c)
{
    pthread_mutex_lock(&c->lock);
    int32_t n = c->n_open;
    pthread_mutex_unlock(&c->lock);
    return n;
}
