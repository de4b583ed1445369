/* What the text decoder is made of, from the configuration alone (MODEL.md 2): one list that the
 * loader, the quantizer, synthetic checkpoints and size computations share. */
#ifndef CALLA_MODEL_INVENTORY_H
#define CALLA_MODEL_INVENTORY_H

#include "model/config.h"

typedef enum part_kind {
    PART_MATRIX,    /* [rows][cols] linear layer; quantised in layout MLX4 */
    PART_EMBEDDING, /* the same, of which a token reads one row */
    PART_EXPERTS,   /* [n_experts][rows][cols], the same */
    PART_NORM,      /* [rows], stored as multiplier or multiplier - 1 (MODEL.md 2.2 item 5) */
    PART_VECTOR,    /* [rows], stored as it is used */
    PART_CONV,      /* [rows][4] */
} part_kind;

typedef struct part {
    part_kind kind;
    const char *stem; /* name below its prefix; linear parts add ".weight" (and in layout MLX4
                         ".scales", ".biases"), others are complete */
    int32_t rows, cols;
    size_t offset; /* of its view: in layer_weights (layer parts) or model_weights (outer parts) */
} part;

enum { MAX_LAYER_PARTS = 20, N_OUTER_PARTS = 3 };

/* The parts of one layer, in the model's order; returns how many. Their names follow
 * "layers.N." below the model's prefix. */
int32_t layer_parts(const model_config *c, bool is_attention, part parts[MAX_LAYER_PARTS]);

/* embed_tokens and norm (below the model's prefix), lm_head (below the head's). */
void outer_parts(const model_config *c, part parts[N_OUTER_PARTS]);

/* Matrices, embedding and experts. */
static inline bool part_is_linear(const part *p)
{
    return p->kind <= PART_EXPERTS;
}

/* Totals of a checkpoint whose vectors are all bf16 (MODEL.md 2.2). */
typedef struct model_sizes {
    int64_t n_tensors;    /* of the text decoder in this layout */
    int64_t n_parameters; /* of the text decoder */
    int64_t text_bytes, expert_bytes;
    int64_t token_bytes;          /* weights read per decoded token */
    int64_t token_operations;     /* of the layers for one token, a multiply-add counting two, */
    int64_t attention_operations; /* and for each token it sees in addition */
} model_sizes;

void model_sizes_compute(const model_config *c, calla_layout layout, model_sizes *sizes);

#endif
