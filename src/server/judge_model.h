/* The local model's judgement of a text that may leave (hybrid/judge.h): a job like any other,
 * whose answer a schema holds to its form. */
#ifndef CALLA_SERVER_JUDGE_MODEL_H
#define CALLA_SERVER_JUDGE_MODEL_H

#include "hybrid/judge.h"

/* A judge_ask_fn; `user` is the http_request on whose behalf it is: if its client goes, so does the
 * job. */
char *judge_model_ask(void *user, const char *text, size_t n_bytes, int64_t deadline_ns);

#endif
