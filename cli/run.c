/* calla run: one prompt to text. */
#include "run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char usage[] =
    "usage: calla run -m DIR (-p TEXT | -f FILE | --messages FILE) [OPTIONS]\n"
    "\n"
    "Prints the model's answer to a prompt. The model's reasoning is shown, dimmed, only when\n"
    "standard output is a terminal; tool calls are printed as one line of JSON each.\n";

/* ---- options ---- */

static bool take_stop(void *where, const char *option, const char *text)
{
    run_args *args = where;
    if (!*text)
        cli_usage_error("%s: the text is empty", option);
    else if (args->n_stops == RUN_MAX_STOPS)
        cli_usage_error("%s: more than %d texts", option, RUN_MAX_STOPS);
    else {
        args->stops[args->n_stops++] = text;
        return true;
    }
    return false;
}

static int check_options(const run_args *args)
{
    int n_prompts = (args->text != NULL) + (args->file != NULL) + (args->messages != NULL);
    if (!args->engine.model) return cli_usage_error("which model? -m DIR is missing");
    if (n_prompts != 1) return cli_usage_error("give one of -p TEXT, -f FILE and --messages FILE");
    if (args->raw && (args->messages || args->system || args->tools || args->no_think))
        return cli_usage_error("--raw has no use for messages, system text, tools or --no-think");
    if (args->messages && args->system)
        return cli_usage_error("--system goes with -p or -f; put it into the messages");
    if (args->cloud.url && (args->raw || args->json || args->stats || args->allow_control))
        return cli_usage_error("--cloud-url goes with messages: not with --raw, --json, --stats or "
                               "--allow-control-tokens");
    if (args->n_logprobs >= 0 && !args->json) return cli_usage_error("--logprobs needs --json");
    if (args->sampling.greedy && args->sampling.temperature > 0)
        return cli_usage_error("--greedy and --temp exclude each other");
    const char *inputs[] = {args->text, args->file, args->messages, args->tools};
    int n_standard = 0;
    for (int i = 0; i < 4; i++) n_standard += inputs[i] && strcmp(inputs[i], "-") == 0;
    if (n_standard > 1) return cli_usage_error("standard input can be only one of the inputs");
    return cli_cloud_check(&args->cloud);
}

/* -1 = go on, else the exit code. */
static int parse_options(int argc, char **argv, run_args *a)
{
    const cli_option own[] = {
        {'p', "prompt", "TEXT", cli_text(&a->text), "the user's message, - = standard input"},
        {'f', "file", "FILE", cli_text(&a->file),
         "the user's message from a file, - = standard input"},
        {0, "messages", "FILE", cli_text(&a->messages),
         "a conversation: JSON array of {\"role\", \"content\" ...}"},
        {0, "system", "TEXT", cli_text(&a->system), "system message before -p or -f"},
        {0, "tools", "FILE", cli_text(&a->tools), "JSON array of tools the model may call"},
        {0, "no-think", NULL, cli_true(&a->no_think), "answer without reasoning"},
        {0, "raw", NULL, cli_true(&a->raw),
         "continue the text of -p or -f, without the chat template"},
        {0, "allow-control-tokens", NULL, cli_true(&a->allow_control),
         "let control tokens written in the prompt (as <|im_end|>) act; else they are plain text"},
        {'n', "max-tokens", "N", cli_int64(&a->max_tokens, 0, INT32_MAX),
         "tokens to generate at most [until it ends or the context is full]"},
        {0, "stop", "TEXT", cli_other(take_stop, a),
         "end the answer before this text (repeatable)"},
        {0, "show-thinking", NULL, cli_constant(&a->show_thinking, 1),
         "print the reasoning also to a file or pipe"},
        {0, "hide-thinking", NULL, cli_constant(&a->show_thinking, 0),
         "do not print it to a terminal either"},
        {0, "json", NULL, cli_true(&a->json),
         "print one JSON object at the end: text, reasoning, tool calls ..."},
        {0, "logprobs", "N", cli_int32(&a->n_logprobs, 0, CALLA_MAX_TOP_LOGPROBS),
         "with --json: log-probabilities of each token and the N most likely"},
        {0, "stats", NULL, cli_true(&a->stats), "timings as one line of JSON on standard error"},
    };
    cli_option cloud[CLI_N_CLOUD_OPTIONS];
    cli_option sampling[CLI_N_SAMPLING_OPTIONS], engine[CLI_N_ENGINE_OPTIONS];
    cli_cloud_options(&a->cloud, cloud);
    cli_sampling_options(&a->sampling, sampling);
    cli_engine_options(&a->engine, engine);
    const cli_syntax syntax = {
        .usage = usage,
        .groups = {
            CLI_GROUP(NULL, own),
            CLI_GROUP("sampling (what is not given: the model's generation_config.json)", sampling),
            CLI_GROUP("a cloud to ask, if what would leave may (docs/hybrid.md)", cloud),
            CLI_GROUP("engine", engine)}};
    int code = cli_parse(argc, argv, &syntax, NULL, NULL);
    return code >= 0 ? code : check_options(a);
}

