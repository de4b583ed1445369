/* safetensors files, single or sharded with an index, memory-mapped (MODEL.md 2.0). */
#ifndef CALLA_MODEL_SAFETENSORS_H
#define CALLA_MODEL_SAFETENSORS_H

#include "base/error.h"
#include "base/file.h"

typedef enum tensor_dtype { DTYPE_BF16, DTYPE_F32, DTYPE_U32, DTYPE_OTHER } tensor_dtype;

enum { TENSOR_MAX_DIMS = 8 };

typedef struct tensor {
    const char *name;
    tensor_dtype dtype;
    char dtype_name[16]; /* as written in the file */
    int32_t n_dims;
    int64_t shape[TENSOR_MAX_DIMS]; /* [n_dims] */
    const unsigned char *data;      /* into the map, [n_bytes]; no alignment, see below */
    size_t n_bytes;
    int32_t file; /* index into tensor_set.files */
    bool used;    /* taken by tensor_set_take */
    bool sparse;  /* one token reads little of it: routed experts, embedding (weights.c) */
} tensor;

typedef struct tensor_file {
    char *name; /* within the directory */
    char *path; /* for messages */
    mapped_file map;
} tensor_file;

typedef struct tensor_set {
    char *dir;
    tensor *tensors; /* [n_tensors], ascending by name */
    int32_t n_tensors;
    tensor_file *files; /* [n_files] */
    int32_t n_files;
    bool in_memory; /* the one file is anonymous memory */
} tensor_set;

/* Opens dir/model.safetensors.index.json and its shards, or dir/model.safetensors. Refuses: headers
 * that are truncated, absurdly long or not the expected JSON; unknown keys; shapes whose product
 * overflows; byte counts that do not match dtype and shape; ranges that leave the file, overlap or
 * leave gaps; offsets that are no multiple of the element; duplicate names; index entries without
 * their tensor and tensors without their entry; shard names that leave the directory. */
calla_status tensor_set_open(const char *dir, tensor_set *set, calla_error *err);
/* The same for the bytes of one file in memory, called `name` in messages. Takes over `map`, in
 * failure too. Only the header's bytes need be there yet. */
calla_status tensor_set_open_memory(const char *name, mapped_file map, tensor_set *set,
                                    calla_error *err);
void tensor_set_close(tensor_set *set);

/* Parses one file's header in memory (also the fuzz target's entry): appends to *tensors, which the
 * caller frees with tensors_free, after a failure too.
 *
 * Offsets are relative to the end of the header, whose length may be any number: MLX writes it
 * unpadded, so a tensor of a real checkpoint may begin at an odd address. */
calla_status safetensors_parse(const unsigned char *data, size_t n_bytes, const char *path,
                               int32_t file, tensor **tensors, int32_t *n_tensors, size_t *capacity,
                               calla_error *err);

void tensors_free(tensor *tensors, int32_t n_tensors);

/* By name; NULL if absent. */
const tensor *tensor_set_find(const tensor_set *set, const char *name);
/* Finds `name`, checks dtype and shape, marks it used. Errors name the tensor with both values. */
calla_status tensor_set_take(tensor_set *set, const char *name, tensor_dtype dtype, int32_t n_dims,
                             const int64_t *shape, const tensor **out, calla_error *err);

const char *tensor_dtype_name(tensor_dtype dtype);
/* "[2048, 256]" into buffer. */
const char *shape_text(int32_t n_dims, const int64_t *shape, char *buffer, size_t n);

#endif
