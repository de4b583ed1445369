/* The local model's part in tasks: jobs like any other. */
#ifndef CALLA_SERVER_TASK_MODEL_H
#define CALLA_SERVER_TASK_MODEL_H

#include "hybrid/tasks/task_runner.h"

/* A task_ask_fn; `user` is the server. Waits while too many other requests do. */
calla_status task_model_ask(void *user, json_t *request, const atomic_bool *cancelled,
                            task_answer *answer, calla_error *err);

#endif
