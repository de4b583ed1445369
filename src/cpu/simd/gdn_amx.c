/* The Gated DeltaNet recurrence of prefill on AMX tiles: the counterpart of gdn_scan_avx512 (gdn.c)
 * over the same cells.
 *
 * Tiles multiply bfloat16, so each factor is split in two, high + low, 16 bits together, as
 * attention does. A cell's keys and queries are 16 rows, which is a tile:
 *
 *   S^T [k, q]: [k, q] (tiles A, packed) S (tiles B, pairs of rows), three of the four products
 *   K^T d:      K^T (tiles A, packed) d (tiles B); eight tokens with the four products of their
 *               parts are the 32 terms of one product of tiles
 *
 * The state stays f32. One pass over it adds a cell's K^T d, splits it while it is in registers and
 * multiplies it with the keys and queries of the next cell: for 32 rows and 16 columns five
 * products of tiles (80 cycles), 192 operations on vectors (96 cycles) and 96 stores, where
 * products on vectors are 384 cycles. Time goes to what waits for each other, so these stand beside
 * each other (pass_block), and to the first-level cache, which the state fills by a third: a
 * block's products are used as soon as they are there, and packed keys and queries, 16 KB a cell,
 * are loaded with the hint that they are not needed again. */
#include "cpu/simd/amx.h"
#include "cpu/simd/gdn_cell.h"

#include <string.h>

enum {
    GROUPS = GDN_HEAD_DIM / STEP, /* of 32 key dims */
    HALVES = STEP / TILE,         /* of a group */
    COLUMNS = GDN_SLICE / TILE,   /* tiles */
    PLANES = 2,                   /* high, low */
    LINE = 64,                    /* bytes */
    ROW_BYTES = GDN_SLICE * sizeof(float),
};
_Static_assert(2 * GDN_CELL == TILE && 4 * GDN_CELL == STEP && COLUMNS == 2, "as tiles have it");

typedef uint16_t bf16_tile[TILE][STEP];
typedef float f32_tile[TILE][TILE];

/* Keys and queries of a cell. */
typedef struct packed_cell {
    bf16_tile rows[GROUPS][PLANES]; // eight of k, eight of q; pairs of dims 16 apart
    bf16_tile keys[GROUPS][HALVES]; // 16 dims by the terms of pack_terms
} packed_cell;
_Static_assert(sizeof(packed_cell) == AMX_GDN_CELL_BYTES, "as the table says");

/* What a slice needs on its way through its cells. */
typedef struct scan {
    _Alignas(64) float sums[2 * GDN_CELL][GDN_SLICE]; /* S^T k, then d; S^T q */
    bf16_tile terms[COLUMNS];                         /* of d */
    f32_tile added[COLUMNS][HALVES];                  /* K^T d of a block */
    bf16_tile parts[COLUMNS][PLANES];                 /* of a block of the state */
    gdn_cell cell;
    const gdn_scan_args *a;
} scan;

/* ---- packing ---- */

static void pack_row(const float *x, packed_cell *out, int row)
{
    for (int g = 0; g < GROUPS; g++) {
        __m512i high, low;
        split_pairs(vf_load(x + g * STEP), vf_load(x + g * STEP + TILE), &high, &low);
        _mm512_store_si512(out->rows[g][0][row], high);
        _mm512_store_si512(out->rows[g][1][row], low);
    }
}

static void clear_row(packed_cell *out, int row)
{
    for (int g = 0; g < GROUPS; g++)
        for (int p = 0; p < PLANES; p++)
            _mm512_store_si512(out->rows[g][p][row], _mm512_setzero_si512());
}

