#include "support/json_validator.h"

#include <math.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *at(const json_t *schema, const char *key)
{
    return json_string_value(json_object_get(schema, key));
}

/* ---- strings ---- */

static bool matches(const char *pattern, const json_t *value)
{
    int code;
    PCRE2_SIZE offset;
    pcre2_code *re = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                   PCRE2_UTF | PCRE2_DOLLAR_ENDONLY, &code, &offset, NULL);
    if (!re) abort();
    pcre2_match_data *data = pcre2_match_data_create_from_pattern(re, NULL);
    int n = pcre2_match(re, (PCRE2_SPTR)json_string_value(value), json_string_length(value), 0, 0,
                        data, NULL);
    pcre2_match_data_free(data);
    pcre2_code_free(re);
    return n > 0;
}

static size_t n_characters(const json_t *value)
{
    size_t n = 0;
    const char *text = json_string_value(value);
    for (size_t i = 0; i < json_string_length(value); i++) n += (text[i] & 0xc0) != 0x80;
    return n;
}

static bool is_date(const char *text)
{
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int y, m, d;
    if (sscanf(text, "%4d-%2d-%2d", &y, &m, &d) != 3 || y < 1 || m < 1 || m > 12) return false;
    bool leap = (y % 4 == 0 && y % 100 != 0) || y % 400 == 0;
    return d >= 1 && d <= days[m - 1] + (m == 2 && leap);
}

static bool has_format(const json_t *value, const char *format)
{
    const char *text = json_string_value(value);
    if (strcmp(format, "date") == 0)
        return matches("^[0-9]{4}-[0-9]{2}-[0-9]{2}$", value) && is_date(text);
    if (strcmp(format, "date-time") == 0)
        return matches("^[0-9-]{10}T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]+)?"
                       "(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$",
                       value) &&
               is_date(text);
    if (strcmp(format, "time") == 0)
        return matches("^[0-9]{2}:[0-9]{2}:[0-9]{2}.*(Z|[+-][0-9]{2}:[0-9]{2})$", value);
    if (strcmp(format, "uuid") == 0)
        return matches("^[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$", value);
    if (strcmp(format, "ipv4") == 0) {
        unsigned a, b, c, d;
        char end;
        return sscanf(text, "%3u.%3u.%3u.%3u%c", &a, &b, &c, &d, &end) == 4 && a < 256 && b < 256 &&
               c < 256 && d < 256;
    }
    if (strcmp(format, "email") == 0) return matches("^[^@\\s]{1,64}@[A-Za-z0-9.-]{1,253}$", value);
    abort();
}

static bool string_is_valid(const json_t *value, const json_t *schema)
{
    const json_t *min = json_object_get(schema, "minLength"),
                 *max = json_object_get(schema, "maxLength");
    json_int_t n = (json_int_t)n_characters(value);
    if (min && n < json_integer_value(min)) return false;
    if (max && n > json_integer_value(max)) return false;
    if (at(schema, "pattern") && !matches(at(schema, "pattern"), value)) return false;
    return !at(schema, "format") || has_format(value, at(schema, "format"));
}

/* ---- numbers ---- */

static bool number_is_valid(const json_t *value, const json_t *schema)
{
    double x = json_number_value(value);
    const json_t *limit;
    if ((limit = json_object_get(schema, "minimum")) && x < json_number_value(limit)) return false;
    if ((limit = json_object_get(schema, "maximum")) && x > json_number_value(limit)) return false;
    if ((limit = json_object_get(schema, "exclusiveMinimum")) && x <= json_number_value(limit))
        return false;
    if ((limit = json_object_get(schema, "exclusiveMaximum")) && x >= json_number_value(limit))
        return false;
    if (!(limit = json_object_get(schema, "multipleOf"))) return true;
    if (json_is_integer(value) && json_is_integer(limit))
        return json_integer_value(value) % json_integer_value(limit) == 0;
    double times = x / json_number_value(limit);
    return fabs(times - nearbyint(times)) <= 1e-9 * fmax(1, fabs(times));
}

/* ---- arrays and objects ---- */

static bool array_is_valid(const json_t *value, const json_t *schema, const json_t *root)
{
    const json_t *min = json_object_get(schema, "minItems"),
                 *max = json_object_get(schema, "maxItems"),
                 *items = json_object_get(schema, "items"),
                 *prefix = json_object_get(schema, "prefixItems");
    size_t n = json_array_size(value);
    if (min && (json_int_t)n < json_integer_value(min)) return false;
    if (max && (json_int_t)n > json_integer_value(max)) return false;
    for (size_t i = 0; i < n; i++) {
        const json_t *one = i < json_array_size(prefix) ? json_array_get(prefix, i) : items;
        if (one && !json_is_valid(json_array_get(value, i), one, root)) return false;
    }
    return true;
}

