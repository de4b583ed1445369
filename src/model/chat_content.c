#include "model/chat_content.h"

#include <string.h>

typedef struct part_place {
    size_t message, part; /* for errors */
    bool is_system;
} part_place;

#define fail(place, format, ...)                                                                   \
    error_set(err, CALLA_ERR_INPUT, "messages[%zu].content[%zu]: " format, (place)->message,       \
              (place)->part, __VA_ARGS__)

/* Jinja's `name in part`: a key of an object, an element of a list, a part of a string. */
static bool part_has(const json_t *part, const char *name)
{
    if (json_is_string(part)) {
        calla_range all = {0, json_string_length(part)};
        return text_find_first(json_string_value(part), all, name) != SIZE_MAX;
    }
    for (size_t i = 0; i < json_array_size(part); i++) {
        if (json_is_text(json_array_get(part, i), name)) return true;
    }
    return json_object_get(part, name) != NULL;
}

static bool part_is(const json_t *part, const char *type)
{
    return json_is_text(json_object_get(part, "type"), type);
}

/* A part of a content list as the template prints it. */
static calla_status put_part_strict(const json_t *part, const part_place *place, chat_text *out,
                                    calla_error *err)
{
    if (!json_is_mapping(part) && !json_is_array(part) && !json_is_string(part))
        return fail(place, "%s instead of an object", json_kind_name(part));
    if (part_has(part, "image") || part_has(part, "image_url") || part_is(part, "image")) {
        if (place->is_system) return fail(place, "%s", "System message cannot contain images.");
        chat_text_put(out, "<|vision_start|><|image_pad|><|vision_end|>");
    } else if (part_has(part, "video") || part_is(part, "video")) {
        if (place->is_system) return fail(place, "%s", "System message cannot contain videos.");
        chat_text_put(out, "<|vision_start|><|video_pad|><|vision_end|>");
    } else if (part_has(part, "text")) {
        const json_t *text =
            json_object_get(part, "text"); /* no object: undefined, prints nothing */
        if (json_is_string(text))
            chat_text_put_string(out, text);
        else if (text)
            return fail(place, "text is %s instead of a string", json_kind_name(text));
    } else {
        return fail(place, "%s", "Unexpected item type in content.");
    }
    return CALLA_OK;
}

/* Clients write unused fields as null. */
static bool part_holds(const json_t *part, const char *name)
{
    const json_t *value = json_object_get(part, name);
    return value && !json_is_null(value);
}

/* A part in OpenAI's forms of text. */
static calla_status put_part(const json_t *part, const part_place *place, chat_text *out,
                             calla_error *err)
{
    if (!json_is_mapping(part)) return fail(place, "%s instead of an object", json_kind_name(part));
    const json_t *type = json_object_get(part, "type"), *text = json_object_get(part, "text");
    if (type && !json_is_string(type))
        return fail(place, "type is %s instead of a string", json_kind_name(type));
    if (part_holds(part, "image") || part_holds(part, "image_url") || part_holds(part, "video") ||
        (type && !json_is_text(type, "text") && !json_is_text(type, "input_text") &&
         !json_is_text(type, "output_text")))
        return fail(place, "parts of type \"%s\" are not supported, only text",
                    type ? json_string_value(type) : "image or video");
    if (!json_is_string(text))
        return fail(place, "text is %s instead of a string", json_kind_name(text));
    chat_text_put_string(out, text);
    return CALLA_OK;
}

calla_status chat_content_render(const json_t *content, size_t index, bool is_system, bool strict,
                                 chat_text *out, calla_error *err)
{
    chat_text_clear(out);
    chat_text_put(out, ""); /* so that there is a buffer */
    if (!content || json_is_null(content)) return CALLA_OK;
    if (json_is_string(content)) {
        chat_text_put_string(out, content);
        return CALLA_OK;
    }
    if (!json_is_array(content))
        return error_set(err, CALLA_ERR_INPUT,
                         "messages[%zu].content: Unexpected content type. (%s)", index,
                         json_kind_name(content));
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *part = json_array_get(content, i);
        const part_place place = {index, i, is_system};
        CALLA_TRY(strict ? put_part_strict(part, &place, out, err)
                         : put_part(part, &place, out, err));
    }
    return CALLA_OK;
}
