/* calla_synth: a random checkpoint of a given shape; and the same in memory. */
#include "model/synth.h"

#include "base/memory.h"
#include "base/numbers.h"
#include "base/strbuf.h"
#include "model/checkpoint_write.h"
#include "model/inventory.h"
#include "model/quantize_config.h"
#include "model/synth_random.h"
#include "model/synth_shape.h"
#include "model/synth_tokenizer.h"
#include "model/weights.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_NAME = 160,
    PIECE_BYTES = 2 << 20, /* that a thread makes between two writes */
    SIDE_BYTES = 1 << 20,  /* more than config.json, generation_config.json and index take */
};
static const int64_t DEFAULT_SHARD_BYTES = (int64_t)5 << 30; /* as mlx-lm */

/* How the numbers of a part are distributed, by the end of its name. Matrices have `spread` times
 * 1/sqrt(columns) as deviation, so that outputs are about as large as inputs; what adds to the
 * residual stream is smaller, or forty layers would drown the token. */
typedef enum law { BELL, UNIFORM } law;
typedef struct distribution {
    const char *ending;
    law law;
    float center, spread; /* bell: mean and deviation; uniform: middle and half width */
} distribution;

static const distribution distributions[] = {
    {"embed_tokens", BELL, 0, 0.25f}, /* deviation itself: rows are looked up, not multiplied */
    {"lm_head", BELL, 0, 1},          /* times the shape's deviation of logits */
    {"o_proj", BELL, 0, 0.7f},
    {"out_proj", BELL, 0, 0.7f},
    {"in_proj_a", BELL, 0, 0.3f},
    {"mlp.gate", BELL, 0, 1.5f},    /* the eight best of 256 experts then share fairly */
    {"norm.weight", BELL, 0, 0.1f}, /* around the multiplier 1 */
    {"conv1d.weight", BELL, 0, 0.25f},
    /* Decay exp(-exp(A_log) softplus(a + dt_bias)) between 0.9 and 1. */
    {"A_log", UNIFORM, -0.5f, 1.5f},
    {"dt_bias", UNIFORM, -4.75f, 1.25f},
    {"", BELL, 0, 1},
};

/* One part of the model. */
typedef struct generation {
    part_kind kind;
    char name[MAX_NAME]; /* as in layout MLX4: names the random stream in both layouts */
    uint64_t stream;
    float sigma, center;
    law law;
    int bits; /* 0: bf16 */
    int64_t n_experts, rows, cols;
    int64_t expert_rows, first_row; /* bf16: where an expert's rows stand in its tensor */
    quantized_triple out;
    bool norm_is_offset; /* a norm stored as multiplier - 1 */
    const random_pool *pool;
} generation;

struct synthesizer {
    const synth_shape *shape;
    calla_layout layout;
    model_config config;
    generation *generations; /* [n] */
    int32_t n;
    random_pool pool;
    checkpoint_plan plan;
    checkpoint_writer writer;
    bool writing;
    struct side_file {
        const char *name;
        char *text;
        size_t n_bytes;
    } files[5]; /* in the order they are written */
    int32_t n_files;
    int64_t n_parameters;
    unsigned char *memory; /* of a synthesizer that fills memory */
};

/* ---- planning ---- */

static void choose_distribution(synthesizer *s, generation *g)
{
    const distribution *d = distributions;
    while (!text_ends_with(g->name, d->ending)) d++;
    g->law = d->law;
    g->center = d->center;
    g->sigma = d->spread;
    if (text_ends_with(g->name, "lm_head")) g->sigma *= s->shape->logit_deviation;
    if (g->kind == PART_MATRIX || g->kind == PART_EXPERTS) g->sigma /= sqrtf((float)g->cols);
}

