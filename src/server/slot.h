/* A slot: a session and the choice that runs in it. Engine thread only. */
#ifndef CALLA_SERVER_SLOT_H
#define CALLA_SERVER_SLOT_H

#include "server/answer.h"
#include "server/guide.h"
#include "server/metrics.h"
#include "server/replay.h"
#include "server/server_log.h"

/* What all slots share. */
typedef struct slot_shared {
    const vocabulary *vocabulary;
    replay *replay;
    metrics *metrics;
    const server_log *log;
    size_t max_unread_bytes;
    int32_t n_ctx;
} slot_shared;

typedef struct slot {
    const slot_shared *shared;
    calla_session *session;
    job *job; /* NULL = free; the rest has no meaning then */
    int32_t choice;
    job_prompt *prompt;
    answer answer;
    guide guide;
    calla_sampling sampling;
    bool decoding; /* the prompt has been run */
    int64_t n_generated, max_tokens;
    int64_t last_token_ns;
    const char *finish; /* why it is over, as on the wire, or NULL */
    bool ended_by_token;
} slot;

/* Begins a choice in a free slot: takes over what the cache holds of its prompt. On failure the
 * slot is free. */
calla_status slot_begin(slot *s, job *j, int32_t choice, calla_error *err);
/* Prefills up to n_most tokens of the prompt. */
calla_status slot_prefill(slot *s, int64_t n_most, calla_error *err);
/* Whether the choice's reader is too far behind to generate more for it. */
bool slot_is_paused(const slot *s);
/* The parameters of the next token, valid until slot_accept. */
const calla_sampling *slot_sampling(slot *s);
/* The next token; sets `finish` when it is the last. */
calla_status slot_accept(slot *s, const calla_sampled *sampled, calla_error *err);
/* Ends the choice for the reason `finish`: its last events, and what it leaves for later. */
calla_status slot_finish(slot *s, calla_error *err);
/* Frees the slot; what was computed stays in the cache. */
void slot_end(slot *s);

#endif
