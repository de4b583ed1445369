/* Which processors share a core and a memory (NUMA) node, and how many threads are worth having. */
#ifndef CALLA_BASE_TOPOLOGY_H
#define CALLA_BASE_TOPOLOGY_H

#include <sched.h>
#include <stdbool.h>

/* The processors of one memory node that this process may use. */
typedef struct topology {
    int node;         /* number, 0 where the system knows no nodes */
    int n_nodes;      /* that have processors this process may use */
    int n_processors; /* in the node */
    int n_cores;      /* physical cores among them */
    /* The node's processors: the first of each core, ascending, then the others. */
    int processors[CPU_SETSIZE]; /* [n_processors] */
} topology;

/* Reads the folder `system` (/sys/devices/system but for tests), for the processors in `allowed`,
 * which is not empty. The node with most cores is chosen, the lowest of equals. What cannot be read
 * counts as one node, one processor a core. */
void topology_read(const char *system, const cpu_set_t *allowed, topology *t);

/* "0-3,8": false if the text is anything else, or has numbers from CPU_SETSIZE on. */
bool cpu_list_parse(const char *text, cpu_set_t *set);

/* The processors for n threads: one of each core while they suffice, all of the node's else. */
void topology_choose(const topology *t, int n_threads, cpu_set_t *set);

/* ---- the number of threads ---- */

/* Bytes per second that n threads read together. */
typedef struct probe_rate {
    int n_threads;
    double rate;
} probe_rate;

enum { MAX_PROBE_RATES = 16 };

/* The counts worth measuring, descending: all processors if cores have several, all cores, then
 * halves of that. At most `most`. Returns how many. */
int probe_counts(const topology *t, int most, int counts[MAX_PROBE_RATES]);

/* Which of the measured counts to use. Prompts are bound by arithmetic, so the largest count of at
 * most n_cores that reads (nearly) as fast as any; more only if that reads clearly faster. */
int probe_choose(const probe_rate *rates, int n_rates, int n_cores);

#endif
