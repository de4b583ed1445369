/* A chunk of a prompt: up to prefill_chunk tokens of one sequence, layer by layer. A token's
 * results do not depend on the chunk: dot products run over one row in one order, attention adds
 * blocks at absolute multiples of 256 in their order, and the recurrence cells at absolute
 * multiples of GDN_CELL. */
#include "cpu/cpu.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* Of one thread in attention_unit: query rows, running and partial outputs; running and partial
 * maxima and sums. */
enum { ATTENTION_TILE_FLOATS = ATTENTION_MAX_ROWS * (3 * ATTENTION_HEAD_DIM + 4) };

static void gdn_take(backend *b, size_t rows)
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

static void attention_take(backend *b, size_t rows)
{
    const model_config *c = &b->config;
    arena *m = &b->scratch.memory;
    prefill_scratch *p = &b->scratch.prefill;
    p->q_gate = take_floats(m, rows, 2 * (size_t)c->query_size);
    p->q = take_floats(m, rows, (size_t)c->query_size);
    p->k = take_floats(m, rows, (size_t)c->kv_size);
    p->v = take_floats(m, rows, (size_t)c->kv_size);
    p->attention_mixed = take_floats(m, rows, (size_t)c->query_size);
    p->cosines = take_floats(m, rows, ROTARY_PAIRS);
    p->sines = take_floats(m, rows, ROTARY_PAIRS);
    p->attention_tile = take_floats(m, (size_t)b->options.n_threads, ATTENTION_TILE_FLOATS);
}

static void moe_take(backend *b, size_t rows)
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

void prefill_scratch_take(backend *b)
{
    const model_config *c = &b->config;
    arena *m = &b->scratch.memory;
    prefill_scratch *p = &b->scratch.prefill;
    size_t rows = (size_t)b->options.prefill_chunk, hidden = (size_t)c->hidden_size;
    int32_t widest = larger_of(c->hidden_size, larger_of(c->query_size, c->value_size));
    p->x = take_floats(m, rows, hidden);
    p->u = take_floats(m, rows, hidden);
    p->out = take_floats(m, rows, hidden);
    p->packed = take(m, 1, 1, packed_bytes(&b->k, b->options.prefill_chunk, widest));
    p->bad_norm = take(m, rows, 1, sizeof(int32_t));
    moe_take(b, rows);
    /* The two mixers use the same memory. */
    size_t start = m->used;
    gdn_take(b, rows);
    size_t gdn_end = m->used;
    m->used = start;
    attention_take(b, rows);
    if (m->used < gdn_end) m->used = gdn_end;
}

typedef struct pieces {
    _Atomic int64_t next;
    int64_t n, piece;
    thread_pool_fn fn;
    void *context;
} pieces;

static void pieces_part(void *context, int64_t begin, int64_t end, int thread)
{
    pieces *p = context;
    (void)begin, (void)end;
    for (;;) {
        int64_t from = atomic_fetch_add_explicit(&p->next, p->piece, memory_order_relaxed);
        if (from >= p->n) return;
        p->fn(p->context, from, from + p->piece < p->n ? from + p->piece : p->n, thread);
    }
}

void run_pieces(thread_pool *pool, int64_t n, int64_t piece, thread_pool_fn fn, void *context)
{
    pieces p = {0, n, piece, fn, context};
    int64_t n_pieces = (n + piece - 1) / piece, threads = thread_pool_size(pool);
    thread_pool_run(pool, n_pieces < threads ? n_pieces : threads, 1, pieces_part, &p);
}

/* One call of `op`: n items in pieces of at least `least`, a multiple of the grain the kernel
 * wants.
 */
static void run_operation(backend *b, operation op, int64_t n, int64_t least, thread_pool_fn fn,
                          void *context)
{
    enum { PER_THREAD = 12 }; /* pieces */
    int64_t share = n / (thread_pool_size(b->pool) * PER_THREAD);
    int64_t start = profile_start(&b->profile);
    run_pieces(b->pool, n, share > least ? share / least * least : least, fn, context);
    profile_stop(&b->profile, op, start);
}

/* ---- what the parallel regions of a chunk see ---- */

typedef struct matrix_job {
    const matrix *m;
    float *y; // [n][stride]
    int64_t stride;
} matrix_job;

