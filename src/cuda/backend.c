#include "cuda/cuda.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening ---- */

static const char *const isa_names_list[] = {"auto", "sm_80", NULL};

static const char *const *cuda_isa_names(void)
{
    return isa_names_list;
}

static calla_status unsupported(calla_error *err, const char *what)
{
    return error_set(err, CALLA_ERR_UNSUPPORTED, "backend cuda: %s", what);
}

/* Threads only copy weights into the upload's buffers: a few reach the bus's rate. */
static int32_t cuda_choose_threads(const model_weights *weights, bool pin, bool may_measure)
{
    (void)weights, (void)pin, (void)may_measure;
    return smaller_of(usable_processors(), 8);
}

/* Why there is no device. The runtime calls a driver that is not there an old one. */
static calla_status no_device(cudaError_t status, calla_error *err)
{
    int driver = 0, needed = 0;
    char visible[128] = "";
    const char *chosen = getenv("CUDA_VISIBLE_DEVICES");
    cudaGetLastError();
    if (chosen) snprintf(visible, sizeof visible, "; CUDA_VISIBLE_DEVICES is \"%.64s\"", chosen);
    if (status == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess &&
        cudaRuntimeGetVersion(&needed) == cudaSuccess)
        return driver == 0 ? unsupported(err, "no NVIDIA driver (libcuda.so.1) is installed")
                           : error_set(err, CALLA_ERR_UNSUPPORTED,
                                       "backend cuda: the NVIDIA driver is one for CUDA %d.%d, one "
                                       "for %d.%d or newer is needed",
                                       driver / 1000, driver % 1000 / 10, needed / 1000,
                                       needed % 1000 / 10);
    return error_set(err, CALLA_ERR_UNSUPPORTED, "backend cuda: no device (%s)%s",
                     status == cudaSuccess ? "there is none" : cudaGetErrorString(status), visible);
}

/* Of several devices the first is taken, whose order CUDA_VISIBLE_DEVICES tells. */
static calla_status too_old(int n_devices, int major, int minor, calla_error *err)
{
    struct cudaDeviceProp properties = {0};
    char others[80] = "";
    if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess) cudaGetLastError();
    if (n_devices > 1)
        snprintf(others, sizeof others, "; CUDA_VISIBLE_DEVICES chooses among the %d devices",
                 n_devices);
    return error_set(
        err, CALLA_ERR_UNSUPPORTED,
        "backend cuda: device 0%s%.200s%s has compute capability %d.%d, 8.0 is needed%s",
        properties.name[0] ? " (" : "", properties.name, properties.name[0] ? ")" : "", major,
        minor, others);
}

/* Finds the device and its kernels. */
static calla_status find_device(backend *b, calla_error *err)
{
    int n = 0, major = 0, minor = 0;
    const char *isa = b->options.isa;
    cudaError_t status = cudaGetDeviceCount(&n);
    if (status != cudaSuccess || n == 0) return no_device(status, err);
    if (isa && strcmp(isa, "auto") != 0 && strcmp(isa, "sm_80") != 0)
        return error_set(err, CALLA_ERR_INPUT, "isa \"%s\" is not one of auto, sm_80 (cuda)", isa);
    CALLA_TRY(device_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0),
                           "asking the device", err));
    CALLA_TRY(device_check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0),
                           "asking the device", err));
    if (major < 8) return too_old(n, major, minor, err);
    bool general = isa && strcmp(isa, "sm_80") == 0;
    CALLA_TRY(device_check(prefill_device_init(&b->device, general),
                           "loading kernels (were they built for this device?)", err));
    b->grid = prefill_gdn_grid(&b->device);
    assert(b->grid >= 1 && b->grid <= MAX_GRID && KV_BLOCK_TOKENS % b->grid == 0);
    snprintf(b->isa, sizeof b->isa, "sm_%d%d%s", general ? 8 : major, general ? 0 : minor,
             b->device.path == PREFILL_PATH_HOPPER ? "a" : "");
    return CALLA_OK;
}

/* Runs over all memory: once to count, once to hand out. */
static void take_all(backend *b)
{
    cuda_weights_take(b);
    cuda_store_take(b);
    cuda_decode_scratch_take(b);
    cuda_prefill_scratch_take(b);
}

