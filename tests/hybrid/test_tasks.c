/* Where the steps of a task run, with models that answer as they are told: plans, what is
 * sensitive, consent, budgets. */
#include "hybrid/task_bench.h"

/* ---- plans ---- */

static void test_plan_of_no_use(void **state)
{
    (void)state;
    bench *b = bench_open(NULL);
    b->plan = "{\"steps\": [{\"title\": \"it was cut o";
    bench_start(b);
    bench_file(b, "t", "{\"instructions\": \"Count.\", \"texts\": [\"one two\"]}");
    bench_expect(b, "t", "did: Count.\n\n[input_1]\non");
    json_t *task = bench_read(b, "t");
    assert_int_equal(json_array_size(path_in(task, "rounds.0.steps")), 2);
    assert_non_null(strstr(text_in(task, "rounds.0.steps.1.why"), "plan is of no use"));
    assert_string_equal(text_in(task, "rounds.0.steps.1.attempts.0.where"), "local");
    json_decref(task);
    bench_close(b);
}

/* Without a plan of use, texts that may leave go there and the others stay; a follow-up is one
 * step, and so is what is asked for with something sensitive in it. */
static void test_plan_by_texts(void **state)
{
    (void)state;
    bench *b = bench_open(ALLOWING);
    calla_error err;
    task_result result;
    b->plan = "";
    bench_start(b);
    bench_file(b, "t",
               "{\"instructions\": \"Sum up.\", \"texts\": [\"Card " CARD "\", \"A river.\"]}");
    json_t *task = bench_await(b, "t", "done");
    const json_t *steps = path_in(task, "rounds.0.steps");
    assert_int_equal(json_array_size(steps), 4);
    assert_string_equal(text_in(steps, "1.attempts.0.where"), "cloud");
    assert_string_equal(text_in(steps, "1.inputs.0"), "input_2");
    assert_string_equal(text_in(steps, "2.attempts.0.where"), "local");
    assert_string_equal(text_in(steps, "2.inputs.0"), "input_1");
    assert_string_equal(text_in(steps, "3.kind"), "merge");
    json_decref(task);
    assert_ok(task_store_follow_up(b->store, task_all, "t", "Shorter.", &result, &err), &err);
    task = bench_await(b, "t", "done");
    steps = path_in(task, "rounds.1.steps");
    assert_int_equal(json_array_size(steps), 2);
    assert_string_equal(text_in(steps, "1.planned"), "local");
    assert_int_equal(json_array_size(path_in(steps, "1.inputs")), 3);
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
        bench_file(b, id, bodies[i]);
        task = bench_await(b, id, "done");
        steps = path_in(task, "rounds.0.steps");
        assert_int_equal(json_array_size(steps), 2);
        assert_string_equal(text_in(steps, "1.planned"), places[i]);
        assert_string_equal(text_in(steps, "1.attempts.0.where"), places[i]);
        json_decref(task);
    }
    char *sent = fake_cloud_received(b->cloud);
    assert_null(strstr(sent, "4111"));
    free(sent);
    bench_close(b);
}

/* A plan that has all its tokens is not whole, whatever stands in it. */
static void test_plan_too_long(void **state)
{
    (void)state;
    bench *b = bench_open(NULL);
    b->plan = "{\"steps\": [{\"title\": \"and so on and so on";
    b->plan_is_cut = true;
    bench_start(b);
    bench_file(b, "t", "{\"instructions\": \"Count.\"}");
    json_t *task = bench_await(b, "t", "done");
    assert_non_null(strstr(text_in(task, "rounds.0.steps.1.why"), "it is too long"));
    assert_non_null(strstr(text_in(task, "rounds.0.steps.0.attempts.0.message"), "was cut off"));
    json_decref(task);
    bench_close(b);
}

/* ---- here and there ---- */

/* What is sensitive stays, and so does what comes from it; nothing of it is in what was sent, and
 * the plan was made without it. */
