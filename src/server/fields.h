/* Reading the fields of a JSON request: every field is known and has the right kind, or the request
 * is refused with the field's name. */
#ifndef CALLA_SERVER_FIELDS_H
#define CALLA_SERVER_FIELDS_H

#include "base/json.h"
#include "server/api_error.h"

/* One known field: `read` gets its value, which is not null, and the place it is written to. */
typedef bool field_read_fn(const json_t *value, const char *name, void *into, api_error *e);
typedef struct field {
    const char *name; /* NULL ends a list */
    field_read_fn *read;
} field;

/* Reads an object with the fields of the lists (NULL-terminated); null counts as absent. `place` is
 * the object's own name with a dot ("stream_options."), or "". What is in no list is a 400. */
bool fields_read(const json_t *object, const char *place, const field *const *lists, void *into,
                 api_error *e);

/* Values; *out is set on success only. */
bool field_bool(const json_t *value, const char *name, bool *out, api_error *e);
bool field_int(const json_t *value, const char *name, int64_t low, int64_t high, int64_t *out,
               api_error *e);
bool field_number(const json_t *value, const char *name, double low, double high, float *out,
                  api_error *e);
/* The string stays the value's. It is UTF-8 without NUL. */
bool field_string(const json_t *value, const char *name, const char **out, api_error *e);

/* Fields whose value changes nothing: a string; an object. And one that must be absent or null. */
bool field_ignore_string(const json_t *value, const char *name, void *into, api_error *e);
bool field_ignore_object(const json_t *value, const char *name, void *into, api_error *e);
bool field_refuse(const json_t *value, const char *name, void *into, api_error *e);

/* The depth of nesting of a JSON text, found without parsing it: at most `limit` + 1. *n_values: as
 * many values and keys it has at most, up to where that was found. */
int json_text_depth(const char *text, size_t n_bytes, int limit, int64_t *n_values);

#endif
