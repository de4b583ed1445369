/* The Gated DeltaNet recurrence over a slice of 32 value columns (MODEL.md 3.5), GDN_CELL tokens at
 * a time.
 *
 * The slice of the state is 16 KB and stays in L1 over the tokens. A cell is three products with it
 * (of its keys, of its queries, and what its tokens add), each with ROWS x WIDE sums in registers:
 * a step of WIDE loads and ROWS broadcasts makes ROWS * WIDE multiply-adds. 3 of those an element
 * and token and one multiplication an element and cell, where a pass per token takes 4 operations,
 * a load and a store. What tokens of a cell do to each other is 1/16 of that. */
#include "cpu/simd/gdn_cell.h"

enum {
    COLUMNS = GDN_SLICE / VL,                        /* vectors of a state row */
    ROWS = VECTOR_REGISTERS == 32 && VL > 4 ? 8 : 4, /* of a block of sums */
    WIDE = VL > 4 ? 2 : 4,                           /* vectors of one */
};

/* ---- products of keys and queries ---- */

void KERNEL(gdn_products)(const gdn_products_args *a)
{
    for (int32_t t = a->first; t < a->first + a->n_tokens; t++) {
        int32_t in_cell = t % GDN_CELL;
        float *kk = a->out + (size_t)(t / GDN_CELL) * GDN_CELL_PRODUCTS + in_cell * GDN_CELL;
        float *qk = kk + GDN_CELL * GDN_CELL;
        const float *k = a->k + t * a->qk_stride, *q = a->q + (t - a->first) * a->qk_stride;
        for (int32_t j = 0; j < GDN_CELL; j++) {
            vf by_k = vf_zero(), by_q = vf_zero();
            const float *other = a->k + (t - in_cell + j) * a->qk_stride;
            UNROLL for (int i = 0; j <= in_cell && i < GDN_HEAD_DIM; i += VL)
            {
                vf x = vf_load(other + i);
                by_k = vf_fma(x, vf_load(k + i), by_k);
                by_q = vf_fma(x, vf_load(q + i), by_q);
            }
            kk[j] = vf_sum(by_k);
            qk[j] = vf_sum(by_q);
        }
    }
}

/* ---- a cell ---- */

/* The lines of a cell's rows of q or k, asked for one after another. */
typedef struct row_lines {
    const float *rows;
    int64_t stride;
    int32_t left; /* rows */
} row_lines;

ALWAYS_INLINE void prefetch_line(const row_lines *a, int i)
{
    enum { LINES = GDN_HEAD_DIM / LINE_FLOATS };
    if (i / LINES < a->left)
        __builtin_prefetch(a->rows + i / LINES * a->stride + i % LINES * LINE_FLOATS, 0, 2);
}

/* out[r] = S^T x_r of n (a constant) rows. */
ALWAYS_INLINE void multiply_state(const float *state, const float *x, int64_t stride, int n,
                                  float (*out)[GDN_SLICE], const row_lines *next)
{
    for (int c = 0; c < GDN_SLICE; c += WIDE * VL) {
        vf sum[ROWS][WIDE];
        UNROLL for (int r = 0; r < n; r++) UNROLL for (int j = 0; j < WIDE; j++) sum[r][j] =
            vf_zero();
        for (int i = 0; i < GDN_HEAD_DIM; i++) {
            vf s[WIDE];
            if (c == 0 && i % 2 == 0) prefetch_line(next, i / 2);
            UNROLL for (int j = 0; j < WIDE; j++) s[j] =
                vf_load(state + i * GDN_SLICE + c + j * VL);
            UNROLL for (int r = 0; r < n; r++)
            {
                vf factor = vf_set1(x[r * stride + i]);
                UNROLL for (int j = 0; j < WIDE; j++) sum[r][j] = vf_fma(factor, s[j], sum[r][j]);
            }
        }
        UNROLL for (int r = 0; r < n; r++) UNROLL for (int j = 0; j < WIDE; j++)
            vf_store(out[r] + c + j * VL, sum[r][j]);
    }
}

/* S^T k and S^T q of one token, in one pass: a step of decode, which reads one slice after the
 * other, with other work between them: so asks for the next one meanwhile, into L2. */
