/* Decode: the steps of several layers of one row in one kernel. Between two kernels lies more time
 * than between two steps here: before sm_90 all of a launch, and its weights are asked for only
 * then.
 *
 * A block does one block's work of one step. Blocks start in the order of their numbers, which is
 * that of the steps, and wait for blocks with smaller numbers only, so that they always end. While
 * a step's blocks wait they have asked for their weights; as many are ahead as the device holds. */
#include "cuda/gdn.cuh"
#include "cuda/gemv.cuh"
#include "cuda/moe.cuh"

#include <assert.h>

static constexpr int CHAIN_THREADS = GEMV_THREADS, BLOCKS_AT_ONCE = 2;
static_assert(CHAIN_THREADS == (int)GDN_THREADS && CHAIN_THREADS == (int)MOE_THREADS,
              "steps have blocks of one size");

__device__ static int step_of(const chain_args &a, int block)
{
    int step = 0;
#pragma unroll
    for (int bit = CHAIN_STEPS / 2; bit > 0; bit /= 2)
        if (step + bit < a.n_steps && a.steps[step + bit].first_block <= block) step += bit;
    return step;
}

template <typename SHAPE>
__global__ void __launch_bounds__(CHAIN_THREADS, BLOCKS_AT_ONCE)
    chain_kernel(const __grid_constant__ chain_args a)
{
    extern __shared__ __align__(16) unsigned char shared[];
    const int number = step_of(a, blockIdx.x);
    const chain_step &s = a.steps[number];
    const int block = blockIdx.x - s.first_block;
    chain_order order = {NULL, NULL, 0, 0};
    if (number > 0) order.input = a.counters + number - 1, order.n_input = s.first_block - s.before;
    if (number > 1)
        order.older = a.counters + number - 2,
        order.n_older = s.before - a.steps[number - 2].first_block;
    release_next_kernel();
    switch (s.kind) {
    case CHAIN_GEMV_NORM:
        gemv_block<1, GEMV_INPUT_NORM, GEMV_OUTPUT_STORE, SHAPE::HIDDEN>(s.of.gemv, block,
                                                                         s.n_blocks, shared, order);
        break;
    case CHAIN_GEMV_GATED_NORM:
        gemv_block<1, GEMV_INPUT_GATED_NORM, GEMV_OUTPUT_ADD, SHAPE::MIXED>(
            s.of.gemv, block, s.n_blocks, shared, order);
        break;
    case CHAIN_GEMV_PLAIN:
        gemv_block<1, GEMV_INPUT_PLAIN, GEMV_OUTPUT_ADD, SHAPE::MIXED>(s.of.gemv, block, s.n_blocks,
                                                                       shared, order);
        break;
    case CHAIN_GDN:
        gdn_block(s.of.gdn, block, 0, order);
        break;
    case CHAIN_ROUTER:
        router_block<SHAPE>(s.of.router, block, shared, order);
        break;
    case CHAIN_INNER:
        expert_inner_block<SHAPE>(s.of.experts, block, 0, shared, order);
        break;
    case CHAIN_OUTER:
        expert_outer_block<SHAPE>(s.of.experts, block, 0, shared, order);
        break;
    }
    __syncthreads();
    if (threadIdx.x == 0) add_release(a.counters + number, 1);
}

/* ---- making one ---- */

static chain_step *add_step(chain_args *a, chain_kind kind, int n_blocks, size_t shared_bytes)
{
    assert(a->n_steps < CHAIN_STEPS);
    chain_step *s = &a->steps[a->n_steps];
    s->kind = kind;
    s->first_block = a->n_blocks;
    s->before = a->n_steps > 0 ? a->steps[a->n_steps - 1].first_block : 0;
    s->n_blocks = n_blocks;
    a->n_steps++;
    a->n_blocks += n_blocks;
    if (a->shared_bytes < shared_bytes) a->shared_bytes = shared_bytes;
    return s;
}

extern "C" void chain_add_gemv(chain_args *a, const gemv_args *gemv, int n_multiprocessors)
{
    const int blocks = gemv_blocks(&gemv->w), most = BLOCKS_AT_ONCE * n_multiprocessors;
    static const chain_kind kinds[] = {CHAIN_GEMV_NORM, CHAIN_GEMV_GATED_NORM, CHAIN_GEMV_PLAIN};
    const int cols = gemv->input == GEMV_INPUT_NORM ? large_shape::HIDDEN : large_shape::MIXED;
    a->any_shape |= gemv->w.cols != cols;
    add_step(a, kinds[gemv->input], blocks < most ? blocks : most,
             gemv_shared_bytes(1, gemv->w.cols))
        ->of.gemv = *gemv;
}

extern "C" void chain_add_gdn(chain_args *a, const gdn_step_args *gdn)
{
    add_step(a, CHAIN_GDN, gdn->value_heads * SLICES, 0)->of.gdn = *gdn;
}

extern "C" void chain_add_router(chain_args *a, const router_args *router)
{
    a->any_shape |= router->w.cols != large_shape::HIDDEN;
    add_step(a, CHAIN_ROUTER, router_blocks(router), router_shared_bytes(router))->of.router =
        *router;
}

extern "C" void chain_add_experts(chain_args *a, const expert_args *experts)
{
    typedef large_shape large;
    a->any_shape |= experts->inner.cols != large::HIDDEN || experts->k != large::CHOSEN ||
                    experts->outer.cols != large::WIDTH ||
                    experts->shared_outer.cols != large::WIDTH;
    add_step(a, CHAIN_INNER, inner_blocks(experts), inner_shared_bytes(experts))->of.experts =
        *experts;
    add_step(a, CHAIN_OUTER, outer_blocks(experts), outer_shared_bytes(experts))->of.experts =
        *experts;
}

extern "C" cudaError_t launch_chain(const chain_args *a, cudaStream_t stream)
{
    void (*const kernel)(const chain_args) =
        a->any_shape ? chain_kernel<any_shape> : chain_kernel<large_shape>;
    if (a->shared_bytes > 48 << 10) RETURN_IF_FAILED(allow_shared(kernel, a->shared_bytes));
    return launch(kernel, dim3((unsigned)a->n_blocks), CHAIN_THREADS, a->shared_bytes, stream, true,
                  *a);
}
