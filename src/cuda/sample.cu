/* From logits to the next token, as src/engine/sampler.c does it: the same order of operations, the
 * same weights (exp_nonpositive, bit for bit) and the same draws (Philox 4x32-10 keyed by seed and
 * position).
 *
 * Two kernels. The first goes over the vocabulary with many blocks: mask, bias, penalties; of each
 * range of ids the largest value, the sum of exponentials and, if asked for, the best few. The
 * second has one block a row. With a small top-k it only sees the best few of every range;
 * otherwise it goes over the vocabulary some times, with sums in whole numbers, so that no order of
 * additions shows. */
#include "cuda/common.cuh"

enum {
    RANGE_THREADS = 256,
    RANGE_VALUES = SAMPLE_RANGE / RANGE_THREADS, /* of a thread */
    CHOOSE_THREADS = 1024,
    MOST_BEST = 64, /* a small top-k */
    BINS = 2048,
};

/* e^x for x <= 0, 0 below -87: as in the engine's sampler, operation by operation. */
__device__ static inline float exp_nonpositive(float x)
{
    if (!(x >= -87.0f)) return 0;
    const float shifted = __fadd_rn(__fmul_rn(x, 1.44269504f), 12582912.0f);
    const float n = __fadd_rn(shifted, -12582912.0f);
    const float r =
        __fadd_rn(__fadd_rn(x, -__fmul_rn(n, 0.693359375f)), __fmul_rn(n, 2.12194440e-4f));
    float p = __fadd_rn(__fmul_rn(r, 1.0f / 5040), 1.0f / 720);
    p = __fadd_rn(__fmul_rn(p, r), 1.0f / 120);
    p = __fadd_rn(__fmul_rn(p, r), 1.0f / 24);
    p = __fadd_rn(__fmul_rn(p, r), 1.0f / 6);
    p = __fadd_rn(__fmul_rn(p, r), 0.5f);
    p = __fadd_rn(__fmul_rn(p, r), 1.0f);
    p = __fadd_rn(__fmul_rn(p, r), 1.0f);
    return __fmul_rn(p, __uint_as_float((__float_as_uint(shifted) + 127) << 23));
}

/* Larger keys rank first: by value, then lower id. 0 for a token that is not allowed. */
__device__ static inline uint64_t rank_key(float value, int id)
{
    if (value == -INFINITY) return 0;
    uint32_t bits = __float_as_uint(value);
    bits = value == 0 ? 0x80000000u : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (uint64_t)bits << 32 | (uint32_t)~id;
}
__device__ static inline int id_of(uint64_t key)
{
    return (int)~(uint32_t)key;
}

/* Sum over the block of up to 32 warps; `shared` [32], free after the next barrier. */
__device__ static inline int block_count(int x, int *shared)
{
    x = warp_sum_int(x);
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = x;
    __syncthreads();
    int sum = 0;
    for (unsigned w = 0; w < blockDim.x / WARP; w++) sum += shared[w];
    return sum;
}

/* The k-th largest of the block's keys, N a thread, 0 counting as none; 1 if there are fewer. Found
 * bit by bit from the top; keys are distinct, so the search ends where exactly k are left. */
template <int N>
__device__ static uint64_t kth_largest(const uint64_t keys[N], int k, int (*shared)[32])
{
    uint64_t level = 0;
    for (int bit = 63, round = 0; bit >= 0; bit--, round++) {
        const uint64_t trial = level | (uint64_t)1 << bit;
        int n = 0;
#pragma unroll
        for (int i = 0; i < N; i++) n += keys[i] >= trial;
        n = block_count(n, shared[round & 1]);
        if (n >= k) level = trial;
        if (n == k) break;
    }
    return level ? level : 1;
}

/* ---- the first kernel ---- */

