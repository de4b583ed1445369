#include "hybrid/inbound.h"

#include <stdlib.h>
#include <string.h>

enum {
    EVENT_BYTES = 8 << 20, /* of one event of a stream */
    MAX_VOICES = 1024,
};

/* One text that comes in pieces: a field of a choice, or the arguments of one of its calls. */
typedef struct voice {
    struct voice *next;
    int64_t choice, call; /* call -1: a field */
    const char *field;    /* static */
    restorer *restorer;
} voice;

struct inbound {
    redaction_map *map;
    restore_form content_form;
    json_t *note; /* until it has been said */
    voice *voices;
    size_t n_voices;
    strbuf line, data; /* of the event at hand */
    bool has_data, complete;
    inbound_usage usage;
};

static const char *const text_fields[] = {"content", "reasoning_content", "reasoning", "refusal"};
enum { N_TEXT_FIELDS = sizeof text_fields / sizeof *text_fields, CONTENT = 0 };

/* How field number `f` of a message holds placeholders. */
static restore_form form_of_field(const inbound *in, int f)
{
    return f == CONTENT ? in->content_form : RESTORE_TEXT;
}

calla_status inbound_create(redaction_map *map, const json_t *note, restore_form content_form,
                            inbound **out, calla_error *err)
{
    inbound *in = calloc(1, sizeof *in);
    if (in) in->note = json_deep_copy(note);
    if (!in || !in->note) {
        free(in);
        return error_set(err, CALLA_ERR_MEMORY, "no memory for the cloud's answer");
    }
    in->map = map;
    in->content_form = content_form;
    in->usage = (inbound_usage){-1, -1};
    *out = in;
    return CALLA_OK;
}

void inbound_free(inbound *in)
{
    if (!in) return;
    while (in->voices) {
        voice *v = in->voices;
        in->voices = v->next;
        restorer_free(v->restorer);
        free(v);
    }
    json_decref(in->note);
    strbuf_free(&in->line);
    strbuf_free(&in->data);
    free(in);
}

inbound_usage inbound_get_usage(const inbound *in)
{
    return in->usage;
}

bool inbound_is_complete(const inbound *in)
{
    return in->complete;
}

static calla_status no_memory(calla_error *err)
{
    return error_set(err, CALLA_ERR_MEMORY, "no memory for the cloud's answer");
}

static void note_usage(inbound *in, const json_t *answer)
{
    const json_t *usage = json_object_get(answer, "usage");
    const json_t *input = json_object_get(usage, "prompt_tokens");
    const json_t *output = json_object_get(usage, "completion_tokens");
    if (json_is_integer(input)) in->usage.input_tokens = json_integer_value(input);
    if (json_is_integer(output)) in->usage.output_tokens = json_integer_value(output);
}

/* Says where it was made, once, and nobody else does. */
static void add_note(inbound *in, json_t *answer)
{
    json_object_del(answer, "calla");
    if (in->note) json_object_set_new(answer, "calla", in->note);
    in->note = NULL;
}

/* ---- pieces ---- */

static calla_status find_voice(inbound *in, int64_t choice, int64_t call, const char *field,
                               restore_form form, voice **found, calla_error *err)
{
    voice **end = &in->voices;
    for (; *end; end = &(*end)->next) {
        voice *v = *end;
        if (v->choice == choice && v->call == call && v->field == field) {
            *found = v;
            return CALLA_OK;
        }
    }
    if (in->n_voices == MAX_VOICES)
        return error_set(err, CALLA_ERR_INPUT, "the cloud's answer has more than %d parts",
                         MAX_VOICES);
    voice *v = calloc(1, sizeof *v);
    if (!v) return no_memory(err);
    *v = (voice){.choice = choice, .call = call, .field = field};
    calla_status status = restorer_create(in->map, form, &v->restorer, err);
    if (status != CALLA_OK) {
        free(v);
        return status;
    }
    *end = *found = v;
    in->n_voices++;
    return CALLA_OK;
}

/* Puts a text, which is freed, in the place of object[key]. */
static calla_status set_text(json_t *object, const char *key, strbuf *text, calla_error *err)
{
    json_t *value = text->failed ? NULL : json_stringn(text->data ? text->data : "", text->n);
    bool ok = value && json_object_set_new(object, key, value) == 0;
    strbuf_free(text);
    return ok ? CALLA_OK : no_memory(err);
}

static calla_status restore_piece(inbound *in, json_t *object, const char *key, restore_form form,
                                  int64_t choice, int64_t call, calla_error *err)
{
    const json_t *piece = json_object_get(object, key);
    strbuf out = {0};
    voice *v = NULL;
    if (!json_is_string(piece)) return CALLA_OK;
    CALLA_TRY(find_voice(in, choice, call, key, form, &v, err));
    restorer_push(v->restorer, json_string_value(piece), json_string_length(piece), &out);
    return set_text(object, key, &out, err);
}

