/* What the subcommands share. A subcommand is int cmd_NAME(int argc, char **argv): argv[0] is its
 * name, the result the exit code: 0 ok, 1 failed, 2 usage. */
#ifndef CALLA_CLI_H
#define CALLA_CLI_H

#include <calla/model.h>

#include <getopt.h>

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

int cmd_run(int argc, char **argv);
int cmd_eval(int argc, char **argv);
int cmd_logits(int argc, char **argv);
int cmd_tokenize(int argc, char **argv);
int cmd_quantize(int argc, char **argv);
int cmd_synth(int argc, char **argv);
int cmd_info(int argc, char **argv);

/* Called by main before a subcommand: its name for messages, and signal dispositions. */
void cli_begin(const char *command);

/* "calla NAME: message" to stderr; returns EXIT_FAILED (cli_fail) or EXIT_USAGE (cli_usage_error,
 * which adds the hint to --help). */
int cli_fail(const calla_error *err);
int cli_failf(const char *format, ...) __attribute__((format(printf, 1, 2)));
int cli_usage_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Whole numbers and reals with their range checked; false after printing a usage error that names
 * the option, the text and the range. */
bool cli_parse_int(const char *option, const char *text, int64_t low, int64_t high, int64_t *value);
bool cli_parse_float(const char *option, const char *text, double low, double high, double *value);

/* The options every command with an engine takes: -m/--model, --backend, --isa, --kv, --threads,
 * --ctx, --chunk. Put CLI_ENGINE_LONG_OPTIONS into the long option table and "m:" into the short
 * ones; hand unknown values to cli_engine_option: 1 = it was one of them, 0 = not, -1 = usage error
 * already printed. CLI_ENGINE_HELP is their help text. */
typedef struct cli_engine_args {
    const char *model;
    calla_engine_options options;
} cli_engine_args;
enum { CLI_OPT_BACKEND = 256, CLI_OPT_ISA, CLI_OPT_KV, CLI_OPT_THREADS, CLI_OPT_CTX, CLI_OPT_CHUNK,
       CLI_OPT_COMMAND /* the first value a command may use for its own */ };
#define CLI_ENGINE_LONG_OPTIONS                                                                    \
    {"model", required_argument, NULL, 'm'}, {"backend", required_argument, NULL, CLI_OPT_BACKEND}, \
        {"isa", required_argument, NULL, CLI_OPT_ISA}, {"kv", required_argument, NULL, CLI_OPT_KV}, \
        {"threads", required_argument, NULL, CLI_OPT_THREADS},                                     \
        {"ctx", required_argument, NULL, CLI_OPT_CTX},                                             \
        {"chunk", required_argument, NULL, CLI_OPT_CHUNK}
extern const char CLI_ENGINE_HELP[];
int cli_engine_option(int value, const char *argument, cli_engine_args *args);

/* A flag that becomes true at the first SIGINT or SIGTERM; a second one ends the program. */
const atomic_bool *cli_cancel_flag(void);
/* Exit code after CALLA_ERR_CANCELLED: 130 for SIGINT, 143 for SIGTERM. */
int cli_cancel_exit(void);

/* A file's whole contents, or standard input for "-"; false after printing why. *data malloc'ed,
 * NUL-terminated. */
bool cli_read_input(const char *path, char **data, size_t *n_bytes);

/* Writes to stdout; false when the reader has gone (EPIPE: leave quietly) or, after printing why,
 * when it failed. */
bool cli_write(const char *data, size_t n_bytes);
/* Flushes stdout at the end of a command and gives the exit code for what happened to it. */
int cli_finish(int code);

/* A progress line on stderr, only if stderr is a terminal, at most ten times a second. */
void cli_progress(const char *phase, int64_t done, int64_t total);
void cli_progress_end(void);

#endif
