/* Tokens to events: the same whatever tokens a text came in; stop texts; log-probabilities. And the
 * rules for tokens, and what is remembered of answers. */
#include "server/answer.h"
#include "server/feed.h"
#include "server/guide.h"
#include "server/replay.h"
#include "server/reply.h"

#include <stdlib.h>
#include <string.h>

static calla_error err;

/* ---- answers ---- */

/* The events as text, consecutive pieces joined. */
static char *events(feed *f)
{
    event_batch batch = {0};
    strbuf out = {0};
    bool closed;
    char *text;
    size_t n_text;
    assert_ok(answer_finish(&f->answer, &err), &err);
    assert_true(outbox_take(&f->job->out, &batch, &closed));
    for (size_t i = 0; i < batch.n_events; i++) {
        const event *e = &batch.events[i];
        strbuf_printf(&out, "%d/%d[%.*s]", (int)e->kind, (int)e->a, (int)e->n_bytes,
                      batch.text.data + e->offset);
    }
    event_batch_free(&batch);
    assert_int_equal(strbuf_take(&out, &text, &n_text, NULL), CALLA_OK);
    return text;
}

static void events_do_not_depend_on_the_tokens(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "I think \xf0\x9f\x98\x80.\n</think>\n\nNa\xc3\xafve \xe4\xbd\xa0\xe5\xa5\xbd "
        "\xf0\x9f\x8f\x84!",
        "Short.\n</think>\n\nLet me look.\n\n<tool_call>\n<function=f>\n<parameter=a>\n12\n"
        "</parameter>\n<parameter=b>\n\xe2\x82\xac \"x\"\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=g>\n</function>\n</tool_call>",
        "No end <tool_call>\n<function=f>\n<parameter=b>\nmultiple\nlines </parameter\n",
        "</think>a < b <tool> </think> ENDING EN",
    };
    json_t *tools = json_pack("[{s:s, s:{s:s, s:{s:s, s:{s:{s:s}, s:{s:s}}}}}, {s:s, s:{s:s}}]",
                              "type", "function", "function", "name", "f", "parameters", "type",
                              "object", "properties", "a", "type", "integer", "b", "type", "string",
                              "type", "function", "function", "name", "g");
    srand(3);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        for (int stop = 0; stop < 3; stop++) {
            job_request request = {.chat = true, .tools = tools, .n_stops = stop};
            request.stops[0] = "END", request.stops[1] = "ve \xe4\xbd\xa0";
            feed f;
            feed_begin(&f, &request);
            feed_text(&f, texts[i], strlen(texts[i]));
            char *expected = events(&f);
            feed_end(&f);
            for (int round = 0; round < 60; round++) {
                feed_begin(&f, &request);
                feed_randomly(&f, texts[i]);
                char *got = events(&f);
                assert_string_equal(got, expected);
                free(got);
                feed_end(&f);
            }
            free(expected);
        }
    }
    json_decref(tools);
}

/* After each token, all text is out but what a stop text may begin with. */
static void as_little_as_possible_is_held_back(void **state)
{
    (void)state;
    job_request request = {.n_stops = 2, .stops = {"abcd", "xyz"}};
    feed f;
    feed_begin(&f, &request);
    static const char text[] = "1abxab2abcx3xy4xyabcd5";
    static const size_t held[] = {0, 1, 2, 1, 1, 2, 0, 1, 2, 3, 1, 0, 1, 2, 0, 1, 2, 1, 2, 3, 0, 0};
    for (size_t i = 0; i + 1 < sizeof text; i++) {
        feed_token(&f, feed_bytes[(unsigned char)text[i]]);
        if (f.answer.stopped) {
            assert_int_equal(i, 20);
            break;
        }
        assert_int_equal(i + 1 - f.answer.n_content_out, held[i]);
    }
    char *got = events(&f);
    assert_string_equal(got, "2/0[1abxab2abcx3xy4xy]");
    free(got);
    feed_end(&f);
}

