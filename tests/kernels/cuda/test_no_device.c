/* What is said where CUDA's backend cannot be opened: no driver, an old one, no device, an old one,
 * memory that the model does not fit in, or that is refused piece by piece. No device is needed:
 * the linker puts the functions below in the place of the runtime's (--wrap). */
#include "support/oracle.h"
#include "support/support.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a device that is made up ---- */

static cudaError_t found;        /* what asking for devices gives */
static int n_devices, driver;    /* of that kind; the version that the driver says */
static int major;                /* compute capability */
static size_t room;              /* free memory */
static int allocations, fail_at; /* the one that is refused, counted from 0, -1 = none */
static int n_held;               /* not given back yet */

/* Only the linker calls them by these names. */
#define FAKE(name, parameters)                                                                     \
    cudaError_t __wrap_##name parameters;                                                          \
    cudaError_t __wrap_##name parameters

FAKE(cudaGetDeviceCount, (int *n))
{
    *n = found == cudaSuccess ? n_devices : 0;
    return found;
}
FAKE(cudaDriverGetVersion, (int *version))
{
    *version = driver;
    return cudaSuccess;
}
FAKE(cudaGetDevice, (int *device))
{
    *device = 0;
    return cudaSuccess;
}
FAKE(cudaDeviceGetAttribute, (int *value, enum cudaDeviceAttr attribute, int device))
{
    (void)device;
    *value = attribute == cudaDevAttrComputeCapabilityMajor   ? major
             : attribute == cudaDevAttrComputeCapabilityMinor ? 0
             : attribute == cudaDevAttrMultiProcessorCount    ? 132
                                                              : 232448;
    return cudaSuccess;
}
FAKE(cudaGetDeviceProperties, (struct cudaDeviceProp * p, int device))
{
    (void)device;
    snprintf(p->name, sizeof p->name, "Old Card");
    return cudaSuccess;
}
FAKE(cudaFuncSetAttribute, (const void *f, enum cudaFuncAttribute a, int value))
{
    (void)f, (void)a, (void)value;
    return cudaSuccess;
}
FAKE(cudaMemGetInfo, (size_t * free_bytes, size_t *total_bytes))
{
    *free_bytes = room;
    *total_bytes = (size_t)8 << 30;
    return cudaSuccess;
}

static cudaError_t hold(void **p)
{
    *p = malloc(1); /* nobody looks into what is the device's */
    n_held += *p != NULL;
    return *p ? cudaSuccess : cudaErrorUnknown;
}
static cudaError_t allocate(void **p)
{
    *p = NULL;
    return allocations++ == fail_at ? cudaErrorMemoryAllocation : hold(p);
}
static cudaError_t give_back(void *p)
{
    n_held -= p != NULL;
    free(p);
    return cudaSuccess;
}
FAKE(cudaMalloc, (void **p, size_t n))
{
    (void)n;
    return allocate(p);
}
FAKE(cudaFree, (void *p))
{
    return give_back(p);
}
/* The host does look into its own. */
FAKE(cudaHostAlloc, (void **p, size_t n, unsigned flags))
{
    (void)flags;
    cudaError_t status = allocate(p);
    if (status != cudaSuccess) return status;
    free(*p);
    *p = calloc(1, n);
    return *p ? cudaSuccess : cudaErrorUnknown;
}
FAKE(cudaFreeHost, (void *p))
{
    return give_back(p);
}
FAKE(cudaStreamCreateWithFlags, (cudaStream_t * s, unsigned flags))
{
    (void)flags;
    return hold((void **)s);
}
FAKE(cudaStreamDestroy, (cudaStream_t s))
{
    return give_back(s);
}
FAKE(cudaStreamSynchronize, (cudaStream_t s))
{
    (void)s;
    return cudaSuccess;
}
FAKE(cudaEventCreateWithFlags, (cudaEvent_t * e, unsigned flags))
{
    return __wrap_cudaStreamCreateWithFlags((cudaStream_t *)e, flags);
}
FAKE(cudaEventDestroy, (cudaEvent_t e))
{
    return give_back(e);
}
FAKE(cudaMemcpyAsync,
     (void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s))
{
    (void)to, (void)from, (void)n, (void)kind, (void)s;
    return cudaSuccess;
}
FAKE(cudaMemsetAsync, (void *to, int value, size_t n, cudaStream_t s))
{
    (void)to, (void)value, (void)n, (void)s;
    return cudaSuccess;
}
FAKE(cudaGetLastError, (void))
{
    return cudaSuccess;
}

