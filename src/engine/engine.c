#include "engine/engine.h"
#include "engine/snapshot_files.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/numbers.h"
#include "base/threads.h"
#include "engine/load.h"
#include "model/inventory.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- options ---- */

static calla_status check_count(const char *name, int32_t value, int32_t high, calla_error *err)
{
    if (value >= 0 && value <= high) return CALLA_OK;
    return error_set(err, CALLA_ERR_INPUT, "%s is %d, outside 1 ... %d", name, value, high);
}

/* Defaults filled in and ranges checked; n_threads may be left 0 for choose_threads, prefill_chunk
 * and n_snapshots are left to plan_backend. */
static calla_status resolve_options(const model_config *config, const calla_engine_options *o,
                                    backend_options *b, calla_error *err)
{
    CALLA_TRY(check_count("n_threads", o->n_threads, 1024, err));
    CALLA_TRY(check_count("n_sessions", o->n_sessions, 1024, err));
    CALLA_TRY(check_count("prefill_chunk", o->prefill_chunk, 65536, err));
    if (o->n_ctx < 0 || o->n_ctx > config->max_positions)
        return error_set(err, CALLA_ERR_INPUT,
                         "a context of %d tokens asked for, the model allows 1 to %d", o->n_ctx,
                         config->max_positions);
    int32_t n_ctx =
        config->max_positions < DEFAULT_CONTEXT ? config->max_positions : DEFAULT_CONTEXT;
    *b = (backend_options){
        .isa = o->isa && strcmp(o->isa, "auto") != 0 ? o->isa : NULL,
        .kv_f32 = o->kv == CALLA_KV_F32,
        .kv_fp16 = o->kv == CALLA_KV_FP16,
        .n_threads = o->n_threads,
        .pin = !o->no_pin,
        .n_ctx = o->n_ctx ? o->n_ctx : n_ctx,
        .n_sequences = o->n_sessions ? o->n_sessions : 1,
        .prefill_chunk = o->prefill_chunk,
    };
    /* Threads without a processor only take turns: a thousand of them would bring any machine down.
     */
    int32_t most = 2 * usable_processors();
    if (b->n_threads > most) {
        log_warn("%d threads asked for, %d used: this process has %d processors", b->n_threads,
                 most, most / 2);
        b->n_threads = most;
    }
    return CALLA_OK;
}

static void choose_threads(const backend_ops *ops, const model_weights *weights, bool may_measure,
                           backend_options *b)
{
    if (b->n_threads == 0)
        b->n_threads = ops->choose_threads ? ops->choose_threads(weights, b->pin, may_measure) : 1;
}

static int64_t session_bytes(int32_t n_ctx, int32_t n_vocab)
{
    return (int64_t)n_ctx * 4 + (int64_t)n_vocab * 4 + token_counts_bytes(n_vocab);
}

static int64_t plan_sum(const calla_memory_plan *p)
{
    return p->weights_bytes + p->prepared_bytes + p->kv_bytes + p->state_bytes + p->snapshot_bytes +
           p->scratch_bytes;
}

/* The plan of backend and engine together; sets b->prefill_chunk where nobody asked for one, and
 * b->n_snapshots to what the budget holds. What a snapshot takes is the backend's knowledge: the
 * difference it makes to its plan. */
static calla_status plan_backend(const backend_ops *ops, const model_weights *weights,
                                 int64_t budget, backend_options *b, calla_memory_plan *plan,
                                 calla_error *err)
{
    int32_t n_vocab = weights->config.n_vocab;
    int64_t slot_bytes = snapshot_slot_bytes(b->n_ctx, n_vocab);
    if (budget == 0) budget = DEFAULT_SNAPSHOT_BYTES;
    if (b->prefill_chunk == 0)
        b->prefill_chunk = ops->prefill_chunk ? ops->prefill_chunk : DEFAULT_PREFILL_CHUNK;
    /* No chunk is longer than the context; what cuts it is the same grid. */
    if (b->prefill_chunk > b->n_ctx) b->prefill_chunk = b->n_ctx;
    b->n_snapshots = 0;
    CALLA_TRY(ops->plan(weights, b, plan, err));
    if (budget > 0) {
        calla_memory_plan with_one;
        b->n_snapshots = 1;
        CALLA_TRY(ops->plan(weights, b, &with_one, err));
        int64_t n = budget / (plan_sum(&with_one) - plan_sum(plan) + slot_bytes);
        b->n_snapshots = n < 1 ? 1 : n > MAX_SNAPSHOTS ? MAX_SNAPSHOTS : (int32_t)n;
        CALLA_TRY(ops->plan(weights, b, plan, err));
    }
    plan->snapshot_bytes += b->n_snapshots * slot_bytes;
    plan->scratch_bytes +=
        sampler_bytes(n_vocab) + b->n_sequences * session_bytes(b->n_ctx, n_vocab);
    plan->total_bytes = plan_sum(plan);
    plan->n_ctx = b->n_ctx;
    plan->backend = ops->name;
    plan->on_device = !ops->reads_weights;
    return CALLA_OK;
}

