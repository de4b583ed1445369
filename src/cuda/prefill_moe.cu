/* Which tokens go to which expert, and the sum over a token's experts (MODEL.md 3.8). */
#include "cuda/prefill_device.cuh"

/* ---- router logits ----
 *
 * f32 arithmetic on tensor cores: an input is the sum of three bf16 (8 bits each, exact), a code
 * less 128 is a bf16, and their products are summed in f32; scale and bias come in per group, in
 * f32. A block computes 32 tokens by 96 outputs and takes 256 columns a step: three warps a group
 * of 64 columns, two strips of 16 outputs a warp. The groups' sums are added in a fixed order. */

enum {
    ROUTER_TOKENS = 32,
    ROUTER_OUTPUTS = 96,
    ROUTER_COLUMNS = 256,
    ROUTER_GROUPS = ROUTER_COLUMNS / 64,
    ROUTER_THREADS = ROUTER_GROUPS * 3 * 32,
    ROUTER_LOADERS = 8, /* warps that load inputs; the others load codes */
    ROUTER_PITCH = ROUTER_COLUMNS + 8,
    ROUTER_CODE_PITCH = ROUTER_COLUMNS + 16,
};

typedef struct router_shared {
    union {
        uint16_t x[3][ROUTER_TOKENS][ROUTER_PITCH]; /* bf16, largest part first */
        float sums[ROUTER_GROUPS - 1][ROUTER_OUTPUTS][ROUTER_TOKENS];
    };
    uint8_t codes[ROUTER_OUTPUTS][ROUTER_CODE_PITCH];
    float x_sums[ROUTER_GROUPS][ROUTER_TOKENS];
} router_shared;

typedef struct router_args {
    const float *u;
    const unsigned char *codes;
    const uint32_t *pairs;
    int32_t n_tokens, n_outputs, hidden;
    float *logits;
} router_args;

/* What a thread loads of a step: rows of inputs in four tokens, or of codes in 24 outputs. */
typedef union router_piece {
    float4 x[4][2];
    uint4 codes[12];
} router_piece;

static __device__ __forceinline__ void router_load(const router_args &a, router_piece &p,
                                                   int32_t column)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (warp < ROUTER_LOADERS) {
        int32_t c = column + lane * 8;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int32_t t = min((int32_t)blockIdx.x * ROUTER_TOKENS + warp * 4 + i, a.n_tokens - 1);
            const float4 *from = (const float4 *)(a.u + (int64_t)t * a.hidden + c);
            p.x[i][0] = c < a.hidden ? from[0] : float4{};
            p.x[i][1] = c < a.hidden ? from[1] : float4{};
        }
    } else {
        int t = threadIdx.x - ROUTER_LOADERS * 32;
        int32_t c = column + t % 16 * 16;
#pragma unroll
        for (int i = 0; i < 12; i++) {
            int32_t r = min((int32_t)blockIdx.y * ROUTER_OUTPUTS + t / 16 + i * 8, a.n_outputs - 1);
            const uint4 *from = (const uint4 *)(a.codes + (int64_t)r * a.hidden + c);
            p.codes[i] = c < a.hidden ? *from : uint4{};
        }
    }
}

/* v becomes what is left of it. Truncation, so that three parts are exact. */
static __device__ __forceinline__ uint32_t take_bf16(float &v)
{
    uint32_t bits = __float_as_uint(v) & 0xffff0000u;
    v -= __uint_as_float(bits);
    return bits >> 16;
}

static __device__ __forceinline__ void router_store(router_shared *s, const router_piece &p)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (warp < ROUTER_LOADERS) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float v[8] = {p.x[i][0].x, p.x[i][0].y, p.x[i][0].z, p.x[i][0].w,
                          p.x[i][1].x, p.x[i][1].y, p.x[i][1].z, p.x[i][1].w};
            float sum = ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
            for (int j = 1; j < 8; j <<= 1) sum += __shfl_xor_sync(0xffffffffu, sum, j);
            if (lane % 8 == 0) s->x_sums[lane / 8][warp * 4 + i] = sum;
#pragma unroll
            for (int part = 0; part < 3; part++) {
                uint32_t w[4];
#pragma unroll
                for (int j = 0; j < 4; j++)
                    w[j] = take_bf16(v[2 * j]) | take_bf16(v[2 * j + 1]) << 16;
                *(uint4 *)&s->x[part][warp * 4 + i][lane * 8] = make_uint4(w[0], w[1], w[2], w[3]);
            }
        }
    } else {
        int t = threadIdx.x - ROUTER_LOADERS * 32;
#pragma unroll
        for (int i = 0; i < 12; i++) *(uint4 *)&s->codes[t / 16 + i * 8][t % 16 * 16] = p.codes[i];
    }
}

