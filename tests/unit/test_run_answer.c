/* What calla run makes of generated text: reasoning, stop texts, tool calls. */
#include "support/support.h"

#include <unistd.h>

static bool on_terminal;
#define isatty(fd) on_terminal
#include "../../cli/run_answer.c"

/* ---- standard output, as seen by run_answer.c ---- */

static char out[4096];
static size_t n_out, n_accepted; /* the reader goes away after n_accepted bytes */

bool cli_write(const char *data, size_t n_bytes)
{
    assert_true(n_out + n_bytes < sizeof out);
    memcpy(out + n_out, data, n_bytes);
    n_out += n_bytes;
    out[n_out] = '\0';
    return n_out <= n_accepted;
}

/* ---- fixture ---- */

static const char prompt_text[] =
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n";
static calla_error err;

/* Feeds `text` in pieces of n_piece bytes, until a stop text ends it. */
static void answer(const run_args *args, run_answer *a, const char *text, size_t n_piece)
{
    static char prompt_copy[sizeof prompt_text];
    memcpy(prompt_copy, prompt_text, sizeof prompt_text);
    run_prompt prompt = {.prompt.text = {prompt_copy, sizeof prompt_text - 1}};
    n_out = 0, out[0] = '\0', n_accepted = sizeof out;
    assert_ok(run_answer_init(a, args, &prompt, &err), &err);
    for (size_t i = 0, n = strlen(text); i < n && !a->stopped; i += n_piece) {
        size_t piece = n - i < n_piece ? n - i : n_piece;
        assert_ok(run_answer_push(a, text + i, piece, &err), &err);
    }
    assert_ok(run_answer_finish(a, &err), &err);
}

static void expect_output(const run_args *args, const char *text, const char *expected)
{
    for (size_t n_piece = 1; n_piece < 12; n_piece++) {
        run_answer a;
        answer(args, &a, text, n_piece);
        if (strcmp(out, expected) != 0)
            fail_msg("in pieces of %zu: '%s' instead of '%s'", n_piece, out, expected);
        run_answer_deinit(&a);
    }
}

/* ---- tests ---- */

static const char reply[] = "Let me see.\n</think>\n\nNa\xc3\xafve answer.";

static void reasoning_is_left_out_or_set_apart(void **state)
{
    (void)state;
    expect_output(&(run_args){.show_thinking = 0}, reply, "Na\xc3\xafve answer.\n");
    expect_output(&(run_args){.show_thinking = -1}, reply,
                  "Na\xc3\xafve answer.\n"); /* no terminal */
    expect_output(&(run_args){.show_thinking = 1}, reply, "Let me see.\n\nNa\xc3\xafve answer.\n");
    expect_output(&(run_args){.show_thinking = 1}, "unfinished", "unfinished\n");
    expect_output(&(run_args){.show_thinking = 0}, "unfinished", "");
}

static void raw_text_is_untouched(void **state)
{
    (void)state;
    expect_output(&(run_args){.raw = true}, reply, reply);
    expect_output(&(run_args){.raw = true}, "cut \xe2\x82", "cut \xef\xbf\xbd");
}

static void a_terminal_gets_dimmed_reasoning(void **state)
{
    (void)state;
    unsetenv("NO_COLOR");
    on_terminal = true;
    run_args args = {.show_thinking = -1};
    expect_output(&args, "cut off", "\033[2mcut off\033[0m\n");
    run_answer a;
    answer(&args, &a, reply, 100);
    assert_string_equal(out, "\033[2mLet me see.\033[0m\n\nNa\xc3\xafve answer.\n");
    run_answer_deinit(&a);
    setenv("NO_COLOR", "1", 1);
    expect_output(&args, reply, "Let me see.\n\nNa\xc3\xafve answer.\n");
    args.show_thinking = 0;
    expect_output(&args, reply, "Na\xc3\xafve answer.\n");
    expect_output(&(run_args){.raw = true}, "raw", "raw\n");
    on_terminal = false;
}

