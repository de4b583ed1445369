/* calla quantize: bf16 checkpoint to MLX affine 4-bit. */
#include "cli.h"

static const char usage[] =
    "usage: calla quantize [OPTIONS] SRC DST\n"
    "\n"
    "Quantizes the Hugging Face bf16 checkpoint in directory SRC to MLX affine 4-bit (routers\n"
    "8-bit) in directory DST, with tokenizer files and configuration: what mlx-lm's conversion\n"
    "makes. The files of DST appear when all of them are complete.\n";

static void show_progress(void *user, int64_t done, int64_t total)
{
    (void)user;
    cli_progress("quantizing", done, total);
}

int cmd_quantize(int argc, char **argv)
{
    cli_writing_args args = {0};
    cli_option own[CLI_N_WRITING_OPTIONS];
    cli_writing_options(&args, own);
    const cli_syntax syntax = {
        .usage = usage, .groups = {CLI_GROUP(NULL, own)}, .most_operands = argc};
    char **dirs;
    int n;
    int code = cli_parse(argc, argv, &syntax, &dirs, &n);
    if (code >= 0) return code;
    if (n != 2) return cli_usage_error("two directories are needed, SRC and DST (%d given)", n);
    calla_write_options write = cli_writing_begin(&args, show_progress);
    calla_error err;
    calla_status status = calla_quantize(dirs[0], dirs[1], &write, &err);
    cli_progress_end();
    return status == CALLA_OK ? EXIT_OK : cli_fail(&err);
}
