#include "engine/snapshots.h"

#include "base/memory.h"

#include <assert.h>
#include <string.h>

int64_t snapshot_slot_bytes(int64_t n_ctx, int32_t n_vocab)
{
    return (n_ctx + n_vocab) * 4;
}

calla_status snapshot_store_init(snapshot_store *store, const backend_ops *ops, backend *b,
                                 int32_t n_slots, int64_t n_ctx, int32_t n_vocab, calla_error *err)
{
    *store = (snapshot_store){
        .ops = ops, .backend = b, .n_slots = n_slots, .n_ctx = n_ctx, .n_vocab = n_vocab};
    arena a = {0};
    for (int pass = 0; pass < 2; pass++) {
        store->slots = arena_take(&a, (size_t)n_slots, sizeof *store->slots);
        for (int32_t i = 0; i < n_slots; i++) {
            int32_t *tokens = arena_take(&a, (size_t)n_ctx, sizeof *tokens);
            float *logits = arena_take(&a, (size_t)n_vocab, sizeof *logits);
            if (pass == 1) store->slots[i] = (snapshot_slot){.tokens = tokens, .logits = logits};
        }
        if (pass == 0) CALLA_TRY(arena_allocate(&a, "snapshots", err));
    }
    store->memory = a.memory;
    return CALLA_OK;
}

static void drop(snapshot_store *store, snapshot_slot *slot)
{
    store->ops->snapshot_free(store->backend, slot->state);
    slot->state = NULL;
}

void snapshot_store_deinit(snapshot_store *store)
{
    for (int32_t i = 0; store->memory && i < store->n_slots; i++)
        if (store->slots[i].state) drop(store, &store->slots[i]);
    mem_free(store->memory);
    *store = (snapshot_store){0};
}

static bool holds_prefix(const snapshot_slot *slot, const int32_t *tokens, int64_t n_tokens)
{
    return slot->state && slot->n_tokens <= n_tokens &&
           memcmp(slot->tokens, tokens, (size_t)slot->n_tokens * sizeof *tokens) == 0;
}

snapshot_slot *snapshot_store_find(snapshot_store *store, const int32_t *tokens, int64_t n_tokens)
{
    snapshot_slot *best = NULL;
    for (int32_t i = 0; i < store->n_slots; i++) {
        snapshot_slot *slot = &store->slots[i];
        if (!holds_prefix(slot, tokens, n_tokens)) continue;
        if (slot->n_tokens == n_tokens && !slot->has_logits) continue;
        if (!best || slot->n_tokens > best->n_tokens) best = slot;
    }
    return best;
}

void snapshot_store_touch(snapshot_store *store, snapshot_slot *slot)
{
    slot->last_used = ++store->now;
}

static snapshot_slot *find_exact(snapshot_store *store, const int32_t *tokens, int64_t n_tokens)
{
    for (int32_t i = 0; i < store->n_slots; i++) {
        snapshot_slot *slot = &store->slots[i];
        if (slot->n_tokens == n_tokens && holds_prefix(slot, tokens, n_tokens)) return slot;
    }
    return NULL;
}

static snapshot_slot *find_free(snapshot_store *store)
{
    for (int32_t i = 0; i < store->n_slots; i++)
        if (!store->slots[i].state) return &store->slots[i];
    return NULL;
}

bool snapshot_store_evict(snapshot_store *store)
{
    snapshot_slot *oldest = NULL;
    for (int32_t i = 0; i < store->n_slots; i++) {
        snapshot_slot *slot = &store->slots[i];
        if (slot->state && (!oldest || slot->last_used < oldest->last_used)) oldest = slot;
    }
    if (oldest) drop(store, oldest);
    return oldest != NULL;
}

void snapshot_store_keep(snapshot_store *store, const backend_sequence *s, const int32_t *tokens,
                         int64_t n_tokens, const float *logits)
{
    assert(n_tokens <= store->n_ctx);
    if (store->n_slots == 0) return;
    snapshot_slot *slot = find_exact(store, tokens, n_tokens);
    if (!slot) {
        slot = find_free(store);
        if (!slot) {
            snapshot_store_evict(store);
            slot = find_free(store);
        }
        while (store->ops->snapshot_create(store->backend, s, &slot->state, NULL) != CALLA_OK) {
            slot->state = NULL;
            if (!snapshot_store_evict(store)) return;
        }
        memcpy(slot->tokens, tokens, (size_t)n_tokens * sizeof *tokens);
        slot->n_tokens = n_tokens;
        slot->has_logits = false;
    }
    if (logits) {
        memcpy(slot->logits, logits, (size_t)store->n_vocab * sizeof *logits);
        slot->has_logits = true;
    }
    snapshot_store_touch(store, slot);
}
