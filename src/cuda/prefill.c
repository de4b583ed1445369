/* A chunk of a prompt: up to prefill_chunk tokens of one sequence, layer by layer. A token's
 * results do not depend on the chunk (prefill_kernels.cuh). The host runs at most two layers ahead
 * of the device, so that cancelling takes effect soon. */
#include "cuda/cuda.h"

#include <assert.h>
#include <string.h>

static void mixer_scratch_take(backend *b)
{
    const model_config *c = &b->config;
    device_arena *m = &b->scratch_memory;
    prefill_scratch *p = &b->p;
    size_t rows = (size_t)chunk_rows(b), half = sizeof(uint16_t);
    p->projected = device_floats(m, rows, (size_t)b->widest_in);
    p->mixed = device_take(m, rows, (size_t)split_halves(b->widest_out), half);
    p->f = device_floats(m, rows, (size_t)c->conv_channels);
    p->o = device_floats(m, rows, (size_t)c->value_size);
    p->decay = device_floats(m, rows, (size_t)c->n_value_heads);
    p->beta = device_floats(m, rows, (size_t)c->n_value_heads);
    p->workspace =
        device_take(m, (size_t)prefill_gdn_workspace_bytes(c->n_key_heads, c->n_value_heads), 1, 1);
    p->q = device_take(m, rows, (size_t)c->query_size, half);
}

static void experts_scratch_take(backend *b)
{
    const model_config *c = &b->config;
    device_arena *m = &b->scratch_memory;
    prefill_scratch *p = &b->p;
    size_t rows = (size_t)chunk_rows(b), hidden = (size_t)c->hidden_size;
    size_t k = (size_t)c->n_experts_per_token, half = sizeof(uint16_t);
    size_t slots = rows * (k + shared_is_alike(c));
    p->router = device_floats(m, rows, (size_t)c->n_experts + 1);
    p->experts = device_take(m, rows, k, sizeof(int32_t));
    p->weights = device_floats(m, rows, k);
    p->shared_scale = device_floats(m, rows, 1);
    void *plan = device_take(
        m, (size_t)prefill_moe_plan_bytes((int32_t)rows, c->n_experts, c->n_experts_per_token), 1,
        1);
    prefill_moe_plan_init(&p->plan, plan, (int32_t)rows, c->n_experts, c->n_experts_per_token,
                          shared_is_alike(c));
    p->h = device_take(m, slots, (size_t)split_halves(c->expert_width), half);
    p->down = device_floats(m, slots, hidden);
    if (!shared_is_alike(c)) {
        p->shared_h = device_take(m, rows, (size_t)split_halves(c->shared_expert_width), half);
        p->shared_down = device_floats(m, rows, hidden);
    }
}

static void head_scratch_take(backend *b)
{
    b->p.logits = device_floats(&b->scratch_memory, LOGITS_ROWS, (size_t)b->config.n_vocab);
}

/* Of the largest input of a product. */
static size_t most_rounded_bytes(const backend *b)
{
    const model_config *c = &b->config;
    const int64_t rows = chunk_rows(b),
                  slots = rows * (c->n_experts_per_token + shared_is_alike(c));
    const size_t of[] = {prefill_rounded_bytes(&b->device, rows, c->hidden_size),
                         prefill_rounded_bytes(&b->device, rows, b->widest_out),
                         prefill_rounded_bytes(&b->device, rows, c->shared_expert_width),
                         prefill_rounded_bytes(&b->device, slots, c->expert_width)};
    size_t most = 0;
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        if (of[i] > most) most = of[i];
    return most;
}

void cuda_prefill_scratch_take(backend *b)
{
    /* Which use the same memory in turn. */
    void (*const parts[])(backend *) = {mixer_scratch_take, experts_scratch_take,
                                        head_scratch_take};
    const model_config *c = &b->config;
    device_arena *m = &b->scratch_memory;
    prefill_scratch *p = &b->p;
    size_t rows = (size_t)chunk_rows(b), hidden = (size_t)c->hidden_size;
    p->tokens = device_take(m, rows, 1, sizeof(int32_t));
    p->x = device_floats(m, rows, hidden);
    p->u32 = device_floats(m, rows, hidden);
    p->split = device_take(m, rows, (size_t)split_halves(c->hidden_size), sizeof(uint16_t));
    p->group_sums = device_floats(m, rows, (size_t)group_sums_pitch(c->hidden_size));
    p->cosines = device_floats(m, rows, ROTARY_PAIRS);
    p->sines = device_floats(m, rows, ROTARY_PAIRS);
    p->bad_layer = device_take(m, rows, 1, sizeof(int32_t));
    p->frequencies = device_take(m, ROTARY_PAIRS, 1, sizeof(double));
    p->rounded = device_take(m, most_rounded_bytes(b), 1, 1);
    size_t begin = m->used, end = begin;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        m->used = begin;
        parts[i](b);
        if (m->used > end) end = m->used;
    }
    m->used = end;
}

