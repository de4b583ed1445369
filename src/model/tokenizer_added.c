/* Added tokens in the text (MODEL.md 5.2, 5.3 rule 1): a tree of their bytes. */
#include "base/memory.h"
#include "model/tokenizer.h"

#include <assert.h>
#include <stdlib.h>

/* The child of `node` for a byte, or 0. */
static uint32_t find_child(const added_tree *tree, uint32_t node, unsigned char byte)
{
    if (tree->n_nodes == 0) return 0;
    uint32_t child = tree->nodes[node].child;
    while (child && tree->nodes[child].byte != byte) child = tree->nodes[child].sibling;
    return child;
}

static calla_status add_node(added_tree *tree, added_node node, calla_error *err)
{
    CALLA_TRY(mem_grow((void **)&tree->nodes, &tree->capacity, tree->n_nodes + 1,
                       sizeof tree->nodes[0], "added tokens", err));
    tree->nodes[tree->n_nodes++] = node;
    return CALLA_OK;
}

calla_status added_insert(added_tree *tree, const char *text, size_t n_bytes, int32_t id,
                          int32_t *id_before, calla_error *err)
{
    assert(n_bytes > 0 && n_bytes <= TOKENIZER_MAX_ADDED_BYTES);
    if (tree->n_nodes == 0) CALLA_TRY(add_node(tree, (added_node){0, -1, 0, 0}, err));
    uint32_t at = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        unsigned char byte = (unsigned char)text[i];
        uint32_t child = find_child(tree, at, byte);
        if (!child) {
            child = (uint32_t)tree->n_nodes;
            CALLA_TRY(add_node(tree, (added_node){byte, -1, 0, tree->nodes[at].child}, err));
            tree->nodes[at].child = child;
        }
        at = child;
    }
    *id_before = tree->nodes[at].id;
    if (*id_before < 0) tree->nodes[at].id = id;
    tree->starts[(unsigned char)text[0]] = true;
    return CALLA_OK;
}

int32_t added_match(const added_tree *tree, const char *text, size_t n_bytes, size_t *length)
{
    int32_t id = -1;
    uint32_t at = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        at = find_child(tree, at, (unsigned char)text[i]);
        if (!at) break;
        if (tree->nodes[at].id >= 0) {
            id = tree->nodes[at].id;
            *length = i + 1;
        }
    }
    return id;
}

int32_t added_find(const added_tree *tree, const char *text, size_t n_bytes)
{
    size_t length;
    int32_t id = added_match(tree, text, n_bytes, &length);
    return id >= 0 && length == n_bytes ? id : -1;
}

void added_deinit(added_tree *tree)
{
    free(tree->nodes);
    *tree = (added_tree){0};
}
