/* Decode: the next tokens of one or several sessions.
 *
 * Where the backend can, it is one step ahead: when the caller gets a token, the step that runs it
 * and chooses the one after it is on its way, with the same parameters. It turns out useful if the
 * caller asks again for the same sessions with the same parameters; else it is waited for and its
 * logits are kept (session_settle), from which any parameters choose. Either way the tokens are
 * those of steps run one by one. */
#include "engine/engine.h"

#include "base/clock.h"

#include <assert.h>
#include <string.h>

static calla_status cancelled(calla_error *err)
{
    return error_set(err, CALLA_ERR_CANCELLED, "cancelled");
}

/* Whether a step that failed left all n sequences as they were. */
static bool none_moved(calla_session *const *sessions, const int64_t *before, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (session_n_run(sessions[i]) != before[i]) return false;
    return true;
}

/* What is known after a session's last token. */
typedef struct outcome {
    const float *logits;   /* the session's own or the backend's, until its next call; or NULL: */
    calla_sampled sampled; /* the device has chosen from them, */
    int32_t row;           /* which are row `row` of the last step, or the session's own if -1 */
} outcome;

/* Keeps the logits for another try: a session that loses them is empty. */
static void keep_outcome(calla_session *s, const outcome *o)
{
    calla_engine *e = s->engine;
    calla_error ignored;
    if (o->logits) {
        if (o->logits != s->logits) session_keep_logits(s, o->logits);
    } else if (o->row >= 0) {
        if (e->ops->step_logits(e->backend, o->row, s->logits, &ignored) == CALLA_OK)
            s->has_logits = true;
        else
            session_reset(s);
    }
}

/* Whether row i of a step that has run gave what it should. */
static calla_status check_row(const calla_session *s, const step_result *result, int64_t position,
                              calla_error *err)
{
    if (result->error.code != CALLA_OK)
        return error_set(err, result->error.code, "%s", result->error.message);
    if (result->logits) return logits_check(result->logits, s->engine->info.n_vocab, position, err);
    if (result->sampled.token >= 0) return CALLA_OK;
    return sampler_none_left(s->engine->vocabulary.n_tokens, position + 1, err);
}

static step_request request_of(const calla_session *s, int32_t token,
                               const calla_sampling *sampling)
{
    step_request r = {.sequence = s->sequence, .token = token};
    if (!sampling || !s->engine->capabilities.samples_on_device) return r;
    r.sampling = sampling;
    r.generated = s->generated.distinct;
    r.generated_counts = s->generated.counts;
    r.n_generated = s->generated.n_distinct;
    return r;
}

/* ---- one step ahead ---- */

/* Nothing is borrowed beyond the call in which a step is submitted. */
static bool same_sampling(const calla_sampling *a, const calla_sampling *b)
{
    return a->temperature == b->temperature && a->top_k == b->top_k && a->top_p == b->top_p &&
           a->min_p == b->min_p && a->presence_penalty == b->presence_penalty &&
           a->frequency_penalty == b->frequency_penalty &&
           a->repetition_penalty == b->repetition_penalty && a->seed == b->seed &&
           a->n_top_logprobs == b->n_top_logprobs && a->n_logit_bias == b->n_logit_bias &&
           a->token_mask == b->token_mask;
}

/* Whether a step may run ahead of its sessions, when they have n_more tokens more than now. A mask
 * is for one token only, and neither it nor a list of biases can be compared with the next one. */
static bool may_run_ahead(calla_session *const *sessions, const calla_sampling *const *sampling,
                          int32_t n, int64_t n_more)
{
    const calla_engine *e = sessions[0]->engine;
    if (!e->capabilities.steps_ahead || e->profiling || !sampling) return false;
    for (int32_t i = 0; i < n; i++)
        if (sampling[i]->token_mask || sampling[i]->n_logit_bias > 0 ||
            sessions[i]->n_tokens + n_more >= e->info.n_ctx)
            return false;
    return true;
}