/* Two codes less 128 as bf16: 2^23 + q is exact in f32, and so are the difference and its bf16. */
static __device__ __forceinline__ uint32_t code_pair(uint32_t two)
{
    float low = __uint_as_float(0x4b000000u | (two & 255)) - 8388736.0f;
    float high = __uint_as_float(0x4b000000u | two >> 8) - 8388736.0f;
    return __float_as_uint(low) >> 16 | (__float_as_uint(high) & 0xffff0000u);
}

/* sums += one group of 64 columns. */
static __device__ __forceinline__ void router_multiply(const router_args &a, const router_shared *s,
                                                       int32_t first_output, int32_t group,
                                                       float (&sums)[2][4][4])
{
    int lane = threadIdx.x % 32, part = threadIdx.x / 96, strip0 = threadIdx.x / 32 % 3 * 2;
    float d[2][4][4] = {};
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint32_t w[2][4];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint8_t *row =
                &s->codes[(strip0 + i) * 16 + lane / 4][part * 64 + k * 16 + lane % 4 * 2];
#pragma unroll
            for (int j = 0; j < 4; j++)
                w[i][j] =
                    code_pair(*(const uint16_t *)(row + j % 2 * 8 * ROUTER_CODE_PITCH + j / 2 * 8));
        }
#pragma unroll
        for (int x = 2; x >= 0; x--)
#pragma unroll
            for (int t = 0; t < 2; t++) {
                uint32_t b[4];
                load_matrix4(b, shared_address(&s->x[x][t * 16 + lane / 16 * 8 + lane % 8]
                                                    [part * 64 + k * 16 + lane / 8 % 2 * 8]));
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    multiply_bf16(d[i][2 * t], w[i], b[0], b[1]);
                    multiply_bf16(d[i][2 * t + 1], w[i], b[2], b[3]);
                }
            }
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int32_t r = min(first_output + (strip0 + i) * 16 + lane / 4 + h * 8, a.n_outputs - 1);
            uint32_t pair = a.pairs[(int64_t)r * (a.hidden / 64) + group];
            float scale = __uint_as_float(pair << 16);
            float bias = fmaf(scale, 128.0f, __uint_as_float(pair & 0xffff0000u));
#pragma unroll
            for (int t = 0; t < 8; t++) {
                float x = s->x_sums[part][t / 2 * 8 + lane % 4 * 2 + t % 2];
                float &sum = sums[i][t / 2][2 * h + t % 2];
                sum = fmaf(bias, x, fmaf(scale, d[i][t / 2][2 * h + t % 2], sum));
            }
        }
}

static __global__ void __launch_bounds__(ROUTER_THREADS, 1) router_kernel(router_args a)
{
    extern __shared__ __align__(16) char memory[];
    router_shared *s = (router_shared *)memory;
    int lane = threadIdx.x % 32, part = threadIdx.x / 96, strip0 = threadIdx.x / 32 % 3 * 2;
    int32_t first_output = blockIdx.y * ROUTER_OUTPUTS;
    float sums[2][4][4] = {};
    router_piece piece;
    router_load(a, piece, 0);
    for (int32_t c = 0; c < a.hidden; c += ROUTER_COLUMNS) {
        __syncthreads();
        router_store(s, piece);
        __syncthreads();
        if (c + ROUTER_COLUMNS < a.hidden) router_load(a, piece, c + ROUTER_COLUMNS);
        if (c + part * 64 < a.hidden) router_multiply(a, s, first_output, c / 64 + part, sums);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 32; i++) {
        int row = (strip0 + i / 16) * 16 + lane / 4 + i / 2 % 2 * 8;
        int t = i / 4 % 4 * 8 + lane % 4 * 2 + i % 2;
        if (part > 0) s->sums[part - 1][row][t] = sums[i / 16][i / 4 % 4][i % 4];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 32; i++) {
        int row = (strip0 + i / 16) * 16 + lane / 4 + i / 2 % 2 * 8;
        int t = i / 4 % 4 * 8 + lane % 4 * 2 + i % 2;
        int32_t token = blockIdx.x * ROUTER_TOKENS + t, output = first_output + row;
        if (part > 0 || token >= a.n_tokens || output >= a.n_outputs) continue;
        float v = sums[i / 16][i / 4 % 4][i % 4];
        for (int p = 0; p < ROUTER_GROUPS - 1; p++) v += s->sums[p][row][t];
        a.logits[(int64_t)token * a.n_outputs + output] = v;
    }
}

