/* Detectors on single texts: what they must find, exactly where, and what they must leave alone. */
#include "support/support.h"

#include "hybrid/detect/detect.h"
#include "hybrid/detector.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static detector *shared;

static int setup(void **state)
{
    int failed = create_detector(state);
    shared = *state;
    return failed;
}

/* The findings of `text` as "category/kind:value; ...". */
static char *found_in(const char *text)
{
    finding_list list = {0};
    strbuf out = {0};
    calla_error err;
    assert_int_equal(detect_scan(shared, text, strlen(text), &list, &err), CALLA_OK);
    for (size_t i = 0; i < list.n; i++) {
        const finding *f = &list.items[i];
        strbuf_printf(&out, "%s%s/%s:%.*s", i ? "; " : "", detect_category_name(f->category),
                      f->kind, (int)(f->end - f->start), text + f->start);
    }
    char *found = NULL;
    size_t n;
    assert_int_equal(strbuf_take(&out, &found, &n, &err), CALLA_OK);
    finding_list_deinit(&list);
    return found;
}

typedef struct example {
    const char *text, *found;
} example;

#define CHECK_EXAMPLES(examples) check_examples(examples, sizeof examples / sizeof *examples)

static void check_examples(const example *examples, size_t n)
{
    size_t n_wrong = 0;
    for (size_t i = 0; i < n; i++) {
        char *found = found_in(examples[i].text);
        if (strcmp(found, examples[i].found) != 0) {
            print_error("in:       %s\nexpected: %s\nfound:    %s\n", examples[i].text,
                        examples[i].found, found);
            n_wrong++;
        }
        free(found);
    }
    assert_int_equal(n_wrong, 0);
}

static void test_cards(void **state)
{
    (void)state;
    static const example examples[] = {
        {"my card is 4111 1111 1111 1111, ok", "payment_card/visa:4111 1111 1111 1111"},
        {"5555-5555-5555-4444", "payment_card/mastercard:5555-5555-5555-4444"},
        {"378282246310005", "payment_card/amex:378282246310005"},
        {"3782 822463 10005", "payment_card/amex:3782 822463 10005"},
        {"a=1&card=4111+1111+1111+1111", "payment_card/visa:4111+1111+1111+1111"},
        {"scan_4111_1111_1111_1111.pdf", "payment_card/visa:4111_1111_1111_1111"},
        {"it is 4111 1111\n1111 1111, ok", "payment_card/visa:4111 1111\n1111 1111"},
        {"4111/1111_1111/1111", ""},
        {"6011111111111117", "payment_card/discover:6011111111111117"},
        {"4 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1", "payment_card/visa:4 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1"},
        {"4111 1111 1111 1111 123", "payment_card/visa:4111 1111 1111 1111"},
        /* The check digit, the issuer, the length, or what it is a piece of. */
        {"4111 1111 1111 1112", ""},
        {"9111 1111 1111 1111 order 1234567812345670", ""},
        {"41111111111111111111111", ""},
        {"a4111111111111111", ""},
        {"1234-4111-1111-1111-1111", ""},
        {"0000000000000000", ""},
    };
    CHECK_EXAMPLES(examples);
}

static void test_ibans(void **state)
{
    (void)state;
    static const example examples[] = {
        {"IBAN: DE89 3704 0044 0532 0130 00.", "iban/iban:DE89 3704 0044 0532 0130 00"},
        {"GB82WEST12345698765432", "iban/iban:GB82WEST12345698765432"},
        {"fr14 2004 1010 0505 0001 3m02 606", "iban/iban:fr14 2004 1010 0505 0001 3m02 606"},
        {"DE 89 3704 0044 0532 0130 00", "iban/iban:DE 89 3704 0044 0532 0130 00"},
        {"DE88 3704 0044 0532 0130 00", ""},
        {"DE89 3704 0044 0532 0130", ""},
        {"XX89 3704 0044 0532 0130 00", ""},
    };
    CHECK_EXAMPLES(examples);
}

static void test_emails(void **state)
{
    (void)state;
    static const example examples[] = {
        {"Write to <Jane.Doe+x@mail.example.org>.", "email/email:Jane.Doe+x@mail.example.org"},
        {"mailto:o'neil@example.ie?subject=x", "email/email:o'neil@example.ie"},
        {"user=a_b@example.de&x", "email/email:a_b@example.de"},
        {"user%40example.com", "email/email:user%40example.com"},
        {"{\"to\":\"x\\nbob\\u0040example.com\"}", "email/email:bob\\u0040example.com"},
        {"j\xc3\xbcrgen@m\xc3\xbcller.de", "email/email:j\xc3\xbcrgen@m\xc3\xbcller.de"},
        {"git@github.com:owner/name.git, left-pad@1.3.0, @app.route, a@b", ""},
    };
    CHECK_EXAMPLES(examples);
}

