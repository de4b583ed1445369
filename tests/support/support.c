#include "support/support.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* CALLA_TEST_FILTER in the environment names the only tests of a program to run, with * and ?. */
__attribute__((constructor)) static void set_filter(void)
{
    cmocka_set_test_filter(getenv("CALLA_TEST_FILTER"));
}

/* A test that fails jumps out of what it was doing and leaves its memory; the sanitizer's report of
 * that would bury why it failed. */
static void end_failed(int status, void *unused)
{
    (void)unused;
    if (status == 0) return;
    fflush(NULL);
    _exit(status); /* what tests registered has run: the first handler is the last to be called */
}

__attribute__((constructor)) static void watch_exit(void)
{
    on_exit(end_failed, NULL);
}

void assert_ok(calla_status status, const calla_error *err)
{
    if (status != CALLA_OK) fail_msg("status %d: %s", status, err ? err->message : "");
}

void assert_error(calla_status status, calla_status expected, const calla_error *err,
                  const char *part)
{
    if (status != expected)
        fail_msg("status %d instead of %d: %s", status, expected, status ? err->message : "");
    if (!strstr(err->message, part)) fail_msg("\"%s\" does not contain \"%s\"", err->message, part);
}

const char *source_path(const char *name)
{
    static char paths[4][4096];
    static int next;
    char *p = paths[next++ % 4];
    const char *source = getenv("CALLA_TEST_SOURCE"); /* programs moved to another machine */
    snprintf(p, sizeof paths[0], "%s/%s", source ? source : CALLA_SOURCE_DIR, name);
    return p;
}

static char root[64];

static int remove_entry(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st, (void)flag, (void)ftw;
    return remove(path);
}

static void remove_root(void)
{
    nftw(root, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

const char *temporary_dir(void)
{
    static char path[96];
    static int n;
    if (!root[0]) {
        strcpy(root, "/tmp/calla-test-XXXXXX");
        if (!mkdtemp(root)) {
            perror("mkdtemp");
            exit(1);
        }
        atexit(remove_root);
    }
    snprintf(path, sizeof path, "%s/%d", root, n++);
    if (mkdir(path, 0777) != 0) {
        perror(path);
        exit(1);
    }
    return path;
}
