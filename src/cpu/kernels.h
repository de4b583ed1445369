/* The CPU's kernels: what each computes, and the table that picks the variants (MODEL.md 3).
 *
 * A kernel has one type here and one function per instruction set (gemm_c, gemm_avx2, ...). The C
 * variants are plain loops. A variant may order the operations of one result as suits its
 * registers, but that order is fixed: it depends on the matrix's columns (or the position in the
 * sequence) alone, never on how many rows, tokens or threads there are.
 *
 * Two pairs share a layout only they know, so a variant replaces both or none: quantize_input with
 * gemv_q4, and pack_input with gemm.
 *
 * Floats are finite or the result is not finite: no kernel hides a NaN or an infinity, and none
 * crashes on one. Pointers to arrays of more than 8 floats are 64-byte aligned unless said. Each
 * kernel's cost stands beside it: bytes that must come from or go to memory, and operations
 * (multiply and add count one each). */
#ifndef CALLA_CPU_KERNELS_H
#define CALLA_CPU_KERNELS_H

#include "base/numbers.h"
#include "model/weights.h"

#include <math.h>

enum {
    GEMM_PIECE = 256, /* inputs of a piece of gemm_pieces: 1 MB of 2,048 columns in L2 */
    GEMM_SCRATCH_BYTES = (1 << 20) + (32 << 10), /* of gemm_many and gemm_pieces */
    GEMV_MAX_INPUTS = 8,       /* input rows of one gemv call: BACKEND_MAX_SEQUENCES */
    ATTENTION_MAX_ROWS = 128,  /* query rows of one attention_block call */
    ATTENTION_TILE_ROWS = 512, /* of one attention_tile call, */
    ATTENTION_TILE_BYTES = (2 * ATTENTION_TILE_ROWS + 592) << 10, /* and its workspace */
    GDN_SLICE = 32,       /* value columns of one gdn_scan call */
    GDN_CELL = 8,         /* tokens at multiples of so many that gdn_scan does at once */
    MEASURE_AHEAD = 4096, /* bytes: a page, which the hardware's prefetch does not cross */
    /* Of 64 columns of an input packed by pack_input_amx: three bf16 each, and their sum. */
    AMX_F32_GROUP_BYTES = QUANT_GROUP * 3 * 2 + 4,
    /* Of a cell's keys and queries packed by gdn_pack_amx: two bf16 each, keys twice. */
    AMX_GDN_CELL_BYTES = 2 * 8192,
};

/* ---- linear layers, one to eight input rows (decode) ---- */

/* out[c] = element (row, first_col + c) of m, exactly scale * code + bias in f32. first_col and
 * n_cols are multiples of 64. Moves n_cols * (0.5 or 1 + 4/64, or 2) bytes. */
typedef void dequantize_fn(const matrix *m, int32_t row, int32_t first_col, int32_t n_cols,
                           float *out); // [n_cols]

/* y[i][r] = sum over c of W[r][c] * x[i][c] for r in [begin, end), i < n <= 8: f32 inputs, weights
 * dequantised exactly, any format. Moves the rows once whatever n; 2 n operations a weight. */
typedef void gemv_f32_fn(const matrix *w, int32_t begin, int32_t end, const float *const *x,
                         int32_t n, float *const *y);

/* Rounds groups [begin, end) of x to 15 bits each: x ~ scale * v, v an integer of at most 16256 in
 * magnitude = 128 * 127, so that v = 128 * high + low with two int8. `out` holds a whole row,
 * quantized_bytes(cols): values in a layout of the variant's choice, then a scale and a sum
 * (scale * sum of v) per group, see quantized_scales. A group with a NaN or an infinity gets scale
 * NaN. */
typedef void quantize_input_fn(const float *x, int32_t cols, int32_t begin, int32_t end, void *out);

/* As gemv_f32 for a MATRIX_Q4 and rows from quantize_input. Per group the products of codes and
 * values are summed exactly (an int32, below 2^24), then scale * sum + bias * (sum of x) in f32.
 * Moves 0.5625 bytes a weight, once whatever n; 2 n integer operations a weight. */
