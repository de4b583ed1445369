/* The CUDA backend's parts, shared between its C files.
 *
 * backend.c   the backend_ops, opening and planning
 * device.c    calls checked, memory of the device
 * weights.c   where tensors go in device memory; upload.c how they get there
 * store.c     KV blocks, recurrent states, sequences, snapshots
 * prefill.c   a chunk of tokens through the model
 * decode.c    the kernels of one token of each of up to eight sequences, as a CUDA graph
 * step.c      what goes to and from the device with them
 * profile.c   where the time of both goes; measure.c what the device could do at best
 * decode_kernels.h, prefill_kernels.cuh   the kernels, in .cu files
 * layout.h    how 4-bit matrices lie in memory
 *
 * All work goes into one stream, in order. Device memory comes from five arenas sized at open by
 * the same code that hands it out. */
#ifndef CALLA_CUDA_CUDA_H
#define CALLA_CUDA_CUDA_H

#include "base/block_pool.h"
#include "base/memory.h"
#include "base/numbers.h"
#include "base/threads.h"
#include "engine/backend.h"
#include "model/cost.h"

#include "cuda/decode_kernels.h"
#include "cuda/prefill_kernels.cuh"

_Static_assert((int)STEP_ROWS == (int)BACKEND_MAX_SEQUENCES, "decode_kernels.h repeats it");
_Static_assert((int)KV_TOKENS == (int)KV_BLOCK_TOKENS, "decode_kernels.h repeats it");
_Static_assert((int)TOP_LOGPROBS == (int)CALLA_MAX_TOP_LOGPROBS, "decode_kernels.h repeats it");
_Static_assert((int)QUANT_COLUMNS == (int)QUANT_GROUP, "decode_kernels.h repeats it");

enum {
    ROTARY_PAIRS = ROTARY_DIMS / 2,
    LOGITS_ROWS = 64, /* of LOGITS_ALL at a time */
};

/* ---- device.c ---- */

/* Turns a failed CUDA call into a calla_error that says what was being done. */
calla_status device_check(cudaError_t status, const char *what, calla_error *err);

/* Memory of the device by the same two passes as base/memory.h's arena: count, allocate, hand out.
 * Pieces are 256-byte aligned. */
typedef struct device_arena {
    unsigned char *memory;
    size_t used;
    bool overflow;
} device_arena;

/* n * m * element_bytes bytes; NULL while counting. */
void *device_take(device_arena *a, size_t n, size_t m, size_t element_bytes);
static inline float *device_floats(device_arena *a, size_t n, size_t m)
{
    return device_take(a, n, m, sizeof(float));
}
/* `what` names it in the error, which says how much of the device's memory is free. */
calla_status device_allocate(device_arena *a, const char *what, calla_error *err);
void device_free(device_arena *a);
/* Page-locked memory of the host. */
calla_status pinned_allocate(size_t bytes, const char *what, void **memory, calla_error *err);

/* ---- weights ---- */

/* A 4-bit matrix (or one per expert), and the powers of two prefill scales its strips by. */
typedef struct device_matrix {
    w4_matrix w;    /* of expert 0 */
    float *factors; // [all strips]
    size_t expert_bytes;
} device_matrix;

typedef struct device_layer {
    float *input_norm, *post_norm; // [D] factors
    device_matrix in, out;         /* rows qkv | z | a | b, or q | k | v; out_proj or o_proj */
    float *q_norm, *k_norm;        // [256], attention layers
    float *taps;                   // [4][conv_channels], GDN layers
    float *neg_exp_a, *dt_bias;    // [Hv]
    float *gdn_norm;               // [128]
    w8_matrix router;              /* [E + 1][D]: the last row is the shared expert's gate */
    device_matrix inner, outer;    /* [E][2F][D] gate and up interleaved, [E][D][F] */
    device_matrix shared_inner, shared_outer;
    int32_t mixer_index; /* among the layers of its kind */
} device_layer;

