#include "hybrid/gateway.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct gateway gateway;

const char gateway_policy[] =
    "{\"categories\": {\"finance\": \"ask\", \"personal\": \"redact\"}, " FAKE_CLOUD_POLICY
    ", \"prices\": {\"big\": {\"input\": 1000000, \"output\": 2000000, \"currency\": \"EUR\"}}}";

void gateway_open(const char *policy_text)
{
    calla_error err;
    hybrid_close(gateway.hybrid);
    gateway.hybrid = NULL;
    put_test_file(gateway.dir, "policy.json", policy_text);
    hybrid_options o = {.url = fake_cloud_url(gateway.cloud),
                        .model = "big",
                        .key_env = "TEST_CLOUD_KEY",
                        .policy = gateway.policy_path,
                        .audit = gateway.audit_path};
    assert_ok(hybrid_open(&o, &gateway.hybrid, &err), &err);
}

int gateway_setup(void **state)
{
    (void)state;
    setenv("TEST_CLOUD_KEY", "sk-cloud-key-5f2c9a", 1);
    gateway.dir = temporary_dir();
    snprintf(gateway.audit_path, sizeof gateway.audit_path, "%s/audit.db", gateway.dir);
    snprintf(gateway.policy_path, sizeof gateway.policy_path, "%s/policy.json", gateway.dir);
    gateway.cloud = fake_cloud_start();
    gateway_open(gateway_policy);
    return 0;
}

int gateway_teardown(void **state)
{
    (void)state;
    hybrid_close(gateway.hybrid);
    gateway.hybrid = NULL;
    fake_cloud_stop(gateway.cloud);
    return 0;
}

hybrid_plan gateway_plan(const char *text, const char *key, const char *token, bool only_cloud)
{
    hybrid_plan plan;
    calla_error err;
    json_t *body = json_of(text);
    hybrid_request q = {.body = body, .api_key = key, .consent = token, .only_cloud = only_cloud};
    assert_ok(hybrid_plan_make(gateway.hybrid, &q, &plan, &err), &err);
    json_decref(body);
    return plan;
}

void gateway_expect_route(const char *text, bool only_cloud, hybrid_route route)
{
    hybrid_plan plan = gateway_plan(text, NULL, NULL, only_cloud);
    if (plan.route != route) fail_msg("%s: route %d", text, plan.route);
    assert_true(json_array_size(plan.reasons) > 0);
    hybrid_plan_free(&plan);
}

bool gateway_has_reason(const hybrid_plan *plan, const char *part)
{
    for (size_t i = 0; i < json_array_size(plan->reasons); i++)
        if (strstr(json_string_value(json_array_get(plan->reasons, i)), part)) return true;
    return false;
}
