/* Malformed and hostile requests against a running server: it answers with a status that fits,
 * soon, and is well afterwards. Without an answer the connection may end in two cases only: the
 * client ended its side while the server waited for more; or the answer was lost, as TCP loses it
 * when the server closes while more is being sent. usage: serve_hostile PORT COUNT [SEED] */
#include "base/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { N_THREADS = 8, MAX_REQUEST = 100000, PATIENCE_MS = 30000, QUIET_MS = 30 };

static int port;
static long n_requests;
static atomic_long n_done, n_bad, counts[1000]; /* counts: by status */
static atomic_long n_ended, n_lost;             /* without an answer */
static _Thread_local unsigned seed;

static unsigned pick(unsigned n)
{
    return (unsigned)rand_r(&seed) % n;
}

/* ---- requests ---- */

typedef struct text {
    char data[MAX_REQUEST];
    size_t n;
} text;

static void put(text *t, const char *s, size_t n)
{
    if (t->n + n > sizeof t->data) n = sizeof t->data - t->n;
    memcpy(t->data + t->n, s, n);
    t->n += n;
}

static void puts_(text *t, const char *s)
{
    put(t, s, strlen(s));
}

static const char *const bodies[] = {
    "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"max_tokens\": 1}",
    "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"Hi\"}]}, "
    "{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"id\": \"a\", \"type\": "
    "\"function\", \"function\": {\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}}]}, "
    "{\"role\": "
    "\"tool\", \"tool_call_id\": \"a\", \"content\": \"x\"}], \"max_tokens\": 2, \"tools\": "
    "[{\"type\": "
    "\"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": \"object\"}}}]}",
    "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"max_tokens\": 1, \"stream\": "
    "true, "
    "\"stop\": [\"a\", \"b\"], \"logit_bias\": {\"5\": 1.5}, \"logprobs\": true, \"top_logprobs\": "
    "2, "
    "\"temperature\": 0.5, \"top_p\": 0.9, \"seed\": 7, \"n\": 2, \"stream_options\": "
    "{\"include_usage\": true}, \"chat_template_kwargs\": {\"enable_thinking\": false}}",
    "{\"input\": [{\"role\": \"user\", \"content\": [{\"type\": \"input_text\", \"text\": "
    "\"Hi\"}]}, {\"type\": \"reasoning\", \"summary\": []}, {\"type\": \"function_call\", "
    "\"call_id\": \"c\", \"name\": \"f\", \"arguments\": \"{}\"}, {\"type\": "
    "\"function_call_output\", \"call_id\": \"c\", \"output\": \"x\"}], \"max_output_tokens\": 1, "
    "\"stream\": true, \"tools\": [{\"type\": \"function\", \"name\": \"f\"}, {\"type\": "
    "\"web_search\"}], \"tool_choice\": \"required\", \"include\": "
    "[\"message.output_text.logprobs\"]}",
    "{\"prompt\": [1, 2, 3], \"max_tokens\": 1, \"echo\": true}",
    "{\"prompt\": \"Once\", \"max_tokens\": 0}",
    "{\"text\": \"some words\"}",
    "{\"tokens\": [1, 2, 3]}",
};
static const char *const pieces[] = {"null",
                                     "true",
                                     "-1",
                                     "1e999",
                                     "18446744073709551616",
                                     "\"\\ud800\"",
                                     "[]",
                                     "{}",
                                     "\"\"",
                                     "[[[[[[",
                                     "\xff",
                                     "\\u0000",
                                     "{\"a\":",
                                     ",",
                                     "\"",
                                     "\n",
                                     "1e-400",
                                     "99999999999999999999999999999999",
                                     "\xf0\x9f\x98\x80",
                                     "<|im_end|>",
                                     "</think>"};
static const char *const paths[] = {"/v1/chat/completions",
                                    "/v1/responses",
                                    "/v1/responses",
                                    "/v1/responses/resp_1",
                                    "/v1/completions",
                                    "/v1/tokenize",
                                    "/v1/detokenize",
                                    "/v1/models",
                                    "/metrics",
                                    "/health",
                                    "/../etc/passwd",
                                    "/%00",
                                    "/v1/chat/completions/../completions",
                                    "*",
                                    ""};
