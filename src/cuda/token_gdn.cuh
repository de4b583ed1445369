/* A Gated DeltaNet layer's mixer in one phase: a team has a key head, from its rows of the
 * projections over the recurrence of its two value heads to the columns of out_proj that their 256
 * outputs meet. A block has 32 value columns of a value head. */
#ifndef CALLA_CUDA_TOKEN_GDN_CUH
#define CALLA_CUDA_TOKEN_GDN_CUH

#include "cuda/token.cuh"

enum {
    KEY_SIZE = TOKEN_HEADS * GDN_HEAD_DIM,
    VALUE_SIZE = 2 * KEY_SIZE,
    CHANNELS = 2 * KEY_SIZE + VALUE_SIZE,
    SLICES = GDN_HEAD_DIM / GDN_COLUMNS,
    STATE_ROWS = 2, /* of a thread, four columns each */
    CONV_THREADS = 2 * GDN_HEAD_DIM + GDN_COLUMNS,
    DECAY = 10, /* where in `small` */
    BETA = 11,
};

/* The strip of in_proj that is number j of the 48 of a head's q, k, v, z. */
__device__ static inline int gdn_strip(int head, int j)
{
    if (j < 8) return 8 * head + j;
    if (j < 16) return KEY_SIZE / 16 + 8 * head + j - 8;
    if (j < 32) return 2 * KEY_SIZE / 16 + 16 * head + j - 16;
    return CHANNELS / 16 + 16 * head + j - 32;
}
/* The strip with the head's rows of a (which = 0) or b. */
__device__ static inline int gdn_gate_strip(int head, int which)
{
    return (CHANNELS + VALUE_SIZE) / 16 + 2 * which + head / 8;
}

/* What a thread needs of the past, loaded before the phase begins. */
struct gdn_past {
    float4 state[STATE_ROWS];
    float before, tap; /* of its channel: the sum over the last three tokens; the newest's tap */
    float rate, bias;
};

struct gdn_place {
    int value_head, channel;
    float *state, *window;
};

/* Of number tid in convolve. */
__device__ static inline gdn_place place_gdn(const token_state &t, const token_layer &l, int tid)
{
    const token_args &a = *t.a;
    gdn_place p;
    p.value_head = 2 * t.team + t.rank / SLICES;
    float *layer = t.states + (size_t)l.mixer_index * a.store.layer_floats;
    p.window = layer + a.store.window_offset;
    p.state =
        layer + ((size_t)p.value_head * SLICES + t.rank % SLICES) * GDN_HEAD_DIM * GDN_COLUMNS;
    p.channel = t.team * GDN_HEAD_DIM + tid % GDN_HEAD_DIM + tid / GDN_HEAD_DIM * KEY_SIZE;
    if (tid >= 2 * GDN_HEAD_DIM)
        p.channel = 2 * KEY_SIZE + p.value_head * GDN_HEAD_DIM + t.rank % SLICES * GDN_COLUMNS +
                    tid % GDN_COLUMNS;
    return p;
}

__device__ static inline gdn_place place_gdn(const token_state &t, const token_layer &l)
{
    return place_gdn(t, l, threadIdx.x);
}

/* A thread has rows first, first + 1 of the state, and of them columns 4 quad ... */
struct state_place {
    int first, quad;
};
__device__ static inline state_place place_state()
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    return {warp / 4 * (GDN_HEAD_DIM / GDN_ROW_GROUPS) + lane / 2 * STATE_ROWS,
            warp % 4 * 2 + lane % 2};
}

