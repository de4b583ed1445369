/* calla serve: the HTTP server. */
#include "cli.h"
#include "server/server.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char usage[] =
    "usage: calla serve -m DIR [OPTIONS]\n"
    "\n"
    "Serves the model over HTTP as OpenAI's API does: /v1/chat/completions, /v1/responses,\n"
    "/v1/completions, /v1/models, and /v1/tokenize, /v1/detokenize, /v1/tasks, /health, /metrics.\n"
    "Ends at SIGINT or SIGTERM, when the running answers are done.\n";

enum { MAX_NAMES = 64 };

typedef struct names {
    const char *list[MAX_NAMES]; /* [n] */
    int32_t n;
} names;

typedef struct serve_args {
    cli_engine_args engine;
    cli_sampling_args sampling;
    server_options options;
    hybrid_options hybrid;
    names hosts, origins, aliases;
    const char *key_file, *port_file;
    char *key; /* read from the file or the environment */
    const char *cache_dir;
    int32_t port, timeout_s, max_body_mb, cache_mb, cache_dir_mb, grace_s;
    bool quiet;
} serve_args;

/* ---- options ---- */

static bool take_name(void *where, const char *option, const char *text)
{
    names *to = where;
    if (to->n == MAX_NAMES) {
        cli_usage_error("%s: more than %d", option, MAX_NAMES);
        return false;
    }
    to->list[to->n++] = text;
    return true;
}

/* -1 = go on, else the exit code. */
static int parse_options(int argc, char **argv, serve_args *a)
{
    server_options *o = &a->options;
    const cli_option network[] = {
        {0, "host", "ADDRESS", cli_text(&o->host), "address to listen on [127.0.0.1]"},
        {0, "port", "N", cli_int32(&a->port, 0, 65535), "port, 0 = any that is free [8080]"},
        {0, "port-file", "FILE", cli_text(&a->port_file), "write the port there once it is open"},
        {0, "api-key-file", "FILE", cli_text(&a->key_file),
         "requests must carry one of its keys, which stand one a line; or set CALLA_API_KEY"},
        {0, "insecure", NULL, cli_true(&o->insecure),
         "let other machines use the server without a key"},
        {0, "allow-host", "NAME", cli_other(take_name, &a->hosts),
         "answer to this name too, besides localhost and addresses (repeatable)"},
        {0, "allow-origin", "URL", cli_other(take_name, &a->origins),
         "web pages of this origin may use the server (repeatable)"},
        {0, "connections", "N", cli_int32(&o->n_connections, 1, 4096), "connections at most [256]"},
        {0, "max-body", "MB", cli_int32(&a->max_body_mb, 1, 4096),
         "size of a request at most [32]"},
    };
    const cli_option work[] = {
        {0, "alias", "NAME", cli_other(take_name, &a->aliases),
         "the model answers to this name too (repeatable)"},
        {0, "parallel", "N", cli_int32(&o->n_parallel, 1, 8), "answers computed at once [4]"},
        {0, "queue", "N", cli_int32(&o->n_queue, 1, 1 << 20), "requests that may wait [64]"},
        {0, "timeout", "S", cli_int32(&a->timeout_s, 0, 1 << 24),
         "seconds a request may take, 0 = no limit [3600]"},
        {0, "grace", "S", cli_int32(&a->grace_s, 0, 1 << 24),
         "seconds that running answers have when the server ends [30]"},
        {0, "cache-mb", "N", cli_int32(&a->cache_mb, 0, 1 << 30),
         "memory of the prompt cache, 0 = none [1024]"},
        {0, "cache-dir", "DIR", cli_text(&a->cache_dir),
         "keep long prompts in files there, too, for after a restart"},
        {0, "cache-dir-mb", "N", cli_int32(&a->cache_dir_mb, 1, 1 << 30),
         "size of those files [16384]"},
        {0, "strict-cache", NULL, cli_true(&o->strict_cache),
         "prefill answers again, when idle, before they are continued: then every result equals "
         "that of a cold run"},
        {0, "no-think", NULL, cli_true(&o->no_thinking),
         "answer without reasoning where a request does not say"},
        {0, "thinking-budget", "N", cli_int32(&o->thinking_budget, 1, INT32_MAX),
         "tokens of reasoning where a request does not say [no limit]"},
        {0, "keep-billing-line", NULL, cli_true(&o->keep_billing_line),
         "leave the line about billing in the system prompts of some agents"},
        {0, "tasks", "FILE", cli_text(&o->tasks),
         "take tasks (/v1/tasks, `calla tasks`) and keep them there"},
        {0, "log-json", NULL, cli_true(&o->log_json), "log lines as JSON"},
        {0, "verbose", NULL, cli_true(&o->log_verbose), "log more"},
        {0, "quiet", NULL, cli_true(&a->quiet), "log nothing"},
    };
    cli_option cloud[CLI_N_CLOUD_OPTIONS];
    cli_option sampling[CLI_N_SAMPLING_OPTIONS], engine[CLI_N_ENGINE_OPTIONS];
    cli_cloud_options(&a->hybrid, cloud);
    cli_sampling_options(&a->sampling, sampling);
    cli_engine_options(&a->engine, engine);
    const cli_syntax syntax = {
        .usage = usage,
        .groups = {CLI_GROUP("network", network), CLI_GROUP("work", work),
                   CLI_GROUP("a cloud beside the model (docs/hybrid.md)", cloud),
                   CLI_GROUP("sampling where a request does not say (else: the model's "
                             "generation_config.json)",
                             sampling),
                   CLI_GROUP("engine", engine)}};
    int code = cli_parse(argc, argv, &syntax, NULL, NULL);
    if (code >= 0) return code;
    if (!a->engine.model) return cli_usage_error("which model? -m DIR is missing");
    return cli_cloud_check(&a->hybrid);
}

