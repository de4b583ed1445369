/* Placeholders in, values back: for any text, any findings and any cuts. */
#include "support/support.h"

#include "base/json.h"
#include "base/philox.h"
#include "hybrid/placeholder.h"
#include "hybrid/redact.h"

#include <stdlib.h>
#include <string.h>

static redaction_map *new_map(void)
{
    redaction_map *map = NULL;
    calla_error err;
    assert_int_equal(redaction_map_create(&map, &err), CALLA_OK);
    return map;
}

/* The text with [start, end) as one finding, redacted. */
static void redact_one(redaction_map *map, const char *text, const char *value,
                       detect_category category, const char *expected)
{
    strbuf out = {0};
    const char *at = value ? strstr(text, value) : NULL;
    finding f = {.category = category, .kind = "x"};
    if (at) f.start = (size_t)(at - text), f.end = f.start + strlen(value);
    calla_error err;
    assert_int_equal(redact_text(map, text, strlen(text), &f, at != NULL, &out, &err), CALLA_OK);
    assert_string_equal(out.data, expected);
    strbuf_free(&out);
}

static void test_same_value_same_placeholder(void **state)
{
    (void)state;
    redaction_map *map = new_map();
    redact_one(map, "write to a@b.example now", "a@b.example", DETECT_EMAIL,
               "write to [EMAIL_1] now");
    redact_one(map, "or A@B.Example", "A@B.Example", DETECT_EMAIL, "or [EMAIL_1]");
    redact_one(map, "or c@b.example", "c@b.example", DETECT_EMAIL, "or [EMAIL_2]");
    redact_one(map, "4111 1111 1111 1111", "4111 1111 1111 1111", DETECT_PAYMENT_CARD, "[CARD_1]");
    redact_one(map, "4111-1111-1111-1111", "4111-1111-1111-1111", DETECT_PAYMENT_CARD, "[CARD_1]");
    redact_one(map, "4111111111111111", "4111111111111111", DETECT_PHONE, "[PHONE_1]");
    /* Passwords differ by case. */
    redact_one(map, "abc", "abc", DETECT_PASSWORD, "[PASSWORD_1]");
    redact_one(map, "ABC", "ABC", DETECT_PASSWORD, "[PASSWORD_2]");
    assert_int_equal(redaction_map_size(map), 6);
    redaction_map_free(map);
}

static void test_text_that_looks_like_a_placeholder(void **state)
{
    (void)state;
    redaction_map *map = new_map();
    redact_one(map, "[EMAIL_1] is not a@b.example", "a@b.example", DETECT_EMAIL,
               "[TEXT_1] is not [EMAIL_1]");
    redact_one(map, "[TEXT_1] \\[email\\_1\\] [EMAIL_1]", NULL, 0, "[TEXT_2] [TEXT_3] [TEXT_1]");
    /* None of these is one. */
    redact_one(map, "[EMAIL_] [EMAIL_01] [EMAILS_1] [EMAIL_1 EMAIL_1] [] [[ \\ \\[", NULL, 0,
               "[EMAIL_] [EMAIL_01] [EMAILS_1] [EMAIL_1 EMAIL_1] [] [[ \\ \\[");
    strbuf out = {0};
    restore_text(map, RESTORE_TEXT, "[TEXT_2][TEXT_3][EMAIL_1][TEXT_9]", 33, &out);
    assert_string_equal(out.data, "[TEXT_1]\\[email\\_1\\]a@b.example[TEXT_9]");
    strbuf_free(&out);
    redaction_map_free(map);
}

static void test_findings_out_of_order(void **state)
{
    (void)state;
    redaction_map *map = new_map();
    const finding bad[][2] = {{{.start = 4, .end = 6}, {.start = 5, .end = 8}},
                              {{.start = 4, .end = 6}, {.start = 1, .end = 2}},
                              {{.start = 4, .end = 4}, {.start = 5, .end = 8}},
                              {{.start = 4, .end = 5}, {.start = 7, .end = 11}}};
    strbuf out = {0};
    strbuf_puts(&out, "before");
    for (size_t i = 0; i < 4; i++) {
        calla_error err;
        assert_int_equal(redact_text(map, "0123456789", 10, bad[i], 2, &out, &err),
                         CALLA_ERR_INPUT);
        assert_string_equal(out.data, "before");
    }
    strbuf_free(&out);
    redaction_map_free(map);
}

