/* calla serve with a cloud beside its model: the routes as a client sees them. The cloud is a
 * second server of ours, or one that misbehaves. */
#include "hybrid/fake_cloud.h"
#include "server/client.h"
#include "support/files.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CARD  "4111 1111 1111 1111"
#define EMAIL "jane.doe@corp-mail.com"

static const char policy_text[] =
    "{\"categories\": {\"finance\": \"ask\", \"personal\": \"redact\"}, " FAKE_CLOUD_POLICY "}";

static char audit_path[600], policy_path[600];
static const char *dir;

static server *start(const char *url, const char *rules, const char *keys)
{
    dir = temporary_dir();
    snprintf(audit_path, sizeof audit_path, "%s/audit.db", dir);
    snprintf(policy_path, sizeof policy_path, "%s/policy.json", dir);
    put_test_file(dir, "policy.json", rules);
    setenv("TEST_CLOUD_KEY", "sk-cloud-key-5f2c9a", 1);
    hybrid_options cloud = {.url = url,
                            .model = "tiny",
                            .key_env = "TEST_CLOUD_KEY",
                            .policy = policy_path,
                            .audit = audit_path};
    server_options o = client_options();
    o.hybrid = &cloud;
    o.api_key = keys;
    o.keep_alive_ms = 100;
    return client_start(&o);
}

static json_t *ask(const char *model, const char *question)
{
    json_t *body = chat(question);
    json_object_set_new(body, "model", json_string(model));
    json_object_set_new(body, "max_tokens", json_integer(12));
    json_object_set_new(body, "enable_thinking", json_false());
    return body;
}

static bool has_header(const answer_t *a, const char *line)
{
    return strstr(a->headers, line) != NULL;
}

static void expect_made(const answer_t *a, const char *route)
{
    char line[64];
    snprintf(line, sizeof line, "X-Calla-Route: %s\r\n", route);
    assert_string_equal(text_at(a->json, "calla.route"), route);
    assert_true(json_array_size(json_at(a->json, "calla.reasons")) > 0);
    assert_true(has_header(a, line));
}

/* ---- two servers ---- */

static void test_two_servers(void **state)
{
    (void)state;
    char url[64];
    server_options o = client_options();
    o.api_key = "sk-cloud-key-5f2c9a"; /* what the other one sends */
    server *far = client_start(&o);
    snprintf(url, sizeof url, "http://127.0.0.1:%d/v1", server_port(far));
    server *s = start(url, policy_text, NULL);

    answer_t a = client_get(s, 200, "/v1/models");
    assert_string_equal(text_at(a.json, "data.1.id"), "cloud");
    assert_string_equal(text_at(a.json, "data.2.id"), "hybrid");
    answer_clear(&a);
    a = client_get(s, 200, "/v1/models/hybrid");
    answer_clear(&a);

    answer_t local =
        client_post_json(s, 200, "/v1/chat/completions", ask("tiny", "What is a river?"));
    assert_null(json_object_get(local.json, "calla"));
    assert_true(strlen(content_of(&local)) > 0);
    static const char *const names[] = {"cloud", "hybrid"};
    for (int i = 0; i < 2; i++) {
        a = client_post_json(s, 200, "/v1/chat/completions", ask(names[i], "What is a river?"));
        expect_made(&a, "cloud");
        assert_string_equal(content_of(&a), content_of(&local)); /* the same model, over there */
        answer_clear(&a);
        /* Not checked there, so not sent. */
        a = client_post(s, 400, "/v1/responses", "{s:s, s:s}", "model", names[i], "input", "Hi");
        assert_string_equal(text_at(a.json, "error.param"), "model");
        assert_non_null(strstr(text_at(a.json, "error.message"), "/v1/chat/completions only"));
        answer_clear(&a);
    }
    json_t *body = ask("hybrid", "What is a river?");
    json_object_set_new(body, "stream", json_true());
    json_object_set_new(body, "stream_options", json_pack("{s:b}", "include_usage", 1));
    a = client_post_json(s, 200, "/v1/chat/completions", body);
    assert_true(has_header(&a, "X-Calla-Route: cloud\r\n"));
    json_t *events = client_events(&a);
    size_t n = json_array_size(events);
    assert_string_equal(text_at(events, "0.calla.route"), "cloud");
    assert_null(json_at(events, "1.calla"));
    assert_string_equal(json_string_value(json_array_get(events, n - 1)), "[DONE]");
    char *text = joined(events, 0, "content");
    assert_string_equal(text, content_of(&local));
    free(text);
    json_decref(events);
    answer_clear(&a);
    answer_clear(&local);

    /* An error of the cloud's own has its shape. */
    body = ask("cloud", "hello");
    json_object_set_new(body, "temperature", json_integer(9));
    a = client_post_json(s, 400, "/v1/chat/completions", body);
    assert_string_equal(text_at(a.json, "error.param"), "temperature");
    answer_clear(&a);
    client_stop(s);
    client_stop(far);
}

