/* A validator of JSON schemas of its own, to compare grammars with: it knows values, not texts, and
 * shares no code with src/grammar. */
#ifndef CALLA_TESTS_JSON_VALIDATOR_H
#define CALLA_TESTS_JSON_VALIDATOR_H

#include <jansson.h>
#include <stdbool.h>

/* Whether `value` is valid under `schema`; references are into `root`. Aborts on a keyword that it
 * does not know. */
bool json_is_valid(const json_t *value, const json_t *schema, const json_t *root);

#endif