/* Rows first ... first + n of a chunk's recurrence: from one state to another. */
typedef struct piece {
    int32_t first, n, from, to; /* `from` undefined at position 0 */
} piece;

typedef struct chunk {
    backend *b;
    int32_t n;       /* rows */
    int32_t n_again; /* of them, the first, were run before */
    int64_t first;   /* position of the first row */
    int32_t table;   /* the sequence's row of the block tables */
    piece pieces[2]; /* the recurrence's */
    int32_t n_pieces;
    const device_layer *layer;
    calla_error *err;
} chunk;

#define TRY_CHUNK(t, call) TRY_CUDA((t)->b, call, "prefill", (t)->err)

/* C does not know how long a __half is. */
static __half *halves_at(__half *p, size_t i)
{
    return (__half *)(void *)((uint16_t *)(void *)p + i);
}

/* y (as `output` says) = W x, for n rows of x, which are as long as W's. */
static calla_status multiply(chunk *t, const device_matrix *m, const __half *x, int32_t n,
                             prefill_gemm_output output, void *y, int64_t ldy)
{
    prefill_gemm_args a = {.w = m->w,
                           .factors = m->factors,
                           .x = x,
                           .ldx = split_halves(m->w.cols),
                           .n_rows = n,
                           .n_inputs = n,
                           .rounded = t->b->p.rounded,
                           .output = output,
                           .y = y,
                           .ldy = ldy};
    TRY_CHUNK(t, prefill_gemm(&t->b->device, &a, t->b->stream));
    return CALLA_OK;
}

/* u = norm(x), and for the router the sums of its groups; all of the chunk. */
static calla_status norm(chunk *t, const float *factor, bool sums, int32_t layer)
{
    prefill_scratch *p = &t->b->p;
    TRY_CHUNK(t, prefill_rmsnorm(p->x, factor, t->n, t->b->config.hidden_size, t->b->config.rms_eps,
                                 p->split, sums ? p->group_sums : NULL, p->bad_layer, layer,
                                 t->b->stream));
    cuda_profile_mark(t->b, OP_NORMS, 1);
    return CALLA_OK;
}

/* ---- mixers ---- */

/* The recurrence of some rows. */
static calla_status gdn_piece(chunk *t, const piece *r)
{
    backend *b = t->b;
    const model_config *c = &b->config;
    const device_layer *l = t->layer;
    prefill_scratch *p = &b->p;
    size_t at = (size_t)l->mixer_index * b->store.view.layer_floats, row = (size_t)r->first;
    float *from = cuda_store_state(b, r->from) + at, *to = cuda_store_state(b, r->to) + at;
    prefill_gdn_args a = {.n_tokens = r->n,
                          .n_key_heads = c->n_key_heads,
                          .n_value_heads = c->n_value_heads,
                          .first = t->first + r->first,
                          .projected = p->projected + row * (size_t)l->in.w.rows,
                          .projected_stride = l->in.w.rows,
                          .taps = l->taps,
                          .neg_exp_a = l->neg_exp_a,
                          .dt_bias = l->dt_bias,
                          .norm_factor = l->gdn_norm,
                          .eps = c->rms_eps,
                          .window_in = from + b->store.view.window_offset,
                          .window_out = to + b->store.view.window_offset,
                          .state_in = from,
                          .state_out = to,
                          .f = p->f + row * (size_t)c->conv_channels,
                          .decay = p->decay + row * (size_t)c->n_value_heads,
                          .beta = p->beta + row * (size_t)c->n_value_heads,
                          .o = p->o + row * (size_t)c->value_size,
                          .mixed = halves_at(p->mixed, row * (size_t)split_halves(c->value_size)),
                          .workspace = p->workspace};
    TRY_CHUNK(t, prefill_gdn_convolve(&b->device, &a, b->stream));
    cuda_profile_mark(b, OP_GDN_CONV, 1);
    TRY_CHUNK(t, prefill_gdn_scan(&b->device, &a, b->stream));
    TRY_CHUNK(t, prefill_gdn_gated_norm(&a, b->stream));
    cuda_profile_mark(b, OP_GDN_SCAN, 3);
    return CALLA_OK;
}

