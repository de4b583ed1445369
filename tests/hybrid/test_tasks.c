/* Tasks without a server: requests, plans, the store, and the runner with models that answer as
 * they are told; and a store whose process is killed at any moment, two hundred times. */
#include "base/clock.h"
#include "hybrid/fake_cloud.h"
#include "hybrid/task_plan.h"
#include "hybrid/task_runner.h"
#include "support/files.h"
#include "support/support.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CARD "4111 1111 1111 1111"

static const task_owner all;

static json_t *json_of(const char *text)
{
    json_error_t why;
    json_t *value = json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
    if (!value) fail_msg("%s: %s", why.text, text);
    return value;
}

static void pause_us(int64_t us)
{
    const struct timespec t = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
    nanosleep(&t, NULL);
}

/* By path: keys and indices divided by '.'. */
static json_t *at(const json_t *value, const char *path)
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

static const char *text_at_path(const json_t *value, const char *path)
{
    const char *text = json_string_value(at(value, path));
    return text ? text : "";
}

/* ---- requests ---- */

static void test_requests(void **state)
{
    (void)state;
    static const struct {
        const char *body, *message; /* NULL = it is good */
    } cases[] = {
        {"{\"instructions\": \"a\"}", NULL},
        {"{\"instructions\": \"a\", \"texts\": [\"b\", \"\"], \"files\": [{\"name\": \"c\", "
         "\"text\": \"d\"}], \"policy\": {\"cloud\": false, \"categories\": {\"email\": "
         "\"keep_local\", \"finance\": \"ask\"}}, \"budget\": {\"tokens\": 5, \"cost\": 0.5, "
         "\"currency\": \"EUR\"}, \"priority\": -100, \"paused\": true}",
         NULL},
        {"{\"instructions\": \"a\", \"texts\": null, \"policy\": null}", NULL},
        {"[]", "task: must be an object"},
        {"{}", "instructions: is missing"},
        {"{\"instructions\": \"\"}", "instructions: 0 bytes"},
        {"{\"instructions\": 1}", "instructions: must be a string"},
        {"{\"instructions\": \"a\\u0000b\"}", "instructions: must not contain a NUL"},
        {"{\"instructions\": \"a\", \"steps\": []}", "steps: there is no such field"},
        {"{\"instructions\": \"a\", \"texts\": \"b\"}", "texts: must be an array"},
        {"{\"instructions\": \"a\", \"texts\": [1]}", "texts[0]: must be a string"},
        {"{\"instructions\": \"a\", \"files\": [\"/etc/passwd\"]}", "files[0]: must be an object"},
        {"{\"instructions\": \"a\", \"files\": [{\"name\": \"b\"}]}", "files[0]: must be"},
        {"{\"instructions\": \"a\", \"files\": [{\"name\": \"b\", \"text\": 1}]}",
         "files[0].text: must be a string"},
        {"{\"instructions\": \"a\", \"policy\": {\"clouds\": true}}", "policy.clouds: there is no"},
        {"{\"instructions\": \"a\", \"policy\": {\"categories\": {\"mail\": \"ask\"}}}",
         "policy.categories.mail: there is no such category"},
        {"{\"instructions\": \"a\", \"policy\": {\"categories\": {\"email\": \"no\"}}}",
         "policy.categories.email: must be allow"},
        {"{\"instructions\": \"a\", \"policy\": {\"on_ask\": \"allow\"}}",
         "policy.on_ask: must be"},
        {"{\"instructions\": \"a\", \"budget\": {\"tokens\": 0}}", "budget.tokens: must be"},
        {"{\"instructions\": \"a\", \"budget\": {\"cost\": -1}}", "budget.cost: must be"},
        {"{\"instructions\": \"a\", \"priority\": 101}", "priority: must be"},
        {"{\"instructions\": \"a\", \"paused\": 1}", "paused: must be true or false"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        task_request r;
        calla_error err;
        json_t *body = json_of(cases[i].body);
        calla_status status = task_request_read(body, &r, &err);
        if (cases[i].message)
            assert_error(status, CALLA_ERR_INPUT, &err, cases[i].message);
        else
            assert_ok(status, &err);
        json_decref(body);
    }
}

static void test_rules(void **state)
{
    (void)state;
    calla_error err;
    task_rules rules;
    json_t *object = json_of("{\"categories\": {\"finance\": \"ask\", \"iban\": \"redact\"}}");
    assert_ok(task_rules_read(object, &rules, &err), &err);
    assert_true(rules.may_use_cloud);
    assert_int_equal(rules.at_least[DETECT_PAYMENT_CARD], POLICY_ASK);
    assert_int_equal(rules.at_least[DETECT_IBAN], POLICY_ASK); /* the stricter of both */
    assert_int_equal(rules.at_least[DETECT_EMAIL], POLICY_ALLOW);
    json_decref(object);
}

/* ---- a store and a runner ---- */

typedef struct bench {
    task_store *store;
    task_runner *runner;
    hybrid *hybrid;
    fake_cloud *cloud;
    char path[600], policy[600], audit[600];
    /* The local model: its plan, and how it answers. */
    const char *plan;
    bool plan_is_cut;
    calla_status status; /* of its answers to steps, CALLA_OK */
    atomic_bool hold;    /* steps (not plans) wait until it is false or they are cancelled */
    atomic_int n_asked, n_planned;
    pthread_mutex_t lock;
    strbuf heard; /* all requests */
} bench;

static calla_status answer_with(const char *text, task_answer *a)
{
    *a = (task_answer){
        .text = strdup(text), .n_bytes = strlen(text), .input_tokens = 10, .output_tokens = 5};
    return CALLA_OK;
}

/* A step's answer is "did: " and the beginning of what it was told. */
static calla_status fake_ask(void *user, json_t *request, const atomic_bool *cancelled,
                             task_answer *a, calla_error *err)
{
    bench *b = user;
    const char *told = text_at_path(request, "messages.1.content");
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

static void start_runner(bench *b)
{
    calla_error err;
    const task_runner_options options = {.store = b->store,
                                         .hybrid = b->hybrid,
                                         .ask = fake_ask,
                                         .ask_user = b,
                                         .n_interruptions = 3};
    assert_ok(task_runner_start(&options, &b->runner, &err), &err);
}

static void stop_runner(bench *b)
{
    task_runner_stop(b->runner, clock_ns());
    task_runner_free(b->runner);
    b->runner = NULL;
}

/* With a cloud if `rules` is not NULL. */
static bench *open_bench(const char *rules)
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

static void close_bench(bench *b)
{
    if (b->runner) stop_runner(b);
    task_store_close(b->store);
    if (b->hybrid) hybrid_stop(b->hybrid, clock_ns());
    hybrid_close(b->hybrid);
    if (b->cloud) fake_cloud_stop(b->cloud);
    strbuf_free(&b->heard);
    pthread_mutex_destroy(&b->lock);
    free(b);
}

static void file_task(bench *b, const char *id, const char *body)
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

static json_t *read_task(bench *b, const char *id)
{
    calla_error err;
    json_t *task;
    assert_ok(task_store_read(b->store, all, id, &task, &err), &err);
    return task;
}

/* The task once it is in this state; it fails in another that does not end by itself. */
static json_t *await(bench *b, const char *id, const char *wanted)
{
    for (;;) {
        json_t *task = read_task(b, id);
        const char *state = text_at_path(task, "state");
        if (strcmp(state, wanted) == 0) return task;
        if (strcmp(state, "queued") != 0 && strcmp(state, "running") != 0) {
            char *text = json_dumps(task, JSON_INDENT(1));
            fail_msg("the task is not %s: %s", wanted, text);
        }
        json_decref(task);
        pause_us(1000);
    }
}

static void expect_result(bench *b, const char *id, const char *result)
{
    json_t *task = await(b, id, "done");
    assert_string_equal(text_at_path(task, "result"), result);
    json_decref(task);
}

#define STEP(what, inputs, where)                                                                  \
    "{\"title\": \"t\", \"instructions\": \"" what "\", \"inputs\": [" inputs                      \
    "], \"where\": \"" where "\", \"why\": \"w\"}"
#define PLAN(steps) "{\"steps\": [" steps "]}"

static void command(bench *b, const char *id, task_command c, task_result expected)
{
    calla_error err;
    task_result result;
    assert_ok(task_store_command(b->store, all, id, c, &result, &err), &err);
    assert_int_equal(result, expected);
}

/* ---- plans ---- */

static const char allowing[] =
    "{\"cloud\": {\"retries\": 0}, \"prices\": {\"far\": {\"input\": 1000, \"output\": 2000, "
    "\"currency\": \"EUR\"}}}";

static void test_plans(void **state)
{
    (void)state;
    char label[] = "input_1", empty[] = "", text[] = "x";
    task_input input = {.label = label, .name = empty, .text = text, .n_bytes = 1};
    const task_work w = {.inputs = &input, .n_inputs = 1, .asked = text};
    static const char *const good[] = {
        PLAN(STEP("a", "", "local")),
        PLAN(STEP("a", "\"input_1\"", "cloud") ", " STEP("b", "\"step_1\", \"input_1\"", "local")),
    };
    static const char *const bad[] = {
        "",
        "{",
        "[]",
        "{\"steps\": []}",
        PLAN(STEP("a", "\"input_2\"", "local")),
        PLAN(STEP("a", "\"step_1\"", "local")), /* its own result */
        PLAN(STEP("a", "\"step_2\"", "local") ", " STEP("b", "", "local")),
        PLAN(STEP("a", "1", "local")),
        PLAN(STEP("a", "", "moon")),
        PLAN(STEP("", "", "local")),
        PLAN("1"),
        PLAN("{\"title\": \"t\"}"),
        PLAN(STEP("a", "", "local")) "x",
    };
    task_plan p;
    calla_error err;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_ok(task_plan_read(&w, good[i], strlen(good[i]), &p, &err), &err);
        assert_int_equal(p.n_steps, i + 1);
        task_plan_free(&p);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (task_plan_read(&w, bad[i], strlen(bad[i]), &p, &err) != CALLA_ERR_INPUT)
            fail_msg("taken: %s", bad[i]);
        task_plan_free(&p);
    }
}

static void test_plan_of_no_use(void **state)
{
    (void)state;
    bench *b = open_bench(NULL);
    b->plan = "{\"steps\": [{\"title\": \"it was cut o";
    start_runner(b);
    file_task(b, "t", "{\"instructions\": \"Count.\", \"texts\": [\"one two\"]}");
    expect_result(b, "t", "did: Count.\n\n[input_1]\non");
    json_t *task = read_task(b, "t");
    assert_int_equal(json_array_size(at(task, "rounds.0.steps")), 2);
    assert_non_null(strstr(text_at_path(task, "rounds.0.steps.1.why"), "plan is of no use"));
    assert_string_equal(text_at_path(task, "rounds.0.steps.1.attempts.0.where"), "local");
    json_decref(task);
    close_bench(b);
}

/* Without a plan of use, texts that may leave go there and the others stay; a follow-up is one
 * step, and so is what is asked for with something sensitive in it. */
static void test_plan_by_texts(void **state)
{
    (void)state;
    bench *b = open_bench(allowing);
    calla_error err;
    task_result result;
    b->plan = "";
    start_runner(b);
    file_task(b, "t",
              "{\"instructions\": \"Sum up.\", \"texts\": [\"Card " CARD "\", \"A river.\"]}");
    json_t *task = await(b, "t", "done");
    const json_t *steps = at(task, "rounds.0.steps");
    assert_int_equal(json_array_size(steps), 4);
    assert_string_equal(text_at_path(steps, "1.attempts.0.where"), "cloud");
    assert_string_equal(text_at_path(steps, "1.inputs.0"), "input_2");
    assert_string_equal(text_at_path(steps, "2.attempts.0.where"), "local");
    assert_string_equal(text_at_path(steps, "2.inputs.0"), "input_1");
    assert_string_equal(text_at_path(steps, "3.kind"), "merge");
    json_decref(task);
    assert_ok(task_store_follow_up(b->store, all, "t", "Shorter.", &result, &err), &err);
    task = await(b, "t", "done");
    steps = at(task, "rounds.1.steps");
    assert_int_equal(json_array_size(steps), 2);
    assert_string_equal(text_at_path(steps, "1.planned"), "local");
    assert_int_equal(json_array_size(at(steps, "1.inputs")), 3);
    json_decref(task);
    static const char *const bodies[] = {
        "{\"instructions\": \"i\", \"texts\": [\"A river.\"]}",
        "{\"instructions\": \"i\", \"texts\": [\"A river.\"], \"policy\": {\"cloud\": false}}",
        "{\"instructions\": \"Is " CARD " a card?\", \"texts\": [\"A river.\"]}",
    };
    static const char *const places[] = {"cloud", "local", "local"};
    for (int i = 0; i < 3; i++) {
        char id[8];
        snprintf(id, sizeof id, "t%d", i);
        file_task(b, id, bodies[i]);
        task = await(b, id, "done");
        steps = at(task, "rounds.0.steps");
        assert_int_equal(json_array_size(steps), 2);
        assert_string_equal(text_at_path(steps, "1.planned"), places[i]);
        assert_string_equal(text_at_path(steps, "1.attempts.0.where"), places[i]);
        json_decref(task);
    }
    char *sent = fake_cloud_received(b->cloud);
    assert_null(strstr(sent, "4111"));
    free(sent);
    close_bench(b);
}

/* A plan that has all its tokens is not whole, whatever stands in it. */
static void test_plan_too_long(void **state)
{
    (void)state;
    bench *b = open_bench(NULL);
    b->plan = "{\"steps\": [{\"title\": \"and so on and so on";
    b->plan_is_cut = true;
    start_runner(b);
    file_task(b, "t", "{\"instructions\": \"Count.\"}");
    json_t *task = await(b, "t", "done");
    assert_non_null(strstr(text_at_path(task, "rounds.0.steps.1.why"), "it is too long"));
    assert_non_null(
        strstr(text_at_path(task, "rounds.0.steps.0.attempts.0.message"), "was cut off"));
    json_decref(task);
    close_bench(b);
}

/* ---- here and there ---- */

#define SPLIT                                                                                      \
    PLAN(STEP("first", "\"input_1\"", "cloud") ", " STEP(                                          \
        "second", "\"input_2\"", "cloud") ", " STEP("third", "\"step_2\"", "cloud"))

/* What is sensitive stays, and so does what comes from it; nothing of it is in what was sent, and
 * the plan was made without it. */
static void test_split(void **state)
{
    (void)state;
    bench *b = open_bench(allowing);
    b->plan = SPLIT;
    start_runner(b);
    file_task(b, "t",
              "{\"instructions\": \"Sum up.\", \"texts\": [\"A river.\", \"Card " CARD "\"]}");
    json_t *task = await(b, "t", "done");
    const json_t *steps = at(task, "rounds.0.steps");
    assert_int_equal(json_array_size(steps), 5);
    assert_string_equal(text_at_path(steps, "0.attempts.0.where"), "local");
    assert_string_equal(text_at_path(steps, "1.attempts.0.where"), "cloud");
    assert_string_equal(text_at_path(steps, "1.result"), "from afar");
    assert_string_equal(text_at_path(steps, "2.attempts.0.where"), "local");
    assert_string_equal(text_at_path(steps, "2.attempts.0.reasons.0"), "input_2 is sensitive");
    assert_string_equal(text_at_path(steps, "3.attempts.0.where"), "local");
    assert_string_equal(text_at_path(steps, "3.attempts.0.reasons.0"), "step_2 is sensitive");
    assert_string_equal(text_at_path(steps, "4.kind"), "merge");
    assert_string_equal(text_at_path(steps, "4.attempts.0.where"), "local");
    assert_int_equal(json_integer_value(at(task, "usage.cloud.input_tokens")), 100);
    assert_int_equal(json_integer_value(at(task, "usage.local.output_tokens")), 20);
    assert_true(json_real_value(at(task, "usage.cost")) == 0.2);
    assert_string_equal(text_at_path(task, "usage.currency"), "EUR");
    assert_true(json_is_false(at(task, "usage.estimated")));
    json_decref(task);
    char *sent = fake_cloud_received(b->cloud);
    assert_non_null(strstr(sent, "A river."));
    assert_null(strstr(sent, "4111"));
    assert_int_equal(fake_cloud_n_requests(b->cloud), 1);
    free(sent);
    const char *plan_end = strstr(b->heard.data, "response_format");
    const char *card = strstr(b->heard.data, CARD);
    assert_true(plan_end && card && card > plan_end); /* the first that heard it was step 2 */
    close_bench(b);
}

static void test_own_rules(void **state)
{
    (void)state;
    bench *b = open_bench("{\"categories\": {\"personal\": \"allow\"}}");
    b->plan = PLAN(STEP("a", "\"input_1\"", "cloud"));
    start_runner(b);
    static const char *const bodies[] = {
        "{\"instructions\": \"i\", \"texts\": [\"to jane.doe@corp-mail.com\"]}",
        "{\"instructions\": \"i\", \"texts\": [\"to jane.doe@corp-mail.com\"], \"policy\": "
        "{\"categories\": {\"email\": \"keep_local\"}}}",
        "{\"instructions\": \"i\", \"texts\": [\"nothing\"], \"policy\": {\"cloud\": false}}",
        /* It cannot allow what the server's policy keeps. */
        "{\"instructions\": \"i\", \"texts\": [\"Card " CARD "\"], \"policy\": {\"categories\": "
        "{\"finance\": \"allow\"}}}",
    };
    static const char *const places[] = {"cloud", "local", "local", "local"};
    for (int i = 0; i < 4; i++) {
        char id[8];
        snprintf(id, sizeof id, "t%d", i);
        file_task(b, id, bodies[i]);
        json_t *task = await(b, id, "done");
        assert_string_equal(text_at_path(task, "rounds.0.steps.1.attempts.0.where"), places[i]);
        json_decref(task);
    }
    assert_int_equal(fake_cloud_n_requests(b->cloud), 1);
    close_bench(b);
}

static void test_cloud_down(void **state)
{
    (void)state;
    bench *b = open_bench("{\"cloud\": {\"retries\": 0}}");
    const fake_answer down = {.status = 503, .body = "{}"};
    fake_cloud_script(b->cloud, &down, 1);
    b->plan = PLAN(STEP("a", "", "cloud"));
    start_runner(b);
    file_task(b, "t", "{\"instructions\": \"i\"}");
    json_t *task = await(b, "t", "done");
    const json_t *attempts = at(task, "rounds.0.steps.1.attempts");
    assert_int_equal(json_array_size(attempts), 2);
    assert_string_equal(text_at_path(attempts, "0.outcome"), "failed");
    assert_string_equal(text_at_path(attempts, "0.where"), "cloud");
    assert_string_equal(text_at_path(attempts, "1.outcome"), "done");
    assert_string_equal(text_at_path(attempts, "1.where"), "local");
    json_decref(task);
    stop_runner(b);
    close_bench(b);
    b = open_bench("{\"cloud\": {\"retries\": 0}, \"route\": {\"fallback\": \"never\"}}");
    fake_cloud_script(b->cloud, &down, 1);
    b->plan = PLAN(STEP("a", "", "cloud"));
    start_runner(b);
    file_task(b, "t", "{\"instructions\": \"i\"}");
    task = await(b, "t", "failed");
    assert_string_equal(text_at_path(task, "error.code"), "cloud_error");
    json_decref(task);
    close_bench(b);
}

/* What the cloud does not say counts as what it may have been at most. */
static void test_cloud_without_usage(void **state)
{
    (void)state;
    bench *b = open_bench(allowing);
    fake_answer answer = {.body = "{\"choices\": [{\"index\": 0, \"message\": {\"role\": "
                                  "\"assistant\", \"content\": \"x\"}}]}"};
    fake_cloud_script(b->cloud, &answer, 1);
    b->plan = PLAN(STEP("a", "", "cloud"));
    start_runner(b);
    file_task(b, "t0", "{\"instructions\": \"i\"}");
    json_t *task = await(b, "t0", "done");
    assert_true(json_is_true(at(task, "usage.estimated")));
    assert_true(json_integer_value(at(task, "usage.cloud.output_tokens")) > 1000);
    assert_true(json_real_value(at(task, "usage.cost")) > 1);
    json_decref(task);
    /* An answer without content is none. */
    answer.body = "{\"choices\": []}";
    fake_cloud_script(b->cloud, &answer, 1);
    file_task(b, "t1", "{\"instructions\": \"i\"}");
    task = await(b, "t1", "failed");
    assert_string_equal(text_at_path(task, "error.code"), "cloud_error");
    json_decref(task);
    close_bench(b);
}

/* The policy's rules for a client hold for its tasks, which know its key by the hash alone. */
static void test_client_rules(void **state)
{
    (void)state;
    unsigned char digest[SHA256_BYTES];
    char hex[SHA256_HEX], rules[300], id[TASK_ID_BYTES] = "t";
    task_request r;
    calla_error err;
    sha256_of("key-b", 5, digest);
    hex_write(digest, sizeof digest, hex);
    snprintf(rules, sizeof rules,
             "{\"clients\": [{\"id\": \"b\", \"key_sha256\": \"%s\", \"cloud\": false}]}", hex);
    bench *b = open_bench(rules);
    b->plan = PLAN(STEP("a", "", "cloud"));
    start_runner(b);
    json_t *body = json_of("{\"instructions\": \"i\"}");
    assert_ok(task_request_read(body, &r, &err), &err);
    assert_ok(task_store_create(b->store, &r, hex, NULL, id, &err), &err);
    json_t *task = await(b, "t", "done");
    assert_string_equal(text_at_path(task, "rounds.0.steps.1.attempts.0.where"), "local");
    json_decref(task);
    file_task(b, "other", "{\"instructions\": \"i\"}");
    task = await(b, "other", "done");
    assert_string_equal(text_at_path(task, "rounds.0.steps.1.attempts.0.where"), "cloud");
    json_decref(task);
    json_decref(body);
    close_bench(b);
}

static void test_local_failure(void **state)
{
    (void)state;
    bench *b = open_bench(NULL);
    b->plan = PLAN(STEP("a", "", "cloud"));
    b->status = CALLA_ERR_INPUT;
    start_runner(b);
    file_task(b, "t", "{\"instructions\": \"i\"}");
    json_t *task = await(b, "t", "failed");
    assert_string_equal(text_at_path(task, "error.message"), "the model does not like it");
    json_decref(task);
    close_bench(b);
}

/* ---- consent ---- */

static const char asking[] = "{\"categories\": {\"payment_card\": \"ask\"}}";
#define CARD_TASK "{\"instructions\": \"i\", \"texts\": [\"Card " CARD "\"]}"
#define CARD_TASK_ALONE                                                                            \
    "{\"instructions\": \"i\", \"texts\": [\"Card " CARD                                           \
    "\"], \"policy\": {\"on_ask\": \"keep_local\"}}"

static bench *open_asking(void)
{
    bench *b = open_bench(asking);
    b->plan = PLAN(STEP("a", "\"input_1\"", "cloud") ", " STEP("b", "\"step_1\"", "cloud"));
    start_runner(b);
    return b;
}

/* The token the task waits for; checks what is asked. */
static void take_token(bench *b, const char *id, char token[80])
{
    json_t *task = await(b, id, "waiting_for_consent");
    char *text = json_dumps(at(task, "consent"), 0);
    assert_string_equal(text_at_path(task, "consent.findings.0.category"), "payment_card");
    assert_string_equal(text_at_path(task, "consent.destination"), hybrid_origin(b->hybrid));
    assert_null(strstr(text, CARD));
    assert_int_equal(json_integer_value(at(task, "consent.step")), 1);
    snprintf(token, 80, "%s", text_at_path(task, "consent.token"));
    assert_true(strlen(token) > 16);
    free(text);
    json_decref(task);
}

static void answer_with_token(bench *b, const char *id, const char *token, task_result expected)
{
    calla_error err;
    task_result result;
    assert_ok(task_store_answer(b->store, all, id, token, &result, &err), &err);
    assert_int_equal(result, expected);
}

/* Nothing leaves before the yes; then this step does, and what it made stays. Other tasks go on. */
static void test_consent(void **state)
{
    (void)state;
    char token[80], other[80];
    bench *b = open_asking();
    file_task(b, "t", CARD_TASK);
    take_token(b, "t", token);
    file_task(b, "alone", CARD_TASK_ALONE);
    json_t *task = await(b, "alone", "done");
    assert_string_equal(text_at_path(task, "rounds.0.steps.1.attempts.0.where"), "local");
    json_decref(task);
    assert_int_equal(fake_cloud_n_requests(b->cloud), 0);
    file_task(b, "u", CARD_TASK);
    take_token(b, "u", other);
    answer_with_token(b, "t", other, TASK_WRONG_TOKEN);
    answer_with_token(b, "t", "", TASK_WRONG_TOKEN);
    answer_with_token(b, "none", token, TASK_UNKNOWN);
    answer_with_token(b, "alone", token, TASK_WRONG_STATE);
    assert_int_equal(fake_cloud_n_requests(b->cloud), 0);
    answer_with_token(b, "t", token, TASK_OK);
    task = await(b, "t", "done");
    const json_t *steps = at(task, "rounds.0.steps");
    assert_string_equal(text_at_path(steps, "1.attempts.0.where"), "cloud");
    assert_non_null(strstr(text_at_path(steps, "1.attempts.0.reasons.1"), "agreed to by consent"));
    assert_string_equal(text_at_path(steps, "2.attempts.0.where"), "local");
    assert_string_equal(text_at_path(steps, "2.attempts.0.reasons.0"), "step_1 is sensitive");
    assert_true(json_is_null(at(task, "consent")));
    json_decref(task);
    answer_with_token(b, "t", token, TASK_WRONG_STATE);
    answer_with_token(b, "u", NULL, TASK_OK); /* no */
    task = await(b, "u", "done");
    assert_string_equal(text_at_path(task, "rounds.0.steps.1.attempts.0.where"), "local");
    json_decref(task);
    assert_int_equal(fake_cloud_n_requests(b->cloud), 1);
    file_task(b, "v", CARD_TASK);
    take_token(b, "v", token);
    command(b, "v", TASK_CANCEL, TASK_OK);
    answer_with_token(b, "v", token, TASK_WRONG_STATE);
    json_decref(await(b, "v", "cancelled"));
    close_bench(b);
}

/* Tokens end with the program: the question stays, and a yes to it is asked for anew. */
static void test_consent_restart(void **state)
{
    (void)state;
    char token[80], again[80];
    calla_error err;
    bench *b = open_asking();
    file_task(b, "t", CARD_TASK);
    take_token(b, "t", token);
    stop_runner(b);
    hybrid_stop(b->hybrid, clock_ns());
    hybrid_close(b->hybrid);
    task_store_close(b->store);
    const hybrid_options options = {
        .url = fake_cloud_url(b->cloud), .model = "far", .policy = b->policy, .audit = b->audit};
    assert_ok(hybrid_open(&options, &b->hybrid, &err), &err);
    assert_ok(task_store_open(b->path, &b->store, &err), &err);
    start_runner(b);
    take_token(b, "t", again);
    assert_string_equal(again, token);
    answer_with_token(b, "t", token, TASK_OK);
    take_token(b, "t", again);
    assert_string_not_equal(again, token);
    assert_int_equal(fake_cloud_n_requests(b->cloud), 0);
    answer_with_token(b, "t", again, TASK_OK);
    json_decref(await(b, "t", "done"));
    assert_int_equal(fake_cloud_n_requests(b->cloud), 1);
    close_bench(b);
}

/* ---- budgets ---- */

static void test_budgets(void **state)
{
    (void)state;
    bench *b = open_bench(allowing);
    b->plan = PLAN(STEP("a", "", "cloud"));
    start_runner(b);
    file_task(b, "t0", "{\"instructions\": \"i\", \"budget\": {\"tokens\": 100}}");
    json_t *task = await(b, "t0", "failed");
    assert_string_equal(text_at_path(task, "error.code"), "budget_exhausted");
    assert_int_equal(atomic_load(&b->n_planned), 0); /* before anything is used */
    json_decref(task);
    /* Tokens bound what an answer may have. */
    file_task(b, "t1", "{\"instructions\": \"i\", \"budget\": {\"tokens\": 2000}}");
    task = await(b, "t1", "done");
    json_decref(task);
    char *body = fake_cloud_last_body(b->cloud);
    json_t *sent = json_of(body);
    int64_t most = json_integer_value(json_object_get(sent, "max_tokens"));
    assert_true(most >= 16 && most < 2000 - 15);
    json_decref(sent);
    free(body);
    /* Money: what it might cost at most counts before it is sent. */
    int n = fake_cloud_n_requests(b->cloud);
    file_task(b, "t2", "{\"instructions\": \"i\", \"budget\": {\"cost\": 0.01}}");
    task = await(b, "t2", "done");
    assert_string_equal(text_at_path(task, "rounds.0.steps.1.attempts.0.where"), "local");
    assert_non_null(
        strstr(text_at_path(task, "rounds.0.steps.1.attempts.0.reasons.0"), "it might cost"));
    json_decref(task);
    file_task(b, "t3",
              "{\"instructions\": \"i\", \"budget\": {\"cost\": 9, \"currency\": \"USD\"}}");
    task = await(b, "t3", "done");
    assert_string_equal(text_at_path(task, "rounds.0.steps.1.attempts.0.where"), "local");
    json_decref(task);
    assert_int_equal(fake_cloud_n_requests(b->cloud), n);
    file_task(b, "t4", "{\"instructions\": \"i\", \"budget\": {\"cost\": 100}}");
    task = await(b, "t4", "done");
    assert_string_equal(text_at_path(task, "rounds.0.steps.1.attempts.0.where"), "cloud");
    json_decref(task);
    close_bench(b);
}

static int64_t judged;

static char *fake_judge(void *user, const char *text, size_t n_bytes, int64_t deadline_ns)
{
    (void)user, (void)text, (void)n_bytes, (void)deadline_ns;
    judged += 700;
    return strdup("{\"findings\": [], \"sure\": true}");
}

/* What the look at a request uses counts, before it is sent and after. */
static void test_budget_of_check(void **state)
{
    (void)state;
    bench *b = open_bench("{\"model_check\": {\"when\": \"always\"}}");
    calla_error err;
    b->plan = PLAN(STEP("a", "", "cloud"));
    judged = 0;
    const task_runner_options options = {.store = b->store,
                                         .hybrid = b->hybrid,
                                         .ask = fake_ask,
                                         .ask_user = b,
                                         .judge = fake_judge,
                                         .judge_tokens = &judged,
                                         .n_interruptions = 3};
    assert_ok(task_runner_start(&options, &b->runner, &err), &err);
    file_task(b, "t0", "{\"instructions\": \"i\"}");
    json_t *task = await(b, "t0", "done");
    assert_string_equal(text_at_path(task, "rounds.0.steps.1.attempts.0.where"), "cloud");
    int64_t n = json_integer_value(at(task, "usage.check_tokens"));
    assert_true(n > 0 && n % 700 == 0);
    json_decref(task);
    int n_sent = fake_cloud_n_requests(b->cloud);
    b->plan = PLAN(STEP("another", "", "cloud")); /* a text that was not looked at yet */
    file_task(b, "t1",
              "{\"instructions\": \"j\", \"budget\": "
              "{\"tokens\": 1900}}");
    task = await(b, "t1", "done");
    assert_int_equal(json_integer_value(at(task, "usage.check_tokens")), 700);
    json_decref(task);
    char *body = fake_cloud_last_body(b->cloud);
    json_t *sent = json_of(body);
    int64_t most = json_integer_value(json_object_get(sent, "max_tokens"));
    assert_true(most >= 16 && most < 1900 - 700 - 15);
    json_decref(sent);
    free(body);
    assert_int_equal(fake_cloud_n_requests(b->cloud), n_sent + 1);
    json_t *totals;
    assert_ok(task_store_totals(b->store, &totals, &err), &err);
    assert_int_equal((int)json_number_value(at(totals, "tasks.done")), 2);
    assert_int_equal((int)json_number_value(at(totals, "tasks.failed")), 0);
    assert_int_equal((int)json_number_value(at(totals, "tokens.cloud")), 300);
    assert_true(json_number_value(at(totals, "tokens.check")) >= 700);
    json_decref(totals);
    close_bench(b);
}

/* ---- order, pause, cancel ---- */

static void test_order(void **state)
{
    (void)state;
    bench *b = open_bench(NULL);
    json_t *list;
    calla_error err;
    task_result result;
    b->plan = PLAN(STEP("a", "", "local"));
    file_task(b, "low", "{\"instructions\": \"low\", \"priority\": -1}");
    file_task(b, "first", "{\"instructions\": \"i\"}");
    file_task(b, "second", "{\"instructions\": \"i\"}");
    file_task(b, "high", "{\"instructions\": \"i\", \"priority\": 7}");
    file_task(b, "paused", "{\"instructions\": \"i\", \"priority\": 100, \"paused\": true}");
    assert_ok(task_store_set_priority(b->store, all, "second", 3, &result, &err), &err);
    assert_ok(task_store_list(b->store, all, NULL, 100, &list, &err), &err);
    static const char *const order[] = {"paused", "high", "second", "first", "low"};
    for (size_t i = 0; i < 5; i++)
        assert_string_equal(text_at_path(json_array_get(list, i), "id"), order[i]);
    json_decref(list);
    start_runner(b);
    int64_t before = 0;
    for (size_t i = 1; i < 5; i++) {
        json_t *task = await(b, order[i], "done");
        int64_t number = json_integer_value(at(task, "rounds.0.steps.1.attempts.0.attempt"));
        assert_true(number > before);
        before = number;
        json_decref(task);
    }
    json_t *task = read_task(b, "paused");
    assert_string_equal(text_at_path(task, "state"), "queued");
    json_decref(task);
    command(b, "paused", TASK_RESUME, TASK_OK);
    json_decref(await(b, "paused", "done"));
    command(b, "paused", TASK_PAUSE, TASK_WRONG_STATE);
    command(b, "paused", TASK_DELETE, TASK_OK);
    command(b, "paused", TASK_DELETE, TASK_UNKNOWN);
    close_bench(b);
}

static void await_asked(bench *b, int n)
{
    while (atomic_load(&b->n_asked) < n) pause_us(1000);
}

static void test_cancel_mid_step(void **state)
{
    (void)state;
    bench *b = open_bench(NULL);
    b->plan = PLAN(STEP("a", "", "local"));
    atomic_store(&b->hold, true);
    start_runner(b);
    file_task(b, "t", "{\"instructions\": \"i\"}");
    file_task(b, "gone", "{\"instructions\": \"i\"}");
    file_task(b, "next", "{\"instructions\": \"i\"}");
    await_asked(b, 1);
    command(b, "t", TASK_CANCEL, TASK_OK);
    await_asked(b, 2); /* the next task's step runs: the first one's has ended */
    json_t *task = read_task(b, "t");
    assert_string_equal(text_at_path(task, "state"), "cancelled");
    assert_string_equal(text_at_path(task, "rounds.0.steps.1.attempts.0.outcome"), "cancelled");
    assert_true(json_is_null(at(task, "result")));
    json_decref(task);
    command(b, "t", TASK_CANCEL, TASK_WRONG_STATE);
    command(b, "gone", TASK_DELETE, TASK_OK);
    await_asked(b, 3);
    assert_null(read_task(b, "gone"));
    command(b, "next", TASK_PAUSE, TASK_OK); /* its step runs on */
    atomic_store(&b->hold, false);
    json_decref(await(b, "next", "done"));
    close_bench(b);
}

/* A runner that stops in the middle of a step leaves it to the next one, marked. */
static void test_interrupted(void **state)
{
    (void)state;
    bench *b = open_bench(NULL);
    calla_error err;
    b->plan = PLAN(STEP("a", "", "local"));
    atomic_store(&b->hold, true);
    file_task(b, "t", "{\"instructions\": \"i\", \"budget\": {\"tokens\": 100000}}");
    start_runner(b);
    await_asked(b, 1);
    stop_runner(b);
    task_store *other;
    assert_error(task_store_open(b->path, &other, &err), CALLA_ERR_IO, &err, "another process");
    task_store_close(b->store);
    assert_ok(task_store_open(b->path, &b->store, &err), &err);
    atomic_store(&b->hold, false);
    start_runner(b);
    json_t *task = await(b, "t", "done");
    assert_string_equal(text_at_path(task, "rounds.0.steps.1.attempts.0.outcome"), "interrupted");
    assert_string_equal(text_at_path(task, "rounds.0.steps.1.attempts.1.outcome"), "done");
    assert_int_equal(atomic_load(&b->n_planned), 1); /* what was done stays done */
    assert_true(json_is_true(at(task, "usage.estimated")));
    json_decref(task);
    close_bench(b);
}

static void test_interrupted_too_often(void **state)
{
    (void)state;
    bench *b = open_bench(NULL);
    b->plan = PLAN(STEP("a", "", "local"));
    atomic_store(&b->hold, true);
    file_task(b, "t", "{\"instructions\": \"i\"}");
    for (int i = 1; i <= 3; i++) {
        start_runner(b);
        await_asked(b, i);
        stop_runner(b);
    }
    start_runner(b);
    json_t *task = await(b, "t", "failed");
    assert_string_equal(text_at_path(task, "error.code"), "interrupted");
    json_decref(task);
    close_bench(b);
}

/* ---- follow-ups, events ---- */

static void test_follow_up(void **state)
{
    (void)state;
    bench *b = open_bench(allowing);
    calla_error err;
    task_result result;
    b->plan = SPLIT;
    start_runner(b);
    file_task(b, "t",
              "{\"instructions\": \"Sum up.\", \"texts\": [\"A river.\", \"Card " CARD "\"]}");
    json_decref(await(b, "t", "done"));
    b->plan = PLAN(STEP("again", "\"result\"", "cloud"));
    assert_ok(task_store_follow_up(b->store, all, "t", "Shorter.", &result, &err), &err);
    assert_int_equal(result, TASK_OK);
    json_t *task = await(b, "t", "done");
    assert_int_equal(json_array_size(at(task, "rounds")), 2);
    assert_string_equal(text_at_path(task, "rounds.1.instructions"), "Shorter.");
    /* What the first round made of something sensitive stays, too. */
    assert_string_equal(text_at_path(task, "rounds.1.steps.1.attempts.0.where"), "local");
    assert_string_equal(text_at_path(task, "result"), "did: again\n\n[result]\ndid:");
    json_decref(task);
    assert_int_equal(fake_cloud_n_requests(b->cloud), 1);
    assert_ok(task_store_follow_up(b->store, all, "none", "x", &result, &err), &err);
    assert_int_equal(result, TASK_UNKNOWN);
    json_t *events;
    bool ended, found;
    assert_ok(task_store_events(b->store, all, "t", 0, &events, &ended, &found, &err), &err);
    assert_true(ended && found);
    size_t n = json_array_size(events);
    assert_string_equal(text_at_path(events, "0.type"), "task.created");
    assert_string_equal(text_at_path(json_array_get(events, n - 1), "type"), "task.done");
    int64_t last = json_integer_value(at(json_array_get(events, n - 1), "event"));
    json_decref(events);
    assert_ok(task_store_events(b->store, all, "t", last, &events, &ended, &found, &err), &err);
    assert_int_equal(json_array_size(events), 0);
    json_decref(events);
    close_bench(b);
}

static void test_owners_and_keys(void **state)
{
    (void)state;
    bench *b = open_bench(NULL);
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
    close_bench(b);
}

/* ---- kill -9 ---- */

enum { N_KILLS = 200, N_FILED = 60, KILL_PARTS = 3 };

static int log_fd;

static void put_log(const char *text)
{
    if (write(log_fd, text, strlen(text)) != (ssize_t)strlen(text)) _exit(3);
}

/* A model that takes its time and writes down that it was asked. */
static calla_status logging_ask(void *user, json_t *request, const atomic_bool *cancelled,
                                task_answer *a, calla_error *err)
{
    char line[160], answer[64];
    const char *told = text_at_path(request, "messages.1.content");
    bool plan = json_object_get(request, "response_format");
    (void)user, (void)cancelled, (void)err;
    snprintf(line, sizeof line, "ask %s %.*s\n", plan ? "plan" : "step", (int)strcspn(told, "\n"),
             told);
    put_log(line);
    pause_us(300 + random() % 1500);
    if (plan)
        return answer_with(
            PLAN(STEP("a", "\"input_1\"", "local") ", " STEP("b", "\"step_1\"", "local")), a);
    snprintf(answer, sizeof answer, "done %ld", random());
    return answer_with(answer, a);
}

/* Opens the store, runs its tasks, and files those that are missing; until it is killed, or done.
 */
static void run_child(const char *path, unsigned seed)
{
    task_store *store;
    task_runner *runner;
    calla_error err;
    task_request r;
    json_t *body = json_loads("{\"instructions\": \"go\", \"texts\": [\"x\"]}", 0, NULL), *list;
    srandom(seed);
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
        if (task_store_list(store, all, "queued", 1, &list, &err) != CALLA_OK) _exit(8);
        bool waits = json_array_size(list) > 0;
        json_decref(list);
        if (task_store_list(store, all, "running", 1, &list, &err) != CALLA_OK) _exit(9);
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
    assert_ok(task_store_list(store, all, NULL, 1000, &list, &err), &err);
    assert_int_equal(json_array_size(list), N_FILED); /* none lost, none twice */
    int n_attempts = 0, n_asked = 0;
    *n_interrupted = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *id = text_at_path(json_array_get(list, i), "id");
        char line[96];
        json_t *task;
        snprintf(line, sizeof line, " %s\n", id);
        assert_non_null(strstr(log, line));
        assert_ok(task_store_read(store, all, id, &task, &err), &err);
        assert_string_equal(text_at_path(task, "state"), "done");
        const json_t *steps = at(task, "rounds.0.steps");
        assert_int_equal(json_array_size(steps), 4);
        for (size_t k = 0; k < 4; k++) {
            const json_t *attempts = at(json_array_get(steps, k), "attempts");
            int n_done = 0;
            for (size_t a = 0; a < json_array_size(attempts); a++) {
                const char *outcome = text_at_path(json_array_get(attempts, a), "outcome");
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

/* Waits until the child has asked its model since the log had `before` bytes, or has ended. */
static void await_work(pid_t child, off_t before)
{
    for (;;) {
        struct stat s;
        siginfo_t info = {0};
        assert_int_equal(fstat(log_fd, &s), 0);
        if (s.st_size > before) return;
        assert_int_equal(waitid(P_PID, (id_t)child, &info, WEXITED | WNOHANG | WNOWAIT), 0);
        if (info.si_pid == child) return;
        pause_us(200);
    }
}

/* Three stores share the kills, so that each is killed in all stages of its work. */
static void test_kill(void **state)
{
    (void)state;
    calla_error err;
    int n_kills = 0, n_interrupted_at_all = 0;
    srandom(11);
    for (int part = 0; n_kills < N_KILLS || part < KILL_PARTS; part++) {
        const char *dir = temporary_dir();
        char path[600], log_path[600];
        bool done = false;
        int n_interrupted;
        snprintf(path, sizeof path, "%s/tasks.db", dir);
        snprintf(log_path, sizeof log_path, "%s/log", dir);
        log_fd = open(log_path, O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
        while (!done) {
            int status;
            unsigned seed = (unsigned)random();
            int64_t us = 3000 + random() % 25000;
            pid_t child = fork();
            assert_true(child >= 0);
            if (child == 0) run_child(path, seed);
            if (n_kills < N_KILLS * (part + 1) / KILL_PARTS) {
                if (us % 2) await_work(child, lseek(log_fd, 0, SEEK_END)); /* else while it opens */
                pause_us(us);
                kill(child, SIGKILL);
            } /* else it may end */
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
    assert_true(n_interrupted_at_all >= N_KILLS / 10); /* they did hit steps */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kill), /* first: it forks, and the others have threads */
        cmocka_unit_test(test_requests),      cmocka_unit_test(test_rules),
        cmocka_unit_test(test_plans),         cmocka_unit_test(test_plan_of_no_use),
        cmocka_unit_test(test_plan_by_texts), cmocka_unit_test(test_plan_too_long),
        cmocka_unit_test(test_split),         cmocka_unit_test(test_own_rules),
        cmocka_unit_test(test_cloud_down),    cmocka_unit_test(test_cloud_without_usage),
        cmocka_unit_test(test_client_rules),  cmocka_unit_test(test_local_failure),
        cmocka_unit_test(test_consent),       cmocka_unit_test(test_consent_restart),
        cmocka_unit_test(test_budgets),       cmocka_unit_test(test_budget_of_check),
        cmocka_unit_test(test_order),         cmocka_unit_test(test_cancel_mid_step),
        cmocka_unit_test(test_interrupted),   cmocka_unit_test(test_interrupted_too_often),
        cmocka_unit_test(test_follow_up),     cmocka_unit_test(test_owners_and_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
