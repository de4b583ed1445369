/* One decode step: one token of each of up to eight sequences, a row each. A row's results do not
 * depend on the others: every dot product runs over one row, in one order. */
#include "cpu/cpu.h"

#include <assert.h>
#include <math.h>
#include <string.h>

void decode_scratch_take(backend *b)
{
    const model_config *c = &b->config;
    arena *m = &b->scratch.memory;
    decode_scratch *d = &b->scratch.decode;
    size_t n = (size_t)smaller_of(b->options.n_sequences, GEMV_MAX_INPUTS);
    size_t hidden = (size_t)c->hidden_size, k = (size_t)c->n_experts_per_token;
    size_t width = (size_t)c->expert_width, shared = (size_t)c->shared_expert_width;
    int32_t mixed = larger_of(c->query_size, c->value_size);
    size_t parts = n * (size_t)c->n_query_heads;
    d->x = take_floats(m, n, hidden);
    d->u = take_floats(m, n, hidden);
    d->u_q = take(m, n, 1, quantized_bytes(c->hidden_size));
    d->q_gate = take_floats(m, n, 2 * (size_t)c->query_size);
    d->q = take_floats(m, n, (size_t)c->query_size);
    d->k = take_floats(m, n, (size_t)c->kv_size);
    d->v = take_floats(m, n, (size_t)c->kv_size);
    d->z = take_floats(m, n, (size_t)c->value_size);
    d->a = take_floats(m, n, (size_t)c->n_value_heads);
    d->b = take_floats(m, n, (size_t)c->n_value_heads);
    d->mixed = take_floats(m, n, (size_t)mixed);
    d->mixed_q = take(m, n, 1, quantized_bytes(mixed));
    d->out = take_floats(m, n, hidden);
    d->cosines = take_floats(m, n, ROTARY_PAIRS);
    d->sines = take_floats(m, n, ROTARY_PAIRS);
    d->part_out = take(m, parts, (size_t)b->store.max_blocks, ATTENTION_HEAD_DIM * sizeof(float));
    d->part_max = take_floats(m, parts, (size_t)b->store.max_blocks);
    d->part_sum = take_floats(m, parts, (size_t)b->store.max_blocks);
    d->conv = take_floats(m, (size_t)b->options.n_threads, (size_t)c->conv_channels);
    d->router = take_floats(m, n, (size_t)c->n_experts + 1);
    d->experts = take(m, n, k, sizeof(int32_t));
    d->weights = take_floats(m, n, k);
    d->groups = take(m, n, k, sizeof *d->groups);
    d->gate = take_floats(m, n * k, width);
    d->up = take_floats(m, n * k, width);
    d->h = take_floats(m, n * k, width);
    d->h_q = take(m, n, k, quantized_bytes(c->expert_width));
    d->shared_gate = take_floats(m, n, shared);
    d->shared_up = take_floats(m, n, shared);
    d->shared_h = take_floats(m, n, shared);
    d->shared_q = take(m, n, 1, quantized_bytes(c->shared_expert_width));
    d->down = take_floats(m, n * k, hidden);
    d->shared_down = take_floats(m, n, hidden);
    d->logits = take_floats(m, n, (size_t)c->n_vocab);
}

void decode_multiply(const backend *b, const matrix *m, int32_t begin, int32_t end,
                     const decode_inputs *in, int32_t n, float *const *y)
{
    if (b->k.fast && m->format == MATRIX_Q4)
        b->k.gemv_q4(m, begin, end, in->q, n, y);
    else
        b->k.gemv_f32(m, begin, end, in->x, n, y);
}

/* ---- regions over the rows of several matrices ---- */

typedef struct matrix_job {
    const matrix *m;
    float *y[GEMV_MAX_INPUTS]; // [m->rows] each
} matrix_job;

/* What the parallel regions of a step see. */
typedef struct step {
    backend *b;
    decode_scratch *d;
    int32_t n;
    int64_t position[GEMV_MAX_INPUTS];
    int32_t bad_layer[GEMV_MAX_INPUTS];
    decode_inputs u, mixed;
    const layer_weights *layer;
    const prepared_layer *prepared;
    matrix_job jobs[4];
    int32_t n_jobs;
} step;

static backend_sequence *sequence_of(const step *t, int32_t i)
{
    return t->b->requests[i].sequence;
}