/* The name in layout BF16 (MODEL.md 2.1), with the rows of fused experts. */
static calla_status plan_bf16(synthesizer *s, generation *g, const part *p, calla_error *err)
{
    char name[MAX_NAME + 32];
    const char *below = g->name + strlen("language_model.");
    const char *experts = strstr(below, "switch_mlp.");
    bool in_model = strncmp(below, "model.", 6) == 0;
    if (in_model) below += 6;
    const char *prefix = in_model ? "model.language_model." : "";
    int64_t shape[3] = {g->n_experts, g->rows, g->cols}, conv[3] = {g->rows, 1, CONV_TAPS};
    g->expert_rows = g->rows;
    if (!experts) {
        snprintf(name, sizeof name, "%s%s%s", prefix, below, part_is_linear(p) ? ".weight" : "");
        if (p->kind == PART_CONV)
            return checkpoint_plan_add(&s->plan, name, DTYPE_BF16, 3, conv, &g->out.weight, err);
        return checkpoint_plan_add(&s->plan, name, DTYPE_BF16, part_is_linear(p) ? 2 : 1, shape + 1,
                                   &g->out.weight, err);
    }
    bool down = text_ends_with(g->name, "down_proj");
    snprintf(name, sizeof name, "%s%.*sexperts.%s", prefix, (int)(experts - below), below,
             down ? "down_proj" : "gate_up_proj");
    if (!down) g->expert_rows = shape[1] = 2 * g->rows;
    if (text_ends_with(g->name, "up_proj")) { /* the part before was gate_proj: the same tensor */
        assert(text_ends_with(g[-1].name, "gate_proj"));
        g->first_row = g->rows;
        g->out = g[-1].out;
        return CALLA_OK;
    }
    return checkpoint_plan_add(&s->plan, name, DTYPE_BF16, 3, shape, &g->out.weight, err);
}

static calla_status plan_mlx4(synthesizer *s, generation *g, const part *p, calla_error *err)
{
    int64_t shape[3] = {g->n_experts, g->rows, g->cols}, conv[3] = {g->rows, CONV_TAPS, 1};
    if (part_is_linear(p)) {
        bool experts = p->kind == PART_EXPERTS;
        g->bits = quantized_bits(g->name);
        return checkpoint_plan_add_quantized(&s->plan, g->name, g->bits, experts ? 3 : 2,
                                             experts ? shape : shape + 1, &g->out, err);
    }
    bool is_conv = p->kind == PART_CONV;
    return checkpoint_plan_add(&s->plan, g->name, DTYPE_BF16, is_conv ? 3 : 1,
                               is_conv ? conv : shape + 1, &g->out.weight, err);
}

static calla_status plan_part(synthesizer *s, const char *prefix, const part *p, calla_error *err)
{
    generation *g = &s->generations[s->n++];
    *g = (generation){.kind = p->kind,
                      .n_experts = p->kind == PART_EXPERTS ? s->config.n_experts : 1,
                      .rows = p->rows,
                      .cols = p->cols,
                      .pool = &s->pool};
    snprintf(g->name, sizeof g->name, "%s%s", prefix, p->stem);
    g->stream = random_stream(g->name);
    g->norm_is_offset = p->kind == PART_NORM && s->layout == CALLA_LAYOUT_BF16;
    choose_distribution(s, g);
    return s->layout == CALLA_LAYOUT_BF16 ? plan_bf16(s, g, p, err) : plan_mlx4(s, g, p, err);
}

static calla_status plan_all(synthesizer *s, int64_t max_shard_bytes, calla_error *err)
{
    part parts[MAX_LAYER_PARTS], outer[N_OUTER_PARTS];
    const model_config *c = &s->config;
    void *memory;
    CALLA_TRY(mem_alloc((size_t)c->n_layers * MAX_LAYER_PARTS + N_OUTER_PARTS,
                        sizeof *s->generations, "list of parts", &memory, err));
    s->generations = memory;
    for (int32_t i = 0; i < c->n_layers; i++) {
        char prefix[64];
        snprintf(prefix, sizeof prefix, "language_model.model.layers.%d.", i);
        int32_t n = layer_parts(c, c->is_attention[i], parts);
        for (int32_t k = 0; k < n; k++) CALLA_TRY(plan_part(s, prefix, &parts[k], err));
    }
    outer_parts(c, outer);
    for (int32_t k = 0; k < N_OUTER_PARTS; k++) {
        bool head = outer[k].offset == offsetof(model_weights, head);
        CALLA_TRY(plan_part(s, head ? "language_model." : "language_model.model.", &outer[k], err));
    }
    model_sizes sizes;
    model_sizes_compute(c, s->layout, &sizes);
    s->n_parameters = sizes.n_parameters;
    return checkpoint_plan_layout(&s->plan, max_shard_bytes, err);
}

