#include "model/cost.h"

static const char *const names[N_OPERATIONS] = {
    [OP_EMBEDDING] = "embedding",
    [OP_NORMS] = "norms",
    [OP_GDN_LAYER] = "gdn layers",
    [OP_ATTENTION_LAYER] = "attention layers",
    [OP_GDN_PROJECTIONS] = "gdn projections",
    [OP_GDN_CONV] = "gdn conv, gates",
    [OP_GDN_SCAN] = "gdn scan",
    [OP_GDN_OUT] = "gdn output",
    [OP_ATTENTION_PROJECTIONS] = "attention projections",
    [OP_ATTENTION] = "attention",
    [OP_ATTENTION_OUT] = "attention output",
    [OP_ROUTER] = "router",
    [OP_EXPERTS] = "routed experts",
    [OP_SHARED_EXPERT] = "shared expert",
    [OP_HEAD] = "head",
    [OP_SAMPLING] = "sampling on the device",
    [OP_OTHER] = "other",
};

const char *operation_name(operation op)
{
    return names[op];
}

static void add(cost *costs, operation op, int64_t bytes, int64_t operations)
{
    costs[op].bytes += bytes;
    costs[op].operations += operations;
}

/* A matrix read once for n rows. */
static void add_matrix(cost *costs, operation op, const matrix *m, int64_t n)
{
    add(costs, op, (int64_t)matrix_bytes(m), 2 * n * m->rows * m->cols);
}

void cost_add_gdn(cost *costs, const model_config *c, const gdn_weights *w, int64_t n,
                  int64_t n_states)
{
    int64_t state = (int64_t)c->n_value_heads * GDN_HEAD_DIM * GDN_HEAD_DIM;
    const matrix *in[] = {&w->qkv, &w->z, &w->a, &w->b};
    for (int i = 0; i < 4; i++) add_matrix(costs, OP_GDN_PROJECTIONS, in[i], n);
    add(costs, OP_GDN_CONV, 0, 2 * n * CONV_TAPS * c->conv_channels);
    add(costs, OP_GDN_SCAN, n_states * state * 2 * (int64_t)sizeof(float), 7 * n * state);
    add_matrix(costs, OP_GDN_OUT, &w->out, n);
}

void cost_add_attention(cost *costs, const model_config *c, const attention_weights *w, int64_t n,
                        int64_t n_seen, int64_t n_read, int64_t element_bytes)
{
    const matrix *in[] = {&w->q, &w->k, &w->v};
    for (int i = 0; i < 3; i++) add_matrix(costs, OP_ATTENTION_PROJECTIONS, in[i], n);
    add(costs, OP_ATTENTION, n_read * 2 * c->kv_size * element_bytes, 4 * n_seen * c->query_size);
    add_matrix(costs, OP_ATTENTION_OUT, &w->o, n);
}

void cost_add_moe(cost *costs, const model_config *c, const moe_weights *w, int64_t n,
                  int64_t n_experts)
{
    const matrix *experts[] = {&w->gate.first, &w->up.first, &w->down.first};
    const matrix *shared[] = {&w->shared_gate, &w->shared_up, &w->shared_down};
    int64_t slots = n * c->n_experts_per_token;
    add_matrix(costs, OP_ROUTER, &w->router, n);
    add_matrix(costs, OP_ROUTER, &w->shared_expert_gate, n);
    for (int i = 0; i < 3; i++) {
        add(costs, OP_EXPERTS, n_experts * (int64_t)matrix_bytes(experts[i]),
            2 * slots * experts[i]->rows * experts[i]->cols);
        add_matrix(costs, OP_SHARED_EXPERT, shared[i], n);
    }
}

void cost_add_ends(cost *costs, const model_weights *w, int64_t n, int64_t n_logits)
{
    const model_config *c = &w->config;
    matrix row = matrix_rows(&w->embedding, 0, 1);
    add(costs, OP_EMBEDDING, n * (int64_t)matrix_bytes(&row), 0);
    add(costs, OP_NORMS, 0, 4 * n * c->hidden_size * (2 * (int64_t)c->n_layers + 1));
    if (n_logits > 0) add_matrix(costs, OP_HEAD, &w->head, n_logits);
}
