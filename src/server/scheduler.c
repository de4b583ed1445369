#include "server/scheduler.h"

#include "base/clock.h"
#include "engine/engine.h"
#include "server/idle.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    FIRST_PIECE = 128, /* tokens, before the rate is known */
    SHORTEST_PIECE = 32,
    LONGEST_PIECE = 2048,
    IDLE_PIECE = 256,
};
#define PIECE_NS      ((int64_t)100000000)  /* of prefill between two steps of others */
#define LONE_PIECE_NS ((int64_t)1000000000) /* when nobody else waits */
#define PAUSE_NS      ((int64_t)5000000)    /* when all readers are behind */

struct scheduler {
    scheduler_config config;
    slot_shared shared;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* on CLOCK_MONOTONIC */
    /* Under the lock. */
    job *queue;        /* jobs with choices that have not started, oldest first */
    int32_t n_waiting; /* of them, without any that has */
    bool stopping;
    int64_t deadline_ns;
    double mean_job_s; /* for Retry-After */
    /* The engine thread's. */
    calla_engine *engine;
    slot slots[BACKEND_MAX_SEQUENCES]; /* [config.n_parallel] */
    int32_t turn;                      /* the slot whose prompt was last worked on */
    double tokens_per_ns;              /* of prefill, 0 = not known */
    char last_user[64];                /* whose job was started last */
    idle_work *idle;                   /* with strict_cache */
    calla_error broken;                /* code 0, or why the engine is of no use */
};

/* ---- from other threads ---- */

calla_status scheduler_create(const scheduler_config *config, scheduler **out, calla_error *err)
{
    scheduler *s = calloc(1, sizeof *s);
    if (!s) return error_set(err, CALLA_ERR_MEMORY, "no memory for a scheduler");
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&s->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&s->lock, NULL);
    s->config = *config;
    s->mean_job_s = 1;
    *out = s;
    return CALLA_OK;
}

