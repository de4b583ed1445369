/* The measuring part of calla bench.
 *
 * A frontier is a number of tokens at which a prompt is measured, or decode, or both: then one
 * prompt serves both. Prompts start cold, in a fresh session and without snapshots. The runs of a
 * decode point follow each other in the same sequences, so their context grows by the steps. */
#include "bench.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum {
    COUNTED_STEPS = 8,    /* after the timed ones, to count what was moved */
    WARM_UP_TOKENS = 512, /* at most */
};

typedef struct bench_run {
    const bench_args *args;
    bench_report *report;
    calla_engine *engine;
    calla_session *sessions[BENCH_MAX_SEQUENCES];
    int32_t *tokens; /* [n_ctx] */
    calla_control control;
    char phase[48]; /* for progress */
    /* Of the last points, to tell how long the next would take; 0 = not known. */
    double operations_per_second, step_seconds;
    calla_error *err;
} bench_run;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

__attribute__((format(printf, 3, 4))) static calla_status fail(bench_run *run, calla_status code,
                                                               const char *format, ...)
{
    va_list args;
    va_start(args, format);
    run->err->code = code;
    vsnprintf(run->err->message, sizeof run->err->message, format, args);
    va_end(args);
    return code;
}

static void digest_add(uint64_t *digest, uint64_t value, int n_bytes)
{
    if (*digest == 0) *digest = 0xcbf29ce484222325u; /* FNV-1a, 64 bits */
    for (int i = 0; i < n_bytes; i++)
        *digest = (*digest ^ (value >> (8 * i) & 0xff)) * 0x100000001b3u;
}

/* ---- points ---- */

static int32_t counted_steps(const bench_args *args)
{
    return args->profile || args->n_steps < COUNTED_STEPS ? args->n_steps : COUNTED_STEPS;
}

int64_t bench_context(const bench_args *args)
{
    int64_t need = 0;
    if (args->prefill.n) need = args->prefill.values[args->prefill.n - 1] + 1;
    if (args->decode.n) {
        int64_t steps = (int64_t)args->n_repeats * args->n_steps + 1 + counted_steps(args);
        int64_t decode = args->decode.values[args->decode.n - 1] + 1 + steps;
        if (decode > need) need = decode;
    }
    return need;
}

static void add_points(bench_report *report)
{
    const bench_args *args = report->args;
    for (int32_t i = 0; i < args->prefill.n; i++)
        report->prefill[report->n_prefill++] =
            (bench_point){.tokens = args->prefill.values[i], .n_sequences = 1};
    for (int32_t i = 0; i < args->decode.n; i++)
        for (int32_t k = 0; k < args->sequences.n; k++)
            report->decode[report->n_decode++] = (bench_point){
                .tokens = args->decode.values[i], .n_sequences = args->sequences.values[k]};
}

static void skip(bench_point *points, int32_t n, int32_t tokens, const char *why)
{
    for (int32_t i = 0; i < n; i++)
        if (points[i].tokens == tokens)
            snprintf(points[i].skipped, sizeof points[i].skipped, "%s", why);
}

/* Takes the largest frontier out of the lists, and notes it in the report. */
static void drop_largest(bench_args *fitting, bench_report *report, const char *why)
{
    bench_list *lists[2] = {&fitting->prefill, &fitting->decode};
    int32_t largest = 0;
    for (int i = 0; i < 2; i++)
        if (lists[i]->n && lists[i]->values[lists[i]->n - 1] > largest)
            largest = lists[i]->values[lists[i]->n - 1];
    for (int i = 0; i < 2; i++)
        if (lists[i]->n && lists[i]->values[lists[i]->n - 1] == largest) lists[i]->n--;
    skip(report->prefill, report->n_prefill, largest, why);
    skip(report->decode, report->n_decode, largest, why);
}

/* ---- opening ---- */

