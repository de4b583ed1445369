/* What the control groups of this process allow it: a container often has less than the machine. */
#ifndef CALLA_BASE_CGROUP_H
#define CALLA_BASE_CGROUP_H

#include <stdint.h>

typedef struct cgroup_limits {
    int64_t memory_bytes;    /* the tightest memory limit of the group and those around it, or -1 */
    int64_t available_bytes; /* what may still be taken below it, or -1: the least over the groups
                                of limit - usage + page cache, which gives way */
    double processors;       /* processor time a second: the tightest quota, or 0 = no quota */
} cgroup_limits;

/* Versions 1 and 2, mounted where they usually are. `root` stands before /proc/self/cgroup and
 * /sys/fs/cgroup ("" but for tests). What cannot be read does not limit. */
void cgroup_limits_read(const char *root, cgroup_limits *limits);

#endif
