#include "run.h"

#include <stdlib.h>
#include <string.h>

/* JSON strings hold valid UTF-8 only: what is not becomes U+FFFD, as in the tokenizer. */
static json_t *text_value(const char *text, size_t n_bytes)
{
    calla_utf8_stream stream = {0};
    calla_text head = {0}, tail = {0};
    json_t *value = NULL;
    if (calla_utf8_stream_push(&stream, text, n_bytes, &head, NULL) == CALLA_OK &&
        calla_utf8_stream_finish(&stream, &tail, NULL) == CALLA_OK) {
        char *whole = malloc(head.n_bytes + tail.n_bytes + 1);
        if (whole) {
            memcpy(whole, head.data, head.n_bytes);
            memcpy(whole + head.n_bytes, tail.data, tail.n_bytes);
            value = json_stringn(whole, head.n_bytes + tail.n_bytes);
        }
        free(whole);
    }
    calla_text_free(&head);
    calla_text_free(&tail);
    return value;
}

static json_t *message(const char *role, const char *text, size_t n_bytes)
{
    return json_pack("{s:s, s:o}", "role", role, "content", text_value(text, n_bytes));
}

/* The text of -p or -f as a conversation, in JSON; NULL without memory. */
static char *conversation(const run_args *args, const char *text, size_t n_bytes)
{
    json_t *messages = json_array();
    if (args->system)
        json_array_append_new(messages, message("system", args->system, strlen(args->system)));
    json_array_append_new(messages, message("user", text, n_bytes));
    bool whole = json_array_size(messages) == (args->system ? 2 : 1);
    char *dump = whole ? json_dumps(messages, 0) : NULL;
    json_decref(messages);
    return dump;
}

/* The text itself is the prompt, all of it literal. */
static bool raw_prompt(char *text, size_t n_bytes, run_prompt *prompt)
{
    calla_range *all = malloc(sizeof *all);
    prompt->prompt.text = (calla_text){text, n_bytes};
    if (!all) {
        cli_failf("no memory for the prompt");
        return false;
    }
    *all = (calla_range){0, n_bytes};
    prompt->prompt.literal = all;
    prompt->prompt.n_literal = 1;
    return true;
}

static bool render(const run_args *args, const char *messages, size_t n_bytes, run_prompt *prompt)
{
    calla_error err;
    calla_chat_options options = {.no_thinking = args->no_think};
    if (calla_chat_render(messages, n_bytes, prompt->tools, prompt->n_tools_bytes, &options,
                          &prompt->prompt, &err) == CALLA_OK)
        return true;
    prompt->prompt = (calla_prompt){0};
    const char *file = strncmp(err.message, "tools", 5) == 0 ? args->tools : args->messages;
    if (file)
        cli_failf("%s: %s", cli_input_name(file), err.message);
    else
        cli_fail(&err);
    return false;
}

bool run_prompt_make(const run_args *args, run_prompt *prompt)
{
    *prompt = (run_prompt){0};
    const char *file = args->messages ? args->messages
                       : args->text   ? (strcmp(args->text, "-") == 0 ? "-" : NULL)
                                      : args->file;
    char *text = NULL;
    size_t n_bytes = 0;
    if (file && !cli_read_input(file, &text, &n_bytes)) return false;
    if (!file) {
        n_bytes = strlen(args->text);
        text = strdup(args->text);
    }
    char *messages = NULL;
    bool ok = false;
    if (args->tools && !cli_read_input(args->tools, &prompt->tools, &prompt->n_tools_bytes))
        goto done;
    if (args->tools && prompt->n_tools_bytes == 0) { /* to the library: no tools */
        cli_failf("%s is empty, a JSON array was expected", cli_input_name(args->tools));
        goto done;
    }
    if (text && args->raw) {
        ok = raw_prompt(text, n_bytes, prompt);
        text = NULL; /* the prompt's now */
        goto done;
    }
    if (text && !args->messages) {
        messages = conversation(args, text, n_bytes);
        if (messages) n_bytes = strlen(messages);
    } else {
        messages = text;
        text = NULL;
    }
    prompt->messages = messages;
    if (messages)
        ok = render(args, messages, n_bytes, prompt);
    else
        cli_failf("no memory for the prompt");
done:
    free(text);
    return ok;
}

void run_prompt_free(run_prompt *prompt)
{
    calla_prompt_free(&prompt->prompt);
    free(prompt->tools);
    free(prompt->messages);
    *prompt = (run_prompt){0};
}
