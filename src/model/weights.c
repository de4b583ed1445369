#include "model/weights.h"

#include "base/memory.h"
#include "base/strbuf.h"
#include "model/inventory.h"

#include <stdio.h>
#include <string.h>

enum { MAX_NAME = 160 };

/* Where the tensors of a checkpoint stand: prefixes of the model's and of the head's names. */
typedef struct naming {
    const char *model, *head;
} naming;

static const naming namings[] = {
    {"language_model.model.", "language_model."}, /* MLX */
    {"model.language_model.", ""},                /* Hugging Face */
    {"model.", ""},                               /* text-only export */
};

typedef struct loader {
    model_weights *w;
    naming names;
    bool sparse;    /* of what is taken now: see tensor */
    bool taps_last; /* conv1d is [C][1][4] and norms are zero-centred (MODEL.md 2.2 item 5) */
    calla_error *err;
} loader;

/* ---- single tensors ---- */

static calla_status take(const loader *l, const char *name, const char *suffix, tensor_dtype dtype,
                         int32_t n_dims, const int64_t *shape, const void **data)
{
    char full[MAX_NAME];
    snprintf(full, sizeof full, "%s%s", name, suffix);
    const tensor *t;
    CALLA_TRY(tensor_set_take(&l->w->tensors, full, dtype, n_dims, shape, &t, l->err));
    l->w->tensors.tensors[t - l->w->tensors.tensors].sparse = l->sparse;
    *data = t->data;
    return CALLA_OK;
}

/* A bf16 or f32 tensor as one vector. */
static calla_status take_vector(const loader *l, const char *name, int32_t n_dims,
                                const int64_t *shape, vector_view *v)
{
    const tensor *t = tensor_set_find(&l->w->tensors, name);
    v->is_f32 = t && t->dtype == DTYPE_F32;
    v->n = 1;
    for (int32_t i = 0; i < n_dims; i++) v->n *= (int32_t)shape[i];
    return take(l, name, "", v->is_f32 ? DTYPE_F32 : DTYPE_BF16, n_dims, shape, &v->data);
}

/* n_experts = 0: a plain matrix [rows][cols], else [n_experts][rows][cols]. `m` is the matrix or
 * the first expert's. */
static calla_status take_linear(const loader *l, const char *name, int32_t n_experts, int32_t rows,
                                int32_t cols, matrix *m)
{
    int64_t shape[3] = {n_experts, rows, cols};
    const int64_t *s = n_experts ? shape : shape + 1;
    int32_t n_dims = n_experts ? 3 : 2;
    *m = (matrix){.format = MATRIX_BF16, .rows = rows, .cols = cols};
    if (l->w->config.layout == CALLA_LAYOUT_BF16)
        return take(l, name, ".weight", DTYPE_BF16, n_dims, s, &m->codes);
    int bits = quantized_bits(name);
    const void *scales, *biases;
    m->format = bits == 8 ? MATRIX_Q8 : MATRIX_Q4;
    shape[2] = cols / 32 * bits;
    CALLA_TRY(take(l, name, ".weight", DTYPE_U32, n_dims, s, &m->codes));
    shape[2] = cols / QUANT_GROUP;
    CALLA_TRY(take(l, name, ".scales", DTYPE_BF16, n_dims, s, &scales));
    CALLA_TRY(take(l, name, ".biases", DTYPE_BF16, n_dims, s, &biases));
    m->scales = scales;
    m->biases = biases;
    return CALLA_OK;
}

/* Layout BF16 has gate and up of an expert in one tensor, gate's rows first. */
static calla_status take_fused_experts(const loader *l, const char *prefix, const part *p,
                                       expert_matrices *m)
{
    char name[MAX_NAME];
    bool down = p->offset == offsetof(layer_weights, moe.down);
    snprintf(name, sizeof name, "%smlp.experts.%s", prefix, down ? "down_proj" : "gate_up_proj");
    m->row_stride = down ? p->rows : 2 * (int64_t)p->rows;
    m->first = (matrix){.format = MATRIX_BF16, .rows = p->rows, .cols = p->cols};
    int64_t shape[3] = {l->w->config.n_experts, m->row_stride, p->cols};
    CALLA_TRY(take(l, name, "", DTYPE_BF16, 3, shape, &m->first.codes));
    bool up = p->offset == offsetof(layer_weights, moe.up);
    if (up) m->first = matrix_rows(&m->first, p->rows, p->rows);
    return CALLA_OK;
}

