/* From a request that was read to a job the engine can run: prompts rendered, encoded, and checked
 * against the context. */
#ifndef CALLA_SERVER_PREPARE_H
#define CALLA_SERVER_PREPARE_H

#include "server/replay.h"
#include "server/wire.h"

/* Makes j->prompts and j->context of j->request. */
bool prepare_chat(job *j, const wire_defaults *d, replay *r, api_error *e);
bool prepare_completion(job *j, const wire_defaults *d, api_error *e);

/* The prompt of a chat request alone: rendered and encoded. */
bool prepare_chat_prompt(const job_request *request, const wire_defaults *d, replay *r,
                         job_prompt *prompt, api_error *e);

#endif
