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
#include "cuda/token_fill.cuh"

#if TOKEN_KERNEL
/* ---- the warp that fills the ring ---- */

/* Whatever does not wait for the choice is done before it: stages of the chosen expert become free,
 * the shared one's columns of down are asked for. Meanwhile the device reads nothing, so with each
 * look for the logits a piece of the next layer goes into the second-level cache: not all at once,
 * since whatever is read blocks exchanges. Then gate and up are not to wait for down, nor down for
 * the next layer: each is asked for when the one before is there. */
__device__ static inline void fill_moe(token_state &t, const token_layer &l, int next)
{
    enum { OUTER = CHOSEN_UNITS / 2, SHARED, N_STAGES };
    const int lane = threadIdx.x % WARP;
    int stage[N_STAGES], piece = 0;
    uint32_t lap[N_STAGES];
    fill_router(t, l);
    if (has_shared(t)) fill_shared_inner(t, l);
#pragma unroll
    for (int i = 0; i < N_STAGES; i++) {
        if (i == SHARED && !has_shared(t)) break;
        stage[i] = t.stage, lap[i] = t.lap;
        barrier_wait(&t.s->empty[t.stage], t.lap ^ 1);
        if (lane == 0 && i < OUTER) barrier_expect(&t.s->full[t.stage], STAGE_BYTES);
        next_stage(t);
    }
    __syncwarp();
    const auto copy = [&](int i, int at, const unsigned char *from, uint32_t n_bytes) {
        copy_bulk(t.s->ring[stage[i]] + at, from, n_bytes, &t.s->full[stage[i]]);
    };
    if (has_shared(t) && lane < CONSUMERS)
        copy(SHARED, lane * W4_BLOCK_BYTES, shared_outer_block(t, l, lane), W4_BLOCK_BYTES);
    const router_choice c = choose_slot(t, slot_of(t), [&] { prefetch_piece(t, next, piece++); });
    const unsigned char *inner = inner_strips(t, l, c.expert);
    if (lane == 0) copy(0, 0, inner, STAGE_BYTES), copy(1, 0, inner + STAGE_BYTES, STAGE_BYTES);
    __syncwarp();
    const float weight = weigh_slot(c, slot_of(t));
    const float gate = has_shared(t) ? await_value(t.a->mail->shared_gate, t.tag) : 0;
    barrier_wait(&t.s->full[stage[0]], lap[0]);
    __syncwarp();
    if (lane < CONSUMERS)
        copy(OUTER, lane * OUTER_BYTES, outer_columns(t, l, c.expert, lane), OUTER_BYTES);
    if (lane == 0) { /* told with the stages */
        t.own->weight = weight, t.own->shared_weight = sigmoid_finite(gate);
        barrier_expect(&t.s->full[stage[OUTER]], CONSUMERS * OUTER_BYTES);
        if (has_shared(t)) barrier_expect(&t.s->full[stage[SHARED]], SHARED_OUTER_BYTES);
    }
    __syncwarp();
    barrier_wait(&t.s->full[stage[OUTER]], lap[OUTER]);
    __syncwarp();
}

__device__ static inline void fill_ring(token_state &t)
{
#pragma unroll 1
    for (int i = t.a->first; i < t.a->end; i++) {
        const token_layer &l = t.s->layers[i];
        if (l.is_attention) {
            fill_projections(t, l);
            fill_context(t, l);
            fill_out(t, l);
        } else {
            fill_gdn(t, l);
        }
        t.tag++;
        fill_moe(t, l, i + 1);
        t.tag++;
    }
    if (t.a->logits) fill_head(t);
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
        /* Or places of all kinds are computed once, and kept in memory. */
        asm volatile("" : "+r"(t.rank), "+r"(t.team), "+r"(t.position), "+l"(t.own));
        const bool first = half == 2 * a.first, last = half == 2 * a.end;
        const bool experts = half % 2 && !last;
        const token_layer &l = t.s->layers[last ? 0 : half / 2];
        const bool gdn = !last && !experts && !l.is_attention;
        float2 factor[2], v[2];
        held_groups x;
        gdn_past past;
        load_norm(factor, last ? a.final_norm : experts ? l.post_norm : l.input_norm);
        if (warp == 0) /* before all else: every block waits for it */
            own = first ? load_columns(t) : add_partial(t, own);
        if (gdn) {
            const gdn_place at = place_gdn(t, l);
            load_state(t, past, at);
            load_window(t, past, at, l, threadIdx.x);
        }
        load_stream(t, v, first);
        scale_stream(t, v, factor);
        if (experts) run_router(t, half / 2, v);
        hold_groups(x, v);
        if (last) {
            if (warp == 0 && lane < 8) ((float2 *)(a.x + block_index(t) * 16))[lane] = own;
            if (a.logits) run_head(t, x);
        } else if (experts) {
            run_moe(t, half / 2, x);
        } else if (gdn) {
            mix_gdn(t, l, half / 2, x, past);
        } else {
            mix_attention(t, l, half / 2, x);
        }
        t.tag++;
    }
    if (threadIdx.x == 0 && block_index(t) == 0) a.barrier[1] = t.arrivals, a.barrier[2] = t.tag;
}

#endif

__global__ void __launch_bounds__(TOKEN_THREADS, 1)
    token_kernel(const __grid_constant__ token_args a)
{
#if TOKEN_KERNEL
    extern __shared__ __align__(128) unsigned char shared[];
    token_state t = {};
    t.s = (token_shared *)shared, t.own = t.s->rows;
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
    return token_kernel_fits(token_kernel, n_multiprocessors);
}

extern "C" cudaError_t launch_token(const token_args *a, cudaStream_t stream)
{
    return launch_token_kernel(token_kernel, *a, stream);
}
