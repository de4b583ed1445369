#include "server/context.h"

#include "base/clock.h"
#include "server/cloud.h"
#include "server/task_model.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { BACKLOG = 128, READER_SECONDS = 5, MAX_INTERRUPTIONS = 5 };
#define REPLAY_BYTES ((int64_t)64 << 20)

/* ---- options ---- */

static int32_t value_or(int32_t value, int32_t otherwise)
{
    return value ? value : otherwise;
}

static void set_defaults(server_options *o)
{
    if (!o->host) o->host = "127.0.0.1";
    o->port = o->port < 0 ? 0 : value_or(o->port, 8080);
    o->n_parallel = value_or(o->n_parallel, 4);
    o->n_queue = value_or(o->n_queue, 64);
    o->n_connections = value_or(o->n_connections, 256);
    if (!o->max_body_bytes) o->max_body_bytes = (int64_t)32 << 20;
    if (!o->max_answer_bytes) o->max_answer_bytes = (int64_t)64 << 20;
    if (!o->max_unread_bytes) o->max_unread_bytes = (int64_t)256 << 10;
    o->timeout_s = value_or(o->timeout_s, 3600);
    o->idle_s = value_or(o->idle_s, 120);
    o->keep_alive_ms = value_or(o->keep_alive_ms, 3000);
    o->engine.n_sessions = o->n_parallel;
    o->engine.keep_decoded = !o->strict_cache;
}

static calla_status check_options(const server_options *o, calla_error *err)
{
    if (o->n_parallel < 1 || o->n_parallel > 8)
        return error_set(err, CALLA_ERR_INPUT, "%d answers at once, 1 to 8 are possible",
                         o->n_parallel);
    if (o->api_key && !o->api_key[strspn(o->api_key, "\n")])
        return error_set(err, CALLA_ERR_INPUT, "the API key is empty");
    if (!access_is_loopback(o->host) && !o->api_key && !o->insecure)
        return error_set(err, CALLA_ERR_INPUT,
                         "listening on %s, which other machines can reach, needs an API key "
                         "(--api-key-file), or --insecure",
                         o->host);
    return CALLA_OK;
}

/* The model is called as its directory. */
static void set_name(server *s)
{
    char path[4096];
    const char *dir = s->options.model;
    if (realpath(dir, path)) dir = path;
    const char *slash = strrchr(dir, '/');
    snprintf(s->name, sizeof s->name, "%.*s", (int)sizeof s->name - 1,
             slash && slash[1] ? slash + 1 : dir);
}

static calla_status set_models(server *s, calla_error *err)
{
    size_t n = (size_t)s->options.n_aliases;
    s->models = calloc(n + 1, sizeof *s->models);
    if (!s->models) return error_set(err, CALLA_ERR_MEMORY, "no memory for the model's names");
    set_name(s);
    s->models[0] = s->name;
    for (size_t i = 0; i < n; i++) s->models[i + 1] = s->options.aliases[i];
    return CALLA_OK;
}

/* ---- listening ---- */

static calla_status listen_at(server *s, const struct addrinfo *address, calla_error *err)
{
    int on = 1, fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_storage bound;
    socklen_t n = sizeof bound;
    if (fd >= 0) {
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* connections inherit it */
    }
    if (fd < 0 || bind(fd, address->ai_addr, address->ai_addrlen) != 0 ||
        listen(fd, BACKLOG) != 0 || getsockname(fd, (struct sockaddr *)&bound, &n) != 0) {
        calla_status status = error_set_errno(err, CALLA_ERR_IO, errno, "cannot listen on %s:%d",
                                              s->options.host, s->options.port);
        if (fd >= 0) close(fd);
        return status;
    }
    s->listen_fd = fd;
    s->port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                                : ((struct sockaddr_in *)&bound)->sin_port);
    return CALLA_OK;
}

static calla_status start_listening(server *s, calla_error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found;
    char port[16];
    snprintf(port, sizeof port, "%d", s->options.port);
    int failure = getaddrinfo(s->options.host, port, &hints, &found);
    if (failure != 0)
        return error_set(err, CALLA_ERR_INPUT, "cannot listen on '%s': %s", s->options.host,
                         gai_strerror(failure));
    calla_status status = listen_at(s, found, err);
    freeaddrinfo(found);
    return status;
}

/* ---- the engine thread ---- */

