/* What becomes of an answer in the form of /v1/responses: the same whatever tokens it came in and
 * however it was cut, streamed or whole. */
#include "server/feed.h"
#include "server/reply.h"
#include "server/response_events.h"

#include <stdlib.h>
#include <string.h>

static calla_error err;

/* Text that a model could write, how it ended, and what its items are. */
static const struct {
    const char *text, *finish, *items;
} answers[] = {
    {"I think \xf0\x9f\x98\x80.\n</think>\n\nNa\xc3\xafve \xe4\xbd\xa0\xe5\xa5\xbd!", "stop",
     "reasoning[I think \xf0\x9f\x98\x80.] message[Na\xc3\xafve \xe4\xbd\xa0\xe5\xa5\xbd!]"},
    {"Short.\n</think>\n\nLet me look.\n\n<tool_call>\n<function=f>\n<parameter=a>\n12\n"
     "</parameter>\n<parameter=b>\n\xe2\x82\xac \"x\"\n</parameter>\n</function>\n</tool_call>\n"
     "<tool_call>\n<function=g>\n</function>\n</tool_call>",
     "tool_calls",
     "reasoning[Short.] message[Let me look.] f({\"a\": 12, \"b\": \"\xe2\x82\xac \\\"x\\\"\"}) "
     "g({})"},
    {"No end <tool_call>\n<function=f>\n<parameter=b>\nlines </parameter\n", "length",
     "reasoning[No end] f({\"b\": \"lines </parameter\"}) incomplete"},
    {"Cut off in tho", "length", "reasoning[Cut off in tho] incomplete"},
    {"Cut.\n</think>\n\nin a senten", "length", "reasoning[Cut.] message[in a senten] incomplete"},
    {"Nothing to say.\n</think>\n\n", "stop", "reasoning[Nothing to say.] message[]"},
    {"\n</think>\n\nNo thought. ENDING", "stop", "message[No thought. ]"},
};
enum { N_ANSWERS = sizeof answers / sizeof *answers };

static json_t *tools_of_test(void)
{
    return json_pack("[{s:s, s:{s:s, s:{s:s, s:{s:{s:s}, s:{s:s}}}}}, {s:s, s:{s:s}}]", "type",
                     "function", "function", "name", "f", "parameters", "type", "object",
                     "properties", "a", "type", "integer", "b", "type", "string", "type",
                     "function", "function", "name", "g");
}

/* The response to answer i, streamed or whole; in random tokens and batches if `randomly`. */
static json_t *respond(int i, bool stream, bool randomly)
{
    feed f;
    json_t *tools = tools_of_test(), *response;
    job_request request = {.chat = true,
                           .n = 1,
                           .stream = stream,
                           .tools = tools,
                           .body = json_object(),
                           .n_stops = 1,
                           .stops = {"END"}};
    feed_begin(&f, &request);
    json_decref(tools);
    f.job->n_prompts = 1;
    f.job->prompts = calloc(1, sizeof *f.job->prompts);
    reply *r = reply_create(&reply_responses, &feed_words, "tiny", SIZE_MAX, f.job);
    assert_non_null(r);
    const char *text = answers[i].text;
    size_t n_left = strlen(text);
    while (n_left > 0) {
        char piece[40];
        size_t n = randomly ? 1 + (size_t)rand() % 30 : n_left;
        if (n > n_left) n = n_left;
        while (n < n_left && ((unsigned char)text[n] & 0xc0) == 0x80) n++;
        if (randomly) {
            snprintf(piece, sizeof piece, "%.*s", (int)n, text);
            feed_randomly(&f, piece);
            if (rand() % 2) reply_run(r, -1, 0); /* what is there goes out */
        } else {
            feed_text(&f, text, n);
        }
        text += n;
        n_left -= n;
    }
    assert_ok(answer_finish(&f.answer, &err), &err);
    outbox_put(&f.job->out, EVENT_FINISH, 0, 0, 0, answers[i].finish, strlen(answers[i].finish));
    outbox_close(&f.job->out);
    while (!r->closed) reply_run(r, -1, INT64_MAX);
    if (stream) {
        const char *status = strcmp(answers[i].finish, "length") ? "completed" : "incomplete";
        json_t *events = response_events(r->out.data);
        response = json_deep_copy(response_of(events, status));
        json_decref(events);
    } else {
        response = json_loads(r->out.data, JSON_REJECT_DUPLICATES, NULL);
        if (!response) fail_msg("no JSON: %s", r->out.data);
    }
    feed_end_answer(&f);
    reply_free(r);
    return response;
}