/* Other digits, widths, look-alikes and what has no width: the range is of the text as given. */
static void test_seen_through(void **state)
{
    (void)state;
    static const example examples[] = {
        {"\xef\xbc\x94\xef\xbc\x91\xef\xbc\x91\xef\xbc\x91 1111 1111 1111 x",
         "payment_card/visa:\xef\xbc\x94\xef\xbc\x91\xef\xbc\x91\xef\xbc\x91 1111 1111 1111"},
        {"\xd9\xa4\xd9\xa1\xd9\xa1\xd9\xa1 1111 1111 1111",
         "payment_card/visa:\xd9\xa4\xd9\xa1\xd9\xa1\xd9\xa1 1111 1111 1111"},
        {"4111\xe2\x80\x8b"
         "1111\xe2\x80\x8b"
         "11111111\xe2\x80\x8b!",
         "payment_card/visa:4111\xe2\x80\x8b"
         "1111\xe2\x80\x8b"
         "11111111"},
        {"4111\xc2\xa0"
         "1111\xe2\x80\x93"
         "1111",
         ""},
        {"4111\xe2\x80\x93"
         "1111\xe2\x80\x93"
         "1111\xe2\x80\x93"
         "1111",
         "payment_card/visa:4111\xe2\x80\x93"
         "1111\xe2\x80\x93"
         "1111\xe2\x80\x93"
         "1111"},
        {"\xd0\xb0lice@example.com", "email/email:\xd0\xb0lice@example.com"},
        {"to bob&#64;corp-mail.com.", "email/email:bob&#64;corp-mail.com"},
        {"to bob&#x40;corp-mail.c&#x6F;m &#; &#x; &#64", "email/email:bob&#x40;corp-mail.c&#x6F;m"},
        {"&#52;111111111111111 ok", "payment_card/visa:&#52;111111111111111"},
        {"?card=4111%201111%201111%201111&x=1", "payment_card/visa:4111%201111%201111%201111"},
    };
    CHECK_EXAMPLES(examples);
}

static void test_contacts(void **state)
{
    (void)state;
    static const example examples[] = {
        {"Jane | 555-867-5309 |", "phone/us:555-867-5309"},
        {"Meine Handynummer: 0151 23456789", "phone/named:0151 23456789"},
        {"0151 23456789, call me", "phone/named:0151 23456789"},
        {"+49 (0)30 1234567", "phone/international:+49 (0)30 1234567"},
        {"Call me: order 04626749 of 2024-01-15", ""},
        {"Decimal('+35236450.6'), 0044 0532 9", ""},
        {"Flat 3, 22 Baker Street, London NW1 6XE",
         "postal_address/address:22 Baker Street, London NW1 6XE"},
        {"Musterstr. 12\n12345 Musterstadt",
         "postal_address/address:Musterstr. 12\n12345 Musterstadt"},
        {"In der Stadt leben rund 5 654 988 Menschen, am 10.03.2021 versandt", ""},
        {"Her birthday is March 3rd, 1991", "date_of_birth/date_of_birth:March 3rd, 1991"},
        {"Er ist am 17.07.1963 geboren. Die Sitzung am 28. Oktober 2016",
         "date_of_birth/date_of_birth:17.07.1963"},
        {"from 203.0.113.9 to ef:6f:e7:97:3f:63 via eth0",
         "ip_address/documentation:203.0.113.9; mac_address/mac:ef:6f:e7:97:3f:63"},
        {"inet6 2001:db8::5474:2326/64", "ip_address/documentation:2001:db8::5474:2326"},
        {"Version 12.10.76.156, section 3.1.2.4, OID 1.3.101.112, 127.0.0.1, std::vector, a::b",
         ""},
    };
    CHECK_EXAMPLES(examples);
}

