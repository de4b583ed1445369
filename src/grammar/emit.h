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

/* Where one is inside a string. */
typedef enum text_place {
    IN_TEXT,
    IN_1, /* so many bytes of a character are missing, the next one any that may come there */
    IN_2,
    IN_3,
    IN_E0, /* behind this byte */
    IN_ED,
    IN_F0,
    IN_F4,
    IN_ESCAPE,
    IN_LESS, /* in_call: behind '<', where no '/' may come but as an escape */
    N_TEXT_PLACES
} text_place;

typedef struct emitter {
    builder b;
    const schema_set *set;
    node_info *info; /* [set->n_nodes] */
    uint32_t *queue; /* [n_queued] schemas with a part that has to be filled; n_filled are */
    size_t n_queued, n_filled;
    uint32_t *among; /* [set->n_nodes] what a choice leads to */
    /* The states inside a string of any kind (emit_text.c); 0 = not yet. */
    uint32_t free_text[N_TEXT_PLACES];
    /* Values of a tool call (emit_call.c): nothing in them may look like the tags around them. */
    bool in_call;
    dfa marks;         /* of in_call: the texts that may not come, as a tree */
    uint32_t raw_text; /* of in_call: any text, without quotes; 0 = not yet */
    const char *where;
    calla_error *err;
    int64_t work_left; /* for patterns */
} emitter;

/* *e is zero but for its builder, which is begun, work_left, and what emit_begin_call sets. */
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
calla_status text_dfa(const schema_node *s, text_spelling spelling, int64_t *work_left, dfa *out,
                      calla_error *err);
/* A string of any kind without its first quote, of min to max characters: where it begins. */
uint32_t emit_free_text(emitter *e, uint32_t min, uint32_t max);
/* Puts the place of the pattern or format of s before the error of a status. */
calla_status emit_add_pattern_place(const emitter *e, const schema_node *s, calla_status status);
/* Appends a value's JSON, spelled as this grammar needs it. */
void emit_spell(const emitter *e, const json_t *value, strbuf *out);
/* Tells that a state counts the characters of a text. */
void emit_count(builder *b, uint32_t state, uint32_t min, uint32_t max);
/* Copies a trimmed automaton between two states; quoted: the last step is a quote. */
void emit_dfa(emitter *e, const dfa *d, uint32_t from, bool quoted, uint32_t target);

/* How the inside of a string goes on: in place `from`, bytes lo ... hi lead to `to`. */
typedef struct text_step {
    uint8_t from, lo, hi, to;
} text_step;
const text_step *emit_text_steps(const emitter *e, size_t *n);
/* Whether no character is under way. */
static inline bool text_is_between(uint8_t place)
{
    return place == IN_TEXT || place == IN_LESS;
}

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

/* The values of the given types that a schema without enum allows, into ACCEPT; and the frames that
 * the smallest of them pushes. */
void emit_types(emitter *e, uint32_t schema, unsigned types, uint32_t from);
unsigned emit_types_need(const emitter *e, uint32_t schema, unsigned types);

/* ---- calls of tools ---- */

/* Begins a call's grammar: the marks of in_call. */
calla_status emit_begin_call(emitter *e);
/* Texts of min to max characters (not quoted, without marks), into ACCEPT; the first character is
 * none of not_first. Gives where they begin. */
uint32_t emit_raw_text(emitter *e, uint32_t min, uint32_t max, const char *not_first);
/* The inside of a call of `tool` (with its parameters, a schema of number `top`) from behind
 * "<function=NAME>\n" into ACCEPT. CALLA_ERR_INPUT: it cannot be held to its schema. */
calla_status emit_call(emitter *e, const json_t *tool, uint32_t top, uint32_t from);
/* The same for a tool whose arguments may be anything. */
void emit_free_call(emitter *e, uint32_t from);

#endif
