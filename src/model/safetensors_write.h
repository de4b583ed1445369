/* Planning safetensors files: which tensor goes to which shard at which offset, and the headers
 * (MODEL.md 2.0). Everything is known before the first byte is written, so tensors may then be
 * written in any order, in pieces, from several threads. */
#ifndef CALLA_MODEL_SAFETENSORS_WRITE_H
#define CALLA_MODEL_SAFETENSORS_WRITE_H

#include "model/safetensors.h"

enum { MAX_SHARDS = 256 };

typedef struct planned_tensor {
    char *name;
    tensor_dtype dtype; /* BF16, F32 or U32 */
    int32_t n_dims;
    int64_t shape[TENSOR_MAX_DIMS]; /* [n_dims] */
    size_t n_bytes;
    int32_t shard;
    size_t offset; /* in the shard's file, header included; a multiple of the element size */
} planned_tensor;

typedef struct planned_shard {
    char name[48]; /* file name: model.safetensors, or model-00001-of-00004.safetensors */
    char *header;  /* [n_header_bytes] length, JSON and padding */
    size_t n_header_bytes;
    size_t n_file_bytes;
} planned_shard;

typedef struct checkpoint_plan {
    planned_tensor *tensors; /* [n_tensors], in the order they were added */
    int32_t n_tensors;
    size_t capacity;
    planned_shard *shards; /* [n_shards] */
    int32_t n_shards;
    size_t tensor_bytes; /* all tensors */
    size_t file_bytes;   /* all shards */
} checkpoint_plan;

/* Appends a tensor and gives its index. The name is copied. */
calla_status checkpoint_plan_add(checkpoint_plan *plan, const char *name, tensor_dtype dtype,
                                 int32_t n_dims, const int64_t *shape, int32_t *index,
                                 calla_error *err);

/* The three tensors of a matrix quantized to `bits` in groups of 64 (MODEL.md 2.2). */
typedef struct quantized_triple {
    int32_t weight, scales, biases;
} quantized_triple;
/* Appends stem.weight U32, stem.scales and stem.biases BF16; `shape` is the matrix's own. */
calla_status checkpoint_plan_add_quantized(checkpoint_plan *plan, const char *stem, int bits,
                                           int32_t n_dims, const int64_t *shape,
                                           quantized_triple *triple, calla_error *err);

/* Lays out all tensors added: shards are filled in name order to at most max_shard_bytes each (more
 * for a matrix that alone exceeds it), codes, scales and biases of a matrix staying together; in a
 * shard wider elements come first, then names ascend. Refuses more than MAX_SHARDS shards and equal
 * names. */
calla_status checkpoint_plan_layout(checkpoint_plan *plan, int64_t max_shard_bytes,
                                    calla_error *err);
void checkpoint_plan_free(checkpoint_plan *plan);

/* The text of model.safetensors.index.json, malloc'ed. */
calla_status checkpoint_plan_index(const checkpoint_plan *plan, int64_t n_parameters, char **text,
                                   size_t *n_bytes, calla_error *err);

#endif
