/* The policy's file: what it may say, and that nothing else passes. */
#include "hybrid/policy.h"
#include "support/files.h"
#include "support/support.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static policy *parse(const char *text)
{
    policy *p;
    calla_error err;
    assert_ok(policy_parse(text, strlen(text), "p.json", &p, &err), &err);
    return p;
}

static policy_action decide(const policy *p, const policy_client *c, detect_category category,
                            const char *text)
{
    return policy_decide(p, c, category, text, strlen(text));
}

/* The promise of the default: what harms most stays, the rest is asked about. */
static void test_default(void **state)
{
    (void)state;
    policy *p, *empty = parse("{}");
    calla_error err;
    assert_ok(policy_create_default(&p, &err), &err);
    for (int c = 0; c < DETECT_N_CATEGORIES; c++) {
        bool personal = detect_category_class((detect_category)c) == CLASS_PERSONAL;
        assert_int_equal(decide(p, NULL, (detect_category)c, "x"),
                         personal ? POLICY_ASK : POLICY_KEEP_LOCAL);
        assert_int_equal(p->actions[c], empty->actions[c]);
    }
    assert_int_equal(p->fallback, FALLBACK_HYBRID);
    assert_false(p->audit_content);
    policy_release(p);
    policy_release(empty);
}

static void test_categories(void **state)
{
    (void)state;
    /* A category counts more than its class, wherever it stands. */
    policy *p = parse("{\"categories\": {\"email\": \"allow\", \"personal\": \"redact\", "
                      "\"finance\": \"ask\", \"iban\": \"keep_local\"}}");
    assert_int_equal(decide(p, NULL, DETECT_EMAIL, "a@b.de"), POLICY_ALLOW);
    assert_int_equal(decide(p, NULL, DETECT_PHONE, "1"), POLICY_REDACT);
    assert_int_equal(decide(p, NULL, DETECT_PAYMENT_CARD, "1"), POLICY_ASK);
    assert_int_equal(decide(p, NULL, DETECT_IBAN, "1"), POLICY_KEEP_LOCAL);
    assert_int_equal(decide(p, NULL, DETECT_PASSWORD, "1"), POLICY_KEEP_LOCAL);
    policy_release(p);
}

