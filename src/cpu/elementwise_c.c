/* Norms, gates, activations, routing, conversions. */
#include "base/numbers.h"
#include "cpu/kernels.h"
#include "cpu/lanes.h"

#include <math.h>

static inline float silu(float x)
{
    return x / (1.0f + expf(-x));
}
static inline float softplus(float x)
{
    return x > 20.0f ? x : log1pf(expf(x));
}

float rmsnorm_c(const float *x, const float *factor, int32_t n, float eps, float *out)
{
    float mean = lanes_dot(x, x, n) / (float)n;
    float r = inverse_root_finite(mean + eps);
    for (int32_t i = 0; i < n; i++) out[i] = x[i] * r * factor[i];
    return mean;
}

void l2norm_c(float *x, float scale)
{
    float sum = lanes_dot(x, x, GDN_HEAD_DIM) + 1e-6f, r = scale / sqrtf(sum) + (sum - sum);
    for (int i = 0; i < GDN_HEAD_DIM; i++) x[i] *= r;
}

void gated_norm_c(const float *o, const float *z, const float *factor, float eps, float *out)
{
    float r = inverse_root_finite(lanes_dot(o, o, GDN_HEAD_DIM) / GDN_HEAD_DIM + eps);
    for (int i = 0; i < GDN_HEAD_DIM; i++) out[i] = factor[i] * (o[i] * r) * silu(z[i]);
}

void conv_silu_c(const float *const rows[CONV_TAPS], const float *taps, int32_t n_channels,
                 int32_t begin, int32_t end, float *out)
{
    const float *t0 = taps, *t1 = t0 + n_channels, *t2 = t1 + n_channels, *t3 = t2 + n_channels;
    const float *x0 = rows[0], *x1 = rows[1], *x2 = rows[2], *x3 = rows[3];
    for (int32_t c = begin; c < end; c++)
        out[c] = t0[c] * x0[c] + t1[c] * x1[c] + t2[c] * x2[c] + t3[c] * x3[c];
    for (int32_t c = begin; c < end; c++) out[c] = silu(out[c]);
}

void gdn_gates_c(const float *a, const float *b, const float *neg_exp_a, const float *dt_bias,
                 int32_t n, float *decay, float *beta)
{
    for (int32_t h = 0; h < n; h++) {
        float x = a[h] + dt_bias[h];
        decay[h] = expf(neg_exp_a[h] * softplus(x)) + (x - x); /* as sigmoid_finite */
        beta[h] = sigmoid_finite(b[h]);
    }
}

void rope_c(float *x, const float *cosines, const float *sines)
{
    enum { HALF = ROTARY_DIMS / 2 };
    for (int j = 0; j < HALF; j++) {
        float a = x[j], b = x[j + HALF];
        x[j] = a * cosines[j] - b * sines[j];
        x[j + HALF] = b * cosines[j] + a * sines[j];
    }
}

void swiglu_c(const float *gate, const float *up, int32_t n, float *out)
{
    for (int32_t i = 0; i < n; i++) out[i] = silu(gate[i]) * up[i];
}

void sigmoid_gate_c(float *x, const float *gate, int32_t n)
{
    for (int32_t i = 0; i < n; i++) x[i] *= sigmoid_finite(gate[i]);
}

void add_scaled_c(float *y, const float *x, float scale, int32_t n)
{
    for (int32_t i = 0; i < n; i++) y[i] += scale * x[i];
}

void add_rows_c(float *y, const float *const *rows, const float *scales, int32_t n_rows, int32_t n)
{
    for (int32_t r = 0; r < n_rows; r++) add_scaled_c(y, rows[r], scales[r], n);
}

/* Whether logit i comes before logit j: larger, or equal and lower; a NaN comes last. */
static bool ranks_before(const float *logits, int32_t i, int32_t j)
{
    float a = logits[i], b = logits[j];
    if (a > b) return true;
    if (a < b) return false;
    if (a == b || (isnan(a) && isnan(b))) return i < j;
    return isnan(b) && !isnan(a);
}

/* No less than k of the logits are as large as this, or it is -inf: of the largest of every
 * sixteenth of them the k-th. Few others are, so that few are sorted. */
static float router_bound(const float *logits, int32_t n, int32_t k)
{
    enum { PARTS = 16 };
    float largest[PARTS], bound = INFINITY;
    if (n < PARTS || k > PARTS) return -INFINITY;
    for (int l = 0; l < PARTS; l++) largest[l] = -INFINITY;
    for (int32_t i = 0; i + PARTS <= n; i += PARTS)
        for (int l = 0; l < PARTS; l++)
            largest[l] = logits[i + l] > largest[l] ? logits[i + l] : largest[l];
    for (int l = 0; l < PARTS; l++) {
        int32_t larger = 0;
        for (int j = 0; j < PARTS; j++) larger += largest[j] > largest[l];
        if (larger < k && largest[l] < bound) bound = largest[l];
    }
    return bound;
}

/* 0, or NaN if any of them is not finite. */
static float router_nothing(const float *logits, int32_t n)
{
    f32x4 nothing = {0};
    int32_t i = 0;
    for (; i + 4 <= n; i += 4) nothing += load4(logits + i) - load4(logits + i);
    float sum = nothing[0] + nothing[1] + nothing[2] + nothing[3];
    for (; i < n; i++) sum += logits[i] - logits[i];
    return sum;
}

void router_top_k_c(const float *logits, int32_t n, int32_t k, int32_t *experts, float *weights)
{
    int32_t held = 0; /* of the first i, in their order */
    float least = -INFINITY, bound = router_bound(logits, n, k);
    for (int32_t i = 0; i < n; i++) {
        if (logits[i] < bound) continue;
        if (held == k && (logits[i] <= least || !ranks_before(logits, i, experts[k - 1]))) continue;
        int32_t s = held < k ? held++ : k - 1;
        for (; s > 0 && ranks_before(logits, i, experts[s - 1]); s--) experts[s] = experts[s - 1];
        experts[s] = i;
        least = logits[experts[held - 1]];
    }
    float sum = router_nothing(logits, n);
    for (int32_t s = 0; s < k; s++) {
        weights[s] = expf(logits[experts[s]] - logits[experts[0]]);
        sum += weights[s];
    }
    for (int32_t s = 0; s < k; s++) weights[s] /= sum;
}

void f32_to_f16_c(const float *x, int32_t n, uint16_t *out)
{
    for (int32_t i = 0; i < n; i++) out[i] = f32_to_f16(x[i]);
}