/* What a field still held back goes behind its last piece. */
static calla_status add_rest(json_t *delta, const voice *v, strbuf *rest, calla_error *err)
{
    const json_t *piece = json_object_get(delta, v->field);
    strbuf all = {0};
    strbuf_append(&all, json_is_string(piece) ? json_string_value(piece) : "",
                  json_string_length(piece));
    strbuf_append(&all, rest->data, rest->n);
    if (rest->failed) all.failed = true;
    return set_text(delta, v->field, &all, err);
}

static calla_status add_rest_of_call(json_t *delta, const voice *v, const strbuf *rest,
                                     calla_error *err)
{
    json_t *calls = json_object_get(delta, "tool_calls");
    if (!json_is_array(calls)) {
        calls = json_array();
        if (json_object_set_new(delta, "tool_calls", calls) != 0) return no_memory(err);
    }
    json_t *entry = json_pack("{s:I, s:{s:s%}}", "index", (json_int_t)v->call, "function",
                              "arguments", rest->data, rest->n);
    return entry && json_array_append_new(calls, entry) == 0 ? CALLA_OK : no_memory(err);
}

static calla_status finish_choice(inbound *in, json_t *delta, int64_t choice, calla_error *err)
{
    for (voice *v = in->voices; v; v = v->next) {
        strbuf rest = {0};
        calla_status status = CALLA_OK;
        if (v->choice != choice) continue;
        restorer_finish(v->restorer, &rest);
        if (rest.failed)
            status = no_memory(err);
        else if (rest.n > 0)
            status = v->call < 0 ? add_rest(delta, v, &rest, err)
                                 : add_rest_of_call(delta, v, &rest, err);
        strbuf_free(&rest);
        if (status != CALLA_OK) return status;
    }
    return CALLA_OK;
}

static int64_t index_of(const json_t *object, size_t otherwise)
{
    const json_t *index = json_object_get(object, "index");
    return json_is_integer(index) ? json_integer_value(index) : (int64_t)otherwise;
}

static calla_status restore_calls(inbound *in, json_t *delta, int64_t choice, calla_error *err)
{
    static const char arguments[] = "arguments"; /* one pointer for all: it names the voice */
    const json_t *calls = json_object_get(delta, "tool_calls");
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *call = json_array_get(calls, i);
        json_t *function = json_object_get(call, "function");
        if (json_is_mapping(function))
            CALLA_TRY(restore_piece(in, function, arguments, RESTORE_JSON, choice,
                                    index_of(call, i), err));
    }
    return CALLA_OK;
}

static calla_status restore_choice(inbound *in, json_t *choice, size_t i, calla_error *err)
{
    int64_t index = index_of(choice, i);
    json_t *delta = json_object_get(choice, "delta");
    if (!json_is_mapping(delta)) return CALLA_OK;
    for (int f = 0; f < N_TEXT_FIELDS; f++)
        CALLA_TRY(restore_piece(in, delta, text_fields[f], form_of_field(in, f), index, -1, err));
    CALLA_TRY(restore_calls(in, delta, index, err));
    if (json_is_string(json_object_get(choice, "finish_reason")))
        return finish_choice(in, delta, index, err);
    return CALLA_OK;
}

/* ---- events ---- */

static void put_event(strbuf *out, const json_t *value)
{
    strbuf_puts(out, "data: ");
    json_write_value(out, value);
    strbuf_puts(out, "\n\n");
}

static void restore_error(const inbound *in, json_t *error, calla_error *err)
{
    const json_t *message = json_object_get(error, "message");
    strbuf out = {0};
    if (!in->map || !json_is_string(message)) return;
    restore_text(in->map, RESTORE_TEXT, json_string_value(message), json_string_length(message),
                 &out);
    set_text(error, "message", &out, err);
}

static calla_status take_chunk(inbound *in, json_t *chunk, strbuf *out, calla_error *err)
{
    json_t *error = json_object_get(chunk, "error");
    const json_t *choices = json_object_get(chunk, "choices");
    note_usage(in, chunk);
    if (json_is_mapping(error)) {
        restore_error(in, error, err);
        in->complete = true;
    }
    for (size_t i = 0; in->map && i < json_array_size(choices); i++)
        CALLA_TRY(restore_choice(in, json_array_get(choices, i), i, err));
    add_note(in, chunk);
    /* Written anew, as it was read: in one line, and without escapes that hide anything. */
    put_event(out, chunk);
    return CALLA_OK;
}