/* ---- parts ---- */

static calla_status take_part(loader *l, const char *prefix, const part *p, void *base)
{
    char name[MAX_NAME];
    l->sparse = p->kind == PART_EMBEDDING || p->kind == PART_EXPERTS;
    snprintf(name, sizeof name, "%s%s", prefix, p->stem);
    void *view = (unsigned char *)base + p->offset;
    int64_t n = p->rows;
    switch (p->kind) {
    case PART_MATRIX:
    case PART_EMBEDDING:
        return take_linear(l, name, 0, p->rows, p->cols, view);
    case PART_EXPERTS: {
        expert_matrices *m = view;
        if (l->w->config.layout == CALLA_LAYOUT_BF16) return take_fused_experts(l, prefix, p, m);
        m->row_stride = p->rows;
        return take_linear(l, name, l->w->config.n_experts, p->rows, p->cols, &m->first);
    }
    case PART_NORM: {
        norm_view *norm = view;
        norm->add_one = l->taps_last;
        return take_vector(l, name, 1, &n, &norm->weight);
    }
    case PART_VECTOR:
        return take_vector(l, name, 1, &n, view);
    case PART_CONV: {
        int64_t shape[3] = {n, l->taps_last ? 1 : CONV_TAPS, l->taps_last ? CONV_TAPS : 1};
        return take_vector(l, name, 3, shape, view);
    }
    }
    return CALLA_OK;
}

static void layer_prefix(const loader *l, int32_t layer, char name[MAX_NAME])
{
    snprintf(name, MAX_NAME, "%slayers.%d.", l->names.model, layer);
}

static void detect_naming(loader *l)
{
    l->names = namings[l->w->config.layout == CALLA_LAYOUT_MLX4 ? 0 : 1];
    for (size_t i = 0; i < sizeof namings / sizeof namings[0]; i++) {
        char name[MAX_NAME];
        snprintf(name, sizeof name, "%sembed_tokens.weight", namings[i].model);
        if (!tensor_set_find(&l->w->tensors, name)) continue;
        l->names = namings[i];
        return;
    }
}

/* How the first convolution is stored; take_part then holds all others to it. */
static void detect_norm_convention(loader *l)
{
    const model_config *c = &l->w->config;
    l->taps_last = c->layout == CALLA_LAYOUT_BF16;
    for (int32_t i = 0; i < c->n_layers; i++) {
        char prefix[MAX_NAME], name[MAX_NAME + 32];
        if (c->is_attention[i]) continue;
        layer_prefix(l, i, prefix);
        snprintf(name, sizeof name, "%slinear_attn.conv1d.weight", prefix);
        const tensor *t = tensor_set_find(&l->w->tensors, name);
        if (t && t->n_dims == 3) l->taps_last = t->shape[2] != 1;
        return;
    }
}

/* Whether config.json and the tensors speak of the same layout. Where they do not, single tensors
 * would be missed, which says nothing to who made the checkpoint. */
static calla_status check_layout(const loader *l)
{
    const tensor_set *set = &l->w->tensors;
    bool quantized = l->w->config.layout == CALLA_LAYOUT_MLX4;
    for (int32_t i = 0; i < set->n_tensors; i++) {
        const char *name = set->tensors[i].name;
        if (is_skipped_name(name)) continue;
        bool expert = text_ends_with(name, ".mlp.experts.gate_up_proj");
        if (quantized && expert)
            return error_set(l->err, CALLA_ERR_INPUT,
                             "%s: config.json has a quantization, but tensor %s is an unquantized "
                             "checkpoint's",
                             set->dir, name);
        if (!quantized && text_ends_with(name, ".scales"))
            return error_set(l->err, CALLA_ERR_INPUT,
                             "%s: the weights are quantized (tensor %s), but config.json has no "
                             "quantization",
                             set->dir, name);
        if (!quantized && text_ends_with(name, ".mlp.switch_mlp.gate_proj.weight"))
            return error_set(l->err, CALLA_ERR_INPUT,
                             "%s: an unquantized MLX checkpoint (tensor %s): expected MLX affine "
                             "4-bit, or bf16 as Hugging Face has it (mlp.experts.gate_up_proj)",
                             set->dir, name);
    }
    return CALLA_OK;
}

