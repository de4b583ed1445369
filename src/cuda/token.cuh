/* The kernels of a token's layers (token.cu) and of several rows' tokens (token_rows.cu): shared
 * memory, the ring, what their phases share. */
#ifndef CALLA_CUDA_TOKEN_CUH
#define CALLA_CUDA_TOKEN_CUH

#include "cuda/choose.cuh"
#include "cuda/token_ptx.cuh"
#include "cuda/w4.cuh"

/* Whether kernels have a body: on the host's pass, and for sm_90. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900
#define TOKEN_KERNEL 0
#else
#define TOKEN_KERNEL 1
#endif

/* Rows that the kernel has at once: token_rows.cu says 8. */
#ifndef TOKEN_ROWS
#define TOKEN_ROWS 1
#endif

enum {
    CONSUMERS = 16,
    CONSUMER_THREADS = CONSUMERS * WARP,
    TOKEN_THREADS = CONSUMER_THREADS + WARP, /* the last warp fills the ring */
    GROUPS = TOKEN_HIDDEN / W4_GROUP,
    STRIP_BYTES = GROUPS * W4_BLOCK_BYTES, /* 16 rows of 2,048 columns */
    STAGE_BYTES = 2 * STRIP_BYTES,
    STAGES = TOKEN_ROWS == 1 ? 5 : 3,
    GDN_ROW_GROUPS = 4,                    /* of a state, 32 rows each */
    MOST_ROUNDED = 8,                      /* groups that all warps multiply by */
    HEAD_GROUPS = 4,                       /* of the 256 columns of out_proj that a head has */
    HEAD_STRIPS = 6,                       /* of a GDN head's q, k, v, z that a block has */
    MOST_STRIPS = TOKEN_ROWS == 1 ? 8 : 7, /* products of a block between two reductions */
    KV_CHUNK = 256,                        /* tokens between two rescalings of a softmax */
    STAGE_TOKENS = 64,                     /* rows of K or V in a stage */
    KV_STRIDE = 576, /* bytes between them: no two of a half warp in one bank */
    Q_STRIDE = 288,  /* halves between heads */
    P_STRIDE = 272,
    KV_HEADS_TOKEN = 2,
    GROUP_HEADS = 8,  /* query heads of a KV head */
    CHOSEN_UNITS = 4, /* of a team: 64 inner columns of a chosen expert */
    ROUTER_ROWS = 2,  /* of a block; the last one has the shared expert's gate besides */
    ROUTER_PAIRS = (ROUTER_ROWS + 1) * TOKEN_HIDDEN, /* where in a stage */
};
static_assert(KV_STRIDE * STAGE_TOKENS <= STAGE_BYTES, "rows fit a stage");
static_assert(TOKEN_BLOCKS * ROUTER_ROWS >= TOKEN_MOST_EXPERTS, "a block for every expert");
static_assert(TOKEN_TEAMS * CHOSEN_UNITS == TOKEN_CHOSEN * (TOKEN_WIDTH / W4_GROUP),
              "every team has as many pieces of the chosen experts");

struct gdn_shared {
    float qkv[2 * GDN_HEAD_DIM + GDN_COLUMNS], small[16]; /* after the convolution */
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
};

/* Groups of 64 inputs, rounded: x ~ scale (128 high + low). Lane l of a warp reads words[l % 8],
 * the words of high for l < 4, those of low for l >= 4. */
struct rounded_groups {
    uint32_t words[MOST_ROUNDED][8][4];
    float scale[MOST_ROUNDED], sum[MOST_ROUNDED];
};

/* What a row of the step has. */
struct __align__(16) row_shared
{
    float parts[MOST_STRIPS][CONSUMERS][W4_STRIP_ROWS];
    float squares[CONSUMERS];
    rounded_groups rounded;
    float routed[ROUTER_ROWS + 1][CONSUMERS];
    gdn_shared gdn;
    float weight, shared_weight; /* of the team's expert, of the shared one */
};

/* Where a row's past is. */
struct row_place {
    float *states;        /* its sequence's */
    const int32_t *table; /* and blocks of KV */
    int position;         /* of its token */
};

struct token_shared {
    unsigned char ring[STAGES][STAGE_BYTES];
    row_shared rows[TOKEN_ROWS];
    attention_shared attention; /* of one row at a time */
    token_layer layers[TOKEN_MOST_LAYERS];
    uint64_t full[STAGES], empty[STAGES];
    /* Of several rows: */
    row_place places[TOKEN_ROWS];
    int chosen[TOKEN_ROWS]; /* the team's expert */
    uint64_t all_chosen;    /* a barrier; whoever writes them arrives, as with `empty` */
};

