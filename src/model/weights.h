/* The tensors of a checkpoint as the model uses them: views into the map, nothing converted
 * (MODEL.md 2). Both layouts give the same structure. */
#ifndef CALLA_MODEL_WEIGHTS_H
#define CALLA_MODEL_WEIGHTS_H

#include "base/numbers.h"
#include "model/config.h"
#include "model/safetensors.h"

typedef enum matrix_format {
    MATRIX_Q4,   /* codes [rows][cols/2] u8, even column in the low nibble; scales, biases */
    MATRIX_Q8,   /* codes [rows][cols] u8; scales, biases */
    MATRIX_BF16, /* codes [rows][cols] bf16; scales, biases NULL */
} matrix_format;

/* W[rows][cols], y = W x. Value of a quantised element: scale * code + bias, one scale and bias
 * (bf16) per QUANT_GROUP columns (MODEL.md 2.2). */
typedef struct matrix {
    matrix_format format;
    int32_t rows, cols;
    const void *codes;                  /* no alignment */
    const mapped_bf16 *scales, *biases; /* [rows][cols/64] */
} matrix;

/* Bytes of one row of codes. */
static inline size_t matrix_row_bytes(const matrix *m)
{
    size_t cols = (size_t)m->cols;
    return m->format == MATRIX_Q4 ? cols / 2 : m->format == MATRIX_Q8 ? cols : cols * 2;
}

/* Bytes of all of it: codes, scales, biases. */
static inline size_t matrix_bytes(const matrix *m)
{
    size_t scales = m->format == MATRIX_BF16 ? 0 : (size_t)m->cols / QUANT_GROUP * 4;
    return (size_t)m->rows * (matrix_row_bytes(m) + scales);
}

/* Rows [first, first + rows) of m. */
static inline matrix matrix_rows(const matrix *m, int64_t first, int32_t rows)
{
    matrix r = *m;
    r.rows = rows;
    r.codes = (const unsigned char *)m->codes + (size_t)first * matrix_row_bytes(m);
    if (m->scales) {
        r.scales += (size_t)first * (size_t)(m->cols / QUANT_GROUP);
        r.biases += (size_t)first * (size_t)(m->cols / QUANT_GROUP);
    }
    return r;
}

/* One matrix per expert, `row_stride` rows apart (layout BF16 interleaves gate and up). */
typedef struct expert_matrices {
    matrix first; /* of expert 0 */
    int64_t row_stride;
} expert_matrices;

static inline matrix expert_matrix(const expert_matrices *m, int32_t expert)
{
    return matrix_rows(&m->first, m->row_stride * expert, m->first.rows);
}

/* A small vector, bf16 or f32 in the file. */
typedef struct vector_view {
    const void *data; /* no alignment: read with vector_at */
    int32_t n;
    bool is_f32; /* else bf16 */
} vector_view;

float vector_at(const vector_view *v, int32_t i);

/* A norm's multiplier: stored directly (layout MLX4) or as multiplier - 1 (BF16, MODEL.md 3.2). */
typedef struct norm_view {
    vector_view weight;
    bool add_one;
} norm_view;

/* The factor that multiplies x * r. */
float norm_factor(const norm_view *v, int32_t i);

typedef struct attention_weights {
    matrix q, k, v, o; /* [2*query_size][D] q and gate per head, [kv_size][D] x2, [D][query_size] */
    norm_view q_norm, k_norm; /* [256] */
} attention_weights;

typedef struct gdn_weights {
    matrix qkv, z, b, a, out; /* [conv_channels][D], [value_size][D], [Hv][D] x2, [D][value_size] */
    vector_view conv;         /* [conv_channels][4], oldest tap first */
    vector_view a_log, dt_bias; /* [Hv] */
    norm_view norm;             /* [128], never add_one */
} gdn_weights;

typedef struct moe_weights {
    matrix router;                              /* [E][D] */
    expert_matrices gate, up;                   /* [F][D] each */
    expert_matrices down;                       /* [D][F] each */
    matrix shared_gate, shared_up, shared_down; /* [Fs][D] x2, [D][Fs] */
    matrix shared_expert_gate;                  /* [1][D] */
} moe_weights;

typedef struct layer_weights {
    bool is_attention;
    norm_view input_norm, post_norm; /* [D] */
    attention_weights attention;     /* if is_attention */
    gdn_weights gdn;                 /* else */
    moe_weights moe;
} layer_weights;

typedef struct model_weights {
    model_config config;
    tensor_set tensors;
    layer_weights *layers; /* [n_layers] */
    matrix embedding;      /* [V][D] */
    matrix head;           /* [V][D] */
    norm_view final_norm;  /* [D] */
    int32_t n_skipped;     /* vision and draft-head tensors */
    bool resident;         /* all that the model uses is in memory (residence.h) */
    int64_t skipped_bytes, text_bytes, expert_bytes, token_bytes, n_parameters;
} model_weights;

/* Opens and validates everything; errors name file, tensor and values. The map stays open until
 * close. */
calla_status model_weights_open(const char *dir, model_weights *weights, calla_error *err);
/* The same from a configuration and tensors already opened, which it takes over, in failure too. */
calla_status model_weights_adopt(const model_config *config, tensor_set *tensors,
                                 model_weights *weights, calla_error *err);
void model_weights_close(model_weights *weights);

/* One row of a matrix dequantised exactly: out [cols] f32. */
void matrix_dequantize_row(const matrix *m, int64_t row, float *out);

#endif
