/* The prefill kernels of a GPU against double arithmetic on the CPU, on random and extreme inputs,
 * both paths, and the promise that a token's bits do not depend on its chunk. With --small fewer
 * and smaller ones, for the tools of compute-sanitizer; with --bench the times of the 35B model's
 * shapes. Stands alone: prints a line per check, exits with 1 if one failed, 77 (and SKIP) without
 * a GPU. */
#include "cuda/prefill_kernels.cuh"

#include <algorithm>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

static int n_failed;

static void check_cuda(cudaError_t e, const char *what, int line)
{
    if (!e) return;
    printf("FAIL %s at line %d: %s\n", what, line, cudaGetErrorString(e));
    exit(1);
}
#define CU(call) check_cuda(call, #call, __LINE__)

static void report(const char *name, bool ok, double error, double bound)
{
    printf("%s %-56s error %.2e (bound %.0e)\n", ok ? "ok  " : "FAIL", name, error, bound);
    n_failed += !ok;
}

/* ---- random numbers and device arrays ---- */

static uint64_t random_state = 1;
static uint32_t random_bits()
{
    random_state += 0x9e3779b97f4a7c15u;
    uint64_t z = random_state;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) >> 32);
}
static double uniform() /* (-1, 1) */
{
    return (random_bits() + 0.5) / 2147483648.0 - 1;
}
static double normal()
{
    return sqrt(-2 * log((uniform() + 1) / 2)) * cos(3.14159265358979 * uniform());
}

template <typename T> struct device_array {
    T *data;
    size_t n;
    explicit device_array(size_t count) : n(count)
    {
        CU(cudaMalloc(&data, std::max<size_t>(1, n) * sizeof(T)));
        CU(cudaMemset(data, 0xff, n * sizeof(T))); /* NaN: what is not written shows */
    }
    explicit device_array(const std::vector<T> &from) : device_array(from.size()) { put(from); }
    device_array(const device_array &) = delete;
    ~device_array() { cudaFree(data); }
    void put(const std::vector<T> &from)
    {
        CU(cudaMemcpy(data, from.data(), n * sizeof(T), cudaMemcpyHostToDevice));
    }
    std::vector<T> get() const
    {
        std::vector<T> v(n);
        CU(cudaDeviceSynchronize());
        CU(cudaMemcpy(v.data(), data, n * sizeof(T), cudaMemcpyDeviceToHost));
        return v;
    }
};

