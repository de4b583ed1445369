/* Exchanges with a cloud that records what it gets, and the audit of them. */
#include "hybrid/gateway.h"

#include <poll.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- exchanges ---- */

static hybrid_progress run(const char *text, strbuf *out)
{
    hybrid_plan plan = gateway_plan(text, NULL, NULL, false);
    hybrid_exchange *x;
    hybrid_progress p;
    calla_error err;
    assert_int_equal(plan.route, HYBRID_CLOUD);
    assert_ok(hybrid_exchange_begin(gateway.hybrid, &plan, &x, &err), &err);
    for (;;) {
        hybrid_exchange_take(x, out, &p);
        if (p.state == HYBRID_ANSWERED || p.state == HYBRID_FAILED) break;
        struct pollfd fd = {.fd = hybrid_exchange_fd(x), .events = POLLIN};
        assert_int_equal(poll(&fd, 1, PATIENCE_S * 1000), 1);
    }
    hybrid_exchange_end(x);
    hybrid_plan_free(&plan);
    return p;
}

static const char *at(const json_t *value, const char *a, const char *b)
{
    return json_string_value(json_object_get(json_object_get(value, a), b));
}

static void test_answer(void **state)
{
    (void)state;
    strbuf out = {0};
    hybrid_progress p =
        run("{\"messages\": [{\"role\": \"user\", \"content\": \"hi\", \"reasoning\": \"r\"}], "
            "\"user\": \"u-77\", \"metadata\": {\"k\": \"m-77\"}, "
            "\"prompt_cache_key\": \"c-77\", \"safety_identifier\": \"s-77\", "
            "\"temperature\": 0.5}",
            &out);
    assert_int_equal(p.state, HYBRID_ANSWERED);
    json_t *answer = json_of(out.data);
    assert_string_equal(at(answer, "calla", "route"), "cloud");
    assert_string_equal(json_string_value(json_object_get(answer, "object")), "chat.completion");
    char *body = fake_cloud_last_body(gateway.cloud), *all = fake_cloud_received(gateway.cloud);
    assert_string_equal(body, "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], "
                              "\"temperature\": 0.5, \"model\": \"big\"}");
    assert_null(strstr(all, "77"));
    assert_non_null(strstr(all, "Bearer sk-cloud-key-5f2c9a"));
    free(body);
    free(all);
    json_decref(answer);
    strbuf_free(&out);
}

#define KEY_TOLD "our \\u0073k-cloud-key-5f2c9a" /* as JSON may write it */

/* A cloud that tells the key it was given, in an answer, a stream or an error. */
static void test_key_is_not_told(void **state)
{
    (void)state;
    static const fake_answer answers[] = {
        {.body = "{\"choices\": [{\"index\": 0, \"message\": {\"content\": \"" KEY_TOLD "\"}}]}"},
        {.status = 400, .body = "{\"error\": {\"message\": \"" KEY_TOLD "\"}}"},
        {.type = "text/event-stream",
         .body = "data: {\"error\": {\"message\": \"" KEY_TOLD "\"}}\n\n"},
        {.type = "text/event-stream",
         .body = "data: {\"choices\": [{\"index\": 0, \"delta\": {\"content\": \"" KEY_TOLD
                 "\"}}]}\n\ndata: [DONE]\n\n"},
    };
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        strbuf out = {0};
        fake_cloud_script(gateway.cloud, &answers[i], 1);
        hybrid_progress p =
            run(answers[i].type ? "{\"stream\": true, \"messages\": [{\"role\": \"user\", "
                                  "\"content\": \"hi\"}]}"
                                : CHAT("hi"),
                &out);
        assert_int_equal(p.state, HYBRID_FAILED);
        assert_false(p.has_body);
        assert_int_equal(out.n, 0);
        strbuf_free(&out);
    }
}

