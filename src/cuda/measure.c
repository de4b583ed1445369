#include "cuda/measure.h"
#include "cuda/cuda.h"

enum { ROUNDS = 5 };

/* Seconds of the fastest of some rounds of `run`, after one to warm up. */
static calla_status fastest(backend *b, cudaError_t (*run)(backend *b), double *seconds,
                            calla_error *err)
{
    cudaEvent_t *e = b->profile.events; /* not in use while measuring */
    float best = 1e30f;
    for (int i = 0; i <= ROUNDS; i++) {
        float ms;
        TRY_CUDA(b, cudaEventRecord(e[0], b->stream), "measuring", err);
        TRY_CUDA(b, run(b), "measuring", err);
        TRY_CUDA(b, cudaEventRecord(e[1], b->stream), "measuring", err);
        TRY_CUDA(b, cudaEventSynchronize(e[1]), "measuring", err);
        TRY_CUDA(b, cudaEventElapsedTime(&ms, e[0], e[1]), "measuring", err);
        if (i > 0 && ms < best) best = ms;
    }
    *seconds = (double)best * 1e-3;
    return CALLA_OK;
}

static size_t read_bytes(const backend *b)
{
    const size_t most = (size_t)4 << 30;
    return b->w.memory.used < most ? b->w.memory.used : most;
}

/* The weights, which are what decode reads. */
static cudaError_t run_read(backend *b)
{
    return launch_read(b->w.memory.memory, read_bytes(b), b->device.n_sms, b->d.output, b->stream);
}

static int32_t product_rows(const backend *b)
{
    return b->options.prefill_chunk;
}

/* The largest product of prefill that is not an expert's: the fastest it does. What tensor cores
 * could do without the weights' conversion is more. High and low halves, or planes, count. */
static cudaError_t run_product(backend *b)
{
    const device_layer *l = &b->w.layers[0];
    prefill_gemm_args a = {.w = l->in.w,
                           .factors = l->in.factors,
                           .x = b->p.split,
                           .ldx = split_halves(l->in.w.cols),
                           .n_rows = product_rows(b),
                           .n_inputs = product_rows(b),
                           .rounded = b->p.rounded,
                           .output = PREFILL_STORE_F32,
                           .y = b->p.projected,
                           .ldy = l->in.w.rows};
    return prefill_gemm(&b->device, &a, b->stream);
}

calla_status cuda_measure(backend *b, calla_machine_rates *rates, calla_error *err)
{
    const device_layer *l = &b->w.layers[0];
    double seconds;
    CALLA_TRY(cuda_profile_set(b, true));
    CALLA_TRY(cuda_profile_set(b, false));
    CALLA_TRY(fastest(b, run_read, &seconds, err));
    rates->read_bytes_per_second = (double)read_bytes(b) / seconds;
    TRY_CUDA(
        b,
        cudaMemsetAsync(b->p.split, 0x2e,
                        (size_t)product_rows(b) * (size_t)split_halves(b->config.hidden_size) * 2,
                        b->stream),
        "measuring", err);
    CALLA_TRY(fastest(b, run_product, &seconds, err));
    rates->matrix_operations_per_second =
        4.0 * product_rows(b) * (double)l->in.w.rows * (double)l->in.w.cols / seconds;
    return CALLA_OK;
}
