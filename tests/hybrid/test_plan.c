/* What becomes of requests: where they go, and why. */
#include "hybrid/gateway.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what the policy says ---- */

static void test_routes(void **state)
{
    (void)state;
    gateway_expect_route(CHAT("What is a river?"), false, HYBRID_CLOUD);
    gateway_expect_route(CHAT("Charge " CARD " please"), false, HYBRID_ASK);
    gateway_expect_route(CHAT("Charge " CARD " please"), true, HYBRID_ASK);
    gateway_expect_route(CHAT("Write to " EMAIL), false, HYBRID_CLOUD);
    assert_int_equal(fake_cloud_n_connections(gateway.cloud), 0); /* a plan sends nothing */
    hybrid_counts *n = hybrid_get_counts(gateway.hybrid);
    assert_int_equal(atomic_load(&n->cloud), 2);
    assert_int_equal(atomic_load(&n->asked), 2);
}

static void test_keeps_local(void **state)
{
    (void)state;
    gateway_open("{}");
    gateway_expect_route(CHAT("Charge " CARD " please"), false, HYBRID_LOCAL);
    gateway_expect_route(CHAT("Charge " CARD " please"), true, HYBRID_REFUSE);
    gateway_expect_route(CHAT("Write to " EMAIL), false, HYBRID_ASK);
    hybrid_plan plan = gateway_plan(CHAT("Charge " CARD), NULL, NULL, false);
    assert_true(gateway_has_reason(&plan, "1 payment_card: keep_local"));
    hybrid_plan_free(&plan);
}

static void test_preferences(void **state)
{
    (void)state;
    gateway_open("{\"route\": {\"local_up_to_bytes\": 20, \"tools\": \"local\"}}");
    gateway_expect_route(CHAT("short"), false, HYBRID_LOCAL);
    gateway_expect_route(CHAT("short"), true, HYBRID_CLOUD); /* was asked for by name */
    gateway_expect_route(CHAT("This is much longer than that, is it not?"), false, HYBRID_CLOUD);
    static const char tools[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"This is much longer than that\"}], "
        "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]}";
    gateway_expect_route(tools, false, HYBRID_LOCAL);
    gateway_open("{\"route\": {\"prefer\": \"local\", \"tools\": \"cloud\"}}");
    gateway_expect_route(tools, false, HYBRID_CLOUD);
    gateway_expect_route(CHAT("This is much longer than that, is it not?"), false, HYBRID_LOCAL);
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
    gateway_open(text);
    hybrid_plan plan = gateway_plan(CHAT("hello"), "its-key", NULL, false);
    assert_int_equal(plan.route, HYBRID_LOCAL);
    hybrid_plan_free(&plan);
    plan = gateway_plan(CHAT("hello"), "its-key", NULL, true);
    assert_int_equal(plan.route, HYBRID_REFUSE);
    hybrid_plan_free(&plan);
    plan = gateway_plan(CHAT("hello"), "other", NULL, true);
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
        json_t *body = json_of(bad[i].text);
        hybrid_request q = {.body = body, .only_cloud = true};
        calla_status status = hybrid_plan_make(gateway.hybrid, &q, &plan, &err);
        if (status != CALLA_ERR_INPUT || strncmp(err.message, bad[i].where, strlen(bad[i].where)))
            fail_msg("%s: %s", bad[i].text, err.message);
        hybrid_plan_free(&plan);
        json_decref(body);
        gateway_expect_route(bad[i].text, false, HYBRID_LOCAL);
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
    gateway_open("{\"categories\": {\"personal\": \"keep_local\"}}");
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++)
        gateway_expect_route(hidden[i], true, HYBRID_REFUSE);
}

/* What must stay an identifier cannot be replaced: it stays here instead. */
static void test_fixed_places(void **state)
{
    (void)state;
    gateway_open("{\"categories\": {\"finance\": \"redact\"}}");
    gateway_expect_route(CHAT("Charge " CARD), true, HYBRID_CLOUD);
    gateway_expect_route("{\"messages\": [{\"role\": \"user\", \"name\": \"4111111111111111\", "
                         "\"content\": \"x\"}]}",
                         true, HYBRID_REFUSE);
}

