/* Who may use the server. */
#include "server/access.h"
#include "server/client.h"

#include <string.h>

/* ---- the rules ---- */

static const char *const hosts[] = {"box.local"};
static const char *const origins[] = {"https://app.example"};
static const access_rules open_rules = {.hosts = hosts, .n_hosts = 1};

static void hosts_are_names_of_this_machine(void **state)
{
    (void)state;
    static const char *const good[] = {"localhost",      "LocalHost:80", "127.0.0.1:8080",
                                       "192.168.1.7:1",  "[::1]",        "[::1]:8080",
                                       "box.local:8080", "BOX.local",    "10.0.0.1",
                                       "[0:0::1]:65535", "[FE80::1]"};
    static const char *const bad[] = {"",
                                      "evil.example",
                                      "evil.example:8080",
                                      "localhost.",
                                      "localhost.evil.ex",
                                      "127.0.0.1.evil.ex",
                                      ":80",
                                      "localhost:",
                                      "localhost:80x",
                                      "[::1",
                                      "[::1]x",
                                      "[localhost]",
                                      "[127.0.0.1]",
                                      "[box.local]:8080",
                                      "::1",
                                      "localhost:123456",
                                      "127.0.0.1:80:80"};
    api_error e;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (!access_check_host(&open_rules, good[i], &e)) fail_msg("'%s' is refused", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (access_check_host(&open_rules, bad[i], &e)) fail_msg("'%s' is accepted", bad[i]);
    assert_false(access_check_host(&open_rules, NULL, &e));
}

static void origins_are_this_server_or_configured(void **state)
{
    (void)state;
    access_rules rules = {.origins = origins, .n_origins = 1};
    api_error e;
    assert_true(access_check_origin(&rules, NULL, "localhost:1", &e));
    assert_true(access_check_origin(&rules, "http://localhost:1", "localhost:1", &e));
    assert_true(access_check_origin(&rules, "https://app.example", "localhost:1", &e));
    assert_false(access_check_origin(&rules, "http://localhost:2", "localhost:1", &e));
    assert_false(access_check_origin(&rules, "null", "localhost:1", &e));
    assert_false(access_check_origin(&rules, "https://app.example.evil", "localhost:1", &e));
    assert_int_equal(e.status, 403);
}

static void keys_are_compared_whole(void **state)
{
    (void)state;
    access_rules rules = {.keys = "secret\nother"};
    api_error e;
    assert_true(access_check_key(&open_rules, NULL, NULL, &e));
    assert_true(access_check_key(&rules, "Bearer secret", NULL, &e));
    assert_true(access_check_key(&rules, "bearer  secret", NULL, &e));
    assert_true(access_check_key(&rules, NULL, "secret", &e));
    static const char *const bad[] = {"",
                                      "Bearer",
                                      "Bearer ",
                                      "Bearer secre",
                                      "secret",
                                      "Bearer secrets",
                                      "Bearer secretsecret",
                                      "Basic secret",
                                      "Bearer secret "};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (access_check_key(&rules, bad[i], NULL, &e)) fail_msg("'%s' is accepted", bad[i]);
        assert_int_equal(e.status, 401);
    }
}

static void loopback_is_known(void **state)
{
    (void)state;
    assert_true(access_is_loopback("127.0.0.1"));
    assert_true(access_is_loopback("127.9.9.9"));
    assert_true(access_is_loopback("::1"));
    assert_true(access_is_loopback("localhost"));
    assert_false(access_is_loopback("0.0.0.0"));
    assert_false(access_is_loopback("::"));
    assert_false(access_is_loopback("192.168.0.1"));
    assert_false(access_is_loopback("example.org"));
}

/* ---- over HTTP ---- */

static void expect(const server *s, const request_t *r, long status)
{
    answer_t a = client_send(s, r);
    if (a.status != status)
        fail_msg("%s: %ld instead of %ld: %s", r->path, a.status, status, a.body);
    answer_clear(&a);
}

