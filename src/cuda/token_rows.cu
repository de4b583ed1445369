/* Decode of 2 to 8 sequences in one kernel: the blocks, teams, messages and phases of token.cu, all
 * rows in each phase before the next one begins.
 *
 * A row's numbers are those of token.cu, bit for bit: where rows share weights (projections, the
 * router, the shared expert, the head) a stage of the ring is taken once and multiplied by all of
 * them, each group's sums being exact and what follows the same; everything else is token.cu's own
 * functions, row by row or a warp a row. A chosen expert is read by every row that chose it: of 64
 * choices among 256 seven in eight are different, and the rest come out of the second-level cache.
 *
 * Bytes of a step of n rows: the weights that all tokens need once (1.10 GB of the 35B), n times
 * the chosen experts (0.57 GB), states, K and V. */
#define TOKEN_ROWS 8
#include "cuda/token_rows.cuh"

static_assert(TOKEN_ROWS == STEP_ROWS, "a step's rows");

#if TOKEN_KERNEL
/* ---- the warp that fills the ring ---- */

/* The rows' states of the layer, into the second-level cache: they are needed once the projections
 * are known. */
__device__ static inline void prefetch_states(token_state &t, const token_rows_args &a,
                                              const token_layer &l)
{
    const int lane = threadIdx.x % WARP;
    if (lane < a.n) {
        select_row(t, a, lane);
        prefetch_bulk(place_gdn(t, l).state, GDN_HEAD_DIM * GDN_COLUMNS * sizeof(float));
    }
    __syncwarp();
}

__device__ static inline void fill_moe(token_state &t, const token_rows_args &a,
                                       const token_layer &l, int next, uint32_t lap)
{
    select_row(t, a, 0);
    fill_router(t, l);
    if (has_shared(t)) fill_shared_inner(t, l);
    prefetch_next(t, next);
    barrier_wait(&t.s->all_chosen, lap);
#pragma unroll 1
    for (int r = 0; r < a.n; r++) fill_inner(t, l, t.s->chosen[r]);
    if (has_shared(t)) fill_shared_outer(t, l);
#pragma unroll 1
    for (int r = 0; r < a.n; r++) fill_outer(t, l, t.s->chosen[r]);
}

__device__ static inline void fill_ring(token_state &t, const token_rows_args &a)
{
    uint32_t lap = 0;
#pragma unroll 1
    for (int i = a.rows[0].first; i < a.rows[0].end; i++, lap ^= 1) {
        const token_layer &l = t.s->layers[i];
        if (l.is_attention) {
            fill_projections(t, l);
#pragma unroll 1
            for (int r = 0; r < a.n; r++) {
                select_row(t, a, r);
                fill_context(t, l);
            }
            fill_out(t, l);
        } else {
            prefetch_states(t, a, l);
            fill_gdn(t, l);
        }
        fill_moe(t, a, l, i + 1, lap);
    }
    if (a.rows[0].logits) fill_head(t);
}

/* ---- the others ---- */

/* All rows' convolutions, a warp's part of one row at a time. */
__device__ static inline void convolve_rows(token_state &t, const token_rows_args &a,
                                            const token_layer &l)
{
    enum { PARTS = CONV_THREADS / WARP + 1 };
#pragma unroll 1
    for (int i = threadIdx.x / WARP; i < a.n * PARTS; i += CONSUMERS) {
        const int tid = i % PARTS * WARP + threadIdx.x % WARP;
        gdn_past past;
        select_row(t, a, i / PARTS);
        const gdn_place at = place_gdn(t, l, tid);
        load_window(t, past, at, l, tid);
        const float x = await_value(convolved_of(t, tid), t.tag);
        __syncwarp();
        convolve(t, past, at, x, tid);
    }
}

/* Rows whose latencies overlap. */
enum { RECUR_TOGETHER = 2 };

