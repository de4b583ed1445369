/* The inside of outbound, for its files: one walk over the request, which visits every text in the
 * same order each time. */
#ifndef CALLA_HYBRID_OUTBOUND_PRIVATE_H
#define CALLA_HYBRID_OUTBOUND_PRIVATE_H

#include "hybrid/outbound.h"

typedef struct walk {
    outbound *o;
    /* Scanning. */
    const detector *detector;
    const policy *policy;
    const policy_client *client;
    /* Judging: not NULL. */
    const outbound_judge_with *with;
    bool sure;
    /* Redacting: not NULL. */
    redaction_map *map;
    size_t at;   /* the text at hand */
    strbuf path; /* where it is */
    calla_error *err;
} walk;

/* ---- outbound_texts.c ---- */

/* How many bytes of a text are whole characters, n_most at most. */
size_t outbound_whole_bytes(const char *text, size_t n_most);
/* Adds what is found from byte `from` of the text on; `keep` (may be NULL) gets what is to be
 * redacted, counted from there. */
calla_status outbound_take_findings(walk *w, const finding_list *found, const char *text,
                                    size_t from, bool fixed, finding_list *keep);
/* A text that a placeholder can stand in, and what names it (NULL = nothing). *replacement is set
 * if there is one. */
calla_status outbound_visit(walk *w, const char *key, const char *text, size_t n_bytes,
                            json_t **replacement);
/* One that must stay as it is. */
calla_status outbound_visit_fixed(walk *w, const char *key, const char *text, size_t n_bytes);

/* ---- outbound_joined.c: values cut in two ---- */

/* By the parts of a content or the texts of a list; by the members of an object; by messages. */
calla_status outbound_check_parts(walk *w, const json_t *parts);
calla_status outbound_check_members(walk *w, json_t *object);
calla_status outbound_check_messages(walk *w);

#endif
