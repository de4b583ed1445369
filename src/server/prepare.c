#include "server/prepare.h"

#include "model/chat.h"

#include <stdlib.h>
#include <string.h>

enum { CLOSING_TOKENS = 32 }; /* room for the text that ends the reasoning */

static bool no_memory(api_error *e)
{
    return api_fail(e, 500, NULL, NULL, "no memory for the request");
}

static bool alloc_prompts(job *j, size_t n, api_error *e)
{
    j->prompts = calloc(n, sizeof *j->prompts);
    if (!j->prompts) return no_memory(e);
    j->n_prompts = (int32_t)n;
    return true;
}

/* The words are OpenAI's: agents look for them to know that they have to shorten the conversation.
 */
static bool check_context(const job_request *r, const wire_defaults *d, int64_t n, api_error *e)
{
    const char *where = r->input_name;
    if (n == 0) return api_invalid(e, where, "the prompt has no tokens");
    if (n < d->n_ctx) return true;
    if (r->max_tokens < 0)
        return api_fail(e, 400, where, "context_length_exceeded",
                        "This model's maximum context length is %d tokens. However, your %s "
                        "resulted in %lld tokens. Please reduce the length of the %s.",
                        d->n_ctx, where, (long long)n, where);
    return api_fail(e, 400, where, "context_length_exceeded",
                    "This model's maximum context length is %d tokens. However, you requested %lld "
                    "tokens (%lld in the %s, %lld in the completion). Please reduce the length of "
                    "the %s or completion.",
                    d->n_ctx, (long long)(n + r->max_tokens), (long long)n, where,
                    (long long)r->max_tokens, where);
}

/* The budget leaves a quarter of the tokens there can be for the answer itself. */
static void limit_budget(job_request *r, const wire_defaults *d, int64_t n_prompt)
{
    int64_t room = d->n_ctx - n_prompt;
    if (r->thinking_budget < 0) return;
    if (r->max_tokens >= 0 && r->max_tokens < room) room = r->max_tokens;
    int64_t most = room - room / 4 - CLOSING_TOKENS;
    if (r->thinking_budget > most) r->thinking_budget = most < 0 ? 0 : most;
}

/* The renderer's places are those of messages; the wire may call them otherwise. */
static bool fail_prompt(const job_request *r, const calla_error *err, api_error *e)
{
    static const char messages[] = "messages";
    calla_error named = *err;
    if (strncmp(err->message, messages, sizeof messages - 1) == 0)
        error_set(&named, err->code, "%s%s", r->input_name, err->message + sizeof messages - 1);
    return api_fail_status(e, &named);
}

bool prepare_chat_prompt(const job_request *request, const wire_defaults *d, replay *r,
                         job_prompt *prompt, api_error *e)
{
    calla_error err;
    calla_chat_options options = {.no_thinking = request->no_thinking,
                                  .preserve_thinking = request->preserve_thinking};
    if (chat_render(request->messages, request->tools, &options, &prompt->rendered, &err) !=
            CALLA_OK ||
        replay_encode(r, d->vocabulary->tokenizer, &prompt->rendered, &prompt->tokens, &err) !=
            CALLA_OK)
        return fail_prompt(request, &err, e);
    return true;
}

bool prepare_chat(job *j, const wire_defaults *d, replay *r, api_error *e)
{
    job_request *request = &j->request;
    replay_restore_reasoning(r, request->messages);
    j->context = replay_context(request->messages, json_array_size(request->messages));
    if (!j->context) return no_memory(e);
    if (!alloc_prompts(j, 1, e)) return false;
    if (!prepare_chat_prompt(request, d, r, &j->prompts[0], e)) return false;
    int64_t n = j->prompts[0].tokens.n;
    limit_budget(request, d, n);
    return check_context(request, d, n, e);
}

/* ---- text completions ---- */

/* Control tokens in the text act: who completes text writes the whole prompt. */
static bool read_text(const json_t *value, const wire_defaults *d, calla_tokens *tokens,
                      api_error *e)
{
    calla_error err;
    const char *text;
    if (!field_string(value, "prompt", &text, e)) return false;
    if (calla_tokenizer_encode(d->vocabulary->tokenizer, text, json_string_length(value), NULL, 0,
                               tokens, &err) != CALLA_OK)
        return api_fail_status(e, &err);
    return true;
}

static bool read_ids(const json_t *list, const wire_defaults *d, calla_tokens *tokens, api_error *e)
{
    size_t n = json_array_size(list);
    tokens->ids = calloc(n ? n : 1, sizeof *tokens->ids);
    if (!tokens->ids) return no_memory(e);
    for (size_t i = 0; i < n; i++) {
        int64_t id;
        if (!field_int(json_array_get(list, i), "prompt", 0, d->vocabulary->n_tokens - 1, &id, e))
            return false;
        tokens->ids[i] = (int32_t)id;
    }
    tokens->n = (int64_t)n;
    return true;
}

static bool read_prompt(const json_t *value, const wire_defaults *d, job_prompt *prompt,
                        api_error *e)
{
    if (json_is_array(value)) return read_ids(value, d, &prompt->tokens, e);
    return read_text(value, d, &prompt->tokens, e);
}

/* One prompt: a string, or an array of ids. Several: an array of those. */
static bool is_list(const json_t *prompt)
{
    const json_t *first = json_array_get(prompt, 0);
    return json_is_array(prompt) && !json_is_integer(first) && !json_is_real(first);
}

bool prepare_completion(job *j, const wire_defaults *d, api_error *e)
{
    job_request *r = &j->request;
    bool list = is_list(r->prompt);
    size_t n = list ? json_array_size(r->prompt) : 1;
    if (n == 0 || n * (size_t)r->n > JOB_MAX_CHOICES)
        return api_invalid(e, "prompt", "prompt: 1 to %d prompts times n are possible",
                           JOB_MAX_CHOICES);
    if (!alloc_prompts(j, n, e)) return false;
    for (size_t i = 0; i < n; i++) {
        const json_t *value = list ? json_array_get(r->prompt, i) : r->prompt;
        if (!read_prompt(value, d, &j->prompts[i], e) ||
            !check_context(r, d, j->prompts[i].tokens.n, e))
            return false;
    }
    return true;
}