/* Submits the step behind the tokens just chosen (`token` of each timeline's end), or behind the
 * step under way, which is to choose them. Without KV blocks nothing has happened. */
static calla_status run_ahead(calla_session *const *sessions, const calla_sampling *const *sampling,
                              int32_t n, bool chosen, calla_error *err)
{
    calla_engine *e = sessions[0]->engine;
    step_request requests[BACKEND_MAX_SEQUENCES];
    for (int32_t i = 0; i < n; i++) {
        const calla_session *s = sessions[i];
        int32_t token = chosen ? s->tokens[s->n_tokens - 1] : TOKEN_LAST_SAMPLED;
        requests[i] = request_of(s, token, sampling[i]);
    }
    calla_status status = e->ops->step_submit(e->backend, requests, n, err);
    if (status == CALLA_ERR_MEMORY) return CALLA_OK;
    if (status != CALLA_OK) return status;
    e->ahead.n = n;
    for (int32_t i = 0; i < n; i++) {
        e->ahead.sessions[i] = sessions[i];
        e->ahead.sampling[i] = *sampling[i];
        sessions[i]->in_flight = true;
    }
    return CALLA_OK;
}

/* Whether the step ahead is the one these sessions need next. */
static bool is_ahead(const engine_ahead *a, calla_session *const *sessions, int32_t n,
                     const calla_sampling *const *sampling)
{
    if (a->n != n) return false;
    for (int32_t i = 0; i < n; i++)
        if (a->sessions[i] != sessions[i] || !same_sampling(&a->sampling[i], sampling[i]))
            return false;
    return true;
}

static void take_ahead(calla_engine *e)
{
    for (int32_t i = 0; i < e->ahead.n; i++) e->ahead.sessions[i]->in_flight = false;
    e->ahead.n = 0;
}

/* Waits for the step ahead, whose sessions are lost. */
static void drop_ahead(calla_engine *e)
{
    step_result results[BACKEND_MAX_SEQUENCES];
    calla_error ignored;
    int32_t n = e->ahead.n;
    take_ahead(e);
    if (n > 0) (void)e->ops->step_wait(e->backend, results, n, NULL, &ignored);
    for (int32_t i = 0; i < n; i++) session_reset(e->ahead.sessions[i]);
}

/* Waits for the step ahead and keeps what came of it. A session that it broke is empty and knows
 * why. */
void engine_settle(calla_engine *e)
{
    step_result results[BACKEND_MAX_SEQUENCES];
    calla_error err;
    int32_t n = e->ahead.n;
    take_ahead(e);
    if (n == 0) return;
    calla_status status = e->ops->step_wait(e->backend, results, n, NULL, &err);
    for (int32_t i = 0; i < n; i++) {
        calla_session *s = e->ahead.sessions[i];
        calla_status own = status;
        if (own == CALLA_OK && results[i].error.code != CALLA_OK)
            own = results[i].error.code, err = results[i].error;
        if (own == CALLA_OK) own = e->ops->step_logits(e->backend, i, s->logits, &err);
        if (own != CALLA_OK) {
            session_reset(s);
            s->lost = err;
            continue;
        }
        s->decoded = s->has_logits = s->knows_next = true;
        s->next = results[i].sampled;
        s->next_sampling = e->ahead.sampling[i];
    }
}

void session_settle(calla_session *s)
{
    if (s->in_flight) engine_settle(s->engine);
    if (!s->owes) return;
    s->owes = false;
    session_reset(s);
    error_set(&s->lost, CALLA_ERR_NUMERIC,
              "a step failed for another session, and this one had gone on");
}

static calla_status check_lost(const calla_session *s, calla_error *err)
{
    if (s->lost.code == CALLA_OK) return CALLA_OK;
    return error_set(err, s->lost.code, "%s", s->lost.message);
}

/* ---- a step ---- */

/* A step of sessions[n]. */
typedef struct step_run {
    calla_session *const *sessions;
    const int32_t *tokens; // [n] to be run, or NULL: the step was ahead, and is under way
    const calla_sampling *const *sampling; // [n] as in next_batch, or NULL for logits alone
    int32_t n;
    const calla_control *control;
    int64_t before[BACKEND_MAX_SEQUENCES]; // [n] lengths
    step_result results[BACKEND_MAX_SEQUENCES];
} step_run;