typedef void gemv_q4_fn(const matrix *w, int32_t begin, int32_t end, const void *const *x,
                        int32_t n, float *const *y);

/* Groups are stored in pairs of 256 bytes: 128 values, two bytes each. Two layouts are in mind:
 * int16 [group][even, odd inputs][32], and int8 [pair][high, low plane][even, odd][64] for
 * byte dot products, whose loads then meet the nibbles of 64 code bytes. */
static inline size_t quantized_values_bytes(int32_t cols)
{
    return ((size_t)cols / QUANT_GROUP + 1) / 2 * 256;
}

/* The scales [cols/64] of a row, and behind them the sums [cols/64], each padded to 64 bytes. */
static inline size_t quantized_group_floats(int32_t cols)
{
    return ((size_t)cols / QUANT_GROUP + 15) / 16 * 16;
}
static inline size_t quantized_bytes(int32_t cols)
{
    return quantized_values_bytes(cols) + 2 * quantized_group_floats(cols) * sizeof(float);
}
static inline float *quantized_scales(const void *row, int32_t cols)
{
    return (float *)((uintptr_t)row + quantized_values_bytes(cols));
}
static inline float *quantized_sums(const void *row, int32_t cols)
{
    return quantized_scales(row, cols) + quantized_group_floats(cols);
}

/* ---- linear layers, many input rows (prefill) ---- */

/* What gemm multiplies. */
typedef enum gemm_inputs {
    GEMM_F32,  /* f32, any matrix, weights dequantised exactly */
    GEMM_BF16, /* inputs and weights rounded to bfloat16; MATRIX_Q4 alone except in the C variant */
    GEMM_INT16, /* MATRIX_Q4 alone: inputs and sums as in quantize_input and gemv_q4 */
} gemm_inputs;

/* Packs rows x[rows[i] * x_stride], i < n (rows NULL: 0, 1, ...) for gemm. Tiles of `pack_tile`
 * inputs follow each other, the last one filled up with zeros; packed_bytes in all. Moves 256 bytes
 * in, pack_group_bytes out for 64 columns of an input. */
typedef void pack_input_fn(const float *x, int64_t x_stride, const int32_t *rows, int32_t n,
                           int32_t cols, void *packed);

/* Of n whole rows of `cols` columns [col, col + n_cols) alone, multiples of 128 (but for the last
 * ones); x [n][n_cols]. */
typedef void pack_columns_fn(const float *x, int32_t n, int32_t col, int32_t n_cols, int32_t cols,
                             void *packed);

/* As pack_input_fn does, of rows of `packed_rows`, each of which pack_rows (as pack_input) wrote:
 * what takes several of its tiles is converted once. */
typedef void gather_rows_fn(const void *packed_rows, const int32_t *rows, int32_t n, int32_t cols,
                            void *packed);

/* y[i * y_stride + r] = W[r] . x_i for r in [begin, end), i < n, x from pack_input. Each weight is
 * dequantised or unpacked once per some hundred inputs. 2 n operations a weight. */
typedef void gemm_fn(const matrix *w, int32_t begin, int32_t end, const void *packed, int32_t n,
                     float *y, int64_t y_stride);

/* out = pack_input of silu(gate x) * up x for n inputs x from pack_input; both matrices have the
 * same shape, rows a multiple of 64. NULL where gemm, gemm, swiglu and pack_input do it one after
 * another: the same bits but for what their swiglu rounds otherwise. 2 n operations a weight. */
typedef void gemm_gated_fn(const matrix *gate, const matrix *up, const void *packed, int32_t n,
                           void *out);

/* gemm of more inputs than a cache holds; `scratch`, GEMM_SCRATCH_BYTES on a line's boundary, is
 * the calling thread's. NULL where gemm does it: the same bits. */
typedef void gemm_many_fn(const matrix *w, int32_t begin, int32_t end, const void *packed,
                          int32_t n, float *y, int64_t y_stride, void *scratch);

