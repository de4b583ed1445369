/* What becomes of a request. */
#include "hybrid/hybrid_private.h"

#include "base/clock.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_FINDINGS_TOLD = 100 };

void hybrid_plan_free(hybrid_plan *plan)
{
    outbound_deinit(&plan->out);
    json_decref(plan->reasons);
    policy_release(plan->policy);
    redaction_map_free(plan->map);
    strbuf_free(&plan->text);
    *plan = (hybrid_plan){0};
}

void hybrid_add_reason(json_t *reasons, const char *format, ...)
{
    calla_error text; /* for its tidying */
    char reason[256];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    error_set(&text, CALLA_ERR_INPUT, "%s", reason);
    json_array_append_new(reasons, json_string(text.message));
}

json_t *hybrid_plan_note(const hybrid_plan *plan, const char *route)
{
    return json_pack("{s:s, s:O}", "route", route, "reasons", plan->reasons);
}

json_t *hybrid_plan_findings(const hybrid_plan *plan)
{
    json_t *list = json_array();
    for (size_t i = 0; i < plan->out.n_findings && i < MAX_FINDINGS_TOLD; i++) {
        const outbound_finding *f = &plan->out.findings[i];
        json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:s, s:s}", "category",
                                              detect_category_name(f->category), "kind", f->kind,
                                              "action", policy_action_name(f->action), "where",
                                              f->where, "excerpt", f->excerpt));
    }
    return list;
}

/* ---- the audit's account of it ---- */

static json_t *counts_of(const outbound *o)
{
    json_t *counts = json_object();
    for (int c = 0; c < DETECT_N_CATEGORIES; c++)
        if (o->counts[c] > 0)
            json_object_set_new(counts, detect_category_name((detect_category)c),
                                json_integer(o->counts[c]));
    return counts;
}

json_t *hybrid_audit_body(const hybrid *h, const hybrid_plan *plan)
{
    json_t *body = json_pack("{s:s, s:s, s:s, s:s, s:o, s:s, s:O}", "destination",
                             upstream_origin(h->upstream), "model", h->model, "client",
                             plan->client, "asked_for", plan->only_cloud ? "cloud" : "hybrid",
                             "findings", counts_of(&plan->out), "action",
                             policy_action_name(plan->out.action), "reasons", plan->reasons);
    if (body && *plan->consent_id)
        json_object_set_new(body, "consent", json_string(plan->consent_id));
    return body;
}

static calla_status note_kept(const hybrid *h, const hybrid_plan *plan, calla_error *err)
{
    static const char *const routes[] = {"local", "cloud", "asked", "refused"};
    json_t *body = hybrid_audit_body(h, plan);
    if (!body) return error_set(err, CALLA_ERR_MEMORY, "no memory for the audit");
    json_object_set_new(body, "route", json_string(routes[plan->route]));
    if (plan->route == HYBRID_ASK) /* the part of the token that is no secret */
        json_object_set_new(body, "offered", json_stringn(plan->token, CONSENT_ID_HEX - 1));
    calla_status status = audit_append(h->audit, AUDIT_KEPT, 0, body, NULL, err);
    json_decref(body);
    return status;
}

/* ---- deciding ---- */

/* Who asks. Returns the key's SHA-256, which may be in `digest`; NULL = there is no key. */
static const unsigned char *digest_of(const hybrid_request *q, unsigned char digest[SHA256_BYTES])
{
    if (!q->api_key) return q->key_digest;
    sha256_of(q->api_key, strlen(q->api_key), digest);
    return digest;
}

static const policy_client *find_client(const policy *p, const hybrid_request *q)
{
    if (q->api_key) return policy_find_client(p, q->api_key);
    return q->key_digest ? policy_find_client_of(p, q->key_digest) : NULL;
}

/* The client's rules with those of the request, in *narrow where there are any. */
static const policy_client *narrow_rules(const policy *p, const policy_client *client,
                                         const hybrid_request *q, policy_client *narrow)
{
    if (!q->at_least) return client;
    *narrow = client ? *client : (policy_client){.may_use_cloud = true};
    for (int c = 0; c < DETECT_N_CATEGORIES; c++) {
        policy_action action = client ? client->actions[c] : p->actions[c];
        narrow->actions[c] = q->at_least[c] > action ? q->at_least[c] : action;
    }
    return narrow;
}

static void name_client(hybrid_plan *plan, const policy_client *client, const hybrid_request *q)
{
    unsigned char room[SHA256_BYTES];
    char hex[SHA256_HEX];
    const unsigned char *digest = digest_of(q, room);
    if (client) {
        snprintf(plan->client, sizeof plan->client, "%.*s", (int)sizeof plan->client - 1,
                 client->id);
    } else if (digest) {
        hex_write(digest, SHA256_BYTES, hex);
        snprintf(plan->client, sizeof plan->client, "key %.12s", hex);
    } else {
        snprintf(plan->client, sizeof plan->client, "no key");
    }
}