static void test_secrets(void **state)
{
    (void)state;
    static const example examples[] = {
        {"DB_PASSWORD=hunter\nx", "password/password:hunter"},
        {"the password is Kaffee2024!", "password/password:Kaffee2024!"},
        {"postgres://app:p%40ss#1@db.example.com:5432/", "password/url:p%40ss#1"},
        {"PIN: 4821", "password/pin:4821"},
        {"I forgot my password again. password: required, password = os.environ['X']", ""},
        {"if not password:\n    return None\n key_password=key_password, x", ""},
        {"AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
         "secret/named:wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"},
        {"token is Token.Name.Function or public_key: X25519PublicKey, max_tokens: 4096", ""},
        {"key AKIAIOSFODNN7EXAMPLE.", "api_key/aws:AKIAIOSFODNN7EXAMPLE"},
        {"Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJlc2lnbmF0dXJl",
         "api_key/jwt:eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJlc2lnbmF0dXJl"},
        {"-----BEGIN EC PRIVATE KEY-----\nMHcCAQEE\n-----END EC PRIVATE KEY-----\nafter",
         "private_key/ec:-----BEGIN EC PRIVATE KEY-----\nMHcCAQEE\n-----END EC PRIVATE KEY-----"},
        {"-----BEGIN PUBLIC KEY-----\nMHcCAQEE\n-----END PUBLIC KEY-----", ""},
        {"x am9obi5kb2VAZXhhbXBsZS5jb20= y", "email/email:am9obi5kb2VAZXhhbXBsZS5jb20="},
    };
    CHECK_EXAMPLES(examples);
}

static void test_records(void **state)
{
    (void)state;
    static const example examples[] = {
        {"ICD-10: E11.9", "medical/icd10:E11.9"},
        {"She was diagnosed with epilepsy.", "medical/diagnosis:epilepsy"},
        {"The library suffers from a design error. The history of the project.", ""},
        {"Metformin 500 mg daily", "medical/prescription:Metformin 500 mg"},
        {"Versichertennummer A123456780", "health_insurance/de_kvnr:A123456780"},
        {"routing number 021000021", "bank_account/us_routing:021000021"},
        {"routing number 021000022", ""},
        {"BIC DEUTDEFF500.", "bank_account/bic:DEUTDEFF500"},
        {"O sal\xc3\xa1rio \xc3\xa9 de R$ 41.000 por m\xc3\xaas.", "financial/amount:R$ 41.000"},
        {"EAN 4006381333931, ISBN 978-3-16-148410-0, build 20240115123456", ""},
    };
    CHECK_EXAMPLES(examples);
}

/* Numbers in pieces: by what a browser, a mail program or a person puts between. */
static void test_pieces(void **state)
{
    (void)state;
    static const example examples[] = {
        {"4111 1111\r\n1111 1111", "payment_card/visa:4111 1111\r\n1111 1111"},
        {"> 4111 1111\n> 1111 1111", "payment_card/visa:4111 1111\n> 1111 1111"},
        {"<b>4111</b> <b>1111</b> <b>1111</b> <b>1111</b>",
         "payment_card/visa:4111</b> <b>1111</b> <b>1111</b> <b>1111"},
        {"4111&nbsp;1111&nbsp;1111&nbsp;1111",
         "payment_card/visa:4111&nbsp;1111&nbsp;1111&nbsp;1111"},
        {"4111  1111  1111  1111", "payment_card/visa:4111  1111  1111  1111"},
        {"4111 - 1111 - 1111 - 1111", "payment_card/visa:4111 - 1111 - 1111 - 1111"},
        {"4111 of 1111, 1111 and 1111; 4111 | 1111 | 1111 | 1111 <4111 1111> 1111 1111", ""},
        {"jane.doe [at] corp-mail [dot] com, ok", "email/email:jane.doe [at] corp-mail [dot] com"},
        {"jane(at)corp-mail.com", "email/email:jane(at)corp-mail.com"},
        {"4111\t1111\t1111\t1111 and 4111,1111,1111,1111", ""},
        {"card: 4111\t1111\t1111\t1111", "payment_card/visa:4111\t1111\t1111\t1111"},
        {"card 4111|1111|1111|1111", "payment_card/visa:4111|1111|1111|1111"},
        {"4\n1\n1\n1\n1\n1\n1\n1\n1\n1\n1\n1\n1\n1\n1\n1",
         "payment_card/visa:4\n1\n1\n1\n1\n1\n1\n1\n1\n1\n1\n1\n1\n1\n1\n1"},
        {"\\x344111 \\x34111 1111 1111 1111", "payment_card/visa:\\x34111 1111 1111 1111"},
        {"Meet (at) noon or a[at] b(t) [dot]", ""},
    };
    CHECK_EXAMPLES(examples);
}

