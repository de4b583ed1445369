/* calla bench: prefill and decode apart, against what this machine could do at best. */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: calla bench (-m DIR | --synth 35b) [OPTIONS]\n\n"
    "Measures how fast this machine reads memory and multiplies, then prompts (prefill) and\n"
    "generated tokens (decode) at several lengths of context, and sets the one against the other.\n"
    "Prints a table; the digest of all tokens produced is the same for any number of threads.\n\n"
    "      --synth NAME      35b (19.5 GB) or tiny: a random model made in memory, no files\n"
    "      --seed N          of --synth [0]\n"
    "      --prefill LIST    prompt lengths, like 512,2048 or 2K\n"
    "      --decode LIST     contexts at which tokens are generated\n"
    "                        [without both lists: 256 to 128K of each, as memory allows]\n"
    "      --sequences N     that decode together, 1 to 8 [1]\n"
    "      --steps N         tokens generated in each of them per run [64]\n"
    "      --repeat N        runs, of which the median counts [3]\n"
    "      --max-seconds N   leave out points that would take longer [600]\n"
    "      --profile         split the time by operation\n"
    "      --csv, --json     other forms of output\n"
    "  -h, --help\n\n"
    "Decode moves, per step: the weights outside the experts once, each expert once that one of "
    "the\n"
    "sequences chose (counted in steps after the timed ones), and for each sequence its recurrent\n"
    "state twice and its KV cache once. Prefill computes, per prompt token: two operations a "
    "weight\n"
    "that the token meets (embedding and head aside), and the attention and recurrence.\n\n"
    "The engine (--ctx follows from the points if it is not given):\n";

/* ---- lists ---- */

static int ascending(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* "512,2K": whole numbers, K for times 1024; sorted, doubles removed. */
static bool parse_list(const char *option, const char *text, bench_list *list)
{
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
        if (n > 1 && (word[n - 1] == 'K' || word[n - 1] == 'k')) word[n - 1] = '\0', unit = 1024;
        if (!cli_parse_int(option, word, 1, ((int64_t)1 << 24) / unit, &value)) return false;
        if (list->n == BENCH_MAX_POINTS) {
            cli_usage_error("%s: more than %d values", option, BENCH_MAX_POINTS);
            return false;
        }
        list->tokens[list->n++] = (int32_t)(value * unit);
    }
    qsort(list->tokens, (size_t)list->n, sizeof list->tokens[0], ascending);
    int32_t n = 1;
    for (int32_t i = 1; i < list->n; i++)
        if (list->tokens[i] != list->tokens[n - 1]) list->tokens[n++] = list->tokens[i];
    list->n = n;
    return true;
}

static void set_default_points(bench_args *args)
{
    args->default_points = true;
    for (int32_t n = 256; n <= 128 * 1024; n *= 2)
        args->prefill.tokens[args->prefill.n++] = args->decode.tokens[args->decode.n++] = n;
}

/* ---- options ---- */

enum {
    OPT_SYNTH = CLI_OPT_COMMAND,
    OPT_SEED,
    OPT_PREFILL,
    OPT_DECODE,
    OPT_SEQUENCES,
    OPT_STEPS,
    OPT_REPEAT,
    OPT_MAX_SECONDS,
    OPT_PROFILE,
    OPT_CSV,
    OPT_JSON
};

static bool parse_count(const char *option, int64_t high, int32_t *count)
{
    int64_t n;
    if (!cli_parse_int(option, optarg, 1, high, &n)) return false;
    *count = (int32_t)n;
    return true;
}

/* The exit code of a usage error, or EXIT_OK. */
static int take_option(int c, char **argv, bench_args *args)
{
    bool good = true;
    switch (c) {
    case OPT_SYNTH:
        args->synth = optarg;
        break;
    case OPT_SEED:
        good = cli_parse_int("--seed", optarg, 0, INT64_MAX, &args->seed);
        break;
    case OPT_PREFILL:
        good = parse_list("--prefill", optarg, &args->prefill);
        break;
    case OPT_DECODE:
        good = parse_list("--decode", optarg, &args->decode);
        break;
    case OPT_SEQUENCES:
        good = parse_count("--sequences", BENCH_MAX_SEQUENCES, &args->n_sequences);
        break;
    case OPT_STEPS:
        good = parse_count("--steps", 100000, &args->n_steps);
        break;
    case OPT_REPEAT:
        good = parse_count("--repeat", BENCH_MAX_REPEATS, &args->n_repeats);
        break;
    case OPT_MAX_SECONDS:
        good = cli_parse_float("--max-seconds", optarg, 0, 1e9, &args->max_seconds);
        break;
    case OPT_PROFILE:
        args->profile = true;
        break;
    case OPT_CSV:
        args->csv = true;
        break;
    case OPT_JSON:
        args->json = true;
        break;
    default:
        switch (cli_engine_option(c, optarg, &args->engine)) {
        case 0:
            return cli_option_error(c, argv);
        case -1:
            good = false;
        }
    }
    return good ? EXIT_OK : EXIT_USAGE;
}

static int check_args(bench_args *args)
{
    if (!args->engine.model == !args->synth)
        return cli_usage_error("give one of -m DIR and --synth NAME");
    if (args->csv && args->json) return cli_usage_error("give one of --csv and --json");
    if (args->prefill.n + args->decode.n == 0) set_default_points(args);
    int64_t need = bench_context(args), ctx = args->engine.options.n_ctx;
    if (ctx && ctx < need && !args->default_points)
        return cli_usage_error("--ctx: these points need %lld tokens, not %lld", (long long)need,
                               (long long)ctx);
    return -1;
}

/* -1 = go on, else the exit code. */
static int parse_options(int argc, char **argv, bench_args *args)
{
    static const struct option options[] = {
        CLI_ENGINE_LONG_OPTIONS,
        {"synth", required_argument, NULL, OPT_SYNTH},
        {"seed", required_argument, NULL, OPT_SEED},
        {"prefill", required_argument, NULL, OPT_PREFILL},
        {"decode", required_argument, NULL, OPT_DECODE},
        {"sequences", required_argument, NULL, OPT_SEQUENCES},
        {"steps", required_argument, NULL, OPT_STEPS},
        {"repeat", required_argument, NULL, OPT_REPEAT},
        {"max-seconds", required_argument, NULL, OPT_MAX_SECONDS},
        {"profile", no_argument, NULL, OPT_PROFILE},
        {"csv", no_argument, NULL, OPT_CSV},
        {"json", no_argument, NULL, OPT_JSON},
        {"help", no_argument, NULL, 'h'},
        {0}};
    int c;
    opterr = 0;
    while ((c = getopt_long(argc, argv, ":m:h", options, NULL)) != -1) {
        if (c == 'h') {
            printf("%s%s", help, CLI_ENGINE_HELP);
            return EXIT_OK;
        }
        int code = take_option(c, argv, args);
        if (code != EXIT_OK) return code;
    }
    if (optind < argc) return cli_usage_error("unexpected argument '%s'", argv[optind]);
    return check_args(args);
}

/* ---- the command ---- */

/* Into memory first, so that one write tells whether it arrived. */
static char *report_text(const bench_report *report)
{
    if (report->args->json) return bench_report_json(report);
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    if (!out) return NULL;
    if (report->args->csv)
        bench_print_csv(out, report);
    else
        bench_print_table(out, report);
    if (fclose(out) == 0) return text;
    free(text);
    return NULL;
}

int cmd_bench(int argc, char **argv)
{
    bench_args args = {.n_sequences = 1, .n_steps = 64, .n_repeats = 3, .max_seconds = 600};
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
