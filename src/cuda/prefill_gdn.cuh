/* What the files of Gated DeltaNet share. Private to src/cuda. */
#ifndef CALLA_CUDA_PREFILL_GDN_CUH
#define CALLA_CUDA_PREFILL_GDN_CUH

#include "cuda/prefill_device.cuh"

enum { HEAD = 128 };

cudaError_t prefill_gdn_init(const prefill_device *device);
/* The recurrence in chunks; for devices of a grid of 64. */
cudaError_t prefill_gdn_chunks(const prefill_device *device, const prefill_gdn_args *args,
                               cudaStream_t stream);

#endif