__device__ static inline void load_state(const token_state &t, gdn_past &p, const gdn_place &at)
{
    const state_place own = place_state();
#pragma unroll
    for (int i = 0; i < STATE_ROWS; i++) {
        p.state[i] = make_float4(0, 0, 0, 0);
        if (t.position > 0)
            p.state[i] =
                __ldcg((const float4 *)at.state + (own.first + i) * (GDN_COLUMNS / 4) + own.quad);
    }
}
__device__ static inline void load_window(const token_state &t, gdn_past &p, const gdn_place &at,
                                          const token_layer &l, int tid)
{
    const int position = t.position;
    const float *taps = l.constants[0];
    p.before = 0, p.tap = 0;
    if (tid < CONV_THREADS) {
#pragma unroll
        for (int i = 0; i < CONV_TAPS - 1; i++) {
            const int before = position - (CONV_TAPS - 1) + i;
            const float x =
                before < 0 ? 0
                           : at.window[(size_t)(before & (CONV_TAPS - 1)) * CHANNELS + at.channel];
            p.before += taps[i * CHANNELS + at.channel] * x;
        }
        p.tap = taps[(CONV_TAPS - 1) * CHANNELS + at.channel];
    }
    p.rate = l.constants[1][at.value_head], p.bias = l.constants[2][at.value_head];
}

/* What came of a row's projections, behind a barrier: to the team. */
__device__ static inline void store_projected(const token_state &t, int layer)
{
    token_mail &m = *t.a->mail;
    const int tid = threadIdx.x, lane = tid % WARP, warp = tid / WARP;
    const float r = norm_factor(t, layer);
    const int output = tid / 4;
    if (output < HEAD_STRIPS * W4_STRIP_ROWS) {
        const float sum = r * sum_parts(t, output / W4_STRIP_ROWS, output % W4_STRIP_ROWS);
        if (lane % 4 == 0)
            store_tagged(m.projected[t.team] + t.rank * HEAD_STRIPS * W4_STRIP_ROWS + output, sum,
                         t.tag);
    } else if (warp == HEAD_STRIPS * W4_STRIP_ROWS / 8 && lane < 2) {
        const float(*p)[W4_STRIP_ROWS] = t.own->parts[HEAD_STRIPS];
        const int row = 2 * t.team % W4_STRIP_ROWS + lane;
        store_tagged(m.gates[t.team] + 2 * t.rank + lane,
                     r * (p[0][row] + p[1][row] + (p[2][row] + p[3][row])), t.tag);
    }
}

/* The head's rows of the projections: 6 strips and a quarter of one with gates a block. */
__device__ static inline void project_gdn(token_state &t, const held_groups &x, int layer)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll 1
    for (int strip = 0; strip < HEAD_STRIPS; strip += 2) multiply_strips(t, x, strip, 2);
    const int own = warp - t.rank % 4 * 4; /* the warp's place among those with these columns */
    const unsigned char *gates = take_stage(t) + 2 * own * (int)W4_BLOCK_BYTES;
    if (own >= 0 && own < 4) {
        const float gate = add_pair(multiply_blocks(take_blocks<W4_BLOCK_BYTES>(gates, gates), x));
        if (lane % 4 < 2) t.own->parts[HEAD_STRIPS][own][lane / 4 + lane % 2 * 8] = gate;
    }
    give_stage(t);
    sync_threads<CONSUMER_THREADS>();
    store_projected(t, layer);
}

/* What number tid of convolve has to wait for: its channel's projection, or (in a warp behind
 * those) a lane's quarter of a gate. */
__device__ static inline const uint64_t *convolved_of(const token_state &t, int tid)
{
    const token_mail &m = *t.a->mail;
    if (tid >= CONV_THREADS) return m.gates[t.team] + tid % 16;
    return m.projected[t.team] +
           (tid < 2 * GDN_HEAD_DIM ? tid
                                   : 2 * GDN_HEAD_DIM + t.rank * GDN_COLUMNS + tid % GDN_COLUMNS);
}
/* Convolution of this block's channels, the gates: numbers tid below CONV_THREADS + 32, a warp's
 * following each other. */