static void show_progress(void *user, const char *phase, int64_t done, int64_t total)
{
    (void)user;
    cli_progress(phase, done, total);
}

static calla_status open_model(bench_run *run, const calla_engine_options *options)
{
    calla_memory_plan plan;
    calla_machine_info machine;
    const bench_args *args = run->args;
    if (args->synth)
        return calla_engine_open_synthetic(args->synth, (uint64_t)args->seed, options, &run->engine,
                                           run->err);
    calla_status status = calla_engine_plan(args->engine.model, options, &plan, run->err);
    if (status != CALLA_OK) return status;
    calla_machine_get_info(&machine);
    int64_t other = plan.total_bytes - plan.weights_bytes, available = machine.ram_available_bytes;
    if (available && !plan.on_device && other > available)
        return fail(run, CALLA_ERR_MEMORY,
                    "%s: a context of %d tokens needs %.2f GB of memory besides the weights, %.2f "
                    "GB are available",
                    args->engine.model, plan.n_ctx, (double)other * 1e-9, (double)available * 1e-9);
    return calla_engine_open(args->engine.model, options, &run->engine, run->err);
}

/* With default points: as many as the model's context and the memory allow. */
static calla_status open_engine(bench_run *run)
{
    bench_args fitting = *run->args;
    calla_engine_options options = run->args->engine.options;
    int32_t asked = options.n_ctx;
    options.n_sessions = run->args->sequences.values[run->args->sequences.n - 1];
    options.snapshot_bytes = -1;
    options.progress = show_progress;
    options.cancel = cli_cancel_flag();
    for (;;) {
        int64_t need = bench_context(&fitting);
        options.n_ctx = asked ? asked : (int32_t)need;
        calla_status status = CALLA_ERR_CONTEXT;
        if (need <= options.n_ctx) status = open_model(run, &options);
        if (status == CALLA_OK) return status;
        bool smaller = run->args->default_points && fitting.prefill.n > 1 &&
                       (status == CALLA_ERR_CONTEXT || status == CALLA_ERR_INPUT ||
                        status == CALLA_ERR_MEMORY);
        if (status == CALLA_ERR_CONTEXT)
            fail(run, status, "--ctx: too few tokens for even the smallest point");
        if (!smaller) return status;
        drop_largest(&fitting, run->report,
                     status == CALLA_ERR_MEMORY ? "not enough memory" : "beyond the context");
    }
}

/* ---- running ---- */

static void show_prefill(void *user, int64_t done, int64_t total)
{
    const bench_run *run = user;
    cli_progress(run->phase, done, total);
}

/* A cold prompt of n tokens in sequence number `index`, and the token that follows. The tokens are
 * those of Lily's benchmark (i * 2654435761 mod 2^32 mod vocabulary), shifted for each sequence. */
static calla_status run_prompt(bench_run *run, int32_t index, int32_t n, double *seconds,
                               int32_t *token)
{
    calla_session_free(run->sessions[index]);
    run->sessions[index] = NULL;
    calla_status status = calla_session_create(run->engine, &run->sessions[index], run->err);
    if (status != CALLA_OK) return status;
    uint32_t n_vocab = (uint32_t)run->report->engine.n_vocab_tokens;
    for (int32_t i = 0; i < n; i++)
        run->tokens[i] = (int32_t)((uint32_t)(i + 100003 * index) * 2654435761u % n_vocab);
    calla_sampled sampled;
    double start = now();
    status =
        calla_session_sync(run->sessions[index], run->tokens, n, &run->control, NULL, run->err);
    *seconds = now() - start;
    if (status == CALLA_OK)
        status = calla_session_next(run->sessions[index], &(calla_sampling){0}, &run->control,
                                    &sampled, run->err);
    if (status == CALLA_OK) *token = sampled.token;
    return status;
}

