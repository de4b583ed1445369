/* What becomes of requests: plans, and exchanges with a cloud that records what it gets. */
#include "hybrid/fake_cloud.h"
#include "hybrid/hybrid.h"
#include "support/files.h"
#include "support/support.h"

#include <poll.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CARD  "4111 1111 1111 1111"
#define EMAIL "jane.doe@corp-mail.com"

static fake_cloud *cloud;
static hybrid *h;
static const char *dir;
static char audit_path[600], policy_path[600];

static const char default_policy[] =
    "{\"categories\": {\"finance\": \"ask\", \"personal\": \"redact\"}, \"cloud\": {\"retries\": "
    "0, "
    "\"first_byte_timeout_ms\": 60000}, \"prices\": {\"big\": {\"input\": 1000000, \"output\": "
    "2000000, \"currency\": \"EUR\"}}}";

static void open_with(const char *policy_text)
{
    calla_error err;
    put_test_file(dir, "policy.json", policy_text);
    hybrid_options o = {.url = fake_cloud_url(cloud),
                        .model = "big",
                        .key_env = "TEST_CLOUD_KEY",
                        .policy = policy_path,
                        .audit = audit_path};
    assert_ok(hybrid_open(&o, &h, &err), &err);
}

static int setup(void **state)
{
    (void)state;
    setenv("TEST_CLOUD_KEY", "sk-cloud-key-5f2c9a", 1);
    dir = temporary_dir();
    snprintf(audit_path, sizeof audit_path, "%s/audit.db", dir);
    snprintf(policy_path, sizeof policy_path, "%s/policy.json", dir);
    cloud = fake_cloud_start();
    open_with(default_policy);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    hybrid_close(h);
    fake_cloud_stop(cloud);
    return 0;
}

/* ---- plans ---- */

static json_t *parse(const char *text)
{
    json_t *value;
    calla_error err;
    assert_ok(json_parse_text(text, strlen(text), "test", &value, &err), &err);
    return value;
}

static hybrid_plan plan_as(const char *text, const char *key, const char *token, bool only_cloud)
{
    hybrid_plan plan;
    calla_error err;
    json_t *body = parse(text);
    hybrid_request q = {.body = body, .api_key = key, .consent = token, .only_cloud = only_cloud};
    assert_ok(hybrid_plan_make(h, &q, &plan, &err), &err);
    json_decref(body);
    return plan;
}

static void expect_route(const char *text, bool only_cloud, hybrid_route route)
{
    hybrid_plan plan = plan_as(text, NULL, NULL, only_cloud);
    if (plan.route != route) fail_msg("%s: route %d", text, plan.route);
    assert_true(json_array_size(plan.reasons) > 0);
    hybrid_plan_free(&plan);
}

static bool has_reason(const hybrid_plan *plan, const char *part)
{
    for (size_t i = 0; i < json_array_size(plan->reasons); i++)
        if (strstr(json_string_value(json_array_get(plan->reasons, i)), part)) return true;
    return false;
}

#define CHAT(content)                                                                              \
    "{\"model\": \"x\", \"messages\": [{\"role\": \"user\", \"content\": \"" content "\"}]}"

static void test_routes(void **state)
{
    (void)state;
    expect_route(CHAT("What is a river?"), false, HYBRID_CLOUD);
    expect_route(CHAT("Charge " CARD " please"), false, HYBRID_ASK);
    expect_route(CHAT("Charge " CARD " please"), true, HYBRID_ASK);
    expect_route(CHAT("Write to " EMAIL), false, HYBRID_CLOUD);
    assert_int_equal(fake_cloud_n_connections(cloud), 0); /* a plan sends nothing */
    hybrid_counts *n = hybrid_get_counts(h);
    assert_int_equal(atomic_load(&n->cloud), 2);
    assert_int_equal(atomic_load(&n->asked), 2);
}

static void test_keeps_local(void **state)
{
    (void)state;
    hybrid_close(h);
    open_with("{}");
    expect_route(CHAT("Charge " CARD " please"), false, HYBRID_LOCAL);
    expect_route(CHAT("Charge " CARD " please"), true, HYBRID_REFUSE);
    expect_route(CHAT("Write to " EMAIL), false, HYBRID_ASK);
    hybrid_plan plan = plan_as(CHAT("Charge " CARD), NULL, NULL, false);
    assert_true(has_reason(&plan, "1 payment_card: keep_local"));
    hybrid_plan_free(&plan);
}