static void a_server_with_a_key_asks_for_it(void **state)
{
    (void)state;
    server_options options = client_options();
    options.api_key = "secret";
    server *s = client_start(&options);
    expect(s, &(request_t){.path = "/health"}, 200);
    expect(s, &(request_t){.path = "/v1/models"}, 401);
    expect(s, &(request_t){.path = "/metrics"}, 401);
    expect(s, &(request_t){.path = "/v1/chat/completions", .body = "{}"}, 401);
    expect(s, &(request_t){.path = "/v1/models", .headers = {"Authorization: Bearer wrong"}}, 401);
    expect(s, &(request_t){.path = "/v1/models", .headers = {"Authorization: Bearer secret"}}, 200);
    expect(s, &(request_t){.path = "/v1/models", .headers = {"x-api-key: secret"}}, 200);
    expect(s, &(request_t){.path = "/nothing"}, 404);
    client_stop(s);
}

static void pages_of_others_are_kept_out(void **state)
{
    (void)state;
    server_options options = client_options();
    options.origins = origins, options.n_origins = 1;
    options.hosts = hosts, options.n_hosts = 1;
    server *s = client_start(&options);
    expect(s, &(request_t){.path = "/v1/models", .headers = {"Host: evil.example"}}, 403);
    expect(s, &(request_t){.path = "/health", .headers = {"Host: evil.example"}}, 403);
    expect(s, &(request_t){.path = "/v1/models", .headers = {"Host: box.local"}}, 200);
    expect(s, &(request_t){.path = "/v1/models", .headers = {"Origin: https://evil.example"}}, 403);
    answer_t a = client_send(
        s, &(request_t){.path = "/v1/models", .headers = {"Origin: https://app.example"}});
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.headers, "Access-Control-Allow-Origin: https://app.example"));
    answer_clear(&a);
    a = client_send(s, &(request_t){.path = "/v1/models"});
    assert_null(strstr(a.headers, "Access-Control"));
    answer_clear(&a);
    a = client_send(s, &(request_t){.path = "/v1/chat/completions",
                                    .method = "OPTIONS",
                                    .headers = {"Origin: https://app.example",
                                                "Access-Control-Request-Method: POST"}});
    assert_int_equal(a.status, 204);
    assert_non_null(strstr(a.headers, "Access-Control-Allow-Headers: Authorization"));
    answer_clear(&a);
    /* Whatever headers the client in the page sends. */
    a = client_send(
        s, &(request_t){
               .path = "/v1/chat/completions",
               .method = "OPTIONS",
               .headers = {"Origin: https://app.example", "Access-Control-Request-Method: POST",
                           "Access-Control-Request-Headers: content-type,x-stainless-os"}});
    assert_non_null(strstr(a.headers, "Access-Control-Allow-Headers: content-type,x-stainless-os"));
    answer_clear(&a);
    expect(s,
           &(request_t){.path = "/v1/chat/completions",
                        .method = "OPTIONS",
                        .headers = {"Origin: https://evil.example"}},
           403);
    client_stop(s);
}

static void other_machines_need_a_key(void **state)
{
    (void)state;
    server_options options = client_options();
    calla_error err;
    server *s;
    options.host = "0.0.0.0";
    assert_int_equal(server_start(&options, &s, &err), CALLA_ERR_INPUT);
    assert_non_null(strstr(err.message, "--api-key-file"));
    options.api_key = "";
    assert_int_equal(server_start(&options, &s, &err), CALLA_ERR_INPUT);
    options.api_key = "secret";
    s = client_start(&options);
    client_stop(s);
    options.api_key = NULL;
    options.insecure = true;
    s = client_start(&options);
    expect(s, &(request_t){.path = "/v1/models"}, 200);
    client_stop(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hosts_are_names_of_this_machine),
        cmocka_unit_test(origins_are_this_server_or_configured),
        cmocka_unit_test(keys_are_compared_whole),
        cmocka_unit_test(loopback_is_known),
        cmocka_unit_test(a_server_with_a_key_asks_for_it),
        cmocka_unit_test(pages_of_others_are_kept_out),
        cmocka_unit_test(other_machines_need_a_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
