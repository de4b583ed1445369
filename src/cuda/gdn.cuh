/* Decode: the Gated DeltaNet mixer (MODEL.md 3.4 to 3.6), without its projections and norm. */
#ifndef CALLA_CUDA_GDN_CUH
#define CALLA_CUDA_GDN_CUH

#include "cuda/order.cuh"

enum { GDN_THREADS = 256, GDN_WARPS = 8, SLICES = GDN_HEAD_DIM / GDN_COLUMNS };

/* A block has 32 value columns of one head of one row: reads and writes their 16 KB of state once,
 * 7 operations an element. Thread (row group, four columns) holds four rows of them:
 * p = S^T k and S^T q come from one pass, and the output as decay (S^T q) + (q.k) d, so that one
 * reduction over the block is enough. */
template <typename ORDER>
__device__ static __forceinline__ void gdn_block(const gdn_step_args &a, int block, int row,
                                                 const ORDER &order)
{
    __shared__ float q[GDN_HEAD_DIM], k[GDN_HEAD_DIM], v[GDN_COLUMNS], small[3][8];
    __shared__ float parts[2][GDN_WARPS][GDN_COLUMNS];
    const int tid = threadIdx.x, lane = tid % WARP, warp = tid / WARP;
    const int slice = block % SLICES, head = block / SLICES;
    const int per = a.value_heads / a.key_heads, key_head = head / per;
    const int key_size = a.key_heads * GDN_HEAD_DIM, value_size = a.value_heads * GDN_HEAD_DIM;
    const int channels = 2 * key_size + value_size;
    const int quad = lane % 8, first = (warp * 4 + lane / 8) * 4; /* columns 4 quad.., rows */
    /* The input of the step and the states were written before this step's first kernel. */
    const step_row *in = &a.input->rows[row];
    float *layer = a.store.states + (size_t)in->state * a.store.state_floats +
                   (size_t)a.gdn_index * a.store.layer_floats;
    float *window = layer + a.store.window_offset;
    float4 *state =
        (float4 *)(layer + ((size_t)head * SLICES + slice) * GDN_HEAD_DIM * GDN_COLUMNS);
    const int position = in->position;
    float4 s[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        s[i] = make_float4(0, 0, 0, 0);
        if (position > 0) s[i] = state[(first + i) * (GDN_COLUMNS / 4) + quad];
    }
    /* Channels of this block: q and k of the key head, and the slice's of v. */
    const int is_k = tid >= GDN_HEAD_DIM;
    const int channel = is_k * key_size + key_head * GDN_HEAD_DIM + tid % GDN_HEAD_DIM;
    const int v_channel = 2 * key_size + head * GDN_HEAD_DIM + slice * GDN_COLUMNS + tid;
    float sum = 0, v_sum = 0; /* taps of rows before the text meet zeros */
#pragma unroll
    for (int t = 0; t < CONV_TAPS - 1; t++) {
        const int before = position - (CONV_TAPS - 1) + t;
        const float *w = window + (size_t)(before & (CONV_TAPS - 1)) * channels;
        sum += a.taps[t * channels + channel] * (before < 0 ? 0 : w[channel]);
        if (tid < GDN_COLUMNS)
            v_sum += a.taps[t * channels + v_channel] * (before < 0 ? 0 : w[v_channel]);
    }
    const float tap = a.taps[(CONV_TAPS - 1) * channels + channel];
    const float v_tap = tid < GDN_COLUMNS ? a.taps[(CONV_TAPS - 1) * channels + v_channel] : 0;
    const float neg_exp_a = a.neg_exp_a[head], dt_bias = a.dt_bias[head];
    order.await_input();
    const float *projected = a.projected + row * a.stride;
    float *newest = window + (size_t)(position % CONV_TAPS) * channels;
    {
        float x = __ldcg(projected + channel);
        sum += tap * x;
        if (slice == 0 && head % per == 0) newest[channel] = x;
        sum = silu(sum);
        (is_k ? k : q)[tid % GDN_HEAD_DIM] = sum;
        float square = warp_sum(sum * sum);
        if (lane == 0) small[0][warp] = square;
    }
    if (tid < GDN_COLUMNS) {
        float x = __ldcg(projected + v_channel);
        newest[v_channel] = x;
        v[tid] = silu(v_sum + v_tap * x);
    }
    const float *ab = projected + channels + value_size;
    const float rate = __ldcg(ab + head) + dt_bias;
    const float decay = expf(neg_exp_a * softplus(rate)) + (rate - rate);
    const float beta = sigmoid_finite(__ldcg(ab + a.value_heads + head));
    __syncthreads();
    float q_square = 0, k_square = 0;
    for (int w = 0; w < 4; w++) q_square += small[0][w], k_square += small[0][w + 4];
    const float q_scale = 0.08838834764831845f * inverse_root_finite(q_square + 1e-6f);
    const float k_scale = inverse_root_finite(k_square + 1e-6f);
    float kk[4], qq[4], qk = 0;
    float4 sk = make_float4(0, 0, 0, 0), sq = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        kk[i] = k[first + i] * k_scale;
        qq[i] = q[first + i] * q_scale;
        sk.x += s[i].x * kk[i], sk.y += s[i].y * kk[i], sk.z += s[i].z * kk[i],
            sk.w += s[i].w * kk[i];
        sq.x += s[i].x * qq[i], sq.y += s[i].y * qq[i], sq.z += s[i].z * qq[i],
            sq.w += s[i].w * qq[i];
        qk += qq[i] * kk[i];
    }
    /* Over the four row groups of the warp, then over the warps. Lanes of one row group have the
     * same qk: one of each counts. */
