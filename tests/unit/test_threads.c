/* src/base: topology, the choice of the thread count, pinning. `--bench`: what a region costs. */
#include "support/files.h"
#include "support/support.h"

#include "base/clock.h"
#include "base/threads.h"
#include "base/topology.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- a made-up /sys/devices/system ---- */

static void put_siblings(const char *root, int cpu, const char *list)
{
    char name[100];
    snprintf(name, sizeof name, "cpu/cpu%d/topology/thread_siblings_list", cpu);
    put_test_file(root, name, list);
}

static cpu_set_t cpus(const char *list)
{
    cpu_set_t set;
    assert_true(cpu_list_parse(list, &set));
    return set;
}

static void test_cpu_lists(void **state)
{
    (void)state;
    cpu_set_t set = cpus("0-2,5,7-7,1023");
    assert_int_equal(CPU_COUNT(&set), 6);
    for (size_t i = 0; i < CPU_SETSIZE; i++)
        assert_int_equal(!!CPU_ISSET(i, &set), i < 3 || i == 5 || i == 7 || i == 1023);
    set = cpus("");
    assert_int_equal(CPU_COUNT(&set), 0);
    static const char *const bad[] = {"a", "1-", "-1", "3-1", "1,", ",1", "1;2", "1024", "0-1024"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(cpu_list_parse(bad[i], &set));
}

static void assert_processors(const topology *t, int n, const int *expected)
{
    assert_int_equal(t->n_processors, n);
    for (int i = 0; i < n; i++) assert_int_equal(t->processors[i], expected[i]);
}

/* Two sockets of four cores, siblings far apart; a third node has memory alone. */
static const char *two_sockets(void)
{
    const char *root = temporary_dir();
    put_test_file(root, "node/node0/cpulist", "0-3,8-11\n");
    put_test_file(root, "node/node1/cpulist", "4-7,12-15\n");
    put_test_file(root, "node/node2/cpulist", "\n");
    put_test_file(root, "node/node/cpulist", "0\n");
    put_test_file(root, "node/node1x/cpulist", "0-15\n");
    for (int i = 0; i < 16; i++) {
        char list[16];
        snprintf(list, sizeof list, "%d,%d\n", i % 8, i % 8 + 8);
        put_siblings(root, i, list);
    }
    return root;
}

static void test_topology(void **state)
{
    (void)state;
    const char *root = two_sockets();
    topology t;
    cpu_set_t set = cpus("0-15");
    topology_read(root, &set, &t);
    assert_int_equal(t.n_nodes, 2);
    assert_int_equal(t.node, 0);
    assert_int_equal(t.n_cores, 4);
    assert_processors(&t, 8, (const int[]){0, 1, 2, 3, 8, 9, 10, 11});
    /* The node with more cores, not the one with more processors. */
    set = cpus("0-1,8-9,12-14");
    topology_read(root, &set, &t);
    assert_int_equal(t.n_nodes, 2);
    assert_int_equal(t.node, 1);
    assert_int_equal(t.n_cores, 3);
    assert_processors(&t, 3, (const int[]){12, 13, 14});
    /* A core of which only the second sibling is allowed counts. */
    set = cpus("2,3,9,11");
    topology_read(root, &set, &t);
    assert_int_equal(t.n_nodes, 1);
    assert_int_equal(t.n_cores, 3);
    assert_processors(&t, 4, (const int[]){2, 3, 9, 11});
}

static void test_topology_unknown(void **state)
{
    (void)state;
    topology t;
    cpu_set_t set = cpus("3,5");
    topology_read("/nowhere", &set, &t);
    assert_int_equal(t.n_nodes, 1);
    assert_int_equal(t.n_cores, 2);
    assert_processors(&t, 2, (const int[]){3, 5});
    const char *root = temporary_dir();
    put_test_file(root, "node/node0/cpulist", "garbage\n");
    put_siblings(root, 5, "3,5,oops\n");
    topology_read(root, &set, &t);
    assert_int_equal(t.n_cores, 2);
    put_siblings(root, 5, "3-5\n");
    topology_read(root, &set, &t);
    assert_int_equal(t.n_cores, 1);
    assert_processors(&t, 2, (const int[]){3, 5});
}

static void test_topology_choose(void **state)
{
    (void)state;
    topology t;
    cpu_set_t set = cpus("0-15"), chosen;
    topology_read(two_sockets(), &set, &t);
    static const struct {
        int n_threads;
        const char *processors;
    } cases[] = {{1, "0-3"}, {4, "0-3"}, {5, "0-3,8-11"}, {8, "0-3,8-11"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        topology_choose(&t, cases[i].n_threads, &chosen);
        set = cpus(cases[i].processors);
        assert_true(CPU_EQUAL(&chosen, &set));
    }
}

/* ---- how many threads ---- */

static void assert_counts(int n_cores, int n_processors, int most, int n, const int *expected)
{
    topology t = {.n_cores = n_cores, .n_processors = n_processors};
    int counts[MAX_PROBE_RATES];
    assert_int_equal(probe_counts(&t, most, counts), n);
    for (int i = 0; i < n; i++) assert_int_equal(counts[i], expected[i]);
}

static void test_probe_counts(void **state)
{
    (void)state;
    assert_counts(1, 1, 99, 1, (const int[]){1});
    assert_counts(2, 2, 99, 2, (const int[]){2, 1});
    assert_counts(6, 12, 99, 4, (const int[]){12, 6, 3, 1});
    assert_counts(8, 16, 8, 4, (const int[]){8, 4, 2, 1});
    assert_counts(64, 128, 3, 2, (const int[]){3, 1});
    assert_counts(1024, 1024, 2000, 11, (const int[]){1024, 512, 256, 128, 64, 32, 16, 8, 4, 2, 1});
}

static int choose(int n_cores, int n, const probe_rate *rates)
{
    return probe_choose(rates, n, n_cores);
}

static void test_probe_choice(void **state)
{
    (void)state;
    /* Memory at its limit with half the cores: all of them, for the prompts. */
    assert_int_equal(choose(8, 4, (const probe_rate[]){{8, 40}, {4, 41}, {2, 25}, {1, 13}}), 8);
    /* Other programs hold half of the cores, or the memory suffers from the crowd. */
    assert_int_equal(choose(8, 4, (const probe_rate[]){{8, 30}, {4, 41}, {2, 25}, {1, 13}}), 4);
    /* Siblings do not help, help a little, help much. */
    assert_int_equal(choose(4, 3, (const probe_rate[]){{8, 40}, {4, 40}, {2, 20}}), 4);
    assert_int_equal(choose(4, 3, (const probe_rate[]){{8, 43}, {4, 40}, {2, 20}}), 4);
    assert_int_equal(choose(4, 3, (const probe_rate[]){{8, 50}, {4, 40}, {2, 20}}), 8);
    /* In any order; nothing measured, nothing but zeros. */
    assert_int_equal(choose(8, 3, (const probe_rate[]){{1, 10}, {2, 20}, {4, 39}}), 4);
    assert_int_equal(choose(8, 0, NULL), 1);
    assert_int_equal(choose(2, 2, (const probe_rate[]){{2, 0}, {1, 0}}), 2);
}

/* ---- pinning ---- */

static cpu_set_t affinity(void)
{
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    return set;
}

typedef struct seen {
    cpu_set_t sets[3]; /* of the threads that ran parts 0 ... 2 */
    _Atomic int bad;
} seen;

static void note_affinity(void *context, int64_t begin, int64_t end, int thread)
{
    seen *s = context;
    (void)end;
    if (thread > 2 || sched_getaffinity(0, sizeof s->sets[0], &s->sets[begin]) != 0) s->bad++;
}

static void assert_all_on(thread_pool *pool, const cpu_set_t *expected)
{
    for (int round = 0; round < 50; round++) {
        seen s = {.bad = 0};
        thread_pool_run(pool, 3, 1, note_affinity, &s);
        assert_int_equal(s.bad, 0);
        for (int i = 0; i < 3; i++) assert_true(CPU_EQUAL(&s.sets[i], expected));
    }
}

static void test_pinning(void **state)
{
    (void)state;
    cpu_set_t before = affinity(), now, one, again;
    CPU_ZERO(&one);
    for (size_t i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &before)) CPU_SET(i, &one);
    thread_pool *free_pool, *a, *b;
    calla_error err;
    assert_ok(thread_pool_create(3, &free_pool, &err), &err);
    assert_ok(thread_pool_create_pinned(3, &one, &a, &err), &err);
    assert_ok(thread_pool_create_pinned(3, &one, &b, &err), &err);
    assert_all_on(free_pool, &before);
    assert_all_on(a, &one);
    assert_all_on(b, &one);
    /* What the process may use is what it was, and comes back when the last pool goes. */
    allowed_processors(&again);
    assert_true(CPU_EQUAL(&again, &before));
    assert_int_equal(usable_processors(), CPU_COUNT(&before));
    thread_pool_free(a);
    now = affinity();
    assert_true(CPU_EQUAL(&now, &one));
    thread_pool_free(b);
    now = affinity();
    assert_true(CPU_EQUAL(&now, &before));
    thread_pool_free(free_pool);
    /* A pool that never ran, or on processors that are not there, changes nothing. */
    cpu_set_t absent = cpus("1023");
    assert_ok(thread_pool_create_pinned(2, &absent, &a, &err), &err);
    thread_pool_free(a);
    assert_ok(thread_pool_create_pinned(3, &absent, &b, &err), &err);
    seen s = {.bad = 0};
    thread_pool_run(b, 3, 1, note_affinity, &s);
    assert_int_equal(s.bad, 0);
    thread_pool_free(b);
    now = affinity();
    assert_true(CPU_EQUAL(&now, &before));
}

/* ---- --bench ---- */

enum { PART_NS = 3000 };

static void wait_ns(int64_t ns)
{
    for (int64_t end = clock_ns() + ns; clock_ns() < end;) {}
}

static void work(void *context, int64_t begin, int64_t end, int thread)
{
    (void)context, (void)begin, (void)end, (void)thread;
    wait_ns(PART_NS);
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Regions that begin `gap_ns` after the one before has ended: what each takes beyond its parts, of
 * which every thread has one. */
static void bench_gap(thread_pool *pool, int64_t gap_ns)
{
    enum { MOST = 20000 };
    static int64_t over[MOST];
    int n = gap_ns > 100000 ? 200 : MOST;
    for (int i = 0; i < n; i++) {
        if (gap_ns) wait_ns(gap_ns);
        int64_t start = clock_ns();
        thread_pool_run(pool, thread_pool_size(pool), 1, work, NULL);
        over[i] = clock_ns() - start - PART_NS;
    }
    qsort(over, (size_t)n, sizeof over[0], by_value);
    printf("%2d threads, %6.0f us between regions: median %6lld ns, of ten the slowest %7lld ns\n",
           thread_pool_size(pool), (double)gap_ns * 1e-3, (long long)over[n / 2],
           (long long)over[n * 9 / 10]);
}

static int bench(void)
{
    for (int n = 1; n <= usable_processors(); n *= 2) {
        thread_pool *pool;
        if (thread_pool_create(n, &pool, NULL) != CALLA_OK) return 1;
        for (int64_t gap = 0; gap <= 2000000; gap = gap ? gap * 10 : 2000) bench_gap(pool, gap);
        thread_pool_free(pool);
    }
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu_lists),        cmocka_unit_test(test_topology),
        cmocka_unit_test(test_topology_unknown), cmocka_unit_test(test_topology_choose),
        cmocka_unit_test(test_probe_counts),     cmocka_unit_test(test_probe_choice),
        cmocka_unit_test(test_pinning),
    };
    if (argc > 1 && strcmp(argv[1], "--bench") == 0) return bench();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
