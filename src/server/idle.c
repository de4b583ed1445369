#include "server/idle.h"

#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_TIMELINES = 16 };

struct idle_work {
    calla_tokens timelines[MAX_TIMELINES]; /* [n] oldest first; the last is done first */
    int32_t n;
    calla_session *session; /* in which the last one was begun, or NULL */
};

calla_status idle_work_create(idle_work **out, calla_error *err)
{
    idle_work *w = calloc(1, sizeof *w);
    if (!w) return error_set(err, CALLA_ERR_MEMORY, "no memory for idle work");
    *out = w;
    return CALLA_OK;
}

void idle_work_free(idle_work *w)
{
    if (!w) return;
    for (int32_t i = 0; i < w->n; i++) calla_tokens_free(&w->timelines[i]);
    free(w);
}

static void remove_at(idle_work *w, int32_t i)
{
    calla_tokens_free(&w->timelines[i]);
    w->n--;
    memmove(w->timelines + i, w->timelines + i + 1, (size_t)(w->n - i) * sizeof *w->timelines);
}

void idle_work_add(idle_work *w, const calla_session *session)
{
    int64_t n;
    const int32_t *tokens = calla_session_tokens(session, &n);
    int32_t *copy = malloc((size_t)n * sizeof *copy);
    if (!copy) return;
    memcpy(copy, tokens, (size_t)n * sizeof *copy);
    if (w->n == MAX_TIMELINES) remove_at(w, 0);
    w->timelines[w->n++] = (calla_tokens){copy, n};
}

int32_t idle_work_count(const idle_work *w)
{
    return w->n;
}

bool idle_work_run(idle_work *w, calla_session *session, int64_t n_most)
{
    const calla_tokens *t = &w->timelines[w->n - 1];
    int64_t n_left = 0;
    calla_status status = CALLA_OK;
    if (!w->session) {
        status = calla_session_begin(session, t->ids, t->n, NULL, NULL);
        w->session = session;
    }
    if (status == CALLA_OK) status = calla_session_advance(session, n_most, NULL, &n_left, NULL);
    if (status == CALLA_OK && n_left > 0) return false;
    remove_at(w, w->n - 1);
    idle_work_leave(w);
    return status == CALLA_OK;
}

void idle_work_leave(idle_work *w)
{
    if (!w->session) return;
    session_keep(w->session);
    session_reset(w->session);
    w->session = NULL;
}