/* Rows [begin, end) of the matrices in t->jobs, one below the other. */
static void project_part(void *context, int64_t begin, int64_t end, int thread)
{
    step *t = context;
    (void)thread;
    int64_t first = 0;
    for (int32_t j = 0; j < t->n_jobs; j++) {
        const matrix_job *job = &t->jobs[j];
        int64_t from = begin > first ? begin - first : 0;
        int64_t to = end - first < job->m->rows ? end - first : job->m->rows;
        if (from < to)
            decode_multiply(t->b, job->m, (int32_t)from, (int32_t)to, &t->u, t->n, job->y);
        first += job->m->rows;
    }
}

static matrix_job *next_job(step *t, const matrix *m)
{
    matrix_job *job = &t->jobs[t->n_jobs++];
    job->m = m;
    return job;
}

static void add_job(step *t, const matrix *m, float *y, int64_t stride)
{
    matrix_job *job = next_job(t, m);
    for (int32_t i = 0; i < t->n; i++) job->y[i] = y + i * stride;
}

static void project(step *t, operation op)
{
    int64_t rows = 0;
    for (int32_t j = 0; j < t->n_jobs; j++) rows += t->jobs[j].m->rows;
    run_region(t->b, op, rows, 16, project_part, t);
}

/* x += out_proj(mixed) */
static void output_part(void *context, int64_t begin, int64_t end, int thread)
{
    step *t = context;
    (void)thread;
    const matrix *m = t->layer->is_attention ? &t->layer->attention.o : &t->layer->gdn.out;
    int32_t hidden = t->b->config.hidden_size;
    float *y[GEMV_MAX_INPUTS];
    for (int32_t i = 0; i < t->n; i++) y[i] = t->d->out + (size_t)i * (size_t)hidden;
    decode_multiply(t->b, m, (int32_t)begin, (int32_t)end, &t->mixed, t->n, y);
    for (int32_t i = 0; i < t->n; i++)
        t->b->k.add_scaled(t->d->x + (size_t)i * (size_t)hidden + begin, y[i] + begin, 1.0f,
                           (int32_t)(end - begin));
}

/* u = norm(x), rounded too; notes the first layer at which a row is not finite. */
static void norm_rows(step *t, const float *factor, int32_t layer)
{
    backend *b = t->b;
    int32_t hidden = b->config.hidden_size;
    int64_t start = profile_start(&b->profile);
    for (int32_t i = 0; i < t->n; i++) {
        float *u = t->d->u + (size_t)i * (size_t)hidden;
        float mean = b->k.rmsnorm(t->d->x + (size_t)i * (size_t)hidden, factor, hidden,
                                  b->config.rms_eps, u);
        if (!isfinite(mean) && t->bad_layer[i] < 0) t->bad_layer[i] = layer;
        if (b->k.fast)
            b->k.quantize_input(u, hidden, 0, hidden / QUANT_GROUP,
                                t->d->u_q + (size_t)i * quantized_bytes(hidden));
    }
    profile_stop(&b->profile, OP_NORMS, start);
}

/* ---- GDN ---- */

/* A value head's part of a token: its row of k, q and v convolved, its gates. */
typedef struct head_token {
    const float *q, *k, *v; // [128]
    float decay, beta;
} head_token;

static head_token gdn_head_token(const step *t, int32_t row, int32_t head, float *conv)
{
    backend *b = t->b;
    const model_config *c = &b->config;
    const prepared_layer *p = t->prepared;
    const float *window[CONV_TAPS];
    for (int i = 0; i < CONV_TAPS; i++) /* + 1: not below zero at the start; the ring has 4 rows */
        window[i] =
            state_window(b, sequence_of(t, row)->at.state, p->gdn_index, t->position[row] + 1 + i);
    int32_t key_head = head / (c->n_value_heads / c->n_key_heads);
    int32_t q = key_head * GDN_HEAD_DIM, k = c->key_size + q;
    int32_t v = 2 * c->key_size + head * GDN_HEAD_DIM;
    b->k.conv_silu(window, p->conv, c->conv_channels, q, q + GDN_HEAD_DIM, conv);
    b->k.conv_silu(window, p->conv, c->conv_channels, k, k + GDN_HEAD_DIM, conv);
    b->k.conv_silu(window, p->conv, c->conv_channels, v, v + GDN_HEAD_DIM, conv);
    b->k.l2norm(conv + q, 1.0f / sqrtf(GDN_HEAD_DIM));
    b->k.l2norm(conv + k, 1.0f);
    head_token token = {.q = conv + q, .k = conv + k, .v = conv + v};
    int64_t gate = (int64_t)row * c->n_value_heads + head;
    b->k.gdn_gates(t->d->a + gate, t->d->b + gate, p->neg_exp_a + head, p->dt_bias + head, 1,
                   &token.decay, &token.beta);
    return token;
}