static void test_variations_of_models(void **state)
{
    (void)state;
    redaction_map *map = new_map();
    redact_one(map, "k=\"q\"\n", "\"q\"\n", DETECT_PRIVATE_KEY, "k=[PRIVATE_KEY_1]");
    static const struct {
        const char *text, *expected;
        restore_form form;
    } cases[] = {
        {"[private_key_1]!", "\"q\"\n!", RESTORE_TEXT},
        {"\\[PRIVATE\\_KEY\\_1\\]", "\"q\"\n", RESTORE_TEXT},
        {"\\[PRIVATE_KEY_1]", "\\\"q\"\n", RESTORE_TEXT},
        {"[PRIVATE\\_KEY_1]", "\"q\"\n", RESTORE_TEXT},
        {"[[PRIVATE_KEY_1]]", "[\"q\"\n]", RESTORE_TEXT},
        {"[PRIVATE_KEY_2][PRIVATE_1][PRIVATE_KEY_1", "[PRIVATE_KEY_2][PRIVATE_1][PRIVATE_KEY_1",
         RESTORE_TEXT},
        {"{\"a\": \"[PRIVATE_KEY_1]\"}", "{\"a\": \"\\\"q\\\"\\n\"}", RESTORE_JSON},
        {"{\"a\": \"\\\\[PRIVATE\\\\_KEY_1\\\\]\"}", "{\"a\": \"\\\"q\\\"\\n\"}", RESTORE_JSON},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        strbuf out = {0};
        restore_text(map, cases[i].form, cases[i].text, strlen(cases[i].text), &out);
        assert_string_equal(out.data, cases[i].expected);
        strbuf_free(&out);
    }
    redaction_map_free(map);
}

/* What waits is never more than could begin a placeholder. */
static void test_holds_back_little(void **state)
{
    (void)state;
    redaction_map *map = new_map();
    redact_one(map, "a@b.example", "a@b.example", DETECT_EMAIL, "[EMAIL_1]");
    static const struct {
        const char *piece, *out;
    } steps[] = {{"see [", "see "},    {"1] and [EM", "[1] and "}, {"AIL_", ""}, {"1", ""},
                 {"]", "a@b.example"}, {"[EMAILS", "[EMAILS"},     {"\\", ""},   {"n", "\\n"}};
    restorer *r;
    calla_error err;
    assert_int_equal(restorer_create(map, RESTORE_TEXT, &r, &err), CALLA_OK);
    strbuf out = {0};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        strbuf_clear(&out);
        restorer_push(r, steps[i].piece, strlen(steps[i].piece), &out);
        assert_string_equal(out.n ? out.data : "", steps[i].out);
    }
    strbuf_clear(&out);
    restorer_push(r, "[EMAIL", 6, &out);
    assert_int_equal(out.n, 0);
    restorer_finish(r, &out);
    assert_string_equal(out.data, "[EMAIL");
    strbuf_free(&out);
    restorer_free(r);
    redaction_map_free(map);
}

/* ---- any text, any cuts ---- */

typedef struct draws {
    uint64_t seed, n;
} draws;

static uint32_t draw(draws *d, uint32_t below)
{
    uint32_t r[4];
    philox4x32(d->seed, d->n++, 77, r);
    return r[0] % below;
}

/* Pieces that placeholders and their neighbours are made of, so that they meet often. */
static const char *const pieces[] = {"[",
                                     "]",
                                     "\\",
                                     "\\\\",
                                     "[EMAIL_1]",
                                     "[email_2]",
                                     "\\[CARD\\_1\\]",
                                     "[TEXT_1]",
                                     "EMAIL_",
                                     "1",
                                     "12",
                                     "_",
                                     "[API_KEY_",
                                     "\"",
                                     "\n",
                                     "{\"a\":\"b\"}",
                                     "word ",
                                     "\xc3\xa9",
                                     "[[",
                                     "]]",
                                     "[SECRET_1",
                                     " ",
                                     "\xe4\xb8\xad",
                                     "\t"};

static void random_text(draws *d, uint32_t n, strbuf *out)
{
    for (uint32_t k = draw(d, n); k > 0; k--)
        strbuf_puts(out, pieces[draw(d, sizeof pieces / sizeof *pieces)]);
}

/* Restores text in pieces of random sizes. */
static void restore_cut(draws *d, redaction_map *map, restore_form form, const strbuf *text,
                        strbuf *out)
{
    restorer *r;
    calla_error err;
    assert_int_equal(restorer_create(map, form, &r, &err), CALLA_OK);
    uint32_t largest = 1 + draw(d, 24);
    for (size_t at = 0, n; at < text->n; at += n) {
        n = draw(d, largest + 1);
        if (n > text->n - at) n = text->n - at;
        restorer_push(r, text->data + at, n, out);
    }
    restorer_finish(r, out);
    restorer_free(r);
    assert_false(out->failed);
}

/* Values are drawn with a number, so that no two normalise to one. */
static void random_message(draws *d, strbuf *text, finding *findings, size_t *n_findings)
{
    *n_findings = 0;
    for (uint32_t k = draw(d, 6); k > 0; k--) {
        random_text(d, 8, text);
        finding f = {.category = (detect_category)draw(d, DETECT_N_CATEGORIES), .kind = "x"};
        f.start = text->n;
        strbuf_printf(text, "v%u", (unsigned)draw(d, 40));
        if (detect_category_class(f.category) == CLASS_CREDENTIALS) random_text(d, 5, text);
        f.end = text->n;
        findings[(*n_findings)++] = f;
    }
    random_text(d, 8, text);
}

