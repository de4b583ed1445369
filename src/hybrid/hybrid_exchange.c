/* A plan carried out: the request goes, its answer comes. */
#include "hybrid/hybrid_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct hybrid_exchange {
    hybrid *owner;
    hybrid_plan *plan;
    upstream_call *call;
    inbound *inbound;
    int64_t intent; /* the audit's row */
    strbuf raw;     /* a whole answer so far */
    bool any_given; /* the client has something of it */
    bool is_over;
    hybrid_progress end; /* with is_over */
};

/* ---- beginning ---- */

static calla_status note_intent(hybrid_exchange *x, calla_error *err)
{
    hybrid_plan *plan = x->plan;
    unsigned char digest[SHA256_BYTES];
    char hex[SHA256_HEX];
    json_t *body = hybrid_audit_body(x->owner, plan);
    if (!body) return error_set(err, CALLA_ERR_MEMORY, "no memory for the audit");
    sha256_of(plan->text.data, plan->text.n, digest);
    hex_write(digest, sizeof digest, hex);
    json_object_set_new(body, "sha256", json_string(hex));
    json_object_set_new(body, "bytes", json_integer((json_int_t)plan->text.n));
    if (plan->policy->audit_content)
        json_object_set_new(body, "content", json_stringn(plan->text.data, plan->text.n));
    calla_status status = audit_append(x->owner->audit, AUDIT_INTENT, 0, body, &x->intent, err);
    json_decref(body);
    return status;
}

static void note_outcome(hybrid_exchange *x, const char *result, const upstream_status *s)
{
    inbound_usage usage = inbound_get_usage(x->inbound);
    const policy_price *price = policy_find_price(x->plan->policy, x->owner->model);
    calla_error err;
    json_t *body =
        json_pack("{s:s, s:i, s:i, s:I, s:I}", "result", result, "status", s->http_status, "tries",
                  s->n_tries, "bytes_sent", (json_int_t)s->bytes_sent, "bytes_received",
                  (json_int_t)s->bytes_received);
    if (!body) return;
    if (usage.input_tokens >= 0 && usage.output_tokens >= 0) {
        json_object_set_new(body, "input_tokens", json_integer(usage.input_tokens));
        json_object_set_new(body, "output_tokens", json_integer(usage.output_tokens));
    }
    if (price && usage.input_tokens >= 0 && usage.output_tokens >= 0) {
        double cost = ((double)usage.input_tokens * price->input +
                       (double)usage.output_tokens * price->output) /
                      1e6;
        json_object_set_new(body, "cost", json_real(cost));
        json_object_set_new(body, "currency", json_string(price->currency));
    }
    if (*s->message) json_object_set_new(body, "message", json_string(s->message));
    /* If this fails, the intent without an outcome tells. */
    audit_append(x->owner->audit, AUDIT_OUTCOME, x->intent, body, NULL, &err);
    json_decref(body);
}

static void free_exchange(hybrid_exchange *x)
{
    inbound_free(x->inbound);
    strbuf_free(&x->raw);
    free(x);
}

calla_status hybrid_exchange_begin(hybrid *h, hybrid_plan *plan, hybrid_exchange **out,
                                   calla_error *err)
{
    calla_status status = CALLA_OK;
    hybrid_exchange *x = calloc(1, sizeof *x);
    json_t *note = hybrid_plan_note(plan, "cloud");
    if (!x || !note) {
        free(x);
        json_decref(note);
        return error_set(err, CALLA_ERR_MEMORY, "no memory for a request to the cloud");
    }
    *x = (hybrid_exchange){.owner = h, .plan = plan};
    status = inbound_create(plan->map, note, plan->out.wants_json ? RESTORE_JSON : RESTORE_TEXT,
                            &x->inbound, err);
    json_decref(note);
    if (status == CALLA_OK) status = note_intent(x, err);
    if (status != CALLA_OK) {
        free_exchange(x);
        return status;
    }
    status = upstream_begin(h->upstream, "/chat/completions", plan->text.data, plan->text.n,
                            &plan->policy->limits, &x->call, err);
    if (status != CALLA_OK) {
        upstream_status none = {0};
        snprintf(none.message, sizeof none.message, "%.255s", err->message);
        note_outcome(x, "not_sent", &none);
        free_exchange(x);
        return status;
    }
    *out = x;
    return CALLA_OK;
}

int hybrid_exchange_fd(const hybrid_exchange *x)
{
    return upstream_call_fd(x->call);
}

/* ---- ends ---- */

static bool may_fall_back(const hybrid_exchange *x, const upstream_status *s)
{
    int rule = x->plan->policy->fallback;
    bool allowed = rule == FALLBACK_ALWAYS || (rule == FALLBACK_HYBRID && !x->plan->only_cloud);
    bool down =
        s->failure == UPSTREAM_UNREACHED || s->failure == UPSTREAM_SLOW ||
        (s->failure == UPSTREAM_REFUSED && (s->http_status == 429 || s->http_status >= 500));
    return allowed && down && !x->any_given;
}

static void fail(hybrid_exchange *x, int status, const char *code, const char *message)
{
    x->is_over = true;
    x->end.state = HYBRID_FAILED;
    x->end.status = status;
    x->end.code = code;
    snprintf(x->end.message, sizeof x->end.message, "%.*s", (int)sizeof x->end.message - 1,
             message);
}

/* Takes back what was appended if the cloud repeats the key in it. */
static bool withhold_key(const hybrid_exchange *x, strbuf *out, size_t n_before)
{
    if (out->n == n_before ||
        !upstream_holds_key(x->owner->upstream, out->data + n_before, out->n - n_before))
        return false;
    out->n = n_before;
    out->data[n_before] = '\0';
    return true;
}

