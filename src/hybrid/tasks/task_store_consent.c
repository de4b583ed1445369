/* Questions that a task waits to have answered; and the store's totals. */
#include "hybrid/tasks/task_store_private.h"

#include <stdlib.h>
#include <string.h>

/* ---- asking ---- */

static json_t *describe(const task_work *w, const task_question *q)
{
    return json_pack("{s:I, s:I, s:s, s:O, s:I}", "round", (json_int_t)w->round, "step",
                     (json_int_t)w->step, "destination", q->destination, "findings", q->findings,
                     "expires_at", (json_int_t)q->until);
}

static calla_status ask(task_store *s, const task_work *w, const char *question, json_t *event,
                        calla_error *err)
{
    int64_t n;
    calla_status status =
        task_exec(s, &n, err,
                  "UPDATE tasks SET state = 'waiting_for_consent', updated_ms = "
                  "? WHERE id = ? AND state IN ('queued', 'running') AND round = ?",
                  "isi", task_now_ms(), w->id, w->round);
    if (status != CALLA_OK || n == 0) {
        json_decref(event);
        return status;
    }
    status = task_exec(s, NULL, err,
                       "UPDATE steps SET question = ?, answer = NULL WHERE task = ? AND round = ? "
                       "AND step = ?",
                       "ssii", question, w->id, w->round, w->step);
    if (status == CALLA_OK) return task_event(s, w->id, "task.waiting_for_consent", event, err);
    json_decref(event);
    return status;
}

calla_status task_store_ask(task_store *s, const task_work *w, const task_question *q,
                            calla_error *err)
{
    json_t *event = describe(w, q), *question = json_deep_copy(event);
    if (question) json_object_set_new(question, "token", json_string(q->token));
    char *text = question ? json_dumps(question, JSON_COMPACT) : NULL;
    calla_status status = CALLA_OK;
    json_decref(question);
    if (!event || !text) {
        json_decref(event);
        status = error_set(err, CALLA_ERR_MEMORY, "no memory for a question");
    } else {
        json_object_set_new(event, "state", json_string("waiting_for_consent"));
        status = task_begin(s, err);
        if (status == CALLA_OK)
            status = task_commit(s, ask(s, w, text, event, err), true, err);
        else
            json_decref(event);
    }
    free(text);
    return status;
}

/* ---- what is asked ---- */

/* The question of a task that waits: *round and *step, and its JSON (new), or NULL. */
static calla_status find_question(task_store *s, task_owner owner, const char *id, int64_t *round,
                                  int64_t *step, json_t **question, calla_error *err)
{
    sqlite3_stmt *q;
    calla_status status = CALLA_OK;
    *question = NULL;
    CALLA_TRY(task_query(s, &q, err,
                         "SELECT p.round, p.step, p.question FROM tasks t JOIN steps p ON p.task = "
                         "t.id AND p.round = t.round AND p.question IS NOT NULL WHERE t.id = ?1 "
                         "AND (?2 IS NULL OR t.owner = ?2) AND t.state = 'waiting_for_consent'",
                         "ss", id, owner.hex));
    if (task_row(s, q, &status, err)) {
        const char *text = task_column(q, 2);
        *round = sqlite3_column_int64(q, 0);
        *step = sqlite3_column_int64(q, 1);
        status = json_parse_text(text, strlen(text), "a task's question", question, err);
    }
    sqlite3_finalize(q);
    return status;
}

calla_status task_add_question(task_store *s, const char *id, json_t *task, calla_error *err)
{
    static const task_owner all;
    json_t *question;
    int64_t round, step;
    CALLA_TRY(find_question(s, all, id, &round, &step, &question, err));
    json_object_set_new(task, "consent", question ? question : json_null());
    return CALLA_OK;
}

/* ---- answers ---- */

static calla_status answer(task_store *s, const char *id, int64_t round, int64_t step,
                           const char *token, calla_error *err)
{
    CALLA_TRY(task_exec(s, NULL, err,
                        "UPDATE steps SET question = NULL, answer = ? WHERE task = ? AND round = ? "
                        "AND step = ?",
                        "ssii", token ? token : "", id, round, step));
    CALLA_TRY(task_exec(s, NULL, err,
                        "UPDATE tasks SET state = 'queued', updated_ms = ? WHERE id = ?", "is",
                        task_now_ms(), id));
    return task_event(s, id, "task.queued",
                      json_pack("{s:s, s:I, s:I, s:b}", "state", "queued", "round",
                                (json_int_t)round, "step", (json_int_t)step, "agreed",
                                token != NULL),
                      err);
}

