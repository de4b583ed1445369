/* UTF-8: replacement of broken sequences, and the stream against the whole. */
#include "model/utf8.h"

#include "base/philox.h"
#include "support/support.h"

#include <stdlib.h>
#include <string.h>

#define R "\xef\xbf\xbd"

/* What Python 3.11's bytes.decode("utf-8", "replace") gives. */
static const struct {
    const char *in, *out;
} cases[] = {
    {"", ""},
    {"plain", "plain"},
    {"h\xc3\xa9 \xe4\xb8\xad \xf0\x9f\x98\x80", "h\xc3\xa9 \xe4\xb8\xad \xf0\x9f\x98\x80"},
    {"\x80", R},
    {"\xff\xfe", R R},
    {"\xc0\xaf", R R},       /* overlong */
    {"\xc1\xbf", R R},       /* overlong */
    {"\xe0\x80\x80", R R R}, /* overlong */
    {"\xe0\xa0", R},         /* cut */
    {"\xed\xa0\x80", R R R}, /* surrogate */
    {"\xed\x9f\xbf", "\xed\x9f\xbf"},
    {"\xf0\x80\x80\x80", R R R R}, /* overlong */
    {"\xf0\x9f\x98", R},           /* cut */
    {"\xf0\x9f\x98x", R "x"},
    {"\xf0\x9f\xf0\x9f\x98\x80", R "\xf0\x9f\x98\x80"},
    {"\xf4\x8f\xbf\xbf", "\xf4\x8f\xbf\xbf"},
    {"\xf4\x90\x80\x80", R R R R}, /* above U+10FFFF */
    {"\xf5\x80", R R},
    {"a\xe4\xb8z\xe4", "a" R "z" R},
    {"\xc3\xc3\xa9", R "\xc3\xa9"},
    {"\xe2\x82\xe2\x82\xac\x82", R "\xe2\x82\xac" R},
};
enum { N_CASES = sizeof cases / sizeof cases[0] };

static void test_replace(void **state)
{
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        strbuf out = {0};
        char *data;
        size_t n;
        calla_error err;
        utf8_append_replaced(&out, cases[i].in, strlen(cases[i].in));
        assert_ok(strbuf_take(&out, &data, &n, &err), &err);
        assert_string_equal(data, cases[i].out);
        free(data);
    }
}

static void test_valid_bytes(void **state)
{
    (void)state;
    assert_int_equal(utf8_valid_bytes("0123456789abcdef\xe4\xb8\xad!", 20), 20);
    assert_int_equal(utf8_valid_bytes("0123456789abcdef\xe4\xb8", 18), 16);
    assert_int_equal(utf8_valid_bytes("0123\xff"
                                      "56789abcdef",
                                      16),
                     4);
    assert_int_equal(utf8_valid_bytes("", 0), 0);
}

static void test_code_points(void **state)
{
    (void)state;
    for (int32_t c = 0; c < 0x110000; c++) {
        char bytes[4];
        size_t length, again;
        if (c >= 0xd800 && c < 0xe000) continue;
        size_t n = utf8_encode(c, bytes);
        assert_int_equal(utf8_next(bytes, n, &length), UTF8_WHOLE);
        assert_int_equal(length, n);
        assert_int_equal(utf8_decode(bytes, &again), c);
        assert_int_equal(again, n);
    }
}

/* Pushes bytes [n] cut after `cuts` (bit i: after byte i) and compares with the whole. Every piece
 * must itself be valid UTF-8. */
static void check_split(const char *bytes, size_t n, uint64_t cuts, const strbuf *whole)
{
    calla_utf8_stream stream = {0};
    calla_text text;
    calla_error err;
    strbuf all = {0};
    for (size_t at = 0; at < n;) {
        size_t end = at + 1;
        while (end < n && !(cuts >> ((end - 1) % 64) & 1)) end++;
        assert_ok(calla_utf8_stream_push(&stream, bytes + at, end - at, &text, &err), &err);
        assert_int_equal(utf8_valid_bytes(text.data, text.n_bytes), text.n_bytes);
        assert_in_range(stream.n_held, 0, 3);
        strbuf_append(&all, text.data, text.n_bytes);
        calla_text_free(&text);
        at = end;
    }
    assert_ok(calla_utf8_stream_finish(&stream, &text, &err), &err);
    strbuf_append(&all, text.data, text.n_bytes);
    calla_text_free(&text);
    assert_int_equal(stream.n_held, 0);
    assert_int_equal(all.n, whole->n);
    if (all.n) assert_memory_equal(all.data, whole->data, all.n);
    strbuf_free(&all);
}

/* Every way to cut the cases above into pieces. */
static void test_stream_all_splits(void **state)
{
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        size_t n = strlen(cases[i].in);
        strbuf whole = {0};
        strbuf_puts(&whole, cases[i].out);
        for (uint64_t cuts = 0; cuts < (uint64_t)1 << (n > 0 ? n - 1 : 0); cuts++)
            check_split(cases[i].in, n, cuts, &whole);
        strbuf_free(&whole);
    }
}

/* Random strings over bytes that matter, at random cuts. */
static void test_stream_random(void **state)
{
    (void)state;
    static const char alphabet[] =
        "\x7f\x80\x8f\x90\x9f\xa0\xbf\xc1\xc2\xe0\xe1\xed\xef\xf0\xf4\xf5";
    for (uint64_t k = 0; k < 20000; k++) {
        char bytes[16];
        strbuf whole = {0};
        for (uint64_t i = 0; i < sizeof bytes; i += 4) {
            uint32_t r[4];
            philox4x32(1, k, i, r);
            for (uint64_t j = 0; j < 4; j++) bytes[i + j] = alphabet[r[j] % 16];
        }
        utf8_append_replaced(&whole, bytes, sizeof bytes);
        uint32_t r[4];
        philox4x32(2, k, 0, r);
        check_split(bytes, sizeof bytes, r[0], &whole);
        check_split(bytes, sizeof bytes, ~(uint64_t)0, &whole);
        strbuf_free(&whole);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replace),       cmocka_unit_test(test_valid_bytes),
        cmocka_unit_test(test_code_points),   cmocka_unit_test(test_stream_all_splits),
        cmocka_unit_test(test_stream_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
