#include "base/threads.h"

#include "base/memory.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* About 50 us of spinning: longer than the serial stretches between the regions of one token,
 * shorter than anything a user would call an idle engine burning a core. */
enum { SPIN_ROUNDS = 20000 };

struct thread_pool {
    int n_threads;
    int n_started; /* workers running, for cleanup after a failed create */
    pthread_t *threads;
    int64_t n, grain;
    thread_pool_fn fn;
    void *context;
    atomic_bool stop; /* a worker that is late for a region looks at any time */
    /* `epoch` counts regions; a worker waits for it to change. A region has n_threads parts;
     * `ticket` is the region's epoch (high half) and the next part nobody has taken. So when a
     * worker is late (another process has its core), the others do its part, and a worker that
     * comes too late finds nothing. `n_left` counts parts not finished; the caller waits for 0.
     * `n_sleeping` avoids the wake-up system call. */
    _Alignas(64) _Atomic uint32_t epoch;
    _Alignas(64) _Atomic uint64_t ticket;
    _Alignas(64) _Atomic uint32_t n_left;
    _Alignas(64) _Atomic uint32_t n_sleeping;
};

static inline void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void futex_wait(_Atomic uint32_t *word, uint32_t expected)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

static void futex_wake_all(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1 << 30, NULL, NULL, 0);
}

/* The next part of region `epoch`, or -1 when all are taken. What the caller wrote for the region
 * may be read after a part was taken, not before: the region cannot end until then. */
static int take_part(thread_pool *pool, uint32_t epoch)
{
    uint64_t ticket = atomic_load_explicit(&pool->ticket, memory_order_acquire);
    do {
        if (ticket >> 32 != epoch || (uint32_t)ticket >= (uint32_t)pool->n_threads) return -1;
    } while (!atomic_compare_exchange_weak_explicit(&pool->ticket, &ticket, ticket + 1,
                                                    memory_order_acq_rel, memory_order_acquire));
    return (int)(uint32_t)ticket;
}

static void run_parts(thread_pool *pool, uint32_t epoch)
{
    int part;
    while ((part = take_part(pool, epoch)) >= 0) {
        int64_t units = (pool->n + pool->grain - 1) / pool->grain, t = pool->n_threads;
        int64_t begin = units * part / t * pool->grain, end = units * (part + 1) / t * pool->grain;
        if (end > pool->n) end = pool->n;
        if (begin < end) pool->fn(pool->context, begin, end, part);
        atomic_fetch_sub_explicit(&pool->n_left, 1, memory_order_release);
    }
}

static uint32_t wait_for_region(thread_pool *pool, uint32_t seen)
{
    for (int i = 0; i < SPIN_ROUNDS; i++) {
        uint32_t now = atomic_load_explicit(&pool->epoch, memory_order_acquire);
        if (now != seen) return now;
        pause_cpu();
    }
    uint32_t now;
    atomic_fetch_add(&pool->n_sleeping, 1);
    while ((now = atomic_load(&pool->epoch)) == seen) futex_wait(&pool->epoch, seen);
    atomic_fetch_sub(&pool->n_sleeping, 1);
    return now;
}

static void *worker_main(void *argument)
{
    thread_pool *pool = argument;
    uint32_t seen = 0;
    for (;;) {
        seen = wait_for_region(pool, seen);
        if (pool->stop) return NULL;
        run_parts(pool, seen);
    }
}

static uint32_t start_region(thread_pool *pool)
{
    uint32_t epoch = atomic_load_explicit(&pool->epoch, memory_order_relaxed) + 1;
    atomic_store_explicit(&pool->n_left, (uint32_t)pool->n_threads, memory_order_relaxed);
    atomic_store_explicit(&pool->ticket, (uint64_t)epoch << 32, memory_order_release);
    atomic_store(&pool->epoch, epoch);
    if (atomic_load(&pool->n_sleeping)) futex_wake_all(&pool->epoch);
    return epoch;
}

void thread_pool_run(thread_pool *pool, int64_t n, int64_t grain, thread_pool_fn fn, void *context)
{
    if (n <= 0) return;
    if (pool->n_threads == 1 || n <= grain) {
        fn(context, 0, n, 0);
        return;
    }
    pool->n = n;
    pool->grain = grain;
    pool->fn = fn;
    pool->context = context;
    run_parts(pool, start_region(pool));
    /* The others have equal parts, so they end about now; if one was descheduled in the middle of
     * its part, let it have this core rather than spin against it. */
    for (int i = 0; atomic_load_explicit(&pool->n_left, memory_order_acquire); i++) {
        if (i < SPIN_ROUNDS)
            pause_cpu();
        else
            sched_yield();
    }
}

calla_status thread_pool_create(int n_threads, thread_pool **out, calla_error *err)
{
    void *memory;
    CALLA_TRY(mem_alloc(1, sizeof(thread_pool), "thread pool", &memory, err));
    thread_pool *pool = memory;
    pool->n_threads = n_threads;
    calla_status status = CALLA_OK;
    pool->threads = calloc((size_t)n_threads, sizeof *pool->threads);
    if (!pool->threads) {
        status = error_set(err, CALLA_ERR_MEMORY, "thread pool: no memory");
        goto fail;
    }
    /* Signals go to the program's own threads. */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    for (int i = 1; i < n_threads && status == CALLA_OK; i++) {
        int e = pthread_create(&pool->threads[i], NULL, worker_main, pool);
        if (e != 0)
            status = error_set_errno(err, CALLA_ERR_MEMORY, e, "cannot start thread %d of %d",
                                     i + 1, n_threads);
        else
            pool->n_started = i;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (status != CALLA_OK) goto fail;
    *out = pool;
    return CALLA_OK;
fail:
    thread_pool_free(pool);
    return status;
}

void thread_pool_free(thread_pool *pool)
{
    if (!pool) return;
    pool->stop = true;
    start_region(pool);
    for (int i = 1; i <= pool->n_started; i++) pthread_join(pool->threads[i], NULL);
    free(pool->threads);
    mem_free(pool);
}

int thread_pool_size(const thread_pool *pool)
{
    return pool->n_threads;
}

int usable_processors(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}
