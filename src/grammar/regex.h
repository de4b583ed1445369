/* Patterns to automata over the bytes that spell a string.
 *
 * What ECMA-262's regular expressions and those of other JSON schema tools agree on: literals, `.`,
 * classes, \d \w \s and their opposites, escapes, groups, alternatives, greedy or lazy quantifiers,
 * and ^ and $ at the ends of a whole alternative. An alternative without them matches anywhere in
 * the string, as JSON schema says. Look-around, back references, \b and \p are refused. */
#ifndef CALLA_GRAMMAR_REGEX_H
#define CALLA_GRAMMAR_REGEX_H

#include "grammar/dfa.h"

enum { PATTERN_MAX_WORK = 10000000 };

/* How the characters of a string are written. */
typedef enum text_spelling {
    SPELLED_JSON, /* as between quotes: ", \ and controls are escaped, in one way each */
    SPELLED_RAW,  /* as they are */
} text_spelling;

/* The automaton of the strings that match pattern [n_bytes] (UTF-8); there is no NUL in them.
 * CALLA_ERR_UNSUPPORTED says what the pattern has that is not supported, or that it is too large.
 * *work_left is PATTERN_MAX_WORK at first, for all patterns of a schema. */
calla_status regex_compile(const char *pattern, size_t n_bytes, text_spelling spelling,
                           int64_t *work_left, dfa *out, calla_error *err);

/* The pattern of a format of JSON schema ("date", "uuid" ...), or NULL. */
const char *format_pattern(const char *name);

#endif