typedef struct device_weights {
    device_arena memory;
    device_layer layers[MAX_LAYERS]; // [n_layers]
    float *final_norm;               // [D]
    unsigned char *embedding;        // [V][D/2]
    uint32_t *embedding_pairs;       // [V][D/64]
    device_matrix head;
} device_weights;

/* ---- store ---- */

/* A point in a text: its KV blocks, its recurrent state, its length.
 *
 * Prefill gives the same bits only from multiples of the recurrence's grid (prefill_gdn_grid). So
 * that a text can go on from anywhere, a state that prefill left between two of them is kept
 * together with the one at the multiple before it, the anchor, and the tokens since: prefill goes
 * back to the anchor and runs those tokens once more. */
enum { MAX_GRID = 64 };
typedef struct timeline {
    bool used;
    int64_t length;         /* tokens */
    int32_t *blocks;        // [max_blocks] host memory
    int32_t state;          /* number of its state; undefined contents while length is 0 */
    int32_t slot;           /* of a sequence: its row of the device's block tables */
    bool anchored;          /* the next two hold */
    int32_t anchor;         /* number of the state at length / grid * grid */
    int32_t tail[MAX_GRID]; /* tokens since */
} timeline;

struct backend_sequence {
    timeline at;
};
struct backend_snapshot {
    timeline at;
};

typedef struct store {
    device_arena kv_memory, state_memory, snapshot_memory;
    block_pool pool;
    store_view view;             /* states: two of each sequence, and the spare ones */
    float *snapshots_at;         /* states of the snapshots, two each */
    int32_t spare[2];            /* a prefill chunk reads a sequence's states and writes these */
    int32_t *tables;             // [n_sequences][max_blocks] page-locked copy of view.tables
    backend_sequence *sequences; // [n_sequences]
    backend_snapshot *snapshots; // [n_snapshots]
    int32_t *snapshot_blocks;    // [n_snapshots][max_blocks]
    void *host_memory;
} store;

/* ---- scratch ---- */

/* n rows of a step. */
typedef struct decode_scratch {
    float *x;         // [n][D]
    float *projected; // [n][widest in]
    float *mixed;     // [n][widest out]
    float *router;    // [n][E + 1]
    float *h;         // [n][k F + Fs]
    float *part_out;  // [n][Hq][ATTENTION_PARTS][256]
    float *part_max, *part_sum;
    unsigned *arrived;  // [n][Hq]
    float *logits;      // [n][V]
    int32_t *bad_layer; // [n]
    int32_t *sampled;   // [n_sequences]
    step_input *input;
    step_output *output; // [n]
    sample_args sample;
    unsigned *counters;  // [n_layers][6] of a chain's steps
    token_layer *layers; // [n_layers]
    token_mail *mail;
    unsigned *barrier; // [3]
} decode_scratch;

/* P rows of a chunk. */
typedef struct prefill_scratch {
    int32_t *tokens;        // [P]
    float *x, *u32;         // [P][D]; u32 is the last norm's, for the tap
    __half *split;          // [P][D], as mixed, h, shared_h: two halves a number
    unsigned char *rounded; /* prefill_rounded_bytes of the largest input of a product */
    float *group_sums;      // [P][group_sums_pitch(D)]
    float *projected;       // [P][widest in]
    __half *mixed;          // [P][widest out]
    float *f, *o;           // [P][conv_channels], [P][value_size]
    float *decay, *beta;    // [P][Hv]
    void *workspace;        /* prefill_gdn_workspace_bytes */
    __half *q;              // [P][query_size]
    float *cosines, *sines; // [P][32]
    float *router;          // [P][E + 1]
    int32_t *experts;       // [P][k]
    float *weights;         // [P][k]
    float *shared_scale;    // [P]
    moe_plan plan;
    __half *h;           // [P k + P][F]
    float *down;         // [P k + P][D]
    __half *shared_h;    // [P][Fs], if the shared expert is not as wide as the others
    float *shared_down;  // [P][D], likewise
    int32_t *bad_layer;  // [P]
    float *logits;       // [LOGITS_ROWS][V]
    double *frequencies; // [32]
} prefill_scratch;

