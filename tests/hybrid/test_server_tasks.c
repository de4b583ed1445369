/* Tasks over HTTP, with the local model in models/tiny and a fake cloud. */
#include "hybrid/fake_cloud.h"
#include "server/client.h"
#include "support/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static char tasks_path[600], policy_path[600], audit_path[600];

static void set_paths(const char *rules)
{
    const char *dir = temporary_dir();
    snprintf(tasks_path, sizeof tasks_path, "%s/tasks.db", dir);
    snprintf(policy_path, sizeof policy_path, "%s/policy.json", dir);
    snprintf(audit_path, sizeof audit_path, "%s/audit.db", dir);
    put_test_file(dir, "policy.json", rules);
}

static server *start(const char *url, const char *keys)
{
    hybrid_options cloud = {.url = url, .model = "far", .policy = policy_path, .audit = audit_path};
    server_options o = client_options();
    if (url) o.hybrid = &cloud;
    o.tasks = tasks_path;
    o.api_key = keys;
    o.keep_alive_ms = 100;
    return client_start(&o);
}

static answer_t send_as(const server *s, const char *key, const char *method, const char *path,
                        const char *body, const char *more)
{
    char header[80];
    snprintf(header, sizeof header, "x-api-key: %s", key ? key : "none");
    request_t r = {.method = method, .path = path, .body = body, .headers = {header, more}};
    return client_send(s, &r);
}

static void expect(const server *s, long status, const char *method, const char *path,
                   const char *body, const char *code)
{
    answer_t a = send_as(s, NULL, method, path, body, NULL);
    if (a.status != status) fail_msg("%s %s: %ld %s", method, path, a.status, a.body);
    if (code) assert_string_equal(text_at(a.json, "error.code"), code);
    answer_clear(&a);
}

/* Files a task and gives its path in `path`. */
static void file_task(const server *s, const char *body, char path[100])
{
    answer_t a = send_as(s, NULL, "POST", "/v1/tasks", body, NULL);
    if (a.status != 200) fail_msg("%ld %s", a.status, a.body);
    snprintf(path, 100, "/v1/tasks/%s", text_at(a.json, "id"));
    assert_string_equal(text_at(a.json, "object"), "task");
    answer_clear(&a);
}

/* The task once its events have ended, which are in *events as they came. */
static answer_t await(const server *s, const char *path, const char *state, char **events)
{
    char url[140];
    snprintf(url, sizeof url, "%s/events", path);
    answer_t a = client_get(s, 200, url);
    assert_non_null(strstr(a.headers, "text/event-stream"));
    if (events) *events = strdup(a.body);
    answer_clear(&a);
    a = client_get(s, 200, path);
    if (strcmp(text_at(a.json, "state"), state) != 0) fail_msg("not %s: %s", state, a.body);
    return a;
}

/* The tiny model plans as it can: whatever it says, a step is there, and everything ends well. */
static void test_life(void **state)
{
    (void)state;
    char path[100], url[140], *events;
    fake_cloud *f = fake_cloud_start();
    set_paths("{}");
    server *s = start(fake_cloud_url(f), NULL);
    file_task(s,
              "{\"instructions\": \"Say what it is.\", \"files\": [{\"name\": \"card.txt\", "
              "\"text\": \"Card 4111 1111 1111 1111\"}], \"budget\": {\"tokens\": 4000}}",
              path);
    answer_t a = await(s, path, "done", &events);
    assert_non_null(strstr(events, "event: task.created\n"));
    assert_non_null(strstr(events, "event: step.started\n"));
    assert_non_null(strstr(events, "event: task.done\n"));
    free(events);
    assert_true(json_array_size(json_at(a.json, "rounds.0.steps")) >= 2);
    assert_string_equal(text_at(a.json, "rounds.0.steps.0.kind"), "plan");
    assert_string_equal(text_at(a.json, "inputs.0.name"), "card.txt");
    assert_true(int_at(a.json, "usage.local.input_tokens") > 0);
    assert_true(json_is_string(json_at(a.json, "result")));
    answer_clear(&a);
    snprintf(url, sizeof url, "%s/messages", path);
    expect(s, 200, "POST", url, "{\"content\": \"Shorter.\"}", NULL);
    a = await(s, path, "done", NULL);
    assert_int_equal(json_array_size(json_at(a.json, "rounds")), 2);
    answer_clear(&a);
    char *sent = fake_cloud_received(f);
    assert_null(strstr(sent, "4111"));
    free(sent);
    a = client_get(s, 200, "/v1/tasks?state=done&limit=5");
    assert_int_equal(json_array_size(json_object_get(a.json, "data")), 1);
    answer_clear(&a);
    /* Only what comes after the number. */
    snprintf(url, sizeof url, "%s/events?after=1000000", path);
    a = client_get(s, 200, url);
    assert_string_equal(a.body, "");
    answer_clear(&a);
    expect(s, 200, "DELETE", path, NULL, NULL);
    expect(s, 404, "GET", path, NULL, "task_not_found");
    client_stop(s);
    fake_cloud_stop(f);
}

