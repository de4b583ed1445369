/* The kernels of a decode step: one token of each of up to eight sequences, a row each. For every
 * number of rows there is a CUDA graph, made at open: one kernel for all layers, where the device
 * and the shape allow it (token.cu, for several rows token_rows.cu), else of one row a kernel for
 * all between two attentions (chain.cu), of several six kernels a layer for all rows, one after
 * another. What changes from step to step (tokens, positions, sampling parameters) they find in
 * device memory, where step.c puts it.
 *
 * A row's results do not depend on the others: every kernel adds up one row in one order. */
#include "cuda/cuda.h"

enum { LAYER_STEPS = 6 }; /* at most: gemv, mixer, gemv, router, inner, outer */

static int32_t mask_words(const backend *b)
{
    return (b->config.n_vocab + 31) / 32;
}

void cuda_decode_scratch_take(backend *b)
{
    const model_config *c = &b->config;
    device_arena *m = &b->scratch_memory;
    decode_scratch *d = &b->d;
    size_t n = (size_t)step_rows(b), k = (size_t)c->n_experts_per_token, vocab = (size_t)c->n_vocab;
    size_t parts = n * (size_t)c->n_query_heads;
    d->x = device_floats(m, n, (size_t)c->hidden_size);
    d->projected = device_floats(m, n, (size_t)b->widest_in);
    d->mixed = device_floats(m, n, (size_t)b->widest_out);
    d->router = device_floats(m, n, (size_t)c->n_experts + 1);
    d->h = device_floats(m, n, k * (size_t)c->expert_width + (size_t)c->shared_expert_width);
    d->part_out = device_floats(m, parts * ATTENTION_PARTS, ATTENTION_HEAD_DIM);
    d->part_max = device_floats(m, parts, ATTENTION_PARTS);
    d->part_sum = device_floats(m, parts, ATTENTION_PARTS);
    d->arrived = device_take(m, parts, 1, sizeof(unsigned));
    d->logits = device_floats(m, n, vocab);
    d->bad_layer = device_take(m, n, 1, sizeof(int32_t));
    d->sampled = device_take(m, (size_t)b->options.n_sequences, 1, sizeof(int32_t));
    d->counters = device_take(m, (size_t)c->n_layers, LAYER_STEPS, sizeof *d->counters);
    d->layers = device_take(m, (size_t)c->n_layers, 1, sizeof *d->layers);
    d->mail = device_take(m, n, 1, sizeof *d->mail);
    d->barrier = device_take(m, 3, 1, sizeof *d->barrier);
    d->input = device_take(m, 1, 1, sizeof *d->input);
    d->output = device_take(m, n, 1, sizeof *d->output);
    sample_args *s = &d->sample;
    *s = (sample_args){.input = d->input,
                       .n_vocab = c->n_vocab,
                       .n_tokens = b->n_tokens,
                       .logits = d->logits,
                       .masks = device_take(m, n, (size_t)mask_words(b), sizeof(uint32_t)),
                       .mask_words = mask_words(b),
                       .bias_tokens = device_take(m, n, vocab, sizeof(int32_t)),
                       .bias_values = device_floats(m, n, vocab),
                       .generated_tokens = device_take(m, n, vocab, sizeof(int32_t)),
                       .generated_counts = device_take(m, n, vocab, sizeof(int32_t)),
                       .list = c->n_vocab,
                       .values = device_floats(m, n, vocab),
                       .parts =
                           device_take(m, n, (size_t)sample_n_parts(b->n_tokens), sizeof *s->parts),
                       .bad_layer = d->bad_layer,
                       .sampled = d->sampled,
                       .output = d->output};
}

/* ---- the kernels of a step ---- */

/* token.cu is for one shape. */
static bool token_fits(const model_config *c)
{
    return c->hidden_size == TOKEN_HIDDEN && c->n_key_heads == TOKEN_HEADS &&
           c->n_value_heads == 2 * TOKEN_HEADS && c->n_query_heads == TOKEN_HEADS &&
           c->n_kv_heads == 2 && c->expert_width == TOKEN_WIDTH &&
           c->shared_expert_width == TOKEN_WIDTH && c->n_experts_per_token == TOKEN_CHOSEN &&
           c->n_experts <= TOKEN_MOST_EXPERTS && c->n_layers <= TOKEN_MOST_LAYERS;
}

