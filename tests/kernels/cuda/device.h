/* Device memory for tests of CUDA kernels. What goes wrong fails the test. */
#ifndef CALLA_TESTS_KERNELS_CUDA_DEVICE_H
#define CALLA_TESTS_KERNELS_CUDA_DEVICE_H

#include "cuda/decode_kernels.h"

/* Whether there is a device that the kernels can run on; makes it ready for them. */
bool gpu_begin(void);

/* `what` was tried. */
void assert_cuda(cudaError_t status, const char *what);

/* n bytes, and some more, that were NaN before they became `from`; NULL: they stay so. To be given
 * back one by one or with all others. */
void *gpu_bytes(const void *from, size_t n);
float *gpu_floats(const float *from, size_t n);
void gpu_free(void *p);
void gpu_free_all(void);

/* Waits for all kernels, then copies n bytes to the host. */
void gpu_fetch(void *to, const void *from, size_t n);

/* A matrix of zeros [rows][cols]: what repacking writes to. */
w4_matrix gpu_empty_w4(int32_t rows, int32_t cols);

#endif