/* gemm_many of all rows of w, some inputs at a time: y, of GEMM_PIECE rows, is the same memory for
 * each piece, and `done` is called for inputs [first, first + n), in order, which are then in y[0
 * ... n); it may change y. Pieces are GEMM_PIECE inputs or less, multiples of 32 but for the last.
 * NULL where gemm does it piece by piece: the same bits. */
typedef void gemm_done_fn(void *context, int32_t first, int32_t n);
typedef void gemm_pieces_fn(const matrix *w, const void *packed, int32_t n, float *y,
                            int64_t y_stride, void *scratch, gemm_done_fn *done, void *context);

/* ---- norms and elementwise ---- */

/* What would turn an infinity into an ordinary number gives NaN instead: a gate that has overflowed
 * must not look like one that is open or shut. (x - x is 0 for finite x.) */
static inline float sigmoid_finite(float x)
{
    return 1.0f / (1.0f + expf(-x)) + (x - x);
}
static inline float inverse_root_finite(float x)
{
    return 1.0f / sqrtf(x) + (x - x);
}

/* out[i] = x[i] * r * factor[i], r = 1 / sqrt(mean square + eps); returns the mean square, which is
 * not finite if any x[i] is not. n a multiple of 8. 4 n operations. out may be x. */
typedef float rmsnorm_fn(const float *x, const float *factor, int32_t n, float eps, float *out);

/* x[i] *= scale / sqrt(sum of squares + 1e-6), i < 128 (MODEL.md 3.4 step 4). */
typedef void l2norm_fn(float *x, float scale);

/* out[i] = factor[i] * (o[i] * r) * silu(z[i]), i < 128, r as in rmsnorm (MODEL.md 3.7). */
typedef void gated_norm_fn(const float *o, const float *z, const float *factor, float eps,
                           float *out);

/* out[c] = silu(sum over i < 4 of taps[i * n_channels + c] * rows[i][c]), c in [begin, end), oldest
 * row first (MODEL.md 3.4 step 2). begin, end multiples of 64. */
typedef void conv_silu_fn(const float *const rows[CONV_TAPS], const float *taps, int32_t n_channels,
                          int32_t begin, int32_t end, float *out);

/* beta[h] = sigmoid(b[h]), decay[h] = exp(neg_exp_a[h] * softplus(a[h] + dt_bias[h])), h < n
 * (MODEL.md 3.4 steps 5, 6). No alignment. */
typedef void gdn_gates_fn(const float *a, const float *b, const float *neg_exp_a,
                          const float *dt_bias, int32_t n, float *decay, float *beta);

/* Half-split rotation of x[0..63] by 32 angles (MODEL.md 3.3 step 4). */
typedef void rope_fn(float *x, const float *cosines, const float *sines); // [32] each

/* out[i] = silu(gate[i]) * up[i]. n a multiple of 8. */
typedef void swiglu_fn(const float *gate, const float *up, int32_t n, float *out);

/* x[i] *= sigmoid(gate[i]). n a multiple of 8. */
typedef void sigmoid_gate_fn(float *x, const float *gate, int32_t n);

/* y[i] += scale * x[i]. No alignment, any n. */
typedef void add_scaled_fn(float *y, const float *x, float scale, int32_t n);

/* add_scaled of each of n_rows rows in their order, the same bits: y goes through registers once,
 * and the rows come from memory side by side. */
typedef void add_rows_fn(float *y, const float *const *rows, const float *scales, int32_t n_rows,
                         int32_t n);

/* The k largest of logits[n], largest first, ties to the lower index, and their softmax among
 * themselves (MODEL.md 3.8 step 2). If any of the n logits is not finite the indices are still
 * valid and distinct, and the weights NaN. */
typedef void router_top_k_fn(const float *logits, int32_t n, int32_t k, int32_t *experts,
                             float *weights); // [k] each

/* Elements of a KV cache of IEEE half, as f32_to_f16 in base/numbers.h. n a multiple of 8. */
typedef void f32_to_f16_fn(const float *x, int32_t n, uint16_t *out);

/* ---- Gated DeltaNet recurrence (MODEL.md 3.5) ---- */