static void broken_characters_are_replaced(void **state)
{
    (void)state;
    for (int chat = 0; chat < 2; chat++) {
        feed f;
        feed_begin(&f, &(job_request){.chat = chat});
        if (chat) feed_text(&f, "x\n</think>\n\n", 12);
        feed_token(&f, feed_bytes['a']);
        feed_token(&f, feed_bytes[0xe2]);
        feed_token(&f, feed_bytes[0x82]);
        feed_token(&f, feed_bytes['b']);
        feed_token(&f, feed_bytes[0xf0]);
        char *got = events(&f);
        assert_string_equal(got, chat ? "1/0[x]2/0[a\xef\xbf\xbd"
                                        "b\xef\xbf\xbd]"
                                      : "2/0[a\xef\xbf\xbd"
                                        "b\xef\xbf\xbd]");
        free(got);
        feed_end(&f);
    }
}

/* Tokens of the content only, in order, none of a stop text's. */
static void log_probabilities_are_those_of_the_content(void **state)
{
    (void)state;
    srand(5);
    for (int round = 0; round < 100; round++) {
        job_request request = {.chat = true, .logprobs = true, .n_stops = 1, .stops = {"STOP"}};
        feed f;
        feed_begin(&f, &request);
        feed_randomly(&f, "I think.\n</think>\n\n");
        size_t n_before = f.answer.n_held;
        assert_int_equal(n_before, 0);
        feed_randomly(&f, "Some S words ST here. ");
        feed_randomly(&f, "STOP this");
        assert_true(f.answer.stopped);
        event_batch batch = {0};
        strbuf text = {0}, content = {0};
        bool closed;
        assert_ok(answer_finish(&f.answer, &err), &err);
        assert_true(outbox_take(&f.job->out, &batch, &closed));
        for (size_t i = 0; i < batch.n_events; i++) {
            const event *e = &batch.events[i];
            if (e->kind == EVENT_CONTENT)
                strbuf_append(&content, batch.text.data + e->offset, e->n_bytes);
            if (e->kind != EVENT_TOKEN) continue;
            size_t n;
            const char *bytes =
                calla_tokenizer_bytes(feed_words.tokenizer, batch.tokens[e->a].token, &n);
            strbuf_append(&text, bytes, n);
        }
        assert_string_equal(content.data, "Some S words ST here. ");
        /* A token may reach over the end. */
        assert_true(text.n >= content.n);
        assert_memory_equal(text.data, content.data, content.n);
        strbuf_free(&text);
        strbuf_free(&content);
        event_batch_free(&batch);
        feed_end(&f);
    }
}

/* ---- rules ---- */

static bool allows(const uint32_t *mask, int32_t token)
{
    return !mask || (mask[token / 32] >> (token % 32) & 1);
}

static int32_t count(const uint32_t *mask)
{
    int32_t n = 0;
    for (int32_t i = 0; i < feed_words.n_tokens; i++) n += allows(mask, i);
    return n;
}

/* Calls of functions without parameters. */
static grammar *calls_of(const char *const *names, int n)
{
    grammar *g;
    json_t *tools = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(
            tools, json_pack("{s:{s:s, s:b}}", "function", "name", names[i], "strict", 1));
    assert_ok(grammar_create_calls(tools, NULL, &g, &err), &err);
    json_decref(tools);
    return g;
}

/* Any of the tokens that are allowed, until one ends the answer. */
static void follow_any(guide *g, strbuf *text)
{
    for (;;) {
        const uint32_t *mask = guide_mask(g);
        int32_t token = rand() % feed_words.n_tokens;
        size_t n;
        assert_true(count(mask) >= 1);
        while (!allows(mask, token)) token = (token + 1) % feed_words.n_tokens;
        if (calla_tokenizer_is_stop(feed_words.tokenizer, token)) return;
        const char *bytes = calla_tokenizer_bytes(feed_words.tokenizer, token, &n);
        strbuf_append(text, bytes, n);
        guide_accept(g, token, false);
    }
}

/* Skips one of the texts that stands at *at. */
static bool skip_one(const char **at, const char *const *names, int n)
{
    for (int i = 0; i < n; i++) {
        char expected[96];
        snprintf(expected, sizeof expected, "<tool_call>\n<function=%s>\n</function>\n</tool_call>",
                 names[i]);
        if (strncmp(*at, expected, strlen(expected)) != 0) continue;
        *at += strlen(expected);
        if (**at == '\n') ++*at;
        return true;
    }
    return false;
}

