/* Which tokens go to which expert, and the sum over a token's experts (MODEL.md 3.8). */
#include "cuda/prefill_device.cuh"

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

/* The number in a key's upper half; NaN again, but 0 for -0. */
static __device__ __forceinline__ float rank_value(uint32_t bits)
{
    return __uint_as_float(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits);
}

/* The largest key of a warp's. */
static __device__ __forceinline__ uint64_t warp_largest(uint64_t key)
{
    uint32_t high = __reduce_max_sync(0xffffffffu, (uint32_t)(key >> 32));
    uint32_t low = (uint32_t)(key >> 32) == high ? (uint32_t)key : 0;
    return (uint64_t)high << 32 | __reduce_max_sync(0xffffffffu, low);
}

/* A warp a token, which has 32 * PER_LANE experts or less. */
template <int PER_LANE>
static __global__ void top_k_kernel(const float *logits, int64_t stride, int32_t n_tokens,
                                    int32_t n_experts, int32_t k, int32_t *experts, float *weights,
                                    float *shared_scale)
{
    wait_for_stream();
    int32_t t = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (t >= n_tokens) return;
    const float *row = logits + t * stride;
    uint64_t keys[PER_LANE];
    float shared = row[n_experts], largest = 0, sum = 0, mine[TOP_K_MAX / 32] = {};
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        int32_t e = i * 32 + lane;
        float v = e < n_experts ? row[e] : 0;
        keys[i] = e < n_experts ? rank_key(v, e) : 0;
        sum += v - v; /* 0, or NaN: a router that has overflowed must not look like a choice */
    }
    sum = warp_sum(sum);
    uint64_t limit = ~(uint64_t)0;
    for (int32_t s = 0; s < k; s++) {
        uint64_t best = 0;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++)
            if (keys[i] < limit && keys[i] > best) best = keys[i];
        limit = best = warp_largest(best);
        float v = rank_value((uint32_t)(best >> 32));
        if (s == 0) largest = v;
        float p = expf(v - largest);
        sum += p;
        if (lane == s % 32) mine[s / 32] = p;
        if (lane == 0) experts[(int64_t)t * k + s] = (int32_t) ~(uint32_t)best;
    }
    for (int i = 0; i < TOP_K_MAX / 32; i++)
        if (i * 32 + lane < k) weights[(int64_t)t * k + i * 32 + lane] = mine[i] / sum;
    if (lane == 0) shared_scale[t] = sigmoid(shared);
}

cudaError_t prefill_router_top_k(const float *logits, int64_t logits_stride, int32_t n_tokens,
                                 int32_t n_experts, int32_t k, int32_t *experts, float *weights,
                                 float *shared_scale, cudaStream_t stream)
{
    return launch(n_experts <= 256 ? top_k_kernel<8> : top_k_kernel<TOP_K_MAX_EXPERTS / 32>,
                  (unsigned)ceil_div(n_tokens, 4), 128, 0, stream, logits, logits_stride, n_tokens,
                  n_experts, k, experts, weights, shared_scale);
}

/* ---- the plan: a counting sort in two launches ---- */

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
           piece_bytes(MOE_CLASSES + 1, 4) + piece_bytes(MOE_CLASSES, 4);
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
    at += piece_bytes(MOE_CLASSES + 1, 4);
    plan->taken = (int32_t *)at;
}

static __global__ void plan_count_kernel(moe_plan plan, const int32_t *experts, int32_t n_slots)
{
    wait_for_stream();
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
    return n_rows > 96   ? 0
           : n_rows > 72 ? 1
           : n_rows > 64 ? 2
           : n_rows > 40 ? 3
           : n_rows > 24 ? 4
                         : 5;
}

/* Whether the last two tiles of n rows are about as large: a tile of few rows takes as long as one
 * of 64. */
static __device__ __forceinline__ bool ends_even(int32_t n)
{
    return n > MOE_TILE_ROWS && n % MOE_TILE_ROWS > 0 &&
           n % MOE_TILE_ROWS <= 2 * MOE_EVEN_ROWS - MOE_TILE_ROWS;
}

