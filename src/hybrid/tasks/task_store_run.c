/* The side of the store that runs tasks. */
#include "base/memory.h"
#include "hybrid/tasks/task_store_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static calla_status no_memory(calla_error *err)
{
    return error_set(err, CALLA_ERR_MEMORY, "no memory for a task's step");
}

/* ---- what is next ---- */

void task_work_free(task_work *w)
{
    for (size_t i = 0; i < w->n_inputs; i++) {
        free(w->inputs[i].label);
        free(w->inputs[i].name);
        free(w->inputs[i].text);
    }
    free(w->inputs);
    free(w->asked);
    free(w->instructions);
    free(w->answer);
    json_decref(w->policy);
    json_decref(w->budget);
    *w = (task_work){0};
}

/* A column with JSON of ours, or none. */
static calla_status take_json(sqlite3_stmt *q, int column, json_t **value, calla_error *err)
{
    const char *text = (const char *)sqlite3_column_text(q, column);
    if (!text) return CALLA_OK;
    return json_parse_text(text, strlen(text), "a task's row", value, err);
}

static calla_status take_task(sqlite3_stmt *q, task_work *w, calla_error *err)
{
    snprintf(w->id, sizeof w->id, "%s", task_column(q, 0));
    snprintf(w->owner, sizeof w->owner, "%s", task_column(q, 1));
    w->round = sqlite3_column_int64(q, 2);
    CALLA_TRY(take_json(q, 3, &w->policy, err));
    CALLA_TRY(take_json(q, 4, &w->budget, err));
    w->asked = strdup(task_column(q, 5));
    w->step = sqlite3_column_int64(q, 6);
    w->kind = (task_kind)sqlite3_column_int64(q, 7);
    w->instructions = strdup(task_column(q, 8));
    w->wants_cloud = sqlite3_column_int64(q, 9) != 0;
    bool answered = sqlite3_column_type(q, 11) != SQLITE_NULL;
    if (answered) w->answer = strdup(task_column(q, 11));
    return w->asked && w->instructions && (w->answer || !answered) ? CALLA_OK : no_memory(err);
}

static calla_status add_input(task_work *w, const char *label, sqlite3_stmt *q, calla_error *err)
{
    size_t capacity = w->n_inputs; /* grown one by one: there are few */
    void *inputs = w->inputs;
    CALLA_TRY(
        mem_grow(&inputs, &capacity, w->n_inputs + 1, sizeof *w->inputs, "a task's texts", err));
    w->inputs = inputs;
    task_input *in = &w->inputs[w->n_inputs++];
    *in = (task_input){.label = strdup(label),
                       .name = strdup(task_column(q, 0)),
                       .text = strdup(task_column(q, 1)),
                       .n_bytes = (size_t)sqlite3_column_bytes(q, 1),
                       .sensitive = sqlite3_column_int64(q, 2) != 0};
    return in->label && in->name && in->text ? CALLA_OK : no_memory(err);
}

/* The texts of one table, labelled PREFIX and their number. */
static calla_status add_numbered(task_store *s, task_work *w, const char *prefix, const char *sql,
                                 calla_error *err)
{
    sqlite3_stmt *q;
    char label[40];
    calla_status status = CALLA_OK;
    CALLA_TRY(task_query(s, &q, err, sql, "si", w->id, w->round));
    while (status == CALLA_OK && task_row(s, q, &status, err)) {
        snprintf(label, sizeof label, "%s_%lld", prefix, (long long)sqlite3_column_int64(q, 3));
        status = add_input(w, label, q, err);
    }
    sqlite3_finalize(q);
    return status;
}

/* What the task came with, and a follow-up's result. */
static calla_status add_sources(task_store *s, task_work *w, calla_error *err)
{
    sqlite3_stmt *q;
    calla_status status = CALLA_OK;
    CALLA_TRY(add_numbered(s, w, "input",
                           "SELECT name, text, 0, number FROM inputs WHERE task = ?1 "
                           "AND ?2 >= 0 ORDER BY number",
                           err));
    CALLA_TRY(task_query(s, &q, err,
                         "SELECT '', result, sensitive FROM rounds WHERE task = ? AND round = ?",
                         "si", w->id, w->round - 1));
    if (task_row(s, q, &status, err)) status = add_input(w, "result", q, err);
    sqlite3_finalize(q);
    return status;
}

