/* The Gated DeltaNet mixer of a prefill chunk (MODEL.md 3.4 to 3.7): convolution and gates by
 * token, the recurrence in cells of GDN_CELL tokens at absolute positions, a slice of a head at a
 * time. */
#include "cpu/prefill.h"

#include <string.h>

void chunk_gdn_take(backend *b, size_t rows)
{
    const model_config *c = &b->config;
    arena *m = &b->scratch.memory;
    prefill_scratch *p = &b->scratch.prefill;
    size_t heads = (size_t)c->n_value_heads;
    p->c = take_floats(m, rows + CONV_TAPS - 1, (size_t)c->conv_channels);
    size_t cells = (rows + GDN_CELL - 1) / GDN_CELL + 1, most = rows + GDN_CELL - 1;
    p->convolved = take_floats(m, (size_t)b->options.n_threads, (size_t)c->conv_channels);
    p->qk = take_floats(m, most, 2 * (size_t)c->key_size);
    p->products = take_floats(m, cells * (size_t)c->n_key_heads, GDN_CELL_PRODUCTS);
    p->decay = take_floats(m, most, heads);
    p->values = take_floats(m, most, (size_t)c->value_size);
    p->z = take_floats(m, rows, (size_t)c->value_size);
    p->mixed = take_floats(m, (size_t)b->options.n_threads * (size_t)b->k.pack_tile,
                           (size_t)c->value_size);
    p->a = take_floats(m, rows, heads);
    p->b = take_floats(m, rows, heads);
    p->beta = take_floats(m, rows, heads);
}

/* Tokens of the first cell that came before the chunk. */
static int32_t tokens_before(const chunk *t)
{
    return (int32_t)(t->first % GDN_CELL);
}

/* Tokens of one key head of which the chunk knows q and k. */
static float *key_rows(const chunk *t, int32_t key_head)
{
    size_t most = (size_t)t->b->options.prefill_chunk + GDN_CELL - 1;
    return t->p->qk + (size_t)key_head * most * 2 * GDN_HEAD_DIM;
}

static float *key_products(const chunk *t, int32_t key_head)
{
    size_t cells = (size_t)divide_up(t->b->options.prefill_chunk, GDN_CELL) + 1;
    return t->p->products + (size_t)key_head * cells * GDN_CELL_PRODUCTS;
}

static float *value_rows(const chunk *t, int32_t head)
{
    size_t most = (size_t)t->b->options.prefill_chunk + GDN_CELL - 1;
    return t->p->values + (size_t)head * most * GDN_HEAD_DIM;
}

/* Where token i's row of a head of the convolution is: queries' heads come first, then keys', then
 * values'. Heads are R rows apart, which is no power of two: at 1 MB from each other they would
 * meet in the same few lines of the caches, and the convolution took twice as long. */
static float *convolved_row(const chunk *t, int32_t head, int64_t i)
{
    int32_t key_heads = t->b->config.n_key_heads;
    if (head >= 2 * key_heads) return value_rows(t, head - 2 * key_heads) + i * GDN_HEAD_DIM;
    float *qk = key_rows(t, head % key_heads) + (tokens_before(t) + i) * 2 * GDN_HEAD_DIM;
    return head < key_heads ? qk : qk + GDN_HEAD_DIM;
}

/* Heads [from, to) of a token. */
static void convolve_heads(chunk *t, int64_t i, int32_t from, int32_t to, float *f)
{
    const model_config *c = &t->b->config;
    const cpu_kernels *k = &t->b->k;
    const float *rows[CONV_TAPS];
    for (int j = 0; j < CONV_TAPS; j++) rows[j] = t->p->c + (i + j) * c->conv_channels;
    k->conv_silu(rows, t->prepared->conv, c->conv_channels, from * GDN_HEAD_DIM, to * GDN_HEAD_DIM,
                 f);
    for (int32_t h = from; h < to; h++) {
        float *x = f + h * GDN_HEAD_DIM;
        if (h < 2 * c->n_key_heads)
            k->l2norm(x, h < c->n_key_heads ? 1.0f / sqrtf(GDN_HEAD_DIM) : 1.0f);
        memcpy(convolved_row(t, h, i), x, GDN_HEAD_DIM * sizeof(float));
    }
}

/* Tokens [begin, end), some heads of all of them at a time: their taps and the four rows a token
 * needs stay in L1. */
static void convolve_part(void *context, int64_t begin, int64_t end, int thread)
{
    enum { HEADS = 8 };
    chunk *t = context;
    const model_config *c = &t->b->config;
    prefill_scratch *p = t->p;
    const int32_t n_heads = c->conv_channels / GDN_HEAD_DIM;
    float *f = p->convolved + (size_t)thread * (size_t)c->conv_channels;
    for (int32_t h = 0; h < n_heads; h += HEADS)
        for (int64_t i = begin; i < end; i++)
            convolve_heads(t, i, h, smaller_of(h + HEADS, n_heads), f);
    for (int64_t i = begin; i < end; i++) {
        int64_t gates = i * c->n_value_heads;
        t->b->k.gdn_gates(p->a + gates, p->b + gates, t->prepared->neg_exp_a, t->prepared->dt_bias,
                          c->n_value_heads, p->decay + gates + tokens_before(t) * c->n_value_heads,
                          p->beta + gates);
    }
}