/* n_steps greedy tokens of the first n sequences; into *digest if not NULL. */
static calla_status run_steps(bench_run *run, int32_t n, int32_t n_steps, uint64_t *digest,
                              double *seconds)
{
    static const calla_sampling greedy;
    const calla_sampling *sampling[BENCH_MAX_SEQUENCES];
    calla_sampled sampled[BENCH_MAX_SEQUENCES];
    for (int32_t i = 0; i < n; i++) sampling[i] = &greedy;
    double start = now();
    for (int32_t k = 0; k < n_steps; k++) {
        calla_status status =
            calla_session_next_batch(run->sessions, n, sampling, &run->control, sampled, run->err);
        if (status != CALLA_OK) return status;
        for (int32_t i = 0; digest && i < n; i++) digest_add(digest, (uint32_t)sampled[i].token, 4);
        cli_progress(run->phase, k + 1, n_steps);
    }
    *seconds = now() - start;
    return CALLA_OK;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median and extremes of the runs' times for n_tokens each. */
static double summarise(bench_point *p, double *seconds, int32_t n_tokens)
{
    qsort(seconds, (size_t)p->n_runs, sizeof *seconds, by_value);
    double median = (seconds[(p->n_runs - 1) / 2] + seconds[p->n_runs / 2]) / 2;
    p->tokens_per_second = n_tokens / median;
    p->fastest = n_tokens / seconds[0];
    p->slowest = n_tokens / seconds[p->n_runs - 1];
    p->n_tokens = (int64_t)n_tokens * p->n_runs;
    return median;
}

static void take_profile(bench_run *run, bench_point *p, int32_t n_profiled)
{
    const calla_profile_entry *entries;
    int32_t n;
    calla_engine_get_profile(run->engine, &entries, &n);
    if (n > BENCH_MAX_PROFILE) n = BENCH_MAX_PROFILE;
    memcpy(p->profile.entries, entries, (size_t)n * sizeof *entries);
    p->profile.n_entries = n;
    p->profile.n_profiled = n_profiled;
}

/* ---- one frontier ---- */

static double prompt_operations(const bench_run *run, double n)
{
    const calla_engine_info *info = &run->report->engine;
    return n * (double)info->token_operations +
           n * (n + 1) / 2 * (double)info->attention_operations;
}

/* Marks the point if it would take too long. */
static bool takes_too_long(const bench_run *run, bench_point *p, double seconds)
{
    if (seconds > run->args->max_seconds)
        snprintf(p->skipped, sizeof p->skipped, "about %.*f s, --max-seconds is %g",
                 seconds < 10 ? 2 : 0, seconds, run->args->max_seconds);
    return bench_is_skipped(p);
}

static cli_disk_reads reads_since(cli_disk_reads before)
{
    cli_disk_reads now = cli_count_disk_reads();
    return (cli_disk_reads){now.major_faults - before.major_faults, now.bytes - before.bytes};
}

/* Leaves the last run's session as sequence 0. */
static calla_status measure_prefill(bench_run *run, bench_point *p)
{
    double seconds[BENCH_MAX_REPEATS];
    int32_t first = 0, token = 0;
    cli_disk_reads before = cli_count_disk_reads();
    snprintf(run->phase, sizeof run->phase, "prefill %d", p->tokens);
    if (run->args->profile) calla_engine_set_profile(run->engine, true);
    for (; p->n_runs < run->args->n_repeats; p->n_runs++) {
        calla_status status = run_prompt(run, 0, p->tokens, &seconds[p->n_runs], &token);
        if (status != CALLA_OK) return status;
        if (p->n_runs == 0) first = token;
        if (token != first)
            return fail(run, CALLA_ERR_NUMERIC, "two runs of the same prompt gave other tokens");
    }
    if (run->args->profile) take_profile(run, p, p->n_runs);
    calla_engine_set_profile(run->engine, false);
    p->reads = reads_since(before);
    p->rate = prompt_operations(run, p->tokens) / summarise(p, seconds, p->tokens);
    p->fraction = p->rate / run->report->rates.matrix_operations_per_second;
    run->operations_per_second = p->rate;
    digest_add(&p->digest, (uint32_t)token, 4);
    return CALLA_OK;
}

/* What one of the timed steps moved, from a count of later ones: their KV cache was longer by half
 * of both. */
static calla_status count_step_bytes(bench_run *run, bench_point *p, double *bytes)
{
    const bench_args *args = run->args;
    int32_t n = counted_steps(args);
    double seconds, sum = 0;
    /* A step under way ends with the profile's beginning; its token is the first. */
    calla_engine_set_profile(run->engine, true);
    calla_status status = run_steps(run, p->n_sequences, 1, NULL, &seconds);
    if (status != CALLA_OK) return status;
    calla_engine_set_profile(run->engine, true);
    status = run_steps(run, p->n_sequences, n, NULL, &seconds);
    take_profile(run, p, n);
    calla_engine_set_profile(run->engine, false);
    for (int32_t i = 0; i < p->profile.n_entries; i++) sum += (double)p->profile.entries[i].bytes;
    double further = 0.5 * (p->n_runs * args->n_steps + n) + 1;
    *bytes = sum / n - p->n_sequences * further * (double)run->report->engine.kv_bytes_per_token;
    return status;
}

/* `prompts`: how many sequences have their prompt already. */
static calla_status measure_decode(bench_run *run, bench_point *p, int32_t prompts)
{
    const bench_args *args = run->args;
    double seconds[BENCH_MAX_REPEATS], bytes;
    int32_t token;
    calla_status status;
    snprintf(run->phase, sizeof run->phase, "context %d", p->tokens);
    for (int32_t i = prompts; i < p->n_sequences; i++) {
        status = run_prompt(run, i, p->tokens, &seconds[0], &token);
        if (status != CALLA_OK) return status;
        run->operations_per_second = prompt_operations(run, p->tokens) / seconds[0];
    }
    snprintf(run->phase, sizeof run->phase, "decode at %d", p->tokens);
    cli_disk_reads before = cli_count_disk_reads();
    for (; p->n_runs < args->n_repeats; p->n_runs++) {
        status = run_steps(run, p->n_sequences, args->n_steps, p->n_runs == 0 ? &p->digest : NULL,
                           &seconds[p->n_runs]);
        if (status != CALLA_OK) return status;
    }
    p->reads = reads_since(before);
    status = count_step_bytes(run, p, &bytes);
    if (status != CALLA_OK) return status;
    run->step_seconds = summarise(p, seconds, args->n_steps * p->n_sequences) / args->n_steps;
    p->rate = bytes / run->step_seconds;
    p->fraction = p->rate / run->report->rates.read_bytes_per_second;
    return CALLA_OK;
}

/* Either point may be NULL. */
static calla_status measure_frontier(bench_run *run, bench_point *prefill, bench_point *decode)
{
    const bench_args *args = run->args;
    double prompt = 0, steps = run->step_seconds * args->n_steps * args->n_repeats;
    if (run->operations_per_second > 0)
        prompt = prompt_operations(run, prefill ? prefill->tokens : decode->tokens) /
                 run->operations_per_second;
    calla_status status = CALLA_OK;
    int32_t prompts = 0;
    if (prefill && !takes_too_long(run, prefill, prompt * args->n_repeats)) {
        status = measure_prefill(run, prefill);
        prompts = 1;
    }
    if (status == CALLA_OK && decode &&
        !takes_too_long(run, decode, prompt * (decode->n_sequences - prompts) + steps))
        status = measure_decode(run, decode, prompts);
    return status;
}

static calla_status measure_points(bench_run *run)
{
    bench_report *r = run->report;
    calla_status status = CALLA_OK;
    for (int32_t i = 0, k = 0; status == CALLA_OK && (i < r->n_prefill || k < r->n_decode);) {
        bench_point *p = i < r->n_prefill ? &r->prefill[i] : NULL;
        bench_point *d = k < r->n_decode ? &r->decode[k] : NULL;
        if (p && d && p->tokens < d->tokens) d = NULL;
        if (p && d && d->tokens < p->tokens) p = NULL;
        i += p != NULL, k += d != NULL;
        if (p && bench_is_skipped(p)) p = NULL;
        if (d && bench_is_skipped(d)) d = NULL;
        if (p || d) status = measure_frontier(run, p, d);
    }
    return status;
}

/* ---- the whole ---- */

/* Brings the smallest point's weights into memory and the processor up to speed. */
static calla_status warm_up(bench_run *run)
{
    const bench_report *r = run->report;
    int32_t n = WARM_UP_TOKENS, token;
    double seconds;
    if (r->n_prefill && r->prefill[0].tokens < n) n = r->prefill[0].tokens;
    if (r->n_decode && r->decode[0].tokens < n) n = r->decode[0].tokens;
    snprintf(run->phase, sizeof run->phase, "warming up");
    return run_prompt(run, 0, n, &seconds, &token);
}

static int64_t anonymous_bytes(void)
{
    char line[256];
    long long kib = 0;
    FILE *f = fopen("/proc/self/status", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "RssAnon: %lld", &kib) == 1) break;
    if (f) fclose(f);
    return kib * 1024;
}

