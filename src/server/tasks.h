/* /v1/tasks: what becomes of a task is hybrid/tasks/task_store.h's and task_runner.h's matter; here
 * are the requests and their answers. */
#ifndef CALLA_SERVER_TASKS_H
#define CALLA_SERVER_TASKS_H

#include "server/http.h"

/* POST /v1/tasks: a new one. /v1/tasks/ID: {"priority"}. /v1/tasks/ID/messages, /consent, /pause,
 * /resume, /cancel. */
bool tasks_post(http_request *r, api_error *e);
/* GET /v1/tasks, /v1/tasks/ID, /v1/tasks/ID/events. */
bool tasks_get(http_request *r, api_error *e);
/* DELETE /v1/tasks/ID. */
bool tasks_delete(http_request *r, api_error *e);

/* Of a server with tasks, for /metrics. */
void tasks_write_metrics(const server *s, strbuf *out);

/* Frees r->events. */
void task_stream_free(http_request *r);

#endif
