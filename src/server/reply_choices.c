#include "server/reply_choices.h"

#include <stdlib.h>
#include <string.h>

typedef struct state {
    const choices_format *format;
    bool noted;             /* job->request.note has been said */
    reply_choice choices[]; /* [job_n_choices] */
} state;

/* ---- state ---- */

bool choices_start(reply *r, const choices_format *format)
{
    size_t n = (size_t)job_n_choices(r->job);
    state *s = calloc(1, sizeof *s + n * sizeof *s->choices);
    if (!s) return false;
    s->format = format;
    r->state = s;
    return true;
}

reply_choice *choices_get(const reply *r, int32_t i)
{
    return &((state *)r->state)->choices[i];
}

void choices_free(reply *r)
{
    for (int32_t i = 0; i < job_n_choices(r->job); i++) {
        reply_choice *c = choices_get(r, i);
        strbuf_free(&c->reasoning);
        strbuf_free(&c->content);
        strbuf_free(&c->calls);
        strbuf_free(&c->logprobs);
        for (size_t k = 0; k < sizeof c->extra / sizeof *c->extra; k++) strbuf_free(&c->extra[k]);
    }
    free(r->state);
}

size_t choices_n_held(const reply *r)
{
    size_t n = 0;
    for (int32_t i = 0; i < job_n_choices(r->job); i++) {
        const reply_choice *c = choices_get(r, i);
        const strbuf *const parts[] = {&c->reasoning, &c->content,  &c->calls,   &c->logprobs,
                                       &c->extra[0],  &c->extra[1], &c->extra[2]};
        for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) {
            if (parts[k]->failed) return SIZE_MAX;
            n += parts[k]->n;
        }
    }
    return n;
}

void choices_add(reply *r, int32_t choice, const event *e, const char *text)
{
    state *s = r->state;
    s->format->add(r, &s->choices[choice], e, text);
}

void choices_finish(reply *r, int32_t choice, const char *reason)
{
    choices_get(r, choice)->finish = reason;
}

void choices_flush(reply *r, int32_t choice)
{
    ((state *)r->state)->format->flush(r, choice);
}

/* ---- pieces ---- */

void choices_put_finish(strbuf *out, const char *finish)
{
    if (finish)
        strbuf_printf(out, "\"finish_reason\": \"%s\"", finish);
    else
        strbuf_puts(out, "\"finish_reason\": null");
}

static void put_usage(strbuf *out, const job *j)
{
    const job_stats *s = &j->stats;
    strbuf_printf(out,
                  "{\"prompt_tokens\": %lld, \"completion_tokens\": %lld, \"total_tokens\": %lld, "
                  "\"prompt_tokens_details\": {\"cached_tokens\": %lld, \"audio_tokens\": 0}, "
                  "\"completion_tokens_details\": {\"reasoning_tokens\": %lld, \"audio_tokens\": "
                  "0, \"accepted_prediction_tokens\": 0, \"rejected_prediction_tokens\": 0}}",
                  (long long)s->n_prompt, (long long)s->n_generated,
                  (long long)(s->n_prompt + s->n_generated), (long long)s->n_cached,
                  (long long)s->n_reasoning);
}

/* {"id": ..., "object": ..., "created": ..., "model": ..., "choices": [ */
static void put_head(reply *r, const char *object)
{
    state *s = r->state;
    strbuf_printf(&r->out,
                  "{\"id\": \"%s\", \"object\": \"%s\", \"created\": %lld, \"model\": ", r->job->id,
                  object, (long long)r->created);
    json_write_string(&r->out, r->model, strlen(r->model));
    if (r->job->request.note && !s->noted)
        strbuf_printf(&r->out, ", \"calla\": %s", r->job->request.note);
    s->noted = true;
    strbuf_printf(&r->out, ", \"system_fingerprint\": \"calla-%s\", %s\"choices\": [",
                  calla_version(), s->format->head);
}

void choices_begin_chunk(reply *r)
{
    strbuf_puts(&r->out, "data: ");
    put_head(r, ((state *)r->state)->format->chunk_object);
}

void choices_end_chunk(reply *r, bool last)
{
    strbuf_putc(&r->out, ']');
    if (last) {
        strbuf_puts(&r->out, ", \"timings\": ");
        reply_put_timings(&r->out, r->job);
    }
    strbuf_puts(&r->out, r->job->request.include_usage ? ", \"usage\": null}\n\n" : "}\n\n");
}

void choices_progress(reply *r, int64_t done, int64_t total)
{
    choices_begin_chunk(r);
    strbuf_printf(&r->out, "], \"progress\": {\"done\": %lld, \"total\": %lld}%s}\n\n",
                  (long long)done, (long long)total,
                  r->job->request.include_usage ? ", \"usage\": null" : "");
}

/* ---- ends ---- */

void choices_end_stream(reply *r)
{
    if (r->error_status) {
        api_error e;
        reply_get_error(r, &e);
        strbuf_puts(&r->out, "data: ");
        api_error_write(&r->out, &e);
        strbuf_puts(&r->out, "\n\n");
        return; /* clients take what follows [DONE] for success */
    }
    if (r->job->request.include_usage) {
        choices_begin_chunk(r);
        strbuf_puts(&r->out, "], \"usage\": ");
        put_usage(&r->out, r->job);
        strbuf_puts(&r->out, "}\n\n");
    }
    strbuf_puts(&r->out, "data: [DONE]\n\n");
}

void choices_write_whole(reply *r)
{
    const choices_format *format = ((state *)r->state)->format;
    put_head(r, format->object);
    for (int32_t i = 0; i < job_n_choices(r->job); i++) {
        if (i > 0) strbuf_puts(&r->out, ", ");
        format->write_choice(r, i);
    }
    strbuf_puts(&r->out, "], \"usage\": ");
    put_usage(&r->out, r->job);
    strbuf_puts(&r->out, ", \"timings\": ");
    reply_put_timings(&r->out, r->job);
    strbuf_putc(&r->out, '}');
}