/* What an interruption left out. */
static void skip_unmeasured(bench_report *r)
{
    bench_point *points[2] = {r->prefill, r->decode};
    int32_t counts[2] = {r->n_prefill, r->n_decode};
    for (int k = 0; k < 2; k++)
        for (int32_t i = 0; i < counts[k]; i++)
            if (!bench_is_skipped(&points[k][i]) && points[k][i].tokens_per_second <= 0)
                snprintf(points[k][i].skipped, sizeof points[k][i].skipped, "interrupted");
}

static void finish_report(bench_report *r)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    r->peak_resident_bytes = (int64_t)usage.ru_maxrss * 1024;
    r->reads = cli_count_disk_reads();
    r->anonymous_bytes = anonymous_bytes();
    for (int32_t i = 0; i < r->n_prefill; i++)
        if (!bench_is_skipped(&r->prefill[i])) digest_add(&r->digest, r->prefill[i].digest, 8);
    for (int32_t i = 0; i < r->n_decode; i++)
        if (!bench_is_skipped(&r->decode[i])) digest_add(&r->digest, r->decode[i].digest, 8);
}

calla_status bench_measure(const bench_args *args, bench_report *report, calla_error *err)
{
    *report = (bench_report){.args = args};
    bench_run run = {.args = args, .report = report, .err = err};
    run.control = (calla_control){cli_cancel_flag(), show_prefill, &run};
    add_points(report);
    calla_machine_get_info(&report->machine);
    calla_status status = open_engine(&run);
    if (status != CALLA_OK) return status;
    calla_engine_get_info(run.engine, &report->engine);
    run.tokens = malloc((size_t)report->engine.n_ctx * sizeof *run.tokens);
    if (!run.tokens) status = fail(&run, CALLA_ERR_MEMORY, "no memory for the prompt");
    cli_progress("measuring the machine", 0, 1);
    if (status == CALLA_OK) status = calla_engine_measure(run.engine, &report->rates, err);
    if (status == CALLA_OK) status = warm_up(&run);
    if (status == CALLA_OK) status = measure_points(&run);
    report->interrupted = status == CALLA_ERR_CANCELLED && report->rates.read_bytes_per_second > 0;
    if (report->interrupted) skip_unmeasured(report);
    if (status == CALLA_OK || report->interrupted) finish_report(report);
    for (int32_t i = 0; i < BENCH_MAX_SEQUENCES; i++) calla_session_free(run.sessions[i]);
    calla_engine_close(run.engine);
    free(run.tokens);
    return status;
}
