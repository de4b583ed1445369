/* The Gated DeltaNet recurrence over a slice of 32 value columns (MODEL.md 3.5).
 *
 * The slice of the state is 16 KB and stays in L1 over the tokens. One pass over it per token: it
 * finishes token t (S = decay S + k d^T, out = S^T q) and starts token t + 1 (S^T k of the next) on
 * the element just written, so each element is loaded and stored once. 4 vector operations an
 * element and token, the floor of this form. */
#include "cpu/simd/simd.h"

enum {
    COLUMNS = GDN_SLICE / VL, /* vectors of a state row */
    AHEAD = 4,                /* tokens: some 1,000 cycles */
    LINE_FLOATS = 16,
};

typedef struct slice_row {
    vf v[COLUMNS];
} slice_row;

ALWAYS_INLINE slice_row row_load(const float *p)
{
    slice_row r;
    UNROLL for (int j = 0; j < COLUMNS; j++) r.v[j] = vf_load(p + j * VL);
    return r;
}

ALWAYS_INLINE void row_store(float *p, const slice_row *r)
{
    UNROLL for (int j = 0; j < COLUMNS; j++) vf_store(p + j * VL, r->v[j]);
}

/* q, k and v of a token that comes later. They lie a row of all heads apart, each time in another
 * page, where no hardware looks ahead; waiting for them took as long as the arithmetic. */
ALWAYS_INLINE void read_ahead(const gdn_scan_args *a, int32_t t)
{
    if (t >= a->n_tokens) return;
    const float *q = a->q + t * a->qk_stride, *k = a->k + t * a->qk_stride;
    for (int i = 0; i < GDN_HEAD_DIM; i += LINE_FLOATS) {
        __builtin_prefetch(q + i);
        __builtin_prefetch(k + i);
    }
    for (int i = 0; i < GDN_SLICE; i += LINE_FLOATS) __builtin_prefetch(a->v + t * a->v_stride + i);
}

void KERNEL(gdn_scan)(const gdn_scan_args *a)
{
    slice_row predicted; /* S^T k of the token about to be done, before its decay */
    UNROLL for (int j = 0; j < COLUMNS; j++) predicted.v[j] = vf_zero();
    for (int i = 0; i < GDN_HEAD_DIM; i++) {
        vf k = vf_set1(a->k[i]);
        UNROLL for (int j = 0; j < COLUMNS; j++) predicted.v[j] =
            vf_fma(k, vf_load(a->state + i * GDN_SLICE + j * VL), predicted.v[j]);
    }
    for (int32_t t = 0; t < a->n_tokens; t++) {
        const float *q = a->q + t * a->qk_stride, *k = a->k + t * a->qk_stride;
        /* The last token has no next: its own k gives a result nobody reads. */
        const float *next_k = t + 1 < a->n_tokens ? k + a->qk_stride : k;
        vf decay = vf_set1(a->decay[t * a->gate_stride]);
        vf beta = vf_set1(a->beta[t * a->gate_stride]);
        slice_row d = row_load(a->v + t * a->v_stride), out, next;
        read_ahead(a, t + AHEAD);
        UNROLL for (int j = 0; j < COLUMNS; j++)
        {
            d.v[j] = vf_mul(beta, vf_sub(d.v[j], vf_mul(decay, predicted.v[j])));
            out.v[j] = vf_zero();
            next.v[j] = vf_zero();
        }
        for (int i = 0; i < GDN_HEAD_DIM; i++) {
            slice_row s = row_load(a->state + i * GDN_SLICE);
            vf ki = vf_set1(k[i]), qi = vf_set1(q[i]), ni = vf_set1(next_k[i]);
            UNROLL for (int j = 0; j < COLUMNS; j++)
            {
                s.v[j] = vf_fma(ki, d.v[j], vf_mul(decay, s.v[j]));
                out.v[j] = vf_fma(qi, s.v[j], out.v[j]);
                next.v[j] = vf_fma(ni, s.v[j], next.v[j]);
            }
            row_store(a->state + i * GDN_SLICE, &s);
        }
        row_store(a->out + t * a->out_stride, &out);
        predicted = next;
    }
}
