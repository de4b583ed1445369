/* Decode: all layers of one token, and the head, in one kernel, for the 35B's shape on sm_90.
 *
 * A token is a chain of small products: as a kernel each, four fifths of the time are the ends and
 * beginnings of kernels. Here the blocks stay, one a multiprocessor, in clusters of eight that send
 * each other values through shared memory, and wait for all others twice a layer (four times in
 * attention layers). Weights come by bulk copies into a ring in shared memory, one
 * warp's work, which runs ahead of the others over any number of phases: only which experts to
 * fetch has to be waited for. So the next phase's weights are there when the barrier opens.
 *
 * Phases of a layer:
 *   gdn         in_proj, recurrence, out_proj's columns of a key head, all in one cluster
 *   attention   in_proj | context, cut into pieces | sum of the pieces, out_proj's columns
 *   experts     router (each cluster for itself), gate and up, down's columns of a piece
 * A phase ends with partial sums of the residual stream, which the next one adds in a fixed order.
 *
 * Bytes and operations of a token: those of the kernels in gemv.cu, moe.cu, gdn.cu, attention.cu.
 * Sums are in another order than theirs; the numbers that go into products are the same. */
#include "cuda/token.cuh"
#include "cuda/token_attention.cuh"
#include "cuda/token_gdn.cuh"
#include "cuda/token_moe.cuh"

#ifndef __CUDA_ARCH__
#define TOKEN_KERNEL 1
#elif __CUDA_ARCH__ == 900
#define TOKEN_KERNEL 1
#else
#define TOKEN_KERNEL 0
#endif

#if TOKEN_KERNEL
/* ---- the warp that fills the ring ---- */

/* The next stage, once it is free; n_bytes will come. */
__device__ static inline unsigned char *free_stage(const token_state &t, uint32_t n_bytes)
{
    barrier_wait(&t.s->empty[t.stage], t.lap ^ 1);
    __syncwarp();
    if (threadIdx.x % WARP == 0) barrier_expect(&t.s->full[t.stage], n_bytes);
    __syncwarp();
    return t.s->ring[t.stage];
}
__device__ static inline void fill_whole(token_state &t, const unsigned char *from,
                                         uint32_t n_bytes)
{
    unsigned char *to = free_stage(t, n_bytes);
    if (threadIdx.x % WARP == 0) copy_bulk(to, from, n_bytes, &t.s->full[t.stage]);
    next_stage(t);
}
/* n pieces, a lane each. */
__device__ static inline void fill_piece(const token_state &t, unsigned char *to,
                                         const unsigned char *from, uint32_t n_bytes)
{
    copy_bulk(to, from, n_bytes, &t.s->full[t.stage]);
}

/* out_proj's columns of a head: two stages. */
__device__ static inline void fill_out(token_state &t, const token_layer &l, int head)
{
    enum { BYTES = HEAD_GROUPS * W4_BLOCK_BYTES, ROW_BLOCKS = TOKEN_HEADS * HEAD_GROUPS };
    const int lane = threadIdx.x % WARP;
    for (int half = 0; half < 2; half++) {
        unsigned char *to = free_stage(t, 8 * BYTES);
        const int strip = t.rank * 16 + half * 8 + lane;
        if (lane < 8)
            fill_piece(t, to + lane * BYTES,
                       l.out + ((size_t)strip * ROW_BLOCKS + head * HEAD_GROUPS) * W4_BLOCK_BYTES,
                       BYTES);
        next_stage(t);
    }
}

__device__ static inline void fill_gdn(token_state &t, const token_layer &l)
{
    const int n = count_of(t, TOKEN_HEADS);
    for (int i = 0; i < n; i++) {
        const int head = t.cluster + i * t.n_clusters;
        for (int j = 0; j < HEAD_STRIPS; j++)
            fill_whole(t, l.in + (size_t)gdn_strip(head, t.rank * HEAD_STRIPS + j) * STRIP_BYTES,
                       STRIP_BYTES);
        fill_whole(t,
                   l.in + (size_t)gdn_gate_strip(head, t.rank / 4) * STRIP_BYTES +
                       t.rank % 4 * (STRIP_BYTES / 4),
                   STRIP_BYTES / 4);
    }
    for (int i = 0; i < n; i++) fill_out(t, l, t.cluster + i * t.n_clusters);
}

