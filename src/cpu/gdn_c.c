/* The Gated DeltaNet recurrence on a slice of value columns. */
#include "cpu/kernels.h"
#include "cpu/lanes.h"

enum { VECTORS = GDN_SLICE / 4 };

static void step(float *state, const float *q, const float *k, const float *v, float decay,
                 float beta, float *out)
{
    f32x4 d[VECTORS] = {{0}}, o[VECTORS] = {{0}};
    for (int i = 0; i < GDN_HEAD_DIM; i++)
        for (int j = 0; j < VECTORS; j++) d[j] += load4(state + i * GDN_SLICE + 4 * j) * k[i];
    for (int j = 0; j < VECTORS; j++) d[j] = beta * (load4(v + 4 * j) - decay * d[j]);
    for (int i = 0; i < GDN_HEAD_DIM; i++) {
        for (int j = 0; j < VECTORS; j++) {
            float *p = state + i * GDN_SLICE + 4 * j;
            f32x4 s = decay * load4(p) + k[i] * d[j];
            store4(p, s);
            o[j] += s * q[i];
        }
    }
    for (int j = 0; j < VECTORS; j++) store4(out + 4 * j, o[j]);
}

void gdn_scan_c(const gdn_scan_args *a)
{
    for (int64_t t = 0; t < a->n_tokens; t++)
        step(a->state, a->q + t * a->qk_stride, a->k + t * a->qk_stride, a->v + t * a->v_stride,
             a->decay[t * a->gate_stride], a->beta[t * a->gate_stride], a->out + t * a->out_stride);
}
