/* The router's logits on Hopper: as prefill_router.cu, by wgmma. A block computes 64 tokens by
 * OUTPUTS outputs: two warpgroups, of which one takes the even groups of 64 columns and the other
 * the odd ones, so that one converts codes and adds up while the other multiplies. The order of a
 * logit's sums does not depend on OUTPUTS. */
#include "cuda/prefill_router.cuh"
#include "cuda/prefill_wgmma.cuh"

enum {
    TOKENS = 64,
    PARTS = 2, /* even and odd groups */
    PART_THREADS = 128,
    THREADS = PARTS * PART_THREADS,
    INPUT_STAGES = 3,
    INPUT_BLOCK = TOKENS * 128, /* bytes of one half of a group's inputs */
    INPUT_ROWS = TOKENS / 8,    /* of a thread */
};

/* What the threads of one part have. Rows of 128 bytes, 16-byte pieces swapped by row % 8. */
template <int OUTPUTS> struct alignas(1024) router_part {
    enum { PIECES = (OUTPUTS + 31) / 32 }; /* of 16 codes, a thread */
    unsigned char inputs[INPUT_STAGES][2][INPUT_BLOCK];
    unsigned char weights[2][OUTPUTS * 128];
    uint4 codes[2][PIECES][PART_THREADS];
    uint32_t pairs[2][OUTPUTS];
    float2 scales[2][OUTPUTS]; /* and biases */
};

#if HAS_WGMMA

/* d (64 x N, f32) = a (64 x 16) b (16 x N) of halves, both by rows of k, + d if `add`. */
#define MULTIPLY(N, PLACES, A, B, ADD, ...)                                                        \
    static __device__ __forceinline__ void multiply(float(&d)[N / 2], uint64_t a, uint64_t b,      \
                                                    int add)                                       \
    {                                                                                              \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADD ", 0;\n"                              \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" PLACES "}, " A     \
                     ", " B ", p, 1, 1, 0, 0;\n}"                                                  \
                     : __VA_ARGS__                                                                 \
                     : "l"(a), "l"(b), "r"(add));                                                  \
    }
MULTIPLY(32, WGMMA_PLACES16, "%16", "%17", "%18", WGMMA_D16("+f", 0))
MULTIPLY(72, WGMMA_PLACES36, "%36", "%37", "%38", WGMMA_D16("+f", 0), WGMMA_D16("+f", 16),
         WGMMA_D4("+f", 32))
MULTIPLY(136, WGMMA_PLACES68, "%68", "%69", "%70", WGMMA_D16("+f", 0), WGMMA_D16("+f", 16),
         WGMMA_D16("+f", 32), WGMMA_D16("+f", 48), WGMMA_D4("+f", 64))

/* Where a thread's copies of the next group come from, and go to. */
template <int OUTPUTS> struct router_copies {
    enum { PIECES = router_part<OUTPUTS>::PIECES, ROUNDS = (OUTPUTS + 127) / 128 };
    const __half *inputs[INPUT_ROWS];
    const unsigned char *codes[PIECES];
    const uint32_t *pairs[ROUNDS];
    uint32_t input_to, codes_to, pairs_to;
    int32_t groups_left;
};

template <int OUTPUTS>
static __device__ __forceinline__ router_copies<OUTPUTS>
router_begin_copies(const prefill_router_args &a, const router_part<OUTPUTS> *s, int part)
{
    router_copies<OUTPUTS> c;
    int t = threadIdx.x % PART_THREADS, piece = t % 16, row = t / 16;
    int32_t first_output = (int32_t)blockIdx.y * OUTPUTS;
#pragma unroll
    for (int i = 0; i < INPUT_ROWS; i++) {
        int64_t token = min((int32_t)blockIdx.x * TOKENS + row + i * 8, a.n_tokens - 1);
        c.inputs[i] = a.split + token * split_halves(a.hidden) + part * 2 * SPLIT_GROUP + piece * 8;
    }
#pragma unroll
    for (int i = 0; i < c.PIECES; i++) {
        int64_t r = min(first_output + t / 4 + i * 32, a.n_outputs - 1);
        c.codes[i] = a.codes + r * a.hidden + part * 64 + t % 4 * 16;
    }
#pragma unroll
    for (int i = 0; i < c.ROUNDS; i++) {
        int64_t r = min(first_output + t + i * 128, a.n_outputs - 1);
        c.pairs[i] = a.pairs + r * (a.hidden / 64) + part;
    }
    c.input_to = shared_address(s->inputs) +
                 (uint32_t)(piece / 8 * INPUT_BLOCK + row * 128 + ((piece % 8 ^ row) << 4));
    c.codes_to = shared_address(&s->codes[0][0][t]);
    c.pairs_to = shared_address(&s->pairs[0][t]);
    c.groups_left = (a.hidden / 64 - part + PARTS - 1) / PARTS;
    return c;
}

