/* The inside of a task store, for its files. */
#ifndef CALLA_HYBRID_TASK_STORE_PRIVATE_H
#define CALLA_HYBRID_TASK_STORE_PRIVATE_H

#include "hybrid/tasks/task_store.h"

#include <pthread.h>
#include <sqlite3.h>

struct task_store {
    char *path;
    sqlite3 *db;
    pthread_mutex_t lock; /* over db, for a whole transaction */
    void (*changed)(void *user);
    void *user;
};

calla_status task_store_error(const task_store *s, calla_error *err);

/* A statement with its values, in the order of `types`: i int64_t, d double, s const char * (NULL
 * possible), t const char * and size_t. The texts stay the caller's until it is finalised. */
calla_status task_query(task_store *s, sqlite3_stmt **q, calla_error *err, const char *sql,
                        const char *types, ...);
/* The next row; false at the end or on an error, which goes to *status. */
bool task_row(task_store *s, sqlite3_stmt *q, calla_status *status, calla_error *err);
/* A statement without rows; *n (may be NULL) is how many rows it changed. */
calla_status task_exec(task_store *s, int64_t *n, calla_error *err, const char *sql,
                       const char *types, ...);
/* One number; `otherwise` if there is no row. */
calla_status task_number(task_store *s, int64_t *n, int64_t otherwise, calla_error *err,
                         const char *sql, const char *types, ...);
/* The column's text, "" for none. */
const char *task_column(sqlite3_stmt *q, int column);

/* A transaction: takes the lock; task_commit ends both, undoing everything unless status is
 * CALLA_OK, and gives what became of it. `changes`: others are told. */
calla_status task_begin(task_store *s, calla_error *err);
calla_status task_commit(task_store *s, calla_status status, bool changes, calla_error *err);

/* Appends an event of the task; `body` is taken, NULL = no memory for it. */
calla_status task_event(task_store *s, const char *id, const char *kind, json_t *body,
                        calla_error *err);
/* Adds "consent" to a task: what it waits for somebody to agree to, or null. */
calla_status task_add_question(task_store *s, const char *id, json_t *task, calla_error *err);
int64_t task_now_ms(void);

#endif
