/* Queue, streams side by side, clients that leave, time limits, shutdown. */
#include "server/client.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

static const char path[] = "/v1/chat/completions";

/* ---- requests in threads of their own ---- */

typedef struct caller {
    pthread_t thread;
    const server *s;
    request_t request;
    answer_t answer;
    int64_t start_ns, end_ns;
} caller;

static void *call(void *user)
{
    caller *c = user;
    c->start_ns = clock_ns();
    c->answer = client_send(c->s, &c->request);
    c->end_ns = clock_ns();
    return NULL;
}

static void begin(caller *c, const server *s, const char *body)
{
    c->s = s;
    c->request.path = path;
    c->request.body = body;
    assert_int_equal(pthread_create(&c->thread, NULL, call, c), 0);
}

static void end(caller *c)
{
    pthread_join(c->thread, NULL);
}

static char *endless(const server *s, int max_tokens, bool stream)
{
    json_t *body = endless_chat(s, max_tokens, stream);
    char *text = json_dumps(body, 0);
    json_decref(body);
    return text;
}

static char *long_prompt(int n_bytes, int seed)
{
    char *text = malloc((size_t)n_bytes + 64);
    int n = sprintf(text, "Number %d.", seed);
    while (n < n_bytes) n += sprintf(text + n, " a word");
    json_t *body = json_pack("{s:[{s:s, s:s}], s:i, s:i}", "messages", "role", "user", "content",
                             text, "temperature", 0, "max_tokens", 1);
    free(text);
    text = json_dumps(body, 0);
    json_decref(body);
    return text;
}

/* ---- tests ---- */

static void a_full_queue_is_a_429(void **state)
{
    (void)state;
    server_options options = client_options();
    calla_error err;
    options.n_parallel = 1, options.n_queue = 2;
    options.engine.n_ctx = 100000;
    server *s = client_start(&options);
    char *body = endless(s, 90000, false); /* until the server ends */
    caller callers[3] = {0};
    for (int i = 0; i < 3; i++) {
        begin(&callers[i], s, body);
        client_wait_for(s, i == 0 ? "calla_choices_running" : "calla_jobs_queued", i == 0 ? 1 : i);
    }
    for (int i = 0; i < 5; i++) {
        answer_t a = client_send(s, &(request_t){.path = path, .body = body});
        assert_int_equal(a.status, 429);
        assert_string_equal(text_at(a.json, "error.code"), "queue_full");
        assert_non_null(strstr(a.headers, "Retry-After: "));
        answer_clear(&a);
    }
    assert_true(client_metric(s, "calla_requests_rejected_total") == 5);
    assert_ok(server_stop(s, 0, &err), &err);
    for (int i = 0; i < 3; i++) {
        end(&callers[i]);
        assert_int_equal(callers[i].answer.status, 503);
        answer_clear(&callers[i].answer);
    }
    server_free(s);
    free(body);
}

static void answers_run_side_by_side_and_are_the_same(void **state)
{
    (void)state;
    server_options options = client_options();
    options.n_parallel = 8;
    server *s = client_start(&options);
    static const char *const words[] = {"dog", "river", "moon", "king", "tree", "house"};
    caller callers[24] = {0};
    char *bodies[24];
    for (int i = 0; i < 24; i++) {
        char question[64];
        snprintf(question, sizeof question, "What is a %s?", words[i % 6]);
        json_t *body = chat(question);
        bodies[i] = json_dumps(body, 0);
        json_decref(body);
        begin(&callers[i], s, bodies[i]);
    }
    for (int i = 0; i < 24; i++) end(&callers[i]);
    for (int i = 0; i < 24; i++) {
        assert_int_equal(callers[i].answer.status, 200);
        assert_string_equal(content_of(&callers[i].answer), content_of(&callers[i % 6].answer));
        assert_non_null(strstr(content_of(&callers[i].answer), words[i % 6]));
    }
    assert_true(client_metric(s, "calla_decode_steps_total") <
                client_metric(s, "calla_decoded_tokens_total"));
    for (int i = 0; i < 24; i++) {
        answer_clear(&callers[i].answer);
        free(bodies[i]);
    }
    client_stop(s);
}