/* An event's text over several lines becomes one, and nobody but us says where it was made. */
static void test_events_are_written_anew(void **state)
{
    (void)state;
    const fake_answer a = {
        .type = "text/event-stream",
        .body = "data: {\"choices\": [], \"calla\": {\"route\": \"local\"}}\n\n"
                "data: {\"choices\":\ndata: [\r], \"calla\": 1}\n\ndata: [DONE]\n\n"};
    strbuf out = {0};
    fake_cloud_script(gateway.cloud, &a, 1);
    hybrid_progress p = run("{\"stream\": true, \"messages\": [{\"role\": \"user\", "
                            "\"content\": \"hi\"}]}",
                            &out);
    assert_int_equal(p.state, HYBRID_ANSWERED);
    assert_string_equal(out.data,
                        "data: {\"choices\": [], \"calla\": {\"route\": \"cloud\", \"reasons\": "
                        "[\"nothing sensitive was found\"]}}\n\n"
                        "data: {\"choices\": []}\n\ndata: [DONE]\n\n");
    strbuf_free(&out);
}

/* Says the last message's text back, whole or streamed by seven bytes. */
static char *echo(void *user, const char *body, const char **type)
{
    bool *stream = user;
    json_t *request = json_of(body);
    const json_t *messages = json_object_get(request, "messages");
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const char *text = json_string_value(json_object_get(last, "content"));
    strbuf out = {0};
    if (!*stream) {
        strbuf_puts(&out, "{\"choices\": [{\"index\": 0, \"message\": {\"role\": \"assistant\", "
                          "\"content\": ");
        json_write_string(&out, text, strlen(text));
        strbuf_puts(&out,
                    ", \"tool_calls\": [{\"id\": \"1\", \"type\": \"function\", \"function\": "
                    "{\"name\": \"f\", \"arguments\": ");
        strbuf inner = {0};
        strbuf_puts(&inner, "{\"x\": ");
        json_write_string(&inner, text, strlen(text));
        strbuf_puts(&inner, "}");
        json_write_string(&out, inner.data, inner.n);
        strbuf_free(&inner);
        strbuf_puts(&out, "}}]}, \"finish_reason\": \"stop\"}]}");
    } else {
        *type = "text/event-stream";
        for (size_t i = 0; i < strlen(text); i += 7) {
            size_t n = strlen(text) - i < 7 ? strlen(text) - i : 7;
            strbuf_puts(&out, "data: {\"choices\": [{\"index\": 0, \"delta\": {\"content\": ");
            json_write_string(&out, text + i, n);
            strbuf_puts(&out, "}, \"finish_reason\": null}]}\r\n\r\n");
        }
        strbuf_puts(&out, ": comment\n\ndata: {\"choices\": [{\"index\": 0, \"delta\": {}, "
                          "\"finish_reason\": \"stop\"}]}\n\ndata: [DONE]\n\n");
    }
    json_decref(request);
    return out.data;
}

static void test_redacts_and_restores(void **state)
{
    (void)state;
    bool stream = false;
    strbuf out = {0};
    fake_cloud_reply(gateway.cloud, echo, &stream);
    hybrid_progress p = run(CHAT("Mail \\\"" EMAIL "\\\" and " EMAIL "."), &out);
    assert_int_equal(p.state, HYBRID_ANSWERED);
    char *body = fake_cloud_last_body(gateway.cloud);
    assert_null(strstr(body, "jane"));
    assert_non_null(strstr(body, "Mail \\\"[EMAIL_1]\\\" and [EMAIL_1]."));
    json_t *answer = json_of(out.data);
    const json_t *message =
        json_object_get(json_array_get(json_object_get(answer, "choices"), 0), "message");
    assert_string_equal(json_string_value(json_object_get(message, "content")),
                        "Mail \"" EMAIL "\" and " EMAIL ".");
    const json_t *call = json_array_get(json_object_get(message, "tool_calls"), 0);
    assert_string_equal(at(call, "function", "arguments"),
                        "{\"x\": \"Mail \\\"" EMAIL "\\\" and " EMAIL ".\"}");
    json_decref(answer);
    free(body);
    strbuf_free(&out);
}

