/* Tokenizer files that are broken, or of a kind that is not supported: one line naming the file and
 * the value. And those that differ from the usual and are fine. */
#include "model/tokenizer.h"
#include "support/files.h"
#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SMALL "tests/data/tokenizer_small/tokenizer.json"

/* Parses tokenizer_small with edits. */
static calla_status parse_edited(const text_edit *edits, int n, calla_tokenizer **t,
                                 calla_error *err)
{
    char *text = read_test_file(source_path(SMALL), NULL), *edited = edit_text(text, edits, n);
    calla_status status = tokenizer_parse(edited, strlen(edited), "FILE", t, err);
    free(text);
    free(edited);
    return status;
}

static void assert_refused(const char *from, const char *to, const char *part)
{
    calla_tokenizer *t = NULL;
    calla_error err;
    calla_status status = parse_edited(&(text_edit){from, to}, 1, &t, &err);
    assert_error(status, CALLA_ERR_INPUT, &err, part);
    assert_null(t);
    assert_int_equal(strncmp(err.message, "FILE: ", 6), 0);
    assert_null(strchr(err.message, '\n'));
}

static void expect_ids(const calla_tokenizer *t, const char *text, const char *expected)
{
    calla_tokens tokens;
    calla_error err;
    char ids[256] = "";
    assert_ok(calla_tokenizer_encode(t, text, strlen(text), NULL, 0, &tokens, &err), &err);
    for (int64_t i = 0; i < tokens.n; i++)
        sprintf(ids + strlen(ids), i ? " %d" : "%d", tokens.ids[i]);
    assert_string_equal(ids, expected);
    calla_tokens_free(&tokens);
}

static void assert_accepted(const text_edit *edits, int n, const char *text, const char *expected)
{
    calla_tokenizer *t;
    calla_error err;
    assert_ok(parse_edited(edits, n, &t, &err), &err);
    expect_ids(t, text, expected);
    calla_tokenizer_close(t);
}

#define ACCEPTED(from, to, text, expected)                                                         \
    assert_accepted(&(text_edit){from, to}, 1, text, expected)

/* ---- tokenizer.json ---- */

static void test_vocab(void **state)
{
    (void)state;
    assert_refused("\"vocab\": {", "\"vocab\": [], \"v\": {", "no object model.vocab");
    assert_refused("\"vocab\"", "\"words\"", "no object model.vocab");
    assert_refused("\"model\"", "\"mode\"", "no object model.vocab");
    assert_refused("\"ab\": 256", "\"ab\": 356",
                   "model.vocab has 262 tokens and gives 'ab' the id 356; ids must be 0 to 261");
    assert_refused("\"ab\": 256", "\"ab\": 0", "gives the id 0 twice, last to 'ab'");
    assert_refused("\"abc\": 257", "\"ab\": 257", "'ab' twice, as 256 and as 257");
    assert_refused("\"!\": 0,", "\"!!\": 0,", "no token for the byte 33 (U+0021)");
    assert_refused("\"\\u0143\": 255", "\"\\u0144\": 255", "no token for the byte 173 (U+0143)");
    assert_refused("\"ab\": 256", "\"ab\": -1", "'-' at byte");
    assert_refused("\"ab\": 256", "\"ab\": 1.5", "'.' at byte");
    assert_refused("\"ab\": 256", "\"ab\": 0256", "expected a whole number");
    assert_refused("\"ab\": 256", "\"ab\": \"256\"", "expected a whole number");
    assert_refused("\"ab\": 256", "\"ab\": 99999999999999999999", "expected 0 to 1048575");
    assert_refused("\"ab\": 256", "\"ab\" 256", "'2' at byte");
    assert_refused("\"ab\": 256", "\"ab\": 256 \"x\"", "expected ',' or '}'");
    assert_refused("\"ab\": 256", "ab: 256", "'a' at byte");
    assert_refused("\"ab\": 256", "{}: 256", "'{' at byte");
    assert_refused("\"ab\": 256", "\"a\\xb\": 256", "expected an escape");
    assert_refused("\"ab\": 256", "\"a\\u12g4\": 256", "expected an escape");
    assert_refused("\"ab\": 256", "\"a\\ud800b\": 256", "expected a pair of surrogates");
    assert_refused("\"ab\": 256", "\"a\\ud800\\u0041\": 256", "expected a pair of surrogates");
    assert_refused("\"ab\": 256", "\"a\\ud800\\ue000\": 256", "expected a pair of surrogates");
    assert_refused("\"ab\": 256", "\"a\\udc00b\": 256", "expected a pair of surrogates");
    assert_refused("\"ab\": 256", "\"a\tb\": 256", "expected no control character");
    assert_refused("261}", "261]", "model.vocab: ']' at byte");
    /* A token with characters that stand for no byte stands for its own text. */
    static const text_edit foreign[] = {{"\"bcbc\": 260", "\"\\u4e2d\\ud83d\\ude00\": 260"},
                                        {", \"bc bc\"", ""}};
    calla_tokenizer *t;
    calla_error err;
    size_t n_bytes;
    assert_ok(parse_edited(foreign, 2, &t, &err), &err);
    const char *bytes = calla_tokenizer_bytes(t, 260, &n_bytes);
    assert_int_equal(n_bytes, 7);
    assert_memory_equal(bytes, "\u4e2d\U0001f600", 7);
    calla_tokenizer_close(t);
}

