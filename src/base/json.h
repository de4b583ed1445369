/* JSON in, by jansson with our limits, and JSON out in the form of Python's json.dumps.
 *
 * What is read: RFC 8259 with any value on top. Objects keep the order of their keys; of duplicate
 * keys the last value wins, at the first one's place, as in Python. Nesting is limited to
 * JSON_MAX_DEPTH. NUL characters in strings are kept; refused, where Python is laxer: NUL in a key,
 * lone surrogates, NaN and Infinity, and reals beyond a double's range.
 *
 * Integers may have up to JSON_MAX_DIGITS digits, as in Python, but jansson stops at 64 bits. A
 * larger one becomes an object with one key that no parsed text can have, and json_write_value
 * writes its digits. So code that takes a value for an object asks json_is_mapping, not
 * json_is_object; to all other code it is a value of an unexpected kind. */
#ifndef CALLA_BASE_JSON_H
#define CALLA_BASE_JSON_H

#include "base/strbuf.h"

#include <jansson.h>

enum {
    JSON_MAX_DEPTH = JSON_PARSER_MAX_DEPTH, /* 2048: bounds the recursion of all tree walks */
    JSON_MAX_DIGITS = 4300,                 /* of an integer; Python's sys.int_info default */
};

/* Parses text [n_bytes], which `what` names in errors; they say line and byte offset. *value is
 * owned by the caller (json_decref). */
calla_status json_parse_text(const char *text, size_t n_bytes, const char *what, json_t **value,
                             calla_error *err);
/* The same, but a key that an object has twice is an error; there the last one counts. */
calla_status json_parse_unique(const char *text, size_t n_bytes, const char *what, json_t **value,
                               calla_error *err);

/* Whether `value` is an integer that does not fit jansson's. */
bool json_is_big_integer(const json_t *value);
/* Whether `value` is an object of the text. */
bool json_is_mapping(const json_t *value);
/* Whether `value` is the string `text`. NULL is not. */
bool json_is_text(const json_t *value, const char *text);
/* What the kind of `value` is called in messages to users: "an object", "a string" ... */
const char *json_kind_name(const json_t *value);

/* Append `value` as json.dumps(value, ensure_ascii=False) writes it: ", " and ": " between,
 * shortest doubles in Python's repr form, \u00XX for control characters. */
void json_write_value(strbuf *out, const json_t *value);
/* A string with its quotes, and without: text [n_bytes] is UTF-8. */
void json_write_string(strbuf *out, const char *text, size_t n_bytes);
void json_write_escaped(strbuf *out, const char *text, size_t n_bytes);
/* repr(x) of a finite double. */
void json_write_real(strbuf *out, double x);

#endif
