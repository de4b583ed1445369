/* From schemas to the automaton. */
#ifndef CALLA_GRAMMAR_EMIT_H
#define CALLA_GRAMMAR_EMIT_H

#include "grammar/automaton.h"
#include "grammar/dfa.h"
#include "grammar/regex.h"
#include "grammar/schema.h"

/* What is known of a schema before anything is emitted. */
typedef struct node_info {
    unsigned alive; /* the types of which there is a value; of a choice: 1 if there is any */
    uint8_t need;   /* frames that its smallest value pushes; NEED_MAX = too many */
    dfa number, text;
    bool has_text; /* strings are `text`, else any of the lengths of the schema */
    uint32_t part; /* where its values begin, or 0: not asked for yet */
    uint32_t seen; /* by the choice with this part */
} node_info;

enum { NEED_MAX = 255 };

typedef struct emitter {
    builder b;
    const schema_set *set;
    node_info *info; /* [set->n_nodes] */
    uint32_t *queue; /* [n_queued] schemas with a part that has to be filled; n_filled are */
    size_t n_queued, n_filled;
    uint32_t *among;       /* [set->n_nodes] what a choice leads to */
    uint32_t free_text[9]; /* the states inside a string of any kind (emit_text.c); 0 = not yet */
    const char *where;
    calla_error *err;
    int64_t work_left; /* for patterns */
} emitter;

calla_status emitter_init(emitter *e, const schema_set *set, const char *where, calla_error *err);
void emitter_free(emitter *e);
/* Whether anything is valid under the schema. */
bool emit_is_alive(const emitter *e, uint32_t schema);
/* The frames that a call of the schema's part pushes. */
uint8_t emit_need(const emitter *e, uint32_t schema);
/* The state in which the values of a schema begin; they end in ACCEPT. */
uint32_t emit_part(emitter *e, uint32_t schema);
/* Fills all parts asked for. */
void emit_all(emitter *e);

/* The automaton of strings under the schema s: its pattern with its lengths.
 * Nothing (n_states = 0): no string. */
calla_status text_dfa(const schema_node *s, int64_t *work_left, dfa *out, calla_error *err);
/* A string of any kind without its first quote, of min to max characters: where it begins. */
uint32_t emit_free_text(emitter *e, uint32_t min, uint32_t max);
/* Copies a trimmed automaton between two states; quoted: the last step is a quote. */
void emit_dfa(emitter *e, const dfa *d, uint32_t from, bool quoted, uint32_t target);

/* How the inside of a string goes on: in place `from`, bytes lo ... hi lead to `to`. */
typedef enum text_place {
    IN_TEXT,
    IN_1,
    IN_2,
    IN_3,
    IN_E0,
    IN_ED,
    IN_F0,
    IN_F4,
    IN_ESCAPE
} text_place;
typedef struct text_step {
    uint8_t from, lo, hi, to;
} text_step;
extern const text_step text_steps[];
extern const size_t n_text_steps;

/* One entry of an object: literal [n] begins it, and leads to `target` with the number `after`. */
typedef struct key {
    char *literal;
    size_t n;
    uint32_t target, after;
    interval when; /* the numbers with which it may come */
    uint8_t need;
    bool blocked; /* it may never come, and no other may be taken for it */
} key;
/* Keys that are not listed: what may begin one, where it leads. */
typedef struct other_keys {
    bool allowed;
    interval when;
    uint32_t after, colon; /* the state before the ':' */
    uint8_t need;
} other_keys;
/* The choice among keys [n], from one state. */
void emit_keys(emitter *e, uint32_t from, const key *keys, size_t n, const other_keys *others);
void emit_object(emitter *e, const schema_node *s, uint32_t from, uint8_t need);

#endif
