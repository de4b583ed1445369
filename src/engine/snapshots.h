/* The engine's snapshots, found by the tokens they hold. All memory but the backend's is taken at
 * init; the least recently used goes first. */
#ifndef CALLA_ENGINE_SNAPSHOTS_H
#define CALLA_ENGINE_SNAPSHOTS_H

#include "engine/backend.h"

typedef struct snapshot_slot {
    backend_snapshot *state; /* NULL = free */
    int32_t *tokens;         /* [n_tokens], room for n_ctx */
    int64_t n_tokens;
    float *logits; /* [n_vocab] after the last token, if has_logits */
    bool has_logits;
    uint64_t last_used;
} snapshot_slot;

typedef struct snapshot_store {
    const backend_ops *ops;
    backend *backend;
    snapshot_slot *slots; /* [n_slots] */
    int32_t n_slots;
    int64_t n_ctx;
    int32_t n_vocab;
    uint64_t now; /* counts uses */
    void *memory;
} snapshot_store;

/* Bytes of one slot besides what the backend holds for it. */
int64_t snapshot_slot_bytes(int64_t n_ctx, int32_t n_vocab);

calla_status snapshot_store_init(snapshot_store *store, const backend_ops *ops, backend *b,
                                 int32_t n_slots, int64_t n_ctx, int32_t n_vocab, calla_error *err);
void snapshot_store_deinit(snapshot_store *store);

/* The deepest snapshot from which tokens[n_tokens] can be reached: a proper prefix of them, or all
 * of them with logits. NULL if there is none. Does not count as a use. */
snapshot_slot *snapshot_store_find(snapshot_store *store, const int32_t *tokens, int64_t n_tokens);

void snapshot_store_touch(snapshot_store *store, snapshot_slot *slot);

/* Keeps the state of `s`, which holds tokens[n_tokens], and logits [n_vocab] if not NULL. Making
 * room may drop others. A snapshot is a help, not a need: when it cannot be taken, nothing happens.
 */
void snapshot_store_keep(snapshot_store *store, const backend_sequence *s, const int32_t *tokens,
                         int64_t n_tokens, const float *logits);

/* Frees the least recently used snapshot; false if there is none. */
bool snapshot_store_evict(snapshot_store *store);

#endif