#pragma unroll
    for (int m = 8; m < WARP; m *= 2) {
        sk.x += __shfl_xor_sync(0xffffffffu, sk.x, m),
            sk.y += __shfl_xor_sync(0xffffffffu, sk.y, m);
        sk.z += __shfl_xor_sync(0xffffffffu, sk.z, m),
            sk.w += __shfl_xor_sync(0xffffffffu, sk.w, m);
        sq.x += __shfl_xor_sync(0xffffffffu, sq.x, m),
            sq.y += __shfl_xor_sync(0xffffffffu, sq.y, m);
        sq.z += __shfl_xor_sync(0xffffffffu, sq.z, m),
            sq.w += __shfl_xor_sync(0xffffffffu, sq.w, m);
        qk += __shfl_xor_sync(0xffffffffu, qk, m);
    }
    if (lane < 8) {
        *(float4 *)&parts[0][warp][quad * 4] = sk;
        *(float4 *)&parts[1][warp][quad * 4] = sq;
        if (lane == 0) small[1][warp] = qk;
    }
    __syncthreads();
    float pk[4] = {0, 0, 0, 0}, pq[4] = {0, 0, 0, 0};
    qk = 0;
    for (int w = 0; w < GDN_WARPS; w++) {
#pragma unroll
        for (int c = 0; c < 4; c++) {
            pk[c] += parts[0][w][quad * 4 + c];
            pq[c] += parts[1][w][quad * 4 + c];
        }
        qk += small[1][w];
    }
    float d[4];
#pragma unroll
    for (int c = 0; c < 4; c++) d[c] = beta * (v[quad * 4 + c] - decay * pk[c]);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        s[i].x = decay * s[i].x + kk[i] * d[0], s[i].y = decay * s[i].y + kk[i] * d[1];
        s[i].z = decay * s[i].z + kk[i] * d[2], s[i].w = decay * s[i].w + kk[i] * d[3];
        state[(first + i) * (GDN_COLUMNS / 4) + quad] = s[i];
    }
    if (tid < 8) {
        float4 o = make_float4(decay * pq[0] + qk * d[0], decay * pq[1] + qk * d[1],
                               decay * pq[2] + qk * d[2], decay * pq[3] + qk * d[3]);
        float *out = a.out + (size_t)row * value_size + head * GDN_HEAD_DIM + slice * GDN_COLUMNS;
        ((float4 *)out)[quad] = o;
    }
}

#endif