static void stop_texts_cut_the_answer_only(void **state)
{
    (void)state;
    run_args args = {.stops = {"see", "answer"}, .n_stops = 2};
    expect_output(&args, reply, "Na\xc3\xafve \n"); /* "see" is in the reasoning */
    args.raw = true;
    expect_output(&args, reply, "Let me ");
    args.stops[0] = "abcabd", args.stops[1] = "xyz";
    expect_output(&args, "abcabcabd!", "abc");
    expect_output(&args, "abcabxy", "abcabxy"); /* held back, then let go */
    expect_output(&args, "xyabcxyz", "xyabc");
    args.stops[0] = "b", args.stops[1] = "abc";
    expect_output(&args, "zabc", "za"); /* the one that is complete first */
}

static const char call[] = "Hm.\n</think>\n\nLooking.\n\n<tool_call>\n<function=get_weather>\n"
                           "<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>";

static void tool_calls_are_lines_of_json(void **state)
{
    (void)state;
    run_args args = {0};
    for (size_t n_piece = 1; n_piece < 40; n_piece += 3) {
        run_answer a;
        answer(&args, &a, call, n_piece);
        const char *line =
            strstr(out, "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}\n");
        if (!line || strncmp(out, "Looking.\n", 9) != 0) fail_msg("'%s'", out);
        assert_int_equal(a.n_calls, 1);
        run_answer_deinit(&a);
    }
}

static void json_keeps_the_parts(void **state)
{
    (void)state;
    run_args args = {.json = true};
    run_answer a;
    answer(&args, &a, call, 5);
    assert_int_equal(n_out, 0);
    fflush(a.text);
    fflush(a.reasoning);
    assert_int_equal(strncmp(a.text_data, "Looking.", 8), 0);
    assert_non_null(strstr(a.reasoning_data, "Hm."));
    fflush(a.calls);
    assert_string_equal(a.calls_data,
                        "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}");
    run_answer_deinit(&a);
}

/* Numbers come through with all their digits, also those beyond 64 bits. */
static void arguments_are_exact(void **state)
{
    (void)state;
    static const char two[] = "</think>\n\n<tool_call>\n<function=f\"g>\n<parameter=id>\n"
                              "123456789012345678901234567890\n</parameter>\n</function>\n"
                              "</tool_call>\n<tool_call>\n<function=h>\n<parameter=x>\n"
                              "48.85661398123457\n</parameter>\n</function>\n</tool_call>";
    static const char first[] = "{\"name\": \"f\\\"g\", \"arguments\": {\"id\": "
                                "123456789012345678901234567890}}",
                      second[] = "{\"name\": \"h\", \"arguments\": {\"x\": 48.85661398123457}}";
    char expected[256];
    snprintf(expected, sizeof expected, "%s\n%s\n", first, second);
    expect_output(&(run_args){0}, two, expected);
    run_answer a;
    answer(&(run_args){.json = true}, &a, two, 7);
    fflush(a.calls);
    snprintf(expected, sizeof expected, "%s, %s", first, second);
    assert_string_equal(a.calls_data, expected);
    assert_int_equal(a.n_calls, 2);
    run_answer_deinit(&a);
}

static void a_reader_that_leaves_is_noticed(void **state)
{
    (void)state;
    run_args args = {.raw = true};
    run_answer a;
    run_prompt prompt = {0};
    n_out = 0, n_accepted = 4;
    assert_ok(run_answer_init(&a, &args, &prompt, &err), &err);
    assert_ok(run_answer_push(&a, "four", 4, &err), &err);
    assert_false(a.reader_gone);
    assert_ok(run_answer_push(&a, "more", 4, &err), &err);
    assert_true(a.reader_gone);
    assert_ok(run_answer_push(&a, "lost", 4, &err), &err);
    assert_int_equal(n_out, 8); /* nothing is written after the failure */
    run_answer_deinit(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reasoning_is_left_out_or_set_apart),
        cmocka_unit_test(raw_text_is_untouched),
        cmocka_unit_test(a_terminal_gets_dimmed_reasoning),
        cmocka_unit_test(stop_texts_cut_the_answer_only),
        cmocka_unit_test(tool_calls_are_lines_of_json),
        cmocka_unit_test(json_keeps_the_parts),
        cmocka_unit_test(arguments_are_exact),
        cmocka_unit_test(a_reader_that_leaves_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
