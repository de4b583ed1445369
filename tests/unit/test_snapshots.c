/* The tree of snapshots against a plain list, on random texts that share prefixes. */
#include "engine/snapshots.h"
#include "support/fake_backend.h"
#include "support/support.h"

#include <stdlib.h>
#include <string.h>

enum { N_SLOTS = 12, N_CTX = 24, N_STEPS = 20000, TURN = 9 };

static snapshot_store store;
static backend_options options = {.n_ctx = N_CTX, .n_sequences = 1, .n_snapshots = N_SLOTS};
static backend *device;
static backend_sequence *sequence;
static calla_error err;

static int setup(void **state)
{
    (void)state;
    memset(&fake, 0, sizeof fake);
    fake.n_blocks = 200, fake.grid = 1, fake.fail_after = -1;
    model_weights weights = {.config = {.n_vocab = FAKE_VOCAB}};
    static model_weights kept;
    kept = weights;
    assert_ok(fake_ops.open(&kept, &options, &device, &err), &err);
    assert_ok(fake_ops.sequence_create(device, &sequence, &err), &err);
    assert_ok(
        snapshot_store_init(&store, &fake_ops, device, N_SLOTS, N_CTX, FAKE_VOCAB, TURN, &err),
        &err);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    snapshot_store_deinit(&store);
    fake_ops.sequence_free(device, sequence);
    fake_ops.close(device);
    return 0;
}

static int64_t shared(const snapshot_slot *slot, const int32_t *tokens, int64_t n)
{
    int64_t i = 0;
    while (i < n && i < slot->n_tokens && slot->tokens[i] == tokens[i]) i++;
    return i;
}

/* Every slot's parent is the deepest proper prefix there is. */
static void check_tree(void)
{
    for (int i = 0; i < N_SLOTS; i++) {
        const snapshot_slot *slot = &store.slots[i];
        int64_t deepest = -1;
        if (!slot->state) continue;
        for (int k = 0; k < N_SLOTS; k++) {
            const snapshot_slot *other = &store.slots[k];
            if (k == i || !other->state || other->n_tokens >= slot->n_tokens) continue;
            if (shared(other, slot->tokens, slot->n_tokens) == other->n_tokens &&
                other->n_tokens > deepest)
                deepest = other->n_tokens;
        }
        assert_int_equal(slot->parent ? slot->parent->n_tokens : -1, deepest);
        if (slot->parent) {
            assert_non_null(slot->parent->state);
            assert_int_equal(shared(slot->parent, slot->tokens, slot->n_tokens), deepest);
        }
    }
}

static void check_find(const int32_t *tokens, int64_t n)
{
    snapshot_match m = snapshot_store_find(&store, tokens, n);
    int64_t common = 0, usable = -1;
    for (int i = 0; i < N_SLOTS; i++) {
        const snapshot_slot *slot = &store.slots[i];
        if (!slot->state) continue;
        int64_t k = shared(slot, tokens, n);
        if (k > common) common = k;
        bool fits = k == slot->n_tokens && (k < n || slot->has_logits);
        if (fits && k > usable) usable = k;
    }
    assert_int_equal(m.n_common, common);
    assert_int_equal(m.usable ? m.usable->n_tokens : -1, usable);
}

static void the_tree_finds_what_a_list_does(void **state)
{
    (void)state;
    float logits[FAKE_VOCAB] = {0};
    srand(7);
    for (int step = 0; step < N_STEPS; step++) {
        int32_t tokens[N_CTX];
        int64_t n = 1 + rand() % N_CTX;
        for (int64_t i = 0; i < n; i++) tokens[i] = rand() % 8 == 0; /* few distinct texts */
        switch (rand() % 8) {
        case 0:
            snapshot_store_evict(&store);
            break;
        case 1:
        case 2:
        case 3:
            snapshot_store_keep(&store, sequence, tokens, n, rand() % 2 ? logits : NULL,
                                rand() % 2);
            break;
        default:
            check_find(tokens, n);
        }
        check_tree();
    }
    assert_true(store.n_evicted > 1000);
}

/* What several conversations begin with stays, however long one of them becomes; it goes when none
 * of them is in use any more. */
static void a_first_message_stays_while_it_is_used(void **state)
{
    (void)state;
    int32_t tokens[N_CTX] = {TURN, 1, 2, 3};
    const int64_t n_first = 4;
    snapshot_store_keep(&store, sequence, tokens, 2, NULL, false); /* on the way */
    snapshot_store_keep(&store, sequence, tokens, n_first, NULL, false);
    for (int64_t n = n_first; n < N_CTX; n++) {
        tokens[n] = TURN;
        snapshot_store_keep(&store, sequence, tokens, n + 1, NULL, false);
    }
    assert_true(store.n_evicted > 0);
    assert_non_null(snapshot_store_find_exact(&store, tokens, n_first));
    assert_null(snapshot_store_find_exact(&store, tokens, 2));
    int32_t others[N_CTX];
    for (int64_t n = 0; n < N_CTX; n++) {
        others[n] = n == 0 ? TURN : 5;
        snapshot_store_keep(&store, sequence, others, n + 1, NULL, false);
    }
    assert_null(snapshot_store_find_exact(&store, tokens, n_first));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_tree_finds_what_a_list_does, setup, teardown),
        cmocka_unit_test_setup_teardown(a_first_message_stays_while_it_is_used, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
