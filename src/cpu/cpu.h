/* The CPU backend's parts, shared between its files.
 *
 * backend.c   the backend_ops, opening and planning
 * prepare.c   small tensors converted to f32 at open
 * store.c     KV blocks, recurrent states, sequences, snapshots
 * prefill.c   a chunk of tokens through the model; prefill_gdn.c, prefill_attention.c and
 *             prefill_moe.c the parts of a layer
 * decode.c    one token of each of up to eight sequences; decode_moe.c its MoE
 * profile.c   where the time of both goes
 * processors.c  how many threads, and where
 * prefetch.c  experts that may be on disk
 * measure.c   what the machine could do at best
 * kernels.h   the kernels all of it is made of
 *
 * Memory comes from four arenas sized at open, by the same code that hands it out. */
#ifndef CALLA_CPU_CPU_H
#define CALLA_CPU_CPU_H

#include "base/block_pool.h"
#include "base/memory.h"
#include "base/numbers.h"
#include "base/threads.h"
#include "cpu/kernels.h"
#include "cpu/profile.h"
#include "engine/backend.h"

enum {
    HEAD_SLICES = GDN_HEAD_DIM / GDN_SLICE, /* per value head */
    MOE_TILE = 256,  /* tokens of one expert that one thread takes at a time in prefill */
    ROUTE_TILE = 64, /* tokens one thread routes at a time in prefill */
    ROTARY_PAIRS = ROTARY_DIMS / 2,
};

/* arena_take of n * m elements, the product checked. */
static inline void *take(arena *a, size_t n, size_t m, size_t element_bytes)
{
    size_t row_bytes;
    if (!size_mul(m, element_bytes, &row_bytes)) {
        a->overflow = true;
        return NULL;
    }
    return arena_take(a, n, row_bytes);
}
static inline float *take_floats(arena *a, size_t n, size_t m)
{
    return take(a, n, m, sizeof(float));
}

/* ---- prepared ---- */

typedef struct prepared_layer {
    float *input_norm, *post_norm; // [D] factors
    float *q_norm, *k_norm;        // [256] factors, attention layers; q's by 1/sqrt(256), exact
    float *conv;                   // [4][conv_channels] taps, GDN layers
    float *neg_exp_a, *dt_bias;    // [Hv]
    float *gdn_norm;               // [128]
    int32_t attention_index;       /* among attention layers */
    int32_t gdn_index;             /* among GDN layers */
} prepared_layer;

typedef struct prepared {
    arena memory;
    prepared_layer layers[MAX_LAYERS]; // [n_layers]
    float *final_norm;                 // [D]
    double inverse_frequencies[ROTARY_PAIRS];
} prepared;

/* ---- store ---- */

/* A point in a text: its KV blocks, its recurrent state, its length. */
typedef struct timeline {
    bool used;
    int64_t length;  /* tokens */
    int32_t *blocks; // [ceil(length / 256)] numbers of KV blocks, room for n_ctx tokens
    float *state;    /* see state_scan, state_window; undefined while length is 0 */
} timeline;

struct backend_sequence {
    timeline at;
};
struct backend_snapshot {
    timeline at;
};

typedef struct store {
    arena kv_memory, state_memory, snapshot_memory;
    block_pool pool;
    unsigned char *kv; // [n_blocks][attention layer][K, V][kv head][256][256] f32 or f16
    size_t block_bytes, head_bytes, row_bytes;
    int32_t max_blocks;  /* of one timeline */
    size_t state_floats; /* of one state: per GDN layer scan states, then window */
    size_t layer_floats, window_offset, rest_offset;
    backend_sequence *sequences; // [n_sequences]
    backend_snapshot *snapshots; // [n_snapshots]
    float *states;               // [n_sequences + 1] states
    float *snapshot_states;      // [n_snapshots] states
    int32_t *sequence_blocks;    // [n_sequences][max_blocks]
    int32_t *snapshot_blocks;    // [n_snapshots][max_blocks]
    /* A prefill chunk reads the sequence's state and writes this one; they change places when the
     * chunk is done, so that an abandoned chunk leaves the sequence as it was. */
    float *spare_state;
} store;