/* The recurrence of one head: the token joins those since the last whole cell, which ends the cell
 * if they are GDN_CELL. Value heads share keys; the first one keeps the token's for the next. */
static void gdn_head_scan(const step *t, int32_t row, int32_t head, const head_token *token,
                          float *out) // [128]
{
    backend *b = t->b;
    const model_config *c = &b->config;
    const size_t floats = (size_t)GDN_HEAD_DIM * GDN_SLICE, rests = (GDN_CELL - 1) * GDN_SLICE;
    float *state = sequence_of(t, row)->at.state;
    state_rest rest = state_rest_of(b, state, t->prepared->gdn_index);
    float *scan = state_scan(b, state, t->prepared->gdn_index);
    int32_t before = (int32_t)(t->position[row] % GDN_CELL), heads = c->n_value_heads;
    int32_t key_head = head / (heads / c->n_key_heads);
    _Alignas(64) float k[GDN_CELL][GDN_HEAD_DIM], products[GDN_CELL_PRODUCTS], decay[GDN_CELL];
    float *kept = rest.k + (size_t)key_head * (GDN_CELL - 1) * GDN_HEAD_DIM;
    memcpy(k, kept, (size_t)before * sizeof k[0]);
    memcpy(k[before], token->k, sizeof k[0]);
    for (int32_t i = 0; i < before; i++) decay[i] = rest.decay[i * heads + head];
    decay[before] = token->decay;
    b->k.gdn_products(&(gdn_products_args){.first = before,
                                           .n_tokens = 1,
                                           .q = token->q,
                                           .k = k[0],
                                           .qk_stride = GDN_HEAD_DIM,
                                           .out = products});
    for (int s = 0; s < HEAD_SLICES; s++) {
        size_t slice = (size_t)head * HEAD_SLICES + (size_t)s;
        b->k.gdn_scan(&(gdn_scan_args){.state = scan + slice * floats,
                                       .rest = rest.d + slice * rests,
                                       .first = before,
                                       .n_tokens = 1,
                                       .q = token->q,
                                       .k = k[0],
                                       .qk_stride = GDN_HEAD_DIM,
                                       .products = products,
                                       .v = token->v + s * GDN_SLICE,
                                       .decay = decay,
                                       .beta = &token->beta,
                                       .gate_stride = 1,
                                       .out = out + s * GDN_SLICE});
    }
    if (before == GDN_CELL - 1) return;
    rest.decay[before * heads + head] = token->decay;
    if (head % (heads / c->n_key_heads) == 0)
        memcpy(kept + before * GDN_HEAD_DIM, token->k, sizeof k[0]);
}

/* One value head of one row: convolution, normalisation, recurrence, gated norm. The q and k
 * channels are convolved again by each value head that shares them, which saves a barrier. */
static void gdn_head(step *t, int32_t row, int32_t head, float *conv)
{
    backend *b = t->b;
    const model_config *c = &b->config;
    _Alignas(64) float o[GDN_HEAD_DIM];
    head_token token = gdn_head_token(t, row, head, conv);
    gdn_head_scan(t, row, head, &token, o);
    float *mixed = t->d->mixed + (size_t)row * (size_t)c->value_size;
    b->k.gated_norm(o, t->d->z + (size_t)row * (size_t)c->value_size + head * GDN_HEAD_DIM,
                    t->prepared->gdn_norm, c->rms_eps, mixed + head * GDN_HEAD_DIM);
    int32_t groups = GDN_HEAD_DIM / QUANT_GROUP;
    if (b->k.fast)
        b->k.quantize_input(mixed, c->value_size, head * groups, (head + 1) * groups,
                            t->d->mixed_q + (size_t)row * quantized_bytes(c->value_size));
}

