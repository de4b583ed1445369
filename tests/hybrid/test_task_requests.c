/* What is asked for, and plans, before anything runs. */
#include "hybrid/task_bench.h"

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

/* ---- plans ---- */

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests),
        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_plans),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