static calla_status take_event(inbound *in, strbuf *out, calla_error *err)
{
    json_t *chunk;
    if (in->data.n == 6 && memcmp(in->data.data, "[DONE]", 6) == 0) {
        strbuf_puts(out, "data: [DONE]\n\n");
        in->complete = true;
        return CALLA_OK;
    }
    if (json_parse_text(in->data.data ? in->data.data : "", in->data.n, "an event", &chunk, NULL) !=
        CALLA_OK)
        return error_set(err, CALLA_ERR_INPUT, "the cloud sent an event that is not JSON");
    calla_status status =
        json_is_mapping(chunk)
            ? take_chunk(in, chunk, out, err)
            : error_set(err, CALLA_ERR_INPUT, "the cloud sent an event that is no JSON object");
    json_decref(chunk);
    return status;
}

/* A line without its end. Fields other than data, and comments, are not passed on. */
static calla_status take_line(inbound *in, strbuf *out, calla_error *err)
{
    static const char field[] = "data:";
    const char *line = in->line.data ? in->line.data : "";
    size_t n = in->line.n, n_field = sizeof field - 1;
    if (n > 0 && line[n - 1] == '\r') n--;
    if (n == 0) {
        if (!in->has_data || in->complete) return CALLA_OK;
        calla_status status = take_event(in, out, err);
        strbuf_clear(&in->data);
        in->has_data = false;
        return status;
    }
    if (n < n_field || memcmp(line, field, n_field) != 0) return CALLA_OK;
    if (n > n_field && line[n_field] == ' ') n_field++;
    if (in->has_data) strbuf_putc(&in->data, '\n');
    strbuf_append(&in->data, line + n_field, n - n_field);
    in->has_data = true;
    return CALLA_OK;
}

calla_status inbound_push(inbound *in, const char *bytes, size_t n_bytes, strbuf *out,
                          calla_error *err)
{
    while (n_bytes > 0) {
        const char *end = memchr(bytes, '\n', n_bytes);
        size_t n = end ? (size_t)(end - bytes) : n_bytes;
        if (in->line.n + in->data.n + n > EVENT_BYTES)
            return error_set(err, CALLA_ERR_INPUT, "the cloud sent an event of more than %d bytes",
                             EVENT_BYTES);
        strbuf_append(&in->line, bytes, n);
        if (in->line.failed || in->data.failed) return no_memory(err);
        if (!end) break;
        CALLA_TRY(take_line(in, out, err));
        strbuf_clear(&in->line);
        bytes += n + 1;
        n_bytes -= n + 1;
    }
    return CALLA_OK;
}

/* ---- whole answers ---- */

static calla_status restore_field(const inbound *in, json_t *object, const char *key,
                                  restore_form form, calla_error *err)
{
    const json_t *value = json_object_get(object, key);
    strbuf out = {0};
    if (!json_is_string(value)) return CALLA_OK;
    restore_text(in->map, form, json_string_value(value), json_string_length(value), &out);
    return set_text(object, key, &out, err);
}

static calla_status restore_message(const inbound *in, json_t *message, calla_error *err)
{
    const json_t *calls = json_object_get(message, "tool_calls");
    if (!json_is_mapping(message)) return CALLA_OK;
    for (int f = 0; f < N_TEXT_FIELDS; f++)
        CALLA_TRY(restore_field(in, message, text_fields[f], form_of_field(in, f), err));
    for (size_t i = 0; i < json_array_size(calls); i++) {
        json_t *function = json_object_get(json_array_get(calls, i), "function");
        if (json_is_mapping(function))
            CALLA_TRY(restore_field(in, function, "arguments", RESTORE_JSON, err));
    }
    return CALLA_OK;
}

static calla_status take_whole(inbound *in, json_t *answer, strbuf *out, calla_error *err)
{
    const json_t *choices = json_object_get(answer, "choices");
    json_t *error = json_object_get(answer, "error");
    note_usage(in, answer);
    if (json_is_mapping(error)) restore_error(in, error, err);
    for (size_t i = 0; in->map && i < json_array_size(choices); i++)
        CALLA_TRY(restore_message(in, json_object_get(json_array_get(choices, i), "message"), err));
    add_note(in, answer);
    json_write_value(out, answer);
    return out->failed ? no_memory(err) : CALLA_OK;
}

calla_status inbound_whole(inbound *in, const char *text, size_t n_bytes, strbuf *out,
                           calla_error *err)
{
    json_t *answer;
    if (json_parse_text(text, n_bytes, "the answer", &answer, NULL) != CALLA_OK)
        return error_set(err, CALLA_ERR_INPUT, "the cloud's answer is not JSON");
    calla_status status =
        json_is_mapping(answer)
            ? take_whole(in, answer, out, err)
            : error_set(err, CALLA_ERR_INPUT, "the cloud's answer is no JSON object");
    json_decref(answer);
    return status;
}
