#include "server/metrics.h"

#include "base/clock.h"

#include <stdio.h>
#include <unistd.h>

static const double seconds[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                 1,     2.5,    5,     10,   25,    50,   100, 250};
static const double token_seconds[] = {0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032,
                                       0.064,  0.125, 0.25,  0.5,   1,     2,     4};
enum {
    N_SECONDS = sizeof seconds / sizeof *seconds,
    N_TOKEN_SECONDS = sizeof token_seconds / sizeof *token_seconds
};

void metrics_init(metrics *m)
{
    *m = (metrics){.start_ns = clock_ns()};
    histogram *const h[] = {&m->queue, &m->first_token, &m->duration};
    for (size_t i = 0; i < sizeof h / sizeof *h; i++)
        h[i]->bounds = seconds, h[i]->n_bounds = N_SECONDS;
    m->between_tokens.bounds = token_seconds;
    m->between_tokens.n_bounds = N_TOKEN_SECONDS;
}

void histogram_add(histogram *h, int64_t ns)
{
    int i = 0;
    while (i < h->n_bounds && (double)ns > h->bounds[i] * 1e9) i++;
    metrics_add(&h->counts[i], 1);
    metrics_add(&h->sum_ns, ns);
}

static long long get(atomic_llong *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

static void put_head(strbuf *out, const char *name, const char *type, const char *help)
{
    strbuf_printf(out, "# HELP calla_%s %s\n# TYPE calla_%s %s\n", name, help, name, type);
}

static void put_value(strbuf *out, const char *name, const char *type, double value,
                      const char *help)
{
    put_head(out, name, type, help);
    strbuf_printf(out, "calla_%s %.17g\n", name, value);
}

static void put_histogram(strbuf *out, const char *name, histogram *h, const char *help)
{
    long long n = 0;
    put_head(out, name, "histogram", help);
    for (int i = 0; i < h->n_bounds; i++) {
        n += get(&h->counts[i]);
        strbuf_printf(out, "calla_%s_bucket{le=\"%g\"} %lld\n", name, h->bounds[i], n);
    }
    n += get(&h->counts[h->n_bounds]);
    strbuf_printf(out, "calla_%s_bucket{le=\"+Inf\"} %lld\n", name, n);
    strbuf_printf(out, "calla_%s_sum %.9f\ncalla_%s_count %lld\n", name,
                  (double)get(&h->sum_ns) / 1e9, name, n);
}

static int64_t resident_bytes(void)
{
    long long n_pages = 0, n_resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f) return 0;
    if (fscanf(f, "%lld %lld", &n_pages, &n_resident) != 2) n_resident = 0;
    fclose(f);
    return n_resident * sysconf(_SC_PAGESIZE);
}

static void put_counters(metrics *m, strbuf *out)
{
    const struct {
        const char *name;
        atomic_llong *value;
        double scale;
        const char *help;
    } counters[] = {
        {"requests_rejected_total", &m->rejected, 1,
         "Requests refused because the queue was full."},
        {"requests_cancelled_total", &m->cancelled, 1, "Requests whose client went away."},
        {"requests_timed_out_total", &m->timed_out, 1, "Requests that took longer than allowed."},
        {"prompt_tokens_total", &m->prompt_tokens, 1, "Tokens of prompts."},
        {"cached_tokens_total", &m->cached_tokens, 1, "Of them, taken over from the cache."},
        {"prefill_tokens_total", &m->prefill_tokens, 1, "Of them, computed."},
        {"prefill_seconds_total", &m->prefill_ns, 1e-9, "Time spent computing them."},
        {"generated_tokens_total", &m->generated_tokens, 1, "Tokens generated."},
        {"decoded_tokens_total", &m->decoded_tokens, 1, "Of them, by a decode step."},
        {"decode_seconds_total", &m->decode_ns, 1e-9, "Time spent in decode steps."},
        {"decode_steps_total", &m->decode_steps, 1, "Decode steps, each for all running answers."},
        {"answers_reprefilled_total", &m->reprefilled, 1,
         "Answers prefilled again when there was nothing else to do (--strict-cache)."},
        {"cache_evictions_total", &m->gauges.snapshot_evictions, 1,
         "Snapshots dropped to make room."},
    };
    for (size_t i = 0; i < sizeof counters / sizeof *counters; i++)
        put_value(out, counters[i].name, "counter",
                  (double)get(counters[i].value) * counters[i].scale, counters[i].help);
}

void metrics_write(metrics *m, int64_t memory_bytes, strbuf *out)
{
    put_head(out, "requests_total", "counter", "Requests answered, by class of status.");
    for (int i = 2; i <= 5; i++)
        strbuf_printf(out, "calla_requests_total{status=\"%dxx\"} %lld\n", i, get(&m->requests[i]));
    put_counters(m, out);
    put_value(out, "jobs_queued", "gauge", (double)get(&m->gauges.jobs_queued),
              "Requests waiting for their turn.");
    put_value(out, "choices_running", "gauge", (double)get(&m->gauges.choices_running),
              "Answers being computed.");
    put_value(out, "answers_to_reprefill", "gauge", (double)get(&m->gauges.answers_to_reprefill),
              "Answers that wait to be prefilled again (--strict-cache).");
    put_value(out, "cache_snapshots", "gauge", (double)get(&m->gauges.snapshots),
              "Snapshots in the prompt cache.");
    put_value(out, "cache_snapshots_max", "gauge", (double)get(&m->gauges.snapshot_capacity),
              "Snapshots the cache has room for.");
    put_value(out, "memory_planned_bytes", "gauge", (double)memory_bytes,
              "Memory of the engine, weights included.");
    put_value(out, "memory_requests_bytes", "gauge", (double)get(&m->gauges.request_bytes),
              "Memory of requests that are not answered yet, estimated.");
    put_value(out, "memory_resident_bytes", "gauge", (double)resident_bytes(),
              "Resident memory of the process.");
    put_value(out, "uptime_seconds", "gauge", (double)(clock_ns() - m->start_ns) / 1e9,
              "Time since the server started.");
    put_histogram(out, "queue_seconds", &m->queue, "Time a request waited for its turn.");
    put_histogram(out, "first_token_seconds", &m->first_token,
                  "Time from a request to its first token.");
    put_histogram(out, "between_tokens_seconds", &m->between_tokens,
                  "Time between two tokens of an answer.");
    put_histogram(out, "request_seconds", &m->duration, "Time from a request to its last byte.");
}
