#include "model/safetensors.h"

#include "base/memory.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_HEADER_BYTES = 100000000, /* as the reference library */
    MAX_HEADER_VALUES = 1 << 20,  /* JSON values: bounds the memory a hostile header can take */
};

/* The element types of the format; only three are used here, the others may belong to tensors that
 * are skipped. */
static const struct dtype_info {
    const char *name;
    int bits;
    tensor_dtype dtype;
} dtypes[] = {
    {"BF16", 16, DTYPE_BF16},        {"F32", 32, DTYPE_F32},      {"U32", 32, DTYPE_U32},
    {"BOOL", 8, DTYPE_OTHER},        {"U8", 8, DTYPE_OTHER},      {"I8", 8, DTYPE_OTHER},
    {"I16", 16, DTYPE_OTHER},        {"U16", 16, DTYPE_OTHER},    {"F16", 16, DTYPE_OTHER},
    {"I32", 32, DTYPE_OTHER},        {"I64", 64, DTYPE_OTHER},    {"U64", 64, DTYPE_OTHER},
    {"F64", 64, DTYPE_OTHER},        {"C64", 64, DTYPE_OTHER},    {"F8_E4M3", 8, DTYPE_OTHER},
    {"F8_E5M2", 8, DTYPE_OTHER},     {"F8_E8M0", 8, DTYPE_OTHER}, {"F8_E4M3FNUZ", 8, DTYPE_OTHER},
    {"F8_E5M2FNUZ", 8, DTYPE_OTHER}, {"F6_E2M3", 6, DTYPE_OTHER}, {"F6_E3M2", 6, DTYPE_OTHER},
    {"F4", 4, DTYPE_OTHER},
};

static const struct dtype_info *find_dtype(const char *name)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (strcmp(dtypes[i].name, name) == 0) return &dtypes[i];
    }
    return NULL;
}

const char *tensor_dtype_name(tensor_dtype dtype)
{
    static const char *const names[] = {"BF16", "F32", "U32", "another"};
    return names[dtype];
}

const char *shape_text(int32_t n_dims, const int64_t *shape, char *buffer, size_t n)
{
    size_t used = 0;
    buffer[0] = '\0';
    for (int32_t i = 0; i < n_dims && used < n; i++)
        used +=
            (size_t)snprintf(buffer + used, n - used, i ? ", %lld" : "[%lld", (long long)shape[i]);
    if (used < n) snprintf(buffer + used, n - used, n_dims ? "]" : "[]");
    return buffer;
}

/* ---- one header ---- */

/* What the parse of one file carries along. */
typedef struct header {
    const char *path;
    const unsigned char *buffer; /* [buffer_bytes] tensor data */
    size_t buffer_bytes;
    calla_error *err;
} header;

#define FAIL(h, ...) error_set((h)->err, CALLA_ERR_INPUT, __VA_ARGS__)

/* A non-negative whole number; false if the value is anything else. */
static bool get_size(json_t *value, uint64_t *n)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0) return false;
    *n = (uint64_t)json_integer_value(value);
    return true;
}

static calla_status parse_shape(const header *h, const char *name, json_t *shape, int bits,
                                tensor *t)
{
    size_t n = json_array_size(shape);
    if (!json_is_array(shape) || n > TENSOR_MAX_DIMS)
        return FAIL(h, "%s: tensor %s: shape is not a list of at most %d sizes", h->path, name,
                    TENSOR_MAX_DIMS);
    size_t product = (size_t)bits;
    bool fits = true;
    for (size_t i = 0; i < n; i++) {
        uint64_t size;
        if (!get_size(json_array_get(shape, i), &size))
            return FAIL(h, "%s: tensor %s: shape[%zu] is not a whole number", h->path, name, i);
        t->shape[i] = (int64_t)size;
        fits = fits && size_mul(product, size, &product);
    }
    t->n_dims = (int32_t)n;
    char text[160];
    shape_text(t->n_dims, t->shape, text, sizeof text);
    if (!fits || product % 8 != 0)
        return FAIL(h, "%s: tensor %s: shape %s of %s is not a possible size", h->path, name, text,
                    t->dtype_name);
    t->n_bytes = product / 8;
    return CALLA_OK;
}