/* What is read 16 bytes at a time. */
static_assert(sizeof(row_shared) % 16 == 0 && offsetof(row_shared, squares) % 16 == 0 &&
                  offsetof(row_shared, rounded) % 16 == 0 && offsetof(row_shared, gdn) % 16 == 0 &&
                  offsetof(gdn_shared, small) % 16 == 0 && offsetof(gdn_shared, sums) % 16 == 0 &&
                  offsetof(token_shared, attention) % 16 == 0 &&
                  offsetof(attention_shared, p) % 16 == 0 &&
                  offsetof(attention_shared, newest) % 16 == 0,
              "aligned");
static_assert(sizeof(token_shared) <= 227 * 1024, "a block's shared memory");

/* Where a warp is. `own`, `a` and what follows it are those of a row. */
struct token_state {
    token_shared *s;
    row_shared *own;
    const token_args *a;
    int rank, team;
    int position;         /* of the token */
    float *states;        /* its sequence's */
    const int32_t *table; /* and blocks of KV */
    int stage;            /* of the ring */
    uint32_t lap;         /* its parity */
    unsigned arrivals;    /* of the grid's barrier that the next phase waits for */
    uint32_t tag;         /* of what blocks tell each other in this half of a layer */
};

__device__ static inline int block_index(const token_state &t)
{
    return t.team * TOKEN_RANKS + t.rank;
}

/* The ring's barriers, the layers; before a barrier of the block. */
__device__ static inline void start_block(token_state &t)
{
    token_shared &s = *t.s;
    const token_args &a = *t.a;
    const int tid = threadIdx.x;
    if (tid == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_start(&s.full[i], 1);
            barrier_start(&s.empty[i], CONSUMER_THREADS);
        }
        barriers_started();
    }
    const int words = (int)(sizeof(token_layer) / 4);
    for (int i = a.first * words + tid; i < a.end * words; i += TOKEN_THREADS)
        ((uint32_t *)s.layers)[i] = ((const uint32_t *)a.layers)[i];
}

/* ---- the ring, by consumers ---- */

/* The next stage, once it is there. */
__device__ static inline const unsigned char *take_stage(const token_state &t)
{
    barrier_wait(&t.s->full[t.stage], t.lap);
    return t.s->ring[t.stage];
}
__device__ static inline void next_stage(token_state &t)
{
    if (++t.stage == STAGES) t.stage = 0, t.lap ^= 1;
}
/* By every lane: one that did it for its warp would leave the others' reads to their order. */
__device__ static inline void give_stage(token_state &t)
{
    barrier_arrive(&t.s->empty[t.stage]);
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
    rounded_groups &r = t.own->rounded;
    float scale, sum;
    r.words[group][lane % 8][lane / 8] = round_group(v, scale, sum);
    if (lane == 0) r.scale[group] = scale * weight, r.sum[group] = sum * weight;
}
/* The four from `first` on. */
__device__ static inline void hold_shared(const token_state &t, held_groups &x, int first)
{
    const int lane = threadIdx.x % WARP;
    const rounded_groups &r = t.own->rounded;
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

/* A group's part of two rows of products: scale * sum + bias * (sum of x), `upper` 16 times the
 * second's sum. What is fused is said, so that it is the same wherever this is. */
__device__ static inline float2 weigh_products(uint32_t low, uint32_t high, float scale, float sum,
                                               int both, int upper)
{
    return make_float2(
        __fmaf_rn(bf16_low(low), scale * (float)(both - upper), __fmul_rn(bf16_high(low), sum)),
        __fmaf_rn(bf16_low(high), scale * 0.0625f * (float)upper, __fmul_rn(bf16_high(high), sum)));
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
    return weigh_products(f.low, f.high, x.scale, x.sum, both, upper);
}

/* Sums over pairs of lanes: even ones get that of x, odd ones that of y. */
__device__ static inline float add_pair(float2 v)
{
    const bool odd = threadIdx.x & 1;
    const float keep = odd ? v.y : v.x, gone = odd ? v.x : v.y;
    return keep + __shfl_xor_sync(0xffffffffu, gone, 1);
}

/* The warp's two groups of the two strips (n = 1: the strip) in the next stage of the ring, into
 * parts[strip] ... */
__device__ static inline void multiply_strips(token_state &t, const held_groups &x, int strip,
                                              int n)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, own = lane / 2 % 2;
    const unsigned char *first = take_stage(t) + 2 * warp * W4_BLOCK_BYTES;
    const four_blocks f = take_blocks<W4_BLOCK_BYTES>(first, first + STRIP_BYTES);
    give_stage(t);
    const float sum = add_pair(multiply_blocks(f, x));
    if (own < n) t.own->parts[strip + own][warp][lane / 4 + lane % 2 * 8] = sum;
}

