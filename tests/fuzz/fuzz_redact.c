/* The restorer: whatever a model writes, and however it is cut, it gives the same text; nothing of
 * the map comes out but for its placeholders. The first byte draws the cuts and the form. */
#include "base/philox.h"
#include "hybrid/redact.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void require(bool condition)
{
    if (!condition) abort();
}

static redaction_map *new_map(void)
{
    static const char text[] = "a@b.example, 4111 1111 1111 1111, \"q\"\n, [EMAIL_1]";
    const finding findings[] = {
        {.category = DETECT_EMAIL, .kind = "", .start = 0, .end = 11},
        {.category = DETECT_PAYMENT_CARD, .kind = "", .start = 13, .end = 32},
        {.category = DETECT_PRIVATE_KEY, .kind = "", .start = 34, .end = 38}};
    redaction_map *map = NULL;
    strbuf out = {0};
    require(redaction_map_create(&map, NULL) == CALLA_OK);
    require(redact_text(map, text, strlen(text), findings, 3, &out, NULL) == CALLA_OK);
    require(strcmp(out.data, "[EMAIL_1], [CARD_1], [PRIVATE_KEY_1], [TEXT_1]") == 0);
    strbuf_free(&out);
    return map;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n == 0) return 0;
    redaction_map *map = new_map();
    const char *text = (const char *)data + 1;
    restore_form form = data[0] & 1 ? RESTORE_JSON : RESTORE_TEXT;
    size_t length = n - 1;
    strbuf whole = {0}, cut = {0}, again = {0}, back = {0};
    restore_text(map, form, text, length, &whole);
    restorer *r = NULL;
    require(restorer_create(map, form, &r, NULL) == CALLA_OK);
    for (size_t at = 0, piece, k = 0; at < length; at += piece) {
        piece = (size_t)(philox_uniform(data[0], k++, length) * 12);
        if (piece > length - at) piece = length - at;
        restorer_push(r, text + at, piece, &cut);
    }
    restorer_finish(r, &cut);
    restorer_free(r);
    require(cut.n == whole.n && (cut.n == 0 || memcmp(cut.data, whole.data, cut.n) == 0));
    /* The same bytes as a user's text: all that looks like a placeholder is kept apart. */
    require(redact_text(map, text, length, NULL, 0, &again, NULL) == CALLA_OK);
    restore_text(map, RESTORE_TEXT, again.data, again.n, &back);
    require(back.n == length && (length == 0 || memcmp(back.data, text, length) == 0));
    strbuf_free(&whole);
    strbuf_free(&cut);
    strbuf_free(&again);
    strbuf_free(&back);
    redaction_map_free(map);
    return 0;
}
