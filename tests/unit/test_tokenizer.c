/* The tokenizer against Hugging Face's, and what the interface promises beside ids. */
#include "support/support.h"
#include "support/tokenizer.h"

#include <stdlib.h>
#include <string.h>

/* ---- goldens ---- */

static void test_goldens_tiny(void **state)
{
    (void)state;
    calla_tokenizer *t = open_tokenizer(source_path("models/tiny"));
    int n = check_tokenizer_goldens(t, source_path("tests/data/tokenizer_tiny.jsonl"), false);
    assert_true(n >= 5000);
    calla_tokenizer_close(t);
}

static void test_goldens_scripts(void **state)
{
    (void)state;
    calla_tokenizer *t = open_tokenizer(source_path("tests/data/tokenizer_scripts"));
    int n = check_tokenizer_goldens(t, source_path("tests/data/tokenizer_scripts/goldens.jsonl"),
                                    false);
    assert_true(n >= 5000);
    calla_tokenizer_close(t);
}

static void test_goldens_old_pattern(void **state)
{
    (void)state;
    const char *dir = source_path("tests/data/tokenizer_scripts");
    calla_tokenizer *t = open_tokenizer(tokenizer_with_old_pattern(dir));
    check_tokenizer_goldens(t, source_path("tests/data/tokenizer_scripts/goldens.jsonl"), true);
    calla_tokenizer_close(t);
}

/* ---- single calls ---- */

static void expect_ids(const calla_tokenizer *t, const char *text, size_t n_bytes,
                       const calla_range *literal, size_t n_literal, const int32_t *ids, size_t n)
{
    calla_tokens tokens;
    calla_error err;
    assert_ok(calla_tokenizer_encode(t, text, n_bytes, literal, n_literal, &tokens, &err), &err);
    assert_int_equal(tokens.n, n);
    if (n) assert_memory_equal(tokens.ids, ids, n * sizeof *ids);
    calla_tokens_free(&tokens);
}

#define IDS(...) (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / 4

/* tokenizer_small: "<" 27, "t" 83, ">" 29, "a" 64, "<t>" 264, "ab" 256 */
static void test_literal_ranges(void **state)
{
    (void)state;
    calla_tokenizer *t = open_tokenizer(source_path("tests/data/tokenizer_small"));
    const char *text = "<t>a<t>";
    expect_ids(t, text, 7, NULL, 0, IDS(264, 64, 264));
    expect_ids(t, text, 7, (calla_range[]){{0, 7}}, 1, IDS(27, 83, 29, 64, 27, 83, 29));
    /* Touching is not overlapping; one byte is. */
    expect_ids(t, text, 7, (calla_range[]){{3, 4}}, 1, IDS(264, 64, 264));
    expect_ids(t, text, 7, (calla_range[]){{2, 3}}, 1, IDS(27, 83, 29, 64, 264));
    expect_ids(t, text, 7, (calla_range[]){{4, 5}}, 1, IDS(264, 64, 27, 83, 29));
    expect_ids(t, text, 7, (calla_range[]){{6, 7}}, 1, IDS(264, 64, 27, 83, 29));
    /* Empty ranges cover nothing. */
    expect_ids(t, text, 7, (calla_range[]){{1, 1}, {5, 5}, {7, 7}}, 3, IDS(264, 64, 264));
    expect_ids(t, text, 7, (calla_range[]){{1, 1}, {1, 2}, {5, 5}, {5, 6}}, 4,
               IDS(27, 83, 29, 64, 27, 83, 29));
    /* A literal range is no boundary for merges. */
    expect_ids(t, "ab", 2, (calla_range[]){{1, 2}}, 1, IDS(256));
    calla_tokenizer_close(t);
}

