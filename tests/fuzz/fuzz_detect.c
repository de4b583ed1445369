/* The detectors: findings of any bytes are in order, inside the text, do not overlap, and begin and
 * end where characters do; redacted and restored the text is the same. */
#include "hybrid/detect/detect.h"
#include "hybrid/redact.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void require(bool condition)
{
    if (!condition) abort();
}

static bool is_inside_character(const char *text, size_t n, size_t at)
{
    if (at == 0 || at >= n || ((unsigned char)text[at] & 0xC0) != 0x80) return false;
    /* A continuation counts only behind the lead byte of a sequence that is whole. */
    for (size_t back = 1; back < 4 && back <= at; back++) {
        unsigned char c = (unsigned char)text[at - back];
        if ((c & 0xC0) == 0x80) continue;
        size_t need = c < 0xC2 ? 0 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : c < 0xF5 ? 4 : 0;
        if (need <= back || at - back + need > n) return false;
        for (size_t k = 1; k < need; k++)
            if (((unsigned char)text[at - back + k] & 0xC0) != 0x80) return false;
        /* Longer than need be, a surrogate, or beyond the last character: no character. */
        unsigned char second = (unsigned char)text[at - back + 1];
        return !((c == 0xE0 && second < 0xA0) || (c == 0xED && second > 0x9F) ||
                 (c == 0xF0 && second < 0x90) || (c == 0xF4 && second > 0x8F));
    }
    return false;
}

enum { MAX_COMPARED = 32 };

static bool has_two_spellings(const char *text, const finding_list *list)
{
    bool found = false;
    for (size_t i = 0; i < list->n && !found; i++)
        for (size_t k = 0; k < i && !found; k++) {
            const finding *a = &list->items[i], *b = &list->items[k];
            if (a->category != b->category) continue;
            strbuf x = {0}, y = {0};
            detect_normalise(a->category, text + a->start, a->end - a->start, &x);
            detect_normalise(b->category, text + b->start, b->end - b->start, &y);
            bool same_bytes = a->end - a->start == b->end - b->start &&
                              memcmp(text + a->start, text + b->start, a->end - a->start) == 0;
            found = !same_bytes && x.n == y.n && (x.n == 0 || memcmp(x.data, y.data, x.n) == 0);
            strbuf_free(&x);
            strbuf_free(&y);
        }
    return found;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static detector *d;
    calla_error err;
    if (!d) {
        calla_status status = detector_create(&d, &err);
        if (status == CALLA_ERR_UNSUPPORTED) exit(0);
        require(status == CALLA_OK);
    }
    const char *text = (const char *)data;
    finding_list list = {0};
    require(detect_scan(d, text, n, &list, &err) == CALLA_OK);
    size_t before = 0;
    for (size_t i = 0; i < list.n; i++) {
        const finding *f = &list.items[i];
        require(f->start >= before && f->start < f->end && f->end <= n);
        require(f->category < DETECT_N_CATEGORIES && f->kind && f->confidence > 0);
        require(!is_inside_character(text, n, f->start) && !is_inside_character(text, n, f->end));
        before = f->end;
        strbuf masked = {0};
        detect_mask(f->category, text + f->start, f->end - f->start, &masked);
        require(masked.n > 0);
        strbuf_free(&masked);
    }
    redaction_map *map = NULL;
    strbuf sent = {0}, back = {0};
    require(redaction_map_create(&map, &err) == CALLA_OK);
    require(redact_text(map, text, n, list.items, list.n, &sent, &err) == CALLA_OK);
    restore_text(map, RESTORE_TEXT, sent.data, sent.n, &back);
    /* Of two spellings of one value the first comes back; else all is as it was. */
    if (list.n <= MAX_COMPARED && !has_two_spellings(text, &list))
        require(back.n == n && (n == 0 || memcmp(back.data, text, n) == 0));
    strbuf_free(&sent);
    strbuf_free(&back);
    redaction_map_free(map);
    finding_list_deinit(&list);
    return 0;
}
