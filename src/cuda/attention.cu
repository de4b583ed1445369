/* Decode: softmax attention with head size 256 (MODEL.md 3.3). The query heads of a KV head go
 * together, eight at most, so that K and V are read once for them. */
#include "cuda/common.cuh"

enum { DIM = ATTENTION_HEAD_DIM, HEADS = 8, LANE_DIMS = DIM / WARP, TOKENS = 4, WARPS = 8 };

/* Query heads of one KV head as one warp sees them: lane l has dims 8l ... 8l + 7. */
struct query_group {
    int kv_head, first_head, n_heads;
};

__device__ __host__ static inline int groups_per_kv(int query_heads, int kv_heads)
{
    return (query_heads / kv_heads + HEADS - 1) / HEADS;
}
__device__ static inline query_group group_of(int index, int query_heads, int kv_heads)
{
    const int heads = query_heads / kv_heads, per = groups_per_kv(query_heads, kv_heads);
    query_group g;
    g.kv_head = index / per;
    g.first_head = g.kv_head * heads + index % per * HEADS;
    g.n_heads = min(HEADS, heads - index % per * HEADS);
    return g;
}

/* ---- before attention ---- */

/* One warp: x[8] of a lane becomes norm(x) rotated, times scale; factor[8] is the lane's. */
__device__ static inline void norm_and_rotate(float x[LANE_DIMS], const float factor[LANE_DIMS],
                                              float eps, const float *cosines, const float *sines,
                                              float scale)
{
    const int lane = threadIdx.x % WARP;
    float square = 0;
    for (int i = 0; i < LANE_DIMS; i++) square += x[i] * x[i];
    const float r = inverse_root_finite(warp_sum(square) / DIM + eps);
    for (int i = 0; i < LANE_DIMS; i++) {
        x[i] = x[i] * r * factor[i];
        /* Dims 0 ... 31 are in lanes 0 ... 3, their partners 32 ... 63 in lanes 4 ... 7. */
        float other = __shfl_xor_sync(0xffffffffu, x[i], 4);
        if (lane < ROTARY_DIMS / LANE_DIMS) {
            const int j = lane % 4 * LANE_DIMS + i;
            x[i] = lane < 4 ? x[i] * cosines[j] - other * sines[j]
                            : x[i] * cosines[j] + other * sines[j];
        }
        x[i] *= scale;
    }
}

/* A lane's dims of a row in shared memory, or constant. */
__device__ static inline void load_dims(float x[LANE_DIMS], const float *row)
{
    const float4 *p = (const float4 *)row + threadIdx.x % WARP * 2;
    const float4 a = p[0], b = p[1];
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
    x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}
/* Of a row that other multiprocessors wrote. */
__device__ static inline void fetch_dims(float x[LANE_DIMS], const float *row)
{
    const float4 *p = (const float4 *)row + threadIdx.x % WARP * 2;
    const float4 a = __ldcg(p), b = __ldcg(p + 1);
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
    x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}
__device__ static inline void store_dims(float *row, const float x[LANE_DIMS])
{
    float4 *p = (float4 *)row + threadIdx.x % WARP * 2;
    p[0] = make_float4(x[0], x[1], x[2], x[3]);
    p[1] = make_float4(x[4], x[5], x[6], x[7]);
}
__device__ static inline void store_halves(__half *row, const float x[LANE_DIMS])
{
    union {
        __half h[LANE_DIMS];
        uint4 v;
    } u;
    for (int i = 0; i < LANE_DIMS; i++) u.h[i] = to_half(x[i]);
    ((uint4 *)row)[threadIdx.x % WARP] = u.v;
}

/* K (or V) of a token. */
__device__ static inline __half *kv_row(const store_view &s, const int32_t *table, int layer,
                                        int kv_heads, int which, int head, int64_t token)
{
    unsigned char *p =
        s.kv + (size_t)table[token / KV_TOKENS] * s.block_bytes + (size_t)layer * s.layer_bytes;
    return (__half *)p + (((size_t)which * kv_heads + head) * KV_TOKENS + token % KV_TOKENS) * DIM;
}

/* ---- one warp over some tokens ---- */

struct attending {
    float q[HEADS][LANE_DIMS], out[HEADS][LANE_DIMS];
    /* Of head lane / 4: running maximum and sum. */
    float max, sum;
};

__device__ static inline void start_attending(attending &a)
{
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < LANE_DIMS; i++) a.out[h][i] = 0;
    a.max = -INFINITY, a.sum = 0;
}

/* Lane l gets the sum over the warp of value l of 32: 31 exchanges. */
__device__ static inline float transpose_sum(float v[WARP])
{
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int m = WARP / 2; m > 0; m /= 2) {
        const bool upper = lane & m;
#pragma unroll
        for (int i = 0; i < m; i++) {
            float keep = upper ? v[i + m] : v[i], give = upper ? v[i] : v[i + m];
            v[i] = keep + __shfl_xor_sync(0xffffffffu, give, m);
        }
    }
    return v[0];
}

