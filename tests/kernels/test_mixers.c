/* The recurrence and attention against double arithmetic. */
#include "support/kernels.h"

#include "base/memory.h"
#include "base/numbers.h"
#include "cpu/cpu.h"
#include "support/support.h"

#include <math.h>
#include <string.h>

/* ---- the recurrence ---- */

/* T ends within a cell, WHOLE with one. */
enum { T = 45, WHOLE = T / GDN_CELL * GDN_CELL, CELLS = T / GDN_CELL + 1 };
enum { KEYS = GDN_HEAD_DIM, COLUMNS = GDN_SLICE };
/* Rows further apart than they are long, as in the model. */
enum { QK_STRIDE = 320, V_STRIDE = 64, GATE_STRIDE = 3, OUT_STRIDE = 96 };

typedef struct scan_case {
    float *state, *rest, *q, *k, *v, *decay, *beta, *products, *out;
    unsigned char *packed; /* [CELLS][gdn_packed_bytes] */
} scan_case;

/* A table has one for steps of decode, and one for prefill. */
static gdn_scan_fn *scan_kernel(const cpu_kernels *k, int tile)
{
    return tile ? k->gdn_scan_tile : k->gdn_scan;
}

/* Whether no table before has this function. */
static bool scan_is_new(int v, int tile)
{
    for (int i = 0; i < 2 * v + tile; i++)
        if (scan_kernel(&variants[i / 2], i % 2) == scan_kernel(&variants[v], tile)) return false;
    return true;
}

#define FOR_EACH_SCAN_KERNEL(v, tile)                                                              \
    for (int v = 0; v < n_variants; v++)                                                           \
        for (int tile = 0; tile < 2; tile++)                                                       \
            if (scan_is_new(v, tile))

/* Slow decays, such that states fade within some tokens, and among those zeros. */
typedef enum decay_kind { DECAY_SLOW, DECAY_STRONG, DECAY_ZEROS, N_DECAYS } decay_kind;

static float decay_of(decay_kind kind, int t)
{
    double u = (double)random_below(1000, 5, (uint64_t)t) / 1000;
    if (kind == DECAY_ZEROS && t % 5 == 3) return 0;
    return (float)(kind == DECAY_SLOW ? exp(-0.1 * u) : exp(-900 * u));
}

static size_t packed_cells_bytes(const cpu_kernels *k)
{
    return CELLS * (size_t)k->gdn_packed_bytes;
}

static scan_case scan_inputs(const cpu_kernels *k, fill_kind kind, decay_kind decay)
{
    scan_case c = {.state = guarded_floats(KEYS * COLUMNS),
                   .rest = guarded_floats((GDN_CELL - 1) * COLUMNS),
                   .q = guarded_floats(T * QK_STRIDE),
                   .k = guarded_floats(T * QK_STRIDE),
                   .v = guarded_floats(T * V_STRIDE),
                   .decay = guarded_floats(T * GATE_STRIDE),
                   .beta = guarded_floats(T * GATE_STRIDE),
                   .products = guarded_floats(CELLS * GDN_CELL_PRODUCTS),
                   .out = guarded_floats(T * OUT_STRIDE),
                   .packed = guarded(packed_cells_bytes(k))};
    fill(c.state, KEYS * COLUMNS, kind, 1);
    fill(c.v, T * V_STRIDE, kind, 2);
    fill(c.q, T * QK_STRIDE, FILL_NORMAL, 3);
    fill(c.k, T * QK_STRIDE, FILL_NORMAL, 4);
    for (int t = 0; t < T; t++) {
        double squares = 0;
        for (int i = 0; i < KEYS; i++)
            squares += (double)c.k[t * QK_STRIDE + i] * (double)c.k[t * QK_STRIDE + i];
        for (int i = 0; i < KEYS; i++) { /* normalised, as the model's keys: else it explodes */
            c.k[t * QK_STRIDE + i] /= (float)sqrt(squares);
            c.q[t * QK_STRIDE + i] /= (float)sqrt(squares);
        }
        c.decay[t * GATE_STRIDE] = decay_of(decay, t);
        c.beta[t * GATE_STRIDE] = (float)random_below(1001, 6, (uint64_t)t) / 1000.0f;
    }
    return c;
}

/* The same key in every token, which each takes in whole: what tokens of a cell do to each other at
 * its largest. */
static void repeat_key(const scan_case *c)
{
    for (int t = 0; t < T; t++) {
        memcpy(c->k + t * QK_STRIDE, c->k, KEYS * sizeof(float));
        memcpy(c->q + t * QK_STRIDE, c->k, KEYS * sizeof(float));
        c->beta[t * GATE_STRIDE] = 1;
    }
}

static gdn_products_args products_args(const scan_case *c, int32_t at, int32_t n)
{
    int32_t cell = at / GDN_CELL * GDN_CELL;
    return (gdn_products_args){.first = at - cell,
                               .n_tokens = n,
                               .q = c->q + at * QK_STRIDE,
                               .k = c->k + cell * QK_STRIDE,
                               .qk_stride = QK_STRIDE,
                               .out = c->products + cell / GDN_CELL * GDN_CELL_PRODUCTS};
}

