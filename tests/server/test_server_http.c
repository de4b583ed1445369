/* HTTP that no proper client sends, and clients that send or read slowly. */
#include "server/client.h"
#include "server/raw.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HOST "Host: localhost\r\n"
#define JSON "Content-Type: application/json\r\n"
#define CHAT "POST /v1/chat/completions HTTP/1.1\r\n" HOST JSON

/* Whether the connection is still good for a request. */
static bool goes_on(int fd)
{
    static const char health[] = "GET /health HTTP/1.1\r\n" HOST "\r\n";
    raw_send(fd, health, sizeof health - 1);
    char *answer = raw_answer(fd, true);
    bool answered = raw_status(answer) == 200;
    free(answer);
    return answered;
}

static void expect(const server *s, const char *request, int status, bool closes)
{
    int fd = raw_connect(s);
    raw_send(fd, request, strlen(request));
    char *answer = raw_answer(fd, strncmp(request, "HEAD ", 5) != 0);
    int got = raw_status(answer);
    if (got >= 400 && !strstr(answer, "{\"error\"") &&
        !strstr(answer, "<html>")) /* libmicrohttpd's */
        fail_msg("%s: no body: %s", request, answer);
    free(answer);
    if (got != status) fail_msg("%s: status %d instead of %d", request, got, status);
    if (closes) raw_rest(fd); /* libmicrohttpd may say twice that the Host is missing */
    if (!closes && !goes_on(fd)) fail_msg("%s: the connection does not go on", request);
    close(fd);
}