/* While long prompts are read, an answer that is running goes on. */
static void long_prompts_do_not_stall_streams(void **state)
{
    (void)state;
    server_options options = client_options();
    options.n_parallel = 2;
    server *s = client_start(&options);
    char *stream = endless(s, 60, true), *prompt = long_prompt(6000, 1);
    caller one = {0}, other = {0};
    begin(&other, s, prompt);
    client_wait_for(s, "calla_choices_running", 1);
    begin(&one, s, stream);
    end(&one);
    end(&other);
    assert_int_equal(one.answer.status, 200);
    assert_int_equal(other.answer.status, 200);
    assert_true(int_at(other.answer.json, "timings.prefill_tokens") > 1000);
    assert_true(one.answer.first_byte_s < (double)(other.end_ns - other.start_ns) / 1e9);
    answer_clear(&one.answer);
    answer_clear(&other.answer);
    free(stream);
    free(prompt);
    client_stop(s);
}

/* Who asks for much does not keep others waiting: of requests in the queue, users take turns. */
static void users_take_turns(void **state)
{
    (void)state;
    server_options options = client_options();
    options.n_parallel = 1;
    server *s = client_start(&options);
    char *bodies[5];
    caller callers[5] = {0};
    for (int i = 0; i < 5; i++) { /* the last is of another user */
        char *text = endless(s, i == 0 ? 1500 : 20, false);
        json_t *body = json_loads(text, 0, NULL);
        json_object_set_new(body, "user", json_string(i < 4 ? "busy" : "other"));
        bodies[i] = json_dumps(body, 0);
        json_decref(body);
        free(text);
    }
    for (int i = 0; i < 5; i++) {
        begin(&callers[i], s, bodies[i]);
        if (i == 0)
            client_wait_for(s, "calla_choices_running", 1);
        else
            client_wait_for(s, "calla_jobs_queued", i);
    }
    for (int i = 0; i < 5; i++) end(&callers[i]);
    for (int i = 1; i < 4; i++) assert_true(callers[4].end_ns < callers[i].end_ns);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(callers[i].answer.status, 200);
        answer_clear(&callers[i].answer);
        free(bodies[i]);
    }
    client_stop(s);
}

static void clients_that_leave_free_their_place(void **state)
{
    (void)state;
    server_options options = client_options();
    options.n_parallel = 1;
    server *s = client_start(&options);
    for (int stream = 0; stream < 2; stream++) {
        char *body = endless(s, 1900, stream);
        request_t r = {.path = path, .body = body, .abort_after_s = 0.3};
        answer_t a = client_send(s, &r);
        assert_true(a.broken);
        answer_clear(&a);
        client_wait_for(s, "calla_choices_running", 0);
        assert_true(client_metric(s, "calla_requests_cancelled_total") == 1 + stream);
        free(body);
    }
    /* While it waits in the queue, too; and in the middle of a prompt. */
    char *body = endless(s, 300, false), *prompt = long_prompt(8000, 2);
    caller first = {0}, second = {0};
    begin(&first, s, body);
    client_wait_for(s, "calla_choices_running", 1);
    second.request.abort_after_s = 0.1;
    begin(&second, s, body);
    end(&second);
    assert_true(second.answer.broken);
    client_wait_for(s, "calla_jobs_queued", 0);
    end(&first);
    assert_int_equal(first.answer.status, 200);
    answer_clear(&first.answer);
    answer_clear(&second.answer);
    answer_t a = client_send(s, &(request_t){.path = path, .body = prompt, .abort_after_s = 0.1});
    answer_clear(&a);
    client_wait_for(s, "calla_choices_running", 0);
    free(body);
    free(prompt);
    client_stop(s);
}