/* tokenizer_scripts: "<|a|>" and "<|a|>b" start alike, "<|a" is shorter, "|>b<" overlaps. */
static void test_longest_match_beside_literal(void **state)
{
    (void)state;
    calla_tokenizer *t = open_tokenizer(source_path("tests/data/tokenizer_scripts"));
    int32_t whole = calla_tokenizer_find(t, "<|a|>"), longer = calla_tokenizer_find(t, "<|a|>b");
    int32_t start = calla_tokenizer_find(t, "<|a");
    assert_true(whole >= 0 && longer == whole + 1 && start == whole + 2);
    expect_ids(t, "<|a|>b", 6, NULL, 0, IDS(longer));
    calla_tokens tokens, b;
    calla_error err;
    assert_ok(calla_tokenizer_encode(t, "b", 1, NULL, 0, &b, &err), &err);
    expect_ids(t, "<|a|>b", 6, (calla_range[]){{5, 6}}, 1, IDS(whole, b.ids[0]));
    assert_ok(calla_tokenizer_encode(t, "<|a|>b", 6, (calla_range[]){{4, 5}}, 1, &tokens, &err),
              &err);
    assert_int_equal(tokens.ids[0], start);
    calla_tokens_free(&tokens);
    calla_tokens_free(&b);
    calla_tokenizer_close(t);
}

static void test_empty(void **state)
{
    (void)state;
    calla_tokenizer *t = open_tokenizer(source_path("tests/data/tokenizer_small"));
    calla_text text;
    calla_error err;
    expect_ids(t, "", 0, NULL, 0, NULL, 0);
    assert_ok(calla_tokenizer_decode(t, NULL, 0, false, &text, &err), &err);
    assert_string_equal(text.data, "");
    assert_int_equal(text.n_bytes, 0);
    calla_text_free(&text);
    assert_null(text.data);
    calla_tokenizer_close(t);
    calla_tokenizer_close(NULL);
}

static void test_text_too_long(void **state)
{
    (void)state;
    calla_tokenizer *t = open_tokenizer(source_path("tests/data/tokenizer_small"));
    calla_tokens tokens = {0};
    calla_error err;
    size_t n = ((size_t)1 << 30) + 1; /* refused before it is read */
    assert_error(calla_tokenizer_encode(t, "", n, NULL, 0, &tokens, &err), CALLA_ERR_INPUT, &err,
                 "1073741825");
    calla_tokenizer_close(t);
}

static void test_decode_range(void **state)
{
    (void)state;
    calla_tokenizer *t = open_tokenizer(source_path("tests/data/tokenizer_small"));
    calla_text text;
    calla_error err;
    size_t n_bytes = 1;
    assert_error(calla_tokenizer_decode(t, (int32_t[]){1, 265}, 2, false, &text, &err),
                 CALLA_ERR_INPUT, &err, "id 265 at position 1, expected 0 to 264");
    assert_error(calla_tokenizer_decode(t, (int32_t[]){-1}, 1, true, &text, &err), CALLA_ERR_INPUT,
                 &err, "id -1 at position 0");
    calla_tokenizer_bytes(t, 265, &n_bytes);
    assert_int_equal(n_bytes, 0);
    n_bytes = 1;
    calla_tokenizer_bytes(t, -1, &n_bytes);
    assert_int_equal(n_bytes, 0);
    assert_false(calla_tokenizer_is_stop(t, 265));
    assert_false(calla_tokenizer_is_special(t, -1));
    calla_tokenizer_close(t);
}

static void test_tiny_ids(void **state)
{
    (void)state;
    calla_tokenizer *t = open_tokenizer(source_path("models/tiny"));
    int32_t n = calla_tokenizer_n_tokens(t), eot = calla_tokenizer_find(t, "<|endoftext|>");
    int32_t im_end = calla_tokenizer_find(t, "<|im_end|>"),
            think = calla_tokenizer_find(t, "<think>");
    int32_t audio = calla_tokenizer_find(t, "<|audio_pad|>");
    /* The last seven stand in tokenizer_config.json only. */
    assert_int_equal(eot, n - 33);
    assert_int_equal(im_end, n - 31);
    assert_int_equal(think, n - 9);
    assert_int_equal(audio, n - 1);
    assert_int_equal(calla_tokenizer_find(t, "the"), -1);
    assert_int_equal(calla_tokenizer_find(t, "<|im_en"), -1);
    assert_int_equal(calla_tokenizer_find(t, ""), -1);
    int n_stops = 0;
    for (int32_t i = 0; i < n; i++) n_stops += calla_tokenizer_is_stop(t, i);
    assert_int_equal(n_stops, 2);
    assert_true(calla_tokenizer_is_stop(t, eot) && calla_tokenizer_is_stop(t, im_end));
    assert_true(calla_tokenizer_is_special(t, im_end) && calla_tokenizer_is_special(t, audio));
    assert_false(calla_tokenizer_is_special(t, think) || calla_tokenizer_is_special(t, 100));
    size_t n_bytes;
    const char *bytes = calla_tokenizer_bytes(t, think, &n_bytes);
    assert_int_equal(n_bytes, 7);
    assert_memory_equal(bytes, "<think>", 7);
    calla_tokenizer_close(t);
}

