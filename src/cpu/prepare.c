#include "cpu/cpu.h"

#include <float.h>
#include <math.h>

void prepared_take(backend *b)
{
    const model_config *c = &b->config;
    prepared *p = &b->prepared;
    arena *a = &p->memory;
    size_t hidden = (size_t)c->hidden_size;
    int32_t n_attention = 0, n_gdn = 0;
    for (int32_t i = 0; i < c->n_layers; i++) {
        prepared_layer *l = &p->layers[i];
        l->input_norm = take_floats(a, 1, hidden);
        l->post_norm = take_floats(a, 1, hidden);
        if (c->is_attention[i]) {
            l->q_norm = take_floats(a, 1, ATTENTION_HEAD_DIM);
            l->k_norm = take_floats(a, 1, ATTENTION_HEAD_DIM);
            l->attention_index = n_attention++;
        } else {
            l->conv = take_floats(a, CONV_TAPS, (size_t)c->conv_channels);
            l->neg_exp_a = take_floats(a, 1, (size_t)c->n_value_heads);
            l->dt_bias = take_floats(a, 1, (size_t)c->n_value_heads);
            l->gdn_norm = take_floats(a, 1, GDN_HEAD_DIM);
            l->gdn_index = n_gdn++;
        }
    }
    p->final_norm = take_floats(a, 1, hidden);
}

static void fill_norm(float *factors, const norm_view *norm)
{
    for (int32_t i = 0; i < norm->weight.n; i++) factors[i] = norm_factor(norm, i);
}

static void fill_gdn(const model_config *c, prepared_layer *l, const gdn_weights *w)
{
    for (int32_t n = 0; n < c->conv_channels; n++)
        for (int32_t t = 0; t < CONV_TAPS; t++)
            l->conv[t * c->conv_channels + n] = vector_at(&w->conv, n * CONV_TAPS + t);
    for (int32_t h = 0; h < c->n_value_heads; h++) {
        /* Finite, because it meets a softplus that may be 0 and inf * 0 is NaN; but not where the
         * weight itself is not. */
        float a_log = vector_at(&w->a_log, h);
        l->neg_exp_a[h] = isfinite(a_log) ? -fminf(expf(a_log), FLT_MAX) : NAN;
        l->dt_bias[h] = vector_at(&w->dt_bias, h);
    }
    fill_norm(l->gdn_norm, &w->norm);
}

void prepared_fill(backend *b)
{
    const model_config *c = &b->config;
    prepared *p = &b->prepared;
    for (int32_t i = 0; i < c->n_layers; i++) {
        prepared_layer *l = &p->layers[i];
        const layer_weights *w = &b->weights->layers[i];
        fill_norm(l->input_norm, &w->input_norm);
        fill_norm(l->post_norm, &w->post_norm);
        if (c->is_attention[i]) {
            fill_norm(l->q_norm, &w->attention.q_norm);
            for (int d = 0; d < ATTENTION_HEAD_DIM; d++) l->q_norm[d] *= 0.0625f;
            fill_norm(l->k_norm, &w->attention.k_norm);
        } else {
            fill_gdn(c, l, &w->gdn);
        }
    }
    fill_norm(p->final_norm, &b->weights->final_norm);
    for (int j = 0; j < ROTARY_PAIRS; j++)
        p->inverse_frequencies[j] = pow(c->rope_theta, -2.0 * j / ROTARY_DIMS);
}

void rope_angles(const backend *b, int64_t position, float *cosines, float *sines)
{
    for (int j = 0; j < ROTARY_PAIRS; j++) {
        double angle = (double)position * b->prepared.inverse_frequencies[j];
        cosines[j] = (float)cos(angle);
        sines[j] = (float)sin(angle);
    }
}