static void test_preferences(void **state)
{
    (void)state;
    hybrid_close(h);
    open_with("{\"route\": {\"local_up_to_bytes\": 20, \"tools\": \"local\"}}");
    expect_route(CHAT("short"), false, HYBRID_LOCAL);
    expect_route(CHAT("short"), true, HYBRID_CLOUD); /* was asked for by name */
    expect_route(CHAT("This is much longer than that, is it not?"), false, HYBRID_CLOUD);
    static const char tools[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"This is much longer than that\"}], "
        "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]}";
    expect_route(tools, false, HYBRID_LOCAL);
    hybrid_close(h);
    open_with("{\"route\": {\"prefer\": \"local\", \"tools\": \"cloud\"}}");
    expect_route(tools, false, HYBRID_CLOUD);
    expect_route(CHAT("This is much longer than that, is it not?"), false, HYBRID_LOCAL);
}

static void test_client_without_cloud(void **state)
{
    (void)state;
    unsigned char digest[SHA256_BYTES];
    char hex[SHA256_HEX], text[300];
    sha256_of("its-key", 7, digest);
    hex_write(digest, sizeof digest, hex);
    snprintf(text, sizeof text,
             "{\"clients\": [{\"id\": \"kiosk\", \"key_sha256\": \"%s\", \"cloud\": false}]}", hex);
    hybrid_close(h);
    open_with(text);
    hybrid_plan plan = plan_as(CHAT("hello"), "its-key", NULL, false);
    assert_int_equal(plan.route, HYBRID_LOCAL);
    hybrid_plan_free(&plan);
    plan = plan_as(CHAT("hello"), "its-key", NULL, true);
    assert_int_equal(plan.route, HYBRID_REFUSE);
    hybrid_plan_free(&plan);
    plan = plan_as(CHAT("hello"), "other", NULL, true);
    assert_int_equal(plan.route, HYBRID_CLOUD);
    hybrid_plan_free(&plan);
}

/* Whatever is not known is not sent: an error for `cloud`, and for `hybrid` the local model's. */
static void test_what_is_not_understood(void **state)
{
    (void)state;
    static const struct {
        const char *text, *where;
    } bad[] = {
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"x\", \"secret\": 1}]}",
         "messages[0].secret: "},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"store\": true}", "store: "},
        {"{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\", "
         "\"image_url\": {}}]}]}",
         "messages[0].content[0]: "},
        {"{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": "
         "\"x\", \"extra\": \"y\"}]}]}",
         "messages[0].content[0].extra: "},
        {"{\"messages\": [{\"role\": \"John Doe\", \"content\": \"x\"}]}", "messages[0].role: "},
        {"{\"messages\": [{\"content\": \"x\"}]}", "messages[0]: role is missing"},
        {"{\"messages\": []}", "messages: "},
        {"{\"messages\": {}}", "messages: must be an array"},
        {"{\"messages\": [1]}", "messages[0]: must be an object"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": 1}]}", "messages[0].content: "},
        {"{}", "messages: "},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"temperature\": \"a\"}",
         "temperature: must be a number"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"logit_bias\": {\"a\": 1}}",
         "logit_bias: "},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"tools\": [{\"type\": "
         "\"function\", \"function\": {\"name\": \"f\", \"code\": \"x\"}}]}",
         "tools[0].function.code: "},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        hybrid_plan plan;
        calla_error err = {0};
        json_t *body = parse(bad[i].text);
        hybrid_request q = {.body = body, .only_cloud = true};
        calla_status status = hybrid_plan_make(h, &q, &plan, &err);
        if (status != CALLA_ERR_INPUT || strncmp(err.message, bad[i].where, strlen(bad[i].where)))
            fail_msg("%s: %s", bad[i].text, err.message);
        hybrid_plan_free(&plan);
        json_decref(body);
        expect_route(bad[i].text, false, HYBRID_LOCAL);
    }
}

