/* The order of tasks, pause and cancel, interruptions, follow-ups, owners. */
#include "hybrid/task_bench.h"

#include <sys/stat.h>

/* ---- order, pause, cancel ---- */

static void test_order(void **state)
{
    (void)state;
    bench *b = bench_open(NULL);
    json_t *list;
    calla_error err;
    task_result result;
    b->plan = PLAN(STEP("a", "", "local"));
    bench_file(b, "low", "{\"instructions\": \"low\", \"priority\": -1}");
    bench_file(b, "first", "{\"instructions\": \"i\"}");
    bench_file(b, "second", "{\"instructions\": \"i\"}");
    bench_file(b, "high", "{\"instructions\": \"i\", \"priority\": 7}");
    bench_file(b, "paused", "{\"instructions\": \"i\", \"priority\": 100, \"paused\": true}");
    assert_ok(task_store_set_priority(b->store, task_all, "second", 3, &result, &err), &err);
    assert_ok(task_store_list(b->store, task_all, NULL, 100, &list, &err), &err);
    static const char *const order[] = {"paused", "high", "second", "first", "low"};
    for (size_t i = 0; i < 5; i++)
        assert_string_equal(text_in(json_array_get(list, i), "id"), order[i]);
    json_decref(list);
    bench_start(b);
    int64_t before = 0;
    for (size_t i = 1; i < 5; i++) {
        json_t *task = bench_await(b, order[i], "done");
        int64_t number = json_integer_value(path_in(task, "rounds.0.steps.1.attempts.0.attempt"));
        assert_true(number > before);
        before = number;
        json_decref(task);
    }
    json_t *task = bench_read(b, "paused");
    assert_string_equal(text_in(task, "state"), "queued");
    json_decref(task);
    bench_command(b, "paused", TASK_RESUME, TASK_OK);
    json_decref(bench_await(b, "paused", "done"));
    bench_command(b, "paused", TASK_PAUSE, TASK_WRONG_STATE);
    bench_command(b, "paused", TASK_DELETE, TASK_OK);
    bench_command(b, "paused", TASK_DELETE, TASK_UNKNOWN);
    bench_close(b);
}

static void await_asked(bench *b, int n)
{
    while (atomic_load(&b->n_asked) < n) pause_us(1000);
}

static void test_cancel_mid_step(void **state)
{
    (void)state;
    bench *b = bench_open(NULL);
    b->plan = PLAN(STEP("a", "", "local"));
    atomic_store(&b->hold, true);
    bench_start(b);
    bench_file(b, "t", "{\"instructions\": \"i\"}");
    bench_file(b, "gone", "{\"instructions\": \"i\"}");
    bench_file(b, "next", "{\"instructions\": \"i\"}");
    await_asked(b, 1);
    bench_command(b, "t", TASK_CANCEL, TASK_OK);
    await_asked(b, 2); /* the next task's step runs: the first one's has ended */
    json_t *task = bench_read(b, "t");
    assert_string_equal(text_in(task, "state"), "cancelled");
    assert_string_equal(text_in(task, "rounds.0.steps.1.attempts.0.outcome"), "cancelled");
    assert_true(json_is_null(path_in(task, "result")));
    json_decref(task);
    bench_command(b, "t", TASK_CANCEL, TASK_WRONG_STATE);
    bench_command(b, "gone", TASK_DELETE, TASK_OK);
    await_asked(b, 3);
    assert_null(bench_read(b, "gone"));
    bench_command(b, "next", TASK_PAUSE, TASK_OK); /* its step runs on */
    atomic_store(&b->hold, false);
    json_decref(bench_await(b, "next", "done"));
    bench_close(b);
}

/* A runner that stops in the middle of a step leaves it to the next one, marked. */
static void test_interrupted(void **state)
{
    (void)state;
    bench *b = bench_open(NULL);
    calla_error err;
    b->plan = PLAN(STEP("a", "", "local"));
    atomic_store(&b->hold, true);
    bench_file(b, "t", "{\"instructions\": \"i\", \"budget\": {\"tokens\": 100000}}");
    bench_start(b);
    await_asked(b, 1);
    bench_stop(b);
    task_store *other;
    assert_error(task_store_open(b->path, &other, &err), CALLA_ERR_IO, &err, "another process");
    task_store_close(b->store);
    assert_ok(task_store_open(b->path, &b->store, &err), &err);
    atomic_store(&b->hold, false);
    bench_start(b);
    json_t *task = bench_await(b, "t", "done");
    assert_string_equal(text_in(task, "rounds.0.steps.1.attempts.0.outcome"), "interrupted");
    assert_string_equal(text_in(task, "rounds.0.steps.1.attempts.1.outcome"), "done");
    assert_int_equal(atomic_load(&b->n_planned), 1); /* what was done stays done */
    assert_true(json_is_true(path_in(task, "usage.estimated")));
    json_decref(task);
    bench_close(b);
}

