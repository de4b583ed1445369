/* JSON in through jansson and out in Python's form. The expected texts are what CPython 3.11 prints
 * for json.dumps(json.loads(TEXT), ensure_ascii=False). Many more numbers are in
 * chat_goldens.jsonl.
 */
#include "support/support.h"

#include "base/json.h"
#include "base/philox.h"

#include <float.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *parse(const char *text, size_t n)
{
    json_t *value = NULL;
    calla_error err;
    assert_ok(json_parse_text(text, n, "text", &value, &err), &err);
    return value;
}

static void check(const char *text, const char *expected)
{
    json_t *value = parse(text, strlen(text));
    strbuf out = {0};
    json_write_value(&out, value);
    assert_string_equal(out.data, expected);
    assert_int_equal(strlen(expected), out.n);
    strbuf_free(&out);
    json_decref(value);
}

static void refuse(const char *text, const char *part)
{
    json_t *value = NULL;
    calla_error err;
    assert_error(json_parse_text(text, strlen(text), "text", &value, &err), CALLA_ERR_INPUT, &err,
                 part);
    assert_null(value);
    assert_int_equal(json_parse_text(text, strlen(text), "text", &value, NULL), CALLA_ERR_INPUT);
}

static void test_values(void **state)
{
    (void)state;
    check("[]", "[]");
    check(" {} ", "{}");
    check("[1,true , false,null,\"a\",{\"b\":[ ]}]", "[1, true, false, null, \"a\", {\"b\": []}]");
    check("{\"z\":1,\"a\":{\"y\":2,\"b\":3}}", "{\"z\": 1, \"a\": {\"y\": 2, \"b\": 3}}");
    check("\"top\"", "\"top\"");
    check("null", "null");
    /* The last of duplicate keys wins, in the first one's place. */
    check("{\"a\":1,\"b\":2,\"a\":3}", "{\"a\": 3, \"b\": 2}");
}

static void test_strings(void **state)
{
    (void)state;
    check("\"\\\" \\\\ \\/ \\b \\f \\n \\r \\t\"", "\"\\\" \\\\ / \\b \\f \\n \\r \\t\"");
    check("\"\\u0000\\u0001\\u001F\\u007f\\u0080\\u2028\"",
          "\"\\u0000\\u0001\\u001f\x7f\xc2\x80\xe2\x80\xa8\"");
    check("\"\\uD83D\\ude00 caf\xc3\xa9\"", "\"\xf0\x9f\x98\x80 caf\xc3\xa9\"");
    check("{\"\\n\\u0001\":\"\"}", "{\"\\n\\u0001\": \"\"}");
    refuse("\"\\ud800\"", "invalid Unicode");
    refuse("\"\xff\"", "unable to decode byte 0xff");
    refuse("{\"a\\u0000\":1}", "NUL");
    refuse("\"a\nb\"", "line 1");
}

static void test_integers(void **state)
{
    (void)state;
    check("[0,-0,7,-12]", "[0, 0, 7, -12]");
    check("[9223372036854775807,-9223372036854775808]",
          "[9223372036854775807, -9223372036854775808]");
    check("[9223372036854775808,-9223372036854775809,18446744073709551615]",
          "[9223372036854775808, -9223372036854775809, 18446744073709551615]");
    check("{\"a\":{\"b\":[123456789012345678901234567890]}}",
          "{\"a\": {\"b\": [123456789012345678901234567890]}}");
    check("-99999999999999999999", "-99999999999999999999");
    /* Strings stay what they are, whatever they look like, beside large integers and without. */
    check("[\"99999999999999999999\",\"\\u000099999999999999999999\",\"\\u0000\"]",
          "[\"99999999999999999999\", \"\\u000099999999999999999999\", \"\\u0000\"]");
    check("[99999999999999999999,\"\\u000099999999999999999999\",\"\\u0000\",\"\\u0000\\u0000\","
          "\"\\\"99999999999999999999\",\"\\\\\",\"\"]",
          "[99999999999999999999, \"\\u000099999999999999999999\", \"\\u0000\", "
          "\"\\u0000\\u0000\", \"\\\"99999999999999999999\", \"\\\\\", \"\"]");
    refuse("[012345678901234567890123]", "line 1");
    refuse("[-]", "line 1");
    refuse("{99999999999999999999:1}", "not valid JSON");
    refuse("[99999999999999999999", "not valid JSON");
    /* Offsets are those of the text given, not of what it is rewritten to. */
    refuse("[99999999999999999999,\"\\u0000\",\n 1 2]", "(line 2, byte 36)");
    refuse("[99999999999999999999,\"\\u0000", "byte 29");
}

static void test_integer_digits(void **state)
{
    (void)state;
    char *text = malloc(JSON_MAX_DIGITS + 2);
    assert_non_null(text);
    memset(text, '7', JSON_MAX_DIGITS + 1);
    text[JSON_MAX_DIGITS + 1] = '\0';
    refuse(text, "integer of 4301 digits");
    text[JSON_MAX_DIGITS] = '\0';
    check(text, text);
    free(text);
}