static void gdn_part(void *context, int64_t begin, int64_t end, int thread)
{
    step *t = context;
    int32_t n_heads = t->b->config.n_value_heads;
    float *conv = t->d->conv + (size_t)thread * (size_t)t->b->config.conv_channels;
    for (int64_t i = begin; i < end; i++)
        gdn_head(t, (int32_t)(i / n_heads), (int32_t)(i % n_heads), conv);
}

static void gdn_mixer(step *t)
{
    const model_config *c = &t->b->config;
    decode_scratch *d = t->d;
    const gdn_weights *w = &t->layer->gdn;
    t->n_jobs = 0;
    /* The projection goes straight into each sequence's convolution window. */
    matrix_job *qkv = next_job(t, &w->qkv);
    for (int32_t i = 0; i < t->n; i++)
        qkv->y[i] =
            state_window(t->b, sequence_of(t, i)->at.state, t->prepared->gdn_index, t->position[i]);
    add_job(t, &w->z, d->z, c->value_size);
    add_job(t, &w->a, d->a, c->n_value_heads);
    add_job(t, &w->b, d->b, c->n_value_heads);
    project(t, OP_GDN_PROJECTIONS);
    run_region(t->b, OP_GDN_SCAN, (int64_t)t->n * c->n_value_heads, 1, gdn_part, t);
    profile_count_gdn(t->b, w, t->n, t->n);
}

/* ---- attention ---- */

static int32_t blocks_seen(const step *t, int32_t row)
{
    return (int32_t)(t->position[row] / KV_BLOCK_TOKENS) + 1;
}

/* Norms and rotates q and k of a row, and writes k and v to the cache. */
static void attention_append(step *t, int32_t row)
{
    backend *b = t->b;
    const model_config *c = &b->config;
    const prepared_layer *p = t->prepared;
    const float *cosines = t->d->cosines + row * ROTARY_PAIRS;
    const float *sines = t->d->sines + row * ROTARY_PAIRS;
    for (int32_t h = 0; h < c->n_query_heads; h++) {
        const float *from =
            t->d->q_gate + ((int64_t)row * c->n_query_heads + h) * 2 * ATTENTION_HEAD_DIM;
        float *q = t->d->q + ((int64_t)row * c->n_query_heads + h) * ATTENTION_HEAD_DIM;
        b->k.rmsnorm(from, p->q_norm, ATTENTION_HEAD_DIM, c->rms_eps, q);
        b->k.rope(q, cosines, sines);
    }
    for (int32_t m = 0; m < c->n_kv_heads; m++) {
        float *k = t->d->k + ((int64_t)row * c->n_kv_heads + m) * ATTENTION_HEAD_DIM;
        const float *v = t->d->v + ((int64_t)row * c->n_kv_heads + m) * ATTENTION_HEAD_DIM;
        b->k.rmsnorm(k, p->k_norm, ATTENTION_HEAD_DIM, c->rms_eps, k);
        b->k.rope(k, cosines, sines);
        store_write(b, sequence_of(t, row), t->position[row], p->attention_index, 0, m, k);
        store_write(b, sequence_of(t, row), t->position[row], p->attention_index, 1, m, v);
    }
}

