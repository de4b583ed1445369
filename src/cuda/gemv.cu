/* Decode: products as kernels of their own (cuda/gemv.cuh). */
#include "cuda/gemv.cuh"

/* With what is held of the next strip two blocks fit a multiprocessor. */
__host__ __device__ static constexpr int blocks_at_once(int n, int cols)
{
    return cols || n > 2 ? 2 : 3;
}

template <int N, int INPUT, int OUTPUT, int COLS>
__global__ void __launch_bounds__(GEMV_THREADS, blocks_at_once(N, COLS)) gemv_kernel(gemv_args a)
{
    extern __shared__ __align__(16) unsigned char shared[];
    gemv_block<N, INPUT, OUTPUT, COLS>(a, blockIdx.x, gridDim.x, shared, stream_order());
}

/* As many blocks as there is work for, and as run at once. */
template <int N, int INPUT, int OUTPUT, int COLS>
static cudaError_t start(const gemv_args *a, int n_multiprocessors, cudaStream_t stream)
{
    const auto kernel = gemv_kernel<N, INPUT, OUTPUT, COLS>;
    int blocks = gemv_blocks(&a->w), most = blocks_at_once(N, COLS) * n_multiprocessors;
    size_t shared = gemv_shared_bytes(N, a->w.cols);
    if (shared > 48 << 10) RETURN_IF_FAILED(allow_shared(kernel, shared));
    return launch(kernel, dim3((unsigned)(blocks < most ? blocks : most)), GEMV_THREADS, shared,
                  stream, true, *a);
}

template <int INPUT, int OUTPUT>
static cudaError_t start_n(const gemv_args *a, int n_multiprocessors, cudaStream_t stream)
{
    if (a->n == 1) return start<1, INPUT, OUTPUT, 0>(a, n_multiprocessors, stream);
    if (a->n == 2) return start<2, INPUT, OUTPUT, 0>(a, n_multiprocessors, stream);
    if (a->n <= 4) return start<4, INPUT, OUTPUT, 0>(a, n_multiprocessors, stream);
    return start<8, INPUT, OUTPUT, 0>(a, n_multiprocessors, stream);
}

extern "C" cudaError_t launch_gemv(const gemv_args *a, int n_multiprocessors, cudaStream_t stream)
{
    if (a->input == GEMV_INPUT_NORM && a->n == 1 && a->w.cols == TOKEN_HIDDEN) /* the head */
        return start<1, GEMV_INPUT_NORM, GEMV_OUTPUT_STORE, TOKEN_HIDDEN>(a, n_multiprocessors,
                                                                          stream);
    if (a->input == GEMV_INPUT_NORM)
        return start_n<GEMV_INPUT_NORM, GEMV_OUTPUT_STORE>(a, n_multiprocessors, stream);
    if (a->input == GEMV_INPUT_GATED_NORM)
        return start_n<GEMV_INPUT_GATED_NORM, GEMV_OUTPUT_ADD>(a, n_multiprocessors, stream);
    return start_n<GEMV_INPUT_PLAIN, GEMV_OUTPUT_ADD>(a, n_multiprocessors, stream);
}