/* Units: cells of key heads. */
static void products_part(void *context, int64_t begin, int64_t end, int thread)
{
    chunk *t = context;
    (void)thread;
    int32_t before = tokens_before(t), cells = divide_up(before + t->n, GDN_CELL);
    for (int64_t unit = begin; unit < end; unit++) {
        int32_t head = (int32_t)(unit / cells), cell = (int32_t)(unit % cells);
        int32_t from = cell * GDN_CELL, first = cell == 0 ? before : 0;
        const float *qk = key_rows(t, head) + from * 2 * GDN_HEAD_DIM;
        t->b->k.gdn_products(
            &(gdn_products_args){.first = first,
                                 .n_tokens = smaller_of(GDN_CELL, before + t->n - from) - first,
                                 .q = qk + first * 2 * GDN_HEAD_DIM,
                                 .k = qk + GDN_HEAD_DIM,
                                 .qk_stride = 2 * GDN_HEAD_DIM,
                                 .out = key_products(t, head) + (size_t)cell * GDN_CELL_PRODUCTS});
    }
}

/* A slice of a head at the chunk's start: its state, and d of the tokens since. */
static void load_slice(const chunk *t, int64_t unit, float *state, float *rest)
{
    const backend *b = t->b;
    const size_t floats = (size_t)GDN_HEAD_DIM * GDN_SLICE, rests = (GDN_CELL - 1) * GDN_SLICE;
    if (t->first == 0) {
        memset(state, 0, floats * sizeof(float));
        return;
    }
    int32_t index = t->prepared->gdn_index;
    memcpy(state, state_scan(b, t->s->at.state, index) + (size_t)unit * floats,
           floats * sizeof(float));
    memcpy(rest, state_rest_of(b, t->s->at.state, index).d + (size_t)unit * rests,
           rests * sizeof(float));
}

/* Units: slices of value heads, over all tokens of the chunk. Outputs take the place of values. */
static void scan_part(void *context, int64_t begin, int64_t end, int thread)
{
    chunk *t = context;
    (void)thread;
    backend *b = t->b;
    const model_config *c = &b->config;
    const size_t floats = (size_t)GDN_HEAD_DIM * GDN_SLICE, rests = (GDN_CELL - 1) * GDN_SLICE;
    float *states = state_scan(b, b->store.spare_state, t->prepared->gdn_index);
    state_rest to = state_rest_of(b, b->store.spare_state, t->prepared->gdn_index);
    int32_t before = tokens_before(t);
    for (int64_t unit = begin; unit < end; unit++) {
        int32_t head = (int32_t)(unit / HEAD_SLICES), slice = (int32_t)(unit % HEAD_SLICES);
        int32_t key_head = head / (c->n_value_heads / c->n_key_heads);
        const float *qk = key_rows(t, key_head);
        float *state = states + (size_t)unit * floats, *rest = to.d + (size_t)unit * rests;
        float *values = value_rows(t, head) + slice * GDN_SLICE;
        load_slice(t, unit, state, rest);
        b->k.gdn_scan(&(gdn_scan_args){.state = state,
                                       .rest = rest,
                                       .first = before,
                                       .n_tokens = t->n,
                                       .q = qk + before * 2 * GDN_HEAD_DIM,
                                       .k = qk + GDN_HEAD_DIM,
                                       .qk_stride = 2 * GDN_HEAD_DIM,
                                       .products = key_products(t, key_head),
                                       .v = values,
                                       .v_stride = GDN_HEAD_DIM,
                                       .decay = t->p->decay + head,
                                       .beta = t->p->beta + head,
                                       .gate_stride = c->n_value_heads,
                                       .out = values,
                                       .out_stride = GDN_HEAD_DIM});
    }
}

/* Keys and decays of the tokens since the last whole cell: to the front of the chunk's. */
static void load_rest(chunk *t)
{
    const model_config *c = &t->b->config;
    int32_t n = tokens_before(t);
    if (n == 0) return;
    state_rest from = state_rest_of(t->b, t->s->at.state, t->prepared->gdn_index);
    memcpy(t->p->decay, from.decay, (size_t)n * (size_t)c->n_value_heads * sizeof(float));
    for (int32_t h = 0; h < c->n_key_heads; h++)
        for (int32_t i = 0; i < n; i++)
            memcpy(key_rows(t, h) + (2 * i + 1) * GDN_HEAD_DIM,
                   from.k + ((size_t)h * (GDN_CELL - 1) + (size_t)i) * GDN_HEAD_DIM,
                   GDN_HEAD_DIM * sizeof(float));
}