static void test_any_text_any_cuts(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 3000; seed++) {
        draws d = {seed, 0};
        redaction_map *map = new_map();
        for (int turn = 0; turn < 4; turn++) {
            strbuf text = {0}, sent = {0}, back = {0};
            finding findings[8];
            size_t n_findings;
            random_message(&d, &text, findings, &n_findings);
            calla_error err;
            assert_int_equal(redact_text(map, text.data ? text.data : "", text.n, findings,
                                         n_findings, &sent, &err),
                             CALLA_OK);
            restore_cut(&d, map, RESTORE_TEXT, &sent, &back);
            assert_int_equal(back.n, text.n);
            if (text.n) assert_memory_equal(back.data, text.data, text.n);
            strbuf_free(&text);
            strbuf_free(&sent);
            strbuf_free(&back);
        }
        redaction_map_free(map);
    }
}

/* A model copies what it was sent into a tool's arguments: {"text": ...} as JSON. Cut anywhere and
 * restored, that is JSON whose text is the original one. */
static void test_any_arguments_any_cuts(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 3000; seed++) {
        draws d = {seed, 0};
        redaction_map *map = new_map();
        strbuf text = {0}, sent = {0}, arguments = {0}, back = {0};
        finding findings[8];
        size_t n_findings;
        random_message(&d, &text, findings, &n_findings);
        calla_error err;
        assert_int_equal(
            redact_text(map, text.data ? text.data : "", text.n, findings, n_findings, &sent, &err),
            CALLA_OK);
        strbuf_puts(&arguments, "{\"text\": ");
        json_write_string(&arguments, sent.data ? sent.data : "", sent.n);
        strbuf_puts(&arguments, ", \"list\": [1, [2]]}");
        restore_cut(&d, map, RESTORE_JSON, &arguments, &back);
        json_t *value = NULL;
        assert_int_equal(json_parse_text(back.data, back.n, "arguments", &value, &err), CALLA_OK);
        const json_t *string = json_object_get(value, "text");
        assert_int_equal(json_string_length(string), text.n);
        if (text.n) assert_memory_equal(json_string_value(string), text.data, text.n);
        json_decref(value);
        strbuf_free(&text);
        strbuf_free(&sent);
        strbuf_free(&arguments);
        strbuf_free(&back);
        redaction_map_free(map);
    }
}

/* Placeholders of a long value, written again and again, stay as they are in the end. */
static void test_restores_no_flood(void **state)
{
    (void)state;
    enum { VALUE_BYTES = 1 << 20, N_TIMES = 100 };
    redaction_map *map = new_map();
    strbuf text = {0}, sent = {0}, back = {0};
    calla_error err;
    for (int i = 0; i < VALUE_BYTES; i++) strbuf_putc(&text, 'k');
    const finding f = {.category = DETECT_PRIVATE_KEY, .end = text.n};
    assert_ok(redact_text(map, text.data, text.n, &f, 1, &sent, &err), &err);
    strbuf_clear(&text);
    for (int i = 0; i < N_TIMES; i++) strbuf_append(&text, sent.data, sent.n);
    restore_text(map, RESTORE_TEXT, text.data, text.n, &back);
    assert_int_equal(back.n, 64 * VALUE_BYTES + (N_TIMES - 64) * sent.n);
    strbuf_free(&text);
    strbuf_free(&sent);
    strbuf_free(&back);
    redaction_map_free(map);
}

/* Whatever a model writes, cuts do not show. */
static void test_cuts_do_not_show(void **state)
{
    (void)state;
    redaction_map *map = new_map();
    redact_one(map, "a@b.example", "a@b.example", DETECT_EMAIL, "[EMAIL_1]");
    redact_one(map, "[TEXT_1]", NULL, 0, "[TEXT_1]");
    redact_one(map, "4111", "4111", DETECT_PAYMENT_CARD, "[CARD_1]");
    for (uint64_t seed = 0; seed < 5000; seed++) {
        draws d = {seed, 1u << 20};
        strbuf text = {0}, whole = {0}, cut = {0};
        random_text(&d, 40, &text);
        restore_form form = seed % 2 ? RESTORE_JSON : RESTORE_TEXT;
        restore_text(map, form, text.data ? text.data : "", text.n, &whole);
        restore_cut(&d, map, form, &text, &cut);
        assert_int_equal(cut.n, whole.n);
        if (cut.n) assert_memory_equal(cut.data, whole.data, cut.n);
        strbuf_free(&text);
        strbuf_free(&whole);
        strbuf_free(&cut);
    }
    redaction_map_free(map);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_value_same_placeholder),
        cmocka_unit_test(test_text_that_looks_like_a_placeholder),
        cmocka_unit_test(test_findings_out_of_order),
        cmocka_unit_test(test_variations_of_models),
        cmocka_unit_test(test_holds_back_little),
        cmocka_unit_test(test_any_text_any_cuts),
        cmocka_unit_test(test_any_arguments_any_cuts),
        cmocka_unit_test(test_cuts_do_not_show),
        cmocka_unit_test(test_restores_no_flood),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
