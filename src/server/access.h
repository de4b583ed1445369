/* Who may talk to the server.
 *
 * A page in a browser can send requests to this machine, and by DNS rebinding even under a name of
 * its own. So a request must name this server (Host: a loopback name, an address, or a name that
 * was configured), and one that a page sends (Origin) must come from this server or from a
 * configured origin. Programs send no Origin. With a key, requests must carry it. */
#ifndef CALLA_SERVER_ACCESS_H
#define CALLA_SERVER_ACCESS_H

#include "server/api_error.h"

typedef struct access_rules {
    const char *keys;         /* one a line; NULL = none is asked for */
    const char *const *hosts; /* [n_hosts] names besides loopback and addresses */
    int32_t n_hosts;
    const char *const *origins; /* [n_origins] "https://example.org", or "*" */
    int32_t n_origins;
} access_rules;

/* Values of headers; NULL = absent. */
bool access_check_host(const access_rules *rules, const char *host, api_error *e);
bool access_check_origin(const access_rules *rules, const char *origin, const char *host,
                         api_error *e);
/* authorization: "Bearer KEY"; api_key: the header x-api-key. */
bool access_check_key(const access_rules *rules, const char *authorization, const char *api_key,
                      api_error *e);
/* The key that was sent, in either header, and is one of the rules' (without rules: any); NULL =
 * there is none. */
const char *access_accepted_key(const access_rules *rules, const char *authorization,
                                const char *api_key);
/* Whether pages of this origin may read answers (CORS). */
bool access_origin_is_configured(const access_rules *rules, const char *origin);

/* Whether an address to listen on can be reached from this machine only. */
bool access_is_loopback(const char *address);

#endif
