/* The kernel of a token's layers (token.cu): shared memory, the ring, what its phases share. */
#ifndef CALLA_CUDA_TOKEN_CUH
#define CALLA_CUDA_TOKEN_CUH

#include "cuda/choose.cuh"
#include "cuda/token_ptx.cuh"
#include "cuda/w4.cuh"

enum {
    RANKS = 8, /* blocks of a cluster */
    CONSUMERS = 16,
    CONSUMER_THREADS = CONSUMERS * WARP,
    TOKEN_THREADS = CONSUMER_THREADS + WARP, /* the last warp fills the ring */
    GROUPS = TOKEN_HIDDEN / W4_GROUP,
    STRIP_BYTES = GROUPS * W4_BLOCK_BYTES, /* 16 rows of 2,048 columns: a stage of the ring */
    STAGES = 10,
    GDN_ROW_GROUPS = 4, /* of a state, 32 rows each */
    MOST_ROUNDED = 8,   /* groups that all warps multiply by */
    HEAD_GROUPS = 4,    /* of the 256 columns of out_proj that a head has */
    HEAD_STRIPS = 6,    /* of a GDN head's q, k, v, z that a block has */
    MOST_HEADS = 2,     /* of a cluster */
    HEAD_ROWS = 768,    /* q, k 128, v, z 256 */
    SLOTS = 16,         /* partial sums of a column */
    MOST_STRIPS = 8,    /* products of a block between two reductions */
    KV_CHUNK = 256,     /* tokens between two rescalings of a softmax */
    STAGE_TOKENS = 32,  /* rows of K or V in a stage */
    KV_STRIDE = 576,    /* bytes between them: no two of a half warp in one bank */
    Q_STRIDE = 288,     /* halves between heads */
    P_STRIDE = 272,
    KV_HEADS_TOKEN = 2,
    GROUP_HEADS = 8,                                       /* query heads of a KV head */
    UNITS = (TOKEN_CHOSEN + 1) * (TOKEN_WIDTH / W4_GROUP), /* of the experts: 64 columns of one */
    SHARED_UNITS = TOKEN_WIDTH / W4_GROUP,
    MOST_UNITS = 6, /* of a cluster */
    ROUTER_ROWS_BLOCK = TOKEN_MOST_EXPERTS / RANKS,
    ROUTER_STAGE_ROWS = 8,
    ROUTER_STRIDE = TOKEN_HIDDEN + 16,
    ROUTER_PAIRS = ROUTER_STAGE_ROWS * ROUTER_STRIDE, /* where in a stage */
    ROUTER_PAIR_STRIDE = GROUPS * 4 + 16,
    ROUTER_GATE = ROUTER_PAIRS + ROUTER_STAGE_ROWS * ROUTER_PAIR_STRIDE,
    ROUTER_GATE_PAIRS = ROUTER_GATE + TOKEN_HIDDEN / 4,
};
static_assert(KV_STRIDE * STAGE_TOKENS <= STRIP_BYTES, "rows fit a stage");
static_assert(ROUTER_GATE_PAIRS + 32 <= STRIP_BYTES, "rows fit a stage");

struct gdn_shared {
    float projected[MOST_HEADS][HEAD_ROWS], gates[MOST_HEADS][2 * RANKS];
    float q[GDN_HEAD_DIM], k[GDN_HEAD_DIM], v[GDN_COLUMNS], small[16];
    float sums[2][GDN_ROW_GROUPS][GDN_COLUMNS];
};

struct attention_shared {
    union {
        __half q[2][GROUP_HEADS][Q_STRIDE]; /* and what rounding left of it */
        float out[GROUP_HEADS][ATTENTION_HEAD_DIM];
    };
    __half p[2][GROUP_HEADS][P_STRIDE];
    __half newest[2][ATTENTION_HEAD_DIM]; /* K and V of this token */
    float max[CONSUMERS][GROUP_HEADS], sum[CONSUMERS][GROUP_HEADS];
    float combined[CONSUMERS][WARP];
};

