/* calla_quantize: bf16 checkpoint to MLX affine 4-bit (MODEL.md 2.2). */
#include "base/memory.h"
#include "base/numbers.h"
#include "model/checkpoint_write.h"
#include "model/inventory.h"
#include "model/quantize_config.h"
#include "model/quantize_row.h"
#include "model/weights.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    MAX_NAME = 160,
    PIECE_BYTES = 4 << 20, /* of source that a thread converts between two writes */
    SIDE_BYTES = 1 << 20,  /* more than config.json and index take */
};
static const int64_t DEFAULT_SHARD_BYTES = (int64_t)5 << 30; /* as mlx-lm */

/* One part of the model on its way from the source to the plan's tensors. */
typedef struct conversion {
    part_kind kind;
    char name[MAX_NAME];  /* in the destination; without suffix if linear */
    quantized_triple out; /* tensors of the plan; only the weight unless linear */
    /* Linear: n_experts (1 for a plain matrix) matrices of first.rows x first.cols. */
    expert_matrices source;
    int64_t n_experts;
    int bits;
    /* Others. */
    vector_view vector;
    bool add_one, keep_f32;
} conversion;

typedef struct quantizer {
    model_weights weights;
    conversion *conversions; /* [n] */
    int32_t n;
    checkpoint_plan plan;
    checkpoint_writer writer;
    bool writing;
} quantizer;

/* ---- planning ---- */

static calla_status plan_linear(quantizer *q, conversion *c, calla_error *err)
{
    const matrix *m = &c->source.first;
    int64_t shape[3] = {c->n_experts, m->rows, m->cols};
    bool experts = c->kind == PART_EXPERTS;
    return checkpoint_plan_add_quantized(&q->plan, c->name, c->bits, experts ? 3 : 2,
                                         experts ? shape : shape + 1, &c->out, err);
}

static calla_status plan_vector(quantizer *q, conversion *c, const part *p, calla_error *err)
{
    int64_t conv[3] = {p->rows, CONV_TAPS, 1}, flat[1] = {p->rows};
    bool is_conv = p->kind == PART_CONV;
    /* mlx-lm casts everything to bf16 but A_log. */
    c->keep_f32 = c->vector.is_f32 && strcmp(p->stem, "linear_attn.A_log") == 0;
    return checkpoint_plan_add(&q->plan, c->name, c->keep_f32 ? DTYPE_F32 : DTYPE_BF16,
                               is_conv ? 3 : 1, is_conv ? conv : flat, &c->out.weight, err);
}

static calla_status plan_part(quantizer *q, const char *prefix, const part *p, const void *base,
                              calla_error *err)
{
    const void *view = (const unsigned char *)base + p->offset;
    conversion *c = &q->conversions[q->n++];
    *c = (conversion){.kind = p->kind, .n_experts = 1};
    snprintf(c->name, sizeof c->name, "%s%s", prefix, p->stem);
    switch (p->kind) {
    case PART_MATRIX:
    case PART_EMBEDDING:
        c->source.first = *(const matrix *)view;
        break;
    case PART_EXPERTS:
        c->source = *(const expert_matrices *)view;
        c->n_experts = q->weights.config.n_experts;
        break;
    case PART_NORM:
        c->vector = ((const norm_view *)view)->weight;
        c->add_one = ((const norm_view *)view)->add_one;
        break;
    case PART_VECTOR:
    case PART_CONV:
        c->vector = *(const vector_view *)view;
        break;
    }
    if (!part_is_linear(p)) return plan_vector(q, c, p, err);
    c->bits = quantized_bits(c->name);
    return plan_linear(q, c, err);
}

