/* Requests to a cloud that behaves, and to one that does not. */
#include "base/clock.h"
#include "hybrid/fake_cloud.h"
#include "hybrid/upstream.h"
#include "support/files.h"
#include "support/support.h"

#include <dlfcn.h>
#include <netdb.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char key[] = "sk-test-0123456789abcdef";
static fake_cloud *cloud;
enum { PIECE_BYTES = 16 << 10 }; /* of a body, at most, as libcurl hands it over */

static int start_cloud(void **state)
{
    (void)state;
    cloud = fake_cloud_start();
    return cloud ? 0 : -1;
}

static int stop_cloud(void **state)
{
    (void)state;
    fake_cloud_stop(cloud);
    return 0;
}

static upstream *open_at(const char *url)
{
    upstream *u;
    calla_error err;
    upstream_config config = {.url = url, .key = key, .n_calls = 4};
    assert_ok(upstream_open(&config, &u, &err), &err);
    return u;
}

static const upstream_limits limits = {.connect_ms = PATIENCE_S * 1000,
                                       .first_byte_ms = PATIENCE_S * 1000,
                                       .idle_ms = PATIENCE_S * 1000,
                                       .total_ms = PATIENCE_S * 1000,
                                       .n_retries = 2,
                                       .response_bytes = 1 << 20};

/* Takes until the call is over; gives what came. */
static char *finish(upstream_call *call, upstream_status *status)
{
    strbuf out = {0};
    for (;;) {
        upstream_take(call, &out, status);
        if (status->phase == UPSTREAM_DONE || status->phase == UPSTREAM_FAILED) break;
        struct pollfd p = {.fd = upstream_call_fd(call), .events = POLLIN};
        assert_int_equal(poll(&p, 1, PATIENCE_S * 1000), 1);
    }
    upstream_end(call, status);
    strbuf_append(&out, "", 0);
    return out.data;
}

static char *post(upstream *u, const upstream_limits *l, const char *body, upstream_status *status)
{
    upstream_call *call;
    calla_error err;
    assert_ok(upstream_begin(u, "/chat/completions", body, strlen(body), l, &call, &err), &err);
    return finish(call, status);
}

/* ---- what goes well ---- */

static void test_answer(void **state)
{
    (void)state;
    upstream_status s;
    upstream *u = open_at(fake_cloud_url(cloud));
    for (int i = 0; i < 3; i++) {
        char *answer = post(u, &limits, "{\"a\": 1}", &s);
        assert_int_equal(s.phase, UPSTREAM_DONE);
        assert_int_equal(s.http_status, 200);
        assert_int_equal(s.n_tries, 1);
        assert_false(s.is_stream);
        assert_true(s.bytes_sent > 8 && s.bytes_received > (int64_t)strlen(answer));
        assert_non_null(strstr(answer, "From the cloud."));
        free(answer);
    }
    char *received = fake_cloud_received(cloud);
    assert_non_null(strstr(received, "POST /v1/chat/completions\n"));
    assert_non_null(strstr(received, "Authorization: Bearer sk-test-0123456789abcdef\n"));
    assert_non_null(strstr(received, "\n{\"a\": 1}\n"));
    free(received);
    assert_int_equal(fake_cloud_n_connections(cloud), 1); /* used again */
    assert_true(upstream_holds_key(u, "xsk-test-0123456789abcdefx", 26));
    assert_false(upstream_holds_key(u, "sk-test", 7));
    upstream_close(u);
}

static void test_slash_at_the_end(void **state)
{
    (void)state;
    char url[80];
    upstream_status s;
    snprintf(url, sizeof url, "%s/", fake_cloud_url(cloud));
    upstream *u = open_at(url);
    free(post(u, &limits, "{}", &s));
    char *received = fake_cloud_received(cloud);
    assert_non_null(strstr(received, "POST /v1/chat/completions\n"));
    free(received);
    upstream_close(u);
}

