/* The parser of generated text: any bytes, cut anywhere, give the same events, whole UTF-8 in them,
 * and arguments that are JSON objects. The first byte picks prompt and tools. */
#include "base/json.h"
#include "base/philox.h"
#include "model/utf8.h"

#include <calla/model.h>

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char tools[] =
    "[{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"},\"n\":{\"type\":"
    "\"integer\"},\"u\":{\"type\":[\"null\",\"boolean\",\"object\",\"string\"]},\"a\":{}}}},"
    "{\"function\":{\"name\":\"get_weather\"}}]";
static const char *const prompts[] = {"<think>\n", "</think>\n\n", "", "<|im_start|>assistant\n"};

typedef struct trace {
    strbuf text, arguments;
    int kind, index;
} trace;

static void require(bool condition)
{
    if (!condition) abort();
}

static void on_event(void *user, const calla_chat_event *e)
{
    trace *t = user;
    require(utf8_valid_bytes(e->text, e->n_bytes) == e->n_bytes);
    require(e->kind == CALLA_CHAT_TOOL_END || e->n_bytes > 0);
    if ((int)e->kind != t->kind || e->tool_index != t->index || e->kind == CALLA_CHAT_TOOL_BEGIN)
        strbuf_printf(&t->text, "|%d %d:", (int)e->kind, (int)e->tool_index);
    strbuf_append(&t->text, e->text, e->n_bytes);
    t->kind = (int)e->kind;
    t->index = e->tool_index;
    if (e->kind == CALLA_CHAT_TOOL_ARGUMENTS) strbuf_append(&t->arguments, e->text, e->n_bytes);
    if (e->kind != CALLA_CHAT_TOOL_END) return;
    json_t *object = NULL;
    require(json_parse_text(t->arguments.data, t->arguments.n, "arguments", &object, NULL) ==
            CALLA_OK);
    require(json_is_mapping(object));
    json_decref(object);
    strbuf_clear(&t->arguments);
}

/* Pieces of `step` bytes; 0: of drawn sizes. */
static trace run(uint8_t choice, const char *text, size_t n, size_t step)
{
    trace t = {.kind = -1};
    calla_chat_parser *p;
    const char *prompt = prompts[choice % 4];
    size_t n_tools = choice & 4 ? strlen(tools) : 0;
    require(calla_chat_parser_create(prompt, strlen(prompt), tools, n_tools, on_event, &t, &p,
                                     NULL) == CALLA_OK);
    uint64_t draws = 0;
    for (size_t at = 0, piece; at < n; at += piece) {
        piece = step ? step : (size_t)(philox_uniform(n, draws++, choice) * 20);
        if (piece > n - at) piece = n - at;
        require(calla_chat_parser_push(p, text + at, piece, NULL) == CALLA_OK);
    }
    require(calla_chat_parser_finish(p, NULL) == CALLA_OK);
    calla_chat_parser_free(p);
    strbuf_free(&t.arguments);
    return t;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n == 0) return 0;
    const char *text = (const char *)data + 1;
    trace whole = run(data[0], text, n - 1, n);
    for (size_t step = 0; step < 2; step++) {
        trace cut = run(data[0], text, n - 1, step);
        require(cut.text.n == whole.text.n);
        if (cut.text.n > 0) require(memcmp(cut.text.data, whole.text.data, cut.text.n) == 0);
        strbuf_free(&cut.text);
    }
    strbuf_free(&whole.text);
    return 0;
}
