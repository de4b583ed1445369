/* What follows S^T k and S^T q in a cell of the Gated DeltaNet recurrence: what its tokens do to
 * each other, and their outputs. */
#ifndef CALLA_CPU_GDN_CELL_H
#define CALLA_CPU_GDN_CELL_H

#include "cpu/simd/simd.h"

enum { LINE_FLOATS = 16 };

/* Rows of a cell's tokens. */
typedef float cell_rows[GDN_CELL][GDN_SLICE];

/* d[t] for t in [begin, end), from S^T k in its place and those before `begin`; columns [from, to).
 * Each is subtracted
 * from all that follow as soon as it is known, so a chain has a multiply-add a token. */
ALWAYS_INLINE void solve(const gdn_scan_args *a, const gdn_cell *cell, int32_t begin, int32_t end,
                         float (*d)[GDN_SLICE], int from, int to)
{
    for (int c = from; c < to; c += VL) {
        vf x[GDN_CELL];
        UNROLL for (int t = begin; t < end; t++)
        {
            int64_t i = cell->at + t - a->first;
            vf v = vf_load(a->v + i * a->v_stride + c);
            v = vf_fma(vf_set1(-cell->decay[t]), vf_load(d[t] + c), v);
            x[t] = vf_mul(vf_set1(a->beta[i * a->gate_stride]), v);
        }
        UNROLL for (int j = 0; j < end; j++)
        {
            vf dj = j < begin ? vf_load(d[j] + c) : x[j];
            if (j >= begin) vf_store(d[j] + c, dj);
            UNROLL for (int t = j + 1 > begin ? j + 1 : begin; t < end; t++) x[t] =
                vf_fma(vf_set1(cell->to_d[t][j]), dj, x[t]);
        }
    }
}

/* The outputs of [begin, end) from S^T q. */
ALWAYS_INLINE void finish(const gdn_scan_args *a, const gdn_cell *cell, int32_t begin, int32_t end,
                          float (*d)[GDN_SLICE], float (*sums)[GDN_SLICE], int from, int to)
{
    for (int c = from; c < to; c += VL) {
        vf out[GDN_CELL];
        UNROLL for (int t = begin; t < end; t++) out[t] =
            vf_mul(vf_set1(cell->decay[t]), vf_load(sums[t] + c));
        UNROLL for (int j = 0; j < end; j++)
        {
            vf dj = vf_load(d[j] + c);
            UNROLL for (int t = j > begin ? j : begin; t < end; t++) out[t] =
                vf_fma(vf_set1(cell->to_out[t][j]), dj, out[t]);
        }
        UNROLL for (int t = begin; t < end; t++)
            vf_store(a->out + (cell->at + t - a->first) * a->out_stride + c, out[t]);
    }
}

/* d of the cell's tokens from S^T k in its place and d of those before, then their outputs from
 * S^T q. */
ALWAYS_INLINE void finish_cell(const gdn_scan_args *a, const gdn_cell *cell, float (*d)[GDN_SLICE],
                               float (*sums)[GDN_SLICE], int from, int to)
{
    if (cell->end - cell->begin == GDN_CELL) {
        solve(a, cell, 0, GDN_CELL, d, from, to);
        finish(a, cell, 0, GDN_CELL, d, sums, from, to);
    } else {
        solve(a, cell, cell->begin, cell->end, d, from, to);
        finish(a, cell, cell->begin, cell->end, d, sums, from, to);
    }
}

/* Columns [from, to) of n rows. */
ALWAYS_INLINE void copy_rows(float *out, const float *x, int32_t n, int from, int to)
{
    for (int32_t t = 0; t < n; t++)
        for (int c = from; c < to; c += VL)
            vf_store(out + t * GDN_SLICE + c, vf_load(x + t * GDN_SLICE + c));
}

/* v of the next cell: its rows lie far apart, where no hardware looks ahead. */
ALWAYS_INLINE void read_ahead(const gdn_scan_args *a, int32_t from)
{
    for (int32_t t = from; t < from + GDN_CELL && t < a->n_tokens; t++)
        for (int c = 0; c < GDN_SLICE; c += LINE_FLOATS)
            __builtin_prefetch(a->v + t * a->v_stride + c);
}

#endif