/* ---- numbers ---- */

/* Rows [begin, end), counted over all experts. */
static calla_status make_quantized(void *context, checkpoint_writer *w, int64_t begin, int64_t end,
                                   unsigned char *buffer, calla_error *err)
{
    const generation *g = context;
    int64_t groups = g->cols / QUANT_GROUP, n = (end - begin) * groups;
    size_t code_bytes = (size_t)(g->cols * g->bits / 8), n_rows = (size_t)(end - begin);
    uint16_t *scales = (uint16_t *)(buffer + n_rows * code_bytes), *biases = scales + n;
    random_quantized(g->pool, g->stream, (uint64_t)(begin * groups), n, g->bits, g->sigma, buffer,
                     scales, biases);
    size_t at = (size_t)begin, scale_bytes = (size_t)groups * sizeof *scales;
    CALLA_TRY(
        checkpoint_writer_put(w, g->out.weight, at * code_bytes, buffer, n_rows * code_bytes, err));
    CALLA_TRY(checkpoint_writer_put(w, g->out.scales, at * scale_bytes, scales,
                                    n_rows * scale_bytes, err));
    return checkpoint_writer_put(w, g->out.biases, at * scale_bytes, biases, n_rows * scale_bytes,
                                 err);
}

/* The same in layout BF16, where an expert's rows may be followed by others. */
static calla_status make_bf16(void *context, checkpoint_writer *w, int64_t begin, int64_t end,
                              unsigned char *buffer, calla_error *err)
{
    const generation *g = context;
    int64_t groups = g->cols / QUANT_GROUP;
    size_t row_bytes = (size_t)g->cols * 2;
    for (int64_t r = begin; r < end;) {
        int64_t expert = r / g->rows, first = r % g->rows;
        int64_t n = g->rows - first < end - r ? g->rows - first : end - r;
        random_bf16(g->pool, g->stream, (uint64_t)(r * groups), n * groups, g->sigma,
                    (uint16_t *)buffer);
        size_t at = (size_t)(expert * g->expert_rows + g->first_row + first) * row_bytes;
        CALLA_TRY(checkpoint_writer_put(w, g->out.weight, at, buffer, (size_t)n * row_bytes, err));
        r += n;
    }
    return CALLA_OK;
}

/* Elements [begin, end) of a vector or convolution. */
static calla_status make_elements(void *context, checkpoint_writer *w, int64_t begin, int64_t end,
                                  unsigned char *buffer, calla_error *err)
{
    const generation *g = context;
    uint16_t *out = (uint16_t *)buffer;
    bool is_norm = g->kind == PART_NORM,
         is_norm_vector = !is_norm && text_ends_with(g->name, "norm.weight");
    for (int64_t i = begin; i < end; i++) {
        float u = g->law == BELL ? random_bell(g->pool->seed, g->stream, (uint64_t)i)
                                 : 2 * random_uniform(g->pool->seed, g->stream, (uint64_t)i) - 1;
        float center = g->center;
        if (g->kind == PART_CONV && i % CONV_TAPS == CONV_TAPS - 1) center = 0.8f; /* newest */
        float x = center + g->sigma * u;
        /* Rounded before the 1 is added, as a converted checkpoint's is (MODEL.md 2.2 item 5). */
        if (is_norm || is_norm_vector) x = bf16_to_f32(f32_to_bf16(x));
        if (is_norm_vector || (is_norm && !g->norm_is_offset)) x = 1 + x;
        out[i - begin] = f32_to_bf16(x);
    }
    size_t n_bytes = (size_t)(end - begin) * 2;
    return checkpoint_writer_put(w, g->out.weight, (size_t)begin * 2, buffer, n_bytes, err);
}

