#include "server/access.h"

#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

/* The name in "name:port" or "[address]:port"; false if there is none, or rubbish behind it. */
static bool host_name(const char *host, char *name, size_t n_name)
{
    const char *begin = host, *end;
    bool bracketed = *host == '[';
    if (bracketed) {
        begin++;
        end = strchr(begin, ']');
        if (!end) return false;
        host = end + 1;
    } else {
        end = host + strcspn(host, ":");
        host = end;
    }
    size_t n = (size_t)(end - begin);
    if (n == 0 || n >= n_name) return false;
    memcpy(name, begin, n);
    name[n] = '\0';
    struct in6_addr address;
    if (bracketed && inet_pton(AF_INET6, name, &address) != 1) return false;
    if (*host == '\0') return true;
    size_t n_digits = strspn(host + 1, "0123456789");
    return *host == ':' && n_digits > 0 && n_digits <= 5 && host[1 + n_digits] == '\0';
}

static bool is_address(const char *name)
{
    struct in6_addr address;
    return inet_pton(AF_INET, name, &address) == 1 || inet_pton(AF_INET6, name, &address) == 1;
}

bool access_is_loopback(const char *address)
{
    struct in_addr v4;
    struct in6_addr v6;
    if (inet_pton(AF_INET, address, &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
    if (inet_pton(AF_INET6, address, &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6);
    return strcasecmp(address, "localhost") == 0;
}

bool access_check_host(const access_rules *rules, const char *host, api_error *e)
{
    char name[256];
    if (!host || !host_name(host, name, sizeof name))
        return api_fail(e, 400, NULL, "invalid_host", "the Host header is missing or malformed");
    if (strcasecmp(name, "localhost") == 0 || is_address(name)) return true;
    for (int32_t i = 0; i < rules->n_hosts; i++)
        if (strcasecmp(name, rules->hosts[i]) == 0) return true;
    return api_fail(e, 403, NULL, "host_not_allowed",
                    "this server does not answer to the name '%s' (see --allow-host)", name);
}

bool access_origin_is_configured(const access_rules *rules, const char *origin)
{
    for (int32_t i = 0; i < rules->n_origins; i++)
        if (strcmp(rules->origins[i], "*") == 0 || strcasecmp(rules->origins[i], origin) == 0)
            return true;
    return false;
}

bool access_check_origin(const access_rules *rules, const char *origin, const char *host,
                         api_error *e)
{
    static const char scheme[] = "http://";
    if (!origin || access_origin_is_configured(rules, origin)) return true;
    if (host && strncasecmp(origin, scheme, sizeof scheme - 1) == 0 &&
        strcasecmp(origin + sizeof scheme - 1, host) == 0)
        return true;
    return api_fail(e, 403, NULL, "origin_not_allowed",
                    "pages of '%s' may not use this server (see --allow-origin)", origin);
}

/* Takes as long whatever is compared: as long as what was sent is. */
static bool same_key(const char *key, size_t n_key, const char *sent)
{
    size_t n = strlen(sent);
    volatile unsigned char difference = n != n_key;
    for (size_t i = 0; i < n; i++) difference |= (unsigned char)(sent[i] ^ key[i % n_key]);
    return difference == 0;
}

/* Whether the key is one of those, which stand on lines of their own. */
static bool is_known(const char *keys, const char *sent)
{
    bool known = false;
    while (*keys) {
        size_t n = strcspn(keys, "\n");
        if (n > 0 && same_key(keys, n, sent)) known = true;
        keys += n + (keys[n] == '\n');
    }
    return known;
}

const char *access_accepted_key(const access_rules *rules, const char *authorization,
                                const char *api_key)
{
    static const char scheme[] = "Bearer ";
    if (authorization && strncasecmp(authorization, scheme, sizeof scheme - 1) == 0) {
        const char *sent = authorization + sizeof scheme - 1;
        sent += strspn(sent, " ");
        if (!rules->keys || is_known(rules->keys, sent)) return sent;
    }
    return api_key && (!rules->keys || is_known(rules->keys, api_key)) ? api_key : NULL;
}

bool access_check_key(const access_rules *rules, const char *authorization, const char *api_key,
                      api_error *e)
{
    if (!rules->keys || access_accepted_key(rules, authorization, api_key)) return true;
    return api_fail(e, 401, NULL, "invalid_api_key",
                    authorization || api_key
                        ? "Incorrect API key provided."
                        : "You didn't provide an API key: send it as Authorization: Bearer KEY.");
}
