/* Attention of many query rows over a half-precision KV cache, on AMX tiles, for prefill.
 *
 * Tiles multiply bfloat16, whose 8 bits are too few here, so every factor is split into two, high +
 * low: exactly for K and V (11 bits), to 16 bits for queries and probabilities; of the four
 * products the smallest, low times low, is left out. An error of 2^-16 of a term is that of f32
 * sums of some hundred terms, so results agree with f32 arithmetic.
 *
 *   scores^T [token][query] = K (tiles A)   q^T (tiles B)
 *   out^T [dim][query]     += V^T (tiles A) p^T (tiles B)
 *
 * Both products stand transposed: so 16 queries are the lanes of a vector from the scores to the
 * sums, and probabilities become tiles B in the place of their scores without a shuffle. In all
 * tiles the pairs of a step of 32 terms are terms i and i + 16.
 *
 * A block of 256 tokens is split once for all rows of a call: 12 vector operations for 32 elements
 * of K or V, and V's transposition. Then groups of 32 rows (whose queries, or probabilities, stay
 * in L1: 32 KB) meet it in turn, while its tiles stream from L2, each used three times on average:
 * 2 * 768 products of tiles, 16 cycles each, and 512 vectors of exponentials, which run between the
 * products of the next group's scores. */
#include "cpu/simd/amx.h"

#include <math.h>

enum {
    DIM = ATTENTION_HEAD_DIM,
    BLOCK = 256, /* tokens of a block: KV_BLOCK_TOKENS */
    GROUP = 32,  /* tokens, dims or query rows at a time: two tiles */
    STEPS = 8,   /* steps of 32 dims, or of 32 tokens */
    PLANES = 2,  /* high, low */
    HALVES = GROUP / TILE,
    GROUPS = ATTENTION_TILE_ROWS / GROUP,
};

/* The tiles of 32 rows (A) or columns (B) for one step. */
typedef uint16_t step_tiles[HALVES][PLANES][TILE][STEP];
/* What 32 rows times 32 columns give: tiles of columns, then rows. */
typedef float product[HALVES][HALVES][TILE][TILE];

typedef struct workspace {
    union {
        float rows[ATTENTION_TILE_ROWS][DIM]; /* the queries, before they are packed */
        product out[GROUPS][STEPS];           /* of 32 dims */
    };
    step_tiles queries[GROUPS][STEPS]; /* by dims */
    step_tiles k[STEPS][STEPS];        /* of 32 tokens, by dims */
    step_tiles v[STEPS][STEPS];        /* of 32 dims, by tokens */
    /* Of two groups: scores of 32 tokens, which become the probabilities' tiles of that step. */
    product tokens[2][STEPS];
    product part[2];
    /* Of the tokens so far: the largest score, in base 2, the sum of probabilities. */
    float largest[GROUPS][HALVES][TILE], sum[GROUPS][HALVES][TILE];
} workspace;
_Static_assert(sizeof(workspace) <= ATTENTION_TILE_BYTES, "the memory a caller gives");

#define LOG2_E 1.44269504f

/* ---- operands ---- */

/* 32 halves, which leave no more than 3 bits to their low parts. */
ALWAYS_INLINE void split_halves(const uint16_t *p, void *high, void *low)
{
    vf a = vf_load_f16(p), b = vf_load_f16(p + VL);
    vf ha = high_part(a), hb = high_part(b);
    _mm512_store_si512(high, interleave(ha, hb));
    _mm512_store_si512(low, interleave(vf_sub(a, ha), vf_sub(b, hb)));
}

/* n_rows queries, times log2 e, as tiles B; the rest of the group zeros. */
static void pack_queries(float (*rows)[DIM], int32_t n_rows, step_tiles *out)
{
    vf log2_e = vf_set1(LOG2_E);
    for (int s = 0; s < STEPS; s++) {
        for (int h = 0; h < HALVES; h++) {
            __m512i high[TILE], low[TILE];
            for (int i = 0; i < TILE; i++) {
                high[i] = low[i] = _mm512_setzero_si512();
                if (h * TILE + i >= n_rows) continue;
                const float *q = rows[h * TILE + i] + s * STEP;
                split_pairs(vf_mul(vf_load(q), log2_e), vf_mul(vf_load(q + VL), log2_e), &high[i],
                            &low[i]);
            }
            transpose_words(high);
            transpose_words(low);
            for (int i = 0; i < TILE; i++) {
                _mm512_store_si512(out[s][h][0][i], high[i]);
                _mm512_store_si512(out[s][h][1][i], low[i]);
            }
        }
    }
}

