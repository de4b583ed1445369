#include "base/clock.h"
#include "base/memory.h"
#include "hybrid/tasks/task_runner_private.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { RETRY_MS = 1000 }; /* after the store has failed */

/* ---- changes ---- */

/* From whichever thread changed something: a step of a task that is no longer wanted ends. */
static void on_change(void *user)
{
    task_runner *r = user;
    char running[TASK_ID_BYTES];
    uint64_t one = 1;
    bool wanted = true;
    pthread_mutex_lock(&r->lock);
    r->any_change = true;
    memcpy(running, r->running, sizeof running);
    for (size_t i = 0; i < r->n_watchers; i++)
        if (write(r->watchers[i], &one, sizeof one) < 0) continue; /* it is readable already */
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    if (!*running || task_store_is_wanted(r->options.store, running, &wanted, NULL) != CALLA_OK ||
        wanted)
        return;
    pthread_mutex_lock(&r->lock);
    if (strcmp(running, r->running) == 0) atomic_store(&r->cancelled, true);
    pthread_mutex_unlock(&r->lock);
}

int task_runner_watch(task_runner *r)
{
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd < 0) return -1;
    pthread_mutex_lock(&r->lock);
    void *watchers = r->watchers;
    bool ok = mem_grow(&watchers, &r->watchers_capacity, r->n_watchers + 1, sizeof *r->watchers,
                       "watchers", NULL) == CALLA_OK;
    r->watchers = watchers;
    if (ok) r->watchers[r->n_watchers++] = fd;
    pthread_mutex_unlock(&r->lock);
    if (ok) return fd;
    close(fd);
    return -1;
}

void task_runner_unwatch(task_runner *r, int fd)
{
    pthread_mutex_lock(&r->lock);
    for (size_t i = 0; i < r->n_watchers; i++)
        if (r->watchers[i] == fd) r->watchers[i] = r->watchers[--r->n_watchers];
    pthread_mutex_unlock(&r->lock);
    close(fd);
}

/* ---- the thread ---- */

static void set_running(task_runner *r, const char *id)
{
    pthread_mutex_lock(&r->lock);
    memset(r->running, 0, sizeof r->running);
    memcpy(r->running, id, strlen(id));
    if (!atomic_load(&r->stopping)) atomic_store(&r->cancelled, false);
    pthread_mutex_unlock(&r->lock);
}

/* Until something changes, or `ms` have passed (0 = for ever). */
static void wait_for_change(task_runner *r, int ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += ms / 1000;
    pthread_mutex_lock(&r->lock);
    while (!r->any_change && !atomic_load(&r->stopping)) {
        if (ms == 0)
            pthread_cond_wait(&r->changed, &r->lock);
        else if (pthread_cond_timedwait(&r->changed, &r->lock, &until) != 0)
            break;
    }
    pthread_mutex_unlock(&r->lock);
}

static void forget_changes(task_runner *r)
{
    pthread_mutex_lock(&r->lock);
    r->any_change = false;
    pthread_mutex_unlock(&r->lock);
}

/* *ran = false: there was nothing to run. */
static calla_status run_next(task_runner *r, bool *ran, calla_error *err)
{
    task_work w;
    forget_changes(r);
    calla_status status = task_store_next(r->options.store, &w, ran, err);
    if (status == CALLA_OK && *ran) {
        set_running(r, w.id);
        status = task_step_run(r, &w, err);
        set_running(r, "");
    }
    task_work_free(&w);
    return status;
}

static void *run(void *user)
{
    task_runner *r = user;
    calla_error err;
    while (!atomic_load(&r->stopping)) {
        bool ran = false;
        calla_status status = run_next(r, &ran, &err);
        if (status != CALLA_OK) {
            if (r->options.report) r->options.report(r->options.report_user, err.message);
            forget_changes(r);
            wait_for_change(r, RETRY_MS);
        } else if (!ran) {
            wait_for_change(r, 0);
        }
    }
    pthread_mutex_lock(&r->lock);
    r->ended = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

calla_status task_runner_start(const task_runner_options *options, task_runner **out,
                               calla_error *err)
{
    task_runner *r = calloc(1, sizeof *r);
    if (!r) return error_set(err, CALLA_ERR_MEMORY, "no memory for the tasks");
    r->options = *options;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&r->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&r->lock, NULL);
    task_store_on_change(options->store, on_change, r);
    int failure = pthread_create(&r->thread, NULL, run, r);
    if (failure == 0) {
        *out = r;
        return CALLA_OK;
    }
    task_store_on_change(options->store, NULL, NULL);
    task_runner_free(r);
    return error_set_errno(err, CALLA_ERR_MEMORY, failure, "no thread for the tasks");
}

void task_runner_stop(task_runner *r, int64_t deadline_ns)
{
    struct timespec until = {.tv_sec = deadline_ns / 1000000000,
                             .tv_nsec = deadline_ns % 1000000000};
    uint64_t one = 1;
    pthread_mutex_lock(&r->lock);
    atomic_store(&r->stopping, true);
    pthread_cond_broadcast(&r->changed);
    for (size_t i = 0; i < r->n_watchers; i++)
        if (write(r->watchers[i], &one, sizeof one) < 0) continue;
    while (!r->ended && pthread_cond_timedwait(&r->changed, &r->lock, &until) == 0) continue;
    pthread_mutex_unlock(&r->lock);
    atomic_store(&r->cancelled, true);
    pthread_join(r->thread, NULL);
}

void task_runner_free(task_runner *r)
{
    if (!r) return;
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    free(r->watchers);
    free(r);
}
