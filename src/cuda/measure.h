/* For backend_ops.measure: measure.c calls measure.cu. */
#ifndef CALLA_CUDA_MEASURE_H
#define CALLA_CUDA_MEASURE_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Reads n_bytes of device memory once, in pieces of 16. */
cudaError_t launch_read(const void *data, size_t n_bytes, int n_multiprocessors, void *sink,
                        cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
