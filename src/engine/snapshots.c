#include "engine/snapshots.h"

#include "base/memory.h"
#include "engine/snapshot_files.h"

#include <assert.h>
#include <string.h>

int64_t snapshot_slot_bytes(int64_t n_ctx, int32_t n_vocab)
{
    return (n_ctx + n_vocab) * 4;
}

calla_status snapshot_store_init(snapshot_store *store, const backend_ops *ops, backend *b,
                                 int32_t n_slots, int64_t n_ctx, int32_t n_vocab,
                                 int32_t turn_token, calla_error *err)
{
    *store = (snapshot_store){.ops = ops,
                              .backend = b,
                              .n_slots = n_slots,
                              .n_ctx = n_ctx,
                              .n_vocab = n_vocab,
                              .turn_token = turn_token};
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
    if (slot->saving) snapshot_files_collect(store->files, true);
    for (int32_t i = 0; i < store->n_slots; i++)
        if (store->slots[i].parent == slot) store->slots[i].parent = slot->parent;
    store->ops->snapshot_free(store->backend, slot->state);
    slot->state = NULL;
    slot->parent = NULL;
}

void snapshot_store_deinit(snapshot_store *store)
{
    for (int32_t i = 0; store->memory && i < store->n_slots; i++)
        if (store->slots[i].state) drop(store, &store->slots[i]);
    mem_free(store->memory);
    *store = (snapshot_store){0};
}

/* ---- searching ---- */

/* How many first tokens a slot shares with tokens[n_tokens]. Where the parent already tells, the
 * slot's own tokens are not looked at. */
static int64_t count_common(const snapshot_store *store, snapshot_slot *slot, const int32_t *tokens,
                            int64_t n_tokens)
{
    if (slot->search == store->n_searches) return slot->n_common;
    int64_t i = 0, n = slot->n_tokens < n_tokens ? slot->n_tokens : n_tokens;
    bool parted = false;
    if (slot->parent) {
        i = count_common(store, slot->parent, tokens, n_tokens);
        parted = i < slot->parent->n_tokens;
    }
    while (!parted && i < n && slot->tokens[i] == tokens[i]) i++;
    slot->search = store->n_searches;
    slot->n_common = i;
    return i;
}

snapshot_match snapshot_store_find(snapshot_store *store, const int32_t *tokens, int64_t n_tokens)
{
    snapshot_match m = {0};
    store->n_searches++;
    for (int32_t i = 0; i < store->n_slots; i++) {
        snapshot_slot *slot = &store->slots[i];
        if (!slot->state) continue;
        int64_t n = count_common(store, slot, tokens, n_tokens);
        if (!m.nearest || n > m.n_common) m.nearest = slot, m.n_common = n;
        if (n < slot->n_tokens || (n == n_tokens && !slot->has_logits)) continue;
        if (!m.usable || n > m.usable->n_tokens) m.usable = slot;
    }
    return m;
}

void snapshot_store_touch(snapshot_store *store, snapshot_slot *slot)
{
    slot->last_used = ++store->now;
    while (slot && !slot->first_message) slot = slot->parent;
    if (slot) slot->last_used = ++store->now;
}

int32_t snapshot_store_count(const snapshot_store *store)
{
    int32_t n = 0;
    for (int32_t i = 0; i < store->n_slots; i++) n += store->slots[i].state != NULL;
    return n;
}

/* ---- changing ---- */

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
        if (!slot->state) continue;
        bool older = !oldest || slot->last_used < oldest->last_used;
        if (oldest && slot->saving != oldest->saving)
            older = oldest->saving; /* would have to wait */
        if (older) oldest = slot;
    }
    if (!oldest) return false;
    drop(store, oldest);
    store->n_evicted++;
    return true;
}

snapshot_slot *snapshot_store_find_exact(snapshot_store *store, const int32_t *tokens,
                                         int64_t n_tokens)
{
    store->n_searches++;
    for (int32_t i = 0; i < store->n_slots; i++) {
        snapshot_slot *slot = &store->slots[i];
        if (slot->state && slot->n_tokens == n_tokens &&
            count_common(store, slot, tokens, n_tokens) == n_tokens)
            return slot;
    }
    return NULL;
}

