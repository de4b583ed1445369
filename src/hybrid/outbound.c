#include "hybrid/outbound.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

enum {
    SHORTEST_JUDGED = 4, /* bytes of a text that is worth a model's time */
    LONG_NUMBER = 7,     /* characters of a number without a name from which it is looked at */
    SHORT_NUMBER = 3,    /* of one with a name, such as "cvv" or "pin" */
    KEY_BYTES = 64,      /* of a key in a path */
    NAME_BYTES = 128,    /* of a key's end, which is looked at before each text that it names */
    WHERE_BYTES = 240,   /* of a finding's place: many may be as deep as JSON can be */
    EDGE_BYTES = 256,    /* of a text's ends that are looked at with its neighbours' */
};

/* One walk over the request: it visits every text in the same order each time. */
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

void outbound_deinit(outbound *o)
{
    json_decref(o->request);
    for (size_t i = 0; i < o->n_texts; i++) finding_list_deinit(&o->texts[i].findings);
    free(o->texts);
    for (size_t i = 0; i < o->n_findings; i++) {
        free(o->findings[i].where);
        free(o->findings[i].excerpt);
    }
    free(o->findings);
    *o = (outbound){0};
}

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

/* How many bytes of a text are whole characters, n_most at most. */
static size_t whole_bytes(const char *text, size_t n_most)
{
    size_t n = strnlen(text, n_most);
    while (n > 0 && ((unsigned char)text[n] & 0xC0) == 0x80) n--;
    return n;
}

/* The last characters of a text, n_most bytes at most. */
static const char *end_of(const char *text, size_t n_most)
{
    size_t n = strlen(text);
    if (n > n_most) text += n - n_most;
    while (n > n_most && ((unsigned char)*text & 0xC0) == 0x80) text++;
    return text;
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
                           .where = strndup(where, whole_bytes(where, WHERE_BYTES)),
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

/* What is found from byte `from` of the text on; `keep` (may be NULL) gets what is to be redacted,
 * counted from there. */
static calla_status take_findings(walk *w, const finding_list *found, const char *text, size_t from,
                                  bool fixed, finding_list *keep)
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
    if (status == CALLA_OK) status = take_findings(w, &found, all, from, fixed, keep);
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

/* A text that a placeholder can stand in. *replacement is set if there is one. */
static calla_status visit(walk *w, const char *key, const char *text, size_t n_bytes,
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

/* One that must stay as it is. */
static calla_status visit_fixed(walk *w, const char *key, const char *text, size_t n_bytes)
{
    return w->map || w->with ? CALLA_OK : scan(w, key, text, n_bytes, true, NULL);
}

/* ---- the walk ---- */

/* What may stand in a value. */
typedef enum kind_of_text {
    WORDS, /* identifiers of the API's */
    PROSE, /* text for the model */
    FREE,  /* JSON of the user's own, keys included */
} kind_of_text;

static calla_status walk_value(walk *w, const char *key, json_t *value, kind_of_text kind,
                               json_t **replacement);

static kind_of_text kind_below(const char *key, kind_of_text above)
{
    static const struct {
        const char *key;
        kind_of_text kind;
    } known[] = {{"content", PROSE}, {"text", PROSE},     {"description", PROSE}, {"stop", PROSE},
                 {"refusal", PROSE}, {"arguments", FREE}, {"parameters", FREE},   {"schema", FREE}};
    if (above == FREE) return FREE;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].key, key) == 0) return known[i].kind;
    return WORDS;
}

static calla_status walk_number(walk *w, const char *key, const json_t *value, kind_of_text kind,
                                json_t **replacement)
{
    strbuf text = {0};
    calla_status status = CALLA_OK;
    json_write_value(&text, value);
    if (text.failed)
        status = error_set(w->err, CALLA_ERR_MEMORY, "no memory for the check");
    else if (kind == FREE && text.n >= SHORT_NUMBER && w->with && text.n < LONG_NUMBER)
        w->at++; /* nothing that a model could judge */
    else if (kind == FREE && text.n >= SHORT_NUMBER)
        status = visit(w, key, text.data, text.n, replacement);
    else if (text.n >= LONG_NUMBER)
        status = visit_fixed(w, key, text.data, text.n);
    strbuf_free(&text);
    return status;
}

static calla_status walk_object(walk *w, json_t *object, kind_of_text above)
{
    for (void *i = json_object_iter(object); i; i = json_object_iter_next(object, i)) {
        const char *key = json_object_iter_key(i);
        size_t n_path = w->path.n;
        json_t *replacement = NULL;
        strbuf_puts(&w->path, n_path ? "." : "");
        strbuf_append(&w->path, key, whole_bytes(key, KEY_BYTES));
        if (above == FREE) CALLA_TRY(visit_fixed(w, NULL, key, strlen(key)));
        CALLA_TRY(walk_value(w, end_of(key, NAME_BYTES), json_object_iter_value(i),
                             kind_below(key, above), &replacement));
        if (replacement) json_object_iter_set_new(object, i, replacement);
        w->path.n = n_path;
        w->path.data[n_path] = '\0';
    }
    return CALLA_OK;
}

