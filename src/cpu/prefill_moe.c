/* The MoE of a prefill chunk (MODEL.md 3.8): rows are sorted by expert, each expert multiplies its
 * rows, and every token adds up its experts in the order of its slots, so that its result does not
 * depend on its neighbours. */
#include "cpu/prefill.h"

#include <string.h>

void chunk_moe_take(backend *b, size_t rows)
{
    const model_config *c = &b->config;
    arena *m = &b->scratch.memory;
    prefill_scratch *p = &b->scratch.prefill;
    size_t k = (size_t)c->n_experts_per_token, threads = (size_t)b->options.n_threads;
    size_t experts = (size_t)c->n_experts;
    int32_t width = larger_of(c->expert_width, c->shared_expert_width);
    p->router = take_floats(m, threads * ROUTE_TILE, experts + 1);
    p->route_packed = take(m, threads, 1, packed_bytes_f32(&b->k, ROUTE_TILE, c->hidden_size));
    p->experts = take(m, rows, k, sizeof(int32_t));
    p->weights = take_floats(m, rows, k);
    p->shared_scale = take_floats(m, rows, 1);
    p->position = take(m, rows, k, sizeof(int32_t));
    p->rows = take(m, rows, k + 1, sizeof(int32_t));
    p->offsets = take(m, experts + 2, 1, sizeof(int32_t));
    p->units = take(m, rows * (k + 1) / MOE_TILE + experts + 1, 1, sizeof *p->units);
    p->tile_packed = take(m, threads, 1, packed_bytes(&b->k, MOE_TILE, c->hidden_size));
    p->tile_inner = take(m, threads, 1, packed_bytes(&b->k, MOE_TILE, width));
    if (!b->k.gemm_gated) {
        p->tile_gate = take_floats(m, threads * MOE_TILE, (size_t)width);
        p->tile_up = take_floats(m, threads * MOE_TILE, (size_t)width);
    }
    p->down = take_floats(m, rows * (k + 1), (size_t)c->hidden_size);
}

void chunk_route(chunk *t, int64_t first, int32_t n, const float *u, int thread)
{
    const model_config *c = &t->b->config;
    const cpu_kernels *k = &t->b->k;
    const moe_weights *w = &t->layer->moe;
    int32_t n_experts = c->n_experts, slots = c->n_experts_per_token;
    int64_t stride = n_experts + 1;
    float *logits = t->p->router + (int64_t)thread * ROUTE_TILE * stride;
    unsigned char *packed =
        t->p->route_packed + (size_t)thread * packed_bytes_f32(k, ROUTE_TILE, c->hidden_size);
    k->pack_input_f32(u, c->hidden_size, NULL, n, c->hidden_size, packed);
    k->gemm_f32(&w->router, 0, n_experts, packed, n, logits, stride);
    k->gemm_f32(&w->shared_expert_gate, 0, 1, packed, n, logits + n_experts, stride);
    for (int32_t i = 0; i < n; i++) {
        const float *row = logits + i * stride;
        int32_t *experts = t->p->experts + (first + i) * slots;
        float *weights = t->p->weights + (first + i) * slots;
        k->router_top_k(row, n_experts, slots, experts, weights);
        if (t->b->route)
            t->b->route(t->b->route_user, t->index, t->first + first + i, row, experts, weights);
        t->p->shared_scale[first + i] = sigmoid_finite(row[n_experts]);
    }
}

/* Counting sort of the slots by expert, tokens ascending within one; then the units. */
static void sort_slots(chunk *t)
{
    const model_config *c = &t->b->config;
    prefill_scratch *p = t->p;
    int32_t n_slots = t->n * c->n_experts_per_token, n_experts = c->n_experts;
    memset(p->offsets, 0, (size_t)(n_experts + 2) * sizeof *p->offsets);
    for (int32_t i = 0; i < n_slots; i++) p->offsets[p->experts[i] + 2]++;
    for (int32_t e = 0; e < n_experts; e++) p->offsets[e + 2] += p->offsets[e + 1];
    /* offsets[e + 1] is where expert e's next row goes, and in the end where its rows end. */
    for (int32_t i = 0; i < n_slots; i++) {
        int32_t at = p->offsets[p->experts[i] + 1]++;
        p->position[i] = at;
        p->rows[at] = i / c->n_experts_per_token;
    }
    for (int32_t i = 0; i < t->n; i++) p->rows[n_slots + i] = i;
    p->n_units = 0;
    /* The shared expert's units are the largest and come first: in the end threads wait for small
     * ones. */
    for (int32_t i = 0; i <= n_experts; i++) {
        int32_t e = i == 0 ? n_experts : i - 1;
        int32_t first = e < n_experts ? p->offsets[e] : n_slots;
        int32_t end = e < n_experts ? p->offsets[e + 1] : n_slots + t->n;
        for (; first < end; first += MOE_TILE)
            p->units[p->n_units++] = (expert_unit){e, first, smaller_of(MOE_TILE, end - first)};
    }
}

