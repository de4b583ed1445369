/* The engine's snapshots: a tree of token prefixes over all sessions. A snapshot's parent is the
 * deepest other one that holds a proper prefix of its tokens, so a search looks at a token once
 * however many snapshots share it. All memory but the backend's is taken at init; the least
 * recently used goes first. Using one uses the first message's, too, on which it stands: other
 * conversations begin there, and a long one would push it out otherwise. */
#ifndef CALLA_ENGINE_SNAPSHOTS_H
#define CALLA_ENGINE_SNAPSHOTS_H

#include "engine/backend.h"

typedef struct snapshot_slot {
    backend_snapshot *state; /* NULL = free */
    int32_t *tokens;         /* [n_tokens], room for n_ctx */
    int64_t n_tokens;
    float *logits; /* [n_vocab] after the last token, if has_logits */
    bool has_logits;
    bool decoded;       /* the state is partly from decode steps */
    bool first_message; /* no second message begins in the tokens */
    bool saving;        /* it is being written to a file and stays as it is (snapshot_files.h) */
    struct snapshot_slot *parent;
    uint64_t last_used;
    uint64_t search; /* the search `n_common` belongs to */
    int64_t n_common;
} snapshot_slot;

/* What the snapshots hold of a prompt. */
typedef struct snapshot_match {
    snapshot_slot *usable;        /* the deepest from which the prompt can be reached, or NULL */
    const snapshot_slot *nearest; /* one that shares the most tokens with it, or NULL */
    int64_t n_common;             /* that many */
} snapshot_match;

typedef struct snapshot_store {
    const backend_ops *ops;
    backend *backend;
    snapshot_slot *slots; /* [n_slots] */
    int32_t n_slots;
    int64_t n_ctx;
    int32_t n_vocab;
    int32_t turn_token; /* that begins a message, -1 = none */
    uint64_t now;       /* counts uses */
    uint64_t n_searches;
    int64_t n_evicted;            /* to make room */
    struct snapshot_files *files; /* or NULL */
    void *memory;
} snapshot_store;

/* Bytes of one slot besides what the backend holds for it. */
int64_t snapshot_slot_bytes(int64_t n_ctx, int32_t n_vocab);

calla_status snapshot_store_init(snapshot_store *store, const backend_ops *ops, backend *b,
                                 int32_t n_slots, int64_t n_ctx, int32_t n_vocab,
                                 int32_t turn_token, calla_error *err);
void snapshot_store_deinit(snapshot_store *store);

/* Looks for tokens[n_tokens]. Usable is a snapshot of a proper prefix of them, or of all of them
 * with logits. Does not count as a use. */
snapshot_match snapshot_store_find(snapshot_store *store, const int32_t *tokens, int64_t n_tokens);

/* Counts a use of the slot. */
void snapshot_store_touch(snapshot_store *store, snapshot_slot *slot);

/* Keeps the state of `s`, which holds tokens[n_tokens], and logits [n_vocab] if not NULL. A
 * snapshot of the same tokens that is `decoded` is replaced by one that is not. Making room may
 * drop others. A snapshot is a help, not a need: when it cannot be taken, nothing happens. */
void snapshot_store_keep(snapshot_store *store, const backend_sequence *s, const int32_t *tokens,
                         int64_t n_tokens, const float *logits, bool decoded);

/* The snapshot of exactly tokens[n_tokens], or NULL. */
snapshot_slot *snapshot_store_find_exact(snapshot_store *store, const int32_t *tokens,
                                         int64_t n_tokens);
/* Keeps a snapshot the backend made, as snapshot_store_keep does, and owns it. */
void snapshot_store_adopt(snapshot_store *store, backend_snapshot *state, const int32_t *tokens,
                          int64_t n_tokens, const float *logits, bool decoded);

/* Frees the least recently used snapshot; false if there is none. */
bool snapshot_store_evict(snapshot_store *store);
/* Snapshots it holds. */
int32_t snapshot_store_count(const snapshot_store *store);

#endif
