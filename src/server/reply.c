#include "server/reply.h"

#include "base/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char no_memory[] = "no memory for the answer";

/* ---- creation ---- */

reply *reply_create(const reply_format *format, const vocabulary *v, const char *model,
                    size_t max_bytes, job *j)
{
    reply *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    *r = (reply){.format = format,
                 .vocabulary = v,
                 .job = j,
                 .model = model,
                 .max_bytes = max_bytes,
                 .created = time(NULL)};
    if (format->start(r)) return r;
    strbuf_free(&r->out);
    free(r);
    return NULL;
}

void reply_free(reply *r)
{
    if (!r) return;
    atomic_store(&r->job->cancelled, true);
    while (!r->closed) reply_run(r, -1, INT64_MAX);
    r->format->free_state(r);
    event_batch_free(&r->batch);
    strbuf_free(&r->out);
    job_free(r->job);
    free(r);
}

/* ---- pieces of JSON ---- */

void reply_put_string(strbuf *out, const strbuf *text)
{
    json_write_string(out, text->data ? text->data : "", text->n);
}

static void put_token(const reply *r, strbuf *out, int32_t token)
{
    size_t n_bytes;
    const char *bytes = calla_tokenizer_bytes(r->vocabulary->tokenizer, token, &n_bytes);
    calla_utf8_stream stream = {0};
    calla_text whole = {0}, rest = {0};
    if (calla_utf8_stream_push(&stream, bytes, n_bytes, &whole, NULL) == CALLA_OK &&
        calla_utf8_stream_finish(&stream, &rest, NULL) == CALLA_OK) {
        strbuf_putc(out, '"');
        json_write_escaped(out, whole.data, whole.n_bytes);
        json_write_escaped(out, rest.data, rest.n_bytes);
        strbuf_putc(out, '"');
    } else {
        out->failed = true;
    }
    calla_text_free(&whole);
    calla_text_free(&rest);
}

static void put_token_bytes(const reply *r, strbuf *out, int32_t token)
{
    size_t n_bytes;
    const char *bytes = calla_tokenizer_bytes(r->vocabulary->tokenizer, token, &n_bytes);
    strbuf_putc(out, '[');
    for (size_t i = 0; i < n_bytes; i++)
        strbuf_printf(out, i ? ", %d" : "%d", (unsigned char)bytes[i]);
    strbuf_putc(out, ']');
}

static void put_logprob(const reply *r, strbuf *out, int32_t token, float logprob)
{
    strbuf_puts(out, "{\"token\": ");
    put_token(r, out, token);
    strbuf_puts(out, ", \"logprob\": ");
    json_write_real(out, (double)logprob);
    strbuf_puts(out, ", \"bytes\": ");
    put_token_bytes(r, out, token);
}

void reply_add_logprobs(const reply *r, strbuf *list, const calla_sampled *s)
{
    if (list->n > 0) strbuf_puts(list, ", ");
    put_logprob(r, list, s->token, s->logprob);
    strbuf_puts(list, ", \"top_logprobs\": [");
    for (int32_t i = 0; i < s->n_top; i++) {
        if (i > 0) strbuf_puts(list, ", ");
        put_logprob(r, list, s->top_tokens[i], s->top_logprobs[i]);
        strbuf_putc(list, '}');
    }
    strbuf_puts(list, "]}");
}

static double per_second(int64_t n, int64_t ns)
{
    return ns > 0 ? (double)n * 1e9 / (double)ns : 0;
}

static double ms_between(int64_t from_ns, int64_t to_ns)
{
    return from_ns > 0 && to_ns > from_ns ? (double)(to_ns - from_ns) / 1e6 : 0;
}

void reply_put_timings(strbuf *out, const job *j)
{
    const job_stats *s = &j->stats;
    strbuf_printf(out,
                  "{\"queue_ms\": %.3f, \"prefill_tokens\": %lld, \"prefill_ms\": %.3f, "
                  "\"prefill_tokens_per_s\": %.3f, \"time_to_first_token_ms\": %.3f, "
                  "\"decoded_tokens\": %lld, \"decode_ms\": %.3f, \"decode_tokens_per_s\": %.3f}",
                  ms_between(s->submitted_ns, s->started_ns), (long long)s->n_prefilled,
                  (double)s->prefill_ns / 1e6, per_second(s->n_prefilled, s->prefill_ns),
                  ms_between(s->submitted_ns, s->first_token_ns), (long long)s->n_decoded,
                  (double)s->decode_ns / 1e6, per_second(s->n_decoded, s->decode_ns));
}