/* The recurrence
 *   d = beta (v - decay S^T k);  S = decay S + k d^T;  out = S^T q
 * in cells of GDN_CELL tokens at multiples of GDN_CELL: S is touched once a cell, and a token adds
 * what the tokens of its cell before it did. With S as the cell found it, g(t, j) the product of
 * the decays behind token j up to token t, and g(t) that of the cell's up to t:
 *   d_t = beta_t (v_t - g(t) S^T k_t - sum over j < t of g(t, j) (k_t . k_j) d_j)
 *   out_t = g(t) S^T q_t + sum over j <= t of g(t, j) (q_t . k_j) d_j
 * and behind the cell's last token S = g(last) S + sum over j of k_j (g(last, j) d_j)^T. All
 * products are of decays, none is divided by, so nothing overflows that would not token by token. A
 * token's results do not depend on which tokens of its cell come with it: each sum is over the
 * tokens before it in their order. */

/* The products k_t . k_j and q_t . k_j, j <= t, of n_tokens tokens of one cell (or the last ones of
 * the first cell and whole ones), which all value heads of a key head share. */
typedef struct gdn_products_args {
    int32_t first;    /* tokens of the first cell that came before: below GDN_CELL */
    int32_t n_tokens; /* besides those */
    const float *q;   // [n_tokens][128], rows qk_stride apart; normalised, scaled
    const float *k;   // [first + n_tokens][128], rows qk_stride apart; normalised
    int64_t qk_stride;
    float *out; // [cells][2][t][j], GDN_CELL each: of k and k, of q and k; 0 for j > t
} gdn_products_args;
typedef void gdn_products_fn(const gdn_products_args *a);

/* gdn_products, and the keys and queries packed for the table's gdn_scan_tile: what all slices of
 * the value heads of a key head share. Moves a cell's 8 KB and gdn_packed_bytes. */
typedef void gdn_pack_fn(const gdn_products_args *a, void *packed); // [cells][gdn_packed_bytes]

/* 32 value columns of one head over n_tokens tokens. Reads and writes the slice's 16 KB once (it
 * stays in L1 over the tokens), a step of decode reads it once and writes it once in GDN_CELL. 6
 * operations per state element and token, 1 per element and cell, and 2 * 32 for each pair j <= t
 * in a cell and either sum; token by token it would be 7. */
typedef struct gdn_scan_args {
    float *state;     // [128][32], key dim by value column, behind the last whole cell; in place
    float *rest;      // [GDN_CELL - 1][32]: d of the tokens since; in place
    int32_t first;    /* how many those are */
    int32_t n_tokens; /* to do */
    const float *q;   // [n_tokens][128], rows qk_stride apart
    const float *k;   // [first + n_tokens][128], rows qk_stride apart
    int64_t qk_stride;
    const float *products; // of gdn_products for the same tokens
    const void *packed;    // of gdn_pack for the same tokens; NULL if the table has none
    const float *v;        // [n_tokens][32], rows v_stride apart
    int64_t v_stride;
    const float *decay; // [first + n_tokens], gate_stride apart
    const float *beta;  // [n_tokens], gate_stride apart
    int64_t gate_stride;
    float *out; // [n_tokens][32], rows out_stride apart; may be v
    int64_t out_stride;
} gdn_scan_args;
typedef void gdn_scan_fn(const gdn_scan_args *a);

/* Floats of gdn_products' output for one cell. */
enum { GDN_CELL_PRODUCTS = 2 * GDN_CELL * GDN_CELL };

/* A cell's tokens among those of a call, and the factors of its sums. */
typedef struct gdn_cell {
    int32_t begin, end;    /* tokens of the cell to do */
    int32_t at;            /* of the cell's first token among all from the first cell's on */
    float decay[GDN_CELL]; // g(t)
    float tail[GDN_CELL];  // g(end - 1, j)
    float to_d[GDN_CELL][GDN_CELL];   // [t][j]: -beta_t g(t, j) (k_t . k_j), j < t
    float to_out[GDN_CELL][GDN_CELL]; // [t][j]: g(t, j) (q_t . k_j), j <= t
} gdn_cell;

