/* Tasks as the API shows them. */
#include "hybrid/tasks/task_store_private.h"

#include <string.h>

#define ENDED "('done', 'failed', 'cancelled')"
enum { EVENTS_AT_ONCE = 100 };

static calla_status no_memory(calla_error *err)
{
    return error_set(err, CALLA_ERR_MEMORY, "no memory for a task's account");
}

/* ---- parts ---- */

static json_t *text_or_null(sqlite3_stmt *q, int column)
{
    const char *text = (const char *)sqlite3_column_text(q, column);
    return text ? json_string(text) : json_null();
}

/* A column with JSON of ours; null where there is none. */
static json_t *value_of(sqlite3_stmt *q, int column)
{
    json_t *value = NULL;
    const char *text = (const char *)sqlite3_column_text(q, column);
    if (!text || json_parse_text(text, strlen(text), "", &value, NULL) != CALLA_OK)
        return json_null();
    return value;
}

static json_t *time_or_null(sqlite3_stmt *q, int column)
{
    if (sqlite3_column_type(q, column) == SQLITE_NULL) return json_null();
    return json_real((double)sqlite3_column_int64(q, column) / 1e3);
}

static json_t *usage_of(sqlite3_stmt *q, int column)
{
    return json_pack("{s:I, s:I}", "input_tokens", (json_int_t)sqlite3_column_int64(q, column),
                     "output_tokens", (json_int_t)sqlite3_column_int64(q, column + 1));
}

/* "local" and "cloud" by what their attempts used, "cost" and "currency". */
static calla_status add_usage(task_store *s, const char *id, json_t *task, calla_error *err)
{
    sqlite3_stmt *q;
    calla_status status = CALLA_OK;
    json_t *usage = json_object();
    CALLA_TRY(task_query(s, &q, err,
                         "SELECT coalesce(sum(input_tokens) FILTER (WHERE NOT in_cloud), 0), "
                         "coalesce(sum(output_tokens) FILTER (WHERE NOT in_cloud), 0), "
                         "coalesce(sum(input_tokens) FILTER (WHERE in_cloud), 0), "
                         "coalesce(sum(output_tokens) FILTER (WHERE in_cloud), 0), "
                         "coalesce(sum(cost), 0), max(currency), "
                         "coalesce(sum(estimated), 0), (SELECT sum(check_tokens) FROM steps "
                         "WHERE task = ?1) FROM attempts WHERE task = ?1",
                         "s", id));
    if (task_row(s, q, &status, err)) {
        json_object_set_new(usage, "local", usage_of(q, 0));
        json_object_set_new(usage, "cloud", usage_of(q, 2));
        json_object_set_new(usage, "check_tokens", json_integer(sqlite3_column_int64(q, 7)));
        json_object_set_new(usage, "cost", json_real(sqlite3_column_double(q, 4)));
        json_object_set_new(usage, "currency", text_or_null(q, 5));
        /* Of some attempts only the most that they may have used is known. */
        json_object_set_new(usage, "estimated", json_boolean(sqlite3_column_int64(q, 6) > 0));
    }
    sqlite3_finalize(q);
    json_object_set_new(task, "usage", usage);
    return status;
}

static calla_status add_inputs(task_store *s, const char *id, json_t *task, calla_error *err)
{
    sqlite3_stmt *q;
    calla_status status = CALLA_OK;
    json_t *list = json_array();
    CALLA_TRY(task_query(s, &q, err,
                         "SELECT number, name, length(CAST(text AS BLOB)) FROM inputs WHERE task = "
                         "? ORDER BY number",
                         "s", id));
    while (task_row(s, q, &status, err)) {
        char label[40];
        snprintf(label, sizeof label, "input_%lld", (long long)sqlite3_column_int64(q, 0));
        json_array_append_new(list, json_pack("{s:s, s:s, s:I}", "label", label, "name",
                                              task_column(q, 1), "bytes",
                                              (json_int_t)sqlite3_column_int64(q, 2)));
    }
    sqlite3_finalize(q);
    json_object_set_new(task, "inputs", list);
    return status;
}

static calla_status add_attempts(task_store *s, const char *id, int64_t round, int64_t step,
                                 json_t *into, calla_error *err)
{
    sqlite3_stmt *q;
    calla_status status = CALLA_OK;
    json_t *list = json_array();
    CALLA_TRY(
        task_query(s, &q, err,
                   "SELECT number, in_cloud, reasons, started_ms, ended_ms, outcome, message, "
                   "input_tokens, output_tokens, cost, currency FROM attempts WHERE task = ? "
                   "AND round = ? AND step = ? ORDER BY number",
                   "sii", id, round, step));
    while (task_row(s, q, &status, err)) {
        const char *outcome = task_column(q, 5);
        json_array_append_new(
            list, json_pack("{s:I, s:s, s:o, s:o, s:o, s:s, s:o, s:o, s:f, s:o}", "attempt",
                            (json_int_t)sqlite3_column_int64(q, 0), "where",
                            sqlite3_column_int64(q, 1) ? "cloud" : "local", "reasons",
                            value_of(q, 2), "started_at", time_or_null(q, 3), "ended_at",
                            time_or_null(q, 4), "outcome", *outcome ? outcome : "running",
                            "message", text_or_null(q, 6), "usage", usage_of(q, 7), "cost",
                            sqlite3_column_double(q, 9), "currency", text_or_null(q, 10)));
    }
    sqlite3_finalize(q);
    json_object_set_new(into, "attempts", list);
    return status;
}

