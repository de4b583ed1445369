/* One step of a task: where it runs, and what comes of it. */
#include "base/clock.h"
#include "hybrid/chat_answer.h"
#include "hybrid/tasks/task_runner_private.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PLAN_TOKENS = 2048, /* of an answer at most */
    STEP_TOKENS = 4096,
    PLAN_SHARE = 4,     /* of what a budget has left a plan may have one part in so many */
    FEWEST_TOKENS = 16, /* fewer are no answer */
    POLL_MS = 50,
    MAX_INPUTS = TASK_MAX_INPUTS + TASK_MAX_STEPS + 1, /* of a step: texts, results, the last */
};

/* A step on its way. */
typedef struct step {
    task_runner *r;
    task_work *w;
    task_rules rules;
    task_budget budget;
    unsigned char digest[SHA256_BYTES];
    hybrid_request who; /* without a body: whose rules hold */
    bool stays;         /* what is asked for is kept here, so all of it is */
    bool kept;          /* nobody can agree to its leaving */
    bool sensitive;     /* so is that, or what it reads */
    json_t *reasons;    /* for where it runs */
    json_t *request;
    task_usage most; /* that an attempt may use */
} step;

/* ---- what is sensitive ---- */

static calla_status look(const step *s, const char *text, size_t n_bytes, policy_action *strictest,
                         calla_error *err)
{
    *strictest = POLICY_ALLOW;
    if (!s->r->options.hybrid) return CALLA_OK; /* nothing can leave */
    return hybrid_look(s->r->options.hybrid, &s->who, text, n_bytes, strictest, err);
}

/* A text that may not leave, or not without a yes, makes its step one that may not. */
static void add_sensitive(step *s, const char *what, bool kept)
{
    s->sensitive = true;
    s->kept = s->kept || kept;
    hybrid_add_reason(s->reasons, kept ? "%s is sensitive" : "%s has to be asked about", what);
}

/* Whether somebody may still be asked. */
static bool may_ask(const step *s)
{
    return s->rules.waits && !(s->w->answer && !*s->w->answer);
}

static policy_action stricter(policy_action a, policy_action b)
{
    return a > b ? a : b;
}

/* What is cut in two by the texts the step reads. The check of the request does not see it, with
 * our words between them, so nobody could be asked about it: the step stays. */
static calla_status look_between_inputs(step *s, calla_error *err)
{
    outbound_piece pieces[MAX_INPUTS + 1];
    const task_work *w = s->w;
    const char *told = w->kind == TASK_STEP_WORK ? w->instructions : w->asked;
    size_t n = 0;
    policy_action strictest;
    if (!s->r->options.hybrid) return CALLA_OK;
    pieces[n++] = (outbound_piece){told, strlen(told)};
    for (size_t i = 0; i < w->n_inputs; i++)
        pieces[n++] = (outbound_piece){w->inputs[i].text, w->inputs[i].n_bytes};
    CALLA_TRY(hybrid_look_between(s->r->options.hybrid, &s->who, pieces, n, &strictest, err));
    if (strictest != POLICY_ALLOW) add_sensitive(s, "a value in two of its texts", true);
    return CALLA_OK;
}

/* Marks the texts that have to stay; hidden[i]: who plans does not see it. */
static calla_status look_at_inputs(step *s, bool *hidden, calla_error *err)
{
    task_work *w = s->w;
    policy_action strictest, of_name;
    CALLA_TRY(look(s, w->asked, strlen(w->asked), &strictest, err));
    s->stays = strictest == POLICY_KEEP_LOCAL || (strictest == POLICY_ASK && !s->rules.waits);
    if (strictest >= POLICY_ASK) add_sensitive(s, "what the task asks for", s->stays);
    for (size_t i = 0; i < w->n_inputs; i++) {
        task_input *in = &w->inputs[i];
        CALLA_TRY(look(s, in->text, in->n_bytes, &strictest, err));
        CALLA_TRY(look(s, in->name, strlen(in->name), &of_name, err));
        strictest = stricter(strictest, of_name);
        hidden[i] = in->sensitive || strictest != POLICY_ALLOW;
        in->kept = in->sensitive || strictest == POLICY_KEEP_LOCAL ||
                   (strictest == POLICY_ASK && !s->rules.waits);
        in->sensitive = in->sensitive || strictest >= POLICY_ASK;
        if (in->sensitive) add_sensitive(s, in->label, in->kept);
    }
    return look_between_inputs(s, err);
}

