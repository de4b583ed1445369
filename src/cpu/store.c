#include "cpu/cpu.h"

#include <assert.h>
#include <string.h>

void store_take(backend *b)
{
    const model_config *c = &b->config;
    store *s = &b->store;
    size_t n_sequences = (size_t)b->options.n_sequences;
    size_t n_snapshots = (size_t)b->options.n_snapshots;
    s->max_blocks = divide_up(b->options.n_ctx, KV_BLOCK_TOKENS);
    s->row_bytes = ATTENTION_HEAD_DIM * (b->kv_f32 ? sizeof(float) : sizeof(uint16_t));
    s->head_bytes = s->row_bytes * KV_BLOCK_TOKENS;
    s->block_bytes = (size_t)c->n_attention_layers * 2 * (size_t)c->n_kv_heads * s->head_bytes;
    /* A full context for every sequence, and for every snapshot the one block it may share in part.
     */
    s->kv =
        take(&s->kv_memory, n_sequences * (size_t)s->max_blocks + n_snapshots, 1, s->block_bytes);

    s->window_offset = (size_t)c->n_value_heads * GDN_HEAD_DIM * GDN_HEAD_DIM;
    s->rest_offset = s->window_offset + (size_t)CONV_TAPS * (size_t)c->conv_channels;
    size_t rest = (size_t)c->value_size + (size_t)c->key_size + (size_t)c->n_value_heads;
    s->layer_floats = s->rest_offset + ((GDN_CELL - 1) * rest + 15) / 16 * 16; /* whole lines */
    s->state_floats = (size_t)(c->n_layers - c->n_attention_layers) * s->layer_floats;
    s->states = take_floats(&s->state_memory, n_sequences + 1, s->state_floats);
    s->sequences = take(&s->state_memory, n_sequences, 1, sizeof *s->sequences);
    s->sequence_blocks =
        take(&s->state_memory, n_sequences, (size_t)s->max_blocks, sizeof(int32_t));
    s->snapshot_states = take_floats(&s->snapshot_memory, n_snapshots, s->state_floats);
    s->snapshots = take(&s->snapshot_memory, n_snapshots, 1, sizeof *s->snapshots);
    s->snapshot_blocks =
        take(&s->snapshot_memory, n_snapshots, (size_t)s->max_blocks, sizeof(int32_t));
}

calla_status store_init(backend *b, calla_error *err)
{
    store *s = &b->store;
    int64_t n = (int64_t)b->options.n_sequences * s->max_blocks + b->options.n_snapshots;
    CALLA_TRY(block_pool_init(&s->pool, n, err));
    for (int32_t i = 0; i < b->options.n_sequences; i++) {
        s->sequences[i].at.state = s->states + (size_t)i * s->state_floats;
        s->sequences[i].at.blocks = s->sequence_blocks + (size_t)i * (size_t)s->max_blocks;
    }
    s->spare_state = s->states + (size_t)b->options.n_sequences * s->state_floats;
    for (int32_t i = 0; i < b->options.n_snapshots; i++) {
        s->snapshots[i].at.state = s->snapshot_states + (size_t)i * s->state_floats;
        s->snapshots[i].at.blocks = s->snapshot_blocks + (size_t)i * (size_t)s->max_blocks;
    }
    return CALLA_OK;
}

void store_deinit(backend *b)
{
    store *s = &b->store;
    if (s->pool.free_blocks) block_pool_deinit(&s->pool);
    arena_free(&s->kv_memory);
    arena_free(&s->state_memory);
    arena_free(&s->snapshot_memory);
}

void *store_kv(const backend *b, int32_t block, int32_t attention_index, int32_t which,
               int32_t head)
{
    const store *s = &b->store;
    size_t i =
        ((size_t)attention_index * 2 + (size_t)which) * (size_t)b->config.n_kv_heads + (size_t)head;
    return s->kv + (size_t)block * s->block_bytes + i * s->head_bytes;
}

void store_write(const backend *b, const backend_sequence *s, int64_t position,
                 int32_t attention_index, int32_t which, int32_t head, const float *row)
{
    int32_t block = s->at.blocks[position / KV_BLOCK_TOKENS];
    unsigned char *kv = store_kv(b, block, attention_index, which, head);
    kv += (size_t)(position % KV_BLOCK_TOKENS) * b->store.row_bytes;
    if (b->kv_f32)
        memcpy(kv, row, b->store.row_bytes);
    else
        b->k.f32_to_f16(row, ATTENTION_HEAD_DIM, (uint16_t *)(void *)kv);
}

/* ---- copying ---- */

typedef struct copy_context {
    unsigned char *destination;
    const unsigned char *source; /* NULL: zeros */
} copy_context;

static void copy_part(void *context, int64_t begin, int64_t end, int thread)
{
    copy_context *c = context;
    (void)thread;
    if (c->source)
        memcpy(c->destination + begin, c->source + begin, (size_t)(end - begin));
    else
        memset(c->destination + begin, 0, (size_t)(end - begin));
}

static void copy_bytes(backend *b, void *destination, const void *source, size_t n)
{
    copy_context c = {destination, source};
    thread_pool_run(b->pool, (int64_t)n, 1 << 16, copy_part, &c);
}

void state_copy(backend *b, float *destination, const float *source)
{
    copy_bytes(b, destination, source, b->store.state_floats * sizeof(float));
}