__device__ static inline void recur_rows(token_state &t, const token_rows_args &a,
                                         const token_layer &l)
{
    gdn_past past[RECUR_TOGETHER], next[RECUR_TOGETHER];
#pragma unroll
    for (int i = 0; i < RECUR_TOGETHER; i++) {
        select_row(t, a, min(i, a.n - 1));
        load_state(t, next[i], place_gdn(t, l));
    }
    sync_threads<CONSUMER_THREADS>();
#pragma unroll 1
    for (int r = 0; r < a.n; r += RECUR_TOGETHER) {
        gdn_keys keys[RECUR_TOGETHER];
#pragma unroll
        for (int i = 0; i < RECUR_TOGETHER; i++) {
            past[i] = next[i];
            select_row(t, a, min(r + RECUR_TOGETHER + i, a.n - 1));
            if (r + RECUR_TOGETHER < a.n) load_state(t, next[i], place_gdn(t, l));
        }
#pragma unroll
        for (int i = 0; i < RECUR_TOGETHER; i++) {
            if (r + i >= a.n) break;
            t.own = &t.s->rows[r + i];
            sum_states(t, past[i], keys[i]);
        }
        sync_threads<CONSUMER_THREADS>();
#pragma unroll
        for (int i = 0; i < RECUR_TOGETHER; i++) {
            if (r + i >= a.n) break;
            select_row(t, a, r + i);
            end_step(t, past[i], place_gdn(t, l), keys[i]);
        }
    }
}

__device__ static inline void mix_gdn(token_state &t, const token_rows_args &a,
                                      const token_layer &l, int layer, const held_rows &x)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    float2 out_factor[2];
    out_factor[0] = ((const float2 *)l.constants[3])[lane];
    out_factor[1] = ((const float2 *)l.constants[3])[WARP + lane];
    const int own = warp - t.rank % 4 * 4; /* the warp's place among those with these columns */
    const unsigned char *gates = take_stage(t) + 2 * own * (int)W4_BLOCK_BYTES;
    if (own >= 0 && own < 4) {
        float2 v[QUADS];
        multiply_pair(v, take_pair(gates), x, a.n);
        store_parts(t, v, HEAD_STRIPS, own, a.n);
    }
    give_stage(t);
    sync_threads<CONSUMER_THREADS>();
#pragma unroll 1
    for (int r = 0; r < a.n; r++) {
        select_row(t, a, r);
        store_projected(t, layer);
    }
    convolve_rows(t, a, l);
    recur_rows(t, a, l);
#pragma unroll 1
    for (int r = warp / HEAD_GROUPS; r < a.n; r += CONSUMERS / HEAD_GROUPS) {
        select_row(t, a, r);
        gate_group(t, warp % HEAD_GROUPS, out_factor);
    }
}

__device__ static inline void mix_attention(token_state &t, const token_rows_args &a,
                                            const token_layer &l, int layer)
{
    const int warp = threadIdx.x / WARP, n = attention_strips(t);
    sync_threads<CONSUMER_THREADS>();
#pragma unroll 1
    for (int r = 0; r < a.n; r++) {
        select_row(t, a, r);
        store_attention_rows(t, layer, n);
    }
    end_phase(t);
    begin_phase(t);
#pragma unroll 1
    for (int r = 0; r < a.n; r++) {
        select_row(t, a, r);
        attend(t, l, load_rotation(t, l));
        sync_threads<CONSUMER_THREADS>(); /* the next row has the same memory */
    }
    end_phase(t);
    begin_phase(t);
    combined_pieces own = {0, 0};
#pragma unroll 1
    for (int r = 0; r < a.n; r++) {
        select_row(t, a, r);
        const combined_pieces c = combine_pieces(t, piece_of(t).n_parts);
        if (r == warp) own = c;
    }
    sync_threads<CONSUMER_THREADS>();
    if (warp < a.n) {
        select_row(t, a, warp);
        store_combined(t, own);
    }
#pragma unroll 1
    for (int r = warp / HEAD_GROUPS; r < a.n; r += CONSUMERS / HEAD_GROUPS) {
        select_row(t, a, r);
        share_attended(t, warp % HEAD_GROUPS);
    }
}

/* The rows' experts, and their weights: a warp a row; another one its shared expert's. */
__device__ static inline void choose_rows(token_state &t, const token_rows_args &a, int layer)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, row = warp % TOKEN_ROWS;
    const bool gate = warp >= TOKEN_ROWS;
    if (row < a.n) {
        select_row(t, a, row);
        store_logits(t, gate, norm_factor(t, layer, !gate && lane == 0));
        if (!gate) {
            const router_choice c = choose_slot(t, slot_of(t), [] {});
            const float weight = weigh_slot(c, slot_of(t));
            if (lane == 0) t.own->weight = weight, t.s->chosen[row] = c.expert;
        } else if (has_shared(t)) {
            const float value = await_value(t.a->mail->shared_gate, t.tag);
            if (lane == 0) t.own->shared_weight = sigmoid_finite(value);
        }
    }
    if (!gate) barrier_arrive(&t.s->all_chosen);
}