/* ---- budgets ---- */

/* The tokens of an answer that the budget allows; fewer than FEWEST_TOKENS: none. A plan leaves
 * most of it to the steps. */
static int64_t allowed_tokens(const step *s)
{
    bool is_plan = s->w->kind == TASK_STEP_PLAN;
    int64_t most = is_plan ? PLAN_TOKENS : STEP_TOKENS;
    int64_t room = s->budget.tokens - s->w->tokens_used - task_count_tokens(s->request);
    if (is_plan) room /= PLAN_SHARE;
    return s->budget.tokens >= 0 && room < most ? room : most;
}

static void set_most(step *s, int64_t n_output)
{
    s->most =
        (task_usage){.input_tokens = task_count_tokens(s->request), .output_tokens = n_output};
    json_object_set_new(s->request, "max_tokens", json_integer(n_output));
}

static double cost_of(const policy_price *price, int64_t n_input, int64_t n_output)
{
    return ((double)n_input * price->input + (double)n_output * price->output) / 1e6;
}

/* Whether the request of a plan for the cloud can be paid; sets what it costs at most. */
static bool is_affordable(step *s, const hybrid_plan *plan)
{
    const char *model = hybrid_model(s->r->options.hybrid);
    const policy_price *price = policy_find_price(plan->policy, model);
    const task_budget *b = &s->budget;
    int64_t n_input = task_count_tokens(plan->out.request); /* with its placeholders */
    if (b->tokens >= 0 && s->w->tokens_used + n_input + s->most.output_tokens > b->tokens) {
        hybrid_add_reason(s->reasons, "its placeholders go beyond the budget of tokens");
        return false;
    }
    s->most.input_tokens = n_input;
    if (price) {
        s->most.cost = cost_of(price, n_input, s->most.output_tokens);
        s->most.currency = price->currency;
    }
    if (b->cost < 0) return true;
    if (!price)
        hybrid_add_reason(s->reasons,
                          "the task has a budget of money, and the policy no price for %s", model);
    else if (b->currency && strcmp(b->currency, price->currency) != 0)
        hybrid_add_reason(s->reasons, "the task's budget is in %s, the price in %s", b->currency,
                          price->currency);
    else if (s->w->cost_used + s->most.cost > b->cost)
        hybrid_add_reason(s->reasons, "it might cost %.6g %s, of the task's budget are %.6g left",
                          s->most.cost, price->currency, b->cost - s->w->cost_used);
    else
        return true;
    return false;
}

/* What the step may use; *enough = false: the budget is exhausted, and the task has failed. */
static calla_status take_budget(step *s, bool *enough, calla_error *err)
{
    char message[160];
    int64_t n = allowed_tokens(s);
    *enough = n >= FEWEST_TOKENS;
    if (*enough) {
        set_most(s, n);
        return CALLA_OK;
    }
    snprintf(message, sizeof message,
             "%lld of the task's %lld tokens are used, step %lld may need %lld",
             (long long)s->w->tokens_used, (long long)s->budget.tokens, (long long)s->w->step,
             (long long)task_count_tokens(s->request) + FEWEST_TOKENS);
    return task_store_fail(s->r->options.store, s->w, "budget_exhausted", message, err);
}

/* ---- attempts ---- */

static const char *ending(const step *s)
{
    return atomic_load(&s->r->stopping) ? "interrupted" : "cancelled";
}

/* What the answer says it used; false: it does not. */
static bool used(const step *s, const task_answer *a, const policy_price *price, task_usage *u)
{
    if (a->input_tokens < 0 || a->output_tokens < 0) return false;
    *u = (task_usage){.input_tokens = a->input_tokens, .output_tokens = a->output_tokens};
    if (!price) return true;
    u->cost = cost_of(price, a->input_tokens, a->output_tokens);
    u->currency = s->most.currency;
    return true;
}

/* Whether there is a cloud for what is not sensitive. */
static bool may_any_leave(const step *s)
{
    return s->r->options.hybrid && s->rules.may_use_cloud && !s->stays;
}