static unsigned char *packed_at(const cpu_kernels *k, const scan_case *c, int32_t at)
{
    return c->packed + at / GDN_CELL * k->gdn_packed_bytes;
}

static gdn_scan_args scan_args(const cpu_kernels *k, const scan_case *c, int32_t at, int32_t n)
{
    int32_t cell = at / GDN_CELL * GDN_CELL;
    return (gdn_scan_args){.state = c->state,
                           .rest = c->rest,
                           .first = at - cell,
                           .n_tokens = n,
                           .q = c->q + at * QK_STRIDE,
                           .k = c->k + cell * QK_STRIDE,
                           .qk_stride = QK_STRIDE,
                           .products = c->products + cell / GDN_CELL * GDN_CELL_PRODUCTS,
                           .packed = packed_at(k, c, at),
                           .v = c->v + at * V_STRIDE,
                           .v_stride = V_STRIDE,
                           .decay = c->decay + cell * GATE_STRIDE,
                           .beta = c->beta + at * GATE_STRIDE,
                           .gate_stride = GATE_STRIDE,
                           .out = c->out + at * OUT_STRIDE,
                           .out_stride = OUT_STRIDE};
}

/* Tokens [at, at + n), those before them done. */
static void scan(const cpu_kernels *k, int tile, const scan_case *c, int32_t at, int32_t n)
{
    gdn_products_args products = products_args(c, at, n);
    gdn_scan_args args = scan_args(k, c, at, n);
    if (tile && k->gdn_pack)
        k->gdn_pack(&products, packed_at(k, c, at));
    else
        k->gdn_products(&products);
    scan_kernel(k, tile)(&args);
}

/* MODEL.md 3.5 as it stands there, of n tokens; d [n][columns]. */
static void scan_double(const scan_case *c, int n, double *state, double *d, double *out)
{
    for (int t = 0; t < n; t++)
        for (int j = 0; j < COLUMNS; j++) {
            const float *q = c->q + t * QK_STRIDE, *k = c->k + t * QK_STRIDE;
            double p = 0, o = 0;
            for (int i = 0; i < KEYS; i++) {
                state[i * COLUMNS + j] *= (double)c->decay[t * GATE_STRIDE];
                p += state[i * COLUMNS + j] * (double)k[i];
            }
            double delta = (double)c->beta[t * GATE_STRIDE] * ((double)c->v[t * V_STRIDE + j] - p);
            for (int i = 0; i < KEYS; i++) {
                state[i * COLUMNS + j] += (double)k[i] * delta;
                o += state[i * COLUMNS + j] * (double)q[i];
            }
            out[t * COLUMNS + j] = o;
            d[t * COLUMNS + j] = delta;
        }
}

static double largest(const float *x, int n)
{
    double size = 0; /* not by fmax, over which gcc 12 for aarch64 stumbles */
    for (int i = 0; i < n; i++)
        if (fabs((double)x[i]) > size) size = fabs((double)x[i]);
    return size;
}

static scan_case repeated_inputs(const cpu_kernels *k, fill_kind kind, decay_kind decay,
                                 bool same_key)
{
    scan_case c = scan_inputs(k, kind, decay);
    if (same_key) repeat_key(&c);
    return c;
}

static void check_scan(const cpu_kernels *k, int tile, fill_kind kind, decay_kind decay,
                       bool same_key)
{
    static double state[KEYS * COLUMNS], out[T * COLUMNS], d[T * COLUMNS];
    scan_case c = repeated_inputs(k, kind, decay, same_key);
    const char *name =
        text("%s %d, fill %d, decay %d, same key %d", k->isa, tile, kind, decay, same_key);
    for (int i = 0; i < KEYS * COLUMNS; i++) state[i] = (double)c.state[i];
    double bound = 1e-5 * largest(c.state, KEYS * COLUMNS) + 1e-37;
    scan(k, tile, &c, 0, T);
    scan_double(&c, WHOLE, state, d, out);
    for (int i = 0; i < KEYS * COLUMNS; i++) assert_near((double)c.state[i], state[i], bound, name);
    for (int i = 0; i < KEYS * COLUMNS; i++) state[i] = 0;
    scan_case again = repeated_inputs(k, kind, decay, same_key);
    for (int i = 0; i < KEYS * COLUMNS; i++) state[i] = (double)again.state[i];
    scan_double(&c, T, state, d, out);
    for (int i = 0; i < (T - WHOLE) * COLUMNS; i++)
        assert_near((double)c.rest[i], d[WHOLE * COLUMNS + i], 4 * bound, name);
    for (int t = 0; t < T; t++)
        for (int j = 0; j < OUT_STRIDE; j++)
            assert_near((double)c.out[t * OUT_STRIDE + j], j < COLUMNS ? out[t * COLUMNS + j] : 0,
                        j < COLUMNS ? 4 * bound : 0, name);
    /* In pieces, within cells and across them: the same bits. */
    static const int32_t cuts[] = {0, 1, 1, 2, 7, 8, 9, 13, 24, 31, 40, 42, T};
    for (int i = 0; i + 1 < (int)(sizeof cuts / sizeof cuts[0]); i++)
        scan(k, tile, &again, cuts[i], cuts[i + 1] - cuts[i]);
    assert_memory_equal(again.state, c.state, KEYS * COLUMNS * sizeof(float));
    assert_memory_equal(again.rest, c.rest, (T - WHOLE) * COLUMNS * sizeof(float));
    assert_memory_equal(again.out, c.out, T * OUT_STRIDE * sizeof(float));
    assert_memory_equal(again.products, c.products, CELLS * GDN_CELL_PRODUCTS * sizeof(float));
    guarded_check();
}