/* The deepest other slot that holds a proper prefix of this one's tokens. */
static snapshot_slot *find_parent(snapshot_store *store, const snapshot_slot *of)
{
    snapshot_slot *parent = NULL;
    store->n_searches++;
    for (int32_t i = 0; i < store->n_slots; i++) {
        snapshot_slot *slot = &store->slots[i];
        if (!slot->state || slot == of || slot->n_tokens >= of->n_tokens) continue;
        if (count_common(store, slot, of->tokens, of->n_tokens) < slot->n_tokens) continue;
        if (!parent || slot->n_tokens > parent->n_tokens) parent = slot;
    }
    return parent;
}

/* Makes the new slot the parent of those it is a prefix of. */
static void adopt_children(snapshot_store *store, snapshot_slot *slot)
{
    for (int32_t i = 0; i < store->n_slots; i++) {
        snapshot_slot *other = &store->slots[i];
        if (!other->state || other == slot || other->parent != slot->parent ||
            other->n_tokens <= slot->n_tokens)
            continue;
        if (memcmp(other->tokens, slot->tokens, (size_t)slot->n_tokens * sizeof(int32_t)) == 0)
            other->parent = slot;
    }
}

static void make_room(snapshot_store *store)
{
    if (!find_free(store)) snapshot_store_evict(store);
}

static bool holds_first_message(const snapshot_store *store, const int32_t *tokens,
                                int64_t n_tokens)
{
    int n = 0;
    for (int64_t i = 0; i < n_tokens && n < 2; i++) n += tokens[i] == store->turn_token;
    return n == 1;
}

/* Puts a state into a free slot, and that into the tree. */
static snapshot_slot *insert(snapshot_store *store, backend_snapshot *state, const int32_t *tokens,
                             int64_t n_tokens, bool decoded)
{
    snapshot_slot *slot = find_free(store);
    assert(slot);
    memcpy(slot->tokens, tokens, (size_t)n_tokens * sizeof *tokens);
    slot->state = state;
    slot->n_tokens = n_tokens;
    slot->has_logits = false;
    slot->decoded = decoded;
    slot->first_message = holds_first_message(store, tokens, n_tokens);
    slot->search = 0;
    slot->parent = find_parent(store, slot);
    adopt_children(store, slot);
    return slot;
}

static void keep_logits(snapshot_store *store, snapshot_slot *slot, const float *logits)
{
    memcpy(slot->logits, logits, (size_t)store->n_vocab * sizeof *logits);
    slot->has_logits = true;
}

/* The slot of these tokens, unless it is to make way for a better one. */
static snapshot_slot *find_as_good(snapshot_store *store, const int32_t *tokens, int64_t n_tokens,
                                   bool decoded)
{
    snapshot_slot *slot = snapshot_store_find_exact(store, tokens, n_tokens);
    if (!slot || !slot->decoded || decoded) return slot;
    drop(store, slot);
    return NULL;
}

void snapshot_store_keep(snapshot_store *store, const backend_sequence *s, const int32_t *tokens,
                         int64_t n_tokens, const float *logits, bool decoded)
{
    assert(n_tokens <= store->n_ctx);
    if (store->n_slots == 0) return;
    snapshot_slot *slot = find_as_good(store, tokens, n_tokens, decoded);
    if (!slot) {
        backend_snapshot *state;
        make_room(store);
        while (store->ops->snapshot_create(store->backend, s, &state, NULL) != CALLA_OK)
            if (!snapshot_store_evict(store)) return;
        slot = insert(store, state, tokens, n_tokens, decoded);
    }
    if (logits && !slot->saving && (!decoded || slot->decoded)) keep_logits(store, slot, logits);
    snapshot_store_touch(store, slot);
}

void snapshot_store_adopt(snapshot_store *store, backend_snapshot *state, const int32_t *tokens,
                          int64_t n_tokens, const float *logits, bool decoded)
{
    if (find_as_good(store, tokens, n_tokens, decoded)) {
        store->ops->snapshot_free(store->backend, state);
        return;
    }
    make_room(store);
    snapshot_slot *slot = insert(store, state, tokens, n_tokens, decoded);
    if (logits) keep_logits(store, slot, logits);
    snapshot_store_touch(store, slot);
}