/* ---- what is sensitive ---- */

static void test_consent(void **state)
{
    (void)state;
    fake_cloud *f = fake_cloud_start();
    server *s = start(fake_cloud_url(f), policy_text, NULL);
    char header[128];
    answer_t a = client_post_json(s, 409, "/v1/chat/completions", ask("hybrid", "Charge " CARD));
    assert_string_equal(text_at(a.json, "error.code"), "consent_required");
    assert_string_equal(text_at(a.json, "error.findings.0.category"), "payment_card");
    assert_string_equal(text_at(a.json, "error.param"), "messages[0].content");
    assert_string_equal(text_at(a.json, "calla.route"), "none");
    assert_null(strstr(a.body, CARD));
    snprintf(header, sizeof header, "%s: %s", text_at(a.json, "error.consent.header"),
             text_at(a.json, "error.consent.token"));
    assert_true(int_at(a.json, "error.consent.expires_at") > time(NULL));
    answer_clear(&a);
    assert_int_equal(fake_cloud_n_connections(f), 0);
    json_t *body = ask("hybrid", "Charge " CARD);
    char *text = json_dumps(body, 0);
    json_decref(body);
    for (int i = 0; i < 2; i++) {
        a = client_send(
            s, &(request_t){.path = "/v1/chat/completions", .body = text, .headers = {header}});
        assert_int_equal(a.status, i == 0 ? 200 : 409); /* good once */
        if (i == 0) expect_made(&a, "cloud");
        answer_clear(&a);
    }
    free(text);
    text = fake_cloud_received(f);
    assert_null(strstr(text, "Calla-Consent"));
    free(text);
    client_stop(s);
    fake_cloud_stop(f);
}

static void test_kept(void **state)
{
    (void)state;
    fake_cloud *f = fake_cloud_start();
    server *s = start(fake_cloud_url(f), "{}", NULL);
    answer_t a = client_post_json(s, 200, "/v1/chat/completions", ask("hybrid", "Charge " CARD));
    expect_made(&a, "local");
    assert_string_equal(text_at(a.json, "model"), "tiny");
    answer_clear(&a);
    a = client_post_json(s, 403, "/v1/chat/completions", ask("cloud", "Charge " CARD));
    assert_string_equal(text_at(a.json, "error.code"), "kept_local");
    answer_clear(&a);
    json_t *body = ask("hybrid", "Charge " CARD);
    json_object_set_new(body, "stream", json_true());
    a = client_post_json(s, 200, "/v1/chat/completions", body);
    json_t *events = client_events(&a);
    assert_string_equal(text_at(events, "0.calla.route"), "local");
    assert_null(json_at(events, "1.calla"));
    json_decref(events);
    answer_clear(&a);
    assert_int_equal(fake_cloud_n_connections(f), 0);
    client_stop(s);
    fake_cloud_stop(f);
}

static char *echo_stream(void *user, const char *body, const char **type)
{
    json_t *request = json_loads(body, 0, NULL);
    const char *text = text_at(request, "messages.0.content");
    char *out = NULL;
    (void)user;
    *type = "text/event-stream";
    size_t half = strlen(text) / 2;
    assert_true(
        asprintf(&out,
                 "data: {\"choices\": [{\"index\": 0, \"delta\": {\"content\": "
                 "\"%.*s\"}}]}\n\ndata: {\"choices\": [{\"index\": 0, \"delta\": "
                 "{\"content\": \"%s\"}, \"finish_reason\": \"stop\"}]}\n\ndata: [DONE]\n\n",
                 (int)half, text, text + half) > 0);
    json_decref(request);
    return out;
}

static void test_redacted(void **state)
{
    (void)state;
    fake_cloud *f = fake_cloud_start();
    fake_cloud_reply(f, echo_stream, NULL);
    server *s = start(fake_cloud_url(f), policy_text, NULL);
    json_t *body = ask("hybrid", "Write to " EMAIL);
    json_object_set_new(body, "stream", json_true());
    answer_t a = client_post_json(s, 200, "/v1/chat/completions", body);
    json_t *events = client_events(&a);
    char *text = joined(events, 0, "content"), *sent = fake_cloud_received(f);
    assert_string_equal(text, "Write to " EMAIL);
    assert_null(strstr(sent, "jane"));
    assert_non_null(strstr(sent, "Write to [EMAIL_1]"));
    free(text);
    free(sent);
    json_decref(events);
    answer_clear(&a);
    client_stop(s);
    fake_cloud_stop(f);
}