static void test_gdn_scan(void **state)
{
    (void)state;
    FOR_EACH_SCAN_KERNEL(v, tile)
    for (int kind = 0; kind < N_FILLS; kind++)
        for (int decay = 0; decay < N_DECAYS; decay++)
            for (int same_key = 0; same_key < 2; same_key++)
                check_scan(&variants[v], tile, (fill_kind)kind, (decay_kind)decay, same_key);
}

static void test_gdn_products(void **state)
{
    (void)state;
    FOR_EACH_VARIANT (v, gdn_products) {
        scan_case c = scan_inputs(&variants[v], FILL_NORMAL, DECAY_SLOW);
        gdn_products_args args = products_args(&c, 0, T);
        variants[v].gdn_products(&args);
        for (int t = 0; t < T; t++)
            for (int j = 0; j < GDN_CELL; j++) {
                int cell = t / GDN_CELL, other = cell * GDN_CELL + j;
                const float *kk = c.products + cell * GDN_CELL_PRODUCTS + t % GDN_CELL * GDN_CELL;
                double by_k = 0, by_q = 0;
                for (int i = 0; other <= t && i < KEYS; i++) {
                    double x = (double)c.k[other * QK_STRIDE + i];
                    by_k += (double)c.k[t * QK_STRIDE + i] * x;
                    by_q += (double)c.q[t * QK_STRIDE + i] * x;
                }
                assert_near((double)kk[j], by_k, other <= t ? 1e-6 : 0, variants[v].isa);
                assert_near((double)kk[GDN_CELL * GDN_CELL + j], by_q, other <= t ? 4e-6 : 0,
                            variants[v].isa);
            }
        guarded_check();
    }
}

/* A decay of exactly 0 forgets everything, and a NaN shows in its column, from its token on. */
static void test_gdn_scan_edges(void **state)
{
    (void)state;
    FOR_EACH_SCAN_KERNEL(v, tile)
    {
        const cpu_kernels *k = &variants[v];
        scan_case c = scan_inputs(k, FILL_NORMAL, DECAY_SLOW);
        for (int t = 0; t < T; t++) c.decay[t * GATE_STRIDE] = 0;
        scan(k, tile, &c, 0, WHOLE);
        const float *key = c.k + (WHOLE - 1) * QK_STRIDE, *value = c.v + (WHOLE - 1) * V_STRIDE;
        float beta = c.beta[(WHOLE - 1) * GATE_STRIDE];
        for (int i = 0; i < KEYS; i++)
            for (int j = 0; j < COLUMNS; j++)
                assert_near((double)c.state[i * COLUMNS + j],
                            (double)key[i] * (double)beta * (double)value[j],
                            tile && k->gdn_pack ? 4e-6 : 1e-6, k->isa);
        guarded_check();
        for (int n = 1; n <= GDN_CELL; n += GDN_CELL - 1) { /* alone, and within a cell */
            c = scan_inputs(k, FILL_NORMAL, DECAY_SLOW);
            c.v[4 * V_STRIDE + 5] = NAN;
            for (int at = 0; at < GDN_CELL; at += n) scan(k, tile, &c, at, n);
            for (int t = 0; t < GDN_CELL; t++)
                for (int j = 0; j < COLUMNS; j++)
                    assert_int_equal(isnan(c.out[t * OUT_STRIDE + j]), j == 5 && t >= 4);
            for (int i = 0; i < KEYS * COLUMNS; i++)
                assert_int_equal(isnan(c.state[i]), i % COLUMNS == 5);
            guarded_check();
        }
    }
}

/* ---- attention ---- */

enum { DIM = ATTENTION_HEAD_DIM, TOKENS = 256, ROWS = ATTENTION_MAX_ROWS };
/* A tile of tokens over a cache of some blocks, two heads of which are not used. */
enum { TILE_CACHE = 4, TILE_TOKENS = 37, TILE_HEADS = 5, TILE_STRIDE = (TILE_HEADS + 2) * DIM };

typedef struct attention_case {
    attention_block_args args;
    float *k, *v; /* what the block holds, as f32 */
} attention_case;

/* The kernels of one block: over f32, over half. */
typedef enum block_kind { BLOCK_F32, BLOCK_F16, N_BLOCK_KINDS } block_kind;

static attention_block_fn *block_kernel(const cpu_kernels *k, block_kind kind)
{
    return kind == BLOCK_F32 ? k->attention_block_f32 : k->attention_block_f16;
}

/* Whether no table or kind before has this function. */
static bool block_is_new(int v, block_kind kind)
{
    attention_block_fn *fn = block_kernel(&variants[v], kind);
    for (int i = 0; i < v * N_BLOCK_KINDS + (int)kind; i++)
        if (block_kernel(&variants[i / N_BLOCK_KINDS], (block_kind)(i % N_BLOCK_KINDS)) == fn)
            return false;
    return true;
}

