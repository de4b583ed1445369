/* A backend for tests of sessions: the "state" of a sequence is a hash of its tokens in which
 * decode steps leave another trace than prefill, so that a wrong or tainted state shows in the
 * logits. KV blocks are counted, and failures can be ordered. As a `device` it samples itself and
 * takes a step while another is under way. */
#ifndef CALLA_TESTS_FAKE_BACKEND_H
#define CALLA_TESTS_FAKE_BACKEND_H

#include "engine/backend.h"

enum {
    FAKE_VOCAB = 40,
    FAKE_TOKENS = 37, /* real ones */
    FAKE_TURN = 36,
    FAKE_BLOCK = 4, /* tokens per KV block */
    FAKE_MAX_BLOCKS = 256,
    FAKE_CHUNK = 4,
    FAKE_DECODED = 1 << 20, /* set in a token's number when a decode step runs it */
};

struct backend_sequence {
    uint64_t hash;
    int64_t n_tokens;
    int32_t last_sampled; /* by the device */
    int32_t blocks[FAKE_MAX_BLOCKS], n_blocks;
};

typedef struct fake_control {
    int32_t n_blocks; /* of the pool */
    int64_t slot_bytes;
    int32_t grid;
    bool device;
    /* What was done. */
    int64_t n_prefilled, n_steps;
    int64_t n_behind, n_in_flight; /* steps submitted behind another; under way now */
    int64_t ends[256];             /* [n_ends] positions at which snapshots were taken */
    int32_t n_ends, n_restored;
    /* What is to happen. */
    int64_t fail_after; /* fail the prefill that goes beyond, < 0: never */
    calla_status fail_with;
    atomic_bool *set_cancel; /* set when a prefill passes set_cancel_at */
    int64_t set_cancel_at;
    bool nan_logits, fail_step, dirty_step;
    bool fail_submit; /* of a device */
    int32_t nan_row;  /* 1 + the request of a step whose logits are broken; 0: none */
} fake_control;

extern fake_control fake;
extern const backend_ops fake_ops;

void fake_reset_counts(void);
/* The state after token number `x` in state `hash`; 0 is the empty state. */
uint64_t fake_mix(uint64_t hash, uint64_t x);
/* The logits [FAKE_VOCAB] of a state. */
void fake_logits(uint64_t hash, float *logits);

#endif