/* K or V of tokens [begin, end), 32 a stage; whole tiles of 16, which lie in one block of the
 * cache. */
__device__ static inline void fill_tokens(token_state &t, const token_layer &l, int which,
                                          int kv_head, int begin, int end)
{
    const int lane = threadIdx.x % WARP, n = (end - begin + TILE - 1) / TILE * TILE;
    for (int first = 0; first < n; first += STAGE_TOKENS) {
        const int rows = min(n - first, (int)STAGE_TOKENS);
        unsigned char *to = free_stage(t, (uint32_t)rows * DIM * 2);
        if (lane < rows)
            fill_piece(t, to + lane * KV_STRIDE,
                       kv_at(t, l.mixer_index, which, kv_head, begin + first + lane), DIM * 2);
        next_stage(t);
    }
}

__device__ static inline void fill_attention(token_state &t, const token_layer &l)
{
    const int blocks = t.n_clusters * RANKS;
    for (int strip = block_index(t); strip < PROJECTED_ROWS / W4_STRIP_ROWS; strip += blocks)
        fill_whole(t, l.in + (size_t)strip * STRIP_BYTES, STRIP_BYTES);
    const context_piece c = piece_of(t);
    for (int begin = c.begin; begin < c.end; begin += KV_CHUNK)
        for (int which = 0; which < 2; which++)
            fill_tokens(t, l, which, c.kv_head, begin, min(begin + KV_CHUNK, c.end));
    for (int head = t.cluster; head < TOKEN_HEADS; head += t.n_clusters) fill_out(t, l, head);
}

__device__ static inline void fill_router(token_state &t, const token_layer &l)
{
    const int lane = threadIdx.x % WARP, n_experts = t.a->n_experts;
    for (int k = 0; k < ROUTER_ROWS_BLOCK / ROUTER_STAGE_ROWS; k++) {
        const int first = t.rank * ROUTER_ROWS_BLOCK + k * ROUTER_STAGE_ROWS;
        const int rows = max(0, min((int)ROUTER_STAGE_ROWS, n_experts - first));
        const uint32_t gate = TOKEN_HIDDEN / 4 + 32;
        unsigned char *to = free_stage(t, (uint32_t)rows * (TOKEN_HIDDEN + GROUPS * 4) + gate);
        if (lane < rows)
            fill_piece(t, to + lane * ROUTER_STRIDE,
                       l.router + (size_t)(first + lane) * TOKEN_HIDDEN, TOKEN_HIDDEN);
        const int pair = lane - ROUTER_STAGE_ROWS;
        if (pair >= 0 && pair < rows)
            fill_piece(t, to + ROUTER_PAIRS + pair * ROUTER_PAIR_STRIDE,
                       (const unsigned char *)(l.router_pairs + (size_t)(first + pair) * GROUPS),
                       GROUPS * 4);
        if (lane == 2 * ROUTER_STAGE_ROWS)
            fill_piece(t, to + ROUTER_GATE,
                       l.router + (size_t)n_experts * TOKEN_HIDDEN + k * (TOKEN_HIDDEN / 4),
                       TOKEN_HIDDEN / 4);
        if (lane == 2 * ROUTER_STAGE_ROWS + 1)
            fill_piece(t, to + ROUTER_GATE_PAIRS,
                       (const unsigned char *)(l.router_pairs + (size_t)n_experts * GROUPS + k * 8),
                       32);
        next_stage(t);
    }
}