__device__ static inline void widen(float x[LANE_DIMS], uint4 v)
{
    const __half2 *h = (const __half2 *)&v;
    for (int i = 0; i < 4; i++) {
        float2 f = __half22float2(h[i]);
        x[2 * i] = f.x, x[2 * i + 1] = f.y;
    }
}

/* Tokens begin, begin + step, ... below end, four at a time, with one running softmax. */
__device__ static inline void attend(attending &a, const store_view &s, const int32_t *table,
                                     int layer, int kv_heads, int head, int begin, int end,
                                     int step)
{
    const int lane = threadIdx.x % WARP;
    for (int t = begin; t < end; t += TOKENS * step) {
        uint4 k[TOKENS], v[TOKENS];
#pragma unroll
        for (int i = 0; i < TOKENS; i++) {
            k[i] = v[i] = make_uint4(0, 0, 0, 0);
            if (t + i * step >= end) continue;
            const __half *row = kv_row(s, table, layer, kv_heads, 0, head, t + i * step);
            k[i] = ((const uint4 *)row)[lane];
            v[i] = ((const uint4 *)(row + (size_t)kv_heads * KV_TOKENS * DIM))[lane];
        }
        float scores[WARP]; /* head * 4 + token */
#pragma unroll
        for (int i = 0; i < TOKENS; i++) {
            float x[LANE_DIMS];
            widen(x, k[i]);
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                float sum = 0;
#pragma unroll
                for (int d = 0; d < LANE_DIMS; d++) sum += a.q[h][d] * x[d];
                scores[h * TOKENS + i] = sum;
            }
        }
        float score = transpose_sum(scores);
        if (t + lane % TOKENS * step >= end) score = -INFINITY;
        float largest = fmaxf(score, __shfl_xor_sync(0xffffffffu, score, 1));
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
        largest = fmaxf(largest, a.max); /* finite: token t is there. NaN scores stay NaN below */
        const float p = expf(score - largest), old = expf(a.max - largest);
        float sum = p + __shfl_xor_sync(0xffffffffu, p, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        a.sum = a.sum * old + sum;
        a.max = largest;
        if (__any_sync(0xffffffffu, old != 1.0f)) {
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                const float c = __shfl_sync(0xffffffffu, old, h * TOKENS);
#pragma unroll
                for (int d = 0; d < LANE_DIMS; d++) a.out[h][d] *= c;
            }
        }
#pragma unroll
        for (int i = 0; i < TOKENS; i++) {
            float x[LANE_DIMS];
            widen(x, v[i]);
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                const float c = __shfl_sync(0xffffffffu, p, h * TOKENS + i);
#pragma unroll
                for (int d = 0; d < LANE_DIMS; d++) a.out[h][d] += c * x[d];
            }
        }
    }
}

/* ---- the step ---- */

/* Tokens per part of a context of `length`: the parts' borders depend on the length alone. */
__device__ static inline int part_tokens(int length)
{
    const int least = WARPS * TOKENS;
    return ((length + ATTENTION_PARTS - 1) / ATTENTION_PARTS + least - 1) / least * least;
}

struct step_shared {
    float q[HEADS][DIM];
    float max[WARPS][HEADS], sum[WARPS][HEADS];
    float out[WARPS][HEADS][DIM];
    int last;
};

/* The parts of one head in their order; a warp has a head. Gates and writes it. */
__device__ static void combine_parts(const attention_step_args &a, int row, int head, int n_parts)
{
    const int lane = threadIdx.x % WARP;
    const size_t base = ((size_t)row * a.query_heads + head) * ATTENTION_PARTS;
    static_assert(ATTENTION_PARTS == 2 * WARP, "two parts a lane");
    float largest = -INFINITY, part_sum = 0, of_part[2], out[LANE_DIMS] = {0};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int p = lane + i * WARP;
        of_part[i] = p < n_parts ? __ldcg(a.part_max + base + p) : -INFINITY;
        largest = fmaxf(largest, of_part[i]);
    }
    largest = warp_max(largest);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int p = lane + i * WARP;
        of_part[i] = p < n_parts ? expf(of_part[i] - largest) : 0;
        if (p < n_parts) part_sum += of_part[i] * __ldcg(a.part_sum + base + p);
    }
    const float sum = warp_sum(part_sum);
#pragma unroll 8
    for (int p = 0; p < n_parts; p++) {
        const float c = __shfl_sync(0xffffffffu, p < WARP ? of_part[0] : of_part[1], p % WARP);
        float x[LANE_DIMS];
        fetch_dims(x, a.part_out + (base + p) * DIM);
        for (int d = 0; d < LANE_DIMS; d++) out[d] += c * x[d];
    }
    float gate[LANE_DIMS];
    fetch_dims(gate, a.projected + row * a.stride + (2 * head + 1) * DIM);
    for (int d = 0; d < LANE_DIMS; d++) out[d] = out[d] / sum * sigmoid_finite(gate[d]);
    store_dims(a.out + ((size_t)row * a.query_heads + head) * DIM, out);
}