/* A step's answer, or a plan's steps, written down. */
static calla_status finish(step *s, int64_t attempt, const task_answer *a,
                           const policy_price *price, calla_error *err)
{
    task_usage u;
    task_plan plan = {0};
    calla_error why, text;
    calla_status status = CALLA_OK;
    task_outcome o = {.result = a->text, .n_result = a->n_bytes, .sensitive = s->sensitive};
    if (used(s, a, price, &u)) o.usage = &u;
    if (a->cut) o.message = "the answer was cut off at the most tokens it might have";
    if (s->w->kind == TASK_STEP_PLAN) {
        status = task_plan_read(s->w, a->text, a->n_bytes, &plan, &why);
        if (status != CALLA_OK) {
            task_plan_free(&plan);
            error_set(&text, CALLA_ERR_INPUT, "the model's plan is of no use: %.200s",
                      a->cut ? "it is too long" : why.message);
            status = task_plan_by_texts(s->w, may_any_leave(s), text.message, &plan, err);
        }
        o.steps = plan.steps;
        o.n_steps = plan.n_steps;
    }
    if (status == CALLA_OK) status = task_store_finish(s->r->options.store, s->w, attempt, &o, err);
    task_plan_free(&plan);
    return status;
}

/* ---- here ---- */

static calla_status run_here(step *s, calla_error *err)
{
    task_store *store = s->r->options.store;
    task_answer a = {0};
    calla_error why;
    int64_t attempt;
    s->most.cost = 0;
    s->most.currency = NULL;
    CALLA_TRY(task_store_begin(store, s->w, false, s->reasons, &s->most, &attempt, err));
    if (!attempt) return CALLA_OK;
    json_object_set_new(s->request, "enable_thinking", json_false());
    calla_status status =
        s->r->options.ask(s->r->options.ask_user, s->request, &s->r->cancelled, &a, &why);
    if (status == CALLA_OK) {
        status = finish(s, attempt, &a, NULL, err);
        free(a.text);
        return status;
    }
    if (status == CALLA_ERR_CANCELLED)
        return task_store_give_up(store, s->w, attempt, ending(s), NULL, NULL, err);
    CALLA_TRY(task_store_give_up(store, s->w, attempt, "failed", NULL, why.message, err));
    return task_store_fail(store, s->w, "step_failed", why.message, err);
}

/* ---- there ---- */

/* The content of a whole answer and what it says it used; false: it has none, and *progress is that
 * of a failure. */
static bool take_content(const strbuf *body, task_answer *a, hybrid_progress *progress)
{
    json_t *value = NULL;
    const char *text = body->data ? body->data : "";
    *progress = (hybrid_progress){.state = HYBRID_FAILED,
                                  .status = 502,
                                  .code = "cloud_error",
                                  .bytes_sent = 1,
                                  .message = "the cloud's answer has no content"};
    if (json_parse_text(text, body->n, "", &value, NULL) != CALLA_OK) return false;
    chat_answer said = chat_answer_read(value);
    const json_t *usage = json_object_get(value, "usage");
    const json_t *input = json_object_get(usage, "prompt_tokens");
    const json_t *output = json_object_get(usage, "completion_tokens");
    *a = (task_answer){.text = said.content ? strdup(json_string_value(said.content)) : NULL,
                       .input_tokens = json_is_integer(input) ? json_integer_value(input) : -1,
                       .output_tokens = json_is_integer(output) ? json_integer_value(output) : -1,
                       .cut = said.cut};
    if (a->text) a->n_bytes = strlen(a->text); /* a NUL would end it in the store */
    json_decref(value);
    return a->text != NULL;
}

static void wait_for(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    poll(&p, 1, POLL_MS);
}

/* Carries the exchange to its end; false: the step was cancelled. */
static bool exchange(const step *s, hybrid_exchange *x, strbuf *body, hybrid_progress *progress)
{
    do {
        if (atomic_load(&s->r->cancelled)) return false;
        wait_for(hybrid_exchange_fd(x));
        hybrid_exchange_take(x, body, progress);
    } while (progress->state == HYBRID_WAITING || progress->state == HYBRID_ANSWERING);
    return true;
}

/* Whether the cloud has had no work with it: it was not reached, or refused. */
static bool was_free(const hybrid_progress *p)
{
    return p->bytes_sent == 0 || (p->status != 502 && p->status != 504);
}