static bool all_may_follow(const step_run *r)
{
    for (int32_t i = 0; r->sampling && i < r->n; i++)
        if (!step_may_follow(r->sampling[i])) return false;
    return true;
}

/* Gets the step's results, with the next one submitted before they are waited for. Snapshots make
 * way when KV blocks run out. */
static calla_status get_results(step_run *r, bool go_on, calla_error *err)
{
    calla_engine *e = r->sessions[0]->engine;
    step_request requests[BACKEND_MAX_SEQUENCES];
    calla_status status, follows = CALLA_OK;
    calla_error ahead_err;
    for (int32_t i = 0; r->tokens && i < r->n; i++)
        requests[i] = request_of(r->sessions[i], r->tokens[i], r->sampling ? r->sampling[i] : NULL);
    do {
        status = r->tokens ? e->ops->step_submit(e->backend, requests, r->n, err) : CALLA_OK;
        if (status != CALLA_OK) continue;
        if (go_on) follows = run_ahead(r->sessions, r->sampling, r->n, false, &ahead_err);
        status = e->ops->step_wait(e->backend, r->results, r->n, r->control, err);
    } while (status == CALLA_ERR_MEMORY && e->ahead.n == 0 &&
             none_moved(r->sessions, r->before, r->n) && snapshot_store_evict(&e->snapshots));
    if (status != CALLA_OK || follows == CALLA_OK) return status;
    if (err) *err = ahead_err;
    return follows;
}

/* Some rows of a step have failed while the next one is on its way, which ran what the others have
 * chosen: they owe that to whoever asks them again. */
static void keep_ahead(const step_run *r, const calla_status *own)
{
    engine_settle(r->sessions[0]->engine);
    for (int32_t i = 0; i < r->n; i++) {
        calla_session *s = r->sessions[i];
        if (own[i] != CALLA_OK) session_reset(s);
        if (own[i] != CALLA_OK || s->lost.code != CALLA_OK) continue;
        s->owes = true;
        s->owed = r->results[i].sampled;
        s->owed_sampling = *r->sampling[i];
    }
}

/* Runs the step. When it fails, a session is as it was, or has run its token and keeps the logits,
 * or owes a token, or is empty because its state is not to be trusted. */
static calla_status step(step_run *r, outcome *outcomes, calla_error *err)
{
    calla_engine *e = r->sessions[0]->engine;
    bool go_on = may_run_ahead(r->sessions, r->sampling, r->n, 1) && all_may_follow(r);
    if (r->tokens && is_cancelled(r->control)) return cancelled(err);
    for (int32_t i = 0; i < r->n; i++)
        r->before[i] = r->tokens ? session_n_run(r->sessions[i]) : r->sessions[i]->n_tokens - 1;
    calla_status run = get_results(r, go_on, err), status = run, own[BACKEND_MAX_SEQUENCES];
    for (int32_t i = 0; i < r->n; i++) {
        own[i] = run;
        if (run == CALLA_OK)
            own[i] = check_row(r->sessions[i], &r->results[i], r->before[i],
                               status == CALLA_OK ? err : NULL);
        if (status == CALLA_OK) status = own[i];
    }
    if (status != CALLA_OK && e->ahead.n > 0) {
        if (run == CALLA_OK)
            keep_ahead(r, own);
        else
            drop_ahead(e);
        return status;
    }
    for (int32_t i = 0; i < r->n; i++) {
        calla_session *s = r->sessions[i];
        /* CALLA_ERR_INPUT: no token was allowed; others may be. */
        if (own[i] == CALLA_OK || (run == CALLA_OK && own[i] == CALLA_ERR_INPUT)) {
            s->decoded = true;
            outcomes[i] = (outcome){r->results[i].logits, r->results[i].sampled, i};
            if (status != CALLA_OK) keep_outcome(s, &outcomes[i]);
        } else if (own[i] == CALLA_ERR_NUMERIC || session_n_run(s) != r->before[i]) {
            session_reset(s);
        }
    }
    return status;
}

