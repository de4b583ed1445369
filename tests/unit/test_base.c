/* src/base: errors, memory, strings, files, number formats, random numbers, pools, threads, CPU. */
#include "support/files.h"
#include "support/support.h"

#include "base/block_pool.h"
#include "base/clock.h"
#include "base/cpu_features.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/numbers.h"
#include "base/philox.h"
#include "base/strbuf.h"
#include "base/threads.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Sanitizers abort at an allocation beyond their limit, unless told to fail it as malloc does. */
CALLA_API const char *__asan_default_options(void);
CALLA_API const char *__tsan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}
const char *__tsan_default_options(void)
{
    return "allocator_may_return_null=1";
}

/* ---- errors ---- */

static void test_error(void **state)
{
    (void)state;
    calla_error err;
    assert_int_equal(error_set(&err, CALLA_ERR_INPUT, "%s is %d", "x", 3), CALLA_ERR_INPUT);
    assert_int_equal(err.code, CALLA_ERR_INPUT);
    assert_string_equal(err.message, "x is 3");
    assert_int_equal(error_prefix(&err, "file %d", 7), CALLA_ERR_INPUT);
    assert_string_equal(err.message, "file 7: x is 3");
    assert_int_equal(error_set_errno(&err, CALLA_ERR_IO, ENOENT, "cannot open %s", "y"),
                     CALLA_ERR_IO);
    assert_string_equal(err.message, "cannot open y: No such file or directory");
    assert_int_equal(error_set(NULL, CALLA_ERR_MEMORY, "nobody listens"), CALLA_ERR_MEMORY);
    assert_int_equal(error_set_errno(NULL, CALLA_ERR_IO, ENOENT, "nobody"), CALLA_ERR_IO);
    error_set(&err, CALLA_ERR_INPUT, "a\nb\x1b[31m\x7f\t\xc3\xa9");
    assert_string_equal(err.message, "a?b?[31m??\xc3\xa9");
    error_set(&err, CALLA_ERR_INPUT,
              "a\xc2\x9b\x31m\xc2\xa0"); /* Latin-1's way to begin a sequence */
    assert_string_equal(err.message, "a??1m\xc2\xa0");
    /* Stray and missing continuations, overlong forms, a surrogate, beyond the last character. */
    error_set(&err, CALLA_ERR_INPUT, "%s",
              "\x80 \xc3 \xe2\x82 \xc0\xaf \xe0\x9f\xbf \xf0\x8f\xbf\xbf");
    assert_string_equal(err.message, "? ? ?? ?? ??? ????");
    error_set(&err, CALLA_ERR_INPUT, "%s",
              "\xed\xa0\x80 \xf4\x90\x80\x80 \xff \xed\x9f\xbf\xf4\x8f\xbf\xbf \xe2\x82");
    assert_string_equal(err.message, "??? ???? ? \xed\x9f\xbf\xf4\x8f\xbf\xbf ??");
}

/* A message cut to fit stays UTF-8, wherever the cut falls in a sequence of 2, 3 or 4 bytes. */
static void test_error_truncation(void **state)
{
    (void)state;
    static const char *const characters[] = {"\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"};
    char text[3000];
    for (size_t c = 0; c < 3; c++) {
        size_t n = strlen(characters[c]);
        for (size_t lead = 0; lead < 4; lead++) {
            memset(text, 'x', lead);
            for (size_t i = 0; i < 600; i++) memcpy(text + lead + i * n, characters[c], n + 1);
            calla_error err;
            error_set(&err, CALLA_ERR_INPUT, "%s", text);
            size_t kept = strlen(err.message);
            assert_true(kept <= 1023 && kept > 1023 - n);
            assert_int_equal((kept - lead) % n, 0);
            assert_memory_equal(err.message, text, kept);
        }
    }
}

/* ---- memory ---- */