/* "2 email, 1 phone: redact" for each action something was found for. */
static void add_findings_reason(hybrid_plan *plan, policy_action action)
{
    int32_t counts[DETECT_N_CATEGORIES] = {0};
    char text[200] = "";
    const outbound *o = &plan->out;
    bool fixed = false;
    for (size_t i = 0; i < o->n_findings; i++) {
        if (o->findings[i].action != action) continue;
        counts[o->findings[i].category]++;
        fixed = fixed || (o->findings[i].fixed && action == POLICY_KEEP_LOCAL);
    }
    for (int c = 0; c < DETECT_N_CATEGORIES; c++) {
        size_t n = strlen(text);
        if (counts[c] == 0) continue;
        snprintf(text + n, sizeof text - n, "%s%d %s", n ? ", " : "", counts[c],
                 detect_category_name((detect_category)c));
    }
    if (*text)
        hybrid_add_reason(plan->reasons, "%s: %s%s", text, policy_action_name(action),
                          fixed ? " (some where no placeholder can stand)" : "");
}

/* Whether the policy sends such a request here, sensitive or not. */
static bool prefers_local(hybrid_plan *plan)
{
    const policy *p = plan->policy;
    if (plan->only_cloud) return false;
    if (plan->out.has_tools && p->tools == TOOLS_TO_LOCAL)
        hybrid_add_reason(plan->reasons, "the request has tools: the policy answers those here");
    else if (plan->out.has_tools && p->tools == TOOLS_TO_CLOUD)
        return false;
    else if (p->local_up_to_bytes > 0 && (int64_t)plan->out.n_text_bytes <= p->local_up_to_bytes)
        hybrid_add_reason(plan->reasons, "%zu bytes of text: the policy answers up to %lld here",
                          plan->out.n_text_bytes, (long long)p->local_up_to_bytes);
    else if (p->prefer == PREFER_LOCAL)
        hybrid_add_reason(plan->reasons, "the policy prefers the local model");
    else
        return false;
    return true;
}

/* Nothing leaves: here, or refused if the cloud alone was asked for. */
static calla_status stay(hybrid *h, hybrid_plan *plan, calla_error *err)
{
    plan->route = plan->only_cloud ? HYBRID_REFUSE : HYBRID_LOCAL;
    hybrid_count(plan->only_cloud ? &h->counts.refused : &h->counts.local, 1);
    return note_kept(h, plan, err);
}

/* *given: the consent is there; else it has been offered. */
static calla_status settle_consent(hybrid *h, hybrid_plan *plan, const char *token, bool *given,
                                   calla_error *err)
{
    strbuf canonical = {0};
    *given = false;
    outbound_canonical(&plan->out, &canonical);
    /* Under another policy other values may be replaced than those that were shown. */
    strbuf_printf(&canonical, "\npolicy %llu", (unsigned long long)plan->policy->serial);
    if (canonical.failed) return error_set(err, CALLA_ERR_MEMORY, "no memory for the request");
    consent_subject subject =
        consent_subject_of(plan->client, upstream_origin(h->upstream), canonical.data, canonical.n);
    strbuf_free(&canonical);
    int64_t now = clock_ns(), seconds = plan->policy->consent_s;
    if (token &&
        consent_use(h->consents, &subject, token, now, plan->consent_id) == CONSENT_GIVEN) {
        hybrid_add_reason(plan->reasons, "agreed to by consent %s", plan->consent_id);
        *given = true;
        return CALLA_OK;
    }
    if (token)
        hybrid_add_reason(plan->reasons,
                          "the consent sent with it is not one for this request, or was "
                          "used, or is too old");
    plan->token_until = time(NULL) + seconds;
    return consent_offer(h->consents, &subject, now + seconds * 1000000000, plan->token, err);
}

static calla_status replace(hybrid *h, hybrid_plan *plan, calla_error *err)
{
    CALLA_TRY(redaction_map_create(&plan->map, err));
    CALLA_TRY(outbound_redact(&plan->out, plan->map, err));
    hybrid_count(&h->counts.redacted, (int64_t)redaction_map_size(plan->map));
    return CALLA_OK;
}

static bool has_action(const outbound *o, policy_action action)
{
    for (size_t i = 0; i < o->n_findings; i++)
        if (o->findings[i].action == action) return true;
    return false;
}