/* Tiles of n rows of a matrix, by class. */
static __device__ plan_counts count_tiles(int32_t n)
{
    plan_counts c = {};
    int32_t rest = n % MOE_TILE_ROWS;
    c.v[0] = n;
    c.v[1] = n / MOE_TILE_ROWS;
    if (ends_even(n)) {
        c.v[1]--;
        c.v[1 + tile_class(MOE_EVEN_ROWS)]++;
        rest += MOE_TILE_ROWS - MOE_EVEN_ROWS;
    }
    if (rest) c.v[1 + tile_class(rest)]++;
    return c;
}

/* The i-th of them, at.v[1 ...]: where the next of each class goes. */
static __device__ void put_tile(const moe_plan &plan, int32_t matrix, int32_t first, int32_t n,
                                int32_t i, const plan_counts &at)
{
    int32_t begin = i * MOE_TILE_ROWS, end = min(begin + (int32_t)MOE_TILE_ROWS, n);
    bool last = end == n, even = ends_even(n);
    if (even && last) begin -= MOE_TILE_ROWS - MOE_EVEN_ROWS;
    if (even && !last && end + MOE_TILE_ROWS > n) end = begin + MOE_EVEN_ROWS;
    int c = tile_class(end - begin);
    int32_t before = c == 0 ? i : even && last && c == tile_class(MOE_EVEN_ROWS);
    plan.tiles[at.v[1 + c] + before] = moe_tile{matrix, first + begin, end - begin};
}

/* The tiles of all matrices, by one block; at: where those of expert threadIdx.x go, which has n
 * rows. */
static __device__ void put_tiles(const moe_plan &plan, int32_t n_tokens, int32_t n, plan_counts at,
                                 plan_counts total)
{
    int32_t e = threadIdx.x, n_shared = plan.has_shared ? n_tokens : 0;
    plan_counts shared = count_tiles(n_shared);
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
    if (e < MOE_CLASSES) plan.taken[e] = 0;
}

/* before, all [n_experts], shared memory: the slots of each expert in the blocks before `block`,
 * and in all. */
static __device__ void sum_counts(const moe_plan &plan, int32_t block, int32_t n_blocks,
                                  int32_t *before, int32_t *all)
{
    int32_t width = ceil_div(plan.n_experts, 32) * 32, parts = MOE_PLAN_SLOTS / width;
    int32_t part = threadIdx.x / width, e = threadIdx.x % width;
    if ((int32_t)threadIdx.x < plan.n_experts) before[threadIdx.x] = all[threadIdx.x] = 0;
    __syncthreads();
    if (part < parts && e < plan.n_experts) {
        int32_t n_before = 0, n = 0;
#pragma unroll 8
        for (int32_t b = part; b < n_blocks; b += parts) {
            int32_t here = plan.counts[(int64_t)b * plan.n_experts + e];
            n += here;
            if (b < block) n_before += here;
        }
        atomicAdd(&before[e], n_before);
        atomicAdd(&all[e], n);
    }
    __syncthreads();
}

/* Of this thread's slot, which is expert e's or none (-1): how many of the block's slots before it
 * are, too. */
static __device__ int32_t rank_in_block(int32_t e, int32_t n_experts)
{
    __shared__ uint8_t warps[MOE_PLAN_SLOTS / 32][TOP_K_MAX_EXPERTS]; /* slots of each warp */
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int32_t i = lane; i < n_experts; i += 32) warps[warp][i] = 0;
    uint32_t same = __match_any_sync(0xffffffffu, e);
    int32_t rank = __popc(same & ((1u << lane) - 1));
    __syncwarp();
    if (e >= 0 && rank == 0) warps[warp][e] = (uint8_t)__popc(same);
    __syncthreads();
    if (e < 0) return 0;
#pragma unroll 8
    for (int w = 0; w < warp; w++) rank += warps[w][e];
    return rank;
}