void scheduler_free(scheduler *s)
{
    if (!s) return;
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static int retry_after(const scheduler *s)
{
    double wait = s->mean_job_s * (s->n_waiting + 1) / s->config.n_parallel;
    return wait < 1 ? 1 : wait > 60 ? 60 : (int)wait;
}

/* Under the lock. */
static void count_waiting(scheduler *s, int32_t change)
{
    s->n_waiting += change;
    atomic_store(&s->config.metrics->gauges.jobs_queued, s->n_waiting);
}

bool scheduler_submit(scheduler *s, job *j, api_error *e)
{
    bool accepted = false;
    pthread_mutex_lock(&s->lock);
    if (s->stopping) {
        api_fail(e, 503, NULL, "shutting_down", "the server is shutting down");
        e->retry_after_s = 5;
    } else if (s->n_waiting >= s->config.n_queue) {
        api_fail(e, 429, NULL, "queue_full", "%d requests are waiting already; try again later",
                 s->n_waiting);
        e->retry_after_s = retry_after(s);
        metrics_add(&s->config.metrics->rejected, 1);
    } else {
        job **end = &s->queue;
        while (*end) end = &(*end)->next;
        j->next = NULL;
        j->stats.submitted_ns = clock_ns();
        j->deadline_ns =
            s->config.timeout_ns ? j->stats.submitted_ns + s->config.timeout_ns : INT64_MAX;
        *end = j;
        count_waiting(s, 1);
        accepted = true;
        pthread_cond_signal(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return accepted;
}

void scheduler_stop(scheduler *s, int64_t deadline_ns)
{
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    s->deadline_ns = deadline_ns;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* ---- gauges ---- */

static int32_t count_slots(const scheduler *s, bool decoding)
{
    int32_t n = 0;
    for (int32_t i = 0; i < s->config.n_parallel; i++)
        n += s->slots[i].job && s->slots[i].decoding == decoding;
    return n;
}

/* Whoever has got the last byte of an answer finds in the metrics what it did, and not itself:
 * called before a job is closed, and where something changes between jobs. */
static void set_gauges(scheduler *s)
{
    metrics_gauges *g = &s->config.metrics->gauges;
    const snapshot_store *cache = &s->engine->snapshots;
    atomic_store(&g->choices_running, count_slots(s, true) + count_slots(s, false));
    atomic_store(&g->snapshots, snapshot_store_count(cache));
    atomic_store(&g->snapshot_capacity, cache->n_slots);
    atomic_store(&g->snapshot_evictions, cache->n_evicted);
    if (s->idle) atomic_store(&g->answers_to_reprefill, idle_work_count(s->idle));
}

/* ---- ends of jobs ---- */

static void unlink_job(scheduler *s, job *j)
{
    pthread_mutex_lock(&s->lock);
    for (job **at = &s->queue; *at; at = &(*at)->next) {
        if (*at != j) continue;
        *at = j->next;
        if (j->n_started == 0) count_waiting(s, -1);
        break;
    }
    pthread_mutex_unlock(&s->lock);
}

/* The job is its owner's again. */
static void close_job(scheduler *s, job *j)
{
    job_stats *stats = &j->stats;
    stats->finished_ns = clock_ns();
    if (stats->started_ns > 0) {
        double seconds = (double)(stats->finished_ns - stats->started_ns) / 1e9;
        pthread_mutex_lock(&s->lock);
        s->mean_job_s += (seconds - s->mean_job_s) / 8;
        pthread_mutex_unlock(&s->lock);
    }
    set_gauges(s);
    outbox_close(&j->out);
}

/* Ends a job, whatever its choices are doing. status 0: nobody is there to be told. */
static void abort_job(scheduler *s, job *j, int status, const char *finish, const char *message)
{
    unlink_job(s, j);
    for (int32_t i = 0; i < s->config.n_parallel; i++)
        if (s->slots[i].job == j) slot_end(&s->slots[i]);
    snprintf(j->stats.finish, sizeof j->stats.finish, "%s", finish);
    if (status) outbox_put(&j->out, EVENT_ERROR, 0, status, 0, message, strlen(message));
    close_job(s, j);
}

static void fail_job(scheduler *s, job *j, const calla_error *err)
{
    if (err->code == CALLA_ERR_CANCELLED) {
        metrics_add(&s->config.metrics->cancelled, 1);
        abort_job(s, j, 0, "cancelled", "");
        return;
    }
    api_error e;
    api_fail_status(&e, err);
    if (err->code == CALLA_ERR_DEVICE) s->broken = *err;
    abort_job(s, j, e.status, "error", err->message);
}

static void finish_slot(scheduler *s, slot *t)
{
    calla_error err;
    job *j = t->job;
    if (slot_finish(t, &err) != CALLA_OK) {
        fail_job(s, j, &err);
        return;
    }
    if (s->idle) idle_work_add(s->idle, t->session);
    slot_end(t);
    if (++j->n_finished == job_n_choices(j)) close_job(s, j);
}

/* ---- waiting jobs ---- */

/* Ends the job if it has to end before its time; `cutoff_ns`: all have to. */
static void end_if_due(scheduler *s, job *j, int64_t now, int64_t cutoff_ns)
{
    if (atomic_load(&j->cancelled)) {
        metrics_add(&s->config.metrics->cancelled, 1);
        abort_job(s, j, 0, "cancelled", "");
    } else if (now >= j->deadline_ns) {
        metrics_add(&s->config.metrics->timed_out, 1);
        abort_job(s, j, j->n_started ? 504 : 503, "timeout",
                  "the request took longer than the server allows");
    } else if (now >= cutoff_ns) {
        abort_job(s, j, 503, "shutdown", "the server is shutting down");
    }
}

static void end_what_is_due(scheduler *s)
{
    int64_t now = clock_ns(), cutoff_ns = INT64_MAX;
    job *j, *next;
    pthread_mutex_lock(&s->lock);
    if (s->stopping) cutoff_ns = s->deadline_ns;
    pthread_mutex_unlock(&s->lock);
    for (int32_t i = 0; i < s->config.n_parallel; i++)
        if (s->slots[i].job) end_if_due(s, s->slots[i].job, now, cutoff_ns);
    pthread_mutex_lock(&s->lock);
    j = s->queue;
    pthread_mutex_unlock(&s->lock);
    for (; j; j = next) { /* others only add at the end */
        pthread_mutex_lock(&s->lock);
        next = j->next;
        pthread_mutex_unlock(&s->lock);
        end_if_due(s, j, now, cutoff_ns);
    }
}

static bool same_user(const char *a, const char *b)
{
    return a && b && strncmp(a, b, sizeof((scheduler *)0)->last_user - 1) == 0;
}

/* How much the job's user has of the server already; whoever came last comes after equals. */
static int32_t user_load(const scheduler *s, const job *j)
{
    const char *user = j->request.user;
    int32_t n = 0;
    for (int32_t i = 0; i < s->config.n_parallel; i++) {
        const job *other = s->slots[i].job;
        n += other && (other == j || same_user(user, other->request.user));
    }
    return 2 * n + same_user(user, s->last_user);
}

/* The choice to start next. A further choice of a prompt waits until the prompt has been run, and
 * then finds it in the cache. */
static job *choose_job(scheduler *s)
{
    job *best = NULL;
    int32_t best_load = 0;
    pthread_mutex_lock(&s->lock);
    for (job *j = s->queue; j; j = j->next) {
        const job_prompt *prompt = &j->prompts[j->n_started / j->request.n];
        if (j->n_started % j->request.n != 0 && !prompt->ready) continue;
        int32_t load = user_load(s, j);
        if (!best || load < best_load) best = j, best_load = load;
    }
    pthread_mutex_unlock(&s->lock);
    return best;
}

static void start_choice(scheduler *s, slot *t, job *j)
{
    calla_error err;
    int32_t choice = j->n_started;
    atomic_fetch_add(&s->config.metrics->gauges.choices_running, 1); /* before it is not queued */
    if (choice + 1 == job_n_choices(j)) {
        unlink_job(s, j);
        j->n_started++;
    } else {
        pthread_mutex_lock(&s->lock);
        if (j->n_started++ == 0) count_waiting(s, -1);
        pthread_mutex_unlock(&s->lock);
    }
    const char *user = j->request.user;
    snprintf(s->last_user, sizeof s->last_user, "%.*s", (int)sizeof s->last_user - 1,
             user ? user : "");
    if (choice == 0) {
        j->stats.started_ns = clock_ns();
        histogram_add(&s->config.metrics->queue, j->stats.started_ns - j->stats.submitted_ns);
    }
    if (slot_begin(t, j, choice, &err) != CALLA_OK) fail_job(s, j, &err);
}

static void admit_jobs(scheduler *s)
{
    for (int32_t i = 0; i < s->config.n_parallel; i++) {
        if (s->slots[i].job) continue;
        job *j = choose_job(s);
        if (!j) return;
        start_choice(s, &s->slots[i], j);
    }
}

/* ---- running ---- */

static int64_t piece_tokens(const scheduler *s)
{
    bool alone = count_slots(s, true) == 0 && count_slots(s, false) == 1;
    if (s->tokens_per_ns == 0) return FIRST_PIECE;
    double n = s->tokens_per_ns * (double)(alone ? LONE_PIECE_NS : PIECE_NS);
    return n < SHORTEST_PIECE ? SHORTEST_PIECE : n > LONGEST_PIECE ? LONGEST_PIECE : (int64_t)n;
}

static void note_rate(scheduler *s, int64_t n, int64_t ns)
{
    if (n < SHORTEST_PIECE || ns <= 0) return; /* says little about longer pieces */
    double rate = (double)n / (double)ns;
    s->tokens_per_ns += s->tokens_per_ns == 0 ? rate : (rate - s->tokens_per_ns) / 4;
}

/* A piece of the prompt whose turn it is. */
static void prefill_piece(scheduler *s)
{
    calla_error err;
    for (int32_t i = 1; i <= s->config.n_parallel; i++) {
        int32_t at = (s->turn + i) % s->config.n_parallel;
        slot *t = &s->slots[at];
        if (!t->job || t->decoding) continue;
        s->turn = at;
        int64_t n_before, n_after, n_most = piece_tokens(s), start_ns = clock_ns();
        job *j = t->job;
        calla_session_tokens(t->session, &n_before);
        if (slot_prefill(t, n_most, &err) != CALLA_OK) {
            fail_job(s, j, &err);
            return;
        }
        calla_session_tokens(t->session, &n_after);
        note_rate(s, n_after - n_before, clock_ns() - start_ns);
        if (t->decoding && t->finish) finish_slot(s, t); /* no token was asked for */
        return;
    }
}

/* A step for the slots [n]. When it fails for several, each is tried alone, so that one that cannot
 * go on does not take the others with it. */
static void step(scheduler *s, slot *const *slots, int32_t n)
{
    calla_session *sessions[BACKEND_MAX_SEQUENCES];
    const calla_sampling *sampling[BACKEND_MAX_SEQUENCES];
    calla_sampled sampled[BACKEND_MAX_SEQUENCES];
    calla_error err;
    for (int32_t i = 0; i < n; i++) {
        sessions[i] = slots[i]->session;
        sampling[i] = slot_sampling(slots[i]);
    }
    int64_t start_ns = clock_ns();
    calla_status status = calla_session_next_batch(sessions, n, sampling, NULL, sampled, &err);
    int64_t ns = clock_ns() - start_ns;
    metrics_add(&s->config.metrics->decode_ns, ns);
    metrics_add(&s->config.metrics->decode_steps, 1);
    if (status != CALLA_OK && n > 1) {
        for (int32_t i = 0; i < n; i++)
            if (slots[i]->job) step(s, &slots[i], 1);
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        slot *t = slots[i];
        job *j = t->job;
        if (!j) continue; /* ended with another choice of its job */
        j->stats.decode_ns += ns;
        if (status == CALLA_OK) status = slot_accept(t, &sampled[i], &err);
        if (status != CALLA_OK)
            fail_job(s, j, &err);
        else if (t->finish)
            finish_slot(s, t);
        status = CALLA_OK;
    }
}

/* A token for every answer; false if none could have one. */
static bool decode(scheduler *s)
{
    slot *ready[BACKEND_MAX_SEQUENCES];
    int32_t n = 0;
    for (int32_t i = 0; i < s->config.n_parallel; i++) {
        slot *t = &s->slots[i];
        if (t->job && t->decoding && !slot_is_paused(t)) ready[n++] = t;
    }
    if (n > 0) step(s, ready, n);
    return n > 0;
}

/* ---- the engine thread ---- */

/* Waits while there is nothing to do; false when there never will be. */
static bool wait_for_work(scheduler *s)
{
    bool running = count_slots(s, true) + count_slots(s, false) > 0;
    pthread_mutex_lock(&s->lock);
    while (!running && !s->queue && !s->stopping) {
        if (s->idle && idle_work_count(s->idle) > 0) {
            pthread_mutex_unlock(&s->lock);
            if (idle_work_run(s->idle, s->slots[0].session, IDLE_PIECE))
                metrics_add(&s->config.metrics->reprefilled, 1);
            set_gauges(s);
            pthread_mutex_lock(&s->lock);
        } else {
            pthread_cond_wait(&s->changed, &s->lock);
        }
    }
    bool more = running || s->queue;
    pthread_mutex_unlock(&s->lock);
    if (s->idle) idle_work_leave(s->idle);
    return more;
}

static void pause_briefly(scheduler *s)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += PAUSE_NS;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_mutex_lock(&s->lock);
    pthread_cond_timedwait(&s->changed, &s->lock, &until);
    pthread_mutex_unlock(&s->lock);
}

static void run_rounds(scheduler *s)
{
    while (s->broken.code == CALLA_OK && wait_for_work(s)) {
        end_what_is_due(s);
        admit_jobs(s);
        prefill_piece(s);
        bool progressed = decode(s) || count_slots(s, false) > 0;
        set_gauges(s);
        if (!progressed && count_slots(s, true) > 0) pause_briefly(s);
    }
}

/* Whatever is left cannot go on. */
static void end_all(scheduler *s)
{
    scheduler_stop(s, 0);
    end_what_is_due(s);
    for (int32_t i = 0; i < s->config.n_parallel; i++) calla_session_free(s->slots[i].session);
    idle_work_free(s->idle);
    s->idle = NULL;
}

calla_status scheduler_run(scheduler *s, calla_engine *engine, calla_error *err)
{
    calla_status status = CALLA_OK;
    calla_engine_info info;
    calla_engine_get_info(engine, &info);
    s->engine = engine;
    s->shared = (slot_shared){.vocabulary = s->config.vocabulary,
                              .replay = s->config.replay,
                              .metrics = s->config.metrics,
                              .log = s->config.log,
                              .max_unread_bytes = s->config.max_unread_bytes,
                              .n_ctx = info.n_ctx};
    for (int32_t i = 0; i < s->config.n_parallel; i++) {
        s->slots[i] = (slot){.shared = &s->shared};
        CALLA_TRY_GOTO(calla_session_create(engine, &s->slots[i].session, err), done);
    }
    if (s->config.strict_cache) CALLA_TRY_GOTO(idle_work_create(&s->idle, err), done);
    set_gauges(s);
    run_rounds(s);
    status = s->broken.code;
    if (status != CALLA_OK && err) *err = s->broken;
done:
    end_all(s);
    return status;
}
