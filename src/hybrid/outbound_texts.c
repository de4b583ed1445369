/* Texts of a request: what is found in them, and what is put in its place. */
#include "hybrid/outbound_private.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

enum {
    SHORTEST_JUDGED = 4, /* bytes of a text that is worth a model's time */
    WHERE_BYTES = 240,   /* of a finding's place: many may be as deep as JSON can be */
};

/* ---- findings ---- */

static char *mask(detect_category category, const char *text, size_t n_bytes)
{
    strbuf out = {0};
    char *data;
    size_t n;
    detect_mask(category, text, n_bytes, &out);
    if (strbuf_take(&out, &data, &n, NULL) == CALLA_OK) return data;
    strbuf_free(&out);
    return NULL;
}

size_t outbound_whole_bytes(const char *text, size_t n_most)
{
    size_t n = strnlen(text, n_most);
    while (n > 0 && ((unsigned char)text[n] & 0xC0) == 0x80) n--;
    return n;
}

static calla_status add_finding(walk *w, const finding *f, policy_action action, const char *text,
                                bool fixed)
{
    outbound *o = w->o;
    void *findings = o->findings;
    const char *where = w->path.data ? w->path.data : "";
    if (action == POLICY_REDACT && fixed) action = POLICY_KEEP_LOCAL;
    CALLA_TRY(mem_grow(&findings, &o->findings_capacity, o->n_findings + 1, sizeof *o->findings,
                       "findings", w->err));
    o->findings = findings;
    o->findings[o->n_findings++] =
        (outbound_finding){.category = f->category,
                           .kind = f->kind,
                           .action = action,
                           .fixed = fixed,
                           .where = strndup(where, outbound_whole_bytes(where, WHERE_BYTES)),
                           .excerpt = mask(f->category, text + f->start, f->end - f->start)};
    const outbound_finding *last = &o->findings[o->n_findings - 1];
    if (!last->where || !last->excerpt)
        return error_set(w->err, CALLA_ERR_MEMORY, "no memory for findings");
    o->counts[f->category]++;
    if (action > o->action) o->action = action;
    return CALLA_OK;
}

static calla_status keep_finding(walk *w, finding_list *list, const finding *f)
{
    void *items = list->items;
    CALLA_TRY(
        mem_grow(&items, &list->capacity, list->n + 1, sizeof *list->items, "findings", w->err));
    list->items = items;
    list->items[list->n++] = *f;
    return CALLA_OK;
}

/* ---- scanning ---- */

calla_status outbound_take_findings(walk *w, const finding_list *found, const char *text,
                                    size_t from, bool fixed, finding_list *keep)
{
    for (size_t i = 0; i < found->n; i++) {
        finding f = found->items[i];
        if (f.end <= from) continue;
        if (f.start < from) f.start = from;
        policy_action action =
            policy_decide(w->policy, w->client, f.category, text + f.start, f.end - f.start);
        if (action == POLICY_ALLOW) continue;
        CALLA_TRY(add_finding(w, &f, action, text, fixed));
        f.start -= from, f.end -= from;
        if (action == POLICY_REDACT && keep) CALLA_TRY(keep_finding(w, keep, &f));
    }
    return CALLA_OK;
}

static calla_status scan(walk *w, const char *key, const char *text, size_t n_bytes, bool fixed,
                         finding_list *keep)
{
    finding_list found = {0};
    strbuf named = {0}; /* with its key before it, which may tell what it is */
    size_t from = 0;
    if (key) {
        strbuf_printf(&named, "%s: ", key);
        from = named.n;
        strbuf_append(&named, text, n_bytes);
        if (named.failed) {
            strbuf_free(&named);
            return error_set(w->err, CALLA_ERR_MEMORY, "no memory for the check");
        }
    }
    const char *all = key ? named.data : text;
    calla_status status = detect_scan(w->detector, all, from + n_bytes, &found, w->err);
    if (status == CALLA_OK) status = outbound_take_findings(w, &found, all, from, fixed, keep);
    finding_list_deinit(&found);
    strbuf_free(&named);
    w->o->n_text_bytes += n_bytes;
    return status;
}