static calla_status parse_offsets(const header *h, const char *name, json_t *offsets, int bits,
                                  tensor *t)
{
    uint64_t begin, end;
    if (!json_is_array(offsets) || json_array_size(offsets) != 2 ||
        !get_size(json_array_get(offsets, 0), &begin) ||
        !get_size(json_array_get(offsets, 1), &end))
        return FAIL(h, "%s: tensor %s: data_offsets is not a pair of whole numbers", h->path, name);
    if (begin > end || end > h->buffer_bytes)
        return FAIL(h, "%s: tensor %s: data_offsets [%llu, %llu] leave the file's %zu data bytes",
                    h->path, name, (unsigned long long)begin, (unsigned long long)end,
                    h->buffer_bytes);
    if (end - begin != t->n_bytes) {
        char text[160];
        return FAIL(h, "%s: tensor %s has %llu bytes, expected %zu for %s %s", h->path, name,
                    (unsigned long long)(end - begin), t->n_bytes, t->dtype_name,
                    shape_text(t->n_dims, t->shape, text, sizeof text));
    }
    if (bits > 8 && begin % ((size_t)bits / 8) != 0)
        return FAIL(h, "%s: tensor %s: data offset %llu is not a multiple of %s's %d bytes",
                    h->path, name, (unsigned long long)begin, t->dtype_name, bits / 8);
    t->data = h->buffer ? h->buffer + begin : NULL;
    return CALLA_OK;
}

static calla_status parse_entry(const header *h, const char *name, json_t *entry, tensor *t)
{
    if (!json_is_object(entry))
        return FAIL(h, "%s: tensor %s is not described by an object", h->path, name);
    const char *key;
    json_t *value;
    json_object_foreach(entry, key, value)
    {
        if (strcmp(key, "dtype") && strcmp(key, "shape") && strcmp(key, "data_offsets"))
            return FAIL(h, "%s: tensor %s: unknown key %.64s", h->path, name, key);
    }
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    const struct dtype_info *info = dtype ? find_dtype(dtype) : NULL;
    if (!info)
        return FAIL(h, "%s: tensor %s: dtype %.32s is not one of the format's", h->path, name,
                    dtype ? dtype : "is missing or");
    t->dtype = info->dtype;
    memcpy(t->dtype_name, info->name, strlen(info->name) + 1);
    CALLA_TRY(parse_shape(h, name, json_object_get(entry, "shape"), info->bits, t));
    return parse_offsets(h, name, json_object_get(entry, "data_offsets"), info->bits, t);
}

static int by_position(const void *a, const void *b)
{
    const tensor *x = *(const tensor *const *)a, *y = *(const tensor *const *)b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return (x->n_bytes > y->n_bytes) - (x->n_bytes < y->n_bytes);
}

/* The tensors must cover the data exactly, without holes or overlaps. */
static calla_status check_cover(const header *h, const tensor *tensors, int32_t n)
{
    void *memory;
    CALLA_TRY(mem_alloc((size_t)n, sizeof(tensor *), "tensor list", &memory, h->err));
    const tensor **order = memory;
    for (int32_t i = 0; i < n; i++) order[i] = &tensors[i];
    qsort(order, (size_t)n, sizeof *order, by_position);
    calla_status status = CALLA_OK;
    size_t end = 0;
    for (int32_t i = 0; i < n && status == CALLA_OK; i++) {
        size_t begin = order[i]->data ? (size_t)(order[i]->data - h->buffer) : 0;
        if (begin != end)
            status = FAIL(h, "%s: tensor %s begins at data byte %zu, expected %zu (%s)", h->path,
                          order[i]->name, begin, end, begin < end ? "overlap" : "hole");
        end = begin + order[i]->n_bytes;
    }
    if (status == CALLA_OK && end != h->buffer_bytes)
        status = FAIL(h, "%s: %zu data bytes, but the tensors end at %zu", h->path, h->buffer_bytes,
                      end);
    mem_free(memory);
    return status;
}

