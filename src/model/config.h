/* config.json of a checkpoint, validated (MODEL.md 1). */
#ifndef CALLA_MODEL_CONFIG_H
#define CALLA_MODEL_CONFIG_H

#include <calla/model.h>

/* Sizes the architecture fixes; a checkpoint with others is refused. */
enum {
    ATTENTION_HEAD_DIM = 256,
    ROTARY_DIMS = 64,
    GDN_HEAD_DIM = 128, /* of keys and of values */
    CONV_TAPS = 4,
    QUANT_GROUP = 64,
    MAX_LAYERS = 256,
    MAX_EXPERTS = 1024,
    MAX_EXPERTS_PER_TOKEN = 64,
    MAX_STOP_IDS = 16,
};

typedef struct model_config {
    calla_layout layout;         /* MLX4 if config.json has a "quantization" object, else BF16 */
    int32_t hidden_size;         /* D, multiple of 64 */
    int32_t n_vocab;             /* V */
    int32_t n_layers;            /* L */
    int32_t n_query_heads;       /* Hq, multiple of Hkv */
    int32_t n_kv_heads;          /* Hkv */
    int32_t n_key_heads;         /* Hk */
    int32_t n_value_heads;       /* Hv, multiple of Hk */
    int32_t n_experts;           /* E */
    int32_t n_experts_per_token; /* k <= E */
    int32_t expert_width;        /* F, multiple of 64 */
    int32_t shared_expert_width; /* Fs, multiple of 64 */
    int32_t max_positions;
    float rms_eps;
    double rope_theta;
    bool is_attention[MAX_LAYERS]; /* [n_layers] full attention, else GDN */
    int32_t n_attention_layers;
    int32_t stop_ids[MAX_STOP_IDS]; /* [n_stop_ids] eos_token_id, top level before text_config */
    int32_t n_stop_ids;
    /* Derived. */
    int32_t query_size;    /* Hq * 256 */
    int32_t kv_size;       /* Hkv * 256 */
    int32_t key_size;      /* Hk * 128 */
    int32_t value_size;    /* Hv * 128 */
    int32_t conv_channels; /* 2 * key_size + value_size */
} model_config;

/* Parses and validates the text of a config.json; `path` names it in errors, which say which field
 * has which value where which was expected. */
calla_status model_config_parse(const char *text, size_t n_bytes, const char *path,
                                model_config *config, calla_error *err);
/* The same from dir/config.json. */
calla_status model_config_read(const char *dir, model_config *config, calla_error *err);

/* Bits of a quantised matrix in layout MLX4 by its name's ending (MODEL.md 2.2: 8 for mlp.gate and
 * mlp.shared_expert_gate, else 4). `stem` is the tensor name without ".weight". */
int quantized_bits(const char *stem);

/* Whether a tensor belongs to the vision tower or the draft head (MODEL.md 2.1, 2.2): skipped. */
bool is_skipped_name(const char *name);

#endif
