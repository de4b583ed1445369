/* Times of the prefill kernels at the 35B model's shapes, with what each moves and computes. */
#include "cuda/prefill_kernels.cuh"

#include <algorithm>
#include <functional>
#include <stdio.h>
#include <stdlib.h>
#include <vector>

static void check_cuda(cudaError_t e, const char *what, int line)
{
    if (!e) return;
    printf("FAIL %s at line %d: %s\n", what, line, cudaGetErrorString(e));
    exit(1);
}
#define CU(call) check_cuda(call, #call, __LINE__)

enum {
    HIDDEN = 2048,
    EXPERTS = 256,
    SLOTS = 8,
    WIDTH = 512,
    GDN_ROWS = 12352,
    ATTENTION_ROWS = 9216,
    CHANNELS = 8192,
    VALUES = 4096, /* of them; in chunks the recurrence convolves the others */
    MAX_TOKENS = 8192,
    COPIES = 8, /* of dense matrices, so that they come from memory and not from L2 */
};

static __device__ uint32_t mix(uint32_t z)
{
    z *= 2654435761u;
    z ^= z >> 15;
    z *= 2246822519u;
    return z ^ z >> 13;
}
static __global__ void fill_blocks(uint32_t *words, size_t n)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        /* Scale 2^-7 and so on, bias -8 times it. */
        words[i] = i % (W4_BLOCK_BYTES / 4) < W4_CODE_BYTES / 4 ? mix((uint32_t)i) : 0xbd803c00u;
}
static __global__ void fill_floats(float *x, size_t n, float scale)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        x[i] = scale * ((float)(mix((uint32_t)i) & 0xffff) / 32768.0f - 1.0f);
}
static __global__ void fill_halves(__half *x, size_t n)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        x[i] = __float2half((float)(mix((uint32_t)i) & 0xffff) / 32768.0f - 1.0f);
}

static float *floats(size_t n, float scale)
{
    float *p;
    CU(cudaMalloc(&p, n * sizeof(float)));
    fill_floats<<<1024, 256>>>(p, n, scale);
    return p;
}
static __half *halves(size_t n)
{
    __half *p;
    CU(cudaMalloc(&p, n * sizeof(__half)));
    fill_halves<<<1024, 256>>>(p, n);
    return p;
}
struct weights {
    w4_matrix w;
    float *factors;
    size_t bytes;
};
static weights matrices(int32_t n, int32_t rows, int32_t cols)
{
    weights m;
    m.bytes = w4_bytes(rows, cols);
    unsigned char *p;
    CU(cudaMalloc(&p, n * m.bytes));
    fill_blocks<<<1024, 256>>>((uint32_t *)p, n * m.bytes / 4);
    m.w = w4_matrix{p, rows, cols};
    CU(cudaMalloc(&m.factors, sizeof(float) * n * w4_strips(rows)));
    w4_matrix tall = {p, n * w4_strips(rows) * W4_STRIP_ROWS, cols};
    CU(prefill_w4_factors(&tall, m.factors, 0));
    return m;
}

/* Median of some runs, in microseconds. */
static double time_of(const std::function<void(int)> &run, int repeats)
{
    std::vector<cudaEvent_t> events(repeats + 1);
    for (cudaEvent_t &e : events) CU(cudaEventCreate(&e));
    run(0);
    run(1);
    CU(cudaEventRecord(events[0]));
    for (int i = 0; i < repeats; i++) {
        run(i);
        CU(cudaEventRecord(events[i + 1]));
    }
    CU(cudaDeviceSynchronize());
    CU(cudaGetLastError());
    std::vector<float> times(repeats);
    for (int i = 0; i < repeats; i++) CU(cudaEventElapsedTime(&times[i], events[i], events[i + 1]));
    for (cudaEvent_t &e : events) cudaEventDestroy(e);
    std::sort(times.begin(), times.end());
    return times[repeats / 2] * 1e3;
}

