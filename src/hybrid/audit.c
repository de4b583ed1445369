#include "hybrid/audit.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BUSY_MS = 5000 };

struct audit {
    char *path;
    sqlite3 *db;
    pthread_mutex_t lock; /* over db and insert */
    sqlite3_stmt *insert, *last;
};

static const char *const kind_names[AUDIT_N_KINDS] = {"intent", "outcome", "kept"};

static const char schema[] =
    "PRAGMA journal_mode = WAL;"
    "CREATE TABLE IF NOT EXISTS audit ("
    " number INTEGER PRIMARY KEY, time_ms INTEGER NOT NULL, kind TEXT NOT NULL,"
    " reference INTEGER NOT NULL, body TEXT NOT NULL, hash TEXT NOT NULL) STRICT;"
    /* Against mistakes; against intent there is the chain. */
    "CREATE TRIGGER IF NOT EXISTS audit_no_update BEFORE UPDATE ON audit"
    " BEGIN SELECT RAISE(ABORT, 'the audit is only appended to'); END;"
    "CREATE TRIGGER IF NOT EXISTS audit_no_delete BEFORE DELETE ON audit"
    " BEGIN SELECT RAISE(ABORT, 'the audit is only appended to'); END;";

const char *audit_kind_name(audit_kind kind)
{
    return kind_names[kind];
}

static calla_status fail(const audit *a, calla_error *err)
{
    return error_set(err, CALLA_ERR_IO, "the audit %s: %s", a->path,
                     a->db ? sqlite3_errmsg(a->db) : "no memory");
}

/* ---- opening ---- */

static calla_status open_db(const char *path, int flags, audit **out, calla_error *err)
{
    audit *a = calloc(1, sizeof *a);
    if (!a) return error_set(err, CALLA_ERR_MEMORY, "no memory for the audit");
    pthread_mutex_init(&a->lock, NULL);
    a->path = strdup(path);
    *out = a;
    if (!a->path) return error_set(err, CALLA_ERR_MEMORY, "no memory for the audit");
    if (sqlite3_open_v2(path, &a->db, flags | SQLITE_OPEN_FULLMUTEX, NULL) != SQLITE_OK)
        return fail(a, err);
    sqlite3_busy_timeout(a->db, BUSY_MS);
    return CALLA_OK;
}

static calla_status prepare(const audit *a, const char *sql, sqlite3_stmt **statement,
                            calla_error *err)
{
    if (sqlite3_prepare_v2(a->db, sql, -1, statement, NULL) != SQLITE_OK) return fail(a, err);
    return CALLA_OK;
}

/* SQLite would make the file readable for all. */
static calla_status make_private(const char *path, calla_error *err)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return error_set_errno(err, CALLA_ERR_IO, errno, "the audit %s", path);
    close(fd);
    return CALLA_OK;
}

calla_status audit_open(const char *path, audit **out, calla_error *err)
{
    calla_status status;
    audit *a = NULL;
    CALLA_TRY(make_private(path, err));
    CALLA_TRY_GOTO(open_db(path, SQLITE_OPEN_READWRITE, &a, err), failed);
    if (sqlite3_exec(a->db, schema, NULL, NULL, NULL) != SQLITE_OK ||
        sqlite3_exec(a->db, "PRAGMA synchronous = FULL", NULL, NULL, NULL) != SQLITE_OK) {
        status = fail(a, err);
        goto failed;
    }
    CALLA_TRY_GOTO(prepare(a, "INSERT INTO audit VALUES (?, ?, ?, ?, ?, ?)", &a->insert, err),
                   failed);
    CALLA_TRY_GOTO(
        prepare(a, "SELECT number, hash FROM audit ORDER BY number DESC LIMIT 1", &a->last, err),
        failed);
    *out = a;
    return CALLA_OK;
failed:
    audit_close(a);
    return status;
}

calla_status audit_open_to_read(const char *path, audit **out, calla_error *err)
{
    calla_status status;
    audit *a = NULL;
    if (access(path, R_OK) != 0)
        return error_set_errno(err, CALLA_ERR_IO, errno, "the audit %s", path);
    CALLA_TRY_GOTO(open_db(path, SQLITE_OPEN_READONLY, &a, err), failed);
    CALLA_TRY_GOTO(
        prepare(a, "SELECT number, hash FROM audit ORDER BY number DESC LIMIT 1", &a->last, err),
        failed);
    *out = a;
    return CALLA_OK;
failed:
    audit_close(a);
    return status;
}