static void silence_is_filled_with_comments(void **state)
{
    (void)state;
    server_options options = client_options();
    options.n_parallel = 1, options.keep_alive_ms = 50;
    server *s = client_start(&options);
    char *body = endless(s, 400, false), *stream = endless(s, 1, true);
    caller first = {0}, second = {0};
    begin(&first, s, body);
    client_wait_for(s, "calla_choices_running", 1);
    begin(&second, s, stream); /* waits for its turn, in silence */
    end(&second);
    end(&first);
    assert_int_equal(second.answer.status, 200);
    assert_non_null(strstr(second.answer.body, ": keep-alive\n\n"));
    assert_true(second.answer.first_byte_s < (double)(first.end_ns - second.start_ns) / 1e9);
    json_t *events = client_events(&second.answer);
    assert_string_equal(json_string_value(json_array_get(events, json_array_size(events) - 1)),
                        "[DONE]");
    json_decref(events);
    answer_clear(&first.answer);
    answer_clear(&second.answer);
    free(body);
    free(stream);
    client_stop(s);
}

/* Also while the engine reads a prompt, whose pieces take longer than the silence may last. */
static void comments_come_while_a_prompt_is_read(void **state)
{
    (void)state;
    server_options options = client_options();
    options.keep_alive_ms = 10;
    server *s = client_start(&options);
    char *text = long_prompt(7000, 3);
    json_t *body = json_loads(text, 0, NULL);
    json_object_set_new(body, "stream", json_true());
    free(text);
    text = json_dumps(body, 0);
    answer_t a = client_send(s, &(request_t){.path = path, .body = text});
    assert_int_equal(a.status, 200);
    const char *comment = strstr(a.body, ": keep-alive\n\n");
    const char *first = strstr(a.body, "\"reasoning_content\"");
    assert_non_null(comment);
    assert_non_null(first);
    assert_true(comment < first);
    json_t *events = client_events(&a); /* comments do not break the events */
    assert_true(json_array_size(events) >= 3);
    json_decref(events);
    json_decref(body);
    answer_clear(&a);
    free(text);
    client_stop(s);
}

static void answers_have_a_size_limit(void **state)
{
    (void)state;
    server_options options = client_options();
    options.max_answer_bytes = 20000;
    server *s = client_start(&options);
    json_t *body = endless_chat(s, 1000, false);
    json_object_set_new(body, "logprobs", json_true());
    json_object_set_new(body, "top_logprobs", json_integer(20));
    json_object_set_new(body, "enable_thinking", json_false());
    answer_t a = client_post_json(s, 500, path, json_deep_copy(body));
    assert_non_null(strstr(text_at(a.json, "error.message"), "ask for a stream"));
    answer_clear(&a);
    client_wait_for(s, "calla_choices_running", 0); /* it is not computed to its end */
    json_object_set_new(body, "stream", json_true());
    a = client_post_json(s, 200, path, body);
    assert_true(a.n_body > 1000000);
    answer_clear(&a);
    client_stop(s);
}

/* A connection is idle when nothing is asked of it, not while its answer is being computed. */
static void long_answers_outlast_the_idle_limit(void **state)
{
    (void)state;
    server_options options = client_options();
    options.idle_s = 1, options.timeout_s = 3;
    options.engine.n_ctx = 100000;
    server *s = client_start(&options);
    char *body = endless(s, 90000, false);
    answer_t a = client_send(s, &(request_t){.path = path, .body = body});
    assert_false(a.broken);
    assert_int_equal(a.status, 504); /* after three seconds */
    answer_clear(&a);
    free(body);
    client_stop(s);
}