static calla_status take_all(loader *l)
{
    model_weights *w = l->w;
    part parts[MAX_LAYER_PARTS], outer[N_OUTER_PARTS];
    for (int32_t i = 0; i < w->config.n_layers; i++) {
        char prefix[MAX_NAME];
        layer_prefix(l, i, prefix);
        w->layers[i].is_attention = w->config.is_attention[i];
        int32_t n = layer_parts(&w->config, w->config.is_attention[i], parts);
        for (int32_t k = 0; k < n; k++) CALLA_TRY(take_part(l, prefix, &parts[k], &w->layers[i]));
    }
    outer_parts(&w->config, outer);
    for (int32_t k = 0; k < N_OUTER_PARTS; k++) {
        bool head = outer[k].offset == offsetof(model_weights, head);
        CALLA_TRY(take_part(l, head ? l->names.head : l->names.model, &outer[k], w));
    }
    return CALLA_OK;
}

/* Every tensor must have been taken, or belong to a part that is left out on purpose. */
static calla_status count_tensors(model_weights *w, calla_error *err)
{
    for (int32_t i = 0; i < w->tensors.n_tensors; i++) {
        const tensor *t = &w->tensors.tensors[i];
        if (t->used) {
            w->text_bytes += (int64_t)t->n_bytes;
        } else if (is_skipped_name(t->name)) {
            w->n_skipped++;
            w->skipped_bytes += (int64_t)t->n_bytes;
        } else {
            return error_set(err, CALLA_ERR_INPUT, "%s: tensor %s is not part of this model",
                             w->tensors.files[t->file].path, t->name);
        }
    }
    model_sizes sizes;
    model_sizes_compute(&w->config, w->config.layout, &sizes);
    w->n_parameters = sizes.n_parameters;
    w->expert_bytes = sizes.expert_bytes;
    /* Vectors in f32 are the only thing the configuration does not tell; all are read per token. */
    w->token_bytes = sizes.token_bytes + (w->text_bytes - sizes.text_bytes);
    return CALLA_OK;
}

calla_status model_weights_adopt(const model_config *config, tensor_set *tensors,
                                 model_weights *weights, calla_error *err)
{
    calla_status status;
    model_weights w = {.config = *config, .tensors = *tensors};
    void *layers;
    CALLA_TRY_GOTO(mem_alloc((size_t)w.config.n_layers, sizeof *w.layers, "layers", &layers, err),
                   fail);
    w.layers = layers;
    loader l = {.w = &w, .err = err};
    detect_naming(&l);
    detect_norm_convention(&l);
    CALLA_TRY_GOTO(check_layout(&l), fail);
    CALLA_TRY_GOTO(take_all(&l), fail);
    CALLA_TRY_GOTO(count_tensors(&w, err), fail);
    *weights = w;
    return CALLA_OK;
fail:
    model_weights_close(&w);
    return status;
}

calla_status model_weights_open(const char *dir, model_weights *weights, calla_error *err)
{
    model_config config;
    tensor_set tensors;
    CALLA_TRY(model_config_read(dir, &config, err));
    CALLA_TRY(tensor_set_open(dir, &tensors, err));
    return model_weights_adopt(&config, &tensors, weights, err);
}

void model_weights_close(model_weights *weights)
{
    mem_free(weights->layers);
    tensor_set_close(&weights->tensors);
    *weights = (model_weights){0};
}

/* ---- reading ---- */

float vector_at(const vector_view *v, int32_t i)
{
    if (v->is_f32) {
        float x;
        memcpy(&x, (const unsigned char *)v->data + 4 * (size_t)i, sizeof x);
        return x;
    }
    return bf16_to_f32(((const mapped_bf16 *)v->data)[i]);
}

float norm_factor(const norm_view *v, int32_t i)
{
    float w = vector_at(&v->weight, i);
    return v->add_one ? 1.0f + w : w;
}

void matrix_dequantize_row(const matrix *m, int64_t row, float *out)
{
    matrix r = matrix_rows(m, row, 1);
    const unsigned char *codes = r.codes;
    for (int32_t c = 0; c < r.cols; c++) {
        if (r.format == MATRIX_BF16) {
            out[c] = bf16_to_f32(((const mapped_bf16 *)r.codes)[c]);
            continue;
        }
        int q = r.format == MATRIX_Q8 ? codes[c] : codes[c / 2] >> (c % 2 * 4) & 15;
        int32_t g = c / QUANT_GROUP;
        out[c] = bf16_to_f32(r.scales[g]) * (float)q + bf16_to_f32(r.biases[g]);
    }
}
