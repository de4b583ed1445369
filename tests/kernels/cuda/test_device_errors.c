/* Every call into CUDA may fail: each kind is made to, here and there, while a model is opened and
 * runs. The failure is returned with a message, the backend is over, and nothing is left behind.
 * The linker puts the functions below before the real ones (--wrap). */
#include "support/oracle.h"
#include "support/support.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

/* ---- calls that fail ---- */

enum { MAX_KINDS = 40 };
static const char *kinds[MAX_KINDS]; // [n_kinds] names, in the order of their first calls
static int n_calls[MAX_KINDS], n_kinds;
static int n_calls_open[MAX_KINDS];   /* before the backend is closed, which has nobody to tell */
static int fail_kind = -1, fail_call; /* which call of which kind is to fail */
static bool fired;
static cudaError_t pending; /* of a launch, for cudaGetLastError */

static cudaError_t injected(const char *kind)
{
    int k = 0;
    while (k < n_kinds && strcmp(kinds[k], kind) != 0) k++;
    if (k == n_kinds) kinds[n_kinds++] = kind;
    if (k != fail_kind || n_calls[k]++ != fail_call) {
        if (k != fail_kind) n_calls[k]++;
        return cudaSuccess;
    }
    fired = true;
    bool allocates = strcmp(kind, "cudaMalloc") == 0 || strcmp(kind, "cudaHostAlloc") == 0;
    return allocates ? cudaErrorMemoryAllocation : cudaErrorLaunchFailure;
}

#define WRAP(name, parameters, arguments)                                                          \
    cudaError_t __real_##name parameters;                                                          \
    cudaError_t __wrap_##name parameters;                                                          \
    cudaError_t __wrap_##name parameters                                                           \
    {                                                                                              \
        cudaError_t status = injected(#name);                                                      \
        return status == cudaSuccess ? __real_##name arguments : status;                           \
    }

WRAP(cudaGetDeviceCount, (int *n), (n))
WRAP(cudaDeviceGetAttribute, (int *value, enum cudaDeviceAttr a, int device), (value, a, device))
WRAP(cudaFuncSetAttribute, (const void *f, enum cudaFuncAttribute a, int value), (f, a, value))
WRAP(cudaMalloc, (void **p, size_t n), (p, n))
WRAP(cudaHostAlloc, (void **p, size_t n, unsigned flags), (p, n, flags))
WRAP(cudaStreamCreateWithFlags, (cudaStream_t * s, unsigned flags), (s, flags))
WRAP(cudaEventCreate, (cudaEvent_t * e), (e))
WRAP(cudaEventCreateWithFlags, (cudaEvent_t * e, unsigned flags), (e, flags))
WRAP(cudaMemcpyAsync,
     (void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s),
     (to, from, n, kind, s))
WRAP(cudaMemsetAsync, (void *to, int value, size_t n, cudaStream_t s), (to, value, n, s))
WRAP(cudaEventRecord, (cudaEvent_t e, cudaStream_t s), (e, s))
WRAP(cudaEventSynchronize, (cudaEvent_t e), (e))
WRAP(cudaEventElapsedTime, (float *ms, cudaEvent_t a, cudaEvent_t b), (ms, a, b))
WRAP(cudaStreamSynchronize, (cudaStream_t s), (s))
WRAP(cudaStreamBeginCapture, (cudaStream_t s, enum cudaStreamCaptureMode mode), (s, mode))
WRAP(cudaGraphInstantiate, (cudaGraphExec_t * e, cudaGraph_t g, unsigned long long flags),
     (e, g, flags))
WRAP(cudaGraphLaunch, (cudaGraphExec_t e, cudaStream_t s), (e, s))
WRAP(cudaLaunchKernelExC, (const cudaLaunchConfig_t *c, const void *f, void **a), (c, f, a))

/* A recording that failed has ended all the same. */
cudaError_t __real_cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g);
cudaError_t __wrap_cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g);
cudaError_t __wrap_cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g)
{
    cudaError_t own = __real_cudaStreamEndCapture(s, g), status = injected("cudaStreamEndCapture");
    return status == cudaSuccess ? own : status;
}