static void test_merges(void **state)
{
    (void)state;
    assert_refused("\"merges\": [", "\"merges\": {}, \"m\": [", "no array model.merges");
    assert_refused("\"a b\"", "\"a q\"", "model.merges[0]: 'aq' is not in model.vocab");
    assert_refused("\"ab c\"", "\"aa c\"", "model.merges[1]: 'aa' is not in model.vocab");
    assert_refused("\"ab c\"", "\"c aa\"", "model.merges[1]: 'aa' is not in model.vocab");
    assert_refused("\"a b\"", "\"b c\"", "model.merges[3] is the same pair as model.merges[0]");
    assert_refused("\"a b\"", "\"ab\"", "'ab' is not two tokens");
    assert_refused("\"a b\"", "\"a b c\"", "'a b c' is not two tokens");
    assert_refused("\"a b\"", "\"a  b\"", "'a  b' is not two tokens");
    assert_refused("\"a b\"", "\" b\"", "'' is not a token");
    assert_refused("\"a b\"", "\"\\u4e2d b\"", "'\u4e2d' is not a token");
    assert_refused("\"a b\"", "17", "'1' at byte");
    assert_refused("\"a b\"", "[\"a\"]", "']' at byte");
    assert_refused("\"a b\"", "[\"a\", \"b\", \"c\"]", "',' at byte");
    assert_refused("\"a b\"", "[\"a\", 1]", "'1' at byte");
    assert_refused("\"a b\"", "null", "'n' at byte");
    assert_refused("\"c ab\"]", "\"c ab\",]", "']' at byte");
    /* Both forms, mixed; escapes in both; none at all. */
    ACCEPTED("\"ab c\"", "[\"ab\", \"\\u0063\"]", "abc", "257");
    ACCEPTED("\"a b\", \"ab c\", \"\\u0120 a\", \"b c\", \"bc bc\", \"c ab\"", "", "abc",
             "64 65 66");
}

static void test_syntax(void **state)
{
    (void)state;
    char *text = read_test_file(source_path(SMALL), NULL);
    size_t n = strlen(text);
    calla_tokenizer *t = NULL;
    calla_error err;
    for (size_t cut = 0; cut + 2 < n; cut += cut < n - 400 ? 61 : 1) /* but for "}\n" */
        assert_error(tokenizer_parse(text, cut, "FILE", &t, &err), CALLA_ERR_INPUT, &err, "FILE: ");
    free(text);
    assert_refused("}\n", "}\n}", "not JSON at byte 46"); /* of the file, not of what was parsed */
    assert_refused("\"version\": ", "\"version\": x", "not JSON at byte 13");
    assert_refused("\"dropout\": null", "\"dropout\": null, \"merges\": []", "duplicate");
    assert_refused("\"version\"", "\"version\xff\"", "not UTF-8 at byte 9");
    assert_refused("1.0", "1.0\\u0000", "not JSON");
}

