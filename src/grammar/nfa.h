/* An automaton over bytes that may be in several states at once, and its deterministic form. */
#ifndef CALLA_GRAMMAR_NFA_H
#define CALLA_GRAMMAR_NFA_H

#include "grammar/dfa.h"

#define NFA_NONE UINT32_MAX
enum {
    NFA_MAX_STATES = 1 << 18,
    NFA_MAX_SUBSETS = 1 << 14, /* states of its deterministic form */
};

typedef enum nfa_kind { NFA_BYTES, NFA_SPLIT, NFA_MATCH, NFA_DEAD } nfa_kind;
typedef struct nfa_state {
    uint32_t a, b; /* where to: of NFA_SPLIT both, NFA_NONE = nowhere */
    uint8_t kind, lo, hi;
    bool begins; /* the byte begins a character */
} nfa_state;

typedef struct nfa {
    nfa_state *states; /* [n] */
    size_t n, capacity;
    bool no_memory, too_large;
} nfa;

void nfa_free(nfa *n);
bool nfa_failed(const nfa *n);
/* After a failure they give 0. */
uint32_t nfa_add_bytes(nfa *n, uint8_t lo, uint8_t hi, uint32_t next, bool begins);
uint32_t nfa_add_split(nfa *n, uint32_t a, uint32_t b);
void nfa_set_split(nfa *n, uint32_t split, uint32_t a);
uint32_t nfa_add_match(nfa *n);
uint32_t nfa_add_dead(nfa *n);

/* The same language, deterministic and trimmed; of nothing if nothing is accepted (out->n_states
 * = 0). Visits of states are taken from *work_left, which bounds the time. CALLA_ERR_UNSUPPORTED if
 * it takes too many states or too much work. */
calla_status nfa_determinize(const nfa *n, uint32_t start, int64_t *work_left, dfa *out,
                             calla_error *err);

#endif