struct moe_shared {
    unsigned char planes[GROUPS][4][W4_GROUP];
    float logits[TOKEN_MOST_EXPERTS], gate[CONSUMERS];
    float weights[8], h[MOST_UNITS][W4_GROUP];
};

/* Groups of 64 inputs, rounded: x ~ scale (128 high + low). Lane l of a warp reads words[l % 8],
 * the words of high for l < 4, those of low for l >= 4. */
struct rounded_groups {
    uint32_t words[MOST_ROUNDED][8][4];
    float scale[MOST_ROUNDED], sum[MOST_ROUNDED];
};

struct token_shared {
    unsigned char ring[STAGES][STRIP_BYTES];
    float x[TOKEN_HIDDEN];
    float parts[MOST_STRIPS][CONSUMERS][W4_STRIP_ROWS];
    float squares[CONSUMERS];
    rounded_groups rounded;
    float out[MOST_HEADS][ATTENTION_HEAD_DIM];
    union {
        gdn_shared gdn;
        attention_shared attention;
        moe_shared moe;
    };
    token_layer layers[TOKEN_MOST_LAYERS];
    uint64_t full[STAGES], empty[STAGES];
    uint64_t x_here, projected_here[MOST_HEADS], out_here[MOST_HEADS], logits_here, h_here;
};

/* What is sent or read 16 bytes at a time. */
static_assert(offsetof(token_shared, gdn) % 16 == 0 && offsetof(gdn_shared, v) % 16 == 0 &&
                  offsetof(gdn_shared, sums) % 16 == 0 && offsetof(attention_shared, p) % 16 == 0 &&
                  offsetof(attention_shared, newest) % 16 == 0 &&
                  offsetof(moe_shared, logits) % 16 == 0 && offsetof(moe_shared, h) % 16 == 0 &&
                  offsetof(token_shared, squares) % 16 == 0 &&
                  offsetof(token_shared, rounded) % 16 == 0 &&
                  offsetof(token_shared, out) % 16 == 0,
              "aligned");
static_assert(sizeof(token_shared) <= 227 * 1024, "a block's shared memory");

/* Where a warp is. */
struct token_state {
    token_shared *s;
    const token_args *a;
    int rank, cluster, n_clusters;
    int position;         /* of the token */
    float *states;        /* its sequence's */
    const int32_t *table; /* and blocks of KV */
    int stage;            /* of the ring */
    uint32_t lap;         /* its parity */
    uint32_t x_parity, projected_parity, out_parity, logits_parity, h_parity;
    unsigned arrivals; /* of the grid's barrier that the next phase waits for */
    uint32_t tag;      /* of the partial sums that the next phase reads */
};

__device__ static inline int block_index(const token_state &t)
{
    return t.cluster * RANKS + t.rank;
}
/* Things numbered cluster, cluster + n_clusters, ... below n. */
__device__ static inline int count_of(const token_state &t, int n)
{
    return (n - t.cluster + t.n_clusters - 1) / t.n_clusters;
}

/* ---- the ring, by consumers ---- */

/* The stage `ahead` of the next one, once it is there. */
__device__ static inline const unsigned char *take_stage(const token_state &t, int ahead)
{
    int stage = t.stage + ahead;
    uint32_t lap = t.lap;
    if (stage >= STAGES) stage -= STAGES, lap ^= 1;
    barrier_wait(&t.s->full[stage], lap);
    return t.s->ring[stage];
}
__device__ static inline void next_stage(token_state &t)
{
    if (++t.stage == STAGES) t.stage = 0, t.lap ^= 1;
}
__device__ static inline void give_stage(token_state &t)
{
    __syncwarp();
    if (threadIdx.x % WARP == 0) barrier_arrive(&t.s->empty[t.stage]);
    next_stage(t);
}