/* The shared expert's down, one block of the warp's strip: of row 4q + lane % 4. */
__device__ static inline void multiply_shared_outer(token_state &t, const token_rows_args &a,
                                                    float2 (&v)[QUADS])
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const unsigned char *block = take_stage(t) + warp * W4_BLOCK_BYTES;
    const uint32_t *pairs = (const uint32_t *)(block + W4_CODE_BYTES) + lane / 4;
    strip_pair p;
    p.codes[0] = ((const uint4 *)block)[lane], p.low[0] = pairs[0], p.high[0] = pairs[8];
    give_stage(t);
    held_rows x;
    hold_shared_rows(t, x, CHOSEN_UNITS);
#pragma unroll
    for (int q = 0; q < QUADS; q++)
        if (4 * q < a.n) v[q] = multiply_group(p, x, q, 0);
}

/* As multiply_outer's end, for row r; `shared` is multiply_shared_outer's. */
__device__ static inline void multiply_outer_row(token_state &t, const float2 (&shared)[QUADS],
                                                 int r)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const unsigned char *first = take_stage(t) + warp * OUTER_BYTES;
    held_groups x;
    hold_shared(t, x, 0);
    const four_blocks f = take_blocks<W4_BLOCK_BYTES>(first, first + 2 * W4_BLOCK_BYTES);
    give_stage(t);
    float2 sum = make_float2(0, 0);
    const float2 v = multiply_blocks(f, x);
    sum.x += v.x, sum.y += v.y;
    if (has_shared(t)) {
        const float2 own = QUADS > 1 && r >= 4 ? shared[QUADS - 1] : shared[0];
        const int from = (lane & ~3) + r % 4;
        const float low = __shfl_sync(0xffffffffu, own.x, from);
        const float high = __shfl_sync(0xffffffffu, own.y, from);
        if (lane % 4 == 0) sum.x += low, sum.y += high;
    }
    store_partial(t, sum);
}

__device__ static inline void run_moe(token_state &t, const token_rows_args &a, int layer,
                                      const held_rows &x)
{
    const int warp = threadIdx.x / WARP, n_units = CHOSEN_UNITS + has_shared(t);
#pragma unroll 1
    for (int r = 0; r < a.n; r++) {
        held_groups h;
        select_row(t, a, r);
        hold_row(h, x, r);
#pragma unroll 1
        for (int i = 0; i < CHOSEN_UNITS; i += 2) multiply_strips(t, h, i, 2);
    }
    sync_threads<CONSUMER_THREADS>();
#pragma unroll 1
    for (int i = warp; i < a.n * n_units * 2; i += CONSUMERS) {
        select_row(t, a, i / (2 * n_units));
        store_inner(t, i / 2 % n_units, i % 2, norm_factor(t, layer, false));
    }
#pragma unroll 1
    for (int i = warp; i < a.n * n_units; i += CONSUMERS) {
        select_row(t, a, i / n_units);
        share_inner(t, i % n_units, weight_of(t, i % n_units));
    }
    sync_threads<CONSUMER_THREADS>();
    float2 shared[QUADS] = {};
    if (has_shared(t)) multiply_shared_outer(t, a, shared);
#pragma unroll 1
    for (int r = 0; r < a.n; r++) {
        select_row(t, a, r);
        multiply_outer_row(t, shared, r);
    }
}

/* The head's pairs of strips, in turn into two halves of `parts`. A thread has an output of up to
 * two rows. */
__device__ static inline void run_head(token_state &t, const token_rows_args &a, const held_rows &x)
{
    enum { OUTPUTS = 2 * W4_STRIP_ROWS, AT_ONCE_ROWS = CONSUMER_THREADS / 4 / OUTPUTS };
    const int output = threadIdx.x / 4 % OUTPUTS, first_row = threadIdx.x / 4 / OUTPUTS;
    const int n_pairs = head_pairs(a.rows[0]), n_vocab = a.rows[0].n_vocab;
    float r[TOKEN_ROWS / AT_ONCE_ROWS];
    int half = 0;
    sync_threads<CONSUMER_THREADS>();
#pragma unroll
    for (int i = 0; i < TOKEN_ROWS / AT_ONCE_ROWS; i++) {
        const int row = first_row + i * AT_ONCE_ROWS;
        if (row >= a.n) break;
        select_row(t, a, row);
        r[i] = norm_factor(t, a.rows[0].end, output == 0 && threadIdx.x % 4 == 0);
    }
#pragma unroll 1
    for (int pair = block_index(t); pair < n_pairs; pair += TOKEN_BLOCKS) {
        multiply_strips_rows(t, x, half, 2, a.n);
        sync_threads<CONSUMER_THREADS>();
        const int at = pair * OUTPUTS + output;
#pragma unroll
        for (int i = 0; i < TOKEN_ROWS / AT_ONCE_ROWS; i++) {
            const int row = first_row + i * AT_ONCE_ROWS;
            if (row >= a.n) break;
            t.own = &t.s->rows[row];
            const float sum =
                r[i] * sum_parts(t, half + output / W4_STRIP_ROWS, output % W4_STRIP_ROWS);
            if (threadIdx.x % 4 == 0 && at < n_vocab) a.rows[row].logits[at] = sum;
        }
        half ^= 2;
    }
}

