/* The Gated DeltaNet recurrence on a slice of value columns. */
#include "cpu/kernels.h"

static void step(float *restrict state, const float *restrict q, const float *restrict k,
                 const float *restrict v, float decay, float beta, float *restrict out)
{
    float p[GDN_SLICE] = {0}, o[GDN_SLICE] = {0};
    for (int i = 0; i < GDN_HEAD_DIM; i++)
        for (int j = 0; j < GDN_SLICE; j++) p[j] += state[i * GDN_SLICE + j] * k[i];
    for (int j = 0; j < GDN_SLICE; j++) p[j] = beta * (v[j] - decay * p[j]);
    for (int i = 0; i < GDN_HEAD_DIM; i++) {
        for (int j = 0; j < GDN_SLICE; j++) {
            float s = decay * state[i * GDN_SLICE + j] + k[i] * p[j];
            state[i * GDN_SLICE + j] = s;
            o[j] += s * q[i];
        }
    }
    for (int j = 0; j < GDN_SLICE; j++) out[j] = o[j];
}

void gdn_scan_c(const gdn_scan_args *a)
{
    for (int64_t t = 0; t < a->n_tokens; t++)
        step(a->state, a->q + t * a->qk_stride, a->k + t * a->qk_stride, a->v + t * a->v_stride,
             a->decay[t * a->gate_stride], a->beta[t * a->gate_stride], a->out + t * a->out_stride);
}
