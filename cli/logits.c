/* calla logits: the logits of every position. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: calla logits -m DIR --ids FILE --out FILE [OPTIONS]\n"
    "\n"
    "Runs the model over token ids and writes the logits after each of them: f32, little-endian,\n"
    "[tokens][rows of the vocabulary, padding rows included].\n";

typedef struct logits_args {
    cli_engine_args engine;
    const char *ids, *out;
    bool decode;
} logits_args;

/* -1 = go on, else the exit code. */
static int parse_options(int argc, char **argv, logits_args *args)
{
    const cli_option own[] = {
        {0, "ids", "FILE", cli_text(&args->ids),
         "whitespace-separated decimal ids, - = standard input"},
        {'o', "out", "FILE", cli_text(&args->out),
         "where to write, - = standard output; a file gets its name only when it is complete"},
        {0, "decode", NULL, cli_true(&args->decode),
         "compute each position by a decode step instead of prefill"},
    };
    cli_option engine[CLI_N_ENGINE_OPTIONS];
    cli_engine_options(&args->engine, engine);
    const cli_syntax syntax = {.usage = usage,
                               .groups = {CLI_GROUP(NULL, own), CLI_GROUP("engine", engine)}};
    int code = cli_parse(argc, argv, &syntax, NULL, NULL);
    if (code >= 0) return code;
    if (!args->engine.model) return cli_usage_error("which model? -m DIR is missing");
    if (!args->ids) return cli_usage_error("which tokens? --ids FILE is missing");
    if (!args->out) return cli_usage_error("where to? --out FILE is missing");
    return -1;
}

typedef struct logits_sink {
    cli_output *out;
    int64_t n_vocab;
    bool failed;
} logits_sink;

static int write_rows(void *user, int64_t first, int64_t n_rows, const float *logits)
{
    logits_sink *sink = user;
    (void)first;
    sink->failed =
        !cli_output_write(sink->out, logits, (size_t)(n_rows * sink->n_vocab) * sizeof *logits);
    return sink->failed;
}

static void show_progress(void *user, int64_t done, int64_t total)
{
    (void)user;
    cli_progress("logits", done, total);
}

static calla_status decode_all(calla_session *session, const calla_tokens *ids, logits_sink *sink,
                               const calla_control *control, calla_error *err)
{
    calla_status status = CALLA_OK;
    float *row = malloc((size_t)sink->n_vocab * sizeof *row);
    if (!row) {
        *err = (calla_error){CALLA_ERR_MEMORY, "no memory for a row of logits"};
        return CALLA_ERR_MEMORY;
    }
    for (int64_t i = 0; i < ids->n && status == CALLA_OK && !sink->failed; i++) {
        status = calla_session_append(session, ids->ids[i], control, row, err);
        if (status == CALLA_OK) write_rows(sink, i, 1, row);
        show_progress(NULL, i + 1, ids->n);
    }
    free(row);
    return status;
}

static int run_model(const logits_args *args, const calla_tokens *ids, calla_session *session,
                     int64_t n_vocab)
{
    calla_error err;
    cli_output out;
    calla_control control = {.cancel = cli_cancel_flag(), .progress = show_progress};
    if (!cli_output_open(&out, args->out)) return EXIT_FAILED;
    logits_sink sink = {&out, n_vocab, false};
    calla_status status = args->decode ? decode_all(session, ids, &sink, &control, &err)
                                       : calla_session_score(session, ids->ids, ids->n, write_rows,
                                                             &sink, &control, &err);
    cli_progress_end();
    int code = EXIT_OK;
    if (sink.failed)
        code = out.file == stdout ? EXIT_OK : EXIT_FAILED; /* already reported */
    else if (status != CALLA_OK)
        code = cli_fail(&err);
    if (code == EXIT_OK && !sink.failed) return cli_output_commit(&out) ? EXIT_OK : EXIT_FAILED;
    cli_output_abort(&out);
    return code;
}

int cmd_logits(int argc, char **argv)
{
    logits_args args = {0};
    int code = parse_options(argc, argv, &args);
    if (code >= 0) return code;
    calla_error err;
    calla_engine *engine = NULL;
    calla_session *session = NULL;
    calla_engine_info info;
    calla_tokens ids;
    if (!cli_read_ids(args.ids, &ids)) return EXIT_FAILED;
    if (ids.n == 0) {
        calla_tokens_free(&ids);
        return cli_failf("%s has no ids", cli_input_name(args.ids));
    }
    code = EXIT_FAILED;
    calla_engine_options *options = &args.engine.options;
    options->snapshot_bytes = -1;
    if (options->n_ctx == 0 && ids.n <= INT32_MAX) options->n_ctx = (int32_t)ids.n;
    if (cli_engine_open(args.engine.model, options, &engine, &err) != CALLA_OK ||
        calla_session_create(engine, &session, &err) != CALLA_OK) {
        cli_fail(&err);
        goto done;
    }
    calla_engine_get_info(engine, &info);
    code = run_model(&args, &ids, session, info.n_vocab);
done:
    calla_session_free(session);
    calla_engine_close(engine);
    calla_tokens_free(&ids);
    return code;
}
