/* The leak test: random conversations with secrets planted anywhere in them, through policies that
 * redact, ask and keep, against a cloud that records every byte. It must have received none of the
 * secrets; and what it says back must reach the client as the client wrote it.
 *
 * Secrets are made here, from the published definitions of their forms; the detectors have no part
 * in that. LEAK_CONVERSATIONS in the environment: how many [2000]. */
#include "hybrid/fake_cloud.h"
#include "hybrid/hybrid.h"
#include "support/files.h"
#include "support/support.h"

#include <ctype.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SECRETS = 8, CONVERSATIONS_A_POLICY = 100 };

static fake_cloud *cloud;
static hybrid *h;
static const char *dir;

/* ---- random numbers ---- */

static uint64_t seed = 20261130;

static uint32_t draw(uint32_t below)
{
    seed = seed * 6364136223846793005 + 1442695040888963407;
    return (uint32_t)(seed >> 33) % below;
}

static void put_letters(strbuf *out, const char *letters, int n)
{
    for (int i = 0; i < n; i++) strbuf_putc(out, letters[draw((uint32_t)strlen(letters))]);
}

#define DIGITS "0123456789"
#define LOWER  "abcdefghijklmnopqrstuvwxyz"
#define UPPER  "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

/* ---- secrets ---- */

typedef struct secret {
    char text[2048];  /* as it is planted */
    char needle[512]; /* what must not be received; compact: of letters and digits alone */
    bool compact;
} secret;

static void finish_secret(secret *s, strbuf *text, const char *needle, bool compact)
{
    snprintf(s->text, sizeof s->text, "%s", text->data);
    snprintf(s->needle, sizeof s->needle, "%s", needle ? needle : text->data);
    s->compact = compact;
    strbuf_free(text);
}

/* Groups of four, divided in one of the ways people do. */
static void put_grouped(strbuf *out, const char *text)
{
    static const char *const between[] = {"", " ", "-"};
    const char *b = between[draw(3)];
    for (size_t i = 0; text[i]; i++) {
        if (i > 0 && i % 4 == 0) strbuf_puts(out, b);
        strbuf_putc(out, text[i]);
    }
}

static void make_card(secret *s)
{
    strbuf digits = {0}, text = {0};
    int sum = 0;
    strbuf_putc(&digits, '4');
    put_letters(&digits, DIGITS, 14);
    for (int i = 0; i < 15; i++) { /* Luhn: every second digit doubled, from the right */
        int d = digits.data[14 - i] - '0';
        if (i % 2 == 0) d = 2 * d > 9 ? 2 * d - 9 : 2 * d;
        sum += d;
    }
    strbuf_putc(&digits, (char)('0' + (10 - sum % 10) % 10));
    put_grouped(&text, digits.data);
    finish_secret(s, &text, digits.data, true);
    strbuf_free(&digits);
}

static void make_iban(secret *s)
{
    char number[40], iban[40];
    strbuf bban = {0}, text = {0};
    put_letters(&bban, "123456789", 1);
    put_letters(&bban, DIGITS, 17);
    snprintf(number, sizeof number, "%s131400", bban.data); /* D = 13, E = 14 */
    int rest = 0;
    for (const char *p = number; *p; p++) rest = (rest * 10 + *p - '0') % 97;
    snprintf(iban, sizeof iban, "DE%02d%s", 98 - rest, bban.data);
    strbuf_free(&bban);
    if (draw(2))
        put_grouped(&text, iban);
    else
        strbuf_puts(&text, iban);
    finish_secret(s, &text, iban, true);
}

static void make_email(secret *s)
{
    static const char *const ends[] = {".com", ".org", ".de", ".co.uk", ".io"};
    strbuf text = {0};
    put_letters(&text, LOWER, 4 + (int)draw(6));
    if (draw(2)) strbuf_putc(&text, "._+"[draw(3)]), put_letters(&text, LOWER, 4);
    strbuf_putc(&text, '@');
    put_letters(&text, LOWER, 5 + (int)draw(6));
    strbuf_puts(&text, ends[draw(5)]);
    finish_secret(s, &text, NULL, false);
}

static void make_aws(secret *s)
{
    strbuf text = {0};
    strbuf_puts(&text, "AKIA");
    put_letters(&text, UPPER "234567", 16);
    finish_secret(s, &text, NULL, false);
}