/* The model in models/tiny judges as it can; what matters: it is asked, its answer has the form,
 * and without time for it the request stays. */
static void test_model_check(void **state)
{
    (void)state;
    fake_cloud *f = fake_cloud_start();
    server *s = start(fake_cloud_url(f),
                      "{\"model_check\": {\"when\": \"always\", \"timeout_ms\": 1}}", NULL);
    answer_t a =
        client_post_json(s, 200, "/v1/chat/completions", ask("hybrid", "What is a river?"));
    expect_made(&a, "local");
    assert_non_null(strstr(a.body, "the local model is not sure: keep_local"));
    answer_clear(&a);
    assert_int_equal(fake_cloud_n_requests(f), 0);
    client_stop(s);
    s = start(
        fake_cloud_url(f),
        "{\"categories\": {\"credentials\": \"allow\", \"government_id\": \"allow\", \"health\": "
        "\"allow\", \"finance\": \"allow\", \"personal\": \"allow\"}, \"model_check\": {\"when\": "
        "\"always\", \"timeout_ms\": 100000, \"on_unsure\": \"allow\"}}",
        NULL);
    a = client_post_json(s, 200, "/v1/chat/completions", ask("hybrid", "What is a river?"));
    expect_made(&a, "cloud");
    answer_clear(&a);
    assert_true(client_metric(s, "calla_generated_tokens_total") > 0); /* by the judgement alone */
    client_stop(s);
    fake_cloud_stop(f);
}

/* ---- clouds that are not well ---- */

static void test_falls_back(void **state)
{
    (void)state;
    fake_cloud *f = fake_cloud_start();
    fake_answer down = {.status = 503, .body = "{}"};
    fake_cloud_script(f, &down, 1);
    server *s = start(fake_cloud_url(f), policy_text, NULL);
    answer_t a =
        client_post_json(s, 200, "/v1/chat/completions", ask("hybrid", "What is a river?"));
    expect_made(&a, "local");
    assert_non_null(strstr(a.body, "answered here instead"));
    answer_clear(&a);
    a = client_post_json(s, 503, "/v1/chat/completions", ask("cloud", "What is a river?"));
    assert_string_equal(text_at(a.json, "error.code"), "cloud_error");
    assert_true(has_header(&a, "X-Calla-Route: cloud\r\n"));
    answer_clear(&a);
    assert_true(client_metric(s, "calla_cloud_fallbacks_total") == 1);
    client_stop(s);
    fake_cloud_stop(f);
    s = start("http://127.0.0.1:1/v1", policy_text, NULL);
    a = client_post_json(s, 200, "/v1/chat/completions", ask("hybrid", "What is a river?"));
    expect_made(&a, "local");
    answer_clear(&a);
    a = client_post_json(s, 502, "/v1/chat/completions", ask("cloud", "What is a river?"));
    assert_string_equal(text_at(a.json, "error.code"), "cloud_unreachable");
    answer_clear(&a);
    client_stop(s);
}

static void test_cut_stream(void **state)
{
    (void)state;
    fake_cloud *f = fake_cloud_start();
    fake_answer cut = {.type = "text/event-stream",
                       .body = "data: {\"choices\": [{\"index\": 0, \"delta\": {\"content\": "
                               "\"a\"}}]}\n\ndata: {\"choices\": []}\n\n",
                       .cut_after = 75};
    fake_cloud_script(f, &cut, 1);
    server *s = start(fake_cloud_url(f), policy_text, NULL);
    json_t *body = ask("hybrid", "hello");
    json_object_set_new(body, "stream", json_true());
    answer_t a = client_post_json(s, 200, "/v1/chat/completions", body);
    json_t *events = client_events(&a);
    assert_int_equal(json_array_size(events), 2);
    assert_string_equal(text_at(events, "0.choices.0.delta.content"), "a");
    assert_string_equal(text_at(events, "1.error.code"), "cloud_unreachable"); /* and no [DONE] */
    json_decref(events);
    answer_clear(&a);
    client_stop(s);
    fake_cloud_stop(f);
}