static void split_keys(const uint16_t *k, int n_steps, workspace *w)
{
    for (int t = 0; t < n_steps * STEP; t++)
        for (int s = 0; s < STEPS; s++) {
            step_tiles *out = &w->k[t / STEP][s];
            int h = t % STEP / TILE, i = t % TILE;
            split_halves(k + t * DIM + s * STEP, (*out)[h][0][i], (*out)[h][1][i]);
        }
}

/* Rows of the tokens beyond n_tokens, where there may be anything, count as zeros. */
static void split_values(const uint16_t *v, int32_t n_tokens, int n_steps, workspace *w)
{
    for (int s = 0; s < n_steps; s++)
        for (int g = 0; g < STEPS; g++) {
            __m512i pairs[2][TILE]; /* of two tokens' dims 0 to 3 of every eight, 4 to 7 */
            for (int i = 0; i < TILE; i++) {
                int32_t t = s * STEP + 2 * i;
                const uint16_t *p = v + t * DIM + g * GROUP;
                __m512i x = _mm512_setzero_si512(), y = x;
                if (t < n_tokens) x = _mm512_loadu_si512(p);
                if (t + 1 < n_tokens) y = _mm512_loadu_si512(p + DIM);
                pairs[0][i] = _mm512_unpacklo_epi16(x, y);
                pairs[1][i] = _mm512_unpackhi_epi16(x, y);
            }
            step_tiles *out = &w->v[g][s];
            for (int j = 0; j < 2; j++) {
                uint16_t rows[TILE][STEP] __attribute__((aligned(64)));
                transpose_words(pairs[j]);
                for (int i = 0; i < TILE; i++) _mm512_store_si512(rows[i], pairs[j][i]);
                for (int i = 0; i < TILE; i++) {
                    int d = i / 4 * 8 + j * 4 + i % 4;
                    split_halves(rows[i], (*out)[d / TILE][0][d % TILE],
                                 (*out)[d / TILE][1][d % TILE]);
                }
            }
        }
}

/* ---- between products ---- */

/* 2^y, relative error below 2e-7, and 0 below -150: y's whole part goes into the exponent, the rest
 * into a polynomial with the least relative error over [0, 1), exactly 1 at 0. */