/* Those since the last whole cell at the chunk's end: to the new state. */
static void store_rest(chunk *t)
{
    const model_config *c = &t->b->config;
    int32_t all = tokens_before(t) + t->n, n = all % GDN_CELL, heads = c->n_value_heads;
    state_rest to = state_rest_of(t->b, t->b->store.spare_state, t->prepared->gdn_index);
    memcpy(to.decay, t->p->decay + (size_t)(all - n) * (size_t)heads,
           (size_t)n * (size_t)heads * sizeof(float));
    for (int32_t h = 0; h < c->n_key_heads; h++)
        for (int32_t i = 0; i < n; i++)
            memcpy(to.k + ((size_t)h * (GDN_CELL - 1) + (size_t)i) * GDN_HEAD_DIM,
                   key_rows(t, h) + (2 * (all - n + i) + 1) * GDN_HEAD_DIM,
                   GDN_HEAD_DIM * sizeof(float));
}

static void recurrence(chunk *t)
{
    const model_config *c = &t->b->config;
    int64_t start = profile_start(&t->b->profile);
    int64_t cells = divide_up(tokens_before(t) + t->n, GDN_CELL);
    run_pieces(t->b->pool, cells * c->n_key_heads, 8, products_part, t);
    run_pieces(t->b->pool, (int64_t)c->n_value_heads * HEAD_SLICES, 1, scan_part, t);
    profile_stop(&t->b->profile, OP_GDN_SCAN, start);
}

/* Tokens [begin, end), begin a multiple of the tile: normed and packed. */
static void gated_norm_part(void *context, int64_t begin, int64_t end, int thread)
{
    chunk *t = context;
    const model_config *c = &t->b->config;
    const cpu_kernels *k = &t->b->k;
    float *mixed = t->p->mixed + (int64_t)thread * k->pack_tile * c->value_size;
    for (int64_t first = begin; first < end; first += k->pack_tile) {
        int32_t n = end - first < k->pack_tile ? (int32_t)(end - first) : k->pack_tile;
        for (int32_t h = 0; h < c->n_value_heads; h++)
            for (int64_t i = first; i < first + n; i++)
                k->gated_norm(value_rows(t, h) + i * GDN_HEAD_DIM,
                              t->p->z + i * c->value_size + h * GDN_HEAD_DIM, t->prepared->gdn_norm,
                              c->rms_eps, mixed + (i - first) * c->value_size + h * GDN_HEAD_DIM);
        k->pack_input(mixed, c->value_size, NULL, n, c->value_size,
                      t->p->packed + packed_bytes(k, (int32_t)first, c->value_size));
    }
}

/* The three rows before the chunk to the front of c; at the end the last three to the new state. */
static void load_window(chunk *t)
{
    size_t bytes = (size_t)t->b->config.conv_channels * sizeof(float);
    for (int i = 0; i < CONV_TAPS - 1; i++) {
        float *row = t->p->c + i * t->b->config.conv_channels;
        if (t->first == 0)
            memset(row, 0, bytes);
        else
            memcpy(row,
                   state_window(t->b, t->s->at.state, t->prepared->gdn_index, t->first + 1 + i),
                   bytes);
    }
}

static void store_window(chunk *t)
{
    size_t bytes = (size_t)t->b->config.conv_channels * sizeof(float);
    for (int i = 0; i < CONV_TAPS - 1; i++)
        memcpy(state_window(t->b, t->b->store.spare_state, t->prepared->gdn_index,
                            t->first + t->n + 1 + i),
               t->p->c + (int64_t)(t->n + i) * t->b->config.conv_channels, bytes);
}

void chunk_gdn(chunk *t)
{
    backend *b = t->b;
    const model_config *c = &b->config;
    prefill_scratch *p = t->p;
    const gdn_weights *w = &t->layer->gdn;
    load_window(t);
    chunk_add_product(t, &w->qkv, p->c + (CONV_TAPS - 1) * (int64_t)c->conv_channels,
                      c->conv_channels);
    chunk_add_product(t, &w->z, p->z, c->value_size);
    chunk_add_product(t, &w->a, p->a, c->n_value_heads);
    chunk_add_product(t, &w->b, p->b, c->n_value_heads);
    chunk_project(t, OP_GDN_PROJECTIONS, t->n);
    store_window(t);
    load_rest(t);
    chunk_run(b, OP_GDN_CONV, t->n, 1, convolve_part, t);
    recurrence(t);
    store_rest(t);
    chunk_run(b, OP_GDN_OUT, t->n, b->k.pack_tile, gated_norm_part, t);
    chunk_project_output(t, &w->out, OP_GDN_OUT);
    profile_count_gdn(b, w, t->n, 1);
}
