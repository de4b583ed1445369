#include "hybrid/cues.h"

#include "base/memory.h"
#include "hybrid/token_forms.h"

#include <hs.h>
#include <stdlib.h>
#include <string.h>

struct cue_matcher {
    hs_database_t *database;
    hs_scratch_t *scratch; /* the model of each scan's own */
    struct cue_shape {
        uint32_t n; /* bytes of the text without '*' */
        bool bound_left, bound_right;
        cue_class class_;
        uint32_t row;
    } * shapes; /* [n] */
    size_t n;   /* n_cue_rows + n_token_forms */
};

static calla_status compile(cue_matcher *m, const char **texts, unsigned *flags, unsigned *ids,
                            size_t *lengths, calla_error *err)
{
    for (size_t i = 0; i < m->n; i++) {
        bool token = i >= n_cue_rows;
        const char *text = token ? token_forms[i - n_cue_rows].prefix : cue_rows[i].text;
        size_t n = strlen(text);
        struct cue_shape *shape = &m->shapes[i];
        shape->class_ = token ? CUE_TOKEN : cue_rows[i].class_;
        shape->row = (uint32_t)(token ? i - n_cue_rows : i);
        shape->bound_left = text[0] != '*';
        shape->bound_right = !token && text[n - 1] != '*';
        text += !shape->bound_left;
        n -= (size_t)!shape->bound_left + (size_t)(!token && !shape->bound_right);
        shape->n = (uint32_t)n;
        texts[i] = text;
        lengths[i] = n;
        ids[i] = (unsigned)i;
        flags[i] = HS_FLAG_CASELESS;
    }
    hs_compile_error_t *failure = NULL;
    if (hs_compile_lit_multi(texts, flags, ids, lengths, (unsigned)m->n, HS_MODE_BLOCK, NULL,
                             &m->database, &failure) != HS_SUCCESS) {
        error_set(err, CALLA_ERR_MEMORY, "cannot compile the detectors' patterns: %s",
                  failure ? failure->message : "no memory");
        hs_free_compile_error(failure);
        return CALLA_ERR_MEMORY;
    }
    if (hs_alloc_scratch(m->database, &m->scratch) != HS_SUCCESS)
        return error_set(err, CALLA_ERR_MEMORY, "no memory for the detectors' patterns");
    return CALLA_OK;
}

calla_status cue_matcher_create(cue_matcher **matcher, calla_error *err)
{
    if (hs_valid_platform() != HS_SUCCESS)
        return error_set(
            err, CALLA_ERR_UNSUPPORTED,
            "the check for sensitive content needs a processor with SSE4.2, which this "
            "one does not have");
    calla_status status = CALLA_OK;
    cue_matcher *m = calloc(1, sizeof *m);
    size_t n = n_cue_rows + n_token_forms;
    const char **texts = calloc(n, sizeof *texts);
    unsigned *flags = calloc(n, sizeof *flags), *ids = calloc(n, sizeof *ids);
    size_t *lengths = calloc(n, sizeof *lengths);
    if (m) m->shapes = calloc(n, sizeof *m->shapes), m->n = n;
    if (!m || !m->shapes || !texts || !flags || !ids || !lengths)
        status = error_set(err, CALLA_ERR_MEMORY, "no memory for the detectors' patterns");
    else
        status = compile(m, texts, flags, ids, lengths, err);
    free(texts);
    free(flags);
    free(ids);
    free(lengths);
    if (status == CALLA_OK)
        *matcher = m;
    else
        cue_matcher_free(m);
    return status;
}

void cue_matcher_free(cue_matcher *m)
{
    if (!m) return;
    hs_free_scratch(m->scratch);
    hs_free_database(m->database);
    free(m->shapes);
    free(m);
}

typedef struct matching {
    const cue_matcher *matcher;
    const char *text;
    size_t n;
    cue_list *lists;
    bool failed;
} matching;

static bool is_word_byte(char c)
{
    return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
}

/* "apiKey" has a boundary before K. */
static bool is_hump(char before, char after)
{
    return before >= 'a' && before <= 'z' && after >= 'A' && after <= 'Z';
}

static int on_match(unsigned id, unsigned long long from, unsigned long long to, unsigned flags,
                    void *user)
{
    (void)from, (void)flags;
    matching *m = user;
    const struct cue_shape *shape = &m->matcher->shapes[id];
    size_t end = (size_t)to, start = end - shape->n;
    const char *t = m->text;
    if (shape->bound_left && start > 0 && is_word_byte(t[start]) && is_word_byte(t[start - 1]) &&
        !is_hump(t[start - 1], t[start]))
        return 0;
    if (shape->bound_right && end < m->n && is_word_byte(t[end - 1]) && is_word_byte(t[end]) &&
        !is_hump(t[end - 1], t[end]))
        return 0;
    cue_list *list = &m->lists[shape->class_];
    if (mem_grow((void **)&list->items, &list->capacity, list->n + 1, sizeof *list->items, "cues",
                 NULL) != CALLA_OK) {
        m->failed = true;
        return 1;
    }
    list->items[list->n++] = (cue){(uint32_t)start, (uint32_t)end, shape->row};
    return 0;
}

calla_status cue_matcher_scan(const cue_matcher *matcher, const char *text, size_t n,
                              cue_list *lists, calla_error *err)
{
    matching m = {matcher, text, n, lists, false};
    hs_scratch_t *scratch = NULL;
    if (n == 0) return CALLA_OK;
    hs_error_t result = hs_clone_scratch(matcher->scratch, &scratch);
    if (result == HS_SUCCESS)
        result = hs_scan(matcher->database, text, (unsigned)n, 0, scratch, on_match, &m);
    hs_free_scratch(scratch);
    if (result == HS_SUCCESS) return CALLA_OK;
    return error_set(err, CALLA_ERR_MEMORY, "no memory to check %zu bytes of text", n);
}