static void test_memory(void **state)
{
    (void)state;
    calla_error err;
    void *p;
    for (size_t n = 0; n < 200; n += 13) {
        assert_ok(mem_alloc(n, 3, "test", &p, &err), &err);
        assert_int_equal((uintptr_t)p % CALLA_ALIGNMENT, 0);
        for (size_t i = 0; i < 3 * n; i++) assert_int_equal(((char *)p)[i], 0);
        mem_free(p);
    }
    enum { LARGE = 33 << 20 }; /* mapped, not from the heap */
    for (int round = 0; round < 3; round++) {
        assert_ok(mem_alloc(LARGE, 1, "test", &p, &err), &err);
        assert_int_equal((uintptr_t)p % CALLA_ALIGNMENT, 0);
        unsigned char *bytes = p;
        for (size_t i = 0; i < LARGE; i += 4095) {
            assert_int_equal(bytes[i], 0);
            bytes[i] = 1;
        }
        bytes[LARGE - 1] = 1;
        mem_free(p);
    }
    assert_error(mem_alloc(SIZE_MAX, 2, "test", &p, &err), CALLA_ERR_MEMORY, &err, "overflows");
    assert_error(mem_alloc(SIZE_MAX, 1, "test", &p, &err), CALLA_ERR_MEMORY, &err, "overflows");
    assert_error(mem_alloc(SIZE_MAX / 2, 1, "big thing", &p, &err), CALLA_ERR_MEMORY, &err,
                 "big thing: no memory for");
    size_t r;
    assert_true(size_mul(SIZE_MAX / 2, 2, &r));
    assert_false(size_mul(SIZE_MAX / 2 + 1, 2, &r));
    assert_true(size_add(SIZE_MAX - 1, 1, &r));
    assert_false(size_add(SIZE_MAX, 1, &r));
}

static void test_grow(void **state)
{
    (void)state;
    calla_error err;
    void *array = NULL;
    size_t capacity = 0;
    for (size_t n = 1; n < 1000; n++) {
        assert_ok(mem_grow(&array, &capacity, n, sizeof(int), "test", &err), &err);
        assert_true(capacity >= n);
        ((int *)array)[n - 1] = (int)n;
    }
    for (int n = 1; n < 1000; n++) assert_int_equal(((int *)array)[n - 1], n);
    size_t before = capacity;
    assert_error(mem_grow(&array, &capacity, SIZE_MAX, 8, "test", &err), CALLA_ERR_MEMORY, &err,
                 "overflows");
    assert_int_equal(capacity, before);
    free(array);
}

static void test_arena(void **state)
{
    (void)state;
    calla_error err;
    arena a = {0};
    char *p[3];
    for (int pass = 0; pass < 2; pass++) {
        p[0] = arena_take(&a, 1, 1);
        p[1] = arena_take(&a, 100, 4);
        p[2] = arena_take(&a, 0, 4);
        if (pass == 0) {
            assert_null(p[1]);
            assert_int_equal(a.used, 64 + 448);
            assert_ok(arena_allocate(&a, "test", &err), &err);
        }
    }
    assert_ptr_equal(p[1], p[0] + 64);
    assert_ptr_equal(p[2], p[1] + 448);
    assert_int_equal((uintptr_t)p[0] % CALLA_ALIGNMENT, 0);
    arena_free(&a);
    assert_null(a.memory);
    arena_take(&a, SIZE_MAX / 2, 4);
    arena_take(&a, 1, 1);
    assert_error(arena_allocate(&a, "test", &err), CALLA_ERR_MEMORY, &err, "overflows");
}

static void test_strbuf(void **state)
{
    (void)state;
    calla_error err;
    strbuf s = {0};
    char *data;
    size_t n;
    assert_ok(strbuf_take(&s, &data, &n, &err), &err);
    assert_string_equal(data, "");
    free(data);
    strbuf_puts(&s, "abc");
    strbuf_putc(&s, '\0');
    strbuf_append(&s, "xyz", 2);
    strbuf_append(&s, NULL, 0);
    strbuf_printf(&s, "%05d", 42);
    assert_int_equal(s.n, 11);
    assert_memory_equal(s.data, "abc\0xy00042", 12);
    strbuf_clear(&s);
    for (int i = 0; i < 10000; i++) strbuf_printf(&s, "%d,", i % 10);
    assert_ok(strbuf_take(&s, &data, &n, &err), &err);
    assert_int_equal(n, 20000);
    assert_int_equal(strlen(data), 20000);
    assert_null(s.data);
    free(data);
    strbuf_puts(&s, "x");
    strbuf_append(&s, "y", SIZE_MAX - 1); /* cannot fit; nothing is read */
    strbuf_puts(&s, "z");
    assert_true(s.failed);
    assert_error(strbuf_take(&s, &data, &n, &err), CALLA_ERR_MEMORY, &err, "no memory");
}