#define FOR_EACH_BLOCK_KERNEL(v, block)                                                            \
    for (int v = 0; v < n_variants; v++)                                                           \
        for (int block = 0; block < N_BLOCK_KINDS; block++)                                        \
            if (block_is_new(v, (block_kind)block))

/* Queries that make some rows' softmax flat and others' sharp. */
static attention_case attention_inputs(fill_kind kind, bool f16, const int32_t *visible)
{
    attention_case c = {.k = guarded_floats(TOKENS * DIM), .v = guarded_floats(TOKENS * DIM)};
    float *q = guarded_floats(ROWS * DIM);
    fill(q, ROWS * DIM, kind, 1);
    for (int r = 0; r < ROWS; r++)
        for (int d = 0; d < DIM; d++) q[r * DIM + d] *= (float)(1 + r) / 64;
    fill(c.k, TOKENS * DIM, FILL_NORMAL, 2);
    fill(c.v, TOKENS * DIM, FILL_NORMAL, 3);
    c.args = (attention_block_args){.q = q,
                                    .n_rows = ROWS,
                                    .visible = visible,
                                    .k = c.k,
                                    .v = c.v,
                                    .max = guarded_floats(ROWS),
                                    .sum = guarded_floats(ROWS),
                                    .out = guarded_floats(ROWS * DIM)};
    if (!f16) return c;
    uint16_t *k = guarded(TOKENS * DIM * sizeof *k), *v = guarded(TOKENS * DIM * sizeof *v);
    for (int i = 0; i < TOKENS * DIM; i++) {
        k[i] = f32_to_f16(c.k[i]), c.k[i] = f16_to_f32(k[i]);
        v[i] = f32_to_f16(c.v[i]), c.v[i] = f16_to_f32(v[i]);
    }
    c.args.k = k;
    c.args.v = v;
    return c;
}

/* A row in double: q over n tokens of k and v. */
typedef struct exact_row {
    double max, sum, out[DIM];
    double score_error, size[DIM]; /* bounds of the scores' errors, of what out's are relative to */
} exact_row;

static void attend_double(const float *q, const float *k, const float *v, int32_t n, double error,
                          exact_row *row)
{
    static double scores[TILE_CACHE * TOKENS];
    *row = (exact_row){.max = -INFINITY};
    for (int32_t t = 0; t < n; t++) {
        double size = 0;
        scores[t] = 0;
        for (int d = 0; d < DIM; d++) {
            scores[t] += (double)q[d] * (double)k[t * DIM + d];
            size += fabs((double)q[d] * (double)k[t * DIM + d]);
        }
        row->max = fmax(row->max, scores[t]);
        row->score_error = fmax(row->score_error, error * size);
    }
    for (int32_t t = 0; t < n; t++) {
        double weight = exp(scores[t] - row->max);
        row->sum += weight;
        for (int d = 0; d < DIM; d++) {
            row->out[d] += weight * (double)v[t * DIM + d];
            row->size[d] += weight * fabs((double)v[t * DIM + d]);
        }
    }
}

static void check_row(const attention_case *c, int r, const char *context)
{
    const double error = 1e-6;
    exact_row row;
    attend_double(c->args.q + r * DIM, c->k, c->v, c->args.visible[r], error, &row);
    if (c->args.visible[r] == 0) {
        assert_true(isinf(c->args.max[r]) && c->args.max[r] < 0 && c->args.sum[r] == 0);
    } else {
        assert_near((double)c->args.max[r], row.max, row.score_error, context);
        assert_near((double)c->args.sum[r], row.sum, row.sum * (error + 4 * row.score_error),
                    context);
    }
    for (int d = 0; d < DIM; d++)
        assert_near((double)c->args.out[r * DIM + d], row.out[d],
                    row.size[d] * (2 * error + 4 * row.score_error), context);
}

static void check_attention(const cpu_kernels *k, block_kind block, fill_kind kind,
                            const int32_t *visible)
{
    bool f16 = block != BLOCK_F32;
    attention_case c = attention_inputs(kind, f16, visible);
    block_kernel(k, block)(&c.args);
    for (int r = 0; r < ROWS; r++)
        check_row(&c, r, text("%s block %d fill %d row %d", k->isa, block, kind, r));
    /* A row alone, and rows in other company: the same bits. */
    attention_block_args other = c.args;
    other.max = guarded_floats(ROWS), other.sum = guarded_floats(ROWS);
    other.out = guarded_floats(ROWS * DIM);
    for (int r = 0; r < ROWS; r += 3) {
        attention_block_args a = other;
        a.q += r * DIM, a.visible += r, a.max += r, a.sum += r, a.out += r * DIM;
        a.n_rows = ROWS - r < 3 ? ROWS - r : r % 2 ? 3 : 2;
        block_kernel(k, block)(&a);
        for (int i = 0; i < a.n_rows; i++) {
            assert_memory_equal(&a.max[i], &c.args.max[r + i], sizeof(float));
            assert_memory_equal(&a.sum[i], &c.args.sum[r + i], sizeof(float));
            assert_memory_equal(a.out + i * DIM, c.args.out + (r + i) * DIM, DIM * sizeof(float));
        }
    }
    guarded_check();
}

