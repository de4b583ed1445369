/* Where the time goes, by events between the operations. While the profile is on, a step runs its
 * kernels one by one instead of as a graph: its times are those of kernels that do not overlap. */
#include "cuda/cuda.h"

static const char *const names[N_OPERATIONS] = {
    [OP_EMBEDDING] = "embedding",
    [OP_NORMS] = "norms",
    [OP_GDN_PROJECTIONS] = "gdn projections",
    [OP_GDN_MIX] = "gdn conv, scan",
    [OP_GDN_OUT] = "gdn output",
    [OP_ATTENTION_PROJECTIONS] = "attention projections",
    [OP_ATTENTION] = "attention",
    [OP_ATTENTION_OUT] = "attention output",
    [OP_ROUTER] = "router",
    [OP_EXPERTS] = "experts",
    [OP_SHARED_EXPERT] = "shared expert",
    [OP_HEAD] = "head",
    [OP_SAMPLING] = "sampling on the device",
    [OP_OTHER] = "other",
};
_Static_assert((int)N_OPERATIONS <= (int)BACKEND_MAX_PROFILE, "the engine has room for all");

calla_status cuda_profile_set(backend *b, bool on)
{
    profile *p = &b->profile;
    for (int i = 0; on && !p->have_events && i <= MAX_MARKS; i++)
        TRY_CUDA(b, cudaEventCreate(&p->events[i]), "events", NULL);
    p->have_events |= on;
    p->on = on;
    p->n_marks = 0;
    for (int i = 0; i < N_OPERATIONS; i++) p->entries[i] = (calla_profile_entry){.name = names[i]};
    return CALLA_OK;
}

int32_t cuda_profile_get(const backend *b, calla_profile_entry *entries)
{
    for (int32_t i = 0; i < N_OPERATIONS; i++) entries[i] = b->profile.entries[i];
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

static void count_gdn(backend *b, const gdn_weights *w, int64_t n, int64_t n_states)
{
    const model_config *c = &b->config;
    int64_t state = (int64_t)c->n_value_heads * GDN_HEAD_DIM * GDN_HEAD_DIM;
    const matrix *in[] = {&w->qkv, &w->z, &w->a, &w->b};
    for (int i = 0; i < 4; i++) add_matrix(b, OP_GDN_PROJECTIONS, in[i], n);
    add(b, OP_GDN_MIX, n_states * state * 2 * (int64_t)sizeof(float),
        n * (7 * state + (int64_t)2 * CONV_TAPS * c->conv_channels));
    add_matrix(b, OP_GDN_OUT, &w->out, n);
}

static void count_attention(backend *b, const attention_weights *w, int64_t n, int64_t n_seen,
                            int64_t n_read)
{
    const model_config *c = &b->config;
    const matrix *in[] = {&w->q, &w->k, &w->v};
    for (int i = 0; i < 3; i++) add_matrix(b, OP_ATTENTION_PROJECTIONS, in[i], n);
    add(b, OP_ATTENTION, n_read * 2 * c->kv_size * (int64_t)sizeof(uint16_t),
        4 * n_seen * c->query_size);
    add_matrix(b, OP_ATTENTION_OUT, &w->o, n);
}

void cuda_profile_count_layer(backend *b, const layer_weights *w, int64_t n, int64_t n_states,
                              int64_t n_seen, int64_t n_read, int64_t n_experts)
{
    const moe_weights *m = &w->moe;
    const matrix *experts[] = {&m->gate.first, &m->up.first, &m->down.first};
    const matrix *shared[] = {&m->shared_gate, &m->shared_up, &m->shared_down};
    int64_t slots = n * b->config.n_experts_per_token;
    if (!b->profile.on) return;
    if (w->is_attention)
        count_attention(b, &w->attention, n, n_seen, n_read);
    else
        count_gdn(b, &w->gdn, n, n_states);
    add_matrix(b, OP_ROUTER, &m->router, n);
    add_matrix(b, OP_ROUTER, &m->shared_expert_gate, n);
    for (int i = 0; i < 3; i++) {
        add(b, OP_EXPERTS, n_experts * (int64_t)matrix_bytes(experts[i]),
            2 * slots * experts[i]->rows * experts[i]->cols);
        add_matrix(b, OP_EXPERTS, shared[i], n);
    }
}

void cuda_profile_count_ends(backend *b, int64_t n, int64_t n_logits)
{
    if (!b->profile.on) return;
    matrix row = matrix_rows(&b->weights->embedding, 0, 1);
    add(b, OP_EMBEDDING, n * (int64_t)matrix_bytes(&row), 0);
    add(b, OP_NORMS, 0, 4 * n * b->config.hidden_size * (2 * (int64_t)b->config.n_layers + 1));
    if (n_logits > 0) add_matrix(b, OP_HEAD, &b->weights->head, n_logits);
}