/* A stream that pauses is kept alive; a client that goes ends the call. */
static void test_slow_stream(void **state)
{
    (void)state;
    fake_cloud *f = fake_cloud_start();
    static const char chunk[] = "data: {\"choices\": []}\n\n";
    static const char failed[] = "calla_cloud_answers_total{result=\"failed\"}";
    fake_answer slow = {
        .type = "text/event-stream", .body = chunk, .n_repeats = 2, .hold_after = sizeof chunk - 1};
    fake_cloud_script(f, &slow, 1);
    server *s = start(fake_cloud_url(f), policy_text, NULL);
    json_t *body = ask("hybrid", "hello");
    json_object_set_new(body, "stream", json_true());
    char *text = json_dumps(body, 0);
    answer_t a = client_send(
        s, &(request_t){.path = "/v1/chat/completions", .body = text, .watch_for = ": keep-alive"});
    assert_true(a.broken);
    assert_non_null(strstr(a.body, ": keep-alive"));
    answer_clear(&a);
    free(text);
    json_decref(body);
    client_wait_for(s, failed, 1);
    client_stop(s);
    fake_cloud_stop(f);
}

/* ---- who asks ---- */

static void test_clients(void **state)
{
    (void)state;
    unsigned char digest[SHA256_BYTES];
    char hex[SHA256_HEX], rules[400];
    sha256_of("key-b", 5, digest);
    hex_write(digest, sizeof digest, hex);
    snprintf(rules, sizeof rules,
             "{\"categories\": {\"finance\": \"allow\"}, \"clients\": [{\"id\": \"b\", "
             "\"key_sha256\": \"%s\", \"categories\": {\"finance\": \"ask\"}}]}",
             hex);
    fake_cloud *f = fake_cloud_start();
    server *s = start(fake_cloud_url(f), rules, "key-a\nkey-b\n");
    json_t *body = ask("cloud", "Charge " CARD);
    char *text = json_dumps(body, 0);
    static const struct {
        const char *headers[3];
        long status;
    } cases[] = {
        {{"Authorization: Bearer key-a"}, 200},
        {{"x-api-key: key-a"}, 200},
        {{"Authorization: Bearer key-b"}, 409},
        {{"Authorization: Bearer other", "x-api-key: key-b"}, 409}, /* the one that lets it in */
        {{"Authorization: Bearer key-c"}, 401},
        {{"Authorization: Bearer "}, 401},
        {{NULL}, 401},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        request_t request = {.path = "/v1/chat/completions", .body = text};
        memcpy(request.headers, cases[i].headers, sizeof cases[i].headers);
        answer_t a = client_send(s, &request);
        if (a.status != cases[i].status) fail_msg("case %zu: %ld", i, a.status);
        answer_clear(&a);
    }
    char *sent = fake_cloud_received(f); /* the clients' keys are not the cloud's matter */
    assert_null(strstr(sent, "key-a"));
    assert_null(strstr(sent, "key-b"));
    free(sent);
    free(text);
    json_decref(body);
    client_stop(s);
    fake_cloud_stop(f);
}

static void test_reload(void **state)
{
    (void)state;
    calla_error err;
    fake_cloud *f = fake_cloud_start();
    server *s = start(fake_cloud_url(f), policy_text, NULL);
    put_test_file(dir, "policy.json", "{\"categories\": {\"finance\": \"never\"}}");
    assert_error(server_reload(s, &err), CALLA_ERR_INPUT, &err, "categories.finance");
    answer_t a = client_post_json(s, 409, "/v1/chat/completions", ask("cloud", "Charge " CARD));
    answer_clear(&a);
    put_test_file(dir, "policy.json", "{\"categories\": {\"finance\": \"allow\"}}");
    assert_ok(server_reload(s, &err), &err);
    a = client_post_json(s, 200, "/v1/chat/completions", ask("cloud", "Charge " CARD));
    answer_clear(&a);
    client_stop(s);
    fake_cloud_stop(f);
}

/* ---- another policy while requests run ---- */

typedef struct busy {
    const server *server;
    atomic_int *n_done; /* answers of all */
    int n_asked, n_passed, n_others;
} busy;

enum { N_BUSY = 4, N_EACH = 25, N_RELOADS = 60 };

static void *ask_again_and_again(void *user)
{
    busy *b = user;
    json_t *body = ask("cloud", "Charge " CARD);
    char *text = json_dumps(body, 0);
    for (int i = 0; i < N_EACH; i++) {
        answer_t a =
            client_send(b->server, &(request_t){.path = "/v1/chat/completions", .body = text});
        *(a.status == 409 ? &b->n_asked : a.status == 200 ? &b->n_passed : &b->n_others) += 1;
        answer_clear(&a);
        atomic_fetch_add(b->n_done, 1);
    }
    free(text);
    json_decref(body);
    return NULL;
}

/* Under load every request is answered by one policy or the other, and none of a file with a
 * mistake. */