static calla_status redact(walk *w, const char *text, size_t n_bytes, json_t **replacement)
{
    strbuf out = {0};
    const finding_list *f = &w->o->texts[w->at].findings;
    calla_status status = redact_text(w->map, text, n_bytes, f->items, f->n, &out, w->err);
    if (status == CALLA_OK && (out.n != n_bytes || memcmp(out.data, text, n_bytes) != 0)) {
        *replacement = json_stringn(out.data ? out.data : "", out.n);
        if (!*replacement)
            status = error_set(w->err, CALLA_ERR_MEMORY, "no memory for the request");
    }
    strbuf_free(&out);
    return status;
}

/* Whether all of f is replaced already. */
static bool is_covered(const finding_list *list, const finding *f)
{
    for (size_t i = 0; i < list->n; i++)
        if (list->items[i].start <= f->start && f->end <= list->items[i].end) return true;
    return false;
}

/* Takes out what overlaps f, which grows to cover it. */
static void swallow(finding_list *list, finding *f)
{
    const finding alone = *f;
    size_t n = 0;
    for (size_t i = 0; i < list->n; i++) {
        const finding *own = &list->items[i];
        if (own->start >= alone.end || own->end <= alone.start) {
            list->items[n++] = *own;
            continue;
        }
        if (own->start < f->start) f->start = own->start;
        if (own->end > f->end) f->end = own->end;
    }
    list->n = n;
}

/* Puts a finding in its place by its start. */
static calla_status insert_finding(walk *w, finding_list *list, const finding *f)
{
    CALLA_TRY(keep_finding(w, list, f));
    for (size_t i = list->n - 1; i > 0 && list->items[i - 1].start > f->start; i--) {
        list->items[i] = list->items[i - 1];
        list->items[i - 1] = *f;
    }
    return CALLA_OK;
}

static calla_status take_judged(walk *w, const finding_list *found, const char *text)
{
    finding_list *own = &w->o->texts[w->at].findings;
    for (size_t i = 0; i < found->n; i++) {
        const finding *f = &found->items[i];
        policy_action action =
            policy_decide(w->policy, w->client, f->category, text + f->start, f->end - f->start);
        if ((int)action > w->policy->model_check_at_most)
            action = (policy_action)w->policy->model_check_at_most;
        if (action == POLICY_ALLOW || (action == POLICY_REDACT && is_covered(own, f))) continue;
        CALLA_TRY(add_finding(w, f, action, text, false));
        if (action != POLICY_REDACT) continue;
        finding whole = *f;
        swallow(own, &whole);
        CALLA_TRY(insert_finding(w, own, &whole));
    }
    return CALLA_OK;
}

static calla_status judge_one(walk *w, const char *text, size_t n_bytes)
{
    finding_list found = {0};
    const outbound_judge_with *with = w->with;
    if (n_bytes < SHORTEST_JUDGED) return CALLA_OK;
    if (judge_text(with->judge, with->ask, with->user, text, n_bytes, with->deadline_ns, &found) !=
        JUDGE_SURE)
        w->sure = false;
    calla_status status = take_judged(w, &found, text);
    finding_list_deinit(&found);
    return status;
}

calla_status outbound_visit(walk *w, const char *key, const char *text, size_t n_bytes,
                            json_t **replacement)
{
    calla_status status;
    if (w->map) {
        status = redact(w, text, n_bytes, replacement);
    } else if (w->with) {
        status = judge_one(w, text, n_bytes);
    } else {
        outbound *o = w->o;
        void *texts = o->texts;
        CALLA_TRY(
            mem_grow(&texts, &o->texts_capacity, w->at + 1, sizeof *o->texts, "texts", w->err));
        o->texts = texts;
        o->texts[w->at] = (outbound_text){0};
        o->n_texts = w->at + 1;
        status = scan(w, key, text, n_bytes, false, &o->texts[w->at].findings);
    }
    w->at++;
    return status;
}

calla_status outbound_visit_fixed(walk *w, const char *key, const char *text, size_t n_bytes)
{
    return w->map || w->with ? CALLA_OK : scan(w, key, text, n_bytes, true, NULL);
}