/* ---- files ---- */

static char *in_dir(const char *dir, const char *name)
{
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static int count_files(const char *dir)
{
    char command[512];
    snprintf(command, sizeof command, "ls -A '%s' | wc -l", dir);
    FILE *f = popen(command, "r");
    int n = -1;
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%d", &n), 1);
    pclose(f);
    return n;
}

static void test_read_files(void **state)
{
    (void)state;
    calla_error err;
    mapped_file map;
    char *data;
    size_t n;
    const char *dir = temporary_dir();
    write_test_file(dir, "a", "hello", 5);
    write_test_file(dir, "empty", "", 0);
    assert_ok(mapped_file_open(in_dir(dir, "a"), &map, &err), &err);
    assert_int_equal(map.n_bytes, 5);
    assert_memory_equal(map.data, "hello", 5);
    mapped_file_close(&map);
    mapped_file_close(&map); /* twice is fine */
    assert_ok(mapped_file_open(in_dir(dir, "empty"), &map, &err), &err);
    assert_null(map.data);
    assert_int_equal(map.n_bytes, 0);
    mapped_file_close(&map);
    assert_error(mapped_file_open(dir, &map, &err), CALLA_ERR_IO, &err, "not a regular file");
    assert_error(mapped_file_open(in_dir(dir, "b"), &map, &err), CALLA_ERR_IO, &err,
                 "/b: No such file");

    assert_ok(file_read(in_dir(dir, "a"), 5, &data, &n, &err), &err);
    assert_int_equal(n, 5);
    assert_string_equal(data, "hello");
    free(data);
    assert_error(file_read(in_dir(dir, "a"), 4, &data, &n, &err), CALLA_ERR_INPUT, &err,
                 "has 5 bytes, more than the 4 allowed");
    assert_error(file_read("/dev/zero", 4, &data, &n, &err), CALLA_ERR_IO, &err,
                 "not a regular file");
    assert_true(file_exists(in_dir(dir, "a")));
    assert_false(file_exists(in_dir(dir, "b")));
    static const char *const joins[][3] = {
        {"d", "n", "d/n"}, {"d/", "n", "d/n"}, {"", "n", "/n"}, {"/", "n", "/n"}};
    for (int i = 0; i < 4; i++) {
        char *path = path_join(joins[i][0], joins[i][1]);
        assert_string_equal(path, joins[i][2]);
        free(path);
    }
}

static void test_write_files(void **state)
{
    (void)state;
    calla_error err;
    file_writer w;
    struct stat st;
    const char *dir = temporary_dir();
    char a[4096];
    strcpy(a, in_dir(dir, "a"));
    mode_t mask = umask(022);
    assert_ok(file_writer_open(&w, a, &err), &err);
    assert_ok(file_writer_write(&w, "one", 3, &err), &err);
    assert_false(file_exists(a));
    assert_ok(file_writer_commit(&w, &err), &err);
    file_writer_abort(&w);
    umask(mask);
    assert_int_equal(stat(a, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0644);
    assert_int_equal(st.st_size, 3);

    assert_ok(file_writer_open(&w, a, &err), &err);
    assert_ok(file_writer_write(&w, "other", 5, &err), &err);
    file_writer_abort(&w);
    file_writer_abort(&w);
    assert_int_equal(stat(a, &st), 0);
    assert_int_equal(st.st_size, 3); /* as before */
    assert_int_equal(count_files(dir), 1);

    assert_ok(file_write(a, "replaced", 8, &err), &err);
    assert_ok(file_copy(a, in_dir(dir, "b"), &err), &err);
    char *copy = read_test_file(in_dir(dir, "b"), NULL);
    assert_string_equal(copy, "replaced");
    free(copy);
    assert_int_equal(count_files(dir), 2);
    assert_error(file_write("/nowhere/x", "", 0, &err), CALLA_ERR_IO, &err,
                 "cannot create a file beside /nowhere/x");
    assert_error(file_copy("/nowhere/x", a, &err), CALLA_ERR_IO, &err, "cannot open /nowhere/x");
    /* The final name is a directory: rename fails, and the temporary file goes. */
    assert_ok(dir_create(in_dir(dir, "d"), &err), &err);
    assert_ok(dir_create(in_dir(dir, "d"), &err), &err);
    assert_error(file_write(in_dir(dir, "d"), "x", 1, &err), CALLA_ERR_IO, &err, "cannot finish");
    assert_int_equal(count_files(dir), 3);
    assert_error(dir_create(a, &err), CALLA_ERR_IO, &err, "cannot create directory");
    uint64_t free_bytes = 0;
    assert_ok(disk_free_bytes(dir, &free_bytes, &err), &err);
    assert_true(free_bytes > 0);
    assert_error(disk_free_bytes("/nowhere", &free_bytes, &err), CALLA_ERR_IO, &err, "/nowhere");
}

/* ---- numbers ---- */

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* The value of a half from its fields. */
static float half_value(uint32_t h)
{
    int exponent = (int)(h >> 10 & 31);
    double m = h & 1023, v;
    if (exponent == 31)
        v = m != 0 ? NAN : INFINITY;
    else if (exponent == 0)
        v = ldexp(m, -24);
    else
        v = ldexp(1024 + m, exponent - 25);
    return (float)(h >> 15 ? -v : v);
}

static void test_every_half(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = f16_to_f32((uint16_t)h), expected = half_value(h);
        if (isnan(expected)) {
            assert_true(isnan(f));
            assert_int_equal(bits_of(f) >> 31, h >> 15);
            uint16_t back = f32_to_f16(f);
            assert_true((back & 0x7c00) == 0x7c00 && (back & 0x3ff) != 0);
            continue;
        }
        if (bits_of(f) != bits_of(expected)) fail_msg("half %04x: %g, not %g", h, f, expected);
        /* An infinity becomes NaN, everything else comes back. */
        uint32_t back = (h & 0x7fff) == 0x7c00 ? h | 0x200 : h;
        assert_int_equal(f32_to_f16(f), back);
    }
}

/* Between every two neighbours: the middle goes to the even one, anything nearer to the nearer. */
static void test_half_rounding(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7bff; h++) {
        float middle = (half_value(h) + half_value(h + 1)) / 2; /* exact in f32 */
        uint32_t even = h + (h & 1);
        assert_int_equal(f32_to_f16(middle), even);
        assert_int_equal(f32_to_f16(-middle), even | 0x8000);
        assert_int_equal(f32_to_f16(nextafterf(middle, 0)), h);
        assert_int_equal(f32_to_f16(nextafterf(middle, INFINITY)), h + 1);
    }
    assert_int_equal(f32_to_f16(65504), 0x7bff);
    assert_int_equal(f32_to_f16(65519.996f), 0x7bff);
    assert_int_equal(f32_to_f16(65520), 0x7bff);
    assert_int_equal(f32_to_f16(-1e30f), 0xfbff);
    assert_int_equal(f32_to_f16(FLT_MAX), 0x7bff);
    assert_int_equal(f32_to_f16(0x1p-149f), 0);
    assert_int_equal(f32_to_f16(-0.0f), 0x8000);
}