/* Checks what is asked for and counts memory. */
static calla_status prepare_open(backend *b, const model_weights *weights,
                                 const backend_options *options, calla_error *err)
{
    assert(options->n_ctx >= 1 && options->n_sequences >= 1);
    assert(options->prefill_chunk >= 1 && options->n_snapshots >= 0);
    *b = (backend){.weights = weights, .config = weights->config, .options = *options};
    CALLA_TRY(find_device(b, err));
    if (weights->config.layout != CALLA_LAYOUT_MLX4)
        return unsupported(err, "the checkpoint is bf16; quantize it first, or use backend cpu");
    if (options->kv_f32) return unsupported(err, "the KV cache is fp16; f32 needs backend cpu");
    if (weights->config.hidden_size > 8192)
        return unsupported(err, "hidden_size is larger than 8192");
    b->options.prefill_chunk = smaller_of(options->prefill_chunk, options->n_ctx);
    b->n_tokens = options->n_vocab_tokens ? options->n_vocab_tokens : weights->config.n_vocab;
    take_all(b);
    if (b->w.memory.overflow || b->store.kv_memory.overflow || b->store.state_memory.overflow ||
        b->store.snapshot_memory.overflow || b->scratch_memory.overflow)
        return error_set(err, CALLA_ERR_MEMORY, "the memory plan's size overflows");
    return CALLA_OK;
}

static void read_plan(const backend *b, calla_memory_plan *plan)
{
    *plan = (calla_memory_plan){
        .weights_bytes = (int64_t)b->w.memory.used,
        .kv_bytes = (int64_t)b->store.kv_memory.used,
        .state_bytes = (int64_t)b->store.state_memory.used,
        .snapshot_bytes = (int64_t)b->store.snapshot_memory.used,
        .scratch_bytes = (int64_t)b->scratch_memory.used,
    };
    plan->total_bytes = plan->weights_bytes + plan->prepared_bytes + plan->kv_bytes +
                        plan->state_bytes + plan->snapshot_bytes + plan->scratch_bytes;
}

static calla_status cuda_plan(const model_weights *weights, const backend_options *options,
                              calla_memory_plan *plan, calla_error *err)
{
    void *memory;
    CALLA_TRY(mem_alloc(1, sizeof(backend), "backend", &memory, err));
    backend *b = memory;
    calla_status status = prepare_open(b, weights, options, err);
    if (status == CALLA_OK) read_plan(b, plan);
    mem_free(b);
    return status;
}

/* Refuses before anything is allocated what cannot fit. */
static calla_status check_room(const calla_memory_plan *plan, calla_error *err)
{
    size_t free_bytes, total_bytes;
    CALLA_TRY(
        device_check(cudaMemGetInfo(&free_bytes, &total_bytes), "asking for free memory", err));
    if ((size_t)plan->total_bytes <= free_bytes) return CALLA_OK;
    return error_set(
        err, CALLA_ERR_MEMORY, "%.2f GB of device memory are needed, %.2f of %.2f GB are free",
        (double)plan->total_bytes * 1e-9, (double)free_bytes * 1e-9, (double)total_bytes * 1e-9);
}

/* Whatever there is no memory for, the plan tells what takes it. */
static void add_plan(const calla_memory_plan *p, const backend_options *o, calla_error *err)
{
    if (!err) return;
    calla_error own = *err;
    error_set(err, CALLA_ERR_MEMORY,
              "backend cuda: %.512s (weights %.2f, KV cache of %d tokens for each of %d "
              "sequences %.2f, states %.2f, snapshots %.2f, activations %.2f, in all %.2f "
              "GB)",
              own.message, (double)p->weights_bytes * 1e-9, o->n_ctx, o->n_sequences,
              (double)p->kv_bytes * 1e-9, (double)p->state_bytes * 1e-9,
              (double)p->snapshot_bytes * 1e-9, (double)p->scratch_bytes * 1e-9,
              (double)p->total_bytes * 1e-9);
}

/* Host memory that copies to and from the device go through. */
static void take_host(backend *b, arena *a)
{
    const model_config *c = &b->config;
    host_buffers *h = &b->host;
    size_t n = (size_t)step_rows(b);
    size_t rows = (size_t)chunk_rows(b), vocab = (size_t)c->n_vocab;
    size_t k = (size_t)c->n_experts_per_token, words = (vocab + 31) / 32;
    h->input = arena_take(a, STEPS_IN_FLIGHT, sizeof *h->input);
    h->output = arena_take(a, (size_t)STEPS_IN_FLIGHT * STEP_ROWS, sizeof *h->output);
    for (int i = 0; h->input && i < STEPS_IN_FLIGHT; i++) {
        b->flights[i].input = h->input + i;
        b->flights[i].output = h->output + (size_t)i * STEP_ROWS;
    }
    h->logits = arena_take(a, LOGITS_ROWS * vocab, sizeof *h->logits);
    h->tokens = arena_take(a, rows, sizeof *h->tokens);
    h->bad_layer = arena_take(a, rows, sizeof *h->bad_layer);
    h->masks = arena_take(a, n * words, sizeof *h->masks);
    h->bias_tokens = arena_take(a, n * vocab, sizeof *h->bias_tokens);
    h->bias_values = arena_take(a, n * vocab, sizeof *h->bias_values);
    h->generated_tokens = arena_take(a, n * vocab, sizeof *h->generated_tokens);
    h->generated_counts = arena_take(a, n * vocab, sizeof *h->generated_counts);
    h->route_logits = arena_take(a, rows * ((size_t)c->n_experts + 1), sizeof *h->route_logits);
    h->route_experts = arena_take(a, rows * k, sizeof *h->route_experts);
    h->route_weights = arena_take(a, rows * k, sizeof *h->route_weights);
    h->tapped = arena_take(a, rows * (size_t)c->hidden_size, sizeof *h->tapped);
}