static uint16_t to_bf16(float v)
{
    uint32_t u;
    memcpy(&u, &v, 4);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
static float from_bf16(uint16_t v)
{
    uint32_t u = (uint32_t)v << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static double half_value(__half h)
{
    return (double)__half2float(h);
}

static std::vector<float> random_floats(size_t n, double scale)
{
    std::vector<float> v(n);
    for (float &x : v) x = (float)(normal() * scale);
    return v;
}
/* Rows of split halves; what one of them stands for. */
static std::vector<__half> random_split(size_t n, double scale)
{
    std::vector<__half> v(split_halves(n));
    for (size_t i = 0; i < n; i++) {
        float x = (float)std::max(-65504.0, std::min(65504.0, normal() * scale));
        size_t at = i / SPLIT_GROUP * 2 * SPLIT_GROUP + i % SPLIT_GROUP;
        v[at] = __float2half(x);
        v[at + SPLIT_GROUP] = __float2half(x - __half2float(v[at]));
    }
    return v;
}
/* Number i of rows of split halves. */
static double split_value(const __half *v, size_t i)
{
    size_t at = i / SPLIT_GROUP * 2 * SPLIT_GROUP + i % SPLIT_GROUP;
    return half_value(v[at]) + half_value(v[at + SPLIT_GROUP]);
}

/* |a - b| / |b| over all elements; infinite if any of a is not a number. */
struct difference {
    double error = 0, size = 0;
    void add(double a, double b)
    {
        error += a == a ? (a - b) * (a - b) : INFINITY;
        size += b * b;
    }
    double relative() const { return error == 0 ? 0 : sqrt(error / std::max(size, 1e-300)); }
};

static void report_difference(const char *name, const difference &d, double bound)
{
    report(name, d.relative() <= bound, d.relative(), bound);
}

/* ---- packed matrices ---- */

struct host_matrix {
    int32_t n, rows, cols;
    std::vector<uint8_t> codes;           // [n][rows][cols]
    std::vector<uint16_t> scales, biases; // [n][rows][cols / 64]

    host_matrix(int32_t count, int32_t r, int32_t c, double scale)
        : n(count), rows(r), cols(c), codes((size_t)count * r * c),
          scales((size_t)count * r * c / 64), biases((size_t)count * r * c / 64)
    {
        for (uint8_t &q : codes) q = random_bits() & 15;
        for (size_t i = 0; i < scales.size(); i++) {
            double s = scale * (1 + 0.5 * uniform()) * (random_bits() & 1 ? 1 : -1);
            scales[i] = to_bf16((float)s);
            biases[i] = to_bf16((float)(-s * (7.5 + uniform())));
        }
    }
    double at(int32_t m, int32_t r, int32_t c) const
    {
        size_t i = ((size_t)m * rows + r) * cols + c;
        return (double)from_bf16(scales[i / 64]) * codes[i] + (double)from_bf16(biases[i / 64]);
    }
    /* cuda/layout.h, written from its description. Matrix m's rows in order. */
    std::vector<unsigned char> packed() const
    {
        size_t bytes = w4_bytes(rows, cols), groups = (size_t)cols / 64;
        std::vector<unsigned char> out(n * bytes);
        for (int32_t m = 0; m < n; m++)
            for (int32_t r = 0; r < rows; r++)
                for (int32_t c = 0; c < cols; c++) {
                    size_t i = ((size_t)m * rows + r) * cols + c;
                    unsigned char *block =
                        &out[m * bytes + ((size_t)(r / 16) * groups + c / 64) * W4_BLOCK_BYTES];
                    int k = c % 16, lane = r % 8 * 4 + k % 8 / 2;
                    int nibble = k % 2 * 4 + k / 8 * 2 + r % 16 / 8;
                    block[lane * 16 + c % 64 / 16 * 4 + nibble / 2] |=
                        (unsigned char)(codes[i] << nibble % 2 * 4);
                    uint32_t pair = (uint32_t)scales[i / 64] | (uint32_t)biases[i / 64] << 16;
                    memcpy(block + W4_CODE_BYTES + r % 16 * 4, &pair, 4);
                }
        return out;
    }
};

struct device_matrix {
    device_array<unsigned char> blocks;
    device_array<float> factors;
    w4_matrix w;
    explicit device_matrix(const host_matrix &m)
        : blocks(m.packed()), factors((size_t)m.n * w4_strips(m.rows))
    {
        w = w4_matrix{blocks.data, m.rows, m.cols};
        w4_matrix tall = {blocks.data, m.n * w4_strips(m.rows) * W4_STRIP_ROWS, m.cols};
        CU(prefill_w4_factors(&tall, factors.data, 0));
    }
};

static double silu(double x)
{
    return x / (1 + exp(-x));
}

/* Rows of the product in which to look at a few. */
static void check_dense(const prefill_device *device, const char *name, int32_t rows, int32_t cols,
                        int32_t n, double w_scale, double x_scale, double bound,
                        double swiglu_bound)
{
    host_matrix m(1, rows, cols, w_scale);
    device_matrix d(m);
    std::vector<__half> x = random_split((size_t)n * cols, x_scale);
    if (x_scale > 1000)
        for (size_t i = 0; i < x.size(); i += 97) x[i] = __float2half(i % 2 ? 65504 : -65504);
    device_array<__half> dx(x);
    device_array<unsigned char> rounded(prefill_rounded_bytes(device, n, cols));
    int32_t ldy = (rows + 3) / 4 * 4; /* floats, or as many halves of a split row of rows / 2 */
    std::vector<float> old = random_floats((size_t)n * ldy, w_scale * x_scale * sqrt(cols));
    std::vector<int32_t> tokens, outputs;
    for (int i = 0; i < 24; i++) tokens.push_back((int32_t)(random_bits() % (uint32_t)n));
    for (int i = 0; i < 200; i++) outputs.push_back((int32_t)(random_bits() % (uint32_t)rows));
    tokens.push_back(n - 1);
    outputs.push_back(rows - 1);
    for (int o = 0; o < 3; o++) {
        prefill_gemm_output output = (prefill_gemm_output)o;
        /* Half ends at 6e-8, and rows of split halves are multiples of 64 long. */
        if (output == PREFILL_SWIGLU_SPLIT && (rows % 128 || w_scale < 1e-6)) continue;
        device_array<float> y((size_t)n * ldy);
        if (output == PREFILL_ADD_F32) y.put(old);
        prefill_gemm_args a = {};
        a.w = d.w;
        a.factors = d.factors.data;
        a.x = dx.data;
        a.ldx = split_halves(cols);
        a.n_rows = a.n_inputs = n;
        a.rounded = rounded.data;
        a.output = output;
        a.y = y.data;
        a.ldy = ldy;
        CU(prefill_gemm(device, &a, 0));
        std::vector<float> got = y.get();
        difference e;
        for (int32_t t : tokens)
            for (int32_t r : outputs) {
                double v = 0, v8 = 0;
                int32_t r0 = r / 16 * 16 + r % 8;
                if (output != PREFILL_SWIGLU_SPLIT) r0 = r;
                for (int32_t c = 0; c < cols; c++) {
                    double in = split_value(x.data(), (size_t)t * cols + c);
                    v += m.at(0, r0, c) * in;
                    if (output == PREFILL_SWIGLU_SPLIT) v8 += m.at(0, r0 + 8, c) * in;
                }
                if (output == PREFILL_SWIGLU_SPLIT) {
                    double h = std::min(65504.0, std::max(-65504.0, silu(v) * v8));
                    const __half *row = (const __half *)got.data() + (size_t)t * ldy;
                    e.add(split_value(row, r0 / 16 * 8 + r0 % 8), h);
                } else {
                    if (output == PREFILL_ADD_F32) v += (double)old[(size_t)t * ldy + r];
                    e.add((double)got[(size_t)t * ldy + r], v);
                }
            }
        static const char *const kinds[] = {"store", "add", "swiglu"};
        char line[128];
        snprintf(line, sizeof line, "%s %d x %d, %d rows, %s", name, rows, cols, n, kinds[o]);
        report_difference(line, e, o == 2 ? swiglu_bound : bound);
    }
}

/* A token's outputs must be the same bits whatever the other rows. */
static void check_row_counts(const prefill_device *device)
{
    const int32_t rows = 1544, cols = 512, n = 300;
    host_matrix m(1, rows, cols, 0.01);
    device_matrix d(m);
    device_array<__half> x(random_split((size_t)n * cols, 1));
    device_array<float> whole((size_t)n * rows), part((size_t)n * rows);
    device_array<unsigned char> rounded(prefill_rounded_bytes(device, n, cols));
    prefill_gemm_args a = {};
    a.w = d.w, a.factors = d.factors.data, a.ldx = split_halves(cols), a.ldy = rows;
    a.rounded = rounded.data;
    a.x = x.data, a.n_rows = a.n_inputs = n, a.y = whole.data, a.output = PREFILL_STORE_F32;
    CU(prefill_gemm(device, &a, 0));
    std::vector<float> want = whole.get();
    int bad = 0;
    for (int32_t count : {1, 7, 24, 25, 40, 41, 65, 73, 97, 128, 129, 255}) {
        int32_t first = n - count;
        a.x = x.data + (size_t)first * split_halves(cols);
        a.n_rows = a.n_inputs = count;
        a.y = part.data;
        CU(prefill_gemm(device, &a, 0));
        std::vector<float> got = part.get();
        bad += memcmp(got.data(), &want[(size_t)first * rows], (size_t)count * rows * 4) != 0;
    }
    report("product: same bits for any number of rows", bad == 0, bad, 0);
}

/* ---- MoE ---- */

static void check_moe(const prefill_device *device, int32_t n, int32_t hidden, int32_t width,
                      int32_t n_experts, int32_t k, bool skewed)
{
    host_matrix inner(n_experts + 1, 2 * width, hidden, 0.3 / sqrt(hidden));
    host_matrix outer(n_experts + 1, hidden, width, 0.3 / sqrt(width));
    device_matrix d_inner(inner), d_outer(outer);
    std::vector<float> logits = random_floats((size_t)n * (n_experts + 1), 1);
    for (int32_t t = 0; skewed && t < n; t++) logits[(size_t)t * (n_experts + 1) + 3] += 9;
    device_array<float> d_logits(logits);
    device_array<int32_t> experts((size_t)n * k);
    device_array<float> weights((size_t)n * k), scale((size_t)n);
    CU(prefill_router_top_k(d_logits.data, n_experts + 1, n, n_experts, k, experts.data,
                            weights.data, scale.data, 0));
    device_array<unsigned char> memory((size_t)prefill_moe_plan_bytes(n + 5, n_experts, k));
    moe_plan plan;
    prefill_moe_plan_init(&plan, memory.data, n + 5, n_experts, k, true);
    CU(prefill_moe_plan(&plan, experts.data, n, 0));

    std::vector<__half> u = random_split((size_t)n * hidden, 1);
    device_array<__half> du(u), h((size_t)n * (k + 1) * split_halves(width));
    device_array<float> y((size_t)n * (k + 1) * hidden), u32((size_t)n * hidden);
    device_array<__half> split((size_t)n * split_halves(hidden));
    std::vector<float> x0 = random_floats((size_t)n * hidden, 1), factor(hidden, 1.25f);
    device_array<float> x(x0), d_factor(factor);
    size_t rounded_bytes = std::max(prefill_rounded_bytes(device, n, hidden),
                                    prefill_rounded_bytes(device, (int64_t)n * (k + 1), width));
    device_array<unsigned char> rounded(rounded_bytes);
    prefill_gemm_args a = {};
    a.rounded = rounded.data;
    a.w = d_inner.w;
    a.factors = d_inner.factors.data;
    a.expert_bytes = w4_bytes(2 * width, hidden);
    a.shared_blocks = d_inner.blocks.data + n_experts * a.expert_bytes;
    a.shared_factors = a.factors + (size_t)n_experts * w4_strips(2 * width);
    a.x = du.data, a.ldx = split_halves(hidden), a.plan = &plan, a.gather = true, a.n_inputs = n;
    a.output = PREFILL_SWIGLU_SPLIT, a.y = h.data, a.ldy = split_halves(width);
    CU(prefill_gemm(device, &a, 0));
    a.w = d_outer.w;
    a.factors = d_outer.factors.data;
    a.expert_bytes = w4_bytes(hidden, width);
    a.shared_blocks = d_outer.blocks.data + n_experts * a.expert_bytes;
    a.shared_factors = a.factors + (size_t)n_experts * w4_strips(hidden);
    a.x = h.data, a.ldx = split_halves(width), a.gather = false, a.n_inputs = n * (k + 1);
    a.output = PREFILL_STORE_F32, a.y = y.data, a.ldy = hidden;
    CU(prefill_gemm(device, &a, 0));
    CU(prefill_moe_combine(&plan, n, hidden, weights.data, scale.data, y.data, NULL, x.data,
                           d_factor.data, 1e-6f, split.data, u32.data, NULL, 0, 0));

    std::vector<int32_t> chosen = experts.get();
    std::vector<float> w = weights.get(), s = scale.get(), got = x.get(), normed = u32.get();
    std::vector<__half> normed_split = split.get();
    int wrong = 0;
    difference top, out, norm;
    for (int32_t t = 0; t < n; t++) {
        const float *row = &logits[(size_t)t * (n_experts + 1)];
        std::vector<int32_t> order(n_experts);
        for (int32_t e = 0; e < n_experts; e++) order[e] = e;
        std::stable_sort(order.begin(), order.end(),
                         [row](int32_t a, int32_t b) { return row[a] > row[b]; });
        double sum = 0;
        for (int32_t i = 0; i < k; i++) sum += exp((double)row[order[i]] - (double)row[order[0]]);
        for (int32_t i = 0; i < k; i++) {
            wrong += chosen[(size_t)t * k + i] != order[i];
            top.add((double)w[(size_t)t * k + i],
                    exp((double)row[order[i]] - (double)row[order[0]]) / sum);
        }
        top.add((double)s[t], 1 / (1 + exp(-(double)row[n_experts])));
    }
    std::vector<int32_t> some = {0, n - 1};
    for (int i = 0; i < 6; i++) some.push_back((int32_t)(random_bits() % (uint32_t)n));
    for (int32_t t : some) {
        std::vector<double> sum(x0.begin() + (size_t)t * hidden,
                                x0.begin() + (size_t)(t + 1) * hidden);
        for (int32_t i = 0; i <= k; i++) {
            int32_t e = i < k ? chosen[(size_t)t * k + i] : n_experts;
            double weight = i < k ? (double)w[(size_t)t * k + i] : (double)s[t];
            std::vector<double> f(width);
            for (int32_t j = 0; j < width; j++) {
                double g = 0, v = 0;
                for (int32_t c = 0; c < hidden; c++) {
                    double in = split_value(u.data(), (size_t)t * hidden + c);
                    g += inner.at(e, j / 8 * 16 + j % 8, c) * in;
                    v += inner.at(e, j / 8 * 16 + j % 8 + 8, c) * in;
                }
                f[j] = silu(g) * v;
            }
            for (int32_t r = 0; r < hidden; r++) {
                double v = 0;
                for (int32_t j = 0; j < width; j++) v += outer.at(e, r, j) * f[j];
                sum[r] += weight * v;
            }
        }
        double square = 0;
        for (int32_t r = 0; r < hidden; r++) square += sum[r] * sum[r];
        for (int32_t r = 0; r < hidden; r++) {
            size_t i = (size_t)t * hidden + r;
            out.add((double)got[i] - (double)x0[i], sum[r] - (double)x0[i]);
            norm.add((double)normed[i], sum[r] / sqrt(square / hidden + 1e-6) * 1.25);
            norm.add(split_value(normed_split.data(), i),
                     sum[r] / sqrt(square / hidden + 1e-6) * 1.25);
        }
    }
    char line[128];
    snprintf(line, sizeof line, "MoE %d tokens, %d experts%s: choice", n, n_experts,
             skewed ? ", skewed" : "");
    report(line, wrong == 0, wrong, 0);
    report_difference("  weights", top, 1e-6);
    report_difference("  experts and sum", out, 2e-4);
    report_difference("  norm behind it", norm, 2e-4);
}

static void check_plan_order(int32_t n, int32_t n_experts, int32_t k)
{
    std::vector<int32_t> experts((size_t)n * k);
    for (int32_t t = 0; t < n; t++)
        for (int32_t s = 0; s < k; s++)
            experts[(size_t)t * k + s] =
                (int32_t)((random_bits() % (uint32_t)n_experts) * (t % 3 ? 1 : 0) + s) % n_experts;
    device_array<int32_t> d(experts);
    device_array<unsigned char> memory((size_t)prefill_moe_plan_bytes(n, n_experts, k));
    moe_plan plan;
    prefill_moe_plan_init(&plan, memory.data, n, n_experts, k, true);
    CU(prefill_moe_plan(&plan, d.data, n, 0));
    std::vector<unsigned char> raw = memory.get();
    auto view = [&](const void *p) {
        return (const int32_t *)(raw.data() + ((const unsigned char *)p - memory.data));
    };
    const int32_t *row_of_slot = view(plan.row_of_slot), *token_of_row = view(plan.token_of_row);
    const moe_tile *tiles = (const moe_tile *)view(plan.tiles);
    const int32_t *ends = view(plan.class_ends);
    int32_t at = 0, bad = ends[0] != 0 || ends[MOE_CLASSES] > plan.max_tiles;
    std::vector<moe_tile> want[MOE_CLASSES];
    auto cut = [&](int32_t matrix, int32_t first, int32_t end) {
        for (int32_t rows; first < end; first += rows) {
            rows = std::min((int32_t)MOE_TILE_ROWS, end - first);
            if (end - first > 128 && end - first <= 144) rows = 72;
            int tile_class = 0;
            for (int32_t most : {96, 72, 64, 40, 24}) tile_class += rows <= most;
            want[tile_class].push_back(moe_tile{matrix, first, rows});
        }
    };
    for (int32_t e = 0; e < n_experts; e++) {
        int32_t first = at;
        for (int32_t i = 0; i < n * k; i++) {
            if (experts[i] != e) continue;
            bad += row_of_slot[i] != at || token_of_row[at] != i / k;
            at++;
        }
        cut(e, first, at);
    }
    cut(n_experts, n * k, n * k + n);
    for (int32_t t = 0; t < n; t++) bad += token_of_row[n * k + t] != t;
    for (int c = 0; c < MOE_CLASSES; c++) {
        bool same = ends[c + 1] - ends[c] == (int32_t)want[c].size();
        bad += !same || memcmp(tiles + ends[c], want[c].data(), want[c].size() * sizeof *tiles);
    }
    char line[128];
    snprintf(line, sizeof line, "plan of %d tokens, %d experts, %d each", n, n_experts, k);
    report(line, bad == 0, bad, 0);
}

static void check_router(const prefill_device *device, int32_t n, int32_t n_outputs, int32_t hidden)
{
    std::vector<uint8_t> codes((size_t)n_outputs * hidden);
    std::vector<uint32_t> pairs(codes.size() / 64);
    for (uint8_t &c : codes) c = (uint8_t)random_bits();
    for (uint32_t &p : pairs) {
        float s = (float)(0.001 * (1 + uniform() / 2));
        p = (uint32_t)to_bf16(s) | (uint32_t)to_bf16(-128 * s) << 16;
    }
    std::vector<__half> u = random_split((size_t)n * hidden, 1);
    size_t pitch = (size_t)group_sums_pitch(hidden);
    std::vector<float> sums(n * pitch);
    for (size_t i = 0; i < (size_t)n * hidden; i++)
        sums[i / hidden * pitch + i % hidden / 64] += (float)split_value(u.data(), i);
    device_array<__half> du(u);
    device_array<float> d_sums(sums), logits((size_t)n * n_outputs);
    device_array<uint8_t> dc(codes);
    device_array<uint32_t> dp(pairs);
    CU(prefill_router_logits(device, du.data, d_sums.data, dc.data, dp.data, n, n_outputs, hidden,
                             logits.data, 0));
    std::vector<float> got = logits.get();
    difference e;
    for (int32_t t = 0; t < n; t++)
        for (int32_t r = 0; r < n_outputs; r++) {
            double v = 0;
            for (int32_t c = 0; c < hidden; c++) {
                size_t i = (size_t)r * hidden + c;
                v += ((double)from_bf16((uint16_t)pairs[i / 64]) * codes[i] +
                      (double)from_bf16((uint16_t)(pairs[i / 64] >> 16))) *
                     split_value(u.data(), (size_t)t * hidden + c);
            }
            e.add((double)got[(size_t)t * n_outputs + r], v);
        }
    report_difference("router logits", e, 1e-6);
    int32_t last = std::min(n, 40);
    device_array<float> part((size_t)last * n_outputs);
    CU(prefill_router_logits(device, du.data + (n - last) * split_halves(hidden),
                             d_sums.data + (n - last) * pitch, dc.data, dp.data, last, n_outputs,
                             hidden, part.data, 0));
    std::vector<float> again = part.get();
    int bad = memcmp(again.data(), &got[(size_t)(n - last) * n_outputs],
                     again.size() * sizeof(float)) != 0;
    report("  same bits for any number of rows", bad == 0, bad, 0);
}

static void check_top_k_extremes()
{
    const int32_t n_experts = 300, k = 8, stride = 304;
    std::vector<float> logits((size_t)3 * stride, 1.0f); /* row 0: all equal */
    for (int32_t e = 0; e < n_experts; e++) {
        logits[(size_t)stride + e] = e % 2 ? NAN : -(float)e; /* half NaN */
        logits[(size_t)2 * stride + e] = NAN;
    }
    logits[(size_t)2 * stride + 7] = -INFINITY;
    device_array<float> d(logits), weights(3 * k), scale(3);
    device_array<int32_t> experts(3 * k);
    CU(prefill_router_top_k(d.data, stride, 3, n_experts, k, experts.data, weights.data, scale.data,
                            0));
    std::vector<int32_t> e = experts.get();
    int bad = 0;
    for (int32_t i = 0; i < k; i++) bad += e[i] != i || e[k + i] != 2 * i;
    bad += e[2 * k] != 7;
    for (int32_t i = 1; i < k; i++) bad += e[2 * k + i] != (i <= 7 ? i - 1 : i);
    report("choice with ties, NaN, infinity", bad == 0, bad, 0);
}

/* ---- norms ---- */

static void check_norm(int32_t n, int32_t hidden)
{
    std::vector<float> x = random_floats((size_t)n * hidden, 3), f = random_floats(hidden, 1);
    for (int32_t c = 0; c < hidden; c++) x[c] *= 1e-12f, x[hidden + c] *= 1e15f;
    x[2 * hidden + 5] = NAN;
    x[3 * hidden + hidden - 1] = INFINITY;
    size_t pitch = (size_t)group_sums_pitch(hidden);
    device_array<float> dx(x), df(f), sums(n * pitch);
    device_array<__half> split((size_t)n * split_halves(hidden));
    std::vector<int32_t> bad_layers((size_t)n, 1000);
    bad_layers[3] = 2;
    device_array<int32_t> bad(bad_layers);
    CU(prefill_rmsnorm(dx.data, df.data, n, hidden, 1e-6f, split.data, sums.data, bad.data, 5, 0));
    std::vector<float> got_sums = sums.get();
    std::vector<__half> got_split = split.get();
    std::vector<int32_t> got_bad = bad.get();
    difference e_sums, e_split;
    int wrong = got_bad[2] != 5 || got_bad[3] != 2;
    for (int32_t t = 0; t < n; t++) {
        if (t == 2 || t == 3) continue;
        wrong += got_bad[t] != 1000;
        double sum = 0;
        for (int32_t c = 0; c < hidden; c++) sum += pow((double)x[(size_t)t * hidden + c], 2);
        double group = 0;
        for (int32_t c = 0; c < hidden; c++) {
            size_t i = (size_t)t * hidden + c;
            double want = (double)x[i] / sqrt(sum / hidden + 1e-6) * (double)f[c];
            e_split.add(split_value(got_split.data(), i), want);
            group += want;
            if (c % 64 < 63) continue;
            e_sums.add((double)got_sums[t * pitch + c / 64], group);
            group = 0;
        }
    }
    report_difference("rmsnorm split", e_split, 1e-6);
    report_difference("  sums of groups", e_sums, 1e-6);
    report("rows that are not finite are named", wrong == 0, wrong, 0);
}

/* ---- attention ---- */

struct attention_case {
    int32_t n, q_heads, kv_heads, n_blocks;
    std::vector<float> projected, q_norm, k_norm;
    std::vector<int32_t> blocks;
    attention_case(int32_t tokens, int32_t hq, int32_t hkv, double scale)
        : n(tokens), q_heads(hq), kv_heads(hkv), n_blocks((tokens + 255) / 256),
          projected(random_floats((size_t)tokens * stride(), scale)), q_norm(random_floats(256, 1)),
          k_norm(random_floats(256, 1))
    {
        for (int32_t i = 0; i < n_blocks; i++) blocks.push_back(n_blocks - 1 - i);
    }
    int64_t stride() const { return (int64_t)(q_heads * 2 + kv_heads * 2) * 256; }
};

static double rope_frequency(int j)
{
    return pow(1e7, -2.0 * j / 64);
}

/* All tokens, in chunks of the given sizes; mixed of all. */
static std::vector<__half> run_attention(const prefill_device *device, const attention_case &c,
                                         const std::vector<int32_t> &chunks)
{
    device_array<float> projected(c.projected), qn(c.q_norm), kn(c.k_norm);
    device_array<float> cosines((size_t)c.n * 32), sines((size_t)c.n * 32);
    device_array<int32_t> blocks(c.blocks);
    std::vector<double> f;
    for (int j = 0; j < 32; j++) f.push_back(rope_frequency(j));
    device_array<double> frequencies(f);
    int64_t head = 256 * 256, block = head * c.kv_heads * 2;
    device_array<__half> kv((size_t)c.n_blocks * block), q((size_t)c.n * c.q_heads * 256);
    device_array<__half> mixed((size_t)c.n * c.q_heads * split_halves(256));
    int32_t first = 0;
    for (int32_t n : chunks) {
        CU(prefill_rope_angles(first, n, frequencies.data, cosines.data, sines.data, 0));
        prefill_attention_args a = {};
        a.n_tokens = n, a.n_query_heads = c.q_heads, a.n_kv_heads = c.kv_heads, a.first = first;
        a.projected = projected.data + first * c.stride();
        a.projected_stride = c.stride();
        a.q_norm = qn.data, a.k_norm = kn.data, a.eps = 1e-6f;
        a.cosines = cosines.data, a.sines = sines.data;
        a.kv.kv = kv.data, a.kv.blocks = blocks.data, a.kv.block_stride = block;
        a.kv.head_stride = head, a.kv.v_offset = head * c.kv_heads;
        a.q = q.data;
        a.mixed = mixed.data + (int64_t)first * c.q_heads * split_halves(256);
        CU(prefill_attention_prepare(&a, 0));
        CU(prefill_attention(device, &a, 0));
        first += n;
    }
    return mixed.get();
}

static std::vector<double> normed_row(const float *x, const std::vector<float> &factor, int64_t t)
{
    std::vector<double> v(256);
    double sum = 0;
    for (int d = 0; d < 256; d++) sum += (double)x[d] * (double)x[d];
    for (int d = 0; d < 256; d++) v[d] = (double)x[d] / sqrt(sum / 256 + 1e-6) * (double)factor[d];
    for (int j = 0; j < 32; j++) {
        double phi = (double)t * rope_frequency(j), a = v[j], b = v[j + 32];
        v[j] = a * cos(phi) - b * sin(phi);
        v[j + 32] = b * cos(phi) + a * sin(phi);
    }
    return v;
}

static void check_attention(const prefill_device *device, int32_t n, int32_t q_heads,
                            int32_t kv_heads, double scale, double bound)
{
    attention_case c(n, q_heads, kv_heads, scale);
    std::vector<__half> got = run_attention(device, c, {n});
    std::vector<int32_t> pieces;
    for (int32_t left = n, i = 0; left > 0; i++) {
        static const int32_t sizes[] = {1, 63, 100, 7, 200, 256, 3};
        pieces.push_back(std::min(left, sizes[i % 7]));
        left -= pieces.back();
    }
    std::vector<__half> again = run_attention(device, c, pieces);
    int group = q_heads / kv_heads;
    difference e;
    std::vector<int32_t> some = {0, n - 1};
    for (int i = 0; i < 8; i++) some.push_back((int32_t)(random_bits() % (uint32_t)n));
    for (int32_t m = 0; m < kv_heads; m++) {
        std::vector<std::vector<double>> keys;
        for (int32_t t = 0; t < n; t++)
            keys.push_back(
                normed_row(&c.projected[t * c.stride() + (q_heads * 2 + m) * 256], c.k_norm, t));
        for (int32_t t : some)
            for (int32_t h = m * group; h < (m + 1) * group; h++) {
                std::vector<double> q =
                    normed_row(&c.projected[t * c.stride() + h * 512], c.q_norm, t);
                std::vector<double> p(t + 1), out(256);
                double most = -INFINITY, sum = 0;
                for (int32_t i = 0; i <= t; i++) {
                    for (int d = 0; d < 256; d++) p[i] += q[d] * keys[i][d] / 16;
                    most = std::max(most, p[i]);
                }
                for (int32_t i = 0; i <= t; i++) sum += p[i] = exp(p[i] - most);
                for (int32_t i = 0; i <= t; i++)
                    for (int d = 0; d < 256; d++)
                        out[d] +=
                            p[i] / sum *
                            (double)c
                                .projected[i * c.stride() + (q_heads * 2 + kv_heads + m) * 256 + d];
                for (int d = 0; d < 256; d++) {
                    double gate = (double)c.projected[t * c.stride() + h * 512 + 256 + d];
                    e.add(split_value(got.data(), ((size_t)t * q_heads + h) * 256 + d),
                          out[d] / (1 + exp(-gate)));
                }
            }
    }
    char line[128];
    snprintf(line, sizeof line, "attention %d tokens, %d and %d heads, scale %g", n, q_heads,
             kv_heads, scale);
    report_difference(line, e, bound);
    bool same = memcmp(got.data(), again.data(), got.size() * 2) == 0;
    report("  same bits in chunks", same, !same, 0);
}

/* ---- Gated DeltaNet ---- */

struct gdn_case {
    int32_t n, k_heads, v_heads;
    std::vector<float> projected, taps, neg_exp_a, dt_bias, norm;
    int32_t channels() const { return (2 * k_heads + v_heads) * 128; }
    int64_t stride() const { return channels() + v_heads * 128 + 2 * v_heads; }
    gdn_case(int32_t tokens, int32_t hk, int32_t hv, double decay, double scale)
        : n(tokens), k_heads(hk), v_heads(hv),
          projected(random_floats((size_t)tokens * stride(), scale)),
          taps(random_floats((size_t)4 * channels(), 0.5)), neg_exp_a(hv),
          dt_bias(random_floats(hv, 1)), norm(random_floats(128, 1))
    {
        for (float &a : neg_exp_a) a = (float)(-decay * (1 + uniform() / 2));
    }
};

struct gdn_result {
    std::vector<__half> mixed;
    std::vector<float> o, state, window;
};

static gdn_result run_gdn(const prefill_device *device, const gdn_case &c,
                          const std::vector<int32_t> &chunks)
{
    int64_t values = (int64_t)c.v_heads * 128;
    device_array<float> projected(c.projected), taps(c.taps), na(c.neg_exp_a), dt(c.dt_bias);
    device_array<float> norm(c.norm), f((size_t)c.n * c.channels()), decay((size_t)c.n * c.v_heads);
    device_array<float> beta((size_t)c.n * c.v_heads), o((size_t)(c.n * values));
    device_array<float> state0((size_t)values * 128), state1((size_t)values * 128);
    device_array<float> window0((size_t)4 * c.channels()), window1((size_t)4 * c.channels());
    device_array<__half> mixed((size_t)(c.n * split_halves(values)));
    device_array<unsigned char> workspace(
        (size_t)prefill_gdn_workspace_bytes(c.k_heads, c.v_heads));
    int32_t first = 0, turn = 0;
    for (int32_t n : chunks) {
        prefill_gdn_args a = {};
        a.n_tokens = n, a.n_key_heads = c.k_heads, a.n_value_heads = c.v_heads, a.first = first;
        a.projected = projected.data + first * c.stride(), a.projected_stride = c.stride();
        a.taps = taps.data, a.neg_exp_a = na.data, a.dt_bias = dt.data;
        a.norm_factor = norm.data, a.eps = 1e-6f;
        a.window_in = (turn ? window1 : window0).data;
        a.window_out = (turn ? window0 : window1).data;
        a.state_in = (turn ? state1 : state0).data;
        a.state_out = (turn ? state0 : state1).data;
        a.f = f.data, a.decay = decay.data, a.beta = beta.data;
        a.o = o.data + first * values;
        a.mixed = mixed.data + first * split_halves(values);
        a.workspace = workspace.data;
        CU(prefill_gdn_convolve(device, &a, 0));
        CU(prefill_gdn_scan(device, &a, 0));
        CU(prefill_gdn_gated_norm(&a, 0));
        first += n;
        turn ^= 1;
    }
    return gdn_result{mixed.get(), o.get(), (turn ? state1 : state0).get(),
                      (turn ? window1 : window0).get()};
}

static void check_gdn(const prefill_device *device, int32_t n, int32_t k_heads, int32_t v_heads,
                      double decay, double scale, const std::vector<int32_t> &chunks, double bound)
{
    gdn_case c(n, k_heads, v_heads, decay, scale);
    gdn_result got = run_gdn(device, c, {n}), again = run_gdn(device, c, chunks);
    int32_t channels = c.channels();
    difference eo, em, es;
    std::vector<std::vector<double>> f(n, std::vector<double>(channels));
    for (int32_t t = 0; t < n; t++) {
        for (int32_t ch = 0; ch < channels; ch++) {
            double v = 0;
            for (int i = 0; i < 4; i++)
                if (t - 3 + i >= 0)
                    v += (double)c.taps[(size_t)i * channels + ch] *
                         (double)c.projected[(t - 3 + i) * c.stride() + ch];
            f[t][ch] = silu(v);
        }
        for (int32_t h = 0; h < 2 * k_heads; h++) {
            double sum = 1e-6;
            for (int i = 0; i < 128; i++) sum += f[t][h * 128 + i] * f[t][h * 128 + i];
            for (int i = 0; i < 128; i++)
                f[t][h * 128 + i] *= (h < k_heads ? 1 / sqrt(128.0) : 1) / sqrt(sum);
        }
    }
    for (int32_t h = 0; h < v_heads; h++) {
        std::vector<double> s(128 * 128), p(128), o(128);
        int32_t m = h / (v_heads / k_heads);
        for (int32_t t = 0; t < n; t++) {
            const float *row = &c.projected[t * c.stride()];
            double a = (double)row[channels + v_heads * 128 + h] + (double)c.dt_bias[h];
            double b = (double)row[channels + v_heads * 129 + h];
            double g = exp((double)c.neg_exp_a[h] * (a > 20 ? a : log1p(exp(a))));
            double beta = 1 / (1 + exp(-b));
            const double *q = &f[t][m * 128], *k = &f[t][(k_heads + m) * 128],
                         *v = &f[t][(2 * k_heads + h) * 128];
            for (int j = 0; j < 128; j++) p[j] = o[j] = 0;
            for (int i = 0; i < 128; i++)
                for (int j = 0; j < 128; j++) p[j] += (s[i * 128 + j] *= g) * k[i];
            for (int i = 0; i < 128; i++)
                for (int j = 0; j < 128; j++)
                    o[j] += (s[i * 128 + j] += k[i] * beta * (v[j] - p[j])) * q[i];
            double sum = 0;
            for (int j = 0; j < 128; j++) sum += o[j] * o[j];
            for (int j = 0; j < 128; j++) {
                size_t at = ((size_t)t * v_heads + h) * 128 + j;
                eo.add((double)got.o[at], o[j]);
                em.add(split_value(got.mixed.data(), at),
                       (double)c.norm[j] * o[j] / sqrt(sum / 128 + 1e-6) *
                           silu((double)row[channels + h * 128 + j]));
            }
        }
        for (int i = 0; i < 128; i++)
            for (int j = 0; j < 128; j++)
                es.add((double)got.state[(((size_t)h * 4 + j / 32) * 128 + i) * 32 + j % 32],
                       s[i * 128 + j]);
    }
    char line[128];
    snprintf(line, sizeof line, "GDN %d tokens, %d and %d heads, decay %g, scale %g", n, k_heads,
             v_heads, decay, scale);
    report_difference(line, eo, bound);
    report_difference("  state", es, bound);
    report_difference("  gated norm", em, 2 * bound);
    bool on_grid = true;
    for (size_t i = 0, at = 0; i < chunks.size(); at += chunks[i], i++)
        on_grid = on_grid && at % prefill_gdn_grid(device) == 0;
    difference ea;
    for (size_t i = 0; i < got.o.size(); i++) ea.add((double)again.o[i], (double)got.o[i]);
    for (size_t i = 0; i < got.state.size(); i++)
        ea.add((double)again.state[i], (double)got.state[i]);
    if (!on_grid) report_difference("  in chunks off the grid", ea, bound);
    int bad = on_grid && (ea.error != 0 || ea.error != ea.error);
    for (int32_t t = n - 3; t < n; t++)
        for (int32_t ch = 0; t >= 0 && ch < channels; ch++) {
            float want = c.projected[t * c.stride() + ch];
            bad += again.window[(size_t)(t % 4) * channels + ch] != want;
        }
    report("  same bits in chunks", bad == 0, bad, 0);
}

void bench_prefill(const prefill_device *device, bool whole);

static const double weight_error = 1e-4; /* of halves, or of inputs rounded to 15 bits */

static void check_linear(const prefill_device *device)
{
    double half = weight_error;
    check_dense(device, "product", 12352, 2048, 200, 0.01, 1, half, 3 * half);
    check_dense(device, "product", 2048, 4096, 64, 0.01, 1, half, 3 * half);
    check_dense(device, "product", 9216, 2048, 129, 0.01, 1, half, 3 * half);
    check_dense(device, "product", 72, 128, 1, 0.01, 1, half, 3 * half);
    check_dense(device, "product", 1031, 64, 17, 0.01, 1, half, 3 * half);
    check_dense(device, "small weights,", 512, 256, 40, 1e-12, 1, half, 3 * half);
    check_dense(device, "large weights,", 512, 256, 40, 1e12, 1e-3, half, 3 * half);
    /* Products of thousands, of which what is above 65504 is cut off: the rest are small
     * differences.
     */
    check_dense(device, "large inputs,", 512, 256, 40, 0.01, 20000, half,
                device->path == PREFILL_PATH_HOPPER ? 3 * half : 200 * half);
    check_row_counts(device);
    check_moe(device, 5, 128, 64, 16, 4, false);
    check_moe(device, 600, 256, 128, 16, 4, true);
    check_moe(device, 141, 256, 128, 16, 4, true);
    check_moe(device, 150, 2048, 512, 32, 8, false);
}

/* What does not come in kinds. */
static void check_rest()
{
    check_plan_order(1, 256, 8);
    check_plan_order(700, 256, 8);
    check_plan_order(300, 16, 4);
    check_plan_order(500, 1024, 3);
    check_plan_order(141, 2, 2); /* two tiles of 72 rows and less */
    check_plan_order(264, 2, 2);
    check_top_k_extremes();
    check_norm(9, 2048);
    check_norm(5, 128);
    check_norm(4, 8192);
}

static void check_routers(const prefill_device *device)
{
    check_router(device, 70, 257, 2048);
    check_router(device, 3, 17, 128);
    check_router(device, 33, 1025, 448);
    check_router(device, 900, 257, 512); /* by larger blocks: the general kernel, the Hopper one */
    check_router(device, 2200, 257, 192);
}

static void check_mixers(const prefill_device *device)
{
    check_attention(device, 1, 4, 2, 1, 1e-3);
    check_attention(device, 700, 4, 2, 1, 1e-3);
    check_attention(device, 333, 16, 2, 1, 1e-3);
    check_attention(device, 1030, 16, 2, 8, 1e-3);
    check_attention(device, 70, 6, 2, 1, 1e-3);
    double bound = prefill_gdn_grid(device) == 1 ? 1e-5 : 1e-4;
    check_gdn(device, 1, 2, 4, 0.1, 1, {1}, bound);
    check_gdn(device, 300, 2, 4, 0.1, 1, {64, 128, 64, 44}, bound);
    check_gdn(device, 300, 2, 6, 0.1, 1, {1, 62, 2, 235}, bound);
    check_gdn(device, 1500, 2, 4, 1e-3, 1, {1024, 64, 412}, bound);
    check_gdn(device, 200, 1, 2, 30, 5, {192, 8}, bound);
    check_gdn(device, 200, 2, 2, 300, 1, {128, 72}, bound);
    /* As many blocks as the 35B has, and more than run at once: other clusters. */
    check_gdn(device, 140, 16, 32, 0.1, 1, {64, 76}, bound);
    check_gdn(device, 70, 8, 64, 0.1, 1, {64, 6}, bound);
}

/* Every kernel once with little work, for tools that make it a hundred times as long. */
static void check_small(const prefill_device *device)
{
    double half = weight_error;
    check_plan_order(100, 256, 8);
    check_router(device, 33, 257, 128);
    check_norm(9, 128);
    /* More groups of columns than the rings have stages. */
    check_dense(device, "product", 12352, 1024, 70, 0.01, 1, half, 3 * half);
    check_dense(device, "product", 136, 2048, 17, 0.01, 1, half, 3 * half);
    check_moe(device, 300, 1024, 128, 16, 4, true);
    check_attention(device, 200, 4, 2, 1, 1e-3);
    check_gdn(device, 200, 2, 4, 0.1, 1, {128, 72}, prefill_gdn_grid(device) == 1 ? 1e-5 : 1e-4);
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    int n_devices = 0;
    if (cudaGetDeviceCount(&n_devices) || n_devices == 0) {
        printf("SKIP: no CUDA device\n");
        return 77;
    }
    prefill_device best, general;
    CU(prefill_device_init(&best, false));
    CU(prefill_device_init(&general, true));
    bool hopper = best.path == PREFILL_PATH_HOPPER;
    printf("%d multiprocessors, %s kernels\n", (int)best.n_sms, hopper ? "Hopper" : "general");
    if (argc > 1 && strcmp(argv[1], "--bench") == 0) {
        /* --bench [all] [general] */
        bool all = argc > 2 && strcmp(argv[2], "all") == 0;
        bench_prefill(strcmp(argv[argc - 1], "general") == 0 ? &general : &best, all);
        return 0;
    }
    if (argc > 1 && strcmp(argv[1], "--small") == 0) {
        check_small(&best);
        if (hopper) check_small(&general);
        if (n_failed) printf("%d checks failed\n", n_failed);
        return n_failed > 0;
    }
    check_rest();
    check_routers(&best);
    check_linear(&best);
    check_mixers(&best);
    if (hopper) {
        printf("== general kernels\n");
        check_routers(&general);
        check_linear(&general);
        check_mixers(&general);
    }
    /* As on devices with less shared memory: 163 KB (sm_80), 99 KB (sm_86, 89, 120). */
    for (int32_t bytes : {163 * 1024, 99 * 1024}) {
        if (general.shared_bytes <= bytes) continue;
        prefill_device smaller = general;
        smaller.shared_bytes = bytes;
        smaller.gemm_stages = prefill_gemm_stages(bytes);
        printf("== with %d bytes of shared memory\n", (int)bytes);
        check_row_counts(&smaller);
        check_moe(&smaller, 150, 2048, 512, 32, 8, false);
        check_mixers(&smaller);
    }
    if (n_failed) printf("%d checks failed\n", n_failed);
    return n_failed > 0;
}