static void test_every_bf16(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = bf16_to_f32((uint16_t)h);
        assert_int_equal(bits_of(f), h << 16);
        if (isnan(f)) {
            assert_true(isnan(bf16_to_f32(f32_to_bf16(f))));
            continue;
        }
        assert_int_equal(f32_to_bf16(f), h);
        if ((h & 0x7fff) == 0x7f80) continue; /* nothing above infinity */
        uint32_t middle = h << 16 | 0x8000, low = middle - 1, high = middle + 1;
        float x;
        memcpy(&x, &middle, 4);
        assert_int_equal(f32_to_bf16(x), h + (h & 1));
        memcpy(&x, &low, 4);
        assert_int_equal(f32_to_bf16(x), h);
        memcpy(&x, &high, 4);
        assert_int_equal(f32_to_bf16(x), h + 1);
    }
    /* NaNs whose upper half alone would be an infinity. */
    uint32_t quiet = 0x7f800001;
    float nan;
    memcpy(&nan, &quiet, 4);
    assert_true(isnan(bf16_to_f32(f32_to_bf16(nan))));
    assert_int_equal(f32_to_bf16(FLT_MAX), 0x7f80);
}

/* ---- random numbers ---- */

/* Random123 1.14, tests/kat_vectors, "philox4x32 10". */
static void test_philox(void **state)
{
    (void)state;
    static const struct {
        uint64_t seed, counter, stream;
        uint32_t expected[4];
    } vectors[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822,
         0x85a308d3243f6a88,
         0x0370734413198a2e,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < 3; i++) {
        uint32_t out[4];
        philox4x32(vectors[i].seed, vectors[i].counter, vectors[i].stream, out);
        assert_memory_equal(out, vectors[i].expected, sizeof out);
    }
    assert_true(philox_uniform(0, 0, 0) == (double)(0x6627e8d5e169c58dull >> 11) * 0x1p-53);
    for (uint64_t i = 0; i < 10000; i++) {
        double u = philox_uniform(5, i, 1);
        assert_true(u >= 0 && u < 1);
    }
}