/* Every token's bytes, encoded as text only, decode to themselves. */
static void test_round_trip(void **state)
{
    (void)state;
    calla_tokenizer *t = open_tokenizer(source_path("models/tiny"));
    for (int32_t id = 0; id < calla_tokenizer_n_tokens(t); id++) {
        calla_tokens tokens;
        calla_text text, whole;
        calla_error err;
        size_t n_bytes;
        const char *bytes = calla_tokenizer_bytes(t, id, &n_bytes);
        calla_range all = {0, n_bytes};
        assert_ok(calla_tokenizer_encode(t, bytes, n_bytes, &all, 1, &tokens, &err), &err);
        assert_ok(calla_tokenizer_decode(t, tokens.ids, tokens.n, false, &text, &err), &err);
        assert_ok(calla_tokenizer_decode(t, &id, 1, false, &whole, &err), &err);
        assert_string_equal(text.data, whole.data);
        calla_tokens_free(&tokens);
        calla_text_free(&text);
        calla_text_free(&whole);
    }
    calla_tokenizer_close(t);
}

/* A megabyte of each. Taking quadratic time, any one of them would run into the time limit. */
static void test_long_texts(void **state)
{
    (void)state;
    static const struct {
        const char *unit;
        const char *last; /* put at the end */
    } texts[] = {
        {"a", "b"},  {" ", "x"}, {"\n", " x"}, {" \n", "x"},    {"a\n", ""},
        {"'", "s"},  {"1", ""},  {"\xff", ""}, {"<|im_en", ""}, {"\xcc\x81\xcc\xa3", ""},
        {"ab", "c"},
    };
    enum { N = 1 << 20 };
    calla_tokenizer *t = open_tokenizer(source_path("models/tiny"));
    char *text = malloc(N + 16);
    assert_non_null(text);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        size_t unit = strlen(texts[i].unit), last = strlen(texts[i].last), n = 0;
        for (; n + unit <= N; n += unit) memcpy(text + n, texts[i].unit, unit);
        memcpy(text + n, texts[i].last, last + 1);
        n += last;
        calla_tokens tokens;
        calla_text back;
        calla_error err;
        assert_ok(calla_tokenizer_encode(t, text, n, NULL, 0, &tokens, &err), &err);
        assert_ok(calla_tokenizer_decode(t, tokens.ids, tokens.n, false, &back, &err), &err);
        if (texts[i].unit[0] == '\xff')
            assert_int_equal(back.n_bytes, 3 * (size_t)N);
        else
            assert_int_equal(back.n_bytes, n);
        /* Marks are sorted: all of class 220 before all of class 230. */
        if (texts[i].unit[0] == '\xcc')
            assert_memory_equal(back.data, "\xcc\xa3\xcc\xa3", 4);
        else if (texts[i].unit[0] != '\xff')
            assert_memory_equal(back.data, text, n);
        calla_tokens_free(&tokens);
        calla_text_free(&back);
    }
    free(text);
    calla_tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens_tiny),
        cmocka_unit_test(test_goldens_scripts),
        cmocka_unit_test(test_goldens_old_pattern),
        cmocka_unit_test(test_literal_ranges),
        cmocka_unit_test(test_longest_match_beside_literal),
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_text_too_long),
        cmocka_unit_test(test_decode_range),
        cmocka_unit_test(test_tiny_ids),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_long_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