/* A value at a border is the text's own that it stands in, whatever comes before it. */
static void test_borders_are_no_findings(void **state)
{
    (void)state;
    hybrid_plan plan =
        gateway_plan("{\"messages\": [{\"role\": \"user\", \"content\": \"Write to\"}, "
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
    hybrid_plan plan = gateway_plan(text.data, NULL, NULL, false);
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
    gateway_open("{}");
    strbuf_puts(&text, "{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [{\"id\": \"1\", "
                       "\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": "
                       "{\"");
    for (int i = 0; i < NAME_BYTES; i++) strbuf_putc(&text, 'n');
    strbuf_puts(&text, "_password\": [\"\"");
    for (int i = 0; i < N_TEXTS; i++) strbuf_puts(&text, ", \"a\"");
    strbuf_puts(&text, ", \"kR9-mmx2-Zt\"]}}}]}]}");
    hybrid_plan plan = gateway_plan(text.data, NULL, NULL, true);
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
    json_t *body = json_of(text);
    hybrid_request q = {.body = body, .consent = token, .ask = ask_model, .ask_user = m};
    assert_ok(hybrid_plan_make(gateway.hybrid, &q, &plan, &err), &err);
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
    gateway_open("{\"categories\": {\"personal\": \"redact\", \"health\": \"keep_local\"}, "
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
    gateway_open(
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
    gateway_open("{\"categories\": {\"personal\": \"redact\", \"health\": \"keep_local\"}, "
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
    gateway_open(
        "{\"model_check\": {\"when\": \"always\", \"at_most\": \"ask\", \"on_unsure\": \"ask\"}}");
    expect_judged(CHAT("Ann has the flu"), FOUND("medical", "has the flu"), HYBRID_ASK);
    model m = {0};
    hybrid_plan plan = judged(CHAT("not in time"), &m, NULL);
    char token[CONSENT_TOKEN_BYTES];
    assert_int_equal(plan.route, HYBRID_ASK);
    assert_true(gateway_has_reason(&plan, "the local model is not sure: ask"));
    memcpy(token, plan.token, sizeof token);
    hybrid_plan_free(&plan);
    plan = judged(CHAT("not in time"), &m, token);
    assert_int_equal(plan.route, HYBRID_CLOUD);
    hybrid_plan_free(&plan);
    gateway_open("{\"model_check\": {\"when\": \"always\", \"on_unsure\": \"allow\"}}");
    expect_judged(CHAT("not in time"), NULL, HYBRID_CLOUD);
}

/* ---- consent ---- */

static void test_consent(void **state)
{
    (void)state;
    hybrid_plan plan = gateway_plan(CHAT("Charge " CARD), "k", NULL, false);
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
    plan = gateway_plan(CHAT("Charge " CARD "!"), "k", token, false);
    assert_int_equal(plan.route, HYBRID_ASK);
    assert_true(gateway_has_reason(&plan, "is not one for this request"));
    assert_string_not_equal(plan.token, token);
    hybrid_plan_free(&plan);
    plan = gateway_plan(CHAT("Charge " CARD), "other", token, false);
    assert_int_equal(plan.route, HYBRID_ASK);
    hybrid_plan_free(&plan);
    /* The same, written otherwise and with another field that does not leave: goes, once. */
    plan = gateway_plan("{ \"messages\":[{\"role\":\"user\",\"content\":\"Charge \\u0034"
                        "111 1111 1111 1111\"}], "
                        "\"user\": \"u\"}",
                        "k", token, false);
    assert_int_equal(plan.route, HYBRID_CLOUD);
    assert_true(gateway_has_reason(&plan, "agreed to by consent"));
    assert_non_null(strstr(plan.text.data, CARD)); /* what was agreed to */
    hybrid_plan_free(&plan);
    plan = gateway_plan(CHAT("Charge " CARD), "k", token, false);
    assert_int_equal(plan.route, HYBRID_ASK);
    hybrid_plan_free(&plan);
}

/* What was agreed to is what was shown: under another policy less may be replaced. */
static void test_consent_ends_with_its_policy(void **state)
{
    (void)state;
    static const char both[] = CHAT("Charge " CARD " of " EMAIL);
    hybrid_plan plan = gateway_plan(both, NULL, NULL, true);
    char token[CONSENT_TOKEN_BYTES];
    calla_error err;
    assert_int_equal(plan.route, HYBRID_ASK);
    memcpy(token, plan.token, sizeof token);
    hybrid_plan_free(&plan);
    put_test_file(gateway.dir, "policy.json",
                  "{\"categories\": {\"finance\": \"ask\", \"email\": \"allow\"}}");
    assert_ok(hybrid_reload(gateway.hybrid, &err), &err);
    plan = gateway_plan(both, NULL, token, true);
    assert_int_equal(plan.route, HYBRID_ASK);
    hybrid_plan_free(&plan);
}

/* A yes to one thing is none to what the policy keeps. */
static void test_consent_is_no_way_around(void **state)
{
    (void)state;
    hybrid_plan plan = gateway_plan(CHAT("Charge " CARD), NULL, NULL, true);
    char token[CONSENT_TOKEN_BYTES];
    calla_error err;
    memcpy(token, plan.token, sizeof token);
    hybrid_plan_free(&plan);
    put_test_file(gateway.dir, "policy.json", "{}");
    assert_ok(hybrid_reload(gateway.hybrid, &err), &err);
    plan = gateway_plan(CHAT("Charge " CARD), NULL, token, true);
    assert_int_equal(plan.route, HYBRID_REFUSE);
    hybrid_plan_free(&plan);
}

static void test_reload(void **state)
{
    (void)state;
    calla_error err;
    put_test_file(gateway.dir, "policy.json", "{\"categories\": {\"finance\": \"maybe\"}}");
    assert_error(hybrid_reload(gateway.hybrid, &err), CALLA_ERR_INPUT, &err, "categories.finance");
    gateway_expect_route(CHAT("Charge " CARD), false, HYBRID_ASK); /* the old one holds */
    put_test_file(gateway.dir, "policy.json", "{\"categories\": {\"finance\": \"allow\"}}");
    assert_ok(hybrid_reload(gateway.hybrid, &err), &err);
    gateway_expect_route(CHAT("Charge " CARD), false, HYBRID_CLOUD);
}
int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, gateway_setup, gateway_teardown)
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
