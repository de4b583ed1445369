#include "device.h"

#include "cuda/prefill_kernels.cuh"
#include "support/support.h"

enum { MOST_ALLOCATIONS = 512 };

static void *allocations[MOST_ALLOCATIONS];
static int n_allocations;

void assert_cuda(cudaError_t status, const char *what)
{
    if (status != cudaSuccess) fail_msg("%s: %s", what, cudaGetErrorString(status));
}

bool gpu_begin(void)
{
    int n = 0;
    prefill_device device;
    return cudaGetDeviceCount(&n) == cudaSuccess && n > 0 &&
           prefill_device_init(&device, false) == cudaSuccess;
}

void *gpu_bytes(const void *from, size_t n)
{
    void *p;
    assert_true(n_allocations < MOST_ALLOCATIONS);
    assert_cuda(cudaMalloc(&p, n + 256), "cudaMalloc");
    allocations[n_allocations++] = p;
    assert_cuda(cudaMemset(p, 0xff, n + 256), "cudaMemset"); /* NaN */
    if (from) assert_cuda(cudaMemcpy(p, from, n, cudaMemcpyHostToDevice), "cudaMemcpy");
    return p;
}

float *gpu_floats(const float *from, size_t n)
{
    return gpu_bytes(from, n * sizeof(float));
}

void gpu_free(void *p)
{
    int i = 0;
    while (i < n_allocations && allocations[i] != p) i++;
    assert_true(i < n_allocations);
    allocations[i] = allocations[--n_allocations];
    assert_cuda(cudaFree(p), "cudaFree");
}

void gpu_free_all(void)
{
    while (n_allocations > 0) gpu_free(allocations[n_allocations - 1]);
}

void gpu_fetch(void *to, const void *from, size_t n)
{
    assert_cuda(cudaDeviceSynchronize(), "a kernel");
    assert_cuda(cudaMemcpy(to, from, n, cudaMemcpyDeviceToHost), "cudaMemcpy");
}

w4_matrix gpu_empty_w4(int32_t rows, int32_t cols)
{
    size_t bytes = w4_bytes(rows, cols);
    void *blocks = gpu_bytes(NULL, bytes);
    assert_cuda(cudaMemset(blocks, 0, bytes), "cudaMemset");
    return (w4_matrix){blocks, rows, cols};
}
