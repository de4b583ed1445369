#include "hybrid/tasks/task_store_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { VERSION = 1 }; /* of the schema: the file's user_version */

/* Rows of what a task consists of go with it (ON DELETE CASCADE). */
static const char schema[] =
    "BEGIN IMMEDIATE;"
    "CREATE TABLE tasks ("
    " id TEXT PRIMARY KEY, owner TEXT NOT NULL, client_key TEXT, position INTEGER NOT NULL,"
    " priority INTEGER NOT NULL, paused INTEGER NOT NULL, state TEXT NOT NULL,"
    " created_ms INTEGER NOT NULL, updated_ms INTEGER NOT NULL, policy TEXT, budget TEXT,"
    " round INTEGER NOT NULL, error_code TEXT, error_message TEXT, UNIQUE (owner, client_key)"
    ") STRICT;"
    "CREATE INDEX tasks_by_turn ON tasks (state, paused, priority, position);"
    "CREATE TABLE inputs ("
    " task TEXT NOT NULL REFERENCES tasks ON DELETE CASCADE, number INTEGER NOT NULL,"
    " name TEXT NOT NULL, text TEXT NOT NULL, PRIMARY KEY (task, number)) STRICT;"
    "CREATE TABLE rounds ("
    " task TEXT NOT NULL REFERENCES tasks ON DELETE CASCADE, round INTEGER NOT NULL,"
    " instructions TEXT NOT NULL, result TEXT, sensitive INTEGER NOT NULL DEFAULT 0,"
    " PRIMARY KEY (task, round)) STRICT;"
    /* question: what somebody has to agree to; answer: NULL = not asked, or not answered, '' = no,
     * else the token that says yes. check_tokens: of the local model's looks at what would leave.
     */
    "CREATE TABLE steps ("
    " task TEXT NOT NULL REFERENCES tasks ON DELETE CASCADE, round INTEGER NOT NULL,"
    " step INTEGER NOT NULL, kind INTEGER NOT NULL, title TEXT NOT NULL,"
    " instructions TEXT NOT NULL, why TEXT NOT NULL, inputs TEXT NOT NULL,"
    " wants_cloud INTEGER NOT NULL, done INTEGER NOT NULL DEFAULT 0, result TEXT,"
    " sensitive INTEGER NOT NULL DEFAULT 0, question TEXT, answer TEXT,"
    " check_tokens INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (task, round, step)) STRICT;"
    /* outcome is '' while it runs; the numbers are what it may use at most while `estimated`. */
    "CREATE TABLE attempts ("
    " number INTEGER PRIMARY KEY AUTOINCREMENT,"
    " task TEXT NOT NULL REFERENCES tasks ON DELETE CASCADE, round INTEGER NOT NULL,"
    " step INTEGER NOT NULL, in_cloud INTEGER NOT NULL, reasons TEXT NOT NULL,"
    " started_ms INTEGER NOT NULL, ended_ms INTEGER, outcome TEXT NOT NULL DEFAULT '',"
    " message TEXT, input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL,"
    " cost REAL NOT NULL, currency TEXT, estimated INTEGER NOT NULL DEFAULT 1) STRICT;"
    "CREATE INDEX attempts_by_step ON attempts (task, round, step);"
    "CREATE TABLE events ("
    " number INTEGER PRIMARY KEY AUTOINCREMENT,"
    " task TEXT NOT NULL REFERENCES tasks ON DELETE CASCADE, time_ms INTEGER NOT NULL,"
    " kind TEXT NOT NULL, body TEXT NOT NULL) STRICT;"
    "CREATE INDEX events_by_task ON events (task, number);"
    "PRAGMA user_version = 1; COMMIT;";

/* EXCLUSIVE: two servers would run the same steps. secure_delete: who deletes a task wants its
 * texts gone. FULL: what was acknowledged survives the machine, too. */
static const char pragmas[] = "PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL;"
                              "PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;"
                              "PRAGMA secure_delete = ON;";

int64_t task_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

calla_status task_store_error(const task_store *s, calla_error *err)
{
    bool taken = s->db && sqlite3_errcode(s->db) == SQLITE_BUSY;
    return error_set(err, CALLA_ERR_IO, "the tasks %s: %s", s->path,
                     taken   ? "another process has them open"
                     : s->db ? sqlite3_errmsg(s->db)
                             : "no memory");
}