/* The attempt came to nothing: the local model answers, if the policy lets it. */
static calla_status fail_there(step *s, int64_t attempt, const hybrid_progress *p, calla_error *err)
{
    static const task_usage nothing = {0};
    task_store *store = s->r->options.store;
    bool is_free = was_free(p), enough;
    CALLA_TRY(task_store_give_up(store, s->w, attempt, "failed", is_free ? &nothing : NULL,
                                 p->message, err));
    if (!p->may_fall_back) return task_store_fail(store, s->w, p->code, p->message, err);
    hybrid_add_reason(s->reasons, "%s: run here instead", p->message);
    if (!is_free) s->w->tokens_used += s->most.input_tokens + s->most.output_tokens;
    CALLA_TRY(take_budget(s, &enough, err));
    return enough ? run_here(s, err) : CALLA_OK;
}

static calla_status send(step *s, hybrid_plan *plan, calla_error *err)
{
    task_store *store = s->r->options.store;
    hybrid_exchange *x = NULL;
    hybrid_progress progress = {0};
    task_answer a = {0};
    strbuf body = {0};
    calla_error why;
    int64_t attempt;
    calla_status status;
    CALLA_TRY(task_store_begin(store, s->w, true, plan->reasons, &s->most, &attempt, err));
    if (!attempt) return CALLA_OK;
    if (hybrid_exchange_begin(s->r->options.hybrid, plan, &x, &why) != CALLA_OK) {
        progress = (hybrid_progress){.may_fall_back = true, .code = "not_sent"};
        snprintf(progress.message, sizeof progress.message, "%.250s", why.message);
        return fail_there(s, attempt, &progress, err);
    }
    bool whole = exchange(s, x, &body, &progress);
    hybrid_exchange_end(x);
    if (!whole)
        status = task_store_give_up(store, s->w, attempt, ending(s), NULL, NULL, err);
    else if (progress.state != HYBRID_ANSWERED || !take_content(&body, &a, &progress))
        status = fail_there(s, attempt, &progress, err);
    else
        status = finish(s, attempt, &a,
                        policy_find_price(plan->policy, hybrid_model(s->r->options.hybrid)), err);
    free(a.text);
    strbuf_free(&body);
    return status;
}

/* Whether the cloud is to be asked at all. */
static bool may_leave(step *s)
{
    if (s->w->kind == TASK_STEP_PLAN)
        hybrid_add_reason(s->reasons, "plans are made here");
    else if (s->w->kind == TASK_STEP_MERGE)
        hybrid_add_reason(s->reasons, "results are put together here");
    else if (!s->w->wants_cloud)
        hybrid_add_reason(s->reasons, "the plan runs it here");
    else if (!s->r->options.hybrid)
        hybrid_add_reason(s->reasons, "there is no cloud");
    else if (!s->rules.may_use_cloud)
        hybrid_add_reason(s->reasons, "the task's policy keeps it here");
    else if (s->sensitive && !may_ask(s))
        hybrid_add_reason(s->reasons, s->rules.waits ? "nobody agreed to its leaving"
                                                     : "nobody is to be asked");
    else
        return !s->kept;
    return false;
}

/* The task waits until somebody has agreed, or not. */
static calla_status ask_user(step *s, const hybrid_plan *plan, calla_error *err)
{
    json_t *findings = hybrid_plan_findings(plan);
    const task_question q = {.token = plan->token,
                             .destination = hybrid_origin(s->r->options.hybrid),
                             .until = plan->token_until,
                             .findings = findings};
    calla_status status = findings ? task_store_ask(s->r->options.store, s->w, &q, err)
                                   : error_set(err, CALLA_ERR_MEMORY, "no memory for a question");
    json_decref(findings);
    return status;
}

/* What the local model's look at it has used counts; *enough as of take_budget. */
static calla_status count_check(step *s, bool *enough, calla_error *err)
{
    int64_t n = s->r->options.judge_tokens ? *s->r->options.judge_tokens : 0;
    *enough = true;
    if (n == 0) return CALLA_OK;
    *s->r->options.judge_tokens = 0;
    s->w->tokens_used += n;
    CALLA_TRY(task_store_add_check(s->r->options.store, s->w, n, err));
    return take_budget(s, enough, err);
}