void audit_close(audit *a)
{
    if (!a) return;
    sqlite3_finalize(a->insert);
    sqlite3_finalize(a->last);
    sqlite3_close(a->db);
    pthread_mutex_destroy(&a->lock);
    free(a->path);
    free(a);
}

/* ---- rows ---- */

static void add_number(sha256 *s, int64_t n)
{
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)n);
    sha256_add_text(s, text, strlen(text));
}

/* The hash of a row that follows one with the hash `before` ("" = none does). */
static void hash_row(const char *before, int64_t number, int64_t time_ms, const char *kind,
                     int64_t reference, const char *body, char hash[SHA256_HEX])
{
    unsigned char digest[SHA256_BYTES];
    sha256 s;
    sha256_init(&s);
    sha256_add_text(&s, before, strlen(before));
    add_number(&s, number);
    add_number(&s, time_ms);
    sha256_add_text(&s, kind, strlen(kind));
    add_number(&s, reference);
    sha256_add_text(&s, body, strlen(body));
    sha256_digest(&s, SHA256_BYTES, digest);
    hex_write(digest, sizeof digest, hash);
}

static const char *column_text(sqlite3_stmt *s, int column)
{
    const char *text = (const char *)sqlite3_column_text(s, column);
    return text ? text : "";
}

static calla_status read_last(audit *a, audit_mark *mark, calla_error *err)
{
    *mark = (audit_mark){0};
    int result = sqlite3_step(a->last);
    if (result == SQLITE_ROW) {
        mark->number = sqlite3_column_int64(a->last, 0);
        snprintf(mark->hash, sizeof mark->hash, "%s", column_text(a->last, 1));
    }
    sqlite3_reset(a->last);
    return result == SQLITE_ROW || result == SQLITE_DONE ? CALLA_OK : fail(a, err);
}

static calla_status insert(audit *a, audit_kind kind, int64_t reference, const char *body,
                           int64_t *number, calla_error *err)
{
    struct timespec now;
    audit_mark last;
    char hash[SHA256_HEX];
    CALLA_TRY(read_last(a, &last, err));
    clock_gettime(CLOCK_REALTIME, &now);
    int64_t time_ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    *number = last.number + 1;
    hash_row(last.hash, *number, time_ms, kind_names[kind], reference, body, hash);
    sqlite3_stmt *s = a->insert;
    sqlite3_bind_int64(s, 1, *number);
    sqlite3_bind_int64(s, 2, time_ms);
    sqlite3_bind_text(s, 3, kind_names[kind], -1, SQLITE_STATIC);
    sqlite3_bind_int64(s, 4, reference);
    sqlite3_bind_text(s, 5, body, -1, SQLITE_TRANSIENT);
    sqlite3_bind_text(s, 6, hash, -1, SQLITE_TRANSIENT);
    int result = sqlite3_step(s);
    sqlite3_reset(s);
    sqlite3_clear_bindings(s);
    return result == SQLITE_DONE ? CALLA_OK : fail(a, err);
}

/* Other processes append, too: the last row is read and the next one written in one transaction. */
static calla_status insert_alone(audit *a, audit_kind kind, int64_t reference, const char *body,
                                 int64_t *number, calla_error *err)
{
    if (sqlite3_exec(a->db, "BEGIN IMMEDIATE", NULL, NULL, NULL) != SQLITE_OK) return fail(a, err);
    calla_status status = insert(a, kind, reference, body, number, err);
    if (status == CALLA_OK && sqlite3_exec(a->db, "COMMIT", NULL, NULL, NULL) != SQLITE_OK)
        status = fail(a, err);
    if (status != CALLA_OK) sqlite3_exec(a->db, "ROLLBACK", NULL, NULL, NULL);
    return status;
}

calla_status audit_append(audit *a, audit_kind kind, int64_t reference, const json_t *body,
                          int64_t *number, calla_error *err)
{
    int64_t given = 0;
    char *text = json_dumps(body, JSON_COMPACT | JSON_SORT_KEYS);
    if (!text) return error_set(err, CALLA_ERR_MEMORY, "no memory for the audit");
    pthread_mutex_lock(&a->lock);
    calla_status status = insert_alone(a, kind, reference, text, &given, err);
    pthread_mutex_unlock(&a->lock);
    if (number && status == CALLA_OK) *number = given;
    free(text);
    return status;
}

