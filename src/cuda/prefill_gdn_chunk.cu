/* The recurrence of Gated DeltaNet in chunks of 64 tokens on tensor cores (MODEL.md 3.6).
 *
 * Chunks lie at absolute multiples of 64. Of each, one kernel prepares what does not depend on the
 * state (prefill_gdn_prepare.cu): T = (I + A)^-1 and P of every value head, K and Q as sums of two
 * bf16. Then one kernel walks over the chunks: with X = K S,
 *   N = T beta (V - e^G X),   O = e^G Q S + P N,   S' = e^(G_C) S + (e^(G_C - G) K)^T N.
 * A product of two f32 matrices is three of bf16 (high and low parts, without low by low), f32
 * sums: an error of about 2^-16 of the factors' sizes. All of it is computed transposed, value
 * columns by tokens or key dims: a warp owns 16 value columns, and what one product leaves in
 * registers is the next one's left operand. Nothing but the state goes from chunk to chunk. On
 * Hopper prefill_gdn_hopper.cu walks. */
#include "cuda/prefill_gdn_chunk.cuh"

enum {
    SEGMENT = 32, /* chunks prepared at a time */
    COLUMNS = 32, /* value columns of a block */
};

static chunk_workspace workspace_at(void *memory, int32_t n_key_heads, int32_t n_value_heads)
{
    chunk_workspace w;
    w.keys = (key_parts *)memory;
    w.squares = (square_parts *)(w.keys + SEGMENT * n_key_heads);
    w.gates = (chunk_gates *)(w.squares + SEGMENT * n_value_heads);
    return w;
}

int64_t prefill_gdn_workspace_bytes(int32_t n_key_heads, int32_t n_value_heads)
{
    return SEGMENT *
           ((int64_t)n_key_heads * (int64_t)sizeof(key_parts) +
            (int64_t)n_value_heads * (int64_t)(sizeof(square_parts) + sizeof(chunk_gates)));
}

/* ---- the walk over the chunks ---- */

/* Of 16 value columns: the state, and N, as A fragments of both parts. */
typedef struct exchange {
    uint4 state[HEAD / 16][2][32];
    uint4 n[CHUNK / 16][2][32];
} exchange;

typedef struct walk_buffer {
    key_parts keys;
    square_parts squares;
    chunk_gates gates;
} walk_buffer;

/* d [16 columns][8 c + ...] as A fragment of columns 16 i ..., times the factors given per column.
 */
static __device__ __forceinline__ void split_fragment(const float (&d0)[4], const float (&d1)[4],
                                                      uint32_t (&a)[2][4])
{
    split_pair(d0[0], d0[1], a[0][0], a[1][0]);
    split_pair(d0[2], d0[3], a[0][1], a[1][1]);
    split_pair(d1[0], d1[1], a[0][2], a[1][2]);
    split_pair(d1[2], d1[3], a[0][3], a[1][3]);
}

static __device__ __forceinline__ void put_fragment(uint4 (*to)[32], const uint32_t (&a)[2][4])
{
    int lane = threadIdx.x % 32;
    to[0][lane] = make_uint4(a[0][0], a[0][1], a[0][2], a[0][3]);
    to[1][lane] = make_uint4(a[1][0], a[1][1], a[1][2], a[1][3]);
}
static __device__ __forceinline__ void get_fragment(uint32_t (&a)[2][4], const uint4 (*from)[32])
{
    int lane = threadIdx.x % 32;
    for (int i = 0; i < 2; i++) {
        uint4 v = from[i][lane];
        a[i][0] = v.x, a[i][1] = v.y, a[i][2] = v.z, a[i][3] = v.w;
    }
}

/* d [16 columns][64 tokens] = state times K^T or Q^T, whose planes are given. */
static __device__ __forceinline__ void multiply_state(float (&d)[8][4], const exchange *x,
                                                      uint32_t keys)
{
    int lane = threadIdx.x % 32;
#pragma unroll 2
    for (int i = 0; i < HEAD / 16; i++) {
        uint32_t a[2][4];
        split_operands<4> b;
        get_fragment(a, x->state[i]);
#pragma unroll
        for (int t = 0; t < 4; t++) {
            uint32_t at = key_piece(t * 16 + lane / 16 * 8 + lane % 8, 2 * i + lane / 8 % 2);
            load_matrix4(b.high[t], keys + at);
            load_matrix4(b.low[t], keys + KEY_PLANE + at);
        }
        multiply_split<4>(d, a, b);
    }
}