static void test_restores_streams(void **state)
{
    (void)state;
    bool stream = true;
    strbuf out = {0}, text = {0};
    fake_cloud_reply(gateway.cloud, echo, &stream);
    hybrid_progress p = run("{\"stream\": true, \"messages\": [{\"role\": \"user\", \"content\": "
                            "\"Mail " EMAIL ", not [EMAIL_1], twice: " EMAIL "\"}]}",
                            &out);
    assert_int_equal(p.state, HYBRID_ANSWERED);
    int n = 0;
    for (const char *e = strstr(out.data, "data: {"); e; e = strstr(e + 1, "data: {")) {
        const char *end = strstr(e, "\n\n");
        json_t *chunk;
        calla_error err;
        assert_ok(json_parse_text(e + 6, (size_t)(end - e - 6), "chunk", &chunk, &err), &err);
        assert_int_equal(json_object_get(chunk, "calla") != NULL, n == 0); /* the first alone */
        const json_t *delta =
            json_object_get(json_array_get(json_object_get(chunk, "choices"), 0), "delta");
        const char *piece = json_string_value(json_object_get(delta, "content"));
        if (piece) strbuf_puts(&text, piece);
        json_decref(chunk);
        n++;
    }
    assert_string_equal(text.data, "Mail " EMAIL ", not [EMAIL_1], twice: " EMAIL);
    assert_string_equal(out.data + out.n - 14, "data: [DONE]\n\n");
    char *body = fake_cloud_last_body(gateway.cloud);
    assert_null(strstr(body, "jane"));
    free(body);
    strbuf_free(&out);
    strbuf_free(&text);
}

/* An answer that was to be JSON stays it, whatever is in the value: here two lines and quotes. */
static void test_json_answers_stay_json(void **state)
{
    (void)state;
    static const char value[] = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n"
                                "-----END PRIVATE KEY-----";
    static const char *const formats[] = {
        "{\"type\": \"text\"}", "{\"type\": \"json_object\"}",
        "{\"type\": \"json_schema\", \"json_schema\": {\"name\": \"n\", \"schema\": {}}}"};
    gateway_open("{\"categories\": {\"private_key\": \"redact\"}, " FAKE_CLOUD_POLICY "}");
    for (int i = 0; i < 6; i++) {
        static const fake_answer answers[] = {
            {.body = "{\"choices\": [{\"index\": 0, \"message\": {\"content\": \"{\\\"a\\\": "
                     "\\\"[PRIVATE_KEY_1]\\\"}\"}}]}"},
            {.type = "text/event-stream",
             .body = "data: {\"choices\": [{\"index\": 0, \"delta\": {\"content\": \"{\\\"a\\\": "
                     "\\\"[PRIVATE_KEY_1]\\\"}\"}, \"finish_reason\": \"stop\"}]}\n\ndata: "
                     "[DONE]\n\n"}};
        bool stream = i >= 3;
        strbuf text = {0}, out = {0};
        fake_cloud_script(gateway.cloud, &answers[stream], 1);
        strbuf_printf(&text,
                      "{\"stream\": %s, \"response_format\": %s, \"messages\": [{\"role\": "
                      "\"user\", \"content\": ",
                      stream ? "true" : "false", formats[i % 3]);
        json_write_string(&text, value, sizeof value - 1);
        strbuf_puts(&text, "}]}");
        hybrid_progress p = run(text.data, &out);
        assert_int_equal(p.state, HYBRID_ANSWERED);
        if (stream) out.data[strcspn(out.data, "\n")] = '\0';
        json_t *answer = json_of(out.data + (stream ? 6 : 0)), *inner = NULL;
        const json_t *choice = json_array_get(json_object_get(answer, "choices"), 0);
        const char *content = at(choice, stream ? "delta" : "message", "content");
        calla_status status = json_parse_text(content, strlen(content), "content", &inner, NULL);
        if (i % 3 == 0)
            assert_int_not_equal(status, CALLA_OK); /* a text has the value as it is */
        else
            assert_string_equal(json_string_value(json_object_get(inner, "a")), value);
        json_decref(inner);
        json_decref(answer);
        strbuf_free(&text);
        strbuf_free(&out);
    }
}