/* ---- values cut in two ---- */

/* Texts one behind the other. */
typedef struct joined {
    strbuf text;
    size_t *ends; /* [n] of each, in text */
    size_t n, capacity;
    const char *between;
} joined;

static calla_status join(walk *w, joined *j, const char *text, size_t n_bytes, size_t n_edge)
{
    void *ends = j->ends;
    CALLA_TRY(mem_grow(&ends, &j->capacity, j->n + 1, sizeof *j->ends, "texts", w->err));
    j->ends = ends;
    if (j->n > 0) strbuf_puts(&j->text, j->between);
    if (n_bytes > 2 * n_edge) {
        strbuf_append(&j->text, text, n_edge);
        strbuf_putc(&j->text, '\n');
        strbuf_append(&j->text, text + n_bytes - n_edge, n_edge);
    } else {
        strbuf_append(&j->text, text, n_bytes);
    }
    j->ends[j->n++] = j->text.n;
    return CALLA_OK;
}

/* Whether a part of a finding is one of its kind by itself: then its neighbour only stuck to it. */
static calla_status is_one_alone(walk *w, const joined *j, const finding *f, size_t start,
                                 size_t end, bool *alone)
{
    finding_list found = {0};
    calla_status status =
        detect_scan(w->detector, j->text.data + start, end - start, &found, w->err);
    for (size_t i = 0; i < found.n; i++) *alone = *alone || found.items[i].category == f->category;
    finding_list_deinit(&found);
    return status;
}

/* Whether any of its parts is. `k`: the text in which it begins. */
static calla_status is_any_alone(walk *w, const joined *j, const finding *f, size_t k, bool *alone)
{
    size_t start = f->start, n_between = strlen(j->between);
    for (; !*alone && k < j->n && start < f->end; k++) {
        size_t end = f->end < j->ends[k] ? f->end : j->ends[k];
        if (end > start) CALLA_TRY(is_one_alone(w, j, f, start, end, alone));
        start = j->ends[k] + n_between;
    }
    return CALLA_OK;
}

/* A finding of the joined text, if it is over the border behind text k, the first that ends after
 * its start. */
static calla_status take_crossing(walk *w, const joined *j, const finding *f, size_t k)
{
    bool alone = false;
    if (k + 1 >= j->n || f->end <= j->ends[k] + strlen(j->between)) return CALLA_OK;
    CALLA_TRY(is_any_alone(w, j, f, k, &alone));
    const finding_list one = {(finding *)f, 1, 1};
    return alone ? CALLA_OK : take_findings(w, &one, j->text.data, 0, true, NULL);
}

/* Looks at what is joined, and frees it. */
static calla_status check_joined(walk *w, joined *j, calla_status status)
{
    finding_list found = {0};
    if (status == CALLA_OK && j->text.failed)
        status = error_set(w->err, CALLA_ERR_MEMORY, "no memory for the check");
    if (status == CALLA_OK && j->n > 1 && j->text.n > 0)
        status = detect_scan(w->detector, j->text.data, j->text.n, &found, w->err);
    for (size_t i = 0, k = 0; status == CALLA_OK && i < found.n; i++) {
        while (k < j->n && j->ends[k] <= found.items[i].start) k++;
        status = take_crossing(w, j, &found.items[i], k);
    }
    finding_list_deinit(&found);
    strbuf_free(&j->text);
    free(j->ends);
    return status;
}

/* A value may be spread over the parts of a content, or over a list's texts. */
static calla_status check_parts(walk *w, const json_t *parts)
{
    joined j = {.between = ""};
    calla_status status = CALLA_OK;
    if (w->map || w->with) return CALLA_OK;
    for (size_t i = 0; status == CALLA_OK && i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i);
        const json_t *text = json_is_string(part) ? part : json_object_get(part, "text");
        if (json_is_string(text))
            status = join(w, &j, json_string_value(text), json_string_length(text), SIZE_MAX / 2);
    }
    return check_joined(w, &j, status);
}

static calla_status join_content(walk *w, joined *j, const json_t *content)
{
    if (json_is_string(content))
        return join(w, j, json_string_value(content), json_string_length(content), EDGE_BYTES);
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *text = json_object_get(json_array_get(content, i), "text");
        CALLA_TRY(join(w, j, json_string_value(text), json_string_length(text), EDGE_BYTES));
    }
    return CALLA_OK;
}

