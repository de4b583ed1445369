/* Which processors the backend's threads run on, and how many there are if nobody says. */
#include "base/cgroup.h"
#include "base/clock.h"
#include "base/file_load.h"
#include "base/topology.h"
#include "cpu/cpu.h"

enum {
    PASSES = 3,       /* of which the best counts */
    MAX_WINDOWS = 64, /* parts of the weights to read in turn */
    LINE_BYTES = 64,
    FEW_CORES = 4, /* that prompts, which are bound by arithmetic, need all */
    PIECE_BYTES = 256 << 10,
    SMALL_THREADS = 8, /* for a model whose tokens are too short for more to pay */
};
static const int64_t SMALL_TOKEN_BYTES = 64 << 20;
static const size_t LEAST_BYTES = 32 << 20, MOST_BYTES = 64 << 20; /* of a window */
/* A count is not measured after this. */
static const int64_t PROBE_NS = 120000000;

/* What is read: the largest tensors, one after the other, so that none is in a cache from the time
 * before. They are in memory, and no memory has to be had for this. */
typedef struct reading {
    const unsigned char *windows[MAX_WINDOWS]; // [n_windows][n_bytes] aligned to a line
    size_t n_bytes;
    int n_windows, next;
    const unsigned char *data; // [n_bytes] the window of this pass
    _Atomic uint64_t sink;     /* keeps results alive */
} reading;

static void find_windows(const tensor_set *set, reading *r)
{
    size_t most = 0;
    for (int32_t i = 0; i < set->n_tensors; i++)
        if (set->tensors[i].used && set->tensors[i].n_bytes > most) most = set->tensors[i].n_bytes;
    if (most < LEAST_BYTES) return;
    r->n_bytes =
        most < MOST_BYTES + LINE_BYTES ? most / LINE_BYTES * LINE_BYTES - LINE_BYTES : MOST_BYTES;
    for (int32_t i = 0; i < set->n_tensors && r->n_windows < MAX_WINDOWS; i++) {
        const tensor *t = &set->tensors[i];
        size_t before = (LINE_BYTES - (uintptr_t)t->data % LINE_BYTES) % LINE_BYTES;
        if (t->used && t->n_bytes == most) r->windows[r->n_windows++] = t->data + before;
    }
}

/* A core's rate from memory is bound by the lines it may have under way, not by its registers:
 * plain words do. */
static void read_part(void *context, int64_t begin, int64_t end, int thread)
{
    reading *r = context;
    const uint64_t *p = (const void *)(r->data + begin);
    uint64_t sum[8] = {0};
    (void)thread;
    for (int64_t i = 0; i < (end - begin) / 8; i += 8)
        for (int k = 0; k < 8; k++) sum[k] += p[i + k];
    for (int k = 1; k < 8; k++) sum[0] += sum[k];
    r->sink += sum[0];
}

static thread_pool *start_pool(const topology *t, int n_threads, bool pin)
{
    thread_pool *pool;
    cpu_set_t set;
    topology_choose(t, n_threads, &set);
    return thread_pool_create_pinned(n_threads, pin ? &set : NULL, &pool, NULL) == CALLA_OK ? pool
                                                                                            : NULL;
}

/* Bytes per second of n_threads; 0 if they cannot be had. */
static double measure(reading *r, const topology *t, int n_threads, bool pin)
{
    double best = 0;
    thread_pool *pool = start_pool(t, n_threads, pin);
    if (!pool) return 0;
    for (int pass = 0; pass < PASSES; pass++) {
        r->data = r->windows[r->next++ % r->n_windows];
        enter_pages(r->data, r->n_bytes);
        int64_t start = clock_ns();
        run_pieces(pool, (int64_t)r->n_bytes, PIECE_BYTES, read_part, r);
        double rate = (double)r->n_bytes * 1e9 / (double)(clock_ns() - start);
        if (rate > best) best = rate;
    }
    thread_pool_free(pool);
    return best;
}

/* From the largest count down, until fewer threads read much less: the rate does not rise again. */
static int probe(reading *r, const topology *t, int most, bool pin)
{
    int counts[MAX_PROBE_RATES], n = probe_counts(t, most, counts), n_rates = 0;
    probe_rate rates[MAX_PROBE_RATES];
    double best = 0;
    for (int64_t start = clock_ns(); n_rates < n; n_rates++) {
        if (n_rates > 1 && clock_ns() - start > PROBE_NS) break;
        double rate = measure(r, t, counts[n_rates], pin);
        rates[n_rates] = (probe_rate){counts[n_rates], rate};
        if (rate > best) best = rate;
        if (rate < 0.75 * best) break;
    }
    return probe_choose(rates, n_rates, t->n_cores);
}

/* The processor time that control groups leave, in whole processors. */
static int quota(void)
{
    cgroup_limits limits;
    cgroup_limits_read("", &limits);
    int n = (int)limits.processors;
    if (limits.processors <= 0) return CPU_SETSIZE;
    return n < limits.processors ? n + 1 : n;
}

static void read_topology(topology *t)
{
    cpu_set_t allowed;
    allowed_processors(&allowed);
    topology_read("/sys/devices/system", &allowed, t);
}

int32_t cpu_choose_threads(const model_weights *weights, bool pin, bool may_measure)
{
    topology t;
    read_topology(&t);
    int most = quota(), cores = t.n_cores < most ? t.n_cores : most;
    if (weights->token_bytes < SMALL_TOKEN_BYTES)
        return cores < SMALL_THREADS ? cores : SMALL_THREADS;
    reading r = {.n_windows = 0};
    if (may_measure && weights->resident && cores > FEW_CORES) find_windows(&weights->tensors, &r);
    return r.n_windows > 1 ? probe(&r, &t, most, pin) : cores;
}

calla_status cpu_start_threads(int32_t n_threads, bool pin, thread_pool **pool, calla_error *err)
{
    topology t;
    cpu_set_t set, allowed;
    read_topology(&t);
    allowed_processors(&allowed);
    topology_choose(&t, n_threads, &set);
    /* More threads than the node has processors: all of the machine is wanted. */
    pin = pin && n_threads <= t.n_processors && !CPU_EQUAL(&set, &allowed);
    return thread_pool_create_pinned(n_threads, pin ? &set : NULL, pool, err);
}