static calla_status add_results(task_store *s, task_work *w, calla_error *err)
{
    return add_numbered(s, w, "step",
                        "SELECT title, result, sensitive, step FROM steps WHERE task = ? AND round "
                        "= ? AND done = 1 AND step > 0 ORDER BY step",
                        err);
}

static bool is_listed(const json_t *labels, const char *label)
{
    for (size_t i = 0; i < json_array_size(labels); i++)
        if (json_is_text(json_array_get(labels, i), label)) return true;
    return false;
}

static void drop_unlisted(task_work *w, const json_t *labels)
{
    size_t n = 0;
    for (size_t i = 0; i < w->n_inputs; i++) {
        if (is_listed(labels, w->inputs[i].label)) {
            w->inputs[n++] = w->inputs[i];
            continue;
        }
        free(w->inputs[i].label);
        free(w->inputs[i].name);
        free(w->inputs[i].text);
    }
    w->n_inputs = n;
}

static calla_status add_inputs(task_store *s, task_work *w, const json_t *labels, calla_error *err)
{
    if (w->kind != TASK_STEP_MERGE) CALLA_TRY(add_sources(s, w, err));
    if (w->kind != TASK_STEP_PLAN) CALLA_TRY(add_results(s, w, err));
    if (w->kind == TASK_STEP_WORK) drop_unlisted(w, labels);
    return CALLA_OK;
}

static calla_status add_usage(task_store *s, task_work *w, calla_error *err)
{
    sqlite3_stmt *q;
    calla_status status = CALLA_OK;
    CALLA_TRY(task_query(s, &q, err,
                         "SELECT coalesce(sum(input_tokens + output_tokens), 0) + (SELECT "
                         "sum(check_tokens) FROM steps WHERE task = ?3), coalesce(sum(cost), 0), "
                         "coalesce(sum(outcome = 'interrupted' AND round = ?1 AND step = ?2), 0) "
                         "FROM attempts WHERE task = ?3",
                         "iis", w->round, w->step, w->id));
    if (task_row(s, q, &status, err)) {
        w->tokens_used = sqlite3_column_int64(q, 0);
        w->cost_used = sqlite3_column_double(q, 1);
        w->n_interrupted = sqlite3_column_int64(q, 2);
    }
    sqlite3_finalize(q);
    return status;
}

static calla_status read_next(task_store *s, task_work *w, bool *found, calla_error *err)
{
    sqlite3_stmt *q;
    json_t *labels = NULL;
    calla_status status = CALLA_OK;
    CALLA_TRY(task_query(
        s, &q, err,
        "SELECT t.id, t.owner, t.round, t.policy, t.budget, r.instructions, p.step, p.kind, "
        "p.instructions, p.wants_cloud, p.inputs, p.answer FROM tasks t JOIN rounds r ON r.task = "
        "t.id AND "
        "r.round = t.round JOIN steps p ON p.task = t.id AND p.round = t.round AND p.done = 0 "
        "WHERE t.state IN ('queued', 'running') AND t.paused = 0 "
        "ORDER BY t.priority DESC, t.position, p.step LIMIT 1",
        ""));
    *found = task_row(s, q, &status, err);
    if (*found) status = take_task(q, w, err);
    if (*found && status == CALLA_OK) status = take_json(q, 10, &labels, err);
    sqlite3_finalize(q);
    if (*found && status == CALLA_OK) status = add_inputs(s, w, labels, err);
    if (*found && status == CALLA_OK) status = add_usage(s, w, err);
    json_decref(labels);
    return status;
}

calla_status task_store_next(task_store *s, task_work *w, bool *found, calla_error *err)
{
    *w = (task_work){0};
    *found = false;
    CALLA_TRY(task_begin(s, err));
    return task_commit(s, read_next(s, w, found, err), false, err);
}

calla_status task_store_is_wanted(task_store *s, const char *id, bool *wanted, calla_error *err)
{
    int64_t n = 0;
    CALLA_TRY(task_begin(s, err));
    calla_status status = task_number(
        s, &n, 0, err, "SELECT count(*) FROM tasks WHERE id = ? AND state IN ('queued', 'running')",
        "s", id);
    *wanted = n > 0;
    return task_commit(s, status, false, err);
}

/* ---- attempts ---- */

static json_t *place_of(const task_work *w, int64_t attempt)
{
    return json_pack("{s:I, s:I, s:I}", "round", (json_int_t)w->round, "step", (json_int_t)w->step,
                     "attempt", (json_int_t)attempt);
}