/* Runs the tokens sampled last in one step, where they were not yet. What is known of the others is
 * their own logits. */
static calla_status run_pending(calla_session *const *sessions,
                                const calla_sampling *const *sampling, int32_t n,
                                const calla_control *control, outcome *outcomes, calla_error *err)
{
    calla_session *pending[BACKEND_MAX_SEQUENCES];
    const calla_sampling *theirs[BACKEND_MAX_SEQUENCES];
    int32_t tokens[BACKEND_MAX_SEQUENCES], index[BACKEND_MAX_SEQUENCES], n_pending = 0;
    outcome results[BACKEND_MAX_SEQUENCES];
    for (int32_t i = 0; i < n; i++) {
        calla_session *s = sessions[i];
        outcomes[i] = (outcome){.logits = s->logits};
        if (s->owes) {
            if (!same_sampling(&s->owed_sampling, sampling[i])) session_settle(s);
            CALLA_TRY(check_lost(s, err));
            outcomes[i] = (outcome){.sampled = s->owed, .row = -1};
            continue;
        }
        if (sampling && s->knows_next && same_sampling(&s->next_sampling, sampling[i]))
            outcomes[i] = (outcome){.sampled = s->next, .row = -1};
        if (s->n_tokens == session_n_run(s)) continue;
        assert(s->n_tokens == session_n_run(s) + 1);
        tokens[n_pending] = s->tokens[s->n_tokens - 1];
        theirs[n_pending] = sampling ? sampling[i] : NULL;
        index[n_pending] = i;
        pending[n_pending++] = s;
    }
    if (n_pending == 0) return CALLA_OK;
    step_run run = {.sessions = pending,
                    .tokens = tokens,
                    .sampling = sampling ? theirs : NULL,
                    .n = n_pending,
                    .control = control};
    CALLA_TRY(step(&run, results, err));
    for (int32_t k = 0; k < n_pending; k++) outcomes[index[k]] = results[k];
    return CALLA_OK;
}

static calla_status check_room(const calla_session *s, calla_error *err)
{
    if (s->n_tokens < s->engine->info.n_ctx) return CALLA_OK;
    return error_set(err, CALLA_ERR_CONTEXT,
                     "the timeline has %lld tokens, the context holds %d: no room for another",
                     (long long)s->n_tokens, s->engine->info.n_ctx);
}

static calla_status check_next(const calla_session *s, const calla_sampling *sampling,
                               calla_error *err)
{
    CALLA_TRY(sampling_check(sampling, s->engine->vocabulary.n_tokens, err));
    CALLA_TRY(check_lost(s, err));
    CALLA_TRY(check_room(s, err));
    if (s->has_logits || s->in_flight || s->n_tokens > session_n_run(s)) return CALLA_OK;
    return error_set(err, CALLA_ERR_INPUT,
                     "nothing to sample from: the session's prompt was not run to its end");
}

static calla_status check_batch(calla_session *const *sessions, int32_t n,
                                const calla_sampling *const *sampling, calla_error *err)
{
    const calla_engine *e = sessions[0]->engine;
    if (n > e->capabilities.max_step_sequences)
        return error_set(err, CALLA_ERR_INPUT, "%d sessions in one step, at most %d are possible",
                         n, e->capabilities.max_step_sequences);
    for (int32_t i = 0; i < n; i++) {
        assert(sessions[i]->engine == e);
        for (int32_t k = 0; k < i; k++) assert(sessions[k] != sessions[i]);
        CALLA_TRY(check_next(sessions[i], sampling[i], err));
    }
    return CALLA_OK;
}