static void test_attention_block(void **state)
{
    (void)state;
    int32_t visible[3][ROWS];
    for (int r = 0; r < ROWS; r++) {
        visible[0][r] = TOKENS;
        visible[1][r] = r < 3 ? 0 : r * TOKENS / ROWS + r % 3; /* causal, with odd ends */
        visible[2][r] = r % 5;
    }
    FOR_EACH_BLOCK_KERNEL (v, block)
        for (int i = 0; i < 3; i++)
            for (int kind = 0; kind < N_FILLS; kind++) {
                /* scores of 1e12 leave nothing to compare but their rounding */
                if (kind == FILL_LARGE || kind == FILL_SPIKES) continue;
                check_attention(&variants[v], (block_kind)block, (fill_kind)kind, visible[i]);
            }
}

/* Very sharp scores: no overflow, the largest wins. */
static void test_attention_sharp(void **state)
{
    (void)state;
    int32_t visible[ROWS];
    for (int r = 0; r < ROWS; r++) visible[r] = TOKENS;
    FOR_EACH_BLOCK_KERNEL (v, block) {
        attention_case c = attention_inputs(FILL_LARGE, block != BLOCK_F32, visible);
        block_kernel(&variants[v], (block_kind)block)(&c.args);
        for (int r = 0; r < ROWS; r++) {
            assert_true(isfinite(c.args.max[r]));
            assert_near((double)c.args.sum[r], 1, 1e-6, variants[v].isa);
            for (int d = 0; d < DIM; d++) assert_true(isfinite(c.args.out[r * DIM + d]));
        }
        guarded_check();
    }
}

/* Two blocks merged equal the softmax over both; empty blocks change nothing. */
static void test_attention_merge(void **state)
{
    (void)state;
    FOR_EACH_VARIANT (v, attention_merge) {
        float *a = guarded_floats(DIM), *b = guarded_floats(DIM);
        fill(a, DIM, FILL_NORMAL, 1);
        fill(b, DIM, FILL_NORMAL, 2);
        for (int i = -3; i <= 3; i++) {
            float *out = guarded_floats(DIM), max = -INFINITY, sum = 0;
            float max_b = (float)i * 40;
            variants[v].attention_merge(&max, &sum, out, -INFINITY, 0, b);
            assert_true(sum == 0 && isinf(max));
            variants[v].attention_merge(&max, &sum, out, 1.5f, 3, a);
            assert_true(max == 1.5f && sum == 3);
            assert_memory_equal(out, a, DIM * sizeof(float));
            variants[v].attention_merge(&max, &sum, out, -INFINITY, 0, b);
            assert_memory_equal(out, a, DIM * sizeof(float));
            variants[v].attention_merge(&max, &sum, out, max_b, 5, b);
            double m = fmax(1.5, (double)max_b), x = exp(1.5 - m), y = exp((double)max_b - m);
            assert_near((double)max, m, 0, variants[v].isa);
            assert_near((double)sum, 3 * x + 5 * y, 1e-6 * (3 * x + 5 * y), variants[v].isa);
            for (int d = 0; d < DIM; d++)
                assert_near((double)out[d], (double)a[d] * x + (double)b[d] * y, 2e-6,
                            variants[v].isa);
        }
        guarded_check();
    }
}

/* A NaN in a key or a value reaches the rows that see it. */
static void test_attention_not_finite(void **state)
{
    (void)state;
    int32_t visible[ROWS];
    for (int r = 0; r < ROWS; r++) visible[r] = r + 1;
    FOR_EACH_BLOCK_KERNEL (v, block) {
        bool f16 = block != BLOCK_F32;
        attention_case c = attention_inputs(FILL_NORMAL, f16, visible);
        size_t at = 9 * DIM + 100;
        if (f16)
            ((uint16_t *)(uintptr_t)c.args.k)[at] = 0x7e00;
        else
            c.k[at] = NAN;
        block_kernel(&variants[v], (block_kind)block)(&c.args);
        for (int r = 0; r < ROWS; r++)
            assert_int_equal(isnan(c.args.sum[r]) || isnan(c.args.out[r * DIM]), r >= 9);
        guarded_check();
    }
}

/* ---- attention of a tile ---- */

typedef struct tile_case {
    attention_tile_args args;
    float *q;     // [TILE_TOKENS][TILE_HEADS][256]
    float *gates; // [TILE_TOKENS][2 TILE_STRIDE], the first [256] of a head used
    float *k, *v; // [TILE_CACHE * TOKENS][256] what the timeline holds, as f32
} tile_case;

/* The block of the timeline's i-th. */
static const int32_t tile_blocks[TILE_CACHE] = {2, 0, 3, 1};

/* Half of the tokens' rows behind each other in memory: K of a block, V, another head's. */
enum { TILE_BLOCK_NUMBERS = 3 * TOKENS * DIM };

/* Queries that make some rows' softmax flat and others' sharp; behind what the last token sees
 * there is NaN, as in the workspace. */
