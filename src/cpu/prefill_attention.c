/* The attention mixer of a prefill chunk (MODEL.md 3.3): K and V are appended to the cache, then
 * tiles of queries meet its blocks, in their order, with an online softmax: in one kernel where
 * there is one for whole tiles, else block by block. */
#include "cpu/prefill.h"

#include <string.h>

/* Of one thread that goes block by block: query rows, running and partial outputs; running and
 * partial maxima and sums. */
enum { BY_BLOCKS_FLOATS = ATTENTION_MAX_ROWS * (3 * ATTENTION_HEAD_DIM + 4) };

static bool whole_tiles(const backend *b)
{
    return b->k.attention_tile_f16 && !b->kv_f32;
}

static size_t tile_floats(const backend *b)
{
    return whole_tiles(b) ? ATTENTION_TILE_BYTES / sizeof(float) : BY_BLOCKS_FLOATS;
}

void chunk_attention_take(backend *b, size_t rows)
{
    const model_config *c = &b->config;
    arena *m = &b->scratch.memory;
    prefill_scratch *p = &b->scratch.prefill;
    p->q_gate = take_floats(m, rows, 2 * (size_t)c->query_size);
    p->k = take_floats(m, rows, (size_t)c->kv_size);
    p->v = take_floats(m, rows, (size_t)c->kv_size);
    p->attention_mixed = take_floats(m, rows, (size_t)c->query_size);
    p->cosines = take_floats(m, rows, ROTARY_PAIRS);
    p->sines = take_floats(m, rows, ROTARY_PAIRS);
    p->attention_tile = take_floats(m, (size_t)b->options.n_threads, tile_floats(b));
}

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
    float *memory; // [tile_floats]
} query_tile;

/* What attending by blocks keeps of a tile. */
typedef struct tile_state {
    float *q, *out, *part_out; // [n_tokens * n_heads][256]
    float *max, *sum, *part_max, *part_sum;
} tile_state;

/* Of the first head of token i of a tile, within [n][query_size]. */
static int64_t tile_offset(const chunk *t, const query_tile *tile, int32_t i)
{
    return ((int64_t)(tile->token + i) * t->b->config.n_query_heads + tile->head) *
           ATTENTION_HEAD_DIM;
}

/* The tile's queries: normed, which scales them, too, and rotated. */
static void query_rows(const chunk *t, const query_tile *tile,
                       float *q) // [n_tokens * n_heads][256]
{
    const backend *b = t->b;
    for (int32_t i = 0; i < tile->n_tokens; i++) {
        const float *from = t->p->q_gate + 2 * tile_offset(t, tile, i);
        int32_t token = tile->token + i;
        for (int32_t h = 0; h < tile->n_heads; h++) {
            b->k.rmsnorm(from, t->prepared->q_norm, ATTENTION_HEAD_DIM, b->config.rms_eps, q);
            b->k.rope(q, t->p->cosines + token * ROTARY_PAIRS, t->p->sines + token * ROTARY_PAIRS);
            from += 2 * ATTENTION_HEAD_DIM;
            q += ATTENTION_HEAD_DIM;
        }
    }
}

static void attend_tile(chunk *t, const query_tile *tile)
{
    const backend *b = t->b;
    int32_t index = t->prepared->attention_index;
    query_rows(t, tile, tile->memory);
    attention_tile_args a = {.workspace = tile->memory,
                             .gates =
                                 t->p->q_gate + 2 * tile_offset(t, tile, 0) + ATTENTION_HEAD_DIM,
                             .out = t->p->attention_mixed + tile_offset(t, tile, 0),
                             .stride = b->config.query_size,
                             .n_tokens = tile->n_tokens,
                             .n_heads = tile->n_heads,
                             .first = t->first + tile->token,
                             .k = store_kv(b, 0, index, 0, tile->kv_head),
                             .v = store_kv(b, 0, index, 1, tile->kv_head),
                             .blocks = t->s->at.blocks,
                             .block_bytes = b->store.block_bytes};
    b->k.attention_tile_f16(&a);
}

/* One block, merged into those before. */
static void attend_block(chunk *t, const query_tile *tile, const tile_state *s, int32_t block)
{
    backend *b = t->b;
    int32_t n_rows = tile->n_tokens * tile->n_heads, visible[ATTENTION_MAX_ROWS];
    for (int32_t r = 0; r < n_rows; r++) {
        int64_t left =
            t->first + tile->token + r / tile->n_heads + 1 - (int64_t)block * KV_BLOCK_TOKENS;
        visible[r] = (int32_t)(left < 0 ? 0 : left < KV_BLOCK_TOKENS ? left : KV_BLOCK_TOKENS);
    }
    int32_t number = t->s->at.blocks[block], index = t->prepared->attention_index;
    attention_block_args a = {.q = s->q,
                              .n_rows = n_rows,
                              .visible = visible,
                              .k = store_kv(b, number, index, 0, tile->kv_head),
                              .v = store_kv(b, number, index, 1, tile->kv_head),
                              .max = s->part_max,
                              .sum = s->part_sum,
                              .out = s->part_out};
    if (b->kv_f32)
        b->k.attention_block_f32(&a);
    else
        b->k.attention_block_f16(&a);
    for (int32_t r = 0; r < n_rows; r++)
        b->k.attention_merge(&s->max[r], &s->sum[r], s->out + r * ATTENTION_HEAD_DIM, a.max[r],
                             a.sum[r], a.out + r * ATTENTION_HEAD_DIM);
}

