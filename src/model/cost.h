/* What the parts of the model cost at least, whoever computes them: bytes of weights, state and KV
 * that must be moved, and operations on them (a multiply-add counts two). Backends add them up for
 * their profiles. */
#ifndef CALLA_MODEL_COST_H
#define CALLA_MODEL_COST_H

#include "model/weights.h"

/* Kinds of work. A backend that does two of them in one, as decode does convolution and scan, names
 * the time after the second. */
typedef enum operation {
    OP_EMBEDDING,
    OP_NORMS,
    OP_GDN_LAYER, /* where a whole layer is one piece of work */
    OP_ATTENTION_LAYER,
    OP_GDN_PROJECTIONS,
    OP_GDN_CONV, /* convolution and gates */
    OP_GDN_SCAN,
    OP_GDN_OUT,
    OP_ATTENTION_PROJECTIONS,
    OP_ATTENTION,
    OP_ATTENTION_OUT,
    OP_ROUTER,
    OP_EXPERTS,
    OP_SHARED_EXPERT,
    OP_HEAD,
    OP_SAMPLING, /* on a device; on the host it is the engine's */
    OP_OTHER,    /* what is left of whole chunks and steps */
    N_OPERATIONS
} operation;

/* Static storage. */
const char *operation_name(operation op);

typedef struct cost {
    int64_t bytes, operations;
} cost;

/* These add to costs[N_OPERATIONS] what n tokens cost in one layer, or at both ends of the model.
 * Weights are read once for all n. */

/* n_states: recurrent states read and written. */
void cost_add_gdn(cost *costs, const model_config *c, const gdn_weights *w, int64_t n,
                  int64_t n_states);
/* n_seen: the sum of the tokens each one attends to; n_read: tokens whose K and V, of element_bytes
 * each, are read. */
void cost_add_attention(cost *costs, const model_config *c, const attention_weights *w, int64_t n,
                        int64_t n_seen, int64_t n_read, int64_t element_bytes);
/* n_experts: routed experts whose weights are read. */
void cost_add_moe(cost *costs, const model_config *c, const moe_weights *w, int64_t n,
                  int64_t n_experts);
/* n_logits: tokens whose logits are computed. Norms, of all layers, are operations only. */
void cost_add_ends(cost *costs, const model_weights *w, int64_t n, int64_t n_logits);

#endif
