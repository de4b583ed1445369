/* calla synth: a random checkpoint of a given shape. */
#include "cli.h"

#include <string.h>

static const char usage[] =
    "usage: calla synth --shape NAME [OPTIONS] DST\n"
    "\n"
    "Writes a random checkpoint of the given shape into directory DST, with a made-up tokenizer:\n"
    "valid in every respect, for tests and measurements. The same options give the same bytes.\n";

static void show_progress(void *user, int64_t done, int64_t total)
{
    (void)user;
    cli_progress("writing", done, total);
}

static bool take_layout(void *where, const char *option, const char *text)
{
    calla_layout *layout = where;
    if (strcmp(text, "mlx4") == 0)
        *layout = CALLA_LAYOUT_MLX4;
    else if (strcmp(text, "bf16") == 0)
        *layout = CALLA_LAYOUT_BF16;
    else {
        cli_usage_error("%s: '%s' is not mlx4 or bf16", option, text);
        return false;
    }
    return true;
}

int cmd_synth(int argc, char **argv)
{
    calla_synth_options synth = {0};
    cli_writing_args args = {0};
    int64_t seed = 0;
    const cli_option own[] = {
        {0, "shape", "NAME", cli_text(&synth.shape),
         "35b (19.5 GB) or tiny (the shape of models/tiny)"},
        {0, "layout", "NAME", cli_other(take_layout, &synth.layout),
         "mlx4 (4-bit) or bf16 (35b: 69 GB) [mlx4]"},
        {0, "layers", "N", cli_int32(&synth.n_layers, 1, 256),
         "another number of layers, 1 to 256 [the shape's]"},
        {0, "seed", "N", cli_int64(&seed, 0, INT64_MAX), "[0]"},
    };
    cli_option writing[CLI_N_WRITING_OPTIONS];
    cli_writing_options(&args, writing);
    const cli_syntax syntax = {.usage = usage,
                               .groups = {CLI_GROUP(NULL, own), CLI_GROUP("writing", writing)},
                               .most_operands = argc};
    char **dirs;
    int n;
    int code = cli_parse(argc, argv, &syntax, &dirs, &n);
    if (code >= 0) return code;
    if (!synth.shape) return cli_usage_error("--shape is needed: 35b or tiny");
    if (n != 1) return cli_usage_error("one directory is needed, DST (%d given)", n);
    synth.seed = (uint64_t)seed;
    calla_write_options write = cli_writing_begin(&args, show_progress);
    calla_error err;
    calla_status status = calla_synth(dirs[0], &synth, &write, &err);
    cli_progress_end();
    return status == CALLA_OK ? EXIT_OK : cli_fail(&err);
}
