/* The Gated DeltaNet recurrence on a slice of value columns. */
#include "cpu/kernels.h"
#include "cpu/lanes.h"

#include <string.h>

enum { VECTORS = GDN_SLICE / 4 };

void gdn_products_c(const gdn_products_args *a)
{
    for (int32_t t = a->first; t < a->first + a->n_tokens; t++) {
        int32_t in_cell = t % GDN_CELL;
        float *kk = a->out + (size_t)(t / GDN_CELL) * GDN_CELL_PRODUCTS + in_cell * GDN_CELL;
        float *qk = kk + GDN_CELL * GDN_CELL;
        const float *k = a->k + (t - in_cell) * a->qk_stride;
        const float *q = a->q + (t - a->first) * a->qk_stride;
        for (int32_t j = 0; j < GDN_CELL; j++) {
            bool there = j <= in_cell;
            const float *other = k + j * a->qk_stride;
            kk[j] = there ? lanes_dot(k + in_cell * a->qk_stride, other, GDN_HEAD_DIM) : 0;
            qk[j] = there ? lanes_dot(q, other, GDN_HEAD_DIM) : 0;
        }
    }
}

typedef struct slice_row {
    f32x4 v[VECTORS];
} slice_row;

static slice_row row_load(const float *p)
{
    slice_row r;
    for (int j = 0; j < VECTORS; j++) r.v[j] = load4(p + 4 * j);
    return r;
}

static void row_store(float *p, const slice_row *r)
{
    for (int j = 0; j < VECTORS; j++) store4(p + 4 * j, r->v[j]);
}

/* S^T x */
static slice_row multiply_state(const float *state, const float *x)
{
    slice_row sum = {{{0}}};
    for (int i = 0; i < GDN_HEAD_DIM; i++)
        for (int j = 0; j < VECTORS; j++) sum.v[j] += load4(state + i * GDN_SLICE + 4 * j) * x[i];
    return sum;
}

/* r = scale r + sum over i < n of factors[i] rows[i] */
static void add_rows(slice_row *r, float scale, const float *factors, const slice_row *rows,
                     int32_t n)
{
    for (int j = 0; j < VECTORS; j++) r->v[j] *= scale;
    for (int32_t i = 0; i < n; i++)
        for (int j = 0; j < VECTORS; j++) r->v[j] += factors[i] * rows[i].v[j];
}

/* d of token t of the cell, then its output. */
static void step(const gdn_scan_args *a, const gdn_cell *cell, int32_t t, slice_row *d)
{
    int32_t i = cell->at + t - a->first;
    float beta = a->beta[i * a->gate_stride];
    slice_row p = multiply_state(a->state, a->k + (cell->at + t) * a->qk_stride);
    slice_row v = row_load(a->v + i * a->v_stride);
    for (int j = 0; j < VECTORS; j++) d[t].v[j] = beta * (v.v[j] - cell->decay[t] * p.v[j]);
    add_rows(&d[t], 1, cell->to_d[t], d, t);
    slice_row out = multiply_state(a->state, a->q + i * a->qk_stride);
    add_rows(&out, cell->decay[t], cell->to_out[t], d, t + 1);
    row_store(a->out + i * a->out_stride, &out);
}

/* The state behind a whole cell. */
static void update(const gdn_scan_args *a, const gdn_cell *cell, slice_row *d)
{
    for (int t = 0; t < GDN_CELL; t++)
        for (int j = 0; j < VECTORS; j++) d[t].v[j] *= cell->tail[t];
    for (int i = 0; i < GDN_HEAD_DIM; i++) {
        float keys[GDN_CELL];
        slice_row s = row_load(a->state + i * GDN_SLICE);
        for (int t = 0; t < GDN_CELL; t++) keys[t] = a->k[(cell->at + t) * a->qk_stride + i];
        add_rows(&s, cell->decay[GDN_CELL - 1], keys, d, GDN_CELL);
        row_store(a->state + i * GDN_SLICE, &s);
    }
}

void gdn_scan_c(const gdn_scan_args *a)
{
    for (int32_t at = 0; a->n_tokens > 0 && at < a->first + a->n_tokens; at += GDN_CELL) {
        slice_row d[GDN_CELL];
        gdn_cell cell;
        gdn_cell_begin(a, at, &cell);
        for (int32_t t = 0; t < cell.begin; t++) d[t] = row_load(a->rest + t * GDN_SLICE);
        for (int32_t t = cell.begin; t < cell.end; t++) step(a, &cell, t, d);
        if (cell.end == GDN_CELL) update(a, &cell, d);
        for (int32_t t = cell.begin; cell.end < GDN_CELL && t < cell.end; t++)
            row_store(a->rest + t * GDN_SLICE, &d[t]);
    }
}
