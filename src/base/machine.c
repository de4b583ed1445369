#include "base/cgroup.h"
#include "base/cpu_features.h"
#include "base/proc_file.h"
#include "base/threads.h"
#include "base/topology.h"

#include <calla/model.h>

#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

static int64_t meminfo_bytes(const char *key)
{
    int64_t kib = proc_file_number("/proc", "meminfo", key);
    return kib > 0 ? kib * 1024 : 0;
}

/* CAP_IPC_LOCK is above the limit. */
static bool may_lock_any_memory(void)
{
    char text[64];
    return proc_file_text("/proc/self", "status", "CapEff", text, sizeof text) &&
           strtoull(text, NULL, 16) >> CAP_IPC_LOCK & 1;
}

static void set_memory(calla_machine_info *info)
{
    cgroup_limits limits;
    struct rlimit lockable;
    cgroup_limits_read("", &limits);
    info->ram_bytes = meminfo_bytes("MemTotal");
    info->ram_available_bytes = meminfo_bytes("MemAvailable");
    /* A container may have less than the machine. */
    if (limits.memory_bytes >= 0 && limits.memory_bytes < info->ram_bytes) {
        info->ram_bytes = limits.memory_bytes;
        info->ram_is_limited = true;
    }
    if (limits.available_bytes >= 0 && limits.available_bytes < info->ram_available_bytes)
        info->ram_available_bytes = limits.available_bytes;
    if (getrlimit(RLIMIT_MEMLOCK, &lockable) == 0)
        info->lockable_bytes =
            lockable.rlim_cur < INT64_MAX ? (int64_t)lockable.rlim_cur : INT64_MAX;
    if (may_lock_any_memory()) info->lockable_bytes = INT64_MAX;
}

static void set_processors(calla_machine_info *info)
{
    cpu_set_t allowed;
    topology t;
    allowed_processors(&allowed);
    topology_read("/sys/devices/system", &allowed, &t);
    info->n_processors = CPU_COUNT(&allowed);
    info->n_nodes = t.n_nodes;
    info->n_node_processors = t.n_processors;
    info->n_node_cores = t.n_cores;
}

void calla_machine_get_info(calla_machine_info *info)
{
    *info = (calla_machine_info){0};
    set_processors(info);
    set_memory(info);
    if (!proc_file_text("/proc", "cpuinfo", "model name", info->cpu, sizeof info->cpu))
        snprintf(info->cpu, sizeof info->cpu, "unknown processor");
    uint32_t features = cpu_features();
    _Static_assert((int)N_CPU_FEATURES <= (int)CALLA_MAX_CPU_FEATURES,
                   "cpu_features[] holds them all");
    for (int i = 0; i < N_CPU_FEATURES; i++) {
        if (features >> i & 1) info->cpu_features[info->n_cpu_features++] = cpu_feature_name(i);
    }
}
