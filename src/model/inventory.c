#include "model/inventory.h"

#include "model/weights.h"

#include <assert.h>

/* A list under construction. */
typedef struct list {
    part *parts;
    int32_t n;
} list;

static void add(list *l, part_kind kind, const char *stem, int32_t rows, int32_t cols,
                size_t offset)
{
    assert(l->n < MAX_LAYER_PARTS);
    l->parts[l->n++] = (part){kind, stem, rows, cols, offset};
}

#define AT(field) offsetof(layer_weights, field)

static void add_attention(list *l, const model_config *c)
{
    int32_t d = c->hidden_size;
    add(l, PART_MATRIX, "self_attn.q_proj", 2 * c->query_size, d, AT(attention.q));
    add(l, PART_MATRIX, "self_attn.k_proj", c->kv_size, d, AT(attention.k));
    add(l, PART_MATRIX, "self_attn.v_proj", c->kv_size, d, AT(attention.v));
    add(l, PART_MATRIX, "self_attn.o_proj", d, c->query_size, AT(attention.o));
    add(l, PART_NORM, "self_attn.q_norm.weight", ATTENTION_HEAD_DIM, 1, AT(attention.q_norm));
    add(l, PART_NORM, "self_attn.k_norm.weight", ATTENTION_HEAD_DIM, 1, AT(attention.k_norm));
}

static void add_gdn(list *l, const model_config *c)
{
    int32_t d = c->hidden_size, heads = c->n_value_heads;
    add(l, PART_MATRIX, "linear_attn.in_proj_qkv", c->conv_channels, d, AT(gdn.qkv));
    add(l, PART_MATRIX, "linear_attn.in_proj_z", c->value_size, d, AT(gdn.z));
    add(l, PART_MATRIX, "linear_attn.in_proj_b", heads, d, AT(gdn.b));
    add(l, PART_MATRIX, "linear_attn.in_proj_a", heads, d, AT(gdn.a));
    add(l, PART_CONV, "linear_attn.conv1d.weight", c->conv_channels, CONV_TAPS, AT(gdn.conv));
    add(l, PART_VECTOR, "linear_attn.A_log", heads, 1, AT(gdn.a_log));
    add(l, PART_VECTOR, "linear_attn.dt_bias", heads, 1, AT(gdn.dt_bias));
    add(l, PART_VECTOR, "linear_attn.norm.weight", GDN_HEAD_DIM, 1, AT(gdn.norm.weight));
    add(l, PART_MATRIX, "linear_attn.out_proj", d, c->value_size, AT(gdn.out));
}

static void add_moe(list *l, const model_config *c)
{
    int32_t d = c->hidden_size, f = c->expert_width, s = c->shared_expert_width;
    add(l, PART_MATRIX, "mlp.gate", c->n_experts, d, AT(moe.router));
    add(l, PART_EXPERTS, "mlp.switch_mlp.gate_proj", f, d, AT(moe.gate));
    add(l, PART_EXPERTS, "mlp.switch_mlp.up_proj", f, d, AT(moe.up));
    add(l, PART_EXPERTS, "mlp.switch_mlp.down_proj", d, f, AT(moe.down));
    add(l, PART_MATRIX, "mlp.shared_expert.gate_proj", s, d, AT(moe.shared_gate));
    add(l, PART_MATRIX, "mlp.shared_expert.up_proj", s, d, AT(moe.shared_up));
    add(l, PART_MATRIX, "mlp.shared_expert.down_proj", d, s, AT(moe.shared_down));
    add(l, PART_MATRIX, "mlp.shared_expert_gate", 1, d, AT(moe.shared_expert_gate));
}

int32_t layer_parts(const model_config *c, bool is_attention, part parts[MAX_LAYER_PARTS])
{
    list l = {parts, 0};
    add(&l, PART_NORM, "input_layernorm.weight", c->hidden_size, 1, AT(input_norm));
    if (is_attention)
        add_attention(&l, c);
    else
        add_gdn(&l, c);
    add(&l, PART_NORM, "post_attention_layernorm.weight", c->hidden_size, 1, AT(post_norm));
    add_moe(&l, c);
    return l.n;
}

void outer_parts(const model_config *c, part parts[N_OUTER_PARTS])
{
    int32_t d = c->hidden_size, v = c->n_vocab;
    parts[0] = (part){PART_EMBEDDING, "embed_tokens", v, d, offsetof(model_weights, embedding)};
    parts[1] = (part){PART_NORM, "norm.weight", d, 1, offsetof(model_weights, final_norm)};
    parts[2] = (part){PART_MATRIX, "lm_head", v, d, offsetof(model_weights, head)};
}

/* ---- sizes ---- */

/* Bytes of a rows x cols matrix in the layout. No overflow: config.c bounds every size. */
static int64_t linear_bytes(calla_layout layout, const char *stem, int64_t rows, int64_t cols)
{
    if (layout == CALLA_LAYOUT_BF16) return rows * cols * 2;
    return rows * (cols * quantized_bits(stem) / 8 + cols / QUANT_GROUP * 4);
}

static void add_sizes(const model_config *c, calla_layout layout, const part *p, model_sizes *s)
{
    int64_t elements = (int64_t)p->rows * p->cols, bytes = elements * 2;
    bool linear = part_is_linear(p);
    if (linear) bytes = linear_bytes(layout, p->stem, p->rows, p->cols);
    s->n_tensors += linear && layout == CALLA_LAYOUT_MLX4 ? 3 : 1;
    if (p->kind == PART_MATRIX) s->token_operations += 2 * elements;
    if (p->kind == PART_EXPERTS) {
        s->token_operations += 2 * elements * c->n_experts_per_token;
        s->token_bytes += bytes * c->n_experts_per_token;
        elements *= c->n_experts;
        bytes *= c->n_experts;
        s->expert_bytes += bytes;
    } else if (p->kind == PART_EMBEDDING) {
        s->token_bytes += linear_bytes(layout, p->stem, 1, p->cols);
    } else {
        s->token_bytes += bytes;
    }
    s->n_parameters += elements;
    s->text_bytes += bytes;
}

void model_sizes_compute(const model_config *c, calla_layout layout, model_sizes *sizes)
{
    part parts[MAX_LAYER_PARTS], outer[N_OUTER_PARTS];
    model_sizes s = {0};
    for (int32_t i = 0; i < c->n_layers; i++) {
        int32_t n = layer_parts(c, c->is_attention[i], parts);
        for (int32_t k = 0; k < n; k++) add_sizes(c, layout, &parts[k], &s);
        if (layout == CALLA_LAYOUT_BF16) s.n_tensors--; /* gate and up experts are one tensor */
    }
    /* The recurrence takes 7 operations per element of its state, attention 4 per query element. */
    int64_t n_gdn = c->n_layers - c->n_attention_layers;
    s.token_operations += 7 * n_gdn * c->n_value_heads * GDN_HEAD_DIM * GDN_HEAD_DIM;
    s.attention_operations = 4 * (int64_t)c->n_attention_layers * c->query_size;
    int64_t layer_operations = s.token_operations;
    outer_parts(c, outer);
    for (int32_t k = 0; k < N_OUTER_PARTS; k++) add_sizes(c, layout, &outer[k], &s);
    s.token_operations = layer_operations;
    *sizes = s;
}