/* Bias, then penalties, of the ids in [begin, end). */
__device__ static void adjust_listed(const sample_args &a, int row, int begin, int end)
{
    const step_sampling &p = a.input->rows[row].sampling;
    float *values = a.values + (size_t)row * a.n_vocab;
    const int32_t *tokens = a.bias_tokens + (size_t)row * a.list;
    const float *biases = a.bias_values + (size_t)row * a.list;
    for (int i = threadIdx.x; i < p.n_bias; i += RANGE_THREADS) {
        const int token = tokens[i];
        bool mine = token >= begin && token < end;
        for (int k = 0; mine && k < i; k++) mine = tokens[k] != token;
        for (int k = i; mine && k < p.n_bias; k++) /* all entries of a token, in their order */
            if (tokens[k] == token) values[token] = __fadd_rn(values[token], biases[k]);
    }
    __syncthreads();
    const float repetition = p.repetition_penalty == 0 ? 1 : p.repetition_penalty;
    if (repetition == 1 && p.frequency_penalty == 0 && p.presence_penalty == 0) return;
    tokens = a.generated_tokens + (size_t)row * a.list;
    for (int i = threadIdx.x; i < p.n_generated; i += RANGE_THREADS) {
        const int token = tokens[i];
        if (token < begin || token >= end) continue;
        const float count = (float)a.generated_counts[(size_t)row * a.list + i];
        float x = values[token];
        x = x > 0 ? __fdiv_rn(x, repetition) : __fmul_rn(x, repetition);
        x = __fadd_rn(x, -__fmul_rn(p.frequency_penalty, count));
        values[token] = __fadd_rn(x, -p.presence_penalty);
    }
}

/* How many of the best are wanted of every range. */
__device__ static inline int n_best_of(const step_sampling &p)
{
    int k = p.n_top_logprobs;
    if (p.temperature > 0 && p.top_k > k && p.top_k <= MOST_BEST) k = p.top_k;
    return k;
}

/* Moves 4 bytes an id in, 4 out. Block (range, row). */
__global__ void __launch_bounds__(RANGE_THREADS) sample_range_kernel(sample_args a)
{
    __shared__ uint64_t largest;
    __shared__ double sums[RANGE_THREADS / WARP];
    __shared__ int counts[2][32], n_taken;
    wait_for_previous_kernel();
    release_next_kernel();
    const int row = blockIdx.y, tid = threadIdx.x;
    const step_sampling &p = a.input->rows[row].sampling;
    if (!p.wanted) return;
    const int begin = blockIdx.x * SAMPLE_RANGE, end = min(begin + SAMPLE_RANGE, a.n_tokens);
    const float *logits = a.logits + (size_t)row * a.n_vocab;
    const uint32_t *mask = a.masks + (size_t)row * a.mask_words;
    float *values = a.values + (size_t)row * a.n_vocab;
    for (int i = begin + tid; i < end; i += RANGE_THREADS) {
        const float x = logits[i];
        if (!is_finite(x)) atomicMin(&a.output[row].bad_logit, i);
        values[i] = !p.use_mask || (mask[i >> 5] >> (i & 31) & 1) ? x : -INFINITY;
    }
    if (tid == 0) largest = 0, n_taken = 0;
    __syncthreads();
    adjust_listed(a, row, begin, end);
    __syncthreads();
    uint64_t keys[RANGE_VALUES], most = 0;
#pragma unroll
    for (int k = 0; k < RANGE_VALUES; k++) {
        const int i = begin + k * RANGE_THREADS + tid;
        keys[k] = i < end ? rank_key(values[i], i) : 0;
        most = keys[k] > most ? keys[k] : most;
    }
    for (int m = WARP / 2; m > 0; m /= 2) {
        const uint64_t other = __shfl_xor_sync(0xffffffffu, most, m);
        most = other > most ? other : most;
    }
    if (tid % WARP == 0) atomicMax((unsigned long long *)&largest, (unsigned long long)most);
    __syncthreads();
    const float max = largest ? values[id_of(largest)] : -INFINITY;
    double sum = 0;
    for (int i = begin + tid; i < end; i += RANGE_THREADS)
        if (values[i] != -INFINITY) sum += (double)exp_nonpositive(values[i] - max);
    for (int m = WARP / 2; m > 0; m /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, m);
    if (tid % WARP == 0) sums[tid / WARP] = sum;
    __syncthreads();
    sample_part *part = a.parts + (size_t)row * gridDim.x + blockIdx.x;
    if (tid == 0) {
        sum = 0;
        for (int w = 0; w < RANGE_THREADS / WARP; w++) sum += sums[w];
        part->sum = sum, part->largest = largest;
    }
    const int n_best = n_best_of(p);
    if (n_best == 0) return;
    const uint64_t level = kth_largest<RANGE_VALUES>(keys, n_best, counts);
#pragma unroll
    for (int k = 0; k < RANGE_VALUES; k++)
        if (keys[k] >= level) part->best[atomicAdd(&n_taken, 1)] = keys[k];
    __syncthreads();
    for (int i = n_taken + tid; i < n_best; i += RANGE_THREADS) part->best[i] = 0;
}

/* ---- the second kernel ---- */

