#include "server/acceptor.h"

#include "base/clock.h"

#include <ctype.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { MAX_GUESTS = 256, MAX_METHOD = 32 };
#define LINGER_NS ((int64_t)2000000000) /* for the reader of a refusal */
#define PAUSE_NS  ((int64_t)20000000)   /* when no descriptor is left */

/* A connection that has not been handed on. */
typedef struct guest {
    int socket;
    bool refused; /* told so; what it still sends is read, so that it reads that */
    int64_t deadline_ns;
    struct sockaddr_storage address;
    socklen_t n_address;
} guest;

struct acceptor {
    pthread_t thread;
    int listen_socket, wake;
    int64_t patience_ns;
    acceptor_take_fn *take;
    void *user;
    guest guests[MAX_GUESTS]; /* [n] */
    int n;
    int64_t pause_until_ns; /* before which no connection is accepted */
};

/* ---- the first bytes ---- */

static bool is_method_character(char c)
{
    return isalnum((unsigned char)c) || (c != '\0' && strchr("!#$%&'*+-.^_`|~", c));
}

bool acceptor_is_http(const char *bytes, size_t n)
{
    size_t i = 0, begin;
    while (i < n && (bytes[i] == '\r' || bytes[i] == '\n')) i++; /* empty lines may come before */
    begin = i;
    while (i < n && is_method_character(bytes[i])) i++;
    if (i - begin > MAX_METHOD) return false;
    return i == n || (i > begin && bytes[i] == ' ');
}

/* ---- guests ---- */

static void remove_guest(acceptor *a, int i)
{
    a->guests[i] = a->guests[--a->n];
}

static void dismiss(acceptor *a, int i)
{
    close(a->guests[i].socket);
    remove_guest(a, i);
}

static void refuse(guest *g, const char *status, const char *more, const char *error)
{
    char text[512];
    int n = snprintf(text, sizeof text,
                     "HTTP/1.1 %s\r\nContent-Type: application/json\r\n%sConnection: close\r\n"
                     "Content-Length: %zu\r\n\r\n%s",
                     status, more, strlen(error), error);
    ssize_t sent = send(g->socket, text, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)sent; /* nothing was sent there before: it fits */
    shutdown(g->socket, SHUT_WR);
    g->refused = true;
    g->deadline_ns = clock_ns() + LINGER_NS;
}

static void hand_on(acceptor *a, int i)
{
    guest *g = &a->guests[i];
    if (a->take(a->user, g->socket, (const struct sockaddr *)&g->address, g->n_address))
        remove_guest(a, i);
    else
        refuse(g, "503 Service Unavailable", "Retry-After: 1\r\n",
               "{\"error\": {\"message\": \"too many connections\", \"type\": \"server_error\", "
               "\"param\": null, \"code\": \"too_many_connections\"}}");
}

/* Something came from it, or it left. */
static void look_at(acceptor *a, int i)
{
    guest *g = &a->guests[i];
    char bytes[1024];
    ssize_t n = recv(g->socket, bytes, sizeof bytes, MSG_DONTWAIT | (g->refused ? 0 : MSG_PEEK));
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0)
        dismiss(a, i);
    else if (g->refused)
        return;
    else if (acceptor_is_http(bytes, (size_t)n))
        hand_on(a, i);
    else
        refuse(
            g, "400 Bad Request", "",
            "{\"error\": {\"message\": \"this is no HTTP (and there is no TLS here)\", \"type\": "
            "\"invalid_request_error\", \"param\": null, \"code\": \"invalid_http\"}}");
}

/* Who says nothing keeps nobody out. */
static void dismiss_oldest(acceptor *a)
{
    int oldest = 0;
    for (int i = 1; i < a->n; i++)
        if (a->guests[i].deadline_ns < a->guests[oldest].deadline_ns) oldest = i;
    dismiss(a, oldest);
}

static void accept_one(acceptor *a)
{
    if (a->n == MAX_GUESTS) dismiss_oldest(a);
    guest *g = &a->guests[a->n];
    g->n_address = sizeof g->address;
    g->socket =
        accept4(a->listen_socket, (struct sockaddr *)&g->address, &g->n_address, SOCK_CLOEXEC);
    if (g->socket < 0) { /* the connection left, or there is no room for it now */
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            a->pause_until_ns = clock_ns() + PAUSE_NS;
        return;
    }
    g->refused = false;
    g->deadline_ns = clock_ns() + a->patience_ns;
    a->n++;
}

/* ---- the thread ---- */

static int timeout_ms(const acceptor *a, bool paused)
{
    int64_t first = paused ? a->pause_until_ns : INT64_MAX, now = clock_ns();
    for (int i = 0; i < a->n; i++)
        if (a->guests[i].deadline_ns < first) first = a->guests[i].deadline_ns;
    if (first == INT64_MAX) return -1;
    int64_t ms = (first - now) / 1000000 + 1;
    return ms < 0 ? 0 : ms > 60000 ? 60000 : (int)ms;
}

static void *run(void *user)
{
    acceptor *a = user;
    struct pollfd fds[MAX_GUESTS + 2];
    for (;;) {
        bool paused = clock_ns() < a->pause_until_ns;
        int n = a->n;
        fds[MAX_GUESTS] = (struct pollfd){.fd = a->wake, .events = POLLIN};
        fds[MAX_GUESTS + 1] =
            (struct pollfd){.fd = paused ? -1 : a->listen_socket, .events = POLLIN};
        for (int i = 0; i < n; i++)
            fds[MAX_GUESTS - n + i] = (struct pollfd){.fd = a->guests[i].socket, .events = POLLIN};
        if (poll(fds + MAX_GUESTS - n, (nfds_t)n + 2, timeout_ms(a, paused)) < 0) continue;
        if (fds[MAX_GUESTS].revents) return NULL;
        int64_t now = clock_ns();
        for (int i = n - 1; i >= 0;
             i--) { /* who is removed is replaced by one that was looked at */
            if (fds[MAX_GUESTS - n + i].revents)
                look_at(a, i);
            else if (a->guests[i].deadline_ns <= now)
                dismiss(a, i);
        }
        if (fds[MAX_GUESTS + 1].revents) accept_one(a);
    }
}

calla_status acceptor_start(int listen_socket, int64_t patience_ns, acceptor_take_fn *take,
                            void *user, acceptor **out, calla_error *err)
{
    acceptor *a = calloc(1, sizeof *a);
    if (!a) return error_set(err, CALLA_ERR_MEMORY, "no memory for connections");
    a->listen_socket = listen_socket;
    a->patience_ns = patience_ns;
    a->take = take, a->user = user;
    a->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    int failure = a->wake < 0 ? errno : pthread_create(&a->thread, NULL, run, a);
    if (failure != 0) {
        if (a->wake >= 0) close(a->wake);
        free(a);
        return error_set_errno(err, CALLA_ERR_MEMORY, failure, "no thread for connections");
    }
    *out = a;
    return CALLA_OK;
}

void acceptor_stop(acceptor *a)
{
    if (!a) return;
    uint64_t one = 1;
    ssize_t n = write(a->wake, &one, sizeof one);
    (void)n; /* an eventfd at zero takes it */
    pthread_join(a->thread, NULL);
    while (a->n > 0) dismiss(a, a->n - 1);
    close(a->listen_socket);
    close(a->wake);
    free(a);
}