/* ---- scratch ---- */

/* Up to 8 input rows of a linear layer, as f32 and rounded by quantize_input. */
typedef struct decode_inputs {
    const float *x[GEMV_MAX_INPUTS];
    const void *q[GEMV_MAX_INPUTS];
} decode_inputs;

/* Rows of one step that chose the same expert. */
typedef struct expert_group {
    int32_t expert, n;
    int32_t slots[GEMV_MAX_INPUTS]; // row * k + rank of the expert in the row
} expert_group;

/* n rows in all, k slots a row. */
typedef struct decode_scratch {
    float *x, *u;           // [n][D] residual stream, normed input
    unsigned char *u_q;     // [n] quantised
    float *q_gate;          // [n][2 query_size] as projected: q and gate per head
    float *q;               // [n][query_size] normed, rotated, scaled
    float *k, *v;           // [n][kv_size]
    float *z, *a, *b;       // [n][value_size], [n][Hv] x2
    float *mixed;           // [n][max(query_size, value_size)] the mixer's output before out_proj
    unsigned char *mixed_q; // [n] quantised
    float *out;             // [n][D] out_proj's output
    float *cosines, *sines; // [n][32]
    float *part_out;        // [n * Hq * max_blocks][256] attention of one head over one block
    float *part_max, *part_sum;
    float *conv;                               // [n_threads][conv_channels]
    float *router;                             // [n][E] logits, then [n] shared gate logits
    int32_t *experts;                          // [n][k]
    float *weights;                            // [n][k]
    expert_group *groups;                      // [n k]
    float *gate, *up, *h;                      // [n k][F]
    unsigned char *h_q;                        // [n k] quantised
    float *shared_gate, *shared_up, *shared_h; // [n][Fs]
    unsigned char *shared_q;                   // [n] quantised
    float *down;                               // [n k][D]
    float *shared_down;                        // [n][D]
    float *logits;                             // [n][V]
} decode_scratch;

/* One expert's rows [first, first + n) of the sorted order; expert E is the shared one. */
typedef struct expert_unit {
    int32_t expert, first, n;
} expert_unit;

/* P = prefill_chunk rows, k slots a row. */
typedef struct prefill_scratch {
    float *x, *u;          // [P][D] residual stream; the last norm's output, or the experts' input
    float *normed;         // [n_threads][ROUTE_TILE][D] other norms' outputs
    unsigned char *packed; // [P][max(D, query_size)] packed
    float *out;            // [P][D] out_proj's output
    unsigned char *gemm_scratch; // [n_threads][GEMM_SCRATCH_BYTES], NULL without gemm_many
    /* GDN and attention share memory. */
    float *projected; // [n_threads] some tokens of some heads, after the three rows before
    /* Of the tokens since the last multiple of GDN_CELL and the chunk's, R = GDN_CELL - 1 + P: */
    float *qk;                   // [Hk][R][2][128] normalised; those before the chunk have only k
    float *products;             // [Hk][cells of R][GDN_CELL_PRODUCTS], or as gdn_packed
    unsigned char *gdn_packed;   // [n_threads][PACKED_CELLS] of one key head, of gdn_pack
    float *decay;                // [R][Hv]
    float *values;               // [Hv][R][128], then the recurrence's outputs
    unsigned char *mixed;        // [P][value_size] normed, packed
    float *beta;                 // [P][Hv]
    float *q_gate;               // [P][2 query_size]
    float *k, *v;                // [P][kv_size]
    float *attention_mixed;      // [P][query_size]
    float *cosines, *sines;      // [P][32]
    float *attention_tile;       // [n_threads][tile_floats] in prefill_attention.c
    float *router;               // [n_threads][ROUTE_TILE][E + 1]
    unsigned char *route_packed; // [n_threads] ROUTE_TILE rows of D packed as f32
    int32_t *experts;            // [P][k]
    float *weights;              // [P][k]
    float *shared_scale;         // [P]
    int32_t *position;           // [P][k] of a slot in the sorted order
    int32_t *rows;    // [P k] token of each sorted slot, then [P] all tokens for the shared one
    int32_t *offsets; // [E + 1] of each expert in the sorted order
    expert_unit *units;
    int32_t n_units;
    unsigned char *tile_packed; // [n_threads] MOE_TILE rows of D packed
    unsigned char *tile_inner;  // [n_threads] MOE_TILE rows of max(F, Fs) packed
    float *tile_gate, *tile_up; // [n_threads][MOE_TILE][max(F, Fs)]; NULL with gemm_gated
    float *down;                // [P k][D] in sorted order, then [P][D] of the shared expert
    int32_t *bad_norm;          // [P] first norm (two a layer) whose input is not finite, or -1
} prefill_scratch;