static void test_split(void **state)
{
    (void)state;
    bench *b = bench_open(ALLOWING);
    b->plan = SPLIT;
    bench_start(b);
    bench_file(b, "t",
               "{\"instructions\": \"Sum up.\", \"texts\": [\"A river.\", \"Card " CARD "\"]}");
    json_t *task = bench_await(b, "t", "done");
    const json_t *steps = path_in(task, "rounds.0.steps");
    assert_int_equal(json_array_size(steps), 5);
    assert_string_equal(text_in(steps, "0.attempts.0.where"), "local");
    assert_string_equal(text_in(steps, "1.attempts.0.where"), "cloud");
    assert_string_equal(text_in(steps, "1.result"), "from afar");
    assert_string_equal(text_in(steps, "2.attempts.0.where"), "local");
    assert_string_equal(text_in(steps, "2.attempts.0.reasons.0"), "input_2 is sensitive");
    assert_string_equal(text_in(steps, "3.attempts.0.where"), "local");
    assert_string_equal(text_in(steps, "3.attempts.0.reasons.0"), "step_2 is sensitive");
    assert_string_equal(text_in(steps, "4.kind"), "merge");
    assert_string_equal(text_in(steps, "4.attempts.0.where"), "local");
    assert_int_equal(json_integer_value(path_in(task, "usage.cloud.input_tokens")), 100);
    assert_int_equal(json_integer_value(path_in(task, "usage.local.output_tokens")), 20);
    assert_true(json_real_value(path_in(task, "usage.cost")) == 0.2);
    assert_string_equal(text_in(task, "usage.currency"), "EUR");
    assert_true(json_is_false(path_in(task, "usage.estimated")));
    json_decref(task);
    char *sent = fake_cloud_received(b->cloud);
    assert_non_null(strstr(sent, "A river."));
    assert_null(strstr(sent, "4111"));
    assert_int_equal(fake_cloud_n_requests(b->cloud), 1);
    free(sent);
    const char *plan_end = strstr(b->heard.data, "response_format");
    const char *card = strstr(b->heard.data, CARD);
    assert_true(plan_end && card && card > plan_end); /* the first that heard it was step 2 */
    bench_close(b);
}

/* A value over the border of two texts of a step, told by what the step is to do, or in a file's
 * name: the step stays, and what comes of it. Of texts that stand for themselves nothing does. */
static void test_between_texts(void **state)
{
    (void)state;
    static const char *const bodies[] = {
        "{\"instructions\": \"i\", \"texts\": [\"Card 4111 1111\", \"1111 1111\"]}",
        "{\"instructions\": \"i\", \"texts\": [\"To jane.doe@corp\", \"-mail.com\"]}",
        "{\"instructions\": \"i\", \"files\": [{\"name\": \"" CARD "\", \"text\": \"x\"}, "
        "{\"name\": \"b\", \"text\": \"y\"}]}",
        "{\"instructions\": \"i\", \"texts\": [\"A river of 4111 km.\", \"1111 boats.\"]}",
    };
    bench *b = bench_open("{\"categories\": {\"email\": \"redact\"}}");
    b->plan =
        PLAN(STEP("a", "\"input_1\", \"input_2\"", "cloud") ", " STEP("b", "\"step_1\"", "cloud"));
    bench_start(b);
    for (int i = 0; i < 4; i++) {
        char id[8];
        snprintf(id, sizeof id, "t%d", i);
        bench_file(b, id, bodies[i]);
        json_t *task = bench_await(b, id, "done");
        const char *place = i < 3 ? "local" : "cloud";
        assert_string_equal(text_in(task, "rounds.0.steps.1.attempts.0.where"), place);
        assert_string_equal(text_in(task, "rounds.0.steps.2.attempts.0.where"), place);
        json_decref(task);
    }
    assert_int_equal(fake_cloud_n_requests(b->cloud), 2);
    b->plan = PLAN(STEP("The password is:", "\"input_1\"", "cloud"));
    bench_file(b, "told", "{\"instructions\": \"i\", \"texts\": [\"Xk29!qzLm7vT\"]}");
    json_t *task = bench_await(b, "told", "done");
    assert_string_equal(text_in(task, "rounds.0.steps.1.attempts.0.where"), "local");
    json_decref(task);
    bench_close(b);
}

static void test_own_rules(void **state)
{
    (void)state;
    bench *b = bench_open("{\"categories\": {\"personal\": \"allow\"}}");
    b->plan = PLAN(STEP("a", "\"input_1\"", "cloud"));
    bench_start(b);
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
        bench_file(b, id, bodies[i]);
        json_t *task = bench_await(b, id, "done");
        assert_string_equal(text_in(task, "rounds.0.steps.1.attempts.0.where"), places[i]);
        json_decref(task);
    }
    assert_int_equal(fake_cloud_n_requests(b->cloud), 1);
    bench_close(b);
}