/* The task once it is in this state. */
static answer_t poll_for(const server *s, const char *path, const char *state)
{
    for (;;) {
        const struct timespec a_while = {.tv_nsec = 5000000};
        answer_t a = client_get(s, 200, path);
        if (strcmp(text_at(a.json, "state"), state) == 0) return a;
        if (json_is_object(json_at(a.json, "error"))) fail_msg("not %s: %s", state, a.body);
        answer_clear(&a);
        nanosleep(&a_while, NULL);
    }
}

/* The budget leaves too little for any plan, so the whole task is a step for the cloud. */
static void test_consent(void **state)
{
    (void)state;
    char path[100], url[140], yes[160];
    fake_cloud *f = fake_cloud_start();
    set_paths("{\"categories\": {\"payment_card\": \"ask\"}}");
    server *s = start(fake_cloud_url(f), NULL);
    file_task(s,
              "{\"instructions\": \"What is 4111 1111 1111 1111?\", \"budget\": {\"tokens\": "
              "1500}}",
              path);
    answer_t a = poll_for(s, path, "waiting_for_consent");
    assert_string_equal(text_at(a.json, "consent.findings.0.excerpt"), "4***11");
    assert_int_equal(fake_cloud_n_requests(f), 0);
    snprintf(yes, sizeof yes, "{\"token\": \"%s\"}", text_at(a.json, "consent.token"));
    answer_clear(&a);
    snprintf(url, sizeof url, "%s/consent", path);
    expect(s, 409, "POST", url, "{\"token\": \"other\"}", "wrong_token");
    a = client_get(s, 200, "/v1/tasks?state=waiting_for_consent");
    assert_int_equal(json_array_size(json_object_get(a.json, "data")), 1);
    answer_clear(&a);
    expect(s, 200, "POST", url, yes, NULL);
    a = await(s, path, "done", NULL);
    assert_string_equal(text_at(a.json, "rounds.0.steps.1.attempts.0.where"), "cloud");
    answer_clear(&a);
    char *sent = fake_cloud_received(f);
    assert_non_null(strstr(sent, "4111"));
    free(sent);
    client_stop(s);
    fake_cloud_stop(f);
}

