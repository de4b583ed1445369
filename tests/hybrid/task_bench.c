#include "hybrid/task_bench.h"

#include <time.h>

const task_owner task_all;

void pause_us(int64_t us)
{
    const struct timespec t = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
    nanosleep(&t, NULL);
}

json_t *path_in(const json_t *value, const char *path)
{
    char key[64];
    while (value && *path) {
        size_t n = strcspn(path, ".");
        snprintf(key, sizeof key, "%.*s", (int)n, path);
        value = json_is_array(value) ? json_array_get(value, strtoul(key, NULL, 10))
                                     : json_object_get(value, key);
        path += n + (path[n] == '.');
    }
    return (json_t *)value;
}

const char *text_in(const json_t *value, const char *path)
{
    const char *text = json_string_value(path_in(value, path));
    return text ? text : "";
}

calla_status answer_with(const char *text, task_answer *a)
{
    *a = (task_answer){
        .text = strdup(text), .n_bytes = strlen(text), .input_tokens = 10, .output_tokens = 5};
    return CALLA_OK;
}

calla_status bench_ask(void *user, json_t *request, const atomic_bool *cancelled, task_answer *a,
                       calla_error *err)
{
    bench *b = user;
    const char *told = text_in(request, "messages.1.content");
    char text[80];
    char *all_of_it = json_dumps(request, 0);
    pthread_mutex_lock(&b->lock);
    strbuf_puts(&b->heard, all_of_it);
    pthread_mutex_unlock(&b->lock);
    free(all_of_it);
    if (json_object_get(request, "response_format")) {
        atomic_fetch_add(&b->n_planned, 1);
        answer_with(b->plan, a);
        a->cut = b->plan_is_cut;
        return CALLA_OK;
    }
    atomic_fetch_add(&b->n_asked, 1);
    while (atomic_load(&b->hold) && !atomic_load(cancelled)) pause_us(1000);
    if (atomic_load(cancelled)) return error_set(err, CALLA_ERR_CANCELLED, "cancelled");
    if (b->status != CALLA_OK) return error_set(err, b->status, "the model does not like it");
    snprintf(text, sizeof text, "did: %.20s", told);
    return answer_with(text, a);
}

static char *cloud_answer_fn(void *user, const char *body, const char **type)
{
    (void)user, (void)body, (void)type;
    return strdup("{\"choices\": [{\"index\": 0, \"message\": {\"role\": \"assistant\", "
                  "\"content\": \"from afar\"}, \"finish_reason\": \"stop\"}], \"usage\": "
                  "{\"prompt_tokens\": 100, \"completion_tokens\": 50}}");
}

void bench_start(bench *b)
{
    calla_error err;
    const task_runner_options options = {.store = b->store,
                                         .hybrid = b->hybrid,
                                         .ask = bench_ask,
                                         .ask_user = b,
                                         .n_interruptions = 3};
    assert_ok(task_runner_start(&options, &b->runner, &err), &err);
}

void bench_stop(bench *b)
{
    task_runner_stop(b->runner, clock_ns());
    task_runner_free(b->runner);
    b->runner = NULL;
}

bench *bench_open(const char *rules)
{
    calla_error err;
    bench *b = calloc(1, sizeof *b);
    const char *dir = temporary_dir();
    pthread_mutex_init(&b->lock, NULL);
    snprintf(b->path, sizeof b->path, "%s/tasks.db", dir);
    snprintf(b->policy, sizeof b->policy, "%s/policy.json", dir);
    snprintf(b->audit, sizeof b->audit, "%s/audit.db", dir);
    assert_ok(task_store_open(b->path, &b->store, &err), &err);
    if (rules) {
        put_test_file(dir, "policy.json", rules);
        b->cloud = fake_cloud_start();
        fake_cloud_reply(b->cloud, cloud_answer_fn, NULL);
        const hybrid_options options = {.url = fake_cloud_url(b->cloud),
                                        .model = "far",
                                        .policy = b->policy,
                                        .audit = b->audit};
        assert_ok(hybrid_open(&options, &b->hybrid, &err), &err);
    }
    return b;
}

void bench_close(bench *b)
{
    if (b->runner) bench_stop(b);
    task_store_close(b->store);
    if (b->hybrid) hybrid_stop(b->hybrid, clock_ns());
    hybrid_close(b->hybrid);
    if (b->cloud) fake_cloud_stop(b->cloud);
    strbuf_free(&b->heard);
    pthread_mutex_destroy(&b->lock);
    free(b);
}

void bench_file(bench *b, const char *id, const char *body)
{
    char own[TASK_ID_BYTES];
    task_request r;
    calla_error err;
    json_t *json = json_of(body);
    assert_ok(task_request_read(json, &r, &err), &err);
    snprintf(own, sizeof own, "%s", id);
    assert_ok(task_store_create(b->store, &r, "", NULL, own, &err), &err);
    assert_string_equal(own, id);
    json_decref(json);
}

json_t *bench_read(bench *b, const char *id)
{
    calla_error err;
    json_t *task;
    assert_ok(task_store_read(b->store, task_all, id, &task, &err), &err);
    return task;
}

json_t *bench_await(bench *b, const char *id, const char *wanted)
{
    for (;;) {
        json_t *task = bench_read(b, id);
        const char *state = text_in(task, "state");
        if (strcmp(state, wanted) == 0) return task;
        if (strcmp(state, "queued") != 0 && strcmp(state, "running") != 0) {
            char *text = json_dumps(task, JSON_INDENT(1));
            fail_msg("the task is not %s: %s", wanted, text);
        }
        json_decref(task);
        pause_us(1000);
    }
}

void bench_expect(bench *b, const char *id, const char *result)
{
    json_t *task = bench_await(b, id, "done");
    assert_string_equal(text_in(task, "result"), result);
    json_decref(task);
}

void bench_command(bench *b, const char *id, task_command c, task_result expected)
{
    calla_error err;
    task_result result;
    assert_ok(task_store_command(b->store, task_all, id, c, &result, &err), &err);
    assert_int_equal(result, expected);
}