/* What kernel<<<...>>> becomes. */
cudaError_t __real___cudaLaunchKernel(cudaKernel_t k, dim3 grid, dim3 block, void **arguments,
                                      size_t shared, cudaStream_t s);
cudaError_t __wrap___cudaLaunchKernel(cudaKernel_t k, dim3 grid, dim3 block, void **arguments,
                                      size_t shared, cudaStream_t s);
cudaError_t __wrap___cudaLaunchKernel(cudaKernel_t k, dim3 grid, dim3 block, void **arguments,
                                      size_t shared, cudaStream_t s)
{
    cudaError_t status = injected("kernel<<<>>>");
    if (status == cudaSuccess)
        return __real___cudaLaunchKernel(k, grid, block, arguments, shared, s);
    return pending = status; /* until somebody asks, whatever is launched behind it */
}
cudaError_t __real_cudaGetLastError(void);
cudaError_t __wrap_cudaGetLastError(void);
cudaError_t __wrap_cudaGetLastError(void)
{
    cudaError_t status = pending;
    pending = cudaSuccess;
    return status == cudaSuccess ? __real_cudaGetLastError() : status;
}

/* ---- what is run ---- */

static backend *b;
static calla_error err;

static calla_status open_model(void)
{
    backend_options options = oracle_options("auto");
    b = NULL;
    return test_ops()->open(&oracle_mlx4, &options, &b, &err);
}

/* Steps as a session runs them: the second is submitted behind the first. */
static calla_status run_steps(backend_sequence *s)
{
    static const calla_sampling drawn = {.temperature = 1, .seed = 1};
    static const calla_sampling penalized = {.presence_penalty = 1};
    int32_t generated[] = {3}, counts[ORACLE_V] = {0};
    counts[3] = 1;
    step_request request = {.sequence = s, .token = 5, .sampling = &drawn};
    step_result result;
    CALLA_TRY(test_ops()->step_submit(b, &request, 1, &err));
    request.token = TOKEN_LAST_SAMPLED;
    calla_status second = test_ops()->step_submit(b, &request, 1, &err);
    CALLA_TRY(test_ops()->step_wait(b, &result, 1, NULL, &err));
    CALLA_TRY(second);
    CALLA_TRY(test_ops()->step_wait(b, &result, 1, NULL, &err));
    request = (step_request){s, 4, &penalized, generated, counts, 1};
    CALLA_TRY(oracle_try_step(b, &request, 1, &result, NULL, &err));
    request = (step_request){.sequence = s, .token = 6};
    return oracle_try_step(b, &request, 1, &result, NULL, &err);
}

static calla_status run_all(void)
{
    static float logits[ORACLE_N * ORACLE_V];
    const backend_ops *ops = test_ops();
    backend_sequence *s, *other;
    backend_snapshot *snapshot;
    calla_control control = {0};
    calla_machine_rates rates;
    CALLA_TRY(ops->sequence_create(b, &s, &err));
    CALLA_TRY(ops->sequence_create(b, &other, &err));
    CALLA_TRY(oracle_try_prefill(b, s, oracle_ids, 100, LOGITS_LAST, logits, &control, &err));
    CALLA_TRY(ops->snapshot_create(b, s, &snapshot, &err));
    CALLA_TRY(oracle_try_prefill(b, s, oracle_ids, 20, LOGITS_ALL, logits, &control, &err));
    CALLA_TRY(run_steps(s));
    CALLA_TRY(ops->step_logits(b, 0, logits, &err));
    ops->snapshot_restore(b, snapshot, other); /* reports with what comes next */
    ops->set_profile(b, true);
    CALLA_TRY(oracle_try_prefill(b, other, oracle_ids, 10, LOGITS_NONE, NULL, &control, &err));
    step_request request = {.sequence = other, .token = 1};
    step_result result;
    CALLA_TRY(oracle_try_step(b, &request, 1, &result, NULL, &err));
    ops->set_profile(b, false);
    CALLA_TRY(ops->measure(b, &rates, &err));
    CALLA_TRY(oracle_try_prefill(b, s, oracle_ids, 1, LOGITS_NONE, NULL, &control, &err));
    return CALLA_OK;
}

