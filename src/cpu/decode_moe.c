/* The MoE of a decode step (MODEL.md 3.8). Rows that chose the same expert read it once. */
#include "cpu/cpu.h"

typedef struct moe_step {
    backend *b;
    decode_scratch *d;
    const moe_weights *w;
    int32_t n, n_groups;
    decode_inputs u;
} moe_step;

static float *row_of(float *rows, int64_t i, int32_t n)
{
    return rows + i * n;
}

/* Rows of the router, then the one of the shared expert's gate. */
static void router_part(void *context, int64_t begin, int64_t end, int thread)
{
    moe_step *t = context;
    (void)thread;
    int32_t n_experts = t->b->config.n_experts;
    float *y[GEMV_MAX_INPUTS];
    for (int32_t i = 0; i < t->n; i++) y[i] = row_of(t->d->router, i, n_experts);
    int32_t to = (int32_t)(end < n_experts ? end : n_experts);
    if (begin < to) t->b->k.gemv_f32(&t->w->router, (int32_t)begin, to, t->u.x, t->n, y);
    if (end <= n_experts) return;
    for (int32_t i = 0; i < t->n; i++) y[i] = t->d->router + (size_t)t->n * (size_t)n_experts + i;
    t->b->k.gemv_f32(&t->w->shared_expert_gate, 0, 1, t->u.x, t->n, y);
}

/* Chooses the experts of every row and collects the rows of each expert. */
static void choose_experts(moe_step *t)
{
    const model_config *c = &t->b->config;
    int32_t k = c->n_experts_per_token;
    t->n_groups = 0;
    for (int32_t i = 0; i < t->n; i++) {
        int32_t *experts = t->d->experts + i * k;
        t->b->k.router_top_k(row_of(t->d->router, i, c->n_experts), c->n_experts, k, experts,
                             t->d->weights + i * k);
        for (int32_t s = 0; s < k; s++) {
            int32_t g = 0;
            while (g < t->n_groups && t->d->groups[g].expert != experts[s]) g++;
            if (g == t->n_groups) t->d->groups[t->n_groups++] = (expert_group){experts[s], 0, {0}};
            expert_group *group = &t->d->groups[g];
            group->slots[group->n++] = i * k + s;
        }
    }
}

static void prefetch_part(void *context, int64_t begin, int64_t end, int thread)
{
    const moe_step *t = context;
    (void)thread;
    for (int64_t g = begin; g < end; g++) prefetch_expert(t->b, t->w, t->d->groups[g].expert);
}

/* 64 inner columns of one expert for its rows: h = silu(gate) * up, rounded. */
static void inner_columns(const moe_step *t, const matrix *gate, const matrix *up, int32_t first,
                          const decode_inputs *in, int32_t n, float *const *g, float *const *u,
                          float *const *h, unsigned char *const *q)
{
    const backend *b = t->b;
    decode_multiply(b, gate, first, first + QUANT_GROUP, in, n, g);
    decode_multiply(b, up, first, first + QUANT_GROUP, in, n, u);
    for (int32_t i = 0; i < n; i++) {
        b->k.swiglu(g[i] + first, u[i] + first, QUANT_GROUP, h[i] + first);
        if (b->k.fast)
            b->k.quantize_input(h[i], gate->rows, first / QUANT_GROUP, first / QUANT_GROUP + 1,
                                q[i]);
    }
}

/* Units of 64 inner columns: of the chosen experts, then of the shared one. */
static void inner_part(void *context, int64_t begin, int64_t end, int thread)
{
    moe_step *t = context;
    (void)thread;
    const model_config *c = &t->b->config;
    decode_scratch *d = t->d;
    int32_t width = c->expert_width, shared = c->shared_expert_width, per = width / QUANT_GROUP;
    for (int64_t unit = begin; unit < end; unit++) {
        decode_inputs in;
        float *g[GEMV_MAX_INPUTS], *u[GEMV_MAX_INPUTS], *h[GEMV_MAX_INPUTS];
        unsigned char *q[GEMV_MAX_INPUTS];
        if (unit >= (int64_t)t->n_groups * per) {
            for (int32_t i = 0; i < t->n; i++) {
                g[i] = row_of(d->shared_gate, i, shared);
                u[i] = row_of(d->shared_up, i, shared);
                h[i] = row_of(d->shared_h, i, shared);
                q[i] = d->shared_q + (size_t)i * quantized_bytes(shared);
            }
            int32_t first = (int32_t)(unit - (int64_t)t->n_groups * per) * QUANT_GROUP;
            inner_columns(t, &t->w->shared_gate, &t->w->shared_up, first, &t->u, t->n, g, u, h, q);
            continue;
        }
        const expert_group *group = &d->groups[unit / per];
        for (int32_t i = 0; i < group->n; i++) {
            int32_t slot = group->slots[i];
            in.x[i] = t->u.x[slot / c->n_experts_per_token];
            in.q[i] = t->u.q[slot / c->n_experts_per_token];
            g[i] = row_of(d->gate, slot, width);
            u[i] = row_of(d->up, slot, width);
            h[i] = row_of(d->h, slot, width);
            q[i] = d->h_q + (size_t)slot * quantized_bytes(width);
        }
        matrix gate = expert_matrix(&t->w->gate, group->expert);
        matrix up = expert_matrix(&t->w->up, group->expert);
        inner_columns(t, &gate, &up, (int32_t)(unit % per) * QUANT_GROUP, &in, group->n, g, u, h,
                      q);
    }
}