/* The local model's judgement. *unsure: what the policy wants done because it is not sure. */
static calla_status look_again(hybrid *h, const hybrid_request *q, hybrid_plan *plan,
                               const policy_client *client, policy_action *unsure, calla_error *err)
{
    const policy *p = plan->policy;
    bool sure = true;
    *unsure = POLICY_ALLOW;
    if (!p->model_check) return CALLA_OK;
    const outbound_judge_with with = {.judge = h->judge,
                                      .ask = q->ask,
                                      .user = q->ask_user,
                                      .deadline_ns = clock_ns() + p->model_check_ms * 1000000};
    if (q->ask) CALLA_TRY(outbound_judge(&plan->out, &with, p, client, &sure, err));
    if (q->ask && sure) return CALLA_OK;
    *unsure = (policy_action)p->model_check_unsure;
    hybrid_add_reason(plan->reasons, "the local model is not sure: %s",
                      policy_action_name(*unsure));
    if (*unsure > plan->out.action) plan->out.action = *unsure;
    return CALLA_OK;
}

static calla_status decide(hybrid *h, const hybrid_request *q, hybrid_plan *plan,
                           const policy_client *client, calla_error *err)
{
    bool given = true;
    policy_action unsure;
    if (plan->out.action == POLICY_KEEP_LOCAL) {
        add_findings_reason(plan, POLICY_KEEP_LOCAL);
        return stay(h, plan, err);
    }
    if (prefers_local(plan)) return stay(h, plan, err);
    CALLA_TRY(look_again(h, q, plan, client, &unsure, err));
    if (plan->out.action == POLICY_KEEP_LOCAL) {
        add_findings_reason(plan, POLICY_KEEP_LOCAL);
        return stay(h, plan, err);
    }
    add_findings_reason(plan, POLICY_ASK);
    add_findings_reason(plan, POLICY_REDACT);
    if (has_action(&plan->out, POLICY_ASK) || unsure == POLICY_ASK)
        CALLA_TRY(settle_consent(h, plan, q->consent, &given, err));
    if (!given) {
        plan->route = HYBRID_ASK;
        hybrid_count(&h->counts.asked, 1);
        return note_kept(h, plan, err);
    }
    if (plan->out.n_findings == 0) hybrid_add_reason(plan->reasons, "nothing sensitive was found");
    if (has_action(&plan->out, POLICY_REDACT)) CALLA_TRY(replace(h, plan, err));
    CALLA_TRY(outbound_write(&plan->out, &plan->text, err));
    plan->route = HYBRID_CLOUD;
    hybrid_count(&h->counts.cloud, 1);
    return CALLA_OK;
}

static policy *retain_policy(hybrid *h)
{
    pthread_mutex_lock(&h->lock);
    policy *p = policy_retain(h->policy);
    pthread_mutex_unlock(&h->lock);
    return p;
}

calla_status hybrid_look(hybrid *h, const hybrid_request *q, const char *text, size_t n_bytes,
                         policy_action *strictest, calla_error *err)
{
    policy_client narrow;
    finding_list found = {0};
    policy *p = retain_policy(h);
    const policy_client *client = narrow_rules(p, find_client(p, q), q, &narrow);
    calla_status status = detect_scan(h->detector, text, n_bytes, &found, err);
    *strictest = POLICY_ALLOW;
    for (size_t i = 0; i < found.n; i++) {
        const finding *f = &found.items[i];
        policy_action action =
            policy_decide(p, client, f->category, text + f->start, f->end - f->start);
        if (action > *strictest) *strictest = action;
    }
    finding_list_deinit(&found);
    policy_release(p);
    return status;
}

calla_status hybrid_look_between(hybrid *h, const hybrid_request *q, const outbound_piece *pieces,
                                 size_t n, policy_action *strictest, calla_error *err)
{
    policy_client narrow;
    outbound found = {0};
    policy *p = retain_policy(h);
    const policy_client *client = narrow_rules(p, find_client(p, q), q, &narrow);
    calla_status status = outbound_check_pieces(&found, pieces, n, h->detector, p, client, err);
    *strictest = found.action;
    outbound_deinit(&found);
    policy_release(p);
    return status;
}

calla_status hybrid_plan_make(hybrid *h, const hybrid_request *q, hybrid_plan *plan,
                              calla_error *err)
{
    policy_client narrow;
    *plan = (hybrid_plan){.only_cloud = q->only_cloud, .reasons = json_array()};
    if (!plan->reasons) return error_set(err, CALLA_ERR_MEMORY, "no memory for the request");
    plan->policy = retain_policy(h);
    const policy_client *client = find_client(plan->policy, q);
    name_client(plan, client, q);
    client = narrow_rules(plan->policy, client, q, &narrow);
    if (client && !client->may_use_cloud) {
        hybrid_add_reason(plan->reasons, "the policy keeps this client's requests here");
        return stay(h, plan, err);
    }
    calla_status status = outbound_build(q->body, h->model, &plan->out, err);
    if (status == CALLA_ERR_INPUT && !q->only_cloud) {
        hybrid_add_reason(plan->reasons, "it has something that cannot be checked");
        return stay(h, plan, err);
    }
    if (status != CALLA_OK) return status;
    CALLA_TRY(outbound_check(&plan->out, h->detector, plan->policy, client, err));
    return decide(h, q, plan, client, err);
}
