/* calla quantize: bf16 checkpoint to MLX affine 4-bit. */
#include "cli.h"

#include <signal.h>
#include <stdio.h>

static const char help[] =
    "usage: calla quantize [OPTIONS] SRC DST\n\n"
    "Quantizes the Hugging Face bf16 checkpoint in directory SRC to MLX affine 4-bit (routers "
    "8-bit)\n"
    "in directory DST, with tokenizer files and configuration: what mlx-lm's conversion makes.\n"
    "The files of DST appear when all of them are complete.\n\n"
    "  -f, --overwrite       replace the checkpoint in DST; other files there stay\n"
    "      --shard-size N    largest size of a weight file in MB [5369]\n"
    "  -h, --help\n";

static void show_progress(void *user, int64_t done, int64_t total)
{
    (void)user;
    cli_progress("quantizing", done, total);
}

int cmd_quantize(int argc, char **argv)
{
    enum { OPT_SHARD = CLI_OPT_COMMAND };
    static const struct option options[] = {{"overwrite", no_argument, NULL, 'f'},
                                            {"shard-size", required_argument, NULL, OPT_SHARD},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    opterr = 0;
    calla_write_options write = {.progress = show_progress, .cancel = cli_cancel_flag()};
    int64_t n;
    for (int c; (c = getopt_long(argc, argv, ":fh", options, NULL)) != -1;) {
        switch (c) {
        case 'f':
            write.overwrite = true;
            break;
        case OPT_SHARD:
            if (!cli_parse_int("--shard-size", optarg, 1, 1000000, &n)) return EXIT_USAGE;
            write.max_shard_bytes = n * 1000000;
            break;
        case 'h':
            fputs(help, stdout);
            return EXIT_OK;
        default:
            return cli_option_error(c, argv);
        }
    }
    if (argc - optind != 2)
        return cli_usage_error("two directories are needed, SRC and DST (%d given)", argc - optind);
    signal(SIGXFSZ, SIG_IGN); /* a file size limit then fails the write, which is reported */
    calla_error err;
    calla_status status = calla_quantize(argv[optind], argv[optind + 1], &write, &err);
    cli_progress_end();
    return status == CALLA_OK ? EXIT_OK : cli_fail(&err);
}