static gemv_args projection(const backend *b, const device_matrix *m, int32_t n,
                            const float *factor, float *y, int64_t y_stride, int32_t layer)
{
    return (gemv_args){.w = m->w,
                       .input = GEMV_INPUT_NORM,
                       .n = n,
                       .x = b->d.x,
                       .x_stride = b->config.hidden_size,
                       .factor = factor,
                       .eps = b->config.rms_eps,
                       .y = y,
                       .y_stride = y_stride,
                       .bad_layer = b->d.bad_layer,
                       .layer = layer};
}

/* x += out_proj(mixed) */
static gemv_args output_args(const backend *b, const device_layer *l, bool attention, int32_t n)
{
    const model_config *c = &b->config;
    return (gemv_args){.w = l->out.w,
                       .input = attention ? GEMV_INPUT_PLAIN : GEMV_INPUT_GATED_NORM,
                       .n = n,
                       .x = b->d.mixed,
                       .x_stride = l->out.w.cols,
                       .factor = l->gdn_norm,
                       .eps = c->rms_eps,
                       .gate = b->d.projected + c->conv_channels,
                       .gate_stride = l->in.w.rows,
                       .y = b->d.x,
                       .y_stride = c->hidden_size};
}

static gdn_step_args gdn_args(const backend *b, const device_layer *l, int32_t n)
{
    return (gdn_step_args){.store = b->store.view,
                           .input = b->d.input,
                           .n = n,
                           .gdn_index = l->mixer_index,
                           .key_heads = b->config.n_key_heads,
                           .value_heads = b->config.n_value_heads,
                           .projected = b->d.projected,
                           .stride = l->in.w.rows,
                           .taps = l->taps,
                           .neg_exp_a = l->neg_exp_a,
                           .dt_bias = l->dt_bias,
                           .out = b->d.mixed};
}

static attention_step_args attention_args(const backend *b, const device_layer *l, int32_t n)
{
    return (attention_step_args){.store = b->store.view,
                                 .input = b->d.input,
                                 .n = n,
                                 .attention_index = l->mixer_index,
                                 .query_heads = b->config.n_query_heads,
                                 .kv_heads = b->config.n_kv_heads,
                                 .projected = b->d.projected,
                                 .stride = l->in.w.rows,
                                 .q_norm = l->q_norm,
                                 .k_norm = l->k_norm,
                                 .eps = b->config.rms_eps,
                                 .part_out = b->d.part_out,
                                 .part_max = b->d.part_max,
                                 .part_sum = b->d.part_sum,
                                 .arrived = b->d.arrived,
                                 .out = b->d.mixed};
}

static router_args router_of(const backend *b, const device_layer *l, int32_t n, int32_t layer)
{
    const model_config *c = &b->config;
    return (router_args){.w = l->router,
                         .n = n,
                         .x = b->d.x,
                         .x_stride = c->hidden_size,
                         .factor = l->post_norm,
                         .eps = c->rms_eps,
                         .logits = b->d.router,
                         .bad_layer = b->d.bad_layer,
                         .layer = layer};
}

static expert_args experts_of(const backend *b, const device_layer *l, int32_t n)
{
    const model_config *c = &b->config;
    const decode_scratch *d = &b->d;
    return (expert_args){.inner = l->inner.w,
                         .outer = l->outer.w,
                         .shared_inner = l->shared_inner.w,
                         .shared_outer = l->shared_outer.w,
                         .inner_bytes = l->inner.expert_bytes,
                         .outer_bytes = l->outer.expert_bytes,
                         .n_experts = c->n_experts,
                         .k = c->n_experts_per_token,
                         .n = n,
                         .x = d->x,
                         .x_stride = c->hidden_size,
                         .factor = l->post_norm,
                         .eps = c->rms_eps,
                         .logits = d->router,
                         .h = d->h,
                         .h_stride = (int64_t)c->n_experts_per_token * c->expert_width +
                                     c->shared_expert_width,
                         .x_out = d->x};
}

static gemv_args input_args(const backend *b, const device_layer *l, int32_t n, int32_t layer)
{
    return projection(b, &l->in, n, l->input_norm, b->d.projected, l->in.w.rows, layer);
}

