#include "run.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char dim[] = "\033[2m", plain[] = "\033[0m";

/* ---- writing ---- */

static void write_out(run_answer *a, const char *bytes, size_t n_bytes)
{
    if (n_bytes == 0 || a->reader_gone) return;
    a->reader_gone = !cli_write(bytes, n_bytes);
    a->last = bytes[n_bytes - 1];
}

static void set_dim(run_answer *a, bool on)
{
    if (on == a->styled || !isatty(STDOUT_FILENO) || getenv("NO_COLOR")) return;
    a->styled = on;
    char last = a->last;
    write_out(a, on ? dim : plain, on ? sizeof dim - 1 : sizeof plain - 1);
    a->last = last;
}

/* From reasoning to what follows: a blank line between. */
static void end_reasoning(run_answer *a)
{
    if (!a->in_reasoning) return;
    a->in_reasoning = false;
    set_dim(a, false);
    if (a->last) write_out(a, a->last == '\n' ? "\n" : "\n\n", a->last == '\n' ? 1 : 2);
}

static void put_reasoning(run_answer *a, const char *bytes, size_t n_bytes)
{
    if (a->reasoning) fwrite(bytes, 1, n_bytes, a->reasoning);
    if (a->args->json || !a->show_reasoning || n_bytes == 0) return;
    a->in_reasoning = true;
    set_dim(a, true);
    write_out(a, bytes, n_bytes);
}

static void put_text(run_answer *a, const char *bytes, size_t n_bytes)
{
    if (n_bytes == 0) return;
    if (a->text) fwrite(bytes, 1, n_bytes, a->text);
    if (a->args->json) return;
    end_reasoning(a);
    write_out(a, bytes, n_bytes);
}

/* ---- stop texts ---- */

static void put_content(run_answer *a, const char *bytes, size_t n_bytes)
{
    const char *ready;
    size_t n_ready;
    if (calla_stop_matcher_push(a->stops, bytes, n_bytes, &ready, &n_ready, &a->stopped, NULL) !=
        CALLA_OK)
        a->no_memory = true;
    else
        put_text(a, ready, n_ready);
}

static void release_held(run_answer *a)
{
    const char *ready;
    size_t n_ready;
    calla_stop_matcher_flush(a->stops, &ready, &n_ready);
    put_text(a, ready, n_ready);
}

/* ---- tool calls ---- */

static void begin_tool(run_answer *a, const char *name, size_t n_bytes)
{
    release_held(a);
    free(a->tool_name);
    json_t *string = json_stringn(name, n_bytes);
    a->tool_name = string ? json_dumps(string, JSON_ENCODE_ANY) : NULL;
    json_decref(string);
    a->arguments = open_memstream(&a->arguments_data, &a->n_arguments);
    if (!a->tool_name || !a->arguments) a->no_memory = true;
}

static void close_arguments(run_answer *a)
{
    if (a->arguments) fclose(a->arguments);
    free(a->arguments_data);
    a->arguments = NULL;
    a->arguments_data = NULL;
}

/* A call is printed as one line of JSON. */
static void end_tool(run_answer *a)
{
    static const char format[] = "{\"name\": %s, \"arguments\": %s}";
    if (!a->arguments || !a->tool_name) return;
    if (fflush(a->arguments) != 0) {
        a->no_memory = true;
    } else if (a->args->json) {
        if (a->n_calls > 0) fputs(", ", a->calls);
        fprintf(a->calls, format, a->tool_name, a->arguments_data);
    } else {
        char *line;
        int n = asprintf(&line, format, a->tool_name, a->arguments_data);
        end_reasoning(a);
        if (a->last && a->last != '\n') write_out(a, "\n", 1);
        if (n >= 0) {
            write_out(a, line, (size_t)n);
            free(line);
        } else {
            a->no_memory = true;
        }
        write_out(a, "\n", 1);
    }
    close_arguments(a);
    a->n_calls++;
}