static void set_state(server *s, server_state state, const calla_error *err)
{
    pthread_mutex_lock(&s->lock);
    if (err) s->error = *err;
    /* Who ends while the model is being opened stays so. */
    if (state != SERVER_OK || atomic_load(&s->state) == SERVER_LOADING)
        atomic_store(&s->state, state);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static calla_status open_engine(server *s, calla_engine **engine, calla_error *err)
{
    server_options *o = &s->options;
    CALLA_TRY(calla_tokenizer_open(o->model, &s->tokenizer, err));
    o->engine.tokenizer = s->tokenizer;
    CALLA_TRY(calla_engine_open(o->model, &o->engine, engine, err));
    calla_engine_get_info(*engine, &s->info);
    CALLA_TRY(vocabulary_init(&s->vocabulary, s->tokenizer, s->info.n_vocab, err));
    s->defaults = (wire_defaults){.sampling = o->sampling,
                                  .no_thinking = o->no_thinking,
                                  .thinking_budget = o->thinking_budget ? o->thinking_budget : -1,
                                  .vocabulary = &s->vocabulary,
                                  .n_ctx = s->info.n_ctx,
                                  .models = s->models,
                                  .n_models = 1 + o->n_aliases,
                                  .keep_billing_line = o->keep_billing_line};
    return CALLA_OK;
}

static void report_tasks(void *user, const char *message)
{
    const server *s = user;
    server_log_put(&s->log, "tasks", json_pack("{s:s}", "error", message));
}

/* Once the model is open, and unless the server ends already. */
static calla_status start_tasks(server *s, calla_error *err)
{
    calla_status status = CALLA_OK;
    s->task_judge = (judge_asker){s, -1, 0};
    const task_runner_options options = {.store = s->tasks,
                                         .hybrid = s->hybrid,
                                         .ask = task_model_ask,
                                         .ask_user = s,
                                         .judge = judge_model_ask,
                                         .judge_user = &s->task_judge,
                                         .judge_tokens = &s->task_judge.n_tokens,
                                         .n_interruptions = MAX_INTERRUPTIONS,
                                         .report = report_tasks,
                                         .report_user = s};
    pthread_mutex_lock(&s->lock);
    if (s->tasks && atomic_load(&s->state) == SERVER_LOADING)
        status = task_runner_start(&options, &s->task_runner, err);
    pthread_mutex_unlock(&s->lock);
    return status;
}

static void stop_tasks(server *s, int64_t deadline_ns)
{
    pthread_mutex_lock(&s->lock);
    task_runner *r = s->task_runner;
    pthread_mutex_unlock(&s->lock);
    if (r) task_runner_stop(r, deadline_ns);
}

static void *run_engine(void *user)
{
    server *s = user;
    calla_engine *engine = NULL;
    calla_error err;
    calla_status status = open_engine(s, &engine, &err);
    if (status == CALLA_OK) status = start_tasks(s, &err);
    if (status == CALLA_OK) {
        set_state(s, SERVER_OK, NULL);
        status = scheduler_run(s->scheduler, engine, &err);
    }
    if (status != CALLA_OK)
        set_state(s, SERVER_FAILED, &err);
    else
        set_state(s, SERVER_STOPPED, NULL);
    calla_engine_close(engine);
    return NULL;
}

/* ---- the server ---- */

/* The cloud's names must be its own. */
static calla_status open_hybrid(server *s, calla_error *err)
{
    if (!s->options.hybrid) return CALLA_OK;
    for (int i = 0; cloud_models[i]; i++)
        for (int32_t k = 0; k <= s->options.n_aliases; k++)
            if (strcmp(s->models[k], cloud_models[i]) == 0)
                return error_set(err, CALLA_ERR_INPUT,
                                 "the model is called '%s', which names a route to the cloud; "
                                 "rename its directory or drop the alias",
                                 cloud_models[i]);
    return hybrid_open(s->options.hybrid, &s->hybrid, err);
}

calla_status server_reload(server *s, calla_error *err)
{
    return s->hybrid ? hybrid_reload(s->hybrid, err) : CALLA_OK;
}

static calla_status create_parts(server *s, calla_error *err)
{
    const server_options *o = &s->options;
    CALLA_TRY(set_models(s, err));
    CALLA_TRY(open_hybrid(s, err));
    if (o->tasks) CALLA_TRY(task_store_open(o->tasks, &s->tasks, err));
    CALLA_TRY(replay_create(REPLAY_BYTES, &s->replay, err));
    scheduler_config config = {.n_parallel = o->n_parallel,
                               .n_queue = o->n_queue,
                               .strict_cache = o->strict_cache,
                               .timeout_ns =
                                   o->timeout_s > 0 ? (int64_t)o->timeout_s * 1000000000 : 0,
                               .max_unread_bytes = (size_t)o->max_unread_bytes,
                               .vocabulary = &s->vocabulary,
                               .replay = s->replay,
                               .metrics = &s->metrics,
                               .log = &s->log};
    CALLA_TRY(scheduler_create(&config, &s->scheduler, err));
    CALLA_TRY(connections_create((int64_t)o->idle_s * 1000000000, &s->connections, err));
    CALLA_TRY(start_listening(s, err));
    return http_start(s, err);
}

calla_status server_start(const server_options *options, server **out, calla_error *err)
{
    calla_status status = CALLA_OK;
    server *s = calloc(1, sizeof *s);
    if (!s) return error_set(err, CALLA_ERR_MEMORY, "no memory for a server");
    s->options = *options;
    s->listen_fd = -1;
    s->start_time = time(NULL);
    set_defaults(&s->options);
    const server_options *o = &s->options;
    s->log = (server_log){o->log, o->log_json, o->log_verbose};
    s->access = (access_rules){o->api_key, o->hosts, o->n_hosts, o->origins, o->n_origins};
    metrics_init(&s->metrics);
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&s->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    CALLA_TRY_GOTO(check_options(o, err), fail);
    CALLA_TRY_GOTO(create_parts(s, err), fail);
    int failure = pthread_create(&s->engine_thread, NULL, run_engine, s);
    if (failure != 0) {
        status = error_set_errno(err, CALLA_ERR_MEMORY, failure, "no thread for the engine");
        goto fail;
    }
    s->engine_thread_runs = true;
    *out = s;
    return CALLA_OK;
fail:
    server_free(s);
    return status;
}

int32_t server_port(const server *s)
{
    return s->port;
}

server_state server_get_state(const server *s)
{
    return atomic_load(&((server *)s)->state);
}

int64_t server_request_bytes(const server *s)
{
    const server_options *o = &s->options;
    return http_budget(o) + o->max_answer_bytes * o->n_parallel + REPLAY_BYTES;
}

void server_get_engine_info(const server *s, calla_engine_info *info)
{
    *info = s->info;
}

calla_status server_wait_ready(server *s, calla_error *err)
{
    pthread_mutex_lock(&s->lock);
    while (atomic_load(&s->state) == SERVER_LOADING) pthread_cond_wait(&s->changed, &s->lock);
    bool failed = atomic_load(&s->state) == SERVER_FAILED;
    if (failed && err) *err = s->error;
    calla_status status = failed ? s->error.code : CALLA_OK;
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* The engine is done; answers may still be on their way to readers, who have a little time. */
static void wait_for_readers(server *s)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += READER_SECONDS;
    pthread_mutex_lock(&s->lock);
    while (s->n_requests > 0 && pthread_cond_timedwait(&s->changed, &s->lock, &until) == 0)
        continue;
    pthread_mutex_unlock(&s->lock);
}

calla_status server_stop(server *s, int64_t grace_ms, calla_error *err)
{
    acceptor_stop(s->acceptor);
    s->acceptor = NULL;
    if (server_get_state(s) != SERVER_FAILED) set_state(s, SERVER_STOPPED, NULL);
    int64_t deadline_ns = clock_ns() + grace_ms * 1000000;
    stop_tasks(s, deadline_ns); /* while there still is an engine for its step */
    scheduler_stop(s->scheduler, deadline_ns);
    if (s->engine_thread_runs) pthread_join(s->engine_thread, NULL);
    s->engine_thread_runs = false;
    if (s->hybrid) hybrid_stop(s->hybrid, deadline_ns);
    wait_for_readers(s);
    bool failed = server_get_state(s) == SERVER_FAILED;
    if (failed && err) *err = s->error;
    return failed ? s->error.code : CALLA_OK;
}

void server_free(server *s)
{
    if (!s) return;
    acceptor_stop(s->acceptor);
    if (s->daemon) MHD_stop_daemon(s->daemon); /* waits for the connections' threads */
    if (s->listen_fd >= 0) close(s->listen_fd);
    connections_free(s->connections);
    task_runner_free(s->task_runner);
    task_store_close(s->tasks);
    scheduler_free(s->scheduler);
    hybrid_close(s->hybrid);
    replay_free(s->replay);
    vocabulary_close(&s->vocabulary);
    calla_tokenizer_close(s->tokenizer);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s->models);
    free(s);
}
