/* Which job runs when. One thread, the engine thread, owns the engine, its sessions and its cache;
 * other threads hand jobs over through a bounded queue and read the outboxes.
 *
 * Each round of the engine thread admits jobs to free slots, prefills a piece of one prompt, then
 * makes one step for all answers together: so a long prompt delays the others' next token by one
 * piece only, and the pieces are as long as fits PIECE_NS. Prompts take turns. Of the waiting jobs
 * comes first the one whose user has the fewest running answers, then one of another user than came
 * last, then the oldest. */
#ifndef CALLA_SERVER_SCHEDULER_H
#define CALLA_SERVER_SCHEDULER_H

#include "server/api_error.h"
#include "server/slot.h"

typedef struct scheduler scheduler;

typedef struct scheduler_config {
    int32_t n_parallel;      /* answers computed at once, 1 ... 8 */
    int32_t n_queue;         /* jobs that may wait */
    bool strict_cache;       /* answers are prefilled again when there is nothing else to do */
    int64_t timeout_ns;      /* of a job, 0 = none */
    size_t max_unread_bytes; /* of events that wait for a slow reader before its answer pauses */
    const vocabulary *vocabulary;
    replay *replay;
    metrics *metrics;
    const server_log *log;
} scheduler_config;

/* The config is copied; what it points to is borrowed, and only used in scheduler_run. */
calla_status scheduler_create(const scheduler_config *config, scheduler **s, calla_error *err);
void scheduler_free(scheduler *s);

/* Hands a job over: it is the scheduler's until its outbox is closed. False with *e set when the
 * queue is full (429) or the scheduler stops (503); the job is then untouched. Any thread. */
bool scheduler_submit(scheduler *s, job *j, api_error *e);
/* No further jobs; those there are go on until `deadline_ns` (clock_ns()), then they are cut off.
 * scheduler_run returns when none is left. Any thread, more than once. */
void scheduler_stop(scheduler *s, int64_t deadline_ns);

/* Runs jobs until scheduler_stop; the calling thread owns the engine meanwhile. An error is one
 * after which the engine is of no use. */
calla_status scheduler_run(scheduler *s, calla_engine *engine, calla_error *err);

#endif