/* ---- statements ---- */

static void bind_values(sqlite3_stmt *q, const char *types, va_list args)
{
    for (int i = 1; *types; types++, i++) {
        const char *text;
        switch (*types) {
        case 'i':
            sqlite3_bind_int64(q, i, va_arg(args, int64_t));
            break;
        case 'd':
            sqlite3_bind_double(q, i, va_arg(args, double));
            break;
        case 's':
            sqlite3_bind_text(q, i, va_arg(args, const char *), -1, SQLITE_STATIC);
            break;
        default: /* t */
            text = va_arg(args, const char *);
            sqlite3_bind_text64(q, i, text, va_arg(args, size_t), SQLITE_STATIC, SQLITE_UTF8);
        }
    }
}

static calla_status query_with(task_store *s, sqlite3_stmt **q, calla_error *err, const char *sql,
                               const char *types, va_list args)
{
    if (sqlite3_prepare_v2(s->db, sql, -1, q, NULL) != SQLITE_OK) return task_store_error(s, err);
    bind_values(*q, types, args);
    return CALLA_OK;
}

calla_status task_query(task_store *s, sqlite3_stmt **q, calla_error *err, const char *sql,
                        const char *types, ...)
{
    va_list args;
    va_start(args, types);
    calla_status status = query_with(s, q, err, sql, types, args);
    va_end(args);
    return status;
}

bool task_row(task_store *s, sqlite3_stmt *q, calla_status *status, calla_error *err)
{
    int result = sqlite3_step(q);
    if (result != SQLITE_ROW && result != SQLITE_DONE) *status = task_store_error(s, err);
    return result == SQLITE_ROW;
}

calla_status task_exec(task_store *s, int64_t *n, calla_error *err, const char *sql,
                       const char *types, ...)
{
    sqlite3_stmt *q;
    va_list args;
    va_start(args, types);
    calla_status status = query_with(s, &q, err, sql, types, args);
    va_end(args);
    if (status != CALLA_OK) return status;
    task_row(s, q, &status, err);
    sqlite3_finalize(q);
    if (n) *n = sqlite3_changes64(s->db);
    return status;
}

calla_status task_number(task_store *s, int64_t *n, int64_t otherwise, calla_error *err,
                         const char *sql, const char *types, ...)
{
    sqlite3_stmt *q;
    va_list args;
    va_start(args, types);
    calla_status status = query_with(s, &q, err, sql, types, args);
    va_end(args);
    if (status != CALLA_OK) return status;
    *n = task_row(s, q, &status, err) ? sqlite3_column_int64(q, 0) : otherwise;
    sqlite3_finalize(q);
    return status;
}

const char *task_column(sqlite3_stmt *q, int column)
{
    const char *text = (const char *)sqlite3_column_text(q, column);
    return text ? text : "";
}

/* ---- transactions ---- */

calla_status task_begin(task_store *s, calla_error *err)
{
    pthread_mutex_lock(&s->lock);
    if (sqlite3_exec(s->db, "BEGIN IMMEDIATE", NULL, NULL, NULL) == SQLITE_OK) return CALLA_OK;
    calla_status status = task_store_error(s, err);
    pthread_mutex_unlock(&s->lock);
    return status;
}

calla_status task_commit(task_store *s, calla_status status, bool changes, calla_error *err)
{
    if (status == CALLA_OK && sqlite3_exec(s->db, "COMMIT", NULL, NULL, NULL) != SQLITE_OK)
        status = task_store_error(s, err);
    if (status != CALLA_OK) sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
    pthread_mutex_unlock(&s->lock);
    if (status == CALLA_OK && changes && s->changed) s->changed(s->user);
    return status;
}

calla_status task_event(task_store *s, const char *id, const char *kind, json_t *body,
                        calla_error *err)
{
    char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    if (!text) return error_set(err, CALLA_ERR_MEMORY, "no memory for an event");
    calla_status status =
        task_exec(s, NULL, err, "INSERT INTO events (task, time_ms, kind, body) VALUES (?,?,?,?)",
                  "siss", id, task_now_ms(), kind, text);
    free(text);
    return status;
}