static void test_kinds(void **state)
{
    (void)state;
    json_t *list = parse("[18446744073709551615,{},{\"a\":1},1]", 35);
    assert_true(json_is_big_integer(json_array_get(list, 0)));
    assert_false(json_is_mapping(json_array_get(list, 0)));
    assert_string_equal(json_kind_name(json_array_get(list, 0)), "an integer");
    json_t *copy = json_deep_copy(list);
    assert_true(json_equal(list, copy));
    assert_true(json_is_big_integer(json_array_get(copy, 0)));
    json_decref(copy);
    for (size_t i = 1; i < 4; i++) assert_false(json_is_big_integer(json_array_get(list, i)));
    assert_true(json_is_mapping(json_array_get(list, 1)));
    assert_true(json_is_mapping(json_array_get(list, 2)));
    assert_false(json_is_mapping(json_array_get(list, 3)));
    assert_false(json_is_text(NULL, ""));
    json_decref(list);
}

static void check_real(double x, const char *expected)
{
    strbuf out = {0};
    json_write_real(&out, x);
    assert_string_equal(out.data, expected);
    strbuf_free(&out);
}

static void test_reals(void **state)
{
    (void)state;
    check("[0.0,-0.0,1.0,0.1,-2.50,1e5,1E+15,1e16,123456789012345680.0]",
          "[0.0, -0.0, 1.0, 0.1, -2.5, 100000.0, 1000000000000000.0, 1e+16, "
          "1.2345678901234568e+17]");
    check("[1e-4,0.00012345,1e-5,1.5e-10,1e-400,0e5]",
          "[0.0001, 0.00012345, 1e-05, 1.5e-10, 0.0, 0.0]");
    check_real(9999999999999998.0, "9999999999999998.0");
    check_real(5e-324, "5e-324");
    check_real(DBL_MIN, "2.2250738585072014e-308");
    check_real(DBL_MAX, "1.7976931348623157e+308");
    check_real(9e23, "9e+23");
    check_real(1e23, "1e+23");
    check_real(0.1 + 0.2, "0.30000000000000004");
    /* Powers of two whose shortest form is not the nearest of that length. */
    check_real(ldexp(1, -44), "5.684341886080802e-14");
    check_real(ldexp(1, -1017), "7.120236347223045e-307");
    refuse("[1e400]", "real number overflow");
    refuse("NaN", "not valid JSON");
    refuse("[Infinity]", "not valid JSON");
}

/* Every double reads back as itself, and has no more digits than it needs. */
static void test_reals_read_back(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 20000; i++) {
        uint32_t r[4];
        philox4x32(7, i, 0, r);
        uint64_t bits = ((uint64_t)r[0] << 32 | r[1]) >> (i % 3 == 0 ? 12 : 0);
        double x;
        memcpy(&x, &bits, sizeof x);
        if (!isfinite(x)) continue;
        strbuf out = {0};
        json_write_real(&out, x);
        double y = strtod(out.data, NULL);
        assert_memory_equal(&x, &y, sizeof x);
        char shorter[64];
        int n_digits = 0;
        for (const char *p = out.data; *p && *p != 'e'; p++) n_digits += *p >= '0' && *p <= '9';
        if (out.data[out.n - 1] != '0' && strchr(out.data, 'e') && n_digits > 1) {
            snprintf(shorter, sizeof shorter, "%.*e", n_digits - 2, x);
            assert_true(strtod(shorter, NULL) != x);
        }
        strbuf_free(&out);
    }
}

static void test_locale(void **state)
{
    (void)state;
    if (!setlocale(LC_NUMERIC, "de_DE.UTF-8") && !setlocale(LC_NUMERIC, "fr_FR.UTF-8")) skip();
    check("[1.5,0.1,1e-7]", "[1.5, 0.1, 1e-07]");
    setlocale(LC_NUMERIC, "C");
}

static void test_depth(void **state)
{
    (void)state;
    enum { N = JSON_MAX_DEPTH };
    char text[2 * N + 64];
    memset(text, '[', N);
    memset(text + N, ']', N);
    text[2 * N] = '\0';
    check(text, text);
    memset(text, '[', N + 1);
    memset(text + N + 1, ']', N + 1);
    text[2 * N + 2] = '\0';
    refuse(text, "depth");
    /* The detour of large integers walks the tree. */
    memset(text, '[', N - 1);
    int n = sprintf(text + N - 1, "%s", "99999999999999999999");
    memset(text + N - 1 + n, ']', N - 1);
    text[2 * N - 2 + n] = '\0';
    check(text, text);
}

static void test_syntax_errors(void **state)
{
    (void)state;
    refuse("", "text: not valid JSON");
    refuse("{\"a\":1,}", "(line 1, byte 8)");
    refuse("[1]\n x", "line 2");
    refuse("{'a':1}", "text");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),          cmocka_unit_test(test_strings),
        cmocka_unit_test(test_integers),        cmocka_unit_test(test_integer_digits),
        cmocka_unit_test(test_kinds),           cmocka_unit_test(test_reals),
        cmocka_unit_test(test_reals_read_back), cmocka_unit_test(test_locale),
        cmocka_unit_test(test_depth),           cmocka_unit_test(test_syntax_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
