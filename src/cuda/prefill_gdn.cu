/* Gated DeltaNet of a chunk (MODEL.md 3.4 to 3.7): convolution, gates, recurrence, gated norm. */
#include "cuda/prefill_gdn.cuh"

/* ---- convolution ---- */

enum { CONV_TOKENS = 8 };

/* A warp: 128 channels, which are one head of q, k or v, of eight tokens, of the units from
 * first_unit on; the window of all. Moves 4 (11 / 8 + 1) bytes a channel and token. */
static __global__ void __launch_bounds__(128)
    convolve_kernel(prefill_gdn_args a, int32_t first_unit, int32_t units)
{
    wait_for_stream();
    int32_t unit = first_unit + blockIdx.y * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    int32_t t0 = blockIdx.x * CONV_TOKENS;
    int64_t channels = (int64_t)units * HEAD;
    if (unit < units) {
        int32_t channel = unit * HEAD + lane * 4;
        gdn_taps taps = gdn_load_taps(a, channels, channel);
        float4 rows[TAPS - 1 + CONV_TOKENS];
#pragma unroll
        for (int i = 0; i < TAPS - 1 + CONV_TOKENS; i++)
            rows[i] = gdn_channel_row(a, channels, min(t0 + i - 3, a.n_tokens - 1), channel);
#pragma unroll
        for (int i = 0; i < CONV_TOKENS; i++) {
            int32_t t = t0 + i;
            if (t >= a.n_tokens) break;
            float4 f = gdn_convolve(taps, &rows[i]);
            f = float4{silu(f.x), silu(f.y), silu(f.z), silu(f.w)};
            if (unit < 2 * a.n_key_heads) f = gdn_normed(f, unit < a.n_key_heads);
            *(float4 *)(a.f + t * channels + channel) = f;
        }
    }
    if (blockIdx.x < gridDim.x - 1) return;
    for (int32_t u = unit - first_unit; u < units; u += gridDim.y * 4)
        for (int i = 0; i < TAPS - 1; i++) {
            int32_t channel = u * HEAD + lane * 4;
            *(float4 *)(a.window_out + (a.first + a.n_tokens - 3 + i + TAPS) % TAPS * channels +
                        channel) = gdn_channel_row(a, channels, a.n_tokens - 3 + i, channel);
        }
}

static __global__ void gates_kernel(prefill_gdn_args a, int64_t first_column)
{
    wait_for_stream();
    int32_t i = blockIdx.x * blockDim.x + threadIdx.x, heads = a.n_value_heads;
    if (i >= a.n_tokens * heads) return;
    const float *row = a.projected + i / heads * a.projected_stride + first_column;
    int32_t h = i % heads;
    float x = row[h] + a.dt_bias[h];
    float softplus = x > 20.0f ? x : log1pf(expf(x));
    a.decay[i] = a.neg_exp_a[h] * softplus + (x - x);
    a.beta[i] = sigmoid(row[heads + h]);
}

cudaError_t prefill_gdn_convolve(const prefill_device *device, const prefill_gdn_args *args,
                                 cudaStream_t stream)
{
    int32_t units = 2 * args->n_key_heads + args->n_value_heads;
    int32_t first = prefill_gdn_grid(device) > 1 ? 2 * args->n_key_heads : 0;
    dim3 grid((unsigned)ceil_div(args->n_tokens, CONV_TOKENS),
              (unsigned)ceil_div(units - first, 4));
    cudaError_t e = launch(convolve_kernel, grid, 128, 0, stream, *args, first, units);
    if (e) return e;
    int64_t gates = (int64_t)args->n_tokens * args->n_value_heads;
    return launch(gates_kernel, (unsigned)ceil_div(gates, 256), 256, 0, stream, *args,
                  (int64_t)(units + args->n_value_heads) * HEAD);
}

/* ---- recurrence ---- */

enum {
    SCAN_COLUMNS = 32, /* of a block; 8 of a warp, 2 of a lane, which has 16 of their 128 rows */
    SCAN_TOKENS = 16,  /* of a stage */
};

