/* The audit: rows in, the same rows out, and whatever was done to them since shows. */
#include "hybrid/audit.h"
#include "support/support.h"

#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *new_path(void)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/audit.db", temporary_dir());
    return path;
}

static audit *open_new(const char *path)
{
    audit *a;
    calla_error err;
    assert_ok(audit_open(path, &a, &err), &err);
    return a;
}

static int64_t append(audit *a, audit_kind kind, int64_t reference, const char *text)
{
    int64_t number;
    calla_error err;
    json_t *body = json_pack("{s:s}", "text", text);
    assert_ok(audit_append(a, kind, reference, body, &number, &err), &err);
    json_decref(body);
    return number;
}

static void fill(audit *a, int n)
{
    char text[32];
    for (int i = 0; i < n; i++) {
        snprintf(text, sizeof text, "entry %d", i);
        append(a, i % 2 ? AUDIT_OUTCOME : AUDIT_INTENT, i % 2 ? i : 0, text);
    }
}

static bool print_row(void *user, const audit_row *row)
{
    strbuf_printf(user, "%lld %s %lld %s\n", (long long)row->number, audit_kind_name(row->kind),
                  (long long)row->reference, row->body);
    return row->number < 4;
}

static void test_rows(void **state)
{
    (void)state;
    const char *path = new_path();
    audit *a = open_new(path);
    calla_error err;
    audit_mark mark;
    strbuf out = {0};
    struct stat info;
    assert_ok(audit_head(a, &mark, &err), &err);
    assert_int_equal(mark.number, 0);
    assert_int_equal(append(a, AUDIT_INTENT, 0, "one"), 1);
    assert_int_equal(append(a, AUDIT_OUTCOME, 1, "tw\"o\n"), 2);
    audit_close(a);
    a = open_new(path); /* goes on where it was */
    assert_int_equal(append(a, AUDIT_KEPT, 0, "three"), 3);
    append(a, AUDIT_KEPT, 0, "four");
    append(a, AUDIT_KEPT, 0, "five");
    assert_ok(audit_read(a, 2, print_row, &out, &err), &err);
    assert_string_equal(out.data, "2 outcome 1 {\"text\":\"tw\\\"o\\n\"}\n3 kept 0 "
                                  "{\"text\":\"three\"}\n4 kept 0 {\"text\":\"four\"}\n");
    assert_ok(audit_verify(a, NULL, &mark, &err), &err);
    assert_int_equal(mark.number, 5);
    strbuf_free(&out);
    audit_close(a);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
}

static void change(const char *path, const char *sql)
{
    sqlite3 *db;
    char *message = NULL;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    sqlite3_exec(db, "DROP TRIGGER audit_no_update; DROP TRIGGER audit_no_delete", NULL, NULL,
                 NULL);
    if (sqlite3_exec(db, sql, NULL, NULL, &message) != SQLITE_OK) fail_msg("%s: %s", sql, message);
    sqlite3_close(db);
}

/* Rows whose hashes Python's hashlib gave: what is in files that exist stays valid. */
static void test_chain_is_stable(void **state)
{
    (void)state;
    static const char rows[] =
        "INSERT INTO audit VALUES (1, 1700000000000, 'intent', 0, '{\"text\":\"x\"}', "
        "'9e8bbd7770401ce1c4e6e76e43ab164763cafecc5e2ef5f523b68d54730710ba');"
        "INSERT INTO audit VALUES (2, 1700000000001, 'outcome', 1, '{\"text\":\"x\"}', "
        "'8e882d0d4156a216af7c0668bbc2a5427c8ccec66e578e0f58c9924abf3a558a')";
    const char *path = new_path();
    audit_mark mark;
    calla_error err;
    audit_close(open_new(path));
    change(path, rows);
    audit *a = open_new(path);
    assert_ok(audit_verify(a, NULL, &mark, &err), &err);
    assert_int_equal(mark.number, 2);
    audit_close(a);
}

/* ---- tampering ---- */

static void expect_broken(const char *sql, const char *where)
{
    const char *path = new_path();
    calla_error err;
    audit_mark mark;
    audit *a = open_new(path);
    fill(a, 10);
    assert_ok(audit_verify(a, NULL, &mark, &err), &err);
    audit_close(a);
    change(path, sql);
    assert_ok(audit_open_to_read(path, &a, &err), &err);
    assert_error(audit_verify(a, NULL, &mark, &err), CALLA_ERR_INPUT, &err, where);
    audit_close(a);
}

