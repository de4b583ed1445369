/* JSON and the chat template: any bytes render or give an error, in both modes; literal ranges are
 * in order; and without strict mode's extras the two agree. The first byte has the flags, a byte
 * 0x1e parts messages from tools. */
#include "base/json.h"
#include "model/utf8.h"

#include <calla/model.h>

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void require(bool condition)
{
    if (!condition) abort();
}

static void check(const calla_prompt *p)
{
    size_t at = 0;
    for (size_t i = 0; i < p->n_literal; i++) {
        require(p->literal[i].begin < p->literal[i].end);
        require(i == 0 || p->literal[i].begin > at);
        at = p->literal[i].end;
    }
    require(at <= p->text.n_bytes);
    require(utf8_valid_bytes(p->text.data, p->text.n_bytes) == p->text.n_bytes);
}

/* What json_write_value writes reads back as the same. */
static void check_json(const char *text, size_t n)
{
    json_t *value = NULL, *again = NULL;
    if (json_parse_text(text, n, "text", &value, NULL) != CALLA_OK) return;
    strbuf out = {0};
    json_write_value(&out, value);
    require(json_parse_text(out.data, out.n, "text", &again, NULL) == CALLA_OK);
    require(json_equal(value, again));
    json_decref(value);
    json_decref(again);
    strbuf_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n == 0) return 0;
    calla_chat_options options = {.no_thinking = data[0] & 1,
                                  .preserve_thinking = data[0] & 2,
                                  .no_generation_prompt = data[0] & 4};
    const char *messages = (const char *)data + 1;
    const char *mark = memchr(messages, 0x1e, n - 1);
    size_t n_messages = mark ? (size_t)(mark - messages) : n - 1;
    size_t n_tools = mark ? n - 2 - n_messages : 0;
    check_json(messages, n_messages);

    calla_prompt strict = {0}, normal = {0};
    calla_error err;
    bool ok = calla_chat_render(messages, n_messages, mark ? mark + 1 : NULL, n_tools, &options,
                                &normal, &err) == CALLA_OK;
    options.strict = true;
    bool strict_ok = calla_chat_render(messages, n_messages, mark ? mark + 1 : NULL, n_tools,
                                       &options, &strict, &err) == CALLA_OK;
    if (ok) check(&normal);
    if (strict_ok) check(&strict);
    /* Other names of reasoning are the only thing that both accept and render differently. */
    if (ok && strict_ok && !memmem(messages, n_messages, "reasoning", 9) &&
        !memmem(messages, n_messages, "thinking", 8) && !memchr(messages, '\\', n_messages)) {
        require(normal.text.n_bytes == strict.text.n_bytes);
        require(memcmp(normal.text.data, strict.text.data, strict.text.n_bytes) == 0);
    }
    calla_prompt_free(&normal);
    calla_prompt_free(&strict);
    return 0;
}