/* The items of a response as one text, as `answers` has it. */
static char *describe(const json_t *response)
{
    static char text[1000];
    const json_t *output = json_object_get(response, "output");
    const char *status = "completed";
    *text = '\0';
    for (size_t i = 0; i < json_array_size(output); i++) {
        const json_t *item = json_array_get(output, i);
        const char *type = json_string_value(json_object_get(item, "type"));
        const char *name = json_string_value(json_object_get(item, "name"));
        const json_t *part = json_array_get(json_object_get(item, "content"), 0);
        const char *said = json_string_value(name ? json_object_get(item, "arguments")
                                                  : json_object_get(part, "text"));
        size_t n = strlen(text);
        assert_string_equal(status, "completed"); /* all but the last */
        snprintf(text + n, sizeof text - n, name ? "%s%s(%s)" : "%s%s[%s]", n ? " " : "",
                 name ? name : type, said);
        status = json_string_value(json_object_get(item, "status"));
    }
    if (strcmp(status, "completed") != 0) strcat(strcat(text, " "), status);
    return text;
}

static void items_do_not_depend_on_the_tokens(void **state)
{
    (void)state;
    srand(7);
    for (int i = 0; i < N_ANSWERS; i++) {
        json_t *whole = respond(i, false, false);
        assert_string_equal(describe(whole), answers[i].items);
        response_make_plain(whole);
        for (int round = 0; round < 60; round++) {
            json_t *other = respond(i, round % 4 != 0, true);
            response_make_plain(other);
            if (!json_equal(other, whole))
                fail_msg("%s instead of %s", json_dumps(other, 0), json_dumps(whole, 0));
            json_decref(other);
        }
        json_decref(whole);
    }
}

/* A reply to a job that the test plays the engine for. */
static reply *begin_reply(bool stream, size_t max_bytes)
{
    job *j = job_create(&err);
    j->request = (job_request){.n = 1, .chat = true, .stream = stream, .body = json_object()};
    j->n_prompts = 1;
    j->prompts = calloc(1, sizeof *j->prompts);
    reply *r = reply_create(&reply_responses, &feed_words, "tiny", max_bytes, j);
    assert_non_null(r);
    return r;
}

static void put(reply *r, event_kind kind, int64_t a, const char *text)
{
    outbox_put(&r->job->out, kind, 0, a, 0, text, strlen(text));
}

static void end_job(reply *r)
{
    outbox_close(&r->job->out);
    while (!r->closed) reply_run(r, -1, INT64_MAX);
}

/* A stream that breaks off says so in its last event, with what was done until then. */
static void a_stream_can_fail(void **state)
{
    (void)state;
    reply *r = begin_reply(true, SIZE_MAX);
    put(r, EVENT_REASONING, 0, "hm");
    put(r, EVENT_CONTENT, 0, "So");
    put(r, EVENT_ERROR, 504, "too \"slow\"");
    end_job(r);
    json_t *events = response_events(r->out.data);
    const json_t *response = response_of(events, "failed");
    const json_t *error = json_object_get(response, "error");
    assert_string_equal(json_string_value(json_object_get(error, "code")), "server_error");
    assert_string_equal(json_string_value(json_object_get(error, "message")), "too \"slow\"");
    assert_int_equal(json_array_size(json_object_get(response, "output")), 1);
    json_decref(events);
    reply_free(r);
}

/* A stream is repeated at its end, so it is held to the bound of a whole answer. */
static void what_is_held_is_bounded(void **state)
{
    (void)state;
    reply *r = begin_reply(true, 2000);
    for (int i = 0; i < 300 && !atomic_load(&r->job->cancelled); i++) {
        put(r, EVENT_CONTENT, 0, "ten bytes ");
        reply_run(r, -1, INT64_MAX);
    }
    assert_true(atomic_load(&r->job->cancelled));
    end_job(r);
    json_t *events = response_events(r->out.data);
    response_of(events, "failed");
    json_decref(events);
    reply_free(r);
}

/* Nobody waits: the engine lets go of the job without a reason. */
static void a_job_may_end_without_a_reason(void **state)
{
    (void)state;
    for (int stream = 0; stream < 2; stream++) {
        reply *r = begin_reply(stream, SIZE_MAX);
        put(r, EVENT_TOOL_BEGIN, 0, "f");
        outbox_close(&r->job->out);
        reply_free(r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(items_do_not_depend_on_the_tokens),
        cmocka_unit_test(a_stream_can_fail),
        cmocka_unit_test(what_is_held_is_bounded),
        cmocka_unit_test(a_job_may_end_without_a_reason),
    };
    return cmocka_run_group_tests(tests, feed_setup, feed_teardown);
}
