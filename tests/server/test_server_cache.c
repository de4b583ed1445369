/* The prompt cache as clients see it: usage.prompt_tokens_details.cached_tokens, and the same
 * answers. */
#include "server/client.h"

#include <stdlib.h>
#include <string.h>

static const char path[] = "/v1/chat/completions";
static server *s;
static bool strict;

static int start(void **state)
{
    server_options options = client_options();
    options.strict_cache = strict;
    options.engine.n_ctx = 4096;
    *state = s = client_start(&options);
    return 0;
}

static const char long_system[] =
    "You are a friendly dictionary. You explain words to people who learn the language, in short "
    "and plain sentences. You never use words that are harder than the word you explain. When a "
    "word has several meanings, you give the most common one. You do not talk about yourself.";

static int64_t cached(const answer_t *a)
{
    return int_at(a->json, "usage.prompt_tokens_details.cached_tokens");
}

static int64_t n_prompt(const answer_t *a)
{
    return int_at(a->json, "usage.prompt_tokens");
}

/* Strict: what is to be prefilled when idle is, before the next request comes, so that what is in
 * the cache does not depend on how soon that is. */
static answer_t ask(json_t *body, bool thinking)
{
    json_object_set_new(body, "enable_thinking", json_boolean(thinking));
    answer_t a = client_post_json(s, 200, path, body);
    if (strict) client_wait_for(s, "calla_answers_to_reprefill", 0);
    return a;
}

static void an_identical_request_costs_no_prefill(void **state)
{
    (void)state;
    for (int thinking = 0; thinking < 2; thinking++) {
        answer_t a = ask(chat_of("system", long_system, "user", "What is a dog?", NULL), thinking);
        answer_t b = ask(chat_of("system", long_system, "user", "What is a dog?", NULL), thinking);
        assert_int_equal(cached(&b), n_prompt(&b));
        assert_int_equal(int_at(b.json, "timings.prefill_tokens"), 0);
        assert_string_equal(content_of(&a), content_of(&b));
        answer_clear(&a);
        answer_clear(&b);
    }
}

static void the_next_turn_reads_only_what_is_new(void **state)
{
    (void)state;
    for (int thinking = 0; thinking < 2; thinking++) {
        const char *question = thinking ? "What is a cat?" : "What is a cow?";
        answer_t a = ask(chat_of("system", long_system, "user", question, NULL), thinking);
        answer_t b = ask(chat_of("system", long_system, "user", question, "assistant",
                                 content_of(&a), "user", "What is a horse?", NULL),
                         thinking);
        /* Known: all up to the answer's start, where its thinking is left out of the history. */
        assert_true(cached(&b) >= n_prompt(&a) - 8);
        assert_true(cached(&b) <= n_prompt(&a));
        answer_clear(&a);
        answer_clear(&b);
    }
}

static void kept_thinking_makes_the_whole_answer_known(void **state)
{
    (void)state;
    json_t *first = chat_of("user", "What is a bridge?", NULL);
    answer_t a = ask(first, true);
    json_t *second = chat_of("user", "What is a bridge?", "assistant", content_of(&a), "user",
                             "What is a tunnel?", NULL);
    json_object_set_new(second, "chat_template_kwargs", json_pack("{s:b}", "preserve_thinking", 1));
    answer_t b = ask(second, true); /* the client did not send the thinking back */
    int64_t n = n_prompt(&a) + int_at(a.json, "usage.completion_tokens");
    assert_true(cached(&b) >= n - 2 && cached(&b) <= n);
    answer_clear(&a);
    answer_clear(&b);
}

static json_t *tool_chat(json_t *messages)
{
    return json_pack("{s:o, s:i, s:[{s:s, s:{s:s, s:s, s:{s:s, s:{s:{s:s}}, s:[s]}}}]}", "messages",
                     messages, "temperature", 0, "tools", "type", "function", "function", "name",
                     "get_weather", "description", "Get the weather of a city.", "parameters",
                     "type", "object", "properties", "city", "type", "string", "required", "city");
}