static void odd_requests_get_a_status_that_fits(void **state)
{
    (void)state;
    static const struct {
        const char *request;
        int status;
        bool closes; /* where the next request begins is not certain */
    } cases[] = {
        {"GET /health HTTP/1.1\r\n" HOST "\r\n", 200, false},
        {"GET /health HTTP/1.0\r\n" HOST "\r\n", 200, true},
        {"\r\nGET /health HTTP/1.1\r\n" HOST "\r\n", 200, false},
        {"GET /health?a=b HTTP/1.1\r\n" HOST "\r\n", 200, false},
        {"HEAD /health HTTP/1.1\r\n" HOST "\r\n", 200, false},
        {"GET http://localhost/health HTTP/1.1\r\n" HOST "\r\n", 200, false},
        {"GET http://evil.example/health HTTP/1.1\r\n" HOST "\r\n", 403, false},
        {"GET http:// HTTP/1.1\r\n" HOST "\r\n", 400, false},
        {"GET /health\r\n" HOST "\r\n", 400, true},
        {"GET /health HTTP/9.9\r\n" HOST "\r\n", 505, true},
        {"garbage\r\n\r\n", 400, true},
        {" / HTTP/1.1\r\n\r\n", 400, true},
        {"\r\n\n\x01", 400, true},
        {"\x16\x03\x01\x02", 400, true}, /* TLS: without waiting for an end of a line */
        {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 400, true},
        {"GET /health HTTP/1.1\r\n\r\n", 400, true},
        {"GET /health HTTP/1.1\r\nHost: \r\n\r\n", 400, false},
        {"GET /health HTTP/1.1\r\n" HOST HOST "\r\n", 400, true},
        {"GET /health HTTP/1.1\r\n" HOST "Host: evil.example\r\n\r\n", 400, true},
        {"GET /health HTTP/1.1\r\n" HOST "no colon\r\n\r\n", 400, true},
        {"GET /health HTTP/1.1\r\nHost : localhost\r\n\r\n", 400, true},
        {"GET /health%00 HTTP/1.1\r\n" HOST "\r\n", 404, false},
        {"GET /%0ahealth HTTP/1.1\r\n" HOST "\r\n", 404, false},
        {"GET /\xff HTTP/1.1\r\n" HOST "\r\n", 404, false},
        {"GET /../health HTTP/1.1\r\n" HOST "\r\n", 404, false},
        {"get /health HTTP/1.1\r\n" HOST "\r\n", 405, false},
        {"OPTIONS * HTTP/1.1\r\n" HOST "\r\n", 404, false},
        {CHAT "\r\n", 400, false},
        {CHAT "Content-Length: -1\r\n\r\n{}", 400, true},
        {CHAT "Content-Length: +2\r\n\r\n{}", 400, true},
        {CHAT "Content-Length: 99999999999999999999\r\n\r\n{}", 413, true},
        {CHAT "Content-Length: 99999999999\r\n\r\n{}", 413, true},
        {CHAT "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400, true},
        {CHAT "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 400,
         true},
        {CHAT "Transfer-Encoding: gzip\r\n\r\n{}", 501, true},
        {CHAT "Transfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 501, true},
        {CHAT "Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n", 400, true},
        {CHAT "Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n{}\r\n", 413, true},
        {CHAT "Transfer-Encoding: chunked\r\n\r\n2;a=b\r\n{}\r\n0\r\n\r\n", 400, false},
        {CHAT "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", 415, true},
        {CHAT "Expect: 200-ok\r\nContent-Length: 2\r\n\r\n{}", 417, true},
        {CHAT "Expect: 100-continue\r\nContent-Length: 99999999999\r\n\r\n", 413, true},
        {"POST /nothing HTTP/1.1\r\n" HOST JSON "Expect: 100-continue\r\nContent-Length: 2\r\n\r\n",
         404, true},
    };
    server_options options = client_options();
    server *s = client_start(&options);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect(s, cases[i].request, cases[i].status, cases[i].closes);
    /* After a request libmicrohttpd drops what is no HTTP, without asking. */
    int fd = raw_connect(s);
    assert_true(goes_on(fd));
    raw_send(fd, "garbage\r\n\r\n", 11);
    assert_int_equal(raw_rest(fd), 0);
    close(fd);
    client_stop(s);
}

static void long_heads_are_refused(void **state)
{
    (void)state;
    server_options options = client_options();
    server *s = client_start(&options);
    static char text[60000], filler[50001];
    memset(filler, 'a', sizeof filler - 1);
    snprintf(text, sizeof text, "GET /health HTTP/1.1\r\n" HOST "X: %s\r\n\r\n", filler);
    expect(s, text, 431, true);
    snprintf(text, sizeof text, "GET /%s HTTP/1.1\r\n" HOST "\r\n", filler);
    expect(s, text, 414, true);
    filler[3000] = '\0';
    snprintf(text, sizeof text, "GET /%s HTTP/1.1\r\n" HOST "\r\n", filler);
    expect(s, text, 404, false);
    client_stop(s);
}

/* Several requests sent at once are answered one after the other; one that waits to be asked for
 * its body is. */
static void requests_may_follow_each_other(void **state)
{
    (void)state;
    static const char body[] = "{\"tokens\": []}";
    server_options options = client_options();
    char request[512], many[2048] = "";
    server *s = client_start(&options);
    snprintf(request, sizeof request,
             "POST /v1/detokenize HTTP/1.1\r\n" HOST JSON "Content-Length: %zu\r\n\r\n%s",
             sizeof body - 1, body);
    for (int i = 0; i < 3; i++) strcat(many, request);
    int fd = raw_connect(s);
    char *answer;
    raw_send(fd, many, strlen(many));
    for (int i = 0; i < 3; i++) {
        answer = raw_answer(fd, true);
        assert_non_null(strstr(answer, "{\"text\": \"\"}"));
        free(answer);
    }
    snprintf(request, sizeof request,
             "POST /v1/detokenize HTTP/1.1\r\n" HOST JSON
             "Expect: 100-continue\r\nContent-Length: %zu\r\n\r\n",
             sizeof body - 1);
    raw_send(fd, request, strlen(request));
    answer = raw_answer(fd, false);
    assert_int_equal(raw_status(answer), 100);
    free(answer);
    raw_send(fd, body, sizeof body - 1);
    answer = raw_answer(fd, true);
    assert_int_equal(raw_status(answer), 200);
    free(answer);
    assert_true(goes_on(fd));
    close(fd);
    client_stop(s);
}

/* A byte now and then does not keep a connection: in the head, in the body, between requests. */
static void slow_senders_are_cut_off(void **state)
{
    (void)state;
    static const char *const beginnings[] = {
        "", "GET /health HTTP/1.1\r\nX: ", CHAT "Content-Length: 1000\r\n\r\n",
        "GET /health HTTP/1.1\r\n" HOST "\r\n"};
    server_options options = client_options();
    options.idle_s = 1;
    server *s = client_start(&options);
    for (size_t i = 0; i < sizeof beginnings / sizeof *beginnings; i++) {
        int fd = raw_connect(s);
        bool open = raw_send(fd, beginnings[i], strlen(beginnings[i]));
        for (int k = 0; open && k < PATIENCE_S * 10; k++) {
            pause_ms(100);
            open = raw_send(fd, " ", 1);
        }
        if (open) fail_msg("'%s' and bytes now and then: still connected", beginnings[i]);
        close(fd);
    }
    client_stop(s);
}

/* More connections than there may be are told so, and the health is told to all. */
static void too_many_connections_get_a_503(void **state)
{
    (void)state;
    server_options options = client_options();
    int fds[3];
    options.n_connections = 3;
    server *s = client_start(&options);
    static const char models[] = "GET /v1/models HTTP/1.1\r\n" HOST "\r\n";
    for (int i = 0; i < 3; i++) {
        fds[i] = raw_connect(s);
        raw_send(fds[i], models, sizeof models - 1);
        char *answer = raw_answer(fds[i], true);
        assert_int_equal(raw_status(answer), 200);
        free(answer);
    }
    answer_t a = client_send(s, &(request_t){.path = "/v1/models"});
    assert_int_equal(a.status, 503);
    assert_string_equal(text_at(a.json, "error.code"), "too_many_connections");
    assert_non_null(strstr(a.headers, "Retry-After: "));
    answer_clear(&a);
    a = client_get(s, 200, "/health");
    answer_clear(&a);
    close(fds[0]);
    for (long status = 0; status != 200;) { /* once the server has noticed */
        a = client_send(s, &(request_t){.path = "/v1/models"});
        status = a.status;
        answer_clear(&a);
        assert_true(status == 200 || status == 503);
    }
    close(fds[1]);
    close(fds[2]);
    client_stop(s);
}

/* Who does not read pauses the own answer only: in the end all tokens are another's. */
static void a_slow_reader_holds_up_nobody_else(void **state)
{
    (void)state;
    server_options options = client_options();
    options.engine.n_ctx = 32768; /* more than waits for a reader, here and in sockets */
    options.n_parallel = 2, options.idle_s = 3600;
    options.max_unread_bytes = 8192;
    server *s = client_start(&options);
    int fd = raw_occupy(s, 1);
    int64_t n = 0, n_other = -1;
    while (n != n_other) {
        double before = client_metric(s, "calla_generated_tokens_total");
        answer_t a = client_post_json(s, 200, "/v1/chat/completions", chat("What is a river?"));
        assert_non_null(strstr(content_of(&a), "river"));
        n_other = int_at(a.json, "usage.completion_tokens");
        n = (int64_t)(client_metric(s, "calla_generated_tokens_total") - before);
        answer_clear(&a);
        assert_true(client_metric(s, "calla_choices_running") == 1);
    }
    close(fd);
    client_stop(s);
}

/* And is let go when that has taken too long. */
static void who_does_not_read_is_let_go(void **state)
{
    (void)state;
    server_options options = client_options();
    options.engine.n_ctx = 32768;
    options.idle_s = 2;
    server *s = client_start(&options);
    int fd = raw_occupy(s, 1);
    client_wait_for(s, "calla_requests_cancelled_total", 1);
    client_wait_for(s, "calla_choices_running", 0);
    close(fd);
    client_stop(s);
}

/* All requests share memory; who would need more is asked to come back. */
static void many_large_requests_share_their_memory(void **state)
{
    (void)state;
    enum { N = 18, BODY = 100000 };
    server_options options = client_options();
    options.max_body_bytes = BODY;
    server *s = client_start(&options);
    char head[256], *body = malloc(BODY);
    int fds[N], n_refused = 0;
    memset(body, ' ', BODY);
    snprintf(head, sizeof head, CHAT "Content-Length: %d\r\n\r\n", BODY);
    for (int i = 0; i < N; i++) { /* all but the last byte */
        fds[i] = raw_connect(s);
        raw_send(fds[i], head, strlen(head));
        raw_send(fds[i], body, BODY - 1);
    }
    client_wait_for_least(s, "calla_memory_requests_bytes", 16 * BODY);
    for (int i = 0; i < N; i++) {
        raw_send(fds[i], "x", 1);
        char *answer = raw_answer(fds[i], true);
        int status = raw_status(answer);
        assert_true(status == 400 || status == 503);
        n_refused += status == 503;
        if (status == 503) assert_non_null(strstr(answer, "Retry-After: "));
        free(answer);
        close(fds[i]);
    }
    assert_true(n_refused > 0 && n_refused < N);
    /* Many values in few bytes. */
    body[0] = '[';
    for (int i = 1; i < BODY - 1; i++) body[i] = i % 2 ? '1' : ',';
    body[BODY - 2] = ']', body[BODY - 1] = '\0';
    answer_t a = client_send(s, &(request_t){.path = "/v1/tokenize", .body = body});
    assert_int_equal(a.status, 413);
    answer_clear(&a);
    a = client_post(s, 200, "/v1/tokenize", "{s:s}", "text", "Nothing is left of them.");
    answer_clear(&a);
    free(body);
    client_stop(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(odd_requests_get_a_status_that_fits),
        cmocka_unit_test(long_heads_are_refused),
        cmocka_unit_test(requests_may_follow_each_other),
        cmocka_unit_test(slow_senders_are_cut_off),
        cmocka_unit_test(too_many_connections_get_a_503),
        cmocka_unit_test(a_slow_reader_holds_up_nobody_else),
        cmocka_unit_test(who_does_not_read_is_let_go),
        cmocka_unit_test(many_large_requests_share_their_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