/* Numbers in arguments of earlier calls become texts, and the JSON stays JSON. */
static void test_arguments_stay_json(void **state)
{
    (void)state;
    strbuf out = {0};
    gateway_open("{\"categories\": {\"finance\": \"redact\"}, " FAKE_CLOUD_POLICY "}");
    run("{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [{\"id\": \"1\", \"type\": "
        "\"function\", \"function\": {\"name\": \"f\", \"arguments\": \"{\\\"a\\\": "
        "4111111111111111, \\\"b\\\": \\\"\\\\u0034111111111111111\\\", \\\"b\\\": "
        "\\\"z\\\"}\"}}]}]}",
        &out);
    char *body = fake_cloud_last_body(gateway.cloud);
    json_t *sent = json_of(body);
    const json_t *call = json_array_get(
        json_object_get(json_array_get(json_object_get(sent, "messages"), 0), "tool_calls"), 0);
    assert_string_equal(at(call, "function", "arguments"), "{\"a\": \"[CARD_1]\", \"b\": \"z\"}");
    json_decref(sent);
    free(body);
    strbuf_free(&out);
}

static void expect_failure(const fake_answer *a, const char *text, int status, const char *code,
                           bool may_fall_back)
{
    strbuf out = {0};
    fake_cloud_script(gateway.cloud, a, 1);
    hybrid_progress p = run(text, &out);
    if (p.state != HYBRID_FAILED || p.status != status || strcmp(p.code, code) != 0 ||
        p.may_fall_back != may_fall_back)
        fail_msg("state %d, status %d, %s, %d: %s", p.state, p.status, p.code ? p.code : "",
                 p.may_fall_back, p.message);
    assert_null(strstr(p.message, "sk-cloud"));
    assert_null(out.data ? strstr(out.data, "sk-cloud") : NULL);
    strbuf_free(&out);
}

#define STREAM "{\"stream\": true, \"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}"

static void test_clouds_that_fail(void **state)
{
    (void)state;
    static const char text[] = CHAT("hi");
    expect_failure(&(fake_answer){.status = 500, .body = "oops"}, text, 500, "cloud_error", true);
    expect_failure(&(fake_answer){.status = 429, .body = "{}"}, text, 429, "cloud_error", true);
    expect_failure(&(fake_answer){.status = 400, .body = "{}"}, text, 400, "cloud_error", false);
    expect_failure(&(fake_answer){.status = 401,
                                  .body = "{\"error\": {\"message\": \"bad key "
                                          "sk-cloud-key-5f2c9a\"}}"},
                   text, 502, "cloud_key_refused", false);
    expect_failure(&(fake_answer){.status = 400,
                                  .body = "{\"error\": {\"message\": \"bad key "
                                          "sk-cloud-key-5f2c9a\"}}"},
                   text, 400, "cloud_error", false);
    expect_failure(
        &(fake_answer){.status = 307, .header = "Location", .header_value = "http://127.0.0.1:1/"},
        text, 502, "cloud_error", false);
    expect_failure(&(fake_answer){.body = "this is no JSON"}, text, 502, "cloud_error", false);
    expect_failure(&(fake_answer){.body = "[1]"}, text, 502, "cloud_error", false);
    expect_failure(&(fake_answer){.type = "text/event-stream", .body = "data: 1\n\n"}, text, 502,
                   "cloud_error", false);
    gateway_open("{\"cloud\": {\"retries\": 0, \"connect_timeout_ms\": 60000, "
                 "\"first_byte_timeout_ms\": 300}}");
    expect_failure(&(fake_answer){.held = true}, text, 504, "cloud_timeout", true);
    fake_cloud_release(gateway.cloud);
    gateway_open(gateway_policy);
    /* Streams. */
    expect_failure(&(fake_answer){.body = "{}"}, STREAM, 502, "cloud_error", false);
    expect_failure(&(fake_answer){.type = "text/event-stream", .body = "data: {oops\n\n"}, STREAM,
                   502, "cloud_error", false);
    expect_failure(&(fake_answer){.type = "text/event-stream",
                                  .body = "data: {\"choices\": []}\n\ndata: {}\n\n",
                                  .cut_after = 26},
                   STREAM, 502, "cloud_unreachable", false);
    expect_failure(
        &(fake_answer){.type = "text/event-stream", .body = "data: {\"choices\": []}\n\n"}, STREAM,
        502, "cloud_error", false);
}

