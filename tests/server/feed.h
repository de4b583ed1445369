/* What a model would generate, fed to an answer without one: texts in tokens of any kind. The words
 * are those of models/tiny. */
#ifndef CALLA_TESTS_SERVER_FEED_H
#define CALLA_TESTS_SERVER_FEED_H

#include "server/answer.h"
#include "support/support.h"

extern vocabulary feed_words;
extern int32_t feed_bytes[256]; /* the token of each byte */

/* For groups of tests: open the words, and close them. */
int feed_setup(void **state);
int feed_teardown(void **state);

typedef struct feed {
    job *job;
    job_prompt prompt;
    answer answer;
} feed;

/* An answer to a request (copied; its tools are shared): in a chat it begins in its reasoning. */
void feed_begin(feed *f, const job_request *request);
/* Ends it, and frees the job with it. */
void feed_end(feed *f);
/* The answer alone: its job goes on. */
void feed_end_answer(feed *f);

/* One token; text in the tokenizer's tokens; in random ones, some of them a byte. Nothing once the
 * answer has stopped. */
void feed_token(feed *f, int32_t token);
void feed_text(feed *f, const char *text, size_t n);
void feed_randomly(feed *f, const char *text);

#endif