static void on_event(void *user, const calla_chat_event *event)
{
    run_answer *a = user;
    switch (event->kind) {
    case CALLA_CHAT_REASONING:
        put_reasoning(a, event->text, event->n_bytes);
        break;
    case CALLA_CHAT_CONTENT:
        put_content(a, event->text, event->n_bytes);
        break;
    case CALLA_CHAT_TOOL_BEGIN:
        begin_tool(a, event->text, event->n_bytes);
        break;
    case CALLA_CHAT_TOOL_ARGUMENTS:
        if (a->arguments) fwrite(event->text, 1, event->n_bytes, a->arguments);
        break;
    case CALLA_CHAT_TOOL_END:
        end_tool(a);
        break;
    }
}

/* ---- the stream ---- */

calla_status run_answer_init(run_answer *a, const run_args *args, const run_prompt *prompt,
                             calla_error *err)
{
    *a = (run_answer){.args = args};
    a->show_reasoning =
        args->show_thinking < 0 ? isatty(STDOUT_FILENO) != 0 : args->show_thinking > 0;
    if (args->json) {
        a->text = open_memstream(&a->text_data, &a->n_text);
        a->reasoning = open_memstream(&a->reasoning_data, &a->n_reasoning);
        a->calls = open_memstream(&a->calls_data, &a->n_calls_bytes);
    }
    if (args->json && !(a->text && a->reasoning && a->calls)) {
        *err = (calla_error){CALLA_ERR_MEMORY, "no memory for the answer"};
        return CALLA_ERR_MEMORY;
    }
    calla_status status = calla_stop_matcher_create(args->stops, args->n_stops, &a->stops, err);
    if (status != CALLA_OK || args->raw) return status;
    const calla_text *text = &prompt->prompt.text;
    return calla_chat_parser_create(text->data, text->n_bytes, prompt->tools, prompt->n_tools_bytes,
                                    on_event, a, &a->parser, err);
}

void run_answer_deinit(run_answer *a)
{
    set_dim(a, false);
    calla_chat_parser_free(a->parser);
    close_arguments(a);
    if (a->text) fclose(a->text);
    if (a->reasoning) fclose(a->reasoning);
    if (a->calls) fclose(a->calls);
    free(a->text_data);
    free(a->reasoning_data);
    free(a->calls_data);
    free(a->tool_name);
    calla_stop_matcher_free(a->stops);
}

static calla_status check(const run_answer *a, calla_error *err)
{
    if (!a->no_memory) return CALLA_OK;
    *err = (calla_error){CALLA_ERR_MEMORY, "no memory for the answer"};
    return CALLA_ERR_MEMORY;
}

/* Whole UTF-8 text goes on to the parser, or with --raw straight out. */
static calla_status pass_on(run_answer *a, const calla_text *text, calla_error *err)
{
    if (text->n_bytes == 0) return CALLA_OK;
    if (a->parser) return calla_chat_parser_push(a->parser, text->data, text->n_bytes, err);
    put_content(a, text->data, text->n_bytes);
    return CALLA_OK;
}

calla_status run_answer_push(run_answer *a, const char *bytes, size_t n_bytes, calla_error *err)
{
    calla_text text;
    calla_status status = calla_utf8_stream_push(&a->utf8, bytes, n_bytes, &text, err);
    if (status != CALLA_OK) return status;
    status = pass_on(a, &text, err);
    calla_text_free(&text);
    return status == CALLA_OK ? check(a, err) : status;
}

calla_status run_answer_finish(run_answer *a, calla_error *err)
{
    calla_text text;
    calla_status status = calla_utf8_stream_finish(&a->utf8, &text, err);
    if (status != CALLA_OK) return status;
    status = pass_on(a, &text, err);
    calla_text_free(&text);
    if (status == CALLA_OK && a->parser) status = calla_chat_parser_finish(a->parser, err);
    release_held(a);
    set_dim(a, false);
    bool newline = isatty(STDOUT_FILENO) || !a->args->raw;
    if (!a->args->json && newline && a->last && a->last != '\n') write_out(a, "\n", 1);
    return status == CALLA_OK ? check(a, err) : status;
}