static void multiply_down(moe_step *t, int32_t begin, int32_t end)
{
    const model_config *c = &t->b->config;
    decode_scratch *d = t->d;
    decode_inputs in;
    float *y[GEMV_MAX_INPUTS];
    for (int32_t g = 0; g < t->n_groups; g++) {
        const expert_group *group = &d->groups[g];
        for (int32_t i = 0; i < group->n; i++) {
            in.x[i] = row_of(d->h, group->slots[i], c->expert_width);
            in.q[i] = d->h_q + (size_t)group->slots[i] * quantized_bytes(c->expert_width);
            y[i] = row_of(d->down, group->slots[i], c->hidden_size);
        }
        matrix down = expert_matrix(&t->w->down, group->expert);
        decode_multiply(t->b, &down, begin, end, &in, group->n, y);
    }
    for (int32_t i = 0; i < t->n; i++) {
        in.x[i] = row_of(d->shared_h, i, c->shared_expert_width);
        in.q[i] = d->shared_q + (size_t)i * quantized_bytes(c->shared_expert_width);
        y[i] = row_of(d->shared_down, i, c->hidden_size);
    }
    decode_multiply(t->b, &t->w->shared_down, begin, end, &in, t->n, y);
}

/* Rows [begin, end) of x += sum over the slots in their order of weight * down, + the shared one.
 */
static void down_part(void *context, int64_t begin, int64_t end, int thread)
{
    moe_step *t = context;
    (void)thread;
    const model_config *c = &t->b->config;
    decode_scratch *d = t->d;
    int32_t n_rows = (int32_t)(end - begin), k = c->n_experts_per_token;
    multiply_down(t, (int32_t)begin, (int32_t)end);
    for (int32_t i = 0; i < t->n; i++) {
        float *x = row_of(d->x, i, c->hidden_size) + begin;
        for (int32_t s = 0; s < k; s++)
            t->b->k.add_scaled(x, row_of(d->down, i * k + s, c->hidden_size) + begin,
                               d->weights[i * k + s], n_rows);
        float gate = d->router[(size_t)t->n * (size_t)c->n_experts + (size_t)i];
        t->b->k.add_scaled(x, row_of(d->shared_down, i, c->hidden_size) + begin,
                           sigmoid_finite(gate), n_rows);
    }
}

void decode_moe(backend *b, const layer_weights *layer, int32_t n)
{
    const model_config *c = &b->config;
    moe_step t = {.b = b, .d = &b->scratch.decode, .w = &layer->moe, .n = n};
    for (int32_t i = 0; i < n; i++) {
        t.u.x[i] = row_of(t.d->u, i, c->hidden_size);
        t.u.q[i] = t.d->u_q + (size_t)i * quantized_bytes(c->hidden_size);
    }
    int64_t start = profile_start(&b->profile);
    thread_pool_run(b->pool, c->n_experts + 1, 1, router_part, &t);
    choose_experts(&t);
    profile_stop(&b->profile, OP_ROUTER, start);
    int64_t units = (int64_t)t.n_groups * (c->expert_width / QUANT_GROUP) +
                    c->shared_expert_width / QUANT_GROUP;
    start = profile_start(&b->profile);
    if (!b->weights->resident) thread_pool_run(b->pool, t.n_groups, 1, prefetch_part, &t);
    thread_pool_run(b->pool, units, 1, inner_part, &t);
    thread_pool_run(b->pool, c->hidden_size, 16, down_part, &t);
    profile_stop_experts(&b->profile, start, (int64_t)t.n_groups * c->expert_width,
                         c->shared_expert_width);
    profile_count_moe(b, t.w, n, t.n_groups);
}