/* Or over the messages of one side. */
static calla_status check_messages(walk *w)
{
    static const char *const roles[] = {"user", "assistant", "system", "developer", "tool"};
    static const char *const betweens[] = {"", " "};
    const json_t *messages = json_object_get(w->o->request, "messages");
    calla_status status = CALLA_OK;
    if (w->map || w->with) return CALLA_OK;
    strbuf_puts(&w->path, "messages");
    for (size_t r = 0; r < 2 * sizeof roles / sizeof *roles && status == CALLA_OK; r++) {
        joined j = {.between = betweens[r % 2]};
        for (size_t i = 0; i < json_array_size(messages) && status == CALLA_OK; i++) {
            const json_t *message = json_array_get(messages, i);
            if (json_is_text(json_object_get(message, "role"), roles[r / 2]))
                status = join_content(w, &j, json_object_get(message, "content"));
        }
        status = check_joined(w, &j, status);
    }
    return status;
}

/* ---- the walk's arrays and values ---- */

static calla_status walk_array(walk *w, const char *key, json_t *array, kind_of_text kind)
{
    for (size_t i = 0; i < json_array_size(array); i++) {
        size_t n_path = w->path.n;
        json_t *replacement = NULL;
        strbuf_printf(&w->path, "[%zu]", i);
        CALLA_TRY(walk_value(w, key, json_array_get(array, i), kind, &replacement));
        if (replacement && json_array_set_new(array, i, replacement) != 0)
            return error_set(w->err, CALLA_ERR_MEMORY, "no memory for the request");
        w->path.n = n_path;
        w->path.data[n_path] = '\0';
    }
    return kind != WORDS ? check_parts(w, array) : CALLA_OK;
}

static calla_status walk_value(walk *w, const char *key, json_t *value, kind_of_text kind,
                               json_t **replacement)
{
    const char *text = json_string_value(value), *label = kind == FREE ? key : NULL;
    if (json_is_mapping(value)) return walk_object(w, value, kind == PROSE ? WORDS : kind);
    if (json_is_array(value)) return walk_array(w, key, value, kind);
    if (json_is_number(value) || json_is_big_integer(value))
        return walk_number(w, label, value, kind, replacement);
    if (!text) return CALLA_OK;
    if (kind == WORDS) return visit_fixed(w, NULL, text, json_string_length(value));
    return visit(w, label, text, json_string_length(value), replacement);
}

static calla_status walk_all(walk *w)
{
    json_t *model = json_incref(json_object_get(w->o->request, "model"));
    json_object_del(w->o->request, "model"); /* ours */
    calla_status status = walk_object(w, w->o->request, WORDS);
    if (status == CALLA_OK) status = check_messages(w);
    json_object_set_new(w->o->request, "model", model);
    if (status == CALLA_OK && w->path.failed)
        status = error_set(w->err, CALLA_ERR_MEMORY, "no memory for the check");
    strbuf_free(&w->path);
    return status;
}

calla_status outbound_check(outbound *o, const detector *d, const policy *p,
                            const policy_client *client, calla_error *err)
{
    walk w = {.o = o, .detector = d, .policy = p, .client = client, .err = err};
    return walk_all(&w);
}

calla_status outbound_judge(outbound *o, const outbound_judge_with *with, const policy *p,
                            const policy_client *client, bool *sure, calla_error *err)
{
    walk w = {.o = o, .with = with, .sure = true, .policy = p, .client = client, .err = err};
    calla_status status = walk_all(&w);
    *sure = w.sure;
    return status;
}

calla_status outbound_redact(outbound *o, redaction_map *map, calla_error *err)
{
    walk w = {.o = o, .map = map, .err = err};
    return walk_all(&w);
}

/* ---- writing ---- */

void outbound_canonical(const outbound *o, strbuf *out)
{
    json_write_value(out, o->request);
}

/* Arguments are texts on the wire. */
static calla_status write_arguments(json_t *call, calla_error *err)
{
    json_t *function = json_object_get(call, "function");
    const json_t *arguments = json_object_get(function, "arguments");
    if (!json_is_mapping(arguments)) return CALLA_OK;
    strbuf text = {0};
    json_write_value(&text, arguments);
    json_t *value = text.failed ? NULL : json_stringn(text.data, text.n);
    strbuf_free(&text);
    if (!value || json_object_set_new(function, "arguments", value) != 0)
        return error_set(err, CALLA_ERR_MEMORY, "no memory for the request");
    return CALLA_OK;
}

calla_status outbound_write(outbound *o, strbuf *out, calla_error *err)
{
    const json_t *messages = json_object_get(o->request, "messages");
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *calls = json_object_get(json_array_get(messages, i), "tool_calls");
        for (size_t k = 0; k < json_array_size(calls); k++)
            CALLA_TRY(write_arguments(json_array_get(calls, k), err));
    }
    json_write_value(out, o->request);
    return out->failed ? error_set(err, CALLA_ERR_MEMORY, "no memory for the request") : CALLA_OK;
}
