/* calla: an inference engine for Qwen3.6-35B-A3B and small models of its family.
 *
 * The contract in short
 *
 * - An ENGINE is one checkpoint loaded on one backend (the CPU, or a GPU). It owns the weights, the
 *   KV cache pool and the worker threads. Engines are independent of each other.
 * - A SESSION is one mutable timeline of tokens on an engine. The caller hands over the whole token
 *   sequence it wants (calla_session_sync) and the session decides what to reuse, rewind or
 *   compute; then each calla_session_next appends one sampled token. Nobody outside sees a tensor.
 * - One thread at a time may use an engine and all its sessions. A cancel flag may be set from any
 *   thread or from a signal handler.
 * - Results of a token do not depend on how its prompt was cut into chunks, on the thread count or
 *   on what was cached: continuing from a restored prompt equals a cold run bit for bit.
 * - Every function that can fail returns a calla_status and, when `err` is not NULL, fills it with
 * a message that names the values involved. On failure output parameters are left untouched unless
 *   stated otherwise. Passing NULL for a required pointer is a bug and aborts.
 * - Text is UTF-8. Tokens are non-negative int32_t ids. Sizes are in bytes where the name ends in
 *   _bytes, times in nanoseconds where it ends in _ns.
 *
 * calla/model.h has what works without an engine: tokenizer, chat template, checkpoint inspection,
 * quantizer. */
#ifndef CALLA_CALLA_H
#define CALLA_CALLA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A flag that another thread or a signal handler may set. */
#ifdef __cplusplus
#include <atomic>
typedef std::atomic<bool> calla_flag;
#else
#include <stdatomic.h>
typedef atomic_bool calla_flag;
#endif

#if defined(__GNUC__)
#define CALLA_API __attribute__((visibility("default")))
#else
#define CALLA_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- version and errors ---- */

#define CALLA_VERSION "0.1.0"

/* The version of the library, as CALLA_VERSION was when it was built. Static storage. */
CALLA_API const char *calla_version(void);

typedef enum calla_status {
    CALLA_OK = 0,
    CALLA_ERR_INPUT,       /* a checkpoint, request, text or option is not acceptable */
    CALLA_ERR_IO,          /* a file could not be opened, read or written */
    CALLA_ERR_MEMORY,      /* memory ran out, or the plan does not fit */
    CALLA_ERR_CONTEXT,     /* prompt (and answer) longer than the context */
    CALLA_ERR_CANCELLED,   /* the cancel flag was set */
    CALLA_ERR_UNSUPPORTED, /* asked for something this build or machine does not have */
    CALLA_ERR_DEVICE,      /* a device failed */
    CALLA_ERR_NUMERIC,     /* NaN or infinity came out of the model */
} calla_status;

typedef struct calla_error {
    calla_status code;
    char message[1024]; /* NUL-terminated UTF-8, one line */
} calla_error;

/* ---- engine ---- */

typedef struct calla_engine calla_engine;
typedef struct calla_session calla_session;
typedef struct calla_tokenizer calla_tokenizer; /* model.h */

typedef enum calla_kv_type { CALLA_KV_AUTO = 0, CALLA_KV_F32, CALLA_KV_FP16 } calla_kv_type;

/* Where the weights are while an engine runs on the CPU. Mapped, they are the system's page cache:
 * there at once if they were used lately, shared with other processes, and given up when memory is
 * short; the files must stay as they are. Copied, they are the process's own, in huge pages, which
 * are read some per cent faster; it takes as long as reading the files, and the memory. */
typedef enum calla_load {
    CALLA_LOAD_AUTO = 0, /* a copy if memory holds it beside the page cache's; else mapped */
    CALLA_LOAD_MAP,
    CALLA_LOAD_COPY, /* CALLA_ERR_MEMORY, with the numbers, if it does not fit */
} calla_load;

/* Whether mapped weights are read ahead when the engine opens: in one go instead of page by page as
 * they are first used. */