/* One secret in each place there is; none gets by. */
static void test_every_field_is_looked_at(void **state)
{
    (void)state;
    static const char *const hidden[] = {
        "{\"messages\": [{\"role\": \"system\", \"content\": \"" CARD "\"}, {\"role\": \"user\", "
        "\"content\": \"x\"}]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, "
        "{\"type\": \"text\", \"text\": \"" CARD "\"}]}]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"4111 "
        "1111\"}, {\"type\": \"text\", \"text\": \" 1111 1111\"}]}]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"My card: 4111 1111\"}, {\"role\": "
        "\"assistant\", \"content\": \"Go on\"}, {\"role\": \"user\", \"content\": \"1111 "
        "1111\"}]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"My card: 4111 1111\"}, {\"role\": "
        "\"assistant\", \"content\": \"1111 1111\"}]}",
        "{\"messages\": [{\"role\": \"assistant\", \"content\": \"What is your phone number?\"}, "
        "{\"role\": \"user\", \"content\": \"22334455\"}]}",
        "{\"messages\": [{\"role\": \"assistant\", \"content\": \"Your date of birth?\"}, "
        "{\"role\": \"user\", \"content\": \"12.03.1984\"}]}",
        "{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [{\"id\": \"1\", \"type\": "
        "\"function\", \"function\": {\"name\": \"f\", \"arguments\": {\"a\": \"4111 1111\", "
        "\"b\": \"1111 1111\"}}}]}]}",
        "{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [{\"id\": \"1\", \"type\": "
        "\"function\", \"function\": {\"name\": \"f\", \"arguments\": {\"env\": [{\"name\": "
        "\"DB_PASSWORD\", \"value\": \"Kx7-pLm2-q9Z\"}]}}}]}]}",
        "{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [{\"id\": \"1\", \"type\": "
        "\"function\", \"function\": {\"name\": \"f\", \"arguments\": {\"password\": {\"value\": "
        "\"Kx7-pLm2-q9Z\"}}}}]}]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"41111111\"}, {\"role\": \"user\", "
        "\"content\": [{\"type\": \"text\", \"text\": \"1111\"}, {\"type\": \"text\", \"text\": "
        "\"1111\"}]}]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"stop\": [\"4111 1111 \", "
        "\"1111 1111\"]}",
        "{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [{\"id\": \"1\", \"type\": "
        "\"function\", \"function\": {\"name\": \"f\", \"arguments\": \"{\\\"c\\\": "
        "[\\\"4111\\\",\\\"1111\\\",\\\"1111\\\",\\\"1111\\\"]}\"}}]}]}",
        "{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [{\"id\": \"1\", \"type\": "
        "\"function\", \"function\": {\"name\": \"f\", \"arguments\": \"{\\\"password\\\": "
        "839271}\"}}]}]}",
        "{\"messages\": [{\"role\": \"user\", \"name\": \"4111111111111111\", \"content\": "
        "\"x\"}]}",
        "{\"messages\": [{\"role\": \"tool\", \"tool_call_id\": \"4111111111111111\", \"content\": "
        "\"x\"}]}",
        "{\"messages\": [{\"role\": \"tool\", \"tool_call_id\": \"1\", \"content\": \"{\\\"c\\\": "
        "4111111111111111}\"}]}",
        "{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [{\"id\": \"1\", \"type\": "
        "\"function\", \"function\": {\"name\": \"f\", \"arguments\": \"{\\\"c\\\": "
        "\\\"4111111111111111\\\"}\"}}]}]}",
        "{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [{\"id\": \"1\", \"type\": "
        "\"function\", \"function\": {\"name\": \"f\", \"arguments\": \"{\\\"c\\\": "
        "[4111111111111111]}\"}}]}]}",
        "{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [{\"id\": \"1\", \"type\": "
        "\"function\", \"function\": {\"name\": \"f\", \"arguments\": \"{\\\"c\\\": "
        "\\\"41\\\\u00311111111111111\\\"}\"}}]}]}",
        "{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [{\"id\": \"1\", \"type\": "
        "\"function\", \"function\": {\"name\": \"f\", \"arguments\": \"{\\\"4111111111111111\\\": "
        "1}\"}}]}]}",
        "{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [{\"id\": \"1\", \"type\": "
        "\"function\", \"function\": {\"name\": \"f\", \"arguments\": \"broken: "
        "4111111111111111\"}}]}]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"tools\": [{\"type\": "
        "\"function\", \"function\": {\"name\": \"f\", \"description\": \"" CARD "\"}}]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"tools\": [{\"type\": "
        "\"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": \"object\", "
        "\"properties\": {\"a\": {\"type\": \"string\", \"default\": \"" CARD "\"}}}}}]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"tools\": [{\"type\": "
        "\"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"enum\": "
        "[4111111111111111]}}}]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"stop\": [\"" CARD "\"]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"stop\": \"" CARD "\"}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"seed\": 4111111111111111}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"response_format\": "
        "{\"type\": "
        "\"json_schema\", \"json_schema\": {\"name\": \"n\", \"schema\": {\"title\": \"" CARD
        "\"}}}}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"response_format\": "
        "{\"type\": "
        "\"json_schema\", \"json_schema\": {\"name\": \"4111111111111111\", \"schema\": {}}}}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"tool_choice\": {\"type\": "
        "\"function\", \"function\": {\"name\": \"4111111111111111\"}}}",
    };
    hybrid_close(h);
    open_with("{\"categories\": {\"personal\": \"keep_local\"}}");
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++)
        expect_route(hidden[i], true, HYBRID_REFUSE);
}

