#include "eval.h"

#include <pthread.h>
#include <stdlib.h>

struct eval_reference {
    calla_session *session;
    eval_text text;
    int64_t n_vocab;
    const atomic_bool *cancel;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    /* Guarded by the mutex. */
    int64_t window, first, n_rows; /* the piece on offer, if n_rows > 0 */
    const float *rows;
    bool stop, done;
    calla_status status;
    calla_error err;
};

/* Offers a piece until the other side wants rows beyond it. */
static int offer_rows(void *user, int64_t first, int64_t n_rows, const float *logits)
{
    eval_reference *r = user;
    pthread_mutex_lock(&r->mutex);
    r->first = first, r->n_rows = n_rows, r->rows = logits;
    pthread_cond_broadcast(&r->changed);
    while (r->n_rows > 0 && !r->stop) pthread_cond_wait(&r->changed, &r->mutex);
    bool stop = r->stop;
    pthread_mutex_unlock(&r->mutex);
    return stop;
}

static void *score_all(void *argument)
{
    eval_reference *r = argument;
    calla_control control = {.cancel = r->cancel};
    calla_status status = CALLA_OK;
    calla_error err;
    for (int64_t w = 0; w < eval_n_windows(&r->text) && status == CALLA_OK; w++) {
        pthread_mutex_lock(&r->mutex);
        r->window = w;
        pthread_mutex_unlock(&r->mutex);
        status =
            calla_session_score(r->session, r->text.tokens + w * r->text.n_window,
                                eval_window_length(&r->text, w), offer_rows, r, &control, &err);
    }
    pthread_mutex_lock(&r->mutex);
    r->done = true;
    r->status = status;
    if (status != CALLA_OK) r->err = err;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->mutex);
    return NULL;
}

eval_reference *eval_reference_start(calla_session *session, const eval_text *text, int64_t n_vocab,
                                     const atomic_bool *cancel)
{
    eval_reference *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    r->session = session, r->text = *text, r->n_vocab = n_vocab, r->cancel = cancel;
    pthread_mutex_init(&r->mutex, NULL);
    pthread_cond_init(&r->changed, NULL);
    if (pthread_create(&r->thread, NULL, score_all, r) == 0) return r;
    pthread_mutex_destroy(&r->mutex);
    pthread_cond_destroy(&r->changed);
    free(r);
    return NULL;
}

const float *eval_reference_row(eval_reference *r, int64_t window, int64_t position)
{
    const float *row = NULL;
    pthread_mutex_lock(&r->mutex);
    for (;;) {
        bool offered = r->n_rows > 0;
        if (offered && r->window == window && position < r->first + r->n_rows) {
            row = r->rows + (position - r->first) * r->n_vocab;
            break;
        }
        if (r->done) break;
        if (offered) { /* behind us: let it go on */
            r->n_rows = 0;
            pthread_cond_broadcast(&r->changed);
        }
        pthread_cond_wait(&r->changed, &r->mutex);
    }
    pthread_mutex_unlock(&r->mutex);
    return row;
}

calla_status eval_reference_stop(eval_reference *r, calla_error *err)
{
    pthread_mutex_lock(&r->mutex);
    r->stop = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->mutex);
    pthread_join(r->thread, NULL);
    calla_status status = r->status;
    if (status != CALLA_OK) *err = r->err;
    pthread_mutex_destroy(&r->mutex);
    pthread_cond_destroy(&r->changed);
    free(r);
    return status;
}
