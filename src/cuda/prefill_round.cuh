/* Inputs of the general product of prefill as two planes of int8. Private to src/cuda. */
#ifndef CALLA_CUDA_PREFILL_ROUND_CUH
#define CALLA_CUDA_PREFILL_ROUND_CUH

#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

/* A group of 64 numbers: the planes as in a rounded_row (cuda/w4.cuh), scale, sum, two zeros. A
 * row's groups follow each other. As long as an odd number of 16-byte pieces, so that neighbouring
 * rows' same piece lie in different banks of shared memory. */
enum { RECORD_BYTES = 144, RECORD_SCALE = 128 };

/* records [n_rows][cols / 64] from x [n_rows][ldx] split. Reads 4 bytes a number, writes 2.25. */
cudaError_t prefill_round(const __half *x, int64_t ldx, int32_t n_rows, int32_t cols,
                          unsigned char *records, cudaStream_t stream);

#endif
