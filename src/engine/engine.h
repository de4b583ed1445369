/* What calla_engine and calla_session are made of. */
#ifndef CALLA_ENGINE_ENGINE_H
#define CALLA_ENGINE_ENGINE_H

#include "engine/backend.h"
#include "engine/sampler.h"
#include "engine/snapshots.h"

enum {
    DEFAULT_CONTEXT = 8192,
    DEFAULT_PREFILL_CHUNK = 2048,
    DEFAULT_SNAPSHOT_STRIDE = 2048,
    MAX_SNAPSHOTS = 1024,     /* however small they are */
    MAX_SNAPSHOT_POINTS = 64, /* within one prompt */
};
#define DEFAULT_SNAPSHOT_BYTES  ((int64_t)512 << 20)
#define DEFAULT_CACHE_DIR_BYTES ((int64_t)16 << 30)

/* What tokenizer.json says about ids. */
typedef struct engine_vocabulary {
    int32_t n_tokens;   /* ids below this can be sampled */
    int32_t turn_token; /* `<|im_start|>`, or -1 */
} engine_vocabulary;

/* The step that was submitted before anybody asked for its tokens (session_step.c). */
typedef struct engine_ahead {
    int32_t n; /* its sessions, 0 = no step */
    calla_session *sessions[BACKEND_MAX_SEQUENCES];
    calla_sampling sampling[BACKEND_MAX_SEQUENCES];
} engine_ahead;

struct calla_engine {
    model_weights weights;
    const backend_ops *ops;
    backend *backend;
    backend_capabilities capabilities;
    backend_options options;
    int64_t snapshot_stride; /* 0 = no snapshots on a grid */
    bool keep_decoded;       /* calla_engine_options.keep_decoded */
    engine_vocabulary vocabulary;
    snapshot_store snapshots;
    sampler sampler; /* scratch shared by the sessions */
    engine_ahead ahead;
    calla_engine_info info;
    bool profiling;
    calla_profile_entry sampling;                         /* what the engine does itself */
    calla_profile_entry profile[BACKEND_MAX_PROFILE + 1]; /* for calla_engine_get_profile */
};

/* calla_engine_open with the backends to choose from (NULL-terminated) and weights already opened,
 * which the engine takes over, in failure too. */
calla_status engine_create(const backend_ops *const *candidates, model_weights *weights,
                           engine_vocabulary vocabulary, const calla_engine_options *options,
                           calla_engine **out, calla_error *err);

/* The plan of what engine_create would hold. */
calla_status engine_plan(const backend_ops *const *candidates, const model_weights *weights,
                         const calla_engine_options *options, calla_memory_plan *plan,
                         calla_error *err);

/* What the last sync could take over, and why no more. */
typedef struct session_reuse {
    int64_t n_reused;
    int64_t n_common;    /* tokens the nearest snapshot, or the session before, shares with it */
    int32_t other_token; /* what stood there instead of the token after them, -1 = nothing */
    bool decoded;        /* what was taken over is partly from decode steps */
} session_reuse;

struct calla_session {
    calla_engine *engine;
    backend_sequence *sequence;
    int32_t *tokens;  /* [n_tokens] the timeline, then up to n_target the prompt still to be run;
                         room for n_ctx */
    int64_t n_tokens; /* the sequence holds all of them, or all but the one sampled last */
    int64_t n_target; /* length of the prompt that was begun, 0 = none */
    bool decoded;     /* the sequence's state is partly from decode steps */
    bool in_flight;   /* the step ahead runs its last token */
    bool has_logits;  /* `logits` are those after the last of all n_tokens */
    bool knows_next;  /* `next` is what next_sampling chooses from them */
    calla_sampling next_sampling;
    calla_sampled next;
    /* A call failed for another session, and a step ahead had run `owed`, which owed_sampling had
     * chosen and nobody has got: the sequence is one token ahead of the timeline. */
    bool owes;
    calla_sampling owed_sampling;
    calla_sampled owed;
    calla_error lost; /* code 0, or how a step ahead emptied it: for whoever asks for a token */
    float *logits;    /* [n_vocab] */
    token_counts generated;              /* since the last sync */
    int64_t points[MAX_SNAPSHOT_POINTS]; /* [n_points] where its prefill pauses for snapshots,
                                            ascending */
    int32_t n_points;
    session_reuse reuse;
    void *memory;
};

/* Keeps a snapshot of the session's state as it is, so that what it holds can be continued later
 * by any session. State from decode steps is kept only if the engine allows it. */
void session_keep(calla_session *s);
/* Back to the empty timeline. */
void session_reset(calla_session *s);
/* Waits for the step ahead if it runs this session's last token; whoever looks at more than the
 * timeline does so first. A session that the step broke, or that owes a token, is empty and knows
 * why. */
void session_settle(calla_session *s);
/* The same for whatever sessions it has. */
void engine_settle(calla_engine *e);
/* Tokens whose effect the sequence's state holds. */
int64_t session_n_run(const calla_session *s);
/* logits [n_vocab] are those after the last token. */
void session_keep_logits(calla_session *s, const float *logits);

#endif
