#include "server/slot.h"

#include "base/clock.h"
#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

/* ---- beginning ---- */

static json_t *token_text(const vocabulary *v, int32_t token)
{
    size_t n_bytes;
    if (token < 0) return json_string("(end)");
    const char *bytes = calla_tokenizer_bytes(v->tokenizer, token, &n_bytes);
    return server_log_text(bytes, n_bytes);
}

/* Says why so little of a prompt was known. */
static void log_reuse(const slot *s, int64_t n_tokens)
{
    const session_reuse *r = &s->session->reuse;
    const snapshot_store *cache = &s->session->engine->snapshots;
    bool miss = n_tokens >= 256 && r->n_reused < n_tokens / 2 && snapshot_store_count(cache) > 0;
    if (!miss && !s->shared->log->verbose) return;
    json_t *fields =
        json_pack("{s:s, s:I, s:I, s:I}", "id", s->job->id, "prompt_tokens", (json_int_t)n_tokens,
                  "reused", (json_int_t)r->n_reused, "known", (json_int_t)r->n_common);
    if (fields && r->n_common < n_tokens) {
        const vocabulary *v = s->shared->vocabulary;
        json_object_set_new(fields, "cached_text", token_text(v, r->other_token));
        json_object_set_new(fields, "prompt_text",
                            token_text(v, s->prompt->tokens.ids[r->n_common]));
    }
    if (fields && r->n_reused < r->n_common)
        json_object_set_new(fields, "why", json_string("no snapshot stands deeper"));
    server_log_put(s->shared->log, miss ? "cache_miss" : "cache", fields);
}

static calla_status add_grammar(slot *s, calla_error *err)
{
    const job_request *r = &s->job->request;
    token_rule *rule;
    bool or_call = r->tools && r->tool_choice == TOOLS_AUTO;
    CALLA_TRY(token_rule_grammar(s->shared->vocabulary, r->grammar, s->guide.thinking, or_call,
                                 &rule, err));
    return guide_add_rule(&s->guide, rule, err);
}

static calla_status set_rules(slot *s, calla_error *err)
{
    const job_request *r = &s->job->request;
    CALLA_TRY(guide_init(&s->guide, s->shared->vocabulary, answer_is_reasoning(&s->answer),
                         r->thinking_budget, err));
    if (r->grammar) CALLA_TRY(add_grammar(s, err));
    if (!r->calls) return CALLA_OK;
    return guide_add_calls(&s->guide, r->calls, r->tool_choice == TOOLS_REQUIRED, err);
}

static void set_limits(slot *s)
{
    const job_request *r = &s->job->request;
    int64_t room = s->shared->n_ctx - s->prompt->tokens.n;
    s->max_tokens = r->max_tokens < 0 || r->max_tokens > room ? room : r->max_tokens;
    s->sampling = r->sampling;
    s->sampling.seed += (uint64_t)(s->choice % r->n);
    if (s->max_tokens == 0) s->finish = "length";
}

calla_status slot_begin(slot *s, job *j, int32_t choice, calla_error *err)
{
    calla_status status = CALLA_OK;
    calla_sync_stats stats;
    s->job = j;
    s->choice = choice;
    s->prompt = &j->prompts[choice / j->request.n];
    s->decoding = s->ended_by_token = false;
    s->n_generated = 0;
    s->finish = NULL;
    const calla_tokens *tokens = &s->prompt->tokens;
    CALLA_TRY_GOTO(answer_init(&s->answer, s->shared->vocabulary, j, s->prompt, choice, err), fail);
    CALLA_TRY_GOTO(set_rules(s, err), fail);
    CALLA_TRY_GOTO(calla_session_begin(s->session, tokens->ids, tokens->n, &stats, err), fail);
    set_limits(s);
    log_reuse(s, tokens->n);
    if (choice % j->request.n == 0) {
        s->prompt->n_cached = stats.n_reused;
        j->stats.n_prompt += tokens->n;
        j->stats.n_cached += stats.n_reused;
        metrics_add(&s->shared->metrics->prompt_tokens, tokens->n);
        metrics_add(&s->shared->metrics->cached_tokens, stats.n_reused);
    }
    return CALLA_OK;
fail:
    slot_end(s);
    return status;
}