struct choose_shared {
    uint64_t bins[BINS];
    uint64_t sums[CHOOSE_THREADS];
    uint64_t warps[32];
    uint64_t best[MOST_BEST]; /* in order */
    float weights[MOST_BEST];
    int counts[2][32];
    int n_best, token;
    uint64_t bin, above;
};

/* What may be drawn: keys from `cut` on, weighing at least `least`. */
struct drawing {
    const float *values;
    int n;
    float max, scale;
    uint64_t cut;
    double least;
};

__device__ static inline float weight_of(const drawing &d, float value)
{
    return exp_nonpositive(__fmul_rn(__fadd_rn(value, -d.max), d.scale));
}
/* As a whole number of 2^-40: sums of a million stay exact. */
__device__ static inline uint64_t mass_of(float weight)
{
    return (uint64_t)((double)weight * 0x1p40);
}

/* 53 random bits as a number in [0, 1): base/philox.h. */
__device__ static double draw_uniform(uint64_t seed, uint64_t counter)
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32), c2 = 0, c3 = 0;
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    return (double)((((uint64_t)c0 << 32) | c1) >> 11) * 0x1p-53;
}

/* Sums of the threads after this one, and in *total those of all. */
__device__ static uint64_t sum_after(uint64_t x, uint64_t *warps, uint64_t *total)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    uint64_t inclusive = x;
    for (int m = 1; m < WARP; m *= 2) {
        const uint64_t other = __shfl_down_sync(0xffffffffu, inclusive, m);
        if (lane + m < WARP) inclusive += other;
    }
    __syncthreads();
    if (lane == 0) warps[warp] = inclusive;
    __syncthreads();
    uint64_t after = inclusive - x, sum = 0;
    for (int w = CHOOSE_THREADS / WARP - 1; w >= 0; w--) {
        if (w == warp) after += sum;
        sum += warps[w];
    }
    *total = sum;
    return after;
}

/* The best of all ranges, in order, into s.best[s.n_best]. */
__device__ static void merge_best(const sample_part *parts, int n_parts, int k, choose_shared &s)
{
    enum { N = 4 };
    const int tid = threadIdx.x;
    uint64_t level = 1, chosen[N];
    if (tid == 0) s.n_best = 0;
    /* Some ranges at a time, together with the best of those before. */
    for (int first = 0; first < n_parts;) {
        const int room = (N - 1) * CHOOSE_THREADS / k, n = min(room, n_parts - first);
        __syncthreads();
        const int n_before = s.n_best;
        for (int j = 0; j < N - 1; j++) {
            const int i = j * CHOOSE_THREADS + tid;
            chosen[j] = i < n * k ? parts[first + i / k].best[i % k] : 0;
        }
        chosen[N - 1] = tid < n_before ? s.best[tid] : 0;
        level = kth_largest<N>(chosen, k, s.counts);
        __syncthreads();
        if (tid == 0) s.n_best = 0;
        __syncthreads();
        for (int j = 0; j < N; j++)
            if (chosen[j] >= level) s.best[atomicAdd(&s.n_best, 1)] = chosen[j];
        first += n;
    }
    __syncthreads();
    /* Each counts those before it. */
    uint64_t mine = tid < s.n_best ? s.best[tid] : 0;
    int rank = 0;
    for (int i = 0; i < s.n_best; i++) rank += s.best[i] > mine;
    __syncthreads();
    if (tid < s.n_best) s.best[rank] = mine;
    __syncthreads();
}

/* A small top-k: everything as in the engine, by one thread. */
__device__ static int draw_from_best(const drawing &d, const step_sampling &p, int position,
                                     choose_shared &s)
{
    int n = min(p.top_k, s.n_best), ids[MOST_BEST], n_kept = 0;
    double total = 0, sum = 0;
    for (int i = 0; i < n; i++) {
        s.weights[i] = weight_of(d, d.values[id_of(s.best[i])]);
        total += (double)s.weights[i];
    }
    if (p.top_p > 0 && p.top_p < 1) {
        const double mass = total * (double)p.top_p;
        int last = 0;
        for (; last < n - 1; last++) {
            sum += (double)s.weights[last];
            if (sum >= mass) break;
        }
        n = last + 1;
    }
    /* Ascending ids: insertion, the kept are few. */
    for (int i = 0; i < n; i++) {
        if (s.weights[i] <= 0 || (double)s.weights[i] < d.least) continue;
        int at = n_kept++;
        for (; at > 0 && id_of(s.best[ids[at - 1]]) > id_of(s.best[i]); at--) ids[at] = ids[at - 1];
        ids[at] = i;
    }
    total = 0;
    for (int i = 0; i < n_kept; i++) total += (double)s.weights[ids[i]];
    const double target = draw_uniform(p.seed, (uint64_t)position) * total;
    sum = 0;
    for (int i = 0; i < n_kept - 1; i++) {
        sum += (double)s.weights[ids[i]];
        if (target < sum) return id_of(s.best[ids[i]]);
    }
    return id_of(s.best[ids[n_kept - 1]]);
}