ALWAYS_INLINE void multiply_token(const float *state, const float *k, const float *q, float *by_k,
                                  float *by_q)
{
    vf a[COLUMNS], b[COLUMNS];
    UNROLL for (int j = 0; j < COLUMNS; j++) a[j] = b[j] = vf_zero();
    for (int i = 0; i < GDN_HEAD_DIM; i++) {
        vf ki = vf_set1(k[i]), qi = vf_set1(q[i]);
        for (int c = 0; c < GDN_SLICE; c += LINE_FLOATS)
            __builtin_prefetch(state + (GDN_HEAD_DIM + i) * GDN_SLICE + c, 0, 2);
        UNROLL for (int j = 0; j < COLUMNS; j++)
        {
            vf s = vf_load(state + i * GDN_SLICE + j * VL);
            a[j] = vf_fma(ki, s, a[j]);
            b[j] = vf_fma(qi, s, b[j]);
        }
    }
    UNROLL for (int j = 0; j < COLUMNS; j++)
    {
        vf_store(by_k + j * VL, a[j]);
        vf_store(by_q + j * VL, b[j]);
    }
}

/* S^T k to d and S^T q to sums, of the cell's tokens: ROWS at a time, then one by one. Each sum is
 * over the keys in order. */
ALWAYS_INLINE void multiply_cell(const gdn_scan_args *a, const gdn_cell *cell,
                                 float (*d)[GDN_SLICE], float (*sums)[GDN_SLICE])
{
    const int64_t stride = a->qk_stride;
    const float *k = a->k + (cell->at + cell->begin) * stride;
    const float *q = a->q + (cell->at + cell->begin - a->first) * stride;
    int32_t n = cell->end - cell->begin, t = 0;
    int32_t left = a->first + a->n_tokens - cell->at - cell->end; /* tokens of the next cell */
    d += cell->begin;
    sums += cell->begin;
    for (; t + ROWS <= n; t += ROWS) {
        int64_t ahead = left > 0 ? n * stride : 0;
        row_lines next_k = {k + ahead, stride, left}, next_q = {q + ahead, stride, left};
        multiply_state(a->state, k + t * stride, stride, ROWS, d + t, &next_k);
        multiply_state(a->state, q + t * stride, stride, ROWS, sums + t, &next_q);
        left = 0; /* asked for */
    }
    for (; t < n; t++) multiply_token(a->state, k + t * stride, q + t * stride, d[t], sums[t]);
}

/* S = g S + sum over the cell of k_j (g(last, j) d_j)^T. */
ALWAYS_INLINE void update(const gdn_scan_args *a, const gdn_cell *cell, float (*d)[GDN_SLICE])
{
    const float *k = a->k + cell->at * a->qk_stride;
    const vf decay = vf_set1(cell->decay[GDN_CELL - 1]);
    for (int t = 0; t < GDN_CELL; t++)
        for (int c = 0; c < GDN_SLICE; c += VL)
            vf_store(d[t] + c, vf_mul(vf_set1(cell->tail[t]), vf_load(d[t] + c)));
    for (int i = 0; i < GDN_HEAD_DIM; i += ROWS)
        for (int c = 0; c < GDN_SLICE; c += WIDE * VL) {
            float *state = a->state + i * GDN_SLICE + c;
            vf s[ROWS][WIDE];
            UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int j = 0; j < WIDE; j++) s[r][j] =
                vf_mul(decay, vf_load(state + r * GDN_SLICE + j * VL));
            UNROLL for (int t = 0; t < GDN_CELL; t++)
            {
                vf dt[WIDE];
                UNROLL for (int j = 0; j < WIDE; j++) dt[j] = vf_load(d[t] + c + j * VL);
                UNROLL for (int r = 0; r < ROWS; r++)
                {
                    vf factor = vf_set1(k[t * a->qk_stride + i + r]);
                    UNROLL for (int j = 0; j < WIDE; j++) s[r][j] = vf_fma(factor, dt[j], s[r][j]);
                }
            }
            UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int j = 0; j < WIDE; j++)
                vf_store(state + r * GDN_SLICE + j * VL, s[r][j]);
        }
}

void KERNEL(gdn_scan)(const gdn_scan_args *a)
{
    _Alignas(64) cell_rows d, sums;
    _Alignas(64) gdn_cell cell;
    for (int32_t at = 0; a->n_tokens > 0 && at < a->first + a->n_tokens; at += GDN_CELL) {
        gdn_cell_begin(a, at, &cell);
        int32_t begin = cell.begin, end = cell.end, n = end - begin, i = at + begin - a->first;
        read_ahead(a, i + n);
        copy_rows(d[0], a->rest, begin, 0, GDN_SLICE);
        multiply_cell(a, &cell, d, sums);
        finish_cell(a, &cell, d, sums, 0, GDN_SLICE);
        if (end == GDN_CELL)
            update(a, &cell, d);
        else
            copy_rows(a->rest + begin * GDN_SLICE, d[begin], n, 0, GDN_SLICE);
    }
}