typedef struct chunk {
    backend *b;
    prefill_scratch *p;
    backend_sequence *s;
    const int32_t *tokens;
    int32_t n;
    int64_t first; /* position of the first token */
    int32_t index; /* of the layer */
    int32_t norm;  /* 2 * index, or 2 * index + 1 behind the mixer */
    const layer_weights *layer;
    const prepared_layer *prepared;
    const float *factor;  /* of the norm at hand */
    bool add, pack;       /* norm_part adds `out` to x first; packs its output */
    const float *to_pack; /* pack_part: [n][pack_cols] */
    int32_t pack_cols;
    matrix_job jobs[4];
    int32_t n_jobs;
    int32_t n_inputs; /* rows of the packed inputs */
} chunk;

static void project_part(void *context, int64_t begin, int64_t end, int thread)
{
    chunk *t = context;
    (void)thread;
    int64_t first = 0;
    for (int32_t j = 0; j < t->n_jobs; j++) {
        const matrix_job *job = &t->jobs[j];
        int64_t from = begin > first ? begin - first : 0;
        int64_t to = end - first < job->m->rows ? end - first : job->m->rows;
        if (from < to)
            t->b->k.gemm(job->m, (int32_t)from, (int32_t)to, t->p->packed, t->n_inputs, job->y,
                         job->stride);
        first += job->m->rows;
    }
}

static void add_job(chunk *t, const matrix *m, float *y, int64_t stride)
{
    t->jobs[t->n_jobs++] = (matrix_job){m, y, stride};
}

/* Rows of a piece: some tiles of rows, as a piece starts without the last one's overlap. */
enum { PROJECT_ROWS = 128 };

/* The jobs' matrices times the packed rows. */
static void project(chunk *t, operation op, int32_t n_inputs)
{
    int64_t rows = 0;
    for (int32_t j = 0; j < t->n_jobs; j++) rows += t->jobs[j].m->rows;
    t->n_inputs = n_inputs;
    run_operation(t->b, op, rows, PROJECT_ROWS, project_part, t);
    t->n_jobs = 0;
}

/* Packs rows [begin, end), begin a multiple of the tile, of x [n][cols]. */
static void pack_rows(chunk *t, const float *x, int32_t cols, int64_t begin, int64_t end)
{
    t->b->k.pack_input(x + begin * cols, cols, NULL, (int32_t)(end - begin), cols,
                       t->p->packed + packed_bytes(&t->b->k, (int32_t)begin, cols));
}

static void pack_part(void *context, int64_t begin, int64_t end, int thread)
{
    chunk *t = context;
    (void)thread;
    pack_rows(t, t->to_pack, t->pack_cols, begin, end);
}

static void norm_part(void *context, int64_t begin, int64_t end, int thread)
{
    chunk *t = context;
    (void)thread;
    backend *b = t->b;
    int32_t hidden = b->config.hidden_size;
    /* What is packed together comes right after it was written. */
    for (int64_t first = begin; first < end; first += b->k.pack_tile) {
        int64_t behind = first + b->k.pack_tile < end ? first + b->k.pack_tile : end;
        for (int64_t i = first; i < behind; i++) {
            float *x = t->p->x + i * hidden;
            if (t->add) b->k.add_scaled(x, t->p->out + i * hidden, 1.0f, hidden);
            float mean =
                b->k.rmsnorm(x, t->factor, hidden, b->config.rms_eps, t->p->u + i * hidden);
            if (!isfinite(mean) && t->p->bad_norm[i] < 0) t->p->bad_norm[i] = t->norm;
        }
        if (t->pack) pack_rows(t, t->p->u, hidden, first, behind);
    }
}

/* With `add` x += out; u = norm(x), and packed with `pack`. */
static void norm_rows(chunk *t, const float *factor, bool add, bool pack)
{
    t->factor = factor;
    t->add = add;
    t->pack = pack;
    run_operation(t->b, OP_NORMS, t->n, t->b->k.pack_tile, norm_part, t);
}

/* x += out_proj of the packed rows; u = norm(x). */
static void project_output(chunk *t, const matrix *m, operation op)
{
    add_job(t, m, t->p->out, t->b->config.hidden_size);
    project(t, op, t->n);
    t->norm++;
    norm_rows(t, t->prepared->post_norm, true, t->b->k.pack_tile == 1); /* see prefill_moe.c */
}

/* ---- GDN ---- */

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