static calla_status gdn_mixer(chunk *t)
{
    for (int32_t i = 0; i < t->n_pieces; i++) CALLA_TRY(gdn_piece(t, &t->pieces[i]));
    return CALLA_OK;
}

static calla_status attention_mixer(chunk *t)
{
    backend *b = t->b;
    const model_config *c = &b->config;
    const device_layer *l = t->layer;
    prefill_scratch *p = &b->p;
    const store_view *v = &b->store.view;
    const int64_t head = (int64_t)KV_BLOCK_TOKENS * ATTENTION_HEAD_DIM; /* halves */
    kv_layer kv = {.kv = (void *)(v->kv + (size_t)l->mixer_index * v->layer_bytes),
                   .blocks = v->tables + (size_t)t->table * (size_t)v->max_blocks,
                   .block_stride = (int64_t)(v->block_bytes / sizeof(uint16_t)),
                   .head_stride = head,
                   .v_offset = head * c->n_kv_heads};
    prefill_attention_args a = {.n_tokens = t->n,
                                .n_query_heads = c->n_query_heads,
                                .n_kv_heads = c->n_kv_heads,
                                .first = t->first,
                                .projected = p->projected,
                                .projected_stride = l->in.w.rows,
                                .q_norm = l->q_norm,
                                .k_norm = l->k_norm,
                                .eps = c->rms_eps,
                                .cosines = p->cosines,
                                .sines = p->sines,
                                .kv = kv,
                                .q = p->q,
                                .mixed = p->mixed};
    TRY_CHUNK(t, prefill_attention_prepare(&a, b->stream));
    TRY_CHUNK(t, prefill_attention(&b->device, &a, b->stream));
    cuda_profile_mark(b, OP_ATTENTION, 2);
    return CALLA_OK;
}

/* projected = in_proj(u); x += out_proj(mixer(projected)) */
static calla_status mix(chunk *t, bool attention)
{
    prefill_scratch *p = &t->b->p;
    const device_layer *l = t->layer;
    CALLA_TRY(multiply(t, &l->in, p->split, t->n, PREFILL_STORE_F32, p->projected, l->in.w.rows));
    cuda_profile_mark(t->b, attention ? OP_ATTENTION_PROJECTIONS : OP_GDN_PROJECTIONS, 1);
    CALLA_TRY(attention ? attention_mixer(t) : gdn_mixer(t));
    CALLA_TRY(multiply(t, &l->out, p->mixed, t->n, PREFILL_ADD_F32, p->x, l->out.w.rows));
    cuda_profile_mark(t->b, attention ? OP_ATTENTION_OUT : OP_GDN_OUT, 1);
    return CALLA_OK;
}

/* ---- MoE ---- */

/* For tests: the host changes the choice. */
static calla_status call_route(chunk *t, int32_t layer)
{
    backend *b = t->b;
    const model_config *c = &b->config;
    prefill_scratch *p = &b->p;
    host_buffers *h = &b->host;
    size_t k = (size_t)c->n_experts_per_token, stride = (size_t)c->n_experts + 1;
    size_t n = (size_t)t->n;
    if (!b->route) return CALLA_OK;
    TRY_CHUNK(t, cudaMemcpyAsync(h->route_logits, p->router, n * stride * sizeof(float),
                                 cudaMemcpyDeviceToHost, b->stream));
    TRY_CHUNK(t, cudaMemcpyAsync(h->route_experts, p->experts, n * k * sizeof(int32_t),
                                 cudaMemcpyDeviceToHost, b->stream));
    TRY_CHUNK(t, cudaMemcpyAsync(h->route_weights, p->weights, n * k * sizeof(float),
                                 cudaMemcpyDeviceToHost, b->stream));
    TRY_CHUNK(t, cudaStreamSynchronize(b->stream));
    for (size_t i = 0; i < n; i++)
        b->route(b->route_user, layer, t->first + (int64_t)i, h->route_logits + i * stride,
                 h->route_experts + i * k, h->route_weights + i * k);
    TRY_CHUNK(t, cudaMemcpyAsync(p->experts, h->route_experts, n * k * sizeof(int32_t),
                                 cudaMemcpyHostToDevice, b->stream));
    TRY_CHUNK(t, cudaMemcpyAsync(p->weights, h->route_weights, n * k * sizeof(float),
                                 cudaMemcpyHostToDevice, b->stream));
    TRY_CHUNK(t, cudaStreamSynchronize(b->stream));
    return CALLA_OK;
}

