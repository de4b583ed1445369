/* What the subcommands share. A subcommand is int cmd_NAME(int argc, char **argv): argv[0] is its
 * name, the result the exit code: 0 ok, 1 failed, 2 usage. */
#ifndef CALLA_CLI_H
#define CALLA_CLI_H

#include "hybrid/hybrid.h"
#include "options.h"

#include <calla/model.h>

#include <stdio.h>

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

int cmd_run(int argc, char **argv);
int cmd_serve(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_eval(int argc, char **argv);
int cmd_logits(int argc, char **argv);
int cmd_tokenize(int argc, char **argv);
int cmd_quantize(int argc, char **argv);
int cmd_synth(int argc, char **argv);
int cmd_info(int argc, char **argv);
int cmd_audit(int argc, char **argv);
int cmd_tasks(int argc, char **argv);

/* Called by main before a subcommand: its name for messages, and signal dispositions. */
void cli_begin(const char *command);

/* Makes a SIGBUS end the program with a line naming the file that could not be read. `command` is
 * borrowed for good. Called by cli_begin. */
void cli_report_bus_errors(const char *command);

/* "calla NAME: message" to stderr, control characters in it as '?'; returns EXIT_FAILED (cli_fail)
 * or EXIT_USAGE (cli_usage_error, which adds the hint to --help). */
int cli_fail(const calla_error *err);
int cli_failf(const char *format, ...) __attribute__((format(printf, 1, 2)));
int cli_usage_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The options every command with an engine takes: -m/--model, --backend, --isa, --kv, --threads,
 * --no-pin, --load, --warm-up, --ctx, --chunk, for a group titled "engine". */
typedef struct cli_engine_args {
    const char *model; /* NULL = not given */
    calla_engine_options options;
} cli_engine_args;
enum { CLI_N_ENGINE_OPTIONS = 10 };
void cli_engine_options(cli_engine_args *args, cli_option options[CLI_N_ENGINE_OPTIONS]);
/* Has an engine's opening shown as progress (cli_progress_end is the caller's) and ended by the
 * first signal. */
void cli_watch_opening(calla_engine_options *options);
/* calla_engine_open so watched. */
calla_status cli_engine_open(const char *dir, const calla_engine_options *options,
                             calla_engine **engine, calla_error *err);
/* What this process has waited for or asked of disks so far: page faults, and bytes in all (0 where
 * the system does not tell). */
typedef struct cli_disk_reads {
    int64_t major_faults, bytes;
} cli_disk_reads;
cli_disk_reads cli_count_disk_reads(void);

/* The sampling options of commands that generate text; init sets "not given". cli_sampling_resolve
 * then gives the parameters: what was asked for over the model's defaults, and a random seed where
 * none was given. */
typedef struct cli_sampling_args {
    bool greedy;
    int64_t seed;  /* -1 = not given */
    int32_t top_k; /* the same */
    /* NAN = not given */
    double temperature, top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty;
    calla_logit_bias *logit_bias; /* [n_logit_bias] malloc'ed */
    int32_t n_logit_bias;
} cli_sampling_args;
enum { CLI_N_SAMPLING_OPTIONS = 11 };
void cli_sampling_init(cli_sampling_args *args);
void cli_sampling_deinit(cli_sampling_args *args);
void cli_sampling_options(cli_sampling_args *args, cli_option options[CLI_N_SAMPLING_OPTIONS]);
/* The logit bias is borrowed from args. */
calla_status cli_sampling_resolve(const cli_sampling_args *args, const char *model,
                                  calla_sampling *sampling, calla_error *err);

/* The options of commands that write a checkpoint to a directory DST: -f/--overwrite, --shard-size;
 * cli_writing_begin gives what the library takes, cancelled by signals, and prepares the process.
 */
typedef struct cli_writing_args {
    bool overwrite;
    int32_t shard_megabytes; /* 0 = not given */
} cli_writing_args;
enum { CLI_N_WRITING_OPTIONS = 2 };
void cli_writing_options(cli_writing_args *args, cli_option options[CLI_N_WRITING_OPTIONS]);
calla_write_options cli_writing_begin(const cli_writing_args *args,
                                      void (*progress)(void *user, int64_t done, int64_t total));

/* The options of commands that may ask a cloud: --cloud-url, --cloud-model, --cloud-key-env,
 * --cloud-ca, --policy, --audit. cli_cloud_check: -1 = they fit together, else the exit code. */
enum { CLI_N_CLOUD_OPTIONS = 6 };
void cli_cloud_options(hybrid_options *o, cli_option options[CLI_N_CLOUD_OPTIONS]);
int cli_cloud_check(const hybrid_options *o);

/* A flag that becomes true at the first SIGINT or SIGTERM; a second one ends the program. */
const atomic_bool *cli_cancel_flag(void);
/* Exit code after CALLA_ERR_CANCELLED: 130 for SIGINT, 143 for SIGTERM. */
int cli_cancel_exit(void);

/* What "-" is called in messages; any other path as it is. */
const char *cli_input_name(const char *path);
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