/* As the check of its request has it. */
static calla_status run_by_plan(step *s, hybrid_plan *plan, calla_error *err)
{
    if (plan->out.action >= POLICY_ASK) s->sensitive = true;
    if (plan->route == HYBRID_ASK && may_ask(s)) return ask_user(s, plan, err);
    if (plan->route == HYBRID_CLOUD && is_affordable(s, plan)) return send(s, plan, err);
    if (plan->route != HYBRID_CLOUD) json_array_extend(s->reasons, plan->reasons);
    if (plan->route == HYBRID_ASK) hybrid_add_reason(s->reasons, "nobody agreed to its leaving");
    return run_here(s, err);
}

/* Decides what becomes of the request, *plan. What the local model's look at it uses may leave less
 * of the budget for the answer: then it is another request, decided anew with the judgements that
 * are known by then. *made: whether there is a plan, else *why; *enough as of take_budget. */
static calla_status make_plan(step *s, hybrid_plan *plan, calla_status *made, calla_error *why,
                              bool *enough, calla_error *err)
{
    hybrid_request q = s->who;
    q.body = s->request;
    q.consent = s->w->answer && *s->w->answer ? s->w->answer : NULL;
    q.ask = s->r->options.judge;
    q.ask_user = s->r->options.judge_user;
    for (int tries = 0; tries < 2; tries++) {
        int64_t most = s->most.output_tokens;
        *made = hybrid_plan_make(s->r->options.hybrid, &q, plan, why);
        CALLA_TRY(count_check(s, enough, err));
        if (*made != CALLA_OK || !*enough || s->most.output_tokens == most) return CALLA_OK;
        hybrid_plan_free(plan);
    }
    *made = error_set(why, CALLA_ERR_UNSUPPORTED, "looking at it uses what its budget has left");
    return CALLA_OK;
}

/* Asks whether it may leave, and lets it go there or runs it here. */
static calla_status run_anywhere(step *s, calla_error *err)
{
    hybrid_plan plan = {0};
    bool enough = true;
    calla_error why;
    calla_status made = CALLA_OK;
    calla_status status = make_plan(s, &plan, &made, &why, &enough, err);
    if (status == CALLA_OK && enough && made == CALLA_OK) {
        status = run_by_plan(s, &plan, err);
    } else if (status == CALLA_OK && enough) { /* nor if there is no audit, or no memory */
        hybrid_add_reason(s->reasons, "it could not be checked: %s", why.message);
        s->sensitive = true;
        status = run_here(s, err);
    }
    hybrid_plan_free(&plan);
    return status;
}

/* ---- the step ---- */

static calla_status prepare(step *s, calla_error *err)
{
    bool hidden[MAX_INPUTS] = {0};
    CALLA_TRY(task_rules_read(s->w->policy, &s->rules, err));
    CALLA_TRY(task_budget_read(s->w->budget, &s->budget, err));
    s->who.at_least = s->rules.at_least;
    if (hex_read(s->w->owner, s->digest, sizeof s->digest)) s->who.key_digest = s->digest;
    CALLA_TRY(look_at_inputs(s, hidden, err));
    s->request = s->w->kind == TASK_STEP_PLAN ? task_plan_ask(s->w, hidden) : task_step_ask(s->w);
    if (!s->request || !s->reasons)
        return error_set(err, CALLA_ERR_MEMORY, "no memory for a task's step");
    return CALLA_OK;
}

static calla_status run(step *s, calla_error *err)
{
    char message[160];
    bool enough;
    calla_status status = prepare(s, err);
    if (status == CALLA_ERR_INPUT) { /* nothing that another try would change */
        calla_error why = *err;
        return task_store_fail(s->r->options.store, s->w, "step_failed", why.message, err);
    }
    if (status != CALLA_OK) return status;
    if (s->w->n_interrupted >= s->r->options.n_interruptions) {
        snprintf(message, sizeof message, "step %lld was interrupted %lld times",
                 (long long)s->w->step, (long long)s->w->n_interrupted);
        return task_store_fail(s->r->options.store, s->w, "interrupted", message, err);
    }
    CALLA_TRY(take_budget(s, &enough, err));
    if (!enough) return CALLA_OK;
    return may_leave(s) ? run_anywhere(s, err) : run_here(s, err);
}

calla_status task_step_run(task_runner *r, task_work *w, calla_error *err)
{
    step s = {.r = r, .w = w, .reasons = json_array()};
    calla_status status = run(&s, err);
    json_decref(s.request);
    json_decref(s.reasons);
    return status;
}