static calla_status route(chunk *t, int32_t layer)
{
    backend *b = t->b;
    const model_config *c = &b->config;
    prefill_scratch *p = &b->p;
    const w8_matrix *w = &t->layer->router;
    TRY_CHUNK(t, prefill_router_logits(&b->device, p->split, p->group_sums, w->codes, w->pairs,
                                       t->n, w->rows, w->cols, p->router, b->stream));
    TRY_CHUNK(t, prefill_router_top_k(p->router, c->n_experts + 1, t->n, c->n_experts,
                                      c->n_experts_per_token, p->experts, p->weights,
                                      p->shared_scale, b->stream));
    CALLA_TRY(call_route(t, layer));
    TRY_CHUNK(t, prefill_moe_plan(&p->plan, p->experts, t->n, b->stream));
    cuda_profile_mark(b, OP_ROUTER, 4);
    return CALLA_OK;
}

/* The shared expert by itself, where it is not as wide as the others. */
static calla_status shared_expert(chunk *t)
{
    prefill_scratch *p = &t->b->p;
    const device_layer *l = t->layer;
    CALLA_TRY(multiply(t, &l->shared_inner, p->split, t->n, PREFILL_SWIGLU_SPLIT, p->shared_h,
                       split_halves(l->shared_outer.w.cols)));
    CALLA_TRY(multiply(t, &l->shared_outer, p->shared_h, t->n, PREFILL_STORE_F32, p->shared_down,
                       l->shared_outer.w.rows));
    cuda_profile_mark(t->b, OP_SHARED_EXPERT, 2);
    return CALLA_OK;
}

/* One product of all experts with their rows of the plan's order. */
static calla_status multiply_experts(chunk *t, const device_matrix *m, const device_matrix *shared,
                                     const __half *x, bool gather, prefill_gemm_output output,
                                     void *y, int64_t ldy)
{
    const model_config *c = &t->b->config;
    const int32_t slots = c->n_experts_per_token + shared_is_alike(c);
    prefill_gemm_args a = {.w = m->w,
                           .factors = m->factors,
                           .expert_bytes = m->expert_bytes,
                           .shared_blocks = shared->w.blocks,
                           .shared_factors = shared->factors,
                           .x = x,
                           .ldx = split_halves(m->w.cols),
                           .n_inputs = gather ? t->n : t->n * slots,
                           .rounded = t->b->p.rounded,
                           .plan = &t->b->p.plan,
                           .gather = gather,
                           .output = output,
                           .y = y,
                           .ldy = ldy};
    TRY_CHUNK(t, prefill_gemm(&t->b->device, &a, t->b->stream));
    return CALLA_OK;
}

/* x += moe(u); u = norm(x) for the layer behind, or the head. */
static calla_status moe(chunk *t, int32_t layer)
{
    backend *b = t->b;
    const model_config *c = &b->config;
    prefill_scratch *p = &b->p;
    const device_layer *l = t->layer;
    bool last = layer + 1 == c->n_layers;
    const float *factor = last ? b->w.final_norm : b->w.layers[layer + 1].input_norm;
    CALLA_TRY(route(t, layer));
    if (!shared_is_alike(c)) CALLA_TRY(shared_expert(t));
    CALLA_TRY(multiply_experts(t, &l->inner, &l->shared_inner, p->split, true, PREFILL_SWIGLU_SPLIT,
                               p->h, split_halves(l->outer.w.cols)));
    CALLA_TRY(multiply_experts(t, &l->outer, &l->shared_outer, p->h, false, PREFILL_STORE_F32,
                               p->down, l->outer.w.rows));
    TRY_CHUNK(t, prefill_moe_combine(&p->plan, t->n, c->hidden_size, p->weights, p->shared_scale,
                                     p->down, p->shared_down, p->x, factor, c->rms_eps, p->split,
                                     last && b->tap ? p->u32 : NULL, p->bad_layer, layer + 1,
                                     b->stream));
    cuda_profile_mark(b, OP_EXPERTS, 3);
    return CALLA_OK;
}

/* ---- the chunk ---- */

