/* A chat request from arbitrary bytes, on its way to the cloud: refused, or JSON in the end, in
 * which a card's number is replaced wherever it was. */
#include "hybrid/outbound.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char card[] = "\"4111111111111111\"";

static void carry_out(outbound *o, const detector *d, const policy *p)
{
    redaction_map *map;
    strbuf out = {0};
    json_t *sent;
    if (outbound_check(o, d, p, NULL, NULL) != CALLA_OK) abort();
    if (o->action == POLICY_KEEP_LOCAL) return; /* it stays */
    if (redaction_map_create(&map, NULL) != CALLA_OK || outbound_redact(o, map, NULL) != CALLA_OK ||
        outbound_write(o, &out, NULL) != CALLA_OK)
        abort();
    if (json_parse_text(out.data, out.n, "sent", &sent, NULL) != CALLA_OK) abort();
    /* Alone in a string; within a longer number it is none. */
    if (memmem(out.data, out.n, card, sizeof card - 1)) abort();
    json_decref(sent);
    redaction_map_free(map);
    strbuf_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static detector *d;
    static policy *p;
    static const char rules[] =
        "{\"categories\": {\"credentials\": \"redact\", \"government_id\": \"redact\", \"health\": "
        "\"redact\", \"finance\": \"redact\", \"personal\": \"redact\"}}";
    json_t *body;
    outbound o = {0};
    if (!d && (detector_create(&d, NULL) != CALLA_OK ||
               policy_parse(rules, sizeof rules - 1, "rules", &p, NULL) != CALLA_OK))
        abort();
    if (json_parse_text((const char *)data, n, "request", &body, NULL) != CALLA_OK) return 0;
    if (outbound_build(body, "big", &o, NULL) == CALLA_OK) carry_out(&o, d, p);
    outbound_deinit(&o);
    json_decref(body);
    return 0;
}