/* The part's next group, if there is one: inputs to a stage, codes and pairs to a slot, each to
 * where the same thread takes them from. */
template <int OUTPUTS>
static __device__ __forceinline__ void router_copy(router_copies<OUTPUTS> &c, int stage, int slot)
{
    if (c.groups_left > 0) {
#pragma unroll
        for (int i = 0; i < INPUT_ROWS; i++) {
            copy16_async(c.input_to + stage * 2 * INPUT_BLOCK + i * 1024, c.inputs[i]);
            c.inputs[i] += PARTS * 2 * SPLIT_GROUP;
        }
#pragma unroll
        for (int i = 0; i < c.PIECES; i++) {
            copy16_async(c.codes_to + (slot * c.PIECES + i) * PART_THREADS * 16, c.codes[i]);
            c.codes[i] += PARTS * 64;
        }
#pragma unroll
        for (int i = 0; i < c.ROUNDS; i++) {
            if (threadIdx.x % PART_THREADS + i * 128 < OUTPUTS)
                asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(
                                 c.pairs_to + (slot * OUTPUTS + i * 128) * 4),
                             "l"(c.pairs[i])
                             : "memory");
            c.pairs[i] += PARTS;
        }
        c.groups_left--;
    }
    copy_commit();
}

/* Codes become halves, and pairs scales and biases of f32. */
template <int OUTPUTS>
static __device__ __forceinline__ void convert_codes(router_part<OUTPUTS> *s, int slot)
{
    int t = threadIdx.x % PART_THREADS, row = t / 4;
    unsigned char *to = s->weights[slot] + row * 128;
    uint32_t even = (uint32_t)(t % 4 * 2 ^ row % 8) << 4;
#pragma unroll
    for (int i = 0; i < router_part<OUTPUTS>::PIECES; i++) {
        if (row + i * 32 >= OUTPUTS) break;
        uint4 c = s->codes[slot][i][t];
        *(uint4 *)(to + i * 4096 + even) =
            make_uint4(code_pair(c.x), code_pair(c.x >> 16), code_pair(c.y), code_pair(c.y >> 16));
        *(uint4 *)(to + i * 4096 + (even ^ 16)) =
            make_uint4(code_pair(c.z), code_pair(c.z >> 16), code_pair(c.w), code_pair(c.w >> 16));
    }
#pragma unroll
    for (int n = t; n < OUTPUTS; n += PART_THREADS)
        s->scales[slot][n] = code_scale(s->pairs[slot][n]);
}

template <int OUTPUTS>
static __device__ __forceinline__ void start_group(float (&d)[OUTPUTS / 2], uint32_t inputs,
                                                   uint32_t weights)
{
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int low = 1; low >= 0; low--)
            multiply(d, wgmma_descriptor(inputs + low * INPUT_BLOCK, 1024) + k * 2,
                     wgmma_descriptor(weights, 1024) + k * 2, k > 0 || low == 0);
    wgmma_commit();
}

