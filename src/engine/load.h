/* Bringing the weights into memory when an engine opens: what is best for this machine, and doing
 * it. */
#ifndef CALLA_ENGINE_LOAD_H
#define CALLA_ENGINE_LOAD_H

#include "model/weights.h"

/* Sizes in bytes. */
typedef struct load_facts {
    int64_t weights, every_token; /* all, and those read for every token */
    int64_t other;                /* what the engine takes besides */
    int64_t ram, available;       /* of the machine or control group, now; 0 = not known */
    int64_t lockable;
    bool limited; /* ram is a control group's */
} load_facts;

typedef struct load_decision {
    bool fits;        /* everything at once */
    bool copy;        /* else mapped */
    bool keep_cached; /* copy through the page cache: memory holds both */
    bool warm_all, warm_every_token;
    bool lock; /* the weights read for every token */
} load_decision;

/* CALLA_ERR_MEMORY if a copy is asked for that does not fit, or `other` alone is more than the
 * machine has. */
calla_status load_decide(const load_facts *facts, calla_load load, calla_warm_up warm_up,
                         load_decision *decision, calla_error *err);

/* Decides and does it; warns once if the model does not fit. `other_bytes` is the plan's memory
 * besides the weights; `info` gets its loading fields. */
calla_status engine_load(model_weights *weights, int64_t other_bytes,
                         const calla_engine_options *options, calla_engine_info *info,
                         calla_error *err);

#endif