static calla_status begin(task_store *s, const task_work *w, bool in_cloud, const json_t *reasons,
                          const task_usage *most, int64_t *attempt, calla_error *err)
{
    int64_t n;
    CALLA_TRY(task_exec(s, &n, err,
                        "UPDATE tasks SET state = 'running', updated_ms = ? WHERE id = ? AND state "
                        "IN ('queued', 'running') AND paused = 0 AND round = ?",
                        "isi", task_now_ms(), w->id, w->round));
    if (n == 0) return CALLA_OK;
    /* One whose end could not be written. */
    CALLA_TRY(task_exec(s, NULL, err,
                        "UPDATE attempts SET outcome = 'interrupted', ended_ms = ? WHERE task = ? "
                        "AND outcome = ''",
                        "is", task_now_ms(), w->id));
    char *text = json_dumps(reasons, JSON_COMPACT);
    if (!text) return no_memory(err);
    calla_status status =
        task_exec(s, NULL, err,
                  "INSERT INTO attempts (task, round, step, in_cloud, reasons, started_ms, "
                  "input_tokens, output_tokens, cost, currency) VALUES (?,?,?,?,?,?,?,?,?,?)",
                  "siiisiiids", w->id, w->round, w->step, (int64_t)in_cloud, text, task_now_ms(),
                  most->input_tokens, most->output_tokens, most->cost, most->currency);
    free(text);
    if (status != CALLA_OK) return status;
    *attempt = sqlite3_last_insert_rowid(s->db);
    json_t *body = place_of(w, *attempt);
    if (body) {
        json_object_set_new(body, "where", json_string(in_cloud ? "cloud" : "local"));
        json_object_set(body, "reasons", (json_t *)reasons);
    }
    return task_event(s, w->id, "step.started", body, err);
}

calla_status task_store_begin(task_store *s, const task_work *w, bool in_cloud,
                              const json_t *reasons, const task_usage *at_most, int64_t *attempt,
                              calla_error *err)
{
    *attempt = 0;
    CALLA_TRY(task_begin(s, err));
    return task_commit(s, begin(s, w, in_cloud, reasons, at_most, attempt, err), true, err);
}

/* usage NULL: what was reserved stays. */
static calla_status end_attempt(task_store *s, int64_t attempt, const char *outcome,
                                const task_usage *u, const char *message, calla_error *err)
{
    CALLA_TRY(task_exec(s, NULL, err,
                        "UPDATE attempts SET outcome = ?, ended_ms = ?, message = ? "
                        "WHERE number = ? AND outcome = ''",
                        "sisi", outcome, task_now_ms(), message, attempt));
    if (!u) return CALLA_OK;
    return task_exec(s, NULL, err,
                     "UPDATE attempts SET estimated = 0, input_tokens = ?, output_tokens = ?, "
                     "cost = ?, currency = ? WHERE number = ?",
                     "iidsi", u->input_tokens, u->output_tokens, u->cost, u->currency, attempt);
}

static calla_status add_step(task_store *s, const task_work *w, int64_t number, task_kind kind,
                             const task_planned *p, calla_error *err)
{
    char *inputs = json_dumps(p->inputs, JSON_COMPACT);
    if (!inputs) return no_memory(err);
    calla_status status =
        task_exec(s, NULL, err,
                  "INSERT INTO steps (task, round, step, kind, title, instructions, why, inputs, "
                  "wants_cloud) VALUES (?,?,?,?,?,?,?,?,?)",
                  "siiissssi", w->id, w->round, number, (int64_t)kind, p->title, p->instructions,
                  p->why, inputs, (int64_t)p->in_cloud);
    free(inputs);
    return status;
}

static calla_status add_plan(task_store *s, const task_work *w, const task_outcome *o,
                             calla_error *err)
{
    for (size_t i = 0; i < o->n_steps; i++)
        CALLA_TRY(add_step(s, w, (int64_t)i + 1, TASK_STEP_WORK, &o->steps[i], err));
    if (o->n_steps < 2) return CALLA_OK;
    json_t *none = json_array();
    const task_planned merge = {
        .title = "merge", .instructions = "", .why = "results are merged here", .inputs = none};
    calla_status status = add_step(s, w, (int64_t)o->n_steps + 1, TASK_STEP_MERGE, &merge, err);
    json_decref(none);
    return status;
}