static void make_stripe(secret *s)
{
    strbuf text = {0};
    strbuf_puts(&text, "sk_live_");
    put_letters(&text, LOWER UPPER DIGITS, 24);
    finish_secret(s, &text, NULL, false);
}

static void make_google(secret *s)
{
    strbuf text = {0};
    strbuf_puts(&text, "AIza");
    put_letters(&text, LOWER UPPER DIGITS, 35);
    finish_secret(s, &text, NULL, false);
}

static void make_password(secret *s)
{
    static const char *const names[] = {"password = ", "PASSWORD=", "db_password: ", "passwd: "};
    strbuf text = {0}, value = {0};
    put_letters(&value, LOWER, 4);
    put_letters(&value, UPPER, 4);
    put_letters(&value, DIGITS, 4);
    put_letters(&value, "!%#*+", 2);
    strbuf_puts(&text, names[draw(4)]);
    strbuf_puts(&text, value.data);
    finish_secret(s, &text, value.data, false);
    strbuf_free(&value);
}

static void make_private_key(secret *s)
{
    static const char letters[] = LOWER UPPER DIGITS "+/";
    strbuf text = {0}, line = {0};
    strbuf_puts(&text, "-----BEGIN PRIVATE KEY-----\n");
    for (int i = 0; i < 10; i++) {
        strbuf_clear(&line);
        put_letters(&line, letters, 64);
        strbuf_printf(&text, "%s\n", line.data);
    }
    strbuf_puts(&text, "-----END PRIVATE KEY-----\n");
    finish_secret(s, &text, line.data, false);
    strbuf_free(&line);
}

static void make_secret(secret *s)
{
    static void (*const makers[])(secret *) = {make_card,     make_iban,       make_email,
                                               make_aws,      make_stripe,     make_google,
                                               make_password, make_private_key};
    makers[draw(8)](s);
}

/* ---- conversations ---- */

static void put_words(strbuf *out, int n)
{
    static const char *const words[] = {
        "please", "look",   "at",        "this",   "order", "from",   "the", "river",
        "and",    "tell",   "me",        "what",   "total", "number", "is",  "in",
        "for",    "report", "we",        "have",   "to",    "write",  "a",   "letter",
        "about",  "it",     "[EMAIL_1]", "v1.2.3", "12:30", "{}"};
    for (int i = 0; i < n; i++) strbuf_printf(out, "%s ", words[draw(30)]);
}

/* Some text with the secret (NULL: none) in the middle. */
static json_t *prose(const secret *s)
{
    strbuf text = {0};
    put_words(&text, 3 + (int)draw(12));
    if (s) strbuf_printf(&text, "%s", s->text);
    if (s) strbuf_puts(&text, draw(2) ? " " : "\n");
    put_words(&text, (int)draw(12));
    json_t *value = json_stringn(text.data, text.n);
    strbuf_free(&text);
    return value;
}

static json_t *parts(const secret *s)
{
    json_t *list = json_array();
    json_array_append_new(list, json_pack("{s:s, s:o}", "type", "text", "text", prose(NULL)));
    json_array_append_new(list, json_pack("{s:s, s:o}", "type", "text", "text", prose(s)));
    return list;
}

/* An assistant's call with the secret in its arguments, and the tool's result. */
static void add_call(json_t *messages, const secret *in_arguments, const secret *in_result)
{
    json_t *arguments = json_pack("{s:o, s:[o], s:i}", "query", prose(in_arguments), "more",
                                  prose(NULL), "n", (int)draw(100));
    char *text = json_dumps(arguments, draw(2) ? JSON_ENSURE_ASCII : 0);
    json_array_append_new(messages,
                          json_pack("{s:s, s:n, s:[{s:s, s:s, s:{s:s, s:s}}]}", "role", "assistant",
                                    "content", "tool_calls", "id", "call_1", "type", "function",
                                    "function", "name", "look", "arguments", text));
    json_array_append_new(messages, json_pack("{s:s, s:s, s:o}", "role", "tool", "tool_call_id",
                                              "call_1", "content", prose(in_result)));
    free(text);
    json_decref(arguments);
}