/* ---- rounded inputs, products ----
 *
 * A product of the tensor cores has eight columns, and a rounded group needs two. So a warp
 * multiplies four blocks, each by its own group, into one sum: block j by a matrix that has the
 * group's planes in the columns 2j and 2j + 1 and zeros beside them. Then the lanes with
 * l % 4 = j have block j's sums, and what follows the products is done once for four blocks. */

/* Four rounded groups as the lanes of a warp hold them: words[j] are the planes of group j in lanes
 * l with l / 8 = j, else zero; scale and sum are those of group l % 4. */
struct held_groups {
    uint32_t words[4][4];
    float scale, sum;
};

/* Of a group whose lane l has inputs 2l and 2l + 1 (as round_groups, w4.cuh): the word l / 8 of
 * words[l % 8], scale and sum. */
__device__ static inline uint32_t round_group(float2 v, float &scale, float &sum)
{
    const int lane = threadIdx.x % WARP, shift = lane & 4 ? 8 : 0;
    const uint32_t largest = __reduce_max_sync(
        0xffffffffu, max(__float_as_uint(v.x) & 0x7fffffffu, __float_as_uint(v.y) & 0x7fffffffu));
    const bool bad = largest >= 0x7f800000u;
    const float most = __uint_as_float(largest);
    const bool some = !bad && most > 0x1p-100f;
    const float inverse = some ? __fdividef(16256.0f, most) : 0;
    scale = bad ? __uint_as_float(0x7fc00000u) : some ? most * (1.0f / 16256.0f) : 0;
    const int a = some ? __float2int_rn(v.x * inverse) : 0;
    const int b = some ? __float2int_rn(v.y * inverse) : 0;
    const int high_a = (a + 64) >> 7, high_b = (b + 64) >> 7;
    const int low_a = a - 128 * high_a, low_b = b - 128 * high_b;
    uint32_t high = ((uint32_t)(high_a & 255) | (uint32_t)(high_b & 255) << 16) << shift;
    uint32_t low = ((uint32_t)(low_a & 255) | (uint32_t)(low_b & 255) << 16) << shift;
    sum = scale * (float)__reduce_add_sync(0xffffffffu, a + b);
    high |= __shfl_xor_sync(0xffffffffu, high, 4);
    low |= __shfl_xor_sync(0xffffffffu, low, 4);
    return lane & 4 ? low : high;
}

__device__ static inline void place_planes(held_groups &x, uint4 plane)
{
    const int own = threadIdx.x % WARP / 8;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        x.words[j][0] = own == j ? plane.x : 0, x.words[j][1] = own == j ? plane.y : 0;
        x.words[j][2] = own == j ? plane.z : 0, x.words[j][3] = own == j ? plane.w : 0;
    }
}

/* The warp's two groups, for itself alone and twice: for two strips. */
__device__ static inline void hold_groups(held_groups &x, const float2 (&v)[2])
{
    const int from = threadIdx.x & 7;
    const bool second = threadIdx.x & 8, odd = threadIdx.x & 1;
    float scale[2], sum[2];
    const uint32_t a = round_group(v[0], scale[0], sum[0]), b = round_group(v[1], scale[1], sum[1]);
    uint32_t word[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const uint32_t p = __shfl_sync(0xffffffffu, a, 8 * k + from);
        const uint32_t q = __shfl_sync(0xffffffffu, b, 8 * k + from);
        word[k] = second ? q : p;
    }
    place_planes(x, make_uint4(word[0], word[1], word[2], word[3]));
    x.scale = odd ? scale[1] : scale[0], x.sum = odd ? sum[1] : sum[0];
}

/* For all warps, behind a barrier; times `weight`. */
__device__ static inline void share_group(const token_state &t, int group, float2 v, float weight)
{
    const int lane = threadIdx.x % WARP;
    rounded_groups &r = t.s->rounded;
    float scale, sum;
    r.words[group][lane % 8][lane / 8] = round_group(v, scale, sum);
    if (lane == 0) r.scale[group] = scale * weight, r.sum[group] = sum * weight;
}
/* The four from `first` on. */
__device__ static inline void hold_shared(const token_state &t, held_groups &x, int first)
{
    const int lane = threadIdx.x % WARP;
    const rounded_groups &r = t.s->rounded;
    place_planes(x, *(const uint4 *)r.words[first + lane / 8][lane % 8]);
    x.scale = r.scale[first + lane % 4], x.sum = r.sum[first + lane % 4];
}