static void test_reload_under_load(void **state)
{
    (void)state;
    static const char *const rules[] = {"{\"categories\": {\"finance\": \"allow\"}}",
                                        "{\"categories\": {\"finance\": \"never\"}}",
                                        "{\"categories\": {\"finance\": \"ask\"}}", "{"};
    calla_error err;
    atomic_int n_done = 0;
    pthread_t threads[N_BUSY];
    busy all[N_BUSY];
    int n_asked = 0, n_passed = 0;
    fake_cloud *f = fake_cloud_start();
    server *s = start(fake_cloud_url(f), policy_text, NULL);
    for (int i = 0; i < N_BUSY; i++) {
        all[i] = (busy){.server = s, .n_done = &n_done};
        assert_int_equal(pthread_create(&threads[i], NULL, ask_again_and_again, &all[i]), 0);
    }
    for (int i = 0; i < N_RELOADS || atomic_load(&n_done) < N_BUSY * N_EACH; i++) {
        put_test_file(dir, "policy.json", rules[i % 4]);
        assert_int_equal(server_reload(s, &err), i % 2 ? CALLA_ERR_INPUT : CALLA_OK);
    }
    for (int i = 0; i < N_BUSY; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(all[i].n_others, 0);
        n_asked += all[i].n_asked;
        n_passed += all[i].n_passed;
    }
    assert_int_equal(n_asked + n_passed, N_BUSY * N_EACH);
    assert_int_equal(fake_cloud_n_requests(f), n_passed);
    client_stop(s);
    fake_cloud_stop(f);
}

typedef struct slow_request {
    const server *server;
    atomic_bool done;
} slow_request;

static void *ask_slow_cloud(void *user)
{
    slow_request *r = user;
    json_t *body = ask("cloud", "hello");
    char *text = json_dumps(body, 0);
    answer_t a = client_send(r->server, &(request_t){.path = "/v1/chat/completions", .body = text});
    atomic_store(&r->done, true);
    answer_clear(&a);
    free(text);
    json_decref(body);
    return NULL;
}

/* The engine's thread has no part in the cloud's waiting: the local model answers meanwhile. */
static void test_engine_goes_on(void **state)
{
    (void)state;
    enum { N = 8 };
    fake_cloud *f = fake_cloud_start();
    fake_answer slow = {.held = true};
    pthread_t threads[N];
    slow_request requests[N];
    fake_cloud_script(f, &slow, 1);
    server *s = start(fake_cloud_url(f), policy_text, NULL);
    for (int i = 0; i < N; i++) {
        requests[i] = (slow_request){.server = s};
        assert_int_equal(pthread_create(&threads[i], NULL, ask_slow_cloud, &requests[i]), 0);
    }
    while (fake_cloud_n_requests(f) < N) sched_yield(); /* all wait for the cloud now */
    answer_t a = client_post_json(s, 200, "/v1/chat/completions", ask("tiny", "What is a river?"));
    assert_true(strlen(content_of(&a)) > 0);
    for (int i = 0; i < N; i++) assert_false(atomic_load(&requests[i].done));
    answer_clear(&a);
    fake_cloud_release(f);
    for (int i = 0; i < N; i++) pthread_join(threads[i], NULL);
    client_stop(s);
    fake_cloud_stop(f);
}

static void test_refused_options(void **state)
{
    (void)state;
    server *s;
    calla_error err;
    hybrid_options cloud = {.url = "https://example.com/v1",
                            .model = "m",
                            .audit = audit_path,
                            .key_env = "TEST_NO_SUCH_VARIABLE"};
    server_options o = client_options();
    o.hybrid = &cloud;
    assert_error(server_start(&o, &s, &err), CALLA_ERR_INPUT, &err, "TEST_NO_SUCH_VARIABLE");
    cloud.key_env = NULL;
    static const char *const names[] = {"hybrid"};
    o.aliases = names;
    o.n_aliases = 1;
    assert_error(server_start(&o, &s, &err), CALLA_ERR_INPUT, &err, "'hybrid'");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_servers),
        cmocka_unit_test(test_consent),
        cmocka_unit_test(test_kept),
        cmocka_unit_test(test_redacted),
        cmocka_unit_test(test_falls_back),
        cmocka_unit_test(test_model_check),
        cmocka_unit_test(test_cut_stream),
        cmocka_unit_test(test_slow_stream),
        cmocka_unit_test(test_clients),
        cmocka_unit_test(test_reload),
        cmocka_unit_test(test_reload_under_load),
        cmocka_unit_test(test_engine_goes_on),
        cmocka_unit_test(test_refused_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