static void a_tool_loop_keeps_its_thinking(void **state)
{
    (void)state;
    json_t *messages =
        json_pack("[{s:s, s:s}]", "role", "user", "content", "What is the weather in Paris?");
    answer_t a = ask(tool_chat(json_deep_copy(messages)), true);
    const json_t *calls = json_at(a.json, "choices.0.message.tool_calls");
    assert_int_equal(json_array_size(calls), 1);
    json_array_append_new(messages, json_pack("{s:s, s:n, s:O}", "role", "assistant", "content",
                                              "tool_calls", calls));
    json_array_append_new(messages,
                          json_pack("{s:s, s:s, s:s}", "role", "tool", "tool_call_id",
                                    text_at(calls, "0.id"), "content", "sunny, 21 degrees"));
    answer_t b = ask(tool_chat(json_deep_copy(messages)), true);
    /* The prompt has the thinking in it: as one whose client sent it. */
    json_object_set(json_array_get(messages, 1), "reasoning_content",
                    json_at(a.json, "choices.0.message.reasoning_content"));
    answer_t c = ask(tool_chat(messages), true);
    assert_int_equal(n_prompt(&b), n_prompt(&c));
    assert_int_equal(cached(&c), n_prompt(&c));
    int64_t n = n_prompt(&a) + int_at(a.json, "usage.completion_tokens");
    assert_true(cached(&b) >= n - 2 && cached(&b) <= n);
    assert_string_equal(content_of(&b), content_of(&c));
    answer_clear(&a);
    answer_clear(&b);
    answer_clear(&c);
}

static void edits_and_branches_reuse_what_they_share(void **state)
{
    (void)state;
    answer_t a = ask(chat_of("system", long_system, "user", "What is a tree?", "assistant",
                             "A plant.", "user", "What is a leaf?", NULL),
                     false);
    answer_t edit = ask(chat_of("system", long_system, "user", "What is a tree?", "assistant",
                                "A plant.", "user", "What is a root?", NULL),
                        false);
    assert_true(cached(&edit) >= n_prompt(&a) - 25);
    answer_t branch = ask(chat_of("system", long_system, "user", "What is a stone?", NULL), false);
    assert_true(cached(&branch) >= 60); /* the system message */
    answer_t again = ask(chat_of("system", long_system, "user", "What is a tree?", "assistant",
                                 "A plant.", "user", "What is a leaf?", NULL),
                         false);
    assert_int_equal(cached(&again), n_prompt(&again)); /* the first is still there */
    assert_string_equal(content_of(&again), content_of(&a));
    answer_clear(&a);
    answer_clear(&edit);
    answer_clear(&branch);
    answer_clear(&again);
}

static void the_billing_line_does_not_count(void **state)
{
    (void)state;
    char first[1000], second[1000];
    snprintf(first, sizeof first, "x-anthropic-billing-header: cc_version=1; cch=aaaa;\n%s",
             long_system);
    snprintf(second, sizeof second, "x-anthropic-billing-header: cc_version=1; cch=bbbb;\n%s",
             long_system);
    answer_t a = ask(chat_of("system", first, "user", "What is rain?", NULL), false);
    answer_t b = ask(chat_of("system", second, "user", "What is rain?", NULL), false);
    answer_t c = ask(chat_of("system", long_system, "user", "What is rain?", NULL), false);
    assert_int_equal(cached(&b), n_prompt(&b));
    assert_int_equal(cached(&c), n_prompt(&c));
    /* In the user's own text it is text. */
    answer_t d = ask(chat_of("user", first, NULL), false);
    answer_t e = ask(chat_of("user", long_system, NULL), false);
    assert_true(n_prompt(&d) > n_prompt(&e) + 10);
    answer_clear(&a);
    answer_clear(&b);
    answer_clear(&c);
    answer_clear(&d);
    answer_clear(&e);
}

/* What a client that leaves has had computed is there when it comes back. */
static void work_outlives_its_client(void **state)
{
    (void)state;
    static char text[9000];
    strcpy(text, "What is a house?");
    while (strlen(text) < 6000) strcat(text, " I would like to know it very much.");
    json_t *body = chat_of("user", text, NULL);
    json_object_set_new(body, "stream", json_true());
    json_object_set_new(body, "stream_options", json_pack("{s:b}", "include_progress", 1));
    char *dump = json_dumps(body, 0);
    json_decref(body);
    /* The first progress event comes with the first piece of the prompt. */
    answer_t a = client_send(s, &(request_t){.path = path, .body = dump, .abort_after = 500});
    assert_true(a.broken);
    answer_clear(&a);
    free(dump);
    client_wait_for(s, "calla_choices_running", 0); /* it has noticed */
    body = chat_of("user", text, NULL);
    json_object_set_new(body, "max_tokens", json_integer(1));
    a = client_post_json(s, 200, path, body);
    assert_true(cached(&a) >= 32); /* the shortest piece */
    answer_clear(&a);
}

