/* What the warp does that fills the ring: every stage of a phase, in the order in which the others
 * take them. */
#ifndef CALLA_CUDA_TOKEN_FILL_CUH
#define CALLA_CUDA_TOKEN_FILL_CUH

#include "cuda/token_attention.cuh"
#include "cuda/token_gdn.cuh"
#include "cuda/token_moe.cuh"

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

/* An attention layer's projections. */
__device__ static inline void fill_projections(token_state &t, const token_layer &l)
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
}
/* The block's piece of a row's context. */
__device__ static inline void fill_context(token_state &t, const token_layer &l)
{
    const context_piece c = piece_of(t);
#pragma unroll 1
    for (int begin = c.begin; begin < c.end; begin += KV_CHUNK)
#pragma unroll 1
        for (int which = 0; which < 2; which++)
            fill_tokens(t, l, which, c.kv_head, begin, min(begin + KV_CHUNK, c.end));
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
 * reads nothing while experts are chosen, and the ring cannot run ahead of them. In pieces: a strip
 * each, then out_proj's columns. */
enum { PREFETCH_PIECES = HEAD_STRIPS + 1 };
__device__ static inline void prefetch_piece(const token_state &t, int next, int piece)
{
    const int lane = threadIdx.x % WARP, block = block_index(t);
    if (piece >= PREFETCH_PIECES) return;
    if (next == t.a->end) {
        const int pair = block + piece * TOKEN_BLOCKS;
        if (lane == 0 && t.a->logits && piece < STAGES && pair < head_pairs(*t.a))
            prefetch_bulk(t.a->head + (size_t)pair * STAGE_BYTES, STAGE_BYTES);
        return;
    }
    const token_layer &l = t.s->layers[next];
    enum { N_STRIPS = PROJECTED_ROWS / W4_STRIP_ROWS };
    if (piece == HEAD_STRIPS) {
        if (lane < 16) prefetch_bulk(out_columns(t, l, lane), OUT_BYTES);
        return;
    }
    const int strip = l.is_attention ? block + piece * TOKEN_BLOCKS
                                     : gdn_strip(t.team, t.rank * HEAD_STRIPS + piece);
    if (lane == 0 && (!l.is_attention || strip < N_STRIPS))
        prefetch_bulk(l.in + (size_t)strip * STRIP_BYTES, STRIP_BYTES);
}
__device__ static inline void prefetch_next(const token_state &t, int next)
{
#pragma unroll 1
    for (int piece = 0; piece < PREFETCH_PIECES; piece++) prefetch_piece(t, next, piece);
}

/* ---- experts ---- */

/* The block's strips of a chosen expert's gate and up, neighbours. */
__device__ static inline const unsigned char *inner_strips(const token_state &t,
                                                           const token_layer &l, int expert)
{
    const int strip = half_of(t) * (INNER_STRIPS / 2) + t.rank * CHOSEN_UNITS;
    return l.inner + ((size_t)expert * INNER_STRIPS + (size_t)strip) * STRIP_BYTES;
}
/* Of the block's strip number `strip` of its down the columns of the team's pieces, neighbours. */
__device__ static inline const unsigned char *
outer_columns(const token_state &t, const token_layer &l, int expert, int strip)
{
    const size_t row = (size_t)expert * OUTER_STRIPS + (size_t)(t.rank * CONSUMERS + strip);
    const size_t block = row * OUTER_GROUPS + (size_t)(half_of(t) * CHOSEN_UNITS);
    return l.outer + block * W4_BLOCK_BYTES;
}
__device__ static inline const unsigned char *shared_outer_block(const token_state &t,
                                                                 const token_layer &l, int strip)
{
    const size_t row = (size_t)(t.rank * CONSUMERS + strip);
    return l.shared_outer + (row * OUTER_GROUPS + (size_t)shared_group_of(t)) * W4_BLOCK_BYTES;
}

__device__ static inline void fill_inner(token_state &t, const token_layer &l, int expert)
{
    const unsigned char *from = inner_strips(t, l, expert);
    fill_whole(t, from, STAGE_BYTES);
    fill_whole(t, from + STAGE_BYTES, STAGE_BYTES);
}
__device__ static inline void fill_outer(token_state &t, const token_layer &l, int expert)
{
    const int lane = threadIdx.x % WARP;
    unsigned char *to = free_stage(t, CONSUMERS * OUTER_BYTES);
    if (lane < CONSUMERS)
        fill_piece(t, to + lane * OUTER_BYTES, outer_columns(t, l, expert, lane), OUTER_BYTES);
    next_stage(t);
}
__device__ static inline void fill_shared_inner(token_state &t, const token_layer &l)
{
    fill_whole(t, l.shared_inner + (size_t)(8 * shared_group_of(t) + t.rank) * STRIP_BYTES,
               STRIP_BYTES);
}
__device__ static inline void fill_shared_outer(token_state &t, const token_layer &l)
{
    const int lane = threadIdx.x % WARP;
    unsigned char *to = free_stage(t, SHARED_OUTER_BYTES);
    if (lane < CONSUMERS)
        fill_piece(t, to + lane * W4_BLOCK_BYTES, shared_outer_block(t, l, lane), W4_BLOCK_BYTES);
    next_stage(t);
}

/* The head's pairs of strips. */
__device__ static inline void fill_head(token_state &t)
{
#pragma unroll 1
    for (int pair = block_index(t); pair < head_pairs(*t.a); pair += TOKEN_BLOCKS)
        fill_whole(t, t.a->head + (size_t)pair * STAGE_BYTES, STAGE_BYTES);
}

#endif