/* ---- which backend ---- */

/* Calls `try` for the backend named, or for each until one succeeds; the last one's error stands. A
 * device that is there and could not be taken is worth a word: what follows is much slower. */
typedef calla_status (*try_backend_fn)(void *context, const backend_ops *ops, calla_error *err);

static calla_status choose_backend(const backend_ops *const *candidates, const char *name,
                                   try_backend_fn try, void *context, calla_error *err)
{
    bool any = !name || strcmp(name, "auto") == 0;
    char names[256] = "auto";
    calla_status status = CALLA_ERR_UNSUPPORTED;
    bool tried = false;
    for (int i = 0; candidates[i]; i++) {
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, ", %s", candidates[i]->name);
        if (!any && strcmp(name, candidates[i]->name) != 0) continue;
        tried = true;
        status = try(context, candidates[i], err);
        if (status == CALLA_OK || status == CALLA_ERR_CANCELLED) break;
        if (any && candidates[i + 1] && (status == CALLA_ERR_MEMORY || status == CALLA_ERR_DEVICE))
            log_warn("%s: %s; going on with %s", candidates[i]->name, err->message,
                     candidates[i + 1]->name);
    }
    if (!tried)
        return error_set(err, CALLA_ERR_UNSUPPORTED, "backend '%s' is not one of this build's: %s",
                         name ? name : "auto", names);
    return status;
}

/* ---- engine ---- */

typedef struct open_context {
    calla_engine *engine;
    const calla_engine_options *options;
    bool loaded;
} open_context;

/* Once, for the first backend that wants it. */
static calla_status load_weights(open_context *c, const backend_ops *ops, calla_error *err)
{
    calla_engine *e = c->engine;
    calla_memory_plan plan;
    backend_options b = e->options;
    if (!ops->reads_weights || c->loaded) return CALLA_OK;
    choose_threads(ops, &e->weights, false, &b);
    CALLA_TRY(plan_backend(ops, &e->weights, c->options->snapshot_bytes, &b, &plan, err));
    CALLA_TRY(
        engine_load(&e->weights, plan.total_bytes - plan.weights_bytes, c->options, &e->info, err));
    c->loaded = true;
    return CALLA_OK;
}

static calla_status open_backend(void *context, const backend_ops *ops, calla_error *err)
{
    open_context *c = context;
    calla_engine *e = c->engine;
    backend_options b = e->options; /* the next backend chooses for itself */
    CALLA_TRY(load_weights(c, ops, err));
    choose_threads(ops, &e->weights, true, &b);
    CALLA_TRY(plan_backend(ops, &e->weights, c->options->snapshot_bytes, &b, &e->info.memory, err));
    CALLA_TRY(ops->open(&e->weights, &b, &e->backend, err));
    e->options = b;
    e->ops = ops;
    return CALLA_OK;
}

static void set_stride(calla_engine *e, int32_t asked)
{
    int64_t grid = e->capabilities.snapshot_grid;
    int64_t usual = larger_of(DEFAULT_SNAPSHOT_STRIDE, e->options.prefill_chunk);
    int64_t stride = asked == 0 ? usual : asked < 0 ? 0 : asked;
    e->snapshot_stride = (stride + grid - 1) / grid * grid;
}

static void set_info(calla_engine *e)
{
    const model_config *c = &e->weights.config;
    const calla_engine_info opened = e->info; /* filled in so far */
    model_sizes sizes;
    model_sizes_compute(c, c->layout, &sizes);
    e->info = (calla_engine_info){
        .backend = e->ops->name,
        .isa = e->ops->isa(e->backend),
        .n_threads = e->options.n_threads,
        .n_ctx = e->options.n_ctx,
        .n_vocab = c->n_vocab,
        .n_vocab_tokens = e->vocabulary.n_tokens,
        .n_layers = c->n_layers,
        .hidden_size = c->hidden_size,
        .memory = opened.memory,
        .copied = opened.copied,
        .short_of_memory = opened.short_of_memory,
        .locked_bytes = opened.locked_bytes,
        .token_weight_bytes = e->weights.token_bytes,
        .state_bytes = e->capabilities.state_bytes,
        .kv_bytes_per_token = e->capabilities.kv_token_bytes,
        .token_operations = sizes.token_operations,
        .attention_operations = sizes.attention_operations,
    };
}