static const char repeats_key[] = "the cloud's answer repeats the key it was given";

/* The cloud's own words, if they are of the API's shape and do not repeat the key. */
static void take_refusal(hybrid_exchange *x, const upstream_status *s, const strbuf *body,
                         strbuf *out)
{
    json_t *error = NULL;
    calla_error err;
    if (s->http_status == 401 || s->http_status == 403 || s->http_status == 407) {
        fail(x, 502, "cloud_key_refused", "the cloud does not accept the key it was given");
        return;
    }
    fail(x, s->http_status, "cloud_error", s->message);
    x->end.retry_after_s = s->retry_after_s;
    if (body->n == 0) return;
    size_t n_before = out->n;
    if (json_parse_text(body->data, body->n, "", &error, NULL) == CALLA_OK &&
        json_is_mapping(json_object_get(error, "error")))
        x->end.has_body = inbound_whole(x->inbound, body->data, body->n, out, &err) == CALLA_OK &&
                          !withhold_key(x, out, n_before);
    json_decref(error);
}

static void take_stream(hybrid_exchange *x, const strbuf *raw, const upstream_status *s,
                        strbuf *out)
{
    calla_error err;
    size_t n_before = out->n;
    calla_status status = inbound_push(x->inbound, raw->data, raw->n, out, &err);
    if (withhold_key(x, out, n_before)) {
        fail(x, 502, "cloud_error", repeats_key);
        return;
    }
    x->any_given = x->any_given || out->n > n_before;
    if (status != CALLA_OK) {
        fail(x, 502, "cloud_error", err.message);
    } else if (s->phase == UPSTREAM_DONE || inbound_is_complete(x->inbound)) {
        x->is_over = true;
        x->end.state = HYBRID_ANSWERED;
        if (!inbound_is_complete(x->inbound))
            fail(x, 502, "cloud_error", "the cloud's answer ended before it was complete");
    }
}

static void take_failure(hybrid_exchange *x, const upstream_status *s, const strbuf *body,
                         strbuf *out)
{
    if (s->is_stream && x->plan->out.is_stream && s->failure != UPSTREAM_REFUSED)
        take_stream(x, body, s, out); /* what came before it broke off */
    if (x->is_over) return;
    switch (s->failure) {
    case UPSTREAM_REFUSED:
        take_refusal(x, s, body, out);
        break;
    case UPSTREAM_SLOW:
        fail(x, 504, "cloud_timeout", s->message);
        break;
    case UPSTREAM_STOPPED:
        fail(x, 503, "shutting_down", s->message);
        break;
    case UPSTREAM_UNREACHED:
        fail(x, 502, "cloud_unreachable", s->message);
        break;
    default:
        fail(x, 502, "cloud_error", s->message);
    }
    x->end.may_fall_back = may_fall_back(x, s);
}

static void take_whole(hybrid_exchange *x, const strbuf *raw, const upstream_status *s, strbuf *out)
{
    calla_error err;
    strbuf_append(&x->raw, raw->data, raw->n);
    if (s->phase != UPSTREAM_DONE) return;
    x->is_over = true;
    x->end.state = HYBRID_ANSWERED;
    if (x->raw.failed)
        fail(x, 500, "no_memory", "no memory for the cloud's answer");
    else if (inbound_whole(x->inbound, x->raw.data ? x->raw.data : "", x->raw.n, out, &err) !=
             CALLA_OK)
        fail(x, 502, "cloud_error", err.message);
    else if (withhold_key(x, out, 0))
        fail(x, 502, "cloud_error", repeats_key);
}

void hybrid_exchange_take(hybrid_exchange *x, strbuf *out, hybrid_progress *progress)
{
    upstream_status s;
    strbuf raw = {0};
    upstream_take(x->call, &raw, &s);
    if (x->is_over)
        ; /* what still comes is of no interest */
    else if (raw.failed)
        fail(x, 500, "no_memory", "no memory for the cloud's answer");
    else if (s.phase == UPSTREAM_FAILED)
        take_failure(x, &s, &raw, out);
    else if (s.phase != UPSTREAM_WAITING && s.is_stream != x->plan->out.is_stream)
        fail(x, 502, "cloud_error",
             s.is_stream ? "the cloud streams an answer that was to come whole"
                         : "the cloud does not stream the answer");
    else if (s.phase != UPSTREAM_WAITING && s.is_stream)
        take_stream(x, &raw, &s, out);
    else if (s.phase != UPSTREAM_WAITING)
        take_whole(x, &raw, &s, out);
    strbuf_free(&raw);
    *progress = x->end;
    if (!x->is_over)
        *progress = (hybrid_progress){.state = x->any_given ? HYBRID_ANSWERING : HYBRID_WAITING};
    progress->bytes_sent = s.bytes_sent;
}

void hybrid_exchange_end(hybrid_exchange *x)
{
    upstream_status s;
    if (!x) return;
    hybrid *h = x->owner;
    bool answered = x->is_over && x->end.state == HYBRID_ANSWERED;
    upstream_end(x->call, &s);
    if (answered) s.message[0] = '\0'; /* its connection may have been cut after the end */
    if (x->is_over && !answered && !*s.message)
        snprintf(s.message, sizeof s.message, "%s", x->end.message);
    note_outcome(x, answered ? "answered" : x->is_over ? "failed" : "given_up", &s);
    hybrid_count(answered ? &h->counts.answered : &h->counts.failed, 1);
    hybrid_count(&h->counts.bytes_sent, s.bytes_sent);
    free_exchange(x);
}