/* Grid (part, group of query heads, row). Moves K and V of the context once; 4 * 256 operations per
 * query head and token. The last block of a group to arrive combines its parts. */
__global__ void __launch_bounds__(WARPS *WARP) attention_step_kernel(attention_step_args a)
{
    extern __shared__ __align__(16) unsigned char shared[];
    step_shared &s = *(step_shared *)shared;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int part = blockIdx.x, row = blockIdx.z;
    const query_group g = group_of(blockIdx.y, a.query_heads, a.kv_heads);
    const step_row *in = &a.input->rows[row];
    const int length = in->position + 1, per = part_tokens(length);
    const int n_parts = (length + per - 1) / per, begin = part * per,
              end = min(begin + per, length);
    if (part >= n_parts) return;
    const int32_t *table = a.store.tables + (size_t)in->slot * a.store.max_blocks;
    float q_factor[LANE_DIMS], k_factor[LANE_DIMS];
    load_dims(q_factor, a.q_norm);
    load_dims(k_factor, a.k_norm);
    wait_for_previous_kernel();
    release_next_kernel();
    const float *projected = a.projected + row * a.stride;
    const float *k_input = projected + (size_t)2 * a.query_heads * DIM;
    float x[LANE_DIMS];
    if (warp < g.n_heads) {
        fetch_dims(x, projected + (size_t)2 * (g.first_head + warp) * DIM);
        norm_and_rotate(x, q_factor, a.eps, in->cosines, in->sines, 0.0625f); /* 1/sqrt(256) */
    } else {
        for (int i = 0; i < LANE_DIMS; i++) x[i] = 0;
    }
    store_dims(s.q[warp], x);
    if (part == n_parts - 1 && warp == 0) {
        fetch_dims(x, k_input + g.kv_head * DIM);
        norm_and_rotate(x, k_factor, a.eps, in->cosines, in->sines, 1);
        store_halves(
            kv_row(a.store, table, a.attention_index, a.kv_heads, 0, g.kv_head, length - 1), x);
    }
    if (part == n_parts - 1 && warp == 1) {
        fetch_dims(x, k_input + (a.kv_heads + g.kv_head) * DIM);
        store_halves(
            kv_row(a.store, table, a.attention_index, a.kv_heads, 1, g.kv_head, length - 1), x);
    }
    __syncthreads();
    attending w;
    start_attending(w);
    for (int h = 0; h < HEADS; h++) load_dims(w.q[h], s.q[h]);
    attend(w, a.store, table, a.attention_index, a.kv_heads, g.kv_head, begin + warp, end, WARPS);
    if (lane % TOKENS == 0) {
        s.max[warp][lane / TOKENS] = w.max;
        s.sum[warp][lane / TOKENS] = w.sum;
    }
    for (int h = 0; h < HEADS; h++) store_dims(s.out[warp][h], w.out[h]);
    __syncthreads();
    if (warp < g.n_heads) { /* a head of the group */
        float largest = -INFINITY, sum = 0, out[LANE_DIMS] = {0};
        for (int i = 0; i < WARPS; i++) largest = fmaxf(largest, s.max[i][warp]);
        for (int i = 0; i < WARPS; i++) {
            /* A warp without tokens has maximum -inf and adds nothing. */
            const float c = expf(s.max[i][warp] - largest);
            sum += c * s.sum[i][warp];
            load_dims(x, s.out[i][warp]);
            for (int d = 0; d < LANE_DIMS; d++) out[d] += c * x[d];
        }
        const size_t to =
            ((size_t)row * a.query_heads + g.first_head + warp) * ATTENTION_PARTS + part;
        store_dims(a.part_out + to * DIM, out);
        if (lane == 0) a.part_max[to] = largest, a.part_sum[to] = sum;
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned *arrived = a.arrived + row * gridDim.y + blockIdx.y;
        s.last = atomicAdd(arrived, 1u) == (unsigned)n_parts - 1;
        if (s.last) *arrived = 0;
        __threadfence();
    }
    __syncthreads();
    if (s.last && warp < g.n_heads) combine_parts(a, row, g.first_head + warp, n_parts);
}

extern "C" cudaError_t launch_attention_step(const attention_step_args *a, cudaStream_t stream)
{
    unsigned groups = (unsigned)(a->kv_heads * groups_per_kv(a->query_heads, a->kv_heads));
    RETURN_IF_FAILED(allow_shared(attention_step_kernel, sizeof(step_shared)));
    return launch(attention_step_kernel, dim3(ATTENTION_PARTS, groups, (unsigned)a->n),
                  WARPS * WARP, sizeof(step_shared), stream, true, *a);
}