static void test_unsupported(void **state)
{
    (void)state;
    assert_refused("\"type\": \"BPE\"", "\"type\": \"Unigram\"", "model.type is \"Unigram\"");
    assert_refused("\"type\": \"BPE\", ", "", "model.type is nothing");
    assert_refused("\"dropout\": null", "\"dropout\": 0.5", "model.dropout is 0.5");
    assert_refused("\"unk_token\": null", "\"unk_token\": \"<unk>\"",
                   "model.unk_token is \"<unk>\"");
    assert_refused("\"byte_fallback\": false", "\"byte_fallback\": true",
                   "model.byte_fallback is true");
    assert_refused("\"end_of_word_suffix\": \"\"", "\"end_of_word_suffix\": \"</w>\"",
                   "model.end_of_word_suffix is \"</w>\"");
    assert_refused("\"ignore_merges\": false", "\"ignore_merges\": 1", "model.ignore_merges is 1");
    assert_refused("{\"type\": \"NFC\"}", "{\"type\": \"NFKC\"}",
                   "normalizer is {\"type\":\"NFKC\"}");
    assert_refused("\"post_processor\": {\"type\": \"ByteLevel\"",
                   "\"post_processor\": {\"type\": \"TemplateProcessing\"", "post_processor is {");
    assert_refused("\"decoder\": {\"type\": \"ByteLevel\"", "\"decoder\": {\"type\": \"Metaspace\"",
                   "decoder is {\"type\":\"Metaspace\"");
    assert_refused("\"type\": \"Sequence\"", "\"type\": \"Whitespace\"", "pre_tokenizer is {");
    assert_refused("\"pretokenizers\": [", "\"pretokenizers\": [1, ", "pre_tokenizer is {");
    assert_refused("\"Isolated\"", "\"Removed\"", "pre_tokenizer.pretokenizers[0] is {");
    assert_refused("\"invert\": false", "\"invert\": true", "pre_tokenizer.pretokenizers[0] is {");
    assert_refused("{\"Regex\":", "{\"String\":", "pre_tokenizer.pretokenizers[0] is {");
    assert_refused("\"add_prefix_space\": false", "\"add_prefix_space\": true",
                   "pre_tokenizer.pretokenizers[1] is {");
    assert_refused("\"use_regex\": false", "\"use_regex\": true",
                   "pre_tokenizer.pretokenizers[1] is {");
    assert_refused("\\\\p{N}", "\\\\w", "'\\w' at byte 40 of the pattern '(?i:'s|'t|'re");
    assert_refused("\"added_tokens\": [", "\"added_tokens\": 1, \"x\": [", "added_tokens is 1");
}

static void test_added(void **state)
{
    (void)state;
    assert_refused("\"id\": 263", "\"id\": 265", "no token has the id 263, below 264 of '<t>'");
    assert_refused("\"id\": 263", "\"id\": 262", "the id 262 is given to '<|");
    assert_refused("\"id\": 263", "\"id\": \"x\"", "added_tokens[1] is {");
    assert_refused("\"id\": 263", "\"id\": -1", "added_tokens[1] has the id -1");
    assert_refused("\"id\": 263", "\"id\": 4294967559", "added_tokens[1] has the id 4294967559");
    assert_refused("\"content\": \"<t>\"", "\"content\": \"\"", "added_tokens[2] is {");
    assert_refused("\"content\": \"<t>\"", "\"content\": 3", "added_tokens[2] is {");
    assert_refused("\"content\": \"<t>\"", "\"content\": \"<|im_end|>\"",
                   "'<|im_end|>' has the ids 263 and 264");
    assert_refused("\"lstrip\": false", "\"lstrip\": true", "added_tokens[0].lstrip is true");
    assert_refused("\"normalized\": false", "\"normalized\": true",
                   "added_tokens[0].normalized is true");
    assert_refused("\"special\": true", "\"special\": 1", "special to be true or false");
    char text[400] = "\"content\": \"";
    memset(text + strlen(text), 'x', 257);
    strcat(text, "\"");
    assert_refused("\"content\": \"<t>\"", text, "a content of 1 to 256 bytes");
    /* An added token that the vocabulary has too keeps its id. */
    static const text_edit same[] = {
        {"\"id\": 264, \"content\": \"<t>\"", "\"id\": 257, \"content\": \"abc\""}};
    assert_accepted(same, 1, "xabcx", "87 257 87");
}

/* Settings beside the usual that are supported. */
static void test_variants(void **state)
{
    (void)state;
    ACCEPTED("\"version\"", "\"version\"", "a\xcc\x81 abc<t>", "127 94 220 257 264");
    ACCEPTED("{\"type\": \"NFC\"}", "null", "a\xcc\x81", "64 136 223");
    /* "cab" is a token that no merges make. */
    static const text_edit unreachable[] = {
        {", \"c ab\"", ""}, {"\"ignore_merges\": false", "\"ignore_merges\": true"}};
    assert_accepted(unreachable, 1, "cab bcbc", "66 256 220 260");
    assert_accepted(unreachable, 2, "cab bcbc", "261 220 260");
    assert_accepted(unreachable, 2, "cabc", "66 257");
    ACCEPTED("\"ignore_merges\": false, ", "", "abcbc", "257 259");
    ACCEPTED("\"post_processor\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
             "\"trim_offsets\": false, \"use_regex\": false}",
             "\"post_processor\": null", "abc", "257");
}

/* ---- the other files ---- */

static const char *dir_with(const char *name, const char *text)
{
    const char *dir = temporary_dir();
    size_t n;
    char *json = read_test_file(source_path(SMALL), &n);
    write_test_file(dir, "tokenizer.json", json, n);
    if (name) write_test_file(dir, name, text, strlen(text));
    free(json);
    return dir;
}

static void assert_config_refused(const char *name, const char *text, const char *part)
{
    calla_tokenizer *t = NULL;
    calla_error err;
    assert_error(calla_tokenizer_open(dir_with(name, text), &t, &err), CALLA_ERR_INPUT, &err, part);
    assert_non_null(strstr(err.message, name));
    assert_null(t);
}

