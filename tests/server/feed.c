#include "server/feed.h"

#include <stdlib.h>
#include <string.h>

vocabulary feed_words;
int32_t feed_bytes[256];
static calla_tokenizer *tokenizer;
static calla_error err;

int feed_setup(void **state)
{
    (void)state;
    assert_ok(calla_tokenizer_open(CALLA_SOURCE_DIR "/models/tiny", &tokenizer, &err), &err);
    assert_ok(vocabulary_init(&feed_words, tokenizer, 4096, &err), &err);
    for (int32_t id = 0; id < feed_words.n_tokens; id++) {
        size_t n;
        const char *bytes = calla_tokenizer_bytes(tokenizer, id, &n);
        if (n == 1) feed_bytes[(unsigned char)*bytes] = id;
    }
    return 0;
}

int feed_teardown(void **state)
{
    (void)state;
    vocabulary_close(&feed_words);
    calla_tokenizer_close(tokenizer);
    return 0;
}

static const char thinking_prompt[] =
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n";

void feed_begin(feed *f, const job_request *request)
{
    f->job = job_create(&err);
    assert_non_null(f->job);
    f->job->request = *request;
    json_incref(request->tools);
    f->prompt = (job_prompt){0};
    if (request->chat)
        f->prompt.rendered.text = (calla_text){strdup(thinking_prompt), sizeof thinking_prompt - 1};
    assert_ok(answer_init(&f->answer, &feed_words, f->job, &f->prompt, 0, &err), &err);
}

void feed_end_answer(feed *f)
{
    answer_deinit(&f->answer);
    calla_prompt_free(&f->prompt.rendered);
}

void feed_end(feed *f)
{
    feed_end_answer(f);
    job_free(f->job);
}

void feed_token(feed *f, int32_t token)
{
    if (f->answer.stopped) return;
    calla_sampled sampled = {.token = token, .logprob = -0.5f};
    assert_ok(answer_push(&f->answer, &sampled, &err), &err);
}

void feed_text(feed *f, const char *text, size_t n)
{
    calla_tokens tokens;
    assert_ok(calla_tokenizer_encode(tokenizer, text, n, NULL, 0, &tokens, &err), &err);
    for (int64_t i = 0; i < tokens.n; i++) feed_token(f, tokens.ids[i]);
    calla_tokens_free(&tokens);
}

/* In pieces: tokens of a few bytes of text, or the bytes of a part one by one. */
void feed_randomly(feed *f, const char *text)
{
    size_t n_left = strlen(text);
    while (n_left > 0) {
        size_t n = 1 + (size_t)rand() % 12;
        if (n > n_left) n = n_left;
        while (n < n_left && ((unsigned char)text[n] & 0xc0) == 0x80) n++;
        if (rand() % 3 == 0)
            for (size_t i = 0; i < n; i++) feed_token(f, feed_bytes[(unsigned char)text[i]]);
        else
            feed_text(f, text, n);
        text += n;
        n_left -= n;
    }
}
