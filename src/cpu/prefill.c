/* A chunk of a prompt: up to prefill_chunk tokens of one sequence, layer by layer. A token's
 * results do not depend on the chunk: dot products run over one row in one order, attention adds
 * blocks at absolute multiples of 256 in their order, and the recurrence cells at absolute
 * multiples of GDN_CELL. */
#include "cpu/prefill.h"

#include <math.h>

void prefill_scratch_take(backend *b)
{
    const model_config *c = &b->config;
    arena *m = &b->scratch.memory;
    prefill_scratch *p = &b->scratch.prefill;
    size_t rows = (size_t)b->options.prefill_chunk, hidden = (size_t)c->hidden_size;
    int32_t widest = larger_of(c->hidden_size, c->query_size);
    p->x = take_floats(m, rows, hidden);
    p->u = take_floats(m, rows, hidden);
    p->normed = take_floats(m, (size_t)b->options.n_threads * ROUTE_TILE, hidden);
    p->out = take_floats(m, rows, hidden);
    p->packed = take(m, 1, 1, packed_bytes(&b->k, b->options.prefill_chunk, widest));
    p->bad_norm = take(m, rows, 1, sizeof(int32_t));
    p->gemm_scratch = NULL;
    if (b->k.gemm_many)
        p->gemm_scratch = take(m, (size_t)b->options.n_threads, 1, GEMM_SCRATCH_BYTES);
    chunk_moe_take(b, rows);
    /* The two mixers use the same memory. */
    size_t start = m->used;
    chunk_gdn_take(b, rows);
    size_t gdn_end = m->used;
    m->used = start;
    chunk_attention_take(b, rows);
    if (m->used < gdn_end) m->used = gdn_end;
}

typedef struct pieces {
    _Atomic int64_t next;
    int64_t n, least, most;
    int64_t per_share; /* a piece is 1 / so many of what is left */
    thread_pool_fn fn;
    void *context;
} pieces;

static void pieces_part(void *context, int64_t begin, int64_t end, int thread)
{
    pieces *p = context;
    (void)begin, (void)end;
    int64_t from = atomic_load_explicit(&p->next, memory_order_relaxed);
    while (from < p->n) {
        int64_t size = (p->n - from) / p->per_share, to;
        size = size < p->least ? p->least : size > p->most ? p->most : size;
        to = from + size < p->n ? from + size : p->n;
        if (!atomic_compare_exchange_weak_explicit(&p->next, &from, to, memory_order_relaxed,
                                                   memory_order_relaxed))
            continue;
        p->fn(p->context, from, to, thread);
        from = atomic_load_explicit(&p->next, memory_order_relaxed);
    }
}

static void run(thread_pool *pool, pieces *p)
{
    int64_t n_pieces = (p->n + p->least - 1) / p->least, threads = thread_pool_size(pool);
    thread_pool_run(pool, n_pieces < threads ? n_pieces : threads, 1, pieces_part, p);
}

void run_pieces(thread_pool *pool, int64_t n, int64_t piece, thread_pool_fn fn, void *context)
{
    run(pool, &(pieces){0, n, piece, piece, 1, fn, context});
}

void chunk_run(backend *b, operation op, int64_t n, int64_t least, thread_pool_fn fn, void *context)
{
    enum { PER_THREAD = 12 }; /* pieces */
    int64_t share = n / (thread_pool_size(b->pool) * PER_THREAD);
    int64_t start = profile_start(&b->profile);
    run_pieces(b->pool, n, share > least ? share / least * least : least, fn, context);
    profile_stop(&b->profile, op, start);
}

void chunk_run_ending(backend *b, operation op, int64_t n, int64_t most, thread_pool_fn fn,
                      void *context)
{
    int64_t start = profile_start(&b->profile);
    run(b->pool, &(pieces){0, n, 1, most, 4 * (int64_t)thread_pool_size(b->pool), fn, context});
    profile_stop(&b->profile, op, start);
}

/* ---- products, packing, norms ---- */

static void project_part(void *context, int64_t begin, int64_t end, int thread)
{
    chunk *t = context;
    const cpu_kernels *k = &t->b->k;
    int64_t first = 0;
    for (int32_t j = 0; j < t->n_jobs; j++) {
        const matrix_job *job = &t->jobs[j];
        int64_t from = begin > first ? begin - first : 0;
        int64_t to = end - first < job->m->rows ? end - first : job->m->rows;
        if (from < to && k->gemm_many)
            k->gemm_many(job->m, (int32_t)from, (int32_t)to, t->inputs, t->n_inputs, job->y,
                         job->stride, gemm_scratch(t->p, thread));
        else if (from < to)
            k->gemm(job->m, (int32_t)from, (int32_t)to, t->inputs, t->n_inputs, job->y,
                    job->stride);
        first += job->m->rows;
    }
}

void chunk_add_product(chunk *t, const matrix *m, float *y, int64_t stride)
{
    t->jobs[t->n_jobs++] = (matrix_job){m, y, stride};
}

/* Rows of a piece: some tiles of rows, as a piece starts without the last one's overlap. */
enum { PROJECT_ROWS = 128 };