ALWAYS_INLINE vf exp2_of(vf y)
{
    vf r = _mm512_reduce_ps(y, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    vf p = vf_set1(0x1.e975p-10f);
    p = vf_fma(p, r, vf_set1(0x1.277854p-7f));
    p = vf_fma(p, r, vf_set1(0x1.c91ce6p-5f));
    p = vf_fma(p, r, vf_set1(0x1.ebdb56p-3f));
    p = vf_fma(p, r, vf_set1(0x1.62e4bap-1f));
    p = vf_fma(p, r, vf_set1(1.0f));
    return _mm512_scalef_ps(p, y);
}

/* A group's scores on their way to probabilities. An item is four pairs of tokens of one half. */
typedef struct softmax {
    product *scores;      // [n_steps] of 32 tokens
    int n_steps, n_whole; /* steps; of which all rows see all tokens */
    int n_searched;       /* steps whose scores are in `largest` */
    int item, n_items;
    __m512i seen[HALVES]; /* tokens of the block */
    vf largest[HALVES], sum[HALVES];
    vf scale[HALVES]; /* of sums up to the block before */
} softmax;

ALWAYS_INLINE void soften_pairs(softmax *x, int first, int n, bool whole)
{
    int s = x->item / 8, h = x->item / 4 % 2;
    float *at = x->scores[s][h][0][0];
    vf largest = x->largest[h], sum = x->sum[h];
    __m512i seen = _mm512_sub_epi32(x->seen[h], _mm512_set1_epi32(s * STEP));
    for (int i = first; i < first + n; i++) {
        int t[2] = {x->item % 4 * 4 + i, TILE + x->item % 4 * 4 + i};
        vf p[2];
        for (int j = 0; j < 2; j++) {
            p[j] = exp2_of(vf_sub(vf_load(at + t[j] * TILE), largest));
            if (!whole)
                p[j] = _mm512_maskz_mov_ps(_mm512_cmpgt_epi32_mask(seen, _mm512_set1_epi32(t[j])),
                                           p[j]);
            sum = vf_add(sum, p[j]);
        }
        __m512i high, low;
        split_pairs(p[0], p[1], &high, &low);
        _mm512_store_si512(at + t[0] * TILE, high);
        _mm512_store_si512(at + t[1] * TILE, low);
    }
    x->sum[h] = sum;
}

/* Pairs [first, first + n) of the item at hand. */
ALWAYS_INLINE void soften(softmax *x, int first, int n)
{
    if (x->item / 8 < x->n_whole)
        soften_pairs(x, first, n, true);
    else
        soften_pairs(x, first, n, false);
}

/* The largest of the steps not looked at between products, and by how much what was summed up
 * before shrinks. */
static void find_largest(softmax *x, float (*largest)[TILE])
{
    for (int h = 0; h < HALVES; h++) {
        vf before = vf_load(largest[h]), most = x->largest[h];
        for (int s = x->n_searched; s < x->n_steps; s++) {
            __m512i left = _mm512_sub_epi32(x->seen[h], _mm512_set1_epi32(s * STEP));
            const float *at = x->scores[s][h][0][0];
            for (int t = 0; t < GROUP; t++) {
                __mmask16 mask = _mm512_cmpgt_epi32_mask(left, _mm512_set1_epi32(t));
                most = _mm512_mask_max_ps(most, mask, vf_load(at + t * TILE), most);
            }
        }
        x->largest[h] = most;
        x->scale[h] = exp2_of(vf_sub(before, most));
        vf_store(largest[h], most);
    }
}

/* Adds the block's sums, which start from zero, to those before. */
static void soften_rest(softmax *x, float (*sum)[TILE])
{
    for (; x->item < x->n_items; x->item++) soften(x, 0, 4);
    for (int h = 0; h < HALVES; h++)
        vf_store(sum[h], vf_fma(vf_load(sum[h]), x->scale[h], x->sum[h]));
    settle_memory();
}

/* Work for between the products of tiles, a part of it a step; NULL: none of its kind. */
typedef struct beside {
    softmax *softmax; /* probabilities */
    /* The largest scores of a product, in *search. */
    softmax *search;
    const float *scores;
    /* out = out * scale + part, of a product. */
    const float *part;
    float *out;
    const vf *scale; // [HALVES]
    /* Of the next block: so many lines of both a step are asked for into L2. */
    const char *k, *k_end, *v;
    int n_lines;
} beside;

/* Eighth i of a product. */
ALWAYS_INLINE void search_part(const beside *b, int i)
{
    vf most = b->search->largest[i / 4];
    for (int j = i * 8; j < i * 8 + 8; j++) most = vf_max(vf_load(b->scores + j * VL), most);
    b->search->largest[i / 4] = most;
}

ALWAYS_INLINE void add_part(const beside *b, int i)
{
    vf scale = b->scale[i / 4];
    for (int j = i * 8; j < i * 8 + 8; j++)
        vf_store(b->out + j * VL,
                 vf_fma(vf_load(b->out + j * VL), scale, vf_load(b->part + j * VL)));
}

ALWAYS_INLINE void ask_ahead(beside *b)
{
    for (int i = 0; i < b->n_lines && b->k < b->k_end; i++, b->k += 64, b->v += 64) {
        _mm_prefetch(b->k, _MM_HINT_T1);
        _mm_prefetch(b->v, _MM_HINT_T1);
    }
}

/* ---- products ---- */

/* Tiles 0 to 3 += a (tiles A of one step, one plane) times b. */
#define MULTIPLY_LOADED()                                                                          \
    do {                                                                                           \
        _tile_dpbf16ps(0, 4, 6);                                                                   \
        _tile_dpbf16ps(1, 5, 6);                                                                   \
        _tile_dpbf16ps(2, 4, 7);                                                                   \
        _tile_dpbf16ps(3, 5, 7);                                                                   \
    } while (0)

/* c = a b over n_steps steps: high high + low high + high low. What streams by, a, is loaded with
 * the hint that it is not needed again soon. */
ALWAYS_INLINE void multiply(step_tiles *a, step_tiles *b, int n_steps, float *c, beside *side)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int s = 0; s < n_steps; s++) {
        bool softens = side->softmax && side->softmax->item < side->softmax->n_items;
        ask_ahead(side);
        _tile_stream_loadd(4, a[s][0][0], 64);
        _tile_stream_loadd(5, a[s][1][0], 64);
        _tile_loadd(6, b[s][0][1], 64);
        _tile_loadd(7, b[s][1][1], 64);
        MULTIPLY_LOADED();
        if (softens) soften(side->softmax, 0, 1);
        _tile_loadd(6, b[s][0][0], 64);
        _tile_loadd(7, b[s][1][0], 64);
        MULTIPLY_LOADED();
        if (softens) soften(side->softmax, 1, 1);
        _tile_stream_loadd(4, a[s][0][1], 64);
        _tile_stream_loadd(5, a[s][1][1], 64);
        MULTIPLY_LOADED();
        if (softens) soften(side->softmax, 2, 2), side->softmax->item++;
        if (side->scores) search_part(side, s);
        if (side->part) add_part(side, s);
    }
    for (int s = n_steps; side->part && s < STEPS; s++) add_part(side, s);
    settle_memory();
    _tile_stored(0, c, 64);
    _tile_stored(1, c + TILE * TILE, 64);
    _tile_stored(2, c + 2 * TILE * TILE, 64);
    _tile_stored(3, c + 3 * TILE * TILE, 64);
    settle_memory();
}

