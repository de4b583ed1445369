/* A store whose process is killed at any moment, two hundred times: nothing is lost, and what ran
 * twice says so. */
#include "hybrid/task_bench.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- kill -9 ---- */

enum { N_KILLS = 200, N_FILED = 60, KILL_PARTS = 3 };

static int log_fd;
static int n_asks_left; /* of the child, until it holds; 0 = it does not */

static void put_log(const char *text)
{
    if (write(log_fd, text, strlen(text)) != (ssize_t)strlen(text)) _exit(3);
}

/* A model that takes its time and writes down that it was asked. */
static calla_status logging_ask(void *user, json_t *request, const atomic_bool *cancelled,
                                task_answer *a, calla_error *err)
{
    char line[160], answer[64];
    const char *told = text_in(request, "messages.1.content");
    bool plan = json_object_get(request, "response_format");
    (void)user, (void)cancelled, (void)err;
    snprintf(line, sizeof line, "ask %s %.*s\n", plan ? "plan" : "step", (int)strcspn(told, "\n"),
             told);
    put_log(line);
    if (n_asks_left > 0 && --n_asks_left == 0) {
        put_log("held\n");
        for (;;) pause(); /* to be killed in the middle of a step */
    }
    pause_us(300 + random() % 1500);
    if (plan)
        return answer_with(
            PLAN(STEP("a", "\"input_1\"", "local") ", " STEP("b", "\"step_1\"", "local")), a);
    snprintf(answer, sizeof answer, "done %ld", random());
    return answer_with(answer, a);
}

/* Opens the store, runs its tasks, and files those that are missing; until it is killed, or done.
 */
static void run_child(const char *path, unsigned seed, int n_asks)
{
    task_store *store;
    task_runner *runner;
    calla_error err;
    task_request r;
    json_t *body = json_loads("{\"instructions\": \"go\", \"texts\": [\"x\"]}", 0, NULL), *list;
    srandom(seed);
    n_asks_left = n_asks;
    if (task_store_open(path, &store, &err) != CALLA_OK) _exit(4);
    const task_runner_options options = {
        .store = store, .ask = logging_ask, .n_interruptions = 1000};
    if (task_runner_start(&options, &runner, &err) != CALLA_OK) _exit(5);
    if (task_request_read(body, &r, &err) != CALLA_OK) _exit(6);
    for (int i = 0; i < N_FILED; i++) {
        char id[TASK_ID_BYTES], key[32], line[80];
        snprintf(id, sizeof id, "task-%d-%ld", i, random());
        snprintf(key, sizeof key, "key-%d", i);
        if (task_store_create(store, &r, "", key, id, &err) != CALLA_OK) _exit(7);
        snprintf(line, sizeof line, "filed %d %s\n", i, id);
        put_log(line); /* acknowledged */
        if (i % 4 == 3) pause_us(random() % 1000);
    }
    for (;;) {
        if (task_store_list(store, task_all, "queued", 1, &list, &err) != CALLA_OK) _exit(8);
        bool waits = json_array_size(list) > 0;
        json_decref(list);
        if (task_store_list(store, task_all, "running", 1, &list, &err) != CALLA_OK) _exit(9);
        waits = waits || json_array_size(list) > 0;
        json_decref(list);
        if (!waits) break;
        pause_us(500);
    }
    task_runner_stop(runner, clock_ns());
    task_runner_free(runner);
    task_store_close(store);
    _exit(0);
}