typedef enum calla_warm_up {
    CALLA_WARM_UP_AUTO = 0, /* all if they fit in memory, else what every token needs */
    CALLA_WARM_UP_NEVER,
    CALLA_WARM_UP_ALWAYS,
} calla_warm_up;

/* Zero-initialise; a zero or NULL field means the default in brackets. */
typedef struct calla_engine_options {
    const char *backend; /* "auto", "cpu", "cuda" ["auto"] */
    const char *isa;     /* "auto", "f32" (the reference), "c", ... see calla_isa_names ["auto"] */
    calla_kv_type kv;    /* KV cache element [fp16; f32 in the reference profile] */
    /* [chosen for this machine: at most the cores of one memory node, for large models after a
     * look at how fast they read, 0.2 s]; more than twice the usable processors are not started */
    int32_t n_threads;
    /* Leave threads to the system's scheduler [they, and the thread that runs the sessions until it
     * closes the engine, are kept on the processors of one memory node]. */
    bool no_pin;
    calla_load load;
    calla_warm_up warm_up;
    int32_t n_ctx;           /* tokens a session may hold [8192, at most the model's maximum] */
    int32_t n_sessions;      /* sessions that may exist at once, for sizing the KV pool [1] */
    int32_t prefill_chunk;   /* tokens per prefill chunk [2048, CUDA 4096, at most n_ctx] */
    int32_t snapshot_stride; /* prompt tokens between snapshots, < 0: only the last ones
                                [2048, at least prefill_chunk] */
    int64_t snapshot_bytes;  /* budget of all snapshots, < 0: none [512 MiB] */
    const char *cache_dir;   /* keep snapshots of long prompts in files there, too [NULL: no] */
    int64_t cache_dir_bytes; /* budget of those files [16 GiB] */
    bool keep_decoded;       /* snapshots may hold state that decode steps built [no]; see
                                calla_session_sync */
    /* The directory's tokenizer, if it is open already: it tells which ids are real tokens.
     * Borrowed during calla_engine_open [opened for the time being, if there is a tokenizer.json].
     */
    const calla_tokenizer *tokenizer;
    void (*progress)(void *user, const char *phase, int64_t done, int64_t total); /* [NULL] */
    void *progress_user;
    const calla_flag *cancel; /* polled while weights are copied, read ahead or made [NULL] */
} calla_engine_options;

/* What an engine will hold in memory, per part. See calla_memory_plan in model.h for a plan
 * without opening. */
typedef struct calla_memory_plan {
    const char *backend;    /* whose plan it is; static storage */
    bool on_device;         /* all of it is in the memory of a device, not in the machine's */
    int64_t weights_bytes;  /* in the machine's memory: mapped, shared with the page cache */
    int64_t prepared_bytes; /* small tensors converted at open */
    int64_t kv_bytes;       /* KV block pool */
    int64_t state_bytes;    /* GDN states and convolution windows of n_sessions sessions */
    int64_t snapshot_bytes; /* snapshot budget */
    int64_t scratch_bytes;  /* activations and logits */
    int64_t total_bytes;    /* the sum */
    int32_t n_ctx;          /* tokens of context all of this is for */
} calla_memory_plan;

typedef struct calla_engine_info {
    const char *backend; /* "cpu" */
    const char *isa;     /* kernels in use, "f32" or "c" ... */
    int32_t n_threads;
    int32_t n_ctx;
    int32_t n_vocab;        /* rows of logits, padding rows included */
    int32_t n_vocab_tokens; /* ids below this can be sampled */
    int32_t n_layers;
    int32_t hidden_size;
    int64_t load_ns;
    bool copied;          /* the weights, into the process's own memory */
    bool short_of_memory; /* the model did not fit when it was opened: weights come from disk again
                             and again */
    int64_t locked_bytes; /* weights kept in memory; 0 where the system does not permit it */
    calla_memory_plan memory;
    /* What one token costs at least. A decoded token reads and writes so many bytes: */
    int64_t token_weight_bytes;
    int64_t state_bytes;
    int64_t kv_bytes_per_token; /* for each token before it */
    /* A prompt token takes so many operations, a multiply-add counting two, the head aside: */
    int64_t token_operations;
    int64_t attention_operations; /* for each token before it */
} calla_engine_info;