static bool object_is_valid(const json_t *value, const json_t *schema, const json_t *root)
{
    const json_t *required = json_object_get(schema, "required"),
                 *properties = json_object_get(schema, "properties"),
                 *others = json_object_get(schema, "additionalProperties");
    const char *key;
    json_t *member;
    for (size_t i = 0; i < json_array_size(required); i++)
        if (!json_object_get(value, json_string_value(json_array_get(required, i)))) return false;
    json_object_foreach((json_t *)value, key, member)
    {
        const json_t *one = json_object_get(properties, key);
        if (!one) one = others;
        if (one && !json_is_valid(member, one, root)) return false;
    }
    return true;
}

/* ---- all ---- */

static bool has_type(const json_t *value, const char *type)
{
    double x = json_number_value(value);
    if (strcmp(type, "null") == 0) return json_is_null(value);
    if (strcmp(type, "boolean") == 0) return json_is_boolean(value);
    if (strcmp(type, "string") == 0) return json_is_string(value);
    if (strcmp(type, "array") == 0) return json_is_array(value);
    if (strcmp(type, "object") == 0) return json_is_object(value);
    if (strcmp(type, "number") == 0) return json_is_number(value);
    if (strcmp(type, "integer") == 0) return json_is_number(value) && x == nearbyint(x);
    abort();
}

static bool type_is_valid(const json_t *value, const json_t *type)
{
    if (!type) return true;
    if (json_is_string(type)) return has_type(value, json_string_value(type));
    for (size_t i = 0; i < json_array_size(type); i++)
        if (has_type(value, json_string_value(json_array_get(type, i)))) return true;
    return false;
}

static bool same(const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b)) return json_number_value(a) == json_number_value(b);
    return json_equal(a, b);
}

static bool is_one_of(const json_t *value, const json_t *values)
{
    for (size_t i = 0; i < json_array_size(values); i++)
        if (same(value, json_array_get(values, i))) return true;
    return false;
}

static size_t count_valid(const json_t *value, const json_t *list, const json_t *root)
{
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(list); i++)
        n += json_is_valid(value, json_array_get(list, i), root);
    return n;
}

static const json_t *follow(const json_t *root, const char *ref)
{
    char name[64];
    if (strcmp(ref, "#") == 0) return root;
    if (sscanf(ref, "#/$defs/%63s", name) != 1) abort();
    return json_object_get(json_object_get(root, "$defs"), name);
}

static void check_keywords(const json_t *schema)
{
    static const char known[] =
        " type enum const minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minLength "
        "maxLength pattern format items prefixItems minItems maxItems properties required "
        "additionalProperties anyOf oneOf allOf $ref $defs title description ";
    const char *key;
    json_t *member;
    json_object_foreach((json_t *)schema, key, member)
    {
        char padded[64];
        snprintf(padded, sizeof padded, " %s ", key);
        if (!strstr(known, padded)) abort();
    }
}

bool json_is_valid(const json_t *value, const json_t *schema, const json_t *root)
{
    if (json_is_boolean(schema)) return json_is_true(schema);
    check_keywords(schema);
    const json_t *values = json_object_get(schema, "enum"),
                 *constant = json_object_get(schema, "const"),
                 *any = json_object_get(schema, "anyOf"), *one = json_object_get(schema, "oneOf"),
                 *all = json_object_get(schema, "allOf");
    if (!type_is_valid(value, json_object_get(schema, "type"))) return false;
    if (values && !is_one_of(value, values)) return false;
    if (constant && !same(value, constant)) return false;
    if (at(schema, "$ref") && !json_is_valid(value, follow(root, at(schema, "$ref")), root))
        return false;
    if (any && count_valid(value, any, root) == 0) return false;
    if (one && count_valid(value, one, root) != 1) return false;
    if (all && count_valid(value, all, root) != json_array_size(all)) return false;
    if (json_is_string(value)) return string_is_valid(value, schema);
    if (json_is_number(value)) return number_is_valid(value, schema);
    if (json_is_array(value)) return array_is_valid(value, schema, root);
    return !json_is_object(value) || object_is_valid(value, schema, root);
}