static calla_status call_tap(chunk *t, int32_t layer, const float *rows)
{
    backend *b = t->b;
    if (!b->tap) return CALLA_OK;
    TRY_CHUNK(t, cudaMemcpyAsync(b->host.tapped, rows,
                                 (size_t)t->n * (size_t)b->config.hidden_size * sizeof(float),
                                 cudaMemcpyDeviceToHost, b->stream));
    TRY_CHUNK(t, cudaStreamSynchronize(b->stream));
    b->tap(b->tap_user, layer, t->first, t->n, b->host.tapped);
    return CALLA_OK;
}

/* The tokens of the rows are in b->host.tokens. */
static calla_status start_chunk(chunk *t)
{
    backend *b = t->b;
    prefill_scratch *p = &b->p;
    size_t bytes = (size_t)t->n * sizeof(int32_t);
    TRY_CHUNK(t,
              cudaMemcpyAsync(p->tokens, b->host.tokens, bytes, cudaMemcpyHostToDevice, b->stream));
    TRY_CHUNK(t, cudaMemsetAsync(p->bad_layer, 0x7f, bytes, b->stream)); /* large */
    cuda_profile_begin(b);
    TRY_CHUNK(t, launch_embed_rows(b->w.embedding, b->w.embedding_pairs, p->tokens, t->n,
                                   b->config.hidden_size, p->x, b->stream));
    TRY_CHUNK(t,
              prefill_rope_angles(t->first, t->n, p->frequencies, p->cosines, p->sines, b->stream));
    cuda_profile_mark(b, OP_EMBEDDING, 2);
    return CALLA_OK;
}

static calla_status run_layers(chunk *t, const calla_control *control)
{
    backend *b = t->b;
    CALLA_TRY(norm(t, b->w.layers[0].input_norm, false, 0));
    for (int32_t i = 0; i < b->config.n_layers; i++) {
        cudaEvent_t done = b->layer_done[i % 2];
        if (i >= 2) TRY_CHUNK(t, cudaEventSynchronize(done));
        if (is_cancelled(control))
            return error_set(t->err, CALLA_ERR_CANCELLED, "cancelled at position %lld",
                             (long long)t->first);
        t->layer = &b->w.layers[i];
        CALLA_TRY(call_tap(t, i, b->p.x));
        CALLA_TRY(mix(t, b->config.is_attention[i]));
        CALLA_TRY(norm(t, t->layer->post_norm, true, i));
        CALLA_TRY(moe(t, i));
        TRY_CHUNK(t, cudaEventRecord(done, b->stream));
    }
    return call_tap(t, b->config.n_layers, b->p.u32);
}

static calla_status check_finite(chunk *t)
{
    backend *b = t->b;
    TRY_CHUNK(t, cudaMemcpyAsync(b->host.bad_layer, b->p.bad_layer, (size_t)t->n * sizeof(int32_t),
                                 cudaMemcpyDeviceToHost, b->stream));
    TRY_CHUNK(t, cudaStreamSynchronize(b->stream));
    for (int32_t i = 0; i < t->n; i++)
        if (b->host.bad_layer[i] <= b->config.n_layers)
            return error_set(t->err, CALLA_ERR_NUMERIC,
                             "activations entering layer %d of %d are not finite at position %lld",
                             b->host.bad_layer[i], b->config.n_layers, (long long)(t->first + i));
    return CALLA_OK;
}

/* Logits of the last row or of all rows: the same arithmetic. */
static calla_status project_logits(chunk *t, logits_mode mode, float *logits)
{
    backend *b = t->b;
    const model_config *c = &b->config;
    int32_t n = mode == LOGITS_ALL ? t->n - t->n_again : 1, first = t->n - n;
    for (int32_t at = 0; at < n; at += LOGITS_ROWS) {
        int32_t n_rows = smaller_of(n - at, LOGITS_ROWS);
        size_t row = (size_t)(first + at) * (size_t)split_halves(c->hidden_size);
        size_t floats = (size_t)n_rows * (size_t)c->n_vocab;
        CALLA_TRY(multiply(t, &b->w.head, halves_at(b->p.split, row), n_rows, PREFILL_STORE_F32,
                           b->p.logits, c->n_vocab));
        cuda_profile_mark(b, OP_HEAD, 1);
        TRY_CHUNK(t, cudaMemcpyAsync(b->host.logits, b->p.logits, floats * sizeof(float),
                                     cudaMemcpyDeviceToHost, b->stream));
        TRY_CHUNK(t, cudaStreamSynchronize(b->stream));
        memcpy(logits + (size_t)at * (size_t)c->n_vocab, b->host.logits, floats * sizeof(float));
    }
    return CALLA_OK;
}

