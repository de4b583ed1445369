#include "base/strbuf.h"

#include <calla/model.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct calla_stop_matcher {
    strbuf held;    /* after its first n_given bytes: the start of a stop text, perhaps */
    size_t n_given; /* handed out by the last call */
    bool stopped;
    int32_t n;
    size_t *lengths; /* [n] */
    char **texts;    /* [n] in the memory behind this */
};

calla_status calla_stop_matcher_create(const char *const *stops, int32_t n,
                                       calla_stop_matcher **matcher, calla_error *err)
{
    size_t n_stops = (size_t)n, n_bytes = 0;
    for (int32_t i = 0; i < n; i++) {
        assert(*stops[i]);
        n_bytes += strlen(stops[i]) + 1;
    }
    calla_stop_matcher *m =
        calloc(1, sizeof *m + n_stops * (sizeof *m->lengths + sizeof *m->texts) + n_bytes);
    if (!m) return error_set(err, CALLA_ERR_MEMORY, "no memory for %d stop texts", n);
    m->n = n;
    m->lengths = (size_t *)(void *)(m + 1);
    m->texts = (char **)(void *)(m->lengths + n_stops);
    char *at = (char *)(m->texts + n_stops);
    for (int32_t i = 0; i < n; i++) {
        m->lengths[i] = strlen(stops[i]);
        m->texts[i] = memcpy(at, stops[i], m->lengths[i] + 1);
        at += m->lengths[i] + 1;
    }
    *matcher = m;
    return CALLA_OK;
}

void calla_stop_matcher_free(calla_stop_matcher *m)
{
    if (!m) return;
    strbuf_free(&m->held);
    free(m);
}

/* Where the stop text begins that is complete first, however the text came in pieces; held.n if
 * there is none. */
static size_t find_stop(const calla_stop_matcher *m)
{
    size_t begin = m->held.n, end = m->held.n + 1;
    for (int32_t i = 0; i < m->n; i++) {
        const char *found = memmem(m->held.data, m->held.n, m->texts[i], m->lengths[i]);
        size_t at = found ? (size_t)(found - m->held.data) : m->held.n, to = at + m->lengths[i];
        if (found && (to < end || (to == end && at < begin))) begin = at, end = to;
    }
    return begin;
}

/* Bytes at the end of held that are a proper prefix of a stop text. */
static size_t possible_stop(const calla_stop_matcher *m)
{
    size_t longest = 0;
    for (int32_t i = 0; i < m->n; i++) {
        size_t n = m->lengths[i] - 1;
        if (n > m->held.n) n = m->held.n;
        while (n > longest && memcmp(m->held.data + m->held.n - n, m->texts[i], n) != 0) n--;
        if (n > longest) longest = n;
    }
    return longest;
}

static void drop_given(calla_stop_matcher *m)
{
    if (m->n_given == 0) return;
    memmove(m->held.data, m->held.data + m->n_given, m->held.n - m->n_given);
    m->held.n -= m->n_given;
    m->n_given = 0;
}

calla_status calla_stop_matcher_push(calla_stop_matcher *m, const char *text, size_t n_bytes,
                                     const char **ready, size_t *n_ready, bool *stopped,
                                     calla_error *err)
{
    *ready = text;
    *n_ready = m->n == 0 ? n_bytes : 0;
    *stopped = m->stopped;
    if (m->stopped || m->n == 0 || n_bytes == 0) return CALLA_OK;
    drop_given(m);
    strbuf_append(&m->held, text, n_bytes);
    if (m->held.failed) return error_set(err, CALLA_ERR_MEMORY, "no memory to look for stop texts");
    size_t at = find_stop(m);
    m->stopped = at < m->held.n;
    m->n_given = m->stopped ? at : m->held.n - possible_stop(m);
    *ready = m->held.data;
    *n_ready = m->n_given;
    *stopped = m->stopped;
    return CALLA_OK;
}

void calla_stop_matcher_flush(calla_stop_matcher *m, const char **ready, size_t *n_ready)
{
    drop_given(m);
    *ready = m->held.data ? m->held.data : "";
    *n_ready = m->stopped ? 0 : m->held.n;
    m->n_given = m->held.n;
}