/* What follows the last token of each timeline: of the step ahead, or of one that is run now. */
static calla_status get_outcomes(calla_session *const *sessions,
                                 const calla_sampling *const *sampling, int32_t n,
                                 const calla_control *control, outcome *outcomes, calla_error *err)
{
    calla_engine *e = sessions[0]->engine;
    if (is_ahead(&e->ahead, sessions, n, sampling)) {
        take_ahead(e);
        step_run run = {.sessions = sessions, .sampling = sampling, .n = n, .control = control};
        return step(&run, outcomes, err);
    }
    engine_settle(e);
    for (int32_t i = 0; i < n; i++) CALLA_TRY(check_lost(sessions[i], err));
    return run_pending(sessions, sampling, n, control, outcomes, err);
}

calla_status calla_session_next_batch(calla_session *const *sessions, int32_t n,
                                      const calla_sampling *const *sampling,
                                      const calla_control *control, calla_sampled *sampled,
                                      calla_error *err)
{
    assert(n >= 1);
    calla_engine *e = sessions[0]->engine;
    CALLA_TRY(check_batch(sessions, n, sampling, err));
    if (is_cancelled(control)) return cancelled(err);
    outcome outcomes[BACKEND_MAX_SEQUENCES];
    calla_sampled out[BACKEND_MAX_SEQUENCES];
    CALLA_TRY(get_outcomes(sessions, sampling, n, control, outcomes, err));
    calla_status status = CALLA_OK;
    int64_t start_ns = e->profiling ? clock_ns() : 0;
    for (int32_t i = 0; i < n && status == CALLA_OK; i++) {
        if (outcomes[i].logits)
            status = sampler_choose(&e->sampler, outcomes[i].logits, sampling[i],
                                    &sessions[i]->generated, sessions[i]->n_tokens, &out[i], err);
        else
            out[i] = outcomes[i].sampled;
    }
    if (e->profiling) {
        e->sampling.ns += clock_ns() - start_ns;
        e->sampling.n_calls++;
    }
    bool owed = false;
    for (int32_t i = 0; i < n; i++) {
        calla_session *s = sessions[i];
        if (status != CALLA_OK) { /* the caller may try again with other parameters */
            keep_outcome(s, &outcomes[i]);
            continue;
        }
        s->tokens[s->n_tokens++] = out[i].token;
        if (!s->owes) s->has_logits = s->knows_next = false;
        owed |= s->owes;
        s->owes = false; /* what the step ahead gave is behind this token */
        token_counts_add(&s->generated, out[i].token);
        sampled[i] = out[i];
    }
    if (status != CALLA_OK || owed || e->ahead.n > 0 || !may_run_ahead(sessions, sampling, n, 0))
        return status;
    status = run_ahead(sessions, sampling, n, true, err);
    for (int32_t i = 0; status != CALLA_OK && i < n; i++) session_reset(sessions[i]);
    return status;
}

calla_status calla_session_next(calla_session *s, const calla_sampling *sampling,
                                const calla_control *control, calla_sampled *sampled,
                                calla_error *err)
{
    return calla_session_next_batch(&s, 1, &sampling, control, sampled, err);
}

calla_status calla_session_append(calla_session *s, int32_t token, const calla_control *control,
                                  float *logits, calla_error *err)
{
    int32_t n_vocab = s->engine->info.n_vocab;
    if (token < 0 || token >= n_vocab)
        return error_set(err, CALLA_ERR_INPUT, "token %d is outside 0 ... %d", token, n_vocab - 1);
    CALLA_TRY(check_room(s, err));
    session_settle(s);
    CALLA_TRY(check_lost(s, err));
    s->knows_next = false;
    s->n_target = 0;
    outcome result;
    bool pending = s->n_tokens > session_n_run(s);
    CALLA_TRY(run_pending(&s, NULL, 1, control, &result, err));
    if (pending) keep_outcome(s, &result);
    step_run run = {.sessions = &s, .tokens = &token, .n = 1, .control = control};
    CALLA_TRY(step(&run, &result, err));
    s->tokens[s->n_tokens++] = token;
    keep_outcome(s, &result);
    memcpy(logits, s->logits, (size_t)n_vocab * sizeof *logits);
    return CALLA_OK;
}