static void gdn_mixer(chunk *t)
{
    backend *b = t->b;
    const model_config *c = &b->config;
    prefill_scratch *p = t->p;
    const gdn_weights *w = &t->layer->gdn;
    load_window(t);
    add_job(t, &w->qkv, p->c + (CONV_TAPS - 1) * (int64_t)c->conv_channels, c->conv_channels);
    add_job(t, &w->z, p->z, c->value_size);
    add_job(t, &w->a, p->a, c->n_value_heads);
    add_job(t, &w->b, p->b, c->n_value_heads);
    project(t, OP_GDN_PROJECTIONS, t->n);
    store_window(t);
    load_rest(t);
    run_operation(b, OP_GDN_CONV, t->n, 1, convolve_part, t);
    recurrence(t);
    store_rest(t);
    run_operation(b, OP_GDN_OUT, t->n, b->k.pack_tile, gated_norm_part, t);
    project_output(t, &w->out, OP_GDN_OUT);
    profile_count_gdn(b, w, t->n, 1);
}

/* ---- attention ---- */

static void append_part(void *context, int64_t begin, int64_t end, int thread)
{
    chunk *t = context;
    (void)thread;
    backend *b = t->b;
    const model_config *c = &b->config;
    const prepared_layer *l = t->prepared;
    for (int64_t i = begin; i < end; i++) {
        const float *cosines = t->p->cosines + i * ROTARY_PAIRS;
        const float *sines = t->p->sines + i * ROTARY_PAIRS;
        for (int64_t h = i * c->n_query_heads; h < (i + 1) * c->n_query_heads; h++) {
            float *q = t->p->q + h * ATTENTION_HEAD_DIM;
            b->k.rmsnorm(t->p->q_gate + h * 2 * ATTENTION_HEAD_DIM, l->q_norm, ATTENTION_HEAD_DIM,
                         c->rms_eps, q);
            b->k.rope(q, cosines, sines);
            for (int d = 0; d < ATTENTION_HEAD_DIM; d++) q[d] *= 0.0625f; /* 1/sqrt(256), exact */
        }
        for (int32_t m = 0; m < c->n_kv_heads; m++) {
            float *k = t->p->k + (i * c->n_kv_heads + m) * ATTENTION_HEAD_DIM;
            const float *v = t->p->v + (i * c->n_kv_heads + m) * ATTENTION_HEAD_DIM;
            b->k.rmsnorm(k, l->k_norm, ATTENTION_HEAD_DIM, c->rms_eps, k);
            b->k.rope(k, cosines, sines);
            store_write(b, t->s, t->first + i, l->attention_index, 0, m, k);
            store_write(b, t->s, t->first + i, l->attention_index, 1, m, v);
        }
    }
}

/* Query rows of one KV head: the query heads of some tokens. */
typedef struct query_tile {
    int32_t token, n_tokens; /* within the chunk */
    int32_t head, n_heads;   /* query heads, consecutive */
    int32_t kv_head;
    float *q, *out, *part_out; // [n_tokens * n_heads][256]
    float *max, *sum, *part_max, *part_sum;
} query_tile;

/* All blocks a tile sees, in order. */
static void attend(chunk *t, const query_tile *tile)
{
    backend *b = t->b;
    int32_t n_rows = tile->n_tokens * tile->n_heads, visible[ATTENTION_MAX_ROWS];
    int64_t last = t->first + tile->token + tile->n_tokens - 1;
    for (int32_t r = 0; r < n_rows; r++) tile->max[r] = -INFINITY, tile->sum[r] = 0;
    memset(tile->out, 0, (size_t)n_rows * ATTENTION_HEAD_DIM * sizeof(float));
    for (int32_t block = 0; block <= last / KV_BLOCK_TOKENS; block++) {
        for (int32_t r = 0; r < n_rows; r++) {
            int64_t left =
                t->first + tile->token + r / tile->n_heads + 1 - (int64_t)block * KV_BLOCK_TOKENS;
            visible[r] = (int32_t)(left < 0 ? 0 : left < KV_BLOCK_TOKENS ? left : KV_BLOCK_TOKENS);
        }
        int32_t number = t->s->at.blocks[block], index = t->prepared->attention_index;
        attention_block_args a = {.q = tile->q,
                                  .n_rows = n_rows,
                                  .visible = visible,
                                  .k = store_kv(b, number, index, 0, tile->kv_head),
                                  .v = store_kv(b, number, index, 1, tile->kv_head),
                                  .max = tile->part_max,
                                  .sum = tile->part_sum,
                                  .out = tile->part_out};
        if (b->kv_f32)
            b->k.attention_block_f32(&a);
        else
            b->k.attention_tile_f16(&a);
        for (int32_t r = 0; r < n_rows; r++)
            b->k.attention_merge(&tile->max[r], &tile->sum[r], tile->out + r * ATTENTION_HEAD_DIM,
                                 a.max[r], a.sum[r], a.out + r * ATTENTION_HEAD_DIM);
    }
}

