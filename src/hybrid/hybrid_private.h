/* The inside of a hybrid, for its files. */
#ifndef CALLA_HYBRID_PRIVATE_H
#define CALLA_HYBRID_PRIVATE_H

#include "hybrid/hybrid.h"

#include <pthread.h>

struct hybrid {
    char *model, *policy_path;
    detector *detector;
    consent_table *consents;
    judge *judge;
    audit *audit;
    upstream *upstream;
    hybrid_counts counts;
    pthread_mutex_t lock; /* over policy, the pointer */
    policy *policy;
};

static inline void hybrid_count(atomic_llong *counter, int64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* What both kinds of rows of the audit say of a request. NULL without memory. */
json_t *hybrid_audit_body(const hybrid *h, const hybrid_plan *plan);

#endif