typedef struct scratch {
    arena memory;
    decode_scratch decode;
    prefill_scratch prefill;
} scratch;

/* ---- backend ---- */

struct backend {
    const model_weights *weights;
    model_config config;
    backend_options options;
    cpu_kernels k;
    bool kv_f32;
    thread_pool *pool;
    prepared prepared;
    store store;
    scratch scratch;
    void (*tap)(void *user, int32_t layer, int64_t first_position, int32_t n_rows,
                const float *rows);
    void *tap_user;
    backend_route_fn *route;
    void *route_user;
    step_request requests[GEMV_MAX_INPUTS]; /* of the step in flight */
    int32_t n_requests;
    profile profile;
};

/* prepare.c: takes the memory (twice, see arena), then fills it. */
void prepared_take(backend *b);
void prepared_fill(backend *b);
/* cos and sin of the angles at `position`, computed in double: f32 cannot hold position * frequency
 * of a long context (MODEL.md 3.0). */
void rope_angles(const backend *b, int64_t position, float *cosines, float *sines); // [32] each

/* store.c */
void store_take(backend *b);
calla_status store_init(backend *b, calla_error *err); /* after the arenas are allocated */
void store_deinit(backend *b);
/* Makes room for n more tokens of s: takes the blocks they need, and copies a partly filled last
 * block that others share, so that writing does not disturb them. CALLA_ERR_MEMORY when the pool
 * has too few; s is then unchanged. */
calla_status store_reserve(backend *b, backend_sequence *s, int64_t n, calla_error *err);
/* Gives back blocks beyond `length`. */
void store_trim(backend *b, backend_sequence *s, int64_t reserved_length);
/* K (which = 0) or V (1) of a block: [256][256] elements. */
void *store_kv(const backend *b, int32_t block, int32_t attention_index, int32_t which,
               int32_t head);
/* Writes one token's K or V of one head at `position` of s. */
void store_write(const backend *b, const backend_sequence *s, int64_t position,
                 int32_t attention_index, int32_t which, int32_t head, const float *row); // [256]
/* A layer's recurrent state within a timeline's, behind the last whole cell: [Hv][4
 * slices][128][32].
 */
static inline float *state_scan(const backend *b, float *state, int32_t gdn_index)
{
    return state + (size_t)gdn_index * b->store.layer_floats;
}
/* The row of a layer's convolution window for `position`: the last four are kept, so that writing
 * one leaves the three before it. */
static inline float *state_window(const backend *b, float *state, int32_t gdn_index,
                                  int64_t position)
{
    return state_scan(b, state, gdn_index) + b->store.window_offset +
           (size_t)(position % CONV_TAPS) * (size_t)b->config.conv_channels;
}
/* What the recurrence keeps of the tokens since the last multiple of GDN_CELL, of which there are
 * length % GDN_CELL: what they add to the state, their keys and decays. */
typedef struct state_rest {
    float *d;     // [Hv][4 slices][GDN_CELL - 1][32]
    float *k;     // [Hk][GDN_CELL - 1][128]
    float *decay; // [GDN_CELL - 1][Hv]
} state_rest;
static inline state_rest state_rest_of(const backend *b, float *state, int32_t gdn_index)
{
    enum { N = GDN_CELL - 1 };
    float *d = state_scan(b, state, gdn_index) + b->store.rest_offset;
    float *k = d + (size_t)N * (size_t)b->config.value_size;
    return (state_rest){d, k, k + (size_t)N * (size_t)b->config.key_size};
}
/* Copies (or zeroes, source NULL) a state, on all threads. */
void state_copy(backend *b, float *destination, const float *source);

