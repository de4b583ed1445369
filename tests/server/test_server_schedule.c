/* Queue, streams side by side, clients that leave, time limits, shutdown. */
#include "server/client.h"
#include "server/raw.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char path[] = "/v1/chat/completions";

/* ---- requests in threads of their own ---- */

typedef struct caller {
    pthread_t thread;
    const server *s;
    request_t request;
    answer_t answer;
} caller;

static void *call(void *user)
{
    caller *c = user;
    c->answer = client_send(c->s, &c->request);
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

/* Begins a request, and waits until it is the n-th in the queue of a server whose places are taken.
 */
static void begin_queued(caller *c, const server *s, const char *body, int n)
{
    begin(c, s, body);
    client_wait_for(s, "calla_jobs_queued", n);
}

static double number_at(const answer_t *a, const char *at)
{
    const json_t *n = json_at(a->json, at);
    if (!json_is_number(n)) fail_msg("%s is no number: %s", at, a->body);
    return json_number_value(n);
}

/* A server in whose places answers can be held (raw_occupy), and run until they are broken off. */
static server_options options_for(int n_parallel)
{
    server_options options = client_options();
    options.n_parallel = n_parallel;
    options.engine.n_ctx = 32768;
    options.idle_s = 3600;
    options.max_unread_bytes = 8192; /* what is held costs no processor for long */
    return options;
}

enum { ENDLESS = 30000 /* tokens: some twenty seconds of the fastest machine */ };

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
    server_options options = options_for(1);
    calla_error err;
    options.n_queue = 2;
    server *s = client_start(&options);
    char *body = endless(s, ENDLESS, false);
    caller callers[2] = {0};
    int gate = raw_occupy(s, 1);
    for (int i = 0; i < 2; i++) begin_queued(&callers[i], s, body, i + 1);
    for (int i = 0; i < 5; i++) {
        answer_t a = client_send(s, &(request_t){.path = path, .body = body});
        assert_int_equal(a.status, 429);
        assert_string_equal(text_at(a.json, "error.code"), "queue_full");
        assert_non_null(strstr(a.headers, "Retry-After: "));
        answer_clear(&a);
    }
    assert_true(client_metric(s, "calla_requests_rejected_total") == 5);
    assert_ok(server_stop(s, 0, &err), &err);
    for (int i = 0; i < 2; i++) {
        end(&callers[i]);
        assert_int_equal(callers[i].answer.status, 503);
        answer_clear(&callers[i].answer);
    }
    close(gate);
    server_free(s);
    free(body);
}

static void answers_run_side_by_side_and_are_the_same(void **state)
{
    (void)state;
    server_options options = options_for(8);
    server *s = client_start(&options);
    static const char *const words[] = {"dog", "river", "moon", "king", "tree", "house"};
    caller callers[24] = {0};
    char *bodies[24];
    int gate = raw_occupy(s, 8); /* so that all of them are there when the first begins */
    for (int i = 0; i < 24; i++) {
        char question[64];
        snprintf(question, sizeof question, "What is a %s?", words[i % 6]);
        json_t *body = chat(question);
        bodies[i] = json_dumps(body, 0);
        json_decref(body);
        begin(&callers[i], s, bodies[i]);
    }
    client_wait_for(s, "calla_jobs_queued", 24);
    double steps = client_metric(s, "calla_decode_steps_total");
    double tokens = client_metric(s, "calla_decoded_tokens_total");
    close(gate);
    for (int i = 0; i < 24; i++) end(&callers[i]);
    for (int i = 0; i < 24; i++) {
        assert_int_equal(callers[i].answer.status, 200);
        assert_string_equal(content_of(&callers[i].answer), content_of(&callers[i % 6].answer));
        assert_non_null(strstr(content_of(&callers[i].answer), words[i % 6]));
    }
    steps = client_metric(s, "calla_decode_steps_total") - steps;
    tokens = client_metric(s, "calla_decoded_tokens_total") - tokens;
    assert_true(steps < tokens / 2);
    for (int i = 0; i < 24; i++) {
        answer_clear(&callers[i].answer);
        free(bodies[i]);
    }
    client_stop(s);
}