static calla_status check_metadata(const header *h, json_t *metadata)
{
    const char *key;
    json_t *value;
    bool good = json_is_object(metadata);
    json_object_foreach(metadata, key, value) good = good && json_is_string(value);
    if (good) return CALLA_OK;
    return FAIL(h, "%s: __metadata__ is not an object of strings", h->path);
}

/* Every JSON value but the outermost comes after one of these characters, so counting them bounds
 * the memory a parse takes before it starts. */
static bool has_too_many_values(const char *text, size_t n)
{
    size_t n_values = 0;
    for (size_t i = 0; i < n; i++) n_values += text[i] == ',' || text[i] == '[' || text[i] == '{';
    return n_values > MAX_HEADER_VALUES;
}

/* Finds the header's text and the data behind it. */
static calla_status split_file(header *h, const unsigned char *data, size_t n_bytes,
                               const char **text, size_t *n_text)
{
    if (n_bytes < 8)
        return FAIL(h, "%s has %zu bytes, too few for a safetensors file", h->path, n_bytes);
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--) n = n << 8 | data[i];
    if (n > MAX_HEADER_BYTES)
        return FAIL(h, "%s: header of %llu bytes, more than the %d allowed (not safetensors?)",
                    h->path, (unsigned long long)n, MAX_HEADER_BYTES);
    if (n > n_bytes - 8)
        return FAIL(h, "%s: header of %llu bytes in a file of %zu (truncated?)", h->path,
                    (unsigned long long)n, n_bytes);
    *text = (const char *)data + 8;
    *n_text = (size_t)n;
    h->buffer = data + 8 + n;
    h->buffer_bytes = n_bytes - 8 - (size_t)n;
    if (n == 0 || **text != '{') return FAIL(h, "%s: the header does not begin with '{'", h->path);
    if (has_too_many_values(*text, *n_text))
        return FAIL(h, "%s: the header has more than %d values", h->path, MAX_HEADER_VALUES);
    return CALLA_OK;
}

calla_status safetensors_parse(const unsigned char *data, size_t n_bytes, const char *path,
                               int32_t file, tensor **tensors, int32_t *n_tensors, size_t *capacity,
                               calla_error *err)
{
    header h = {.path = path, .err = err};
    const char *text = NULL;
    size_t n_text = 0;
    CALLA_TRY(split_file(&h, data, n_bytes, &text, &n_text));
    json_error_t where;
    json_t *root = json_loadb(text, n_text, JSON_REJECT_DUPLICATES, &where);
    if (!root) return FAIL(&h, "%s: header byte %d: %s", path, where.position, where.text);

    calla_status status = CALLA_OK;
    int32_t first = *n_tensors;
    const char *name;
    json_t *entry;
    json_object_foreach(root, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0) {
            CALLA_TRY_GOTO(check_metadata(&h, entry), done);
            continue;
        }
        tensor t = {.file = file};
        CALLA_TRY_GOTO(parse_entry(&h, name, entry, &t), done);
        CALLA_TRY_GOTO(mem_grow((void **)tensors, capacity, (size_t)*n_tensors + 1, sizeof t,
                                "tensor list", err),
                       done);
        t.name = strdup(name);
        if (!t.name) {
            status = error_set(err, CALLA_ERR_MEMORY, "%s: no memory for a tensor's name", path);
            goto done;
        }
        (*tensors)[(*n_tensors)++] = t;
    }
    status = check_cover(&h, *n_tensors ? *tensors + first : NULL, *n_tensors - first);
done:
    json_decref(root);
    return status;
}

void tensors_free(tensor *tensors, int32_t n_tensors)
{
    for (int32_t i = 0; i < n_tensors; i++) free((void *)(uintptr_t)tensors[i].name);
    free(tensors);
}

/* ---- a directory ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const tensor *)a)->name, ((const tensor *)b)->name);
}

static calla_status no_memory(const char *dir, calla_error *err)
{
    return error_set(err, CALLA_ERR_MEMORY, "%s: no memory for the list of files", dir);
}

/* Appends an entry without its map. */
static calla_status add_entry(tensor_set *set, const char *name, size_t *file_capacity,
                              calla_error *err)
{
    CALLA_TRY(mem_grow((void **)&set->files, file_capacity, (size_t)set->n_files + 1,
                       sizeof(tensor_file), "file list", err));
    tensor_file *file = &set->files[set->n_files++];
    *file = (tensor_file){.name = strdup(name), .path = path_join(set->dir, name)};
    return file->name && file->path ? CALLA_OK : no_memory(set->dir, err);
}

