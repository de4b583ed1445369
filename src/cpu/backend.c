#include "cpu/cpu.h"

#include <assert.h>
#include <stdlib.h>

/* ---- opening ---- */

/* Runs over all memory: once to count, once to hand out. */
static void take_all(backend *b)
{
    prepared_take(b);
    store_take(b);
    decode_scratch_take(b);
    prefill_scratch_take(b);
}

/* Chooses kernels and counts memory. */
static calla_status prepare_open(backend *b, const model_weights *weights,
                                 const backend_options *options, calla_error *err)
{
    assert(options->n_threads >= 1 && options->n_ctx >= 1 && options->n_sequences >= 1);
    assert(options->prefill_chunk >= 1 && options->n_snapshots >= 0);
    *b = (backend){.weights = weights, .config = weights->config, .options = *options};
    CALLA_TRY(cpu_kernels_select(options->isa, weights->config.layout, &b->k, err));
    b->kv_f32 = options->kv_f32 || (!options->kv_fp16 && !b->k.fast);
    b->options.prefill_chunk = smaller_of(options->prefill_chunk, options->n_ctx);
    take_all(b);
    return CALLA_OK;
}

static void read_plan(const backend *b, calla_memory_plan *plan)
{
    *plan = (calla_memory_plan){
        .weights_bytes = b->weights->text_bytes,
        .prepared_bytes = (int64_t)b->prepared.memory.used,
        .kv_bytes = (int64_t)b->store.kv_memory.used,
        .state_bytes = (int64_t)b->store.state_memory.used,
        .snapshot_bytes = (int64_t)b->store.snapshot_memory.used,
        .scratch_bytes = (int64_t)b->scratch.memory.used,
    };
    plan->total_bytes = plan->weights_bytes + plan->prepared_bytes + plan->kv_bytes +
                        plan->state_bytes + plan->snapshot_bytes + plan->scratch_bytes;
}

static calla_status cpu_plan(const model_weights *weights, const backend_options *options,
                             calla_memory_plan *plan, calla_error *err)
{
    void *memory;
    CALLA_TRY(mem_alloc(1, sizeof(backend), "backend", &memory, err));
    backend *b = memory;
    calla_status status = prepare_open(b, weights, options, err);
    if (status == CALLA_OK && (b->prepared.memory.overflow || b->store.kv_memory.overflow ||
                               b->store.state_memory.overflow ||
                               b->store.snapshot_memory.overflow || b->scratch.memory.overflow))
        status = error_set(err, CALLA_ERR_MEMORY, "the memory plan's size overflows");
    if (status == CALLA_OK) read_plan(b, plan);
    mem_free(b);
    return status;
}

static void cpu_close(backend *b)
{
    if (!b) return;
    thread_pool_free(b->pool);
    store_deinit(b);
    arena_free(&b->prepared.memory);
    arena_free(&b->scratch.memory);
    mem_free(b);
}

static calla_status cpu_open(const model_weights *weights, const backend_options *options,
                             backend **out, calla_error *err)
{
    void *memory;
    calla_status status;
    CALLA_TRY(mem_alloc(1, sizeof(backend), "backend", &memory, err));
    backend *b = memory;
    CALLA_TRY_GOTO(prepare_open(b, weights, options, err), fail);
    CALLA_TRY_GOTO(arena_allocate(&b->prepared.memory, "prepared tensors", err), fail);
    CALLA_TRY_GOTO(arena_allocate(&b->store.kv_memory, "KV cache", err), fail);
    CALLA_TRY_GOTO(arena_allocate(&b->store.state_memory, "recurrent states", err), fail);
    CALLA_TRY_GOTO(arena_allocate(&b->store.snapshot_memory, "snapshots", err), fail);
    CALLA_TRY_GOTO(arena_allocate(&b->scratch.memory, "activations", err), fail);
    take_all(b);
    prepared_fill(b);
    CALLA_TRY_GOTO(store_init(b, err), fail);
    CALLA_TRY_GOTO(cpu_start_threads(options->n_threads, options->pin, &b->pool, err), fail);
    *out = b;
    return CALLA_OK;
fail:
    cpu_close(b);
    return status;
}

static void cpu_capabilities(const backend *b, backend_capabilities *out)
{
    const model_config *c = &b->config;
    int64_t states = gdn_state_bytes(c) * (c->n_layers - c->n_attention_layers);
    *out = (backend_capabilities){
        .samples_on_device = false,
        .max_step_sequences = smaller_of(b->options.n_sequences, BACKEND_MAX_SEQUENCES),
        .prefill_chunk = b->options.prefill_chunk,
        .snapshot_grid = 1,
        .state_bytes = states + states / GDN_CELL, /* written once a cell */
        .kv_token_bytes = (int64_t)2 * c->kv_size * c->n_attention_layers * (b->kv_f32 ? 4 : 2),
    };
}

