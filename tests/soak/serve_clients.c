/* 64 clients for a minute against a running server, many of which leave before their answer ends:
 * nothing but 200, 429 and 503 comes back, and the server's memory stays what it was.
 * usage: serve_clients PORT PID SECONDS */
#include "base/clock.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_CLIENTS = 64, WARM_UP_PERCENT = 40 };

static int port;
static int64_t end_ns;
static atomic_llong n_ok, n_refused, n_aborted, n_bad;

typedef struct client {
    pthread_t thread;
    unsigned seed;
    int64_t abort_ns; /* of the request at hand, INT64_MAX = never */
    size_t n_bytes;
    char tail[128];
} client;

static size_t on_data(char *data, size_t size, size_t n, void *user)
{
    client *c = user;
    size_t bytes = size * n, kept = bytes < sizeof c->tail - 1 ? bytes : sizeof c->tail - 1;
    c->n_bytes += bytes;
    memcpy(c->tail, data + bytes - kept, kept);
    c->tail[kept] = '\0';
    return bytes;
}

static int on_progress(void *user, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    (void)a, (void)b, (void)c, (void)d;
    return clock_ns() >= ((client *)user)->abort_ns;
}

static void make_body(client *c, char *body, size_t n_body, bool *stream)
{
    static const char *const words[] = {"dog", "river", "moon", "king", "tree", "house", "star"};
    unsigned r = (unsigned)rand_r(&c->seed);
    char padding[2048] = "";
    *stream = r % 2;
    for (unsigned i = 0; i < r / 16 % 60; i++) strcat(padding, "please tell me now ");
    snprintf(
        body, n_body,
        "{\"messages\": [{\"role\": \"system\", \"content\": \"System number %u.\"}, {\"role\": "
        "\"user\", \"content\": \"%s What is a %s?\"}], \"stream\": %s, \"max_tokens\": %u, "
        "\"enable_thinking\": %s, \"n\": %u, \"logprobs\": %s, \"user\": \"u%u\"}",
        r / 64 % 5, padding, words[r / 512 % 7], *stream ? "true" : "false", 1 + r / 4096 % 80,
        r / 8 % 2 ? "true" : "false", r % 11 == 0 ? 2 : 1, r % 5 == 0 ? "true" : "false", r % 9);
}

static void request(client *c, CURL *curl)
{
    char body[4096];
    bool stream;
    long status = 0;
    make_body(c, body, sizeof body, &stream);
    bool aborts = rand_r(&c->seed) % 3 == 0;
    c->abort_ns = aborts ? clock_ns() + (int64_t)(rand_r(&c->seed) % 500) * 1000000 : INT64_MAX;
    c->n_bytes = 0;
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body);
    CURLcode code = curl_easy_perform(curl);
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    if (code == CURLE_ABORTED_BY_CALLBACK) {
        n_aborted++;
    } else if (code == CURLE_OK && (status == 429 || status == 503)) {
        n_refused++;
        usleep(200000);
    } else if (code == CURLE_OK && status == 200 &&
               (!stream || strstr(c->tail, "data: [DONE]\n\n"))) {
        n_ok++;
    } else {
        n_bad++;
        fprintf(stderr, "%s, status %ld, %zu bytes, end: %s\n", curl_easy_strerror(code), status,
                c->n_bytes, c->tail);
    }
}

static void *run(void *user)
{
    client *c = user;
    CURL *curl = curl_easy_init();
    char url[64];
    struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/json");
    snprintf(url, sizeof url, "http://127.0.0.1:%d/v1/chat/completions", port);
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_data);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, c);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, c);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT, 120L);
    while (clock_ns() < end_ns) request(c, curl);
    curl_slist_free_all(headers);
    curl_easy_cleanup(curl);
    return NULL;
}

/* Resident memory that belongs to the process alone. */
static long anonymous_kb(int pid)
{
    char path[64], line[256];
    long kb = 0;
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) sscanf(line, "RssAnon: %ld", &kb);
    if (f) fclose(f);
    return kb;
}

int main(int argc, char **argv)
{
    static client clients[N_CLIENTS];
    if (argc != 4) return 2;
    port = atoi(argv[1]);
    int pid = atoi(argv[2]);
    int64_t ns = (int64_t)atoi(argv[3]) * 1000000000;
    end_ns = clock_ns() + ns;
    curl_global_init(CURL_GLOBAL_DEFAULT);
    for (int i = 0; i < N_CLIENTS; i++) {
        clients[i].seed = (unsigned)i + 1;
        pthread_create(&clients[i].thread, NULL, run, &clients[i]);
    }
    usleep((useconds_t)(ns / 1000 * WARM_UP_PERCENT / 100));
    long before = anonymous_kb(pid);
    for (int i = 0; i < N_CLIENTS; i++) pthread_join(clients[i].thread, NULL);
    long after = anonymous_kb(pid);
    double growth = before > 0 ? 100.0 * (double)(after - before) / (double)before : 100;
    printf("%lld answered, %lld refused (429, 503), %lld left, %lld wrong; memory %ld to %ld KB, "
           "%+.2f %%\n",
           (long long)n_ok, (long long)n_refused, (long long)n_aborted, (long long)n_bad, before,
           after, growth);
    return n_bad == 0 && n_ok > 0 && growth <= 1 ? 0 : 1;
}