/* Opens the checkpoint directory `dir` (MODEL.md 2: MLX affine 4-bit, or Hugging Face bf16 with isa
 * f32). Everything is validated and sized before the first allocation that depends on it. Weights
 * that are mapped (calla_load) stay in their files: until calla_engine_close these must not be
 * written or truncated (replacing one by rename is harmless). A read beyond a truncated file's end
 * raises SIGBUS, which the library does not handle. A model that does not fit in the memory
 * available (of the machine, or of its control group) is a warning on standard error with the
 * numbers. */
CALLA_API calla_status calla_engine_open(const char *dir, const calla_engine_options *options,
                                         calla_engine **engine, calla_error *err);
/* A random model of shape "35b" or "tiny" without files, for measurements: the same weights as
 * calla_synth writes for this seed, in anonymous memory. CALLA_ERR_MEMORY before anything is made
 * if the plan is larger than the memory that is available. */
CALLA_API calla_status calla_engine_open_synthetic(const char *shape, uint64_t seed,
                                                   const calla_engine_options *options,
                                                   calla_engine **engine, calla_error *err);
/* Frees the engine; all its sessions must have been freed before. NULL is allowed. */
CALLA_API void calla_engine_close(calla_engine *engine);
CALLA_API void calla_engine_get_info(const calla_engine *engine, calla_engine_info *info);

/* ---- sampling ---- */

typedef struct calla_logit_bias {
    int32_t token;
    float bias; /* -1e6 ... 1e6, added to the logit; -INFINITY bans the token */
} calla_logit_bias;

#define CALLA_MAX_TOP_LOGPROBS 20

/* Zero-initialised = greedy. The order of operations: padding ids and token mask, logit bias,
 * penalties (over tokens generated since the last sync: repetition, then frequency and presence),
 * log-probabilities reported, temperature, top-k, top-p (of the mass top-k left; the token that
 * reaches it is kept), min-p, draw. Equal logits rank by id, lowest first. The draw for the token
 * at timeline position p inverts the cumulative distribution, in ascending order of id, at u = the
 * first 53 bits of Philox 4x32-10 keyed by `seed` with counter p: a result depends on (seed,
 * position) alone. Values out of range are CALLA_ERR_INPUT naming parameter and value. */
typedef struct calla_sampling {
    float temperature;       /* 0 ... 100; 0 = greedy: largest logit, lowest id on ties */
    int32_t top_k;           /* 0 = off */
    float top_p;             /* 0 or >= 1 = off */
    float min_p;             /* 0 ... 1; 0 = off; relative to the largest probability */
    float presence_penalty;  /* -100 ... 100; subtracted once from a generated token's logit */
    float frequency_penalty; /* -100 ... 100; subtracted per occurrence */
    float
        repetition_penalty; /* 0.01 ... 100; divides positive, multiplies negative logits; 0 = 1 */
    uint64_t seed;
    const calla_logit_bias *logit_bias; /* [n_logit_bias], borrowed during the call */
    int32_t n_logit_bias;
    int32_t n_top_logprobs;     /* 0 ... CALLA_MAX_TOP_LOGPROBS */
    const uint32_t *token_mask; /* NULL, or one bit a token, [ceil(n_vocab/32)], set = allowed */
} calla_sampling;

/* The defaults of generation_config.json in `dir` (MODEL.md 1.4), or temperature 1, top-k 20, top-p
 * 0.95 where the file or a value is absent; greedy if it says do_sample false. A malformed file or
 * value is an error. */