/* ---- files of snapshots ---- */

/* Tells apart what a snapshot depends on: the weights (names, shapes and some bytes of each
 * tensor), the kernels and the KV cache's type. */
static uint64_t model_key(const calla_engine *e)
{
    uint64_t hash = HASH_START;
    const tensor_set *set = &e->weights.tensors;
    for (int32_t i = 0; i < set->n_tensors; i++) {
        const tensor *t = &set->tensors[i];
        size_t n = t->n_bytes < 64 ? t->n_bytes : 64;
        hash = hash_bytes(hash, t->name, strlen(t->name) + 1);
        hash = hash_bytes(hash, t->dtype_name, strlen(t->dtype_name) + 1);
        hash = hash_bytes(hash, t->shape, (size_t)t->n_dims * sizeof *t->shape);
        hash = hash_bytes(hash, t->data, n);
        hash = hash_bytes(hash, t->data + (t->n_bytes - n) / 2, n);
    }
    hash = hash_bytes(hash, e->ops->name, strlen(e->ops->name) + 1);
    hash = hash_bytes(hash, e->info.isa, strlen(e->info.isa) + 1);
    hash = hash_bytes(hash, &e->capabilities.kv_token_bytes, sizeof e->capabilities.kv_token_bytes);
    int64_t content_bytes = e->ops->snapshot_content_bytes(e->backend, 1);
    hash = hash_bytes(hash, &content_bytes, sizeof content_bytes);
    return hash;
}

static calla_status open_files(calla_engine *e, const calla_engine_options *o, calla_error *err)
{
    if (!o->cache_dir) return CALLA_OK;
    if (!e->ops->snapshot_save)
        return error_set(err, CALLA_ERR_UNSUPPORTED,
                         "backend %s cannot keep snapshots in files (cache directory %s)",
                         e->ops->name, o->cache_dir);
    if (e->snapshots.n_slots == 0)
        return error_set(err, CALLA_ERR_INPUT, "a cache directory needs memory for snapshots");
    int64_t budget = o->cache_dir_bytes > 0 ? o->cache_dir_bytes : DEFAULT_CACHE_DIR_BYTES;
    return snapshot_files_open(o->cache_dir, budget, model_key(e), e->keep_decoded, &e->snapshots,
                               &e->snapshots.files, err);
}

calla_status engine_create(const backend_ops *const *candidates, model_weights *weights,
                           engine_vocabulary vocabulary, const calla_engine_options *options,
                           calla_engine **out, calla_error *err)
{
    calla_status status = CALLA_OK;
    calla_engine *e = calloc(1, sizeof *e);
    if (!e) {
        model_weights_close(weights);
        return error_set(err, CALLA_ERR_MEMORY, "no memory for an engine");
    }
    e->weights = *weights;
    e->vocabulary = vocabulary;
    CALLA_TRY_GOTO(resolve_options(&e->weights.config, options, &e->options, err), fail);
    e->options.n_vocab_tokens = vocabulary.n_tokens;
    e->options.progress = options->progress;
    e->options.progress_user = options->progress_user;
    e->options.cancel = options->cancel;
    open_context context = {e, options, false};
    CALLA_TRY_GOTO(choose_backend(candidates, options->backend, open_backend, &context, err), fail);
    e->ops->capabilities(e->backend, &e->capabilities);
    set_stride(e, options->snapshot_stride);
    e->keep_decoded = options->keep_decoded;
    set_info(e);
    CALLA_TRY_GOTO(sampler_init(&e->sampler, vocabulary.n_tokens, err), fail);
    if (e->ops->threads) e->sampler.pool = e->ops->threads(e->backend);
    CALLA_TRY_GOTO(snapshot_store_init(&e->snapshots, e->ops, e->backend, e->options.n_snapshots,
                                       e->options.n_ctx, e->info.n_vocab, e->vocabulary.turn_token,
                                       err),
                   fail);
    CALLA_TRY_GOTO(open_files(e, options, err), fail);
    *out = e;
    return CALLA_OK;
fail:
    calla_engine_close(e);
    return status;
}