/* The cell that follows the tokens before `at`, a multiple of GDN_CELL. */
static inline void gdn_cell_begin(const gdn_scan_args *a, int32_t at, gdn_cell *cell)
{
    int32_t all = a->first + a->n_tokens - at;
    const float *products = a->products + (size_t)at / GDN_CELL * GDN_CELL_PRODUCTS;
    float decays[GDN_CELL] = {0}, whole = 1;
    cell->at = at;
    cell->begin = at < a->first ? a->first - at : 0;
    cell->end = all < GDN_CELL ? all : GDN_CELL;
    for (int32_t t = 0; t < cell->end; t++) {
        float decay = a->decay[(at + t) * a->gate_stride];
        whole *= decay;
        cell->decay[t] = whole;
        for (int j = 0; j < GDN_CELL; j++) decays[j] = j == t ? 1 : decays[j] * decay;
        if (t < cell->begin) continue;
        float beta = a->beta[(at + t - a->first) * a->gate_stride];
        const float *k = products + t * GDN_CELL, *q = k + GDN_CELL * GDN_CELL;
        for (int j = 0; j < GDN_CELL; j++) {
            cell->to_d[t][j] = -beta * (decays[j] * k[j]);
            cell->to_out[t][j] = decays[j] * q[j];
        }
    }
    for (int j = 0; j < GDN_CELL; j++) cell->tail[j] = decays[j];
}

/* ---- attention over one KV block (MODEL.md 3.3 step 7) ---- */

/* Softmax attention of n_rows <= ATTENTION_MAX_ROWS query rows, scaled already, over the first
 * visible[i] tokens of one block of 256:
 *   max[i] = the largest score (-inf if visible[i] is 0), sum[i] = sum of exp(score - max[i]),
 *   out[i] = sum of exp(score - max[i]) * v.
 * A row's result does not depend on the other rows. Moves the block's K and V once; 4 * 256
 * operations per row and token. */
typedef struct attention_block_args {
    const float *q; // [n_rows][256]
    int32_t n_rows;
    const int32_t *visible; // [n_rows], 0 ... 256
    const void *k, *v;      // [256][256], f32 or half as the kernel's name says
    const void *next;       // k of the block that will be wanted next, or NULL: a hint
    float *max, *sum;       // [n_rows]
    float *out;             // [n_rows][256]
} attention_block_args;
typedef void attention_block_fn(const attention_block_args *a);

/* Takes a later block's result into (*max, *sum, out) of the blocks before it; a block with
 * other_sum 0 changes nothing. */
typedef void attention_merge_fn(float *max, float *sum, float *out, float other_max,
                                float other_sum, const float *other_out); // out [256]

/* Softmax attention over all blocks a tile of prefill's query rows sees, in half precision: token i
 * over the first first + i + 1 tokens of the cache, times the sigmoid of its gates (NaN where they
 * are not finite). n_tokens * n_heads <= ATTENTION_TILE_ROWS. A row's result does not depend on the
 * other rows. 4 * 256 operations per row and token it sees;
 * moves K and V once. */
typedef struct attention_tile_args {
    float *workspace;   /* ATTENTION_TILE_BYTES, of whole lines; comes with the queries, scaled
                           already, in front: [n_tokens][n_heads][256] */
    const float *gates; // [n_tokens][2 stride], of which [n_heads][2][256], the first of the two
    float *out;         // [n_tokens][stride], of which [n_heads][256]
    int64_t stride;
    int32_t n_tokens, n_heads;
    int64_t first;
    const void *k, *v;     /* of the cache's block 0: the one head's [256][256]; */
    const int32_t *blocks; /* of the timeline, in order: multiples of */
    size_t block_bytes;    /* from k and v */
} attention_tile_args;
typedef void attention_tile_fn(const attention_tile_args *a);

/* ---- measuring the machine ---- */

/* Reads data[n_bytes] once, in whole lines of 64 bytes; with `prefetch` asks for each line
 * MEASURE_AHEAD before it is used. The result only keeps the loads alive. Moves n_bytes. */
typedef uint64_t measure_read_fn(const void *data, size_t n_bytes, bool prefetch);

