/* Detectors on single texts: what they must find, exactly where, and what they must leave alone. */
#include "support/support.h"

#include "hybrid/detect.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static detector *shared;

static int create_detector(void **state)
{
    (void)state;
    calla_error err = {0};
    calla_status status = detector_create(&shared, &err);
    if (status == CALLA_ERR_UNSUPPORTED) {
        printf("SKIP: %s\n", err.message);
        exit(77);
    }
    return status != CALLA_OK;
}

static int free_detector(void **state)
{
    (void)state;
    detector_free(shared);
    return 0;
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
        cmocka_unit_test(test_names_are_stable),
        cmocka_unit_test(test_masks),
    };
    return cmocka_run_group_tests(tests, create_detector, free_detector);
}