cudaError_t prefill_router_init()
{
    return cudaFuncSetAttribute((const void *)router_kernel,
                                cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(router_shared));
}

cudaError_t prefill_router_logits(const float *u, const unsigned char *codes, const uint32_t *pairs,
                                  int32_t n_tokens, int32_t n_outputs, int32_t hidden,
                                  float *logits, cudaStream_t stream)
{
    dim3 grid((unsigned)ceil_div(n_tokens, ROUTER_TOKENS),
              (unsigned)ceil_div(n_outputs, ROUTER_OUTPUTS));
    router_args a = {u, codes, pairs, n_tokens, n_outputs, hidden, logits};
    router_kernel<<<grid, ROUTER_THREADS, sizeof(router_shared), stream>>>(a);
    return cudaGetLastError();
}

/* ---- the choice ---- */

enum { TOP_K_MAX_EXPERTS = 1024, TOP_K_MAX = 64 };

/* Larger first, equal ones lower index first, NaN after all numbers: as a number to maximise. The
 * order of floats as integers, then the index. */
static __device__ __forceinline__ uint64_t rank_key(float v, int32_t index)
{
    uint32_t bits = __float_as_uint(v == 0 ? 0.0f : v);
    bits = isnan(v) ? 0 : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (uint64_t)bits << 32 | (uint32_t)~index;
}

/* A warp a token. */
static __global__ void top_k_kernel(const float *logits, int64_t stride, int32_t n_tokens,
                                    int32_t n_experts, int32_t k, int32_t *experts, float *weights,
                                    float *shared_scale)
{
    enum { PER_LANE = TOP_K_MAX_EXPERTS / 32 };
    int32_t t = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (t >= n_tokens) return;
    const float *row = logits + t * stride;
    uint64_t keys[PER_LANE];
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        int32_t e = i * 32 + lane;
        keys[i] = e < n_experts ? rank_key(row[e], e) : 0;
    }
    float largest = 0, sum = 0, mine[TOP_K_MAX / 32] = {};
    /* 0, or NaN: a router that has overflowed must not look like a choice. */
    for (int32_t e = lane; e < n_experts; e += 32) sum += row[e] - row[e];
    sum = warp_sum(sum);
    uint64_t limit = ~(uint64_t)0;
    for (int32_t s = 0; s < k; s++) {
        uint64_t best = 0;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++)
            if (i * 32 < n_experts && keys[i] < limit && keys[i] > best) best = keys[i];
        for (int i = 16; i > 0; i >>= 1) {
            uint64_t other = __shfl_xor_sync(0xffffffffu, best, i);
            best = other > best ? other : best;
        }
        limit = best;
        int32_t e = (int32_t) ~(uint32_t)best;
        float v = row[e];
        if (s == 0) largest = v;
        float p = expf(v - largest);
        sum += p;
        if (lane == s % 32) mine[s / 32] = p;
        if (lane == 0) experts[(int64_t)t * k + s] = e;
    }
    for (int i = 0; i < TOP_K_MAX / 32; i++)
        if (i * 32 + lane < k) weights[(int64_t)t * k + i * 32 + lane] = mine[i] / sum;
    if (lane == 0) shared_scale[t] = sigmoid(row[n_experts]);
}

cudaError_t prefill_router_top_k(const float *logits, int64_t logits_stride, int32_t n_tokens,
                                 int32_t n_experts, int32_t k, int32_t *experts, float *weights,
                                 float *shared_scale, cudaStream_t stream)
{
    top_k_kernel<<<(unsigned)ceil_div(n_tokens, 4), 128, 0, stream>>>(
        logits, logits_stride, n_tokens, n_experts, k, experts, weights, shared_scale);
    return cudaGetLastError();
}

/* ---- the plan: a counting sort in three launches ---- */

static int32_t plan_blocks(int32_t n_tokens, int32_t k)
{
    return ceil_div((int64_t)n_tokens * k, MOE_PLAN_SLOTS);
}

static int32_t plan_max_tiles(int32_t n_tokens, int32_t n_experts, int32_t k)
{
    return (int32_t)((int64_t)n_tokens * (k + 1) / MOE_TILE_ROWS) + n_experts + 1;
}