/* What a lane holds of four blocks: codes of all, scales and biases of its own. */
struct four_blocks {
    uint4 codes[4];
    uint32_t low, high;
};
/* Two neighbours, STRIDE bytes apart, at `first` and two at `second`. */
template <int STRIDE>
__device__ static inline four_blocks take_blocks(const unsigned char *first,
                                                 const unsigned char *second)
{
    const int lane = threadIdx.x % WARP;
    const unsigned char *own = (lane & 2 ? second : first) + (lane & 1 ? STRIDE : 0);
    const uint32_t *pairs = (const uint32_t *)(own + W4_CODE_BYTES) + lane / 4;
    four_blocks f;
    f.codes[0] = ((const uint4 *)first)[lane], f.codes[1] = ((const uint4 *)(first + STRIDE))[lane];
    f.codes[2] = ((const uint4 *)second)[lane];
    f.codes[3] = ((const uint4 *)(second + STRIDE))[lane];
    f.low = pairs[0], f.high = pairs[8];
    return f;
}

/* Rows l / 4 (x) and l / 4 + 8 (y) of block l % 4 times its group. A byte of codes has one of
 * either row: it is multiplied as it is and without its lower half, 16 times the second row, and
 * the first is what that leaves. All that is exact, in int32 and, below 2^24, in f32. */
__device__ static inline float2 multiply_blocks(const four_blocks &f, const held_groups &x)
{
    const uint32_t mask = 0xf0f0f0f0u;
    int d[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const uint4 q = f.codes[j];
        const uint32_t(&w)[4] = x.words[j];
        multiply_bytes(d[j / 2], q.x, q.x & mask, q.y, q.y & mask, w[0], w[1]);
        multiply_bytes(d[j / 2], q.z, q.z & mask, q.w, q.w & mask, w[2], w[3]);
    }
    const int both = 128 * (d[0][0] + d[1][0]) + (d[0][1] + d[1][1]);
    const int upper = 128 * (d[0][2] + d[1][2]) + (d[0][3] + d[1][3]);
    return make_float2(
        bf16_low(f.low) * (x.scale * (float)(both - upper)) + bf16_high(f.low) * x.sum,
        bf16_low(f.high) * (x.scale * 0.0625f * (float)upper) + bf16_high(f.high) * x.sum);
}

/* Sums over pairs of lanes: even ones get that of x, odd ones that of y. */
__device__ static inline float add_pair(float2 v)
{
    const bool odd = threadIdx.x & 1;
    const float keep = odd ? v.y : v.x, gone = odd ? v.x : v.y;
    return keep + __shfl_xor_sync(0xffffffffu, gone, 1);
}

/* The warp's two groups of the strips in the next two stages of the ring (n = 1: in the next one),
 * into parts[strip] ... */
__device__ static inline void multiply_strips(token_state &t, const held_groups &x, int strip,
                                              int n)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const unsigned char *first = take_stage(t, 0) + 2 * warp * W4_BLOCK_BYTES, *second = first;
    if (n > 1) second = take_stage(t, 1) + 2 * warp * W4_BLOCK_BYTES;
    const four_blocks f = take_blocks<W4_BLOCK_BYTES>(first, second);
    give_stage(t);
    if (n > 1) give_stage(t);
    const float sum = add_pair(multiply_blocks(f, x));
    const int own = lane / 2 % 2;
    if (own < n) t.s->parts[strip + own][warp][lane / 4 + lane % 2 * 8] = sum;
}