/* ---- pools ---- */

static void test_block_pool(void **state)
{
    (void)state;
    calla_error err;
    block_pool pool;
    bool seen[5] = {false};
    assert_ok(block_pool_init(&pool, 5, &err), &err);
    for (int i = 0; i < 5; i++) {
        int32_t block = block_pool_take(&pool);
        assert_true(block >= 0 && block < 5 && !seen[block]);
        seen[block] = true;
    }
    assert_int_equal(block_pool_take(&pool), -1);
    block_pool_retain(&pool, 3);
    block_pool_release(&pool, 3);
    assert_int_equal(block_pool_take(&pool), -1);
    block_pool_release(&pool, 3);
    assert_int_equal(pool.n_free, 1);
    assert_int_equal(block_pool_take(&pool), 3);
    for (int32_t i = 0; i < 5; i++) block_pool_release(&pool, i);
    assert_int_equal(pool.n_free, 5);
    block_pool_deinit(&pool);
    assert_ok(block_pool_init(&pool, 0, &err), &err);
    assert_int_equal(block_pool_take(&pool), -1);
    block_pool_deinit(&pool);
}

/* Lists that share their blocks: a last one that is written to becomes its list's own. */
static void test_block_list(void **state)
{
    (void)state;
    calla_error err;
    block_pool pool;
    int32_t a[4], b[4], shared, last;
    assert_ok(block_pool_init(&pool, 5, &err), &err);
    assert_ok(block_list_grow(&pool, a, 0, 2, false, &shared, &err), &err);
    assert_int_equal(shared, -1);
    assert_ok(block_list_grow(&pool, a, 2, 0, true, &shared, &err), &err);
    assert_int_equal(shared, -1); /* nobody else holds it */
    block_list_share(&pool, b, a, 2);
    assert_memory_equal(a, b, 2 * sizeof *a);
    last = a[1];
    assert_ok(block_list_grow(&pool, b, 2, 1, false, &shared, &err), &err);
    assert_true(shared == -1 && b[1] == last); /* full: not written to */
    block_list_release(&pool, b, 2, 3);
    assert_ok(block_list_grow(&pool, b, 2, 1, true, &shared, &err), &err);
    assert_true(shared == last && b[1] != last && a[1] == last);
    assert_int_equal(pool.references[last], 1);
    assert_int_equal(pool.n_free, 1);
    assert_error(block_list_grow(&pool, a, 2, 2, true, &shared, &err), CALLA_ERR_MEMORY, &err,
                 "1 of 5 blocks are free, 2 are needed");
    assert_int_equal(pool.n_free, 1);
    block_list_release(&pool, a, 0, 2);
    block_list_release(&pool, b, 0, 3);
    assert_int_equal(pool.n_free, 5);
    block_pool_deinit(&pool);
    assert_error(block_pool_init(&pool, (int64_t)INT32_MAX + 1, &err), CALLA_ERR_MEMORY, &err,
                 "2147483648 blocks");
}