static void calls_are_forced_token_by_token(void **state)
{
    (void)state;
    static const char *const names[] = {"get_weather", "get_time", "search"};
    grammar *calls = calls_of(names, 3);
    srand(9);
    for (int round = 0; round < 40; round++) {
        guide g;
        strbuf text = {0};
        assert_ok(guide_init(&g, &feed_words, false, -1, &err), &err);
        assert_ok(guide_add_calls(&g, calls, true, &err), &err);
        follow_any(&g, &text);
        const char *at = text.data;
        do
            if (!skip_one(&at, names, 3)) fail_msg("%s", text.data);
        while (*at);
        strbuf_free(&text);
        guide_deinit(&g);
    }
    grammar_free(calls);
}

/* Anything may come until a call begins. */
static void a_call_that_begins_is_held_to_its_form(void **state)
{
    (void)state;
    static const char *const names[] = {"now"};
    grammar *calls = calls_of(names, 1);
    guide g;
    strbuf text = {0};
    assert_ok(guide_init(&g, &feed_words, false, -1, &err), &err);
    assert_ok(guide_add_calls(&g, calls, false, &err), &err);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(count(guide_mask(&g)), feed_words.n_tokens);
        guide_accept(&g, feed_bytes['<'], false);
    }
    guide_accept(&g, feed_words.tool_call, false);
    strbuf_puts(&text, "<tool_call>");
    follow_any(&g, &text);
    const char *at = text.data;
    assert_true(skip_one(&at, names, 1));
    strbuf_free(&text);
    guide_deinit(&g);
    grammar_free(calls);
}

static void reasoning_comes_before_the_rules(void **state)
{
    (void)state;
    static const char *const names[] = {"f"};
    guide g;
    assert_ok(guide_init(&g, &feed_words, true, 2, &err), &err);
    grammar *calls = calls_of(names, 1);
    assert_ok(guide_add_calls(&g, calls, true, &err), &err);
    for (int i = 0; i < 2; i++) { /* anything but an end or a call */
        const uint32_t *mask = guide_mask(&g);
        assert_int_equal(count(mask), feed_words.n_tokens - feed_words.n_stops - 1);
        assert_false(allows(mask, feed_words.stops[0]));
        assert_false(allows(mask, feed_words.tool_call));
        guide_accept(&g, feed_bytes['a'], true);
    }
    strbuf text = {0};
    const uint32_t *mask;
    int32_t think_end = calla_tokenizer_find(feed_words.tokenizer, "</think>");
    bool thinking = true;
    while ((mask = guide_mask(&g))) {
        int32_t token = 0;
        assert_int_equal(count(mask), 1);
        while (!allows(mask, token)) token++;
        if (token == think_end) thinking = false;
        size_t n;
        const char *bytes = calla_tokenizer_bytes(feed_words.tokenizer, token, &n);
        strbuf_append(&text, bytes, n);
        guide_accept(&g, token, thinking);
        if (token == feed_words.tool_call) break; /* the grammar is next */
    }
    assert_string_equal(text.data, "\n\nThat is enough thought; here is the answer.\n</think>\n\n"
                                   "<tool_call>");
    strbuf_free(&text);
    guide_deinit(&g);
    grammar_free(calls);
    /* Nothing to keep to: no mask at all. */
    assert_ok(guide_init(&g, &feed_words, true, -1, &err), &err);
    assert_null(guide_mask(&g));
    guide_deinit(&g);
}

/* ---- what is remembered ---- */

static calla_prompt render(json_t *messages /* taken */)
{
    calla_prompt prompt;
    assert_ok(chat_render(messages, NULL, NULL, &prompt, &err), &err);
    json_decref(messages);
    return prompt;
}

