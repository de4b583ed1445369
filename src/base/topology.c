#include "base/topology.h"

#include "base/proc_file.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NODES = 1024, MAX_LIST = 4096 };

bool cpu_list_parse(const char *text, cpu_set_t *set)
{
    CPU_ZERO(set);
    for (const char *p = text; *p;) {
        char *end;
        long first = strtol(p, &end, 10), last = first;
        if (end == p || first < 0) return false;
        if (*end == '-') {
            p = end + 1;
            last = strtol(p, &end, 10);
            if (end == p) return false;
        }
        if (last < first || last >= CPU_SETSIZE) return false;
        for (long i = first; i <= last; i++) CPU_SET((size_t)i, set);
        if (*end && (*end != ',' || !end[1])) return false;
        p = *end ? end + 1 : end;
    }
    return true;
}

static bool read_list(const char *folder, const char *name, cpu_set_t *set)
{
    char text[MAX_LIST];
    return proc_file_text(folder, name, NULL, text, sizeof text) && cpu_list_parse(text, set);
}

/* Whether `cpu` is the lowest of its core's processors in `set`. */
static bool is_first_of_core(const char *system, int cpu, const cpu_set_t *set)
{
    char folder[4096];
    cpu_set_t siblings;
    snprintf(folder, sizeof folder, "%s/cpu/cpu%d/topology", system, cpu);
    if (!read_list(folder, "thread_siblings_list", &siblings)) return true;
    for (int i = 0; i < cpu; i++)
        if (CPU_ISSET((size_t)i, &siblings) && CPU_ISSET((size_t)i, set)) return false;
    return true;
}

/* Fills everything but n_nodes from the processors in `set`. */
static void take_node(const char *system, int node, const cpu_set_t *set, topology *t)
{
    int others[CPU_SETSIZE], n_others = 0;
    t->node = node;
    t->n_cores = 0;
    for (int i = 0; i < CPU_SETSIZE; i++) {
        if (!CPU_ISSET((size_t)i, set)) continue;
        if (is_first_of_core(system, i, set))
            t->processors[t->n_cores++] = i;
        else
            others[n_others++] = i;
    }
    memcpy(t->processors + t->n_cores, others, (size_t)n_others * sizeof others[0]);
    t->n_processors = t->n_cores + n_others;
}

/* node/node*: their numbers, ascending; returns how many. */
static int list_nodes(const char *system, int nodes[MAX_NODES])
{
    char folder[4096];
    snprintf(folder, sizeof folder, "%s/node", system);
    DIR *dir = opendir(folder);
    bool present[MAX_NODES] = {false};
    for (struct dirent *e; dir && (e = readdir(dir));) {
        int number, end = 0;
        if (sscanf(e->d_name, "node%d%n", &number, &end) == 1 && !e->d_name[end] && number >= 0 &&
            number < MAX_NODES)
            present[number] = true;
    }
    if (dir) closedir(dir);
    int n = 0;
    for (int i = 0; i < MAX_NODES; i++)
        if (present[i]) nodes[n++] = i;
    return n;
}

void topology_read(const char *system, const cpu_set_t *allowed, topology *t)
{
    int nodes[MAX_NODES], n = list_nodes(system, nodes);
    *t = (topology){0};
    for (int i = 0; i < n; i++) {
        char folder[4096];
        cpu_set_t set;
        topology candidate;
        snprintf(folder, sizeof folder, "%s/node/node%d", system, nodes[i]);
        if (!read_list(folder, "cpulist", &set)) continue;
        CPU_AND(&set, &set, allowed);
        if (CPU_COUNT(&set) == 0) continue; /* memory alone, or not for this process */
        take_node(system, nodes[i], &set, &candidate);
        candidate.n_nodes = t->n_nodes + 1;
        if (candidate.n_cores > t->n_cores)
            *t = candidate;
        else
            t->n_nodes = candidate.n_nodes;
    }
    if (t->n_nodes > 0) return;
    take_node(system, 0, allowed, t);
    t->n_nodes = 1;
}

void topology_choose(const topology *t, int n_threads, cpu_set_t *set)
{
    int n = n_threads <= t->n_cores ? t->n_cores : t->n_processors;
    CPU_ZERO(set);
    for (int i = 0; i < n; i++) CPU_SET((size_t)t->processors[i], set);
}

/* ---- the number of threads ---- */

int probe_counts(const topology *t, int most, int counts[MAX_PROBE_RATES])
{
    int n = 0;
    if (t->n_processors > t->n_cores && t->n_processors <= most) counts[n++] = t->n_processors;
    int count = t->n_cores < most ? t->n_cores : most;
    for (; count >= 1 && n < MAX_PROBE_RATES; count /= 2) counts[n++] = count;
    return n;
}

int probe_choose(const probe_rate *rates, int n_rates, int n_cores)
{
    /* Measurements of a few milliseconds vary, another program's turn in one of them is no reason,
     * and a thread too many costs decode nothing. Two threads of one core slow each other's
     * arithmetic: they must gain more. */
    const double nearly = 0.75, clearly = 1.10;
    double best = 0;
    int chosen = 1;
    for (int i = 0; i < n_rates; i++)
        if (rates[i].n_threads <= n_cores && rates[i].rate > best) best = rates[i].rate;
    for (int i = 0; i < n_rates; i++)
        if (rates[i].n_threads <= n_cores && rates[i].rate >= nearly * best &&
            rates[i].n_threads > chosen)
            chosen = rates[i].n_threads;
    for (int i = 0; i < n_rates; i++)
        if (rates[i].n_threads > n_cores && rates[i].rate > clearly * best)
            best = rates[i].rate, chosen = rates[i].n_threads;
    return chosen;
}