void chunk_project(chunk *t, operation op, int32_t n_inputs)
{
    int64_t rows = 0;
    for (int32_t j = 0; j < t->n_jobs; j++) rows += t->jobs[j].m->rows;
    t->n_inputs = n_inputs;
    chunk_run(t->b, op, rows, PROJECT_ROWS, project_part, t);
    t->n_jobs = 0;
}

/* Packs rows [begin, end), begin a multiple of the tile. */
static void pack_part(void *context, int64_t begin, int64_t end, int thread)
{
    chunk *t = context;
    (void)thread;
    const int32_t cols = t->pack_cols;
    t->b->k.pack_input(t->to_pack + begin * cols, cols, NULL, (int32_t)(end - begin), cols,
                       t->p->packed + packed_bytes(&t->b->k, (int32_t)begin, cols));
}

void chunk_pack(chunk *t, operation op, const float *x, int32_t cols, int32_t n)
{
    t->inputs = t->p->packed;
    t->to_pack = x;
    t->pack_cols = cols;
    chunk_run(t->b, op, n, t->b->k.pack_tile, pack_part, t);
}

/* Row i of x, complete, and its norm to u. */
static void norm_row(chunk *t, int64_t i, float *u)
{
    const backend *b = t->b;
    int32_t hidden = b->config.hidden_size;
    float *x = t->p->x + i * hidden;
    if (t->pass.source == NORM_ADD_OUT) b->k.add_scaled(x, t->p->out + i * hidden, 1.0f, hidden);
    if (t->pass.source == NORM_ADD_EXPERTS) chunk_add_experts(t, i);
    float mean = b->k.rmsnorm(x, t->pass.factor, hidden, b->config.rms_eps, u);
    if (!isfinite(mean) && t->p->bad_norm[i] < 0) t->p->bad_norm[i] = t->norm;
}

static int32_t norm_tile(const chunk *t)
{
    return t->pass.route ? ROUTE_TILE : t->b->k.pack_tile;
}

static void norm_part(void *context, int64_t begin, int64_t end, int thread)
{
    chunk *t = context;
    const prefill_scratch *p = t->p;
    int32_t hidden = t->b->config.hidden_size, tile = norm_tile(t);
    for (int64_t first = begin; first < end; first += tile) {
        int32_t n = end - first < tile ? (int32_t)(end - first) : tile;
        float *u = t->pass.keep ? p->u + first * hidden
                                : p->normed + (int64_t)thread * ROUTE_TILE * hidden;
        for (int32_t i = 0; i < n; i++) norm_row(t, first + i, u + (int64_t)i * hidden);
        if (t->pass.pack)
            t->pass.pack(u, hidden, NULL, n, hidden,
                         p->packed + packed_bytes(&t->b->k, (int32_t)first, hidden));
        if (t->pass.route) chunk_route(t, first, n, u, thread);
    }
}

static void norm_rows(chunk *t, norm_pass pass)
{
    t->pass = pass;
    t->inputs = t->p->packed;
    if (pass.source != NORM_ADD_EXPERTS) {
        chunk_run(t->b, pass.route ? OP_ROUTER : OP_NORMS, t->n, norm_tile(t), norm_part, t);
        return;
    }
    /* Adding up what the experts gave is most of it: it is part of their time. */
    const model_config *c = &t->b->config;
    run_pieces(t->b->pool, t->n, 32, norm_part, t); /* whole tiles of any kind */
    profile_stop_experts(&t->b->profile, t->experts_start,
                         (int64_t)c->n_experts_per_token * c->expert_width, c->shared_expert_width);
}

void chunk_project_output(chunk *t, const matrix *m, operation op)
{
    chunk_add_product(t, m, t->p->out, t->b->config.hidden_size);
    chunk_project(t, op, t->n);
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
    norm_rows(t, (norm_pass){.source = i > 0 ? NORM_ADD_EXPERTS : NORM_X,
                             .factor = t->prepared->input_norm,
                             .pack = t->b->k.pack_input});
    call_tap(t, i, t->p->x);
    if (t->layer->is_attention)
        chunk_attention(t);
    else
        chunk_gdn(t);
    t->norm++;
    norm_rows(t, (norm_pass){.source = NORM_ADD_OUT,
                             .factor = t->prepared->post_norm,
                             .pack = t->b->k.pack_rows,
                             .route = true,
                             .keep = !t->b->k.gather_rows});
    chunk_experts(t);
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
    chunk_pack(t, OP_HEAD, t->p->u + (int64_t)(t->n - n) * hidden, hidden, n);
    chunk_add_product(t, &b->weights->head, logits, b->config.n_vocab);
    chunk_project(t, OP_HEAD, n);
}

static calla_status run_chunk(chunk *t, const calla_control *control, calla_error *err)
{
    backend *b = t->b;
    for (int32_t i = 0; i < t->n; i++) t->p->bad_norm[i] = -1;
    chunk_run(b, OP_EMBEDDING, t->n, 1, embed_part, t);
    for (int32_t i = 0; i < b->config.n_layers; i++) {
        if (is_cancelled(control))
            return error_set(err, CALLA_ERR_CANCELLED, "cancelled at position %lld",
                             (long long)t->first);
        run_layer(t, i);
    }
    t->norm = 2 * b->config.n_layers;
    norm_rows(
        t, (norm_pass){.source = NORM_ADD_EXPERTS, .factor = b->prepared.final_norm, .keep = true});
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