static calla_status add_steps(task_store *s, const char *id, int64_t round, json_t *into,
                              calla_error *err)
{
    static const char *const kinds[] = {"plan", "work", "merge"};
    sqlite3_stmt *q;
    calla_status status = CALLA_OK;
    json_t *list = json_array();
    CALLA_TRY(task_query(s, &q, err,
                         "SELECT step, kind, title, instructions, why, inputs, wants_cloud, done, "
                         "CASE kind WHEN 0 THEN NULL ELSE result END, sensitive FROM steps WHERE "
                         "task = ? AND round = ? ORDER BY step",
                         "si", id, round));
    while (status == CALLA_OK && task_row(s, q, &status, err)) {
        json_t *step = json_pack(
            "{s:I, s:s, s:s, s:s, s:s, s:o, s:s, s:b, s:o, s:b}", "step",
            (json_int_t)sqlite3_column_int64(q, 0), "kind", kinds[sqlite3_column_int64(q, 1)],
            "title", task_column(q, 2), "instructions", task_column(q, 3), "why", task_column(q, 4),
            "inputs", value_of(q, 5), "planned", sqlite3_column_int64(q, 6) ? "cloud" : "local",
            "done", (int)sqlite3_column_int64(q, 7), "result", text_or_null(q, 8), "sensitive",
            (int)sqlite3_column_int64(q, 9));
        status = step ? add_attempts(s, id, round, sqlite3_column_int64(q, 0), step, err)
                      : no_memory(err);
        json_array_append_new(list, step);
    }
    sqlite3_finalize(q);
    json_object_set_new(into, "steps", list);
    return status;
}

static calla_status add_rounds(task_store *s, const char *id, json_t *task, calla_error *err)
{
    sqlite3_stmt *q;
    calla_status status = CALLA_OK;
    json_t *list = json_array();
    CALLA_TRY(task_query(
        s, &q, err, "SELECT round, instructions, result FROM rounds WHERE task = ? ORDER BY round",
        "s", id));
    while (status == CALLA_OK && task_row(s, q, &status, err)) {
        json_t *round = json_pack("{s:s, s:o}", "instructions", task_column(q, 1), "result",
                                  text_or_null(q, 2));
        status = round ? add_steps(s, id, sqlite3_column_int64(q, 0), round, err) : no_memory(err);
        json_object_set(task, "result", json_object_get(round, "result"));
        json_array_append_new(list, round);
    }
    sqlite3_finalize(q);
    json_object_set_new(task, "rounds", list);
    return status;
}

/* ---- tasks ---- */

#define TASK_COLUMNS                                                                               \
    "SELECT t.id, t.state, t.paused, t.priority, t.created_ms, t.updated_ms, t.policy, t.budget, " \
    "t.error_code, t.error_message, r.instructions FROM tasks t JOIN rounds r ON r.task = t.id "   \
    "AND r.round = 0 "

static json_t *head_of(sqlite3_stmt *q)
{
    json_t *error = json_null();
    if (sqlite3_column_type(q, 8) != SQLITE_NULL)
        error = json_pack("{s:s, s:s}", "code", task_column(q, 8), "message", task_column(q, 9));
    return json_pack("{s:s, s:s, s:s, s:b, s:I, s:o, s:o, s:s, s:o, s:o, s:o}", "id",
                     task_column(q, 0), "object", "task", "state", task_column(q, 1), "paused",
                     (int)sqlite3_column_int64(q, 2), "priority",
                     (json_int_t)sqlite3_column_int64(q, 3), "created_at", time_or_null(q, 4),
                     "updated_at", time_or_null(q, 5), "instructions", task_column(q, 10), "policy",
                     value_of(q, 6), "budget", value_of(q, 7), "error", error);
}

static calla_status add_last_event(task_store *s, const char *id, json_t *task, calla_error *err)
{
    int64_t n = 0;
    CALLA_TRY(task_number(s, &n, 0, err, "SELECT max(number) FROM events WHERE task = ?", "s", id));
    json_object_set_new(task, "last_event", json_integer(n));
    return CALLA_OK;
}

