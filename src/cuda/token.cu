/* Decode: all layers of one token, and the head, in one kernel, for the 35B's shape on sm_90.
 *
 * A token is a chain of small products: as a kernel each, four fifths of the time are the ends and
 * beginnings of kernels. Here the blocks stay, one a multiprocessor, 16 teams of eight, and tell
 * each other values through the second-level cache, each with a tag that says which half of which
 * layer it belongs to: whoever reads a value waits for the tag, so that there is no barrier.
 * (Clusters would be faster by some hundred cycles an exchange, but a device has room for 15 of
 * eight blocks where it has 132 multiprocessors, and the work comes in 16 heads.)
 *
 * Weights come by bulk copies into a ring in shared memory, one warp's work, which runs ahead of
 * the others over any number of phases: only which experts to fetch has to be waited for.
 *
 * Halves of a layer, each beginning with the residual stream: a block adds up what the last half
 * adds to 16 columns and tells all.
 *   gdn         in_proj, recurrence, out_proj's columns of a key head, all in one team
 *   attention   in_proj | context, cut into pieces | sum of the pieces, out_proj's columns
 *   experts     router (a block two rows), gate and up, down's columns of a piece
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

/* The columns of the team's head of out_proj, 16 strips. */
enum { OUT_BYTES = HEAD_GROUPS * W4_BLOCK_BYTES };
__device__ static inline const unsigned char *out_columns(const token_state &t,
                                                          const token_layer &l, int strip)
{
    const size_t block =
        ((size_t)(t.rank * 16 + strip) * TOKEN_HEADS + (size_t)t.team) * HEAD_GROUPS;
    return l.out + block * W4_BLOCK_BYTES;
}
__device__ static inline void fill_out(token_state &t, const token_layer &l)
{
    const int lane = threadIdx.x % WARP;
    unsigned char *to = free_stage(t, 16 * OUT_BYTES);
    if (lane < 16) fill_piece(t, to + lane * OUT_BYTES, out_columns(t, l, lane), OUT_BYTES);
    next_stage(t);
}

__device__ static inline void fill_gdn(token_state &t, const token_layer &l)
{
#pragma unroll 1
    for (int j = 0; j < HEAD_STRIPS; j += 2) /* neighbours in the matrix, too */
        fill_whole(t, l.in + (size_t)gdn_strip(t.team, t.rank * HEAD_STRIPS + j) * STRIP_BYTES,
                   STAGE_BYTES);
    fill_whole(t,
               l.in + (size_t)gdn_gate_strip(t.team, t.rank / 4) * STRIP_BYTES +
                   t.rank % 4 * (STRIP_BYTES / 4),
               STRIP_BYTES / 4);
    fill_out(t, l);
}

/* K or V of tokens [begin, end), 64 a stage; whole tiles of 16, which lie in one block of the
 * cache. */
__device__ static inline void fill_tokens(token_state &t, const token_layer &l, int which,
                                          int kv_head, int begin, int end)
{
    const int lane = threadIdx.x % WARP, n = (end - begin + TILE - 1) / TILE * TILE;
#pragma unroll 1
    for (int first = 0; first < n; first += STAGE_TOKENS) {
        const int rows = min(n - first, (int)STAGE_TOKENS);
        unsigned char *to = free_stage(t, (uint32_t)rows * DIM * 2);
        for (int row = lane; row < rows; row += WARP)
            fill_piece(t, to + row * KV_STRIDE,
                       kv_at(t, l.mixer_index, which, kv_head, begin + first + row), DIM * 2);
        next_stage(t);
    }
}

__device__ static inline void fill_attention(token_state &t, const token_layer &l)
{
    enum { N_STRIPS = PROJECTED_ROWS / W4_STRIP_ROWS };
    const int lane = threadIdx.x % WARP;
#pragma unroll 1
    for (int first = block_index(t); first < N_STRIPS; first += 2 * TOKEN_BLOCKS) {
        const int strip = first + lane * TOKEN_BLOCKS;
        unsigned char *to =
            free_stage(t, (uint32_t)(first + TOKEN_BLOCKS < N_STRIPS ? STAGE_BYTES : STRIP_BYTES));
        if (lane < 2 && strip < N_STRIPS)
            fill_piece(t, to + lane * STRIP_BYTES, l.in + (size_t)strip * STRIP_BYTES, STRIP_BYTES);
        next_stage(t);
    }
    const context_piece c = piece_of(t);
#pragma unroll 1
    for (int begin = c.begin; begin < c.end; begin += KV_CHUNK)
#pragma unroll 1
        for (int which = 0; which < 2; which++)
            fill_tokens(t, l, which, c.kv_head, begin, min(begin + KV_CHUNK, c.end));
    fill_out(t, l);
}