/* ---- tests ---- */

static void reset(void)
{
    found = cudaSuccess;
    n_devices = 1;
    driver = 13000;
    major = 9;
    room = (size_t)8 << 30;
    allocations = 0;
    fail_at = -1;
    n_held = 0;
    unsetenv("CUDA_VISIBLE_DEVICES");
}

/* The model is not opened; the error has all the parts (NULL-terminated), and nothing is held. */
static void expect(calla_status status, const char *const *parts)
{
    backend_options options = oracle_options("auto");
    backend *b = NULL;
    calla_error err = {0};
    assert_int_equal(test_ops()->open(&oracle_mlx4, &options, &b, &err), status);
    for (; *parts; parts++)
        if (!strstr(err.message, *parts)) fail_msg("\"%s\" lacks \"%s\"", err.message, *parts);
    assert_int_equal(n_held, 0);
}
#define EXPECT(status, ...) expect(status, (const char *const[]){__VA_ARGS__, NULL})

static void drivers_and_devices(void **state)
{
    (void)state;
    reset();
    found = cudaErrorInsufficientDriver;
    driver = 0;
    EXPECT(CALLA_ERR_UNSUPPORTED, "backend cuda: no NVIDIA driver");
    driver = 11080;
    EXPECT(CALLA_ERR_UNSUPPORTED, "the NVIDIA driver is one for CUDA 11.8, one for ", "is needed");
    found = cudaErrorNoDevice;
    EXPECT(CALLA_ERR_UNSUPPORTED, "backend cuda: no device (no CUDA-capable device");
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    EXPECT(CALLA_ERR_UNSUPPORTED, "no device", "CUDA_VISIBLE_DEVICES is \"\"");
    reset();
    n_devices = 0;
    EXPECT(CALLA_ERR_UNSUPPORTED, "no device (there is none)");
    n_devices = 1;
    major = 7;
    EXPECT(CALLA_ERR_UNSUPPORTED, "device 0 (Old Card) has compute capability 7.0, 8.0 is needed");
    n_devices = 2;
    EXPECT(CALLA_ERR_UNSUPPORTED, "8.0 is needed", "CUDA_VISIBLE_DEVICES chooses among the 2");
}

static void too_little_memory(void **state)
{
    (void)state;
    reset();
    room = 1000000;
    EXPECT(CALLA_ERR_MEMORY, "GB of device memory are needed, 0.00 of 8.59 GB are free", "weights ",
           "KV cache of 1024 tokens for each of 4 sequences ", "in all ");
    assert_int_equal(allocations, 0);
}

/* Each allocation in turn: its name, and the plan. */
static void refused_memory(void **state)
{
    (void)state;
    static const char *const names[] = {
        "weights: ",      "KV cache: ",       "recurrent states: ",
        "snapshots: ",    "activations: ",    "page-locked host buffers: ",
        "block tables: ", "upload buffers: ", "page-locked upload buffers: ",
    };
    for (int i = 0; i < (int)(sizeof names / sizeof *names); i++) {
        reset();
        fail_at = i;
        EXPECT(CALLA_ERR_MEMORY, "backend cuda: ", names[i],
               strstr(names[i], "page-locked") || strstr(names[i], "tables") ? "page-locked memory"
                                                                             : "device memory",
               "in all ");
        assert_int_equal(allocations, i + 1);
    }
}

int main(void)
{
    setenv("CALLA_TEST_BACKEND", "cuda", 1);
    reset(); /* the tests' support looks for a device */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drivers_and_devices),
        cmocka_unit_test(too_little_memory),
        cmocka_unit_test(refused_memory),
    };
    return cmocka_run_group_tests(tests, oracle_setup, oracle_teardown);
}