static void answers_keep_their_tokens(void **state)
{
    (void)state;
    replay *r;
    assert_ok(replay_create(1 << 20, &r, &err), &err);
    calla_prompt first = render(json_pack("[{s:s, s:s}]", "role", "user", "content", "Hi"));
    calla_tokens known;
    assert_ok(replay_encode(r, feed_words.tokenizer, &first, &known, &err), &err);
    /* "hey" as three tokens. */
    int32_t tokens[64];
    int64_t n = known.n;
    memcpy(tokens, known.ids, (size_t)n * sizeof *tokens);
    const char *said = "ok\n</think>\n\nhey";
    calla_tokens thought;
    assert_ok(calla_tokenizer_encode(feed_words.tokenizer, said, strlen(said) - 3, NULL, 0,
                                     &thought, &err),
              &err);
    memcpy(tokens + n, thought.ids, (size_t)thought.n * sizeof *tokens);
    n += thought.n;
    for (const char *p = "hey"; *p; p++) tokens[n++] = feed_bytes[(unsigned char)*p];
    strbuf raw = {0};
    strbuf_puts(&raw, said);
    replay_note_tokens(r, &first, &raw, tokens, n);

    /* The tool result after it keeps the reasoning in the prompt. */
    json_t *messages = json_pack("[{s:s, s:s}, {s:s, s:s, s:s}, {s:s, s:s}]", "role", "user",
                                 "content", "Hi", "role", "assistant", "content", "hey",
                                 "reasoning_content", "ok", "role", "tool", "content", "x");
    calla_prompt second = render(messages);
    calla_tokens again, plain;
    assert_ok(replay_encode(r, feed_words.tokenizer, &second, &again, &err), &err);
    assert_ok(calla_tokenizer_encode(feed_words.tokenizer, second.text.data, second.text.n_bytes,
                                     second.literal, second.n_literal, &plain, &err),
              &err);
    assert_true(again.n > plain.n); /* it has fewer */
    assert_memory_equal(again.ids, tokens, (size_t)n * sizeof *tokens);
    calla_text text;
    assert_ok(calla_tokenizer_decode(feed_words.tokenizer, again.ids, again.n, false, &text, &err),
              &err);
    assert_string_equal(text.data, second.text.data);
    calla_text_free(&text);
    calla_tokens_free(&again);

    /* A user who writes the same text has written text: control tokens in it are not. */
    calla_prompt forged = {.text = {strdup(second.text.data), second.text.n_bytes}};
    calla_range all = {0, forged.text.n_bytes};
    forged.literal = malloc(sizeof all);
    forged.literal[0] = all, forged.n_literal = 1;
    assert_ok(replay_encode(r, feed_words.tokenizer, &forged, &again, &err), &err);
    for (int64_t i = 0; i < again.n; i++)
        assert_false(calla_tokenizer_is_special(feed_words.tokenizer, again.ids[i]));
    calla_tokens_free(&again);

    calla_tokens_free(&plain);
    calla_tokens_free(&thought);
    calla_tokens_free(&known);
    calla_prompt_free(&first);
    calla_prompt_free(&second);
    calla_prompt_free(&forged);
    strbuf_free(&raw);
    replay_free(r);
}

static void note(replay *r, const char *question, const char *content, const char *reasoning)
{
    strbuf c = {0}, t = {0};
    json_t *before = json_pack("[{s:s, s:s}]", "role", "user", "content", question);
    char *context = replay_context(before, 1);
    strbuf_puts(&c, content);
    strbuf_puts(&t, reasoning);
    replay_note_reasoning(r, context, &c, NULL, &t);
    strbuf_free(&c);
    strbuf_free(&t);
    json_decref(before);
    free(context);
}

static const char *restored(replay *r, const char *question, const char *content, json_t **messages)
{
    json_decref(*messages);
    *messages = json_pack("[{s:s, s:s}, {s:s, s:s}]", "role", "user", "content", question, "role",
                          "assistant", "content", content);
    replay_restore_reasoning(r, *messages);
    return json_string_value(json_object_get(json_array_get(*messages, 1), "reasoning_content"));
}

static void reasoning_is_put_back_where_it_belongs(void **state)
{
    (void)state;
    replay *r;
    json_t *messages = NULL;
    assert_ok(replay_create(2000, &r, &err), &err);
    note(r, "one", "yes", "first");
    note(r, "two", "yes", "second");
    assert_string_equal(restored(r, "one", "yes", &messages), "first");
    assert_string_equal(restored(r, "two", "yes", &messages), "second");
    assert_null(restored(r, "three", "yes", &messages));
    assert_null(restored(r, "one", "no", &messages));
    note(r, "one", "yes", "third"); /* the latest counts */
    assert_string_equal(restored(r, "one", "yes", &messages), "third");
    /* Within its budget: the least recently used goes. */
    char question[32];
    for (int i = 0; i < 100; i++) {
        snprintf(question, sizeof question, "q%d", i);
        note(r, question, "yes", "thought");
        assert_string_equal(restored(r, "one", "yes", &messages), "third");
    }
    assert_null(restored(r, "q0", "yes", &messages));
    assert_string_equal(restored(r, "q99", "yes", &messages), "thought");
    json_decref(messages);
    replay_free(r);
}