static calla_status plan_all(quantizer *q, int64_t max_shard_bytes, calla_error *err)
{
    const model_weights *w = &q->weights;
    part parts[MAX_LAYER_PARTS], outer[N_OUTER_PARTS];
    size_t most = (size_t)w->config.n_layers * MAX_LAYER_PARTS + N_OUTER_PARTS;
    void *memory;
    CALLA_TRY(mem_alloc(most, sizeof *q->conversions, "list of conversions", &memory, err));
    q->conversions = memory;
    for (int32_t i = 0; i < w->config.n_layers; i++) {
        char prefix[64];
        snprintf(prefix, sizeof prefix, "language_model.model.layers.%d.", i);
        int32_t n = layer_parts(&w->config, w->config.is_attention[i], parts);
        for (int32_t k = 0; k < n; k++)
            CALLA_TRY(plan_part(q, prefix, &parts[k], &w->layers[i], err));
    }
    outer_parts(&w->config, outer);
    for (int32_t k = 0; k < N_OUTER_PARTS; k++) {
        bool head = outer[k].offset == offsetof(model_weights, head);
        CALLA_TRY(
            plan_part(q, head ? "language_model." : "language_model.model.", &outer[k], w, err));
    }
    return checkpoint_plan_layout(&q->plan, max_shard_bytes, err);
}

/* ---- converting ---- */

/* Tells the system to fetch source bytes now, or that their pages are no longer needed: so the
 * program's memory stays at a few pieces whatever the tensor's size. Advice may fail. */
static void advise(const unsigned char *data, size_t n, int advice)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)data & ~(page - 1);
    madvise((void *)begin, (uintptr_t)data + n - begin, advice);
}

static calla_status refuse_row(const conversion *c, int64_t row, calla_error *err)
{
    return error_set(err, CALLA_ERR_INPUT,
                     "%s: row %lld holds an infinity, a NaN or values whose range overflows",
                     c->name, (long long)row);
}

/* Rows [begin, end), counted over all experts. */
static calla_status quantize_rows(void *context, checkpoint_writer *w, int64_t begin, int64_t end,
                                  unsigned char *buffer, calla_error *err)
{
    const conversion *c = context;
    const matrix *m = &c->source.first;
    size_t n = (size_t)(end - begin), groups = (size_t)m->cols / QUANT_GROUP;
    size_t code_bytes = (size_t)m->cols / 8 * (size_t)c->bits, row_bytes = matrix_row_bytes(m);
    uint16_t *scales = (uint16_t *)(buffer + n * code_bytes), *biases = scales + n * groups;
    for (int64_t r = begin; r < end;) {
        int64_t first = r % m->rows, rows = m->rows - first < end - r ? m->rows - first : end - r;
        matrix expert = expert_matrix(&c->source, (int32_t)(r / m->rows));
        const unsigned char *source =
            (const unsigned char *)expert.codes + (size_t)first * row_bytes;
        advise(source, (size_t)rows * row_bytes, MADV_WILLNEED);
        for (int64_t i = 0; i < rows; i++, r++) {
            size_t at = (size_t)(r - begin);
            if (!quantize_row(source + (size_t)i * row_bytes, m->cols, c->bits,
                              buffer + at * code_bytes, scales + at * groups, biases + at * groups))
                return refuse_row(c, r, err);
        }
        advise(source, (size_t)rows * row_bytes, MADV_DONTNEED);
    }
    size_t scale_bytes = groups * sizeof *scales, at = (size_t)begin;
    CALLA_TRY(
        checkpoint_writer_put(w, c->out.weight, at * code_bytes, buffer, n * code_bytes, err));
    CALLA_TRY(
        checkpoint_writer_put(w, c->out.scales, at * scale_bytes, scales, n * scale_bytes, err));
    return checkpoint_writer_put(w, c->out.biases, at * scale_bytes, biases, n * scale_bytes, err);
}

static calla_status convert_linear(const conversion *c, checkpoint_writer *w, calla_error *err)
{
    const matrix *m = &c->source.first;
    size_t row_bytes = matrix_row_bytes(m);
    int64_t piece = (int64_t)(PIECE_BYTES / row_bytes), total = c->n_experts * m->rows;
    if (piece < 1) piece = 1;
    /* Codes take at most half of a row, scales and biases a sixteenth. */
    return checkpoint_writer_run(w, total, piece, (int64_t)row_bytes, (size_t)piece * row_bytes,
                                 quantize_rows, (void *)(uintptr_t)c, err);
}