/* Rounded up to 256 bytes. */
static int64_t piece_bytes(int64_t n, size_t element_bytes)
{
    return (n * (int64_t)element_bytes + 255) / 256 * 256;
}

int64_t prefill_moe_plan_bytes(int32_t max_tokens, int32_t n_experts, int32_t k)
{
    int64_t slots = (int64_t)max_tokens * k;
    return piece_bytes(slots, 4) + piece_bytes(slots + max_tokens, 4) +
           piece_bytes(n_experts + 1, 4) +
           piece_bytes((int64_t)(plan_blocks(max_tokens, k)) * n_experts, 4) +
           piece_bytes(plan_max_tiles(max_tokens, n_experts, k), sizeof(moe_tile)) +
           piece_bytes(MOE_CLASSES + 1, 4);
}

void prefill_moe_plan_init(moe_plan *plan, void *memory, int32_t max_tokens, int32_t n_experts,
                           int32_t k, bool has_shared)
{
    char *at = (char *)memory;
    int64_t slots = (int64_t)max_tokens * k;
    plan->max_tokens = max_tokens;
    plan->n_experts = n_experts;
    plan->k = k;
    plan->has_shared = has_shared;
    plan->max_tiles = plan_max_tiles(max_tokens, n_experts, k);
    plan->row_of_slot = (int32_t *)at;
    at += piece_bytes(slots, 4);
    plan->token_of_row = (int32_t *)at;
    at += piece_bytes(slots + max_tokens, 4);
    plan->offsets = (int32_t *)at;
    at += piece_bytes(n_experts + 1, 4);
    plan->counts = (int32_t *)at;
    at += piece_bytes((int64_t)plan_blocks(max_tokens, k) * n_experts, 4);
    plan->tiles = (moe_tile *)at;
    at += piece_bytes(plan->max_tiles, sizeof(moe_tile));
    plan->class_ends = (int32_t *)at;
}

static __global__ void plan_count_kernel(moe_plan plan, const int32_t *experts, int32_t n_slots)
{
    __shared__ int32_t counts[TOP_K_MAX_EXPERTS];
    for (int32_t e = threadIdx.x; e < plan.n_experts; e += blockDim.x) counts[e] = 0;
    __syncthreads();
    int32_t i = blockIdx.x * MOE_PLAN_SLOTS + threadIdx.x;
    if (i < n_slots) atomicAdd(&counts[experts[i]], 1);
    __syncthreads();
    for (int32_t e = threadIdx.x; e < plan.n_experts; e += blockDim.x)
        plan.counts[(int64_t)blockIdx.x * plan.n_experts + e] = counts[e];
}

/* Rows, and tiles of each class. */
typedef struct plan_counts {
    int32_t v[1 + MOE_CLASSES];
} plan_counts;