/* The round's last step is done. */
static calla_status end_round(task_store *s, const task_work *w, const task_outcome *o,
                              calla_error *err)
{
    CALLA_TRY(task_exec(s, NULL, err,
                        "UPDATE rounds SET result = ?, sensitive = ? WHERE task = ? AND round = ?",
                        "tisi", o->result, o->n_result, (int64_t)o->sensitive, w->id, w->round));
    CALLA_TRY(task_exec(s, NULL, err,
                        "UPDATE tasks SET state = 'done', updated_ms = ? WHERE id = ?", "is",
                        task_now_ms(), w->id));
    return task_event(s, w->id, "task.done",
                      json_pack("{s:s, s:I, s:s%}", "state", "done", "round", (json_int_t)w->round,
                                "result", o->result, o->n_result),
                      err);
}

static calla_status finish(task_store *s, const task_work *w, int64_t attempt,
                           const task_outcome *o, calla_error *err)
{
    int64_t n, n_waiting;
    /* Of a task that was cancelled or deleted meanwhile the attempt alone is completed. */
    CALLA_TRY(task_number(s, &n, 0, err,
                          "SELECT count(*) FROM tasks WHERE id = ? AND state = 'running'", "s",
                          w->id));
    CALLA_TRY(end_attempt(s, attempt, n ? "done" : "cancelled", o->usage, o->message, err));
    if (n == 0) return CALLA_OK;
    CALLA_TRY(task_exec(s, NULL, err,
                        "UPDATE steps SET done = 1, result = ?, sensitive = ? WHERE task = ? AND "
                        "round = ? AND step = ?",
                        "tisii", o->result, o->n_result, (int64_t)o->sensitive, w->id, w->round,
                        w->step));
    if (w->kind == TASK_STEP_PLAN) CALLA_TRY(add_plan(s, w, o, err));
    CALLA_TRY(task_event(s, w->id, "step.done", place_of(w, attempt), err));
    CALLA_TRY(task_number(s, &n_waiting, 0, err,
                          "SELECT count(*) FROM steps WHERE task = ? AND round = ? AND done = 0",
                          "si", w->id, w->round));
    return n_waiting == 0 ? end_round(s, w, o, err) : CALLA_OK;
}

calla_status task_store_finish(task_store *s, const task_work *w, int64_t attempt,
                               const task_outcome *o, calla_error *err)
{
    CALLA_TRY(task_begin(s, err));
    return task_commit(s, finish(s, w, attempt, o, err), true, err);
}

static calla_status give_up(task_store *s, const task_work *w, int64_t attempt, const char *outcome,
                            const task_usage *usage, const char *message, calla_error *err)
{
    int64_t n;
    char kind[40];
    CALLA_TRY(end_attempt(s, attempt, outcome, usage, message, err));
    CALLA_TRY(task_number(s, &n, 0, err, "SELECT count(*) FROM tasks WHERE id = ?", "s", w->id));
    if (n == 0) return CALLA_OK;
    json_t *body = place_of(w, attempt);
    if (body && message) json_object_set_new(body, "message", json_string(message));
    snprintf(kind, sizeof kind, "attempt.%s", outcome);
    return task_event(s, w->id, kind, body, err);
}

calla_status task_store_give_up(task_store *s, const task_work *w, int64_t attempt,
                                const char *outcome, const task_usage *usage, const char *message,
                                calla_error *err)
{
    calla_error tidy; /* a message from elsewhere may end within a character */
    if (message) error_set(&tidy, CALLA_ERR_INPUT, "%s", message);
    CALLA_TRY(task_begin(s, err));
    return task_commit(
        s, give_up(s, w, attempt, outcome, usage, message ? tidy.message : NULL, err), true, err);
}

calla_status task_store_fail(task_store *s, const task_work *w, const char *code,
                             const char *message, calla_error *err)
{
    int64_t n = 0;
    calla_error tidy; /* as above */
    error_set(&tidy, CALLA_ERR_INPUT, "%s", message);
    CALLA_TRY(task_begin(s, err));
    calla_status status =
        task_exec(s, &n, err,
                  "UPDATE tasks SET state = 'failed', error_code = ?, error_message = ?, "
                  "updated_ms = ? WHERE id = ? AND state IN ('queued', 'running')",
                  "ssis", code, tidy.message, task_now_ms(), w->id);
    if (status == CALLA_OK && n > 0)
        status = task_event(s, w->id, "task.failed",
                            json_pack("{s:s, s:{s:s, s:s}}", "state", "failed", "error", "code",
                                      code, "message", tidy.message),
                            err);
    return task_commit(s, status, true, err);
}
