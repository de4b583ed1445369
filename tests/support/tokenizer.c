#include "support/tokenizer.h"

#include "support/files.h"
#include "support/support.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

calla_tokenizer *open_tokenizer(const char *dir)
{
    calla_error err;
    calla_tokenizer *tokenizer;
    assert_ok(calla_tokenizer_open(dir, &tokenizer, &err), &err);
    return tokenizer;
}

const char *tokenizer_with_old_pattern(const char *dir)
{
    static const text_edit edits[] = {
        {"[\\\\p{L}\\\\p{M}]+", "\\\\p{L}+"},
        {"[^\\\\s\\\\p{L}\\\\p{M}\\\\p{N}]+", "[^\\\\s\\\\p{L}\\\\p{N}]+"},
    };
    char path[4096];
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    char *text = read_test_file(path, NULL), *edited = edit_text(text, edits, 2);
    const char *copy = temporary_dir();
    write_test_file(copy, "tokenizer.json", edited, strlen(edited));
    free(text);
    free(edited);
    return copy;
}

/* The text of a line: a string, or bytes in hexadecimal. malloc'ed. */
static char *line_text(const json_t *value, size_t *n)
{
    if (json_is_string(value)) {
        *n = json_string_length(value);
        char *copy = malloc(*n + 1);
        assert_non_null(copy);
        memcpy(copy, json_string_value(value), *n + 1);
        return copy;
    }
    const char *hex = json_string_value(json_array_get(value, 0));
    assert_non_null(hex);
    *n = strlen(hex) / 2;
    char *bytes = malloc(*n + 1);
    assert_non_null(bytes);
    for (size_t i = 0; i < *n; i++) {
        unsigned byte;
        assert_int_equal(sscanf(hex + 2 * i, "%2x", &byte), 1);
        bytes[i] = (char)byte;
    }
    return bytes;
}

static char *ids_text(const int32_t *ids, int64_t n)
{
    char *text = malloc((size_t)n * 12 + 1), *end = text;
    assert_non_null(text);
    *end = '\0';
    for (int64_t i = 0; i < n; i++) end += sprintf(end, i ? ",%d" : "%d", ids[i]);
    return text;
}

static void check_ids(int number, const json_t *expected, const calla_tokens *tokens)
{
    bool same = json_array_size(expected) == (size_t)tokens->n;
    for (int64_t i = 0; same && i < tokens->n; i++)
        same = json_integer_value(json_array_get(expected, (size_t)i)) == tokens->ids[i];
    if (same) return;
    char *want = json_dumps(expected, JSON_COMPACT), *got = ids_text(tokens->ids, tokens->n);
    print_error("line %d: expected %s\ngot [%s]\n", number, want, got);
    free(want);
    free(got);
    fail();
}

static void check_encode(const calla_tokenizer *tokenizer, int number, const json_t *line,
                         bool old_pattern)
{
    size_t n, which = old_pattern && json_array_size(line) > 2 ? 2 : 1;
    char *text = line_text(json_array_get(line, 0), &n);
    calla_tokens tokens;
    calla_error err;
    assert_ok(calla_tokenizer_encode(tokenizer, text, n, NULL, 0, &tokens, &err), &err);
    check_ids(number, json_array_get(line, which), &tokens);
    calla_tokens_free(&tokens);
    free(text);
}

static void check_text(int number, const json_t *expected, const char *data, size_t n)
{
    if (n == json_string_length(expected) && memcmp(data, json_string_value(expected), n) == 0)
        return;
    fail_msg("line %d: '%.*s' instead of '%s'", number, (int)n, data, json_string_value(expected));
}

/* The same through the stream, token by token. */
static void check_stream(const calla_tokenizer *tokenizer, int number, const json_t *expected,
                         const int32_t *ids, size_t n_ids)
{
    calla_utf8_stream stream = {0};
    calla_error err;
    char *all = malloc(json_string_length(expected) + 4096);
    size_t n = 0;
    assert_non_null(all);
    for (size_t i = 0; i <= n_ids; i++) {
        calla_text piece;
        size_t n_bytes = 0;
        const char *bytes = i < n_ids ? calla_tokenizer_bytes(tokenizer, ids[i], &n_bytes) : NULL;
        if (bytes)
            assert_ok(calla_utf8_stream_push(&stream, bytes, n_bytes, &piece, &err), &err);
        else
            assert_ok(calla_utf8_stream_finish(&stream, &piece, &err), &err);
        assert_true(n + piece.n_bytes < json_string_length(expected) + 4096);
        memcpy(all + n, piece.data, piece.n_bytes);
        n += piece.n_bytes;
        calla_text_free(&piece);
    }
    check_text(number, expected, all, n);
    free(all);
}

static void check_decode(const calla_tokenizer *tokenizer, int number, const json_t *line)
{
    const json_t *array = json_object_get(line, "decode"), *text = json_object_get(line, "text");
    const json_t *plain = json_object_get(line, "plain");
    size_t n = json_array_size(array);
    int32_t *ids = malloc((n + 1) * sizeof *ids);
    assert_non_null(ids);
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)json_integer_value(json_array_get(array, i));
    for (int skip = 0; skip < 2; skip++) {
        calla_text got;
        calla_error err;
        assert_ok(calla_tokenizer_decode(tokenizer, ids, (int64_t)n, skip, &got, &err), &err);
        check_text(number, skip && plain ? plain : text, got.data, got.n_bytes);
        calla_text_free(&got);
    }
    check_stream(tokenizer, number, text, ids, n);
    free(ids);
}

int check_tokenizer_goldens(const calla_tokenizer *tokenizer, const char *path, bool old_pattern)
{
    int n_texts = 0, number = 0;
    char *data = read_test_file(path, NULL);
    for (char *line = data, *end; (end = strchr(line, '\n')); line = end + 1) {
        json_error_t problem;
        number++;
        json_t *value = json_loadb(line, (size_t)(end - line), JSON_ALLOW_NUL, &problem);
        if (!value) fail_msg("line %d: %s", number, problem.text);
        if (json_is_array(value)) {
            check_encode(tokenizer, number, value, old_pattern);
            n_texts++;
        } else {
            check_decode(tokenizer, number, value);
        }
        json_decref(value);
    }
    free(data);
    return n_texts;
}