/* Unit i of a row: all query heads of one KV head over one block, partial results [head][block]. */
static void attention_unit(step *t, int32_t row, int64_t i)
{
    backend *b = t->b;
    const model_config *c = &b->config;
    int32_t n_heads = c->n_query_heads / c->n_kv_heads;
    int32_t m = (int32_t)(i % c->n_kv_heads), block = (int32_t)(i / c->n_kv_heads);
    const int32_t *blocks = sequence_of(t, row)->at.blocks;
    int32_t index = t->prepared->attention_index;
    int32_t next_m = (m + 1) % c->n_kv_heads, next_block = block + (next_m == 0);
    const void *next = NULL;
    if (next_block < blocks_seen(t, row)) next = store_kv(b, blocks[next_block], index, 0, next_m);
    int64_t left = t->position[row] + 1 - (int64_t)block * KV_BLOCK_TOKENS;
    int32_t visible[ATTENTION_MAX_ROWS];
    for (int r = 0; r < ATTENTION_MAX_ROWS; r++)
        visible[r] = left < KV_BLOCK_TOKENS ? (int32_t)left : KV_BLOCK_TOKENS;
    for (int32_t h = 0; h < n_heads; h += ATTENTION_MAX_ROWS) {
        int64_t head = (int64_t)row * c->n_query_heads + m * n_heads + h;
        /* The heads of one block are consecutive: [row][block][head]. */
        int64_t part =
            ((int64_t)row * b->store.max_blocks + block) * c->n_query_heads + m * n_heads + h;
        attention_block_args a = {.q = t->d->q + head * ATTENTION_HEAD_DIM,
                                  .n_rows = smaller_of(n_heads - h, ATTENTION_MAX_ROWS),
                                  .visible = visible,
                                  .k = store_kv(b, blocks[block], index, 0, m),
                                  .v = store_kv(b, blocks[block], index, 1, m),
                                  .next = next,
                                  .max = t->d->part_max + part,
                                  .sum = t->d->part_sum + part,
                                  .out = t->d->part_out + part * ATTENTION_HEAD_DIM};
        if (b->kv_f32)
            b->k.attention_block_f32(&a);
        else
            b->k.attention_block_f16(&a);
    }
}

/* Units: for each row, its blocks by KV heads. */
static void attention_part(void *context, int64_t begin, int64_t end, int thread)
{
    step *t = context;
    (void)thread;
    int32_t n_kv = t->b->config.n_kv_heads;
    int64_t first = 0;
    for (int32_t row = 0; row < t->n; row++) {
        int64_t units = (int64_t)blocks_seen(t, row) * n_kv;
        int64_t from = begin > first ? begin - first : 0;
        int64_t to = end - first < units ? end - first : units;
        for (int64_t i = from; i < to; i++) attention_unit(t, row, i);
        first += units;
    }
}

/* Query heads: adds up the blocks in their order, gates, rounds. */
static void attention_combine_part(void *context, int64_t begin, int64_t end, int thread)
{
    step *t = context;
    (void)thread;
    backend *b = t->b;
    const model_config *c = &b->config;
    for (int64_t i = begin; i < end; i++) {
        int32_t row = (int32_t)(i / c->n_query_heads), head = (int32_t)(i % c->n_query_heads);
        float *mixed = t->d->mixed + (size_t)row * (size_t)c->query_size;
        float *out = mixed + head * ATTENTION_HEAD_DIM, max = -INFINITY, sum = 0;
        memset(out, 0, ATTENTION_HEAD_DIM * sizeof *out);
        for (int32_t block = 0; block < blocks_seen(t, row); block++) {
            int64_t part = ((int64_t)row * b->store.max_blocks + block) * c->n_query_heads + head;
            b->k.attention_merge(&max, &sum, out, t->d->part_max[part], t->d->part_sum[part],
                                 t->d->part_out + part * ATTENTION_HEAD_DIM);
        }
        for (int d = 0; d < ATTENTION_HEAD_DIM; d++) out[d] /= sum;
        b->k.sigmoid_gate(out, t->d->q_gate + (2 * i + 1) * ATTENTION_HEAD_DIM, ATTENTION_HEAD_DIM);
        int32_t groups = ATTENTION_HEAD_DIM / QUANT_GROUP;
        if (b->k.fast)
            b->k.quantize_input(mixed, c->query_size, head * groups, (head + 1) * groups,
                                t->d->mixed_q + (size_t)row * quantized_bytes(c->query_size));
    }
}

static void attention_mixer(step *t)
{
    const model_config *c = &t->b->config;
    decode_scratch *d = t->d;
    const attention_weights *w = &t->layer->attention;
    t->n_jobs = 0;
    add_job(t, &w->q, d->q_gate, 2 * (int64_t)c->query_size);
    add_job(t, &w->k, d->k, c->kv_size);
    add_job(t, &w->v, d->v, c->kv_size);
    project(t, OP_ATTENTION_PROJECTIONS);
    int64_t units = 0, seen = 0, start = profile_start(&t->b->profile);
    for (int32_t i = 0; i < t->n; i++) {
        attention_append(t, i);
        units += (int64_t)blocks_seen(t, i) * c->n_kv_heads;
        seen += t->position[i] + 1;
    }
    thread_pool_run(t->b->pool, units, 1, attention_part, t);
    thread_pool_run(t->b->pool, (int64_t)t->n * c->n_query_heads, 1, attention_combine_part, t);
    profile_stop(&t->b->profile, OP_ATTENTION, start);
    profile_count_attention(t->b, w, t->n, seen, seen);
}