static calla_status run_chunk(chunk *t, logits_mode mode, float *logits,
                              const calla_control *control)
{
    CALLA_TRY(start_chunk(t));
    CALLA_TRY(run_layers(t, control));
    CALLA_TRY(check_finite(t));
    if (mode != LOGITS_NONE) CALLA_TRY(project_logits(t, mode, logits));
    return CALLA_OK;
}

/* Bytes and operations of the chunk, if the profile is on. Experts: as many as were chosen is not
 * known here; every expert that can be. */
static void count_chunk(const chunk *t, logits_mode mode)
{
    backend *b = t->b;
    const model_config *c = &b->config;
    int64_t end = t->first + t->n, chosen = (int64_t)t->n * c->n_experts_per_token;
    for (int32_t i = 0; b->profile.on && i < c->n_layers; i++)
        cuda_profile_count_layer(b, &b->weights->layers[i], t->n, 1,
                                 end * (end + 1) / 2 - t->first * (t->first + 1) / 2, end,
                                 chosen < c->n_experts ? chosen : c->n_experts);
    cuda_profile_count_ends(b, t->n, mode == LOGITS_ALL ? t->n - t->n_again : mode == LOGITS_LAST);
}

/* Plans the recurrence and gives the timeline that holds once the chunk is done: numbers of states
 * change places, nothing is copied. */
static timeline plan_chunk(chunk *t, const timeline *at)
{
    backend *b = t->b;
    const int32_t *spare = b->store.spare;
    const int64_t end = t->first + t->n, last = end / b->grid * b->grid;
    timeline after = *at;
    after.length = end;
    after.state = spare[0];
    after.anchored = false;
    int32_t from = t->n_again > 0 ? at->anchor : at->state;
    t->n_pieces = 1;
    t->pieces[0] = (piece){0, t->n, from, spare[0]};
    if (last == end) return after;
    if (last > t->first) {
        int32_t n = (int32_t)(last - t->first);
        t->n_pieces = 2;
        t->pieces[0] = (piece){0, n, from, spare[1]};
        t->pieces[1] = (piece){n, t->n - n, spare[1], spare[0]};
        after.anchor = spare[1];
    } else if (last == t->first) {
        after.anchor = from;
    } else {
        return after; /* begun between two multiples: nothing to go back to */
    }
    after.anchored = true;
    memcpy(after.tail, b->host.tokens + (last - t->first), (size_t)(end - last) * sizeof(int32_t));
    return after;
}

/* The two of the states that `after` does not have become spare. */
static void change_states(backend *b, timeline *at, const timeline *after)
{
    const int32_t all[4] = {at->state, at->anchor, b->store.spare[0], b->store.spare[1]};
    int32_t rest[3], n = 0;
    *at = *after;
    for (int i = 0; i < 4; i++)
        if (all[i] != at->state && !(at->anchored && all[i] == at->anchor)) rest[n++] = all[i];
    b->store.spare[0] = rest[0];
    b->store.spare[1] = rest[1];
    if (!at->anchored) at->anchor = rest[2];
}

calla_status cuda_prefill_chunk(backend *b, backend_sequence *s, const int32_t *tokens, int32_t n,
                                logits_mode mode, float *logits, const calla_control *control,
                                calla_error *err)
{
    timeline *at = &s->at;
    int32_t n_again = at->anchored ? (int32_t)(at->length % b->grid) : 0;
    chunk t = {.b = b,
               .n = n_again + n,
               .n_again = n_again,
               .first = at->length - n_again,
               .table = at->slot,
               .err = err};
    CALLA_TRY(cuda_store_reserve(b, s, n, err));
    memcpy(b->host.tokens, at->tail, (size_t)n_again * sizeof *tokens);
    memcpy(b->host.tokens + n_again, tokens, (size_t)n * sizeof *tokens);
    timeline after = plan_chunk(&t, at);
    calla_status status = run_chunk(&t, mode, logits, control);
    if (status == CALLA_OK) status = cuda_profile_end(b, err);
    if (status != CALLA_OK) {
        /* What is on its way still needs the block table, which is copied from the host's. */
        cudaStreamSynchronize(b->stream);
        cuda_store_trim(b, s, at->length + n);
        return status;
    }
    count_chunk(&t, mode);
    change_states(b, at, &after);
    return CALLA_OK;
}
