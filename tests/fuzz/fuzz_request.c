/* The body of a request from arbitrary bytes, read as a chat request or as a Responses request (the
 * first byte says which): refused with a field's name, or messages that render. What was wrong with
 * an item of a Responses request has been said in its own words by then. */
#include "model/chat.h"
#include "server/wire.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void require(bool condition)
{
    if (!condition) abort();
}

static void render(const job_request *r, bool is_responses)
{
    static const char whole[] = "messages: ";
    calla_prompt prompt;
    calla_error err;
    calla_chat_options options = {.no_thinking = r->no_thinking,
                                  .preserve_thinking = r->preserve_thinking};
    require(json_is_array(r->messages));
    if (chat_render(r->messages, r->tools, &options, &prompt, &err) == CALLA_OK)
        calla_prompt_free(&prompt);
    else
        require(!is_responses || strncmp(err.message, whole, sizeof whole - 1) == 0);
}

/* That of models/tiny, opened once. */
static const vocabulary *words(void)
{
    static vocabulary v;
    static calla_tokenizer *tokenizer;
    calla_error err;
    if (tokenizer) return &v;
    require(calla_tokenizer_open(CALLA_SOURCE_DIR "/models/tiny", &tokenizer, &err) == CALLA_OK);
    require(vocabulary_init(&v, tokenizer, calla_tokenizer_n_tokens(tokenizer), &err) == CALLA_OK);
    return &v;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const models[] = {"m"};
    const wire_defaults d = {.vocabulary = words(), .n_ctx = 1000, .models = models, .n_models = 1};
    job_request r = {0};
    api_error e = {0};
    json_t *body;
    int64_t n_values;
    if (n < 1) return 0;
    bool is_responses = data[0] != 'c';
    const char *text = (const char *)data + 1;
    if (json_text_depth(text, n - 1, 100, &n_values) > 100 ||
        json_parse_unique(text, n - 1, "request", &body, NULL) != CALLA_OK)
        return 0;
    bool ok =
        is_responses ? wire_read_responses(body, &d, &r, &e) : wire_read_chat(body, &d, &r, &e);
    if (ok)
        render(&r, is_responses);
    else
        require((e.status == 400 || e.status == 404) && *e.message);
    job_request_deinit(&r);
    json_decref(body);
    return 0;
}
