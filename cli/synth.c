/* calla synth: a random checkpoint of a given shape. */
#include "cli.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static const char help[] =
    "usage: calla synth --shape NAME [OPTIONS] DST\n\n"
    "Writes a random checkpoint of the given shape into directory DST, with a made-up tokenizer:\n"
    "valid in every respect, for tests and measurements. The same options give the same bytes.\n\n"
    "      --shape NAME      35b (19.5 GB) or tiny (the shape of models/tiny)\n"
    "      --layout NAME     mlx4 (4-bit) or bf16 (35b: 69 GB) [mlx4]\n"
    "      --layers N        another number of layers, 1 to 256 [the shape's]\n"
    "      --seed N          [0]\n"
    "      --shard-size N    largest size of a weight file in MB [5369]\n"
    "  -f, --overwrite       replace the checkpoint in DST; other files there stay\n"
    "  -h, --help\n";

static void show_progress(void *user, int64_t done, int64_t total)
{
    (void)user;
    cli_progress("writing", done, total);
}

enum { OPT_SHAPE = CLI_OPT_COMMAND, OPT_LAYOUT, OPT_LAYERS, OPT_SEED, OPT_SHARD };

/* One option; false after printing a usage error. */
static bool take_option(int c, char **argv, calla_synth_options *synth, calla_write_options *write)
{
    int64_t n;
    switch (c) {
    case OPT_SHAPE:
        synth->shape = optarg;
        return true;
    case OPT_LAYOUT:
        if (strcmp(optarg, "mlx4") == 0)
            synth->layout = CALLA_LAYOUT_MLX4;
        else if (strcmp(optarg, "bf16") == 0)
            synth->layout = CALLA_LAYOUT_BF16;
        else {
            cli_usage_error("--layout: '%s' is not mlx4 or bf16", optarg);
            return false;
        }
        return true;
    case OPT_LAYERS:
        if (!cli_parse_int("--layers", optarg, 1, 256, &n)) return false;
        synth->n_layers = (int32_t)n;
        return true;
    case OPT_SEED:
        if (!cli_parse_int("--seed", optarg, 0, INT64_MAX, &n)) return false;
        synth->seed = (uint64_t)n;
        return true;
    case OPT_SHARD:
        if (!cli_parse_int("--shard-size", optarg, 1, 1000000, &n)) return false;
        write->max_shard_bytes = n * 1000000;
        return true;
    case 'f':
        write->overwrite = true;
        return true;
    default:
        cli_option_error(c, argv);
        return false;
    }
}

int cmd_synth(int argc, char **argv)
{
    static const struct option options[] = {{"shape", required_argument, NULL, OPT_SHAPE},
                                            {"layout", required_argument, NULL, OPT_LAYOUT},
                                            {"layers", required_argument, NULL, OPT_LAYERS},
                                            {"seed", required_argument, NULL, OPT_SEED},
                                            {"shard-size", required_argument, NULL, OPT_SHARD},
                                            {"overwrite", no_argument, NULL, 'f'},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    opterr = 0;
    calla_write_options write = {.progress = show_progress, .cancel = cli_cancel_flag()};
    calla_synth_options synth = {0};
    for (int c; (c = getopt_long(argc, argv, ":fh", options, NULL)) != -1;) {
        if (c == 'h') {
            fputs(help, stdout);
            return EXIT_OK;
        }
        if (!take_option(c, argv, &synth, &write)) return EXIT_USAGE;
    }
    if (!synth.shape) return cli_usage_error("--shape is needed: 35b or tiny");
    if (argc - optind != 1)
        return cli_usage_error("one directory is needed, DST (%d given)", argc - optind);
    signal(SIGXFSZ, SIG_IGN); /* a file size limit then fails the write, which is reported */
    calla_error err;
    calla_status status = calla_synth(argv[optind], &synth, &write, &err);
    cli_progress_end();
    return status == CALLA_OK ? EXIT_OK : cli_fail(&err);
}
