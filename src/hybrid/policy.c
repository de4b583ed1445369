#include "hybrid/policy.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char *const action_names[] = {"allow", "redact", "ask", "keep_local"};

const char *policy_action_name(policy_action action)
{
    return action_names[action];
}

policy *policy_retain(policy *p)
{
    atomic_fetch_add(&p->n_users, 1);
    return p;
}

static void free_texts(char **texts, size_t n)
{
    for (size_t i = 0; i < n; i++) free(texts[i]);
    free(texts);
}

static void free_allow(policy_allow *a)
{
    free_texts(a->values, a->n_values);
    free_texts(a->patterns, a->n_patterns);
    free_texts(a->domains, a->n_domains);
}

void policy_release(policy *p)
{
    if (!p || atomic_fetch_sub(&p->n_users, 1) > 1) return;
    free_allow(&p->allow);
    for (size_t i = 0; i < p->n_clients; i++) {
        free_allow(&p->clients[i].allow);
        free(p->clients[i].id);
    }
    free(p->clients);
    for (size_t i = 0; i < p->n_prices; i++) {
        free(p->prices[i].model);
        free(p->prices[i].currency);
    }
    free(p->prices);
    free(p);
}

const policy_client *policy_find_client(const policy *p, const char *key)
{
    unsigned char digest[SHA256_BYTES];
    if (!key) return NULL;
    sha256_of(key, strlen(key), digest);
    return policy_find_client_of(p, digest);
}

const policy_client *policy_find_client_of(const policy *p,
                                           const unsigned char digest[SHA256_BYTES])
{
    const policy_client *found = NULL;
    for (size_t i = 0; i < p->n_clients; i++)
        if (digest_equal(p->clients[i].key_digest, digest, SHA256_BYTES)) found = &p->clients[i];
    return found;
}

static bool is_same_value(detect_category category, const char *value, const char *text,
                          size_t n_bytes)
{
    strbuf a = {0}, b = {0};
    detect_normalise(category, value, strlen(value), &a);
    detect_normalise(category, text, n_bytes, &b);
    bool same = !a.failed && !b.failed && a.n == b.n && a.n > 0 && memcmp(a.data, b.data, a.n) == 0;
    strbuf_free(&a);
    strbuf_free(&b);
    return same;
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool is_like(char pattern, char c)
{
    if (pattern == '#') return c >= '0' && c <= '9';
    return strncasecmp(&pattern, &c, 1) == 0;
}

/* A star takes as little as it can, and more when what follows it does not fit: in time of their
 * lengths' product. */
static bool fits(const char *pattern, const char *text, size_t n_bytes)
{
    const char *star = NULL;
    size_t at = 0, from = 0; /* where what follows the last star was tried */
    while (at < n_bytes) {
        if (*pattern == '*') {
            star = ++pattern;
            from = at;
        } else if (*pattern && is_like(*pattern, text[at])) {
            pattern++;
            at++;
        } else if (star && !is_space(text[from])) {
            pattern = star;
            at = ++from;
        } else {
            return false;
        }
    }
    while (*pattern == '*') pattern++;
    return !*pattern;
}

/* Whether the address is of the domain or of one below it. */
static bool is_of_domain(const char *domain, const char *text, size_t n_bytes)
{
    size_t n = strlen(domain);
    if (n_bytes <= n || strncasecmp(text + n_bytes - n, domain, n) != 0) return false;
    char before = text[n_bytes - n - 1];
    return before == '@' || before == '.';
}

static bool allows(const policy_allow *a, detect_category category, const char *text,
                   size_t n_bytes)
{
    for (size_t i = 0; i < a->n_values; i++)
        if (is_same_value(category, a->values[i], text, n_bytes)) return true;
    for (size_t i = 0; i < a->n_patterns; i++)
        if (fits(a->patterns[i], text, n_bytes)) return true;
    for (size_t i = 0; category == DETECT_EMAIL && i < a->n_domains; i++)
        if (is_of_domain(a->domains[i], text, n_bytes)) return true;
    return false;
}

policy_action policy_decide(const policy *p, const policy_client *client, detect_category category,
                            const char *text, size_t n_bytes)
{
    policy_action action = client ? client->actions[category] : p->actions[category];
    if (action == POLICY_ALLOW || allows(&p->allow, category, text, n_bytes)) return POLICY_ALLOW;
    if (client && allows(&client->allow, category, text, n_bytes)) return POLICY_ALLOW;
    return action;
}

const policy_price *policy_find_price(const policy *p, const char *model)
{
    for (size_t i = 0; i < p->n_prices; i++)
        if (strcmp(p->prices[i].model, model) == 0) return &p->prices[i];
    return NULL;
}
