/* What a grammar is compiled to: a pushdown automaton over bytes.
 *
 * A state has edges that read a byte, that go on without reading (jumps), and that call another
 * part: a frame is pushed, and when that part reaches state ACCEPT it is popped and the frame's
 * state is next. Every frame has one small number of its own, 0 at first: how many characters or
 * items there were, or which property may come next. An edge may ask that the number lie in one of
 * some intervals (its guard) and may change it. So lengths and orders cost no states.
 *
 * `need` is how many frames at least what the edge leads to will push: it is only taken where they
 * fit, so that what was begun can be ended. */
#ifndef CALLA_GRAMMAR_AUTOMATON_H
#define CALLA_GRAMMAR_AUTOMATON_H

#include "grammar/trie.h"

enum {
    ACCEPT = 0,          /* the state in which a part ends */
    MAX_FRAMES = 128,    /* of a stack: nesting of arrays, objects and strings */
    MAX_EDGES = 1 << 18, /* of an automaton, as of its states */
    NO_GUARD = 0,
};

typedef enum edge_kind { EDGE_BYTES, EDGE_JUMP, EDGE_CALL } edge_kind;
typedef enum edge_act {
    ACT_NONE,
    ACT_COUNT, /* number = min(number + 1, arg) */
    ACT_SET,   /* number = arg */
} edge_act;

typedef struct pda_edge {
    uint32_t target; /* of a call: where the part begins */
    uint32_t arg;    /* of the act; of a call: the state to return to */
    uint32_t guard;  /* NO_GUARD, or an index into guards */
    uint8_t kind, act;
    uint8_t lo, hi; /* EDGE_BYTES */
    uint8_t need;
} pda_edge;

/* Bytes first, so that they are found without looking at the rest. */
typedef struct pda_state {
    uint32_t first, n_bytes, n_others; /* edges */
    bool is_text;                      /* the inside of a string of JSON without a pattern */
    bool is_counted;                   /* the frame's number counts characters: */
    uint32_t min, max;                 /* how many there have to be; 0, 0 elsewhere */
    uint32_t stay;                     /* an index into stays, or 0: not known */
    bool one_way;                      /* no byte has two edges */
} pda_state;

/* What need not be followed byte by byte: any `run` characters of a set, in whatever order, may
 * come (in a state that counts them no more than still fit). The first one under `guard`, where
 * `need` frames fit. alone: only known if the state is the only place that is followed.
 *
 * Whatever else may come from the state begins with characters of the set, no more than fit, and
 * goes on with one of `exits`, or, if `ends`, with one that may come where the state's part ends.
 */
typedef struct pda_stay {
    lead_set chars, exits;
    uint32_t run;
    uint32_t guard;
    uint8_t need;
    bool alone, ends;
    bool keeps;  /* where it leads the same characters stay */
    uint8_t set; /* an index into the sets of the grammar; 0 = none */
} pda_stay;
#define STAY_FOR_EVER UINT32_MAX

typedef struct interval {
    uint32_t lo, hi; /* both included */
} interval;
typedef struct pda_guard {
    uint32_t first, n; /* intervals, ascending and apart */
} pda_guard;

typedef struct automaton {
    pda_state *states;   /* [n_states] */
    pda_edge *edges;     /* [n_edges] */
    interval *intervals; /* [n_intervals] */
    pda_guard *guards;   /* [n_guards] */
    pda_stay *stays;     /* of states; the first is none's */
    size_t n_states, n_edges, n_intervals, n_guards;
} automaton;

void automaton_free(automaton *a);
/* Fills stays and one_way, of states whose edges are there. CALLA_ERR_MEMORY is all that can go
 * wrong. */
calla_status automaton_find_stays(automaton *a);
/* Adds the characters (their first bytes) that a state reads. */
void automaton_add_reads(const automaton *a, uint32_t state, lead_set *out);
bool automaton_guard_holds(const automaton *a, uint32_t guard, uint32_t number);

/* Building. Failures stay in `failed`; indices given after one are in range but mean nothing. */
typedef struct builder {
    automaton a;
    uint32_t *next_edge, *first_edge; /* [edge], [state]: lists until builder_finish */
    size_t state_capacity, edge_capacity, interval_capacity, guard_capacity;
    size_t first_capacity, next_capacity;
    calla_status failed; /* CALLA_ERR_MEMORY, or CALLA_ERR_UNSUPPORTED: too large */
} builder;

void builder_init(builder *b);
void builder_free(builder *b);
uint32_t builder_state(builder *b);
/* Adds an edge to `from` and gives it, to be changed before the next call; NULL after a failure. */
pda_edge *builder_edge(builder *b, uint32_t from, edge_kind kind, uint32_t target);
pda_edge *builder_bytes(builder *b, uint32_t from, uint8_t lo, uint8_t hi, uint32_t target);
void builder_jump(builder *b, uint32_t from, uint32_t target);
void builder_call(builder *b, uint32_t from, uint32_t part, uint32_t back, uint8_t need);
/* The text [n] from one state into another. */
void builder_text(builder *b, uint32_t from, const char *text, size_t n, uint32_t target);
/* A guard of intervals [n] in any order; overlapping ones are joined. The array is sorted. */
uint32_t builder_guard(builder *b, interval *intervals, size_t n);
uint32_t builder_guard_one(builder *b, uint32_t lo, uint32_t hi);
/* Takes the automaton out of the builder. */
calla_status builder_finish(builder *b, automaton *out, calla_error *err);

#endif
