/* The Gated DeltaNet mixer of a prefill chunk (MODEL.md 3.4 to 3.7): projections with the
 * convolution behind them, some heads at a time; the recurrence in cells of GDN_CELL tokens at
 * absolute positions, a slice of a head at a time. */
#include "cpu/prefill.h"

#include <string.h>

enum {
    PROJECTED_TOKENS = 256, /* at a time: their inputs, 1 MB, stay in L2 beside what they give */
    PROJECTED_HEADS = 4,    /* of a piece, which reads all inputs once */
};

/* A head's rows with the three before them, or a and b. */
static size_t projected_floats(const model_config *c)
{
    return (size_t)(PROJECTED_TOKENS + CONV_TAPS - 1) *
           (size_t)larger_of(GDN_HEAD_DIM, 2 * c->n_value_heads);
}

void chunk_gdn_take(backend *b, size_t rows)
{
    const model_config *c = &b->config;
    arena *m = &b->scratch.memory;
    prefill_scratch *p = &b->scratch.prefill;
    size_t heads = (size_t)c->n_value_heads;
    size_t cells = (rows + GDN_CELL - 1) / GDN_CELL + 1, most = rows + GDN_CELL - 1;
    p->projected = take_floats(m, (size_t)b->options.n_threads, projected_floats(c));
    p->qk = take_floats(m, most, 2 * (size_t)c->key_size);
    p->products = take_floats(m, cells * (size_t)c->n_key_heads, GDN_CELL_PRODUCTS);
    p->decay = take_floats(m, most, heads);
    p->values = take_floats(m, most, (size_t)c->value_size);
    p->mixed = take(m, 1, 1, packed_bytes(&b->k, (int32_t)rows, c->value_size));
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

/* ---- projections and convolution ---- */

/* Tokens from `first` of the chunk on are to be convolved: the three rows of a head before them,
 * zeros before the text. Within the chunk they are where the ones before left them. */
static void load_window(const chunk *t, int32_t head, int32_t first, float *rows)
{
    float *state = first == 0 ? t->s->at.state : t->b->store.spare_state;
    for (int i = 0; i < CONV_TAPS - 1; i++, rows += GDN_HEAD_DIM) {
        int64_t position = t->first + first + 1 + i;
        if (t->first + first == 0)
            memset(rows, 0, GDN_HEAD_DIM * sizeof(float));
        else
            memcpy(rows,
                   state_window(t->b, state, t->prepared->gdn_index, position) +
                       head * GDN_HEAD_DIM,
                   GDN_HEAD_DIM * sizeof(float));
    }
}

/* The last three rows of a head before token `first` of the chunk to the new state. */
static void store_window(const chunk *t, int32_t head, int32_t first, const float *rows)
{
    for (int i = 0; i < CONV_TAPS - 1; i++)
        memcpy(state_window(t->b, t->b->store.spare_state, t->prepared->gdn_index,
                            t->first + first + 1 + i) +
                   head * GDN_HEAD_DIM,
               rows + i * GDN_HEAD_DIM, GDN_HEAD_DIM * sizeof(float));
}

/* n rows of `rows`, the first three of which come before token `first`. */
static void convolve(const chunk *t, int32_t head, int32_t first, int32_t n, const float *rows)
{
    const model_config *c = &t->b->config;
    const cpu_kernels *k = &t->b->k;
    const float *taps = t->prepared->conv + (size_t)head * GDN_HEAD_DIM;
    for (int32_t i = 0; i < n; i++, rows += GDN_HEAD_DIM) {
        const float *at[CONV_TAPS];
        for (int j = 0; j < CONV_TAPS; j++) at[j] = rows + j * GDN_HEAD_DIM;
        float *x = convolved_row(t, head, first + i);
        k->conv_silu(at, taps, c->conv_channels, 0, GDN_HEAD_DIM, x);
        if (head < 2 * c->n_key_heads)
            k->l2norm(x, head < c->n_key_heads ? 1.0f / sqrtf(GDN_HEAD_DIM) : 1.0f);
    }
}

/* y [n][to - from] = rows [from, to) of m times tokens [first, first + n). */
static void project_rows(const chunk *t, const matrix *m, int32_t from, int32_t to, int32_t first,
                         int32_t n, float *y)
{
    const cpu_kernels *k = &t->b->k;
    matrix rows = matrix_rows(m, from, to - from);
    k->gemm(&rows, 0, to - from, t->inputs + packed_bytes(k, first, m->cols), n, y, to - from);
}

/* A head of queries, keys or values: what is projected stays in L2 until it is convolved. */
static void project_head(const chunk *t, int32_t head, int32_t first, int32_t n, float *projected)
{
    float *rows = projected + (CONV_TAPS - 1) * GDN_HEAD_DIM;
    load_window(t, head, first, projected);
    project_rows(t, &t->layer->gdn.qkv, head * GDN_HEAD_DIM, (head + 1) * GDN_HEAD_DIM, first, n,
                 rows);
    convolve(t, head, first, n, projected);
    store_window(t, head, first + n, projected + (size_t)n * GDN_HEAD_DIM);
}

static void project_gates(const chunk *t, int32_t first, int32_t n, float *projected)
{
    const int32_t heads = t->b->config.n_value_heads;
    float *a = projected, *b = a + (size_t)n * (size_t)heads;
    project_rows(t, &t->layer->gdn.a, 0, heads, first, n, a);
    project_rows(t, &t->layer->gdn.b, 0, heads, first, n, b);
    for (int32_t i = 0; i < n; i++)
        t->b->k.gdn_gates(
            a + i * heads, b + i * heads, t->prepared->neg_exp_a, t->prepared->dt_bias, heads,
            t->p->decay + (tokens_before(t) + first + i) * heads, t->p->beta + (first + i) * heads);
}

/* Heads of the convolution [begin, end), behind the last one the gates: of some tokens at a time,
 * whose inputs stay in L2, too. */
static void project_part(void *context, int64_t begin, int64_t end, int thread)
{
    chunk *t = context;
    const int64_t n_heads = t->b->config.conv_channels / GDN_HEAD_DIM;
    float *projected = t->p->projected + (size_t)thread * projected_floats(&t->b->config);
    for (int32_t first = 0; first < t->n; first += PROJECTED_TOKENS) {
        int32_t n = smaller_of(PROJECTED_TOKENS, t->n - first);
        for (int64_t i = begin; i < end; i++)
            if (i < n_heads)
                project_head(t, (int32_t)i, first, n, projected);
            else
                project_gates(t, first, n, projected);
    }
}

/* ---- recurrence ---- */

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

/* ---- output ---- */

/* A value head of some tokens: what the recurrence gave is normed and packed as soon as its gate is
 * projected. */
static void gate_head(const chunk *t, int32_t head, int32_t first, int32_t n, float *projected)
{
    const model_config *c = &t->b->config;
    const cpu_kernels *k = &t->b->k;
    const int32_t column = head * GDN_HEAD_DIM;
    const float *out = value_rows(t, head) + (size_t)first * GDN_HEAD_DIM;
    project_rows(t, &t->layer->gdn.z, column, column + GDN_HEAD_DIM, first, n, projected);
    for (int32_t i = 0; i < n; i++) {
        float *z = projected + i * GDN_HEAD_DIM;
        k->gated_norm(out + i * GDN_HEAD_DIM, z, t->prepared->gdn_norm, c->rms_eps, z);
    }
    pack_input_columns(k, projected, n, column, GDN_HEAD_DIM, c->value_size,
                       t->p->mixed + packed_bytes(k, first, c->value_size));
}

/* Units: value heads of PROJECTED_TOKENS tokens, then of the next. */
static void gate_part(void *context, int64_t begin, int64_t end, int thread)
{
    const chunk *t = context;
    const model_config *c = &t->b->config;
    float *projected = t->p->projected + (size_t)thread * projected_floats(c);
    for (int64_t unit = begin; unit < end; unit++) {
        int32_t first = (int32_t)(unit / c->n_value_heads) * PROJECTED_TOKENS;
        gate_head(t, (int32_t)(unit % c->n_value_heads), first,
                  smaller_of(PROJECTED_TOKENS, t->n - first), projected);
    }
}

void chunk_gdn(chunk *t)
{
    backend *b = t->b;
    const model_config *c = &b->config;
    const gdn_weights *w = &t->layer->gdn;
    const int32_t conv_heads = c->conv_channels / GDN_HEAD_DIM;
    load_rest(t);
    chunk_run_ending(b, OP_GDN_PROJECTIONS, conv_heads + 1, PROJECTED_HEADS, project_part, t);
    recurrence(t);
    store_rest(t);
    chunk_run_ending(b, OP_GDN_PROJECTIONS,
                     (int64_t)divide_up(t->n, PROJECTED_TOKENS) * c->n_value_heads, PROJECTED_HEADS,
                     gate_part, t);
    t->inputs = t->p->mixed;
    chunk_project_output(t, &w->out, OP_GDN_OUT);
    profile_count_gdn(b, w, t->n, 1);
}
