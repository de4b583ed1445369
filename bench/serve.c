/* What the server adds to the engine, seen by a client in the same process:
 *
 * - microseconds per streamed token over the engine's steps, and over a session without a server;
 * - the time to the first byte and to the first token of a streamed answer while 16 connections
 * idle;
 * - the time to the first token of a long conversation's first and second turn;
 * - the longest silence between two tokens of a stream while another's long prompt is read.
 *
 * usage: bench_serve MODEL_DIR [ROUNDS]. Prints one JSON object. */
#include "base/clock.h"
#include "server/server.h"

#include <calla/model.h>

#include <arpa/inet.h>
#include <jansson.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { N_TOKENS = 256, N_IDLE = 16, N_CTX = 8192, LONG_TOKENS = 4000, MAX_ROUNDS = 101 };

static _Noreturn void die(const char *what, const calla_error *err)
{
    fprintf(stderr, "bench_serve: %s%s%s\n", what, err ? ": " : "", err ? err->message : "");
    exit(1);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, compare);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/* ---- a client that notes when things came ---- */

typedef struct stream {
    int64_t start_ns, first_byte_ns, first_token_ns, last_token_ns;
    int n_tokens;           /* chunks with a token of text */
    int64_t longest_gap_ns; /* between two of them */
    json_t *timings;        /* of the last chunk */
    int64_t n_prompt, n_cached;
    char *content; /* joined */
} stream;

