#include "base/threads.h"

#include "base/clock.h"
#include "base/memory.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Longer than most serial stretches between the regions of one token, shorter than anything a user
 * would call an idle engine burning a core. */
enum { SPIN_NS = 300000, PAUSES_PER_LOOK = 32 };
/* After this a spinning thread offers its core at every look: the caller may be waiting for it,
 * when other programs have the rest. */
enum { GENEROUS_NS = 20000 };

/* A thread and its part of the regions, in a cache line that nobody else writes unless the thread
 * is late. `state` is 2e - 1 once somebody has taken the part in region e, 2e once it is done. */
typedef struct member {
    _Alignas(64) _Atomic uint32_t state;
    thread_pool *pool;
    int index;
    pthread_t thread; /* of a worker; the caller is member 0 */
} member;

struct thread_pool {
    int n_threads;
    int n_started; /* workers running, for cleanup after a failed create */
    bool pinned;   /* to `processors` */
    cpu_set_t processors;
    const void *caller; /* &n_pins of the thread pinned as the caller, or NULL */
    member *members;    /* [n_threads] */
    atomic_bool stop;   /* a worker that is late for a region looks at any time */
    /* The region, written before its number `epoch` is, for which workers wait. They read the rest
     * after they have taken their part: the region cannot end before that part has. A worker that
     * is late (another process has its core) finds its part taken by the caller. */
    _Alignas(64) _Atomic uint32_t epoch;
    int64_t n, grain;
    thread_pool_fn fn;
    void *context;
    _Alignas(64) _Atomic uint32_t n_sleeping; /* spares the wake-up system call */
};

/* Pools that pinned this thread as their caller, and where it could run before the first did. */
static _Thread_local int n_pins;
static _Thread_local cpu_set_t unpinned;

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

static bool take_part(thread_pool *pool, uint32_t epoch, int i)
{
    uint32_t untaken = 2 * (epoch - 1);
    return atomic_compare_exchange_strong_explicit(&pool->members[i].state, &untaken, 2 * epoch - 1,
                                                   memory_order_acquire, memory_order_relaxed);
}

static void run_part(thread_pool *pool, uint32_t epoch, int i)
{
    int64_t units = (pool->n + pool->grain - 1) / pool->grain, t = pool->n_threads;
    int64_t begin = units * i / t * pool->grain, end = units * (i + 1) / t * pool->grain;
    if (end > pool->n) end = pool->n;
    if (begin < end) pool->fn(pool->context, begin, end, i);
    atomic_store_explicit(&pool->members[i].state, 2 * epoch, memory_order_release);
}

static uint32_t wait_for_region(thread_pool *pool, uint32_t seen)
{
    int64_t start_ns = clock_ns(), spun_ns;
    uint32_t now;
    do {
        for (int i = 0; i < PAUSES_PER_LOOK; i++) {
            now = atomic_load_explicit(&pool->epoch, memory_order_acquire);
            if (now != seen) return now;
            pause_cpu();
        }
        spun_ns = clock_ns() - start_ns;
        if (spun_ns > GENEROUS_NS) sched_yield();
    } while (spun_ns < SPIN_NS);
    atomic_fetch_add(&pool->n_sleeping, 1);
    while ((now = atomic_load(&pool->epoch)) == seen) futex_wait(&pool->epoch, seen);
    atomic_fetch_sub(&pool->n_sleeping, 1);
    return now;
}

static void *worker_main(void *argument)
{
    const member *m = argument;
    thread_pool *pool = m->pool;
    uint32_t seen = 0;
    if (pool->pinned) sched_setaffinity(0, sizeof pool->processors, &pool->processors);
    for (;;) {
        seen = wait_for_region(pool, seen);
        if (pool->stop) return NULL;
        if (take_part(pool, seen, m->index)) run_part(pool, seen, m->index);
    }
}

static uint32_t start_region(thread_pool *pool)
{
    uint32_t epoch = atomic_load_explicit(&pool->epoch, memory_order_relaxed) + 1;
    atomic_store(&pool->epoch, epoch);
    if (atomic_load(&pool->n_sleeping)) futex_wake_all(&pool->epoch);
    return epoch;
}

static void pin_caller(thread_pool *pool)
{
    if (n_pins == 0) allowed_processors(&unpinned);
    n_pins++;
    sched_setaffinity(0, sizeof pool->processors, &pool->processors);
    pool->caller = &n_pins;
}

