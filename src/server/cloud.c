#include "server/cloud.h"

#include "server/judge_model.h"

#include <stdlib.h>
#include <string.h>

const char *const cloud_models[] = {"cloud", "hybrid", NULL};

struct cloud_answer {
    hybrid_plan plan;
    hybrid_exchange *exchange;
    hybrid_progress progress;
    strbuf out; /* for the client */
};

void cloud_answer_free(cloud_answer *a)
{
    if (!a) return;
    hybrid_exchange_end(a->exchange);
    hybrid_plan_free(&a->plan);
    strbuf_free(&a->out);
    free(a);
}

bool cloud_is_meant(const http_request *r)
{
    const json_t *model = json_object_get(r->json, "model");
    return r->server->hybrid && (json_is_text(model, "cloud") || json_is_text(model, "hybrid"));
}

/* ---- errors ---- */

/* Messages about a field begin with it. */
static bool fail_input(const calla_error *err, api_error *e)
{
    char param[sizeof e->param] = "";
    size_t n = strcspn(err->message, ": ");
    if (err->message[n] == ':' && n < sizeof param) memcpy(param, err->message, n);
    return api_fail(e, 400, param, "invalid_value", "%s", err->message);
}

static bool fail(const calla_error *err, api_error *e)
{
    switch (err->code) {
    case CALLA_ERR_INPUT:
        return fail_input(err, e);
    case CALLA_ERR_UNSUPPORTED: /* too many at once */
        api_fail(e, 429, NULL, "too_many_requests", "%s", err->message);
        e->retry_after_s = 1;
        return false;
    case CALLA_ERR_CANCELLED:
        api_fail(e, 503, NULL, "shutting_down", "%s", err->message);
        e->retry_after_s = 5;
        return false;
    default:
        return api_fail(e, 503, NULL, "not_sent", "nothing was sent to the cloud: %s",
                        err->message);
    }
}

/* An error with what was found, and a token if somebody may agree. */
static void respond_findings(http_request *r, const hybrid_plan *plan, int status, const char *code,
                             const char *message)
{
    strbuf out = {0};
    const char *where =
        plan->out.n_findings > 0 ? plan->out.findings[0].where : NULL; /* the first of them */
    json_t *error = json_pack("{s:s, s:s, s:s?, s:s, s:o}", "message", message, "type",
                              status == 403 ? "permission_error" : "invalid_request_error", "param",
                              where, "code", code, "findings", hybrid_plan_findings(plan));
    if (error && plan->route == HYBRID_ASK)
        json_object_set_new(error, "consent",
                            json_pack("{s:s, s:s, s:I}", "header", "X-Calla-Consent", "token",
                                      plan->token, "expires_at", (json_int_t)plan->token_until));
    json_t *body = json_pack("{s:o, s:o}", "error", error, "calla", hybrid_plan_note(plan, "none"));
    if (body)
        json_write_value(&out, body);
    else
        out.failed = true;
    json_decref(body);
    r->route = "none";
    http_respond_json(r, status, &out);
}

/* ---- here ---- */

/* The local model answers, and its answer says why. */
static cloud_result go_local(http_request *r, const hybrid_plan *plan, api_error *e)
{
    strbuf text = {0};
    size_t n;
    json_t *note = hybrid_plan_note(plan, "local");
    if (note) json_write_value(&text, note);
    json_decref(note);
    if (!note || strbuf_take(&text, &r->note, &n, NULL) != CALLA_OK ||
        json_object_set_new(r->json, "model", json_string(r->server->name)) != 0) {
        strbuf_free(&text);
        api_fail(e, 500, NULL, NULL, "no memory for the request");
        return CLOUD_ERROR;
    }
    r->route = "local";
    return CLOUD_LOCAL;
}

static cloud_result fall_back(http_request *r, cloud_answer *a, api_error *e)
{
    hybrid_add_reason(a->plan.reasons, "%s: answered here instead", a->progress.message);
    metrics_add(&hybrid_get_counts(r->server->hybrid)->fell_back, 1);
    return go_local(r, &a->plan, e);
}

/* ---- there ---- */

/* Waits for more of the answer and takes it. With its end the audit is complete. */
static reply_wait run(http_request *r, int64_t until_ns)
{
    cloud_answer *a = r->cloud;
    reply_wait what = reply_wait_for(hybrid_exchange_fd(a->exchange), http_socket(r), until_ns);
    if (what == REPLY_READY) hybrid_exchange_take(a->exchange, &a->out, &a->progress);
    if (a->progress.state == HYBRID_ANSWERED || a->progress.state == HYBRID_FAILED) {
        hybrid_exchange_end(a->exchange);
        a->exchange = NULL;
    }
    return what;
}

static void put_error_event(cloud_answer *a)
{
    api_error e;
    api_fail(&e, a->progress.status, NULL, a->progress.code, "%s", a->progress.message);
    strbuf_puts(&a->out, "data: ");
    api_error_write(&a->out, &e);
    strbuf_puts(&a->out, "\n\n"); /* no [DONE]: clients take it for success */
}