__device__ static inline void convolve(const token_state &t, const gdn_past &past,
                                       const gdn_place &at, float x, int tid)
{
    gdn_shared &s = t.own->gdn;
    const int lane = tid % WARP, warp = tid / WARP;
    if (tid < CONV_THREADS) {
        const float y = silu(past.before + past.tap * x);
        if (t.rank == 0 || tid >= 2 * GDN_HEAD_DIM)
            at.window[(size_t)(t.position % CONV_TAPS) * CHANNELS + at.channel] = x;
        s.qkv[tid] = y;
        const float square = warp_sum(y * y);
        if (lane == 0) s.small[warp] = square;
    } else {
        /* Four quarters of a sum, 2 lanes apart; b's are in the lanes from 8 on. */
        float gate = x;
        gate += __shfl_xor_sync(0xffffffffu, gate, 2);
        gate += __shfl_xor_sync(0xffffffffu, gate, 4);
        const float rate = __shfl_sync(0xffffffffu, gate, t.rank / SLICES) + past.bias;
        const float beta = __shfl_sync(0xffffffffu, gate, 8 + t.rank / SLICES);
        s.small[DECAY] = expf(past.rate * softplus(rate)) + (rate - rate);
        s.small[BETA] = sigmoid_finite(beta);
    }
}

__device__ static inline float4 sum_rows(const float (&sums)[GDN_ROW_GROUPS][GDN_COLUMNS], int quad)
{
    float4 p = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int g = 0; g < GDN_ROW_GROUPS; g++) {
        const float4 e = *(const float4 *)&sums[g][quad * 4];
        p.x += e.x, p.y += e.y, p.z += e.z, p.w += e.w;
    }
    return p;
}
/* What the delta rule adds along k: beta (v - decay S^T k). */
__device__ static inline float4 delta_of(const gdn_shared &s, int quad)
{
    const float4 p = sum_rows(s.sums[0], quad),
                 v = *(const float4 *)&s.qkv[2 * GDN_HEAD_DIM + quad * 4];
    const float decay = s.small[DECAY], beta = s.small[BETA];
    return make_float4(beta * (v.x - decay * p.x), beta * (v.y - decay * p.y),
                       beta * (v.z - decay * p.z), beta * (v.w - decay * p.w));
}

/* The thread's keys, what q and k are multiplied by. */
struct gdn_keys {
    float k[STATE_ROWS], q_scale, k_scale;
};
/* One step of the recurrence: S^T k and S^T q in one pass, as in gdn.cu. First the sums of warps
 * ...
 */
__device__ static inline void sum_states(const token_state &t, const gdn_past &past, gdn_keys &keys)
{
    gdn_shared &s = t.own->gdn;
    const int tid = threadIdx.x, lane = tid % WARP, warp = tid / WARP;
    const state_place own = place_state();
    keys.q_scale = 0.08838834764831845f *
                   inverse_root_finite(s.small[0] + s.small[1] + s.small[2] + s.small[3] + 1e-6f);
    keys.k_scale = inverse_root_finite(s.small[4] + s.small[5] + s.small[6] + s.small[7] + 1e-6f);
    float sums[8] = {0, 0, 0, 0, 0, 0, 0, 0}; /* S^T k, S^T q */
    float(&kk)[STATE_ROWS] = keys.k;
#pragma unroll
    for (int r = 0; r < STATE_ROWS; r++) {
        const float4 e = past.state[r];
        const float q = s.qkv[own.first + r] * keys.q_scale;
        kk[r] = s.qkv[GDN_HEAD_DIM + own.first + r] * keys.k_scale;
        sums[0] += e.x * kk[r], sums[1] += e.y * kk[r], sums[2] += e.z * kk[r],
            sums[3] += e.w * kk[r];
        sums[4] += e.x * q, sums[5] += e.y * q, sums[6] += e.z * q, sums[7] += e.w * q;
    }
    /* Over the warp's 16 pairs of rows: halves change hands until a lane has one of the eight. */
#pragma unroll
    for (int m = 16, n = 4; n > 0; m /= 2, n /= 2) {
        const bool upper = lane & m;
#pragma unroll
        for (int j = 0; j < n; j++) {
            const float keep = upper ? sums[j + n] : sums[j], gone = upper ? sums[j] : sums[j + n];
            sums[j] = keep + __shfl_xor_sync(0xffffffffu, gone, m);
        }
    }
    sums[0] += __shfl_xor_sync(0xffffffffu, sums[0], 2);
    if ((lane & 2) == 0)
        s.sums[lane / 16][warp / 4][own.quad * 4 + (lane & 8 ? 2 : 0) + (lane & 4 ? 1 : 0)] =
            sums[0];
}
/* ... then, behind a barrier, the output and the new state. */
__device__ static inline void end_step(const token_state &t, const gdn_past &past,
                                       const gdn_place &at, const gdn_keys &keys)
{
    gdn_shared &s = t.own->gdn;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const state_place own = place_state();
    const float decay = s.small[DECAY];
    const float(&kk)[STATE_ROWS] = keys.k;
    if (warp == 0) { /* a column of the output each */
        float qk = 0, p = 0, o = 0;
#pragma unroll
        for (int j = 0; j < 4; j++)
            qk += s.qkv[lane + j * WARP] * s.qkv[GDN_HEAD_DIM + lane + j * WARP];
        qk = warp_sum(qk) * keys.q_scale * keys.k_scale;
#pragma unroll
        for (int g = 0; g < GDN_ROW_GROUPS; g++) p += s.sums[0][g][lane], o += s.sums[1][g][lane];
        o = decay * o + qk * (s.small[BETA] * (s.qkv[2 * GDN_HEAD_DIM + lane] - decay * p));
        store_tagged(t.a->mail->out[t.team] + t.rank * GDN_COLUMNS + lane, o, t.tag);
    }
    const float4 d = delta_of(s, own.quad);
#pragma unroll
    for (int r = 0; r < STATE_ROWS; r++) {
        float4 e = past.state[r];
        e.x = decay * e.x + kk[r] * d.x, e.y = decay * e.y + kk[r] * d.y;
        e.z = decay * e.z + kk[r] * d.z, e.w = decay * e.w + kk[r] * d.w;
        ((float4 *)at.state)[(own.first + r) * (GDN_COLUMNS / 4) + own.quad] = e;
    }
}