/* Elements [begin, end) of a vector or convolution. */
static calla_status convert_elements(void *context, checkpoint_writer *w, int64_t begin,
                                     int64_t end, unsigned char *buffer, calla_error *err)
{
    const conversion *c = context;
    size_t element = c->keep_f32 ? 4 : 2, n = (size_t)(end - begin);
    for (int64_t i = begin; i < end; i++) {
        norm_view v = {c->vector, c->add_one};
        float x = norm_factor(&v, (int32_t)i);
        uint16_t rounded = f32_to_bf16(x);
        memcpy(buffer + (size_t)(i - begin) * element, c->keep_f32 ? (void *)&x : (void *)&rounded,
               element);
    }
    return checkpoint_writer_put(w, c->out.weight, (size_t)begin * element, buffer, n * element,
                                 err);
}

static calla_status convert_vector(const conversion *c, checkpoint_writer *w, calla_error *err)
{
    int64_t n = c->vector.n;
    return checkpoint_writer_run(w, n, n, c->vector.is_f32 ? 4 : 2, (size_t)n * 4, convert_elements,
                                 (void *)(uintptr_t)c, err);
}

/* ---- the whole ---- */

static calla_status check_destination(const char *src, const char *dst, calla_error *err)
{
    struct stat s, d;
    if (stat(src, &s) == 0 && stat(dst, &d) == 0 && s.st_dev == d.st_dev && s.st_ino == d.st_ino)
        return error_set(err, CALLA_ERR_INPUT, "%s and %s are the same directory", src, dst);
    return CALLA_OK;
}

static calla_status write_index_and_config(quantizer *q, const char *src, calla_error *err)
{
    checkpoint_writer *w = &q->writer;
    char *index = NULL, *config = NULL;
    size_t n_index, n_config;
    calla_status status;
    CALLA_TRY_GOTO(checkpoint_plan_index(&q->plan, q->weights.n_parameters, &index, &n_index, err),
                   done);
    CALLA_TRY_GOTO(
        checkpoint_writer_add_file(w, "model.safetensors.index.json", index, n_index, err), done);
    CALLA_TRY_GOTO(checkpoint_writer_copy_side_files(w, src, err), done);
    CALLA_TRY_GOTO(quantized_config_text(src, &q->weights.config, &config, &n_config, err), done);
    CALLA_TRY_GOTO(checkpoint_writer_add_file(w, "config.json", config, n_config, err), done);
done:
    free(index);
    free(config);
    return status;
}

static calla_status convert_all(quantizer *q, const char *src, const char *dst,
                                const calla_write_options *options, calla_error *err)
{
    checkpoint_writer *w = &q->writer;
    CALLA_TRY(checkpoint_writer_open(w, dst, &q->plan, checkpoint_side_file_bytes(src) + SIDE_BYTES,
                                     q->weights.text_bytes, options, err));
    q->writing = true;
    CALLA_TRY(write_index_and_config(q, src, err));
    for (int32_t i = 0; i < q->n; i++) {
        const conversion *c = &q->conversions[i];
        CALLA_TRY(c->bits ? convert_linear(c, w, err) : convert_vector(c, w, err));
    }
    q->writing = false;
    return checkpoint_writer_commit(w, err);
}

calla_status calla_quantize(const char *src, const char *dst, const calla_write_options *options,
                            calla_error *err)
{
    assert(src && dst);
    static const calla_write_options defaults;
    if (!options) options = &defaults;
    int64_t shard_bytes = options->max_shard_bytes ? options->max_shard_bytes : DEFAULT_SHARD_BYTES;
    if (shard_bytes < 0)
        return error_set(err, CALLA_ERR_INPUT, "shards of %lld bytes", (long long)shard_bytes);
    quantizer q = {0};
    calla_status status;
    CALLA_TRY(check_destination(src, dst, err));
    CALLA_TRY(model_weights_open(src, &q.weights, err));
    if (q.weights.config.layout != CALLA_LAYOUT_BF16) {
        status = error_set(err, CALLA_ERR_INPUT, "%s is quantized already", src);
        goto done;
    }
    CALLA_TRY_GOTO(plan_all(&q, shard_bytes, err), done);
    CALLA_TRY_GOTO(convert_all(&q, src, dst, options, err), done);
done:
    if (q.writing) checkpoint_writer_abort(&q.writer);
    mem_free(q.conversions);
    checkpoint_plan_free(&q.plan);
    model_weights_close(&q.weights);
    return status;
}
