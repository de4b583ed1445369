#include "cpu/cpu.h"

static const char *const names[N_OPERATIONS] = {
    [OP_EMBEDDING] = "embedding",
    [OP_NORMS] = "norms",
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
    [OP_OTHER] = "other",
};
_Static_assert((int)N_OPERATIONS <= (int)BACKEND_MAX_PROFILE, "the engine has room for all");

void profile_set(profile *p, bool on)
{
    *p = (profile){.on = on};
}

int32_t profile_get(const profile *p, calla_profile_entry *entries)
{
    int64_t rest = p->total_ns;
    for (int32_t i = 0; i < N_OPERATIONS; i++) {
        entries[i] = p->entries[i];
        entries[i].name = names[i];
        rest -= entries[i].ns;
    }
    entries[OP_OTHER].ns = rest;
    entries[OP_OTHER].n_calls = p->n_runs;
    return N_OPERATIONS;
}

void profile_stop_experts(profile *p, int64_t start_ns, int64_t routed, int64_t shared)
{
    if (!p->on) return;
    int64_t ns = clock_ns() - start_ns;
    int64_t part = (int64_t)((double)ns * (double)shared / (double)(routed + shared));
    p->entries[OP_EXPERTS].ns += ns - part;
    p->entries[OP_EXPERTS].n_calls++;
    p->entries[OP_SHARED_EXPERT].ns += part;
    p->entries[OP_SHARED_EXPERT].n_calls++;
}

/* ---- what the work costs ---- */

static void add(backend *b, operation op, int64_t bytes, int64_t operations)
{
    b->profile.entries[op].bytes += bytes;
    b->profile.entries[op].operations += operations;
}

/* A matrix read once for n rows. */
static void add_matrix(backend *b, operation op, const matrix *m, int64_t n)
{
    add(b, op, (int64_t)matrix_bytes(m), 2 * n * m->rows * m->cols);
}

void profile_count_gdn(backend *b, const gdn_weights *w, int64_t n, int64_t n_states)
{
    if (!b->profile.on) return;
    const model_config *c = &b->config;
    int64_t state = (int64_t)c->n_value_heads * GDN_HEAD_DIM * GDN_HEAD_DIM;
    add_matrix(b, OP_GDN_PROJECTIONS, &w->qkv, n);
    add_matrix(b, OP_GDN_PROJECTIONS, &w->z, n);
    add_matrix(b, OP_GDN_PROJECTIONS, &w->a, n);
    add_matrix(b, OP_GDN_PROJECTIONS, &w->b, n);
    add(b, OP_GDN_CONV, 0, 2 * n * CONV_TAPS * c->conv_channels);
    add(b, OP_GDN_SCAN, n_states * state * 2 * (int64_t)sizeof(float), 7 * n * state);
    add_matrix(b, OP_GDN_OUT, &w->out, n);
}

void profile_count_attention(backend *b, const attention_weights *w, int64_t n, int64_t n_seen,
                             int64_t n_read)
{
    if (!b->profile.on) return;
    const model_config *c = &b->config;
    add_matrix(b, OP_ATTENTION_PROJECTIONS, &w->q, n);
    add_matrix(b, OP_ATTENTION_PROJECTIONS, &w->k, n);
    add_matrix(b, OP_ATTENTION_PROJECTIONS, &w->v, n);
    add(b, OP_ATTENTION, n_read * 2 * c->kv_size * (b->kv_f32 ? 4 : 2), 4 * n_seen * c->query_size);
    add_matrix(b, OP_ATTENTION_OUT, &w->o, n);
}

void profile_count_moe(backend *b, const moe_weights *w, int64_t n, int64_t n_experts)
{
    if (!b->profile.on) return;
    const matrix *experts[] = {&w->gate.first, &w->up.first, &w->down.first};
    int64_t slots = n * b->config.n_experts_per_token;
    add_matrix(b, OP_ROUTER, &w->router, n);
    add_matrix(b, OP_ROUTER, &w->shared_expert_gate, n);
    for (int i = 0; i < 3; i++)
        add(b, OP_EXPERTS, n_experts * (int64_t)matrix_bytes(experts[i]),
            2 * slots * experts[i]->rows * experts[i]->cols);
    add_matrix(b, OP_SHARED_EXPERT, &w->shared_gate, n);
    add_matrix(b, OP_SHARED_EXPERT, &w->shared_up, n);
    add_matrix(b, OP_SHARED_EXPERT, &w->shared_down, n);
}

void profile_count_ends(backend *b, int64_t n, int64_t n_logits)
{
    if (!b->profile.on) return;
    const model_config *c = &b->config;
    matrix row = matrix_rows(&b->weights->embedding, 0, 1);
    add(b, OP_EMBEDDING, n * (int64_t)matrix_bytes(&row), 0);
    add(b, OP_NORMS, 0, 4 * n * c->hidden_size * (2 * (int64_t)c->n_layers + 1));
    if (n_logits > 0) add_matrix(b, OP_HEAD, &b->weights->head, n_logits);
}
