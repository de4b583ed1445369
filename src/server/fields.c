#include "server/fields.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const field *find(const field *const *lists, const char *name)
{
    for (; *lists; lists++)
        for (const field *f = *lists; f->name; f++)
            if (strcmp(f->name, name) == 0) return f;
    return NULL;
}

bool fields_read(const json_t *object, const char *place, const field *const *lists, void *into,
                 api_error *e)
{
    json_t *mutable = (json_t *)object; /* jansson's iterators want it so */
    if (!json_is_mapping(object)) {
        char name[96];
        snprintf(name, sizeof name, "%s", place);
        if (*name) name[strlen(name) - 1] = '\0'; /* its dot */
        return api_invalid(e, name, "%s must be an object, not %s", *name ? name : "the request",
                           json_kind_name(object));
    }
    for (void *i = json_object_iter(mutable); i; i = json_object_iter_next(mutable, i)) {
        const json_t *value = json_object_iter_value(i);
        const char *key = json_object_iter_key(i);
        char name[128];
        snprintf(name, sizeof name, "%s%.*s", place, 64, key);
        const field *f = find(lists, key);
        if (!f)
            return api_fail(e, 400, name, "unknown_parameter",
                            "Unrecognized request argument supplied: %s", name);
        if (!json_is_null(value) && !f->read(value, name, into, e)) return false;
    }
    return true;
}

bool field_bool(const json_t *value, const char *name, bool *out, api_error *e)
{
    if (!json_is_boolean(value))
        return api_invalid(e, name, "%s must be true or false, not %s", name,
                           json_kind_name(value));
    *out = json_is_true(value);
    return true;
}

bool field_int(const json_t *value, const char *name, int64_t low, int64_t high, int64_t *out,
               api_error *e)
{
    double real = json_is_real(value) ? json_real_value(value) : 0.5;
    int64_t n = json_integer_value(value);
    bool whole = json_is_integer(value);
    if (real == floor(real) && fabs(real) < 9e15) n = (int64_t)real, whole = true;
    if (!whole || n < low || n > high)
        return api_invalid(e, name, "%s must be a whole number from %lld to %lld", name,
                           (long long)low, (long long)high);
    *out = n;
    return true;
}

bool field_number(const json_t *value, const char *name, double low, double high, float *out,
                  api_error *e)
{
    double x = json_number_value(value);
    if (!json_is_number(value) || !(x >= low && x <= high))
        return api_invalid(e, name, "%s must be a number from %g to %g", name, low, high);
    *out = (float)x;
    return true;
}

bool field_string(const json_t *value, const char *name, const char **out, api_error *e)
{
    const char *text = json_string_value(value);
    if (!text)
        return api_invalid(e, name, "%s must be a string, not %s", name, json_kind_name(value));
    if (strlen(text) != json_string_length(value))
        return api_invalid(e, name, "%s must not contain a NUL character", name);
    *out = text;
    return true;
}

bool field_ignore_string(const json_t *value, const char *name, void *into, api_error *e)
{
    const char *text;
    (void)into;
    return field_string(value, name, &text, e);
}

bool field_ignore_object(const json_t *value, const char *name, void *into, api_error *e)
{
    (void)into;
    if (json_is_mapping(value)) return true;
    return api_invalid(e, name, "%s must be an object, not %s", name, json_kind_name(value));
}

bool field_refuse(const json_t *value, const char *name, void *into, api_error *e)
{
    (void)into;
    (void)value;
    return api_fail(e, 400, name, "unsupported_parameter", "%s is not supported by this server",
                    name);
}

int json_text_depth(const char *text, size_t n_bytes, int limit, int64_t *n_values)
{
    int depth = 0, deepest = 0;
    bool in_string = false;
    *n_values = 1;
    for (size_t i = 0; i < n_bytes && deepest <= limit; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '[' || c == '{') {
            if (++depth > deepest) deepest = depth;
            ++*n_values;
        } else if (c == ']' || c == '}') {
            depth--;
        } else if (c == ',' || c == ':') {
            ++*n_values;
        }
    }
    return deepest;
}
