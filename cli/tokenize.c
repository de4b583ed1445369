/* calla tokenize: text to token ids and back. */
#include "cli.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: calla tokenize -m DIR [OPTIONS] [FILE]\n"
    "\n"
    "Prints the token ids of a text (FILE, or standard input) as one JSON array.\n";

typedef struct tokenize_args {
    const char *model, *prompt, *file;
    bool lines, text_only, count, decode, raw, skip_special;
} tokenize_args;

static int check_args(const tokenize_args *a)
{
    if (!a->model) return cli_usage_error("which model? -m DIR is missing");
    if (a->prompt && a->file) return cli_usage_error("both a text (-p) and a file");
    if (a->decode && (a->lines || a->text_only || a->count))
        return cli_usage_error("--lines, --text-only and --count do not go with --decode");
    if (!a->decode && (a->raw || a->skip_special))
        return cli_usage_error("--raw and --skip-special need --decode");
    return -1;
}

/* -1 = go on, else the exit code. */
static int parse_options(int argc, char **argv, tokenize_args *a)
{
    const cli_option own[] = {
        {'m', "model", "DIR", cli_text(&a->model), "checkpoint directory"},
        {'p', "prompt", "TEXT", cli_text(&a->prompt), "the text itself"},
        {0, "lines", NULL, cli_true(&a->lines),
         "each input line is a text of its own: one array a line"},
        {0, "text-only", NULL, cli_true(&a->text_only),
         "text that looks like a control token (<|im_start|>) is text"},
        {0, "count", NULL, cli_true(&a->count), "print the number of ids instead"},
        {0, "decode", NULL, cli_true(&a->decode),
         "the reverse: each input line is an array of ids, each output line its text as a JSON "
         "string"},
        {0, "raw", NULL, cli_true(&a->raw),
         "with --decode: the texts as they are, nothing between them"},
        {0, "skip-special", NULL, cli_true(&a->skip_special),
         "with --decode: leave control tokens out"},
    };
    const cli_syntax syntax = {
        .usage = usage, .groups = {CLI_GROUP(NULL, own)}, .most_operands = 1};
    char **operands;
    int n;
    int code = cli_parse(argc, argv, &syntax, &operands, &n);
    if (code >= 0) return code;
    if (n > 0) a->file = operands[0];
    return check_args(a);
}

/* Ids as a JSON array and a newline; false when output failed. */
static bool write_ids(const calla_tokens *tokens)
{
    char buffer[1 << 14];
    size_t n = 0;
    buffer[n++] = '[';
    for (int64_t i = 0; i < tokens->n; i++) {
        if (n > sizeof buffer - 32) {
            if (!cli_write(buffer, n)) return false;
            n = 0;
        }
        n += (size_t)snprintf(buffer + n, 32, "%s%d", i ? ", " : "", tokens->ids[i]);
    }
    memcpy(buffer + n, "]\n", 2);
    return cli_write(buffer, n + 2);
}

static bool write_count(int64_t n)
{
    char line[32];
    int length = snprintf(line, sizeof line, "%lld\n", (long long)n);
    return cli_write(line, (size_t)length);
}

/* What handles one text; *go_on becomes false when the reader has gone. Returns an exit code. */
static int encode_text(const tokenize_args *a, const calla_tokenizer *tokenizer, const char *text,
                       size_t n_bytes, bool *go_on)
{
    calla_error err;
    calla_tokens tokens;
    calla_range all = {0, n_bytes};
    if (calla_tokenizer_encode(tokenizer, text, n_bytes, &all, a->text_only ? 1 : 0, &tokens,
                               &err) != CALLA_OK)
        return cli_fail(&err);
    *go_on = a->count ? write_count(tokens.n) : write_ids(&tokens);
    calla_tokens_free(&tokens);
    return EXIT_OK;
}