static void unpin_caller(const thread_pool *pool)
{
    if (pool->caller != &n_pins || --n_pins > 0) return;
    sched_setaffinity(0, sizeof unpinned, &unpinned);
}

/* Parts are equal, so they end about now; if a thread was descheduled in the middle of its part,
 * let it have this core rather than spin against it. */
static void wait_for_part(thread_pool *pool, uint32_t epoch, int i)
{
    int64_t start_ns = 0;
    for (int k = 1;
         atomic_load_explicit(&pool->members[i].state, memory_order_acquire) != 2 * epoch; k++) {
        pause_cpu();
        if (k % PAUSES_PER_LOOK) continue;
        int64_t now = clock_ns();
        if (!start_ns) start_ns = now;
        if (now - start_ns > GENEROUS_NS) sched_yield();
    }
}

void thread_pool_run(thread_pool *pool, int64_t n, int64_t grain, thread_pool_fn fn, void *context)
{
    if (n <= 0) return;
    if (pool->pinned && pool->caller != &n_pins) pin_caller(pool);
    if (pool->n_threads == 1 || n <= grain) {
        fn(context, 0, n, 0);
        return;
    }
    pool->n = n;
    pool->grain = grain;
    pool->fn = fn;
    pool->context = context;
    uint32_t epoch = start_region(pool);
    run_part(pool, epoch, 0);
    for (int i = 1; i < pool->n_threads; i++) {
        if (take_part(pool, epoch, i))
            run_part(pool, epoch, i);
        else
            wait_for_part(pool, epoch, i);
    }
}

static calla_status start_workers(thread_pool *pool, calla_error *err)
{
    calla_status status = CALLA_OK;
    /* Signals go to the program's own threads. */
    sigset_t all, old;
    sigfillset(&all);
    /* Faults stay with the thread that has them: blocked, they would pass by any handler. */
    static const int faults[] = {SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGTRAP};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) sigdelset(&all, faults[i]);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    for (int i = 1; i < pool->n_threads && status == CALLA_OK; i++) {
        member *m = &pool->members[i];
        m->pool = pool;
        m->index = i;
        int e = pthread_create(&m->thread, NULL, worker_main, m);
        if (e != 0)
            status = error_set_errno(err, CALLA_ERR_MEMORY, e, "cannot start thread %d of %d",
                                     i + 1, pool->n_threads);
        else
            pool->n_started = i;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return status;
}

calla_status thread_pool_create_pinned(int n_threads, const cpu_set_t *processors,
                                       thread_pool **out, calla_error *err)
{
    void *memory;
    calla_status status;
    CALLA_TRY(mem_alloc(1, sizeof(thread_pool), "thread pool", &memory, err));
    thread_pool *pool = memory;
    pool->n_threads = n_threads;
    pool->pinned = processors != NULL;
    if (processors) pool->processors = *processors;
    CALLA_TRY_GOTO(mem_alloc((size_t)n_threads, sizeof(member), "threads", &memory, err), fail);
    pool->members = memory;
    CALLA_TRY_GOTO(start_workers(pool, err), fail);
    *out = pool;
    return CALLA_OK;
fail:
    thread_pool_free(pool);
    return status;
}

calla_status thread_pool_create(int n_threads, thread_pool **out, calla_error *err)
{
    return thread_pool_create_pinned(n_threads, NULL, out, err);
}

void thread_pool_free(thread_pool *pool)
{
    if (!pool) return;
    unpin_caller(pool);
    pool->stop = true;
    start_region(pool);
    for (int i = 1; i <= pool->n_started; i++) pthread_join(pool->members[i].thread, NULL);
    mem_free(pool->members);
    mem_free(pool);
}

int thread_pool_size(const thread_pool *pool)
{
    return pool->n_threads;
}

void allowed_processors(cpu_set_t *set)
{
    if (n_pins > 0) {
        *set = unpinned;
        return;
    }
    if (sched_getaffinity(0, sizeof *set, set) == 0 && CPU_COUNT(set) > 0) return;
    CPU_ZERO(set); /* more processors than a set holds: as many as fit */
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    for (long i = 0; i == 0 || (i < n && i < CPU_SETSIZE); i++) CPU_SET((size_t)i, set);
}

int usable_processors(void)
{
    cpu_set_t set;
    allowed_processors(&set);
    return CPU_COUNT(&set);
}