/* Page-locked memory of the host. */
typedef struct host_buffers {
    void *memory;
    step_input *input;                                          // [STEPS_IN_FLIGHT]
    step_output *output;                                        // [STEPS_IN_FLIGHT][STEP_ROWS]
    float *logits;                                              // [LOGITS_ROWS][V]
    int32_t *tokens;                                            // [P]
    int32_t *bad_layer;                                         // [P]
    float *route_logits;                                        // [P][E + 1]
    int32_t *route_experts;                                     // [P][k]
    float *route_weights;                                       // [P][k]
    uint32_t *masks;                                            // [n][mask_words]
    int32_t *bias_tokens, *generated_tokens, *generated_counts; // [n][list]
    float *bias_values;
    float *tapped; // [P][D]
} host_buffers;

/* A step between submit and wait. */
enum { STEPS_IN_FLIGHT = 2 };
typedef struct flight {
    backend_sequence *sequences[STEP_ROWS]; // [n]
    int64_t positions[STEP_ROWS];           // [n] of the tokens it runs
    bool samples[STEP_ROWS];                // [n] or gives logits
    int32_t n;
    step_input *input; /* page-locked, like all of host_buffers */
    step_output *output;
    cudaEvent_t done;
} flight;

/* ---- profile ---- */

enum { MAX_MARKS = 16 * MAX_LAYERS };

/* Events between the operations of a run: the time up to a mark is that operation's. */
typedef struct profile {
    bool on;
    cudaEvent_t events[MAX_MARKS + 1];
    operation operations[MAX_MARKS + 1];
    int32_t n_marks;
    cudaError_t status;                        /* of the run's events so far */
    calla_profile_entry entries[N_OPERATIONS]; /* times, launches and levels */
    cost costs[N_OPERATIONS];
} profile;

/* ---- backend ---- */

struct backend {
    const model_weights *weights;
    model_config config;
    backend_options options;
    int32_t n_tokens; /* ids below can be sampled */
    int32_t grid;     /* of the recurrence in prefill: at most MAX_GRID */
    prefill_device device;
    char isa[16]; /* sm_90 ... */
    int32_t widest_in, widest_out;
    bool token_whole; /* the kernel with all of a token's layers is used */
    thread_pool *pool;
    cudaStream_t stream;
    cudaEvent_t layer_done[2];
    device_weights w;
    store store;
    device_arena scratch_memory;
    decode_scratch d;
    prefill_scratch p;
    host_buffers host;
    double inverse_frequencies[ROTARY_PAIRS];
    cudaGraphExec_t graphs[STEP_ROWS]; /* of a step of i + 1 rows */
    flight flights[STEPS_IN_FLIGHT];
    int32_t first_flight, n_flights; /* the one to be waited for next, and how many there are */
    int32_t n_rows;                  /* of the last step: its logits are still there */
    calla_error failed;              /* code 0, or why the device cannot be used any more */
    profile profile;
    void (*tap)(void *user, int32_t layer, int64_t first_position, int32_t n_rows,
                const float *rows);
    void *tap_user;
    backend_route_fn *route;
    void *route_user;
};

/* A call into CUDA while the backend runs: a failure is kept, because nothing works afterwards. */
calla_status backend_check(backend *b, cudaError_t status, const char *what, calla_error *err);
#define TRY_CUDA(b, call, what, err) CALLA_TRY(backend_check(b, call, what, err))

/* weights.c, upload.c */
void cuda_weights_take(backend *b);
/* Whether prefill can take the shared expert as one more of the others. */
static inline bool shared_is_alike(const model_config *c)
{
    return c->expert_width == c->shared_expert_width;
}
calla_status cuda_weights_upload(backend *b, calla_error *err);

