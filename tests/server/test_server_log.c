/* The log: a line for each request, and why so little of a prompt was known. */
#include "server/client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *text;
static size_t n_text;
static FILE *file;

static server *begin(bool json, bool verbose)
{
    server_options options = client_options();
    file = open_memstream(&text, &n_text);
    assert_non_null(file);
    options.log = file;
    options.log_json = json, options.log_verbose = verbose;
    return client_start(&options);
}

/* Ends the server; the log is in `text`, to be freed. */
static void finish(server *s)
{
    client_stop(s);
    fclose(file);
}

/* The lines of one event of a log in JSON. */
static json_t *lines_of(const char *event)
{
    json_t *lines = json_array();
    for (char *line = text, *end; *line; line = end + 1) {
        end = strchr(line, '\n');
        assert_non_null(end);
        json_t *value = json_loadb(line, (size_t)(end - line), JSON_REJECT_DUPLICATES, NULL);
        if (!value) fail_msg("no JSON: %.*s", (int)(end - line), line);
        assert_int_equal(strlen(text_at(value, "time")), strlen("2026-01-01T00:00:00.000Z"));
        if (strcmp(text_at(value, "event"), event) == 0) json_array_append(lines, value);
        json_decref(value);
    }
    return lines;
}

/* Of those lines the one that says so; which thread writes first is nobody's concern. */
static const json_t *line_with(const json_t *lines, const char *name, const char *value)
{
    size_t i;
    json_t *line;
    json_array_foreach(lines, i, line)
    {
        const char *text_there = json_string_value(json_object_get(line, name));
        if (text_there && strcmp(text_there, value) == 0) return line;
    }
    fail_msg("no line with %s \"%s\"", name, value);
    return NULL;
}

static void every_request_is_a_line(void **state)
{
    (void)state;
    server *s = begin(true, false);
    answer_t a = client_post_json(s, 200, "/v1/chat/completions", chat("What is a river?"));
    answer_t b = client_post_json(s, 200, "/v1/chat/completions", chat("What is a river?"));
    answer_t c = client_get(s, 404, "/%ff\"");
    answer_t d = client_get(s, 200, "/health"); /* asked so often that it is no news */
    finish(s);
    json_t *lines = lines_of("request");
    assert_int_equal(json_array_size(lines), 3);
    const json_t *first = line_with(lines, "id", text_at(a.json, "id"));
    const json_t *second = line_with(lines, "id", text_at(b.json, "id"));
    assert_string_equal(text_at(first, "method"), "POST");
    assert_string_equal(text_at(first, "path"), "/v1/chat/completions");
    assert_int_equal(int_at(first, "status"), 200);
    assert_int_equal(int_at(first, "prompt_tokens"), int_at(a.json, "usage.prompt_tokens"));
    assert_int_equal(int_at(first, "cached_tokens"), 0);
    assert_int_equal(int_at(second, "cached_tokens"), int_at(a.json, "usage.prompt_tokens"));
    assert_int_equal(int_at(first, "generated_tokens"), int_at(a.json, "usage.completion_tokens"));
    assert_string_equal(text_at(first, "finish"), "stop");
    static const char *const numbers[] = {"ms", "queue_ms", "first_token_ms",
                                          "prefill_tokens_per_s", "decode_tokens_per_s"};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        assert_true(json_number_value(json_at(first, numbers[i])) > 0);
    assert_int_equal(int_at(line_with(lines, "path", "/<ff>\""), "status"), 404);
    json_decref(lines);
    free(text);
    answer_clear(&a);
    answer_clear(&b);
    answer_clear(&c);
    answer_clear(&d);
}

/* A long question that begins and ends so. */
static void ask_long(const server *s, const char *start, const char *end)
{
    char question[6000];
    snprintf(question, sizeof question, "%s", start);
    while (strlen(question) < 3000) strcat(question, " I would like to know it.");
    strcat(question, end);
    json_t *body = chat(question);
    json_object_set_new(body, "max_tokens", json_integer(1));
    answer_t a = client_post_json(s, 200, "/v1/chat/completions", body);
    answer_clear(&a);
}

static void a_miss_says_why(void **state)
{
    (void)state;
    server *s = begin(true, false);
    ask_long(s, "What is a river?", ""); /* nothing is known yet, which is no miss */
    ask_long(s, "What is a mountain?", "");
    ask_long(s, "What is a mountain?", "");      /* known */
    ask_long(s, "What is a mountain?", " Now."); /* more than half of it, too */
    finish(s);
    json_t *lines = lines_of("cache_miss");
    assert_int_equal(json_array_size(lines), 1);
    const json_t *miss = json_array_get(lines, 0);
    assert_true(int_at(miss, "prompt_tokens") > 500);
    assert_true(int_at(miss, "reused") < int_at(miss, "known"));
    assert_true(int_at(miss, "known") < 10); /* "What is a" in a user's message */
    assert_string_equal(text_at(miss, "cached_text"), " river");
    assert_string_equal(text_at(miss, "prompt_text"), " mountain");
    assert_string_equal(text_at(miss, "why"), "no snapshot stands deeper");
    json_decref(lines);
    free(text);
}

static void lines_are_text_without_json(void **state)
{
    (void)state;
    server *s = begin(false, true);
    answer_t a = client_post_json(s, 200, "/v1/chat/completions", chat("What is a river?"));
    answer_t b = client_get(s, 404, "/a%20b\"");
    finish(s);
    assert_non_null(strstr(text, "Z request method=POST path=/v1/chat/completions status=200 "));
    assert_non_null(strstr(text, " finish=stop\n"));
    assert_non_null(strstr(text, " path=\"/a b\\\"\" status=404 "));
    assert_non_null(strstr(text, "Z cache id=chatcmpl-")); /* verbose: of each request */
    free(text);
    answer_clear(&a);
    answer_clear(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_request_is_a_line),
        cmocka_unit_test(a_miss_says_why),
        cmocka_unit_test(lines_are_text_without_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
