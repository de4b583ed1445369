#include "hybrid/outbound_private.h"

#include <stdlib.h>
#include <string.h>

enum {
    LONG_NUMBER = 7,  /* characters of a number without a name from which it is looked at */
    SHORT_NUMBER = 3, /* of one with a name, such as "cvv" or "pin" */
    KEY_BYTES = 64,   /* of a key in a path */
    NAME_BYTES = 128, /* of a key's end, which is looked at before each text that it names */
};

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

/* ---- the walk ---- */

/* The last characters of a text, n_most bytes at most. */
static const char *end_of(const char *text, size_t n_most)
{
    size_t n = strlen(text);
    if (n > n_most) text += n - n_most;
    while (n > n_most && ((unsigned char)*text & 0xC0) == 0x80) text++;
    return text;
}

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
        status = outbound_visit(w, key, text.data, text.n, replacement);
    else if (text.n >= LONG_NUMBER)
        status = outbound_visit_fixed(w, key, text.data, text.n);
    strbuf_free(&text);
    return status;
}

/* The name that {"name": NAME, "value": ...} gives its value, or `otherwise`. */
static const char *name_of_value(const json_t *object, const char *otherwise)
{
    static const char *const keys[] = {"name", "key", "header", "field", "label"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *name = json_object_get(object, keys[i]);
        if (json_string_length(name) > 0) return end_of(json_string_value(name), NAME_BYTES);
    }
    return otherwise;
}

/* `name`: what names the object itself, NULL = nothing. */
static calla_status walk_object(walk *w, const char *name, json_t *object, kind_of_text above)
{
    const char *of_value = above == FREE ? name_of_value(object, name) : NULL;
    for (void *i = json_object_iter(object); i; i = json_object_iter_next(object, i)) {
        const char *key = json_object_iter_key(i);
        size_t n_path = w->path.n;
        json_t *replacement = NULL;
        strbuf_puts(&w->path, n_path ? "." : "");
        strbuf_append(&w->path, key, outbound_whole_bytes(key, KEY_BYTES));
        if (above == FREE) CALLA_TRY(outbound_visit_fixed(w, NULL, key, strlen(key)));
        const char *own =
            of_value && strcmp(key, "value") == 0 ? of_value : end_of(key, NAME_BYTES);
        CALLA_TRY(
            walk_value(w, own, json_object_iter_value(i), kind_below(key, above), &replacement));
        if (replacement) json_object_iter_set_new(object, i, replacement);
        w->path.n = n_path;
        w->path.data[n_path] = '\0';
    }
    return above == FREE ? outbound_check_members(w, object) : CALLA_OK;
}

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
    return kind != WORDS ? outbound_check_parts(w, array) : CALLA_OK;
}

static calla_status walk_value(walk *w, const char *key, json_t *value, kind_of_text kind,
                               json_t **replacement)
{
    const char *text = json_string_value(value), *label = kind == FREE ? key : NULL;
    if (json_is_mapping(value)) return walk_object(w, label, value, kind == PROSE ? WORDS : kind);
    if (json_is_array(value)) return walk_array(w, key, value, kind);
    if (json_is_number(value) || json_is_big_integer(value))
        return walk_number(w, label, value, kind, replacement);
    if (!text) return CALLA_OK;
    if (kind == WORDS) return outbound_visit_fixed(w, NULL, text, json_string_length(value));
    return outbound_visit(w, label, text, json_string_length(value), replacement);
}

static calla_status walk_all(walk *w)
{
    json_t *model = json_incref(json_object_get(w->o->request, "model"));
    json_object_del(w->o->request, "model"); /* ours */
    calla_status status = walk_object(w, NULL, w->o->request, WORDS);
    if (status == CALLA_OK) status = outbound_check_messages(w);
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