/* Sums before the thread's own values, over 1,024 threads; all of them in *total. */
static __device__ plan_counts block_scan(const plan_counts &own, plan_counts *total)
{
    __shared__ plan_counts sums[32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    plan_counts s = own, before = {};
    for (int i = 1; i < 32; i <<= 1)
        for (int32_t &v : s.v) {
            int32_t other = __shfl_up_sync(0xffffffffu, v, i);
            if (lane >= i) v += other;
        }
    if (lane == 31) sums[warp] = s;
    __syncthreads();
    *total = plan_counts{};
    for (int i = 0; i < 32; i++) {
        if (i == warp) before = *total;
        for (int j = 0; j < 1 + MOE_CLASSES; j++) total->v[j] += sums[i].v[j];
    }
    for (int j = 0; j < 1 + MOE_CLASSES; j++) before.v[j] += s.v[j] - own.v[j];
    return before;
}

static __device__ __forceinline__ int tile_class(int32_t n_rows)
{
    return n_rows > 64 ? 0 : n_rows > 32 ? 1 : 2;
}

/* Tiles of n rows of a matrix, by class. */
static __device__ plan_counts count_tiles(int32_t n)
{
    plan_counts c = {};
    c.v[0] = n;
    c.v[1] = n / MOE_TILE_ROWS;
    if (n % MOE_TILE_ROWS) c.v[1 + tile_class(n % MOE_TILE_ROWS)]++;
    return c;
}

/* The i-th of them, at.v[1 ...]: where the next of each class goes. */
static __device__ void put_tile(const moe_plan &plan, int32_t matrix, int32_t first, int32_t n,
                                int32_t i, const plan_counts &at)
{
    int32_t here = min((int32_t)MOE_TILE_ROWS, n - i * MOE_TILE_ROWS);
    int c = tile_class(here);
    plan.tiles[at.v[1 + c] + (c == 0 ? i : 0)] = moe_tile{matrix, first + i * MOE_TILE_ROWS, here};
}

/* One block, a thread an expert. */
static __global__ void __launch_bounds__(1024)
    plan_scan_kernel(moe_plan plan, int32_t n_blocks, int32_t n_tokens)
{
    int32_t e = threadIdx.x, n = 0;
    if (e < plan.n_experts) {
        int32_t *counts = plan.counts + e;
#pragma unroll 8
        for (int32_t b = 0; b < n_blocks; b++) {
            int32_t c = counts[(int64_t)b * plan.n_experts];
            counts[(int64_t)b * plan.n_experts] = n;
            n += c;
        }
    }
    int32_t n_shared = plan.has_shared ? n_tokens : 0;
    plan_counts total, at = block_scan(count_tiles(n), &total), shared = count_tiles(n_shared);
    /* The shared expert comes last in each class. */
    int32_t ends[MOE_CLASSES + 1] = {};
    for (int c = 0; c < MOE_CLASSES; c++) {
        at.v[1 + c] += ends[c];
        total.v[1 + c] += ends[c];
        ends[c + 1] = total.v[1 + c] + shared.v[1 + c];
    }
    if (e < plan.n_experts) plan.offsets[e] = at.v[0];
    for (int32_t i = 0; i * MOE_TILE_ROWS < n; i++) put_tile(plan, e, at.v[0], n, i, at);
    for (int32_t i = e; i * MOE_TILE_ROWS < n_shared; i += blockDim.x)
        put_tile(plan, plan.n_experts, total.v[0], n_shared, i, total);
    if (e == 0) plan.offsets[plan.n_experts] = total.v[0];
    if (e <= MOE_CLASSES) plan.class_ends[e] = ends[e];
}

static __global__ void plan_place_kernel(moe_plan plan, const int32_t *experts, int32_t n_slots,
                                         int32_t n_tokens)
{
    __shared__ int32_t block_experts[MOE_PLAN_SLOTS];
    int32_t i = blockIdx.x * MOE_PLAN_SLOTS + threadIdx.x;
    int32_t e = i < n_slots ? experts[i] : -1;
    block_experts[threadIdx.x] = e;
    __syncthreads();
    if (e >= 0) {
        int32_t rank = 0;
        for (int j = 0; j < (int)threadIdx.x; j++) rank += block_experts[j] == e;
        int32_t row =
            plan.offsets[e] + plan.counts[(int64_t)blockIdx.x * plan.n_experts + e] + rank;
        plan.row_of_slot[i] = row;
        plan.token_of_row[row] = i / plan.k;
    }
    if (i < n_tokens) plan.token_of_row[n_slots + i] = i;
}

cudaError_t prefill_moe_plan(const moe_plan *plan, const int32_t *experts, int32_t n_tokens,
                             cudaStream_t stream)
{
    int32_t n_slots = n_tokens * plan->k, n_blocks = plan_blocks(n_tokens, plan->k);
    plan_count_kernel<<<n_blocks, MOE_PLAN_SLOTS, 0, stream>>>(*plan, experts, n_slots);
    plan_scan_kernel<<<1, 1024, 0, stream>>>(*plan, n_blocks, n_tokens);
    plan_place_kernel<<<n_blocks, MOE_PLAN_SLOTS, 0, stream>>>(*plan, experts, n_slots, n_tokens);
    return cudaGetLastError();
}

/* ---- the sum over a token's experts, and the norms ---- */

enum { NORM_THREADS = 256, NORM_VECTORS = 8 }; /* rows of up to 256 * 8 * 4 elements */

typedef struct norm_output {
    const float *factor; /* NULL: no norm */
    float eps;
    __half *split;
    float *u32;
    int32_t *bad_layer;
    int32_t layer;
} norm_output;

/* Norms the row of a block whose vectors of four are v[i] at threadIdx.x + 256 i. */
static __device__ void norm_row(const norm_output &out, const float4 (&v)[NORM_VECTORS],
                                int32_t hidden)
{
    __shared__ float sums[NORM_THREADS / 32];
    float sum = 0;
#pragma unroll
    for (int i = 0; i < NORM_VECTORS; i++)
        sum += v[i].x * v[i].x + v[i].y * v[i].y + (v[i].z * v[i].z + v[i].w * v[i].w);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int i = 0; i < NORM_THREADS / 32; i++) sum += sums[i];
    float mean = sum / (float)hidden, r = 1.0f / sqrtf(mean + out.eps);
    int32_t t = blockIdx.x;
    if (threadIdx.x == 0 && out.bad_layer && !isfinite(mean))
        out.bad_layer[t] = min(out.bad_layer[t], out.layer);
#pragma unroll
    for (int i = 0; i < NORM_VECTORS; i++) {
        int32_t c = (threadIdx.x + i * NORM_THREADS) * 4;
        if (c >= hidden) break;
        float4 f = *(const float4 *)(out.factor + c), u;
        u.x = v[i].x * r * f.x, u.y = v[i].y * r * f.y;
        u.z = v[i].z * r * f.z, u.w = v[i].w * r * f.w;
        if (out.u32) *(float4 *)(out.u32 + (int64_t)t * hidden + c) = u;
        if (out.split) store_split4(out.split + t * split_halves(hidden), c, u);
    }
}