__device__ static inline void fill_moe(token_state &t, const token_layer &l)
{
    enum { STRIPS = TOKEN_WIDTH / 8, OUT_BLOCKS = SHARED_UNITS, OUT_STRIPS = TOKEN_HIDDEN / 16 };
    const int lane = threadIdx.x % WARP, n = count_units(t);
    int chosen_here = 0;
    bool known = false;
    if (lane == 0) barrier_expect(&t.s->logits_here, TOKEN_MOST_EXPERTS * 4);
    fill_router(t, l);
    for (int i = 0; i < n; i++) {
        const moe_unit u = unit_of(t, i);
        if (!u.shared && !known) {
            barrier_wait_cluster(&t.s->logits_here, t.logits_parity);
            chosen_here = choose_units(t, n);
            known = true;
        }
        const size_t strip = (size_t)(8 * u.group + t.rank);
        const int expert = __shfl_sync(0xffffffffu, chosen_here, max(u.slot, 0));
        fill_whole(t,
                   u.shared ? l.shared_inner + strip * STRIP_BYTES
                            : l.inner + ((size_t)expert * STRIPS + strip) * STRIP_BYTES,
                   STRIP_BYTES);
    }
    t.logits_parity ^= 1;
    for (int i = 0; i < n; i += 2) { /* two pieces a stage, 16 lanes each */
        const int pieces = min(n - i, 2);
        unsigned char *to = free_stage(t, (uint32_t)pieces * 16 * W4_BLOCK_BYTES);
        const moe_unit u = unit_of(t, i + lane / 16);
        const size_t at = (size_t)(t.rank * 16 + lane % 16) * OUT_BLOCKS + (size_t)u.group;
        const int expert =
            __shfl_sync(0xffffffffu, chosen_here, max(min(u.slot, TOKEN_CHOSEN - 1), 0));
        if (lane / 16 < pieces)
            fill_piece(t, to + lane * W4_BLOCK_BYTES,
                       (u.shared
                            ? l.shared_outer
                            : l.outer + (size_t)expert * OUT_STRIPS * OUT_BLOCKS * W4_BLOCK_BYTES) +
                           at * W4_BLOCK_BYTES,
                       W4_BLOCK_BYTES);
        next_stage(t);
    }
}

__device__ static inline void fill_ring(token_state &t)
{
#pragma unroll 1
    for (int i = t.a->first; i < t.a->end; i++) {
        const token_layer &l = t.s->layers[i];
        if (l.is_attention)
            fill_attention(t, l);
        else
            fill_gdn(t, l);
        fill_moe(t, l);
    }
    const int n_strips = (t.a->n_vocab + W4_STRIP_ROWS - 1) / W4_STRIP_ROWS;
    for (int strip = block_index(t); t.a->logits && strip < n_strips; strip += t.n_clusters * RANKS)
        fill_whole(t, t.a->head + (size_t)strip * STRIP_BYTES, STRIP_BYTES);
}

/* ---- the others ---- */

/* The head's strips, four at a time in turn into two halves of `parts`. */
__device__ static inline void run_head(token_state &t)
{
    enum { AT_A_TIME = MOST_STRIPS / 2 };
    const token_args &a = *t.a;
    const int blocks = t.n_clusters * RANKS, output = threadIdx.x / 4;
    const int n_strips = (a.n_vocab + W4_STRIP_ROWS - 1) / W4_STRIP_ROWS;
    float2 factor[2], v[2];
    held_groups x;
    float r = 0;
    load_norm(factor, a.final_norm);
    load_input(t, v, factor);
    hold_groups(x, v);
    int half = 0;
#pragma unroll 1
    for (int first = block_index(t); first < n_strips; first += AT_A_TIME * blocks) {
        const int n = min((n_strips - first + blocks - 1) / blocks, (int)AT_A_TIME);
#pragma unroll 1
        for (int i = 0; i < n; i += 2) multiply_strips(t, x, half + i, min(n - i, 2));
        sync_threads<CONSUMER_THREADS>();
        if (first == block_index(t)) r = norm_factor(t, a.end);
        const int row =
            (first + output / W4_STRIP_ROWS * blocks) * W4_STRIP_ROWS + output % W4_STRIP_ROWS;
        if (output < n * W4_STRIP_ROWS) {
            const float sum =
                r * sum_parts(t, half + output / W4_STRIP_ROWS, output % W4_STRIP_ROWS);
            if (threadIdx.x % 4 == 0 && row < a.n_vocab) a.logits[row] = sum;
        }
        half ^= AT_A_TIME;
    }
}

