/* The router's logits (MODEL.md 3.8).
 *
 * Inputs are two halves (22 bits), a code less 128 is a half, and their products are summed in f32;
 * scale and bias come in per group, in f32, the bias with the inputs' sum. A block computes 32
 * tokens by 48 or 96 outputs and takes 256 columns a step: three warps a group of 64 columns, one
 * or two strips of 16 outputs a warp (STRIPS). The groups' sums are added in a fixed order. */
#include "cuda/prefill_router.cuh"

enum {
    ROUTER_TOKENS = 32,
    ROUTER_COLUMNS = 256,
    ROUTER_GROUPS = ROUTER_COLUMNS / 64,
    ROUTER_THREADS = ROUTER_GROUPS * 3 * 32,
    ROUTER_PITCH = 2 * ROUTER_COLUMNS + 8,
    ROUTER_CODE_PITCH = ROUTER_COLUMNS + 16,
};

typedef struct router_inputs {
    __half x[ROUTER_TOKENS][ROUTER_PITCH]; /* split */
    float sums[ROUTER_TOKENS][ROUTER_GROUPS];
} router_inputs;

template <int STRIPS> struct router_shared {
    enum { OUTPUTS = STRIPS * 48 };
    union {
        router_inputs inputs[2];
        float parts[ROUTER_GROUPS - 1][OUTPUTS][ROUTER_TOKENS];
    };
    uint8_t codes[OUTPUTS][ROUTER_CODE_PITCH];
};

/* Columns column ... of the block's inputs, asynchronously; none behind the last. */
static __device__ __forceinline__ void router_load_inputs(const prefill_router_args &a,
                                                          router_inputs *to, int32_t column)
{
    enum { PIECES = 2 * ROUTER_COLUMNS / 8 };
    int32_t first = blockIdx.x * ROUTER_TOKENS;
    int32_t here = min((int)PIECES, (a.hidden - column) / 4);
    for (int i = threadIdx.x; i < ROUTER_TOKENS * PIECES; i += ROUTER_THREADS) {
        int row = i / PIECES, piece = i % PIECES;
        int64_t t = min(first + row, a.n_tokens - 1);
        if (piece < here)
            copy16_async(shared_address(&to->x[row][piece * 8]),
                         a.split + t * split_halves(a.hidden) + 2 * column + piece * 8);
    }
    if (threadIdx.x < ROUTER_TOKENS) {
        int64_t t = min(first + (int32_t)threadIdx.x, a.n_tokens - 1);
        copy16_async(shared_address(to->sums[threadIdx.x]),
                     a.sums + t * group_sums_pitch(a.hidden) + column / 64);
    }
}

/* The same of the codes: a thread's are 16 columns of every 24th output. */
template <int STRIPS>
static __device__ __forceinline__ void router_load_codes(const prefill_router_args &a,
                                                         uint4 (&codes)[2 * STRIPS], int32_t column)
{
    int32_t c = column + threadIdx.x % 16 * 16;
#pragma unroll
    for (int i = 0; i < 2 * STRIPS; i++) {
        int32_t first = (int32_t)blockIdx.y * router_shared<STRIPS>::OUTPUTS;
        int32_t r = min(first + (int32_t)threadIdx.x / 16 + i * 24, a.n_outputs - 1);
        codes[i] = c < a.hidden ? *(const uint4 *)(a.codes + (int64_t)r * a.hidden + c) : uint4{};
    }
}

/* sums += one group of 64 columns. */
template <int STRIPS>
static __device__ __forceinline__ void
router_multiply(const prefill_router_args &a, const router_shared<STRIPS> *s,
                const router_inputs *inputs, int32_t first_output, int32_t group,
                float (&sums)[STRIPS][4][4])
{
    int lane = threadIdx.x % 32, part = threadIdx.x / 96, strip0 = threadIdx.x / 32 % 3 * STRIPS;
    float d[STRIPS][4][4] = {};
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint32_t w[STRIPS][4];
#pragma unroll
        for (int i = 0; i < STRIPS; i++) {
            const uint8_t *row =
                &s->codes[(strip0 + i) * 16 + lane / 4][part * 64 + k * 16 + lane % 4 * 2];
#pragma unroll
            for (int j = 0; j < 4; j++)
                w[i][j] =
                    code_pair(*(const uint16_t *)(row + j % 2 * 8 * ROUTER_CODE_PITCH + j / 2 * 8));
        }
#pragma unroll
        for (int low = 1; low >= 0; low--)
#pragma unroll
            for (int t = 0; t < 2; t++) {
                int column = part * 2 * SPLIT_GROUP + low * SPLIT_GROUP + k * 16;
                uint32_t b[4];
                load_matrix4(
                    b,
                    shared_address(
                        &inputs->x[t * 16 + lane / 16 * 8 + lane % 8][column + lane / 8 % 2 * 8]));
#pragma unroll
                for (int i = 0; i < STRIPS; i++) {
                    multiply_f16(d[i][2 * t], w[i], b[0], b[1]);
                    multiply_f16(d[i][2 * t + 1], w[i], b[2], b[3]);
                }
            }
    }