static cudaError_t run_layer(backend *b, int32_t i, int32_t n)
{
    const device_layer *l = &b->w.layers[i];
    bool attention = b->config.is_attention[i];
    gemv_args in = input_args(b, l, n, i), out = output_args(b, l, attention, n);
    attention_step_args attend = attention_args(b, l, n);
    gdn_step_args gdn = gdn_args(b, l, n);
    router_args router = router_of(b, l, n, i);
    expert_args experts = experts_of(b, l, n);
    cudaError_t status = launch_gemv(&in, b->device.n_sms, b->stream);
    cuda_profile_mark(b, attention ? OP_ATTENTION_PROJECTIONS : OP_GDN_PROJECTIONS, 1);
    if (status == cudaSuccess)
        status = attention ? launch_attention_step(&attend, b->stream)
                           : launch_gdn_step(&gdn, b->stream);
    cuda_profile_mark(b, attention ? OP_ATTENTION : OP_GDN_SCAN, 1); /* with the convolution */
    if (status == cudaSuccess) status = launch_gemv(&out, b->device.n_sms, b->stream);
    cuda_profile_mark(b, attention ? OP_ATTENTION_OUT : OP_GDN_OUT, 1);
    if (status == cudaSuccess) status = launch_router(&router, b->stream);
    cuda_profile_mark(b, OP_ROUTER, 1);
    if (status == cudaSuccess) status = launch_expert_inner(&experts, b->stream);
    if (status == cudaSuccess) status = launch_expert_outer(&experts, b->stream);
    cuda_profile_mark(b, OP_EXPERTS, 2);
    return status;
}

/* Launches what there is, and makes room for more. */
static cudaError_t end_chain(backend *b, chain_args *a)
{
    cudaError_t status = a->n_steps > 0 ? launch_chain(a, b->stream) : cudaSuccess;
    a->counters += a->n_steps;
    a->n_steps = a->n_blocks = 0;
    return status;
}

/* All layers of one row: between two attentions, one kernel. */
static cudaError_t run_chain(backend *b)
{
    const model_config *c = &b->config;
    chain_args a = {.counters = b->d.counters};
    cudaError_t status = cudaSuccess;
    for (int32_t i = 0; status == cudaSuccess && i < c->n_layers; i++) {
        const device_layer *l = &b->w.layers[i];
        bool attention = c->is_attention[i];
        gemv_args in = input_args(b, l, 1, i), out = output_args(b, l, attention, 1);
        attention_step_args attend = attention_args(b, l, 1);
        gdn_step_args gdn = gdn_args(b, l, 1);
        router_args router = router_of(b, l, 1, i);
        expert_args experts = experts_of(b, l, 1);
        if (a.n_steps + LAYER_STEPS > CHAIN_STEPS) status = end_chain(b, &a);
        chain_add_gemv(&a, &in, b->device.n_sms);
        if (!attention) chain_add_gdn(&a, &gdn);
        if (attention && status == cudaSuccess) status = end_chain(b, &a);
        if (attention && status == cudaSuccess) status = launch_attention_step(&attend, b->stream);
        chain_add_gemv(&a, &out, b->device.n_sms);
        chain_add_router(&a, &router);
        chain_add_experts(&a, &experts);
    }
    return status == cudaSuccess ? end_chain(b, &a) : status;
}

/* Waits for the rows of the residual stream and shows them. */
static cudaError_t call_tap(backend *b, int32_t layer, int32_t n)
{
    size_t hidden = (size_t)b->config.hidden_size;
    if (!b->tap) return cudaSuccess;
    cudaError_t status = cudaMemcpyAsync(b->host.tapped, b->d.x, (size_t)n * hidden * sizeof(float),
                                         cudaMemcpyDeviceToHost, b->stream);
    if (status == cudaSuccess) status = cudaStreamSynchronize(b->stream);
    const int64_t *positions = b->flights[b->first_flight].positions; /* no other is under way */
    for (int32_t i = 0; status == cudaSuccess && i < n; i++)
        b->tap(b->tap_user, layer, positions[i], 1, b->host.tapped + (size_t)i * hidden);
    return status;
}