/* The head of a table names what is in its columns. */
static void test_tables(void **state)
{
    (void)state;
    static const example examples[] = {
        {"name,born,phone,qty\nAmy,1988-11-19,22334455,12345678\nRaj,19.11.1988,,87654321",
         "date_of_birth/date_of_birth:1988-11-19; phone/named:22334455; "
         "date_of_birth/date_of_birth:19.11.1988"},
        {"user;password\r\nann;Kx7pLm2q9\r\nbob;\"Zt-88,kk1\"\r\n",
         "password/password:Kx7pLm2q9; password/password:Zt-88,kk1"},
        {"| item | PIN |\n|---|---|\n| a | 4821 |\n| b | 9930 |",
         "password/pin:4821; password/pin:9930"},
        {"id\tsalary\n7\t52000\n8\t61000", "financial/amount:52000; financial/amount:61000"},
        /* No table: the lines differ, or the first is a sentence, or it says nothing. */
        {"Call me, Ann. Yes, do.\n22334455, 22334466, 1\n", ""},
        {"phone,qty\n22334455\n", ""},
        {"sku,qty\n22334455,22334466\n", ""},
        {"phone,ordered\nnone,22334455\n-,22334466\n", ""},
    };
    CHECK_EXAMPLES(examples);
}

/* What people write between the name of a secret and the secret, and give to programs. */
static void test_secrets_in_sentences(void **state)
{
    (void)state;
    static const example examples[] = {
        {"PIN 4821, pin 12, code PIN 6190", "password/pin:4821; password/pin:6190"},
        {"il PIN della carta è 5528", "password/pin:5528"},
        {"password for the new router is Zt88kk1x", "password/password:Zt88kk1x"},
        {"clave del wifi: casaAzul2020", "password/password:casaAzul2020"},
        {"パスワードはSakura#2023です", "password/password:Sakura#2023"},
        {"- name: DB_PASSWORD\n  value: Kx7-pLm2-q9Z\n", "password/password:Kx7-pLm2-q9Z"},
        {"[{\"name\": \"password\", \"value\": \"Kx7-pLm2-q9Z\"}]",
         "password/password:Kx7-pLm2-q9Z"},
        {"The value of a password. password, value: none; \"password\", \"values\": 3", ""},
        {"The password for your account is required. The password of the user: see below", ""},
        {"curl -u deploy:s3cr3tDeploy9 https://ci.example.net/job",
         "password/argument:s3cr3tDeploy9"},
        {"mysql -h db1 -u root -pR00tP4ss!w shop", "password/argument:R00tP4ss!w"},
        {"docker login -u ci -p 'dckr9Jx2LmQw' registry.example.net",
         "password/argument:dckr9Jx2LmQw"},
        {"curl -u \"$USER:$PASS\" x; docker run -p 8080:80 img; mysql -p shop; curl -X POST u", ""},
    };
    CHECK_EXAMPLES(examples);
}

static void test_names_are_stable(void **state)
{
    (void)state;
    for (int i = 0; i < DETECT_N_CATEGORIES; i++) {
        detect_category c;
        assert_true(detect_category_of_name(detect_category_name((detect_category)i), &c));
        assert_int_equal(c, i);
        detect_class class_;
        assert_true(detect_class_of_name(detect_class_name(detect_category_class(c)), &class_));
        assert_int_equal(class_, detect_category_class(c));
    }
    detect_category c;
    assert_false(detect_category_of_name("emails", &c));
    detect_class class_;
    assert_false(detect_class_of_name("", &class_));
    assert_string_equal(detect_category_name(DETECT_PAYMENT_CARD), "payment_card");
    assert_int_equal(detect_category_class(DETECT_API_KEY), CLASS_CREDENTIALS);
}

static void test_masks(void **state)
{
    (void)state;
    static const struct {
        detect_category category;
        const char *text, *masked;
    } cases[] = {{DETECT_PAYMENT_CARD, "4111 1111 1111 1111", "4***11"},
                 {DETECT_EMAIL, "alice@example.com", "a***@e***.com"},
                 {DETECT_PASSWORD, "hunter2", "***(7 bytes)"},
                 {DETECT_PERSON_NAME, "\xc3\x89mile", "\xc3\x89***"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        strbuf out = {0};
        detect_mask(cases[i].category, cases[i].text, strlen(cases[i].text), &out);
        assert_string_equal(out.data, cases[i].masked);
        strbuf_free(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cards),
        cmocka_unit_test(test_ibans),
        cmocka_unit_test(test_emails),
        cmocka_unit_test(test_seen_through),
        cmocka_unit_test(test_contacts),
        cmocka_unit_test(test_secrets),
        cmocka_unit_test(test_records),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_tables),
        cmocka_unit_test(test_secrets_in_sentences),
        cmocka_unit_test(test_names_are_stable),
        cmocka_unit_test(test_masks),
    };
    return cmocka_run_group_tests(tests, setup, free_detector);
}