static void test_tampering(void **state)
{
    (void)state;
    expect_broken("UPDATE audit SET body = '{\"text\":\"entry 9\"}' WHERE number = 4", "row 4 ");
    expect_broken("UPDATE audit SET time_ms = time_ms + 1 WHERE number = 10", "row 10 ");
    expect_broken("UPDATE audit SET kind = 'kept' WHERE number = 2", "row 2 ");
    expect_broken("UPDATE audit SET kind = 'other' WHERE number = 2", "row 2 ");
    expect_broken("UPDATE audit SET reference = 3 WHERE number = 2", "row 2 ");
    expect_broken("UPDATE audit SET hash = upper(hash) WHERE number = 5", "row 5 ");
    expect_broken("DELETE FROM audit WHERE number = 1", "row 1 is missing");
    expect_broken("DELETE FROM audit WHERE number = 6", "row 6 is missing");
    /* Taken out, and the others moved up. */
    expect_broken("DELETE FROM audit WHERE number = 6;"
                  "UPDATE audit SET number = number - 1 WHERE number > 6",
                  "row 6 ");
    /* Two rows in each other's place. */
    expect_broken("UPDATE audit SET number = 100 WHERE number = 3;"
                  "UPDATE audit SET number = 3 WHERE number = 4;"
                  "UPDATE audit SET number = 4 WHERE number = 100",
                  "row 3 ");
    expect_broken("INSERT INTO audit SELECT 11, time_ms, kind, reference, body, hash FROM audit "
                  "WHERE number = 10",
                  "row 11 ");
}

/* The end cut off does not show by itself, but by the mark kept elsewhere; a chain made anew too.
 */
static void test_end_cut_off(void **state)
{
    (void)state;
    const char *path = new_path();
    calla_error err;
    audit_mark noted, mark;
    audit *a = open_new(path);
    fill(a, 10);
    assert_ok(audit_head(a, &noted, &err), &err);
    append(a, AUDIT_KEPT, 0, "later");
    assert_ok(audit_verify(a, &noted, &mark, &err), &err);
    assert_int_equal(mark.number, 11);
    audit_close(a);
    change(path, "DELETE FROM audit WHERE number > 8");
    a = open_new(path);
    assert_ok(audit_verify(a, NULL, &mark, &err), &err);
    assert_error(audit_verify(a, &noted, &mark, &err), CALLA_ERR_INPUT, &err, "row 10 is missing");
    append(a, AUDIT_KEPT, 0, "instead");
    append(a, AUDIT_KEPT, 0, "of it");
    assert_ok(audit_verify(a, NULL, &mark, &err), &err);
    assert_error(audit_verify(a, &noted, &mark, &err), CALLA_ERR_INPUT, &err, "another than was");
    audit_close(a);
}

static void test_only_appended(void **state)
{
    (void)state;
    const char *path = new_path();
    audit *a = open_new(path);
    fill(a, 2);
    sqlite3 *db;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_not_equal(sqlite3_exec(db, "UPDATE audit SET body = ''", NULL, NULL, NULL),
                         SQLITE_OK);
    assert_int_not_equal(sqlite3_exec(db, "DELETE FROM audit", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    audit_close(a);
}

/* ---- several at once ---- */

static void *append_many(void *user)
{
    fill(user, 50);
    return NULL;
}

static void test_threads_and_processes(void **state)
{
    (void)state;
    const char *path = new_path();
    audit *a = open_new(path);
    pthread_t threads[2];
    calla_error err;
    audit_mark mark;
    pid_t child = fork();
    if (child == 0) {
        audit *own;
        if (audit_open(path, &own, &err) != CALLA_OK) _exit(1);
        json_t *body = json_pack("{s:s}", "from", "elsewhere");
        for (int i = 0; i < 50; i++)
            if (audit_append(own, AUDIT_KEPT, 0, body, NULL, &err) != CALLA_OK) _exit(1);
        _exit(0);
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, append_many, a), 0);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    int status = -1;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    assert_ok(audit_verify(a, NULL, &mark, &err), &err);
    assert_int_equal(mark.number, 150);
    audit_close(a);
}

static void test_bad_files(void **state)
{
    (void)state;
    char path[600];
    audit *a;
    calla_error err;
    snprintf(path, sizeof path, "%s/none.db", temporary_dir());
    assert_error(audit_open_to_read(path, &a, &err), CALLA_ERR_IO, &err, "none.db");
    snprintf(path, sizeof path, "%s/no/such/dir.db", temporary_dir());
    assert_error(audit_open(path, &a, &err), CALLA_ERR_IO, &err, "dir.db");
    snprintf(path, sizeof path, "%s/text.db", temporary_dir());
    FILE *f = fopen(path, "w");
    for (int i = 0; i < 1000; i++) fputs("this is no database\n", f);
    fclose(f);
    assert_error(audit_open(path, &a, &err), CALLA_ERR_IO, &err, "text.db");
    assert_error(audit_open_to_read(path, &a, &err), CALLA_ERR_IO, &err, "text.db");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),          cmocka_unit_test(test_chain_is_stable),
        cmocka_unit_test(test_tampering),     cmocka_unit_test(test_end_cut_off),
        cmocka_unit_test(test_only_appended), cmocka_unit_test(test_threads_and_processes),
        cmocka_unit_test(test_bad_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