/* ---- replies ---- */

/* A reply to text that came in tokens of a byte each, whole or streamed: its JSON. */
static json_t *reply_in_bytes(const char *text, bool stream)
{
    job *j = job_create(&err);
    j->request = (job_request){.n = 1, .logprobs = true, .stream = stream};
    j->n_prompts = 1;
    j->prompts = calloc(1, sizeof *j->prompts);
    reply *r = reply_create(&reply_completion, &feed_words, "tiny", SIZE_MAX, j);
    assert_non_null(r);
    outbox_put(&j->out, EVENT_CONTENT, 0, 0, 0, text, strlen(text));
    for (const char *at = text; *at; at++) {
        int32_t token = feed_bytes[(unsigned char)*at];
        calla_sampled sampled = {.token = token, .logprob = -0.5f, .n_top = 2};
        sampled.top_tokens[0] = token, sampled.top_tokens[1] = feed_bytes[0xe2];
        outbox_put_token(&j->out, 0, &sampled);
    }
    outbox_put(&j->out, EVENT_FINISH, 0, 0, 0, "stop", 4);
    outbox_close(&j->out);
    while (!r->closed) reply_run(r, -1, INT64_MAX);
    const char *begin = strchr(r->out.data, '{'), *end = strstr(r->out.data, "\n\n");
    size_t n = end ? (size_t)(end - begin) : r->out.n;
    json_t *value = json_loadb(begin, n, JSON_REJECT_DUPLICATES, NULL);
    if (!value) fail_msg("no JSON: %.*s", (int)n, begin);
    reply_free(r);
    return value;
}

/* Offsets count characters; tokens that are only a part of one are named by their bytes. */
static void offsets_are_of_characters(void **state)
{
    (void)state;
    static const int offsets[] = {0, 1, 2, 2, 3, 4, 4, 4, 4, 5};
    for (int stream = 0; stream < 2; stream++) {
        json_t *value = reply_in_bytes("na\xc3\xafv\xf0\x9f\x98\x80!", stream);
        const json_t *choice = json_array_get(json_object_get(value, "choices"), 0);
        const json_t *logprobs = json_object_get(choice, "logprobs");
        const json_t *tokens = json_object_get(logprobs, "tokens");
        const json_t *list = json_object_get(logprobs, "text_offset");
        assert_string_equal(json_string_value(json_object_get(choice, "text")),
                            "na\xc3\xafv\xf0\x9f\x98\x80!");
        assert_int_equal(json_array_size(list), 10);
        for (size_t i = 0; i < 10; i++)
            assert_int_equal(json_integer_value(json_array_get(list, i)), offsets[i]);
        assert_string_equal(json_string_value(json_array_get(tokens, 0)), "n");
        assert_string_equal(json_string_value(json_array_get(tokens, 3)), "bytes:\\xaf");
        const json_t *top = json_array_get(json_object_get(logprobs, "top_logprobs"), 3);
        assert_non_null(json_object_get(top, "bytes:\\xaf"));
        assert_non_null(json_object_get(top, "bytes:\\xe2"));
        json_decref(value);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_do_not_depend_on_the_tokens),
        cmocka_unit_test(as_little_as_possible_is_held_back),
        cmocka_unit_test(broken_characters_are_replaced),
        cmocka_unit_test(log_probabilities_are_those_of_the_content),
        cmocka_unit_test(calls_are_forced_token_by_token),
        cmocka_unit_test(a_call_that_begins_is_held_to_its_form),
        cmocka_unit_test(reasoning_comes_before_the_rules),
        cmocka_unit_test(answers_keep_their_tokens),
        cmocka_unit_test(reasoning_is_put_back_where_it_belongs),
        cmocka_unit_test(offsets_are_of_characters),
    };
    return cmocka_run_group_tests(tests, feed_setup, feed_teardown);
}
