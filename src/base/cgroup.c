#include "base/cgroup.h"

#include "base/proc_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_PATH = 4096 };

/* A hierarchy: where it is mounted, how its files are called. */
typedef struct hierarchy {
    const char *controller; /* in /proc/self/cgroup; "" is version 2 */
    const char *mounts[2];  /* below root, the first that is there */
} hierarchy;

static const hierarchy unified = {"", {"/sys/fs/cgroup", NULL}};
static const hierarchy memory_v1 = {"memory", {"/sys/fs/cgroup/memory", NULL}};
static const hierarchy cpu_v1 = {"cpu", {"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"}};

/* Whether `name` is an item of the comma-separated list [list, end). */
static bool is_listed(const char *list, const char *end, const char *name)
{
    size_t n = strlen(name);
    while (list < end) {
        const char *stop = memchr(list, ',', (size_t)(end - list));
        if (!stop) stop = end;
        if ((size_t)(stop - list) == n && memcmp(list, name, n) == 0) return true;
        list = stop + 1;
    }
    return false;
}

/* The process's group in a hierarchy, "/" or "/a/b": lines are "number:controllers:path". */
static bool find_group(const char *root, const hierarchy *h, char group[MAX_PATH])
{
    char path[MAX_PATH], line[MAX_PATH];
    if (snprintf(path, sizeof path, "%s/proc/self/cgroup", root) >= MAX_PATH) return false;
    FILE *f = fopen(path, "re");
    bool found = false;
    while (f && !found && fgets(line, sizeof line, f)) {
        char *list = strchr(line, ':'), *end = list ? strchr(list + 1, ':') : NULL;
        if (!end) continue;
        list++;
        found = *h->controller ? is_listed(list, end, h->controller) : list == end;
        end[1 + strcspn(end + 1, "\n")] = '\0';
        if (found) strcpy(group, end + 1);
    }
    if (f) fclose(f);
    return found;
}

/* The folder of the group. A container may see its own group as the mount's root while
 * /proc/self/cgroup tells the path outside: then the mount itself is meant. */
static bool find_folder(const char *root, const hierarchy *h, char *folder, size_t *n_mount)
{
    char group[MAX_PATH];
    struct stat st;
    if (!find_group(root, h, group)) return false;
    for (int i = 0; i < 2 && h->mounts[i]; i++) {
        int n = snprintf(folder, MAX_PATH, "%s%s", root, h->mounts[i]);
        if (n >= MAX_PATH || stat(folder, &st) != 0) continue;
        *n_mount = (size_t)n;
        n = snprintf(folder + *n_mount, MAX_PATH - *n_mount, "%s", group);
        if ((size_t)n >= MAX_PATH - *n_mount || stat(folder, &st) != 0) folder[*n_mount] = '\0';
        return true;
    }
    return false;
}

static void keep_least(int64_t *least, int64_t value)
{
    if (*least < 0 || value < *least) *least = value;
}

static void note_memory(cgroup_limits *l, int64_t limit, int64_t usage, int64_t cache)
{
    if (limit < 0 || limit >= INT64_MAX / 2) return; /* version 1 writes a huge number for none */
    keep_least(&l->memory_bytes, limit);
    int64_t left = limit - (usage > cache ? usage - cache : 0);
    keep_least(&l->available_bytes, left > 0 ? left : 0);
}

static void note_quota(cgroup_limits *l, int64_t quota, int64_t period)
{
    if (quota <= 0 || period <= 0) return;
    double processors = (double)quota / (double)period;
    if (l->processors == 0 || processors < l->processors) l->processors = processors;
}

static int64_t sum_if_known(int64_t a, int64_t b)
{
    return (a > 0 ? a : 0) + (b > 0 ? b : 0);
}

static void read_unified(const char *folder, cgroup_limits *l)
{
    char text[64];
    int64_t usage = proc_file_number(folder, "memory.current", NULL);
    int64_t cache = sum_if_known(proc_file_number(folder, "memory.stat", "active_file"),
                                 proc_file_number(folder, "memory.stat", "inactive_file"));
    note_memory(l, proc_file_number(folder, "memory.max", NULL), usage, cache);
    if (!proc_file_text(folder, "cpu.max", NULL, text, sizeof text)) return;
    char *period = strchr(text, ' ');
    if (period) note_quota(l, atoll(text), atoll(period)); /* "max 100000": atoll gives 0 */
}

static void read_memory_v1(const char *folder, cgroup_limits *l)
{
    int64_t cache = sum_if_known(proc_file_number(folder, "memory.stat", "total_active_file"),
                                 proc_file_number(folder, "memory.stat", "total_inactive_file"));
    note_memory(l, proc_file_number(folder, "memory.limit_in_bytes", NULL),
                proc_file_number(folder, "memory.usage_in_bytes", NULL), cache);
}

static void read_cpu_v1(const char *folder, cgroup_limits *l)
{
    note_quota(l, proc_file_number(folder, "cpu.cfs_quota_us", NULL),
               proc_file_number(folder, "cpu.cfs_period_us", NULL));
}

/* From the group up to the mount: each group's limit holds for all below it. */
static void walk(const char *root, const hierarchy *h,
                 void (*read)(const char *folder, cgroup_limits *l), cgroup_limits *l)
{
    char folder[MAX_PATH];
    size_t n_mount;
    if (!find_folder(root, h, folder, &n_mount)) return;
    for (;;) {
        read(folder, l);
        char *slash = strrchr(folder, '/');
        if (strlen(folder) <= n_mount || !slash) return;
        *slash = '\0';
    }
}

void cgroup_limits_read(const char *root, cgroup_limits *limits)
{
    *limits = (cgroup_limits){.memory_bytes = -1, .available_bytes = -1};
    walk(root, &unified, read_unified, limits);
    walk(root, &memory_v1, read_memory_v1, limits);
    walk(root, &cpu_v1, read_cpu_v1, limits);
}
