/* JSON schemas, read: every keyword is understood or refused by name. Recursive schemas are graphs,
 * so schemas are numbered.
 *
 * What is understood (docs/server.md lists it for users) becomes either a choice of other schemas
 * or one set of conditions without combinations in it: $ref beside other keywords, allOf, and what
 * stands beside anyOf are merged into that form here. A schema may come out narrower than it was
 * written (whoever constrains numbers means numbers), never wider. */
#ifndef CALLA_GRAMMAR_SCHEMA_H
#define CALLA_GRAMMAR_SCHEMA_H

#include "base/json.h"

enum {
    SCHEMA_MAX_NODES = 10000, /* subschemas, merged ones included; as many may be written */
    SCHEMA_MAX_LINKS = 20000, /* alternatives and first items of all of them */
    SCHEMA_MAX_VALUES = 5000, /* of enums */
    SCHEMA_MAX_PROPERTIES = 5000,
    SCHEMA_MAX_NAMES = 1 << 20, /* bytes of the names of properties */
    SCHEMA_RECENT = 64,         /* schemas that others may turn out to be the same as */
    SCHEMA_ANY = 0,             /* the schemas numbered so: of everything, of nothing */
    SCHEMA_NONE = 1,
};
#define NO_LIMIT UINT32_MAX

enum {
    TYPE_NULL = 1,
    TYPE_BOOLEAN = 2,
    TYPE_OBJECT = 4,
    TYPE_ARRAY = 8,
    TYPE_STRING = 16,
    TYPE_INTEGER = 32,
    TYPE_NUMBER = 64, /* integers included: TYPE_INTEGER is always set with it */
    TYPE_ALL = 127,
};

typedef struct schema_property {
    const json_t *name; /* a string */
    uint32_t schema;
    bool required;
} schema_property;

typedef struct schema_node {
    /* A choice: any of alternatives [n_alternatives], and nothing else of this structure. */
    bool is_choice;
    bool open;   /* it is still being read */
    char *place; /* where it is written, for errors, if it has a pattern, values or limits of
                    numbers */
    uint32_t *alternatives;
    size_t n_alternatives;

    unsigned types; /* TYPE_ bits; 0 = nothing is valid */
    bool implied;   /* as written, values of other types than `types` would be valid, too */
    json_t *values; /* an array: only these; or NULL */
    /* Numbers; bounds as numbers of JSON, NULL = none. */
    const json_t *minimum, *maximum, *multiple;
    bool exclusive_minimum, exclusive_maximum;
    /* Strings. */
    uint32_t min_length, max_length;
    const char *pattern; /* its own, or that of its format; or NULL */
    bool is_format;
    size_t n_pattern;
    /* Arrays: prefix [n_prefix] for the first items, `items` for the others. */
    uint32_t min_items, max_items;
    uint32_t *prefix;
    size_t n_prefix;
    uint32_t items;
    /* Objects. */
    schema_property *properties; /* [n_properties] in the order in which they are written */
    size_t n_properties;
    uint32_t additional; /* of all others */
} schema_node;

/* What was read, or merged, already. */
typedef struct schema_memo {
    const json_t *json; /* read: its number; NULL: merged a and b */
    uint32_t a, b, number;
} schema_memo;

typedef struct schema_set {
    schema_node **nodes; /* [n_nodes] */
    size_t n_nodes;
    /* Inside. */
    size_t capacity;
    const json_t *root;
    schema_memo *memo; /* [n_memo] */
    size_t n_memo, memo_capacity;
    json_t *owned;                 /* an array: values that were made here */
    size_t n_values, n_properties; /* of all nodes */
    size_t n_read, n_links, n_name_bytes;
    uint32_t recent[SCHEMA_RECENT]; /* 0 = none */
    size_t n_recent;
    int64_t work_left; /* comparisons for oneOf */
} schema_set;

/* Reads `root`, named `place` in errors, which begin with the place of what they are about. The
 * set refers to the JSON. *top is the number of the schema. */
calla_status schema_read(const json_t *root, const char *place, schema_set *set, uint32_t *top,
                         calla_error *err);
void schema_set_free(schema_set *set);

/* ---- among the files of the reader ---- */

/* A place: the one around it, and its name in there. */
typedef struct schema_place {
    const struct schema_place *outer;
    const char *name;
    int64_t index; /* name NULL */
} schema_place;

typedef struct schema_reader {
    schema_set *set;
    const char *where;
    calla_error *err;
    int depth;
} schema_reader;

calla_status schema_refuse(const schema_reader *r, const schema_place *at, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Keeps the place in s, as errors write it. */
calla_status schema_keep_place(schema_reader *r, const schema_place *at, schema_node *s);
calla_status schema_add(schema_reader *r, schema_node **node, uint32_t *number);
/* Counts n alternatives or first items against what all may have together. */
calla_status schema_count_links(schema_reader *r, size_t n);
calla_status schema_add_memo(schema_reader *r, schema_memo memo, size_t *index);
calla_status schema_read_node(schema_reader *r, const json_t *json, const schema_place *at,
                              uint32_t *number);
/* Reads all but references and combinations: schema_fields.c. *any: nothing was said. */
calla_status schema_read_fields(schema_reader *r, const json_t *json, const schema_place *at,
                                schema_node *s, bool *any);
/* A choice of one is what it chooses. */
uint32_t schema_unwrap(const schema_set *set, uint32_t number);
/* What is valid under both. */
calla_status schema_merge(schema_reader *r, const schema_place *at, uint32_t a, uint32_t b,
                          uint32_t *number);
/* Takes out the values that the other conditions exclude. */
calla_status schema_filter_values(schema_reader *r, const schema_place *at, schema_node *s);
/* Below, at or above 0; integers exactly. A number that is not there counts as 0. */
int schema_compare_numbers(const json_t *a, const json_t *b);
/* Whether nothing that is generated from one can be valid under the other. */
bool schema_disjoint(schema_set *set, uint32_t a, uint32_t b);
/* Appends. */
calla_status schema_add_alternative(schema_reader *r, schema_node *s, uint32_t alternative);
calla_status schema_add_property(schema_reader *r, schema_node *s, const json_t *name,
                                 uint32_t node, bool required);
schema_property *schema_find_property(const schema_node *s, const json_t *name);

#endif