typedef struct scan_stage {
    float k[SCAN_TOKENS][HEAD], q[SCAN_TOKENS][HEAD], v[SCAN_TOKENS][SCAN_COLUMNS];
    float decay[SCAN_TOKENS], beta[SCAN_TOKENS];
} scan_stage;

static __device__ void scan_load(const prefill_gdn_args &a, scan_stage *s, int32_t t0, int32_t head,
                                 int32_t column)
{
    int tid = threadIdx.x;
    int64_t channels = (int64_t)(2 * a.n_key_heads + a.n_value_heads) * HEAD;
    int64_t key = (int64_t)(head / (a.n_value_heads / a.n_key_heads)) * HEAD;
#pragma unroll
    for (int i = 0; i < SCAN_TOKENS / 4; i++) {
        int32_t j = tid / 32 + 4 * i, t = min(t0 + j, a.n_tokens - 1), c = tid % 32 * 4;
        const float *f = a.f + t * channels;
        copy16_async(shared_address(&s->q[j][c]), f + key + c);
        copy16_async(shared_address(&s->k[j][c]), f + a.n_key_heads * HEAD + key + c);
    }
    int32_t j = tid / 8, t = min(t0 + j, a.n_tokens - 1), c = tid % 8 * 4;
    copy16_async(shared_address(&s->v[j][c]),
                 a.f + t * channels + 2 * a.n_key_heads * HEAD + head * HEAD + column + c);
    if (tid < SCAN_TOKENS) {
        int64_t gate = (int64_t)min(t0 + tid, a.n_tokens - 1) * a.n_value_heads + head;
        s->decay[tid] = expf(a.decay[gate]);
        s->beta[tid] = a.beta[gate];
    }
}

/* Sum over the eight lanes that share a column. */
static __device__ __forceinline__ float column_sum(float v)
{
    for (int i = 1; i < 8; i <<= 1) v += __shfl_xor_sync(0xffffffffu, v, i);
    return v;
}

/* 32 value columns of one head over all tokens; the state stays in registers. 8 * 128 * 32
 * operations a token, in dependence on the token before: a token takes at least the latency of a
 * dot product and its sum over lanes. */
static __global__ void __launch_bounds__(128, 2) scan_kernel(prefill_gdn_args a)
{
    __shared__ __align__(16) scan_stage stages[2];
    int32_t head = blockIdx.x / (HEAD / SCAN_COLUMNS);
    int32_t column = blockIdx.x % (HEAD / SCAN_COLUMNS) * SCAN_COLUMNS;
    int lane = threadIdx.x % 32, part = lane % 8, mine = threadIdx.x / 32 * 8 + lane / 8 * 2;
    float s[16][2];
    int64_t at = (int64_t)blockIdx.x * HEAD * SCAN_COLUMNS + mine; /* a slice a block */
    /* Rows 32 i + 4 part + j: neighbouring lanes read neighbouring pieces of q and k. */
#pragma unroll
    for (int i = 0; i < 16; i++) {
        int row = i / 4 * 32 + part * 4 + i % 4;
        float2 v = a.first ? *(const float2 *)(a.state_in + at + row * SCAN_COLUMNS) : float2{0, 0};
        s[i][0] = v.x, s[i][1] = v.y;
    }
    scan_load(a, &stages[0], 0, head, column);
    copy_commit();
    for (int32_t t0 = 0; t0 < a.n_tokens; t0 += SCAN_TOKENS) {
        const scan_stage *stage = &stages[t0 / SCAN_TOKENS % 2];
        copy_wait<0>();
        __syncthreads();
        if (t0 + SCAN_TOKENS < a.n_tokens)
            scan_load(a, &stages[(t0 / SCAN_TOKENS + 1) % 2], t0 + SCAN_TOKENS, head, column);
        copy_commit();
        int32_t n = min((int)SCAN_TOKENS, a.n_tokens - t0);
#pragma unroll 2
        for (int32_t j = 0; j < n; j++) {
            float k[16], q[16], p[2][2] = {}, o[2][2] = {};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                *(float4 *)&k[4 * i] = *(const float4 *)&stage->k[j][i * 32 + part * 4];
                *(float4 *)&q[4 * i] = *(const float4 *)&stage->q[j][i * 32 + part * 4];
            }
            float decay = stage->decay[j], beta = stage->beta[j];
            float2 v = *(const float2 *)&stage->v[j][mine];
#pragma unroll
            for (int i = 0; i < 16; i++) {
                p[0][i % 2] = fmaf(k[i], s[i][0], p[0][i % 2]);
                p[1][i % 2] = fmaf(k[i], s[i][1], p[1][i % 2]);
            }
            float d0 = beta * (v.x - decay * column_sum(p[0][0] + p[0][1]));
            float d1 = beta * (v.y - decay * column_sum(p[1][0] + p[1][1]));
#pragma unroll
            for (int i = 0; i < 16; i++) {
                s[i][0] = fmaf(k[i], d0, decay * s[i][0]);
                s[i][1] = fmaf(k[i], d1, decay * s[i][1]);
                o[0][i % 2] = fmaf(q[i], s[i][0], o[0][i % 2]);
                o[1][i % 2] = fmaf(q[i], s[i][1], o[1][i % 2]);
            }
            float2 out = make_float2(column_sum(o[0][0] + o[0][1]), column_sum(o[1][0] + o[1][1]));
            if (part == 0)
                *(float2 *)(a.o + ((int64_t)(t0 + j) * a.n_value_heads + head) * HEAD + column +
                            mine) = out;
        }
    }
