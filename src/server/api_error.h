/* An error as OpenAI's API reports it. */
#ifndef CALLA_SERVER_API_ERROR_H
#define CALLA_SERVER_API_ERROR_H

#include "base/strbuf.h"

typedef struct api_error {
    int status;        /* of HTTP; 0 = no error */
    const char *type;  /* static storage: "invalid_request_error" ... */
    const char *code;  /* static storage, or NULL */
    char param[128];   /* the field, "" = none */
    char message[512]; /* one line */
    int retry_after_s; /* for 429 and 503; 0 = not said */
} api_error;

/* Sets *e and gives false, so that `return api_fail(...)` reports and leaves. The type follows from
 * the status. param NULL = none; control characters in the message become "?". */
bool api_fail(api_error *e, int status, const char *param, const char *code, const char *format,
              ...) __attribute__((format(printf, 5, 6)));
/* A value of a field that is not acceptable: 400, code "invalid_value". */
#define api_invalid(e, param, ...) api_fail(e, 400, param, "invalid_value", __VA_ARGS__)
/* What a part of the engine or of the model reported. A message that begins with the place in the
 * request ("messages[1].content: ...") gives the param. */
bool api_fail_status(api_error *e, const calla_error *err);

/* Appends {"error": {...}}. */
void api_error_write(strbuf *out, const api_error *e);

#endif
