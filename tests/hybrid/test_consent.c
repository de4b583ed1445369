/* Tokens of consent, and the hash they are made with. */
#include "hybrid/consent.h"
#include "support/support.h"

#include <stdio.h>
#include <string.h>

/* ---- SHA-256 ---- */

static void expect_hash(const char *text, size_t n_repeats, const char *expected)
{
    unsigned char digest[SHA256_BYTES], back[SHA256_BYTES];
    char hex[SHA256_HEX];
    sha256 s;
    sha256_init(&s);
    for (size_t i = 0; i < n_repeats; i++)
        sha256_update(&s, strlen(text), (const unsigned char *)text);
    sha256_digest(&s, SHA256_BYTES, digest);
    hex_write(digest, sizeof digest, hex);
    assert_string_equal(hex, expected);
    assert_true(hex_read(hex, back, sizeof back));
    assert_true(digest_equal(digest, back, sizeof back));
    back[31] ^= 1;
    assert_false(digest_equal(digest, back, sizeof back));
}

/* Examples of FIPS 180-4, and lengths around a block's end by Python's hashlib. */
static void test_sha256(void **state)
{
    (void)state;
    expect_hash("", 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    expect_hash("abc", 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    expect_hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1,
                "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    expect_hash("a", 1000000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    expect_hash("x", 55, "d5e285683cd4efc02d021a5c62014694958901005d6f71e89e0989fac77e4072");
    expect_hash("x", 56, "04c26261370ee7541549d16dee320c723e3fd14671e66a099afe0a377c16888e");
    expect_hash("x", 63, "75220b47218278e656f2013bb8f0c455a25eaf01e86c64924e9d48d89776d6f2");
    expect_hash("x", 64, "7ce100971f64e7001e8fe5a51973ecdfe1ced42befe7ee8d5fd6219506b5393c");
    expect_hash("x", 65, "9537c5fdf120482f7d58d25e9ed583f52c02b4e304ea814db1633ad565aed7e9");
    expect_hash("x", 119, "000b48d4edf0fa7bee3c6236ecd2785baa5db4eeb8bb54341b029e0d9fa5fb0c");
    expect_hash("x", 120, "13f05a0b594787f5ecd315edc96141bd3243203d1b7d4f0836f37308b276ba98");
}

static void test_hex(void **state)
{
    (void)state;
    unsigned char bytes[2];
    assert_true(hex_read("0aFf", bytes, 2));
    assert_int_equal(bytes[0] << 8 | bytes[1], 0x0aff);
    assert_false(hex_read("0aF", bytes, 2));
    assert_false(hex_read("0aFff", bytes, 2));
    assert_false(hex_read("0aFg", bytes, 2));
    assert_false(hex_read("", bytes, 2));
}

/* ---- consents ---- */

static consent_table *create(int32_t n)
{
    consent_table *t;
    calla_error err;
    assert_ok(consent_create(n, &t, &err), &err);
    return t;
}

static consent_subject subject(const char *client, const char *destination, const char *request)
{
    return consent_subject_of(client, destination, request, strlen(request));
}

static void offer(consent_table *t, const consent_subject *s, int64_t until_ns, char *token)
{
    calla_error err;
    assert_ok(consent_offer(t, s, until_ns, token, &err), &err);
    assert_int_equal(strlen(token), CONSENT_TOKEN_BYTES - 1);
}

static bool use(consent_table *t, const consent_subject *s, const char *token, int64_t now_ns)
{
    char id[CONSENT_ID_HEX] = "";
    bool given = consent_use(t, s, token, now_ns, id) == CONSENT_GIVEN;
    assert_int_equal(strlen(id), given ? CONSENT_ID_HEX - 1 : 0);
    if (given) assert_memory_equal(id, token, CONSENT_ID_HEX - 1);
    return given;
}

static void test_once(void **state)
{
    (void)state;
    consent_table *t = create(4);
    char token[CONSENT_TOKEN_BYTES], other[CONSENT_TOKEN_BYTES];
    consent_subject s = subject("a", "https://b", "{}");
    offer(t, &s, 1000, token);
    offer(t, &s, 1000, other);
    assert_string_not_equal(token, other);
    assert_true(use(t, &s, token, 10));
    assert_false(use(t, &s, token, 10));
    assert_true(use(t, &s, other, 999));
    consent_free(t);
}

static void test_bound(void **state)
{
    (void)state;
    consent_table *t = create(4);
    char token[CONSENT_TOKEN_BYTES];
    consent_subject s = subject("a", "https://b", "{\"x\": 1}");
    const consent_subject others[] = {
        subject("a", "https://b", "{\"x\": 2}"), subject("a", "https://c", "{\"x\": 1}"),
        subject("b", "https://b", "{\"x\": 1}"), subject("ah", "ttps://b", "{\"x\": 1}"),
        subject("a", "https://b{", "\"x\": 1}"), subject("", "", ""),
    };
    offer(t, &s, 1000, token);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_false(use(t, &others[i], token, 10));
    assert_true(use(t, &s, token, 10)); /* was not used up by those who may not */
    consent_free(t);
}

static void test_expires(void **state)
{
    (void)state;
    consent_table *t = create(4);
    char token[CONSENT_TOKEN_BYTES];
    consent_subject s = subject("a", "b", "c");
    offer(t, &s, 1000, token);
    assert_false(use(t, &s, token, 1000));
    assert_false(use(t, &s, token, 10)); /* it is gone */
    consent_free(t);
}

static void test_forged(void **state)
{
    (void)state;
    consent_table *t = create(4);
    char token[CONSENT_TOKEN_BYTES], bent[CONSENT_TOKEN_BYTES + 1];
    consent_subject s = subject("a", "b", "c");
    offer(t, &s, 1000, token);
    for (size_t i = 0; i < strlen(token); i++) {
        memcpy(bent, token, sizeof token);
        bent[i] = bent[i] == '0' ? '1' : '0';
        assert_false(use(t, &s, bent, 10));
    }
    snprintf(bent, sizeof bent, "%sx", token);
    assert_false(use(t, &s, bent, 10));
    assert_false(use(t, &s, "", 10));
    assert_false(use(t, &s, ".", 10));
    assert_true(use(t, &s, token, 10));
    consent_free(t);
}

/* The table does not grow: the oldest goes. */
static void test_bounded(void **state)
{
    (void)state;
    consent_table *t = create(3);
    char tokens[4][CONSENT_TOKEN_BYTES];
    consent_subject s = subject("a", "b", "c");
    for (int i = 0; i < 4; i++) offer(t, &s, 1000, tokens[i]);
    assert_false(use(t, &s, tokens[0], 10));
    for (int i = 1; i < 4; i++) assert_true(use(t, &s, tokens[i], 10));
    consent_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sha256),  cmocka_unit_test(test_hex),
        cmocka_unit_test(test_once),    cmocka_unit_test(test_bound),
        cmocka_unit_test(test_expires), cmocka_unit_test(test_forged),
        cmocka_unit_test(test_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