enum { MAX_ITEMS = 5000, MAX_THREADS = 5 };

typedef struct region {
    int64_t grain;
    _Atomic int bad;
    unsigned char count[MAX_ITEMS]; /* of visits; ranges are disjoint, so plain bytes do */
    int calls[MAX_THREADS];
} region;

static void visit(void *context, int64_t begin, int64_t end, int thread)
{
    region *r = context;
    if (begin >= end || begin % r->grain != 0 || thread < 0 || thread >= MAX_THREADS)
        r->bad++;
    else
        r->calls[thread]++;
    for (int64_t i = begin; i < end; i++) r->count[i]++;
}

static void test_threads(void **state)
{
    (void)state;
    static const int64_t sizes[] = {0, 1, 2, 3, 7, 64, 65, 1000, 4999}, grains[] = {1, 3, 64, 9999};
    static region r;
    for (int n_threads = 1; n_threads <= MAX_THREADS; n_threads++) {
        calla_error err;
        thread_pool *pool;
        assert_ok(thread_pool_create(n_threads, &pool, &err), &err);
        assert_int_equal(thread_pool_size(pool), n_threads);
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            for (size_t g = 0; g < sizeof grains / sizeof grains[0]; g++) {
                memset(&r, 0, sizeof r);
                r.grain = grains[g];
                thread_pool_run(pool, sizes[s], grains[g], visit, &r);
                assert_int_equal(r.bad, 0);
                for (int64_t i = 0; i < MAX_ITEMS; i++) assert_int_equal(r.count[i], i < sizes[s]);
                for (int t = 0; t < MAX_THREADS; t++) assert_true(r.calls[t] <= (t < n_threads));
                if (grains[g] == 1 && sizes[s] >= n_threads)
                    for (int t = 0; t < n_threads; t++) assert_int_equal(r.calls[t], 1);
            }
        }
        thread_pool_free(pool);
    }
    thread_pool_free(NULL);
}

/* Workers that have gone to sleep wake up, and ends while others sleep or spin are clean. */
/* Signals meant for the program do not interrupt workers, faults do reach a handler. */
typedef struct signal_check {
    pthread_t caller;
    atomic_int n_workers; /* parts that workers did */
    atomic_bool wrong;
} signal_check;

static void check_signals(void *context, int64_t begin, int64_t end, int thread)
{
    (void)end, (void)thread;
    signal_check *c = context;
    sigset_t blocked;
    pthread_sigmask(SIG_BLOCK, NULL, &blocked);
    bool worker = !pthread_equal(pthread_self(), c->caller);
    if (sigismember(&blocked, SIGINT) != worker || sigismember(&blocked, SIGBUS) ||
        sigismember(&blocked, SIGSEGV))
        atomic_store(&c->wrong, true);
    if (worker) atomic_fetch_add(&c->n_workers, 1);
    /* The caller would do late workers' parts itself: it waits for one. */
    for (int i = 0; begin == 0 && i < PATIENCE_S * 1000 && atomic_load(&c->n_workers) == 0; i++)
        usleep(1000);
}

static void test_worker_signals(void **state)
{
    (void)state;
    calla_error err;
    thread_pool *pool;
    signal_check c = {.caller = pthread_self()};
    assert_ok(thread_pool_create(3, &pool, &err), &err);
    thread_pool_run(pool, 3, 1, check_signals, &c);
    thread_pool_free(pool);
    assert_true(c.n_workers > 0);
    assert_false(c.wrong);
}

static void test_sleeping_threads(void **state)
{
    (void)state;
    static region r;
    calla_error err;
    thread_pool *pool;
    assert_ok(thread_pool_create(3, &pool, &err), &err);
    for (int i = 0; i < 300; i++) {
        memset(&r, 0, sizeof r);
        r.grain = 1;
        if (i % 30 == 0) usleep(3000);
        thread_pool_run(pool, 100, 1, visit, &r);
        for (int k = 0; k < 100; k++) assert_int_equal(r.count[k], 1);
    }
    usleep(3000);
    thread_pool_free(pool);
    for (int i = 0; i < 20; i++) {
        assert_ok(thread_pool_create(4, &pool, &err), &err);
        thread_pool_free(pool);
    }
}

