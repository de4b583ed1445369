/* What the check of a request adds before it leaves (detectors only, no model): from the client's
 * JSON to the bytes that would be sent, for requests of about 2,000 tokens of the 35B (4.4 bytes
 * each).
 *
 * usage: bench_hybrid [ROUNDS]. Prints one JSON object: milliseconds. */
#include "hybrid/hybrid.h"
#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_BYTES = 8800, N_TURNS = 30, MAX_ROUNDS = 10000 };

static _Noreturn void die(const calla_error *err)
{
    fprintf(stderr, "bench_hybrid: %s\n", err->message);
    exit(1);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Text of so many bytes; with something to find every few lines. */
static json_t *text_of(size_t n_bytes, bool sensitive)
{
    strbuf text = {0};
    for (int i = 0; text.n < n_bytes; i++) {
        strbuf_printf(
            &text,
            "Line %d of the report: on 2026-03-%02d order 10%05d was shipped with version "
            "2.%d.1, and the customer asked again when it would arrive at the office.\n",
            i, i % 28 + 1, i * 37, i);
        if (sensitive && i % 4 == 0)
            strbuf_printf(&text, "Reply to customer.%d@corp-mail.com or call +49 30 9018%04d.\n", i,
                          1000 + i);
    }
    json_t *value = json_stringn(text.data, n_bytes);
    strbuf_free(&text);
    return value;
}

static json_t *one_message(bool sensitive)
{
    return json_pack("{s:s, s:[{s:s, s:o}]}", "model", "hybrid", "messages", "role", "user",
                     "content", text_of(N_BYTES, sensitive));
}

/* The same amount as an agent sends it: calls and results. */
static json_t *many_turns(bool sensitive)
{
    json_t *messages = json_array();
    for (int i = 0; i < N_TURNS / 2; i++) {
        json_t *arguments =
            json_pack("{s:o, s:i}", "text", text_of(N_BYTES / N_TURNS, sensitive), "line", i);
        char *text = json_dumps(arguments, 0);
        json_array_append_new(messages, json_pack("{s:s, s:n, s:[{s:s, s:s, s:{s:s, s:s}}]}",
                                                  "role", "assistant", "content", "tool_calls",
                                                  "id", "call_1", "type", "function", "function",
                                                  "name", "edit", "arguments", text));
        json_array_append_new(messages,
                              json_pack("{s:s, s:s, s:o}", "role", "tool", "tool_call_id", "call_1",
                                        "content", text_of(N_BYTES / N_TURNS, sensitive)));
        free(text);
        json_decref(arguments);
    }
    return json_pack("{s:s, s:o}", "model", "hybrid", "messages", messages);
}

static void measure(hybrid *h, const char *name, json_t *body, int n_rounds)
{
    static double ms[MAX_ROUNDS];
    calla_error err;
    size_t n_replaced = 0;
    for (int i = 0; i < n_rounds; i++) {
        hybrid_plan plan;
        hybrid_request request = {.body = body};
        int64_t start_ns = clock_ns();
        if (hybrid_plan_make(h, &request, &plan, &err) != CALLA_OK) die(&err);
        ms[i] = (double)(clock_ns() - start_ns) / 1e6;
        n_replaced = plan.map ? redaction_map_size(plan.map) : 0;
        hybrid_plan_free(&plan);
    }
    qsort(ms, (size_t)n_rounds, sizeof *ms, compare);
    printf("\"%s\": {\"median_ms\": %.3f, \"p99_ms\": %.3f, \"replaced\": %zu}", name,
           ms[n_rounds / 2], ms[n_rounds * 99 / 100], n_replaced);
    json_decref(body);
}

int main(int argc, char **argv)
{
    int n_rounds = argc > 1 ? atoi(argv[1]) : 200;
    char dir[] = "/tmp/bench_hybrid.XXXXXX", policy_path[64], audit_path[64];
    calla_error err;
    hybrid *h;
    if (n_rounds < 1 || n_rounds > MAX_ROUNDS || !mkdtemp(dir)) return 2;
    snprintf(policy_path, sizeof policy_path, "%s/policy.json", dir);
    snprintf(audit_path, sizeof audit_path, "%s/audit.db", dir);
    FILE *f = fopen(policy_path, "w");
    if (!f || fputs("{\"categories\": {\"personal\": \"redact\"}}", f) < 0 || fclose(f) != 0)
        return 1;
    hybrid_options o = {
        .url = "http://127.0.0.1:1/v1", .model = "big", .policy = policy_path, .audit = audit_path};
    if (hybrid_open(&o, &h, &err) != CALLA_OK) die(&err);
    printf("{");
    measure(h, "one_message", one_message(false), n_rounds);
    printf(", ");
    measure(h, "one_message_redacted", one_message(true), n_rounds);
    printf(", ");
    measure(h, "thirty_messages", many_turns(false), n_rounds);
    printf(", ");
    measure(h, "thirty_messages_redacted", many_turns(true), n_rounds);
    printf("}\n");
    hybrid_close(h);
    unlink(policy_path);
    unlink(audit_path);
    rmdir(dir);
    return 0;
}
