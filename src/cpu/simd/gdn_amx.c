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
 * each other (pass), and to the first-level cache, which the state fills by a third: a block's
 * products are used as soon as they are there, and packed keys and queries are loaded with the hint
 * that they are not needed again. */
#include "cpu/simd/amx.h"
#include "cpu/simd/gdn_cell.h"

#include <string.h>

enum {
    GROUPS = GDN_HEAD_DIM / STEP, /* of 32 key dims */
    HALVES = STEP / TILE,         /* of a group */
    COLUMNS = GDN_SLICE / TILE,   /* tiles */
    BLOCKS = GROUPS * COLUMNS,
    PLANES = 2, /* high, low */
    LINE = 64,  /* bytes */
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

/* A slice on its way through its cells. */
typedef struct scan {
    _Alignas(64) float sums[2 * GDN_CELL][GDN_SLICE]; /* S^T k, then d; S^T q */
    bf16_tile terms;                                  /* of d of a tile of columns */
    f32_tile added[2][HALVES];                        /* K^T d of a block and the next */
    bf16_tile parts[2][PLANES];                       /* of a block of the state and the last one */
    gdn_cell cell;
    const gdn_scan_args *a;
    const packed_cell *packed; /* of the cell that changes the state */
    int32_t at;                /* its first token */
    int32_t left;              /* tokens from that on */
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
        pack_terms(s->sums[0] + from, cell->tail, s->terms);
    else
        copy_rows(a->rest + cell->begin * GDN_SLICE, s->sums[cell->begin], n, from, to);
}

static void begin_cell(scan *s, int32_t at)
{
    gdn_cell_begin(s->a, at, &s->cell);
    read_ahead(s->a, at + s->cell.end - s->a->first);
}

/* ---- a pass over the state ---- */

/* A block is 32 rows of a tile of columns. Tile 0 holds sums of S^T [k, q] of a tile of columns,
 * tile 1 the terms of one. */

/* K^T d of a block, to be stored by end_keys. */
ALWAYS_INLINE void begin_keys(const bf16_tile *keys)
{
    _tile_stream_loadd(4, keys[0], LINE);
    _tile_zero(2);
    _tile_dpbf16ps(2, 4, 1);
    _tile_stream_loadd(5, keys[1], LINE);
    _tile_zero(3);
    _tile_dpbf16ps(3, 5, 1);
}
ALWAYS_INLINE void end_keys(f32_tile *out)
{
    _tile_stored(2, out[0], LINE);
    _tile_stored(3, out[1], LINE);
    settle_memory();
}

/* [k, q] times a block of the state, in three steps: low high, high high, high low. */
ALWAYS_INLINE void multiply_state(int step, const bf16_tile *rows, const bf16_tile *parts)
{
    if (step == 0) _tile_loadd(7, parts[0], LINE);
    if (step == 0) _tile_stream_loadd(6, rows[1], LINE);
    if (step == 1) _tile_stream_loadd(6, rows[0], LINE);
    if (step == 2) _tile_loadd(7, parts[1], LINE);
    _tile_dpbf16ps(0, 6, 7);
    settle_memory();
}

/* The sums, to where finish_column takes them. */
ALWAYS_INLINE void store_sums(scan *s, int column)
{
    _tile_stored(0, (float *)s->sums + column * TILE, ROW_BYTES);
    settle_memory();
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

ALWAYS_INLINE float *block_of(const scan *s, int block)
{
    return s->a->state + block % GROUPS * STEP * GDN_SLICE + block / GROUPS * TILE;
}

/* S^T [k, q] of the first cell. */
static void first_sums(scan *s, int column)
{
    _tile_zero(0);
    for (int g = 0; g < GROUPS; g++) {
        pass_rows(block_of(s, column * GROUPS + g), 0, TILE, vf_zero(), NULL, s->parts[0], false,
                  true);
        for (int step = 0; step < 3; step++) multiply_state(step, s->packed->rows[g], s->parts[0]);
    }
    store_sums(s, column);
}

/* What stands between the passes over two tiles of columns: the other one's sums are complete, and
 * its tokens are finished (of the next cell, if the other one is the first). */
ALWAYS_INLINE void turn(scan *s, int column, bool more)
{
    if (column == 1 && !more) return;
    if (column == 1) begin_cell(s, s->at + GDN_CELL);
    finish_column(s, 1 - column);
}

/* The state behind a cell, and S^T [k, q] of the next one if there is one (`more`, a constant).
 * What would wait stands beside what need not: a block's product with the terms beside the rows of
 * the block before, its products with [k, q] beside those of the block behind, a step every few
 * rows; and what finishes one tile of columns beside the pass over the other. `behind`: the last
 * block of the cell's own S^T [k, q] is still to be multiplied. */
ALWAYS_INLINE void pass(scan *s, bool more, bool behind)
{
    enum { ROWS = TILE / 4 };
    const packed_cell *cell = s->packed, *next = cell + 1;
    const bool ahead = s->left >= 2 * GDN_CELL;
    const vf decay = vf_set1(s->cell.decay[GDN_CELL - 1]);
    for (int b = 0; b < BLOCKS; b++) {
        const int g = b % GROUPS, column = b / GROUPS;
        float *state = block_of(s, b);
        f32_tile *added = s->added[b % 2], *next_added = s->added[1 - b % 2];
        bf16_tile *parts = s->parts[b % 2], *last_parts = s->parts[1 - b % 2];
        const bool keys = b + 1 < BLOCKS || ahead, rows = b == 0 ? behind : more;
        const bf16_tile *last_rows = b == 0 ? cell->rows[GROUPS - 1] : next->rows[(b - 1) % GROUPS];
        if (keys) {
            if (g + 1 == GROUPS) _tile_loadd(1, s->terms, LINE);
            begin_keys((b + 1 < BLOCKS ? cell : next)->keys[(b + 1) % GROUPS]);
        }
        pass_rows(state, 0, ROWS, decay, added, parts, true, more);
        if (g == 1 && (column == 0 ? behind : more)) store_sums(s, 1 - column);
        if (g == 1) _tile_zero(0);
        if (rows) multiply_state(0, last_rows, last_parts);
        pass_rows(state, ROWS, ROWS, decay, added, parts, true, more);
        if (keys) end_keys(next_added);
        if (rows) multiply_state(1, last_rows, last_parts);
        pass_rows(state, 2 * ROWS, ROWS, decay, added, parts, true, more);
        if (rows) multiply_state(2, last_rows, last_parts);
        pass_rows(state, 3 * ROWS, ROWS, decay, added, parts, true, more);
        if (g == 1) turn(s, column, more);
    }
}

void gdn_scan_tile_amx(const gdn_scan_args *a)
{
    scan s;
    if (a->n_tokens <= 0) return;
    s.a = a;
    s.packed = a->packed;
    s.at = 0;
    s.left = a->first + a->n_tokens;
    configure_tiles();
    begin_cell(&s, 0);
    first_sums(&s, 0);
    first_sums(&s, 1);
    finish_column(&s, 0);
    if (s.left >= GDN_CELL) {
        _tile_loadd(1, s.terms, LINE);
        begin_keys(s.packed->keys[0]);
        end_keys(s.added[0]);
    }
    for (; s.left >= GDN_CELL; s.packed++, s.at += GDN_CELL, s.left -= GDN_CELL) {
        if (s.left > GDN_CELL)
            pass(&s, true, s.at > 0);
        else
            pass(&s, false, s.at > 0);
    }
    if (s.left > 0) {
        if (s.at > 0) {
            for (int step = 0; step < 3; step++)
                multiply_state(step, s.packed->rows[GROUPS - 1], s.parts[(BLOCKS - 1) % 2]);
            store_sums(&s, 1);
        }
        finish_column(&s, 1);
    }
    _tile_release();
}