__device__ static inline void fill_router(token_state &t, const token_layer &l)
{
    const int lane = threadIdx.x % WARP, n = t.a->n_experts, first = ROUTER_ROWS * block_index(t);
    const int row = lane < ROUTER_ROWS ? first + lane : n; /* lane 2: the gate */
    const bool here = lane < ROUTER_ROWS ? row < n : lane == ROUTER_ROWS && has_gate(t);
    const int n_rows = __popc(__ballot_sync(0xffffffffu, here));
    if (n_rows == 0) { /* few experts: a stage for nothing, so that all blocks do the same */
        free_stage(t, 0);
        next_stage(t);
        return;
    }
    unsigned char *to = free_stage(t, (uint32_t)n_rows * (TOKEN_HIDDEN + GROUPS * 4));
    if (here) {
        fill_piece(t, to + lane * TOKEN_HIDDEN, l.router + (size_t)row * TOKEN_HIDDEN,
                   TOKEN_HIDDEN);
        fill_piece(t, to + ROUTER_PAIRS + lane * GROUPS * 4,
                   (const unsigned char *)(l.router_pairs + (size_t)row * GROUPS), GROUPS * 4);
    }
    next_stage(t);
}

__device__ static inline int head_pairs(const token_args &a)
{
    return (a.n_vocab + 2 * W4_STRIP_ROWS - 1) / (2 * W4_STRIP_ROWS);
}

/* The next layer's weights (or the first of the head's) go into the second-level cache: the device
 * reads nothing while experts are chosen, and the ring cannot run ahead of them. */
__device__ static inline void prefetch_next(const token_state &t, int next)
{
    const int lane = threadIdx.x % WARP, block = block_index(t);
    if (next == t.a->end) {
        const int pair = block + lane * TOKEN_BLOCKS;
        if (t.a->logits && lane < STAGES && pair < head_pairs(*t.a))
            prefetch_bulk(t.a->head + (size_t)pair * STAGE_BYTES, STAGE_BYTES);
        return;
    }
    const token_layer &l = t.s->layers[next];
    enum { N_STRIPS = PROJECTED_ROWS / W4_STRIP_ROWS };
    const int strip = l.is_attention ? block + lane * TOKEN_BLOCKS
                                     : gdn_strip(t.team, t.rank * HEAD_STRIPS + lane);
    if (lane < HEAD_STRIPS && (!l.is_attention || strip < N_STRIPS))
        prefetch_bulk(l.in + (size_t)strip * STRIP_BYTES, STRIP_BYTES);
    if (lane >= 16) prefetch_bulk(out_columns(t, l, lane - 16), OUT_BYTES);
}