/* The key at which the counts (or masses) of the keys from d.cut on, largest first, reach `target`:
 * digit by digit of 11 bits, the largest first. */
__device__ static uint64_t find_cut(const drawing &d, bool by_mass, double target, choose_shared &s)
{
    const int tid = threadIdx.x;
    uint64_t prefix = 0, above = 0; /* above: of the keys beyond the prefix */
    for (int shift = 53; shift >= -2; shift -= 11) {
        const int low = max(shift, 0), bits = shift < 0 ? 11 + shift : 11;
        for (int i = tid; i < BINS; i += CHOOSE_THREADS) s.bins[i] = 0;
        __syncthreads();
        for (int i = tid; i < d.n; i += CHOOSE_THREADS) {
            const uint64_t key = rank_key(d.values[i], i);
            if (key == 0 || key < d.cut) continue;
            if (low + bits < 64 && key >> (low + bits) != prefix) continue;
            const uint64_t x = by_mass ? mass_of(weight_of(d, d.values[i])) : 1;
            atomicAdd((unsigned long long *)&s.bins[key >> low & ((1u << bits) - 1)],
                      (unsigned long long)x);
        }
        __syncthreads();
        /* Thread t has bins 2t and 2t + 1. */
        const uint64_t upper = s.bins[2 * tid + 1], lower = s.bins[2 * tid];
        uint64_t total;
        const uint64_t after = above + sum_after(upper + lower, s.warps, &total);
        if (tid == 0) s.bin = 0, s.above = above + total - lower;
        __syncthreads();
        /* The bin in which the target is reached; the lowest that has anything if none. */
        if (upper > 0 && (double)after < target && (double)(after + upper) >= target)
            s.bin = (uint64_t)(2 * tid + 1), s.above = after;
        if (lower > 0 && (double)(after + upper) < target &&
            (double)(after + upper + lower) >= target)
            s.bin = (uint64_t)(2 * tid), s.above = after + upper;
        __syncthreads();
        prefix = prefix << bits | s.bin;
        above = s.above;
        __syncthreads();
        if (low == 0) break;
    }
    return prefix;
}

/* Sums the masses of what may be drawn over ids [begin, end), the calling warp's part. */
__device__ static inline uint64_t kept_mass(const drawing &d, int i)
{
    const uint64_t key = rank_key(d.values[i], i);
    if (key == 0 || key < d.cut) return 0;
    const float weight = weight_of(d, d.values[i]);
    return (double)weight < d.least ? 0 : mass_of(weight);
}

/* Inverts the distribution in ascending order of id: thread t has ids [t per, (t + 1) per). */
__device__ static int draw_from_all(const drawing &d, const step_sampling &p, int position,
                                    choose_shared &s)
{
    const int tid = threadIdx.x, per = (d.n + CHOOSE_THREADS - 1) / CHOOSE_THREADS;
    uint64_t mine = 0, total;
    for (int i = tid * per; i < min((tid + 1) * per, d.n); i++) mine += kept_mass(d, i);
    const uint64_t after = sum_after(mine, s.warps, &total), before = total - after - mine;
    const double target = draw_uniform(p.seed, (uint64_t)position) * (double)total;
    if (tid == 0) s.token = -1;
    __syncthreads();
    if (mine > 0 && target >= (double)before && target < (double)(before + mine)) {
        uint64_t sum = before;
        for (int i = tid * per; i < min((tid + 1) * per, d.n); i++) {
            sum += kept_mass(d, i);
            if (target < (double)sum) {
                s.token = i;
                break;
            }
        }
    }
    __syncthreads();
    return s.token;
}

/* The cuts of a large or no top-k, and the draw. Called by the whole block. */
__device__ static int draw_with_cuts(drawing d, const step_sampling &p, int position,
                                     choose_shared &s)
{
    if (p.top_k > 0 && p.top_k < d.n) d.cut = find_cut(d, false, (double)p.top_k, s);
    if (p.top_p > 0 && p.top_p < 1) {
        uint64_t mine = 0, total;
        for (int i = threadIdx.x; i < d.n; i += CHOOSE_THREADS) {
            const uint64_t key = rank_key(d.values[i], i);
            if (key > 0 && key >= d.cut) mine += mass_of(weight_of(d, d.values[i]));
        }
        sum_after(mine, s.warps, &total);
        d.cut = find_cut(d, true, (double)total * (double)p.top_p, s);
    }
    return draw_from_all(d, p, position, s);
}

