/* The policy's file: tables of what each object may hold, and one reader for all of them. */
#include "hybrid/policy.h"

#include "base/file.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_FILE_BYTES = 1 << 20, MAX_ENTRIES = 10000, PATH_BYTES = 160 };
#define MAX_MS ((int64_t)86400000)

/* One value being read: what it is called, where it goes. */
typedef struct place {
    const char *file;
    char path[PATH_BYTES]; /* "cloud.retries" */
    calla_error *err;
} place;

typedef calla_status read_fn(const json_t *value, const place *at, void *into);

typedef struct member {
    const char *name;
    size_t offset; /* of what it goes into, in the object's structure */
    read_fn *read;
} member;

/* ---- values ---- */

static calla_status refuse(const place *at, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static calla_status refuse(const place *at, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return error_set(at->err, CALLA_ERR_INPUT, "%s: %s%s%s", at->file, at->path,
                     *at->path ? ": " : "", text);
}

static calla_status no_memory(const place *at)
{
    return error_set(at->err, CALLA_ERR_MEMORY, "%s: no memory for the policy", at->file);
}

static place below(const place *at, const char *name)
{
    place p = {.file = at->file, .err = at->err};
    snprintf(p.path, sizeof p.path, "%.*s%s%.*s", PATH_BYTES - 66, at->path, *at->path ? "." : "",
             64, name);
    return p;
}

static place element(const place *at, size_t i)
{
    place p = {.file = at->file, .err = at->err};
    snprintf(p.path, sizeof p.path, "%.*s[%zu]", PATH_BYTES - 24, at->path, i);
    return p;
}

static calla_status read_whole(const json_t *value, const place *at, int64_t low, int64_t high,
                               int64_t *into)
{
    int64_t n = json_integer_value(value);
    if (!json_is_integer(value) || n < low || n > high)
        return refuse(at, "must be a whole number from %lld to %lld", (long long)low,
                      (long long)high);
    *into = n;
    return CALLA_OK;
}

static calla_status read_bool(const json_t *value, const place *at, void *into)
{
    if (!json_is_boolean(value))
        return refuse(at, "must be true or false, not %s", json_kind_name(value));
    *(bool *)into = json_is_true(value);
    return CALLA_OK;
}

static calla_status read_text(const json_t *value, const place *at, void *into)
{
    const char *text = json_string_value(value);
    if (!text) return refuse(at, "must be a string, not %s", json_kind_name(value));
    if (!*text || strlen(text) != json_string_length(value))
        return refuse(at, "must be a text without NUL characters, and not empty");
    free(*(char **)into);
    *(char **)into = strdup(text);
    return *(char **)into ? CALLA_OK : no_memory(at);
}

/* One of the words, to its index. */
static calla_status read_word(const json_t *value, const place *at, const char *const *words, int n,
                              int *into)
{
    char list[128] = "";
    for (int i = 0; i < n; i++) {
        size_t used = strlen(list);
        if (json_is_text(value, words[i])) {
            *into = i;
            return CALLA_OK;
        }
        snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", words[i]);
    }
    return refuse(at, "must be one of: %s", list);
}

static calla_status read_list(const json_t *value, const place *at, char ***texts, size_t *n)
{
    size_t n_all = json_array_size(value);
    if (!json_is_array(value)) return refuse(at, "must be an array, not %s", json_kind_name(value));
    if (n_all > MAX_ENTRIES) return refuse(at, "has more than %d entries", MAX_ENTRIES);
    *texts = calloc(n_all + 1, sizeof **texts);
    if (!*texts) return no_memory(at);
    for (*n = 0; *n < n_all; ++*n) {
        place p = element(at, *n);
        CALLA_TRY(read_text(json_array_get(value, *n), &p, &(*texts)[*n]));
    }
    return CALLA_OK;
}

static calla_status read_object(const json_t *value, const place *at, const member *members,
                                void *into)
{
    json_t *mutable = (json_t *)value; /* jansson's iterators want it so */
    if (!json_is_mapping(value))
        return refuse(at, "must be an object, not %s", json_kind_name(value));
    for (void *i = json_object_iter(mutable); i; i = json_object_iter_next(mutable, i)) {
        const char *key = json_object_iter_key(i);
        place p = below(at, key);
        const member *m = members;
        while (m->name && strcmp(m->name, key) != 0) m++;
        if (!m->name) return refuse(&p, "there is no such field");
        CALLA_TRY(m->read(json_object_iter_value(i), &p, (char *)into + m->offset));
    }
    return CALLA_OK;
}

/* ---- categories and allow-lists ---- */

static void set_class(policy_action *actions, detect_class class_, policy_action action)
{
    for (int c = 0; c < DETECT_N_CATEGORIES; c++)
        if (detect_category_class((detect_category)c) == class_) actions[c] = action;
}

static const char *const action_words[] = {"allow", "redact", "ask", "keep_local"};

/* Classes first, then single categories, whatever their order in the file. */
static calla_status read_actions_of(json_t *object, const place *at, bool classes,
                                    policy_action *actions)
{
    for (void *i = json_object_iter(object); i; i = json_object_iter_next(object, i)) {
        const char *key = json_object_iter_key(i);
        place p = below(at, key);
        detect_class class_;
        detect_category category;
        int action = POLICY_KEEP_LOCAL;
        bool is_class = detect_class_of_name(key, &class_);
        if (!is_class && !detect_category_of_name(key, &category))
            return refuse(&p, "there is no such category");
        CALLA_TRY(
            read_word(json_object_iter_value(i), &p, action_words, POLICY_N_ACTIONS, &action));
        if (is_class && classes) set_class(actions, class_, (policy_action)action);
        if (!is_class && !classes) actions[category] = (policy_action)action;
    }
    return CALLA_OK;
}

static calla_status read_actions(const json_t *value, const place *at, void *into)
{
    if (!json_is_mapping(value))
        return refuse(at, "must be an object, not %s", json_kind_name(value));
    CALLA_TRY(read_actions_of((json_t *)value, at, true, into));
    return read_actions_of((json_t *)value, at, false, into);
}

static calla_status read_values(const json_t *value, const place *at, void *into)
{
    policy_allow *a = into;
    return read_list(value, at, &a->values, &a->n_values);
}

/* Those that would let nearly everything pass are mistakes. */
static calla_status read_patterns(const json_t *value, const place *at, void *into)
{
    enum { FEWEST_OWN = 3 };
    policy_allow *a = into;
    CALLA_TRY(read_list(value, at, &a->patterns, &a->n_patterns));
    for (size_t i = 0; i < a->n_patterns; i++) {
        place p = element(at, i);
        size_t n_own = 0;
        for (const char *c = a->patterns[i]; *c; c++) n_own += *c != '*' && *c != '#';
        if (n_own < FEWEST_OWN)
            return refuse(&p, "must have %d characters or more besides * and #", FEWEST_OWN);
    }
    return CALLA_OK;
}

/* "@example.org", ".example.org" and "example.org" mean the same. */
static calla_status read_domains(const json_t *value, const place *at, void *into)
{
    policy_allow *a = into;
    CALLA_TRY(read_list(value, at, &a->domains, &a->n_domains));
    for (size_t i = 0; i < a->n_domains; i++) {
        place p = element(at, i);
        char *d = a->domains[i];
        if (*d == '@' || *d == '.') memmove(d, d + 1, strlen(d));
        if (!strchr(d, '.') || *d == '.') return refuse(&p, "is no domain");
    }
    return CALLA_OK;
}

static calla_status read_allow(const json_t *value, const place *at, void *into)
{
    static const member members[] = {{"values", 0, read_values},
                                     {"patterns", 0, read_patterns},
                                     {"domains", 0, read_domains},
                                     {0}};
    return read_object(value, at, members, into);
}

/* ---- clients ---- */

static calla_status read_digest(const json_t *value, const place *at, void *into)
{
    const char *text = json_string_value(value);
    if (!text || !hex_read(text, into, SHA256_BYTES))
        return refuse(at, "must be the SHA-256 of the key, 64 hexadecimal digits");
    return CALLA_OK;
}

static const member client_members[] = {
    {"id", offsetof(policy_client, id), read_text},
    {"key_sha256", offsetof(policy_client, key_digest), read_digest},
    {"cloud", offsetof(policy_client, may_use_cloud), read_bool},
    {"categories", offsetof(policy_client, actions), read_actions},
    {"allow", offsetof(policy_client, allow), read_allow},
    {0},
};

static calla_status check_client(const policy *p, const json_t *value, const place *at)
{
    const policy_client *c = &p->clients[p->n_clients - 1];
    if (!c->id) return refuse(at, "id is missing");
    if (!json_object_get(value, "key_sha256")) return refuse(at, "key_sha256 is missing");
    for (const policy_client *o = p->clients; o < c; o++)
        if (strcmp(o->id, c->id) == 0 ||
            digest_equal(o->key_digest, c->key_digest, sizeof c->key_digest))
            return refuse(at, "its id or key is that of another client");
    return CALLA_OK;
}

/* After the other fields: a client's actions begin as everybody's. */
static calla_status read_clients(const json_t *value, const place *at, policy *p)
{
    size_t n = json_array_size(value);
    if (!json_is_array(value)) return refuse(at, "must be an array, not %s", json_kind_name(value));
    if (n > MAX_ENTRIES) return refuse(at, "has more than %d entries", MAX_ENTRIES);
    p->clients = calloc(n + 1, sizeof *p->clients);
    if (!p->clients) return no_memory(at);
    while (p->n_clients < n) {
        const json_t *entry = json_array_get(value, p->n_clients);
        place here = element(at, p->n_clients);
        policy_client *c = &p->clients[p->n_clients++];
        memcpy(c->actions, p->actions, sizeof c->actions);
        c->may_use_cloud = true;
        CALLA_TRY(read_object(entry, &here, client_members, c));
        CALLA_TRY(check_client(p, entry, &here));
    }
    return CALLA_OK;
}

static calla_status skip(const json_t *value, const place *at, void *into)
{
    (void)value, (void)at, (void)into;
    return CALLA_OK;
}

/* ---- routes, limits, prices ---- */

static calla_status read_prefer(const json_t *value, const place *at, void *into)
{
    static const char *const words[] = {"cloud", "local"};
    return read_word(value, at, words, 2, into);
}

static calla_status read_tools(const json_t *value, const place *at, void *into)
{
    static const char *const words[] = {"any", "local", "cloud"};
    return read_word(value, at, words, 3, into);
}

static calla_status read_when(const json_t *value, const place *at, void *into)
{
    static const char *const words[] = {"never", "always"};
    int when = 0;
    CALLA_TRY(read_word(value, at, words, 2, &when));
    *(bool *)into = when == 1;
    return CALLA_OK;
}

static calla_status read_unsure(const json_t *value, const place *at, void *into)
{
    static const char *const words[] = {"allow", "ask", "keep_local"};
    static const policy_action actions[] = {POLICY_ALLOW, POLICY_ASK, POLICY_KEEP_LOCAL};
    int word = 0;
    CALLA_TRY(read_word(value, at, words, 3, &word));
    *(int *)into = (int)actions[word];
    return CALLA_OK;
}

static calla_status read_at_most(const json_t *value, const place *at, void *into)
{
    return read_word(value, at, action_words, POLICY_N_ACTIONS, into);
}

static calla_status read_fallback(const json_t *value, const place *at, void *into)
{
    static const char *const words[] = {"never", "hybrid", "always"};
    return read_word(value, at, words, 3, into);
}

static calla_status read_size(const json_t *value, const place *at, void *into)
{
    return read_whole(value, at, 0, INT64_MAX / 2, into);
}

static calla_status read_response_size(const json_t *value, const place *at, void *into)
{
    return read_whole(value, at, 1024, (int64_t)1 << 32, into);
}

static calla_status read_ms(const json_t *value, const place *at, void *into)
{
    return read_whole(value, at, 1, MAX_MS, into);
}

static calla_status read_retries(const json_t *value, const place *at, void *into)
{
    int64_t n = 0;
    CALLA_TRY(read_whole(value, at, 0, 10, &n));
    *(int32_t *)into = (int32_t)n;
    return CALLA_OK;
}

static calla_status read_seconds(const json_t *value, const place *at, void *into)
{
    return read_whole(value, at, 1, 86400, into);
}

static calla_status read_price(const json_t *value, const place *at, void *into)
{
    double x = json_number_value(value);
    if (!json_is_number(value) || !(x >= 0 && x <= 1e9))
        return refuse(at, "must be a number from 0 to 1e9");
    *(double *)into = x;
    return CALLA_OK;
}

static const member price_members[] = {
    {"input", offsetof(policy_price, input), read_price},
    {"output", offsetof(policy_price, output), read_price},
    {"currency", offsetof(policy_price, currency), read_text},
    {0},
};

static calla_status read_prices(const json_t *value, const place *at, void *into)
{
    policy *p = into;
    json_t *object = (json_t *)value;
    if (!json_is_mapping(value))
        return refuse(at, "must be an object, not %s", json_kind_name(value));
    if (json_object_size(value) > MAX_ENTRIES)
        return refuse(at, "has more than %d entries", MAX_ENTRIES);
    p->prices = calloc(json_object_size(value) + 1, sizeof *p->prices);
    if (!p->prices) return no_memory(at);
    for (void *i = json_object_iter(object); i; i = json_object_iter_next(object, i)) {
        place here = below(at, json_object_iter_key(i));
        policy_price *price = &p->prices[p->n_prices++];
        price->model = strdup(json_object_iter_key(i));
        if (!price->model) return no_memory(at);
        CALLA_TRY(read_object(json_object_iter_value(i), &here, price_members, price));
        if (!price->currency) return refuse(&here, "currency is missing");
    }
    return CALLA_OK;
}

#define IN_POLICY(field) offsetof(policy, field)
static const member route_members[] = {
    {"prefer", IN_POLICY(prefer), read_prefer},
    {"tools", IN_POLICY(tools), read_tools},
    {"local_up_to_bytes", IN_POLICY(local_up_to_bytes), read_size},
    {"fallback", IN_POLICY(fallback), read_fallback},
    {0},
};
static const member cloud_members[] = {
    {"connect_timeout_ms", IN_POLICY(limits.connect_ms), read_ms},
    {"first_byte_timeout_ms", IN_POLICY(limits.first_byte_ms), read_ms},
    {"idle_timeout_ms", IN_POLICY(limits.idle_ms), read_ms},
    {"total_timeout_ms", IN_POLICY(limits.total_ms), read_ms},
    {"retries", IN_POLICY(limits.n_retries), read_retries},
    {"max_response_bytes", IN_POLICY(limits.response_bytes), read_response_size},
    {0},
};
static const member model_members[] = {
    {"when", IN_POLICY(model_check), read_when},
    {"timeout_ms", IN_POLICY(model_check_ms), read_ms},
    {"at_most", IN_POLICY(model_check_at_most), read_at_most},
    {"on_unsure", IN_POLICY(model_check_unsure), read_unsure},
    {0},
};
static const member consent_members[] = {{"seconds", IN_POLICY(consent_s), read_seconds}, {0}};
static const member audit_members[] = {{"content", IN_POLICY(audit_content), read_bool}, {0}};

#define OBJECT_READER(function, members)                                                           \
    static calla_status function(const json_t *value, const place *at, void *into)                 \
    {                                                                                              \
        return read_object(value, at, members, into);                                              \
    }
OBJECT_READER(read_route, route_members)
OBJECT_READER(read_cloud, cloud_members)
OBJECT_READER(read_model_check, model_members)
OBJECT_READER(read_consent, consent_members)
OBJECT_READER(read_audit, audit_members)

static const member policy_members[] = {
    {"categories", IN_POLICY(actions), read_actions},
    {"allow", IN_POLICY(allow), read_allow},
    {"clients", 0, skip}, /* read when all others are known */
    {"route", 0, read_route},
    {"cloud", 0, read_cloud},
    {"model_check", 0, read_model_check},
    {"consent", 0, read_consent},
    {"audit", 0, read_audit},
    {"prices", 0, read_prices},
    {0},
};

/* ---- the whole ---- */

calla_status policy_create_default(policy **out, calla_error *err)
{
    static atomic_ullong serial;
    policy *p = calloc(1, sizeof *p);
    if (!p) return error_set(err, CALLA_ERR_MEMORY, "no memory for the policy");
    p->serial = atomic_fetch_add(&serial, 1) + 1;
    for (int c = 0; c < DETECT_N_CATEGORIES; c++)
        p->actions[c] = detect_category_class((detect_category)c) == CLASS_PERSONAL
                            ? POLICY_ASK
                            : POLICY_KEEP_LOCAL;
    p->fallback = FALLBACK_HYBRID;
    p->limits = (upstream_limits){.connect_ms = 5000,
                                  .first_byte_ms = 60000,
                                  .idle_ms = 120000,
                                  .total_ms = 1200000,
                                  .n_retries = 2,
                                  .response_bytes = (int64_t)64 << 20};
    p->model_check_ms = 20000;
    p->model_check_at_most = p->model_check_unsure = POLICY_KEEP_LOCAL;
    p->consent_s = 600;
    atomic_store(&p->n_users, 1);
    *out = p;
    return CALLA_OK;
}

calla_status policy_parse(const char *text, size_t n_bytes, const char *name, policy **out,
                          calla_error *err)
{
    calla_status status;
    policy *p = NULL;
    json_t *value = NULL;
    const place top = {.file = name, .err = err};
    const place clients = below(&top, "clients");
    CALLA_TRY_GOTO(json_parse_unique(text, n_bytes, name, &value, err), failed);
    CALLA_TRY_GOTO(policy_create_default(&p, err), failed);
    CALLA_TRY_GOTO(read_object(value, &top, policy_members, p), failed);
    const json_t *list = json_object_get(value, "clients");
    if (list) CALLA_TRY_GOTO(read_clients(list, &clients, p), failed);
    json_decref(value);
    *out = p;
    return CALLA_OK;
failed:
    json_decref(value);
    policy_release(p);
    return status;
}

calla_status policy_read_file(const char *path, policy **p, calla_error *err)
{
    char *text;
    size_t n_bytes;
    struct stat s;
    if (stat(path, &s) == 0 && S_ISREG(s.st_mode) && (s.st_mode & S_IWOTH))
        return error_set(err, CALLA_ERR_INPUT,
                         "%s: everybody may write to this file, and so decide what leaves (chmod "
                         "o-w)",
                         path);
    CALLA_TRY(file_read(path, MAX_FILE_BYTES, &text, &n_bytes, err));
    calla_status status = policy_parse(text, n_bytes, path, p, err);
    free(text);
    return status;
}