static calla_status generate(const generation *g, checkpoint_writer *w, calla_error *err)
{
    void *context = (void *)(uintptr_t)g;
    if (g->kind > PART_EXPERTS) {
        int64_t n = g->rows * g->cols;
        return checkpoint_writer_run(w, n, n, 2, (size_t)n * 2, make_elements, context, err);
    }
    int64_t row_bytes = g->bits ? g->cols * g->bits / 8 + g->cols / QUANT_GROUP * 4 : g->cols * 2;
    int64_t piece = PIECE_BYTES / row_bytes;
    if (piece < 1) piece = 1;
    return checkpoint_writer_run(w, g->n_experts * g->rows, piece, row_bytes,
                                 (size_t)(piece * row_bytes), g->bits ? make_quantized : make_bf16,
                                 context, err);
}

/* ---- files ---- */

static calla_status make_config(synthesizer *s, int32_t n_layers, calla_error *err)
{
    char *plain = NULL, *text = NULL;
    size_t n;
    calla_status status;
    CALLA_TRY_GOTO(synth_config_text(s->shape, n_layers, &plain, &n, err), fail);
    CALLA_TRY_GOTO(model_config_parse(plain, n, "config.json", &s->config, err), fail);
    if (s->layout == CALLA_LAYOUT_MLX4) {
        CALLA_TRY_GOTO(quantization_add_text(plain, &s->config, &text, &n, err), fail);
        free(plain);
        plain = text;
    }
    s->files[s->n_files++] = (struct side_file){"config.json", plain, n};
    return CALLA_OK;
fail:
    free(plain);
    return status;
}

static calla_status make_file(synthesizer *s, const char *name,
                              calla_status (*make)(const synth_shape *, char **, size_t *,
                                                   calla_error *),
                              calla_error *err)
{
    struct side_file *f = &s->files[s->n_files];
    f->name = name;
    CALLA_TRY(make(s->shape, &f->text, &f->n_bytes, err));
    s->n_files++;
    return CALLA_OK;
}

static calla_status make_files(synthesizer *s, calla_error *err)
{
    CALLA_TRY(make_file(s, "generation_config.json", synth_generation_text, err));
    CALLA_TRY(make_file(s, "tokenizer_config.json", synth_tokenizer_config_text, err));
    CALLA_TRY(make_file(s, "tokenizer.json", synth_tokenizer_text, err));
    struct side_file *f = &s->files[s->n_files];
    f->name = "model.safetensors.index.json";
    CALLA_TRY(checkpoint_plan_index(&s->plan, s->n_parameters, &f->text, &f->n_bytes, err));
    s->n_files++;
    return CALLA_OK;
}

static calla_status generate_all(synthesizer *s, calla_error *err)
{
    for (int32_t i = 0; i < s->n; i++) CALLA_TRY(generate(&s->generations[i], &s->writer, err));
    return CALLA_OK;
}

static calla_status write_all(synthesizer *s, const char *dst, const calla_write_options *options,
                              calla_error *err)
{
    checkpoint_writer *w = &s->writer;
    size_t side_bytes = SIDE_BYTES;
    for (int32_t i = 0; i < s->n_files; i++) side_bytes += s->files[i].n_bytes;
    CALLA_TRY(checkpoint_writer_open(w, dst, &s->plan, side_bytes, (int64_t)s->plan.tensor_bytes,
                                     options, err));
    s->writing = true;
    for (int32_t i = s->n_files - 1; i >= 0; i--) /* config.json, made first, comes last */
        CALLA_TRY(checkpoint_writer_add_file(w, s->files[i].name, s->files[i].text,
                                             s->files[i].n_bytes, err));
    CALLA_TRY(generate_all(s, err));
    s->writing = false;
    return checkpoint_writer_commit(w, err);
}

/* ---- the whole ---- */

