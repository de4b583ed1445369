#include "base/cpu_features.h"
#include "base/threads.h"

#include <calla/model.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The text after "key", blanks and a colon on the first line of `path` that begins so; false if
 * there is none. Files of /proc have no size: they are read as streams. */
static bool read_field(const char *path, const char *key, char *value, size_t n)
{
    FILE *f = fopen(path, "re");
    if (!f) return false;
    char line[512];
    bool found = false;
    while (!found && fgets(line, sizeof line, f)) {
        if (strncmp(line, key, strlen(key)) != 0) continue;
        const char *p = line + strlen(key);
        p += strspn(p, " \t:");
        snprintf(value, n, "%.*s", (int)strcspn(p, "\n"), p);
        found = true;
    }
    fclose(f);
    return found;
}

static int64_t meminfo_bytes(const char *key)
{
    char value[64];
    return read_field("/proc/meminfo", key, value, sizeof value) ? atoll(value) * 1024 : 0;
}

void calla_machine_get_info(calla_machine_info *info)
{
    *info = (calla_machine_info){.n_processors = usable_processors()};
    if (!read_field("/proc/cpuinfo", "model name", info->cpu, sizeof info->cpu))
        snprintf(info->cpu, sizeof info->cpu, "unknown processor");
    uint32_t features = cpu_features();
    _Static_assert((int)N_CPU_FEATURES <= (int)CALLA_MAX_CPU_FEATURES,
                   "cpu_features[] holds them all");
    for (int i = 0; i < N_CPU_FEATURES; i++) {
        if (features >> i & 1) info->cpu_features[info->n_cpu_features++] = cpu_feature_name(i);
    }
    info->ram_bytes = meminfo_bytes("MemTotal");
    info->ram_available_bytes = meminfo_bytes("MemAvailable");
    /* A container may have less than the machine ("max" where it has not). */
    char limit[64];
    int64_t bytes = 0;
    if (read_field("/sys/fs/cgroup/memory.max", "", limit, sizeof limit)) bytes = atoll(limit);
    if (bytes > 0 && bytes < info->ram_bytes) info->ram_bytes = bytes;
    if (info->ram_available_bytes > info->ram_bytes) info->ram_available_bytes = info->ram_bytes;
}