__device__ static inline void fill_moe(token_state &t, const token_layer &l, int next)
{
    enum {
        STRIPS = TOKEN_WIDTH / 8,
        OUT_BLOCKS = TOKEN_WIDTH / W4_GROUP,
        OUT_STRIPS = TOKEN_HIDDEN / 16,
        PIECES = CHOSEN_UNITS * 16,
    };
    const int lane = threadIdx.x % WARP;
    const size_t strip = (size_t)(8 * group_of(t) + t.rank);
    const size_t out_block = (size_t)(t.rank * 16 + lane % 16) * OUT_BLOCKS + (size_t)group_of(t);
    fill_router(t, l);
    if (has_shared(t)) fill_whole(t, l.shared_inner + strip * STRIP_BYTES, STRIP_BYTES);
    prefetch_next(t, next);
    const weighed_choice c = choose_and_weigh(t);
    if (lane % 2 == t.team / 8 && lane < TOKEN_CHOSEN) t.s->weights[lane / 2] = c.weight;
    if (has_shared(t)) {
        const float gate = await_value(t.a->mail->logits + TOKEN_MOST_EXPERTS, t.tag);
        __syncwarp();
        if (lane == 0) t.s->weights[CHOSEN_UNITS] = sigmoid_finite(gate);
    }
#pragma unroll 1
    for (int i = 0; i < CHOSEN_UNITS; i += 2) {
        unsigned char *to = free_stage(t, STAGE_BYTES);
        const int expert = __shfl_sync(0xffffffffu, c.expert, slot_of(t, i + lane % 2));
        if (lane < 2)
            fill_piece(t, to + lane * STRIP_BYTES,
                       l.inner + ((size_t)expert * STRIPS + strip) * STRIP_BYTES, STRIP_BYTES);
        next_stage(t);
    }
    unsigned char *to = free_stage(t, PIECES * W4_BLOCK_BYTES);
#pragma unroll
    for (int i = 0; i < CHOSEN_UNITS; i += 2) { /* 16 lanes a piece */
        const int expert = __shfl_sync(0xffffffffu, c.expert, slot_of(t, i + lane / 16));
        fill_piece(t, to + (i * 16 + lane) * W4_BLOCK_BYTES,
                   l.outer +
                       ((size_t)expert * OUT_STRIPS * OUT_BLOCKS + out_block) * W4_BLOCK_BYTES,
                   W4_BLOCK_BYTES);
    }
    next_stage(t);
    if (has_shared(t)) {
        to = free_stage(t, 16 * W4_BLOCK_BYTES);
        if (lane < 16)
            fill_piece(t, to + lane * W4_BLOCK_BYTES, l.shared_outer + out_block * W4_BLOCK_BYTES,
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
        t.tag++;
        fill_moe(t, l, i + 1);
        t.tag++;
    }
    if (!t.a->logits) return;
#pragma unroll 1
    for (int pair = block_index(t); pair < head_pairs(*t.a); pair += TOKEN_BLOCKS)
        fill_whole(t, t.a->head + (size_t)pair * STAGE_BYTES, STAGE_BYTES);
}

/* ---- the others ---- */

/* The head's pairs of strips, two at a time in turn into two halves of `parts`. */
__device__ static inline void run_head(token_state &t, const held_groups &x)
{
    enum { AT_A_TIME = MOST_STRIPS / 4 };
    const token_args &a = *t.a;
    const int n_pairs = head_pairs(a), output = threadIdx.x / 4, strip = output / W4_STRIP_ROWS;
    float r = 0;
    int half = 0;
#pragma unroll 1
    for (int first = block_index(t); first < n_pairs; first += AT_A_TIME * TOKEN_BLOCKS) {
        const int n = min((n_pairs - first + TOKEN_BLOCKS - 1) / TOKEN_BLOCKS, (int)AT_A_TIME);
#pragma unroll 1
        for (int i = 0; i < n; i++) multiply_strips(t, x, half + 2 * i, 2);
        sync_threads<CONSUMER_THREADS>();
        if (first == block_index(t)) r = norm_factor(t, a.end);
        const int row = ((first + strip / 2 * TOKEN_BLOCKS) * 2 + strip % 2) * W4_STRIP_ROWS +
                        output % W4_STRIP_ROWS;
        if (strip < 2 * n) {
            const float sum = r * sum_parts(t, half + strip, output % W4_STRIP_ROWS);
            if (threadIdx.x % 4 == 0 && row < a.n_vocab) a.logits[row] = sum;
        }
        half ^= MOST_STRIPS / 2;
    }
}

/* Halves of layers, one beginning for all kinds: the code has to fit a cache. */
__device__ static inline void run_layers(token_state &t)
{
    const token_args &a = *t.a;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    float2 own = make_float2(0, 0);
#pragma unroll 1
    for (int half = 2 * a.first; half <= 2 * a.end; half++) {
        const bool last = half == 2 * a.end, experts = half % 2 && !last;
        const token_layer &l = t.s->layers[last ? 0 : half / 2];
        const bool gdn = !last && !experts && !l.is_attention;
        float2 factor[2], v[2];
        held_groups x;
        gdn_past past;
        load_norm(factor, last ? a.final_norm : experts ? l.post_norm : l.input_norm);
        if (gdn) load_past(t, past, place_gdn(t, l), l);
        load_stream(t, v, own, half == 2 * a.first);
        scale_stream(t, v, factor);
        hold_groups(x, v);
        if (last) {
            if (warp == 0 && lane < 8) ((float2 *)(a.x + block_index(t) * 16))[lane] = own;
            if (a.logits) run_head(t, x);
        } else if (experts) {
            run_moe(t, half / 2, x, v);
        } else if (gdn) {
            mix_gdn(t, l, half / 2, x, past);
        } else {
            mix_attention(t, l, half / 2, x);
        }
        t.tag++;
    }
    if (threadIdx.x == 0 && block_index(t) == 0) a.barrier[1] = t.arrivals, a.barrier[2] = t.tag;
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
    t.rank = blockIdx.x % TOKEN_RANKS, t.team = blockIdx.x / TOKEN_RANKS;
    t.position = a.input->rows[a.row].position;
    t.states = a.store.states + (size_t)a.input->rows[a.row].state * a.store.state_floats;
    t.table = a.store.tables + (size_t)a.input->rows[a.row].slot * a.store.max_blocks;
    start_block(t);
    wait_for_previous_kernel();
    t.arrivals = __ldcg(a.barrier + 1), t.tag = __ldcg(a.barrier + 2) + 1;
    __syncthreads();
    if (threadIdx.x >= CONSUMER_THREADS)
        fill_ring(t);
    else
        run_layers(t);
#endif
}

extern "C" bool token_fits_device(int n_multiprocessors)
{
    int n = 0;
    cudaError_t status = allow_shared(token_kernel, sizeof(token_shared));
    if (status == cudaSuccess)
        status = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&n, token_kernel, TOKEN_THREADS,
                                                               sizeof(token_shared));
    if (status != cudaSuccess) cudaGetLastError();
    return status == cudaSuccess && n * n_multiprocessors >= TOKEN_BLOCKS;
}

/* Cooperative: all blocks run at once, or the launch fails. */
extern "C" cudaError_t launch_token(const token_args *a, cudaStream_t stream)
{
    cudaLaunchAttribute attribute;
    cudaLaunchConfig_t config = {};
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
    config.gridDim = dim3(TOKEN_BLOCKS);
    config.blockDim = dim3(TOKEN_THREADS);
    config.dynamicSmemBytes = sizeof(token_shared);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, token_kernel, *a);
}
