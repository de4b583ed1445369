/* What a cloud may send as an answer: whatever it is and however it is cut, events come out whole
 * and are JSON, and the same comes out for every way of cutting it. */
#include "hybrid/inbound.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static calla_status push(redaction_map *map, restore_form form, const char *data, size_t n,
                         size_t step, strbuf *out)
{
    inbound *in;
    calla_status status = CALLA_OK;
    json_t *note = json_pack("{s:s}", "route", "cloud");
    if (inbound_create(map, note, form, &in, NULL) != CALLA_OK) abort();
    for (size_t i = 0; i < n && status == CALLA_OK; i += step)
        status = inbound_push(in, data + i, n - i < step ? n - i : step, out, NULL);
    inbound_free(in);
    json_decref(note);
    return status;
}

static void check_events(const strbuf *out)
{
    const char *at = out->data;
    while (at && *at) {
        const char *end = strstr(at, "\n\n");
        json_t *event = NULL;
        if (strncmp(at, "data: ", 6) != 0 || !end) abort();
        if (strncmp(at, "data: [DONE]", 12) != 0 &&
            json_parse_text(at + 6, (size_t)(end - at - 6), "event", &event, NULL) != CALLA_OK)
            abort();
        json_decref(event);
        at = end + 2;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static redaction_map *map;
    static const char value[] = "jane@example.org";
    const finding f = {DETECT_EMAIL, "", 0, sizeof value - 1, 1, false};
    strbuf text = {0}, once = {0}, cut = {0};
    if (!map && (redaction_map_create(&map, NULL) != CALLA_OK ||
                 redact_text(map, value, sizeof value - 1, &f, 1, &text, NULL) != CALLA_OK))
        abort();
    strbuf_free(&text);
    size_t step = n > 0 ? 1 + data[0] % 16 : 1;
    restore_form form = n > 0 && data[0] & 0x80 ? RESTORE_JSON : RESTORE_TEXT;
    calla_status a = push(map, form, (const char *)data, n, n ? n : 1, &once);
    calla_status b = push(map, form, (const char *)data, n, step, &cut);
    if (a != b || once.n != cut.n || (once.n > 0 && memcmp(once.data, cut.data, once.n) != 0))
        abort();
    if (!memchr(data, 0, n)) check_events(&once);
    strbuf_free(&once);
    strbuf_free(&cut);
    return 0;
}