static calla_status allocate_host(backend *b, calla_error *err)
{
    arena a = {0};
    take_host(b, &a);
    if (a.overflow) return error_set(err, CALLA_ERR_MEMORY, "host buffers: the size overflows");
    CALLA_TRY(pinned_allocate(a.used, "page-locked host buffers", &b->host.memory, err));
    arena given = {.memory = b->host.memory, .capacity = a.used};
    memset(given.memory, 0, a.used);
    take_host(b, &given);
    return CALLA_OK;
}

static calla_status allocate_device(backend *b, calla_error *err)
{
    store *s = &b->store;
    CALLA_TRY(device_allocate(&b->w.memory, "weights", err));
    CALLA_TRY(device_allocate(&s->kv_memory, "KV cache", err));
    CALLA_TRY(device_allocate(&s->state_memory, "recurrent states", err));
    CALLA_TRY(device_allocate(&s->snapshot_memory, "snapshots", err));
    CALLA_TRY(device_allocate(&b->scratch_memory, "activations", err));
    take_all(b);
    /* Attention multiplies what it masks out by zero: that must not be a NaN. */
    CALLA_TRY(device_check(cudaMemsetAsync(s->view.kv, 0, s->kv_memory.used, b->stream),
                           "clearing the KV cache", err));
    return allocate_host(b, err);
}

static calla_status create_stream(backend *b, calla_error *err)
{
    CALLA_TRY(device_check(cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking), "a stream",
                           err));
    for (int i = 0; i < 2; i++)
        CALLA_TRY(device_check(cudaEventCreateWithFlags(&b->layer_done[i], cudaEventDisableTiming),
                               "events", err));
    return CALLA_OK;
}

static void cuda_close(backend *b)
{
    if (!b) return;
    if (b->stream) cudaStreamSynchronize(b->stream);
    cuda_decode_deinit(b);
    cuda_step_deinit(b);
    cuda_store_deinit(b);
    device_free(&b->w.memory);
    device_free(&b->scratch_memory);
    if (b->host.memory) cudaFreeHost(b->host.memory);
    for (int i = 0; i <= MAX_MARKS; i++)
        if (b->profile.events[i]) cudaEventDestroy(b->profile.events[i]);
    for (int i = 0; i < 2; i++)
        if (b->layer_done[i]) cudaEventDestroy(b->layer_done[i]);
    if (b->stream) cudaStreamDestroy(b->stream);
    thread_pool_free(b->pool);
    mem_free(b);
}

static calla_status fill_constants(backend *b, calla_error *err)
{
    for (int j = 0; j < ROTARY_PAIRS; j++)
        b->inverse_frequencies[j] = pow(b->config.rope_theta, -2.0 * j / ROTARY_DIMS);
    return device_check(cudaMemcpyAsync(b->p.frequencies, b->inverse_frequencies,
                                        sizeof b->inverse_frequencies, cudaMemcpyHostToDevice,
                                        b->stream),
                        "sending constants", err);
}

static calla_status cuda_open(const model_weights *weights, const backend_options *options,
                              backend **out, calla_error *err)
{
    void *memory;
    calla_status status;
    CALLA_TRY(mem_alloc(1, sizeof(backend), "backend", &memory, err));
    backend *b = memory;
    calla_memory_plan plan = {0};
    CALLA_TRY_GOTO(prepare_open(b, weights, options, err), fail);
    read_plan(b, &plan);
    CALLA_TRY_GOTO(create_stream(b, err), fail);
    CALLA_TRY_GOTO(check_room(&plan, err), fail);
    CALLA_TRY_GOTO(allocate_device(b, err), fail);
    CALLA_TRY_GOTO(cuda_store_init(b, err), fail);
    CALLA_TRY_GOTO(fill_constants(b, err), fail);
    CALLA_TRY_GOTO(thread_pool_create(options->n_threads, &b->pool, err), fail);
    CALLA_TRY_GOTO(cuda_weights_upload(b, err), fail);
    /* Its only work was the upload: no thread spins while the device computes. */
    thread_pool_free(b->pool);
    b->pool = NULL;
    CALLA_TRY_GOTO(cuda_step_init(b, err), fail);
    CALLA_TRY_GOTO(cuda_decode_init(b, err), fail);
    *out = b;
    return CALLA_OK;
fail:
    if (status == CALLA_ERR_MEMORY && plan.total_bytes > 0) add_plan(&plan, options, err);
    cuda_close(b);
    return status;
}