/* A conversation longer than the cache has room for does not push out what others share with it. */
static void the_system_message_outlasts_a_long_conversation(void **state)
{
    (void)state;
    json_t *body = chat_of("system", long_system, NULL), *messages = json_at(body, "messages");
    for (int i = 0; i < 40; i++) { /* there is room for 24 snapshots */
        char question[64];
        snprintf(question, sizeof question, "What is the number %d?", i);
        json_array_append_new(messages,
                              json_pack("{s:s, s:s}", "role", "user", "content", question));
        json_object_set_new(body, "max_tokens", json_integer(1));
        answer_t a = ask(json_deep_copy(body), false);
        answer_clear(&a);
        json_array_append_new(
            messages, json_pack("{s:s, s:s}", "role", "assistant", "content", "It is one."));
    }
    json_decref(body);
    assert_true(client_metric(s, "calla_cache_evictions_total") > 0);
    answer_t a = ask(chat_of("system", long_system, "user", "What is a table?", NULL), false);
    assert_true(cached(&a) >= 60);
    answer_clear(&a);
}

/* Every prompt, in whatever order, gets the answer of a server that has nothing in its cache.
 * Strict: also where answers are continued. */
static void restored_prompts_answer_as_cold_ones(void **state)
{
    (void)state;
    static const char *const words[] = {"dog", "moon", "king", "sugar"};
    char *warm[8], *warm_logprobs[8], question[64];
    json_t *bodies[8];
    for (int i = 0; i < 8; i++) {
        snprintf(question, sizeof question, "What is a %s?", words[i % 4]);
        bodies[i] = i < 4 ? chat_of("system", long_system, "user", question, NULL)
                          : chat_of("system", long_system, "user", question, "assistant",
                                    warm[i - 4], "user", "Why?", NULL);
        json_object_set_new(bodies[i], "max_tokens", json_integer(30));
        json_object_set_new(bodies[i], "logprobs", json_true());
        json_object_set_new(bodies[i], "top_logprobs", json_integer(20));
        answer_t a = ask(json_deep_copy(bodies[i]), false);
        warm[i] = strdup(content_of(&a));
        warm_logprobs[i] = json_dumps(json_at(a.json, "choices.0.logprobs"), 0);
        if (i > 0 && cached(&a) == 0) fail_msg("request %d: nothing is known", i);
        answer_clear(&a);
    }
    server *warm_server = s;
    for (int i = 0; i < 8; i++) {
        server_options options = client_options();
        options.engine.n_ctx = 4096;
        options.engine.snapshot_bytes = -1;
        s = client_start(&options);
        answer_t a = ask(bodies[i], false);
        assert_int_equal(cached(&a), 0);
        assert_string_equal(content_of(&a), warm[i]);
        char *logprobs = json_dumps(json_at(a.json, "choices.0.logprobs"), 0);
        /* To the last bit, where nothing was continued that decode steps had written. */
        if (strict || i < 4) assert_string_equal(logprobs, warm_logprobs[i]);
        free(logprobs);
        free(warm_logprobs[i]);
        answer_clear(&a);
        client_stop(s);
        free(warm[i]);
    }
    s = warm_server;
}

/* With nothing else to do, answers are prefilled, and their continuation starts there. */
static void idle_time_prefills_answers(void **state)
{
    (void)state;
    if (!strict) skip();
    double n_before = client_metric(s, "calla_answers_reprefilled_total");
    answer_t a = ask(chat_of("user", "What is a bird?", NULL), true);
    assert_true(client_metric(s, "calla_answers_reprefilled_total") == n_before + 1);
    json_t *body = chat_of("user", "What is a bird?", "assistant", content_of(&a), "user",
                           "What is a fish?", NULL);
    json_object_set_new(body, "chat_template_kwargs", json_pack("{s:b}", "preserve_thinking", 1));
    answer_t b = ask(body, true);
    assert_int_equal(cached(&b), n_prompt(&a) + int_at(a.json, "usage.completion_tokens"));
    answer_clear(&a);
    answer_clear(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_identical_request_costs_no_prefill),
        cmocka_unit_test(the_next_turn_reads_only_what_is_new),
        cmocka_unit_test(kept_thinking_makes_the_whole_answer_known),
        cmocka_unit_test(a_tool_loop_keeps_its_thinking),
        cmocka_unit_test(edits_and_branches_reuse_what_they_share),
        cmocka_unit_test(the_billing_line_does_not_count),
        cmocka_unit_test(work_outlives_its_client),
        cmocka_unit_test(the_system_message_outlasts_a_long_conversation),
        cmocka_unit_test(restored_prompts_answer_as_cold_ones),
        cmocka_unit_test(idle_time_prefills_answers),
    };
    int n_failed = cmocka_run_group_tests_name("cache", tests, start, client_teardown);
    strict = true;
    return n_failed + cmocka_run_group_tests_name("strict cache", tests, start, client_teardown);
}