static tile_case tile_inputs(fill_kind kind, int32_t first)
{
    size_t n = (size_t)TILE_CACHE * TOKENS * DIM;
    tile_case c = {.q = guarded_floats(TILE_TOKENS * TILE_HEADS * DIM),
                   .gates = guarded_floats(TILE_TOKENS * 2 * TILE_STRIDE),
                   .k = guarded_floats(n),
                   .v = guarded_floats(n)};
    uint16_t *cache = guarded(TILE_CACHE * TILE_BLOCK_NUMBERS * sizeof *cache);
    fill(c.q, TILE_TOKENS * TILE_HEADS * DIM, kind, 1);
    for (int i = 0; i < TILE_TOKENS * TILE_HEADS * DIM; i++)
        c.q[i] *= (float)(1 + i / DIM % 19) / 16;
    fill(c.k, n, FILL_NORMAL, 2);
    fill(c.v, n, FILL_NORMAL, 3);
    fill(c.gates, TILE_TOKENS * 2 * TILE_STRIDE, FILL_NORMAL, 4);
    c.gates[2 * DIM] = 60, c.gates[2 * DIM + 1] = -60; /* of the first token */
    for (int i = 0; i < TILE_CACHE * TILE_BLOCK_NUMBERS; i++) cache[i] = 0x7e00;
    for (int i = 0; i < (first + TILE_TOKENS) * DIM; i++) {
        uint16_t *k =
            cache + tile_blocks[i / DIM / TOKENS] * TILE_BLOCK_NUMBERS + i % (TOKENS * DIM);
        k[0] = f32_to_f16(c.k[i]), c.k[i] = f16_to_f32(k[0]);
        k[TOKENS * DIM] = f32_to_f16(c.v[i]), c.v[i] = f16_to_f32(k[TOKENS * DIM]);
    }
    c.args = (attention_tile_args){.workspace = guarded(ATTENTION_TILE_BYTES),
                                   .gates = c.gates,
                                   .out = guarded_floats(TILE_TOKENS * TILE_STRIDE),
                                   .stride = TILE_STRIDE,
                                   .n_tokens = TILE_TOKENS,
                                   .n_heads = TILE_HEADS,
                                   .first = first,
                                   .k = cache,
                                   .v = cache + TOKENS * DIM,
                                   .blocks = tile_blocks,
                                   .block_bytes = TILE_BLOCK_NUMBERS * sizeof *cache};
    return c;
}

/* Tokens [i, i + n) of heads [h, h + n_heads). */
static void run_tile(const cpu_kernels *k, const tile_case *c, int i, int n, int h, int n_heads,
                     float *out)
{
    attention_tile_args a = c->args;
    a.first += i;
    a.n_tokens = n;
    a.n_heads = n_heads;
    a.gates += 2 * (i * TILE_STRIDE + h * DIM);
    a.out = out + i * TILE_STRIDE + h * DIM;
    memset(a.workspace, 0xff, ATTENTION_TILE_BYTES);
    for (int j = 0; j < n; j++)
        memcpy(a.workspace + j * n_heads * DIM, c->q + ((i + j) * TILE_HEADS + h) * DIM,
               (size_t)n_heads * DIM * sizeof(float));
    k->attention_tile_f16(&a);
}

static void run_whole_tile(const cpu_kernels *k, const tile_case *c)
{
    run_tile(k, c, 0, TILE_TOKENS, 0, TILE_HEADS, c->args.out);
}

/* Within a bound for products of factors of 16 bits. */
static void check_tile(const cpu_kernels *k, fill_kind kind, int32_t first)
{
    const double error = 4e-6;
    tile_case c = tile_inputs(kind, first);
    run_whole_tile(k, &c);
    for (int i = 0; i < TILE_TOKENS; i++)
        for (int h = 0; h < TILE_STRIDE / DIM; h++) {
            const float *out = c.args.out + i * TILE_STRIDE + h * DIM;
            const char *name = text("%s fill %d token %d head %d", k->isa, kind, first + i, h);
            exact_row row = {.sum = 1};
            if (h < TILE_HEADS)
                attend_double(c.q + (i * TILE_HEADS + h) * DIM, c.k, c.v, first + i + 1, error,
                              &row);
            const float *gates = c.gates + 2 * (i * TILE_STRIDE + h * DIM);
            for (int d = 0; d < DIM; d++) {
                double share = 1 / (1 + exp(-(double)gates[d])) / row.sum;
                assert_near((double)out[d], row.out[d] * share,
                            row.size[d] * share * 2 * (error + 4 * row.score_error), name);
            }
        }
    /* Cut into tiles of other tokens and heads: the same bits. */
    static const int32_t cuts[] = {0, 1, 3, 4, 20, TILE_TOKENS};
    float *out = guarded_floats(TILE_TOKENS * TILE_STRIDE);
    for (int i = 0; i + 1 < (int)(sizeof cuts / sizeof cuts[0]); i++)
        for (int h = 0; h < TILE_HEADS; h += 3)
            run_tile(k, &c, cuts[i], cuts[i + 1] - cuts[i], h,
                     h + 3 < TILE_HEADS ? 3 : TILE_HEADS - h, out);
    assert_memory_equal(out, c.args.out, TILE_TOKENS * TILE_STRIDE * sizeof(float));
    guarded_check();
}