/* Scores of a group, beside the probabilities of the one before. */
static void score(workspace *w, step_tiles *queries, softmax *x, softmax *before, beside *side)
{
    side->softmax = before;
    side->search = x;
    for (int t = 0; t < x->n_steps; t++) {
        multiply(w->k[t], queries, STEPS, x->scores[t][0][0][0], side);
        if (side->scores) x->n_searched++;
        side->scores = t < x->n_whole ? x->scores[t][0][0][0] : NULL;
    }
    side->scores = NULL;
    side->softmax = NULL;
}

/* out = out * scale + p V, or the product alone for the first block. */
static void add_values(workspace *w, const softmax *x, product *out, bool first, beside *side)
{
    step_tiles *p = (step_tiles *)x->scores;
    side->scale = x->scale;
    for (int d = 0; d < STEPS; d++) {
        float *part = w->part[d % 2][0][0][0];
        multiply(w->v[d], p, x->n_steps, first ? out[d][0][0][0] : part, side);
        if (first) continue;
        side->part = part;
        side->out = out[d][0][0][0];
    }
    if (side->part)
        for (int i = 0; i < STEPS; i++) add_part(side, i);
    side->part = NULL;
}

/* ---- the rows ---- */

static int32_t smaller(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* How many of a block's tokens, from `start` on, row r sees. */
static int32_t tokens_seen(const attention_tile_args *a, int64_t start, int32_t r)
{
    int64_t left = a->first + r / a->n_heads + 1 - start;
    return left < 0 ? 0 : left < BLOCK ? (int32_t)left : BLOCK;
}

static void start_group(const attention_tile_args *a, int64_t start, int32_t first, workspace *w,
                        softmax *x)
{
    int32_t seen[GROUP] = {0}, n_rows = smaller(GROUP, a->n_tokens * a->n_heads - first);
    for (int32_t i = 0; i < n_rows; i++) seen[i] = tokens_seen(a, start, first + i);
    x->scores = (product *)w->tokens[first / GROUP % 2];
    x->n_steps = (seen[n_rows - 1] + STEP - 1) / STEP;
    x->n_whole = seen[0] / STEP;
    x->n_items = x->n_steps * 8;
    for (int h = 0; h < HALVES; h++) {
        x->seen[h] = _mm512_loadu_si512(seen + h * TILE);
        x->largest[h] = vf_load(w->largest[first / GROUP][h]);
    }
}

/* Of row r's results; their gates are at twice that. */
static int64_t row_offset(const attention_tile_args *a, int32_t r)
{
    return r / a->n_heads * a->stride + r % a->n_heads * DIM;
}

/* The group's rows over their sums, through their gates. */
static void store_rows(const attention_tile_args *a, int32_t first, workspace *w)
{
    int32_t n_rows = smaller(GROUP, a->n_tokens * a->n_heads - first);
    product *out = w->out[first / GROUP];
    for (int h = 0; h < HALVES; h++) {
        vf share = vf_div(vf_set1(1), vf_load(w->sum[first / GROUP][h]));
        for (int d = 0; d < DIM; d += TILE) {
            vf rows[VL];
            for (int i = 0; i < TILE; i++)
                rows[i] = vf_mul(vf_load(out[d / GROUP][h][d / TILE % HALVES][i]), share);
            vf_transpose(rows);
            for (int32_t i = 0; i < smaller(TILE, n_rows - h * TILE); i++) {
                int64_t at = row_offset(a, first + h * TILE + i);
                vf gate = vf_load(a->gates + 2 * at + d);
                vf shut = exp2_of(vf_mul(gate, vf_set1(-LOG2_E)));
                /* As sigmoid_finite. */
                vf divisor = vf_add(vf_add(vf_set1(1), shut), vf_sub(gate, gate));
                vf_store(a->out + at + d, vf_div(rows[i], divisor));
            }
        }
    }
}

/* What to ask for while a block is multiplied: the next one's keys and values. */
static beside start_block(const attention_tile_args *a, int32_t next, int32_t n_groups)
{
    enum { LINES = BLOCK * DIM * sizeof(uint16_t) / 64, MOST = 4 };
    beside side = {0};
    if ((int64_t)next * BLOCK >= a->first + a->n_tokens) return side;
    size_t offset = (size_t)a->blocks[next] * a->block_bytes;
    int32_t steps = n_groups * 2 * STEPS * STEPS;
    side.k = (const char *)a->k + offset;
    side.k_end = side.k + LINES * 64;
    side.v = (const char *)a->v + offset;
    side.n_lines = smaller((LINES + steps - 1) / steps, MOST);
    return side;
}

/* One block for all rows; after the last their results. */
static void attend_block(const attention_tile_args *a, int32_t block, bool last, workspace *w)
{
    int32_t n_rows = a->n_tokens * a->n_heads, n_groups = (n_rows + GROUP - 1) / GROUP;
    int64_t start = (int64_t)block * BLOCK;
    int32_t n_tokens = tokens_seen(a, start, n_rows - 1);
    int n_steps = (n_tokens + STEP - 1) / STEP;
    size_t offset = (size_t)a->blocks[block] * a->block_bytes;
    split_keys((const uint16_t *)(const void *)((const char *)a->k + offset), n_steps, w);
    split_values((const uint16_t *)(const void *)((const char *)a->v + offset), n_tokens, n_steps,
                 w);
    settle_memory();
    beside side = start_block(a, block + 1, n_groups);
    softmax groups[2] = {{0}};
    for (int32_t g = 0; g <= n_groups; g++) {
        softmax *x = &groups[g % 2], *before = &groups[1 - g % 2];
        *x = (softmax){0};
        if (g < n_groups) {
            start_group(a, start, g * GROUP, w, x);
            score(w, w->queries[g], x, before, &side);
            find_largest(x, w->largest[g]);
        }
        if (g == 0) continue;
        if (before->n_steps > 0) {
            soften_rest(before, w->sum[g - 1]);
            add_values(w, before, w->out[g - 1], block == 0, &side);
        }
        if (last) store_rows(a, (g - 1) * GROUP, w);
    }
}

void attention_tile_f16_amx(const attention_tile_args *a)
{
    workspace *w = (workspace *)a->workspace;
    int32_t n_rows = a->n_tokens * a->n_heads;
    int32_t n_blocks = (int32_t)((a->first + a->n_tokens + BLOCK - 1) / BLOCK);
    for (int32_t r = 0; r < n_rows; r += GROUP) {
        pack_queries(w->rows + r, smaller(GROUP, n_rows - r), w->queries[r / GROUP]);
        for (int h = 0; h < HALVES; h++) {
            vf_store(w->largest[r / GROUP][h], vf_set1(-INFINITY));
            vf_store(w->sum[r / GROUP][h], vf_zero());
        }
    }
    configure_tiles();
    for (int32_t block = 0; block < n_blocks; block++)
        attend_block(a, block, block == n_blocks - 1, w);
    _tile_release();
}
