#include "server/response_events.h"

#include "server/client.h"

#include <stdlib.h>
#include <string.h>

/* What has come of a stream. */
typedef struct reading {
    json_t *items; /* done */
    json_t *open;  /* the item that is not, as it was added; or NULL */
    char *text;    /* of its pieces, joined */
    json_t *logprobs;
    bool has_part, part_is_done, text_is_done;
    int64_t n_events;
} reading;

static void expect_text(const json_t *event, const char *path, const char *expected)
{
    const char *text = text_at(event, path);
    if (!text || strcmp(text, expected) != 0)
        fail_msg("%s is %s instead of %s in %s", path, text ? text : "not there", expected,
                 json_dumps(event, 0));
}

static bool is_call(const json_t *item)
{
    return strcmp(text_at(item, "type"), "function_call") == 0;
}

/* ---- items ---- */

static void add_item(reading *r, const json_t *event)
{
    assert_null(r->open);
    assert_int_equal(int_at(event, "output_index"), json_array_size(r->items));
    r->open = json_deep_copy(json_at(event, "item"));
    expect_text(r->open, "status", "in_progress");
    if (is_call(r->open))
        expect_text(r->open, "arguments", "");
    else
        assert_int_equal(json_array_size(json_at(r->open, "content")), 0);
    r->text = strdup("");
    r->logprobs = json_array();
    r->has_part = r->part_is_done = r->text_is_done = false;
}

static void check_place(const reading *r, const json_t *event)
{
    assert_non_null(r->open);
    expect_text(event, "item_id", text_at(r->open, "id"));
    assert_int_equal(int_at(event, "output_index"), json_array_size(r->items));
    if (!is_call(r->open)) assert_int_equal(int_at(event, "content_index"), 0);
}

static void add_part(reading *r, const json_t *event)
{
    check_place(r, event);
    assert_false(r->has_part || is_call(r->open));
    expect_text(event, "part.text", "");
    r->has_part = true;
}

static void add_piece(reading *r, const json_t *event)
{
    const char *piece = text_at(event, "delta");
    check_place(r, event);
    assert_true(r->has_part || is_call(r->open));
    assert_false(r->text_is_done);
    char *joined_text = malloc(strlen(r->text) + strlen(piece) + 1);
    strcat(strcpy(joined_text, r->text), piece);
    free(r->text);
    r->text = joined_text;
    json_array_extend(r->logprobs, json_at(event, "logprobs"));
}

static void end_text(reading *r, const json_t *event)
{
    check_place(r, event);
    assert_false(r->text_is_done);
    expect_text(event, is_call(r->open) ? "arguments" : "text", r->text);
    const json_t *logprobs = json_at(event, "logprobs");
    if (logprobs) assert_true(json_equal(logprobs, r->logprobs));
    r->text_is_done = true;
}

static void end_part(reading *r, const json_t *event)
{
    check_place(r, event);
    assert_true(r->has_part && r->text_is_done && !r->part_is_done);
    expect_text(event, "part.text", r->text);
    r->part_is_done = true;
}

static void end_item(reading *r, const json_t *event)
{
    json_t *item = json_at(event, "item");
    assert_non_null(r->open);
    assert_true(r->text_is_done && r->part_is_done == r->has_part);
    expect_text(item, "id", text_at(r->open, "id"));
    expect_text(item, "type", text_at(r->open, "type"));
    expect_text(item, is_call(item) ? "arguments" : "content.0.text", r->text);
    const json_t *logprobs = json_at(item, "content.0.logprobs");
    if (logprobs) assert_true(json_equal(logprobs, r->logprobs));
    assert_int_equal(int_at(event, "output_index"), json_array_size(r->items));
    json_array_append(r->items, item);
    json_decref(r->open);
    json_decref(r->logprobs);
    free(r->text);
    r->open = NULL;
}

/* ---- events ---- */

static const struct {
    const char *type, *item; /* item: the type of those it may be about */
    void (*take)(reading *r, const json_t *event);
} item_events[] = {
    {"response.output_item.added", NULL, add_item},
    {"response.output_item.done", NULL, end_item},
    {"response.content_part.added", NULL, add_part},
    {"response.content_part.done", NULL, end_part},
    {"response.reasoning_text.delta", "reasoning", add_piece},
    {"response.reasoning_text.done", "reasoning", end_text},
    {"response.output_text.delta", "message", add_piece},
    {"response.output_text.done", "message", end_text},
    {"response.function_call_arguments.delta", "function_call", add_piece},
    {"response.function_call_arguments.done", "function_call", end_text},
};