__device__ static inline void run_layers(token_state &t)
{
    const token_args &a = *t.a;
    const int tid = threadIdx.x;
#pragma unroll 1
    for (int i = a.first; i < a.end; i++) {
        const token_layer &l = t.s->layers[i];
        const bool sums = i > a.first;
        if (l.is_attention) {
            project_attention(t, l, i, sums);
            attend(t, l);
            output_attention(t);
        } else {
            mix_gdn(t, l, i, sums);
        }
        run_moe(t, l, i);
    }
    if (a.end > a.first) {
        add_sums(t, t.n_clusters);
        store_x(t);
    }
    if (tid == 0 && block_index(t) == 0) a.barrier[1] = t.arrivals, a.barrier[2] = t.tag;
    if (a.logits) run_head(t);
}

__device__ static inline void start_block(token_state &t)
{
    token_shared &s = *t.s;
    const token_args &a = *t.a;
    const int tid = threadIdx.x;
    if (tid == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_start(&s.full[i], 1);
            barrier_start(&s.empty[i], CONSUMERS);
        }
        for (int i = 0; i < MOST_HEADS; i++) {
            barrier_start(&s.projected_here[i], 1);
            barrier_start(&s.out_here[i], 1);
        }
        barrier_start(&s.x_here, 1);
        barrier_start(&s.logits_here, 1);
        barrier_start(&s.h_here, 1);
        barriers_started();
    }
    const int words = (int)(sizeof(token_layer) / 4);
    for (int i = a.first * words + tid; i < a.end * words; i += TOKEN_THREADS)
        ((uint32_t *)s.layers)[i] = ((const uint32_t *)a.layers)[i];
}
#endif

__global__ void __launch_bounds__(TOKEN_THREADS, 1)
    token_kernel(const __grid_constant__ token_args a)
{
#if TOKEN_KERNEL
    extern __shared__ __align__(128) unsigned char shared[];
    token_state t = {};
    t.s = (token_shared *)shared;
    t.a = &a;
    t.rank = (int)cluster_rank();
    t.n_clusters = a.n_clusters;
    t.cluster = blockIdx.x / RANKS;
    t.position = a.input->rows[a.row].position;
    t.states = a.store.states + (size_t)a.input->rows[a.row].state * a.store.state_floats;
    t.table = a.store.tables + (size_t)a.input->rows[a.row].slot * a.store.max_blocks;
    start_block(t);
    wait_for_previous_kernel();
    t.arrivals = __ldcg(a.barrier + 1), t.tag = __ldcg(a.barrier + 2);
    for (int i = threadIdx.x; i < TOKEN_HIDDEN; i += TOKEN_THREADS) t.s->x[i] = __ldcg(a.x + i);
    __syncthreads();
    cluster_wait();
    if (threadIdx.x >= CONSUMER_THREADS)
        fill_ring(t);
    else
        run_layers(t);
    __syncwarp();
    cluster_wait(); /* nobody leaves while others may still send */
#endif
}

static cudaLaunchConfig_t configure(int n_clusters, cudaLaunchAttribute (&attributes)[1])
{
    cudaLaunchConfig_t config = {};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = RANKS;
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    config.gridDim = dim3((unsigned)n_clusters * RANKS);
    config.blockDim = dim3(TOKEN_THREADS);
    config.dynamicSmemBytes = sizeof(token_shared);
    config.attrs = attributes;
    config.numAttrs = 1;
    return config;
}

extern "C" int token_clusters(void)
{
    cudaLaunchAttribute attributes[1];
    int n = 0;
    const cudaLaunchConfig_t config = configure(TOKEN_MOST_CLUSTERS, attributes);
    cudaError_t status = allow_shared(token_kernel, sizeof(token_shared));
    if (status == cudaSuccess) status = cudaOccupancyMaxActiveClusters(&n, token_kernel, &config);
    if (status != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    /* Fewer would have more strips, pieces and heads than there are places for. */
    const int least = (UNITS + MOST_UNITS - 1) / MOST_UNITS;
    return n < least ? 0 : n < TOKEN_MOST_CLUSTERS ? n : TOKEN_MOST_CLUSTERS;
}

extern "C" cudaError_t launch_token(const token_args *a, cudaStream_t stream)
{
    cudaLaunchAttribute attributes[1];
    cudaLaunchConfig_t config = configure(a->n_clusters, attributes);
    config.stream = stream;
    return cudaLaunchKernelEx(&config, token_kernel, *a);
}