static double total_us; /* of a whole prompt at the shape at hand */

/* layers: how many of the model's layers run it. */
static void line(const char *name, int layers, double us, double flops, double bytes)
{
    total_us += layers * us;
    printf("  %-34s %9.1f us x %2d  %7.1f TFLOP/s %7.0f GB/s\n", name, us, layers, flops / us / 1e6,
           bytes / us / 1e3);
}

void bench_prefill(const prefill_device *device, bool whole)
{
    weights gdn_in = matrices(COPIES, GDN_ROWS, HIDDEN), out = matrices(COPIES, HIDDEN, 4096);
    weights attention_in = matrices(COPIES, ATTENTION_ROWS, HIDDEN);
    weights inner = matrices(EXPERTS + 1, 2 * WIDTH, HIDDEN);
    weights outer = matrices(EXPERTS + 1, HIDDEN, WIDTH);
    size_t rows = (size_t)MAX_TOKENS * (SLOTS + 1);
    __half *split = halves((size_t)MAX_TOKENS * split_halves(4096)),
           *h = halves(rows * split_halves(WIDTH));
    float *projected = floats((size_t)MAX_TOKENS * GDN_ROWS, 1),
          *x = floats((size_t)MAX_TOKENS * HIDDEN, 1);
    float *u32 = floats((size_t)MAX_TOKENS * HIDDEN, 1), *y = floats(rows * HIDDEN, 1);
    float *group_sums = floats((size_t)MAX_TOKENS * group_sums_pitch(HIDDEN), 1);
    float *factor = floats(HIDDEN, 1), *logits = floats((size_t)MAX_TOKENS * (EXPERTS + 1), 1);
    float *chosen = floats((size_t)MAX_TOKENS * SLOTS, 1), *shared = floats(MAX_TOKENS, 1);
    float *f = floats((size_t)MAX_TOKENS * CHANNELS, 0.1f),
          *o = floats((size_t)MAX_TOKENS * 4096, 1);
    float *gates = floats((size_t)MAX_TOKENS * 64, 1), *state = floats(2 * 32 * 128 * 128, 0.1f);
    float *window = floats(8 * CHANNELS, 1);
    int32_t *experts, *blocks;
    unsigned char *codes, *memory;
    CU(cudaMalloc(&experts, sizeof(int32_t) * MAX_TOKENS * SLOTS));
    CU(cudaMalloc(&codes, (EXPERTS + 1) * HIDDEN));
    CU(cudaMemset(codes, 0x5a, (EXPERTS + 1) * HIDDEN));
    uint32_t *pairs = (uint32_t *)floats((EXPERTS + 1) * HIDDEN / 64, 1);
    CU(cudaMalloc(&memory, (size_t)prefill_moe_plan_bytes(MAX_TOKENS, EXPERTS, SLOTS)));
    moe_plan plan;
    prefill_moe_plan_init(&plan, memory, MAX_TOKENS, EXPERTS, SLOTS, true);
    void *workspace;
    CU(cudaMalloc(&workspace, (size_t)prefill_gdn_workspace_bytes(16, 32)));
    unsigned char *rounded;
    CU(cudaMalloc(&rounded, std::max(prefill_rounded_bytes(device, MAX_TOKENS, 4096),
                                     prefill_rounded_bytes(device, (int64_t)rows, WIDTH))));
    const int32_t n_blocks = 131072 / 256;
    std::vector<int32_t> table(n_blocks);
    for (int32_t i = 0; i < n_blocks; i++) table[i] = (i * 37 + 11) % n_blocks;
    CU(cudaMalloc(&blocks, sizeof(int32_t) * n_blocks));
    CU(cudaMemcpy(blocks, table.data(), sizeof(int32_t) * n_blocks, cudaMemcpyHostToDevice));
    __half *kv = halves((size_t)n_blocks * 4 * 65536);

    std::vector<int32_t> lengths = {512, 4096};
    if (whole) lengths = {512, 1024, 2048, 4096, 8192};
    for (int32_t n : lengths) {
        printf("%d tokens\n", n);
        total_us = 0;
        double t = n;
        prefill_gemm_args a = {};
        auto dense = [&](const char *name, const weights &m, prefill_gemm_output output, void *to,
                         int64_t ldy, int layers) {
            a = prefill_gemm_args{};
            a.x = split, a.ldx = split_halves(m.w.cols), a.n_rows = a.n_inputs = n;
            a.rounded = rounded, a.output = output, a.y = to, a.ldy = ldy;
            double us = time_of(
                [&](int i) {
                    a.w = m.w;
                    a.w.blocks += i % COPIES * m.bytes;
                    a.factors = m.factors;
                    CU(prefill_gemm(device, &a, 0));
                },
                16);
            line(name, layers, us, 2 * t * m.w.rows * m.w.cols,
                 (double)m.bytes + t * (4.0 * m.w.cols + 4.0 * m.w.rows));
        };
        dense("GDN projections 12352 x 2048", gdn_in, PREFILL_STORE_F32, projected, GDN_ROWS, 30);
        dense("attention projections 9216 x 2048", attention_in, PREFILL_STORE_F32, projected,
              ATTENTION_ROWS, 10);
        dense("output 2048 x 4096, added", out, PREFILL_ADD_F32, x, HIDDEN, 40);
        CU(cudaMemset(x, 0, sizeof(float) * MAX_TOKENS * HIDDEN));
        line(
            "norm", 40,
            time_of(
                [&](int) {
                    CU(prefill_rmsnorm(x, factor, n, HIDDEN, 1e-6f, split, group_sums, NULL, 0, 0));
                },
                16),
            4 * t * HIDDEN, 8 * t * HIDDEN);
        line("router", 40,
             time_of(
                 [&](int) {
                     CU(prefill_router_logits(device, split, group_sums, codes, pairs, n,
                                              EXPERTS + 1, HIDDEN, logits, 0));
                 },
                 16),
             2 * t * (EXPERTS + 1) * HIDDEN, 4 * t * HIDDEN);
        fill_floats<<<1024, 256>>>(logits, (size_t)MAX_TOKENS * (EXPERTS + 1), 3);
        line("choice", 40,
             time_of(
                 [&](int) {
                     CU(prefill_router_top_k(logits, EXPERTS + 1, n, EXPERTS, SLOTS, experts,
                                             chosen, shared, 0));
                 },
                 16),
             0, 4 * t * EXPERTS);
        line("plan", 40, time_of([&](int) { CU(prefill_moe_plan(&plan, experts, n, 0)); }, 16), 0,
             12 * t * SLOTS);
        auto grouped = [&](const char *name, const weights &m, bool gather,
                           prefill_gemm_output output, void *to, int64_t ldy, double out_bytes) {
            a = prefill_gemm_args{};
            a.w = m.w, a.factors = m.factors, a.expert_bytes = m.bytes;
            a.shared_blocks = m.w.blocks + EXPERTS * m.bytes;
            a.shared_factors = m.factors + (size_t)EXPERTS * w4_strips(m.w.rows);
            a.x = gather ? split : h, a.ldx = split_halves(m.w.cols), a.plan = &plan,
            a.gather = gather, a.n_inputs = gather ? n : 9 * n, a.rounded = rounded;
            a.output = output, a.y = to, a.ldy = ldy;
            double us = time_of([&](int) { CU(prefill_gemm(device, &a, 0)); }, 10);
            line(name, 40, us, 2 * t * 9 * m.w.rows * m.w.cols,
                 (double)m.bytes * 257 + t * 9 * (4.0 * m.w.cols + out_bytes));
        };
        fill_halves<<<1024, 256>>>(split, (size_t)MAX_TOKENS * split_halves(4096));
        grouped("experts inner 1024 x 2048", inner, true, PREFILL_SWIGLU_SPLIT, h,
                split_halves(WIDTH), 4 * WIDTH);
        fill_halves<<<1024, 256>>>(h, rows * split_halves(WIDTH));
        grouped("experts outer 2048 x 512", outer, false, PREFILL_STORE_F32, y, HIDDEN, 4 * HIDDEN);
        line("sum over experts, norm", 40,
             time_of(
                 [&](int) {
                     CU(prefill_moe_combine(&plan, n, HIDDEN, chosen, shared, y, NULL, x, factor,
                                            1e-6f, split, u32, NULL, 0, 0));
                 },
                 16),
             2 * t * 9 * HIDDEN, t * HIDDEN * (9 * 4 + 16));
        fill_floats<<<1024, 256>>>(projected, (size_t)MAX_TOKENS * GDN_ROWS, 1);
        prefill_gdn_args g = {};
        g.n_tokens = n, g.n_key_heads = 16, g.n_value_heads = 32, g.first = 4096;
        g.projected = projected, g.projected_stride = GDN_ROWS;
        g.taps = f, g.neg_exp_a = gates, g.dt_bias = gates;
        g.norm_factor = factor, g.eps = 1e-6f;
        g.window_in = window, g.window_out = window + 4 * CHANNELS;
        g.state_in = state, g.state_out = state + 32 * 128 * 128;
        g.f = f, g.decay = gates, g.beta = gates + (size_t)MAX_TOKENS * 32, g.o = o,
        g.mixed = split;
        g.workspace = workspace;
        std::vector<float> na(32, -1.0f);
        float *neg = floats(32, 1), *taps = floats(4 * CHANNELS, 1);
        CU(cudaMemcpy(neg, na.data(), 128, cudaMemcpyHostToDevice));
        g.neg_exp_a = neg, g.dt_bias = factor, g.taps = taps;
        line("convolution and gates", 30,
             time_of([&](int) { CU(prefill_gdn_convolve(device, &g, 0)); }, 16), 0,
             t * (prefill_gdn_grid(device) > 1 ? VALUES : CHANNELS) * 8);
        line("recurrence", 30, time_of([&](int) { CU(prefill_gdn_scan(device, &g, 0)); }, 10),
             t * 32 * 128 * 128 * 7, t * (CHANNELS + 4096) * 4);
        line("gated norm", 30, time_of([&](int) { CU(prefill_gdn_gated_norm(&g, 0)); }, 16), 0,
             t * 4096 * 12);
        prefill_attention_args at = {};
        at.n_tokens = n, at.n_query_heads = 16, at.n_kv_heads = 2;
        at.projected = projected, at.projected_stride = ATTENTION_ROWS;
        at.q_norm = factor, at.k_norm = factor, at.eps = 1e-6f;
        at.cosines = u32, at.sines = u32;
        at.kv = kv_layer{kv, blocks, 4 * 65536, 65536, 2 * 65536};
        at.q = h, at.mixed = split;
        line("attention norms, cache", 10,
             time_of([&](int) { CU(prefill_attention_prepare(&at, 0)); }, 16), 0,
             t * (ATTENTION_ROWS * 4 - 4096 * 4 + 5120 * 2));
        auto attention = [&](int64_t first, int layers) {
            char name[64];
            snprintf(name, sizeof name, "attention from token %d", (int)first);
            at.first = first;
            line(name, layers, time_of([&](int) { CU(prefill_attention(device, &at, 0)); }, 5),
                 4.0 * 256 * 16 * t * ((double)first + t / 2), t * 4096 * 8);
        };
        attention(0, 10);
        printf("  all layers: %.2f ms, %.0f tok/s\n", total_us / 1e3, t / total_us * 1e6);
        if (n >= 4096) {
            attention(32768 - n, 0);
            attention(131072 - n, 0);
        }
        cudaFree(neg);
        cudaFree(taps);
    }
}
