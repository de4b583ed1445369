#include "server/outbox.h"

#include "base/memory.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

calla_status outbox_init(outbox *o, calla_error *err)
{
    *o = (outbox){.wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
    if (o->wake_fd < 0)
        return error_set_errno(err, CALLA_ERR_IO, errno, "no event descriptor for a request");
    pthread_mutex_init(&o->lock, NULL);
    return CALLA_OK;
}

void event_batch_free(event_batch *batch)
{
    free(batch->events);
    free(batch->tokens);
    strbuf_free(&batch->text);
    *batch = (event_batch){0};
}

void outbox_deinit(outbox *o)
{
    event_batch_free(&o->waiting);
    pthread_mutex_destroy(&o->lock);
    close(o->wake_fd);
}

static bool is_text(event_kind kind)
{
    return kind == EVENT_REASONING || kind == EVENT_CONTENT || kind == EVENT_TOOL_ARGUMENTS;
}

/* The waiting event that a new one can be added to, or NULL. */
static event *find_mergeable(event_batch *w, event_kind kind, int32_t choice, int64_t a)
{
    if (w->n_events == 0) return NULL;
    event *last = &w->events[w->n_events - 1];
    if (last->kind != kind || last->choice != choice) return NULL;
    if (kind == EVENT_PROGRESS) return last;
    return is_text(kind) && last->a == a ? last : NULL;
}

static void add(outbox *o, const event *e, const char *text, const calla_sampled *sampled)
{
    event_batch *w = &o->waiting;
    event *last = find_mergeable(w, e->kind, e->choice, e->a);
    if (last) {
        last->a = e->a, last->b = e->b;
        last->n_bytes += e->n_bytes;
    } else {
        void *events = w->events, *tokens = w->tokens;
        bool ok = mem_grow(&events, &w->events_capacity, w->n_events + 1, sizeof *w->events,
                           "events", NULL) == CALLA_OK;
        w->events = events;
        if (sampled) {
            ok = ok && mem_grow(&tokens, &w->tokens_capacity, w->n_tokens + 1, sizeof *w->tokens,
                                "events", NULL) == CALLA_OK;
            w->tokens = tokens;
        }
        if (!ok) {
            o->failed = true;
            return;
        }
        w->events[w->n_events] = *e;
        w->events[w->n_events].offset = w->text.n;
        if (sampled) {
            w->events[w->n_events].a = (int64_t)w->n_tokens;
            w->tokens[w->n_tokens++] = *sampled;
        }
        w->n_events++;
    }
    strbuf_append(&w->text, text, e->n_bytes);
    if (w->text.failed) o->failed = true;
}

static void wake(outbox *o)
{
    uint64_t one = 1;
    ssize_t n = write(o->wake_fd, &one, sizeof one);
    (void)n; /* a counter that is full wakes as well */
}

static void put(outbox *o, const event *e, const char *text, const calla_sampled *sampled)
{
    pthread_mutex_lock(&o->lock);
    bool was_empty = o->waiting.n_events == 0;
    add(o, e, text, sampled);
    if (was_empty) wake(o);
    pthread_mutex_unlock(&o->lock);
}

void outbox_close(outbox *o)
{
    pthread_mutex_lock(&o->lock);
    o->closed = true;
    wake(o); /* under the lock: who sees `closed` frees the box */
    pthread_mutex_unlock(&o->lock);
}

void outbox_put(outbox *o, event_kind kind, int32_t choice, int64_t a, int64_t b, const char *text,
                size_t n_bytes)
{
    put(o, &(event){.kind = kind, .choice = choice, .a = a, .b = b, .n_bytes = n_bytes}, text,
        NULL);
}

void outbox_put_token(outbox *o, int32_t choice, const calla_sampled *sampled)
{
    put(o, &(event){.kind = EVENT_TOKEN, .choice = choice}, "", sampled);
}

size_t outbox_waiting_bytes(outbox *o)
{
    pthread_mutex_lock(&o->lock);
    size_t n = o->waiting.text.n + o->waiting.n_tokens * sizeof(calla_sampled);
    pthread_mutex_unlock(&o->lock);
    return n;
}

bool outbox_take(outbox *o, event_batch *batch, bool *closed)
{
    pthread_mutex_lock(&o->lock);
    uint64_t count;
    ssize_t n = read(o->wake_fd, &count, sizeof count);
    (void)n;
    event_batch taken = o->waiting;
    batch->n_events = batch->n_tokens = 0;
    strbuf_clear(&batch->text);
    o->waiting = *batch; /* its memory is used again */
    *batch = taken;
    bool ok = !o->failed;
    *closed = o->closed;
    pthread_mutex_unlock(&o->lock);
    return ok;
}