/* Pieces are there before the end is. */
static void test_stream(void **state)
{
    (void)state;
    fake_answer a = {.type = "text/event-stream; charset=utf-8",
                     .body = "data: 1\n\ndata: 2\n\n",
                     .hold_after = 9};
    fake_cloud_script(cloud, &a, 1);
    upstream *u = open_at(fake_cloud_url(cloud));
    upstream_call *call;
    upstream_status s = {0};
    calla_error err;
    strbuf out = {0};
    assert_ok(upstream_begin(u, "/x", "{}", 2, &limits, &call, &err), &err);
    while (out.n == 0) {
        struct pollfd p = {.fd = upstream_call_fd(call), .events = POLLIN};
        assert_int_equal(poll(&p, 1, PATIENCE_S * 1000), 1);
        upstream_take(call, &out, &s);
    }
    assert_int_equal(s.phase, UPSTREAM_ANSWERING);
    assert_true(s.is_stream);
    assert_string_equal(out.data, "data: 1\n\n");
    fake_cloud_release(cloud);
    char *rest = finish(call, &s);
    assert_string_equal(rest, "data: 2\n\n");
    free(rest);
    strbuf_free(&out);
    upstream_close(u);
}

/* Nobody takes: no more than a bounded part is held, and all of it arrives in the end. */
static void test_slow_reader(void **state)
{
    (void)state;
    static char block[1 << 16];
    memset(block, 'x', sizeof block - 1);
    fake_answer a = {.type = "text/event-stream", .body = block, .n_repeats = 100};
    fake_cloud_script(cloud, &a, 1);
    upstream *u = open_at(fake_cloud_url(cloud));
    upstream_limits large = limits;
    large.response_bytes = 1 << 30;
    upstream_call *call;
    upstream_status s = {0};
    calla_error err;
    struct timespec a_while = {.tv_nsec = 300000000}; /* in which too much might come */
    assert_ok(upstream_begin(u, "/x", "{}", 2, &large, &call, &err), &err);
    struct pollfd p = {.fd = upstream_call_fd(call), .events = POLLIN};
    assert_int_equal(poll(&p, 1, PATIENCE_S * 1000), 1);
    nanosleep(&a_while, NULL);
    strbuf out = {0};
    upstream_take(call, &out, &s);
    assert_int_equal(s.phase, UPSTREAM_ANSWERING);
    assert_true(out.n <= UPSTREAM_HELD_BYTES + PIECE_BYTES);
    size_t n = out.n;
    strbuf_free(&out);
    char *rest = finish(call, &s);
    assert_int_equal(s.phase, UPSTREAM_DONE);
    assert_int_equal(n + strlen(rest), 100 * (sizeof block - 1));
    free(rest);
    upstream_close(u);
}

/* ---- tries ---- */

static void test_tries_again(void **state)
{
    (void)state;
    static const int statuses[] = {429, 500, 502, 503, 504};
    upstream *u = open_at(fake_cloud_url(cloud));
    for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++) {
        fake_answer a[] = {{.status = statuses[i], .body = "{\"error\": 1}"}, {0}};
        upstream_status s;
        fake_cloud_script(cloud, a, 2);
        fake_cloud_forget(cloud);
        char *answer = post(u, &limits, "{}", &s);
        assert_int_equal(s.phase, UPSTREAM_DONE);
        assert_int_equal(s.n_tries, 2);
        assert_int_equal(fake_cloud_n_requests(cloud), 2);
        assert_null(strstr(answer, "error")); /* of the failed try nothing is left */
        free(answer);
    }
    upstream_close(u);
}

static void test_gives_up(void **state)
{
    (void)state;
    fake_answer a = {.status = 503, .body = "{\"error\": \"busy\"}"};
    upstream_status s;
    fake_cloud_script(cloud, &a, 1);
    upstream *u = open_at(fake_cloud_url(cloud));
    char *answer = post(u, &limits, "{}", &s);
    assert_int_equal(s.phase, UPSTREAM_FAILED);
    assert_int_equal(s.failure, UPSTREAM_REFUSED);
    assert_int_equal(s.http_status, 503);
    assert_int_equal(s.n_tries, 3);
    assert_string_equal(answer, "{\"error\": \"busy\"}");
    free(answer);
    upstream_close(u);
}

static void test_does_not_try_again(void **state)
{
    (void)state;
    static const int statuses[] = {400, 401, 403, 404, 413, 422, 501};
    upstream *u = open_at(fake_cloud_url(cloud));
    for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++) {
        fake_answer a = {.status = statuses[i], .body = "{}"};
        upstream_status s;
        fake_cloud_script(cloud, &a, 1);
        free(post(u, &limits, "{}", &s));
        assert_int_equal(s.failure, UPSTREAM_REFUSED);
        assert_int_equal(s.http_status, statuses[i]);
        assert_int_equal(s.n_tries, 1);
    }
    upstream_close(u);
}

