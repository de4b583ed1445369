/* calla bench as a table and as CSV. */
#include "bench.h"

#include <math.h>

/* "12.3 GB/s" */
static const char *rate_text(double rate, const char *unit, char text[32])
{
    static const char prefixes[] = " kMGTP";
    int k = 0;
    while (rate >= 1000 && k < 5) rate /= 1000, k++;
    snprintf(text, 32, "%.3g %.*s%s", rate, k > 0, prefixes + k, unit);
    return text;
}

static const char *disk_text(const bench_point *p, char text[32])
{
    return rate_text((double)p->reads.bytes / (double)p->n_tokens, "B", text);
}

/* ---- table ---- */

static void print_head(FILE *out, const bench_report *r)
{
    const bench_args *args = r->args;
    const calla_memory_plan *m = &r->engine.memory;
    char read[32], multiply[32];
    fprintf(out, "calla %s, %s, ", calla_version(), args->synth ? args->synth : args->engine.model);
    if (args->synth) fprintf(out, "random weights in memory, seed %lld, ", (long long)args->seed);
    fprintf(out, "%s %s, %d threads, %s\n", r->engine.backend, r->engine.isa, r->engine.n_threads,
            r->machine.cpu);
    fprintf(out, "weights %.3f GB, other memory %.3f GB, opened in %.2f s\n",
            (double)m->weights_bytes * 1e-9, (double)(m->total_bytes - m->weights_bytes) * 1e-9,
            (double)r->engine.load_ns * 1e-9);
    fprintf(out, "the machine reads %s and multiplies %s\n\n",
            rate_text(r->rates.read_bytes_per_second, "B/s", read),
            rate_text(r->rates.matrix_operations_per_second, "FLOP/s", multiply));
}

static void print_points(FILE *out, const char *kind, const char *unit, const bench_point *points,
                         int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        const bench_point *p = &points[i];
        char rate[32], disk[32];
        fprintf(out, "%-8s %7d %4d ", kind, p->tokens, p->n_sequences);
        if (bench_is_skipped(p))
            fprintf(out, "  skipped: %s\n", p->skipped);
        else
            fprintf(out, "%10.2f %6.1f %% %14s %8.1f %% %12.3g %10s\n", p->tokens_per_second,
                    100 * (p->fastest - p->slowest) / p->tokens_per_second,
                    rate_text(p->rate, unit, rate), 100 * p->fraction,
                    (double)p->reads.major_faults / (double)p->n_tokens, disk_text(p, disk));
    }
}

static void print_profile(FILE *out, const char *kind, const char *per, const bench_point *p)
{
    if (bench_is_skipped(p)) return;
    double all = 0, calls = 0, levels = 0, n = p->profile.n_profiled;
    for (int32_t i = 0; i < p->profile.n_entries; i++) {
        const calla_profile_entry *e = &p->profile.entries[i];
        all += (double)e->ns;
        calls += e->n_levels > 0 ? (double)e->n_calls : 0; /* not the host's */
        levels += (double)e->n_levels;
    }
    fprintf(out, "\n%s %-18d %10s %8s %8s %12s %14s\n", kind, p->tokens, per, "share", "calls",
            "bytes", "operations");
    for (int32_t i = 0; i < p->profile.n_entries; i++) {
        const calla_profile_entry *e = &p->profile.entries[i];
        char read[32] = "", multiply[32] = "";
        if (e->n_calls == 0) continue;
        if (e->ns > 0 && e->bytes > 0)
            rate_text((double)e->bytes * 1e9 / (double)e->ns, "B/s", read);
        if (e->ns > 0 && e->operations > 0)
            rate_text((double)e->operations * 1e9 / (double)e->ns, "FLOP/s", multiply);
        fprintf(out, "  %-23s %10.3f %6.1f %% %8.0f %12s %14s\n", e->name, (double)e->ns * 1e-6 / n,
                100 * (double)e->ns / all, (double)e->n_calls / n, read, multiply);
    }
    if (levels > 0)
        fprintf(out, "  in all %.0f launches, %.0f dependency levels\n", calls / n, levels / n);
}

void bench_print_table(FILE *out, const bench_report *r)
{
    print_head(out, r);
    fprintf(out, "%-8s %7s %4s %10s %8s %14s %10s %12s %10s\n", "", "tokens", "seq", "tok/s",
            "spread", "rate", "of limit", "faults/token", "disk/token");
    print_points(out, "prefill", "FLOP/s", r->prefill, r->n_prefill);
    print_points(out, "decode", "B/s", r->decode, r->n_decode);
    if (r->args->profile) {
        for (int32_t i = 0; i < r->n_prefill; i++)
            print_profile(out, "prefill", "ms", &r->prefill[i]);
        for (int32_t i = 0; i < r->n_decode; i++)
            print_profile(out, "decode ", "ms/step", &r->decode[i]);
    }
    fprintf(out,
            "\npeak memory %.3f GB, of it now anonymous %.3f GB; %lld major page faults, "
            "%.3f GB read from disk\n",
            (double)r->peak_resident_bytes * 1e-9, (double)r->anonymous_bytes * 1e-9,
            (long long)r->reads.major_faults, (double)r->reads.bytes * 1e-9);
    if (r->digest != 0) fprintf(out, "digest %016llx\n", (unsigned long long)r->digest);
}

/* ---- CSV ---- */

static void print_rows(FILE *out, const char *kind, const bench_point *points, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        const bench_point *p = &points[i];
        if (bench_is_skipped(p)) continue;
        fprintf(out, "%s,%d,%d,%d,%.6g,%.6g,%.6g,%.6g,%.4f,%lld,%016llx\n", kind, p->tokens,
                p->n_sequences, p->n_runs, p->tokens_per_second, p->slowest, p->fastest, p->rate,
                p->fraction, (long long)p->reads.major_faults, (unsigned long long)p->digest);
    }
}

void bench_print_csv(FILE *out, const bench_report *r)
{
    fprintf(out, "kind,tokens,sequences,runs,tokens_per_second,slowest,fastest,"
                 "rate_per_second,fraction,major_faults,digest\n");
    fprintf(out, "read,,,,,,,%.6g,1,,\nmatrix,,,,,,,%.6g,1,,\n", r->rates.read_bytes_per_second,
            r->rates.matrix_operations_per_second);
    print_rows(out, "prefill", r->prefill, r->n_prefill);
    print_rows(out, "decode", r->decode, r->n_decode);
}
