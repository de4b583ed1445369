/* From the checkpoint's row-major 4-bit matrices to the blocks of cuda/layout.h. */
#include "cuda/common.cuh"

/* A thread has one group of one row: 32 bytes of codes, a scale and a bias. Rows r and r + 8 of a
 * strip share words, so nibbles are put in by OR into zeros. */
__global__ void __launch_bounds__(256) repack_kernel(repack_args a)
{
    const int groups = a.cols / W4_GROUP;
    const int64_t item = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (item >= a.n * groups) return;
    const int64_t i = item / groups;
    const int g = (int)(item % groups);
    int64_t row = a.first + i;
    if (a.order != REPACK_PLAIN) row = row / 8 * 16 + row % 8 + (a.order == REPACK_UP ? 8 : 0);
    const int r = (int)(row % W4_STRIP_ROWS);
    unsigned char *block = a.blocks + ((row / W4_STRIP_ROWS) * groups + g) * W4_BLOCK_BYTES;
    ((uint32_t *)(block + W4_CODE_BYTES))[r] = (uint32_t)a.scales[item] | (uint32_t)a.biases[item]
                                                                              << 16;
    const unsigned char *codes = a.codes + i * (a.cols / 2) + g * (W4_GROUP / 2);
    for (int j = 0; j < 4; j++)
        for (int t = 0; t < 4; t++) {
            /* Columns 2t, 2t + 1 and 2t + 8, 2t + 9 of k-step j. */
            const uint32_t low = codes[8 * j + t], high = codes[8 * j + t + 4];
            const uint32_t word =
                (low & 15) | (high & 15) << 8 | (low >> 4) << 16 | (high >> 4) << 24;
            uint32_t *to = (uint32_t *)block + ((r % 8) * 4 + t) * 4 + j;
            atomicOr(to, r < 8 ? word : word << 4);
        }
}

extern "C" cudaError_t launch_repack(const repack_args *a, cudaStream_t stream)
{
    const int64_t items = a->n * (a->cols / W4_GROUP);
    return launch(repack_kernel, dim3(divide_up(items, 256)), 256, 0, stream, false, *a);
}

__global__ void __launch_bounds__(256)
    pair_kernel(const uint16_t *scales, const uint16_t *biases, int64_t n, uint32_t *pairs)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) pairs[i] = (uint32_t)scales[i] | (uint32_t)biases[i] << 16;
}

extern "C" cudaError_t launch_pair(const uint16_t *scales, const uint16_t *biases, int64_t n,
                                   uint32_t *pairs, cudaStream_t stream)
{
    return launch(pair_kernel, dim3(divide_up(n, 256)), 256, 0, stream, false, scales, biases, n,
                  pairs);
}