static void test_cloud_down(void **state)
{
    (void)state;
    bench *b = bench_open("{" FAKE_CLOUD_POLICY "}");
    const fake_answer down = {.status = 503, .body = "{}"};
    fake_cloud_script(b->cloud, &down, 1);
    b->plan = PLAN(STEP("a", "", "cloud"));
    bench_start(b);
    bench_file(b, "t", "{\"instructions\": \"i\"}");
    json_t *task = bench_await(b, "t", "done");
    const json_t *attempts = path_in(task, "rounds.0.steps.1.attempts");
    assert_int_equal(json_array_size(attempts), 2);
    assert_string_equal(text_in(attempts, "0.outcome"), "failed");
    assert_string_equal(text_in(attempts, "0.where"), "cloud");
    assert_string_equal(text_in(attempts, "1.outcome"), "done");
    assert_string_equal(text_in(attempts, "1.where"), "local");
    json_decref(task);
    bench_stop(b);
    bench_close(b);
    b = bench_open("{" FAKE_CLOUD_POLICY ", \"route\": {\"fallback\": \"never\"}}");
    fake_cloud_script(b->cloud, &down, 1);
    b->plan = PLAN(STEP("a", "", "cloud"));
    bench_start(b);
    bench_file(b, "t", "{\"instructions\": \"i\"}");
    task = bench_await(b, "t", "failed");
    assert_string_equal(text_in(task, "error.code"), "cloud_error");
    json_decref(task);
    bench_close(b);
}

/* What the cloud does not say counts as what it may have been at most. */
static void test_cloud_without_usage(void **state)
{
    (void)state;
    bench *b = bench_open(ALLOWING);
    fake_answer answer = {.body = "{\"choices\": [{\"index\": 0, \"message\": {\"role\": "
                                  "\"assistant\", \"content\": \"x\"}}]}"};
    fake_cloud_script(b->cloud, &answer, 1);
    b->plan = PLAN(STEP("a", "", "cloud"));
    bench_start(b);
    bench_file(b, "t0", "{\"instructions\": \"i\"}");
    json_t *task = bench_await(b, "t0", "done");
    assert_true(json_is_true(path_in(task, "usage.estimated")));
    assert_true(json_integer_value(path_in(task, "usage.cloud.output_tokens")) > 1000);
    assert_true(json_real_value(path_in(task, "usage.cost")) > 1);
    json_decref(task);
    /* An answer without content is none. */
    answer.body = "{\"choices\": []}";
    fake_cloud_script(b->cloud, &answer, 1);
    bench_file(b, "t1", "{\"instructions\": \"i\"}");
    task = bench_await(b, "t1", "failed");
    assert_string_equal(text_in(task, "error.code"), "cloud_error");
    json_decref(task);
    bench_close(b);
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
    bench *b = bench_open(rules);
    b->plan = PLAN(STEP("a", "", "cloud"));
    bench_start(b);
    json_t *body = json_of("{\"instructions\": \"i\"}");
    assert_ok(task_request_read(body, &r, &err), &err);
    assert_ok(task_store_create(b->store, &r, hex, NULL, id, &err), &err);
    json_t *task = bench_await(b, "t", "done");
    assert_string_equal(text_in(task, "rounds.0.steps.1.attempts.0.where"), "local");
    json_decref(task);
    bench_file(b, "other", "{\"instructions\": \"i\"}");
    task = bench_await(b, "other", "done");
    assert_string_equal(text_in(task, "rounds.0.steps.1.attempts.0.where"), "cloud");
    json_decref(task);
    json_decref(body);
    bench_close(b);
}

static void test_local_failure(void **state)
{
    (void)state;
    bench *b = bench_open(NULL);
    b->plan = PLAN(STEP("a", "", "cloud"));
    b->status = CALLA_ERR_INPUT;
    bench_start(b);
    bench_file(b, "t", "{\"instructions\": \"i\"}");
    json_t *task = bench_await(b, "t", "failed");
    assert_string_equal(text_in(task, "error.message"), "the model does not like it");
    json_decref(task);
    bench_close(b);
}

/* ---- consent ---- */

static const char asking[] = "{\"categories\": {\"payment_card\": \"ask\"}}";
#define CARD_TASK "{\"instructions\": \"i\", \"texts\": [\"Card " CARD "\"]}"
#define CARD_TASK_ALONE                                                                            \
    "{\"instructions\": \"i\", \"texts\": [\"Card " CARD                                           \
    "\"], \"policy\": {\"on_ask\": \"keep_local\"}}"

static bench *open_asking(void)
{
    bench *b = bench_open(asking);
    b->plan = PLAN(STEP("a", "\"input_1\"", "cloud") ", " STEP("b", "\"step_1\"", "cloud"));
    bench_start(b);
    return b;
}