static void test_clock(void **state)
{
    (void)state;
    int64_t before = clock_ns();
    usleep(2000);
    assert_true(clock_ns() - before >= 2000000);
}

/* ---- the machine ---- */

static void test_cpu_features(void **state)
{
    (void)state;
    uint32_t features = cpu_features();
    assert_int_equal(features >> N_CPU_FEATURES, 0);
    assert_int_equal(features, cpu_features());
    for (int i = 0; i < N_CPU_FEATURES; i++)
        for (int k = 0; k < i; k++)
            assert_string_not_equal(cpu_feature_name(i), cpu_feature_name(k));
    assert_string_equal(cpu_feature_name(0), "avx2");
    assert_string_equal(cpu_feature_name(__builtin_ctz(CPU_AVX512VNNI)), "avx512vnni");
    assert_string_equal(cpu_feature_name(__builtin_ctz(CPU_AVX512VBMI)), "avx512vbmi");
    assert_string_equal(cpu_feature_name(__builtin_ctz(CPU_AMX_INT8)), "amx-int8");
    assert_string_equal(cpu_feature_name(__builtin_ctz(CPU_ARM_BF16)), "bf16");
#if defined(__x86_64__)
    __builtin_cpu_init();
    assert_int_equal(!!(features & CPU_AVX2), !!__builtin_cpu_supports("avx2"));
    assert_int_equal(!!(features & CPU_FMA), !!__builtin_cpu_supports("fma"));
    assert_int_equal(!!(features & CPU_AVX512F), !!__builtin_cpu_supports("avx512f"));
    assert_int_equal(!!(features & CPU_AVX512BW), !!__builtin_cpu_supports("avx512bw"));
    assert_int_equal(!!(features & CPU_AVX512DQ), !!__builtin_cpu_supports("avx512dq"));
    assert_int_equal(!!(features & CPU_AVX512VL), !!__builtin_cpu_supports("avx512vl"));
    assert_int_equal(!!(features & CPU_AVX512VBMI), !!__builtin_cpu_supports("avx512vbmi"));
    assert_int_equal(!!(features & CPU_AVX512VNNI), !!__builtin_cpu_supports("avx512vnni"));
    assert_int_equal(features & (CPU_DOTPROD | CPU_I8MM | CPU_ARM_BF16), 0);
#endif
}

static void test_machine_info(void **state)
{
    (void)state;
    calla_machine_info info;
    calla_machine_get_info(&info);
    assert_true(info.cpu[0] != '\0');
    assert_true(info.n_processors >= 1);
    assert_int_equal(info.n_processors, usable_processors());
    assert_true(info.ram_bytes > 0);
    assert_true(info.ram_available_bytes > 0 && info.ram_available_bytes <= info.ram_bytes);
    int32_t n = 0;
    uint32_t features = cpu_features();
    for (int i = 0; i < N_CPU_FEATURES; i++)
        if (features >> i & 1) assert_string_equal(info.cpu_features[n++], cpu_feature_name(i));
    assert_int_equal(info.n_cpu_features, n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_error),
        cmocka_unit_test(test_error_truncation),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_grow),
        cmocka_unit_test(test_arena),
        cmocka_unit_test(test_strbuf),
        cmocka_unit_test(test_read_files),
        cmocka_unit_test(test_write_files),
        cmocka_unit_test(test_every_half),
        cmocka_unit_test(test_half_rounding),
        cmocka_unit_test(test_every_bf16),
        cmocka_unit_test(test_philox),
        cmocka_unit_test(test_block_pool),
        cmocka_unit_test(test_block_list),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_worker_signals),
        cmocka_unit_test(test_sleeping_threads),
        cmocka_unit_test(test_clock),
        cmocka_unit_test(test_cpu_features),
        cmocka_unit_test(test_machine_info),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