/* What must stay an identifier cannot be replaced: it stays here instead. */
static void test_fixed_places(void **state)
{
    (void)state;
    hybrid_close(h);
    open_with("{\"categories\": {\"finance\": \"redact\"}}");
    expect_route(CHAT("Charge " CARD), true, HYBRID_CLOUD);
    expect_route("{\"messages\": [{\"role\": \"user\", \"name\": \"4111111111111111\", "
                 "\"content\": \"x\"}]}",
                 true, HYBRID_REFUSE);
}

/* A value at a border is the text's own that it stands in, whatever comes before it. */
static void test_borders_are_no_findings(void **state)
{
    (void)state;
    hybrid_plan plan = plan_as("{\"messages\": [{\"role\": \"user\", \"content\": \"Write to\"}, "
                               "{\"role\": \"user\", \"content\": \"" EMAIL "\"}, {\"role\": "
                               "\"user\", \"content\": \"and say hello\"}]}",
                               NULL, NULL, false);
    assert_int_equal(plan.route, HYBRID_CLOUD);
    assert_int_equal(plan.out.n_findings, 1);
    assert_non_null(strstr(plan.text.data, "\"[EMAIL_1]\""));
    hybrid_plan_free(&plan);
}

/* However deep and however named, a place is short and can be told. */
static void test_places_are_bounded(void **state)
{
    (void)state;
    enum { DEEP = 60 };
    strbuf text = {0};
    strbuf_puts(&text, "{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [{\"id\": \"1\", "
                       "\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": ");
    for (int i = 0; i < DEEP; i++) {
        strbuf_puts(&text, "{\"x");
        for (int k = 0; k < 40; k++) strbuf_puts(&text, "\xc3\xa9");
        strbuf_puts(&text, "\": ");
    }
    strbuf_puts(&text, "\"" CARD "\"");
    for (int i = 0; i < DEEP; i++) strbuf_putc(&text, '}');
    strbuf_puts(&text, "}}]}]}");
    hybrid_plan plan = plan_as(text.data, NULL, NULL, false);
    assert_int_equal(plan.out.n_findings, 1);
    assert_in_range(strlen(plan.out.findings[0].where), 1, 240);
    json_t *told = hybrid_plan_findings(&plan);
    assert_int_equal(json_array_size(told), 1);
    json_decref(told);
    hybrid_plan_free(&plan);
    strbuf_free(&text);
}

/* A name is looked at before each of its many texts, but not more of it than names have: this takes
 * no time, or hours. */
static void test_long_names(void **state)
{
    (void)state;
    enum { NAME_BYTES = 4 << 20, N_TEXTS = 50000 };
    strbuf text = {0};
    hybrid_close(h);
    open_with("{}");
    strbuf_puts(&text, "{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [{\"id\": \"1\", "
                       "\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": "
                       "{\"");
    for (int i = 0; i < NAME_BYTES; i++) strbuf_putc(&text, 'n');
    strbuf_puts(&text, "_password\": [\"\"");
    for (int i = 0; i < N_TEXTS; i++) strbuf_puts(&text, ", \"a\"");
    strbuf_puts(&text, ", \"kR9-mmx2-Zt\"]}}}]}]}");
    hybrid_plan plan = plan_as(text.data, NULL, NULL, true);
    assert_int_equal(plan.route, HYBRID_REFUSE);
    assert_int_equal(plan.out.n_findings, 1);
    assert_int_equal(plan.out.findings[0].category, DETECT_PASSWORD);
    hybrid_plan_free(&plan);
    strbuf_free(&text);
}

/* ---- the second look ---- */

typedef struct model {
    const char *answer; /* NULL: none in time */
    int n_asked;
} model;

static char *ask_model(void *user, const char *text, size_t n_bytes, int64_t deadline_ns)
{
    model *m = user;
    (void)text, (void)n_bytes, (void)deadline_ns;
    m->n_asked++;
    return m->answer ? strdup(m->answer) : NULL;
}

static hybrid_plan judged(const char *text, model *m, const char *token)
{
    hybrid_plan plan;
    calla_error err;
    json_t *body = parse(text);
    hybrid_request q = {.body = body, .consent = token, .ask = ask_model, .ask_user = m};
    assert_ok(hybrid_plan_make(h, &q, &plan, &err), &err);
    json_decref(body);
    return plan;
}

static void expect_judged(const char *text, const char *answer, hybrid_route route)
{
    model m = {.answer = answer};
    hybrid_plan plan = judged(text, &m, NULL);
    if (plan.route != route) fail_msg("%s: route %d", answer ? answer : "no answer", plan.route);
    assert_int_equal(m.n_asked, 1);
    hybrid_plan_free(&plan);
}

#define FOUND(category, quote)                                                                     \
    "{\"findings\": [{\"category\": \"" category "\", \"quote\": \"" quote "\"}], \"sure\": true}"

static void test_model_check(void **state)
{
    (void)state;
    static const char nothing[] = "{\"findings\": [], \"sure\": true}";
    hybrid_close(h);
    open_with("{\"categories\": {\"personal\": \"redact\", \"health\": \"keep_local\"}, "
              "\"model_check\": {\"when\": \"always\"}}");
    expect_judged(CHAT("1 is clean"), nothing, HYBRID_CLOUD);
    expect_judged(CHAT("2 Ann has the flu"), FOUND("medical", "has the flu"), HYBRID_LOCAL);
    /* Not sure in one way or another: it stays. */
    expect_judged(CHAT("3"
                       " not in time"),
                  NULL, HYBRID_LOCAL);
    expect_judged(CHAT("4 not JSON"), "well", HYBRID_LOCAL);
    expect_judged(CHAT("5 not sure"), "{\"findings\": [], \"sure\": false}", HYBRID_LOCAL);
    expect_judged(CHAT("6 no such quote"), FOUND("person_name", "Bob"), HYBRID_LOCAL);
    expect_judged(CHAT("7 no such category"), FOUND("names", "such"), HYBRID_LOCAL);
    expect_judged(CHAT("8 no list"), "{\"sure\": true}", HYBRID_LOCAL);
    /* What the detectors keep is not asked about. */
    model m = {.answer = nothing};
    hybrid_plan plan = judged(CHAT("9 patient: diagnosis F32.1, card " CARD), &m, NULL);
    assert_int_equal(plan.route, HYBRID_LOCAL);
    assert_int_equal(m.n_asked, 0);
    hybrid_plan_free(&plan);
}

static void test_model_findings_are_replaced(void **state)
{
    (void)state;
    hybrid_close(h);
    open_with(
        "{\"categories\": {\"personal\": \"redact\"}, \"model_check\": {\"when\": \"always\"}}");
    model m = {.answer = FOUND("person_name", "Ann Lee")};
    hybrid_plan plan = judged(CHAT("Ann Lee (" EMAIL ") met Ann Lee."), &m, NULL);
    assert_int_equal(plan.route, HYBRID_CLOUD);
    assert_non_null(strstr(plan.text.data, "[PERSON_1] ([EMAIL_1]) met [PERSON_1]."));
    hybrid_plan_free(&plan);
    /* The same text is not asked about twice; another message of the conversation is. */
    plan =
        judged("{\"messages\": [{\"role\": \"user\", \"content\": \"Ann Lee (" EMAIL
               ") met Ann Lee.\"}, {\"role\": \"assistant\", \"content\": \"So Ann Lee did.\"}]}",
               &m, NULL);
    assert_int_equal(m.n_asked, 2);
    assert_non_null(strstr(plan.text.data, "So [PERSON_1] did."));
    hybrid_plan_free(&plan);
}

/* What the model finds around a value that is replaced counts as if it stood alone. */
static void test_model_findings_around_others(void **state)
{
    (void)state;
    hybrid_close(h);
    open_with("{\"categories\": {\"personal\": \"redact\", \"health\": \"keep_local\"}, "
              "\"model_check\": {\"when\": \"always\"}}");
    model m = {.answer = FOUND("medical", EMAIL " has the flu")};
    hybrid_plan plan = judged(CHAT("So " EMAIL " has the flu."), &m, NULL);
    assert_int_equal(plan.route, HYBRID_LOCAL);
    hybrid_plan_free(&plan);
    m.answer = FOUND("person_name", "Ann Lee, " EMAIL);
    plan = judged(CHAT("It was Ann Lee, " EMAIL ", who did."), &m, NULL);
    assert_int_equal(plan.route, HYBRID_CLOUD);
    assert_non_null(strstr(plan.text.data, "It was [PERSON_1], who did."));
    hybrid_plan_free(&plan);
}

/* The policy bounds what the model may bring about, and says what happens when it is not sure. */
static void test_model_check_is_bounded(void **state)
{
    (void)state;
    hybrid_close(h);
    open_with(
        "{\"model_check\": {\"when\": \"always\", \"at_most\": \"ask\", \"on_unsure\": \"ask\"}}");
    expect_judged(CHAT("Ann has the flu"), FOUND("medical", "has the flu"), HYBRID_ASK);
    model m = {0};
    hybrid_plan plan = judged(CHAT("not in time"), &m, NULL);
    char token[CONSENT_TOKEN_BYTES];
    assert_int_equal(plan.route, HYBRID_ASK);
    assert_true(has_reason(&plan, "the local model is not sure: ask"));
    memcpy(token, plan.token, sizeof token);
    hybrid_plan_free(&plan);
    plan = judged(CHAT("not in time"), &m, token);
    assert_int_equal(plan.route, HYBRID_CLOUD);
    hybrid_plan_free(&plan);
    hybrid_close(h);
    open_with("{\"model_check\": {\"when\": \"always\", \"on_unsure\": \"allow\"}}");
    expect_judged(CHAT("not in time"), NULL, HYBRID_CLOUD);
}

/* ---- consent ---- */

static void test_consent(void **state)
{
    (void)state;
    hybrid_plan plan = plan_as(CHAT("Charge " CARD), "k", NULL, false);
    char token[CONSENT_TOKEN_BYTES];
    assert_int_equal(plan.route, HYBRID_ASK);
    memcpy(token, plan.token, sizeof token);
    json_t *findings = hybrid_plan_findings(&plan);
    assert_int_equal(json_array_size(findings), 1);
    const json_t *f = json_array_get(findings, 0);
    assert_string_equal(json_string_value(json_object_get(f, "category")), "payment_card");
    assert_string_equal(json_string_value(json_object_get(f, "where")), "messages[0].content");
    assert_null(strstr(json_string_value(json_object_get(f, "excerpt")), "1111 1111"));
    json_decref(findings);
    hybrid_plan_free(&plan);
    /* Another request, another client: a new question. */
    plan = plan_as(CHAT("Charge " CARD "!"), "k", token, false);
    assert_int_equal(plan.route, HYBRID_ASK);
    assert_true(has_reason(&plan, "is not one for this request"));
    assert_string_not_equal(plan.token, token);
    hybrid_plan_free(&plan);
    plan = plan_as(CHAT("Charge " CARD), "other", token, false);
    assert_int_equal(plan.route, HYBRID_ASK);
    hybrid_plan_free(&plan);
    /* The same, written otherwise and with another field that does not leave: goes, once. */
    plan = plan_as("{ \"messages\":[{\"role\":\"user\",\"content\":\"Charge \\u0034"
                   "111 1111 1111 1111\"}], "
                   "\"user\": \"u\"}",
                   "k", token, false);
    assert_int_equal(plan.route, HYBRID_CLOUD);
    assert_true(has_reason(&plan, "agreed to by consent"));
    assert_non_null(strstr(plan.text.data, CARD)); /* what was agreed to */
    hybrid_plan_free(&plan);
    plan = plan_as(CHAT("Charge " CARD), "k", token, false);
    assert_int_equal(plan.route, HYBRID_ASK);
    hybrid_plan_free(&plan);
}

/* What was agreed to is what was shown: under another policy less may be replaced. */
static void test_consent_ends_with_its_policy(void **state)
{
    (void)state;
    static const char both[] = CHAT("Charge " CARD " of " EMAIL);
    hybrid_plan plan = plan_as(both, NULL, NULL, true);
    char token[CONSENT_TOKEN_BYTES];
    calla_error err;
    assert_int_equal(plan.route, HYBRID_ASK);
    memcpy(token, plan.token, sizeof token);
    hybrid_plan_free(&plan);
    put_test_file(dir, "policy.json",
                  "{\"categories\": {\"finance\": \"ask\", \"email\": \"allow\"}}");
    assert_ok(hybrid_reload(h, &err), &err);
    plan = plan_as(both, NULL, token, true);
    assert_int_equal(plan.route, HYBRID_ASK);
    hybrid_plan_free(&plan);
}

/* A yes to one thing is none to what the policy keeps. */
static void test_consent_is_no_way_around(void **state)
{
    (void)state;
    hybrid_plan plan = plan_as(CHAT("Charge " CARD), NULL, NULL, true);
    char token[CONSENT_TOKEN_BYTES];
    calla_error err;
    memcpy(token, plan.token, sizeof token);
    hybrid_plan_free(&plan);
    put_test_file(dir, "policy.json", "{}");
    assert_ok(hybrid_reload(h, &err), &err);
    plan = plan_as(CHAT("Charge " CARD), NULL, token, true);
    assert_int_equal(plan.route, HYBRID_REFUSE);
    hybrid_plan_free(&plan);
}

static void test_reload(void **state)
{
    (void)state;
    calla_error err;
    put_test_file(dir, "policy.json", "{\"categories\": {\"finance\": \"maybe\"}}");
    assert_error(hybrid_reload(h, &err), CALLA_ERR_INPUT, &err, "categories.finance");
    expect_route(CHAT("Charge " CARD), false, HYBRID_ASK); /* the old one holds */
    put_test_file(dir, "policy.json", "{\"categories\": {\"finance\": \"allow\"}}");
    assert_ok(hybrid_reload(h, &err), &err);
    expect_route(CHAT("Charge " CARD), false, HYBRID_CLOUD);
}

/* ---- exchanges ---- */

static hybrid_progress run(const char *text, strbuf *out)
{
    hybrid_plan plan = plan_as(text, NULL, NULL, false);
    hybrid_exchange *x;
    hybrid_progress p;
    calla_error err;
    assert_int_equal(plan.route, HYBRID_CLOUD);
    assert_ok(hybrid_exchange_begin(h, &plan, &x, &err), &err);
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
    json_t *answer = parse(out.data);
    assert_string_equal(at(answer, "calla", "route"), "cloud");
    assert_string_equal(json_string_value(json_object_get(answer, "object")), "chat.completion");
    char *body = fake_cloud_last_body(cloud), *all = fake_cloud_received(cloud);
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
        fake_cloud_script(cloud, &answers[i], 1);
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
    fake_cloud_script(cloud, &a, 1);
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
    json_t *request = parse(body);
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
    fake_cloud_reply(cloud, echo, &stream);
    hybrid_progress p = run(CHAT("Mail \\\"" EMAIL "\\\" and " EMAIL "."), &out);
    assert_int_equal(p.state, HYBRID_ANSWERED);
    char *body = fake_cloud_last_body(cloud);
    assert_null(strstr(body, "jane"));
    assert_non_null(strstr(body, "Mail \\\"[EMAIL_1]\\\" and [EMAIL_1]."));
    json_t *answer = parse(out.data);
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
    fake_cloud_reply(cloud, echo, &stream);
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
    char *body = fake_cloud_last_body(cloud);
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
    hybrid_close(h);
    open_with("{\"categories\": {\"private_key\": \"redact\"}}");
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
        fake_cloud_script(cloud, &answers[stream], 1);
        strbuf_printf(&text,
                      "{\"stream\": %s, \"response_format\": %s, \"messages\": [{\"role\": "
                      "\"user\", \"content\": ",
                      stream ? "true" : "false", formats[i % 3]);
        json_write_string(&text, value, sizeof value - 1);
        strbuf_puts(&text, "}]}");
        hybrid_progress p = run(text.data, &out);
        assert_int_equal(p.state, HYBRID_ANSWERED);
        if (stream) out.data[strcspn(out.data, "\n")] = '\0';
        json_t *answer = parse(out.data + (stream ? 6 : 0)), *inner = NULL;
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
    hybrid_close(h);
    open_with("{\"categories\": {\"finance\": \"redact\"}}");
    run("{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [{\"id\": \"1\", \"type\": "
        "\"function\", \"function\": {\"name\": \"f\", \"arguments\": \"{\\\"a\\\": "
        "4111111111111111, \\\"b\\\": \\\"\\\\u0034111111111111111\\\", \\\"b\\\": "
        "\\\"z\\\"}\"}}]}]}",
        &out);
    char *body = fake_cloud_last_body(cloud);
    json_t *sent = parse(body);
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
    fake_cloud_script(cloud, a, 1);
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
    hybrid_close(h);
    open_with("{\"cloud\": {\"retries\": 0, \"first_byte_timeout_ms\": 300}}");
    expect_failure(&(fake_answer){.held = true}, text, 504, "cloud_timeout", true);
    fake_cloud_release(cloud);
    hybrid_close(h);
    open_with(default_policy);
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
    fake_cloud_script(cloud, &a, 1);
    hybrid_progress p = run(CHAT("Write to " EMAIL), &out);
    assert_true(p.has_body);
    assert_int_equal(p.status, 400);
    json_t *body = parse(out.data);
    assert_string_equal(at(body, "error", "message"), "no such thing as " EMAIL);
    assert_string_equal(at(body, "error", "param"), "messages");
    assert_string_equal(at(body, "calla", "route"), "cloud");
    json_decref(body);
    strbuf_free(&out);
}

/* ---- the audit of it ---- */

static bool print_row(void *user, const audit_row *row)
{
    json_t *body = parse(row->body);
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
    expect_route(CHAT("Charge " CARD), false, HYBRID_ASK);
    expect_failure(&(fake_answer){.status = 500}, CHAT("hi"), 500, "cloud_error", true);
    assert_ok(audit_open_to_read(audit_path, &a, &err), &err);
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
    hybrid_plan plan = plan_as(CHAT("hi"), NULL, NULL, false);
    hybrid_exchange *x;
    calla_error err;
    sqlite3 *other;
    assert_int_equal(sqlite3_open(audit_path, &other), SQLITE_OK);
    assert_int_equal(sqlite3_exec(other, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    assert_int_not_equal(hybrid_exchange_begin(h, &plan, &x, &err), CALLA_OK);
    assert_int_equal(fake_cloud_n_requests(cloud), 0);
    sqlite3_close(other);
    assert_ok(hybrid_exchange_begin(h, &plan, &x, &err), &err);
    hybrid_exchange_end(x);
    hybrid_plan_free(&plan);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_routes),
        TEST(test_keeps_local),
        TEST(test_preferences),
        TEST(test_client_without_cloud),
        TEST(test_what_is_not_understood),
        TEST(test_every_field_is_looked_at),
        TEST(test_fixed_places),
        TEST(test_borders_are_no_findings),
        TEST(test_places_are_bounded),
        TEST(test_long_names),
        TEST(test_model_check),
        TEST(test_model_findings_are_replaced),
        TEST(test_model_findings_around_others),
        TEST(test_model_check_is_bounded),
        TEST(test_consent),
        TEST(test_consent_ends_with_its_policy),
        TEST(test_consent_is_no_way_around),
        TEST(test_reload),
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