static void test_attention_tile(void **state)
{
    (void)state;
    static const int32_t firsts[] = {0, 230, 256, TILE_CACHE * TOKENS - TILE_TOKENS};
    FOR_EACH_VARIANT (v, attention_tile_f16) {
        if (!variants[v].attention_tile_f16) continue;
        for (int i = 0; i < 4; i++)
            for (int kind = 0; kind < N_FILLS; kind++)
                if (kind != FILL_LARGE && kind != FILL_SPIKES)
                    check_tile(&variants[v], (fill_kind)kind, firsts[i]);
    }
}

/* Very sharp scores: no overflow, one token's values are all. */
static void test_attention_tile_sharp(void **state)
{
    (void)state;
    FOR_EACH_VARIANT (v, attention_tile_f16) {
        if (!variants[v].attention_tile_f16) continue;
        tile_case c = tile_inputs(FILL_LARGE, 500);
        for (int j = 0; j < TILE_TOKENS * 2 * TILE_STRIDE; j++) c.gates[j] = 100;
        run_whole_tile(&variants[v], &c);
        for (int i = 0; i < TILE_TOKENS * TILE_HEADS; i++) {
            const float *out = c.args.out + i / TILE_HEADS * TILE_STRIDE + i % TILE_HEADS * DIM;
            bool found = false;
            for (int t = 0; t <= 500 + i / TILE_HEADS && !found; t++) {
                found = true;
                for (int d = 0; d < DIM && found; d++)
                    found = fabsf(out[d] - c.v[t * DIM + d]) <= 1e-5f * fabsf(out[d]);
            }
            assert_true(found);
        }
        guarded_check();
    }
}

/* A NaN in a key reaches the rows that see it, and no others; an infinite gate its number alone. */
static void test_attention_tile_not_finite(void **state)
{
    (void)state;
    FOR_EACH_VARIANT (v, attention_tile_f16) {
        if (!variants[v].attention_tile_f16) continue;
        tile_case c = tile_inputs(FILL_NORMAL, 250);
        uint16_t *k = (uint16_t *)(uintptr_t)c.args.k;
        k[tile_blocks[1] * TILE_BLOCK_NUMBERS + 9 * DIM + 100] = 0x7e00; /* of token 265 */
        c.gates[0] = INFINITY, c.gates[5] = -INFINITY;
        run_whole_tile(&variants[v], &c);
        for (int i = 0; i < TILE_TOKENS; i++)
            for (int d = 0; d < TILE_HEADS * DIM; d++)
                assert_int_equal(isnan(c.args.out[i * TILE_STRIDE + d]),
                                 250 + i >= 265 || (i == 0 && (d == 0 || d == 5)));
        guarded_check();
    }
}

/* ---- angles ---- */

/* Far into a long context the angles are still exact to f32's last bits: an f32 product of position
 * and frequency would be off by 0.01 there (MODEL.md 3.0). */
static void test_rope_angles(void **state)
{
    (void)state;
    static backend b;
    static const int64_t positions[] = {0, 1, 255, 4097, 131071, 262143, 1000003};
    for (int j = 0; j < ROTARY_PAIRS; j++)
        b.prepared.inverse_frequencies[j] = pow(1e7, -2.0 * j / ROTARY_DIMS);
    for (size_t i = 0; i < sizeof positions / sizeof positions[0]; i++) {
        float cosines[ROTARY_PAIRS], sines[ROTARY_PAIRS];
        rope_angles(&b, positions[i], cosines, sines);
        for (int j = 0; j < ROTARY_PAIRS; j++) {
            long double angle =
                (long double)positions[i] * powl(1e7L, -2.0L * (long double)j / ROTARY_DIMS);
            assert_near((double)cosines[j], (double)cosl(angle), 6.1e-8, "cosine");
            assert_near((double)sines[j], (double)sinl(angle), 6.1e-8, "sine");
        }
    }
}

/* ---- bench ---- */

typedef struct mixer_bench {
    const cpu_kernels *k;
    gdn_products_args products;
    gdn_scan_args scan;
    attention_block_args attention;
    attention_tile_args tile;
    const uint16_t *cache; /* CACHE_BLOCKS blocks of K and V */
    int block;
} mixer_bench;

enum { CACHE_BLOCKS = 512 }; /* 128 MB: beyond what processors cache */

static void run_products(void *context)
{
    mixer_bench *b = context;
    b->k->gdn_products(&b->products);
}
static void run_scan(void *context)
{
    mixer_bench *b = context;
    b->k->gdn_scan(&b->scan);
}
static void run_pack(void *context)
{
    mixer_bench *b = context;
    b->k->gdn_pack(&b->products, (void *)(uintptr_t)b->scan.packed);
}
static void run_scan_tile(void *context)
{
    mixer_bench *b = context;
    b->k->gdn_scan_tile(&b->scan);
}
static void run_attention_f16(void *context)
{
    mixer_bench *b = context;
    b->k->attention_block_f16(&b->attention);
}
/* As a decode step has them: each block once, from memory; K of two heads, then V of both. */
static const uint16_t *cached(const mixer_bench *b, int block, int which)
{
    int at = block / 2 * 4 + which * 2 + block % 2;
    return b->cache + (size_t)at * TOKENS * DIM;
}
static void run_attention_memory(void *context)
{
    mixer_bench *b = context;
    attention_block_args a = b->attention;
    int next = (b->block + 1) % CACHE_BLOCKS;
    a.k = cached(b, b->block, 0);
    a.v = cached(b, b->block, 1);
    a.next = cached(b, next, 0);
    b->block = next;
    b->k->attention_block_f16(&a);
}
static void run_attention_tile(void *context)
{
    mixer_bench *b = context;
    b->k->attention_tile_f16(&b->tile);
}