static __global__ void __launch_bounds__(NORM_THREADS)
    rmsnorm_kernel(const float *x, int32_t hidden, norm_output out)
{
    float4 v[NORM_VECTORS];
#pragma unroll
    for (int i = 0; i < NORM_VECTORS; i++) {
        int32_t c = (threadIdx.x + i * NORM_THREADS) * 4;
        v[i] = c < hidden ? *(const float4 *)(x + (int64_t)blockIdx.x * hidden + c) : float4{};
    }
    norm_row(out, v, hidden);
}

cudaError_t prefill_rmsnorm(const float *x, const float *factor, int32_t n_tokens, int32_t hidden,
                            float eps, __half *split, float *u32, int32_t *bad_layer, int32_t layer,
                            cudaStream_t stream)
{
    norm_output out = {factor, eps, split, u32, bad_layer, layer};
    rmsnorm_kernel<<<(unsigned)n_tokens, NORM_THREADS, 0, stream>>>(x, hidden, out);
    return cudaGetLastError();
}

static __device__ __forceinline__ void add_scaled(float4 &v, float scale, const float *y)
{
    float4 d = __ldcs((const float4 *)y);
    v.x = fmaf(scale, d.x, v.x), v.y = fmaf(scale, d.y, v.y);
    v.z = fmaf(scale, d.z, v.z), v.w = fmaf(scale, d.w, v.w);
}

static __global__ void __launch_bounds__(NORM_THREADS)
    combine_kernel(moe_plan plan, int32_t n_tokens, int32_t hidden, const float *weights,
                   const float *shared_scale, const float *y, const float *shared, float *x,
                   norm_output out)
{
    int64_t t = blockIdx.x;
    const float *shared_row =
        plan.has_shared ? y + ((int64_t)n_tokens * plan.k + t) * hidden : shared + t * hidden;
    float4 v[NORM_VECTORS];
#pragma unroll
    for (int i = 0; i < NORM_VECTORS; i++) {
        int32_t c = (threadIdx.x + i * NORM_THREADS) * 4;
        v[i] = float4{};
        if (c >= hidden) continue;
        v[i] = *(const float4 *)(x + t * hidden + c);
#pragma unroll 8
        for (int32_t s = 0; s < plan.k; s++)
            add_scaled(v[i], weights[t * plan.k + s],
                       y + (int64_t)plan.row_of_slot[t * plan.k + s] * hidden + c);
        add_scaled(v[i], shared_scale[t], shared_row + c);
        *(float4 *)(x + t * hidden + c) = v[i];
    }
    if (out.factor) norm_row(out, v, hidden);
}

cudaError_t prefill_moe_combine(const moe_plan *plan, int32_t n_tokens, int32_t hidden,
                                const float *weights, const float *shared_scale, const float *y,
                                const float *shared, float *x, const float *factor, float eps,
                                __half *split, float *u32, int32_t *bad_layer, int32_t layer,
                                cudaStream_t stream)
{
    norm_output out = {factor, eps, split, u32, bad_layer, layer};
    combine_kernel<<<(unsigned)n_tokens, NORM_THREADS, 0, stream>>>(
        *plan, n_tokens, hidden, weights, shared_scale, y, shared, x, out);
    return cudaGetLastError();
}