/* Appends the file `name` of the directory, mapped and parsed, unless it is there already. */
static calla_status add_file(tensor_set *set, const char *name, size_t *file_capacity,
                             size_t *tensor_capacity, calla_error *err)
{
    for (int32_t i = 0; i < set->n_files; i++) {
        if (strcmp(set->files[i].name, name) == 0) return CALLA_OK;
    }
    CALLA_TRY(add_entry(set, name, file_capacity, err));
    tensor_file *file = &set->files[set->n_files - 1];
    CALLA_TRY(mapped_file_open(file->path, &file->map, err));
    return safetensors_parse(file->map.data, file->map.n_bytes, file->path, set->n_files - 1,
                             &set->tensors, &set->n_tensors, tensor_capacity, err);
}

/* A shard's name comes from the index: it must name a file of the directory itself. */
static bool is_plain_name(const char *name)
{
    return *name && name[0] != '.' && !strchr(name, '/') && strlen(name) < 256;
}

static calla_status check_index(const tensor_set *set, const char *path, json_t *map,
                                calla_error *err)
{
    for (int32_t i = 0; i < set->n_tensors; i++) {
        const tensor *t = &set->tensors[i];
        const char *shard = set->files[t->file].name;
        const char *listed = json_string_value(json_object_get(map, t->name));
        if (!listed || strcmp(listed, shard) != 0)
            return error_set(err, CALLA_ERR_INPUT, "%s: tensor %s is in %s, the index says %s",
                             path, t->name, shard, listed ? listed : "nothing");
    }
    const char *name;
    json_t *shard;
    json_object_foreach(map, name, shard)
    {
        if (!tensor_set_find(set, name))
            return error_set(err, CALLA_ERR_INPUT, "%s: tensor %s is not in %s", path, name,
                             json_string_value(shard));
    }
    return CALLA_OK;
}

static calla_status finish_set(tensor_set *set, calla_error *err)
{
    if (set->n_tensors) qsort(set->tensors, (size_t)set->n_tensors, sizeof *set->tensors, by_name);
    for (int32_t i = 1; i < set->n_tensors; i++) {
        const tensor *a = &set->tensors[i - 1], *b = &set->tensors[i];
        if (strcmp(a->name, b->name) == 0)
            return error_set(err, CALLA_ERR_INPUT, "%s: tensor %s is in %s and in %s", set->dir,
                             a->name, set->files[a->file].name, set->files[b->file].name);
    }
    return CALLA_OK;
}

static calla_status open_shards(tensor_set *set, const char *path, json_t *root, calla_error *err)
{
    json_t *map = json_object_get(root, "weight_map");
    if (!json_is_object(map) || json_object_size(map) == 0)
        return error_set(err, CALLA_ERR_INPUT, "%s: weight_map is not an object of file names",
                         path);
    size_t file_capacity = 0, tensor_capacity = 0;
    const char *name;
    json_t *shard;
    json_object_foreach(map, name, shard)
    {
        if (!json_is_string(shard) || !is_plain_name(json_string_value(shard)))
            return error_set(
                err, CALLA_ERR_INPUT, "%s: tensor %s: its file is not a plain file name (%.128s)",
                path, name, json_is_string(shard) ? json_string_value(shard) : "not a string");
        CALLA_TRY(add_file(set, json_string_value(shard), &file_capacity, &tensor_capacity, err));
    }
    CALLA_TRY(finish_set(set, err));
    return check_index(set, path, map, err);
}