/* What the log says against what the store says. */
static void check_after_kills(task_store *store, const char *log, int *n_interrupted)
{
    json_t *list;
    calla_error err;
    assert_ok(task_store_list(store, task_all, NULL, 1000, &list, &err), &err);
    assert_int_equal(json_array_size(list), N_FILED); /* none lost, none twice */
    int n_attempts = 0, n_asked = 0;
    *n_interrupted = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *id = text_in(json_array_get(list, i), "id");
        char line[96];
        json_t *task;
        snprintf(line, sizeof line, " %s\n", id);
        assert_non_null(strstr(log, line));
        assert_ok(task_store_read(store, task_all, id, &task, &err), &err);
        assert_string_equal(text_in(task, "state"), "done");
        const json_t *steps = path_in(task, "rounds.0.steps");
        assert_int_equal(json_array_size(steps), 4);
        for (size_t k = 0; k < 4; k++) {
            const json_t *attempts = path_in(json_array_get(steps, k), "attempts");
            int n_done = 0;
            for (size_t a = 0; a < json_array_size(attempts); a++) {
                const char *outcome = text_in(json_array_get(attempts, a), "outcome");
                bool done = strcmp(outcome, "done") == 0;
                if (!done) assert_string_equal(outcome, "interrupted");
                n_done += done;
                *n_interrupted += !done;
                n_attempts++;
            }
            assert_int_equal(n_done, 1); /* silently doubled would be two, or none */
        }
        json_decref(task);
    }
    for (const char *p = log; (p = strstr(p, "ask ")); p++) n_asked++;
    /* The model was asked no more often than attempts were written down before. */
    assert_true(n_asked <= n_attempts);
    assert_true(n_asked >= n_attempts - *n_interrupted);
    json_decref(list);
}

/* Every id that was acknowledged under a number is the same: none was filed anew. */
static void check_filed(const char *log)
{
    char ids[N_FILED][TASK_ID_BYTES] = {{0}};
    for (const char *p = log; (p = strstr(p, "filed ")); p++) {
        int i;
        char id[TASK_ID_BYTES];
        if (sscanf(p, "filed %d %47s", &i, id) != 2) continue; /* cut off */
        assert_true(i >= 0 && i < N_FILED);
        if (*ids[i]) assert_string_equal(ids[i], id);
        snprintf(ids[i], sizeof ids[i], "%s", id);
    }
}

/* Waits until the child holds, as it says in the log after `before`; false: it has ended. */
static bool await_held(pid_t child, off_t before)
{
    static char text[1 << 16];
    for (;;) {
        siginfo_t info = {0};
        ssize_t n = pread(log_fd, text, sizeof text, before);
        if (n > 0 && memmem(text, (size_t)n, "held\n", 5)) return true;
        assert_int_equal(waitid(P_PID, (id_t)child, &info, WEXITED | WNOHANG | WNOWAIT), 0);
        if (info.si_pid == child) return false;
        pause_us(200);
    }
}

/* Three stores share the kills, so that each is killed in all stages of its work. */
static void test_kill(void **state)
{
    (void)state;
    calla_error err;
    int n_kills = 0, n_held = 0, n_interrupted_at_all = 0;
    srandom(11);
    for (int part = 0; n_kills < N_KILLS || part < KILL_PARTS; part++) {
        const char *dir = temporary_dir();
        char path[600], log_path[600];
        bool done = false;
        int n_interrupted;
        snprintf(path, sizeof path, "%s/tasks.db", dir);
        snprintf(log_path, sizeof log_path, "%s/log", dir);
        log_fd = open(log_path, O_CREAT | O_RDWR | O_APPEND | O_CLOEXEC, 0600);
        while (!done) {
            int status;
            unsigned seed = (unsigned)random();
            int64_t us = 3000 + random() % 25000;
            bool is_killed = n_kills < N_KILLS * (part + 1) / KILL_PARTS;
            int n_asks = is_killed && us % 2 ? 1 + (int)(us / 2 % 6) : 0;
            off_t before = lseek(log_fd, 0, SEEK_END);
            pid_t child = fork();
            assert_true(child >= 0);
            if (child == 0) run_child(path, seed, n_asks);
            if (n_asks > 0)
                n_held += await_held(child, before);
            else if (is_killed)
                pause_us(us); /* at any moment, also while it opens */
            if (is_killed) kill(child, SIGKILL);
            assert_int_equal(waitpid(child, &status, 0), child);
            done = WIFEXITED(status);
            if (done) assert_int_equal(WEXITSTATUS(status), 0);
            n_kills += !done;
        }
        close(log_fd);
        task_store *store;
        char *log = read_test_file(log_path, NULL);
        assert_ok(task_store_open(path, &store, &err), &err);
        check_after_kills(store, log, &n_interrupted);
        check_filed(log);
        n_interrupted_at_all += n_interrupted;
        task_store_close(store);
        free(log);
    }
    print_message("%d kills, %d attempts interrupted\n", n_kills, n_interrupted_at_all);
    assert_true(n_kills >= N_KILLS);
    assert_true(n_held > 0 && n_interrupted_at_all >= n_held);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kill),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
