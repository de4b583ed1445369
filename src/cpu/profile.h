/* Where the time of prefill and decode goes, by kind of work. Off, it costs a branch per region. */
#ifndef CALLA_CPU_PROFILE_H
#define CALLA_CPU_PROFILE_H

#include "base/clock.h"
#include "model/cost.h"

typedef struct profile {
    bool on;
    int64_t total_ns, n_runs;                  /* of whole chunks and steps */
    calla_profile_entry entries[N_OPERATIONS]; /* times and calls */
    cost costs[N_OPERATIONS];
} profile;

/* From zero. */
void profile_set(profile *p, bool on);
/* entries [N_OPERATIONS] with their names; returns N_OPERATIONS. */
int32_t profile_get(const profile *p, calla_profile_entry *entries);

/* Time from a start to its stop, of one call. */
static inline int64_t profile_start(const profile *p)
{
    return p->on ? clock_ns() : 0;
}
static inline void profile_stop(profile *p, operation op, int64_t start_ns)
{
    if (!p->on) return;
    p->entries[op].ns += clock_ns() - start_ns;
    p->entries[op].n_calls++;
}
/* The same for a call in which the routed experts did `routed` and the shared one `shared` of the
 * work, row by row of like matrices: the time is split in that proportion. */
void profile_stop_experts(profile *p, int64_t start_ns, int64_t routed, int64_t shared);
/* Of a whole chunk or step. */
static inline void profile_stop_run(profile *p, int64_t start_ns)
{
    if (!p->on) return;
    p->total_ns += clock_ns() - start_ns;
    p->n_runs++;
}

#endif