calla_status audit_head(audit *a, audit_mark *mark, calla_error *err)
{
    pthread_mutex_lock(&a->lock);
    calla_status status = read_last(a, mark, err);
    pthread_mutex_unlock(&a->lock);
    return status;
}

/* ---- reading ---- */

/* False if the row is none that audit_append writes. */
static bool read_row(sqlite3_stmt *s, audit_row *row)
{
    const char *kind = column_text(s, 2);
    *row = (audit_row){.number = sqlite3_column_int64(s, 0),
                       .time_ms = sqlite3_column_int64(s, 1),
                       .kind = AUDIT_N_KINDS,
                       .reference = sqlite3_column_int64(s, 3),
                       .body = column_text(s, 4)};
    for (int i = 0; i < AUDIT_N_KINDS; i++)
        if (strcmp(kind, kind_names[i]) == 0) row->kind = (audit_kind)i;
    snprintf(row->hash, sizeof row->hash, "%s", column_text(s, 5));
    return row->kind != AUDIT_N_KINDS;
}

calla_status audit_read(audit *a, int64_t first, audit_take_fn *take, void *user, calla_error *err)
{
    sqlite3_stmt *s;
    audit_row row;
    bool more = true;
    int result = SQLITE_DONE;
    CALLA_TRY(prepare(a,
                      "SELECT number, time_ms, kind, reference, body, hash FROM audit"
                      " WHERE number >= ? ORDER BY number",
                      &s, err));
    sqlite3_bind_int64(s, 1, first);
    while (more && (result = sqlite3_step(s)) == SQLITE_ROW)
        more = !read_row(s, &row) || take(user, &row);
    calla_status status = !more || result == SQLITE_DONE ? CALLA_OK : fail(a, err);
    sqlite3_finalize(s);
    return status;
}

typedef struct chain_check {
    const audit *audit;
    const audit_mark *expected;
    audit_mark *mark;
    bool met; /* the row that was expected */
    calla_status status;
    calla_error *err;
} chain_check;

static bool check_row(chain_check *c, const audit_row *row)
{
    char hash[SHA256_HEX];
    if (row->number != c->mark->number + 1) {
        c->status = error_set(c->err, CALLA_ERR_INPUT, "the audit %s: row %lld is missing",
                              c->audit->path, (long long)c->mark->number + 1);
        return false;
    }
    if (row->kind != AUDIT_N_KINDS)
        hash_row(c->mark->hash, row->number, row->time_ms, kind_names[row->kind], row->reference,
                 row->body, hash);
    if (row->kind == AUDIT_N_KINDS || strcmp(hash, row->hash) != 0) {
        c->status = error_set(c->err, CALLA_ERR_INPUT,
                              "the audit %s: row %lld is not what was written, or not in its place",
                              c->audit->path, (long long)row->number);
        return false;
    }
    c->mark->number = row->number;
    memcpy(c->mark->hash, hash, sizeof hash);
    if (c->expected && c->expected->number == row->number)
        c->met = strcmp(c->expected->hash, hash) == 0;
    return true;
}

calla_status audit_verify(audit *a, const audit_mark *expected, audit_mark *mark, calla_error *err)
{
    chain_check c = {a, expected, mark, !expected || expected->number == 0, CALLA_OK, err};
    sqlite3_stmt *s;
    audit_row row;
    int result = SQLITE_DONE;
    *mark = (audit_mark){0};
    CALLA_TRY(prepare(a,
                      "SELECT number, time_ms, kind, reference, body, hash FROM audit"
                      " ORDER BY number",
                      &s, err));
    bool good = true;
    while (good && (result = sqlite3_step(s)) == SQLITE_ROW) {
        read_row(s, &row); /* one of an unknown kind fails the check */
        good = check_row(&c, &row);
    }
    if (good && result != SQLITE_DONE) c.status = fail(a, err);
    sqlite3_finalize(s);
    if (c.status == CALLA_OK && !c.met)
        c.status = error_set(err, CALLA_ERR_INPUT,
                             "the audit %s: row %lld is missing or another than was noted; the "
                             "file ends at row %lld",
                             a->path, (long long)expected->number, (long long)mark->number);
    return c.status;
}