void calla_engine_close(calla_engine *e)
{
    if (!e) return;
    snapshot_files_close(e->snapshots.files);
    snapshot_store_deinit(&e->snapshots);
    sampler_deinit(&e->sampler);
    if (e->backend) e->ops->close(e->backend);
    model_weights_close(&e->weights);
    free(e);
}

void calla_engine_get_info(const calla_engine *e, calla_engine_info *info)
{
    *info = e->info;
}

/* ---- opening a directory ---- */

/* Without tokenizer.json every row of the logits counts as a token. */
static calla_status read_vocabulary(const char *dir, const calla_tokenizer *given, int32_t n_vocab,
                                    engine_vocabulary *v, calla_error *err)
{
    calla_tokenizer *own = NULL;
    *v = (engine_vocabulary){.n_tokens = n_vocab, .turn_token = -1};
    if (!given) {
        char *path = path_join(dir, "tokenizer.json");
        if (!path) return error_set(err, CALLA_ERR_MEMORY, "%s: no memory for a path", dir);
        bool exists = file_exists(path);
        free(path);
        if (!exists) return CALLA_OK;
        CALLA_TRY(calla_tokenizer_open(dir, &own, err));
        given = own;
    }
    v->n_tokens = calla_tokenizer_n_tokens(given);
    v->turn_token = calla_tokenizer_find(given, "<|im_start|>");
    if (own) calla_tokenizer_close(own);
    if (v->n_tokens > 0 && v->n_tokens <= n_vocab) return CALLA_OK;
    return error_set(err, CALLA_ERR_INPUT, "%s: the tokenizer has %d tokens, the model %d", dir,
                     v->n_tokens, n_vocab);
}

calla_status calla_engine_open(const char *dir, const calla_engine_options *options,
                               calla_engine **engine, calla_error *err)
{
    int64_t start_ns = clock_ns();
    const calla_engine_options none = {0};
    if (!options) options = &none;
    model_weights weights;
    engine_vocabulary vocabulary;
    if (options->progress) options->progress(options->progress_user, "opening", 0, 2);
    CALLA_TRY(model_weights_open(dir, &weights, err));
    calla_status status =
        read_vocabulary(dir, options->tokenizer, weights.config.n_vocab, &vocabulary, err);
    if (status != CALLA_OK) {
        model_weights_close(&weights);
        return status;
    }
    if (options->progress) options->progress(options->progress_user, "opening", 1, 2);
    calla_engine *e;
    CALLA_TRY(engine_create(backends, &weights, vocabulary, options, &e, err));
    if (options->progress) options->progress(options->progress_user, "opening", 2, 2);
    e->info.load_ns = clock_ns() - start_ns;
    *engine = e;
    return CALLA_OK;
}

/* ---- plan ---- */

typedef struct plan_context {
    const model_weights *weights;
    int64_t snapshot_budget;
    backend_options options;
    calla_memory_plan plan;
} plan_context;

static calla_status try_plan(void *context, const backend_ops *ops, calla_error *err)
{
    plan_context *c = context;
    backend_options b = c->options;
    choose_threads(ops, c->weights, false, &b);
    return plan_backend(ops, c->weights, c->snapshot_budget, &b, &c->plan, err);
}

calla_status engine_plan(const backend_ops *const *candidates, const model_weights *weights,
                         const calla_engine_options *options, calla_memory_plan *plan,
                         calla_error *err)
{
    plan_context c = {.weights = weights, .snapshot_budget = options->snapshot_bytes};
    CALLA_TRY(resolve_options(&weights->config, options, &c.options, err));
    CALLA_TRY(choose_backend(candidates, options->backend, try_plan, &c, err));
    *plan = c.plan;
    return CALLA_OK;
}

calla_status calla_engine_plan(const char *dir, const calla_engine_options *options,
                               calla_memory_plan *plan, calla_error *err)
{
    const calla_engine_options none = {0};
    model_weights weights;
    CALLA_TRY(model_weights_open(dir, &weights, err));
    calla_status status = engine_plan(backends, &weights, options ? options : &none, plan, err);
    model_weights_close(&weights);
    return status;
}

const char *const *calla_isa_names(void)
{
    /* Of the last backend: the one that every machine has. */
    int last = 0;
    while (backends[last + 1]) last++;
    return backends[last]->isa_names();
}