/* Row `row` of parts[strip], by the four lanes of a quad, which all get it. */
__device__ static inline float sum_parts(const token_state &t, int strip, int row)
{
    const int first = threadIdx.x % 4 * 4;
    const float(*p)[W4_STRIP_ROWS] = t.s->parts[strip] + first;
    float sum = p[0][row] + p[1][row] + p[2][row] + p[3][row];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    return sum + __shfl_xor_sync(0xffffffffu, sum, 2);
}

/* Sum of x^2 over the row, and what a norm multiplies by: behind a barrier of the consumers. */
__device__ static inline float mean_square(const token_state &t)
{
    const float4 *p = (const float4 *)t.s->squares;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < CONSUMERS / 4; i++) {
        const float4 v = p[i];
        sum += v.x + v.y + (v.z + v.w);
    }
    return sum * (1.0f / TOKEN_HIDDEN);
}
/* The same; says which layer met something not finite. */
__device__ static inline float norm_factor(const token_state &t, int layer)
{
    const float mean = mean_square(t);
    if (threadIdx.x == 0 && block_index(t) == 0 && !is_finite(mean))
        atomicMin(t.a->bad_layer, layer);
    return inverse_root_finite(mean + t.a->eps);
}

/* ---- phases ---- */

/* The block's part of a phase is done. */
__device__ static inline void end_phase(token_state &t)
{
    sync_threads<CONSUMER_THREADS>();
    if (threadIdx.x == 0) grid_signal(t.a->barrier);
    t.arrivals += (unsigned)t.n_clusters * RANKS;
}
/* Everyone's part of the last phase is done. */
__device__ static inline void begin_phase(const token_state &t)
{
    if (threadIdx.x == 0) grid_await(t.a->barrier, t.arrivals);
    sync_threads<CONSUMER_THREADS>();
}

/* Where a phase leaves a partial sum of a row of the residual stream. */
__device__ static inline uint64_t *partial_at(const token_state &t, uint32_t tag, int slot, int row)
{
    return t.a->partial + ((tag & 1) * SLOTS + (size_t)slot) * TOKEN_HIDDEN + row;
}
/* Rows lane / 4 (x) and lane / 4 + 8 (y) of the warp's strip of the block's 16: sums over four
 * lanes. The reader waits for the tags: two buffers are enough, since whoever writes for the next
 * phase but one has read sums of all who read these. */
__device__ static inline void store_partial(const token_state &t, int slot, float2 v)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int row = (t.rank * 16 + warp) * W4_STRIP_ROWS + lane / 4 + lane % 2 * 8;
    float sum = add_pair(v);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (lane % 4 < 2) store_tagged(partial_at(t, t.tag + 1, slot, row), sum, t.tag + 1);
}

/* x[rank * 256 + 16 warp + lane % 16] and the first n_slots partial sums of the last phase, once
 * they are there: in a fixed order, the same in both halves of a warp. */
__device__ static inline float add_partial(const token_state &t, int n_slots)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, first = lane / 16 * (SLOTS / 2);
    const int column = t.rank * (TOKEN_HIDDEN / RANKS) + warp * 16 + lane % 16;
    const uint64_t *p = partial_at(t, t.tag, first, column);
    uint64_t v[SLOTS / 2];
    bool there;
    do {
        there = true;
#pragma unroll
        for (int i = 0; i < SLOTS / 2; i++)
            if (first + i < n_slots) v[i] = load_tagged(p + (size_t)i * TOKEN_HIDDEN);
#pragma unroll
        for (int i = 0; i < SLOTS / 2; i++)
            if (first + i < n_slots) there &= (uint32_t)(v[i] >> 32) == t.tag;
    } while (!there);
    __syncwarp();
    float sum = 0;
#pragma unroll
    for (int i = 0; i < SLOTS / 2; i++)
        if (first + i < n_slots) sum += __uint_as_float((uint32_t)v[i]);
    return t.s->x[column] + (sum + __shfl_xor_sync(0xffffffffu, sum, 16));
}

/* The residual stream with what the last phase adds to it. Every block of a cluster adds up 256
 * columns and sends them to all. */
