/* Tool parameters: what their JSON schema says about their type, and the conversion of the text a
 * model wrote to a JSON value of that type. */
#ifndef CALLA_MODEL_CHAT_VALUE_H
#define CALLA_MODEL_CHAT_VALUE_H

#include "base/json.h"

typedef enum value_kind {
    VALUE_STRING,
    VALUE_INTEGER,
    VALUE_NUMBER,
    VALUE_BOOLEAN,
    VALUE_OBJECT,
    VALUE_ARRAY,
    VALUE_NULL,
    VALUE_KINDS,
} value_kind;

/* The kinds a schema allows, in its order. None: it says nothing, or there is no schema. */
typedef struct value_types {
    value_kind kinds[VALUE_KINDS]; /* [n] distinct */
    int n;
} value_types;

/* The tool called `name` in a list of tools (NULL = none): the object with its name and parameters,
 * or NULL. */
const json_t *tool_find(const json_t *tools, const char *name, size_t n_name);
/* Whether the tool (NULL allowed) declares its parameters. */
bool tool_has_parameters(const json_t *tool);
/* What it says about a parameter; *known tells whether it is declared. Understands type, anyOf,
 * oneOf, allOf, enum, const, nullable, additionalProperties and local $ref. */
void tool_parameter_types(const json_t *tool, const char *name, size_t n_name, value_types *types,
                          bool *known);

/* Appends the JSON value that the whole text means:
 * - null (or None) if null is among the types, else the first type that the text parses as, else a
 *   string. Python's True and False are taken for booleans, an integral real for an integer.
 * - without types, what the text parses as in JSON if that is not a string and nothing surrounds
 * it, else a string. */
void value_write(strbuf *out, const value_types *types, const char *text, size_t n_bytes);

/* Decides byte by byte whether a text can only become a string, so that it may be passed on while
 * it comes in. */
typedef enum value_guess { GUESS_NONE, GUESS_STRING, GUESS_WAIT } value_guess;
typedef struct value_guesser {
    value_types types;
    value_guess guess;   /* NONE: nothing but whitespace (or part of a keyword) so far */
    const char *keyword; /* "true" ... that the text started as, or NULL */
    int n_matched;
} value_guesser;
void value_guesser_init(value_guesser *g, const value_types *types);
/* Looks at further bytes. GUESS_WAIT is final too: the value has to be seen whole. */
void value_guesser_feed(value_guesser *g, const char *text, size_t n_bytes);

#endif