static calla_status try_answer(task_store *s, task_owner owner, const char *id, const char *token,
                               task_result *result, calla_error *err)
{
    int64_t n, round = 0, step = 0;
    json_t *question;
    CALLA_TRY(task_number(s, &n, 0, err,
                          "SELECT count(*) FROM tasks WHERE id = ?1 AND (?2 IS NULL OR owner = ?2)",
                          "ss", id, owner.hex));
    CALLA_TRY(find_question(s, owner, id, &round, &step, &question, err));
    const json_t *asked = json_object_get(question, "token");
    *result = n == 0                                 ? TASK_UNKNOWN
              : !question                            ? TASK_WRONG_STATE
              : token && !json_is_text(asked, token) ? TASK_WRONG_TOKEN
                                                     : TASK_OK;
    json_decref(question);
    return *result == TASK_OK ? answer(s, id, round, step, token, err) : CALLA_OK;
}

calla_status task_store_answer(task_store *s, task_owner owner, const char *id, const char *token,
                               task_result *result, calla_error *err)
{
    *result = TASK_UNKNOWN;
    CALLA_TRY(task_begin(s, err));
    return task_commit(s, try_answer(s, owner, id, token, result, err), true, err);
}

/* ---- the second look ---- */

calla_status task_store_add_check(task_store *s, const task_work *w, int64_t n_tokens,
                                  calla_error *err)
{
    CALLA_TRY(task_begin(s, err));
    calla_status status = task_exec(s, NULL, err,
                                    "UPDATE steps SET check_tokens = check_tokens + ? WHERE task = "
                                    "? AND round = ? AND step = ?",
                                    "isii", n_tokens, w->id, w->round, w->step);
    return task_commit(s, status, false, err);
}

/* ---- totals ---- */

/* An object of the query's rows: a name and a number each. */
static calla_status collect(task_store *s, json_t *into, const char *name, const char *sql,
                            calla_error *err)
{
    sqlite3_stmt *q;
    calla_status status = CALLA_OK;
    CALLA_TRY(task_query(s, &q, err, sql, ""));
    json_t *found = json_object();
    while (task_row(s, q, &status, err))
        json_object_set_new(found, task_column(q, 0), json_real(sqlite3_column_double(q, 1)));
    sqlite3_finalize(q);
    json_object_set_new(into, name, found);
    return status;
}

static calla_status add_totals(task_store *s, json_t *totals, calla_error *err)
{
    CALLA_TRY(collect(s, totals, "tasks",
                      "WITH states (name) AS (VALUES ('queued'), ('running'), "
                      "('waiting_for_consent'), ('done'), ('failed'), ('cancelled')) "
                      "SELECT name, count(id) FROM states LEFT JOIN tasks ON state = name "
                      "GROUP BY name",
                      err));
    CALLA_TRY(
        collect(s, totals, "tokens",
                "SELECT 'local', coalesce(sum(input_tokens + output_tokens) FILTER (WHERE "
                "NOT in_cloud), 0) FROM attempts UNION ALL SELECT 'cloud', "
                "coalesce(sum(input_tokens + output_tokens) FILTER (WHERE in_cloud), 0) FROM "
                "attempts UNION ALL SELECT 'check', coalesce(sum(check_tokens), 0) FROM steps",
                err));
    return collect(s, totals, "cost",
                   "SELECT currency, sum(cost) FROM attempts WHERE currency IS NOT NULL GROUP BY "
                   "currency",
                   err);
}

calla_status task_store_totals(task_store *s, json_t **totals, calla_error *err)
{
    *totals = NULL;
    json_t *found = json_object();
    if (!found) return error_set(err, CALLA_ERR_MEMORY, "no memory for totals of tasks");
    calla_status status = task_begin(s, err);
    if (status == CALLA_OK) status = task_commit(s, add_totals(s, found, err), false, err);
    if (status == CALLA_OK)
        *totals = found;
    else
        json_decref(found);
    return status;
}