/* ---- generation ---- */

typedef struct run_state {
    const run_args *args;
    calla_engine *engine;
    calla_session *session;
    calla_tokenizer *tokenizer;
    calla_sampling sampling;
    calla_engine_info info;
    run_prompt prompt;
    run_answer answer;
    calla_sync_stats sync;
    int64_t n_generated, start_ns, first_ns, end_ns; /* first_ns: of the first token */
    cli_disk_reads start_reads, first_reads, end_reads;
    const char *finish_reason;
    json_t *logprobs; /* with --logprobs */
} run_state;

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static json_t *token_entry(const run_state *r, int32_t token, float logprob)
{
    size_t n_bytes;
    const char *bytes = calla_tokenizer_bytes(r->tokenizer, token, &n_bytes);
    json_t *list = json_array(); /* a token may be part of a character: its bytes are exact */
    for (size_t i = 0; i < n_bytes; i++)
        json_array_append_new(list, json_integer((unsigned char)bytes[i]));
    json_t *entry =
        json_pack("{s:i, s:f, s:o}", "id", token, "logprob", (double)logprob, "bytes", list);
    json_t *text = json_stringn(bytes, n_bytes); /* NULL if it is not UTF-8 */
    if (text) json_object_set_new(entry, "token", text);
    return entry;
}

static void note_logprobs(run_state *r, const calla_sampled *s)
{
    if (!r->logprobs) return;
    json_t *entry = token_entry(r, s->token, s->logprob), *top = json_array();
    for (int32_t i = 0; i < s->n_top; i++)
        json_array_append_new(top, token_entry(r, s->top_tokens[i], s->top_logprobs[i]));
    json_object_set_new(entry, "top", top);
    json_array_append_new(r->logprobs, entry);
}

static calla_status put_token(run_state *r, int32_t token, calla_error *err)
{
    if (calla_tokenizer_is_special(r->tokenizer, token)) return CALLA_OK; /* nothing to read */
    size_t n_bytes;
    const char *bytes = calla_tokenizer_bytes(r->tokenizer, token, &n_bytes);
    return run_answer_push(&r->answer, bytes, n_bytes, err);
}

/* One token after the other until something ends the answer; finish_reason says what. */
static calla_status generate(run_state *r, calla_error *err)
{
    calla_control control = {.cancel = cli_cancel_flag()};
    r->finish_reason = "length";
    while (r->args->max_tokens < 0 || r->n_generated < r->args->max_tokens) {
        calla_sampled sampled;
        calla_status status = calla_session_next(r->session, &r->sampling, &control, &sampled, err);
        if (status == CALLA_ERR_CONTEXT) break;
        if (status != CALLA_OK) return status;
        if (r->n_generated++ == 0) {
            r->first_ns = now_ns();
            r->first_reads = cli_count_disk_reads();
        }
        note_logprobs(r, &sampled);
        bool stop = calla_tokenizer_is_stop(r->tokenizer, sampled.token);
        if (!stop && (status = put_token(r, sampled.token, err)) != CALLA_OK) return status;
        if (stop || r->answer.stopped || r->answer.reader_gone) {
            r->finish_reason = "stop";
            break;
        }
    }
    return CALLA_OK;
}

