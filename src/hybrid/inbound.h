/* The cloud's answer on its way to the client: placeholders become values again, in whole answers
 * and in streams, and the first thing that goes out says where it was made. Nothing else of its
 * shape changes. */
#ifndef CALLA_HYBRID_INBOUND_H
#define CALLA_HYBRID_INBOUND_H

#include "base/json.h"
#include "hybrid/redact.h"

/* What the answer said it cost, -1 = nothing. */
typedef struct inbound_usage {
    int64_t input_tokens, output_tokens;
} inbound_usage;

typedef struct inbound inbound;

/* `map` (borrowed; NULL = nothing was replaced); `note` is what stands under "calla" in the answer,
 * JSON, copied. `content_form`: RESTORE_JSON if JSON was asked for (response_format). */
calla_status inbound_create(redaction_map *map, const json_t *note, restore_form content_form,
                            inbound **in, calla_error *err);
void inbound_free(inbound *in);

/* A stream: takes in bytes of server-sent events, appends events whole. CALLA_ERR_INPUT if the
 * cloud sent something else than chunks of an answer; then, too, *out has what was good. */
calla_status inbound_push(inbound *in, const char *bytes, size_t n_bytes, strbuf *out,
                          calla_error *err);
/* Whether the stream's own end, [DONE] or an error, has been appended: one that breaks off has
 * none.
 */
bool inbound_is_complete(const inbound *in);

/* A whole answer, or the body of an error. CALLA_ERR_INPUT if it is not a JSON object. */
calla_status inbound_whole(inbound *in, const char *text, size_t n_bytes, strbuf *out,
                           calla_error *err);

inbound_usage inbound_get_usage(const inbound *in);

#endif