/* store.c */
void cuda_store_take(backend *b);
calla_status cuda_store_init(backend *b, calla_error *err);
void cuda_store_deinit(backend *b);
/* Makes room for n more tokens of s: takes the blocks they need, and copies a partly filled last
 * block that others share. CALLA_ERR_MEMORY when the pool has too few; s is then unchanged. */
calla_status cuda_store_reserve(backend *b, backend_sequence *s, int64_t n, calla_error *err);
/* Gives back blocks beyond its length. */
void cuda_store_trim(backend *b, backend_sequence *s, int64_t reserved_length);
static inline float *cuda_store_state(const backend *b, int32_t state)
{
    return b->store.view.states + (size_t)state * b->store.view.state_floats;
}
calla_status cuda_store_sequence_create(backend *b, backend_sequence **out, calla_error *err);
void cuda_store_sequence_free(backend *b, backend_sequence *s);
void cuda_store_sequence_reset(backend *b, backend_sequence *s);
calla_status cuda_store_snapshot_create(backend *b, const backend_sequence *s,
                                        backend_snapshot **out, calla_error *err);
void cuda_store_snapshot_free(backend *b, backend_snapshot *snapshot);
void cuda_store_snapshot_restore(backend *b, const backend_snapshot *snapshot, backend_sequence *s);

/* decode.c */
/* Rows a step may have. */
static inline int32_t step_rows(const backend *b)
{
    return smaller_of(b->options.n_sequences, STEP_ROWS);
}
void cuda_decode_scratch_take(backend *b);
calla_status cuda_decode_init(backend *b, calla_error *err);
void cuda_decode_deinit(backend *b);
/* Puts the kernels of a step of n rows into the stream: their input is in b->d.input, where a row's
 * token is -1 if it is the one in b->d.sampled; their output goes to b->d.output. */
cudaError_t cuda_decode_run(backend *b, int32_t n);

/* step.c */
calla_status cuda_step_init(backend *b, calla_error *err);
void cuda_step_deinit(backend *b);
calla_status cuda_step_submit(backend *b, const step_request *requests, int32_t n,
                              calla_error *err);
calla_status cuda_step_wait(backend *b, step_result *results, int32_t n,
                            const calla_control *control, calla_error *err);
calla_status cuda_step_logits(backend *b, int32_t i, float *logits, calla_error *err);

/* prefill.c */
/* Rows of a chunk: its tokens, and those since the anchor. */
static inline int32_t chunk_rows(const backend *b)
{
    return b->options.prefill_chunk + b->grid - 1;
}
void cuda_prefill_scratch_take(backend *b);
/* Appends n <= prefill_chunk tokens; logits as in backend_ops.prefill. */
calla_status cuda_prefill_chunk(backend *b, backend_sequence *s, const int32_t *tokens, int32_t n,
                                logits_mode mode, float *logits, const calla_control *control,
                                calla_error *err);

/* profile.c */
calla_status cuda_profile_set(backend *b, bool on);
int32_t cuda_profile_get(const backend *b, calla_profile_entry *entries);
/* A run: begin, a mark behind each operation's kernels (n of them), end once the stream is done. */
void cuda_profile_begin(backend *b);
void cuda_profile_mark(backend *b, operation op, int32_t n_kernels);
/* Waits inside of them for what other blocks compute. */
void cuda_profile_add_levels(backend *b, operation op, int32_t n);
calla_status cuda_profile_end(backend *b, calla_error *err);
void cuda_profile_count_layer(backend *b, const layer_weights *w, int64_t n, int64_t n_states,
                              int64_t n_seen, int64_t n_read, int64_t n_experts);
/* The same of a decode step whose layers are one kernel, each as one operation. */
void cuda_profile_count_whole_layer(backend *b, const layer_weights *w, int64_t n, int64_t n_seen);
void cuda_profile_count_ends(backend *b, int64_t n, int64_t n_logits);

/* measure.c */
calla_status cuda_measure(backend *b, calla_machine_rates *rates, calla_error *err);

#endif