static void test_obeys_retry_after(void **state)
{
    (void)state;
    fake_answer a[] = {{.status = 429, .body = "{}", .header = "Retry-After", .header_value = "1"},
                       {0}};
    upstream_status s;
    fake_cloud_script(cloud, a, 2);
    upstream *u = open_at(fake_cloud_url(cloud));
    int64_t start_ns = clock_ns();
    free(post(u, &limits, "{}", &s));
    assert_int_equal(s.phase, UPSTREAM_DONE);
    assert_true(clock_ns() - start_ns >= 1000000000); /* it may not come before */
    /* Longer than may be waited: told to the caller. */
    fake_answer far = {.status = 429, .body = "{}", .header = "Retry-After", .header_value = "120"};
    fake_cloud_script(cloud, &far, 1);
    free(post(u, &limits, "{}", &s));
    assert_int_equal(s.failure, UPSTREAM_REFUSED);
    assert_int_equal(s.n_tries, 1);
    assert_int_equal(s.retry_after_s, 120);
    upstream_close(u);
}

static void test_nobody_there(void **state)
{
    (void)state;
    upstream_status s;
    upstream *u = open_at("http://127.0.0.1:1/v1");
    free(post(u, &limits, "{}", &s));
    assert_int_equal(s.failure, UPSTREAM_UNREACHED);
    assert_int_equal(s.n_tries, 3);
    assert_int_equal(s.http_status, 0);
    upstream_close(u);
}

/* Broken before anything came: tried again. Broken after: not, since somebody has a part. */
static void test_cut(void **state)
{
    (void)state;
    upstream_status s;
    fake_answer a = {
        .type = "text/event-stream", .body = "data: 1\n\ndata: 2\n\n", .cut_after = 12};
    fake_cloud_script(cloud, &a, 1);
    fake_cloud_forget(cloud);
    upstream *u = open_at(fake_cloud_url(cloud));
    char *answer = post(u, &limits, "{}", &s);
    assert_int_equal(s.phase, UPSTREAM_FAILED);
    assert_int_equal(s.failure, UPSTREAM_UNREACHED);
    assert_string_equal(answer, "data: 1\n\ndat");
    assert_int_equal(fake_cloud_n_requests(cloud), 1);
    free(answer);
    upstream_close(u);
}

/* ---- limits ---- */

static void test_slow(void **state)
{
    (void)state;
    upstream_status s;
    fake_answer late = {.held = true}, stops = {.type = "text/event-stream",
                                                .body = "data: 1\n\ndata: 2\n\n",
                                                .hold_after = 9};
    upstream_limits l = limits;
    l.first_byte_ms = 200;
    upstream *u = open_at(fake_cloud_url(cloud));
    fake_cloud_script(cloud, &late, 1);
    fake_cloud_forget(cloud);
    free(post(u, &l, "{}", &s));
    assert_int_equal(s.failure, UPSTREAM_SLOW);
    assert_int_equal(s.n_tries, 1);
    fake_cloud_script(cloud, &stops, 1);
    l = limits;
    l.idle_ms = 1000;
    char *answer = post(u, &l, "{}", &s);
    assert_int_equal(s.failure, UPSTREAM_SLOW);
    assert_string_equal(answer, "data: 1\n\n");
    free(answer);
    l = limits;
    l.total_ms = 200;
    free(post(u, &l, "{}", &s));
    assert_int_equal(s.failure, UPSTREAM_SLOW);
    upstream_close(u);
}

static void test_too_large(void **state)
{
    (void)state;
    upstream_status s;
    fake_answer a = {.body = "0123456789abcdef", .n_repeats = 1 << 20};
    fake_cloud_script(cloud, &a, 1);
    upstream *u = open_at(fake_cloud_url(cloud));
    char *answer = post(u, &limits, "{}", &s);
    assert_int_equal(s.failure, UPSTREAM_TOO_LARGE);
    assert_true(strlen(answer) <= (size_t)limits.response_bytes);
    free(answer);
    a.status = 400; /* of an error no more is kept than is of use */
    fake_cloud_script(cloud, &a, 1);
    answer = post(u, &limits, "{}", &s);
    assert_true(strlen(answer) <= UPSTREAM_ERROR_BYTES);
    free(answer);
    upstream_close(u);
}