static void attend_by_blocks(chunk *t, const query_tile *tile)
{
    const size_t floats = (size_t)ATTENTION_MAX_ROWS * ATTENTION_HEAD_DIM;
    float *small = tile->memory + 3 * floats;
    tile_state s = {.q = tile->memory,
                    .out = tile->memory + floats,
                    .part_out = tile->memory + 2 * floats,
                    .max = small,
                    .sum = small + ATTENTION_MAX_ROWS,
                    .part_max = small + 2 * ATTENTION_MAX_ROWS,
                    .part_sum = small + 3 * ATTENTION_MAX_ROWS};
    int32_t n_rows = tile->n_tokens * tile->n_heads;
    query_rows(t, tile, s.q);
    for (int32_t r = 0; r < n_rows; r++) s.max[r] = -INFINITY, s.sum[r] = 0;
    memset(s.out, 0, (size_t)n_rows * ATTENTION_HEAD_DIM * sizeof(float));
    int64_t last = t->first + tile->token + tile->n_tokens - 1;
    for (int32_t block = 0; block <= last / KV_BLOCK_TOKENS; block++)
        attend_block(t, tile, &s, block);
    for (int32_t r = 0; r < n_rows; r++) {
        int64_t at =
            tile_offset(t, tile, r / tile->n_heads) + r % tile->n_heads * ATTENTION_HEAD_DIM;
        float *out = t->p->attention_mixed + at;
        const float *from = s.out + r * ATTENTION_HEAD_DIM;
        for (int d = 0; d < ATTENTION_HEAD_DIM; d++) out[d] = from[d] / s.sum[r];
        t->b->k.sigmoid_gate(out, t->p->q_gate + 2 * at + ATTENTION_HEAD_DIM, ATTENTION_HEAD_DIM);
    }
}

/* Tokens of a tile. Whole tiles are as large as leaves every thread some, and at least as those by
 * blocks. */
static int32_t tile_tokens(const chunk *t)
{
    enum { PER_THREAD = 4 };
    const model_config *c = &t->b->config;
    int32_t heads = c->n_query_heads / c->n_kv_heads;
    int32_t least = larger_of(1, ATTENTION_MAX_ROWS / heads);
    if (!whole_tiles(t->b)) return least;
    int32_t share = t->n * c->n_kv_heads / (thread_pool_size(t->b->pool) * PER_THREAD);
    return larger_of(least, smaller_of(share, ATTENTION_TILE_ROWS / heads));
}

/* A tile of tokens of one KV head; the last tokens, which see most, first. */
static void attention_unit(chunk *t, int32_t unit, int thread)
{
    const model_config *c = &t->b->config;
    int32_t heads = c->n_query_heads / c->n_kv_heads, tokens = tile_tokens(t);
    int32_t token = (divide_up(t->n, tokens) - 1 - unit / c->n_kv_heads) * tokens;
    int32_t m = unit % c->n_kv_heads;
    for (int32_t h = 0; h < heads; h += ATTENTION_MAX_ROWS) {
        query_tile tile = {.token = token,
                           .n_tokens = smaller_of(tokens, t->n - token),
                           .head = m * heads + h,
                           .n_heads = smaller_of(heads - h, ATTENTION_MAX_ROWS),
                           .kv_head = m,
                           .memory = t->p->attention_tile + (size_t)thread * tile_floats(t->b)};
        if (whole_tiles(t->b))
            attend_tile(t, &tile);
        else
            attend_by_blocks(t, &tile);
    }
}

static void attention_part(void *context, int64_t begin, int64_t end, int thread)
{
    for (int64_t unit = begin; unit < end; unit++) attention_unit(context, (int32_t)unit, thread);
}

void chunk_attention(chunk *t)
{
    const model_config *c = &t->b->config;
    prefill_scratch *p = t->p;
    const attention_weights *w = &t->layer->attention;
    for (int32_t i = 0; i < t->n; i++)
        rope_angles(t->b, t->first + i, p->cosines + i * ROTARY_PAIRS, p->sines + i * ROTARY_PAIRS);
    chunk_add_product(t, &w->q, p->q_gate, 2 * (int64_t)c->query_size);
    chunk_add_product(t, &w->k, p->k, c->kv_size);
    chunk_add_product(t, &w->v, p->v, c->kv_size);
    chunk_project(t, OP_ATTENTION_PROJECTIONS, t->n);
    int64_t start = profile_start(&t->b->profile);
    run_pieces(t->b->pool, t->n, 16, append_part, t);
    run_pieces(t->b->pool, divide_up(t->n, tile_tokens(t)) * c->n_kv_heads, 1, attention_part, t);
    profile_stop(&t->b->profile, OP_ATTENTION, start);
    chunk_pack(t, OP_ATTENTION_OUT, p->attention_mixed, w->o.cols, t->n);
    chunk_project_output(t, &w->o, OP_ATTENTION_OUT);
    int64_t end = t->first + t->n;
    profile_count_attention(t->b, w, t->n, end * (end + 1) / 2 - t->first * (t->first + 1) / 2,
                            end);
}