/* d [16 columns][64 tokens i] += a [16][tokens 16 J ...] times T^T or P^T, of which only i >= j
 * counts. */
template <int J>
static __device__ __forceinline__ void multiply_square(float (&d)[8][4], const uint32_t (&a)[2][4],
                                                       uint32_t square)
{
    int lane = threadIdx.x % 32;
    split_operands<4 - J> b;
#pragma unroll
    for (int i = J; i < 4; i++) {
        uint32_t at = square_piece(i * 16 + lane / 16 * 8 + lane % 8, 2 * J + lane / 8 % 2);
        load_matrix4(b.high[i - J], square + at);
        load_matrix4(b.low[i - J], square + SQUARE_PLANE + at);
    }
    multiply_split<4 - J>(d + 2 * J, a, b);
}

/* state [16 columns][128 key dims] += a [16][16 tokens of block j] times K. */
static __device__ __forceinline__ void update_state(float (&state)[16][4],
                                                    const uint32_t (&a)[2][4], int j, uint32_t keys)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        split_operands<4> b;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t at = key_piece(j * 16 + lane % 16, 2 * (half * 4 + i) + lane / 16);
            load_matrix4_transposed(b.high[i], keys + at);
            load_matrix4_transposed(b.low[i], keys + KEY_PLANE + at);
        }
        multiply_split<4>(state + half * 8, a, b);
    }
}

static __device__ __forceinline__ void put_state(const float (&state)[16][4], exchange *x)
{
#pragma unroll
    for (int i = 0; i < HEAD / 16; i++) {
        uint32_t a[2][4];
        split_fragment(state[2 * i], state[2 * i + 1], a);
        put_fragment(x->state[i], a);
    }
}

static __device__ __forceinline__ void pair_barrier(int pair)
{
    asm volatile("bar.sync %0, 64;" ::"r"(pair + 1) : "memory");
}

/* The warp that owns the state: one chunk. v is value column `lane / 4` of the warp's at the
 * chunk's first token. */
static __device__ void step_state(const prefill_gdn_args &a, const walk_buffer *b, exchange *x,
                                  int pair, const float *v, int64_t channels, int32_t n,
                                  float (&state)[16][4])
{
    int lane = threadIdx.x % 32;
    float values[8][4], d[8][4] = {};
#pragma unroll
    for (int c = 0; c < 8; c++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int32_t t = c * 8 + lane % 4 * 2 + i % 2;
            values[c][i] = t < n ? v[t * channels + i / 2 * 8] : 0;
        }
    multiply_state(d, x, shared_address(b->keys.k));
#pragma unroll
    for (int c = 0; c < 8; c++) {
        float2 growth = *(const float2 *)&b->gates.growth[c * 8 + lane % 4 * 2];
        float2 beta = *(const float2 *)&b->gates.beta[c * 8 + lane % 4 * 2];
        values[c][0] = beta.x * (values[c][0] - growth.x * d[c][0]);
        values[c][1] = beta.y * (values[c][1] - growth.y * d[c][1]);
        values[c][2] = beta.x * (values[c][2] - growth.x * d[c][2]);
        values[c][3] = beta.y * (values[c][3] - growth.y * d[c][3]);
    }
#pragma unroll
    for (int c = 0; c < 8; c++)
#pragma unroll
        for (int i = 0; i < 4; i++) d[c][i] = 0;
    uint32_t r[CHUNK / 16][2][4], t = shared_address(b->squares.t);
#pragma unroll
    for (int j = 0; j < CHUNK / 16; j++) split_fragment(values[2 * j], values[2 * j + 1], r[j]);
    multiply_square<0>(d, r[0], t);
    multiply_square<1>(d, r[1], t);
    multiply_square<2>(d, r[2], t);
    multiply_square<3>(d, r[3], t);
#pragma unroll
    for (int j = 0; j < CHUNK / 16; j++) {
        split_fragment(d[2 * j], d[2 * j + 1], r[j]);
        put_fragment(x->n[j], r[j]);
    }
    pair_barrier(pair); /* N is there, and the old state has been read */
    float total = b->gates.growth[CHUNK - 1];
#pragma unroll
    for (int c = 0; c < 16; c++)
#pragma unroll
        for (int i = 0; i < 4; i++) state[c][i] *= total;
#pragma unroll
    for (int j = 0; j < CHUNK / 16; j++) {
#pragma unroll
        for (int c = 2 * j; c < 2 * j + 2; c++) {
            float2 rest = *(const float2 *)&b->gates.rest[c * 8 + lane % 4 * 2];
            d[c][0] *= rest.x, d[c][1] *= rest.y, d[c][2] *= rest.x, d[c][3] *= rest.y;
        }
        split_fragment(d[2 * j], d[2 * j + 1], r[j]);
        update_state(state, r[j], j, shared_address(b->keys.k));
    }
    put_state(state, x);
}

