/* Where the time goes, by events between the operations. While the profile is on, a step runs its
 * kernels one by one instead of as a graph: its times are those of kernels that do not overlap. */
#include "cuda/cuda.h"

#include <string.h>

_Static_assert((int)N_OPERATIONS <= (int)BACKEND_MAX_PROFILE, "the engine has room for all");

calla_status cuda_profile_set(backend *b, bool on)
{
    profile *p = &b->profile;
    for (int i = 0; on && i <= MAX_MARKS; i++)
        if (!p->events[i]) TRY_CUDA(b, cudaEventCreate(&p->events[i]), "events", NULL);
    p->on = on;
    p->n_marks = 0;
    memset(p->entries, 0, sizeof p->entries);
    memset(p->costs, 0, sizeof p->costs);
    return CALLA_OK;
}

/* Work without kernels of its own is part of what has its time. */
static void join(calla_profile_entry *entries, operation part, operation whole)
{
    if (entries[part].n_calls > 0) return;
    entries[whole].bytes += entries[part].bytes;
    entries[whole].operations += entries[part].operations;
    entries[part].bytes = entries[part].operations = 0;
}

int32_t cuda_profile_get(const backend *b, calla_profile_entry *entries)
{
    for (int32_t i = 0; i < N_OPERATIONS; i++) {
        entries[i] = b->profile.entries[i];
        entries[i].name = operation_name((operation)i);
        entries[i].bytes = b->profile.costs[i].bytes;
        entries[i].operations = b->profile.costs[i].operations;
    }
    join(entries, OP_GDN_CONV, OP_GDN_SCAN);
    join(entries, OP_SHARED_EXPERT, OP_EXPERTS);
    return N_OPERATIONS;
}

static void record(backend *b, int32_t i)
{
    profile *p = &b->profile;
    cudaError_t status = cudaEventRecord(p->events[i], b->stream);
    if (p->status == cudaSuccess) p->status = status;
}

void cuda_profile_begin(backend *b)
{
    b->profile.n_marks = 0;
    b->profile.status = cudaSuccess;
    if (b->profile.on) record(b, 0);
}

void cuda_profile_mark(backend *b, operation op, int32_t n_kernels)
{
    profile *p = &b->profile;
    if (!p->on) return;
    p->entries[op].n_calls += n_kernels;
    p->entries[op].n_levels += n_kernels; /* one stream: each waits for the one before */
    if (p->n_marks == MAX_MARKS) return;
    p->operations[p->n_marks++] = op;
    record(b, p->n_marks);
}

void cuda_profile_add_levels(backend *b, operation op, int32_t n)
{
    if (b->profile.on) b->profile.entries[op].n_levels += n;
}

calla_status cuda_profile_end(backend *b, calla_error *err)
{
    profile *p = &b->profile;
    if (!p->on || p->n_marks == 0) return CALLA_OK;
    TRY_CUDA(b, p->status, "taking times", err);
    TRY_CUDA(b, cudaEventSynchronize(p->events[p->n_marks]), "taking times", err);
    for (int32_t i = 0; i < p->n_marks; i++) {
        float ms;
        TRY_CUDA(b, cudaEventElapsedTime(&ms, p->events[i], p->events[i + 1]), "taking times", err);
        p->entries[p->operations[i]].ns += (int64_t)((double)ms * 1e6);
    }
    p->n_marks = 0;
    return CALLA_OK;
}

/* ---- what the work costs ---- */

void cuda_profile_count_layer(backend *b, const layer_weights *w, int64_t n, int64_t n_states,
                              int64_t n_seen, int64_t n_read, int64_t n_experts)
{
    const model_config *c = &b->config;
    cost *costs = b->profile.costs;
    if (!b->profile.on) return;
    if (w->is_attention)
        cost_add_attention(costs, c, &w->attention, n, n_seen, n_read, sizeof(uint16_t));
    else
        cost_add_gdn(costs, c, &w->gdn, n, n_states);
    cost_add_moe(costs, c, &w->moe, n, n_experts);
}

void cuda_profile_count_whole_layer(backend *b, const layer_weights *w, int64_t n, int64_t n_seen)
{
    cost *costs = b->profile.costs, before[N_OPERATIONS], sum = {0, 0};
    memcpy(before, costs, sizeof before);
    cuda_profile_count_layer(b, w, n, n, n_seen, n_seen, n * b->config.n_experts_per_token);
    for (int32_t i = 0; i < N_OPERATIONS; i++) {
        sum.bytes += costs[i].bytes - before[i].bytes;
        sum.operations += costs[i].operations - before[i].operations;
    }
    memcpy(costs, before, sizeof before);
    operation op = w->is_attention ? OP_ATTENTION_LAYER : OP_GDN_LAYER;
    costs[op].bytes += sum.bytes;
    costs[op].operations += sum.operations;
}

void cuda_profile_count_ends(backend *b, int64_t n, int64_t n_logits)
{
    if (b->profile.on) cost_add_ends(b->profile.costs, b->weights, n, n_logits);
}
