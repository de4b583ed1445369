/* calla: the program. One subcommand per file; this one finds it. */
#include "cli.h"

#include <stdio.h>
#include <string.h>

static const struct command {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"run", "one prompt to text", cmd_run},
    {"serve", "an OpenAI-compatible HTTP server", cmd_serve},
    {"bench", "prefill and decode against this machine's limits", cmd_bench},
    {"eval", "perplexity, and how two models or kernels differ", cmd_eval},
    {"logits", "logits of every position, as f32", cmd_logits},
    {"tokenize", "text to token ids and back", cmd_tokenize},
    {"quantize", "bf16 checkpoint to MLX affine 4-bit", cmd_quantize},
    {"synth", "a random checkpoint of a given shape", cmd_synth},
    {"tasks", "tasks for a running server: file, watch, follow up", cmd_tasks},
    {"audit", "what left for a cloud, and what was kept", cmd_audit},
    {"info", "what a checkpoint holds and what it needs", cmd_info},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static void print_help(FILE *out)
{
    fprintf(out, "usage: calla COMMAND [OPTIONS]\n\nRuns Qwen3.6-35B-A3B (MLX 4-bit checkpoint) "
                 "on this machine.\n\ncommands:\n");
    for (int i = 0; i < N_COMMANDS; i++)
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].summary);
    fprintf(out, "\n`calla COMMAND --help` explains a command. `calla --version` prints the "
                 "version.\n");
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_help(stdout);
        return cli_finish(EXIT_OK);
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) {
        printf("calla %s\n", calla_version());
        return cli_finish(EXIT_OK);
    }
    for (int i = 0; i < N_COMMANDS; i++) {
        if (strcmp(argv[1], commands[i].name) == 0) {
            cli_begin(commands[i].name);
            return cli_finish(commands[i].run(argc - 1, argv + 1));
        }
    }
    return cli_usage_error("unknown command '%s'", argv[1]);
}