static const char *const methods[] = {"POST", "POST", "POST", "POST",    "GET",     "PUT",   "HEAD",
                                      "get",  "",     "X",    "OPTIONS", "CONNECT", "DELETE"};
static const char *const headers[] = {
    "Host: evil.example\r\n",
    "Origin: http://evil.example\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Transfer-Encoding: gzip, chunked\r\n",
    "Content-Length: -1\r\n",
    "Content-Length: 99999999999999999999\r\n",
    "Content-Length: 5\r\n",
    "Content-Type: text/plain\r\n",
    "Expect: 100-continue\r\n",
    "Connection: Upgrade\r\nUpgrade: websocket\r\n",
    "Authorization: Bearer \xff\xfe\r\n",
    "no colon\r\n",
    ": empty name\r\n",
    "A: b\r\n folded\r\n",
    "\r\n",
    "Range: bytes=0-5\r\n",
    "Content-Encoding: gzip\r\n",
};

static void put_body(text *t)
{
    const char *body = bodies[pick(sizeof bodies / sizeof *bodies)];
    text b = {.n = 0};
    puts_(&b, body);
    for (unsigned i = pick(4); i > 0; i--) { /* a value or some bytes replaced */
        size_t at = pick((unsigned)b.n), cut = pick(12);
        const char *piece = pieces[pick(sizeof pieces / sizeof *pieces)];
        text changed = {.n = 0};
        put(&changed, b.data, at);
        puts_(&changed, piece);
        if (at + cut < b.n) put(&changed, b.data + at + cut, b.n - at - cut);
        memcpy(b.data, changed.data, changed.n);
        b.n = changed.n;
    }
    if (pick(50) == 0) /* deep */
        for (int i = 0; i < 20000; i++) puts_(&b, pick(2) ? "[" : "{\"a\":");
    put(t, b.data, b.n);
}

static void make_request(text *t)
{
    text body = {.n = 0};
    char line[256];
    t->n = 0;
    if (pick(20) == 0) { /* noise */
        for (unsigned i = pick(3000); i > 0; i--) {
            char c = (char)pick(256);
            put(t, &c, 1);
        }
        return;
    }
    put_body(&body);
    snprintf(line, sizeof line, "%s %s HTTP/%s\r\n", methods[pick(pick(2) ? 1 : 12)],
             paths[pick(pick(2) ? 4 : sizeof paths / sizeof *paths)],
             pick(30)  ? "1.1"
             : pick(2) ? "9.9"
                       : "1.0");
    puts_(t, line);
    if (pick(20)) puts_(t, "Host: localhost\r\n");
    if (pick(20)) puts_(t, "Content-Type: application/json\r\n");
    if (pick(20)) {
        snprintf(line, sizeof line, "Content-Length: %zu\r\n", body.n + (pick(20) ? 0 : pick(9)));
        puts_(t, line);
    }
    for (unsigned i = pick(3) ? 0 : pick(4); i > 0; i--)
        puts_(t, headers[pick(sizeof headers / sizeof *headers)]);
    if (pick(100) == 0)
        for (int i = 0; i < 3000; i++) puts_(t, "X-Filler: aaaaaaaaaaaa\r\n");
    puts_(t, "\r\n");
    put(t, body.data, body.n);
    if (pick(30) == 0) t->n = pick((unsigned)t->n + 1); /* cut off */
}

/* ---- sending ---- */

static int connect_to_server(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) return fd;
    close(fd);
    return -1;
}

typedef enum outcome { TIMED_OUT, ANSWERED, CLOSED, ENDED, LOST } outcome;

/* Sends it and reads until the server closes, or has answered. Ending the sending side after a
 * while tells the server that no more comes. */
