/* The way to a cloud, under test: a policy and an audit in a temporary directory, and a cloud that
 * records what it gets. */
#ifndef CALLA_TESTS_HYBRID_GATEWAY_H
#define CALLA_TESTS_HYBRID_GATEWAY_H

#include "hybrid/fake_cloud.h"
#include "hybrid/hybrid.h"
#include "support/files.h"
#include "support/json_text.h"
#include "support/support.h"

#define CARD  "4111 1111 1111 1111"
#define EMAIL "jane.doe@corp-mail.com"

#define CHAT(content)                                                                              \
    "{\"model\": \"x\", \"messages\": [{\"role\": \"user\", \"content\": \"" content "\"}]}"

/* Of the test that runs. */
extern struct gateway {
    hybrid *hybrid;
    fake_cloud *cloud;
    const char *dir;
    char audit_path[600], policy_path[600];
} gateway;

/* Finance is asked about, personal things are replaced, and the cloud has a price. */
extern const char gateway_policy[];

/* Opens it with that policy. */
int gateway_setup(void **state);
int gateway_teardown(void **state);
/* Into gateway.hybrid; what was there is closed before. */
void gateway_open(const char *policy_text);

/* To be freed; key and token may be NULL. */
hybrid_plan gateway_plan(const char *text, const char *key, const char *token, bool only_cloud);
void gateway_expect_route(const char *text, bool only_cloud, hybrid_route route);
bool gateway_has_reason(const hybrid_plan *plan, const char *part);

#endif
