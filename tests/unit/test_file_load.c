/* src/base/file_load.c: files read ahead, copied, locked. */
#include "support/files.h"
#include "support/support.h"

#include "base/file_load.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_BYTES = (17 << 20) + 12345 }; /* pieces, and a last page that is not whole */

static unsigned char byte_at(size_t i)
{
    return (unsigned char)(i * 2654435761u >> 13);
}

typedef struct fixture {
    char path[4200];
    mapped_file map;
    load_file file;
    int64_t done, total; /* as reported last */
    atomic_bool cancel;
    load_control control;
} fixture;

static void note_progress(void *user, int64_t done, int64_t total)
{
    fixture *f = user;
    assert_true(done >= f->done && done <= total);
    f->done = done;
    f->total = total;
}

static void open_fixture(fixture *f, const byte_range *ranges, int32_t n_ranges)
{
    calla_error err;
    const char *dir = temporary_dir();
    unsigned char *bytes = malloc(N_BYTES);
    assert_non_null(bytes);
    for (size_t i = 0; i < N_BYTES; i++) bytes[i] = byte_at(i);
    write_test_file(dir, "data", bytes, N_BYTES);
    free(bytes);
    *f = (fixture){.done = 0};
    snprintf(f->path, sizeof f->path, "%s/data", dir);
    assert_ok(mapped_file_open(f->path, &f->map, &err), &err);
    assert_int_equal((uintptr_t)f->map.data % (2 << 20), 0);
    f->file = (load_file){f->path, &f->map, ranges, n_ranges};
    f->control = (load_control){note_progress, f, &f->cancel};
}

/* Out of the page cache, as far as the system does what it is asked. */
static void drop_cache(const char *path)
{
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(fsync(fd), 0);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

static void assert_bytes(const fixture *f, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++)
        if (f->map.data[i] != byte_at(i)) fail_msg("byte %zu", i);
}

static const byte_range all[] = {{0, N_BYTES}};
static const byte_range some[] = {{5, 6}, {70001, 9500000}, {17 << 20, N_BYTES}};

static void test_warm_up(void **state)
{
    (void)state;
    fixture f;
    calla_error err;
    open_fixture(&f, some, 3);
    for (int round = 0; round < 2; round++) { /* from the disk, from the cache */
        if (round == 0) drop_cache(f.path);
        f.done = 0;
        assert_ok(files_warm_up(&f.file, 1, &f.control, &err), &err);
        assert_true(f.done == f.total && f.total >= 9500000 - 70001 + 12345 + 1);
        assert_bytes(&f, 0, N_BYTES);
    }
    mapped_file_close(&f.map);
}

static void test_copy(void **state)
{
    (void)state;
    static const struct {
        bool keep_cached, cold;
    } ways[] = {{true, false}, {true, true}, {false, false}, {false, true}};
    for (size_t w = 0; w < 4; w++) {
        fixture f;
        calla_error err;
        open_fixture(&f, some, 3);
        const unsigned char *address = f.map.data;
        if (ways[w].cold) drop_cache(f.path);
        assert_ok(files_copy(&f.file, 1, ways[w].keep_cached, &f.control, &err), &err);
        assert_true(f.map.data == address && f.map.n_bytes == N_BYTES);
        assert_true(f.done == f.total && f.total > 0);
        /* What happens to the file does not matter any more. */
        assert_int_equal(truncate(f.path, 10), 0);
        for (int i = 0; i < 3; i++) assert_bytes(&f, some[i].begin, some[i].end);
        for (size_t i = 10 << 20; i < 16 << 20; i++) assert_int_equal(f.map.data[i], 0);
        mapped_file_close(&f.map);
    }
}

/* Several files, one of them without anything to take. */
static void test_files(void **state)
{
    (void)state;
    fixture a, b, c;
    calla_error err;
    open_fixture(&a, all, 1);
    open_fixture(&b, all, 0);
    open_fixture(&c, some, 3);
    const load_file files[] = {a.file, b.file, c.file};
    assert_ok(files_copy(files, 3, false, &a.control, &err), &err);
    assert_int_equal(truncate(a.path, 0), 0);
    assert_bytes(&a, 0, N_BYTES);
    assert_bytes(&b, 0, N_BYTES);
    assert_bytes(&c, 70001, 9500000);
    assert_ok(files_warm_up(&b.file, 1, &b.control, &err), &err);
    mapped_file_close(&a.map);
    mapped_file_close(&b.map);
    mapped_file_close(&c.map);
}

static void test_failures(void **state)
{
    (void)state;
    fixture f;
    calla_error err;
    open_fixture(&f, all, 1);
    f.cancel = true;
    assert_error(files_warm_up(&f.file, 1, &f.control, &err), CALLA_ERR_CANCELLED, &err, "");
    assert_error(files_copy(&f.file, 1, true, &f.control, &err), CALLA_ERR_CANCELLED, &err, "");
    assert_bytes(&f, 0, N_BYTES); /* still mapped */
    f.cancel = false;
    assert_int_equal(truncate(f.path, 9 << 20), 0);
    assert_error(files_warm_up(&f.file, 1, &f.control, &err), CALLA_ERR_IO, &err, f.path);
    for (int keep = 0; keep < 2; keep++)
        assert_error(files_copy(&f.file, 1, keep, &f.control, &err), CALLA_ERR_IO, &err,
                     "has become shorter than the 17838137 bytes it had");
    char away[4300];
    snprintf(away, sizeof away, "%s.away", f.path);
    assert_int_equal(rename(f.path, away), 0);
    assert_error(files_copy(&f.file, 1, true, &f.control, &err), CALLA_ERR_IO, &err, "cannot open");
    FILE *other = fopen(f.path, "wb");
    assert_non_null(other);
    fclose(other);
    assert_error(files_copy(&f.file, 1, true, &f.control, &err), CALLA_ERR_IO, &err,
                 "was replaced while it was opened");
    mapped_file_close(&f.map);
}

static int64_t locked_kib(void)
{
    char line[256];
    long long kib = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status)) sscanf(line, "VmLck: %lld", &kib);
    if (status) fclose(status);
    return kib;
}

static void test_lock(void **state)
{
    (void)state;
    static const byte_range small[] = {{0, 8192}, {100000, 100001}};
    fixture f;
    open_fixture(&f, small, 2);
    int64_t before = locked_kib(), n = files_lock(&f.file, 1);
    assert_true(n == 8193 || n == 0); /* the system may not permit it */
    assert_int_equal(locked_kib() - before, n ? 12 : 0);
    mapped_file_close(&f.map);
    assert_int_equal(locked_kib(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_warm_up),  cmocka_unit_test(test_copy), cmocka_unit_test(test_files),
        cmocka_unit_test(test_failures), cmocka_unit_test(test_lock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
