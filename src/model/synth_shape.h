/* The shapes of synthetic checkpoints and their small JSON files. */
#ifndef CALLA_MODEL_SYNTH_SHAPE_H
#define CALLA_MODEL_SYNTH_SHAPE_H

#include "model/config.h"

typedef struct synth_shape {
    const char *name;
    int32_t hidden_size, n_vocab, n_layers;
    int32_t n_query_heads, n_kv_heads, n_key_heads, n_value_heads;
    int32_t n_experts, n_experts_per_token, expert_width, shared_expert_width;
    int32_t max_positions;
    int32_t n_base_tokens; /* of the tokenizer, before the added ones */
    int32_t n_unreachable; /* of them, without a merge */
    float logit_deviation; /* 0.8 sqrt(2 ln n_vocab): an entropy of a third of ln n_vocab */
} synth_shape;

enum {
    N_ADDED_TOKENS = 33,       /* MODEL.md 5.2 */
    N_ADDED_IN_TOKENIZER = 26, /* of them in tokenizer.json, the rest in tokenizer_config.json */
};

/* NULL if there is none of that name; synth_shape_names lists them for messages. */
const synth_shape *synth_shape_find(const char *name);
extern const char synth_shape_names[];

/* config.json of layout BF16 (MODEL.md 1.2, 1.3 without vision_config), malloc'ed. */
calla_status synth_config_text(const synth_shape *shape, int32_t n_layers, char **text,
                               size_t *n_bytes, calla_error *err);
/* generation_config.json (MODEL.md 1.4). */
calla_status synth_generation_text(const synth_shape *shape, char **text, size_t *n_bytes,
                                   calla_error *err);

#endif
