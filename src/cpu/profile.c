#include "cpu/cpu.h"

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
        entries[i].name = operation_name((operation)i);
        entries[i].bytes = p->costs[i].bytes;
        entries[i].operations = p->costs[i].operations;
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

void profile_count_gdn(backend *b, const gdn_weights *w, int64_t n, int64_t n_states)
{
    if (!b->profile.on) return;
    cost_add_gdn(b->profile.costs, &b->config, w, n, n_states);
    /* The state is written at the ends of cells. */
    int64_t cells = smaller_of(GDN_CELL, (int32_t)(n / n_states));
    b->profile.costs[OP_GDN_SCAN].bytes -=
        n_states * gdn_state_bytes(&b->config) * (GDN_CELL - cells) / GDN_CELL;
}

void profile_count_attention(backend *b, const attention_weights *w, int64_t n, int64_t n_seen,
                             int64_t n_read)
{
    if (b->profile.on)
        cost_add_attention(b->profile.costs, &b->config, w, n, n_seen, n_read, b->kv_f32 ? 4 : 2);
}

void profile_count_moe(backend *b, const moe_weights *w, int64_t n, int64_t n_experts)
{
    if (b->profile.on) cost_add_moe(b->profile.costs, &b->config, w, n, n_experts);
}

void profile_count_ends(backend *b, int64_t n, int64_t n_logits)
{
    if (b->profile.on) cost_add_ends(b->profile.costs, b->weights, n, n_logits);
}