/* A part's groups: sums as wgmma's results. */
template <int OUTPUTS>
static __device__ __forceinline__ void multiply_groups(const prefill_router_args &a,
                                                       router_part<OUTPUTS> *s, int part,
                                                       float (&sums)[OUTPUTS / 2])
{
    int lane = threadIdx.x % 32;
    int32_t row = (int32_t)blockIdx.x * TOKENS + threadIdx.x / 32 % 4 * 16 + lane / 4;
    const float *x0 = a.sums + min(row, a.n_tokens - 1) * group_sums_pitch(a.hidden) + part;
    const float *x1 = a.sums + min(row + 8, a.n_tokens - 1) * group_sums_pitch(a.hidden) + part;
    float d[OUTPUTS / 2];
#pragma unroll
    for (int i = 0; i < OUTPUTS / 2; i++) sums[i] = d[i] = 0;
    router_copies<OUTPUTS> copies = router_begin_copies(a, s, part);
    int32_t n_groups = copies.groups_left;
    router_copy(copies, 0, 0);
    router_copy(copies, 1, 1);
    copy_wait<1>();
    convert_codes(s, 0);
    int stage = 0;
    for (int32_t i = 0, turn = 0; i < n_groups; i++, turn ^= 1) {
        fence_async_proxy();
        asm volatile("bar.sync %0, 128;" ::"r"(part + 1) : "memory");
        start_group<OUTPUTS>(d, shared_address(s->inputs[stage]), shared_address(s->weights[turn]));
        float x[2] = {x0[i * PARTS], x1[i * PARTS]};
        stage = stage == INPUT_STAGES - 1 ? 0 : stage + 1;
        router_copy(copies, stage == INPUT_STAGES - 1 ? 0 : stage + 1, turn);
        copy_wait<1>();
        if (i + 1 < n_groups) convert_codes(s, turn ^ 1); /* beside the product */
        wgmma_wait<0>();
        wgmma_results(d);
#pragma unroll
        for (int c = 0; c < OUTPUTS / 8; c++) {
            float4 w = *(const float4 *)&s->scales[turn][c * 8 + lane % 4 * 2];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float *sum = &sums[4 * c + 2 * h];
                sum[0] = fmaf(w.y, x[h], fmaf(w.x, d[4 * c + 2 * h], sum[0]));
                sum[1] = fmaf(w.w, x[h], fmaf(w.z, d[4 * c + 2 * h + 1], sum[1]));
            }
        }
    }
}
#endif

template <int OUTPUTS>
static __global__ void __launch_bounds__(THREADS, 1) router_hopper_kernel(prefill_router_args a)
{
    wait_for_stream();
#if HAS_WGMMA
    extern __shared__ char shared[];
    uint32_t base = shared_address(shared), aligned = (base + 1023) / 1024 * 1024;
    router_part<OUTPUTS> *parts = (router_part<OUTPUTS> *)(shared + (aligned - base));
    int part = threadIdx.x / PART_THREADS, t = threadIdx.x % PART_THREADS;
    float sums[OUTPUTS / 2], *odd = (float *)parts;
    multiply_groups(a, &parts[part], part, sums);
    __syncthreads();
    if (part == 1) {
#pragma unroll
        for (int i = 0; i < OUTPUTS / 2; i++) odd[i * PART_THREADS + t] = sums[i];
    }
    __syncthreads();
    if (part == 1) return;
    int32_t row = (int32_t)blockIdx.x * TOKENS + t / 32 * 16 + t % 32 / 4;
    int32_t first = (int32_t)blockIdx.y * OUTPUTS + t % 4 * 2;
#pragma unroll
    for (int i = 0; i < OUTPUTS / 2; i++) {
        int32_t token = row + i / 2 % 2 * 8, output = first + i / 4 * 8 + i % 2;
        if (token < a.n_tokens && output < a.n_outputs)
            a.logits[(int64_t)token * a.n_outputs + output] = sums[i] + odd[i * PART_THREADS + t];
    }
#else
    (void)a;
#endif
}

/* ---- launches ---- */

template <int OUTPUTS> static constexpr size_t shared_bytes()
{
    return 1024 + PARTS * sizeof(router_part<OUTPUTS>);
}

template <int OUTPUTS>
static cudaError_t launch_outputs(const prefill_router_args &a, cudaStream_t stream)
{
    dim3 grid((unsigned)ceil_div(a.n_tokens, TOKENS), (unsigned)ceil_div(a.n_outputs, OUTPUTS));
    return launch(router_hopper_kernel<OUTPUTS>, grid, THREADS, shared_bytes<OUTPUTS>(), stream, a);
}

/* The smallest tiles that are no more than multiprocessors: larger ones read the inputs less often.
 */
cudaError_t prefill_router_hopper(const prefill_device *device, const prefill_router_args *args,
                                  cudaStream_t stream)
{
    int32_t tiles = ceil_div(args->n_tokens, TOKENS);
    if (tiles * ceil_div(args->n_outputs, 32) <= device->n_sms)
        return launch_outputs<32>(*args, stream);
    if (tiles * ceil_div(args->n_outputs, 72) <= device->n_sms)
        return launch_outputs<72>(*args, stream);
    return launch_outputs<136>(*args, stream);
}

template <int OUTPUTS> static cudaError_t init_outputs()
{
    return cudaFuncSetAttribute((const void *)router_hopper_kernel<OUTPUTS>,
                                cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)shared_bytes<OUTPUTS>());
}

cudaError_t prefill_router_hopper_init()
{
    cudaError_t e = init_outputs<32>();
    if (!e) e = init_outputs<72>();
    if (!e) e = init_outputs<136>();
    return e;
}
