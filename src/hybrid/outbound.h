/* A chat request as it would leave, and what is sensitive in it.
 *
 * It is built anew from the fields that are known, so that nothing leaves which has not been looked
 * at: a field or part that is not understood is an error, and fields the cloud has no use for
 * (metadata, user, prompt_cache_key, the reasoning of earlier turns ...) are left out. Every text
 * in it is scanned: messages, names, tools with their schemas, arguments and results of calls, stop
 * texts, keys of objects, long numbers. */
#ifndef CALLA_HYBRID_OUTBOUND_H
#define CALLA_HYBRID_OUTBOUND_H

#include "hybrid/judge.h"
#include "hybrid/policy.h"
#include "hybrid/redact.h"

/* A finding that a policy does something about. */
typedef struct outbound_finding {
    detect_category category;
    const char *kind;     /* static, see detect.h */
    policy_action action; /* not POLICY_ALLOW */
    bool fixed;    /* it stands where no placeholder can: an identifier, a key, several parts */
    char *where;   /* "messages[2].content" */
    char *excerpt; /* masked (detect_mask) */
} outbound_finding;

/* One text that was scanned and can be replaced, in the order in which they are visited. */
typedef struct outbound_text {
    finding_list findings; /* those to redact */
} outbound_text;

typedef struct outbound {
    json_t *request;      /* arguments of calls are trees in it until outbound_write */
    outbound_text *texts; /* [n_texts] */
    size_t n_texts, texts_capacity;
    outbound_finding *findings; /* [n_findings] */
    size_t n_findings, findings_capacity;
    int32_t counts[DETECT_N_CATEGORIES]; /* of findings */
    policy_action action;                /* the strictest */
    size_t n_text_bytes;                 /* of all texts */
    bool has_tools, is_stream;
    bool wants_json; /* response_format: the answer's content is JSON */
} outbound;

/* Builds o->request from a chat request, for this model of the cloud's. An error's message begins
 * with the field. *o is zero before; outbound_deinit is due in any case. */
calla_status outbound_build(const json_t *body, const char *model, outbound *o, calla_error *err);
void outbound_deinit(outbound *o);

/* Scans it and fills the rest in; what the policy allows is no finding. */
calla_status outbound_check(outbound *o, const detector *d, const policy *p,
                            const policy_client *client, calla_error *err);

/* One of several texts that follow each other in a request, with words of ours between them. */
typedef struct outbound_piece {
    const char *text;
    size_t n_bytes;
} outbound_piece;
/* Finds what is cut in two by their borders, or what one says of the next; nothing that is in one
 * of them alone. *o is zero before; outbound_deinit is due in any case. */
calla_status outbound_check_pieces(outbound *o, const outbound_piece *pieces, size_t n,
                                   const detector *d, const policy *p, const policy_client *client,
                                   calla_error *err);

/* A second look, after outbound_check: what the model finds counts as far as the policy lets it.
 * *sure: it has judged all, and says it is sure. */
typedef struct outbound_judge_with {
    judge *judge;
    judge_ask_fn *ask;
    void *user;
    int64_t deadline_ns;
} outbound_judge_with;
calla_status outbound_judge(outbound *o, const outbound_judge_with *with, const policy *p,
                            const policy_client *client, bool *sure, calla_error *err);

/* Appends the request before anything is replaced: the same for the same request, however its white
 * space, its escapes and the fields that do not leave were written. */
void outbound_canonical(const outbound *o, strbuf *out);

/* Replaces what is to be redacted, and in every other text what looks like a placeholder. Once. */
calla_status outbound_redact(outbound *o, redaction_map *map, calla_error *err);

/* Appends the request's JSON. Once, last. */
calla_status outbound_write(outbound *o, strbuf *out, calla_error *err);

#endif