static void show_progress(void *user, int64_t done, int64_t total)
{
    (void)user;
    cli_progress("prompt", done, total);
}

static calla_status read_prompt(run_state *r, calla_error *err)
{
    calla_tokens tokens;
    const calla_prompt *p = &r->prompt.prompt;
    calla_status status = calla_tokenizer_encode(
        r->tokenizer, p->text.data, p->text.n_bytes, r->args->allow_control ? NULL : p->literal,
        r->args->allow_control ? 0 : p->n_literal, &tokens, err);
    if (status != CALLA_OK) return status;
    calla_control control = {.cancel = cli_cancel_flag(), .progress = show_progress};
    status = calla_session_sync(r->session, tokens.ids, tokens.n, &control, &r->sync, err);
    cli_progress_end();
    calla_tokens_free(&tokens);
    return status;
}

/* ---- report ---- */

static double per_second(int64_t n, int64_t ns)
{
    return ns > 0 ? (double)n * 1e9 / (double)ns : 0;
}

/* Weights that came from disk: what makes a model slow that does not fit in memory. */
static void add_disk_reads(const run_state *r, json_t *o)
{
    const cli_disk_reads *start = &r->start_reads, *end = &r->end_reads;
    const cli_disk_reads *first = r->n_generated > 0 ? &r->first_reads : end;
    int64_t n = r->n_generated - 1;
    json_object_set_new(o, "prompt_major_faults",
                        json_integer(first->major_faults - start->major_faults));
    json_object_set_new(o, "prompt_disk_bytes", json_integer(first->bytes - start->bytes));
    if (n <= 0) return;
    json_object_set_new(o, "major_faults_per_token",
                        json_real((double)(end->major_faults - first->major_faults) / (double)n));
    json_object_set_new(o, "disk_bytes_per_token",
                        json_real((double)(end->bytes - first->bytes) / (double)n));
}

static json_t *timings(const run_state *r)
{
    int64_t decode_ns = r->n_generated > 1 ? r->end_ns - r->first_ns : 0;
    double first_ms = r->n_generated > 0 ? (double)(r->first_ns - r->start_ns) / 1e6 : 0;
    json_t *o =
        json_pack("{s:i, s:i, s:f, s:I, s:f, s:f, s:f, s:s, s:I, s:s, s:s, s:i}", "prompt_tokens",
                  r->sync.n_tokens, "reused_tokens", r->sync.n_reused, "prefill_tokens_per_s",
                  per_second(r->sync.n_prefill, r->sync.prefill_ns), "generated_tokens",
                  (json_int_t)r->n_generated, "decode_tokens_per_s",
                  per_second(r->n_generated - 1, decode_ns), "load_ms",
                  (double)r->info.load_ns / 1e6, "time_to_first_token_ms", first_ms,
                  "finish_reason", r->finish_reason, "seed", (json_int_t)r->sampling.seed,
                  "backend", r->info.backend, "isa", r->info.isa, "threads", r->info.n_threads);
    add_disk_reads(r, o);
    json_object_set_new(o, "short_of_memory", json_boolean(r->info.short_of_memory));
    json_object_set_new(o, "copied", json_boolean(r->info.copied));
    json_object_set_new(o, "locked_bytes", json_integer(r->info.locked_bytes));
    return o;
}

/* The object with the calls, which are JSON text already, put in at its end. */
static void write_with_calls(const char *object, const char *calls)
{
    cli_write(object, strlen(object) - 1);
    cli_write(", \"tool_calls\": [", 17);
    cli_write(calls, strlen(calls));
    cli_write("]}\n", 3);
}

static void print_json(run_state *r)
{
    run_answer *a = &r->answer;
    fflush(a->text);
    fflush(a->reasoning);
    fflush(a->calls);
    json_t *o = json_object();
    json_object_set_new(o, "text", json_stringn(a->text_data, a->n_text));
    json_object_set_new(o, "reasoning", json_stringn(a->reasoning_data, a->n_reasoning));
    json_object_set_new(o, "finish_reason", json_string(r->finish_reason));
    json_object_set_new(o, "usage",
                        json_pack("{s:i, s:i, s:I}", "prompt_tokens", r->sync.n_tokens,
                                  "cached_tokens", r->sync.n_reused, "completion_tokens",
                                  (json_int_t)r->n_generated));
    json_object_set_new(o, "timings", timings(r));
    if (r->logprobs) json_object_set(o, "logprobs", r->logprobs);
    char *text = json_dumps(o, JSON_REAL_PRECISION(9));
    if (text) write_with_calls(text, a->calls_data);
    free(text);
    json_decref(o);
}

