/* calla bench: prefill and decode apart, against what this machine could do at best. */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: calla bench (-m DIR | --synth 35b) [OPTIONS]\n"
    "\n"
    "Measures how fast this machine reads memory and multiplies, then prompts (prefill) and\n"
    "generated tokens (decode) at several lengths of context, and sets the one against the other.\n"
    "Prints a table; the digest of all tokens produced is the same for any number of threads.\n";
static const char notes[] =
    "Decode moves, per step: the weights outside the experts once, each expert once that one of\n"
    "the sequences chose (counted in steps after the timed ones), and for each sequence its\n"
    "recurrent state (read; written too, on the CPU at every eighth token) and its KV cache\n"
    "once. Prefill computes, per prompt token: two operations a weight that the token meets\n"
    "(embedding and head aside), and the attention and recurrence.\n";

/* ---- lists ---- */

static int ascending(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* "512,2K": whole numbers, K for times 1024 where they may be that large; sorted, doubles removed.
 */
static bool take_list(void *where, const char *option, const char *text)
{
    bench_list *list = where;
    char copy[512], *rest = copy, *word;
    if (strlen(text) >= sizeof copy) {
        cli_usage_error("%s: the list is too long", option);
        return false;
    }
    strcpy(copy, text);
    list->n = 0;
    while ((word = strsep(&rest, ","))) {
        int64_t value, unit = 1;
        size_t n = strlen(word);
        if (list->most >= 1024 && n > 1 && (word[n - 1] == 'K' || word[n - 1] == 'k'))
            word[n - 1] = '\0', unit = 1024;
        if (!cli_parse_int(option, word, 1, list->most / unit, &value)) return false;
        if (list->n == BENCH_MAX_POINTS) {
            cli_usage_error("%s: more than %d values", option, BENCH_MAX_POINTS);
            return false;
        }
        list->values[list->n++] = (int32_t)(value * unit);
    }
    qsort(list->values, (size_t)list->n, sizeof list->values[0], ascending);
    int32_t n = 1;
    for (int32_t i = 1; i < list->n; i++)
        if (list->values[i] != list->values[n - 1]) list->values[n++] = list->values[i];
    list->n = n;
    return true;
}

static void set_default_points(bench_args *args)
{
    args->default_points = true;
    for (int32_t n = 256; n <= 128 * 1024; n *= 2)
        args->prefill.values[args->prefill.n++] = args->decode.values[args->decode.n++] = n;
}

/* ---- options ---- */

static int check_args(bench_args *args)
{
    if (!args->engine.model == !args->synth)
        return cli_usage_error("give one of -m DIR and --synth NAME");
    if (args->seed >= 0 && !args->synth) return cli_usage_error("--seed needs --synth");
    if (args->seed < 0) args->seed = 0;
    if (args->csv && args->json) return cli_usage_error("give one of --csv and --json");
    if (args->prefill.n + args->decode.n == 0) set_default_points(args);
    int64_t need = bench_context(args), ctx = args->engine.options.n_ctx;
    if (ctx && ctx < need && !args->default_points)
        return cli_usage_error("--ctx: these points need %lld tokens, not %lld", (long long)need,
                               (long long)ctx);
    return -1;
}

/* -1 = go on, else the exit code. */
static int parse_options(int argc, char **argv, bench_args *a)
{
    const cli_option own[] = {
        {0, "synth", "NAME", cli_text(&a->synth),
         "35b (19.5 GB) or tiny: a random model made in memory, no files"},
        {0, "seed", "N", cli_int64(&a->seed, 0, INT64_MAX), "of --synth [0]"},
        {0, "prefill", "LIST", cli_other(take_list, &a->prefill),
         "prompt lengths, like 512,2048 or 2K"},
        {0, "decode", "LIST", cli_other(take_list, &a->decode),
         "contexts at which tokens are generated [without both lists: 256 to 128K of each, as "
         "memory allows]"},
        {0, "sequences", "LIST", cli_other(take_list, &a->sequences),
         "how many decode together, 1 to 8; each context is run with each [1]"},
        {0, "steps", "N", cli_int32(&a->n_steps, 1, 100000),
         "tokens generated in each of them per run [64]"},
        {0, "repeat", "N", cli_int32(&a->n_repeats, 1, BENCH_MAX_REPEATS),
         "runs, of which the median counts [3]"},
        {0, "max-seconds", "N", cli_real(&a->max_seconds, 0, 1e9),
         "leave out points that would take longer [600]"},
        {0, "profile", NULL, cli_true(&a->profile), "split the time by operation"},
        {0, "csv", NULL, cli_true(&a->csv), "comma-separated values instead of the table"},
        {0, "json", NULL, cli_true(&a->json), "one JSON object instead"},
    };
    cli_option engine[CLI_N_ENGINE_OPTIONS];
    cli_engine_options(&a->engine, engine);
    const cli_syntax syntax = {
        .usage = usage,
        .notes = notes,
        .groups = {CLI_GROUP(NULL, own),
                   CLI_GROUP("engine (--ctx follows from the points if it is not given)", engine)}};
    int code = cli_parse(argc, argv, &syntax, NULL, NULL);
    return code >= 0 ? code : check_args(a);
}

/* ---- the command ---- */

/* Into memory first, so that one write tells whether it arrived. */
static char *report_text(const bench_report *report)
{
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    if (!out) return NULL;
    bool complete = true;
    if (report->args->json) {
        char *json = bench_report_json(report);
        complete = json && fprintf(out, "%s\n", json) > 0;
        free(json);
    } else if (report->args->csv) {
        bench_print_csv(out, report);
    } else {
        bench_print_table(out, report);
    }
    if (fclose(out) == 0 && complete) return text;
    free(text);
    return NULL;
}

int cmd_bench(int argc, char **argv)
{
    bench_args args = {.prefill = {.most = 1 << 24},
                       .decode = {.most = 1 << 24},
                       .sequences = {.values = {1}, .n = 1, .most = BENCH_MAX_SEQUENCES},
                       .n_steps = 64,
                       .n_repeats = 3,
                       .max_seconds = 600,
                       .seed = -1};
    int code = parse_options(argc, argv, &args);
    if (code >= 0) return code;
    calla_error err;
    bench_report *report = calloc(1, sizeof *report);
    if (!report) return cli_failf("no memory for the report");
    calla_status status = bench_measure(&args, report, &err);
    cli_progress_end();
    code = status == CALLA_OK ? EXIT_OK : cli_fail(&err);
    if (status == CALLA_OK || report->interrupted) {
        char *text = report_text(report);
        if (!text) code = cli_failf("no memory for the report");
        if (text) cli_write(text, strlen(text));
        free(text);
    }
    free(report);
    return code;
}