calla_status store_sequence_create(backend *b, backend_sequence **out, calla_error *err);
void store_sequence_free(backend *b, backend_sequence *s);
void store_sequence_reset(backend *b, backend_sequence *s);
calla_status store_snapshot_create(backend *b, const backend_sequence *s, backend_snapshot **out,
                                   calla_error *err);
void store_snapshot_free(backend *b, backend_snapshot *snapshot);
void store_snapshot_restore(backend *b, const backend_snapshot *snapshot, backend_sequence *s);
int64_t store_snapshot_content_bytes(const backend *b, int64_t n_tokens);
bool store_snapshot_save(const backend *b, const backend_snapshot *snapshot, backend_put_fn *put,
                         void *user);
calla_status store_snapshot_load(backend *b, int64_t n_tokens, backend_get_fn *get, void *user,
                                 backend_snapshot **out, calla_error *err);

/* decode.c, decode_moe.c */
void decode_scratch_take(backend *b);
/* Runs the step in b->requests; logits are in scratch. */
calla_status decode_step(backend *b, step_result *results, calla_error *err);
/* The MoE of `layer` for n rows: x += moe(u), u and u_q the normed input. */
void decode_moe(backend *b, const layer_weights *layer, int32_t n);
/* Rows [begin, end) of m for n inputs, y[i][row]: integer planes in a fast profile, f32 otherwise
 * and for routers. */
void decode_multiply(const backend *b, const matrix *m, int32_t begin, int32_t end,
                     const decode_inputs *in, int32_t n, float *const *y);

/* prefill*.c; what they share among themselves is in prefill.h */
void prefill_scratch_take(backend *b);
/* Appends n <= prefill_chunk tokens. logits as in backend_ops.prefill. */
calla_status prefill_chunk(backend *b, backend_sequence *s, const int32_t *tokens, int32_t n,
                           logits_mode mode, float *logits, const calla_control *control,
                           calla_error *err);

/* As thread_pool_run, but in pieces of `piece` items that threads take as they get free: for items
 * of unequal size, and for threads that are not equally fast, as on a shared machine. */
void run_pieces(thread_pool *pool, int64_t n, int64_t piece, thread_pool_fn fn, void *context);

/* thread_pool_run as one call of `op`. */
static inline void run_region(backend *b, operation op, int64_t n, int64_t grain, thread_pool_fn fn,
                              void *context)
{
    int64_t start = profile_start(&b->profile);
    thread_pool_run(b->pool, n, grain, fn, context);
    profile_stop(&b->profile, op, start);
}

/* Of one layer. */
static inline int64_t gdn_state_bytes(const model_config *c)
{
    return (int64_t)c->n_value_heads * GDN_HEAD_DIM * GDN_HEAD_DIM * (int64_t)sizeof(float);
}

/* profile.c: count the bytes that must move and the operations, if the profile is on. A GDN layer
 * for n tokens of n_states sequences; */
void profile_count_gdn(backend *b, const gdn_weights *w, int64_t n, int64_t n_states);
/* an attention layer for n tokens that see n_seen tokens, summed, of n_read in the cache; */
void profile_count_attention(backend *b, const attention_weights *w, int64_t n, int64_t n_seen,
                             int64_t n_read);
/* a MoE whose n tokens chose n_experts different experts; */
void profile_count_moe(backend *b, const moe_weights *w, int64_t n, int64_t n_experts);
/* what comes before and after the layers. */
void profile_count_ends(backend *b, int64_t n, int64_t n_logits);

/* processors.c: backend_ops.choose_threads, and the pool on the processors of one memory node. */
int32_t cpu_choose_threads(const model_weights *weights, bool pin, bool may_measure);
calla_status cpu_start_threads(int32_t n_threads, bool pin, thread_pool **pool, calla_error *err);

/* prefetch.c: asks for an expert's weights unless all are in memory. From any thread. */
void prefetch_expert(const backend *b, const moe_weights *w, int32_t expert);

/* measure.c: backend_ops.measure. */
calla_status cpu_measure(backend *b, calla_machine_rates *rates, calla_error *err);

#endif