#pragma unroll
    for (int i = 0; i < 16; i++) {
        int row = i / 4 * 32 + part * 4 + i % 4;
        *(float2 *)(a.state_out + at + row * SCAN_COLUMNS) = make_float2(s[i][0], s[i][1]);
    }
}

cudaError_t prefill_gdn_scan(const prefill_device *device, const prefill_gdn_args *args,
                             cudaStream_t stream)
{
    if (prefill_gdn_grid(device) > 1) return prefill_gdn_chunks(device, args, stream);
    scan_kernel<<<(unsigned)args->n_value_heads *(HEAD / SCAN_COLUMNS), 128, 0, stream>>>(*args);
    return cudaGetLastError();
}

/* ---- gated norm ---- */

/* A warp a head. */
static __global__ void gated_norm_kernel(prefill_gdn_args a, int64_t z_column)
{
    wait_for_stream();
    int64_t i = (int64_t)blockIdx.x * 8 + threadIdx.x / 32;
    if (i >= (int64_t)a.n_tokens * a.n_value_heads) return;
    int32_t c = threadIdx.x % 32 * 4;
    int64_t t = i / a.n_value_heads, h = i % a.n_value_heads;
    float4 o = *(const float4 *)(a.o + i * HEAD + c);
    float4 z = *(const float4 *)(a.projected + t * a.projected_stride + z_column + h * HEAD + c);
    float4 f = *(const float4 *)(a.norm_factor + c);
    float mean = warp_sum(o.x * o.x + o.y * o.y + (o.z * o.z + o.w * o.w)) / HEAD;
    float r = 1.0f / sqrtf(mean + a.eps) + (mean - mean);
    float4 mixed = {f.x * (o.x * r) * silu(z.x), f.y * (o.y * r) * silu(z.y),
                    f.z * (o.z * r) * silu(z.z), f.w * (o.w * r) * silu(z.w)};
    store_split4(a.mixed + i * split_halves(HEAD), c, mixed);
}

cudaError_t prefill_gdn_gated_norm(const prefill_gdn_args *args, cudaStream_t stream)
{
    int64_t heads = (int64_t)args->n_tokens * args->n_value_heads;
    return launch(gated_norm_kernel, (unsigned)ceil_div(heads, 8), 256, 0, stream, *args,
                  (int64_t)(2 * args->n_key_heads + args->n_value_heads) * HEAD);
}