/* What was deleted stands in the log, too, until that is written back and cut to nothing. */
static bool empty_log(task_store *s)
{
    return sqlite3_wal_checkpoint_v2(s->db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL) ==
           SQLITE_OK;
}

/* ---- opening ---- */

/* Attempts without an end are of a process that was killed. */
static calla_status mark_interrupted(task_store *s, calla_error *err)
{
    calla_status status;
    CALLA_TRY(task_begin(s, err));
    CALLA_TRY_GOTO(
        task_exec(s, NULL, err,
                  "INSERT INTO events (task, time_ms, kind, body) SELECT task, ?, "
                  "'attempt.interrupted', json_object('round', round, 'step', step, 'attempt', "
                  "number) FROM attempts WHERE outcome = ''",
                  "i", task_now_ms()),
        end);
    status = task_exec(s, NULL, err,
                       "UPDATE attempts SET outcome = 'interrupted', ended_ms = ? "
                       "WHERE outcome = ''",
                       "i", task_now_ms());
end:
    return task_commit(s, status, false, err);
}

/* SQLite would make the file readable for all. */
static calla_status make_private(const char *path, calla_error *err)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return error_set_errno(err, CALLA_ERR_IO, errno, "the tasks %s", path);
    close(fd);
    return CALLA_OK;
}

/* Makes the tables of a new file; another version's are not understood. */
static calla_status open_tables(task_store *s, calla_error *err)
{
    int64_t n_tables, version;
    CALLA_TRY(task_number(s, &n_tables, 0, err, "SELECT count(*) FROM sqlite_master", ""));
    if (n_tables == 0)
        return sqlite3_exec(s->db, schema, NULL, NULL, NULL) == SQLITE_OK
                   ? CALLA_OK
                   : task_store_error(s, err);
    CALLA_TRY(task_number(s, &version, 0, err, "PRAGMA user_version", ""));
    if (version == VERSION) return CALLA_OK;
    return error_set(err, CALLA_ERR_IO, "the tasks %s: version %lld where %d was expected", s->path,
                     (long long)version, VERSION);
}

calla_status task_store_open(const char *path, task_store **out, calla_error *err)
{
    calla_status status;
    task_store *s = calloc(1, sizeof *s);
    if (!s) return error_set(err, CALLA_ERR_MEMORY, "no memory for the tasks");
    pthread_mutex_init(&s->lock, NULL);
    s->path = strdup(path);
    if (!s->path) {
        status = error_set(err, CALLA_ERR_MEMORY, "no memory for the tasks");
        goto failed;
    }
    CALLA_TRY_GOTO(make_private(path, err), failed);
    if (sqlite3_open_v2(path, &s->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_FULLMUTEX, NULL) !=
            SQLITE_OK ||
        sqlite3_exec(s->db, pragmas, NULL, NULL, NULL) != SQLITE_OK) {
        status = task_store_error(s, err);
        goto failed;
    }
    CALLA_TRY_GOTO(open_tables(s, err), failed);
    CALLA_TRY_GOTO(mark_interrupted(s, err), failed);
    empty_log(s); /* of a process that was killed; a full disk is no reason not to start */
    *out = s;
    return CALLA_OK;
failed:
    task_store_close(s);
    return status;
}

void task_store_close(task_store *s)
{
    if (!s) return;
    sqlite3_close(s->db);
    pthread_mutex_destroy(&s->lock);
    free(s->path);
    free(s);
}

void task_store_on_change(task_store *s, void (*changed)(void *user), void *user)
{
    s->changed = changed;
    s->user = user;
}

/* ---- filing ---- */

static calla_status add_round(task_store *s, const char *id, int64_t round,
                              const char *instructions, calla_error *err)
{
    CALLA_TRY(task_exec(s, NULL, err,
                        "INSERT INTO rounds (task, round, instructions) VALUES (?,?,?)", "sis", id,
                        round, instructions));
    return task_exec(
        s, NULL, err,
        "INSERT INTO steps (task, round, step, kind, title, instructions, why, inputs, "
        "wants_cloud) VALUES (?,?,0,?,'plan','','','[]',0)",
        "sii", id, round, (int64_t)TASK_STEP_PLAN);
}