static void print_stats(const run_state *r)
{
    json_t *o = timings(r);
    char *text = json_dumps(o, JSON_REAL_PRECISION(6));
    if (text) fprintf(stderr, "%s\n", text);
    free(text);
    json_decref(o);
}

/* ---- command ---- */

static calla_status open_all(run_state *r, const run_args *args, calla_error *err)
{
    calla_status status =
        cli_sampling_resolve(&args->sampling, args->engine.model, &r->sampling, err);
    if (status != CALLA_OK) return status;
    r->sampling.n_top_logprobs = args->n_logprobs > 0 ? args->n_logprobs : 0;
    if (args->n_logprobs >= 0) r->logprobs = json_array();
    status = calla_tokenizer_open(args->engine.model, &r->tokenizer, err);
    if (status != CALLA_OK) return status;
    calla_engine_options options = args->engine.options;
    options.tokenizer = r->tokenizer;
    options.snapshot_bytes = -1; /* one prompt: nobody comes back to it */
    status = cli_engine_open(args->engine.model, &options, &r->engine, err);
    if (status != CALLA_OK) return status;
    calla_engine_get_info(r->engine, &r->info);
    status = calla_session_create(r->engine, &r->session, err);
    if (status != CALLA_OK) return status;
    return run_answer_init(&r->answer, args, &r->prompt, err);
}

static int answer(run_state *r)
{
    calla_error err, late;
    calla_status status = open_all(r, r->args, &err);
    if (status != CALLA_OK) return cli_fail(&err);
    r->start_ns = now_ns();
    r->start_reads = cli_count_disk_reads();
    status = read_prompt(r, &err);
    if (status == CALLA_OK)
        status = generate(r, &err);
    else if (status != CALLA_ERR_CANCELLED)
        return cli_fail(&err);
    r->end_ns = now_ns();
    r->end_reads = cli_count_disk_reads();
    if (status != CALLA_OK)
        r->finish_reason = status == CALLA_ERR_CANCELLED ? "cancelled" : "error";
    calla_status finished = run_answer_finish(&r->answer, &late);
    if (status == CALLA_OK && finished != CALLA_OK) status = finished, err = late;
    if (r->answer.n_calls > 0 && strcmp(r->finish_reason, "stop") == 0)
        r->finish_reason = "tool_calls";
    if (r->args->json) print_json(r);
    if (r->args->stats) print_stats(r);
    return status == CALLA_OK ? EXIT_OK : cli_fail(&err);
}

/* The cloud's answer, or the local model's. */
static int ask(run_state *r)
{
    run_cloud_result result = r->args->cloud.url ? run_cloud(r->args, &r->prompt) : RUN_LOCAL;
    if (atomic_load(cli_cancel_flag())) return cli_cancel_exit();
    if (result == RUN_LOCAL) return answer(r);
    return result == RUN_CLOUD_ANSWERED ? EXIT_OK : EXIT_FAILED;
}

int cmd_run(int argc, char **argv)
{
    run_args args = {.show_thinking = -1, .max_tokens = -1, .n_logprobs = -1};
    cli_sampling_init(&args.sampling);
    int code = parse_options(argc, argv, &args);
    if (code < 0) {
        run_state r = {.args = &args};
        code = run_prompt_make(&args, &r.prompt) ? ask(&r) : EXIT_FAILED;
        run_answer_deinit(&r.answer);
        json_decref(r.logprobs);
        calla_session_free(r.session);
        calla_engine_close(r.engine);
        calla_tokenizer_close(r.tokenizer);
        run_prompt_free(&r.prompt);
    }
    cli_sampling_deinit(&args.sampling);
    return code;
}
