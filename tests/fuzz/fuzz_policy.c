/* A policy from arbitrary bytes: refused with a message that names the file, or whole; and never
 * looser about what is not said than the default. */
#include "hybrid/policy.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    policy *p;
    calla_error err = {0};
    calla_status status = policy_parse((const char *)data, n, "fuzz", &p, &err);
    if (status != CALLA_OK) {
        if (err.code != status || !strstr(err.message, "fuzz")) abort();
        return 0;
    }
    bool says_categories = memmem(data, n, "categories", 10) || memmem(data, n, "\\u", 2);
    for (int c = 0; c < DETECT_N_CATEGORIES; c++) {
        if (p->actions[c] > POLICY_KEEP_LOCAL) abort();
        bool personal = detect_category_class((detect_category)c) == CLASS_PERSONAL;
        if (!says_categories && p->actions[c] != (personal ? POLICY_ASK : POLICY_KEEP_LOCAL))
            abort();
        policy_decide(p, NULL, (detect_category)c, "a@example.org", 13);
    }
    if (p->limits.n_retries > 10 || p->limits.total_ms < 1 || p->consent_s < 1) abort();
    policy_find_client(p, "key");
    policy_find_price(p, "model");
    policy_release(p);
    return 0;
}