/* While a long prompt is read, others begin and go on. */
static void long_prompts_do_not_stall_streams(void **state)
{
    (void)state;
    server_options options = options_for(2);
    server *s = client_start(&options);
    char *body = endless(s, 60, false), *prompt = long_prompt(6000, 1);
    caller one = {0}, other = {0};
    int gate = raw_occupy(s, 2);
    begin_queued(&other, s, prompt, 1);
    begin_queued(&one, s, body, 2);
    close(gate); /* both begin now, the prompt first */
    end(&one);
    end(&other);
    assert_int_equal(one.answer.status, 200);
    assert_int_equal(other.answer.status, 200);
    assert_true(int_at(other.answer.json, "timings.prefill_tokens") > 1000);
    /* What came later has its first token earlier. */
    assert_true(number_at(&one.answer, "timings.time_to_first_token_ms") <
                number_at(&other.answer, "timings.time_to_first_token_ms"));
    answer_clear(&one.answer);
    answer_clear(&other.answer);
    free(body);
    free(prompt);
    client_stop(s);
}

/* Who asks for much does not keep others waiting: of requests in the queue, users take turns. */
static void users_take_turns(void **state)
{
    (void)state;
    server_options options = options_for(1);
    server *s = client_start(&options);
    char *bodies[5];
    caller callers[5] = {0};
    for (int i = 0; i < 5; i++) { /* the last is of another user */
        json_t *body = endless_chat(s, 5, false);
        json_object_set_new(body, "user", json_string(i < 4 ? "busy" : "other"));
        bodies[i] = json_dumps(body, 0);
        json_decref(body);
    }
    int gate = raw_occupy(s, 1);
    for (int i = 0; i < 5; i++) begin_queued(&callers[i], s, bodies[i], i + 1);
    close(gate);
    for (int i = 0; i < 5; i++) end(&callers[i]);
    for (int i = 0; i < 5; i++) assert_int_equal(callers[i].answer.status, 200);
    /* It came last, and waited for no more than one. */
    for (int i = 1; i < 4; i++)
        assert_true(number_at(&callers[4].answer, "timings.queue_ms") <
                    number_at(&callers[i].answer, "timings.queue_ms"));
    for (int i = 0; i < 5; i++) {
        answer_clear(&callers[i].answer);
        free(bodies[i]);
    }
    client_stop(s);
}

static void clients_that_leave_free_their_place(void **state)
{
    (void)state;
    server_options options = options_for(1);
    server *s = client_start(&options);
    int n_left = 0;
    for (int stream = 0; stream < 2; stream++) {
        char *body = endless(s, ENDLESS, stream);
        int fd = raw_post(s, path, body);
        client_wait_for(s, "calla_choices_running", 1);
        close(fd);
        client_wait_for(s, "calla_choices_running", 0);
        assert_true(client_metric(s, "calla_requests_cancelled_total") == ++n_left);
        /* While it waits in the queue, too. */
        int gate = raw_occupy(s, 1);
        fd = raw_post(s, path, body);
        client_wait_for(s, "calla_jobs_queued", 1);
        close(fd);
        client_wait_for(s, "calla_jobs_queued", 0);
        assert_true(client_metric(s, "calla_requests_cancelled_total") == ++n_left);
        close(gate);
        client_wait_for(s, "calla_choices_running", 0);
        assert_true(client_metric(s, "calla_requests_cancelled_total") == ++n_left);
        free(body);
    }
    /* And in the middle of a prompt. */
    char *text = long_prompt(20000, 2);
    json_t *body = json_loads(text, 0, NULL);
    json_object_del(body, "max_tokens");
    json_object_set_new(body, "stream", json_true());
    json_object_set_new(body, "stream_options", json_pack("{s:b}", "include_progress", 1));
    free(text);
    text = json_dumps(body, 0);
    answer_t a =
        client_send(s, &(request_t){.path = path, .body = text, .watch_for = "\"progress\""});
    assert_true(a.broken);
    client_wait_for(s, "calla_choices_running", 0);
    answer_clear(&a);
    json_decref(body);
    free(text);
    client_stop(s);
}

static void wait_until(const atomic_bool *seen)
{
    for (int i = 0; !atomic_load(seen); i++) {
        if (i > PATIENCE_S * 1000) fail_msg("it does not come");
        pause_ms(1);
    }
}