/* The token the task waits for; checks what is asked. */
static void take_token(bench *b, const char *id, char token[80])
{
    json_t *task = bench_await(b, id, "waiting_for_consent");
    char *text = json_dumps(path_in(task, "consent"), 0);
    assert_string_equal(text_in(task, "consent.findings.0.category"), "payment_card");
    assert_string_equal(text_in(task, "consent.destination"), hybrid_origin(b->hybrid));
    assert_null(strstr(text, CARD));
    assert_int_equal(json_integer_value(path_in(task, "consent.step")), 1);
    snprintf(token, 80, "%s", text_in(task, "consent.token"));
    assert_true(strlen(token) > 16);
    free(text);
    json_decref(task);
}

static void answer_with_token(bench *b, const char *id, const char *token, task_result expected)
{
    calla_error err;
    task_result result;
    assert_ok(task_store_answer(b->store, task_all, id, token, &result, &err), &err);
    assert_int_equal(result, expected);
}

/* Nothing leaves before the yes; then this step does, and what it made stays. Other tasks go on. */
static void test_consent(void **state)
{
    (void)state;
    char token[80], other[80];
    bench *b = open_asking();
    bench_file(b, "t", CARD_TASK);
    take_token(b, "t", token);
    bench_file(b, "alone", CARD_TASK_ALONE);
    json_t *task = bench_await(b, "alone", "done");
    assert_string_equal(text_in(task, "rounds.0.steps.1.attempts.0.where"), "local");
    json_decref(task);
    assert_int_equal(fake_cloud_n_requests(b->cloud), 0);
    bench_file(b, "u", CARD_TASK);
    take_token(b, "u", other);
    answer_with_token(b, "t", other, TASK_WRONG_TOKEN);
    answer_with_token(b, "t", "", TASK_WRONG_TOKEN);
    answer_with_token(b, "none", token, TASK_UNKNOWN);
    answer_with_token(b, "alone", token, TASK_WRONG_STATE);
    assert_int_equal(fake_cloud_n_requests(b->cloud), 0);
    answer_with_token(b, "t", token, TASK_OK);
    task = bench_await(b, "t", "done");
    const json_t *steps = path_in(task, "rounds.0.steps");
    assert_string_equal(text_in(steps, "1.attempts.0.where"), "cloud");
    assert_non_null(strstr(text_in(steps, "1.attempts.0.reasons.1"), "agreed to by consent"));
    assert_string_equal(text_in(steps, "2.attempts.0.where"), "local");
    assert_string_equal(text_in(steps, "2.attempts.0.reasons.0"), "step_1 is sensitive");
    assert_true(json_is_null(path_in(task, "consent")));
    json_decref(task);
    answer_with_token(b, "t", token, TASK_WRONG_STATE);
    answer_with_token(b, "u", NULL, TASK_OK); /* no */
    task = bench_await(b, "u", "done");
    assert_string_equal(text_in(task, "rounds.0.steps.1.attempts.0.where"), "local");
    json_decref(task);
    assert_int_equal(fake_cloud_n_requests(b->cloud), 1);
    bench_file(b, "v", CARD_TASK);
    take_token(b, "v", token);
    bench_command(b, "v", TASK_CANCEL, TASK_OK);
    answer_with_token(b, "v", token, TASK_WRONG_STATE);
    json_decref(bench_await(b, "v", "cancelled"));
    bench_close(b);
}

/* Tokens end with the program: the question stays, and a yes to it is asked for anew. */
static void test_consent_restart(void **state)
{
    (void)state;
    char token[80], again[80];
    calla_error err;
    bench *b = open_asking();
    bench_file(b, "t", CARD_TASK);
    take_token(b, "t", token);
    bench_stop(b);
    hybrid_stop(b->hybrid, clock_ns());
    hybrid_close(b->hybrid);
    task_store_close(b->store);
    const hybrid_options options = {
        .url = fake_cloud_url(b->cloud), .model = "far", .policy = b->policy, .audit = b->audit};
    assert_ok(hybrid_open(&options, &b->hybrid, &err), &err);
    assert_ok(task_store_open(b->path, &b->store, &err), &err);
    bench_start(b);
    take_token(b, "t", again);
    assert_string_equal(again, token);
    answer_with_token(b, "t", token, TASK_OK);
    take_token(b, "t", again);
    assert_string_not_equal(again, token);
    assert_int_equal(fake_cloud_n_requests(b->cloud), 0);
    answer_with_token(b, "t", again, TASK_OK);
    json_decref(bench_await(b, "t", "done"));
    assert_int_equal(fake_cloud_n_requests(b->cloud), 1);
    bench_close(b);
}

/* ---- budgets ---- */