__device__ static inline void add_sums(token_state &t, int n_slots)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    if (threadIdx.x == 0) barrier_expect(&t.s->x_here, TOKEN_HIDDEN * 4);
    const float x = add_partial(t, n_slots);
    float4 v;
    v.x = __shfl_sync(0xffffffffu, x, (lane & 12));
    v.y = __shfl_sync(0xffffffffu, x, (lane & 12) + 1);
    v.z = __shfl_sync(0xffffffffu, x, (lane & 12) + 2);
    v.w = __shfl_sync(0xffffffffu, x, (lane & 12) + 3);
    send(v, t.s->x + t.rank * (TOKEN_HIDDEN / RANKS) + warp * 16 + (lane & 12), &t.s->x_here,
         (uint32_t)(lane % 4 + lane / 16 * 4));
    barrier_wait_cluster(&t.s->x_here, t.x_parity);
    t.x_parity ^= 1;
}

/* The residual stream goes to global memory, by the first cluster. */
__device__ static inline void store_x(const token_state &t)
{
    const int column = t.rank * (TOKEN_HIDDEN / RANKS) + threadIdx.x;
    if (t.cluster == 0 && threadIdx.x < TOKEN_HIDDEN / RANKS) t.a->x[column] = t.s->x[column];
}

/* A factor of a norm for the warp's two groups, loaded ahead. */
__device__ static inline void load_norm(float2 (&f)[2], const float *factor)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    f[0] = ((const float2 *)factor)[2 * warp * WARP + lane];
    f[1] = ((const float2 *)factor)[(2 * warp + 1) * WARP + lane];
}
/* The warp's two groups of x times the factor; leaves the sum of their squares of x for
 * norm_factor: the norm's own factor comes after the products. */
__device__ static inline void load_input(const token_state &t, float2 (&v)[2],
                                         const float2 (&factor)[2])
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    v[0] = ((const float2 *)t.s->x)[2 * warp * WARP + lane];
    v[1] = ((const float2 *)t.s->x)[(2 * warp + 1) * WARP + lane];
    const float square =
        warp_sum(v[0].x * v[0].x + v[0].y * v[0].y + (v[1].x * v[1].x + v[1].y * v[1].y));
    if (lane == 0) t.s->squares[warp] = square;
#pragma unroll
    for (int u = 0; u < 2; u++) v[u].x *= factor[u].x, v[u].y *= factor[u].y;
}

/* Sends the sums of four rows that the quads of half a warp have to the eight blocks: `to` of the
 * half's first row. */
__device__ static inline void send_rows(float sum, float *to, uint64_t *barrier)
{
    const int lane = threadIdx.x % WARP;
    float4 v;
    v.x = __shfl_sync(0xffffffffu, sum, (lane & 16));
    v.y = __shfl_sync(0xffffffffu, sum, (lane & 16) + 4);
    v.z = __shfl_sync(0xffffffffu, sum, (lane & 16) + 8);
    v.w = __shfl_sync(0xffffffffu, sum, (lane & 16) + 12);
    if (lane % 16 < RANKS) send(v, to, barrier, (uint32_t)(lane % 16));
}

/* Two stages with the columns of a head of out_proj, 16 strips, times shared groups first ...: the
 * partial sums of the block's 256 rows. Warp w has strip w. */
__device__ static inline void multiply_out(token_state &t, int first, int slot)
{
    const int half = threadIdx.x / (CONSUMER_THREADS / 2), strip = threadIdx.x / WARP % 8;
    held_groups x;
    hold_shared(t, x, first);
    const unsigned char *stages[2] = {take_stage(t, 0), take_stage(t, 1)};
    const unsigned char *blocks =
        (half ? stages[1] : stages[0]) + strip * HEAD_GROUPS * W4_BLOCK_BYTES;
    const four_blocks f = take_blocks<W4_BLOCK_BYTES>(blocks, blocks + 2 * W4_BLOCK_BYTES);
    give_stage(t);
    give_stage(t);
    store_partial(t, slot, multiply_blocks(f, x));
}

#endif
