/* Where each tensor goes in device memory. */
#include "cuda/cuda.h"

/* n matrices [rows][cols]. rows is a multiple of 64 where n > 1, so that each starts a strip. */
static device_matrix take_matrix(backend *b, int32_t n, int64_t rows, int32_t cols)
{
    size_t strips = (size_t)w4_strips(rows * n), bytes = (size_t)(cols / W4_GROUP) * W4_BLOCK_BYTES;
    return (device_matrix){.w = {device_take(&b->w.memory, strips, bytes, 1), (int32_t)rows, cols},
                           .factors = device_floats(&b->w.memory, 1, strips),
                           .expert_bytes = (size_t)w4_strips(rows) * bytes};
}

static void take_moe(backend *b, device_layer *l)
{
    const model_config *c = &b->config;
    device_arena *a = &b->w.memory;
    int32_t hidden = c->hidden_size, rows = c->n_experts + 1, n = c->n_experts;
    l->router =
        (w8_matrix){device_take(a, (size_t)rows, (size_t)hidden, 1),
                    device_take(a, (size_t)rows, (size_t)(hidden / QUANT_GROUP), 4), rows, hidden};
    l->inner = take_matrix(b, n, 2 * (int64_t)c->expert_width, hidden);
    l->outer = take_matrix(b, n, hidden, c->expert_width);
    l->shared_inner = take_matrix(b, 1, 2 * (int64_t)c->shared_expert_width, hidden);
    l->shared_outer = take_matrix(b, 1, hidden, c->shared_expert_width);
}

void cuda_weights_take(backend *b)
{
    const model_config *c = &b->config;
    device_arena *a = &b->w.memory;
    size_t hidden = (size_t)c->hidden_size, heads = (size_t)c->n_value_heads;
    int32_t n_attention = 0, n_gdn = 0;
    for (int32_t i = 0; i < c->n_layers; i++) {
        device_layer *l = &b->w.layers[i];
        l->input_norm = device_floats(a, 1, hidden);
        l->post_norm = device_floats(a, 1, hidden);
        if (c->is_attention[i]) {
            l->mixer_index = n_attention++;
            l->in = take_matrix(b, 1, 2 * (int64_t)c->query_size + 2 * c->kv_size, c->hidden_size);
            l->out = take_matrix(b, 1, c->hidden_size, c->query_size);
            l->q_norm = device_floats(a, 1, ATTENTION_HEAD_DIM);
            l->k_norm = device_floats(a, 1, ATTENTION_HEAD_DIM);
        } else {
            l->mixer_index = n_gdn++;
            l->in =
                take_matrix(b, 1, (int64_t)c->conv_channels + c->value_size + 2 * c->n_value_heads,
                            c->hidden_size);
            l->out = take_matrix(b, 1, c->hidden_size, c->value_size);
            l->taps = device_floats(a, CONV_TAPS, (size_t)c->conv_channels);
            l->neg_exp_a = device_floats(a, 1, heads);
            l->dt_bias = device_floats(a, 1, heads);
            l->gdn_norm = device_floats(a, 1, GDN_HEAD_DIM);
        }
        take_moe(b, l);
        b->widest_in = larger_of(b->widest_in, l->in.w.rows);
        b->widest_out = larger_of(b->widest_out, l->out.w.cols);
    }
    b->w.final_norm = device_floats(a, 1, hidden);
    b->w.embedding = device_take(a, (size_t)c->n_vocab, hidden / 2, 1);
    b->w.embedding_pairs = device_take(a, (size_t)c->n_vocab, hidden / QUANT_GROUP, 4);
    b->w.head = take_matrix(b, 1, c->n_vocab, c->hidden_size);
}