/* What was parsed, in the server's terms. */
static void set_options(serve_args *a)
{
    server_options *o = &a->options;
    o->model = a->engine.model;
    o->engine = a->engine.options;
    cli_watch_opening(&o->engine);
    o->engine.snapshot_bytes = a->cache_mb > 0 ? (int64_t)a->cache_mb << 20 : -1;
    o->engine.cache_dir = a->cache_dir;
    o->engine.cache_dir_bytes = (int64_t)a->cache_dir_mb << 20;
    o->port = a->port > 0 ? a->port : -1;
    o->timeout_s = a->timeout_s > 0 ? a->timeout_s : -1;
    o->max_body_bytes = (int64_t)a->max_body_mb << 20;
    o->hosts = a->hosts.list, o->n_hosts = a->hosts.n;
    o->origins = a->origins.list, o->n_origins = a->origins.n;
    o->aliases = a->aliases.list, o->n_aliases = a->aliases.n;
    o->log = a->quiet ? NULL : stderr;
    o->hybrid = a->hybrid.url ? &a->hybrid : NULL;
}

/* The keys: the file's lines, or the environment's. False after printing why. */
static bool read_key(serve_args *args)
{
    const char *environment = getenv("CALLA_API_KEY");
    size_t n;
    if (args->key_file) {
        if (!cli_read_input(args->key_file, &args->key, &n)) return false;
        for (char *p = args->key; (p = strchr(p, '\r'));) *p = '\n';
    } else if (environment) {
        args->key = strdup(environment);
    }
    args->options.api_key = args->key;
    return true;
}

/* ---- running ---- */

static double gigabytes(int64_t bytes)
{
    return (double)bytes / 1e9;
}