/* Row `row` of parts[strip], by the four lanes of a quad, which all get it. */
__device__ static inline float sum_parts(const token_state &t, int strip, int row)
{
    const int first = threadIdx.x % 4 * 4;
    const float(*p)[W4_STRIP_ROWS] = t.own->parts[strip] + first;
    float sum = p[0][row] + p[1][row] + (p[2][row] + p[3][row]);
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    return sum + __shfl_xor_sync(0xffffffffu, sum, 2);
}

/* ---- the residual stream ---- */

/* What a norm multiplies by: behind a barrier of the consumers. A thread that `tells` says which
 * layer met something not finite. */
__device__ static inline float norm_factor(const token_state &t, int layer, bool tells)
{
    const float4 *p = (const float4 *)t.own->squares;
    float sum[CONSUMERS / 4];
#pragma unroll
    for (int i = 0; i < CONSUMERS / 4; i++) sum[i] = p[i].x + p[i].y + (p[i].z + p[i].w);
    const float mean = (sum[0] + sum[1] + (sum[2] + sum[3])) * (1.0f / TOKEN_HIDDEN);
    if (tells && block_index(t) == 0 && !is_finite(mean)) atomicMin(t.a->bad_layer, layer);
    return inverse_root_finite(mean + t.a->eps);
}
__device__ static inline float norm_factor(const token_state &t, int layer)
{
    return norm_factor(t, layer, threadIdx.x == 0);
}

/* A block's 16 columns of the residual stream to all blocks, two of them lane l's, l < 8. */
__device__ static inline void tell_stream(const token_state &t, float2 x)
{
    const int lane = threadIdx.x % WARP;
    uint64_t *to = t.a->mail->x[t.tag & 1] + block_index(t) * 16 + lane % 8 * 2;
    if (lane < 8) store_tagged(to, x.x, t.tag), store_tagged(to + 1, x.y, t.tag);
}
/* Two of the block's 16 columns, by a lane of its first warp: 2 (lane % 8) and the next. x there
 * with what the last half of a layer adds, in a fixed order; to all blocks. */
__device__ static inline float2 add_partial(const token_state &t, float2 x)
{
    const int lane = threadIdx.x % WARP;
    token_mail &m = *t.a->mail;
    const uint64_t *from = m.partial[t.tag & 1][block_index(t)][lane / 8] + lane % 8 * 2;
    const uint64_t *const p[4] = {from, from + 4 * 16, from + 8 * 16, from + 12 * 16};
    float2 v[4];
    await_pairs(v, p, t.tag);
    __syncwarp();
    v[0].x += v[1].x + (v[2].x + v[3].x), v[0].y += v[1].y + (v[2].y + v[3].y);
    v[0].x += __shfl_xor_sync(0xffffffffu, v[0].x, 8);
    v[0].y += __shfl_xor_sync(0xffffffffu, v[0].y, 8);
    v[0].x += __shfl_xor_sync(0xffffffffu, v[0].x, 16);
    v[0].y += __shfl_xor_sync(0xffffffffu, v[0].y, 16);
    x.x += v[0].x, x.y += v[0].y;
    tell_stream(t, x);
    return x;
}

/* The same of the first half that is run. */
__device__ static inline float2 load_columns(const token_state &t)
{
    return __ldcg((const float2 *)(t.a->x + block_index(t) * 16) + threadIdx.x % 8);
}

/* The warp's two groups of the residual stream: lane l has the columns 2l and 2l + 1 of each. Two
 * buffers are enough: whoever writes one again has had values of all blocks that came after they
 * had read it. */
__device__ static inline void load_stream(const token_state &t, float2 (&v)[2], bool first)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int column = warp * 2 * W4_GROUP + 2 * lane;
    if (first) {
        v[0] = __ldcg((const float2 *)(t.a->x + column));
        v[1] = __ldcg((const float2 *)(t.a->x + column + W4_GROUP));
        return;
    }
    const uint64_t *from = t.a->mail->x[t.tag & 1] + column;
    const uint64_t *const p[2] = {from, from + W4_GROUP};
    await_pairs(v, p, t.tag);
    __syncwarp();
}

