/* The vectors of MODEL.md 5.4 on the real tokenizer. Runs when CALLA_TOKENIZER_35B names a
 * directory with it; CALLA_TOKENIZER_35B_GOLDENS may name a file that
 * tools/make_tokenizer_goldens.py made from that directory. */
#include "support/support.h"
#include "support/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_IDS = 20 };

static const struct {
    const char *text;
    int32_t ids[MAX_IDS]; /* ended by -1 */
} vectors[] = {
    {"Hello, world!", {9419, 11, 1814, 0, -1}},
    {"Caff\u00e8 gi\u00e0, perch\u00e9 l'AI \u00e8 utile.",
     {34, 2562, 4311, 69028, 11, 58902, 324, 6, 15015, 11094, 175523, 13, -1}},
    {"\u4e2d\u6587\u6d4b\u8bd5\uff1a\u3053\u3093\u306b\u3061\u306f\u3002",
     {99986, 99449, 4960, 85951, 1710, -1}},
    {"  one\t two\n\nthree  \n", {220, 799, 197, 1330, 271, 26952, 2228, -1}},
    {"I'm 1234, we're coding.", {40, 2688, 220, 16, 17, 18, 19, 11, 567, 2224, 10505, 13, -1}},
    {"def f(x: int) -> str:\n    return f\"{x=}\"\n",
     {727, 281, 2007, 25, 514, 8, 1411, 592, 25, 198, 262, 460, 281, 13724, 87, 28, 9571, 198, -1}},
    {"\U0001F469\u200d\U0001F4BB caf\u00e9 e\u0301",
     {9008, 239, 102, 373, 235, 88995, 119, 50203, 3825, -1}},
    {"\u0301!I", {52033, 87383, -1}},
    {"<|fim_prefix|>left<|fim_suffix|>right<|fim_middle|>",
     {248060, 2282, 248062, 1246, 248061, -1}},
    {"<think>penso</think>", {248068, 2664, 684, 248069, -1}},
    {"<tool_call>get_weather</tool_call>", {248058, 447, 67017, 248059, -1}},
    {"<|audio_start|>omesso<|audio_end|>", {248070, 315, 9531, 248071, -1}},
    {"\n", {198, -1}},
    {"\n\n", {271, -1}},
    {" ", {220, -1}},
    {"user", {846, -1}},
    {"assistant", {74455, -1}},
    {"system", {8678, -1}},
};

static calla_tokenizer *tokenizer;

static void test_vectors(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        calla_tokens tokens;
        calla_error err;
        const char *text = vectors[i].text;
        assert_ok(calla_tokenizer_encode(tokenizer, text, strlen(text), NULL, 0, &tokens, &err),
                  &err);
        for (int64_t k = 0; k < tokens.n; k++)
            if (vectors[i].ids[k] != tokens.ids[k])
                fail_msg("'%s': id %d at %lld, expected %d", text, tokens.ids[k], (long long)k,
                         vectors[i].ids[k]);
        assert_int_equal(vectors[i].ids[tokens.n], -1);
        calla_tokens_free(&tokens);
    }
}

/* MODEL.md 5.4: ids of single bytes. */
static void test_bytes(void **state)
{
    (void)state;
    for (int b = 0; b < 256; b++) {
        int id = b < 33     ? 188 + b
                 : b < 127  ? b - 33
                 : b < 161  ? 94 + b
                 : b == 173 ? 255
                 : b < 173  ? b - 67
                            : b - 68;
        size_t n;
        const char *bytes = calla_tokenizer_bytes(tokenizer, id, &n);
        assert_int_equal(n, 1);
        assert_int_equal((unsigned char)bytes[0], b);
    }
}

static void test_ids(void **state)
{
    (void)state;
    assert_int_equal(calla_tokenizer_n_tokens(tokenizer), 248077);
    assert_int_equal(calla_tokenizer_find(tokenizer, "<|im_end|>"), 248046);
    assert_true(calla_tokenizer_is_stop(tokenizer, 248046));
    assert_true(calla_tokenizer_is_stop(tokenizer, 248044));
    assert_true(calla_tokenizer_is_special(tokenizer, 248045));
    assert_false(calla_tokenizer_is_special(tokenizer, 248058));
}

static void test_goldens(void **state)
{
    (void)state;
    const char *path = getenv("CALLA_TOKENIZER_35B_GOLDENS");
    if (!path) skip();
    printf("%d texts\n", check_tokenizer_goldens(tokenizer, path, false));
}

int main(void)
{
    const char *dir = getenv("CALLA_TOKENIZER_35B");
    if (!dir) {
        printf("SKIP: CALLA_TOKENIZER_35B names no directory with the real tokenizer.json\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_goldens),
    };
    calla_error err;
    if (calla_tokenizer_open(dir, &tokenizer, &err) != CALLA_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    calla_tokenizer_close(tokenizer);
    return failed;
}