static void print_plan(const server *s)
{
    calla_engine_info info;
    server_get_engine_info(s, &info);
    const calla_memory_plan *m = &info.memory;
    cli_progress_end();
    fprintf(stderr,
            "calla serve: %s kernels, %d threads, context %d tokens\n"
            "calla serve: memory: weights %.2f GB (%s), KV cache %.2f, states %.2f, prompt "
            "cache %.2f, the rest %.2f, together %.2f GB; for requests and answers at most %.2f GB "
            "more\n",
            info.isa, info.n_threads, info.n_ctx, gigabytes(m->weights_bytes),
            info.copied ? "copied" : "mapped", gigabytes(m->kv_bytes), gigabytes(m->state_bytes),
            gigabytes(m->snapshot_bytes), gigabytes(m->prepared_bytes + m->scratch_bytes),
            gigabytes(m->total_bytes), gigabytes(server_request_bytes(s)));
}

static bool write_port(const char *path, int32_t port)
{
    cli_output out;
    char text[16];
    if (!path) return true;
    if (!cli_output_open(&out, path)) return false;
    int n = snprintf(text, sizeof text, "%d\n", port);
    if (cli_output_write(&out, text, (size_t)n)) return cli_output_commit(&out);
    cli_output_abort(&out);
    return false;
}

static volatile sig_atomic_t reload_wanted;

static void on_hangup(int signal)
{
    (void)signal;
    reload_wanted = 1;
}

static void reload(server *s, const char *file)
{
    calla_error err;
    reload_wanted = 0;
    if (server_reload(s, &err) == CALLA_OK)
        fprintf(stderr, "calla serve: %s has been read\n", file);
    else
        fprintf(stderr, "calla serve: the policy stays as it was: %s\n", err.message);
}

static void wait_for_signal(server *s, const char *file)
{
    const struct timespec a_while = {.tv_nsec = 50000000};
    while (!atomic_load(cli_cancel_flag()) && server_get_state(s) == SERVER_OK) {
        nanosleep(&a_while, NULL);
        if (reload_wanted) reload(s, file);
    }
}

static int run(serve_args *args)
{
    server *s;
    calla_error err;
    bool ended = false;
    server_options *o = &args->options;
    if (args->hybrid.policy) signal(SIGHUP, on_hangup);
    calla_status status = server_start(o, &s, &err);
    if (status != CALLA_OK) return cli_fail(&err);
    int code = write_port(args->port_file, server_port(s)) ? EXIT_OK : EXIT_FAILED;
    if (code == EXIT_OK) {
        status = server_wait_ready(s, &err);
        ended = status == CALLA_ERR_CANCELLED; /* by a signal, which is how a server ends */
        if (status != CALLA_OK && !ended) code = cli_fail(&err);
    }
    if (code == EXIT_OK && !ended) {
        print_plan(s);
        fprintf(stderr, "calla serve: listening on http://%s%s%s:%d/v1\n",
                strchr(o->host, ':') ? "[" : "", o->host, strchr(o->host, ':') ? "]" : "",
                server_port(s));
        wait_for_signal(s, args->hybrid.policy);
    }
    status = server_stop(s, (int64_t)args->grace_s * 1000, &err);
    if (status != CALLA_OK && code == EXIT_OK && !ended) code = cli_fail(&err);
    server_free(s);
    return code;
}

int cmd_serve(int argc, char **argv)
{
    serve_args args = {.port = 8080,
                       .timeout_s = 3600,
                       .max_body_mb = 32,
                       .cache_mb = 1024,
                       .cache_dir_mb = 16384,
                       .grace_s = 30};
    calla_error err;
    cli_sampling_init(&args.sampling);
    args.options.host = "127.0.0.1";
    int code = parse_options(argc, argv, &args);
    if (code < 0) {
        set_options(&args);
        if (!read_key(&args))
            code = EXIT_FAILED;
        else if (cli_sampling_resolve(&args.sampling, args.options.model, &args.options.sampling,
                                      &err) != CALLA_OK)
            code = cli_fail(&err);
        else
            code = run(&args);
    }
    free(args.key);
    cli_sampling_deinit(&args.sampling);
    return code;
}
