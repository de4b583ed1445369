#include "hybrid/hybrid_private.h"

#include "base/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { DEFAULT_CALLS = 64, MAX_CONSENTS = 1024, MAX_JUDGEMENTS = 1024 };

/* ---- opening ---- */

static calla_status no_memory(calla_error *err)
{
    return error_set(err, CALLA_ERR_MEMORY, "no memory for the cloud's part");
}

static calla_status make_dirs(char *path, calla_error *err)
{
    for (char *p = path + 1;; p++) {
        if (*p != '/' && *p) continue;
        char was = *p;
        *p = '\0';
        if (mkdir(path, 0700) != 0 && errno != EEXIST)
            return error_set_errno(err, CALLA_ERR_IO, errno, "cannot make the directory %s", path);
        *p = was;
        if (!was) return CALLA_OK;
    }
}

static bool is_set(const char *text)
{
    return text && *text;
}

calla_status hybrid_default_audit(char **path, calla_error *err)
{
    const char *service = getenv("STATE_DIRECTORY"), *state = getenv("XDG_STATE_HOME");
    const char *home = getenv("HOME");
    char *dir;
    int n;
    *path = NULL;
    if (!is_set(service) && !is_set(state) && !is_set(home))
        return error_set(
            err, CALLA_ERR_INPUT,
            "there is no home directory to keep the audit in; say where: --audit FILE");
    if (is_set(service))
        n = asprintf(&dir, "%s", service);
    else if (is_set(state))
        n = asprintf(&dir, "%s/calla", state);
    else
        n = asprintf(&dir, "%s/.local/state/calla", home);
    if (n < 0) return no_memory(err);
    calla_status status = make_dirs(dir, err);
    if (status == CALLA_OK && asprintf(path, "%s/audit.db", dir) < 0) {
        *path = NULL;
        status = no_memory(err);
    }
    free(dir);
    return status;
}

static calla_status load_policy(const hybrid *h, policy **p, calla_error *err)
{
    if (h->policy_path) return policy_read_file(h->policy_path, p, err);
    return policy_create_default(p, err);
}

static calla_status open_upstream(hybrid *h, const hybrid_options *o, calla_error *err)
{
    upstream_config config = {.url = o->url,
                              .ca_file = o->ca_file,
                              .n_calls = o->n_calls > 0 ? o->n_calls : DEFAULT_CALLS};
    if (o->key_env) {
        config.key = getenv(o->key_env);
        if (!config.key)
            return error_set(err, CALLA_ERR_INPUT,
                             "the environment has no variable '%s' with the cloud's key",
                             o->key_env);
    }
    return upstream_open(&config, &h->upstream, err);
}

static calla_status open_audit(hybrid *h, const hybrid_options *o, calla_error *err)
{
    char *path = NULL;
    if (o->audit) return audit_open(o->audit, &h->audit, err);
    CALLA_TRY(hybrid_default_audit(&path, err));
    calla_status status = audit_open(path, &h->audit, err);
    free(path);
    return status;
}

calla_status hybrid_open(const hybrid_options *o, hybrid **out, calla_error *err)
{
    calla_status status = CALLA_OK;
    hybrid *h = calloc(1, sizeof *h);
    if (!h) return no_memory(err);
    pthread_mutex_init(&h->lock, NULL);
    h->model = strdup(o->model);
    h->policy_path = o->policy ? strdup(o->policy) : NULL;
    if (!h->model || (o->policy && !h->policy_path)) {
        status = no_memory(err);
        goto fail;
    }
    CALLA_TRY_GOTO(load_policy(h, &h->policy, err), fail);
    CALLA_TRY_GOTO(detector_create(&h->detector, err), fail);
    CALLA_TRY_GOTO(consent_create(MAX_CONSENTS, &h->consents, err), fail);
    CALLA_TRY_GOTO(judge_create(MAX_JUDGEMENTS, &h->judge, err), fail);
    CALLA_TRY_GOTO(open_audit(h, o, err), fail);
    CALLA_TRY_GOTO(open_upstream(h, o, err), fail);
    *out = h;
    return CALLA_OK;
fail:
    hybrid_close(h);
    return status;
}

calla_status hybrid_reload(hybrid *h, calla_error *err)
{
    policy *fresh;
    CALLA_TRY(load_policy(h, &fresh, err));
    pthread_mutex_lock(&h->lock);
    policy *old = h->policy;
    h->policy = fresh;
    pthread_mutex_unlock(&h->lock);
    policy_release(old);
    return CALLA_OK;
}

void hybrid_stop(hybrid *h, int64_t deadline_ns)
{
    upstream_stop(h->upstream, deadline_ns);
}

void hybrid_close(hybrid *h)
{
    if (!h) return;
    upstream_close(h->upstream);
    audit_close(h->audit);
    judge_free(h->judge);
    consent_free(h->consents);
    detector_free(h->detector);
    policy_release(h->policy);
    pthread_mutex_destroy(&h->lock);
    free(h->policy_path);
    free(h->model);
    free(h);
}

const char *hybrid_model(const hybrid *h)
{
    return h->model;
}

const char *hybrid_origin(const hybrid *h)
{
    return upstream_origin(h->upstream);
}

hybrid_counts *hybrid_get_counts(hybrid *h)
{
    return &h->counts;
}