/* ---- running ---- */

calla_status slot_prefill(slot *s, int64_t n_most, calla_error *err)
{
    job *j = s->job;
    calla_control control = {.cancel = &j->cancelled};
    int64_t n_before, n_after, n_left, start_ns = clock_ns();
    calla_session_tokens(s->session, &n_before);
    calla_status status = calla_session_advance(s->session, n_most, &control, &n_left, err);
    calla_session_tokens(s->session, &n_after);
    int64_t ns = clock_ns() - start_ns;
    j->stats.prefill_ns += ns;
    j->stats.n_prefilled += n_after - n_before;
    metrics_add(&s->shared->metrics->prefill_ns, ns);
    metrics_add(&s->shared->metrics->prefill_tokens, n_after - n_before);
    if (status != CALLA_OK) return status;
    if (j->request.include_progress)
        outbox_put(&j->out, EVENT_PROGRESS, s->choice, s->prompt->tokens.n - n_left,
                   s->prompt->tokens.n, "", 0);
    s->decoding = n_left == 0;
    if (s->decoding) s->prompt->ready = true;
    return CALLA_OK;
}

bool slot_is_paused(const slot *s)
{
    return outbox_waiting_bytes(&s->job->out) > s->shared->max_unread_bytes;
}

const calla_sampling *slot_sampling(slot *s)
{
    s->sampling.token_mask = guide_mask(&s->guide);
    return &s->sampling;
}

static void note_time(slot *s)
{
    metrics *m = s->shared->metrics;
    int64_t now = clock_ns();
    job_stats *stats = &s->job->stats;
    if (stats->first_token_ns == 0) {
        stats->first_token_ns = now;
        histogram_add(&m->first_token, now - stats->submitted_ns);
    }
    if (s->n_generated > 0) {
        histogram_add(&m->between_tokens, now - s->last_token_ns);
        stats->n_decoded++;
        metrics_add(&m->decoded_tokens, 1);
    }
    s->last_token_ns = now;
    stats->n_generated++;
    metrics_add(&m->generated_tokens, 1);
}

calla_status slot_accept(slot *s, const calla_sampled *sampled, calla_error *err)
{
    note_time(s);
    s->n_generated++;
    if (calla_tokenizer_is_stop(s->shared->vocabulary->tokenizer, sampled->token)) {
        s->finish = "stop";
        s->ended_by_token = true;
        return CALLA_OK;
    }
    CALLA_TRY(answer_push(&s->answer, sampled, err));
    guide_accept(&s->guide, sampled->token, answer_is_reasoning(&s->answer));
    if (s->answer.stopped)
        s->finish = "stop";
    else if (s->n_generated >= s->max_tokens)
        s->finish = "length";
    return CALLA_OK;
}

/* ---- ending ---- */

/* For prompts that will have this answer in their history. */
static void remember(slot *s)
{
    int64_t n_tokens;
    const int32_t *tokens = calla_session_tokens(s->session, &n_tokens);
    answer *a = &s->answer;
    if (!a->parser) return;
    if (s->ended_by_token) n_tokens--;
    replay_note_tokens(s->shared->replay, &s->prompt->rendered, &a->raw, tokens, n_tokens);
    replay_note_reasoning(s->shared->replay, s->job->context, &a->content, a->calls, &a->reasoning);
}

calla_status slot_finish(slot *s, calla_error *err)
{
    job_stats *stats = &s->job->stats;
    CALLA_TRY(answer_finish(&s->answer, err));
    if (s->answer.n_tool_calls > 0 && strcmp(s->finish, "stop") == 0) s->finish = "tool_calls";
    if (s->choice == 0) snprintf(stats->finish, sizeof stats->finish, "%s", s->finish);
    stats->n_reasoning += s->answer.n_reasoning;
    remember(s);
    outbox_put(&s->job->out, EVENT_FINISH, s->choice, 0, 0, s->finish, strlen(s->finish));
    return CALLA_OK;
}

void slot_end(slot *s)
{
    session_keep(s->session);
    session_reset(s->session);
    answer_deinit(&s->answer);
    guide_deinit(&s->guide);
    s->job = NULL;
}