static outcome exchange(const text *t, char *answer, size_t n_answer)
{
    size_t n_sent = 0, n = 0;
    bool shut = false, broken = false;
    int64_t end_ns = clock_ns() + (int64_t)PATIENCE_MS * 1000000;
    int fd = connect_to_server();
    answer[0] = '\0';
    if (fd < 0) return TIMED_OUT;
    while (clock_ns() < end_ns) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (n_sent < t->n) p.events |= POLLOUT;
        int ready = poll(&p, 1, QUIET_MS);
        if (ready == 0 && n_sent == t->n && !shut) shut = shutdown(fd, SHUT_WR) == 0;
        if (p.revents & POLLOUT) {
            ssize_t k = send(fd, t->data + n_sent, t->n - n_sent, MSG_NOSIGNAL | MSG_DONTWAIT);
            broken = broken || (k < 0 && errno != EAGAIN);
            n_sent = k > 0 ? n_sent + (size_t)k : broken ? t->n : n_sent;
        }
        if (!(p.revents & (POLLIN | POLLHUP | POLLERR))) continue;
        char buffer[4096];
        ssize_t k = recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
        if (k == 0 || (k < 0 && errno != EAGAIN)) {
            close(fd);
            return n > 0 ? ANSWERED : shut ? ENDED : broken || k < 0 ? LOST : CLOSED;
        }
        if (k > 0 && n + 1 < n_answer) {
            size_t room = n_answer - 1 - n, take = (size_t)k < room ? (size_t)k : room;
            memcpy(answer + n, buffer, take);
            answer[n += take] = '\0';
        }
        if (n_sent == t->n && strstr(answer, "\r\n\r\n") && pick(4)) break; /* enough */
    }
    close(fd);
    return n > 0 ? ANSWERED : TIMED_OUT;
}

static bool status_is_expected(int status)
{
    static const int expected[] = {100, 200, 204, 400, 401, 403, 404, 405, 408, 411,
                                   413, 414, 415, 417, 429, 431, 501, 503, 505};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        if (expected[i] == status) return true;
    return false;
}

static void *attack(void *user)
{
    text *request = calloc(1, sizeof *request);
    char *answer = calloc(1, 65536);
    seed = (unsigned)(uintptr_t)user;
    while (request && answer && n_done++ < n_requests && n_bad < 20) {
        int status = 0;
        make_request(request);
        outcome what = exchange(request, answer, 65536);
        if (sscanf(answer, "HTTP/1.%*d %d", &status) != 1) status = 0;
        counts[status < 1000 ? status : 0]++;
        if (what == ENDED) {
            n_ended++;
        } else if (what == LOST) {
            n_lost++;
        } else if (what != ANSWERED || !status_is_expected(status)) {
            n_bad++;
            fprintf(stderr, "%s, status %d, to %zu bytes:\n%.*s\n",
                    what == ANSWERED ? "answered" : "no answer", status, request->n,
                    (int)(request->n < 400 ? request->n : 400), request->data);
        }
    }
    free(request);
    free(answer);
    return NULL;
}

static bool is_well(void)
{
    static const char get[] =
        "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    static text request;
    static char answer[65536];
    puts_(&request, get);
    return exchange(&request, answer, sizeof answer) == ANSWERED && strstr(answer, " 200 OK");
}

int main(int argc, char **argv)
{
    pthread_t threads[N_THREADS];
    if (argc < 3) return 2;
    signal(SIGPIPE, SIG_IGN);
    port = atoi(argv[1]);
    n_requests = atol(argv[2]);
    unsigned first = argc > 3 ? (unsigned)atoi(argv[3]) : 1;
    for (unsigned i = 0; i < N_THREADS; i++)
        pthread_create(&threads[i], NULL, attack, (void *)(uintptr_t)(first + i));
    for (unsigned i = 0; i < N_THREADS; i++) pthread_join(threads[i], NULL);
    bool well = is_well();
    printf("%ld requests, %ld wrong; without an answer: %ld cut short by the client, %ld lost; "
           "status",
           n_requests, n_bad, n_ended, n_lost);
    for (int i = 100; i < 1000; i++)
        if (counts[i]) printf(" %d: %ld", i, counts[i]);
    printf("; the server is %s\n", well ? "well" : "not well");
    return n_bad == 0 && well ? 0 : 1;
}