static void attention_tile(chunk *t, query_tile *tile)
{
    const model_config *c = &t->b->config;
    for (int32_t i = 0; i < tile->n_tokens; i++)
        memcpy(tile->q + i * tile->n_heads * ATTENTION_HEAD_DIM,
               t->p->q + ((int64_t)(tile->token + i) * c->n_query_heads + tile->head) *
                             ATTENTION_HEAD_DIM,
               (size_t)tile->n_heads * ATTENTION_HEAD_DIM * sizeof(float));
    attend(t, tile);
    for (int32_t r = 0; r < tile->n_tokens * tile->n_heads; r++) {
        int64_t head = (int64_t)(tile->token + r / tile->n_heads) * c->n_query_heads + tile->head +
                       r % tile->n_heads;
        float *out = t->p->attention_mixed + head * ATTENTION_HEAD_DIM;
        const float *from = tile->out + r * ATTENTION_HEAD_DIM;
        for (int d = 0; d < ATTENTION_HEAD_DIM; d++) out[d] = from[d] / tile->sum[r];
        t->b->k.sigmoid_gate(out, t->p->q_gate + (2 * head + 1) * ATTENTION_HEAD_DIM,
                             ATTENTION_HEAD_DIM);
    }
}

static int32_t tile_tokens(const chunk *t)
{
    int32_t heads = t->b->config.n_query_heads / t->b->config.n_kv_heads;
    return larger_of(1, ATTENTION_MAX_ROWS / heads);
}

/* A tile of tokens of one KV head; the last tokens, which see most, first. */
static void attention_unit(chunk *t, int32_t unit, int thread)
{
    const model_config *c = &t->b->config;
    int32_t heads = c->n_query_heads / c->n_kv_heads, tokens = tile_tokens(t);
    int32_t token = (divide_up(t->n, tokens) - 1 - unit / c->n_kv_heads) * tokens;
    int32_t m = unit % c->n_kv_heads;
    const size_t floats = (size_t)ATTENTION_MAX_ROWS * ATTENTION_HEAD_DIM;
    float *memory = t->p->attention_tile + (size_t)thread * ATTENTION_TILE_FLOATS;
    float *small = memory + 3 * floats;
    for (int32_t h = 0; h < heads; h += ATTENTION_MAX_ROWS) {
        query_tile tile = {.token = token,
                           .n_tokens = smaller_of(tokens, t->n - token),
                           .head = m * heads + h,
                           .n_heads = smaller_of(heads - h, ATTENTION_MAX_ROWS),
                           .kv_head = m,
                           .q = memory,
                           .out = memory + floats,
                           .part_out = memory + 2 * floats,
                           .max = small,
                           .sum = small + ATTENTION_MAX_ROWS,
                           .part_max = small + 2 * ATTENTION_MAX_ROWS,
                           .part_sum = small + 3 * ATTENTION_MAX_ROWS};
        attention_tile(t, &tile);
    }
}

static void attention_part(void *context, int64_t begin, int64_t end, int thread)
{
    for (int64_t unit = begin; unit < end; unit++) attention_unit(context, (int32_t)unit, thread);
}

static void attention_mixer(chunk *t)
{
    const model_config *c = &t->b->config;
    prefill_scratch *p = t->p;
    const attention_weights *w = &t->layer->attention;
    for (int32_t i = 0; i < t->n; i++)
        rope_angles(t->b, t->first + i, p->cosines + i * ROTARY_PAIRS, p->sines + i * ROTARY_PAIRS);
    add_job(t, &w->q, p->q_gate, 2 * (int64_t)c->query_size);
    add_job(t, &w->k, p->k, c->kv_size);
    add_job(t, &w->v, p->v, c->kv_size);
    project(t, OP_ATTENTION_PROJECTIONS, t->n);
    int64_t start = profile_start(&t->b->profile);
    run_pieces(t->b->pool, t->n, 16, append_part, t);
    run_pieces(t->b->pool, divide_up(t->n, tile_tokens(t)) * c->n_kv_heads, 1, attention_part, t);
    profile_stop(&t->b->profile, OP_ATTENTION, start);
    t->to_pack = p->attention_mixed;
    t->pack_cols = w->o.cols;
    run_operation(t->b, OP_ATTENTION_OUT, t->n, t->b->k.pack_tile, pack_part, t);
    project_output(t, &w->o, OP_ATTENTION_OUT);
    int64_t end = t->first + t->n;
    profile_count_attention(t->b, w, t->n, end * (end + 1) / 2 - t->first * (t->first + 1) / 2,
                            end);
}

