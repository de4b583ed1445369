/* The thread pool: created once, every parallel region runs on all of its threads.
 *
 * A decode token has hundreds of regions, so starting and ending one must cost about a microsecond:
 * workers spin for a while, then sleep. Work is split by index ranges; what a range computes must
 * not depend on the split, so results do not depend on the thread count. */
#ifndef CALLA_BASE_THREADS_H
#define CALLA_BASE_THREADS_H

#include "base/error.h"

#include <sched.h>

typedef struct thread_pool thread_pool;

/* n_threads >= 1, the calling thread included. */
calla_status thread_pool_create(int n_threads, thread_pool **pool, calla_error *err);
/* The same with every thread kept on `processors` (NULL: wherever the system puts it). So is the
 * thread that calls thread_pool_run, from its first call until it frees the pool. A processor that
 * has gone away since is no error. */
calla_status thread_pool_create_pinned(int n_threads, const cpu_set_t *processors,
                                       thread_pool **pool, calla_error *err);
void thread_pool_free(thread_pool *pool);
int thread_pool_size(const thread_pool *pool);

/* One part of a region: items [begin, end). `thread` is below the pool's size, and no two parts
 * that run at the same time share it, so it may pick scratch memory. */
typedef void (*thread_pool_fn)(void *context, int64_t begin, int64_t end, int thread);

/* Splits [0, n) into contiguous ranges whose starts are multiples of `grain`, as many as there are
 * threads, runs them and returns when all are done. A thread that is late (its core is busy with
 * something else) has its range done by another. Empty ranges do not call fn. Not reentrant. */
void thread_pool_run(thread_pool *pool, int64_t n, int64_t grain, thread_pool_fn fn, void *context);

/* Processors this process may run on, whatever pools have done with this thread; at least one. */
void allowed_processors(cpu_set_t *set);
/* Their number. */
int usable_processors(void);

#endif