/* 16 dims of four keys, to lane l of out[i] those of dim 4 l + i, each as a pair low, high. */
ALWAYS_INLINE void pack_keys(const float *k, int64_t stride, vf out[4])
{
    vf x[4];
    for (int t = 0; t < 4; t++) {
        vf value = vf_load(k + t * stride), high = high_part(value);
        vf low = high_part(vf_sub(value, high));
        x[t] = _mm512_castsi512_ps(interleave(low, high));
    }
    vf a = _mm512_unpacklo_ps(x[0], x[1]), b = _mm512_unpackhi_ps(x[0], x[1]);
    vf c = _mm512_unpacklo_ps(x[2], x[3]), d = _mm512_unpackhi_ps(x[2], x[3]);
    out[0] = _mm512_shuffle_ps(a, c, 0x44);
    out[1] = _mm512_shuffle_ps(a, c, 0xee);
    out[2] = _mm512_shuffle_ps(b, d, 0x44);
    out[3] = _mm512_shuffle_ps(b, d, 0xee);
}

/* Lane l of a twice, then of b. */
#define STORE_TWICE(to, a, b, l)                                                                   \
    vf_store((float *)(void *)(to), _mm512_shuffle_f32x4(a, b, (l)*0x55))

static void pack_transposed(const float *k, int64_t stride, bf16_tile out)
{
    vf a[4], b[4];
    pack_keys(k, stride, a);
    pack_keys(k + 4 * stride, stride, b);
    for (int i = 0; i < 4; i++) {
        STORE_TWICE(out[i], a[i], b[i], 0);
        STORE_TWICE(out[4 + i], a[i], b[i], 1);
        STORE_TWICE(out[8 + i], a[i], b[i], 2);
        STORE_TWICE(out[12 + i], a[i], b[i], 3);
    }
}

/* A cell. Rows of tokens that are not there, or not to be done, are zeros. */
static void pack_cell(const gdn_products_args *a, packed_cell *out)
{
    const int32_t end = a->first + a->n_tokens;
    for (int32_t t = 0; t < GDN_CELL; t++) {
        if (t < a->first || t >= end) {
            clear_row(out, t);
            clear_row(out, GDN_CELL + t);
            continue;
        }
        pack_row(a->k + t * a->qk_stride, out, t);
        pack_row(a->q + (t - a->first) * a->qk_stride, out, GDN_CELL + t);
    }
    if (end < GDN_CELL) return; /* changes no state */
    for (int i = 0; i < GROUPS * HALVES; i++)
        pack_transposed(a->k + i * TILE, a->qk_stride, out->keys[i / HALVES][i % HALVES]);
}

void gdn_pack_amx(const gdn_products_args *a, void *packed)
{
    packed_cell *out = packed;
    const int32_t all = a->first + a->n_tokens;
    for (int32_t at = 0; at < all; at += GDN_CELL, out++) {
        int32_t first = at == 0 ? a->first : 0, n = all - at < GDN_CELL ? all - at : GDN_CELL;
        gdn_products_args cell = {.first = first,
                                  .n_tokens = n - first,
                                  .q = a->q + (at + first - a->first) * a->qk_stride,
                                  .k = a->k + at * a->qk_stride,
                                  .qk_stride = a->qk_stride,
                                  .out = a->out + at / GDN_CELL * GDN_CELL_PRODUCTS};
        gdn_products_avx512(&cell);
        pack_cell(&cell, out);
    }
}

/* ---- a cell's tokens ---- */

/* The tokens' g(last, j) d_j, of which each term is twice in a pair, as are those of keys: high
 * parts of four tokens, low parts of those, then of the other four. */
static void pack_terms(const float *d, const float *tail, bf16_tile out)
{
    for (int t = 0; t < GDN_CELL; t++) {
        vf x = vf_mul(vf_set1(tail[t]), vf_load(d + t * GDN_SLICE));
        vf high = high_part(x), low = high_part(vf_sub(x, high));
        int row = t / 4 * 8 + t % 4;
        _mm512_store_si512(out[row], interleave(high, high));
        _mm512_store_si512(out[row + 4], interleave(low, low));
    }
    settle_memory();
}

/* d and outputs of a tile of columns from its sums; its terms, if the cell is whole. */
static void finish_column(scan *s, int column)
{
    const gdn_scan_args *a = s->a;
    const gdn_cell *cell = &s->cell;
    const int from = column * TILE, to = from + TILE, n = cell->end - cell->begin;
    copy_rows(s->sums[0], a->rest, cell->begin, from, to);
    finish_cell(a, cell, s->sums, s->sums + GDN_CELL, from, to);
    if (cell->end == GDN_CELL)
        pack_terms(s->sums[0] + from, cell->tail, s->terms[column]);
    else
        copy_rows(a->rest + cell->begin * GDN_SLICE, s->sums[cell->begin], n, from, to);
}