/* What the cloud says of a request that it does not take reaches the client as it is. */
static void test_errors_pass(void **state)
{
    (void)state;
    strbuf out = {0};
    fake_answer a = {.status = 400,
                     .body =
                         "{\"error\": {\"message\": \"no such thing as [EMAIL_1]\", \"type\": "
                         "\"invalid_request_error\", \"param\": \"messages\", \"code\": null}}"};
    fake_cloud_script(gateway.cloud, &a, 1);
    hybrid_progress p = run(CHAT("Write to " EMAIL), &out);
    assert_true(p.has_body);
    assert_int_equal(p.status, 400);
    json_t *body = json_of(out.data);
    assert_string_equal(at(body, "error", "message"), "no such thing as " EMAIL);
    assert_string_equal(at(body, "error", "param"), "messages");
    assert_string_equal(at(body, "calla", "route"), "cloud");
    json_decref(body);
    strbuf_free(&out);
}

/* ---- the audit of it ---- */

static bool print_row(void *user, const audit_row *row)
{
    json_t *body = json_of(row->body);
    strbuf_printf(user, "%s %lld", audit_kind_name(row->kind), (long long)row->reference);
    static const char *const fields[] = {"route", "action", "result", "asked_for"};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const char *text = json_string_value(json_object_get(body, fields[i]));
        if (text) strbuf_printf(user, " %s", text);
    }
    const json_t *cost = json_object_get(body, "cost");
    if (cost) strbuf_printf(user, " %g", json_real_value(cost));
    strbuf_puts(user, "\n");
    json_decref(body);
    return true;
}

static void test_audited(void **state)
{
    (void)state;
    strbuf out = {0}, rows = {0};
    calla_error err;
    audit *a;
    audit_mark mark;
    run(CHAT("hi"), &out);
    run(CHAT("Write to " EMAIL), &out);
    gateway_expect_route(CHAT("Charge " CARD), false, HYBRID_ASK);
    expect_failure(&(fake_answer){.status = 500}, CHAT("hi"), 500, "cloud_error", true);
    assert_ok(audit_open_to_read(gateway.audit_path, &a, &err), &err);
    assert_ok(audit_verify(a, NULL, &mark, &err), &err);
    assert_ok(audit_read(a, 1, print_row, &rows, &err), &err);
    assert_string_equal(rows.data, "intent 0 allow hybrid\noutcome 1 answered 15\n"
                                   "intent 0 redact hybrid\noutcome 3 answered 15\n"
                                   "kept 0 asked ask hybrid\n"
                                   "intent 0 allow hybrid\noutcome 6 failed\n");
    audit_close(a);
    strbuf_free(&out);
    strbuf_free(&rows);
}

/* Without the audit nothing leaves. */
static void test_no_audit_no_request(void **state)
{
    (void)state;
    hybrid_plan plan = gateway_plan(CHAT("hi"), NULL, NULL, false);
    hybrid_exchange *x;
    calla_error err;
    sqlite3 *other;
    assert_int_equal(sqlite3_open(gateway.audit_path, &other), SQLITE_OK);
    assert_int_equal(sqlite3_exec(other, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    assert_int_not_equal(hybrid_exchange_begin(gateway.hybrid, &plan, &x, &err), CALLA_OK);
    assert_int_equal(fake_cloud_n_requests(gateway.cloud), 0);
    sqlite3_close(other);
    assert_ok(hybrid_exchange_begin(gateway.hybrid, &plan, &x, &err), &err);
    hybrid_exchange_end(x);
    hybrid_plan_free(&plan);
}
int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, gateway_setup, gateway_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_answer),
        TEST(test_key_is_not_told),
        TEST(test_events_are_written_anew),
        TEST(test_redacts_and_restores),
        TEST(test_restores_streams),
        TEST(test_json_answers_stay_json),
        TEST(test_arguments_stay_json),
        TEST(test_clouds_that_fail),
        TEST(test_errors_pass),
        TEST(test_audited),
        TEST(test_no_audit_no_request),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