/* Its partner: the outputs of one chunk, out as v in step_state. */
static __device__ void step_output(const walk_buffer *b, const exchange *x, int pair, float *out,
                                   int64_t stride, int32_t n)
{
    int lane = threadIdx.x % 32;
    float d[8][4] = {};
    multiply_state(d, x, shared_address(b->keys.q));
#pragma unroll
    for (int c = 0; c < 8; c++) {
        float2 growth = *(const float2 *)&b->gates.growth[c * 8 + lane % 4 * 2];
        d[c][0] *= growth.x, d[c][1] *= growth.y, d[c][2] *= growth.x, d[c][3] *= growth.y;
    }
    pair_barrier(pair);
    uint32_t r[CHUNK / 16][2][4], p = shared_address(b->squares.p);
#pragma unroll
    for (int j = 0; j < CHUNK / 16; j++) get_fragment(r[j], x->n[j]);
    multiply_square<0>(d, r[0], p);
    multiply_square<1>(d, r[1], p);
    multiply_square<2>(d, r[2], p);
    multiply_square<3>(d, r[3], p);
#pragma unroll
    for (int c = 0; c < 8; c++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int32_t t = c * 8 + lane % 4 * 2 + i % 2;
            if (t < n) out[t * stride + i / 2 * 8] = d[c][i];
        }
}

static __device__ void walk_load(const prefill_gdn_args &a, const chunk_workspace &w,
                                 walk_buffer *to, int32_t slot, int32_t head)
{
    int32_t key_head = head / (a.n_value_heads / a.n_key_heads);
    const unsigned char *keys = (const unsigned char *)&w.keys[slot * a.n_key_heads + key_head];
    const unsigned char *squares =
        (const unsigned char *)&w.squares[(int64_t)slot * a.n_value_heads + head];
    const unsigned char *gates =
        (const unsigned char *)&w.gates[(int64_t)slot * a.n_value_heads + head];
    uint32_t base = shared_address(to);
#pragma unroll 8
    for (uint32_t i = threadIdx.x * 16; i < sizeof(key_parts); i += 128 * 16)
        copy16_async(base + i, keys + i);
    base += sizeof(key_parts);
#pragma unroll 8
    for (uint32_t i = threadIdx.x * 16; i < sizeof(square_parts); i += 128 * 16)
        copy16_async(base + i, squares + i);
    base += sizeof(square_parts);
    if (threadIdx.x * 16 < sizeof(chunk_gates))
        copy16_async(base + threadIdx.x * 16, gates + threadIdx.x * 16);
}

/* A block: 32 value columns of one head over the segment's chunks: two warps own the state of 16
 * each, two others compute the outputs beside them. About 2.3 M operations of bf16 a token and
 * value head of 128; reads 100 KB a chunk, from L2. */