static void test_redirect(void **state)
{
    (void)state;
    static const int statuses[] = {301, 302, 303, 307, 308};
    fake_cloud *elsewhere = fake_cloud_start();
    upstream *u = open_at(fake_cloud_url(cloud));
    for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++) {
        upstream_status s;
        fake_answer a = {.status = statuses[i],
                         .body = "{}",
                         .header = "Location",
                         .header_value = fake_cloud_url(elsewhere)};
        fake_cloud_script(cloud, &a, 1);
        free(post(u, &limits, "{}", &s));
        assert_int_equal(s.failure, UPSTREAM_REDIRECTED);
        assert_int_equal(s.n_tries, 1);
    }
    assert_int_equal(fake_cloud_n_connections(elsewhere), 0);
    upstream_close(u);
    fake_cloud_stop(elsewhere);
}

static void test_too_many(void **state)
{
    (void)state;
    fake_answer a = {.held = true};
    upstream_call *calls[4], *more;
    upstream_status s;
    calla_error err;
    fake_cloud_script(cloud, &a, 1);
    upstream *u = open_at(fake_cloud_url(cloud));
    for (int i = 0; i < 4; i++)
        assert_ok(upstream_begin(u, "/x", "{}", 2, &limits, &calls[i], &err), &err);
    assert_int_equal(upstream_begin(u, "/x", "{}", 2, &limits, &more, &err), CALLA_ERR_UNSUPPORTED);
    fake_cloud_release(cloud);
    for (int i = 0; i < 4; i++) free(finish(calls[i], &s));
    upstream_close(u);
}

/* A call that is ended in the middle does not wait for the cloud; nor does a server that stops. */
static void test_given_up(void **state)
{
    (void)state;
    fake_answer a = {.held = true};
    upstream_call *call;
    upstream_status s;
    calla_error err;
    fake_cloud_script(cloud, &a, 1);
    upstream *u = open_at(fake_cloud_url(cloud));
    assert_ok(upstream_begin(u, "/x", "{}", 2, &limits, &call, &err), &err);
    upstream_end(call, &s);
    assert_int_equal(s.failure, UPSTREAM_STOPPED);
    assert_ok(upstream_begin(u, "/x", "{}", 2, &limits, &call, &err), &err);
    upstream_stop(u, clock_ns());
    free(finish(call, &s));
    assert_int_equal(s.failure, UPSTREAM_STOPPED);
    assert_int_equal(upstream_begin(u, "/x", "{}", 2, &limits, &call, &err), CALLA_ERR_CANCELLED);
    upstream_close(u);
}

/* Names in the test's own hands: libcurl, a shared library, finds this one first. A name of
 * "silent" is as one whose server never answers. */
static atomic_bool let_names_go;
static atomic_int n_stuck;

__attribute__((visibility("default"))) int getaddrinfo(const char *name, const char *service,
                                                       const struct addrinfo *hints,
                                                       struct addrinfo **result)
{
    if (strcmp(name, "silent.test") == 0) {
        const struct timespec a_while = {.tv_nsec = 5000000};
        atomic_fetch_add(&n_stuck, 1);
        while (!atomic_load(&let_names_go)) nanosleep(&a_while, NULL);
        atomic_fetch_sub(&n_stuck, 1);
        return EAI_AGAIN;
    }
    static int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    return real(name, service, hints, result);
}

/* A name server that is silent holds up neither what is given up on, by a time or by the caller,
 * nor the end: no name is found before this test is over. */
static void test_silent_names(void **state)
{
    (void)state;
    upstream_call *call;
    upstream_status s;
    calla_error err;
    upstream_limits l = limits;
    l.connect_ms = 50;
    l.n_retries = 1;
    atomic_store(&let_names_go, false);
    upstream *u = open_at("https://silent.test/v1");
    free(post(u, &l, "{}", &s));
    assert_int_equal(s.failure, UPSTREAM_SLOW);
    assert_int_equal(s.n_tries, 2);
    l.connect_ms = 600000;
    assert_ok(upstream_begin(u, "/x", "{}", 2, &l, &call, &err), &err);
    while (atomic_load(&n_stuck) == 0) sched_yield();
    upstream_end(call, &s);
    assert_int_equal(s.failure, UPSTREAM_STOPPED);
    assert_ok(upstream_begin(u, "/x", "{}", 2, &l, &call, &err), &err);
    upstream_stop(u, clock_ns());
    upstream_end(call, &s);
    upstream_close(u);
    assert_true(atomic_load(&n_stuck) > 0);
    atomic_store(&let_names_go, true);
    while (atomic_load(&n_stuck) > 0) sched_yield();
}

