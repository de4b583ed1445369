/* A regular expression as a tree. */
#ifndef CALLA_GRAMMAR_REGEX_PARSE_H
#define CALLA_GRAMMAR_REGEX_PARSE_H

#include "grammar/charset.h"

#define REGEX_NO_MAX UINT32_MAX
enum {
    REGEX_MAX_BYTES = 4096,
    REGEX_MAX_DEPTH = 64,    /* of groups */
    REGEX_MAX_REPEAT = 4096, /* {n} */
};

typedef enum regex_kind {
    REGEX_EMPTY,
    REGEX_SET,    /* a: index of the set */
    REGEX_CAT,    /* a, then b */
    REGEX_ALT,    /* a or b */
    REGEX_REPEAT, /* a, min to max times */
} regex_kind;
typedef struct regex_node {
    regex_kind kind;
    uint32_t a, b;
    uint32_t min, max; /* REGEX_NO_MAX = any number */
} regex_node;

typedef struct regex_tree {
    regex_node *nodes; /* [n_nodes] */
    charset *sets;     /* [n_sets] normalized */
    size_t n_nodes, n_sets, node_capacity, set_capacity;
    uint32_t root;
} regex_tree;

void regex_tree_free(regex_tree *t);
calla_status regex_parse(const char *pattern, size_t n_bytes, regex_tree *t, calla_error *err);

#endif