static json_t *tools(const secret *in_description, const secret *in_schema)
{
    return json_pack("[{s:s, s:{s:s, s:o, s:{s:s, s:{s:{s:s, s:o}}}}}]", "type", "function",
                     "function", "name", "look", "description", prose(in_description), "parameters",
                     "type", "object", "properties", "query", "type", "string", "default",
                     prose(in_schema));
}

/* The secrets go to places by chance; some are not planted. The last message is the user's. */
static json_t *conversation(const secret *secrets, int n)
{
    json_t *messages = json_array(), *body;
    const secret *at[8] = {0};
    for (int i = 0; i < n; i++) at[draw(8)] = &secrets[i];
    json_array_append_new(messages,
                          json_pack("{s:s, s:o}", "role", "system", "content", prose(at[0])));
    json_array_append_new(messages,
                          json_pack("{s:s, s:o}", "role", "user", "content", parts(at[1])));
    add_call(messages, at[2], at[3]);
    json_array_append_new(messages,
                          json_pack("{s:s, s:o}", "role", "user", "content", prose(at[4])));
    body = json_pack("{s:s, s:o, s:b}", "model", "hybrid", "messages", messages, "stream",
                     (int)draw(2));
    if (draw(2)) json_object_set_new(body, "tools", tools(at[5], at[6]));
    if (at[7]) {
        json_object_set_new(body, "user", json_string(at[7]->text));
        json_object_set_new(body, "metadata", json_pack("{s:s}", "note", at[7]->text));
        json_object_set_new(body, "prompt_cache_key", json_string(at[7]->text));
        json_object_set_new(body, "stop", json_pack("[s]", at[7]->text));
    }
    return body;
}

/* ---- the cloud ---- */

static char *echo(void *user, const char *body, const char **type)
{
    json_t *request = json_loads(body, 0, NULL);
    const json_t *messages = json_object_get(request, "messages");
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const char *text = json_string_value(json_object_get(last, "content"));
    strbuf out = {0};
    size_t n = strlen(text), step = *(const size_t *)user;
    if (json_is_true(json_object_get(request, "stream"))) {
        *type = "text/event-stream";
        for (size_t i = 0; i < n; i += step) {
            strbuf_puts(&out, "data: {\"choices\": [{\"index\": 0, \"delta\": {\"content\": ");
            json_write_string(&out, text + i, n - i < step ? n - i : step);
            strbuf_puts(&out, "}}]}\n\n");
        }
        strbuf_puts(&out, "data: {\"choices\": [{\"index\": 0, \"delta\": {}, \"finish_reason\": "
                          "\"stop\"}]}\n\ndata: [DONE]\n\n");
    } else {
        strbuf_puts(&out, "{\"choices\": [{\"index\": 0, \"message\": {\"role\": \"assistant\", "
                          "\"content\": ");
        json_write_string(&out, text, n);
        strbuf_puts(&out, "}, \"finish_reason\": \"stop\"}]}");
    }
    json_decref(request);
    return out.data;
}

/* The content of an answer, whole or streamed. */
static void take_content(const char *answer, strbuf *text)
{
    bool stream = strncmp(answer, "data: ", 6) == 0;
    for (const char *at = stream ? answer : NULL; at; at = strstr(at + 1, "data: {")) {
        const char *end = strstr(at, "\n\n");
        json_t *chunk = json_loadb(at + 6, (size_t)(end - at - 6), 0, NULL);
        const json_t *choice = json_array_get(json_object_get(chunk, "choices"), 0);
        const char *piece =
            json_string_value(json_object_get(json_object_get(choice, "delta"), "content"));
        if (piece) strbuf_puts(text, piece);
        json_decref(chunk);
    }
    if (stream) return;
    json_t *whole = json_loads(answer, 0, NULL);
    const json_t *choice = json_array_get(json_object_get(whole, "choices"), 0);
    strbuf_puts(text,
                json_string_value(json_object_get(json_object_get(choice, "message"), "content")));
    json_decref(whole);
}

/* ---- the test ---- */

static void set_policy(void)
{
    static const char *const actions[] = {"redact", "ask", "keep_local"};
    static const char *const classes[] = {"credentials", "finance", "personal"};
    strbuf text = {0};
    calla_error err;
    for (int i = 0; i < 3; i++)
        strbuf_printf(&text, "%s\"%s\": \"%s\"", i ? ", " : "{\"categories\": {", classes[i],
                      actions[draw(2) ? 0 : draw(3)]);
    strbuf_puts(&text, "}}");
    put_test_file(dir, "policy.json", text.data);
    assert_ok(hybrid_reload(h, &err), &err);
    strbuf_free(&text);
}