/* ---- the step ---- */

static void call_tap(const step *t, int32_t layer, const float *rows)
{
    for (int32_t i = 0; t->b->tap && i < t->n; i++)
        t->b->tap(t->b->tap_user, layer, t->position[i], 1,
                  rows + (size_t)i * (size_t)t->b->config.hidden_size);
}

/* Pointers to rows of d->u and of d->mixed. */
static void set_inputs(decode_inputs *in, const float *x, const unsigned char *q, int32_t n,
                       int32_t cols)
{
    for (int32_t i = 0; i < n; i++) {
        in->x[i] = x + (size_t)i * (size_t)cols;
        in->q[i] = q + (size_t)i * quantized_bytes(cols);
    }
}

static void run_layer(step *t, int32_t i)
{
    backend *b = t->b;
    const model_config *c = &b->config;
    t->layer = &b->weights->layers[i];
    t->prepared = &b->prepared.layers[i];
    call_tap(t, i, t->d->x);
    norm_rows(t, t->prepared->input_norm, i);
    set_inputs(&t->mixed, t->d->mixed, t->d->mixed_q, t->n,
               t->layer->is_attention ? c->query_size : c->value_size);
    if (t->layer->is_attention)
        attention_mixer(t);
    else
        gdn_mixer(t);
    run_region(b, t->layer->is_attention ? OP_ATTENTION_OUT : OP_GDN_OUT, c->hidden_size, 16,
               output_part, t);
    norm_rows(t, t->prepared->post_norm, i);
    decode_moe(b, t->layer, t->n);
}

static calla_status begin_step(step *t, calla_error *err)
{
    backend *b = t->b;
    int32_t hidden = b->config.hidden_size;
    for (int32_t i = 0; i < t->n; i++) {
        backend_sequence *s = b->requests[i].sequence;
        calla_status status = store_reserve(b, s, 1, err);
        if (status != CALLA_OK) {
            while (i-- > 0) store_trim(b, sequence_of(t, i), t->position[i] + 1);
            return status;
        }
        t->position[i] = s->at.length;
        t->bad_layer[i] = -1;
    }
    int64_t start = profile_start(&b->profile);
    for (int32_t i = 0; i < t->n; i++) {
        backend_sequence *s = sequence_of(t, i);
        if (s->at.length == 0) state_copy(b, s->at.state, NULL);
        b->k.dequantize(&b->weights->embedding, b->requests[i].token, 0, hidden,
                        t->d->x + (size_t)i * (size_t)hidden);
        rope_angles(b, t->position[i], t->d->cosines + i * ROTARY_PAIRS,
                    t->d->sines + i * ROTARY_PAIRS);
    }
    profile_stop(&b->profile, OP_EMBEDDING, start);
    set_inputs(&t->u, t->d->u, t->d->u_q, t->n, hidden);
    return CALLA_OK;
}

calla_status decode_step(backend *b, step_result *results, calla_error *err)
{
    step t = {.b = b, .d = &b->scratch.decode, .n = b->n_requests};
    const model_config *c = &b->config;
    CALLA_TRY(begin_step(&t, err));
    for (int32_t i = 0; i < c->n_layers; i++) run_layer(&t, i);
    norm_rows(&t, b->prepared.final_norm, c->n_layers);
    call_tap(&t, c->n_layers, t.d->u);
    t.n_jobs = 0;
    add_job(&t, &b->weights->head, t.d->logits, c->n_vocab);
    project(&t, OP_HEAD);
    profile_count_ends(b, t.n, t.n);
    for (int32_t i = 0; i < t.n; i++) {
        step_result *r = &results[i];
        sequence_of(&t, i)->at.length++; /* the state has moved on, whatever came out */
        *r = (step_result){.logits = t.d->logits + (size_t)i * (size_t)c->n_vocab};
        if (t.bad_layer[i] >= 0)
            error_set(&r->error, CALLA_ERR_NUMERIC,
                      "activations entering layer %d of %d are not finite at position %lld",
                      t.bad_layer[i], c->n_layers, (long long)t.position[i]);
    }
    return CALLA_OK;
}