static int connect_to(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int on = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
        die("cannot connect", NULL);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

/* Takes one event in. */
static void take_event(stream *s, const char *text, size_t n, int64_t now_ns)
{
    json_t *event = json_loadb(text, n, 0, NULL);
    const json_t *delta =
        json_object_get(json_array_get(json_object_get(event, "choices"), 0), "delta");
    const char *piece = json_string_value(json_object_get(delta, "content"));
    if (!piece || !*piece) piece = json_string_value(json_object_get(delta, "reasoning_content"));
    if (piece && *piece) {
        if (s->n_tokens++ == 0)
            s->first_token_ns = now_ns;
        else if (now_ns - s->last_token_ns > s->longest_gap_ns)
            s->longest_gap_ns = now_ns - s->last_token_ns;
        s->last_token_ns = now_ns;
        strcat(s->content, piece);
    }
    json_t *timings = json_object_get(event, "timings");
    if (timings) s->timings = json_incref(timings);
    const json_t *usage = json_object_get(event, "usage");
    if (json_is_object(usage)) {
        s->n_prompt = json_integer_value(json_object_get(usage, "prompt_tokens"));
        s->n_cached = json_integer_value(
            json_object_get(json_object_get(usage, "prompt_tokens_details"), "cached_tokens"));
    }
    json_decref(event);
}

/* Sends a chat request and reads its stream to the end. */
static stream run(int port, json_t *body)
{
    enum { ROOM = 1 << 24 };
    char *buffer = malloc(ROOM);
    stream s = {.content = calloc(1, 1 << 20)};
    size_t n = 0, at = 0;
    json_object_set_new(body, "stream", json_true());
    json_object_set_new(body, "stream_options", json_pack("{s:b}", "include_usage", 1));
    json_object_set_new(body, "temperature", json_integer(0));
    char *text = json_dumps(body, 0), head[256];
    int fd = connect_to(port);
    int n_head = snprintf(head, sizeof head,
                          "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: "
                          "close\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
                          strlen(text));
    s.start_ns = clock_ns();
    if (write(fd, head, (size_t)n_head) < 0 || write(fd, text, strlen(text)) < 0)
        die("cannot write", NULL);
    for (;;) {
        ssize_t k = read(fd, buffer + n, ROOM - 1 - n);
        int64_t now_ns = clock_ns();
        if (k <= 0) break;
        n += (size_t)k;
        buffer[n] = '\0';
        char *begin, *end;
        while ((begin = strstr(buffer + at, "data: ")) && (end = strstr(begin, "\n\n"))) {
            if (s.first_byte_ns == 0) s.first_byte_ns = now_ns;
            take_event(&s, begin + 6, (size_t)(end - begin - 6), now_ns);
            at = (size_t)(end - buffer);
        }
    }
    close(fd);
    free(text);
    json_decref(body);
    if (!s.timings) die(buffer, NULL);
    free(buffer);
    return s;
}

static void stream_free(stream *s)
{
    json_decref(s->timings);
    free(s->content);
}

static double timing(const stream *s, const char *name)
{
    return json_number_value(json_object_get(s->timings, name));
}

/* ---- per token ---- */

static const char question[] = "Use the word river in a sentence.";

/* Tokens that end an answer get a bias against them, so that it goes on. */
static json_t *endless(const calla_tokenizer *t)
{
    json_t *bias = json_object();
    char id[16];
    for (int32_t i = 0; i < calla_tokenizer_n_tokens(t); i++) {
        if (!calla_tokenizer_is_stop(t, i)) continue;
        snprintf(id, sizeof id, "%d", i);
        json_object_set_new(bias, id, json_integer(-100));
    }
    return json_pack("{s:[{s:s, s:s}], s:i, s:o}", "messages", "role", "user", "content", question,
                     "max_tokens", N_TOKENS, "logit_bias", bias);
}

/* The same steps without a server: ns per token. */
static double run_session(calla_session *session, const calla_tokenizer *t)
{
    calla_error err;
    calla_tokens tokens;
    calla_sampled sampled;
    calla_logit_bias bias[16];
    calla_sampling sampling = {.logit_bias = bias};
    for (int32_t i = 0; i < calla_tokenizer_n_tokens(t) && sampling.n_logit_bias < 16; i++)
        if (calla_tokenizer_is_stop(t, i))
            bias[sampling.n_logit_bias++] = (calla_logit_bias){i, -1e6f};
    if (calla_tokenizer_encode(t, question, strlen(question), NULL, 0, &tokens, &err) ||
        calla_session_sync(session, tokens.ids, tokens.n, NULL, NULL, &err) ||
        calla_session_next(session, &sampling, NULL, &sampled, &err))
        die("session", &err);
    int64_t start_ns = clock_ns();
    for (int i = 1; i < N_TOKENS; i++)
        if (calla_session_next(session, &sampling, NULL, &sampled, &err)) die("session", &err);
    calla_tokens_free(&tokens);
    return (double)(clock_ns() - start_ns) / (N_TOKENS - 1);
}

static json_t *measure_tokens(int port, calla_session *session, const calla_tokenizer *t,
                              int rounds)
{
    double alone[MAX_ROUNDS], served[MAX_ROUNDS], added[MAX_ROUNDS];
    for (int i = 0; i < rounds; i++) { /* in turn: the machine changes with time */
        alone[i] = run_session(session, t) / 1e3;
        stream s = run(port, endless(t));
        double n = timing(&s, "decoded_tokens");
        served[i] = (double)(s.last_token_ns - s.first_token_ns) / 1e3 / n;
        added[i] = served[i] - timing(&s, "decode_ms") * 1e3 / n;
        stream_free(&s);
    }
    return json_pack("{s:f, s:f, s:f}", "session_us_per_token", median(alone, rounds),
                     "served_us_per_token", median(served, rounds), "added_to_steps_us_per_token",
                     median(added, rounds));
}

/* ---- first byte ---- */

static json_t *measure_first_byte(int port, int rounds)
{
    double byte[MAX_ROUNDS], token[MAX_ROUNDS];
    int idle[N_IDLE];
    for (int i = 0; i < N_IDLE; i++) idle[i] = connect_to(port);
    for (int i = 0; i < rounds; i++) {
        char text[64];
        snprintf(text, sizeof text, "%d: what is a river?", i);
        stream s = run(port, json_pack("{s:[{s:s, s:s}], s:i}", "messages", "role", "user",
                                       "content", text, "max_tokens", 2));
        byte[i] = (double)(s.first_byte_ns - s.start_ns) / 1e6;
        token[i] = (double)(s.first_token_ns - s.start_ns) / 1e6 - timing(&s, "prefill_ms");
        stream_free(&s);
    }
    for (int i = 0; i < N_IDLE; i++) close(idle[i]);
    return json_pack("{s:i, s:f, s:f}", "idle_connections", N_IDLE, "first_byte_ms",
                     median(byte, rounds), "first_token_ms_without_prefill", median(token, rounds));
}

/* ---- the second turn ---- */

static double first_token_ms(const stream *s)
{
    return (double)(s->first_token_ns - s->start_ns) / 1e6;
}

static char *long_text(int number)
{
    char *text = calloc(1, 1 << 20);
    int n = sprintf(text, "Conversation %d.", number);
    for (int i = 0; i < LONG_TOKENS / 7; i++) n += sprintf(text + n, " The river is long and old.");
    return text;
}

static json_t *measure_second_turn(int port)
{
    char *text = long_text(0);
    stream first = run(port, json_pack("{s:[{s:s, s:s}], s:i, s:b}", "messages", "role", "user",
                                       "content", text, "max_tokens", 30, "enable_thinking", 0));
    stream second =
        run(port, json_pack("{s:[{s:s, s:s}, {s:s, s:s}, {s:s, s:s}], s:i, s:b}", "messages",
                            "role", "user", "content", text, "role", "assistant", "content",
                            first.content, "role", "user", "content", "What is a lake?",
                            "max_tokens", 30, "enable_thinking", 0));
    json_t *result = json_pack(
        "{s:I, s:f, s:I, s:I, s:f, s:f}", "first_turn_tokens", (json_int_t)first.n_prompt,
        "first_turn_ms", first_token_ms(&first), "second_turn_tokens", (json_int_t)second.n_prompt,
        "second_turn_read_tokens", (json_int_t)(second.n_prompt - second.n_cached),
        "second_turn_ms", first_token_ms(&second), "ratio",
        first_token_ms(&second) / first_token_ms(&first));
    stream_free(&first);
    stream_free(&second);
    free(text);
    return result;
}

/* ---- beside a long prompt ---- */

typedef struct background {
    int port;
    json_t *body;
    stream stream;
} background;

static void *run_background(void *user)
{
    background *b = user;
    b->stream = run(b->port, b->body);
    return NULL;
}

static json_t *measure_gap(int port, const calla_tokenizer *t)
{
    background b = {.port = port, .body = endless(t)};
    pthread_t thread;
    char *text = long_text(1);
    json_object_set_new(b.body, "max_tokens", json_integer(N_CTX / 2));
    if (pthread_create(&thread, NULL, run_background, &b)) die("no thread", NULL);
    usleep(200000); /* it runs by then */
    stream prompt = run(port, json_pack("{s:[{s:s, s:s}], s:i}", "messages", "role", "user",
                                        "content", text, "max_tokens", 1));
    int64_t end_ns = clock_ns();
    pthread_join(thread, NULL);
    if (b.stream.last_token_ns < end_ns) die("the stream ended before the prompt did", NULL);
    json_t *result = json_pack(
        "{s:I, s:f, s:f, s:f}", "prompt_tokens", (json_int_t)prompt.n_prompt, "prompt_ms",
        (double)(end_ns - prompt.start_ns) / 1e6, "longest_gap_ms",
        (double)b.stream.longest_gap_ns / 1e6, "mean_gap_ms",
        (double)(b.stream.last_token_ns - b.stream.first_token_ns) / 1e6 / b.stream.n_tokens);
    stream_free(&prompt);
    stream_free(&b.stream);
    free(text);
    return result;
}

int main(int argc, char **argv)
{
    int rounds = argc > 2 ? atoi(argv[2]) : 11;
    if (argc < 2 || rounds < 1 || rounds > MAX_ROUNDS) die("usage: MODEL_DIR [ROUNDS 1-101]", NULL);
    calla_error err;
    calla_tokenizer *tokenizer;
    calla_engine *engine;
    calla_session *session;
    server *s;
    server_options options = {.model = argv[1], .port = -1, .engine = {.n_ctx = N_CTX}};
    calla_engine_options alone = {.n_ctx = N_CTX};
    if (calla_tokenizer_open(argv[1], &tokenizer, &err) ||
        calla_engine_open(argv[1], &alone, &engine, &err) ||
        calla_session_create(engine, &session, &err) || server_start(&options, &s, &err) ||
        server_wait_ready(s, &err))
        die("cannot start", &err);
    int port = server_port(s);
    json_t *result = json_object();
    json_object_set_new(result, "tokens", measure_tokens(port, session, tokenizer, rounds));
    json_object_set_new(result, "first_byte", measure_first_byte(port, rounds));
    json_object_set_new(result, "second_turn", measure_second_turn(port));
    json_object_set_new(result, "beside_a_long_prompt", measure_gap(port, tokenizer));
    json_dumpf(result, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(5));
    printf("\n");
    json_decref(result);
    calla_session_free(session);
    calla_engine_close(engine);
    calla_tokenizer_close(tokenizer);
    if (server_stop(s, 0, &err)) die("stop", &err);
    server_free(s);
    return 0;
}