static calla_status insert_task(task_store *s, const task_request *r, const char *owner,
                                const char *key, const char *id, calla_error *err)
{
    calla_status status;
    int64_t now = task_now_ms();
    char *rules = r->policy ? json_dumps(r->policy, JSON_COMPACT) : NULL;
    char *budget = r->budget ? json_dumps(r->budget, JSON_COMPACT) : NULL;
    if ((r->policy && !rules) || (r->budget && !budget)) {
        status = error_set(err, CALLA_ERR_MEMORY, "no memory for a task");
        goto end;
    }
    CALLA_TRY_GOTO(
        task_exec(s, NULL, err,
                  "INSERT INTO tasks (id, owner, client_key, position, priority, paused, state, "
                  "created_ms, updated_ms, policy, budget, round) SELECT ?,?,?, "
                  "coalesce(max(position), 0) + 1, ?,?,'queued',?,?,?,?,0 FROM tasks",
                  "sssiiiiss", id, owner, key, r->priority, (int64_t)r->paused, now, now, rules,
                  budget),
        end);
    for (size_t i = 0; i < r->n_inputs; i++)
        CALLA_TRY_GOTO(task_exec(s, NULL, err, "INSERT INTO inputs VALUES (?,?,?,?)", "sist", id,
                                 (int64_t)i + 1, r->inputs[i].name, r->inputs[i].text,
                                 r->inputs[i].n_bytes),
                       end);
    CALLA_TRY_GOTO(add_round(s, id, 0, r->instructions, err), end);
    status = task_event(s, id, "task.created", json_pack("{s:s}", "state", "queued"), err);
end:
    free(rules);
    free(budget);
    return status;
}

static calla_status create(task_store *s, const task_request *r, const char *owner, const char *key,
                           char id[TASK_ID_BYTES], bool *is_new, calla_error *err)
{
    sqlite3_stmt *q;
    calla_status status = CALLA_OK;
    int64_t n;
    *is_new = false;
    CALLA_TRY(task_query(s, &q, err, "SELECT id FROM tasks WHERE owner = ? AND client_key = ?",
                         "ss", owner, key));
    bool known = task_row(s, q, &status, err);
    if (known) snprintf(id, TASK_ID_BYTES, "%s", task_column(q, 0));
    sqlite3_finalize(q);
    if (known || status != CALLA_OK) return status;
    CALLA_TRY(task_number(s, &n, 0, err, "SELECT count(*) FROM tasks", ""));
    if (n >= TASK_MAX_TASKS)
        return error_set(err, CALLA_ERR_UNSUPPORTED, "there are %d tasks; delete some first",
                         TASK_MAX_TASKS);
    *is_new = true;
    return insert_task(s, r, owner, key, id, err);
}

calla_status task_store_create(task_store *s, const task_request *r, const char *owner,
                               const char *key, char id[TASK_ID_BYTES], calla_error *err)
{
    bool is_new;
    CALLA_TRY(task_begin(s, err));
    calla_status status = create(s, r, owner, key, id, &is_new, err);
    return task_commit(s, status, is_new, err);
}

/* ---- commands ---- */

typedef enum task_stage { STAGE_NONE, STAGE_WAITS, STAGE_ENDED, STAGE_DONE } task_stage;

static calla_status find(task_store *s, task_owner owner, const char *id, task_stage *stage,
                         int64_t *round, calla_error *err)
{
    sqlite3_stmt *q;
    calla_status status = CALLA_OK;
    *stage = STAGE_NONE;
    CALLA_TRY(task_query(s, &q, err,
                         "SELECT state, round FROM tasks WHERE id = ? AND (? IS NULL OR owner = ?)",
                         "sss", id, owner.hex, owner.hex));
    if (task_row(s, q, &status, err)) {
        const char *state = task_column(q, 0);
        *round = sqlite3_column_int64(q, 1);
        bool ended = strcmp(state, "failed") == 0 || strcmp(state, "cancelled") == 0;
        *stage = strcmp(state, "done") == 0 ? STAGE_DONE : ended ? STAGE_ENDED : STAGE_WAITS;
    }
    sqlite3_finalize(q);
    return status;
}

/* What becomes of a command for a task of one stage. */
static task_result result_at(task_stage stage, task_stage wanted)
{
    return stage == STAGE_NONE ? TASK_UNKNOWN : stage == wanted ? TASK_OK : TASK_WRONG_STATE;
}