/* An array of ids from a line of JSON; false after printing why. */
static bool parse_ids(const char *line, size_t n_bytes, int64_t number, calla_tokens *tokens)
{
    json_error_t problem;
    const json_t *id;
    size_t i;
    *tokens = (calla_tokens){0};
    json_t *array = json_loadb(line, n_bytes, 0, &problem);
    if (!json_is_array(array)) {
        cli_failf("line %lld is not a JSON array%s%s", (long long)number, array ? "" : ": ",
                  array ? "" : problem.text);
        goto fail;
    }
    tokens->ids = malloc((json_array_size(array) + 1) * sizeof tokens->ids[0]);
    if (!tokens->ids) {
        cli_failf("line %lld: no memory for its ids", (long long)number);
        goto fail;
    }
    json_array_foreach(array, i, id)
    {
        json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;
        if (value < 0 || value > INT32_MAX) {
            cli_failf("line %lld: element %zu is not an id", (long long)number, i);
            goto fail;
        }
        tokens->ids[tokens->n++] = (int32_t)value;
    }
    json_decref(array);
    return true;
fail:
    json_decref(array);
    calla_tokens_free(tokens);
    return false;
}

static int write_text(const calla_text *text, bool raw, bool *go_on)
{
    if (raw) {
        *go_on = cli_write(text->data, text->n_bytes);
        return EXIT_OK;
    }
    json_t *string = json_stringn(text->data, text->n_bytes);
    char *json = string ? json_dumps(string, JSON_ENCODE_ANY) : NULL;
    json_decref(string);
    if (!json) return cli_failf("no memory for a text");
    *go_on = cli_write(json, strlen(json)) && cli_write("\n", 1);
    free(json);
    return EXIT_OK;
}

static int decode_line(const tokenize_args *a, const calla_tokenizer *tokenizer, const char *line,
                       size_t n_bytes, int64_t number, bool *go_on)
{
    calla_error err;
    calla_tokens tokens;
    calla_text text;
    if (strspn(line, " \t\r") >= n_bytes) return EXIT_OK; /* blank */
    if (!parse_ids(line, n_bytes, number, &tokens)) return EXIT_FAILED;
    calla_status status =
        calla_tokenizer_decode(tokenizer, tokens.ids, tokens.n, a->skip_special, &text, &err);
    calla_tokens_free(&tokens);
    if (status != CALLA_OK) return cli_failf("line %lld: %s", (long long)number, err.message);
    int code = write_text(&text, a->raw, go_on);
    calla_text_free(&text);
    return code;
}

static int handle_input(const tokenize_args *a, const calla_tokenizer *tokenizer, const char *data,
                        size_t n_bytes)
{
    bool go_on = true;
    if (!a->lines && !a->decode) return encode_text(a, tokenizer, data, n_bytes, &go_on);
    int code = EXIT_OK;
    int64_t number = 0;
    for (size_t at = 0; at < n_bytes && go_on && code == EXIT_OK;) {
        const char *line = data + at, *newline = memchr(line, '\n', n_bytes - at);
        size_t length = newline ? (size_t)(newline - line) : n_bytes - at;
        number++;
        code = a->decode ? decode_line(a, tokenizer, line, length, number, &go_on)
                         : encode_text(a, tokenizer, line, length, &go_on);
        at += length + 1;
    }
    return code;
}

int cmd_tokenize(int argc, char **argv)
{
    tokenize_args a = {0};
    int code = parse_options(argc, argv, &a);
    if (code >= 0) return code;
    calla_error err;
    calla_tokenizer *tokenizer;
    char *data = NULL;
    size_t n_bytes;
    if (calla_tokenizer_open(a.model, &tokenizer, &err) != CALLA_OK) return cli_fail(&err);
    if (a.prompt)
        code = handle_input(&a, tokenizer, a.prompt, strlen(a.prompt));
    else if (cli_read_input(a.file ? a.file : "-", &data, &n_bytes))
        code = handle_input(&a, tokenizer, data, n_bytes);
    else
        code = EXIT_FAILED;
    free(data);
    calla_tokenizer_close(tokenizer);
    return code;
}
