#include "cuda/cuda.h"

calla_status device_check(cudaError_t status, const char *what, calla_error *err)
{
    if (status == cudaSuccess) return CALLA_OK;
    cudaGetLastError(); /* nothing else is to find it */
    return error_set(err, status == cudaErrorMemoryAllocation ? CALLA_ERR_MEMORY : CALLA_ERR_DEVICE,
                     "CUDA: %s: %s (%s)", what, cudaGetErrorString(status),
                     cudaGetErrorName(status));
}

void *device_take(device_arena *a, size_t n, size_t m, size_t element_bytes)
{
    size_t bytes, used;
    if (!size_mul(n, m, &bytes) || !size_mul(bytes, element_bytes, &bytes) ||
        !size_add(bytes, 255, &bytes) || !size_add(a->used, bytes / 256 * 256, &used)) {
        a->overflow = true;
        return NULL;
    }
    void *p = a->memory ? a->memory + a->used : NULL;
    a->used = used;
    return p;
}

calla_status device_allocate(device_arena *a, const char *what, calla_error *err)
{
    size_t free_bytes = 0, total_bytes = 0, bytes = a->used;
    void *memory;
    if (a->overflow) return error_set(err, CALLA_ERR_MEMORY, "%s: the size overflows", what);
    cudaError_t status = cudaMalloc(&memory, bytes > 0 ? bytes : 256);
    if (status == cudaErrorMemoryAllocation) {
        cudaMemGetInfo(&free_bytes, &total_bytes); /* 0 where that fails, too */
        cudaGetLastError();
        return error_set(err, CALLA_ERR_MEMORY,
                         "%s: %.2f GB of device memory are needed, %.2f of %.2f GB are free", what,
                         (double)bytes * 1e-9, (double)free_bytes * 1e-9,
                         (double)total_bytes * 1e-9);
    }
    CALLA_TRY(device_check(status, what, err));
    a->memory = memory;
    a->used = 0;
    return CALLA_OK;
}

void device_free(device_arena *a)
{
    if (a->memory) cudaFree(a->memory);
    *a = (device_arena){0};
}

calla_status pinned_allocate(size_t bytes, const char *what, void **memory, calla_error *err)
{
    cudaError_t status = cudaHostAlloc(memory, bytes, cudaHostAllocDefault);
    if (status != cudaErrorMemoryAllocation) return device_check(status, what, err);
    cudaGetLastError();
    return error_set(err, CALLA_ERR_MEMORY,
                     "%s: %.2f GB of page-locked memory are needed, the system does not give them",
                     what, (double)bytes * 1e-9);
}

calla_status backend_check(backend *b, cudaError_t status, const char *what, calla_error *err)
{
    if (status == cudaSuccess) return CALLA_OK;
    device_check(status, what, &b->failed);
    b->failed.code = CALLA_ERR_DEVICE;
    return error_set(err, CALLA_ERR_DEVICE, "%s", b->failed.message);
}
