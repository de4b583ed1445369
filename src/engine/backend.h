/* What a backend does: run one model on one device. Coarse, because there is one model.
 *
 * One thread owns a backend, its sequences and its snapshots. `open` sizes everything; nothing is
 * allocated per token. A backend includes base and model only, and this header.
 *
 * Where sampling happens is the backend's choice (capability samples_on_device): a step either
 * returns the token sampled on the device, or logits for the engine to sample from. */
#ifndef CALLA_ENGINE_BACKEND_H
#define CALLA_ENGINE_BACKEND_H

#include "model/weights.h"

typedef struct backend backend;
typedef struct backend_sequence backend_sequence;
typedef struct backend_snapshot backend_snapshot;

enum {
    KV_BLOCK_TOKENS = 256,     /* tokens per reference-counted KV block */
    BACKEND_MAX_SEQUENCES = 8, /* sequences one step may advance */
    BACKEND_MAX_PROFILE = 24,  /* kinds of work a backend tells apart */
    TOKEN_LAST_SAMPLED = -1,   /* step input: the token the device sampled last */
};

typedef struct backend_options {
    const char *isa;        /* kernel choice, NULL or "auto" = best; meaning is the backend's */
    bool kv_f32, kv_fp16;   /* KV element asked for; neither = the profile's default */
    int32_t n_threads;      /* >= 1 */
    bool pin;               /* keep them on the processors of one memory node */
    int32_t n_ctx;          /* tokens a sequence may hold */
    int32_t n_sequences;    /* sequences that may exist at once */
    int32_t prefill_chunk;  /* most rows of one prefill call's internal chunk */
    int32_t n_snapshots;    /* snapshots that may exist at once, for sizing pools */
    int32_t n_vocab_tokens; /* ids below this can be sampled; 0 = all rows of logits */
    /* Of `open`, where it takes long; each may be NULL. */
    void (*progress)(void *user, const char *phase, int64_t done, int64_t total);
    void *progress_user;
    const atomic_bool *cancel;
} backend_options;

typedef struct backend_capabilities {
    bool samples_on_device;
    bool steps_ahead; /* a step may be submitted while another is under way */
    int32_t max_step_sequences;
    int32_t prefill_chunk; /* prefill's calls end at multiples of so many tokens, if not before */
    int32_t snapshot_grid; /* snapshots may stand at multiples of this many tokens (1 = anywhere) */
    int64_t state_bytes;   /* of recurrent state, read and written by a step for one sequence */
    int64_t kv_token_bytes; /* of one token's K and V in all layers */
} backend_capabilities;

typedef enum logits_mode { LOGITS_NONE, LOGITS_LAST, LOGITS_ALL } logits_mode;

/* What penalties there are. */
static inline bool sampling_penalizes(const calla_sampling *p)
{
    return (p->repetition_penalty != 0 && p->repetition_penalty != 1) ||
           p->frequency_penalty != 0 || p->presence_penalty != 0;
}

/* Whether a step with these parameters may be submitted while the one before it is under way: not
 * if it takes lists along, which depend on that one's token or are long. */
static inline bool step_may_follow(const calla_sampling *p)
{
    return !p->token_mask && p->n_logit_bias == 0 && !sampling_penalizes(p);
}

/* One sequence's part of a step. */
typedef struct step_request {
    backend_sequence *sequence;
    int32_t token; /* to run, or TOKEN_LAST_SAMPLED */
    /* If samples_on_device: how to choose the next token, or NULL for its logits instead. Both and
     * the lists are borrowed until step_submit returns. */
    const calla_sampling *sampling;
    /* What penalties look at: the different tokens generated so far, how often each was. */
    const int32_t *generated;        // [n_generated]
    const int32_t *generated_counts; // [n_vocab] by id
    int32_t n_generated;
} step_request;

typedef struct step_result {
    const float
        *logits; /* [n_vocab] f32 owned by the backend until the next call; NULL if sampled */
    calla_sampled sampled; /* if samples_on_device; token -1 if bias and mask leave none */
    calla_error error;     /* code CALLA_OK, or CALLA_ERR_NUMERIC: nothing else came of this row */
} step_result;

/* See backend_ops.set_route. */
typedef void backend_route_fn(void *user, int32_t layer, int64_t position, const float *logits,
                              int32_t *experts, float *weights);

/* Bytes of a snapshot's content go out, or come in; false when that failed. */
typedef bool backend_put_fn(void *user, const void *bytes, size_t n);
typedef bool backend_get_fn(void *user, void *bytes, size_t n);

