#include "cuda/cuda.h"

#include <assert.h>
#include <string.h>

static int32_t blocks_of(int64_t length)
{
    return (int32_t)((length + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS);
}

/* A full context for every sequence, and for every snapshot the one block it may share in part. */
static size_t n_blocks(const backend *b)
{
    return (size_t)b->options.n_sequences * (size_t)b->store.view.max_blocks +
           (size_t)b->options.n_snapshots;
}

void cuda_store_take(backend *b)
{
    const model_config *c = &b->config;
    store *s = &b->store;
    store_view *v = &s->view;
    size_t n_sequences = (size_t)b->options.n_sequences;
    v->max_blocks = blocks_of(b->options.n_ctx);
    v->layer_bytes =
        (size_t)2 * (size_t)c->n_kv_heads * KV_BLOCK_TOKENS * ATTENTION_HEAD_DIM * sizeof(uint16_t);
    v->block_bytes = (size_t)c->n_attention_layers * v->layer_bytes;
    v->kv = device_take(&s->kv_memory, n_blocks(b), 1, v->block_bytes);

    v->window_offset = (size_t)c->n_value_heads * GDN_HEAD_DIM * GDN_HEAD_DIM;
    v->layer_floats = v->window_offset + (size_t)CONV_TAPS * (size_t)c->conv_channels;
    v->state_floats = (size_t)(c->n_layers - c->n_attention_layers) * v->layer_floats;
    v->states = device_floats(&s->state_memory, 2 * n_sequences + 2, v->state_floats);
    v->tables = device_take(&s->state_memory, n_sequences, (size_t)v->max_blocks, sizeof(int32_t));
    s->snapshots_at =
        device_floats(&s->snapshot_memory, 2 * (size_t)b->options.n_snapshots, v->state_floats);
}

/* Host memory: the sequences and snapshots themselves. */
static void take_host(backend *b, arena *a)
{
    store *s = &b->store;
    size_t n_snapshots = (size_t)b->options.n_snapshots, max_blocks = (size_t)s->view.max_blocks;
    s->sequences = arena_take(a, (size_t)b->options.n_sequences, sizeof *s->sequences);
    s->snapshots = arena_take(a, n_snapshots, sizeof *s->snapshots);
    s->snapshot_blocks = arena_take(a, n_snapshots * max_blocks, sizeof(int32_t));
}

calla_status cuda_store_init(backend *b, calla_error *err)
{
    store *s = &b->store;
    size_t max_blocks = (size_t)s->view.max_blocks;
    arena a = {0};
    void *tables;
    take_host(b, &a);
    CALLA_TRY(arena_allocate(&a, "sequences and snapshots", err));
    s->host_memory = a.memory;
    take_host(b, &a);
    CALLA_TRY(pinned_allocate((size_t)b->options.n_sequences * max_blocks * sizeof(int32_t),
                              "block tables", &tables, err));
    s->tables = tables;
    CALLA_TRY(block_pool_init(&s->pool, (int64_t)n_blocks(b), err));
    for (int32_t i = 0; i < b->options.n_sequences; i++)
        s->sequences[i].at = (timeline){.blocks = s->tables + (size_t)i * max_blocks,
                                        .state = 2 * i,
                                        .anchor = 2 * i + 1,
                                        .slot = i};
    for (int32_t i = 0; i < 2; i++) s->spare[i] = 2 * b->options.n_sequences + i;
    for (int32_t i = 0; i < b->options.n_snapshots; i++)
        s->snapshots[i].at = (timeline){.blocks = s->snapshot_blocks + (size_t)i * max_blocks,
                                        .state = 2 * i,
                                        .anchor = 2 * i + 1};
    return CALLA_OK;
}

void cuda_store_deinit(backend *b)
{
    store *s = &b->store;
    if (s->pool.free_blocks) block_pool_deinit(&s->pool);
    if (s->tables) cudaFreeHost(s->tables);
    mem_free(s->host_memory);
    device_free(&s->kv_memory);
    device_free(&s->state_memory);
    device_free(&s->snapshot_memory);
}

/* ---- blocks ---- */

/* Blocks [first, end) of a sequence's table to the device. */
static calla_status send_table(backend *b, const timeline *at, int32_t first, int32_t end,
                               calla_error *err)
{
    if (first == end) return CALLA_OK;
    size_t offset = (size_t)at->slot * (size_t)b->store.view.max_blocks + (size_t)first;
    int32_t *to = (int32_t *)(uintptr_t)b->store.view.tables + offset;
    return backend_check(b,
                         cudaMemcpyAsync(to, at->blocks + first,
                                         (size_t)(end - first) * sizeof(int32_t),
                                         cudaMemcpyHostToDevice, b->stream),
                         "sending a block table", err);
}

/* The content of a sequence's last block, which is its own, from the one it shared before. */
static calla_status copy_block(backend *b, int32_t own, int32_t shared, calla_error *err)
{
    size_t bytes = b->store.view.block_bytes;
    unsigned char *kv = b->store.view.kv;
    return backend_check(b,
                         cudaMemcpyAsync(kv + (size_t)own * bytes, kv + (size_t)shared * bytes,
                                         bytes, cudaMemcpyDeviceToDevice, b->stream),
                         "copying a KV block", err);
}

/* A failure of the device is kept in b->failed and ends the backend. */
calla_status cuda_store_reserve(backend *b, backend_sequence *s, int64_t n, calla_error *err)
{
    timeline *at = &s->at;
    int32_t have = blocks_of(at->length), need = blocks_of(at->length + n) - have, shared;
    assert(have + need <= b->store.view.max_blocks);
    CALLA_TRY(block_list_grow(&b->store.pool, at->blocks, have, need,
                              at->length % KV_BLOCK_TOKENS != 0, &shared, err));
    calla_status status = CALLA_OK;
    if (shared >= 0) status = copy_block(b, at->blocks[have - 1], shared, err);
    if (status == CALLA_OK) status = send_table(b, at, have - (shared >= 0), have + need, err);
    if (status != CALLA_OK) cuda_store_trim(b, s, at->length + n);
    return status;
}

void cuda_store_trim(backend *b, backend_sequence *s, int64_t reserved_length)
{
    block_list_release(&b->store.pool, s->at.blocks, blocks_of(s->at.length),
                       blocks_of(reserved_length));
}

static void clear(backend *b, timeline *at)
{
    block_list_release(&b->store.pool, at->blocks, 0, blocks_of(at->length));
    at->length = 0;
    at->anchored = false;
}

static calla_status copy_state(backend *b, float *to, const float *from, calla_error *err)
{
    return backend_check(b,
                         cudaMemcpyAsync(to, from, b->store.view.state_floats * sizeof(float),
                                         cudaMemcpyDeviceToDevice, b->stream),
                         "copying a state", err);
}

/* Makes `to`, cleared before, the same point as `from`; number 0 of their states is at the
 * addresses given. */
static calla_status share(backend *b, timeline *to, float *to_states, const timeline *from,
                          const float *from_states, calla_error *err)
{
    size_t floats = b->store.view.state_floats;
    if (from->length > 0)
        CALLA_TRY(copy_state(b, to_states + (size_t)to->state * floats,
                             from_states + (size_t)from->state * floats, err));
    if (from->anchored)
        CALLA_TRY(copy_state(b, to_states + (size_t)to->anchor * floats,
                             from_states + (size_t)from->anchor * floats, err));
    block_list_share(&b->store.pool, to->blocks, from->blocks, blocks_of(from->length));
    to->length = from->length;
    to->anchored = from->anchored;
    memcpy(to->tail, from->tail, sizeof to->tail);
    return CALLA_OK;
}

/* ---- sequences and snapshots ---- */

calla_status cuda_store_sequence_create(backend *b, backend_sequence **out, calla_error *err)
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

void cuda_store_sequence_free(backend *b, backend_sequence *s)
{
    if (!s) return;
    clear(b, &s->at);
    s->at.used = false;
}

void cuda_store_sequence_reset(backend *b, backend_sequence *s)
{
    clear(b, &s->at);
}

calla_status cuda_store_snapshot_create(backend *b, const backend_sequence *s,
                                        backend_snapshot **out, calla_error *err)
{
    for (int32_t i = 0; i < b->options.n_snapshots; i++) {
        backend_snapshot *snapshot = &b->store.snapshots[i];
        if (snapshot->at.used) continue;
        CALLA_TRY(
            share(b, &snapshot->at, b->store.snapshots_at, &s->at, b->store.view.states, err));
        snapshot->at.used = true;
        *out = snapshot;
        return CALLA_OK;
    }
    return error_set(err, CALLA_ERR_MEMORY, "all %d snapshots are in use", b->options.n_snapshots);
}

void cuda_store_snapshot_free(backend *b, backend_snapshot *snapshot)
{
    if (!snapshot) return;
    clear(b, &snapshot->at);
    snapshot->at.used = false;
}

/* A failure of the device is kept in b->failed: whatever comes next reports it. */
void cuda_store_snapshot_restore(backend *b, const backend_snapshot *snapshot, backend_sequence *s)
{
    calla_error ignored;
    clear(b, &s->at);
    if (share(b, &s->at, b->store.view.states, &snapshot->at, b->store.snapshots_at, &ignored) ==
        CALLA_OK)
        (void)send_table(b, &s->at, 0, blocks_of(s->at.length), &ignored);
}