static calla_status open_index(tensor_set *set, const char *path, calla_error *err)
{
    char *text;
    size_t n;
    CALLA_TRY(file_read(path, MAX_HEADER_BYTES, &text, &n, err));
    if (has_too_many_values(text, n)) {
        free(text);
        return error_set(err, CALLA_ERR_INPUT, "%s has more than %d values", path,
                         MAX_HEADER_VALUES);
    }
    json_error_t where;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &where);
    free(text);
    if (!root)
        return error_set(err, CALLA_ERR_INPUT, "%s: line %d, column %d: %s", path, where.line,
                         where.column, where.text);
    calla_status status = open_shards(set, path, root, err);
    json_decref(root);
    return status;
}

calla_status tensor_set_open(const char *dir, tensor_set *set, calla_error *err)
{
    calla_status status;
    tensor_set s = {.dir = strdup(dir)};
    char *index = path_join(dir, "model.safetensors.index.json");
    if (!s.dir || !index) {
        status = no_memory(dir, err);
        goto fail;
    }
    if (file_exists(index)) {
        CALLA_TRY_GOTO(open_index(&s, index, err), fail);
    } else {
        size_t file_capacity = 0, tensor_capacity = 0;
        CALLA_TRY_GOTO(add_file(&s, "model.safetensors", &file_capacity, &tensor_capacity, err),
                       fail);
        CALLA_TRY_GOTO(finish_set(&s, err), fail);
    }
    free(index);
    *set = s;
    return CALLA_OK;
fail:
    free(index);
    tensor_set_close(&s);
    return status;
}

calla_status tensor_set_open_memory(const char *name, mapped_file map, tensor_set *set,
                                    calla_error *err)
{
    calla_status status;
    tensor_set s = {.dir = strdup(name), .in_memory = true};
    size_t file_capacity = 0, tensor_capacity = 0;
    if (!s.dir) {
        status = no_memory(name, err);
        goto fail;
    }
    CALLA_TRY_GOTO(add_entry(&s, "memory", &file_capacity, err), fail);
    s.files[0].map = map;
    map = (mapped_file){0};
    CALLA_TRY_GOTO(safetensors_parse(s.files[0].map.data, s.files[0].map.n_bytes, s.files[0].path,
                                     0, &s.tensors, &s.n_tensors, &tensor_capacity, err),
                   fail);
    CALLA_TRY_GOTO(finish_set(&s, err), fail);
    *set = s;
    return CALLA_OK;
fail:
    mapped_file_close(&map);
    tensor_set_close(&s);
    return status;
}

void tensor_set_close(tensor_set *set)
{
    tensors_free(set->tensors, set->n_tensors);
    for (int32_t i = 0; i < set->n_files; i++) {
        mapped_file_close(&set->files[i].map);
        free(set->files[i].name);
        free(set->files[i].path);
    }
    free(set->files);
    free(set->dir);
    *set = (tensor_set){0};
}

static tensor *find(const tensor_set *set, const char *name)
{
    tensor key = {.name = name};
    if (set->n_tensors == 0) return NULL;
    return bsearch(&key, set->tensors, (size_t)set->n_tensors, sizeof key, by_name);
}

const tensor *tensor_set_find(const tensor_set *set, const char *name)
{
    return find(set, name);
}

calla_status tensor_set_take(tensor_set *set, const char *name, tensor_dtype dtype, int32_t n_dims,
                             const int64_t *shape, const tensor **out, calla_error *err)
{
    tensor *t = find(set, name);
    if (!t) return error_set(err, CALLA_ERR_INPUT, "%s: tensor %s is missing", set->dir, name);
    const char *path = set->files[t->file].path;
    if (t->dtype != dtype)
        return error_set(err, CALLA_ERR_INPUT, "%s: tensor %s has dtype %s, expected %s", path,
                         name, t->dtype_name, tensor_dtype_name(dtype));
    if (t->n_dims != n_dims || memcmp(t->shape, shape, (size_t)n_dims * sizeof *shape) != 0) {
        char found[160], expected[160];
        return error_set(err, CALLA_ERR_INPUT, "%s: tensor %s has shape %s, expected %s", path,
                         name, shape_text(t->n_dims, t->shape, found, sizeof found),
                         shape_text(n_dims, shape, expected, sizeof expected));
    }
    t->used = true;
    *out = t;
    return CALLA_OK;
}