__device__ static inline void run_layers(token_state &t, const token_rows_args &a)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int first = 2 * a.rows[0].first, end = 2 * a.rows[0].end;
    float2 own = make_float2(0, 0);
#pragma unroll 1
    for (int half = first; half <= end; half++) {
        const bool last = half == end, experts = half % 2 && !last;
        const token_layer &l = t.s->layers[last ? 0 : half / 2];
        float2 factor[2];
        held_rows x;
        load_norm(factor, last ? a.rows[0].final_norm : experts ? l.post_norm : l.input_norm);
        load_rows(t, a, x, own, factor, half == first, experts ? take_stage(t) : NULL);
        if (experts) {
            give_stage(t);
            sync_threads<CONSUMER_THREADS>();
            choose_rows(t, a, half / 2);
        }
        /* What all rows are multiplied by: projections, or the shared expert's gate and up. */
        const int n_strips = last             ? 0
                             : experts        ? has_shared(t)
                             : l.is_attention ? attention_strips(t)
                                              : HEAD_STRIPS;
#pragma unroll 1
        for (int i = 0; i < n_strips; i += 2)
            multiply_strips_rows(t, x, experts ? CHOSEN_UNITS : i, min(n_strips - i, 2), a.n);
        if (last) {
            if (warp < a.n && lane < 8)
                ((float2 *)(a.rows[warp].x + block_index(t) * 16))[lane] = own;
            if (a.rows[0].logits) run_head(t, a, x);
        } else if (experts) {
            run_moe(t, a, half / 2, x);
        } else {
            if (l.is_attention)
                mix_attention(t, a, l, half / 2);
            else
                mix_gdn(t, a, l, half / 2, x);
            sync_threads<CONSUMER_THREADS>();
            multiply_out_rows(t, a);
        }
        t.tag++;
    }
    if (threadIdx.x == 0 && block_index(t) == 0)
        a.rows[0].barrier[1] = t.arrivals, a.rows[0].barrier[2] = t.tag;
}

__device__ static inline void place_rows(token_state &t, const token_rows_args &a)
{
    const int r = threadIdx.x;
    if (r == 0) barrier_start(&t.s->all_chosen, TOKEN_ROWS * WARP);
    if (r >= a.n) return;
    const token_args &row = a.rows[r];
    const step_row &in = row.input->rows[row.row];
    t.s->places[r] = {row.store.states + (size_t)in.state * row.store.state_floats,
                      row.store.tables + (size_t)in.slot * row.store.max_blocks, in.position};
}
#endif

__global__ void __launch_bounds__(TOKEN_THREADS, 1)
    token_rows_kernel(const __grid_constant__ token_rows_args a)
{
#if TOKEN_KERNEL
    extern __shared__ __align__(128) unsigned char shared[];
    token_state t = {};
    t.s = (token_shared *)shared, t.own = t.s->rows;
    t.a = &a.rows[0];
    t.rank = blockIdx.x % TOKEN_RANKS, t.team = blockIdx.x / TOKEN_RANKS;
    place_rows(t, a);
    start_block(t);
    wait_for_previous_kernel();
    t.arrivals = __ldcg(t.a->barrier + 1), t.tag = __ldcg(t.a->barrier + 2) + 1;
    __syncthreads();
    if (threadIdx.x >= CONSUMER_THREADS)
        fill_ring(t, a);
    else
        run_layers(t, a);
#endif
}

extern "C" bool token_rows_fit_device(int n_multiprocessors)
{
    return token_kernel_fits(token_rows_kernel, n_multiprocessors);
}

extern "C" cudaError_t launch_token_rows(const token_rows_args *a, cudaStream_t stream)
{
    return launch_token_kernel(token_rows_kernel, *a, stream);
}
