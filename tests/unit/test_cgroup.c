/* src/base/cgroup.c on made-up files. */
#include "support/files.h"
#include "support/support.h"

#include "base/cgroup.h"
#include "base/proc_file.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static void assert_limits(const char *root, int64_t memory, int64_t available, double processors)
{
    cgroup_limits l;
    cgroup_limits_read(root, &l);
    assert_int_equal(l.memory_bytes, memory);
    assert_int_equal(l.available_bytes, available);
    assert_float_equal(l.processors, processors, 1e-9);
}

static void test_fields(void **state)
{
    (void)state;
    const char *root = temporary_dir();
    char text[64];
    put_test_file(root, "f",
                  "ab 1\nabc:  12 kB\nb\t7\nbig 99999999999999999999\nnone x\nless -3\n");
    assert_true(proc_file_text(root, "f", "abc", text, sizeof text));
    assert_string_equal(text, "12 kB");
    assert_true(proc_file_text(root, "f", NULL, text, sizeof text));
    assert_string_equal(text, "ab 1");
    assert_false(proc_file_text(root, "f", "a", text, sizeof text));
    assert_false(proc_file_text(root, "absent", NULL, text, sizeof text));
    assert_int_equal(proc_file_number(root, "f", "abc"), 12);
    assert_int_equal(proc_file_number(root, "f", "ab"), 1);
    assert_int_equal(proc_file_number(root, "f", "b"), 7);
    assert_int_equal(proc_file_number(root, "f", "big"), -1);
    assert_int_equal(proc_file_number(root, "f", "none"), -1);
    assert_int_equal(proc_file_number(root, "f", "less"), -1);
}

static void test_none(void **state)
{
    (void)state;
    const char *root = temporary_dir();
    assert_limits(root, -1, -1, 0);
    put_test_file(root, "proc/self/cgroup", "0::/a\n");
    assert_limits(root, -1, -1, 0);
    put_test_file(root, "sys/fs/cgroup/a/memory.max", "max\n");
    put_test_file(root, "sys/fs/cgroup/a/memory.current", "12\n");
    put_test_file(root, "sys/fs/cgroup/a/cpu.max", "max 100000\n");
    assert_limits(root, -1, -1, 0);
}

/* Version 2: the tightest of the group and those around it. */
static void test_unified(void **state)
{
    (void)state;
    const char *root = temporary_dir();
    put_test_file(root, "proc/self/cgroup", "0::/outer/inner\n");
    put_test_file(root, "sys/fs/cgroup/outer/inner/memory.max", "8000\n");
    put_test_file(root, "sys/fs/cgroup/outer/inner/memory.current", "5000\n");
    put_test_file(root, "sys/fs/cgroup/outer/inner/memory.stat",
                  "anon 1000\nfile 4000\nactive_file 2500\ninactive_file 500\n");
    put_test_file(root, "sys/fs/cgroup/outer/inner/cpu.max", "150000 100000\n");
    assert_limits(root, 8000, 8000 - 2000, 1.5);
    /* The outer group is wider, but its other members fill it. */
    put_test_file(root, "sys/fs/cgroup/outer/memory.max", "10000\n");
    put_test_file(root, "sys/fs/cgroup/outer/memory.current", "9000\n");
    put_test_file(root, "sys/fs/cgroup/outer/memory.stat", "active_file 100\ninactive_file 200\n");
    put_test_file(root, "sys/fs/cgroup/outer/cpu.max", "100000 100000\n");
    assert_limits(root, 8000, 10000 - 8700, 1);
    /* Beyond the limit, and without the statistics. */
    put_test_file(root, "sys/fs/cgroup/outer/memory.current", "11000\n");
    assert_limits(root, 8000, 0, 1);
    put_test_file(root, "sys/fs/cgroup/outer/memory.max", "7000\n");
    put_test_file(root, "sys/fs/cgroup/outer/memory.current", "2000\n");
    put_test_file(root, "sys/fs/cgroup/outer/memory.stat", "");
    assert_limits(root, 7000, 5000, 1);
}

/* Version 1: a hierarchy for each controller; "no limit" is a huge number, "no quota" is -1. */
static void test_version_1(void **state)
{
    (void)state;
    const char *root = temporary_dir();
    put_test_file(
        root, "proc/self/cgroup",
        "7:cpuset:/\n4:memory:/box\n2:cpu,cpuacct:/box/x:y\n1:name=systemd:/other\n0::/\n");
    put_test_file(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put_test_file(root, "sys/fs/cgroup/memory/box/memory.limit_in_bytes", "12000\n");
    put_test_file(root, "sys/fs/cgroup/memory/box/memory.usage_in_bytes", "11000\n");
    put_test_file(root, "sys/fs/cgroup/memory/box/memory.stat",
                  "inactive_file 1\ntotal_inactive_file 6000\ntotal_active_file 1500\n");
    put_test_file(root, "sys/fs/cgroup/cpu/box/x:y/cpu.cfs_quota_us", "-1\n");
    put_test_file(root, "sys/fs/cgroup/cpu/box/x:y/cpu.cfs_period_us", "100000\n");
    assert_limits(root, 12000, 12000 - 3500, 0);
    put_test_file(root, "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "250000\n");
    put_test_file(root, "sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000\n");
    assert_limits(root, 12000, 12000 - 3500, 2.5);
}

/* In a container the mount shows the container's own group, whose path is the one outside. */
static void test_container(void **state)
{
    (void)state;
    const char *root = temporary_dir();
    put_test_file(root, "proc/self/cgroup", "0::/docker/0123\n");
    put_test_file(root, "sys/fs/cgroup/memory.max", "4096\n");
    put_test_file(root, "sys/fs/cgroup/memory.current", "96\n");
    assert_limits(root, 4096, 4000, 0);
    put_test_file(root, "proc/self/cgroup", "4:memory:/docker/0123\n");
    put_test_file(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "2048\n");
    put_test_file(root, "sys/fs/cgroup/memory/memory.usage_in_bytes", "48\n");
    assert_limits(root, 2048, 2000, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fields),    cmocka_unit_test(test_none),
        cmocka_unit_test(test_unified),   cmocka_unit_test(test_version_1),
        cmocka_unit_test(test_container),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
