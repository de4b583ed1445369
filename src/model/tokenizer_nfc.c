/* Unicode normalisation form C (MODEL.md 5.3, rule 2). Decomposition and composition are
 * utf8proc's; the ordering of marks between them is done here, because utf8proc's sorts by
 * exchanging neighbours, which takes a run of n marks n * n steps.
 *
 * The library that trained with the tokenizer knows Unicode 9 here. What is newer is left alone,
 * which also keeps ids independent of the version of utf8proc. */
#include "base/memory.h"
#include "model/tokenizer.h"
#include "model/utf8.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum {
    MAX_DECOMPOSITION = 4,
    SHORT_RUN = 16,
    /* The code point before the first final consonant: utf8proc 2.8 takes it for one and drops it
     * after a syllable. */
    HANGUL_BEFORE_FINALS = 0x11a7,
};

static const utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_COMPOSE;

/* Lead bytes of blocks in which every character is its own normal form, is no mark and composes
 * with nothing before it: ASCII, U+0080-02FF, Cyrillic U+0400-047F, U+4000-9FFF (CJK). */
bool nfc_is_certain(const char *text, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes;) {
        unsigned char c = (unsigned char)text[i];
        if (!(c < 0xcc || c == 0xd0 || c == 0xd1 || (c >= 0xe4 && c <= 0xe9))) return false;
        i += utf8_length(text[i]);
    }
    return true;
}

static unsigned combining_class(int32_t point)
{
    return (unsigned)utf8proc_get_property(point)->combining_class;
}

/* Sorts a run of marks by class, equal classes in place. */
static calla_status sort_marks(nfc *work, int32_t *marks, size_t n, calla_error *err)
{
    if (n <= SHORT_RUN) {
        for (size_t i = 1; i < n; i++) {
            int32_t mark = marks[i];
            size_t j = i;
            for (; j > 0 && combining_class(marks[j - 1]) > combining_class(mark); j--)
                marks[j] = marks[j - 1];
            marks[j] = mark;
        }
        return CALLA_OK;
    }
    size_t starts[257] = {0};
    CALLA_TRY(
        mem_grow((void **)&work->marks, &work->marks_capacity, n, sizeof marks[0], "marks", err));
    for (size_t i = 0; i < n; i++) starts[combining_class(marks[i]) + 1]++;
    for (size_t c = 1; c < 257; c++) starts[c] += starts[c - 1];
    for (size_t i = 0; i < n; i++) work->marks[starts[combining_class(marks[i])]++] = marks[i];
    memcpy(marks, work->marks, n * sizeof marks[0]);
    return CALLA_OK;
}

static calla_status order_marks(nfc *work, calla_error *err)
{
    for (size_t i = 0; i < work->n;) {
        size_t begin = i;
        while (i < work->n && combining_class(work->points[i]) != 0) i++;
        if (i > begin + 1) CALLA_TRY(sort_marks(work, work->points + begin, i - begin, err));
        if (i == begin) i++;
    }
    return CALLA_OK;
}

static calla_status push(nfc *work, int32_t point, calla_error *err)
{
    CALLA_TRY(mem_grow((void **)&work->points, &work->capacity, work->n + MAX_DECOMPOSITION,
                       sizeof work->points[0], "text to normalise", err));
    if (point < 0x80) {
        work->points[work->n++] = point;
        return CALLA_OK;
    }
    int boundary = 0;
    utf8proc_ssize_t n = utf8proc_decompose_char(point, work->points + work->n, MAX_DECOMPOSITION,
                                                 options, &boundary);
    assert(n > 0 && n <= MAX_DECOMPOSITION);
    work->n += (size_t)n;
    return CALLA_OK;
}

/* Normalises and appends what was pushed. */
static calla_status flush(nfc *work, strbuf *out, calla_error *err)
{
    CALLA_TRY(order_marks(work, err));
    utf8proc_ssize_t n = utf8proc_normalize_utf32(work->points, (utf8proc_ssize_t)work->n, options);
    assert(n >= 0);
    for (utf8proc_ssize_t i = 0; i < n; i++) {
        char bytes[4];
        strbuf_append(out, bytes, utf8_encode(work->points[i], bytes));
    }
    work->n = 0;
    return CALLA_OK;
}

calla_status nfc_append(nfc *work, const char *text, size_t n_bytes, strbuf *out, calla_error *err)
{
    work->n = 0;
    for (size_t i = 0, length; i < n_bytes; i += length) {
        int32_t point = utf8_decode(text + i, &length);
        if (unicode_is_inert(point) || point == HANGUL_BEFORE_FINALS) {
            CALLA_TRY(flush(work, out, err));
            strbuf_append(out, text + i, length);
        } else {
            CALLA_TRY(push(work, point, err));
        }
    }
    CALLA_TRY(flush(work, out, err));
    if (out->failed) return error_set(err, CALLA_ERR_MEMORY, "no memory for the normalised text");
    return CALLA_OK;
}

void nfc_deinit(nfc *work)
{
    free(work->points);
    free(work->marks);
    *work = (nfc){0};
}