static void test_interrupted_too_often(void **state)
{
    (void)state;
    bench *b = bench_open(NULL);
    b->plan = PLAN(STEP("a", "", "local"));
    atomic_store(&b->hold, true);
    bench_file(b, "t", "{\"instructions\": \"i\"}");
    for (int i = 1; i <= 3; i++) {
        bench_start(b);
        await_asked(b, i);
        bench_stop(b);
    }
    bench_start(b);
    json_t *task = bench_await(b, "t", "failed");
    assert_string_equal(text_in(task, "error.code"), "interrupted");
    json_decref(task);
    bench_close(b);
}

/* ---- follow-ups, events ---- */

static void test_follow_up(void **state)
{
    (void)state;
    bench *b = bench_open(ALLOWING);
    calla_error err;
    task_result result;
    b->plan = SPLIT;
    bench_start(b);
    bench_file(b, "t",
               "{\"instructions\": \"Sum up.\", \"texts\": [\"A river.\", \"Card " CARD "\"]}");
    json_decref(bench_await(b, "t", "done"));
    b->plan = PLAN(STEP("again", "\"result\"", "cloud"));
    assert_ok(task_store_follow_up(b->store, task_all, "t", "Shorter.", &result, &err), &err);
    assert_int_equal(result, TASK_OK);
    json_t *task = bench_await(b, "t", "done");
    assert_int_equal(json_array_size(path_in(task, "rounds")), 2);
    assert_string_equal(text_in(task, "rounds.1.instructions"), "Shorter.");
    /* What the first round made of something sensitive stays, too. */
    assert_string_equal(text_in(task, "rounds.1.steps.1.attempts.0.where"), "local");
    assert_string_equal(text_in(task, "result"), "did: again\n\n[result]\ndid:");
    json_decref(task);
    assert_int_equal(fake_cloud_n_requests(b->cloud), 1);
    assert_ok(task_store_follow_up(b->store, task_all, "none", "x", &result, &err), &err);
    assert_int_equal(result, TASK_UNKNOWN);
    json_t *events;
    bool ended, found;
    assert_ok(task_store_events(b->store, task_all, "t", 0, &events, &ended, &found, &err), &err);
    assert_true(ended && found);
    size_t n = json_array_size(events);
    assert_string_equal(text_in(events, "0.type"), "task.created");
    assert_string_equal(text_in(json_array_get(events, n - 1), "type"), "task.done");
    int64_t last = json_integer_value(path_in(json_array_get(events, n - 1), "event"));
    json_decref(events);
    assert_ok(task_store_events(b->store, task_all, "t", last, &events, &ended, &found, &err),
              &err);
    assert_int_equal(json_array_size(events), 0);
    json_decref(events);
    bench_close(b);
}

static void test_owners_and_keys(void **state)
{
    (void)state;
    bench *b = bench_open(NULL);
    char id[TASK_ID_BYTES] = "one", again[TASK_ID_BYTES] = "two";
    task_request r;
    calla_error err;
    json_t *body = json_of("{\"instructions\": \"i\"}"), *task;
    assert_ok(task_request_read(body, &r, &err), &err);
    assert_ok(task_store_create(b->store, &r, "aa", "k", id, &err), &err);
    assert_ok(task_store_create(b->store, &r, "aa", "k", again, &err), &err);
    assert_string_equal(again, "one"); /* not filed twice */
    snprintf(again, sizeof again, "three");
    assert_ok(task_store_create(b->store, &r, "bb", "k", again, &err), &err);
    assert_string_equal(again, "three");
    assert_ok(task_store_read(b->store, (task_owner){"bb"}, "one", &task, &err), &err);
    assert_null(task);
    assert_ok(task_store_list(b->store, (task_owner){"bb"}, NULL, 9, &task, &err), &err);
    assert_int_equal(json_array_size(task), 1);
    json_decref(task);
    json_decref(body);
    bench_close(b);
}

static void assert_not_in_file(const char *path, const char *suffix, const char *text)
{
    char name[700];
    strbuf all = {0};
    int c;
    snprintf(name, sizeof name, "%s%s", path, suffix);
    FILE *f = fopen(name, "rb");
    while (f && (c = getc(f)) != EOF) strbuf_putc(&all, (char)c);
    if (f) fclose(f);
    if (all.n > 0) assert_null(memmem(all.data, all.n, text, strlen(text)));
    strbuf_free(&all);
}

/* The texts of a task that was deleted are in none of the store's files. */
static void test_deleted_texts(void **state)
{
    (void)state;
    bench *b = bench_open(NULL);
    bench_file(b, "t",
               "{\"instructions\": \"i\", \"texts\": [\"nobody's matter\"], \"paused\": true}");
    bench_command(b, "t", TASK_DELETE, TASK_OK);
    assert_not_in_file(b->path, "", "nobody's matter");
    assert_not_in_file(b->path, "-wal", "nobody's matter");
    bench_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),         cmocka_unit_test(test_cancel_mid_step),
        cmocka_unit_test(test_interrupted),   cmocka_unit_test(test_interrupted_too_often),
        cmocka_unit_test(test_follow_up),     cmocka_unit_test(test_owners_and_keys),
        cmocka_unit_test(test_deleted_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