static const char *cpu_isa(const backend *b)
{
    return b->k.isa;
}

/* ---- running ---- */

static int64_t cpu_sequence_length(const backend *b, const backend_sequence *s)
{
    (void)b;
    return s->at.length;
}

static calla_status cpu_prefill(backend *b, backend_sequence *s, const int32_t *tokens, int32_t n,
                                logits_mode mode, float *logits, const calla_control *control,
                                calla_error *err)
{
    int64_t chunk = b->options.prefill_chunk, start = profile_start(&b->profile);
    assert(n >= 1 && s->at.length + n <= b->options.n_ctx && s->at.length % chunk + n <= chunk);
    calla_status status = prefill_chunk(b, s, tokens, n, mode, logits, control, err);
    profile_stop_run(&b->profile, start);
    return status;
}

static calla_status cpu_step_submit(backend *b, const step_request *requests, int32_t n,
                                    calla_error *err)
{
    (void)err;
    assert(n >= 1 && n <= smaller_of(b->options.n_sequences, BACKEND_MAX_SEQUENCES));
    assert(b->n_requests == 0); /* one step in flight */
    for (int32_t i = 0; i < n; i++) {
        assert(requests[i].token >= 0 && requests[i].token < b->config.n_vocab);
        assert(requests[i].sequence->at.length < b->options.n_ctx);
        b->requests[i] = requests[i];
    }
    b->n_requests = n;
    return CALLA_OK;
}

/* The state is updated in place, layer by layer, so a step is cancelled before it starts or not at
 * all: it is short, and a second copy of the state would cost it memory traffic. */
static calla_status cpu_step_wait(backend *b, step_result *results, int32_t n,
                                  const calla_control *control, calla_error *err)
{
    assert(n == b->n_requests);
    calla_status status = CALLA_OK;
    int64_t start = profile_start(&b->profile);
    if (is_cancelled(control))
        status = error_set(err, CALLA_ERR_CANCELLED, "cancelled");
    else
        status = decode_step(b, results, err);
    profile_stop_run(&b->profile, start);
    b->n_requests = 0;
    return status;
}

static thread_pool *cpu_threads(const backend *b)
{
    return b->pool;
}

static int64_t cpu_snapshot_bytes(const backend *b)
{
    return (int64_t)(b->store.state_floats * sizeof(float));
}

static void cpu_set_profile(backend *b, bool on)
{
    profile_set(&b->profile, on);
}

static int32_t cpu_get_profile(const backend *b, calla_profile_entry *entries)
{
    return profile_get(&b->profile, entries);
}

static void cpu_set_tap(backend *b,
                        void (*tap)(void *user, int32_t layer, int64_t first_position,
                                    int32_t n_rows, const float *rows),
                        void *user)
{
    b->tap = tap;
    b->tap_user = user;
}

static void cpu_set_route(backend *b, backend_route_fn *route, void *user)
{
    b->route = route;
    b->route_user = user;
}

extern const backend_ops cpu_backend;
const backend_ops cpu_backend = {
    .name = "cpu",
    .reads_weights = true,
    .plan = cpu_plan,
    .open = cpu_open,
    .close = cpu_close,
    .capabilities = cpu_capabilities,
    .isa = cpu_isa,
    .isa_names = cpu_isa_names,
    .choose_threads = cpu_choose_threads,
    .sequence_create = store_sequence_create,
    .sequence_free = store_sequence_free,
    .sequence_reset = store_sequence_reset,
    .sequence_length = cpu_sequence_length,
    .prefill = cpu_prefill,
    .step_submit = cpu_step_submit,
    .step_wait = cpu_step_wait,
    .snapshot_create = store_snapshot_create,
    .snapshot_free = store_snapshot_free,
    .snapshot_restore = store_snapshot_restore,
    .snapshot_bytes = cpu_snapshot_bytes,
    .snapshot_content_bytes = store_snapshot_content_bytes,
    .snapshot_save = store_snapshot_save,
    .snapshot_load = store_snapshot_load,
    .threads = cpu_threads,
    .measure = cpu_measure,
    .set_profile = cpu_set_profile,
    .get_profile = cpu_get_profile,
    .set_tap = cpu_set_tap,
    .set_route = cpu_set_route,
};