static void silence_is_filled_with_comments(void **state)
{
    (void)state;
    server_options options = options_for(1);
    options.keep_alive_ms = 50;
    server *s = client_start(&options);
    char *stream = endless(s, 1, true);
    atomic_bool seen = false;
    caller waiting = {.request = {.watch_for = ": keep-alive\n\n", .seen = &seen}};
    int gate = raw_occupy(s, 1);
    begin_queued(&waiting, s, stream, 1);
    wait_until(&seen); /* nothing else can have come */
    close(gate);
    end(&waiting);
    assert_int_equal(waiting.answer.status, 200);
    json_t *events = client_events(&waiting.answer);
    assert_string_equal(json_string_value(json_array_get(events, json_array_size(events) - 1)),
                        "[DONE]");
    json_decref(events);
    answer_clear(&waiting.answer);
    free(stream);
    client_stop(s);
}

/* Also while the engine reads a prompt, whose pieces take longer than the silence may last: of many
 * prompts in one at least, since the system may let the engine's thread alone run for so long. */
static void comments_come_while_a_prompt_is_read(void **state)
{
    (void)state;
    server_options options = client_options();
    options.keep_alive_ms = 10;
    server *s = client_start(&options);
    bool found = false;
    for (int i = 0; i < 30 && !found; i++) {
        char *text = long_prompt(7000, i);
        json_t *body = json_loads(text, 0, NULL);
        json_object_set_new(body, "stream", json_true());
        free(text);
        answer_t a = client_post_json(s, 200, path, body);
        const char *comment = strstr(a.body, ": keep-alive\n\n");
        const char *first = strstr(a.body, "\"reasoning_content\"");
        assert_non_null(first);
        found = comment && comment < first;
        json_t *events = client_events(&a); /* comments do not break the events */
        assert_true(json_array_size(events) >= 3);
        json_decref(events);
        answer_clear(&a);
    }
    assert_true(found);
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
    server_options options = options_for(1);
    options.idle_s = 2, options.timeout_s = 5;
    server *s = client_start(&options);
    char *body = endless(s, ENDLESS, false);
    answer_t a = client_send(s, &(request_t){.path = path, .body = body});
    assert_false(a.broken);
    assert_int_equal(a.status, 504); /* after five seconds */
    answer_clear(&a);
    free(body);
    client_stop(s);
}

static void requests_have_a_time_limit(void **state)
{
    (void)state;
    server_options options = options_for(1);
    options.timeout_s = 1;
    server *s = client_start(&options);
    char *body = endless(s, ENDLESS, false), *stream = endless(s, ENDLESS, true);
    int n = 0;
    long status = 0;
    for (int i = 0; i < 20 && status != 504; i++) { /* 503: it has not even begun */
        caller first = {0}, second = {0};
        begin(&first, s, body);
        begin(&second, s, body);
        end(&first);
        end(&second);
        n += 2;
        status =
            first.answer.status > second.answer.status ? first.answer.status : second.answer.status;
        assert_true(first.answer.status == 503 || first.answer.status == 504);
        assert_true(second.answer.status == 503 || second.answer.status == 504);
        answer_clear(&first.answer);
        answer_clear(&second.answer);
    }
    assert_int_equal(status, 504);
    bool begun = false;
    for (int i = 0; i < 20 && !begun; i++) {
        answer_t a = client_send(s, &(request_t){.path = path, .body = stream});
        assert_int_equal(a.status, 200); /* said before */
        json_t *events = client_events(&a);
        const json_t *last = json_array_get(events, json_array_size(events) - 1);
        begun = strcmp(text_at(last, "error.code"), "timeout") == 0;
        if (!begun) assert_string_equal(text_at(last, "error.code"), "unavailable");
        assert_string_equal(text_at(last, "error.type"), "server_error");
        n++;
        json_decref(events);
        answer_clear(&a);
    }
    assert_true(begun);
    assert_true(client_metric(s, "calla_requests_timed_out_total") == n);
    free(body);
    free(stream);
    client_stop(s);
}

static void a_shutdown_lets_answers_finish_or_cuts_them_off(void **state)
{
    (void)state;
    calla_error err;
    for (int grace = 0; grace < 2; grace++) {
        server_options options = options_for(1);
        server *s = client_start(&options);
        char *body = endless(s, grace ? 300 : ENDLESS, false);
        caller first = {0}, second = {0};
        int gate = raw_occupy(s, 1);
        begin_queued(&first, s, body, 1);
        begin_queued(&second, s, body, 2);
        close(gate);
        if (!grace) client_wait_for(s, "calla_jobs_queued", 1); /* one runs, one waits */
        assert_ok(server_stop(s, grace ? PATIENCE_S * 1000 : 0, &err), &err);
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