/* ---- tests ---- */

static size_t free_bytes(void)
{
    size_t n = 0, total = 0;
    assert_int_equal(cudaMemGetInfo(&n, &total), cudaSuccess);
    return n;
}

/* Everything once, with call `call` of kind `kind` failing; whether it was made at all. */
static bool run_with_failure(int kind, int call)
{
    fail_kind = kind, fail_call = call;
    fired = false;
    pending = cudaSuccess;
    memset(n_calls, 0, sizeof n_calls);
    memset(&err, 0, sizeof err);
    calla_status status = open_model();
    bool opened = status == CALLA_OK;
    if (opened) status = run_all();
    const char *name = kind >= 0 ? kinds[kind] : "none";
    if (fired != (status != CALLA_OK))
        fail_msg("%s, call %d: %s", name, call, fired ? "the failure shows nowhere" : err.message);
    if (fired) {
        if (!strstr(err.message, cudaGetErrorString(cudaErrorLaunchFailure)) &&
            !strstr(err.message, "memory"))
            fail_msg("%s, call %d: \"%s\" does not say why", name, call, err.message);
        if (status != CALLA_ERR_DEVICE && status != CALLA_ERR_MEMORY &&
            status != CALLA_ERR_UNSUPPORTED)
            fail_msg("%s, call %d: status %d", name, call, (int)status);
    }
    if (opened && fired) { /* the backend is over, and says why */
        calla_error again;
        backend_sequence *s;
        assert_ok(test_ops()->sequence_create(b, &s, &again), &again);
        calla_control control = {0};
        calla_status after =
            oracle_try_prefill(b, s, oracle_ids, 2, LOGITS_NONE, NULL, &control, &again);
        assert_int_equal(after, CALLA_ERR_DEVICE);
        assert_string_equal(again.message, err.message);
        step_request request = {.sequence = s, .token = 1};
        assert_int_equal(test_ops()->step_submit(b, &request, 1, &again), CALLA_ERR_DEVICE);
    }
    bool was_fired = fired;
    memcpy(n_calls_open, n_calls, sizeof n_calls);
    fail_kind = -1;
    if (opened) test_ops()->close(b);
    return was_fired;
}

static void every_kind_of_call_may_fail(void **state)
{
    (void)state;
    assert_false(run_with_failure(-1, 0));
    int total[MAX_KINDS], n = n_kinds, n_failures = 0;
    memcpy(total, n_calls_open, sizeof total);
    size_t before = free_bytes();
    for (int k = 0; k < n; k++) {
        /* The first, the last, and some between. */
        for (int i = 0; i < 7; i++) {
            int call = i < 3 ? i : (int)((int64_t)(total[k] - 1) * (i - 2) / 4);
            if (call >= total[k] || (i >= 3 && call < 3)) continue;
            if (!run_with_failure(k, call)) fail_msg("%s, call %d: was not made", kinds[k], call);
            n_failures++;
        }
    }
    printf("%d failures of %d kinds of call\n", n_failures, n);
    assert_true(n >= 15);
    assert_int_equal(free_bytes(), before);
    assert_false(run_with_failure(-1, 0));
}

int main(void)
{
    if (strcmp(test_ops()->name, "cuda") != 0) {
        printf("SKIP: CALLA_TEST_BACKEND is not cuda\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_kind_of_call_may_fail)};
    return cmocka_run_group_tests(tests, oracle_setup, oracle_teardown);
}