/* A group of 64 of out_proj's inputs, factor (o r) silu(z), by a warp. */
__device__ static inline void gate_group(const token_state &t, int group, const float2 (&factor)[2])
{
    const int lane = threadIdx.x % WARP;
    const token_mail &m = *t.a->mail;
    const uint64_t *out = m.out[t.team] + 2 * lane;
    const uint64_t *const from[3] = {out + group * W4_GROUP, out + (group ^ 1) * W4_GROUP,
                                     m.projected[t.team] + 4 * GDN_HEAD_DIM + group * W4_GROUP +
                                         2 * lane};
    float2 v[3];
    await_pairs(v, from, t.tag);
    __syncwarp();
    const float own = v[0].x * v[0].x + v[0].y * v[0].y;
    const float its = v[1].x * v[1].x + v[1].y * v[1].y;
    const float r =
        inverse_root_finite(warp_sum(group & 1 ? its + own : own + its) / GDN_HEAD_DIM + t.a->eps);
    share_group(t, group,
                make_float2(factor[group & 1].x * (v[0].x * r) * silu(v[2].x),
                            factor[group & 1].y * (v[0].y * r) * silu(v[2].y)),
                1);
}

__device__ static inline void mix_gdn(token_state &t, const token_layer &l, int layer,
                                      const held_groups &x, gdn_past &past)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const gdn_place at = place_gdn(t, l);
    float2 out_factor[2];
    out_factor[0] = ((const float2 *)l.constants[3])[lane];
    out_factor[1] = ((const float2 *)l.constants[3])[WARP + lane];
    project_gdn(t, x, layer);
    if (threadIdx.x < CONV_THREADS + WARP) {
        const float v = await_value(convolved_of(t, threadIdx.x), t.tag);
        __syncwarp();
        convolve(t, past, at, v, threadIdx.x);
    }
    sync_threads<CONSUMER_THREADS>();
    gdn_keys keys;
    sum_states(t, past, keys);
    sync_threads<CONSUMER_THREADS>();
    end_step(t, past, at, keys);
    if (warp < HEAD_GROUPS) gate_group(t, warp, out_factor);
    sync_threads<CONSUMER_THREADS>();
    multiply_out(t);
}

#endif
