#include "hybrid/detect/cues.h"

#include "base/memory.h"
#include "base/strbuf.h"
#include "hybrid/detect/fold.h"
#include "hybrid/detect/token_forms.h"

#include <hs.h>
#include <stdlib.h>
#include <string.h>

static const cue_group *const groups[] = {cue_groups_money, cue_groups_ids, cue_groups_health,
                                          cue_groups_contact, cue_groups_technical};

/* What a match of a pattern is. */
typedef struct cue_shape {
    uint32_t n, row; /* bytes of the text; CUE_TOKEN: of token_forms */
    cue_class class_;
    bool weak, bound_left, bound_right;
} cue_shape;

struct cue_matcher {
    hs_database_t *database;
    hs_scratch_t *scratch; /* the model of each scan's own */
    cue_shape *shapes;     /* [n], by pattern */
    size_t n, capacity;
};

/* ---- making it ---- */

/* The patterns while they are collected. */
typedef struct patterns {
    strbuf bytes;    /* of all, one behind the other */
    size_t *offsets; /* [matcher->n] */
    size_t capacity;
} patterns;

static calla_status add_pattern(cue_matcher *m, patterns *p, const char *text, size_t n,
                                cue_shape shape, calla_error *err)
{
    CALLA_TRY(
        mem_grow((void **)&m->shapes, &m->capacity, m->n + 1, sizeof *m->shapes, "cues", err));
    CALLA_TRY(
        mem_grow((void **)&p->offsets, &p->capacity, m->n + 1, sizeof *p->offsets, "cues", err));
    shape.n = (uint32_t)n;
    p->offsets[m->n] = p->bytes.n;
    m->shapes[m->n++] = shape;
    strbuf_append(&p->bytes, text, n);
    return p->bytes.failed ? error_set(err, CALLA_ERR_MEMORY, "no memory for cues") : CALLA_OK;
}

static calla_status add_text(cue_matcher *m, patterns *p, const cue_group *group, const char *text,
                             size_t n, calla_error *err)
{
    fold f;
    cue_shape shape = {.class_ = group->class_, .weak = group->weak};
    shape.bound_left = text[0] != '*';
    shape.bound_right = text[n - 1] != '*';
    text += !shape.bound_left;
    n -= (size_t)!shape.bound_left + (size_t)!shape.bound_right;
    CALLA_TRY(fold_init(&f, text, n, err));
    calla_status status = add_pattern(m, p, f.text, f.n, shape, err);
    fold_deinit(&f);
    return status;
}

static calla_status add_group(cue_matcher *m, patterns *p, const cue_group *group, calla_error *err)
{
    for (const char *text = group->texts; *text;) {
        size_t n = strcspn(text, "|");
        CALLA_TRY(add_text(m, p, group, text, n, err));
        text += n + (text[n] == '|');
    }
    return CALLA_OK;
}

static calla_status add_all(cue_matcher *m, patterns *p, calla_error *err)
{
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        for (const cue_group *group = groups[i]; group->texts; group++)
            CALLA_TRY(add_group(m, p, group, err));
    for (size_t i = 0; i < n_token_forms; i++) {
        const char *prefix = token_forms[i].prefix;
        cue_shape shape = {.class_ = CUE_TOKEN, .row = (uint32_t)i, .bound_left = true};
        CALLA_TRY(add_pattern(m, p, prefix, strlen(prefix), shape, err));
    }
    return CALLA_OK;
}

static calla_status compile(cue_matcher *m, const patterns *p, calla_error *err)
{
    const char **texts = calloc(m->n, sizeof *texts);
    unsigned *flags = calloc(m->n, sizeof *flags), *ids = calloc(m->n, sizeof *ids);
    size_t *lengths = calloc(m->n, sizeof *lengths);
    hs_compile_error_t *failure = NULL;
    bool ok = texts && flags && ids && lengths;
    for (size_t i = 0; ok && i < m->n; i++) {
        texts[i] = p->bytes.data + p->offsets[i];
        lengths[i] = m->shapes[i].n;
        ids[i] = (unsigned)i;
        flags[i] = HS_FLAG_CASELESS;
    }
    ok = ok && hs_compile_lit_multi(texts, flags, ids, lengths, (unsigned)m->n, HS_MODE_BLOCK, NULL,
                                    &m->database, &failure) == HS_SUCCESS;
    ok = ok && hs_alloc_scratch(m->database, &m->scratch) == HS_SUCCESS;
    calla_status status =
        ok ? CALLA_OK
           : error_set(err, CALLA_ERR_MEMORY, "cannot compile the detectors' patterns: %s",
                       failure ? failure->message : "no memory");
    hs_free_compile_error(failure);
    free(texts);
    free(flags);
    free(ids);
    free(lengths);
    return status;
}

calla_status cue_matcher_create(cue_matcher **matcher, calla_error *err)
{
    if (hs_valid_platform() != HS_SUCCESS)
        return error_set(
            err, CALLA_ERR_UNSUPPORTED,
            "the check for sensitive content needs a processor with SSE4.2, which this "
            "one does not have");
    patterns p = {0};
    cue_matcher *m = calloc(1, sizeof *m);
    if (!m) return error_set(err, CALLA_ERR_MEMORY, "no memory for the detectors' patterns");
    calla_status status = add_all(m, &p, err);
    if (status == CALLA_OK) status = compile(m, &p, err);
    strbuf_free(&p.bytes);
    free(p.offsets);
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

/* ---- matching ---- */

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
    const cue_shape *shape = &m->matcher->shapes[id];
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
    list->items[list->n++] = (cue){(uint32_t)start, (uint32_t)end, shape->row, shape->weak};
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