/* ---- the chunk ---- */

static void embed_part(void *context, int64_t begin, int64_t end, int thread)
{
    chunk *t = context;
    (void)thread;
    int32_t hidden = t->b->config.hidden_size;
    for (int64_t i = begin; i < end; i++)
        t->b->k.dequantize(&t->b->weights->embedding, t->tokens[i], 0, hidden,
                           t->p->x + i * hidden);
}

static void call_tap(const chunk *t, int32_t layer, const float *rows)
{
    if (t->b->tap) t->b->tap(t->b->tap_user, layer, t->first, t->n, rows);
}

static void run_layer(chunk *t, int32_t i)
{
    t->index = i;
    t->norm = 2 * i;
    t->layer = &t->b->weights->layers[i];
    t->prepared = &t->b->prepared.layers[i];
    call_tap(t, i, t->p->x);
    norm_rows(t, t->prepared->input_norm, false, true);
    if (t->layer->is_attention)
        attention_mixer(t);
    else
        gdn_mixer(t);
    prefill_moe(t->b, i, t->first, t->n);
}

/* Names the token where it began: of those found at the first norm that found any, the first. Later
 * tokens see it through the state, and earlier ones may through a product with a masked zero. */
static calla_status check_finite(const chunk *t, calla_error *err)
{
    int32_t worst = -1;
    for (int32_t i = 0; i < t->n; i++)
        if (t->p->bad_norm[i] >= 0 && (worst < 0 || t->p->bad_norm[i] < t->p->bad_norm[worst]))
            worst = i;
    if (worst < 0) return CALLA_OK;
    return error_set(err, CALLA_ERR_NUMERIC,
                     "activations entering layer %d of %d are not finite at position %lld",
                     t->p->bad_norm[worst] / 2, t->b->config.n_layers,
                     (long long)(t->first + worst));
}

/* Logits of the last row or of all rows: the same arithmetic. */
static void project_logits(chunk *t, logits_mode mode, float *logits)
{
    backend *b = t->b;
    int32_t hidden = b->config.hidden_size, n = mode == LOGITS_ALL ? t->n : 1;
    t->to_pack = t->p->u + (int64_t)(t->n - n) * hidden;
    t->pack_cols = hidden;
    run_operation(b, OP_HEAD, n, b->k.pack_tile, pack_part, t);
    add_job(t, &b->weights->head, logits, b->config.n_vocab);
    project(t, OP_HEAD, n);
}

static calla_status run_chunk(chunk *t, const calla_control *control, calla_error *err)
{
    backend *b = t->b;
    for (int32_t i = 0; i < t->n; i++) t->p->bad_norm[i] = -1;
    run_operation(b, OP_EMBEDDING, t->n, 1, embed_part, t);
    for (int32_t i = 0; i < b->config.n_layers; i++) {
        if (is_cancelled(control))
            return error_set(err, CALLA_ERR_CANCELLED, "cancelled at position %lld",
                             (long long)t->first);
        run_layer(t, i);
    }
    t->norm = 2 * b->config.n_layers;
    norm_rows(t, b->prepared.final_norm, false, false);
    call_tap(t, b->config.n_layers, t->p->u);
    return check_finite(t, err);
}

calla_status prefill_chunk(backend *b, backend_sequence *s, const int32_t *tokens, int32_t n,
                           logits_mode mode, float *logits, const calla_control *control,
                           calla_error *err)
{
    chunk t = {
        .b = b, .p = &b->scratch.prefill, .s = s, .tokens = tokens, .n = n, .first = s->at.length};
    CALLA_TRY(store_reserve(b, s, n, err));
    calla_status status = run_chunk(&t, control, err);
    if (status != CALLA_OK) {
        store_trim(b, s, t.first + n);
        return status;
    }
    if (mode != LOGITS_NONE) project_logits(&t, mode, logits);
    profile_count_ends(b, n, mode == LOGITS_ALL ? n : mode == LOGITS_LAST);
    float *state = s->at.state;
    s->at.state = b->store.spare_state;
    b->store.spare_state = state;
    s->at.length += n;
    return CALLA_OK;
}
