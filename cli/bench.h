/* What calla bench measures, and its forms of output. */
#ifndef CALLA_CLI_BENCH_H
#define CALLA_CLI_BENCH_H

#include "cli.h"

enum {
    BENCH_MAX_POINTS = 32, /* of each kind */
    BENCH_MAX_REPEATS = 100,
    BENCH_MAX_SEQUENCES = 8,
    BENCH_MAX_DECODE_POINTS = BENCH_MAX_POINTS * BENCH_MAX_SEQUENCES,
    BENCH_MAX_PROFILE = 32,
};

/* Numbers of tokens or of sequences, ascending. */
typedef struct bench_list {
    int32_t values[BENCH_MAX_POINTS]; /* [n], each at least 1 */
    int32_t n;
    int32_t most; /* no value may be larger */
} bench_list;

typedef struct bench_args {
    cli_engine_args engine;
    const char *synth;                     /* shape, instead of a model */
    int64_t seed;                          /* -1 = not given */
    bench_list prefill, decode, sequences; /* decode: each context with each number of sequences */
    bool default_points;                   /* as many as fit */
    int32_t n_steps, n_repeats;
    double max_seconds; /* a point is not begun if it would take longer */
    bool profile, csv, json;
} bench_args;

/* Where the time of a point went: sums over n_profiled prompts or steps. */
typedef struct bench_profile {
    calla_profile_entry entries[BENCH_MAX_PROFILE]; /* [n_entries] */
    int32_t n_entries, n_profiled;
} bench_profile;

/* A prompt of `tokens`, or steps after a context of `tokens` in each of n_sequences. */
typedef struct bench_point {
    int32_t tokens, n_sequences;
    char skipped[64]; /* why it was not measured, "" if it was */
    int32_t n_runs;
    double tokens_per_second, slowest, fastest; /* the median of the runs, and the extremes */
    double rate;          /* operations (prefill) or bytes (decode) per second, at the median */
    double fraction;      /* of the rate measured for this machine */
    int64_t n_tokens;     /* of all runs, */
    cli_disk_reads reads; /* and what they read from disks */
    uint64_t digest;
    bench_profile profile;
} bench_point;

typedef struct bench_report {
    const bench_args *args;
    calla_engine_info engine;
    calla_machine_info machine;
    calla_machine_rates rates;
    bench_point prefill[BENCH_MAX_POINTS];       /* [n_prefill] */
    bench_point decode[BENCH_MAX_DECODE_POINTS]; /* [n_decode] by context, then sequences */
    int32_t n_prefill, n_decode;
    bool interrupted; /* complete but for the points skipped as "interrupted" */
    int64_t peak_resident_bytes, anonymous_bytes; /* of the whole process */
    cli_disk_reads reads;
    uint64_t digest; /* of all points' digests */
} bench_report;

static inline bool bench_is_skipped(const bench_point *p)
{
    return p->skipped[0] != '\0';
}

/* Tokens of context a run of these points needs. */
int64_t bench_context(const bench_args *args);

/* Opens, measures the machine, then the points. Default points that do not fit in memory come out
 * skipped. After CALLA_ERR_CANCELLED with report->interrupted the report holds what was measured.
 */
calla_status bench_measure(const bench_args *args, bench_report *report, calla_error *err);

void bench_print_table(FILE *out, const bench_report *report);
void bench_print_csv(FILE *out, const bench_report *report);
/* malloc'ed; NULL when out of memory. */
char *bench_report_json(const bench_report *report);

#endif
