/* A small automaton over bytes without stack or counters: numbers, patterns, lists of literals. It
 * is deterministic: the ranges of a state's edges are disjoint. State 0 is the start. */
#ifndef CALLA_GRAMMAR_DFA_H
#define CALLA_GRAMMAR_DFA_H

#include "base/error.h"

#define DFA_NONE UINT32_MAX

typedef struct dfa_edge {
    uint32_t to, next; /* next: of the same state, or DFA_NONE */
    uint8_t lo, hi;
} dfa_edge;

typedef struct dfa_state {
    uint32_t first; /* edge, or DFA_NONE */
    bool accept;
    bool between; /* no character is under way here: the next byte begins one (or an escape) */
} dfa_state;

typedef struct dfa {
    dfa_state *states; /* [n_states] */
    dfa_edge *edges;   /* [n_edges] */
    size_t n_states, n_edges, state_capacity, edge_capacity;
    size_t max_states; /* 0 = 1 << 20 */
    bool no_memory, too_large;
} dfa;

void dfa_free(dfa *d);
/* Failures are kept in the two flags, to be looked at once at the end; what is returned then must
 * not be relied on but is in range. */
uint32_t dfa_add_state(dfa *d, bool accept);
void dfa_add_edge(dfa *d, uint32_t from, uint8_t lo, uint8_t hi, uint32_t to);
/* The target of a byte, or DFA_NONE. */
uint32_t dfa_next(const dfa *d, uint32_t from, uint8_t byte);
/* Adds the text [n] to an automaton that is a tree of such texts. */
void dfa_add_text(dfa *d, const char *text, size_t n);
/* Takes out the states from which no end can be reached. False: the start is one of them, nothing
 * is accepted. */
bool dfa_trim(dfa *d);
bool dfa_failed(const dfa *d);
/* Where a text that has none of the marks so far stands after one more byte: a state of `marks`, a
 * tree of texts (dfa_add_text) whose first byte is the same and nowhere else in them. Accepting: a
 * mark is whole. */
uint32_t dfa_mark_next(const dfa *marks, uint32_t at, uint8_t byte);
/* Takes out the texts that have a mark in them. Of nothing (n_states = 0) if none is left. */
calla_status dfa_avoid(dfa *d, const dfa *marks, calla_error *err);

#endif