static calla_status check_options(const calla_synth_options *o, const calla_write_options *w,
                                  const synth_shape **shape, calla_error *err)
{
    *shape = synth_shape_find(o->shape);
    if (!*shape)
        return error_set(err, CALLA_ERR_INPUT, "unknown shape %s (known: %s)", o->shape,
                         synth_shape_names);
    if (o->n_layers < 0 || o->n_layers > MAX_LAYERS)
        return error_set(err, CALLA_ERR_INPUT, "%d layers, expected 1 to %d", o->n_layers,
                         MAX_LAYERS);
    if (w->max_shard_bytes < 0)
        return error_set(err, CALLA_ERR_INPUT, "shards of %lld bytes",
                         (long long)w->max_shard_bytes);
    return CALLA_OK;
}

static void deinit(synthesizer *s)
{
    if (s->writing) checkpoint_writer_abort(&s->writer);
    for (int32_t i = 0; i < s->n_files; i++) free(s->files[i].text);
    mem_free(s->generations);
    random_pool_free(&s->pool);
    checkpoint_plan_free(&s->plan);
}

calla_status calla_synth(const char *dst, const calla_synth_options *synth,
                         const calla_write_options *options, calla_error *err)
{
    assert(dst && synth && synth->shape);
    static const calla_write_options defaults;
    if (!options) options = &defaults;
    synthesizer s = {.layout = synth->layout};
    calla_status status;
    CALLA_TRY(check_options(synth, options, &s.shape, err));
    int32_t n_layers = synth->n_layers ? synth->n_layers : s.shape->n_layers;
    int64_t shard_bytes = options->max_shard_bytes ? options->max_shard_bytes : DEFAULT_SHARD_BYTES;
    CALLA_TRY_GOTO(make_config(&s, n_layers, err), done);
    CALLA_TRY_GOTO(plan_all(&s, shard_bytes, err), done);
    CALLA_TRY_GOTO(make_files(&s, err), done);
    CALLA_TRY_GOTO(random_pool_create(synth->seed, &s.pool, err), done);
    CALLA_TRY_GOTO(write_all(&s, dst, options, err), done);
done:
    deinit(&s);
    return status;
}

/* ---- in memory ---- */

/* Reserves the memory and makes the weights' views of it. */
static calla_status map_weights(synthesizer *s, model_weights *weights, calla_error *err)
{
    model_config config;
    mapped_file map;
    tensor_set tensors;
    CALLA_TRY(
        model_config_parse(s->files[0].text, s->files[0].n_bytes, s->files[0].name, &config, err));
    CALLA_TRY(
        mapped_file_create_anonymous(s->plan.file_bytes, s->shape->name, &map, &s->memory, err));
    memcpy(s->memory, s->plan.shards[0].header, s->plan.shards[0].n_header_bytes);
    CALLA_TRY(tensor_set_open_memory(s->shape->name, map, &tensors, err));
    return model_weights_adopt(&config, &tensors, weights, err);
}

calla_status synthesizer_create(const char *shape, uint64_t seed, synthesizer **out,
                                model_weights *weights, int32_t *n_tokens, calla_error *err)
{
    static const calla_write_options defaults;
    calla_status status;
    void *memory;
    CALLA_TRY(mem_alloc(1, sizeof(synthesizer), "synthetic model", &memory, err));
    synthesizer *s = memory;
    const calla_synth_options synth = {.shape = shape};
    CALLA_TRY_GOTO(check_options(&synth, &defaults, &s->shape, err), fail);
    CALLA_TRY_GOTO(make_config(s, s->shape->n_layers, err), fail);
    CALLA_TRY_GOTO(plan_all(s, INT64_MAX, err), fail);
    s->pool.seed = seed;
    CALLA_TRY_GOTO(map_weights(s, weights, err), fail);
    *n_tokens = s->shape->n_base_tokens + N_ADDED_TOKENS;
    *out = s;
    return CALLA_OK;
fail:
    synthesizer_free(s);
    return status;
}

calla_status synthesizer_fill(synthesizer *s, const calla_write_options *options, calla_error *err)
{
    CALLA_TRY(random_pool_create(s->pool.seed, &s->pool, err));
    s->writing = true;
    CALLA_TRY(checkpoint_writer_open_memory(&s->writer, s->memory, &s->plan, options, err));
    return generate_all(s, err);
}

void synthesizer_free(synthesizer *s)
{
    if (!s) return;
    deinit(s);
    mem_free(s);
}