static void begin_cell(scan *s, int32_t at)
{
    gdn_cell_begin(s->a, at, &s->cell);
    read_ahead(s->a, at + s->cell.end - s->a->first);
}

/* ---- a pass over the state ---- */

/* A block is 32 rows of a tile of columns, which is a constant, as the names of tiles must be.
 * Tiles 0 and 1 hold sums of S^T [k, q] of the tiles of columns, 2 and 3 their terms. */

/* K^T d of a block, to be stored by end_keys. */
ALWAYS_INLINE void begin_keys(const bf16_tile *keys, int column)
{
    _tile_stream_loadd(4, keys[0], LINE);
    _tile_zero(5);
    if (column == 0)
        _tile_dpbf16ps(5, 4, 2);
    else
        _tile_dpbf16ps(5, 4, 3);
    _tile_stream_loadd(4, keys[1], LINE);
    _tile_zero(6);
    if (column == 0)
        _tile_dpbf16ps(6, 4, 2);
    else
        _tile_dpbf16ps(6, 4, 3);
}
ALWAYS_INLINE void end_keys(f32_tile *out)
{
    _tile_stored(5, out[0], LINE);
    _tile_stored(6, out[1], LINE);
    settle_memory();
}

/* [k, q] times a block of the state, in three steps: low high, high high, high low. */
ALWAYS_INLINE void multiply_state(int step, const bf16_tile *rows, const bf16_tile *parts,
                                  int column)
{
    if (step == 0) _tile_loadd(4, parts[0], LINE);
    if (step == 0) _tile_stream_loadd(7, rows[1], LINE);
    if (step == 1) _tile_stream_loadd(7, rows[0], LINE);
    if (step == 2) _tile_loadd(4, parts[1], LINE);
    if (column == 0)
        _tile_dpbf16ps(0, 7, 4);
    else
        _tile_dpbf16ps(1, 7, 4);
    settle_memory();
}

/* The sums, to where finish_column takes them. */
ALWAYS_INLINE void store_sums(scan *s, int column)
{
    if (column == 0)
        _tile_stored(0, s->sums, ROW_BYTES);
    else
        _tile_stored(1, (float *)s->sums + TILE, ROW_BYTES);
    settle_memory();
}

ALWAYS_INLINE void load_terms(scan *s, int column)
{
    if (column == 0)
        _tile_loadd(2, s->terms[0], LINE);
    else
        _tile_loadd(3, s->terms[1], LINE);
}

/* Pairs of values as two bfloat16 each; the high ones are cut off, which saves rounding them and
 * costs a bit. */
ALWAYS_INLINE void split_cut(vf a, vf b, __m512i *high, __m512i *low)
{
    const __m512i mask = _mm512_set1_epi32((int)0xffff0000), half = _mm512_set1_epi32(0x8000);
    vf ha = _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(a), mask));
    vf hb = _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(b), mask));
    __m512i la = _mm512_add_epi32(_mm512_castps_si512(vf_sub(a, ha)), half);
    __m512i lb = _mm512_add_epi32(_mm512_castps_si512(vf_sub(b, hb)), half);
    *high = interleave(a, b);
    *low = interleave(_mm512_castsi512_ps(la), _mm512_castsi512_ps(lb));
}

/* Rows [row, row + n) of both halves of a block: S = decay S + added (with `update`) and its parts
 * (with `multiply`), which are constants. */
