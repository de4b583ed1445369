/* Values cut in two, by texts that follow each other. */
#include "hybrid/outbound_private.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

enum {
    EDGE_BYTES = 256, /* of a text's ends that are looked at with its neighbours' */
};

/* Texts one behind the other. */
typedef struct joined {
    strbuf text;
    size_t *ends; /* [n] of each, in text */
    size_t n, capacity;
    const char *between;
    bool answers; /* a text may say what the next one holds */
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

/* Whether the finding, which is all in text k, is one there without the texts before it, too. */
static calla_status is_known(walk *w, const joined *j, const finding *f, size_t k, bool *known)
{
    finding_list found = {0};
    size_t start = k > 0 ? j->ends[k - 1] + strlen(j->between) : 0;
    calla_status status =
        detect_scan(w->detector, j->text.data + start, j->ends[k] - start, &found, w->err);
    for (size_t i = 0; i < found.n; i++)
        *known = *known ||
                 (found.items[i].start < f->end - start && f->start - start < found.items[i].end);
    finding_list_deinit(&found);
    return status;
}

/* A finding of the joined text that is none of a single one: it is over the border behind text k,
 * the first that ends after its start, or the text before says what it is. */
static calla_status take_crossing(walk *w, const joined *j, const finding *f, size_t k)
{
    bool known = false;
    if (k >= j->n) return CALLA_OK;
    if (k + 1 < j->n && f->end > j->ends[k] + strlen(j->between))
        CALLA_TRY(is_any_alone(w, j, f, k, &known));
    else if (j->answers && k > 0)
        CALLA_TRY(is_known(w, j, f, k, &known));
    else
        return CALLA_OK;
    const finding_list one = {(finding *)f, 1, 1};
    return known ? CALLA_OK : outbound_take_findings(w, &one, j->text.data, 0, true, NULL);
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

/* As they follow each other, and as words of a sentence. */
static const char *const betweens[] = {"", " "};
enum { N_BETWEENS = sizeof betweens / sizeof *betweens };

/* A value may be spread over the parts of a content, or over a list's texts. */
calla_status outbound_check_parts(walk *w, const json_t *parts)
{
    calla_status status = CALLA_OK;
    for (int b = 0; !w->map && !w->with && b < N_BETWEENS && status == CALLA_OK; b++) {
        joined j = {.between = betweens[b]};
        for (size_t i = 0; status == CALLA_OK && i < json_array_size(parts); i++) {
            const json_t *part = json_array_get(parts, i);
            const json_t *text = json_is_string(part) ? part : json_object_get(part, "text");
            if (json_is_string(text))
                status =
                    join(w, &j, json_string_value(text), json_string_length(text), SIZE_MAX / 2);
        }
        status = check_joined(w, &j, status);
    }
    return status;
}

/* Or over the members of an object. */
calla_status outbound_check_members(walk *w, json_t *object)
{
    calla_status status = CALLA_OK;
    for (int b = 0; !w->map && !w->with && b < N_BETWEENS && status == CALLA_OK; b++) {
        joined j = {.between = betweens[b]};
        for (void *i = json_object_iter(object); status == CALLA_OK && i;
             i = json_object_iter_next(object, i)) {
            const json_t *text = json_object_iter_value(i);
            if (json_is_string(text))
                status =
                    join(w, &j, json_string_value(text), json_string_length(text), SIZE_MAX / 2);
        }
        status = check_joined(w, &j, status);
    }
    return status;
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

/* ---- values cut in two by messages ---- */

/* The messages of one side, then all: a question may say what the answer holds. */
calla_status outbound_check_messages(walk *w)
{
    static const char *const roles[] = {"user", "assistant", "system", "developer", "tool", NULL};
    const json_t *messages = json_object_get(w->o->request, "messages");
    calla_status status = CALLA_OK;
    if (w->map || w->with) return CALLA_OK;
    strbuf_puts(&w->path, "messages");
    for (size_t r = 0; r < N_BETWEENS * sizeof roles / sizeof *roles && status == CALLA_OK; r++) {
        const char *role = roles[r / N_BETWEENS];
        joined j = {.between = betweens[r % N_BETWEENS], .answers = !role && r % N_BETWEENS == 1};
        for (size_t i = 0; i < json_array_size(messages) && status == CALLA_OK; i++) {
            const json_t *message = json_array_get(messages, i);
            if (!role || json_is_text(json_object_get(message, "role"), role))
                status = join_content(w, &j, json_object_get(message, "content"));
        }
        status = check_joined(w, &j, status);
    }
    return status;
}

/* ---- by texts of a task ---- */

calla_status outbound_check_pieces(outbound *o, const outbound_piece *pieces, size_t n,
                                   const detector *d, const policy *p, const policy_client *client,
                                   calla_error *err)
{
    walk w = {.o = o, .detector = d, .policy = p, .client = client, .err = err};
    calla_status status = CALLA_OK;
    for (int b = 0; b < N_BETWEENS && status == CALLA_OK; b++) {
        joined j = {.between = betweens[b], .answers = b == 1};
        for (size_t i = 0; i < n && status == CALLA_OK; i++)
            status = join(&w, &j, pieces[i].text, pieces[i].n_bytes, EDGE_BYTES);
        status = check_joined(&w, &j, status);
    }
    return status;
}