#pragma unroll
    for (int i = 0; i < STRIPS; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int32_t r = min(first_output + (strip0 + i) * 16 + lane / 4 + h * 8, a.n_outputs - 1);
            float2 w = code_scale(a.pairs[(int64_t)r * (a.hidden / 64) + group]);
#pragma unroll
            for (int t = 0; t < 8; t++) {
                float x = inputs->sums[t / 2 * 8 + lane % 4 * 2 + t % 2][part];
                float &sum = sums[i][t / 2][2 * h + t % 2];
                sum = fmaf(w.y, x, fmaf(w.x, d[i][t / 2][2 * h + t % 2], sum));
            }
        }
}

template <int STRIPS>
static __global__ void __launch_bounds__(ROUTER_THREADS, 1) router_kernel(prefill_router_args a)
{
    wait_for_stream();
    extern __shared__ __align__(16) char memory[];
    router_shared<STRIPS> *s = (router_shared<STRIPS> *)memory;
    int lane = threadIdx.x % 32, part = threadIdx.x / 96, strip0 = threadIdx.x / 32 % 3 * STRIPS;
    int32_t first_output = blockIdx.y * router_shared<STRIPS>::OUTPUTS;
    float sums[STRIPS][4][4] = {};
    uint4 codes[2 * STRIPS];
    router_load_inputs(a, &s->inputs[0], 0);
    copy_commit();
    router_load_codes<STRIPS>(a, codes, 0);
    for (int32_t c = 0, turn = 0; c < a.hidden; c += ROUTER_COLUMNS, turn ^= 1) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 2 * STRIPS; i++)
            *(uint4 *)&s->codes[threadIdx.x / 16 + i * 24][threadIdx.x % 16 * 16] = codes[i];
        if (c + ROUTER_COLUMNS < a.hidden) {
            router_load_inputs(a, &s->inputs[turn ^ 1], c + ROUTER_COLUMNS);
            router_load_codes<STRIPS>(a, codes, c + ROUTER_COLUMNS);
        }
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        if (c + part * 64 < a.hidden)
            router_multiply<STRIPS>(a, s, &s->inputs[turn], first_output, c / 64 + part, sums);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 16 * STRIPS; i++) {
        int row = (strip0 + i / 16) * 16 + lane / 4 + i / 2 % 2 * 8;
        int t = i / 4 % 4 * 8 + lane % 4 * 2 + i % 2;
        if (part > 0) s->parts[part - 1][row][t] = sums[i / 16][i / 4 % 4][i % 4];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 16 * STRIPS; i++) {
        int row = (strip0 + i / 16) * 16 + lane / 4 + i / 2 % 2 * 8;
        int t = i / 4 % 4 * 8 + lane % 4 * 2 + i % 2;
        int32_t token = blockIdx.x * ROUTER_TOKENS + t, output = first_output + row;
        if (part > 0 || token >= a.n_tokens || output >= a.n_outputs) continue;
        float v = sums[i / 16][i / 4 % 4][i % 4];
        for (int p = 0; p < ROUTER_GROUPS - 1; p++) v += s->parts[p][row][t];
        a.logits[(int64_t)token * a.n_outputs + output] = v;
    }
}

template <int STRIPS>
static cudaError_t launch_router(const prefill_router_args &a, int32_t token_tiles,
                                 cudaStream_t stream)
{
    dim3 grid((unsigned)token_tiles,
              (unsigned)ceil_div(a.n_outputs, router_shared<STRIPS>::OUTPUTS));
    return launch(router_kernel<STRIPS>, grid, ROUTER_THREADS, sizeof(router_shared<STRIPS>),
                  stream, a);
}

cudaError_t prefill_router_logits(const prefill_device *device, const __half *split,
                                  const float *group_sums, const unsigned char *codes,
                                  const uint32_t *pairs, int32_t n_tokens, int32_t n_outputs,
                                  int32_t hidden, float *logits, cudaStream_t stream)
{
    enum { FEW_BLOCKS = 66 }; /* half of the multiprocessors: twice as many of half the size */
    prefill_router_args a = {split, group_sums, codes, pairs, n_tokens, n_outputs, hidden, logits};
    if (device->path == PREFILL_PATH_HOPPER) return prefill_router_hopper(device, &a, stream);
    int32_t token_tiles = ceil_div(n_tokens, ROUTER_TOKENS);
    bool few = token_tiles * ceil_div(n_outputs, router_shared<2>::OUTPUTS) <= FEW_BLOCKS;
    return few ? launch_router<1>(a, token_tiles, stream)
               : launch_router<2>(a, token_tiles, stream);
}

cudaError_t prefill_router_init(const prefill_device *device)
{
    const cudaFuncAttribute most = cudaFuncAttributeMaxDynamicSharedMemorySize;
    cudaError_t e =
        cudaFuncSetAttribute((const void *)router_kernel<1>, most, (int)sizeof(router_shared<1>));
    if (!e)
        e = cudaFuncSetAttribute((const void *)router_kernel<2>, most,
                                 (int)sizeof(router_shared<2>));
    if (!e && device->path == PREFILL_PATH_HOPPER) e = prefill_router_hopper_init();
    return e;
}