/* n_rounds rounds of the multiplications and additions gemm is made of, on registers: how fast it
 * could be. Returns the number of operations; *sink goes into them, and their result out. */
typedef int64_t measure_multiply_fn(int64_t n_rounds, float *sink);

/* ---- the table ---- */

typedef struct cpu_kernels {
    const char *isa; /* name as in cpu_isa_names */
    bool fast;       /* decode reads Q4 matrices through quantize_input and gemv_q4; KV fp16 */
    gemm_inputs gemm_inputs;
    int32_t pack_tile, pack_group_bytes; /* of pack_input; see packed_bytes */
    dequantize_fn *dequantize;
    gemv_f32_fn *gemv_f32;
    quantize_input_fn *quantize_input;
    gemv_q4_fn *gemv_q4;
    pack_input_fn *pack_input;
    pack_columns_fn *pack_columns; /* or NULL: see pack_input_columns */
    pack_input_fn *pack_rows;    /* rows for gather_rows; both NULL where they would gain nothing */
    gather_rows_fn *gather_rows; /* the same bits as pack_input of the rows */
    gemm_fn *gemm;
    gemm_gated_fn *gemm_gated;   /* or NULL */
    gemm_many_fn *gemm_many;     /* or NULL */
    gemm_pieces_fn *gemm_pieces; /* or NULL */
    /* The pair in f32, which router logits always take; the same two for GEMM_F32. */
    int32_t pack_tile_f32, pack_group_bytes_f32;
    pack_input_fn *pack_input_f32;
    gemm_fn *gemm_f32;
    rmsnorm_fn *rmsnorm;
    l2norm_fn *l2norm;
    gated_norm_fn *gated_norm;
    conv_silu_fn *conv_silu;
    gdn_gates_fn *gdn_gates;
    rope_fn *rope;
    swiglu_fn *swiglu;
    sigmoid_gate_fn *sigmoid_gate;
    add_scaled_fn *add_scaled;
    add_rows_fn *add_rows;
    router_top_k_fn *router_top_k;
    f32_to_f16_fn *f32_to_f16;
    gdn_products_fn *gdn_products;
    gdn_scan_fn *gdn_scan;
    gdn_scan_fn *gdn_scan_tile; /* prefill's: many tokens, of which it reads `packed` */
    gdn_pack_fn *gdn_pack;      /* or NULL, if that reads q and k as they are, and gdn_products */
    int32_t gdn_packed_bytes;   /* a cell */
    attention_block_fn *attention_block_f32, *attention_block_f16;
    attention_tile_fn *attention_tile_f16; /* or NULL: by blocks */
    attention_merge_fn *attention_merge;
    measure_read_fn *measure_read;
    measure_multiply_fn *measure_multiply;
} cpu_kernels;

/* n rows with what fills up the last tile. */
static inline size_t packed_rows(int32_t n, int32_t tile)
{
    return (size_t)divide_up(n, tile) * (size_t)tile;
}

/* Of n rows from pack_input. */
static inline size_t packed_bytes(const cpu_kernels *k, int32_t n, int32_t cols)
{
    size_t rows = packed_rows(n, k->pack_tile);
    if (k->gemm_inputs == GEMM_INT16) return rows * quantized_bytes(cols);
    return rows * (size_t)(cols / QUANT_GROUP) * (size_t)k->pack_group_bytes;
}

/* pack_columns_fn for any table: tiles are rows by columns, one after another. */
static inline void pack_input_columns(const cpu_kernels *k, const float *x, int32_t n, int32_t col,
                                      int32_t n_cols, int32_t cols, unsigned char *packed)
{
    if (k->pack_columns) {
        k->pack_columns(x, n, col, n_cols, cols, packed);
        return;
    }
    for (int32_t i = 0; i < n; i += k->pack_tile)
        k->pack_input(x + (int64_t)i * n_cols, n_cols, NULL,
                      n - i < k->pack_tile ? n - i : k->pack_tile, n_cols,
                      packed + packed_bytes(k, i, cols) + packed_bytes(k, k->pack_tile, col));
}