static void requests_have_a_time_limit(void **state)
{
    (void)state;
    server_options options = client_options();
    options.n_parallel = 1, options.timeout_s = 1;
    options.engine.n_ctx = 100000;
    server *s = client_start(&options);
    char *body = endless(s, 90000, false), *stream = endless(s, 90000, true);
    caller first = {0}, second = {0};
    begin(&first, s, body);
    client_wait_for(s, "calla_choices_running", 1);
    begin(&second, s, body);
    end(&first);
    end(&second);
    assert_int_equal(first.answer.status, 504);
    assert_true(second.answer.status == 503 || second.answer.status == 504);
    answer_t a = client_send(s, &(request_t){.path = path, .body = stream});
    assert_int_equal(a.status, 200); /* said before */
    json_t *events = client_events(&a);
    const json_t *last = json_array_get(events, json_array_size(events) - 1);
    assert_string_equal(text_at(last, "error.code"), "timeout");
    assert_string_equal(text_at(last, "error.type"), "server_error");
    assert_true(client_metric(s, "calla_requests_timed_out_total") == 3);
    json_decref(events);
    answer_clear(&a);
    answer_clear(&first.answer);
    answer_clear(&second.answer);
    free(body);
    free(stream);
    client_stop(s);
}

static void a_shutdown_lets_answers_finish_or_cuts_them_off(void **state)
{
    (void)state;
    calla_error err;
    for (int grace = 0; grace < 2; grace++) {
        server_options options = client_options();
        options.n_parallel = 1;
        server *s = client_start(&options);
        char *body = endless(s, grace ? 600 : 1900, false);
        caller first = {0}, second = {0};
        begin(&first, s, body);
        client_wait_for(s, "calla_choices_running", 1);
        begin(&second, s, body);
        client_wait_for(s, "calla_jobs_queued", 1);
        assert_ok(server_stop(s, grace ? 60000 : 0, &err), &err);
        end(&first);
        end(&second);
        assert_int_equal(first.answer.status, grace ? 200 : 503);
        assert_int_equal(second.answer.status, grace ? 200 : 503);
        server_free(s);
        answer_clear(&first.answer);
        answer_clear(&second.answer);
        free(body);
    }
}

/* ---- opening ---- */

static atomic_bool may_open;

static void hold(void *user, const char *phase, int64_t done, int64_t total)
{
    (void)user, (void)phase, (void)done, (void)total;
    while (!atomic_load(&may_open)) pause_ms(1);
}

static void health_tells_the_state(void **state)
{
    (void)state;
    server_options options = client_options();
    calla_error err;
    server *s;
    options.engine.progress = hold;
    assert_ok(server_start(&options, &s, &err), &err);
    answer_t a = client_get(s, 503, "/health");
    assert_string_equal(text_at(a.json, "status"), "loading");
    answer_clear(&a);
    a = client_get(s, 503, "/v1/models");
    assert_string_equal(text_at(a.json, "error.code"), "loading");
    assert_non_null(strstr(a.headers, "Retry-After: "));
    answer_clear(&a);
    a = client_get(s, 200, "/metrics");
    answer_clear(&a);
    atomic_store(&may_open, true);
    assert_ok(server_wait_ready(s, &err), &err);
    a = client_get(s, 200, "/health");
    assert_string_equal(text_at(a.json, "status"), "ok");
    answer_clear(&a);
    client_stop(s);

    options.model = "/nowhere";
    assert_ok(server_start(&options, &s, &err), &err);
    assert_int_not_equal(server_wait_ready(s, &err), CALLA_OK);
    assert_non_null(strstr(err.message, "/nowhere"));
    a = client_get(s, 503, "/health");
    assert_string_equal(text_at(a.json, "status"), "failed");
    answer_clear(&a);
    assert_int_not_equal(server_stop(s, 0, &err), CALLA_OK);
    server_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_queue_is_a_429),
        cmocka_unit_test(answers_run_side_by_side_and_are_the_same),
        cmocka_unit_test(long_prompts_do_not_stall_streams),
        cmocka_unit_test(users_take_turns),
        cmocka_unit_test(clients_that_leave_free_their_place),
        cmocka_unit_test(silence_is_filled_with_comments),
        cmocka_unit_test(comments_come_while_a_prompt_is_read),
        cmocka_unit_test(answers_have_a_size_limit),
        cmocka_unit_test(long_answers_outlast_the_idle_limit),
        cmocka_unit_test(requests_have_a_time_limit),
        cmocka_unit_test(a_shutdown_lets_answers_finish_or_cuts_them_off),
        cmocka_unit_test(health_tells_the_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