/* The largest key of all ranges, by each warp for itself. */
__device__ static uint64_t largest_of(const sample_part *parts, int n_parts)
{
    uint64_t most = 0;
    for (int i = threadIdx.x % WARP; i < n_parts; i += WARP) most = max(most, parts[i].largest);
    for (int m = WARP / 2; m > 0; m /= 2) {
        const uint64_t other = __shfl_xor_sync(0xffffffffu, most, m);
        most = max(most, other);
    }
    return most;
}

/* The sum of exp(value - d.max) over all ids, by one warp: a lane has a range, and they are added
 * in their order. */
__device__ static double sum_parts(const sample_part *parts, int n_parts, const drawing &d)
{
    const int lane = threadIdx.x % WARP;
    double total = 0;
    for (int first = 0; first < n_parts; first += WARP) {
        double mine = 0;
        if (first + lane < n_parts && parts[first + lane].largest) {
            const sample_part &part = parts[first + lane];
            mine = part.sum * exp((double)(d.values[id_of(part.largest)] - d.max));
        }
        for (int i = 0; i < WARP; i++) total += __shfl_sync(0xffffffffu, mine, i);
    }
    return total;
}

__global__ void __launch_bounds__(CHOOSE_THREADS) sample_choose_kernel(sample_args a, int n_parts)
{
    __shared__ choose_shared s;
    wait_for_previous_kernel();
    release_next_kernel();
    const int row = blockIdx.x, tid = threadIdx.x;
    const step_row &in = a.input->rows[row];
    const step_sampling &p = in.sampling;
    step_output *out = a.output + row;
    if (tid == 0) out->bad_layer = a.bad_layer[row];
    if (!p.wanted) return;
    const sample_part *parts = a.parts + (size_t)row * n_parts;
    const uint64_t largest = largest_of(parts, n_parts);
    if (largest == 0) {
        if (tid == 0) out->token = -1;
        return;
    }
    drawing d;
    d.values = a.values + (size_t)row * a.n_vocab, d.n = a.n_tokens;
    d.max = d.values[id_of(largest)], d.scale = 0, d.cut = 0;
    d.least = p.min_p > 0 ? (double)p.min_p : 0;
    const double log_total = tid < WARP ? log(sum_parts(parts, n_parts, d)) : 0;
    const int n_best = n_best_of(p);
    if (n_best > 0) merge_best(parts, n_parts, n_best, s);
    int token = id_of(largest);
    /* A temperature so low that its inverse overflows is greedy. */
    d.scale = p.temperature > 0 ? __fdiv_rn(1.0f, p.temperature) : INFINITY;
    if (is_finite(d.scale)) {
        if (p.top_k > 0 && p.top_k <= MOST_BEST) {
            if (tid == 0) s.token = draw_from_best(d, p, in.position + 1, s);
            __syncthreads();
            token = s.token;
        } else {
            token = draw_with_cuts(d, p, in.position + 1, s);
        }
    }
    if (tid != 0) return;
    out->token = token;
    out->logprob = (float)((double)(d.values[token] - d.max) - log_total);
    out->n_top = min(p.n_top_logprobs, n_best > 0 ? s.n_best : 0);
    for (int i = 0; i < out->n_top; i++) {
        out->top_tokens[i] = id_of(s.best[i]);
        out->top_logprobs[i] = (float)((double)(d.values[id_of(s.best[i])] - d.max) - log_total);
    }
    if (out->bad_logit != INT32_MAX)
        out->bad_value = a.logits[(size_t)row * a.n_vocab + out->bad_logit];
    a.sampled[in.slot] = token;
}

extern "C" cudaError_t launch_sample(const sample_args *a, cudaStream_t stream)
{
    const int n_parts = sample_n_parts(a->n_tokens);
    RETURN_IF_FAILED(launch(sample_range_kernel, dim3((unsigned)n_parts, (unsigned)a->n),
                            RANGE_THREADS, 0, stream, true, *a));
    return launch(sample_choose_kernel, dim3((unsigned)a->n), CHOOSE_THREADS, 0, stream, true, *a,
                  n_parts);
}