/* Experts that have rows. */
static int32_t n_chosen(const chunk *t)
{
    int32_t n = 0;
    for (int32_t e = 0; e < t->b->config.n_experts; e++)
        n += t->p->offsets[e + 1] > t->p->offsets[e];
    return n;
}

/* A unit's inputs: of rows packed one by one (prefill.c), each for all its experts, or of u. */
static void pack_unit(chunk *t, const expert_unit *unit, unsigned char *packed)
{
    const cpu_kernels *k = &t->b->k;
    const prefill_scratch *p = t->p;
    int32_t hidden = t->b->config.hidden_size;
    const int32_t *rows = p->rows + unit->first;
    if (k->gather_rows)
        k->gather_rows(p->packed, rows, unit->n, hidden, packed);
    else
        k->pack_input(p->u, hidden, rows, unit->n, hidden, packed);
}

/* `packed` becomes the packed inputs of an expert's down matrix: silu(gate u) * up u. */
static void multiply_inner(chunk *t, const matrix *gate, const matrix *up, const expert_unit *unit,
                           int thread, unsigned char *packed)
{
    const model_config *c = &t->b->config;
    const cpu_kernels *k = &t->b->k;
    prefill_scratch *p = t->p;
    int32_t width = gate->rows, widest = larger_of(c->expert_width, c->shared_expert_width);
    unsigned char *inputs =
        p->tile_packed + (size_t)thread * packed_bytes(k, MOE_TILE, c->hidden_size);
    pack_unit(t, unit, inputs);
    if (k->gemm_gated) {
        k->gemm_gated(gate, up, inputs, unit->n, packed);
        return;
    }
    float *g = p->tile_gate + (size_t)thread * MOE_TILE * (size_t)widest;
    float *u = p->tile_up + (size_t)thread * MOE_TILE * (size_t)widest;
    k->gemm(gate, 0, width, inputs, unit->n, g, width);
    k->gemm(up, 0, width, inputs, unit->n, u, width);
    k->swiglu(g, u, unit->n * width, g);
    k->pack_input(g, width, NULL, unit->n, width, packed);
}

/* One expert's matrices for some of its rows. */
static void multiply_expert(chunk *t, int64_t index, int thread)
{
    const model_config *c = &t->b->config;
    const cpu_kernels *k = &t->b->k;
    prefill_scratch *p = t->p;
    const expert_unit *unit = &p->units[index];
    bool routed = unit->expert < c->n_experts;
    matrix gate =
        routed ? expert_matrix(&t->layer->moe.gate, unit->expert) : t->layer->moe.shared_gate;
    matrix up = routed ? expert_matrix(&t->layer->moe.up, unit->expert) : t->layer->moe.shared_up;
    matrix down =
        routed ? expert_matrix(&t->layer->moe.down, unit->expert) : t->layer->moe.shared_down;
    int32_t widest = larger_of(c->expert_width, c->shared_expert_width);
    unsigned char *inner = p->tile_inner + (size_t)thread * packed_bytes(k, MOE_TILE, widest);
    multiply_inner(t, &gate, &up, unit, thread, inner);
    k->gemm(&down, 0, c->hidden_size, inner, unit->n,
            p->down + (int64_t)unit->first * c->hidden_size, c->hidden_size);
}

static void expert_part(void *context, int64_t begin, int64_t end, int thread)
{
    for (int64_t i = begin; i < end; i++) multiply_expert(context, i, thread);
}

/* The first unit of each expert asks for it. */
static void prefetch_part(void *context, int64_t begin, int64_t end, int thread)
{
    const chunk *t = context;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        int32_t expert = t->p->units[i].expert;
        if (expert < t->b->config.n_experts && (i == 0 || t->p->units[i - 1].expert != expert))
            prefetch_expert(t->b, &t->layer->moe, expert);
    }
}

void chunk_experts(chunk *t)
{
    backend *b = t->b;
    t->experts_start = profile_start(&b->profile);
    sort_slots(t);
    if (!b->weights->resident) thread_pool_run(b->pool, t->p->n_units, 1, prefetch_part, t);
    run_pieces(b->pool, t->p->n_units, 1, expert_part, t);
    profile_count_moe(b, &t->layer->moe, t->n, n_chosen(t));
}

void chunk_add_experts(const chunk *t, int64_t i)
{
    const prefill_scratch *p = t->p;
    const cpu_kernels *k = &t->b->k;
    int32_t hidden = t->b->config.hidden_size, slots = t->b->config.n_experts_per_token;
    const float *rows[MAX_EXPERTS_PER_TOKEN + 1];
    float scales[MAX_EXPERTS_PER_TOKEN + 1];
    for (int32_t s = 0; s < slots; s++) {
        rows[s] = p->down + (int64_t)p->position[i * slots + s] * hidden;
        scales[s] = p->weights[i * slots + s];
    }
    rows[slots] = p->down + ((int64_t)t->n * slots + i) * hidden;
    scales[slots] = p->shared_scale[i];
    k->add_rows(p->x + i * hidden, rows, scales, slots + 1, hidden);
}