/* ---- events ---- */

static void take_error(reply *r, int status, const char *text, size_t n_bytes)
{
    if (r->error_status) return; /* the first is the reason for what follows */
    r->error_status = status;
    snprintf(r->error, sizeof r->error, "%.*s", (int)n_bytes, text);
}

static void fail(reply *r, const char *message)
{
    take_error(r, 500, message, strlen(message));
    atomic_store(&r->job->cancelled, true);
}

static void flush_choice(reply *r, int32_t i)
{
    if (i >= 0 && r->job->request.stream) r->format->flush(r, i);
}

/* What the wire calls the reasons, in static storage. */
static const char *finish_name(const char *text, size_t n_bytes)
{
    static const char *const names[] = {"stop", "length", "tool_calls"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i]) == n_bytes && memcmp(names[i], text, n_bytes) == 0) return names[i];
    return "stop";
}

/* Takes the batch in. Events of one choice that follow each other become one chunk. */
static void take_events(reply *r)
{
    int32_t at = -1;
    for (size_t i = 0; i < r->batch.n_events; i++) {
        const event *e = &r->batch.events[i];
        const char *text = r->batch.text.data ? r->batch.text.data + e->offset : "";
        if (e->choice != at || e->kind == EVENT_PROGRESS) flush_choice(r, at);
        at = e->choice;
        switch (e->kind) {
        case EVENT_PROGRESS:
            if (r->job->request.stream) r->format->progress(r, e->a, e->b);
            break;
        case EVENT_ERROR:
            take_error(r, (int)e->a, text, e->n_bytes);
            break;
        case EVENT_FINISH:
            r->n_finished++;
            r->format->finish(r, at, finish_name(text, e->n_bytes));
            break;
        default:
            r->format->add(r, at, e, text);
        }
    }
    flush_choice(r, at);
}

/* ---- ends ---- */

void reply_get_error(const reply *r, api_error *e)
{
    int status = r->error_status;
    const char *code = status == 504 ? "timeout" : status == 503 ? "unavailable" : "engine_error";
    api_fail(e, status, NULL, code, "%s", r->error);
    if (status == 503) e->retry_after_s = 5;
}

/* ---- waiting ---- */

/* Milliseconds for poll, rounded up; -1 = for ever. */
static int wait_ms(int64_t until_ns)
{
    if (until_ns == INT64_MAX) return -1;
    int64_t ns = until_ns - clock_ns();
    return ns <= 0 ? 0 : ns > 60000000000 ? 60000 : (int)((ns + 999999) / 1000000);
}

reply_wait reply_wait_for(int fd, int socket, int64_t until_ns)
{
    struct pollfd fds[2] = {{.fd = fd, .events = POLLIN},
                            {.fd = socket, .events = POLLRDHUP}}; /* -1 is passed over */
    int n = poll(fds, 2, wait_ms(until_ns));
    if (n < 0 && errno != EINTR) return REPLY_GONE;
    if (n <= 0) return REPLY_TIMEOUT;
    if (fds[1].revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) return REPLY_GONE;
    return REPLY_READY;
}

reply_wait reply_run(reply *r, int socket, int64_t until_ns)
{
    if (r->closed) return REPLY_READY;
    reply_wait what = reply_wait_for(r->job->out.wake_fd, socket, until_ns);
    if (what != REPLY_READY) return what;
    if (!outbox_take(&r->job->out, &r->batch, &r->closed)) fail(r, no_memory);
    take_events(r);
    size_t n_bytes = r->format->n_held(r);
    if (n_bytes == SIZE_MAX || r->out.failed)
        fail(r, no_memory);
    else if (n_bytes > r->max_bytes)
        fail(r, r->job->request.stream
                    ? "the answer is too large to be repeated at the end of its stream"
                    : "the answer is too large to be given at once: ask for a stream");
    if (r->closed) {
        if (r->job->request.stream)
            r->format->end_stream(r);
        else if (!r->error_status)
            r->format->write_whole(r);
    }
    if (r->out.failed) fail(r, no_memory);
    return REPLY_READY;
}
