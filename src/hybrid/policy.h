/* What may leave: a JSON file, read strictly. docs/hybrid.md describes it for users; every field is
 * known and in its range, or the file is refused with the field's path. A policy never changes; a
 * new file makes a new one, and who still reads the old one keeps it alive. */
#ifndef CALLA_HYBRID_POLICY_H
#define CALLA_HYBRID_POLICY_H

#include "base/json.h"
#include "hybrid/detect/detect.h"
#include "hybrid/sha256.h"
#include "hybrid/upstream.h"

/* What is done about a finding; the strictest of a request's findings counts for all of it. */
typedef enum policy_action {
    POLICY_ALLOW,
    POLICY_REDACT,
    POLICY_ASK,
    POLICY_KEEP_LOCAL
} policy_action;
enum { POLICY_N_ACTIONS = 4 };
const char *policy_action_name(policy_action action);

/* Which requests the local model answers when the cloud cannot. */
typedef enum policy_fallback { FALLBACK_NEVER, FALLBACK_HYBRID, FALLBACK_ALWAYS } policy_fallback;
typedef enum policy_preference { PREFER_CLOUD, PREFER_LOCAL } policy_preference;
/* Where requests with tools go; TOOLS_ANYWHERE: as any other. */
typedef enum policy_tools { TOOLS_ANYWHERE, TOOLS_TO_LOCAL, TOOLS_TO_CLOUD } policy_tools;

/* Values that are no findings. */
typedef struct policy_allow {
    char **values; /* [n_values] as in the text, up to how it is written (detect_normalise) */
    size_t n_values;
    char **patterns; /* [n_patterns] of whole values: '*' is any text without white space, '#' a
                        digit */
    size_t n_patterns;
    char **domains; /* [n_domains] of addresses of e-mail, and those below them */
    size_t n_domains;
} policy_allow;

/* What holds for one API key, in place of or besides what holds for all. */
typedef struct policy_client {
    char *id;
    unsigned char key_digest[SHA256_BYTES];
    bool may_use_cloud;
    policy_action actions[DETECT_N_CATEGORIES];
    policy_allow allow;
} policy_client;

typedef struct policy_price {
    char *model, *currency;
    double input, output; /* of a million tokens */
} policy_price;

typedef struct policy {
    policy_action actions[DETECT_N_CATEGORIES];
    policy_allow allow;
    policy_client *clients; /* [n_clients] */
    size_t n_clients;
    /* Route of `hybrid` where nothing sensitive decides. */
    int prefer, tools;         /* policy_preference, policy_tools */
    int64_t local_up_to_bytes; /* requests with no more text are answered here */
    int fallback;              /* policy_fallback */
    upstream_limits limits;
    /* The local model's judgement: whether it is asked for, for how long at most, what its findings
     * may lead to at most, and what is done when it is not sure or late (POLICY_REDACT in neither).
     */
    bool model_check;
    int64_t model_check_ms;
    int model_check_at_most, model_check_unsure; /* policy_action */
    int64_t consent_s;
    bool audit_content;
    policy_price *prices; /* [n_prices] */
    size_t n_prices;
    uint64_t serial; /* another one for each policy that was read */
    atomic_int n_users;
} policy;

/* The policy without a file. */
calla_status policy_create_default(policy **p, calla_error *err);
/* text [n_bytes] of a file; `name` is what errors call it. */
calla_status policy_parse(const char *text, size_t n_bytes, const char *name, policy **p,
                          calla_error *err);
calla_status policy_read_file(const char *path, policy **p, calla_error *err);

/* Each holder has one use; the last release frees it. */
policy *policy_retain(policy *p);
void policy_release(policy *p);

/* The client with this API key (NULL = none sent), or NULL: what holds for all. */
const policy_client *policy_find_client(const policy *p, const char *key);
/* The same by the key's SHA-256. */
const policy_client *policy_find_client_of(const policy *p,
                                           const unsigned char digest[SHA256_BYTES]);
/* What is done about a finding with this text [n_bytes]; client may be NULL. */
policy_action policy_decide(const policy *p, const policy_client *client, detect_category category,
                            const char *text, size_t n_bytes);
const policy_price *policy_find_price(const policy *p, const char *model);

#endif