/* Of n rows from pack_input_f32. */
static inline size_t packed_bytes_f32(const cpu_kernels *k, int32_t n, int32_t cols)
{
    return packed_rows(n, k->pack_tile_f32) * (size_t)(cols / QUANT_GROUP) *
           (size_t)k->pack_group_bytes_f32;
}

/* Prototypes of all kernels in the variants of one instruction set; those it lacks are never
 * called. The _bf16 pair rounds inputs and weights to bfloat16 and accumulates in f32. */
#define CPU_KERNELS_DECLARE(isa)                                                                   \
    dequantize_fn dequantize_##isa;                                                                \
    gemv_f32_fn gemv_f32_##isa;                                                                    \
    quantize_input_fn quantize_input_##isa;                                                        \
    gemv_q4_fn gemv_q4_##isa;                                                                      \
    pack_input_fn pack_input_##isa, pack_input_bf16_##isa;                                         \
    pack_input_fn pack_input_q4_##isa, pack_rows_bf16_##isa;                                       \
    pack_columns_fn pack_columns_q4_##isa;                                                         \
    gather_rows_fn gather_rows_q4_##isa, gather_rows_bf16_##isa;                                   \
    gemm_fn gemm_##isa, gemm_bf16_##isa, gemm_q4_##isa;                                            \
    gemm_gated_fn gemm_gated_bf16_##isa;                                                           \
    gemm_many_fn gemm_many_bf16_##isa;                                                             \
    gemm_pieces_fn gemm_pieces_bf16_##isa;                                                         \
    rmsnorm_fn rmsnorm_##isa;                                                                      \
    l2norm_fn l2norm_##isa;                                                                        \
    gated_norm_fn gated_norm_##isa;                                                                \
    conv_silu_fn conv_silu_##isa;                                                                  \
    gdn_gates_fn gdn_gates_##isa;                                                                  \
    rope_fn rope_##isa;                                                                            \
    swiglu_fn swiglu_##isa;                                                                        \
    sigmoid_gate_fn sigmoid_gate_##isa;                                                            \
    add_scaled_fn add_scaled_##isa;                                                                \
    add_rows_fn add_rows_##isa;                                                                    \
    router_top_k_fn router_top_k_##isa;                                                            \
    f32_to_f16_fn f32_to_f16_##isa;                                                                \
    gdn_products_fn gdn_products_##isa;                                                            \
    gdn_scan_fn gdn_scan_##isa, gdn_scan_tile_##isa;                                               \
    gdn_pack_fn gdn_pack_##isa;                                                                    \
    attention_block_fn attention_block_f32_##isa, attention_block_f16_##isa;                       \
    attention_tile_fn attention_tile_f16_##isa;                                                    \
    attention_merge_fn attention_merge_##isa;                                                      \
    measure_read_fn measure_read_##isa;                                                            \
    measure_multiply_fn measure_multiply_##isa, measure_multiply_q4_##isa;
CPU_KERNELS_DECLARE(c)
#if defined(__x86_64__)
CPU_KERNELS_DECLARE(avx2)
CPU_KERNELS_DECLARE(avx512)
CPU_KERNELS_DECLARE(amx)
#elif defined(__aarch64__)
CPU_KERNELS_DECLARE(neon)
CPU_KERNELS_DECLARE(neon_dotprod)
CPU_KERNELS_DECLARE(neon_i8mm)
CPU_KERNELS_DECLARE(neon_bf16)
#endif

/* Values of backend_options.isa that this machine can run, "auto" first; NULL-terminated, static.
 */
const char *const *cpu_isa_names(void);

/* Fills the table for `isa` (NULL or "auto": the best for this machine and layout): the C variants
 * first, then each instruction set allowed, weakest first, overwrites what it does better.
 * CALLA_ERR_INPUT for an unknown name, CALLA_ERR_UNSUPPORTED for a set that this machine lacks and
 * for a fast table on layout BF16. */
calla_status cpu_kernels_select(const char *isa, calla_layout layout, cpu_kernels *k,
                                calla_error *err);

#endif