static void cuda_capabilities(const backend *b, backend_capabilities *out)
{
    const model_config *c = &b->config;
    int64_t state_floats = (int64_t)c->n_value_heads * GDN_HEAD_DIM * GDN_HEAD_DIM *
                           (c->n_layers - c->n_attention_layers);
    *out = (backend_capabilities){
        .samples_on_device = true,
        .steps_ahead = true,
        .max_step_sequences = smaller_of(b->options.n_sequences, BACKEND_MAX_SEQUENCES),
        .prefill_chunk = b->options.prefill_chunk,
        .snapshot_grid = 1,
        .state_bytes = 2 * state_floats * (int64_t)sizeof(float),
        .kv_token_bytes =
            (int64_t)2 * c->kv_size * c->n_attention_layers * (int64_t)sizeof(uint16_t),
    };
}

static const char *cuda_isa(const backend *b)
{
    return b->isa;
}

/* ---- running ---- */

static calla_status check_alive(const backend *b, calla_error *err)
{
    if (b->failed.code == CALLA_OK) return CALLA_OK;
    return error_set(err, CALLA_ERR_DEVICE, "%s", b->failed.message);
}

static int64_t cuda_sequence_length(const backend *b, const backend_sequence *s)
{
    (void)b;
    return s->at.length;
}

static calla_status cuda_prefill(backend *b, backend_sequence *s, const int32_t *tokens, int32_t n,
                                 logits_mode mode, float *logits, const calla_control *control,
                                 calla_error *err)
{
    int64_t chunk = b->options.prefill_chunk;
    assert(n >= 1 && s->at.length + n <= b->options.n_ctx && s->at.length % chunk + n <= chunk);
    CALLA_TRY(check_alive(b, err));
    return cuda_prefill_chunk(b, s, tokens, n, mode, logits, control, err);
}

static calla_status step_submit(backend *b, const step_request *requests, int32_t n,
                                calla_error *err)
{
    CALLA_TRY(check_alive(b, err));
    return cuda_step_submit(b, requests, n, err);
}

static calla_status cuda_snapshot_create(backend *b, const backend_sequence *s,
                                         backend_snapshot **out, calla_error *err)
{
    CALLA_TRY(check_alive(b, err));
    return cuda_store_snapshot_create(b, s, out, err);
}

static int64_t cuda_snapshot_bytes(const backend *b)
{
    return (int64_t)(2 * b->store.view.state_floats * sizeof(float));
}

static void cuda_set_profile(backend *b, bool on)
{
    (void)cuda_profile_set(b, on); /* a failure stays in b->failed */
}

static void cuda_set_tap(backend *b,
                         void (*tap)(void *user, int32_t layer, int64_t first_position,
                                     int32_t n_rows, const float *rows),
                         void *user)
{
    b->tap = tap;
    b->tap_user = user;
}

static void cuda_set_route(backend *b, backend_route_fn *fn, void *user)
{
    b->route = fn;
    b->route_user = user;
}

extern const backend_ops cuda_backend;
const backend_ops cuda_backend = {
    .name = "cuda",
    .prefill_chunk = 4096, /* 128 tokens an expert, as many as a tile has */
    .plan = cuda_plan,
    .open = cuda_open,
    .close = cuda_close,
    .capabilities = cuda_capabilities,
    .isa = cuda_isa,
    .isa_names = cuda_isa_names,
    .choose_threads = cuda_choose_threads,
    .sequence_create = cuda_store_sequence_create,
    .sequence_free = cuda_store_sequence_free,
    .sequence_reset = cuda_store_sequence_reset,
    .sequence_length = cuda_sequence_length,
    .prefill = cuda_prefill,
    .step_submit = step_submit,
    .step_wait = cuda_step_wait,
    .step_logits = cuda_step_logits,
    .snapshot_create = cuda_snapshot_create,
    .snapshot_free = cuda_store_snapshot_free,
    .snapshot_restore = cuda_store_snapshot_restore,
    .snapshot_bytes = cuda_snapshot_bytes,
    .measure = cuda_measure,
    .set_profile = cuda_set_profile,
    .get_profile = cuda_profile_get,
    .set_tap = cuda_set_tap,
    .set_route = cuda_set_route,
};