/* ---- blocks ---- */

static int32_t blocks_of(int64_t length)
{
    return divide_up(length, KV_BLOCK_TOKENS);
}

calla_status store_reserve(backend *b, backend_sequence *s, int64_t n, calla_error *err)
{
    timeline *at = &s->at;
    int32_t have = blocks_of(at->length), need = blocks_of(at->length + n) - have, shared;
    assert(have + need <= b->store.max_blocks);
    CALLA_TRY(block_list_grow(&b->store.pool, at->blocks, have, need,
                              at->length % KV_BLOCK_TOKENS != 0, &shared, err));
    size_t bytes = b->store.block_bytes;
    if (shared >= 0)
        copy_bytes(b, b->store.kv + (size_t)at->blocks[have - 1] * bytes,
                   b->store.kv + (size_t)shared * bytes, bytes);
    return CALLA_OK;
}

void store_trim(backend *b, backend_sequence *s, int64_t reserved_length)
{
    block_list_release(&b->store.pool, s->at.blocks, blocks_of(s->at.length),
                       blocks_of(reserved_length));
}

static void clear(backend *b, timeline *at)
{
    block_list_release(&b->store.pool, at->blocks, 0, blocks_of(at->length));
    at->length = 0;
}

/* Makes `to`, cleared before, the same point as `from`. */
static void share(backend *b, timeline *to, const timeline *from)
{
    block_list_share(&b->store.pool, to->blocks, from->blocks, blocks_of(from->length));
    if (from->length > 0) state_copy(b, to->state, from->state);
    to->length = from->length;
}

/* ---- sequences and snapshots ---- */

calla_status store_sequence_create(backend *b, backend_sequence **out, calla_error *err)
{
    for (int32_t i = 0; i < b->options.n_sequences; i++) {
        backend_sequence *s = &b->store.sequences[i];
        if (s->at.used) continue;
        s->at.used = true;
        *out = s;
        return CALLA_OK;
    }
    return error_set(err, CALLA_ERR_MEMORY, "all %d sequences are in use", b->options.n_sequences);
}

void store_sequence_free(backend *b, backend_sequence *s)
{
    if (!s) return;
    clear(b, &s->at);
    s->at.used = false;
}

void store_sequence_reset(backend *b, backend_sequence *s)
{
    clear(b, &s->at);
}

calla_status store_snapshot_create(backend *b, const backend_sequence *s, backend_snapshot **out,
                                   calla_error *err)
{
    for (int32_t i = 0; i < b->options.n_snapshots; i++) {
        backend_snapshot *snapshot = &b->store.snapshots[i];
        if (snapshot->at.used) continue;
        snapshot->at.used = true;
        share(b, &snapshot->at, &s->at);
        *out = snapshot;
        return CALLA_OK;
    }
    return error_set(err, CALLA_ERR_MEMORY, "all %d snapshots are in use", b->options.n_snapshots);
}

void store_snapshot_free(backend *b, backend_snapshot *snapshot)
{
    if (!snapshot) return;
    clear(b, &snapshot->at);
    snapshot->at.used = false;
}

void store_snapshot_restore(backend *b, const backend_snapshot *snapshot, backend_sequence *s)
{
    clear(b, &s->at);
    share(b, &s->at, &snapshot->at);
}

/* ---- snapshots as bytes: the state, then the blocks ---- */

int64_t store_snapshot_content_bytes(const backend *b, int64_t n_tokens)
{
    return (int64_t)(b->store.state_floats * sizeof(float)) +
           blocks_of(n_tokens) * (int64_t)b->store.block_bytes;
}

bool store_snapshot_save(const backend *b, const backend_snapshot *snapshot, backend_put_fn *put,
                         void *user)
{
    const timeline *at = &snapshot->at;
    const size_t n = b->store.block_bytes;
    if (!put(user, at->state, b->store.state_floats * sizeof(float))) return false;
    for (int32_t i = 0; i < blocks_of(at->length); i++)
        if (!put(user, b->store.kv + (size_t)at->blocks[i] * n, n)) return false;
    return true;
}

calla_status store_snapshot_load(backend *b, int64_t n_tokens, backend_get_fn *get, void *user,
                                 backend_snapshot **out, calla_error *err)
{
    block_pool *pool = &b->store.pool;
    const size_t n = b->store.block_bytes;
    int32_t need = blocks_of(n_tokens), i = 0;
    while (i < b->options.n_snapshots && b->store.snapshots[i].at.used) i++;
    if (i == b->options.n_snapshots || pool->n_free < need)
        return error_set(err, CALLA_ERR_MEMORY, "no room for a snapshot of %lld tokens",
                         (long long)n_tokens);
    timeline *at = &b->store.snapshots[i].at;
    for (int32_t k = 0; k < need; k++) at->blocks[k] = block_pool_take(pool);
    at->used = true;
    at->length = n_tokens;
    bool ok = get(user, at->state, b->store.state_floats * sizeof(float));
    for (int32_t k = 0; ok && k < need; k++)
        ok = get(user, b->store.kv + (size_t)at->blocks[k] * n, n);
    if (!ok) {
        store_snapshot_free(b, &b->store.snapshots[i]);
        return error_set(err, CALLA_ERR_IO, "a snapshot's content is not there");
    }
    *out = &b->store.snapshots[i];
    return CALLA_OK;
}