static token_args row_args(backend *b, int32_t first, int32_t end, bool head, int32_t i)
{
    const model_config *c = &b->config;
    const decode_scratch *d = &b->d;
    size_t parts = (size_t)i * TOKEN_HEADS * TOKEN_KV_PARTS;
    return (token_args){.layers = d->layers,
                        .first = first,
                        .end = end,
                        .row = i,
                        .n_experts = c->n_experts,
                        .eps = c->rms_eps,
                        .store = b->store.view,
                        .input = d->input,
                        .x = d->x + (size_t)i * (size_t)c->hidden_size,
                        .head = b->w.head.w.blocks,
                        .final_norm = b->w.final_norm,
                        .logits = head ? d->logits + (size_t)i * (size_t)c->n_vocab : NULL,
                        .n_vocab = c->n_vocab,
                        .mail = d->mail + i,
                        .projected = d->projected + (size_t)i * (size_t)b->widest_in,
                        .part_out = d->part_out + parts * ATTENTION_HEAD_DIM,
                        .part_max = d->part_max + parts,
                        .part_sum = d->part_sum + parts,
                        .barrier = d->barrier,
                        .bad_layer = d->bad_layer + i};
}

/* Layers [first, end) and perhaps the head in one kernel. A row's bits are the same in both. */
static cudaError_t run_token(backend *b, int32_t first, int32_t end, bool head, int32_t n)
{
    token_rows_args a = {.n = n, .mail = b->d.mail};
    for (int32_t i = 0; i < n; i++) a.rows[i] = row_args(b, first, end, head, i);
    return n == 1 ? launch_token(&a.rows[0], b->stream) : launch_token_rows(&a, b->stream);
}

/* In that kernel blocks wait for each other's results: in a GDN layer for x, projections, heads'
 * outputs and sums; in an attention layer for one part more, since the context is split; in every
 * layer for x, router, inner products and sums of the experts. The first wait of a layer that is
 * launched alone is that launch. */
enum { GDN_WAITS = 4, ATTENTION_WAITS = 5, EXPERTS_WAITS = 4 };

/* All layers and the head: one kernel, unless somebody looks between layers. */
static cudaError_t run_tokens(backend *b, int32_t n)
{
    const model_config *c = &b->config;
    cudaError_t status = cudaSuccess;
    if (!b->tap && !b->profile.on) return run_token(b, 0, c->n_layers, true, n);
    for (int32_t i = 0; status == cudaSuccess && i < c->n_layers; i++) {
        status = call_tap(b, i, n);
        if (status == cudaSuccess) status = run_token(b, i, i + 1, false, n);
        operation op = c->is_attention[i] ? OP_ATTENTION_LAYER : OP_GDN_LAYER;
        int32_t waits = (c->is_attention[i] ? ATTENTION_WAITS : GDN_WAITS) + EXPERTS_WAITS;
        cuda_profile_mark(b, op, 1);
        cuda_profile_add_levels(b, op, waits - 1);
    }
    if (status == cudaSuccess) status = run_token(b, c->n_layers, c->n_layers, true, n);
    cuda_profile_mark(b, OP_HEAD, 1);
    return status;
}

/* One row without somebody who looks between layers. */
static bool may_chain(const backend *b, int32_t n)
{
    return n == 1 && !b->tap && !b->profile.on;
}

/* The same, a kernel for each part of a layer, all rows together, or one for several layers. */
static cudaError_t run_parts(backend *b, int32_t n)
{
    const model_config *c = &b->config;
    cudaError_t status = cudaSuccess;
    const bool chain = may_chain(b, n);
    if (chain) status = run_chain(b);
    for (int32_t i = 0; !chain && status == cudaSuccess && i < c->n_layers; i++) {
        status = call_tap(b, i, n);
        if (status == cudaSuccess) status = run_layer(b, i, n);
    }
    gemv_args head =
        projection(b, &b->w.head, n, b->w.final_norm, b->d.logits, c->n_vocab, c->n_layers);
    if (status == cudaSuccess) status = launch_gemv(&head, b->device.n_sms, b->stream);
    cuda_profile_mark(b, OP_HEAD, 1);
    return status;
}

/* Puts all kernels of a step of n rows into the stream. The tap sees the residual stream entering
 * each layer; the final norm happens inside the head's kernel and is not shown. */
static cudaError_t run_kernels(backend *b, int32_t n)
{
    const model_config *c = &b->config;
    embed_args e = {.codes = b->w.embedding,
                    .pairs = b->w.embedding_pairs,
                    .input = b->d.input,
                    .sampled = b->d.sampled,
                    .bad_layer = b->d.bad_layer,
                    .output = b->d.output,
                    .x = b->d.x,
                    .hidden = c->hidden_size,
                    .n = n};
    size_t counters = (size_t)c->n_layers * LAYER_STEPS * sizeof *b->d.counters;
    cudaError_t status = cudaSuccess;
    if (!b->token_whole && may_chain(b, n))
        status = cudaMemsetAsync(b->d.counters, 0, counters, b->stream);
    if (status == cudaSuccess) status = launch_embed_step(&e, b->stream);
    cuda_profile_mark(b, OP_EMBEDDING, 1);
    if (status == cudaSuccess) status = b->token_whole ? run_tokens(b, n) : run_parts(b, n);
    sample_args s = b->d.sample;
    s.n = n;
    if (status == cudaSuccess) status = launch_sample(&s, b->stream);
    cuda_profile_mark(b, OP_SAMPLING, 2);
    return status;
}