/* The first block puts the tiles; each other one places as many slots as it has threads. */
static __global__ void __launch_bounds__(MOE_PLAN_SLOTS)
    plan_place_kernel(moe_plan plan, const int32_t *experts, int32_t n_blocks, int32_t n_slots,
                      int32_t n_tokens)
{
    wait_for_stream();
    __shared__ int32_t before[TOP_K_MAX_EXPERTS], all[TOP_K_MAX_EXPERTS];
    int32_t block = (int32_t)blockIdx.x - 1;
    sum_counts(plan, block, n_blocks, before, all);
    int32_t n = (int32_t)threadIdx.x < plan.n_experts ? all[threadIdx.x] : 0;
    plan_counts total, at = block_scan(count_tiles(n), &total);
    if (block < 0) {
        put_tiles(plan, n_tokens, n, at, total);
        return;
    }
    if ((int32_t)threadIdx.x < plan.n_experts) before[threadIdx.x] += at.v[0];
    int32_t i = block * MOE_PLAN_SLOTS + threadIdx.x, e = i < n_slots ? experts[i] : -1;
    int32_t rank = rank_in_block(e, plan.n_experts); /* after which `before` is complete */
    if (e >= 0) {
        plan.row_of_slot[i] = before[e] + rank;
        plan.token_of_row[before[e] + rank] = i / plan.k;
    }
    if (i < n_tokens) plan.token_of_row[n_slots + i] = i;
}

cudaError_t prefill_moe_plan(const moe_plan *plan, const int32_t *experts, int32_t n_tokens,
                             cudaStream_t stream)
{
    int32_t n_slots = n_tokens * plan->k, n_blocks = plan_blocks(n_tokens, plan->k);
    cudaError_t e = launch(plan_count_kernel, (unsigned)n_blocks, MOE_PLAN_SLOTS, 0, stream, *plan,
                           experts, n_slots);
    if (!e)
        e = launch(plan_place_kernel, (unsigned)n_blocks + 1, MOE_PLAN_SLOTS, 0, stream, *plan,
                   experts, n_blocks, n_slots, n_tokens);
    return e;
}

/* ---- the sum over a token's experts, and the norms ---- */

enum { NORM_THREADS = 256, NORM_VECTORS = 8 }; /* rows of up to 256 * 8 * 4 elements */

typedef struct norm_output {
    const float *factor; /* NULL: no norm */
    float eps;
    __half *split;
    float *u32, *group_sums;
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
    int32_t groups = hidden / SPLIT_GROUP, pitch = (int32_t)group_sums_pitch(hidden);
    if (out.group_sums && (int32_t)threadIdx.x < pitch - groups) /* read, and not used */
        out.group_sums[(int64_t)t * pitch + groups + threadIdx.x] = 0;
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
        if (!out.group_sums) continue;
        /* 16 lanes have a group, and those of the other half may be done. */
        float group = (u.x + u.y) + (u.z + u.w);
        for (int j = 8; j > 0; j >>= 1)
            group += __shfl_xor_sync(0xffffu << (threadIdx.x & 16), group, j);
        if (threadIdx.x % 16 == 0) out.group_sums[(int64_t)t * pitch + c / SPLIT_GROUP] = group;
    }
}

static __global__ void __launch_bounds__(NORM_THREADS)
    rmsnorm_kernel(const float *x, int32_t hidden, norm_output out)
{
    wait_for_stream();
    float4 v[NORM_VECTORS];
#pragma unroll
    for (int i = 0; i < NORM_VECTORS; i++) {
        int32_t c = (threadIdx.x + i * NORM_THREADS) * 4;
        v[i] = c < hidden ? *(const float4 *)(x + (int64_t)blockIdx.x * hidden + c) : float4{};
    }
    norm_row(out, v, hidden);
}

cudaError_t prefill_rmsnorm(const float *x, const float *factor, int32_t n_tokens, int32_t hidden,
                            float eps, __half *split, float *group_sums, int32_t *bad_layer,
                            int32_t layer, cudaStream_t stream)
{
    norm_output out = {factor, eps, split, NULL, group_sums, bad_layer, layer};
    return launch(rmsnorm_kernel, (unsigned)n_tokens, NORM_THREADS, 0, stream, x, hidden, out);
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
    wait_for_stream();
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
    norm_output out = {factor, eps, split, u32, NULL, bad_layer, layer};
    return launch(combine_kernel, (unsigned)n_tokens, NORM_THREADS, 0, stream, *plan, n_tokens,
                  hidden, weights, shared_scale, y, shared, x, out);
}
