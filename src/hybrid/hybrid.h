/* One place to ask, two models: what may leave for the cloud, and its answers.
 *
 * A request first gets a plan (hybrid_plan): it is built anew as it would leave, looked at, and the
 * policy says what becomes of it. A plan for the cloud is then carried out by an exchange, whose
 * answer the caller takes piece by piece. Everything that leaves is in the audit before it does.
 *
 * The rule for `hybrid`, in this order:
 *   1. the client may not use the cloud, or the request has what cannot be checked: here
 *   2. something is found that the policy keeps here: here
 *   3. the policy sends requests of this kind here (tools, few bytes of text, preference): here
 *   4. the local model looks, if the policy says so; again 2
 *   5. something is found that has to be asked about: with a consent for it on, else it is asked
 *   6. to the cloud, with placeholders for what is to be replaced.
 * For `cloud` what goes "here" is refused instead, and 3 does not apply.
 *
 * Plans are made and exchanges driven by the thread that owns the client's connection; the transfer
 * itself is the upstream's thread's. */
#ifndef CALLA_HYBRID_HYBRID_H
#define CALLA_HYBRID_HYBRID_H

#include "hybrid/audit.h"
#include "hybrid/consent.h"
#include "hybrid/inbound.h"
#include "hybrid/outbound.h"

typedef struct hybrid hybrid;

/* All borrowed during hybrid_open alone. */
typedef struct hybrid_options {
    const char *url;     /* of the cloud, up to and with "/v1" */
    const char *model;   /* the cloud's name for it */
    const char *key_env; /* the environment's variable with the key; NULL = no key */
    const char *ca_file; /* see upstream.h */
    const char *policy;  /* a file; NULL = the default policy */
    const char *audit;   /* a file; NULL = hybrid_default_audit */
    int32_t n_calls;     /* to the cloud at once [64] */
} hybrid_options;

calla_status hybrid_open(const hybrid_options *options, hybrid **h, calla_error *err);
/* The policy's file anew. On an error the old one stays. Any thread. */
calla_status hybrid_reload(hybrid *h, calla_error *err);
/* As upstream_stop. */
void hybrid_stop(hybrid *h, int64_t deadline_ns);
/* After all plans and exchanges are gone. NULL is allowed. */
void hybrid_close(hybrid *h);
const char *hybrid_model(const hybrid *h);
const char *hybrid_origin(const hybrid *h);

/* Where the audit is if nobody says: audit.db in $STATE_DIRECTORY (systemd's), or in
 * $XDG_STATE_HOME/calla, or in ~/.local/state/calla, which is made. malloc'ed. */
calla_status hybrid_default_audit(char **path, calla_error *err);

typedef struct hybrid_counts {
    atomic_llong local, cloud, asked, refused; /* plans */
    atomic_llong answered, failed, fell_back;  /* exchanges */
    atomic_llong redacted;                     /* values replaced */
    atomic_llong bytes_sent;
} hybrid_counts;
hybrid_counts *hybrid_get_counts(hybrid *h);

/* ---- plans ---- */

typedef struct hybrid_request {
    const json_t *body;  /* a chat request */
    const char *api_key; /* the client's, NULL = none */
    /* Who keeps no keys has their SHA-256 in place of api_key; NULL = none. */
    const unsigned char *key_digest; // [SHA256_BYTES]
    /* What is done about a category at least, beyond the policy; NULL = nothing more. */
    const policy_action *at_least; // [DETECT_N_CATEGORIES]
    const char *consent;           /* a token, NULL = none */
    bool only_cloud;               /* the client asked for `cloud` */
    judge_ask_fn *ask;             /* the local model, for a second look; NULL = there is none */
    void *ask_user;
} hybrid_request;

typedef enum hybrid_route {
    HYBRID_LOCAL,
    HYBRID_CLOUD,
    HYBRID_ASK,    /* somebody has to agree: token */
    HYBRID_REFUSE, /* it may not leave, and was asked to */
} hybrid_route;

typedef struct hybrid_plan {
    hybrid_route route;
    json_t *reasons; /* an array of texts for people; they name categories, no contents */
    outbound out;    /* its findings */
    char token[CONSENT_TOKEN_BYTES]; /* HYBRID_ASK */
    int64_t token_until;             /* seconds since 1970 */
    /* Inside. */
    policy *policy;
    bool only_cloud;
    char client[64];                 /* who asked, as the audit says it */
    char consent_id[CONSENT_ID_HEX]; /* "" = none */
    redaction_map *map;              /* NULL = nothing is replaced */
    strbuf text;                     /* what will be sent */
} hybrid_plan;

/* Decides. CALLA_ERR_INPUT: the request is not acceptable; the message begins with the field. *plan
 * is to be freed in any case. */
calla_status hybrid_plan_make(hybrid *h, const hybrid_request *request, hybrid_plan *plan,
                              calla_error *err);
void hybrid_plan_free(hybrid_plan *plan);
/* What the policy would do at least about a text of such a request (its body is not looked at), by
 * the detectors alone. */
calla_status hybrid_look(hybrid *h, const hybrid_request *request, const char *text, size_t n_bytes,
                         policy_action *strictest, calla_error *err);
/* The same about texts that follow each other in one request, for values that are cut in two by
 * their borders: POLICY_ALLOW or POLICY_ASK and stricter, as no placeholder can stand there. */
calla_status hybrid_look_between(hybrid *h, const hybrid_request *request,
                                 const outbound_piece *pieces, size_t n, policy_action *strictest,
                                 calla_error *err);
/* {"route": ROUTE, "reasons": [...]}: what stands under "calla" in answers. */
json_t *hybrid_plan_note(const hybrid_plan *plan, const char *route);
/* [{"category", "kind", "action", "where", "excerpt"} ...], the first hundred. */
json_t *hybrid_plan_findings(const hybrid_plan *plan);
/* A reason more, tidied as errors are. */
void hybrid_add_reason(json_t *reasons, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* ---- exchanges ---- */

typedef struct hybrid_exchange hybrid_exchange;

typedef enum hybrid_state {
    HYBRID_WAITING,   /* nothing has come yet */
    HYBRID_ANSWERING, /* a stream; more comes */
    HYBRID_ANSWERED,
    HYBRID_FAILED,
} hybrid_state;

typedef struct hybrid_progress {
    hybrid_state state;
    int64_t bytes_sent; /* so far */
    /* HYBRID_FAILED: for the client. */
    int status;            /* of HTTP */
    const char *code;      /* static: "cloud_unreachable" ... */
    bool has_body;         /* *out is the cloud's own body of an error, {"error": ...} */
    bool may_fall_back;    /* the policy lets the local model answer instead */
    int32_t retry_after_s; /* 0 = not said */
    char message[256];
} hybrid_progress;

/* Begins a HYBRID_CLOUD plan, which must outlive it. The error: the audit cannot be written, or too
 * many are running (CALLA_ERR_UNSUPPORTED). */
calla_status hybrid_exchange_begin(hybrid *h, hybrid_plan *plan, hybrid_exchange **x,
                                   calla_error *err);
/* Readable when there is something to take. */
int hybrid_exchange_fd(const hybrid_exchange *x);
/* Appends what the client gets: events of a stream; or, when it is answered, the whole body. */
void hybrid_exchange_take(hybrid_exchange *x, strbuf *out, hybrid_progress *progress);
/* Breaks it off if need be, and completes the audit. NULL is allowed. */
void hybrid_exchange_end(hybrid_exchange *x);

#endif