static calla_status read_task(task_store *s, task_owner owner, const char *id, json_t **task,
                              calla_error *err)
{
    sqlite3_stmt *q;
    calla_status status = CALLA_OK;
    CALLA_TRY(task_query(s, &q, err,
                         TASK_COLUMNS "WHERE t.id = ?1 AND (?2 IS NULL OR t.owner = ?2)", "ss", id,
                         owner.hex));
    bool found = task_row(s, q, &status, err);
    if (found) *task = head_of(q);
    sqlite3_finalize(q);
    if (!found || status != CALLA_OK) return status;
    if (!*task) return no_memory(err);
    CALLA_TRY(add_inputs(s, id, *task, err));
    CALLA_TRY(add_usage(s, id, *task, err));
    CALLA_TRY(add_last_event(s, id, *task, err));
    CALLA_TRY(task_add_question(s, id, *task, err));
    return add_rounds(s, id, *task, err);
}

calla_status task_store_read(task_store *s, task_owner owner, const char *id, json_t **task,
                             calla_error *err)
{
    *task = NULL;
    CALLA_TRY(task_begin(s, err));
    calla_status status = task_commit(s, read_task(s, owner, id, task, err), false, err);
    if (status != CALLA_OK) {
        json_decref(*task);
        *task = NULL;
    }
    return status;
}

static calla_status list_tasks(task_store *s, task_owner owner, const char *state, int64_t n_most,
                               json_t *tasks, calla_error *err)
{
    sqlite3_stmt *q;
    calla_status status = CALLA_OK;
    CALLA_TRY(task_query(
        s, &q, err,
        TASK_COLUMNS "WHERE (?1 IS NULL OR t.owner = ?1) AND (?2 IS NULL OR t.state = ?2) "
                     "ORDER BY t.state IN " ENDED ", CASE WHEN t.state IN " ENDED
                     " THEN 0 ELSE -t.priority "
                     "END, CASE WHEN t.state IN " ENDED " THEN -t.updated_ms ELSE t.position END "
                     "LIMIT ?3",
        "ssi", owner.hex, state, n_most));
    while (status == CALLA_OK && task_row(s, q, &status, err)) {
        json_t *task = head_of(q);
        status = task ? add_usage(s, task_column(q, 0), task, err) : no_memory(err);
        json_array_append_new(tasks, task);
    }
    sqlite3_finalize(q);
    return status;
}

calla_status task_store_list(task_store *s, task_owner owner, const char *state, int64_t n_most,
                             json_t **tasks, calla_error *err)
{
    *tasks = NULL;
    json_t *list = json_array();
    if (!list) return no_memory(err);
    calla_status status = task_begin(s, err);
    if (status == CALLA_OK)
        status = task_commit(s, list_tasks(s, owner, state, n_most, list, err), false, err);
    if (status == CALLA_OK)
        *tasks = list;
    else
        json_decref(list);
    return status;
}

/* ---- events ---- */

static calla_status read_events(task_store *s, task_owner owner, const char *id, int64_t after,
                                json_t *events, bool *ended, bool *found, calla_error *err)
{
    sqlite3_stmt *q;
    calla_status status = CALLA_OK;
    CALLA_TRY(task_query(s, &q, err,
                         "SELECT state IN " ENDED " FROM tasks WHERE id = ?1 "
                         "AND (?2 IS NULL OR owner = ?2)",
                         "ss", id, owner.hex));
    *found = task_row(s, q, &status, err);
    *ended = *found && sqlite3_column_int64(q, 0);
    sqlite3_finalize(q);
    if (!*found || status != CALLA_OK) return status;
    CALLA_TRY(task_query(s, &q, err,
                         "SELECT number, time_ms, kind, body FROM events WHERE task = ? AND number "
                         "> ? ORDER BY number LIMIT ?",
                         "sii", id, after, (int64_t)EVENTS_AT_ONCE));
    while (task_row(s, q, &status, err)) {
        json_t *event = value_of(q, 3);
        json_object_set_new(event, "event", json_integer(sqlite3_column_int64(q, 0)));
        json_object_set_new(event, "time", time_or_null(q, 1));
        json_object_set_new(event, "type", json_string(task_column(q, 2)));
        json_array_append_new(events, event);
    }
    sqlite3_finalize(q);
    *ended = *ended && json_array_size(events) < EVENTS_AT_ONCE;
    return status;
}

calla_status task_store_events(task_store *s, task_owner owner, const char *id, int64_t after,
                               json_t **events, bool *ended, bool *found, calla_error *err)
{
    *events = json_array();
    *found = *ended = false;
    if (!*events) return no_memory(err);
    calla_status status = task_begin(s, err);
    if (status == CALLA_OK)
        status = task_commit(s, read_events(s, owner, id, after, *events, ended, found, err), false,
                             err);
    if (status != CALLA_OK) {
        json_decref(*events);
        *events = NULL;
    }
    return status;
}
