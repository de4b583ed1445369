/* The cache directory: what is found after a restart, and what is not trusted. */
#include "server/client.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[256];

static int make_dir(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/calla-cache-XXXXXX");
    assert_non_null(mkdtemp(dir));
    return 0;
}

/* Calls f for every file; gives their number. */
static int each_file(void (*f)(const char *path))
{
    DIR *d = opendir(dir);
    int n = 0;
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        char path[600];
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (f) f(path);
        n++;
    }
    closedir(d);
    return n;
}

static void remove_file(const char *path)
{
    unlink(path);
}

static int remove_dir(void **state)
{
    (void)state;
    each_file(remove_file);
    return rmdir(dir);
}

static server_options options_with_dir(void)
{
    server_options options = client_options();
    options.engine.cache_dir = dir;
    options.engine.n_ctx = 4096;
    return options;
}

/* One run of a server: asks, gives the answer (malloc'ed) and how much of the prompt was known. */
static char *ask(const server_options *options, const char *more, int64_t *n_cached)
{
    char text[6000] = "What is a river?";
    while (strlen(text) < 1500) strcat(text, " I would like to know it.");
    strcat(text, more);
    server *s = client_start(options);
    json_t *body = chat(text);
    json_object_set_new(body, "max_tokens", json_integer(4));
    answer_t a = client_post_json(s, 200, "/v1/chat/completions", body);
    char *content = strdup(text_at(a.json, "choices.0.message.reasoning_content"));
    *n_cached = int_at(a.json, "usage.prompt_tokens_details.cached_tokens");
    answer_clear(&a);
    client_stop(s);
    return content;
}

static void expect_private(const char *path)
{
    struct stat st;
    assert_int_equal(lstat(path, &st), 0);
    assert_true(S_ISREG(st.st_mode));
    assert_int_equal(st.st_mode & 0777, 0600);
}

static void a_prompt_is_known_after_a_restart(void **state)
{
    (void)state;
    server_options options = options_with_dir();
    int64_t n;
    char *cold = ask(&options, "", &n);
    assert_int_equal(n, 0);
    assert_int_equal(each_file(expect_private), 1);
    for (int i = 0; i < 3; i++) { /* the same file serves more than once */
        char *warm = ask(&options, "", &n);
        assert_true(n > 250);
        assert_string_equal(warm, cold);
        free(warm);
    }
    assert_int_equal(each_file(NULL), 1);
    free(cold);
}

static void (*spoil)(int fd, off_t size);

static void spoil_file(const char *path)
{
    struct stat st;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &st), 0);
    spoil(fd, st.st_size);
    close(fd);
}

static void flip(int fd, off_t at)
{
    unsigned char c;
    assert_int_equal(pread(fd, &c, 1, at), 1);
    c ^= 0x10;
    assert_int_equal(pwrite(fd, &c, 1, at), 1);
}
static void flip_middle(int fd, off_t size)
{
    flip(fd, size / 2);
}
static void flip_header(int fd, off_t size)
{
    flip(fd, 20 + size * 0);
}
static void flip_tokens(int fd, off_t size)
{
    flip(fd, 60 + size * 0);
}
static void flip_end(int fd, off_t size)
{
    flip(fd, size - 1);
}
static void cut(int fd, off_t size)
{
    assert_int_equal(ftruncate(fd, size - 5), 0);
}
static void empty(int fd, off_t size)
{
    assert_int_equal(ftruncate(fd, 0 * size), 0);
}
static void lengthen(int fd, off_t size)
{
    assert_int_equal(ftruncate(fd, size + 1), 0);
}

static void what_is_broken_is_not_used(void **state)
{
    (void)state;
    static void (*const ways[])(int, off_t) = {flip_middle, flip_header, flip_tokens, flip_end,
                                               cut,         empty,       lengthen};
    server_options options = options_with_dir();
    int64_t n;
    char *cold = ask(&options, "", &n);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        each_file(remove_file);
        free(ask(&options, "", &n));
        spoil = ways[i];
        assert_int_equal(each_file(spoil_file), 1);
        char *again = ask(&options, "", &n);
        assert_int_equal(n, 0);
        assert_string_equal(again, cold);
        free(again);
    }
    free(cold);
}

static void others_files_are_left_alone(void **state)
{
    (void)state;
    server_options options = options_with_dir();
    char path[300];
    int64_t n;
    free(ask(&options, "", &n));
    /* Of another model: here, of other kernels. */
    options.engine.isa = "f32";
    free(ask(&options, "", &n));
    assert_int_equal(n, 0);
    assert_int_equal(each_file(NULL), 2);
    options.engine.isa = NULL;
    free(ask(&options, "", &n));
    assert_true(n > 250);
    /* A link is not followed, in the directory or as the directory. */
    snprintf(path, sizeof path, "%s/0123456789abcdef.snapshot", dir);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    free(ask(&options, "", &n));
    assert_true(n > 250);
    snprintf(path, sizeof path, "%s-link", dir);
    assert_int_equal(symlink(dir, path), 0);
    options.engine.cache_dir = path;
    calla_error err;
    server *s;
    assert_ok(server_start(&options, &s, &err), &err);
    assert_int_not_equal(server_wait_ready(s, &err), CALLA_OK);
    server_stop(s, 0, &err);
    server_free(s);
    unlink(path);
}

static int64_t total_bytes;
static void add_bytes(const char *path)
{
    struct stat st;
    if (stat(path, &st) == 0) total_bytes += st.st_size;
}

static void files_stay_within_their_budget(void **state)
{
    (void)state;
    server_options options = options_with_dir();
    int64_t n;
    free(ask(&options, "", &n));
    total_bytes = 0;
    each_file(add_bytes);
    int64_t one = total_bytes;
    options.engine.cache_dir_bytes = one * 5 / 2;
    char more[32];
    for (int i = 0; i < 4; i++) {
        snprintf(more, sizeof more, " Number %d.", i);
        free(ask(&options, more, &n));
    }
    total_bytes = 0;
    assert_int_equal(each_file(add_bytes), 2);
    assert_true(total_bytes <= options.engine.cache_dir_bytes);
    free(ask(&options, " Number 3.", &n)); /* the latest is there, the first is not */
    assert_true(n > 250);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_dir, remove_dir)
    const struct CMUnitTest tests[] = {
        TEST(a_prompt_is_known_after_a_restart),
        TEST(what_is_broken_is_not_used),
        TEST(others_files_are_left_alone),
        TEST(files_stay_within_their_budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
