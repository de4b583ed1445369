/* The numbers that a schema allows, as an automaton of their digits. Written without exponents
 * where there are bounds; integers have up to 19 digits and 64 bits, others at most 15 digits, so
 * that no two of them become the same double and bounds hold after rounding, too. */
#ifndef CALLA_GRAMMAR_NUMBER_DFA_H
#define CALLA_GRAMMAR_NUMBER_DFA_H

#include "base/json.h"
#include "grammar/dfa.h"

enum {
    NUMBER_MAX_DIGITS = 15, /* of one that need not be an integer */
    INTEGER_MAX_DIGITS = 19,
    MAX_MULTIPLE = 1000, /* of multipleOf, in units of its last digit */
};

typedef struct number_limits {
    bool integers_only;
    const json_t *minimum, *maximum, *multiple; /* NULL = none */
    bool exclusive_minimum, exclusive_maximum;
} number_limits;

/* Of nothing (n_states = 0) if no number is allowed. CALLA_ERR_UNSUPPORTED begins with the keyword
 * that cannot be held. */
calla_status number_dfa(const number_limits *limits, dfa *out, calla_error *err);

#endif
