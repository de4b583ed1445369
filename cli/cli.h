/* What the subcommands share. A subcommand is int cmd_NAME(int argc, char **argv): argv[0] is its
 * name, the result the exit code: 0 ok, 1 failed, 2 usage. */
#ifndef CALLA_CLI_H
#define CALLA_CLI_H

#include <calla/model.h>

#include <getopt.h>
#include <stdio.h>

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

int cmd_run(int argc, char **argv);
int cmd_bench(int argc, char **argv);
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

/* Call after getopt_long gave '?' or ':' (set opterr to 0 and begin the short options with ':' so
 * that it prints nothing itself): prints which argument is wrong, returns EXIT_USAGE. */
int cli_option_error(int result, char **argv);

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
enum {
    CLI_OPT_BACKEND = 256,
    CLI_OPT_ISA,
    CLI_OPT_KV,
    CLI_OPT_THREADS,
    CLI_OPT_CTX,
    CLI_OPT_CHUNK,
    CLI_OPT_COMMAND /* the first value a command may use for its own */
};
#define CLI_ENGINE_LONG_OPTIONS                                                                    \
    {"model", required_argument, NULL, 'm'},                                                       \
        {"backend", required_argument, NULL, CLI_OPT_BACKEND},                                     \
        {"isa", required_argument, NULL, CLI_OPT_ISA},                                             \
        {"kv", required_argument, NULL, CLI_OPT_KV},                                               \
        {"threads", required_argument, NULL, CLI_OPT_THREADS},                                     \
        {"ctx", required_argument, NULL, CLI_OPT_CTX},                                             \
    {                                                                                              \
        "chunk", required_argument, NULL, CLI_OPT_CHUNK                                            \
    }
extern const char CLI_ENGINE_HELP[];
int cli_engine_option(int value, const char *argument, cli_engine_args *args);

/* The sampling options of commands that generate text. Put CLI_SAMPLING_LONG_OPTIONS into the long
 * option table and hand unknown values to cli_sampling_option (results as cli_engine_option's);
 * cli_sampling_resolve then gives the parameters: what was asked for over the model's defaults, and
 * a random seed where none was given. CLI_SAMPLING_HELP is their help text. */
typedef struct cli_sampling_args {
    bool greedy, has_seed;
    int64_t seed, top_k; /* top_k -1 = not given */
    /* NAN = not given */
    double temperature, top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty;
    calla_logit_bias *logit_bias; /* [n_logit_bias] malloc'ed */
    int32_t n_logit_bias;
} cli_sampling_args;
enum {
    CLI_OPT_GREEDY = 512,
    CLI_OPT_TEMPERATURE,
    CLI_OPT_TOP_K,
    CLI_OPT_TOP_P,
    CLI_OPT_MIN_P,
    CLI_OPT_PRESENCE,
    CLI_OPT_FREQUENCY,
    CLI_OPT_REPETITION,
    CLI_OPT_SEED,
    CLI_OPT_BIAS
};
#define CLI_SAMPLING_LONG_OPTIONS                                                                  \
    {"greedy", no_argument, NULL, CLI_OPT_GREEDY},                                                 \
        {"temp", required_argument, NULL, CLI_OPT_TEMPERATURE},                                    \
        {"temperature", required_argument, NULL, CLI_OPT_TEMPERATURE},                             \
        {"top-k", required_argument, NULL, CLI_OPT_TOP_K},                                         \
        {"top-p", required_argument, NULL, CLI_OPT_TOP_P},                                         \
        {"min-p", required_argument, NULL, CLI_OPT_MIN_P},                                         \
        {"presence-penalty", required_argument, NULL, CLI_OPT_PRESENCE},                           \
        {"frequency-penalty", required_argument, NULL, CLI_OPT_FREQUENCY},                         \
        {"repetition-penalty", required_argument, NULL, CLI_OPT_REPETITION},                       \
        {"seed", required_argument, NULL, CLI_OPT_SEED},                                           \
    {                                                                                              \
        "logit-bias", required_argument, NULL, CLI_OPT_BIAS                                        \
    }
extern const char CLI_SAMPLING_HELP[];
void cli_sampling_init(cli_sampling_args *args);
void cli_sampling_deinit(cli_sampling_args *args);
int cli_sampling_option(int value, const char *argument, cli_sampling_args *args);
/* The logit bias is borrowed from args. */
calla_status cli_sampling_resolve(const cli_sampling_args *args, const char *model,
                                  calla_sampling *sampling, calla_error *err);

/* A flag that becomes true at the first SIGINT or SIGTERM; a second one ends the program. */
const atomic_bool *cli_cancel_flag(void);
/* Exit code after CALLA_ERR_CANCELLED: 130 for SIGINT, 143 for SIGTERM. */
int cli_cancel_exit(void);

/* A file's whole contents, or standard input for "-"; false after printing why. *data malloc'ed,
 * NUL-terminated. */
bool cli_read_input(const char *path, char **data, size_t *n_bytes);

/* Whitespace-separated decimal ids from a file or "-"; false after printing why. Free with
 * calla_tokens_free. */
bool cli_read_ids(const char *path, calla_tokens *tokens);

/* Output to a file: under a temporary name beside it until cli_output_commit, so that nothing
 * half-written has the final name; "-" and what is not a regular file are written directly. False
 * after printing why; for "-" also, silently, when the reader has gone. */
typedef struct cli_output {
    const char *path;
    char *temporary; /* NULL when written directly */
    FILE *file;
} cli_output;
bool cli_output_open(cli_output *out, const char *path);
bool cli_output_write(cli_output *out, const void *data, size_t n_bytes);
bool cli_output_commit(cli_output *out);
void cli_output_abort(cli_output *out);

/* Writes to stdout; false when the reader has gone (EPIPE: leave quietly) or, after printing why,
 * when it failed. */
bool cli_write(const char *data, size_t n_bytes);
/* Flushes stdout at the end of a command and gives the exit code for what happened to it. */
int cli_finish(int code);

/* A progress line on stderr, only if stderr is a terminal, at most ten times a second. */
void cli_progress(const char *phase, int64_t done, int64_t total);
void cli_progress_end(void);

#endif