ALWAYS_INLINE void pass_rows(float *state, int row, int n, vf decay, f32_tile *added,
                             bf16_tile *parts, bool update, bool multiply)
{
    for (int r = row; r < row + n; r++) {
        float *at_a = state + r * GDN_SLICE, *at_b = at_a + TILE * GDN_SLICE;
        vf a = vf_load(at_a), b = vf_load(at_b);
        if (update) {
            a = vf_fma(decay, a, vf_load(added[0][r]));
            b = vf_fma(decay, b, vf_load(added[1][r]));
            vf_store(at_a, a);
            vf_store(at_b, b);
        }
        if (!multiply) continue;
        __m512i high, low;
        split_cut(a, b, &high, &low);
        _mm512_store_si512(parts[0][r], high);
        _mm512_store_si512(parts[1][r], low);
    }
    settle_memory();
}

/* The tokens of s->cell, from the sums in tiles 0 and 1; of a whole cell the terms to tiles 2 and 3
 * and the first block's K^T d. */
static void finish_tokens(scan *s, const packed_cell *packed)
{
    store_sums(s, 0);
    finish_column(s, 0);
    if (s->cell.end == GDN_CELL) {
        load_terms(s, 0);
        begin_keys(packed->keys[0], 0);
        end_keys(s->added[0]);
    }
    store_sums(s, 1);
    finish_column(s, 1);
    if (s->cell.end == GDN_CELL) load_terms(s, 1);
}

/* Rows of a block. Beside them, a step every few rows, what would wait for each other: K^T d of the
 * block behind it, by `keys`, and `rows` times the one before it, both of the other column; either
 * may be NULL. */
ALWAYS_INLINE void pass_block(scan *s, float *state, int column, vf decay, bool update,
                              bool multiply, const bf16_tile *keys, const bf16_tile *rows)
{
    enum { ROWS = TILE / 4 };
    const int other = 1 - column;
    f32_tile *added = s->added[column];
    bf16_tile *parts = s->parts[column], *last_parts = s->parts[other];
    if (keys) begin_keys(keys, other);
    pass_rows(state, 0, ROWS, decay, added, parts, update, multiply);
    if (rows) multiply_state(0, rows, last_parts, other);
    pass_rows(state, ROWS, ROWS, decay, added, parts, update, multiply);
    if (keys) end_keys(s->added[other]);
    if (rows) multiply_state(1, rows, last_parts, other);
    pass_rows(state, 2 * ROWS, ROWS, decay, added, parts, update, multiply);
    if (rows) multiply_state(2, rows, last_parts, other);
    pass_rows(state, 3 * ROWS, ROWS, decay, added, parts, update, multiply);
}

/* The state behind `cell`, whose first block's K^T d is there (with `update`), and the sums
 * S^T [k, q] of `next` to tiles 0 and 1 (with `multiply`); the two are constants. */
ALWAYS_INLINE void pass(scan *s, const packed_cell *cell, const packed_cell *next, bool update,
                        bool multiply)
{
    const vf decay = update ? vf_set1(s->cell.decay[GDN_CELL - 1]) : vf_zero();
    float *state = s->a->state;
    _tile_zero(0);
    _tile_zero(1);
    for (int g = 0; g < GROUPS; g++, state += STEP * GDN_SLICE) {
        pass_block(s, state, 0, decay, update, multiply, update ? cell->keys[g] : NULL,
                   multiply && g > 0 ? next->rows[g - 1] : NULL);
        pass_block(s, state + TILE, 1, decay, update, multiply,
                   update && g + 1 < GROUPS ? cell->keys[g + 1] : NULL,
                   multiply ? next->rows[g] : NULL);
    }
    for (int step = 0; multiply && step < 3; step++)
        multiply_state(step, next->rows[GROUPS - 1], s->parts[1], 1);
}

void gdn_scan_tile_amx(const gdn_scan_args *a)
{
    scan s;
    const int32_t all = a->first + a->n_tokens;
    const packed_cell *packed = a->packed;
    if (a->n_tokens <= 0) return;
    s.a = a;
    configure_tiles();
    pass(&s, NULL, packed, false, true);
    for (int32_t at = 0; at < all; at += GDN_CELL, packed++) {
        begin_cell(&s, at);
        finish_tokens(&s, packed);
        if (at + GDN_CELL < all)
            pass(&s, packed, packed + 1, true, true);
        else if (s.cell.end == GDN_CELL)
            pass(&s, packed, NULL, true, false);
    }
    _tile_release();
}