/* ---- what is refused ---- */

static void test_addresses(void **state)
{
    (void)state;
    static const char *const good[] = {"https://api.example.com/v1", "https://example.com:8443",
                                       "http://127.0.0.1:8080/v1",   "http://localhost/v1",
                                       "http://[::1]:8080/v1",       "http://127.1.2.3"};
    static const char *const bad[] = {"http://example.com/v1",
                                      "http://10.0.0.1/v1",
                                      "http://127.0.0.1.example.com/v1",
                                      "http://[2001:db8::1]/v1",
                                      "ftp://example.com",
                                      "file:///etc/passwd",
                                      "https://user:sk-secret@example.com/v1",
                                      "https://example.com/v1?key=sk-secret",
                                      "https://example.com/v1#sk-secret",
                                      "example.com/v1",
                                      "",
                                      "https://"};
    calla_error err;
    upstream *u;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) upstream_close(open_at(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        upstream_config config = {.url = bad[i], .n_calls = 1};
        if (upstream_open(&config, &u, &err) != CALLA_ERR_INPUT) fail_msg("%s is taken", bad[i]);
        assert_null(strstr(err.message, "sk-secret"));
    }
    static const char *const bad_keys[] = {"", "sk-secret\r\nX-Other: 1", "sk-secret ",
                                           "sk-sécret"};
    for (size_t i = 0; i < sizeof bad_keys / sizeof *bad_keys; i++) {
        upstream_config config = {.url = good[0], .key = bad_keys[i], .n_calls = 1};
        assert_int_equal(upstream_open(&config, &u, &err), CALLA_ERR_INPUT);
        assert_null(strstr(err.message, "sk-s"));
    }
    u = open_at("https://api.example.com/v1/");
    assert_string_equal(upstream_origin(u), "https://api.example.com");
    upstream_close(u);
}

/* A certificate that nobody vouches for: nothing is sent. With it among those trusted: it is. */
static void test_tls(void **state)
{
    (void)state;
    char *certificate = read_test_file(source_path("tests/hybrid/tls/certificate.pem"), NULL);
    char *private = read_test_file(source_path("tests/hybrid/tls/key.pem"), NULL);
    fake_cloud *f = fake_cloud_start_tls(certificate, private);
    upstream_status s;
    calla_error err;
    assert_non_null(f);
    upstream *u = open_at(fake_cloud_url(f));
    free(post(u, &limits, "{}", &s));
    assert_int_equal(s.failure, UPSTREAM_UNREACHED);
    assert_int_equal(fake_cloud_n_requests(f), 0);
    upstream_close(u);
    upstream_config config = {.url = fake_cloud_url(f),
                              .ca_file = CALLA_SOURCE_DIR "/tests/hybrid/tls/certificate.pem",
                              .n_calls = 1};
    assert_ok(upstream_open(&config, &u, &err), &err);
    free(post(u, &limits, "{}", &s));
    assert_int_equal(s.phase, UPSTREAM_DONE);
    assert_int_equal(fake_cloud_n_requests(f), 1);
    upstream_close(u);
    fake_cloud_stop(f);
    free(certificate);
    free(private);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, start_cloud, stop_cloud)
    const struct CMUnitTest tests[] = {
        TEST(test_answer),
        TEST(test_slash_at_the_end),
        TEST(test_stream),
        TEST(test_slow_reader),
        TEST(test_tries_again),
        TEST(test_gives_up),
        TEST(test_does_not_try_again),
        TEST(test_obeys_retry_after),
        TEST(test_nobody_there),
        TEST(test_cut),
        TEST(test_slow),
        TEST(test_too_large),
        TEST(test_redirect),
        TEST(test_too_many),
        TEST(test_given_up),
        TEST(test_silent_names),
        TEST(test_addresses),
        TEST(test_tls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