static calla_status set_paused(task_store *s, const char *id, int64_t paused, calla_error *err)
{
    int64_t n;
    CALLA_TRY(task_exec(s, &n, err,
                        "UPDATE tasks SET paused = ?, updated_ms = ? WHERE id = ? AND paused <> ?",
                        "iisi", paused, task_now_ms(), id, paused));
    if (n == 0) return CALLA_OK; /* it was so already */
    return task_event(s, id, paused ? "task.paused" : "task.resumed", json_object(), err);
}

static calla_status cancel(task_store *s, const char *id, calla_error *err)
{
    CALLA_TRY(task_exec(s, NULL, err,
                        "UPDATE tasks SET state = 'cancelled', updated_ms = ? WHERE id = ?", "is",
                        task_now_ms(), id));
    return task_event(s, id, "task.cancelled", json_pack("{s:s}", "state", "cancelled"), err);
}

static calla_status run_command(task_store *s, const char *id, task_stage stage,
                                task_command command, task_result *result, calla_error *err)
{
    *result = result_at(stage, command == TASK_DELETE ? stage : STAGE_WAITS);
    if (*result != TASK_OK) return CALLA_OK;
    if (command == TASK_DELETE)
        return task_exec(s, NULL, err, "DELETE FROM tasks WHERE id = ?", "s", id);
    if (command == TASK_CANCEL) return cancel(s, id, err);
    return set_paused(s, id, command == TASK_PAUSE, err);
}

/* The task is gone by now; the error says that its texts may still be on the disk. */
static calla_status forget_deleted(task_store *s, calla_error *err)
{
    pthread_mutex_lock(&s->lock);
    calla_status status = empty_log(s) ? CALLA_OK : task_store_error(s, err);
    pthread_mutex_unlock(&s->lock);
    return status;
}

calla_status task_store_command(task_store *s, task_owner owner, const char *id,
                                task_command command, task_result *result, calla_error *err)
{
    task_stage stage;
    int64_t round;
    CALLA_TRY(task_begin(s, err));
    calla_status status = find(s, owner, id, &stage, &round, err);
    if (status == CALLA_OK) status = run_command(s, id, stage, command, result, err);
    CALLA_TRY(task_commit(s, status, true, err));
    return command == TASK_DELETE && *result == TASK_OK ? forget_deleted(s, err) : CALLA_OK;
}

calla_status task_store_set_priority(task_store *s, task_owner owner, const char *id,
                                     int64_t priority, task_result *result, calla_error *err)
{
    task_stage stage;
    int64_t round;
    CALLA_TRY(task_begin(s, err));
    calla_status status = find(s, owner, id, &stage, &round, err);
    if (status == CALLA_OK) *result = result_at(stage, STAGE_WAITS);
    if (status == CALLA_OK && *result == TASK_OK)
        status =
            task_exec(s, NULL, err, "UPDATE tasks SET priority = ?, updated_ms = ? WHERE id = ?",
                      "iis", priority, task_now_ms(), id);
    return task_commit(s, status, true, err);
}

static calla_status follow_up(task_store *s, const char *id, int64_t round,
                              const char *instructions, calla_error *err)
{
    /* Behind those that wait. */
    CALLA_TRY(task_exec(s, NULL, err,
                        "UPDATE tasks SET state = 'queued', round = ?, updated_ms = ?, position = "
                        "(SELECT max(position) + 1 FROM tasks) WHERE id = ?",
                        "iis", round, task_now_ms(), id));
    CALLA_TRY(add_round(s, id, round, instructions, err));
    return task_event(s, id, "task.queued",
                      json_pack("{s:s, s:I}", "state", "queued", "round", (json_int_t)round), err);
}

calla_status task_store_follow_up(task_store *s, task_owner owner, const char *id,
                                  const char *instructions, task_result *result, calla_error *err)
{
    task_stage stage;
    int64_t round = 0;
    CALLA_TRY(task_begin(s, err));
    calla_status status = find(s, owner, id, &stage, &round, err);
    if (status == CALLA_OK) *result = result_at(stage, STAGE_DONE);
    if (status == CALLA_OK && *result == TASK_OK)
        status = follow_up(s, id, round + 1, instructions, err);
    return task_commit(s, status, true, err);
}