static void test_allow_lists(void **state)
{
    (void)state;
    policy *p = parse("{\"allow\": {\"values\": [\"4111 1111 1111 1111\", \"me@home.org\"], "
                      "\"domains\": [\"@example.org\", \".example.net\", \"co.example\"]}}");
    static const char *const good[] = {"a@example.org", "a@b.example.org", "A@EXAMPLE.ORG",
                                       "x@example.net", "x@co.example",    "Me@home.org"};
    static const char *const bad[] = {"a@badexample.org", "a@example.org.evil.com", "you@home.org",
                                      "example.org"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (decide(p, NULL, DETECT_EMAIL, good[i]) != POLICY_ALLOW) fail_msg("%s", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (decide(p, NULL, DETECT_EMAIL, bad[i]) == POLICY_ALLOW) fail_msg("%s", bad[i]);
    assert_int_equal(decide(p, NULL, DETECT_PAYMENT_CARD, "4111-1111-1111-1111"), POLICY_ALLOW);
    assert_int_equal(decide(p, NULL, DETECT_PAYMENT_CARD, "4111111111111112"), POLICY_KEEP_LOCAL);
    policy_release(p);
}

/* Of any key. */
#define KEY_A "a0b52aff5ecaab3ac91a9a2b94c6f78a1a4d3b3bbd5bd3c9aa2d96a1a7a1d4bb"
static void test_allowed_patterns(void **state)
{
    (void)state;
    policy *p = parse("{\"allow\": {\"patterns\": [\"+49 30 1234-##\", \"test-*@*.corp.com\", "
                      "\"sk_test_*\"]}}");
    static const char *const allowed[] = {"+49 30 1234-07", "Test-ann@mail.corp.com", "sk_test_",
                                          "sk_test_abc", "test-@x@y.corp.com"};
    static const char *const not [] = {"+49 30 1234-0",
                                       "+49 30 1234-0x",
                                       "+49 30 1234-077",
                                       "x+49 30 1234-07",
                                       "ann@mail.corp.com",
                                       "sk_live_abc",
                                       "sk_test_a b",
                                       "test-a@b.corp.com.evil.com",
                                       ""};
    for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++)
        assert_int_equal(decide(p, NULL, DETECT_PHONE, allowed[i]), POLICY_ALLOW);
    for (size_t i = 0; i < sizeof not / sizeof *not ; i++)
        assert_int_equal(decide(p, NULL, DETECT_PHONE, not [i]), POLICY_ASK);
    policy_release(p);
}

static void test_clients(void **state)
{
    (void)state;
    unsigned char digest[SHA256_BYTES];
    char a[SHA256_HEX], b[SHA256_HEX], text[1024];
    sha256_of("key-a", 5, digest);
    hex_write(digest, sizeof digest, a);
    sha256_of("key-b", 5, digest);
    hex_write(digest, sizeof digest, b);
    snprintf(text, sizeof text,
             "{\"clients\": [{\"id\": \"a\", \"key_sha256\": \"%s\", \"categories\": {\"email\": "
             "\"allow\"}, \"allow\": {\"domains\": [\"x.org\"]}}, {\"id\": \"b\", \"key_sha256\": "
             "\"%s\", \"cloud\": false}], \"categories\": {\"personal\": \"redact\"}}",
             a, b);
    policy *p = parse(text);
    const policy_client *ca = policy_find_client(p, "key-a"), *cb = policy_find_client(p, "key-b");
    assert_string_equal(ca->id, "a");
    assert_true(ca->may_use_cloud);
    assert_false(cb->may_use_cloud);
    assert_null(policy_find_client(p, "key-c"));
    assert_null(policy_find_client(p, NULL));
    assert_int_equal(decide(p, ca, DETECT_EMAIL, "q@q.de"), POLICY_ALLOW);
    assert_int_equal(decide(p, ca, DETECT_PHONE, "1"), POLICY_REDACT); /* as for all */
    assert_int_equal(decide(p, cb, DETECT_EMAIL, "q@x.org"), POLICY_REDACT);
    assert_int_equal(decide(p, NULL, DETECT_EMAIL, "q@q.de"), POLICY_REDACT);
    policy_release(p);
}

static void test_numbers(void **state)
{
    (void)state;
    policy *p = parse("{\"cloud\": {\"connect_timeout_ms\": 1, \"first_byte_timeout_ms\": 2, "
                      "\"idle_timeout_ms\": 3, \"total_timeout_ms\": 4, \"retries\": 0, "
                      "\"max_response_bytes\": 1024}, \"consent\": {\"seconds\": 5}, \"route\": "
                      "{\"prefer\": \"local\", \"tools\": \"cloud\", \"local_up_to_bytes\": 6, "
                      "\"fallback\": \"never\"}, \"audit\": {\"content\": true}, \"prices\": "
                      "{\"big\": {\"input\": 2.5, \"output\": 10, \"currency\": \"EUR\"}}}");
    assert_int_equal(p->limits.connect_ms, 1);
    assert_int_equal(p->limits.first_byte_ms, 2);
    assert_int_equal(p->limits.idle_ms, 3);
    assert_int_equal(p->limits.total_ms, 4);
    assert_int_equal(p->limits.n_retries, 0);
    assert_int_equal(p->limits.response_bytes, 1024);
    assert_int_equal(p->consent_s, 5);
    assert_int_equal(p->prefer, PREFER_LOCAL);
    assert_int_equal(p->tools, TOOLS_TO_CLOUD);
    assert_int_equal(p->local_up_to_bytes, 6);
    assert_int_equal(p->fallback, FALLBACK_NEVER);
    assert_true(p->audit_content);
    assert_null(policy_find_price(p, "small"));
    assert_true(policy_find_price(p, "big")->input == 2.5);
    policy_release(p);
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *text, *where;
    } bad[] = {
        {"{\"allow\": {\"patterns\": [\"ab*\"]}}", "allow.patterns[0]"},
        {"{\"route\": {}, \"route\": {}}", "duplicate"},
        {"", "p.json"},
        {"[]", "p.json: must be an object"},
        {"{\"categorys\": {}}", "p.json: categorys: there is no such field"},
        {"{\"categories\": {\"e-mail\": \"ask\"}}", "categories.e-mail: there is no such category"},
        {"{\"categories\": {\"email\": \"block\"}}",
         "categories.email: must be one of: allow, redact, ask, keep_local"},
        {"{\"categories\": {\"email\": null}}", "categories.email"},
        {"{\"categories\": []}", "categories: must be an object, not an array"},
        {"{\"allow\": {\"values\": \"x\"}}", "allow.values: must be an array"},
        {"{\"allow\": {\"values\": [\"x\", 1]}}", "allow.values[1]: must be a string"},
        {"{\"allow\": {\"values\": [\"\"]}}", "allow.values[0]"},
        {"{\"allow\": {\"domains\": [\"org\"]}}", "allow.domains[0]: is no domain"},
        {"{\"allow\": {\"domain\": []}}", "allow.domain: there is no such field"},
        {"{\"clients\": [{}]}", "clients[0]: id is missing"},
        {"{\"clients\": [{\"id\": \"x\"}]}", "clients[0]: key_sha256 is missing"},
        {"{\"clients\": [{\"id\": \"x\", \"key_sha256\": \"sk-key\"}]}", "clients[0].key_sha256"},
        {"{\"clients\": [{\"id\": \"x\", \"key\": \"sk-key\"}]}", "clients[0].key: there is no"},
        {"{\"clients\": [{\"id\": \"x\", \"key_sha256\": \"" KEY_A "\"}, {\"id\": \"x\", "
         "\"key_sha256\": \"" KEY_A "\"}]}",
         "clients[1]: its id or key is that of another client"},
        {"{\"cloud\": {\"retries\": 11}}", "cloud.retries: must be a whole number from 0 to 10"},
        {"{\"cloud\": {\"retries\": 1.5}}", "cloud.retries"},
        {"{\"cloud\": {\"connect_timeout_ms\": 0}}", "cloud.connect_timeout_ms"},
        {"{\"cloud\": {\"url\": \"x\"}}", "cloud.url: there is no such field"},
        {"{\"consent\": {\"seconds\": 86401}}", "consent.seconds"},
        {"{\"route\": {\"prefer\": \"any\"}}", "route.prefer: must be one of: cloud, local"},
        {"{\"audit\": {\"content\": 1}}", "audit.content: must be true or false"},
        {"{\"prices\": {\"m\": {\"input\": 1}}}", "prices.m: currency is missing"},
        {"{\"prices\": {\"m\": {\"input\": -1}}}", "prices.m.input"},
        {"{\"model_check\": {\"when\": \"sometimes\"}}",
         "model_check.when: must be one of: never, always"},
        {"{\"model_check\": {\"on_unsure\": \"redact\"}}", "model_check.on_unsure: must be one of"},
        {"{\"consent\": {\"seconds\": 9}} x", "p.json"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        policy *p;
        calla_error err = {0};
        calla_status status = policy_parse(bad[i].text, strlen(bad[i].text), "p.json", &p, &err);
        if (status != CALLA_ERR_INPUT || !strstr(err.message, bad[i].where))
            fail_msg("%s: %d %s", bad[i].text, status, err.message);
        assert_null(strstr(err.message, "sk-key")); /* a key put there by mistake is not repeated */
    }
}

static void test_file(void **state)
{
    (void)state;
    policy *p;
    calla_error err;
    const char *dir = temporary_dir();
    char path[600];
    put_test_file(dir, "policy.json", "{\"consent\": {\"seconds\": 7}}");
    snprintf(path, sizeof path, "%s/policy.json", dir);
    assert_ok(policy_read_file(path, &p, &err), &err);
    assert_int_equal(p->consent_s, 7);
    policy *same = policy_retain(p);
    policy_release(p);
    assert_int_equal(same->consent_s, 7);
    policy_release(same);
    chmod(path, 0602);
    assert_error(policy_read_file(path, &p, &err), CALLA_ERR_INPUT, &err, "everybody may write");
    snprintf(path, sizeof path, "%s/none.json", dir);
    assert_error(policy_read_file(path, &p, &err), CALLA_ERR_IO, &err, "none.json");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_default),     cmocka_unit_test(test_categories),
        cmocka_unit_test(test_allow_lists), cmocka_unit_test(test_allowed_patterns),
        cmocka_unit_test(test_clients),     cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_refusals),    cmocka_unit_test(test_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
