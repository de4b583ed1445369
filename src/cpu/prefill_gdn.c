/* The Gated DeltaNet mixer of a prefill chunk (MODEL.md 3.4 to 3.7): projections with the
 * convolution behind them, some heads at a time; the recurrence in cells of GDN_CELL tokens at
 * absolute positions, a slice of a head at a time. */
#include "cpu/prefill.h"

#include <string.h>

enum { PROJECTED_HEADS = 2 }; /* of a piece of work, which reads all inputs once */

/* GEMM_PIECE rows of heads with the three before them, or of a and b. */
static size_t projected_floats(const model_config *c)
{
    return (size_t)(GEMM_PIECE + CONV_TAPS - 1) *
           (size_t)larger_of(PROJECTED_HEADS * GDN_HEAD_DIM, 2 * c->n_value_heads);
}

/* Cells whose packed keys and queries (of one key head) a thread has at a time: they stay in L2
 * while its slices go over them. */
enum { PACKED_CELLS = 32 };

void chunk_gdn_take(backend *b, size_t rows)
{
    const model_config *c = &b->config;
    arena *m = &b->scratch.memory;
    prefill_scratch *p = &b->scratch.prefill;
    size_t heads = (size_t)c->n_value_heads;
    size_t cells = (rows + GDN_CELL - 1) / GDN_CELL + 1, most = rows + GDN_CELL - 1;
    p->projected = take_floats(m, (size_t)b->options.n_threads, projected_floats(c));
    p->qk = take_floats(m, most, 2 * (size_t)c->key_size);
    size_t packed = (size_t)b->options.n_threads * PACKED_CELLS;
    p->products =
        take_floats(m, b->k.gdn_pack ? packed : cells * (size_t)c->n_key_heads, GDN_CELL_PRODUCTS);
    p->gdn_packed = take(m, packed, (size_t)b->k.gdn_packed_bytes, 1);
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

/* Some heads whose rows are projected a piece of tokens at a time, which stays in L2 until it is
 * done with. */
typedef struct projection {
    chunk *t;
    int32_t first_head, n_heads;
    int32_t first_token;
    float *window; // [3 + GEMM_PIECE][n_heads * 128]: rows of the piece behind three before it
    float *rows;   // window + 3 rows
    void *scratch; /* the thread's, of gemm_pieces */
} projection;

static projection projection_of(chunk *t, int32_t first_head, int32_t n_heads, int thread)
{
    float *window = t->p->projected + (size_t)thread * projected_floats(&t->b->config);
    return (projection){.t = t,
                        .first_head = first_head,
                        .n_heads = n_heads,
                        .window = window,
                        .rows = window + (CONV_TAPS - 1) * n_heads * GDN_HEAD_DIM,
                        .scratch = gemm_scratch(t->p, thread)};
}

/* Calls `done` with n tokens' rows of m's heads, piece by piece. */
static void project_pieces(projection *a, const matrix *m, int32_t n, gemm_done_fn *done)
{
    const cpu_kernels *k = &a->t->b->k;
    const unsigned char *inputs = a->t->inputs + packed_bytes(k, a->first_token, m->cols);
    matrix rows = matrix_rows(m, a->first_head * GDN_HEAD_DIM, a->n_heads * GDN_HEAD_DIM);
    if (k->gemm_pieces) {
        k->gemm_pieces(&rows, inputs, n, a->rows, rows.rows, a->scratch, done, a);
        return;
    }
    for (int32_t first = 0; first < n; first += GEMM_PIECE) {
        int32_t n_piece = smaller_of(GEMM_PIECE, n - first);
        k->gemm(&rows, 0, rows.rows, inputs + packed_bytes(k, first, m->cols), n_piece, a->rows,
                rows.rows);
        done(a, first, n_piece);
    }
}

/* The three rows of a's heads before the chunk, or zeros before the text. */
static void load_window(const projection *a)
{
    const chunk *t = a->t;
    const int32_t floats = a->n_heads * GDN_HEAD_DIM;
    for (int i = 0; i < CONV_TAPS - 1; i++) {
        float *row = a->window + i * floats;
        if (t->first == 0)
            memset(row, 0, (size_t)floats * sizeof *row);
        else
            memcpy(row,
                   state_window(t->b, t->s->at.state, t->prepared->gdn_index, t->first + 1 + i) +
                       a->first_head * GDN_HEAD_DIM,
                   (size_t)floats * sizeof *row);
    }
}

/* The chunk's last three, of those before it too if it is shorter, to the new state. */
static void store_window(const projection *a)
{
    const chunk *t = a->t;
    const int32_t floats = a->n_heads * GDN_HEAD_DIM;
    for (int i = 0; i < CONV_TAPS - 1; i++)
        memcpy(state_window(t->b, t->b->store.spare_state, t->prepared->gdn_index,
                            t->first + t->n + 1 + i) +
                   a->first_head * GDN_HEAD_DIM,
               a->window + i * floats, (size_t)floats * sizeof(float));
}

/* A token's rows, and the three before them, of one head. */
static void convolve(const chunk *t, int32_t head, int32_t token, const float *x, int32_t stride)
{
    const model_config *c = &t->b->config;
    const cpu_kernels *k = &t->b->k;
    const float *rows[CONV_TAPS];
    for (int j = 0; j < CONV_TAPS; j++) rows[j] = x + j * stride;
    float *out = convolved_row(t, head, token);
    k->conv_silu(rows, t->prepared->conv + (size_t)head * GDN_HEAD_DIM, c->conv_channels, 0,
                 GDN_HEAD_DIM, out);
    if (head < 2 * c->n_key_heads)
        k->l2norm(out, head < c->n_key_heads ? 1.0f / sqrtf(GDN_HEAD_DIM) : 1.0f);
}

static void convolve_piece(void *context, int32_t first, int32_t n)
{
    const projection *a = context;
    const int32_t floats = a->n_heads * GDN_HEAD_DIM;
    for (int32_t h = 0; h < a->n_heads; h++)
        for (int32_t i = 0; i < n; i++)
            convolve(a->t, a->first_head + h, first + i, a->window + i * floats + h * GDN_HEAD_DIM,
                     floats);
    memmove(a->window, a->window + n * floats,
            (size_t)(CONV_TAPS - 1) * (size_t)floats * sizeof(float));
}

static void project_heads(chunk *t, int32_t first_head, int32_t n_heads, int thread)
{
    projection a = projection_of(t, first_head, n_heads, thread);
    load_window(&a);
    project_pieces(&a, &t->layer->gdn.qkv, t->n, convolve_piece);
    store_window(&a);
}

static void project_gates(chunk *t, int thread)
{
    const cpu_kernels *k = &t->b->k;
    const matrix *ma = &t->layer->gdn.a, *mb = &t->layer->gdn.b;
    const int32_t heads = t->b->config.n_value_heads;
    float *a = t->p->projected + (size_t)thread * projected_floats(&t->b->config);
    float *b = a + GEMM_PIECE * heads;
    for (int32_t first = 0; first < t->n; first += GEMM_PIECE) {
        int32_t n = smaller_of(GEMM_PIECE, t->n - first);
        const unsigned char *inputs = t->inputs + packed_bytes(k, first, ma->cols);
        k->gemm(ma, 0, heads, inputs, n, a, heads);
        k->gemm(mb, 0, heads, inputs, n, b, heads);
        for (int32_t i = 0; i < n; i++)
            k->gdn_gates(a + i * heads, b + i * heads, t->prepared->neg_exp_a, t->prepared->dt_bias,
                         heads, t->p->decay + (tokens_before(t) + first + i) * heads,
                         t->p->beta + (first + i) * heads);
    }
}

/* Heads of the convolution [begin, end); behind the last one the gates. */
static void project_part(void *context, int64_t begin, int64_t end, int thread)
{
    chunk *t = context;
    const int64_t n_heads = t->b->config.conv_channels / GDN_HEAD_DIM;
    int64_t heads_end = end < n_heads ? end : n_heads;
    if (begin < heads_end) project_heads(t, (int32_t)begin, (int32_t)(heads_end - begin), thread);
    if (end > n_heads) project_gates(t, thread);
}

/* ---- recurrence ---- */

/* Of a key head: tokens [from, to) of those from the first cell's on, `from` a multiple of
 * GDN_CELL. */
static gdn_products_args products_args(const chunk *t, int32_t key_head, int32_t from, int32_t to,
                                       float *out)
{
    int32_t first = from == 0 ? tokens_before(t) : 0;
    const float *qk = key_rows(t, key_head) + from * 2 * GDN_HEAD_DIM;
    return (gdn_products_args){.first = first,
                               .n_tokens = to - from - first,
                               .q = qk + first * 2 * GDN_HEAD_DIM,
                               .k = qk + GDN_HEAD_DIM,
                               .qk_stride = 2 * GDN_HEAD_DIM,
                               .out = out};
}

/* Units: cells of key heads. */
static void products_part(void *context, int64_t begin, int64_t end, int thread)
{
    chunk *t = context;
    (void)thread;
    int32_t all = tokens_before(t) + t->n, cells = divide_up(all, GDN_CELL);
    for (int64_t unit = begin; unit < end; unit++) {
        int32_t head = (int32_t)(unit / cells), cell = (int32_t)(unit % cells);
        int32_t from = cell * GDN_CELL, to = smaller_of(from + GDN_CELL, all);
        float *out = key_products(t, head) + (size_t)cell * GDN_CELL_PRODUCTS;
        gdn_products_args a = products_args(t, head, from, to, out);
        t->b->k.gdn_products(&a);
    }
}

static int32_t heads_of_key(const model_config *c)
{
    return c->n_value_heads / c->n_key_heads;
}

/* How many slices a thread does before it turns to others: those of a key head share what is
 * packed, if threads have enough to choose from. */
static int32_t slices_together(const backend *b)
{
    enum { PER_THREAD = 8 };
    int32_t n = b->k.gdn_pack ? HEAD_SLICES * heads_of_key(&b->config) : 1;
    int32_t all = HEAD_SLICES * b->config.n_value_heads;
    while (n % 2 == 0 && all / n < PER_THREAD * thread_pool_size(b->pool)) n /= 2;
    return n;
}

/* A slice of a head at the chunk's start, to the new state: the state, and d of the tokens since.
 */
static void load_slice(const chunk *t, int64_t slice)
{
    const backend *b = t->b;
    const size_t floats = (size_t)GDN_HEAD_DIM * GDN_SLICE, rests = (GDN_CELL - 1) * GDN_SLICE;
    const size_t at = (size_t)slice * floats, rest_at = (size_t)slice * rests;
    int32_t index = t->prepared->gdn_index;
    float *state = state_scan(b, b->store.spare_state, index);
    if (t->first == 0) {
        memset(state + at, 0, floats * sizeof(float));
        return;
    }
    memcpy(state + at, state_scan(b, t->s->at.state, index) + at, floats * sizeof(float));
    memcpy(state_rest_of(b, b->store.spare_state, index).d + rest_at,
           state_rest_of(b, t->s->at.state, index).d + rest_at, rests * sizeof(float));
}

/* Tokens [from, to), as in products_args, of a slice of a value head, those before them done.
 * Outputs take the place of values. */
static void scan_slice(const chunk *t, int64_t slice, int32_t from, const gdn_products_args *keys,
                       const void *packed)
{
    const backend *b = t->b;
    const model_config *c = &b->config;
    const size_t floats = (size_t)GDN_HEAD_DIM * GDN_SLICE, rests = (GDN_CELL - 1) * GDN_SLICE;
    int32_t head = (int32_t)(slice / HEAD_SLICES), index = t->prepared->gdn_index;
    int32_t token = from + keys->first - tokens_before(t);
    float *values = value_rows(t, head) + token * GDN_HEAD_DIM + slice % HEAD_SLICES * GDN_SLICE;
    b->k.gdn_scan_tile(&(gdn_scan_args){
        .state = state_scan(b, b->store.spare_state, index) + (size_t)slice * floats,
        .rest = state_rest_of(b, b->store.spare_state, index).d + (size_t)slice * rests,
        .first = keys->first,
        .n_tokens = keys->n_tokens,
        .q = keys->q,
        .k = keys->k,
        .qk_stride = keys->qk_stride,
        .products = keys->out,
        .packed = packed,
        .v = values,
        .v_stride = GDN_HEAD_DIM,
        .decay = t->p->decay + from * c->n_value_heads + head,
        .beta = t->p->beta + token * c->n_value_heads + head,
        .gate_stride = c->n_value_heads,
        .out = values,
        .out_stride = GDN_HEAD_DIM});
}

/* Units: slices of value heads, slices_together of them, over all tokens of the chunk. */
static void scan_part(void *context, int64_t begin, int64_t end, int thread)
{
    chunk *t = context;
    const cpu_kernels *k = &t->b->k;
    const int32_t all = tokens_before(t) + t->n, together = slices_together(t->b);
    const int32_t window = k->gdn_pack ? PACKED_CELLS * GDN_CELL : all;
    const int32_t key_slices = HEAD_SLICES * heads_of_key(&t->b->config);
    const size_t packed_cells = (size_t)thread * PACKED_CELLS;
    unsigned char *packed = t->p->gdn_packed + packed_cells * (size_t)k->gdn_packed_bytes;
    for (int64_t first = begin * together; first < end * together; first += together) {
        for (int64_t slice = first; slice < first + together; slice++) load_slice(t, slice);
        for (int32_t from = 0; from < all; from += window) {
            int32_t to = smaller_of(from + window, all), head = (int32_t)(first / key_slices);
            float *products = k->gdn_pack ? t->p->products + packed_cells * GDN_CELL_PRODUCTS
                                          : key_products(t, head);
            gdn_products_args keys = products_args(t, head, from, to, products);
            if (k->gdn_pack) k->gdn_pack(&keys, packed);
            for (int64_t slice = first; slice < first + together; slice++)
                scan_slice(t, slice, from, &keys, packed);
        }
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
    if (!t->b->k.gdn_pack) run_pieces(t->b->pool, cells * c->n_key_heads, 8, products_part, t);
    run_pieces(t->b->pool, (int64_t)c->n_value_heads * HEAD_SLICES / slices_together(t->b), 1,
               scan_part, t);
    profile_stop(&t->b->profile, OP_GDN_SCAN, start);
}

/* ---- output ---- */

/* What the recurrence gave is normed and packed as soon as its gate is projected. */
static void gate_piece(void *context, int32_t first, int32_t n)
{
    const projection *a = context;
    const chunk *t = a->t;
    const model_config *c = &t->b->config;
    const cpu_kernels *k = &t->b->k;
    const int32_t floats = a->n_heads * GDN_HEAD_DIM, token = a->first_token + first;
    for (int32_t h = 0; h < a->n_heads; h++) {
        const float *out = value_rows(t, a->first_head + h) + (size_t)token * GDN_HEAD_DIM;
        for (int32_t i = 0; i < n; i++) {
            float *z = a->rows + i * floats + h * GDN_HEAD_DIM;
            k->gated_norm(out + i * GDN_HEAD_DIM, z, t->prepared->gdn_norm, c->rms_eps, z);
        }
    }
    pack_input_columns(k, a->rows, n, a->first_head * GDN_HEAD_DIM, floats, c->value_size,
                       t->p->mixed + packed_bytes(k, token, c->value_size));
}

/* Tokens that a thread gates at a time: all, unless there are more threads than heads. */
static int32_t gate_tokens(const chunk *t)
{
    int32_t blocks = divide_up(2 * t->b->options.n_threads, t->b->config.n_value_heads);
    return divide_up(divide_up(t->n, blocks), GEMM_PIECE) * GEMM_PIECE;
}

/* Units: value heads of gate_tokens tokens, then of the next. */
static void gate_part(void *context, int64_t begin, int64_t end, int thread)
{
    chunk *t = context;
    const int32_t heads = t->b->config.n_value_heads, tokens = gate_tokens(t);
    for (int64_t unit = begin, next; unit < end; unit = next) {
        int64_t block = unit / heads;
        next = end < (block + 1) * heads ? end : (block + 1) * heads;
        projection a = projection_of(t, (int32_t)(unit % heads), (int32_t)(next - unit), thread);
        a.first_token = (int32_t)block * tokens;
        project_pieces(&a, &t->layer->gdn.z, smaller_of(tokens, t->n - a.first_token), gate_piece);
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
                     (int64_t)divide_up(t->n, gate_tokens(t)) * c->n_value_heads, PROJECTED_HEADS,
                     gate_part, t);
    t->inputs = t->p->mixed;
    chunk_project_output(t, &w->out, OP_GDN_OUT);
    profile_count_gdn(b, w, t->n, 1);
}