CALLA_API calla_status calla_sampling_defaults(const char *dir, calla_sampling *sampling,
                                               calla_error *err);

typedef struct calla_sampled {
    int32_t token;
    float logprob; /* natural log of softmax over allowed tokens at temperature 1 */
    int32_t n_top;
    int32_t top_tokens[CALLA_MAX_TOP_LOGPROBS]; /* [n_top], most likely first */
    float top_logprobs[CALLA_MAX_TOP_LOGPROBS];
} calla_sampled;

/* ---- session ---- */

/* How a long call is watched: `cancel` is polled per layer of a prompt and before each decode step
 * (a single token is short), `progress` is called per chunk. */
typedef struct calla_control {
    const calla_flag *cancel; /* NULL = never */
    void (*progress)(void *user, int64_t done, int64_t total);
    void *user;
} calla_control;

typedef struct calla_sync_stats {
    int32_t n_tokens;  /* length of the timeline */
    int32_t n_reused;  /* of it, taken over from the timeline before or from a snapshot */
    int32_t n_prefill; /* of it, computed by this call */
    int64_t prefill_ns;
} calla_sync_stats;

CALLA_API calla_status calla_session_create(calla_engine *engine, calla_session **session,
                                            calla_error *err);
CALLA_API void calla_session_free(calla_session *session);

/* Makes the timeline exactly tokens[0 .. n_tokens), n_tokens >= 1, reusing the longest usable
 * prefix of what the session (or a snapshot of the engine) holds and prefilling the rest.
 * Afterwards the next token can be sampled. CALLA_ERR_CONTEXT if n_tokens > n_ctx, CALLA_ERR_INPUT
 * for an id out of range: the timeline is then unchanged. After CALLA_ERR_CANCELLED the timeline
 * holds the part that was computed; a later sync reuses it.
 *
 * The model's recurrent state cannot be rewound, so a timeline that diverges from what is held goes
 * back to the deepest snapshot. Snapshots stand at multiples of snapshot_stride (wider apart in
 * long prompts), at the last `<|im_start|>` of a prompt (where the next turn of a conversation
 * parts from this one, because reasoning is dropped from the history), as the budget allows at the
 * one after the system message and at others, and at its end, with the logits there. They hold
 * prefilled state only, so continuing from one equals a cold run. The session's own state may end
 * in generated tokens, which a cold run would prefill: continuing from there is faster and equal up
 * to rounding; with keep_decoded snapshots may hold such state too. */
CALLA_API calla_status calla_session_sync(calla_session *session, const int32_t *tokens,
                                          int64_t n_tokens, const calla_control *control,
                                          calla_sync_stats *stats, calla_error *err);

/* calla_session_sync in pieces, for a caller that has other things to do between them: `begin`
 * takes over what it can (stats, if not NULL, tells; no time in it), each `advance` prefills up to
 * n_most further tokens, n_most >= 1, and gives how many are left in *n_left. At 0 the next token
 * can be sampled; before that, sampling is CALLA_ERR_INPUT. However a prompt is cut, the results
 * are the same. After CALLA_ERR_CANCELLED `advance` can be repeated. */
CALLA_API calla_status calla_session_begin(calla_session *session, const int32_t *tokens,
                                           int64_t n_tokens, calla_sync_stats *stats,
                                           calla_error *err);
CALLA_API calla_status calla_session_advance(calla_session *session, int64_t n_most,
                                             const calla_control *control, int64_t *n_left,
                                             calla_error *err);

/* Samples the next token and appends it to the timeline. The first call after a sync samples from
 * the prompt's last logits; each later call first runs the model on the token before. The last
 * token returned is thus not run unless another is asked for, except by a device that samples
 * itself: it may have begun, expecting another call with the same parameters, and no token depends
 * on whether it did. CALLA_ERR_CONTEXT when the context
 * is full, CALLA_ERR_INPUT after a failed or cancelled sync. After CALLA_ERR_CANCELLED the timeline
 * is unchanged and the call can be repeated. Allocates nothing. */