typedef struct backend_ops {
    const char *name;
    bool reads_weights;    /* where they are, for every token: they should be in memory */
    int32_t prefill_chunk; /* where nobody asks for one; 0: the engine's default */

    /* The memory `open` would take. */
    calla_status (*plan)(const model_weights *weights, const backend_options *options,
                         calla_memory_plan *plan, calla_error *err);
    /* `weights` outlives the backend. */
    calla_status (*open)(const model_weights *weights, const backend_options *options,
                         backend **out, calla_error *err);
    void (*close)(backend *b);
    void (*capabilities)(const backend *b, backend_capabilities *out);
    /* Name of the kernels in use, static storage. */
    const char *(*isa)(const backend *b);
    /* The values backend_options.isa may have on this build, "auto" first; NULL-terminated, static
     * storage. */
    const char *const *(*isa_names)(void);
    /* The number of threads for this model where nobody asked for one; `may_measure`: it may take
     * some 0.2 s to find out, from
     * weights that are in memory. NULL: the backend has no use for many. */
    int32_t (*choose_threads)(const model_weights *weights, bool pin, bool may_measure);

    /* An empty sequence. CALLA_ERR_MEMORY when n_sequences exist. */
    calla_status (*sequence_create)(backend *b, backend_sequence **out, calla_error *err);
    void (*sequence_free)(backend *b, backend_sequence *s);
    /* Back to the empty sequence. */
    void (*sequence_reset)(backend *b, backend_sequence *s);
    /* Tokens in it. */
    int64_t (*sequence_length)(const backend *b, const backend_sequence *s);

    /* Appends tokens[n], which do not go beyond the next multiple of capabilities.prefill_chunk
     * (prefill_tokens below cuts longer ones). LOGITS_LAST: logits [n_vocab] of the last;
     * LOGITS_ALL: [n][n_vocab]; logits may be NULL with LOGITS_NONE. The caller has checked ids and
     * length. When it fails, or control->cancel was set in time, the sequence is as it was. */
    calla_status (*prefill)(backend *b, backend_sequence *s, const int32_t *tokens, int32_t n,
                            logits_mode mode, float *logits, const calla_control *control,
                            calla_error *err);

    /* Runs one token in each of n <= max_step_sequences different sequences. submit may return
     * before the work is done; wait delivers the results[n] of the step submitted first. One step
     * at a time; if steps_ahead (and no profile, no tap) a second one may be submitted while the
     * first is under way, whose rows all sample, step_may_follow. A sequence's length grows by the
     * end of wait. When submit or wait fails or is cancelled, the step is over: a sequence whose
     * length did not grow is as it was before, any other is only good for sequence_reset or
     * snapshot_restore; so is one of a step submitted behind it, which is still to be waited for.
     * Numbers that are not finite are an error of their row alone: wait succeeds, and that row's
     * sequence is only good for sequence_reset or snapshot_restore.
     * Between submit and wait nothing else is done to these sequences but snapshots of them. */
    calla_status (*step_submit)(backend *b, const step_request *requests, int32_t n,
                                calla_error *err);
    calla_status (*step_wait)(backend *b, step_result *results, int32_t n,
                              const calla_control *control, calla_error *err);

    /* The logits [n_vocab] of row i of the last step, which sampled from them. NULL unless
     * samples_on_device. */
    calla_status (*step_logits)(backend *b, int32_t i, float *logits, calla_error *err);

    /* A snapshot shares the KV blocks and copies the recurrent state. CALLA_ERR_MEMORY when none is
     * left. restore makes s equal to what it was. */
    calla_status (*snapshot_create)(backend *b, const backend_sequence *s, backend_snapshot **out,
                                    calla_error *err);
    void (*snapshot_free)(backend *b, backend_snapshot *snapshot);
    void (*snapshot_restore)(backend *b, const backend_snapshot *snapshot, backend_sequence *s);
    /* Bytes one snapshot holds besides shared KV. */
    int64_t (*snapshot_bytes)(const backend *b);
    /* What a snapshot holds, as bytes that a backend of the same model, kernels and options takes
     * in again. NULL, all three, if the backend cannot. content_bytes: for a snapshot of n_tokens.
     * save may run in another thread while everything but this snapshot is used; false when put
     * was. load makes a snapshot; when get fails (CALLA_ERR_IO) or there is no room
     * (CALLA_ERR_MEMORY) there is none. */
    int64_t (*snapshot_content_bytes)(const backend *b, int64_t n_tokens);
    bool (*snapshot_save)(const backend *b, const backend_snapshot *snapshot, backend_put_fn *put,
                          void *user);
    calla_status (*snapshot_load)(backend *b, int64_t n_tokens, backend_get_fn *get, void *user,
                                  backend_snapshot **out, calla_error *err);

    /* The backend's threads, for what the engine has to do between its calls. NULL if it has none.
     */
    struct thread_pool *(*threads)(const backend *b);

    /* See calla_engine_measure. NULL, like the next two, if the backend has no such thing. */
    calla_status (*measure)(backend *b, calla_machine_rates *rates, calla_error *err);
    /* See calla_engine_set_profile; get_profile writes at most BACKEND_MAX_PROFILE entries and
     * gives their number. */
    void (*set_profile)(backend *b, bool on);
    int32_t (*get_profile)(const backend *b, calla_profile_entry *entries);

    /* For tests: `tap` is called with the residual stream entering each layer and, last, the
     * final norm's output: rows [n_rows][D] f32, borrowed. NULL turns it off. */
    void (*set_tap)(backend *b,
                    void (*tap)(void *user, int32_t layer, int64_t first_position, int32_t n_rows,
                                const float *rows),
                    void *user);
    /* For tests: `route` is called in prefill for every token and layer once its experts are
     * chosen, from several threads, and may put others in their place: experts, weights [k], from
     * the router's logits [E]. NULL turns it off. */
    void (*set_route)(backend *b, backend_route_fn *route, void *user);
} backend_ops;

/* backend_ops.prefill for any number of tokens, chunk by chunk; n_vocab: of the model. When it is
 * cancelled or fails, the sequence stands at the end of the last whole chunk: sequence_length
 * tells. control->progress gets the tokens of this call done so far, and n_tokens. */
calla_status prefill_tokens(const backend_ops *ops, backend *b, backend_sequence *s,
                            const int32_t *tokens, int64_t n_tokens, logits_mode mode,
                            float *logits, int32_t n_vocab, const calla_control *control,
                            calla_error *err);

/* The backends of this build, best first, NULL-terminated (src/engine/backends.c). */
extern const backend_ops *const backends[];

/* Whether another thread has asked to stop what `control` (NULL: nothing does) belongs to. */
static inline bool is_cancelled(const calla_control *control)
{
    return control && control->cancel &&
           atomic_load_explicit(control->cancel, memory_order_relaxed);
}

#endif