static void test_budgets(void **state)
{
    (void)state;
    bench *b = bench_open(ALLOWING);
    b->plan = PLAN(STEP("a", "", "cloud"));
    bench_start(b);
    bench_file(b, "t0", "{\"instructions\": \"i\", \"budget\": {\"tokens\": 100}}");
    json_t *task = bench_await(b, "t0", "failed");
    assert_string_equal(text_in(task, "error.code"), "budget_exhausted");
    assert_int_equal(atomic_load(&b->n_planned), 0); /* before anything is used */
    json_decref(task);
    /* Tokens bound what an answer may have. */
    bench_file(b, "t1", "{\"instructions\": \"i\", \"budget\": {\"tokens\": 2000}}");
    task = bench_await(b, "t1", "done");
    json_decref(task);
    char *body = fake_cloud_last_body(b->cloud);
    json_t *sent = json_of(body);
    int64_t most = json_integer_value(json_object_get(sent, "max_tokens"));
    assert_true(most >= 16 && most < 2000 - 15);
    json_decref(sent);
    free(body);
    /* Money: what it might cost at most counts before it is sent. */
    int n = fake_cloud_n_requests(b->cloud);
    bench_file(b, "t2", "{\"instructions\": \"i\", \"budget\": {\"cost\": 0.01}}");
    task = bench_await(b, "t2", "done");
    assert_string_equal(text_in(task, "rounds.0.steps.1.attempts.0.where"), "local");
    assert_non_null(
        strstr(text_in(task, "rounds.0.steps.1.attempts.0.reasons.0"), "it might cost"));
    json_decref(task);
    bench_file(b, "t3",
               "{\"instructions\": \"i\", \"budget\": {\"cost\": 9, \"currency\": \"USD\"}}");
    task = bench_await(b, "t3", "done");
    assert_string_equal(text_in(task, "rounds.0.steps.1.attempts.0.where"), "local");
    json_decref(task);
    assert_int_equal(fake_cloud_n_requests(b->cloud), n);
    bench_file(b, "t4", "{\"instructions\": \"i\", \"budget\": {\"cost\": 100}}");
    task = bench_await(b, "t4", "done");
    assert_string_equal(text_in(task, "rounds.0.steps.1.attempts.0.where"), "cloud");
    json_decref(task);
    bench_close(b);
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
    bench *b = bench_open("{\"model_check\": {\"when\": \"always\"}}");
    calla_error err;
    b->plan = PLAN(STEP("a", "", "cloud"));
    judged = 0;
    const task_runner_options options = {.store = b->store,
                                         .hybrid = b->hybrid,
                                         .ask = bench_ask,
                                         .ask_user = b,
                                         .judge = fake_judge,
                                         .judge_tokens = &judged,
                                         .n_interruptions = 3};
    assert_ok(task_runner_start(&options, &b->runner, &err), &err);
    bench_file(b, "t0", "{\"instructions\": \"i\"}");
    json_t *task = bench_await(b, "t0", "done");
    assert_string_equal(text_in(task, "rounds.0.steps.1.attempts.0.where"), "cloud");
    int64_t n = json_integer_value(path_in(task, "usage.check_tokens"));
    assert_true(n > 0 && n % 700 == 0);
    json_decref(task);
    int n_sent = fake_cloud_n_requests(b->cloud);
    b->plan = PLAN(STEP("another", "", "cloud")); /* a text that was not looked at yet */
    bench_file(b, "t1",
               "{\"instructions\": \"j\", \"budget\": "
               "{\"tokens\": 1900}}");
    task = bench_await(b, "t1", "done");
    assert_int_equal(json_integer_value(path_in(task, "usage.check_tokens")), 700);
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
    assert_int_equal((int)json_number_value(path_in(totals, "tasks.done")), 2);
    assert_int_equal((int)json_number_value(path_in(totals, "tasks.failed")), 0);
    assert_int_equal((int)json_number_value(path_in(totals, "tokens.cloud")), 300);
    assert_true(json_number_value(path_in(totals, "tokens.check")) >= 700);
    json_decref(totals);
    bench_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_of_no_use), cmocka_unit_test(test_plan_by_texts),
        cmocka_unit_test(test_plan_too_long),  cmocka_unit_test(test_split),
        cmocka_unit_test(test_between_texts),  cmocka_unit_test(test_own_rules),
        cmocka_unit_test(test_cloud_down),     cmocka_unit_test(test_cloud_without_usage),
        cmocka_unit_test(test_client_rules),   cmocka_unit_test(test_local_failure),
        cmocka_unit_test(test_consent),        cmocka_unit_test(test_consent_restart),
        cmocka_unit_test(test_budgets),        cmocka_unit_test(test_budget_of_check),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
