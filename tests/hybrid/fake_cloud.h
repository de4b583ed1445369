/* A cloud for tests: records every byte it is sent and answers as it is told, also badly. */
#ifndef CALLA_TESTS_HYBRID_FAKE_CLOUD_H
#define CALLA_TESTS_HYBRID_FAKE_CLOUD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a policy says of it so that no test depends on how fast the machine is. */
#define FAKE_CLOUD_POLICY                                                                          \
    "\"cloud\": {\"retries\": 0, \"connect_timeout_ms\": 60000, \"first_byte_timeout_ms\": 60000}"

typedef struct fake_cloud fake_cloud;

typedef struct fake_answer {
    int status;                        /* [200] */
    const char *type;                  /* ["application/json"] */
    const char *header, *header_value; /* one more, or NULL */
    const char *body;                  /* borrowed; [a small completion] */
    size_t n_repeats;                  /* the body so many times [1] */
    bool held;                         /* until fake_cloud_release, before the status */
    size_t hold_after;                 /* the same after so many bytes of the body, 0 = not */
    size_t cut_after;                  /* the connection breaks after so many bytes, 0 = never */
} fake_answer;

/* Gives the body of an answer to a request's body, malloc'ed; *type may be set to another type. */
typedef char *fake_cloud_fn(void *user, const char *body, const char **type);

/* On any port of 127.0.0.1; with a certificate and its key (PEM), over TLS. */
fake_cloud *fake_cloud_start(void);
fake_cloud *fake_cloud_start_tls(const char *certificate, const char *key);
void fake_cloud_stop(fake_cloud *f);
/* "http://127.0.0.1:PORT/v1". */
const char *fake_cloud_url(const fake_cloud *f);

/* Answers in turn, copied; the last one stays. */
void fake_cloud_script(fake_cloud *f, const fake_answer *answers, int n);
/* Lets the answers go that are held, and those to come. */
void fake_cloud_release(fake_cloud *f);
/* Answers with 200 and what the function says. */
void fake_cloud_reply(fake_cloud *f, fake_cloud_fn *fn, void *user);

int fake_cloud_n_requests(fake_cloud *f);
int fake_cloud_n_connections(fake_cloud *f);
/* All that came so far: lines of requests, heads and bodies. NUL-terminated, malloc'ed. */
char *fake_cloud_received(fake_cloud *f);
/* The last request's body, malloc'ed; "" if there was none. */
char *fake_cloud_last_body(fake_cloud *f);
void fake_cloud_forget(fake_cloud *f);

#endif