/* More of a streamed answer. */
static http_more run_stream(http_request *r, int64_t until_ns)
{
    cloud_answer *a = r->cloud;
    if (a->progress.state != HYBRID_ANSWERING) return HTTP_ENDED;
    if (run(r, until_ns) == REPLY_GONE) return HTTP_BROKEN;
    if (a->progress.state == HYBRID_FAILED) put_error_event(a);
    return HTTP_MORE;
}

static cloud_result respond_failure(http_request *r, api_error *e)
{
    cloud_answer *a = r->cloud;
    const hybrid_progress *p = &a->progress;
    if (p->may_fall_back) return fall_back(r, a, e);
    if (p->has_body && !p->retry_after_s) {
        http_respond_json(r, p->status, &a->out);
        return CLOUD_ANSWERED;
    }
    api_fail(e, p->status, NULL, p->code, "%s", p->message);
    e->retry_after_s = p->retry_after_s;
    return CLOUD_ERROR;
}

/* Until there is something to send: only then it is clear what the answer's status is. */
static cloud_result respond(http_request *r, api_error *e)
{
    cloud_answer *a = r->cloud;
    r->route = "cloud";
    while (a->progress.state == HYBRID_WAITING) {
        if (run(r, INT64_MAX) != REPLY_GONE) continue;
        http_respond_nothing(r);
        return CLOUD_ANSWERED;
    }
    bool begun = a->plan.out.is_stream && a->out.n > 0 && !a->progress.has_body;
    if (a->progress.state == HYBRID_FAILED && !begun) return respond_failure(r, e);
    if (!a->plan.out.is_stream) {
        http_respond_json(r, 200, &a->out);
        return CLOUD_ANSWERED;
    }
    if (a->progress.state == HYBRID_FAILED) put_error_event(a);
    http_respond_stream(r, &a->out, run_stream);
    return CLOUD_ANSWERED;
}

cloud_result cloud_answer_chat(http_request *r, api_error *e)
{
    calla_error err;
    hybrid *h = r->server->hybrid;
    cloud_answer *a = r->cloud = calloc(1, sizeof *a);
    if (!a) {
        api_fail(e, 500, NULL, NULL, "no memory for the request");
        return CLOUD_ERROR;
    }
    judge_asker asker = {r->server, http_socket(r), 0};
    const hybrid_request request = {
        .body = r->json,
        .api_key = access_accepted_key(&r->server->access, http_header(r, "Authorization"),
                                       http_header(r, "x-api-key")),
        .consent = http_header(r, "X-Calla-Consent"),
        .ask = judge_model_ask,
        .ask_user = &asker,
        .only_cloud = json_is_text(json_object_get(r->json, "model"), "cloud")};
    if (hybrid_plan_make(h, &request, &a->plan, &err) != CALLA_OK) {
        fail(&err, e);
        return CLOUD_ERROR;
    }
    switch (a->plan.route) {
    case HYBRID_LOCAL:
        return go_local(r, &a->plan, e);
    case HYBRID_ASK:
        respond_findings(r, &a->plan, 409, "consent_required",
                         "The request holds what may leave this machine only if you agree: send it "
                         "again, unchanged, with the token in the header X-Calla-Consent.");
        return CLOUD_ANSWERED;
    case HYBRID_REFUSE:
        respond_findings(r, &a->plan, 403, "kept_local",
                         "The policy does not let this request leave this machine.");
        return CLOUD_ANSWERED;
    default:
        break;
    }
    if (hybrid_exchange_begin(h, &a->plan, &a->exchange, &err) != CALLA_OK) {
        fail(&err, e);
        return CLOUD_ERROR;
    }
    return respond(r, e);
}

/* ---- numbers ---- */

void cloud_write_metrics(const server *s, strbuf *out)
{
    hybrid_counts *n = hybrid_get_counts(s->hybrid);
    const struct {
        const char *name, *labels;
        atomic_llong *value;
        const char *help; /* NULL: of the name before */
    } counters[] = {
        {"hybrid_requests_total", "{route=\"local\"}", &n->local,
         "Requests for cloud or hybrid, by what became of them."},
        {"hybrid_requests_total", "{route=\"cloud\"}", &n->cloud, NULL},
        {"hybrid_requests_total", "{route=\"asked\"}", &n->asked, NULL},
        {"hybrid_requests_total", "{route=\"refused\"}", &n->refused, NULL},
        {"cloud_answers_total", "{result=\"answered\"}", &n->answered,
         "Requests sent to the cloud, by how they ended."},
        {"cloud_answers_total", "{result=\"failed\"}", &n->failed, NULL},
        {"cloud_fallbacks_total", "", &n->fell_back,
         "Requests that the local model answered because the cloud could not."},
        {"cloud_sent_bytes_total", "", &n->bytes_sent, "Bytes sent to the cloud."},
        {"hybrid_redacted_total", "", &n->redacted, "Values replaced by placeholders."},
    };
    for (size_t i = 0; i < sizeof counters / sizeof *counters; i++) {
        const char *name = counters[i].name;
        if (counters[i].help)
            strbuf_printf(out, "# HELP calla_%s %s\n# TYPE calla_%s counter\n", name,
                          counters[i].help, name);
        strbuf_printf(out, "calla_%s%s %lld\n", name, counters[i].labels,
                      (long long)atomic_load_explicit(counters[i].value, memory_order_relaxed));
    }
}