/* The lane's squares; what is fused is said, as in weigh_products. */
__device__ static inline float square_of(const float2 (&v)[2])
{
    return __fmaf_rn(v[0].x, v[0].x, __fmul_rn(v[0].y, v[0].y)) +
           __fmaf_rn(v[1].x, v[1].x, __fmul_rn(v[1].y, v[1].y));
}
/* Times the norm's factors; leaves the sum of the squares for norm_factor: what the norm divides by
 * comes after the products. */
__device__ static inline void scale_stream(const token_state &t, float2 (&v)[2],
                                           const float2 (&factor)[2])
{
    const float square = warp_sum(square_of(v));
    if (threadIdx.x % WARP == 0) t.own->squares[threadIdx.x / WARP] = square;
#pragma unroll
    for (int u = 0; u < 2; u++) v[u].x *= factor[u].x, v[u].y *= factor[u].y;
}

/* The norm's factors of the warp's two groups, loaded ahead. */
__device__ static inline void load_norm(float2 (&f)[2], const float *factor)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    f[0] = ((const float2 *)factor)[2 * warp * WARP + lane];
    f[1] = ((const float2 *)factor)[(2 * warp + 1) * WARP + lane];
}

/* Where a team's part of this half of a layer's sums goes, of the warp's strip of the block's 16.
 * Two buffers, as in load_stream. */
__device__ static inline uint64_t *partial_of(const token_state &t, token_mail &m)
{
    return m.partial[(t.tag + 1) & 1][t.rank * CONSUMERS + threadIdx.x / WARP][t.team];
}
/* Rows lane / 4 (x) and lane / 4 + 8 (y) of four lanes. */
__device__ static inline void store_partial(const token_state &t, float2 v)
{
    const int lane = threadIdx.x % WARP;
    uint64_t *to = partial_of(t, *t.a->mail);
    float sum = add_pair(v);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (lane % 4 < 2) store_tagged(to + lane / 4 + lane % 2 * 8, sum, t.tag + 1);
}

/* ---- phases ---- */

/* The block's part of a phase is done. */
__device__ static inline void end_phase(token_state &t)
{
    sync_threads<CONSUMER_THREADS>();
    if (threadIdx.x == 0) grid_signal(t.a->barrier);
    t.arrivals += TOKEN_BLOCKS;
}
/* Everyone's part of the last phase is done. */
__device__ static inline void begin_phase(const token_state &t)
{
    if (threadIdx.x == 0) grid_await(t.a->barrier, t.arrivals);
    sync_threads<CONSUMER_THREADS>();
}

/* A stage with the columns of the team's head of out_proj, 16 strips, times the first four shared
 * groups: partial sums of the block's 256 rows. Warp w has strip w. */
__device__ static inline void multiply_out(token_state &t)
{
    held_groups x;
    hold_shared(t, x, 0);
    const unsigned char *blocks = take_stage(t) + threadIdx.x / WARP * HEAD_GROUPS * W4_BLOCK_BYTES;
    const four_blocks f = take_blocks<W4_BLOCK_BYTES>(blocks, blocks + 2 * W4_BLOCK_BYTES);
    give_stage(t);
    store_partial(t, multiply_blocks(f, x));
}

/* ---- by the host ---- */

template <typename Args> static bool token_kernel_fits(void (*kernel)(Args), int n_multiprocessors)
{
    int n = 0;
    cudaError_t status = allow_shared(kernel, sizeof(token_shared));
    if (status == cudaSuccess)
        status = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&n, kernel, TOKEN_THREADS,
                                                               sizeof(token_shared));
    if (status != cudaSuccess) cudaGetLastError();
    return status == cudaSuccess && n * n_multiprocessors >= TOKEN_BLOCKS;
}

/* Cooperative: all blocks run at once, or the launch fails. */
template <typename Args>
static cudaError_t launch_token_kernel(void (*kernel)(Args), const Args &a, cudaStream_t stream)
{
    cudaLaunchAttribute attribute;
    cudaLaunchConfig_t config = {};
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
    config.gridDim = dim3(TOKEN_BLOCKS);
    config.blockDim = dim3(TOKEN_THREADS);
    config.dynamicSmemBytes = sizeof(token_shared);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, a);
}

#endif