CALLA_API calla_status calla_session_next(calla_session *session, const calla_sampling *sampling,
                                          const calla_control *control, calla_sampled *sampled,
                                          calla_error *err);

/* calla_session_next for each of n different sessions of one engine, the model run once for all of
 * them, so that its weights are read once: sampling[i] and sampled[i] are those of sessions[i]. n
 * is 1 to 8 and at most n_sessions. Each gets the token it would get alone. After a failure, of
 * whichever session, no token was appended and the call can be repeated; but a session whose
 * state was lost to CALLA_ERR_NUMERIC or CALLA_ERR_DEVICE is then empty and needs a sync. */
CALLA_API calla_status calla_session_next_batch(calla_session *const *sessions, int32_t n,
                                                const calla_sampling *const *sampling,
                                                const calla_control *control,
                                                calla_sampled *sampled, calla_error *err);

/* Like calla_session_sync, but from an empty timeline, without snapshots, and with `rows` called
 * for consecutive runs of positions with their logits [n_rows][n_vocab] f32 (borrowed during the
 * call; raw, padding rows included). A non-zero return stops with CALLA_ERR_CANCELLED. For
 * perplexity and tests. Takes up to 256 MiB for logits while it runs. */
typedef int (*calla_logits_fn)(void *user, int64_t first_position, int64_t n_rows,
                               const float *logits);
CALLA_API calla_status calla_session_score(calla_session *session, const int32_t *tokens,
                                           int64_t n_tokens, calla_logits_fn rows, void *user,
                                           const calla_control *control, calla_error *err);

/* Runs the model on `token` as a decode step, appends it, and copies the logits that follow it to
 * logits [n_vocab] f32. For teacher-forced decoding and tests. */
CALLA_API calla_status calla_session_append(calla_session *session, int32_t token,
                                            const calla_control *control, float *logits,
                                            calla_error *err);

/* The timeline so far: [*n_tokens], owned by the session, valid until its next call. */
CALLA_API const int32_t *calla_session_tokens(const calla_session *session, int64_t *n_tokens);

/* ---- measurement ---- */

typedef struct calla_machine_rates {
    double read_bytes_per_second;        /* from memory: what bounds decode */
    double matrix_operations_per_second; /* in prefill's arithmetic; a multiply-add counts two */
} calla_machine_rates;

/* The best this machine does with the engine's threads and kernels, in about a second, with up to a
 * gigabyte of memory for the time being. */
CALLA_API calla_status calla_engine_measure(calla_engine *engine, calla_machine_rates *rates,
                                            calla_error *err);

/* One kind of work since the profile was turned on. */
typedef struct calla_profile_entry {
    const char *name; /* static storage */
    int64_t ns;
    int64_t n_calls;    /* parallel regions, kernels launched, or pieces of serial work */
    int64_t n_levels;   /* of a device: how often work waits for work before it, launches included;
                           0 = not counted */
    int64_t bytes;      /* weights, state and KV that it had to move */
    int64_t operations; /* on them; a multiply-add counts two */
} calla_profile_entry;

/* Starts counting from zero, or stops. Off when an engine is opened; on, it costs two looks at the
 * clock for each call. */
CALLA_API void calla_engine_set_profile(calla_engine *engine, bool on);
/* *entries [*n] belong to the engine, valid until its next call. Their times add up to all of
 * prefill, decode and sampling. */
CALLA_API void calla_engine_get_profile(calla_engine *engine, const calla_profile_entry **entries,
                                        int32_t *n);

/* Names of kernels (isa) that this build has and this machine can run, NULL-terminated, static
 * storage. */
CALLA_API const char *const *calla_isa_names(void);

#ifdef __cplusplus
}
#endif
#endif