static void test_commands(void **state)
{
    (void)state;
    char path[100], url[140];
    set_paths("{}");
    server *s = start(NULL, NULL);
    file_task(s, "{\"instructions\": \"i\", \"paused\": true}", path);
    snprintf(url, sizeof url, "%s/messages", path);
    expect(s, 409, "POST", url, "{\"content\": \"x\"}", "wrong_state");
    expect(s, 400, "POST", url, "{}", "invalid_value");
    expect(s, 400, "POST", url, "{\"content\": 1}", "invalid_value");
    expect(s, 200, "POST", path, "{\"priority\": 3}", NULL);
    expect(s, 400, "POST", path, "{\"priority\": 300}", "invalid_value");
    expect(s, 400, "POST", path, "{}", "invalid_value");
    snprintf(url, sizeof url, "%s/cancel", path);
    expect(s, 400, "POST", url, "{\"x\": 1}", "invalid_value");
    expect(s, 200, "POST", url, "{}", NULL);
    expect(s, 409, "POST", url, "{}", "wrong_state");
    answer_t a = client_get(s, 200, path);
    assert_string_equal(text_at(a.json, "state"), "cancelled");
    assert_int_equal(int_at(a.json, "priority"), 3);
    answer_clear(&a);
    snprintf(url, sizeof url, "%s/consent", path);
    expect(s, 409, "POST", url, "{\"decline\": true}", "wrong_state");
    expect(s, 400, "POST", url, "{\"decline\": false}", "invalid_value");
    expect(s, 400, "POST", url, "{\"token\": \"x\", \"decline\": true}", "invalid_value");
    expect(s, 400, "POST", url, "{\"token\": 1}", "invalid_value");
    expect(s, 400, "POST", url, "{}", "invalid_value");
    a = client_get(s, 200, "/metrics");
    assert_non_null(strstr(a.body, "\ncalla_tasks{state=\"cancelled\"} 1\n"));
    assert_non_null(strstr(a.body, "\ncalla_tasks{state=\"queued\"} 0\n"));
    assert_non_null(strstr(a.body, "\ncalla_tasks_tokens{where=\"cloud\"} 0\n"));
    answer_clear(&a);
    snprintf(url, sizeof url, "%s/explode", path);
    expect(s, 404, "POST", url, "{}", "unknown_url");
    expect(s, 404, "GET", url, NULL, "unknown_url");
    expect(s, 404, "DELETE", "/v1/tasks", NULL, "unknown_url");
    expect(s, 404, "GET", "/v1/tasks/none", NULL, "task_not_found");
    expect(s, 404, "GET", "/v1/tasks/none/events", NULL, "task_not_found");
    expect(s, 400, "GET", "/v1/tasks?limit=0", NULL, "invalid_value");
    expect(s, 400, "GET", "/v1/tasks?state=lost", NULL, "invalid_value");
    a = send_as(s, NULL, "PUT", "/v1/tasks", "{}", NULL);
    assert_int_equal(a.status, 405);
    assert_non_null(strstr(a.headers, "Allow: POST, GET, DELETE\r\n"));
    answer_clear(&a);
    expect(s, 400, "POST", "/v1/tasks", "{\"instructions\": \"\"}", "invalid_value");
    client_stop(s);
    server_options o = client_options();
    s = client_start(&o);
    expect(s, 404, "POST", "/v1/tasks", "{\"instructions\": \"i\"}", "tasks_off");
    client_stop(s);
}

/* Who has a key sees the tasks that were filed with it. */
static void test_keys(void **state)
{
    (void)state;
    set_paths("{}");
    server *s = start(NULL, "key-a\nkey-b\n");
    static const char body[] = "{\"instructions\": \"i\", \"paused\": true}";
    char path[100];
    answer_t a = send_as(s, "key-c", "POST", "/v1/tasks", body, NULL);
    assert_int_equal(a.status, 401);
    answer_clear(&a);
    a = send_as(s, "key-a", "POST", "/v1/tasks", body, "Idempotency-Key: once");
    assert_int_equal(a.status, 200);
    snprintf(path, sizeof path, "/v1/tasks/%s", text_at(a.json, "id"));
    answer_clear(&a);
    a = send_as(s, "key-a", "POST", "/v1/tasks", body, "Idempotency-Key: once");
    assert_string_equal(text_at(a.json, "id"), path + strlen("/v1/tasks/"));
    answer_clear(&a);
    static const char *const methods[] = {"GET", "DELETE"};
    for (int i = 0; i < 2; i++) {
        a = send_as(s, "key-b", methods[i], path, NULL, NULL);
        assert_int_equal(a.status, 404);
        answer_clear(&a);
    }
    a = send_as(s, "key-b", "GET", "/v1/tasks", NULL, NULL);
    assert_int_equal(json_array_size(json_object_get(a.json, "data")), 0);
    answer_clear(&a);
    a = send_as(s, "key-a", "GET", path, NULL, NULL);
    assert_int_equal(a.status, 200);
    answer_clear(&a);
    client_stop(s);
}

/* A server that ends in the middle leaves its tasks to the next. */
static void test_restart(void **state)
{
    (void)state;
    char path[100];
    set_paths("{}");
    server *s = start(NULL, NULL);
    file_task(s, "{\"instructions\": \"Tell a long story.\", \"budget\": {\"tokens\": 3000}}",
              path);
    client_stop(s);
    s = start(NULL, NULL);
    answer_t a = await(s, path, "done", NULL);
    answer_clear(&a);
    client_stop(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_life),     cmocka_unit_test(test_consent),
        cmocka_unit_test(test_commands), cmocka_unit_test(test_keys),
        cmocka_unit_test(test_restart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