template <int BUFFERS>
static __global__ void __launch_bounds__(128, 1)
    chunk_walk_kernel(prefill_gdn_args a, chunk_workspace w, int32_t first_chunk, int32_t n_chunks,
                      const float *state_in)
{
    wait_for_stream();
    extern __shared__ __align__(128) char memory[];
    walk_buffer *buffers = (walk_buffer *)memory;
    int32_t head = blockIdx.x / (HEAD / COLUMNS), slice = blockIdx.x % (HEAD / COLUMNS);
    int lane = threadIdx.x % 32, pair = threadIdx.x / 32 % 2;
    bool owns_state = threadIdx.x < 64;
    exchange *x = (exchange *)(memory + BUFFERS * sizeof(walk_buffer)) + pair;
    int64_t channels = (int64_t)(2 * a.n_key_heads + a.n_value_heads) * HEAD;
    int64_t values = (int64_t)a.n_value_heads * HEAD;
    int32_t column = head * HEAD + slice * COLUMNS + pair * 16 + lane / 4;
    int64_t at =
        (int64_t)blockIdx.x * HEAD * COLUMNS + lane % 4 * 2 * COLUMNS + pair * 16 + lane / 4;
    float state[16][4];
#pragma unroll
    for (int c = 0; c < 16; c++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            state[c][i] =
                owns_state && state_in ? state_in[at + (c * 8 + i % 2) * COLUMNS + i / 2 * 8] : 0;
    if (owns_state) put_state(state, x);
    walk_load(a, w, &buffers[0], 0, head);
    copy_commit();
    for (int32_t c = 0; c < n_chunks; c++) {
        copy_wait<0>();
        __syncthreads();
        const walk_buffer *b = &buffers[c % BUFFERS];
        if (BUFFERS > 1 && c + 1 < n_chunks)
            walk_load(a, w, &buffers[(c + 1) % BUFFERS], c + 1, head);
        copy_commit();
        int32_t n, begin = chunk_begin(a, first_chunk + c, &n);
        if (owns_state)
            step_state(a, b, x, pair, a.f + begin * channels + 2 * a.n_key_heads * HEAD + column,
                       channels, n, state);
        else
            step_output(b, x, pair, a.o + begin * values + column, values, n);
        if (BUFFERS == 1 && c + 1 < n_chunks) {
            __syncthreads();
            walk_load(a, w, &buffers[0], c + 1, head);
            copy_commit();
        }
    }
    if (!owns_state) return;
#pragma unroll
    for (int c = 0; c < 16; c++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            a.state_out[at + (c * 8 + i % 2) * COLUMNS + i / 2 * 8] = state[c][i];
}

/* ---- launches ---- */

static int walk_shared_bytes(int buffers)
{
    return buffers * (int)sizeof(walk_buffer) + 2 * (int)sizeof(exchange);
}

int32_t prefill_gdn_grid(const prefill_device *device)
{
    return device->shared_bytes >= walk_shared_bytes(1) ? CHUNK : 1;
}

cudaError_t prefill_gdn_init(const prefill_device *device)
{
    if (prefill_gdn_grid(device) == 1) return cudaSuccess;
    const cudaFuncAttribute most = cudaFuncAttributeMaxDynamicSharedMemorySize;
    cudaError_t e = prefill_gdn_prepare_init();
    if (!e)
        e = cudaFuncSetAttribute((const void *)chunk_walk_kernel<1>, most, walk_shared_bytes(1));
    if (!e && device->shared_bytes >= walk_shared_bytes(2))
        e = cudaFuncSetAttribute((const void *)chunk_walk_kernel<2>, most, walk_shared_bytes(2));
    if (!e && prefill_gdn_has_hopper(device)) e = prefill_gdn_hopper_init();
    return e;
}

cudaError_t prefill_gdn_chunks(const prefill_device *device, const prefill_gdn_args *args,
                               cudaStream_t stream)
{
    chunk_workspace w = workspace_at(args->workspace, args->n_key_heads, args->n_value_heads);
    int32_t n = (int32_t)((args->first + args->n_tokens - 1) / CHUNK - args->first / CHUNK) + 1;
    bool hopper = prefill_gdn_has_hopper(device);
    bool two = device->shared_bytes >= walk_shared_bytes(2);
    unsigned blocks = (unsigned)args->n_value_heads * (HEAD / COLUMNS);
    for (int32_t c = 0; c < n; c += SEGMENT) {
        int32_t here = n - c < SEGMENT ? n - c : SEGMENT;
        const float *state = c > 0 ? args->state_out : args->first > 0 ? args->state_in : NULL;
        cudaError_t e = prefill_gdn_prepare(args, &w, c, here, stream);
        if (!e && hopper)
            e = prefill_gdn_hopper_walk(args, &w, c, here, state, stream);
        else if (!e)
            e = launch(two ? chunk_walk_kernel<2> : chunk_walk_kernel<1>, blocks, 128,
                       (size_t)walk_shared_bytes(two ? 2 : 1), stream, *args, w, c, here, state);
        if (e) return e;
    }
    return cudaSuccess;
}