/* ---- graphs ---- */

static calla_status make_graph(backend *b, int32_t n, calla_error *err)
{
    cudaGraph_t graph = NULL;
    CALLA_TRY(device_check(cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal),
                           "recording a step", err));
    cudaError_t status = run_kernels(b, n);
    cudaError_t ended = cudaStreamEndCapture(b->stream, &graph);
    if (status == cudaSuccess) status = ended;
    if (status == cudaSuccess) status = cudaGraphInstantiate(&b->graphs[n - 1], graph, 0);
    if (graph) cudaGraphDestroy(graph);
    return device_check(status, "recording a step", err);
}

static token_layer layer_of_token(const backend *b, int32_t i)
{
    const device_layer *l = &b->w.layers[i];
    bool attention = b->config.is_attention[i];
    token_layer t = {.in = l->in.w.blocks,
                     .out = l->out.w.blocks,
                     .inner = l->inner.w.blocks,
                     .outer = l->outer.w.blocks,
                     .shared_inner = l->shared_inner.w.blocks,
                     .shared_outer = l->shared_outer.w.blocks,
                     .router = l->router.codes,
                     .router_pairs = l->router.pairs,
                     .input_norm = l->input_norm,
                     .post_norm = l->post_norm,
                     .constants = {l->taps, l->neg_exp_a, l->dt_bias, l->gdn_norm},
                     .is_attention = attention,
                     .mixer_index = l->mixer_index};
    if (attention) t.constants[0] = l->q_norm, t.constants[1] = l->k_norm;
    return t;
}

/* Whether the kernel with all layers can run here, and what it needs. */
static calla_status init_token(backend *b, calla_error *err)
{
    token_layer layers[TOKEN_MOST_LAYERS];
    b->token_whole = b->device.path == PREFILL_PATH_HOPPER && token_fits(&b->config) &&
                     token_fits_device(b->device.n_sms) && token_rows_fit_device(b->device.n_sms);
    if (!b->token_whole) return CALLA_OK;
    for (int32_t i = 0; i < b->config.n_layers; i++) layers[i] = layer_of_token(b, i);
    CALLA_TRY(device_check(cudaMemcpyAsync(b->d.layers, layers,
                                           (size_t)b->config.n_layers * sizeof *layers,
                                           cudaMemcpyHostToDevice, b->stream),
                           "sending the layers", err));
    CALLA_TRY(device_check(cudaMemsetAsync(b->d.barrier, 0, 3 * sizeof *b->d.barrier, b->stream),
                           "decode", err));
    CALLA_TRY(device_check(
        cudaMemsetAsync(b->d.mail, 0, (size_t)step_rows(b) * sizeof *b->d.mail, b->stream),
        "decode", err));
    return device_check(cudaStreamSynchronize(b->stream), "sending the layers", err);
}

calla_status cuda_decode_init(backend *b, calla_error *err)
{
    size_t arrived = (size_t)step_rows(b) * (size_t)b->config.n_query_heads * sizeof(unsigned);
    CALLA_TRY(device_check(cudaMemsetAsync(b->d.arrived, 0, arrived, b->stream), "decode", err));
    CALLA_TRY(init_token(b, err));
    for (int32_t n = 1; n <= step_rows(b); n++) CALLA_TRY(make_graph(b, n, err));
    return CALLA_OK;
}

void cuda_decode_deinit(backend *b)
{
    for (int i = 0; i < STEP_ROWS; i++)
        if (b->graphs[i]) cudaGraphExecDestroy(b->graphs[i]);
}

cudaError_t cuda_decode_run(backend *b, int32_t n)
{
    /* The tap and the profile look between the kernels. */
    if (b->tap || b->profile.on) return run_kernels(b, n);
    return cudaGraphLaunch(b->graphs[n - 1], b->stream);
}