/* A whole tile of 8 heads, of the tokens before 4,096. */
static void bench_tile(mixer_bench *b)
{
    enum { HEADS = 8, N = ATTENTION_TILE_ROWS / HEADS, END = 4096 };
    int32_t blocks[END / TOKENS];
    for (int i = 0; i < END / TOKENS; i++) blocks[i] = i;
    float *workspace = guarded(ATTENTION_TILE_BYTES);
    fill(workspace, N * HEADS * DIM, FILL_NORMAL, 1);
    b->tile = (attention_tile_args){.workspace = workspace,
                                    .gates = guarded_floats(2 * N * HEADS * DIM),
                                    .out = guarded_floats(N * HEADS * DIM),
                                    .stride = HEADS * DIM,
                                    .n_tokens = N,
                                    .n_heads = HEADS,
                                    .first = END - N,
                                    .k = b->cache,
                                    .v = b->cache + TOKENS * DIM,
                                    .blocks = blocks,
                                    .block_bytes = TOKENS * DIM * 4};
    bench(text("attention tile f16 %d rows", N * HEADS), b->k->isa, END * DIM * 4.0,
          (double)N * HEADS * (END - N / 2.0) * 4 * DIM, run_attention_tile, b);
    guarded_check();
}

static void benches(void)
{
    int32_t visible[ROWS];
    for (int r = 0; r < ROWS; r++) visible[r] = TOKENS;
    calla_error err;
    void *cache;
    size_t cached = (size_t)CACHE_BLOCKS * 2 * TOKENS * DIM;
    if (mem_alloc(cached, sizeof(uint16_t), "a cache", &cache, &err) != CALLA_OK)
        fail_msg("%s", err.message);
    for (size_t i = 0; i < cached; i++) ((uint16_t *)cache)[i] = (uint16_t)(0x3000 + i % 2048);
    for (int v = 0; v < n_variants; v++) {
        mixer_bench b = {.k = &variants[v]};
        scan_case s = scan_inputs(b.k, FILL_NORMAL, DECAY_SLOW);
        b.products = products_args(&s, 0, WHOLE);
        bench(text("gdn_products %d tokens", WHOLE), b.k->isa, WHOLE * KEYS * 8.0,
              WHOLE * 2.0 * (GDN_CELL + 1) * KEYS, run_products, &b);
        b.scan = scan_args(b.k, &s, 0, WHOLE);
        bench(text("gdn_scan %d tokens", WHOLE), b.k->isa, KEYS * COLUMNS * 8.0,
              WHOLE * 7.0 * KEYS * COLUMNS, run_scan, &b);
        if (b.k->gdn_pack) {
            bench(text("gdn_pack %d tokens", WHOLE), b.k->isa,
                  WHOLE * (KEYS * 8.0 + b.k->gdn_packed_bytes / GDN_CELL), 0, run_pack, &b);
            bench(text("gdn_scan_tile %d tokens", WHOLE), b.k->isa, KEYS * COLUMNS * 8.0,
                  WHOLE * 7.0 * KEYS * COLUMNS, run_scan_tile, &b);
        }
        b.scan = scan_args(b.k, &s, 0, 1);
        bench("gdn_scan 1 token", b.k->isa, KEYS * COLUMNS * 4.0, 7.0 * KEYS * COLUMNS, run_scan,
              &b);
        attention_case c = attention_inputs(FILL_NORMAL, true, visible);
        b.attention = c.args;
        for (b.attention.n_rows = 8; b.attention.n_rows <= ROWS; b.attention.n_rows += 24)
            bench(text("attention f16 %d rows", b.attention.n_rows), b.k->isa, TOKENS * DIM * 4.0,
                  b.attention.n_rows * 4.0 * TOKENS * DIM, run_attention_f16, &b);
        b.attention.n_rows = 8;
        b.cache = cache;
        bench("attention f16 8 rows, memory", b.k->isa, TOKENS * DIM * 4.0, 8 * 4.0 * TOKENS * DIM,
              run_attention_memory, &b);
        guarded_check();
        if (b.k->attention_tile_f16) bench_tile(&b);
    }
    mem_free(cache);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_rope_angles),
    cmocka_unit_test(test_gdn_products),
    cmocka_unit_test(test_gdn_scan),
    cmocka_unit_test(test_gdn_scan_edges),
    cmocka_unit_test(test_attention_block),
    cmocka_unit_test(test_attention_sharp),
    cmocka_unit_test(test_attention_merge),
    cmocka_unit_test(test_attention_not_finite),
    cmocka_unit_test(test_attention_tile),
    cmocka_unit_test(test_attention_tile_sharp),
    cmocka_unit_test(test_attention_tile_not_finite),
};
KERNEL_TEST_MAIN(tests, benches)
