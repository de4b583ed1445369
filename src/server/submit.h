/* From a request's JSON to a job that runs. */
#ifndef CALLA_SERVER_SUBMIT_H
#define CALLA_SERVER_SUBMIT_H

#include "server/context.h"
#include "server/reply.h"

/* One of wire.h's readers. */
typedef bool submit_read_fn(json_t *body, const wire_defaults *d, job_request *r, api_error *e);

/* Reads and prepares the request and hands its job to the scheduler; `note` (JSON, borrowed by the
 * job; or NULL) is what its answer has under "calla". NULL with *e set, or a reply to be run. */
reply *submit_request(server *s, json_t *body, const char *note, const reply_format *format,
                      submit_read_fn *read, api_error *e);

#endif