static void test_tokenizer_config(void **state)
{
    (void)state;
    static const char name[] = "tokenizer_config.json";
    assert_config_refused(name, "[]", "the file is [], expected an object");
    assert_config_refused(name, "{", "not JSON at byte 1");
    assert_config_refused(name, "{\"added_tokens_decoder\": 1}", "added_tokens_decoder is 1");
    assert_config_refused(name, "{\"added_tokens_decoder\": {\"x\": {\"content\": \"y\"}}}",
                          "added_tokens_decoder.x has the id -1");
    assert_config_refused(name, "{\"added_tokens_decoder\": {\"265\": {}}}",
                          "added_tokens_decoder.265 is {}");
    assert_config_refused(name, "{\"added_tokens_decoder\": {\"266\": {\"content\": \"y\"}}}",
                          "no token has the id 265, below 266 of 'y'");
    assert_config_refused(name, "{\"added_tokens_decoder\": {\"264\": {\"content\": \"y\"}}}",
                          "the id 264 is given to '<t>' and to 'y'");
    assert_config_refused(name, "{\"added_tokens_decoder\": {\"265\": {\"content\": \"<t>\"}}}",
                          "'<t>' has the ids 264 and 265");

    calla_tokenizer *t;
    calla_error err;
    const char *dir = dir_with(name, "{\"added_tokens_decoder\": {"
                                     "\"266\": {\"content\": \"two\", \"special\": true},"
                                     "\"265\": {\"content\": \"one\"},"
                                     "\"264\": {\"content\": \"<t>\", \"special\": false}}}");
    assert_ok(calla_tokenizer_open(dir, &t, &err), &err);
    assert_int_equal(calla_tokenizer_n_tokens(t), 267);
    expect_ids(t, "one<t>two", "265 264 266");
    assert_true(calla_tokenizer_is_special(t, 266));
    assert_false(calla_tokenizer_is_special(t, 265));
    calla_tokenizer_close(t);
}

static void assert_stops(const char *name, const char *text, int n, int32_t a, int32_t b, int32_t c)
{
    calla_tokenizer *t;
    calla_error err;
    int n_stops = 0;
    assert_ok(calla_tokenizer_open(dir_with(name, text), &t, &err), &err);
    for (int32_t i = 0; i < 265; i++) n_stops += calla_tokenizer_is_stop(t, i);
    assert_int_equal(n_stops, n);
    assert_true(calla_tokenizer_is_stop(t, a) && calla_tokenizer_is_stop(t, b) &&
                calla_tokenizer_is_stop(t, c));
    calla_tokenizer_close(t);
}

static void test_stops(void **state)
{
    (void)state;
    assert_stops(NULL, NULL, 2, 262, 263, 263);
    assert_stops("generation_config.json", "{\"eos_token_id\": 5}", 3, 262, 263, 5);
    assert_stops("generation_config.json", "{\"eos_token_id\": [263, 7]}", 3, 262, 263, 7);
    assert_stops("generation_config.json", "{\"eos_token_id\": null}", 2, 262, 263, 263);
    assert_stops("config.json", "{\"text_config\": {\"eos_token_id\": 9}}", 3, 262, 263, 9);
    assert_stops("config.json", "{\"eos_token_id\": [8], \"text_config\": {\"eos_token_id\": 9}}",
                 3, 262, 263, 8);
    assert_config_refused("generation_config.json", "{\"eos_token_id\": 265}",
                          "eos_token_id is 265, expected an id from 0 to 264");
    assert_config_refused("generation_config.json", "{\"eos_token_id\": [1, -1]}",
                          "eos_token_id is -1");
    assert_config_refused("generation_config.json", "{\"eos_token_id\": \"a\"}",
                          "eos_token_id is \"a\"");
    assert_config_refused("config.json", "{\"text_config\": {\"eos_token_id\": 1.5}}",
                          "text_config.eos_token_id is 1.5");
}

static void test_missing(void **state)
{
    (void)state;
    calla_tokenizer *t = NULL;
    calla_error err;
    assert_error(calla_tokenizer_open("/nonexistent", &t, &err), CALLA_ERR_IO, &err,
                 "cannot open directory /nonexistent: No such file");
    assert_null(t);
    assert_int_equal(calla_tokenizer_open("/nonexistent", &t, NULL), CALLA_ERR_IO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vocab),
        cmocka_unit_test(test_merges),
        cmocka_unit_test(test_syntax),
        cmocka_unit_test(test_unsupported),
        cmocka_unit_test(test_added),
        cmocka_unit_test(test_variants),
        cmocka_unit_test(test_tokenizer_config),
        cmocka_unit_test(test_stops),
        cmocka_unit_test(test_missing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