/* The last: "response.completed" ... */
static bool ends_stream(const char *type, const json_t *event)
{
    const char *status = text_at(event, "response.status");
    return status && strcmp(status, "in_progress") != 0 && strcmp(type + 9, status) == 0;
}

static void take(reading *r, const char *name, const json_t *event)
{
    const char *type = text_at(event, "type");
    assert_string_equal(type, name);
    assert_int_equal(int_at(event, "sequence_number"), r->n_events++);
    if (r->n_events <= 2) {
        assert_string_equal(type, r->n_events == 1 ? "response.created" : "response.in_progress");
        expect_text(event, "response.status", "in_progress");
        assert_true(json_is_null(json_at(event, "response.usage")));
        return;
    }
    if (strcmp(type, "calla.progress") == 0) return;
    if (ends_stream(type, event)) {
        bool failed = strcmp(type, "response.failed") == 0;
        assert_true(failed || !r->open);
        assert_true(json_equal(json_at(event, "response.output"), r->items));
        return;
    }
    for (size_t i = 0; i < sizeof item_events / sizeof *item_events; i++) {
        if (strcmp(item_events[i].type, type) != 0) continue;
        if (item_events[i].item) expect_text(r->open, "type", item_events[i].item);
        item_events[i].take(r, event);
        return;
    }
    fail_msg("an event of type %s", type);
}

json_t *response_events(const char *text)
{
    reading r = {.items = json_array()};
    json_t *events = json_array();
    const char *last = "";
    for (const char *at = text, *end; *at; at = end + 2) {
        char name[64];
        int n_name;
        end = strstr(at, "\n\n");
        if (!end) fail_msg("no end of an event: %s", at);
        if (*at == ':') continue; /* a comment */
        if (sscanf(at, "event: %63s\ndata: %n", name, &n_name) != 1) fail_msg("no event: %s", at);
        json_t *event = json_loadb(at + n_name, (size_t)(end - at) - (size_t)n_name,
                                   JSON_REJECT_DUPLICATES, NULL);
        if (!event) fail_msg("no JSON: %s", at);
        json_array_append_new(events, event);
        if (ends_stream(last, json_array_get(events, json_array_size(events) - 2)))
            fail_msg("an event after the end: %s", at);
        last = text_at(event, "type");
        take(&r, name, event);
    }
    if (r.open) { /* of a stream that failed */
        json_decref(r.open);
        json_decref(r.logprobs);
        free(r.text);
    }
    json_decref(r.items);
    return events;
}

json_t *response_of(const json_t *events, const char *status)
{
    const json_t *last = json_array_get(events, json_array_size(events) - 1);
    assert_true(ends_stream(text_at(last, "type"), last));
    expect_text(last, "response.status", status);
    return json_at(last, "response");
}

/* ---- responses ---- */

void response_make_plain(json_t *response)
{
    static const char *const names[] = {"id", "created_at", "timings", "usage"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) json_object_del(response, names[i]);
    json_t *output = json_object_get(response, "output");
    for (size_t i = 0; i < json_array_size(output); i++) {
        json_object_del(json_array_get(output, i), "id");
        json_object_del(json_array_get(output, i), "call_id");
    }
}

static char *join(const json_t *response, const char *type)
{
    const json_t *output = json_at(response, "output");
    char *all = strdup("");
    for (size_t i = 0; i < json_array_size(output); i++) {
        const json_t *item = json_array_get(output, i);
        if (strcmp(text_at(item, "type"), type) != 0) continue;
        const char *text = text_at(item, "content.0.text");
        char *longer = malloc(strlen(all) + strlen(text) + 1);
        strcat(strcpy(longer, all), text);
        free(all);
        all = longer;
    }
    return all;
}

char *response_text(const json_t *response)
{
    return join(response, "message");
}

char *response_reasoning(const json_t *response)
{
    return join(response, "reasoning");
}

json_t *response_call(const json_t *response, size_t n)
{
    const json_t *output = json_at(response, "output");
    for (size_t i = 0; i < json_array_size(output); i++) {
        json_t *item = json_array_get(output, i);
        if (is_call(item) && n-- == 0) return item;
    }
    return NULL;
}
