/* Work for when there is nothing else to do: answers are prefilled, so that their continuations
 * start from the same bits as a cold run (--strict-cache). Engine thread only. */
#ifndef CALLA_SERVER_IDLE_H
#define CALLA_SERVER_IDLE_H

#include "base/error.h"

typedef struct idle_work idle_work;

calla_status idle_work_create(idle_work **w, calla_error *err);
void idle_work_free(idle_work *w);
/* The session's timeline is to be prefilled some time. Of many, the latest are kept. */
void idle_work_add(idle_work *w, const calla_session *session);
/* Timelines that wait, one that was begun included. */
int32_t idle_work_count(const idle_work *w);
/* Does n_most tokens of it in a session that is free; true when that finished an answer. */
bool idle_work_run(idle_work *w, calla_session *session, int64_t n_most);
/* The session is needed: the rest waits, what was done is kept. */
void idle_work_leave(idle_work *w);

#endif