static void expect_none(const char *received, const secret *secrets, int n, const json_t *body)
{
    char *compact = malloc(strlen(received) + 1), *end = compact;
    for (const char *p = received; *p; p++)
        if (isalnum((unsigned char)*p)) *end++ = *p;
    *end = '\0';
    for (int i = 0; i < n; i++) {
        if (!strstr(secrets[i].compact ? compact : received, secrets[i].needle)) continue;
        char *text = json_dumps(body, 0);
        fail_msg("'%s' has left:\n%s\n%s", secrets[i].text, text, received);
    }
    free(compact);
}

static void exchange(hybrid_plan *plan, const json_t *body)
{
    hybrid_exchange *x;
    hybrid_progress p;
    calla_error err;
    strbuf out = {0}, text = {0};
    assert_ok(hybrid_exchange_begin(h, plan, &x, &err), &err);
    for (;;) {
        hybrid_exchange_take(x, &out, &p);
        if (p.state == HYBRID_ANSWERED || p.state == HYBRID_FAILED) break;
        struct pollfd fd = {.fd = hybrid_exchange_fd(x), .events = POLLIN};
        assert_int_equal(poll(&fd, 1, PATIENCE_S * 1000), 1);
    }
    hybrid_exchange_end(x);
    assert_int_equal(p.state, HYBRID_ANSWERED);
    const json_t *messages = json_object_get(body, "messages");
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    take_content(out.data, &text);
    assert_string_equal(text.data, json_string_value(json_object_get(last, "content")));
    strbuf_free(&out);
    strbuf_free(&text);
}

static void test_leaks(void **state)
{
    (void)state;
    const char *wanted = getenv("LEAK_CONVERSATIONS");
    int n = wanted ? atoi(wanted) : 2000, routes[4] = {0}, n_planted = 0;
    size_t step = 1;
    fake_cloud_reply(cloud, echo, &step);
    for (int i = 0; i < n; i++) {
        secret secrets[MAX_SECRETS];
        int n_secrets = (int)draw(4);
        hybrid_plan plan;
        calla_error err;
        if (i % CONVERSATIONS_A_POLICY == 0) set_policy();
        step = 1 + draw(20);
        for (int k = 0; k < n_secrets; k++) make_secret(&secrets[k]);
        json_t *body = conversation(secrets, n_secrets);
        hybrid_request q = {.body = body, .only_cloud = draw(2)};
        assert_ok(hybrid_plan_make(h, &q, &plan, &err), &err);
        if (plan.route == HYBRID_CLOUD) exchange(&plan, body);
        char *received = fake_cloud_received(cloud);
        assert_int_equal(*received != '\0', plan.route == HYBRID_CLOUD);
        expect_none(received, secrets, n_secrets, body);
        fake_cloud_forget(cloud);
        free(received);
        n_planted += n_secrets;
        routes[plan.route]++;
        hybrid_plan_free(&plan);
        json_decref(body);
    }
    printf(
        "%d conversations with %d secrets: %d here, %d to the cloud, %d asked about, %d refused; "
        "0 secrets received\n",
        n, n_planted, routes[0], routes[1], routes[2], routes[3]);
    if (n >= 1000)
        for (int r = 0; r < 4; r++) assert_true(routes[r] > n / 50);
}

static int setup(void **state)
{
    (void)state;
    static char audit_path[600], policy_path[600];
    calla_error err;
    dir = temporary_dir();
    snprintf(audit_path, sizeof audit_path, "%s/audit.db", dir);
    snprintf(policy_path, sizeof policy_path, "%s/policy.json", dir);
    put_test_file(dir, "policy.json", "{}");
    cloud = fake_cloud_start();
    hybrid_options o = {
        .url = fake_cloud_url(cloud), .model = "big", .policy = policy_path, .audit = audit_path};
    assert_ok(hybrid_open(&o, &h, &err), &err);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    hybrid_close(h);
    fake_cloud_stop(cloud);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_leaks)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
