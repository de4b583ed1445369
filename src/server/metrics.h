/* Numbers about the server, for Prometheus. Any thread may count; names and meanings are stable. */
#ifndef CALLA_SERVER_METRICS_H
#define CALLA_SERVER_METRICS_H

#include "base/strbuf.h"

#include <stdatomic.h>

enum { HISTOGRAM_MAX_BUCKETS = 20, METRICS_MAX_ENDPOINTS = 32 };

typedef struct histogram {
    const double *bounds; /* [n_bounds] upper ends in seconds, ascending */
    int n_bounds;
    atomic_llong counts[HISTOGRAM_MAX_BUCKETS + 1]; /* [n_bounds + 1] not cumulative */
    atomic_llong sum_ns;
} histogram;

/* What is set, not counted; by the scheduler unless it says otherwise. */
typedef struct metrics_gauges {
    atomic_llong jobs_queued, choices_running;
    atomic_llong snapshots, snapshot_capacity, snapshot_evictions;
    atomic_llong answers_to_reprefill;
    atomic_llong request_bytes; /* memory of requests, as http.c estimates it */
} metrics_gauges;

typedef struct metrics {
    int64_t start_ns;
    atomic_llong requests[6];                         /* by the first digit of the status */
    atomic_llong endpoints[METRICS_MAX_ENDPOINTS][6]; /* the same, by endpoint of the list */
    atomic_llong rejected;                            /* because the queue was full */
    atomic_llong cancelled, timed_out;
    atomic_llong prompt_tokens, cached_tokens, prefill_tokens, generated_tokens, decoded_tokens;
    atomic_llong prefill_ns, decode_ns; /* spent on prefill_tokens and decoded_tokens */
    atomic_llong decode_steps;
    atomic_llong reprefilled; /* answers, when idle */
    histogram queue, first_token, between_tokens, duration;
    metrics_gauges gauges;
} metrics;

void metrics_init(metrics *m);
void histogram_add(histogram *h, int64_t ns);
static inline void metrics_add(atomic_llong *counter, int64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* Appends everything in Prometheus' text format; memory_bytes: the engine's plan. */
void metrics_write(metrics *m, int64_t memory_bytes, strbuf *out);

#endif
